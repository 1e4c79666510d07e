/*
 * onednn_build.h: between the files of the adapter: how a compiled operation is put together.
 *
 * A compiled operation is a list of at most four stages, each one primitive. A stage's arguments are operands of the
 * operation or places in its workspace.
 */
#ifndef MF_OPS_ONEDNN_BUILD_H
#define MF_OPS_ONEDNN_BUILD_H

#include "ops/cpu/dnn/onednn.h"
#include "ops/cpu/dnn/onednn_dialect.h"

enum { DNN_MOST_STAGES = 4, DNN_MOST_ARGS = 6, DNN_IN_WORKSPACE = -1 };

typedef struct dnn_stage {
    dnnl_primitive_t primitive; /* NULL: turn the taps of args[0] into args[1] */
    dnnl_exec_arg_t args[DNN_MOST_ARGS];
    int operand[DNN_MOST_ARGS]; /* index of the operation's operand, or DNN_IN_WORKSPACE */
    uint64_t offset[DNN_MOST_ARGS];
    int count;
    uint64_t taps, tap_bytes; /* of a turn */
} dnn_stage;

struct mf_dnn_engine {
    const memfit_host *host;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
};

struct mf_dnn {
    mf_dnn_engine *engine;
    dnn_stage stages[DNN_MOST_STAGES];
    int count;
    bool alone; /* runs on the calling thread */
};

/* What a make function fills; `made` is NULL when only asked for the size. */
typedef struct dnn_builder {
    mf_dnn_engine *engine;
    mf_dnn *made;
    uint64_t bytes;   /* workspace that lives through the operation */
    uint64_t scratch; /* the largest scratchpad of a stage, behind it */
    int team;         /* the caller's number of threads, to go back to */
} dnn_builder;

typedef struct dnn_argument {
    int name;
    mf_dnn_layout layout;
    int operand;
    uint64_t offset;
} dnn_argument;

/* Is it over before another thread could help? At 1e5 operations and 1e4 bytes a microsecond. */
static inline bool dnn_is_small(double flops, double bytes)
{
    return flops / 1e5 + bytes / 1e4 < 10;
}

/* The library counts in 32 bits in places, rounded up to its blocks (3.7), and divides by what wraps to zero. */
static inline bool dnn_is_countable(int64_t n)
{
    return n > 0 && n < 1 << 30;
}

memfit_status dnn_too_large(const char *what, memfit_error *err);
/* The implementation's name, and whether it takes no memory of its own. */
const char *dnn_name_of(const_dnnl_primitive_desc_t pd);
bool dnn_takes_nothing(const_dnnl_primitive_desc_t pd);

/* From dnn_begin to dnn_finish the library makes primitives for the engine's threads, or for one. */
memfit_status dnn_begin(dnn_builder *b, mf_dnn_engine *engine, bool create, bool alone, memfit_error *err);
memfit_status dnn_finish(dnn_builder *b, dnnl_status_t status, const char *what, mf_dnn **made,
                         uint64_t *workspace_bytes, memfit_error *err);
/* Workspace for a stage's result. */
uint64_t dnn_take(dnn_builder *b, uint64_t bytes);
/* Adds the stage that runs `pd`, which stays the caller's. The scratchpad's place is settled by dnn_finish(). */
dnnl_status_t dnn_add_stage(dnn_builder *b, dnnl_primitive_desc_t pd, const dnn_argument *args, int count);
dnnl_status_t dnn_add_reorder(dnn_builder *b, mf_dnn_layout from, dnn_argument from_arg, mf_dnn_layout to,
                              dnn_argument to_arg, bool sum);
/* Attributes every primitive gets: our scratchpad; the result times `scale`, added to what the destination holds, and
 * clipped at zero. */
dnnl_status_t dnn_make_attr(bool sum, bool relu, float scale, dnnl_primitive_attr_t *attr);

#endif
