/* fit_inputs.c: see fit_inputs.h. */
#include "plan/fit/fit_inputs.h"

enum {
    LEAST_SET_BYTES = 1 << 20, /* less is quick to send: no plan is changed for it */
    SPARE_BYTES = 96 << 20,    /* as much stays free beside a set (train/admit.c), and for what records take */
    SLOWER_PERCENT = 10,
    TIMES_PIECES = 3, /* what is quick to copy and much to keep must not cut a batch to crumbs */
};

/* Of one sample; 0 where the plan does not train. *made: workers make samples as they are wanted, there is nothing to keep. */
static uint64_t sample_bytes(const mf_plan *plan, bool *made)
{
    const mf_phase *phase = plan->phases;
    uint64_t one = 0;
    *made = false;
    if (!plan->phase_count || phase->role != MF_PHASE_TRAIN)
        return 0;
    for (uint32_t i = 0; i < phase->graph->feed_count; i++) {
        const mf_tensor *tensor = &phase->graph->tensors[phase->graph->feeds[i].tensor];
        one += mf_shape_count(&tensor->shape) * mf_dtype_bytes(tensor->dtype) / (uint64_t)phase->batch;
        *made |= phase->graph->feeds[i].front != NULL;
    }
    return one;
}

uint64_t mf_plan_input_bytes(const mf_plan *plan, int64_t samples)
{
    bool made;
    uint64_t one = sample_bytes(plan, &made);
    /* Of one batch in one piece the set is enough. */
    bool keeps = !made && one >= MF_LEAST_KEPT_BYTES && (plan->pieces > 1 || samples > plan->batch);
    if (!one || samples < 0 || (samples && !keeps))
        return 0;
    return one * (uint64_t)(plan->phases[0].batch + samples) + SPARE_BYTES;
}

bool mf_plan_sends_much(const mf_plan *plan)
{
    bool made;
    return plan->phase_count && sample_bytes(plan, &made) * (uint64_t)plan->phases[0].batch >= LEAST_SET_BYTES;
}

static bool has_room(const mf_plan_options *o, const mf_plan *plan, int64_t samples)
{
    uint64_t bytes = mf_plan_input_bytes(plan, samples);
    return bytes && o->fixed_bytes + plan->arena_bytes + bytes <= o->limit_bytes;
}

static bool may_replace(const mf_plan *plan, const mf_plan *other)
{
    /* To begin to split a batch or a loss would be other rounding for the sake of copies. */
    bool rounds_alike = (other->pieces == 1 || plan->pieces > 1) && (other->chunks <= 1 || plan->chunks > 1);
    return other->fits && rounds_alike && other->pieces <= TIMES_PIECES * plan->pieces &&
           other->time_us <= plan->time_us * (100 + SLOWER_PERCENT) / 100;
}

/* Room for so many samples and a set, which is smaller where pieces are: with a third of it first. */
static memfit_status leave(const mf_plan_options *o, mf_plan_within make, void *ctx, int64_t samples, mf_plan **plan,
                           bool *left, memfit_error *err)
{
    const uint64_t all = mf_plan_input_bytes(*plan, samples), set = mf_plan_input_bytes(*plan, 0) - SPARE_BYTES;
    *left = has_room(o, *plan, samples);
    for (uint64_t less = samples ? set - set / TIMES_PIECES : 0; all && !*left; less = 0) {
        mf_plan *other = NULL;
        if (all - less >= o->limit_bytes)
            return MEMFIT_OK;
        memfit_status status = make(ctx, o->limit_bytes - (all - less), &other, err);
        if (status != MEMFIT_OK)
            return status == MEMFIT_DOES_NOT_FIT ? MEMFIT_OK : status;
        *left = may_replace(*plan, other) && has_room(o, other, samples);
        mf_plan_destroy(*left ? *plan : other);
        *plan = *left ? other : *plan;
        if (!less)
            break;
    }
    return MEMFIT_OK;
}

memfit_status mf_plan_leave_room(const mf_plan_options *o, mf_plan_within make, void *ctx, mf_plan **plan,
                                 memfit_error *err)
{
    bool left = false;
    if (!o->inputs_beside || !o->limit_bytes || o->only != MF_MODE_TRAIN || !mf_plan_sends_much(*plan))
        return MEMFIT_OK;
    memfit_status status = o->kept_samples > 0 ? leave(o, make, ctx, o->kept_samples, plan, &left, err) : MEMFIT_OK;
    return status == MEMFIT_OK && !left ? leave(o, make, ctx, 0, plan, &left, err) : status;
}
