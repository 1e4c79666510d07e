/*
 * chunk.c: see chunk.h.
 *
 *     fill dx
 *     for each chunk:  logits = x[r] kernel + bias
 *                      probabilities -> metrics            one more chunk, only where there are metrics
 *                      loss += ...
 *                      slopes over the logits              in place
 *                      dkernel += x[r]' slopes             the first chunk writes, later ones add
 *                      dbias += sum of slopes
 *                      dx[r] = slopes kernel'
 *
 * With 16-bit types each chunk's part of dkernel is a 16-bit tensor, as the whole one would be, and is added to a sum
 * in the parameter's own type. With pieces the sum is the parameter's accumulator.
 *
 * Tried and dropped: one operation kind that runs the loop inside, with the chunk as its workspace. It needs a second
 * form of the product, the loss and every metric in each backend, and hides from the planner what is alive when.
 */
#include "graph/passes/chunk.h"

/* ---- finding the last layer ---- */

/* The parameter behind an operand of the product, through casts and views; MF_NONE when it is no parameter. */
static uint32_t parameter_of(const mf_graph *g, uint32_t tensor)
{
    for (;;) {
        const mf_tensor *t = &g->tensors[tensor];
        if (t->producer == MF_NONE)
            return t->variable == MF_NONE ? MF_NONE : tensor;
        const mf_op *op = &g->ops[t->producer];
        if (op->kind != MF_OP_CAST && op->kind != MF_OP_VIEW)
            return MF_NONE;
        tensor = op->in[0];
    }
}

/* From a tensor back through casts and reshapes that keep the last axis. */
static uint32_t look_through(const mf_graph *g, uint32_t tensor)
{
    for (;;) {
        const mf_tensor *t = &g->tensors[tensor];
        const mf_op *op = t->producer == MF_NONE ? NULL : &g->ops[t->producer];
        if (!op || (op->kind != MF_OP_CAST && op->kind != MF_OP_VIEW))
            return tensor;
        const mf_shape *from = &g->tensors[op->in[0]].shape;
        if (!from->rank || !t->shape.rank || from->dim[from->rank - 1] != t->shape.dim[t->shape.rank - 1])
            return tensor;
        tensor = op->in[0];
    }
}

static const mf_op *maker(const mf_graph *g, uint32_t tensor, mf_op_kind kind)
{
    uint32_t op = g->tensors[tensor].producer;
    return op != MF_NONE && g->ops[op].kind == kind ? &g->ops[op] : NULL;
}

/* A vector added to every row, as EinsumDense does; MF_NONE when the sum is another. */
static uint32_t added_vector(const mf_graph *g, const mf_op *sum)
{
    const mf_shape *y = &g->tensors[sum->out[0]].shape, *v = &g->tensors[sum->in[1]].shape;
    bool is = sum->attr.binary.function == MF_ADD && v->rank == 1 && y->rank && v->dim[0] == y->dim[y->rank - 1] &&
              parameter_of(g, sum->in[1]) != MF_NONE;
    return is ? sum->in[1] : MF_NONE;
}

bool mf_head_find(const mf_build *b, uint32_t logits, uint32_t pred, mf_head *head, const char **why)
{
    const mf_graph *g = b->graph;
    uint32_t end = look_through(g, logits), seen = look_through(g, pred);
    const mf_op *softmax = seen == end ? NULL : maker(g, seen, MF_OP_SOFTMAX);
    *why = "metrics look at something else than the last layer's result";
    if (seen != end && (!softmax || look_through(g, softmax->in[0]) != end || softmax->attr.softmax.log ||
                        softmax->attr.softmax.causal || softmax->attr.softmax.sparse))
        return false;
    const mf_op *sum = maker(g, end, MF_OP_BINARY);
    uint32_t bias = sum ? added_vector(g, sum) : MF_NONE;
    const mf_op *product = maker(g, bias == MF_NONE ? end : look_through(g, sum->in[0]), MF_OP_MATMUL);
    *why = "the last layer is not a matrix product with a kernel";
    if (!product || product->attr.matmul.trans_a || product->attr.matmul.scale != 1 ||
        g->tensors[product->in[1]].shape.rank != 2 || parameter_of(g, product->in[1]) == MF_NONE)
        return false;
    if (product->in[2] != MF_NONE && (bias != MF_NONE || parameter_of(g, product->in[2]) == MF_NONE))
        return false;
    *head = (mf_head){.x = product->in[0],
                      .kernel = product->in[1],
                      .bias = bias == MF_NONE ? product->in[2] : bias,
                      .trans_kernel = product->attr.matmul.trans_b,
                      .softmax = softmax != NULL,
                      .layer = product->layer};
    *why = NULL;
    return true;
}

uint32_t mf_head_chunks(int64_t rows, uint32_t chunks, int64_t *rows_per_chunk)
{
    enum { STEP = 16 };
    int64_t each = chunks > 1 ? (rows + chunks - 1) / chunks : rows;
    if (each < rows)
        each = (each + STEP - 1) / STEP * STEP;
    if (each < 1 || each > rows)
        each = rows;
    *rows_per_chunk = each;
    return rows > 0 ? (uint32_t)((rows + each - 1) / each) : 1;
}

void mf_head_add(mf_build *b, const mf_head *head)
{
    mf_head *kept = MF_NEW(&b->graph->arena, mf_head);
    if (!kept) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the loss");
        return;
    }
    *kept = *head;
    mf_head **end = &b->heads;
    while (*end)
        end = &(*end)->next;
    kept->next = NULL;
    *end = kept;
}

/* ---- the loop ---- */

typedef struct loop {
    mf_build *b;
    mf_backward *w; /* NULL: no gradients */
    const mf_head *head;
    uint32_t dkernel, dbias, dx; /* so far; MF_NONE: not begun, or not wanted */
    bool want_kernel, want_bias;
} loop;

/* One operation whose result is added to `*sum`, which the first one makes. In the sum's type, if that is another. */
static void add_to(mf_build *b, uint32_t *sum, mf_dtype dtype, mf_op_kind kind, const mf_attr *attr, uint32_t in_count,
                   const uint32_t *in)
{
    if (!mf_build_ok(b))
        return;
    bool cast = mf_g_dtype(b, in[0]) != dtype;
    uint32_t part = MF_NONE;
    if (cast || *sum == MF_NONE)
        part = mf_g_op(b, kind, attr, in_count, in, 1, NULL, NULL);
    if (*sum == MF_NONE) {
        *sum = mf_g_cast(b, part, dtype);
        return;
    }
    if (cast)
        mf_g_op_in_place(b, MF_OP_CAST, NULL, 1, &part, 1, sum);
    else
        mf_g_op_in_place(b, kind, attr, in_count, in, 1, sum);
    if (mf_build_ok(b))
        b->graph->ops[b->graph->op_count - 1].accumulate = true;
}

static void append_metrics(loop *l, uint32_t y, int64_t first, int64_t rows)
{
    mf_build *b = l->b;
    uint32_t seen = MF_NONE;
    for (uint32_t i = 0; i < l->head->metric_count && mf_build_ok(b); i++) {
        const mf_head_metric *m = &l->head->metrics[i];
        if (seen == MF_NONE) {
            seen = l->head->softmax ? mf_g_softmax(b, y, 1, false) : y;
            seen = mf_g_dtype(b, seen) == MF_F64 ? seen : mf_g_cast(b, seen, MF_F32);
        }
        uint32_t in[4] = {seen, mf_g_rows(b, m->target, first, rows),
                          m->weights == MF_NONE ? MF_NONE : mf_g_rows(b, m->weights, first, rows), m->state};
        mf_g_op_in_place(b, MF_OP_METRIC, &m->attr, 4, in, 1, &m->state);
    }
}

static void append_gradients(loop *l, uint32_t x, uint32_t dy, int64_t first, int64_t rows)
{
    mf_build *b = l->b;
    const mf_head *h = l->head;
    mf_attr product = {.matmul = {.trans_a = true, .scale = 1}}, data = {.matmul = {.scale = 1}};
    mf_attr columns = {.reduce = {.function = MF_REDUCE_SUM, .axes = 1}};
    data.matmul.trans_b = !h->trans_kernel;
    uint32_t operands[3] = {h->trans_kernel ? dy : x, h->trans_kernel ? x : dy, MF_NONE};
    if (l->want_kernel)
        add_to(b, &l->dkernel, mf_g_dtype(b, parameter_of(b->graph, h->kernel)), MF_OP_MATMUL, &product, 3, operands);
    if (l->want_bias)
        add_to(b, &l->dbias, mf_g_dtype(b, parameter_of(b->graph, h->bias)), MF_OP_REDUCE, &columns, 1, &dy);
    if (l->dx == MF_NONE)
        return;
    uint32_t part = mf_g_rows(b, l->dx, first, rows);
    mf_g_op_in_place(b, MF_OP_MATMUL, &data, 3, (uint32_t[]){dy, h->kernel, MF_NONE}, 1, &part);
}

static void append_chunk(loop *l, int64_t first, int64_t rows)
{
    mf_build *b = l->b;
    const mf_head *h = l->head;
    uint32_t x = mf_g_rows(b, h->x, first, rows);
    uint32_t y = mf_g_matmul(b, x, h->kernel, h->bias, false, h->trans_kernel, 1);
    if (l->w) /* slopes go over the logits, probabilities beside them; without slopes probabilities go over them */
        append_metrics(l, y, first, rows);
    uint32_t logits = mf_g_dtype(b, y) == MF_F64 ? y : mf_g_cast(b, y, MF_F32);
    uint32_t in[4] = {logits, mf_g_rows(b, h->target, first, rows),
                      h->weights == MF_NONE ? MF_NONE : mf_g_rows(b, h->weights, first, rows), h->loss_tensor};
    mf_attr attr = h->loss;
    attr.loss.axis = 1;
    attr.loss.first_row = first;
    mf_g_op_in_place(b, MF_OP_LOSS, &attr, 4, in, 1, &h->loss_tensor);
    if (!l->w)
        append_metrics(l, y, first, rows);
    if (l->w && mf_build_ok(b)) {
        uint32_t dlogits = mf_g_op(b, MF_OP_LOSS_GRAD, &attr, 3, in, 1, NULL, NULL);
        append_gradients(l, x, mf_g_cast(b, dlogits, mf_g_dtype(b, y)), first, rows);
    }
}

/* The sum over chunks of a parameter's gradient: its accumulator, where there is one. */
static uint32_t begin_sum(const loop *l, uint32_t operand, bool *wanted)
{
    uint32_t parameter = operand == MF_NONE ? MF_NONE : parameter_of(l->b->graph, operand);
    *wanted = mf_backward_wants(l->w, parameter);
    uint32_t sum = *wanted && l->w->accumulator ? l->w->accumulator[parameter] : MF_NONE;
    return sum == MF_NONE ? MF_NONE : mf_g_view(l->b, sum, mf_g_shape(l->b, operand));
}

static void end_sum(const loop *l, uint32_t operand, uint32_t sum)
{
    uint32_t parameter = operand == MF_NONE ? MF_NONE : parameter_of(l->b->graph, operand);
    if (sum == MF_NONE || !mf_build_ok(l->b))
        return;
    if (l->w->accumulator && l->w->accumulator[parameter] != MF_NONE) {
        l->w->gradient[parameter] = l->w->accumulator[parameter];
        l->w->owned[parameter] = 1;
    } else {
        mf_backward_give(l->w, parameter, mf_g_view(l->b, sum, mf_g_shape(l->b, parameter)));
    }
}

static void append_head(mf_build *b, mf_backward *w, const mf_head *head)
{
    loop l = {.b = b, .w = w, .head = head, .dkernel = MF_NONE, .dbias = MF_NONE, .dx = MF_NONE};
    mf_shape x = mf_g_shape(b, head->x);
    int64_t each;
    mf_head_chunks(x.dim[0], head->chunks, &each);
    b->layer = head->layer;
    b->chunked = true;
    if (w) {
        l.dkernel = begin_sum(&l, head->kernel, &l.want_kernel);
        l.dbias = begin_sum(&l, head->bias, &l.want_bias);
        if (mf_backward_wants(w, head->x))
            l.dx = mf_g_fill(b, mf_g_dtype(b, head->x), x, 0);
    }
    for (int64_t first = 0; first < x.dim[0] && mf_build_ok(b); first += each)
        append_chunk(&l, first, x.dim[0] - first < each ? x.dim[0] - first : each);
    b->chunked = false;
    if (!w || !mf_build_ok(b))
        return;
    end_sum(&l, head->kernel, l.dkernel);
    end_sum(&l, head->bias, l.dbias);
    if (l.dx != MF_NONE)
        mf_backward_give(w, head->x, l.dx);
}

void mf_heads_append(mf_build *b, mf_backward *w)
{
    uint32_t layer = b->layer;
    for (const mf_head *h = b->heads; h && mf_build_ok(b); h = h->next)
        append_head(b, w, h);
    b->heads = NULL;
    b->layer = layer;
}
