/* train_state.c: see train_state.h. All bytes go through the device's copies, in the order of the trainer's stream. */
#include "train/train_state.h"

#include "base/error.h"
#include "model/initialize.h"

#include <string.h>

mf_address mf_state_address(const mf_trainer *t, uint32_t variable)
{
    return variable == MF_NONE ? 0 : (mf_address)(uintptr_t)mf_executor_variable(t->executor, variable);
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

/* Between steps host memory is as good as the stream is done. */
static memfit_status in_host_memory(const mf_trainer *t, memfit_error *err)
{
    return t->device->table->stream_sync(t->device, t->stream, err);
}

memfit_status mf_state_fetch(const mf_trainer *t, mf_address from, void *to, uint64_t bytes, memfit_error *err)
{
    if (mf_executor_offloads(t->executor, from)) {
        memfit_status done = in_host_memory(t, err);
        if (done == MEMFIT_OK)
            memcpy(to, (const void *)(uintptr_t)from, bytes);
        return done;
    }
    memfit_status status = t->device->table->copy_out(t->device, to, from, bytes, t->stream, err);
    return status == MEMFIT_OK ? t->device->table->stream_sync(t->device, t->stream, err) : status;
}

static memfit_status send(const mf_trainer *t, mf_address to, const void *from, uint64_t bytes, memfit_error *err)
{
    if (mf_executor_offloads(t->executor, to)) {
        memfit_status done = in_host_memory(t, err);
        if (done == MEMFIT_OK)
            memcpy((void *)(uintptr_t)to, from, bytes);
        return done;
    }
    memfit_status status = t->device->table->copy_in(t->device, to, from, bytes, t->stream, err);
    return status == MEMFIT_OK ? t->device->table->stream_sync(t->device, t->stream, err) : status;
}

bool mf_state_has(const mf_trainer *t, uint32_t variable)
{
    return mf_state_address(t, variable) != 0;
}

uint64_t mf_state_bytes(const mf_trainer *t, uint32_t variable)
{
    const mf_variable *v = &mf_trainer_graph(t)->variables[variable];
    return mf_shape_count(&v->shape) * mf_dtype_bytes(v->dtype);
}

bool mf_state_read(const mf_trainer *t, uint32_t variable, uint64_t at, void *to, uint64_t bytes)
{
    mf_address from = mf_state_address(t, variable);
    return from && mf_state_fetch(t, from + at, to, bytes, NULL) == MEMFIT_OK;
}

bool mf_state_write(mf_trainer *t, uint32_t variable, uint64_t at, const void *from, uint64_t bytes)
{
    mf_address to = mf_state_address(t, variable);
    return to && send(t, to + at, from, bytes, NULL) == MEMFIT_OK;
}

void mf_state_clear(mf_trainer *t, uint32_t variable)
{
    mf_address at = mf_state_address(t, variable);
    if (at && mf_executor_offloads(t->executor, at) && in_host_memory(t, NULL) == MEMFIT_OK)
        memset((void *)(uintptr_t)at, 0, mf_state_bytes(t, variable));
    else if (at)
        t->device->table->fill(t->device, at, 0, mf_state_bytes(t, variable), t->stream, NULL);
}

void mf_state_copy(mf_trainer *t, uint32_t from, uint32_t to)
{
    mf_address source = mf_state_address(t, from), target = mf_state_address(t, to);
    MEMFIT_DCHECK(!mf_executor_offloads(t->executor, source) && !mf_executor_offloads(t->executor, target));
    if (source && target)
        t->device->table->copy(t->device, target, source, mf_state_bytes(t, from), t->stream, NULL);
}

/* ---- first values ------------------------------------------------------------------------------------------- */

/* What the file stores as it is used is sent from there; the rest is made in host memory first, one at a time. */
static memfit_status initialize_far(mf_trainer *t, const mf_graph *g, uint32_t variable, memfit_error *err)
{
    const mf_stored *stored = g->variables[variable].stored;
    uint64_t bytes = mf_state_bytes(t, variable);
    if (stored && stored->dtype == g->variables[variable].dtype && stored->bytes == bytes)
        return send(t, mf_state_address(t, variable), stored->data, bytes, err);
    bool fits = bytes <= MF_RESERVE_BOUNCE_BYTES;
    void *made = fits ? t->arena.bounce : mf_host_alloc(t->host, bytes);
    if (!made)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to make first values");
    memfit_status status = mf_variable_initialize(t->host, g, variable, t->options->seed, made, err);
    if (status == MEMFIT_OK)
        status = send(t, mf_state_address(t, variable), made, bytes, err);
    if (!fits)
        mf_host_free(t->host, made, bytes);
    return status;
}

memfit_status mf_state_initialize(mf_trainer *t, memfit_error *err)
{
    const mf_graph *g = mf_trainer_graph(t);
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < g->variable_count && status == MEMFIT_OK; i++) {
        void *at = (void *)(uintptr_t)mf_state_address(t, i);
        if (at && (t->device->reachable || mf_executor_offloads(t->executor, mf_state_address(t, i))))
            status = mf_variable_initialize(t->host, g, i, t->options->seed, at, err);
        else if (at)
            status = initialize_far(t, g, i, err);
    }
    if (!t->device->reachable)
        t->footprint->trim(); /* what large ones were made in was not measured: it must not stay */
    return status;
}

/* ---- all of them ------------------------------------------------------------------------------------------ */

/* Plans of one model may differ in which gradients are variables: those are dead between steps, but not within Keras's
 * own accumulation. */
static bool outlives_plan(const mf_graph *g, uint32_t variable)
{
    return g->variables[variable].role != MF_VAR_GRADIENT || g->accumulation_steps;
}

uint64_t mf_state_all_bytes(const mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    uint64_t bytes = 0;
    for (uint32_t v = 0; v < g->variable_count; v++)
        bytes += outlives_plan(g, v) ? mf_state_bytes(t, v) : 0;
    return bytes;
}

void mf_state_save_all(const mf_trainer *t, unsigned char *space)
{
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t v = 0; v < g->variable_count; v++)
        if (outlives_plan(g, v)) {
            mf_state_read(t, v, 0, space, mf_state_bytes(t, v));
            space += mf_state_bytes(t, v);
        }
}

void mf_state_load_all(mf_trainer *t, const unsigned char *space)
{
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t v = 0; v < g->variable_count; v++)
        if (outlives_plan(g, v)) {
            mf_state_write(t, v, 0, space, mf_state_bytes(t, v));
            space += mf_state_bytes(t, v);
        }
}

/* ---- beside variables ------------------------------------------------------------------------------------- */

bool mf_state_read_tensor(const mf_trainer *t, uint32_t phase, uint32_t tensor, uint64_t at, void *to, uint64_t bytes)
{
    mf_address from = (mf_address)(uintptr_t)mf_executor_tensor(t->executor, phase, tensor);
    return from && mf_state_fetch(t, from + at, to, bytes, NULL) == MEMFIT_OK;
}

const void *mf_state_for_writer(const mf_trainer *t, uint32_t variable)
{
    return (const void *)(uintptr_t)mf_state_address(t, variable);
}
