/*
 * cuda_spec.h: one operation as text for the compiler and a list of launches. The text has types, shapes and attributes
 * as constants and includes the family of kernels (folder kernels) that the operation's kind belongs to; the launches are
 * run in order, each with the same argument. Nothing here needs a card.
 */
#ifndef MF_OPS_CUDA_SPEC_H
#define MF_OPS_CUDA_SPEC_H

#include "ops/ops.h"

enum { CUDA_MOST_LAUNCHES = 12 };

typedef struct cuda_launch {
    char name[16];
    uint32_t grid_x, grid_y;
} cuda_launch;

typedef struct cuda_spec {
    const memfit_host *host;
    const mf_graph *graph;
    const mf_op *op;
    unsigned block; /* threads of a block: a power of two; 1 where a block is one thread (tests on a CPU) */
    char *text;     /* ended by 0; NULL where there is nothing to compile */
    size_t length, capacity;
    bool no_memory;
    bool silent;  /* launches and workspace only: there will be no text */
    bool copies;  /* VIEW: the input's bytes go to the output when the two lie elsewhere */
    bool many;    /* one launch serves any number of such operations (many.h) */
    bool slow;    /* plain loops, where a library is not there */
    bool streams; /* one pass over its operands at the card's bandwidth, where a library's way is far from that */
    bool tf32_is_quicker; /* where it streams, a library's way in TF32 still is */
    const char *family;
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    uint32_t launch_count;
    uint64_t workspace_bytes;
    bool library;       /* a library runs the convolution: these are the launches around it */
    bool bias_inside;   /* it adds the bias, too */
    uint32_t call_at;   /* how many launches stand before the library's call */
    uint64_t filter_at; /* where in the workspace its filters lie; its own workspace follows workspace_bytes */
} cuda_spec;

/* How many pointers the kernels' argument has: inputs, outputs, workspace, scalars. */
uint32_t cuda_spec_inputs(const mf_op *op);
uint32_t cuda_spec_outputs(const mf_op *op);

/* UNSUPPORTED for what no kernel takes (ASSUMED). On success cuda_spec_end frees what it holds. */
memfit_status cuda_spec_make(const memfit_host *host, const mf_graph *graph, uint32_t op, unsigned block,
                             cuda_spec *spec, memfit_error *err);
/* The same without its text: launches and workspace. Nothing is to be freed. */
memfit_status cuda_spec_size(const mf_graph *graph, uint32_t op, unsigned block, cuda_spec *spec, memfit_error *err);
/* What stands around a library's convolution. */
memfit_status cuda_spec_make_around(const memfit_host *host, const mf_graph *graph, uint32_t op, unsigned block,
                                    bool bias_inside, cuda_spec *spec, memfit_error *err);
void cuda_spec_end(cuda_spec *spec);

/* ---- for cuda_kinds.c ---- */
void cuda_say(cuda_spec *spec, const char *format, ...) MEMFIT_PRINTF(2, 3);
void cuda_say_attributes(cuda_spec *spec);
/* One thread for each of n. */
void cuda_each(cuda_spec *spec, const char *name, uint64_t n);
void cuda_grid(cuda_spec *spec, const char *name, uint64_t x, uint64_t y);
/* Reduction number i of this text: `out` results of `gone` elements each, `numbers` carried along; `rows`: a result's
 * elements lie side by side. */
void cuda_reduce(cuda_spec *spec, unsigned i, uint64_t out, uint64_t gone, unsigned numbers, bool rows);
/* The same without launches: the text names it, this operation does not need it. */
void cuda_reduce_unused(cuda_spec *spec, unsigned i);
/* Doubles that one launch leaves for the next: KEPT_AT. Called once. */
void cuda_keep(cuda_spec *spec, uint64_t doubles);
uint64_t cuda_workspace(cuda_spec *spec, uint64_t bytes); /* where they lie */
bool cuda_is_added(const mf_graph *graph, const mf_op *op, uint32_t output);
/* Defines, launches and workspace of the operation's kind. */
memfit_status cuda_kind_spec(cuda_spec *spec, memfit_error *err);

#endif
