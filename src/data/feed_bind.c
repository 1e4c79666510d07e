/* feed_bind.c: which array of a source serves which feed of a graph, and whether it can; synthetic arrays for a graph. */
#include "data/feed_inner.h"

#include "base/error.h"
#include "data/numbers.h"

#include <math.h>
#include <string.h>

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

int64_t mf_feeder_one_hot(const mf_graph *graph)
{
    for (uint32_t i = 0; i < graph->feed_count; i++) {
        uint32_t generator;
        int64_t classes;
        if (graph->feeds[i].role != 1)
            continue;
        kind_of_values(graph, &graph->feeds[i], &generator, &classes);
        if (generator == 2)
            return classes;
    }
    return 0;
}

int64_t mf_feeder_classes(const mf_graph *graph)
{
    for (uint32_t i = 0; i < graph->feed_count; i++) {
        uint32_t generator;
        int64_t classes;
        if (graph->feeds[i].role != 1)
            continue;
        kind_of_values(graph, &graph->feeds[i], &generator, &classes);
        if (generator)
            return classes;
    }
    return 0;
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

/* Sequences: as many steps as the tensor has, or fewer, which are padded; with `cut` more, which are padding. */
static bool same_steps(const mf_array *a, const mf_shape *tensor, bool cut)
{
    if ((!a->ragged && !cut) || a->shape.rank != tensor->rank || tensor->rank < 2)
        return false;
    for (uint32_t d = 2; d < tensor->rank; d++)
        if (a->shape.dim[d] != tensor->dim[d])
            return false;
    return cut || a->shape.dim[1] <= tensor->dim[1];
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
    if (a->ragged && a->shape.rank == t->shape.rank && a->shape.dim[1] > t->shape.dim[1])
        hint = "the longest sequence is longer than the model takes: cut it, or leave the model's length open (None)";
    else if (feed->role == 1)
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

const mf_array *mf_feeder_array(const mf_source *source, const mf_graph *graph, uint32_t feed)
{
    return find_for(source, &graph->feeds[feed], feeds_of_role(graph, graph->feeds[feed].role));
}

/* One finite weight for each sample, or for each step of the output. */
static memfit_status check_weights(const mf_feeder *f, const mf_array *a, const mf_shape *tensor, bool cut,
                                   memfit_error *err)
{
    if (!a)
        return MEMFIT_OK;
    const uint64_t each = a->sample_bytes / mf_dtype_bytes(a->dtype);
    if (each != 1 && !same_sample(&a->shape, tensor) && !same_steps(a, tensor, cut)) {
        char have[128], want[128] = "";
        mf_shape_format(&a->shape, have, sizeof have);
        if (tensor->rank > 1)
            snprintf(want, sizeof want, ", or one for each of %lld steps of the output", (long long)tensor->dim[1]);
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s: %s has shape %s, but it must have one weight for each of %lld samples%s", f->source->path,
                       a->name, have, (long long)f->source->samples, want);
    }
    for (int64_t i = 0; a->data && i < f->source->samples * (int64_t)each; i++) {
        double v = mf_number_load(a->dtype, a->data, (uint64_t)i);
        if (!isfinite(v))
            return mf_fail(err, MEMFIT_DAMAGED, "%s: %s of sample %lld is %g: weights must be finite", f->source->path,
                           a->name, (long long)(i / (int64_t)each), v);
    }
    return MEMFIT_OK;
}

/* Whether workers make its samples, and what they do to them then. */
static memfit_status bind_front(mf_feeder *f, const mf_feed *feed, mf_backend *backend, mf_feed_link *l,
                                memfit_error *err)
{
    l->made = l->array->made || feed->front;
    l->slot_bytes = l->bytes;
    if (!feed->front)
        return MEMFIT_OK;
    memfit_status status = mf_front_kit_create(f->host, feed->front, backend, &f->front, err);
    if (status == MEMFIT_OK) {
        l->front = f->front;
        l->slot_bytes = mf_front_out_bytes(f->front);
    }
    return status;
}

memfit_status mf_feed_link_bind(mf_feeder *f, const mf_graph *graph, uint32_t i, const mf_feeder_options *options,
                                memfit_error *err)
{
    const mf_feed *feed = &graph->feeds[i];
    mf_tensor arrives = graph->tensors[feed->tensor];
    if (feed->front) {
        arrives.dtype = feed->front->dtype;
        arrives.shape = feed->front->shape;
    }
    const mf_tensor *t = &arrives;
    uint64_t count = mf_shape_count(&t->shape), batch = t->shape.rank ? (uint64_t)t->shape.dim[0] : 1;
    mf_feed_link *l = &f->links[i];
    *l = (mf_feed_link){.role = feed->role, .dtype = t->dtype, .elements = batch ? count / batch : 0};
    l->bytes = l->elements * mf_dtype_bytes(t->dtype);
    for (uint32_t k = 0; k < MF_MOST_LENGTHS; k++)
        l->elements_at[k] = l->elements;
    snprintf(l->name, sizeof l->name, "%s", feed->name ? feed->name : "?");
    if (feed->role == 1 && !options->targets)
        return MEMFIT_OK;
    /* Weights not by the feed's name, which is the output's: an array of that name holds targets. */
    l->array = feed->role == 2 ? f->weights : find_for(f->source, feed, feeds_of_role(graph, feed->role));
    if (l->array && l->array->unusable)
        return mf_source_refuse(l->array, err);
    if (l->array && l->array->names && feed->role != 1)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s: %s holds texts, but %s must be numbers", f->source->path,
                       l->array->name, feed->role == 2 ? "weights" : "inputs");
    if (feed->role == 2)
        return check_weights(f, l->array, &t->shape, options->bound_count > 0, err);
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
                       feed->name ? feed->name : "by its layer", is_hdf5 ? "; or --features says which it is" : "");
    /* A table's row holds an image line by line. */
    bool flat = ((feed->role == 0 && mf_source_is_table(f->source->path)) || f->source->flat) &&
                l->array->sample_bytes == l->elements * mf_dtype_bytes(l->array->dtype);
    if (l->array->ragged)
        flat = false;
    if (!flat && !same_sample(&l->array->shape, &t->shape) &&
        !same_steps(l->array, &t->shape, options->bound_count > 0))
        return wrong_shape(f->source, feed, l->array, t, feeds_of_role(graph, 0), err);
    if (feed->role == 1 && !f->labels)
        f->labels = l->array;
    uint32_t generator;
    if (!kind_of_values(graph, feed, &generator, &l->classes))
        l->classes = 0;
    return bind_front(f, feed, options->front_backend, l, err);
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
