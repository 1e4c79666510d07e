/* offload.c: see offload.h. */
#include "train/offload.h"

#include "base/bytes.h"
#include "base/error.h"
#include "base/memory.h"

#include <string.h>

/* ---- turns -------------------------------------------------------------------------------------------------- */

static uint32_t variable_of(const mf_graph *graph, uint32_t tensor)
{
    return tensor == MF_NONE ? MF_NONE : graph->storages[graph->tensors[tensor].storage].variable;
}

/* The window that an operation's slots come through, from 1, and how far they reach into it; 0: it has none. */
static uint32_t window_of(const mf_plan *plan, const mf_graph *graph, const mf_op *op, uint64_t *bytes)
{
    uint32_t window = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < op->in_count; i++) {
        uint32_t v = variable_of(graph, op->in[i]);
        if (v == MF_NONE || !plan->variable_windows[v])
            continue;
        window = plan->variable_windows[v];
        uint64_t end = plan->variable_offsets[v] + plan->variable_bytes[v] - plan->windows[window - 1];
        *bytes = end > *bytes ? end : *bytes;
    }
    return window;
}

/* Turn after turn, as in the windows. */
static void give_places(mf_offload *o, const mf_graph *graph)
{
    const mf_plan *plan = o->plan;
    for (uint32_t i = 0; i < graph->op_count; i++) {
        uint64_t bytes;
        uint32_t window = window_of(plan, graph, &graph->ops[i], &bytes);
        for (uint32_t k = 0; window && k < graph->ops[i].in_count; k++) {
            uint32_t v = variable_of(graph, graph->ops[i].in[k]);
            if (v != MF_NONE && plan->variable_windows[v])
                o->places[v] = o->bytes + plan->variable_offsets[v] - plan->windows[window - 1];
        }
        o->bytes += mf_round_up(bytes, plan->alignment);
    }
}

static uint64_t place_of(const mf_offload *o, const mf_graph *graph, const mf_op *op, uint32_t window)
{
    uint64_t place = UINT64_MAX;
    for (uint32_t i = 0; i < op->in_count; i++) {
        uint32_t v = variable_of(graph, op->in[i]);
        if (v == MF_NONE || !o->plan->variable_windows[v])
            continue;
        uint64_t at = o->places[v] - (o->plan->variable_offsets[v] - o->plan->windows[window - 1]);
        place = at < place ? at : place;
    }
    return place;
}

static memfit_status find_turns(mf_offload *o, mf_arena *arena, uint32_t phase, memfit_error *err)
{
    const mf_phase *p = &o->plan->phases[phase];
    mf_turns *turns = &o->turns[phase];
    uint64_t bytes;
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->step_count; i++)
        count += window_of(o->plan, p->graph, &p->graph->ops[p->steps[i].op], &bytes) > 0;
    turns->list = MF_NEW_ARRAY(arena, mf_turn, count + 1);
    if (!turns->list)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to list the updates");
    for (uint32_t i = 0; i < p->step_count; i++) {
        const mf_op *op = &p->graph->ops[p->steps[i].op];
        uint32_t window = window_of(o->plan, p->graph, op, &bytes);
        if (window)
            turns->list[turns->count++] = (mf_turn){
                .op = op, .step = i, .window = window - 1, .place = place_of(o, p->graph, op, window), .bytes = bytes};
    }
    return MEMFIT_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------- */

static memfit_status take_memory(mf_offload *o, memfit_error *err)
{
    void *memory = NULL;
    memfit_status status = MEMFIT_OK;
    if (o->device->table->host_take)
        status = o->device->table->host_take(o->device, o->bytes, &memory, err);
    else if (!(memory = mf_host_alloc(o->host, o->bytes)))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the optimizer's state");
    if (memory)
        memset(memory, 0, o->bytes); /* its pages are there from now on */
    o->memory = memory;
    if (status != MEMFIT_OK) {
        char text[24];
        mf_error_prefix(err, status, "--offload: %s of host memory for the optimizer's state",
                        memfit_size_format(o->bytes, text, sizeof text));
    }
    return status;
}

static memfit_status make_streams(mf_offload *o, memfit_error *err)
{
    const mf_device_table *table = o->device->table;
    mf_event *events[2 + 3 * MF_WINDOWS] = {&o->begun, &o->over};
    for (unsigned w = 0; w < MF_WINDOWS; w++) {
        events[2 + 3 * w] = &o->arrived[w];
        events[3 + 3 * w] = &o->ran[w];
        events[4 + 3 * w] = &o->left[w];
    }
    memfit_status status = table->stream_create(o->device, &o->arrive, err);
    if (status == MEMFIT_OK)
        status = table->stream_create(o->device, &o->leave, err);
    for (size_t i = 0; i < sizeof events / sizeof *events && status == MEMFIT_OK; i++)
        status = table->event_create(o->device, events[i], err);
    return status;
}

memfit_status mf_offload_create(mf_offload *o, mf_arena *arena, const memfit_host *host, mf_device *device,
                                mf_stream stream, const mf_plan *plan, void *base, memfit_error *err)
{
    *o = (mf_offload){.plan = plan};
    if (!plan->offloaded_bytes)
        return MEMFIT_OK;
    *o = (mf_offload){.host = host, .device = device, .stream = stream, .plan = plan, .base = base};
    o->places = MF_NEW_ARRAY(arena, uint64_t, plan->variable_count + 1);
    o->turns = MF_NEW_ARRAY(arena, mf_turns, plan->phase_count + 1);
    if (!o->places || !o->turns)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to list the updates");
    give_places(o, plan->phases[0].graph);
    memfit_status status = MEMFIT_OK;
    for (uint32_t p = 0; p < plan->phase_count && status == MEMFIT_OK; p++)
        status = find_turns(o, arena, p, err);
    if (status == MEMFIT_OK)
        status = take_memory(o, err);
    if (status == MEMFIT_OK)
        status = make_streams(o, err);
    return status;
}

void mf_offload_destroy(mf_offload *o)
{
    if (!o->device)
        return;
    const mf_device_table *table = o->device->table;
    table->stream_sync(o->device, o->stream, NULL); /* copies may still be on their way */
    const mf_event events[] = {o->begun,  o->over,   o->arrived[0], o->arrived[1],
                               o->ran[0], o->ran[1], o->left[0],    o->left[1]};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            table->event_destroy(o->device, events[i], NULL);
    if (o->arrive)
        table->stream_destroy(o->device, o->arrive, NULL);
    if (o->leave)
        table->stream_destroy(o->device, o->leave, NULL);
    if (o->memory && table->host_take)
        table->host_give(o->device, o->memory, o->bytes);
    else
        mf_host_free(o->host, o->memory, o->bytes);
    *o = (mf_offload){0};
}

void *mf_offload_variable(const mf_offload *o, uint32_t variable)
{
    return o->memory && o->plan->variable_windows[variable] ? o->memory + o->places[variable] : NULL;
}

bool mf_offload_holds(const mf_offload *o, mf_address address)
{
    mf_address memory = (mf_address)(uintptr_t)o->memory;
    return o->memory && address >= memory && address < memory + o->bytes;
}

/* ---- a run -------------------------------------------------------------------------------------------------- */

/* `stream` goes on when `before` has done what it has by now. A device without such a call does everything in turn. */
static memfit_status follow(const mf_offload *o, mf_stream stream, mf_stream before, mf_event event, memfit_error *err)
{
    const mf_device_table *table = o->device->table;
    return table->stream_follow ? table->stream_follow(o->device, stream, before, event, err) : MEMFIT_OK;
}

static memfit_status bring(mf_offload *o, const mf_turn *t, memfit_error *err)
{
    mf_address to = (mf_address)(uintptr_t)o->base + o->plan->windows[t->window];
    return o->device->table->copy_in(o->device, to, o->memory + t->place, t->bytes, o->arrive, err);
}

/* The next turn from `from` on in this window that this run takes; NULL: none. */
static const mf_turn *next_turn(const mf_offload_run *r, uint32_t from, uint32_t window)
{
    for (uint32_t i = from; i < r->turns->count; i++)
        if (r->turns->list[i].window == window && r->due(r->turns->list[i].op, r->ctx))
            return &r->turns->list[i];
    return NULL;
}

memfit_status mf_offload_begin(mf_offload_run *r, mf_offload *o, uint32_t phase, mf_offload_due *due, const void *ctx,
                               memfit_error *err)
{
    *r = (mf_offload_run){.offload = o, .due = due, .ctx = ctx};
    if (!o->memory)
        return MEMFIT_OK;
    r->turns = &o->turns[phase];
    memfit_status status = MEMFIT_OK;
    for (uint32_t w = 0; w < MF_WINDOWS && status == MEMFIT_OK; w++) {
        const mf_turn *first = next_turn(r, 0, w);
        if (!first)
            continue;
        if (!r->any)
            status = follow(o, o->arrive, o->stream, o->begun, err);
        r->any = true;
        if (status == MEMFIT_OK)
            status = bring(o, first, err);
    }
    return status;
}

static const mf_turn *turn_at(const mf_offload_run *r, uint32_t step)
{
    return r->any && r->next < r->turns->count && r->turns->list[r->next].step == step ? &r->turns->list[r->next]
                                                                                       : NULL;
}

memfit_status mf_offload_before(mf_offload_run *r, uint32_t step, memfit_error *err)
{
    const mf_turn *t = turn_at(r, step);
    mf_offload *o = r->offload;
    return t && r->due(t->op, r->ctx) ? follow(o, o->stream, o->arrive, o->arrived[t->window], err) : MEMFIT_OK;
}

memfit_status mf_offload_after(mf_offload_run *r, uint32_t step, memfit_error *err)
{
    const mf_turn *t = turn_at(r, step);
    mf_offload *o = r->offload;
    if (!t)
        return MEMFIT_OK;
    r->next++;
    if (!r->due(t->op, r->ctx))
        return MEMFIT_OK;
    mf_address from = (mf_address)(uintptr_t)o->base + o->plan->windows[t->window];
    memfit_status status = follow(o, o->leave, o->stream, o->ran[t->window], err);
    if (status == MEMFIT_OK)
        status = o->device->table->copy_out(o->device, o->memory + t->place, from, t->bytes, o->leave, err);
    const mf_turn *next = next_turn(r, r->next, t->window);
    if (status == MEMFIT_OK && next)
        status = follow(o, o->arrive, o->leave, o->left[t->window], err);
    return status == MEMFIT_OK && next ? bring(o, next, err) : status;
}

memfit_status mf_offload_end(mf_offload_run *r, memfit_error *err)
{
    mf_offload *o = r->offload;
    return r->any ? follow(o, o->stream, o->leave, o->over, err) : MEMFIT_OK;
}
