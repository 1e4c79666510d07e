/*
 * test_plan_optimal.c: the search for recomputations against the best there is.
 *
 * The oracle shares nothing with the planner but the flow (which operation touches which cell, times, sizes). It walks
 * all states (how much of the base order is done, which cells are there) in order of time (Dijkstra): a step runs the
 * next operation of the base order, or any forward operation again, at any moment, any number of times, with any cells
 * dropped before. So it also finds recomputations earlier than needed, or done twice. What it returns is the least time
 * of any execution that keeps the base order and never has more than the budget live. The planner must be within 1 %,
 * the bound on recomputation below it.
 *
 * MEMFIT_LONG_TESTS=1 takes many more graphs (minutes).
 */
#include "plan_graphs.h"

#include "plan/recompute/bounds.h"
#include "plan/recompute/recompute.h"

#include <math.h>
#include <stdlib.h>

/* ---- the oracle ------------------------------------------------------------------------------------------- */

typedef struct node {
    uint64_t mask; /* cells that are there, as bits of `bit` */
    uint32_t done; /* base positions */
    double time;
} node;

typedef struct oracle {
    const mf_flow *flow;
    uint32_t bit[64], cell_bits; /* bit -> cell */
    uint32_t *index;             /* cell -> bit */
    uint64_t *reads, *writes;    /* by operation */
    uint64_t *needed;            /* by base position: cells read at it or later */
    uint64_t *reachable;         /* by base position: cells that some operation could still read, first run or again */
    node *heap;
    size_t heap_count, heap_capacity;
    node *table; /* open addressing; time < 0: empty */
    size_t table_size, table_count;
    uint64_t budget;
} oracle;

static void heap_push(oracle *o, node n)
{
    if (o->heap_count == o->heap_capacity) {
        o->heap_capacity = o->heap_capacity ? o->heap_capacity * 2 : 4096;
        o->heap = realloc(o->heap, o->heap_capacity * sizeof *o->heap);
    }
    size_t i = o->heap_count++;
    for (; i && o->heap[(i - 1) / 2].time > n.time; i = (i - 1) / 2)
        o->heap[i] = o->heap[(i - 1) / 2];
    o->heap[i] = n;
}

static node heap_pop(oracle *o)
{
    node top = o->heap[0], last = o->heap[--o->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < o->heap_count; i = child) {
        if (child + 1 < o->heap_count && o->heap[child + 1].time < o->heap[child].time)
            child++;
        if (o->heap[child].time >= last.time)
            break;
        o->heap[i] = o->heap[child];
    }
    o->heap[i] = last;
    return top;
}

static node *table_find(oracle *o, uint64_t mask, uint32_t done)
{
    size_t at = (size_t)((mask * 0x9e3779b97f4a7c15ull) ^ ((uint64_t)done * 0xd6e8feb86659fd93ull)) % o->table_size;
    while (o->table[at].time >= 0 && (o->table[at].mask != mask || o->table[at].done != done))
        at = (at + 1) % o->table_size;
    return &o->table[at];
}

static void table_grow(oracle *o)
{
    node *old = o->table;
    size_t size = o->table_size;
    o->table_size = size ? size * 2 : 1 << 14;
    o->table = malloc(o->table_size * sizeof *o->table);
    for (size_t i = 0; i < o->table_size; i++)
        o->table[i].time = -1;
    for (size_t i = 0; i < size; i++)
        if (old[i].time >= 0)
            *table_find(o, old[i].mask, old[i].done) = old[i];
    free(old);
}

static void reach(oracle *o, node n)
{
    n.mask &= o->reachable[n.done];
    node *seen = table_find(o, n.mask, n.done);
    if (seen->time >= 0 && seen->time <= n.time)
        return;
    if (seen->time < 0 && ++o->table_count * 2 > o->table_size) {
        table_grow(o);
        seen = table_find(o, n.mask, n.done);
    }
    *seen = n;
    heap_push(o, n);
}

static uint64_t bytes_of(const oracle *o, uint64_t mask)
{
    uint64_t sum = 0;
    for (; mask; mask &= mask - 1)
        sum += o->flow->cells[o->bit[__builtin_ctzll(mask)]].bytes;
    return sum;
}

static bool may_repeat(const oracle *o, uint32_t op, uint32_t done)
{
    const mf_flow *f = o->flow;
    if (f->position[op] >= done || f->write_at[op] == f->write_at[op + 1])
        return false;
    for (uint32_t k = f->write_at[op]; k < f->write_at[op + 1]; k++)
        if (!f->cells[f->writes[k]].repeatable)
            return false;
    for (uint32_t k = f->var_at[op]; k < f->var_at[op + 1]; k++)
        for (uint32_t p = f->position[op] + 1; p < done; p++) /* has an update come in between? */
            for (uint32_t v = f->var_at[f->order[p]]; v < f->var_at[f->order[p] + 1]; v++)
                if ((f->vars[v] & MF_FLOW_WRITES) && (f->vars[v] & ~MF_FLOW_WRITES) == (f->vars[k] & ~MF_FLOW_WRITES))
                    return false;
    return true;
}

/* Runs the operation from this state, with its input's bytes taken over where that is possible, and without. */
static void run_op(oracle *o, const node *n, uint32_t op, bool again)
{
    const mf_flow *f = o->flow;
    if ((o->reads[op] & n->mask) != o->reads[op])
        return;
    node next = {n->mask | o->writes[op], n->done + !again, n->time + f->time_us[op]};
    uint64_t load = bytes_of(o, next.mask) + f->workspace[op];
    if (load <= o->budget)
        reach(o, next);
    uint32_t from = f->swap_in[op], to = f->swap_out[op];
    if (from == MF_NONE || (n->mask >> o->index[to] & 1))
        return;
    uint64_t gone = 1ull << o->index[from];
    if (load - f->cells[from].bytes <= o->budget && !(gone & o->writes[op])) {
        next.mask &= ~gone;
        reach(o, next);
    }
}

static void oracle_begin(oracle *o, const mf_flow *flow)
{
    uint32_t ops = flow->graph->op_count;
    *o = (oracle){.flow = flow};
    o->index = calloc(flow->cell_count + 1, sizeof *o->index);
    o->reads = calloc(ops + 1, sizeof *o->reads);
    o->writes = calloc(ops + 1, sizeof *o->writes);
    o->needed = calloc(flow->order_count + 1, sizeof *o->needed);
    o->reachable = calloc(flow->order_count + 1, sizeof *o->reachable);
    for (uint32_t c = 0; c < flow->cell_count; c++)
        if (flow->use_at[c] < flow->use_at[c + 1]) {
            assert_true(o->cell_bits < 64);
            o->index[c] = o->cell_bits;
            o->bit[o->cell_bits++] = c;
        }
    for (uint32_t i = 0; i < ops; i++) {
        for (uint32_t k = flow->read_at[i]; k < flow->read_at[i + 1]; k++)
            o->reads[i] |= 1ull << o->index[flow->reads[k]];
        for (uint32_t k = flow->write_at[i]; k < flow->write_at[i + 1]; k++)
            o->writes[i] |= 1ull << o->index[flow->writes[k]];
    }
    for (uint32_t p = flow->order_count; p-- > 0;)
        o->needed[p] = o->needed[p + 1] | o->reads[flow->order[p]];
    for (uint32_t p = 0; p <= flow->order_count; p++) {
        o->reachable[p] = o->needed[p];
        for (uint32_t i = 0; i < ops; i++)
            if (flow->position[i] != MF_NONE && flow->position[i] < p && may_repeat(o, i, p))
                o->reachable[p] |= o->reads[i];
    }
}

static void oracle_end(oracle *o)
{
    free(o->index);
    free(o->reads);
    free(o->writes);
    free(o->needed);
    free(o->reachable);
    free(o->heap);
    free(o->table);
}

/* The least time within the budget; INFINITY when there is none. */
static double oracle_solve(oracle *o, uint64_t budget)
{
    const mf_flow *f = o->flow;
    o->budget = budget;
    o->heap_count = o->table_count = 0;
    free(o->table);
    o->table = NULL;
    o->table_size = 0;
    table_grow(o);
    node start = {0};
    for (; start.done < f->input_count; start.done++) /* inputs are there before anything runs */
        start.mask |= o->writes[f->order[start.done]];
    if (bytes_of(o, start.mask) <= budget)
        reach(o, start);
    while (o->heap_count) {
        node n = heap_pop(o);
        if (table_find(o, n.mask, n.done)->time < n.time)
            continue;
        if (n.done == f->order_count)
            return n.time;
        run_op(o, &n, f->order[n.done], false);
        for (uint32_t p = f->input_count; p < n.done; p++)
            if ((o->writes[f->order[p]] & ~n.mask) && may_repeat(o, f->order[p], n.done))
                run_op(o, &n, f->order[p], true);
        for (uint64_t rest = n.mask; rest; rest &= rest - 1) { /* drop one; what is needed and cannot return stays */
            uint64_t one = rest & -rest;
            if ((one & o->needed[n.done]) && !f->cells[o->bit[__builtin_ctzll(one)]].repeatable)
                continue;
            reach(o, (node){n.mask & ~one, n.done, n.time});
        }
    }
    return INFINITY;
}

/* ---- the comparison --------------------------------------------------------------------------------------- */

typedef struct tally {
    uint32_t graphs, largest, compared, equal, infeasible, missed;
    double worst, worst_bound;
} tally;

static void compare(const recipe *r, tally *t)
{
    memfit_error err = {0};
    mf_graph *graph;
    mf_flow *flow;
    mf_tradeoff *tradeoff;
    oracle o;
    assert_ok(make_graph((void *)r, NULL, MF_MODE_TRAIN, 16, false, &graph, &err), err);
    assert_ok(mf_flow_create(NULL, graph, &odd, &flow, &err), err);
    uint32_t operations = flow->order_count - flow->input_count;
    if (operations > 25) {
        mf_flow_destroy(flow);
        mf_graph_destroy(graph);
        return;
    }
    assert_ok(mf_tradeoff_create(NULL, flow, MF_SEARCH_WORK, &tradeoff, &err), err);
    oracle_begin(&o, flow);
    t->graphs++;
    t->largest = operations > t->largest ? operations : t->largest;
    uint64_t high = tradeoff->stops[0].load;
    double once = 0, keep = 0;
    for (uint32_t p = 0; p < flow->order_count; p++)
        *(graph->ops[flow->order[p]].when == MF_ALWAYS ? &keep : &once) += flow->time_us[flow->order[p]];
    for (uint64_t part = 40; part <= 100; part += 5) {
        uint64_t budget = high * part / 100;
        double best = oracle_solve(&o, budget), extra;
        bool fits;
        assert_ok(mf_tradeoff_fit(tradeoff, budget, &fits, &err), err);
        assert_ok(mf_bounds_recompute(NULL, flow, budget, 20000, &extra, &err), err);
        if (best == INFINITY) {
            if (fits)
                fail_msg("seed %u, %u operations, %llu %%: the oracle has no plan, the search one", r->seed, operations,
                         (unsigned long long)part);
            t->infeasible++;
            continue;
        }
        t->compared++;
        if (keep + once + extra > best * 1.000001)
            fail_msg("seed %u, %u operations, %llu %%: the bound %g is above the best %g", r->seed, operations,
                     (unsigned long long)part, keep + once + extra, best);
        t->worst_bound = fmax(t->worst_bound, best / (keep + once + extra));
        if (!fits) {
            print_message("seed %u, depth %u, %u operations, %llu %%: no plan found, there is one at %.3f\n", r->seed,
                          r->depth, operations, (unsigned long long)part, best / keep);
            t->missed++;
            continue;
        }
        double ratio = (tradeoff->sequence.time_us + once) / best;
        if (ratio > 1.01)
            print_message("seed %u, depth %u, %u operations, %llu %%: %.4f of the best\n", r->seed, r->depth,
                          operations, (unsigned long long)part, ratio);
        if (ratio < 0.999999)
            fail_msg("seed %u: the search beats the oracle: %g", r->seed, ratio);
        t->equal += ratio <= 1.000001;
        t->worst = fmax(t->worst, ratio);
    }
    oracle_end(&o);
    mf_tradeoff_destroy(tradeoff);
    mf_flow_destroy(flow);
    mf_graph_destroy(graph);
}

static void test_search_against_the_best(void **state)
{
    (void)state;
    tally t = {.worst = 1, .worst_bound = 1};
    uint32_t seeds = getenv("MEMFIT_LONG_TESTS") ? 2000 : 60;
    for (uint32_t seed = 0; seed < seeds; seed++) {
        recipe r = {.seed = seed, .depth = 3 + seed % 9, .branches = seed % 3 != 0};
        compare(&r, &t);
    }
    print_message("%u graphs of up to %u operations, %u budgets with a plan (%u without): %u equal to the best, worst "
                  "%.4f, %u not found; the bound is at most %.3f below\n",
                  t.graphs, t.largest, t.compared, t.infeasible, t.equal, t.worst, t.missed, t.worst_bound);
    assert_int_equal(t.missed, 0);
    assert_true(t.worst <= 1.01);
    assert_true(t.compared > 100 && t.largest >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_search_against_the_best)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
