/* cuda_kinds.c: one function a family of kinds: which kernels an operation takes, on which grid, with how much
 * workspace. */
#include "ops/cuda/conv_pool.h"
#include "ops/cuda/kind_shapes.h"
#include "ops/cuda/norm_back.h"
#include "ops/cuda/pool_act.h"
#include "ops/cuda/program.h"
#include "ops/reference/reference.h"

#include "base/error.h"
#include "graph/augment.h"

static void row_strides(const mf_shape *shape, int64_t stride[MF_MOST_DIMS])
{
    int64_t step = 1;
    for (uint32_t i = shape->rank; i-- > 0;) {
        stride[i] = step;
        step *= shape->dim[i];
    }
}

/* ---- moving ---- */

static void say_walk(cuda_spec *s, const mf_shape *shape, const int64_t *stride, int64_t start)
{
    cuda_say(s, "static constexpr walk spec_walk = {%u, {", shape->rank);
    for (uint32_t i = 0; i < shape->rank; i++)
        cuda_say(s, "%lld, ", (long long)shape->dim[i]);
    cuda_say(s, "}, {");
    for (uint32_t i = 0; i < shape->rank; i++)
        cuda_say(s, "%lld, ", (long long)stride[i]);
    cuda_say(s, "}};\n#define START ((idx)%lldll)\n", (long long)start);
}

static void slice(cuda_spec *s)
{
    int64_t stride[MF_MOST_DIMS], start = 0;
    row_strides(in_shape(s, 0), stride);
    for (uint32_t i = 0; i < in_shape(s, 0)->rank; i++) {
        start += s->op->attr.slice.begin[i] * stride[i];
        stride[i] *= s->op->attr.slice.stride[i] ? s->op->attr.slice.stride[i] : 1;
    }
    say_walk(s, out_shape(s, 0), stride, start);
}

static void transpose(cuda_spec *s)
{
    int64_t from[MF_MOST_DIMS], stride[MF_MOST_DIMS];
    row_strides(in_shape(s, 0), from);
    for (uint32_t i = 0; i < out_shape(s, 0)->rank; i++)
        stride[i] = from[s->op->attr.transpose.perm[i]];
    say_walk(s, out_shape(s, 0), stride, 0);
}

static void concat(cuda_spec *s)
{
    uint32_t axis = s->op->attr.concat.axis;
    const mf_shape *y = out_shape(s, 0);
    int64_t before = 0;
    uint64_t most = 0;
    cuda_say(s, "#define WHOLE %lldll\n#define CONCAT_PARTS", (long long)mf_ref_span(y, axis, y->rank));
    for (uint32_t i = 0; i < s->op->in_count; i++) {
        int64_t size = mf_ref_span(in_shape(s, i), axis, in_shape(s, i)->rank);
        most = in_count(s, i) > most ? in_count(s, i) : most;
        if (size > 0)
            cuda_say(s, " part<%u>(a, (idx)%lldll, (idx)%lldll);", i, (long long)size, (long long)before);
        before += size;
    }
    cuda_say(s, "\n");
    cuda_grid(s, "k0", (most + s->block - 1) / s->block, s->op->in_count);
}

static void gather_grad(cuda_spec *s)
{
    enum { MOST_LOOKED_AT = 1 << 16 }; /* pairs of rows and indices */
    uint64_t rows = (uint64_t)out_shape(s, 0)->dim[0], indices = in_count(s, 0);
    bool lists = indices > 0 && rows * indices > MOST_LOOKED_AT && rows + indices < INT32_MAX / 4;
    cuda_say(s, "#define WIDTH %lldll\n#define LISTS %d\n",
             (long long)mf_ref_span(out_shape(s, 0), 1, out_shape(s, 0)->rank), lists);
    if (lists) {
        cuda_say(s, "#define TABLE_ROWS %llull\n#define LISTS_AT %llull\n", (unsigned long long)rows,
                 (unsigned long long)cuda_workspace(s, (2 * rows + indices) * sizeof(int32_t)));
        cuda_each(s, "zero", rows);
        cuda_each(s, "count", indices);
        cuda_grid(s, "starts", 1, 1);
        cuda_each(s, "place", indices);
    }
    cuda_grid(s, "k0", rows, 1);
}

static memfit_status moves(cuda_spec *s)
{
    s->family = "move.cu";
    switch (s->op->kind) {
    case MF_OP_SLICE:
        slice(s);
        break;
    case MF_OP_TRANSPOSE:
        transpose(s);
        break;
    case MF_OP_CONCAT:
        concat(s);
        return MEMFIT_OK;
    case MF_OP_GATHER:
        cuda_say(s, "#define WIDTH %lldll\n", (long long)mf_ref_span(in_shape(s, 0), 1, in_shape(s, 0)->rank));
        break;
    case MF_OP_GATHER_GRAD:
        gather_grad(s);
        return MEMFIT_OK;
    case MF_OP_CAST:
        cuda_say(s, "#define IN_SIZE %llu\n#define OUT_SIZE %llu\n",
                 (unsigned long long)mf_dtype_bytes(s->graph->tensors[s->op->in[0]].dtype),
                 (unsigned long long)mf_dtype_bytes(s->graph->tensors[s->op->out[0]].dtype));
        break;
    default:
        break;
    }
    cuda_each(s, "k0", out_count(s, 0));
    return MEMFIT_OK;
}

/* ---- element by element, and over axes ---- */

static memfit_status pointwise(cuda_spec *s)
{
    s->family = "pointwise.cu";
    cuda_say(s, "#define COMPARE_B 1\n#define EMA_FLAG 2\n");
    cuda_each(s, "k0", out_count(s, 0));
    return MEMFIT_OK;
}

/* Axes of `whole` along which `part` has one element where whole has more; aligned at the right. */
static uint32_t missing_axes(const mf_shape *whole, const mf_shape *part)
{
    uint32_t axes = 0;
    for (uint32_t i = 0; i < whole->rank; i++) {
        uint32_t back = whole->rank - 1 - i;
        int64_t there = back < part->rank ? part->dim[part->rank - 1 - back] : 1;
        axes |= (uint32_t)(there == 1 && whole->dim[i] != 1) << i;
    }
    return axes;
}

static bool last_axis_is(const mf_shape *shape, uint32_t axes)
{
    uint32_t i = shape->rank;
    while (i > 0 && shape->dim[i - 1] == 1)
        i--;
    return i > 0 && (axes >> (i - 1) & 1) != 0;
}

static memfit_status reduces(cuda_spec *s)
{
    s->family = "reduce.cu";
    const mf_op *op = s->op;
    if (op->kind == MF_OP_REDUCE || op->kind == MF_OP_REDUCE_GRAD) {
        const mf_shape *x = in_shape(s, op->kind == MF_OP_REDUCE ? 0 : 1);
        uint64_t out = op->kind == MF_OP_REDUCE ? out_count(s, 0) : in_count(s, 0), gone = 1;
        for (uint32_t i = 0; i < x->rank; i++)
            gone *= op->attr.reduce.axes >> i & 1 ? (uint64_t)x->dim[i] : 1;
        if (op->kind == MF_OP_REDUCE)
            cuda_reduce(s, 0, out, gone, 1, last_axis_is(x, op->attr.reduce.axes));
        else {
            cuda_say(s, "#define GROUP %lldll\n", (long long)gone);
            cuda_grid(s, "k0", gone ? out : 0, 1);
        }
        return MEMFIT_OK;
    }
    bool prelu = op->kind == MF_OP_PRELU_GRAD;
    const mf_shape *whole = in_shape(s, prelu ? 1 : 0), *part = prelu ? in_shape(s, 2) : out_shape(s, 0);
    uint32_t axes = missing_axes(whole, part);
    uint64_t out = mf_shape_count(part), all = mf_shape_count(whole);
    cuda_say(s, "#define AXES %uu\n", axes);
    if (!prelu || has_out(s, 1))
        cuda_reduce(s, 0, out, out ? all / out : 0, 1, last_axis_is(whole, axes));
    else
        cuda_reduce_unused(s, 0);
    if (prelu && has_out(s, 0))
        cuda_each(s, "k0", all);
    return MEMFIT_OK;
}

static memfit_status softmax(cuda_spec *s)
{
    s->family = "softmax.cu";
    const mf_shape *x = in_shape(s, 0);
    uint32_t axis = s->op->attr.softmax.axis;
    int64_t size = x->rank ? x->dim[axis] : 1, inner = mf_ref_span(x, axis + 1, x->rank);
    uint64_t rows = size > 0 ? mf_shape_count(x) / (uint64_t)size : 0;
    bool block = size > 64;
    cuda_say(s, "#define AXIS_SIZE %lldll\n#define AXIS_INNER %lldll\n#define ROWS %lldll\n#define ROW_A_BLOCK %d\n",
             (long long)size, (long long)inner, (long long)rows, block);
    if (block)
        cuda_grid(s, "k0", rows, 1);
    else
        cuda_each(s, "k0", rows);
    return MEMFIT_OK;
}

/* ---- normalization ---- */

static void layer_norm(cuda_spec *s, const mf_shape *x)
{
    const mf_attr *attr = &s->op->attr;
    int64_t positions = 1, per_sample = 1, width, step, entries, sets;
    if (attr->norm.groups > 0) {
        entries = step = x->dim[x->rank - 1];
        per_sample = attr->norm.groups;
        width = entries / per_sample;
        positions = mf_ref_span(x, 1, x->rank - 1);
        sets = x->dim[0] * per_sample;
    } else {
        uint32_t first = x->rank - attr->norm.axes;
        width = step = entries = mf_ref_span(x, first, x->rank);
        sets = mf_ref_span(x, 0, first);
    }
    cuda_say(s,
             "#define SETS %lldll\n#define POSITIONS %lldll\n#define WIDTH %lldll\n#define PER_SAMPLE %lldll\n"
             "#define STEP %lldll\n#define ENTRIES %lldll\n",
             (long long)sets, (long long)positions, (long long)width, (long long)per_sample, (long long)step,
             (long long)entries);
    if (s->op->kind == MF_OP_LAYER_NORM_GRAD) {
        if (has_out(s, 1) || has_out(s, 2))
            cuda_reduce(s, 0, (uint64_t)entries, entries ? mf_shape_count(x) / (uint64_t)entries : 0, 2, false);
        else
            cuda_reduce_unused(s, 0);
    }
    if (has_out(s, 0))
        cuda_grid(s, "k0", (uint64_t)sets, 1);
}

static memfit_status norms(cuda_spec *s)
{
    s->family = "norm.cu";
    mf_op_kind kind = s->op->kind;
    bool back = kind == MF_OP_BATCH_NORM_GRAD || kind == MF_OP_BATCH_NORM_INFER_GRAD || kind == MF_OP_LAYER_NORM_GRAD;
    const mf_shape *x = in_shape(s, back ? 1 : 0);
    if (kind == MF_OP_LAYER_NORM || kind == MF_OP_LAYER_NORM_GRAD) {
        layer_norm(s, x);
        return MEMFIT_OK;
    }
    uint64_t channels = (uint64_t)x->dim[x->rank - 1], rows = channels ? mf_shape_count(x) / channels : 0;
    cuda_say(s, "#define CHANNELS %lldll\n", (long long)channels);
    if (kind == MF_OP_BATCH_NORM)
        cuda_reduce(s, 0, channels, rows, 3, false);
    if (back) {
        cuda_keep(s, 2 * channels);
        cuda_reduce(s, 0, channels, rows, 2, false);
    }
    if (has_out(s, 0))
        cuda_each(s, "k0", mf_shape_count(x));
    return MEMFIT_OK;
}

/* ---- losses, metrics, updates ---- */

/* 16 bits, at a place where vectors begin. */
static bool is_wide_row(const cuda_spec *s, uint32_t tensor)
{
    const mf_tensor *t = &s->graph->tensors[tensor];
    return (t->dtype == MF_BF16 || t->dtype == MF_F16) && t->dtype == s->graph->tensors[s->op->in[0]].dtype &&
           t->offset % 16 == 0;
}

static memfit_status losses(cuda_spec *s)
{
    s->family = "loss.cu";
    const mf_shape *x = in_shape(s, 0);
    uint64_t classes = x->rank > 1 ? (uint64_t)x->dim[x->rank - 1] : 1, rows = classes ? in_count(s, 0) / classes : 0;
    const mf_attr *attr = &s->op->attr;
    if (s->op->kind == MF_OP_METRIC) {
        bool auc = attr->metric.function == MF_METRIC_AUC, one = attr->metric.function == MF_METRIC_LOSS_VALUE;
        cuda_say(s, "#define METRIC_AUC %d\n", auc);
        cuda_reduce(s, 0, auc ? out_count(s, 0) : 1, auc ? in_count(s, 0) : one ? 1 : rows, auc ? 1 : 2, true);
        return MEMFIT_OK;
    }
    bool hinge = attr->loss.function == MF_LOSS_HINGE || attr->loss.function == MF_LOSS_SQUARED_HINGE;
    bool logits = attr->loss.function == MF_LOSS_SCCE_LOGITS || attr->loss.function == MF_LOSS_CCE_LOGITS;
    bool block = logits && classes > 64, value = s->op->kind == MF_OP_LOSS;
    bool wide = block && is_wide_row(s, s->op->in[0]) && (value || is_wide_row(s, s->op->out[0]));
    cuda_say(s, "#define HINGE %d\n#define ROW_A_BLOCK %d\n#define WIDE_ROWS %d\n", hinge, block, wide);
    if (wide)
        cuda_say(s, "#define V 8\nstatic constexpr mf_shape domain = {};\n#include \"operands.cuh\"\n"
                    "#include \"program.cuh\"\n");
    if (block && value) {
        cuda_keep(s, rows);
        cuda_grid(s, "rows", rows, 1);
    }
    if (hinge) {
        cuda_keep(s, 1);
        cuda_reduce(s, 1, 1, in_count(s, 1), 1, true);
    }
    if (value)
        cuda_reduce(s, 0, 1, rows, 1, true);
    else if (block)
        cuda_grid(s, "k0", rows, 1);
    else
        cuda_each(s, "k0", rows);
    return MEMFIT_OK;
}

static void adafactor(cuda_spec *s)
{
    const mf_shape *w = in_shape(s, 0);
    uint64_t count = in_count(s, 0), m = 1, n = 1, matrices = 1;
    bool matrix = w->rank >= 2;
    if (matrix) {
        m = (uint64_t)w->dim[w->rank - 2];
        n = (uint64_t)w->dim[w->rank - 1];
        matrices = m && n ? count / (m * n) : 0;
    }
    cuda_say(s, "#define MATRIX %d\n#define MATRIX_M %lldll\n#define MATRIX_N %lldll\n", matrix, (long long)m,
             (long long)n);
    cuda_keep(s, 2 + matrices);
    if (matrix) {
        cuda_reduce(s, 0, matrices * m, n, 1, true);
        cuda_reduce(s, 1, matrices * n, m, 1, false);
        cuda_reduce(s, 2, matrices, m, 1, true);
    }
    cuda_each(s, "k0", count);
    cuda_reduce(s, 3, 1, count, 2, true);
    cuda_each(s, "k1", count);
}

static void update(cuda_spec *s)
{
    mf_optimizer optimizer = s->op->attr.update.optimizer;
    uint32_t slots = s->op->out_count - 1;
    cuda_say(s, "#define SLOTS %u\n#define FLAG %u\n#define UPDATE_LAMB %d\n#define UPDATE_ADAFACTOR %d\n", slots,
             2 + slots, optimizer == MF_OPTIMIZER_LAMB, optimizer == MF_OPTIMIZER_ADAFACTOR);
    if (optimizer == MF_OPTIMIZER_ADAFACTOR) {
        adafactor(s);
        return;
    }
    /* small tensors need all their threads */
    unsigned each = optimizer != MF_OPTIMIZER_LAMB && (s->block == 1 || in_count(s, 0) >= 1 << 18) ? 4 : 1;
    cuda_say(s, "#define ELEMENTS %u\n", each);
    cuda_each(s, "k0", (in_count(s, 0) + each - 1) / each);
    if (optimizer == MF_OPTIMIZER_LAMB) {
        cuda_keep(s, 1);
        cuda_reduce(s, 0, 1, in_count(s, 0), 2, true);
        cuda_each(s, "k1", in_count(s, 0));
    }
}

static memfit_status updates(cuda_spec *s)
{
    s->family = "update.cu";
    const mf_op *op = s->op;
    uint64_t most = 0;
    switch (op->kind) {
    case MF_OP_REGULARIZE:
        cuda_reduce(s, 0, 1, in_count(s, 0), 1, true);
        if (has_in(s, 1) && has_out(s, 0))
            cuda_each(s, "k0", in_count(s, 0));
        return MEMFIT_OK;
    case MF_OP_CLIP:
        cuda_keep(s, 1);
        if (op->attr.clip.norm > 0)
            cuda_reduce(s, 0, 1, in_count(s, 0), 1, true);
        else
            cuda_reduce_unused(s, 0);
        cuda_each(s, "k0", in_count(s, 0));
        return MEMFIT_OK;
    case MF_OP_SQUARE_SUM:
        cuda_say(s, "__device__ const long long counts[] = {");
        for (uint32_t i = 0; i < op->in_count; i++) {
            uint64_t n = has_in(s, i) ? in_count(s, i) : 0;
            cuda_say(s, "%lld, ", (long long)n);
            most = n > most ? n : most;
        }
        cuda_say(s, "};\n__device__ const int dtypes[] = {");
        for (uint32_t i = 0; i < op->in_count; i++)
            cuda_say(s, "%d, ", has_in(s, i) ? (int)s->graph->tensors[op->in[i]].dtype : 0);
        cuda_say(s, "};\n");
        cuda_reduce(s, 0, 1, most, 1, true);
        return MEMFIT_OK;
    case MF_OP_CHECK_FINITE:
        cuda_reduce(s, 0, 1, in_count(s, 0), 1, true);
        if (has_out(s, 1))
            cuda_each(s, "k0", in_count(s, 0));
        return MEMFIT_OK;
    default:
        update(s);
        return MEMFIT_OK;
    }
}

static memfit_status augment(cuda_spec *s, memfit_error *err)
{
    s->family = "augment.cu";
    const mf_shape *in = in_shape(s, 0), *out = out_shape(s, 0);
    if (in->rank != 4 || out->rank != 4 || s->op->attr.augment.function >= MF_AUGMENT_COUNT)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "layer '%s': this augmentation can be planned but not run",
                       s->graph->layers[s->op->layer].name);
    if (s->op->attr.augment.function == MF_AUGMENT_CONTRAST) {
        cuda_keep(s, (uint64_t)(in->dim[0] * in->dim[3]));
        cuda_reduce(s, 0, (uint64_t)(in->dim[0] * in->dim[3]), (uint64_t)(in->dim[1] * in->dim[2]), 1, false);
    } else {
        cuda_say(s, "#define KEPT_AT 0\n");
        cuda_reduce_unused(s, 0);
    }
    cuda_each(s, "k0", out_count(s, 0));
    return MEMFIT_OK;
}

memfit_status cuda_kind_spec(cuda_spec *s, memfit_error *err)
{
    if (cuda_conv_pool_spec(s) || cuda_pool_act_spec(s) || cuda_norm_back_spec(s) || cuda_program_spec(s) ||
        cuda_rows(s))
        return MEMFIT_OK;
    if (s->op->kind == MF_OP_GROUP)
        return mf_fail(err, MEMFIT_INTERNAL, "a group of operations that the CUDA backend never took");
    switch (s->op->kind) {
    case MF_OP_CAST:
    case MF_OP_TRANSPOSE:
    case MF_OP_SLICE:
    case MF_OP_PAD:
    case MF_OP_CONCAT:
    case MF_OP_GATHER:
    case MF_OP_GATHER_GRAD:
        return moves(s);
    case MF_OP_REDUCE:
    case MF_OP_REDUCE_GRAD:
    case MF_OP_BINARY_GRAD:
    case MF_OP_PRELU_GRAD:
        return reduces(s);
    case MF_OP_SOFTMAX:
    case MF_OP_SOFTMAX_GRAD:
        return softmax(s);
    case MF_OP_ATTENTION:
    case MF_OP_ATTENTION_GRAD:
        return cuda_attention(s);
    case MF_OP_BATCH_NORM:
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_BATCH_NORM_INFER:
    case MF_OP_BATCH_NORM_INFER_GRAD:
    case MF_OP_LAYER_NORM:
    case MF_OP_LAYER_NORM_GRAD:
        return norms(s);
    case MF_OP_LOSS:
    case MF_OP_LOSS_GRAD:
    case MF_OP_METRIC:
        return losses(s);
    case MF_OP_REGULARIZE:
    case MF_OP_CLIP:
    case MF_OP_SQUARE_SUM:
    case MF_OP_CHECK_FINITE:
    case MF_OP_UPDATE:
        return updates(s);
    case MF_OP_POOL_MAX:
    case MF_OP_POOL_MAX_GRAD:
    case MF_OP_POOL_AVG:
    case MF_OP_POOL_AVG_GRAD:
    case MF_OP_CONV:
    case MF_OP_CONV_GRAD_DATA:
    case MF_OP_CONV_GRAD_WEIGHTS:
        return cuda_windows(s);
    case MF_OP_MATMUL:
        return cuda_product(s, err);
    case MF_OP_LSTM:
    case MF_OP_LSTM_GRAD:
    case MF_OP_GRU:
    case MF_OP_GRU_GRAD:
    case MF_OP_SIMPLE_RNN:
    case MF_OP_SIMPLE_RNN_GRAD:
        return cuda_recurrent(s);
    case MF_OP_AUGMENT:
        return augment(s, err);
    case MF_OP_ASSUMED:
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "an assumed layer cannot run: what it computes is not known\nplan with it, or replace it by "
                       "layers that memfit knows");
    default:
        return pointwise(s);
    }
}
