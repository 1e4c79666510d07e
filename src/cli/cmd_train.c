/* cmd_train.c: memfit train. */
#include "base/os.h"
#include "base/visible.h"
#include "base/words.h"
#include "cli/count_alloc.h"
#include "cli/train_cli.h"
#include "memfit/plan.h"

#include <math.h>

static const char help[] = "SOURCE is .npy, .npz, .h5, .csv (arrays x and y, or named as the model's\n"
                           "inputs and outputs), TFRecord files, a folder of images by class, - or\n"
                           "synthetic[:N].\n"
                           "SIZE is 512MiB, 8GiB, 1.5GB or 80%; it bounds the whole process. Without\n"
                           "--memory: what is available.\n\n"
                           "  memfit train model.keras --data digits.npz --epochs 5 --memory 300MiB\n"
                           "  memfit train model.keras --data synthetic --memory 2GiB --batch-size 256 --steps 1\n";

/* The options of plan that only show something. */
typedef struct train_plan {
    bool curve;
    const char *dump, *html;
    const train_cli *cli;
} train_plan;

/* What the page says until the run ends, and for ever when it is killed. */
static const mf_measured_run begun = {
    .title = "Measured",
    .message = "The run has not ended yet, or was killed: what it measures comes here at its end."};

static int show_plan(void *ctx)
{
    const train_cli *cli = ((train_plan *)ctx)->cli;
    const train_plan *p = ctx;
    const memfit_train_options *o = &cli->o;
    memfit_plan_options options = MEMFIT_PLAN_OPTIONS;
    char memory[32];
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)o->memory_bytes);
    options.memory = o->memory_bytes ? memory : NULL;
    options.batch = o->batch;
    options.validation_batch = o->validation_batch;
    options.optimizer = o->optimizer;
    options.loss = o->loss;
    options.precision = o->precision;
    options.pieces = o->pieces;
    options.loss_chunks = o->loss_chunks;
    options.no_recompute = o->no_recompute;
    options.allow_changed_numerics = o->allow_changed_numerics;
    options.allow_nondeterministic = o->allow_nondeterministic;
    options.input_shape = cli->input_shape;
    options.dims = cli->dims.items;
    options.dim_count = cli->dims.count;
    options.threads = o->threads;
    options.device = cli->device;
    options.curve_points = p->curve ? 20 : 0;
    memfit_plan *plan;
    memfit_error err;
    memfit_status status = memfit_plan_create(o->model, &options, &plan, &err);
    if (status != MEMFIT_OK)
        return cli_report(&cli->common, &err);
    if (p->curve)
        memfit_plan_print(plan, cli_message_stream(&cli->common), cli->common.verbose);
    if (p->dump)
        status = memfit_plan_dump_graph(plan, p->dump, &err);
    if (p->html && status == MEMFIT_OK)
        status = memfit_plan_write_html((const memfit_plan *const *)&plan, 1, p->html, &err);
    if (p->html && status == MEMFIT_OK && !mf_os_is_stream(p->html))
        status = mf_measured_write(p->html, &(mf_measured){0}, &begun, &err);
    memfit_plan_destroy(plan);
    return status == MEMFIT_OK ? CLI_DONE : cli_report(&cli->common, &err);
}

/* ---- the page's end ---------------------------------------------------------------------------------------- */

static void take_reading(train_cli *cli, uint64_t bytes, const memfit_train_event *e)
{
    mf_measured_sample s = {.seconds = (double)(mf_os_now_us() - cli->began_us) * 1e-6, .bytes = bytes};
    if (e) {
        s.step = (int64_t)e->iteration;
        s.planned_bytes = e->planned_bytes;
        s.limit_bytes = e->limit_bytes;
        s.epoch_end = e->epoch_end;
    }
    mf_measured_add(cli->measured, &s);
}

static void progress(void *ctx, const memfit_train_event *e)
{
    train_cli *cli = ctx;
    if (cli->measured && e->memory_bytes)
        take_reading(cli, e->memory_bytes, e);
    if (!cli->common.quiet)
        train_cli_progress(ctx, e);
}

static void begin_readings(train_cli *cli, mf_measured *m)
{
    mf_os_memory now;
    cli->measured = m;
    cli->began_us = mf_os_now_us();
    mf_measured_init(m);
    if ((!cli->device || mf_words_cpu(cli->device)) && mf_os_process_memory(&now, NULL) == MEMFIT_OK)
        take_reading(cli, now.rss_anon + now.rss_shmem, NULL);
}

/* A page that cannot be completed is a pity, and no failure of a training that is done. */
static void complete_page(const train_cli *cli, const char *path, memfit_status done, const memfit_train_result *r,
                          const memfit_error *why)
{
    const mf_measured *m = cli->measured;
    const mf_measured_sample *last = m->count ? &m->samples[m->count - 1] : NULL;
    char message[sizeof why->message + sizeof why->hint + 2] = "";
    mf_measured_run run = {.title = done == MEMFIT_OK            ? "Measured"
                                    : done == MEMFIT_INTERRUPTED ? "Measured until it was stopped"
                                                                 : "Measured until it failed",
                           .message = message,
                           .allocations = -1};
    if (done == MEMFIT_OK) {
        run.planned_bytes = r->planned_peak_bytes, run.measured_bytes = r->measured_peak_bytes;
        run.fixed_bytes = r->fixed_bytes, run.arena_bytes = r->arena_bytes, run.arena_used_bytes = r->arena_used_bytes;
        run.limit_bytes = r->limit_bytes, run.steps = r->steps, run.step_ms = r->step_ms;
        run.allocations = r->allocations_in_steps;
    } else {
        snprintf(message, sizeof message, "%s\n%s", why->message, why->hint);
        for (uint32_t i = 0; i < m->count; i++)
            run.measured_bytes = m->samples[i].bytes > run.measured_bytes ? m->samples[i].bytes : run.measured_bytes;
        run.planned_bytes = last ? last->planned_bytes : 0;
        run.limit_bytes = last ? last->limit_bytes : 0;
        run.steps = last ? last->step : 0;
        if (!run.steps) {
            run.title = "Not trained";
            run.measured_bytes = 0;
        }
    }
    memfit_error err;
    mf_measured none = {0};
    if (mf_os_is_stream(path))
        cli_note(&cli->common, "--html %s cannot be read back: the page stays that of the plan", path);
    else if (mf_measured_write(path, run.steps || done == MEMFIT_OK ? m : &none, &run, &err) != MEMFIT_OK)
        cli_warn("the page was not completed: %s", err.message);
}

static int train(train_cli *cli, const char *html)
{
    static mf_measured measured;
    memfit_train_options *o = &cli->o;
    memfit_train_result result = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    int status = CLI_DONE;
    o->limit = train_cli_limit;
    if (html)
        begin_readings(cli, &measured);
    if (html || !cli->common.quiet)
        o->progress = progress;
    cli_reserve_begin(o->threads ? o->threads : mf_os_cpu_count());
    train_cli_catch_signals(cli);
    memfit_status done = memfit_train(o, &result, &err);
    cli_reserve_end();
    if (done != MEMFIT_OK)
        status = cli_report(&cli->common, &err);
    if (html)
        complete_page(cli, html, done, &result, &err);
    if (done == MEMFIT_INTERRUPTED)
        train_cli_end_by_signal();
    if (done == MEMFIT_OK)
        train_cli_print(cli, &result, "trained");
    train_cli_end(cli);
    return status;
}

int cli_train(const cli_command *command, int argc, char **argv)
{
    train_cli_short_spin(argv);
    train_cli cli = {0};
    memfit_train_options *o = &cli.o;
    *o = (memfit_train_options)MEMFIT_TRAIN_OPTIONS;
    double rate = NAN;
    int64_t shuffle = -1, steps = -1;
    train_plan plan = {0};
    const cli_binding bindings[] = {CLI_BIND("--data", &o->data),
                                    CLI_BIND("--batch-size", &o->batch),
                                    CLI_BIND("--memory", &cli.memory),
                                    CLI_BIND("--memory-file", &cli.memory_file),
                                    CLI_BIND("--host-memory", &cli.host_memory),
                                    CLI_BIND("--device", &cli.device),
                                    CLI_BIND("--tf32", &cli.tf32),
                                    CLI_BIND("--offload", &cli.offload),
                                    CLI_BIND("--allow-nondeterministic", &o->allow_nondeterministic),
                                    CLI_BIND("--optimizer", &o->optimizer),
                                    CLI_BIND("--loss", &o->loss),
                                    CLI_BIND("--precision", &o->precision),
                                    CLI_BIND("--gradient-accumulation", &o->pieces),
                                    CLI_BIND("--recompute", &o->no_recompute),
                                    CLI_BIND("--chunked-loss", &cli.chunks),
                                    CLI_BIND("--allow-changed-numerics", &o->allow_changed_numerics),
                                    CLI_BIND("--validation-batch-size", &o->validation_batch),
                                    CLI_BIND("--input-shape", &cli.input_shape),
                                    CLI_BIND("--dim", &cli.dims),
                                    CLI_BIND("--threads", &cli.threads),
                                    CLI_BIND("--curve", &plan.curve),
                                    CLI_BIND("--dump-graph", &plan.dump),
                                    CLI_BIND("--html", &plan.html),
                                    CLI_BIND("--epochs", &o->epochs),
                                    CLI_BIND("--steps", &steps),
                                    CLI_BIND("--validation-data", &o->validation_data),
                                    CLI_BIND("--validation-split", &o->validation_split),
                                    CLI_BIND("--learning-rate", &rate),
                                    CLI_BIND("--seed", &cli.seed),
                                    CLI_BIND("--class-weight", &o->class_weight),
                                    CLI_BIND("--early-stopping", &o->early_stopping),
                                    CLI_BIND("--reduce-on-plateau", &o->reduce_on_plateau),
                                    CLI_BIND("--keep-best", &o->keep_best),
                                    CLI_BIND("--shuffle", &shuffle),
                                    CLI_BIND("--shuffle-window", &cli.shuffle_window),
                                    CLI_BIND("--no-shuffle", &o->no_shuffle),
                                    CLI_BIND("--bucket", &o->bucket),
                                    CLI_BIND("--prefetch", &cli.prefetch),
                                    CLI_BIND("--augment", &o->augment),
                                    TRAIN_CLI_INPUT(cli),
                                    CLI_BIND("--out", &o->out),
                                    CLI_BIND("--checkpoint", &o->checkpoint),
                                    CLI_BIND("--save-freq", &o->save_freq),
                                    CLI_BIND("--resume", &o->resume),
                                    CLI_BIND("--log-csv", &o->log_csv),
                                    CLI_BIND("--tensorboard", &o->tensorboard),
                                    CLI_BIND("--trace", &o->trace),
                                    CLI_BIND("--debug-poison", &o->debug_poison),
                                    {0}};
    int status = cli_parse(command, argc, argv, bindings, &cli.common, help);
    if (status != CLI_DONE || cli.common.help)
        return status;
    if (rate <= 0)
        return cli_usage_error(command, "--learning-rate %g: must be more than 0", rate);
    o->model = cli.common.operands[0];
    o->learning_rate = isnan(rate) ? 0 : rate;
    o->no_shuffle = o->no_shuffle || shuffle == 0;
    o->steps = steps > 0 ? steps : 0; /* the library's 0 is no end; --steps 0 is no step */
    o->epochs = steps == 0 ? 0 : o->epochs;
    if (!o->data)
        return cli_usage_error(command, "--data SOURCE is missing: a file, or synthetic");
    status = train_cli_resolve(command, &cli);
    plan.cli = &cli;
    if (status == CLI_DONE && (plan.curve || plan.dump || plan.html)) /* its memory must not be the training's */
        status = mf_os_in_child(show_plan, &plan);
    if (status < 0)
        mf_print(stderr, "memfit train: the plan could not be shown: its process was ended\n");
    return status == CLI_DONE ? train(&cli, plan.html) : status < 0 ? CLI_FAILED : status;
}
