/* cli.h: what the commands share: options, exit statuses, the way errors are shown. */
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

/* The commands: name in C, name on the command line. One bit each. */
#define CLI_COMMANDS(X)                                                                                                \
    X(plan, PLAN)                                                                                                      \
    X(train, TRAIN)                                                                                                    \
    X(evaluate, EVALUATE)                                                                                              \
    X(predict, PREDICT)                                                                                                \
    X(tune, TUNE)                                                                                                      \
    X(run, RUN)                                                                                                        \
    X(explain, EXPLAIN)                                                                                                \
    X(report_trace, REPORT)                                                                                            \
    X(ps, PS)                                                                                                          \
    X(doctor, DOCTOR)                                                                                                  \
    X(pack, PACK)                                                                                                      \
    X(replay, REPLAY)
enum {
#define X(c, bit) CLI_BIT_##bit,
    CLI_COMMANDS(X)
#undef X
#define X(c, bit) CLI_##bit = 1 << CLI_BIT_##bit,
        CLI_COMMANDS(X)
#undef X
};

typedef struct cli_command {
    unsigned bit; /* CLI_PLAN ... */
    const char *name;
    const char *summary;                                                  /* one line, for `memfit --help` */
    const char *usage;                                                    /* "plan MODEL [options]" */
    const char *example;                                                  /* "plan model.keras -b 64", for its help */
    int (*run)(const struct cli_command *command, int argc, char **argv); /* argv[0] is the command's name */
    int least, most;                                                      /* arguments that are no options */
    const char *argument; /* what the first is: "MODEL"; an input file */
    const char *question; /* when it is missing: "which model?" */
    bool json;            /* --json is among the arguments: wrong usage is an object too */
} cli_command;

/* An option that may come several times. */
enum { CLI_MOST_LIST = 16, CLI_MOST_OPERANDS = 2 };
typedef struct cli_list {
    const char *items[CLI_MOST_LIST];
    size_t count;
} cli_list;

/* Where a command wants the value of an option of the table (option_table.h). CLI_BIND checks the variable's type
 * against the option's. The value is left alone when the option is not given. */
typedef enum { CLI_BOOL, CLI_STRING, CLI_INTEGER, CLI_REAL, CLI_STRINGS } cli_value_type;
typedef struct cli_binding {
    const char *name; /* the option's first name */
    void *value;
    cli_value_type type;
} cli_binding;
#define CLI_BIND(option, pointer)                                                                                        \
    {                                                                                                                    \
        option, pointer, _Generic((pointer), bool *                                                                    \
                                  : CLI_BOOL, const char **                                                            \
                                  : CLI_STRING, int64_t *                                                              \
                                  : CLI_INTEGER, double *                                                              \
                                  : CLI_REAL, cli_list *                                                               \
                                  : CLI_STRINGS) \
    }

/* What every command has; filled by cli_parse. */
typedef struct cli_common {
    bool json, quiet, verbose, help;
    bool force;        /* commands that write files */
    const char *color; /* auto, always or never; main has heard it (terminal.h) */
    const char *operands[CLI_MOST_OPERANDS];
    int operand_count;
} cli_common;

/* Reads argv[1..] by the option table: options into their bound values, the rest into common->operands. Checks what
 * options need and exclude, and that no output destroys anything (base/guard.h). Returns CLI_DONE, or another status
 * after saying what is wrong. After --help was printed, common->help is true and the command returns CLI_DONE at once.
 * "--" ends the options. `bindings` ends with {0}; `text` is the help's closing part (may be NULL). */
int cli_parse(const cli_command *command, int argc, char **argv, const cli_binding *bindings, cli_common *common,
              const char *text);

/* Prints "memfit: message" and the hint to standard error; with json also {"error":{...}} to standard output. Returns
 * the exit status for err's code. */
int cli_report(const cli_common *common, const memfit_error *err);
/* Wrong usage, said in the same form; a hint may follow the message, behind "\n". Returns CLI_USAGE. */
int cli_usage_error(const cli_command *command, const char *format, ...) MEMFIT_PRINTF(2, 3);

/* Progress and notes: standard error when standard output is no terminal or --json; nothing under --quiet, which leaves
 * a command's answer, its warnings and its errors, and drops pictures beside an answer. */
FILE *cli_message_stream(const cli_common *common);
void cli_note(const cli_common *common, const char *format, ...) MEMFIT_PRINTF(2, 3);
/* What somebody would regret not to have read: standard error, also under --quiet. */
void cli_warn(const char *format, ...) MEMFIT_PRINTF(1, 2);

/* The commands, one file each. */
#define X(c, bit) int cli_##c(const cli_command *command, int argc, char **argv);
CLI_COMMANDS(X)
#undef X

/* Something of the contract that is not built: says so and what to do instead. Returns CLI_UNSUPPORTED. */
int cli_unsupported(const cli_command *command, const char *message, const char *next_step);

#endif
