/* tape.c: see tape.h. */
#include "plan/frameworks/tape.h"

#include <string.h>

void mf_tape_init(mf_tape *tape, const memfit_host *host, uint64_t rounding)
{
    *tape = (mf_tape){.host = host, .rounding = rounding ? rounding : 1};
}

void mf_tape_destroy(mf_tape *tape)
{
    mf_host_free(tape->host, tape->blocks, tape->block_capacity * sizeof *tape->blocks);
    mf_host_free(tape->host, tape->events, tape->event_capacity * sizeof *tape->events);
    *tape = (mf_tape){0};
}

static uint64_t rounded(const mf_tape *tape, uint32_t block)
{
    return (tape->blocks[block].bytes + tape->rounding - 1) / tape->rounding * tape->rounding;
}

static bool put(mf_tape *tape, uint32_t event)
{
    if (!mf_grow(tape->host, &tape->events, &tape->event_capacity, tape->event_count, sizeof *tape->events))
        tape->failed = true;
    else
        tape->events[tape->event_count++] = event;
    return !tape->failed;
}

uint32_t mf_tape_take(mf_tape *tape, uint64_t bytes, memfit_kind kind, uint32_t layer)
{
    if (tape->failed || !bytes || tape->block_count >= MF_NONE / 2)
        return MF_NONE;
    if (!mf_grow(tape->host, &tape->blocks, &tape->block_capacity, tape->block_count, sizeof *tape->blocks)) {
        tape->failed = true;
        return MF_NONE;
    }
    uint32_t block = (uint32_t)tape->block_count++;
    tape->blocks[block] = (mf_tape_block){.bytes = bytes, .layer = layer, .holders = 1, .kind = kind};
    if (!put(tape, block * 2))
        return MF_NONE;
    tape->live_bytes += rounded(tape, block);
    if (tape->live_bytes > tape->peak_bytes) {
        tape->peak_bytes = tape->live_bytes;
        tape->peak_event = tape->event_count - 1;
    }
    return block;
}

void mf_tape_hold(mf_tape *tape, uint32_t block)
{
    if (block != MF_NONE && !tape->failed)
        tape->blocks[block].holders++;
}

void mf_tape_drop(mf_tape *tape, uint32_t block)
{
    if (block == MF_NONE || tape->failed || --tape->blocks[block].holders)
        return;
    if (put(tape, block * 2 + 1))
        tape->live_bytes -= rounded(tape, block);
}

void mf_tape_at_peak(const mf_tape *tape, uint64_t by_kind[MEMFIT_KIND_COUNT])
{
    memset(by_kind, 0, MEMFIT_KIND_COUNT * sizeof *by_kind);
    for (size_t i = 0; tape->event_count && i <= tape->peak_event; i++) {
        uint32_t block = tape->events[i] / 2;
        uint64_t *sum = &by_kind[tape->blocks[block].kind];
        *sum = tape->events[i] & 1 ? *sum - rounded(tape, block) : *sum + rounded(tape, block);
    }
}
