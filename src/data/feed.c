/* feed.c: binding arrays to feeds, shuffling, filling. */
#include "data/feed.h"

#include "base/error.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

/* Smaller arrays are in the kernel's cache after the first epoch: asking for them would be work for nothing. */
enum { READ_AHEAD_FROM_BYTES = 64 << 20 };

/* ---- numbers of any type ---------------------------------------------------------------------------------- */

static double load(mf_dtype dtype, const void *data, uint64_t i)
{
    float f = 0;
    switch (dtype) {
    case MF_F64: {
        double d;
        memcpy(&d, (const char *)data + i * 8, 8);
        return d;
    }
    case MF_I64: {
        int64_t v;
        memcpy(&v, (const char *)data + i * 8, 8);
        return (double)v;
    }
    case MF_U64: {
        uint64_t v;
        memcpy(&v, (const char *)data + i * 8, 8);
        return (double)v;
    }
    case MF_U32: {
        uint32_t v;
        memcpy(&v, (const char *)data + i * 4, 4);
        return (double)v;
    }
    case MF_I32: {
        int32_t v;
        memcpy(&v, (const char *)data + i * 4, 4);
        return (double)v; /* exact, as a float would not be */
    }
    default: { /* files align nothing */
        uint64_t one = 0;
        memcpy(&one, (const char *)data + i * mf_dtype_bytes(dtype), mf_dtype_bytes(dtype));
        mf_kernels()->cast(dtype, &one, MF_F32, &f, 1, 1);
        return (double)f;
    }
    }
}

static void store(mf_dtype dtype, void *data, uint64_t i, double v)
{
    float f = (float)v;
    switch (dtype) {
    case MF_F32:
        ((float *)data)[i] = f;
        break;
    case MF_F64:
        ((double *)data)[i] = v;
        break;
    case MF_I8:
    case MF_U8:
    case MF_BOOL:
        ((uint8_t *)data)[i] = (uint8_t)(int64_t)v;
        break;
    case MF_I16:
    case MF_U16:
        ((uint16_t *)data)[i] = (uint16_t)(int64_t)v;
        break;
    case MF_I32:
    case MF_U32:
        ((uint32_t *)data)[i] = (uint32_t)(int64_t)v;
        break;
    case MF_I64:
    case MF_U64:
        ((int64_t *)data)[i] = (int64_t)v;
        break;
    default:
        mf_kernels()->cast(MF_F32, &f, dtype, (char *)data + i * mf_dtype_bytes(dtype), 1, 1);
        break;
    }
}

/* ---- what a graph expects ------------------------------------------------------------------------------------ */

/* The tensor a value came from before casts and views. */
static uint32_t origin(const mf_graph *g, uint32_t tensor)
{
    for (;;) {
        uint32_t p = g->tensors[tensor].producer;
        if (p == MF_NONE || (g->ops[p].kind != MF_OP_CAST && g->ops[p].kind != MF_OP_VIEW))
            return tensor;
        tensor = g->ops[p].in[0];
    }
}

/* What values a feed takes: *generator as in mf_array, *classes likewise. True when others are an error: labels of a
 * sparse loss, rows of an embedding. */
static bool kind_of_values(const mf_graph *g, const mf_feed *feed, uint32_t *generator, int64_t *classes)
{
    bool strict = false;
    *generator = 0;
    *classes = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (op->kind == MF_OP_GATHER && origin(g, op->in[1]) == feed->tensor) {
            int64_t rows = g->tensors[op->in[0]].shape.dim[0];
            *generator = 1;
            *classes = *classes && *classes < rows ? *classes : rows;
            strict = true;
        }
        uint32_t target = op->kind == MF_OP_LOSS ? origin(g, op->in[1]) : MF_NONE, maker = MF_NONE;
        if (target != MF_NONE && (maker = g->tensors[target].producer) != MF_NONE && g->ops[maker].kind == MF_OP_BINARY)
            target = origin(g, g->ops[maker].in[0]); /* a class is ignored: its label may be any number */
        else
            maker = MF_NONE;
        if (target == feed->tensor) {
            mf_loss f = op->attr.loss.function;
            const mf_shape *p = &g->tensors[op->in[0]].shape;
            int64_t last = p->rank > 1 ? p->dim[p->rank - 1] : 1;
            if (f == MF_LOSS_SCCE || f == MF_LOSS_SCCE_LOGITS)
                *generator = 1, *classes = last, strict = strict || maker == MF_NONE;
            else if (f == MF_LOSS_CCE || f == MF_LOSS_CCE_LOGITS)
                *generator = 2, *classes = last;
            else if (f == MF_LOSS_BCE || f == MF_LOSS_BCE_LOGITS)
                *generator = 1, *classes = 2;
        }
    }
    return strict;
}

/* ---- binding ---------------------------------------------------------------------------------------------- */

/* Of an input or a target. */
static const mf_array *find_for(const mf_source *source, const mf_feed *feed, uint32_t of_role)
{
    static const char *const letters[2] = {"x", "y"};
    char name[48];
    const mf_array *a = feed->name ? mf_source_find(source, feed->name) : NULL;
    const char *letter = letters[feed->role == 1];
    static const char *const forms[] = {"%s%u", "%s_%u", "%s%u"};
    for (unsigned i = 0; !a && i < 3; i++) {
        snprintf(name, sizeof name, forms[i], letter, feed->index + (i == 2));
        if (of_role > 1)
            a = mf_source_find(source, name);
    }
    if (!a && feed->index == 0)
        a = mf_source_find(source, letter);
    static const char *const train[2][6] = {{"X", "x_train", "X_train", "images", "data", "features"},
                                            {"Y", "y_train", "Y_train", "labels", "target", "targets"}};
    for (unsigned i = 0; !a && i < 6 && feed->index == 0; i++)
        a = mf_source_find(source, train[feed->role == 1][i]);
    if (!a && feed->role == 0 && of_role == 1 && source->count == 1)
        a = &source->arrays[0];
    return a;
}

/* The sample shapes agree, but for axes of size 1 at the end. */
static bool same_sample(const mf_shape *array, const mf_shape *tensor)
{
    uint32_t a = array->rank, t = tensor->rank;
    while (a > 1 && array->dim[a - 1] == 1)
        a--;
    while (t > 1 && tensor->dim[t - 1] == 1)
        t--;
    if (a != t)
        return false;
    for (uint32_t d = 1; d < a; d++)
        if (array->dim[d] != tensor->dim[d])
            return false;
    return true;
}

static mf_shape sample_shape(const mf_shape *s)
{
    mf_shape r = {.rank = s->rank ? s->rank - 1 : 0};
    for (uint32_t d = 0; d < r.rank; d++)
        r.dim[d] = s->dim[d + 1];
    return r;
}

/* (C, H, W) where (H, W, C) is wanted. */
static bool channels_first(const mf_shape *have, const mf_shape *want)
{
    if (have->rank < 3 || have->rank != want->rank || have->dim[0] != want->dim[want->rank - 1])
        return false;
    for (uint32_t d = 1; d < have->rank; d++)
        if (have->dim[d] != want->dim[d - 1])
            return false;
    return true;
}

static memfit_status wrong_shape(const mf_source *source, const mf_feed *feed, const mf_array *a, const mf_tensor *t,
                                 uint32_t inputs, memfit_error *err)
{
    char want[128], have[128];
    mf_shape w = sample_shape(&t->shape), h = sample_shape(&a->shape);
    mf_shape_format(&w, want, sizeof want);
    mf_shape_format(&h, have, sizeof have);
    const char *hint = "reshape the data, or plan the model for it with --input-shape";
    if (feed->role == 1)
        hint = "whole-number labels go with a sparse loss, one-hot ones with categorical_crossentropy";
    else if (channels_first(&h, &w))
        hint = "the channels stand first, the model wants them last: numpy.moveaxis(x, 1, -1)";
    else if (mf_source_is_table(source->path))
        hint = inputs > 1 ? "a table serves one input: save arrays named as the model's inputs in a .npz file"
               : mf_shape_count(&h) > mf_shape_count(&w)
                   ? "every column but the targets is an input: is one too many, such as a row number?"
                   : "every number of a sample is a column, and some are missing";
    return mf_fail(err, MEMFIT_DAMAGED, "%s %s expects samples of shape %s, but %s in %s has %s\n%s",
                   feed->role == 0 ? "layer" : "output", feed->name ? feed->name : "?", want, a->name, source->path,
                   have, hint);
}

static uint32_t feeds_of_role(const mf_graph *graph, uint32_t role)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < graph->feed_count; i++)
        n += graph->feeds[i].role == role;
    return n;
}

const mf_array *mf_feeder_input(const mf_source *source, const char *name, uint32_t index, uint32_t inputs)
{
    const mf_feed feed = {.name = name, .role = 0, .index = index};
    return find_for(source, &feed, inputs);
}

/* One finite weight for each sample. */
static memfit_status check_weights(const mf_feeder *f, const mf_array *a, memfit_error *err)
{
    if (!a || !a->data)
        return MEMFIT_OK;
    if (a->sample_bytes != mf_dtype_bytes(a->dtype)) {
        char have[128];
        mf_shape_format(&a->shape, have, sizeof have);
        return mf_fail(err, MEMFIT_DAMAGED, "%s: %s has shape %s, but one weight for each of %lld samples is wanted",
                       f->source->path, a->name, have, (long long)f->source->samples);
    }
    for (int64_t i = 0; i < f->source->samples; i++) {
        double v = load(a->dtype, a->data, (uint64_t)i);
        if (!isfinite(v))
            return mf_fail(err, MEMFIT_DAMAGED, "%s: %s of sample %lld is %g: weights must be finite", f->source->path,
                           a->name, (long long)i, v);
    }
    return MEMFIT_OK;
}

static memfit_status link_feed(mf_feeder *f, const mf_graph *graph, uint32_t i, const mf_feeder_options *options,
                               memfit_error *err)
{
    const mf_feed *feed = &graph->feeds[i];
    const mf_tensor *t = &graph->tensors[feed->tensor];
    uint64_t count = mf_shape_count(&t->shape), batch = t->shape.rank ? (uint64_t)t->shape.dim[0] : 1;
    mf_feed_link *l = &f->links[i];
    *l = (mf_feed_link){.role = feed->role, .dtype = t->dtype, .elements = batch ? count / batch : 0};
    l->bytes = l->elements * mf_dtype_bytes(t->dtype);
    snprintf(l->name, sizeof l->name, "%s", feed->name ? feed->name : "?");
    if (feed->role == 1 && !options->targets)
        return MEMFIT_OK;
    /* Weights not by the feed's name, which is the output's: an array of that name holds targets. */
    l->array = feed->role == 2 ? f->weights : find_for(f->source, feed, feeds_of_role(graph, feed->role));
    if (l->array && l->array->unusable)
        return mf_source_refuse(l->array, err);
    if (feed->role == 2)
        return check_weights(f, l->array, err);
    if (!l->array && f->source->count == 1 && feed->role == 1)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s has no array for output %s: it holds %s alone\n"
                       "put inputs and targets into one file: numpy.savez(\"data.npz\", x=x, y=y)",
                       f->source->path, feed->name ? feed->name : "?", f->source->arrays[0].name);
    size_t n = strlen(f->source->path);
    bool is_hdf5 = (n > 3 && strcmp(f->source->path + n - 3, ".h5") == 0) ||
                   (n > 5 && strcmp(f->source->path + n - 5, ".hdf5") == 0);
    if (!l->array)
        return mf_fail(err, MEMFIT_DAMAGED, "%s has no array for %s %s\nname it %s, or %s%s", f->source->path,
                       feed->role == 0 ? "input" : "output", feed->name ? feed->name : "?", feed->role == 0 ? "x" : "y",
                       feed->name ? feed->name : "by its layer",
                       is_hdf5 ? "; it must lie at the root of the file" : "");
    /* A table's row holds an image line by line. */
    bool flat = feed->role == 0 && mf_source_is_table(f->source->path) &&
                l->array->sample_bytes == l->elements * mf_dtype_bytes(l->array->dtype);
    if (!flat && !same_sample(&l->array->shape, &t->shape))
        return wrong_shape(f->source, feed, l->array, t, feeds_of_role(graph, 0), err);
    if (feed->role == 1 && !f->labels)
        f->labels = l->array;
    uint32_t generator;
    if (!kind_of_values(graph, feed, &generator, &l->classes))
        l->classes = 0;
    return MEMFIT_OK;
}

memfit_status mf_feeder_create(const memfit_host *host, const mf_source *source, const mf_graph *graph,
                               const mf_feeder_options *options, mf_feeder **feeder, memfit_error *err)
{
    mf_feeder *f = mf_host_zalloc(host, sizeof *f);
    if (!f)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the data feed");
    *f = (mf_feeder){.host = host,
                     .source = source,
                     .count = graph->feed_count,
                     .first = options->first,
                     .class_weights = options->class_weights,
                     .class_count = options->class_count};
    f->samples = options->samples ? options->samples : source->samples - options->first;
    f->shuffled = options->shuffle;
    bool listed = options->shuffle && f->samples <= (options->listed ? UINT32_MAX : MF_FEEDER_MOST_LISTED);
    if (options->targets) /* predictions weigh nothing: whatever goes by that name is not looked at */
        f->weights = mf_source_find(source, "sample_weight");
    f->links = mf_host_zalloc(host, (graph->feed_count + 1) * sizeof *f->links);
    if (listed)
        f->order = mf_host_alloc(host, (size_t)f->samples * sizeof *f->order);
    memfit_status status = MEMFIT_OK;
    if (f->weights && f->weights->unusable)
        status = mf_source_refuse(f->weights, err);
    else if (!f->links)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the data feed");
    else if (listed && !f->order)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the order of %lld samples", (long long)f->samples);
    for (uint32_t i = 0; i < graph->feed_count && status == MEMFIT_OK; i++) {
        status = link_feed(f, graph, i, options, err);
        const mf_array *a = f->links[i].array; /* made in its tensor, unless it is converted or looked at before */
        bool apart = a && !a->data && (a->dtype != f->links[i].dtype || (f->class_weights && f->links[i].role == 1));
        if (apart && a->sample_bytes > f->scratch_bytes)
            f->scratch_bytes = a->sample_bytes;
    }
    if (status == MEMFIT_OK && f->scratch_bytes) {
        f->scratch = mf_host_alloc(host, f->scratch_bytes);
        if (!f->scratch)
            status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the data feed");
        else
            memset(f->scratch, 0, f->scratch_bytes); /* resident from now on: the fixed cost is measured after this */
    }
    if (status != MEMFIT_OK) {
        mf_feeder_destroy(f);
        return status;
    }
    for (int64_t i = 0; f->order && i < f->samples; i++)
        f->order[i] = (uint32_t)i;
    *feeder = f;
    return MEMFIT_OK;
}

void mf_feeder_destroy(mf_feeder *f)
{
    if (!f)
        return;
    mf_host_free(f->host, f->links, (f->count + 1) * sizeof *f->links);
    mf_host_free(f->host, f->order, (size_t)f->samples * sizeof *f->order);
    mf_host_free(f->host, f->scratch, f->scratch_bytes);
    mf_host_free(f->host, f, sizeof *f);
}

/* Fisher and Yates from a fresh identity, so that an epoch's order depends on nothing but seed and epoch. */
static void list_order(mf_feeder *f, uint64_t seed, uint64_t epoch)
{
    uint32_t r[4] = {0};
    for (int64_t i = 0; i < f->samples; i++)
        f->order[i] = (uint32_t)i;
    for (int64_t i = f->samples - 1; i > 0; i--) {
        int64_t draw = f->samples - 1 - i;
        if (draw % 2 == 0)
            mf_philox(seed, 0x0bde4, epoch, 0, (uint64_t)draw / 2, r);
        uint64_t wide = draw % 2 ? ((uint64_t)r[2] << 32 | r[3]) : ((uint64_t)r[0] << 32 | r[1]);
        int64_t j = (int64_t)(wide % (uint64_t)(i + 1));
        uint32_t swap = f->order[i];
        f->order[i] = f->order[j];
        f->order[j] = swap;
    }
}

void mf_feeder_shuffle(mf_feeder *f, uint64_t seed, uint64_t epoch)
{
    if (f->order)
        list_order(f, seed, epoch);
    for (uint32_t i = 0; i < MF_FEEDER_ROUNDS; i += 4)
        mf_philox(seed, 0x0bde4, epoch, 1, i / 4, f->keys + i);
}

/* Every bit of the result depends on every bit of x (the finalizer of Appleby's MurmurHash3). */
static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

/*
 * The sample at `position` of an order that is not stored. A Feistel network exchanges the two halves of a number,
 * adding to one a function of the other: a permutation of the numbers of that many bits whatever the function is (Luby
 * and Rackoff, 1988). Of those, numbers beyond the samples are permuted once more until one is not (cycle walking:
 * Black and Rogaway, 2002), which leaves a permutation of the samples; less than four turns on average.
 */
static int64_t scatter(const mf_feeder *f, int64_t position)
{
    const uint64_t samples = (uint64_t)f->samples;
    unsigned half = 1;
    while (half < 31 && samples >> 2 * half)
        half++;
    const uint32_t mask = (1u << half) - 1;
    uint64_t x = (uint64_t)position;
    do {
        uint32_t left = (uint32_t)(x >> half), right = (uint32_t)x & mask;
        for (int i = 0; i < MF_FEEDER_ROUNDS; i++) {
            uint32_t next = left ^ (mix(right ^ f->keys[i]) & mask);
            left = right;
            right = next;
        }
        x = (uint64_t)left << half | right;
    } while (x >= samples);
    return (int64_t)x;
}

int64_t mf_feeder_sample(const mf_feeder *f, int64_t position)
{
    if (f->order)
        return f->first + (int64_t)f->order[position];
    return f->first + (f->shuffled ? scatter(f, position) : position);
}

/* ---- filling ---------------------------------------------------------------------------------------------- */

static const void *sample_bytes(const mf_feeder *f, const mf_array *a, int64_t sample)
{
    if (a->data)
        return a->data + (uint64_t)sample * a->sample_bytes;
    mf_source_read(f->source, a, sample, f->scratch);
    return f->scratch;
}

static int64_t label_of(const mf_feeder *f, int64_t sample)
{
    const mf_array *y = f->labels;
    const void *p = sample_bytes(f, y, sample);
    uint64_t n = y->sample_bytes / mf_dtype_bytes(y->dtype);
    if (n <= 1)
        return (int64_t)load(y->dtype, p, 0);
    uint64_t best = 0;
    for (uint64_t i = 1; i < n; i++)
        if (load(y->dtype, p, i) > load(y->dtype, p, best))
            best = i;
    return (int64_t)best;
}

static double weight_of(const mf_feeder *f, int64_t sample)
{
    double w = f->weights ? load(f->weights->dtype, sample_bytes(f, f->weights, sample), 0) : 1;
    if (f->class_weights && f->labels) {
        int64_t label = label_of(f, sample);
        if (label >= 0 && label < f->class_count)
            w *= f->class_weights[label];
    }
    return w;
}

double mf_feeder_weight_sum(mf_feeder *f, int64_t first, int64_t count)
{
    if (!f->weights && !f->class_weights)
        return (double)count;
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += weight_of(f, mf_feeder_sample(f, first + i));
    return sum;
}

static void convert(mf_dtype from, const void *x, mf_dtype to, void *y, uint64_t n)
{
    if (from == to)
        memcpy(y, x, n * mf_dtype_bytes(to));
    else if (to == MF_F32 && from != MF_U64 && ((uintptr_t)x & (mf_dtype_bytes(from) - 1)) == 0)
        mf_kernels()->cast(from, x, to, y, (int64_t)n, 1);
    else
        for (uint64_t i = 0; i < n; i++)
            store(to, y, i, load(from, x, i));
}

static memfit_status not_a_class(const mf_feeder *f, const mf_feed_link *l, int64_t sample, uint64_t element, double v,
                                 memfit_error *err)
{
    if (l->role == 1)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s: %s of sample %lld is %g, but output %s has the classes 0 to %lld\n"
                       "number the classes from 0, or give the model's last layer more units",
                       f->source->path, l->array->name, (long long)sample, v, l->name, (long long)l->classes - 1);
    return mf_fail(
        err, MEMFIT_DAMAGED,
        "%s: %s of sample %lld, element %llu is %g, but the embedding behind input %s has the rows 0 to %lld\n"
        "give the embedding a larger input_dim, or map rare words to one number",
        f->source->path, l->array->name, (long long)sample, (unsigned long long)element, v, l->name,
        (long long)l->classes - 1);
}

static bool is_float(mf_dtype dtype)
{
    return dtype == MF_F16 || dtype == MF_BF16 || dtype == MF_F32 || dtype == MF_F64;
}

/* `out` is the sample as the tensor has it, `in` as the file does. */
static memfit_status check_sample(const mf_feeder *f, const mf_feed_link *l, const void *in, const void *out,
                                  int64_t sample, memfit_error *err)
{
    if (l->classes == 0 && !is_float(l->array->dtype) && l->dtype != MF_F16)
        return MEMFIT_OK;
    bool single = l->dtype == MF_F32 && l->classes == 0;
    for (uint64_t i = 0; i < l->elements; i++) {
        double v = single ? (double)((const float *)out)[i] : load(l->array->dtype, in, i);
        if (l->dtype == MF_F16 && isfinite(v)) /* what 16 bits cannot hold */
            v = load(l->dtype, out, i);
        if (!isfinite(v))
            return mf_fail(err, MEMFIT_DAMAGED,
                           "%s: array %s is not finite (%g) in sample %lld, element %llu\n"
                           "clean the data: training would turn every weight into NaN",
                           f->source->path, l->array->name, v, (long long)sample, (unsigned long long)i);
        if (l->classes && (v < 0 || v >= (double)l->classes || v != floor(v)))
            return not_a_class(f, l, sample, i, v, err);
    }
    return MEMFIT_OK;
}

static memfit_status fill_one(mf_feeder *f, const mf_feed_link *l, int64_t sample, unsigned char *to, memfit_error *err)
{
    if (l->role == 2) {
        for (uint64_t e = 0; e < l->elements; e++)
            store(l->dtype, to, e, weight_of(f, sample));
    } else if (!l->array) {
        memset(to, 0, l->bytes);
    } else {
        const void *from = to;
        if (!l->array->data && l->array->dtype == l->dtype)
            mf_source_read(f->source, l->array, sample, to);
        else
            convert(l->array->dtype, from = sample_bytes(f, l->array, sample), l->dtype, to, l->elements);
        return f->check ? check_sample(f, l, from, to, sample, err) : MEMFIT_OK;
    }
    return MEMFIT_OK;
}

/* Samples that need no scratch are shared out over the threads: they are many and independent. */
static memfit_status fill_together(mf_feeder *f, const mf_feed_link *l, int64_t first, int64_t count,
                                   unsigned char *out, memfit_error *err)
{
    memfit_status worst = MEMFIT_OK;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        memfit_error mine;
        memfit_status status = fill_one(f, l, mf_feeder_sample(f, first + i), out + (uint64_t)i * l->bytes, &mine);
        if (status != MEMFIT_OK) {
#pragma omp critical
            {
                worst = status;
                if (err)
                    *err = mine;
            }
        }
    }
    return worst;
}

memfit_status mf_feeder_fill(mf_feeder *f, uint32_t index, int64_t first, int64_t count, void *out, memfit_error *err)
{
    const mf_feed_link *l = &f->links[index];
    bool scratch = l->array && !l->array->data && l->array->dtype != l->dtype;
    if (l->role != 2 && !scratch && count > 1 && (uint64_t)count * l->bytes > 1 << 20)
        return fill_together(f, l, first, count, out, err);
    for (int64_t i = 0; i < count; i++) {
        memfit_status status =
            fill_one(f, l, mf_feeder_sample(f, first + i), (unsigned char *)out + (uint64_t)i * l->bytes, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return MEMFIT_OK;
}

void mf_feeder_read_ahead(const mf_feeder *f, int64_t first, int64_t count)
{
    if (first + count > f->samples)
        count = f->samples - first;
    for (uint32_t l = 0; l < f->count; l++) {
        const mf_array *a = f->links[l].array;
        if (!a || !a->data || a->sample_bytes * (uint64_t)f->source->samples < READ_AHEAD_FROM_BYTES)
            continue;
        if (!f->shuffled && count > 0)
            mf_os_read_ahead(a->data + (uint64_t)mf_feeder_sample(f, first) * a->sample_bytes,
                             (uint64_t)count * a->sample_bytes);
        for (int64_t i = 0; f->shuffled && i < count; i++)
            mf_os_read_ahead(a->data + (uint64_t)mf_feeder_sample(f, first + i) * a->sample_bytes, a->sample_bytes);
    }
}

/* ---- synthetic arrays for a graph --------------------------------------------------------------------------- */

memfit_status mf_synthetic_for(mf_source *source, const mf_graph *graph, memfit_error *err)
{
    for (uint32_t i = 0; i < graph->feed_count; i++) {
        const mf_feed *feed = &graph->feeds[i];
        const mf_tensor *t = &graph->tensors[feed->tensor];
        if (feed->role == 2)
            continue;
        uint32_t generator;
        int64_t classes;
        kind_of_values(graph, feed, &generator, &classes);
        mf_shape shape = t->shape;
        if (shape.rank == 0)
            shape.rank = 1;
        shape.dim[0] = source->samples;
        char name[64];
        snprintf(name, sizeof name, "%s%u", feed->role ? "y" : "x", feed->index);
        memfit_status status =
            mf_source_add_generated(source, feed->name ? feed->name : name, t->dtype, &shape, generator, classes, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return MEMFIT_OK;
}
