/* fit_inputs.c: see fit_inputs.h. */
#include "plan/fit/fit_inputs.h"

enum {
    LEAST_SET_BYTES = 1 << 20, /* less is quick to send: no plan is changed for it */
    SPARE_BYTES = 96 << 20,    /* as much stays free beside a set (train/admit.c), and for what records take */
    SLOWER_PERCENT = 10,
    TIMES_PIECES = 2, /* what is quick to copy and much to keep must not cut a batch to crumbs */
};

void mf_plan_inputs(const mf_plan *plan, int64_t samples, uint64_t *set, uint64_t *kept)
{
    const mf_phase *phase = plan->phases;
    uint64_t one = 0;
    bool front = false; /* workers make samples as they are wanted: nothing to keep */
    *set = *kept = 0;
    if (!plan->phase_count || phase->role != MF_PHASE_TRAIN)
        return;
    for (uint32_t i = 0; i < phase->graph->feed_count; i++) {
        const mf_tensor *tensor = &phase->graph->tensors[phase->graph->feeds[i].tensor];
        one += mf_shape_count(&tensor->shape) * mf_dtype_bytes(tensor->dtype) / (uint64_t)phase->batch;
        front |= phase->graph->feeds[i].front != NULL;
    }
    *set = one * (uint64_t)phase->batch + SPARE_BYTES;
    /* Of one batch in one piece the set is enough. */
    if (samples > 0 && !front && one >= MF_LEAST_KEPT_BYTES && (plan->pieces > 1 || samples > plan->batch))
        *kept = *set + one * (uint64_t)samples;
    if (*set < LEAST_SET_BYTES + SPARE_BYTES)
        *set = 0;
}

bool mf_plan_may_replace(const mf_plan *plan, const mf_plan *other)
{
    /* To begin to split a batch or a loss would be other rounding for the sake of copies. */
    bool rounds_alike = (other->pieces == 1 || plan->pieces > 1) && (other->chunks <= 1 || plan->chunks > 1);
    return other->fits && rounds_alike && other->pieces <= TIMES_PIECES * plan->pieces &&
           other->time_us <= plan->time_us * (100 + SLOWER_PERCENT) / 100;
}
