/* stage.c: see stage.h. */
#include "train/stage.h"

#include "base/error.h"

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + MF_STAGE_ALIGN - 1) / MF_STAGE_ALIGN * MF_STAGE_ALIGN;
}

memfit_status mf_stage_create(mf_stage *s, const memfit_host *host, mf_device *device, mf_stream stream, uint64_t bytes,
                              memfit_error *err)
{
    *s = (mf_stage){.host = host, .device = device, .stream = stream, .set_bytes = round_up(bytes)};
    void *memory = NULL;
    memfit_status status = MEMFIT_OK;
    if (device->table->host_take)
        status = device->table->host_take(device, MF_STAGE_SETS * s->set_bytes, &memory, err);
    else if (!(memory = mf_host_zalloc(host, MF_STAGE_SETS * s->set_bytes)))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to hand batches over");
    s->memory = memory;
    for (unsigned i = 0; i < MF_STAGE_SETS && status == MEMFIT_OK; i++)
        status = device->table->event_create(device, &s->sent[i], err);
    if (status != MEMFIT_OK)
        mf_stage_destroy(s);
    return status;
}

void mf_stage_destroy(mf_stage *s)
{
    if (!s->device)
        return;
    const mf_device_table *table = s->device->table;
    table->stream_sync(s->device, s->stream, NULL); /* copies may still read it */
    for (unsigned i = 0; i < MF_STAGE_SETS; i++)
        if (s->sent[i])
            table->event_destroy(s->device, s->sent[i], NULL);
    if (s->memory && table->host_take)
        table->host_give(s->device, s->memory, MF_STAGE_SETS * s->set_bytes);
    else
        mf_host_free(s->host, s->memory, MF_STAGE_SETS * s->set_bytes);
    *s = (mf_stage){0};
}

memfit_status mf_stage_begin(mf_stage *s, memfit_error *err)
{
    mf_device *d = s->device;
    s->set = (s->set + 1) % MF_STAGE_SETS;
    s->used = 0;
    if (!s->pending[s->set])
        return MEMFIT_OK;
    memfit_status status =
        d->table->event_sync ? d->table->event_sync(d, s->sent[s->set], err) : d->table->stream_sync(d, s->stream, err);
    s->pending[s->set] = status != MEMFIT_OK;
    return status;
}

void *mf_stage_room(mf_stage *s, uint64_t bytes)
{
    if (s->used + bytes > s->set_bytes)
        return NULL;
    void *room = s->memory + s->set * s->set_bytes + s->used;
    s->used += round_up(bytes);
    return room;
}

memfit_status mf_stage_send(mf_stage *s, mf_address to, const void *room, uint64_t bytes, memfit_error *err)
{
    s->pending[s->set] = true;
    return s->device->table->copy_in(s->device, to, room, bytes, s->stream, err);
}

void mf_stage_forget(mf_stage *s)
{
    s->pending[s->set] = false;
}

memfit_status mf_stage_end(mf_stage *s, memfit_error *err)
{
    s->pending[s->set] = true;
    return s->device->table->event_record(s->device, s->sent[s->set], s->stream, err);
}
