/*
 * replan.c: a limit that is lowered while running. The variables go to an unlinked temporary file (not to memory, there
 * is none to spare), the arena is given back, the next plan is made for the new limit, and the variables return.
 * Checked between steps, so what continues is the last finished step.
 */
#include "train/run.h"

#include "base/error.h"
#include "base/os.h"
#include "train/results.h"
#include "train/train_state.h"

/* The limit cannot be kept: writes the checkpoint, if there is one, and err says where. */
static memfit_status stop_for_limit(mf_run *r, uint64_t limit, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    const char *path = t->options->checkpoint;
    char text[24];
    memfit_status status = err->code;
    memfit_error failed;
    mf_error_prefix(err, status, "the limit was lowered to %s after step %llu",
                    memfit_size_format(limit, text, sizeof text), (unsigned long long)t->state.steps);
    if (!path)
        snprintf(err->hint, sizeof err->hint, "with --checkpoint FILE the weights would have been kept");
    else if (t->executor && r->checkpoint && mf_checkpoint_write(r->checkpoint, path, true, &failed) == MEMFIT_OK)
        snprintf(err->hint, sizeof err->hint,
                 "all %llu steps are in %.160s: --resume goes on from it, given more memory",
                 (unsigned long long)t->state.steps, path);
    else
        snprintf(err->hint, sizeof err->hint, "the last whole checkpoint is %.160s", path);
    return status;
}

/* Gives the arena back and goes on in another plan; if that fails, returns to the old one. */
static memfit_status change_plan(mf_run *r, uint64_t limit, unsigned char *space, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    uint64_t old_limit = t->limit_bytes;
    memfit_status status = mf_results_get(t, err);
    if (status != MEMFIT_OK)
        return status;
    struct mf_train_state state = t->state;
    mf_state_save_all(t, space);
    if (r->trace)
        mf_run_trace_end(r->trace);
    mf_checkpoint_destroy(r->checkpoint);
    r->checkpoint = NULL;
    mf_trainer_withdraw(t);
    status = mf_trainer_admit(t, limit, mf_run_take, r, err);
    if (status != MEMFIT_OK) {
        memfit_error ignored;
        mf_checkpoint_destroy(r->checkpoint);
        r->checkpoint = NULL;
        mf_trainer_withdraw(t);
        if (mf_trainer_admit(t, old_limit, mf_run_take, r, &ignored) != MEMFIT_OK)
            mf_trainer_withdraw(t);
    }
    if (t->executor) {
        mf_state_load_all(t, space);
        t->state = state;
        memfit_error failed;
        if (mf_results_put(t, &failed) != MEMFIT_OK && status == MEMFIT_OK) {
            *err = failed;
            status = failed.code;
        }
        mf_run_name_metrics(r);
        if (r->trace)
            mf_run_trace_begin(r->trace, t);
    }
    return status;
}

memfit_status mf_run_replan(mf_run *r, uint64_t limit, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    unsigned char *space;
    uint64_t bytes = mf_state_all_bytes(t);
    memfit_error own;
    err = err ? err : &own;
    t->refused_us = mf_os_now_us();
    uint64_t began = t->refused_us;
    /* Asked while the old plan stands: a refusal costs nothing. The next plan's graphs and savers read the model's
     * file, which is mapped, once more. */
    memfit_status status = mf_model_unchanged(t->model, err);
    if (status == MEMFIT_OK)
        status = mf_trainer_prepare(t, limit, err);
    if (status == MEMFIT_OK)
        status = mf_os_spool_map(bytes, &space, err);
    if (status != MEMFIT_OK)
        return stop_for_limit(r, limit, err);
    status = change_plan(r, limit, space, err);
    mf_os_spool_unmap(space, bytes);
    if (status != MEMFIT_OK)
        return stop_for_limit(r, limit, err);
    r->replans++;
    uint64_t took = mf_os_now_us() - began;
    r->replan_us = took > r->replan_us ? took : r->replan_us;
    char text[24];
    mf_log_write(&t->log, MF_LOG_NOTE,
                 "the limit is now %s: going on in %lld micro-batches, %u operations recomputed%s",
                 memfit_size_format(limit, text, sizeof text), (long long)t->plan->pieces, t->plan->recomputed_ops,
                 t->plan->chunks > 1 ? ", the last layer and its loss in chunks" : "");
    return MEMFIT_OK;
}
