/* feed_order.c: the order in which a feeder takes samples. */
#include "data/feed.h"

#include "ops/ops.h"

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

static uint32_t bucket_of(const mf_feeder *f, uint32_t position)
{
    const int64_t length = f->source->lengths ? f->source->lengths[f->first + position] : 0;
    uint32_t k = 0;
    while (k + 1 < f->bound_count && f->bounds[k + 1] >= length)
        k++;
    return k;
}

/*
 * Batches of samples of similar length, from an order that is shuffled already: samples of one bucket, in that order, make
 * batches; what does not fill one, from the longest to the shortest, makes the last ones; and the batches are shuffled, but
 * for the one that is not full, which stays last.
 *
 *   order      b a a c b a c b a b      batch 2, buckets a, b, c
 *   arranged   a a | a a | b b | b b | c c        and shuffled: b b | a a | c c | b b | a a
 */
static void arrange(mf_feeder *f, uint64_t seed, uint64_t epoch)
{
    int64_t begins[MF_MOST_LENGTHS + 1] = {0}, full = 0, rest;
    uint32_t *sorted = f->arranged, *batches = f->arranged + f->samples;
    for (int64_t i = 0; i < f->samples; i++)
        begins[bucket_of(f, f->order[i]) + 1]++;
    int64_t counts[MF_MOST_LENGTHS];
    for (uint32_t k = 0; k < MF_MOST_LENGTHS; k++) {
        counts[k] = begins[k + 1];
        full += counts[k] / f->batch * f->batch;
        begins[k + 1] += begins[k];
    }
    int64_t next[MF_MOST_LENGTHS], fill[MF_MOST_LENGTHS]; /* of a bucket: where its full batches go on, and its rest */
    int64_t at = 0;
    rest = full;
    for (uint32_t k = 0; k < MF_MOST_LENGTHS; k++) {
        next[k] = at;
        at += counts[k] / f->batch * f->batch;
        fill[k] = rest;
        rest += counts[k] % f->batch;
    }
    for (int64_t i = 0; i < f->samples; i++) {
        const uint32_t k = bucket_of(f, f->order[i]);
        const int64_t left = counts[k]--; /* this one included */
        sorted[left > (begins[k + 1] - begins[k]) % f->batch ? next[k]++ : fill[k]++] = f->order[i];
    }
    const int64_t whole = f->samples / f->batch;
    uint32_t r[4];
    for (int64_t i = 0; i < whole; i++)
        batches[i] = (uint32_t)i;
    for (int64_t i = whole - 1; i > 0; i--) {
        mf_philox(seed, 0x0bde4, epoch, 2, (uint64_t)i, r);
        const int64_t j = (int64_t)(((uint64_t)r[0] << 32 | r[1]) % (uint64_t)(i + 1));
        const uint32_t swap = batches[i];
        batches[i] = batches[j];
        batches[j] = swap;
    }
    for (int64_t i = 0; i < f->samples; i++) {
        const int64_t b = i / f->batch;
        f->order[i] = sorted[b < whole ? (int64_t)batches[b] * f->batch + i % f->batch : i];
    }
}

void mf_feeder_shuffle(mf_feeder *f, uint64_t seed, uint64_t epoch)
{
    if (f->ring)
        mf_ring_stop(f->ring); /* workers read the order */
    if (f->order)
        list_order(f, seed, epoch);
    if (f->bucketed)
        arrange(f, seed, epoch);
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
 * Number `x` of `count` under a permutation that is not stored. A Feistel network exchanges the two halves of a number,
 * adding to one a function of the other: a permutation of the numbers of that many bits whatever the function is (Luby
 * and Rackoff, 1988). Of those, numbers beyond the count are permuted once more until one is not (cycle walking:
 * Black and Rogaway, 2002), which leaves a permutation of the count; less than four turns on average.
 */
static uint64_t scatter(const uint32_t *keys, uint32_t salt, uint64_t count, uint64_t x)
{
    unsigned half = 1;
    while (half < 31 && count >> 2 * half)
        half++;
    const uint32_t mask = (1u << half) - 1;
    do {
        uint32_t left = (uint32_t)(x >> half), right = (uint32_t)x & mask;
        for (int i = 0; i < MF_FEEDER_ROUNDS; i++) {
            uint32_t next = left ^ (mix(right ^ keys[i] ^ salt) & mask);
            left = right;
            right = next;
        }
        x = (uint64_t)left << half | right;
    } while (x >= count);
    return x;
}

/*
 * Block shuffle, where reading samples from all over a file would be slow: blocks of neighbours in a permuted order, cut
 * into windows, and the samples of a window permuted among themselves.
 *
 *   file      | block 0 | block 1 | block 2 | block 3 | block 4 | block 5 | block 6 | rest |
 *   order     [ 5  2  0 ] [ 6  1  4 ] [ 3  rest ]        windows of 3 blocks: read in blocks, mixed within
 *
 * Like the order above it is computed from the epoch's keys and takes no memory; what does not fill a block belongs to the
 * last window.
 */
int64_t mf_feeder_block(const mf_feeder *f, int64_t number)
{
    return (int64_t)scatter(f->keys, 0, (uint64_t)(f->samples / f->block), (uint64_t)number) * f->block;
}

static int64_t within_blocks(const mf_feeder *f, int64_t position)
{
    const int64_t blocks = f->samples / f->block, a_window = f->window / f->block;
    const int64_t windows = (blocks + a_window - 1) / a_window;
    int64_t window = position / f->window;
    window = window < windows ? window : windows - 1; /* the rest, behind the last block */
    const int64_t first_block = window * a_window, last = window == windows - 1;
    const int64_t in_window = last ? f->samples - window * f->window : f->window;
    const int64_t p = (int64_t)scatter(f->keys, mix((uint32_t)window + 1), (uint64_t)in_window,
                                       (uint64_t)(position - window * f->window));
    const int64_t block = first_block + p / f->block;
    return block < blocks ? mf_feeder_block(f, block) + p % f->block : blocks * f->block + p % f->block;
}

int64_t mf_feeder_sample(const mf_feeder *f, int64_t position)
{
    if (f->order)
        return f->first + (int64_t)f->order[position];
    if (f->shuffled && f->block)
        return f->first + within_blocks(f, position);
    return f->first + (f->shuffled ? (int64_t)scatter(f->keys, 0, (uint64_t)f->samples, (uint64_t)position) : position);
}

enum {
    BLOCK_BYTES = 1 << 20, /* read at once: seeking takes less than reading that */
    LEAST_WINDOW_BYTES = 64 << 20,
};
#define MOST_WINDOW_BYTES ((uint64_t)4 << 30)

/* Memory holds the file: read once, it is read in any order. A slow disk, or samples of which a page has many, each of
 * which would be read for one of them: blocks. */
bool mf_order_choose(uint64_t stored_bytes, int64_t samples, uint64_t memory_bytes, bool slow, int64_t *block,
                     int64_t *window)
{
    const uint64_t each = samples ? stored_bytes / (uint64_t)samples : 0;
    *block = *window = 0;
    if (!each || stored_bytes <= memory_bytes / 2 || !(slow || each < mf_os_page_bytes()))
        return false;
    uint64_t bytes = memory_bytes / 16;
    bytes = bytes < LEAST_WINDOW_BYTES ? LEAST_WINDOW_BYTES : bytes > MOST_WINDOW_BYTES ? MOST_WINDOW_BYTES : bytes;
    *block = each < BLOCK_BYTES ? (int64_t)(BLOCK_BYTES / each) : 1;
    *window = (int64_t)(bytes / each);
    mf_order_round(samples, block, window);
    return true;
}

void mf_order_round(int64_t samples, int64_t *block, int64_t *window)
{
    if (*window >= samples) { /* one window is the whole: nothing to gain */
        *block = *window = 0;
        return;
    }
    if (!*block) /* not given: sixteen of them in a window */
        *block = *window / 16;
    *block = *block < 1 ? 1 : *block < *window ? *block : *window;
    *window -= *window % *block;
}
