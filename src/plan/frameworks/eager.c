/* eager.c: the engine of eager.h: who holds what, in which order. The scripts are in eager_ops.c and eager_loss.c. */
#include "plan/frameworks/eager.h"

#include "base/error.h"

#include <string.h>

uint64_t mf_eager_bytes(const mf_eager *e, uint32_t tensor)
{
    const mf_tensor *t = &e->graph->tensors[tensor];
    return mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
}

uint32_t mf_eager_take(mf_eager *e, uint64_t bytes)
{
    return mf_tape_take(e->tape, bytes, MEMFIT_KIND_ACTIVATIONS, e->graph->ops[e->op].layer);
}

void mf_eager_touch(mf_eager *e, uint64_t bytes)
{
    mf_tape_drop(e->tape, mf_eager_take(e, bytes));
}

void mf_eager_workspace(mf_eager *e, uint64_t bytes)
{
    if (bytes > e->workspace_most)
        e->workspace_most = bytes;
    mf_tape_drop(e->tape, mf_tape_take(e->tape, bytes, MEMFIT_KIND_WORKSPACE, e->graph->ops[e->op].layer));
}

void mf_eager_use_blas(mf_eager *e, bool backward)
{
    if (e->blas_used[backward])
        return;
    e->blas_used[backward] = true;
    e->workspace_most += e->blas_bytes;
    mf_tape_take(e->tape, e->blas_bytes, MEMFIT_KIND_WORKSPACE, e->graph->ops[e->op].layer);
}

void mf_eager_save(mf_eager *e, uint32_t block)
{
    mf_eager_node *node = &e->nodes[e->op];
    if (block == MF_NONE || node->saved_count == MF_EAGER_SAVED)
        return;
    mf_tape_hold(e->tape, block);
    node->saved[node->saved_count++] = block;
}

void mf_eager_set(mf_eager *e, uint32_t tensor, uint32_t block)
{
    e->value[tensor] = block;
}

void mf_eager_give(mf_eager *e, uint32_t tensor, uint32_t block)
{
    const mf_tensor *t = &e->graph->tensors[tensor];
    if (!e->needs[tensor]) {
        mf_tape_drop(e->tape, block);
        return;
    }
    uint32_t *grad = t->variable != MF_NONE ? &e->grad_of[t->variable] : &e->grad[tensor];
    if (*grad != MF_NONE) { /* into one that nobody else holds; PyTorch looks at the first before the second */
        const mf_tape_block *blocks = e->tape->blocks;
        bool into_first = block == MF_NONE || blocks[*grad].holders == 1;
        bool into_second = !into_first && blocks[block].holders == 1;
        uint32_t sum = into_first ? *grad : into_second ? block : mf_eager_take(e, mf_eager_bytes(e, tensor));
        if (!into_first)
            mf_tape_drop(e->tape, *grad);
        if (sum != block)
            mf_tape_drop(e->tape, block);
        block = sum;
    }
    if (t->variable != MF_NONE && block != MF_NONE)
        e->tape->blocks[block].kind = MEMFIT_KIND_GRADIENTS;
    *grad = block;
}

void mf_eager_give_new(mf_eager *e, uint32_t tensor)
{
    if (tensor != MF_NONE && e->needs[tensor])
        mf_eager_give(e, tensor, mf_eager_take(e, mf_eager_bytes(e, tensor)));
}

void mf_eager_pass(mf_eager *e, uint32_t from, uint32_t to)
{
    if (to == MF_NONE || !e->needs[to])
        return;
    mf_tape_hold(e->tape, e->grad[from]);
    mf_eager_give(e, to, e->grad[from]);
}

/* ---- what is known before ---- */

static bool floats(mf_dtype dtype)
{
    return dtype == MF_F32 || dtype == MF_F16 || dtype == MF_BF16 || dtype == MF_F64;
}

static bool in_loss(const mf_op *op)
{
    return op->phase == MF_LOSS_PHASE && op->kind != MF_OP_FILL && op->kind != MF_OP_METRIC && op->kind != MF_OP_INPUT;
}

static bool is_forward(const mf_op *op)
{
    return op->phase == MF_FORWARD || in_loss(op);
}

/* Scores, softmax and the product with the values, all of one layer: torch runs them as one operation unless there is
 * dropout between. `p` is the softmax. */
static void find_attention(mf_eager *e, const uint32_t *readers, uint32_t p)
{
    const mf_graph *g = e->graph;
    const mf_op *softmax = &g->ops[p];
    uint32_t in = softmax->in[0], before = g->tensors[in].producer, out = softmax->out[0];
    if (before == MF_NONE || readers[out] != 1)
        return;
    while (before != MF_NONE && (g->ops[before].kind == MF_OP_SELECT || g->ops[before].kind == MF_OP_VIEW)) {
        const mf_op *o = &g->ops[before];
        uint32_t from = o->kind == MF_OP_SELECT ? o->in[1] : o->in[0];
        before = from == MF_NONE ? MF_NONE : g->tensors[from].producer;
    }
    uint32_t after = e->last_use[out];
    if (before == MF_NONE || g->ops[before].kind != MF_OP_MATMUL || g->ops[after].kind != MF_OP_MATMUL ||
        g->ops[after].in[0] != out || g->ops[before].layer != softmax->layer || g->ops[after].layer != softmax->layer ||
        g->tensors[out].shape.rank != 4)
        return;
    for (uint32_t i = before; i < after; i++)
        e->inside[i] |= g->ops[i].layer == softmax->layer && g->tensors[g->ops[i].out[0]].shape.rank == 4 &&
                        (g->ops[i].kind == MF_OP_MATMUL || g->ops[i].kind == MF_OP_SELECT || i == p);
    e->nodes[after].kept = (uint64_t)before + 1;
    e->last_use[g->ops[before].in[0]] = e->last_use[g->ops[before].in[1]] = after;
}

/* A model's last sigmoid or softmax has what it was made of as its attribute _keras_logits: to the end of the step. */
static void keep_logits(mf_eager *e, uint32_t loss)
{
    const mf_graph *g = e->graph;
    uint32_t maker = g->tensors[g->ops[loss].in[0]].producer;
    if (maker != MF_NONE && g->ops[maker].kind == MF_OP_CAST)
        maker = g->tensors[g->ops[maker].in[0]].producer;
    if (maker == MF_NONE)
        return;
    const mf_op *last = &g->ops[maker];
    bool sigmoid = last->kind == MF_OP_UNARY && last->attr.unary.function == MF_UNARY_SIGMOID;
    if (sigmoid || last->kind == MF_OP_SOFTMAX)
        e->last_use[last->in[0]] = loss;
}

static void look(mf_eager *e, uint32_t *readers)
{
    const mf_graph *g = e->graph;
    for (uint32_t t = 0; t < g->tensor_count; t++) {
        e->value[t] = e->grad[t] = MF_NONE;
        uint32_t v = g->tensors[t].variable;
        e->needs[t] = v != MF_NONE && g->variables[v].role == MF_VAR_PARAMETER && g->variables[v].trainable;
        e->last_use[t] = g->tensors[t].producer;
    }
    for (uint32_t v = 0; v < g->variable_count; v++)
        e->grad_of[v] = MF_NONE;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (!is_forward(op))
            continue;
        bool flows = false;
        for (uint32_t k = 0; k < op->in_count; k++) {
            uint32_t t = op->in[k];
            if (t == MF_NONE)
                continue;
            flows |= e->needs[t];
            e->last_use[t] = i;
            readers[t]++;
            uint32_t maker = g->tensors[t].producer;
            e->crosses[t] |= maker != MF_NONE && g->ops[maker].layer != op->layer;
        }
        for (uint32_t k = 0; k < op->out_count; k++)
            if (op->out[k] != MF_NONE && g->tensors[op->out[k]].variable == MF_NONE)
                e->needs[op->out[k]] = flows && floats(g->tensors[op->out[k]].dtype) && op->kind != MF_OP_COMPARE;
    }
    for (uint32_t i = 0; i < g->op_count; i++) {
        if (g->ops[i].kind == MF_OP_LOSS)
            keep_logits(e, i);
        if (is_forward(&g->ops[i]) && g->ops[i].kind == MF_OP_SOFTMAX)
            find_attention(e, readers, i);
        else if (is_forward(&g->ops[i]))
            mf_eager_find_recurrent(e, i);
    }
}

/* ---- a step ---- */

static void let_go(mf_eager *e, uint32_t tensor)
{
    mf_tape_drop(e->tape, e->value[tensor]);
    e->value[tensor] = MF_NONE;
}

static void clear_gradients(mf_eager *e)
{
    for (uint32_t v = 0; v < e->graph->variable_count; v++) {
        mf_tape_drop(e->tape, e->grad_of[v]);
        e->grad_of[v] = MF_NONE;
    }
}

static void end_forward(mf_eager *e)
{
    const mf_graph *g = e->graph;
    for (uint32_t t = 0; t < g->tensor_count; t++) {
        uint32_t maker = g->tensors[t].producer;
        bool kept = maker != MF_NONE && g->ops[maker].kind == MF_OP_INPUT;
        uint32_t reader = e->last_use[t];
        kept |= reader != MF_NONE && g->ops[reader].phase == MF_LOSS_PHASE;
        if (!kept && e->crosses[t])
            let_go(e, t);
    }
}

/* A layer's own variables go with its call. */
static void end_layer(mf_eager *e)
{
    for (int i = 0; i < 3; i++) {
        mf_tape_drop(e->tape, e->heads[i]);
        e->heads[i] = MF_NONE;
    }
}

static void forward(mf_eager *e, bool loss)
{
    const mf_graph *g = e->graph;
    uint32_t layer = MF_NONE;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (!is_forward(op) || in_loss(op) != loss)
            continue;
        e->op = i;
        e->nodes[i].saved_count = 0;
        if (op->layer != layer) {
            end_layer(e);
            mf_eager_garbage_layer(e);
        }
        layer = op->layer;
        if (op->kind == MF_OP_LOSS)
            mf_eager_loss_forward(e, op);
        else if (!e->inside[i])
            mf_eager_forward(e, op);
        if (!loss)
            mf_eager_garbage_inputs(e, op);
        for (uint32_t k = 0; k < op->in_count + op->out_count; k++) {
            uint32_t t = k < op->in_count ? op->in[k] : op->out[k - op->in_count];
            if (t != MF_NONE && e->last_use[t] == i && !e->crosses[t] && g->tensors[t].variable == MF_NONE &&
                (g->tensors[t].producer == MF_NONE || g->ops[g->tensors[t].producer].kind != MF_OP_INPUT))
                let_go(e, t);
        }
    }
    end_layer(e);
}

static bool has_gradient(const mf_eager *e, const mf_op *op)
{
    for (uint32_t k = 0; k < op->out_count; k++)
        if (op->out[k] != MF_NONE && e->grad[op->out[k]] != MF_NONE)
            return true;
    return false;
}

static void backward(mf_eager *e)
{
    const mf_graph *g = e->graph;
    for (uint32_t i = g->op_count; i-- > 0;) {
        const mf_op *op = &g->ops[i];
        if (!is_forward(op))
            continue;
        e->op = i;
        mf_eager_node *node = &e->nodes[i];
        if (op->kind == MF_OP_LOSS)
            mf_eager_loss_backward(e, op);
        else if (!e->inside[i] && has_gradient(e, op))
            mf_eager_backward(e, op);
        for (uint32_t k = 0; k < op->out_count; k++) {
            if (op->out[k] == MF_NONE)
                continue;
            mf_tape_drop(e->tape, e->grad[op->out[k]]);
            e->grad[op->out[k]] = MF_NONE;
        }
        for (uint32_t k = 0; k < node->saved_count; k++)
            mf_tape_drop(e->tape, node->saved[k]);
        node->saved_count = 0;
    }
}

static void step(mf_eager *e)
{
    const mf_graph *g = e->graph;
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_INPUT && g->ops[i].phase == MF_LOSS_PHASE) /* what is to be predicted */
            e->value[g->ops[i].out[0]] = mf_eager_take(e, mf_eager_bytes(e, g->ops[i].out[0]));
    forward(e, false);
    end_forward(e);
    clear_gradients(e);
    forward(e, true);
    backward(e);
    mf_eager_update(e);
    mf_eager_garbage_step(e);
    mf_tape_drop(e->tape, e->prediction);
    e->prediction = MF_NONE;
    for (uint32_t t = 0; t < g->tensor_count; t++)
        if (g->tensors[t].variable == MF_NONE)
            let_go(e, t);
}

/* A long training is one in which the collector has looked at the old once, and at most this many steps. LATE is no phase:
 * everything is found as late as it can be. */
enum { FEW_OBJECTS = 2800, PHASES = 7, PHASE = 120, LONG_OBJECTS = 9240, LONG_STEPS = 64, LATE = 8400 };

static void take_variables(mf_eager *e)
{
    const mf_graph *g = e->graph;
    for (uint32_t v = 0; v < g->variable_count; v++) {
        const mf_variable *x = &g->variables[v];
        if (x->role == MF_VAR_GRADIENT || x->role == MF_VAR_LOSS)
            continue;
        uint32_t block = mf_tape_take(e->tape, mf_shape_count(&x->shape) * mf_dtype_bytes(x->dtype), x->kind, x->layer);
        if (x->tensor != MF_NONE)
            e->value[x->tensor] = block;
    }
}

/* A view of a variable is that variable. */
static void share_needs(mf_eager *e)
{
    const mf_graph *g = e->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (op->kind == MF_OP_VIEW && is_forward(op))
            e->needs[op->out[0]] = e->needs[op->in[0]];
    }
}

/* With the collector `phase` objects nearer to its next turn; a long training, or its first steps. */
static memfit_status run_from(const memfit_host *host, const mf_graph *g, uint64_t blas_bytes, uint64_t phase,
                              bool training, mf_tape *tape, uint64_t *workspace_bytes, bool *few, memfit_error *err)
{
    mf_eager e = {.graph = g,
                  .tape = tape,
                  .prediction = MF_NONE,
                  .blas_bytes = blas_bytes,
                  .heads = {MF_NONE, MF_NONE, MF_NONE},
                  .garbage = {.objects = phase, .late = phase == LATE}};
    mf_arena_init(&e.scratch, host);
    uint32_t n = g->tensor_count + 1;
    uint32_t *readers = MF_NEW_ARRAY(&e.scratch, uint32_t, n);
    e.value = MF_NEW_ARRAY(&e.scratch, uint32_t, n);
    e.grad = MF_NEW_ARRAY(&e.scratch, uint32_t, n);
    e.grad_of = MF_NEW_ARRAY(&e.scratch, uint32_t, g->variable_count + 1);
    e.last_use = MF_NEW_ARRAY(&e.scratch, uint32_t, n);
    e.crosses = MF_NEW_ARRAY(&e.scratch, uint8_t, n);
    e.needs = MF_NEW_ARRAY(&e.scratch, uint8_t, n);
    e.first = MF_NEW_ARRAY(&e.scratch, uint8_t, n);
    e.inside = MF_NEW_ARRAY(&e.scratch, uint8_t, g->op_count + 1);
    e.nodes = MF_NEW_ARRAY(&e.scratch, mf_eager_node, g->op_count + 1);
    bool ok = readers && e.value && e.grad && e.grad_of && e.last_use && e.crosses && e.needs && e.first && e.inside &&
              e.nodes;
    if (ok) {
        e.probabilities = !g->loss_name || !strstr(g->loss_name, "logits");
        look(&e, readers);
        share_needs(&e);
        take_variables(&e);
        step(&e);
        step(&e);
        *few = e.garbage.objects < phase + FEW_OBJECTS;
        uint32_t steps = !*few ? 0 : training ? LONG_STEPS : 1; /* old inputs gather over some steps */
        for (uint32_t i = 0; i < steps && e.garbage.objects < phase + LONG_OBJECTS; i++)
            step(&e);
        *workspace_bytes = e.workspace_most;
    }
    mf_arena_destroy(&e.scratch);
    return ok && !tape->failed ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to follow a step");
}

/* Where the collector has a turn in a step or less, it matters when: of several phases the middle one is taken for the
 * first steps. In a long training all of them come. */
memfit_status mf_eager_run(const memfit_host *host, const mf_graph *g, uint64_t blas_bytes, mf_tape *tape,
                           mf_tape *training, uint64_t *workspace_bytes, memfit_error *err)
{
    bool few = false;
    uint64_t peaks[PHASES], chosen = 0;
    memfit_status status = run_from(host, g, blas_bytes, LATE, false, tape, workspace_bytes, &few, err);
    if (status != MEMFIT_OK || !few)
        return status;
    for (uint32_t i = 0; i < PHASES && status == MEMFIT_OK; i++) {
        mf_tape other;
        mf_tape_init(&other, host, tape->rounding);
        status = run_from(host, g, blas_bytes, i * PHASE, false, &other, workspace_bytes, &few, err);
        peaks[i] = other.peak_bytes;
        mf_tape_destroy(&other);
    }
    for (uint32_t i = 0; i < PHASES && status == MEMFIT_OK; i++) {
        uint32_t below = 0;
        for (uint32_t k = 0; k < PHASES; k++)
            below += peaks[k] < peaks[i] || (peaks[k] == peaks[i] && k < i);
        if (below == PHASES / 2)
            chosen = i * PHASE;
    }
    if (status != MEMFIT_OK)
        return status;
    uint64_t rounding = tape->rounding;
    mf_tape_destroy(tape);
    mf_tape_init(tape, host, rounding);
    status = run_from(host, g, blas_bytes, chosen, false, tape, workspace_bytes, &few, err);
    if (status == MEMFIT_OK)
        status = run_from(host, g, blas_bytes, 0, true, training, workspace_bytes, &few, err);
    return status;
}
