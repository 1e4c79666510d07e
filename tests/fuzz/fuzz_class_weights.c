/* fuzz_class_weights.c: any bytes as weights by class: finite numbers, no more of them than labels may be, nothing kept. */
#include "data/class_weights.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    double *weights;
    int64_t count;
    memfit_error err = {0};
    mf_limit_host host;
    mf_limit_host_init(&host, NULL, 64u << 20);
    memfit_status status = mf_class_weights_read(&host.host, (const char *)data, bytes, &weights, &count, &err);
    if (status == MEMFIT_OK) {
        if (count < 1 || count > (1 << 20) + 1)
            abort();
        for (int64_t i = 0; i < count; i++)
            if (!isfinite(weights[i]))
                abort();
        mf_host_free(&host.host, weights, (size_t)count * sizeof *weights);
    } else if (!err.message[0]) {
        abort();
    }
    if (host.live_bytes)
        abort();
    return 0;
}
