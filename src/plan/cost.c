/* cost.c: see cost.h. */
#include "plan/cost.h"

void mf_cost_set_one(mf_cost *cost, uint64_t workspace_bytes, double time_us)
{
    cost->supported = true;
    cost->reference = false;
    cost->method_count = 1;
    cost->methods[0] = (mf_method){.workspace_bytes = workspace_bytes, .time_us = time_us, .deterministic = true};
}

mf_cost mf_cost_one(uint64_t workspace_bytes, double time_us)
{
    mf_cost cost = {0};
    mf_cost_set_one(&cost, workspace_bytes, time_us);
    return cost;
}

static bool is_allowed(const mf_method *method, mf_method_rules rules)
{
    return (method->deterministic || rules.allow_nondeterministic) &&
           (method->numerics != MF_CHANGED || rules.allow_changed);
}

/* Is `a` better than `b`? What fits comes first, then time; among what does not fit, bytes. */
static bool is_better(const mf_method *a, const mf_method *b, uint64_t room)
{
    bool a_fits = a->workspace_bytes <= room, b_fits = b->workspace_bytes <= room;
    if (a_fits != b_fits)
        return a_fits;
    return a_fits ? a->time_us < b->time_us : a->workspace_bytes < b->workspace_bytes;
}

uint32_t mf_cost_choose(const mf_cost *cost, mf_method_rules rules, uint64_t room)
{
    uint32_t best = MF_NONE;
    for (uint32_t i = 0; i < cost->method_count; i++)
        if (is_allowed(&cost->methods[i], rules) &&
            (best == MF_NONE || is_better(&cost->methods[i], &cost->methods[best], room)))
            best = i;
    mf_method_rules any = {true, true};
    return best != MF_NONE || cost->method_count == 0 ? best : mf_cost_choose(cost, any, room);
}
