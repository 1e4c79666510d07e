/*
 * scenes.h: staged shortages of memory. A scene is a device, a pool, perhaps other pools, other processes and streams,
 * a history of requests, and one request more that fails. It can be built again and again, with one constraint taken
 * away each time, to see by trial which of them stopped the request; and with an action applied, to see whether it
 * helps.
 */
#ifndef MF_TESTS_SCENES_H
#define MF_TESTS_SCENES_H

#include "test.h"

#include "device/sim.h"
#include "memfit/explanation.h"
#include "pool/pool.h"

enum { SCENE_BLOCKS = 1 << 17, SCENE_TAKES = 1 << 18, SCENE_OTHERS = 2, SCENE_STREAMS = 3 };

typedef struct world world;

/* Which requests of a history succeeded when it was first played: under changed constraints it must be the same one. */
typedef struct scene_script {
    bool recorded, asked, changed;
    uint64_t foreign; /* what others took */
    bool had[SCENE_TAKES];
} scene_script;

typedef struct scene {
    const char *name;
    memfit_cause cause; /* staged scenes: what the author meant; NONE: only trial tells */
    uint64_t capacity, fixed, foreign, page;
    uint64_t limit;
    bool slice, no_wait, debug;
    memfit_policy policy;
    struct {
        uint64_t limit, fill, then_free; /* limit 0: there is none */
        bool slice;
    } other[SCENE_OTHERS];
    void (*play)(world *w); /* what happens before the request */
    uint64_t seed;
    uint64_t request, alignment;
    unsigned request_stream;
    scene_script *script; /* NULL: as it comes */
    /* A larger device, of which the history sees nothing: */
    uint64_t extra, limit_after;
} scene;

struct world {
    const scene *s;
    memfit_device *device;
    memfit_pool *pool, *other[SCENE_OTHERS];
    memfit_stream stream[SCENE_STREAMS]; /* 0 is the default stream */
    memfit_owner owner[8];
    struct {
        memfit_address address;
        uint64_t bytes;
        unsigned owner;
    } block[SCENE_BLOCKS];
    size_t blocks, takes;
    uint64_t random;
    uint64_t foreign;
    bool full; /* a block of the history could not be had */
};

static inline uint64_t scene_random(world *w, uint64_t below)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return below ? w->random % below : 0;
}

/* Takes a block on a stream; its index, or SIZE_MAX when it could not be had. */
static inline size_t scene_take_on(world *w, uint64_t bytes, unsigned owner, unsigned stream)
{
    memfit_address address;
    scene_script *script = w->s->script;
    bool had = w->blocks < SCENE_BLOCKS && w->takes < SCENE_TAKES;
    if (had && script && script->recorded)
        had = script->had[w->takes];
    had =
        had && memfit_pool_alloc_on(w->pool, bytes, 0, w->owner[owner], w->stream[stream], &address, NULL) == MEMFIT_OK;
    if (script && !script->asked) { /* still being written down */
        script->changed |= script->had[w->takes] != had;
        script->had[w->takes] = had;
    }
    w->takes++;
    if (!had) {
        w->full = true;
        return SIZE_MAX;
    }
    w->block[w->blocks].address = address;
    w->block[w->blocks].bytes = bytes;
    w->block[w->blocks].owner = owner;
    return w->blocks++;
}

static inline size_t scene_take(world *w, uint64_t bytes, unsigned owner)
{
    return scene_take_on(w, bytes, owner, 0);
}

static inline void scene_drop_on(world *w, size_t index, unsigned stream)
{
    if (index == SIZE_MAX || !w->block[index].address)
        return;
    memfit_error err;
    assert_ok(memfit_pool_free_on(w->pool, w->block[index].address, w->stream[stream], &err), err);
    w->block[index].address = 0;
}

static inline void scene_drop(world *w, size_t index)
{
    scene_drop_on(w, index, 0);
}

static inline memfit_pool *scene_pool(world *w, const char *name, uint64_t limit, bool slice)
{
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.name = name;
    o.limit_bytes = limit;
    o.slice = slice;
    o.page_bytes = w->s->page;
    o.purge_ms = MEMFIT_PURGE_NEVER;
    o.ignore_environment = true;
    memfit_pool *pool = NULL;
    memfit_error err;
    if (w->pool == NULL && strcmp(name, "main") == 0) {
        o.policy = w->s->policy;
        o.no_stream_wait = w->s->no_wait;
        o.debug = w->s->debug;
    }
    if (memfit_pool_create(w->device, &o, &pool, &err) != MEMFIT_OK)
        return NULL;
    return pool;
}

static inline void scene_end(world *w)
{
    if (!w)
        return;
    memfit_error err;
    for (unsigned i = 1; i < SCENE_STREAMS && w->device; i++)
        mf_sim_hold(w->device, w->stream[i], false);
    if (w->device)
        mf_sim_hold(w->device, 0, false);
    memfit_pool_destroy(w->pool);
    for (unsigned i = 0; i < SCENE_OTHERS; i++)
        memfit_pool_destroy(w->other[i]);
    for (unsigned i = 1; i < SCENE_STREAMS && w->device; i++)
        assert_ok(memfit_stream_destroy(w->device, w->stream[i], &err), err);
    assert_ok(memfit_device_close(w->device, &err), err);
    free(w);
}

/* Builds it up to the request. NULL: this scene cannot be (limits that do not fit the device). */
static inline world *scene_begin(const scene *s)
{
    static const memfit_kind kinds[8] = {MEMFIT_KIND_PARAMETERS,  MEMFIT_KIND_GRADIENTS, MEMFIT_KIND_OPTIMIZER,
                                         MEMFIT_KIND_ACTIVATIONS, MEMFIT_KIND_INPUTS,    MEMFIT_KIND_WORKSPACE,
                                         MEMFIT_KIND_OTHER,       MEMFIT_KIND_OTHER};
    world *w = calloc(1, sizeof *w);
    memfit_error err;
    memfit_device_options o = MEMFIT_DEVICE_OPTIONS;
    o.capacity_bytes = s->capacity + s->extra;
    o.fixed_bytes = s->fixed;
    o.granularity_bytes = s->page;
    w->s = s;
    w->random = s->seed * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
    assert_ok(memfit_device_open("sim", &o, &w->device, &err), err);
    for (unsigned i = 1; i < SCENE_STREAMS; i++)
        assert_ok(memfit_stream_create(w->device, &w->stream[i], &err), err);
    /* The main pool first: it pays the fixed cost. */
    w->pool = scene_pool(w, "main", s->limit, s->slice);
    bool good = w->pool != NULL;
    for (unsigned i = 0; good && i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "owner %u", i);
        assert_ok(memfit_pool_owner(w->pool, kinds[i], name, &w->owner[i], &err), err);
    }
    memfit_pool *extra = good && s->extra ? scene_pool(w, "extra", s->extra, true) : NULL;
    for (unsigned i = 0; good && i < SCENE_OTHERS; i++) {
        if (!s->other[i].limit)
            continue;
        w->other[i] = scene_pool(w, i ? "third" : "second", s->other[i].limit, s->other[i].slice);
        memfit_address a, b;
        good = w->other[i] != NULL;
        if (good && s->other[i].fill)
            good = memfit_pool_alloc(w->other[i], s->other[i].fill, 0, &a, &err) == MEMFIT_OK;
        if (good && s->other[i].then_free) {
            good = memfit_pool_alloc(w->other[i], s->other[i].then_free, 0, &b, &err) == MEMFIT_OK;
            if (good)
                assert_ok(memfit_pool_free(w->other[i], b, &err), err);
        }
    }
    if (!good) {
        memfit_pool_destroy(extra);
        scene_end(w);
        return NULL;
    }
    if (s->play)
        s->play(w);
    if (s->script)
        s->script->recorded = true;
    memfit_pool_destroy(extra);
    if (s->limit_after)
        assert_ok(memfit_pool_set_limit(w->pool, s->limit_after, false, &err), err);
    /* Others can only have taken what was there. */
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    assert_ok(memfit_device_get_info(w->device, &info, &err), err);
    uint64_t room = info.free_bytes > s->extra ? info.free_bytes - s->extra : 0;
    w->foreign = s->foreign < room ? s->foreign : room;
    if (s->script && s->script->asked && w->foreign)
        w->foreign = s->script->foreign;
    mf_sim_set_foreign(w->device, w->foreign);
    return w;
}

static inline memfit_status scene_ask_for(world *w, uint64_t bytes, memfit_error *err)
{
    memfit_address address;
    return memfit_pool_alloc_on(w->pool, bytes, w->s->alignment, w->owner[3], w->stream[w->s->request_stream], &address,
                                err);
}

static inline memfit_status scene_ask(world *w, memfit_error *err)
{
    return scene_ask_for(w, w->s->request, err);
}

#endif
