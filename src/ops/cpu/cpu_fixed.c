/*
 * cpu_fixed.c: what a process takes beside its arena, estimated before there is a process to measure: its threads, the
 * records of plans and steps, and the code that oneDNN compiles for distinct shapes.
 *
 * The figures are fitted from above to what training measured: 17 models (frozen and trainable convolutional nets, a
 * transformer, recurrent, 1-D and 3-D convolutions, 200 dense layers), with and without partial batches and validation.
 */
#include "ops/cpu/cpu_fixed.h"

#include "base/memory.h"
#include "base/error.h"
#include "ops/cpu/cpu_product.h"

static uint64_t mix(uint64_t hash, int64_t value)
{
    return (hash ^ (uint64_t)value) * 0xbf58476d1ce4e5b9ull + (hash >> 29);
}

static uint64_t mix_window(uint64_t hash, const mf_window *w)
{
    hash = mix(hash, w->groups);
    for (uint32_t d = 0; d < w->dims; d++)
        hash = mix(mix(mix(hash, w->stride[d]), w->dilation[d]), w->before[d]);
    return hash;
}

/* Has a primitive of this kind, these shapes and options been counted? Equal ones share their code. */
static bool seen_before(mf_cpu_seen *seen, const mf_graph *g, const mf_op *op)
{
    const uint32_t operands[] = {op->in[0], op->in[1], op->out[0]};
    const bool is_conv =
        op->kind == MF_OP_CONV || op->kind == MF_OP_CONV_GRAD_DATA || op->kind == MF_OP_CONV_GRAD_WEIGHTS;
    uint64_t hash = (uint64_t)op->kind * 0x9e3779b97f4a7c15ull;
    hash = is_conv ? mix_window(hash, &op->attr.window) : hash;
    hash = op->kind == MF_OP_MATMUL ? mix(hash, op->attr.matmul.trans_a + 2 * op->attr.matmul.trans_b) : hash;
    for (uint32_t k = 0; k < 3; k++) {
        const mf_shape *shape = operands[k] == MF_NONE ? NULL : &g->tensors[operands[k]].shape;
        for (uint32_t i = 0; shape && i < shape->rank; i++)
            hash = mix(hash, shape->dim[i]);
    }
    uint32_t tag = (uint32_t)(hash >> 32) | 1;
    for (uint32_t i = 0; i < MF_CPU_SEEN_SLOTS; i++) {
        uint32_t *slot = &seen->tag[(tag + i) % MF_CPU_SEEN_SLOTS];
        if (*slot == tag)
            return true;
        if (!*slot) {
            *slot = tag;
            return false;
        }
    }
    return false;
}

/* One tap, or a filter for each channel: the library's code for these is short. */
static bool is_plain_window(const mf_graph *g, const mf_op *op)
{
    const mf_window *w = &op->attr.window;
    const mf_shape *kernel = &g->tensors[op->in[1]].shape;
    bool one = true;
    for (uint32_t d = 0; d < w->dims; d++)
        one &= kernel->dim[d] == 1;
    return one || w->groups == g->tensors[op->in[0]].shape.dim[w->dims + 1];
}

/* The convolution that an operation is, if the library makes it. */
static bool library_conv(const mf_graph *g, const mf_op *op, mf_dnn_conv *c)
{
    const bool forward = op->kind == MF_OP_CONV, data = op->kind == MF_OP_CONV_GRAD_DATA;
    if (!forward && !data && op->kind != MF_OP_CONV_GRAD_WEIGHTS)
        return false;
    const uint32_t x = data ? op->out[0] : op->in[0], y = forward ? op->out[0] : data ? op->in[0] : op->in[1];
    const mf_dnn_direction way = forward ? MF_DNN_FORWARD : data ? MF_DNN_GRAD_DATA : MF_DNN_GRAD_WEIGHTS;
    return mf_dnn_compiles() && x != MF_NONE && y != MF_NONE &&
           cpu_conv_of(&op->attr.window, &g->tensors[x].shape, &g->tensors[y].shape, way, c) && !cpu_conv_is_own(c);
}

/* What the library keeps for a shape; 0 where it is not asked. */
static uint64_t code_bytes(const mf_graph *g, const mf_op *op)
{
    const mf_dnn_takes *taken = mf_dnn_taken();
    mf_dnn_conv c;
    const bool conv = library_conv(g, op, &c);
    const uint64_t wide = conv ? mf_dnn_conv_wide(&c) : 0;
    switch (op->kind) {
    case MF_OP_MATMUL:
    case MF_OP_LSTM:
    case MF_OP_GRU:
    case MF_OP_SIMPLE_RNN:
        return taken->product;
    case MF_OP_LSTM_GRAD:
    case MF_OP_GRU_GRAD:
    case MF_OP_SIMPLE_RNN_GRAD:
        return 2 * taken->product; /* a step's, and the weights' of all steps */
    case MF_OP_CONV:
        return !conv ? 0 : wide + (is_plain_window(g, op) ? taken->forward * 2 / 3 : taken->forward);
    case MF_OP_CONV_GRAD_DATA:
        return !conv ? 0 : wide + taken->grad_data;
    case MF_OP_CONV_GRAD_WEIGHTS:
        return !conv ? 0 : wide + taken->grad_weights;
    default:
        return 0;
    }
}

uint64_t mf_cpu_op_bytes(const mf_graph *graph, const mf_op *op, mf_cpu_seen *seen)
{
    enum { OPERATION_BYTES = 2600, PRIMITIVE_BYTES = 6000 };
    const uint64_t code = code_bytes(graph, op);
    if (!code)
        return OPERATION_BYTES;
    return OPERATION_BYTES + PRIMITIVE_BYTES + (seen && seen_before(seen, graph, op) ? 0 : code);
}

uint64_t mf_cpu_making_bytes(const mf_graph *graph, const mf_op *op)
{
    enum { RECORD_BYTES = 32 << 10 };
    const mf_dnn_takes *taken = mf_dnn_taken();
    mf_dnn_conv c;
    uint64_t bytes = library_conv(graph, op, &c) ? mf_dnn_conv_making(&c) : 0;
    switch (op->kind) {
    case MF_OP_LSTM_GRAD:
    case MF_OP_GRU_GRAD:
    case MF_OP_SIMPLE_RNN_GRAD:
        bytes = taken->product + taken->making_product;
        break;
    case MF_OP_MATMUL:
    case MF_OP_LSTM:
    case MF_OP_GRU:
    case MF_OP_SIMPLE_RNN:
        bytes = taken->making_product;
        break;
    default:
        break;
    }
    return bytes > RECORD_BYTES ? bytes : RECORD_BYTES;
}

uint64_t mf_cpu_graph_bytes(const mf_graph *graph, mf_cpu_seen *seen)
{
    enum { GRAPH_BYTES = 208 << 10, VARIABLE_BYTES = 400 };
    uint64_t bytes = (mf_dnn_compiles() ? GRAPH_BYTES : 0) + (uint64_t)graph->variable_count * VARIABLE_BYTES;
    for (uint32_t i = 0; i < graph->op_count; i++)
        bytes += mf_cpu_op_bytes(graph, &graph->ops[i], seen);
    return bytes;
}

uint64_t mf_cpu_writer_bytes(uint32_t variables)
{
    enum { WRITER_BYTES = 224 << 10, SAVED_BYTES = 1500 };
    return WRITER_BYTES + (uint64_t)variables * SAVED_BYTES;
}

/* What a graph of this mode takes. */
static memfit_status count_graph(const mf_graph_source *source, const memfit_host *host, mf_mode mode, int64_t batch,
                                 mf_cpu_seen *seen, uint64_t *bytes, uint32_t *variables, uint64_t *making,
                                 memfit_error *err)
{
    mf_graph *g;
    memfit_status status = source->make(source->ctx, host, mode, batch, false, &g, err);
    if (status != MEMFIT_OK)
        return status;
    *bytes = mf_cpu_graph_bytes(g, seen);
    *variables = g->variable_count;
    for (uint32_t i = 0; i < g->op_count; i++)
        if (mf_cpu_making_bytes(g, &g->ops[i]) > *making)
            *making = mf_cpu_making_bytes(g, &g->ops[i]);
    mf_graph_destroy(g);
    return MEMFIT_OK;
}

memfit_status mf_cpu_fixed_bytes(const mf_graph_source *source, const memfit_host *host, mf_mode mode, int64_t batch,
                                 unsigned threads, mf_cpu_fixed *fixed, memfit_error *err)
{
    enum { PROCESS_BYTES = 584 << 10, THREAD_BYTES = 224 << 10 };
    mf_cpu_seen *seen = mf_host_zalloc(host, 2 * sizeof *seen); /* one of each kind alone; of both together */
    if (!seen)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan");
    uint64_t main = 0, both = 0, alone = 0, making = 0;
    uint32_t variables = 0, ignored;
    memfit_status status = count_graph(source, host, mode, batch, &seen[1], &main, &variables, &making, err);
    if (status == MEMFIT_OK && mode == MF_MODE_TRAIN)
        status = count_graph(source, host, MF_MODE_EVALUATE, batch, &seen[1], &both, &ignored, &making, err);
    if (status == MEMFIT_OK && mode == MF_MODE_TRAIN)
        status = count_graph(source, host, MF_MODE_EVALUATE, batch, &seen[0], &alone, &ignored, &making, err);
    mf_host_free(host, seen, 2 * sizeof *seen);
    if (status != MEMFIT_OK)
        return status;
    *fixed = (mf_cpu_fixed){.base_bytes = PROCESS_BYTES + mf_dnn_taken()->start + threads * THREAD_BYTES,
                            .writer_bytes = mode == MF_MODE_TRAIN ? mf_cpu_writer_bytes(variables) : 0,
                            .graph_bytes = main,
                            .making_bytes = making,
                            .validation_bytes = alone,
                            .shared_validation_bytes = both};
    return MEMFIT_OK;
}
