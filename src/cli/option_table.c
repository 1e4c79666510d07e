/* option_table.c: see option_table.h. The rows stand in the order in which help prints them. */
#include "cli/option_table.h"

#include "base/text.h"
#include "base/visible.h"

#include <string.h>

enum {
    MODELS = CLI_PLAN | CLI_TRAIN | CLI_EVALUATE | CLI_PREDICT,
    STEPS = CLI_PLAN | CLI_TRAIN,
    RUNS = CLI_TRAIN | CLI_EVALUATE | CLI_PREDICT,
    MOST_THREADS = 1024, /* beyond it, thread libraries die rather than refuse */
};

const cli_option cli_options[] = {
    /* ---- the question: model, batch, limit, device ---- */
    {"--data", RUNS, CLI_TEXT, "SOURCE",
     "samples: .npy, .npz, .h5, .csv, TFRecord, a folder of images, - or synthetic[:N]", .file = CLI_SOURCE},
    {"--batch-size|--batch|-b", CLI_PLAN, CLI_COUNTS, "N[,N]", "samples in a step; several make a table", "32",
     .least = 1},
    {"--batch-size|--batch|-b", RUNS | CLI_TUNE, CLI_COUNT, "N", "samples in a step", "32", .least = 1},
    {"--memory", MODELS, CLI_LIMIT, "SIZE", "limit of the whole process: 8GiB, 80%", "what is available"},
    {"--memory-file", CLI_TRAIN, CLI_TEXT, "FILE", "a file with a SIZE, read while training: the limit follows",
     .file = CLI_INPUT},
    {"--host-memory", CLI_TRAIN, CLI_LIMIT, "SIZE", "limit of the host's memory; on cpu the same as --memory"},
    {"--for", CLI_PLAN, CLI_TEXT, "CARD[,CARD]",
     "plan for a card of the table (`list` shows it), or any of a size: 8GB"},
    {"--for", CLI_TRAIN, CLI_TEXT, "CARD", "plan for another card",
     .not_built = "memfit plan --for CARD plans for it; --memory SIZE trains inside as much memory"},
    {"--device", MODELS, CLI_DEVICE, "cpu|cuda[:I]", "this machine's device", "cpu"},

    /* ---- the step ---- */
    {"--optimizer", STEPS, CLI_TEXT, "NAME", "instead of the file's"},
    {"--loss", MODELS, CLI_TEXT, "NAME", "instead of the file's"},
    {"--precision", CLI_PLAN, CLI_PRECISIONS, "NAME[,NAME]", "float32, mixed_float16 or mixed_bfloat16", "the file's"},
    {"--precision", RUNS | CLI_TUNE, CLI_PRECISION, "NAME", "float32, mixed_float16 or mixed_bfloat16", "the file's"},
    {"--gradient-accumulation", STEPS, CLI_PARTS, "auto|off|K", "micro-batches: parts of the batch one after another",
     "auto", .least = 1},
    {"--recompute|--remat", STEPS, CLI_AUTO_OFF, "auto|off", "drop and compute again to save memory", "auto"},
    {"--chunked-loss", STEPS, CLI_PARTS, "auto|off|K", "chunks of the last layer and its loss", "auto", .least = 1,
     .most = 4096},
    {"--allow-changed-numerics", STEPS, CLI_FLAG, NULL, "allow ways that are different maths (changed)"},
    {"--validation-batch-size", STEPS, CLI_COUNT, "N", "samples in a step of validation and prediction",
     "the batch size"},
    {"--samples", CLI_PLAN, CLI_COUNT, "N", "of the training set: may stay on a card with --memory", "unknown"},
    {"--input-shape", MODELS, CLI_SHAPE, "H,W,C", "shape of the first input, where the model leaves it open"},
    {"--dim", MODELS, CLI_REPEATED, "NAME=N", "an open dimension of an input (may be repeated)"},
    {"--assume", CLI_PLAN, CLI_REPEATED, "LAYER=SHAPE[:BYTES]", "stands in for a layer that cannot be read"},
    {"--assume", CLI_TRAIN, CLI_REPEATED, "LAYER=SHAPE[:BYTES]", "a layer that is only assumed cannot be trained",
     .not_built = "memfit plan --assume LAYER=SHAPE plans with it"},
    {"--threads", MODELS, CLI_COUNT, "N", "threads to compute with", "all", .most = MOST_THREADS},

    /* ---- what plan shows ---- */
    {"--curve", STEPS, CLI_FLAG, NULL, "memory against time for 20 budgets"},
    {"--dump-graph", STEPS, CLI_TEXT, "FILE", "write the step as text, or for Graphviz (.dot)", .file = CLI_OUTPUT,
     .kind = MF_FILE_GRAPH},
    {"--html", STEPS, CLI_TEXT, "FILE", "a page for the browser: the plan; of train also what it measured",
     .file = CLI_OUTPUT, .kind = MF_FILE_PAGE},
    {"--runtime", CLI_PLAN, CLI_TEXT, "NAME", "the program asked about: memfit, tensorflow, torch or jax",
     "tensorflow for a card, else memfit"},
    {"--save", CLI_PLAN, CLI_TEXT, "FILE", "keep the plan, for --diff and --baseline", .file = CLI_OUTPUT,
     .kind = MF_FILE_PLAN},
    {"--diff", CLI_PLAN, CLI_TEXT, "FILE", "print only what differs from a plan that was kept", .file = CLI_INPUT},
    {"--baseline", CLI_PLAN, CLI_TEXT, "FILE", "exit 3 when the peak is above a kept plan's", .file = CLI_INPUT},
    {"--tolerance", CLI_PLAN, CLI_PERCENT, "P%", "how far above it may be", "0%", .needs = "--baseline"},
    {"--fail-unless-as-asked", CLI_PLAN, CLI_FLAG, NULL, "exit 3 when micro-batches or recomputation are needed"},

    /* ---- training ---- */
    {"--epochs", CLI_TRAIN, CLI_COUNT, "N", "passes over the data", "1"},
    {"--steps", CLI_TRAIN, CLI_COUNT, "N", "stop after so many steps"},
    {"--validation-data", CLI_TRAIN, CLI_TEXT, "SOURCE", "samples to check with after each epoch", .file = CLI_SOURCE,
     .excludes = "--validation-split"},
    {"--validation-split", CLI_TRAIN, CLI_NUMBER, "F", "check with the last fraction of the data instead"},
    {"--learning-rate|--lr", CLI_TRAIN, CLI_NUMBER, "X", "instead of the file's"},
    {"--seed", CLI_TRAIN, CLI_COUNT, "N", "for shuffling, dropout and first weights", "0"},
    {"--class-weight", CLI_TRAIN, CLI_TEXT, "FILE", "JSON: weight by label", .file = CLI_INPUT},
    {"--early-stopping", CLI_TRAIN, CLI_COUNT, "N", "stop after N epochs without improvement", .least = 1,
     .slip = "1 is the first epoch without improvement; leave it out for never"},
    {"--reduce-on-plateau", CLI_TRAIN, CLI_COUNT, "N", "a tenth of the rate after N such epochs", .least = 1,
     .slip = "1 is the first epoch without improvement; leave it out for never"},
    {"--keep-best", CLI_TRAIN, CLI_FLAG, NULL, "--out gets the best epoch's weights", .needs = "--out"},
    {"--shuffle", CLI_TRAIN, CLI_COUNT, "N", "0: not at all; any other N: files are shuffled whole",
     .excludes = "--no-shuffle"},
    {"--shuffle-window", CLI_TRAIN, CLI_TEXT, "auto|all|N", "mix samples within windows of N, read in blocks", "auto",
     .excludes = "--no-shuffle"},
    {"--no-shuffle", CLI_TRAIN, CLI_FLAG, NULL, "take samples as they are stored"},
    {"--prefetch", CLI_TRAIN, CLI_TEXT, "auto|N", "batches read or made ahead", "1"},
    {"--augment", CLI_TRAIN, CLI_TEXT, "auto|workers|graph", "where Random* layers run: same result", "auto"},
    {"--image-size", RUNS, CLI_TEXT, "H,W", "images are resized to this", "the model's input, else 256,256"},
    {"--image-type", RUNS, CLI_TEXT, "float32|uint8", "of images: as Keras has them, or rounded to bytes", "float32"},
    {"--image-decode", RUNS, CLI_TEXT, "full|scaled", "large JPEGs: every pixel, or smaller ones (changed)", "full"},
    {"--workers", RUNS, CLI_COUNT, "N", "threads that decode", "one per processor", .least = 1, .most = 64},
    {"--decode-memory", RUNS, CLI_LIMIT, "SIZE", "memory of each of these threads", "by the images' headers"},
    {"--features", RUNS, CLI_TEXT, "LIST", "which arrays or features: x=image/encoded,y=label", "inferred"},
    {"--classes", RUNS, CLI_TEXT, "A,B,C", "numbers of labels that are texts: in this order", "sorted"},
    {"--skip-bad", RUNS, CLI_COUNT, "N", "go on without up to N images that cannot be read", "0"},
    {"--offload", CLI_TRAIN, CLI_TEXT, "off|optimizer|auto", "the optimizer's state in host memory, on cards", "off"},
    {"--allow-nondeterministic", STEPS | CLI_TUNE, CLI_FLAG, NULL, "on cards, sums in any order where that is faster"},
    {"--tf32", CLI_TRAIN, CLI_TEXT, "on|off", "quicker float32 products on cards: factors of 10 bits", "off"},
    {"--cache", RUNS, CLI_TEXT, "FILE|memory|off", "keep decoded samples, unpacked arrays", "off", .file = CLI_OUTPUT,
     .kind = MF_FILE_CACHE},
    {"--bucket", CLI_TRAIN, CLI_FLAG, NULL, "batches of sequences of similar length, padded less",
     .excludes = "--no-shuffle"},
    {"--debug-poison", CLI_TRAIN, CLI_FLAG, NULL, "fill released memory with NaN (slow)"},

    /* ---- what training writes ---- */
    {"--out", CLI_TRAIN, CLI_TEXT, "FILE.keras", "where the trained model goes", .file = CLI_OUTPUT,
     .kind = MF_FILE_MODEL},
    {"--out", CLI_EVALUATE | CLI_PREDICT, CLI_TEXT, "FILE.npy", "where the model's outputs go", .file = CLI_OUTPUT,
     .kind = MF_FILE_ARRAY},
    {"--checkpoint", CLI_TRAIN, CLI_TEXT, "FILE", "written while training; may be the --resume file",
     .file = CLI_OUTPUT, .kind = MF_FILE_MODEL, .replaces = "--resume"},
    {"--save-freq", CLI_TRAIN, CLI_COUNT, "N", "every N steps", "each epoch", .needs = "--checkpoint"},
    {"--resume", CLI_TRAIN, CLI_TEXT, "FILE", "go on from a checkpoint", .file = CLI_INPUT},
    {"--log-csv", CLI_TRAIN, CLI_TEXT, "FILE", "one line an epoch", .file = CLI_OUTPUT, .kind = MF_FILE_LOG},
    {"--tensorboard", CLI_TRAIN, CLI_TEXT, "DIR", "event files for TensorBoard", .file = CLI_OUTPUT,
     .kind = MF_FILE_FOLDER},
    {"--trace", CLI_TRAIN, CLI_TEXT, "FILE", "record memory over time, for memfit report", .file = CLI_OUTPUT,
     .kind = MF_FILE_TRACE},

    /* ---- tune, run, report ---- */
    {"--device", CLI_TUNE, CLI_DEVICE, "cuda[:I]", "the card"},
    {"--out", CLI_TUNE, CLI_TEXT, "FILE", "where the times go", "where training looks for them", .file = CLI_OUTPUT,
     .kind = MF_FILE_TIMES},
    {"--growth", CLI_RUN, CLI_FLAG, NULL, "have TensorFlow, JAX and PyTorch take memory as they need it"},
    {"--report", CLI_RUN, CLI_TEXT, "FILE", "write what happened as a JSON object", .file = CLI_OUTPUT,
     .kind = MF_FILE_RUN},
    {"--end-leftovers", CLI_RUN, CLI_FLAG, NULL, "end processes that outlive the program, also after exit status 0"},
    {"--memory|--gpu-memory", CLI_RUN, CLI_LIMIT, "SIZE", "limit of the program and all it starts, on each card"},
    {"--share", CLI_RUN, CLI_TEXT, "NAME", "a limit that several programs have together; the first says --memory"},
    {"--turns", CLI_RUN, CLI_TEXT, "auto|SECONDS", "jobs of a share that do not fit together run by turns",
     .needs = "--share"},
    {"--device", CLI_RUN, CLI_COUNT, "I", "the one card that the program sees, as nvidia-smi counts", "all",
     .most = 1023},
    {"--set", CLI_RUN, CLI_TEXT, "NAME", "change the limit of a share while its programs run", .needs = "--memory",
     .excludes = "--share"},
    {"--story", CLI_RUN, CLI_TEXT, "FILE", "run nothing: print the refusals that memfit.limit noted in FILE",
     .excludes = "--set"},
    {"--host-memory", CLI_RUN, CLI_LIMIT, "SIZE", "limit of the host's memory, by a cgroup where one can be made"},
    {"--trace", CLI_RUN, CLI_TEXT, "FILE", "what each process takes and gives back on card C, to FILE.PID.C",
     .file = CLI_OUTPUT, .kind = MF_FILE_TRACE},
    {"--html", CLI_REPORT, CLI_TEXT, "FILE", "a page for the browser", .file = CLI_OUTPUT, .kind = MF_FILE_PAGE},
    {"--perfetto", CLI_REPORT, CLI_TEXT, "FILE", "for ui.perfetto.dev: counters, steps, refusals", .file = CLI_OUTPUT,
     .kind = MF_FILE_PERFETTO},
    {"--memory-viz", CLI_REPORT, CLI_TEXT, "FILE", "for pytorch.org/memory_viz", .file = CLI_OUTPUT,
     .kind = MF_FILE_VIZ},
    {"--tensorboard", CLI_REPORT, CLI_TEXT, "DIR", "for the memory profile of TensorBoard (xprof)", .file = CLI_OUTPUT,
     .kind = MF_FILE_FOLDER},
    {"--flame", CLI_REPORT, CLI_TEXT, "FILE", "folded stacks of the bytes at the peak", .file = CLI_OUTPUT,
     .kind = MF_FILE_FOLDED},
    {"--model", CLI_REPORT, CLI_TEXT, "FILE", "the model that ran: what memfit's plan of it would have held",
     .file = CLI_INPUT},
    {"--batch-size|--batch|-b", CLI_REPORT, CLI_COUNT, "N", "its batch", "32", .least = 1, .needs = "--model"},
    {"--with-names", CLI_REPORT, CLI_FLAG, NULL, "keep the folders of files in names"},

    /* ---- the others ---- */
    {"--model", CLI_EXPLAIN, CLI_TEXT, "FILE", "the model that was trained: joins the log with its plan",
     .file = CLI_INPUT},
    {"--batch-size|--batch|-b", CLI_EXPLAIN, CLI_COUNT, "N", "its batch", "the log's, else 32", .least = 1,
     .needs = "--model"},
    {"--watch", CLI_PS, CLI_FLAG, NULL, "show it again every second"},
    {"--save", CLI_DOCTOR, CLI_TEXT, "FILE", "write what was found, to compare another machine with",
     .file = CLI_OUTPUT, .kind = MF_FILE_RECORD},
    {"--compare", CLI_DOCTOR, CLI_TEXT, "FILE", "what differs from the machine FILE was saved on", .file = CLI_INPUT},
    {"--card-file", CLI_DOCTOR, CLI_TEXT, "FILE", "write what the cards here say of themselves, to be sent to us",
     .file = CLI_OUTPUT, .kind = MF_FILE_CARDS},
    {"--capacity", CLI_PACK, CLI_SIZE, "N", "a height to stay within (bytes, or with a unit)", "the least"},
    {"--time", CLI_PACK, CLI_NUMBER, "SECONDS", "stop looking after this long", "60"},
    {"--out", CLI_PACK, CLI_TEXT, "FILE.csv", "write the table with a column `offset`", .file = CLI_OUTPUT,
     .kind = MF_FILE_PACKING},
    {"--repack", CLI_PACK, CLI_FLAG, NULL, "offsets in the table are not fixed: find new ones"},
    {"--threads", CLI_PACK, CLI_COUNT, "N", "threads to search with", "one per processor", .most = 64},
    {"--device", CLI_REPLAY, CLI_DEVICE, "sim|cpu|cuda[:I]", "where the memory comes from", "sim"},
    {"--memory", CLI_REPLAY, CLI_LIMIT, "SIZE", "the pool's limit", "what the device has"},
    {"--policy", CLI_REPLAY, CLI_TEXT, "growth|preallocate", "how the pool takes memory", "growth"},
    {"--page", CLI_REPLAY, CLI_SIZE, "SIZE", "size of the pool's pages", "2MiB"},

    /* ---- every command ---- */
    {"--force", STEPS | CLI_EVALUATE | CLI_PREDICT | CLI_RUN | CLI_REPORT | CLI_DOCTOR | CLI_PACK, CLI_FLAG, NULL,
     "let outputs replace files of another kind (never inputs)"},
    {"--json", ~0u, CLI_FLAG, NULL, "one JSON object on standard output, nothing else"},
    {"-v|--verbose", ~0u, CLI_FLAG, NULL, "more detail"},
    {"--quiet|-q", ~0u, CLI_FLAG, NULL, "the answer and warnings only: no progress, notes or pictures"},
    {"--color", ~0u, CLI_WHEN, "auto|always|never", "colour verdicts", "auto: on terminals"},
    {"--help|-h", ~0u, CLI_FLAG, NULL, "this text"},
    {0},
};

/* Is `word` (n characters) one of "a|b|c"? */
static bool is_named(const char *names, const char *word, size_t n)
{
    for (const char *p = names; *p;) {
        size_t m = strcspn(p, "|");
        if (m == n && memcmp(p, word, n) == 0)
            return true;
        p += m + (p[m] == '|');
    }
    return false;
}

const cli_option *cli_option_find(const cli_command *command, const char *word, size_t n)
{
    for (const cli_option *o = cli_options; o->names; o++)
        if (o->commands & command->bit && is_named(o->names, word, n))
            return o;
    return NULL;
}

const char *cli_option_name(const cli_option *option, char *text, size_t bytes)
{
    snprintf(text, bytes, "%.*s", (int)strcspn(option->names, "|"), option->names);
    return text;
}

static void print_row(const cli_option *o, FILE *file)
{
    char left[64];
    snprintf(left, sizeof left, "%.*s%s%s", (int)strcspn(o->names, "|"), o->names, o->argument ? " " : "",
             o->argument ? o->argument : "");
    mf_print(file, "  %-34s %s", left, o->help);
    if (o->usual)
        mf_print(file, " (%s)", o->usual);
    for (const char *p = strchr(o->names, '|'); p; p = strchr(p + 1, '|'))
        mf_print(file, "%s %.*s", p == strchr(o->names, '|') ? "; also" : ",", (int)strcspn(p + 1, "|"), p + 1);
    fputc('\n', file);
}

void cli_option_help(const cli_command *command, FILE *file)
{
    bool later_too = false;
    for (const cli_option *o = cli_options; o->names; o++) {
        later_too |= o->not_built && o->commands & command->bit;
        if (!o->not_built && o->commands & command->bit)
            print_row(o, file);
    }
    if (later_too)
        mf_print(file, "\nnot built yet:\n");
    for (const cli_option *o = cli_options; o->names; o++)
        if (o->not_built && o->commands & command->bit)
            print_row(o, file);
}

/* One letter or two off, or one that the typed word is a part of ("--accumulation"). Names are compared without their
 * dashes, which all have in common. */
const char *cli_option_nearest(const cli_command *command, const char *word, size_t n, char *text, size_t bytes)
{
    enum { MOST = 96, LONGEST = 40 };
    char names[MOST][LONGEST], typed[64];
    const char *words[MOST + 1];
    size_t count = 0;
    for (const cli_option *o = cli_options; o->names; o++)
        for (const char *p = o->commands & command->bit ? o->names : ""; *p && count < MOST;
             p += strcspn(p, "|"), p += *p == '|') {
            size_t dashes = strspn(p, "-");
            if (dashes < 2)
                continue;
            snprintf(names[count], LONGEST, "%.*s", (int)(strcspn(p, "|") - dashes), p + dashes);
            words[count] = names[count];
            count++;
        }
    words[count] = NULL;
    snprintf(typed, sizeof typed, "%.*s", (int)n, word);
    const char *bare = typed + strspn(typed, "-"), *near = strlen(bare) > 1 ? mf_nearest(bare, words) : NULL;
    for (size_t i = 0; !near && strlen(bare) > 2 && i < count; i++)
        near = strstr(words[i], bare) ? words[i] : NULL;
    if (near)
        snprintf(text, bytes, "%s", near);
    return near ? text : NULL;
}

cli_value_type cli_option_value_type(const cli_option *option)
{
    switch (option->type) {
    case CLI_FLAG:
    case CLI_AUTO_OFF:
        return CLI_BOOL;
    case CLI_COUNT:
    case CLI_PARTS:
        return CLI_INTEGER;
    case CLI_NUMBER:
    case CLI_PERCENT:
        return CLI_REAL;
    case CLI_REPEATED:
        return CLI_STRINGS;
    default:
        return CLI_STRING;
    }
}
