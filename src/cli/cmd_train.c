/* cmd_train.c: memfit train. */
#include "cli/count_alloc.h"
#include "cli/train_cli.h"
#include "memfit/plan.h"

#include <math.h>

static const char help[] =
    "SOURCE is .npy, .npz, .h5, .csv (arrays x and y, or named as the model's inputs and outputs) or synthetic[:N].\n"
    "SIZE is 512MiB, 8GiB, 1.5GB or 80%; it bounds the whole process. Without --memory: what is available.\n\n"
    "  memfit train model.keras --data digits.npz --epochs 5 --memory 300MiB --out trained.keras\n"
    "  memfit train model.keras --data synthetic --memory 2GiB --batch-size 256 --steps 1\n";

/* The options of plan that only show something. */
typedef struct train_plan {
    bool curve;
    const char *dump, *html, *card;
} train_plan;

static int show_plan(const train_cli *cli, const train_plan *p)
{
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
    options.dims = (const char *const *)cli->dims;
    options.dim_count = cli->dim_count;
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

int cli_train(const cli_command *command, int argc, char **argv)
{
    train_cli_short_spin(argv);
    train_cli cli = {0};
    memfit_train_options *o = &cli.o;
    *o = (memfit_train_options)MEMFIT_TRAIN_OPTIONS;
    double split = 0, rate = NAN;
    bool no_shuffle = false;
    int64_t patience = -1, plateau = -1;
    train_plan plan = {0};
    const cli_option options[] = {
        {"--data", CLI_STRING, &o->data, "SOURCE", "what to train on"},
        {"--batch-size|--batch|-b", CLI_COUNT, &o->batch, "N", "samples in a step (32)"},
        {"--memory", CLI_SIZE, &cli.memory, "SIZE", "limit of the whole process"},
        {"--memory-file", CLI_STRING, &cli.memory_file, "FILE", "holds a SIZE; lowered while training, it is obeyed"},
        {"--device", CLI_STRING, &cli.device, "cpu|cuda[:I]", "where to train (cpu)"},
        {"--optimizer", CLI_STRING, &o->optimizer, "NAME", "instead of the file's"},
        {"--loss", CLI_STRING, &o->loss, "NAME", "instead of the file's"},
        {"--precision", CLI_STRING, &o->precision, "NAME", "float32, mixed_float16 or mixed_bfloat16"},
        {"--gradient-accumulation", CLI_STRING, &cli.accumulation, "auto|off|K", "pieces of a batch (auto)"},
        {"--recompute|--remat", CLI_STRING, &cli.recompute, "auto|off", "compute again instead of keeping (auto)"},
        {"--chunked-loss", CLI_STRING, &cli.chunks, "auto|off|K", "chunks of the last layer and its loss (auto)"},
        {"--allow-changed-numerics", CLI_FLAG, &o->allow_changed_numerics, NULL,
         "allow ways that change the mathematics"},
        {"--validation-batch-size", CLI_COUNT, &o->validation_batch, "N", "as the batch"},
        {"--input-shape", CLI_STRING, &cli.input_shape, "H,W,C", "for models that leave it open"},
        {"--dim", CLI_STRING, NULL, "NAME=N", "an open dimension of an input (may be repeated)"},
        {"--threads", CLI_COUNT, &cli.threads, "N", "all processors"},
        {"--curve", CLI_FLAG, &plan.curve, NULL, "first show the plan, and memory against time"},
        {"--dump-graph", CLI_STRING, &plan.dump, "FILE", "first write the step as text, or for Graphviz (.dot)"},
        {"--html", CLI_STRING, &plan.html, "FILE", "first write the plan as a page for the browser"},
        {"--for", CLI_STRING, &plan.card, "CARD", "for `memfit plan`: training is on this machine"},
        {"--assume", CLI_STRING, NULL, "LAYER=SHAPE[:BYTES]", "for `memfit plan`: it cannot be trained"},
        {"--host-memory", CLI_SIZE, &cli.host_memory, "SIZE", "on cpu the same as --memory"},
        {"--epochs", CLI_COUNT, &o->epochs, "N", "passes over the data (1)"},
        {"--steps", CLI_COUNT, &o->steps, "N", "stop after so many steps"},
        {"--validation-data", CLI_STRING, &o->validation_data, "SOURCE", "checked after each epoch"},
        {"--validation-split", CLI_NUMBER, &split, "F", "the last fraction of the data, instead"},
        {"--learning-rate|--lr", CLI_NUMBER, &rate, "X", "instead of the file's"},
        {"--seed", CLI_COUNT, &cli.seed, "N", "of shuffling, dropout and new weights (0)"},
        {"--class-weight", CLI_STRING, &o->class_weight, "FILE", "JSON: weight by label"},
        {"--early-stopping", CLI_COUNT, &patience, "N", "stop after N epochs without improvement"},
        {"--reduce-on-plateau", CLI_COUNT, &plateau, "N", "a tenth of the rate after N such epochs"},
        {"--keep-best", CLI_FLAG, &o->keep_best, NULL, "--out gets the best epoch's weights"},
        {"--shuffle", CLI_COUNT, &cli.shuffle, "N", "any N: files are shuffled whole"},
        {"--no-shuffle", CLI_FLAG, &no_shuffle, NULL, "take samples as they are stored"},
        {"--prefetch", CLI_STRING, &cli.prefetch, "auto|N", "batches read ahead from large files (1)"},
        {"--out", CLI_STRING, &o->out, "FILE.keras", "where the trained model goes"},
        {"--checkpoint", CLI_STRING, &o->checkpoint, "FILE", "written while training"},
        {"--save-freq", CLI_COUNT, &o->save_freq, "N", "every N steps (each epoch)"},
        {"--resume", CLI_STRING, &o->resume, "FILE", "go on from a checkpoint"},
        {"--log-csv", CLI_STRING, &o->log_csv, "FILE", "one line an epoch"},
        {"--tensorboard", CLI_STRING, &o->tensorboard, "DIR", "event files"},
        {"--trace", CLI_STRING, &o->trace, "FILE", "memory over time"},
        {"--debug-poison", CLI_FLAG, &o->debug_poison, NULL, "fill released memory with NaN (slow)"},
        {0}};
    const char *operands[1] = {0};
    size_t assumed = 0;
    char *assume[CLI_MOST_LIST];
    int status = cli_take_list(command, &argc, argv, "--dim", "NAME=N", cli.dims, &cli.dim_count);
    if (status == CLI_DONE)
        status = cli_take_list(command, &argc, argv, "--assume", "LAYER=SHAPE[:BYTES]", assume, &assumed);
    if (status == CLI_DONE)
        status = cli_parse(command, argc, argv, options, &cli.common, operands, 1, 1, NULL, help);
    if (status != CLI_DONE || cli.common.help)
        return status;
    o->model = operands[0];
    if (rate <= 0)
        return cli_usage_error(command, "--learning-rate %g: must be positive", rate);
    if (patience == 0 || plateau == 0) /* Keras's default of 0 means 1 */
        return cli_usage_error(command, "%s 0: 1 is the first epoch without improvement; leave it out for never",
                               patience == 0 ? "--early-stopping" : "--reduce-on-plateau");
    o->early_stopping = patience > 0 ? patience : 0;
    o->reduce_on_plateau = plateau > 0 ? plateau : 0;
    o->validation_split = split;
    o->learning_rate = isnan(rate) ? 0 : rate;
    o->no_shuffle = no_shuffle;
    if (!o->data)
        return cli_usage_error(command, "--data SOURCE is missing: a file, or synthetic");
    if (o->save_freq && !o->checkpoint) /* nothing would be kept, and nobody would know before it is needed */
        return cli_usage_error(command, "--save-freq says how often --checkpoint FILE is written, and there is none");
    if (o->keep_best && !o->out)
        return cli_usage_error(command, "--keep-best says what goes to --out FILE.keras, and there is none");
    if (plan.card)
        return cli_unsupported(command, "training for another card is not built: it runs on this machine",
                               "memfit plan --for CARD plans for it; --memory SIZE trains inside as much memory");
    if (assumed)
        return cli_unsupported(command, "a layer that is only assumed cannot be trained",
                               "memfit plan --assume LAYER=SHAPE plans with it");
    status = train_cli_resolve(command, &cli);
    if (status == CLI_DONE && (plan.curve || plan.dump || plan.html))
        status = show_plan(&cli, &plan);
    if (status != CLI_DONE)
        return status;
    o->limit = train_cli_limit;
    if (!cli.common.quiet)
        o->progress = train_cli_progress;
    memfit_train_result result = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    cli_reserve_begin();
    train_cli_catch_signals(&cli);
    memfit_status done = memfit_train(o, &result, &err);
    cli_reserve_end();
    if (done != MEMFIT_OK)
        status = cli_report(&cli.common, &err);
    if (done == MEMFIT_INTERRUPTED)
        train_cli_end_by_signal();
    if (done != MEMFIT_OK)
        return status;
    train_cli_print(&cli, &result, "trained");
    return CLI_DONE;
}
