/*
 * kernel_room.c: the limit while kernels are made. Nobody knows beforehand how much the library takes for a kernel, so
 * this file asks for room by an estimate from above. When there is none, it names the limit that would do: what the
 * kernels so far took, plus what the others may take.
 */
#include "train/trainer.h"

#include "ops/cpu/cpu_fixed.h"
#include "ops/cpu/dnn/onednn.h"

/* What the kernels from `first` on will keep, by their kinds or as those before them did (`took` all together).
 * *making: the most that making one of them takes. */
static uint64_t rest_bytes(const mf_plan *plan, uint64_t first, uint64_t took, uint64_t *making)
{
    mf_cpu_seen seen = {{0}};
    uint64_t at = 0, bytes = 0, before = 0;
    *making = 0;
    for (uint32_t p = 0; p < plan->phase_count; p++)
        for (uint32_t i = 0; i < plan->phases[p].step_count; i++, at++) {
            const mf_graph *g = plan->phases[p].graph;
            const mf_op *op = &g->ops[plan->phases[p].steps[i].op];
            const uint64_t kept = mf_cpu_op_bytes(g, op, &seen), making_one = mf_cpu_making_bytes(g, op);
            before += at < first ? kept : 0;
            bytes += at < first ? 0 : kept;
            *making = at >= first && making_one > *making ? making_one : *making;
        }
    return took > before && before ? (uint64_t)((double)bytes * (double)took / (double)before) : bytes;
}

static uint64_t next_kernel_bytes(const mf_trainer *t)
{
    uint64_t at = t->kernels_made;
    for (uint32_t p = 0; p < t->plan->phase_count; at -= t->plan->phases[p++].step_count) {
        const mf_phase *phase = &t->plan->phases[p];
        if (at < phase->step_count)
            return mf_cpu_making_bytes(phase->graph, &phase->graph->ops[phase->steps[at].op]);
    }
    return 0;
}

/* What the process holds. If `spare` bytes more would be too much, drops the library's cache first. */
static uint64_t held_beside(mf_trainer *t, uint64_t spare)
{
    uint64_t held = t->footprint->sample(t->device);
    if (held + spare <= t->limit_asked)
        return held;
    mf_dnn_cache(false);
    t->footprint->trim();
    mf_dnn_cache(true);
    return t->footprint->sample(t->device);
}

bool mf_trainer_has_room(void *ctx, const mf_graph *graph, const mf_op *op)
{
    mf_trainer *t = ctx;
    const uint64_t spare = t->footprint->host ? mf_cpu_making_bytes(graph, op) + t->footprint->error() : 0;
    return !t->footprint->host || held_beside(t, spare) + spare <= t->limit_asked;
}

/* Kernels alone can take more than the limit, before the arena has a page. Called before each kernel is made; first
 * drops those that were tried and not taken, which the library's cache still holds. */
bool mf_trainer_is_full(void *ctx)
{
    mf_trainer *t = ctx;
    if (!t->footprint->host)
        return false;
    const uint64_t spare = next_kernel_bytes(t) + t->footprint->error();
    const uint64_t held = held_beside(t, spare);
    uint64_t making;
    t->kernels_made++;
    if (held + spare <= t->limit_asked) {
        t->kernels_peak = held + spare > t->kernels_peak ? held + spare : t->kernels_peak;
        return false;
    }
    const uint64_t took = held > t->kernels_base ? held - t->kernels_base : 0;
    t->kernels_need = held + rest_bytes(t->plan, t->kernels_made - 1, took, &making);
    const uint64_t all =
        t->kernels_base + t->footprint->fixed(t->plan); /* the first kernels may say little about the others */
    t->kernels_need = all > t->kernels_need ? all : t->kernels_need;
    t->beside_need = t->kernels_need > t->beside_need ? t->kernels_need : t->beside_need;
    making += t->footprint->error();
    uint64_t later = t->plan->arena_bytes; /* the arena, and what is made after the kernels */
    if (t->options->out || t->options->checkpoint)
        later += mf_cpu_writer_bytes(t->plan->phases[0].graph->variable_count);
    t->kernels_need += later > making ? later : making;
    return true;
}
