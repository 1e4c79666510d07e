/* results.c: see results.h. */
#include "train/results.h"

#include "base/error.h"
#include "train/train_state.h"

#include <math.h>
#include <string.h>

enum { MOST_STATE = 800 }; /* numbers of a metric: an AUC's four counts at 200 thresholds */

/* ---- metrics ------------------------------------------------------------------------------------------------ */

/* Trapezoids over the 200 thresholds, highest first. */
static double area_under_curve(const float *s)
{
    const float *tp = s, *fp = s + 200, *tn = s + 400, *fn = s + 600;
    double area = 0, x0 = 0, y0 = 0;
    for (int i = 199; i >= 0; i--) {
        double p = (double)(tp[i] + fn[i]), n = (double)(fp[i] + tn[i]);
        double x = n > 0 ? (double)fp[i] / n : 0, y = p > 0 ? (double)tp[i] / p : 0;
        area += (x - x0) * (y + y0) / 2;
        x0 = x;
        y0 = y;
    }
    return area;
}

static double value_of(const mf_metric_attr *attr, const float *s)
{
    double a = (double)s[0], b = (double)s[1];
    switch (attr->function) {
    case MF_METRIC_PRECISION:
    case MF_METRIC_RECALL:
        return a + b > 0 ? a / (a + b) : 0;
    case MF_METRIC_METRIC_RMSE:
        return b > 0 ? sqrt(a / b) : 0;
    case MF_METRIC_AUC:
        return area_under_curve(s);
    default:
        return b > 0 ? a / b : 0;
    }
}

static uint64_t metric_bytes(const mf_trainer *t, uint32_t metric)
{
    uint64_t bytes = mf_state_bytes(t, t->metrics[metric].variable);
    return bytes < MOST_STATE * sizeof(float) ? bytes : MOST_STATE * sizeof(float);
}

/* ---- on their way ------------------------------------------------------------------------------------------- */

/* In host memory: the scalars, then the metrics' states one after the other. */
static uint64_t slot_bytes(const mf_trainer *t)
{
    uint64_t bytes = sizeof(mf_run_scalars);
    for (uint32_t i = 0; i < t->metric_count; i++)
        bytes += metric_bytes(t, i);
    return bytes;
}

/* Does the next step depend on whether this one was skipped? */
static bool is_awaited(const mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    return t->flag_variable != MF_NONE &&
           (t->schedule.kind != MF_RATE_CONSTANT || g->accumulation_steps > 1 || g->average_every);
}

memfit_status mf_results_create(mf_trainer *t, memfit_error *err)
{
    mf_results *r = &t->results;
    mf_device *d = t->device;
    mf_results_destroy(t);
    r->at_once = d->reachable || is_awaited(t);
    if (r->at_once)
        return MEMFIT_OK;
    r->bytes = slot_bytes(t) + sizeof(mf_run_scalars);
    void *memory = NULL;
    memfit_status status = MEMFIT_OK;
    if (d->table->host_take)
        status = d->table->host_take(d, r->bytes, &memory, err);
    else if (!(memory = mf_host_zalloc(t->host, r->bytes)))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for results");
    r->slot = memory;
    return status == MEMFIT_OK ? d->table->event_create(d, &r->arrived, err) : status;
}

void mf_results_destroy(mf_trainer *t)
{
    mf_results *r = &t->results;
    mf_device *d = t->device;
    if (r->slot)
        d->table->stream_sync(d, t->stream, NULL); /* a copy may still write it */
    if (r->arrived)
        d->table->event_destroy(d, r->arrived, NULL);
    if (r->slot && d->table->host_take)
        d->table->host_give(d, r->slot, r->bytes);
    else
        mf_host_free(t->host, r->slot, r->bytes);
    *r = (mf_results){0};
}

static memfit_status ask(mf_trainer *t, memfit_error *err)
{
    mf_results *r = &t->results;
    mf_device *d = t->device;
    unsigned char *to = r->slot + sizeof(mf_run_scalars);
    memfit_status status = mf_executor_copy_scalars(t->executor, (mf_run_scalars *)(void *)r->slot, err);
    for (uint32_t i = 0; i < t->metric_count && status == MEMFIT_OK; i++) {
        mf_address from = mf_state_address(t, t->metrics[i].variable);
        if (from)
            status = d->table->copy_out(d, to, from, metric_bytes(t, i), t->stream, err);
        to += metric_bytes(t, i);
    }
    if (status == MEMFIT_OK)
        status = d->table->event_record(d, r->arrived, t->stream, err);
    r->asked = status == MEMFIT_OK;
    return status;
}

/* ---- taken -------------------------------------------------------------------------------------------------- */

static memfit_status take(mf_trainer *t, const mf_run_scalars *s, memfit_error *err)
{
    struct mf_train_state *state = &t->state;
    state->iteration = s->step;
    state->steps = s->steps;
    state->loss_scale = s->loss_scale;
    state->good_steps = s->good_steps;
    state->loss_sum = s->loss_sum;
    state->loss_weight = s->loss_weight;
    state->seen_sum = s->seen_sum;
    state->seen_weight = s->seen_weight;
    if (!s->diverged_at)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_DIVERGED,
                   "the loss is %g at step %llu: training has diverged\n"
                   "lower the learning rate, or clip gradients (clipnorm in the model's optimizer)",
                   s->diverged_loss, (unsigned long long)s->diverged_at);
}

memfit_status mf_results_put(mf_trainer *t, memfit_error *err)
{
    const struct mf_train_state *state = &t->state;
    uint64_t group = t->mode == MF_MODE_TRAIN ? mf_trainer_graph(t)->accumulation_steps : 0;
    mf_run_scalars s = {.seed = state->seed,
                        .step = state->iteration,
                        .iteration = state->iteration / (group ? group : 1),
                        .loss_scale = state->loss_scale,
                        .good_steps = state->good_steps,
                        .steps = state->steps,
                        .loss_sum = state->loss_sum,
                        .loss_weight = state->loss_weight,
                        .seen_sum = state->seen_sum,
                        .seen_weight = state->seen_weight};
    mf_results *r = &t->results;
    r->asked = r->current = false; /* what is on its way is older */
    if (!r->slot)
        return mf_executor_write_scalars(t->executor, &s, err);
    memfit_status status = r->putting ? t->device->table->stream_sync(t->device, t->stream, err) : MEMFIT_OK;
    if (status != MEMFIT_OK)
        return status;
    unsigned char *from = r->slot + r->bytes - sizeof s;
    memcpy(from, &s, sizeof s);
    r->putting = true;
    return mf_executor_queue_scalars(t->executor, from, err);
}

/* One wait for all: the metrics come along. */
static memfit_status wait_for_slot(mf_trainer *t, memfit_error *err)
{
    mf_results *r = &t->results;
    memfit_status status = ask(t, err);
    if (status == MEMFIT_OK)
        status = t->device->table->stream_sync(t->device, t->stream, err);
    r->asked = false;
    if (status != MEMFIT_OK)
        return status;
    r->current = true;
    r->putting = false;
    return take(t, (const mf_run_scalars *)(const void *)r->slot, err);
}

memfit_status mf_results_get(mf_trainer *t, memfit_error *err)
{
    if (t->results.slot)
        return wait_for_slot(t, err);
    mf_run_scalars s;
    memfit_status status = mf_executor_read_scalars(t->executor, &s, err);
    return status == MEMFIT_OK ? take(t, &s, err) : status;
}

memfit_status mf_results_after_step(mf_trainer *t, bool *fresh, memfit_error *err)
{
    mf_results *r = &t->results;
    mf_device *d = t->device;
    *fresh = r->at_once;
    r->current = false;
    if (r->at_once)
        return mf_results_get(t, err);
    /* What the host knows by itself: every step counts, and without float16 none is skipped. */
    uint64_t steps = ++t->state.steps, iteration = t->state.iteration += t->flag_variable == MF_NONE;
    memfit_status status = r->asked ? MEMFIT_OK : ask(t, err);
    bool done = false;
    if (status == MEMFIT_OK)
        status = d->table->event_done(d, r->arrived, &done, err);
    if (status != MEMFIT_OK || !done)
        return status;
    r->asked = false;
    *fresh = true;
    status = take(t, (const mf_run_scalars *)(const void *)r->slot, err);
    t->state.steps = steps;
    if (t->flag_variable == MF_NONE)
        t->state.iteration = iteration;
    return status;
}

double mf_results_metric(const mf_trainer *t, uint32_t metric, bool now)
{
    float s[MOST_STATE] = {0};
    const mf_metric_view *m = &t->metrics[metric];
    const unsigned char *from = t->results.slot;
    if ((now && !t->results.current) || !from) {
        if (!mf_state_read(t, m->variable, 0, s, metric_bytes(t, metric)))
            return 0;
        return value_of(&m->attr, s);
    }
    from += sizeof(mf_run_scalars);
    for (uint32_t i = 0; i < metric; i++)
        from += metric_bytes(t, i);
    memcpy(s, from, metric_bytes(t, metric));
    return value_of(&m->attr, s);
}
