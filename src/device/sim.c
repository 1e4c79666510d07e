/*
 * sim.c: a device with no memory behind it.
 *
 *     reservation   base, bytes, and a two-level table: granule -> handle index (+ top bits: access granted, first)
 *     handle        bytes, and how often it is mapped; the first granule of a mapping has a bit of its own
 *     stream        two counters: work submitted, work done. They are equal unless a test holds the stream
 *
 * Everything is counted, every call costs modelled time, and any call can be told to fail. What a driver would refuse
 * is refused as MEMFIT_MISUSE, so a pool that runs clean here keeps the rules of the real one. Addresses start at 1 TiB
 * and are never used twice, so runs can be compared address by address.
 *
 * One lock: the pool above calls this device from its own slow path only.
 */
#include "device/sim_inner.h"
#include "base/bytes.h"

#include "base/error.h"

#include <string.h>

enum { LEAF = 4096 };
#define ACCESS_BIT 0x80000000u
#define FIRST_BIT  0x40000000u
#define INDEX(e)   ((e) & ~(ACCESS_BIT | FIRST_BIT))

static const mf_device_table sim_table;

static const char *const call_names[] = {"any",
#define X(name, text, call_ns, granule_ns) text,
                                         MF_CALL_LIST(X)
#undef X
};
static const uint32_t call_ns[] = {0,
#define X(name, text, ns, granule_ns) ns,
                                   MF_CALL_LIST(X)
#undef X
};
static const uint32_t granule_ns[] = {0,
#define X(name, text, call_ns, ns) ns,
                                      MF_CALL_LIST(X)
#undef X
};

static bool due(sim *s, mf_call call)
{
    if (!s->fail_at[call] || --s->fail_at[call])
        return false;
    if (s->fail_for_ever[call])
        s->fail_at[call] = 1;
    return true;
}

memfit_status mf_sim_enter(sim *s, mf_call call, uint64_t bytes, memfit_error *err)
{
    pthread_mutex_lock(&s->lock);
    s->counts.calls[MF_CALL_ANY]++;
    s->counts.calls[call]++;
    s->counts.time_ns += call_ns[call] + (bytes / s->base.granularity) * granule_ns[call];
    bool fails = due(s, MF_CALL_ANY);
    if (due(s, call))
        fails = true;
    if (!fails)
        return MEMFIT_OK;
    pthread_mutex_unlock(&s->lock);
    if (call == MF_CALL_CREATE)
        return mf_fail(err, MEMFIT_OUT_OF_MEMORY, "sim: create of %llu bytes made to fail", (unsigned long long)bytes);
    return mf_fail(err, MEMFIT_DEVICE, "sim: %s made to fail", call_names[call]);
}

memfit_status mf_sim_leave(sim *s, memfit_status status)
{
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Something nobody survives on a real device. */
static memfit_status violation(sim *s, memfit_error *err, const char *what, uint32_t stream)
{
    s->counts.violations++;
    return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: %s that stream %u may still touch", what, stream));
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static memfit_status sim_memory(mf_device *device, uint64_t *total, uint64_t *free_bytes, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_MEMORY, 0, err);
    if (status)
        return status;
    uint64_t used = s->counts.physical_bytes + s->foreign + s->base.fixed_bytes;
    *total = s->capacity;
    *free_bytes = used < s->capacity ? s->capacity - used : 0;
    return mf_sim_leave(s, MEMFIT_OK);
}

static reservation *find_reservation(sim *s, mf_address address, uint64_t bytes)
{
    for (size_t i = 0; i < s->reservation_count; i++) {
        reservation *r = &s->reservations[i];
        if (address >= r->base && bytes <= r->bytes && address - r->base <= r->bytes - bytes)
            return r;
    }
    return NULL;
}

static memfit_status sim_reserve(mf_device *device, uint64_t bytes, uint64_t alignment, mf_address *address,
                                 memfit_error *err)
{
    sim *s = (sim *)device;
    uint64_t g = device->granularity;
    if (!bytes || bytes % g || bytes > UINT64_C(1) << 60)
        return mf_fail(err, MEMFIT_MISUSE, "sim: reserve of %llu bytes: not a multiple of %llu, or beyond 2^60",
                       (unsigned long long)bytes, (unsigned long long)g);
    if (!alignment)
        alignment = g;
    memfit_status status = mf_sim_enter(s, MF_CALL_RESERVE, 0, err);
    if (status)
        return status;
    mf_address base = mf_round_up(s->next_address, alignment);
    uint64_t leaves = (bytes / g + LEAF - 1) / LEAF;
    uint32_t **leaf = mf_host_zalloc(device->host, leaves * sizeof *leaf);
    if (!leaf || !mf_grow(device->host, &s->reservations, &s->reservation_capacity, s->reservation_count,
                          sizeof *s->reservations)) {
        mf_host_free(device->host, leaf, leaves * sizeof *leaf);
        return mf_sim_leave(s, mf_fail(err, MEMFIT_NO_HOST_MEMORY, "sim: no host memory for a reservation"));
    }
    s->reservations[s->reservation_count++] = (reservation){base, bytes, leaves, leaf};
    s->next_address = base + bytes + g; /* a gap: running off the end lands nowhere */
    s->counts.reserved_bytes += bytes;
    *address = base;
    return mf_sim_leave(s, MEMFIT_OK);
}

static bool any_mapped(const reservation *r)
{
    for (uint64_t i = 0; i < r->leaf_count; i++)
        for (unsigned k = 0; r->leaf[i] && k < LEAF; k++)
            if (r->leaf[i][k])
                return true;
    return false;
}

static void drop_leaves(sim *s, reservation *r)
{
    for (uint64_t i = 0; i < r->leaf_count; i++)
        mf_host_free(s->base.host, r->leaf[i], LEAF * sizeof(uint32_t));
    mf_host_free(s->base.host, r->leaf, r->leaf_count * sizeof *r->leaf);
}

static memfit_status sim_unreserve(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_UNRESERVE, 0, err);
    if (status)
        return status;
    reservation *r = find_reservation(s, address, bytes);
    if (!r || r->base != address || r->bytes != bytes)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: unreserve of a range that was not reserved so"));
    if (any_mapped(r))
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: unreserve of a range with memory mapped in it"));
    drop_leaves(s, r);
    *r = s->reservations[--s->reservation_count];
    s->counts.reserved_bytes -= bytes;
    return mf_sim_leave(s, MEMFIT_OK);
}

static memfit_status sim_create(mf_device *device, uint64_t bytes, mf_physical *physical, memfit_error *err)
{
    sim *s = (sim *)device;
    if (!bytes || bytes % device->granularity)
        return mf_fail(err, MEMFIT_MISUSE, "sim: create of %llu bytes: not a multiple of the granularity",
                       (unsigned long long)bytes);
    memfit_status status = mf_sim_enter(s, MF_CALL_CREATE, bytes, err);
    if (status)
        return status;
    uint64_t used = s->counts.physical_bytes + s->foreign + s->base.fixed_bytes;
    if (used > s->capacity || bytes > s->capacity - used)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_OUT_OF_MEMORY, "sim: %llu bytes asked, %llu of %llu free",
                                       (unsigned long long)bytes,
                                       (unsigned long long)(used < s->capacity ? s->capacity - used : 0),
                                       (unsigned long long)s->capacity));
    uint32_t index = s->free_handle;
    if (index) {
        s->free_handle = s->handles[index].next_free;
    } else {
        if (!mf_grow(device->host, &s->handles, &s->handle_capacity, s->handle_count, sizeof *s->handles))
            return mf_sim_leave(s, mf_fail(err, MEMFIT_NO_HOST_MEMORY, "sim: no host memory for a handle"));
        index = (uint32_t)s->handle_count++;
    }
    s->handles[index] = (handle){bytes, 0, 0};
    s->counts.handles++;
    s->counts.physical_bytes += bytes;
    if (s->counts.physical_bytes > s->counts.physical_peak_bytes)
        s->counts.physical_peak_bytes = s->counts.physical_bytes;
    *physical = index;
    return mf_sim_leave(s, MEMFIT_OK);
}

static handle *find_handle(sim *s, mf_physical physical, uint64_t bytes)
{
    if (!physical || physical >= s->handle_count || s->handles[physical].bytes != bytes)
        return NULL;
    return &s->handles[physical];
}

static memfit_status sim_release(mf_device *device, mf_physical physical, uint64_t bytes, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_RELEASE, bytes, err);
    if (status)
        return status;
    handle *h = find_handle(s, physical, bytes);
    if (!h || h->maps)
        return mf_sim_leave(
            s, mf_fail(err, MEMFIT_MISUSE, "sim: release of a handle that is %s", h ? "mapped" : "unknown"));
    *h = (handle){0, 0, s->free_handle};
    s->free_handle = (uint32_t)physical;
    s->counts.handles--;
    s->counts.physical_bytes -= bytes;
    return mf_sim_leave(s, MEMFIT_OK);
}

static uint32_t *entry(sim *s, reservation *r, mf_address address)
{
    uint64_t granule = (address - r->base) / s->base.granularity;
    uint32_t *leaf = r->leaf[granule / LEAF];
    return leaf ? &leaf[granule % LEAF] : NULL;
}

static bool make_leaves(sim *s, reservation *r, mf_address address, uint64_t bytes)
{
    uint64_t g = s->base.granularity, first = (address - r->base) / g / LEAF,
             last = (address - r->base + bytes - g) / g / LEAF;
    for (uint64_t i = first; i <= last; i++) {
        if (!r->leaf[i])
            r->leaf[i] = mf_host_zalloc(s->base.host, LEAF * sizeof(uint32_t));
        if (!r->leaf[i])
            return false;
    }
    return true;
}

static memfit_status sim_map(mf_device *device, mf_address address, uint64_t bytes, mf_physical physical,
                             memfit_error *err)
{
    sim *s = (sim *)device;
    uint64_t g = device->granularity;
    memfit_status status = mf_sim_enter(s, MF_CALL_MAP, bytes, err);
    if (status)
        return status;
    reservation *r = find_reservation(s, address, bytes);
    handle *h = find_handle(s, physical, bytes);
    if (!r || !h || (address - r->base) % g)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: map of %s",
                                       !r   ? "addresses not reserved"
                                       : !h ? "an unknown handle, or part of one"
                                            : "an address that is not a multiple of the granularity"));
    if (!make_leaves(s, r, address, bytes))
        return mf_sim_leave(s, mf_fail(err, MEMFIT_NO_HOST_MEMORY, "sim: no host memory for the table of mappings"));
    for (uint64_t at = 0; at < bytes; at += g)
        if (*entry(s, r, address + at))
            return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: map over a mapping"));
    for (uint64_t at = 0; at < bytes; at += g)
        *entry(s, r, address + at) = (uint32_t)physical | (at ? 0 : FIRST_BIT);
    h->maps++;
    s->counts.mapped_bytes += bytes;
    return mf_sim_leave(s, MEMFIT_OK);
}

static memfit_status sim_access(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_ACCESS, bytes, err);
    if (status)
        return status;
    reservation *r = find_reservation(s, address, bytes);
    for (uint64_t at = 0; r && at < bytes; at += device->granularity) {
        uint32_t *e = entry(s, r, address + at);
        if (!e || !*e)
            r = NULL;
    }
    if (!r)
        return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: access to addresses with nothing mapped"));
    for (uint64_t at = 0; at < bytes; at += device->granularity) {
        uint32_t *e = entry(s, r, address + at);
        s->counts.time_ns += *e & FIRST_BIT ? s->handle_ns : 0;
        *e |= ACCESS_BIT;
    }
    return mf_sim_leave(s, MEMFIT_OK);
}

static memfit_status sim_unmap(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    sim *s = (sim *)device;
    memfit_status status = mf_sim_enter(s, MF_CALL_UNMAP, bytes, err);
    if (status)
        return status;
    reservation *r = find_reservation(s, address, bytes);
    const mf_flight *touched = mf_flights_over(&s->flights, address, bytes);
    if (touched)
        return violation(s, err, "unmap of memory", touched->stream);
    /* Whole handles only, each from its beginning to its end. */
    for (uint64_t at = 0; at < bytes;) {
        uint32_t *e = r ? entry(s, r, address + at) : NULL;
        handle *h = e && *e ? &s->handles[INDEX(*e)] : NULL;
        if (!h || !(*e & FIRST_BIT) || h->bytes > bytes - at)
            return mf_sim_leave(s, mf_fail(err, MEMFIT_MISUSE, "sim: unmap of %s", h ? "part of a handle" : "nothing"));
        at += h->bytes;
    }
    for (uint64_t at = 0; at < bytes; at += device->granularity) {
        uint32_t *e = entry(s, r, address + at);
        s->handles[INDEX(*e)].maps -= *e & FIRST_BIT ? 1 : 0;
        s->counts.time_ns += *e & FIRST_BIT ? s->handle_ns : 0;
        *e = 0;
    }
    s->counts.mapped_bytes -= bytes;
    return mf_sim_leave(s, MEMFIT_OK);
}

/* ---- bytes: there are none, but the addresses must be usable ------------------------------------------------ */

/* The bytes of [address, address + bytes) that lie in the granule at `base`, and where that is. */
static mf_flight part_of(sim *s, reservation *r, uint64_t base, uint64_t address, uint64_t bytes)
{
    uint64_t g = s->base.granularity, first = base;
    while (!(*entry(s, r, first) & FIRST_BIT))
        first -= g;
    mf_flight part = {.address = base, .from = address > base ? address - base : 0};
    part.to = address + bytes < base + g ? address + bytes - base : g;
    part.physical = (uint64_t)INDEX(*entry(s, r, base)) << 32 | (base - first) / g;
    return part;
}

/* Submits work on a stream that touches the range; in flight until the stream has come so far. */
static memfit_status touch(mf_device *device, mf_address address, uint64_t bytes, mf_stream stream, memfit_error *err)
{
    sim *s = (sim *)device;
    uint64_t g = device->granularity;
    memfit_status status = mf_sim_enter(s, MF_CALL_COPY, 0, err);
    if (status || !bytes)
        return status ? status : mf_sim_leave(s, MEMFIT_OK);
    sim_stream *t = mf_sim_stream(s, stream);
    reservation *r = t ? find_reservation(s, address, bytes) : NULL;
    for (uint64_t at = r ? (address - r->base) / g * g : 0; r && at < address - r->base + bytes; at += g) {
        uint32_t *e = entry(s, r, r->base + at);
        if (!e || !(*e & ACCESS_BIT))
            r = NULL;
    }
    if (!r)
        return mf_sim_leave(s,
                            mf_fail(err, MEMFIT_MISUSE, "sim: copy touches addresses with nothing accessible mapped"));
    if (t->captured) /* it runs when the graph is launched, not now */
        return mf_sim_leave(s, MEMFIT_OK);
    t->submitted++;
    for (uint64_t base = r->base + (address - r->base) / g * g; base < address + bytes; base += g) {
        mf_flight part = part_of(s, r, base, address, bytes);
        part.stream = (uint32_t)stream;
        part.at = t->submitted;
        const mf_flight *other = mf_flights_against(&s->flights, &part);
        if (other)
            return violation(s, err, "use of memory", other->stream);
        if (t->held && !mf_flights_add(&s->flights, device->host, &part))
            return mf_sim_leave(s, mf_fail(err, MEMFIT_NO_HOST_MEMORY, "sim: no host memory for work in flight"));
    }
    if (!t->held)
        t->done = t->submitted;
    return mf_sim_leave(s, MEMFIT_OK);
}

static memfit_status sim_copy_in(mf_device *device, mf_address to, const void *from, uint64_t bytes, mf_stream stream,
                                 memfit_error *err)
{
    (void)from;
    return touch(device, to, bytes, stream, err);
}

static memfit_status sim_copy_out(mf_device *device, void *to, mf_address from, uint64_t bytes, mf_stream stream,
                                  memfit_error *err)
{
    memfit_status status = touch(device, from, bytes, stream, err);
    if (!status)
        memset(to, 0, bytes);
    return status;
}

static memfit_status sim_copy(mf_device *device, mf_address to, mf_address from, uint64_t bytes, mf_stream stream,
                              memfit_error *err)
{
    memfit_status status = touch(device, from, bytes, stream, err);
    return status ? status : touch(device, to, bytes, stream, err);
}

static memfit_status sim_fill(mf_device *device, mf_address to, unsigned char byte, uint64_t bytes, mf_stream stream,
                              memfit_error *err)
{
    (void)byte;
    return touch(device, to, bytes, stream, err);
}

static size_t sim_others(mf_device *device, char (*text)[128], uint64_t *bytes, size_t most)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    uint64_t foreign = s->foreign;
    pthread_mutex_unlock(&s->lock);
    if (!foreign || !most)
        return foreign != 0;
    memcpy(text[0], "foreign (1)", sizeof "foreign (1)");
    bytes[0] = foreign;
    return 1;
}

static uint64_t sim_now_us(mf_device *device)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    uint64_t us = s->counts.time_ns / 1000;
    pthread_mutex_unlock(&s->lock);
    return us;
}

/* ---- life ------------------------------------------------------------------------------------------------- */

static void sim_destroy(mf_device *device)
{
    sim *s = (sim *)device;
    const memfit_host *host = device->host;
    for (size_t i = 0; i < s->reservation_count; i++)
        drop_leaves(s, &s->reservations[i]);
    mf_host_free(host, s->reservations, s->reservation_capacity * sizeof *s->reservations);
    mf_host_free(host, s->handles, s->handle_capacity * sizeof *s->handles);
    mf_host_free(host, s->streams, s->stream_capacity * sizeof *s->streams);
    mf_host_free(host, s->events, s->event_capacity * sizeof *s->events);
    mf_flights_end(&s->flights, host);
    pthread_mutex_destroy(&s->lock);
    mf_device_end(device);
    mf_host_free(host, s, sizeof *s);
}

memfit_status mf_device_open_sim(const memfit_device_options *options, unsigned index, mf_device **device,
                                 memfit_error *err)
{
    if (index)
        return mf_fail(err, MEMFIT_NOT_FOUND, "sim:%u: there is one simulated device, sim", index);
    uint64_t granularity = options->granularity_bytes ? options->granularity_bytes : UINT64_C(2) << 20;
    uint64_t capacity = options->capacity_bytes ? options->capacity_bytes : UINT64_C(16) << 30;
    if (granularity < 4096 || granularity & (granularity - 1))
        return mf_fail(err, MEMFIT_INVALID, "sim: granularity %llu: must be a power of two of at least 4096",
                       (unsigned long long)granularity);
    if (options->fixed_bytes > capacity)
        return mf_fail(err, MEMFIT_INVALID, "sim: the fixed cost is above the capacity");
    sim *s = mf_host_zalloc(options->host, sizeof *s);
    if (!s)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "sim: no host memory");
    memfit_status status = mf_device_init(&s->base, &sim_table, options->host, err);
    if (status) {
        mf_host_free(options->host, s, sizeof *s);
        return status;
    }
    pthread_mutex_init(&s->lock, NULL);
    s->base.granularity = granularity;
    s->base.fixed_bytes = options->fixed_bytes;
    s->base.hollow = true;
    memcpy(s->base.name, "simulated device", sizeof "simulated device");
    s->capacity = capacity;
    s->next_address = UINT64_C(1) << 40;
    bool ok = mf_grow(options->host, &s->handles, &s->handle_capacity, 0, sizeof *s->handles);
    ok = ok && mf_grow(options->host, &s->streams, &s->stream_capacity, 0, sizeof *s->streams);
    ok = ok && mf_grow(options->host, &s->events, &s->event_capacity, 0, sizeof *s->events);
    if (!ok) {
        sim_destroy(&s->base);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "sim: no host memory");
    }
    s->handle_count = s->event_count = s->stream_count = 1;
    s->handles[0] = (handle){0};
    s->events[0] = (sim_event){0};
    s->streams[0] = (sim_stream){.alive = true};
    *device = &s->base;
    return MEMFIT_OK;
}

static const mf_device_table sim_table = {
    .kind = "sim",
    .destroy = sim_destroy,
    .memory = sim_memory,
    .reserve = sim_reserve,
    .unreserve = sim_unreserve,
    .create = sim_create,
    .release = sim_release,
    .map = sim_map,
    .access = sim_access,
    .unmap = sim_unmap,
    .stream_create = mf_sim_stream_create,
    .stream_destroy = mf_sim_stream_destroy,
    .stream_wait = mf_sim_stream_wait,
    .stream_sync = mf_sim_stream_sync,
    .event_create = mf_sim_event_create,
    .event_destroy = mf_sim_event_destroy,
    .event_record = mf_sim_event_record,
    .event_done = mf_sim_event_done,
    .timer_create = mf_sim_event_create,
    .timer_between = mf_sim_timer_between,
    .event_sync = mf_sim_event_sync,
    .device_sync = mf_sim_device_sync,
    .capturing = mf_sim_capturing,
    .copy_in = sim_copy_in,
    .copy_out = sim_copy_out,
    .copy = sim_copy,
    .fill = sim_fill,
    .others = sim_others,
    .now_us = sim_now_us,
    .advance_us = mf_sim_advance_us,
};

/* ---- what tests turn -------------------------------------------------------------------------------------- */

mf_sim_counts mf_sim_get(mf_device *device)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    mf_sim_counts counts = s->counts;
    pthread_mutex_unlock(&s->lock);
    return counts;
}

void mf_sim_fail(mf_device *device, mf_call call, uint64_t nth, bool for_ever)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    s->fail_at[call] = nth;
    s->fail_for_ever[call] = for_ever;
    pthread_mutex_unlock(&s->lock);
}

void mf_sim_handle_us(mf_device *device, uint64_t us)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    s->handle_ns = us * 1000 / 2;
    pthread_mutex_unlock(&s->lock);
}

void mf_sim_set_foreign(mf_device *device, uint64_t bytes)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    s->foreign = bytes;
    pthread_mutex_unlock(&s->lock);
}

void mf_sim_advance_us(mf_device *device, uint64_t us)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    s->counts.time_ns += us * 1000;
    pthread_mutex_unlock(&s->lock);
}

static bool tables_agree(sim *s, memfit_error *err)
{
    uint64_t mapped = 0, physical = 0, handles = 0;
    for (size_t i = 0; i < s->reservation_count; i++) {
        reservation *r = &s->reservations[i];
        for (uint64_t l = 0; l < r->leaf_count; l++)
            for (unsigned k = 0; r->leaf[l] && k < LEAF; k++) {
                uint32_t index = INDEX(r->leaf[l][k]);
                mf_address at = r->base + (l * LEAF + k) * s->base.granularity;
                if (!index)
                    continue;
                handle *h = &s->handles[index];
                if (!h->bytes || !h->maps)
                    return mf_fail(err, MEMFIT_INTERNAL, "sim: granule at %llx shows a handle that is not there",
                                   (unsigned long long)at),
                           false;
                mapped += s->base.granularity;
            }
    }
    for (size_t i = 1; i < s->handle_count; i++) {
        physical += s->handles[i].bytes;
        handles += s->handles[i].bytes != 0;
    }
    if (mapped != s->counts.mapped_bytes || physical != s->counts.physical_bytes || handles != s->counts.handles)
        return mf_fail(err, MEMFIT_INTERNAL, "sim: counters do not agree with the tables"), false;
    return true;
}

bool mf_sim_check(mf_device *device, memfit_error *err)
{
    sim *s = (sim *)device;
    pthread_mutex_lock(&s->lock);
    bool ok = tables_agree(s, err);
    pthread_mutex_unlock(&s->lock);
    return ok;
}
