/*
 * cpu_wide.c: operations on 16-bit operands. float16 and bfloat16 are storage formats here: the arithmetic is the
 * float32 kernel's, on copies in workspace. The copies are what 16 bits must not cost again, so they are made in parts
 * along one axis (`units`, mostly the samples), each part converted, computed and converted back before the next:
 *
 *     x    [ part | part | part | rest ]  --16 to 32 bits-->  [ part ]
 *     w    [ whole ]                      ---- once ------->  [ whole ]  } one float32 kernel for a part,
 *     y    [ part | part | part | rest ]  <--32 to 16 bits--  [ part ]   } one for the rest
 *     dw   [ whole ]                      <--- at the end --  [ sum  ]
 *
 *   workspace   [ whole and summed copies, copies of a part | the float32 kernel's own ]
 *
 * A part takes about 2 MiB (backend->part_bytes), or as much as the whole copies beside it, whichever is more: kernels
 * of convolutions lay their weights out anew at each call, and small parts of layers with many channels would mostly do
 * that. Parts are evened out, so that the rest is no crumb. Where they begin depends on the operation's shapes alone,
 * never on threads or on where operands lie: an operation that is recomputed gives the same bits.
 *
 * Sums over units (weight gradients, products along their inner axis) are added up in float32 over all parts and
 * rounded to 16 bits once. Results may be placed over inputs: a part is read before it is written.
 *
 * Whole copies stay where an operation needs everything at once (recurrent layers, the batch as an axis of a softmax).
 * Batch normalization has passes of its own (cpu_wide_norm.c). One copy of everything, as it was before, made two
 * convolutions at 128x128 take 326 MiB in bfloat16 and 177 MiB in float32; docs/bench/train.md has what they take now.
 */
#include "ops/cpu/cpu_wide.h"

#include "base/error.h"

#include <string.h>

enum { FLAT_STEP = 512 };

/* ---- which operands are divided --------------------------------------------------------------------------- */

/* Roles of inputs and of outputs; the last serves all that follow. */
typedef struct wide_row {
    const char *in, *out;
} wide_row;

/* Updates that look at one number at a time, not at norms or rows. */
static bool by_element(mf_optimizer f)
{
    return f == MF_OPTIMIZER_SGD || f == MF_OPTIMIZER_RMSPROP || f == MF_OPTIMIZER_ADAM || f == MF_OPTIMIZER_ADAMW ||
           f == MF_OPTIMIZER_LION;
}

static wide_row row_of(const cpu_kernel *k)
{
    const mf_attr *a = &k->op->attr;
    const mf_tensor *y = cpu_out(k, 0);
    const wide_row whole = {"w", "w"};
    switch (k->op->kind) {
    case MF_OP_CONV:
    case MF_OP_CONV_GRAD_DATA:
        return (wide_row){"pww", "p"};
    case MF_OP_CONV_GRAD_WEIGHTS:
    case MF_OP_GATHER_GRAD:
        return (wide_row){"pp", "ss"};
    case MF_OP_GATHER:
        return (wide_row){"wp", "p"};
    case MF_OP_FILL:
    case MF_OP_UNARY:
    case MF_OP_UNARY_GRAD:
    case MF_OP_SUM_N:
        return (wide_row){"f", "f"};
    case MF_OP_MASK:
        return (wide_row){"f", "b"};
    case MF_OP_MASK_GRAD:
        return (wide_row){"fb", "f"};
    case MF_OP_BINARY:
        if (mf_shape_equal(&cpu_in(k, 0)->shape, &y->shape) && mf_shape_equal(&cpu_in(k, 1)->shape, &y->shape))
            return (wide_row){"f", "f"};
        return (wide_row){"l", "p"};
    case MF_OP_BINARY_GRAD:
    case MF_OP_BROADCAST:
    case MF_OP_PRELU:
        return (wide_row){"l", "p"};
    case MF_OP_SELECT:
        return a->select.causal && y->shape.rank < 3 ? whole : (wide_row){"l", "p"};
    case MF_OP_RANDOM:
    case MF_OP_DROPOUT:
        return a->random.shared_axes & 1 ? whole : (wide_row){"p", "p"};
    case MF_OP_SOFTMAX:
    case MF_OP_SOFTMAX_GRAD:
        return a->softmax.axis == 0 || (a->softmax.causal && y->shape.rank < 3) ? whole : (wide_row){"p", "p"};
    case MF_OP_ATTENTION:
        return (wide_row){"pppl", "p"};
    case MF_OP_ATTENTION_GRAD:
        return y ? (wide_row){"ppppppl", "p"} : whole;
    case MF_OP_REDUCE:
        if (!(a->reduce.axes & 1))
            return (wide_row){"p", "p"};
        return a->reduce.function == MF_REDUCE_SUM ? (wide_row){"p", "s"} : whole;
    case MF_OP_PAD:
        return a->pad.before[0] || a->pad.after[0] || a->pad.between[0] ? whole : (wide_row){"p", "p"};
    case MF_OP_POOL_MAX:
    case MF_OP_POOL_MAX_GRAD:
    case MF_OP_POOL_AVG:
    case MF_OP_POOL_AVG_GRAD:
    case MF_OP_RESIZE:
    case MF_OP_RESIZE_GRAD:
        return (wide_row){"p", "p"};
    case MF_OP_UPDATE:
        return by_element(a->update.optimizer) ? (wide_row){"f", "f"} : whole;
    case MF_OP_LAYER_NORM:
        return (wide_row){"pw", "p"};
    case MF_OP_LAYER_NORM_GRAD:
        return (wide_row){"ppppw", "ps"};
    case MF_OP_BATCH_NORM_INFER:
        return (wide_row){"pw", "p"};
    case MF_OP_BATCH_NORM_INFER_GRAD:
        return (wide_row){"ppw", "ps"};
    default:
        return whole;
    }
}

static void divide(wide_operand *o, const mf_tensor *t, uint32_t axis)
{
    o->role = PART;
    o->axis = axis;
    o->outer = o->inner = 1;
    for (uint32_t d = 0; d < t->shape.rank; d++)
        *(d < axis ? &o->outer : &o->inner) *= d == axis ? 1 : t->shape.dim[d];
}

/* Roles by kind; false where an operand's shape does not suit its role. */
static bool divide_by_kind(const cpu_kernel *k, cpu_wide *w)
{
    wide_row row = row_of(k);
    const mf_tensor *y = cpu_out(k, 0);
    w->units = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        const mf_tensor *t = cpu_wide_real(k, i);
        const char *list = i < k->op->in_count ? row.in : row.out;
        size_t at = i < k->op->in_count ? i : i - k->op->in_count, last = strlen(list) - 1;
        wide_operand *o = &w->operands[i];
        o->role = (wide_role)list[at < last ? at : last];
        if (!t)
            continue;
        if (k->op->kind == MF_OP_UPDATE && o->role == FLAT && cpu_count(t) != cpu_count(y)) /* the flag */
            o->role = WHOLE;
        if (o->role == LIKE) {
            bool same = !y || t->shape.rank < y->shape.rank || t->shape.rank == 0 || t->shape.dim[0] == 1;
            o->role = same ? WHOLE : PART;
        }
        if (o->role != PART && o->role != FLAT)
            continue;
        if (o->role == PART && t->shape.rank == 0)
            return false;
        int64_t units = o->role == FLAT ? cpu_count(t) : t->shape.dim[0];
        if (w->units && units != w->units)
            return false;
        w->units = units;
        o->outer = o->inner = 1;
        if (o->role == PART)
            divide(o, t, 0);
    }
    return w->units > 0;
}

static uint64_t widened(const mf_tensor *t)
{
    return t && cpu_is_half(t->dtype) ? (uint64_t)cpu_count(t) * sizeof(float) : 0;
}

/* A product of two matrices, (m, k) and (k, n): by rows, unless the other factor's copy is large and another axis
 * leaves a smaller one whole: columns leave the first factor, the inner axis leaves the result, summed. Gradients of
 * weights come out as the latter, layers with more weights than data as one of both. */
static bool divide_matrices(const cpu_kernel *k, cpu_wide *w)
{
    const mf_tensor *a = cpu_in(k, 0), *b = cpu_in(k, 1), *bias = cpu_in(k, 2), *c = cpu_out(k, 0);
    uint32_t ta = k->op->attr.matmul.trans_a, tb = k->op->attr.matmul.trans_b, out = k->op->in_count;
    if (a->shape.rank != 2 || b->shape.rank != 2 || (bias && bias->shape.rank != 1) || (bias && cpu_adds(k, 0)))
        return false;
    for (uint32_t i = 0; i < w->count; i++)
        w->operands[i].role = WHOLE;
    uint64_t rows = widened(b), columns = widened(a), inner = widened(c);
    if (rows <= k->backend->part_bytes || rows / 2 <= (columns < inner ? columns : inner)) {
        w->units = c->shape.dim[0];
        divide(&w->operands[0], a, ta);
        divide(&w->operands[out], c, 0);
    } else if (columns < inner) {
        w->units = c->shape.dim[1];
        divide(&w->operands[1], b, 1 - tb);
        divide(&w->operands[out], c, 1);
        if (bias)
            divide(&w->operands[2], bias, 0);
    } else {
        w->units = a->shape.dim[1 - ta];
        divide(&w->operands[0], a, 1 - ta);
        divide(&w->operands[1], b, tb);
        w->operands[out].role = SUM;
        w->rows_of_bias = bias != NULL;
    }
    return true;
}

static bool divide_product(const cpu_kernel *k, cpu_wide *w)
{
    const mf_tensor *c = cpu_out(k, 0);
    if (c->shape.rank == 2)
        return divide_matrices(k, w);
    for (uint32_t i = 0; i < w->count; i++) {
        const mf_tensor *t = cpu_wide_real(k, i);
        w->operands[i].role = WHOLE;
        if (i == 2 || !t || t->shape.rank != c->shape.rank || t->shape.dim[0] == 1)
            continue;
        if (t->shape.dim[0] != c->shape.dim[0])
            return false;
        divide(&w->operands[i], t, 0);
    }
    w->units = c->shape.rank ? c->shape.dim[0] : 0;
    return w->units > 1;
}

/* ---- how large a part is ---------------------------------------------------------------------------------- */

static void choose_part(const cpu_kernel *k, cpu_wide *w)
{
    uint64_t unit = 0, beside = 0;
    int64_t step = 1;
    for (uint32_t i = 0; i < w->count; i++) {
        const wide_operand *o = &w->operands[i];
        const mf_tensor *t = cpu_wide_real(k, i);
        if (!t)
            continue;
        bool divided = o->role == PART || o->role == FLAT;
        if (o->role == FLAT)
            step = FLAT_STEP;
        if (o->role == PART && o->outer > 1 && !o->half) /* lies apart and has no copy that could gather it */
            unit = UINT64_MAX;
        if (i >= k->op->in_count && divided && k->op->out_count > 1 && cpu_adds(k, i - k->op->in_count))
            unit = UINT64_MAX; /* one flag for all: the sums' */
        if (o->half && o->owner == i && unit != UINT64_MAX)
            *(divided ? &unit : &beside) += divided ? (uint64_t)(o->outer * o->inner) * sizeof(float) : widened(t);
    }
    w->part = w->units;
    if (unit > 0 && unit != UINT64_MAX) {
        uint64_t bytes = beside > k->backend->part_bytes ? beside : k->backend->part_bytes;
        int64_t part = (int64_t)((bytes + unit - 1) / unit);
        part = (part + step - 1) / step * step;
        int64_t parts = (w->units + part - 1) / part;
        part = (w->units + parts - 1) / parts;
        part = (part + step - 1) / step * step;
        w->part = part < w->units ? part : w->units;
    }
    w->rest = w->part ? w->units % w->part : 0;
}

/* Everything at once: nothing is divided, sums are sums of one. */
static void take_whole(cpu_wide *w)
{
    w->units = w->part = 1;
    w->rest = 0;
    w->rows_of_bias = false;
    for (uint32_t i = 0; i < w->count; i++)
        w->operands[i].role = WHOLE;
}

static uint32_t id_of(const cpu_kernel *k, uint32_t i)
{
    return i < k->op->in_count ? k->op->in[i] : k->op->out[i - k->op->in_count];
}

static void find_copies(const cpu_kernel *k, cpu_wide *w)
{
    for (uint32_t i = 0; i < w->count; i++) {
        wide_operand *o = &w->operands[i];
        o->half = cpu_wide_real(k, i) && cpu_is_half(cpu_wide_real(k, i)->dtype);
        for (o->owner = 0; o->owner < i; o->owner++) {
            const wide_operand *other = &w->operands[o->owner];
            if (id_of(k, o->owner) == id_of(k, i) && other->role == o->role && other->axis == o->axis)
                break;
        }
    }
}

/* ---- the float32 operation -------------------------------------------------------------------------------- */

/* The operand as a kernel of n units sees it. */
static mf_tensor seen(const cpu_kernel *k, const cpu_wide *w, uint32_t i, int64_t n)
{
    mf_tensor t = *cpu_wide_real(k, i);
    const wide_operand *o = &w->operands[i];
    t.dtype = o->half ? MF_F32 : t.dtype;
    t.storage = i;
    t.variable = MF_NONE;
    if (o->role == PART)
        t.shape.dim[o->axis] = n;
    else if (o->role == FLAT)
        t.shape = (mf_shape){.rank = 1, .dim = {n}};
    else if (o->role == BITS)
        t.shape = (mf_shape){.rank = 1, .dim = {(n + 7) / 8}};
    return t;
}

static void fill_graphs(const cpu_kernel *k, cpu_wide *w)
{
    bool sums = false;
    for (uint32_t i = 0; i < w->count; i++)
        sums = sums || w->operands[i].role == SUM;
    for (uint32_t i = 0; i < w->count; i++) {
        const mf_tensor *t = cpu_wide_real(k, i);
        w->ids[i] = t && !(i == 2 && w->rows_of_bias) ? i : MF_NONE;
        w->storages[i].variable = MF_NONE;
        if (!t)
            continue;
        if (!sums)
            w->storages[i].variable = k->graph->storages[t->storage].variable;
        else if (w->operands[i].role == SUM)
            w->storages[i].variable = 0;
        w->tensors[0][i] = seen(k, w, i, w->part);
        w->tensors[1][i] = seen(k, w, i, w->rest);
    }
    for (int g = 0; g < 2; g++) {
        w->op[g] = *k->op;
        w->op[g].in = w->ids;
        w->op[g].out = w->ids + k->op->in_count;
        w->op[g].accumulate = sums || k->op->accumulate;
        w->graph[g] = *k->graph;
        w->graph[g].tensors = w->tensors[g];
        w->graph[g].storages = w->storages;
        w->graph[g].tensor_count = w->graph[g].storage_count = w->count;
        w->graph[g].ops = &w->op[g];
        w->graph[g].op_count = 1;
    }
}

static void place_copies(cpu_wide *w)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        wide_operand *o = &w->operands[i];
        if (!o->half)
            continue;
        o->at = o->owner == i ? at : w->operands[o->owner].at;
        if (o->owner == i)
            at += (mf_shape_count(&w->tensors[0][i].shape) * sizeof(float) + 63) & ~63ull;
    }
    w->copies_bytes = at;
}

static memfit_status make(cpu_kernel *k, cpu_wide **made, memfit_error *err)
{
    uint32_t n = k->op->in_count + k->op->out_count;
    uint64_t each =
        2 * sizeof(mf_tensor) + sizeof(mf_storage) + sizeof(wide_operand) + sizeof(void *) + sizeof(uint32_t);
    uint64_t bytes = sizeof(cpu_wide) + n * each;
    cpu_wide *w = mf_host_zalloc(k->backend->base.host, bytes);
    if (!w)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a kernel");
    w->bytes = bytes;
    w->count = n;
    w->tensors[0] = (mf_tensor *)(w + 1);
    w->tensors[1] = w->tensors[0] + n;
    w->storages = (mf_storage *)(w->tensors[1] + n);
    w->operands = (wide_operand *)(w->storages + n);
    w->pointers = (void **)(w->operands + n);
    w->ids = (uint32_t *)(w->pointers + n);
    bool divides = k->op->kind == MF_OP_MATMUL ? divide_product(k, w) : divide_by_kind(k, w);
    find_copies(k, w);
    if (divides)
        choose_part(k, w);
    if (!divides || !cpu_wide_is_divided(w)) {
        take_whole(w);
        find_copies(k, w);
    }
    fill_graphs(k, w);
    place_copies(w);
    *made = w;
    return MEMFIT_OK;
}

/* ---- asking and preparing --------------------------------------------------------------------------------- */

bool cpu_wide_wanted(const cpu_kernel *k)
{
    switch (k->op->kind) {
    case MF_OP_CAST:
    case MF_OP_VIEW:
    case MF_OP_INPUT:
    case MF_OP_TRANSPOSE:
    case MF_OP_SLICE:
    case MF_OP_CONCAT:
        return false;
    case MF_OP_GATHER: /* rows are moved as they are */
        if (cpu_in(k, 0)->dtype == cpu_out(k, 0)->dtype && cpu_in(k, 0)->shape.rank == 2)
            return false;
        break;
    default:
        break;
    }
    for (uint32_t i = 0; i < k->op->in_count + k->op->out_count; i++)
        if (cpu_wide_real(k, i) && cpu_is_half(cpu_wide_real(k, i)->dtype))
            return true;
    return false;
}

static double copies_us(const cpu_kernel *k, const cpu_wide *w)
{
    return cpu_copies_us(k->backend, w->copies_bytes / 2 * 3); /* 2 bytes read, 4 written, or back */
}

memfit_status cpu_wide_query(cpu_kernel *k, mf_cost *cost, memfit_error *err)
{
    if (cpu_wide_norm_serves(k)) {
        cpu_wide_norm_query(k, cost);
        return MEMFIT_OK;
    }
    mf_backend *backend = &k->backend->base;
    cpu_wide *w;
    mf_cost rest = {0};
    memfit_status status = make(k, &w, err);
    if (status != MEMFIT_OK)
        return status;
    status = backend->table->query(backend, &w->graph[0], 0, cost, err);
    if (status == MEMFIT_OK && w->rest)
        status = backend->table->query(backend, &w->graph[1], 0, &rest, err);
    if (status == MEMFIT_OK) {
        mf_method *method = &cost->methods[0];
        const mf_method *last = &rest.methods[0];
        uint64_t most =
            method->workspace_bytes > last->workspace_bytes ? method->workspace_bytes : last->workspace_bytes;
        double parts = (double)(w->units / w->part), more = w->rest ? copies_us(k, w) + last->time_us : 0;
        method->workspace_bytes = w->copies_bytes + most;
        method->time_us = parts * (method->time_us + copies_us(k, w)) + more;
        cost->reference = cost->reference || rest.reference;
    }
    mf_host_free(backend->host, w, w->bytes);
    return status;
}

memfit_status cpu_wide_prepare(cpu_kernel *k, memfit_error *err)
{
    if (cpu_wide_norm_serves(k)) {
        k->wide_norm = true;
        return MEMFIT_OK;
    }
    mf_backend *backend = &k->backend->base;
    memfit_status status = make(k, &k->wide, err);
    if (status == MEMFIT_OK)
        status = backend->table->prepare(backend, &k->wide->graph[0], 0, NULL, &k->wide->kernel[0], err);
    if (status == MEMFIT_OK && k->wide->rest)
        status = backend->table->prepare(backend, &k->wide->graph[1], 0, NULL, &k->wide->kernel[1], err);
    return status;
}

void cpu_wide_release(cpu_kernel *k)
{
    cpu_wide *w = k->wide;
    if (!w)
        return;
    mf_backend *backend = &k->backend->base;
    for (int g = 0; g < 2; g++)
        if (w->kernel[g])
            backend->table->release(backend, w->kernel[g]);
    mf_host_free(backend->host, w, w->bytes);
    k->wide = NULL;
}
