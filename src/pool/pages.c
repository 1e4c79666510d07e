/*
 * pages.c: the physical side of a pool: handles of one page (or a few of many pages, made in bulk), mapped or spare.
 *
 *     create -> spare -> mapped -> idle -> (taken out) -> spare -> mapped elsewhere
 *                 |                                         |
 *                 +--------------- release <----------------+
 *
 * When pages are missing behind a chosen place they come, in this order, from
 *   1. spare handles;
 *   2. new ones, while the pool holds no more than its peak use (and options.slack of it): memory that is surely wanted;
 *   3. idle pages elsewhere, if time for moving them is left: one part in a hundred of the elapsed time, over any second,
 *      by the device's clock. First those no stream can still touch, then the others, which stay mapped where they are
 *      for a while (shadows.c); from the highest address down: the top of the range is the last resort of placement, so
 *      what is idle there is the least likely to be wanted where it is. (From the lowest address up: five times as
 *      many moves; from the smallest hole up: four times; the longest idle first: half as many again.)
 *   4. new ones, up to the limit;
 *   5. at the limit: idle pages elsewhere, whatever it costs.
 * So a workload that would move pages all the time grows instead until it need not, and one that moves a few now and then
 * stays small; no constant depends on the workload.
 * Before anything is done it is known whether it will suffice, the device's own refusal apart.
 *
 * Failure: a handle that could not be mapped is spare again; pages that were mapped before the failure stay, idle,
 * where they are. What is live and what is reserved is as before. If even the way back fails, the handle is put on the
 * list of the unclean, and the way back is tried again before the next mapping and at the end.
 *
 * Bulk handles (options.bulk_bytes) are made only for long runs and while less than three quarters of the limit are
 * taken; they are recycled whole, and broken into pages (released, created anew) when only pages will do.
 */
#include "pool/page_bits.h"

#include "base/error.h"

bool mf_pages_init(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    p->bytes = pool->options.page_bytes;
    p->shift = (uint64_t)__builtin_ctzll(p->bytes);
    p->move_credit_us = MF_MOVE_WINDOW / MF_MOVE_SHARE;
    p->credit_at_us = mf_device_now_us(pool->device);
    p->bulk_pages = pool->options.bulk_bytes / p->bytes;
    if (p->bulk_pages < 2)
        p->bulk_pages = 0;
    return true;
}

uint64_t mf_pages_idle(const memfit_pool *pool)
{
    return pool->pages.idle_count + pool->pages.spare_count;
}

uint64_t mf_pages_limit(const memfit_pool *pool)
{
    uint64_t fixed = mf_fixed_bytes(pool);
    return pool->limit_bytes > fixed ? (pool->limit_bytes - fixed) / pool->pages.bytes : 0;
}

/* ---- handles ------------------------------------------------------------------------------------------------ */

static mf_handle *new_handle(memfit_pool *pool)
{
    mf_handle *h = pool->pages.unused;
    if (h)
        pool->pages.unused = h->next;
    else
        h = MF_NEW(&pool->arena, mf_handle);
    return h;
}

static void put_spare(memfit_pool *pool, mf_handle *h)
{
    mf_handle **list = h->pages > 1 ? &pool->pages.spare_bulk : &pool->pages.spare;
    h->mapped = false;
    h->next = *list;
    *list = h;
    pool->pages.spare_count += h->pages;
}

static mf_handle *take_spare(memfit_pool *pool, bool bulk)
{
    mf_handle **list = bulk ? &pool->pages.spare_bulk : &pool->pages.spare;
    mf_handle *h = *list;
    if (h) {
        *list = h->next;
        pool->pages.spare_count -= h->pages;
    }
    return h;
}

static memfit_status refuse(memfit_pool *pool, mf_refusal why, uint64_t pages)
{
    pool->refusal = why;
    pool->refused_pages = pages;
    return MEMFIT_OUT_OF_MEMORY;
}

/* One new handle of so many pages, spare. False: refused, and pool->refusal says by whom. */
static bool create(memfit_pool *pool, uint32_t pages)
{
    mf_pages *p = &pool->pages;
    uint64_t bytes = pages * p->bytes;
    mf_device *device = pool->device;
    mf_handle *h = new_handle(pool);
    if (!h)
        return refuse(pool, MF_REFUSED_HOST, pages), false;
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
        return refuse(pool, ours ? MF_REFUSED_DEVICE : MF_REFUSED_BUDGET, pages), false;
    }
    h->pages = pages;
    put_spare(pool, h);
    p->reserved += pages;
    pool->created_pages += pages;
    p->made_now += pages;
    if (p->reserved > p->reserved_peak)
        p->reserved_peak = p->reserved;
    atomic_fetch_add_explicit(&device->budget.pools_bytes, bytes, memory_order_relaxed);
    return true;
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

/* Gives one spare handle back. False: the device would not take it, or there is none that could go. */
static bool release(memfit_pool *pool, bool bulk)
{
    mf_handle *h = bare_first(bulk ? &pool->pages.spare_bulk : &pool->pages.spare) ? take_spare(pool, bulk) : NULL;
    if (!h)
        return false;
    uint64_t bytes = h->pages * pool->pages.bytes;
    mf_device *device = pool->device;
    if (device->table->release(device, h->physical, bytes, &pool->refused_by)) {
        put_spare(pool, h);
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

/* Tries again to unmap what could not be unmapped after a fault. */
static bool clean(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    while (p->unclean) {
        mf_handle *h = p->unclean;
        if (pool->device->table->unmap(pool->device, pool->range + (h->page << p->shift), h->pages * p->bytes, NULL))
            return false;
        p->unclean = h->next;
        put_spare(pool, h);
    }
    return true;
}

/* ---- taking idle pages out ---------------------------------------------------------------------------------- */

/* Whole handles at [first, past) become spare. */
static void take_out(memfit_pool *pool, uint64_t first, uint64_t past)
{
    mf_pages *p = &pool->pages;
    for (uint64_t i = first; i < past; i++) {
        mf_handle *h = p->handle[i];
        p->handle[i] = NULL;
        p->mapped[i / 64] &= ~(UINT64_C(1) << (i % 64));
        if (h->page == i)
            put_spare(pool, h);
    }
    p->mapped_count -= past - first;
    while (p->top && !p->handle[p->top - 1])
        p->top--;
}

/* Unmaps [first, past), whole handles, all idle; they become spare. */
static bool unmap_run(memfit_pool *pool, uint64_t first, uint64_t past)
{
    mf_pages *p = &pool->pages;
    if (pool->device->table->unmap(pool->device, pool->range + (first << p->shift), (past - first) << p->shift,
                                   &pool->refused_by))
        return false;
    mf_pages_clear_idle(pool, first, past);
    take_out(pool, first, past);
    return true;
}

/* Can the whole handle be taken out, when pages stamped `past` or lower can? */
static bool ready(const memfit_pool *pool, const mf_handle *h, uint64_t past)
{
    const mf_pages *p = &pool->pages;
    for (uint64_t i = h->page; i < h->page + h->pages; i++)
        if (p->freed[i] > past)
            return false;
    return h->pages == 1 || mf_bits_count_idle(pool, h->page, h->page + h->pages) == h->pages;
}

uint64_t mf_pages_loose(const memfit_pool *pool)
{
    const mf_pages *p = &pool->pages;
    uint64_t loose = mf_pages_idle(pool);
    for (uint64_t i = 0; p->bulk_pages && i < p->top; i++) {
        const mf_handle *h = mf_bit(p->mapped, i) ? p->handle[i] : NULL;
        if (!h || h->page != i || h->pages == 1)
            continue;
        uint64_t idle = mf_bits_count_idle(pool, i, i + h->pages);
        loose -= idle < h->pages ? idle : 0;
    }
    return loose;
}

/* Makes up to `want` idle pages stamped `age` or lower spare, keeping off [from, to). Returns how many it got: a bulk
 * handle may give more, if `more` is allowed. */
static uint64_t recycle(memfit_pool *pool, uint64_t want, uint64_t from, uint64_t to, uint64_t age, bool more)
{
    mf_pages *p = &pool->pages;
    uint64_t got = 0, below = p->covered;
    while (got < want) {
        uint64_t last = mf_bits_highest_idle(pool, below);
        if (last == MF_BEYOND)
            break;
        if (last >= from && last < to) {
            below = from;
            continue;
        }
        mf_handle *h = p->handle[last];
        uint64_t first = h->page;
        below = first;
        if (!ready(pool, h, age) || (!more && h->pages > want - got) || (first < to && first + h->pages > from))
            continue;
        uint64_t past = first + h->pages;
        while (h->pages == 1 && past - first < want - got && first && !(first - 1 >= from && first - 1 < to) &&
               mf_bit(p->idle, first - 1) && p->handle[first - 1]->pages == 1 && p->freed[first - 1] <= age)
            first--;
        below = first;
        if (!unmap_run(pool, first, past))
            break;
        got += past - first;
    }
    return got;
}

/* Takes idle pages that are not past yet, from the highest down; they stay mapped where they are, as shadows, and are
 * spare. Returns how many; `more` as above. *left: there are others, but they cannot have shadows. */
static uint64_t borrow(memfit_pool *pool, uint64_t want, uint64_t from, uint64_t to, bool more, bool *left)
{
    mf_pages *p = &pool->pages;
    uint64_t got = 0, below = p->covered;
    while (got < want) {
        uint64_t page = mf_bits_highest_idle(pool, below);
        if (page == MF_BEYOND)
            break;
        mf_handle *h = p->handle[page];
        uint64_t first = h->page, past = first + h->pages;
        below = page >= from && page < to ? from : first;
        if ((first < to && past > from) || (!more && h->pages > want - got) || !ready(pool, h, UINT64_MAX))
            continue;
        if (!mf_shadow_leave(pool, h)) {
            *left = true;
            break;
        }
        mf_pages_clear_idle(pool, first, past);
        take_out(pool, first, past);
        got += past - first;
    }
    return got;
}

/* ---- mapping ------------------------------------------------------------------------------------------------ */

static void note_mapped(memfit_pool *pool, mf_handle *h, uint64_t page)
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

/* Maps spare handles at [first, past), makes them accessible; all or nothing. */
static memfit_status map_run(memfit_pool *pool, uint64_t first, uint64_t past, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    mf_device *device = pool->device;
    mf_handle *mine = NULL;
    memfit_status status = MEMFIT_OK;
    uint64_t at = first;
    if (!mf_shadows_clear(pool, first, past))
        return refuse(pool, MF_REFUSED_STREAM, past - first);
    while (at < past && !status) {
        bool bulk = p->spare_bulk && p->spare_bulk->pages <= past - at;
        if (!bulk && !p->spare && p->spare_bulk) { /* only pages will do: break a bulk handle */
            if (!bare_first(&p->spare_bulk))
                mf_shadows_clear(pool, 0, UINT64_MAX);
            uint32_t pages = bare_first(&p->spare_bulk) ? p->spare_bulk->pages : 0;
            if (!pages)
                status = refuse(pool, MF_REFUSED_STREAM, past - at);
            else if (!release(pool, true))
                status = mf_fail(err, MEMFIT_DEVICE, "pool %s: %s", pool->name, pool->refused_by.message);
            for (uint32_t i = 0; i < pages && !status; i++)
                if (!create(pool, 1))
                    break;
        }
        mf_handle *h = status ? NULL : take_spare(pool, bulk);
        if (!h) {
            if (!status)
                status = refuse(pool, MF_REFUSED_DEVICE, past - at);
            break;
        }
        status = device->table->map(device, pool->range + (at << p->shift), h->pages * p->bytes, h->physical, err);
        if (status) {
            put_spare(pool, h);
            break;
        }
        h->page = at;
        h->next = mine;
        mine = h;
        at += h->pages;
    }
    if (!status)
        status = device->table->access(device, pool->range + (first << p->shift), (past - first) << p->shift, err);
    while (mine) {
        mf_handle *h = mine;
        mine = h->next;
        if (!status) {
            note_mapped(pool, h, h->page);
        } else {
            h->next = p->unclean;
            p->unclean = h;
        }
    }
    if (status)
        clean(pool);
    else
        mf_pool_tell(pool, &(mf_pool_event){.op = MF_POOL_MAP, .bytes = (past - first) << p->shift});
    return status;
}

memfit_status mf_pool_open_to(memfit_pool *pool, mf_device *other, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    mf_device *device = pool->device;
    if (!device->table->open_to) /* plain memory: the driver's own calls serve it */
        return MEMFIT_OK;
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    status = device->table->open_to(device, other, err);
    for (uint64_t i = 0, end; i < p->top && !status; i = end) { /* what is mapped already */
        for (end = i + 1; end < p->top && mf_bit(p->mapped, i) && mf_bit(p->mapped, end); end++) {}
        if (mf_bit(p->mapped, i))
            status = device->table->access(device, pool->range + (i << p->shift), (end - i) << p->shift, err);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- gathering ---------------------------------------------------------------------------------------------- */

/* How much more than the bytes in use the pool may hold rather than move pages. */
static uint64_t slack_of(const memfit_pool *pool, uint64_t use)
{
    return (uint64_t)((double)use * pool->options.slack);
}

/* Pages the pool may hold before it moves some rather than make new ones. */
static uint64_t easy_pages(const memfit_pool *pool, uint64_t request)
{
    uint64_t use = pool->total.now + request;
    if (use < pool->total.peak)
        use = pool->total.peak;
    return (use + slack_of(pool, use)) / pool->pages.bytes;
}

static uint64_t up_to(uint64_t want, uint64_t ceiling, uint64_t have)
{
    uint64_t room = ceiling > have ? ceiling - have : 0;
    return want < room ? want : room;
}

/* Bulk handles first: of the size asked for while three quarters of the limit are not reached, then of 32 pages up to
 * all but a 64th of it, where the pages that can move one by one begin. On an H200 a page made alone costs 65 us, one
 * of 32 costs 1.3. */
static uint64_t create_many(memfit_pool *pool, uint64_t count, uint64_t gap)
{
    mf_pages *p = &pool->pages;
    uint64_t made = 0, limit = mf_pages_limit(pool);
    const struct {
        uint64_t pages, most;
    } tiers[] = {{p->bulk_pages, limit / 4 * 3}, {p->bulk_pages > 32 ? 32 : 0, limit - limit / 64}};
    for (size_t i = 0; i < 2; i++)
        while (tiers[i].pages && count - made >= tiers[i].pages && gap >= tiers[i].pages &&
               p->reserved + tiers[i].pages <= tiers[i].most && create(pool, (uint32_t)tiers[i].pages)) {
            made += tiers[i].pages;
            gap -= tiers[i].pages;
        }
    while (made < count && create(pool, 1))
        made++;
    return made;
}

/* What this request made and could not use. */
static void give_back_created(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    while (p->made_now && (p->spare || p->spare_bulk)) {
        uint64_t before = p->reserved;
        if (!release(pool, p->spare == NULL))
            return;
        uint64_t gone = before - p->reserved;
        p->made_now -= gone < p->made_now ? gone : p->made_now;
    }
}

/* Moves idle pages, first those that the device is past with, then others while they can stay mapped where they are as
 * well, then as they become past. False: it is not possible to wait for those that are left. */
static bool move_idle(memfit_pool *pool, uint64_t want, uint64_t first, uint64_t past)
{
    uint64_t got = 0;
    bool left;
    do {
        uint64_t age = mf_pages_past(pool);
        left = false;
        for (int more = 0; more < 2 && got < want; more++) { /* a bulk handle is broken only when it must be */
            got += recycle(pool, want - got, first, past, age, more);
            if (got < want && age != UINT64_MAX)
                got += borrow(pool, want - got, first, past, more, &left);
        }
    } while (got < want && left && mf_pages_wait(pool));
    pool->remapped_now += got;
    return got >= want || !left;
}

/* Is there time left for moving pages? */
static bool may_move(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    uint64_t now = mf_device_now_us(pool->device);
    int64_t most = MF_MOVE_WINDOW / MF_MOVE_SHARE;
    p->move_credit_us += (int64_t)((now - p->credit_at_us) / MF_MOVE_SHARE);
    p->credit_at_us = now - (now - p->credit_at_us) % MF_MOVE_SHARE;
    if (p->move_credit_us > most)
        p->move_credit_us = most;
    return p->move_credit_us > 0;
}

/* Makes up to `more` pages, while no more than `ceiling` are reserved. False: it was refused before. */
static bool make(memfit_pool *pool, uint64_t more, uint64_t ceiling, uint64_t gap)
{
    uint64_t count = up_to(more, ceiling, pool->pages.reserved);
    return !count || create_many(pool, count, gap) == count;
}

static uint64_t still_missing(const memfit_pool *pool, uint64_t missing)
{
    return missing > pool->pages.spare_count ? missing - pool->pages.spare_count : 0;
}

/* How many pages may be reserved before pressure is to be relieved. */
static uint64_t soft_pages(const memfit_pool *pool, uint64_t limit, bool grow_soft)
{
    if (!pool->soft_limit_bytes || grow_soft)
        return limit;
    uint64_t soft = mf_limit_room(pool, pool->soft_limit_bytes) / pool->pages.bytes;
    return soft < limit ? soft : limit;
}

/* Sees to it that `missing` pages are spare. */
static memfit_status gather(memfit_pool *pool, uint64_t missing, uint64_t first, uint64_t past, uint64_t request,
                            bool grow_soft)
{
    mf_pages *p = &pool->pages;
    uint64_t limit = mf_pages_limit(pool), soft = soft_pages(pool, limit, grow_soft);
    uint64_t elsewhere = p->idle_count - mf_bits_count_idle(pool, first, past);
    uint64_t room = limit > p->reserved ? limit - p->reserved : 0;
    if (p->spare_count + room + elsewhere < missing)
        return refuse(pool, MF_REFUSED_LIMIT, missing);
    uint64_t easy = easy_pages(pool, request), more = still_missing(pool, missing);
    bool refused = false, waits = false;
    if (more)
        refused = !make(pool, more, easy < soft ? easy : soft, mf_bits_longest_gap(pool, first, past));
    if ((more = still_missing(pool, missing)) && elsewhere && may_move(pool))
        waits = !move_idle(pool, more, first, past);
    if ((more = still_missing(pool, missing)) && !refused)
        refused = !make(pool, more, soft, 0);
    if ((more = still_missing(pool, missing)) && elsewhere) /* no more to be had: it moves what it can */
        waits = !move_idle(pool, more, first, past);
    if (!(more = still_missing(pool, missing)))
        return MEMFIT_OK;
    if (!refused && soft < limit && up_to(more, soft, p->reserved) < more)
        return refuse(pool, MF_REFUSED_NOT, more); /* asks for pressure to be relieved first */
    if (waits)
        return refuse(pool, MF_REFUSED_STREAM, more);
    if (!refused)
        refuse(pool, MF_REFUSED_LIMIT, more); /* pages were idle but could not be taken out */
    pool->refused_pages = missing;
    return MEMFIT_OUT_OF_MEMORY;
}

memfit_status mf_pages_back(memfit_pool *pool, uint64_t start, uint64_t bytes, bool grow_soft, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    uint64_t missing = mf_pages_missing(pool, start, bytes);
    pool->remapped_now = 0;
    p->made_now = 0;
    if (!missing)
        return MEMFIT_OK;
    if (pool->device->plain) /* all there is was mapped at the beginning */
        return refuse(pool, MF_REFUSED_LIMIT, missing);
    uint64_t first = start >> p->shift, past = ((start + bytes - 1) >> p->shift) + 1;
    if (!mf_bits_cover(pool, past))
        return refuse(pool, MF_REFUSED_HOST, missing), MEMFIT_NO_HOST_MEMORY;
    if (!clean(pool))
        return refuse(pool, MF_REFUSED_DEVICE, missing), MEMFIT_DEVICE;
    uint64_t began = mf_device_now_us(pool->device);
    unsigned shadows = p->shadow_count;
    p->making_us = 0;
    memfit_status status = gather(pool, missing, first, past, bytes, grow_soft);
    for (uint64_t i = first; i < past && !status; i++) {
        if (mf_bit(p->mapped, i))
            continue;
        uint64_t end = i + 1;
        while (end < past && !mf_bit(p->mapped, end))
            end++;
        status = map_run(pool, i, end, &pool->refused_by);
        if (status && pool->refusal == MF_REFUSED_NOT)
            refuse(pool, MF_REFUSED_DEVICE, missing);
        i = end;
    }
    if (pool->remapped_now || shadows) /* making pages is not moving them */
        p->move_credit_us -= (int64_t)(mf_device_now_us(pool->device) - began - p->making_us);
    if (!status && pool->remapped_now) {
        pool->remaps++;
        pool->remapped_pages += pool->remapped_now;
    }
    if (status)
        give_back_created(pool);
    if (status && err)
        *err = pool->refused_by;
    return status;
}

/* ---- giving back, taking all -------------------------------------------------------------------------------- */

uint64_t mf_pages_trim(memfit_pool *pool, uint64_t keep)
{
    mf_pages *p = &pool->pages;
    uint64_t before = p->reserved;
    if (pool->device->plain) /* it is back only when the pool ends */
        return 0;
    clean(pool);
    if (p->reserved > keep && p->shadow_count && mf_pages_settled(pool))
        mf_shadows_clear(pool, 0, UINT64_MAX);
    while (p->reserved > keep) {
        if (!p->spare && !p->spare_bulk &&
            (!p->idle_count || !mf_pages_settled(pool) || !recycle(pool, p->reserved - keep, 0, 0, UINT64_MAX, true)))
            break;
        if (!release(pool, p->spare == NULL))
            break;
    }
    return before - p->reserved;
}

/* Maps every spare page behind the last one, where they lie idle until wanted. */
static memfit_status park(memfit_pool *pool, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    uint64_t first = (pool->tail->start + p->bytes - 1) >> p->shift;
    if (first < p->top)
        first = p->top;
    uint64_t past = first + p->spare_count;
    if (past == first)
        return MEMFIT_OK;
    if (past > pool->range_bytes >> p->shift || !mf_bits_cover(pool, past) || !clean(pool))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for the table of pages", pool->name);
    memfit_status status = map_run(pool, first, past, err);
    if (status)
        return status;
    mf_pages_set_idle(pool, first, past);
    for (uint64_t i = first; i < past; i++)
        p->freed[i] = 0; /* nobody used it yet */
    return MEMFIT_OK;
}

memfit_status mf_pages_fill(memfit_pool *pool, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    uint64_t limit = mf_pages_limit(pool), more = limit > p->reserved ? limit - p->reserved : 0;
    p->made_now = 0;
    uint64_t made = create_many(pool, more, more);
    memfit_status status = MEMFIT_OK;
    if (made < more)
        status = mf_fail(err, pool->refusal == MF_REFUSED_HOST ? MEMFIT_NO_HOST_MEMORY : MEMFIT_OUT_OF_MEMORY,
                         "pool %s: preallocation: %llu of %llu pages of %llu KiB could be had%s%s", pool->name,
                         (unsigned long long)(p->reserved), (unsigned long long)limit,
                         (unsigned long long)(p->bytes >> 10), pool->refusal == MF_REFUSED_BUDGET ? "" : ": ",
                         pool->refusal == MF_REFUSED_BUDGET ? "; other pools on this device have the rest"
                                                            : pool->refused_by.message);
    else
        status = park(pool, err);
    if (status)
        give_back_created(pool);
    return status;
}

/* What was idle all the time since the last purge is given back. No page carries a date: the fewest idle pages seen in
 * the interval are as many as nobody needed. The slack of what was needed stays. */
void mf_pages_purge(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    if (pool->policy != MEMFIT_POLICY_GROWTH || pool->purge_us == UINT64_MAX)
        return;
    uint64_t now = mf_device_now_us(pool->device);
    if (now < p->purge_at_us)
        return;
    uint64_t idle = mf_pages_idle(pool), unused = p->low_idle < idle ? p->low_idle : idle;
    uint64_t keep = p->reserved - unused;
    keep += slack_of(pool, keep << p->shift) >> p->shift; /* it would be made again at the next peak */
    if (keep > p->reserved)
        keep = p->reserved;
    if (pool->options.keep_idle && keep < pool->soft_limit_bytes / p->bytes)
        keep = pool->soft_limit_bytes / p->bytes;
    if (p->purge_at_us && keep < p->reserved)
        mf_pages_trim(pool, keep);
    p->low_idle = mf_pages_idle(pool);
    p->purge_at_us = now + pool->purge_us;
}

void mf_pages_end(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    if (p->reserved && !mf_fence_settled(pool)) /* rather lose memory than take it from work that still runs */
        p->top = p->shadow_count = 0, p->spare = p->spare_bulk = p->unclean = NULL;
    mf_shadows_end(pool);
    clean(pool);
    for (uint64_t i = 0; i < p->top;) { /* unmap all, live or not, in long runs */
        if (!mf_bit(p->mapped, i)) {
            i++;
            continue;
        }
        uint64_t past = i;
        while (past < p->top && mf_bit(p->mapped, past))
            past++;
        if (!unmap_run(pool, i, past) && !unmap_run(pool, i, past)) /* once more: a passing fault must not leak */
            break;
        i = past;
    }
    while (release(pool, p->spare == NULL) || release(pool, p->spare == NULL)) {}
    mf_host_free(pool->host, p->mapped, mf_bits_bytes(p->covered));
}
