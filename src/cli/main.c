/* main.c: finds the command and runs it. */
#include "cli/cli.h"

#include "base/text.h"

#include <string.h>

static const cli_command commands[] = {
    {"plan", "will it fit? from a model file to a memory plan, before running", "plan MODEL [options]", cli_plan},
    {"train", "train a Keras model inside a byte budget", "train MODEL --data SOURCE [options]", cli_train},
    {"evaluate", "loss and metrics of a model on data", "evaluate MODEL --data SOURCE [options]", cli_evaluate},
    {"predict", "a model's outputs on data", "predict MODEL --data SOURCE [--out FILE.npy] [options]", cli_predict},
    {"run", "hold an unmodified program to a share of the card", "run [options] -- COMMAND [ARG...]", cli_run},
    {"explain", "an out-of-memory failure that has already happened: cause and cure",
     "explain LOG|SNAPSHOT|TRACE|- [--model FILE]", cli_explain},
    {"report", "a recorded trace as a page, for TensorBoard, for Perfetto", "report TRACE [options]", cli_report_trace},
    {"ps", "who uses the cards", "ps [--watch]", cli_ps},
    {"doctor", "is this machine set up right?", "doctor [--save FILE] [--compare FILE]", cli_doctor},
    {"pack", "pack buffers of known lifetime (for people who work on planners)",
     "pack FILE.csv [--capacity N] [--time SECONDS] [--out FILE.csv]", cli_pack},
    {"replay", "replay an allocation trace (for people who work on allocators)", "replay TRACE.csv [options]",
     cli_replay},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void print_help(FILE *f)
{
    fprintf(f, "memfit: memory for training neural networks: predicted, bounded, explained.\n\n"
               "usage: memfit COMMAND [arguments]\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(f,
            "\nmemfit COMMAND --help says more. Every command has --json, -v and --quiet.\n"
            "Exit status: 0 done, 1 failed while running, 2 wrong usage, 3 does not fit the limit, 4 not supported,\n"
            "5 an input file is missing or damaged.\n");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return CLI_DONE;
    }
    if (strcmp(name, "--version") == 0) {
        printf("memfit %s\n", memfit_version());
        return CLI_DONE;
    }
    if (strcmp(name, "estimate") == 0)
        name = "plan";
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(&commands[i], argc - 1, argv + 1);
    const char *words[COMMAND_COUNT + 1] = {0};
    for (int i = 0; i < COMMAND_COUNT; i++)
        words[i] = commands[i].name;
    const char *near = mf_nearest(name, words);
    fprintf(stderr, "memfit: there is no command \"%s\"", name);
    if (near)
        fprintf(stderr, "; did you mean \"%s\"?", near);
    fprintf(stderr, "\n  memfit --help lists the commands\n");
    return CLI_USAGE;
}
