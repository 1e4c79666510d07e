/*
 * run_trace.c: see run_trace.h.
 *
 * For each phase the placed ranges in the order they appear and in the order they go, with an index by step:
 *
 *     appear[appear_at[s] .. appear_at[s + 1])    ranges whose first step is s
 *     go[go_at[s] .. go_at[s + 1])                ranges whose last step is s
 *
 * A range whose bytes become the next one's in place goes before that one appears, so that no byte is counted twice.
 * A buffer's number is its address in the arena: unique among what is alive.
 */
#include "train/run_trace.h"

#include "base/error.h"
#include "trace/trace.h"

#include <string.h>

typedef struct phase_lists {
    const mf_placed *placed;
    uint32_t *appear, *appear_at, *go, *go_at;
    uint32_t *names; /* by layer */
} phase_lists;

struct mf_run_trace {
    const memfit_host *host;
    const char *path;
    memfit_recorder *recorder; /* made with the first plan */
    uint32_t fixed_name, arena_name, window_name, mark_names[3];
    /* of the plan in force */
    mf_arena arena;
    phase_lists *phases;
    uint32_t *variable_names;
    const mf_plan *plan;
    uint64_t base, arena_bytes, fixed_bytes;
    bool recording;
};

memfit_status mf_run_trace_create(const memfit_host *host, const char *path, mf_run_trace **trace, memfit_error *err)
{
    mf_run_trace *r = mf_host_zalloc(host, sizeof *r);
    if (!r)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the trace");
    r->host = host;
    r->path = path;
    mf_arena_init(&r->arena, host);
    *trace = r;
    return MEMFIT_OK;
}

/* As many names as the first plan has; those of a later one that are new may stay nameless. */
static memfit_status open_recorder(mf_run_trace *r, const mf_plan *plan, memfit_error *err)
{
    memfit_recorder_options o = MEMFIT_RECORDER_OPTIONS;
    o.host = r->host;
    o.path = r->path;
    o.events = 4096;
    o.names = plan->phases[0].graph->layer_count + plan->variable_count + 16;
    memfit_status status = mf_recorder_create_later(&o, &r->recorder, err);
    if (status != MEMFIT_OK)
        return status;
    static const char *const marks[] = {"epoch", "step", "validation"};
    for (int i = 0; i < 3; i++)
        r->mark_names[i] = memfit_recorder_name(r->recorder, marks[i]);
    r->fixed_name = memfit_recorder_name(r->recorder, "fixed cost");
    r->arena_name = memfit_recorder_name(r->recorder, "arena");
    r->window_name = memfit_recorder_name(r->recorder, "window of the optimizer's state");
    return MEMFIT_OK;
}

memfit_status mf_run_trace_open(mf_run_trace *r, memfit_error *err)
{
    return mf_recorder_open_file(r->recorder, err);
}

void mf_run_trace_destroy(mf_run_trace *r)
{
    if (!r)
        return;
    if (r->recorder)
        memfit_recorder_destroy(r->recorder);
    mf_arena_destroy(&r->arena);
    mf_host_free(r->host, r, sizeof *r);
}

memfit_status mf_run_trace_close(mf_run_trace *r, memfit_error *err)
{
    return r->recorder ? memfit_recorder_close(r->recorder, err) : MEMFIT_OK;
}

/* ---- lists ------------------------------------------------------------------------------------------------ */

/* Counting sort of range numbers by `first` or by `last`. */
static void sort_ranges(const mf_phase *phase, bool by_last, uint32_t *at, uint32_t *list)
{
    for (uint32_t i = 0; i < phase->placed_count; i++) {
        uint32_t step = by_last ? phase->placed[i].last : phase->placed[i].first;
        if (step < phase->step_count)
            at[step + 1]++;
    }
    for (uint32_t s = 0; s < phase->step_count; s++)
        at[s + 1] += at[s];
    for (uint32_t i = phase->placed_count; i-- > 0;) {
        uint32_t step = by_last ? phase->placed[i].last : phase->placed[i].first;
        if (step < phase->step_count)
            list[--at[step + 1]] = i;
    }
    /* at[s + 1] was taken down to where step s begins. */
    memmove(at, at + 1, phase->step_count * sizeof *at);
    uint32_t inside = 0;
    for (uint32_t i = 0; i < phase->placed_count; i++)
        inside += (by_last ? phase->placed[i].last : phase->placed[i].first) < phase->step_count;
    at[phase->step_count] = inside;
}

static bool prepare_phase(mf_run_trace *r, const mf_phase *phase, phase_lists *l)
{
    uint32_t n = phase->placed_count + 1, steps = phase->step_count + 2, layers = phase->graph->layer_count;
    *l = (phase_lists){.placed = phase->placed,
                       .appear = MF_NEW_ARRAY(&r->arena, uint32_t, n),
                       .appear_at = MF_NEW_ARRAY(&r->arena, uint32_t, steps),
                       .go = MF_NEW_ARRAY(&r->arena, uint32_t, n),
                       .go_at = MF_NEW_ARRAY(&r->arena, uint32_t, steps),
                       .names = MF_NEW_ARRAY(&r->arena, uint32_t, layers + 1)};
    if (!l->appear || !l->appear_at || !l->go || !l->go_at || !l->names)
        return false;
    for (uint32_t i = 0; i < layers; i++)
        l->names[i] = memfit_recorder_name(r->recorder, phase->graph->layers[i].name);
    sort_ranges(phase, false, l->appear_at, l->appear);
    sort_ranges(phase, true, l->go_at, l->go);
    return true;
}

memfit_status mf_run_trace_prepare(mf_run_trace *r, const mf_trainer *t, memfit_error *err)
{
    const mf_graph *g = mf_trainer_graph(t);
    memfit_status status = r->recorder ? MEMFIT_OK : open_recorder(r, t->plan, err);
    if (status != MEMFIT_OK)
        return status;
    mf_arena_destroy(&r->arena);
    mf_arena_init(&r->arena, r->host);
    r->plan = t->plan;
    r->phases = MF_NEW_ARRAY(&r->arena, phase_lists, t->plan->phase_count);
    r->variable_names = MF_NEW_ARRAY(&r->arena, uint32_t, t->plan->variable_count + 1);
    bool enough = r->phases && r->variable_names;
    for (uint32_t p = 0; enough && p < t->plan->phase_count; p++)
        enough = prepare_phase(r, &t->plan->phases[p], &r->phases[p]);
    if (!enough)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the trace");
    for (uint32_t v = 0; v < t->plan->variable_count && v < g->variable_count; v++) {
        const mf_variable *var = &g->variables[v];
        char name[200];
        const char *layer = var->layer < g->layer_count ? g->layers[var->layer].name : "";
        snprintf(name, sizeof name, "%s%s%s", layer, layer[0] ? "/" : "", var->name ? var->name : "?");
        r->variable_names[v] = memfit_recorder_name(r->recorder, name);
    }
    return MEMFIT_OK;
}

/* ---- events ----------------------------------------------------------------------------------------------- */

static void put(mf_run_trace *r, memfit_event_op op, uint64_t id, uint64_t bytes, memfit_kind kind, uint32_t name)
{
    memfit_event e = {.id = id, .bytes = bytes, .name = name, .op = (uint8_t)op, .kind = (uint8_t)kind};
    memfit_recorder_put(r->recorder, &e);
}

static void put_lasting(mf_run_trace *r, memfit_event_op op)
{
    put(r, op, 1, r->fixed_bytes, MEMFIT_KIND_FIXED, r->fixed_name);
    for (uint32_t v = 0; v < r->plan->variable_count; v++)
        if (r->plan->variable_offsets[v] != MF_NO_OFFSET && r->plan->variable_bytes[v] && !r->plan->variable_windows[v])
            put(r, op, r->base + r->plan->variable_offsets[v], r->plan->variable_bytes[v], r->plan->variable_kinds[v],
                r->variable_names[v]);
    for (uint32_t w = 0; w < MF_WINDOWS; w++)
        if (r->plan->window_bytes[w])
            put(r, op, r->base + r->plan->windows[w], r->plan->window_bytes[w], MEMFIT_KIND_OPTIMIZER, r->window_name);
}

void mf_run_trace_begin(mf_run_trace *r, const mf_trainer *t)
{
    r->base = t->arena.base;
    r->arena_bytes = t->plan->arena_bytes;
    r->fixed_bytes = t->fixed_bytes;
    put(r, MEMFIT_EVENT_LIMIT, 0, t->limit_bytes, MEMFIT_KIND_FIXED, 0);
    put(r, MEMFIT_EVENT_MAP, r->base, r->arena_bytes, MEMFIT_KIND_ACTIVATIONS, r->arena_name);
    put_lasting(r, MEMFIT_EVENT_ALLOC);
    r->recording = true;
}

void mf_run_trace_end(mf_run_trace *r)
{
    if (!r->recording)
        return;
    r->recording = false;
    put_lasting(r, MEMFIT_EVENT_FREE);
    put(r, MEMFIT_EVENT_UNMAP, r->base, r->arena_bytes, MEMFIT_KIND_ACTIVATIONS, r->arena_name);
}

void mf_run_trace_mark(mf_run_trace *r, mf_run_mark mark)
{
    if (r && r->recording)
        put(r, MEMFIT_EVENT_MARK, 0, 0, MEMFIT_KIND_FIXED, r->mark_names[mark]);
}

static void put_range(mf_run_trace *r, const phase_lists *l, uint32_t i, memfit_event_op op)
{
    const mf_placed *p = &l->placed[i];
    if (p->bytes)
        put(r, op, r->base + p->offset, p->bytes, p->kind, l->names[p->layer]);
}

void mf_run_trace_step(void *trace, uint32_t phase, uint32_t step, bool begins)
{
    mf_run_trace *r = trace;
    if (!r->recording)
        return;
    const phase_lists *l = &r->phases[phase];
    for (uint32_t i = l->go_at[step]; i < l->go_at[step + 1]; i++)
        if (l->placed[l->go[i]].handed_on == begins)
            put_range(r, l, l->go[i], MEMFIT_EVENT_FREE);
    for (uint32_t i = l->appear_at[step]; begins && i < l->appear_at[step + 1]; i++)
        put_range(r, l, l->appear[i], MEMFIT_EVENT_ALLOC);
}
