/*
 * bounds.c: lower bounds for one flow.
 *
 *   working set   an operation's operands and workspace are there at the same time, whatever the order
 *   save set      cells written before the backward part begins and read after: without recomputation all of them
 *                 are there when it begins
 *   recompute     while an operation runs for the first time its operands are there; of what was made before it and is
 *                 read after it, the part that finds no room beside them is absent, and each absent cell costs at least
 *                 one run of its maker later. The cheapest selection by time per byte (a fractional knapsack) is a
 *                 bound; the largest over all operations counts. Where that is largest, a minimum cut gives a better
 *                 one (bound_cut.c). Both hold for every plan that keeps the graph's order
 */
#include "plan/bounds.h"

#include "base/error.h"
#include "plan/bound_cut.h"

#include <math.h>
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
    uint32_t cell;
    double us_per_byte;
} item;

static int by_price(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->us_per_byte != y->us_per_byte)
        return x->us_per_byte < y->us_per_byte ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

/* Least time to make `bytes` of an operation's results again. An input that only this operation reads, and that is no
 * smaller, is dead by then: had it been kept in their place, it would have taken as much room, so where they count as
 * absent it is absent too, and its maker runs again as well. */
static double again_us(const mf_flow *flow, uint32_t maker, uint64_t bytes, int depth)
{
    double us = flow->time_us[maker];
    for (uint32_t k = flow->read_at[maker]; k < flow->read_at[maker + 1] && depth < 64; k++) {
        const mf_cell *cell = &flow->cells[flow->reads[k]];
        uint32_t uses = flow->use_at[flow->reads[k] + 1] - flow->use_at[flow->reads[k]];
        if (cell->repeatable && cell->bytes >= bytes && uses == 2 &&
            flow->uses[flow->use_at[flow->reads[k]]] == flow->position[cell->maker] &&
            flow->write_at[cell->maker + 1] - flow->write_at[cell->maker] == 1)
            us += again_us(flow, cell->maker, bytes, depth + 1);
    }
    return us;
}

/* Cells that can be made again, cheapest first. One run of a maker brings all its cells back, so each bears its share
 * of the time. */
static uint32_t list_items(const mf_flow *flow, item *items)
{
    uint32_t count = 0;
    for (uint32_t c = 0; c < flow->cell_count; c++) {
        const mf_cell *cell = &flow->cells[c];
        if (cell->variable != MF_NONE || !cell->repeatable || !cell->bytes || flow->use_at[c] == flow->use_at[c + 1])
            continue;
        uint64_t bytes = 0;
        for (uint32_t k = flow->write_at[cell->maker]; k < flow->write_at[cell->maker + 1]; k++)
            bytes += flow->cells[flow->writes[k]].bytes;
        bytes = bytes > cell->bytes ? bytes : cell->bytes;
        items[count++] = (item){c, again_us(flow, cell->maker, bytes, 0) / (double)bytes};
    }
    qsort(items, count, sizeof *items, by_price);
    return count;
}

static uint64_t operand_bytes(const mf_flow *flow, uint32_t o)
{
    uint64_t bytes = flow->workspace[o];
    for (uint32_t k = flow->read_at[o]; k < flow->read_at[o + 1]; k++)
        bytes += flow->cells[flow->reads[k]].bytes;
    for (uint32_t k = flow->write_at[o]; k < flow->write_at[o + 1]; k++)
        bytes += flow->cells[flow->writes[k]].bytes;
    return flow->swap_in[o] == MF_NONE ? bytes : bytes - flow->cells[flow->swap_in[o]].bytes;
}

/* Time to make again what must be absent while the operation at base position p runs for the first time. */
static double extra_at(const mf_flow *flow, const item *items, uint32_t count, uint32_t p, uint64_t across,
                       uint64_t room)
{
    uint32_t o = flow->order[p];
    uint64_t there = operand_bytes(flow, o);
    for (uint32_t side = 0; side < 2; side++) { /* operands that lie across were counted twice */
        const uint32_t *at = side ? flow->write_at : flow->read_at, *list = side ? flow->writes : flow->reads;
        for (uint32_t k = at[o]; k < at[o + 1]; k++)
            if (is_saved(flow, list[k], p))
                across -= flow->cells[list[k]].bytes;
    }
    uint64_t missing = there + across > room ? there + across - room : 0;
    double extra = 0;
    for (uint32_t i = 0; i < count && missing; i++) {
        uint32_t c = items[i].cell;
        if (!is_saved(flow, c, p) || mf_flow_touches(flow, o, c))
            continue;
        uint64_t bytes = flow->cells[c].bytes, take = bytes < missing ? bytes : missing;
        extra += items[i].us_per_byte * (double)take;
        missing -= take;
    }
    return extra;
}

enum { MOMENTS = 8 };

typedef struct moments {
    uint32_t at[MOMENTS];
    double extra_us[MOMENTS]; /* falling */
    uint32_t count;
} moments;

static void note_moment(moments *m, uint32_t at, double extra_us)
{
    uint32_t i = m->count < MOMENTS ? m->count++ : MOMENTS;
    for (; i > 0 && m->extra_us[i - 1] < extra_us; i--)
        if (i < MOMENTS) {
            m->at[i] = m->at[i - 1];
            m->extra_us[i] = m->extra_us[i - 1];
        }
    if (i < MOMENTS) {
        m->at[i] = at;
        m->extra_us[i] = extra_us;
    }
}

/* The moments that look fullest, by the knapsack. */
static memfit_status find_moments(const memfit_host *host, const mf_flow *flow, uint64_t room, moments *m,
                                  memfit_error *err)
{
    enum { MOST_LOOKS = 4000000 };
    size_t bytes = (flow->cell_count + 1) * sizeof(item), loads = (flow->order_count + 2) * sizeof(uint64_t);
    item *items = mf_host_alloc(host, bytes);
    uint64_t *across = mf_host_zalloc(host, loads);
    if (items && across) {
        uint32_t count = list_items(flow, items);
        for (uint32_t c = 0; c < flow->cell_count; c++) {
            uint32_t first = flow->use_at[c], end = flow->use_at[c + 1];
            if (flow->cells[c].variable != MF_NONE || first == end)
                continue;
            across[flow->uses[first] + 1] += flow->cells[c].bytes; /* at p: first use < p <= last use */
            across[flow->uses[end - 1] + 1] -= flow->cells[c].bytes;
        }
        uint64_t live = 0, step = 1 + (uint64_t)flow->order_count * count / MOST_LOOKS;
        for (uint32_t p = 0; p < flow->order_count; p++) {
            live += across[p];
            double extra = p % step == 0 ? extra_at(flow, items, count, p, live, room) : 0;
            if (extra > 0)
                note_moment(m, p, extra);
        }
    }
    memfit_status status =
        items && across ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the bound on recomputation");
    mf_host_free(host, items, bytes);
    mf_host_free(host, across, loads);
    return status;
}

memfit_status mf_bounds_recompute(const memfit_host *host, const mf_flow *flow, uint64_t room, uint64_t effort,
                                  double *extra_us, memfit_error *err)
{
    moments m = {.count = 0};
    memfit_status status = find_moments(host, flow, room, &m, err);
    uint32_t best = 0;
    double least = 0;
    for (uint32_t i = 0; i < m.count && status == MEMFIT_OK; i++) {
        double cut = 0;
        status = mf_bound_cut(host, flow, m.at[i], room, 1, &cut, err);
        cut = isinf(cut) || cut < m.extra_us[i] ? m.extra_us[i] : cut;
        best = cut > least ? i : best;
        least = cut > least ? cut : least;
    }
    uint64_t branches = effort / (flow->order_count + 1u);
    if (status == MEMFIT_OK && m.count && branches > 1) {
        double cut = 0;
        status = mf_bound_cut(host, flow, m.at[best], room, branches > 10000 ? 10000 : (uint32_t)branches, &cut, err);
        least = !isinf(cut) && cut > least ? cut : least;
    }
    if (status == MEMFIT_OK)
        *extra_us = least;
    return status;
}
