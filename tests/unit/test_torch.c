/*
 * test_torch.c: the functions PyTorch calls, over the fake driver. Without PyTorch in the process an error is a NULL, as
 * torch.h says. Pools live until the process ends, so the tests share one, and each frees what it took.
 */
#include "test.h"

#include "fakes/fake_cuda_load.h"
#include "memfit/torch.h"

#include <pthread.h>

#define MIB (UINT64_C(1) << 20)

static void (*get_state)(fake_cuda_state *);
static void (*hold)(uint64_t, bool);
static void (*capture)(uint64_t, bool);
static unsigned (*open_to)(uint64_t);
static int (*stream_create)(void **, unsigned);
static int (*fill)(uint64_t, unsigned char, size_t, void *);
static int (*copy)(uint64_t, uint64_t, size_t, void *);
static int (*ctx_push)(void *);
static uint64_t (*count_calls)(const char *);
static void *side, *third;

static int load_fake(void **state)
{
    (void)state;
    setenv("MEMFIT_MEMORY", "256MiB", 1);
    setenv("FAKE_CUDA_DEVICES", "3", 1);
    void *library = open_fake_driver();
    *(void **)&get_state = need(library, "fake_cuda_get");
    *(void **)&hold = need(library, "fake_cuda_hold");
    *(void **)&count_calls = need(library, "fake_cuda_count");
    *(void **)&capture = need(library, "fake_cuda_capture");
    *(void **)&open_to = need(library, "fake_cuda_open_to");
    *(void **)&stream_create = need(library, "cuStreamCreate");
    *(void **)&fill = need(library, "cuMemsetD8Async");
    *(void **)&copy = need(library, "cuMemcpyDtoDAsync_v2");
    *(void **)&ctx_push = need(library, "cuCtxPushCurrent_v2");
    void *first = memfit_torch_alloc(1000, 0, NULL); /* opens the card */
    assert_non_null(first);
    memfit_torch_free(first, 1000, 0, NULL);
    assert_int_equal(ctx_push((void *)(uintptr_t)0x1000), 0); /* as the runtime does */
    assert_int_equal(stream_create(&side, 1), 0);
    assert_int_equal(stream_create(&third, 1), 0);
    return 0;
}

static void no_rule_broken(void)
{
    fake_cuda_state s;
    get_state(&s);
    if (s.broken)
        fprintf(stderr, "the driver's rules were broken: %s\n", s.first_broken);
    assert_int_equal(s.broken, 0);
}

static uint64_t in_use(void)
{
    uint64_t values[3] = {0};
    assert_true(memfit_torch_stats(0, values, 3) >= 3);
    return values[0];
}

static unsigned char *get(size_t bytes, void *stream)
{
    unsigned char *p = memfit_torch_alloc((ssize_t)bytes, 0, stream);
    assert_non_null(p);
    return p;
}

static void *asks_for_a_mebibyte(void *unused)
{
    (void)unused;
    return memfit_torch_alloc((ssize_t)MIB, 0, NULL);
}

/* A backward pass has a thread of its own. What it frees, the forward pass has next: if threads kept blocks, both would place
 * theirs differently whenever they do. */
static void what_one_thread_frees_another_has(void **state)
{
    (void)state;
    void *a[7], *b;
    memfit_torch_free(get(32 * MIB, NULL), (ssize_t)(32 * MIB), 0, NULL);
    for (int i = 0; i < 20000; i++) /* threads begin to keep blocks when nothing has happened for long */
        memfit_torch_free(get(MIB, NULL), (ssize_t)MIB, 0, NULL);
    for (int i = 0; i < 7; i++)
        a[i] = get(MIB, NULL);
    for (int i = 7; i--;) /* a thread would keep up to eight */
        memfit_torch_free(a[i], (ssize_t)MIB, 0, NULL);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, asks_for_a_mebibyte, NULL), 0);
    assert_int_equal(pthread_join(thread, &b), 0);
    assert_ptr_equal(a[0], b);
    memfit_torch_free(b, (ssize_t)MIB, 0, NULL);
}

static void blocks_come_and_go(void **state)
{
    (void)state;
    unsigned char *a = get(5 * MIB, NULL), *b = get(100, NULL), *none = memfit_torch_alloc(0, 0, NULL);
    memset(a, 1, 5 * MIB);
    memset(b, 2, 100);
    assert_int_equal(in_use(), 5 * MIB + 100);
    assert_non_null(none);
    memfit_torch_free(none, 0, 0, NULL);
    memfit_torch_free(a, 5 * MIB, 0, NULL);
    memfit_torch_free(b, 100, 0, NULL);
    memfit_torch_free(NULL, 0, 0, NULL);
    memfit_torch_free(a, 5 * MIB, 0, NULL); /* twice: told, and nothing happens */
    memfit_torch_free(a, 5 * MIB, 9, NULL); /* no such card */
    assert_int_equal(in_use(), 0);
    assert_int_equal(memfit_torch_stats(9, NULL, 0), memfit_torch_stats(0, NULL, 0));
    no_rule_broken();
}

/* The bytes of an owner by that name; 0 when there is none. */
static uint64_t held_by(const char *name)
{
    memfit_owner_info list[32];
    size_t count = memfit_torch_owners(0, list, sizeof *list, 32);
    for (size_t i = 0; i < count && i < 32; i++)
        if (strcmp(list[i].name, name) == 0)
            return list[i].bytes;
    return 0;
}

static void *asks_unnamed(void *ctx)
{
    (void)ctx;
    return memfit_torch_alloc(2 * MIB, 0, NULL);
}

/* A name is the thread's own, and goes when another or none is said. */
static void owners_are_named(void **state)
{
    (void)state;
    uint64_t before = held_by("pytorch");
    memfit_torch_owner("block1.conv (Conv2d)");
    unsigned char *a = get(3 * MIB, NULL);
    pthread_t thread;
    void *b = NULL;
    assert_int_equal(pthread_create(&thread, NULL, asks_unnamed, NULL), 0);
    pthread_join(thread, &b);
    memfit_torch_owner("backward of block1.conv (Conv2d), whose name is longer than sixty-three bytes");
    unsigned char *c = get(MIB, NULL);
    memfit_torch_owner(NULL);
    unsigned char *d = get(4 * MIB, NULL);
    assert_int_equal(held_by("block1.conv (Conv2d)"), 3 * MIB);
    assert_int_equal(held_by("backward of block1.conv (Conv2d), whose name is longer than six"), MIB);
    assert_int_equal(held_by("pytorch") - before, 6 * MIB);
    memfit_torch_free(a, 3 * MIB, 0, NULL);
    memfit_torch_free(b, 2 * MIB, 0, NULL);
    memfit_torch_free(c, MIB, 0, NULL);
    memfit_torch_free(d, 4 * MIB, 0, NULL);
    assert_int_equal(held_by("block1.conv (Conv2d)"), 0);
    assert_int_equal(memfit_torch_owners(9, NULL, 0, 0), 0);

    uint64_t values[4];
    memfit_torch_stats(0, values, 4);
    assert_true(values[1] >= 10 * MIB);
    memfit_torch_reset_peaks(0);
    memfit_torch_reset_peaks(9);
    memfit_torch_stats(0, values, 4);
    assert_int_equal(values[1], values[0]);
    assert_int_equal(values[3], values[2]);
    no_rule_broken();
}

static void what_is_too_much_is_refused(void **state)
{
    (void)state;
    assert_null(memfit_torch_alloc(1 << 30, 0, NULL));
    assert_null(memfit_torch_alloc(-1, 0, NULL));
    assert_null(memfit_torch_alloc(100, 64, NULL));
    assert_null(memfit_torch_alloc(100, -1, NULL));
    uint64_t values[16] = {0};
    assert_true(memfit_torch_stats(0, values, 16) > 10);
    assert_int_equal(values[10], 1); /* failures */
    unsigned char *a = get(200 * MIB, NULL);
    memfit_torch_free(a, 200 * MIB, 0, NULL);
    memfit_torch_trim(0);
    memfit_torch_trim(9);
    memfit_torch_stats(0, values, 16);
    assert_int_equal(values[2], 0); /* reserved */
    no_rule_broken();
}

/* Work on a side stream that is behind reads the block after it was freed. With record_stream it reads what was there
 * then; the fake does queued work late, so without it would read what came after. */
static void record_stream_is_honoured(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        size_t bytes = i % 3 == 0 ? 2000 : i % 3 == 1 ? 100000 : 3 * MIB;
        void *on = i % 2 ? side : third;
        unsigned char *a = get(bytes, NULL), *out = get(bytes, on);
        memset(a, 0x11, bytes);
        hold((uintptr_t)on, true);
        if (i % 4 < 2)
            memfit_torch_record_stream(a, on);
        assert_int_equal(copy((uintptr_t)out, (uintptr_t)a, bytes, on), 0);
        if (i % 4 >= 2)
            memfit_torch_record_stream(a, on);
        memfit_torch_free(a, (ssize_t)bytes, 0, NULL);
        unsigned char *others[4];
        for (unsigned k = 0; k < 4; k++) {
            others[k] = get(bytes, NULL);
            assert_true(others[k] != a);
            memset(others[k], 0x22, bytes);
        }
        memfit_torch_empty_cache();
        hold((uintptr_t)on, false);
        for (size_t k = 0; k < bytes; k += 999)
            assert_int_equal(out[k], 0x11);
        for (unsigned k = 0; k < 4; k++)
            memfit_torch_free(others[k], (ssize_t)bytes, 0, NULL);
        memfit_torch_free(out, (ssize_t)bytes, 0, on);
    }
    assert_int_equal(in_use(), 0);
    no_rule_broken();
}

static void record_stream_of_what_is_not_ours(void **state)
{
    (void)state;
    unsigned char here[16];
    memfit_torch_record_stream(here, side);
    memfit_torch_record_stream(NULL, side);
    unsigned char *a = get(3 * MIB, NULL);
    memfit_torch_record_stream(a + MIB, side); /* a view's storage begins where it likes */
    memfit_torch_free(a, 3 * MIB, 0, NULL);
    memfit_torch_record_stream(a, side); /* told, nothing happens */
    assert_int_equal(in_use(), 0);
    no_rule_broken();
}

/* The default stream cannot be captured: requests on it do not ask the driver, and one on another stream asks once; so does
 * an event behind what was freed there. */
static void the_driver_is_asked_once_at_most(void **state)
{
    (void)state;
    enum { TENSORS = 16 };
    unsigned char *tensors[TENSORS];
    for (unsigned turn = 0; turn < 4; turn++) {
        void *stream = turn % 2 ? side : NULL;
        uint64_t before = count_calls("cuStreamIsCapturing");
        for (unsigned i = 0; i < TENSORS; i++)
            tensors[i] = get(100000 * (i + 1), stream);
        uint64_t asked = count_calls("cuStreamIsCapturing") - before, events = turn ? 1 : 0;
        assert_in_range(asked, stream ? TENSORS : 0, (stream ? TENSORS : 0) + events);
        for (unsigned i = 0; i < TENSORS; i++)
            memfit_torch_free(tensors[i], 100000 * (i + 1), 0, stream);
    }
    no_rule_broken();
}

static void graphs(void **state)
{
    (void)state;
    memfit_torch_pool_id id = {0, 5};
    unsigned char *warm = get(4 * MIB, side);
    memfit_torch_free(warm, 4 * MIB, 0, side);
    capture((uintptr_t)side, true);
    assert_null(memfit_torch_alloc(4 * MIB, 0, side)); /* not announced */
    capture((uintptr_t)side, false);
    memfit_torch_begin_pool(0, id, NULL);
    capture((uintptr_t)side, true);
    unsigned char *temporary = get(4 * MIB, side), *result = get(1000, side);
    memfit_torch_free(temporary, 4 * MIB, 0, side);
    assert_ptr_equal(get(4 * MIB, side), temporary);
    memfit_torch_free(temporary, 4 * MIB, 0, side);
    capture((uintptr_t)side, false);
    memfit_torch_end_pool(0, id);
    for (unsigned i = 0; i < 8; i++) {
        unsigned char *a = get(4 * MIB, i % 2 ? side : NULL);
        assert_true(a != temporary);
        memfit_torch_free(a, 4 * MIB, 0, i % 2 ? side : NULL);
    }
    memfit_torch_empty_cache();
    assert_int_equal(fill((uintptr_t)temporary, 1, 4 * MIB, third), 0); /* the graph is launched */
    memfit_torch_release_pool(0, id);
    memfit_torch_release_pool(0, id); /* once too often: nothing happens */
    memfit_torch_free(result, 1000, 0, side);
    memfit_torch_empty_cache();
    uint64_t values[16] = {0};
    memfit_torch_stats(0, values, 16);
    assert_int_equal(values[0], 0);
    assert_int_equal(values[2], 0);
    no_rule_broken();
}

/* Last: from here on there are several cards. What is mapped already and what comes later is open to both; a card that
 * cannot be reached is refused, since PyTorch's copies would fail. */
static void cards_reach_each_other(void **state)
{
    (void)state;
    unsigned char *a = get(3 * MIB, NULL), *b = memfit_torch_alloc(3 * MIB, 1, NULL), *c;
    assert_non_null(b);
    c = get(9 * MIB, NULL);
    assert_int_equal(open_to((uintptr_t)a), 3);
    assert_int_equal(open_to((uintptr_t)b), 3);
    assert_int_equal(open_to((uintptr_t)c), 3);
    setenv("FAKE_CUDA_NO_PEER", "1", 1);
    assert_null(memfit_torch_alloc(3 * MIB, 2, NULL));
    unsetenv("FAKE_CUDA_NO_PEER");
    memfit_torch_free(a, 3 * MIB, 0, NULL);
    memfit_torch_free(b, 3 * MIB, 1, NULL);
    memfit_torch_free(c, 9 * MIB, 0, NULL);
    no_rule_broken();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_thread_frees_another_has),
        cmocka_unit_test(the_driver_is_asked_once_at_most),
        cmocka_unit_test(blocks_come_and_go),
        cmocka_unit_test(owners_are_named),
        cmocka_unit_test(what_is_too_much_is_refused),
        cmocka_unit_test(record_stream_is_honoured),
        cmocka_unit_test(record_stream_of_what_is_not_ours),
        cmocka_unit_test(graphs),
        cmocka_unit_test(cards_reach_each_other),
    };
    return cmocka_run_group_tests(tests, load_fake, NULL);
}
