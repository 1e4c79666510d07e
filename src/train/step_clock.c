/* step_clock.c: see step_clock.h. Marks are a ring: the one at `first` was read last, `count` behind it are not. */
#include "train/step_clock.h"

#include "base/error.h"

memfit_status mf_step_clock_create(mf_step_clock *c, mf_device *device, mf_stream stream, memfit_error *err)
{
    *c = (mf_step_clock){0};
    if (device->reachable || !device->table->timer_create || !device->table->event_sync)
        return MEMFIT_OK;
    c->device = device;
    c->stream = stream;
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < MF_STEP_CLOCK_MARKS && status == MEMFIT_OK; i++)
        status = device->table->timer_create(device, &c->marks[i], err);
    if (status != MEMFIT_OK)
        mf_step_clock_destroy(c);
    return status;
}

void mf_step_clock_destroy(mf_step_clock *c)
{
    for (uint32_t i = 0; c->device && i < MF_STEP_CLOCK_MARKS; i++)
        if (c->marks[i])
            c->device->table->event_destroy(c->device, c->marks[i], NULL);
    *c = (mf_step_clock){0};
}

/* Reads the oldest mark that is not read yet, if it is done or `wait` is set. */
static memfit_status read_one(mf_step_clock *c, bool wait, bool *read, mf_step_took *took, void *ctx, memfit_error *err)
{
    uint32_t next = (c->first + 1) % MF_STEP_CLOCK_MARKS;
    const mf_device_table *table = c->device->table;
    bool done = false;
    double us = 0;
    memfit_status status = table->event_done(c->device, c->marks[next], &done, err);
    if (status == MEMFIT_OK && wait && !done)
        status = table->event_sync(c->device, c->marks[next], err);
    *read = status == MEMFIT_OK && (wait || done);
    if (!*read)
        return status;
    if (!c->begins[next])
        status = table->timer_between(c->device, c->marks[c->first], c->marks[next], &us, err);
    if (status == MEMFIT_OK && !c->begins[next] && took)
        took(ctx, us);
    c->first = next;
    c->count--;
    return status;
}

static memfit_status mark(mf_step_clock *c, bool begins, mf_step_took *took, void *ctx, memfit_error *err)
{
    bool read;
    memfit_status status = MEMFIT_OK;
    if (c->count + 1 == MF_STEP_CLOCK_MARKS) /* the one read last must stay for the next */
        status = read_one(c, true, &read, took, ctx, err);
    uint32_t at = (c->first + c->count + 1) % MF_STEP_CLOCK_MARKS;
    if (status == MEMFIT_OK)
        status = c->device->table->event_record(c->device, c->marks[at], c->stream, err);
    if (status != MEMFIT_OK)
        return status;
    c->begins[at] = begins;
    c->count++;
    return MEMFIT_OK;
}

memfit_status mf_step_clock_epoch(mf_step_clock *c, memfit_error *err)
{
    if (!c->device)
        return MEMFIT_OK;
    c->count = 0; /* what was not told until here is not told any more */
    return mark(c, true, NULL, NULL, err);
}

memfit_status mf_step_clock_step(mf_step_clock *c, mf_step_took *took, void *ctx, memfit_error *err)
{
    if (!c->device)
        return MEMFIT_OK;
    bool read = true;
    memfit_status status = mark(c, false, took, ctx, err);
    while (status == MEMFIT_OK && c->count && read)
        status = read_one(c, false, &read, took, ctx, err);
    return status;
}

memfit_status mf_step_clock_rest(mf_step_clock *c, mf_step_took *took, void *ctx, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    bool read;
    while (c->device && c->count && status == MEMFIT_OK)
        status = read_one(c, true, &read, took, ctx, err);
    return status;
}
