/*
 * preload_huge.c: huge pages for the copy that a suspended process keeps on the host.
 *
 * The driver writes that copy to memory it maps in this process, and pins it page by page as it goes. Taking and clearing
 * pages of 4 KiB costs more time than moving their bytes over the bus, so for a job that takes turns what the driver maps is
 * advised to be of huge pages (docs/bench/run.md, "Turns", has the times). Only the driver's own import of mmap is
 * written: the program's mappings stay as they are. Where the kernel has no huge pages nothing changes.
 */
#include "govern/preload.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_BYTES = 2 << 20 };

static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *p = mmap(at, bytes, protection, flags, fd, offset);
    int saved = errno;
    if (p != MAP_FAILED && bytes >= HUGE_BYTES && flags & MAP_ANONYMOUS && protection & PROT_WRITE)
        madvise(p, bytes, MADV_HUGEPAGE);
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
