/*
 * plan_check.c: is a plan right? Written against plan.h and graph.h alone, it shares no code with the planner. Which
 * operation may write over what it reads comes from overwrite.h, not from the planner's table of kinds.
 *
 * It plays the steps on a model of the arena that knows, for each storage, where its bytes lie, whether they are still
 * whole, and how many of its writers have run (its version):
 *
 *     a read     needs the storage whole, at the offset the step says, in the version the graph's own order has there
 *     a write    makes the storage whole, and breaks every other storage it overlaps; a write of some rows, or one that
 *                adds, needs what the writers before it left
 *     variables  never move; their version rises with every update, so a reader after the update is seen, recomputed
 *                or not
 *
 * Whatever a wrong lifetime, offset or order does, some reader then finds broken bytes or the wrong version. Cost:
 * steps times storages that are whole at one time.
 */
#include "plan/plan.h"

#include "base/error.h"
#include "plan/fit/overwrite.h"

#include <stdio.h>

typedef struct where {
    uint64_t offset;
    uint32_t version; /* 0: not written */
    bool whole;
} where;

typedef struct checker {
    const mf_plan *plan;
    const mf_phase *phase;
    const mf_graph *graph;
    mf_arena arena;
    where *storages;       /* by storage */
    uint32_t *whole;       /* storages that are whole, in no order */
    uint32_t *whole_index; /* by storage: place in that list */
    uint32_t whole_count;
    uint32_t **expected; /* by operation: version each input must have, then version each output gets */
    uint8_t *ran;        /* by operation */
    memfit_error *err;
} checker;

static const char *op_text(const checker *k, uint32_t step, char *text, size_t bytes)
{
    const mf_op *op = &k->graph->ops[k->phase->steps[step].op];
    snprintf(text, bytes, "%s step %u (%s of %s)", mf_phase_name(k->phase->role), step, mf_kind_name(op->kind),
             op->layer < k->graph->layer_count ? k->graph->layers[op->layer].name : "?");
    return text;
}

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static void set_broken(checker *k, uint32_t s)
{
    if (!k->storages[s].whole)
        return;
    uint32_t last = k->whole[--k->whole_count];
    k->whole[k->whole_index[s]] = last;
    k->whole_index[last] = k->whole_index[s];
    k->storages[s].whole = false;
}

static void set_whole(checker *k, uint32_t s, uint64_t offset, uint32_t version)
{
    if (!k->storages[s].whole) {
        k->whole_index[s] = k->whole_count;
        k->whole[k->whole_count++] = s;
    }
    k->storages[s] = (where){offset, version, true};
}

/* Bytes [offset, offset + bytes) are written: everything else there is lost. */
static void break_others(checker *k, uint64_t offset, uint64_t bytes, uint32_t except)
{
    for (uint32_t i = 0; i < k->whole_count;) {
        uint32_t s = k->whole[i];
        if (s != except && overlap(offset, bytes, k->storages[s].offset, k->graph->storages[s].bytes))
            set_broken(k, s);
        else
            i++;
    }
}

/* Counts, in the graph's own order, the writers of every storage: the versions every operand must meet. */
static memfit_status expect_versions(checker *k)
{
    const mf_graph *g = k->graph;
    uint32_t *writers = MF_NEW_ARRAY(&k->arena, uint32_t, g->storage_count);
    k->expected = MF_NEW_ARRAY(&k->arena, uint32_t *, g->op_count);
    if (!writers || !k->expected)
        return mf_fail(k->err, MEMFIT_NO_HOST_MEMORY, "no memory to check the plan");
    for (uint32_t o = 0; o < g->op_count; o++) {
        const mf_op *op = &g->ops[o];
        k->expected[o] = MF_NEW_ARRAY(&k->arena, uint32_t, op->in_count + op->out_count + 1);
        if (!k->expected[o])
            return mf_fail(k->err, MEMFIT_NO_HOST_MEMORY, "no memory to check the plan");
        if (op->kind == MF_OP_VIEW)
            continue;
        for (uint32_t i = 0; i < op->in_count; i++)
            if (op->in[i] != MF_NONE)
                k->expected[o][i] = writers[g->tensors[op->in[i]].storage];
        for (uint32_t i = 0; i < op->out_count; i++)
            if (op->out[i] != MF_NONE)
                writers[g->tensors[op->out[i]].storage]++;
        for (uint32_t i = 0; i < op->out_count; i++)
            if (op->out[i] != MF_NONE)
                k->expected[o][op->in_count + i] = writers[g->tensors[op->out[i]].storage];
    }
    return MEMFIT_OK;
}

/* Is this operand where it must be: variables at their place, the rest aligned and above them? */
static memfit_status check_place(checker *k, uint32_t step, uint32_t tensor, uint64_t offset)
{
    const mf_plan *plan = k->plan;
    const mf_tensor *t = &k->graph->tensors[tensor];
    const mf_storage *s = &k->graph->storages[t->storage];
    char text[160];
    if (offset == MF_NO_OFFSET || offset < t->offset)
        return mf_fail(k->err, MEMFIT_INVALID, "%s: an operand has no place", op_text(k, step, text, sizeof text));
    uint64_t base = offset - t->offset;
    if (base % plan->alignment)
        return mf_fail(k->err, MEMFIT_INVALID, "%s: an operand lies at %llu, which is not aligned to %llu",
                       op_text(k, step, text, sizeof text), (unsigned long long)base,
                       (unsigned long long)plan->alignment);
    if (s->variable != MF_NONE) {
        if (s->variable >= plan->variable_count || plan->variable_offsets[s->variable] != base ||
            plan->variable_bytes[s->variable] < s->bytes)
            return mf_fail(k->err, MEMFIT_INVALID, "%s: variable %u is not where the plan put it",
                           op_text(k, step, text, sizeof text), s->variable);
        return MEMFIT_OK;
    }
    if (base < plan->variables_end || base + s->bytes > k->phase->bytes)
        return mf_fail(k->err, MEMFIT_INVALID, "%s: an operand lies at %llu to %llu, outside %llu to %llu",
                       op_text(k, step, text, sizeof text), (unsigned long long)base,
                       (unsigned long long)(base + s->bytes), (unsigned long long)plan->variables_end,
                       (unsigned long long)k->phase->bytes);
    return MEMFIT_OK;
}

static memfit_status check_reads(checker *k, uint32_t n, const mf_step *step, const mf_op *op)
{
    char text[160];
    for (uint32_t i = 0; i < op->in_count; i++) {
        if (op->in[i] == MF_NONE)
            continue;
        const mf_tensor *t = &k->graph->tensors[op->in[i]];
        memfit_status status = check_place(k, n, op->in[i], step->offsets[i]);
        if (status != MEMFIT_OK)
            return status;
        const where *w = &k->storages[t->storage];
        bool variable = k->graph->storages[t->storage].variable != MF_NONE;
        if (!variable && (!w->whole || w->offset + t->offset != step->offsets[i]))
            return mf_fail(k->err, MEMFIT_INVALID, "%s: input %u is not there any more (or never was)",
                           op_text(k, n, text, sizeof text), i);
        if (w->version != k->expected[step->op][i])
            return mf_fail(k->err, MEMFIT_INVALID, "%s: input %u has been written %u times where the graph has %u: %s",
                           op_text(k, n, text, sizeof text), i, w->version, k->expected[step->op][i],
                           variable ? "an update comes before a reader" : "wrong order");
    }
    return MEMFIT_OK;
}

/* Two operands of one step may share bytes only as views of one storage or where overwrite.h allows it. */
static memfit_status check_sharing(checker *k, uint32_t n, const mf_step *step, const mf_op *op)
{
    const mf_graph *g = k->graph;
    const mf_kind_row *row = mf_kind(op->kind);
    char text[160];
    uint32_t total = op->in_count + op->out_count;
    for (uint32_t i = op->in_count; i < total; i++) {
        uint32_t out = op->out[i - op->in_count];
        if (out == MF_NONE)
            continue;
        const mf_tensor *t = &g->tensors[out];
        uint64_t base = step->offsets[i] - t->offset, bytes = g->storages[t->storage].bytes;
        for (uint32_t j = 0; j < i; j++) {
            uint32_t other = j < op->in_count ? op->in[j] : op->out[j - op->in_count];
            if (other == MF_NONE || g->tensors[other].storage == t->storage)
                continue;
            uint64_t place = step->offsets[j] - g->tensors[other].offset;
            if (!overlap(base, bytes, place, g->storages[g->tensors[other].storage].bytes))
                continue;
            bool pair = j < op->in_count && mf_may_overwrite(g, op, i - op->in_count, j) &&
                        step->offsets[i] == step->offsets[j];
            if (!pair)
                return mf_fail(k->err, MEMFIT_INVALID, "%s: output %u overlaps %s %u", op_text(k, n, text, sizeof text),
                               i - op->in_count, j < op->in_count ? "input" : "output",
                               j < op->in_count ? j : j - op->in_count);
        }
        if (row->must_alias && i - op->in_count == row->inplace_out && row->inplace_in < op->in_count &&
            op->in[row->inplace_in] != MF_NONE && step->offsets[i] != step->offsets[row->inplace_in])
            return mf_fail(k->err, MEMFIT_INVALID, "%s: works in place but has two places",
                           op_text(k, n, text, sizeof text));
    }
    for (uint32_t i = 0; step->workspace_bytes && i < total; i++) {
        uint32_t tensor = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        if (tensor == MF_NONE)
            continue;
        const mf_tensor *t = &g->tensors[tensor];
        if (overlap(step->workspace_offset, step->workspace_bytes, step->offsets[i] - t->offset,
                    g->storages[t->storage].bytes))
            return mf_fail(k->err, MEMFIT_INVALID, "%s: its workspace overlaps an operand",
                           op_text(k, n, text, sizeof text));
    }
    return MEMFIT_OK;
}

static memfit_status check_writes(checker *k, uint32_t n, const mf_step *step, const mf_op *op)
{
    const mf_graph *g = k->graph;
    char text[160];
    if (step->workspace_bytes) {
        if (step->workspace_offset % k->plan->alignment || step->workspace_offset < k->plan->variables_end ||
            step->workspace_offset + step->workspace_bytes > k->phase->bytes)
            return mf_fail(k->err, MEMFIT_INVALID, "%s: its workspace is out of place",
                           op_text(k, n, text, sizeof text));
        break_others(k, step->workspace_offset, step->workspace_bytes, MF_NONE);
    }
    for (uint32_t i = 0; i < op->out_count; i++) {
        if (op->out[i] == MF_NONE)
            continue;
        const mf_tensor *t = &g->tensors[op->out[i]];
        uint64_t offset = step->offsets[op->in_count + i];
        memfit_status status = check_place(k, n, op->out[i], offset);
        if (status != MEMFIT_OK)
            return status;
        uint32_t version = k->expected[step->op][op->in_count + i];
        const where *there = &k->storages[t->storage];
        bool variable = g->storages[t->storage].variable != MF_NONE;
        bool part = mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype) < g->storages[t->storage].bytes;
        if (!variable && ((op->accumulate && op->out_count == 1) || part) &&
            (!there->whole || there->offset != offset - t->offset || there->version + 1 != version))
            return mf_fail(k->err, MEMFIT_INVALID,
                           "%s: output %u is added to or written in part, and what it had is gone",
                           op_text(k, n, text, sizeof text), i);
        if (variable) {
            if (step->recomputed)
                return mf_fail(k->err, MEMFIT_INVALID, "%s: recomputed, but writes a variable",
                               op_text(k, n, text, sizeof text));
            k->storages[t->storage].version = version;
            continue;
        }
        break_others(k, offset - t->offset, g->storages[t->storage].bytes, t->storage);
        set_whole(k, t->storage, offset - t->offset, version);
    }
    return MEMFIT_OK;
}

static memfit_status check_step(checker *k, uint32_t n)
{
    const mf_step *step = &k->phase->steps[n];
    char text[160];
    if (step->op >= k->graph->op_count)
        return mf_fail(k->err, MEMFIT_INVALID, "%s step %u names operation %u of %u", mf_phase_name(k->phase->role), n,
                       step->op, k->graph->op_count);
    const mf_op *op = &k->graph->ops[step->op];
    if (step->recomputed != (k->ran[step->op] != 0))
        return mf_fail(k->err, MEMFIT_INVALID, "%s: %s", op_text(k, n, text, sizeof text),
                       step->recomputed ? "a recomputation before the first run" : "runs twice");
    if (step->recomputed && !mf_op_recomputable(op))
        return mf_fail(k->err, MEMFIT_INVALID, "%s: this kind cannot be recomputed", op_text(k, n, text, sizeof text));
    k->ran[step->op] = 1;
    memfit_status status = check_reads(k, n, step, op);
    if (status == MEMFIT_OK)
        status = check_sharing(k, n, step, op);
    if (status == MEMFIT_OK)
        status = check_writes(k, n, step, op);
    return status;
}

/* The executor fills all inputs before the first step, in any order: they may not overlap each other. */
static memfit_status check_inputs(checker *k)
{
    const mf_graph *g = k->graph;
    bool past = false;
    char text[160];
    for (uint32_t n = 0; n < k->phase->step_count; n++) {
        const mf_step *a = &k->phase->steps[n];
        if (a->op >= g->op_count || g->ops[a->op].kind != MF_OP_INPUT) {
            past = true;
            continue;
        }
        if (past)
            return mf_fail(k->err, MEMFIT_INVALID, "%s: an input after the first operation",
                           op_text(k, n, text, sizeof text));
        for (uint32_t m = 0; m < n; m++) {
            const mf_step *b = &k->phase->steps[m];
            uint32_t sa = g->tensors[g->ops[a->op].out[0]].storage, sb = g->tensors[g->ops[b->op].out[0]].storage;
            if (overlap(a->offsets[0], g->storages[sa].bytes, b->offsets[0], g->storages[sb].bytes))
                return mf_fail(k->err, MEMFIT_INVALID, "%s: overlaps another input", op_text(k, n, text, sizeof text));
        }
    }
    return MEMFIT_OK;
}

/* Slots of one operation lie in one window, beside each other; no other operation reads or writes them. */
static memfit_status check_windows(const checker *k, uint32_t *reader)
{
    const mf_graph *g = k->graph;
    for (uint32_t o = 0; o < g->op_count; o++) {
        const mf_op *op = &g->ops[o];
        uint32_t window = 0;
        uint64_t taken = 0;
        for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
            uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
            uint32_t v = t == MF_NONE ? MF_NONE : g->storages[g->tensors[t].storage].variable;
            if (v == MF_NONE || !k->plan->variable_windows[v])
                continue;
            uint32_t mine = k->plan->variable_windows[v];
            uint64_t from = k->plan->windows[mine - 1], at = k->plan->variable_offsets[v];
            bool again = reader[v] == o + 1;
            if ((window && mine != window) || (reader[v] && !again) || at < from + (again ? 0 : taken) ||
                at % k->plan->alignment || at + k->plan->variable_bytes[v] > from + k->plan->window_bytes[mine - 1])
                return mf_fail(k->err, MEMFIT_INVALID, "variable %u is out of its window", v);
            window = mine;
            reader[v] = o + 1;
            taken = again ? taken : at + k->plan->variable_bytes[v] - from;
        }
    }
    return MEMFIT_OK;
}

static memfit_status check_phase(checker *k)
{
    const mf_graph *g = k->graph;
    k->storages = MF_NEW_ARRAY(&k->arena, where, g->storage_count);
    k->whole = MF_NEW_ARRAY(&k->arena, uint32_t, g->storage_count);
    k->whole_index = MF_NEW_ARRAY(&k->arena, uint32_t, g->storage_count);
    k->ran = MF_NEW_ARRAY(&k->arena, uint8_t, g->op_count);
    uint32_t *reader = MF_NEW_ARRAY(&k->arena, uint32_t, k->plan->variable_count + 1);
    k->whole_count = 0;
    if (!k->storages || !k->whole || !k->whole_index || !k->ran || !reader)
        return mf_fail(k->err, MEMFIT_NO_HOST_MEMORY, "no memory to check the plan");
    memfit_status status = k->plan->variable_windows ? check_windows(k, reader) : MEMFIT_OK;
    if (status == MEMFIT_OK)
        status = expect_versions(k);
    if (status == MEMFIT_OK)
        status = check_inputs(k);
    for (uint32_t n = 0; n < k->phase->step_count && status == MEMFIT_OK; n++)
        status = check_step(k, n);
    for (uint32_t o = 0; o < g->op_count && status == MEMFIT_OK; o++)
        if (!k->ran[o] && g->ops[o].kind != MF_OP_VIEW)
            status = mf_fail(k->err, MEMFIT_INVALID, "%s: operation %u never runs", mf_phase_name(k->phase->role), o);
    for (uint32_t i = 0; g->mode == MF_MODE_PREDICT && i < g->output_count && status == MEMFIT_OK; i++) {
        uint32_t s = g->tensors[g->outputs[i]].storage;
        if (g->storages[s].variable == MF_NONE && !k->storages[s].whole)
            status =
                mf_fail(k->err, MEMFIT_INVALID, "%s: output %u is gone at the end", mf_phase_name(k->phase->role), i);
    }
    return status;
}

static memfit_status check_variables(const mf_plan *plan, memfit_error *err)
{
    uint64_t end = 0;
    for (uint32_t v = 0; v < plan->variable_count; v++) {
        if (plan->variable_windows && plan->variable_windows[v])
            continue;
        if (plan->variable_offsets[v] < end || plan->variable_offsets[v] % plan->alignment)
            return mf_fail(err, MEMFIT_INVALID, "variable %u is out of place", v);
        end = plan->variable_offsets[v] + plan->variable_bytes[v];
    }
    for (uint32_t w = 0; w < MF_WINDOWS; w++)
        if (plan->window_bytes[w]) {
            if (plan->windows[w] < end || plan->windows[w] % plan->alignment)
                return mf_fail(err, MEMFIT_INVALID, "window %u is out of place", w);
            end = plan->windows[w] + plan->window_bytes[w];
        }
    if (end > plan->variables_end)
        return mf_fail(err, MEMFIT_INVALID, "variables end at %llu, above their part of the arena (%llu)",
                       (unsigned long long)end, (unsigned long long)plan->variables_end);
    return MEMFIT_OK;
}

memfit_status mf_plan_check(const mf_plan *plan, memfit_error *err)
{
    memfit_status status =
        plan->alignment ? check_variables(plan, err) : mf_fail(err, MEMFIT_INVALID, "a plan without an alignment");
    uint64_t highest = plan->variables_end;
    for (uint32_t p = 0; p < plan->phase_count && status == MEMFIT_OK; p++) {
        checker k = {.plan = plan, .phase = &plan->phases[p], .graph = plan->phases[p].graph, .err = err};
        mf_arena_init(&k.arena, plan->arena.host);
        status = check_phase(&k);
        mf_arena_destroy(&k.arena);
        if (plan->phases[p].bytes > highest)
            highest = plan->phases[p].bytes;
    }
    if (status == MEMFIT_OK && highest != plan->arena_bytes)
        status = mf_fail(err, MEMFIT_INVALID, "the arena is %llu bytes but its phases need %llu",
                         (unsigned long long)plan->arena_bytes, (unsigned long long)highest);
    if (status == MEMFIT_OK && plan->peak_bytes != plan->fixed_bytes + plan->arena_bytes)
        status = mf_fail(err, MEMFIT_INVALID, "the peak is not the sum of fixed cost and arena");
    return status;
}
