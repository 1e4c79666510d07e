/* graph_parts.h: what tests build graphs from by hand. */
#ifndef MF_TESTS_GRAPH_PARTS_H
#define MF_TESTS_GRAPH_PARTS_H

#include "test.h"

#include "graph/build.h"

static inline mf_shape dims(uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return mf_shape_make(rank, (int64_t[]){a, b, c, d});
}

static inline uint32_t parameter(mf_build *b, mf_shape shape)
{
    mf_variable v = {.name = "p",
                     .role = MF_VAR_PARAMETER,
                     .kind = MEMFIT_KIND_PARAMETERS,
                     .trainable = true,
                     .dtype = MF_F32,
                     .shape = shape,
                     .parameter = MF_NONE};
    return mf_g_use(b, mf_g_variable(b, &v));
}

#endif
