/* reserve.c: see reserve.h. */
#include "train/reserve.h"

#include "base/error.h"
#include "base/os.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* What must stay free for the rest of the system, beside the arena. */
enum { SPARE_BYTES = 16 << 20 };

memfit_status mf_reserve(uint64_t bytes, mf_reservation *r, memfit_error *err)
{
    uint64_t available = mf_os_available_memory(), page = mf_os_page_bytes();
    if (bytes + SPARE_BYTES > available) {
        char want[24], have[24];
        mf_fail(err, MEMFIT_OUT_OF_MEMORY,
                "%s are needed at once, but the machine can give %s\n"
                "name a smaller limit with --memory, or free memory",
                memfit_size_format(bytes, want, sizeof want), memfit_size_format(available, have, sizeof have));
        if (err) {
            err->cause = MEMFIT_CAUSE_TAKEN_BY_OTHERS;
            err->requested_bytes = bytes;
            err->limit_bytes = available;
        }
        return MEMFIT_OUT_OF_MEMORY;
    }
    uint64_t pages = (bytes + page - 1) / page * page;
    unsigned char *p =
        mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return mf_fail(err, MEMFIT_OUT_OF_MEMORY, "the system refuses %llu bytes of addresses: %s",
                       (unsigned long long)pages, strerror(errno));
    mprotect(p + pages, page, PROT_NONE);
    /* The arena ends where the guard begins; 64 bytes are its alignment. */
    *r = (mf_reservation){
        .base = p + (pages - ((bytes + 63) & ~63ull)), .bytes = bytes, .mapped = p, .mapped_bytes = pages + page};
    return MEMFIT_OK;
}

void mf_unreserve(mf_reservation *r)
{
    if (r->mapped)
        munmap(r->mapped, r->mapped_bytes);
    *r = (mf_reservation){0};
}

void mf_reserve_drop(mf_reservation *r)
{
    if (r->mapped)
        madvise(r->mapped, r->mapped_bytes - mf_os_page_bytes(), MADV_DONTNEED);
}

static inline uint64_t pattern_at(uint64_t word)
{
    return (word + 1) * 0x9E3779B97F4A7C15u ^ 0xA5A5C3C35A5A3C3Cu;
}

void mf_reserve_pattern(mf_reservation *r)
{
    /* Pages before base belong to the mapping too: touch the first, so that what is resident is what is mapped. */
    if (r->mapped_bytes)
        r->mapped[0] = 0;
    uint64_t *word = (uint64_t *)(void *)r->base, words = ((r->bytes + 63) & ~63ull) / 8;
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
