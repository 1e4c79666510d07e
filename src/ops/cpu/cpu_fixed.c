/*
 * cpu_fixed.c: what a process takes beside its arena, estimated before there is a process to measure: its threads, a
 * step's records and the code that oneDNN compiles for distinct shapes.
 */
#include "ops/cpu/cpu_fixed.h"

#include "ops/cpu/dnn/onednn.h"

/* Has a primitive of this kind and these shapes been counted? Equal ones share their code. */
static bool seen_before(uint32_t *seen, uint32_t slots, const mf_graph *g, const mf_op *op)
{
    const uint32_t operands[] = {op->in[0], op->in[1], op->out[0]};
    uint64_t hash = (uint64_t)op->kind * 0x9e3779b97f4a7c15ull + (uint64_t)op->attr.window.stride[0];
    for (uint32_t k = 0; k < 3; k++) {
        const mf_shape *shape = operands[k] == MF_NONE ? NULL : &g->tensors[operands[k]].shape;
        for (uint32_t i = 0; shape && i < shape->rank; i++)
            hash = (hash ^ (uint64_t)shape->dim[i]) * 0xbf58476d1ce4e5b9ull + (hash >> 29);
    }
    uint32_t tag = (uint32_t)(hash >> 32) | 1;
    for (uint32_t i = 0; i < slots; i++) {
        uint32_t *slot = &seen[(tag + i) % slots];
        if (*slot == tag)
            return true;
        if (!*slot) {
            *slot = tag;
            return false;
        }
    }
    return false;
}

uint64_t mf_cpu_graph_bytes(const mf_graph *graph)
{
    enum { SLOTS = 2048, STEP_BYTES = 2900 };
    static const struct {
        mf_op_kind kind;
        uint64_t bytes;
    } compiled[] = {{MF_OP_MATMUL, 60 << 10},         {MF_OP_CONV, 96 << 10},
                    {MF_OP_CONV_GRAD_DATA, 40 << 10}, {MF_OP_CONV_GRAD_WEIGHTS, 124 << 10},
                    {MF_OP_LSTM, 72 << 10},           {MF_OP_GRU, 72 << 10}};
    uint32_t seen[SLOTS] = {0};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < graph->op_count; i++) {
        const mf_op *op = &graph->ops[i];
        bytes += STEP_BYTES;
        for (size_t k = 0; mf_dnn_compiles() && k < sizeof compiled / sizeof *compiled; k++)
            if (op->kind == compiled[k].kind && !seen_before(seen, SLOTS, graph, op))
                bytes += compiled[k].bytes;
    }
    return bytes;
}

memfit_status mf_cpu_fixed_bytes(const mf_graph_source *source, const memfit_host *host, mf_mode mode, int64_t batch,
                                 unsigned threads, uint64_t graph_bytes[2], uint64_t *fixed, memfit_error *err)
{
    enum { PROCESS_BYTES = 1344 << 10, THREAD_BYTES = 224 << 10 };
    const mf_mode modes[] = {mode, MF_MODE_EVALUATE};
    for (uint32_t i = 0; i < 2; i++) {
        mf_graph *g;
        memfit_status status = source->make(source->ctx, host, modes[i], batch, false, &g, err);
        if (status != MEMFIT_OK)
            return status;
        graph_bytes[i] = mf_cpu_graph_bytes(g);
        mf_graph_destroy(g);
    }
    *fixed = PROCESS_BYTES + mf_dnn_process_bytes() + threads * THREAD_BYTES + 2 * graph_bytes[0] + graph_bytes[1];
    return MEMFIT_OK;
}
