/*
 * fast.h: inside the CPU backend. Each kind has one rule: `bind` looks at the operation's shapes once, fills the
 * kernel's union and says how much workspace it takes; `run` does the work. A rule that answers UNSUPPORTED leaves the
 * operation to the reference backend, which can do everything.
 */
#ifndef MF_OPS_ONEDNN_FAST_H
#define MF_OPS_ONEDNN_FAST_H

#include "ops/kernels.h"
#include "ops/onednn/onednn.h"
#include "ops/ops.h"

typedef struct fast_backend {
    mf_backend base;
    mf_backend *reference;
    mf_dnn_engine *engine;
    const mf_kernel_table *k;
    uint64_t part_bytes; /* float32 copies of 16-bit operands are made in parts of about this size; tests take less */
} fast_backend;

typedef struct fast_kernel fast_kernel;
typedef struct fast_wide fast_wide;

typedef struct fast_rule {
    /* With `create` false only the workspace is wanted and nothing may stay allocated. */
    memfit_status (*bind)(fast_kernel *k, bool create, uint64_t *workspace_bytes, memfit_error *err);
    memfit_status (*run)(fast_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err);
} fast_rule;

enum { FAST_MOST_PARTS = 64 };

struct fast_kernel {
    fast_backend *backend; /* first, as ops.h asks */
    const fast_rule *rule;
    const mf_graph *graph;
    const mf_op *op;
    mf_dnn *dnn, *dnn2;
    bool few, three;      /* a weight gradient on the kernel for few input channels, for three columns */
    bool relu;            /* applied to the result: a following operation was absorbed */
    mf_kernel *reference; /* when no rule serves */
    fast_wide *wide;      /* 16-bit operands: converted copies around a float32 kernel (fast_wide.c) */
    bool wide_norm;       /* the same for batch normalization (fast_wide_norm.c) */
    union {
        struct {
            mf_k_unary unary;
            int64_t n;
        } point;
        struct {
            mf_k_walk walk;
            int64_t n;
            size_t element_bytes;
        } walk;
        struct {
            int64_t a, r, c;
            mf_reduce function;
        } reduce;
        struct {
            int64_t rows, c, causal;
        } rows;
        mf_k_window window;
        mf_k_conv conv;
        struct {
            mf_k_loss loss;
            int64_t rows_per_sample;
        } loss;
        struct {
            int64_t outer, inner, axis_bytes;
        } concat;
        struct {
            int64_t rows, width, table;
        } gather;
        struct {
            int64_t n, t, u;
            uint64_t zu, state, dz, all, masks, part; /* bytes in workspace */
            bool by_gate;                             /* a product for each gate */
        } rnn;
    } u;
};

const fast_rule *fast_rule_of(mf_op_kind kind); /* NULL: none */
/* Does `next` do nothing but RELU to this operation's only result? Then it may become part of its kernel. */
bool fast_relu_follows(const mf_graph *graph, const mf_op *op, const mf_op *next);
double fast_estimate_us(const fast_kernel *k, bool reference);      /* fast_cost.c; `k` is bound */
double fast_copies_us(const fast_backend *backend, uint64_t bytes); /* of converting to and from 16 bits */
extern const fast_rule fast_conv, fast_conv_grad_data, fast_conv_grad_weights, fast_matmul;
extern const fast_rule fast_mask, fast_mask_grad;
extern const fast_rule fast_unary, fast_unary_grad, fast_binary, fast_sum_n, fast_fill, fast_broadcast, fast_cast;
extern const fast_rule fast_transpose, fast_slice, fast_pad, fast_concat, fast_gather, fast_gather_grad;
extern const fast_rule fast_reduce, fast_softmax, fast_softmax_grad, fast_pool_max, fast_pool_max_grad;
extern const fast_rule fast_pool_avg, fast_pool_avg_grad, fast_batch_norm, fast_batch_norm_grad;
extern const fast_rule fast_batch_norm_infer, fast_batch_norm_infer_grad, fast_layer_norm, fast_layer_norm_grad;
extern const fast_rule fast_moving_average, fast_loss, fast_loss_grad, fast_update, fast_dropout, fast_nothing;
extern const fast_rule fast_lstm, fast_lstm_grad, fast_gru, fast_gru_grad, fast_simple_rnn, fast_simple_rnn_grad;
extern const fast_rule fast_square_sum, fast_clip_global, fast_check_finite, fast_clip, fast_regularize;

/* ---- 16-bit operands ---- */
static inline bool fast_is_half(mf_dtype t)
{
    return t == MF_F16 || t == MF_BF16;
}
bool fast_wide_wanted(const fast_kernel *k);
memfit_status fast_wide_query(fast_kernel *k, mf_cost *cost, memfit_error *err);
memfit_status fast_wide_prepare(fast_kernel *k, memfit_error *err);
memfit_status fast_wide_run(fast_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err);
void fast_wide_release(fast_kernel *k);
/* Batch normalization that is divided; one that is not serves as any other operation. */
bool fast_wide_norm_serves(const fast_kernel *k);
void fast_wide_norm_query(const fast_kernel *k, mf_cost *cost);
void fast_wide_norm_run(const fast_kernel *k, const mf_operands *o);

/* ---- small parts ---- */
static inline const mf_tensor *fast_in(const fast_kernel *k, uint32_t i)
{
    return i < k->op->in_count && k->op->in[i] != MF_NONE ? &k->graph->tensors[k->op->in[i]] : NULL;
}
static inline const mf_tensor *fast_out(const fast_kernel *k, uint32_t i)
{
    return i < k->op->out_count && k->op->out[i] != MF_NONE ? &k->graph->tensors[k->op->out[i]] : NULL;
}
static inline int64_t fast_count(const mf_tensor *t)
{
    return (int64_t)mf_shape_count(&t->shape);
}
/* Output i is added to: the flag, and it lies in a variable or is the only one. */
static inline bool fast_adds(const fast_kernel *k, uint32_t i)
{
    const mf_tensor *t = fast_out(k, i);
    return k->op->accumulate && t && (k->op->out_count == 1 || k->graph->storages[t->storage].variable != MF_NONE);
}
static inline int fast_threads(const fast_kernel *k)
{
    return (int)k->backend->base.threads;
}
/* Every operand there is float32. */
bool fast_all_float(const fast_kernel *k);
/* The answer of a rule that does not serve. */
memfit_status fast_no(memfit_error *err);

#endif
