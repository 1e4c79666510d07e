/* cpu_select.c: comparing, and choosing between two arrays or numbers by a mask, row by row over the last axis. */
#include "ops/cpu/cpu_ops.h"

static memfit_status bind_select(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    for (uint32_t i = 1; i < 3; i++)
        if (cpu_in(k, i) && cpu_in(k, i)->dtype != MF_F32)
            return cpu_no(err);
    if (cpu_out(k, 0)->dtype != MF_F32 || cpu_in(k, 0)->dtype != MF_U8 || cpu_adds(k, 0))
        return cpu_no(err);
    *workspace = 0;
    return MEMFIT_OK;
}

/* Elements to go on by along each axis of y; 0 where the operand is repeated. */
static void strides_of(const mf_shape *y, const mf_tensor *x, int64_t *stride)
{
    int64_t step = 1;
    for (uint32_t i = 0; i < y->rank; i++)
        stride[i] = 0;
    for (uint32_t i = x ? x->shape.rank : 0; i-- > 0;) {
        stride[y->rank - x->shape.rank + i] = x->shape.dim[i] == 1 ? 0 : step;
        step *= x->shape.dim[i];
    }
}

static int64_t row_start(const mf_shape *y, const int64_t *stride, int64_t row)
{
    int64_t at = 0;
    for (uint32_t i = y->rank - 1; i-- > 0; row /= y->dim[i])
        at += row % y->dim[i] * stride[i];
    return at;
}

static memfit_status run_select(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    mf_shape y = cpu_out(k, 0)->shape;
    if (y.rank == 0)
        y = (mf_shape){.rank = 1, .dim = {1}};
    int64_t stride[3][MF_MOST_DIMS];
    for (uint32_t i = 0; i < 3; i++)
        strides_of(&y, cpu_in(k, i), stride[i]);
    const float yes = (float)k->op->attr.select.yes, no = (float)k->op->attr.select.no;
    const float *a = cpu_in(k, 1) ? o->in[1] : &yes, *b = cpu_in(k, 2) ? o->in[2] : &no;
    const unsigned char *mask = o->in[0];
    float *out = o->out[0];
    const uint32_t last = y.rank - 1;
    const int64_t width = y.dim[last], rows = width ? (int64_t)mf_shape_count(&y) / width : 0;
    const int64_t sm = stride[0][last], sa = stride[1][last], sb = stride[2][last];
    const bool causal = k->op->attr.select.causal;
#pragma omp parallel for num_threads(cpu_threads(k)) schedule(static) if (rows * width > 16384)
    for (int64_t r = 0; r < rows; r++) {
        const unsigned char *m = mask + row_start(&y, stride[0], r);
        const float *p = a + row_start(&y, stride[1], r), *q = b + row_start(&y, stride[2], r);
        float *to = out + r * width;
        int64_t end = causal && r % y.dim[last - 1] + 1 < width ? r % y.dim[last - 1] + 1 : width;
        for (int64_t i = 0; i < end; i++)
            to[i] = m[i * sm] ? p[i * sa] : q[i * sb];
        for (int64_t i = end; i < width; i++)
            to[i] = q[i * sb];
    }
    return MEMFIT_OK;
}

const cpu_rule cpu_select = {bind_select, run_select};

/* ---- comparing -------------------------------------------------------------------------------------------- */

static memfit_status bind_compare(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    if (cpu_in(k, 0)->dtype != MF_F32 || (cpu_in(k, 1) && cpu_in(k, 1)->dtype != MF_F32) || cpu_adds(k, 0))
        return cpu_no(err);
    *workspace = 0;
    return MEMFIT_OK;
}

#define EACH(truth)                                                                                                    \
    for (int64_t i = 0; i < n; i++)                                                                                    \
    to[i] = p[i * sa] truth q[i * sb]

static void compare_row(mf_compare function, const float *p, int64_t sa, const float *q, int64_t sb, unsigned char *to,
                        int64_t n)
{
    switch (function) {
    case MF_EQUAL:
        EACH(==);
        break;
    case MF_NOT_EQUAL:
        EACH(!=);
        break;
    case MF_LESS:
        EACH(<);
        break;
    case MF_LESS_EQUAL:
        EACH(<=);
        break;
    case MF_GREATER:
        EACH(>);
        break;
    case MF_GREATER_EQUAL:
        EACH(>=);
        break;
    }
}

static memfit_status run_compare(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    mf_shape y = cpu_out(k, 0)->shape;
    if (y.rank == 0)
        y = (mf_shape){.rank = 1, .dim = {1}};
    int64_t sa[MF_MOST_DIMS], sb[MF_MOST_DIMS];
    strides_of(&y, cpu_in(k, 0), sa);
    strides_of(&y, cpu_in(k, 1), sb);
    const float value = (float)k->op->attr.compare.value;
    const float *a = o->in[0], *b = cpu_in(k, 1) ? o->in[1] : &value;
    unsigned char *out = o->out[0];
    const int64_t width = y.dim[y.rank - 1], rows = width ? (int64_t)mf_shape_count(&y) / width : 0;
#pragma omp parallel for num_threads(cpu_threads(k)) schedule(static) if (rows * width > 16384)
    for (int64_t r = 0; r < rows; r++)
        compare_row(k->op->attr.compare.function, a + row_start(&y, sa, r), sa[y.rank - 1], b + row_start(&y, sb, r),
                    sb[y.rank - 1], out + r * width, width);
    return MEMFIT_OK;
}

const cpu_rule cpu_compare = {bind_compare, run_compare};
