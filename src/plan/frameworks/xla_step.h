/*
 * xla_step.h: what the three parts of xla.h's model share: which tensors are stored (xla_store.c), what is there beside
 * them (xla_beside.c), how long it all lives (xla.c).
 */
#ifndef MF_PLAN_XLA_STEP_H
#define MF_PLAN_XLA_STEP_H

#include "plan/frameworks/xla.h"

/* A sum over at most this many rows is one kernel; over more XLA cuts it in two (a warp times the tile of a sum over
 * columns: xla/service/gpu/reduction_utils.cc). What one kernel sums and others read too is stored; what two sum is a
 * formula for each of them. */
enum { MF_XLA_ROWS_AT_ONCE = 4096 };

typedef struct mf_xla_step {
    const mf_graph *graph;
    mf_arena scratch;
    uint32_t turn;     /* the last operation of forward */
    bool recomputes;   /* as mf_xla_card has it */
    uint8_t *stored;   /* by tensor */
    uint8_t *again;    /* by tensor: made again in backward from what is kept, by XLA's own kernels */
    uint32_t *readers; /* by tensor: operations that read it */
    uint32_t *forward_readers;
    uint32_t *backward_reader; /* by tensor: the last of them in backward, 0: none */
    uint32_t *transposed;      /* by layer: its transposed convolution and 1, 0: none */
    uint32_t *dropped;         /* by layer: dropout's gradient and 1, 0: none */
    uint8_t *called;           /* by layer: its LSTM is a call of cuDNN */
    uint32_t *parts;           /* by operation: of a product's sums, 1: not cut */
    uint8_t *waits;            /* by operation: a kernel's gradient that is made when backward has ended */
    uint32_t *reader;          /* by tensor: the last of them */
    uint8_t *heavy_reader;     /* by tensor: one of them is a library call */
    uint32_t *convolved;       /* by tensor: of its readers those that convolve it */
    uint8_t *summed;           /* by tensor: one of them sums it in one kernel */
    uint32_t *last;            /* by storage: the last operation that needs its bytes */
    uint32_t *dying;           /* by operation: a storage that nobody needs after it, and 1; 0: none */
    uint32_t *dying_too;       /* by storage: the next one that dies with it, and 1 */
    uint32_t *mark;            /* by tensor: the operation that last walked over it */
    uint32_t *stack;
    int64_t *change; /* by operation: bytes that appear before it */
} mf_xla_step;

/* Library calls, and what XLA does not fuse into its readers. */
bool mf_xla_heavy(const mf_op *op);
bool mf_xla_reduces(const mf_op *op);
uint64_t mf_xla_bytes(const mf_graph *g, uint32_t tensor);
/* Max pooling is a window over a formula, like a sum. Only where ReLU alone is pooled the zeros that ReLU compares with
 * are those that backward scatters into: they are stored from the beginning, twice, as backward writes to one of them.
 * Here the pooled tensor and what mf_xla_beside adds stand for the two. */
bool mf_xla_pools_relu(const mf_xla_step *s, const mf_op *op);
/* ReLU that products read is computed by those who read it; cuBLAS needs it stored, in 16 bits only while it runs (in
 * float32 it is made at once, and stays). */
bool mf_xla_relu_within(const mf_xla_step *s, const mf_op *product, uint32_t tensor);
/* cuDNN pads both sides alike. Where a side has more ("same" with a stride) the input is padded first, and the padded
 * one stays for backward. */
bool mf_xla_lopsided(const mf_window *window);
bool mf_xla_pads_first(const mf_op *op);
/* A product with a short side is a kernel of XLA's own, which computes what it reads; the others are cuBLAS's, with a
 * workspace, which read what is stored. */
bool mf_xla_calls_blas(const mf_graph *g, const mf_op *op);

/* The length of a product's sums; into how many parts XLA cuts them; and the zeros that it appends to get parts of equal
 * length. */
uint64_t mf_xla_sum_length(const mf_graph *g, const mf_op *op);
uint32_t mf_xla_parts(const mf_graph *g, const mf_op *op);
uint64_t mf_xla_padding(const mf_graph *g, const mf_op *op, uint32_t parts);
uint64_t mf_xla_parts_bytes(const mf_xla_step *s, uint32_t at);
/* What a product takes beside results and operands while it runs: padded operands, less those that may go for them; and the
 * parts, where they do not stand for the result. */
uint64_t mf_xla_split_bytes(const mf_xla_step *s, uint32_t at, uint64_t blas_bytes);
/* The parts stand for the result: nobody but XLA's own kernels reads it, who add them up, an update or forward's pointwise
 * work. */
bool mf_xla_keeps_parts(const mf_xla_step *s, uint32_t at);

/* Keras on JAX calls cuDNN's LSTM where it can: xla_rnn.c. */
void mf_xla_find_calls(mf_xla_step *s);
/* The k-th result of `op` is inside of such a call. */
bool mf_xla_inside_call(const mf_xla_step *s, const mf_op *op, uint32_t k);
void mf_xla_hold_call(mf_xla_step *s, uint32_t at, mf_xla_memory *memory);

/* Fills `stored` and `again`. */
void mf_xla_decide(mf_xla_step *s, const mf_xla_card *card);
/* Bytes that are there from one operation to another, both included. */
void mf_xla_hold(mf_xla_step *s, uint64_t bytes, uint32_t from, uint32_t until);
/* What operation `at` takes or keeps beside its results. `last` must be known. Returned is what it takes when all else
 * is gone, as XLA leaves it to the end. */
uint64_t mf_xla_beside(mf_xla_step *s, uint32_t at, const mf_xla_card *card, mf_xla_memory *memory);

#endif
