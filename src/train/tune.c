/*
 * tune.c: memfit_tune: every method of every menu of a training step, timed on the device.
 *
 * The step is planned and admitted as for training, so operations run at their places in the arena, on whatever bytes
 * are there. Workspaces differ from method to method: they have memory of their own, as large as the largest.
 */
#include "train/run.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/guard.h"
#include "base/os.h"

#include <stdio.h>
#include <string.h>

enum { REPEATS = 5, ROUNDS = 3, LONG_US = 5000, LOADING_US = 100000, MOST_OPERANDS = 64 };
/* Own kernels stand behind the libraries' for the case that nothing else runs. One whose work alone, by the menu's own
 * figures, takes so many times as long as the first is not worth the second that compiling and running it takes. */
enum { HOPELESS = 20 };

typedef struct tuning {
    mf_trainer *t;
    mf_run *run;
    mf_method_times *times;
    mf_reservation workspace;
    mf_event begin, end;
    const char *out; /* NULL: where training looks */
    uint64_t began_us;
    memfit_tune_result *result;
} tuning;

static memfit_status query(const tuning *u, const mf_graph *g, uint32_t op, mf_cost *cost, memfit_error *err)
{
    return u->t->backend->table->query(u->t->backend, g, op, cost, err);
}

/* One that has a menu, and no whole numbers for operands: those must mean something. */
static bool is_tuned(const mf_graph *g, const mf_op *op, const mf_cost *cost)
{
    if (cost->method_count < 2 || op->in_count + op->out_count > MOST_OPERANDS)
        return false;
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t id = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        mf_dtype dtype = id == MF_NONE ? MF_F32 : g->tensors[id].dtype;
        if (dtype != MF_F32 && dtype != MF_F64 && dtype != MF_F16 && dtype != MF_BF16)
            return false;
    }
    return true;
}

static memfit_status largest_workspace(const tuning *u, const mf_phase *phase, uint64_t *bytes, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    mf_cost cost;
    *bytes = 0;
    for (uint32_t i = 0; i < phase->step_count && status == MEMFIT_OK; i++) {
        uint32_t op = phase->steps[i].op;
        if (phase->graph->ops[op].kind == MF_OP_INPUT)
            continue;
        status = query(u, phase->graph, op, &cost, err);
        for (uint32_t m = 0; m < cost.method_count && status == MEMFIT_OK; m++)
            *bytes = cost.methods[m].workspace_bytes > *bytes ? cost.methods[m].workspace_bytes : *bytes;
    }
    return status;
}

/* Microseconds of `repeats` runs together. */
static memfit_status time_runs(const tuning *u, mf_kernel *kernel, const mf_operands *operands, unsigned repeats,
                               double *us, memfit_error *err)
{
    mf_device *d = u->t->device;
    const mf_run_scalars *scalars = (const mf_run_scalars *)(uintptr_t)u->t->arena.side;
    memfit_status status = d->table->event_record(d, u->begin, u->t->stream, err);
    for (unsigned i = 0; i < repeats && status == MEMFIT_OK; i++)
        status = u->t->backend->table->run(kernel, operands, scalars, u->t->stream, err);
    if (status == MEMFIT_OK)
        status = d->table->event_record(d, u->end, u->t->stream, err);
    if (status == MEMFIT_OK)
        status = d->table->stream_sync(d, u->t->stream, err);
    return status == MEMFIT_OK ? d->table->timer_between(d, u->begin, u->end, us, err) : status;
}

/* The least of a few rounds: what disturbs only adds. One that is far behind `least`, the quickest of its menu so far, is
 * not run again: its place is known. */
static memfit_status time_kernel(const tuning *u, mf_kernel *kernel, const mf_operands *operands, double least,
                                 double *best, memfit_error *err)
{
    double us = 0;
    memfit_status status = time_runs(u, kernel, operands, 1, best, err); /* loads its code */
    if (status != MEMFIT_OK || (least > 0 && *best > 4 * least + LOADING_US))
        return status;
    status = time_runs(u, kernel, operands, 1, best, err);
    if (status != MEMFIT_OK || (least > 0 && *best > 1.2 * least + 10))
        return status;
    unsigned repeats = *best > LONG_US ? 1 : REPEATS;
    for (unsigned i = 0; i < (*best > 4 * LONG_US ? 0 : ROUNDS) && status == MEMFIT_OK; i++) {
        status = time_runs(u, kernel, operands, repeats, &us, err);
        *best = us / repeats < *best ? us / repeats : *best;
    }
    return status;
}

/* A method that the library takes back when it is to be made is left out; what goes wrong on the card ends it all. */
static memfit_status time_method(const tuning *u, const mf_phase *phase, const mf_step *step, const mf_method *method,
                                 double least, double *us, memfit_error *err)
{
    const mf_op *op = &phase->graph->ops[step->op];
    void *at[MOST_OPERANDS];
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++)
        at[i] = step->offsets[i] == MF_NO_OFFSET ? NULL : (void *)(uintptr_t)(u->t->arena.base + step->offsets[i]);
    mf_operands operands = {at, at + op->in_count, (void *)(uintptr_t)u->workspace.base, false};
    mf_kernel *kernel = NULL;
    *us = -1;
    if (u->t->backend->table->prepare(u->t->backend, phase->graph, step->op, method, &kernel, NULL) != MEMFIT_OK)
        return MEMFIT_OK;
    memfit_status status = time_kernel(u, kernel, &operands, least, us, err);
    u->t->backend->table->release(u->t->backend, kernel);
    return status;
}

static double known(const tuning *u, uint64_t like, const mf_cost *cost, uint32_t method)
{
    double us = mf_method_times_find(u->times, like, &cost->methods[method]);
    return us < 0 ? 0 : us;
}

static memfit_status tune_step(tuning *u, const mf_phase *phase, const mf_step *step, memfit_error *err)
{
    const mf_op *op = &phase->graph->ops[step->op];
    mf_cost cost;
    if (op->kind == MF_OP_INPUT)
        return MEMFIT_OK;
    memfit_status status = query(u, phase->graph, step->op, &cost, err);
    if (status != MEMFIT_OK || !is_tuned(phase->graph, op, &cost))
        return status;
    uint64_t like = mf_op_likeness(phase->graph, op);
    bool is_new = mf_method_times_find(u->times, like, &cost.methods[0]) < 0;
    u->result->menus += is_new;
    double least = 0;
    for (uint32_t m = 0; m < cost.method_count && is_new && status == MEMFIT_OK; m++) {
        double us;
        if (least > 0 && cost.methods[m].time_us > HOPELESS * cost.methods[0].time_us)
            continue;
        status = time_method(u, phase, step, &cost.methods[m], least, &us, err);
        least = us >= 0 && (least == 0 || us < least) ? us : least;
        u->result->methods += us >= 0;
        u->result->refused += us < 0;
        if (status == MEMFIT_OK && us >= 0)
            status = mf_method_times_add(u->times, like, &cost.methods[m], us, err);
    }
    if (status != MEMFIT_OK)
        return status;
    uint32_t ranked = mf_cost_choose(&cost, u->t->cost.rules, UINT64_MAX), best = ranked;
    for (uint32_t m = 0; m < cost.method_count; m++) { /* as the planner will see it */
        double us = mf_method_times_find(u->times, like, &cost.methods[m]);
        cost.methods[m].time_us = us < 0 ? 1e12 : us;
    }
    best = mf_cost_choose(&cost, u->t->cost.rules, UINT64_MAX);
    u->result->ranked_ms += known(u, like, &cost, ranked) * 1e-3;
    u->result->tuned_ms += known(u, like, &cost, best) * 1e-3;
    return MEMFIT_OK;
}

/* How far it is, by operations; the event's iteration counts methods. */
static void tell(const tuning *u, uint32_t done, uint32_t all)
{
    const memfit_train_options *o = u->t->options;
    memfit_train_event event = {.size = sizeof event,
                                .step = done,
                                .steps = all,
                                .iteration = u->result->methods,
                                .seconds = (double)(mf_os_now_us() - u->began_us) * 1e-6};
    if (o->progress)
        o->progress(o->ctx, &event);
}

static memfit_status tune_all(tuning *u, memfit_error *err)
{
    mf_trainer *t = u->t;
    const mf_phase *phase = &t->plan->phases[0];
    mf_device *d = t->device;
    uint64_t bytes = 0;
    memfit_status status = mf_method_times_create(t->host, t->backend->made_by, &u->times, err);
    if (status == MEMFIT_OK)
        status = largest_workspace(u, phase, &bytes, err);
    if (status == MEMFIT_OK)
        status = mf_reserve(d, bytes + 256, &u->workspace, err);
    if (status == MEMFIT_OK)
        status = mf_reserve_populate(&u->workspace, err);
    if (status == MEMFIT_OK)
        status = d->table->timer_create(d, &u->begin, err);
    if (status == MEMFIT_OK)
        status = d->table->timer_create(d, &u->end, err);
    u->result->operations = phase->step_count;
    for (uint32_t i = 0; i < phase->step_count && status == MEMFIT_OK; i++) {
        tell(u, i, phase->step_count);
        if (t->options->stop && t->options->stop(t->options->ctx))
            status = mf_fail(err, MEMFIT_INTERRUPTED, "stopped after %u of %u operations: no times are kept", i,
                             phase->step_count);
        else
            status = tune_step(u, phase, &phase->steps[i], err);
    }
    return status;
}

static memfit_status keep(const tuning *u, memfit_error *err)
{
    memfit_tune_result *r = u->result;
    if (u->out)
        snprintf(r->path, sizeof r->path, "%s", u->out);
    else if (!mf_trainer_times_path(u->t, r->path, sizeof r->path))
        return mf_fail(err, MEMFIT_INVALID,
                       "there is no folder to keep the times in\n--out FILE keeps them; MEMFIT_TIMES=FILE uses them");
    snprintf(r->made_by, sizeof r->made_by, "%s", u->t->backend->made_by);
    return mf_method_times_write(u->times, r->path, err);
}

static void end_tuning(tuning *u)
{
    mf_device *d = u->t->device;
    if (u->begin)
        d->table->event_destroy(d, u->begin, NULL);
    if (u->end)
        d->table->event_destroy(d, u->end, NULL);
    mf_unreserve(&u->workspace);
    mf_method_times_destroy(u->times);
}

static memfit_status tune(const memfit_train_options *options, const char *out, memfit_tune_result *result,
                          memfit_error *err)
{
    tuning u = {.result = result, .out = out};
    uint64_t began = mf_os_now_us();
    const mf_named_file files[] = {{"MODEL", options->model, false, MF_FILE_MODEL, NULL},
                                   {"--out", out, true, MF_FILE_TIMES, NULL}};
    memfit_status status =
        mf_guard_files(files, 2, true, err); /* a file of another kind is the caller's own to replace */
    if (status == MEMFIT_OK)
        status = mf_run_create(options, &u.run, err);
    if (status != MEMFIT_OK)
        return status;
    u.t = &u.run->trainer;
    u.began_us = began;
    status = mf_run_start(u.run, options, MF_MODE_TRAIN, err);
    if (status == MEMFIT_OK && !u.t->device->table->timer_create)
        status = mf_fail(err, MEMFIT_UNSUPPORTED, "on %s there is nothing to tune: its methods are this program's own",
                         options->device ? options->device : "cpu");
    if (status == MEMFIT_OK) {
        u.t->backend->wide_menus = true;
        status = tune_all(&u, err);
        if (status == MEMFIT_OK)
            status = keep(&u, err);
        end_tuning(&u);
    }
    mf_run_destroy(u.run, options->host);
    result->seconds = (double)(mf_os_now_us() - began) * 1e-6;
    return status;
}

memfit_status memfit_tune(const memfit_train_options *given, memfit_tune_result *result, memfit_error *err)
{
    memfit_train_options options = MEMFIT_TRAIN_OPTIONS;
    memfit_tune_result out = MEMFIT_TUNE_RESULT;
    memfit_status status = mf_abi_check(result, "MEMFIT_TUNE_RESULT", err);
    if (status == MEMFIT_OK && !given)
        status = mf_fail(err, MEMFIT_INVALID, "no options: a model is needed");
    if (status == MEMFIT_OK)
        status = mf_abi_read(&options, given, "MEMFIT_TRAIN_OPTIONS", err);
    char data[48];
    snprintf(data, sizeof data, "synthetic:%lld", (long long)options.batch);
    options.data = data;
    const char *path = options.out;
    options.out = options.checkpoint = options.resume = NULL; /* nothing is trained, and nothing is said of it */
    options.quiet = true;
    if (status == MEMFIT_OK)
        status = tune(&options, path, &out, err);
    if (status == MEMFIT_OK)
        mf_abi_write(result, &out, sizeof out);
    return status;
}
