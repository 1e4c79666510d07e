/*
 * xla.h: what XLA makes of a step: Keras 3 on JAX, and on TensorFlow with jit_compile (its default). The whole step is
 * one program. Its variables are donated and updated in place; all else lives in one temporary buffer whose parts are
 * known by their lifetimes.
 *
 * Which tensors exist at all is the question. XLA fuses pointwise work into whoever reads it, so such a tensor is stored
 * only where a convolution, a product or another library call reads it, or where recomputing it for each reader would
 * read several others; the rest are formulas over stored ones, whose lives they prolong:
 *
 *   conv -> BN -> ReLU -> conv        stored: both convolutions' results and ReLU's; BN's result is never there
 *   ReLU's mask in backward           recomputed from the convolution's result
 *   max pooling in backward           looks at its input again: no index is kept
 */
#ifndef MF_PLAN_XLA_H
#define MF_PLAN_XLA_H

#include "graph/graph.h"
#include "plan/frameworks/tape.h"

typedef struct mf_xla_memory {
    uint64_t variable_bytes;  /* donated: parameters, optimizer, statistics */
    uint64_t input_bytes;     /* a batch */
    uint64_t temp_bytes;      /* the temporary buffer */
    uint64_t workspace_bytes; /* a product's workspace in it, while one runs */
    bool products;            /* there are any */
    bool could_do_with_less;  /* a smaller workspace would do: asked again without `roomy` it is less */
} mf_xla_memory;

/* What the libraries of a card make of it. */
typedef struct mf_xla_card {
    uint64_t blas_bytes;  /* the workspace of a product */
    bool fused_attention; /* in 16 bits it is one call of cuDNN */
    bool library_lstm;    /* an LSTM is one, too, where Keras may call it */
    bool roomy;           /* tuning may take what is quickest, whatever its workspace */
    bool recomputes;      /* short of memory: nothing is kept for backward that could be made again */
} mf_xla_card;

/* `graph` is a plain training step. */
memfit_status mf_xla_run(const memfit_host *host, const mf_graph *graph, const mf_xla_card *card, mf_xla_memory *memory,
                         memfit_error *err);

#endif
