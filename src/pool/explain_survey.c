/*
 * explain_survey.c: one walk over a pool, in address order, that counts what an explanation needs.
 *
 *     pieces   |--live--|....|span of slots|...|--live--|~waits for a stream~|.....
 *     pages    [   1   ][   2   ][   3   ][   4   ][   5   ] ...
 *
 * Pieces are what keeps pages: live blocks, spans that hold slots, holes that wait for a stream. Between them are gaps,
 * where the request is tried as place.c tries it: at both ends and on a page boundary. A page belongs to one owner if
 * all pieces in it do; it is small if all of them are small. A walk can leave pieces out, as if an action had been
 * taken, and so proves it.
 *
 * Cost: a few nanoseconds a slot, tens for a block; nothing is allocated.
 */
#include "pool/blocks.h"
#include "pool/explain.h"
#include "pool/ledger.h"
#include "pool/pages.h"

#include <string.h>

typedef struct piece {
    uint64_t start, end;
    uint64_t live_bytes, taken_bytes;
    uint32_t owner; /* or MF_MIXED */
    uint32_t blocks;
    uint8_t lane; /* waits for this lane; 0: it is live; MF_LANES: waits for some */
    bool small;
    bool waits;          /* some of its slots are neither live nor free: a stream may still use them */
    const mf_span *span; /* or NULL */
} piece;

/* The page at hand. */
typedef struct page_state {
    uint64_t number; /* MF_BEYOND: none */
    uint64_t live_bytes;
    uint64_t block_bytes; /* taken here by blocks that are no slots */
    uint32_t owner;
    uint32_t lane;
    bool live, large;
} page_state;

typedef struct walk {
    memfit_pool *pool;
    const mf_explain *ex;
    const mf_without *without;
    mf_survey *s;
    uint64_t room;
    uint64_t gap_start;
    uint32_t next_page; /* index into without->pages */
    uint64_t fine_past; /* fine pages below are counted */
    page_state page;
} walk;

/* ---- pieces ----------------------------------------------------------------------------------------------- */

static void read_span(const mf_block *block, piece *p, uint32_t *class_slots)
{
    const mf_span *span = block->span;
    p->span = span;
    p->small = true;
    p->owner = MF_NOBODY;
    uint32_t taken = 0;
    for (unsigned i = 0; i < 32; i++) /* asked for together: they lie all over the memory */
        if (span->slab[i]) {
            __builtin_prefetch(span->slab[i]);
            __builtin_prefetch((const char *)span->slab[i] + 64);
        }
    for (unsigned i = 0; i < 32; i++) {
        const mf_slab *slab = span->slab[i];
        if (!slab)
            continue;
        taken += (uint32_t)slab->slots - slab->free;
        for (unsigned k = 0; k < slab->slots; k++) {
            uint64_t word = mf_slot_load(slab, k);
            if (!word)
                continue;
            uint32_t owner = MF_SLOT_OWNER(word);
            p->owner = p->owner == MF_NOBODY || p->owner == owner ? owner : MF_MIXED;
            p->live_bytes += MF_SLOT_ASKED(word);
            p->taken_bytes += slab->slot_bytes;
            p->blocks++;
            class_slots[slab->size_class]++;
        }
    }
    p->waits = taken > p->blocks;
    if (p->owner == MF_NOBODY) { /* slots freed on a stream that has not come so far; which one, their lane knows */
        p->owner = MF_MIXED;
        p->lane = MF_LANES;
    }
}

/* False: this block keeps no page. */
static bool read_piece(const walk *w, const mf_block *block, piece *p, uint32_t *class_slots)
{
    *p = (piece){.start = block->start, .end = block->start + block->bytes};
    switch ((mf_block_state)block->state) {
    case MF_LIVE:
        p->owner = MF_TAG_OWNER(mf_block_tag(block));
        p->live_bytes = block->bytes - MF_TAG_REST(mf_block_tag(block));
        p->taken_bytes = block->bytes;
        p->blocks = 1;
        p->small = block->bytes <= MF_SURVIVOR_MOST;
        return mf_block_live(block); /* what a thread keeps, the next request has */
    case MF_SPAN:
        read_span(block, p, class_slots);
        return true;
    case MF_HOLE:
        p->owner = MF_MIXED;
        p->lane = block->lane;
        return block->lane && block != w->pool->tail;
    case MF_HELD:
        p->owner = MF_MIXED;
        p->lane = MF_LANES;
        return true;
    }
    return false;
}

static bool touches_chosen_page(walk *w, const piece *p)
{
    uint64_t shift = w->pool->pages.shift, first = p->start >> shift, last = (p->end - 1) >> shift;
    while (w->next_page < w->without->page_count && w->without->pages[w->next_page] < first)
        w->next_page++;
    for (uint32_t i = w->next_page; i < w->without->page_count && w->without->pages[i] <= last; i++)
        return true;
    return false;
}

/* An empty span goes to the lane it was made for, and waits there with the rest if that stream is behind. */
static bool would_wait(const walk *w, const piece *p)
{
    return p->waits || (p->span && w->ex->behind >> p->span->lane & 1);
}

static bool left_out(walk *w, const piece *p)
{
    if (p->lane)
        return w->without->all_lanes || (w->without->lane && p->lane == w->without->lane);
    if (w->without->owner != MF_NOBODY && p->owner == w->without->owner)
        return !would_wait(w, p);
    return w->without->page_count && p->small && touches_chosen_page(w, p) && !would_wait(w, p);
}

/* ---- gaps ------------------------------------------------------------------------------------------------- */

/* New pages for [start, start + bytes) inside the gap: those at its ends that a neighbour keeps are there already. */
static void consider(walk *w, uint64_t gap_end, uint64_t start)
{
    uint64_t bytes = w->ex->need_bytes, shift = w->pool->pages.shift;
    if (start < w->gap_start || start > gap_end || bytes > gap_end - start)
        return;
    uint64_t first = start >> shift, past = ((start + bytes - 1) >> shift) + 1, pages = past - first;
    if (first << shift < w->gap_start)
        pages--;
    if (past << shift > gap_end && (past - 1 > first || first << shift >= w->gap_start))
        pages--;
    if (pages < w->s->place_pages)
        w->s->place_pages = pages;
    uint64_t missing = mf_pages_missing(w->pool, start, bytes);
    if (missing < w->s->missing_pages)
        w->s->missing_pages = missing;
}

/* The largest block `room` new pages would do for in this gap. */
static uint64_t fit_in_gap(const walk *w, uint64_t gap_end)
{
    uint64_t page = w->pool->pages.bytes, mask = page - 1, length = gap_end - w->gap_start;
    uint64_t head = -w->gap_start & mask, tail = gap_end & mask;
    if (head + tail > length)
        return length; /* inside one page that is there */
    uint64_t whole = (length - head - tail) >> w->pool->pages.shift;
    if (w->room >= whole)
        return length;
    return w->room * page + (head > tail ? head : tail);
}

static void close_gap(walk *w, uint64_t gap_end, bool is_tail)
{
    if (gap_end <= w->gap_start)
        return;
    uint64_t page = w->pool->pages.bytes, alignment = w->ex->need_alignment;
    uint64_t fit = fit_in_gap(w, gap_end);
    if (fit > w->s->fit_bytes)
        w->s->fit_bytes = fit;
    if (!is_tail && gap_end - w->gap_start > w->s->largest_hole)
        w->s->largest_hole = gap_end - w->gap_start;
    if (gap_end - w->gap_start < w->ex->need_bytes)
        return;
    consider(w, gap_end, mf_round_up(w->gap_start, alignment));
    if (!is_tail)
        consider(w, gap_end, (gap_end - w->ex->need_bytes) / alignment * alignment);
    consider(w, gap_end, mf_round_up(w->gap_start, alignment > page ? alignment : page));
}

/* A hole of the request's own stream: its pages are kept for this stream, so only those without memory are new. */
static void consider_own(walk *w, const mf_block *hole)
{
    uint64_t start = mf_round_up(hole->start, w->ex->need_alignment);
    if (start - hole->start > hole->bytes || w->ex->need_bytes > hole->bytes - (start - hole->start))
        return;
    uint64_t missing = mf_pages_missing(w->pool, start, w->ex->need_bytes);
    if (missing < w->s->place_pages)
        w->s->place_pages = missing;
    if (missing < w->s->missing_pages)
        w->s->missing_pages = missing;
}

/* ---- pages ------------------------------------------------------------------------------------------------ */

/* Asked for every piece and page: a look into a small table, which the owners' numbers share by their low bits. */
static struct mf_top_owner *find_top(mf_survey *s, uint32_t owner)
{
    for (unsigned i = s->top_at[owner % MF_TOP_TABLE]; i; i = s->top_next[i])
        if (s->top[i - 1].owner == owner)
            return &s->top[i - 1];
    return NULL;
}

static unsigned sparse_step(const memfit_pool *pool, uint64_t live_bytes)
{
    uint64_t step = live_bytes * MF_SPARSE_STEPS / pool->pages.bytes;
    return step > MF_SPARSE_STEPS ? MF_SPARSE_STEPS : (unsigned)step;
}

static void close_page(walk *w)
{
    page_state *p = &w->page;
    if (p->number == MF_BEYOND)
        return;
    mf_survey *s = w->s;
    s->used_pages++;
    if (p->live) {
        s->live_pages++;
        struct mf_top_owner *top = p->owner < MF_MIXED ? find_top(s, p->owner) : NULL;
        if (top)
            top->pages++;
        if (!p->large) {
            s->small_pages++;
            s->small_block_bytes += p->block_bytes;
            s->sparse[sparse_step(w->pool, p->live_bytes)]++;
        }
    } else if (p->lane < MF_LANES) {
        s->lane_pages[p->lane]++;
    } else {
        s->lanes_mixed_pages++;
    }
    p->number = MF_BEYOND;
}

static void enter_page(walk *w, uint64_t number, const piece *p)
{
    page_state *page = &w->page;
    if (p->lane && mf_pages_missing(w->pool, number << w->pool->pages.shift, 1)) /* its page may have moved */
        return;
    if (page->number != number) {
        close_page(w);
        *page = (page_state){.number = number, .owner = MF_NOBODY, .lane = p->lane};
    }
    if (p->lane) {
        if (page->lane != p->lane)
            page->lane = MF_LANES; /* several */
        return;
    }
    page->owner = page->owner == MF_NOBODY || page->owner == p->owner ? p->owner : MF_MIXED;
    page->live = true;
    page->large |= !p->small || would_wait(w, p);
    page->live_bytes += p->live_bytes;
    page->block_bytes += p->span ? 0 : p->taken_bytes;
}

/* The pages a piece lies in. Those inside it are its own, and are counted in one go. */
static void count_pages(walk *w, const piece *p)
{
    uint64_t shift = w->pool->pages.shift, first = p->start >> shift, last = (p->end - 1) >> shift;
    enter_page(w, first, p);
    if (last == first)
        return;
    if (last - first > 1) {
        close_page(w);
        uint64_t inside = last - first - 1;
        if (p->lane) /* some of its pages may have moved */
            inside -= mf_pages_missing(w->pool, (first + 1) << shift, inside << shift);
        w->s->used_pages += inside;
        if (p->lane == MF_LANES) {
            w->s->lanes_mixed_pages += inside;
        } else if (p->lane) {
            w->s->lane_pages[p->lane] += inside;
        } else {
            w->s->live_pages += inside;
            struct mf_top_owner *top = p->owner < MF_MIXED ? find_top(w->s, p->owner) : NULL;
            if (top)
                top->pages += inside;
            if (p->small) { /* only with pages of less than 64 KiB */
                w->s->small_pages += inside;
                w->s->sparse[MF_SPARSE_STEPS] += (uint32_t)inside;
            }
        }
    }
    enter_page(w, last, p);
}

/* ---- the walk --------------------------------------------------------------------------------------------- */

/* The owners with most bytes. */
static void find_top_owners(const memfit_pool *pool, mf_survey *s)
{
    uint32_t count = atomic_load_explicit(&pool->owner_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = mf_owner_at(pool, i)->account.now;
        if (!bytes)
            continue;
        s->owners++;
        unsigned at = s->top_count < MF_TOP_OWNERS ? s->top_count : MF_TOP_OWNERS;
        while (at > 0 && s->top[at - 1].bytes < bytes) {
            if (at < MF_TOP_OWNERS)
                s->top[at] = s->top[at - 1];
            at--;
        }
        if (at < MF_TOP_OWNERS)
            s->top[at] = (struct mf_top_owner){.owner = i, .bytes = bytes};
        if (s->top_count < MF_TOP_OWNERS)
            s->top_count++;
    }
    for (unsigned i = 0; i < s->top_count; i++) {
        uint8_t *first = &s->top_at[s->top[i].owner % MF_TOP_TABLE];
        s->top_next[i + 1] = *first;
        *first = (uint8_t)(i + 1);
    }
}

/* With pages of 64 KiB a slab would have one of its own. */
static void count_fine_pages(walk *w, const piece *p)
{
    if (p->span) {
        for (unsigned i = 0; i < 32; i++)
            w->s->fine_pages += p->span->slab[i] != NULL;
        return;
    }
    uint64_t first = p->start >> MF_FINE_SHIFT, past = ((p->end - 1) >> MF_FINE_SHIFT) + 1;
    w->s->fine_pages += past - (first > w->fine_past ? first : w->fine_past);
    w->fine_past = past;
}

static void count_piece(walk *w, const piece *p, const uint32_t *class_slots)
{
    mf_survey *s = w->s;
    count_fine_pages(w, p);
    s->taken_bytes += p->taken_bytes;
    if (p->small && !p->lane) {
        s->small_live_bytes += p->live_bytes;
        s->small_blocks += p->blocks;
    }
    if (p->small && !p->lane && !would_wait(w, p)) { /* those that could be moved */
        s->small_taken_bytes += p->taken_bytes;
        for (unsigned c = 0; p->span && c < MF_CLASSES; c++)
            s->class_slots[c] += class_slots[c];
    }
    struct mf_top_owner *top = p->owner < MF_MIXED ? find_top(s, p->owner) : NULL;
    if (top)
        top->blocks += p->blocks;
}

/* A list in address order is scattered in memory, and each step waits for the one before. The table of live blocks
 * names them all at once: asked for together, they are in the cache when the walk comes to them. */
static void warm_up(const memfit_pool *pool)
{
    const mf_table *table = atomic_load_explicit(&((memfit_pool *)pool)->table, memory_order_relaxed);
    for (uint64_t i = 0; table && i < table->size; i++) {
        const mf_block *block = atomic_load_explicit(&((mf_table *)table)->entry[i].block, memory_order_relaxed);
        if (block)
            __builtin_prefetch(block);
    }
}

void mf_survey_take(memfit_pool *pool, const mf_explain *ex, const mf_without *without, uint64_t room, mf_survey *s)
{
    memset(s, 0, sizeof *s);
    s->place_pages = s->missing_pages = MF_BEYOND;
    find_top_owners(pool, s);
    walk w = {.pool = pool, .ex = ex, .without = without, .s = s, .room = room, .page.number = MF_BEYOND};
    warm_up(pool);
    for (const mf_block *b = pool->first; b; b = b->after) {
        __builtin_prefetch(b->after);
        if (mf_is_apart(pool, b) && w.gap_start < pool->apart) { /* a block lies on one side (apart.c) */
            close_gap(&w, b->start, true);
            w.gap_start = b->start;
        }
        piece p;
        uint32_t class_slots[MF_CLASSES];
        if (b->state == MF_SPAN)
            memset(class_slots, 0, sizeof class_slots);
        if (!read_piece(&w, b, &p, class_slots) || left_out(&w, &p))
            continue;
        close_gap(&w, p.start, false);
        w.gap_start = p.end;
        if (p.lane && p.lane == ex->lane)
            consider_own(&w, b);
        count_pages(&w, &p);
        count_piece(&w, &p, class_slots);
    }
    close_page(&w);
    close_gap(&w, pool->range_bytes, true);
}

/* ---- survivors -------------------------------------------------------------------------------------------- */

/* What is in one page, seen before it is decided whether it is chosen. */
typedef struct page_view {
    uint64_t live_bytes;
    uint32_t blocks;
    bool live, large;
} page_view;

typedef struct chooser {
    mf_explain *ex;
    unsigned step; /* pages below it are all wanted, */
    uint64_t left; /* of those at it so many */
    uint64_t want;
    memfit_action *action;
    uint64_t owner_bytes[MF_TOP_OWNERS];
} chooser;

static void choose_page(chooser *c, const memfit_pool *pool, uint64_t number, const page_view *v)
{
    mf_explain *ex = c->ex;
    if (!v->live || v->large || ex->page_count == MF_SURVIVOR_PAGES || ex->page_count >= c->want || number > UINT32_MAX)
        return;
    unsigned step = sparse_step(pool, v->live_bytes);
    if (step > c->step || (step == c->step && !c->left))
        return;
    c->left -= step == c->step;
    ex->page[ex->page_count++] = (uint32_t)number;
}

static bool count_survivor(void *ctx, const memfit_block_info *block)
{
    chooser *c = ctx;
    c->action->blocks++;
    c->action->live_bytes += block->bytes;
    for (unsigned i = 0; i < c->ex->now.top_count; i++)
        if (c->ex->now.top[i].owner == block->owner)
            c->owner_bytes[i] += block->bytes;
    return true;
}

uint32_t mf_survey_sparse(memfit_pool *pool, mf_explain *ex, uint64_t want, memfit_action *action)
{
    chooser c = {.ex = ex, .want = want, .action = action};
    uint64_t below = 0;
    while (c.step < MF_SPARSE_STEPS && below + ex->now.sparse[c.step] < want)
        below += ex->now.sparse[c.step++];
    c.left = want - below;
    ex->page_count = 0;
    mf_without nothing = {.owner = MF_NOBODY};
    walk w = {.pool = pool, .ex = ex, .without = &nothing};
    uint64_t shift = pool->pages.shift, number = MF_BEYOND;
    page_view view = {0};
    for (const mf_block *b = pool->first; b; b = b->after) {
        piece p;
        uint32_t unused[MF_CLASSES];
        if (!read_piece(&w, b, &p, unused))
            continue;
        for (uint64_t at = p.start >> shift; at <= (p.end - 1) >> shift; at++) {
            if (at != number) {
                choose_page(&c, pool, number, &view);
                view = (page_view){0};
                number = at;
            }
            view.live |= !p.lane;
            view.large |= (!p.lane && !p.small) || would_wait(&w, &p);
            view.live_bytes += p.live_bytes;
            view.blocks += p.blocks;
            if (!p.small && at < (p.end - 1) >> shift) /* to its last page, the only one it may share */
                at = ((p.end - 1) >> shift) - 1;
        }
    }
    choose_page(&c, pool, number, &view);
    mf_survey_each_survivor(pool, ex, count_survivor, &c);
    unsigned most = 0;
    for (unsigned i = 1; i < ex->now.top_count; i++)
        if (c.owner_bytes[i] > c.owner_bytes[most])
            most = i;
    action->owner = ex->now.top_count ? ex->now.top[most].owner : 0;
    return ex->page_count;
}

static bool each_slot(memfit_pool *pool, const mf_span *span, bool (*fn)(void *ctx, const memfit_block_info *block),
                      void *ctx)
{
    for (unsigned i = 0; i < 32; i++) {
        const mf_slab *slab = span->slab[i];
        for (unsigned k = 0; slab && k < slab->slots; k++) {
            uint64_t word = mf_slot_load(slab, k);
            if (!word)
                continue;
            uint32_t owner = MF_SLOT_OWNER(word);
            memfit_block_info info = {.address = pool->range + slab->start + (uint64_t)k * slab->slot_bytes,
                                      .bytes = MF_SLOT_ASKED(word),
                                      .taken_bytes = slab->slot_bytes,
                                      .owner = owner,
                                      .kind = mf_owner_at(pool, owner)->kind};
            if (!fn(ctx, &info))
                return false;
        }
    }
    return true;
}

void mf_survey_each_survivor(memfit_pool *pool, const mf_explain *ex,
                             bool (*fn)(void *ctx, const memfit_block_info *block), void *ctx)
{
    mf_without chosen = {.owner = MF_NOBODY, .pages = ex->page, .page_count = ex->page_count};
    walk w = {.pool = pool, .ex = ex, .without = &chosen};
    for (const mf_block *b = pool->first; b; b = b->after) {
        bool small = b->state == MF_SPAN || (mf_block_live(b) && b->bytes <= MF_SURVIVOR_MOST);
        piece p = {.start = b->start, .end = b->start + b->bytes};
        if (!small || !touches_chosen_page(&w, &p))
            continue;
        memfit_block_info info = {.address = pool->range + b->start, .taken_bytes = b->bytes};
        if (b->state == MF_LIVE) {
            uint64_t tag = mf_block_tag(b);
            info.bytes = b->bytes - MF_TAG_REST(tag);
            info.owner = MF_TAG_OWNER(tag);
            info.kind = mf_owner_at(pool, info.owner)->kind;
        }
        if (b->state == MF_SPAN ? !each_slot(pool, b->span, fn, ctx) : !fn(ctx, &info))
            return;
    }
}
