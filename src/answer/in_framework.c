/* in_framework.c: see in_framework.h. Every figure comes from a step that was lowered and followed. */
#include "answer/in_framework.h"

#include "base/error.h"

#include <stdarg.h>
#include <string.h>

typedef struct asking {
    const memfit_host *host;
    const mf_model *model;
    const mf_lower_options *lower;
    const mf_framework_question *question;
    int64_t batch;
    mf_in_framework *result;
} asking;

/* What a changed question would take. MEMFIT_UNSUPPORTED and the like: the model cannot be had that way. */
static memfit_status estimate(const asking *a, const mf_lower_options *lower, int64_t batch, uint64_t more_bytes,
                              mf_framework_estimate *x, memfit_error *err)
{
    mf_lower_options plain = *lower;
    plain.plain = true;
    mf_model_graphs graphs = {a->model, plain};
    mf_graph_source source;
    mf_graph *graph = NULL;
    mf_model_graph_source(&graphs, &source);
    memfit_status status = source.make(source.ctx, a->host, MF_MODE_TRAIN, batch, false, &graph, err);
    if (status != MEMFIT_OK)
        return status;
    mf_framework_place place = a->question->place;
    place.limit_bytes -= more_bytes < place.limit_bytes ? more_bytes : place.limit_bytes;
    status = mf_framework_predict(a->host, a->question->runtime, graph, &place, x, err);
    mf_graph_destroy(graph);
    if (status == MEMFIT_OK) {
        x->peak_bytes += more_bytes;
        x->low_bytes += more_bytes;
        x->high_bytes += more_bytes;
    }
    return status;
}

/* ---- the largest ---- */

/* The largest n from 1 to `most` for which `try` says yes, when it says yes up to some n and no beyond. Bytes grow by
 * about the same for each sample, so a straight line through two tries finds the place in a few. */
typedef memfit_status (*try_fn)(const asking *a, int64_t n, uint64_t *bytes, memfit_error *err);

static memfit_status find_largest(const asking *a, try_fn try, int64_t near, int64_t most, int64_t *largest,
                                  memfit_error *err)
{
    uint64_t limit = a->question->place.limit_bytes, low_bytes, bytes;
    int64_t low = 1, high = most + 1, at = near > 1 ? near : 2;
    *largest = 0;
    memfit_status status = try(a, low, &low_bytes, err);
    if (status != MEMFIT_OK || low_bytes > limit)
        return status;
    for (int i = 0; i < 24 && high - low > 1; i++) {
        at = at <= low ? low + 1 : at >= high ? high - 1 : at;
        status = try(a, at, &bytes, err);
        if (status != MEMFIT_OK)
            return status;
        double each = at > 1 && bytes > low_bytes ? (double)(bytes - low_bytes) / (double)(at - low) : 0;
        if (bytes <= limit) {
            low = at;
            low_bytes = bytes;
        } else {
            high = at;
        }
        double more = each > 0 ? (double)(limit - low_bytes) / each : (double)low;
        at = i < 8 ? low + (int64_t)(more < (double)most ? more : (double)most) : low + (high - low) / 2;
    }
    *largest = low;
    return MEMFIT_OK;
}

/* The band's upper end; beyond the limit only that it is. */
static memfit_status try_estimate(const asking *a, const mf_lower_options *lower, int64_t batch, uint64_t *bytes,
                                  memfit_error *err)
{
    mf_framework_estimate x;
    mf_framework_question question = *a->question;
    asking rough = *a;
    question.place.rough = true;
    rough.question = &question;
    memfit_status status = estimate(&rough, lower, batch, 0, &x, err);
    if (status == MEMFIT_OK)
        *bytes = x.high_bytes;
    return status;
}

static memfit_status try_batch(const asking *a, int64_t n, uint64_t *bytes, memfit_error *err)
{
    return try_estimate(a, a->lower, n, bytes, err);
}

enum { INPUT_STEP = 32 }; /* most image models halve their input five times */

static mf_shape input_of(const asking *a)
{
    return a->lower->input_shape;
}

static memfit_status try_input(const asking *a, int64_t n, uint64_t *bytes, memfit_error *err)
{
    mf_lower_options lower = *a->lower;
    lower.input_shape = input_of(a);
    lower.input_shape.dim[0] = lower.input_shape.dim[1] = n * INPUT_STEP;
    return try_estimate(a, &lower, a->batch, bytes, err);
}

/* The shape of the first input, from a step of one sample. */
static bool first_input(const asking *a, mf_shape *shape)
{
    mf_model_graphs graphs = {a->model, *a->lower};
    mf_graph_source source;
    mf_graph *graph = NULL;
    mf_model_graph_source(&graphs, &source);
    if (source.make(source.ctx, a->host, MF_MODE_TRAIN, 1, false, &graph, NULL) != MEMFIT_OK)
        return false;
    bool found = false;
    for (uint32_t i = 0; i < graph->feed_count && !found; i++)
        if (graph->feeds[i].role == 0 && graph->feeds[i].index == 0) {
            const mf_shape *s = &graph->tensors[graph->feeds[i].tensor].shape;
            found = s->rank == 4;
            for (uint32_t d = 1; found && d < 4; d++)
                shape->dim[d - 1] = s->dim[d];
        }
    shape->rank = 3;
    mf_graph_destroy(graph);
    return found;
}

static memfit_status find_input(asking *a, memfit_error *err)
{
    mf_lower_options lower = *a->lower;
    mf_shape shape;
    int64_t largest;
    if (a->model->input_count != 1 || !first_input(a, &shape))
        return MEMFIT_OK;
    lower.input_shape = shape;
    asking other = *a;
    other.lower = &lower;
    memfit_error inner = {0}; /* a size the model does not take is no failure */
    memfit_status status =
        find_largest(&other, try_input, shape.dim[0] / INPUT_STEP, 16384 / INPUT_STEP, &largest, &inner);
    if (status == MEMFIT_OK && largest)
        snprintf(a->result->max_input, sizeof a->result->max_input, "%lld,%lld,%lld", (long long)largest * INPUT_STEP,
                 (long long)largest * INPUT_STEP, (long long)shape.dim[2]);
    return status == MEMFIT_NO_HOST_MEMORY ? mf_fail(err, status, "%s", inner.message) : MEMFIT_OK;
}

/* ---- what to change, as code ---- */

static void add_line(asking *a, const mf_framework_estimate *x, mf_numerics numerics, const char *format, ...)
    MEMFIT_PRINTF(4, 5);

static void add_line(asking *a, const mf_framework_estimate *x, mf_numerics numerics, const char *format, ...)
{
    mf_in_framework *r = a->result;
    if (r->line_count == MF_MOST_LINES || x->peak_bytes >= r->estimate.peak_bytes)
        return;
    mf_framework_line *line = &r->lines[r->line_count++];
    va_list args;
    va_start(args, format);
    vsnprintf(line->line, sizeof line->line, format, args);
    va_end(args);
    line->peak_bytes = x->peak_bytes;
    line->low_bytes = x->low_bytes;
    line->high_bytes = x->high_bytes;
    line->numerics = numerics;
    line->fits = x->high_bytes <= a->question->place.limit_bytes ? MF_FRAMEWORK_YES
                 : x->low_bytes > a->question->place.limit_bytes ? MF_FRAMEWORK_NO
                                                                 : MF_FRAMEWORK_TIGHT;
}

/* A change that cannot be made with this model is left out; only memory that ends is a failure. */
static bool tried(memfit_status *status)
{
    bool ok = *status == MEMFIT_OK;
    if (*status != MEMFIT_NO_HOST_MEMORY)
        *status = MEMFIT_OK;
    return ok;
}

static const char *optimizer_class(mf_optimizer optimizer)
{
    static const char *const names[MF_OPTIMIZER_COUNT] = {"SGD",       "RMSprop", "Adam",    "AdamW",
                                                          "Nadam",     "Adamax",  "Adagrad", "Adadelta",
                                                          "Adafactor", "Lion",    "Ftrl",    "Lamb"};
    return names[optimizer];
}

typedef struct step_facts {
    mf_optimizer optimizer;
    uint64_t trainable_bytes;
    bool slots, batch_norm, accumulates, half;
} step_facts;

static memfit_status look(const asking *a, step_facts *facts, memfit_error *err)
{
    mf_model_graphs graphs = {a->model, *a->lower};
    mf_graph_source source;
    mf_graph *g = NULL;
    mf_model_graph_source(&graphs, &source);
    memfit_status status = source.make(source.ctx, a->host, MF_MODE_TRAIN, 1, false, &g, err);
    if (status != MEMFIT_OK)
        return status;
    *facts = (step_facts){
        .optimizer = g->optimizer, .batch_norm = g->uses_batch_norm, .accumulates = g->accumulation_steps > 1};
    for (uint32_t v = 0; v < g->variable_count; v++) {
        const mf_variable *x = &g->variables[v];
        facts->slots |= x->role == MF_VAR_SLOT;
        if (x->role == MF_VAR_PARAMETER && x->trainable)
            facts->trainable_bytes += mf_shape_count(&x->shape) * mf_dtype_bytes(x->dtype);
    }
    for (uint32_t t = 0; t < g->tensor_count; t++)
        facts->half |= g->tensors[t].dtype == MF_BF16 || g->tensors[t].dtype == MF_F16;
    mf_graph_destroy(g);
    return MEMFIT_OK;
}

static memfit_status suggest_accumulation(asking *a, const step_facts *facts, memfit_error *err)
{
    mf_framework_estimate x = {0};
    memfit_status status = MEMFIT_OK;
    for (int64_t k = 2; !facts->accumulates && k <= a->batch && k <= 64; k *= 2) {
        int64_t piece = a->batch / k;
        if (piece * k != a->batch)
            break;
        status = estimate(a, a->lower, piece, facts->trainable_bytes, &x, err);
        if (!tried(&status))
            break;
        if (x.fits == MF_FRAMEWORK_YES || k * 2 > 64 || (a->batch / (k * 2)) * k * 2 != a->batch) {
            add_line(a, &x, facts->batch_norm ? MF_CHANGED : MF_REORDERED,
                     "batch_size=%lld, optimizer=keras.optimizers.%s(gradient_accumulation_steps=%lld)%s",
                     (long long)piece, optimizer_class(facts->optimizer), (long long)k,
                     facts->batch_norm ? "  # BatchNormalization then sees smaller batches" : "");
            break;
        }
    }
    return status;
}

static memfit_status suggest_lowered(asking *a, const mf_lower_options *lower, const char *text, memfit_error *err)
{
    mf_framework_estimate x;
    memfit_status status = estimate(a, lower, a->batch, 0, &x, err);
    if (tried(&status))
        add_line(a, &x, MF_CHANGED, "%s", text);
    return status;
}

static memfit_status suggest_all(asking *a, memfit_error *err)
{
    step_facts facts;
    memfit_status status = look(a, &facts, err);
    mf_lower_options lower = *a->lower;
    bool brain_float = a->question->place.capability >= 80;
    if (status == MEMFIT_OK && !facts.half && a->question->card) {
        lower.precision = brain_float ? "mixed_bfloat16" : "mixed_float16";
        status = suggest_lowered(a, &lower,
                                 brain_float
                                     ? "keras.mixed_precision.set_global_policy(\"mixed_bfloat16\")  # before the model"
                                     : "keras.mixed_precision.set_global_policy(\"mixed_float16\")  # before the model",
                                 err);
    }
    if (status == MEMFIT_OK)
        status = suggest_accumulation(a, &facts, err);
    if (status == MEMFIT_OK && a->result->max_batch > 0 && a->result->max_batch < a->batch) {
        mf_framework_estimate x;
        status = estimate(a, a->lower, a->result->max_batch, 0, &x, err);
        if (tried(&status))
            add_line(a, &x, MF_CHANGED, "batch_size=%lld", (long long)a->result->max_batch);
    }
    if (status == MEMFIT_OK && facts.slots) {
        lower = *a->lower;
        lower.optimizer = "sgd";
        status =
            suggest_lowered(a, &lower, "optimizer=keras.optimizers.SGD(learning_rate=...)  # no optimizer state", err);
    }
    return status;
}

/* ---- the whole ---- */

memfit_status mf_in_framework_make(const memfit_host *host, const mf_model *model, const mf_lower_options *lower,
                                   int64_t batch, const mf_framework_question *question, bool more,
                                   mf_in_framework *result, memfit_error *err)
{
    mf_in_framework r = {.runtime = question->runtime, .given = question->given};
    asking a = {host, model, lower, question, batch, &r};
    memfit_status status = MEMFIT_OK;
    if (question->runtime != MF_RUNTIME_MEMFIT && !question->card && question->runtime != MF_RUNTIME_TENSORFLOW) {
        snprintf(r.reason, sizeof r.reason, "there is no model of %s on a cpu; --for CARD asks about a card",
                 mf_runtime_title(question->runtime));
    } else if (question->runtime != MF_RUNTIME_MEMFIT) {
        status = estimate(&a, lower, batch, 0, &r.estimate, err);
        r.known = status == MEMFIT_OK;
        if (status == MEMFIT_OK && more)
            status = find_largest(&a, try_batch, batch, 1 << 24, &r.max_batch, err);
        if (status == MEMFIT_OK && more)
            status = find_input(&a, err);
        if (status == MEMFIT_OK && more && r.estimate.fits != MF_FRAMEWORK_YES)
            status = suggest_all(&a, err);
    }
    if (status == MEMFIT_OK)
        *result = r;
    return status;
}
