/*
 * count_alloc.c: the program's own malloc family, which counts.
 *
 * Law: after a plan is admitted, a step allocates nothing. To measure that, not to believe it, the executable defines
 * malloc and its kin and mmap: the dynamic linker then binds every library's calls (OpenMP, oneDNN, libstdc++) to these
 * definitions, so calls by all threads are counted.
 *
 * One library cannot help itself: each execution of a oneDNN primitive builds a small hash table of its arguments and
 * drops it again. Such requests are served, while steps run, from a reserve of fixed size taken and touched before the
 * fixed cost is measured, so no memory is taken from the system whatever the library does; they are counted apart and
 * reported (`reserve_calls_in_steps`). A request the reserve cannot serve goes on to libc and counts as an allocation.
 *
 * The reserve: blocks of 64 to 4096 bytes and a few in which OpenMP makes a team of all threads, aligned to 64, a free
 * list for each, one lock (a spin on an atomic flag: a few tens of nanoseconds, and the callers are one thread at a time
 * nearly always). Seen in use at once, by class, over eight networks with 2 to 32 threads: 6, 7, 17, 2; twice that and
 * more is there.
 */
#include "cli/count_alloc.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define COUNTED 0
#else
#define COUNTED 1
#endif

static atomic_uint_fast64_t taken, reserved;

static atomic_bool prepared, serving, in_steps;

/* Who asked while steps ran: places in the code, few enough for a table that is never full in practice. */
enum { MOST_CALLERS = 64 };
static struct {
    _Atomic(void *) from;
    atomic_uint_fast64_t count;
} callers[MOST_CALLERS];

uint64_t cli_allocation_count(void *ctx)
{
    (void)ctx; /* one count for the whole program */
    return atomic_load_explicit(&taken, memory_order_relaxed);
}

void cli_in_steps(void *ctx, bool running)
{
    (void)ctx;
    atomic_store(&in_steps, running);
    atomic_store(&serving, running && atomic_load(&prepared));
}

uint64_t cli_reserve_count(void)
{
    return atomic_load_explicit(&reserved, memory_order_relaxed);
}

/* The file that holds this code, by its last name. */
static void library_of(const void *from, char *name, size_t room)
{
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    snprintf(name, room, "unknown");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long long begin, end, address = (uintptr_t)from;
        const char *slash = strrchr(line, '/');
        if (sscanf(line, "%llx-%llx", &begin, &end) == 2 && address >= begin && address < end && slash) {
            line[strcspn(line, "\n")] = 0;
            snprintf(name, room, "%s", slash + 1);
        }
    }
    if (maps)
        fclose(maps);
}

unsigned cli_allocating_libraries(cli_allocating *list, unsigned room)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MOST_CALLERS && atomic_load(&callers[i].from); i++) {
        char name[sizeof list->name];
        library_of(atomic_load(&callers[i].from), name, sizeof name);
        unsigned k = 0;
        while (k < count && strcmp(list[k].name, name) != 0)
            k++;
        if (k == room)
            continue;
        if (k == count) {
            memcpy(list[count].name, name, sizeof name);
            list[count++].calls = 0;
        }
        list[k].calls += atomic_load(&callers[i].count);
    }
    return count;
}

int cli_allocations_are_counted(void)
{
    return COUNTED;
}

#if COUNTED

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

enum { CLASSES = 5, TEAMS = CLASSES - 1 };
static size_t class_bytes[CLASSES] = {64, 256, 1024, 4096, 4096};
static size_t class_count[CLASSES] = {128, 64, 40, 8, 4};

typedef struct block {
    struct block *next;
} block;

static unsigned char *space;
static size_t space_bytes;
static block *free_list[CLASSES];
static atomic_flag lock = ATOMIC_FLAG_INIT;
static void *reserve_take(size_t bytes)
{
    for (int c = 0; c < CLASSES; c++) {
        if (bytes > class_bytes[c])
            continue;
        while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
            ;
        block *b = free_list[c];
        if (b)
            free_list[c] = b->next;
        atomic_flag_clear_explicit(&lock, memory_order_release);
        if (b) {
            atomic_fetch_add_explicit(&reserved, 1, memory_order_relaxed);
            return b;
        }
    }
    return NULL;
}

static int class_of(const void *p)
{
    size_t at = (size_t)((const unsigned char *)p - space), end = 0;
    for (int c = 0; c < CLASSES; c++) {
        end += class_bytes[c] * class_count[c];
        if (at < end)
            return c;
    }
    return 0;
}

static int is_reserve(const void *p)
{
    return space && (const unsigned char *)p >= space && (const unsigned char *)p < space + space_bytes;
}

static void reserve_give(void *p)
{
    block *b = p;
    int c = class_of(p);
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
        ;
    b->next = free_list[c];
    free_list[c] = b;
    atomic_flag_clear_explicit(&lock, memory_order_release);
}

/* GCC's library takes one piece for a team, larger with every thread. */
static void make_room_for_teams(unsigned threads)
{
    class_bytes[TEAMS] = (2048 + 256 * (size_t)threads + 4095) & ~(size_t)4095;
    if (2 * (size_t)threads > class_count[2])
        class_count[2] = 2 * (size_t)threads;
}

void cli_reserve_begin(unsigned threads)
{
    /* What is freed while starting stays with the process until it is trimmed on purpose: so the largest size before a
     * trim is the size at the trim, and no moment in between goes unmeasured. */
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (!space) {
        make_room_for_teams(threads);
        for (int c = 0; c < CLASSES; c++)
            space_bytes += class_bytes[c] * class_count[c];
        void *p =
            (void *)syscall(SYS_mmap, NULL, space_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return;
        space = p;
        unsigned char *at = space;
        for (int c = 0; c < CLASSES; c++)
            for (size_t i = 0; i < class_count[c]; i++, at += class_bytes[c]) {
                for (size_t page = 0; page < class_bytes[c]; page += 4096)
                    at[page] = 0; /* all of it is there from now on */
                ((block *)(void *)at)->next = free_list[c];
                free_list[c] = (block *)(void *)at;
            }
    }
    atomic_store(&prepared, 1);
}

void cli_reserve_end(void)
{
    atomic_store(&prepared, 0);
    atomic_store(&serving, 0);
}

static void note(void *from)
{
    atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
    if (!atomic_load_explicit(&in_steps, memory_order_relaxed))
        return;
    for (unsigned i = 0; i < MOST_CALLERS; i++) {
        void *is = NULL;
        if (atomic_compare_exchange_strong(&callers[i].from, &is, from) || is == from) {
            atomic_fetch_add_explicit(&callers[i].count, 1, memory_order_relaxed);
            return;
        }
    }
}

static void *take(size_t bytes, void *from)
{
    if (atomic_load_explicit(&serving, memory_order_relaxed)) {
        void *p = reserve_take(bytes);
        if (p)
            return p;
    }
    note(from);
    return NULL;
}

void *malloc(size_t bytes)
{
    void *p = take(bytes, __builtin_return_address(0));
    return p ? p : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    size_t all;
    if (!__builtin_mul_overflow(count, bytes, &all) && all <= class_bytes[CLASSES - 1]) {
        void *p = take(all, __builtin_return_address(0));
        if (p)
            return memset(p, 0, all);
        return __libc_calloc(count, bytes);
    }
    note(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}

void free(void *p)
{
    if (is_reserve(p))
        reserve_give(p);
    else
        __libc_free(p);
}

void *realloc(void *p, size_t bytes)
{
    if (!is_reserve(p)) {
        note(__builtin_return_address(0));
        return __libc_realloc(p, bytes);
    }
    size_t had = class_bytes[class_of(p)];
    if (bytes <= had && bytes)
        return p;
    void *fresh = take(bytes, __builtin_return_address(0));
    if (!fresh)
        fresh = __libc_malloc(bytes);
    if (fresh)
        memcpy(fresh, p, had < bytes ? had : bytes);
    reserve_give(p);
    return fresh;
}

static void *take_aligned(size_t alignment, size_t bytes, void *from)
{
    void *p = NULL;
    if (alignment <= 64)
        p = take(bytes, from);
    else
        note(from);
    return p ? p : __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    return take_aligned(alignment, bytes, __builtin_return_address(0));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return take_aligned(alignment, bytes, __builtin_return_address(0));
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    void *p = take_aligned(alignment, bytes, __builtin_return_address(0));
    if (!p)
        return 12; /* ENOMEM */
    *out = p;
    return 0;
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    note(__builtin_return_address(0));
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

#else

void cli_reserve_begin(unsigned threads)
{
    (void)threads;
}

void cli_reserve_end(void)
{
}

#endif
