/*
 * lower_loss.c: losses and metrics, from the file's compile settings, the options, or by assumption.
 *
 * Keras on TensorFlow lets softmax and sigmoid outputs remember their logits, and cross-entropy uses them: here the
 * loss looks at the operation that made the prediction. Losses are computed in float32 at least. Sums are divided by
 * the whole batch's denominators at run time, so that pieces add up to the same loss.
 */
#include "model/lower/lower_inner.h"

#include "base/error.h"
#include "model/lower/lower_compile.h"
#include "model/lower/lower_keys.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* "MeanSquaredError", "mean_squared_error" and "MSE" are written alike. A package stays: "mine>mse" is not Keras's. */
void mf_plain_name(const char *name, char *text, size_t bytes)
{
    size_t n = 0;
    for (const char *p = name; *p && n + 1 < bytes; p++)
        if (*p != '_' && *p != '-')
            text[n++] = (char)tolower((unsigned char)*p);
    text[n] = 0;
}

static const struct {
    const char *name;
    mf_loss loss;
} loss_names[] = {{"mse", MF_LOSS_MSE},
                  {"meansquarederror", MF_LOSS_MSE},
                  {"mae", MF_LOSS_MAE},
                  {"meanabsoluteerror", MF_LOSS_MAE},
                  {"mape", MF_LOSS_MAPE},
                  {"meanabsolutepercentageerror", MF_LOSS_MAPE},
                  {"msle", MF_LOSS_MSLE},
                  {"meansquaredlogarithmicerror", MF_LOSS_MSLE},
                  {"huber", MF_LOSS_HUBER},
                  {"huberloss", MF_LOSS_HUBER},
                  {"logcosh", MF_LOSS_LOG_COSH},
                  {"poisson", MF_LOSS_POISSON},
                  {"kldivergence", MF_LOSS_KL},
                  {"kld", MF_LOSS_KL},
                  {"kl", MF_LOSS_KL},
                  {"kullbackleiblerdivergence", MF_LOSS_KL},
                  {"hinge", MF_LOSS_HINGE},
                  {"squaredhinge", MF_LOSS_SQUARED_HINGE},
                  {"categoricalhinge", MF_LOSS_CATEGORICAL_HINGE},
                  {"binarycrossentropy", MF_LOSS_BCE},
                  {"bce", MF_LOSS_BCE},
                  {"categoricalcrossentropy", MF_LOSS_CCE},
                  {"cce", MF_LOSS_CCE},
                  {"sparsecategoricalcrossentropy", MF_LOSS_SCCE},
                  {"scce", MF_LOSS_SCCE},
                  {"binaryfocalcrossentropy", MF_LOSS_BINARY_FOCAL},
                  {"categoricalfocalcrossentropy", MF_LOSS_CATEGORICAL_FOCAL},
                  {"cosinesimilarity", MF_LOSS_COSINE}};

static bool find_loss(const char *name, mf_loss *loss)
{
    char plain[64];
    mf_plain_name(name, plain, sizeof plain);
    for (size_t i = 0; i < sizeof loss_names / sizeof *loss_names; i++)
        if (strcmp(loss_names[i].name, plain) == 0) {
            *loss = loss_names[i].loss;
            return true;
        }
    return false;
}

const char *mf_loss_name(mf_loss loss)
{
    static const char *const names[] = {
#define X(id, text) text,
        MF_LOSS_LIST(X)
#undef X
    };
    return (unsigned)loss < MF_LOSS_COUNT ? names[loss] : "?";
}

/* ---- which loss ---- */

const char *mf_output_name(const mf_lowering *lo, uint32_t output)
{
    const mf_model *model = lo->root;
    return model->output_keys ? model->output_keys[output] : model->layers[model->outputs[output].layer].name;
}

/* A setting per output: one for all, a list by position, or an object by name. */
const mf_json *mf_setting_of_output(const mf_lowering *lo, const mf_json *value, uint32_t output, bool list_is_one)
{
    if (mf_json_is_null(value))
        return NULL;
    if (value->type == MF_JSON_ARRAY && !list_is_one)
        return mf_json_at(value, output);
    if (value->type == MF_JSON_OBJECT && !mf_json_get(value, "class_name")) {
        const mf_json *named = mf_json_get(value, mf_output_name(lo, output));
        return named || lo->root->output_count > 1 ? named : value->first;
    }
    return value;
}

/* Softmax and sigmoid outputs ask for cross-entropy, anything else for squares. */
static mf_loss assumed_loss(const mf_lowering *lo, uint32_t pred)
{
    const mf_graph *g = lo->b.graph;
    uint32_t op = g->tensors[pred].producer;
    if (op != MF_NONE && g->ops[op].kind == MF_OP_CAST && g->tensors[g->ops[op].in[0]].producer != MF_NONE)
        op = g->tensors[g->ops[op].in[0]].producer;
    if (op != MF_NONE && g->ops[op].kind == MF_OP_SOFTMAX)
        return MF_LOSS_SCCE;
    if (op != MF_NONE && g->ops[op].kind == MF_OP_UNARY && g->ops[op].attr.unary.function == MF_UNARY_SIGMOID)
        return MF_LOSS_BCE;
    return MF_LOSS_MSE;
}

static uint32_t reduction(const char *name)
{
    if (strcmp(name, "sum") == 0)
        return 1;
    return strcmp(name, "mean_with_sample_weight") == 0 ? 2 : 0;
}

static void loss_settings(const mf_json *config, mf_loss loss, mf_attr *attr)
{
    attr->loss.weight = 1;
    attr->loss.delta = mf_json_get_number(config, "delta", 1);
    attr->loss.alpha = mf_json_get_number(config, "alpha", 0.25);
    attr->loss.gamma = mf_json_get_number(config, "gamma", 2);
    attr->loss.label_smoothing = mf_json_get_number(config, "label_smoothing", 0);
    attr->loss.balanced = loss == MF_LOSS_CATEGORICAL_FOCAL || mf_json_get_bool(config, "apply_class_balancing", false);
    attr->loss.reduction = reduction(mf_json_get_string(config, "reduction", "sum_over_batch_size"));
    attr->loss.function = loss;
}

typedef struct chosen { /* the loss of one output */
    mf_attr attr;
    bool found, from_logits;
    bool ignores; /* rows whose label is `ignored` do not count */
    double ignored;
    uint32_t slot; /* of its own value in the loss variable; 0: it is the only loss */
} chosen;

/* False when the output has no loss or it is not supported (then the builder has failed, unless predicting). */
static bool resolve_loss(mf_lowering *lo, uint32_t output, uint32_t pred, chosen *choice)
{
    mf_graph *g = lo->b.graph;
    const mf_json *spec = mf_setting_of_output(lo, mf_json_get(lo->root->compile, "loss"), output, false);
    const char *name = lo->options->loss;
    const mf_json *config = NULL;
    mf_loss loss;
    if (!name && spec) {
        name = mf_config_name(spec);
        config = mf_json_get(spec, "config");
    }
    if (!name && mf_json_get(lo->root->compile, "loss") && lo->root->output_count > 1)
        return false; /* compiled without a loss for this output */
    if (!name) {
        loss = assumed_loss(lo, pred);
        g->loss_assumed = true;
    } else if (!find_loss(name, &loss)) {
        if (lo->options->mode != MF_MODE_PREDICT)
            mf_build_fail(&lo->b, MEMFIT_UNSUPPORTED,
                          "loss '%s' is not known\nName one with --loss, e.g. mse, binary_crossentropy, "
                          "sparse_categorical_crossentropy",
                          name);
        return false;
    }
    const mf_json *key = name ? mf_dropped_key(MF_KEYS_LOSS, name, config) : NULL;
    char text[160];
    if (key && lo->options->mode != MF_MODE_PREDICT) {
        mf_build_fail(&lo->b, MEMFIT_UNSUPPORTED, "loss '%s': %s is not supported\nName another with --loss", name,
                      mf_key_text(key, text, sizeof text));
        return false;
    }
    const mf_json *ignored = mf_json_get(config, "ignore_class");
    loss_settings(config, loss, &choice->attr);
    choice->from_logits = mf_json_get_bool(config, "from_logits", false);
    choice->ignores = loss == MF_LOSS_SCCE && !mf_json_is_null(ignored);
    choice->ignored = mf_json_number(ignored, 0);
    if (!g->loss_name)
        g->loss_name = mf_loss_name(loss);
    return true;
}

/* ---- logits ---- */

/* Softmax over any axis counts, as the loss takes its own over the last; its variants do not. */
static bool keeps_logits(const mf_op *o, bool *sigmoid)
{
    *sigmoid = o->kind == MF_OP_UNARY && o->attr.unary.function == MF_UNARY_SIGMOID;
    return *sigmoid ||
           (o->kind == MF_OP_SOFTMAX && !o->attr.softmax.log && !o->attr.softmax.causal && !o->attr.softmax.sparse);
}

/* The input of the softmax or sigmoid that made `pred`, or MF_NONE when it was neither. Keras takes these logits
 * whichever cross-entropy asks for them: softmax with binary cross-entropy is sigmoid cross-entropy of softmax's input,
 * one sigmoid unit with the categorical one costs nothing. A cast, as under mixed precision, makes Keras forget them;
 * here it is looked through where activation and loss belong together, which gives the same mathematics without the
 * rounding. */
static uint32_t logits_of(const mf_graph *g, uint32_t pred, bool for_sigmoid)
{
    uint32_t op = g->tensors[pred].producer;
    bool cast = g->tensors[pred].dtype != MF_F32, sigmoid; /* losses are cast to float32 */
    for (; op != MF_NONE && g->ops[op].kind == MF_OP_CAST; cast = true)
        op = g->tensors[g->ops[op].in[0]].producer;
    if (op == MF_NONE || !keeps_logits(&g->ops[op], &sigmoid))
        return MF_NONE;
    const mf_op *o = &g->ops[op];
    bool fits = sigmoid == for_sigmoid && (sigmoid || o->attr.softmax.axis + 1 == g->tensors[o->out[0]].shape.rank);
    return fits || !cast ? o->in[0] : MF_NONE;
}

static uint32_t at_least_f32(mf_build *b, uint32_t x)
{
    mf_dtype dtype = mf_g_dtype(b, x);
    return dtype == MF_F64 ? x : mf_g_cast(b, x, MF_F32);
}

/* What the loss reads: logits for the cross-entropies where they are to be had. */
static uint32_t loss_operand(mf_lowering *lo, uint32_t pred, bool from_logits, mf_attr *attr)
{
    mf_build *b = &lo->b;
    mf_loss loss = attr->loss.function;
    bool sigmoid = loss == MF_LOSS_BCE, soft = loss == MF_LOSS_CCE || loss == MF_LOSS_SCCE;
    uint32_t rank = mf_g_shape(b, pred).rank;
    attr->loss.axis = rank ? rank - 1 : 0;
    if (loss == MF_LOSS_BINARY_FOCAL && from_logits)
        return mf_g_unary(b, MF_UNARY_SIGMOID, 0, 0, at_least_f32(b, pred));
    if (loss == MF_LOSS_CATEGORICAL_FOCAL && from_logits)
        return mf_g_softmax(b, at_least_f32(b, pred), attr->loss.axis, false);
    if (!sigmoid && !soft)
        return at_least_f32(b, pred);
    uint32_t logits = logits_of(b->graph, pred, sigmoid); /* found, they go before what from_logits claims */
    if (logits == MF_NONE && !from_logits)
        return at_least_f32(b, pred);
    logits = logits == MF_NONE ? pred : logits;
    attr->loss.function = loss == MF_LOSS_BCE   ? MF_LOSS_BCE_LOGITS
                          : loss == MF_LOSS_CCE ? MF_LOSS_CCE_LOGITS
                                                : MF_LOSS_SCCE_LOGITS;
    return at_least_f32(b, logits);
}

static bool sparse(mf_loss loss)
{
    return loss == MF_LOSS_SCCE || loss == MF_LOSS_SCCE_LOGITS;
}

/* ---- feeds ---- */

static uint32_t target_feed(mf_lowering *lo, uint32_t output, uint32_t pred, mf_loss loss)
{
    mf_shape shape = mf_g_shape(&lo->b, pred);
    if (sparse(loss) && shape.rank > 1)
        shape.rank--;
    return mf_feed_make(&lo->b, mf_output_name(lo, output), sparse(loss) ? MF_I32 : MF_F32, shape, 1, output);
}

/* One number for each sample, or for each step of a sequence. */
static uint32_t weights_feed(mf_lowering *lo, uint32_t output, uint32_t pred)
{
    mf_shape shape = mf_shape1(lo->b.graph->batch), p = mf_g_shape(&lo->b, pred);
    if (lo->options->token_weights && p.rank > 2) {
        shape = p;
        shape.rank--;
    }
    return mf_feed_make(&lo->b, mf_output_name(lo, output), MF_F32, shape, 2, output);
}

static double weight_of(const mf_lowering *lo, uint32_t output)
{
    const mf_json *value = mf_setting_of_output(lo, mf_json_get(lo->root->compile, "loss_weights"), output, false);
    return mf_json_number(value, 1);
}

/* The sum of all losses, then each output's own where several have one. */
static void loss_variable(mf_lowering *lo, uint32_t count)
{
    mf_variable v = {.name = "loss",
                     .path = "",
                     .role = MF_VAR_LOSS,
                     .kind = MEMFIT_KIND_OTHER,
                     .dtype = MF_F32,
                     .shape = count > 1 ? mf_shape1(1 + count) : (mf_shape){0},
                     .parameter = MF_NONE};
    lo->b.graph->loss_variable = mf_g_variable(&lo->b, &v);
}

/* The mask that goes with a prediction, one number a row, or MF_NONE. */
static uint32_t row_mask(mf_lowering *lo, uint32_t output, uint32_t pred)
{
    uint32_t mask = mf_mask_truth(&lo->b, lo->output_masks[output]);
    mf_shape p = mf_g_shape(&lo->b, pred), m = mf_g_shape(&lo->b, mask);
    if (mask == MF_NONE || p.rank != m.rank + 1)
        return MF_NONE;
    for (uint32_t i = 0; i < m.rank; i++)
        if (p.dim[i] != m.dim[i])
            return MF_NONE;
    return mf_g_cast(&lo->b, mask, MF_F32);
}

/* The mean with sample weights is divided by the weights of the rows that count; LOSS divides by those of the samples. */
static uint32_t weights_that_count(mf_build *b, uint32_t mask, uint32_t weights, const mf_shape *one_each)
{
    mf_shape m = mf_g_shape(b, mask);
    uint32_t axes = (1u << m.rank) - 1, each = mask, all;
    if (weights != MF_NONE) {
        const uint32_t rank = mf_g_shape(b, weights).rank;
        each = mf_g_binary(b, MF_MUL, mask, rank == m.rank ? weights : mf_g_view(b, weights, *one_each));
        all = mf_g_reduce(b, MF_REDUCE_SUM, weights, (1u << rank) - 1, false);
    } else
        all = mf_g_fill(b, MF_F32, (mf_shape){0}, (double)m.dim[0]);
    uint32_t counted = mf_g_reduce(b, MF_REDUCE_SUM, each, axes, false);
    uint32_t share = mf_g_binary(b, MF_DIV, all, mf_g_unary(b, MF_UNARY_CLIP, 1e-7, INFINITY, counted));
    b->graph->uses_batch_norm = true;
    return mf_g_binary(b, MF_MUL, each, share);
}

/* Keras weighs rows that count by total / counted, so that the mean is over these; with the sample weights on top. The
 * count is that of this graph's batch: pieces of a masked batch change the mathematics. reduction_kind: 1 sum, 2 mean
 * with sample weights. */
static uint32_t masked_weights(mf_lowering *lo, uint32_t mask, uint32_t weights, uint32_t reduction_kind)
{
    mf_build *b = &lo->b;
    mf_shape m = mf_g_shape(b, mask), one_each = {.rank = m.rank, .dim = {m.dim[0]}};
    if (mask == MF_NONE)
        return weights;
    for (uint32_t i = 1; i < m.rank; i++)
        one_each.dim[i] = 1;
    uint32_t scaled = mask;
    if (reduction_kind == 2)
        return weights_that_count(b, mask, weights, &one_each);
    if (reduction_kind != 1) {
        uint32_t valid = mf_g_reduce(b, MF_REDUCE_SUM, mask, (1u << m.rank) - 1, false);
        valid = mf_g_unary(b, MF_UNARY_CLIP, 1, INFINITY, valid);
        uint32_t share = mf_g_unary(b, MF_UNARY_AFFINE, (double)mf_shape_count(&m), 0,
                                    mf_g_unary(b, MF_UNARY_RECIPROCAL, 0, 0, valid));
        scaled = mf_g_binary(b, MF_MUL, mask, share);
        b->graph->uses_batch_norm = true;
    }
    if (weights == MF_NONE)
        return scaled;
    const bool each = mf_g_shape(b, weights).rank == m.rank;
    return mf_g_binary(b, MF_MUL, scaled, each ? weights : mf_g_view(b, weights, one_each));
}

/* Rows with the ignored label: 0 in the mask, and label 0, which every model has, in place of theirs. Labels are whole
 * numbers, so their distance from the ignored one, cut off at 1, tells. Keras sets the same mask on the values. */
static uint32_t without_ignored(mf_lowering *lo, double ignored, uint32_t *target, uint32_t mask)
{
    mf_build *b = &lo->b;
    mf_dtype dtype = mf_g_dtype(b, *target);
    uint32_t label = mf_g_cast(b, *target, MF_F32);
    uint32_t valid = mf_g_unary(b, MF_UNARY_ABS, 0, 0, mf_g_unary(b, MF_UNARY_AFFINE, 1, -ignored, label));
    valid = mf_g_unary(b, MF_UNARY_CLIP, 0, 1, valid);
    *target = mf_g_cast(b, mf_g_binary(b, MF_MUL, label, valid), dtype);
    return mask == MF_NONE ? valid : mf_g_binary(b, MF_MUL, mask, valid);
}

/* ---- chunks ---- */

/* Weights with one number for each of so many rows. */
static uint32_t by_row(mf_build *b, uint32_t weights, int64_t rows)
{
    mf_shape shape = mf_g_shape(b, weights);
    int64_t count = (int64_t)mf_shape_count(&shape);
    if (weights == MF_NONE || count < 1)
        return MF_NONE;
    uint32_t each = mf_g_view(b, weights, mf_shape2(count, 1));
    return mf_g_view(b, mf_g_broadcast(b, each, mf_shape2(count, rows / count), 1), mf_shape1(rows));
}

static uint32_t target_rows(mf_build *b, uint32_t target, int64_t rows)
{
    mf_shape shape = mf_g_shape(b, target);
    int64_t count = (int64_t)mf_shape_count(&shape);
    return mf_g_view(b, target, count == rows ? mf_shape1(rows) : mf_shape2(rows, count / rows));
}

/* Can the last layer and this loss run in chunks? Notes what there is to gain. */
static bool find_head(mf_lowering *lo, uint32_t operand, uint32_t pred, mf_loss loss, mf_head *head)
{
    mf_graph *g = lo->b.graph;
    const char *why = "the loss is not a softmax cross-entropy";
    bool soft = loss == MF_LOSS_CCE_LOGITS || loss == MF_LOSS_SCCE_LOGITS;
    if (!mf_build_ok(&lo->b) || !soft || !mf_head_find(&lo->b, operand, pred, head, &why)) {
        g->whole_why = why;
        return false;
    }
    const mf_shape *shape = &g->tensors[operand].shape;
    uint64_t count = mf_shape_count(shape), bytes = count * mf_dtype_bytes(g->tensors[operand].dtype);
    if (bytes > g->logits_bytes) {
        g->logits_bytes = bytes;
        g->logits_rows = (int64_t)count / shape->dim[shape->rank - 1];
    }
    return true;
}

/* The loss and the metrics of an output by chunks of rows, if that is asked for; `in` are the operands of LOSS. */
static bool lower_in_chunks(mf_lowering *lo, uint32_t output, uint32_t pred, const mf_attr *with, const uint32_t *in,
                            uint32_t target, uint32_t weights, uint32_t mask)
{
    mf_build *b = &lo->b;
    mf_head head;
    if (!find_head(lo, in[0], pred, with->loss.function, &head))
        return false;
    mf_shape x = mf_g_shape(b, head.x), shape = mf_g_shape(b, in[0]);
    int64_t rows = (int64_t)mf_shape_count(&shape) / shape.dim[shape.rank - 1], each;
    head.chunks = lo->options->chunks;
    uint32_t chunks = mf_head_chunks(rows, head.chunks, &each);
    if (chunks < 2 || (int64_t)mf_shape_count(&x) / x.dim[x.rank - 1] != rows)
        return false;
    if (chunks > b->graph->chunks)
        b->graph->chunks = chunks;
    head.x = mf_g_view(b, head.x, mf_shape2(rows, x.dim[x.rank - 1]));
    head.loss = *with;
    head.loss.loss.rows_per_sample = rows / b->graph->batch;
    head.target = target_rows(b, in[1], rows);
    head.weights = by_row(b, in[2], rows);
    head.loss_tensor = in[3];
    mf_lower_head_metrics(lo, output, target_rows(b, target, rows), by_row(b, weights, rows), by_row(b, mask, rows),
                          &head);
    if (mf_build_ok(b))
        mf_head_add(b, &head);
    return true;
}

static void lower_output(mf_lowering *lo, uint32_t output, const chosen *choice)
{
    mf_build *b = &lo->b;
    uint32_t pred = b->graph->outputs[output], loss = mf_g_use(b, b->graph->loss_variable), weights = MF_NONE;
    mf_attr with = choice->attr;
    with.loss.weight = weight_of(lo, output);
    with.loss.slot = choice->slot;
    uint32_t operand = loss_operand(lo, pred, choice->from_logits, &with);
    uint32_t target = target_feed(lo, output, pred, with.loss.function), counted = target;
    if (lo->options->sample_weights)
        weights = weights_feed(lo, output, pred);
    uint32_t mask = row_mask(lo, output, pred), rows = mask;
    if (choice->ignores)
        rows = without_ignored(lo, choice->ignored, &counted, mask);
    uint32_t in[4] = {operand, counted, masked_weights(lo, rows, weights, with.loss.reduction), loss};
    if (lower_in_chunks(lo, output, pred, &with, in, target, weights, mask))
        return;
    mf_g_op_in_place(b, MF_OP_LOSS, &with, 4, in, 1, &loss);
    mf_lower_metric_ops(lo, output, pred, target, weights, mask);
}

void mf_lower_compile(mf_lowering *lo)
{
    mf_build *b = &lo->b;
    mf_graph *g = b->graph;
    chosen *choices = MF_NEW_ARRAY(&lo->scratch, chosen, g->output_count + 1);
    if (!choices) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the losses");
        return;
    }
    b->layer = 0;
    b->phase = MF_LOSS_PHASE;
    g->chunks = 1;
    uint32_t losses = 0;
    for (uint32_t i = 0; i < g->output_count && mf_build_ok(b); i++)
        if ((choices[i].found = resolve_loss(lo, i, g->outputs[i], &choices[i])))
            choices[i].slot = ++losses;
    for (uint32_t i = 0; i < g->output_count && losses == 1; i++)
        choices[i].slot = 0;
    loss_variable(lo, losses);
    for (uint32_t i = 0; i < g->output_count && mf_build_ok(b); i++)
        if (choices[i].found)
            mf_lower_metric_variables(lo, i, choices[i].attr.loss.function);
    for (uint32_t i = 0; i < g->output_count && mf_build_ok(b) && losses > 1; i++)
        if (choices[i].found)
            mf_lower_loss_mean(lo, i, choices[i].slot);
    mf_optimizer_settings settings;
    bool train = mf_lower_optimizer(lo, &settings);
    if (g->mode == MF_MODE_PREDICT || !mf_build_ok(b)) {
        g->loss_variable = MF_NONE;
        return;
    }
    if (!losses) {
        mf_build_fail(b, MEMFIT_INVALID, "the model has no loss\nName one with --loss");
        return;
    }
    b->when = MF_FIRST_PIECE;
    mf_g_clear(b, mf_g_use(b, g->loss_variable), 0);
    b->when = MF_ALWAYS;
    for (uint32_t i = 0; i < g->output_count && mf_build_ok(b); i++)
        if (choices[i].found)
            lower_output(lo, i, &choices[i]);
    mf_activity_losses(lo);
    if (g->mode == MF_MODE_TRAIN && train) {
        mf_optimizer_step(b, &settings);
    } else {
        mf_heads_append(b, NULL);
        mf_regularizer_losses(b);
    }
    mf_lower_loss_means(lo);
}
