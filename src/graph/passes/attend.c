/*
 * attend.c: softmax(scale * q k' under masks) v, and all of it backwards, as two operations without a matrix of
 * scores. It is done for backends that ask for it (mf_group_taker.attends), of what any layer was lowered to:
 *
 *     q, k -> product -> select... -> softmax -> [select...] -> [dropout] -> product with v -> y
 *                                        y' ─┐                      w ─┐
 *     dq <- product <- select... <- softmax_grad <- [select...] <- [dropout] <- product with v' <- dy
 *     dk <- product <-┘                                        dv <- product of w' and dy
 *
 * What is asked for beside (somebody reads the scores or the weights) keeps the old form. Selects behind the softmax
 * must say the same as those in front of it: weights of masked pairs are 0. Where heads were moved in front of the steps
 * and back by transpositions that serve this alone, those go too.
 *
 * The sums' logarithms get the tensor that held the softmax: no other is needed.
 */
#include "graph/passes/attend.h"

#include "graph/attention.h"
#include "graph/kinds/kinds.h"

enum { MOST_SELECTS = 4, MOST_MEMBERS = 40 };

typedef struct attending {
    mf_graph *g;
    const mf_group_taker *taker;
    uint32_t *at, *readers; /* by tensor: operations that read it, ascending */
    uint32_t *touched;      /* by storage: how often operations name one of its tensors */
    uint8_t *kept;          /* by storage: an output of the model */
    uint8_t *gone;
} attending;

/* One place where it may be done. */
typedef struct pattern {
    uint32_t scores, softmax, dropout, product; /* forward operations */
    uint32_t before[MOST_SELECTS], before_count, after_count,
        weights;                         /* `weights`: the tensor that values are summed by */
    uint32_t q, k, v, y, dy;             /* tensors */
    uint32_t d_weights, slope, grads[3]; /* backward: dy v', softmax_grad; dq, dk, dv */
    uint32_t members[MOST_MEMBERS], count;
    uint32_t masks[MF_ATTENTION_MASKS], mask_count;
    mf_attr attr;
} pattern;

static bool make_uses(attending *a)
{
    mf_graph *g = a->g;
    uint32_t operands = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        operands += g->ops[i].in_count;
    a->at = MF_NEW_ARRAY(&g->arena, uint32_t, g->tensor_count + 2);
    a->readers = MF_NEW_ARRAY(&g->arena, uint32_t, operands + 1);
    a->touched = MF_NEW_ARRAY(&g->arena, uint32_t, g->storage_count + 1);
    a->kept = MF_NEW_ARRAY(&g->arena, uint8_t, g->storage_count + 1);
    if (!a->at || !a->readers || !a->touched || !a->kept)
        return false;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < g->op_count; i++)
            for (uint32_t k = 0; !a->gone[i] && k < g->ops[i].in_count + g->ops[i].out_count; k++) {
                bool in = k < g->ops[i].in_count;
                uint32_t t = in ? g->ops[i].in[k] : g->ops[i].out[k - g->ops[i].in_count];
                if (t == MF_NONE)
                    continue;
                if (!pass)
                    a->touched[g->tensors[t].storage]++;
                if (in && pass)
                    a->readers[a->at[t + 1]++] = i;
                else if (in)
                    a->at[t + 2]++;
            }
        for (uint32_t t = 0; !pass && t < g->tensor_count; t++)
            a->at[t + 2] += a->at[t + 1];
    }
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE)
            a->kept[g->tensors[g->outputs[i]].storage] = 1;
    return true;
}

static uint32_t reader_count(const attending *a, uint32_t tensor)
{
    return a->at[tensor + 1] - a->at[tensor];
}

/* Written once, read as it is, by `readers` operations at most; nothing else touches its bytes. */
static bool is_private(const attending *a, uint32_t tensor, uint32_t readers)
{
    const mf_tensor *t = &a->g->tensors[tensor];
    uint32_t n = reader_count(a, tensor);
    return n <= readers && a->touched[t->storage] == n + 1 && !a->kept[t->storage] &&
           a->g->storages[t->storage].variable == MF_NONE && t->producer != MF_NONE && t->offset == 0;
}

static const mf_op *maker(const attending *a, uint32_t tensor, uint32_t *index)
{
    *index = tensor == MF_NONE ? MF_NONE : a->g->tensors[tensor].producer;
    return *index == MF_NONE || a->gone[*index] ? NULL : &a->g->ops[*index];
}

static bool add(pattern *p, uint32_t op)
{
    if (p->count == MOST_MEMBERS)
        return false;
    p->members[p->count++] = op;
    return true;
}

static bool is_member(const pattern *p, uint32_t op)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (p->members[i] == op)
            return true;
    return false;
}

static bool is_product(const mf_op *op, bool ta, bool tb)
{
    return op->kind == MF_OP_MATMUL && !op->accumulate && !op->chunked && op->when == MF_ALWAYS &&
           (op->in_count < 3 || op->in[2] == MF_NONE) && op->attr.matmul.trans_a == ta && op->attr.matmul.trans_b == tb;
}

/* A mask of ones, for what is causal alone. */
static bool is_all(const mf_graph *g, uint32_t mask)
{
    uint32_t from = g->tensors[mask].producer;
    return from != MF_NONE && g->ops[from].kind == MF_OP_FILL && g->ops[from].attr.fill.value != 0 &&
           g->tensors[mask].shape.rank == 0;
}

/* ---- forward ---- */

static bool is_keep(const mf_op *op)
{
    return op->kind == MF_OP_SELECT && op->in[1] != MF_NONE && op->in[2] == MF_NONE && op->in[0] != MF_NONE;
}

static bool note_mask(const attending *a, pattern *p, const mf_op *select)
{
    mf_attr *attr = &p->attr;
    if (p->before_count > 0 && attr->attention.masked != select->attr.select.no)
        return false;
    attr->attention.masked = select->attr.select.no;
    if (select->attr.select.causal)
        attr->attention.causal = 2;
    if (is_all(a->g, select->in[0]))
        return true;
    if (p->mask_count == MF_ATTENTION_MASKS || a->g->tensors[select->in[0]].dtype != MF_U8)
        return false;
    p->masks[p->mask_count++] = select->in[0];
    return true;
}

/* From the softmax up to the product of queries and keys. */
static bool find_scores(const attending *a, pattern *p)
{
    const mf_graph *g = a->g;
    const mf_op *softmax = &g->ops[p->softmax], *op;
    uint32_t t = softmax->in[0], at;
    p->attr.attention.causal = softmax->attr.softmax.causal;
    while (is_private(a, t, 1) && (op = maker(a, t, &at)) && is_keep(op)) {
        if (p->before_count == MOST_SELECTS || p->attr.attention.causal == 1 || !note_mask(a, p, op) || !add(p, at))
            return false;
        p->before[p->before_count++] = at;
        t = op->in[1];
    }
    op = maker(a, t, &at);
    if (!op || !is_private(a, t, 1) || !is_product(op, false, true) || !add(p, at))
        return false;
    p->scores = at;
    p->q = op->in[0];
    p->k = op->in[1];
    p->attr.attention.scale = op->attr.matmul.scale;
    return g->tensors[p->q].shape.rank == g->tensors[p->k].shape.rank;
}

static uint32_t reader_of_kind(const attending *a, uint32_t tensor, mf_op_kind kind)
{
    for (uint32_t i = a->at[tensor]; i < a->at[tensor + 1]; i++)
        if (a->g->ops[a->readers[i]].kind == kind)
            return a->readers[i];
    return MF_NONE;
}

/* The select that stood at this place in front of the softmax says the same. */
static bool same_select(const attending *a, uint32_t one, const mf_op *other, double no)
{
    const mf_op *o = &a->g->ops[one];
    return is_keep(other) && (other->in[0] == o->in[0] || (is_all(a->g, other->in[0]) && is_all(a->g, o->in[0]))) &&
           other->attr.select.causal == o->attr.select.causal && other->attr.select.no == no;
}

/* What the softmax's result goes through on its way to the values: selects that repeat those in front, then dropout. */
static bool follows(const attending *a, const pattern *p, const mf_op *op)
{
    if (p->dropout != MF_NONE)
        return false;
    /* in the order they were applied in front: the last found above was the first */
    if (p->after_count < p->before_count && same_select(a, p->before[p->before_count - 1 - p->after_count], op, 0))
        return true;
    return op->kind == MF_OP_DROPOUT && op->attr.random.shared_axes == 0;
}

/* From the softmax down to the weights that values are summed by. */
static bool find_weights(const attending *a, pattern *p)
{
    const mf_graph *g = a->g;
    uint32_t t = g->ops[p->softmax].out[0], others = p->slope != MF_NONE;
    for (;;) {
        uint32_t next = MF_NONE;
        for (uint32_t i = a->at[t]; i < a->at[t + 1] && next == MF_NONE; i++)
            if (follows(a, p, &g->ops[a->readers[i]]))
                next = a->readers[i];
        if (next == MF_NONE)
            break;
        if (!is_private(a, t, 1 + others) || !add(p, next))
            return false;
        if (g->ops[next].kind == MF_OP_DROPOUT)
            p->dropout = next;
        else
            p->after_count++;
        t = g->ops[next].out[0];
        others = 0;
    }
    p->weights = t;
    return is_private(a, t, 2 + others) && (p->after_count == 0 || p->after_count == p->before_count);
}

static bool find_products(const attending *a, pattern *p)
{
    const mf_graph *g = a->g;
    p->product = MF_NONE;
    for (uint32_t i = a->at[p->weights]; i < a->at[p->weights + 1]; i++) {
        uint32_t at = a->readers[i];
        const mf_op *op = &g->ops[at];
        if (at == p->slope)
            continue;
        if (op->in[0] == p->weights && is_product(op, false, false) && p->product == MF_NONE) {
            p->product = at;
            p->v = op->in[1];
            p->y = op->out[0];
            if (op->attr.matmul.scale != 1)
                return false;
        } else if (op->in[0] == p->weights && is_product(op, true, false) && p->grads[2] == MF_NONE) {
            p->grads[2] = at;
            p->dy = op->in[1];
            if (op->attr.matmul.scale != 1)
                return false;
        } else
            return false;
    }
    return p->product != MF_NONE && p->v != p->weights && add(p, p->product) &&
           (p->grads[2] == MF_NONE || add(p, p->grads[2])) &&
           g->tensors[p->v].shape.rank == g->tensors[p->q].shape.rank;
}

/* ---- backward ---- */

/* From softmax_grad up to dy v'. */
static bool find_slopes_above(const attending *a, pattern *p)
{
    const mf_graph *g = a->g;
    uint32_t t = g->ops[p->slope].in[0], at;
    const mf_op *op = maker(a, t, &at);
    for (uint32_t i = 0; i < p->after_count; i++) {
        /* backwards: the last applied comes first */
        if (!op || !is_private(a, t, 1) || !same_select(a, p->before[p->before_count - 1 - i], op, 0) || !add(p, at))
            return false;
        t = op->in[1];
        op = maker(a, t, &at);
    }
    if (p->dropout != MF_NONE) {
        const mf_attr *drawn = &g->ops[p->dropout].attr;
        if (!op || !is_private(a, t, 1) || op->kind != MF_OP_DROPOUT || op->attr.random.key != drawn->random.key ||
            op->attr.random.rate != drawn->random.rate || !add(p, at))
            return false;
        t = op->in[0];
        op = maker(a, t, &at);
    }
    if (!op || !is_private(a, t, 1) || !is_product(op, false, true) || op->in[1] != p->v ||
        op->attr.matmul.scale != 1 || (p->dy != MF_NONE && op->in[0] != p->dy) || !add(p, at))
        return false;
    p->d_weights = at;
    p->dy = op->in[0];
    return true;
}

/* From softmax_grad down to the gradients of queries and keys. */
static bool find_slopes_below(const attending *a, pattern *p)
{
    const mf_graph *g = a->g;
    uint32_t t = g->ops[p->slope].out[0];
    for (uint32_t i = 0; i < p->before_count; i++) {
        uint32_t at = reader_count(a, t) == 1 ? a->readers[a->at[t]] : MF_NONE;
        if (at == MF_NONE || !is_private(a, t, 1) || !same_select(a, p->before[i], &g->ops[at], 0) || !add(p, at))
            return false;
        t = g->ops[at].out[0];
    }
    if (!is_private(a, t, 2) || reader_count(a, t) == 0)
        return false;
    for (uint32_t i = a->at[t]; i < a->at[t + 1]; i++) {
        uint32_t at = a->readers[i], side;
        const mf_op *op = &g->ops[at];
        if (op->in[0] == t && is_product(op, false, false) && op->in[1] == p->k)
            side = 0;
        else if (op->in[0] == t && is_product(op, true, false) && op->in[1] == p->q)
            side = 1;
        else
            return false;
        if (p->grads[side] != MF_NONE || op->attr.matmul.scale != p->attr.attention.scale || !add(p, at))
            return false;
        p->grads[side] = at;
    }
    return true;
}

static bool find_pattern(const attending *a, uint32_t softmax, pattern *p)
{
    const mf_graph *g = a->g;
    const mf_op *op = &g->ops[softmax];
    uint32_t rank = g->tensors[op->out[0]].shape.rank;
    *p = (pattern){.softmax = softmax,
                   .dropout = MF_NONE,
                   .dy = MF_NONE,
                   .d_weights = MF_NONE,
                   .grads = {MF_NONE, MF_NONE, MF_NONE}};
    if (op->attr.softmax.log || op->attr.softmax.sparse || op->chunked || rank < 3 || rank > 4 ||
        op->attr.softmax.axis != rank - 1)
        return false;
    p->slope = reader_of_kind(a, op->out[0], MF_OP_SOFTMAX_GRAD);
    if (p->slope != MF_NONE && g->ops[p->slope].in[1] != op->out[0])
        return false;
    if (!add(p, softmax) || (p->slope != MF_NONE && !add(p, p->slope)) || !find_scores(a, p) || !find_weights(a, p) ||
        !find_products(a, p))
        return false;
    if (p->slope != MF_NONE && (!find_slopes_above(a, p) || !find_slopes_below(a, p)))
        return false;
    p->attr.attention.zeroed = p->after_count > 0;
    if (p->dropout != MF_NONE) {
        p->attr.attention.rate = g->ops[p->dropout].attr.random.rate;
        p->attr.attention.key = g->ops[p->dropout].attr.random.key;
    }
    return true;
}

/* ---- transpositions around it ---- */

static bool exchanges(const mf_op *op)
{
    const uint32_t *perm = op->attr.transpose.perm;
    return op->kind == MF_OP_TRANSPOSE && !op->accumulate && perm[0] == 0 && perm[1] == 2 && perm[2] == 1 &&
           perm[3] == 3;
}

/* The operation that made this operand for nobody else by exchanging heads and steps; MF_NONE. */
static uint32_t exchanged_from(const attending *a, const pattern *p, uint32_t tensor)
{
    uint32_t at;
    const mf_op *op = maker(a, tensor, &at);
    if (!op || !exchanges(op) || !is_private(a, tensor, 8))
        return MF_NONE;
    for (uint32_t i = a->at[tensor]; i < a->at[tensor + 1]; i++)
        if (!is_member(p, a->readers[i]))
            return MF_NONE;
    return at;
}

static uint32_t exchanged_to(const attending *a, uint32_t tensor)
{
    if (!is_private(a, tensor, 1) || reader_count(a, tensor) != 1)
        return MF_NONE;
    uint32_t at = a->readers[a->at[tensor]];
    return exchanges(&a->g->ops[at]) ? at : MF_NONE;
}

/* Puts what lies on the other side of the transpositions in the operands' place; false: some serve others too. */
static bool take_exchanges(const attending *a, pattern *p)
{
    mf_graph *g = a->g;
    if (g->tensors[p->q].shape.rank != 4)
        return false;
    bool same = p->k == p->v;
    uint32_t from[4] = {exchanged_from(a, p, p->q), exchanged_from(a, p, p->k), exchanged_from(a, p, p->v), MF_NONE};
    uint32_t to[4] = {exchanged_to(a, p->y), MF_NONE, MF_NONE, MF_NONE};
    bool good = from[0] != MF_NONE && from[1] != MF_NONE && from[2] != MF_NONE && to[0] != MF_NONE;
    if (p->dy != MF_NONE)
        good = good && (from[3] = exchanged_from(a, p, p->dy)) != MF_NONE;
    for (uint32_t i = 0; i < 3 && good; i++)
        if (p->grads[i] != MF_NONE)
            good = (to[1 + i] = exchanged_to(a, g->ops[p->grads[i]].out[0])) != MF_NONE;
    if (!good || p->count + 8 > MOST_MEMBERS || same || p->q == p->k)
        return false;
    p->q = g->ops[from[0]].in[0];
    p->k = g->ops[from[1]].in[0];
    p->v = g->ops[from[2]].in[0];
    p->y = g->ops[to[0]].out[0];
    if (p->dy != MF_NONE)
        p->dy = g->ops[from[3]].in[0];
    for (uint32_t i = 0; i < 4; i++) {
        if (from[i] != MF_NONE)
            add(p, from[i]);
        if (to[i] != MF_NONE)
            add(p, to[i]);
        if (i > 0 && to[i] != MF_NONE)
            p->grads[i - 1] = to[i]; /* for its output */
    }
    return true;
}

/* ---- the two operations ---- */

static bool fill_op(mf_graph *g, uint32_t at, mf_op_kind kind, const pattern *p, uint32_t in_count, const uint32_t *in,
                    uint32_t out_count, const uint32_t *out)
{
    mf_op *op = &g->ops[at];
    uint32_t *ids = MF_NEW_ARRAY(&g->arena, uint32_t, in_count + out_count);
    if (!ids)
        return false;
    for (uint32_t i = 0; i < in_count; i++)
        ids[i] = in[i];
    for (uint32_t i = 0; i < out_count; i++)
        ids[in_count + i] = out[i];
    *op = (mf_op){.kind = kind,
                  .phase = op->phase,
                  .when = op->when,
                  .layer = op->layer,
                  .in = ids,
                  .out = ids + in_count,
                  .in_count = in_count,
                  .out_count = out_count,
                  .attr = p->attr};
    return true;
}

/* The tensor of the softmax becomes that of the rows' sums. */
static void make_lse(mf_graph *g, uint32_t tensor, const mf_attention_shape *s)
{
    mf_tensor *t = &g->tensors[tensor];
    t->dtype = t->dtype == MF_F64 ? MF_F64 : MF_F32;
    t->shape = mf_shape_make(3, (int64_t[]){s->batch, s->heads, s->queries});
    g->storages[t->storage].bytes = mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
}

static bool rewrite(attending *a, pattern *p)
{
    mf_graph *g = a->g;
    uint32_t d_values = p->grads[2], d_weights = p->d_weights, y_at = p->product;
    p->attr.attention.steps_first = take_exchanges(a, p);
    uint32_t back = d_values < d_weights ? d_values : d_weights; /* MF_NONE is the largest */
    uint32_t lse = g->ops[p->softmax].out[0];
    uint32_t m[MF_ATTENTION_MASKS] = {MF_NONE, MF_NONE, MF_NONE};
    for (uint32_t i = 0; i < p->mask_count; i++)
        m[i] = p->masks[i];
    mf_attention_shape shape;
    uint32_t in[6] = {p->q, p->k, p->v, m[0], m[1], m[2]}, out[2] = {p->y, back == MF_NONE ? MF_NONE : lse};
    mf_op probe = {.kind = MF_OP_ATTENTION, .in = in, .in_count = 6, .attr = p->attr};
    if (!mf_attention_shape_of(g, &probe, &shape))
        return true;
    for (uint32_t i = 0; i < p->mask_count; i++)
        if (g->tensors[m[i]].shape.rank != g->tensors[p->q].shape.rank)
            return true;
    if (!a->taker->attends(a->taker->ctx, g, &probe))
        return true;
    uint32_t slopes[3] = {MF_NONE, MF_NONE, MF_NONE};
    for (uint32_t i = 0; i < 3; i++)
        slopes[i] = p->grads[i] == MF_NONE ? MF_NONE : g->ops[p->grads[i]].out[0];
    if (!fill_op(g, y_at, MF_OP_ATTENTION, p, 6, in, 2, out))
        return false;
    uint32_t in_back[9] = {p->dy, p->q, p->k, p->v, p->y, lse, m[0], m[1], m[2]};
    if (back != MF_NONE && !fill_op(g, back, MF_OP_ATTENTION_GRAD, p, 9, in_back, 3, slopes))
        return false;
    make_lse(g, lse, &shape);
    g->tensors[lse].producer = g->tensors[p->y].producer = y_at;
    for (uint32_t i = 0; i < 3; i++)
        if (slopes[i] != MF_NONE)
            g->tensors[slopes[i]].producer = back;
    for (uint32_t i = 0; i < p->count; i++)
        a->gone[p->members[i]] = p->members[i] != y_at && p->members[i] != back;
    return true;
}

/* Masks of ones that nobody reads any more. */
static void drop_fills(const attending *a)
{
    const mf_graph *g = a->g;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (op->kind != MF_OP_FILL || a->gone[i] || op->when != MF_ALWAYS || !is_private(a, op->out[0], UINT32_MAX) ||
            reader_count(a, op->out[0]) == 0)
            continue;
        bool read = false;
        for (uint32_t k = a->at[op->out[0]]; k < a->at[op->out[0] + 1]; k++)
            read |= !a->gone[a->readers[k]];
        a->gone[i] = !read;
    }
}

bool mf_graph_attend(mf_graph *g, const mf_group_taker *taker, uint8_t *gone)
{
    attending a = {.g = g, .taker = taker, .gone = gone};
    bool any = false;
    for (uint32_t i = 0; i < g->op_count && !any; i++)
        any = g->ops[i].kind == MF_OP_SOFTMAX;
    if (!any)
        return true;
    if (!make_uses(&a))
        return false;
    for (uint32_t i = 0; i < g->op_count; i++) {
        pattern p;
        if (g->ops[i].kind == MF_OP_SOFTMAX && !gone[i] && find_pattern(&a, i, &p) && !rewrite(&a, &p))
            return false;
    }
    drop_fills(&a);
    return true;
}
