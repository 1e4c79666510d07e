/*
 * execute_record.c: a run of a phase as one record of the device, where it can record.
 *
 *   phase x piece (first, last, continues, holds) x set of the stage -> one record: scalars and inputs copied from the
 *   set, every operation that is due, the end of the step
 *
 * Recorded before the first step, so that a step takes nothing; a run then fills a set and launches. With a slot
 * (stage.h) the record copies from there, whichever set its bytes came through: one record serves both.
 */
#include "train/execute_inner.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static unsigned kind_of(mf_piece p)
{
    return (unsigned)p.first | (unsigned)p.last << 1 | (unsigned)p.continues << 2 | (unsigned)p.holds << 3;
}

bool mf_executor_records(const mf_executor *x)
{
    const char *asked = getenv("MEMFIT_RECORD");
    return x->device->table->record_begin && !x->device->reachable && !x->options.step && !x->options.poison &&
           !(asked && strcmp(asked, "0") == 0);
}

static unsigned due_inputs(const mf_executor *x, uint32_t phase, mf_piece piece)
{
    unsigned count = 0;
    for (uint32_t i = 0; i < x->plan->phases[phase].step_count; i++) {
        const ready_step *r = &x->phases[phase].steps[i];
        count += r->feed != MF_NONE && mf_executor_is_due(r->op, piece);
    }
    return count;
}

static unsigned record_count(const mf_executor *x)
{
    return x->stage.slot ? 1 : MF_STAGE_SETS;
}

static memfit_status launch_first(mf_executor *x, mf_recording record, memfit_error *err)
{
    const mf_device_table *table = x->device->table;
    memfit_status status = table->record_launch(x->device, record, x->options.stream, err);
    return status == MEMFIT_OK ? table->stream_sync(x->device, x->options.stream, err) : status;
}

memfit_status mf_executor_rehearse(mf_executor *x, memfit_error *err)
{
    const mf_device_table *table = x->device->table;
    memfit_status status = MEMFIT_OK;
    if (!mf_executor_records(x))
        return MEMFIT_OK;
    for (unsigned round = 0; round < 2; round++)
        for (uint32_t p = 0; p < x->plan->phase_count; p++)
            for (unsigned i = 0; i < PIECE_KINDS * MF_STAGE_SETS && status == MEMFIT_OK; i++) {
                mf_recording record = x->phases[p].records[i / MF_STAGE_SETS][i % MF_STAGE_SETS];
                if (record)
                    status = table->record_launch(x->device, record, x->options.stream, err);
            }
    return status == MEMFIT_OK ? table->stream_sync(x->device, x->options.stream, err) : status;
}

static memfit_status record_set(mf_executor *x, uint32_t phase, mf_piece piece, mf_recording *record, memfit_error *err)
{
    const mf_device_table *table = x->device->table;
    mf_run_scalars scalars = {0};
    memfit_status status = mf_stage_begin(&x->stage, err);
    mf_recording made = 0;
    memfit_error ended;
    if (status == MEMFIT_OK)
        status = table->record_begin(x->device, x->options.stream, err);
    if (status != MEMFIT_OK)
        return status;
    x->recording = true;
    mf_stage_record(&x->stage, 1 + due_inputs(x, phase, piece)); /* scalars, too */
    status = mf_executor_send_scalars(x, &scalars, err);
    if (status == MEMFIT_OK)
        status = mf_executor_run_steps(x, phase, piece, NULL, NULL, err);
    memfit_status end = table->record_end(x->device, x->options.stream, &made, status == MEMFIT_OK ? err : &ended);
    x->recording = false;
    mf_stage_recorded(&x->stage);
    if (status != MEMFIT_OK && end == MEMFIT_OK)
        table->record_destroy(x->device, made);
    if (status != MEMFIT_OK || end != MEMFIT_OK)
        return status == MEMFIT_OK ? end : status;
    *record = made;
    return launch_first(x, made, err);
}

memfit_status mf_executor_record(mf_executor *x, uint32_t phase, mf_piece piece, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    mf_recording *records = x->phases[phase].records[kind_of(piece)];
    for (unsigned i = 0; i < record_count(x) && status == MEMFIT_OK && mf_executor_records(x); i++) {
        unsigned next = x->stage.slot ? 0 : (x->stage.set + 1) % MF_STAGE_SETS;
        if (!records[next])
            status = record_set(x, phase, piece, &records[next], err);
    }
    return status;
}

memfit_status mf_executor_take_slot(mf_executor *x, uint64_t most, uint64_t *bytes, memfit_error *err)
{
    memfit_status status = mf_executor_records(x) ? mf_stage_take_slot(&x->stage, most, err) : MEMFIT_OK;
    *bytes = x->stage.slot_bytes;
    return status;
}

/* 0: not known. */
static uint64_t key_of(const mf_executor *x, uint32_t phase, mf_piece piece)
{
    return x->feed_key ? x->feed_key ^ ((uint64_t)phase << 8 | kind_of(piece)) * 0x9E3779B97F4A7C15u : 0;
}

static bool slot_has(const mf_executor *x, uint32_t phase, mf_piece piece)
{
    uint64_t key = key_of(x, phase, piece);
    return x->stage.slot && key && key == x->stage.slot_key;
}

/* The same places in the set as when it was recorded: scalars, then inputs in the order of their steps. Where the slot has
 * the inputs already, only scalars are new. */
static memfit_status fill_set(mf_executor *x, uint32_t phase, const mf_run_scalars *scalars, mf_piece piece,
                              mf_fill_feed fill, void *ctx, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    void *room = mf_stage_room(&x->stage, sizeof *scalars);
    memcpy(room, scalars, MF_SCALARS_HOST_BYTES);
    if (slot_has(x, phase, piece))
        return MEMFIT_OK;
    x->stage.slot_key = 0;
    for (uint32_t i = 0; i < x->plan->phases[phase].step_count && status == MEMFIT_OK; i++) {
        const ready_step *r = &x->phases[phase].steps[i];
        if (r->feed != MF_NONE && mf_executor_is_due(r->op, piece))
            status = fill(ctx, r->feed, mf_stage_room(&x->stage, r->feed_bytes), err);
    }
    if (status == MEMFIT_OK)
        x->stage.slot_key = key_of(x, phase, piece);
    return status;
}

void mf_executor_set_key(mf_executor *x, uint64_t key)
{
    x->feed_key = key;
}

/* ---- samples that stay on the device ------------------------------------------------------------------------ */

memfit_status mf_executor_take_shelf(mf_executor *x, const uint64_t *each, uint32_t feeds, int64_t samples,
                                     uint64_t most, uint64_t *bytes, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    uint64_t needed = mf_shelf_bytes(x->device, each, feeds, samples);
    if (x->stage.slot && needed && needed <= most)
        status = mf_shelf_take(&x->shelf, x->arena.host, x->device, each, feeds, samples, err);
    *bytes = x->shelf.bytes;
    return status;
}

void mf_executor_set_samples(mf_executor *x, const mf_sample_feed *samples)
{
    x->samples = samples;
}

/* From index i on: how many samples lie beside each other in the training set and are all kept, or all not. */
static int64_t run_from(const mf_shelf *s, const mf_sample_feed *f, int64_t i, int64_t *first)
{
    int64_t n = 1;
    *first = f->sample(f->ctx, i);
    while (i + n < f->count && f->sample(f->ctx, i + n) == *first + n && s->there[*first + n] == s->there[*first])
        n++;
    return n;
}

static memfit_status ship_feed(mf_executor *x, uint32_t feed, unsigned char *room, memfit_error *err)
{
    const mf_shelf *s = &x->shelf;
    const mf_sample_feed *f = x->samples;
    memfit_status status = MEMFIT_OK;
    for (int64_t i = 0, n, first; i < f->count && status == MEMFIT_OK; i += n) {
        n = run_from(s, f, i, &first);
        uint64_t bytes = (uint64_t)n * s->each[feed];
        unsigned char *part = room + (uint64_t)i * s->each[feed];
        mf_address kept = mf_shelf_at(s, feed, first), slot = mf_stage_slot_at(&x->stage, part);
        if (s->there[first]) {
            status = mf_stage_ship_move(&x->stage, slot, kept, bytes, err);
            continue;
        }
        status = f->fill(f->ctx, feed, i, n, part, err);
        if (status == MEMFIT_OK)
            status = mf_stage_ship_part(&x->stage, part, bytes, err);
        if (status == MEMFIT_OK)
            status = mf_stage_ship_move(&x->stage, kept, slot, bytes, err);
    }
    return status;
}

/* In place of fill_set and a shipment of the whole set. */
static memfit_status ship_samples(mf_executor *x, uint32_t phase, const mf_run_scalars *scalars, mf_piece piece,
                                  memfit_error *err)
{
    unsigned char *room = mf_stage_room(&x->stage, sizeof *scalars);
    memcpy(room, scalars, MF_SCALARS_HOST_BYTES);
    x->stage.slot_key = 0;
    memfit_status status = mf_stage_ship_begin(&x->stage, err);
    if (status == MEMFIT_OK)
        status = mf_stage_ship_part(&x->stage, room, sizeof *scalars, err);
    for (uint32_t i = 0; i < x->plan->phases[phase].step_count && status == MEMFIT_OK; i++) {
        const ready_step *r = &x->phases[phase].steps[i];
        if (r->feed != MF_NONE && mf_executor_is_due(r->op, piece))
            status = ship_feed(x, r->feed, mf_stage_room(&x->stage, r->feed_bytes), err);
    }
    for (int64_t i = 0; i < x->samples->count && status == MEMFIT_OK; i++)
        x->shelf.there[x->samples->sample(x->samples->ctx, i)] = 1;
    if (status == MEMFIT_OK)
        status = mf_stage_ship_end(&x->stage, err);
    x->stage.slot_key = status == MEMFIT_OK ? key_of(x, phase, piece) : 0;
    return status;
}

memfit_status mf_executor_launch(mf_executor *x, uint32_t phase, const mf_run_scalars *scalars, mf_piece piece,
                                 mf_fill_feed fill, void *ctx, memfit_error *err)
{
    const mf_recording *records = x->phases[phase].records[kind_of(piece)];
    bool slot = x->stage.slot != 0;
    memfit_status status = mf_executor_asked_to_stop(x, err);
    if (status == MEMFIT_OK)
        status = mf_stage_begin(&x->stage, err);
    bool shelf = x->shelf.base && x->samples && !slot_has(x, phase, piece);
    if (status == MEMFIT_OK)
        status =
            shelf ? ship_samples(x, phase, scalars, piece, err) : fill_set(x, phase, scalars, piece, fill, ctx, err);
    if (status == MEMFIT_OK && slot && !shelf)
        status = mf_stage_ship(&x->stage, x->stage.used, err);
    if (status == MEMFIT_OK)
        status = x->device->table->record_launch(x->device, records[slot ? 0 : x->stage.set], x->options.stream, err);
    return status == MEMFIT_OK && !slot ? mf_stage_end(&x->stage, err) : status;
}

bool mf_executor_is_recorded(const mf_executor *x, uint32_t phase, mf_piece piece)
{
    const mf_recording *records = x->phases[phase].records[kind_of(piece)];
    bool all = true;
    for (unsigned i = 0; i < record_count(x); i++)
        all &= records[i] != 0;
    return all;
}

void mf_executor_forget_records(mf_executor *x)
{
    for (uint32_t p = 0; x->phases && p < x->plan->phase_count; p++)
        for (unsigned kind = 0; kind < PIECE_KINDS; kind++)
            for (unsigned set = 0; set < MF_STAGE_SETS; set++)
                if (x->phases[p].records[kind][set])
                    x->device->table->record_destroy(x->device, x->phases[p].records[kind][set]);
}
