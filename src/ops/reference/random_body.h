/* random_body.h: see ref_random.c. */
#include "ops/reference/real.h"

KERNEL(random)
{
    (void)err;
    draw_walk w;
    walk_begin(&w, call);
    REAL *y = call->out[0].data;
    for (uint64_t i = 0; i < call->out[0].count; i++, walk_next(&w, call))
        y[i] = (REAL)draw_number(&w.draw, &call->op->attr, walk_index(&w));
    return MEMFIT_OK;
}

KERNEL(dropout)
{
    (void)err;
    draw_walk w;
    walk_begin(&w, call);
    const REAL *x = call->in[0].data;
    REAL *y = call->out[0].data;
    double rate = call->op->attr.random.rate, scale = rate < 1 ? 1 / (1 - rate) : 0;
    for (uint64_t i = 0; i < call->out[0].count; i++, walk_next(&w, call))
        y[i] = mf_draw_uniform(&w.draw, walk_index(&w)) >= rate ? (REAL)((double)x[i] * scale) : 0;
    return MEMFIT_OK;
}
