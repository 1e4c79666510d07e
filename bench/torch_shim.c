/*
 * torch_shim.c: stands between PyTorch and libmemfit on a card and writes down what PyTorch asks for, and how far each stream
 * is behind, by the card's own event times: what `bench_pool play` needs to go through a run again without a card.
 *
 *     cc -O2 -shared -fPIC -o torch_shim.so bench/torch_shim.c -ldl -lpthread
 *     TORCH_SHIM_LIBRARY=$PWD/build/libmemfit.so TORCH_SHIM_OUT=run.requests bench/torch_streams.py --part codec --allocators memfit@$PWD/torch_shim.so
 *
 * Each line of the file is "time_us op id bytes stream": a (asked), f (freed), u (used on a further stream), and l: the stream was `bytes` microseconds
 * behind at that time. Streams are numbered as they come, 0 is the default. Lines of l come later than their time; sort by the first column.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS = 16, MARKS = 4096, SLOTS = 1 << 22, EVERY_US = 300, FLUSH = 1 << 16 };

typedef struct {
    uint64_t graph, user;
} pool_id;
typedef struct {
    uint64_t asked_us;
    void *event;
    int stream;
} mark;

static void *(*real_alloc)(ssize_t, int, void *);
static void (*real_free)(void *, ssize_t, int, void *);
static void (*real_use)(void *, void *);
static void (*real_begin)(int, pool_id, void *), (*real_end)(int, pool_id), (*real_release)(int, pool_id),
    (*real_empty)(void);
static size_t (*real_stats)(int, uint64_t *, size_t);
static int (*event_create)(void **, unsigned), (*event_record)(void *, void *), (*event_query)(void *),
    (*event_elapsed)(float *, void *, void *), (*event_sync)(void *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static void *streams[STREAMS], *base;
static int stream_count = 1;
static uint64_t last_mark[STREAMS], base_us, lines;
static mark marks[MARKS];
static unsigned head, tail;
static struct {
    void *address;
    uint32_t id;
} * table;
static uint32_t ids;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void *get(void *library, const char *name)
{
    void *f = dlsym(library, name);
    if (!f)
        fprintf(stderr, "torch_shim: no %s\n", name), exit(1);
    return f;
}

static void open_all(void)
{
    const char *path = getenv("TORCH_SHIM_LIBRARY"), *to = getenv("TORCH_SHIM_OUT");
    void *m = dlopen(path ? path : "libmemfit.so", RTLD_NOW | RTLD_LOCAL),
         *c = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!m || !c || !(out = fopen(to ? to : "/dev/null", "w")))
        fprintf(stderr, "torch_shim: %s\n", dlerror()), exit(1);
    *(void **)&real_alloc = get(m, "memfit_torch_alloc"), *(void **)&real_free = get(m, "memfit_torch_free");
    *(void **)&real_use = get(m, "memfit_torch_record_stream"),
           *(void **)&real_begin = get(m, "memfit_torch_begin_pool");
    *(void **)&real_end = get(m, "memfit_torch_end_pool"),
           *(void **)&real_release = get(m, "memfit_torch_release_pool");
    *(void **)&real_empty = get(m, "memfit_torch_empty_cache"), *(void **)&real_stats = get(m, "memfit_torch_stats");
    *(void **)&event_create = get(c, "cuEventCreate"), *(void **)&event_record = get(c, "cuEventRecord");
    *(void **)&event_query = get(c, "cuEventQuery"), *(void **)&event_elapsed = get(c, "cuEventElapsedTime");
    *(void **)&event_sync = get(c, "cuEventSynchronize");
    setvbuf(out, malloc(1 << 20), _IOFBF, 1 << 20);
    table = calloc(SLOTS, sizeof *table);
}

/* The slot of an address, or the one it would have. Slots are never emptied, only taken again: an address comes back. */
static uint32_t slot(void *address)
{
    uint32_t i = (uint32_t)(((uintptr_t)address >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 42) & (SLOTS - 1);
    while (table[i].address && table[i].address != address)
        i = (i + 1) & (SLOTS - 1);
    return i;
}

static int number(void *stream)
{
    if (!stream || stream == (void *)1 || stream == (void *)2)
        return 0;
    for (int i = 1; i < stream_count; i++)
        if (streams[i] == stream)
            return i;
    if (stream_count < STREAMS)
        streams[stream_count++] = stream;
    return stream_count - 1;
}

static void line(uint64_t us, char op, uint32_t id, uint64_t bytes, int stream)
{
    fprintf(out, "%llu %c %u %llu %d\n", (unsigned long long)(us - base_us), op, id, (unsigned long long)bytes, stream);
    if (++lines % FLUSH == 0)
        fflush(out); /* the program may end by _exit */
}

/* Now and then an event on the stream; those that are done say when they were. */
static void look(uint64_t us, int stream, void *of)
{
    if (!base_us) { /* the first call: nothing runs yet */
        if (event_create(&base, 0) || event_record(base, NULL) || event_sync(base))
            base = NULL;
        base_us = us = now_us();
    }
    if (!base)
        return; /* no context */
    while (head != tail && event_query(marks[head % MARKS].event) == 0) {
        mark *m = &marks[head++ % MARKS];
        float ms = 0;
        event_elapsed(&ms, base, m->event);
        double late = 1000.0 * ms - (double)(m->asked_us - base_us);
        line(m->asked_us, 'l', 0, late > 0 ? (uint64_t)late : 0, m->stream);
    }
    if (us - last_mark[stream] < EVERY_US || tail - head == MARKS)
        return;
    mark *m = &marks[tail % MARKS];
    if (!m->event)
        event_create(&m->event, 0);
    if (event_record(m->event, of) == 0)
        m->asked_us = us, m->stream = stream, tail++, last_mark[stream] = us;
}

#define SHOWN __attribute__((visibility("default")))
static pthread_once_t once = PTHREAD_ONCE_INIT;

SHOWN void *memfit_torch_alloc(ssize_t bytes, int device, void *stream)
{
    pthread_once(&once, open_all);
    void *p = real_alloc(bytes, device, stream);
    pthread_mutex_lock(&lock);
    int s = number(stream);
    uint64_t us = now_us();
    look(us, s, stream);
    us = us < base_us ? base_us : us;
    uint32_t i = slot(p);
    table[i].address = p, table[i].id = ++ids;
    line(us, 'a', ids, (uint64_t)bytes, s);
    pthread_mutex_unlock(&lock);
    return p;
}

SHOWN void memfit_torch_free(void *p, ssize_t bytes, int device, void *stream)
{
    if (p) {
        pthread_mutex_lock(&lock);
        int s = number(stream);
        uint64_t us = now_us();
        line(us, 'f', table[slot(p)].id, (uint64_t)bytes, s);
        look(us, s, stream);
        pthread_mutex_unlock(&lock);
    }
    real_free(p, bytes, device, stream);
}

SHOWN void memfit_torch_record_stream(void *p, void *stream)
{
    pthread_once(&once, open_all);
    pthread_mutex_lock(&lock);
    line(now_us(), 'u', table[slot(p)].id, 0, number(stream));
    pthread_mutex_unlock(&lock);
    real_use(p, stream);
}

SHOWN void memfit_torch_begin_pool(int device, pool_id id, void *filter)
{
    pthread_once(&once, open_all), real_begin(device, id, filter);
}
SHOWN void memfit_torch_end_pool(int device, pool_id id)
{
    real_end(device, id);
}
SHOWN void memfit_torch_release_pool(int device, pool_id id)
{
    real_release(device, id);
}
SHOWN void memfit_torch_empty_cache(void)
{
    pthread_once(&once, open_all), real_empty();
}
SHOWN size_t memfit_torch_stats(int device, uint64_t *values, size_t most)
{
    pthread_once(&once, open_all);
    pthread_mutex_lock(&lock);
    fflush(out);
    pthread_mutex_unlock(&lock);
    return real_stats(device, values, most);
}
