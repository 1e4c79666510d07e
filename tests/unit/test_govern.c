/*
 * The library that is loaded into other people's programs, on a driver that is small enough to know what it has given out.
 * This program runs with LD_PRELOAD; the failures known from other interposers have tests of their name.
 *
 * It is long because all of it needs the one process that has the library, and its one driver.
 *
 * GOVERN_OPS: how many random operations (10^8 by hand).
 */
#include "test.h"

#include "govern/facts.h"
#include "govern/share.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)
enum { FIXED_MIB = 576, OUT_OF_MEMORY = 2 };

static void *driver; /* the driver's library */
static mf_share job;
static mf_facts *facts;

#define LOOK(type, name) ((type)dlsym(driver, name))
typedef int (*alloc_function)(uint64_t *, size_t);
typedef int (*free_function)(uint64_t);
typedef int (*proc_function)(const char *, void **, int, uint64_t, int *);

static uint64_t fake_used(void)
{
    return LOOK(uint64_t(*)(void), "fake_used")();
}

static bool is_ours(void *function)
{
    Dl_info info;
    return dladdr(function, &info) && strstr(info.dli_fname, "memfit-govern");
}

/* What the library has charged this process with. */
static uint64_t charged(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < job.file->slots_ever; i++)
        if ((pid_t)(job.file->slots[i].owner >> 32) == getpid())
            sum += job.file->slots[i].card[0].held + job.file->slots[i].card[0].asking;
    return sum;
}

static void limit_to(uint64_t bytes)
{
    job.file->limit_bytes[0] = bytes;
}

/* ---- how the driver is found ------------------------------------------------------------------------------ */

static void the_driver_looks_up_names_while_it_starts(void **state)
{
    (void)state;
    assert_int_equal(LOOK(int (*)(unsigned), "cuInit")(0), 0);
}

extern const char *ask_next(void);
extern int second_is_linked(void);
static void rtld_next_is_the_callers_next(void **state)
{
    (void)state;
    assert_true(second_is_linked());
    assert_string_equal(ask_next(), "second");
}

static void rtld_next_answers_twice(void **state)
{
    (void)state;
    assert_string_equal(ask_next(), "second");
    assert_string_equal(ask_next(), "second");
    void *a = dlsym(RTLD_NEXT, "malloc"), *b = dlsym(RTLD_NEXT, "malloc");
    assert_non_null(a);
    assert_ptr_equal(a, b);
}

static void what_is_not_there_is_not_found(void **state)
{
    (void)state;
    dlerror();
    assert_null(dlsym(driver, "cuNoSuchFunction"));
    assert_non_null(dlerror());
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    assert_null(dlsym(libc, "cuMemAlloc_v2")); /* ours must not appear where the driver is not */
    const char *why = dlerror();
    assert_non_null(why);
    assert_non_null(strstr(why, "cuMemAlloc_v2"));
    assert_non_null(dlsym(libc, "malloc"));
    assert_null(dlerror());
    dlclose(libc);
}

static void the_path_does_not_matter(void **state)
{
    (void)state;
    char path[4096];
    Dl_info info;
    assert_true(dladdr(LOOK(void *, "cuInit"), &info));
    assert_non_null(realpath(info.dli_fname, path));
    void *again = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(again);
    assert_true(is_ours(dlsym(again, "cuMemAlloc_v2")));
    assert_false(is_ours(dlsym(again, "cuInit")));
    dlclose(again);
}

static void versions_of_names_pass(void **state)
{
    (void)state;
    assert_non_null(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14"));
    assert_null(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_9.99"));
}

static void versions_and_stream_flags_are_the_drivers(void **state)
{
    (void)state;
    proc_function get = LOOK(proc_function, "cuGetProcAddress_v2");
    void *f = NULL, *twin = NULL;
    int found = -1;
    assert_true(is_ours((void *)get));
    assert_int_equal(get("cuGetProcAddress", &f, 11030, 0, &found), 0);
    assert_ptr_equal(f, LOOK(void *, "cuGetProcAddress"));
    assert_int_equal(get("cuGetProcAddress", &f, 12000, 0, &found), 0);
    assert_ptr_equal(f, (void *)get);
    assert_int_equal(found, 0);
    assert_int_equal(get("cuMemAllocAsync", &f, 12000, 0, NULL), 0);
    assert_int_equal(get("cuMemAllocAsync", &twin, 12000, 2, NULL), 0);
    assert_ptr_equal(f, LOOK(void *, "cuMemAllocAsync"));
    assert_ptr_equal(twin, LOOK(void *, "cuMemAllocAsync_ptsz"));
    assert_int_equal(get("cuMemAllocAsync", &f, 11010, 0, &found), 500);
    assert_null(f);
    assert_int_equal(found, 1);
    assert_int_equal(get("cuInit", &f, 13000, 0, NULL), 0);
    assert_false(is_ours(f));
    assert_int_equal(get("cuNewIn2030", &f, 99000, 0, NULL), 500);
}

static void null_places_are_allowed(void **state)
{
    (void)state;
    int (*info)(size_t *, size_t *) = LOOK(int (*)(size_t *, size_t *), "cuMemGetInfo_v2");
    size_t bytes = 0;
    assert_int_equal(info(NULL, NULL), 0);
    assert_int_equal(info(&bytes, NULL), 0);
    assert_int_equal(info(NULL, &bytes), 0);
}

static void frees_of_strangers_are_the_drivers(void **state)
{
    (void)state;
    free_function release = LOOK(free_function, "cuMemFree_v2");
    assert_int_equal(release(0), 0);
    assert_int_equal(release(0x1234), 1); /* the driver's own answer */
}

/* ---- the limit -------------------------------------------------------------------------------------------- */

static void the_card_is_the_limit(void **state)
{
    (void)state;
    size_t free_bytes, total;
    limit_to(UINT64_C(8) << 30);
    assert_int_equal(LOOK(int (*)(size_t *, size_t *), "cuMemGetInfo_v2")(&free_bytes, &total), 0);
    assert_true(total == UINT64_C(8) << 30);
    assert_true(free_bytes == (UINT64_C(8) << 30) - FIXED_MIB * MIB);
    total = 0;
    assert_int_equal(LOOK(int (*)(size_t *, int), "cuDeviceTotalMem_v2")(&total, 0), 0);
    assert_true(total == UINT64_C(8) << 30);
    limit_to(UINT64_C(100) << 30); /* above the card: the card */
    assert_int_equal(LOOK(int (*)(size_t *, int), "cuDeviceTotalMem_v2")(&total, 0), 0);
    assert_true(total == UINT64_C(64) << 30);
}

static void no_byte_over_the_limit(void **state)
{
    (void)state;
    alloc_function alloc = LOOK(alloc_function, "cuMemAlloc_v2");
    free_function release = LOOK(free_function, "cuMemFree_v2");
    uint64_t p[64], refused = 0x5a5a, n = 0;
    limit_to((FIXED_MIB + 100) * MIB);
    while (n < 64 && alloc(&p[n], 2 * MIB) == 0)
        n++;
    assert_int_equal(n, 50);
    errno = 77;
    assert_int_equal(alloc(&refused, 1), OUT_OF_MEMORY);
    assert_int_equal(errno, 77);
    assert_int_equal(refused, 0x5a5a);
    assert_int_equal(fake_used(), 100 * MIB);
    assert_int_equal(charged(), (FIXED_MIB + 100) * MIB);
    assert_int_equal(release(p[0]), 0);
    assert_int_equal(alloc(&p[0], 2 * MIB), 0);
    while (n)
        assert_int_equal(release(p[--n]), 0);
    assert_int_equal(charged(), FIXED_MIB * MIB);
    limit_to(UINT64_MAX);
}

/* Every error of the driver reaches the caller, and nothing stays charged. */
static void errors_of_the_driver_pass(void **state)
{
    (void)state;
    void (*fail_with)(int) = LOOK(void (*)(int), "fake_fail");
    uint64_t p, before = charged();
    size_t pitch;
    void *array;
    int properties[4] = {1, 0, 1, 0};
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } cube = {64, 64, 64, 32, 1, 0};
    for (int code = 1; code < 1000; code += 37) {
        fail_with(code);
        assert_int_equal(LOOK(alloc_function, "cuMemAlloc_v2")(&p, MIB), code);
        fail_with(code);
        assert_int_equal(
            LOOK(int (*)(uint64_t *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch_v2")(&p, &pitch, 9, 9, 4),
            code);
        fail_with(code);
        assert_int_equal(LOOK(int (*)(uint64_t *, size_t, unsigned), "cuMemAllocManaged")(&p, MIB, 1), code);
        fail_with(code);
        assert_int_equal(LOOK(int (*)(uint64_t *, size_t, void *), "cuMemAllocAsync")(&p, MIB, NULL), code);
        fail_with(code);
        assert_int_equal(LOOK(int (*)(uint64_t *, size_t, const int *, unsigned long long),
                              "cuMemCreate")(&p, 2 * MIB, properties, 0),
                         code);
        fail_with(code);
        assert_int_equal(LOOK(int (*)(void **, const void *), "cuArray3DCreate_v2")(&array, &cube), code);
        assert_int_equal(charged(), before);
    }
}

/* Physical pages live as long as a handle or a mapping of them. */
static void pages_are_held_by_handles_and_mappings(void **state)
{
    (void)state;
    int (*create)(uint64_t *, size_t, const int *, unsigned long long) =
        LOOK(int (*)(uint64_t *, size_t, const int *, unsigned long long), "cuMemCreate");
    free_function release = LOOK(free_function, "cuMemRelease");
    int (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long) =
        LOOK(int (*)(uint64_t, size_t, size_t, uint64_t, unsigned long long), "cuMemMap");
    int (*unmap)(uint64_t, size_t) = LOOK(int (*)(uint64_t, size_t), "cuMemUnmap");
    int (*retain)(uint64_t *, void *) = LOOK(int (*)(uint64_t *, void *), "cuMemRetainAllocationHandle");
    int properties[4] = {1, 0, 1, 0};
    uint64_t a, b, again, base = charged(), at = UINT64_C(0x600000000000);
    assert_int_equal(create(&a, 4 * MIB, properties, 0), 0);
    assert_int_equal(create(&b, 2 * MIB, properties, 0), 0);
    assert_int_equal(charged(), base + 6 * MIB);
    assert_int_equal(map(at, 4 * MIB, 0, a, 0), 0);
    assert_int_equal(map(at + 4 * MIB, 2 * MIB, 0, b, 0), 0);
    assert_int_equal(release(a), 0);
    assert_int_equal(release(b), 0);
    assert_int_equal(charged(), base + 6 * MIB); /* the mappings hold them */
    assert_int_equal(retain(&again, (void *)(uintptr_t)at), 0);
    assert_int_equal(unmap(at, 6 * MIB), 0); /* both at once */
    assert_int_equal(charged(), base + 4 * MIB);
    assert_int_equal(fake_used(), 4 * MIB);
    assert_int_equal(release(again), 0);
    assert_int_equal(charged(), base);
    assert_int_equal(release(again), 1);
    assert_int_equal(charged(), base);
}

/* A pool costs what it has reserved, not what is handed out of it. */
static void pools_cost_what_they_reserve(void **state)
{
    (void)state;
    int (*alloc)(uint64_t *, size_t, void *) = LOOK(int (*)(uint64_t *, size_t, void *), "cuMemAllocAsync");
    int (*release)(uint64_t, void *) = LOOK(int (*)(uint64_t, void *), "cuMemFreeAsync");
    int (*trim)(void *, size_t) = LOOK(int (*)(void *, size_t), "cuMemPoolTrimTo");
    uint64_t p[4], base = charged();
    for (int i = 0; i < 4; i++)
        assert_int_equal(alloc(&p[i], 10 * MIB, NULL), 0);
    assert_int_equal(charged(), base + 40 * MIB);
    for (int i = 0; i < 4; i++)
        assert_int_equal(release(p[i], NULL), 0);
    assert_int_equal(charged(), base + 40 * MIB); /* it keeps them */
    assert_int_equal(alloc(&p[0], 10 * MIB, NULL), 0);
    assert_int_equal(charged(), base + 40 * MIB); /* and hands them out again */
    limit_to(charged() + 4 * MIB);
    assert_int_equal(alloc(&p[2], 30 * MIB, NULL), 0); /* at the limit, but the pool has room for it */
    assert_int_equal(release(p[2], NULL), 0);
    assert_int_equal(alloc(&p[1], 40 * MIB, NULL), OUT_OF_MEMORY);
    limit_to(UINT64_MAX);
    assert_int_equal(trim((void *)0x9000, 0), 0);
    assert_int_equal(charged(), base + 10 * MIB);
    assert_int_equal(release(p[0], NULL), 0);
    assert_int_equal(trim((void *)0x9000, 0), 0);
    assert_int_equal(charged(), base);
    assert_int_equal(fake_used(), 0);
}

/* cudaDeviceReset: what the context had is gone, and can be had again. */
static void a_reset_gives_everything_back(void **state)
{
    (void)state;
    uint64_t p, base = charged();
    for (int i = 0; i < 20; i++)
        assert_int_equal(LOOK(alloc_function, "cuMemAlloc_v2")(&p, 3 * MIB), 0);
    assert_int_equal(LOOK(int (*)(uint64_t *, size_t, void *), "cuMemAllocAsync")(&p, 10 * MIB, NULL), 0);
    assert_int_equal(charged(), base + 90 * MIB);
    assert_int_equal(LOOK(int (*)(int), "cuDevicePrimaryCtxReset_v2")(0), 0);
    assert_int_equal(fake_used(), 0);
    assert_int_equal(charged(), base);
}

/* ---- whose it is, and the story of a refusal -------------------------------------------------------------- */

static uint64_t named_bytes(const mf_facts_denial *d)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < d->named; i++)
        sum += d->owners[i].bytes;
    return sum;
}

static const mf_facts_owner *owner_of_class(const mf_facts_denial *d, unsigned memory_class)
{
    for (uint32_t i = 0; i < d->named; i++)
        if (d->owners[i].memory_class == memory_class && d->owners[i].pid == (uint32_t)getpid())
            return &d->owners[i];
    return NULL;
}

static void a_refusal_names_every_byte(void **state)
{
    (void)state;
    uint64_t p[6], cube_array;
    size_t pitch;
    int properties[4] = {1, 0, 1, 0};
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } cube = {64, 64, 64, 32, 1, 0};
    uint32_t before = facts->denial_count;
    assert_int_equal(LOOK(alloc_function, "cuMemAlloc_v2")(&p[0], 20 * MIB), 0);
    assert_int_equal(LOOK(int (*)(uint64_t *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch_v2")(&p[1], &pitch,
                                                                                                         512, 4096, 4),
                     0);
    assert_int_equal(LOOK(int (*)(uint64_t *, size_t, unsigned), "cuMemAllocManaged")(&p[2], 6 * MIB, 1), 0);
    assert_int_equal(LOOK(int (*)(uint64_t *, size_t, void *), "cuMemAllocAsync")(&p[3], 10 * MIB, NULL), 0);
    assert_int_equal(LOOK(int (*)(uint64_t *, size_t, const int *, unsigned long long), "cuMemCreate")(&p[4], 8 * MIB,
                                                                                                       properties, 0),
                     0);
    assert_int_equal(LOOK(int (*)(void **, const void *), "cuArray3DCreate_v2")((void **)&cube_array, &cube), 0);
    assert_int_equal(LOOK(int (*)(uint64_t, void *), "cuMemFreeAsync")(p[3], NULL), 0); /* stays in the pool */
    limit_to(charged() + 2 * MIB);
    assert_int_equal(LOOK(alloc_function, "cuMemAlloc_v2")(&p[5], 4 * MIB), OUT_OF_MEMORY);
    assert_int_equal(facts->denial_count, before + 1);
    const mf_facts_denial *d = &facts->denials[before];
    assert_int_equal(d->state, MF_DENIAL_REFUSED);
    assert_int_equal(d->pid, getpid());
    assert_int_equal(d->memory_class, MF_MEMORY_LINEAR);
    assert_true(d->request_bytes == 4 * MIB && d->tries == 1);
    assert_int_equal(d->in_use_bytes, charged());
    assert_int_equal(named_bytes(d), charged()); /* all of it */
    assert_int_equal(d->unused_bytes, 10 * MIB);
    assert_int_equal(owner_of_class(d, MF_MEMORY_LINEAR)->bytes, 22 * MIB);
    assert_int_equal(owner_of_class(d, MF_MEMORY_LINEAR)->count, 2);
    assert_string_equal(owner_of_class(d, MF_MEMORY_LINEAR)->library, "test_govern");
    assert_int_equal(owner_of_class(d, MF_MEMORY_MANAGED)->bytes, 6 * MIB);
    assert_int_equal(owner_of_class(d, MF_MEMORY_POOL)->bytes, 10 * MIB);
    assert_int_equal(owner_of_class(d, MF_MEMORY_VIRTUAL)->bytes, 8 * MIB);
    assert_int_equal(owner_of_class(d, MF_MEMORY_ARRAY)->bytes, 2 * MIB);
    assert_int_equal(owner_of_class(d, MF_MEMORY_CONTEXT)->bytes, FIXED_MIB * MIB);
    for (uint32_t i = 1; i < d->named; i++)
        assert_true(d->owners[i].bytes <= d->owners[i - 1].bytes);
    /* Another request is another story; the same one again is not. Then it frees, and gets it. */
    assert_int_equal(LOOK(alloc_function, "cuMemAlloc_v2")(&p[5], 4 * MIB), OUT_OF_MEMORY);
    assert_true(facts->denial_count == before + 1 && d->tries == 2 && d->freed_bytes == 0);
    assert_int_equal(LOOK(free_function, "cuMemFree_v2")(p[0]), 0);
    assert_int_equal(LOOK(alloc_function, "cuMemAlloc_v2")(&p[5], 4 * MIB), 0);
    assert_int_equal(d->state, MF_DENIAL_GRANTED_LATER);
    assert_true(d->tries == 3 && d->freed_bytes == 20 * MIB);
    assert_int_equal(LOOK(alloc_function, "cuMemAlloc_v2")(&p[0], 64 * MIB), OUT_OF_MEMORY);
    assert_int_equal(facts->denial_count, before + 2);
    assert_int_equal(facts->denials[before + 1].state, MF_DENIAL_REFUSED);
    limit_to(UINT64_MAX);
    assert_int_equal(LOOK(int (*)(int), "cuDevicePrimaryCtxReset_v2")(0), 0);
}

/* What a child holds is in its parent's story. */
static void other_processes_are_named(void **state)
{
    (void)state;
    int ready[2], go[2];
    char word = 'x';
    assert_int_equal(pipe(ready) | pipe(go), 0);
    pid_t pid = fork();
    if (pid == 0) {
        uint64_t p;
        bool good = LOOK(alloc_function, "cuMemAlloc_v2")(&p, 32 * MIB) == 0 && write(ready[1], &word, 1) == 1;
        _exit(good && read(go[0], &word, 1) == 1 ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &word, 1), 1);
    uint64_t p;
    uint32_t before = facts->denial_count;
    limit_to((2 * FIXED_MIB + 40) * MIB);
    assert_int_equal(LOOK(alloc_function, "cuMemAlloc_v2")(&p, 16 * MIB), OUT_OF_MEMORY);
    limit_to(UINT64_MAX);
    const mf_facts_denial *d = &facts->denials[before];
    assert_int_equal(named_bytes(d), (2 * FIXED_MIB + 32) * MIB);
    assert_int_equal(d->in_use_bytes, (2 * FIXED_MIB + 32) * MIB);
    bool found = false;
    for (uint32_t i = 0; i < d->named; i++)
        found |= d->owners[i].pid == (uint32_t)pid && d->owners[i].bytes == 32 * MIB;
    assert_true(found);
    assert_int_equal(write(go[1], &word, 1), 1);
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

/* ---- random programs -------------------------------------------------------------------------------------- */

/* Legal calls of every kind; each answer goes into the sum that is returned. */
static uint64_t random_program(unsigned seed, int ops, bool check)
{
    enum { LIVE = 40 };
    struct {
        int kind;
        uint64_t key, bytes;
    } live[LIVE] = {{0}};
    alloc_function alloc = LOOK(alloc_function, "cuMemAlloc_v2");
    int (*pitched)(uint64_t *, size_t *, size_t, size_t, unsigned) =
        LOOK(int (*)(uint64_t *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch_v2");
    int (*managed)(uint64_t *, size_t, unsigned) = LOOK(int (*)(uint64_t *, size_t, unsigned), "cuMemAllocManaged");
    int (*async)(uint64_t *, size_t, void *) = LOOK(int (*)(uint64_t *, size_t, void *), "cuMemAllocAsync_ptsz");
    int (*free_async)(uint64_t, void *) = LOOK(int (*)(uint64_t, void *), "cuMemFreeAsync");
    int (*trim)(void *, size_t) = LOOK(int (*)(void *, size_t), "cuMemPoolTrimTo");
    int (*create)(uint64_t *, size_t, const int *, unsigned long long) =
        LOOK(int (*)(uint64_t *, size_t, const int *, unsigned long long), "cuMemCreate");
    free_function drop = LOOK(free_function, "cuMemFree_v2"), release = LOOK(free_function, "cuMemRelease");
    int properties[4] = {1, 0, 1, 0};
    uint64_t sum = seed;
    for (int i = 0; i < ops; i++) {
        int k = rand_r(&seed) % LIVE, code;
        uint64_t bytes = 1 + (uint64_t)(rand_r(&seed) % 5000000);
        size_t pitch = 0;
        if (live[k].kind) {
            code = live[k].kind == 4   ? free_async(live[k].key, NULL)
                   : live[k].kind == 5 ? release(live[k].key)
                                       : drop(live[k].key);
            live[k].kind = 0;
            if (rand_r(&seed) % 16 == 0)
                code += trim((void *)0x9000, 0);
        } else {
            live[k].kind = 1 + rand_r(&seed) % 5;
            live[k].key = 0;
            code = live[k].kind == 1   ? alloc(&live[k].key, bytes)
                   : live[k].kind == 2 ? pitched(&live[k].key, &pitch, bytes % 5000 + 1, bytes / 5000 + 1, 4)
                   : live[k].kind == 3 ? managed(&live[k].key, bytes, 1)
                   : live[k].kind == 4 ? async(&live[k].key, bytes, NULL)
                                       : create(&live[k].key, (bytes / (2 * MIB) + 1) * 2 * MIB, properties, 0);
            if (code)
                live[k].kind = 0;
        }
        sum = sum * 31 + (uint64_t)code + pitch + fake_used();
        if (check && charged() != fake_used() + FIXED_MIB * MIB) /* the driver's count is the truth */
            fail_msg("operation %d: charged %lu, the card has given %lu", i,
                     (unsigned long)(charged() - FIXED_MIB * MIB), (unsigned long)fake_used());
    }
    for (int k = 0; k < LIVE; k++)
        if (live[k].kind)
            sum += (uint64_t)(live[k].kind == 4   ? free_async(live[k].key, NULL)
                              : live[k].kind == 5 ? release(live[k].key)
                                                  : drop(live[k].key));
    trim((void *)0x9000, 0);
    return sum + fake_used() + (uint64_t)LOOK(int (*)(void), "fake_faults")();
}

static void accounts_are_the_drivers_at_every_step(void **state)
{
    (void)state;
    int ops = getenv("GOVERN_OPS") ? atoi(getenv("GOVERN_OPS")) : 60000;
    for (unsigned seed = 1; seed <= 3; seed++)
        random_program(seed, ops / 3, true);
    assert_int_equal(charged(), FIXED_MIB * MIB);
    assert_int_equal(fake_used(), 0);
}

/* The same program in a process without us: the same answers. */
/* The environment, less one variable unless it is kept. */
static char **without(const char *name, bool kept)
{
    size_t count = 0, n = 0, length = strlen(name);
    while (environ[count])
        count++;
    char **list = malloc((count + 1) * sizeof *list);
    assert_non_null(list);
    for (size_t i = 0; i < count; i++)
        if (kept || strncmp(environ[i], name, length) != 0 || environ[i][length] != '=')
            list[n++] = environ[i];
    list[n] = NULL;
    return list;
}

static void programs_give_the_same_results(void **state)
{
    (void)state;
    for (unsigned seed = 11; seed < 14; seed++) {
        int ends[2];
        uint64_t theirs = 0, ours = 0;
        for (int with = 0; with < 2; with++) {
            char number[16], fd[16];
            assert_int_equal(pipe(ends), 0);
            snprintf(number, sizeof number, "%u", seed);
            snprintf(fd, sizeof fd, "%d", ends[1]);
            pid_t pid;
            char *words[] = {"test_govern", "--program", number, fd, NULL}, **environment = without("LD_PRELOAD", with);
            /* Not fork: what a sanitizer has mapped may be too much to copy. */
            assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, words, environment), 0);
            free(environment);
            close(ends[1]);
            assert_int_equal(read(ends[0], with ? &ours : &theirs, 8), 8);
            close(ends[0]);
            waitpid(pid, NULL, 0);
        }
        assert_true(ours && ours == theirs);
    }
}

/* ---- processes and threads -------------------------------------------------------------------------------- */

static void *allocate_and_free(void *arg)
{
    alloc_function alloc = LOOK(alloc_function, "cuMemAlloc_v2");
    free_function release = LOOK(free_function, "cuMemFree_v2");
    unsigned seed = (unsigned)(uintptr_t)arg;
    uintptr_t refused = 0;
    for (int i = 0; i < 2000; i++) {
        uint64_t p;
        if (alloc(&p, 1 + (unsigned)rand_r(&seed) % (8 << 20)) == 0)
            release(p);
        else
            refused++;
        if (fake_used() > 24 * MIB)
            return (void *)UINTPTR_MAX;
    }
    return (void *)refused;
}

static void threads_stay_below_the_limit(void **state)
{
    (void)state;
    limit_to((FIXED_MIB + 24) * MIB);
    pthread_t threads[6];
    for (uintptr_t t = 0; t < 6; t++)
        pthread_create(&threads[t], NULL, allocate_and_free, (void *)(t + 1));
    for (int t = 0; t < 6; t++) {
        void *result;
        pthread_join(threads[t], &result);
        assert_true(result != (void *)UINTPTR_MAX);
    }
    assert_int_equal(charged(), FIXED_MIB * MIB);
    limit_to(UINT64_MAX);
}

/* A child of fork is another process of the job: its own slot, its own fixed cost, nothing of its parent's to free. */
static void a_child_of_fork_is_another_process(void **state)
{
    (void)state;
    alloc_function alloc = LOOK(alloc_function, "cuMemAlloc_v2");
    free_function release = LOOK(free_function, "cuMemFree_v2");
    uint64_t p, before;
    assert_int_equal(alloc(&p, 10 * MIB), 0);
    before = charged();
    pid_t pid = fork();
    if (pid < 0 && errno == ENOMEM) /* what a sanitizer has mapped is too much to copy */
        skip();
    if (pid == 0) {
        uint64_t mine;
        bool good = charged() == 0 && alloc(&mine, 6 * MIB) == 0 && charged() == 6 * MIB + FIXED_MIB * MIB;
        _exit(good ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(charged(), before);
    assert_int_equal(release(p), 0);
    mf_share_sweep(&job);
    assert_int_equal(mf_share_in_use(&job, 0), FIXED_MIB * MIB);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* What a pair of calls costs: `test_govern --pairs N`, with the library and without. By batches of 100, so that on a busy machine
 * the median is of those that nothing came between. */
static int time_pairs(int pairs)
{
    enum { BATCH = 100, MOST = 100000 };
    static double batches[MOST];
    int count = pairs / BATCH < MOST ? pairs / BATCH : MOST;
    alloc_function alloc = LOOK(alloc_function, "cuMemAlloc_v2");
    free_function release = LOOK(free_function, "cuMemFree_v2");
    uint64_t p;
    for (size_t bytes = 64 << 10; bytes <= 4 << 20; bytes <<= 6) {
        for (int k = 0; k < count; k++) {
            struct timespec a, b;
            clock_gettime(CLOCK_MONOTONIC, &a);
            for (int i = 0; i < BATCH; i++)
                if (alloc(&p, bytes) || release(p))
                    return 1;
            clock_gettime(CLOCK_MONOTONIC, &b);
            batches[k] = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / BATCH;
        }
        qsort(batches, (size_t)count, sizeof *batches, by_size);
        printf("%zu KiB: %.0f ns a pair in the median, %.0f at 99 %%, %s\n", bytes >> 10, batches[count / 2],
               batches[count * 99 / 100], charged() ? "governed" : "not governed");
    }
    return 0;
}

/* What the first request of a process costs beside N others: `test_govern --start N`. */
static int time_starts(int processes)
{
    int out[2], hold[2];
    double us;
    char word;
    if (pipe(out) || pipe(hold))
        return 1;
    for (int n = 1; n <= processes; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct timespec a, b;
            uint64_t p;
            close(hold[1]);
            clock_gettime(CLOCK_MONOTONIC, &a);
            int code = LOOK(alloc_function, "cuMemAlloc_v2")(&p, 4 * MIB);
            clock_gettime(CLOCK_MONOTONIC, &b);
            us = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3;
            _exit(code || write(out[1], &us, sizeof us) != sizeof us || read(hold[0], &word, 1) ? 1 : 0);
        }
        if (pid < 0 || read(out[0], &us, sizeof us) != sizeof us)
            return 1;
        if ((n & (n - 1)) == 0)
            printf("process %d: its first request took %.0f us\n", n, us);
    }
    close(hold[1]);
    while (wait(NULL) > 0)
        ;
    return 0;
}

int main(int argc, char **argv)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver || !dlsym(driver, "fake_used") || (argc == 1 && !is_ours(dlsym(driver, "cuMemAlloc_v2"))))
        return 77; /* not on the small driver, or without the library */
    if (argc == 4) {
        uint64_t sum = random_program((unsigned)atoi(argv[2]), 5000, false);
        return write(atoi(argv[3]), &sum, 8) == 8 ? 0 : 1;
    }
    char folder[] = "/tmp/memfit-govern-XXXXXX", path[64];
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/share", folder);
    if (mf_share_create(path, &job) != MF_SHARE_OK)
        return 1;
    setenv("MEMFIT_GOVERN", path, 1);
    char facts_path[64];
    snprintf(facts_path, sizeof facts_path, "%s/facts", folder);
    facts = mf_facts_create(facts_path);
    if (!facts)
        return 1;
    setenv("MEMFIT_GOVERN_FACTS", facts_path, 1);
    if (argc == 3) {
        int status = strcmp(argv[1], "--start") == 0 ? time_starts(atoi(argv[2])) : time_pairs(atoi(argv[2]));
        unlink(path);
        unlink(facts_path);
        return rmdir(folder) || status;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_driver_looks_up_names_while_it_starts),
        cmocka_unit_test(rtld_next_is_the_callers_next),
        cmocka_unit_test(rtld_next_answers_twice),
        cmocka_unit_test(what_is_not_there_is_not_found),
        cmocka_unit_test(the_path_does_not_matter),
        cmocka_unit_test(versions_of_names_pass),
        cmocka_unit_test(versions_and_stream_flags_are_the_drivers),
        cmocka_unit_test(null_places_are_allowed),
        cmocka_unit_test(frees_of_strangers_are_the_drivers),
        cmocka_unit_test(the_card_is_the_limit),
        cmocka_unit_test(no_byte_over_the_limit),
        cmocka_unit_test(errors_of_the_driver_pass),
        cmocka_unit_test(pages_are_held_by_handles_and_mappings),
        cmocka_unit_test(pools_cost_what_they_reserve),
        cmocka_unit_test(a_reset_gives_everything_back),
        cmocka_unit_test(a_refusal_names_every_byte),
        cmocka_unit_test(other_processes_are_named),
        cmocka_unit_test(accounts_are_the_drivers_at_every_step),
        cmocka_unit_test(programs_give_the_same_results),
        cmocka_unit_test(threads_stay_below_the_limit),
        cmocka_unit_test(a_child_of_fork_is_another_process),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    unlink(facts_path);
    rmdir(folder);
    return failed;
}
