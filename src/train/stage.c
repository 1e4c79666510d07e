/* stage.c: see stage.h. */
#include "train/stage.h"
#include "base/bytes.h"

#include "base/error.h"

static void give_slot(mf_stage *s);

memfit_status mf_stage_create(mf_stage *s, const memfit_host *host, mf_device *device, mf_stream stream, uint64_t bytes,
                              memfit_error *err)
{
    *s = (mf_stage){.host = host, .device = device, .stream = stream, .set_bytes = mf_round_up(bytes, MF_STAGE_ALIGN)};
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
    give_slot(s);
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
    bool done = false; /* it nearly always is: the host waits only when it is a whole set ahead */
    memfit_status status = d->table->event_done(d, s->sent[s->set], &done, err);
    if (status == MEMFIT_OK && !done)
        status = d->table->event_sync ? d->table->event_sync(d, s->sent[s->set], err)
                                      : d->table->stream_sync(d, s->stream, err);
    s->pending[s->set] = status != MEMFIT_OK;
    return status;
}

void *mf_stage_room(mf_stage *s, uint64_t bytes)
{
    if (s->used + bytes > s->set_bytes)
        return NULL;
    void *room = s->memory + s->set * s->set_bytes + s->used;
    s->used += mf_round_up(bytes, MF_STAGE_ALIGN);
    return room;
}

memfit_status mf_stage_send(mf_stage *s, mf_address to, const void *room, uint64_t bytes, memfit_error *err)
{
    const mf_device_table *table = s->device->table;
    s->pending[s->set] = true;
    if (!s->left)
        return table->copy_in(s->device, to, room, bytes, s->stream, err);
    memfit_status status = table->copy(s->device, to, mf_stage_slot_at(s, room), bytes, s->stream, err);
    if (status == MEMFIT_OK && --s->left == 0)
        status = table->event_record(s->device, s->taken, s->stream, err);
    return status;
}

memfit_status mf_stage_end(mf_stage *s, memfit_error *err)
{
    s->pending[s->set] = true;
    return s->device->table->event_record(s->device, s->sent[s->set], s->stream, err);
}

/* ---- the slot ----------------------------------------------------------------------------------------------- */

static void give_slot(mf_stage *s)
{
    const mf_device_table *table = s->device->table;
    if (s->copies)
        table->stream_sync(s->device, s->copies, NULL);
    if (s->slot_memory) {
        table->unmap(s->device, s->slot, s->slot_bytes, NULL);
        table->release(s->device, s->slot_memory, s->slot_bytes, NULL);
    }
    if (s->slot)
        table->unreserve(s->device, s->slot, s->slot_bytes, NULL);
    if (s->taken)
        table->event_destroy(s->device, s->taken, NULL);
    if (s->copies)
        table->stream_destroy(s->device, s->copies, NULL);
    s->slot = s->slot_memory = s->slot_bytes = s->copies = s->taken = s->slot_key = 0;
}

static memfit_status map_slot(mf_stage *s, memfit_error *err)
{
    mf_device *d = s->device;
    mf_physical memory = 1;
    memfit_status status = d->table->create(d, s->slot_bytes, &memory, err);
    if (status != MEMFIT_OK)
        return status;
    status = d->table->map(d, s->slot, s->slot_bytes, memory, err);
    if (status != MEMFIT_OK) {
        d->table->release(d, memory, s->slot_bytes, NULL);
        return status;
    }
    s->slot_memory = memory;
    status = d->table->access(d, s->slot, s->slot_bytes, err);
    return status == MEMFIT_OK ? d->table->fill(d, s->slot, 0, s->slot_bytes, s->stream, err) : status;
}

memfit_status mf_stage_take_slot(mf_stage *s, uint64_t most, memfit_error *err)
{
    mf_device *d = s->device;
    uint64_t page = d->granularity, bytes = mf_round_up(s->set_bytes, page);
    if (!d->table->record_begin || bytes > most)
        return MEMFIT_OK;
    s->slot_bytes = bytes;
    memfit_status status = d->table->reserve(d, bytes, page, &s->slot, err);
    if (status == MEMFIT_OK)
        status = map_slot(s, err);
    if (status == MEMFIT_OK)
        status = d->table->stream_create(d, &s->copies, err);
    if (status == MEMFIT_OK)
        status = d->table->event_create(d, &s->taken, err);
    if (status != MEMFIT_OK)
        give_slot(s);
    return status == MEMFIT_OUT_OF_MEMORY ? MEMFIT_OK : status; /* others were quicker: it is done without */
}

void mf_stage_record(mf_stage *s, unsigned sends)
{
    s->left = s->slot ? sends : 0;
}

void mf_stage_recorded(mf_stage *s)
{
    s->pending[s->set] = false;
    s->left = 0;
}

mf_address mf_stage_slot_at(const mf_stage *s, const void *room)
{
    return s->slot + (uint64_t)((const unsigned char *)room - s->memory) - s->set * s->set_bytes;
}

memfit_status mf_stage_ship_begin(mf_stage *s, memfit_error *err)
{
    return s->device->table->stream_wait(s->device, s->copies, s->taken, err);
}

memfit_status mf_stage_ship_part(mf_stage *s, const void *room, uint64_t bytes, memfit_error *err)
{
    s->pending[s->set] = true;
    return s->device->table->copy_in(s->device, mf_stage_slot_at(s, room), room, bytes, s->copies, err);
}

memfit_status mf_stage_ship_move(mf_stage *s, mf_address to, mf_address from, uint64_t bytes, memfit_error *err)
{
    return s->device->table->copy(s->device, to, from, bytes, s->copies, err);
}

memfit_status mf_stage_ship_end(mf_stage *s, memfit_error *err)
{
    mf_device *d = s->device;
    memfit_status status = d->table->event_record(d, s->sent[s->set], s->copies, err);
    s->pending[s->set] = true;
    return status == MEMFIT_OK ? d->table->stream_wait(d, s->stream, s->sent[s->set], err) : status;
}

memfit_status mf_stage_ship(mf_stage *s, uint64_t bytes, memfit_error *err)
{
    memfit_status status = mf_stage_ship_begin(s, err);
    if (status == MEMFIT_OK)
        status = mf_stage_ship_part(s, s->memory + s->set * s->set_bytes, bytes, err);
    return status == MEMFIT_OK ? mf_stage_ship_end(s, err) : status;
}
