/*
 * trainer_data.c: which samples a trainer takes from where: sources opened, split into training and validation as Keras
 * does (the last fraction, before any shuffling), weights of classes, and the feeders of an admitted plan.
 */
#include "train/trainer.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "data/class_weights.h"
#include "data/sample_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* However low the limit: a small model is read, so that the refusal can say what would suffice. */
enum { ANSWER_BYTES = 1 << 20 };
enum { MOST_SYNTHETIC = 1 << 30 }; /* samples; their number times a sample's bytes stays far from overflow */

/* "synthetic" or "synthetic:N"; *samples is 0 when no number is given, -1 when it is none. */
static bool is_synthetic(const char *name, int64_t *samples)
{
    if (strncmp(name, "synthetic", 9) != 0 || (name[9] && name[9] != ':'))
        return false;
    char *end = NULL;
    *samples = name[9] ? strtoll(name + 10, &end, 10) : 0;
    if (end && (*end || *samples > MOST_SYNTHETIC))
        *samples = -1;
    return true;
}

/* How many columns of a table are inputs: what the model's only input takes; 0 when it cannot be told. */
static memfit_status input_columns(mf_trainer *t, int64_t *inputs, memfit_error *err)
{
    mf_graph *g;
    uint32_t count = 0;
    memfit_status status = t->graph_source.make(t->graph_source.ctx, t->host, t->mode, 1, false, &g, err);
    if (status != MEMFIT_OK)
        return status;
    for (uint32_t i = 0; i < g->feed_count; i++)
        if (g->feeds[i].role == 0) {
            *inputs = (int64_t)mf_shape_count(&g->tensors[g->feeds[i].tensor].shape);
            count++;
        }
    *inputs = count == 1 ? *inputs : 0;
    mf_graph_destroy(g);
    return MEMFIT_OK;
}

static uint64_t resident(void)
{
    mf_os_memory m;
    return mf_os_process_memory(&m, NULL) == MEMFIT_OK ? m.rss_anon + m.rss_shmem : 0;
}

void mf_trainer_set_room(mf_trainer *t)
{
    const uint64_t limit = t->footprint->host ? t->options->memory_bytes : 0, now = resident();
    uint64_t room = limit > now + ANSWER_BYTES ? limit - now : ANSWER_BYTES;
    t->loading.limit_bytes = t->loading.live_bytes + (limit ? room : mf_os_available_memory());
    t->loading.refused_bytes = 0;
}

void mf_trainer_guard(mf_trainer *t, bool on)
{
    const uint64_t limit = t->footprint->host ? t->options->memory_bytes : 0;
    if (!t->guard_bytes && limit) { /* before anything is loaded */
        const uint64_t least = resident() + ANSWER_BYTES, error = t->footprint->error();
        t->guard_bytes = limit > least + error ? limit - error : least;
    }
    mf_limit_host_watch(&t->guard, on && limit ? t->guard_bytes : UINT64_MAX, resident);
}

bool mf_trainer_was_refused(const mf_trainer *t, memfit_status status)
{
    return status == MEMFIT_NO_HOST_MEMORY &&
           (t->guard.refused_bytes || t->loading.refused_bytes || t->planning.refused_bytes);
}

memfit_status mf_trainer_explain_room(const mf_trainer *t, memfit_status status, memfit_error *err)
{
    const uint64_t limit = t->footprint->host ? t->options->memory_bytes : 0;
    if (!mf_trainer_was_refused(t, status) || !err)
        return mf_trainer_was_refused(t, status) ? MEMFIT_OUT_OF_MEMORY : status;
    char what[MEMFIT_ERROR_TEXT], need[24], allowed[24];
    const uint64_t refused =
        t->loading.refused_bytes > t->guard.refused_bytes ? t->loading.refused_bytes : t->guard.refused_bytes;
    const uint64_t needed = resident() + refused;
    snprintf(what, sizeof what, "%s", err->message);
    mf_fail(err, MEMFIT_OUT_OF_MEMORY, "%.300s: loading needs at least %s (%llu bytes), %s %s", what,
            mf_format_need(needed, need, sizeof need), (unsigned long long)needed,
            limit ? "the limit is" : "the machine can give no more than",
            memfit_size_format(limit ? limit : mf_os_available_memory(), allowed, sizeof allowed));
    err->requested_bytes = needed;
    err->limit_bytes = limit;
    return MEMFIT_OUT_OF_MEMORY;
}

/* Images are as large as the model's first input that takes some; what it leaves open the options say, or Keras's 256. */
static void wish_for_images(const mf_trainer *t, mf_source_wish *wish)
{
    const memfit_train_options *o = t->options;
    const mf_model *m = t->model;
    int64_t side[3] = {-1, -1, -1};
    for (uint32_t i = 0; i < m->input_count; i++) {
        const mf_json *config = m->layers[m->inputs[i].layer].config, *dims = mf_json_get(config, "batch_shape");
        dims = dims ? dims : mf_json_get(config, "batch_input_shape");
        if (!dims || dims->type != MF_JSON_ARRAY || dims->count != 4)
            continue;
        for (size_t d = 0; d < 3; d++)
            side[d] = mf_json_integer(mf_json_at(dims, d + 1), -1);
        break;
    }
    if (o->input_rank == 3)
        memcpy(side, o->input_shape, sizeof side);
    wish->height = o->image_height ? o->image_height : side[0] > 0 ? side[0] : 0;
    wish->width = o->image_width ? o->image_width : side[1] > 0 ? side[1] : 0;
    wish->channels = side[2] == 1 || side[2] == 4 ? side[2] : 3;
    wish->bytes = o->image_bytes;
    wish->scaled = o->image_scaled;
    wish->decode_bytes = o->decode_bytes;
    wish->unlabelled = t->mode == MF_MODE_PREDICT;
    wish->features = o->features;
    wish->classes = o->classes;
    wish->lengths = mf_trainer_buckets(t);
    wish->split = o->validation_split > 0 && !o->validation_data;
    wish->seed = (uint32_t)o->seed;
}

static bool caches_in_memory(const mf_trainer *t)
{
    return t->options->cache && strcmp(t->options->cache, "memory") == 0;
}

static memfit_status open_source(mf_trainer *t, const char *name, mf_source **source, memfit_error *err)
{
    int64_t samples;
    if (!is_synthetic(name, &samples)) {
        mf_source_wish wish = {0};
        char beside[MF_MOST_PATH];
        wish_for_images(t, &wish);
        if (t->options->cache && !caches_in_memory(t) && strcmp(t->options->cache, "off") != 0) {
            /* validation data of its own: FILE.validation */
            snprintf(beside, sizeof beside, "%s%s", t->options->cache, source == &t->source ? "" : ".validation");
            wish.cache = beside;
        }
        memfit_status status = mf_source_is_table(name) ? input_columns(t, &wish.inputs, err) : MEMFIT_OK;
        return status == MEMFIT_OK ? mf_source_open_as(&t->loading.host, name, &wish, &t->log, source, err) : status;
    }
    if (samples < 0 || (name[9] && samples == 0))
        return mf_fail(err, MEMFIT_INVALID, "%s: synthetic:N needs a number of samples, as in synthetic:256", name);
    return mf_source_synthetic(&t->loading.host, samples ? samples : t->options->batch * 8, t->options->seed, source,
                               err);
}

static memfit_status fill_synthetic(mf_trainer *t, mf_source *source, memfit_error *err)
{
    if (strcmp(source->path, "synthetic") != 0 || source->count)
        return MEMFIT_OK;
    mf_graph *g;
    memfit_status status = t->graph_source.make(t->graph_source.ctx, t->host, t->mode, 1, false, &g, err);
    if (status == MEMFIT_OK) {
        status = mf_synthetic_for(source, g, err);
        mf_graph_destroy(g);
    }
    return status;
}

/* The labels that have names: texts, or the folders of classes; NULL: there are none. */
static const mf_array *named_labels(const mf_source *source)
{
    const mf_array *found = mf_source_find(source, "y");
    for (uint32_t i = 0; i < source->count && !(found && found->names && !found->unusable); i++)
        if (strcmp(source->arrays[i].name, "sample_weight") != 0)
            found = &source->arrays[i];
    return found && found->names && !found->unusable ? found : NULL;
}

/* Names in the order of their numbers, to whoever wants them; a few to the log. */
static void tell_names(const mf_trainer *t, const mf_array *labels)
{
    const memfit_train_options *o = t->options;
    char text[200];
    size_t n = 0;
    for (uint32_t i = 0; i < labels->name_count; i++) {
        if (o->class_name)
            o->class_name(o->ctx, i, labels->names[i]);
        if (n + 48 < sizeof text)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%u %.32s", i ? ", " : "", i, labels->names[i]);
    }
    if (labels->generator != 3 || labels->codes)
        mf_log_write(&t->log, MF_LOG_NOTE, "%s: %s has %u names, numbered %s: %s%s", t->source->path, labels->name,
                     labels->name_count, o->classes ? "as given" : "as they sort", text,
                     n + 48 >= sizeof text ? ", ..." : "");
}

/* A loss that compares with one-hot rows gets labels that have names so. */
static memfit_status fit_labels(mf_trainer *t, mf_source *source, memfit_error *err)
{
    const mf_array *labels = named_labels(source);
    if (!labels || t->mode == MF_MODE_PREDICT)
        return MEMFIT_OK;
    mf_graph *g;
    memfit_status status = t->graph_source.make(t->graph_source.ctx, t->host, t->mode, 1, false, &g, err);
    if (status != MEMFIT_OK)
        return status;
    const bool folders = source->class_count > 0;
    const int64_t classes = mf_feeder_one_hot(g), has = mf_feeder_classes(g);
    mf_graph_destroy(g);
    if (classes && folders && classes != (int64_t)source->class_count)
        return mf_fail(err, MEMFIT_DAMAGED, "%s has %u classes (sub-folders), the model has %lld", source->path,
                       source->class_count, (long long)classes);
    if (!folders && has && labels->name_count > has)
        return mf_fail(err, MEMFIT_DAMAGED, "%s: %s has %u different names, the model has %lld classes", source->path,
                       labels->name, labels->name_count, (long long)has);
    if (!folders && has && labels->name_count < has && !t->options->classes && t->mode == MF_MODE_EVALUATE)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s: %s has %u different names, the model has %lld classes: memfit cannot tell which is which\n"
                       "--classes A,B,C lists them in their order (train says it, --json has it in classes)",
                       source->path, labels->name, labels->name_count, (long long)has);
    if (classes)
        mf_source_one_hot(source, classes);
    if (source == t->source)
        tell_names(t, labels);
    return MEMFIT_OK;
}

static memfit_status read_class_weights(mf_trainer *t, memfit_error *err)
{
    const char *path = t->options->class_weight;
    mf_mapping map;
    memfit_status status = mf_os_map_file(path, &map, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_class_weights_read(&t->loading.host, (const char *)map.data, map.bytes, &t->class_weights,
                                   &t->class_count, err);
    mf_os_unmap_file(&map);
    return status == MEMFIT_OK ? status : mf_error_prefix(err, status, "%s", path);
}

/* A model may leave sizes open: a text's length, an image's height. They are the data's, as in Keras. */
static void know_shapes(mf_trainer *t)
{
    mf_lower_options *o = &t->graphs.options;
    for (uint32_t i = 0; i < t->model->input_count && o->known_count < MF_TRAINER_KNOWN; i++) {
        const mf_array *a = mf_trainer_input(t, t->source, i);
        if (!a || a->shape.rank == 0)
            continue;
        mf_known_shape *k = &t->known[o->known_count++];
        *k = (mf_known_shape){.input = t->model->layers[t->model->inputs[i].layer].name,
                              .sample.rank = a->shape.rank - 1};
        memcpy(k->sample.dim, a->shape.dim + 1, k->sample.rank * sizeof *k->sample.dim);
        const mf_array *held = a->ragged && t->validation_source ? mf_trainer_input(t, t->validation_source, i) : NULL;
        if (held && held->ragged && held->shape.dim[1] > k->sample.dim[0]) /* the longest of all */
            k->sample.dim[0] = held->shape.dim[1];
    }
    o->known = t->known;
}

/* What float32 holds exactly in fewer bytes. On the cpu device only uint8, which pictures are. */
static bool is_narrow(const mf_trainer *t, mf_dtype dtype)
{
    bool sent = t->device && !t->device->reachable;
    return dtype == MF_U8 || (sent && (dtype == MF_I8 || dtype == MF_BOOL || dtype == MF_F16 || dtype == MF_BF16 ||
                                       dtype == MF_I16 || dtype == MF_U16));
}

/* uint8 inputs, and others that are narrow, stay what they are until they are used; not where validation brings fractions.
 * Which array is the input is the feeder's to say: the first of a file may be its labels. */
static void narrow_inputs(mf_trainer *t)
{
    mf_lower_options *o = &t->graphs.options;
    for (uint32_t i = 0; i < t->model->input_count && i < 64; i++) {
        const mf_array *x = mf_trainer_input(t, t->source, i);
        const mf_array *held = x && t->validation_source ? mf_trainer_input(t, t->validation_source, i) : NULL;
        bool first = o->input_dtype == MF_DTYPE_COUNT;
        if (x && is_narrow(t, x->dtype) && (!held || held->dtype == x->dtype) && (first || o->input_dtype == x->dtype))
            o->input_dtype = x->dtype;
        else
            o->own_inputs |= (uint64_t)1 << i;
    }
}

/* Weights of each step of a sequence, as Keras takes them for outputs that have steps. */
static bool weighs_tokens(const mf_source *source)
{
    const mf_array *w = source ? mf_source_find(source, "sample_weight") : NULL;
    return w && !w->unusable && w->shape.rank > 1 && (w->ragged || w->sample_bytes > mf_dtype_bytes(w->dtype));
}

memfit_status mf_trainer_open_data(mf_trainer *t, memfit_error *err)
{
    const memfit_train_options *o = t->options;
    if (strcmp(o->data, "-") == 0 && o->resume)
        return mf_fail(
            err, MEMFIT_CONFLICT,
            "a run on standard input cannot be resumed: memfit cannot tell whether the same samples come again\n"
            "save them to a file");
    if (o->validation_data && strcmp(o->validation_data, "-") == 0)
        return mf_fail(err, MEMFIT_INVALID, "validation data cannot come from standard input: name a file");
    memfit_status status = open_source(t, o->data, &t->source, err);
    if (status == MEMFIT_OK && o->validation_data)
        status = open_source(t, o->validation_data, &t->validation_source, err);
    if (status == MEMFIT_OK && o->class_weight)
        status = read_class_weights(t, err);
    if (status != MEMFIT_OK)
        return status;
    for (uint32_t i = 0; o->image_scaled && i < t->source->count; i++)
        if (t->source->arrays[i].picture)
            mf_log_write(&t->log, MF_LOG_NOTE,
                         "%s: large JPEGs are decoded smaller: other values than Keras's (changed)", t->source->path);
    if (t->class_weights && t->model->output_count > 1)
        return mf_fail(err, MEMFIT_CONFLICT,
                       "class weights are for models with one output, as in Keras: this one has %u\n"
                       "an array sample_weight in the data weighs samples, for all outputs",
                       t->model->output_count);
    mf_trainer_shape_inputs(t, t->source);
    if (t->validation_source)
        mf_trainer_shape_inputs(t, t->validation_source);
    know_shapes(t);
    status = mf_trainer_shape_targets(t, err);
    if (status == MEMFIT_OK)
        status = mf_trainer_choose_lengths(t, err);
    if (status != MEMFIT_OK)
        return status;
    narrow_inputs(t);
    t->graphs.options.sample_weights =
        t->mode != MF_MODE_PREDICT && (t->class_weights || mf_source_find(t->source, "sample_weight") ||
                                       (t->validation_source && mf_source_find(t->validation_source, "sample_weight")));
    t->graphs.options.token_weights = weighs_tokens(t->source) || weighs_tokens(t->validation_source);
    status = fill_synthetic(t, t->source, err);
    if (status == MEMFIT_OK && t->validation_source)
        status = fill_synthetic(t, t->validation_source, err);
    if (status == MEMFIT_OK)
        status = fit_labels(t, t->source, err);
    if (status == MEMFIT_OK && t->validation_source)
        status = fit_labels(t, t->validation_source, err);
    if (status != MEMFIT_OK)
        return status;
    t->train_samples = t->source->samples;
    t->batch = o->batch;
    if (t->validation_source) {
        t->validation_samples = t->validation_source->samples;
    } else if (o->validation_split > 0) {
        int64_t all = t->source->samples, keep = (int64_t)floor((double)all * (1 - o->validation_split));
        if (t->source->mixed) /* image_dataset_from_directory rounds the other part */
            keep = all - (int64_t)((double)all * o->validation_split);
        t->train_samples = keep;
        t->validation_samples = t->source->samples - keep;
        if (keep < 1 || t->validation_samples < 1)
            return mf_fail(err, MEMFIT_INVALID, "a validation split of %g leaves %lld of %lld samples to train on",
                           o->validation_split, (long long)keep, (long long)t->source->samples);
    }
    if (t->resumed.position && (int64_t)t->resumed.position < t->train_samples)
        t->samples_left = t->train_samples - (int64_t)t->resumed.position;
    /* A batch larger than the data is the data. */
    t->batch = t->batch < t->train_samples ? t->batch : t->train_samples;
    t->validation_batch = o->validation_batch ? o->validation_batch : o->batch;
    if (t->validation_samples && t->validation_batch > t->validation_samples)
        t->validation_batch = t->validation_samples;
    return mf_trainer_choose_front(t, err);
}

enum { MOST_WORKERS = 64 };

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Where samples must be made: workers and a ring of batches, for training and validation alike. */
static memfit_status make_ring(mf_trainer *t, memfit_error *err)
{
    const memfit_train_options *o = t->options;
    mf_feeder *feeders[2] = {t->feeder, t->validation_feeder};
    mf_ring_options r = {.workers = o->workers   ? o->workers
                                    : o->threads ? o->threads
                                                 : mf_os_cpu_count(),
                         .skip_most = o->skip_bad,
                         .log = &t->log};
    mf_feeder *first = NULL;
    for (int i = 0; i < 2; i++) {
        const mf_feeder *f = feeders[i];
        if (!f || !f->made_links)
            continue;
        first = first ? first : feeders[i];
        r.slot_bytes = most(r.slot_bytes, f->slot_bytes);
        r.spare_bytes = most(r.spare_bytes, f->spare_bytes);
        r.room_bytes = most(r.room_bytes, f->source->room_bytes);
        r.front = f->front ? f->front : r.front;
        int64_t piece = i ? (f->made_links > 1 ? t->validation_batch : 1) : t->batch;
        r.slots = (int64_t)most((uint64_t)r.slots, (uint64_t)(i || o->prefetch < 2 ? piece : piece * o->prefetch));
    }
    if (!first)
        return MEMFIT_OK;
    r.workers = r.workers < MOST_WORKERS ? r.workers : MOST_WORKERS;
    memfit_status status = mf_ring_create(&t->loading.host, &r, &t->ring, err);
    for (int i = 0; status == MEMFIT_OK && i < 2; i++)
        if (feeders[i] && feeders[i]->made_links)
            mf_feeder_use_ring(feeders[i], t->ring);
    if (status == MEMFIT_OK)
        mf_ring_warm_up(t->ring, first);
    return status;
}

/* As the run had it that is resumed; as asked; else by what the files are and lie on. */
static void choose_order(const mf_trainer *t, mf_feeder_options *f)
{
    const int64_t asked = t->options->shuffle_window, samples = t->train_samples;
    const mf_source *s = t->source;
    char each[24], all[24];
    if (!f->shuffle || f->bucket)
        return;
    if (t->resumed.known) {
        f->block = t->resumed.block;
        f->window = t->resumed.window;
        bool sound = f->block > 0 && f->window >= f->block && f->window % f->block == 0;
        if (!sound)
            f->block = f->window = 0;
    } else if (asked > 0) {
        f->window = asked;
        mf_order_round(samples, &f->block, &f->window);
    } else if (asked == 0 && s->stored_bytes) {
        mf_order_choose(s->stored_bytes, samples, mf_os_total_memory(), mf_os_disk_is_slow(s->stored_in), &f->block,
                        &f->window);
    }
    const uint64_t sample_bytes = s->stored_bytes / (uint64_t)s->samples;
    if (f->block)
        mf_log_write(&t->log, MF_LOG_NOTE,
                     "%s: shuffled in blocks of %lld samples (%s), mixed within windows of %lld (%s)%s", s->path,
                     (long long)f->block, memfit_size_format(sample_bytes * (uint64_t)f->block, each, sizeof each),
                     (long long)f->window, memfit_size_format(sample_bytes * (uint64_t)f->window, all, sizeof all),
                     asked == 0 && !t->resumed.known ? ": reading samples from all over it would be slow" : "");
}

/* Feeds are numbered alike in all graphs. */
static void note_lengths(const mf_trainer *t, mf_feeder *feeder)
{
    for (uint32_t p = 0; p < t->plan->phase_count; p++)
        mf_feeder_note_length(feeder, t->plan->phases[p].length, t->plan->phases[p].graph);
}

memfit_status mf_trainer_bind_data(mf_trainer *t, memfit_error *err)
{
    if (t->feeder)
        return MEMFIT_OK;
    mf_feeder_options f = {.samples = t->train_samples,
                           .shuffle = t->mode == MF_MODE_TRAIN && !t->options->no_shuffle,
                           .listed = t->resumed.known && !t->resumed.computed_order,
                           .bucket = mf_trainer_buckets(t) && t->graphs.length_count ? t->batch : 0,
                           .bounds = t->graphs.lengths,
                           .bound_count = t->graphs.length_count,
                           .class_weights = t->class_weights,
                           .class_count = t->class_count,
                           .targets = t->mode != MF_MODE_PREDICT,
                           .front_backend = t->front_backend};
    choose_order(t, &f);
    mf_trainer_set_room(t);
    memfit_status status = mf_feeder_create(&t->loading.host, t->source, mf_trainer_graph(t), &f, &t->feeder, err);
    if (status == MEMFIT_OK)
        note_lengths(t, t->feeder);
    if (status == MEMFIT_OK && t->validation_samples == 0)
        status = make_ring(t, err);
    if (status != MEMFIT_OK || t->validation_samples == 0)
        return mf_trainer_explain_room(t, status, err);
    f.shuffle = false;
    f.class_weights = NULL; /* as in Keras: validation counts every class alike */
    f.class_count = 0;
    f.first = t->validation_source ? 0 : t->train_samples;
    f.samples = t->validation_samples;
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t p = 0; p < t->plan->phase_count; p++)
        if (t->plan->phases[p].role == MF_PHASE_VALIDATE)
            g = t->plan->phases[p].graph;
    status = mf_feeder_create(&t->loading.host, t->validation_source ? t->validation_source : t->source, g, &f,
                              &t->validation_feeder, err);
    if (status == MEMFIT_OK)
        note_lengths(t, t->validation_feeder);
    if (status == MEMFIT_OK)
        status = make_ring(t, err);
    return mf_trainer_explain_room(t, status, err);
}

/* ---- samples kept in memory ------------------------------------------------------------------------------- */

enum { CACHE_SPARE_BYTES = 64 << 10 }; /* of what the limit leaves: not taken */

static void mark_for_cache(mf_source *source, const mf_feeder *f)
{
    for (uint32_t i = 0; f && i < f->count; i++)
        if (f->links[i].array && f->links[i].array->made)
            mf_cache_mark(source, f->links[i].array);
}

/* A limit that only says what the machine has is shared with others: half of the rest is left. */
memfit_status mf_trainer_take_cache(mf_trainer *t, memfit_error *err)
{
    if (!caches_in_memory(t))
        return MEMFIT_OK;
    uint64_t used = t->fixed_bytes + t->plan->arena_bytes + CACHE_SPARE_BYTES, bytes = 0;
    uint64_t room = t->limit_bytes > used ? t->limit_bytes - used : 0, available = mf_os_available_memory();
    if (!t->footprint->host || room > available / 2)
        room = available / 2;
    else if (!t->options->memory_bytes)
        room /= 2;
    mf_source *sources[2] = {t->source, t->validation_source};
    mark_for_cache(t->source, t->feeder);
    mark_for_cache(t->validation_source ? t->validation_source : t->source, t->validation_feeder);
    for (int i = 0; i < 2; i++) {
        memfit_status status = sources[i] ? mf_cache_take_memory(sources[i], room - bytes, err) : MEMFIT_OK;
        if (status != MEMFIT_OK)
            return status;
        mf_cache_counts now = mf_cache_read_counts(sources[i]);
        bytes += now.memory_bytes;
        char text[24];
        if (sources[i] && sources[i]->cache)
            mf_log_write(&t->log, MF_LOG_NOTE, "cache: %lld of %lld samples of %s have room in memory (%s)",
                         (long long)now.memory_samples, (long long)sources[i]->samples, sources[i]->path,
                         memfit_size_format(now.memory_bytes, text, sizeof text));
    }
    if (t->footprint->host)
        t->fixed_bytes += bytes;
    return MEMFIT_OK;
}

void mf_trainer_drop_cache(mf_trainer *t)
{
    if (t->ring && caches_in_memory(t))
        mf_ring_stop(t->ring); /* workers read it */
    uint64_t bytes = mf_cache_drop_memory(t->source) + mf_cache_drop_memory(t->validation_source);
    if (t->footprint->host)
        t->fixed_bytes -= bytes;
}
