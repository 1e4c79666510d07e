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
 *   windows       a moment and the uses between it and a later moment force runs between the two. Windows that do not
 *                 overlap force different runs, so they add up: VGG16's first activation is needed for a weight
 *                 gradient, in the way of the data gradient, and needed again, so it is made three times
 */
#include "plan/recompute/bounds.h"

#include "base/error.h"
#include "plan/recompute/bound_cut.h"

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

static memfit_status no_memory(memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the bound on recomputation");
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
    uint32_t chain[MOMENTS]; /* rising: each asks for more than all moments after it */
    uint32_t chain_count;
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

/* From the end: each moment that asks for a good deal more than what was seen. The fullest of all is the first of the
 * chain. */
static void note_chain(moments *m, const double *extra_us, uint32_t count)
{
    uint32_t chain[MOMENTS];
    double most = 0, step = 1.25;
    if (!m->count)
        return;
    for (uint32_t p = count; p-- > m->at[0] + 1 && m->chain_count + 1 < MOMENTS;)
        if (extra_us[p] > most * step) {
            most = extra_us[p];
            chain[m->chain_count++] = p;
        }
    chain[m->chain_count++] = m->at[0];
    for (uint32_t i = 0; i < m->chain_count; i++)
        m->chain[i] = chain[m->chain_count - 1 - i];
}

/* The moments that look fullest, by the knapsack. */
static memfit_status find_moments(const memfit_host *host, const mf_flow *flow, uint64_t room, moments *m,
                                  memfit_error *err)
{
    enum { MOST_LOOKS = 4000000 };
    size_t bytes = (flow->cell_count + 1) * sizeof(item), loads = (flow->order_count + 2) * sizeof(uint64_t),
           extras = (flow->order_count + 1) * sizeof(double);
    item *items = mf_host_alloc(host, bytes);
    uint64_t *across = mf_host_zalloc(host, loads);
    double *extra = mf_host_zalloc(host, extras);
    if (items && across && extra) {
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
            extra[p] = p % step == 0 ? extra_at(flow, items, count, p, live, room) : 0;
            if (extra[p] > 0)
                note_moment(m, p, extra[p]);
        }
        note_chain(m, extra, flow->order_count);
    }
    memfit_status status = items && across && extra ? MEMFIT_OK : no_memory(err);
    mf_host_free(host, items, bytes);
    mf_host_free(host, across, loads);
    mf_host_free(host, extra, extras);
    return status;
}

/* ---- one moment, and several one after the other ----------------------------------------------------------- */

/* The moment of the largest bound, and that bound. */
static memfit_status best_moment(const memfit_host *host, const mf_flow *flow, const moments *m, uint64_t room,
                                 uint32_t *at, double *least, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    *at = MF_NONE;
    *least = 0;
    for (uint32_t i = 0; i < m->count && status == MEMFIT_OK; i++) {
        double cut = 0;
        status = mf_bound_cut(host, flow, (mf_stretch){m->at[i], MF_NONE}, room, 1, &cut, NULL, err);
        cut = isinf(cut) || cut < m->extra_us[i] ? m->extra_us[i] : cut;
        *at = cut > *least ? m->at[i] : *at;
        *least = cut > *least ? cut : *least;
    }
    return status;
}

/* Windows that do not overlap force runs that are not the same: their bounds add up. The best row of windows between
 * moments of the chain, from the last one back. */
static memfit_status join_windows(const memfit_host *host, const mf_flow *flow, const moments *m, uint64_t room,
                                  uint32_t branches, double *sum, memfit_error *err)
{
    double best[MOMENTS + 1] = {0};
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = m->chain_count; i-- > 0 && status == MEMFIT_OK;)
        for (uint32_t j = i + 1; j <= m->chain_count && status == MEMFIT_OK; j++) {
            double cut = 0;
            mf_stretch window = {m->chain[i], j < m->chain_count ? m->chain[j] : MF_NONE};
            status = mf_bound_cut(host, flow, window, room, branches, &cut, NULL, err);
            if (!isinf(cut) && cut + best[j] > best[i])
                best[i] = cut + best[j];
        }
    *sum = best[0];
    return status;
}

memfit_status mf_bounds_recompute(const memfit_host *host, const mf_flow *flow, uint64_t room, uint64_t effort,
                                  double *extra_us, memfit_error *err)
{
    enum { LEAST_BRANCHES = 8, MOST_BRANCHES = 10000 };
    moments m = {.count = 0};
    uint32_t at;
    double least, more = 0;
    memfit_status status = find_moments(host, flow, room, &m, err);
    if (status == MEMFIT_OK)
        status = best_moment(host, flow, &m, room, &at, &least, err);
    uint64_t branches = effort / (flow->order_count + 1u), pairs = (uint64_t)m.chain_count * (m.chain_count + 1) / 2;
    branches = branches > MOST_BRANCHES ? MOST_BRANCHES : branches;
    if (status == MEMFIT_OK && m.count && branches > 1) {
        status = mf_bound_cut(host, flow, (mf_stretch){at, MF_NONE}, room, (uint32_t)branches, &more, NULL, err);
        least = !isinf(more) && more > least ? more : least;
    }
    if (status == MEMFIT_OK && m.chain_count > 1 && branches / pairs >= LEAST_BRANCHES) {
        status = join_windows(host, flow, &m, room, (uint32_t)(branches / pairs), &more, err);
        least = more > least ? more : least;
    }
    if (status == MEMFIT_OK)
        *extra_us = least;
    return status;
}

memfit_status mf_bounds_keep(const memfit_host *host, const mf_flow *flow, uint64_t room, uint32_t branches,
                             uint8_t *kept, uint32_t *at, memfit_error *err)
{
    moments m = {.count = 0};
    double least;
    *at = MF_NONE;
    memfit_status status = find_moments(host, flow, room, &m, err);
    if (status == MEMFIT_OK)
        status = best_moment(host, flow, &m, room, at, &least, err);
    if (status == MEMFIT_OK && *at != MF_NONE)
        status = mf_bound_cut(host, flow, (mf_stretch){*at, MF_NONE}, room, branches, &least, kept, err);
    return status;
}
