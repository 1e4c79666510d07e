/*
 * trainer_lengths.c: sequences of different lengths. Without --bucket all are padded to the longest; with it, there are
 * phases for up to four lengths in one arena, batches are of samples of similar length, and each runs in the phases of the
 * shortest length that suffices (data/lengths.h chooses them, data/feed_order.c makes the batches).
 */
#include "train/trainer.h"

#include "base/error.h"
#include "data/lengths.h"

#include <string.h>

const mf_array *mf_trainer_input(const mf_trainer *t, const mf_source *source, uint32_t index)
{
    const mf_model *m = t->model;
    const mf_array *a = mf_feeder_input(source, m->layers[m->inputs[index].layer].name, index, m->input_count);
    return a && (a->data || a->made || a->ragged) ? a : NULL;
}

bool mf_trainer_buckets(const mf_trainer *t)
{
    return t->mode == MF_MODE_TRAIN && (t->resumed.known ? t->resumed.bucket : t->options->bucket);
}

/* Is the first axis of this input's samples left open by the model? */
static bool is_open(const mf_trainer *t, uint32_t input)
{
    const mf_json *config = t->model->layers[t->model->inputs[input].layer].config;
    const mf_json *dims = mf_json_get(config, "batch_shape");
    dims = dims ? dims : mf_json_get(config, "batch_input_shape");
    return dims && dims->type == MF_JSON_ARRAY && dims->count >= 2 && mf_json_is_null(mf_json_at(dims, 1)) &&
           !t->options->input_rank;
}

/* ---- several numbers a step -------------------------------------------------------------------------------- */

/* Lists of numbers have no shape but the model's: samples of an input (T, 3) are steps of 3 numbers. */
void mf_trainer_shape_inputs(const mf_trainer *t, mf_source *source)
{
    for (uint32_t i = 0; i < t->model->input_count; i++) {
        const mf_array *a = mf_trainer_input(t, source, i);
        const mf_json *config = t->model->layers[t->model->inputs[i].layer].config;
        const mf_json *dims = mf_json_get(config, "batch_shape");
        dims = dims ? dims : mf_json_get(config, "batch_input_shape");
        const size_t rank = t->options->input_rank ? t->options->input_rank + 1 : dims ? dims->count : 0;
        mf_shape step = {0};
        if (!a || rank > MF_MOST_DIMS)
            continue;
        for (size_t d = 2; d < rank; d++) {
            const int64_t n =
                t->options->input_rank ? t->options->input_shape[d - 1] : mf_json_integer(mf_json_at(dims, d), -1);
            step.dim[step.rank++] = n > 0 ? n : 0;
        }
        mf_tfrecord_use(source, a, &step);
    }
}

/* The same of targets and weights, whose shapes the model's layers say. */
memfit_status mf_trainer_shape_targets(mf_trainer *t, memfit_error *err)
{
    mf_source *sources[2] = {t->source, t->validation_source};
    bool differ = t->source->lengths || (t->validation_source && t->validation_source->lengths);
    mf_graph *g = NULL;
    if (!differ)
        return MEMFIT_OK;
    memfit_status status = t->graph_source.make(t->graph_source.ctx, t->host, t->mode, 1, false, &g, err);
    if (status != MEMFIT_OK)
        return status;
    for (uint32_t i = 0; i < g->feed_count; i++) {
        const mf_shape *shape = &g->tensors[g->feeds[i].tensor].shape;
        mf_shape step = {.rank = shape->rank > 2 && g->feeds[i].role == 1 ? shape->rank - 2 : 0};
        memcpy(step.dim, shape->dim + 2, step.rank * sizeof *step.dim);
        for (int s = 0; s < 2 && g->feeds[i].role; s++) {
            const mf_array *a = !sources[s]             ? NULL
                                : g->feeds[i].role == 2 ? mf_source_find(sources[s], "sample_weight")
                                                        : mf_feeder_array(sources[s], g, i);
            if (a && a->made && a->ragged)
                mf_tfrecord_use(sources[s], a, &step);
        }
    }
    mf_graph_destroy(g);
    for (int s = 0; s < 2; s++)
        if (sources[s])
            mf_tfrecord_settle_lengths(sources[s]);
    return MEMFIT_OK;
}

/* ---- padding ----------------------------------------------------------------------------------------------- */

static bool masks(const mf_model *m)
{
    for (uint32_t i = 0; i < m->layer_count; i++)
        if (strcmp(m->layers[i].class_name, "Masking") == 0 ||
            mf_json_get_bool(m->layers[i].config, "mask_zero", false))
            return true;
    return false;
}

/* Sequences are padded to the longest; said once, with what that costs. */
static void say_padding(const mf_trainer *t)
{
    int64_t bound;
    double share = 0;
    if (!t->source->lengths)
        return;
    mf_lengths_choose(t->source->lengths, t->source->samples, 1, &bound, &share);
    mf_log_write(&t->log, MF_LOG_NOTE,
                 "%s: sequences of up to %lld steps, padded with 0 at the end: %.0f %% is padding%s", t->source->path,
                 (long long)bound, 100 * share, t->mode == MF_MODE_TRAIN && share > 0.1 ? "; --bucket pads less" : "");
    if (!masks(t->model))
        mf_log_write(&t->log, MF_LOG_WARNING,
                     "no layer masks the padding: it counts as any other step (Embedding(mask_zero=True) or Masking "
                     "leave it out)");
}

/* --bucket: the lengths to plan for, and which inputs have them. */
memfit_status mf_trainer_choose_lengths(mf_trainer *t, memfit_error *err)
{
    enum { MOST = 4 }; /* a fifth one hardly ever saves what its kernels take */
    mf_model_graphs *g = &t->graphs;
    mf_source *sources[2] = {t->source, t->validation_source};
    const mf_array *first = NULL;
    memfit_status status = MEMFIT_OK;
    double share = 0, alone = 0;
    int64_t bound, longest = 0;
    if (!mf_trainer_buckets(t)) {
        say_padding(t);
        return MEMFIT_OK;
    }
    if (t->resumed.known && t->resumed.position && t->resumed.batch && t->resumed.batch != t->options->batch)
        return mf_fail(err, MEMFIT_CONFLICT,
                       "an epoch in batches of similar length can only be gone on with in batches of the same size\n"
                       "--batch-size %lld goes on as before",
                       (long long)t->resumed.batch);
    for (uint32_t i = 0, k = 0; i < t->model->input_count && k < g->options.known_count; i++) {
        const mf_array *a = mf_trainer_input(t, t->source, i);
        if (!a || a->shape.rank == 0)
            continue; /* as know_shapes does */
        if (is_open(t, i) && a->shape.rank >= 2) {
            g->varied |= 1u << k;
            first = first ? first : a;
        }
        k++;
    }
    if (!first)
        return mf_fail(
            err, MEMFIT_CONFLICT,
            "--bucket: no input of the model leaves its length open\n"
            "build it with keras.Input((None,)), or (None, features): samples are padded to one length else");
    if (t->source->samples < 1)
        return MEMFIT_OK;
    for (int s = 0; s < 2 && status == MEMFIT_OK; s++)
        for (uint32_t i = 0; sources[s] && !sources[s]->lengths && i < t->model->input_count && status == MEMFIT_OK;
             i++) {
            const mf_array *a = mf_trainer_input(t, sources[s], i);
            if (a && is_open(t, i) && a->shape.rank >= 2 && (a->data || a->made || s))
                status = mf_lengths_measure(sources[s], a, err);
        }
    if (status != MEMFIT_OK)
        return status;
    if (!t->source->lengths) {
        mf_log_write(&t->log, MF_LOG_NOTE, "%s: all samples have one length: --bucket changes nothing",
                     t->source->path);
        g->varied = 0;
        return MEMFIT_OK;
    }
    mf_lengths_choose(t->source->lengths, t->source->samples, 1, &bound, &alone);
    g->length_count = mf_lengths_choose(t->source->lengths, t->source->samples, MOST, g->lengths, &share);
    longest = g->lengths[0];
    for (int64_t i = 0; t->validation_source && t->validation_source->lengths && i < t->validation_source->samples; i++)
        longest = t->validation_source->lengths[i] > longest ? t->validation_source->lengths[i] : longest;
    g->lengths[0] = longest;
    for (uint32_t k = 0; k < g->options.known_count; k++)
        if (g->varied >> k & 1)
            t->known[k].sample.dim[0] = longest;
    char text[128];
    size_t n = 0;
    for (uint32_t i = g->length_count; i-- > 0 && n < sizeof text;)
        n += (size_t)snprintf(text + n, sizeof text - n, "%lld%s", (long long)g->lengths[i], i ? ", " : "");
    mf_log_write(&t->log, MF_LOG_NOTE,
                 "%s: batches of similar length, padded to %s steps: %.0f %% is padding, %.0f %% with one length",
                 t->source->path, text, 100 * share, 100 * alone);
    return MEMFIT_OK;
}
