/* onednn_none.c: stands in where the build found no oneDNN. */
#include "ops/cpu/dnn/onednn.h"
#include "ops/ops.h"

#include "base/error.h"

memfit_status mf_cpu_create(const memfit_host *host, unsigned threads, mf_backend **backend, memfit_error *err)
{
    (void)host;
    (void)threads;
    (void)backend;
    return mf_fail(err, MEMFIT_UNSUPPORTED,
                   "this build has no oneDNN\ninstall its development package (Debian: libdnnl-dev) and build again");
}

void mf_dnn_cache(bool on)
{
    (void)on;
}

uint64_t mf_dnn_process_bytes(void)
{
    return 0;
}

bool mf_dnn_compiles(void)
{
    return false;
}
