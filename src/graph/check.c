/*
 * check.c: every invariant of a graph, walked: ids in range, shapes obey the kind's rule, producers before readers,
 * each storage large enough, no reader of a parameter after its update but its average and its constraint, variables
 * and feeds consistent.
 */
#include "base/error.h"
#include "graph/kinds/kinds.h"

static memfit_status check_tensors(const mf_graph *g, memfit_error *err)
{
    for (uint32_t i = 0; i < g->tensor_count; i++) {
        const mf_tensor *t = &g->tensors[i];
        if (t->storage >= g->storage_count || (unsigned)t->dtype >= MF_DTYPE_COUNT || t->shape.rank > MF_MOST_DIMS)
            return mf_fail(err, MEMFIT_INTERNAL, "tensor %u: storage, type or rank out of range", i);
        uint64_t bytes = mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
        if (t->offset + bytes > g->storages[t->storage].bytes)
            return mf_fail(err, MEMFIT_INTERNAL, "tensor %u ends behind its storage", i);
        if (t->producer != MF_NONE && t->producer >= g->op_count)
            return mf_fail(err, MEMFIT_INTERNAL, "tensor %u: no operation %u", i, t->producer);
        if (t->variable != g->storages[t->storage].variable)
            return mf_fail(err, MEMFIT_INTERNAL, "tensor %u and its storage disagree about their variable", i);
    }
    for (uint32_t i = 0; i < g->storage_count; i++)
        if (g->storages[i].layer >= g->layer_count ||
            (g->storages[i].variable != MF_NONE && g->storages[i].variable >= g->variable_count))
            return mf_fail(err, MEMFIT_INTERNAL, "storage %u: layer or variable out of range", i);
    return MEMFIT_OK;
}

static memfit_status check_variables(const mf_graph *g, memfit_error *err)
{
    for (uint32_t i = 0; i < g->variable_count; i++) {
        const mf_variable *v = &g->variables[i];
        if (v->tensor == MF_NONE)
            continue;
        if (v->tensor >= g->tensor_count || g->tensors[v->tensor].variable != i ||
            !mf_shape_equal(&g->tensors[v->tensor].shape, &v->shape) || g->tensors[v->tensor].dtype != v->dtype)
            return mf_fail(err, MEMFIT_INTERNAL, "variable %u (%s): its tensor is another", i, v->name);
        if (v->parameter != MF_NONE && v->parameter >= g->variable_count)
            return mf_fail(err, MEMFIT_INTERNAL, "variable %u (%s): no parameter %u", i, v->name, v->parameter);
    }
    for (uint32_t i = 0; i < g->feed_count; i++)
        if (g->feeds[i].tensor >= g->tensor_count)
            return mf_fail(err, MEMFIT_INTERNAL, "feed %u has no tensor", i);
    return MEMFIT_OK;
}

/* Ids, counts and the shape rule of one operation. */
static memfit_status check_op(const mf_graph *g, uint32_t i, memfit_error *err)
{
    const mf_op *op = &g->ops[i];
    const mf_kind_rules *rules = mf_kind_rules_of(op->kind);
    if (!rules || op->layer >= g->layer_count)
        return mf_fail(err, MEMFIT_INTERNAL, "operation %u: kind or layer out of range", i);
    const mf_kind_row *row = &rules->row;
    if (op->in_count < row->min_in || op->in_count > row->max_in || op->out_count < row->min_out ||
        op->out_count > row->max_out)
        return mf_fail(err, MEMFIT_INTERNAL, "operation %u (%s): %u operands, %u results", i, mf_kind_name(op->kind),
                       op->in_count, op->out_count);
    for (uint32_t k = 0; k < op->in_count + op->out_count; k++) {
        uint32_t t = k < op->in_count ? op->in[k] : op->out[k - op->in_count];
        if (t != MF_NONE && t >= g->tensor_count)
            return mf_fail(err, MEMFIT_INTERNAL, "operation %u (%s): no tensor %u", i, mf_kind_name(op->kind), t);
    }
    if (op->kind == MF_OP_VIEW && g->tensors[op->in[0]].storage != g->tensors[op->out[0]].storage)
        return mf_fail(err, MEMFIT_INTERNAL, "operation %u (%s) looks at other bytes than its operand's", i,
                       mf_kind_name(op->kind));
    if (op->accumulate && !row->accumulates)
        return mf_fail(err, MEMFIT_INTERNAL, "operation %u (%s) cannot accumulate", i, mf_kind_name(op->kind));
    mf_typed out[8];
    for (uint32_t k = 0; k < op->out_count && k < 8; k++)
        out[k] = op->out[k] == MF_NONE
                     ? (mf_typed){.absent = true, .shape = {.rank = MF_NONE}}
                     : (mf_typed){.dtype = g->tensors[op->out[k]].dtype, .shape = g->tensors[op->out[k]].shape};
    mf_typing typing = {.graph = g, .op = op, .out = out, .err = err};
    return rules->shape(&typing);
}

/* Part of the constraint that follows a parameter's update? */
static bool constrains(const mf_graph *g, const mf_op *op, uint32_t variable)
{
    const mf_variable *v = &g->variables[variable];
    return op->phase == MF_UPDATE_PHASE && op->layer == v->layer && v->constraint.kind != MF_CONSTRAINT_NONE;
}

/* Who reads must find it written; who reads a parameter must come before its update. */
static memfit_status check_order(const mf_graph *g, uint8_t *written, uint8_t *updated, memfit_error *err)
{
    for (uint32_t i = 0; i < g->storage_count; i++)
        written[i] = g->storages[i].variable != MF_NONE;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        memfit_status s = check_op(g, i, err);
        if (s)
            return s;
        for (uint32_t k = 0; k < op->in_count; k++) {
            if (op->in[k] == MF_NONE)
                continue;
            uint32_t storage = g->tensors[op->in[k]].storage;
            if (!written[storage])
                return mf_fail(err, MEMFIT_INTERNAL, "operation %u (%s) reads tensor %u before it is written", i,
                               mf_kind_name(op->kind), op->in[k]);
            if (updated[storage] && op->kind != MF_OP_EMA && !constrains(g, op, g->storages[storage].variable))
                return mf_fail(err, MEMFIT_INTERNAL, "operation %u (%s of '%s') reads '%s' after its update", i,
                               mf_kind_name(op->kind), g->layers[op->layer].name,
                               g->variables[g->storages[storage].variable].name);
        }
        for (uint32_t k = 0; k < op->out_count; k++) {
            const mf_tensor *t = op->out[k] == MF_NONE ? NULL : &g->tensors[op->out[k]];
            if (t && op->kind != MF_OP_VIEW && !written[t->storage] &&
                ((op->accumulate && op->out_count == 1) ||
                 mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype) < g->storages[t->storage].bytes))
                return mf_fail(err, MEMFIT_INTERNAL, "operation %u (%s) adds to or writes a part of nothing", i,
                               mf_kind_name(op->kind));
            if (t)
                written[t->storage] = 1;
        }
        if (op->kind == MF_OP_UPDATE)
            updated[g->tensors[op->out[0]].storage] = 1;
    }
    return MEMFIT_OK;
}

memfit_status mf_graph_check(const mf_graph *graph, memfit_error *err)
{
    memfit_status s = check_tensors(graph, err);
    if (!s)
        s = check_variables(graph, err);
    if (s)
        return s;
    size_t bytes = (size_t)graph->storage_count * 2 + 1;
    uint8_t *flags = mf_host_zalloc(graph->arena.host, bytes);
    if (!flags)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to check the graph");
    s = check_order(graph, flags, flags + graph->storage_count, err);
    mf_host_free(graph->arena.host, flags, bytes);
    return s;
}
