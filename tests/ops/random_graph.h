/*
 * random_graph.h: small graphs drawn at random: every kind that can be drawn, odd broadcasts, views that share bytes,
 * losses, gradients and an optimizer. A subject is a list of draws: leaving some out gives another valid graph, which is
 * how a failing one is made small.
 */
#ifndef MF_TESTS_OPS_RANDOM_GRAPH_H
#define MF_TESTS_OPS_RANDOM_GRAPH_H

#include "test.h"

#include "graph/build.h"
#include "graph/passes/optimizer.h"

enum { MOST_DRAWS = 14, MOST_INPUTS = 4, DRAW_WORDS = 5 };

typedef struct draw {
    uint32_t kind;
    uint32_t word[DRAW_WORDS]; /* what the draw makes of them is its own affair */
    bool left_out;
} draw;

typedef struct subject {
    uint64_t seed;
    mf_mode mode;
    int64_t batch;
    bool samplewise; /* no draw mixes samples: the batch may run in pieces */
    bool wide;       /* in float64: sums in another order agree closely */
    bool head;       /* ends in a product with a softmax cross-entropy, which can run in chunks */
    bool fuse, mask, plain, regularized;
    mf_optimizer_settings optimizer;
    uint32_t inputs[MOST_INPUTS], input_count; /* numbers of shapes */
    uint32_t target[3];                        /* which results the losses look at */
    draw draws[MOST_DRAWS];
    uint32_t draw_count;
} subject;

typedef struct random_state {
    uint64_t state;
} random_state;
uint32_t draw_word(random_state *random);
uint32_t draw_below(random_state *random, uint32_t n);

void subject_draw(subject *s, uint64_t seed, bool reordered);
/* A graph of the subject; chunks > 1: its last layer in chunks, where it has such an end. */
memfit_status subject_graph(const subject *s, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                            uint32_t chunks, mf_graph **graph, memfit_error *err);
/* The value of element i of a sample of a feed, and of a variable at the start. */
double subject_feed_value(const subject *s, const mf_graph *graph, uint32_t feed, uint64_t sample, uint64_t i);
double subject_variable_value(const subject *s, const mf_graph *graph, uint32_t variable, uint64_t i);
void subject_print(const subject *s, const mf_graph *graph);

#endif
