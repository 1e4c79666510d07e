/* profile.c: see profile.h. The very first runs of each phase are not counted: clocks rise, caches fill. */
#include "train/profile.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

enum { NOT_COUNTED = 3, COUNTED = 8, MOST_SHOWN = 60 };

typedef struct seen_phase {
    double *us; /* by step */
    uint64_t runs;
} seen_phase;

struct mf_profile {
    mf_arena arena;
    mf_device *device;
    mf_stream stream;
    const mf_plan *plan;
    mf_event *marks;
    uint32_t mark_count;
    seen_phase *phases;
};

static memfit_status no_memory(memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the profile");
}

static memfit_status make_marks(mf_profile *p, uint32_t most, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    p->marks = MF_NEW_ARRAY(&p->arena, mf_event, most + 1);
    if (!p->marks)
        return no_memory(err);
    for (; p->mark_count <= most && status == MEMFIT_OK; p->mark_count += status == MEMFIT_OK)
        status = p->device->table->timer_create(p->device, &p->marks[p->mark_count], err);
    return status;
}

memfit_status mf_profile_create(const memfit_host *host, mf_device *device, mf_stream stream, const mf_plan *plan,
                                mf_profile **profile, memfit_error *err)
{
    const char *asked = getenv("MEMFIT_PROFILE");
    *profile = NULL;
    if (!asked || strcmp(asked, "1") != 0 || !device->table->timer_create)
        return MEMFIT_OK;
    mf_profile *p = mf_host_zalloc(host, sizeof *p);
    if (!p)
        return no_memory(err);
    mf_arena_init(&p->arena, host);
    p->device = device;
    p->stream = stream;
    p->plan = plan;
    p->phases = MF_NEW_ARRAY(&p->arena, seen_phase, plan->phase_count);
    memfit_status status = p->phases ? MEMFIT_OK : no_memory(err);
    uint32_t most = 0;
    for (uint32_t i = 0; i < plan->phase_count && status == MEMFIT_OK; i++) {
        most = plan->phases[i].step_count > most ? plan->phases[i].step_count : most;
        p->phases[i].us = MF_NEW_ARRAY(&p->arena, double, plan->phases[i].step_count + 1);
        status = p->phases[i].us ? MEMFIT_OK : no_memory(err);
    }
    if (status == MEMFIT_OK)
        status = make_marks(p, most, err);
    if (status != MEMFIT_OK)
        mf_profile_destroy(p, NULL);
    else
        *profile = p;
    return status;
}

bool mf_profile_wants(const mf_profile *p, uint32_t phase)
{
    return p && p->phases[phase].runs < NOT_COUNTED + COUNTED;
}

memfit_status mf_profile_mark(mf_profile *p, uint32_t step, memfit_error *err)
{
    return p->device->table->event_record(p->device, p->marks[step], p->stream, err);
}

memfit_status mf_profile_take(mf_profile *p, uint32_t phase, memfit_error *err)
{
    seen_phase *seen = &p->phases[phase];
    memfit_status status = p->device->table->stream_sync(p->device, p->stream, err);
    if (status != MEMFIT_OK || seen->runs++ < NOT_COUNTED)
        return status;
    for (uint32_t i = 0; i < p->plan->phases[phase].step_count && status == MEMFIT_OK; i++) {
        double us = 0;
        status = p->device->table->timer_between(p->device, p->marks[i], p->marks[i + 1], &us, err);
        seen->us[i] += us;
    }
    return status;
}

/* ---- told --------------------------------------------------------------------------------------------------- */

typedef struct kind_row {
    double us, bytes, flops;
    uint32_t steps;
} kind_row;

static const char *type_of(const mf_graph *g, const mf_op *op)
{
    uint32_t id = op->in_count && op->in[0] != MF_NONE ? op->in[0] : op->out_count ? op->out[0] : MF_NONE;
    return id == MF_NONE ? "" : mf_dtype_name(g->tensors[id].dtype);
}

static void print_shape(FILE *to, const mf_graph *g, uint32_t id)
{
    if (id == MF_NONE)
        return;
    const mf_tensor *t = &g->tensors[id];
    fprintf(to, " ");
    for (uint32_t i = 0; i < t->shape.rank; i++)
        fprintf(to, "%s%lld", i ? "x" : "", (long long)t->shape.dim[i]);
}

static void print_step(FILE *to, const mf_phase *phase, uint32_t i, double us)
{
    const mf_graph *g = phase->graph;
    const mf_step *step = &phase->steps[i];
    const mf_op *op = &g->ops[step->op];
    double flops, bytes;
    mf_op_cost(g, op, &flops, &bytes);
    fprintf(to, "%9.1f %8.1f %8.2f  %-18s %-9s %u %5u  %s%s |", us, bytes / us * 1e-3, flops / us * 1e-6,
            mf_kind_name(op->kind), type_of(g, op), step->method ? step->method->id[0] : 0, i,
            g->layers[op->layer].name, step->recomputed ? " again" : "");
    for (uint32_t k = 0; k < op->in_count && k < 3; k++)
        print_shape(to, g, op->in[k]);
    fprintf(to, " ->");
    for (uint32_t k = 0; k < op->out_count && k < 2; k++)
        print_shape(to, g, op->out[k]);
    fprintf(to, "\n");
}

static void print_longest(FILE *to, const mf_phase *phase, const seen_phase *seen, double runs)
{
    fprintf(to, "%9s %8s %8s  %-18s %-9s way step  layer, operands\n", "us", "GB/s", "TFLOP/s", "kind", "type");
    double below = 1e300;
    uint32_t after = 0; /* among equal times */
    for (uint32_t n = 0; n < MOST_SHOWN; n++) {
        uint32_t best = MF_NONE;
        for (uint32_t i = 0; i < phase->step_count; i++) {
            bool left = seen->us[i] < below || (seen->us[i] == below && i > after);
            if (left && (best == MF_NONE || seen->us[i] > seen->us[best]))
                best = i;
        }
        if (best == MF_NONE || seen->us[best] <= 0)
            return;
        below = seen->us[best];
        after = best;
        print_step(to, phase, best, seen->us[best] / runs);
    }
}

static void print_kinds(FILE *to, const mf_phase *phase, const seen_phase *seen, double runs, double total)
{
    kind_row rows[MF_OP_COUNT] = {{0}};
    for (uint32_t i = 0; i < phase->step_count; i++) {
        const mf_op *op = &phase->graph->ops[phase->steps[i].op];
        kind_row *r = &rows[op->kind];
        double flops, bytes;
        mf_op_cost(phase->graph, op, &flops, &bytes);
        r->us += seen->us[i];
        r->bytes += bytes;
        r->flops += flops;
        r->steps++;
    }
    fprintf(to, "%-22s %6s %10s %7s %8s %8s\n", "kind", "steps", "ms", "%", "GB/s", "TFLOP/s");
    for (;;) {
        uint32_t best = MF_NONE;
        for (uint32_t k = 0; k < MF_OP_COUNT; k++)
            if (rows[k].us > 0 && (best == MF_NONE || rows[k].us > rows[best].us))
                best = k;
        if (best == MF_NONE)
            return;
        kind_row *r = &rows[best];
        double us = r->us / runs;
        fprintf(to, "%-22s %6u %10.3f %7.1f %8.1f %8.2f\n", mf_kind_name((mf_op_kind)best), r->steps, us * 1e-3,
                100 * r->us / total, r->bytes / us * 1e-3, r->flops / us * 1e-6);
        r->us = 0;
    }
}

static const char *const role_names[] = {
    [MF_PHASE_TRAIN] = "training",        [MF_PHASE_TRAIN_REST] = "training, the rest",
    [MF_PHASE_LAST_BATCH] = "last batch", [MF_PHASE_LAST_REST] = "last batch, the rest",
    [MF_PHASE_VALIDATE] = "validation",   [MF_PHASE_VALIDATE_REST] = "validation, the rest",
    [MF_PHASE_PREDICT] = "prediction"};

static void print_phase(FILE *to, const mf_phase *phase, const seen_phase *seen)
{
    double total = 0, runs = seen->runs > NOT_COUNTED ? (double)(seen->runs - NOT_COUNTED) : 0;
    for (uint32_t i = 0; i < phase->step_count; i++)
        total += seen->us[i];
    if (runs == 0 || total <= 0)
        return;
    fprintf(to, "\nprofile: %s of %lld samples, %u operations, %.0f runs: %.3f ms on the device\n",
            role_names[phase->role], (long long)phase->batch, phase->step_count, runs, total / runs * 1e-3);
    print_kinds(to, phase, seen, runs, total);
    print_longest(to, phase, seen, runs);
}

void mf_profile_destroy(mf_profile *p, FILE *to)
{
    if (!p)
        return;
    for (uint32_t i = 0; to && i < p->plan->phase_count; i++)
        print_phase(to, &p->plan->phases[i], &p->phases[i]);
    for (uint32_t i = 0; i < p->mark_count; i++)
        p->device->table->event_destroy(p->device, p->marks[i], NULL);
    const memfit_host *host = p->arena.host;
    mf_arena_destroy(&p->arena);
    mf_host_free(host, p, sizeof *p);
}
