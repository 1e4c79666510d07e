/*
 * eager.h: what PyTorch does with a step, operation by operation: Keras 3 on its torch backend. The forward operations
 * of the plain step graph are followed in their order; each is a short script of what that backend allocates, what
 * autograd saves, and what its backward allocates. Memory is then a matter of who holds what:
 *
 *   a layer's output      the functional model's table holds it until the forward pass ends
 *   inside a layer        a local variable holds it until its last use
 *   saved                 autograd's node holds it until its backward has run
 *   a gradient            the engine holds it until the node that made the tensor has run; a second one is added to it
 *   a parameter's         until zero_grad, which runs after the next forward pass
 *   a layer's inputs      where there are several: until Python's collector runs (eager_garbage.c)
 *
 * Sizes and orders follow Keras 3.15's torch backend and PyTorch 2.11's derivatives; bench/frameworks checks them.
 * Images are NHWC in Keras and NCHW in PyTorch, so a convolution or pooling begins with a copy, or two: `first` tells
 * for each tensor whether its bytes lie channels first.
 */
#ifndef MF_PLAN_EAGER_H
#define MF_PLAN_EAGER_H

#include "graph/graph.h"
#include "plan/frameworks/tape.h"

enum { MF_EAGER_SAVED = 8, MF_EAGER_HELD = 64 };

typedef struct mf_eager_node {
    uint32_t saved[MF_EAGER_SAVED]; /* blocks; MF_NONE */
    uint32_t saved_count;
    uint64_t kept; /* a number for the way back: bytes of a padded input */
} mf_eager_node;

/* What Python's collector has yet to find; see eager_garbage.c. */
typedef struct mf_eager_garbage {
    uint32_t block[MF_EAGER_HELD];
    uint64_t until[MF_EAGER_HELD]; /* so many objects were made */
    uint32_t count;
    uint64_t objects;
    bool late; /* found as late as it can be; else when so many objects were made */
} mf_eager_garbage;

typedef struct mf_eager {
    const mf_graph *graph;
    mf_tape *tape;
    mf_arena scratch;
    uint32_t *value;         /* by tensor: its block while somebody holds it here, or MF_NONE */
    uint32_t *grad;          /* by tensor */
    uint32_t *grad_of;       /* by variable: the parameter's gradient */
    uint32_t *last_use;      /* by tensor: the last forward operation that reads it, its own maker if none does */
    uint8_t *crosses;        /* by tensor: another layer reads it */
    uint8_t *needs;          /* by tensor: a gradient flows to it */
    uint8_t *first;          /* by tensor: channels first in memory */
    uint8_t *inside;         /* by operation: a part of a fused attention, done by its last operation */
    mf_eager_node *nodes;    /* by operation */
    uint32_t op;             /* the one that runs */
    uint32_t prediction;     /* y_pred, which stays to the end of the step */
    uint64_t workspace_most; /* the largest workspace that was asked for, and what stays of them */
    uint64_t blas_bytes;
    bool blas_used[2]; /* forward, backward */
    uint32_t heads[3]; /* query, key and value of the attention that runs: its layer holds them to its end */
    mf_eager_garbage garbage;
    bool probabilities; /* losses take probabilities, as Keras's do unless told: softmax is the model's */
} mf_eager;

/* The whole step, twice (the second begins with the first one's gradients), onto an empty tape. `training` is another empty
 * one: in a small model Python's collector comes seldom, and what it has yet to find gathers over many steps; they are on
 * it. Else it stays empty. `blas_bytes` is what a cuBLAS handle takes when it is first used: one handle works forward,
 * another backward, in autograd's own thread. */
memfit_status mf_eager_run(const memfit_host *host, const mf_graph *graph, uint64_t blas_bytes, mf_tape *tape,
                           mf_tape *training, uint64_t *workspace_bytes, memfit_error *err);

/* ---- for the scripts ---- */

uint64_t mf_eager_bytes(const mf_eager *e, uint32_t tensor);
uint64_t mf_eager_elements(const mf_eager *e, uint32_t tensor);
bool mf_eager_half(const mf_eager *e, uint32_t tensor); /* in 16 bits */
/* One position, or one channel: channels first and last are the same bytes. */
bool mf_eager_layout_free(const mf_eager *e, uint32_t tensor);
/* A new block for an output. */
void mf_eager_set_new(mf_eager *e, uint32_t tensor, bool first);
/* The sum of a result and a bias, where there is one, takes the place of the result. */
void mf_eager_add_bias(mf_eager *e, uint32_t bias, uint32_t y, uint32_t *block);
/* A block of the running operation's layer. */
uint32_t mf_eager_take(mf_eager *e, uint64_t bytes);
/* Bytes that are asked for and given back at once. */
void mf_eager_touch(mf_eager *e, uint64_t bytes);
void mf_eager_workspace(mf_eager *e, uint64_t bytes);
/* A product runs: its handle's workspace stays from the first one on. */
void mf_eager_use_blas(mf_eager *e, bool backward);
/* The node keeps the block: a holder of its own. */
void mf_eager_save(mf_eager *e, uint32_t block);
/* The value of an output; the block's holder becomes the tensor's. */
void mf_eager_set(mf_eager *e, uint32_t tensor, uint32_t block);
/* A gradient arrives at a tensor; the block's holder goes with it. */
void mf_eager_give(mf_eager *e, uint32_t tensor, uint32_t block);
/* A new gradient of the tensor's own size arrives, if one flows there. */
void mf_eager_give_new(mf_eager *e, uint32_t tensor);
/* The gradient of the running operation's output goes on to an input as it is. */
void mf_eager_pass(mf_eager *e, uint32_t from, uint32_t to);

/* A layer begins, a layer was called with these inputs, a step is over: eager_garbage.c. */
void mf_eager_garbage_layer(mf_eager *e);
void mf_eager_garbage_inputs(mf_eager *e, const mf_op *op);
void mf_eager_garbage_step(mf_eager *e);

/* A call of cuDNN's LSTM or GRU, one layer; its buffers in bytes. */
typedef struct mf_recurrent_call {
    bool lstm, both; /* else a GRU; both ways in one call */
    uint64_t steps, batch, input, units;
    mf_dtype dtype;
} mf_recurrent_call;

/* Which of cuDNN's algorithms PyTorch takes; what is asked for before a call of it, forward as backward; what stays for
 * the backward pass. */
bool mf_recurrent_persistent(const mf_recurrent_call *call, bool backward);
uint64_t mf_recurrent_workspace(const mf_recurrent_call *call, bool persistent);
uint64_t mf_recurrent_reserve(const mf_recurrent_call *call);
/* The tensor that this one is a view of: between a layer's input and its product, and that and the recurrent operation. */
uint32_t mf_recurrent_behind_views(const mf_graph *graph, uint32_t tensor);

/* Looks whether operation i is a recurrent layer that cuDNN runs whole. */
void mf_eager_find_recurrent(mf_eager *e, uint32_t i);

/* The scripts, by kind. Images and recurrent layers: false when the kind is none of theirs. */
bool mf_eager_recurrent_forward(mf_eager *e, const mf_op *op);
bool mf_eager_recurrent_backward(mf_eager *e, const mf_op *op);
bool mf_eager_images_forward(mf_eager *e, const mf_op *op);
bool mf_eager_images_backward(mf_eager *e, const mf_op *op);
void mf_eager_forward(mf_eager *e, const mf_op *op);
void mf_eager_backward(mf_eager *e, const mf_op *op);
void mf_eager_loss_forward(mf_eager *e, const mf_op *op);
void mf_eager_loss_backward(mf_eager *e, const mf_op *op);
/* The parameters' update. */
void mf_eager_update(mf_eager *e);

#endif
