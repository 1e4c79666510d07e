/*
 * chunk.h: the last layer and its loss, a chunk of rows at a time.
 *
 *     whole     x -> matmul -> logits (rows, classes) -> loss, metrics -> slopes over them -> dkernel, dbias, dx
 *     chunks    for rows r of x: matmul -> logits of r -> loss, metrics, slopes -> dkernel +=, dbias +=, dx[r] =
 *
 * A language model's logits are rows * vocabulary numbers, often more than everything else together; each row's loss
 * and slopes depend on that row alone. So training makes the gradients of the last layer together with its loss and
 * keeps one chunk of the logits. A row's results are computed as before; what is summed over rows (loss, metrics,
 * dkernel, dbias) is summed chunk by chunk: `reordered`. Denominators are the whole batch's: they come from the
 * scalars, and the weights of rows (sample weights, masks, ignored labels) are made before the loop, over the whole
 * batch.
 *
 * In training the loop stands at the beginning of the backward pass, behind the accumulators' clearing; when
 * evaluating, where the loss would be. Its operations are ordinary ones on views of rows, unrolled and marked
 * `chunked`.
 */
#ifndef MF_GRAPH_CHUNK_H
#define MF_GRAPH_CHUNK_H

#include "graph/kinds/gradient.h"

typedef struct mf_head_metric {
    mf_attr attr;
    uint32_t target, weights, state; /* as the METRIC operation reads them; weights may be MF_NONE */
} mf_head_metric;

typedef struct mf_head {
    struct mf_head *next;
    uint32_t x;            /* what the last layer reads: (rows, width) */
    uint32_t kernel, bias; /* as its product reads them: variables, or casts or views of such; bias may be MF_NONE */
    bool trans_kernel;     /* (classes, width) */
    bool softmax;          /* metrics see probabilities, the loss logits */
    uint32_t layer;        /* the last layer, which owns what is made here */
    mf_attr loss;
    uint32_t target, weights, loss_tensor; /* operands of the LOSS operation; weights may be MF_NONE */
    mf_head_metric *metrics;
    uint32_t metric_count;
    uint32_t chunks; /* asked for */
} mf_head;

/* The last layer behind `logits` (what the loss reads) and `pred` (what metrics read): fills x, kernel, bias,
 * trans_kernel, softmax, layer. False when it is not a product that can be chunked; *why says so. */
bool mf_head_find(const mf_build *b, uint32_t logits, uint32_t pred, mf_head *head, const char **why);
/* How many chunks of at most `chunks` equal ones the rows make: chunks begin at multiples of 16 rows, so that they are
 * aligned whatever a row holds. */
uint32_t mf_head_chunks(int64_t rows, uint32_t chunks, int64_t *rows_per_chunk);
/* Puts the head among those whose losses are still to be appended. */
void mf_head_add(mf_build *b, const mf_head *head);
/* Appends them all. `w`: with gradients, which are given to it; NULL: loss and metrics only. */
void mf_heads_append(mf_build *b, mf_backward *w);

#endif
