/*
 * group.c: see group.h.
 *
 * Seeds are taken in the graph's order; to each are added, one at a time, operations that read what the members make, as
 * long as the backend takes them together and there is a place for the whole:
 *
 *     ... w ... first member ... x ... member ... y ... member ...
 *              └────────── all of them run here ──────────┘
 *
 * Operations that are no members keep their order. Each has a key, and so has a group: 2i + 1 for operation i, 2s for a
 * group that stands in front of operation s. What a member depends on (it reads what that wrote, or writes what that
 * read or wrote) must have a smaller key than the group, what depends on a member a larger one. Since all keys are places
 * in one order, no circle can arise, however many groups there are. A group stands as early as its inputs allow: those
 * who read its first results (moving averages) often follow at once.
 *
 * A tensor stays inside when nobody else touches its storage.
 */
#include "graph/group.h"

#include "base/error.h"
#include "graph/kinds/kinds.h"
#include "graph/passes/attend.h"
#include "graph/passes/bias_sums.h"
#include "graph/passes/even_rows.h"
#include "graph/passes/late.h"
#include "graph/passes/narrow.h"
#include "graph/passes/narrow_feeds.h"
#include "graph/passes/pool_first.h"
#include "graph/passes/slopes.h"
#include "graph/passes/sums.h"

#include <string.h>

enum { WINDOW = 512 }; /* operations between the first member and the last */

typedef struct chain {
    uint32_t ops[MF_GROUP_MOST], count;
    uint32_t slot; /* in front of which operation */
    struct chain *next;
} chain;

typedef struct grouping {
    mf_graph *g;
    const mf_group_taker *taker;
    uint32_t *touch_at, *touches; /* by storage: operations that touch it, 2 * op + writes, ascending */
    int64_t *key;                 /* by operation */
    uint8_t *grouped;             /* by operation: part of a chain, or not needed any more */
    chain **at;                   /* by operation: the chains that stand in front of it */
    uint32_t chain_count;
} grouping;

/* ---- who touches what ---- */

static bool make_touches(grouping *p)
{
    mf_graph *g = p->g;
    p->touch_at = MF_NEW_ARRAY(&g->arena, uint32_t, g->storage_count + 2);
    p->key = MF_NEW_ARRAY(&g->arena, int64_t, g->op_count + 1);
    size_t operands = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        operands += g->ops[i].in_count + g->ops[i].out_count;
    p->touches = MF_NEW_ARRAY(&g->arena, uint32_t, operands + 1);
    if (!p->touch_at || !p->key || !p->touches)
        return false;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < g->op_count; i++) {
            const mf_op *op = &g->ops[i];
            p->key[i] = 2 * (int64_t)i + 1;
            for (uint32_t k = 0; !p->grouped[i] && k < op->in_count + op->out_count; k++) {
                uint32_t t = k < op->in_count ? op->in[k] : op->out[k - op->in_count];
                if (t == MF_NONE)
                    continue;
                uint32_t s = g->tensors[t].storage;
                if (pass)
                    p->touches[p->touch_at[s + 1]++] = 2 * i + (k >= op->in_count && op->kind != MF_OP_VIEW);
                else
                    p->touch_at[s + 2]++;
            }
        }
        for (uint32_t s = 0; !pass && s < g->storage_count; s++)
            p->touch_at[s + 2] += p->touch_at[s + 1];
    }
    return true;
}

static bool is_member(const chain *c, uint32_t op)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->ops[i] == op)
            return true;
    return false;
}

static uint32_t maker_in(const mf_graph *g, const chain *c, uint32_t tensor)
{
    for (uint32_t i = 0; i < c->count; i++)
        for (uint32_t k = 0; k < g->ops[c->ops[i]].out_count; k++)
            if (g->ops[c->ops[i]].out[k] == tensor)
                return c->ops[i];
    return MF_NONE;
}

/* ---- is there a place? ---- */

/* Limits of the group's key by one storage that a member touches. */
static void bound_by(const grouping *p, const chain *c, uint32_t member, uint32_t storage, bool writes, int64_t *after,
                     int64_t *before)
{
    for (uint32_t k = p->touch_at[storage]; k < p->touch_at[storage + 1]; k++) {
        uint32_t other = p->touches[k] / 2;
        if ((!writes && !(p->touches[k] & 1)) || is_member(c, other))
            continue;
        if (other < member)
            *after = p->key[other] > *after ? p->key[other] : *after;
        else
            *before = p->key[other] < *before ? p->key[other] : *before;
    }
}

/* A member must find what another makes as that one's own result: not through a view, which is no member, and not what
 * was there before, as a sum does that goes on in a variable. And no two members make the same. */
static bool is_around(const mf_graph *g, const chain *c, uint32_t member, uint32_t tensor, bool reads)
{
    for (uint32_t i = 0; i < c->count; i++)
        for (uint32_t k = 0; k < g->ops[c->ops[i]].out_count; k++) {
            uint32_t out = g->ops[c->ops[i]].out[k];
            if (out != MF_NONE && g->tensors[out].storage == g->tensors[tensor].storage &&
                (reads ? out != tensor || i >= member : i != member))
                return true;
        }
    return false;
}

static bool find_place(const grouping *p, chain *c)
{
    const mf_graph *g = p->g;
    int64_t after = -1, before = INT64_MAX;
    for (uint32_t i = 0; i < c->count; i++) {
        const mf_op *op = &g->ops[c->ops[i]];
        for (uint32_t k = 0; k < op->in_count + op->out_count; k++) {
            uint32_t t = k < op->in_count ? op->in[k] : op->out[k - op->in_count];
            if (t == MF_NONE)
                continue;
            if (is_around(g, c, i, t, k < op->in_count))
                return false;
            bound_by(p, c, c->ops[i], g->tensors[t].storage, k >= op->in_count, &after, &before);
        }
    }
    int64_t slot = after < 0 ? 0 : after / 2 + 1;
    slot = slot < (int64_t)c->ops[0] ? (int64_t)c->ops[0] : slot;
    c->slot = (uint32_t)slot;
    return 2 * slot < before;
}

/* ---- growing ---- */

static bool may_join(const mf_graph *g, const mf_op *op)
{
    if (op->kind == MF_OP_INPUT || op->kind == MF_OP_VIEW || op->kind == MF_OP_GROUP || op->kind == MF_OP_ASSUMED ||
        op->chunked || mf_kind(op->kind)->must_alias)
        return false;
    for (uint32_t k = 0; k < op->out_count; k++) {
        if (op->out[k] == MF_NONE)
            continue;
        const mf_tensor *t = &g->tensors[op->out[k]];
        bool variable = g->storages[t->storage].variable != MF_NONE;
        bool whole = mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype) == g->storages[t->storage].bytes;
        if (!variable && (!whole || (op->accumulate && op->out_count == 1)))
            return false;
    }
    return true;
}

static bool add_member(const grouping *p, chain *c, uint32_t op)
{
    const mf_op *first = &p->g->ops[c->ops[0]], *o = &p->g->ops[op];
    if (c->count == MF_GROUP_MOST || p->grouped[op] || is_member(c, op) || op < c->ops[0] || op - c->ops[0] > WINDOW ||
        o->phase != first->phase || o->when != first->when || !may_join(p->g, o))
        return false;
    chain more = *c;
    uint32_t at = more.count++;
    for (; at > 0 && more.ops[at - 1] > op; at--)
        more.ops[at] = more.ops[at - 1];
    more.ops[at] = op;
    if (!p->taker->takes(p->taker->ctx, p->g, more.ops, more.count) || !find_place(p, &more))
        return false;
    *c = more;
    return true;
}

/* One reader of one member's result; false: there is none left that can be added. */
static bool grow_once(const grouping *p, chain *c)
{
    const mf_graph *g = p->g;
    for (uint32_t i = 0; i < c->count; i++) {
        const mf_op *op = &g->ops[c->ops[i]];
        for (uint32_t k = 0; k < op->out_count; k++) {
            if (op->out[k] == MF_NONE)
                continue;
            uint32_t s = g->tensors[op->out[k]].storage;
            for (uint32_t j = p->touch_at[s]; j < p->touch_at[s + 1]; j++)
                if (!(p->touches[j] & 1) && add_member(p, c, p->touches[j] / 2))
                    return true;
        }
    }
    return false;
}

static bool make_chains(grouping *p)
{
    p->at = MF_NEW_ARRAY(&p->g->arena, chain *, p->g->op_count + 1);
    if (!p->at)
        return false;
    for (uint32_t i = 0; p->taker->takes && i < p->g->op_count; i++) {
        chain c = {.ops = {i}, .count = 1};
        if (p->grouped[i] || !may_join(p->g, &p->g->ops[i]) || !p->taker->takes(p->taker->ctx, p->g, c.ops, 1))
            continue;
        while (grow_once(p, &c))
            ;
        if (c.count < 2 || (p->taker->whole && !p->taker->whole(p->taker->ctx, p->g, c.ops, c.count)))
            continue;
        chain *kept = MF_NEW_ARRAY(&p->g->arena, chain, 1);
        if (!kept)
            return false;
        *kept = c;
        kept->next = p->at[c.slot];
        p->at[c.slot] = kept;
        for (uint32_t k = 0; k < c.count; k++) {
            p->grouped[c.ops[k]] = 1;
            p->key[c.ops[k]] = 2 * (int64_t)c.slot;
        }
    }
    return true;
}

/* ---- the operation a chain becomes ---- */

static bool stays_inside(const grouping *p, const chain *c, uint32_t tensor)
{
    const mf_graph *g = p->g;
    uint32_t s = g->tensors[tensor].storage;
    if (g->storages[s].variable != MF_NONE)
        return false;
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE && g->tensors[g->outputs[i]].storage == s)
            return false;
    for (uint32_t k = p->touch_at[s]; k < p->touch_at[s + 1]; k++)
        if (!is_member(c, p->touches[k] / 2))
            return false;
    return true;
}

/* Tensors of the chain, by role: 0 read from outside, 1 made and seen outside, 2 made and kept inside. */
static uint32_t collect(const grouping *p, const chain *c, int role, uint32_t *ids, uint32_t count)
{
    const mf_graph *g = p->g;
    for (uint32_t i = 0; i < c->count; i++) {
        const mf_op *op = &g->ops[c->ops[i]];
        uint32_t n = role ? op->out_count : op->in_count;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t t = role ? op->out[k] : op->in[k];
            if (t == MF_NONE || (role == 0 && maker_in(g, c, t) != MF_NONE) ||
                (role && stays_inside(p, c, t) != (role == 2)))
                continue;
            bool there = false;
            for (uint32_t j = 0; j < count; j++)
                there |= ids[j] == t;
            if (!there)
                ids[count++] = t;
        }
    }
    return count;
}

static uint32_t inner_number(const uint32_t *ids, uint32_t count, uint32_t tensor)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] == tensor)
            return i;
    return MF_NONE;
}

static bool fill_inner(const grouping *p, const chain *c, mf_graph *inner, const uint32_t *ids, uint32_t count)
{
    mf_graph *g = p->g;
    inner->mode = g->mode;
    inner->batch = g->batch;
    inner->layers = g->layers;
    inner->layer_count = g->layer_count;
    inner->loss_variable = MF_NONE;
    inner->op_count = c->count;
    inner->tensor_count = inner->storage_count = count;
    inner->ops = MF_NEW_ARRAY(&g->arena, mf_op, c->count);
    inner->tensors = MF_NEW_ARRAY(&g->arena, mf_tensor, count);
    inner->storages = MF_NEW_ARRAY(&g->arena, mf_storage, count);
    if (!inner->ops || !inner->tensors || !inner->storages)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const mf_tensor *t = &g->tensors[ids[i]];
        inner->tensors[i] = *t;
        inner->tensors[i].storage = i;
        inner->tensors[i].producer = MF_NONE;
        inner->storages[i] = g->storages[t->storage];
        inner->storages[i].bytes = t->offset + mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
    }
    for (uint32_t i = 0; i < c->count; i++) {
        const mf_op *from = &g->ops[c->ops[i]];
        mf_op *op = &inner->ops[i];
        *op = *from;
        op->in = MF_NEW_ARRAY(&g->arena, uint32_t, from->in_count + from->out_count + 1);
        if (!op->in)
            return false;
        op->out = op->in + from->in_count;
        for (uint32_t k = 0; k < from->in_count + from->out_count; k++) {
            uint32_t t = k < from->in_count ? from->in[k] : from->out[k - from->in_count];
            op->in[k] = t == MF_NONE ? MF_NONE : inner_number(ids, count, t);
            if (k >= from->in_count && op->in[k] != MF_NONE)
                inner->tensors[op->in[k]].producer = i;
        }
    }
    return true;
}

/* May output `out` (inner numbers) take the bytes of input `in`? Its maker is the last that reads it, and works in place
 * if it reads it itself. */
static bool may_take(const mf_graph *inner, uint32_t in, uint32_t out)
{
    const mf_tensor *a = &inner->tensors[in], *b = &inner->tensors[out];
    if (inner->storages[in].variable != MF_NONE || inner->storages[out].variable != MF_NONE || a->offset || b->offset ||
        a->dtype != b->dtype || !mf_shape_equal(&a->shape, &b->shape))
        return false;
    for (uint32_t m = b->producer; m < inner->op_count; m++) {
        const mf_op *op = &inner->ops[m];
        const mf_kind_row *row = mf_kind(op->kind);
        for (uint32_t k = 0; k < op->in_count; k++)
            if (op->in[k] == in && (m > b->producer || k != row->inplace_in || row->inplace_out >= op->out_count ||
                                    op->out[row->inplace_out] != out))
                return false;
    }
    return true;
}

static void find_inplace(mf_group *group, uint32_t in_count, uint32_t out_count)
{
    uint64_t most = 0;
    group->inplace_in = group->inplace_out = MF_NONE;
    for (uint32_t o = 0; o < out_count; o++)
        for (uint32_t i = 0; i < in_count; i++) {
            uint64_t bytes = group->inner.storages[in_count + o].bytes;
            if (bytes > most && may_take(&group->inner, i, in_count + o)) {
                most = bytes;
                group->inplace_in = i;
                group->inplace_out = o;
            }
        }
}

static bool make_op(const grouping *p, const chain *c, mf_op *op)
{
    mf_graph *g = p->g;
    uint32_t most = 0;
    for (uint32_t i = 0; i < c->count; i++)
        most += g->ops[c->ops[i]].in_count + g->ops[c->ops[i]].out_count;
    uint32_t *ids = MF_NEW_ARRAY(&g->arena, uint32_t, most + 1);
    mf_group *group = MF_NEW_ARRAY(&g->arena, mf_group, 1);
    if (!ids || !group)
        return false;
    uint32_t ins = collect(p, c, 0, ids, 0), seen = collect(p, c, 1, ids, ins), all = collect(p, c, 2, ids, seen);
    if (!fill_inner(p, c, &group->inner, ids, all))
        return false;
    group->recomputable = true;
    for (uint32_t i = 0; i < c->count; i++)
        group->recomputable &= mf_kind(g->ops[c->ops[i]].kind)->recomputable && !g->ops[c->ops[i]].accumulate;
    find_inplace(group, ins, seen - ins);
    const mf_op *first = &g->ops[c->ops[0]];
    *op = (mf_op){.kind = MF_OP_GROUP,
                  .phase = first->phase,
                  .when = first->when,
                  .layer = first->layer,
                  .in = ids,
                  .out = ids + ins,
                  .in_count = ins,
                  .out_count = seen - ins,
                  .attr = {.group = group}};
    return true;
}

/* ---- numbering anew ---- */

typedef struct numbers {
    mf_op *ops;
    uint32_t op_count, *op, *tensor, *storage; /* old number -> new, MF_NONE: gone */
} numbers;

static bool list_ops(const grouping *p, numbers *n)
{
    const mf_graph *g = p->g;
    n->ops = mf_host_alloc(g->arena.host, (g->op_count + 1) * sizeof *n->ops);
    if (!n->ops)
        return false;
    for (uint32_t i = 0; i <= g->op_count; i++) {
        for (const chain *c = p->at[i]; c; c = c->next) {
            for (uint32_t k = 0; k < c->count; k++)
                n->op[c->ops[k]] = n->op_count;
            if (!make_op(p, c, &n->ops[n->op_count++]))
                return false;
        }
        if (i < g->op_count && !p->grouped[i]) {
            n->op[i] = n->op_count;
            n->ops[n->op_count++] = g->ops[i];
        }
    }
    return true;
}

static void mark_alive(const mf_graph *g, const numbers *n, uint32_t tensor)
{
    if (tensor == MF_NONE)
        return;
    n->tensor[tensor] = 0;
    n->storage[g->tensors[tensor].storage] = 0;
}

static void renumber(const mf_graph *g, numbers *n)
{
    memset(n->tensor, 0xff, g->tensor_count * sizeof *n->tensor);
    memset(n->storage, 0xff, g->storage_count * sizeof *n->storage);
    for (uint32_t i = 0; i < n->op_count; i++)
        for (uint32_t k = 0; k < n->ops[i].in_count + n->ops[i].out_count; k++)
            mark_alive(g, n, n->ops[i].in[k]); /* one array: in, then out */
    for (uint32_t i = 0; i < g->variable_count; i++)
        mark_alive(g, n, g->variables[i].tensor);
    for (uint32_t i = 0; i < g->feed_count; i++)
        mark_alive(g, n, g->feeds[i].tensor);
    for (uint32_t i = 0; i < g->output_count; i++)
        mark_alive(g, n, g->outputs[i]);
    uint32_t next = 0;
    for (uint32_t i = 0; i < g->tensor_count; i++)
        n->tensor[i] = n->tensor[i] == MF_NONE ? MF_NONE : next++;
    next = 0;
    for (uint32_t i = 0; i < g->storage_count; i++)
        n->storage[i] = n->storage[i] == MF_NONE ? MF_NONE : next++;
}

static uint32_t moved(const uint32_t *to, uint32_t number)
{
    return number == MF_NONE ? MF_NONE : to[number];
}

static void commit(mf_graph *g, const numbers *n)
{
    uint32_t tensors = 0, storages = 0;
    mf_host_free(g->arena.host, g->ops, g->op_capacity * sizeof *g->ops);
    g->ops = n->ops;
    g->op_capacity = g->op_count + 1;
    g->op_count = n->op_count;
    for (uint32_t i = 0; i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count + g->ops[i].out_count; k++)
            g->ops[i].in[k] = moved(n->tensor, g->ops[i].in[k]);
    for (uint32_t i = 0; i < g->tensor_count; i++)
        if (n->tensor[i] != MF_NONE) {
            mf_tensor t = g->tensors[i];
            t.storage = n->storage[t.storage];
            t.producer = moved(n->op, t.producer);
            g->tensors[tensors++] = t;
        }
    for (uint32_t i = 0; i < g->storage_count; i++)
        if (n->storage[i] != MF_NONE)
            g->storages[storages++] = g->storages[i];
    for (uint32_t i = 0; i < g->variable_count; i++)
        g->variables[i].tensor = moved(n->tensor, g->variables[i].tensor);
    for (uint32_t i = 0; i < g->feed_count; i++)
        g->feeds[i].tensor = moved(n->tensor, g->feeds[i].tensor);
    for (uint32_t i = 0; i < g->output_count; i++)
        g->outputs[i] = moved(n->tensor, g->outputs[i]);
    g->tensor_count = tensors;
    g->storage_count = storages;
}

static bool any(const uint8_t *flags, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (flags[i])
            return true;
    return false;
}

memfit_status mf_graph_group(mf_graph *g, const mf_group_taker *taker, memfit_error *err)
{
    if ((taker->even_rows && !mf_graph_even_rows(g, taker->even_rows)) ||
        (taker->late_updates && !mf_graph_late_updates(g)) ||
        (taker->slopes && taker->takes && !mf_graph_slopes(g, taker)) ||
        (taker->bias_sums && taker->takes && !mf_graph_bias_sums(g, taker)))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to group %u operations", g->op_count);
    if (taker->whole_sums)
        mf_graph_whole_sums(g);
    grouping p = {.g = g, .taker = taker, .grouped = MF_NEW_ARRAY(&g->arena, uint8_t, g->op_count + 1)};
    numbers n = {.op = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1),
                 .tensor = MF_NEW_ARRAY(&g->arena, uint32_t, g->tensor_count + 1),
                 .storage = MF_NEW_ARRAY(&g->arena, uint32_t, g->storage_count + 1)};
    bool room = p.grouped && n.op && n.tensor && n.storage;
    room = room && (!taker->pools_first || mf_graph_pool_first(g)) &&
           (!taker->attends || mf_graph_attend(g, taker, p.grouped)) &&
           (!taker->narrow_losses || mf_graph_narrow(g, p.grouped)) &&
           (!taker->narrow_feeds || mf_graph_narrow_feeds(g, p.grouped)) && make_touches(&p) && make_chains(&p);
    if (room && !any(p.grouped, g->op_count))
        return MEMFIT_OK;
    if (!room || !list_ops(&p, &n)) {
        mf_host_free(g->arena.host, n.ops, (g->op_count + 1) * sizeof *n.ops);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to group %u operations", g->op_count);
    }
    renumber(g, &n);
    commit(g, &n);
    return mf_graph_check(g, err);
}
