/*
 * reference.h: inside the reference backend. A kernel function sees its operands already in the type it computes in
 * (float or double), in plain row-major arrays, and writes every output whole; reference.c converts 16-bit and integer
 * operands on the way in and out, and adds where the operation accumulates. So no kernel knows about storage types,
 * accumulation or aliasing: out may be the same memory as an in-place input and kernels read before they write.
 *
 * Kernels exist twice: each ref_*.c includes its *_body.h once with REAL = float and once with REAL = double. Sums run
 * in double in both.
 */
#ifndef MF_OPS_REFERENCE_H
#define MF_OPS_REFERENCE_H

#include "ops/ops.h"

typedef struct mf_ref_arg {
    void *data; /* NULL: absent */
    mf_dtype dtype;
    const mf_shape *shape;
    uint64_t count;
} mf_ref_arg;

typedef struct mf_ref_call {
    const mf_op *op;
    const mf_graph *graph;
    mf_ref_arg *in, *out;
    uint32_t in_count, out_count;
    const mf_run_scalars *scalars;
    bool recomputed; /* no side effects */
    double *scratch; /* what the row's scratch function asked for */
} mf_ref_call;

typedef memfit_status (*mf_ref_function)(mf_ref_call *call, memfit_error *err);

typedef struct mf_ref_row {
    mf_ref_function f32, f64;
    uint64_t (*scratch_bytes)(const mf_graph *graph, const mf_op *op); /* NULL: none */
    uint32_t in_least, out_least;                                      /* operands that must be there, from the front */
    uint32_t raw_in, raw_out;                                          /* bit masks: handed over in their own type */
    uint32_t optional_in, optional_out;
} mf_ref_row;

/* The row of a kind, or NULL when the kind cannot run (ASSUMED). */
const mf_ref_row *mf_ref_row_of(mf_op_kind kind);

/* ---- elements of any type ---- */
double mf_ref_load(mf_dtype dtype, const void *data, uint64_t index);
int64_t mf_ref_load_int(mf_dtype dtype, const void *data, uint64_t index);
void mf_ref_store(mf_dtype dtype, void *data, uint64_t index, double value);
void mf_ref_convert(mf_dtype to, void *out, mf_dtype from, const void *in, uint64_t count);

/* ---- functions of one number: value and derivative, the same for all kernels ---- */
double mf_unary_value(mf_unary function, double alpha, double beta, double x);
/* dy/dx; `x` is the input, or the output when from_output. */
double mf_unary_slope(mf_unary function, double alpha, double beta, bool from_output, double x);
bool mf_unary_slope_by_output(mf_unary function); /* the derivative can be had from the output alone */
double mf_unary_default_alpha(mf_unary function); /* as Keras's activation of that name */

/* ---- shapes ---- */
/* Strides in elements of `x` broadcast to `out` (aligned at the right); 0 along broadcast axes. */
void mf_ref_strides(const mf_shape *out, const mf_shape *x, int64_t stride[MF_MOST_DIMS]);
/* Counts up through a shape in row-major order; false at the end. */
bool mf_ref_next(const mf_shape *shape, int64_t at[MF_MOST_DIMS]);
int64_t mf_ref_dot(const int64_t *at, const int64_t *stride, uint32_t rank);
/* Product of the dimensions from `first` (inclusive) to `last` (exclusive). */
int64_t mf_ref_span(const mf_shape *shape, uint32_t first, uint32_t last);

/* A window with three spatial dimensions, the missing ones (in front) of size 1. */
typedef struct mf_ref_window {
    int64_t batch, in[3], in_channels, out[3], out_channels;
    int64_t kernel[3], stride[3], dilation[3], before[3], groups;
} mf_ref_window;
void mf_ref_window_of(const mf_window *window, const mf_shape *x, const mf_shape *y, mf_ref_window *w);

/* ---- kernels, in float and double ---- */
/* clang-format off */
#define MF_REF_KERNELS(X)                                                                                              \
    X(fill) X(broadcast) X(gather) X(gather_grad) X(resize) X(resize_grad) X(matmul) X(conv) X(conv_grad_data)         \
    X(conv_grad_weights) X(unary) X(unary_grad) X(mask) X(mask_grad) X(binary) X(binary_grad) X(compare) X(select) X(sum_n) X(reduce) X(reduce_grad)             \
    X(softmax) X(softmax_grad) X(prelu) X(prelu_grad) X(random) X(dropout) X(pool_max) X(pool_max_grad)                \
    X(pool_avg) X(pool_avg_grad) X(batch_norm) X(batch_norm_grad) X(batch_norm_infer) X(batch_norm_infer_grad)         \
    X(moving_average) X(layer_norm) X(layer_norm_grad) X(attention) X(attention_grad) X(lstm) X(lstm_grad) X(gru) X(gru_grad) X(simple_rnn)           \
    X(simple_rnn_grad) X(loss) X(loss_grad) X(metric) X(regularize) X(clip) X(square_sum) X(clip_global)               \
    X(check_finite) X(update) X(ema) X(augment)
/* clang-format on */
#define X(name)                                                                                                        \
    memfit_status mf_ref_##name##_f32(mf_ref_call *call, memfit_error *err);                                           \
    memfit_status mf_ref_##name##_f64(mf_ref_call *call, memfit_error *err);
MF_REF_KERNELS(X)
#undef X
/* Moving bytes: one function for all types. */
memfit_status mf_ref_view(mf_ref_call *call, memfit_error *err);
memfit_status mf_ref_cast(mf_ref_call *call, memfit_error *err);
memfit_status mf_ref_transpose(mf_ref_call *call, memfit_error *err);
memfit_status mf_ref_slice(mf_ref_call *call, memfit_error *err);
memfit_status mf_ref_pad(mf_ref_call *call, memfit_error *err);
memfit_status mf_ref_concat(mf_ref_call *call, memfit_error *err);

uint64_t mf_ref_attention_scratch(const mf_graph *graph, const mf_op *op);
uint64_t mf_ref_rnn_scratch(const mf_graph *graph, const mf_op *op);
uint64_t mf_ref_norm_scratch(const mf_graph *graph, const mf_op *op);
uint64_t mf_ref_binary_grad_scratch(const mf_graph *graph, const mf_op *op);
uint64_t mf_ref_table_scratch(const mf_graph *graph, const mf_op *op);

#endif
