/*
 * sim_streams.c: the simulated device's streams and events: counters that a test holds back or lets go. What would hang
 * or end a capture on a card fails here, with the reason.
 */
#include "base/error.h"
#include "device/sim_inner.h"

sim_stream *mf_sim_stream(sim *s, mf_stream id)
{
    return id < s->stream_count && s->streams[id].alive ? &s->streams[id] : NULL;
}

static sim_event *find_event(sim *s, mf_event id)
{
    return id && id < s->event_count && s->events[id].alive ? &s->events[id] : NULL;
}

static void land(sim *s, uint32_t stream, uint64_t done)
{
    if (s->streams[stream].done < done)
        s->streams[stream].done = done;
    mf_flights_land(&s->flights, stream, done);
}

/* On a stream that lags, what is due. */
static void catch_up(sim *s, const sim_event *e)
{
    if (s->streams[e->stream].lag_ns && s->counts.time_ns >= e->due_ns)
        land(s, e->stream, e->at);
}

memfit_status mf_sim_stream_create(mf_device *device, mf_stream *id, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_STREAM_CREATE, 0, err);
    if (status)
        return status;
    size_t i = 1;
    while (i < s->stream_count && s->streams[i].alive)
        i++;
    if (i == s->stream_count) {
        if (!mf_grow(device->host, &s->streams, &s->stream_capacity, s->stream_count, sizeof *s->streams))
            return mf_sim_leave(s, mf_fail(err, MEMFIT_NO_HOST_MEMORY, "sim: no host memory for a stream"));
        s->stream_count++;
    }
    s->streams[i] = (sim_stream){.alive = true};
    s->counts.streams++;
    *id = i;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_stream_destroy(mf_device *device, mf_stream id, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_STREAM_DESTROY, 0, err);
    if (status)
        return status;
    sim_stream *t = id ? mf_sim_stream(s, id) : NULL;
    if (!t)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: no stream %llu", (unsigned long long)id));
    t->alive = false;
    s->counts.streams--;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_stream_wait(mf_device *device, mf_stream id, mf_event event_id, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_STREAM_WAIT, 0, err);
    if (status)
        return status;
    if (!mf_sim_stream(s, id) || !find_event(s, event_id))
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: wait: no such stream or event"));
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_stream_sync(mf_device *device, mf_stream id, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_STREAM_SYNC, 0, err);
    if (status)
        return status;
    sim_stream *t = mf_sim_stream(s, id);
    if (!t)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: no stream %llu", (unsigned long long)id));
    if (t->captured) {
        s->counts.violations++;
        return mf_sim_leave(s,
                            mf_fail(err, MEMFIT_DEVICE, "sim: stream %llu is captured: waiting for it ends the capture",
                                    (unsigned long long)id));
    }
    if (t->held && !t->lag_ns)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_DEVICE, "sim: stream %llu is held: waiting for it would never end",
                                       (unsigned long long)id));
    s->counts.time_ns += t->lag_ns;
    land(s, (uint32_t)id, t->submitted);
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_device_sync(mf_device *device, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_DEVICE_SYNC, 0, err);
    if (status)
        return status;
    for (size_t i = 0; i < s->stream_count; i++) {
        sim_stream *t = &s->streams[i];
        if (t->alive && ((t->held && !t->lag_ns) || t->captured))
            return mf_sim_leave(s, mf_fail(err, MEMFIT_DEVICE, "sim: stream %zu is %s: waiting for it would never end",
                                           i, t->held ? "held" : "captured"));
    }
    uint64_t most = 0;
    for (size_t i = 0; i < s->stream_count; i++) {
        most = s->streams[i].lag_ns > most ? s->streams[i].lag_ns : most;
        land(s, (uint32_t)i, s->streams[i].submitted);
    }
    s->counts.time_ns += most;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_capturing(mf_device *device, mf_stream id, bool *yes, memfit_error *err)
{
    sim *s = (sim *)device;
    (void)err;
    pthread_mutex_lock(&s->lock);
    const sim_stream *t = mf_sim_stream(s, id);
    *yes = t && t->captured;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_event_create(mf_device *device, mf_event *id, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_EVENT_CREATE, 0, err);
    if (status)
        return status;
    size_t i = 1;
    while (i < s->event_count && s->events[i].alive)
        i++;
    if (i >= s->event_count) {
        if (!mf_grow(device->host, &s->events, &s->event_capacity, s->event_count, sizeof *s->events))
            return mf_sim_leave(s, mf_fail(err, MEMFIT_NO_HOST_MEMORY, "sim: no host memory for an event"));
        s->event_count++;
    }
    s->events[i] = (sim_event){.alive = true};
    s->counts.events++;
    *id = i;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_event_destroy(mf_device *device, mf_event id, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_EVENT_DESTROY, 0, err);
    if (status)
        return status;
    sim_event *e = find_event(s, id);
    if (!e)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: no event %llu", (unsigned long long)id));
    e->alive = false;
    s->counts.events--;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_event_record(mf_device *device, mf_event id, mf_stream stream_id, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_EVENT_RECORD, 0, err);
    if (status)
        return status;
    sim_event *e = find_event(s, id);
    sim_stream *t = mf_sim_stream(s, stream_id);
    if (!e || !t)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: record: no such stream or event"));
    e->stream = (uint32_t)stream_id;
    e->captured = t->captured;
    e->at = ++t->submitted;
    e->due_ns = s->counts.time_ns + t->lag_ns;
    if (!t->held)
        t->done = t->submitted;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_event_done(mf_device *device, mf_event id, bool *done, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_EVENT_DONE, 0, err);
    if (status)
        return status;
    sim_event *e = find_event(s, id);
    if (!e)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: no event %llu", (unsigned long long)id));
    if (e->captured) {
        s->counts.violations++;
        return mf_sim_leave(s,
                            mf_fail(err, MEMFIT_MISUSE, "sim: event %llu was captured into a graph, and is asked for",
                                    (unsigned long long)id));
    }
    catch_up(s, e);
    *done = s->streams[e->stream].done >= e->at;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_timer_between(mf_device *device, mf_event from, mf_event to, double *us, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_EVENT_DONE, 0, err);
    if (status)
        return status;
    const sim_event *a = find_event(s, from), *b = find_event(s, to);
    if (!a || !b || s->streams[a->stream].done < a->at || s->streams[b->stream].done < b->at)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: no such event, or it is not done"));
    *us = ((double)b->due_ns - (double)a->due_ns) / 1e3;
    return mf_sim_leave(s, MEMFIT_OK);
}

memfit_status mf_sim_event_sync(mf_device *device, mf_event id, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_EVENT_SYNC, 0, err);
    if (status)
        return status;
    sim_event *e = find_event(s, id);
    if (!e)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: no event %llu", (unsigned long long)id));
    if (s->streams[e->stream].lag_ns && s->counts.time_ns < e->due_ns)
        s->counts.time_ns = e->due_ns;
    catch_up(s, e);
    if (s->streams[e->stream].done < e->at)
        return mf_sim_leave(
            s, mf_fail(err, MEMFIT_DEVICE, "sim: stream %u is held: waiting for it would never end", e->stream));
    return mf_sim_leave(s, MEMFIT_OK);
}

/* ---- what tests turn -------------------------------------------------------------------------------------- */

void mf_sim_hold(mf_device *device, mf_stream id, bool held)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    sim_stream *t = mf_sim_stream(s, id);
    if (t) {
        t->held = held;
        t->lag_ns = 0;
        if (!held)
            land(s, (uint32_t)id, t->submitted);
    }
    pthread_mutex_unlock(&s->lock);
}

void mf_sim_lag_us(mf_device *device, mf_stream id, uint64_t us)
{
    mf_sim_hold(device, id, us > 0);
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    sim_stream *t = mf_sim_stream(s, id);
    if (t)
        t->lag_ns = us * 1000;
    pthread_mutex_unlock(&s->lock);
}

void mf_sim_capture(mf_device *device, mf_stream id, bool captured)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    sim_stream *t = mf_sim_stream(s, id);
    if (t)
        t->captured = captured;
    pthread_mutex_unlock(&s->lock);
}
