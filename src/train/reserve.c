/* reserve.c: see reserve.h. */
#include "train/reserve.h"

#include "base/error.h"
#include "base/os.h"

#include <string.h>

/* What must stay free for the rest of the system, beside the arena. */
enum { SPARE_BYTES = 16 << 20 };

memfit_status mf_reserve(uint64_t bytes, mf_reservation *r, memfit_error *err)
{
    uint64_t available = mf_os_available_memory();
    if (bytes + SPARE_BYTES > available) {
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
    unsigned char *p;
    uint64_t mapped;
    memfit_status status = mf_os_reserve(bytes, &p, &mapped, err);
    if (status != MEMFIT_OK) {
        if (err)
            err->limit_bytes = available;
        return status;
    }
    /* The arena ends where the guard begins; 64 bytes are its alignment. */
    unsigned char *guard = p + mapped - mf_os_page_bytes();
    *r = (mf_reservation){.base = guard - ((bytes + 63) & ~63ull), .bytes = bytes, .mapped = p, .mapped_bytes = mapped};
    return MEMFIT_OK;
}

uint64_t mf_reserve_most(void)
{
    uint64_t available = mf_os_available_memory();
    return available > SPARE_BYTES ? available - SPARE_BYTES : 0;
}

void mf_unreserve(mf_reservation *r)
{
    if (r->mapped)
        mf_os_unreserve(r->mapped, r->mapped_bytes);
    *r = (mf_reservation){0};
}

void mf_reserve_populate(mf_reservation *r)
{
    if (!r->mapped || r->populated)
        return;
    /* Clearing pages is most of the start of a large model, and goes as fast as there are threads. */
    enum { PART = 16 << 20 };
    uint64_t bytes = r->mapped_bytes - mf_os_page_bytes();
#pragma omp parallel for schedule(dynamic) if (bytes > PART)
    for (uint64_t at = 0; at < bytes; at += PART)
        mf_os_populate(r->mapped + at, bytes - at < PART ? bytes - at : PART);
    r->populated = true;
}

uint64_t mf_reserve_resident(const mf_reservation *r)
{
    return r->populated ? r->mapped_bytes - mf_os_page_bytes() : 0;
}

static inline uint64_t pattern_at(uint64_t word)
{
    return (word + 1) * 0x9E3779B97F4A7C15u ^ 0xA5A5C3C35A5A3C3Cu;
}

void mf_reserve_pattern(mf_reservation *r)
{
    mf_reserve_populate(r);
    uint64_t *word = (uint64_t *)(void *)r->base, words = ((r->bytes + 63) & ~63ull) / 8;
#pragma omp parallel for schedule(static) if (words > 1 << 20)
    for (uint64_t i = 0; i < words; i++)
        word[i] = pattern_at(i);
}

bool mf_reserve_changed(const mf_reservation *r, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++) {
        uint64_t p = pattern_at(i / 8);
        unsigned char expected;
        memcpy(&expected, (unsigned char *)&p + i % 8, 1);
        if (r->base[i] != expected)
            return true;
    }
    return false;
}
