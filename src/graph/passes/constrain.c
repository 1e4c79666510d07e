/*
 * constrain.c: constraints on parameters, after their update: w = constraint(w).
 *
 *     max_norm       w * clip(n, 0, high) / (n + e)                     n: root of the sum of squares over some axes,
 *     min_max_norm   w * (r clip(n, low, high) + (1-r) n) / (n + e)        kept as axes of size 1; e = 1e-7
 *     unit_norm      w / (n + e)
 *     non_neg        max(w, 0)
 *
 * They are made of the operations that are there, on a copy, which a moving average without memory writes back: no kind
 * of their own, so every backend has them, at the price of a tensor of the parameter's size while it happens. The norm
 * is taken after the update, so the parameter is read in the version it was just written in, like the average of
 * weights.
 */
#include "graph/build.h"

static const double epsilon = 1e-7;

static uint32_t affine(mf_build *b, double scale, double offset, uint32_t x)
{
    return mf_g_unary(b, MF_UNARY_AFFINE, scale, offset, x);
}

/* What the parameter is multiplied by, one number for each set of entries. */
static uint32_t factor(mf_build *b, const mf_constraint *c, uint32_t w)
{
    uint32_t square = mf_g_unary(b, MF_UNARY_SQUARE, 0, 0, w);
    uint32_t norm = mf_g_unary(b, MF_UNARY_SQRT, 0, 0, mf_g_reduce(b, MF_REDUCE_SUM, square, c->axes, true));
    uint32_t share = mf_g_unary(b, MF_UNARY_RECIPROCAL, 0, 0, affine(b, 1, epsilon, norm));
    if (c->kind == MF_CONSTRAINT_UNIT_NORM)
        return share;
    uint32_t wanted = mf_g_unary(b, MF_UNARY_CLIP, c->low, c->high, norm);
    if (c->rate != 1)
        wanted = mf_g_binary(b, MF_ADD, affine(b, c->rate, 0, wanted), affine(b, 1 - c->rate, 0, norm));
    return mf_g_binary(b, MF_MUL, wanted, share);
}

void mf_constrain(mf_build *b, uint32_t variable)
{
    const mf_constraint c = b->graph->variables[variable].constraint;
    if (c.kind == MF_CONSTRAINT_NONE)
        return;
    uint32_t w = mf_g_use(b, variable);
    uint32_t value = c.kind == MF_CONSTRAINT_NON_NEGATIVE ? mf_g_unary(b, MF_UNARY_RELU, 0, 0, w)
                                                          : mf_g_binary(b, MF_MUL, w, factor(b, &c, w));
    mf_g_moving_average(b, value, w, 0);
}
