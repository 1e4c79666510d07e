/*
 * test_explain.c: a labelled set of failures: staged ones, each with the cause its author meant, and random ones. For
 * every one the label is found by trial: the scene is built anew with one constraint taken away, and the request made
 * again. The explanation must give that cause; every action it names is applied for real to the scene, must make the
 * request succeed, and must free the bytes it promised. It is long because scenes, labels and trials are read together.
 */
#include "scenes.h"

#include "pool/explain.h"

#include "base/json.h"
#include "base/os.h"

#define MiB (1ull << 20)
#define GiB (1ull << 30)

/* ---- labels by trial --------------------------------------------------------------------------------------- */

enum {
    NO_WAITING = 1,  /* streams finish */
    PACKED = 2,      /* small blocks are taken anew */
    FINE_PAGES = 4,  /* pages of 64 KiB */
    NO_LIMIT = 8,    /* the limit raised as far as it goes */
    NO_POOLS = 16,   /* no other pools */
    NO_FOREIGN = 32, /* no other processes */
};

static void pack_small(world *w)
{
    bool small[SCENE_BLOCKS];
    for (size_t i = 0; i < w->blocks; i++) {
        small[i] = w->block[i].address && w->block[i].bytes <= MF_SURVIVOR_MOST;
        if (small[i])
            scene_drop(w, i);
    }
    memfit_pool_flush_thread(w->pool, NULL);
    memfit_stream_sync(w->device, 0, NULL);
    memfit_pool_poll(w->pool, NULL);
    memfit_address address;
    for (size_t i = 0; i < w->blocks; i++)
        if (small[i])
            memfit_pool_alloc(w->pool, w->block[i].bytes, w->owner[w->block[i].owner], &address, NULL);
}

static void raise_as_far_as_possible(world *w)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_pool_get_info(w->pool, &info, NULL);
    uint64_t low = info.limit_bytes, high = w->s->capacity;
    if (memfit_pool_set_limit(w->pool, high, false, NULL) == MEMFIT_OK)
        return;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (memfit_pool_set_limit(w->pool, middle, false, NULL) == MEMFIT_OK)
            low = middle;
        else
            high = middle;
    }
}

static uint64_t in_use_then; /* when the request failed */

/* Does the request succeed with these constraints taken away? Not if that is another history: with smaller pages some
 * of its requests may fail that did not before. */
static bool succeeds_without(const scene *s, unsigned what)
{
    scene changed = *s;
    if (what & FINE_PAGES)
        changed.page = 65536;
    if (what & NO_FOREIGN)
        changed.foreign = 0;
    world *w = scene_begin(&changed);
    if (!w) /* with smaller pages one pool takes a page more of the device, and another lacks it */
        return false;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    if (what & FINE_PAGES && (memfit_pool_get_info(w->pool, &info, NULL) || info.in_use_bytes != in_use_then)) {
        scene_end(w);
        return false;
    }
    if (what & NO_WAITING)
        for (unsigned i = 0; i < SCENE_STREAMS; i++) {
            mf_sim_hold(w->device, w->stream[i], false);
            memfit_stream_sync(w->device, w->stream[i], NULL);
        }
    if (what & NO_POOLS)
        for (unsigned i = 0; i < SCENE_OTHERS; i++) {
            memfit_pool_destroy(w->other[i]);
            w->other[i] = NULL;
        }
    if (what & PACKED)
        pack_small(w);
    if (what & NO_LIMIT)
        raise_as_far_as_possible(w);
    bool good = scene_ask(w, NULL) == MEMFIT_OK;
    scene_end(w);
    return good;
}

/* The first constraint whose removal alone lets the request succeed; failing that, the outermost that has to go. */
static memfit_cause label_by_trial(const scene *s)
{
    static const struct {
        unsigned without;
        memfit_cause cause;
    } trials[] = {{NO_WAITING, MEMFIT_CAUSE_PENDING_STREAM},
                  {PACKED, MEMFIT_CAUSE_PINNED_BY_SMALL},
                  {FINE_PAGES, MEMFIT_CAUSE_GRANULARITY},
                  {NO_LIMIT, MEMFIT_CAUSE_LIMIT},
                  {NO_POOLS, MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE},
                  {NO_FOREIGN, MEMFIT_CAUSE_TAKEN_BY_OTHERS},
                  {NO_POOLS | NO_LIMIT, MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE},
                  {NO_FOREIGN | NO_LIMIT, MEMFIT_CAUSE_TAKEN_BY_OTHERS},
                  {NO_FOREIGN | NO_LIMIT | NO_POOLS, MEMFIT_CAUSE_TAKEN_BY_OTHERS}};
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        if (succeeds_without(s, trials[i].without))
            return trials[i].cause;
    scene empty = *s;
    empty.play = NULL;
    memset(empty.other, 0, sizeof empty.other);
    if (!succeeds_without(&empty, NO_WAITING | NO_LIMIT | NO_POOLS | NO_FOREIGN))
        return MEMFIT_CAUSE_LARGER_THAN_DEVICE;
    return MEMFIT_CAUSE_LIMIT;
}

/* ---- applying actions --------------------------------------------------------------------------------------- */

typedef struct addresses {
    memfit_address at[SCENE_BLOCKS];
    uint64_t count, bytes;
    memfit_owner owner;
} addresses;

static bool collect(void *ctx, const memfit_block_info *block)
{
    addresses *list = ctx;
    if (list->owner != MF_NOBODY && block->owner != list->owner)
        return true;
    list->at[list->count++] = block->address;
    list->bytes += block->bytes;
    return true;
}

static uint64_t held_bytes(world *w)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_error err;
    assert_ok(memfit_pool_flush_thread(w->pool, &err), err);
    assert_ok(memfit_pool_get_info(w->pool, &info, &err), err);
    return info.reserved_bytes - info.idle_bytes;
}

static void free_blocks(world *w, const memfit_action *a)
{
    static addresses list;
    memfit_error err;
    list.count = list.bytes = 0;
    list.owner = a->kind == MEMFIT_ACTION_FREE_OWNER ? a->owner : MF_NOBODY;
    if (a->kind == MEMFIT_ACTION_FREE_OWNER)
        assert_ok(memfit_pool_each_block(w->pool, collect, &list, &err), err);
    else
        assert_ok(memfit_pool_each_survivor(w->pool, collect, &list, &err), err);
    assert_int_equal(list.count, a->blocks);
    assert_int_equal(list.bytes, a->live_bytes);
    uint64_t before = held_bytes(w);
    for (uint64_t i = 0; i < list.count; i++)
        assert_ok(memfit_pool_free(w->pool, list.at[i], &err), err);
    assert_ok(memfit_stream_sync(w->device, 0, &err), err);
    assert_ok(memfit_pool_poll(w->pool, &err), err);
    uint64_t freed = before - held_bytes(w);
    if (freed != a->frees_bytes)
        fail_msg("%s (seed %llu): %s frees %llu bytes, %llu were promised", w->s->name, (unsigned long long)w->s->seed,
                 memfit_action_name(a->kind), (unsigned long long)freed, (unsigned long long)a->frees_bytes);
}

static void wait_for_stream(world *w, const memfit_action *a)
{
    memfit_error err;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    uint64_t before = held_bytes(w);
    assert_ok(memfit_pool_get_info(w->pool, &info, &err), err);
    for (unsigned i = 0; i < SCENE_STREAMS; i++) {
        if (a->stream != MEMFIT_EVERY_STREAM && a->stream != w->stream[i])
            continue;
        mf_sim_hold(w->device, w->stream[i], false);
        assert_ok(memfit_stream_sync(w->device, w->stream[i], &err), err);
    }
    assert_ok(memfit_pool_poll(w->pool, &err), err);
    uint64_t freed = before - held_bytes(w);
    /* Slots that waited may leave whole spans empty: more than was promised is fine. */
    if (freed < a->frees_bytes && info.idle_bytes != a->frees_bytes)
        fail_msg("%s (seed %llu): waiting frees %llu bytes, %llu were promised", w->s->name,
                 (unsigned long long)w->s->seed, (unsigned long long)freed, (unsigned long long)a->frees_bytes);
}

static memfit_pool *pool_named(world *w, const char *name)
{
    memfit_pool *pool = strcmp(name, "second") == 0 ? w->other[0] : w->other[1];
    assert_non_null(pool);
    return pool;
}

static void move_limit(world *w, const memfit_action *a)
{
    memfit_error err;
    memfit_pool *from = pool_named(w, a->name);
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_device_info before = MEMFIT_DEVICE_INFO, after = MEMFIT_DEVICE_INFO;
    assert_ok(memfit_pool_get_info(from, &info, &err), err);
    assert_ok(memfit_device_get_info(w->device, &before, &err), err);
    assert_ok(memfit_pool_set_limit(from, info.limit_bytes - a->bytes, false, &err), err);
    assert_ok(memfit_device_get_info(w->device, &after, &err), err);
    assert_int_equal(before.set_aside_bytes - after.set_aside_bytes, a->frees_bytes);
    assert_ok(memfit_pool_set_limit(w->pool, a->limit_bytes, false, &err), err);
}

/* Applies the action to the world, or to a fresh one on a larger device; the world to ask in is returned. */
static world *apply(world *w, const memfit_action *a, scene *changed, uint64_t *request)
{
    memfit_error err;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    uint64_t released;
    switch (a->kind) {
    case MEMFIT_ACTION_WAIT:
        wait_for_stream(w, a);
        break;
    case MEMFIT_ACTION_TRIM:
        assert_ok(memfit_pool_trim(pool_named(w, a->name), 0, &released, &err), err);
        assert_int_equal(released, a->frees_bytes);
        break;
    case MEMFIT_ACTION_FREE_SMALL:
    case MEMFIT_ACTION_FREE_OWNER:
        free_blocks(w, a);
        break;
    case MEMFIT_ACTION_MOVE_LIMIT:
        move_limit(w, a);
        break;
    case MEMFIT_ACTION_RAISE_LIMIT:
        assert_ok(memfit_pool_get_info(w->pool, &info, &err), err);
        assert_int_equal(a->limit_bytes - info.limit_bytes, a->frees_bytes);
        assert_ok(memfit_pool_set_limit(w->pool, a->limit_bytes, false, &err), err);
        break;
    case MEMFIT_ACTION_SMALLER:
        assert_int_equal(a->bytes, a->frees_bytes);
        *request -= a->bytes;
        break;
    case MEMFIT_ACTION_OTHERS:
        assert_true(a->bytes <= w->foreign);
        mf_sim_set_foreign(w->device, w->foreign - a->bytes);
        break;
    case MEMFIT_ACTION_LARGER_DEVICE:
        *changed = *w->s;
        changed->extra = a->bytes;
        changed->limit_after = a->limit_bytes;
        scene_end(w);
        w = scene_begin(changed);
        assert_non_null(w);
        break;
    default:
        fail_msg("action %d", a->kind);
    }
    return w;
}

static unsigned actions_seen[MEMFIT_ACTION_COUNT], first_seen[MEMFIT_ACTION_COUNT], causes_seen[MEMFIT_CAUSE_COUNT];

static void check_action(const scene *s, unsigned which)
{
    memfit_error err;
    memfit_explanation why = MEMFIT_EXPLANATION;
    scene changed;
    uint64_t request = s->request;
    world *w = scene_begin(s);
    assert_int_equal(scene_ask(w, &err), MEMFIT_OUT_OF_MEMORY);
    assert_ok(memfit_pool_explain(w->pool, &why, &err), err);
    assert_true(which < why.action_count);
    const memfit_action *a = &why.actions[which];
    actions_seen[a->kind]++;
    first_seen[a->kind] += which == 0;
    w = apply(w, a, &changed, &request);
    if (scene_ask_for(w, request, &err) != MEMFIT_OK)
        fail_msg("%s (seed %llu): %s of %llu bytes did not help: %s", s->name, (unsigned long long)s->seed,
                 memfit_action_name(a->kind), (unsigned long long)a->bytes, err.message);
    scene_end(w);
    if (a->kind != MEMFIT_ACTION_RAISE_LIMIT)
        return;
    /* Not more than is needed: a page less does not do. */
    w = scene_begin(s);
    if (a->bytes > s->page)
        assert_ok(memfit_pool_set_limit(w->pool, a->limit_bytes - s->page, false, &err), err);
    assert_int_equal(scene_ask(w, &err), MEMFIT_OUT_OF_MEMORY);
    scene_end(w);
}

/* The text and the JSON of an explanation: bounded, complete, readable. */
static void check_text(const memfit_explanation *why)
{
    static char text[MEMFIT_EXPLANATION_TEXT];
    for (unsigned utf8 = 0; utf8 < 2; utf8++) {
        memfit_explanation_text(why, 100, utf8, text, sizeof text);
        unsigned lines = 0;
        for (const char *p = text; *p; p++)
            lines += *p == '\n';
        assert_true(lines <= 60);
        assert_true(strlen(text) + 1 < sizeof text);
        assert_non_null(strstr(text, memfit_cause_name(why->cause)));
        assert_non_null(strstr(text, "would have worked"));
    }
    memfit_explanation_json(why, text, sizeof text);
    mf_arena arena;
    mf_json *root;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    assert_ok(mf_json_parse(&arena, text, strlen(text), &root, &err), err);
    assert_string_equal(mf_json_get_string(root, "cause", ""), memfit_cause_name(why->cause));
    assert_int_equal(mf_json_get(root, "actions")->count, why->action_count);
    assert_true(mf_json_get_integer(root, "request_bytes", -1) == (int64_t)why->request_bytes);
    mf_arena_destroy(&arena);
}

static unsigned borderline, wrong;

/* What waits for streams when the request fails; false: with such pages the scene is another, or none. */
static bool waiting_bytes(const scene *s, uint64_t page, uint64_t *bytes)
{
    scene changed = *s;
    changed.page = page;
    world *w = scene_begin(&changed);
    memfit_pool_info before = MEMFIT_POOL_INFO, after = MEMFIT_POOL_INFO;
    memfit_error err;
    if (!w)
        return false;
    assert_ok(memfit_pool_get_info(w->pool, &before, &err), err);
    (void)scene_ask(w, NULL);
    assert_ok(memfit_pool_get_info(w->pool, &after, &err), err);
    scene_end(w);
    *bytes = after.pending_bytes;
    return before.in_use_bytes == in_use_then;
}

/* A history played with other pages, or small blocks taken anew, put blocks elsewhere. If such a trial would have gone
 * the other way for a request that differs by a page and a thirty-second of the limit, it decides nothing; nor does it
 * with other pages, if by that much and what more or less waits for streams there: that has other reasons than pages.
 */
static bool is_borderline(const scene *s, memfit_cause explained, memfit_cause label)
{
    static const struct {
        memfit_cause cause;
        unsigned without;
    } rough[] = {{MEMFIT_CAUSE_GRANULARITY, FINE_PAGES}, {MEMFIT_CAUSE_PINNED_BY_SMALL, PACKED}};
    uint64_t coarse, fine;
    if (!waiting_bytes(s, s->page, &coarse) || !waiting_bytes(s, 65536, &fine))
        return explained == MEMFIT_CAUSE_GRANULARITY;
    uint64_t apart = coarse > fine ? coarse - fine : fine - coarse;
    for (size_t i = 0; i < 2; i++) {
        uint64_t step = s->limit / 32 + s->page + (rough[i].without == FINE_PAGES ? apart : 0);
        scene larger = *s, smaller = *s;
        larger.request = s->request + step;
        smaller.request = s->request > step ? s->request - step : 1;
        if (label == rough[i].cause && !succeeds_without(&larger, rough[i].without))
            return true;
        if (explained == rough[i].cause && succeeds_without(&smaller, rough[i].without))
            return true;
    }
    return false;
}

/* False: the scene cannot be built, or the request does not fail in it. */
static bool check_scene(const scene *given)
{
    static scene_script script;
    scene scripted = *given;
    const scene *s = &scripted;
    memfit_error err;
    memfit_explanation why = MEMFIT_EXPLANATION;
    script.recorded = script.asked = false;
    scripted.script = &script;
    world *w = scene_begin(s);
    if (!w)
        return false;
    do { /* again: requests that failed, and what they set off, are no longer part of the history */
        scene_end(w);
        script.changed = false;
        w = scene_begin(s);
    } while (script.changed);
    script.asked = true;
    script.foreign = w->foreign;
    if (scene_ask(w, &err) != MEMFIT_OUT_OF_MEMORY) {
        scene_end(w);
        return false;
    }
    assert_ok(memfit_pool_explain(w->pool, &why, &err), err);
    assert_ok(mf_pool_check(w->pool, &err), err);
    in_use_then = why.in_use_bytes;
    if (getenv("MEMFIT_SHOW")) {
        static char text[MEMFIT_EXPLANATION_TEXT];
        print_message("%s\n", memfit_explanation_text(&why, 100, true, text, sizeof text));
    }
    scene_end(w);
    memfit_cause label = label_by_trial(s);
    if (s->cause != MEMFIT_CAUSE_NONE && label != s->cause)
        fail_msg("%s: meant as %s, but trial gives %s", s->name, memfit_cause_name(s->cause), memfit_cause_name(label));
    if (why.cause != label && s->cause == MEMFIT_CAUSE_NONE && is_borderline(s, why.cause, label)) {
        borderline++;
        label = why.cause;
    }
    if (why.cause != label && !getenv("MEMFIT_RANDOM_COUNT"))
        fail_msg("%s (seed %llu): explained as %s, but trial gives %s", s->name, (unsigned long long)s->seed,
                 memfit_cause_name(why.cause), memfit_cause_name(label));
    if (why.cause != label) { /* only counted */
        print_message("%s (seed %llu): explained as %s, but trial gives %s\n", s->name, (unsigned long long)s->seed,
                      memfit_cause_name(why.cause), memfit_cause_name(label));
        wrong++;
        return true;
    }
    causes_seen[label]++;
    check_text(&why);
    if (!why.action_count)
        fail_msg("%s (seed %llu): no action is named", s->name, (unsigned long long)s->seed);
    for (unsigned i = 0; i < why.action_count; i++)
        check_action(s, i);
    return true;
}

/* ---- staged scenes ------------------------------------------------------------------------------------------ */

static void fill_200(world *w)
{
    for (unsigned i = 0; i < 10; i++)
        scene_take(w, 20 * MiB, i % 4);
}

static void one_block_240(world *w)
{
    scene_take(w, 240 * MiB, 0);
}

/* As many small blocks as the limit allows, of which one a page stays. */
static void survivors(world *w)
{
    static const uint64_t sizes[] = {32768, 256, 8192, 2048};
    size_t first = w->blocks;
    uint64_t size = sizes[w->s->seed % 4];
    while (!w->full && w->blocks < 60000)
        scene_take(w, size, 4);
    w->full = false;
    uint64_t every = 2 * MiB / size;
    for (size_t i = first; i < w->blocks; i++)
        if ((i - first) % every)
            scene_drop(w, i);
}

static void survivors_between_large(world *w)
{
    size_t large[25];
    for (unsigned i = 0; i < 25; i++) {
        large[i] = scene_take(w, 4 * MiB, 1);
        scene_take(w, 48 * 1024, 2);
    }
    for (unsigned i = 0; i < 25; i++)
        if (i % 5)
            scene_drop(w, large[i]);
}

static void many_owners(world *w)
{
    for (unsigned i = 0; i < 8; i++)
        scene_take(w, (i + 1) * 6 * MiB, i);
}

static void odd_sizes(world *w)
{
    for (unsigned i = 0; i < 100; i++)
        scene_take(w, MiB + 300 * 1024 + i * 4096, i % 5);
}

static void alternating(world *w)
{
    size_t first = w->blocks;
    for (unsigned i = 0; i < 120; i++)
        scene_take(w, MiB + MiB / 8, i % 2);
    for (size_t i = first; i < w->blocks; i += 2)
        scene_drop(w, i);
}

/* Half of it freed on a stream that does not get on. */
static void freed_on_held_stream(world *w)
{
    size_t first = w->blocks;
    for (unsigned i = 0; i < 10; i++)
        scene_take_on(w, 20 * MiB, i % 3, 1);
    mf_sim_hold(w->device, w->stream[1], true);
    for (size_t i = first; i < w->blocks; i += 2)
        scene_drop_on(w, i, 1);
}

static void freed_on_two_held_streams(world *w)
{
    size_t first = w->blocks;
    for (unsigned i = 0; i < 10; i++)
        scene_take_on(w, 20 * MiB, i % 3, 1 + i % 2);
    mf_sim_hold(w->device, w->stream[1], true);
    mf_sim_hold(w->device, w->stream[2], true);
    for (size_t i = first; i < first + 6; i++)
        scene_drop_on(w, i, 1 + (unsigned)(i - first) % 2);
}

#define BASE .capacity = 512 * MiB, .limit = 256 * MiB, .page = 2 * MiB

static const scene staged[] = {
    {"request beyond the limit", MEMFIT_CAUSE_LIMIT, BASE, .request = 300 * MiB},
    {"pool nearly full", MEMFIT_CAUSE_LIMIT, BASE, .play = fill_200, .request = 100 * MiB},
    {"one large owner", MEMFIT_CAUSE_LIMIT, BASE, .play = one_block_240, .request = 64 * MiB},
    {"many owners", MEMFIT_CAUSE_LIMIT, BASE, .play = many_owners, .request = 100 * MiB},
    {"a small request in a full pool", MEMFIT_CAUSE_LIMIT, .capacity = 512 * MiB, .limit = 240 * MiB, .page = 2 * MiB,
     .play = one_block_240, .request = 1000},
    {"limit at the device, all of it in use", MEMFIT_CAUSE_LIMIT, .capacity = 256 * MiB, .limit = 256 * MiB,
     .page = 2 * MiB, .play = one_block_240, .request = 64 * MiB},
    {"preallocated, and full", MEMFIT_CAUSE_LIMIT, BASE, .policy = MEMFIT_POLICY_PREALLOCATE, .play = fill_200,
     .request = 80 * MiB},
    {"the fixed cost takes the rest", MEMFIT_CAUSE_LIMIT, BASE, .fixed = 50 * MiB, .play = fill_200,
     .request = 10 * MiB},
    {"debug mode, full", MEMFIT_CAUSE_LIMIT, BASE, .debug = true, .play = fill_200, .request = 80 * MiB},
    {"aligned to 64 MiB in a full pool", MEMFIT_CAUSE_LIMIT, BASE, .play = fill_200, .request = 80 * MiB,
     .alignment = 64 * MiB},

    {"larger than the device", MEMFIT_CAUSE_LARGER_THAN_DEVICE, BASE, .request = 600 * MiB},
    {"larger than the device, with a history", MEMFIT_CAUSE_LARGER_THAN_DEVICE, BASE, .play = fill_200,
     .request = 5 * GiB},
    {"the fixed cost makes it larger", MEMFIT_CAUSE_LARGER_THAN_DEVICE, .capacity = 512 * MiB, .limit = 512 * MiB,
     .fixed = 100 * MiB, .page = 2 * MiB, .request = 450 * MiB},

    {"held by a slice", MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE, .capacity = 512 * MiB, .limit = 512 * MiB, .page = 2 * MiB,
     .other = {{.limit = 300 * MiB, .slice = true, .fill = 290 * MiB}}, .request = 300 * MiB},
    {"set aside by a slice that does not use it", MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE, .capacity = 512 * MiB,
     .limit = 512 * MiB, .page = 2 * MiB, .other = {{.limit = 300 * MiB, .slice = true}}, .request = 300 * MiB},
    {"a slice that was large once", MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE, .capacity = 512 * MiB, .limit = 512 * MiB,
     .page = 2 * MiB, .other = {{.limit = 300 * MiB, .slice = true, .fill = 50 * MiB, .then_free = 240 * MiB}},
     .request = 300 * MiB},
    {"two slices, one wants more", MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE, .capacity = 512 * MiB, .limit = 256 * MiB,
     .slice = true, .page = 2 * MiB, .other = {{.limit = 256 * MiB, .slice = true, .fill = 100 * MiB}},
     .play = fill_200, .request = 100 * MiB},
    {"two pools without limits of their own", MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE, .capacity = 512 * MiB,
     .limit = 512 * MiB, .page = 2 * MiB, .other = {{.limit = 512 * MiB, .fill = 350 * MiB}}, .request = 200 * MiB},
    {"three logical devices", MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE, .capacity = 512 * MiB, .limit = 512 * MiB,
     .page = 2 * MiB,
     .other = {{.limit = 150 * MiB, .slice = true, .fill = 140 * MiB}, {.limit = 200 * MiB, .slice = true}},
     .request = 250 * MiB},

    {"idle pages of a slice, and others took the rest", MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE, .capacity = 512 * MiB,
     .limit = 300 * MiB, .slice = true, .page = 2 * MiB, .foreign = 100 * MiB,
     .other = {{.limit = 150 * MiB, .slice = true, .then_free = 140 * MiB}}, .request = 298 * MiB},

    {"freed on a stream that is busy", MEMFIT_CAUSE_PENDING_STREAM, BASE, .no_wait = true, .play = freed_on_held_stream,
     .request = 100 * MiB},
    {"freed on a stream that never comes back", MEMFIT_CAUSE_PENDING_STREAM, BASE, .play = freed_on_held_stream,
     .request = 110 * MiB},
    {"two busy streams", MEMFIT_CAUSE_PENDING_STREAM, BASE, .no_wait = true, .play = freed_on_two_held_streams,
     .request = 100 * MiB},
    {"another stream asks", MEMFIT_CAUSE_PENDING_STREAM, BASE, .no_wait = true, .play = freed_on_held_stream,
     .request = 90 * MiB, .request_stream = 2},

    {"one survivor of 32 KiB a page", MEMFIT_CAUSE_PINNED_BY_SMALL, BASE, .play = survivors, .seed = 0,
     .request = 200 * MiB},
    {"one survivor of 8 KiB a page", MEMFIT_CAUSE_PINNED_BY_SMALL, .capacity = 128 * MiB, .limit = 64 * MiB,
     .page = 2 * MiB, .play = survivors, .seed = 2, .request = 50 * MiB},
    {"one survivor of 2 KiB a page", MEMFIT_CAUSE_PINNED_BY_SMALL, .capacity = 64 * MiB, .limit = 32 * MiB,
     .page = 2 * MiB, .play = survivors, .seed = 3, .request = 20 * MiB},
    {"survivors at the device's end", MEMFIT_CAUSE_PINNED_BY_SMALL, .capacity = 64 * MiB, .limit = 64 * MiB,
     .page = 2 * MiB, .play = survivors, .seed = 2, .request = 40 * MiB},
    {"survivors between large blocks", MEMFIT_CAUSE_PINNED_BY_SMALL, .capacity = 128 * MiB, .limit = 128 * MiB,
     .page = 2 * MiB, .play = survivors_between_large, .request = 84 * MiB},

    {"other processes", MEMFIT_CAUSE_TAKEN_BY_OTHERS, .capacity = 512 * MiB, .limit = 512 * MiB, .page = 2 * MiB,
     .foreign = 300 * MiB, .request = 300 * MiB},
    {"other processes, while we hold some", MEMFIT_CAUSE_TAKEN_BY_OTHERS, .capacity = 512 * MiB, .limit = 400 * MiB,
     .page = 2 * MiB, .foreign = 250 * MiB, .play = fill_200, .request = 100 * MiB},
    {"other processes took a slice's share", MEMFIT_CAUSE_TAKEN_BY_OTHERS, .capacity = 512 * MiB, .limit = 400 * MiB,
     .slice = true, .page = 2 * MiB, .foreign = 200 * MiB, .request = 350 * MiB},

    {"a limit that is no multiple of a page", MEMFIT_CAUSE_GRANULARITY, .capacity = 512 * MiB, .limit = 101 * MiB,
     .page = 2 * MiB, .request = 100 * MiB + MiB / 2},
    {"every second block freed", MEMFIT_CAUSE_GRANULARITY, .capacity = 512 * MiB, .limit = 136 * MiB, .page = 2 * MiB,
     .play = alternating, .request = 60 * MiB},
    {"odd sizes in large pages", MEMFIT_CAUSE_GRANULARITY, .capacity = 512 * MiB, .limit = 180 * MiB, .page = 16 * MiB,
     .play = odd_sizes, .request = 28 * MiB},
};

static void staged_failures_are_explained(void **state)
{
    (void)state;
    size_t count = sizeof staged / sizeof *staged;
    for (size_t i = 0; i < count; i++)
        if (!check_scene(&staged[i]))
            fail_msg("%s: does not fail", staged[i].name);
    assert_true(count >= 30);
}

/* ---- random scenes ------------------------------------------------------------------------------------------ */

static uint64_t random_size(world *w)
{
    switch (scene_random(w, 4)) {
    case 0:
        return 1 + scene_random(w, 60000);
    case 1:
        return 65536 + scene_random(w, 2 * MiB);
    case 2:
        return MiB + scene_random(w, 8 * MiB);
    default:
        return 4 * MiB + scene_random(w, 24 * MiB);
    }
}

static void random_history(world *w)
{
    uint64_t steps = 20 + scene_random(w, 300), drop = 20 + scene_random(w, 60), streams = scene_random(w, 3);
    bool burst = scene_random(w, 3) == 0;
    if (burst) {
        uint64_t size = 256 << scene_random(w, 8), pages = 4 + scene_random(w, 20), every = 1 + scene_random(w, 200);
        size_t first = w->blocks;
        for (uint64_t i = 0; i < pages * 2 * MiB / size && !w->full && w->blocks < 20000; i++)
            scene_take(w, size, 4);
        for (size_t i = first; i < w->blocks; i++)
            if ((i - first) % every)
                scene_drop(w, i);
    }
    for (uint64_t i = 0; i < steps; i++) {
        if (streams && i == steps * 3 / 4) {
            /* What was freed before is safe, whatever the pool has noticed so far: the same under all constraints. */
            memfit_pool_poll(w->pool, NULL);
            memfit_pool_poll(w->pool, NULL);
            mf_sim_hold(w->device, w->stream[1], true);
        }
        if (w->blocks && scene_random(w, 100) < drop)
            scene_drop_on(w, (size_t)scene_random(w, w->blocks), streams ? (unsigned)scene_random(w, 2) : 0);
        else
            scene_take_on(w, random_size(w), (unsigned)scene_random(w, 8), streams ? (unsigned)scene_random(w, 2) : 0);
    }
}

static scene random_scene(uint64_t seed)
{
    world dice = {.random = seed * 0x9e3779b97f4a7c15ull + 1};
    for (unsigned i = 0; i < 8; i++)
        scene_random(&dice, 2);
    scene s = {.name = "random", .seed = seed, .page = 2 * MiB, .play = random_history};
    s.capacity = (32 + scene_random(&dice, 200)) * s.page;
    s.fixed = scene_random(&dice, 3) ? 0 : scene_random(&dice, s.capacity / 16);
    s.limit = s.capacity / 100 * (30 + scene_random(&dice, 71));
    s.slice = scene_random(&dice, 3) == 0;
    s.no_wait = scene_random(&dice, 2);
    s.policy = scene_random(&dice, 5) ? MEMFIT_POLICY_GROWTH : MEMFIT_POLICY_PREALLOCATE;
    for (unsigned i = 0; i < SCENE_OTHERS; i++) {
        if (scene_random(&dice, 2))
            continue;
        s.other[i].limit = s.capacity / 100 * (5 + scene_random(&dice, 40));
        s.other[i].slice = scene_random(&dice, 2);
        s.other[i].fill = s.other[i].limit / 100 * scene_random(&dice, 80);
        s.other[i].then_free = scene_random(&dice, 2) ? s.other[i].limit / 6 : 0;
    }
    s.foreign = scene_random(&dice, 3) ? 0 : s.capacity / 100 * scene_random(&dice, 40);
    s.request = scene_random(&dice, 4) ? s.capacity / 1000 * (1 + scene_random(&dice, 500))
                                       : s.capacity / 1000 * (1 + scene_random(&dice, 1200));
    s.request_stream = (unsigned)scene_random(&dice, 3);
    if (scene_random(&dice, 6) == 0)
        s.alignment = 512ull << scene_random(&dice, 16);
    return s;
}

static void random_failures_are_explained(void **state)
{
    (void)state;
    const char *wanted = getenv("MEMFIT_RANDOM_FAILURES"), *only = getenv("MEMFIT_RANDOM_SEED");
    const char *first = getenv("MEMFIT_RANDOM_FIRST");
    unsigned most = wanted ? (unsigned)atoi(wanted) : 100, found = 0;
    static const uint64_t once_wrong[] = {5000121}; /* told to lower another pool's limit below a page */
    for (size_t i = 0; i < sizeof once_wrong / sizeof once_wrong[0]; i++) {
        scene s = random_scene(once_wrong[i]);
        assert_true(check_scene(&s));
    }
    uint64_t seed = only ? strtoull(only, NULL, 10) : first ? strtoull(first, NULL, 10) : 1;
    for (; found < most; seed++) {
        scene s = random_scene(seed);
        found += check_scene(&s);
        if (only)
            break;
    }
    assert_true(borderline <= most / 25);
    if (wanted) {
        print_message("%u failures, seeds up to %llu: %u explained wrongly, %u borderline\n", found,
                      (unsigned long long)seed - 1, wrong, borderline);
        for (unsigned i = 1; i < MEMFIT_CAUSE_COUNT; i++)
            print_message("%-28s %u\n", memfit_cause_name((memfit_cause)i), causes_seen[i]);
        for (unsigned i = 1; i < MEMFIT_ACTION_COUNT; i++)
            print_message("%-28s %u, cheapest %u\n", memfit_action_name((memfit_action_kind)i), actions_seen[i],
                          first_seen[i]);
    }
}

/* ---- the survey --------------------------------------------------------------------------------------------- */

static void explaining_takes_no_memory(void **state)
{
    (void)state;
    mf_fault_host fault;
    mf_fault_host_init(&fault, NULL, 0, false);
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.host = &fault.host;
    d.capacity_bytes = 64 * MiB;
    memfit_device *device;
    memfit_pool *pool;
    memfit_error err;
    memfit_address address;
    memfit_explanation why = MEMFIT_EXPLANATION;
    assert_ok(memfit_device_open("sim", &d, &device, &err), err);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.host = &fault.host;
    o.ignore_environment = true;
    assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
    assert_int_equal(memfit_pool_explain(pool, &why, &err), MEMFIT_NOT_FOUND);
    for (unsigned i = 0; i < 500; i++)
        assert_ok(memfit_pool_alloc(pool, 1000 + i, 0, &address, &err), err);
    assert_int_equal(memfit_pool_alloc(pool, 100 * MiB, 0, &address, &err), MEMFIT_OUT_OF_MEMORY);
    uint64_t calls = fault.calls;
    assert_int_equal(memfit_pool_alloc(pool, 60 * MiB + MiB / 2, 0, &address, &err), MEMFIT_OK);
    calls = fault.calls;
    assert_int_equal(memfit_pool_alloc(pool, 60 * MiB, 0, &address, &err), MEMFIT_OUT_OF_MEMORY);
    assert_int_equal(err.cause, MEMFIT_CAUSE_LIMIT);
    assert_int_equal(err.requested_bytes, 60 * MiB);
    assert_true(err.holders[0].bytes > 60 * MiB);
    assert_ok(memfit_pool_explain(pool, &why, &err), err);
    assert_int_equal(why.failure, 2);
    static char text[MEMFIT_EXPLANATION_TEXT];
    memfit_explanation_text(&why, 0, true, text, sizeof text);
    memfit_explanation_json(&why, text, sizeof text);
    assert_int_equal(fault.calls, calls);
    memfit_pool_destroy(pool);
    assert_ok(memfit_device_close(device, &err), err);
}

/* The survey's pages are those the pool itself counts. */
static void survey_agrees_with_the_pool(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 60; seed++) {
        scene s = random_scene(seed);
        world *w = scene_begin(&s);
        if (!w)
            continue;
        memfit_pool_flush_thread(w->pool, NULL);
        mf_explain *ex = w->pool->explain;
        mf_survey survey;
        pthread_mutex_lock(&w->pool->lock);
        ex->need_bytes = 3 * MiB;
        ex->need_alignment = MF_UNIT;
        mf_survey_take(w->pool, ex, &(mf_without){.owner = MF_NOBODY}, 0, &survey);
        assert_int_equal(survey.used_pages, w->pool->pages.mapped_count - w->pool->pages.idle_count);
        uint64_t blocks = 0;
        for (size_t i = 0; i < w->blocks; i++)
            blocks += w->block[i].address && w->block[i].bytes <= MF_SURVIVOR_MOST;
        assert_int_equal(survey.small_blocks, blocks);
        pthread_mutex_unlock(&w->pool->lock);
        scene_end(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(explaining_takes_no_memory),
        cmocka_unit_test(survey_agrees_with_the_pool),
        cmocka_unit_test(staged_failures_are_explained),
        cmocka_unit_test(random_failures_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
