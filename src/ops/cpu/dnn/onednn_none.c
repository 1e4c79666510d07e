/* onednn_none.c: stands in where the build found no oneDNN: it has no implementation of anything. */
#include "ops/cpu/dnn/onednn.h"

#include "base/error.h"

memfit_status mf_dnn_engine_create(const memfit_host *host, unsigned threads, const char *isa, mf_dnn_engine **engine,
                                   memfit_error *err)
{
    (void)host, (void)threads, (void)isa, (void)err;
    *engine = NULL;
    return MEMFIT_OK;
}

void mf_dnn_engine_destroy(mf_dnn_engine *engine)
{
    (void)engine;
}

memfit_status mf_dnn_conv_make(mf_dnn_engine *engine, const mf_dnn_conv *conv, mf_dnn **made, uint64_t *workspace_bytes,
                               memfit_error *err)
{
    (void)engine, (void)conv, (void)made, (void)workspace_bytes;
    return mf_fail(err, MEMFIT_UNSUPPORTED, "this build has no oneDNN");
}

memfit_status mf_dnn_matmul_make(mf_dnn_engine *engine, const mf_dnn_matmul *matmul, mf_dnn **made,
                                 uint64_t *workspace_bytes, memfit_error *err)
{
    (void)engine, (void)matmul, (void)made, (void)workspace_bytes;
    return mf_fail(err, MEMFIT_UNSUPPORTED, "this build has no oneDNN");
}

void mf_dnn_destroy(mf_dnn *made)
{
    (void)made;
}

memfit_status mf_dnn_run(mf_dnn *made, void *const *operands, void *workspace, memfit_error *err)
{
    (void)made, (void)operands, (void)workspace;
    return mf_fail(err, MEMFIT_INTERNAL, "this build has no oneDNN");
}

void mf_dnn_cache(bool on)
{
    (void)on;
}

#ifndef MF_DNN_START_KIB /* a program that has this in the library's place links it all the same */
#define MF_DNN_START_KIB 600
#endif

const mf_dnn_takes *mf_dnn_taken(void)
{
    static const mf_dnn_takes taken = {.start = MF_DNN_START_KIB << 10};
    return &taken;
}

uint64_t mf_dnn_conv_making(const mf_dnn_conv *conv)
{
    (void)conv;
    return 0;
}

uint64_t mf_dnn_conv_wide(const mf_dnn_conv *conv)
{
    (void)conv;
    return 0;
}

bool mf_dnn_compiles(void)
{
    return false;
}
