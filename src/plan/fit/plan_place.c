/*
 * plan_place.c: where everything lies.
 *
 *   lives that share a buffer --> one pack buffer, from the first birth to the last death
 *   a workspace               --> a pack buffer that lives for one step
 *   packed offsets            --> the offset of every operand of every step
 *
 * Variables are laid one after another at the bottom, in their own order, once for all phases; behind them the windows.
 */
#include "plan/fit/plan_place.h"
#include "base/bytes.h"

#include "base/error.h"
#include "pack/pack.h"

#include <string.h>

static uint64_t variable_bytes(const mf_graph *graph, const mf_cost_source *cost, uint32_t v)
{
    /* Variables are numbered alike in all graphs, so some have a number but no use here: accumulators of a batch in one
     * piece, slots when only predicting. They take no place. */
    const mf_variable *variable = &graph->variables[v];
    if (variable->tensor == MF_NONE && (variable->role == MF_VAR_GRADIENT || variable->role == MF_VAR_SLOT ||
                                        variable->role == MF_VAR_EMA || variable->role == MF_VAR_CONTROL))
        return 0;
    if (cost && cost->variable_bytes)
        return cost->variable_bytes(cost->ctx, graph, v);
    return mf_shape_count(&graph->variables[v].shape) * mf_dtype_bytes(graph->variables[v].dtype);
}

static uint64_t alignment_of(const mf_cost_source *cost)
{
    return cost && cost->alignment ? cost->alignment : 64;
}

/* ---- windows: see mf_plan ---------------------------------------------------------------------------------- */

bool mf_variable_is_offloaded(const mf_graph *graph, uint32_t variable)
{
    return graph->variables[variable].role == MF_VAR_SLOT && graph->variables[variable].tensor != MF_NONE;
}

/* The slots that an operation reads, one behind the other: their bytes. With a plan they get their places, from `at` on. */
static uint64_t slots_of(const mf_graph *graph, const mf_cost_source *cost, const mf_op *op, mf_plan *plan, uint64_t at,
                         uint8_t window)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < op->in_count; i++) {
        uint32_t v = op->in[i] == MF_NONE ? MF_NONE : graph->storages[graph->tensors[op->in[i]].storage].variable;
        if (v == MF_NONE || !mf_variable_is_offloaded(graph, v))
            continue;
        if (plan) {
            plan->variable_offsets[v] = at + bytes;
            plan->variable_windows[v] = window;
        }
        bytes += mf_round_up(variable_bytes(graph, cost, v), alignment_of(cost));
    }
    return bytes;
}

/* Operations take turns in the windows, in the graph's order: how large each must be. */
static void measure_windows(const mf_graph *graph, const mf_cost_source *cost, uint64_t bytes[MF_WINDOWS])
{
    uint32_t turn = 0;
    for (uint32_t o = 0; o < graph->op_count; o++) {
        uint64_t need = slots_of(graph, cost, &graph->ops[o], NULL, 0, 0);
        if (need && need > bytes[turn % MF_WINDOWS])
            bytes[turn % MF_WINDOWS] = need;
        turn += need > 0;
    }
}

static uint64_t place_windows(mf_plan *plan, const mf_graph *graph, const mf_cost_source *cost, uint64_t end)
{
    uint32_t turn = 0;
    measure_windows(graph, cost, plan->window_bytes);
    for (uint32_t w = 0; w < MF_WINDOWS; w++) {
        plan->windows[w] = end;
        end += plan->window_bytes[w];
    }
    for (uint32_t o = 0; o < graph->op_count; o++)
        turn += slots_of(graph, cost, &graph->ops[o], plan, plan->windows[turn % MF_WINDOWS],
                         (uint8_t)(turn % MF_WINDOWS + 1)) > 0;
    for (uint32_t v = 0; v < graph->variable_count; v++)
        if (plan->variable_windows[v])
            plan->offloaded_bytes += mf_round_up(plan->variable_bytes[v], plan->alignment);
    return end;
}

/* ---- variables --------------------------------------------------------------------------------------------- */

uint64_t mf_variables_bytes(const mf_graph *graph, const mf_cost_source *cost, bool offload)
{
    uint64_t end = 0, windows[MF_WINDOWS] = {0};
    for (uint32_t v = 0; v < graph->variable_count; v++)
        if (!offload || !mf_variable_is_offloaded(graph, v))
            end += mf_round_up(variable_bytes(graph, cost, v), alignment_of(cost));
    if (offload)
        measure_windows(graph, cost, windows);
    return end + windows[0] + windows[1];
}

memfit_status mf_place_variables(mf_plan *plan, const mf_graph *graph, const mf_cost_source *cost, bool offload,
                                 memfit_error *err)
{
    plan->alignment = alignment_of(cost);
    plan->variable_count = graph->variable_count;
    plan->variable_offsets = MF_NEW_ARRAY(&plan->arena, uint64_t, graph->variable_count);
    plan->variable_bytes = MF_NEW_ARRAY(&plan->arena, uint64_t, graph->variable_count);
    plan->variable_kinds = MF_NEW_ARRAY(&plan->arena, memfit_kind, graph->variable_count);
    plan->variable_windows = MF_NEW_ARRAY(&plan->arena, uint8_t, graph->variable_count);
    if (!plan->variable_offsets || !plan->variable_bytes || !plan->variable_kinds || !plan->variable_windows)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to place %u variables", graph->variable_count);
    uint64_t end = 0;
    for (uint32_t v = 0; v < graph->variable_count; v++) {
        plan->variable_offsets[v] = end;
        plan->variable_bytes[v] = variable_bytes(graph, cost, v);
        plan->variable_kinds[v] = graph->variables[v].kind;
        if (!offload || !mf_variable_is_offloaded(graph, v))
            end += mf_round_up(plan->variable_bytes[v], plan->alignment);
    }
    plan->variables_end = offload ? place_windows(plan, graph, cost, end) : end;
    return MEMFIT_OK;
}

/* ---- packing ---------------------------------------------------------------------------------------------- */

typedef struct packing {
    mf_pack_buffer *buffers;
    size_t count, capacity;
    uint32_t *of_life;      /* life -> buffer */
    uint32_t *of_workspace; /* run -> buffer, MF_NONE without one */
    size_t life_count, run_count;
} packing;

static void packing_free(packing *p, const memfit_host *host)
{
    mf_host_free(host, p->buffers, p->capacity * sizeof *p->buffers);
    mf_host_free(host, p->of_life, p->life_count * sizeof *p->of_life);
    mf_host_free(host, p->of_workspace, p->run_count * sizeof *p->of_workspace);
    *p = (packing){0};
}

static memfit_status packing_make(packing *p, const memfit_host *host, const mf_flow *flow, const mf_sequence *q,
                                  memfit_error *err)
{
    *p = (packing){.life_count = q->life_count, .run_count = q->run_count};
    p->capacity = q->life_count + q->run_count;
    p->buffers = mf_host_zalloc(host, p->capacity * sizeof *p->buffers);
    p->of_life = mf_host_alloc(host, p->life_count * sizeof *p->of_life);
    p->of_workspace = mf_host_alloc(host, p->run_count * sizeof *p->of_workspace);
    if ((p->capacity && !p->buffers) || (p->life_count && !p->of_life) || (p->run_count && !p->of_workspace)) {
        packing_free(p, host);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to pack %u tensors", q->life_count);
    }
    for (uint32_t i = 0; i < q->life_count; i++) {
        const mf_life *life = &q->lives[i];
        if (life->buffer == i) {
            p->of_life[i] = (uint32_t)p->count;
            p->buffers[p->count++] = (mf_pack_buffer){.lower = life->birth,
                                                      .upper = life->death + 1,
                                                      .size = flow->cells[life->cell].bytes,
                                                      .alignment = flow->alignment};
        } else { /* the first life of a buffer always comes before those that take it over */
            p->of_life[i] = p->of_life[life->buffer];
            if (p->buffers[p->of_life[i]].upper < life->death + 1)
                p->buffers[p->of_life[i]].upper = life->death + 1;
        }
    }
    for (uint32_t r = 0; r < q->run_count; r++) {
        p->of_workspace[r] = MF_NONE;
        if (!flow->workspace[q->runs[r].op])
            continue;
        p->of_workspace[r] = (uint32_t)p->count;
        p->buffers[p->count++] = (mf_pack_buffer){
            .lower = r, .upper = r + 1, .size = flow->workspace[q->runs[r].op], .alignment = flow->alignment};
    }
    return MEMFIT_OK;
}

/* Greedy orders first; more effort only where they leave a gap that matters: above the room, or (thorough) more than a
 * thousandth above the bound. One thread, so that a plan is the same every time it is made. */
static memfit_status pack(packing *p, const memfit_host *host, uint64_t load, uint64_t room, bool thorough,
                          mf_pack_result *result, memfit_error *err)
{
    mf_pack_options options = MEMFIT_PACK_OPTIONS;
    options.host = host;
    options.effort = MEMFIT_PACK_QUICK;
    options.capacity = load + load / 2000;
    options.threads = 1;
    memfit_status status = mf_pack(host, p->buffers, p->count, &options, result, err);
    bool fits = room && result->height <= room, close = result->height <= load + load / 1000;
    if (status != MEMFIT_OK || close || (fits && !thorough) || (room && load > room && !thorough))
        return status;
    options.effort = MEMFIT_PACK_PORTFOLIO;
    options.capacity = thorough || !room ? load + load / 1000 : room;
    return mf_pack(host, p->buffers, p->count, &options, result, err);
}

/* ---- steps ------------------------------------------------------------------------------------------------ */

typedef struct placing {
    mf_plan *plan;
    const mf_flow *flow;
    const mf_sequence *q;
    const packing *p;
    uint64_t base;
} placing;

/* The arena offset of a tensor as run r meets it. */
static uint64_t operand_offset(const placing *w, uint32_t r, uint32_t tensor)
{
    if (tensor == MF_NONE)
        return MF_NO_OFFSET;
    const mf_tensor *t = &w->flow->graph->tensors[tensor];
    uint32_t c = w->flow->root[t->storage], o = w->q->runs[r].op, k = w->q->runs[r].touch;
    if (w->flow->cells[c].variable != MF_NONE)
        return w->plan->variable_offsets[w->flow->cells[c].variable] + t->offset;
    for (uint32_t i = w->flow->read_at[o]; i < w->flow->read_at[o + 1]; i++, k++)
        if (w->flow->reads[i] == c)
            return w->base + w->p->buffers[w->p->of_life[w->q->touches[k]]].offset + t->offset;
    for (uint32_t i = w->flow->write_at[o]; i < w->flow->write_at[o + 1]; i++, k++)
        if (w->flow->writes[i] == c)
            return w->base + w->p->buffers[w->p->of_life[w->q->touches[k]]].offset + t->offset;
    MEMFIT_DCHECK(!"an operand that its operation does not touch");
    return MF_NO_OFFSET;
}

/* The methods chosen, by operation, where they live as long as the plan. NULL: there was no choice, or no memory. */
static const mf_method **flow_methods(const placing *w)
{
    uint32_t count = w->flow->method ? w->flow->graph->op_count : 0;
    const mf_method **methods = count ? MF_NEW_ARRAY(&w->plan->arena, const mf_method *, count) : NULL;
    for (uint32_t o = 0; methods && o < count; o++) {
        mf_method *copy = w->flow->method[o] ? MF_NEW_ARRAY(&w->plan->arena, mf_method, 1) : NULL;
        if (w->flow->method[o] && !copy)
            return NULL;
        if (copy)
            *copy = *w->flow->method[o];
        methods[o] = copy;
    }
    return methods;
}

static memfit_status make_steps(const placing *w, mf_phase *phase, memfit_error *err)
{
    const mf_graph *g = w->flow->graph;
    size_t operands = 0;
    for (uint32_t r = 0; r < w->q->run_count; r++)
        operands += g->ops[w->q->runs[r].op].in_count + g->ops[w->q->runs[r].op].out_count;
    phase->step_count = w->q->run_count;
    phase->steps = MF_NEW_ARRAY(&w->plan->arena, mf_step, w->q->run_count);
    uint64_t *offsets = MF_NEW_ARRAY(&w->plan->arena, uint64_t, operands);
    const mf_method **methods = flow_methods(w);
    if (!phase->steps || !offsets || (w->flow->method && !methods))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for %u steps", w->q->run_count);
    for (uint32_t r = 0; r < w->q->run_count; r++) {
        const mf_op *op = &g->ops[w->q->runs[r].op];
        mf_step *step = &phase->steps[r];
        *step = (mf_step){.op = w->q->runs[r].op,
                          .recomputed = w->q->runs[r].again,
                          .offsets = offsets,
                          .workspace_offset = MF_NO_OFFSET,
                          .method = methods ? methods[w->q->runs[r].op] : NULL};
        for (uint32_t i = 0; i < op->in_count; i++)
            *offsets++ = operand_offset(w, r, op->in[i]);
        for (uint32_t i = 0; i < op->out_count; i++)
            *offsets++ = operand_offset(w, r, op->out[i]);
        if (w->p->of_workspace[r] != MF_NONE) {
            step->workspace_offset = w->base + w->p->buffers[w->p->of_workspace[r]].offset;
            step->workspace_bytes = w->flow->workspace[step->op];
        }
    }
    return MEMFIT_OK;
}

static memfit_status make_placed(const placing *w, mf_phase *phase, memfit_error *err)
{
    phase->placed = MF_NEW_ARRAY(&w->plan->arena, mf_placed, w->p->life_count + w->p->run_count);
    if (!phase->placed)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for %u steps", w->q->run_count);
    for (uint32_t i = 0; i < w->q->life_count; i++) {
        const mf_life *life = &w->q->lives[i];
        const mf_cell *cell = &w->flow->cells[life->cell];
        phase->placed[phase->placed_count++] = (mf_placed){.storage = life->cell,
                                                           .first = life->birth,
                                                           .last = life->death,
                                                           .offset = w->base + w->p->buffers[w->p->of_life[i]].offset,
                                                           .bytes = cell->raw,
                                                           .kind = cell->kind,
                                                           .layer = cell->layer,
                                                           .handed_on = life->handed_on};
    }
    for (uint32_t r = 0; r < w->q->run_count; r++)
        if (w->p->of_workspace[r] != MF_NONE)
            phase->placed[phase->placed_count++] =
                (mf_placed){.storage = MF_NONE,
                            .first = r,
                            .last = r,
                            .offset = w->base + w->p->buffers[w->p->of_workspace[r]].offset,
                            .bytes = w->flow->workspace[w->q->runs[r].op],
                            .kind = MEMFIT_KIND_WORKSPACE,
                            .layer = w->flow->graph->ops[w->q->runs[r].op].layer};
    return MEMFIT_OK;
}

memfit_status mf_place_phase(mf_plan *plan, const mf_flow *flow, const mf_sequence *q, uint64_t room, bool thorough,
                             mf_phase *phase, memfit_error *err)
{
    packing p;
    mf_pack_result result = {0};
    memfit_status status = packing_make(&p, plan->arena.host, flow, q, err);
    if (status != MEMFIT_OK)
        return status;
    status = pack(&p, plan->arena.host, q->peak, room, thorough, &result, err);
    placing w = {plan, flow, q, &p, plan->variables_end};
    if (status == MEMFIT_OK)
        status = make_steps(&w, phase, err);
    if (status == MEMFIT_OK)
        status = make_placed(&w, phase, err);
    packing_free(&p, plan->arena.host);
    if (status != MEMFIT_OK)
        return status;
    phase->bytes = plan->variables_end + result.height;
    phase->load_bytes = q->peak;
    phase->peak_step = q->peak_at;
    phase->recomputed = q->again_count;
    phase->time_us = q->time_us;
    phase->once_us = q->once_us;
    phase->numerics = flow->numerics;
    return MEMFIT_OK;
}
