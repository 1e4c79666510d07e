/*
 * sequence.c: from a choice to the list of runs and the lives of all cells.
 *
 *     base order   A  B  C  loss  gC  gB  gA          drop B after C read it:
 *     runs         A  B  C  loss  gC  B' gB  gA       B' stands right before its next reader
 *
 * A run that finds an input missing first reruns the maker of that input, and before that whatever the maker misses,
 * back to cells that are there. A recomputed cell stays until the base order is done with it, so a stretch of dropped
 * cells is recomputed once, as a block, for its whole backward part. The exception: the choice may say that a cell goes
 * again after it was used as an ancestor; so do cells that were dead. A cell whose maker cannot run again is always
 * there: reading it later lengthens its life.
 *
 * A recomputed operation whose other outputs are still there writes the same bytes over them (same primitive, same
 * inputs), which costs no memory.
 *
 * Invariants after a build: every touch of a run names a life with birth <= run <= death; two lives of one cell never
 * overlap; lives that share a buffer follow each other, the death of one being the birth of the next.
 */
#include "plan/flow/flow.h"

#include "base/error.h"

#include <string.h>

memfit_status mf_sequence_init(mf_sequence *q, const memfit_host *host, const mf_flow *flow, memfit_error *err)
{
    *q = (mf_sequence){.host = host, .cell_count = flow->cell_count, .variable_count = flow->graph->variable_count};
    q->current = mf_host_zalloc(host, (q->cell_count + 1) * sizeof *q->current);
    q->used = mf_host_zalloc(host, (q->cell_count + 1) * sizeof *q->used);
    q->present = mf_host_zalloc(host, q->cell_count + 1);
    q->served = mf_host_zalloc(host, q->cell_count + 1);
    q->counted = mf_host_zalloc(host, (q->cell_count + 1) * sizeof *q->counted);
    q->updated = mf_host_zalloc(host, (q->variable_count + 1) * sizeof *q->updated);
    if (!q->current || !q->used || !q->present || !q->served || !q->counted || !q->updated) {
        mf_sequence_free(q);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a sequence of %u operations", flow->order_count);
    }
    return MEMFIT_OK;
}

void mf_sequence_free(mf_sequence *q)
{
    mf_host_free(q->host, q->current, (q->cell_count + 1) * sizeof *q->current);
    mf_host_free(q->host, q->used, (q->cell_count + 1) * sizeof *q->used);
    mf_host_free(q->host, q->present, q->cell_count + 1);
    mf_host_free(q->host, q->served, q->cell_count + 1);
    mf_host_free(q->host, q->counted, (q->cell_count + 1) * sizeof *q->counted);
    mf_host_free(q->host, q->updated, (q->variable_count + 1) * sizeof *q->updated);
    mf_host_free(q->host, q->runs, q->run_capacity * sizeof *q->runs);
    mf_host_free(q->host, q->lives, q->life_capacity * sizeof *q->lives);
    mf_host_free(q->host, q->touches, q->touch_capacity * sizeof *q->touches);
    mf_host_free(q->host, q->stack, q->stack_capacity * sizeof *q->stack);
    mf_host_free(q->host, q->temporary, q->temporary_capacity * sizeof *q->temporary);
    mf_host_free(q->host, q->load, q->load_capacity * sizeof *q->load);
    *q = (mf_sequence){0};
}

static memfit_status no_memory(memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a longer sequence");
}

/* mf_grow, seen through: nearly always there is room, and this is asked for millions of times in a search. */
#define HAS_ROOM(q, list, capacity, count)                                                                             \
    ((count) < (q)->capacity || mf_grow((q)->host, &(q)->list, &(q)->capacity, (count), sizeof *(q)->list))

/* Gives cell c a new life that begins with run r. */
static bool begin_life(mf_sequence *q, uint32_t c, uint32_t r)
{
    if (!HAS_ROOM(q, lives, life_capacity, q->life_count))
        return false;
    uint32_t life = q->life_count++;
    q->lives[life] = (mf_life){.cell = c, .birth = r, .death = r, .buffer = life};
    q->current[c] = life;
    q->present[c] = 1;
    return true;
}

static bool touch(mf_sequence *q, uint32_t c, uint32_t r)
{
    if (!HAS_ROOM(q, touches, touch_capacity, q->touch_count))
        return false;
    q->touches[q->touch_count++] = q->current[c];
    q->lives[q->current[c]].death = r;
    return true;
}

/* Cell c came back, or something was made from it again, at this base position. */
static bool note_service(mf_sequence *q, uint32_t c)
{
    if (!HAS_ROOM(q, temporary, temporary_capacity, q->temporary_count))
        return false;
    q->temporary[q->temporary_count++] = c;
    return true;
}

static memfit_status emit(mf_sequence *q, const mf_flow *flow, uint32_t o, uint32_t base, bool again, memfit_error *err)
{
    if (!HAS_ROOM(q, runs, run_capacity, q->run_count))
        return no_memory(err);
    uint32_t r = q->run_count++;
    q->runs[r] = (mf_run){.op = o, .base = base, .again = again, .touch = q->touch_count};
    for (uint32_t i = flow->read_at[o]; i < flow->read_at[o + 1]; i++) {
        uint32_t c = flow->reads[i];
        if (!q->present[c] && !begin_life(q, c, r)) /* only cells written in parts or from outside get here */
            return no_memory(err);
        if (!touch(q, c, r) || (again && !note_service(q, c)))
            return no_memory(err);
    }
    for (uint32_t i = flow->write_at[o]; i < flow->write_at[o + 1]; i++) {
        uint32_t c = flow->writes[i];
        if (!q->present[c]) {
            if (!begin_life(q, c, r))
                return no_memory(err);
            if (again && !note_service(q, c))
                return no_memory(err);
        }
        if (!touch(q, c, r))
            return no_memory(err);
    }
    for (uint32_t i = flow->var_at[o]; i < flow->var_at[o + 1]; i++) {
        uint32_t v = flow->vars[i] & ~MF_FLOW_WRITES;
        if (again && q->updated[v] > flow->position[o] + 1)
            q->valid = false;
        if (!again && flow->vars[i] & MF_FLOW_WRITES)
            q->updated[v] = base + 1;
    }
    *(flow->once[o] ? &q->once_us : &q->time_us) += flow->time_us[o];
    q->again_count += again;
    return MEMFIT_OK;
}

/* Brings cell c back before base position `base`: its maker and all that its maker misses, deepest first. */
static memfit_status bring_back(mf_sequence *q, const mf_flow *flow, uint32_t c, uint32_t base, memfit_error *err)
{
    size_t depth = 0;
    if (!HAS_ROOM(q, stack, stack_capacity, depth))
        return no_memory(err);
    q->stack[depth++] = c;
    while (depth) {
        uint32_t top = q->stack[depth - 1], maker = flow->cells[top].maker;
        if (q->present[top]) {
            depth--;
            continue;
        }
        MEMFIT_DCHECK(maker != MF_NONE && flow->cells[top].repeatable);
        uint32_t missing = MF_NONE;
        for (uint32_t i = flow->read_at[maker]; i < flow->read_at[maker + 1] && missing == MF_NONE; i++)
            if (!q->present[flow->reads[i]] && flow->cells[flow->reads[i]].repeatable)
                missing = flow->reads[i];
        if (missing == MF_NONE) {
            memfit_status status = emit(q, flow, maker, base, true, err);
            if (status != MEMFIT_OK)
                return status;
            depth--;
            continue;
        }
        if (!HAS_ROOM(q, stack, stack_capacity, depth))
            return no_memory(err);
        q->stack[depth++] = missing;
    }
    return MEMFIT_OK;
}

/* A base position is over for cell c: after its last use it is dead, and after some others it is dropped by choice. */
static void let_go(mf_sequence *q, const mf_flow *flow, const mf_choice *choice, uint32_t c)
{
    uint32_t use = flow->use_at[c] + q->used[c]++;
    q->served[c] = 0;
    if (flow->cells[c].repeatable && (use + 1 == flow->use_at[c + 1] || (choice && (choice->drop[use] & 1))))
        q->present[c] = 0;
}

/* Base position `base` is over: what served it, and was not used itself, goes if the choice says so or it was dead. */
static void end_service(mf_sequence *q, const mf_flow *flow, const mf_choice *choice, uint32_t base)
{
    for (uint32_t k = 0; k < q->temporary_count; k++) {
        uint32_t c = q->temporary[k], next = flow->use_at[c] + q->used[c];
        if (!flow->cells[c].repeatable || !q->present[c] || !q->used[c])
            continue;
        if (next == flow->use_at[c + 1])
            q->present[c] = 0;
        else if (choice && flow->uses[next - 1] != base) {
            if (q->counted[c] != base + 1 && q->served[c] < 7) /* several runs of one position are one service */
                q->served[c]++;
            q->counted[c] = base + 1;
            if (choice->drop[next - 1] >> q->served[c] & 1)
                q->present[c] = 0;
        }
    }
    q->temporary_count = 0;
}

/* In place where the row allows it and the input dies here; then the bytes live at each run. */
static memfit_status measure(mf_sequence *q, const mf_flow *flow, memfit_error *err)
{
    if (q->load_capacity < q->run_count + 1u) {
        size_t capacity = q->run_capacity + 1;
        uint64_t *load = mf_host_resize(q->host, q->load, q->load_capacity * sizeof *load, capacity * sizeof *load);
        if (!load)
            return no_memory(err);
        q->load = load;
        q->load_capacity = capacity;
    }
    memset(q->load, 0, (q->run_count + 1) * sizeof *q->load);
    for (uint32_t i = 0; i < q->life_count; i++) {
        mf_life *life = &q->lives[i];
        const mf_cell *cell = &flow->cells[life->cell];
        if (life->birth < flow->input_count) {
            life->birth = 0;
            if (life->death + 1 < flow->input_count)
                life->death = flow->input_count - 1;
        }
        if (cell->lasts && q->current[life->cell] == i)
            life->death = q->run_count - 1;
        q->load[life->birth] += cell->bytes;
        q->load[life->death + 1] -= cell->bytes;
    }
    for (uint32_t r = 0; r < q->run_count; r++) {
        uint32_t o = q->runs[r].op, a = flow->swap_in[o];
        if (a == MF_NONE || flow->cells[a].lasts)
            continue;
        uint32_t from = MF_NONE, to = MF_NONE, t = q->runs[r].touch;
        for (uint32_t i = flow->read_at[o]; i < flow->read_at[o + 1]; i++, t++)
            if (flow->reads[i] == a)
                from = q->touches[t];
        for (uint32_t i = flow->write_at[o]; i < flow->write_at[o + 1]; i++, t++)
            if (flow->writes[i] == flow->swap_out[o])
                to = q->touches[t];
        if (from == MF_NONE || to == MF_NONE || q->lives[from].death != r || q->lives[to].birth != r)
            continue;
        q->lives[to].buffer = q->lives[from].buffer;
        q->lives[from].handed_on = true;
        q->load[r] -= flow->cells[a].bytes;
        q->load[r + 1] += flow->cells[a].bytes;
    }
    uint64_t live = 0;
    for (uint32_t r = 0; r < q->run_count; r++) {
        live += q->load[r];
        q->load[r] = live + flow->workspace[q->runs[r].op];
        if (q->load[r] > q->peak) {
            q->peak = q->load[r];
            q->peak_at = r;
        }
    }
    return MEMFIT_OK;
}

memfit_status mf_sequence_build(mf_sequence *q, const mf_flow *flow, const mf_choice *choice, memfit_error *err)
{
    memset(q->present, 0, q->cell_count);
    memset(q->used, 0, q->cell_count * sizeof *q->used);
    memset(q->served, 0, q->cell_count);
    memset(q->counted, 0, q->cell_count * sizeof *q->counted);
    memset(q->updated, 0, q->variable_count * sizeof *q->updated);
    q->run_count = q->life_count = q->touch_count = q->again_count = q->temporary_count = 0;
    q->time_us = q->once_us = 0;
    q->peak = 0;
    q->peak_at = 0;
    q->valid = true;
    for (uint32_t i = 0; i < flow->order_count; i++) {
        uint32_t o = flow->order[i];
        memfit_status status = MEMFIT_OK;
        for (uint32_t k = flow->read_at[o]; k < flow->read_at[o + 1] && status == MEMFIT_OK; k++)
            if (!q->present[flow->reads[k]] && flow->cells[flow->reads[k]].repeatable)
                status = bring_back(q, flow, flow->reads[k], i, err);
        if (status == MEMFIT_OK)
            status = emit(q, flow, o, i, false, err);
        if (status != MEMFIT_OK)
            return status;
        for (uint32_t k = flow->read_at[o]; k < flow->read_at[o + 1]; k++)
            let_go(q, flow, choice, flow->reads[k]);
        for (uint32_t k = flow->write_at[o]; k < flow->write_at[o + 1]; k++)
            let_go(q, flow, choice, flow->writes[k]);
        end_service(q, flow, choice, i);
    }
    return measure(q, flow, err);
}
