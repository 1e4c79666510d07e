/*
 * cpu_ops.h: inside the CPU backend. Each kind has one rule: `bind` looks at the operation's shapes once, fills the
 * kernel's union and says how much workspace it takes; `run` does the work. A rule that answers UNSUPPORTED leaves the
 * operation to the reference backend, which can do everything.
 */
#ifndef MF_OPS_CPU_OPS_H
#define MF_OPS_CPU_OPS_H

#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/dnn/onednn.h"
#include "ops/ops.h"

typedef struct cpu_backend {
    mf_backend base;
    mf_backend *reference;
    mf_dnn_engine *engine;
    const mf_kernel_table *k;
    uint64_t part_bytes; /* float32 copies of 16-bit operands are made in parts of about this size; tests take less */
    int64_t share_from;  /* reference operations of more elements are divided among threads; tests take 0 */
} cpu_backend;

typedef struct cpu_kernel cpu_kernel;
typedef struct cpu_wide cpu_wide;
typedef struct cpu_shared cpu_shared;
typedef struct cpu_product cpu_product; /* cpu_product.h */

typedef struct cpu_rule {
    /* With `create` false only the workspace is wanted and nothing may stay allocated. */
    memfit_status (*bind)(cpu_kernel *k, bool create, uint64_t *workspace_bytes, memfit_error *err);
    memfit_status (*run)(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err);
} cpu_rule;

struct cpu_kernel {
    cpu_backend *backend; /* first, as ops.h asks */
    const cpu_rule *rule;
    const mf_graph *graph;
    const mf_op *op;
    cpu_product *product, *product2;
    bool few, three;      /* a weight gradient on the kernel for few input channels, for three columns */
    bool relu;            /* applied to the result: a following operation was absorbed */
    mf_kernel *reference; /* when no rule serves */
    cpu_shared *shared;   /* the same in a part for each thread (cpu_shared.c) */
    cpu_wide *wide;       /* 16-bit operands: converted copies around a float32 kernel (cpu_wide.c) */
    bool wide_norm;       /* the same for batch normalization (cpu_wide_norm.c) */
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
        mf_k_attention attention;
        mf_k_conv conv;
        struct {
            mf_k_loss loss;
            int64_t rows_per_sample;
        } loss;
        mf_k_metric metric;
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

const cpu_rule *cpu_rule_of(mf_op_kind kind); /* NULL: none */
/* Does `next` do nothing but RELU to this operation's only result? Then it may become part of its kernel. */
bool cpu_relu_follows(const mf_graph *graph, const mf_op *op, const mf_op *next);
double cpu_estimate_us(const cpu_kernel *k, bool reference);      /* cpu_cost.c; `k` is bound */
double cpu_copies_us(const cpu_backend *backend, uint64_t bytes); /* of converting to and from 16 bits */
extern const cpu_rule cpu_conv, cpu_conv_grad_data, cpu_conv_grad_weights, cpu_matmul;
extern const cpu_rule cpu_mask, cpu_mask_grad;
extern const cpu_rule cpu_unary, cpu_unary_grad, cpu_binary, cpu_compare, cpu_select, cpu_sum_n, cpu_fill,
    cpu_broadcast, cpu_cast;
extern const cpu_rule cpu_transpose, cpu_slice, cpu_pad, cpu_concat, cpu_gather, cpu_gather_grad;
extern const cpu_rule cpu_reduce, cpu_softmax, cpu_softmax_grad, cpu_pool_max, cpu_pool_max_grad;
extern const cpu_rule cpu_pool_avg, cpu_pool_avg_grad, cpu_batch_norm, cpu_batch_norm_grad;
extern const cpu_rule cpu_batch_norm_infer, cpu_batch_norm_infer_grad, cpu_layer_norm, cpu_layer_norm_grad;
extern const cpu_rule cpu_moving_average, cpu_loss, cpu_loss_grad, cpu_update, cpu_dropout, cpu_nothing;
extern const cpu_rule cpu_lstm, cpu_lstm_grad, cpu_gru, cpu_gru_grad, cpu_simple_rnn, cpu_simple_rnn_grad;
extern const cpu_rule cpu_attention, cpu_attention_grad;
extern const cpu_rule cpu_square_sum, cpu_clip_global, cpu_check_finite, cpu_clip, cpu_regularize, cpu_metric;

/* mf_group_taker.attends (cpu_attention.c) */
bool cpu_attends(void *ctx, const mf_graph *graph, const mf_op *attention);

/* ---- 16-bit operands ---- */
static inline bool cpu_is_half(mf_dtype t)
{
    return t == MF_F16 || t == MF_BF16;
}
bool cpu_wide_wanted(const cpu_kernel *k);
memfit_status cpu_wide_query(cpu_kernel *k, mf_cost *cost, memfit_error *err);
memfit_status cpu_wide_prepare(cpu_kernel *k, memfit_error *err);
memfit_status cpu_wide_run(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err);
void cpu_wide_release(cpu_kernel *k);
/* Batch normalization that is divided; one that is not serves as any other operation. */
bool cpu_wide_norm_serves(const cpu_kernel *k);
void cpu_wide_norm_query(const cpu_kernel *k, mf_cost *cost);
void cpu_wide_norm_run(const cpu_kernel *k, const mf_operands *o);

/* ---- reference operations in a part for each thread; `serves` says whether this one is divided ---- */
memfit_status cpu_shared_query(const cpu_kernel *k, bool *serves, uint64_t *workspace, memfit_error *err);
memfit_status cpu_shared_prepare(cpu_kernel *k, bool *serves, memfit_error *err);
memfit_status cpu_shared_run(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *scalars, memfit_error *err);
void cpu_shared_release(cpu_kernel *k);

/* ---- small parts ---- */
static inline const mf_tensor *cpu_in(const cpu_kernel *k, uint32_t i)
{
    return i < k->op->in_count && k->op->in[i] != MF_NONE ? &k->graph->tensors[k->op->in[i]] : NULL;
}
static inline const mf_tensor *cpu_out(const cpu_kernel *k, uint32_t i)
{
    return i < k->op->out_count && k->op->out[i] != MF_NONE ? &k->graph->tensors[k->op->out[i]] : NULL;
}
static inline int64_t cpu_count(const mf_tensor *t)
{
    return (int64_t)mf_shape_count(&t->shape);
}
/* Output i is added to: the flag, and it lies in a variable or is the only one. */
static inline bool cpu_adds(const cpu_kernel *k, uint32_t i)
{
    const mf_tensor *t = cpu_out(k, i);
    return k->op->accumulate && t && (k->op->out_count == 1 || k->graph->storages[t->storage].variable != MF_NONE);
}
static inline int cpu_threads(const cpu_kernel *k)
{
    return (int)k->backend->base.threads;
}
/* Every operand there is float32. */
bool cpu_all_float(const cpu_kernel *k);
/* The answer of a rule that does not serve. */
memfit_status cpu_no(memfit_error *err);

#endif
