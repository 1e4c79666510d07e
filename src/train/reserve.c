/* reserve.c: see reserve.h. */
#include "train/reserve.h"
#include "base/bytes.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum {
    SPARE_BYTES = 16 << 20, /* what must stay free for the rest of the system, beside the arena */
    ALIGNMENT = 256,        /* of the arena's beginning, on any device */
};

/* What can be had now. */
static uint64_t available_bytes(mf_device *device)
{
    uint64_t total, free_bytes;
    return device->table->memory(device, &total, &free_bytes, NULL) == MEMFIT_OK ? free_bytes : 0;
}

static memfit_status refuse(uint64_t bytes, uint64_t available, memfit_error *err)
{
    char want[24], have[24];
    mf_fail(err, MEMFIT_OUT_OF_MEMORY,
            "%s are needed at once, but the machine has %s to give, of which %d MiB stay free for others\n"
            "name a smaller limit with --memory, or free memory",
            memfit_size_format(bytes, want, sizeof want), memfit_size_format(available, have, sizeof have),
            SPARE_BYTES >> 20);
    if (err) {
        err->cause = MEMFIT_CAUSE_TAKEN_BY_OTHERS;
        err->requested_bytes = bytes;
        err->limit_bytes = available;
    }
    return MEMFIT_OUT_OF_MEMORY;
}

/* On the host 64 bytes, as tensors; beyond it what any card's loads want. */
static uint64_t alignment_of(const mf_device *device)
{
    return device->reachable ? 64 : ALIGNMENT;
}

static memfit_status take_bounce(mf_reservation *r, memfit_error *err)
{
    mf_device *d = r->device;
    void *memory = NULL;
    memfit_status status = MEMFIT_OK;
    if (d->table->host_take)
        status = d->table->host_take(d, MF_RESERVE_BOUNCE_BYTES, &memory, err);
    else if (!(memory = mf_host_alloc(d->host, MF_RESERVE_BOUNCE_BYTES)))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to reach the device's");
    if (memory)
        memset(memory, 0, MF_RESERVE_BOUNCE_BYTES); /* its pages are there from now on */
    r->bounce = memory;
    return status;
}

static void give_bounce(mf_reservation *r)
{
    if (r->bounce && r->device->table->host_take)
        r->device->table->host_give(r->device, r->bounce, MF_RESERVE_BOUNCE_BYTES);
    else if (r->bounce)
        mf_host_free(r->device->host, r->bounce, MF_RESERVE_BOUNCE_BYTES);
}

memfit_status mf_reserve(mf_device *device, uint64_t bytes, mf_reservation *r, memfit_error *err)
{
    uint64_t available = available_bytes(device), side = device->reachable ? 0 : MF_RESERVE_SIDE_BYTES;
    if (bytes + SPARE_BYTES > available)
        return refuse(bytes, available, err);
    uint64_t arena = mf_round_up(bytes, alignment_of(device)), whole = mf_round_up(arena + side, device->granularity);
    whole = whole ? whole : device->granularity;
    /* What lies behind must trap: a plain device sees to it, on others a granule without memory does. */
    uint64_t guard = device->plain ? 0 : device->granularity;
    mf_address at;
    memfit_status status = device->table->reserve(device, whole + guard, device->granularity, &at, err);
    if (status != MEMFIT_OK) {
        if (err)
            err->limit_bytes = available;
        return status;
    }
    mf_address base = at + whole - arena;
    *r = (mf_reservation){.device = device,
                          .base = base,
                          .bytes = bytes,
                          .side = side ? base - side : 0,
                          .mapped = at,
                          .mapped_bytes = whole};
    status = device->reachable ? MEMFIT_OK : take_bounce(r, err);
    if (status != MEMFIT_OK)
        mf_unreserve(r);
    return status;
}

uint64_t mf_reserve_most(mf_device *device)
{
    uint64_t available = available_bytes(device);
    return available > SPARE_BYTES ? available - SPARE_BYTES : 0;
}

void mf_unreserve(mf_reservation *r)
{
    if (!r->mapped)
        return;
    mf_device *d = r->device;
    if (d->table->device_sync)
        d->table->device_sync(d, NULL); /* nothing may still run in what goes */
    give_bounce(r);
    if (r->physical) {
        d->table->unmap(d, r->mapped, r->mapped_bytes, NULL);
        d->table->release(d, r->physical, r->mapped_bytes, NULL);
    }
    d->table->unreserve(d, r->mapped, r->mapped_bytes + (d->plain ? 0 : d->granularity), NULL);
    *r = (mf_reservation){0};
}

static memfit_status map_memory(mf_reservation *r, memfit_error *err)
{
    mf_device *d = r->device;
    memfit_status status = d->table->create(d, r->mapped_bytes, &r->physical, err);
    if (status != MEMFIT_OK)
        return status;
    status = d->table->map(d, r->mapped, r->mapped_bytes, r->physical, err);
    if (status != MEMFIT_OK) {
        d->table->release(d, r->physical, r->mapped_bytes, NULL);
        r->physical = 0;
    }
    return status;
}

memfit_status mf_reserve_populate(mf_reservation *r, memfit_error *err)
{
    if (!r->mapped || r->populated)
        return MEMFIT_OK;
    mf_device *d = r->device;
    memfit_status status = d->plain || r->physical ? MEMFIT_OK : map_memory(r, err);
    if (status == MEMFIT_OK)
        status = d->table->access(d, r->mapped, r->mapped_bytes, err);
    r->populated = status == MEMFIT_OK;
    return status;
}

uint64_t mf_reserve_resident(const mf_reservation *r)
{
    return r->populated ? r->mapped_bytes : 0;
}

/* ---- the pattern -------------------------------------------------------------------------------------------- */

/* It repeats: a device whose memory the host cannot write copies it on. */
enum { PATTERN_WORDS = MF_RESERVE_BOUNCE_BYTES / 8 };

static inline uint64_t pattern_at(uint64_t word)
{
    return (word % PATTERN_WORDS + 1) * 0x9E3779B97F4A7C15u ^ 0xA5A5C3C35A5A3C3Cu;
}

static void pattern_near(mf_reservation *r, uint64_t words)
{
    uint64_t *word = (uint64_t *)(uintptr_t)r->base;
#pragma omp parallel for schedule(static) if (words > 1 << 20)
    for (uint64_t i = 0; i < words; i++)
        word[i] = pattern_at(i);
}

/* The first of it through a buffer of the host's; the device doubles what is there. */
static memfit_status pattern_far(mf_reservation *r, uint64_t words, memfit_error *err)
{
    mf_device *d = r->device;
    uint64_t *chunk = (uint64_t *)(void *)r->bounce, first = words < PATTERN_WORDS ? words : PATTERN_WORDS;
    for (uint64_t i = 0; i < first; i++)
        chunk[i] = pattern_at(i);
    memfit_status status = d->table->fill(d, r->base, 0, words * 8, 0, err); /* a driver has code for it, too */
    if (status == MEMFIT_OK)
        status = d->table->copy_in(d, r->base, chunk, first * 8, 0, err);
    for (uint64_t done = first, n; status == MEMFIT_OK && done < words; done += n) {
        n = words - done < done ? words - done : done;
        status = d->table->copy(d, r->base + done * 8, r->base, n * 8, 0, err);
    }
    return status == MEMFIT_OK ? d->table->stream_sync(d, 0, err) : status;
}

memfit_status mf_reserve_pattern(mf_reservation *r, memfit_error *err)
{
    uint64_t words = mf_round_up(r->bytes, alignment_of(r->device)) / 8;
    memfit_status status = mf_reserve_populate(r, err);
    if (status != MEMFIT_OK || !r->device->reachable)
        return status == MEMFIT_OK ? pattern_far(r, words, err) : status;
    pattern_near(r, words);
    return MEMFIT_OK;
}

/* Do these bytes, which begin at `from`, differ from the pattern? */
static bool differ(const unsigned char *bytes, uint64_t from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t p = pattern_at((from + i) / 8);
        unsigned char expected;
        memcpy(&expected, (unsigned char *)&p + (from + i) % 8, 1);
        if (bytes[i] != expected)
            return true;
    }
    return false;
}

static bool changed_far(const mf_reservation *r, uint64_t from, uint64_t to)
{
    mf_device *d = r->device;
    bool changed = false, seen = true; /* nothing is claimed that was not seen */
    for (uint64_t at = from, n; seen && !changed && at < to; at += n) {
        n = to - at < MF_RESERVE_BOUNCE_BYTES ? to - at : MF_RESERVE_BOUNCE_BYTES;
        seen = d->table->copy_out(d, r->bounce, r->base + at, n, 0, NULL) == MEMFIT_OK &&
               d->table->stream_sync(d, 0, NULL) == MEMFIT_OK;
        changed = seen && differ(r->bounce, at, n);
    }
    return changed;
}

bool mf_reserve_changed(const mf_reservation *r, uint64_t from, uint64_t to)
{
    return r->device->reachable ? differ((const unsigned char *)(uintptr_t)r->base + from, from, to - from)
                                : changed_far(r, from, to);
}
