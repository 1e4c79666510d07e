/*
 * kernels.h: own vectorised kernels for everything in a step that is bound by memory, not arithmetic: pointwise work,
 * reductions, normalization, pooling, losses, optimizers, random numbers, moving data about. Plain C loops that the
 * compiler vectorises; every file kernels_*.c is compiled once for each instruction set and reached through one table.
 *
 * Rules: no kernel allocates; work is split over `threads` by position only, so equal calls give equal bits; partial
 * sums of threads live in workspace given by the caller and are added in thread order. Input and output may be the same
 * array where the operation is pointwise. Sizes are elements.
 */
#ifndef MF_OPS_KERNELS_H
#define MF_OPS_KERNELS_H

#include "graph/attention.h"
#include "graph/graph.h"
#include "ops/cpu/kernels/gemm.h"

/* Below this many elements a second thread costs more than it brings. */
enum { MF_K_GRAIN = 16384 };
/* Sums over a batch are taken in so many blocks and these added in order, whatever the number of threads. */
enum { MF_K_BLOCKS = 64, MF_K_AUC_BLOCKS = 8 };

/* An index space of up to MF_MOST_DIMS dimensions with the step of each operand in each, in elements: broadcasts have
 * step 0. Adjacent dimensions that can be walked as one are merged. The last dimension is the inner loop. */
typedef struct mf_k_walk {
    uint32_t rank;
    int64_t size[MF_MOST_DIMS];
    int64_t step[3][MF_MOST_DIMS]; /* operand 0 is the output */
} mf_k_walk;

typedef struct mf_k_unary {
    mf_unary function;
    float alpha, beta;
    bool from_output;
} mf_k_unary;

typedef struct mf_k_window { /* pooling: 3 spatial dimensions, ones where there are fewer */
    int64_t batch, channels, in[3], out[3], kernel[3], stride[3], dilation[3], before[3];
    bool count_padding;
} mf_k_window;

typedef struct mf_k_random {
    uint64_t seed, step, first_sample;
    uint32_t key;
} mf_k_random;

typedef struct mf_k_attention {
    mf_attention_shape shape;
    bool steps_first, zeroed, backward;
    uint32_t causal;
    double scale, masked, rate;
    const uint8_t *mask[MF_ATTENTION_MASKS]; /* NULL: none */
    int64_t mask_stride[MF_ATTENTION_MASKS][4];
    mf_k_random random;
    /* by mf_k_attention_divide */
    int64_t rows;    /* queries of a block */
    int inner;       /* threads that work on one block together; 1: each has blocks or heads of its own */
    uint64_t floats; /* workspace of a thread, or of those that work together */
} mf_k_attention;

typedef struct mf_k_attention_back {
    const float *dy, *q, *k, *v, *y, *lse;
    float *dq, *dk, *dv; /* NULL: not asked for */
} mf_k_attention_back;

enum { MF_K_ATTENTION_ROWS = 192 };

/* Chooses the last three for a number of threads; floats of workspace for all of them. */
uint64_t mf_k_attention_divide(mf_k_attention *a, int threads);

static inline int64_t mf_k_attention_row(const mf_k_attention *a) /* from row to row of a block's scores */
{
    return (a->shape.keys + 15) / 16 * 16;
}

typedef struct mf_k_update {
    mf_update_attr attr;
    double learning_rate;
    uint64_t iteration;
} mf_k_update;

typedef struct mf_k_rnn {
    int64_t batch, units;
    int64_t z_step, gate_step, h_step; /* from sample to sample in arrays (N,T,...): z, gates kept, states */
    const unsigned char *mask;         /* of this time step, or NULL; 0: the state is handed on */
    int64_t mask_step;
    bool reset_first;   /* GRU: the reset gate acts on the state, before the product */
    mf_unary act, gate; /* of candidate and state, of the gates: tanh, sigmoid, hard sigmoid, relu or linear */
} mf_k_rnn;

typedef struct mf_k_conv { /* a convolution in two dimensions */
    int64_t batch, channels, out_channels, in[2], out[2], kernel[2], stride[2], before[2];
} mf_k_conv;

/* With few input channels. */
enum { MF_K_FEW_TAPS = 48 }; /* rows x columns x channels of the kernel, the bias, and filling up */

static inline int64_t mf_k_few_row(const mf_k_conv *k) /* floats of x under one row of the output */
{
    return ((k->out[1] - 1) * k->stride[1] + k->kernel[1]) * k->channels;
}

static inline uint64_t mf_k_few_floats(const mf_k_conv *k) /* workspace of one thread */
{
    return (uint64_t)((k->kernel[0] + 1) * mf_k_few_row(k) + MF_K_FEW_TAPS * k->out_channels + 15) / 16 * 16;
}

/* Three columns wide, a step of one, at most one column of padding on each side. */
enum { MF_K_THREE_THREADS = 8 };

static inline bool mf_k_three_serves(const mf_k_conv *k)
{
    int64_t after = k->out[1] + 2 - k->in[1] - k->before[1];
    return k->kernel[1] == 3 && k->stride[0] == 1 && k->stride[1] == 1 && k->before[1] >= 0 && k->before[1] <= 1 &&
           after >= 0 && after <= 1 && k->out[1] >= 2 && k->channels % 4 == 0 && k->out_channels % 32 == 0;
}

typedef struct mf_k_loss {
    mf_loss function;
    int64_t rows, columns;         /* the last axis is reduced within a row */
    int64_t rows_per_sample;       /* rows of one sample: they share its weight */
    double factor;                 /* loss weight / denominator of the whole batch */
    double delta, label_smoothing; /* huber */
    mf_dtype target_type;          /* of integer labels */
} mf_k_loss;

typedef struct mf_k_metric {
    mf_metric function;
    int64_t rows, columns, rows_per_weight;
    double threshold;
    uint32_t k;           /* of the greatest */
    mf_dtype target_type; /* of labels; a target for each prediction is float32 */
} mf_k_metric;

#define MF_KERNEL_LIST(X)                                                                                              \
    X(void, unary, (const mf_k_unary *k, const float *x, float *y, int64_t n, int threads))                            \
    X(void, unary_grad, (const mf_k_unary *k, const float *dy, const float *s, float *dx, int64_t n, int threads))     \
    X(void, mask, (mf_unary f, const float *x, uint8_t *bits, int64_t n, int threads))                                 \
    X(void, mask_grad, (const float *dy, const uint8_t *bits, float *dx, int64_t n, int threads))                      \
    X(void, binary, (mf_binary f, const mf_k_walk *w, const float *a, const float *b, float *y, int threads))          \
    X(void, sum_n, (const float *const *x, uint32_t count, float *y, int64_t n, bool add, int threads))                \
    X(void, broadcast, (const mf_k_walk *w, float scale, const float *x, float *y, int threads))                       \
    X(void, copy, (const mf_k_walk *w, size_t element_bytes, const void *x, void *y, int threads))                     \
    X(void, fill, (float *y, float value, int64_t n, int threads))                                                     \
    X(bool, cast, (mf_dtype from, const void *x, mf_dtype to, void *y, int64_t n, int threads))                        \
    /* [a][r][c] -> [a][c]; workspace: mf_k_reduce_floats() */                                                         \
    X(void, reduce,                                                                                                    \
      (mf_reduce f, const float *x, float *y, int64_t a, int64_t r, int64_t c, bool add, float *workspace,             \
       int threads))                                                                                                   \
    X(void, softmax, (const float *x, float *y, int64_t rows, int64_t c, bool log_form, int64_t causal, int threads))  \
    X(void, softmax_grad,                                                                                              \
      (const float *dy, const float *y, float *dx, int64_t rows, int64_t c, bool log_form, int threads))               \
    X(void, dropout,                                                                                                   \
      (const mf_k_random *r, double rate, const float *x, float *y, int64_t samples, int64_t n, int threads))          \
    /* the factors, 0 or 1 / (1 - rate), of elements [first, first + n) of a sample */                                 \
    X(void, kept, (const mf_k_random *r, double rate, uint64_t sample, uint64_t first, float *y, int64_t n))           \
    /* workspace: mf_k_attention_divide(); lse may be NULL */                                                          \
    X(void, attention,                                                                                                 \
      (const mf_k_attention *a, const float *q, const float *k, const float *v, float *y, float *lse, float *space,    \
       int threads))                                                                                                   \
    X(void, attention_grad, (const mf_k_attention *a, const mf_k_attention_back *o, float *space, int threads))        \
    X(void, pool_max, (const mf_k_window *w, const float *x, float *y, uint8_t *index, int threads))                   \
    X(void, pool_max_grad, (const mf_k_window *w, const float *dy, const uint8_t *index, float *dx, int threads))      \
    X(void, pool_avg, (const mf_k_window *w, const float *x, float *y, int threads))                                   \
    X(void, pool_avg_grad, (const mf_k_window *w, const float *dy, float *dx, int threads))                            \
    /* workspace: threads * 2 * c doubles + 2 * c floats */                                                            \
    X(void, batch_norm,                                                                                                \
      (const float *x, const float *gamma, const float *beta, float *y, float *mean, float *variance, int64_t rows,    \
       int64_t c, double epsilon, mf_unary activation, void *workspace, int threads))                                  \
    X(void, batch_norm_apply,                                                                                          \
      (const float *x, const float *gamma, const float *beta, const float *mean, const float *variance, float *y,      \
       int64_t rows, int64_t c, double epsilon, mf_unary activation, float *workspace, int threads))                   \
    X(void, batch_norm_grad,                                                                                           \
      (const float *dy, const float *x, const float *mean, const float *variance, const float *gamma, float *dx,       \
       float *dgamma, float *dbeta, int64_t rows, int64_t c, double epsilon, bool frozen, const bool add[2],           \
       void *workspace, int threads))                                                                                  \
    X(void, layer_norm,                                                                                                \
      (const float *x, const float *gamma, const float *beta, float *y, float *mean, float *rstd, int64_t rows,        \
       int64_t c, double epsilon, bool rms, int threads))                                                              \
    X(void, layer_norm_grad,                                                                                           \
      (const float *dy, const float *x, const float *mean, const float *rstd, const float *gamma, float *dx,           \
       float *dgamma, float *dbeta, int64_t rows, int64_t c, bool rms, const bool add[2], float *workspace,            \
       int threads))                                                                                                   \
    X(void, few_grad,                                                                                                  \
      (const mf_k_conv *k, const float *x, const float *dy, float *dw, float *db, bool add, float *space,              \
       int threads))                                                                                                   \
    /* mf_k_three_serves() */                                                                                          \
    X(void, three_grad,                                                                                                \
      (const mf_k_conv *k, const float *x, const float *dy, float *dw, float *db, bool add, int threads))              \
    /* workspace: mf_k_gemm_floats() */                                                                                \
    X(void, gemm,                                                                                                      \
      (const mf_k_gemm *g, const float *a, const float *b, const float *bias, float *c, float *space, int threads))    \
    X(void, depthwise,                                                                                                 \
      (const mf_k_depthwise *k, bool back, const float *from, const float *w, const float *bias, bool relu, float *to, \
       int threads))                                                                                                   \
    X(void, depthwise_weights,                                                                                         \
      (const mf_k_depthwise *k, const float *x, const float *dy, bool add, float *dw, int threads))                    \
    /* the sum over all rows, times factor */                                                                          \
    X(double, loss, (const mf_k_loss *k, const float *p, const void *t, const float *weight, int threads))             \
    X(void, metric,                                                                                                    \
      (const mf_k_metric *k, const float *p, const void *t, const float *weight, double added[2], int threads))        \
    X(void, auc,                                                                                                       \
      (const mf_k_metric *k, const float *p, const float *t, const float *weight, int64_t count, double *workspace,    \
       float *state, int threads))                                                                                     \
    X(void, loss_grad,                                                                                                 \
      (const mf_k_loss *k, const float *p, const void *t, const float *weight, double scale, float *dp, int threads))  \
    X(void, update, (const mf_k_update *k, float *w, const float *g, float *const *slots, int64_t n, int threads))     \
    X(void, moving_average, (float *state, const float *value, float momentum, int64_t n))                             \
    X(double, regularize,                                                                                              \
      (double l1, double l2, double scale, const float *w, const float *grad, float *out, int64_t n, int threads))     \
    X(double, square_sum, (const float *x, int64_t n, int threads))                                                    \
    /* times factor, then within the limit on both sides; 0: no limit */                                               \
    X(void, clip, (const float *x, float *y, float factor, float limit, int64_t n, int threads))                       \
    X(bool, unscale, (float *x, float factor, int64_t n, int threads))                                                 \
    X(void, lstm_step,                                                                                                 \
      (const mf_k_rnn *k, const float *z, const float *zu, float *h, float *c, float *h_out, float *gates,             \
       float *c_out, int threads))                                                                                     \
    X(void, lstm_back,                                                                                                 \
      (const mf_k_rnn *k, const float *dh_out, const float *gates, const float *c, const float *c_before,              \
       int64_t c_before_step, float *dh, float *dc, float *d, float *dz, int threads))                                 \
    X(void, gru_step,                                                                                                  \
      (const mf_k_rnn *k, const float *z, const float *zu, float *h, float *h_out, float *gates, int threads))         \
    X(void, gru_back,                                                                                                  \
      (const mf_k_rnn *k, const float *dh_out, const float *gates, const float *h_before, int64_t h_before_step,       \
       float *dh, float *d, float *d_all, float *dz, int threads))                                                     \
    X(void, gru_reset, (const mf_k_rnn *k, const float *z, const float *zu, const float *h, float *out, int threads))  \
    X(void, gru_reset_back,                                                                                            \
      (const mf_k_rnn *k, const float *gates, const float *h_before, int64_t h_before_step, const float *part,         \
       float *dh, float *d, float *dz, int threads))                                                                   \
    X(void, rnn_step,                                                                                                  \
      (const mf_k_rnn *k, mf_unary function, const float *z, const float *zu, float *h, float *h_out, int threads))    \
    X(void, rnn_back,                                                                                                  \
      (const mf_k_rnn *k, mf_unary function, const float *dh_out, const float *h, float *dh, float *d, float *dz,      \
       int threads))

/* Doubles of workspace that auc() writes, with so many thresholds. */
static inline uint64_t mf_k_auc_doubles(int64_t thresholds)
{
    return (uint64_t)(MF_K_AUC_BLOCKS * 2 * (thresholds + 1));
}

/* Floats of workspace that reduce() writes. */
static inline uint64_t mf_k_reduce_floats(int64_t a, int64_t r, int64_t c, bool add, int threads)
{
    if (c == 1 || (a >= threads && !add))
        return 0;
    return (uint64_t)c * (r * c > MF_K_GRAIN && r >= threads ? (uint64_t)threads : 1);
}

typedef struct mf_kernel_table {
    const char *name;
#define X(type, name, arguments) type(*name) arguments;
    MF_KERNEL_LIST(X)
#undef X
} mf_kernel_table;

/* The best table this processor can run, or the one that MEMFIT_ISA (sse2, avx2, avx512) names. */
const mf_kernel_table *mf_kernels(void);
/* What MEMFIT_ISA says, or NULL; INVALID when that is no instruction set, or none of this processor. */
const char *mf_kernels_wanted(void);
memfit_status mf_kernels_check(memfit_error *err);

/* Shapes of output and up to two inputs (the inputs broadcast to the output's) as a walk. */
void mf_k_walk_make(mf_k_walk *walk, const mf_shape *out, const mf_shape *a, const mf_shape *b);
/* Merges dimensions; `operands` of the steps are in use. */
void mf_k_walk_merge(mf_k_walk *walk, uint32_t operands);

#endif
