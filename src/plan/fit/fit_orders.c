/*
 * fit_orders.c: the orders a graph's operations are planned in.
 *
 *     own     as the graph has them
 *     other   greedy (flow_order.c), where that needs less with everything kept; for training steps mostly
 *             where weights are large beside activations: small batches, small images, VGG
 *
 * Both are kept: with recomputation the greedy order can need more (a weight gradient that is put off holds what it
 * reads), so a budget takes the better of the two at that budget. More memory still is never slower: the best of two
 * lists that both only get faster.
 *
 * Tried and dropped: the greedy order alone. The lowest plan then was up to four times as large (ConvNeXtBase, batch
 * 1).
 */
#include "plan/fit/fit_orders.h"

#include "base/error.h"
#include "plan/recompute/bounds.h"
#include "plan/flow/flow_order.h"

#include <string.h>

void mf_fit_order_free(const memfit_host *host, mf_fit_order *order)
{
    if (!order)
        return;
    mf_tradeoff_destroy(order->tradeoff);
    mf_sequence_free(&order->keep);
    mf_flow_destroy(order->flow);
    mf_host_free(host, order, sizeof *order);
}

/* The order `flow` has, or the same operations in another one (NULL: the first, from the graph). */
static memfit_status order_make(mf_fitter *fitter, const mf_fit_entry *entry, const uint32_t *other, mf_fit_order **out,
                                memfit_error *err)
{
    mf_fit_order *order = mf_host_zalloc(fitter->host, sizeof *order);
    if (!order)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan");
    memfit_status status = other ? mf_flow_reorder(fitter->host, entry->order->flow, other, &order->flow, err)
                                 : mf_flow_create(fitter->host, entry->graph, fitter->cost, &order->flow, err);
    if (status == MEMFIT_OK)
        status = mf_sequence_init(&order->keep, fitter->host, order->flow, err);
    if (status == MEMFIT_OK)
        status = mf_sequence_build(&order->keep, order->flow, NULL, err);
    if (status != MEMFIT_OK) {
        mf_fit_order_free(fitter->host, order);
        return status;
    }
    *out = order;
    return MEMFIT_OK;
}

/* Which graphs may take over each other's order and search. */
static uint32_t sort_of(const mf_fit_entry *entry)
{
    return (entry->accumulate ? 1 : 0) + (entry->chunks > 1 ? 2 : 0);
}

/* The order to try: that of another batch where it holds for this one, so that what was searched there serves here;
 * else a greedy one. */
static memfit_status propose_order(mf_fitter *fitter, const mf_fit_entry *entry, uint32_t *order, memfit_error *err)
{
    const mf_flow *flow = entry->order->flow;
    const uint32_t *known = fitter->reordered[sort_of(entry)];
    bool holds = false;
    if (known && entry->mode == MF_MODE_TRAIN && fitter->reordered_count[sort_of(entry)] == flow->order_count) {
        memfit_status status = mf_flow_order_holds(fitter->host, flow, known, &holds, err);
        if (status != MEMFIT_OK)
            return status;
    }
    if (!holds)
        return mf_flow_order_greedy(fitter->host, flow, order, err);
    memcpy(order, known, flow->order_count * sizeof *order);
    return MEMFIT_OK;
}

/* The graph's own order, or another one where its peak is lower by half a percent at least: else the order people know
 * stays. A training step keeps its own as well: with recomputation now this, now that one needs less. */
static memfit_status choose_order(mf_fitter *fitter, mf_fit_entry *entry, memfit_error *err)
{
    uint32_t count = entry->order->flow->order_count;
    size_t bytes = (count + 1) * sizeof(uint32_t);
    uint64_t natural = entry->order->keep.peak;
    mf_fit_order *other = NULL;
    uint32_t *order = mf_host_alloc(fitter->host, bytes);
    if (!order)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to order %u operations", count);
    memfit_status status = propose_order(fitter, entry, order, err);
    if (status == MEMFIT_OK)
        status = order_make(fitter, entry, order, &other, err);
    if (status == MEMFIT_OK && other->keep.peak + natural / 200 < natural) {
        entry->own = entry->order;
        entry->order = other;
        other = NULL;
        if (entry->mode == MF_MODE_TRAIN && !fitter->reordered[sort_of(entry)]) {
            fitter->reordered[sort_of(entry)] = order;
            fitter->reordered_count[sort_of(entry)] = count;
            order = NULL;
        }
    }
    mf_fit_order_free(fitter->host, other);
    mf_host_free(fitter->host, order, bytes);
    return status;
}

memfit_status mf_fit_orders_make(mf_fitter *fitter, mf_fit_entry *entry, memfit_error *err)
{
    memfit_status status = order_make(fitter, entry, NULL, &entry->order, err);
    return status == MEMFIT_OK ? choose_order(fitter, entry, err) : status;
}

/* ---- recomputation ---------------------------------------------------------------------------------------- */

/* Was recomputation searched for in this very order? */
static bool was_searched(const mf_fit_order *known, const mf_fit_order *order)
{
    return known && known->tradeoff && !known->tradeoff->searched &&
           known->flow->order_count == order->flow->order_count && known->flow->cell_count == order->flow->cell_count &&
           known->flow->use_at[known->flow->cell_count] == order->flow->use_at[order->flow->cell_count] &&
           memcmp(known->flow->order, order->flow->order, order->flow->order_count * sizeof(uint32_t)) == 0;
}

/* What was found at the nearest other batch; NULL: nothing that serves. In chunks what fills the memory is the last
 * layer at small batches and activations at large ones, so there a batch must be near (a transformer in 420 MiB: 87
 * samples in what was found for others, 99 in its own). Chunks are fewer at small batches: those are other orders. */
static const mf_tradeoff *find_searched(const mf_fitter *fitter, const mf_fit_entry *entry, const mf_fit_order *order)
{
    enum { NEAR = 4 }; /* by a quarter of it at most */
    const mf_tradeoff *searched = NULL;
    int64_t nearest = INT64_MAX;
    for (const mf_fit_entry *e = fitter->entries; e; e = e->next) {
        int64_t apart = e->batch > entry->batch ? e->batch - entry->batch : entry->batch - e->batch;
        bool near = entry->chunks < 2 || apart <= entry->batch / NEAR;
        if (e->mode != entry->mode || sort_of(e) != sort_of(entry) || !near || apart >= nearest)
            continue;
        const mf_fit_order *known = was_searched(e->order, order) ? e->order
                                    : was_searched(e->own, order) ? e->own
                                                                  : NULL;
        if (known) {
            searched = known->tradeoff;
            nearest = apart;
        }
    }
    return searched;
}

/* What recomputation can do in this order of the entry; a search only for the first batch of its kind. */
static memfit_status need_tradeoff(mf_fitter *fitter, const mf_fit_entry *entry, mf_fit_order *order, memfit_error *err)
{
    if (order->tradeoff)
        return MEMFIT_OK;
    const mf_tradeoff *searched = find_searched(fitter, entry, order);
    if (searched)
        return mf_tradeoff_derive(fitter->host, order->flow, searched, &order->tradeoff, err);
    return mf_tradeoff_create(fitter->host, order->flow, fitter->options.quick ? MF_SEARCH_QUICK : MF_SEARCH_WORK,
                              &order->tradeoff, err);
}

memfit_status mf_fit_orders_lowest(mf_fitter *fitter, mf_fit_entry *entry, bool own_only, uint64_t *load,
                                   memfit_error *err)
{
    mf_fit_order *const own = entry->own ? entry->own : entry->order;
    mf_fit_order *const orders[] = {own, own_only || own == entry->order ? NULL : entry->order};
    memfit_status status = MEMFIT_OK;
    *load = UINT64_MAX;
    for (int i = 0; i < 2 && orders[i] && status == MEMFIT_OK; i++) {
        uint64_t least;
        status = need_tradeoff(fitter, entry, orders[i], err);
        if (status == MEMFIT_OK)
            status = mf_tradeoff_lowest(orders[i]->tradeoff, &least, err);
        if (status == MEMFIT_OK && least < *load)
            *load = least;
    }
    return status;
}

static bool better(const mf_sequence *a, bool a_fits, const mf_sequence *b, bool b_fits)
{
    if (a_fits != b_fits)
        return a_fits;
    if (a_fits && a->time_us != b->time_us)
        return a->time_us < b->time_us;
    return a->peak < b->peak;
}

static uint64_t sequence_bytes(const mf_sequence *q)
{
    return q->run_capacity * sizeof *q->runs + q->life_capacity * sizeof *q->lives +
           q->touch_capacity * sizeof *q->touches + q->load_capacity * sizeof *q->load +
           q->cell_count * (sizeof *q->current + sizeof *q->used + 2);
}

static uint64_t order_bytes(const mf_fit_order *order)
{
    if (!order)
        return 0;
    const mf_tradeoff *t = order->tradeoff;
    uint64_t bytes = order->flow->arena.bytes + sequence_bytes(&order->keep);
    if (t)
        bytes += t->arena.bytes + sequence_bytes(&t->sequence) + t->stop_capacity * sizeof *t->stops;
    for (size_t i = 0; t && i < t->path_count; i++)
        bytes += t->paths[i].capacity * sizeof *t->paths[i].toggles;
    return bytes;
}

uint64_t mf_fit_orders_bytes(const mf_fit_entry *entry)
{
    return order_bytes(entry->order) + order_bytes(entry->own);
}

static bool derives(const mf_fit_order *order, const mf_fit_order *from)
{
    return order && from && order->tradeoff && from->tradeoff && order->tradeoff->searched == from->tradeoff;
}

bool mf_fit_orders_needed(const mf_fitter *fitter, const mf_fit_entry *entry)
{
    for (const mf_fit_entry *e = fitter->entries; e; e = e->next)
        if (derives(e->order, entry->order) || derives(e->order, entry->own) || derives(e->own, entry->order) ||
            derives(e->own, entry->own))
            return true;
    return false;
}

memfit_status mf_fit_orders_within(mf_fitter *fitter, mf_fit_entry *entry, const uint64_t budgets[2],
                                   mf_fit_order **best, bool *fits, memfit_error *err)
{
    mf_fit_order *const orders[] = {entry->order, entry->own};
    memfit_status status = MEMFIT_OK;
    *best = NULL;
    for (int i = 0; i < 2 && orders[i] && status == MEMFIT_OK; i++) {
        bool this_fits;
        status = need_tradeoff(fitter, entry, orders[i], err);
        if (status == MEMFIT_OK)
            status = mf_tradeoff_fit(orders[i]->tradeoff, budgets[i], &this_fits, err);
        if (status == MEMFIT_OK &&
            (!*best || better(&orders[i]->tradeoff->sequence, this_fits, &(*best)->tradeoff->sequence, *fits))) {
            *best = orders[i];
            *fits = this_fits;
        }
        if (status == MEMFIT_OK && *fits && fitter->options.quick)
            break; /* an answer is waited for: no second search */
    }
    return status;
}

memfit_status mf_fit_orders_bound(mf_fitter *fitter, const mf_fit_entry *entry, uint64_t room, uint64_t effort,
                                  double *extra_us, memfit_error *err)
{
    double own;
    memfit_status status = mf_bounds_recompute(fitter->host, entry->order->flow, room, effort, extra_us, err);
    if (status != MEMFIT_OK || !entry->own)
        return status;
    status = mf_bounds_recompute(fitter->host, entry->own->flow, room, effort, &own, err);
    if (status == MEMFIT_OK && own < *extra_us)
        *extra_us = own;
    return status;
}
