/*
 * build.h: making a graph. Each mf_g_ function appends one operation (or none, when there is nothing to do) and returns
 * the tensor it makes; shapes come from the kind's rule in kinds.c.
 *
 * Failure is sticky: the first one is kept in the builder, from then on every call returns MF_NONE and changes nothing,
 * so that a chain of calls needs one check at its end. MF_NONE given for a required operand passes through.
 *
 *     mf_build b;
 *     mf_build_begin(&b, host, err);
 *     uint32_t x = mf_g_input(&b, "x", MF_F32, shape);
 *     uint32_t w = mf_g_use(&b, mf_g_variable(&b, &(mf_variable){.name = "w", .dtype = MF_F32, .shape = ...}));
 *     uint32_t y = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, mf_g_matmul(&b, x, w, MF_NONE, false, false, 1));
 *     mf_g_backward(&b, 1, &y, &dy, 1, &w, &dw);
 *     mf_graph *graph;
 *     status = mf_build_end(&b, &graph);
 */
#ifndef MF_GRAPH_BUILD_H
#define MF_GRAPH_BUILD_H

#include "graph/graph.h"

typedef struct mf_build {
    mf_graph *graph;
    memfit_error *err;
    memfit_status status;
    uint32_t layer;        /* owner of what is appended now */
    uint8_t phase;         /* mf_op_phase of what is appended now */
    uint8_t when;          /* mf_when */
    memfit_kind kind;      /* of the storages made now: ACTIVATIONS, or GRADIENTS in the backward pass */
    uint32_t next_key;     /* of the next random layer */
    bool chunked;          /* what is appended now belongs to the loop over chunks */
    struct mf_head *heads; /* last layers whose losses are not appended yet (chunk.h) */
    memfit_status misfit;  /* of shapes that do not go together; OK stands for INVALID, DAMAGED when a file says them */
    bool plain; /* backward keeps what each forward operation's own gradient reads; else less, for the same bits */
} mf_build;

/* A step of more operations is refused: models called within models multiply, and no plan of that size is of use. */
enum { MF_MOST_OPS = 250000 };

/* On failure the builder is in its failed state; mf_build_end gives the status. */
memfit_status mf_build_begin(mf_build *b, const memfit_host *host, memfit_error *err);
/* Removes operations nobody needs, checks, and hands the graph over. On failure everything is freed. `roots` are
 * tensors that must be there at the end beside the outputs (when predicting) and what variables keep; they are
 * rewritten to the final numbers, as the graph is numbered anew. */
memfit_status mf_build_end(mf_build *b, mf_graph **graph);
memfit_status mf_build_end_keeping(mf_build *b, uint32_t root_count, uint32_t *roots, mf_graph **graph);
/* Fails the builder (keeps an earlier failure) and returns MF_NONE. */
uint32_t mf_build_fail(mf_build *b, memfit_status status, const char *format, ...) MEMFIT_PRINTF(3, 4);
static inline bool mf_build_ok(const mf_build *b)
{
    return b->status == MEMFIT_OK;
}

uint32_t mf_build_layer(mf_build *b, const char *name, const char *class_name); /* new entry of graph->layers */
const mf_tensor *mf_g_tensor(const mf_build *b, uint32_t tensor);               /* valid until the next append */
mf_shape mf_g_shape(const mf_build *b, uint32_t tensor);                        /* rank 0 after a failure */
mf_dtype mf_g_dtype(const mf_build *b, uint32_t tensor);

/* ---- variables ---- */
/* Takes a copy; tensor, layer and storage are set here. Returns the variable's number. */
uint32_t mf_g_variable(mf_build *b, const mf_variable *variable);
/* The tensor of a variable in this graph, made at its first use. */
uint32_t mf_g_use(mf_build *b, uint32_t variable);

/* ---- structure ---- */
uint32_t mf_g_input(mf_build *b, const char *name, mf_dtype dtype, mf_shape shape);
uint32_t mf_g_view(mf_build *b, uint32_t x, mf_shape shape);
/* Rows `first` to first + count - 1 of the first axis, where they lie. */
uint32_t mf_g_rows(mf_build *b, uint32_t x, int64_t first, int64_t count);
uint32_t mf_g_cast(mf_build *b, uint32_t x, mf_dtype dtype);
uint32_t mf_g_fill(mf_build *b, mf_dtype dtype, mf_shape shape, double value);
/* An existing variable's tensor set to a value. */
void mf_g_clear(mf_build *b, uint32_t tensor, double value);
uint32_t mf_g_transpose(mf_build *b, uint32_t x, const uint32_t *perm);
uint32_t mf_g_slice(mf_build *b, uint32_t x, const int64_t *begin, const int64_t *size, const int64_t *stride);
uint32_t mf_g_pad(mf_build *b, uint32_t x, const int64_t *before, const int64_t *after, const int64_t *between,
                  double value, uint32_t mode);
uint32_t mf_g_concat(mf_build *b, uint32_t count, const uint32_t *x, uint32_t axis);
/* x's dimensions of 1 are repeated to those of shape, of the same rank; times scale. */
uint32_t mf_g_broadcast(mf_build *b, uint32_t x, mf_shape shape, double scale);
uint32_t mf_g_gather(mf_build *b, uint32_t table, uint32_t indices);
uint32_t mf_g_resize(mf_build *b, uint32_t x, int64_t height, int64_t width, uint32_t method, bool align_corners,
                     bool half_pixel);
uint32_t mf_g_assumed(mf_build *b, uint32_t count, const uint32_t *x, mf_dtype dtype, mf_shape shape, uint64_t bytes);

/* ---- linear ---- */
/* c = scale * op(a) op(b) + bias over the last two axes. Leading axes of a and b are equal, or b has rank 2 and a is
 * not transposed. bias has c's last dimension. */
uint32_t mf_g_matmul(mf_build *b, uint32_t a, uint32_t c, uint32_t bias, bool trans_a, bool trans_b, double scale);
uint32_t mf_g_conv(mf_build *b, uint32_t x, uint32_t w, uint32_t bias, const mf_window *window);
/* x_shape: the shape of the result. */
uint32_t mf_g_conv_grad_data(mf_build *b, uint32_t dy, uint32_t w, uint32_t bias, const mf_window *window,
                             mf_shape x_shape);
/* db may be NULL: no bias. */
uint32_t mf_g_conv_grad_weights(mf_build *b, uint32_t x, uint32_t dy, const mf_window *window, mf_shape w_shape,
                                uint32_t *db);
/* Padding by its name: "same", "valid", "causal". Fills window->before and ->after for the input's spatial dimensions. */
bool mf_window_pad(mf_window *window, const char *padding, const int64_t *spatial);
/* Output positions along one dimension; < 1 when the window does not fit. */
int64_t mf_window_out(const mf_window *window, uint32_t dim, int64_t in);

/* ---- pointwise ---- */
uint32_t mf_g_unary(mf_build *b, mf_unary function, double alpha, double beta, uint32_t x);
uint32_t mf_g_binary(mf_build *b, mf_binary function, uint32_t a, uint32_t c);
/* Truth as U8. c may be MF_NONE: then `value` stands for it. */
uint32_t mf_g_compare(mf_build *b, mf_compare function, uint32_t a, uint32_t c, double value);
/* yes where mask (U8) is not 0, else no; either may be MF_NONE, then the number stands for it (both: of type dtype). */
uint32_t mf_g_select(mf_build *b, uint32_t mask, uint32_t yes, double yes_value, uint32_t no, double no_value,
                     mf_dtype dtype);
/* Keeps x where mask is not 0 and, with `causal`, its last index is not beyond the one before; else `otherwise`. mask
 * may be MF_NONE. */
uint32_t mf_g_keep(mf_build *b, uint32_t mask, uint32_t x, double otherwise, bool causal);
uint32_t mf_g_sum_n(mf_build *b, uint32_t count, const uint32_t *x);
uint32_t mf_g_reduce(mf_build *b, mf_reduce function, uint32_t x, uint32_t axes, bool keep);
uint32_t mf_g_softmax(mf_build *b, uint32_t x, uint32_t axis, bool log);
uint32_t mf_g_softmax_causal(mf_build *b, uint32_t x);
uint32_t mf_g_sparsemax(mf_build *b, uint32_t x, uint32_t axis);
uint32_t mf_g_prelu(mf_build *b, uint32_t x, uint32_t alpha);
/* distribution: 0 uniform [a, c), 1 normal(mean a, deviation c), 2 bernoulli(a is the rate of zeros), 3 truncated
 * normal. shared_axes: bit mask of axes that share one draw. */
uint32_t mf_g_random(mf_build *b, mf_dtype dtype, mf_shape shape, uint32_t distribution, double a, double c,
                     uint32_t key, uint32_t shared_axes);
uint32_t mf_g_dropout(mf_build *b, uint32_t x, double rate, uint32_t key, uint32_t shared_axes);

/* ---- windows ---- */
uint32_t mf_g_pool_max(mf_build *b, uint32_t x, const mf_window *window);
uint32_t mf_g_pool_avg(mf_build *b, uint32_t x, const mf_window *window);

/* ---- normalization; gamma and beta may be MF_NONE ---- */
uint32_t mf_g_batch_norm(mf_build *b, uint32_t x, uint32_t gamma, uint32_t beta, double epsilon, uint32_t *mean,
                         uint32_t *variance);
uint32_t mf_g_batch_norm_infer(mf_build *b, uint32_t x, uint32_t gamma, uint32_t beta, uint32_t mean, uint32_t variance,
                               double epsilon);
/* constrain.c: the constraint of a parameter that was just updated, if it has one. */
void mf_constrain(mf_build *b, uint32_t variable);
void mf_g_moving_average(mf_build *b, uint32_t value, uint32_t state, double momentum);
/* axes: number of trailing axes; groups > 0: group normalization over (positions, channels / groups) of each sample. */
uint32_t mf_g_layer_norm(mf_build *b, uint32_t x, uint32_t gamma, uint32_t beta, double epsilon, uint32_t axes,
                         uint32_t groups, bool rms);

/* ---- recurrent: absent operands are MF_NONE; results not wanted may be NULL ---- */
typedef struct mf_rnn_result {
    uint32_t sequence, last, last_cell;
} mf_rnn_result;
mf_rnn_result mf_g_lstm(mf_build *b, uint32_t z, uint32_t u, uint32_t h0, uint32_t c0, uint32_t mask, bool backwards,
                        mf_unary activation, mf_unary recurrent_activation);
mf_rnn_result mf_g_gru(mf_build *b, uint32_t z, uint32_t u, uint32_t bias_u, uint32_t h0, uint32_t mask, bool backwards,
                       bool reset_after, mf_unary activation, mf_unary recurrent_activation);
mf_rnn_result mf_g_simple_rnn(mf_build *b, uint32_t z, uint32_t u, uint32_t h0, uint32_t mask, bool backwards,
                              mf_unary activation);

/* ---- everything else: one operation as given; outputs with rank MF_NONE get their shape from the rule ---- */
typedef struct mf_typed {
    mf_dtype dtype;
    mf_shape shape; /* rank MF_NONE: not known yet */
    bool absent;
} mf_typed;
/* Appends the operation; out[i] receives the outputs' tensors. The first output's tensor is returned. */
uint32_t mf_g_op(mf_build *b, mf_op_kind kind, const mf_attr *attr, uint32_t in_count, const uint32_t *in,
                 uint32_t out_count, const mf_typed *types, uint32_t *out);
/* An operation that changes tensors in place: outputs are named among the inputs. */
void mf_g_op_in_place(mf_build *b, mf_op_kind kind, const mf_attr *attr, uint32_t in_count, const uint32_t *in,
                      uint32_t out_count, const uint32_t *out);

/* ---- between forward and backward (fuse.c) ---- */
/* Merges activations into the batch normalizations they follow; the same bits in fewer passes. `kept` are tensors that
 * will be asked for later beside the outputs. Operations are numbered anew, tensors keep their numbers. */
void mf_g_fuse(mf_build *b, uint32_t kept_count, const uint32_t *kept);

/* Takes the leading random operations of one input out of the graph (front.h, front.c). Tensors and operations keep their
 * numbers. */
void mf_g_front(mf_build *b, uint32_t kept_count, const uint32_t *kept);

/* ---- after the backward pass (mask.c) ---- */
/* Activations of at least so many numbers that backward needs only for their slope are kept as bits. Operations are
 * numbered anew. */
void mf_g_mask(mf_build *b, uint64_t least);

/* ---- gradients (gradient.c) ---- */
/* Appends the backward pass of everything appended so far: gradients of sum_i <dy_i, y_i> with respect to the wanted
 * tensors. gradients[i] is MF_NONE where y does not depend on wanted[i]. LOSS operations add their own gradients. */
void mf_g_backward(mf_build *b, uint32_t count, const uint32_t *y, const uint32_t *dy, uint32_t wanted_count,
                   const uint32_t *wanted, uint32_t *gradients);

#endif
