/*
 * build.c: appending operations. Arrays of operations, tensors, storages, variables and layers grow in host memory; the
 * operands' id lists and names live in the graph's arena. finish.c removes what is dead and hands the graph over.
 *
 * Tensors carry short static names ("y", "dx"); which layer they belong to is in their storage, so that building does
 * not spend its time on formatting names.
 */
#include "graph/build.h"

#include "base/error.h"
#include "graph/kinds/kinds.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint32_t mf_build_fail(mf_build *b, memfit_status status, const char *format, ...)
{
    if (!mf_build_ok(b))
        return MF_NONE;
    va_list args;
    va_start(args, format);
    b->status = mf_vfail(b->err, status, format, args);
    va_end(args);
    return MF_NONE;
}

static uint32_t no_memory(mf_build *b)
{
    return mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the step graph");
}

memfit_status mf_build_begin(mf_build *b, const memfit_host *host, memfit_error *err)
{
    *b = (mf_build){.err = err, .kind = MEMFIT_KIND_ACTIVATIONS};
    b->graph = mf_host_zalloc(host, sizeof *b->graph);
    if (!b->graph) {
        no_memory(b);
        return b->status;
    }
    mf_arena_init(&b->graph->arena, host);
    b->graph->loss_variable = MF_NONE;
    mf_build_layer(b, "(step)", "");
    return b->status;
}

uint32_t mf_build_layer(mf_build *b, const char *name, const char *class_name)
{
    mf_graph *g = b->graph;
    if (!mf_build_ok(b))
        return 0;
    if (!mf_grow(g->arena.host, &g->layers, &g->layer_capacity, g->layer_count, sizeof *g->layers)) {
        no_memory(b);
        return 0;
    }
    g->layers[g->layer_count] = (mf_graph_layer){.name = name, .class_name = class_name};
    return g->layer_count++;
}

const mf_tensor *mf_g_tensor(const mf_build *b, uint32_t tensor)
{
    return b->graph && tensor < b->graph->tensor_count ? &b->graph->tensors[tensor] : NULL;
}

mf_shape mf_g_shape(const mf_build *b, uint32_t tensor)
{
    const mf_tensor *t = mf_g_tensor(b, tensor);
    return t ? t->shape : (mf_shape){0};
}

mf_dtype mf_g_dtype(const mf_build *b, uint32_t tensor)
{
    const mf_tensor *t = mf_g_tensor(b, tensor);
    return t ? t->dtype : MF_F32;
}

/* ---- arrays ---- */

static uint32_t add_storage(mf_build *b, uint64_t bytes, memfit_kind kind, uint32_t layer, uint32_t variable)
{
    mf_graph *g = b->graph;
    if (!mf_grow(g->arena.host, &g->storages, &g->storage_capacity, g->storage_count, sizeof *g->storages))
        return no_memory(b);
    g->storages[g->storage_count] = (mf_storage){.bytes = bytes, .kind = kind, .layer = layer, .variable = variable};
    return g->storage_count++;
}

static uint32_t add_tensor(mf_build *b, const char *name, const mf_typed *type, uint32_t storage, uint32_t variable)
{
    mf_graph *g = b->graph;
    if (!mf_grow(g->arena.host, &g->tensors, &g->tensor_capacity, g->tensor_count, sizeof *g->tensors))
        return no_memory(b);
    g->tensors[g->tensor_count] = (mf_tensor){.name = name,
                                              .dtype = type->dtype,
                                              .shape = type->shape,
                                              .storage = storage,
                                              .producer = MF_NONE,
                                              .variable = variable};
    return g->tensor_count++;
}

/* Far above any memory, and low enough that products of a few sizes do not overflow. */
static const uint64_t MOST_ELEMENTS = (uint64_t)1 << 42;

static bool type_bytes(mf_build *b, const mf_typed *type, uint64_t *bytes)
{
    uint64_t count = mf_shape_count(&type->shape);
    if (count > MOST_ELEMENTS) {
        mf_build_fail(b, b->misfit ? b->misfit : MEMFIT_INVALID, "layer '%s': a tensor has too many elements",
                      b->graph->layers[b->layer].name);
        return false;
    }
    *bytes = count * mf_dtype_bytes(type->dtype);
    return true;
}

uint32_t mf_g_variable(mf_build *b, const mf_variable *variable)
{
    mf_graph *g = b->graph;
    if (!mf_build_ok(b))
        return MF_NONE;
    if (!mf_grow(g->arena.host, &g->variables, &g->variable_capacity, g->variable_count, sizeof *g->variables))
        return no_memory(b);
    mf_variable *v = &g->variables[g->variable_count];
    *v = *variable;
    v->tensor = MF_NONE;
    v->layer = b->layer;
    return g->variable_count++;
}

uint32_t mf_g_use(mf_build *b, uint32_t variable)
{
    if (!mf_build_ok(b) || variable >= b->graph->variable_count)
        return MF_NONE;
    mf_variable *v = &b->graph->variables[variable];
    if (v->tensor != MF_NONE)
        return v->tensor;
    mf_typed type = {.dtype = v->dtype, .shape = v->shape};
    uint64_t bytes;
    if (!type_bytes(b, &type, &bytes))
        return MF_NONE;
    uint32_t storage = add_storage(b, bytes, v->kind, v->layer, variable);
    if (storage == MF_NONE)
        return MF_NONE;
    uint32_t tensor = add_tensor(b, v->name, &type, storage, variable);
    b->graph->variables[variable].tensor = tensor;
    return tensor;
}

/* ---- one operation ---- */

static const char *output_name(mf_op_kind kind, uint32_t i)
{
    static const char *const grad[] = {"dx", "dw", "db", "d3", "d4"};
    switch (kind) {
    case MF_OP_CONV_GRAD_WEIGHTS:
        return i ? "db" : "dw";
    case MF_OP_POOL_MAX:
        return i ? "index" : "y";
    case MF_OP_BATCH_NORM:
        return i == 0 ? "y" : i == 1 ? "mean" : "variance";
    case MF_OP_LAYER_NORM:
        return i == 0 ? "y" : i == 1 ? "mean" : "rstd";
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_BATCH_NORM_INFER_GRAD:
    case MF_OP_LAYER_NORM_GRAD:
        return i == 0 ? "dx" : i == 1 ? "dgamma" : "dbeta";
    case MF_OP_GATHER_GRAD:
        return "dtable";
    case MF_OP_MASK:
        return "bits";
    case MF_OP_MASK_GRAD:
    case MF_OP_UNARY_GRAD:
    case MF_OP_BINARY_GRAD:
    case MF_OP_REDUCE_GRAD:
    case MF_OP_SOFTMAX_GRAD:
    case MF_OP_PRELU_GRAD:
    case MF_OP_RESIZE_GRAD:
    case MF_OP_POOL_MAX_GRAD:
    case MF_OP_POOL_AVG_GRAD:
    case MF_OP_LOSS_GRAD:
    case MF_OP_LSTM_GRAD:
    case MF_OP_GRU_GRAD:
    case MF_OP_SIMPLE_RNN_GRAD:
        return grad[i < 5 ? i : 4];
    case MF_OP_ATTENTION:
        return i ? "lse" : "y";
    case MF_OP_ATTENTION_GRAD:
        return i == 0 ? "dq" : i == 1 ? "dk" : "dv";
    case MF_OP_LSTM:
    case MF_OP_GRU:
    case MF_OP_SIMPLE_RNN:
        return i ? "state" : "h";
    default:
        return "y";
    }
}

/* Makes room and fills everything but the outputs. NULL after a failure. */
static mf_op *new_op(mf_build *b, mf_op_kind kind, const mf_attr *attr, uint32_t in_count, const uint32_t *in,
                     uint32_t out_count)
{
    mf_graph *g = b->graph;
    const mf_kind_row *row = mf_kind(kind);
    if (!mf_build_ok(b))
        return NULL;
    if (!row || in_count < row->min_in || in_count > row->max_in || out_count < row->min_out ||
        out_count > row->max_out) {
        mf_build_fail(b, MEMFIT_INTERNAL, "%s: %u operands, %u results", mf_kind_name(kind), in_count, out_count);
        return NULL;
    }
    if (g->op_count >= MF_MOST_OPS) {
        mf_build_fail(b, MEMFIT_UNSUPPORTED,
                      "the step has more than %d operations\nModels that are called several times "
                      "inside models that are called several times multiply",
                      MF_MOST_OPS);
        return NULL;
    }
    uint32_t *ids = MF_NEW_ARRAY(&g->arena, uint32_t, in_count + out_count);
    if (!ids || !mf_grow(g->arena.host, &g->ops, &g->op_capacity, g->op_count, sizeof *g->ops)) {
        no_memory(b);
        return NULL;
    }
    mf_op *op = &g->ops[g->op_count];
    *op = (mf_op){.kind = kind,
                  .phase = b->phase,
                  .when = b->when,
                  .chunked = b->chunked,
                  .layer = b->layer,
                  .in = ids,
                  .out = ids + in_count,
                  .in_count = in_count,
                  .out_count = out_count};
    if (attr)
        op->attr = *attr;
    for (uint32_t i = 0; i < in_count; i++) {
        ids[i] = in[i];
        if (in[i] != MF_NONE && in[i] >= g->tensor_count) {
            mf_build_fail(b, MEMFIT_INTERNAL, "%s: operand %u does not exist", mf_kind_name(kind), i);
            return NULL;
        }
    }
    for (uint32_t i = 0; i < out_count; i++)
        op->out[i] = MF_NONE;
    return op;
}

enum { MOST_OUTPUTS = 8 };

static bool make_outputs(mf_build *b, mf_op *op, mf_typed *types)
{
    mf_graph *g = b->graph;
    for (uint32_t i = 0; i < op->out_count; i++) {
        if (types[i].absent)
            continue;
        uint64_t bytes;
        if (!type_bytes(b, &types[i], &bytes))
            return false;
        uint32_t storage =
            op->kind == MF_OP_VIEW ? g->tensors[op->in[0]].storage : add_storage(b, bytes, b->kind, b->layer, MF_NONE);
        if (storage == MF_NONE)
            return false;
        op->out[i] = add_tensor(b, output_name(op->kind, i), &types[i], storage, MF_NONE);
        if (op->out[i] == MF_NONE)
            return false;
        g->tensors[op->out[i]].producer = g->op_count;
        if (op->kind == MF_OP_VIEW) {
            g->tensors[op->out[i]].variable = g->tensors[op->in[0]].variable;
            g->tensors[op->out[i]].offset = g->tensors[op->in[0]].offset;
            if (op->attr.view.rows) {
                mf_shape row = types[i].shape;
                row.dim[0] = op->attr.view.first;
                g->tensors[op->out[i]].offset += mf_shape_count(&row) * mf_dtype_bytes(types[i].dtype);
            }
        }
    }
    return true;
}

static void obey_rule(mf_build *b, mf_typing *typing)
{
    b->status = mf_kind_rules_of(typing->op->kind)->shape(typing);
    if (b->status != MEMFIT_INVALID || b->misfit == MEMFIT_OK)
        return;
    b->status = b->misfit;
    if (b->err)
        b->err->code = b->misfit;
}

uint32_t mf_g_op(mf_build *b, mf_op_kind kind, const mf_attr *attr, uint32_t in_count, const uint32_t *in,
                 uint32_t out_count, const mf_typed *types, uint32_t *out)
{
    mf_typed typed[MOST_OUTPUTS];
    for (uint32_t i = 0; out && i < out_count; i++)
        out[i] = MF_NONE;
    mf_op *op = out_count <= MOST_OUTPUTS ? new_op(b, kind, attr, in_count, in, out_count) : NULL;
    if (!op)
        return MF_NONE;
    for (uint32_t i = 0; i < out_count; i++)
        typed[i] = types ? types[i] : (mf_typed){.shape = {.rank = MF_NONE}};
    mf_typing typing = {.graph = b->graph, .op = op, .out = typed, .err = b->err};
    obey_rule(b, &typing);
    if (!mf_build_ok(b) || !make_outputs(b, op, typed))
        return MF_NONE;
    b->graph->op_count++;
    for (uint32_t i = 0; out && i < out_count; i++)
        out[i] = op->out[i];
    return op->out[0];
}

void mf_g_op_in_place(mf_build *b, mf_op_kind kind, const mf_attr *attr, uint32_t in_count, const uint32_t *in,
                      uint32_t out_count, const uint32_t *out)
{
    mf_op *op = new_op(b, kind, attr, in_count, in, out_count);
    if (!op)
        return;
    for (uint32_t i = 0; i < out_count; i++)
        op->out[i] = out[i];
    mf_typing typing = {.graph = b->graph, .op = op, .err = b->err};
    if (mf_kind(kind)->must_alias)
        obey_rule(b, &typing);
    if (!mf_build_ok(b))
        return;
    for (uint32_t i = 0; i < out_count; i++) /* variables come from outside; others had their producer already */
        if (out[i] != MF_NONE && b->graph->tensors[out[i]].variable == MF_NONE &&
            b->graph->tensors[out[i]].producer == MF_NONE)
            b->graph->tensors[out[i]].producer = b->graph->op_count;
    b->graph->op_count++;
}
