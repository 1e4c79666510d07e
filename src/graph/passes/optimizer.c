/*
 * optimizer.c: the second half of a training step.
 *
 *     gradient final -> [regularize] -> [unscale, check finite] -> [clip] -> update -> [average] -> [constraint]
 *
 * A parameter's update comes right after the backward part of its first reader in the forward order: by then its
 * gradient is final and nobody reads the parameter any more, so gradients are short-lived. Under global-norm clipping,
 * loss scaling or accumulation over pieces every update waits for the end of the backward pass.
 */
#include "graph/passes/optimizer.h"

#include "base/error.h"
#include "graph/passes/chunk.h"

#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    double learning_rate;
    mf_update_attr update;
} optimizers[MF_OPTIMIZER_COUNT] = {
    [MF_OPTIMIZER_SGD] = {"sgd", 0.01, {0}},
    [MF_OPTIMIZER_RMSPROP] = {"rmsprop", 0.001, {.rho = 0.9, .epsilon = 1e-7}},
    [MF_OPTIMIZER_ADAM] = {"adam", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7}},
    [MF_OPTIMIZER_ADAMW] =
        {"adamw",
         0.001,
         {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7, .weight_decay = 0.004, .has_weight_decay = true}},
    [MF_OPTIMIZER_NADAM] = {"nadam", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7}},
    [MF_OPTIMIZER_ADAMAX] = {"adamax", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7}},
    [MF_OPTIMIZER_ADAGRAD] = {"adagrad", 0.001, {.initial = 0.1, .epsilon = 1e-7}},
    [MF_OPTIMIZER_ADADELTA] = {"adadelta", 0.001, {.rho = 0.95, .epsilon = 1e-7}},
    [MF_OPTIMIZER_ADAFACTOR] =
        {"adafactor",
         0.001,
         {.beta_2 = -0.8, .epsilon = 1e-30, .epsilon_2 = 1e-3, .clip_threshold = 1, .relative_step = 1}},
    [MF_OPTIMIZER_LION] = {"lion", 0.001, {.beta_1 = 0.9, .beta_2 = 0.99}},
    [MF_OPTIMIZER_FTRL] = {"ftrl", 0.001, {.learning_rate_power = -0.5, .initial = 0.1}},
    [MF_OPTIMIZER_LAMB] = {"lamb", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7}},
};

const char *mf_optimizer_name(mf_optimizer optimizer)
{
    return (unsigned)optimizer < MF_OPTIMIZER_COUNT ? optimizers[optimizer].name : "?";
}

double mf_optimizer_learning_rate(mf_optimizer optimizer)
{
    return (unsigned)optimizer < MF_OPTIMIZER_COUNT ? optimizers[optimizer].learning_rate : 0;
}

bool mf_optimizer_parse(const char *name, mf_optimizer *optimizer)
{
    for (unsigned i = 0; i < MF_OPTIMIZER_COUNT; i++)
        if (strcasecmp(name, optimizers[i].name) == 0) {
            *optimizer = (mf_optimizer)i;
            return true;
        }
    return false;
}

void mf_optimizer_defaults(mf_optimizer optimizer, mf_optimizer_settings *settings)
{
    *settings = (mf_optimizer_settings){.update = optimizers[optimizer].update, .ema_momentum = 0.99};
    settings->update.optimizer = optimizer;
}

uint32_t mf_optimizer_slots(const mf_optimizer_settings *settings, const char *names[4])
{
    uint32_t n = 0;
    switch (settings->update.optimizer) {
    case MF_OPTIMIZER_SGD:
        if (settings->update.momentum != 0)
            names[n++] = "momentum";
        return n;
    case MF_OPTIMIZER_RMSPROP:
        names[n++] = "velocity";
        if (settings->update.momentum > 0)
            names[n++] = "momentum";
        if (settings->update.centered)
            names[n++] = "average_gradient";
        return n;
    case MF_OPTIMIZER_ADAM:
    case MF_OPTIMIZER_ADAMW:
        names[n++] = "momentum";
        names[n++] = "velocity";
        if (settings->update.amsgrad)
            names[n++] = "velocity_hat";
        return n;
    case MF_OPTIMIZER_NADAM:
        names[n++] = "momentum";
        names[n++] = "velocity";
        names[n++] = "u_product"; /* files have one for all parameters; a scalar each keeps updates independent */
        return n;
    case MF_OPTIMIZER_LAMB:
        names[n++] = "momentum";
        names[n++] = "velocity";
        return n;
    case MF_OPTIMIZER_ADAMAX:
        names[n++] = "momentum";
        names[n++] = "norm";
        return n;
    case MF_OPTIMIZER_ADAGRAD:
        names[n++] = "accumulator";
        return n;
    case MF_OPTIMIZER_ADADELTA:
        names[n++] = "accumulated_grad";
        names[n++] = "accumulated_delta_var";
        return n;
    case MF_OPTIMIZER_ADAFACTOR:
        names[n++] = "row";
        names[n++] = "column";
        names[n++] = "velocity";
        return n;
    case MF_OPTIMIZER_LION:
        names[n++] = "momentum";
        return n;
    case MF_OPTIMIZER_FTRL:
        names[n++] = "accumulator";
        names[n++] = "linear";
        return n;
    default:
        return 0;
    }
}

/* ---- variables ---- */

/* Adafactor's row and column factors leave out the last and the last but one dimension. */
static void slot_shape(const mf_update_attr *update, uint32_t slot, mf_shape *shape, double *initial)
{
    *initial = 0;
    if (update->optimizer == MF_OPTIMIZER_NADAM && slot == 2) {
        *shape = (mf_shape){0};
        *initial = 1;
    }
    if ((update->optimizer == MF_OPTIMIZER_ADAGRAD || update->optimizer == MF_OPTIMIZER_FTRL) && slot == 0)
        *initial = update->initial;
    if (update->optimizer != MF_OPTIMIZER_ADAFACTOR || slot == 2)
        return;
    if (shape->rank < 2) {
        *shape = (mf_shape){0};
        return;
    }
    if (slot == 1)
        shape->dim[shape->rank - 2] = shape->dim[shape->rank - 1];
    shape->rank--;
}

static void companion(mf_build *b, uint32_t parameter, mf_var_role role, memfit_kind kind, const char *word,
                      uint32_t slot, const mf_shape *shape, double initial)
{
    if (!mf_build_ok(b))
        return;
    const mf_variable *p = &b->graph->variables[parameter];
    mf_variable v = {.role = role,
                     .kind = kind,
                     .dtype = p->dtype,
                     .shape = *shape,
                     .parameter = parameter,
                     .slot = slot,
                     .initial = initial};
    v.name = mf_arena_printf(&b->graph->arena, "%s/%s", p->name, word);
    v.path = "";
    b->layer = p->layer;
    if (!v.name)
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the optimizer's variables");
    mf_g_variable(b, &v);
}

static bool trained(const mf_graph *g, uint32_t variable)
{
    return g->variables[variable].role == MF_VAR_PARAMETER && g->variables[variable].trainable;
}

void mf_optimizer_variables(mf_build *b, const mf_optimizer_settings *settings)
{
    mf_graph *g = b->graph;
    uint32_t count = g->variable_count, layer = b->layer;
    const char *names[4];
    uint32_t slots = mf_optimizer_slots(settings, names);
    for (uint32_t i = 0; i < count && mf_build_ok(b); i++)
        for (uint32_t k = 0; trained(g, i) && k < slots; k++) {
            mf_shape shape = g->variables[i].shape;
            double initial;
            slot_shape(&settings->update, k, &shape, &initial);
            companion(b, i, MF_VAR_SLOT, MEMFIT_KIND_OPTIMIZER, names[k], k, &shape, initial);
        }
    for (uint32_t i = 0; i < count && mf_build_ok(b); i++)
        if (trained(g, i)) {
            mf_shape shape = g->variables[i].shape;
            companion(b, i, MF_VAR_GRADIENT, MEMFIT_KIND_GRADIENTS, "gradient", 0, &shape, 0);
        }
    for (uint32_t i = 0; settings->ema && i < count && mf_build_ok(b); i++)
        if (trained(g, i)) {
            mf_shape shape = g->variables[i].shape;
            companion(b, i, MF_VAR_EMA, MEMFIT_KIND_OPTIMIZER, "average", 0, &shape, 0);
        }
    b->layer = 0;
    mf_variable flag = {.name = "skip_step",
                        .path = "",
                        .role = MF_VAR_CONTROL,
                        .kind = MEMFIT_KIND_OPTIMIZER,
                        .dtype = MF_F32,
                        .parameter = MF_NONE};
    mf_g_variable(b, &flag);
    b->layer = layer;
}

/* ---- the step ---- */

typedef struct step {
    mf_build *b;
    const mf_optimizer_settings *settings;
    uint32_t variable_count;
    uint32_t *companions;   /* by parameter: 4 slots, gradient, average; MF_NONE where there is none */
    uint32_t *first_reader; /* by variable: first forward operation that reads it */
    uint32_t *next_here;    /* by variable: next one with the same first reader */
    uint32_t *head;         /* by forward operation: first variable of that list */
    uint32_t *final;        /* by variable: its gradient, once final */
    uint32_t flag;          /* variable of CHECK_FINITE, or MF_NONE */
    bool wait;              /* updates come at the end */
} step;

enum { COMPANIONS = 6, GRADIENT = 4, AVERAGE = 5 };

static bool step_make(step *s, mf_build *b, const mf_optimizer_settings *settings)
{
    mf_graph *g = b->graph;
    uint32_t n = g->variable_count;
    *s = (step){.b = b, .settings = settings, .variable_count = n, .flag = MF_NONE};
    s->companions = MF_NEW_ARRAY(&g->arena, uint32_t, (size_t)n * COMPANIONS + 1);
    s->first_reader = MF_NEW_ARRAY(&g->arena, uint32_t, n + 1);
    s->next_here = MF_NEW_ARRAY(&g->arena, uint32_t, n + 1);
    s->final = MF_NEW_ARRAY(&g->arena, uint32_t, n + 1);
    s->head = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1);
    if (!s->companions || !s->first_reader || !s->next_here || !s->final || !s->head) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the update");
        return false;
    }
    memset(s->companions, 0xff, (size_t)n * COMPANIONS * sizeof(uint32_t));
    memset(s->first_reader, 0xff, n * sizeof(uint32_t));
    memset(s->next_here, 0xff, n * sizeof(uint32_t));
    memset(s->final, 0xff, n * sizeof(uint32_t));
    memset(s->head, 0xff, g->op_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++) {
        const mf_variable *v = &g->variables[i];
        if (v->role == MF_VAR_SLOT)
            s->companions[v->parameter * COMPANIONS + v->slot] = i;
        else if (v->role == MF_VAR_GRADIENT)
            s->companions[v->parameter * COMPANIONS + GRADIENT] = i;
        else if (v->role == MF_VAR_EMA)
            s->companions[v->parameter * COMPANIONS + AVERAGE] = i;
        else if (v->role == MF_VAR_CONTROL && (settings->loss_scale || g->accumulation_steps))
            s->flag = i;
    }
    s->wait = g->accumulate || settings->loss_scale || settings->global_clip_norm > 0;
    return true;
}

static void find_readers(step *s)
{
    mf_graph *g = s->b->graph;
    for (uint32_t i = g->op_count; i-- > 0;)
        for (uint32_t k = 0; k < g->ops[i].in_count; k++) {
            uint32_t t = g->ops[i].in[k];
            if (t != MF_NONE && g->tensors[t].variable != MF_NONE)
                s->first_reader[g->tensors[t].variable] = i;
        }
    for (uint32_t v = s->variable_count; v-- > 0;)
        if (s->first_reader[v] != MF_NONE && trained(g, v)) {
            s->next_here[v] = s->head[s->first_reader[v]];
            s->head[s->first_reader[v]] = v;
        }
}

static uint32_t flag_tensor(const step *s)
{
    return s->flag == MF_NONE ? MF_NONE : mf_g_use(s->b, s->flag);
}

static void regularize(mf_build *b, uint32_t variable, uint32_t gradient)
{
    const mf_variable *v = &b->graph->variables[variable];
    if ((v->l1 == 0 && v->l2 == 0) || b->graph->loss_variable == MF_NONE)
        return;
    mf_attr attr = {.regularize = {v->l1, v->l2}};
    uint32_t w = mf_g_use(b, variable), loss = mf_g_use(b, b->graph->loss_variable);
    mf_g_op_in_place(b, MF_OP_REGULARIZE, &attr, 3, (uint32_t[]){w, gradient, loss}, 2, (uint32_t[]){gradient, loss});
}

void mf_regularizer_losses(mf_build *b)
{
    b->phase = MF_LOSS_PHASE;
    b->when = MF_LAST_PIECE;
    for (uint32_t i = 0; i < b->graph->variable_count && mf_build_ok(b); i++)
        if (trained(b->graph, i)) {
            b->layer = b->graph->variables[i].layer;
            regularize(b, i, MF_NONE);
        }
    b->when = MF_ALWAYS;
    b->layer = 0;
}

/* What happens to one gradient before clipping by the global norm. */
static void prepare(step *s, uint32_t variable)
{
    mf_build *b = s->b;
    uint32_t gradient = s->final[variable], flag = flag_tensor(s);
    regularize(b, variable, gradient); /* scaled as the gradient is, so it comes before what divides */
    if (flag != MF_NONE)
        mf_g_op_in_place(b, MF_OP_CHECK_FINITE, NULL, 2, (uint32_t[]){gradient, flag}, 2, (uint32_t[]){flag, gradient});
    if (s->settings->clip_norm > 0 || s->settings->clip_value > 0) {
        mf_attr attr = {.clip = {.value = s->settings->clip_value, .norm = s->settings->clip_norm}};
        mf_g_op_in_place(b, MF_OP_CLIP, &attr, 1, &gradient, 1, &gradient);
    }
}

/* A gradient that was only cast up for the update serves as it was computed: updates compute in float32 whatever they
 * are given, and the larger copy is never made. */
static uint32_t as_computed(const step *s, uint32_t gradient)
{
    mf_graph *g = s->b->graph;
    uint32_t from = g->tensors[gradient].producer;
    if (from == MF_NONE || g->ops[from].kind != MF_OP_CAST || g->ops[from].accumulate ||
        mf_dtype_bytes(g->tensors[g->ops[from].in[0]].dtype) != 2)
        return gradient;
    for (uint32_t i = from + 1; i < g->op_count; i++) {
        for (uint32_t k = 0; k < g->ops[i].in_count; k++)
            if (g->ops[i].in[k] == gradient) /* scaled, clipped, a penalty added */
                return gradient;
        for (uint32_t k = 0; k < g->ops[i].out_count; k++)
            if (g->ops[i].out[k] == gradient) /* further chunks are added */
                return gradient;
    }
    uint32_t narrow = g->ops[from].in[0];
    g->storages[g->tensors[narrow].storage].kind = MEMFIT_KIND_GRADIENTS;
    return narrow;
}

static void update(step *s, uint32_t variable)
{
    mf_build *b = s->b;
    const uint32_t *mine = &s->companions[variable * COMPANIONS];
    uint32_t in[8], out[8], n = 0, m = 0, flag = s->settings->loss_scale ? flag_tensor(s) : MF_NONE;
    in[n++] = out[m++] = mf_g_use(b, variable);
    in[n++] = as_computed(s, s->final[variable]);
    for (uint32_t k = 0; k < GRADIENT; k++)
        if (mine[k] != MF_NONE)
            in[n++] = out[m++] = mf_g_use(b, mine[k]);
    if (flag != MF_NONE)
        in[n++] = flag;
    mf_attr attr = {.update = s->settings->update};
    mf_g_op_in_place(b, MF_OP_UPDATE, &attr, n, in, m, out);
    if (mine[AVERAGE] != MF_NONE) {
        uint32_t average = mf_g_use(b, mine[AVERAGE]);
        uint32_t ema[3] = {out[0], average, flag};
        mf_g_op_in_place(b, MF_OP_EMA, &(mf_attr){.ema = {s->settings->ema_momentum}}, flag == MF_NONE ? 2 : 3, ema, 1,
                         &average);
    }
    mf_constrain(b, variable);
}

static void in_update_phase(step *s, uint32_t variable)
{
    s->b->phase = MF_UPDATE_PHASE;
    s->b->when = s->b->graph->accumulate ? MF_LAST_PIECE : MF_ALWAYS;
    s->b->layer = s->b->graph->variables[variable].layer;
}

static void back_to_backward(step *s)
{
    s->b->phase = MF_BACKWARD;
    s->b->when = MF_ALWAYS;
}

/* After the backward part of operation `op`: gradients of parameters first read there are final. */
static void after_op(void *ctx, mf_backward *w, uint32_t op)
{
    step *s = ctx;
    mf_build *b = s->b;
    for (uint32_t v = s->head[op]; v != MF_NONE && mf_build_ok(b); v = s->next_here[v]) {
        uint32_t tensor = b->graph->variables[v].tensor, gradient = mf_backward_of(w, tensor);
        if (gradient == MF_NONE)
            continue;
        if (!w->owned[tensor]) { /* it will be changed in place, and others may read it */
            mf_attr copy = {.unary = {.function = MF_UNARY_LINEAR}};
            gradient = mf_g_op(b, MF_OP_UNARY, &copy, 1, &gradient, 1, NULL, NULL);
            if (gradient == MF_NONE)
                return;
        }
        mf_storage *storage = &b->graph->storages[b->graph->tensors[gradient].storage];
        storage->kind = MEMFIT_KIND_GRADIENTS;
        s->final[v] = gradient;
        if (s->wait)
            continue;
        in_update_phase(s, v);
        prepare(s, v);
        update(s, v);
        back_to_backward(s);
    }
}

static void clip_by_global_norm(step *s)
{
    mf_build *b = s->b;
    uint32_t *all = MF_NEW_ARRAY(&b->graph->arena, uint32_t, s->variable_count + 1), count = 0;
    if (!all) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the global norm");
        return;
    }
    for (uint32_t v = 0; v < s->variable_count; v++)
        if (s->final[v] != MF_NONE)
            all[count++] = s->final[v];
    if (!count)
        return;
    b->layer = 0;
    uint32_t sum = mf_g_op(b, MF_OP_SQUARE_SUM, NULL, count, all, 1, NULL, NULL);
    mf_attr attr = {.clip = {.norm = s->settings->global_clip_norm}};
    for (uint32_t v = 0; v < s->variable_count && mf_build_ok(b); v++)
        if (s->final[v] != MF_NONE) {
            in_update_phase(s, v);
            mf_g_op_in_place(b, MF_OP_CLIP_GLOBAL, &attr, 2, (uint32_t[]){s->final[v], sum}, 1, &s->final[v]);
        }
}

static void updates_at_the_end(step *s)
{
    for (uint32_t v = 0; v < s->variable_count && mf_build_ok(s->b); v++)
        if (s->final[v] != MF_NONE) {
            in_update_phase(s, v);
            prepare(s, v);
        }
    if (s->settings->global_clip_norm > 0)
        clip_by_global_norm(s);
    for (uint32_t v = 0; v < s->variable_count && mf_build_ok(s->b); v++)
        if (s->final[v] != MF_NONE) {
            in_update_phase(s, v);
            update(s, v);
        }
    back_to_backward(s);
}

/* With pieces: the gradient variables, cleared in the first one. */
static void use_accumulators(step *s, mf_backward *w)
{
    mf_build *b = s->b;
    w->accumulator = MF_NEW_ARRAY(&b->graph->arena, uint32_t, w->tensor_count + 1);
    if (!w->accumulator) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the accumulators");
        return;
    }
    memset(w->accumulator, 0xff, w->tensor_count * sizeof(uint32_t));
    for (uint32_t v = 0; v < s->variable_count && mf_build_ok(b); v++) {
        uint32_t tensor = b->graph->variables[v].tensor, mine = s->companions[v * COMPANIONS + GRADIENT];
        if (!trained(b->graph, v) || tensor == MF_NONE || mine == MF_NONE || s->first_reader[v] == MF_NONE)
            continue;
        w->accumulator[tensor] = mf_g_use(b, mine);
        b->layer = b->graph->variables[v].layer;
        b->when = MF_FIRST_PIECE;
        mf_g_clear(b, w->accumulator[tensor], 0);
        b->when = MF_ALWAYS;
    }
}

void mf_optimizer_step(mf_build *b, const mf_optimizer_settings *settings)
{
    step s;
    mf_backward w;
    if (!mf_build_ok(b) || !step_make(&s, b, settings))
        return;
    mf_graph *g = b->graph;
    uint32_t *wanted = MF_NEW_ARRAY(&g->arena, uint32_t, s.variable_count + 1), count = 0;
    if (!wanted) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the update");
        return;
    }
    for (uint32_t v = 0; v < s.variable_count; v++)
        if (trained(g, v) && g->variables[v].tensor != MF_NONE)
            wanted[count++] = g->variables[v].tensor;
    find_readers(&s);
    if (!mf_backward_begin(&w, b, count, wanted))
        return;
    b->phase = MF_BACKWARD;
    if (s.flag != MF_NONE) {
        b->when = MF_FIRST_PIECE;
        b->layer = 0;
        mf_g_clear(b, flag_tensor(&s), 0);
        b->when = MF_ALWAYS;
    }
    if (g->accumulate)
        use_accumulators(&s, &w);
    mf_heads_append(b, &w);
    w.after = after_op;
    w.ctx = &s;
    mf_backward_run(&w);
    if (s.wait)
        updates_at_the_end(&s);
    g->global_clip = settings->global_clip_norm > 0;
    g->needs_loss_scale = settings->loss_scale;
    b->layer = 0;
}
