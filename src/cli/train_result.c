/* train_result.c: what train, evaluate and predict found: the object of the contract, or a few lines for people. */
#include "cli/train_cli.h"

#include "base/json.h"
#include "base/visible.h"
#include "cli/count_alloc.h"

#include <string.h>

/* What asked for memory while steps ran, by the library that did: a driver's own requests are told from memfit's. */
static void put_allocating(mf_json_writer *w)
{
    cli_allocating list[16];
    unsigned count = cli_allocating_libraries(list, 16);
    mf_json_open(w, "allocations_in_steps_by", '{');
    for (unsigned i = 0; i < count; i++)
        mf_json_put_u64(w, list[i].name, list[i].calls);
    mf_json_close(w, '}');
}

static void print_json(const train_cli *cli, const memfit_train_result *r)
{
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    mf_json_put_string(&w, "device", cli->device ? cli->device : "cpu");
    mf_json_put_u64(&w, "planned_peak_bytes", r->planned_peak_bytes);
    mf_json_put_u64(&w, "measured_peak_bytes", r->measured_peak_bytes);
    mf_json_put_u64(&w, "arena_bytes", r->arena_bytes);
    mf_json_put_u64(&w, "arena_used_bytes", r->arena_used_bytes);
    mf_json_put_u64(&w, "fixed_bytes", r->fixed_bytes);
    mf_json_put_u64(&w, "limit_bytes", r->limit_bytes);
    if (r->allocations_in_steps >= 0) {
        mf_json_put_i64(&w, "allocations_in_steps", r->allocations_in_steps);
        mf_json_put_u64(&w, "reserve_calls_in_steps", cli_reserve_count());
        put_allocating(&w);
    } else {
        mf_json_put_null(&w, "allocations_in_steps");
    }
    mf_json_put_i64(&w, "steps", r->steps);
    mf_json_put_i64(&w, "epochs", r->epochs);
    mf_json_put_double(&w, "step_ms", r->step_ms);
    mf_json_put_double(&w, "step_cpu_ms", r->step_cpu_ms);
    mf_json_put_double(&w, "samples_per_second", r->samples_per_second);
    mf_json_put_double(&w, "first_step_seconds", r->first_step_seconds);
    mf_json_put_double(&w, "input_wait_ms", r->input_wait_ms);
    mf_json_put_double(&w, "input_share", r->input_share);
    mf_json_put_double(&w, "decode_ms", r->decode_ms);
    mf_json_put_u64(&w, "workers", r->workers);
    mf_json_put_u64(&w, "worker_layers", r->worker_layers);
    mf_json_put_u64(&w, "input_bytes", r->input_bytes);
    mf_json_put_i64(&w, "skipped_samples", r->skipped);
    mf_json_put_i64(&w, "cache_found", r->cache_found);
    mf_json_put_u64(&w, "cache_bytes", r->cache_bytes);
    mf_json_open(&w, "classes", '[');
    for (size_t i = 0; i < cli->class_count; i++)
        mf_json_put_string(&w, NULL, cli->classes[i]);
    mf_json_close(&w, ']');
    if (cli->predicts) /* nothing to compare with */
        mf_json_put_null(&w, "loss");
    else
        mf_json_put_double(&w, "loss", r->loss);
    mf_json_open(&w, "metrics", '{');
    for (uint32_t i = 0; i < r->metric_count && !cli->predicts; i++)
        mf_json_put_double(&w, r->metric_names[i], r->metrics[i]);
    mf_json_close(&w, '}');
    if (r->has_validation) {
        mf_json_open(&w, "validation", '{');
        mf_json_put_double(&w, "loss", r->val_loss);
        for (uint32_t i = 0; i < r->metric_count; i++)
            mf_json_put_double(&w, r->metric_names[i], r->val_metrics[i]);
        mf_json_close(&w, '}');
    } else {
        mf_json_put_null(&w, "validation");
    }
    mf_json_put_i64(&w, "batch", r->batch);
    mf_json_put_i64(&w, "pieces", r->pieces);
    mf_json_put_u64(&w, "recomputed_ops", r->recomputed_ops);
    mf_json_put_u64(&w, "loss_chunks", r->loss_chunks);
    mf_json_put_u64(&w, "offloaded_bytes", r->offloaded_bytes);
    mf_json_put_u64(&w, "reference_ops", r->reference_ops);
    mf_json_put_string(&w, "numerics", r->numerics);
    mf_json_put_u64(&w, "nondeterministic_ops", r->nondeterministic_ops);
    mf_json_put_string(&w, "made_by", r->made_by);
    mf_json_put_double(&w, "planned_step_ms", r->planned_step_ms);
    mf_json_put_i64(&w, "replans", r->replans);
    mf_json_put_double(&w, "answer_ms", r->answer_ms);
    mf_json_put_double(&w, "replan_ms", r->replan_ms);
    mf_json_put_bool(&w, "stopped_early", r->stopped_early);
    mf_json_put_string(&w, "out", cli->o.out);
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

void train_cli_print(const train_cli *cli, const memfit_train_result *r, const char *what)
{
    if (cli->common.json) {
        print_json(cli, r);
        return;
    }
    char a[24], b[24], c[24], d[24];
    const bool predicts = cli->predicts, idle = !predicts && r->samples_per_second == 0;
    if (predicts) /* nothing to compare with: no loss */
        mf_print(stdout, "%s: %lld step%s of up to %lld samples", what, (long long)r->steps, r->steps == 1 ? "" : "s",
                 (long long)r->batch);
    else if (idle)
        mf_print(stdout, "%s: no step was left to do", what);
    else
        mf_print(stdout, "%s: loss %.4f", what, r->loss);
    for (uint32_t i = 0; i < r->metric_count && !predicts && !idle; i++)
        mf_print(stdout, ", %s %.4f", r->metric_names[i], r->metrics[i]);
    if (r->has_validation) {
        mf_print(stdout, "; validation loss %.4f", r->val_loss);
        for (uint32_t i = 0; i < r->metric_count; i++)
            mf_print(stdout, ", %s %.4f", r->metric_names[i], r->val_metrics[i]);
    }
    mf_print(stdout, "\nmemory: planned %s (%s fixed + %s arena), measured %s",
             memfit_size_format(r->planned_peak_bytes, a, sizeof a), memfit_size_format(r->fixed_bytes, b, sizeof b),
             memfit_size_format(r->arena_bytes, c, sizeof c), memfit_size_format(r->measured_peak_bytes, d, sizeof d));
    mf_print(stdout, "; arena used %llu of %llu bytes", (unsigned long long)r->arena_used_bytes,
             (unsigned long long)r->arena_bytes);
    if (r->allocations_in_steps >= 0 && !idle)
        mf_print(stdout, "; %lld allocations in %lld step%s", (long long)r->allocations_in_steps, (long long)r->steps,
                 r->steps == 1 ? "" : "s");
    if (!idle) /* else there is no step to time */
        mf_print(stdout, "\ntime: %.1f ms a step, %.0f samples a second", r->step_ms, r->samples_per_second);
    if (r->loss_chunks > 1)
        mf_print(stdout, "; last layer and loss in %u chunks", r->loss_chunks);
    if (r->pieces > 1 || r->recomputed_ops || r->loss_chunks > 1)
        mf_print(stdout, "; %lld micro-batches, %u operations recomputed (%s)", (long long)r->pieces, r->recomputed_ops,
                 r->numerics);
    mf_print(stdout, "\n");
    if (r->workers) {
        mf_print(stdout, "input: %u worker%s and a ring, %s; %.2f ms a sample; steps waited %.0f %% of the time",
                 r->workers, r->workers == 1 ? "" : "s", memfit_size_format(r->input_bytes, a, sizeof a), r->decode_ms,
                 r->input_share * 100);
        if (r->skipped)
            mf_print(stdout, "; %lld sample%s left out", (long long)r->skipped, r->skipped == 1 ? "" : "s");
        mf_print(stdout, "\n");
        if (cli->o.cache && strcmp(cli->o.cache, "off") != 0)
            mf_print(stdout, "cache: %s; %lld samples came from it", cli->o.cache, (long long)r->cache_found);
        if (r->cache_bytes)
            mf_print(stdout, "; %s for %lld of them", memfit_size_format(r->cache_bytes, a, sizeof a),
                     (long long)r->cache_samples);
        if (r->cache_refused)
            mf_print(stdout, "; %lld could not be written to it", (long long)r->cache_refused);
        if (cli->o.cache && strcmp(cli->o.cache, "off") != 0)
            mf_print(stdout, "\n");
    }
    if (cli->o.out)
        mf_print(stdout, "written: %s\n", cli->o.out);
}
