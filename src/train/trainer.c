/* trainer.c: opening and closing: options, model, backend, schedule, data. See trainer.h for the order of things. */
#include "train/trainer.h"

#include "base/error.h"
#include "base/text.h"
#include "base/words.h"
#include "graph/passes/optimizer.h"
#include "train/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static void note(void *ctx, mf_log_level level, const char *text)
{
    mf_trainer *t = ctx;
    const memfit_train_options *o = t->options;
    const mf_log_level most = o->verbose ? MF_LOG_DETAIL : o->quiet ? MF_LOG_WARNING : MF_LOG_NOTE;
    if (level <= most && o->note)
        o->note(o->ctx, text);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static memfit_status check_options(const memfit_train_options *o, memfit_error *err)
{
    if (!o->model || !o->data)
        return mf_fail(err, MEMFIT_INVALID, "a model and data are needed");
    if (o->batch < 1 || o->batch > INT32_MAX)
        return mf_fail(err, MEMFIT_INVALID, "batch size %lld: must be 1 to %d", (long long)o->batch, INT32_MAX);
    if (o->validation_split < 0 || o->validation_split >= 1)
        return mf_fail(err, MEMFIT_INVALID, "validation split %g: must be from 0 to below 1", o->validation_split);
    if (o->validation_split > 0 && o->validation_data)
        return mf_fail(err, MEMFIT_CONFLICT, "validation data and a validation split exclude each other");
    if (o->learning_rate < 0)
        return mf_fail(err, MEMFIT_INVALID, "learning rate %g: must be positive", o->learning_rate);
    if (o->pieces < 0 || o->pieces > o->batch)
        return mf_fail(err, MEMFIT_INVALID, "%lld micro-batches: a batch of %lld has at most %lld",
                       (long long)o->pieces, (long long)o->batch, (long long)o->batch);
    if (o->validation_batch < 0 || o->validation_batch > INT32_MAX)
        return mf_fail(err, MEMFIT_INVALID, "validation batch size %lld: must be 0 (as the batch) to %d",
                       (long long)o->validation_batch, INT32_MAX);
    if (o->epochs < 0 || o->steps < 0 || o->save_freq < 0 || o->early_stopping < 0 || o->reduce_on_plateau < 0 ||
        o->prefetch < 0)
        return mf_fail(err, MEMFIT_INVALID, "epochs, steps and their like must not be negative");
    return MEMFIT_OK;
}

/* The rate of --learning-rate, now or when a run that is resumed began; else the file's. */
static memfit_status open_schedule(mf_trainer *t, memfit_error *err)
{
    const memfit_train_options *o = t->options;
    const mf_json *optimizer = mf_keras_optimizer(t->model->compile, NULL);
    const mf_json *rate = mf_json_get(mf_json_get(optimizer, "config"), "learning_rate");
    const char *in_file = mf_json_string(mf_json_get(optimizer, "class_name"), mf_json_string(optimizer, ""));
    const char *name = o->optimizer ? o->optimizer : *in_file ? in_file : "adam";
    bool same = strcasecmp(name, in_file) == 0; /* another optimizer than the file's: at its own default rate */
    mf_optimizer known;
    double first = mf_optimizer_parse(name, &known) ? mf_optimizer_learning_rate(known) : 0.001;
    if (o->learning_rate > 0 || (same && t->resumed.rate_given)) {
        t->rate_given = true;
        first = o->learning_rate > 0 ? o->learning_rate : t->resumed.rate;
    }
    return mf_schedule_read(same && !t->rate_given ? rate : NULL, first, &t->schedule, err);
}

/* Of a checkpoint: precision stays as it was, for the same bits. */
static void take_up(mf_trainer *t)
{
    const memfit_train_options *o = t->options;
    t->resumed = mf_checkpoint_settings(t->model);
    const mf_resumed *r = &t->resumed;
    if (!o->precision)
        t->graphs.options.precision = r->precision;
    else if (r->batch && strcmp(o->precision, r->precision ? r->precision : "") != 0)
        mf_log_write(&t->log, MF_LOG_WARNING, "%s was trained with %s: from here on with %s", o->resume,
                     r->precision ? r->precision : "the model's own precision", o->precision);
    if (r->made_by && r->made_by != t->made_by)
        mf_log_write(
            &t->log, MF_LOG_NOTE,
            "%s was made on another device, with other versions of its libraries, other times of memfit tune, or "
            "only one of the two runs has --allow-nondeterministic: from here on: same maths, different "
            "rounding (reordered); here: %s",
            o->resume, t->backend->made_by[0] ? t->backend->made_by : "cpu");
    if (r->batch && r->batch != o->batch)
        mf_log_write(&t->log, MF_LOG_WARNING,
                     "%s was trained in batches of %lld: from here on they are of %lld (--batch-size %lld goes on as "
                     "before)",
                     o->resume, (long long)r->batch, (long long)o->batch, (long long)r->batch);
}

memfit_status mf_trainer_open(mf_trainer *t, const memfit_train_options *options, mf_mode mode, memfit_error *err)
{
    *t = (mf_trainer){.options = options,
                      .mode = mode,
                      .footprint =
                          options->device && mf_words_card(options->device) ? &mf_footprint_device : &mf_footprint_cpu,
                      .flag_variable = MF_NONE};
    t->log = (mf_log){note, t};
    mf_limit_host_init(&t->guard, options->host, UINT64_MAX);
    t->host = &t->guard.host;
    memfit_status status = check_options(options, err);
    if (status != MEMFIT_OK)
        return status;
    mf_trainer_guard(t, true);
    mf_limit_host_init(&t->loading, t->host, 0);
    mf_limit_host_init(&t->planning, t->host, UINT64_MAX);
    mf_trainer_set_room(t);
    status = mf_model_load_flags(&t->loading.host,
                                 mode == MF_MODE_TRAIN && options->resume ? options->resume : options->model,
                                 MF_LOAD_VERIFY, &t->model, err);
    if (status != MEMFIT_OK)
        return mf_trainer_explain_room(t, status, err);
    status = mf_trainer_open_device(t, err);
    if (status != MEMFIT_OK)
        return status;
    t->graphs = (mf_model_graphs){.model = t->model};
    t->graphs.options = (mf_lower_options){.optimizer = options->optimizer,
                                           .loss = options->loss,
                                           .precision = options->precision,
                                           .input_dtype = MF_DTYPE_COUNT,
                                           .dim_names = options->dim_names,
                                           .dim_values = options->dim_values,
                                           .dim_count = (uint32_t)options->dim_count};
    t->graphs.options.input_shape.rank = options->input_rank;
    memcpy(t->graphs.options.input_shape.dim, options->input_shape, sizeof options->input_shape);
    mf_model_graph_source(&t->graphs, &t->graph_source);
    if (mode == MF_MODE_TRAIN && options->resume)
        take_up(t);
    status = mode == MF_MODE_TRAIN ? open_schedule(t, err) : MEMFIT_OK;
    if (status != MEMFIT_OK)
        return status;
    mf_trainer_set_room(t);
    status = mf_trainer_explain_room(t, mf_trainer_open_data(t, err), err);
    t->loading.limit_bytes = UINT64_MAX; /* what is open counts as the fixed cost that admission measures */
    return status;
}

void mf_trainer_close(mf_trainer *t)
{
    mf_trainer_withdraw(t);
    mf_plan_destroy(t->next_plan);
    if (t->ring) { /* before the feeders, whose layers its workers have hands for */
        mf_feeder *feeders[2] = {t->feeder, t->validation_feeder};
        mf_ring_destroy(t->ring);
        for (int i = 0; i < 2; i++)
            if (feeders[i])
                mf_feeder_use_ring(feeders[i], NULL);
    }
    mf_feeder_destroy(t->feeder);
    mf_feeder_destroy(t->validation_feeder);
    if (t->front_backend)
        t->front_backend->table->destroy(t->front_backend);
    mf_source_close(t->source);
    mf_source_close(t->validation_source);
    mf_host_free(t->host, t->kept_metrics, t->kept_bytes + 1);
    mf_host_free(&t->loading.host, t->class_weights, (size_t)t->class_count * sizeof(double));
    mf_trainer_close_device(t);
    mf_model_destroy(t->model);
}

const mf_graph *mf_trainer_graph(const mf_trainer *t)
{
    return t->plan->phases[0].graph;
}
