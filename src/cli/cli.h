/* cli.h: what the commands share: option tables, exit statuses, the way errors are shown. */
#ifndef MF_CLI_CLI_H
#define MF_CLI_CLI_H

#include "base/json.h"
#include "memfit/base.h"

/* Exit statuses: a contract. */
enum {
    CLI_DONE = 0,
    CLI_FAILED = 1,      /* failed while running */
    CLI_USAGE = 2,       /* wrong usage */
    CLI_NO_FIT = 3,      /* does not fit the limit */
    CLI_UNSUPPORTED = 4, /* the model uses something not supported, or the feature is not built yet */
    CLI_BAD_INPUT = 5,   /* an input file is missing or damaged */
};
int cli_exit_status(memfit_status status);

typedef enum { CLI_FLAG, CLI_STRING, CLI_SIZE, CLI_COUNT, CLI_NUMBER } cli_type;

/* One option. `names` is "--batch-size|--batch|-b": the first is the one in the help. `value` points to bool, const
 * char *, const char * (a size, checked to be one; percentages resolved later), int64_t or double. */
typedef struct cli_option {
    const char *names;
    cli_type type;
    void *value;
    const char *argument; /* "N", "SIZE": shown in the help; NULL for flags */
    const char *help;
} cli_option;

/* The options every command has; filled by cli_parse. */
typedef struct cli_common {
    bool json, quiet, verbose, help;
} cli_common;

typedef struct cli_command {
    const char *name;
    const char *summary; /* one line, for `memfit --help` */
    const char *usage;   /* "plan MODEL [options]" */
    int (*run)(const struct cli_command *command, int argc,
               char **argv); /* argv[0] is the command's name; NULL: not built */
    bool json;               /* --json is among the arguments: wrong usage is an object too */
} cli_command;

/* Reads argv[1..]: options into their values, the rest into `operands` (at most `most`, at least `least`; unless help
 * was asked). Returns CLI_DONE, or CLI_USAGE after saying what is wrong. After --help was printed, *common.help is true
 * and the command returns CLI_DONE at once. "--" ends the options. `text` is the help's closing part (may be NULL). */
int cli_parse(const cli_command *command, int argc, char **argv, const cli_option *options, cli_common *common,
              const char **operands, int least, int most, int *operand_count, const char *text);

/* Prints "memfit: message" and the hint to standard error; with json also {"error":{...}} to standard output. Returns
 * the exit status for err's code. */
int cli_report(const cli_common *common, const memfit_error *err);
/* Wrong usage, said in the same form. Returns CLI_USAGE. */
int cli_usage_error(const cli_command *command, const char *format, ...) MEMFIT_PRINTF(2, 3);
/* A number of threads is at most this (beyond it, thread libraries die rather than refuse). */
enum { CLI_MOST_THREADS = 1024 };
int cli_check_threads(const cli_command *command, int64_t threads);
/* --chunked-loss: "auto" (0, as is NULL), "off" (1) or a number of chunks. */
int cli_read_chunks(const cli_command *command, const char *text, unsigned *chunks);
/* "cuda", "cuda:1", "gpu", "gpu:1": is it the name of a card? */
bool cli_names_card(const char *device);
/* An option that may come several times is taken out of argv before cli_parse: its values go to `list`. */
enum { CLI_MOST_LIST = 16 };
int cli_take_list(const cli_command *command, int *argc, char **argv, const char *name, const char *argument,
                  char *list[CLI_MOST_LIST], size_t *count);
/* A limit written as a bare number below a mebibyte: bytes, as it says, but hardly what was meant. */
void cli_name_missing_unit(const cli_common *common, const char *size);

/* Progress and notes: standard error when standard output is no terminal or --json; nothing under --quiet, which leaves
 * a command's answer and its errors, and drops pictures beside an answer. */
FILE *cli_message_stream(const cli_common *common);
void cli_note(const cli_common *common, const char *format, ...) MEMFIT_PRINTF(2, 3);

/* The commands, one file each. */
#define CLI_COMMANDS(X)                                                                                                \
    X(plan)                                                                                                            \
    X(train)                                                                                                           \
    X(evaluate)                                                                                                        \
    X(predict)                                                                                                         \
    X(run)                                                                                                             \
    X(explain)                                                                                                         \
    X(report_trace)                                                                                                    \
    X(ps)                                                                                                              \
    X(doctor)                                                                                                          \
    X(pack)                                                                                                            \
    X(replay)
#define X(name) int cli_##name(const cli_command *command, int argc, char **argv);
CLI_COMMANDS(X)
#undef X

/* Something of the contract that is not built: says so and what to do instead. Returns CLI_UNSUPPORTED. */
int cli_unsupported(const cli_command *command, const char *message, const char *next_step);
/* A command of the contract that is not built yet: prints its help on --help, otherwise exits 4. */
int cli_not_built(const cli_command *command, int argc, char **argv, const char *next_step);

#endif
