/* cpu_build.h: what tests of the CPU backend make graphs of. */
#ifndef MF_TESTS_CPU_BUILD_H
#define MF_TESTS_CPU_BUILD_H

#include "graph/build.h"

static inline mf_shape shape(uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (mf_shape){.rank = rank, .dim = {a, b, c, d}};
}

static inline uint32_t weight(mf_build *b, const char *name, mf_shape s)
{
    uint32_t v = mf_g_variable(b, &(mf_variable){.name = name,
                                                 .role = MF_VAR_PARAMETER,
                                                 .kind = MEMFIT_KIND_PARAMETERS,
                                                 .dtype = MF_F32,
                                                 .shape = s,
                                                 .trainable = true,
                                                 .parameter = MF_NONE});
    return mf_g_use(b, v);
}

#endif
