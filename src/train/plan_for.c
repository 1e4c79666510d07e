/* plan_for.c: a plan of this run's model for a limit, by the run's options; what it may take to search for one. */
#include "train/trainer.h"

#include "base/error.h"
#include "base/os.h"
#include "plan/fit/fit_inputs.h"

#include <string.h>

enum { ANSWER_BYTES = 512 << 10 };

/* The limit holds while planning too: a search may take what the limit leaves beside the process. It always gets
 * ANSWER_BYTES: with less, not even a small model's refusal could say what would suffice. */
void mf_trainer_planning_room(mf_trainer *t, uint64_t limit)
{
    uint64_t now = t->footprint->sample(t->device) + t->footprint->error() + t->asking_bytes;
    uint64_t room = limit > now ? limit - now : 0;
    room -= room / 12;                  /* holes in the heap */
    if (t->plan || !t->footprint->host) /* a plan in force holds more than the next may; it goes once that is made */
        room = UINT64_MAX / 2;
    t->planning.limit_bytes = t->planning.live_bytes + (room > ANSWER_BYTES ? room : ANSWER_BYTES);
    t->planning.peak_bytes = t->planning.live_bytes;
    t->planning.refused_bytes = t->guard.refused_bytes = 0;
}

static uint64_t stored_weight_bytes(const mf_model *model)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->layer_count; i++)
        for (uint32_t k = 0; k < model->layers[i].stored_count; k++)
            bytes += model->layers[i].stored[k].bytes;
    return bytes;
}

/* Planning was cut off, so nobody knows what would have sufficed; but at least the weights, or the request that was
 * refused, must have room. */
memfit_status mf_trainer_refuse_planning(mf_trainer *t, memfit_error *err)
{
    uint64_t now = t->footprint->sample(t->device), search = t->planning.peak_bytes - t->planning.live_bytes;
    uint64_t weights = stored_weight_bytes(t->model);
    search += t->planning.refused_bytes > t->guard.refused_bytes ? t->planning.refused_bytes : t->guard.refused_bytes;
    t->planning_need = now + (search > weights ? search : weights);
    return mf_fail(err, MEMFIT_DOES_NOT_FIT, "planning takes more than the limit leaves");
}

bool mf_trainer_is_squeezed(const mf_plan *plan)
{
    return plan->recomputed_ops > 0 || plan->pieces > 1 || plan->chunks > 1 || plan->validation_split;
}

/* Do the run's options ask for this kind of offload, on a device whose memory is not the host's? */
static bool offload_is(const mf_trainer *t, const char *word)
{
    return !t->device->reachable && t->mode == MF_MODE_TRAIN && t->options->offload &&
           strcmp(t->options->offload, word) == 0;
}

/* --offload auto: where the plan must save memory anyway, keeping the optimizer's state in host memory may be the
 * fastest way. Leaves the better of the two in *plan. */
static memfit_status try_offload(mf_trainer *t, mf_plan_options *p, mf_plan **plan, memfit_status status,
                                 memfit_error *err)
{
    mf_plan *other = NULL;
    memfit_error kept = *err, failed;
    if (!offload_is(t, "auto") ||
        (status != MEMFIT_DOES_NOT_FIT && (status != MEMFIT_OK || !mf_trainer_is_squeezed(*plan))))
        return status;
    p->offload = true;
    memfit_status second = mf_plan_make(&t->planning.host, &t->graph_source, p, &t->cost, &other, &failed);
    bool better = second == MEMFIT_OK && (status != MEMFIT_OK || other->time_us < (*plan)->time_us);
    if (better) {
        if (status == MEMFIT_OK)
            mf_plan_destroy(*plan);
        *plan = other;
        return MEMFIT_OK;
    }
    if (second == MEMFIT_OK)
        mf_plan_destroy(other);
    else if (second == MEMFIT_DOES_NOT_FIT && status == second)
        kept = failed; /* the plan with offload needs less */
    p->offload = false;
    *err = kept;
    return status;
}

/* May the training set stay on the device? Only under a limit, and only if no sample is made (decoded, augmented). */
static bool may_keep(const mf_trainer *t)
{
    bool may = t->options->memory_bytes && !t->device->reachable && t->mode == MF_MODE_TRAIN && !t->graphs.length_count;
    for (uint32_t i = 0; may && i < t->source->count; i++)
        may = !t->source->arrays[i].made;
    return may;
}

uint32_t mf_trainer_sample_bytes(const mf_trainer *t, const mf_plan *plan, uint64_t *each)
{
    const mf_phase *phase = plan->phases;
    if (!may_keep(t) || !mf_plan_input_bytes(plan, t->train_samples) || phase->graph->feed_count > MF_SHELF_FEEDS)
        return 0;
    for (uint32_t i = 0; i < phase->graph->feed_count; i++) {
        const mf_tensor *tensor = &phase->graph->tensors[phase->graph->feeds[i].tensor];
        each[i] = mf_shape_count(&tensor->shape) * mf_dtype_bytes(tensor->dtype) / (uint64_t)phase->batch;
    }
    return phase->graph->feed_count;
}

memfit_status mf_trainer_plan(mf_trainer *t, uint64_t limit, uint64_t fixed, mf_plan **plan, memfit_error *err)
{
    const memfit_train_options *o = t->options;
    mf_plan_options p;
    mf_plan_options_default(&p);
    p.batch = t->batch;
    p.pieces = o->pieces ? o->pieces : t->resumed.pieces;
    p.recompute = o->no_recompute ? MF_RECOMPUTE_OFF : MF_RECOMPUTE_AUTO;
    p.chunks = o->loss_chunks ? o->loss_chunks : t->resumed.chunks;
    p.allow_changed = o->allow_changed_numerics;
    p.limit_bytes = limit;
    p.fixed_bytes = fixed;
    p.rest_bytes = t->rest_bytes;
    p.lengths = t->graphs.length_count;
    p.samples = t->train_samples;
    p.samples_left = t->samples_left;
    p.quick = t->refused_us != 0;
    p.offload = offload_is(t, "optimizer");
    p.inputs_beside = o->memory_bytes && !t->device->reachable && limit > 1;
    p.kept_samples = may_keep(t) ? t->train_samples : 0;
    p.with_validation = p.with_prediction = false;
    if (t->mode == MF_MODE_TRAIN) {
        p.with_validation = t->validation_samples > 0;
        p.validation_batch = t->validation_batch;
        p.validation_samples = t->validation_samples;
    } else {
        p.only = t->mode;
    }
    mf_trainer_planning_room(t, limit > 1 ? limit : t->limit_asked);
    memfit_status status = mf_plan_make(&t->planning.host, &t->graph_source, &p, &t->cost, plan, err);
    if (t->planning.refused_bytes || t->guard.refused_bytes) { /* cut short, whether it found a plan or not */
        mf_plan *found = status == MEMFIT_OK ? *plan : NULL;
        uint64_t search = (t->planning.peak_bytes - t->planning.live_bytes + t->guard.refused_bytes) * 3 / 2;
        search += t->footprint->sample(t->device);
        t->search_need = search > t->search_need ? search : t->search_need;
        p.recompute = MF_RECOMPUTE_OFF;
        t->footprint->trim();
        mf_trainer_planning_room(t, limit > 1 ? limit : t->limit_asked);
        status = mf_plan_make(&t->planning.host, &t->graph_source, &p, &t->cost, plan, err);
        if (status == MEMFIT_OK) {
            mf_plan_destroy(found);
        } else if (found) { /* the search was cut short, but its plan fits */
            *plan = found;
            status = MEMFIT_OK;
        }
    }
    if (mf_trainer_was_refused(t, status) && limit > 1) { /* try only what there is room to look at */
        p.pass_over = true;
        t->footprint->trim();
        mf_trainer_planning_room(t, limit);
        status = mf_plan_make(&t->planning.host, &t->graph_source, &p, &t->cost, plan, err);
    }
    if (status == MEMFIT_DOES_NOT_FIT && limit > 1 && !t->footprint->host) {
        /* Workspaces were chosen without looking at what else is alive; the smallest ones may fit. */
        p.least_workspace = true;
        status = mf_plan_make(&t->planning.host, &t->graph_source, &p, &t->cost, plan, err);
    }
    status = try_offload(t, &p, plan, status, err);
    t->planned_us = mf_os_now_us();
    if (mf_trainer_was_refused(t, status))
        status = mf_trainer_refuse_planning(t, err);
    if (t->refused_us) { /* the answer to a refusal is ready: a plan, or why there is none */
        uint64_t took = mf_os_now_us() - t->refused_us;
        t->answer_us = took > t->answer_us ? took : t->answer_us;
        t->refused_us = 0;
    }
    return status;
}
