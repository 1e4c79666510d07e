/* pointwise_body.h: see ref_pointwise.c. */
#include "ops/reference/real.h"

KERNEL(unary)
{
    (void)err;
    const mf_attr *attr = &call->op->attr;
    const REAL *x = call->in[0].data;
    REAL *y = call->out[0].data;
    uint64_t n = call->out[0].count;
    if (attr->unary.function == MF_UNARY_RELU) { /* the common one, without the switch */
        for (uint64_t i = 0; i < n; i++)
            y[i] = x[i] < 0 ? 0 : x[i];
        return MEMFIT_OK;
    }
    for (uint64_t i = 0; i < n; i++)
        y[i] = (REAL)mf_unary_value(attr->unary.function, attr->unary.alpha, attr->unary.beta, (double)x[i]);
    return MEMFIT_OK;
}

KERNEL(unary_grad)
{
    const mf_attr *attr = &call->op->attr;
    if (attr->unary.from_output && !mf_unary_slope_by_output(attr->unary.function))
        return mf_fail(err, MEMFIT_INTERNAL, "unary function %d has no gradient by its output",
                       (int)attr->unary.function);
    const REAL *dy = call->in[0].data, *x = call->in[1].data;
    REAL *dx = call->out[0].data;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        dx[i] = (REAL)((double)dy[i] * mf_unary_slope(attr->unary.function, attr->unary.alpha, attr->unary.beta,
                                                      attr->unary.from_output, (double)x[i]));
    return MEMFIT_OK;
}

KERNEL(mask)
{
    (void)err;
    const REAL *x = call->in[0].data;
    unsigned char *bits = call->out[0].data;
    const bool six = call->op->attr.unary.function == MF_UNARY_RELU6;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        bits[i] = 0;
    for (uint64_t i = 0; i < call->in[0].count; i++) {
        bool slopes = x[i] > 0 && (!six || x[i] < 6);
        bits[i / 8] = (unsigned char)(bits[i / 8] | (unsigned)slopes << i % 8);
    }
    return MEMFIT_OK;
}

KERNEL(mask_grad)
{
    (void)err;
    const REAL *dy = call->in[0].data;
    const unsigned char *bits = call->in[1].data;
    REAL *dx = call->out[0].data;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        dx[i] = dy[i] * (REAL)(bits[i / 8] >> i % 8 & 1);
    return MEMFIT_OK;
}

/* Calls for every element of y, with the broadcast elements of a and b. The last axis is the inner loop. */
static void FN(binary_walk)(mf_binary function, const mf_ref_arg *a, const mf_ref_arg *b, const mf_ref_arg *y)
{
    int64_t sa[MF_MOST_DIMS], sb[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0};
    mf_ref_strides(y->shape, a->shape, sa);
    mf_ref_strides(y->shape, b->shape, sb);
    mf_shape outer = *y->shape;
    int64_t inner = 1, ia = 0, ib = 0;
    if (outer.rank > 0) {
        inner = outer.dim[--outer.rank];
        ia = sa[outer.rank];
        ib = sb[outer.rank];
    }
    REAL *out = y->data;
    if (y->count == 0)
        return;
    do {
        const REAL *pa = (const REAL *)a->data + mf_ref_dot(at, sa, outer.rank);
        const REAL *pb = (const REAL *)b->data + mf_ref_dot(at, sb, outer.rank);
        for (int64_t i = 0; i < inner; i++)
            *out++ = (REAL)binary_value(function, (double)pa[i * ia], (double)pb[i * ib]);
    } while (mf_ref_next(&outer, at));
}

KERNEL(binary)
{
    (void)err;
    FN(binary_walk)(call->op->attr.binary.function, &call->in[0], &call->in[1], &call->out[0]);
    return MEMFIT_OK;
}

KERNEL(binary_grad)
{
    (void)err;
    const mf_ref_arg *dy = &call->in[0], *a = &call->in[1], *b = &call->in[2], *out = &call->out[0];
    int64_t sa[MF_MOST_DIMS], sb[MF_MOST_DIMS], so[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0};
    mf_ref_strides(dy->shape, a->shape, sa);
    mf_ref_strides(dy->shape, b->shape, sb);
    mf_ref_strides(dy->shape, out->shape, so);
    for (uint64_t i = 0; i < out->count; i++)
        call->scratch[i] = 0;
    const REAL *d = dy->data;
    if (dy->count > 0)
        do {
            double va = (double)((const REAL *)a->data)[mf_ref_dot(at, sa, dy->shape->rank)];
            double vb = (double)((const REAL *)b->data)[mf_ref_dot(at, sb, dy->shape->rank)];
            call->scratch[mf_ref_dot(at, so, dy->shape->rank)] +=
                (double)*d++ * binary_slope(call->op->attr.binary.function, call->op->attr.binary.side, va, vb);
        } while (mf_ref_next(dy->shape, at));
    for (uint64_t i = 0; i < out->count; i++)
        ((REAL *)out->data)[i] = (REAL)call->scratch[i];
    return MEMFIT_OK;
}

KERNEL(compare)
{
    (void)err;
    const mf_ref_arg *a = &call->in[0], *y = &call->out[0];
    const mf_ref_arg *b = call->in_count > 1 && call->in[1].data ? &call->in[1] : NULL;
    int64_t sa[MF_MOST_DIMS], sb[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0};
    mf_ref_strides(y->shape, a->shape, sa);
    if (b)
        mf_ref_strides(y->shape, b->shape, sb);
    unsigned char *out = y->data;
    for (uint64_t i = 0; i < y->count; i++, mf_ref_next(y->shape, at)) {
        REAL p = ((const REAL *)a->data)[mf_ref_dot(at, sa, y->shape->rank)];
        REAL q = b ? ((const REAL *)b->data)[mf_ref_dot(at, sb, y->shape->rank)] : (REAL)call->op->attr.compare.value;
        out[i] = is_true(call->op->attr.compare.function, (double)p, (double)q);
    }
    return MEMFIT_OK;
}

KERNEL(select)
{
    (void)err;
    const mf_ref_arg *mask = &call->in[0], *y = &call->out[0];
    const mf_ref_arg *side[2] = {&call->in[2], &call->in[1]};
    const double number[2] = {call->op->attr.select.no, call->op->attr.select.yes};
    const uint32_t rank = y->shape->rank;
    int64_t sm[MF_MOST_DIMS], s[2][MF_MOST_DIMS], at[MF_MOST_DIMS] = {0};
    mf_ref_strides(y->shape, mask->shape, sm);
    for (int k = 0; k < 2; k++)
        if (side[k]->data)
            mf_ref_strides(y->shape, side[k]->shape, s[k]);
    REAL *out = y->data;
    for (uint64_t i = 0; i < y->count; i++, mf_ref_next(y->shape, at)) {
        bool yes = ((const unsigned char *)mask->data)[mf_ref_dot(at, sm, rank)] != 0 &&
                   (!call->op->attr.select.causal || at[rank - 1] <= at[rank - 2]);
        out[i] = side[yes]->data ? ((const REAL *)side[yes]->data)[mf_ref_dot(at, s[yes], rank)] : (REAL)number[yes];
    }
    return MEMFIT_OK;
}

KERNEL(sum_n)
{
    (void)err;
    REAL *y = call->out[0].data;
    for (uint64_t i = 0; i < call->out[0].count; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < call->in_count; j++)
            sum += (double)((const REAL *)call->in[j].data)[i];
        y[i] = (REAL)sum;
    }
    return MEMFIT_OK;
}

KERNEL(prelu)
{
    (void)err;
    const mf_ref_arg *x = &call->in[0], *alpha = &call->in[1];
    int64_t sa[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0};
    mf_ref_strides(x->shape, alpha->shape, sa);
    const REAL *v = x->data, *a = alpha->data;
    REAL *y = call->out[0].data;
    for (uint64_t i = 0; i < x->count; i++, mf_ref_next(x->shape, at))
        y[i] = v[i] > 0 ? v[i] : a[mf_ref_dot(at, sa, x->shape->rank)] * v[i];
    return MEMFIT_OK;
}

KERNEL(prelu_grad)
{
    (void)err;
    const mf_ref_arg *x = &call->in[1], *alpha = &call->in[2];
    int64_t sa[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0};
    mf_ref_strides(x->shape, alpha->shape, sa);
    const REAL *dy = call->in[0].data, *v = x->data, *a = alpha->data;
    REAL *dx = call->out[0].data, *dalpha = call->out_count > 1 ? call->out[1].data : NULL;
    for (uint64_t i = 0; i < alpha->count; i++)
        call->scratch[i] = 0;
    for (uint64_t i = 0; i < x->count; i++, mf_ref_next(x->shape, at)) {
        int64_t j = mf_ref_dot(at, sa, x->shape->rank);
        REAL d = dy[i], xi = v[i];
        if (dx)
            dx[i] = xi > 0 ? d : a[j] * d;
        if (xi < 0)
            call->scratch[j] += (double)d * (double)xi;
    }
    for (uint64_t i = 0; dalpha && i < alpha->count; i++)
        dalpha[i] = (REAL)call->scratch[i];
    return MEMFIT_OK;
}

KERNEL(fill)
{
    (void)err;
    REAL *y = call->out[0].data;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        y[i] = (REAL)call->op->attr.fill.value;
    return MEMFIT_OK;
}

KERNEL(broadcast)
{
    (void)err;
    const mf_ref_arg *x = &call->in[0], *y = &call->out[0];
    int64_t sx[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0};
    mf_ref_strides(y->shape, x->shape, sx);
    for (uint64_t i = 0; i < y->count; i++, mf_ref_next(y->shape, at))
        ((REAL *)y->data)[i] = (REAL)((double)((const REAL *)x->data)[mf_ref_dot(at, sx, y->shape->rank)] *
                                      call->op->attr.broadcast.scale);
    return MEMFIT_OK;
}
