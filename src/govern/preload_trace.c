/*
 * preload_trace.c: writes what was taken and given back into a trace file (docs/trace.md, version 2): one file a
 * process and card.
 *
 * One write appends an event, so it is in the file when the call returns, and a killed process loses nothing. We open
 * the file for each event, because programs close descriptors that are not theirs, and the number may then be another
 * file's. That costs some microseconds beside the driver's 60. A normal end of the process closes the trace (count and
 * checksum in its header), and says when that was. Of a process that was killed the next one to begin a trace says it.
 */
#include "govern/preload.h"
#include "trace/trace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A stack is a chain of nodes: a frame and its caller's node. The innermost is the owner ("libc10_cuda.so: cuMemAlloc"), whose
 * number an event has. Nodes are written to a file before the first event that needs them, and numbered there as they come. */
enum { NODES = 8192, FRAMES = 12, STACK_BYTES = 1 << 20 };
enum { OWN_MODULE = 2, OWN_GRAPH = 3 }; /* what the driver takes by itself: 1 is the context */
#define IS_OWNER (UINT64_C(1) << 63)
typedef struct node {
    uint64_t key;    /* a return address, or IS_OWNER and an owner's number; 0: free */
    uint32_t parent; /* another node + 1; 0: none */
} node;
static node nodes[NODES];
static uint32_t node_count;

typedef struct file {
    char path[4096];
    uint64_t cells, begin_ns, unix_us;
    uint32_t crc;
    bool failed;
    uint16_t numbers[NODES], named; /* of nodes in this file; 0: not written yet */
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

/* To the trace of a process that has ended without a word: it ended before `now_us`. */
static void end_other(const char *path, uint64_t now_us)
{
    mf_trace_header h;
    memfit_event last;
    struct stat s;
    int fd = open(path, O_RDWR | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size > (off_t)sizeof h && s.st_size % MF_TRACE_CELL == 0 &&
        pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h && memcmp(h.magic, MF_TRACE_MAGIC, sizeof h.magic) == 0 &&
        !h.closed && h.cells_at == sizeof h && now_us > h.unix_time_us && mf_share_gone((pid_t)h.process) &&
        pread(fd, &last, sizeof last, s.st_size - MF_TRACE_CELL) == (ssize_t)sizeof last && last.op != MF_TRACE_END) {
        last = (memfit_event){.time_ns = (now_us - h.unix_time_us) * 1000, .op = MF_TRACE_END};
        if (write(fd, &last, sizeof last) != (ssize_t)sizeof last && ftruncate(fd, s.st_size)) {
            /* a reader passes over half a cell at the end */
        }
    }
    close(fd);
}

/* What a process held that was killed is free by now: BASE.PID.CARD of this card. */
static void end_others(const file *f, unsigned card)
{
    char folder[sizeof f->path], path[sizeof f->path];
    const char *slash = strrchr(base, '/'), *name = slash ? slash + 1 : base;
    const int length = slash ? (int)(slash - base + 1) : 0;
    const size_t n = strlen(name);
    snprintf(folder, sizeof folder, "%.*s.", length, base);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *end;
        if (strncmp(e->d_name, name, n) != 0 || e->d_name[n] != '.' || e->d_name[n + 1] < '0' || e->d_name[n + 1] > '9')
            continue;
        if (strtoul(e->d_name + n + 1, &end, 10) == (unsigned long)getpid() || *end != '.' ||
            strtoul(end + 1, &end, 10) != card || *end)
            continue;
        if (snprintf(path, sizeof path, "%.*s%s", length, base, e->d_name) < (int)sizeof path)
            end_other(path, f->unix_us);
    }
    if (d)
        closedir(d);
}

static bool begin(file *f, unsigned card)
{
    f->begin_ns = clock_ns(CLOCK_MONOTONIC);
    f->unix_us = clock_ns(CLOCK_REALTIME) / 1000;
    snprintf(f->path, sizeof f->path, "%s.%ld.%u", base, (long)getpid(), card);
    end_others(f, card);
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

/* The number of a node, made when it is new; 0: there is no room for more. */
static uint32_t node_of(uint64_t key, uint32_t parent)
{
    uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15u + parent * 0x85ebca6bu) >> 40) % NODES;
    for (; nodes[at].key; at = (at + 1) % NODES)
        if (nodes[at].key == key && nodes[at].parent == parent)
            return at + 1;
    if (node_count >= NODES / 4 * 3)
        return 0;
    node_count++;
    nodes[at] = (node){.key = key, .parent = parent};
    return at + 1;
}

typedef struct frames {
    uintptr_t at[FRAMES];
    unsigned count;
} frames;

/* From the first that is neither the driver's, the runtime's nor ours. */
static bool keep_frame(uintptr_t address, void *ctx)
{
    frames *f = ctx;
    if (f->count || !mf_govern_passes(address))
        f->at[f->count++] = address;
    return f->count < FRAMES;
}

static uint32_t stack_of(uint32_t owner, uint64_t bytes, bool with_frames)
{
    frames f = {.count = 0};
    uint32_t parent = 0;
    if (!owner)
        return 0;
    if (with_frames && bytes >= STACK_BYTES)
        mf_govern_walk(keep_frame, &f);
    while (f.count) {
        uint32_t next = node_of(f.at[--f.count], parent);
        parent = next ? next : parent;
    }
    uint32_t leaf = node_of(IS_OWNER | owner, parent);
    return leaf ? leaf : node_of(IS_OWNER | owner, 0);
}

/* The number of a node in a file, written there when it is new. */
static uint16_t put_node(file *f, uint32_t number)
{
    enum { TEXT = 5 };
    const node *n = &nodes[number ? number - 1 : 0];
    memfit_event cells[1 + TEXT];
    char text[TEXT * MF_TRACE_CELL] = {0};
    if (!number || f->numbers[number - 1])
        return number ? f->numbers[number - 1] : 0;
    uint16_t parent = put_node(f, n->parent); /* at most FRAMES deep */
    if (n->key & IS_OWNER) {
        unsigned memory_class;
        const char *from = mf_govern_owner_name((uint32_t)n->key, &memory_class);
        snprintf(text, sizeof text, "%s%s%s", from, *from ? ": " : "", mf_memory_class_words(memory_class));
    } else {
        mf_govern_frame_name((uintptr_t)n->key, text, sizeof text);
    }
    size_t length = strlen(text), used = 1 + (length + MF_TRACE_CELL - 1) / MF_TRACE_CELL;
    cells[0] = (memfit_event){.bytes = length, .name = ++f->named, .id = parent, .op = MF_TRACE_NAME};
    memcpy(&cells[1], text, sizeof text);
    append(f, cells, used * MF_TRACE_CELL);
    return f->numbers[number - 1] = f->named;
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
    bool taken =
        op == MEMFIT_EVENT_ALLOC && key > OWN_GRAPH; /* what the driver takes by itself nobody has called for */
    uint32_t name = f->failed ? 0 : stack_of(owner <= MF_FACTS_OWNERS ? owner : 0, bytes, taken);
    name = put_node(f, name);
    if (!f->failed) {
        memfit_event e = {.time_ns = clock_ns(CLOCK_MONOTONIC) - f->begin_ns, .id = key, .name = name};
        e.bytes = bytes & 0xffffffffffff;
        e.op = (uint8_t)op;
        bool fixed = memory_class == MF_MEMORY_CONTEXT || memory_class == MF_MEMORY_MODULE;
        e.kind = fixed ? MEMFIT_KIND_FIXED : MEMFIT_KIND_OTHER;
        e.device = (uint8_t)card;
        append(f, &e, sizeof e);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
}

/* As another buffer of that size: a reader knows no buffer that grows. */
static void note_part(unsigned card, unsigned memory_class, uint64_t id, uint64_t bytes, uint64_t *noted)
{
    if (bytes == *noted)
        return;
    uint32_t owner = mf_govern_owner(card, memory_class, 0, 0);
    if (*noted)
        mf_govern_note(MEMFIT_EVENT_FREE, card, id, *noted, owner);
    if (bytes)
        mf_govern_note(MEMFIT_EVENT_ALLOC, card, id, bytes, owner);
    *noted = bytes;
}

static pthread_mutex_t beside_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t seen, module, graph;
} beside[MF_SHARE_CARDS];

void mf_govern_note_beside(mf_share *share, unsigned card)
{
    if (!mf_govern_traces() || share->slot < 0 || card >= MF_SHARE_CARDS || pthread_mutex_trylock(&beside_lock))
        return;
    uint64_t now = __atomic_load_n(&share->file->slots[share->slot].card[card].beside, __ATOMIC_SEQ_CST);
    if (now != beside[card].seen) {
        uint64_t graph = mf_govern_graph_bytes();
        graph = graph < now ? graph : now;
        beside[card].seen = now;
        note_part(card, MF_MEMORY_MODULE, OWN_MODULE, now - graph, &beside[card].module);
        note_part(card, MF_MEMORY_GRAPH, OWN_GRAPH, graph, &beside[card].graph);
    }
    pthread_mutex_unlock(&beside_lock);
}

/* A child of fork has files of its own. */
void mf_govern_trace_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&beside_lock, NULL);
    memset(beside, 0, sizeof beside);
    for (int c = 0; c < MF_SHARE_CARDS; c++)
        if (files[c].path[0])
            memset(&files[c], 0, sizeof files[c]);
}

__attribute__((destructor)) static void end(void)
{
    for (int c = 0; base && c < MF_SHARE_CARDS; c++) {
        file *f = &files[c];
        if (!f->path[0] || f->failed)
            continue;
        memfit_event last = {.time_ns = clock_ns(CLOCK_MONOTONIC) - f->begin_ns, .op = MF_TRACE_END};
        append(f, &last, sizeof last);
        if (f->failed)
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
