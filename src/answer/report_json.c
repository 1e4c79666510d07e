/* report_json.c: a report as one JSON object; docs/report.md lists its keys. */
#include "answer/report.h"

#include "base/json.h"
#include "plan/cost.h"

enum { MOST_HELD = 20, MOST_STEPS = 10000 };

static void put_owner(mf_json_writer *w, const mf_report_owner *o)
{
    mf_json_put_string(w, "name", o->name);
    mf_json_put_string(w, "kind", memfit_kind_name(o->kind));
}

static void put_owners(mf_json_writer *w, const mf_report *r)
{
    mf_json_open(w, "owners", '[');
    for (uint32_t i = 0; i < r->owner_count && r->owners[i].peak_bytes; i++) {
        mf_json_open(w, NULL, '{');
        put_owner(w, &r->owners[i]);
        mf_json_put_u64(w, "bytes", r->owners[i].peak_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_planned(mf_json_writer *w, const mf_report_planned *p)
{
    if (!p->known) {
        mf_json_put_null(w, "plan");
        return;
    }
    mf_json_open(w, "plan", '{');
    mf_json_put_string(w, "model", p->model);
    mf_json_put_i64(w, "batch", p->batch);
    mf_json_put_u64(w, "as_asked_bytes", p->as_asked_bytes);
    if (p->limited_bytes) {
        mf_json_put_u64(w, "bytes", p->limited_bytes);
        mf_json_put_i64(w, "pieces", p->micro_batches);
        mf_json_put_u64(w, "recomputed_ops", p->recomputed);
        mf_json_put_double(w, "slowdown", p->slowdown);
        mf_json_put_string(w, "numerics", mf_numerics_name((mf_numerics)p->numerics));
    } else {
        mf_json_put_null(w, "bytes");
    }
    mf_json_close(w, '}');
}

static void put_growing(mf_json_writer *w, const mf_report *r)
{
    mf_json_open(w, "growing", '[');
    for (uint32_t i = 0; i < r->owner_count; i++) {
        const mf_report_owner *o = &r->owners[i];
        if (!o->growing)
            continue;
        mf_json_open(w, NULL, '{');
        put_owner(w, o);
        mf_json_put_u64(w, "bytes", o->last_bytes - o->first_bytes);
        mf_json_put_double(w, "bytes_per_step", (double)(o->last_bytes - o->first_bytes) / r->growth_steps);
        mf_json_put_u64(w, "first_bytes", o->first_bytes);
        mf_json_put_u64(w, "last_bytes", o->last_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_held(mf_json_writer *w, const mf_report *r)
{
    mf_json_open(w, "held_longest", '[');
    for (uint32_t i = 0; i < r->owner_count && i < MOST_HELD; i++) {
        const mf_report_owner *o = &r->owners[r->held[i]];
        mf_json_open(w, NULL, '{');
        put_owner(w, o);
        mf_json_put_u64(w, "bytes", o->most_bytes);
        mf_json_put_double(w, "byte_seconds", o->byte_seconds);
        mf_json_put_double(w, "seconds", (double)o->longest_ns / 1e9);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_steps(mf_json_writer *w, const mf_report *r)
{
    mf_json_put_u64(w, "step_count", r->step_count);
    if (r->step_count)
        mf_json_put_string(w, "steps_from", r->steps_found ? "curve" : "marks");
    else
        mf_json_put_null(w, "steps_from");
    mf_json_open(w, "steps", '[');
    for (uint32_t i = 0; i < r->step_count && i < MOST_STEPS; i++) {
        mf_json_open(w, NULL, '{');
        mf_json_put_double(w, "at", (double)r->steps[i].time_ns / 1e9);
        mf_json_put_u64(w, "begin_bytes", r->steps[i].begin_bytes);
        mf_json_put_u64(w, "peak_bytes", r->steps[i].peak_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_fails(mf_json_writer *w, const mf_report *r)
{
    mf_json_put_u64(w, "refused", r->fail_count);
    mf_json_open(w, "refusals", '[');
    for (uint64_t i = 0; i < r->fail_count && i < MF_REPORT_FAILS; i++) {
        mf_json_open(w, NULL, '{');
        mf_json_put_double(w, "at", (double)r->fails[i].time_ns / 1e9);
        mf_json_put_u64(w, "bytes", r->fails[i].bytes);
        mf_json_put_string(w, "name", r->fails[i].name);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_or_null(mf_json_writer *w, const char *key, uint64_t value, bool known)
{
    if (known)
        mf_json_put_u64(w, key, value);
    else
        mf_json_put_null(w, key);
}

static void put_report(mf_json_writer *w, const mf_report *r)
{
    char text[1024];
    mf_json_put_string(w, "trace", r->title);
    mf_json_put_u64(w, "events", r->moved);
    mf_json_put_u64(w, "buffers", r->buffers);
    mf_json_put_u64(w, "device", r->device);
    mf_json_put_u64(w, "devices", r->device_count);
    mf_json_put_double(w, "seconds", (double)r->duration_ns / 1e9);
    mf_json_put_u64(w, "peak_live_bytes", r->peak_bytes);
    mf_json_put_double(w, "peak_at", (double)r->peak_ns / 1e9);
    put_or_null(w, "peak_step", mf_report_step_of(r, r->peak_event), r->step_count > 0);
    mf_json_put_u64(w, "end_live_bytes", r->end_bytes);
    put_or_null(w, "limit_bytes", r->limit_bytes, r->limit_bytes > 0);
    put_or_null(w, "reserved_peak_bytes", r->reserved_peak_bytes, r->reserved_peak_bytes > 0);
    put_or_null(w, "pool_peak_bytes", r->pool.physical_bytes, r->pool.known);
    put_planned(w, &r->planned);
    mf_report_verdict(r, text, sizeof text);
    mf_json_put_string(w, "verdict", text);
    mf_report_advice(r, text, sizeof text);
    mf_json_put_string(w, "advice", text);
    mf_json_open(w, "kinds", '{');
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        mf_json_put_u64(w, memfit_kind_name((memfit_kind)k), r->kind_bytes[k]);
    mf_json_close(w, '}');
    put_owners(w, r);
    put_growing(w, r);
    put_held(w, r);
    put_steps(w, r);
    put_fails(w, r);
}

static void put_difference(mf_json_writer *w, const mf_report_difference *d, const mf_report *other)
{
    mf_json_put_string(w, "other_trace", other->title);
    mf_json_put_u64(w, "other_peak_live_bytes", other->peak_bytes);
    mf_json_put_i64(w, "peak_difference_bytes", d->peak_bytes);
    mf_json_open(w, "differences", '[');
    for (uint32_t i = 0; i < d->count; i++) {
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "name", d->changes[i].name);
        mf_json_put_string(w, "kind", memfit_kind_name(d->changes[i].kind));
        mf_json_put_i64(w, "bytes", (int64_t)(d->changes[i].after - d->changes[i].before));
        mf_json_put_u64(w, "before_bytes", d->changes[i].before);
        mf_json_put_u64(w, "after_bytes", d->changes[i].after);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

void mf_report_put_json(FILE *file, const mf_report_view *view)
{
    mf_json_writer w;
    mf_json_begin(&w, file);
    mf_json_open(&w, NULL, '{');
    put_report(&w, view->report);
    if (view->difference)
        put_difference(&w, view->difference, view->other);
    mf_json_close(&w, '}');
    mf_json_end(&w);
}
