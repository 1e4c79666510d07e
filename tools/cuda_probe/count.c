/* count.c: allocations of the whole process, the driver's included: the executable's symbols come first in the search. */
#include "probe.h"
#include <sys/mman.h>
#include <sys/syscall.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);
atomic_long malloc_count, free_count, mmap_count, ioctl_count;

#pragma GCC visibility push(default) /* all other names stay inside, so that they replace none of a library's */

void *malloc(size_t n)
{
    atomic_fetch_add(&malloc_count, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&malloc_count, 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&malloc_count, 1);
    if (p != NULL)
        atomic_fetch_add(&free_count, 1);
    return __libc_realloc(p, n);
}

void *memalign(size_t align, size_t n);
void *memalign(size_t align, size_t n)
{
    atomic_fetch_add(&malloc_count, 1);
    return __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    *p = memalign(align, n);
    return *p == NULL ? ENOMEM : 0;
}

void free(void *p)
{
    if (p != NULL)
        atomic_fetch_add(&free_count, 1);
    __libc_free(p);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    atomic_fetch_add(&mmap_count, 1);
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
}

int ioctl(int fd, unsigned long request, ...);
int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *arg = va_arg(list, void *);
    va_end(list);
    atomic_fetch_add(&ioctl_count, 1);
    return (int)syscall(SYS_ioctl, fd, request, arg);
}

#pragma GCC visibility pop
