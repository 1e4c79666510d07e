/* trainer.c: from files to an admitted plan. See trainer.h for the order of things. */
#include "train/trainer.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "graph/passes/optimizer.h"
#include "ops/cpu/dnn/onednn.h"
#include "train/checkpoint.h"
#include "ops/cpu/cpu_fixed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    /* After the fixed cost was measured a few pages may still be touched for the first time: data of libraries, a page
     * of a stack. Seen: one to three. */
    SPARE_FIXED_BYTES = 28 << 10,
    /* The same run measures some pages more or less each time: what is said to be needed suffices the next time. */
    SAID_SPARE_BYTES = 16 << 10,
    WARM_UP_BYTES = 64 << 10, /* running every operation once takes less (seen: up to 24 KiB) */
    STACK_BYTES = 48 << 10,   /* touched before measuring: deeper than any call of a step goes */
    KERNEL_BYTES = 20 << 10,  /* first guess of what a compiled primitive takes */
    MOST_ATTEMPTS = 10,
    NEAR_ENOUGH_BYTES = 256 << 10, /* between an assumption that was too little and one that was admitted */
};

static void note(void *ctx, mf_log_level level, const char *text)
{
    mf_trainer *t = ctx;
    if ((level != MF_LOG_DETAIL || t->options->verbose) && t->options->note)
        t->options->note(t->options->ctx, text);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static memfit_status open_backend(mf_trainer *t, memfit_error *err)
{
    memfit_status status = mf_cpu_create(t->host, t->options->threads, &t->backend, err);
    if (status != MEMFIT_OK)
        return status;
    if (!mf_dnn_compiles())
        mf_log_write(&t->log, MF_LOG_NOTE, "this build has no oneDNN: own kernels serve");
    mf_team_enter(&t->team, t->backend->threads);
    mf_backend_cost_source(t->backend, &t->cost);
    return MEMFIT_OK;
}

static memfit_status check_options(const memfit_train_options *o, memfit_error *err)
{
    if (!o->model || !o->data)
        return mf_fail(err, MEMFIT_INVALID, "a model and data are needed");
    if (o->batch < 1 || o->batch > INT32_MAX)
        return mf_fail(err, MEMFIT_INVALID, "batch size %lld: must be 1 to %d", (long long)o->batch, INT32_MAX);
    if (o->validation_split < 0 || o->validation_split >= 1)
        return mf_fail(err, MEMFIT_INVALID, "validation split %g: must be from 0 to below 1", o->validation_split);
    if (o->validation_split > 0 && o->validation_data)
        return mf_fail(err, MEMFIT_CONFLICT, "validation data and a validation split exclude each other");
    if (o->learning_rate < 0)
        return mf_fail(err, MEMFIT_INVALID, "learning rate %g: must be positive", o->learning_rate);
    if (o->pieces < 0 || o->pieces > o->batch)
        return mf_fail(err, MEMFIT_INVALID, "%lld pieces: a batch of %lld has at most %lld", (long long)o->pieces,
                       (long long)o->batch, (long long)o->batch);
    if (o->epochs < 0 || o->steps < 0 || o->save_freq < 0 || o->early_stopping < 0 || o->reduce_on_plateau < 0)
        return mf_fail(err, MEMFIT_INVALID, "epochs, steps and their like must not be negative");
    return MEMFIT_OK;
}

/* The rate of --learning-rate, now or when a run that is resumed began; else the file's. */
static memfit_status open_schedule(mf_trainer *t, memfit_error *err)
{
    const memfit_train_options *o = t->options;
    const mf_json *optimizer = mf_json_get(t->model->compile, "optimizer");
    const mf_json *rate = mf_json_get(mf_json_get(optimizer, "config"), "learning_rate");
    const char *in_file = mf_json_string(mf_json_get(optimizer, "class_name"), mf_json_string(optimizer, ""));
    const char *name = o->optimizer ? o->optimizer : *in_file ? in_file : "adam";
    bool same = strcasecmp(name, in_file) == 0; /* another optimizer than the file's: at its own default rate */
    mf_optimizer known;
    double first = mf_optimizer_parse(name, &known) ? mf_optimizer_learning_rate(known) : 0.001;
    if (o->learning_rate > 0 || (same && t->resumed.rate_given)) {
        t->rate_given = true;
        first = o->learning_rate > 0 ? o->learning_rate : t->resumed.rate;
    }
    return mf_schedule_read(same && !t->rate_given ? rate : NULL, first, &t->schedule, err);
}

/* Of a checkpoint: precision stays as it was, for the same bits. */
static void take_up(mf_trainer *t)
{
    const memfit_train_options *o = t->options;
    t->resumed = mf_checkpoint_settings(t->model);
    const mf_resumed *r = &t->resumed;
    if (!o->precision)
        t->graphs.options.precision = r->precision;
    else if (r->batch && strcmp(o->precision, r->precision ? r->precision : "") != 0)
        mf_log_write(&t->log, MF_LOG_NOTE, "%s was trained with %s: from here on with %s", o->resume,
                     r->precision ? r->precision : "the model's own precision", o->precision);
    if (r->batch && r->batch != o->batch)
        mf_log_write(&t->log, MF_LOG_NOTE,
                     "%s was trained in batches of %lld: from here on they are of %lld (--batch-size %lld goes on as "
                     "before)",
                     o->resume, (long long)r->batch, (long long)o->batch, (long long)r->batch);
}

memfit_status mf_trainer_open(mf_trainer *t, const memfit_train_options *options, mf_mode mode, memfit_error *err)
{
    *t = (mf_trainer){.options = options,
                      .host = options->host ? options->host : mf_host_default(),
                      .mode = mode,
                      .flag_variable = MF_NONE};
    t->log = (mf_log){note, t};
    memfit_status status = check_options(options, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_model_load_flags(t->host, mode == MF_MODE_TRAIN && options->resume ? options->resume : options->model,
                                 MF_LOAD_VERIFY, &t->model, err);
    if (status != MEMFIT_OK)
        return status;
    status = open_backend(t, err);
    if (status != MEMFIT_OK)
        return status;
    t->graphs = (mf_model_graphs){.model = t->model};
    t->graphs.options = (mf_lower_options){.optimizer = options->optimizer,
                                           .loss = options->loss,
                                           .precision = options->precision,
                                           .input_dtype = MF_DTYPE_COUNT,
                                           .dim_names = options->dim_names,
                                           .dim_values = options->dim_values,
                                           .dim_count = (uint32_t)options->dim_count};
    t->graphs.options.input_shape.rank = options->input_rank;
    memcpy(t->graphs.options.input_shape.dim, options->input_shape, sizeof options->input_shape);
    mf_model_graph_source(&t->graphs, &t->graph_source);
    if (mode == MF_MODE_TRAIN && options->resume)
        take_up(t);
    status = mode == MF_MODE_TRAIN ? open_schedule(t, err) : MEMFIT_OK;
    if (status != MEMFIT_OK)
        return status;
    return mf_trainer_open_data(t, err);
}

void mf_trainer_close(mf_trainer *t)
{
    mf_trainer_withdraw(t);
    mf_plan_destroy(t->next_plan);
    mf_feeder_destroy(t->feeder);
    mf_feeder_destroy(t->validation_feeder);
    mf_source_close(t->source);
    mf_source_close(t->validation_source);
    mf_host_free(t->host, t->kept_metrics, t->kept_bytes + 1);
    mf_host_free(t->host, t->class_weights, (size_t)t->class_count * sizeof(double));
    if (t->backend)
        t->backend->table->destroy(t->backend);
    mf_team_leave(&t->team);
    mf_model_destroy(t->model);
}

/* Of the fixed cost of this plan, what its rest takes: another plan may have none. */
static uint64_t rest_of(const mf_trainer *t)
{
    int64_t piece = (t->plan->batch + t->plan->pieces - 1) / t->plan->pieces;
    return t->plan->batch % piece ? t->rest_bytes : 0;
}

void mf_trainer_withdraw(mf_trainer *t)
{
    if (t->plan && t->fixed_bytes > rest_of(t))
        t->fixed_bytes -= rest_of(t); /* what the next plan may count on */
    mf_executor_destroy(t->executor);
    t->executor = NULL;
    mf_unreserve(&t->arena);
    mf_plan_destroy(t->plan);
    t->plan = NULL;
}

/* ---- planning and admission ------------------------------------------------------------------------------- */

uint64_t mf_trainer_sample(mf_trainer *t)
{
    mf_os_memory m;
    if (mf_os_process_memory(&m, NULL) != MEMFIT_OK)
        return 0;
    uint64_t now = m.rss_anon + m.rss_shmem;
    if (now > t->measured_peak)
        t->measured_peak = now;
    return now;
}

static memfit_status make_plan(mf_trainer *t, uint64_t limit, uint64_t fixed, mf_plan **plan, memfit_error *err)
{
    const memfit_train_options *o = t->options;
    mf_plan_options p;
    mf_plan_options_default(&p);
    p.batch = t->batch;
    p.pieces = o->pieces ? o->pieces : t->resumed.pieces;
    p.recompute = o->no_recompute ? MF_RECOMPUTE_OFF : MF_RECOMPUTE_AUTO;
    p.chunks = o->loss_chunks ? o->loss_chunks : t->resumed.chunks;
    p.allow_changed = o->allow_changed_numerics;
    p.limit_bytes = limit;
    p.fixed_bytes = fixed;
    p.rest_bytes = t->rest_bytes;
    p.samples = t->train_samples;
    p.quick = t->refused_us != 0;
    p.with_validation = p.with_prediction = false;
    if (t->mode == MF_MODE_TRAIN) {
        p.with_validation = t->validation_samples > 0;
        p.validation_batch = t->validation_batch;
        p.validation_samples = t->validation_samples;
    } else {
        p.only = t->mode;
    }
    memfit_status status = mf_plan_make(t->host, &t->graph_source, &p, &t->cost, plan, err);
    if (t->refused_us) { /* the answer is there: a plan, or why there is none */
        uint64_t took = mf_os_now_us() - t->refused_us;
        t->answer_us = took > t->answer_us ? took : t->answer_us;
        t->refused_us = 0;
    }
    return status;
}

memfit_status mf_trainer_prepare(mf_trainer *t, uint64_t limit, memfit_error *err)
{
    mf_plan_destroy(t->next_plan);
    t->next_plan = NULL;
    return make_plan(t, limit, t->fixed_bytes - rest_of(t), &t->next_plan, err);
}

/* The plan made ahead, if there is one for this limit; else a new one. */
static memfit_status take_plan(mf_trainer *t, uint64_t limit, uint64_t fixed, memfit_error *err)
{
    mf_plan *ahead = t->next_plan;
    t->next_plan = NULL;
    if (ahead && fixed + ahead->arena_bytes <= limit) {
        t->plan = ahead;
        return MEMFIT_OK;
    }
    mf_plan_destroy(ahead);
    return make_plan(t, limit, fixed, &t->plan, err);
}

/* Pieces that leave a rest need a graph and kernels of their own for it. Without this a plan with a rest that does not
 * fit was followed by one of yet smaller pieces, past those that divide the batch and would have fitted. */
static memfit_status estimate_rest(mf_trainer *t, memfit_error *err)
{
    if (t->mode != MF_MODE_TRAIN || t->batch < 3)
        return MEMFIT_OK;
    mf_graph *g;
    memfit_status status = t->graph_source.make(t->graph_source.ctx, t->host, t->mode, t->batch, true, &g, err);
    if (status != MEMFIT_OK)
        return status;
    t->rest_bytes = mf_cpu_graph_bytes(g);
    mf_graph_destroy(g);
    return MEMFIT_OK;
}

/* Counts the primitives a plan will make, for the first guess of the fixed cost. (Guessing them without oneDNN made a
 * small network plan for bytes that it never takes, and what that planning held was more than its limit.) */
static uint64_t kernel_guess(const mf_plan *plan)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < plan->phase_count; p++)
        for (uint32_t i = 0; i < plan->phases[p].graph->op_count; i++) {
            mf_op_kind k = plan->phases[p].graph->ops[i].kind;
            bool heavy =
                k == MF_OP_CONV || k == MF_OP_CONV_GRAD_DATA || k == MF_OP_CONV_GRAD_WEIGHTS || k == MF_OP_MATMUL;
            bytes += heavy && mf_dnn_compiles() ? KERNEL_BYTES : 512;
        }
    return bytes;
}

static memfit_status fill_zero(void *ctx, uint32_t feed, void *address, memfit_error *err)
{
    (void)err;
    const mf_graph *g = ctx;
    const mf_tensor *tensor = &g->tensors[g->feeds[feed].tensor];
    memset(address, 0, mf_shape_count(&tensor->shape) * mf_dtype_bytes(tensor->dtype));
    return MEMFIT_OK;
}

/* The team that fills batches; without oneDNN no operation would have started it, and the first step took memory. */
static void start_threads(void)
{
    volatile int started = 0;
#pragma omp parallel
    {
#pragma omp atomic
        started++;
    }
}

/* Every operation of every phase once, on zeros: thread pools, generated code and lazily bound symbols take theirs. */
static memfit_status warm_up(mf_trainer *t, memfit_error *err)
{
    start_threads();
    mf_run_scalars s = {.batch_samples = 1, .weight_sum = 1, .loss_scale = 1};
    for (uint32_t p = 0; p < t->plan->phase_count; p++) {
        memfit_status status = mf_executor_warm_up(t->executor, p, &s, fill_zero, t->plan->phases[p].graph, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return MEMFIT_OK;
}

const mf_graph *mf_trainer_graph(const mf_trainer *t)
{
    return t->plan->phases[0].graph;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mf_metric_view *)a)->name, ((const mf_metric_view *)b)->name);
}

static void find_metrics(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    uint32_t all = 0;
    t->metric_count = 0;
    for (uint32_t i = 0; i < g->variable_count; i++) {
        const mf_variable *v = &g->variables[i];
        all += v->role == MF_VAR_METRIC;
        if (v->role == MF_VAR_METRIC && t->metric_count < MEMFIT_MOST_METRICS)
            t->metrics[t->metric_count++] = (mf_metric_view){v->name, i, v->metric};
        if (v->role == MF_VAR_CONTROL && g->needs_loss_scale)
            t->flag_variable = i;
    }
    t->metrics_left_out = all - t->metric_count;
    qsort(t->metrics, t->metric_count, sizeof *t->metrics, by_name);
}

/* What the process holds but for the arena. */
static uint64_t beside_arena(mf_trainer *t)
{
    uint64_t now = mf_trainer_sample(t), arena = mf_reserve_resident(&t->arena);
    return now > arena ? now - arena : 0;
}

void mf_trainer_note_start(mf_trainer *t)
{
    uint64_t now = beside_arena(t);
    if (now > t->start_peak && !t->limit_bytes)
        t->start_peak = now;
}

/* The same with nothing given back left over; before that, what starting took is remembered. */
static uint64_t measure_fixed(mf_trainer *t)
{
    mf_trainer_note_start(t);
    mf_host_trim();
    return beside_arena(t);
}

/* Everything that stays for the whole run, but for the arena's pages. */
static memfit_status make_ready(mf_trainer *t, memfit_status (*ready)(void *, mf_trainer *, memfit_error *), void *ctx,
                                memfit_error *err)
{
    mf_executor_options x = {.poison = t->options->debug_poison, .step = t->step, .step_ctx = t->step_ctx};
    mf_dnn_cache(true); /* equal primitives share their code; the cache itself must not count as fixed cost */
    memfit_status status = mf_executor_create(t->host, t->backend, t->plan, t->arena.base, &x, &t->executor, err);
    mf_trainer_note_start(t); /* primitives that were tried and not taken are still in the cache */
    mf_dnn_cache(false);
    if (status == MEMFIT_OK) {
        find_metrics(t);
        status = mf_trainer_bind_data(t, err);
    }
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

/* The machine gave less than a plan wants. The limit for the next plan; 0 when there is none to try. */
static uint64_t limit_after_refusal(mf_trainer *t, uint64_t limit, uint64_t fixed, const memfit_error *err)
{
    uint64_t possible = mf_reserve_most(), lower = possible + fixed;
    if (err->code != MEMFIT_OUT_OF_MEMORY || possible == 0)
        return 0;
    if (lower >= limit) /* addresses were refused, not bytes */
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
    if (!t->least_need || need < t->least_need)
        t->least_need = need;
}

/* The limit that training is held to. One that only says what the machine could still give beside this process is
 * not lower than what planning and compiling had of it: heaps keep their addresses, and under `ulimit -v` these count.
 */
static uint64_t limit_held(const mf_trainer *t, uint64_t limit, uint64_t asked)
{
    uint64_t given = t->start_peak < asked ? t->start_peak : asked;
    return limit < asked && given > limit ? given : limit;
}

/* Runs every operation once in the arena, whose pages are all there from then on, and measures what is beside it. When
 * it is plain before that the limit will not hold, nothing runs: the arena's pages must not come on top. */
static memfit_status measure(mf_trainer *t, uint64_t limit, uint64_t asked, memfit_error *err)
{
    touch_stack();
    /* What planning and compiling held goes first. The first runs take less than is kept spare. */
    t->fixed_bytes = measure_fixed(t) + SPARE_FIXED_BYTES + mf_os_counter_error_bytes();
    remember_need(t);
    if (t->fixed_bytes + t->plan->arena_bytes > limit)
        return MEMFIT_OK;
    mf_reserve_populate(&t->arena);
    memfit_status status = warm_up(t, err);
    if (status != MEMFIT_OK)
        return status;
    t->fixed_bytes = measure_fixed(t) + SPARE_FIXED_BYTES + mf_os_counter_error_bytes();
    if (t->start_peak > limit_held(t, limit, asked)) /* a small model's planning can take more than its training */
        return mf_fail(err, MEMFIT_DOES_NOT_FIT, "planning and compiling took more than the limit");
    if (t->start_peak > t->fixed_bytes + t->plan->arena_bytes)
        t->fixed_bytes = t->start_peak - t->plan->arena_bytes;
    return MEMFIT_OK;
}

/*
 * A plan is made for an assumed fixed cost; what it really costs is known when its kernels are made, and differs from
 * plan to plan (a batch in pieces with a rest has more kernels). So assumptions are tried until one is right:
 *
 *     now  |---- too little: the plan does not fit ----|------- admitted -------|---- no plan at all ----|
 *          least                                     low                      high                     none
 *
 * The truth may grow with each plan that is tried (oneDNN 3.2: by 56 to 100 KiB, for it keeps the code of dropped
 * convolutions; by what dropped plans leave in the heap, or by more recomputed operations), so an assumption that was
 * the truth of the plan before and still too little is followed by one that is ahead.
 *
 * A plan that had to squeeze although the truth was smaller than the assumption is only kept when nothing between is
 * better.
 */
typedef struct assumptions {
    uint64_t low, high, none; /* 0: not known */
    uint64_t truth;           /* of the plan before */
    uint32_t believed;        /* how often the truth of an admitted plan was taken for the next one's */
} assumptions;

/* What was admitted once and is too little now is no answer any more: the truth has grown past it. */
static void learn(assumptions *a, uint64_t fixed, bool fits)
{
    if (fits && (!a->high || fixed < a->high))
        a->high = fixed;
    if (!fits && fixed >= a->high)
        a->high = 0;
    if (!fits && fixed > a->low)
        a->low = fixed;
}

static uint64_t next_assumption(assumptions *a, uint64_t real, bool fits)
{
    uint64_t end = a->high ? a->high : a->none, before = a->truth;
    a->truth = real;
    if (!fits && before && before == a->low && real > before) {
        uint64_t ahead = real + (real - before) + (real - before) / 2;
        if (!end || ahead < end)
            return ahead;
    }
    if (fits && a->believed++ < 2) /* even where less was too little: that may have been a plan with a rest */
        return real + WARM_UP_BYTES / 2;
    if (a->high && (a->high <= a->low || a->high - a->low <= NEAR_ENOUGH_BYTES))
        return a->high;
    if (real > a->low && (!end || real < end))
        return real;
    return end ? a->low + (end - a->low) / 2 : real;
}

static bool is_squeezed(const mf_plan *plan)
{
    return plan->recomputed_ops > 0 || plan->pieces > 1 || plan->chunks > 1 || plan->validation_split;
}

/* What is said to be planned: with spare for the next run, and not less than a plan that was tried and dropped took. */
static void say_planned(mf_trainer *t, bool again)
{
    uint64_t most = t->limit_bytes - t->plan->arena_bytes, said = t->fixed_bytes + SAID_SPARE_BYTES;
    if (!again && t->measured_peak > said + t->plan->arena_bytes)
        said = t->measured_peak - t->plan->arena_bytes;
    t->fixed_bytes = said < most ? said : most;
}

/* *in_force falls when the machine gives less. */
static memfit_status admit(mf_trainer *t, uint64_t *in_force,
                           memfit_status (*ready)(void *, mf_trainer *, memfit_error *), void *ctx, memfit_error *err)
{
    const uint64_t asked = *in_force;
    uint64_t limit = asked;
    assumptions a = {.low = measure_fixed(t)};
    const uint64_t least = a.low + WARM_UP_BYTES;
    bool again = t->fixed_bytes != 0;
    uint64_t fixed = least; /* a plan that fails leaves holes in the heap: begin with what cannot be too much */
    if (again) {            /* another plan for the same model: its fixed cost is known, and nothing is started anew */
        fixed = t->fixed_bytes;
        t->start_peak = 0;
    }
    memfit_status status = again ? MEMFIT_OK : estimate_rest(t, err);
    if (status != MEMFIT_OK)
        return status;
    for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
        if (a.high && attempt >= MOST_ATTEMPTS - 2)
            fixed = a.high;
        status = take_plan(t, limit, fixed, err);
        if (status == MEMFIT_DOES_NOT_FIT && fixed > least && fixed - a.low > WARM_UP_BYTES / 2) {
            a.none = fixed; /* nothing is refused on a guess */
            fixed = a.low < least ? least : a.low + (fixed - a.low) / 2;
            continue;
        }
        if (status != MEMFIT_OK)
            return status;
        uint64_t guess = attempt == 0 && !again ? kernel_guess(t->plan) : 0;
        const uint64_t rest = rest_of(t);
        if (t->plan->arena_bytes + fixed + guess > limit) { /* leave room for the primitives before any is made */
            mf_trainer_withdraw(t);
            fixed += guess;
            continue;
        }
        measure_fixed(t); /* what planning left must not lie below what compiling takes */
        status = mf_reserve(t->plan->arena_bytes, &t->arena, err);
        if (status != MEMFIT_OK) {
            t->refused_us = mf_os_now_us();
            limit = limit_after_refusal(t, limit, fixed, err);
            if (!limit)
                return status;
            *in_force = limit;
            mf_trainer_withdraw(t);
            continue;
        }
        status = make_ready(t, ready, ctx, err);
        if (status == MEMFIT_OK)
            status = measure(t, limit, asked, err);
        if (status != MEMFIT_OK)
            return status;
        const uint64_t held = limit_held(t, limit, asked);
        bool fits = t->fixed_bytes + t->plan->arena_bytes <= held;
        bool best = again || !is_squeezed(t->plan) || fixed + rest <= t->fixed_bytes + WARM_UP_BYTES || fixed == a.high;
        if (fits && best) {
            mf_reserve_pattern(&t->arena);
            t->limit_bytes = held;
            say_planned(t, again);
            if (again)
                t->measured_peak = 0; /* what was seen before belongs to the plan that is gone */
            return MEMFIT_OK;
        }
        learn(&a, fixed, fits);
        fixed = next_assumption(&a, t->fixed_bytes > rest ? t->fixed_bytes - rest : 0, fits);
        mf_trainer_withdraw(t);
        measure_fixed(t);
    }
    return mf_fail(err, MEMFIT_DOES_NOT_FIT, "no assumption of the fixed cost leaves room for a plan");
}

/* A limit that suffices for the smallest plan, where no plan came to be measured: the fixed cost from above, as the
 * planner answers it without starting anything, but with the data that is open here. */
static memfit_status estimate_need(mf_trainer *t, memfit_error *err)
{
    uint64_t bytes[2], now = measure_fixed(t) + WARM_UP_BYTES, fixed;
    unsigned threads = t->options->threads ? t->options->threads : mf_os_cpu_count();
    memfit_status status =
        mf_cpu_fixed_bytes(&t->graph_source, t->host, t->mode, t->batch, threads, bytes, &fixed, err);
    if (status != MEMFIT_OK)
        return status;
    if (fixed < now + bytes[0] + bytes[1])
        fixed = now + bytes[0] + bytes[1];
    mf_plan *plan = NULL;
    status = make_plan(t, 1, fixed, &plan, err);
    mf_plan_destroy(plan);
    if (status == MEMFIT_DOES_NOT_FIT)
        t->least_need = err->requested_bytes;
    return status == MEMFIT_DOES_NOT_FIT ? MEMFIT_OK : status;
}

memfit_status mf_trainer_admit(mf_trainer *t, uint64_t limit,
                               memfit_status (*ready)(void *, mf_trainer *, memfit_error *), void *ctx,
                               memfit_error *err)
{
    memfit_error own;
    err = err ? err : &own;
    const bool again = t->fixed_bytes != 0;
    const uint64_t asked = limit;
    t->least_need = 0;
    memfit_status status = admit(t, &limit, ready, ctx, err);
    if (status != MEMFIT_DOES_NOT_FIT || again)
        return status;
    mf_trainer_withdraw(t);
    status = t->least_need ? MEMFIT_OK : estimate_need(t, err);
    if (status != MEMFIT_OK)
        return status;
    uint64_t need = t->least_need + WARM_UP_BYTES;
    need = need > limit ? need : limit + WARM_UP_BYTES;
    char took[24], text[24], where[200] = "";
    const char *tail = strchr(err->message, ';'); /* "; the hungriest operation is in layer ..." */
    uint64_t alone = measure_fixed(t);
    if (alone > limit)
        snprintf(where, sizeof where, "; the process alone, before any tensor, has %s",
                 memfit_size_format(alone, text, sizeof text));
    else
        snprintf(where, sizeof where, "%s", tail ? tail : "");
    status = mf_fail(err, MEMFIT_DOES_NOT_FIT,
                     "batch %lld does not fit: the smallest plan found needs %s, %s %s%s\n"
                     "memfit plan shows what holds it, and what would fit",
                     (long long)t->batch, mf_format_need(need, took, sizeof took),
                     limit < asked ? "the machine can give no more than" : "the limit is",
                     memfit_size_format(limit, text, sizeof text), where);
    err->requested_bytes = need;
    err->limit_bytes = limit;
    return status;
}

/* ---- measuring -------------------------------------------------------------------------------------------- */

uint64_t mf_trainer_used(const mf_trainer *t)
{
    uint64_t used = 0;
    for (uint32_t v = 0; v < t->plan->variable_count; v++) {
        uint64_t at = t->plan->variable_offsets[v];
        if (at == MF_NO_OFFSET)
            continue;
        uint64_t end = at + t->plan->variable_bytes[v];
        if (end > used && mf_reserve_changed(&t->arena, at, end))
            used = end;
    }
    for (uint32_t p = 0; p < t->plan->phase_count; p++) {
        const mf_phase *phase = &t->plan->phases[p];
        for (uint32_t i = 0; i < phase->placed_count; i++) {
            uint64_t end = phase->placed[i].offset + phase->placed[i].bytes;
            if (end > used && mf_reserve_changed(&t->arena, phase->placed[i].offset, end))
                used = end;
        }
    }
    /* A range reaches to the next multiple of the alignment: no other tensor can begin before. */
    uint64_t a = t->plan->alignment ? t->plan->alignment : 1;
    used = (used + a - 1) / a * a;
    return used > t->plan->arena_bytes ? t->plan->arena_bytes : used;
}

double mf_trainer_metric(const mf_trainer *t, uint32_t metric)
{
    const mf_metric_view *m = &t->metrics[metric];
    const float *s = mf_executor_variable(t->executor, m->variable);
    if (!s)
        return 0;
    double a = (double)s[0], b = (double)s[1];
    switch (m->attr.function) {
    case MF_METRIC_PRECISION:
    case MF_METRIC_RECALL:
        return a + b > 0 ? a / (a + b) : 0;
    case MF_METRIC_METRIC_RMSE:
        return b > 0 ? sqrt(a / b) : 0;
    case MF_METRIC_AUC: { /* trapezoids over the 200 thresholds, highest first */
        const float *tp = s, *fp = s + 200, *tn = s + 400, *fn = s + 600;
        double area = 0, x0 = 0, y0 = 0;
        for (int i = 199; i >= 0; i--) {
            double p = (double)(tp[i] + fn[i]), n = (double)(fp[i] + tn[i]);
            double x = n > 0 ? (double)fp[i] / n : 0, y = p > 0 ? (double)tp[i] / p : 0;
            area += (x - x0) * (y + y0) / 2;
            x0 = x;
            y0 = y;
        }
        return area;
    }
    default:
        return b > 0 ? a / b : 0;
    }
}

void mf_trainer_clear_metrics(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t i = 0; i < t->metric_count; i++) {
        const mf_variable *v = &g->variables[t->metrics[i].variable];
        void *at = mf_executor_variable(t->executor, t->metrics[i].variable);
        if (at)
            memset(at, 0, mf_shape_count(&v->shape) * mf_dtype_bytes(v->dtype));
    }
}

/* ---- one batch -------------------------------------------------------------------------------------------- */

typedef struct filling {
    mf_feeder *feeder;
    int64_t position, count;
} filling;

static memfit_status fill_feed(void *ctx, uint32_t feed, void *address, memfit_error *err)
{
    filling *f = ctx;
    return mf_feeder_fill(f->feeder, feed, f->position, f->count, address, err);
}

/* The largest phase of these roles that is not larger than what is left; -1 when there is none. */
static int next_phase(const mf_plan *plan, uint32_t roles, int64_t left)
{
    int best = -1;
    for (uint32_t p = 0; p < plan->phase_count; p++)
        if ((roles >> plan->phases[p].role & 1) && plan->phases[p].batch <= left &&
            (best < 0 || plan->phases[p].batch > plan->phases[best].batch))
            best = (int)p;
    return best;
}

static uint32_t roles_for(const mf_trainer *t, bool validate, int64_t count)
{
    if (t->mode == MF_MODE_PREDICT)
        return 1u << MF_PHASE_PREDICT;
    if (validate || t->mode == MF_MODE_EVALUATE)
        return 1u << MF_PHASE_VALIDATE | 1u << MF_PHASE_VALIDATE_REST;
    if (count == t->plan->batch)
        return 1u << MF_PHASE_TRAIN | 1u << MF_PHASE_TRAIN_REST;
    return 1u << MF_PHASE_LAST_BATCH | 1u << MF_PHASE_LAST_REST;
}

/* After an update accumulators are zero, as Keras's are: a file may be written at any step of a group. */
static void clear_gradients(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t i = 0; i < g->variable_count; i++) {
        void *at = g->variables[i].role == MF_VAR_GRADIENT ? mf_executor_variable(t->executor, i) : NULL;
        if (at)
            memset(at, 0, mf_shape_count(&g->variables[i].shape) * mf_dtype_bytes(g->variables[i].dtype));
    }
}

memfit_status mf_trainer_batch(mf_trainer *t, bool validate, int64_t position, int64_t count, double *loss,
                               memfit_error *err)
{
    mf_feeder *feeder = validate ? t->validation_feeder : t->feeder;
    uint64_t group = mf_trainer_graph(t)->accumulation_steps, iteration = t->state.iteration;
    group = group && t->mode == MF_MODE_TRAIN ? group : 1;
    memfit_status status = mf_source_still_whole(feeder->source, err);
    if (status != MEMFIT_OK)
        return status;
    mf_run_scalars s = {.seed = t->state.seed,
                        .step = t->state.iteration,
                        .batch_samples = (double)count,
                        .weight_sum = mf_feeder_weight_sum(feeder, position, count),
                        .learning_rate = mf_schedule_at(&t->schedule, t->state.iteration) * t->state.rate_factor,
                        .loss_scale = t->state.loss_scale,
                        .iteration = iteration / group,
                        .continues = iteration % group != 0,
                        .holds = (iteration + 1) % group != 0};
    uint32_t roles = roles_for(t, validate, count);
    for (int64_t done = 0; done < count;) {
        int p = next_phase(t->plan, roles, count - done);
        if (p < 0)
            return mf_fail(err, MEMFIT_INTERNAL, "the plan has no phase for %lld of a batch of %lld samples",
                           (long long)(count - done), (long long)count);
        int64_t batch = t->plan->phases[p].batch;
        filling f = {feeder, position + done, batch};
        s.first_sample = (uint64_t)done;
        if (done)
            status = mf_source_still_whole(feeder->source, err);
        if (status == MEMFIT_OK)
            status =
                mf_executor_run(t->executor, (uint32_t)p, &s, done == 0, done + batch == count, fill_feed, &f, err);
        if (status == MEMFIT_OK && t->after_piece)
            status = t->after_piece(t->after_ctx, (uint32_t)p, err);
        if (status != MEMFIT_OK)
            return status;
        done += batch;
    }
    if (group > 1 && !s.holds && !validate)
        clear_gradients(t);
    uint32_t v = mf_trainer_graph(t)->loss_variable;
    const float *value = v == MF_NONE ? NULL : mf_executor_variable(t->executor, v);
    *loss = value ? (double)*value : 0;
    return MEMFIT_OK;
}
