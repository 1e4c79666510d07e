/* train_place.h: steps of a small training, for the tests of packing; on the pool of stream_place.h. */
#ifndef TRAIN_PLACE_H
#define TRAIN_PLACE_H

#include "stream_place.h"

enum { LAYERS = 40 };

typedef struct step {
    place p;
    memfit_address batch; /* from step to step: it is given up only when the next one is there */
    memfit_address kept[6];
    uint64_t addresses; /* of all blocks, as one number */
    uint32_t seed;      /* of the sizes */
    uint64_t alignment;
    bool whole;  /* the batch goes with its step */
    bool little; /* and is small beside what the step takes */
    bool side;   /* the batch comes on another stream, and a result leaves on a third */
} step;

static inline memfit_address hold(step *s, uint64_t bytes, memfit_stream stream)
{
    memfit_address a = 0;
    assert_ok(memfit_pool_alloc_on(s->p.pool, bytes, s->alignment, 0, stream, &a, &err), err);
    assert_true(!s->alignment || a % s->alignment == 0);
    if (stream == s->p.main)
        s->addresses = (s->addresses ^ a) * UINT64_C(0x9e3779b97f4a7c15);
    kernel(&s->p, a, bytes, stream);
    return a;
}

static inline void leave(step *s, memfit_address a)
{
    drop(&s->p, a, s->p.main);
}

static inline uint64_t layer_bytes(const step *s, unsigned i)
{
    return 40000 + ((i + 1) * (s->seed * 2654435761u + 40503u) >> 7) % 5000000;
}

/* Forward: a result and a short-lived workspace a layer. Backward: two gradients, and the results go one by one. */
static inline void train_step(step *s, uint64_t odd)
{
    memfit_address results[LAYERS], batch = hold(s, s->little ? 2000000 : 5000000, s->side ? s->p.side : s->p.main),
                                    last = 0;
    if (s->side) {
        assert_ok(memfit_pool_use_on(s->p.pool, batch, s->p.main, &err), err);
    } else if (s->batch) {
        leave(s, s->batch);
    }
    s->batch = batch;
    for (unsigned i = 0; i < LAYERS; i++) {
        memfit_address work = hold(s, layer_bytes(s, i) * 3 / 2 + odd, s->p.main);
        results[i] = hold(s, layer_bytes(s, i), s->p.main);
        leave(s, work);
    }
    if (s->side) /* the last result is copied out on a third stream */
        assert_ok(memfit_pool_use_on(s->p.pool, results[LAYERS - 1], s->p.third, &err), err);
    for (unsigned i = LAYERS; i-- > 0;) {
        memfit_address gradient = hold(s, layer_bytes(s, i), s->p.main);
        if (last)
            leave(s, last);
        leave(s, results[i]);
        last = gradient;
    }
    leave(s, last);
    if (s->side)
        drop(&s->p, s->batch, s->p.side);
    else if (s->whole)
        leave(s, s->batch);
    if (s->side || s->whole)
        s->batch = 0;
}

#endif
