/*
 * lower_metric.c: metrics of the compile settings. Each keeps its state in a variable: (total, count) for means,
 * (true positives, false positives or negatives) for precision and recall, four rows of 200 thresholds for AUC. Metrics
 * that are not known are left out and named in graph->ignored_metrics: they cost no memory worth planning.
 */
#include "base/error.h"
#include "model/lower/lower_compile.h"
#include "model/lower/lower_keys.h"

#include <string.h>

enum { AUC_THRESHOLDS = 200, MOST_METRICS = 256 };

static const struct {
    const char *name;
    mf_metric metric;
} metric_names[] = {{"binaryaccuracy", MF_METRIC_BINARY_ACCURACY},
                    {"categoricalaccuracy", MF_METRIC_CATEGORICAL_ACCURACY},
                    {"sparsecategoricalaccuracy", MF_METRIC_SPARSE_CATEGORICAL_ACCURACY},
                    {"topkcategoricalaccuracy", MF_METRIC_TOP_K},
                    {"sparsetopkcategoricalaccuracy", MF_METRIC_SPARSE_TOP_K},
                    {"precision", MF_METRIC_PRECISION},
                    {"recall", MF_METRIC_RECALL},
                    {"mae", MF_METRIC_METRIC_MAE},
                    {"meanabsoluteerror", MF_METRIC_METRIC_MAE},
                    {"mse", MF_METRIC_METRIC_MSE},
                    {"meansquarederror", MF_METRIC_METRIC_MSE},
                    {"rmse", MF_METRIC_METRIC_RMSE},
                    {"rootmeansquarederror", MF_METRIC_METRIC_RMSE},
                    {"auc", MF_METRIC_AUC}};

static bool find_metric(const mf_lowering *lo, const char *name, uint32_t output, mf_loss loss, mf_metric *metric)
{
    char plain[64];
    mf_plain_name(name, plain, sizeof plain);
    if (strcmp(plain, "accuracy") == 0 || strcmp(plain, "acc") == 0) { /* by shapes, as Keras does */
        mf_shape pred = mf_g_shape(&lo->b, lo->b.graph->outputs[output]);
        bool single = pred.rank && pred.dim[pred.rank - 1] == 1;
        *metric = single                 ? MF_METRIC_BINARY_ACCURACY
                  : loss == MF_LOSS_SCCE ? MF_METRIC_SPARSE_CATEGORICAL_ACCURACY
                                         : MF_METRIC_CATEGORICAL_ACCURACY;
        return true;
    }
    for (size_t i = 0; i < sizeof metric_names / sizeof *metric_names; i++)
        if (strcmp(metric_names[i].name, plain) == 0) {
            *metric = metric_names[i].metric;
            return true;
        }
    return false;
}

/* Labels are numbers of classes, one for a row; other targets are as wide as the output. A metric for the one kind says
 * nothing about the other, and would read past the end of labels. */
static bool suits_targets(mf_lowering *lo, const char *name, uint32_t output, mf_loss loss, mf_metric metric)
{
    mf_shape pred = mf_g_shape(&lo->b, lo->b.graph->outputs[output]);
    bool sparse = metric == MF_METRIC_SPARSE_CATEGORICAL_ACCURACY || metric == MF_METRIC_SPARSE_TOP_K;
    bool labels = loss == MF_LOSS_SCCE || loss == MF_LOSS_SCCE_LOGITS;
    if (sparse == labels || (pred.rank && pred.dim[pred.rank - 1] == 1))
        return true;
    mf_build_fail(&lo->b, MEMFIT_UNSUPPORTED,
                  labels
                      ? "metric '%s' compares the output with numbers, and the targets of %s are labels\n"
                        "Keras cannot compute it either: take it out of compile, or ask for accuracy"
                      : "metric '%s' compares the output with labels, and the targets of %s are as wide as the output\n"
                        "Keras cannot compute it either: take it out of compile, or ask for accuracy",
                  name, mf_loss_name(loss));
    return false;
}

static void ignore(mf_lowering *lo, const char *name)
{
    mf_graph *g = lo->b.graph;
    g->ignored_metrics =
        name && g->ignored_metrics ? mf_arena_printf(&g->arena, "%s, %s", g->ignored_metrics, name) : name;
    if (!g->ignored_metrics)
        mf_build_fail(&lo->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the metrics");
}

static bool is_taken(const mf_graph *g, const char *name)
{
    for (uint32_t i = 0; i < g->variable_count; i++)
        if (g->variables[i].role == MF_VAR_METRIC && strcmp(g->variables[i].name, name) == 0)
            return true;
    return false;
}

/* As Keras tells metrics apart: by their output, a second one that is weighted by that word, others by a number. NULL
 * for lack of memory. */
static const char *unique_name(mf_lowering *lo, uint32_t output, const char *name, bool weighted)
{
    mf_graph *g = lo->b.graph;
    const char *prefix = "";
    if (lo->root->output_count > 1)
        prefix = mf_arena_printf(&g->arena, "%s_", mf_output_name(lo, output));
    const char *shown = prefix ? mf_arena_printf(&g->arena, "%s%s", prefix, name) : NULL;
    if (shown && weighted && is_taken(g, shown))
        shown = mf_arena_printf(&g->arena, "%sweighted_%s", prefix, name);
    const char *again = shown;
    for (uint32_t n = 1; again && is_taken(g, again); n++)
        again = mf_arena_printf(&g->arena, "%s_%u", shown, n);
    return again;
}

static void add_metric(mf_lowering *lo, const mf_json *spec, uint32_t output, mf_loss loss, bool weighted)
{
    const char *name = mf_config_name(spec);
    const mf_json *config = mf_json_get(spec, "config");
    mf_metric metric;
    if (!name)
        return;
    if (strcmp(name, "MeanMetricWrapper") == 0) {
        const char *fn = mf_config_name(mf_json_get(config, "fn"));
        name = fn ? fn : mf_json_get_string(config, "name", name);
    }
    const mf_json *key = mf_dropped_key(MF_KEYS_METRIC, name, config), *thresholds = mf_json_get(config, "thresholds");
    if (!key && thresholds && thresholds->type == MF_JSON_ARRAY && thresholds->count > 1)
        key = thresholds; /* one result each: not built */
    /* The word stands for the accuracy that suits the loss; the class counts outputs that equal their targets. */
    bool equal = spec->type == MF_JSON_OBJECT && strcmp(mf_json_get_string(spec, "class_name", ""), "Accuracy") == 0;
    if (equal || !find_metric(lo, name, output, loss, &metric) || key) {
        char text[160];
        ignore(lo,
               key ? mf_arena_printf(&lo->b.graph->arena, "%s (%s)", name, mf_key_text(key, text, sizeof text)) : name);
        return;
    }
    if (!suits_targets(lo, name, output, loss, metric))
        return;
    if (++lo->metrics > MOST_METRICS) {
        mf_build_fail(&lo->b, MEMFIT_UNSUPPORTED, "the model has more than %d metrics", MOST_METRICS);
        return;
    }
    const char *shown = unique_name(lo, output, mf_json_get_string(config, "name", name), weighted);
    if (!shown) {
        mf_build_fail(&lo->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the metrics");
        return;
    }
    mf_variable v = {.name = shown,
                     .path = "",
                     .role = MF_VAR_METRIC,
                     .kind = MEMFIT_KIND_OTHER,
                     .dtype = MF_F32,
                     .shape = metric == MF_METRIC_AUC ? mf_shape2(4, AUC_THRESHOLDS) : mf_shape1(2),
                     .parameter = MF_NONE};
    if (thresholds && thresholds->type == MF_JSON_ARRAY)
        thresholds = thresholds->first;
    double threshold = metric == MF_METRIC_BINARY_ACCURACY ? mf_json_get_number(config, "threshold", 0.5)
                                                           : mf_json_number(thresholds, 0.5);
    v.metric = (mf_metric_attr){.function = metric,
                                .threshold = threshold,
                                .k = (uint32_t)mf_json_get_integer(config, "k", 5),
                                .output = output,
                                .weighted = weighted};
    mf_g_variable(&lo->b, &v);
}

static bool is_metric(const mf_json *value)
{
    return value->type == MF_JSON_STRING || (value->type == MF_JSON_OBJECT && mf_json_get(value, "class_name"));
}

/* "accuracy", ["accuracy", {...}], [["accuracy"], ["mae"]] or {"output": [...]}. */
static void metrics_of(mf_lowering *lo, const mf_json *all, uint32_t output, mf_loss loss, bool weighted)
{
    if (mf_json_is_null(all))
        return;
    if (all->type == MF_JSON_ARRAY && all->first && !is_metric(all->first) && all->first->type != MF_JSON_NULL)
        all = mf_json_at(all, output); /* a list for each output */
    else if (all->type == MF_JSON_ARRAY && lo->root->output_count > 1 && all->count == lo->root->output_count)
        all = mf_json_at(all, output); /* one for each output */
    else if (all->type == MF_JSON_OBJECT && !is_metric(all))
        all = mf_setting_of_output(lo, all, output, true);
    if (mf_json_is_null(all))
        return;
    if (is_metric(all))
        add_metric(lo, all, output, loss, weighted);
    for (const mf_json *m = all->type == MF_JSON_ARRAY ? all->first : NULL; m; m = m->next)
        if (is_metric(m))
            add_metric(lo, m, output, loss, weighted);
}

void mf_lower_loss_mean(mf_lowering *lo, uint32_t output, uint32_t slot)
{
    mf_variable v = {.name = unique_name(lo, output, "loss", false),
                     .path = "",
                     .role = MF_VAR_METRIC,
                     .kind = MEMFIT_KIND_OTHER,
                     .dtype = MF_F32,
                     .shape = mf_shape1(2),
                     .parameter = MF_NONE,
                     .metric = {.function = MF_METRIC_LOSS_VALUE, .k = slot, .output = output}};
    if (!v.name)
        mf_build_fail(&lo->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the metrics");
    else
        mf_g_variable(&lo->b, &v);
}

void mf_lower_metric_variables(mf_lowering *lo, uint32_t output, mf_loss loss)
{
    metrics_of(lo, mf_json_get(lo->root->compile, "metrics"), output, loss, false);
    metrics_of(lo, mf_json_get(lo->root->compile, "weighted_metrics"), output, loss, true);
}

static bool is_loss(const mf_variable *v)
{
    return v->role == MF_VAR_METRIC && v->metric.function == MF_METRIC_LOSS_VALUE;
}

static bool is_state(const mf_lowering *lo, uint32_t variable, uint32_t output)
{
    const mf_variable *v = &lo->b.graph->variables[variable];
    return v->role == MF_VAR_METRIC && v->metric.output == output && !is_loss(v);
}

void mf_lower_head_metrics(mf_lowering *lo, uint32_t output, uint32_t target, uint32_t weights, uint32_t mask,
                           mf_head *head)
{
    mf_build *b = &lo->b;
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->graph->variable_count; i++)
        count += is_state(lo, i, output);
    head->metrics = MF_NEW_ARRAY(&b->graph->arena, mf_head_metric, count + 1);
    if (!head->metrics) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the metrics");
        return;
    }
    for (uint32_t i = 0; i < b->graph->variable_count && mf_build_ok(b); i++)
        if (is_state(lo, i, output)) {
            mf_attr attr = {.metric = b->graph->variables[i].metric};
            head->metrics[head->metric_count++] =
                (mf_head_metric){.attr = attr,
                                 .target = target,
                                 .weights = attr.metric.weighted && weights != MF_NONE ? weights : mask,
                                 .state = mf_g_use(b, i)};
        }
}

void mf_lower_metric_ops(mf_lowering *lo, uint32_t output, uint32_t pred, uint32_t target, uint32_t weights,
                         uint32_t mask)
{
    mf_build *b = &lo->b;
    uint32_t seen = MF_NONE;
    for (uint32_t i = 0; i < b->graph->variable_count && mf_build_ok(b); i++) {
        const mf_variable *v = &b->graph->variables[i];
        if (!is_state(lo, i, output))
            continue;
        mf_attr attr = {.metric = v->metric};
        if (seen == MF_NONE)
            seen = mf_g_dtype(b, pred) == MF_F64 ? pred : mf_g_cast(b, pred, MF_F32);
        bool weighted = v->metric.weighted;
        uint32_t state = mf_g_use(b, i);
        mf_g_op_in_place(b, MF_OP_METRIC, &attr, 4,
                         (uint32_t[]){seen, target, weighted && weights != MF_NONE ? weights : mask, state}, 1, &state);
    }
}

void mf_lower_loss_means(mf_lowering *lo)
{
    mf_build *b = &lo->b;
    uint8_t phase = b->phase, when = b->when;
    b->phase = MF_LOSS_PHASE;
    b->when = MF_LAST_PIECE;
    for (uint32_t i = 0; i < b->graph->variable_count && mf_build_ok(b); i++)
        if (is_loss(&b->graph->variables[i])) {
            mf_attr attr = {.metric = b->graph->variables[i].metric};
            uint32_t loss = mf_g_use(b, b->graph->loss_variable), state = mf_g_use(b, i);
            mf_g_op_in_place(b, MF_OP_METRIC, &attr, 4, (uint32_t[]){loss, MF_NONE, MF_NONE, state}, 1, &state);
        }
    b->phase = phase;
    b->when = when;
}
