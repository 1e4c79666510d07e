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

/* After a test: the driver's rules were kept, and everything was given back. */
static inline void driver_holds_nothing(void (*get_state)(fake_cuda_state *))
{
    fake_cuda_state s;
    get_state(&s);
    if (s.broken)
        fprintf(stderr, "the driver's rules were broken: %s\n", s.first_broken);
    assert_int_equal(s.broken, 0);
    assert_int_equal(s.handles, 0);
    assert_int_equal(s.mappings, 0);
    assert_int_equal(s.plain_bytes, 0);
    assert_int_equal(s.reservations, 0);
    assert_int_equal(s.contexts, 0);
    assert_int_equal(s.streams, 0);
    assert_int_equal(s.events, 0);
    assert_int_equal(s.graphs, 0);
    assert_int_equal(s.pinned, 0);
}

#endif
