/*
 * flow.c: from a step graph to the planner's view of it.
 *
 *   storages --union of what must alias--> cells        operations - views --inputs first--> base order
 *
 * Everything is stored as flat lists ("at" arrays hold where each operation's or cell's part begins), because the
 * search behind it walks them thousands of times. Cells with more than one writer (concatenation into sub-ranges, state
 * that is changed in place) are never recomputed: their maker is MF_NONE.
 */
#include "plan/flow/flow.h"
#include "base/bytes.h"

#include "base/error.h"

#include <string.h>

static uint32_t find_root(uint32_t *root, uint32_t s)
{
    while (root[s] != s) {
        root[s] = root[root[s]];
        s = root[s];
    }
    return s;
}

/* A variable's cell, where one is part of the group, is the root of it. */
static void unite(mf_flow *flow, uint32_t a, uint32_t b)
{
    a = find_root(flow->root, a);
    b = find_root(flow->root, b);
    if (a == b)
        return;
    if (flow->graph->storages[b].variable != MF_NONE) {
        uint32_t t = a;
        a = b;
        b = t;
    }
    flow->root[b] = a;
    if (flow->cells[a].raw < flow->cells[b].raw)
        flow->cells[a].raw = flow->cells[b].raw;
}

static memfit_status make_cells(mf_flow *flow, memfit_error *err)
{
    const mf_graph *g = flow->graph;
    flow->cell_count = g->storage_count;
    flow->root = MF_NEW_ARRAY(&flow->arena, uint32_t, g->storage_count);
    flow->cells = MF_NEW_ARRAY(&flow->arena, mf_cell, g->storage_count);
    if (!flow->root || !flow->cells)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for %u storages", g->storage_count);
    for (uint32_t s = 0; s < g->storage_count; s++) {
        flow->root[s] = s;
        flow->cells[s] = (mf_cell){.raw = g->storages[s].bytes,
                                   .variable = g->storages[s].variable,
                                   .maker = MF_NONE,
                                   .kind = g->storages[s].kind,
                                   .layer = g->storages[s].layer};
    }
    for (uint32_t o = 0; o < g->op_count; o++) {
        const mf_op *op = &g->ops[o];
        const mf_kind_row *row = mf_kind(op->kind);
        if (op->kind == MF_OP_VIEW)
            unite(flow, g->tensors[op->in[0]].storage, g->tensors[op->out[0]].storage);
        else if (row->must_alias && row->inplace_in < op->in_count && row->inplace_out < op->out_count &&
                 op->in[row->inplace_in] != MF_NONE && op->out[row->inplace_out] != MF_NONE)
            unite(flow, g->tensors[op->in[row->inplace_in]].storage, g->tensors[op->out[row->inplace_out]].storage);
    }
    for (uint32_t s = 0; s < g->storage_count; s++) {
        flow->root[s] = find_root(flow->root, s);
        flow->cells[s].bytes = mf_round_up(flow->cells[s].raw, flow->alignment);
    }
    return MEMFIT_OK;
}

static uint32_t cell_of(const mf_flow *flow, uint32_t tensor)
{
    return tensor == MF_NONE ? MF_NONE : flow->root[flow->graph->tensors[tensor].storage];
}

static bool is_in(const uint32_t *list, uint32_t count, uint32_t x)
{
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == x)
            return true;
    return false;
}

/* Puts the operation's operands into the lists: a cell once, and among the reads if it is both. */
static void add_operands(mf_flow *flow, uint32_t o, uint32_t *reads, uint32_t *writes, uint32_t *vars)
{
    const mf_op *op = &flow->graph->ops[o];
    if (op->kind == MF_OP_VIEW)
        return;
    for (uint32_t side = 0; side < 2; side++) {
        const uint32_t *list = side ? op->out : op->in;
        uint32_t count = side ? op->out_count : op->in_count;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t c = cell_of(flow, list[i]);
            if (c == MF_NONE)
                continue;
            uint32_t v = flow->cells[c].variable;
            if (v != MF_NONE)
                flow->vars[(*vars)++] = v | (side ? MF_FLOW_WRITES : 0);
            else if (!side && !is_in(flow->reads + flow->read_at[o], *reads - flow->read_at[o], c))
                flow->reads[(*reads)++] = c;
            else if (side && !is_in(flow->reads + flow->read_at[o], *reads - flow->read_at[o], c) &&
                     !is_in(flow->writes + flow->write_at[o], *writes - flow->write_at[o], c))
                flow->writes[(*writes)++] = c;
        }
    }
}

static memfit_status make_lists(mf_flow *flow, memfit_error *err)
{
    const mf_graph *g = flow->graph;
    size_t operands = 0;
    for (uint32_t o = 0; o < g->op_count; o++)
        operands += g->ops[o].in_count + g->ops[o].out_count;
    mf_arena *a = &flow->arena;
    flow->read_at = MF_NEW_ARRAY(a, uint32_t, g->op_count + 1);
    flow->write_at = MF_NEW_ARRAY(a, uint32_t, g->op_count + 1);
    flow->var_at = MF_NEW_ARRAY(a, uint32_t, g->op_count + 1);
    flow->reads = MF_NEW_ARRAY(a, uint32_t, operands);
    flow->writes = MF_NEW_ARRAY(a, uint32_t, operands);
    flow->vars = MF_NEW_ARRAY(a, uint32_t, operands);
    flow->order = MF_NEW_ARRAY(a, uint32_t, g->op_count);
    flow->position = MF_NEW_ARRAY(a, uint32_t, g->op_count);
    flow->swap_in = MF_NEW_ARRAY(a, uint32_t, g->op_count);
    flow->swap_out = MF_NEW_ARRAY(a, uint32_t, g->op_count);
    flow->workspace = MF_NEW_ARRAY(a, uint64_t, g->op_count);
    flow->time_us = MF_NEW_ARRAY(a, double, g->op_count);
    flow->once = MF_NEW_ARRAY(a, bool, g->op_count);
    if (!flow->read_at || !flow->write_at || !flow->var_at || !flow->reads || !flow->writes || !flow->vars ||
        !flow->order || !flow->position || !flow->swap_in || !flow->swap_out || !flow->workspace || !flow->time_us ||
        !flow->once)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan %u operations", g->op_count);
    uint32_t reads = 0, writes = 0, vars = 0;
    for (uint32_t o = 0; o < g->op_count; o++) {
        flow->read_at[o] = reads;
        flow->write_at[o] = writes;
        flow->var_at[o] = vars;
        add_operands(flow, o, &reads, &writes, &vars);
    }
    flow->read_at[g->op_count] = reads;
    flow->write_at[g->op_count] = writes;
    flow->var_at[g->op_count] = vars;
    return MEMFIT_OK;
}

/* Inputs are filled before the first operation runs, so they come first. */
static void make_order(mf_flow *flow)
{
    const mf_graph *g = flow->graph;
    for (int inputs = 1; inputs >= 0; inputs--)
        for (uint32_t o = 0; o < g->op_count; o++) {
            if (g->ops[o].kind == MF_OP_VIEW)
                flow->position[o] = MF_NONE;
            else if ((g->ops[o].kind == MF_OP_INPUT) == (inputs == 1)) {
                flow->position[o] = flow->order_count;
                flow->order[flow->order_count++] = o;
                flow->input_count += inputs == 1;
            }
        }
}

/* Who makes a cell, and may it be made again? */
static void find_makers(mf_flow *flow)
{
    const mf_graph *g = flow->graph;
    enum { NOBODY_YET = MF_NONE - 1 };
    for (uint32_t c = 0; c < flow->cell_count; c++) {
        flow->cells[c].maker = (uint32_t)NOBODY_YET;
        flow->cells[c].last_write = 0;
    }
    for (uint32_t i = 0; i < flow->order_count; i++) {
        uint32_t o = flow->order[i];
        for (uint32_t k = 0; k < g->ops[o].out_count; k++) {
            uint32_t c = cell_of(flow, g->ops[o].out[k]);
            if (c == MF_NONE)
                continue;
            uint32_t *maker = &flow->cells[c].maker;
            *maker = *maker == (uint32_t)NOBODY_YET || *maker == o ? o : MF_NONE;
            flow->cells[c].last_write = i;
        }
    }
    for (uint32_t c = 0; c < flow->cell_count; c++) {
        mf_cell *cell = &flow->cells[c];
        if (cell->maker == (uint32_t)NOBODY_YET)
            cell->maker = MF_NONE;
        if (cell->maker == MF_NONE || cell->variable != MF_NONE)
            continue;
        const mf_op *op = &g->ops[cell->maker];
        cell->repeatable = mf_op_recomputable(op) && !op->accumulate && op->when == MF_ALWAYS &&
                           op->kind != MF_OP_INPUT && op->phase == MF_FORWARD;
        for (uint32_t i = flow->var_at[cell->maker]; i < flow->var_at[cell->maker + 1]; i++)
            if (flow->vars[i] & MF_FLOW_WRITES)
                cell->repeatable = false;
        for (uint32_t i = flow->read_at[cell->maker]; i < flow->read_at[cell->maker + 1]; i++)
            if (flow->reads[i] == c || flow->cells[flow->reads[i]].last_write > flow->position[cell->maker])
                cell->repeatable = false;
    }
    for (uint32_t c = 0; c < flow->cell_count; c++) { /* all cells of one maker stand and fall together */
        const mf_cell *cell = &flow->cells[c];
        if (cell->maker == MF_NONE || cell->variable != MF_NONE || !cell->repeatable)
            continue;
        for (uint32_t i = flow->write_at[cell->maker]; i < flow->write_at[cell->maker + 1]; i++)
            if (flow->cells[flow->writes[i]].maker != cell->maker)
                flow->cells[c].repeatable = false;
    }
}

/* Element i of the output is made from element i of every operand in the cell: same shape, type and place. An operand
 * that is repeated (broadcasting), or another part of the cell, is read again after the first result is written. */
static bool reads_in_step(const mf_flow *flow, const mf_op *op, uint32_t cell, const mf_tensor *out)
{
    uint32_t readers = 0;
    for (uint32_t i = 0; i < op->in_count; i++) {
        if (cell_of(flow, op->in[i]) != cell)
            continue;
        const mf_tensor *in = &flow->graph->tensors[op->in[i]];
        if (in->offset || in->dtype != out->dtype || !mf_shape_equal(&in->shape, &out->shape))
            return false;
        readers++;
    }
    return readers == 1 || mf_kind(op->kind)->pointwise;
}

/* May the operation's output take its input's bytes? Whole cells of one size only, and never a variable. */
static void find_swaps(mf_flow *flow)
{
    const mf_graph *g = flow->graph;
    for (uint32_t o = 0; o < g->op_count; o++) {
        const mf_op *op = &g->ops[o];
        const mf_kind_row *row = mf_kind(op->kind);
        flow->swap_in[o] = flow->swap_out[o] = MF_NONE;
        uint32_t from = mf_op_inplace_in(op), to = mf_op_inplace_out(op);
        if (op->kind == MF_OP_VIEW || row->must_alias || from >= op->in_count || to >= op->out_count ||
            op->in[from] == MF_NONE || op->out[to] == MF_NONE)
            continue;
        const mf_tensor *in = &g->tensors[op->in[from]], *out = &g->tensors[op->out[to]];
        uint32_t a = flow->root[in->storage], b = flow->root[out->storage];
        if (a == b || flow->cells[a].variable != MF_NONE || flow->cells[b].variable != MF_NONE || out->offset ||
            flow->cells[a].bytes != flow->cells[b].bytes || flow->cells[b].maker != o ||
            !reads_in_step(flow, op, a, out))
            continue;
        flow->swap_in[o] = a;
        flow->swap_out[o] = b;
    }
}

static memfit_status make_uses(mf_flow *flow, memfit_error *err)
{
    uint32_t *at = flow->use_at = MF_NEW_ARRAY(&flow->arena, uint32_t, flow->cell_count + 2);
    flow->uses = MF_NEW_ARRAY(&flow->arena, uint32_t,
                              flow->read_at[flow->graph->op_count] + flow->write_at[flow->graph->op_count]);
    if (!at || !flow->uses)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan %u operations", flow->graph->op_count);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < flow->order_count; i++) {
            uint32_t o = flow->order[i];
            for (uint32_t k = flow->read_at[o]; k < flow->read_at[o + 1]; k++)
                pass ? (void)(flow->uses[at[flow->reads[k] + 1]++] = i) : (void)at[flow->reads[k] + 2]++;
            for (uint32_t k = flow->write_at[o]; k < flow->write_at[o + 1]; k++)
                pass ? (void)(flow->uses[at[flow->writes[k] + 1]++] = i) : (void)at[flow->writes[k] + 2]++;
        }
        for (uint32_t c = 0; !pass && c < flow->cell_count; c++)
            at[c + 2] += at[c + 1];
    }
    return MEMFIT_OK;
}

/* Takes another order over: who makes what stays; positions, last writes and uses follow. */
memfit_status mf_flow_reorder(const memfit_host *host, const mf_flow *flow, const uint32_t *order, mf_flow **out,
                              memfit_error *err)
{
    mf_flow *twin = mf_host_alloc(host, sizeof *twin);
    if (!twin)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan");
    *twin = *flow;
    mf_arena_init(&twin->arena, host);
    twin->order = MF_NEW_ARRAY(&twin->arena, uint32_t, flow->order_count + 1);
    twin->position = MF_NEW_ARRAY(&twin->arena, uint32_t, flow->graph->op_count + 1);
    twin->cells = MF_NEW_ARRAY(&twin->arena, mf_cell, flow->cell_count + 1);
    memfit_status status = MEMFIT_OK;
    if (!twin->order || !twin->position || !twin->cells)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to order %u operations", flow->order_count);
    if (status == MEMFIT_OK) {
        memcpy(twin->order, order, flow->order_count * sizeof *order);
        memcpy(twin->position, flow->position, flow->graph->op_count * sizeof *flow->position);
        memcpy(twin->cells, flow->cells, flow->cell_count * sizeof *flow->cells);
        for (uint32_t i = 0; i < twin->order_count; i++)
            twin->position[twin->order[i]] = i;
        find_makers(twin);
        status = make_uses(twin, err);
    }
    if (status != MEMFIT_OK) {
        mf_flow_destroy(twin);
        return status;
    }
    *out = twin;
    return MEMFIT_OK;
}

/* A menu of one whose only method has no identity needs none: prepare takes the first. */
static bool is_choice(const mf_cost *cost, const mf_method *method)
{
    bool named = false;
    for (uint32_t i = 0; i < MF_METHOD_ID_BYTES; i++)
        named |= method->id[i] != 0;
    return cost->method_count > 1 || named;
}

static bool keep_method(mf_flow *flow, uint32_t op, const mf_method *method)
{
    if (!flow->method)
        flow->method = MF_NEW_ARRAY(&flow->arena, mf_method *, flow->graph->op_count);
    mf_method *kept = flow->method ? MF_NEW_ARRAY(&flow->arena, mf_method, 1) : NULL;
    if (!kept)
        return false;
    *kept = *method;
    flow->method[op] = kept;
    return true;
}

static uint64_t variable_bytes(const mf_flow *flow)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < flow->cell_count; c++)
        bytes += flow->cells[c].variable != MF_NONE ? flow->cells[c].bytes : 0;
    return bytes;
}

/* What the operation itself reads and writes: beside that and the variables its workspace must lie, whatever the order. */
static uint64_t operand_bytes(const mf_flow *flow, uint32_t op)
{
    uint64_t bytes = 0;
    for (uint32_t k = flow->read_at[op]; k < flow->read_at[op + 1]; k++)
        bytes += flow->cells[flow->reads[k]].bytes;
    for (uint32_t k = flow->write_at[op]; k < flow->write_at[op + 1]; k++)
        bytes += flow->cells[flow->writes[k]].bytes;
    return bytes;
}

/* The fastest that fits; what that changes of the results is noted. */
static uint32_t choose_method(mf_flow *flow, const mf_cost_source *source, uint64_t variables, uint32_t op,
                              const mf_cost *cost)
{
    uint32_t free_choice = mf_cost_choose(cost, source->rules, UINT64_MAX);
    if (!source->room_bytes)
        return free_choice;
    uint64_t beside = variables + operand_bytes(flow, op);
    uint32_t chosen =
        mf_cost_choose(cost, source->rules, source->room_bytes > beside ? source->room_bytes - beside : 0);
    mf_numerics a = cost->methods[chosen].numerics, b = cost->methods[free_choice].numerics;
    if (chosen != free_choice && (a > b ? a : b) > flow->numerics)
        flow->numerics = a > b ? a : b;
    return chosen;
}

static memfit_status ask_costs(mf_flow *flow, const mf_cost_source *source, memfit_error *err)
{
    const uint64_t variables = variable_bytes(flow);
    for (uint32_t o = 0; o < flow->graph->op_count; o++) {
        const mf_op *op = &flow->graph->ops[o];
        flow->once[o] = op->when != MF_ALWAYS;
        if (op->kind == MF_OP_VIEW || op->kind == MF_OP_INPUT)
            continue;
        mf_cost cost;
        mf_cost_set_one(&cost, 0, 1);
        if (source && source->query) {
            memfit_status status = source->query(source->ctx, flow->graph, o, &cost, err);
            if (status != MEMFIT_OK)
                return status;
        }
        mf_method *method = &cost.methods[cost.method_count > 1 ? choose_method(flow, source, variables, o, &cost) : 0];
        if (!method->deterministic && flow->numerics < MF_REORDERED)
            flow->numerics = MF_REORDERED;
        if (op->kind == MF_OP_ASSUMED && method->workspace_bytes < op->attr.assumed.bytes)
            method->workspace_bytes = op->attr.assumed.bytes;
        flow->workspace[o] = mf_round_up(method->workspace_bytes, flow->alignment);
        flow->time_us[o] = method->time_us;
        if (is_choice(&cost, method) && !keep_method(flow, o, method))
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan");
    }
    return MEMFIT_OK;
}

memfit_status mf_flow_create(const memfit_host *host, const mf_graph *graph, const mf_cost_source *cost, mf_flow **out,
                             memfit_error *err)
{
    mf_flow *flow = mf_host_zalloc(host, sizeof *flow);
    if (!flow)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan");
    mf_arena_init(&flow->arena, host);
    flow->graph = graph;
    flow->alignment = cost && cost->alignment ? cost->alignment : 64;
    memfit_status status = make_cells(flow, err);
    if (status == MEMFIT_OK)
        status = make_lists(flow, err);
    if (status == MEMFIT_OK) {
        make_order(flow);
        find_makers(flow);
        find_swaps(flow);
        status = make_uses(flow, err);
    }
    if (status == MEMFIT_OK)
        status = ask_costs(flow, cost, err);
    if (status != MEMFIT_OK) {
        mf_flow_destroy(flow);
        return status;
    }
    if (graph->mode == MF_MODE_PREDICT)
        for (uint32_t i = 0; i < graph->output_count; i++)
            flow->cells[cell_of(flow, graph->outputs[i])].lasts = true;
    *out = flow;
    return MEMFIT_OK;
}

void mf_flow_destroy(mf_flow *flow)
{
    if (!flow)
        return;
    const memfit_host *host = flow->arena.host;
    mf_arena_destroy(&flow->arena);
    mf_host_free(host, flow, sizeof *flow);
}

memfit_status mf_choice_make(mf_arena *arena, const mf_flow *flow, mf_choice *choice, memfit_error *err)
{
    choice->drop = MF_NEW_ARRAY(arena, uint8_t, flow->use_at[flow->cell_count] + 1);
    if (!choice->drop)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the choice of %u storages", flow->cell_count);
    return MEMFIT_OK;
}

bool mf_flow_touches(const mf_flow *flow, uint32_t o, uint32_t c)
{
    for (uint32_t k = flow->read_at[o]; k < flow->read_at[o + 1]; k++)
        if (flow->reads[k] == c)
            return true;
    for (uint32_t k = flow->write_at[o]; k < flow->write_at[o + 1]; k++)
        if (flow->writes[k] == c)
            return true;
    return false;
}
