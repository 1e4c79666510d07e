/*
 * cuda_engine.h: what compiles a text and launches its kernels. There is one for a card (NVRTC and the driver); tests
 * have one that compiles for the CPU, so that every kernel runs where there is no card.
 */
#ifndef MF_OPS_CUDA_ENGINE_H
#define MF_OPS_CUDA_ENGINE_H

#include "ops/ops.h"

typedef struct cuda_engine cuda_engine;
typedef struct cuda_module cuda_module;     /* one compiled text; the engine's until it ends */
typedef struct cuda_function cuda_function; /* an entry of it */

/* A library's way to run an operation, prepared once. */
typedef struct cuda_call cuda_call;
struct cuda_call {
    memfit_status (*run)(cuda_call *call, void *const *in, void *const *out, void *workspace, mf_stream stream,
                         memfit_error *err);
    void (*release)(cuda_call *call);
};

typedef struct cuda_engine_table {
    void (*destroy)(cuda_engine *engine);
    /* The same text gives the same module. */
    memfit_status (*module)(cuda_engine *engine, const char *text, cuda_module **module, memfit_error *err);
    /* Optional: this text will be asked for. Costs nothing where it is there already. */
    void (*announce)(cuda_engine *engine, const char *text);
    memfit_status (*function)(cuda_engine *engine, cuda_module *module, const char *name, cuda_function **function,
                              memfit_error *err);
    /* `argument`: the one parameter, by value. */
    memfit_status (*launch)(cuda_engine *engine, cuda_function *function, uint32_t grid_x, uint32_t grid_y,
                            unsigned block, void *argument, size_t argument_bytes, mf_stream stream, memfit_error *err);
    memfit_status (*copy)(cuda_engine *engine, void *to, const void *from, uint64_t bytes, mf_stream stream,
                          memfit_error *err);
    /* Optional: appends the ways libraries have for this operation to the menu, in their order of preference. */
    memfit_status (*methods)(cuda_engine *engine, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err);
    /* The way a method of the menu means; *call stays NULL where it means the own kernels. */
    memfit_status (*call)(cuda_engine *engine, const mf_graph *graph, uint32_t op, const mf_method *method,
                          cuda_call **call, memfit_error *err);
} cuda_engine_table;

/* The first byte of a method's identity: whose way it is. */
enum { CUDA_OWN = 0, CUDA_PRODUCT = 1, CUDA_CONVOLUTION = 2, CUDA_ATTENTION = 3 };

enum { CUDA_BLOCK = 256 }; /* on a card */

struct cuda_engine {
    const cuda_engine_table *table;
    const memfit_host *host;
    unsigned block;    /* threads of a block */
    char made_by[200]; /* as in mf_backend */
    char note[300];    /* likewise */
    bool wide_menus;   /* likewise */
    bool loose_menus;  /* likewise */
};

/* The backend over an engine, which it owns from then on. */
memfit_status mf_cuda_create_on(const memfit_host *host, cuda_engine *engine, mf_backend **backend, memfit_error *err);

#endif
