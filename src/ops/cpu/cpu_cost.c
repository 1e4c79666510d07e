/*
 * cpu_cost.c: what operations of the CPU backend take, for the planner.
 *
 *     time = start + arithmetic / rate + bytes of data / rate + bytes of weights / rate
 *
 * One row of rates for each kind, convolutions in three forms. They are measured, not taken from a data sheet:
 * `bench_ops MODEL BATCH all` prints every operation of a step with its time, and the rows are rounded from least
 * squares over 17,000 of them (eighteen networks, several batches, one and two threads, AVX-512); RANDOM and DROPOUT
 * are set by likeness, GRUs as LSTMs. Not measured are times on the user's own machine: a plan must not depend on the
 * clock, or a training that is killed and resumed would go on with another order of sums. Choices rest on ratios, which differ less from machine to machine than times do.
 *
 * Weights have a rate of their own, the lowest one: the library lays them out anew at each call, which is what makes
 * small pieces of a batch dear in layers with many channels on small images. Bytes beyond what caches keep between two
 * operations (CACHED) count twice: that is what whole batches of large images pay and small pieces do not.
 */
#include "ops/cpu/cpu_ops.h"

enum { CACHED = 4 << 20, VECTOR = 16 };

typedef struct cost_rates {
    double start[2];             /* us: alone, in a team that is called together and waited for */
    double flops, data, weights; /* in thousands a us and thread (GFLOP/s, GB/s); 0: takes no time */
} cost_rates;

static const cost_rates conv_rates[3][3] = {
    /* forward                     data gradient                      weight gradient */
    {{{2, 4}, 115, 32, 4.0}, {{0.5, 2}, 118, 28, 3.6}, {{4, 8}, 104, 32, 7.0}}, /* a window of several cells */
    {{{1, 3}, 102, 31, 4.8}, {{4, 5}, 105, 36, 10}, {{1, 5}, 81, 33, 14}},      /* one cell */
    {{{1, 4}, 51, 48, 5.0}, {{1, 4}, 0, 19, 3.5}, {{1, 5}, 150, 12, 7.5}},      /* each channel by itself */
};

static const cost_rates moved = {{0.7, 1.2}, 0, 45, 0}; /* reads and writes, nothing else */

static cost_rates rates_of(const mf_op *op)
{
    switch (op->kind) {
    case MF_OP_METRIC: /* an area under a curve looks up the threshold of every value: 279 us for 512 KiB */
        return (cost_rates){{0.7, 1.2}, 0, op->attr.metric.function == MF_METRIC_AUC ? 1.9 : 28, 0};
    case MF_OP_MATMUL:
        return (cost_rates){{0.8, 2.5}, 118, 20, 0};
    case MF_OP_ATTENTION:
    case MF_OP_ATTENTION_GRAD:
        return (cost_rates){{2, 5}, 75, 45, 0};
    case MF_OP_LSTM:
    case MF_OP_GRU:
    case MF_OP_SIMPLE_RNN:
        return (cost_rates){{1, 4}, 60, 0, 0};
    case MF_OP_LSTM_GRAD:
    case MF_OP_GRU_GRAD:
    case MF_OP_SIMPLE_RNN_GRAD:
        return (cost_rates){{1, 4}, 68, 0, 0};
    case MF_OP_UNARY_GRAD:
    case MF_OP_BINARY:
        return (cost_rates){{0.8, 1.2}, 30, 68, 0};
    case MF_OP_UNARY:
        return (cost_rates){{0.7, 1}, 28, 80, 0};
    case MF_OP_UPDATE:
        return (cost_rates){{1.1, 1.5}, 0, 58, 0};
    case MF_OP_BATCH_NORM_GRAD:
        return (cost_rates){{5, 6}, 0, 24, 0};
    case MF_OP_BATCH_NORM:
        return (cost_rates){{3, 5}, 0, 19, 0};
    case MF_OP_LAYER_NORM:
        return (cost_rates){{0.5, 3}, 0, 18, 0};
    case MF_OP_LAYER_NORM_GRAD:
        return (cost_rates){{1, 3}, 0, 24, 0};
    case MF_OP_POOL_MAX:
        return (cost_rates){{1, 4}, 0, 23, 0};
    case MF_OP_POOL_MAX_GRAD:
        return (cost_rates){{1, 4}, 0, 15, 0};
    case MF_OP_POOL_AVG:
        return (cost_rates){{1, 3}, 0, 11, 0};
    case MF_OP_POOL_AVG_GRAD:
        return (cost_rates){{2, 3}, 0, 6.6, 0};
    case MF_OP_MASK:
        return (cost_rates){{3, 4}, 0, 17, 0};
    case MF_OP_CONCAT:
    case MF_OP_PAD:
        return (cost_rates){{1, 3}, 0, 24, 0};
    case MF_OP_TRANSPOSE:
        return (cost_rates){{2, 4}, 0, 14, 0};
    case MF_OP_SOFTMAX:
        return (cost_rates){{2.5, 3}, 0, 12, 0};
    case MF_OP_REDUCE:
    case MF_OP_BROADCAST:
        return (cost_rates){{0.5, 1.2}, 0, 30, 0};
    case MF_OP_LOSS:
        return (cost_rates){{0.8, 1.2}, 0, 1, 0};
    case MF_OP_LOSS_GRAD:
        return (cost_rates){{1.3, 1.3}, 0, 3.3, 0};
    case MF_OP_RANDOM:
    case MF_OP_DROPOUT:
        return (cost_rates){{1, 3}, 0, 12, 0};
    default:
        return moved;
    }
}

/* ---- convolutions ----------------------------------------------------------------------------------------- */

static const mf_tensor *weights_of(const cpu_kernel *k)
{
    return k->op->kind == MF_OP_CONV_GRAD_WEIGHTS ? cpu_out(k, 0) : cpu_in(k, 1);
}

static cost_rates conv_rates_of(const cpu_kernel *k, const mf_tensor *weights)
{
    const mf_window *w = &k->op->attr.window;
    bool one = true, apart = w->groups > 1 && weights->shape.dim[weights->shape.rank - 2] == 1;
    for (uint32_t i = 0; i < w->dims; i++)
        one &= w->kernel[i] == 1;
    int way = k->op->kind == MF_OP_CONV ? 0 : k->op->kind == MF_OP_CONV_GRAD_DATA ? 1 : 2;
    return conv_rates[apart ? 2 : one ? 1 : 0][way];
}

/* Channels are computed by the vector, whether they fill it or not. */
static double filled(const cpu_kernel *k, const mf_tensor *weights)
{
    const mf_shape *s = &weights->shape;
    if (k->op->attr.window.groups > 1)
        return 1;
    int64_t n = s->dim[k->op->kind == MF_OP_CONV_GRAD_DATA ? s->rank - 2 : s->rank - 1];
    return n > 0 ? (double)((n + VECTOR - 1) / VECTOR * VECTOR) / (double)n : 1;
}

/* ---- recurrent layers ------------------------------------------------------------------------------------- */

/* What each further time step of a recurrent kernel costs, however few the samples: its start, and the recurrent matrix
 * read again (two layers of 128 units: 4 to 13 us a step, by steps of 8 to 32 samples and by pieces; here 7.5). One
 * thread pays less than half of that: two GRUs of 64 and 48 units in 2, 4, 8, 16 pieces took 1.01, 1.12, 1.32, 1.96
 * times the whole, where 1.14, 1.38, 1.86, 2.82 were predicted with the price of two. */
static double steps_us(const cpu_kernel *k)
{
    uint32_t u = 1;
    switch (k->op->kind) {
    case MF_OP_LSTM_GRAD:
        u = 4;
        break;
    case MF_OP_GRU_GRAD:
        u = 3;
        break;
    case MF_OP_SIMPLE_RNN_GRAD:
        u = 2;
        break;
    case MF_OP_LSTM:
    case MF_OP_GRU:
    case MF_OP_SIMPLE_RNN:
        break;
    default:
        return 0;
    }
    bool grad = u > 1; /* z is [samples, time, gates] */
    const mf_tensor *z = grad ? cpu_out(k, 0) : cpu_in(k, 0), *matrix = cpu_in(k, u);
    if (!z || !matrix || z->shape.rank != 3 || matrix->shape.rank != 2)
        return 0;
    bool by_gate = k->op->attr.rnn.recurrent_dropout > 0;
    double starts = by_gate ? (double)matrix->shape.dim[1] / (double)matrix->shape.dim[0] : 1;
    double bytes = (double)mf_shape_count(&matrix->shape) * 4;
    if (k->backend->base.threads == 1) /* nobody waits for anybody */
        return ((double)z->shape.dim[1] - 1) * (0.4 * starts + bytes / 100e3);
    return ((double)z->shape.dim[1] - 1) * (starts + bytes / 40e3);
}

/* ---- the estimate ----------------------------------------------------------------------------------------- */

static double per(double amount, double rate)
{
    return rate > 0 ? amount / (rate * 1e3) : 0;
}

static double fetched(double bytes)
{
    return bytes > CACHED ? 2 * bytes - CACHED : bytes;
}

/* Memory is the same for all: beyond two threads more of them help little. */
static double streams_of(double threads)
{
    return threads > 2 ? 2 + threads / 4 : threads;
}

double cpu_estimate_us(const cpu_kernel *k, bool reference)
{
    double flops = 0, bytes = 0, weight_bytes = 0, threads = k->backend->base.threads;
    mf_op_cost(k->graph, k->op, &flops, &bytes);
    if (reference)
        return 1 + flops * 1e-3 + bytes * 2e-3;
    if (k->op > k->graph->ops && cpu_relu_follows(k->graph, k->op - 1, k->op))
        return 0; /* becomes part of the kernel before it */
    cost_rates r = rates_of(k->op);
    bool conv =
        k->op->kind == MF_OP_CONV || k->op->kind == MF_OP_CONV_GRAD_DATA || k->op->kind == MF_OP_CONV_GRAD_WEIGHTS;
    const mf_tensor *weights = conv ? weights_of(k) : NULL;
    if (weights) {
        r = conv_rates_of(k, weights);
        flops *= filled(k, weights);
        weight_bytes = (double)(mf_shape_count(&weights->shape) * mf_dtype_bytes(weights->dtype));
    }
    double streams = streams_of(threads);
    return r.start[threads > 1] + steps_us(k) + per(flops, r.flops * threads) +
           per(fetched(bytes - weight_bytes), r.data * streams) + per(weight_bytes, r.weights * streams);
}

double cpu_copies_us(const cpu_backend *backend, uint64_t bytes)
{
    unsigned threads = backend->base.threads;
    return moved.start[threads > 1] + per(fetched((double)bytes), moved.data * streams_of(threads));
}
