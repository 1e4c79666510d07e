/* together.c: see together.h. */
#include "train/together.h"

#include "base/error.h"

#include <string.h>

typedef struct making {
    const mf_phase *phase;
    const void *const *keys;
    uint32_t *held, held_count; /* steps that wait for the others of their part */
    uint64_t low, high;         /* the bytes that they touch lie between */
    uint32_t *steps, step_count, *ends, part_count;
} making;

/* What a step reads (its operands) and writes, its workspace last. */
static uint32_t range_count(const making *m, uint32_t step)
{
    const mf_op *op = &m->phase->graph->ops[m->phase->steps[step].op];
    return op->in_count + op->out_count + 1;
}

/* Range number i; false: it has none. */
static bool range_of(const making *m, uint32_t step, uint32_t i, uint64_t *from, uint64_t *to, bool *writes)
{
    const mf_graph *g = m->phase->graph;
    const mf_step *s = &m->phase->steps[step];
    const mf_op *op = &g->ops[s->op];
    uint32_t operands = op->in_count + op->out_count;
    *writes = i >= op->in_count;
    if (i == operands) {
        *from = s->workspace_offset;
        *to = *from + s->workspace_bytes;
        return s->workspace_bytes > 0;
    }
    if (s->offsets[i] == MF_NO_OFFSET)
        return false;
    const mf_tensor *t = &g->tensors[i < op->in_count ? op->in[i] : op->out[i - op->in_count]];
    *from = s->offsets[i];
    *to = *from + mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
    return *to > *from;
}

/* Do two steps touch bytes that one of them writes? */
static bool meets_range(const making *m, uint32_t step, uint64_t from, uint64_t to, bool writes)
{
    uint64_t a, b;
    bool w;
    for (uint32_t i = 0; i < range_count(m, step); i++)
        if (range_of(m, step, i, &a, &b, &w) && (w || writes) && a < to && from < b)
            return true;
    return false;
}

static bool meets_held(const making *m, uint32_t step)
{
    uint64_t from, to;
    bool writes;
    for (uint32_t i = 0; m->held_count && i < range_count(m, step); i++) {
        if (!range_of(m, step, i, &from, &to, &writes) || from >= m->high || to <= m->low)
            continue;
        for (uint32_t k = 0; k < m->held_count; k++)
            if (meets_range(m, m->held[k], from, to, writes))
                return true;
    }
    return false;
}

static void hold(making *m, uint32_t step)
{
    uint64_t from, to;
    bool writes;
    if (m->held_count == 0) {
        m->low = UINT64_MAX;
        m->high = 0;
    }
    for (uint32_t i = 0; i < range_count(m, step); i++)
        if (range_of(m, step, i, &from, &to, &writes)) {
            m->low = from < m->low ? from : m->low;
            m->high = to > m->high ? to : m->high;
        }
    m->held[m->held_count++] = step;
}

static void put_part(making *m, const uint32_t *steps, uint32_t count)
{
    memcpy(m->steps + m->step_count, steps, count * sizeof *steps);
    m->step_count += count;
    m->ends[m->part_count++] = m->step_count;
}

/* What waits becomes parts, one for each key. None of them touches what another writes, so any order will do. */
static void put_held(making *m)
{
    while (m->held_count) {
        const void *key = m->keys[m->held[0]];
        uint32_t left = 0;
        for (uint32_t i = 0; i < m->held_count; i++)
            if (m->keys[m->held[i]] == key)
                m->steps[m->step_count++] = m->held[i];
            else
                m->held[left++] = m->held[i];
        m->ends[m->part_count++] = m->step_count;
        m->held_count = left;
    }
}

static bool goes_back(const making *m, uint32_t step)
{
    return m->keys[step] && m->phase->graph->ops[m->phase->steps[step].op].kind == MF_OP_CAST;
}

/* In the plan's order: what may wait waits. */
static void go_on(making *m)
{
    for (uint32_t i = 0; i < m->phase->step_count; i++) {
        if (meets_held(m, i))
            put_held(m);
        if (m->keys[i] && !goes_back(m, i))
            hold(m, i);
        else
            put_part(m, &i, 1);
    }
    put_held(m);
}

static void turn_round(uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        uint32_t n = numbers[i];
        numbers[i] = numbers[count - 1 - i];
        numbers[count - 1 - i] = n;
    }
}

/* The same from the end: `from` has the parts so far. Steps within a part may stand in any order. */
static void go_back(making *m, const making *from)
{
    for (uint32_t p = from->part_count; p-- > 0;) {
        uint32_t first = p ? from->ends[p - 1] : 0, count = from->ends[p] - first;
        const uint32_t *steps = from->steps + first;
        bool met = false;
        for (uint32_t i = 0; i < count; i++)
            met |= meets_held(m, steps[i]);
        if (met)
            put_held(m);
        if (count == 1 && goes_back(m, steps[0]))
            hold(m, steps[0]);
        else
            put_part(m, steps, count);
    }
    put_held(m);
    uint32_t before = 0;
    for (uint32_t p = 0; p < m->part_count; p++) { /* ends become lengths, to be turned round with the parts */
        uint32_t end = m->ends[p];
        turn_round(m->steps + before, end - before);
        m->ends[p] = end - before;
        before = end;
    }
    turn_round(m->steps, m->step_count);
    turn_round(m->ends, m->part_count);
    for (uint32_t p = 1; p < m->part_count; p++)
        m->ends[p] += m->ends[p - 1];
}

memfit_status mf_together_make(mf_arena *arena, const mf_phase *phase, const void *const *keys, mf_together *together,
                               memfit_error *err)
{
    uint32_t n = phase->step_count + 1;
    making on = {.phase = phase,
                 .keys = keys,
                 .held = MF_NEW_ARRAY(arena, uint32_t, n),
                 .steps = MF_NEW_ARRAY(arena, uint32_t, n),
                 .ends = MF_NEW_ARRAY(arena, uint32_t, n)};
    making back = on;
    back.steps = MF_NEW_ARRAY(arena, uint32_t, n);
    back.ends = MF_NEW_ARRAY(arena, uint32_t, n);
    if (!on.held || !on.steps || !on.ends || !back.steps || !back.ends)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the order of %u steps", phase->step_count);
    go_on(&on);
    go_back(&back, &on);
    *together = (mf_together){back.steps, back.ends, back.part_count};
    return MEMFIT_OK;
}
