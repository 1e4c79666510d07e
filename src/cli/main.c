/* main.c: finds the command and runs it. */
#include "cli/cli.h"
#include "cli/terminal.h"

#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"

#include <errno.h>
#include <string.h>

static const cli_command commands[] = {
    {CLI_PLAN, "plan", "will it fit? from a model file to a memory plan, before running", "plan MODEL [options]",
     "plan resnet50.keras -b 64 --for rtx-4060", cli_plan, 0, 1, "MODEL", "which model?", false},
    {CLI_TRAIN, "train", "train a Keras model inside a byte budget", "train MODEL --data SOURCE [options]",
     "train model.keras --data photos/ -b 32 --memory 4GiB --out trained.keras", cli_train, 1, 1, "MODEL",
     "which model?", false},
    {CLI_EVALUATE, "evaluate", "loss and metrics of a model on data", "evaluate MODEL --data SOURCE [options]",
     "evaluate model.keras --data test.npz", cli_evaluate, 1, 1, "MODEL", "which model?", false},
    {CLI_PREDICT, "predict", "a model's outputs on data", "predict MODEL --data SOURCE [--out FILE.npy] [options]",
     "predict model.keras --data test.npz --out outputs.npy", cli_predict, 1, 1, "MODEL", "which model?", false},
    {CLI_TUNE, "tune", "time the methods of a card's libraries once", "tune MODEL --device cuda [--out FILE]",
     "tune model.keras --device cuda", cli_tune, 1, 1, "MODEL", "which model?", false},
    {CLI_RUN, "run", "hold an unmodified program to a share of the card", "run [options] -- COMMAND [ARG...]",
     "run --memory 6GiB -- python train.py", cli_run, 0, 0, NULL, NULL, false},
    {CLI_EXPLAIN, "explain", "why a run ran out of memory: the cause and the line to change",
     "explain LOG|SNAPSHOT|TRACE|- [--model FILE]", "explain train.log", cli_explain, 1, 1, "LOG", "which log?", false},
    {CLI_REPORT, "report", "where a recorded run's memory went, and what grows", "report TRACE [TRACE2] [options]",
     "report run.trace --html memory.html", cli_report_trace, 1, 2, "TRACE", "which trace?", false},
    {CLI_PS, "ps", "who holds memory on the cards", "ps [--watch]", "ps", cli_ps, 0, 0, NULL, NULL, false},
    {CLI_DOCTOR, "doctor", "is this machine set up right?", "doctor [--save FILE] [--compare FILE] [--card-file FILE]",
     "doctor", cli_doctor, 0, 0, NULL, NULL, false},
    {CLI_PACK, "pack", "pack buffers of known lifetime (for people who work on planners)",
     "pack FILE.csv [--capacity N] [--time SECONDS] [--out FILE.csv]", "pack buffers.csv --out packed.csv", cli_pack, 1,
     1, "FILE.csv", "which table of buffers?", false},
    {CLI_REPLAY, "replay", "replay an allocation trace (for people who work on allocators)",
     "replay TRACE.csv [options]", "replay trace.csv --memory 8GiB", cli_replay, 1, 1, "TRACE.csv", "which trace?",
     false},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void print_help(FILE *f)
{
    mf_print(f, "memfit: memory for training neural networks: predicted, bounded, explained.\n\n"
                "usage: memfit COMMAND [arguments]\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        mf_print(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    mf_print(f, "\nmemfit COMMAND --help says more. Every command has --json, -v and --quiet.\n"
                "Exit status: 0 done, 1 failed while running, 2 wrong usage, 3 does not fit the\n"
                "limit, 4 not supported, 5 an input file is missing or damaged.\n");
}

static bool wants_json(int argc, char **argv)
{
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

/* The word of --color, which holds for messages about the other options, too. */
static const char *colour_wanted(int argc, char **argv)
{
    const char *word = NULL;
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strncmp(argv[i], "--color=", 8) == 0)
            word = argv[i] + 8;
        else if (strcmp(argv[i], "--color") == 0 && i + 1 < argc)
            word = argv[i + 1];
    return word;
}

static int unknown_command(const char *name)
{
    const char *words[COMMAND_COUNT + 1] = {0};
    for (int i = 0; i < COMMAND_COUNT; i++)
        words[i] = commands[i].name;
    const char *near = mf_nearest(name, words);
    mf_print(stderr, "memfit: there is no command \"%s\"", name);
    if (near)
        mf_print(stderr, "; did you mean \"%s\"?", near);
    mf_print(stderr, "\n  memfit --help lists the commands\n");
    return CLI_USAGE;
}

static int run_command(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        print_help(stderr);
        return CLI_USAGE;
    }
    bool help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0;
    if (help && argc == 2) {
        print_help(stdout);
        return CLI_DONE;
    }
    char *asked[] = {argv[0], argc > 2 ? argv[2] : NULL, "--help", NULL};
    if (help) /* "memfit help plan" */
        return asked[1][0] == '-' ? run_command(2, argv) : run_command(3, asked);
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        mf_print(stdout, "memfit %s\n", memfit_version());
        return CLI_DONE;
    }
    if (strcmp(name, "estimate") == 0)
        name = "plan";
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name, commands[i].name) == 0) {
            cli_command command = commands[i];
            command.json = wants_json(argc, argv);
            return command.run(&command, argc - 1, argv + 1);
        }
    return unknown_command(name);
}

/* An answer that did not reach its reader (a full disk, a closed descriptor) is a failure, whatever it was. */
int main(int argc, char **argv)
{
    mf_os_keep_standard();
    cli_terminal_begin(wants_json(argc, argv), colour_wanted(argc, argv));
    int status = run_command(argc, argv);
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    mf_print(stderr, "memfit: cannot write to standard output%s%s\n", errno ? ": " : "", errno ? strerror(errno) : "");
    return status == CLI_DONE ? CLI_FAILED : status;
}
