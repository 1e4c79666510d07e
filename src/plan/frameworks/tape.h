/*
 * tape.h: the allocation trace of a training step that was never run: what a framework would ask its allocator for, in
 * order. Execution models write it, models of allocators read it.
 *
 * A block has a size and an owner (kind and layer) and is counted by references: it is given back when the last one who
 * holds it lets go, as tensors are in the frameworks. Memory that ends while taping makes the tape `failed`; nothing
 * else happens, and whoever made it looks once, at the end.
 */
#ifndef MF_PLAN_TAPE_H
#define MF_PLAN_TAPE_H

#include "base/memory.h"
#include "base/tensor.h"
#include "memfit/trace.h"

typedef struct mf_tape_block {
    uint64_t bytes; /* as asked */
    uint32_t layer;
    uint32_t holders;
    memfit_kind kind;
    bool guessed; /* a library's workspace whose size follows a rule, not exactly */
} mf_tape_block;

typedef struct mf_tape {
    const memfit_host *host;
    mf_tape_block *blocks;
    uint32_t *events; /* block * 2, and 1 when it is given back */
    size_t block_count, block_capacity, event_count, event_capacity;
    uint64_t rounding; /* what the framework's counter of live bytes rounds a request to; at least 1 */
    uint64_t live_bytes, peak_bytes;
    size_t peak_event; /* the event that made the peak */
    bool failed;
} mf_tape;

void mf_tape_init(mf_tape *tape, const memfit_host *host, uint64_t rounding);
void mf_tape_destroy(mf_tape *tape);

/* A new block with one holder. MF_NONE when `bytes` is 0 or memory has ended; MF_NONE is taken and ignored below. */
uint32_t mf_tape_take(mf_tape *tape, uint64_t bytes, memfit_kind kind, uint32_t layer);
void mf_tape_hold(mf_tape *tape, uint32_t block);
void mf_tape_drop(mf_tape *tape, uint32_t block);

/* Bytes live at the peak, by kind. They sum to peak_bytes. */
void mf_tape_at_peak(const mf_tape *tape, uint64_t by_kind[MEMFIT_KIND_COUNT]);

#endif
