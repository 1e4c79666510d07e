/* xla.c: see xla.h. How long each stored tensor lives, and when most of them do. */
#include "plan/frameworks/xla.h"

#include "base/error.h"
#include "plan/frameworks/xla_step.h"

static void count_readers(mf_xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        if (g->ops[i].phase == MF_FORWARD)
            s->turn = i;
        if (g->ops[i].kind == MF_OP_CONV_GRAD_DATA && g->ops[i].phase == MF_FORWARD)
            s->transposed[g->ops[i].layer] = i + 1;
        if (g->ops[i].kind == MF_OP_DROPOUT && g->ops[i].phase == MF_BACKWARD)
            s->dropped[g->ops[i].layer] = i + 1;
        s->parts[i] = mf_xla_parts(g, &g->ops[i]);
        for (uint32_t k = 0; k < g->ops[i].in_count; k++)
            if (g->ops[i].in[k] != MF_NONE) {
                s->readers[g->ops[i].in[k]]++;
                s->forward_readers[g->ops[i].in[k]] += g->ops[i].phase == MF_FORWARD;
                s->reader[g->ops[i].in[k]] = i;
                if (g->ops[i].phase == MF_BACKWARD && g->ops[i].kind != MF_OP_UPDATE)
                    s->backward_reader[g->ops[i].in[k]] = i;
            }
    }
}

/* A kernel's gradient, which its update alone reads. */
static bool updates(const mf_xla_step *s, const mf_op *op)
{
    return op->phase == MF_BACKWARD && (op->kind == MF_OP_MATMUL || op->kind == MF_OP_CONV_GRAD_WEIGHTS) &&
           s->readers[op->out[0]] == 1 && s->graph->ops[s->reader[op->out[0]]].kind == MF_OP_UPDATE;
}

/* A kernel's gradient that is larger than what it is made of waits until backward has ended, when memory is free again
 * (XLA orders operations by what they free); its update follows at once. */
static bool is_large(const mf_xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    uint64_t made_of = 0;
    for (uint32_t k = 0; k < op->in_count; k++)
        made_of += op->in[k] == MF_NONE ? 0 : mf_xla_bytes(g, op->in[k]);
    return updates(s, op) && mf_xla_bytes(g, op->out[0]) > made_of;
}

/* So do those whose operands are padded (xla_split.c): the copies are more than the next gradient of an input. But not
 * where a larger one comes later, for which they then make room. All of them wait, or none. */
static void find_waiting(mf_xla_step *s)
{
    const mf_graph *g = s->graph;
    uint64_t later = 0;
    bool all = true, any = false;
    for (uint32_t i = g->op_count; i-- > 0;) {
        const mf_op *op = &g->ops[i];
        s->waits[i] = is_large(s, op);
        bool padded = updates(s, op) && mf_xla_padding(g, op, s->parts[i]);
        uint64_t larger = padded ? mf_xla_bytes(g, op->in[0]) : 0;
        if (padded && mf_xla_bytes(g, op->in[1]) > larger)
            larger = mf_xla_bytes(g, op->in[1]);
        all = all && (!padded || larger >= later);
        any |= padded && later && mf_xla_bytes(g, op->in[1]) >= later;
        bool sends_back = op->phase == MF_BACKWARD && mf_xla_heavy(op) && op->out[0] != MF_NONE && !updates(s, op);
        if (sends_back && mf_xla_bytes(g, op->out[0]) > later)
            later = mf_xla_bytes(g, op->out[0]);
    }
    for (uint32_t i = 0; all && any && i < g->op_count; i++)
        s->waits[i] |= updates(s, &g->ops[i]) && mf_xla_padding(g, &g->ops[i], s->parts[i]) != 0;
}

/* Operation `at` needs the stored tensors that t is made of. */
static void need(mf_xla_step *s, uint32_t t, uint32_t at)
{
    const mf_graph *g = s->graph;
    uint32_t depth = 0;
    s->stack[depth++] = t;
    while (depth) {
        t = s->stack[--depth];
        if (s->mark[t] == at + 1)
            continue;
        s->mark[t] = at + 1;
        uint32_t storage = g->tensors[t].storage, maker = g->tensors[t].producer;
        if ((s->stored[t] && (at <= s->turn || !s->again[t])) || maker == MF_NONE) {
            if (s->last[storage] == MF_NONE || s->last[storage] < at)
                s->last[storage] = at;
            continue;
        }
        const mf_op *op = &g->ops[maker];
        for (uint32_t k = 0; k < op->in_count; k++) {
            uint32_t x = op->in[k];
            if (k == 1 && op->kind == MF_OP_UNARY_GRAD && op->attr.unary.from_output &&
                g->tensors[x].producer != MF_NONE)
                x = g->ops[g->tensors[x].producer].in[0];
            if (x != MF_NONE)
                s->stack[depth++] = x;
        }
    }
}

/* The same, and t itself is there at `now` where it is made again for it. */
static void read(mf_xla_step *s, uint32_t t, uint32_t now, uint32_t at)
{
    need(s, t, at);
    if (now > s->turn && s->again[t])
        mf_xla_hold(s, mf_xla_bytes(s->graph, t), now, now);
}

/* What a product pads (xla_split.c) is computed with the zeros behind it. What forward stored for a product of its own is
 * a formula there, where it was made in another shape than the product reads: XLA moves the change of shape before the
 * formula, so the two no longer look alike. */
static uint32_t padded_formula(const mf_xla_step *s, uint32_t at, uint32_t t)
{
    const mf_graph *g = s->graph;
    uint32_t view = g->tensors[t].producer;
    if (at <= s->turn || view == MF_NONE || g->ops[view].kind != MF_OP_VIEW ||
        !mf_xla_padding(g, &g->ops[at], s->parts[at]))
        return MF_NONE;
    uint32_t maker = g->tensors[g->ops[view].in[0]].producer;
    return maker != MF_NONE && (g->ops[maker].kind == MF_OP_UNARY || g->ops[maker].kind == MF_OP_LAYER_NORM) ? maker
                                                                                                             : MF_NONE;
}

static void read_operand(mf_xla_step *s, uint32_t t, uint32_t now, uint32_t at)
{
    uint32_t maker = padded_formula(s, now, t);
    if (maker == MF_NONE) {
        read(s, t, now, at);
        return;
    }
    for (uint32_t k = 0; k < s->graph->ops[maker].in_count; k++)
        if (s->graph->ops[maker].in[k] != MF_NONE)
            need(s, s->graph->ops[maker].in[k], at);
}

static void live(mf_xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        bool virtual = op->out_count == 1 && op->out[0] != MF_NONE && !s->stored[op->out[0]];
        bool works = (mf_xla_heavy(op) && !virtual) || mf_xla_reduces(op) || op->kind == MF_OP_UPDATE;
        for (uint32_t k = 0; k < op->out_count; k++)
            works |= op->out[k] != MF_NONE && s->stored[op->out[k]];
        for (uint32_t k = 0; works && op->kind != MF_OP_VIEW && k < op->in_count; k++)
            if (op->in[k] != MF_NONE)
                read_operand(s, op->in[k], i, s->waits[i] ? g->op_count - 1 : i);
        /* max pooling looks at its input again, and ReLU's slope is that of its input */
        bool pooling = op->kind == MF_OP_POOL_MAX_GRAD,
             slope = op->kind == MF_OP_UNARY_GRAD && op->attr.unary.from_output;
        uint32_t maker = pooling || slope ? g->tensors[op->in[1]].producer : MF_NONE;
        if (works && maker != MF_NONE)
            read(s, g->ops[maker].in[0], i, i);
    }
}

static void list_dying(mf_xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->storage_count; i++)
        if (s->last[i] != MF_NONE && g->storages[i].variable == MF_NONE) {
            s->dying_too[i] = s->dying[s->last[i]];
            s->dying[s->last[i]] = i + 1;
        }
}

/* Pointwise work writes over what it reads last, where that has its size. */
static bool overwrites(const mf_xla_step *s, const mf_op *op, uint32_t at, uint64_t bytes)
{
    const mf_graph *g = s->graph;
    if (op->kind != MF_OP_UNARY && op->kind != MF_OP_UNARY_GRAD && op->kind != MF_OP_BINARY &&
        op->kind != MF_OP_SUM_N && op->kind != MF_OP_DROPOUT)
        return false;
    for (uint32_t i = s->dying[at]; i; i = s->dying_too[i - 1])
        if ((g->storages[i - 1].bytes + 255) / 256 * 256 == bytes && g->tensors[op->out[0]].storage != i - 1)
            return true;
    return false;
}

/* They are then scattered into zeros that were there all the time. */
static bool has_zeros(const mf_xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    uint32_t maker = op->kind == MF_OP_POOL_MAX_GRAD ? g->tensors[op->in[1]].producer : MF_NONE;
    return maker != MF_NONE && mf_xla_pools_relu(s, &g->ops[maker]);
}

/* What waits is made from the last to the first; each gives its operands free. Returned is the most that there is beside
 * what is left of backward. */
static uint64_t at_the_end(const mf_xla_step *s, const mf_xla_card *card, uint64_t most)
{
    const mf_graph *g = s->graph;
    uint64_t freed = 0;
    for (uint32_t i = g->op_count; i-- > 0;) {
        const mf_op *op = &g->ops[i];
        if (!s->waits[i])
            continue;
        bool blas = mf_xla_calls_blas(g, op);
        uint64_t n = mf_xla_keeps_parts(s, i) ? mf_xla_parts_bytes(s, i) : mf_xla_bytes(g, op->out[0]);
        n += (blas ? card->blas_bytes : 0) + mf_xla_split_bytes(s, i, blas ? card->blas_bytes : 0);
        most = n > freed && n - freed > most ? n - freed : most;
        for (uint32_t k = 0; k < 2; k++)
            if (g->tensors[op->in[k]].producer != MF_NONE && g->ops[g->tensors[op->in[k]].producer].kind != MF_OP_INPUT)
                freed += mf_xla_bytes(g, op->in[k]);
    }
    return most;
}

static uint64_t peak(mf_xla_step *s, const mf_xla_card *card, mf_xla_memory *memory)
{
    const mf_graph *g = s->graph;
    uint64_t afterwards = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        uint64_t later = mf_xla_beside(s, i, card, memory);
        afterwards = later > afterwards ? later : afterwards;
        for (uint32_t k = 0; k < op->out_count; k++) {
            uint32_t t = op->out[k];
            if (t == MF_NONE || !s->stored[t] || op->kind == MF_OP_VIEW || g->tensors[t].producer != i ||
                g->storages[g->tensors[t].storage].variable != MF_NONE)
                continue;
            uint32_t storage = g->tensors[t].storage, last = s->last[storage];
            uint64_t n = mf_xla_keeps_parts(s, i) ? mf_xla_parts_bytes(s, i) : mf_xla_bytes(g, t);
            n = (n + 255) / 256 * 256;
            if (op->kind == MF_OP_INPUT) {
                memory->input_bytes += n;
                continue;
            }
            if (s->waits[i])
                continue;
            if (has_zeros(s, op) && !s->recomputes)
                continue;
            if (overwrites(s, op, i, n) && last != MF_NONE && last > i)
                mf_xla_hold(s, n, i + 1, last);
            else
                mf_xla_hold(s, n, i, last == MF_NONE ? i : last);
        }
    }
    int64_t now = 0, most = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        now += s->change[i];
        if (now > most)
            most = now;
    }
    afterwards = at_the_end(s, card, afterwards);
    int64_t end = now + (int64_t)afterwards;
    return (uint64_t)(end > most ? end : most);
}

memfit_status mf_xla_run(const memfit_host *host, const mf_graph *g, const mf_xla_card *card, mf_xla_memory *memory,
                         memfit_error *err)
{
    mf_xla_step s = {.graph = g, .recomputes = card->recomputes};
    mf_arena_init(&s.scratch, host);
    s.stored = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.again = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.readers = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.forward_readers = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.backward_reader = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.transposed = MF_NEW_ARRAY(&s.scratch, uint32_t, g->layer_count + 1);
    s.dropped = MF_NEW_ARRAY(&s.scratch, uint32_t, g->layer_count + 1);
    s.called = MF_NEW_ARRAY(&s.scratch, uint8_t, g->layer_count + 1);
    s.parts = MF_NEW_ARRAY(&s.scratch, uint32_t, g->op_count + 1);
    s.waits = MF_NEW_ARRAY(&s.scratch, uint8_t, g->op_count + 1);
    s.reader = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.heavy_reader = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.convolved = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.summed = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.dying = MF_NEW_ARRAY(&s.scratch, uint32_t, g->op_count + 2);
    s.dying_too = MF_NEW_ARRAY(&s.scratch, uint32_t, g->storage_count + 1);
    s.mark = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    size_t edges = 1;
    for (uint32_t i = 0; i < g->op_count; i++)
        edges += g->ops[i].in_count;
    s.stack = MF_NEW_ARRAY(&s.scratch, uint32_t, edges + 1);
    s.last = MF_NEW_ARRAY(&s.scratch, uint32_t, g->storage_count + 1);
    s.change = MF_NEW_ARRAY(&s.scratch, int64_t, g->op_count + 2);
    bool ok = s.stored && s.again && s.readers && s.forward_readers && s.backward_reader && s.transposed && s.dropped &&
              s.called && s.parts && s.waits && s.reader && s.heavy_reader && s.convolved && s.summed && s.dying &&
              s.dying_too && s.mark && s.stack && s.last && s.change;
    *memory = (mf_xla_memory){0};
    if (ok) {
        for (uint32_t i = 0; i < g->storage_count; i++)
            s.last[i] = MF_NONE;
        for (uint32_t v = 0; v < g->variable_count; v++) {
            const mf_variable *x = &g->variables[v];
            if (x->role != MF_VAR_GRADIENT && x->role != MF_VAR_LOSS)
                memory->variable_bytes += (mf_shape_count(&x->shape) * mf_dtype_bytes(x->dtype) + 255) / 256 * 256;
        }
        count_readers(&s);
        mf_xla_decide(&s, card);
        find_waiting(&s);
        live(&s);
        list_dying(&s);
        memory->temp_bytes = peak(&s, card, memory);
    }
    mf_arena_destroy(&s.scratch);
    return ok ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to follow a step");
}
