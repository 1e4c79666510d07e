/*
 * preload_huge.c: makes the host copy of a suspended process faster.
 *
 * The driver maps the memory for that copy in this process, as one block with MAP_POPULATE, in one thread: 8 GiB are
 * two million pages of 4 KiB, taken and cleared one after the other, which takes twice as long as the copying. So for a
 * job that takes turns we replace the driver's import of mmap: we advise huge pages for such a block and fill it with
 * several threads (docs/bench/run.md, "Turns", has the times). The block is filled before the driver goes on, as it
 * asked. Only the driver's own mappings change, not the program's. Where the kernel has no huge pages, or cannot fill
 * on request (before Linux 5.14), pages come as they are touched.
 */
#include "govern/preload.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20, MOST_THREADS = 8, STACK_BYTES = 64 << 10, POPULATE_WRITE = 23 /* MADV_POPULATE_WRITE */ };

typedef struct part {
    char *at;
    size_t bytes;
    pthread_t thread;
    bool apart; /* a thread of its own fills it */
} part;

static void *fill_part(void *ctx)
{
    part *p = ctx;
    if (p->bytes)
        madvise(p->at, p->bytes, POPULATE_WRITE);
    return NULL;
}

/* Parts begin at huge pages, so that no two threads want the same one. */
static void fill(char *at, size_t bytes)
{
    part parts[MOST_THREADS];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned count = processors < 1 ? 1 : processors < MOST_THREADS ? (unsigned)processors : MOST_THREADS;
    size_t each = (bytes / count + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES,
           first = HUGE_BYTES - (size_t)((uintptr_t)at % HUGE_BYTES), from = 0;
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all); /* the program's signals are not for these threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool good = pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0;
    for (unsigned i = 0; i < count; i++) {
        size_t to = i + 1 == count ? bytes : first + (i + 1) * each;
        to = to < bytes ? to : bytes;
        parts[i] = (part){.at = at + from, .bytes = to - from};
        parts[i].apart = good && i + 1 < count && parts[i].bytes &&
                         pthread_create(&parts[i].thread, &attributes, fill_part, &parts[i]) == 0;
        if (!parts[i].apart)
            fill_part(&parts[i]);
        from = to;
    }
    for (unsigned i = 0; i < count; i++)
        if (parts[i].apart)
            pthread_join(parts[i].thread, NULL);
    if (good)
        pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    const int wanted = MAP_ANONYMOUS | MAP_PRIVATE | MAP_POPULATE;
    if ((flags & wanted) != wanted || !(protection & PROT_WRITE) || bytes < HUGE_BYTES)
        return mmap(at, bytes, protection, flags, fd, offset);
    void *p = mmap(at, bytes, protection, flags & ~MAP_POPULATE, fd, offset);
    if (p == MAP_FAILED)
        return p;
    int saved = errno;
    madvise(p, bytes, MADV_HUGEPAGE);
    fill(p, bytes);
    errno = saved;
    return p;
}

static void *ours_for(const char *name)
{
    return strcmp(name, "mmap") == 0 || strcmp(name, "mmap64") == 0 ? (void *)map : NULL;
}

void mf_govern_huge_pages(void)
{
    static bool done;
    if (__atomic_exchange_n(&done, true, __ATOMIC_ACQ_REL))
        return;
    int saved = errno;
    mf_govern_write_imports("libcuda.so", ours_for);
    errno = saved;
}
