/* cpu_pointwise.c: rules for work element by element and for moving data about. */
#include "ops/cpu/cpu_ops.h"

#include "base/error.h"

#include <string.h>

memfit_status cpu_no(memfit_error *err)
{
    return mf_fail(err, MEMFIT_UNSUPPORTED, "no fast kernel for this operation");
}

bool cpu_all_float(const cpu_kernel *k)
{
    for (uint32_t i = 0; i < k->op->in_count; i++)
        if (cpu_in(k, i) && cpu_in(k, i)->dtype != MF_F32)
            return false;
    for (uint32_t i = 0; i < k->op->out_count; i++)
        if (cpu_out(k, i) && cpu_out(k, i)->dtype != MF_F32)
            return false;
    return true;
}

/* ---- nothing: VIEW and INPUT ------------------------------------------------------------------------------ */

static memfit_status bind_nothing(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)k;
    (void)create;
    (void)err;
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_nothing(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    /* A view whose bytes the planner placed elsewhere is a copy; rows lie behind those before them. */
    const mf_tensor *y = cpu_out(k, 0);
    const bool rows = k->op->kind == MF_OP_VIEW && k->op->attr.view.rows;
    if (k->op->kind == MF_OP_VIEW && !rows && o->in[0] != o->out[0])
        memmove(o->out[0], o->in[0], (size_t)cpu_count(y) * mf_dtype_bytes(y->dtype));
    return MEMFIT_OK;
}

const cpu_rule cpu_nothing = {bind_nothing, run_nothing};

/* ---- functions of one array ------------------------------------------------------------------------------- */

static bool known_function(mf_unary f, bool from_output)
{
    switch (f) {
    case MF_UNARY_LINEAR:
    case MF_UNARY_RELU:
    case MF_UNARY_RELU6:
    case MF_UNARY_LEAKY_RELU:
    case MF_UNARY_ELU:
    case MF_UNARY_SELU:
    case MF_UNARY_SIGMOID:
    case MF_UNARY_HARD_SIGMOID:
    case MF_UNARY_TANH:
    case MF_UNARY_EXP:
    case MF_UNARY_SQRT:
    case MF_UNARY_RECIPROCAL:
        return true;
    case MF_UNARY_SOFTPLUS:
    case MF_UNARY_SOFTSIGN:
    case MF_UNARY_SILU:
    case MF_UNARY_HARD_SILU:
    case MF_UNARY_GELU:
    case MF_UNARY_GELU_TANH:
    case MF_UNARY_LOG:
    case MF_UNARY_SQUARE:
    case MF_UNARY_ABS:
    case MF_UNARY_NEG:
    case MF_UNARY_AFFINE:
        return !from_output;
    default:
        return false;
    }
}

static memfit_status bind_unary(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    bool grad = k->op->kind == MF_OP_UNARY_GRAD;
    if (!cpu_all_float(k) || cpu_adds(k, 0) ||
        !known_function(k->op->attr.unary.function, grad && k->op->attr.unary.from_output))
        return cpu_no(err);
    k->u.point.unary = (mf_k_unary){k->op->attr.unary.function, (float)k->op->attr.unary.alpha,
                                    (float)k->op->attr.unary.beta, k->op->attr.unary.from_output};
    k->u.point.n = cpu_count(cpu_out(k, 0));
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_unary(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->unary(&k->u.point.unary, o->in[0], o->out[0], k->u.point.n, cpu_threads(k));
    return MEMFIT_OK;
}

static memfit_status run_unary_grad(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->unary_grad(&k->u.point.unary, o->in[0], o->in[1], o->out[0], k->u.point.n, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_unary = {bind_unary, run_unary};
const cpu_rule cpu_unary_grad = {bind_unary, run_unary_grad};

static memfit_status bind_mask(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_tensor *x = cpu_in(k, 0);
    if (x->dtype != MF_F32)
        return cpu_no(err);
    k->u.point.n = cpu_count(x);
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_mask(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    if (k->op->kind == MF_OP_MASK)
        k->backend->k->mask(k->op->attr.unary.function, o->in[0], o->out[0], k->u.point.n, cpu_threads(k));
    else
        k->backend->k->mask_grad(o->in[0], o->in[1], o->out[0], k->u.point.n, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_mask = {bind_mask, run_mask}, cpu_mask_grad = {bind_mask, run_mask};

static memfit_status bind_fill(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    if (!cpu_all_float(k) && cpu_out(k, 0)->dtype != MF_U8)
        return cpu_no(err);
    k->u.point.n = cpu_count(cpu_out(k, 0));
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_fill(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    if (cpu_out(k, 0)->dtype == MF_U8) { /* a mask */
        memset(o->out[0], (unsigned char)k->op->attr.fill.value, (size_t)k->u.point.n);
        return MEMFIT_OK;
    }
    k->backend->k->fill(o->out[0], (float)k->op->attr.fill.value, k->u.point.n, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_fill = {bind_fill, run_fill};

enum { CAST_BLOCK = 1 << 18 };

static memfit_status bind_cast(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    mf_dtype from = cpu_in(k, 0)->dtype, to = cpu_out(k, 0)->dtype;
    bool known = (to == MF_F32 && from != MF_U64) ||
                 (from == MF_F32 && (to == MF_F16 || to == MF_BF16 || to == MF_F64 || to == MF_I32));
    if (!known)
        return cpu_no(err);
    if (cpu_adds(k, 0) && to != MF_F32)
        return cpu_no(err);
    k->u.point.n = cpu_count(cpu_out(k, 0));
    *workspace = cpu_adds(k, 0) ? (k->u.point.n < CAST_BLOCK ? k->u.point.n : CAST_BLOCK) * sizeof(float) : 0;
    return MEMFIT_OK;
}

/* Gradients of 16-bit copies, added to a sum in float32: block by block through workspace. */
static memfit_status run_cast_add(cpu_kernel *k, const mf_operands *o, memfit_error *err)
{
    mf_dtype from = cpu_in(k, 0)->dtype;
    const float *block = o->workspace;
    for (int64_t at = 0; at < k->u.point.n; at += CAST_BLOCK) {
        int64_t n = k->u.point.n - at < CAST_BLOCK ? k->u.point.n - at : CAST_BLOCK;
        if (!k->backend->k->cast(from, (char *)o->in[0] + (uint64_t)at * mf_dtype_bytes(from), MF_F32, o->workspace, n,
                                 cpu_threads(k)))
            return mf_fail(err, MEMFIT_INTERNAL, "a cast without a kernel");
        k->backend->k->sum_n(&block, 1, (float *)o->out[0] + at, n, true, cpu_threads(k));
    }
    return MEMFIT_OK;
}

static memfit_status run_cast(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    if (cpu_adds(k, 0))
        return run_cast_add(k, o, err);
    if (!k->backend->k->cast(cpu_in(k, 0)->dtype, o->in[0], cpu_out(k, 0)->dtype, o->out[0], k->u.point.n,
                             cpu_threads(k)))
        return mf_fail(err, MEMFIT_INTERNAL, "a cast without a kernel");
    return MEMFIT_OK;
}

const cpu_rule cpu_cast = {bind_cast, run_cast};

/* ---- two arrays and more ---------------------------------------------------------------------------------- */

static memfit_status bind_binary(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    if (!cpu_all_float(k) || cpu_adds(k, 0))
        return cpu_no(err);
    mf_k_walk_make(&k->u.walk.walk, &cpu_out(k, 0)->shape, &cpu_in(k, 0)->shape, &cpu_in(k, 1)->shape);
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_binary(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->binary(k->op->attr.binary.function, &k->u.walk.walk, o->in[0], o->in[1], o->out[0], cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_binary = {bind_binary, run_binary};

static memfit_status bind_sum_n(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    if (!cpu_all_float(k))
        return cpu_no(err);
    k->u.point.n = cpu_count(cpu_out(k, 0));
    for (uint32_t i = 0; i < k->op->in_count; i++)
        if (!cpu_in(k, i) || cpu_count(cpu_in(k, i)) != k->u.point.n)
            return cpu_no(err);
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_sum_n(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->sum_n((const float *const *)o->in, k->op->in_count, o->out[0], k->u.point.n, cpu_adds(k, 0),
                         cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_sum_n = {bind_sum_n, run_sum_n};

static memfit_status bind_broadcast(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    if (!cpu_all_float(k) || cpu_adds(k, 0))
        return cpu_no(err);
    mf_k_walk_make(&k->u.walk.walk, &cpu_out(k, 0)->shape, &cpu_in(k, 0)->shape, NULL);
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_broadcast(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->broadcast(&k->u.walk.walk, (float)k->op->attr.broadcast.scale, o->in[0], o->out[0], cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_broadcast = {bind_broadcast, run_broadcast};

/* ---- walks ------------------------------------------------------------------------------------------------ */

void mf_k_walk_merge(mf_k_walk *w, uint32_t operands)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < w->rank; d++) {
        if (w->size[d] == 1 && w->rank > 1)
            continue;
        bool joins = n > 0;
        for (uint32_t o = 0; o < operands && joins; o++)
            joins = w->step[o][n - 1] == w->step[o][d] * w->size[d];
        if (joins) {
            w->size[n - 1] *= w->size[d];
            for (uint32_t o = 0; o < operands; o++)
                w->step[o][n - 1] = w->step[o][d];
            continue;
        }
        w->size[n] = w->size[d];
        for (uint32_t o = 0; o < operands; o++)
            w->step[o][n] = w->step[o][d];
        n++;
    }
    if (n == 0) {
        w->size[0] = 1;
        for (uint32_t o = 0; o < operands; o++)
            w->step[o][0] = 1;
        n = 1;
    }
    w->rank = n;
}

/* Steps of a shape aligned at the right of `out`; 0 where it has size 1. */
static void steps_of(const mf_shape *out, const mf_shape *x, int64_t *step)
{
    int64_t at = 1;
    for (uint32_t i = 0; i < out->rank; i++) {
        uint32_t d = out->rank - 1 - i;
        if (i >= x->rank) {
            step[d] = 0;
            continue;
        }
        int64_t size = x->dim[x->rank - 1 - i];
        step[d] = size == 1 ? 0 : at;
        at *= size;
    }
}

void mf_k_walk_make(mf_k_walk *w, const mf_shape *out, const mf_shape *a, const mf_shape *b)
{
    *w = (mf_k_walk){.rank = out->rank ? out->rank : 1};
    if (!out->rank) {
        w->size[0] = 1;
        return;
    }
    for (uint32_t d = 0; d < out->rank; d++)
        w->size[d] = out->dim[d];
    int64_t at = 1;
    for (uint32_t d = out->rank; d-- > 0;) {
        w->step[0][d] = at;
        at *= out->dim[d];
    }
    steps_of(out, a, w->step[1]);
    if (b)
        steps_of(out, b, w->step[2]);
    mf_k_walk_merge(w, b ? 3 : 2);
}

/* The output of a pure copy keeps its own order; the input is walked with `step` from `begin`. */
static memfit_status bind_copy(cpu_kernel *k, const mf_shape *size, const int64_t *out_step, const int64_t *in_step)
{
    mf_k_walk *w = &k->u.walk.walk;
    *w = (mf_k_walk){.rank = size->rank ? size->rank : 1, .size = {1}};
    for (uint32_t d = 0; d < size->rank; d++) {
        w->size[d] = size->dim[d];
        w->step[0][d] = out_step[d];
        w->step[1][d] = in_step[d];
    }
    mf_k_walk_merge(w, 2);
    k->u.walk.element_bytes = mf_dtype_bytes(cpu_out(k, 0)->dtype);
    return MEMFIT_OK;
}

static void dense_steps(const mf_shape *s, int64_t *step)
{
    int64_t at = 1;
    for (uint32_t d = s->rank; d-- > 0;) {
        step[d] = at;
        at *= s->dim[d];
    }
}

static memfit_status bind_transpose(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_tensor *x = cpu_in(k, 0), *y = cpu_out(k, 0);
    if (cpu_adds(k, 0) || x->dtype != y->dtype)
        return cpu_no(err);
    int64_t in[MF_MOST_DIMS], out[MF_MOST_DIMS], step[MF_MOST_DIMS];
    dense_steps(&x->shape, in);
    dense_steps(&y->shape, out);
    for (uint32_t d = 0; d < y->shape.rank; d++)
        step[d] = in[k->op->attr.transpose.perm[d]];
    *workspace = 0;
    return bind_copy(k, &y->shape, out, step);
}

static memfit_status run_copy(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->copy(&k->u.walk.walk, k->u.walk.element_bytes,
                        (const unsigned char *)o->in[0] + k->u.walk.n * (int64_t)k->u.walk.element_bytes, o->out[0],
                        cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_transpose = {bind_transpose, run_copy};

static memfit_status bind_slice(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_tensor *x = cpu_in(k, 0), *y = cpu_out(k, 0);
    if (cpu_adds(k, 0) || x->dtype != y->dtype || x->shape.rank != y->shape.rank)
        return cpu_no(err);
    int64_t in[MF_MOST_DIMS], out[MF_MOST_DIMS], step[MF_MOST_DIMS], first = 0;
    dense_steps(&x->shape, in);
    dense_steps(&y->shape, out);
    for (uint32_t d = 0; d < y->shape.rank; d++) {
        int64_t stride = k->op->attr.slice.stride[d] ? k->op->attr.slice.stride[d] : 1;
        step[d] = in[d] * stride;
        first += in[d] * k->op->attr.slice.begin[d];
    }
    *workspace = 0;
    memfit_status status = bind_copy(k, &y->shape, out, step);
    k->u.walk.n = first;
    return status;
}

const cpu_rule cpu_slice = {bind_slice, run_copy};

/* Constant padding: fill, then copy the inside; cropping (negative) goes to the reference. */
static memfit_status bind_pad(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_tensor *x = cpu_in(k, 0), *y = cpu_out(k, 0);
    if (!cpu_all_float(k) || cpu_adds(k, 0) || k->op->attr.pad.mode != 0)
        return cpu_no(err);
    int64_t in[MF_MOST_DIMS], out[MF_MOST_DIMS], step[MF_MOST_DIMS], first = 0;
    dense_steps(&x->shape, in);
    dense_steps(&y->shape, out);
    for (uint32_t d = 0; d < y->shape.rank; d++) {
        int64_t before = k->op->attr.pad.before[d], between = k->op->attr.pad.between[d];
        int64_t most = x->shape.dim[d] ? before + (x->shape.dim[d] - 1) * (between + 1) + 1 : 0;
        if (before < 0 || k->op->attr.pad.after[d] < 0 || most > y->shape.dim[d])
            return cpu_no(err);
        step[d] = out[d] * (between + 1);
        first += out[d] * before;
    }
    *workspace = 0;
    memfit_status status = bind_copy(k, &x->shape, step, in);
    k->u.walk.n = first;
    return status;
}

static memfit_status run_pad(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    float *y = o->out[0];
    k->backend->k->fill(y, (float)k->op->attr.pad.value, cpu_count(cpu_out(k, 0)), cpu_threads(k));
    k->backend->k->copy(&k->u.walk.walk, 4, o->in[0], y + k->u.walk.n, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_pad = {bind_pad, run_pad};

static memfit_status bind_concat(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_tensor *y = cpu_out(k, 0);
    uint32_t axis = k->op->attr.concat.axis;
    if (cpu_adds(k, 0) || axis >= y->shape.rank)
        return cpu_no(err);
    int64_t outer = 1, inner = 1;
    for (uint32_t d = 0; d < axis; d++)
        outer *= y->shape.dim[d];
    for (uint32_t d = axis + 1; d < y->shape.rank; d++)
        inner *= y->shape.dim[d];
    for (uint32_t i = 0; i < k->op->in_count; i++)
        if (!cpu_in(k, i) || cpu_in(k, i)->dtype != y->dtype || cpu_in(k, i)->shape.rank != y->shape.rank)
            return cpu_no(err);
    k->u.concat.outer = outer;
    k->u.concat.inner = inner;
    k->u.concat.axis_bytes = y->shape.dim[axis] * inner * (int64_t)mf_dtype_bytes(y->dtype);
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_concat(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    uint32_t axis = k->op->attr.concat.axis;
    size_t e = mf_dtype_bytes(cpu_out(k, 0)->dtype);
    int64_t at = 0;
    for (uint32_t i = 0; i < k->op->in_count; i++) {
        int64_t row = cpu_in(k, i)->shape.dim[axis] * k->u.concat.inner;
        mf_k_walk w = {
            .rank = 2, .size = {k->u.concat.outer, row}, .step = {{k->u.concat.axis_bytes / (int64_t)e, 1}, {row, 1}}};
        unsigned char *to = (unsigned char *)o->out[0] + at;
        if (to != (unsigned char *)o->in[i])
            k->backend->k->copy(&w, e, o->in[i], to, cpu_threads(k));
        at += row * (int64_t)e;
    }
    return MEMFIT_OK;
}

const cpu_rule cpu_concat = {bind_concat, run_concat};

/* ---- rows of a table -------------------------------------------------------------------------------------- */

static int64_t index_at(mf_dtype type, const void *t, int64_t i)
{
    switch (type) {
    case MF_I64:
        return ((const int64_t *)t)[i];
    case MF_I32:
        return ((const int32_t *)t)[i];
    case MF_U8:
        return ((const uint8_t *)t)[i];
    case MF_U16:
        return ((const uint16_t *)t)[i];
    case MF_F32:
        return (int64_t)((const float *)t)[i];
    default:
        return -1;
    }
}

static bool index_type(mf_dtype type)
{
    return type == MF_I64 || type == MF_I32 || type == MF_U8 || type == MF_U16 || type == MF_F32;
}

static memfit_status bind_gather(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    bool grad = k->op->kind == MF_OP_GATHER_GRAD;
    const mf_tensor *table = grad ? cpu_out(k, 0) : cpu_in(k, 0), *index = cpu_in(k, grad ? 0 : 1);
    const mf_tensor *y = grad ? cpu_in(k, 1) : cpu_out(k, 0);
    bool known = table->dtype == MF_F32 || (!grad && cpu_is_half(table->dtype)); /* rows are moved as they are */
    if (!known || y->dtype != table->dtype || table->shape.rank != 2 || !index_type(index->dtype))
        return cpu_no(err);
    k->u.gather.rows = cpu_count(index);
    k->u.gather.width = table->shape.dim[1];
    k->u.gather.table = table->shape.dim[0];
    if (k->u.gather.rows * k->u.gather.width != cpu_count(y))
        return cpu_no(err);
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status out_of_table(const cpu_kernel *k, int64_t j, memfit_error *err)
{
    return mf_fail(err, MEMFIT_DAMAGED,
                   "layer %s: index %lld is outside its table of %lld rows\nindices run from 0; look at the input data",
                   k->graph->layers ? k->graph->layers[k->op->layer].name : "?", (long long)j,
                   (long long)k->u.gather.table);
}

static memfit_status run_gather(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    mf_dtype type = cpu_in(k, 1)->dtype;
    size_t row = (size_t)k->u.gather.width * mf_dtype_bytes(cpu_out(k, 0)->dtype);
    for (int64_t i = 0; i < k->u.gather.rows; i++) {
        int64_t j = index_at(type, o->in[1], i);
        if (j < 0 || j >= k->u.gather.table)
            return out_of_table(k, j, err);
        memcpy((char *)o->out[0] + (size_t)i * row, (char *)o->in[0] + (size_t)j * row, row);
    }
    return MEMFIT_OK;
}

static memfit_status run_gather_grad(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    mf_dtype type = cpu_in(k, 0)->dtype;
    int64_t width = k->u.gather.width;
    float *table = o->out[0];
    const float *dy = o->in[1];
    if (!cpu_adds(k, 0))
        k->backend->k->fill(table, 0, k->u.gather.table * width, cpu_threads(k));
    for (int64_t i = 0; i < k->u.gather.rows; i++) {
        int64_t j = index_at(type, o->in[0], i);
        if (j < 0 || j >= k->u.gather.table)
            return out_of_table(k, j, err);
        for (int64_t c = 0; c < width; c++)
            table[j * width + c] += dy[i * width + c];
    }
    return MEMFIT_OK;
}

const cpu_rule cpu_gather = {bind_gather, run_gather};
const cpu_rule cpu_gather_grad = {bind_gather, run_gather_grad};
