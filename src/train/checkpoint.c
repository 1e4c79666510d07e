/*
 * checkpoint.c: see checkpoint.h.
 *
 * The extra member "memfit.state" is little-endian: magic, version, number of words, the state struct's fields as
 * 64-bit words, then the metrics' states one after the other, whole (that of an AUC is 800 numbers). A checkpoint is
 * written between steps, where gradients are dead; those of Keras's own accumulation are variables of the optimizer and
 * kept as such.
 *
 * Older versions have fewer words. Version 2 had 16: not the rate the run began with, whose place took the reduced one
 * of the optimizer's variables (reduced once more by the factor, when resumed), nor what options had said of rate, batch
 * and precision. Version 3 had 21: not what --keep-best had kept, nor whether gradients were scaled.
 */
#include "train/checkpoint.h"

#include "base/error.h"
#include "base/text.h"
#include "model/initialize.h"
#include "model/lower/lower.h"
#include "train/results.h"
#include "train/train_state.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_VERSION = 4, STATE_WORDS = 24, FIRST_VERSION = 2 };
static const uint64_t words_of_version[STATE_VERSION + 1] = {[2] = 16, [3] = 21, [4] = STATE_WORDS};
static const char member_name[] = "memfit.state";

typedef struct state_block {
    char magic[8]; /* "memfit01" */
    uint64_t version, words;
    uint64_t word[STATE_WORDS];
    uint64_t metric_bytes; /* behind this */
} state_block;

struct mf_checkpoint {
    mf_trainer *trainer;
    mf_arena arena;
    mf_saver *plain, *with_state;
    mf_save_array *weights, *optimizer;
    uint32_t weight_count, optimizer_count;
    uint32_t variable_count; /* of the plan it was made for */
    int64_t iteration;       /* what the optimizer's first array points at */
    float rate, scale;
    int64_t scale_steps;
    state_block *state; /* and the metrics' bytes */
    uint64_t state_bytes;
};

/* What --precision said, by number; 0: nothing. */
enum { PRECISIONS = 4 };
static const char *const precisions[PRECISIONS] = {NULL, "float32", "mixed_float16", "mixed_bfloat16"};

static uint64_t precision_number(const char *name)
{
    for (uint64_t i = 1; name && i < PRECISIONS; i++)
        if (strcmp(name, precisions[i]) == 0)
            return i;
    return 0;
}

static uint64_t bits(double d)
{
    uint64_t u;
    memcpy(&u, &d, 8);
    return u;
}

static double number(uint64_t u)
{
    double d;
    memcpy(&d, &u, 8);
    return d;
}

static uint64_t metrics_bytes(const mf_trainer *t)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->metric_count; i++)
        sum += mf_state_bytes(t, t->metrics[i].variable);
    return sum;
}

static void copy_metrics(const mf_trainer *t, unsigned char *out)
{
    for (uint32_t i = 0; i < t->metric_count; i++) {
        uint64_t bytes = mf_state_bytes(t, t->metrics[i].variable);
        mf_state_read(t, t->metrics[i].variable, 0, out, bytes);
        out += bytes;
    }
}

memfit_status mf_checkpoint_metrics_place(mf_trainer *t, memfit_error *err)
{
    if (t->kept_metrics)
        return MEMFIT_OK; /* of an earlier plan: metrics are the model's */
    t->kept_bytes = metrics_bytes(t);
    t->kept_metrics = mf_host_zalloc(t->host, t->kept_bytes + 1);
    return t->kept_metrics ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the checkpoint writer");
}

void mf_checkpoint_keep_metrics(mf_trainer *t)
{
    copy_metrics(t, t->kept_metrics);
}

static void pack_state(mf_checkpoint *c)
{
    const struct mf_train_state *s = &c->trainer->state;
    state_block *b = c->state;
    memcpy(b->magic, "memfit01", 8);
    b->version = STATE_VERSION;
    b->words = STATE_WORDS;
    const mf_trainer *t = c->trainer;
    const char *precision = t->graphs.options.precision;
    const bool computed_order = t->feeder && t->feeder->shuffled && !t->feeder->order;
    const uint64_t words[STATE_WORDS] = {s->iteration,
                                         s->epoch,
                                         s->position,
                                         s->step_in_epoch,
                                         s->seed,
                                         bits(s->loss_scale),
                                         s->good_steps,
                                         bits(s->loss_sum),
                                         bits(s->loss_weight),
                                         bits(s->best),
                                         bits(s->plateau_best),
                                         bits(s->rate_factor),
                                         s->waited,
                                         s->plateau_waited,
                                         s->steps,
                                         (uint64_t)t->plan->pieces | (uint64_t)t->plan->chunks << 32,
                                         bits(t->schedule.initial),
                                         t->rate_given,
                                         (uint64_t)t->options->batch | (uint64_t)computed_order << 32 |
                                             (t->feeder ? (uint64_t)t->feeder->block : 0) << 33,
                                         precision_number(precision),
                                         t->feeder ? (uint64_t)t->feeder->window | (uint64_t)t->feeder->bucketed << 63
                                                   : 0,
                                         bits(s->kept),
                                         s->kept_file,
                                         mf_trainer_graph(t)->needs_loss_scale | t->made_by};
    memcpy(b->word, words, sizeof words);
    b->metric_bytes = c->state_bytes - sizeof *b;
    if (t->validating)
        memcpy(b + 1, t->kept_metrics, b->metric_bytes);
    else
        copy_metrics(t, (unsigned char *)(b + 1));
}

/* Of any version: words an older one did not have are 0. *metrics: where the metrics' bytes begin. */
static memfit_status read_block(const void *data, uint64_t bytes, state_block *b, const unsigned char **metrics,
                                memfit_error *err)
{
    *b = (state_block){0};
    const size_t head = offsetof(state_block, word);
    if (bytes >= head)
        memcpy(b, data, head);
    bool known = b->version >= FIRST_VERSION && b->version <= STATE_VERSION && b->words == words_of_version[b->version];
    const size_t words = (known ? b->words : STATE_WORDS) * sizeof *b->word, all = head + words + sizeof(uint64_t);
    if (bytes < all)
        return mf_fail(err, MEMFIT_DAMAGED, "the checkpoint's state has %llu bytes where %zu or more are expected",
                       (unsigned long long)bytes, all);
    if (memcmp(b->magic, "memfit01", 8) != 0 || !known)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "the checkpoint was written by another version of memfit");
    memcpy(b->word, (const unsigned char *)data + head, words);
    memcpy(&b->metric_bytes, (const unsigned char *)data + head + words, sizeof b->metric_bytes);
    *metrics = (const unsigned char *)data + all;
    if (b->metric_bytes != bytes - all)
        return mf_fail(err, MEMFIT_DAMAGED, "the checkpoint's state has %llu bytes of metrics where %llu are announced",
                       (unsigned long long)(bytes - all), (unsigned long long)b->metric_bytes);
    return MEMFIT_OK;
}

mf_resumed mf_checkpoint_settings(mf_model *model)
{
    const void *data;
    const unsigned char *metrics;
    uint64_t bytes;
    state_block b;
    if (mf_model_extra(model, member_name, &data, &bytes, NULL) != MEMFIT_OK ||
        read_block(data, bytes, &b, &metrics, NULL) != MEMFIT_OK)
        return (mf_resumed){0};
    return (mf_resumed){.known = true,
                        .pieces = (int64_t)(b.word[15] & INT32_MAX),
                        .chunks =
                            b.word[15] >> 32 ? (uint32_t)(b.word[15] >> 32) : 1, /* before there were any: whole */
                        .rate = number(b.word[16]),
                        .rate_given = b.word[17] != 0 && number(b.word[16]) > 0,
                        .batch = (int64_t)(b.word[18] & INT32_MAX),
                        .computed_order = b.word[18] >> 32 & 1, /* before there was any: listed */
                        .block = (int64_t)(b.word[18] >> 33),
                        .window = (int64_t)(b.word[20] & INT64_MAX),
                        .bucket = b.word[20] >> 63,
                        .made_by = b.word[23] & ~UINT64_C(1), /* before it was kept: 0 */
                        .epoch = b.word[1],
                        .position = b.word[2],
                        .precision = b.word[19] < PRECISIONS ? precisions[b.word[19]] : NULL};
}

/* Gradients are scaled for float16 alone: another precision's scale means nothing here, and none was tried there. Up to
 * version 3 a scale of 1 that no step has followed says that nothing was scaled. */
static void restore_scale(mf_trainer *t, const state_block *b)
{
    double scale = number(b->word[5]);
    bool scaled = b->version > 3 ? (b->word[23] & 1) != 0 : scale != 1 || b->word[6] != 0;
    if (!mf_trainer_graph(t)->needs_loss_scale || !scaled || !(scale >= 1 && isfinite(scale)))
        return; /* as it starts */
    t->state.loss_scale = scale;
    t->state.good_steps = b->word[6];
}

memfit_status mf_checkpoint_restore(mf_trainer *t, memfit_error *err)
{
    const void *data;
    uint64_t bytes;
    memfit_status status = mf_model_extra(t->model, member_name, &data, &bytes, err);
    if (status != MEMFIT_OK)
        return status;
    state_block b;
    const unsigned char *in = NULL;
    status = read_block(data, bytes, &b, &in, err);
    if (status != MEMFIT_OK)
        return status;
    struct mf_train_state *s = &t->state;
    s->iteration = b.word[0];
    s->epoch = b.word[1];
    s->position = b.word[2];
    s->step_in_epoch = b.word[3];
    s->seed = b.word[4];
    restore_scale(t, &b);
    s->loss_sum = number(b.word[7]);
    s->loss_weight = number(b.word[8]);
    s->best = number(b.word[9]);
    s->plateau_best = number(b.word[10]);
    s->rate_factor = number(b.word[11]);
    s->waited = b.word[12];
    s->plateau_waited = b.word[13];
    s->steps = b.word[14];
    s->kept = b.version > 3 ? number(b.word[21]) : INFINITY;
    s->kept_file = b.word[22];
    if (b.version == FIRST_VERSION && s->rate_factor > 0 && t->rate_stored)
        t->schedule.initial /= s->rate_factor; /* the stored rate is the reduced one */
    if (b.metric_bytes != metrics_bytes(t))    /* other metrics than before: they begin anew */
        return MEMFIT_OK;
    for (uint32_t i = 0; i < t->metric_count; i++) {
        uint64_t size = mf_state_bytes(t, t->metrics[i].variable);
        mf_state_write(t, t->metrics[i].variable, 0, in, size);
        in += size;
    }
    return MEMFIT_OK;
}

/* Where a variable's bytes are while a file is written. A step has none of those that no loss reaches (an output that
 * is not judged): these are as the file has them, or as they begin. */
static memfit_status bytes_of(mf_checkpoint *c, const mf_graph *g, uint32_t variable, const void **data,
                              memfit_error *err)
{
    const mf_variable *v = &g->variables[variable];
    *data = mf_state_for_writer(c->trainer, variable);
    if (*data)
        return MEMFIT_OK;
    void *first = mf_arena_alloc(&c->arena, mf_shape_count(&v->shape) * mf_dtype_bytes(v->dtype));
    if (!first)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the checkpoint writer");
    *data = first;
    return mf_variable_initialize(c->trainer->host, g, variable, c->trainer->options->seed, first, err);
}

/* Weights: parameters and statistics, under their layer's name and path. */
static memfit_status list_weights(mf_checkpoint *c, const mf_graph *g, memfit_error *err)
{
    for (uint32_t i = 0; i < g->variable_count; i++) {
        const mf_variable *v = &g->variables[i];
        if ((v->role != MF_VAR_PARAMETER && v->role != MF_VAR_STATISTIC) || !v->path || !v->path[0])
            continue;
        if (v->stored && (v->dtype == MF_I32 || v->dtype == MF_I64 || !mf_state_has(c->trainer, i)))
            continue; /* the file keeps it; a Normalization's count is as wide as the version that wrote it liked */
        const void *data;
        memfit_status status = bytes_of(c, g, i, &data, err);
        if (status != MEMFIT_OK)
            return status;
        c->weights[c->weight_count++] = (mf_save_array){g->layers[v->layer].name, v->path, v->dtype, v->shape, data};
    }
    return MEMFIT_OK;
}

/* Keras's order: iteration, learning rate (where it keeps one), averages, accumulators, slots. */
static memfit_status list_optimizer(mf_checkpoint *c, const mf_graph *g, memfit_error *err)
{
    mf_shape scalar = {0};
    const memfit_host *host = c->trainer->host;
    uint32_t *variables = mf_host_alloc(host, (g->variable_count + 1) * sizeof *variables);
    if (!variables)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the checkpoint writer");
    c->optimizer[c->optimizer_count++] = (mf_save_array){NULL, NULL, MF_I64, scalar, &c->iteration};
    if (g->keeps_rate)
        c->optimizer[c->optimizer_count++] = (mf_save_array){NULL, NULL, MF_F32, scalar, &c->rate};
    uint32_t count = mf_keras_optimizer_order(g, variables);
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < count && status == MEMFIT_OK; i++) {
        const mf_variable *v = &g->variables[variables[i]];
        bool unused =
            g->optimizer == MF_OPTIMIZER_ADAFACTOR && v->shape.rank == 0 && v->slot < 2; /* zero, as an integer */
        const void *data;
        status = bytes_of(c, g, variables[i], &data, err);
        if (status == MEMFIT_OK)
            c->optimizer[c->optimizer_count++] =
                (mf_save_array){NULL, NULL, unused ? MF_I32 : v->dtype, v->shape, data};
    }
    mf_host_free(host, variables, (g->variable_count + 1) * sizeof *variables);
    return status;
}

/* The compile settings to save when this training's are not the file's: Keras then builds the same optimizer and finds
 * its state. */
static memfit_status changed_settings(mf_checkpoint *c, const mf_graph *g, const mf_json **compile, memfit_error *err)
{
    static const char *const classes[MF_OPTIMIZER_COUNT] = {
        [MF_OPTIMIZER_SGD] = "SGD",         [MF_OPTIMIZER_RMSPROP] = "RMSprop",
        [MF_OPTIMIZER_ADAM] = "Adam",       [MF_OPTIMIZER_ADAMW] = "AdamW",
        [MF_OPTIMIZER_NADAM] = "Nadam",     [MF_OPTIMIZER_ADAMAX] = "Adamax",
        [MF_OPTIMIZER_ADAGRAD] = "Adagrad", [MF_OPTIMIZER_ADADELTA] = "Adadelta",
        [MF_OPTIMIZER_LION] = "Lion",       [MF_OPTIMIZER_ADAFACTOR] = "Adafactor",
        [MF_OPTIMIZER_FTRL] = "Ftrl",       [MF_OPTIMIZER_LAMB] = "Lamb"};
    bool loss = g->loss_assumed || c->trainer->options->loss;
    if (!g->optimizer_given && !loss)
        return MEMFIT_OK;
    mf_json *made = mf_json_new(&c->arena, MF_JSON_OBJECT), *part;
    bool ok = made != NULL;
    if (g->optimizer_given) {
        mf_arena *a = &c->arena;
        char rate[40]; /* a float's nine digits: 0.001, not 0.00100000004749745 */
        mf_text_put_double(rate, sizeof rate, 9, c->trainer->schedule.initial);
        mf_json *config = mf_json_new(a, MF_JSON_OBJECT);
        part = mf_json_new(a, MF_JSON_OBJECT);
        ok = ok && mf_json_add(a, config, "learning_rate", mf_json_new_number(a, mf_text_to_double(rate, NULL))) &&
             mf_json_add(a, part, "module", mf_json_new_string(a, "keras.optimizers")) &&
             mf_json_add(a, part, "class_name", mf_json_new_string(a, classes[g->optimizer])) &&
             mf_json_add(a, part, "config", config) &&
             mf_json_add(a, part, "registered_name", mf_json_new(a, MF_JSON_NULL)) &&
             mf_json_add(a, made, "optimizer", part);
    }
    if (loss)
        ok = ok && (part = mf_json_new_string(&c->arena, g->loss_name)) && mf_json_add(&c->arena, made, "loss", part);
    const mf_json *old = c->trainer->model->compile;
    for (const mf_json *m = old && old->type == MF_JSON_OBJECT ? old->first : NULL; ok && m; m = m->next) {
        if (mf_json_get(made, m->key))
            continue;
        ok = (part = MF_NEW(&c->arena, mf_json)) != NULL;
        if (ok) {
            *part = *m;
            part->next = NULL;
            ok = mf_json_add(&c->arena, made, m->key, part);
        }
    }
    *compile = made;
    return ok ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the checkpoint writer");
}

static memfit_status fetch(void *ctx, const void *from, void *to, uint64_t bytes, memfit_error *err)
{
    return mf_state_fetch(ctx, (mf_address)(uintptr_t)from, to, bytes, err);
}

memfit_status mf_checkpoint_create(mf_trainer *t, mf_checkpoint **checkpoint, memfit_error *err)
{
    const mf_graph *g = mf_trainer_graph(t);
    mf_checkpoint *c = mf_host_zalloc(t->host, sizeof *c);
    if (!c)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the checkpoint writer");
    c->trainer = t;
    c->variable_count = g->variable_count;
    c->weights = mf_host_zalloc(t->host, g->variable_count * sizeof *c->weights);
    c->optimizer = mf_host_zalloc(t->host, (g->variable_count + 2) * sizeof *c->optimizer);
    c->state_bytes = sizeof *c->state + metrics_bytes(t);
    c->state = mf_host_zalloc(t->host, c->state_bytes);
    memfit_status status = c->weights && c->optimizer && c->state
                               ? MEMFIT_OK
                               : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the checkpoint writer");
    mf_arena_init(&c->arena, t->host);
    const mf_json *compile = NULL;
    if (status == MEMFIT_OK)
        status = list_optimizer(c, g, err);
    if (status == MEMFIT_OK)
        status = changed_settings(c, g, &compile, err);
    if (status == MEMFIT_OK)
        status = list_weights(c, g, err);
    if (status == MEMFIT_OK) {
        mf_save_options o = {.weights = c->weights,
                             .weight_count = c->weight_count,
                             .optimizer = c->optimizer,
                             .optimizer_count = c->optimizer_count,
                             .loss_scale = g->needs_loss_scale ? &c->scale : NULL,
                             .scale_steps = g->needs_loss_scale ? &c->scale_steps : NULL,
                             .compile = compile,
                             .extra_name = member_name, /* a resumed run's result is not a checkpoint */
                             .fetch = t->device->reachable ? NULL : fetch,
                             .fetch_ctx = t,
                             .far_from = (const void *)(uintptr_t)t->arena.base,
                             .far_bytes = t->arena.bytes};
        if (t->options->out)
            status = mf_saver_create(t->host, t->model, &o, &c->plain, err);
        o.extra = c->state;
        o.extra_bytes = c->state_bytes;
        if (status == MEMFIT_OK && t->options->checkpoint)
            status = mf_saver_create(t->host, t->model, &o, &c->with_state, err);
    }
    if (status != MEMFIT_OK) {
        mf_checkpoint_destroy(c);
        return status;
    }
    *checkpoint = c;
    return MEMFIT_OK;
}

void mf_checkpoint_destroy(mf_checkpoint *c)
{
    if (!c)
        return;
    const memfit_host *host = c->trainer->host;
    uint32_t n = c->variable_count;
    if (c->plain)
        mf_saver_destroy(c->plain);
    if (c->with_state)
        mf_saver_destroy(c->with_state);
    mf_arena_destroy(&c->arena);
    mf_host_free(host, c->weights, n * sizeof *c->weights);
    mf_host_free(host, c->optimizer, (n + 2) * sizeof *c->optimizer);
    mf_host_free(host, c->state, c->state_bytes);
    mf_host_free(host, c, sizeof *c);
}

memfit_status mf_checkpoint_write(mf_checkpoint *c, const char *path, bool state, memfit_error *err)
{
    memfit_status status = mf_results_get(c->trainer, err);
    if (status != MEMFIT_OK)
        return status;
    c->iteration = (int64_t)c->trainer->state.iteration;
    c->rate = (float)(c->trainer->schedule.initial * c->trainer->state.rate_factor);
    c->scale = (float)c->trainer->state.loss_scale;
    c->scale_steps = (int64_t)c->trainer->state.good_steps;
    pack_state(c);
    return mf_saver_write(state ? c->with_state : c->plain, path, err);
}
