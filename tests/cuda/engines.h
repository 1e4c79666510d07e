/* engines.h: engines for tests, and the memory their kernels see. */
#ifndef MF_TESTS_CUDA_ENGINES_H
#define MF_TESTS_CUDA_ENGINES_H

#include "ops/cuda/cuda_engine.h"

/* Compiles every text for these architectures and runs nothing: needs NVRTC, no card. */
memfit_status compile_engine_create(const int *capabilities, unsigned count, cuda_engine **engine, memfit_error *err);
/* Compiles for the CPU with a C++ compiler and runs there: one thread a block, or `block` real ones. */
memfit_status host_engine_create(const char *compiler, unsigned block, cuda_engine **engine, memfit_error *err);

/* Convolutions of a library that is not there (fake_library.c): both engines have them; it computes on the host's. */
extern bool fake_library_runs;
memfit_status fake_library_methods(cuda_engine *engine, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                   memfit_error *err);
memfit_status fake_library_call(cuda_engine *engine, const mf_graph *graph, uint32_t op, const mf_method *method,
                                cuda_call **call, memfit_error *err);

typedef struct test_memory test_memory;
struct test_memory {
    char *base; /* an address kernels understand */
    memfit_status (*up)(test_memory *m, uint64_t at, const void *from, uint64_t bytes, memfit_error *err);
    memfit_status (*fill)(test_memory *m, uint64_t at, unsigned char byte, uint64_t bytes, memfit_error *err);
    memfit_status (*down)(test_memory *m, void *to, uint64_t at, uint64_t bytes, memfit_error *err);
    void *device; /* mf_device *, on a card */
};
void host_memory(test_memory *m, void *base);
memfit_status card_memory(test_memory *m, void *device, uint64_t bytes, memfit_error *err);

#endif
