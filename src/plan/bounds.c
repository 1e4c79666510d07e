/*
 * bounds.c: lower bounds for one flow.
 *
 *   working set   an operation's operands and workspace are there at the same time, whatever the order
 *   save set      cells written before the backward part begins and read after: without recomputation all of them
 *                 are there when it begins
 *   recompute     of the save set, what does not fit must be made again: items grouped by maker, since one run of a
 *                 maker brings all its outputs back
 */
#include "plan/bounds.h"

#include "base/error.h"

#include <stdlib.h>

/* The first base position of the backward part; order_count when there is none. */
static uint32_t backward_begin(const mf_flow *flow)
{
    for (uint32_t i = 0; i < flow->order_count; i++)
        if (flow->graph->ops[flow->order[i]].phase == MF_BACKWARD)
            return i;
    return flow->order_count;
}

/* Is cell c made before base position `at` and needed at it or after? */
static bool is_saved(const mf_flow *flow, uint32_t c, uint32_t at)
{
    uint32_t first = flow->use_at[c], end = flow->use_at[c + 1];
    return flow->cells[c].variable == MF_NONE && first < end && flow->uses[first] < at && flow->uses[end - 1] >= at;
}

void mf_bounds_make(const mf_flow *flow, mf_bounds *bounds)
{
    *bounds = (mf_bounds){.working_set_op = MF_NONE};
    for (uint32_t i = 0; i < flow->order_count; i++) {
        uint32_t o = flow->order[i];
        uint64_t bytes = flow->workspace[o];
        for (uint32_t k = flow->read_at[o]; k < flow->read_at[o + 1]; k++)
            bytes += flow->cells[flow->reads[k]].bytes;
        for (uint32_t k = flow->write_at[o]; k < flow->write_at[o + 1]; k++)
            bytes += flow->cells[flow->writes[k]].bytes;
        if (flow->swap_in[o] != MF_NONE)
            bytes -= flow->cells[flow->swap_in[o]].bytes;
        if (bytes > bounds->working_set_bytes) {
            bounds->working_set_bytes = bytes;
            bounds->working_set_op = o;
        }
        bounds->keep_us += flow->time_us[o];
    }
    uint32_t at = backward_begin(flow);
    for (uint32_t c = 0; c < flow->cell_count && at < flow->order_count; c++)
        if (is_saved(flow, c, at))
            bounds->save_set_bytes += flow->cells[c].bytes;
}

typedef struct item {
    uint64_t bytes;
    double us;
} item;

static int by_price(const void *a, const void *b)
{
    const item *x = a, *y = b;
    double p = x->us * (double)y->bytes, q = y->us * (double)x->bytes;
    return p < q ? -1 : p > q;
}

memfit_status mf_bounds_recompute(const memfit_host *host, const mf_flow *flow, uint64_t room, double *extra_us,
                                  memfit_error *err)
{
    uint32_t ops = flow->graph->op_count, at = backward_begin(flow);
    item *items = mf_host_zalloc(host, (ops + 1) * sizeof *items);
    if (!items)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the bound on recomputation");
    uint64_t saved = 0;
    for (uint32_t c = 0; c < flow->cell_count; c++)
        if (is_saved(flow, c, at)) {
            saved += flow->cells[c].bytes;
            if (flow->cells[c].repeatable) {
                items[flow->cells[c].maker].bytes += flow->cells[c].bytes;
                items[flow->cells[c].maker].us = flow->time_us[flow->cells[c].maker];
            }
        }
    uint32_t count = 0;
    for (uint32_t o = 0; o < ops; o++)
        if (items[o].bytes)
            items[count++] = items[o];
    qsort(items, count, sizeof *items, by_price);
    uint64_t missing = saved > room ? saved - room : 0;
    *extra_us = 0;
    for (uint32_t i = 0; i < count && missing; i++) {
        uint64_t take = items[i].bytes < missing ? items[i].bytes : missing;
        *extra_us += items[i].us * ((double)take / (double)items[i].bytes);
        missing -= take;
    }
    mf_host_free(host, items, (ops + 1) * sizeof *items);
    return MEMFIT_OK;
}
