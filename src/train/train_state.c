/* train_state.c: see train_state.h. Variables in the arena of a device whose memory is the host's. */
#include "train/train_state.h"

#include "base/error.h"
#include "model/initialize.h"

#include <string.h>

static unsigned char *address(const mf_trainer *t, uint32_t variable)
{
    return variable == MF_NONE ? NULL : mf_executor_variable(t->executor, variable);
}

bool mf_state_has(const mf_trainer *t, uint32_t variable)
{
    return address(t, variable) != NULL;
}

uint64_t mf_state_bytes(const mf_trainer *t, uint32_t variable)
{
    const mf_variable *v = &mf_trainer_graph(t)->variables[variable];
    return mf_shape_count(&v->shape) * mf_dtype_bytes(v->dtype);
}

bool mf_state_read(const mf_trainer *t, uint32_t variable, uint64_t at, void *to, uint64_t bytes)
{
    const unsigned char *from = address(t, variable);
    if (from)
        memcpy(to, from + at, bytes);
    return from != NULL;
}

bool mf_state_write(mf_trainer *t, uint32_t variable, uint64_t at, const void *from, uint64_t bytes)
{
    unsigned char *to = address(t, variable);
    if (to)
        memcpy(to + at, from, bytes);
    return to != NULL;
}

void mf_state_clear(mf_trainer *t, uint32_t variable)
{
    unsigned char *at = address(t, variable);
    if (at)
        memset(at, 0, mf_state_bytes(t, variable));
}

void mf_state_copy(mf_trainer *t, uint32_t from, uint32_t to)
{
    const unsigned char *source = address(t, from);
    unsigned char *target = address(t, to);
    if (source && target)
        memcpy(target, source, mf_state_bytes(t, from));
}

memfit_status mf_state_initialize(mf_trainer *t, memfit_error *err)
{
    const mf_graph *g = mf_trainer_graph(t);
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < g->variable_count && status == MEMFIT_OK; i++)
        if (address(t, i))
            status = mf_variable_initialize(t->host, g, i, t->options->seed, address(t, i), err);
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
    const unsigned char *from = mf_executor_tensor(t->executor, phase, tensor);
    if (from)
        memcpy(to, from + at, bytes);
    return from != NULL;
}

const void *mf_state_for_writer(const mf_trainer *t, uint32_t variable)
{
    return address(t, variable);
}
