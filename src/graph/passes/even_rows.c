/*
 * even_rows.c: logits in 16 bits over a number of classes that is no multiple of 8 get a few columns more. A library multiplies
 * such rows several times as quickly as others, and for it they would have to be copied before each product (GPT-2's 50,257 words:
 * three copies of its largest tensor). The kernel gets columns of zeros and the bias, which is made where there is none, as many times
 * minus infinity: such a class has no part in the loss and a slope of 0. The gradients of kernel and bias are cut.
 *
 *     x, w, b -> matmul -> y -> loss, loss_grad -> d;   d, w -> matmul -> dx;   x, d -> matmul -> dw;   d -> reduce -> db
 *
 *     w -> pad -> w';   b -> pad -> b';   x, w', b' -> matmul -> y' -> loss, loss_grad -> d';   d', w' -> matmul -> dx;
 *     x, d' -> matmul -> dw' -> slice -> dw;   d' -> reduce -> db' -> slice -> db
 *
 * Only where nothing reads the logits that would see more classes (a prediction, most metrics), and the kernel is no transposed one.
 */
#include "graph/passes/even_rows.h"

#include <math.h>
#include <string.h>

enum { UNIT = 8, MOST_CUTS = 4 };

typedef struct evening {
    mf_graph *g;
    uint32_t product, kernel, bias; /* the operation that makes the logits, its second operand and its third, or MF_NONE */
    int64_t classes, columns;       /* of a row, before and after */
    uint8_t *longer;                /* by tensor: gets the longer rows */
    uint8_t *held;                  /* by storage: of such a tensor */
    uint32_t cuts[MOST_CUTS];       /* operations that make the gradients of kernel and bias */
    uint32_t cut_count, losses;
} evening;

static int64_t last_dim(const mf_graph *g, uint32_t tensor)
{
    const mf_shape *s = &g->tensors[tensor].shape;
    return s->rank ? s->dim[s->rank - 1] : 1;
}

static bool is_plain(const mf_op *op)
{
    return !op->accumulate && !op->chunked && op->when == MF_ALWAYS;
}

/* Alone in its storage, which lives inside the step. */
static bool is_own(const mf_graph *g, uint32_t tensor)
{
    const mf_tensor *t = &g->tensors[tensor];
    const mf_storage *s = &g->storages[t->storage];
    return s->variable == MF_NONE && t->variable == MF_NONE && t->offset == 0 &&
           s->bytes == mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
}

static bool makes_logits(const mf_graph *g, const mf_op *op, uint64_t least_work)
{
    if (op->kind != MF_OP_MATMUL || !is_plain(op) || op->attr.matmul.trans_a || op->attr.matmul.trans_b)
        return false;
    const mf_tensor *y = &g->tensors[op->out[0]], *w = &g->tensors[op->in[1]];
    double work = (double)mf_shape_count(&y->shape) * (double)last_dim(g, op->in[0]);
    return op->in_count > 2 && (y->dtype == MF_BF16 || y->dtype == MF_F16) && w->dtype == y->dtype && w->shape.rank == 2 &&
           last_dim(g, op->out[0]) > UNIT && last_dim(g, op->out[0]) % UNIT && is_own(g, op->out[0]) &&
           work >= (double)least_work;
}

static bool touches(const evening *e, uint32_t tensor)
{
    return tensor != MF_NONE && e->held[e->g->tensors[tensor].storage];
}

static bool touches_from(const evening *e, const mf_op *op, uint32_t first)
{
    for (uint32_t k = first; k < op->in_count; k++)
        if (touches(e, op->in[k]))
            return true;
    return false;
}

/* A result with longer rows; false: it cannot have them. */
static bool lengthen(evening *e, uint32_t tensor)
{
    if (touches(e, tensor) || !is_own(e->g, tensor) || last_dim(e->g, tensor) != e->classes)
        return false;
    e->longer[tensor] = e->held[e->g->tensors[tensor].storage] = 1;
    return true;
}

/* Its result gets longer rows, and what reads it the part of them that was there. */
static bool is_cut(evening *e, const mf_op *op, uint32_t number)
{
    if (touches(e, op->out[0]) || !is_plain(op) || !is_own(e->g, op->out[0]) || e->cut_count == MOST_CUTS)
        return false;
    e->cuts[e->cut_count++] = number;
    return true;
}

/* The gradients of the product. */
static bool product_fits(evening *e, const mf_op *op, uint32_t number)
{
    bool bias = op->in_count > 2 && op->in[2] != MF_NONE;
    if (bias || op->chunked || touches(e, op->out[0]))
        return false;
    if (op->attr.matmul.trans_b)
        return !op->attr.matmul.trans_a && e->longer[op->in[0]] && op->in[1] == e->kernel;
    return op->attr.matmul.trans_a && e->longer[op->in[1]] && !touches(e, op->in[0]) && is_cut(e, op, number);
}

/* The gradient of the bias: a sum over all rows. */
static bool sum_fits(evening *e, const mf_op *op, uint32_t number)
{
    uint32_t rank = e->g->tensors[op->in[0]].shape.rank;
    return (op->attr.reduce.function == MF_REDUCE_SUM || op->attr.reduce.function == MF_REDUCE_MEAN) &&
           op->attr.reduce.axes == (1u << (rank - 1)) - 1 && is_cut(e, op, number);
}

/* One that reads or writes what has longer rows: does it know how? */
static bool fits(evening *e, const mf_op *op, uint32_t number)
{
    if (op->kind == MF_OP_MATMUL)
        return product_fits(e, op, number);
    if (!e->longer[op->in[0]] || touches_from(e, op, 1) || op->chunked)
        return false;
    switch (op->kind) {
    case MF_OP_VIEW:
        if (op->attr.view.rows || last_dim(e->g, op->out[0]) != e->classes)
            return false;
        e->longer[op->out[0]] = 1;
        return true;
    case MF_OP_REDUCE:
        return sum_fits(e, op, number);
    case MF_OP_CAST:
        return is_plain(op) && lengthen(e, op->out[0]);
    case MF_OP_LOSS:
        e->losses++;
        return op->attr.loss.function == MF_LOSS_SCCE_LOGITS && !touches(e, op->out[0]);
    case MF_OP_METRIC:
        return op->attr.metric.function == MF_METRIC_SPARSE_CATEGORICAL_ACCURACY && !touches(e, op->out[0]);
    case MF_OP_LOSS_GRAD:
        return op->attr.loss.function == MF_LOSS_SCCE_LOGITS && is_plain(op) && lengthen(e, op->out[0]);
    default:
        return false;
    }
}

/* Everything that the logits go to. */
static bool follow(evening *e)
{
    const mf_graph *g = e->g;
    memset(e->longer, 0, g->tensor_count);
    memset(e->held, 0, g->storage_count);
    e->longer[g->ops[e->product].out[0]] = e->held[g->tensors[g->ops[e->product].out[0]].storage] = 1;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        bool sees = touches_from(e, op, 0);
        for (uint32_t k = 0; k < op->out_count && !sees; k++)
            sees = i != e->product && touches(e, op->out[k]);
        if (sees && (i <= e->product || op->in_count == 0 || op->in[0] == MF_NONE || !fits(e, op, i)))
            return false;
    }
    for (uint32_t i = 0; g->mode == MF_MODE_PREDICT && i < g->output_count; i++)
        if (touches(e, g->outputs[i]))
            return false;
    return e->losses > 0;
}

/* ---- the longer rows ---- */

static void set_columns(mf_graph *g, uint32_t tensor, int64_t columns)
{
    mf_tensor *t = &g->tensors[tensor];
    t->shape.dim[t->shape.rank - 1] = columns;
    g->storages[t->storage].bytes = mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
}

/* A tensor like this one, with as many columns. */
static uint32_t add_tensor(mf_graph *g, uint32_t like, int64_t columns)
{
    uint32_t t = g->tensor_count, s = g->storage_count;
    if (!mf_grow(g->arena.host, &g->tensors, &g->tensor_capacity, t + 1, sizeof *g->tensors) ||
        !mf_grow(g->arena.host, &g->storages, &g->storage_capacity, s + 1, sizeof *g->storages))
        return MF_NONE;
    g->tensors[t] = g->tensors[like];
    g->storages[s] = g->storages[g->tensors[like].storage];
    g->tensors[t].storage = s;
    g->tensors[t].offset = 0;
    if (g->storages[s].variable != MF_NONE)
        g->storages[s].kind = MEMFIT_KIND_ACTIVATIONS;
    g->tensors[t].variable = g->storages[s].variable = MF_NONE;
    g->tensor_count++;
    g->storage_count++;
    set_columns(g, t, columns);
    return t;
}

/* An operation with at most one operand and one result, in front of number `at`. */
static bool insert(mf_graph *g, uint32_t at, mf_op_kind kind, uint32_t like, uint32_t from, uint32_t to, mf_attr attr)
{
    uint32_t *ids = MF_NEW_ARRAY(&g->arena, uint32_t, 2);
    if (!ids || !mf_grow(g->arena.host, &g->ops, &g->op_capacity, g->op_count + 1, sizeof *g->ops))
        return false;
    mf_op model = g->ops[like];
    memmove(&g->ops[at + 1], &g->ops[at], (g->op_count - at) * sizeof *g->ops);
    g->op_count++;
    for (uint32_t t = 0; t < g->tensor_count; t++)
        if (g->tensors[t].producer != MF_NONE && g->tensors[t].producer >= at)
            g->tensors[t].producer++;
    uint32_t operands = from != MF_NONE;
    ids[0] = from;
    ids[operands] = to;
    g->tensors[to].producer = at;
    g->ops[at] = (mf_op){.kind = kind,
                         .phase = model.phase,
                         .when = model.when,
                         .layer = model.layer,
                         .in = ids,
                         .out = ids + operands,
                         .in_count = operands,
                         .out_count = 1,
                         .attr = attr};
    return true;
}

static bool insert_pad(evening *e, uint32_t from, uint32_t to, double value)
{
    mf_attr fill = {.pad = {.value = value}};
    fill.pad.after[e->g->tensors[to].shape.rank - 1] = e->columns - e->classes;
    return insert(e->g, e->product, MF_OP_PAD, e->product, from, to, fill);
}

/* A vector like a row of the logits. */
static uint32_t add_vector(evening *e, int64_t length)
{
    uint32_t v = add_tensor(e->g, e->kernel, length);
    if (v == MF_NONE)
        return MF_NONE;
    e->g->tensors[v].shape = (mf_shape){.rank = 1, .dim = {length}};
    set_columns(e->g, v, length);
    return v;
}

/* Gradients of kernel and bias: with longer rows, and cut. */
static bool cut_all(evening *e)
{
    mf_graph *g = e->g;
    mf_attr cut = {.slice = {.stride = {1, 1, 1, 1, 1, 1, 1, 1}}};
    for (uint32_t k = e->cut_count; k-- > 0;) { /* the last one first: numbers before it stay */
        uint32_t at = e->cuts[k], whole = g->ops[at].out[0], longer = add_tensor(g, whole, e->columns);
        if (longer == MF_NONE)
            return false;
        g->ops[at].out[0] = longer;
        g->tensors[longer].producer = at;
        if (!insert(g, at + 1, MF_OP_SLICE, at, longer, whole, cut))
            return false;
    }
    return true;
}

static bool lengthen_all(evening *e)
{
    mf_graph *g = e->g;
    uint32_t tensors = g->tensor_count, kernel = add_tensor(g, e->kernel, e->columns), none = MF_NONE;
    uint32_t bias = add_vector(e, e->columns), from = e->bias;
    if (from == MF_NONE)
        from = none = add_vector(e, e->classes);
    if (kernel == MF_NONE || bias == MF_NONE || from == MF_NONE)
        return false;
    g->tensors[bias].dtype = g->tensors[from].dtype;
    set_columns(g, bias, e->columns);
    for (uint32_t t = 0; t < tensors; t++)
        if (e->longer[t])
            set_columns(g, t, e->columns);
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE && e->longer[g->outputs[i]])
            g->outputs[i] = MF_NONE; /* nobody asks for it in training */
    for (uint32_t i = e->product; i < g->op_count; i++) {
        mf_op *op = &g->ops[i];
        if (op->kind == MF_OP_MATMUL && op->in[1] == e->kernel && (i == e->product || e->longer[op->in[0]]))
            op->in[1] = kernel;
    }
    g->ops[e->product].in[2] = bias;
    return cut_all(e) && insert_pad(e, from, bias, -INFINITY) &&
           (none == MF_NONE || insert(g, e->product, MF_OP_FILL, e->product, MF_NONE, none, (mf_attr){0})) &&
           insert_pad(e, e->kernel, kernel, 0);
}

bool mf_graph_even_rows(mf_graph *g, uint64_t least_work)
{
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (!makes_logits(g, op, least_work))
            continue;
        int64_t classes = last_dim(g, op->out[0]);
        evening e = {.g = g,
                     .product = i,
                     .kernel = op->in[1],
                     .bias = op->in_count > 2 ? op->in[2] : MF_NONE,
                     .classes = classes,
                     .columns = (classes + UNIT - 1) / UNIT * UNIT,
                     .longer = MF_NEW_ARRAY(&g->arena, uint8_t, g->tensor_count + 1),
                     .held = MF_NEW_ARRAY(&g->arena, uint8_t, g->storage_count + 1)};
        if (!e.longer || !e.held)
            return false;
        if (!follow(&e))
            continue;
        if (!lengthen_all(&e))
            return false;
        i += 2 + (e.bias == MF_NONE); /* behind what was put in front of it */
    }
    return true;
}
