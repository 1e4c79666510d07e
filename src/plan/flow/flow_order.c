/*
 * flow_order.c: another order of independent operations, where that needs less memory.
 *
 * The graph's own order follows the model file: it walks branches that meet later one after the other, as they were
 * written. Which branch goes first matters where one of them widens and another narrows. This order weighs every
 * operation that is ready by what it leaves behind, and runs the least first:
 *
 *     weight = bytes it makes - bytes of what dies with it          ties: the graph's own order
 *
 * Inputs, forward and the rest follow each other as the graph has them. Nothing crosses a write to what it reads, and
 * writers of one storage keep their turns (sums are summed in the graph's order), so results are the same bits. The
 * loop over chunks of the loss keeps its order; otherwise all chunks' logits would come first. In backward this order
 * delays the gradient of a large weight until activations have made room for it; at the loss all activations are there.
 *
 * The caller compares the peaks and keeps the lower, because greed is not always right.
 */
#include "plan/flow/flow_order.h"

#include "base/error.h"

#include <string.h>

typedef struct link {
    uint32_t op, next;
} link;

typedef struct scheduler {
    mf_arena arena;
    const mf_flow *flow;
    link *links;
    uint32_t link_count;
    uint32_t *after, *waits;    /* by operation: list of those that wait for it; how many it waits for */
    uint32_t *writer, *readers; /* by cell, then by variable: last writer so far, list of readers since */
    uint32_t *left;             /* by cell: uses to come */
    /* A heap of the operations that are ready, the next one on top; by operation: its place there, its weight. */
    uint32_t *ready, ready_count, *place;
    int64_t *weight;
} scheduler;

static void push(scheduler *s, uint32_t *list, uint32_t op)
{
    s->links[s->link_count] = (link){op, *list};
    *list = s->link_count++;
}

static void wait_for(scheduler *s, uint32_t op, uint32_t before)
{
    if (before == MF_NONE || before == op)
        return;
    push(s, &s->after[before], op);
    s->waits[op]++;
}

static void note_read(scheduler *s, uint32_t slot, uint32_t op)
{
    wait_for(s, op, s->writer[slot]);
    push(s, &s->readers[slot], op);
}

static void note_write(scheduler *s, uint32_t slot, uint32_t op)
{
    wait_for(s, op, s->writer[slot]);
    for (uint32_t l = s->readers[slot]; l != MF_NONE; l = s->links[l].next)
        wait_for(s, op, s->links[l].op);
    s->writer[slot] = op;
    s->readers[slot] = MF_NONE;
}

/* Is the cell, which the operation reads, also written by it (in place by force)? */
static bool writes_too(const mf_flow *f, uint32_t o, uint32_t c)
{
    return f->cells[c].maker == MF_NONE || f->cells[c].maker == o;
}

static memfit_status make_links(scheduler *s, memfit_error *err)
{
    const mf_flow *f = s->flow;
    uint32_t ops = f->graph->op_count, slots = f->cell_count + f->graph->variable_count;
    size_t accesses = f->read_at[ops] + f->write_at[ops] + f->var_at[ops];
    mf_arena *a = &s->arena;
    /* A reader waits once, is listed once, holds up one writer; and one link for an operation of a loop. */
    s->links = MF_NEW_ARRAY(a, link, 4 * accesses + ops + 1);
    s->after = MF_NEW_ARRAY(a, uint32_t, ops + 1);
    s->waits = MF_NEW_ARRAY(a, uint32_t, ops + 1);
    s->writer = MF_NEW_ARRAY(a, uint32_t, slots + 1);
    s->readers = MF_NEW_ARRAY(a, uint32_t, slots + 1);
    s->left = MF_NEW_ARRAY(a, uint32_t, f->cell_count + 1);
    s->ready = MF_NEW_ARRAY(a, uint32_t, ops + 1);
    s->place = MF_NEW_ARRAY(a, uint32_t, ops + 1);
    s->weight = MF_NEW_ARRAY(a, int64_t, ops + 1);
    if (!s->links || !s->after || !s->waits || !s->writer || !s->readers || !s->left || !s->ready || !s->place ||
        !s->weight)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to order %u operations", ops);
    memset(s->after, 0xff, ops * sizeof *s->after);
    memset(s->place, 0xff, ops * sizeof *s->place);
    memset(s->writer, 0xff, slots * sizeof *s->writer);
    memset(s->readers, 0xff, slots * sizeof *s->readers);
    uint32_t before = MF_NONE; /* in the loop over chunks */
    for (uint32_t i = 0; i < f->order_count; i++) {
        uint32_t o = f->order[i];
        if (f->graph->ops[o].chunked) {
            wait_for(s, o, before);
            before = o;
        }
        for (uint32_t k = f->read_at[o]; k < f->read_at[o + 1]; k++)
            (writes_too(f, o, f->reads[k]) ? note_write : note_read)(s, f->reads[k], o);
        for (uint32_t k = f->write_at[o]; k < f->write_at[o + 1]; k++)
            note_write(s, f->writes[k], o);
        for (uint32_t k = f->var_at[o]; k < f->var_at[o + 1]; k++) {
            uint32_t slot = f->cell_count + (f->vars[k] & ~MF_FLOW_WRITES);
            (f->vars[k] & MF_FLOW_WRITES ? note_write : note_read)(s, slot, o);
        }
    }
    for (uint32_t c = 0; c < f->cell_count; c++)
        s->left[c] = f->use_at[c + 1] - f->use_at[c];
    return MEMFIT_OK;
}

static int64_t weigh(const scheduler *s, uint32_t o)
{
    const mf_flow *f = s->flow;
    int64_t weight = 0;
    for (uint32_t k = f->read_at[o]; k < f->read_at[o + 1]; k++)
        if (s->left[f->reads[k]] == 1 && !f->cells[f->reads[k]].lasts)
            weight -= (int64_t)f->cells[f->reads[k]].bytes;
    for (uint32_t k = f->write_at[o]; k < f->write_at[o + 1]; k++)
        if (f->use_at[f->writes[k] + 1] - f->use_at[f->writes[k]] == s->left[f->writes[k]])
            weight += (int64_t)f->cells[f->writes[k]].bytes;
    return weight;
}

/* Which part of the step an operation belongs to; parts do not mix. */
static uint32_t part_of(const mf_flow *f, uint32_t o)
{
    return f->position[o] < f->input_count ? 0 : f->graph->ops[o].phase < MF_BACKWARD ? 1 : 2;
}

static bool sooner(const scheduler *s, uint32_t a, uint32_t b)
{
    uint32_t x = part_of(s->flow, a), y = part_of(s->flow, b);
    if (x != y)
        return x < y;
    if (s->weight[a] != s->weight[b])
        return s->weight[a] < s->weight[b];
    return s->flow->position[a] < s->flow->position[b];
}

static void put(scheduler *s, uint32_t at, uint32_t o)
{
    s->ready[at] = o;
    s->place[o] = at;
}

static void rise(scheduler *s, uint32_t o)
{
    uint32_t at = s->place[o];
    for (; at && sooner(s, o, s->ready[(at - 1) / 2]); at = (at - 1) / 2)
        put(s, at, s->ready[(at - 1) / 2]);
    put(s, at, o);
}

static void add_ready(scheduler *s, uint32_t o)
{
    s->weight[o] = part_of(s->flow, o) ? weigh(s, o) : 0;
    s->place[o] = s->ready_count++;
    rise(s, o);
}

static uint32_t take_next(scheduler *s)
{
    uint32_t next = s->ready[0], last = s->ready[--s->ready_count], at = 0;
    for (uint32_t child; (child = 2 * at + 1) < s->ready_count; at = child) {
        if (child + 1 < s->ready_count && sooner(s, s->ready[child + 1], s->ready[child]))
            child++;
        if (!sooner(s, s->ready[child], last))
            break;
        put(s, at, s->ready[child]);
    }
    put(s, at, last);
    s->place[next] = MF_NONE;
    return next;
}

/* One use of the cell is over. Whoever waits to touch it for the first or the last time now weighs less. */
static void use_cell(scheduler *s, uint32_t c)
{
    const mf_flow *f = s->flow;
    uint32_t uses = f->use_at[c + 1] - f->use_at[c];
    if (--s->left[c] != 1 && s->left[c] + 1 != uses)
        return;
    for (uint32_t k = f->use_at[c]; k < f->use_at[c + 1]; k++) {
        uint32_t o = f->order[f->uses[k]];
        if (s->place[o] == MF_NONE || !part_of(f, o))
            continue;
        s->weight[o] = weigh(s, o);
        rise(s, o);
    }
}

static void finish(scheduler *s, uint32_t o)
{
    const mf_flow *f = s->flow;
    for (uint32_t k = f->read_at[o]; k < f->read_at[o + 1]; k++)
        use_cell(s, f->reads[k]);
    for (uint32_t k = f->write_at[o]; k < f->write_at[o + 1]; k++)
        use_cell(s, f->writes[k]);
    for (uint32_t l = s->after[o]; l != MF_NONE; l = s->links[l].next)
        if (--s->waits[s->links[l].op] == 0)
            add_ready(s, s->links[l].op);
}

memfit_status mf_flow_order_greedy(const memfit_host *host, const mf_flow *flow, uint32_t *order, memfit_error *err)
{
    scheduler s = {.flow = flow};
    mf_arena_init(&s.arena, host);
    memfit_status status = make_links(&s, err);
    for (uint32_t i = 0; i < flow->order_count && status == MEMFIT_OK; i++)
        if (!s.waits[flow->order[i]])
            add_ready(&s, flow->order[i]);
    for (uint32_t made = 0; made < flow->order_count && status == MEMFIT_OK; made++) {
        if (!s.ready_count) {
            status = mf_fail(err, MEMFIT_INTERNAL, "operations wait for each other");
            break;
        }
        order[made] = take_next(&s);
        finish(&s, order[made]);
    }
    mf_arena_destroy(&s.arena);
    return status;
}

memfit_status mf_flow_order_holds(const memfit_host *host, const mf_flow *flow, const uint32_t *order, bool *holds,
                                  memfit_error *err)
{
    scheduler s = {.flow = flow};
    mf_arena_init(&s.arena, host);
    memfit_status status = make_links(&s, err);
    *holds = status == MEMFIT_OK;
    uint32_t part = 0;
    for (uint32_t i = 0; i < flow->order_count && *holds; i++) {
        uint32_t o = order[i];
        *holds =
            o < flow->graph->op_count && flow->position[o] != MF_NONE && s.waits[o] == 0 && part_of(flow, o) >= part;
        if (!*holds)
            break;
        part = part_of(flow, o);
        s.waits[o] = MF_NONE; /* once only */
        for (uint32_t l = s.after[o]; l != MF_NONE; l = s.links[l].next)
            s.waits[s.links[l].op]--;
    }
    mf_arena_destroy(&s.arena);
    return status;
}
