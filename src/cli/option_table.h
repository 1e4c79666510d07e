/*
 * option_table.h: every option of every command, described once.
 *
 * Help, aliases, defaults as they are shown, conflicts, the guard of users' files and the answer to what is not built yet
 * all come from these rows; a command only binds the values it uses. A name may have several rows where it means
 * different things to different commands (--out); each command has at most one of them.
 */
#ifndef MF_CLI_OPTION_TABLE_H
#define MF_CLI_OPTION_TABLE_H

#include "base/guard.h"
#include "cli/cli.h"

typedef enum {
    CLI_FLAG,       /* bool */
    CLI_TEXT,       /* string: taken as it is */
    CLI_SIZE,       /* string: 8GiB, 80%; checked, resolved later */
    CLI_LIMIT,      /* string: a size that something must fit into; a bare number of few bytes is a slip */
    CLI_COUNT,      /* integer from `least` to `most` */
    CLI_COUNTS,     /* string: one or several counts, "16,32,64" */
    CLI_NUMBER,     /* real */
    CLI_PERCENT,    /* real: "2%" or "2" is 0.02 */
    CLI_PARTS,      /* integer: auto is 0, off is 1, else a number of at least 1 */
    CLI_AUTO_OFF,   /* bool: true for off, false for auto */
    CLI_PRECISION,  /* string: float32, mixed_float16 or mixed_bfloat16, however it was spelled */
    CLI_PRECISIONS, /* string: one or several of them, as typed; checked */
    CLI_SHAPE,      /* string: checked */
    CLI_DEVICE,     /* string: cpu, cuda[:I]; host and gpu are understood */
    CLI_WHEN,       /* string: auto, always or never */
    CLI_REPEATED,   /* strings */
} cli_type;

typedef enum { CLI_NO_FILE, CLI_INPUT, CLI_SOURCE /* a file or "synthetic" */, CLI_OUTPUT } cli_file;

typedef struct cli_option {
    const char *names; /* "--batch-size|--batch|-b": the first is the one in the help */
    unsigned commands; /* CLI_PLAN | ... */
    cli_type type;
    const char *argument; /* "N", "SIZE": shown in the help; NULL for flags */
    const char *help;
    const char *usual;   /* what holds when it is not given; NULL: nothing to say */
    int64_t least, most; /* of CLI_COUNT and CLI_PARTS; most 0: no bound */
    const char *slip;    /* more to say when the value is outside these */
    cli_file file;
    mf_file_kind kind;     /* of an output */
    const char *replaces;  /* an output: the option whose file it may replace */
    const char *needs;     /* another option without which it means nothing */
    const char *excludes;  /* another option that contradicts it */
    const char *not_built; /* the next step for who asks for it; NULL: it is built */
} cli_option;

extern const cli_option cli_options[]; /* ends with names NULL */

/* The row of `word` (its first n characters) for a command, or NULL. */
const cli_option *cli_option_find(const cli_command *command, const char *word, size_t n);
/* Its first name, as "--batch-size". */
const char *cli_option_name(const cli_option *option, char *text, size_t bytes);
/* The rows of a command as help prints them. */
void cli_option_help(const cli_command *command, FILE *file);
/* The name a person may have meant by an unknown one, without dashes; NULL when none is near. `text` holds it. */
const char *cli_option_nearest(const cli_command *command, const char *word, size_t n, char *text, size_t bytes);
/* The type of variable that a row's value needs. */
cli_value_type cli_option_value_type(const cli_option *option);

#endif
