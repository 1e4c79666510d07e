/* end_step.cu: what a step leaves in the scalars: the text of ops/scalars.c, run by one thread. */
typedef struct mf_backend mf_backend;
typedef unsigned long long mf_stream;
typedef struct mf_step_end {
    mf_run_scalars *scalars;
    const float *loss, *overflow;
    bool learns;
} mf_step_end;
#define isfinite(x) ((x) - (x) == 0)
namespace {
#include "ops/scalars.c"
}

extern "C" __global__ void end_step(mf_step_end end)
{
    mf_scalars_end_step(0, &end, 0, 0);
}
