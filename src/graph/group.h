/*
 * group.h: several operations as one. What passes between them has no bytes of its own: it lives in registers, or in the
 * workspace of a backend that runs the members one by one.
 *
 *     x ── batch_norm ── y ── add ── s ── relu ── z          x, r ── group ── z, mean, variance
 *          mean, variance     r
 *
 * A group is made from a finished graph, before it is planned (mf_graph_group), and only of operations that the backend
 * said it takes together. To the planner it is one operation: it reads its inputs and writes its outputs at one place in
 * the order, is recomputed as a whole, and its workspace is what the backend asks for.
 *
 * The members are operations of a small graph of their own. Its tensors are the group's inputs, then its outputs, in
 * their order, then what stays inside; each has a storage of its own, that of a variable names it. It lives in the arena
 * of the graph it is part of.
 */
#ifndef MF_GRAPH_GROUP_H
#define MF_GRAPH_GROUP_H

#include "graph/graph.h"

typedef struct mf_group {
    mf_graph inner;                   /* variables, feeds and outputs are not there; layers are the whole graph's */
    uint32_t inplace_in, inplace_out; /* as in a kind's row */
    bool recomputable;
} mf_group;

/* What may become one operation. `ops`: members, ascending; those of which the backend would make one kernel, whose result
 * is that of the members run in turn. */
typedef struct mf_group_taker {
    void *ctx;
    bool (*takes)(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count);
    bool narrow_losses; /* losses may read and their slopes be written in 16 bits (passes/narrow.c) */
    /* Whether it runs this ATTENTION (and its gradient) better than the products and the softmax it would be made of
     * (passes/attend.c). NULL: never. */
    bool (*attends)(void *ctx, const mf_graph *graph, const mf_op *attention);
    bool pools_first;  /* activations go behind the maximum pooling that they stand before (passes/pool_first.c) */
    bool late_updates; /* updates wait for each other (passes/late.c) */
    bool whole_sums;   /* sums over rows read what was made, not a view of it (passes/sums.c) */
    bool bias_sums;    /* gradients of convolutions' biases are summed where slopes are made (passes/bias_sums.c) */
    bool slopes;       /* activations' slopes come from what was normalized (passes/slopes.c) */
    /* Rows of logits are filled up where their product takes at least so many multiplications (passes/even_rows.c);
     * 0: never. */
    uint64_t even_rows;
    bool narrow_feeds; /* inputs arrive in the 16 bits they are first cast to (passes/narrow_feeds.c) */
    /* A chain that cannot grow any more: is it one? NULL: all are. */
    bool (*whole)(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count);
} mf_group_taker;

enum { MF_GROUP_MOST = 16 }; /* members of a chain */

/* Joins what the taker takes: each operation with those that read its results, as far as it goes. The order of all
 * others stays. The graph is numbered anew. On failure it must be
 * destroyed. */
memfit_status mf_graph_group(mf_graph *graph, const mf_group_taker *taker, memfit_error *err);

#endif
