/*
 * test_ops_random.c: random small graphs run by random plans give what the graph gives without any plan.
 *
 *     bitwise     any order that holds, any drops, in place wherever the planner does it, any alignment, and plans of
 *                 mf_plan_make under random limits: the executor's variables and outputs are the interpreter's bytes,
 *                 on the reference and on the CPU backend
 *     grouped     the same with operations joined into groups (graph/group.h), at random or as the CUDA backend would, behind
 *                 every pass that it asks for; groups are run member by member, and steps together (train/together.h)
 *     reordered   in float64, under random limits with pieces, rest and chunks as well: the same numbers to 1e-9
 *
 * MEMFIT_RANDOM_COUNT and MEMFIT_RANDOM_SEED choose how many and which. A failing seed is made smaller, draw by draw,
 * while it still fails, and printed. This file is long because one subject goes through all of it: interpreted, planned, grouped, run.
 */
#include "batching.h"
#include "random_graph.h"

#include "graph/group.h"
#include "ops/cuda/cuda_engine.h"
#include "ops/interpret.h"
#include "ops/reference/reference.h"
#include "plan/fit/fit.h"
#include "plan/fit/plan_place.h"
#include "plan/flow/flow_order.h"
#include "train/execute.h"

#include <math.h>

enum { STEPS = 2, CPU_EVERY = 4, REORDERED_EVERY = 4, LIMITED_EVERY = 5, GROUPED_EVERY = 3 };

/* Passes of the grouping that a backend asks for. */
enum { LATE, SLOPES, SUMS, POOLS, FEEDS, LOSSES, ROWS, BIASES, PASSES };
static const char *const pass_names[PASSES] = {"late",         "slopes", "sums",      "pool_first",
                                               "narrow_feeds", "narrow", "even_rows", "bias_sums"};

/* The last ones: the reference with groups joined at random, or as the CUDA backend does; and each with steps run as one. */
static mf_backend *reference, *cpu, *members[2], *batching[2];
static struct {
    uint64_t plans, recomputing, ordered, pieces, chunks, in_place, not_finite, groups, repeated_groups,
        kinds[MF_OP_COUNT], passes[PASSES], cuda_groups;
} seen;

/* What went wrong with a subject; empty: nothing. */
typedef struct trouble {
    char text[512];
} trouble;

static bool fails(trouble *t, const char *format, ...) MEMFIT_PRINTF(2, 3);
static bool fails(trouble *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(t->text, sizeof t->text, format, args);
    va_end(args);
    return false;
}

/* ---- the interpreter's results ---------------------------------------------------------------------------- */

typedef struct truth {
    mf_graph *graph;
    mf_interpreter *it;
} truth;

static void fill_feed(const subject *s, const mf_graph *g, uint32_t index, int64_t first, void *to)
{
    const mf_tensor *t = &g->tensors[g->feeds[index].tensor];
    uint64_t each = mf_shape_count(&t->shape) / (uint64_t)g->batch;
    for (uint64_t n = 0; n < (uint64_t)g->batch; n++)
        for (uint64_t i = 0; i < each; i++)
            mf_ref_store(t->dtype, to, n * each + i, subject_feed_value(s, g, index, (uint64_t)first + n, i));
}

static void start_variable(const subject *s, const mf_graph *g, uint32_t v, void *to)
{
    const mf_variable *variable = &g->variables[v];
    for (uint64_t i = 0; i < mf_shape_count(&variable->shape); i++)
        mf_ref_store(variable->dtype, to, i, subject_variable_value(s, g, v, i));
}

static mf_run_scalars scalars_of(const subject *s, const mf_graph *g, uint64_t step)
{
    mf_run_scalars r = mf_interpret_scalars(g, 0.01);
    r.batch_samples = (double)s->batch;
    r.weight_sum = (double)s->batch;
    r.step = r.iteration = step;
    r.seed = s->seed;
    r.loss_scale = s->optimizer.loss_scale ? 8 : 1;
    return r;
}

static bool interpret(const subject *s, mf_backend *backend, truth *t, trouble *why)
{
    memfit_error err = {0};
    *t = (truth){0};
    memfit_status status = subject_graph(s, NULL, s->mode, s->batch, false, 1, &t->graph, &err);
    if (status == MEMFIT_OK && s->wide)
        mf_graph_widen(t->graph);
    if (status == MEMFIT_OK)
        status = mf_graph_check(t->graph, &err);
    if (status == MEMFIT_OK)
        status = mf_interpret_create(NULL, t->graph, backend, &t->it, &err);
    for (uint32_t v = 0; status == MEMFIT_OK && v < t->graph->variable_count; v++)
        if (t->graph->variables[v].tensor != MF_NONE)
            start_variable(s, t->graph, v, mf_interpret_data(t->it, t->graph->variables[v].tensor));
    for (uint64_t step = 0; status == MEMFIT_OK && step < STEPS; step++) {
        mf_run_scalars scalars = scalars_of(s, t->graph, step);
        for (uint32_t i = 0; i < t->graph->feed_count; i++)
            fill_feed(s, t->graph, i, 0, mf_interpret_data(t->it, t->graph->feeds[i].tensor));
        status = mf_interpret_run(t->it, &scalars, true, true, &err);
    }
    return status == MEMFIT_OK || fails(why, "the interpreter: %s", err.message);
}

static void truth_end(truth *t)
{
    mf_interpret_destroy(t->it);
    mf_graph_destroy(t->graph);
}

/* ---- running a plan --------------------------------------------------------------------------------------- */

static bool same_values(const mf_graph *g, uint32_t tensor, const void *mine, const void *right, bool bitwise)
{
    const mf_tensor *t = &g->tensors[tensor];
    uint64_t count = mf_shape_count(&t->shape);
    if (bitwise)
        return memcmp(mine, right, count * mf_dtype_bytes(t->dtype)) == 0;
    double apart = 0, norm = 0;
    for (uint64_t i = 0; i < count; i++) {
        double a = mf_ref_load(t->dtype, mine, i), b = mf_ref_load(t->dtype, right, i);
        if (isnan(a) != isnan(b))
            return false;
        if (!isfinite(a) || !isfinite(b))
            continue;
        apart += (a - b) * (a - b);
        norm += b * b;
    }
    return sqrt(apart) <= 1e-9 * (sqrt(norm) + 1);
}

static bool compare(const truth *t, const mf_plan *plan, const mf_executor *x, bool bitwise, trouble *why)
{
    const mf_graph *g = t->graph;
    const uint32_t *outputs = plan->phases[0].graph->outputs; /* groups number tensors anew */
    for (uint32_t v = 0; v < g->variable_count; v++) {
        uint32_t tensor = g->variables[v].tensor;
        const void *mine = mf_executor_variable(x, v);
        if (tensor == MF_NONE || !mine || g->variables[v].role == MF_VAR_GRADIENT)
            continue;
        if (!same_values(g, tensor, mine, mf_interpret_data(t->it, tensor), bitwise))
            return fails(why, "variable %u (%s) is not the same", v, g->variables[v].name);
    }
    for (uint32_t i = 0; g->mode == MF_MODE_PREDICT && i < g->output_count; i++)
        if (!same_values(g, g->outputs[i], mf_executor_tensor(x, 0, outputs[i]),
                         mf_interpret_data(t->it, g->outputs[i]), bitwise))
            return fails(why, "output %u is not the same", i);
    return true;
}

typedef struct feeding {
    const subject *s;
    const mf_graph *graph;
    int64_t first;
} feeding;

static memfit_status fill(void *ctx, uint32_t feed, void *address, memfit_error *err)
{
    (void)err;
    const feeding *f = ctx;
    fill_feed(f->s, f->graph, feed, f->first, address);
    return MEMFIT_OK;
}

/* One step: every run of the phases that make it up. */
static memfit_status run_step(const subject *s, const mf_plan *plan, mf_executor *x, uint64_t step, memfit_error *err)
{
    int64_t done = 0;
    memfit_status status = MEMFIT_OK;
    for (uint32_t p = 0; p < plan->phase_count && done < s->batch; p++)
        for (int64_t k = 0; k < plan->phases[p].repeat && status == MEMFIT_OK; k++) {
            feeding f = {s, plan->phases[p].graph, done};
            mf_run_scalars scalars = scalars_of(s, f.graph, step);
            scalars.first_sample = (uint64_t)done;
            bool first = done == 0;
            done += plan->phases[p].batch;
            mf_piece piece = {first, done == s->batch, false, false};
            status = mf_executor_write_scalars(x, &scalars, err);
            if (status == MEMFIT_OK)
                status = mf_executor_run(x, p, &scalars, piece, fill, &f, err);
        }
    return status;
}

static bool run_plan_on(const subject *s, const truth *t, mf_backend *backend, const mf_plan *plan, bool bitwise,
                        trouble *why)
{
    memfit_error err = {0};
    if (mf_plan_check(plan, &err) != MEMFIT_OK)
        return fails(why, "the check: %s", err.message);
    unsigned char *base = NULL;
    mf_executor *x = NULL;
    if (posix_memalign((void **)&base, 4096, plan->arena_bytes + 4096))
        return fails(why, "no memory");
    memset(base, 0xff, plan->arena_bytes + 4096);
    memfit_status status = mf_executor_create(NULL, backend, plan, base,
                                              &(mf_executor_options){.poison = !backend->table->batch}, &x, &err);
    for (uint32_t v = 0; status == MEMFIT_OK && v < t->graph->variable_count; v++)
        if (mf_executor_variable(x, v) && t->graph->variables[v].tensor != MF_NONE)
            start_variable(s, t->graph, v, mf_executor_variable(x, v));
    for (uint64_t step = 0; step < STEPS && status == MEMFIT_OK; step++)
        status = run_step(s, plan, x, step, &err);
    bool right = status == MEMFIT_OK ? compare(t, plan, x, bitwise, why) : fails(why, "the executor: %s", err.message);
    for (uint64_t i = 0; right && i < 4096; i++)
        if (base[plan->arena_bytes + i] != 0xff)
            right = fails(why, "byte %llu behind the arena was written", (unsigned long long)i);
    mf_executor_destroy(x);
    free(base);
    return right;
}

/* On groups' backends once more, with steps run as one. */
static bool run_plan(const subject *s, const truth *t, mf_backend *backend, const mf_plan *plan, bool bitwise,
                     trouble *why)
{
    bool right = run_plan_on(s, t, backend, plan, bitwise, why);
    for (int i = 0; i < 2 && right; i++)
        if (backend == members[i] && !(right = run_plan_on(s, t, batching[i], plan, bitwise, why))) {
            trouble first = *why;
            fails(why, "together: %.400s", first.text);
        }
    return right;
}

/* ---- a random plan ---------------------------------------------------------------------------------------- */

/* Another order that holds: the greedy one, or some operations moved to another place. */
static memfit_status shuffle(const mf_flow *flow, random_state *r, uint32_t *order, memfit_error *err)
{
    uint32_t n = flow->order_count;
    memcpy(order, flow->order, n * sizeof *order);
    uint32_t way = draw_below(r, 3);
    if (way == 0)
        return MEMFIT_OK;
    seen.ordered++;
    if (way == 1)
        return mf_flow_order_greedy(NULL, flow, order, err);
    memfit_status status = MEMFIT_OK;
    for (uint32_t k = 0; k < 8 && n > flow->input_count + 1 && status == MEMFIT_OK; k++) {
        uint32_t span = n - flow->input_count, from = flow->input_count + draw_below(r, span),
                 to = flow->input_count + draw_below(r, span), op = order[from];
        bool holds;
        uint32_t *tried = malloc(n * sizeof *tried);
        memcpy(tried, order, n * sizeof *tried);
        memmove(tried + from, tried + from + 1, (n - 1 - from) * sizeof *tried);
        memmove(tried + to + 1, tried + to, (n - 1 - to) * sizeof *tried);
        tried[to] = op;
        status = mf_flow_order_holds(NULL, flow, tried, &holds, err);
        if (status == MEMFIT_OK && holds)
            memcpy(order, tried, n * sizeof *order);
        free(tried);
    }
    return status;
}

/* Drops at random; fewer and fewer until no recomputation would read what was updated since. */
static memfit_status draw_sequence(const mf_flow *flow, random_state *r, mf_choice *choice, mf_sequence *q,
                                   memfit_error *err)
{
    static const uint8_t values[] = {1, 1, 1, 3, 0xfe, 0xff, 0xff, 2, 0xfc, 0xfd};
    uint32_t uses = flow->use_at[flow->cell_count], share = draw_below(r, 3) ? 1 + draw_below(r, 8) : 0;
    memfit_status status;
    do {
        for (uint32_t i = 0; i < uses; i++)
            choice->drop[i] = draw_below(r, 8) < share ? values[draw_below(r, sizeof values)] : 0;
        status = mf_sequence_build(q, flow, choice, err);
        share /= 2;
    } while (status == MEMFIT_OK && !q->valid);
    return status;
}

/* As mf_fitter_try puts a plan of one phase together. */
static memfit_status assemble(mf_graph *g, const mf_flow *flow, const mf_sequence *q, const mf_cost_source *cost,
                              mf_plan *plan, memfit_error *err)
{
    memfit_status status = mf_place_variables(plan, g, cost, false, err);
    plan->phases = MF_NEW_ARRAY(&plan->arena, mf_phase, 1);
    plan->phase_count = 1;
    plan->phases[0] = (mf_phase){.role = g->mode == MF_MODE_PREDICT ? MF_PHASE_PREDICT : MF_PHASE_TRAIN,
                                 .repeat = 1,
                                 .batch = g->batch,
                                 .graph = g};
    if (status == MEMFIT_OK)
        status = mf_place_phase(plan, flow, q, 0, false, &plan->phases[0], err);
    plan->batch = g->batch;
    plan->arena_bytes = plan->peak_bytes = plan->phases[0].bytes;
    return status;
}

/* Anything with anything that reads it, up to a number of members that hangs on the graph. */
static bool takes_all(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)ctx;
    for (uint32_t i = 0; i < count; i++) { /* every other graph: attention on its own; of three one: products */
        mf_op_kind kind = graph->ops[ops[i]].kind;
        if ((graph->op_count % 2 && (kind == MF_OP_ATTENTION || kind == MF_OP_ATTENTION_GRAD)) ||
            (graph->op_count % 3 == 0 && (kind == MF_OP_MATMUL || kind == MF_OP_CONV)))
            return false;
    }
    return count <= 2 + (graph->op_count + ops[0]) % 5;
}

static bool takes_none(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)ctx;
    (void)graph;
    (void)ops;
    (void)count;
    return false;
}

/* In double, where its other order of sums makes no difference that the comparison sees. */
static bool attends_wide(void *ctx, const mf_graph *graph, const mf_op *attention)
{
    (void)ctx;
    return graph->tensors[attention->in[0]].dtype == MF_F64;
}

static void count_graph(const mf_graph *g)
{
    for (uint32_t i = 0; i < g->op_count; i++)
        seen.kinds[g->ops[i].kind]++;
}

static void count_plan(const mf_plan *plan)
{
    const mf_phase *phase = &plan->phases[0];
    count_graph(phase->graph);
    for (uint32_t i = 0; i < phase->step_count; i++) {
        bool group = phase->graph->ops[phase->steps[i].op].kind == MF_OP_GROUP;
        seen.groups += group;
        seen.repeated_groups += group && phase->steps[i].recomputed;
    }
    seen.plans++;
    seen.recomputing += plan->phases[0].recomputed > 0;
    for (uint32_t i = 0; i < plan->phases[0].placed_count; i++)
        seen.in_place += plan->phases[0].placed[i].handed_on;
}

static bool random_plan(const subject *s, const truth *t, mf_graph *g, mf_backend *backend, random_state *r,
                        trouble *why)
{
    memfit_error err = {0};
    mf_cost_source cost;
    mf_backend_cost_source(backend, &cost);
    cost.alignment = UINT64_C(64) << draw_below(r, 3);
    mf_flow *own = NULL, *flow = NULL;
    mf_sequence q = {0};
    mf_choice choice;
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    mf_plan plan = {.pieces = 1, .chunks = 1, .fits = true};
    mf_arena_init(&plan.arena, NULL);
    memfit_status status = mf_flow_create(NULL, g, &cost, &own, &err);
    uint32_t *order = status == MEMFIT_OK ? malloc((own->order_count + 1) * sizeof *order) : NULL;
    if (status == MEMFIT_OK)
        status = shuffle(own, r, order, &err);
    if (status == MEMFIT_OK)
        status = mf_flow_reorder(NULL, own, order, &flow, &err);
    if (status == MEMFIT_OK)
        status = mf_choice_make(&arena, flow, &choice, &err);
    if (status == MEMFIT_OK)
        status = mf_sequence_init(&q, NULL, flow, &err);
    if (status == MEMFIT_OK)
        status = draw_sequence(flow, r, &choice, &q, &err);
    if (status == MEMFIT_OK)
        status = assemble(g, flow, &q, &cost, &plan, &err);
    bool right = status == MEMFIT_OK || fails(why, "planning: %s", err.message);
    if (right) {
        count_plan(&plan);
        right = run_plan(s, t, backend, &plan, !s->wide, why);
    }
    mf_arena_destroy(&plan.arena);
    mf_arena_destroy(&arena);
    mf_sequence_free(&q);
    mf_flow_destroy(flow);
    mf_flow_destroy(own);
    free(order);
    return right;
}

/* ---- a plan under a random limit -------------------------------------------------------------------------- */

static memfit_status make_chunked(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                                  uint32_t chunks, mf_graph **graph, memfit_error *err)
{
    const subject *s = ctx;
    memfit_status status = subject_graph(s, host, mode, batch, accumulate, chunks, graph, err);
    if (status == MEMFIT_OK && s->wide)
        mf_graph_widen(*graph);
    return status;
}

static memfit_status make(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                          mf_graph **graph, memfit_error *err)
{
    return make_chunked(ctx, host, mode, batch, accumulate, 1, graph, err);
}

static bool limited_plan(const subject *s, const truth *t, mf_backend *backend, random_state *r, trouble *why)
{
    memfit_error err = {0};
    mf_cost_source cost;
    mf_backend_cost_source(backend, &cost);
    mf_graph_source source = {(void *)s, make, make_chunked};
    mf_plan_options o;
    mf_plan_options_default(&o);
    o.batch = s->batch;
    o.with_validation = o.with_prediction = false;
    o.quick = true;
    o.only = s->mode;
    mf_plan *plan = NULL;
    memfit_status status = mf_plan_make(NULL, &source, &o, &cost, &plan, &err);
    if (status != MEMFIT_OK)
        return fails(why, "planning: %s", err.message);
    o.limit_bytes = plan->peak_bytes * (40 + draw_below(r, 61)) / 100;
    mf_plan_destroy(plan);
    plan = NULL;
    o.recompute = draw_below(r, 3) ? MF_RECOMPUTE_AUTO : MF_RECOMPUTE_OFF;
    o.pieces = o.chunks = 1; /* the same bits */
    if (s->wide) {
        o.pieces = draw_below(r, 3) ? 0 : 1 + draw_below(r, (uint32_t)s->batch);
        o.chunks = s->head && draw_below(r, 2) ? 2 + draw_below(r, 3) : 0;
    }
    if (draw_below(r, 4) == 0)
        o.limit_bytes = 0;
    status = mf_plan_make(NULL, &source, &o, &cost, &plan, &err);
    if (status == MEMFIT_DOES_NOT_FIT)
        return true;
    if (status != MEMFIT_OK)
        return fails(why, "planning within %llu: %s", (unsigned long long)o.limit_bytes, err.message);
    if (s->mode == MF_MODE_PREDICT && plan->phases[0].batch < s->batch) { /* each part overwrites the last one's */
        mf_plan_destroy(plan);
        return true;
    }
    count_plan(plan);
    seen.pieces += plan->pieces > 1;
    seen.chunks += plan->chunks > 1;
    bool right = o.limit_bytes && plan->peak_bytes > o.limit_bytes ? fails(why, "the limit is not kept")
                                                                   : run_plan(s, t, backend, plan, !s->wide, why);
    mf_plan_destroy(plan);
    return right;
}

/* One pass by itself: does it change this graph? */
static bool pass_changes(const subject *s, uint32_t pass, memfit_error *err)
{
    mf_group_taker only = {.takes = pass == SLOPES || pass == BIASES ? members[1]->groups.takes : takes_none,
                           .late_updates = pass == LATE,
                           .slopes = pass == SLOPES,
                           .bias_sums = pass == BIASES,
                           .whole_sums = pass == SUMS,
                           .pools_first = pass == POOLS,
                           .narrow_feeds = pass == FEEDS,
                           .narrow_losses = pass == LOSSES,
                           .even_rows = pass == ROWS};
    mf_graph *g[2] = {0};
    bool changed = false;
    for (int i = 0; i < 2; i++) {
        if (make((void *)s, NULL, s->mode, s->batch, false, &g[i], err) != MEMFIT_OK)
            break;
        mf_group_taker plain = {.takes = only.takes};
        mf_graph_group(g[i], i ? &only : &plain, err);
    }
    if (g[1]) {
        changed = g[0]->op_count != g[1]->op_count || g[0]->tensor_count != g[1]->tensor_count;
        for (uint32_t i = 0; i < g[0]->op_count && !changed; i++) {
            const mf_op *a = &g[0]->ops[i], *b = &g[1]->ops[i];
            changed = a->kind != b->kind || a->in_count != b->in_count ||
                      memcmp(a->in, b->in, a->in_count * sizeof *a->in) != 0 ||
                      memcmp(a->out, b->out, a->out_count * sizeof *a->out) != 0;
        }
    }
    mf_graph_destroy(g[0]);
    mf_graph_destroy(g[1]);
    return changed;
}

/* Plans of the graph with groups against the one without. */
static bool grouped_plans(const subject *s, const truth *t, random_state *r, trouble *why)
{
    memfit_error err = {0};
    mf_graph *g = NULL;
    uint32_t way = s->seed / GROUPED_EVERY % 2;
    for (uint32_t i = 0; i < PASSES; i++)
        seen.passes[i] += pass_changes(s, i, &err);
    memfit_status status = make((void *)s, NULL, s->mode, s->batch, false, &g, &err);
    if (status == MEMFIT_OK)
        status = mf_graph_group(g, &members[way]->groups, &err);
    if (status == MEMFIT_OK)
        status = mf_graph_check(g, &err);
    bool right = status == MEMFIT_OK || fails(why, "grouping: %s", err.message);
    for (uint32_t i = 0; right && way == 1 && i < g->op_count; i++)
        seen.cuda_groups += g->ops[i].kind == MF_OP_GROUP;
    for (int i = 0; i < 2 && right; i++)
        right = random_plan(s, t, g, members[way], r, why);
    mf_graph_destroy(g);
    return right && ((s->mode == MF_MODE_PREDICT && !s->samplewise) || limited_plan(s, t, members[way], r, why));
}

/* ---- one subject ------------------------------------------------------------------------------------------ */

static void count_kinds(const truth *t)
{
    count_graph(t->graph);
    uint32_t loss = t->graph->mode == MF_MODE_TRAIN ? t->graph->variables[t->graph->loss_variable].tensor : MF_NONE;
    if (loss != MF_NONE)
        seen.not_finite += !isfinite(mf_ref_load(t->graph->tensors[loss].dtype, mf_interpret_data(t->it, loss), 0));
}

static bool check(const subject *s, trouble *why)
{
    random_state r = {s->seed ^ 0x5851f42d4c957f2dull};
    mf_backend *backend = !s->wide && cpu && s->seed % CPU_EVERY == 1 ? cpu : reference;
    truth t;
    why->text[0] = 0;
    bool right = interpret(s, backend, &t, why);
    if (right)
        count_kinds(&t);
    for (int i = 0; i < 2 && right && !s->wide; i++)
        right = random_plan(s, &t, t.graph, backend, &r, why);
    bool whole = s->mode == MF_MODE_PREDICT && !s->samplewise; /* cannot be taken in parts */
    if (right && (s->wide || (s->seed % LIMITED_EVERY == 0 && !whole)))
        right = limited_plan(s, &t, backend, &r, why);
    if (right && backend == reference && s->seed % GROUPED_EVERY == 0)
        right = grouped_plans(s, &t, &r, why);
    truth_end(&t);
    return right;
}

/* Leaves draws out, one after another, as long as it still fails. */
static void shrink(subject *s, trouble *why)
{
    for (bool any = true; any;) {
        any = false;
        for (uint32_t i = 0; i < s->draw_count; i++) {
            trouble now;
            if (s->draws[i].left_out)
                continue;
            s->draws[i].left_out = true;
            if (check(s, &now))
                s->draws[i].left_out = false;
            else {
                *why = now;
                any = true;
            }
        }
    }
}

static void report(subject *s, trouble *why)
{
    memfit_error err = {0};
    mf_graph *graph = NULL;
    fprintf(stderr, "seed %llu: %s\n", (unsigned long long)s->seed, why->text);
    shrink(s, why);
    subject_graph(s, NULL, s->mode, s->batch, false, 1, &graph, &err);
    fprintf(stderr, "as small as it gets: %s\n", why->text);
    subject_print(s, graph);
    mf_graph_destroy(graph);
}

static void random_graphs_run_as_they_are(void **state)
{
    (void)state;
    const char *count = getenv("MEMFIT_RANDOM_COUNT"), *seed = getenv("MEMFIT_RANDOM_SEED");
    uint64_t n = count ? strtoull(count, NULL, 10) : 10000, first = seed ? strtoull(seed, NULL, 10) : 1;
    for (uint64_t i = 0; i < n; i++) {
        subject s;
        trouble why;
        subject_draw(&s, first + i, (first + i) % REORDERED_EVERY == 0);
        if (check(&s, &why))
            continue;
        report(&s, &why);
        fail_msg("seed %llu, the %lluth graph", (unsigned long long)s.seed, (unsigned long long)i + 1);
    }
    printf("%llu graphs, %llu plans: %llu in another order, %llu recompute, %llu in pieces, %llu in chunks; %llu "
           "operations in place; %llu losses not finite; %llu groups run, %llu of them again\n",
           (unsigned long long)n, (unsigned long long)seen.plans, (unsigned long long)seen.ordered,
           (unsigned long long)seen.recomputing, (unsigned long long)seen.pieces, (unsigned long long)seen.chunks,
           (unsigned long long)seen.in_place, (unsigned long long)seen.not_finite, (unsigned long long)seen.groups,
           (unsigned long long)seen.repeated_groups);
    printf("%llu groups as the CUDA backend takes them; %llu kernels together; graphs changed by",
           (unsigned long long)seen.cuda_groups, (unsigned long long)batched_kernels);
    for (uint32_t i = 0; i < PASSES; i++)
        printf(" %s %llu", pass_names[i], (unsigned long long)seen.passes[i]);
    printf("\n");
    if (count || seed)
        return;
    /* an assumed layer is planned and never run: no backend has it */
    for (uint32_t k = 0; k < MF_OP_COUNT; k++)
        if (!seen.kinds[k] && k != MF_OP_ASSUMED && k != MF_OP_GROUP)
            fail_msg("no graph has %s", mf_kind_name((mf_op_kind)k));
    assert_true(seen.recomputing > n / 10);
    assert_true(seen.pieces > n / 100);
    assert_true(seen.chunks > n / 1000);
    assert_true(seen.in_place > n);
    assert_true(seen.not_finite < n / 50);
    assert_true(seen.groups > n / 3);
    assert_true(seen.repeated_groups > n / 20);
    assert_true(seen.cuda_groups > n / 50);
    assert_true(batched_kernels > n / 10);
    for (uint32_t i = 0; i < PASSES; i++)
        if (seen.passes[i] < n / 2000)
            fail_msg("%s changed %llu graphs only", pass_names[i], (unsigned long long)seen.passes[i]);
}

static void no_engine_destroy(cuda_engine *engine)
{
    (void)engine;
}

/* The backends with groups. Of the CUDA backend what it takes, over an engine that has no card. */
static bool create_grouping(memfit_error *err)
{
    static const cuda_engine_table table = {.destroy = no_engine_destroy};
    static cuda_engine engine = {.table = &table, .block = 256};
    mf_backend *cuda = NULL;
    if (mf_cuda_create_on(NULL, &engine, &cuda, err) != MEMFIT_OK)
        return false;
    mf_group_taker takers[2] = {cuda->groups, cuda->groups};
    cuda->table->destroy(cuda);
    takers[0].takes = takes_all;
    takers[0].whole = NULL;
    for (int i = 0; i < 2; i++) {
        mf_backend *inner = NULL;
        takers[i].attends = attends_wide;
        takers[i].even_rows = 1; /* however small */
        if (mf_reference_create(NULL, &inner, err) != MEMFIT_OK ||
            mf_members_create(NULL, inner, &takers[i], &members[i], err) != MEMFIT_OK ||
            batching_create(members[i], &batching[i], err) != MEMFIT_OK)
            return false;
    }
    return true;
}

int main(void)
{
    memfit_error err = {0};
    if (mf_reference_create(NULL, &reference, &err) != MEMFIT_OK)
        return 1;
    if (!create_grouping(&err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    if (mf_cpu_create(NULL, 1, &cpu, &err) != MEMFIT_OK)
        cpu = NULL;
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_graphs_run_as_they_are)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (cpu)
        cpu->table->destroy(cpu);
    for (int i = 0; i < 2; i++) {
        batching[i]->table->destroy(batching[i]);
        members[i]->table->destroy(members[i]);
    }
    reference->table->destroy(reference);
    return failed;
}
