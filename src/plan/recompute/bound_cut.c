/*
 * bound_cut.c: the least recomputation that one full moment forces, as a minimum cut.
 *
 * Stop the step while operation o runs. What was made before and is needed after lies there, or its maker runs again
 * later; a maker that runs again wants its own inputs, which lie there or are made again in turn, back to what cannot
 * be made twice. So, over all sets of cells K that lie there with bytes(K) <= R:
 *
 *     least time = min over K of the time of all makers that must run again
 *
 * With a price of L for every byte that lies there the choice is a minimum cut:
 *
 *     source --endless--> needed cell --L * bytes--> its maker --time--> sink        cut: kept, or made again
 *                                                      maker --endless--> each cell it reads
 *
 * and max over L of (cut(L) - L * R) is a bound on the least time (Lagrange); it is concave in L, and each cut gives a
 * line that lies above it, so L walks to where two lines meet until no cut is below them. A flow that is not quite
 * the largest is still a bound, so rounding does no harm.
 *
 * That bound lets parts of a cell lie there. Where few large cells matter, as in VGG16, it is far below the truth; so
 * cells on which the two cuts disagree are forced either way in turn (branch and bound), as far as the caller pays for.
 *
 * Many moments cannot be joined into one cut (a cell that lies there at two moments must lie there at the first or be
 * made between: three variables). A cut can look at a window, though: only what is needed up to a later moment must lie
 * there or be made again, and that happens before the later moment. Windows that do not overlap add up (bounds.c).
 *
 * The best selection of whole cells on the way is a good place to begin a search for a plan (recompute_seeds.c).
 */
#include "plan/recompute/bound_cut.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

typedef struct arc {
    uint32_t to, next; /* the arc back is the odd one beside it */
    double room;       /* what may still flow */
    double bytes;      /* > 0: its capacity is the price times this */
    double fixed;
} arc;

typedef struct network {
    mf_arena arena;
    arc *arcs;
    uint32_t arc_count, node_count;
    uint32_t *first, *level, *now, *queue;
    uint8_t *forced; /* by arc of a cell */
    uint8_t *best;   /* by arc: kept in the best selection of whole cells so far */
    double best_us;  /* its time; INFINITY: none yet */
    double whole_us;
} network;

enum { SOURCE, SINK, CELLS };
enum { FREE, KEPT, GONE }; /* forced to lie there, or to be made again when it is wanted */

static memfit_status no_memory(memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the bound on recomputation");
}

static void join(network *n, uint32_t from, uint32_t to, double fixed, double bytes)
{
    n->arcs[n->arc_count] = (arc){.to = to, .next = n->first[from], .fixed = fixed, .bytes = bytes};
    n->first[from] = n->arc_count++;
    n->arcs[n->arc_count] = (arc){.to = from, .next = n->first[to]};
    n->first[to] = n->arc_count++;
}

static void set_price(network *n, double price)
{
    for (uint32_t i = 0; i < n->arc_count; i++)
        n->arcs[i].room = n->forced[i] == KEPT   ? 0
                          : n->forced[i] == GONE ? INFINITY
                                                 : n->arcs[i].fixed + n->arcs[i].bytes * price;
}

/* ---- the largest flow: shortest ways first (Dinic) -------------------------------------------------------- */

static bool find_levels(network *n, double least)
{
    memset(n->level, 0, n->node_count * sizeof *n->level);
    uint32_t head = 0, tail = 0;
    n->level[SOURCE] = 1;
    n->queue[tail++] = SOURCE;
    while (head < tail) {
        uint32_t v = n->queue[head++];
        for (uint32_t a = n->first[v]; a != MF_NONE; a = n->arcs[a].next)
            if (n->arcs[a].room > least && !n->level[n->arcs[a].to]) {
                n->level[n->arcs[a].to] = n->level[v] + 1;
                n->queue[tail++] = n->arcs[a].to;
            }
    }
    return n->level[SINK] != 0;
}

/* One way from source to sink along the levels; `queue` holds its arcs. Returns what was sent. */
static double send_once(network *n, double least)
{
    uint32_t depth = 0, v = SOURCE;
    for (;;) {
        if (v == SINK) {
            double sent = INFINITY;
            for (uint32_t i = 0; i < depth; i++)
                sent = n->arcs[n->queue[i]].room < sent ? n->arcs[n->queue[i]].room : sent;
            for (uint32_t i = 0; i < depth; i++) {
                n->arcs[n->queue[i]].room -= sent;
                n->arcs[n->queue[i] ^ 1].room += sent;
            }
            return sent;
        }
        uint32_t a = n->now[v];
        while (a != MF_NONE && !(n->arcs[a].room > least && n->level[n->arcs[a].to] == n->level[v] + 1))
            a = n->arcs[a].next;
        n->now[v] = a;
        if (a != MF_NONE) {
            n->queue[depth++] = a;
            v = n->arcs[a].to;
        } else if (depth) {
            n->level[v] = 0; /* a dead end */
            v = n->arcs[n->queue[--depth] ^ 1].to;
        } else {
            return 0;
        }
    }
}

static double largest_flow(network *n, double least)
{
    double flow = 0;
    while (find_levels(n, least)) {
        memcpy(n->now, n->first, n->node_count * sizeof *n->now);
        for (double sent; (sent = send_once(n, least)) > 0;)
            flow += sent;
    }
    return flow;
}

/* ---- the moment ------------------------------------------------------------------------------------------- */

/* Is cell c used in the window, after its first operation? */
static bool is_used_within(const mf_flow *flow, uint32_t c, mf_stretch window)
{
    for (uint32_t k = flow->use_at[c]; k < flow->use_at[c + 1] && flow->uses[k] <= window.until; k++)
        if (flow->uses[k] > window.at)
            return true;
    return flow->cells[c].lasts && window.until == MF_NONE;
}

static memfit_status make_network(const memfit_host *host, const mf_flow *flow, mf_stretch window, network *n,
                                  memfit_error *err)
{
    uint32_t at = window.at, o = flow->order[at], ops = flow->graph->op_count;
    size_t arcs = 2 * ((size_t)flow->read_at[ops] + ops + 3 * (size_t)flow->cell_count);
    *n = (network){.node_count = CELLS + flow->cell_count + ops};
    mf_arena_init(&n->arena, host);
    n->arcs = MF_NEW_ARRAY(&n->arena, arc, arcs + 1);
    n->first = MF_NEW_ARRAY(&n->arena, uint32_t, n->node_count);
    n->level = MF_NEW_ARRAY(&n->arena, uint32_t, n->node_count);
    n->now = MF_NEW_ARRAY(&n->arena, uint32_t, n->node_count);
    n->queue = MF_NEW_ARRAY(&n->arena, uint32_t, n->node_count);
    n->forced = MF_NEW_ARRAY(&n->arena, uint8_t, arcs + 1);
    n->best = MF_NEW_ARRAY(&n->arena, uint8_t, arcs + 1);
    n->best_us = INFINITY;
    if (!n->arcs || !n->first || !n->level || !n->now || !n->queue || !n->forced || !n->best)
        return no_memory(err);
    for (uint32_t i = 0; i < flow->order_count; i++)
        n->whole_us += flow->time_us[flow->order[i]];
    for (uint32_t i = 0; i < n->node_count; i++)
        n->first[i] = MF_NONE;
    for (uint32_t p = 0; p < at; p++) { /* makers that could run again */
        uint32_t maker = flow->order[p], node = CELLS + flow->cell_count + maker;
        bool again = flow->write_at[maker] < flow->write_at[maker + 1] &&
                     flow->cells[flow->writes[flow->write_at[maker]]].repeatable;
        if (!again)
            continue;
        join(n, node, SINK, flow->time_us[maker], 0);
        for (uint32_t k = flow->read_at[maker]; k < flow->read_at[maker + 1]; k++)
            if (!mf_flow_touches(flow, o, flow->reads[k])) /* what o touches is there and costs nothing more */
                join(n, node, CELLS + flow->reads[k], INFINITY, 0);
    }
    for (uint32_t c = 0; c < flow->cell_count; c++) {
        uint32_t first = flow->use_at[c], end = flow->use_at[c + 1];
        const mf_cell *cell = &flow->cells[c];
        if (cell->variable != MF_NONE || first == end || flow->uses[first] >= at || mf_flow_touches(flow, o, c))
            continue;
        if (is_used_within(flow, c, window))
            join(n, SOURCE, CELLS + c, INFINITY, 0);
        join(n, CELLS + c, cell->repeatable ? CELLS + flow->cell_count + cell->maker : SINK, 0, (double)cell->bytes);
    }
    return MEMFIT_OK;
}

typedef struct line {
    double time_us, bytes; /* of a cut: what is made again, what lies there */
    double flow;
    uint8_t *kept; /* by arc: a cell that lies there */
} line;

/* The cut for a price. After the last search of levels those that were reached are on the source's side. */
static void cut_at(network *n, double price, line *cut)
{
    set_price(n, price);
    cut->time_us = cut->bytes = 0;
    cut->flow = largest_flow(n, 1e-9);
    memset(cut->kept, 0, n->arc_count);
    for (uint32_t v = 0; v < n->node_count; v++)
        for (uint32_t a = n->level[v] ? n->first[v] : MF_NONE; a != MF_NONE; a = n->arcs[a].next)
            if (!(a & 1) && !n->level[n->arcs[a].to] && !n->forced[a]) {
                cut->time_us += n->arcs[a].fixed;
                cut->bytes += n->arcs[a].bytes;
                cut->kept[a] = n->arcs[a].bytes > 0;
            }
}

/* A cut that leaves whole cells within the room is a selection: is it the best? */
static void note_selection(network *n, const line *cut, double room)
{
    if (cut->bytes > room || cut->time_us >= n->best_us)
        return;
    n->best_us = cut->time_us;
    for (uint32_t a = 0; a < n->arc_count; a++)
        n->best[a] = cut->kept[a] || n->forced[a] == KEPT;
}

static void swap_lines(line *a, line *b)
{
    line t = *a;
    *a = *b;
    *b = t;
}

/* The bound for the cells forced so far, and the arc of the largest cell that the cuts on its two sides disagree on;
 * MF_NONE when the bound is exact. */
static double walk_price(network *n, double room, line lines[3], uint32_t *arc_of)
{
    enum { MOST_ROUNDS = 24 };
    line *low = &lines[0], *high = &lines[1], *cut = &lines[2];
    *arc_of = MF_NONE;
    for (uint32_t a = 0; a < n->arc_count; a++)
        room -= n->forced[a] == KEPT ? n->arcs[a].bytes : 0;
    cut_at(n, 0, low);
    note_selection(n, low, room);
    if (low->bytes <= room)
        return low->time_us; /* what was forced to go comes back, whatever the price */
    cut_at(n, n->whole_us + 1, high);
    if (high->bytes > room)
        return INFINITY;
    note_selection(n, high, room);
    double best = 0;
    for (int round = 0; round < MOST_ROUNDS && low->bytes > high->bytes; round++) {
        double price = (high->time_us - low->time_us) / (low->bytes - high->bytes);
        double meet = low->time_us + price * (low->bytes - room);
        cut_at(n, price, cut);
        note_selection(n, cut, room);
        double bound = cut->flow - price * room;
        best = bound > best ? bound : best;
        if (bound >= meet * (1 - 1e-6) || cut->bytes == low->bytes || cut->bytes == high->bytes)
            break;
        swap_lines(cut, cut->bytes > room ? low : high);
    }
    if (high->time_us <= best * (1 + 1e-6))
        return best;
    for (uint32_t a = 0; a < n->arc_count; a += 2)
        if (low->kept[a] != high->kept[a] && n->arcs[a].to != SINK &&
            (*arc_of == MF_NONE || n->arcs[a].bytes > n->arcs[*arc_of].bytes))
            *arc_of = a;
    return best;
}

/* ---- whole cells ------------------------------------------------------------------------------------------ */

typedef struct branch {
    double bound_us;
    uint32_t parent, forced_arc; /* what sets it apart from its parent */
    uint32_t next_arc;           /* what to force next; MF_NONE: nothing */
    uint8_t force;
    bool done;
} branch;

static double look_at(network *n, double room, line lines[3], branch *all, uint32_t b)
{
    memset(n->forced, 0, n->arc_count);
    for (uint32_t i = b; i; i = all[i].parent)
        n->forced[all[i].forced_arc] = all[i].force;
    double bound = walk_price(n, room, lines, &all[b].next_arc);
    return all[b].bound_us = b && bound < all[all[b].parent].bound_us ? all[all[b].parent].bound_us : bound;
}

/* Best first; the lowest bound of what is open holds for all. */
static double branch_out(network *n, double room, uint32_t branches, line lines[3], branch *all)
{
    uint32_t count = 1;
    all[0] = (branch){.parent = MF_NONE};
    look_at(n, room, lines, all, 0);
    for (;;) {
        uint32_t best = MF_NONE;
        for (uint32_t i = 0; i < count; i++)
            if (!all[i].done && (best == MF_NONE || all[i].bound_us < all[best].bound_us))
                best = i;
        if (all[best].next_arc == MF_NONE || count + 2 > branches)
            return all[best].bound_us;
        all[best].done = true;
        for (uint8_t force = KEPT; force <= GONE; force++) {
            all[count] = (branch){.parent = best, .forced_arc = all[best].next_arc, .force = force};
            look_at(n, room, lines, all, count++);
        }
    }
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

memfit_status mf_bound_cut(const memfit_host *host, const mf_flow *flow, mf_stretch window, uint64_t room,
                           uint32_t branches, double *extra_us, uint8_t *kept, memfit_error *err)
{
    network n;
    uint64_t there = operand_bytes(flow, flow->order[window.at]);
    line lines[3] = {{0}};
    branches = branches < 1 ? 1 : branches;
    memfit_status status = make_network(host, flow, window, &n, err);
    branch *all = status == MEMFIT_OK ? MF_NEW_ARRAY(&n.arena, branch, branches) : NULL;
    for (int i = 0; i < 3 && all; i++)
        lines[i].kept = MF_NEW_ARRAY(&n.arena, uint8_t, n.arc_count + 1);
    if (status == MEMFIT_OK && (!all || !lines[0].kept || !lines[1].kept || !lines[2].kept))
        status = no_memory(err);
    if (status == MEMFIT_OK)
        *extra_us = there > room ? INFINITY : branch_out(&n, (double)(room - there), branches, lines, all);
    for (uint32_t a = 0; status == MEMFIT_OK && kept && a < n.arc_count; a += 2)
        if (n.best[a])
            kept[n.arcs[a ^ 1].to - CELLS] = 1;
    mf_arena_destroy(&n.arena);
    return status;
}
