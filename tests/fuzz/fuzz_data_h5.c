/* fuzz_data_h5.c: any bytes as a data file in HDF5: every array it gives can be read from its first to its last sample,
 * within a limit of host memory, and nothing is kept. */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

static void read_ends(const mf_source *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const mf_array *a = &s->arrays[i];
        if (a->unusable || a->shape.dim[0] < 1 || a->sample_bytes > 1 << 20)
            continue;
        unsigned char *sample = malloc(a->sample_bytes + 1);
        mf_source_read(s, a, 0, sample);
        mf_source_read(s, a, a->shape.dim[0] - 1, sample);
        free(sample);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mf_source *s;
    memfit_error err = {0};
    mf_limit_host host;
    mf_limit_host_init(&host, NULL, 64u << 20);
    if (mf_source_synthetic(&host.host, 1, 0, &s, NULL) != MEMFIT_OK)
        return 0;
    unsigned char *copy = malloc(bytes ? bytes : 1);
    if (bytes)
        memcpy(copy, data, bytes);
    s->mappings[s->mapping_count++] = (mf_mapping){copy, bytes};
    memfit_status status = mf_source_h5(s, copy, bytes, NULL, &err);
    if (status != MEMFIT_OK && !err.message[0])
        abort();
    if (status == MEMFIT_OK)
        read_ends(s);
    s->mappings[0] = (mf_mapping){0};
    mf_source_close(s);
    free(copy);
    if (host.live_bytes)
        abort();
    return 0;
}
