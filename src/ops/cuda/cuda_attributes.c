/* cuda_attributes.c: an operation's attributes as a constant of the compiler's language. Numbers go by their bits. */
#include "ops/cuda/cuda_spec.h"

#include <string.h>

static void number(cuda_spec *s, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    cuda_say(s, "NUMBER(0x%016llxull), ", (unsigned long long)bits);
}

static void numbers(cuda_spec *s, const double *v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        number(s, v[i]);
}

static void whole(cuda_spec *s, const int64_t *v, unsigned n)
{
    cuda_say(s, "{");
    for (unsigned i = 0; i < n; i++)
        cuda_say(s, "%lld, ", (long long)v[i]);
    cuda_say(s, "}, ");
}

static void begin(cuda_spec *s, const char *member)
{
    cuda_say(s, "static constexpr mf_attr attr = {.%s = {", member);
}

static void say_update(cuda_spec *s, const mf_update_attr *u)
{
    begin(s, "update");
    cuda_say(s, "(mf_optimizer)%d, ", (int)u->optimizer);
    numbers(s,
            (double[]){u->momentum, u->rho, u->beta_1, u->beta_2, u->epsilon, u->weight_decay, u->l1, u->l2,
                       u->l2_shrinkage, u->learning_rate_power, u->initial, u->relative_step, u->clip_threshold,
                       u->epsilon_2, u->beta},
            15);
    cuda_say(s, "%d, %d, %d, %d", u->nesterov, u->centered, u->amsgrad, u->has_weight_decay);
}

static void say_window(cuda_spec *s, const mf_window *w)
{
    begin(s, "window");
    cuda_say(s, "%u, ", w->dims);
    whole(s, w->kernel, 3);
    whole(s, w->stride, 3);
    whole(s, w->dilation, 3);
    whole(s, w->before, 3);
    whole(s, w->after, 3);
    cuda_say(s, "%lld, %d", (long long)w->groups, w->count_padding);
}

static void say_loss(cuda_spec *s, const mf_attr *a)
{
    begin(s, "loss");
    cuda_say(s, "(mf_loss)%d, ", (int)a->loss.function);
    numbers(s, (double[]){a->loss.weight, a->loss.delta, a->loss.alpha, a->loss.gamma, a->loss.label_smoothing}, 5);
    cuda_say(s, "%u, %u, %d, %lld, %lld, %u", a->loss.axis, a->loss.reduction, a->loss.balanced,
             (long long)a->loss.rows_per_sample, (long long)a->loss.first_row, a->loss.slot);
}

static void say_rnn(cuda_spec *s, const mf_attr *a)
{
    begin(s, "rnn");
    cuda_say(s, "%d, %d, %d, (mf_unary)%d, (mf_unary)%d, ", a->rnn.backwards, a->rnn.reset_after, a->rnn.sequences,
             (int)a->rnn.activation, (int)a->rnn.recurrent_activation);
    number(s, a->rnn.recurrent_dropout);
    cuda_say(s, "%uu", a->rnn.key);
}

/* Kinds of the update and the loss; false: another kind. */
static bool say_training(cuda_spec *s, const mf_attr *a)
{
    switch (s->op->kind) {
    case MF_OP_LOSS:
    case MF_OP_LOSS_GRAD:
        say_loss(s, a);
        return true;
    case MF_OP_METRIC:
        begin(s, "metric");
        cuda_say(s, "(mf_metric)%d, ", (int)a->metric.function);
        number(s, a->metric.threshold);
        cuda_say(s, "%u, %u, %d", a->metric.k, a->metric.output, a->metric.weighted);
        return true;
    case MF_OP_REGULARIZE:
        begin(s, "regularize");
        numbers(s, (double[]){a->regularize.l1, a->regularize.l2}, 2);
        return true;
    case MF_OP_CLIP:
    case MF_OP_CLIP_GLOBAL:
        begin(s, "clip");
        numbers(s, (double[]){a->clip.value, a->clip.norm}, 2);
        return true;
    case MF_OP_UPDATE:
        say_update(s, &a->update);
        return true;
    case MF_OP_EMA:
        begin(s, "ema");
        number(s, a->ema.momentum);
        return true;
    case MF_OP_MOVING_AVERAGE:
        begin(s, "moving");
        number(s, a->moving.momentum);
        return true;
    default:
        return false;
    }
}

static bool say_pointwise(cuda_spec *s, const mf_attr *a)
{
    switch (s->op->kind) {
    case MF_OP_UNARY:
    case MF_OP_UNARY_GRAD:
    case MF_OP_MASK:
    case MF_OP_MASK_GRAD:
        begin(s, "unary");
        cuda_say(s, "(mf_unary)%d, ", (int)a->unary.function);
        numbers(s, (double[]){a->unary.alpha, a->unary.beta}, 2);
        cuda_say(s, "%d", a->unary.from_output);
        return true;
    case MF_OP_BINARY:
    case MF_OP_BINARY_GRAD:
        begin(s, "binary");
        cuda_say(s, "(mf_binary)%d, %u", (int)a->binary.function, a->binary.side);
        return true;
    case MF_OP_COMPARE:
        begin(s, "compare");
        cuda_say(s, "(mf_compare)%d, ", (int)a->compare.function);
        number(s, a->compare.value);
        return true;
    case MF_OP_SELECT:
        begin(s, "select");
        numbers(s, (double[]){a->select.yes, a->select.no}, 2);
        cuda_say(s, "%d", a->select.causal);
        return true;
    case MF_OP_BROADCAST:
        begin(s, "broadcast");
        number(s, a->broadcast.scale);
        return true;
    case MF_OP_FILL:
        begin(s, "fill");
        number(s, a->fill.value);
        return true;
    case MF_OP_RANDOM:
    case MF_OP_DROPOUT:
        begin(s, "random");
        numbers(s, (double[]){a->random.rate, a->random.mean, a->random.scale}, 3);
        cuda_say(s, "%u, %uu, %uu", a->random.distribution, a->random.key, a->random.shared_axes);
        return true;
    case MF_OP_RESIZE:
    case MF_OP_RESIZE_GRAD:
        begin(s, "resize");
        cuda_say(s, "%u, %d, %d", a->resize.method, a->resize.align_corners, a->resize.half_pixel);
        return true;
    case MF_OP_AUGMENT:
        begin(s, "augment");
        cuda_say(s, "%u, {", a->augment.function);
        numbers(s, a->augment.a, 8);
        cuda_say(s, "}, %uu", a->augment.key);
        return true;
    default:
        return false;
    }
}

static bool say_other(cuda_spec *s, const mf_attr *a)
{
    switch (s->op->kind) {
    case MF_OP_MATMUL:
        begin(s, "matmul");
        cuda_say(s, "%d, %d, ", a->matmul.trans_a, a->matmul.trans_b);
        number(s, a->matmul.scale);
        return true;
    case MF_OP_REDUCE:
    case MF_OP_REDUCE_GRAD:
        begin(s, "reduce");
        cuda_say(s, "(mf_reduce)%d, %uu, %d", (int)a->reduce.function, a->reduce.axes, a->reduce.keep);
        return true;
    case MF_OP_SOFTMAX:
    case MF_OP_SOFTMAX_GRAD:
        begin(s, "softmax");
        cuda_say(s, "%u, %d, %d, %d", a->softmax.axis, a->softmax.log, a->softmax.causal, a->softmax.sparse);
        return true;
    case MF_OP_ATTENTION:
    case MF_OP_ATTENTION_GRAD:
        begin(s, "attention");
        numbers(s, (double[]){a->attention.scale, a->attention.masked, a->attention.rate}, 3);
        cuda_say(s, "%uu, %uu, %d, %d", a->attention.key, a->attention.causal, a->attention.zeroed,
                 a->attention.steps_first);
        return true;
    case MF_OP_PAD:
        begin(s, "pad");
        whole(s, a->pad.before, MF_MOST_DIMS);
        whole(s, a->pad.after, MF_MOST_DIMS);
        whole(s, a->pad.between, MF_MOST_DIMS);
        number(s, a->pad.value);
        cuda_say(s, "%u", a->pad.mode);
        return true;
    case MF_OP_CONV:
    case MF_OP_CONV_GRAD_DATA:
    case MF_OP_CONV_GRAD_WEIGHTS:
    case MF_OP_POOL_MAX:
    case MF_OP_POOL_MAX_GRAD:
    case MF_OP_POOL_AVG:
    case MF_OP_POOL_AVG_GRAD:
        say_window(s, &a->window);
        return true;
    case MF_OP_BATCH_NORM:
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_BATCH_NORM_INFER:
    case MF_OP_BATCH_NORM_INFER_GRAD:
    case MF_OP_LAYER_NORM:
    case MF_OP_LAYER_NORM_GRAD:
        begin(s, "norm");
        number(s, a->norm.epsilon);
        cuda_say(s, "%u, %u, %d, (mf_unary)%d", a->norm.axes, a->norm.groups, a->norm.rms, (int)a->norm.activation);
        return true;
    case MF_OP_LSTM:
    case MF_OP_LSTM_GRAD:
    case MF_OP_GRU:
    case MF_OP_GRU_GRAD:
    case MF_OP_SIMPLE_RNN:
    case MF_OP_SIMPLE_RNN_GRAD:
        say_rnn(s, a);
        return true;
    default:
        return false;
    }
}

void cuda_say_attributes(cuda_spec *s)
{
    const mf_attr *a = &s->op->attr;
    if (say_pointwise(s, a) || say_training(s, a) || say_other(s, a))
        cuda_say(s, "}};\n");
}
