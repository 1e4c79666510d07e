/* ring.c: see ring.h. One lock guards all but the slots' bytes: a slot belongs to the worker that claimed it until it is
 * ready, then to the consumer until it is released. */
#include "data/ring.h"

#include "base/error.h"
#include "base/os.h"
#include "data/feed_inner.h"
#include "data/worker.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    STACK_BYTES = 256 << 10,
    TOUCHED_BYTES = 96 << 10, /* of a worker's stack, before the process is measured: deeper than decoders go */
    MOST_SKIPPED = 1 << 16,
    MOST_CLAIMED = 16,
    CLAIMED_BYTES = 64 << 10, /* small samples are claimed several at a time: the lock is not for each */
};

typedef enum { EMPTY, READY, BAD } state;

typedef struct hand {
    mf_ring *ring;
    pthread_t thread;
    mf_worker *worker;
    memfit_error error; /* of the sample it makes: too large for the stack of each call */
    bool warm;
} hand;

struct mf_ring {
    const memfit_host *host;
    mf_ring_options options;
    hand *hands;
    unsigned started;
    unsigned char *bytes;
    state *states;    /* of slots */
    int64_t *samples; /* of positions, by position modulo twice the slots */
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* for workers; for the consumer */
    mf_feeder *feeder;
    int64_t released, next, end; /* see ring.h; end == next: nothing is to be made */
    int64_t wanted;              /* the consumer waits for this one; -1: it does not wait */
    unsigned busy;
    bool quit, warming;
    int64_t error_position; /* of the first that could not be made */
    memfit_error error;
    int64_t *skipped; /* samples, sorted */
    int64_t skipped_count, told;
    char skipped_text[MEMFIT_ERROR_TEXT];
    mf_ring_times times;
};

/* ---- what is left out ------------------------------------------------------------------------------------- */

/* Where it is, or where it would be. */
static int64_t find_skipped(const mf_ring *r, int64_t sample)
{
    int64_t low = 0, high = r->skipped_count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (r->skipped[middle] < sample)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_skipped(mf_ring *r, int64_t sample)
{
    pthread_mutex_lock(&r->lock);
    int64_t at = find_skipped(r, sample);
    bool skipped = at < r->skipped_count && r->skipped[at] == sample;
    pthread_mutex_unlock(&r->lock);
    return skipped;
}

/* False when there are too many already: the error then is the run's. */
static bool skip(mf_ring *r, int64_t sample, memfit_error *err)
{
    if (err->code == MEMFIT_INTERNAL || err->code == MEMFIT_NO_HOST_MEMORY)
        return false;
    pthread_mutex_lock(&r->lock);
    int64_t at = find_skipped(r, sample);
    bool known = at < r->skipped_count && r->skipped[at] == sample, room = r->skipped_count < r->options.skip_most;
    if (!known && room) {
        memmove(r->skipped + at + 1, r->skipped + at, (size_t)(r->skipped_count - at) * sizeof *r->skipped);
        r->skipped[at] = sample;
        r->skipped_count++;
        snprintf(r->skipped_text, sizeof r->skipped_text, "%s", err->message);
    }
    pthread_mutex_unlock(&r->lock);
    return known || room;
}

/* ---- workers ---------------------------------------------------------------------------------------------- */

static unsigned char *slot_of(const mf_ring *r, int64_t position)
{
    return r->bytes + (uint64_t)(position % r->options.slots) * r->options.slot_bytes;
}

/* The sample at `position`, or the one in its place. */
static memfit_status make(mf_ring *r, hand *h, int64_t position, int64_t *sample)
{
    const mf_feeder *f = r->feeder;
    *sample = mf_feeder_sample(f, position);
    for (int64_t tried = 0;; tried++) {
        memfit_status status = MEMFIT_DAMAGED;
        if (!r->options.skip_most || !is_skipped(r, *sample)) {
            status = mf_feeder_make(f, position, *sample, h->worker, slot_of(r, position), &h->error);
            if (status == MEMFIT_OK)
                return status;
            if (!r->options.skip_most || !skip(r, *sample, &h->error))
                break;
        }
        if (tried == f->samples)
            break;
        *sample = f->first + (*sample + 1 - f->first) % f->samples;
    }
    if (h->error.code == MEMFIT_OK)
        mf_fail(&h->error, MEMFIT_DAMAGED, "%s: no sample of it can be read", f->source->path);
    size_t n = strlen(h->error.hint);
    if (r->options.skip_most)
        snprintf(h->error.hint + n, sizeof h->error.hint - n,
                 "%s%lld samples were left out already, as --skip-bad allows", n ? "; " : "",
                 (long long)r->options.skip_most);
    else
        snprintf(h->error.hint + n, sizeof h->error.hint - n, "%s--skip-bad N goes on without up to N such samples",
                 n ? "; " : "");
    return h->error.code;
}

static int64_t claim_size(const mf_ring *r)
{
    int64_t n = (int64_t)(CLAIMED_BYTES / (r->options.slot_bytes + 1)), fair = r->options.slots / r->options.workers;
    n = n < MOST_CLAIMED ? n : MOST_CLAIMED;
    n = n < fair ? n : fair;
    return n > 1 ? n : 1;
}

static bool has_work(const mf_ring *r)
{
    return r->next < r->end && r->next < r->released + r->options.slots;
}

/* The lock is held, and is again at the end. */
static void make_some(mf_ring *r, hand *h)
{
    int64_t first = r->next, most = r->released + r->options.slots, count = claim_size(r), sample;
    count = first + count < most ? count : most - first;
    count = first + count < r->end ? count : r->end - first;
    r->next += count;
    r->busy++;
    for (int64_t p = first; p < first + count; p++) {
        pthread_mutex_unlock(&r->lock);
        uint64_t began = mf_os_now_ns();
        memfit_status status = make(r, h, p, &sample);
        uint64_t took = mf_os_now_ns() - began;
        pthread_mutex_lock(&r->lock);
        r->times.make_ns += took;
        r->times.made++;
        r->samples[p % (2 * r->options.slots)] = sample;
        r->states[p % r->options.slots] = status == MEMFIT_OK ? READY : BAD;
        if (status != MEMFIT_OK && p < r->error_position) {
            r->error_position = p;
            r->error = h->error;
        }
        if (p == r->wanted)
            pthread_cond_signal(&r->done);
    }
    r->busy--;
    if (!r->busy)
        pthread_cond_signal(&r->done);
}

static __attribute__((noinline)) void touch_stack(void)
{
    volatile unsigned char deep[TOUCHED_BYTES];
    for (size_t i = 0; i < sizeof deep; i += 1024)
        deep[i] = 1;
}

static void warm(mf_ring *r, hand *h)
{
    const int64_t i = h - r->hands;
    h->warm = true;
    r->busy++;
    pthread_mutex_unlock(&r->lock);
    const int64_t sample = r->feeder->first + i % r->feeder->samples;
    if (mf_feeder_make(r->feeder, r->feeder->first_position, sample, h->worker, slot_of(r, i), &h->error) !=
            MEMFIT_OK &&
        h->worker->front) /* its code must be there all the same */
        mf_front_work(h->worker->front, 0, 0, 0, slot_of(r, i), &h->error);
    pthread_mutex_lock(&r->lock);
    r->busy--;
    pthread_cond_signal(&r->done);
}

static void *work(void *ctx)
{
    hand *h = ctx;
    mf_ring *r = h->ring;
    touch_stack();
    pthread_mutex_lock(&r->lock);
    while (!r->quit) {
        if (r->warming && !h->warm)
            warm(r, h);
        else if (has_work(r))
            make_some(r, h);
        else
            pthread_cond_wait(&r->work, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- making ----------------------------------------------------------------------------------------------- */

uint64_t mf_ring_estimate(const mf_ring_options *o)
{
    return (uint64_t)o->slots * (o->slot_bytes + sizeof(state) + 2 * sizeof(int64_t)) +
           o->workers * (mf_worker_bytes(o->room_bytes, o->spare_bytes) + TOUCHED_BYTES +
                         (o->front ? mf_front_hand_bytes(o->front) : 0));
}

uint64_t mf_ring_bytes(const mf_ring *r)
{
    return mf_ring_estimate(&r->options);
}

/* Signals are for the thread that trains. */
static bool start(mf_ring *r)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (r->started < r->options.workers &&
           pthread_create(&r->hands[r->started].thread, &attributes, work, &r->hands[r->started]) == 0)
        r->started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return r->started == r->options.workers;
}

static memfit_status fill_in(mf_ring *r, memfit_error *err)
{
    const mf_ring_options *o = &r->options;
    r->hands = mf_host_zalloc(r->host, o->workers * sizeof *r->hands);
    r->bytes = mf_host_alloc(r->host, (uint64_t)o->slots * o->slot_bytes + 1);
    r->states = mf_host_zalloc(r->host, (size_t)o->slots * sizeof *r->states);
    r->samples = mf_host_zalloc(r->host, 2 * (size_t)o->slots * sizeof *r->samples);
    if (o->skip_most)
        r->skipped = mf_host_zalloc(r->host, (size_t)o->skip_most * sizeof *r->skipped);
    if (!r->hands || !r->bytes || !r->states || !r->samples || (o->skip_most && !r->skipped))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for %lld samples made ahead", (long long)o->slots);
    memset(r->bytes, 0, (uint64_t)o->slots * o->slot_bytes); /* resident: the fixed cost is measured after this */
    for (unsigned i = 0; i < o->workers; i++) {
        r->hands[i].ring = r;
        memfit_status status = mf_worker_create(r->host, o->room_bytes, o->spare_bytes, &r->hands[i].worker, err);
        if (status == MEMFIT_OK && o->front)
            status = mf_front_hand_create(o->front, &r->hands[i].worker->front, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return start(r) ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no thread for a worker that makes samples");
}

memfit_status mf_ring_create(const memfit_host *host, const mf_ring_options *options, mf_ring **ring, memfit_error *err)
{
    mf_ring *r = mf_host_zalloc(host, sizeof *r);
    if (!r)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for samples made ahead");
    r->host = host;
    r->options = *options;
    r->options.slots = options->slots > (int64_t)options->workers ? options->slots : (int64_t)options->workers;
    r->options.slot_bytes = (options->slot_bytes + 63) & ~(uint64_t)63;
    if (r->options.skip_most > MOST_SKIPPED)
        r->options.skip_most = MOST_SKIPPED;
    r->wanted = -1;
    r->error_position = INT64_MAX;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    memfit_status status = fill_in(r, err);
    if (status != MEMFIT_OK) {
        mf_ring_destroy(r);
        return status;
    }
    *ring = r;
    return MEMFIT_OK;
}

void mf_ring_destroy(mf_ring *r)
{
    if (!r)
        return;
    const mf_ring_options *o = &r->options;
    pthread_mutex_lock(&r->lock);
    r->quit = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (unsigned i = 0; i < r->started; i++)
        pthread_join(r->hands[i].thread, NULL);
    for (unsigned i = 0; r->hands && i < o->workers; i++)
        mf_worker_destroy(r->hands[i].worker);
    mf_host_free(r->host, r->hands, o->workers * sizeof *r->hands);
    mf_host_free(r->host, r->bytes, (uint64_t)o->slots * o->slot_bytes + 1);
    mf_host_free(r->host, r->states, (size_t)o->slots * sizeof *r->states);
    mf_host_free(r->host, r->samples, 2 * (size_t)o->slots * sizeof *r->samples);
    mf_host_free(r->host, r->skipped, (size_t)o->skip_most * sizeof *r->skipped);
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->done);
    pthread_mutex_destroy(&r->lock);
    mf_host_free(r->host, r, sizeof *r);
}

/* ---- the consumer's side ----------------------------------------------------------------------------------- */

/* The lock is held. */
static void rest(mf_ring *r)
{
    r->end = r->next;
    while (r->busy)
        pthread_cond_wait(&r->done, &r->lock);
}

void mf_ring_stop(mf_ring *r)
{
    pthread_mutex_lock(&r->lock);
    rest(r);
    r->feeder = NULL;
    pthread_mutex_unlock(&r->lock);
}

void mf_ring_warm_up(mf_ring *r, mf_feeder *feeder)
{
    pthread_mutex_lock(&r->lock);
    rest(r);
    r->feeder = feeder;
    r->warming = true;
    bool all = false;
    pthread_cond_broadcast(&r->work);
    while (!all) {
        all = !r->busy;
        for (unsigned i = 0; i < r->options.workers; i++)
            all = all && r->hands[i].warm;
        if (!all)
            pthread_cond_wait(&r->done, &r->lock);
    }
    r->warming = false;
    r->feeder = NULL;
    pthread_mutex_unlock(&r->lock);
}

/* The lock is held. */
static void begin_at(mf_ring *r, mf_feeder *feeder, int64_t position)
{
    rest(r);
    r->feeder = feeder;
    r->released = r->next = position;
    r->end = feeder->samples;
    r->error_position = INT64_MAX;
    memset(r->states, 0, (size_t)r->options.slots * sizeof *r->states);
    pthread_cond_broadcast(&r->work);
}

static void tell_skipped(mf_ring *r)
{
    char text[MEMFIT_ERROR_TEXT];
    pthread_mutex_lock(&r->lock);
    int64_t count = r->skipped_count;
    bool news = count > r->told;
    r->told = count;
    if (news)
        snprintf(text, sizeof text, "%s", r->skipped_text);
    pthread_mutex_unlock(&r->lock);
    if (news)
        mf_log_write(r->options.log, MF_LOG_NOTE, "left out (%lld of at most %lld): %s", (long long)count,
                     (long long)r->options.skip_most, text);
}

memfit_status mf_ring_wait(mf_ring *r, mf_feeder *feeder, int64_t first, int64_t count, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    pthread_mutex_lock(&r->lock);
    if (r->feeder != feeder || first < r->released || first > r->next)
        begin_at(r, feeder, first);
    uint64_t began = 0;
    for (int64_t p = first; p < first + count && status == MEMFIT_OK; p++) {
        while (p >= r->next || r->states[p % r->options.slots] == EMPTY) {
            began = began ? began : mf_os_now_ns();
            r->wanted = p;
            pthread_cond_wait(&r->done, &r->lock);
        }
        r->wanted = -1;
        if (r->states[p % r->options.slots] == BAD) {
            status = r->error.code;
            if (err)
                *err = r->error;
        }
    }
    if (began)
        r->times.wait_ns += mf_os_now_ns() - began;
    pthread_mutex_unlock(&r->lock);
    if (r->options.skip_most)
        tell_skipped(r);
    return status;
}

int64_t mf_ring_slots(const mf_ring *r)
{
    return r->options.slots;
}

const unsigned char *mf_ring_slot(const mf_ring *r, int64_t position)
{
    return slot_of(r, position);
}

bool mf_ring_know(mf_ring *r, mf_feeder *feeder, int64_t first, int64_t count)
{
    if (count > r->options.slots)
        return false;
    pthread_mutex_lock(&r->lock);
    bool past =
        r->feeder == feeder && first + count <= r->released && first >= r->released - r->options.slots && first >= 0;
    pthread_mutex_unlock(&r->lock);
    return past || mf_ring_wait(r, feeder, first, count, NULL) == MEMFIT_OK;
}

int64_t mf_ring_sample(const mf_ring *r, int64_t position)
{
    return r->samples[position % (2 * r->options.slots)];
}

void mf_ring_release(mf_ring *r, int64_t position)
{
    pthread_mutex_lock(&r->lock);
    for (int64_t p = r->released; p < position; p++)
        r->states[p % r->options.slots] = EMPTY;
    if (position > r->released)
        r->released = position;
    if (has_work(r))
        pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

bool mf_ring_skips(const mf_ring *r)
{
    return r->options.skip_most > 0;
}

unsigned mf_ring_workers(const mf_ring *r)
{
    return r->options.workers;
}

mf_ring_times mf_ring_read_times(mf_ring *r)
{
    pthread_mutex_lock(&r->lock);
    mf_ring_times times = r->times;
    times.skipped = r->skipped_count;
    pthread_mutex_unlock(&r->lock);
    return times;
}
