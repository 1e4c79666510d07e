/* cmd_train.c: memfit train. */
#include "base/os.h"
#include "base/visible.h"
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
    options.input_shape = cli->input_shape;
    options.dims = cli->dims.items;
    options.dim_count = cli->dims.count;
    options.threads = o->threads;
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
    memfit_plan_destroy(plan);
    return status == MEMFIT_OK ? CLI_DONE : cli_report(&cli->common, &err);
}

static int train(train_cli *cli)
{
    memfit_train_options *o = &cli->o;
    memfit_train_result result = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    int status = CLI_DONE;
    o->limit = train_cli_limit;
    if (!o->out && !o->checkpoint)
        cli_note(&cli->common, "without --out FILE.keras or --checkpoint FILE nothing of this training is kept");
    if (!cli->common.quiet)
        o->progress = train_cli_progress;
    cli_reserve_begin();
    train_cli_catch_signals(cli);
    memfit_status done = memfit_train(o, &result, &err);
    cli_reserve_end();
    if (done != MEMFIT_OK)
        status = cli_report(&cli->common, &err);
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
    int64_t shuffle = -1;
    train_plan plan = {0};
    const cli_binding bindings[] = {CLI_BIND("--data", &o->data),
                                    CLI_BIND("--batch-size", &o->batch),
                                    CLI_BIND("--memory", &cli.memory),
                                    CLI_BIND("--memory-file", &cli.memory_file),
                                    CLI_BIND("--host-memory", &cli.host_memory),
                                    CLI_BIND("--device", &cli.device),
                                    CLI_BIND("--tf32", &cli.tf32),
                                    CLI_BIND("--offload", &cli.offload),
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
                                    CLI_BIND("--steps", &o->steps),
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
                                    CLI_BIND("--prefetch", &cli.prefetch),
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
    if (!o->data)
        return cli_usage_error(command, "--data SOURCE is missing: a file, or synthetic");
    status = train_cli_resolve(command, &cli);
    plan.cli = &cli;
    if (status == CLI_DONE && (plan.curve || plan.dump || plan.html)) /* its memory must not be the training's */
        status = mf_os_in_child(show_plan, &plan);
    if (status < 0)
        mf_print(stderr, "memfit train: the plan could not be shown: its process was ended\n");
    return status == CLI_DONE ? train(&cli) : status < 0 ? CLI_FAILED : status;
}
