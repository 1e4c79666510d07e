/*
 * costs.c: the work of an operation, for estimates: floating-point operations and bytes moved. A multiplication and an
 * addition count as two. Transcendental functions count as ten: on the machines that matter these operations are bound
 * by memory, and the figure only has to keep their order.
 */
#include "graph/attention.h"
#include "graph/group.h"
#include "graph/kinds/kinds.h"

static double count_of(const mf_graph *g, uint32_t tensor)
{
    return tensor == MF_NONE ? 0 : (double)mf_shape_count(&g->tensors[tensor].shape);
}

static double bytes_of(const mf_graph *g, uint32_t tensor)
{
    return tensor == MF_NONE ? 0 : count_of(g, tensor) * (double)mf_dtype_bytes(g->tensors[tensor].dtype);
}

static double first_count(const mf_graph *g, const mf_op *op)
{
    for (uint32_t i = 0; i < op->out_count; i++)
        if (op->out[i] != MF_NONE)
            return count_of(g, op->out[i]);
    return 0;
}

static double conv_flops(const mf_graph *g, const mf_op *op)
{
    uint32_t w = op->kind == MF_OP_CONV_GRAD_WEIGHTS ? op->out[0] : op->in[1];
    uint32_t y = op->kind == MF_OP_CONV ? op->out[0] : op->kind == MF_OP_CONV_GRAD_DATA ? op->in[0] : op->in[1];
    if (w == MF_NONE || y == MF_NONE)
        return 0;
    const mf_shape *ws = &g->tensors[w].shape;
    double out = (double)ws->dim[ws->rank - 1];
    return 2 * count_of(g, y) * count_of(g, w) / (out > 0 ? out : 1);
}

static double rnn_flops(const mf_graph *g, const mf_op *op, double factor)
{
    bool grad = op->kind == MF_OP_LSTM_GRAD || op->kind == MF_OP_GRU_GRAD || op->kind == MF_OP_SIMPLE_RNN_GRAD;
    uint32_t z = grad ? op->out[0] : op->in[0];
    uint32_t u = !grad                         ? op->in[1]
                 : op->kind == MF_OP_LSTM_GRAD ? op->in[4]
                 : op->kind == MF_OP_GRU_GRAD  ? op->in[3]
                                               : op->in[2];
    if (z == MF_NONE || u == MF_NONE)
        return 0;
    return factor * 2 * count_of(g, z) * (double)g->tensors[u].shape.dim[0] + 20 * count_of(g, z);
}

/* Products by keys and by values: two forward, five backward. Causal work is half as much. */
static double attention_flops(const mf_graph *g, const mf_op *op)
{
    mf_attention_shape s;
    if (!mf_attention_shape_of(g, op, &s))
        return 0;
    double pairs = (double)(s.batch * s.heads * s.queries) * (double)s.keys * (op->attr.attention.causal ? 0.5 : 1);
    double forward = 2 * pairs * (double)(s.depth + s.values) + 15 * pairs;
    return op->kind == MF_OP_ATTENTION ? forward : 2.5 * forward;
}

static double cells(const mf_window *window)
{
    double n = 1;
    for (uint32_t i = 0; i < window->dims; i++)
        n *= (double)window->kernel[i];
    return n;
}

static double flops_of(const mf_graph *g, const mf_op *op)
{
    double n = first_count(g, op), x = op->in_count ? count_of(g, op->in[0]) : 0;
    switch (op->kind) {
    case MF_OP_MATMUL: {
        const mf_shape *a = &g->tensors[op->in[0]].shape;
        return 2 * n * (double)a->dim[a->rank - (op->attr.matmul.trans_a ? 2 : 1)];
    }
    case MF_OP_CONV:
    case MF_OP_CONV_GRAD_DATA:
    case MF_OP_CONV_GRAD_WEIGHTS:
        return conv_flops(g, op);
    case MF_OP_UNARY:
    case MF_OP_UNARY_GRAD:
        return op->attr.unary.function == MF_UNARY_RELU || op->attr.unary.function == MF_UNARY_RELU6 ? n : 10 * n;
    case MF_OP_SOFTMAX:
    case MF_OP_LOSS:
    case MF_OP_RANDOM:
    case MF_OP_AUGMENT:
        return 15 * (x > n ? x : n);
    case MF_OP_ATTENTION:
    case MF_OP_ATTENTION_GRAD:
        return attention_flops(g, op);
    case MF_OP_POOL_MAX:
    case MF_OP_POOL_AVG:
        return n * cells(&op->attr.window);
    case MF_OP_BATCH_NORM:
    case MF_OP_LAYER_NORM:
        return 8 * n;
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_LAYER_NORM_GRAD:
        return 12 * count_of(g, op->in[0]);
    case MF_OP_LSTM:
    case MF_OP_GRU:
    case MF_OP_SIMPLE_RNN:
        return rnn_flops(g, op, 1);
    case MF_OP_LSTM_GRAD:
    case MF_OP_GRU_GRAD:
    case MF_OP_SIMPLE_RNN_GRAD:
        return rnn_flops(g, op, 2);
    case MF_OP_UPDATE:
        return 12 * n;
    case MF_OP_INPUT:
    case MF_OP_VIEW:
    case MF_OP_ASSUMED:
        return 0;
    default:
        return x > n ? x : n;
    }
}

void mf_op_cost(const mf_graph *graph, const mf_op *op, double *flops, double *bytes)
{
    *flops = 0;
    *bytes = 0;
    if (op->kind == MF_OP_GROUP) { /* the members' work on the group's own operands */
        const mf_graph *inner = &op->attr.group->inner;
        for (uint32_t i = 0; i < inner->op_count; i++)
            *flops += flops_of(inner, &inner->ops[i]);
    } else
        *flops = flops_of(graph, op);
    if (op->kind == MF_OP_INPUT || op->kind == MF_OP_VIEW)
        return;
    for (uint32_t i = 0; i < op->in_count; i++)
        *bytes += bytes_of(graph, op->in[i]);
    for (uint32_t i = 0; i < op->out_count; i++)
        *bytes += bytes_of(graph, op->out[i]);
    if (op->kind == MF_OP_GATHER) /* of the table only the rows asked for */
        *bytes = 2 * bytes_of(graph, op->out[0]) + bytes_of(graph, op->in[1]);
}
