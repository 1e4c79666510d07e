/*
 * clock.c: how far a stream has come: events, and what they stand behind.
 *
 *     serial    1 2 3 4 5 6 7 8 9 ...      frees on one stream, counted as they come
 *     events        e1    e2      e3       recorded when somebody wants to know, not with every free
 *     safe          ^ e1 is done: whatever was freed up to 2 is past
 *
 * A clock has 64 events. When more are in flight those that are closest to others go, so that the pool knows about as well how far
 * a device is that is 100 ms behind as one that is 10 ms behind.
 *
 * Where events keep the time, what lies between two says when each was done, by the program's clock: no event is done before it
 * was recorded. From when one was done until the next was recorded the device had nothing to do, or not more than that. (A guess
 * from how far the device was behind when last looked at took the time in which a program waits for its loss for idleness.)
 *
 *     program   e1----e2---------e3 -- waits -----  e4
 *     device      ====e1====e2=======e3====         ==e4     idle: from e3's end to e4
 *
 * An event that keeps the time holds the stream up by 2.1 us, a plain one by nothing to be measured (H200; 54 to 67 of them
 * were 0.3 to 0.4 % of a training step). So only those keep it whose time is asked for: what looks put, before and after a
 * move, and one a millisecond on the main stream while enough is owed (moves.c). The others are plain. Of a plain one that is
 * done while something is owed it is known when that was at the earliest: when it was recorded, or the one before it was done.
 * Behind it nothing is lost if the device is still at work when the next one is recorded; else up to a millisecond too much
 * counts as lost.
 *
 * An event recorded on a stream that is captured into a CUDA graph becomes part of the graph and must not be asked about:
 * before each record and each wait the stream is asked whether it is captured, and if so, the wait is put off.
 *
 * A stream that was destroyed without memfit_pool_forget_stream answers with errors; then the whole device is waited
 * for instead.
 */
#include "pool/pages.h"

#include <string.h>

enum {
    BEHIND = 2,        /* events behind the one that is waited for */
    MORE_US = 100,     /* of work, or it is no more than an event */
    WORTH_US = 100,    /* of time owed, to ask what became of it */
    EVERY_US = 1000,   /* between two that keep the time, but for looks */
    FAR_US = 10000000, /* between two events: beyond, the two clocks drift apart, and a float has no microseconds */
};

/* A stream that cannot say is taken for captured: nothing is recorded on it. */
static bool captured(const memfit_pool *pool, mf_stream stream)
{
    mf_device *device = pool->device;
    bool yes = false;
    return device->table->capturing && (device->table->capturing(device, stream, &yes, NULL) || yes);
}

static void spare(memfit_pool *pool, mf_clock *c, mf_event event, bool timed)
{
    if (c->spare[timed].count < MF_EVENTS)
        c->spare[timed].event[c->spare[timed].count++] = event;
    else
        pool->device->table->event_destroy(pool->device, event, NULL);
}

bool mf_fence_keeps_time(const memfit_pool *pool)
{
    return pool->device->table->timer_create && pool->device->table->timer_between;
}

/* The event after a clock's last one was recorded at at_us, when owed_us had been owed in all, and is not done before done_us. If
 * the device had nothing to do between the two, so much of what was owed by then is lost. Once it has more to do, nothing is owed
 * any more of what had been when the last event was recorded. Nothing is known of the time before another stream became the main
 * one. */
static void settle(memfit_pool *pool, const mf_clock *c, uint64_t at_us, uint64_t done_us, uint64_t owed_us)
{
    mf_pages *p = &pool->pages;
    if (p->settled_by != c) {
        p->settled_by = c;
        p->settled_us = mf_device_now_us(pool->device);
    }
    uint64_t from = c->last_us > p->settled_us ? c->last_us : p->settled_us, to = at_us > from ? at_us : from;
    uint64_t later = p->owed_all_us - owed_us, due = p->owed_us > later ? p->owed_us - later : 0;
    uint64_t lost = due < to - from ? due : to - from;
    p->owed_us -= lost;
    p->lost_now_us += lost;
    p->settled_us = to;
    later = p->owed_all_us - c->last_owed_us;
    if ((at_us > c->last_us || done_us > c->last_us + MORE_US) && p->owed_us > later)
        p->owed_us = later;
}

/* Of the stream that most is freed on: what the program is about, not what it copies beside it. NULL: none. */
static mf_clock *main_clock(memfit_pool *pool)
{
    mf_clock *most = NULL;
    if (!pool->multi)
        return pool->home == MF_NO_STREAM ? NULL : mf_pages_clock(pool);
    for (unsigned i = 1; i < pool->lane_count; i++) {
        mf_lane *lane = pool->lane[i];
        if (lane->used && !lane->graph && (!most || lane->clock.serial > most->serial))
            most = &lane->clock;
    }
    return most;
}

/* The oldest event is done. It is the last from now on. While nothing is owed to the device nobody asks how long it was
 * idle, and no call is spent on it: then the event counts as done now. Else a plain one counts as done as early as it
 * can have been. */
static void note_done(memfit_pool *pool, mf_clock *c, unsigned i)
{
    bool timed = c->waiting[i].timed, asks = c->last_us && pool->pages.owed_us;
    uint64_t at_us = c->waiting[i].at_us, now = mf_device_now_us(pool->device), done_us = now;
    double us;
    if (asks && !timed)
        done_us = c->last_us;
    else if (asks && c->timer &&
             !pool->device->table->timer_between(pool->device, c->timer, c->waiting[i].event, &us, NULL) && us < FAR_US)
        done_us = c->timer_us + (us > 0 ? (uint64_t)us : 0);
    done_us = done_us < at_us ? at_us : done_us < now ? done_us : now;
    if (asks && !c->known && done_us > at_us + MORE_US && c->last_us < at_us) /* at work until then */
        c->last_us = at_us;
    if (asks && c == main_clock(pool))
        settle(pool, c, at_us, done_us, c->waiting[i].owed_us);
    c->last_us = done_us;
    c->last_owed_us = c->waiting[i].owed_us;
    c->known = timed || !asks;
    mf_event over = c->waiting[i].event;
    if (timed) {
        over = c->timer;
        c->timer = c->waiting[i].event;
        c->timer_us = done_us;
    }
    if (over)
        spare(pool, c, over, timed);
}

static void take_out(mf_clock *c, unsigned first, unsigned count)
{
    c->waiting_count -= count;
    memmove(c->waiting + first, c->waiting + first + count, (c->waiting_count - first) * sizeof *c->waiting);
}

/* The first `count` events are done. */
static void reach(memfit_pool *pool, mf_clock *c, unsigned count)
{
    if (!count)
        return;
    uint64_t serial = c->waiting[count - 1].serial;
    for (unsigned i = 0; i < count; i++)
        if (mf_fence_keeps_time(pool))
            note_done(pool, c, i);
        else
            spare(pool, c, c->waiting[i].event, c->waiting[i].timed);
    take_out(c, 0, count);
    if (c->safe < serial)
        c->safe = serial;
    if (c->recorded < serial)
        c->recorded = serial;
}

/* The event goes whose neighbours are closest: what it stood behind is past with the next one, and those that are left are about
 * as far from each other. */
static void thin_out(memfit_pool *pool, mf_clock *c)
{
    unsigned closest = 1;
    for (unsigned i = 2; i + 1 < c->waiting_count; i++)
        if (c->waiting[i + 1].at_us - c->waiting[i - 1].at_us <
            c->waiting[closest + 1].at_us - c->waiting[closest - 1].at_us)
            closest = i;
    spare(pool, c, c->waiting[closest].event, c->waiting[closest].timed);
    take_out(c, closest, 1);
}

/* An event behind all that is queued. */
static bool put_event(memfit_pool *pool, mf_clock *c, bool timed)
{
    mf_device *device = pool->device;
    mf_event event;
    timed = timed && mf_fence_keeps_time(pool);
    if (captured(pool, c->stream))
        return false;
    if (c->waiting_count == MF_EVENTS)
        thin_out(pool, c);
    if (c->spare[timed].count)
        event = c->spare[timed].event[--c->spare[timed].count];
    else if (timed ? device->table->timer_create(device, &event, NULL)
                   : device->table->event_create(device, &event, NULL))
        return false;
    if (device->table->event_record(device, event, c->stream, NULL)) {
        spare(pool, c, event, timed);
        c->recorded = c->waiting_count ? c->waiting[c->waiting_count - 1].serial : c->safe;
        return false;
    }
    c->waiting[c->waiting_count].event = event;
    c->waiting[c->waiting_count].timed = timed;
    c->timed_at_us = timed ? mf_device_now_us(device) : c->timed_at_us;
    c->waiting[c->waiting_count].at_us = mf_device_now_us(device);
    c->waiting[c->waiting_count].owed_us = pool->pages.owed_all_us;
    c->waiting[c->waiting_count++].serial = c->serial;
    c->recorded = c->serial;
    return true;
}

bool mf_clock_asks(const memfit_pool *pool)
{
    return pool->pages.owed_us >= WORTH_US;
}

bool mf_clock_record(memfit_pool *pool, mf_clock *c)
{
    return c->serial == c->recorded || put_event(pool, c,
                                                 mf_clock_asks(pool) && c == main_clock(pool) &&
                                                     mf_device_now_us(pool->device) - c->timed_at_us >= EVERY_US);
}

/* An event that cannot be asked (its stream was captured after all, or is gone) stands for nothing. */
static void drop_event(memfit_pool *pool, mf_clock *c, unsigned i)
{
    spare(pool, c, c->waiting[i].event, c->waiting[i].timed);
    take_out(c, i, 1);
    c->recorded = c->waiting_count ? c->waiting[c->waiting_count - 1].serial : c->safe;
}

/* Events are of one stream, so those that are done come first. */
void mf_clock_look(memfit_pool *pool, mf_clock *c)
{
    unsigned low = 0, high = c->waiting_count; /* the first `low` are done, those from `high` on are not */
    while (low < high) {
        unsigned middle = low ? (low + high) / 2 : 0; /* most often not even the first is */
        bool done = false;
        if (pool->device->table->event_done(pool->device, c->waiting[middle].event, &done, NULL)) {
            drop_event(pool, c, middle);
            high = high - 1 < c->waiting_count ? high - 1 : c->waiting_count;
            continue;
        }
        if (done)
            low = middle + 1;
        else
            high = middle;
    }
    reach(pool, c, low);
}

bool mf_clock_wait(memfit_pool *pool, mf_clock *c, uint64_t serial)
{
    const mf_device_table *table = pool->device->table;
    if (c->safe >= serial)
        return true;
    if (pool->options.no_stream_wait || captured(pool, c->stream))
        return false;
    pool->stream_waits++;
    for (unsigned i = 0; i < c->waiting_count && table->event_sync; i++)
        if (c->waiting[i].serial >= serial) {
            if (table->event_sync(pool->device, c->waiting[i].event, NULL))
                break;
            reach(pool, c, i + 1);
            return true;
        }
    if (table->stream_sync(pool->device, c->stream, &pool->refused_by) &&
        (!table->device_sync || table->device_sync(pool->device, NULL)))
        return false;
    reach(pool, c, c->waiting_count);
    c->safe = c->recorded = c->serial;
    return true;
}

/* The oldest event that something freed waits for. */
static unsigned next_event(const mf_clock *c)
{
    unsigned next = 0;
    while (next < c->waiting_count && c->waiting[next].serial <= c->safe)
        next++;
    return next;
}

bool mf_clock_wait_next(memfit_pool *pool, mf_clock *c)
{
    unsigned next = next_event(c);
    return c->safe < c->serial && mf_clock_wait(pool, c, next < c->waiting_count ? c->waiting[next].serial : c->serial);
}

uint64_t mf_clock_queued_us(const mf_clock *c)
{
    unsigned next = next_event(c);
    return c->waiting_count > next + BEHIND ? c->waiting[c->waiting_count - 1].at_us - c->waiting[next].at_us : 0;
}

uint64_t mf_fence_lead_us(memfit_pool *pool)
{
    mf_clock *c = pool->device->table->event_sync ? main_clock(pool) : NULL;
    if (!c)
        return 0;
    if (mf_fence_keeps_time(pool))
        put_event(pool, c, true); /* behind what nothing was freed of yet, too */
    else
        mf_clock_record(pool, c);
    mf_clock_look(pool, c);
    uint64_t now = mf_device_now_us(pool->device), since = c->waiting_count ? c->waiting[0].at_us : now;
    if (c->known)
        settle(pool, c, since, now, c->waiting_count ? c->waiting[0].owed_us : pool->pages.owed_all_us);
    return now - since;
}

void mf_clock_end(memfit_pool *pool, mf_clock *c)
{
    for (unsigned i = 0; i < c->waiting_count; i++)
        spare(pool, c, c->waiting[i].event, c->waiting[i].timed);
    c->waiting_count = 0;
    if (c->timer)
        spare(pool, c, c->timer, true);
    c->timer = 0;
    c->last_us = 0;
    c->known = false;
    for (unsigned timed = 0; timed < 2; timed++) {
        unsigned left = 0; /* those that could not be ended serve the next stream, or are tried again */
        for (unsigned i = 0; i < c->spare[timed].count; i++)
            if (pool->device->table->event_destroy(pool->device, c->spare[timed].event[i], NULL))
                c->spare[timed].event[left++] = c->spare[timed].event[i];
        c->spare[timed].count = left;
    }
}
