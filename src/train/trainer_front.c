/*
 * trainer_front.c: where the random layers at a model's front run: in the step, or ahead of it in the workers that make
 * samples (graph/front.h). The numbers are the same; the question is who has time.
 *
 * Workers take the layers when the user says so, or where the steps leave processors idle. On the same processors it is
 * the same work in another thread. What workers make stays in the ring: where samples grow by it (bytes become floats)
 * by more than a part of the limit, workers do it only when the user says so.
 */
#include "train/trainer.h"

#include "base/error.h"
#include "base/os.h"
#include "graph/augment.h"
#include "graph/front.h"

#include <string.h>

enum { LITTLE = 16 }; /* so small a part of the limit is spent unasked */

static const mf_front *front_of(const mf_graph *g)
{
    for (uint32_t i = 0; i < g->feed_count; i++)
        if (g->feeds[i].front)
            return g->feeds[i].front;
    return NULL;
}

static uint32_t random_layers(const mf_front *front)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < front->count; i++)
        count += front->steps[i].kind == MF_OP_AUGMENT;
    return count;
}

/* Bytes that the ring's slots have more of. */
static uint64_t ring_grows(const mf_trainer *t, const mf_front *front)
{
    const mf_front_step *last = &front->steps[front->count - 1];
    const uint64_t before = mf_shape_count(&front->shape) * mf_dtype_bytes(front->dtype);
    const uint64_t after = mf_shape_count(&last->shape) * mf_dtype_bytes(last->dtype);
    const uint64_t depth = t->options->prefetch > 1 ? (uint64_t)t->options->prefetch : 1;
    return after > before ? (after - before) * (uint64_t)t->options->batch * depth : 0;
}

/* Why the layers stay in the step; NULL: they need not. */
static const char *why_not(const mf_graph *g)
{
    if (!front_of(g))
        return "no random layer stands in front of the model's other layers";
    if (g->needs_loss_scale)
        return "with mixed_float16 a step may be skipped, and what is drawn depends on that";
    return NULL;
}

memfit_status mf_trainer_choose_front(mf_trainer *t, memfit_error *err)
{
    const memfit_train_options *o = t->options;
    const bool asked = o->augment && strcmp(o->augment, "workers") == 0;
    const bool idle = o->threads && o->threads < mf_os_cpu_count();
    t->front_layers = 0;
    if (o->augment && !asked && strcmp(o->augment, "auto") != 0 && strcmp(o->augment, "graph") != 0)
        return mf_fail(err, MEMFIT_INVALID, "augment %.40s: must be auto, workers or graph", o->augment);
    if (asked && !t->footprint->host && t->mode == MF_MODE_TRAIN)
        return mf_fail(err, MEMFIT_INVALID,
                       "workers cannot do a card's layers: its arithmetic rounds differently\n"
                       "leave --augment out: the card does them in the step");
    if (t->mode != MF_MODE_TRAIN || !t->footprint->host || !(asked || (idle && (!o->augment || *o->augment == 'a'))))
        return MEMFIT_OK;
    mf_graph *g;
    t->graphs.options.front = true;
    memfit_status status = t->graph_source.make(t->graph_source.ctx, t->host, t->mode, 1, false, &g, err);
    t->graphs.options.front = false;
    if (status != MEMFIT_OK)
        return status;
    const char *why = why_not(g);
    const uint64_t limit = o->memory_bytes ? o->memory_bytes : mf_os_available_memory();
    if (why && asked)
        mf_log_write(&t->log, MF_LOG_NOTE, "--augment workers changes nothing: %s", why);
    if (!why && (asked || ring_grows(t, front_of(g)) <= limit / LITTLE)) {
        status = mf_cpu_create(t->host, 1, &t->front_backend, err);
        t->graphs.options.front = true;
        t->front_layers = random_layers(front_of(g));
        mf_log_write(&t->log, MF_LOG_NOTE, "%u random layer%s run%s in the workers that make samples (same result)",
                     t->front_layers, t->front_layers == 1 ? "" : "s", t->front_layers == 1 ? "s" : "");
    }
    mf_graph_destroy(g);
    return status;
}
