/* fake_cuda_load.h: the fake driver for a test of its own process: memfit is told to open it, and the test sees inside. */
#ifndef FAKE_CUDA_LOAD_H
#define FAKE_CUDA_LOAD_H

#include "fake_cuda.h"
#include "test.h"

#include <dlfcn.h>

static inline void *need(void *library, const char *name)
{
    void *address = dlsym(library, name);
    assert_non_null(address);
    return address;
}

static inline void *open_fake_driver(void)
{
    const char *path = getenv("FAKE_CUDA_LIBRARY");
    assert_non_null(path);
    setenv("MEMFIT_LIB_CUDA", path, 1);
    setenv("MEMFIT_LIB_NVML", "/nonexistent/libnvidia-ml.so.1", 1);
    void *library = dlopen(path, RTLD_NOW);
    assert_non_null(library);
    return library;
}

#endif
