/* deep_caller.c: a library that is linked to the driver, and to the C library's dlsym. Loaded with RTLD_DEEPBIND it finds
 * both before everything that was preloaded. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);

EXPORT int deep_linked(size_t bytes)
{
    uint64_t pointer;
    return cuMemAlloc_v2(&pointer, bytes);
}

EXPORT int deep_looked_up(size_t bytes)
{
    uint64_t pointer;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*take)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))(driver ? dlsym(driver, "cuMemAlloc_v2") : NULL);
    return take ? take(&pointer, bytes) : -1;
}
