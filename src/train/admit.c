/* admit.c: admission: makes a plan (plan_for.c), its arena and its kernels, and measures what they really take. */
#include "train/trainer.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "ops/cpu/cpu_fixed.h"
#include "ops/cpu/dnn/onednn.h"
#include "train/results.h"

#include <stdio.h>
#include <string.h>

enum {
    /* Pages of libraries or of a stack that are touched for the first time after measuring. Seen: one to three. */
    SPARE_FIXED_BYTES = 28 << 10,
    /* The same run measures some pages more or less each time; with this spare, what we report suffices next time. */
    SAID_SPARE_BYTES = 16 << 10,
    WARM_UP_BYTES = 64 << 10,    /* running every operation once takes less (seen: up to 24 KiB) */
    SLOT_SPARE_BYTES = 32 << 20, /* left free when a slot is taken, for the records that follow */
    STACK_BYTES = 48 << 10,      /* touched before measuring; deeper than any call of a step */
};

/* The part of this plan's fixed cost that another plan may do without: kernels of a smaller last piece, the slot. */
static uint64_t rest_of(const mf_trainer *t)
{
    int64_t piece = (t->plan->batch + t->plan->pieces - 1) / t->plan->pieces;
    return (t->plan->batch % piece ? t->rest_bytes : 0) + t->slot_bytes;
}

/* Takes down what was built for the plan in force, and returns the plan. */
static mf_plan *lay_aside(mf_trainer *t)
{
    mf_plan *plan = t->plan;
    if (plan && t->fixed_bytes > rest_of(t))
        t->fixed_bytes -= rest_of(t); /* the fixed cost of the next plan */
    t->slot_bytes = 0;
    if (t->device)
        mf_results_destroy(t);
    mf_executor_destroy(t->executor);
    t->executor = NULL;
    mf_unreserve(&t->arena);
    t->plan = NULL;
    return plan;
}

void mf_trainer_withdraw(mf_trainer *t)
{
    mf_plan_destroy(lay_aside(t));
}

memfit_status mf_trainer_prepare(mf_trainer *t, uint64_t limit, memfit_error *err)
{
    mf_plan_destroy(t->next_plan);
    t->next_plan = NULL;
    return mf_trainer_plan(t, limit, t->fixed_bytes - rest_of(t), &t->next_plan, err);
}

/* Takes the plan made ahead, if there is one that fits this limit; else makes a new one. */
static memfit_status take_plan(mf_trainer *t, uint64_t limit, uint64_t fixed, memfit_error *err)
{
    mf_plan *ahead = t->next_plan;
    t->next_plan = NULL;
    if (ahead && fixed + ahead->arena_bytes <= limit) {
        t->plan = ahead;
        return MEMFIT_OK;
    }
    mf_plan_destroy(ahead);
    return mf_trainer_plan(t, limit, fixed, &t->plan, err);
}

static memfit_status fill_zero(void *ctx, uint32_t feed, void *address, memfit_error *err)
{
    (void)err;
    const mf_graph *g = ctx;
    const mf_tensor *tensor = &g->tensors[g->feeds[feed].tensor];
    memset(address, 0, mf_shape_count(&tensor->shape) * mf_dtype_bytes(tensor->dtype));
    return MEMFIT_OK;
}

/* Starts the team that fills batches. Without oneDNN no operation starts it, and the first step would take memory. */
static void start_threads(void)
{
    volatile int started = 0;
#pragma omp parallel
    {
#pragma omp atomic
        started++;
    }
}

/* Runs every operation of every phase once, on zeros: thread pools, generated code and lazily bound symbols then have
 * their memory. */
static memfit_status warm_up(mf_trainer *t, memfit_error *err)
{
    start_threads();
    mf_run_scalars s = {.batch_samples = 1, .weight_sum = 1, .loss_scale = 1};
    memfit_status status = mf_executor_write_scalars(t->executor, &s, err);
    for (uint32_t p = 0; p < t->plan->phase_count && status == MEMFIT_OK; p++)
        status = mf_executor_warm_up(t->executor, p, fill_zero, t->plan->phases[p].graph, err);
    return status;
}

/* What the process holds beside the arena. */
static uint64_t beside_arena(mf_trainer *t)
{
    uint64_t now = mf_trainer_sample(t), arena = mf_reserve_resident(&t->arena);
    if (!t->footprint->host && arena > t->arena.bytes)
        arena = t->arena.bytes; /* the part of a card's last 2 MiB page that the arena does not fill counts as fixed */
    return now > arena ? now - arena : 0;
}

void mf_trainer_note_start(mf_trainer *t)
{
    uint64_t now = beside_arena(t);
    if (now > t->start_peak && !t->limit_bytes)
        t->start_peak = now;
}

/* The same after freed memory went back to the system. Notes first what starting took. */
static uint64_t measure_fixed(mf_trainer *t)
{
    mf_trainer_note_start(t);
    t->footprint->trim();
    return beside_arena(t);
}

/* Estimates two things before planning. A smaller last piece needs a graph and kernels of its own (rest_bytes); without
 * this estimate a plan with such a piece that does not fit led to even smaller pieces, past those that divide the batch
 * and would have fitted. And the library takes megabytes merely to answer about a very wide window (asking_bytes):
 * where there is no room for that, we do not ask it. */
static memfit_status estimate_before(mf_trainer *t, uint64_t limit, memfit_error *err)
{
    enum { LITTLE_BYTES = 704 << 10 };
    if (!t->footprint->host)
        return MEMFIT_OK;
    mf_trainer_planning_room(t, limit);
    mf_graph *g;
    memfit_status status =
        t->graph_source.make(t->graph_source.ctx, &t->planning.host, t->mode, t->batch, true, &g, err);
    if (status != MEMFIT_OK)
        return status;
    if (t->mode == MF_MODE_TRAIN && t->batch >= 3) {
        mf_cpu_seen *seen = mf_host_zalloc(t->host, sizeof *seen);
        t->rest_bytes = mf_cpu_graph_bytes(g, seen);
        mf_host_free(t->host, seen, sizeof *seen);
    }
    for (uint32_t i = 0; i < g->op_count; i++) {
        const uint64_t bytes = mf_cpu_making_bytes(g, &g->ops[i]);
        if (bytes > LITTLE_BYTES && bytes > t->asking_bytes)
            t->asking_bytes = bytes;
    }
    mf_graph_destroy(g);
    uint64_t least = measure_fixed(t) + t->asking_bytes + LITTLE_BYTES;
    if (t->asking_bytes && least > limit) {
        t->planning_need = least;
        return mf_fail(err, MEMFIT_DOES_NOT_FIT, "planning takes more than the limit leaves");
    }
    return MEMFIT_OK;
}

/* May a step be cut short? That leaves variables half updated, which does no harm before the first step is done, or
 * where nothing is learned. Later the training stops between steps (loop.c). */
static bool wants_to_stop(void *ctx)
{
    const mf_trainer *t = ctx;
    const memfit_train_options *o = t->options;
    return (t->mode != MF_MODE_TRAIN || !t->stepped) && o->stop && o->stop(o->ctx);
}

/* Makes everything that stays for the whole run, except the arena's pages. */
static memfit_status make_ready(mf_trainer *t, memfit_status (*ready)(void *, mf_trainer *, memfit_error *), void *ctx,
                                memfit_error *err)
{
    mf_executor_options x = {.poison = t->options->debug_poison,
                             .step = t->step,
                             .step_ctx = t->step_ctx,
                             .stop = wants_to_stop,
                             .stop_ctx = t,
                             .full = mf_trainer_is_full,
                             .room = mf_trainer_has_room,
                             .full_ctx = t,
                             .device = t->device,
                             .stream = t->stream,
                             .scalars = t->arena.side};
    t->kernels_made = t->kernels_peak = 0;
    t->kernels_base = t->footprint->sample(t->device);
    mf_dnn_cache(true); /* equal primitives share their code; off again before the fixed cost is measured */
    void *base = (void *)(uintptr_t)t->arena.base;
    memfit_status status = mf_executor_create(t->host, t->backend, t->plan, base, &x, &t->executor, err);
    mf_trainer_note_start(t); /* while the cache still holds primitives that were tried and not taken */
    mf_dnn_cache(false);
    if (status == MEMFIT_OK) {
        mf_trainer_find_metrics(t);
        status = mf_trainer_bind_data(t, err);
    }
    if (status == MEMFIT_OK)
        status = mf_results_create(t, err);
    if (status == MEMFIT_OK && ready)
        status = ready(ctx, t, err);
    return status;
}

static __attribute__((noinline)) void touch_stack(void)
{
    volatile unsigned char deep[STACK_BYTES];
    for (size_t i = 0; i < sizeof deep; i += 1024)
        deep[i] = 1;
}

/* The machine gave less than the plan needs. Returns the limit for the next plan; 0 when there is none to try. */
static uint64_t limit_after_refusal(mf_trainer *t, uint64_t limit, uint64_t fixed, const memfit_error *err)
{
    uint64_t possible = mf_reserve_most(t->device), lower = possible + fixed;
    if (err->code != MEMFIT_OUT_OF_MEMORY || possible == 0)
        return 0;
    if (lower >= limit) /* the system refused addresses, not bytes */
        lower = t->plan->arena_bytes / 2 + fixed;
    char was[24], is[24];
    mf_log_write(&t->log, MF_LOG_NOTE, "%s cannot be had now: planning for %s instead",
                 memfit_size_format(fixed + t->plan->arena_bytes, was, sizeof was),
                 memfit_size_format(lower, is, sizeof is));
    return lower;
}

static void remember_need(mf_trainer *t)
{
    uint64_t need = t->fixed_bytes + t->plan->arena_bytes;
    if (need < t->start_peak)
        need = t->start_peak;
    if (!t->least_need || need < t->least_need) {
        t->least_need = need;
        t->least_recomputes = t->plan->recomputed_ops > 0;
    }
    t->beside_need = t->fixed_bytes > t->beside_need ? t->fixed_bytes : t->beside_need;
}

/* The limit that the training must keep. Where it was lowered to what the machine could give, it is not below what
 * planning and compiling already took: heaps keep their addresses, and under `ulimit -v` these count. */
static uint64_t limit_held(const mf_trainer *t, uint64_t limit, uint64_t asked)
{
    uint64_t given = t->start_peak < asked ? t->start_peak : asked;
    return limit < asked && given > limit ? given : limit;
}

/* Uses what the limit leaves beside the plan for the next inputs (slot), and for the whole training set (shelf). */
static memfit_status take_slot(mf_trainer *t, uint64_t limit, memfit_error *err)
{
    uint64_t taken = measure_fixed(t) + t->plan->arena_bytes + SLOT_SPARE_BYTES, shelf = 0;
    uint64_t each[MF_SHELF_FEEDS];
    memfit_status status = mf_executor_take_slot(t->executor, limit > taken ? limit - taken : 0, &t->slot_bytes, err);
    uint32_t feeds = mf_trainer_sample_bytes(t, t->plan, each);
    taken += t->slot_bytes;
    if (status == MEMFIT_OK && feeds && limit > taken)
        status = mf_executor_take_shelf(t->executor, each, feeds, t->train_samples, limit - taken, &shelf, err);
    t->slot_bytes += shelf;
    return status;
}

/* Runs every operation once in the arena, whose pages are all populated from then on, and measures what is beside it.
 * If the limit cannot hold even before that, nothing runs: the arena's pages must not come on top. */
static memfit_status measure(mf_trainer *t, uint64_t limit, uint64_t asked, memfit_error *err)
{
    touch_stack();
    /* First give back what planning and compiling held. The first runs take less than the spare. */
    t->fixed_bytes = measure_fixed(t) + SPARE_FIXED_BYTES + t->footprint->error();
    if (t->kernels_peak > t->start_peak) /* the limit that a refusal names must pass mf_trainer_is_full next time */
        t->start_peak = t->kernels_peak;
    const bool fits = t->fixed_bytes + t->plan->arena_bytes <= limit;
    if (t->footprint->host || !fits)
        remember_need(t);
    if (!fits)
        return MEMFIT_OK;
    mf_trainer_guard(t, false);
    memfit_status status = mf_reserve_populate(&t->arena, err);
    if (status == MEMFIT_OK && !t->footprint->host)
        status = mf_reserve_pattern(&t->arena, err); /* loads the driver's kernels for copies and fills */
    if (status == MEMFIT_OK)
        status = warm_up(t, err);
    if (status == MEMFIT_OK)
        status = take_slot(t, limit, err);
    if (status == MEMFIT_OK)
        status = mf_trainer_record(t, err);
    if (status == MEMFIT_OK)
        status = mf_executor_rehearse(t->executor, err);
    if (status != MEMFIT_OK)
        return status;
    t->fixed_bytes = measure_fixed(t) + SPARE_FIXED_BYTES + t->footprint->error();
    if (!t->footprint->host) /* modules and records exist only now */
        remember_need(t);
    if (t->start_peak > limit_held(t, limit, asked)) /* a small model's planning can take more than its training */
        return mf_fail(err, MEMFIT_DOES_NOT_FIT, "planning and compiling took more than the limit");
    if (t->start_peak > t->fixed_bytes + t->plan->arena_bytes)
        t->fixed_bytes = t->start_peak - t->plan->arena_bytes;
    return MEMFIT_OK;
}

/* The planned figure to report: with spare for the next run, and not less than a plan that was tried and dropped. */
static void say_planned(mf_trainer *t, bool again)
{
    uint64_t most = t->limit_bytes - t->plan->arena_bytes, said = t->fixed_bytes + SAID_SPARE_BYTES;
    if (!again && t->measured_peak > said + t->plan->arena_bytes)
        said = t->measured_peak - t->plan->arena_bytes;
    t->fixed_bytes = said < most ? said : most;
}

/* ---- admission -------------------------------------------------------------------------------------------- */

/* One admission under way. */
typedef struct admission {
    mf_trainer *t;
    uint64_t asked, limit; /* the second falls when the machine gives less */
    memfit_status (*ready)(void *, mf_trainer *, memfit_error *);
    void *ctx;
    bool again;            /* another plan for a model that runs */
    uint64_t base;         /* the process before there is a plan */
    bool fits;             /* the plan that was built last */
    uint64_t search_bytes; /* what the search for the first plan took */
} admission;

/* Makes the first plan, with nothing measured yet, and returns the fixed cost it assumed. First assume no kernels. If
 * the resulting plan would leave its own kernels no room, assume their estimate, which is from above; if no plan is
 * possible then, assume less and less of it. */
static memfit_status first_plan(admission *a, uint64_t *assumed, memfit_error *err)
{
    mf_trainer *t = a->t;
    const uint64_t late = t->footprint->host ? 0 : t->footprint->error(), least = a->base + WARM_UP_BYTES + late;
    memfit_status status = take_plan(t, a->limit, least, err);
    if (status != MEMFIT_OK)
        return status;
    *assumed = least;
    const uint64_t kernels = t->footprint->fixed(t->plan) + late;
    if (a->base + kernels + t->plan->arena_bytes <= a->limit)
        return MEMFIT_OK;
    for (uint64_t part = 4; part >= (t->footprint->host ? 2 : 4); part--) {
        mf_trainer_withdraw(t);
        *assumed = a->base + kernels / 4 * part;
        status = take_plan(t, a->limit, *assumed, err);
        if (status != MEMFIT_DOES_NOT_FIT)
            return status;
    }
    if (!t->footprint->host) /* on a card a plan that is tried takes memory before it is measured */
        return status;
    *assumed = least;
    return take_plan(t, a->limit, least, err);
}

/* The device gave less than the plan in force needs: makes the next plan for what it can give. */
static memfit_status plan_for_less(admission *a, uint64_t assumed, memfit_error *err)
{
    mf_trainer *t = a->t;
    t->refused_us = mf_os_now_us();
    uint64_t lower = limit_after_refusal(t, a->limit, assumed, err);
    if (!lower)
        return err->code;
    a->limit = lower;
    mf_trainer_withdraw(t);
    return take_plan(t, a->limit, assumed, err);
}

/* Makes the arena, the kernels and everything else a plan needs, and measures what they take. The system may refuse
 * memory when addresses are reserved, or when they are populated with pages. */
static memfit_status build(admission *a, uint64_t assumed, memfit_error *err)
{
    mf_trainer *t = a->t;
    memfit_status status;
    for (;;) {
        measure_fixed(t); /* gives back what planning left, so that it does not add to what compiling takes */
        status = mf_reserve(t->device, t->plan->arena_bytes, &t->arena, err);
        bool refused = status == MEMFIT_OUT_OF_MEMORY;
        if (status == MEMFIT_OK) {
            status = make_ready(t, a->ready, a->ctx, err);
            if (mf_trainer_was_refused(t, status))
                status = mf_fail(err, MEMFIT_DOES_NOT_FIT, "its kernels and writers take more than the limit leaves");
            if (status == MEMFIT_OK) {
                status = measure(t, a->limit, a->asked, err);
                refused = status == MEMFIT_OUT_OF_MEMORY;
            }
        }
        if (!refused)
            break;
        status = plan_for_less(a, assumed, err);
        if (status != MEMFIT_OK)
            return status;
    }
    if (status == MEMFIT_DOES_NOT_FIT) {
        t->fixed_bytes = a->base + t->footprint->fixed(t->plan); /* not measured: an estimate from above */
        a->fits = false;
        return assumed < t->fixed_bytes ? MEMFIT_OK : status;
    }
    a->fits = t->fixed_bytes + t->plan->arena_bytes <= limit_held(t, a->limit, a->asked);
    return status;
}

/* Withdraws the plan that was built, and builds one for another fixed cost, or the one laid aside. */
static memfit_status build_again(admission *a, uint64_t assumed, mf_plan *aside, memfit_error *err)
{
    mf_trainer_withdraw(a->t);
    a->t->next_plan = aside;
    mf_trainer_guard(a->t, !a->again);
    measure_fixed(a->t);
    memfit_status status = take_plan(a->t, a->limit, assumed, err);
    return status == MEMFIT_OK ? build(a, assumed, err) : status;
}

/* The plan in force fits, but saves bytes that it need not save. Is there a faster one that uses them? We search beside
 * the plan that is built, in what the limit leaves, and put the result into next_plan. We do not rebuild for the same
 * plan, or for one that is hardly better: dropped kernels leave holes, and what fitted may fit no longer. */
static bool finds_quicker(admission *a, uint64_t fixed)
{
    enum { ASKED_BYTES = 256 << 10 }; /* the library's descriptions, while it is asked for workspaces */
    mf_trainer *t = a->t;
    mf_plan *built = t->plan, *other = NULL;
    memfit_error failed;
    if (mf_trainer_sample(t) + a->search_bytes * 5 / 4 + ASKED_BYTES + t->footprint->error() > a->limit)
        return false;
    t->plan = NULL; /* with a plan in force the search would not be bounded */
    bool quicker = mf_trainer_plan(t, a->limit, fixed, &other, &failed) == MEMFIT_OK &&
                   other->time_us < built->time_us * 0.98 && other->numerics <= built->numerics;
    t->plan = built;
    if (!quicker)
        mf_plan_destroy(other);
    t->next_plan = quicker ? other : NULL;
    const uint64_t now = measure_fixed(t) + SPARE_FIXED_BYTES + t->footprint->error(); /* the search left holes too */
    t->fixed_bytes = now > t->fixed_bytes ? now : t->fixed_bytes;
    a->fits = t->fixed_bytes + t->plan->arena_bytes <= limit_held(t, a->limit, a->asked);
    return quicker;
}

/*
 * What a plan takes beside its arena is known only when its kernels exist, and differs from plan to plan (a smaller
 * last piece has kernels of its own). So build a plan and measure it. If it does not fit, or saves bytes that it need
 * not save, make the next plan for the measured fixed cost. That plan may still take more than measured (oneDNN 3.2
 * keeps the code of dropped convolutions: 56 to 100 KiB). If it then does not fit, return to the first plan, or, when
 * that did not fit either, make one with twice the growth to spare. A plan that fits is laid aside meanwhile, because
 * there may be no room to search for it again.
 */
static memfit_status admit(admission *a, memfit_error *err)
{
    mf_trainer *t = a->t;
    uint64_t assumed = t->fixed_bytes;
    const uint64_t live = t->planning.live_bytes;
    memfit_status status = a->again ? take_plan(t, a->limit, assumed, err) : first_plan(a, &assumed, err);
    a->search_bytes = t->planning.peak_bytes > live ? t->planning.peak_bytes - live : 0;
    if (status == MEMFIT_OK)
        status = build(a, assumed, err);
    const uint64_t rest = status == MEMFIT_OK ? rest_of(t) : 0;
    /* A driver does not give back all that records took, so on a card another plan must be worth it. */
    const uint64_t little = t->footprint->host ? WARM_UP_BYTES : a->limit / 32;
    const bool wasteful =
        !a->again && status == MEMFIT_OK && mf_trainer_is_squeezed(t->plan) && assumed + rest > t->fixed_bytes + little;
    if (status != MEMFIT_OK || (a->fits && !wasteful))
        return status;
    const bool first_fits = a->fits;
    const uint64_t truth = t->fixed_bytes - (t->fixed_bytes > rest ? rest : 0);
    if (first_fits && t->footprint->host && !finds_quicker(a, truth + WARM_UP_BYTES / 2) && a->fits)
        return MEMFIT_OK;
    mf_plan *better = t->next_plan, *first = first_fits ? lay_aside(t) : NULL;
    status = build_again(a, truth + WARM_UP_BYTES / 2, better, err);
    if (first && (status == MEMFIT_DOES_NOT_FIT || (status == MEMFIT_OK && !a->fits)))
        return build_again(a, assumed, first, err);
    mf_plan_destroy(first);
    if (status != MEMFIT_OK || a->fits)
        return status;
    uint64_t grown = t->fixed_bytes > rest_of(t) ? t->fixed_bytes - rest_of(t) : 0;
    grown = grown > truth ? grown - truth : 0;
    return build_again(a, truth + 2 * grown + WARM_UP_BYTES, NULL, err);
}

/* The same on a card: the context as measured; modules and records of the smallest plan, estimated from above. */
static memfit_status estimate_need_of_card(mf_trainer *t, memfit_error *err)
{
    mf_plan *plan = NULL;
    memfit_error failed;
    uint64_t fixed = measure_fixed(t) + WARM_UP_BYTES + t->footprint->error();
    memfit_status status = mf_trainer_plan(t, 1, fixed, &plan, err);
    if (status != MEMFIT_DOES_NOT_FIT)
        return status;
    t->least_need = err->requested_bytes;
    if (mf_trainer_plan(t, t->least_need, fixed, &plan, &failed) == MEMFIT_OK) {
        t->least_need += t->footprint->fixed(plan);
        mf_plan_destroy(plan);
    }
    return MEMFIT_OK;
}

/* A limit that suffices for the smallest plan, where no plan could be measured; kernels are estimated from above. */
static memfit_status estimate_need(mf_trainer *t, memfit_error *err)
{
    if (!t->footprint->host)
        return estimate_need_of_card(t, err);
    unsigned threads = t->options->threads ? t->options->threads : mf_os_cpu_count();
    uint64_t now = measure_fixed(t) + WARM_UP_BYTES;
    uint64_t graphs = 0;
    mf_cpu_fixed fixed;
    mf_plan *plan = NULL;
    mf_trainer_planning_room(t, t->limit_asked);
    memfit_status status =
        mf_cpu_fixed_bytes(&t->graph_source, &t->planning.host, t->mode, t->batch, threads, &fixed, err);
    if (mf_trainer_was_refused(t, status))
        return MEMFIT_OK;
    if (status == MEMFIT_OK) {
        graphs = fixed.graph_bytes;
        if (t->train_samples % t->batch || (t->samples_left && t->samples_left % t->batch))
            graphs += fixed.graph_bytes;
        if (t->validation_samples)
            graphs += t->validation_batch == t->batch ? fixed.shared_validation_bytes : fixed.validation_bytes;
        if (t->validation_samples && t->validation_samples % t->validation_batch)
            graphs += fixed.validation_bytes;
        if (t->options->out || t->options->checkpoint)
            graphs += fixed.writer_bytes;
        status = mf_trainer_plan(t, 1, now + graphs, &plan, err);
    }
    mf_plan_destroy(plan);
    if (status == MEMFIT_DOES_NOT_FIT && !t->planning.refused_bytes && !t->guard.refused_bytes)
        t->least_need = err->requested_bytes + fixed.making_bytes + graphs / 3 * 2; /* seen with many products */
    return status == MEMFIT_DOES_NOT_FIT ? MEMFIT_OK : status;
}

/* Explains why nothing fits, and names a limit that would do. */
static memfit_status explain_refusal(admission *a, memfit_error *err)
{
    mf_trainer *t = a->t;
    const uint64_t search = t->least_need && t->least_recomputes ? t->search_need : 0; /* to find that plan again */
    const bool unasked = t->planning_need && t->asking_bytes; /* there was no room to ask the library */
    memfit_status status = t->least_need || t->kernels_need || unasked ? MEMFIT_OK : estimate_need(t, err);
    if (status != MEMFIT_OK)
        return status;
    const bool known = t->least_need || t->kernels_need; /* otherwise planning stopped before it found the need */
    uint64_t need = t->least_need > t->kernels_need ? t->least_need : t->kernels_need;
    need = (known ? need : t->planning_need) + 2 * WARM_UP_BYTES;
    need = need < search ? search : need;
    /* With more memory memfit takes another plan first, whose kernels differ; a card's context does not. */
    uint64_t differs = t->footprint->host || need < a->base ? need : need - a->base;
    need += known ? differs / 32 : 0;
    need += known && t->footprint->host ? t->beside_need / 16 : 0; /* holes in the heap differ from run to run */
    const uint64_t alone = measure_fixed(t);
    const uint64_t kernel = mf_dnn_compiles() || !t->footprint->host ? MF_KERNEL_BYTES : WARM_UP_BYTES;
    if (need < alone) /* there was no room to find out */
        need = alone + alone / 8 + 2 * kernel;
    if (need <= a->limit) /* the estimate did not suffice: dropped kernels left holes */
        need = a->limit + a->limit / 8 + kernel;
    char took[24], text[24], where[200] = "";
    const char *tail = strchr(err->message, ';'); /* "; the hungriest operation is in layer ..." */
    if (alone > a->limit)
        snprintf(where, sizeof where, "; the process alone, before any tensor, has %s",
                 memfit_size_format(alone, text, sizeof text));
    else
        snprintf(where, sizeof where, "%s", tail ? tail : "");
    status = mf_fail(err, MEMFIT_DOES_NOT_FIT,
                     "batch %lld does not fit: %s %s, %s %s%s\n"
                     "memfit plan shows what holds it, and what would fit",
                     (long long)t->batch, known ? "the smallest plan found needs" : "to plan it takes at least",
                     mf_format_need(need, took, sizeof took),
                     a->limit < a->asked ? "the machine can give no more than" : "the limit is",
                     memfit_size_format(a->limit, text, sizeof text), where);
    err->requested_bytes = need;
    err->limit_bytes = a->limit;
    return status;
}

memfit_status mf_trainer_admit(mf_trainer *t, uint64_t limit,
                               memfit_status (*ready)(void *, mf_trainer *, memfit_error *), void *ctx,
                               memfit_error *err)
{
    memfit_error own;
    err = err ? err : &own;
    admission a = {.t = t, .asked = limit, .limit = limit, .ready = ready, .ctx = ctx, .again = t->fixed_bytes != 0};
    t->least_need = t->planning_need = t->kernels_need = t->search_need = t->beside_need = 0;
    t->limit_asked = limit;
    mf_trainer_guard(t, !a.again);
    a.base = measure_fixed(t);
    memfit_status status = MEMFIT_OK;
    if (a.again)
        t->start_peak = 0; /* the process does not start again */
    else
        status = estimate_before(t, limit, err);
    if (status == MEMFIT_OK)
        status = admit(&a, err);
    if (status == MEMFIT_OK && a.fits)
        status = mf_reserve_pattern(&t->arena, err);
    if (status == MEMFIT_OK && a.fits) {
        t->limit_bytes = limit_held(t, a.limit, a.asked);
        say_planned(t, a.again);
        if (a.again)
            t->measured_peak = 0; /* samples so far belong to the plan before */
        return mf_trainer_take_cache(t, err);
    }
    if (status == MEMFIT_OK)
        status = mf_fail(err, MEMFIT_DOES_NOT_FIT, "its kernels leave no room for it");
    if (mf_trainer_was_refused(t, status))
        status = mf_trainer_refuse_planning(t, err);
    if (status != MEMFIT_DOES_NOT_FIT || a.again)
        return status;
    mf_trainer_withdraw(t);
    mf_trainer_guard(t, true);
    return explain_refusal(&a, err);
}
