/*
 * report_plan.c: what a plan of the model would have held in the place of what was recorded.
 *
 * A trace of tensors has no fixed cost: the plan's arena stands beside its peak. Where the trace has a fixed cost (memfit's
 * own do), it is added to the arena. Two figures: the step as asked (at once, nothing recomputed), which needs no limit,
 * and, where the trace says what the limit was, the plan for that limit.
 * What memfit recorded itself is planned for the cpu, which gives the plan that ran; all else for a card of any size.
 */
#include "answer/report.h"

#include "base/error.h"
#include "memfit/plan.h"

#include <string.h>

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static memfit_status plan_for(const mf_report *r, const mf_report_model *model, uint64_t limit_bytes,
                              memfit_plan_summary *summary, memfit_error *err)
{
    char memory[32];
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    memfit_plan *plan;
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)limit_bytes);
    o.batch = model->batch ? model->batch : o.batch;
    o.card = r->info.source == MEMFIT_TRACE_MEMFIT ? NULL : "1TiB";
    o.memory = limit_bytes ? memory : NULL;
    o.runtime = "memfit";
    o.quick = true;
    memfit_status status = memfit_plan_create(model->path, &o, &plan, err);
    if (status)
        return status;
    status = memfit_plan_get_summary(plan, summary, err);
    memfit_plan_destroy(plan);
    return status;
}

memfit_status mf_report_plan(mf_report *r, const mf_report_model *model, memfit_error *err)
{
    const uint64_t fixed = r->kind_bytes[MEMFIT_KIND_FIXED];
    memfit_plan_summary s = MEMFIT_PLAN_SUMMARY;
    memfit_status status = plan_for(r, model, 0, &s, err);
    if (status)
        return status;
    mf_report_planned p = {
        .known = true, .batch = s.batch, .as_asked_bytes = s.as_asked_peak_bytes - s.fixed_bytes + fixed};
    p.model = mf_arena_strdup(&r->arena, r->with_names ? model->path : base_name(model->path));
    if (!p.model)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a report");
    /* A limit that this machine cannot have, or that is below every plan, has no second figure. */
    if (r->limit_bytes && plan_for(r, model, r->limit_bytes, &s, NULL) == MEMFIT_OK && s.fits) {
        p.limited_bytes = s.arena_bytes + fixed;
        p.micro_batches = s.pieces;
        p.recomputed = s.recomputed_ops;
        p.slowdown = s.slowdown;
        p.numerics = s.numerics;
    }
    r->planned = p;
    return MEMFIT_OK;
}

void mf_report_planned_text(const mf_report *r, char *text, size_t bytes)
{
    const mf_report_planned *p = &r->planned;
    char a[24], b[24], batch[24] = "";
    *text = '\0';
    if (!p->known)
        return;
    int n = snprintf(text, bytes, "%s, %.3f times the peak, for %s at batch %lld as asked",
                     memfit_size_format(p->as_asked_bytes, a, sizeof a),
                     (double)p->as_asked_bytes / (double)r->peak_bytes, p->model, (long long)p->batch);
    if (n < 0 || (size_t)n >= bytes || !p->limited_bytes || p->limited_bytes == p->as_asked_bytes)
        return;
    if (p->micro_batches > 1)
        snprintf(batch, sizeof batch, "%lld micro-batches, ", (long long)p->micro_batches);
    snprintf(text + n, bytes - (size_t)n,
             "; %s inside the limit of %s (%s%u operations recomputed, %.2f times as long)",
             memfit_size_format(p->limited_bytes, a, sizeof a), memfit_size_format(r->limit_bytes, b, sizeof b), batch,
             p->recomputed, p->slowdown);
}
