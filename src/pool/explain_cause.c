/*
 * explain_cause.c: which constraint stopped a request, and which action would have let it pass.
 *
 * A request fits if its new pages and those used stay inside the limit, and the device gives the pages that are not
 * there yet (place.c and pages.c decide by the same sums). A trial is a copy of these numbers. The cause is found by
 * taking one constraint away from a copy at a time; an action by applying it to a copy, and, when it frees blocks, by a
 * second survey that leaves those blocks out. Only what then fits is named.
 *
 * The order of the actions is their price. Waiting for a stream and giving back idle pages cost nothing; small
 * survivors cost the few bytes they hold; limits cost a setting; freeing an owner's blocks, asking for less, other
 * people's memory and another device cost more each.
 */
#include "pool/calls.h"
#include "pool/explain.h"
#include "pool/ledger.h"
#include "pool/pages.h"
#include "pool/slab.h"

#include <string.h>

bool mf_trial_fits(const mf_trial *t)
{
    if (t->place == MF_BEYOND)
        return false;
    if (t->stuck) { /* only spare pages and new ones */
        uint64_t room = t->limit > t->reserved ? t->limit - t->reserved : 0;
        return t->missing <= t->spare + (room < t->device ? room : t->device);
    }
    if (t->used + t->place > t->limit)
        return false;
    return t->used + t->place <= t->reserved || t->used + t->place - t->reserved <= t->device;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What the device's budget gives this pool when its limit is raised: a slice must first set the rise aside. */
static uint64_t budget_when_raised(const memfit_pool *pool, const mf_explain *ex)
{
    if (!pool->options.slice || ex->budget_room == MF_BEYOND)
        return ex->budget_room;
    uint64_t most = mf_limit_room(pool, pool->limit_bytes + ex->aside_bytes) / pool->pages.bytes;
    return less(most, ex->base.reserved);
}

static uint64_t device_when_raised(const memfit_pool *pool, const mf_explain *ex)
{
    return least(ex->device_free, budget_when_raised(pool, ex));
}

/* ---- the cause -------------------------------------------------------------------------------------------- */

static bool fits_without_waiting(memfit_pool *pool, mf_explain *ex)
{
    mf_trial t = ex->base;
    t.stuck = false;
    if (ex->now.used_pages > ex->now.live_pages) {
        mf_survey_take(pool, ex, &(mf_without){.owner = MF_NOBODY, .all_lanes = true}, 0, &ex->then);
        t.used = ex->then.used_pages;
        t.place = ex->then.place_pages;
    } else if (!ex->base.stuck) {
        return false;
    }
    return mf_trial_fits(&t);
}

/* Pages the small blocks would take if they were taken anew: slots side by side in slabs, the larger of them in the
 * holes of pages that stay, if there is room. */
static uint64_t packed_small_pages(const memfit_pool *pool, const mf_survey *s)
{
    uint64_t slabs = 0, per_span = pool->span_bytes / MF_SLAB, page = pool->pages.bytes;
    for (unsigned c = 0; c < MF_CLASSES; c++) {
        uint64_t slots = MF_SLAB / mf_class_bytes(c);
        slabs += (s->class_slots[c] + slots - 1) / slots;
    }
    uint64_t bytes = (slabs + per_span - 1) / per_span * pool->span_bytes;
    uint64_t staying = (s->live_pages - s->small_pages) * page;
    if (s->small_block_bytes > less(staying, s->taken_bytes - s->small_taken_bytes) ||
        s->largest_hole < MF_SURVIVOR_MOST)
        bytes += s->small_block_bytes;
    return (bytes + page - 1) / page;
}

static bool fits_with_small_packed(const memfit_pool *pool, const mf_explain *ex)
{
    uint64_t packed = packed_small_pages(pool, &ex->now);
    if (packed >= ex->now.small_pages)
        return false;
    mf_trial t = ex->base;
    t.used -= ex->now.small_pages - packed;
    return mf_trial_fits(&t);
}

/* As if pages had 64 KiB. */
static bool fits_without_pages(const memfit_pool *pool, const mf_explain *ex)
{
    uint64_t shift = pool->pages.shift - MF_FINE_SHIFT, room = mf_limit_room(pool, pool->limit_bytes);
    uint64_t pages = ex->now.fine_pages + ((ex->need_bytes - 1) >> MF_FINE_SHIFT) + 1;
    if (pages > room >> MF_FINE_SHIFT)
        return false;
    uint64_t reserved = ex->base.reserved << shift, device = ex->free_bytes + ex->rounding;
    if (!pool->options.slice && ex->budget_room != MF_BEYOND)
        device = least(device, (ex->budget_room + 1) * pool->pages.bytes - 1 + ex->rounding_shared);
    return pages <= reserved || pages - reserved <= device >> MF_FINE_SHIFT;
}

memfit_cause mf_explain_cause(memfit_pool *pool, mf_explain *ex)
{
    uint64_t page = pool->pages.bytes, own = ex->need_bytes / page + (ex->need_bytes % page != 0);
    if (own > ex->device_total || own * page + mf_fixed_bytes(pool) > ex->last.device_bytes)
        return MEMFIT_CAUSE_LARGER_THAN_DEVICE;
    if (fits_without_waiting(pool, ex))
        return MEMFIT_CAUSE_PENDING_STREAM;
    if (fits_with_small_packed(pool, ex))
        return MEMFIT_CAUSE_PINNED_BY_SMALL;
    if (ex->base.place == MF_BEYOND || fits_without_pages(pool, ex))
        return MEMFIT_CAUSE_GRANULARITY;
    mf_trial t = ex->base;
    uint64_t top = (ex->last.device_bytes - mf_fixed_bytes(pool)) / page; /* the highest limit there can be */
    t.limit = top;
    t.device = device_when_raised(pool, ex);
    if (mf_trial_fits(&t))
        return MEMFIT_CAUSE_LIMIT;
    /* The other pools gone, with this one's limit as it is and then without it; the same for other processes. */
    uint64_t without_pools = (ex->last.device_free_bytes + ex->last.other_pools_bytes) / page;
    uint64_t without_foreign = (ex->free_bytes + ex->last.others_bytes) / page;
    for (int without_limit = 0; without_limit < 2; without_limit++) {
        t.limit = without_limit ? top : ex->base.limit;
        t.device = without_pools;
        if (mf_trial_fits(&t))
            return MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE;
        t.device = without_limit || !pool->options.slice ? least(without_foreign, budget_when_raised(pool, ex))
                                                         : without_foreign;
        if (mf_trial_fits(&t))
            return MEMFIT_CAUSE_TAKEN_BY_OTHERS;
    }
    t.limit = top;
    t.device = (ex->last.device_free_bytes + ex->last.other_pools_bytes + ex->last.others_bytes) / page;
    return mf_trial_fits(&t) ? MEMFIT_CAUSE_TAKEN_BY_OTHERS : MEMFIT_CAUSE_LIMIT;
}

/* ---- actions ---------------------------------------------------------------------------------------------- */

static void add(mf_explain *ex, const memfit_action *action)
{
    memfit_explanation *e = &ex->last;
    if (e->action_count < MEMFIT_EXPLANATION_ACTIONS)
        e->actions[e->action_count++] = *action;
}

static void name_owner(const memfit_pool *pool, memfit_action *action)
{
    memcpy(action->name, mf_owner_at(pool, action->owner)->name, sizeof action->name);
}

/* Surveys again as if the blocks were gone; *freed in pages. */
static bool try_without(memfit_pool *pool, mf_explain *ex, const mf_without *without, uint64_t *freed)
{
    mf_survey_take(pool, ex, without, 0, &ex->then);
    mf_trial t = ex->base;
    t.used = ex->then.used_pages;
    t.place = ex->then.place_pages;
    t.stuck = false;
    *freed = less(ex->now.used_pages, ex->then.used_pages);
    return mf_trial_fits(&t) && !ex->base.stuck;
}

static void try_wait(memfit_pool *pool, mf_explain *ex)
{
    memfit_action a = {.kind = MEMFIT_ACTION_WAIT};
    uint64_t freed;
    if (ex->base.stuck) {
        mf_trial t = ex->base;
        t.stuck = false;
        a.stream = atomic_load_explicit(&pool->home, memory_order_relaxed);
        a.bytes = a.frees_bytes = pool->pages.idle_count * pool->pages.bytes;
        if (!pool->multi && mf_trial_fits(&t))
            add(ex, &a);
    }
    if (ex->now.used_pages == ex->now.live_pages)
        return;
    for (unsigned i = 1; i < pool->lane_count; i++) {
        if (!ex->now.lane_pages[i] || i == ex->lane)
            continue;
        if (try_without(pool, ex, &(mf_without){.owner = MF_NOBODY, .lane = i}, &freed)) {
            a.stream = pool->lane[i]->clock.stream;
            a.bytes = a.frees_bytes = freed * pool->pages.bytes;
            add(ex, &a);
            return;
        }
    }
    if (try_without(pool, ex, &(mf_without){.owner = MF_NOBODY, .all_lanes = true}, &freed)) {
        a.stream = MEMFIT_EVERY_STREAM;
        a.bytes = a.frees_bytes = freed * pool->pages.bytes;
        add(ex, &a);
    }
}

/* How many pages are short: over the limit, or not to be had from the device. */
static uint64_t pages_short(const mf_trial *t)
{
    uint64_t sum = t->used + t->place, over = less(sum, t->limit);
    uint64_t device = less(less(sum, t->reserved), t->device);
    return over > device ? over : device;
}

static void try_free_small(memfit_pool *pool, mf_explain *ex)
{
    if (!ex->now.small_pages || ex->base.stuck || ex->base.place == MF_BEYOND)
        return;
    uint64_t want = pages_short(&ex->base);
    /* A page at the edge of the place may be among those freed, and is then wanted itself: once, or twice. */
    for (unsigned more = 0; more <= 2; more++, want++) {
        memfit_action a = {.kind = MEMFIT_ACTION_FREE_SMALL};
        if (want > ex->now.small_pages || want > MF_SURVIVOR_PAGES || mf_survey_sparse(pool, ex, want, &a) < want)
            break;
        uint64_t freed, page = pool->pages.bytes;
        mf_without without = {.owner = MF_NOBODY, .pages = ex->page, .page_count = ex->page_count};
        if (!try_without(pool, ex, &without, &freed))
            continue;
        a.bytes = a.frees_bytes = freed * page;
        name_owner(pool, &a);
        if (a.live_bytes <= a.frees_bytes / 4)
            add(ex, &a);
        else
            ex->page_count = 0; /* they hold much of what they take: not survivors, just small */
        return;
    }
    ex->page_count = 0;
}

/* The limit this pool would need. */
static uint64_t wanted_limit(const memfit_pool *pool, const mf_explain *ex)
{
    const mf_trial *t = &ex->base;
    uint64_t pages = t->stuck ? t->reserved + less(t->missing, t->spare) : t->used + t->place;
    uint64_t bytes = mf_fixed_bytes(pool) + pages * pool->pages.bytes;
    return bytes > pool->limit_bytes ? bytes : pool->limit_bytes;
}

static void try_raise(const memfit_pool *pool, mf_explain *ex)
{
    uint64_t limit = wanted_limit(pool, ex);
    mf_trial t = ex->base;
    t.limit = (limit - mf_fixed_bytes(pool)) / pool->pages.bytes;
    t.device = device_when_raised(pool, ex);
    if (limit == pool->limit_bytes || limit > ex->last.device_bytes || !mf_trial_fits(&t) ||
        (pool->options.slice && limit - pool->limit_bytes > ex->aside_bytes))
        return;
    memfit_action a = {.kind = MEMFIT_ACTION_RAISE_LIMIT, .limit_bytes = limit};
    a.bytes = a.frees_bytes = limit - pool->limit_bytes;
    add(ex, &a);
}

/* Another pool's idle pages, when it is the device that is short. */
static void try_trim(const memfit_pool *pool, mf_explain *ex, memfit_pool *other)
{
    uint64_t idle = mf_pages_idle(other) * other->pages.bytes, page = pool->pages.bytes;
    if (other->policy != MEMFIT_POLICY_GROWTH || idle < page || ex->base.stuck)
        return;
    mf_trial t = ex->base;
    uint64_t free = ex->device_free + idle / page, budget = ex->budget_room;
    if (budget != MF_BEYOND && !other->options.slice)
        budget += idle / page;
    t.device = pool->options.slice ? free : least(free, budget);
    if (!mf_trial_fits(&t))
        return;
    memfit_action a = {.kind = MEMFIT_ACTION_TRIM, .bytes = idle, .frees_bytes = idle};
    memcpy(a.name, other->name, sizeof a.name);
    add(ex, &a);
}

/* What the device's budget lacks, in whole pages: for the rise of a slice's limit, or for the pages others create. */
static uint64_t wanted_more(const memfit_pool *pool, const mf_explain *ex, uint64_t limit, uint64_t created)
{
    uint64_t page = pool->pages.bytes;
    if (ex->budget_room == MF_BEYOND)
        return 0;
    if (pool->options.slice)
        return mf_round_up(less(limit - pool->limit_bytes, ex->aside_bytes), page);
    return less(created, ex->budget_room) * page;
}

/* Part of what another logical device has set aside and does not use. */
static void try_move_limit(const memfit_pool *pool, mf_explain *ex, memfit_pool *other)
{
    uint64_t page = pool->pages.bytes, limit = wanted_limit(pool, ex);
    if (!other->options.slice || ex->budget_room == MF_BEYOND || limit > ex->last.device_bytes || ex->base.stuck)
        return;
    uint64_t kept = other->pages.reserved - mf_pages_idle(other);
    uint64_t held = (kept ? kept : 1) * other->pages.bytes + mf_fixed_bytes(other); /* no limit may be below one page */
    uint64_t created = less(ex->base.used + ex->base.place, ex->base.reserved);
    uint64_t bytes = wanted_more(pool, ex, limit, created), slack = less(other->limit_bytes, held);
    if (!bytes)
        return;
    uint64_t released = less(other->pages.reserved * other->pages.bytes + mf_fixed_bytes(other),
                             less(other->limit_bytes, bytes)); /* idle pages that go when the limit comes down */
    mf_trial t = ex->base;
    t.limit = (limit - mf_fixed_bytes(pool)) / page;
    t.device = ex->device_free + released / page;
    if (bytes > slack || !mf_trial_fits(&t))
        return;
    memfit_action a = {.kind = MEMFIT_ACTION_MOVE_LIMIT, .bytes = bytes, .frees_bytes = bytes, .limit_bytes = limit};
    memcpy(a.name, other->name, sizeof a.name);
    add(ex, &a);
}

/* Other pools are looked at only if neither list nor pool is busy: this thread holds a lock already. */
static void each_other(memfit_pool *pool, mf_explain *ex,
                       void (*fn)(const memfit_pool *pool, mf_explain *ex, memfit_pool *other))
{
    if (pthread_mutex_trylock(&pool->device->lock))
        return;
    uint32_t before = ex->last.action_count;
    for (memfit_pool *other = pool->device->pools; other && ex->last.action_count == before; other = other->next) {
        if (other == pool || pthread_mutex_trylock(&other->lock))
            continue;
        fn(pool, ex, other);
        pthread_mutex_unlock(&other->lock);
    }
    pthread_mutex_unlock(&pool->device->lock);
}

/* The owner whose blocks, all freed, would do, and that holds the least. */
static void try_free_owner(memfit_pool *pool, mf_explain *ex)
{
    uint64_t want = pages_short(&ex->base), freed;
    if (ex->base.place == MF_BEYOND)
        return;
    for (unsigned i = ex->now.top_count; i-- > 0;) {
        struct mf_top_owner top = ex->now.top[i];
        if (top.pages < want || !try_without(pool, ex, &(mf_without){.owner = top.owner}, &freed))
            continue;
        memfit_action a = {.kind = MEMFIT_ACTION_FREE_OWNER,
                           .bytes = freed * pool->pages.bytes,
                           .frees_bytes = freed * pool->pages.bytes,
                           .blocks = mf_owner_at(pool, top.owner)->account.allocations -
                                     mf_owner_at(pool, top.owner)->account.frees,
                           .live_bytes = top.bytes,
                           .owner = top.owner};
        name_owner(pool, &a);
        add(ex, &a);
        return;
    }
}

static void try_smaller(const memfit_pool *pool, mf_explain *ex)
{
    uint64_t fit = ex->now.fit_bytes / MF_UNIT * MF_UNIT;
    if (fit > pool->pages.bytes * 2)
        fit = fit / 65536 * 65536;
    if (ex->base.stuck || ex->request.alignment > MF_UNIT || fit <= MF_SMALL_MOST || pool->debug ||
        fit >= ex->request.bytes)
        return;
    memfit_action a = {.kind = MEMFIT_ACTION_SMALLER};
    a.bytes = a.frees_bytes = ex->request.bytes - fit;
    add(ex, &a);
}

/* Pages that would have to be made for the request: with a stream that may still use the idle ones, those, too. */
static uint64_t pages_to_make(const mf_trial *t)
{
    return t->stuck ? less(t->missing, t->spare) : less(t->used + t->place, t->reserved);
}

static void try_others(const memfit_pool *pool, mf_explain *ex)
{
    mf_trial t = ex->base;
    uint64_t page = pool->pages.bytes;
    uint64_t bytes = less(pages_to_make(&t) * page, ex->free_bytes);
    if (ex->base.place == MF_BEYOND || !bytes || bytes > ex->last.others_bytes)
        return;
    t.device = least((ex->free_bytes + bytes) / page, ex->budget_room);
    if (pool->options.slice)
        t.device = (ex->free_bytes + bytes) / page;
    if (!mf_trial_fits(&t))
        return;
    memfit_action a = {.kind = MEMFIT_ACTION_OTHERS, .bytes = bytes, .frees_bytes = bytes};
    memcpy(a.name, ex->last.other_process, sizeof a.name - 1);
    add(ex, &a);
}

/* So much more that nobody else has to give way. */
static void try_larger_device(const memfit_pool *pool, mf_explain *ex)
{
    if (ex->base.place == MF_BEYOND || ex->base.stuck)
        return;
    uint64_t page = pool->pages.bytes, limit = wanted_limit(pool, ex);
    uint64_t created = pages_to_make(&ex->base);
    if (pool->options.no_stream_wait && !pool->multi) { /* idle pages may have to stay: enough without them */
        uint64_t all = less(ex->base.missing, ex->base.spare);
        uint64_t room = mf_fixed_bytes(pool) + (ex->base.reserved + all) * page;
        created = all > created ? all : created;
        limit = room > limit ? room : limit;
    }
    uint64_t bytes = less(limit, ex->last.device_bytes), physical = less(created * page, ex->free_bytes);
    uint64_t budget = wanted_more(pool, ex, limit, created);
    bytes = physical > bytes ? physical : bytes;
    bytes = mf_round_up(budget > bytes ? budget : bytes, page);
    memfit_action a = {.kind = MEMFIT_ACTION_LARGER_DEVICE, .bytes = bytes, .frees_bytes = bytes, .limit_bytes = limit};
    if (bytes)
        add(ex, &a);
}

void mf_explain_actions(memfit_pool *pool, mf_explain *ex)
{
    ex->page_count = 0;
    try_wait(pool, ex);
    each_other(pool, ex, try_trim);
    try_free_small(pool, ex);
    each_other(pool, ex, try_move_limit);
    try_raise(pool, ex);
    try_free_owner(pool, ex);
    try_smaller(pool, ex);
    try_others(pool, ex);
    try_larger_device(pool, ex);
}
