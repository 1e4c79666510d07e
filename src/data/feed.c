/* feed.c: making a feeder, and filling tensors from it. */
#include "data/feed_inner.h"

#include "base/error.h"
#include "data/lengths.h"
#include "data/numbers.h"

#include <math.h>
#include <string.h>

/* Smaller arrays are in the kernel's cache after the first epoch: asking for them would be work for nothing. */
enum { READ_AHEAD_FROM_BYTES = 64 << 20 };

/* Weights are asked for in the step: labels and weights that must be made for them are made there too, once more. */
static memfit_status ready_for_weights(mf_feeder *f, memfit_error *err)
{
    const mf_array *made[2] = {f->weights, f->class_weights ? f->labels : NULL};
    for (int i = 0; i < 2; i++)
        if (made[i] && made[i]->made && made[i]->sample_bytes > f->scratch_bytes)
            f->scratch_bytes = made[i]->sample_bytes;
    bool any = (made[0] && made[0]->made) || (made[1] && made[1]->made);
    return any ? mf_worker_create(f->host, f->source->room_bytes, 0, &f->own, err) : MEMFIT_OK;
}

/* Synthetic numbers, of which any part can be made by itself: converted as they are, they need no whole sample. */
static bool is_drawn(const mf_feed_link *l)
{
    const mf_array *a = l->array;
    return a && !a->data && !a->made && !a->ragged && a->generator == 0 && l->role == 0 && a->dtype != l->dtype;
}

/* A sample that is made is converted behind that, or is not as long as its tensor. */
static bool is_apart(const mf_feed_link *l)
{
    return l->array->dtype != l->dtype || l->array->sample_bytes != l->bytes;
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
    if (f->shuffled && options->block && options->window < f->samples) {
        f->block = options->block;
        f->window = options->window;
    }
    f->bucketed = options->bucket > 0 && options->shuffle;
    f->batch = options->bucket;
    f->bound_count = options->bound_count;
    for (uint32_t i = 0; i < options->bound_count; i++)
        f->bounds[i] = options->bounds[i];
    bool listed = f->bucketed || (options->shuffle && !f->block &&
                                  f->samples <= (options->listed ? UINT32_MAX : MF_FEEDER_MOST_LISTED));
    if (options->targets) /* predictions weigh nothing: whatever goes by that name is not looked at */
        f->weights = mf_source_find(source, "sample_weight");
    f->links = mf_host_zalloc(host, (graph->feed_count + 1) * sizeof *f->links);
    if (listed)
        f->order = mf_host_alloc(host, (size_t)f->samples * sizeof *f->order);
    if (f->bucketed)
        f->arranged = mf_host_alloc(host, 2 * (size_t)f->samples * sizeof *f->arranged);
    memfit_status status = MEMFIT_OK;
    if (f->weights && f->weights->unusable)
        status = mf_source_refuse(f->weights, err);
    else if (!f->links)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the data feed");
    else if ((listed && !f->order) || (f->bucketed && !f->arranged))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the order of %lld samples", (long long)f->samples);
    for (uint32_t i = 0; i < graph->feed_count && status == MEMFIT_OK; i++) {
        status = mf_feed_link_bind(f, graph, i, options, err);
        const mf_array *a = f->links[i].array; /* made in its tensor, unless it is converted or looked at before */
        if (f->links[i].made && status == MEMFIT_OK) {
            f->links[i].slot_at = f->slot_bytes;
            f->slot_bytes += (f->links[i].slot_bytes + 63) & ~(uint64_t)63;
            f->made_links++;
            if (is_apart(&f->links[i]) && a->sample_bytes > f->spare_bytes)
                f->spare_bytes = a->sample_bytes;
            continue;
        }
        bool apart = a && !a->data && !is_drawn(&f->links[i]) &&
                     (a->dtype != f->links[i].dtype || a->ragged || (f->class_weights && f->links[i].role == 1));
        if (apart && a->sample_bytes > f->scratch_bytes)
            f->scratch_bytes = a->sample_bytes;
    }
    if (status == MEMFIT_OK)
        status = ready_for_weights(f, err);
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
    if (f->arranged) /* resident as the list is: the fixed cost is measured after this */
        memset(f->arranged, 0, 2 * (size_t)f->samples * sizeof *f->arranged);
    *feeder = f;
    return MEMFIT_OK;
}

void mf_feeder_destroy(mf_feeder *f)
{
    if (!f)
        return;
    if (f->ring)
        mf_ring_stop(f->ring);
    mf_host_free(f->host, f->links, (f->count + 1) * sizeof *f->links);
    mf_host_free(f->host, f->order, (size_t)f->samples * sizeof *f->order);
    mf_host_free(f->host, f->arranged, 2 * (size_t)f->samples * sizeof *f->arranged);
    mf_host_free(f->host, f->scratch, f->scratch_bytes);
    mf_worker_destroy(f->own);
    mf_front_kit_destroy(f->front);
    mf_host_free(f->host, f, sizeof *f);
}

void mf_feeder_use_ring(mf_feeder *f, mf_ring *ring)
{
    f->ring = ring;
}

/* ---- filling ---------------------------------------------------------------------------------------------- */

static const void *sample_bytes(const mf_feeder *f, const mf_array *a, int64_t sample)
{
    if (a->data)
        return a->data + (uint64_t)sample * a->sample_bytes;
    if (!a->made)
        mf_source_read(f->source, a, sample, f->scratch);
    else if (mf_source_make(f->source, a, sample, f->own, f->scratch, NULL) != MEMFIT_OK)
        memset(f->scratch, 0, a->sample_bytes); /* the ring says what is wrong with it */
    return f->scratch;
}

/* Elements of a sample in the tensor, as long as it is now; those of them that the source has. */
static uint64_t elements_now(const mf_feeder *f, const mf_feed_link *l)
{
    return l->elements_at[f->length];
}

static uint64_t elements_had(const mf_feed_link *l, uint64_t wanted)
{
    const uint64_t has = l->array->sample_bytes / mf_dtype_bytes(l->array->dtype);
    return has < wanted ? has : wanted;
}

static void clear_rest(const mf_feed_link *l, void *to, uint64_t from, uint64_t end)
{
    const uint64_t each = mf_dtype_bytes(l->dtype);
    memset((unsigned char *)to + from * each, 0, (end - from) * each);
}

static int64_t label_of(const mf_feeder *f, int64_t sample)
{
    const mf_array *y = f->labels;
    const void *p = sample_bytes(f, y, sample);
    uint64_t n = y->sample_bytes / mf_dtype_bytes(y->dtype);
    if (n <= 1)
        return (int64_t)mf_number_load(y->dtype, p, 0);
    uint64_t best = 0;
    for (uint64_t i = 1; i < n; i++)
        if (mf_number_load(y->dtype, p, i) > mf_number_load(y->dtype, p, best))
            best = i;
    return (int64_t)best;
}

static double class_weight_of(const mf_feeder *f, int64_t sample)
{
    const int64_t label = f->class_weights && f->labels ? label_of(f, sample) : -1;
    return label >= 0 && label < f->class_count ? f->class_weights[label] : 1;
}

/* The weights of a sample, `count` of them, into the link's tensor unless `out` is NULL; what they add up to. A weight of
 * the sample is that of all its steps. */
static double weigh(const mf_feeder *f, const mf_feed_link *l, int64_t sample, uint64_t count, void *out)
{
    const double factor = class_weight_of(f, sample);
    const mf_array *w = f->weights;
    const uint64_t has = w ? w->sample_bytes / mf_dtype_bytes(w->dtype) : 1;
    const void *from = w ? sample_bytes(f, w, sample) : NULL;
    double sum = 0;
    for (uint64_t e = 0; e < count; e++) {
        double v = factor;
        if (w)
            v *= has == 1 ? mf_number_load(w->dtype, from, 0) : e < has ? mf_number_load(w->dtype, from, e) : 0;
        if (out)
            mf_number_store(l->dtype, out, e, v);
        sum += v;
    }
    return sum;
}

/* The sample at a position, or the one in its place where that was left out. */
static int64_t sample_at(const mf_feeder *f, int64_t position, bool known)
{
    return known ? mf_ring_sample(f->ring, position) : mf_feeder_sample(f, position);
}

/* Whether samples can be others than the order says; if so, those of these positions are known now. */
static bool know_samples(mf_feeder *f, int64_t first, int64_t count)
{
    return f->ring && mf_ring_skips(f->ring) && mf_ring_know(f->ring, f, first, count);
}

void mf_feeder_note_length(mf_feeder *f, uint32_t number, const mf_graph *graph)
{
    for (uint32_t i = 0; i < f->count && i < graph->feed_count; i++) {
        const mf_feed *feed = &graph->feeds[i];
        const mf_shape *shape = feed->front ? &feed->front->shape : &graph->tensors[feed->tensor].shape;
        const uint64_t batch = shape->rank ? (uint64_t)shape->dim[0] : 1;
        f->links[i].elements_at[number] = batch ? mf_shape_count(shape) / batch : 0;
    }
}

uint32_t mf_feeder_choose_length(mf_feeder *f, int64_t first, int64_t count)
{
    f->length = 0;
    if (f->bound_count < 2 || !f->source->lengths)
        return 0;
    const bool skips = f->ring && mf_ring_skips(f->ring), known = know_samples(f, first, count);
    if (skips && !known)
        return 0; /* any sample may come in the place of one that is left out */
    int64_t longest = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t n = f->source->lengths[sample_at(f, first + i, known)];
        longest = n > longest ? n : longest;
    }
    while (f->length + 1 < f->bound_count && f->bounds[f->length + 1] >= longest)
        f->length++;
    return f->length;
}

double mf_feeder_weight_sum(mf_feeder *f, int64_t first, int64_t count)
{
    if (!f->weights && !f->class_weights)
        return (double)count;
    bool known = know_samples(f, first, count);
    double sum = 0;
    uint64_t each = 1; /* steps with weights of their own */
    for (uint32_t i = 0; i < f->count; i++)
        each = f->links[i].role == 2 ? elements_now(f, &f->links[i]) : each;
    for (int64_t i = 0; i < count; i++)
        sum += weigh(f, NULL, sample_at(f, first + i, known), each, NULL);
    return sum;
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
                                  int64_t sample, uint64_t elements, memfit_error *err)
{
    if (l->classes == 0 && (l->array->picture || (!is_float(l->array->dtype) && l->dtype != MF_F16)))
        return MEMFIT_OK;
    bool aligned = ((uintptr_t)in & 3) == 0,
         single = (l->dtype == MF_F32 || (l->array->dtype == MF_F32 && aligned)) && l->classes == 0;
    const float *plain = l->dtype == MF_F32 ? out : in;
    for (uint64_t i = 0; i < elements; i++) {
        double v = single ? (double)plain[i] : mf_number_load(l->array->dtype, in, i);
        if (l->dtype == MF_F16 && isfinite(v)) /* what 16 bits cannot hold */
            v = mf_number_load(l->dtype, out, i);
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

static void draw_sample(const mf_feeder *f, const mf_feed_link *l, int64_t sample, unsigned char *to, uint64_t elements)
{
    enum { PART = 1024 };
    double part[PART]; /* of any type */
    for (uint64_t i = 0, n; i < elements; i += n) {
        n = elements - i < PART ? elements - i : PART;
        mf_source_read_part(f->source, l->array, sample, i, n, part);
        mf_number_convert(l->array->dtype, part, l->dtype, to + i * mf_dtype_bytes(l->dtype), n);
    }
}

static memfit_status fill_one(mf_feeder *f, const mf_feed_link *l, int64_t sample, unsigned char *to, memfit_error *err)
{
    const uint64_t elements = elements_now(f, l);
    if (l->role == 2) {
        weigh(f, l, sample, elements, to);
    } else if (!l->array) {
        clear_rest(l, to, 0, elements);
    } else {
        const uint64_t had = elements_had(l, elements);
        const void *from = to;
        if (is_drawn(l)) {
            draw_sample(f, l, sample, to, had);
            clear_rest(l, to, had, elements);
            return MEMFIT_OK; /* what is drawn is finite */
        }
        if (!l->array->data && l->array->dtype == l->dtype && !l->array->ragged)
            mf_source_read(f->source, l->array, sample, to);
        else
            mf_number_convert(l->array->dtype, from = sample_bytes(f, l->array, sample), l->dtype, to, had);
        clear_rest(l, to, had, elements);
        return f->check ? check_sample(f, l, from, to, sample, had, err) : MEMFIT_OK;
    }
    return MEMFIT_OK;
}

/* As the link's type has it, at `to`; by way of the worker's spare buffer where that is another than the file's. */
static memfit_status make_link(const mf_feeder *f, const mf_feed_link *l, int64_t sample, mf_worker *worker,
                               unsigned char *to, memfit_error *err)
{
    const bool apart = is_apart(l);
    const uint64_t had = elements_had(l, l->elements);
    unsigned char *out = apart ? worker->spare : to;
    memfit_status status = MEMFIT_OK;
    if (l->array->made)
        status = mf_source_make(f->source, l->array, sample, worker, out, err);
    else
        mf_source_read(f->source, l->array, sample, out);
    if (status == MEMFIT_OK && apart) {
        mf_number_convert(l->array->dtype, out, l->dtype, to, had);
        clear_rest(l, to, had, l->elements);
    }
    return status == MEMFIT_OK && f->check ? check_sample(f, l, out, to, sample, had, err) : status;
}

memfit_status mf_feeder_make(const mf_feeder *f, int64_t position, int64_t sample, mf_worker *worker,
                             unsigned char *slot, memfit_error *err)
{
    for (uint32_t i = 0; i < f->count; i++) {
        const mf_feed_link *l = &f->links[i];
        if (!l->made)
            continue;
        unsigned char *to = slot + l->slot_at, *arrives = l->front ? mf_front_input(worker->front) : to;
        memfit_status status = make_link(f, l, sample, worker, arrives, err);
        if (status == MEMFIT_OK && l->front) {
            const int64_t since = position - f->first_position, each = f->step_samples ? f->step_samples : 1;
            status = mf_front_work(worker->front, f->seed, f->first_step + (uint64_t)(since / each),
                                   (uint64_t)(since % each), to, err);
        }
        if (status != MEMFIT_OK)
            return status;
    }
    return MEMFIT_OK;
}

void mf_feeder_begin_steps(mf_feeder *f, uint64_t seed, uint64_t step, int64_t position, int64_t samples)
{
    if (f->ring)
        mf_ring_stop(f->ring);
    f->seed = seed;
    f->first_step = step;
    f->first_position = position;
    f->step_samples = samples;
}

memfit_status mf_feeder_wait(mf_feeder *f, int64_t first, int64_t count, memfit_error *err)
{
    if (!f->ring || !f->made_links)
        return MEMFIT_OK;
    int64_t slots = mf_ring_slots(f->ring);
    return mf_ring_wait(f->ring, f, first, count < slots ? count : slots, err);
}

static uint64_t bytes_now(const mf_feeder *f, const mf_feed_link *l)
{
    return l->front ? l->slot_bytes : elements_now(f, l) * mf_dtype_bytes(l->dtype);
}

/* Copied by all threads: a batch of pictures is tens of megabytes. */
static void copy_slots(const mf_feeder *f, const mf_feed_link *l, int64_t first, int64_t count, unsigned char *out)
{
    const uint64_t bytes = bytes_now(f, l);
#pragma omp parallel for schedule(static) if ((uint64_t)count * bytes > 1 << 20)
    for (int64_t i = 0; i < count; i++)
        memcpy(out + (uint64_t)i * bytes, mf_ring_slot(f->ring, first + i) + l->slot_at, bytes);
}

/* Slots are free when every made link has its part. A piece of more samples than slots goes through the ring in parts,
 * which only a single link can: with several, the ring has slots for a piece. */
static memfit_status fill_made(mf_feeder *f, const mf_feed_link *l, int64_t first, int64_t count, unsigned char *out,
                               memfit_error *err)
{
    const int64_t slots = mf_ring_slots(f->ring);
    if (f->made_links > 1 && count > slots)
        return mf_fail(err, MEMFIT_INTERNAL, "the ring has %lld slots for a piece of %lld samples", (long long)slots,
                       (long long)count);
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < slots ? count - done : slots;
        memfit_status status = mf_ring_wait(f->ring, f, first + done, n, err);
        if (status != MEMFIT_OK)
            return status;
        copy_slots(f, l, first + done, n, out + (uint64_t)done * bytes_now(f, l));
        if (f->made_links == 1)
            mf_ring_release(f->ring, first + done + n);
    }
    if (f->made_links > 1 && ++f->taken == f->made_links) {
        f->taken = 0;
        mf_ring_release(f->ring, first + count);
    }
    return MEMFIT_OK;
}

/* Samples that need no scratch are shared out over the threads: they are many and independent. */
static memfit_status fill_together(mf_feeder *f, const mf_feed_link *l, int64_t first, int64_t count, bool known,
                                   unsigned char *out, memfit_error *err)
{
    memfit_status worst = MEMFIT_OK;
    const uint64_t bytes = bytes_now(f, l);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        memfit_error mine;
        memfit_status status = fill_one(f, l, sample_at(f, first + i, known), out + (uint64_t)i * bytes, &mine);
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
    if (l->made)
        return fill_made(f, l, first, count, out, err);
    bool known = know_samples(f, first, count);
    const uint64_t bytes = bytes_now(f, l);
    bool scratch = l->array && !l->array->data && !is_drawn(l) && (l->array->dtype != l->dtype || l->array->ragged);
    if (l->role != 2 && !scratch && count > 1 && (uint64_t)count * bytes > 1 << 20)
        return fill_together(f, l, first, count, known, out, err);
    for (int64_t i = 0; i < count; i++) {
        memfit_status status =
            fill_one(f, l, sample_at(f, first + i, known), (unsigned char *)out + (uint64_t)i * bytes, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return MEMFIT_OK;
}

/* Blocks of the next window, as many as this step is of its own. The first window is read as it is used: asking for all of
 * it would keep the first step waiting. */
static void read_blocks_ahead(const mf_feeder *f, const mf_array *a, int64_t first, int64_t count)
{
    const int64_t blocks = f->samples / f->block, from = first / f->block, to = (first + count) / f->block;
    const int64_t a_window = f->window / f->block;
    for (int64_t b = from + a_window; b < to + a_window && b < blocks; b++)
        mf_os_read_ahead(a->data + (uint64_t)(f->first + mf_feeder_block(f, b)) * a->sample_bytes,
                         (uint64_t)f->block * a->sample_bytes);
}

void mf_feeder_read_ahead(const mf_feeder *f, int64_t first, int64_t count)
{
    if (first + count > f->samples)
        count = f->samples - first;
    for (uint32_t l = 0; l < f->count; l++) {
        const mf_array *a = f->links[l].array;
        if (!a || !a->data || a->sample_bytes * (uint64_t)f->source->samples < READ_AHEAD_FROM_BYTES)
            continue;
        if (f->block) {
            read_blocks_ahead(f, a, first, count);
            continue;
        }
        if (!f->shuffled && count > 0)
            mf_os_read_ahead(a->data + (uint64_t)mf_feeder_sample(f, first) * a->sample_bytes,
                             (uint64_t)count * a->sample_bytes);
        for (int64_t i = 0; f->shuffled && i < count; i++)
            mf_os_read_ahead(a->data + (uint64_t)mf_feeder_sample(f, first + i) * a->sample_bytes, a->sample_bytes);
    }
}
