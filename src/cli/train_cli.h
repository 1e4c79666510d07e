/* train_cli.h: what train, evaluate and predict share on the command line. */
#ifndef MF_CLI_TRAIN_CLI_H
#define MF_CLI_TRAIN_CLI_H

#include "answer/measured_page.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "memfit/device.h"
#include "memfit/train.h"

typedef struct train_cli {
    cli_common common;
    memfit_train_options o;
    const char *memory, *memory_file, *device, *input_shape, *prefetch, *host_memory, *image_size, *image_type,
        *image_decode, *decode_memory, *shuffle_window, *tf32, *offload;
    int64_t threads, seed, chunks, workers;
    cli_list dims; /* "NAME=N" */
    char dim_texts[CLI_MOST_LIST][64];
    const char *dim_names[CLI_MOST_LIST];
    int64_t dim_values[CLI_MOST_LIST];
    bool predicts;   /* there is no loss to show */
    char line[4096]; /* progress */
    double last_draw;
    mf_arena names; /* of labels */
    const char **classes;
    size_t class_count, class_room;
    int64_t epoch_shown, steps_before; /* its number from 1; its steps that an interrupted run did */
    uint64_t limit, limit_read_us;     /* in force; when it was last looked at */
    uint64_t whole;                    /* memory of the device: what --memory is a share of; 0: there is no such card */
    unsigned slips;                    /* readings of --memory-file in a row that were no size */
    mf_measured *measured;             /* for the page of --html; NULL: none was asked for */
    uint64_t began_us;
} train_cli;

/* The options of images and what makes samples, for the table of bindings of a command. */
#define TRAIN_CLI_INPUT(cli)                                                                                           \
    CLI_BIND("--image-size", &(cli).image_size), CLI_BIND("--image-type", &(cli).image_type),                          \
        CLI_BIND("--image-decode", &(cli).image_decode), CLI_BIND("--workers", &(cli).workers),                        \
        CLI_BIND("--decode-memory", &(cli).decode_memory), CLI_BIND("--skip-bad", &(cli).o.skip_bad),                  \
        CLI_BIND("--features", &(cli).o.features), CLI_BIND("--cache", &(cli).o.cache),                                \
        CLI_BIND("--classes", &(cli).o.classes)

/* Starts the program anew with a short spin of OpenMP's waiting threads, unless the environment says how they wait.
 * GNU's default of several milliseconds is ruinous where processors are shared: a thread that spins keeps the one it
 * waits for from running. (One transformer step on two processors with fifteen other jobs: 14.4 s by default, 0.2 to
 * 1.2 s with a short spin.) It is read when the library is loaded, so it must be set before. Returns when there is
 * nothing to do. */
void train_cli_short_spin(char **argv);
/* Options that are more than their text: sizes, shapes, devices. Returns an exit status. */
int train_cli_resolve(const cli_command *command, train_cli *cli);
/* From here on a signal ends the run between two steps, with its files whole, as MEMFIT_INTERRUPTED. What then ends the
 * program is the signal itself, for the shell that waits. */
void train_cli_catch_signals(train_cli *cli);
void train_cli_end_by_signal(void);
void train_cli_progress(void *ctx, const memfit_train_event *event);
void train_cli_note(void *ctx, const char *text);
/* The limit in force while training: what --memory-file says now, and the polite limit of the cgroup. */
uint64_t train_cli_limit(void *ctx);
/* The whole of evaluate and predict, which differ in the call. */
int train_cli_forward(const cli_command *command, int argc, char **argv,
                      memfit_status (*call)(const memfit_train_options *, memfit_train_result *, memfit_error *),
                      const char *what);
/* Lets go of what was kept for the result. */
void train_cli_end(train_cli *cli);
/* The object of the contract, or a few lines for people. */
void train_cli_print(const train_cli *cli, const memfit_train_result *result, const char *what);

#endif
