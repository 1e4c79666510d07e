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

void mf_feeder_shuffle(mf_feeder *f, uint64_t seed, uint64_t epoch)
{
    if (f->ring)
        mf_ring_stop(f->ring); /* workers read the order */
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
