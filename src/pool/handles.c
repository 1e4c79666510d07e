/*
 * handles.c: physical handles: made, spare, mapped, given back.
 *
 * The driver's work is by the handle, not by the byte. On an H200 with work queued, opening a handle takes 25 to 35 us and
 * unmapping it 16 to 24 when 16 or more go with one call, a lone one 130 and 65; a handle of 32 MiB takes no longer than
 * one of 2 MiB. So handles come in sizes (tiers), each twice the one before, up to options.bulk_bytes; a stretch of pages
 * is made of the largest that fit it. A handle can only be moved or given back when all of it is idle. So a pool can be
 * told to make none that is more than a part of what it holds (pages.part), nor than a third of the stretch that it is
 * made for: every end of a block within a large handle pins what is idle of it, half a handle in the mean. (With a quarter,
 * caches of drawn lengths held 1.020 of the live bytes instead of 1.010, replayed at five speeds; forty other programs did not care.)
 * When a spare handle is too large for the place it is broken: released, and made anew in smaller ones.
 *
 * Near the limit every page counts: handles of many pages are made only while less than three quarters of the limit are
 * taken (where the largest is longer than 32 pages: those of up to 32 up to all but a 64th of it).
 */
#include "pool/calls.h"
#include "pool/handles.h"
#include "pool/page_bits.h"
#include "pool/pages.h"

#include "base/error.h"

enum { STRETCH_PART = 3 };

void mf_handles_init(mf_pages *p, uint64_t bulk_pages)
{
    unsigned count = 1;
    for (uint64_t pages = bulk_pages; pages > 1 && count < MF_TIERS; pages /= 2)
        count++;
    p->tiers = count;
    for (unsigned i = count; i-- > 1; bulk_pages /= 2)
        p->tier_pages[i] = (uint32_t)bulk_pages;
    p->tier_pages[0] = 1;
}

static unsigned tier_of(const mf_pages *p, uint32_t pages)
{
    unsigned tier = 0;
    while (p->tier_pages[tier] != pages)
        tier++;
    return tier;
}

memfit_status mf_pages_refuse(memfit_pool *pool, mf_refusal why, uint64_t pages)
{
    pool->refusal = why;
    pool->refused_pages = pages;
    return MEMFIT_OUT_OF_MEMORY;
}

/* ---- spare ones --------------------------------------------------------------------------------------------- */

static mf_handle *new_handle(memfit_pool *pool)
{
    mf_handle *h = pool->pages.unused;
    if (h)
        pool->pages.unused = h->next;
    else
        h = MF_NEW(&pool->arena, mf_handle);
    return h;
}

void mf_handle_put_spare(memfit_pool *pool, mf_handle *h)
{
    mf_handle **list = &pool->pages.spare[tier_of(&pool->pages, h->pages)];
    h->mapped = false;
    h->next = *list;
    *list = h;
    pool->pages.spare_count += h->pages;
}

static mf_handle *take_spare(memfit_pool *pool, unsigned tier)
{
    mf_handle *h = pool->pages.spare[tier];
    if (h) {
        pool->pages.spare[tier] = h->next;
        pool->pages.spare_count -= h->pages;
    }
    return h;
}

/* The first that is mapped nowhere becomes the first of the list. */
static bool bare_first(mf_handle **list)
{
    mf_handle **at = list;
    while (*at && (*at)->shadows)
        at = &(*at)->next;
    mf_handle *h = *at;
    if (!h)
        return false;
    *at = h->next;
    h->next = *list;
    *list = h;
    return true;
}

/* ---- making and giving back --------------------------------------------------------------------------------- */

/* One new handle of so many pages, spare. False: refused, and pool->refusal says by whom. */
static bool create(memfit_pool *pool, uint32_t pages)
{
    mf_pages *p = &pool->pages;
    uint64_t bytes = pages * p->bytes;
    mf_device *device = pool->device;
    mf_handle *h = new_handle(pool);
    if (!h)
        return mf_pages_refuse(pool, MF_REFUSED_HOST, pages), false;
    bool shared = !pool->options.slice, ours = !shared || mf_budget_take(&device->budget, bytes);
    memfit_status status = MEMFIT_OK;
    uint64_t began = mf_device_now_us(device);
    if (ours)
        status = device->table->create(device, bytes, &h->physical, &pool->refused_by);
    p->making_us += mf_device_now_us(device) - began;
    if (!ours || status) {
        if (ours && shared)
            mf_budget_give(&device->budget, bytes);
        h->next = p->unused;
        p->unused = h;
        return mf_pages_refuse(pool, ours ? MF_REFUSED_DEVICE : MF_REFUSED_BUDGET, pages), false;
    }
    h->pages = pages;
    mf_handle_put_spare(pool, h);
    p->reserved += pages;
    pool->created_pages += pages;
    p->made_now += pages;
    if (p->reserved > p->reserved_peak)
        p->reserved_peak = p->reserved;
    atomic_fetch_add_explicit(&device->budget.pools_bytes, bytes, memory_order_relaxed);
    return true;
}

static bool give_back(memfit_pool *pool, unsigned tier)
{
    mf_handle *h = bare_first(&pool->pages.spare[tier]) ? take_spare(pool, tier) : NULL;
    if (!h)
        return false;
    uint64_t bytes = h->pages * pool->pages.bytes;
    mf_device *device = pool->device;
    if (device->table->release(device, h->physical, bytes, &pool->refused_by)) {
        mf_handle_put_spare(pool, h);
        return false;
    }
    pool->pages.reserved -= h->pages;
    pool->released_pages += h->pages;
    if (!pool->options.slice)
        mf_budget_give(&device->budget, bytes);
    atomic_fetch_sub_explicit(&device->budget.pools_bytes, bytes, memory_order_relaxed);
    h->next = pool->pages.unused;
    pool->pages.unused = h;
    mf_pool_tell(pool, &(mf_pool_event){.op = MF_POOL_RELEASE, .bytes = bytes});
    return true;
}

bool mf_handle_release(memfit_pool *pool)
{
    for (unsigned tier = 0; tier < pool->pages.tiers; tier++)
        if (pool->pages.spare[tier])
            return give_back(pool, tier);
    return false;
}

/* How many pages may be reserved with one more handle of this size among them. */
static uint64_t most_with(const mf_pages *p, uint32_t pages, uint64_t limit)
{
    return p->tier_pages[p->tiers - 1] > 32 && pages <= 32 ? limit - limit / 64 : limit / 4 * 3;
}

/* Of what fits the last `room` pages of a stretch: the largest that may be made now. */
static uint32_t size_to_make(const memfit_pool *pool, uint64_t stretch, uint64_t room)
{
    const mf_pages *p = &pool->pages;
    uint64_t limit = mf_pages_limit(pool), most = room;
    if (p->part) {
        most = most < stretch / STRETCH_PART ? most : stretch / STRETCH_PART;
        most = most < p->reserved / p->part ? most : p->reserved / p->part;
    }
    for (unsigned tier = p->tiers; --tier;) {
        uint32_t pages = p->tier_pages[tier];
        if (pages <= most && p->reserved + pages <= most_with(p, pages, limit))
            return pages;
    }
    return 1;
}

static uint64_t make_for_run(memfit_pool *pool, uint64_t count)
{
    uint64_t made = 0;
    while (made < count) {
        uint32_t pages = size_to_make(pool, count, count - made);
        if (!create(pool, pages) && (pages == 1 || !create(pool, pages = 1)))
            break;
        made += pages;
    }
    return made;
}

static uint64_t end_of_gap(const mf_pages *p, uint64_t at, uint64_t past)
{
    while (at < past && (at >= p->covered || !mf_bit(p->mapped, at)))
        at++;
    return at;
}

uint64_t mf_handles_make(memfit_pool *pool, uint64_t count, uint64_t first, uint64_t past)
{
    mf_pages *p = &pool->pages;
    uint64_t made = 0;
    for (uint64_t at = first, end; at < past && made < count; at = end + 1) {
        end = end_of_gap(p, at, past);
        uint64_t want = end - at < count - made ? end - at : count - made;
        uint64_t got = make_for_run(pool, want);
        made += got;
        if (got < want)
            break;
    }
    return made;
}

/* A spare handle of this size becomes smaller ones, of which some fill `room` pages. */
static memfit_status break_one(memfit_pool *pool, unsigned tier, uint64_t room, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    if (!bare_first(&p->spare[tier]))
        mf_shadows_clear(pool, 0, UINT64_MAX);
    if (!bare_first(&p->spare[tier]))
        return mf_pages_refuse(pool, MF_REFUSED_STREAM, room);
    uint64_t left = p->tier_pages[tier], fills = room;
    if (!give_back(pool, tier))
        return mf_fail(err, MEMFIT_DEVICE, "pool %s: %s", pool->name, pool->refused_by.message);
    while (left) {
        uint64_t most = fills ? fills : left;
        unsigned t = tier;
        while (p->tier_pages[t] > most || t == tier)
            t--;
        uint32_t pages = p->tier_pages[t];
        if (!create(pool, pages))
            break;
        left -= pages;
        fills -= fills ? pages : 0;
    }
    return MEMFIT_OK;
}

bool mf_handles_clean(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    while (p->unclean) {
        mf_handle *h = p->unclean;
        if (pool->device->table->unmap(pool->device, pool->range + (h->page << p->shift), h->pages * p->bytes, NULL))
            return false;
        p->unclean = h->next;
        mf_handle_put_spare(pool, h);
    }
    return true;
}

void mf_handles_abandon(mf_pages *p)
{
    p->top = p->shadow_count = 0;
    p->unclean = NULL;
    for (unsigned tier = 0; tier < p->tiers; tier++)
        p->spare[tier] = NULL;
}

/* ---- mapping ------------------------------------------------------------------------------------------------ */

void mf_handle_note_mapped(memfit_pool *pool, mf_handle *h, uint64_t page)
{
    mf_pages *p = &pool->pages;
    h->page = page;
    h->mapped = true;
    for (uint64_t i = page; i < page + h->pages; i++) {
        p->handle[i] = h;
        p->mapped[i / 64] |= UINT64_C(1) << (i % 64);
    }
    p->mapped_count += h->pages;
    if (page + h->pages > p->top)
        p->top = page + h->pages;
}

void mf_handle_forget_mapping(memfit_pool *pool, uint64_t first, uint64_t past)
{
    mf_pages *p = &pool->pages;
    for (uint64_t i = first; i < past; i++) {
        p->handle[i] = NULL;
        p->mapped[i / 64] &= ~(UINT64_C(1) << (i % 64));
    }
    p->mapped_count -= past - first;
    while (p->top && !p->handle[p->top - 1])
        p->top--;
}

/* The largest spare handle that fits; one that is too large is broken. NULL: *status says why. */
static mf_handle *fitting(memfit_pool *pool, uint64_t room, memfit_status *status, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    for (int tries = 0; tries < 2; tries++) {
        for (unsigned tier = p->tiers; tier--;)
            if (p->tier_pages[tier] <= room && p->spare[tier])
                return take_spare(pool, tier);
        unsigned tier = 0;
        while (tier < p->tiers && !p->spare[tier])
            tier++;
        if (tier == p->tiers || (*status = break_one(pool, tier, room, err)))
            break;
    }
    if (!*status)
        *status = mf_pages_refuse(pool, MF_REFUSED_DEVICE, room);
    return NULL;
}

memfit_status mf_handles_map(memfit_pool *pool, uint64_t first, uint64_t past, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    mf_device *device = pool->device;
    mf_handle *mine = NULL, *h;
    memfit_status status = MEMFIT_OK;
    uint64_t at = first;
    if (!mf_shadows_clear(pool, first, past))
        return mf_pages_refuse(pool, MF_REFUSED_STREAM, past - first);
    while (at < past && (h = fitting(pool, past - at, &status, err))) {
        status = device->table->map(device, pool->range + (at << p->shift), h->pages * p->bytes, h->physical, err);
        if (status) {
            mf_handle_put_spare(pool, h);
            break;
        }
        h->page = at;
        h->next = mine;
        mine = h;
        at += h->pages;
    }
    if (!status)
        status = device->table->access(device, pool->range + (first << p->shift), (past - first) << p->shift, err);
    while ((h = mine)) {
        mine = h->next;
        if (!status) {
            mf_handle_note_mapped(pool, h, h->page);
        } else {
            h->next = p->unclean;
            p->unclean = h;
        }
    }
    if (status)
        mf_handles_clean(pool);
    else
        mf_pool_tell(pool, &(mf_pool_event){.op = MF_POOL_MAP, .bytes = (past - first) << p->shift});
    return status;
}
