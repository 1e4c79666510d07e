/*
 * preload_trace.c: what was taken and given back, into a trace file (docs/trace.md, version 2): one file a process and card.
 *
 * An event is appended by one write: it is in the file when the call returns, so that a process that is killed loses nothing. The
 * file is opened for each: programs close descriptors that are not theirs, and the number may be another file's then. That costs
 * some microseconds beside the driver's 60. A normal end of the process closes the trace (count and checksum in its header).
 */
#include "govern/preload.h"
#include "trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct file {
    char path[4096];
    uint64_t cells, begin_ns, unix_us;
    uint32_t crc;
    bool failed;
    bool named[MF_FACTS_OWNERS + 1];
} file;

static file files[MF_SHARE_CARDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *base; /* NULL: no trace */
static int looked;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* zlib's, a bit at a time: this library links nothing. */
static uint32_t crc32_of(uint32_t crc, const unsigned char *data, size_t bytes)
{
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

static mf_trace_header header_of(const file *f, bool closed)
{
    mf_trace_header h = {.version = MF_TRACE_VERSION, .cell_bytes = MF_TRACE_CELL, .unix_time_us = f->unix_us};
    memcpy(h.magic, MF_TRACE_MAGIC, sizeof h.magic);
    h.process = (uint32_t)getpid();
    h.cells_at = sizeof h;
    h.cells = closed ? f->cells : 0;
    h.crc32 = closed ? f->crc : 0;
    h.closed = closed;
    return h;
}

static bool begin(file *f, unsigned card)
{
    f->begin_ns = clock_ns(CLOCK_MONOTONIC);
    f->unix_us = clock_ns(CLOCK_REALTIME) / 1000;
    snprintf(f->path, sizeof f->path, "%s.%ld.%u", base, (long)getpid(), card);
    mf_trace_header h = header_of(f, false);
    int fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool good = fd >= 0 && write(fd, &h, sizeof h) == (ssize_t)sizeof h;
    if (fd >= 0)
        close(fd);
    return good;
}

/* Whole cells, or none: what is half written would shift all that follows, so after a failure nothing more is. */
static void append(file *f, const void *cells, size_t bytes)
{
    int fd = f->failed ? -1 : open(f->path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    f->failed = fd < 0 || write(fd, cells, bytes) != (ssize_t)bytes;
    if (fd >= 0)
        close(fd);
    if (f->failed)
        return;
    f->crc = crc32_of(f->crc, cells, bytes);
    f->cells += bytes / MF_TRACE_CELL;
}

/* "libc10_cuda.so: cuMemAlloc", before the first event that has its number. */
static void put_name(file *f, uint32_t owner)
{
    enum { TEXT = 4 };
    unsigned memory_class;
    const char *from = mf_govern_owner_name(owner, &memory_class);
    memfit_event cells[1 + TEXT];
    char text[TEXT * MF_TRACE_CELL] = {0};
    snprintf(text, sizeof text, "%s%s%s", from, *from ? ": " : "", mf_memory_class_words(memory_class));
    size_t n = strlen(text), used = 1 + (n + MF_TRACE_CELL - 1) / MF_TRACE_CELL;
    cells[0] = (memfit_event){.bytes = n, .name = owner, .op = MF_TRACE_NAME};
    memcpy(&cells[1], text, sizeof text);
    append(f, cells, used * MF_TRACE_CELL);
    f->named[owner] = true;
}

bool mf_govern_traces(void)
{
    if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) {
        const char *path = getenv("MEMFIT_GOVERN_TRACE");
        base = path && *path && strlen(path) < sizeof files[0].path - 32 ? path : NULL;
        __atomic_store_n(&looked, 1, __ATOMIC_RELEASE);
    }
    return base != NULL;
}

void mf_govern_note(unsigned op, unsigned card, uint64_t key, uint64_t bytes, uint32_t owner)
{
    if (!mf_govern_traces() || card >= MF_SHARE_CARDS)
        return;
    int saved = errno;
    unsigned memory_class;
    mf_govern_owner_name(owner, &memory_class);
    pthread_mutex_lock(&lock);
    file *f = &files[card];
    if (!f->path[0])
        f->failed = !begin(f, card);
    if (owner > MF_FACTS_OWNERS)
        owner = 0;
    if (!f->failed && owner && !f->named[owner])
        put_name(f, owner);
    if (!f->failed) {
        memfit_event e = {.time_ns = clock_ns(CLOCK_MONOTONIC) - f->begin_ns, .id = key, .name = owner};
        e.bytes = bytes & 0xffffffffffff;
        e.op = (uint8_t)op;
        e.kind = memory_class == MF_MEMORY_CONTEXT ? MEMFIT_KIND_FIXED : MEMFIT_KIND_OTHER;
        e.device = (uint8_t)card;
        append(f, &e, sizeof e);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
}

/* A child of fork has files of its own. */
void mf_govern_trace_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    for (int c = 0; c < MF_SHARE_CARDS; c++)
        files[c] = (file){0};
}

__attribute__((destructor)) static void end(void)
{
    for (int c = 0; base && c < MF_SHARE_CARDS; c++) {
        file *f = &files[c];
        if (!f->path[0] || f->failed)
            continue;
        mf_trace_header h = header_of(f, true);
        int fd = open(f->path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (pwrite(fd, &h, sizeof h, 0) != (ssize_t)sizeof h)
            f->failed = true;
        f->failed = true; /* what comes now is after the end */
        close(fd);
    }
}
