/*
 * report_steps.c: where steps begin, and what grows from one to the next.
 *
 * Marks: those named "step", or of a name that is "step" and a number; failing that, of the name that comes most often
 * (numbers in names do not count). Without marks the curve is followed with a threshold: a lowest point is the begin of a step
 * when memory has risen by the threshold before and after it. The threshold is half of what memory moves in the middle of
 * the trace, so that neither loading a model nor its end decides.
 *
 * An owner grows when at the begins of the steps it holds more and more: at least two rises, at most a quarter as many
 * falls, and in all at least a thousandth of the peak. The first step does not count where there are enough others:
 * optimizers and caches fill in it. Only owners that changed are looked at, so the cost is by events, not by steps
 * times owners.
 */
#include "answer/report_parts.h"

#include "base/error.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

enum { MOST_STEPS = 1 << 20, LEAST_STEPS = 3 };

static const char no_memory[] = "no memory for the steps of a trace";

/* ---- marks ------------------------------------------------------------------------------------------------ */

/* Is this the same mark but for numbers in it? */
static bool same_mark(const char *a, const char *b)
{
    for (;; a++, b++) {
        while (isdigit((unsigned char)*a))
            a++;
        while (isdigit((unsigned char)*b))
            b++;
        if (*a != *b)
            return false;
        if (!*a)
            return true;
    }
}

/* The name whose marks are steps, or NULL. Names are few: each is compared with those before it. */
static const char *step_mark(const mf_report *r, uint32_t *counts)
{
    const char *best = NULL;
    uint64_t most = 1;
    for (uint64_t i = 0; i < r->event_count; i++)
        if (r->events[i].op == MEMFIT_EVENT_MARK)
            counts[r->events[i].name]++;
    enum { LOOK = 4096 }; /* marks of more names are told apart by their first 4,096 */
    uint32_t looked = 0;
    for (uint32_t a = 1; a < r->info.names && looked < LOOK; a++) {
        const char *name = memfit_trace_name(r->trace, a);
        uint64_t sum = 0;
        if (!counts[a])
            continue;
        looked++;
        if (best && same_mark(name, best))
            continue;
        for (uint32_t b = a; b < r->info.names; b++)
            if (counts[b] && same_mark(name, memfit_trace_name(r->trace, b)))
                sum += counts[b];
        bool is_step = same_mark(name, "step") || same_mark(name, "step ") || same_mark(name, "ProfilerStep#");
        if (sum > 1 && is_step)
            return name;
        if (sum > most) {
            most = sum;
            best = name;
        }
    }
    return best;
}

static memfit_status take_marks(mf_report *r, const char *name, memfit_error *err)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < r->event_count; i++)
        count +=
            r->events[i].op == MEMFIT_EVENT_MARK && same_mark(memfit_trace_name(r->trace, r->events[i].name), name);
    count = count < MOST_STEPS ? count : MOST_STEPS;
    r->steps = MF_NEW_ARRAY(&r->arena, mf_report_step, count);
    if (!r->steps)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
    for (uint64_t i = 0; i < r->event_count && r->step_count < count; i++)
        if (r->events[i].op == MEMFIT_EVENT_MARK && same_mark(memfit_trace_name(r->trace, r->events[i].name), name))
            r->steps[r->step_count++] = (mf_report_step){.event = i, .time_ns = r->events[i].time_ns};
    return MEMFIT_OK;
}

/* ---- the curve -------------------------------------------------------------------------------------------- */

typedef struct level {
    uint64_t low, high;
} level;

/* Lowest and highest of the middle of the trace. */
static level middle_of(const mf_report *r)
{
    level l = {UINT64_MAX, 0};
    uint64_t now = 0, seen = 0, from = r->moved / 4, to = r->moved - r->moved / 10;
    for (uint64_t i = 0; i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (!mf_report_moves(r, e))
            continue;
        now += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        if (seen++ < from || seen > to)
            continue;
        l.low = now < l.low ? now : l.low;
        l.high = now > l.high ? now : l.high;
    }
    l.low = l.low > l.high ? l.high : l.low;
    return l;
}

/* Follows the curve; a valley between two rises of `threshold` is handed to the steps, when there are any to fill. */
static uint32_t find_valleys(mf_report *r, uint64_t threshold, mf_report_step *steps)
{
    uint64_t now = 0, low = 0, high = 0, low_event = 0;
    uint32_t count = 0;
    bool falling = false, risen = false;
    for (uint64_t i = 0; i < r->event_count && count < MOST_STEPS; i++) {
        const memfit_event *e = &r->events[i];
        if (!mf_report_moves(r, e))
            continue;
        now += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        if (!falling) {
            high = now > high ? now : high;
            if (high - now >= threshold) {
                risen = risen || high >= threshold;
                falling = true;
                low = now;
                low_event = i;
            }
        } else if (now < low) {
            low = now;
            low_event = i;
        } else if (now - low >= threshold) {
            if (risen) {
                if (steps)
                    steps[count] = (mf_report_step){.event = low_event, .time_ns = r->events[low_event].time_ns};
                count++;
            }
            falling = false;
            high = now;
        }
    }
    return count;
}

static memfit_status take_valleys(mf_report *r, memfit_error *err)
{
    level l = middle_of(r);
    uint64_t threshold = (l.high - l.low) / 2;
    uint32_t count = threshold ? find_valleys(r, threshold, NULL) : 0;
    if (count < LEAST_STEPS - 1)
        return MEMFIT_OK; /* not enough to speak of steps */
    r->steps = MF_NEW_ARRAY(&r->arena, mf_report_step, (uint64_t)count + 1);
    if (!r->steps)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
    r->step_count = 1 + find_valleys(r, threshold, r->steps + 1); /* the first begins with the trace */
    r->steps_found = true;
    return MEMFIT_OK;
}

/* ---- each step's bytes ------------------------------------------------------------------------------------ */

static void measure_steps(mf_report *r)
{
    uint64_t now = 0;
    uint32_t next = 0;
    for (uint64_t i = 0; i < r->event_count && r->step_count; i++) {
        const memfit_event *e = &r->events[i];
        if (mf_report_moves(r, e))
            now += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        if (next < r->step_count && r->steps[next].event == i)
            r->steps[next++].begin_bytes = now;
        if (next && now > r->steps[next - 1].peak_bytes)
            r->steps[next - 1].peak_bytes = now;
    }
}

memfit_status mf_report_find_steps(mf_report *r, memfit_error *err)
{
    uint32_t *counts = mf_host_zalloc(r->arena.host, r->info.names * sizeof *counts);
    if (!counts)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
    const char *mark = step_mark(r, counts);
    memfit_status status = mark ? take_marks(r, mark, err) : take_valleys(r, err);
    mf_host_free(r->arena.host, counts, r->info.names * sizeof *counts);
    if (!status)
        measure_steps(r);
    return status;
}

/* ---- growth ----------------------------------------------------------------------------------------------- */

typedef struct growth {
    uint64_t *live, *at_last; /* by owner: now, at the last begin of a step */
    uint32_t *changed;        /* owners that changed since */
    bool *is_changed;
    uint32_t count;
} growth;

static void begin_step(mf_report *r, growth *g, uint32_t step, uint32_t first)
{
    for (uint32_t i = 0; i < g->count; i++) {
        uint32_t k = g->changed[i];
        mf_report_owner *o = &r->owners[k];
        if (step <= first) {
            o->first_bytes = g->live[k];
        } else {
            o->rises += g->live[k] > g->at_last[k];
            o->falls += g->live[k] < g->at_last[k];
        }
        g->at_last[k] = o->last_bytes = g->live[k];
        g->is_changed[k] = false;
    }
    g->count = 0;
}

static void walk_steps(mf_report *r, growth *g, uint32_t first)
{
    uint32_t next = 0;
    for (uint64_t i = 0; i < r->event_count && next < r->step_count; i++) {
        const memfit_event *e = &r->events[i];
        if (mf_report_moves(r, e)) {
            uint32_t k = r->owner_of[e->id];
            g->live[k] += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
            if (!g->is_changed[k]) {
                g->is_changed[k] = true;
                g->changed[g->count++] = k;
            }
        }
        if (r->steps[next].event == i)
            begin_step(r, g, next++, first);
    }
}

memfit_status mf_report_find_growth(mf_report *r, memfit_error *err)
{
    uint32_t first = r->steps_found || r->step_count > LEAST_STEPS ? 1 : 0;
    if (r->step_count < LEAST_STEPS + first)
        return MEMFIT_OK;
    mf_arena scratch;
    mf_arena_init(&scratch, r->arena.host);
    growth g = {.live = MF_NEW_ARRAY(&scratch, uint64_t, r->owner_count),
                .at_last = MF_NEW_ARRAY(&scratch, uint64_t, r->owner_count),
                .changed = MF_NEW_ARRAY(&scratch, uint32_t, r->owner_count),
                .is_changed = MF_NEW_ARRAY(&scratch, bool, r->owner_count)};
    memfit_status status = MEMFIT_OK;
    r->growth_steps = r->step_count - 1 - first;
    if (!g.live || !g.at_last || !g.changed || !g.is_changed)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
    else
        walk_steps(r, &g, first);
    mf_arena_destroy(&scratch);
    for (uint32_t k = 0; !status && k < r->owner_count; k++) {
        mf_report_owner *o = &r->owners[k];
        o->growing = o->rises >= 2 && o->falls * 4 <= o->rises && o->last_bytes > o->first_bytes &&
                     o->last_bytes - o->first_bytes >= r->peak_bytes / 1000;
        r->growing += o->growing;
    }
    return status;
}
