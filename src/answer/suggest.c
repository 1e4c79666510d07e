/*
 * suggest.c: what to change, ranked: what fits first, then by numerics (bitwise, reordered, changed), then by time.
 *
 * Two families. Ways to run the same training (recompute, pieces) come from the fitter at hand. Other trainings (other
 * optimizer, narrower types, smaller input, frozen layers, smaller batch) are lowered and planned anew, in one piece
 * with everything kept, so that the line shows what the change alone does. A change that cannot be lowered (an input
 * size the model does not take) is left out.
 */
#include "answer/suggest.h"

#include "base/error.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct suggesting {
    mf_answer *answer;
    mf_fitter *fitter;
    const mf_question *question;
    double whole_us;
} suggesting;

static void add_line(suggesting *s, const mf_plan *plan, mf_numerics least, int64_t batch, const char *format, ...)
    MEMFIT_PRINTF(5, 6);

static void add_line(suggesting *s, const mf_plan *plan, mf_numerics least, int64_t batch, const char *format, ...)
{
    mf_answer *a = s->answer;
    if (a->suggestion_count >= MF_MOST_SUGGESTIONS)
        return;
    mf_suggestion *line = &a->suggestions[a->suggestion_count++];
    va_list args;
    va_start(args, format);
    vsnprintf(line->change, sizeof line->change, format, args);
    va_end(args);
    double samples = (double)s->question->plan.batch / (double)batch;
    line->peak_bytes = plan->peak_bytes;
    line->slowdown = s->whole_us > 0 ? plan->time_us * samples / s->whole_us : 1;
    line->numerics = plan->numerics > least ? plan->numerics : least;
    line->fits = plan->fits;
}

/* ---- the same training ------------------------------------------------------------------------------------ */

static memfit_status suggest_recompute(suggesting *s, memfit_error *err)
{
    mf_way way = {.batch = s->question->plan.batch,
                  .pieces = 1,
                  .recompute = true,
                  .split_validation = true,
                  .limit_bytes = s->question->plan.limit_bytes};
    mf_plan *plan;
    memfit_status status = mf_fitter_try(s->fitter, &way, &plan, err);
    if (status != MEMFIT_OK)
        return status;
    if (plan->recomputed_ops && (plan->fits || !s->answer->fits))
        add_line(s, plan, MF_BITWISE, way.batch, "recompute %u operations (--recompute auto)", plan->recomputed_ops);
    mf_plan_destroy(plan);
    return MEMFIT_OK;
}

/* The fewest even pieces that fit; with trainable BatchNormalization the line says what that means. */
static memfit_status suggest_pieces(suggesting *s, bool recompute, memfit_error *err)
{
    mf_fitter *f = s->fitter;
    mf_plan_options kept = f->options;
    mf_plan *plan = NULL;
    f->options.pieces = 0;
    f->options.allow_changed = true;
    f->options.recompute = recompute ? MF_RECOMPUTE_AUTO : MF_RECOMPUTE_OFF;
    memfit_status status = mf_fitter_pieces(f, kept.batch, kept.limit_bytes, &plan, err);
    f->options = kept;
    if (status != MEMFIT_OK)
        return status;
    if (plan && plan->pieces > 1 && (plan->fits || !recompute)) {
        bool both = plan->recomputed_ops > 0;
        if (both == recompute)
            add_line(s, plan, MF_REORDERED, kept.batch,
                     "%lld micro-batches of %lld sample%s%s (--gradient-accumulation %lld)%s", (long long)plan->pieces,
                     (long long)plan->phases[0].batch, plan->phases[0].batch == 1 ? "" : "s",
                     both ? ", with recomputation" : "", (long long)plan->pieces,
                     plan->numerics == MF_CHANGED ? ": BatchNormalization then sees the micro-batches" : "");
    }
    mf_plan_destroy(plan);
    return MEMFIT_OK;
}

/* The last layer and its loss in chunks; also together with the pieces of the plan returned. */
static memfit_status suggest_chunks(suggesting *s, memfit_error *err)
{
    mf_fitter *f = s->fitter;
    const mf_plan *returned = s->answer->plan;
    mf_plan_options kept = f->options;
    mf_plan *plan = NULL;
    if (returned->chunks > 1 && returned->pieces > 1 && returned->fits)
        add_line(s, returned, MF_REORDERED, kept.batch,
                 "%lld micro-batches (--gradient-accumulation %lld), last layer and loss in %u chunks%s",
                 (long long)returned->pieces, (long long)returned->pieces, returned->chunks,
                 returned->recomputed_ops ? ", with recomputation" : "");
    f->options.chunks = 0;
    memfit_status status = mf_fitter_chunks(f, kept.batch, kept.limit_bytes, &plan, err);
    f->options = kept;
    if (status == MEMFIT_OK && plan && plan->chunks > 1 && (plan->fits || !s->answer->fits))
        add_line(s, plan, MF_REORDERED, kept.batch, "last layer and loss in %u chunks%s (--chunked-loss %u)",
                 plan->chunks, plan->recomputed_ops ? ", with recomputation" : "", plan->chunks);
    mf_plan_destroy(plan);
    return status;
}

/* ---- another training ------------------------------------------------------------------------------------- */

/* The plan of a changed question, as asked. NULL when it cannot be lowered. */
static memfit_status plan_changed(suggesting *s, const mf_model *model, const mf_lower_options *lower, int64_t batch,
                                  mf_fitter *fitter, mf_model_graphs *graphs, mf_graph_source *source, mf_plan **plan,
                                  memfit_error *err)
{
    memfit_error inner = {0};
    mf_plan_options options = s->question->plan;
    options.batch = batch;
    *graphs = (mf_model_graphs){model, *lower};
    mf_model_graph_source(graphs, source);
    mf_fitter_init(fitter, s->fitter->host, source, &options, &s->question->cost);
    mf_way way = {.batch = batch, .pieces = 1, .split_validation = true, .limit_bytes = options.limit_bytes};
    *plan = NULL;
    memfit_status status = mf_fitter_try(fitter, &way, plan, &inner);
    if (status == MEMFIT_NO_HOST_MEMORY) {
        if (err)
            *err = inner;
        return status;
    }
    return MEMFIT_OK;
}

static memfit_status suggest_lowered(suggesting *s, const mf_model *model, const mf_lower_options *lower,
                                     const char *text, memfit_error *err)
{
    mf_fitter fitter;
    mf_model_graphs graphs;
    mf_graph_source source;
    mf_plan *plan;
    int64_t batch = s->question->plan.batch;
    memfit_status status = plan_changed(s, model, lower, batch, &fitter, &graphs, &source, &plan, err);
    if (status == MEMFIT_OK && plan && plan->peak_bytes < s->answer->as_asked_peak_bytes)
        add_line(s, plan, MF_CHANGED, batch, "%s", text);
    mf_plan_destroy(plan);
    mf_fitter_free(&fitter);
    return status;
}

static memfit_status suggest_batch(suggesting *s, memfit_error *err)
{
    int64_t batch = s->answer->max_batch_as_asked;
    if (batch < 1 || batch >= s->question->plan.batch)
        return MEMFIT_OK;
    mf_way way = {.batch = batch, .pieces = 1, .split_validation = true, .limit_bytes = s->question->plan.limit_bytes};
    mf_plan *plan;
    memfit_status status = mf_fitter_try(s->fitter, &way, &plan, err);
    if (status != MEMFIT_OK)
        return status;
    add_line(s, plan, MF_CHANGED, batch, "batch %lld in place of %lld (--batch-size %lld)", (long long)batch,
             (long long)s->question->plan.batch, (long long)batch);
    mf_plan_destroy(plan);
    return MEMFIT_OK;
}

static memfit_status suggest_optimizer(suggesting *s, memfit_error *err)
{
    const mf_plan *plan = s->answer->plan;
    bool slots = false;
    for (uint32_t v = 0; v < plan->variable_count; v++)
        slots |= plan->phases[0].graph->variables[v].role == MF_VAR_SLOT;
    if (!slots)
        return MEMFIT_OK;
    mf_lower_options lower = s->question->lower;
    lower.optimizer = "sgd";
    return suggest_lowered(s, s->question->model, &lower, "plain SGD: no optimizer state (--optimizer sgd)", err);
}

static memfit_status suggest_precision(suggesting *s, memfit_error *err)
{
    mf_lower_options lower = s->question->lower;
    if (lower.precision && strcmp(lower.precision, "float32") != 0)
        return MEMFIT_OK;
    lower.precision = "mixed_bfloat16";
    return suggest_lowered(s, s->question->model, &lower, "activations in bfloat16 (--precision mixed_bfloat16)", err);
}

static memfit_status suggest_input(suggesting *s, memfit_error *err)
{
    const mf_graph *g = s->answer->plan->phases[0].graph;
    const mf_shape *shape = NULL;
    for (uint32_t i = 0; i < g->feed_count && !shape; i++)
        if (g->feeds[i].role == 0 && g->feeds[i].index == 0)
            shape = &g->tensors[g->feeds[i].tensor].shape;
    if (!shape || shape->rank != 4 || shape->dim[1] < 64 || shape->dim[2] < 64)
        return MEMFIT_OK;
    mf_lower_options lower = s->question->lower;
    int64_t h = shape->dim[1] * 3 / 4, w = shape->dim[2] * 3 / 4, c = shape->dim[3];
    lower.input_shape = (mf_shape){.rank = 3, .dim = {h, w, c}};
    char text[160];
    snprintf(text, sizeof text, "input of %lldx%lld (--input-shape %lld,%lld,%lld)", (long long)h, (long long)w,
             (long long)h, (long long)w, (long long)c);
    return suggest_lowered(s, s->question->model, &lower, text, err);
}

/* By the plan, not by the file: a configuration alone stores no weights, and its layers have the same ones. */
static bool has_weights(const mf_answer *answer, const mf_layer *layer)
{
    size_t length = strlen(layer->name);
    for (uint32_t i = 0; i < answer->layer_count; i++) {
        const mf_layer_row *row = &answer->layers[i];
        if (row->parameter_bytes && strncmp(row->name, layer->name, length) == 0 &&
            (!row->name[length] || row->name[length] == '/'))
            return true;
    }
    return false;
}

/* A copy of the layers with all but the last one that has weights frozen; nested models are frozen whole. */
static bool freeze(const mf_answer *answer, mf_arena *arena, const mf_model *model, mf_model *copy, bool keep_last)
{
    *copy = *model;
    copy->layers = MF_NEW_ARRAY(arena, mf_layer, model->layer_count);
    if (!copy->layers)
        return false;
    bool kept = !keep_last;
    for (uint32_t i = model->layer_count; i-- > 0;) {
        mf_layer *layer = &copy->layers[i];
        *layer = model->layers[i];
        if (!kept && layer->trainable && !layer->inner && has_weights(answer, layer)) {
            kept = true;
            continue;
        }
        layer->trainable = false;
        if (layer->inner) {
            mf_model *inner = MF_NEW(arena, mf_model);
            if (!inner || !freeze(answer, arena, layer->inner, inner, false))
                return false;
            layer->inner = inner;
        }
    }
    return true;
}

static memfit_status suggest_frozen(suggesting *s, memfit_error *err)
{
    const mf_model *model = s->question->model;
    uint32_t weighty = 0;
    for (uint32_t i = 0; i < model->layer_count; i++)
        weighty += model->layers[i].trainable && (model->layers[i].inner || has_weights(s->answer, &model->layers[i]));
    if (weighty < 2)
        return MEMFIT_OK;
    mf_arena arena;
    mf_model copy;
    mf_arena_init(&arena, s->fitter->host);
    memfit_status status = freeze(s->answer, &arena, model, &copy, true)
                               ? suggest_lowered(s, &copy, &s->question->lower,
                                                 "train the last layer only, the rest frozen (trainable=False)", err)
                               : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a suggestion");
    mf_arena_destroy(&arena);
    return status;
}

/* ---- all of them ------------------------------------------------------------------------------------------ */

static int by_rank(const void *a, const void *b)
{
    const mf_suggestion *x = a, *y = b;
    if (x->fits != y->fits)
        return x->fits ? -1 : 1;
    if (x->numerics != y->numerics)
        return (int)x->numerics - (int)y->numerics;
    if (x->fits && x->slowdown != y->slowdown)
        return x->slowdown < y->slowdown ? -1 : 1;
    return x->peak_bytes < y->peak_bytes ? -1 : x->peak_bytes > y->peak_bytes;
}

memfit_status mf_suggest(mf_answer *answer, mf_fitter *fitter, const mf_question *question, memfit_error *err)
{
    suggesting s = {answer, fitter, question, answer->plan->unconstrained_time_us};
    memfit_status status = suggest_recompute(&s, err);
    if (status == MEMFIT_OK)
        status = suggest_chunks(&s, err);
    if (status == MEMFIT_OK)
        status = suggest_pieces(&s, false, err);
    if (status == MEMFIT_OK)
        status = suggest_pieces(&s, true, err);
    if (status == MEMFIT_OK)
        status = suggest_batch(&s, err);
    if (status == MEMFIT_OK)
        status = suggest_optimizer(&s, err);
    if (status == MEMFIT_OK)
        status = suggest_precision(&s, err);
    if (status == MEMFIT_OK)
        status = suggest_input(&s, err);
    if (status == MEMFIT_OK)
        status = suggest_frozen(&s, err);
    qsort(answer->suggestions, answer->suggestion_count, sizeof *answer->suggestions, by_rank);
    return status;
}
