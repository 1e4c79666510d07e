/* options.c: reads a command line by the option table. */
#include "cli/option_table.h"
#include "base/visible.h"

#include "base/error.h"
#include "base/words.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 192, MOST_FILES = 32, NAME = 64 };

typedef struct parser {
    const cli_command *command;
    const cli_binding *bindings;
    cli_common *common;
    const char *given[MOST_ROWS]; /* by row: its last value ("" for flags); NULL: not given */
} parser;

/* Those that every command has are bound here. */
static void *value_of(const parser *p, const cli_option *o)
{
    const cli_binding always[] = {CLI_BIND("--force", &p->common->force), CLI_BIND("--json", &p->common->json),
                                  CLI_BIND("-v", &p->common->verbose),    CLI_BIND("--quiet", &p->common->quiet),
                                  CLI_BIND("--help", &p->common->help),   CLI_BIND("--color", &p->common->color)};
    char name[NAME];
    cli_option_name(o, name, sizeof name);
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (strcmp(always[i].name, name) == 0)
            return always[i].value;
    for (const cli_binding *b = p->bindings; b && b->name; b++)
        if (strcmp(b->name, name) == 0) {
            MEMFIT_ASSERT(b->type == cli_option_value_type(o));
            return b->value;
        }
    return NULL;
}

/* Is this the row that each of its names leads to? */
static bool is_reached(const parser *p, const cli_option *o)
{
    for (const char *name = o->names; *name;) {
        size_t n = strcspn(name, "|");
        if (cli_option_find(p->command, name, n) != o)
            return false;
        name += n + (name[n] == '|');
    }
    return true;
}

/* A row that no command binds, a name that two rows have, a binding that no row describes: slips of ours. */
static void check_bindings(const parser *p)
{
    const cli_option *o = cli_options;
    for (; o->names; o++) {
        MEMFIT_ASSERT(!(o->commands & p->command->bit) || is_reached(p, o));
        MEMFIT_ASSERT(!(o->commands & p->command->bit) || o->not_built || value_of(p, o));
    }
    MEMFIT_ASSERT(o - cli_options <= MOST_ROWS);
    for (const cli_binding *b = p->bindings; b && b->name; b++)
        MEMFIT_ASSERT(cli_option_find(p->command, b->name, strlen(b->name)));
}

/* ---- values ----------------------------------------------------------------------------------------------- */

static int read_count(const parser *p, const cli_option *o, const char *name, const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end)
        return cli_usage_error(p->command, "%s %s: must be a whole number", name, text);
    if (errno)
        return cli_usage_error(p->command, "%s %s: the number is too large", name, text);
    const char *slip = o->slip ? o->slip : "";
    if (n < o->least)
        return cli_usage_error(p->command, "%s %s: must be at least %lld\n%s", name, text, (long long)o->least, slip);
    if (o->most && n > o->most)
        return cli_usage_error(p->command, "%s %s: must be at most %lld\n%s", name, text, (long long)o->most, slip);
    *value = n;
    return CLI_DONE;
}

/* Each part of "a,b,c" as if it stood alone. */
static int read_list(const parser *p, const cli_option *o, const char *name, const char *text, const char **value)
{
    char part[64];
    for (const char *at = text;;) {
        size_t n = strcspn(at, ",");
        int64_t count;
        const char *word;
        memfit_error err;
        snprintf(part, sizeof part, "%.*s", n < sizeof part ? (int)n : (int)sizeof part - 1, at);
        if (o->type == CLI_COUNTS) {
            int status = read_count(p, o, name, part, &count);
            if (status != CLI_DONE)
                return status;
        } else if (mf_words_precision(part, &word, &err) != MEMFIT_OK) {
            return cli_usage_error(p->command, "%s", err.message);
        }
        if (!at[n])
            break;
        at += n + 1;
    }
    *value = text;
    return CLI_DONE;
}

static int read_parts(const parser *p, const cli_option *o, const char *name, const char *text, int64_t *value)
{
    *value = strcmp(text, "off") == 0 ? 1 : 0;
    if (*value || strcmp(text, "auto") == 0)
        return CLI_DONE;
    if (!*text || text[strspn(text, "0123456789")])
        return cli_usage_error(p->command, "%s %s: must be auto, off or a number", name, text);
    return read_count(p, o, name, text, value);
}

static int read_number(const parser *p, const char *name, const char *text, double *value)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return cli_usage_error(p->command, "%s %s: must be a number", name, text);
    *value = x;
    return CLI_DONE;
}

static int read_percent(const parser *p, const char *name, const char *text, double *value)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || (*end && strcmp(end, "%") != 0) || !isfinite(x) || x < 0)
        return cli_usage_error(p->command, "%s %s: must be a percentage, as 2%%", name, text);
    *value = x / 100;
    return CLI_DONE;
}

/* No process fits into less: who writes --memory 8192 means megabytes. */
enum { LEAST_BARE_BYTES = 64 << 10 };

static int read_size(const parser *p, const cli_option *o, const char *name, const char *text, const char **value)
{
    uint64_t bytes;
    memfit_error err;
    if (memfit_size_parse(text, UINT64_MAX >> 2, &bytes, &err) != MEMFIT_OK)
        return cli_usage_error(p->command, "%s: %s\n%s", name, err.message, err.hint);
    if (o->type == CLI_LIMIT && !bytes)
        return cli_usage_error(p->command, "%s %s: nothing fits into that", name, text);
    if (o->type == CLI_LIMIT && bytes < LEAST_BARE_BYTES && !text[strspn(text, "0123456789")])
        return cli_usage_error(p->command,
                               "%s %s: a bare number is bytes, and nothing fits into %s of them\n"
                               "with a unit: %s %sMiB, %s %sGiB",
                               name, text, text, name, text, name, text);
    *value = text;
    return CLI_DONE;
}

static int read_device(const parser *p, const cli_option *o, const char *name, const char *text, const char **value)
{
    bool simulated = strncmp(o->argument, "sim", 3) == 0 && strcmp(text, "sim") == 0;
    if (!simulated && !mf_words_cpu(text) && !mf_words_card(text))
        return cli_usage_error(p->command, "%s %s: must be one of %s", name, text, o->argument);
    *value = mf_words_cpu(text) ? "cpu" : strcmp(text, "gpu") == 0 ? "cuda" : text;
    return CLI_DONE;
}

static int read_word(const parser *p, const cli_option *o, const char *name, const char *text, const char **value)
{
    mf_shape shape;
    memfit_error err;
    if (o->type == CLI_SHAPE && !mf_words_shape(text, strlen(text), &shape))
        return cli_usage_error(p->command, "%s %s: must be a shape, as 224,224,3", name, text);
    if (o->type == CLI_PRECISION) {
        return mf_words_precision(text, value, &err) == MEMFIT_OK ? CLI_DONE
                                                                  : cli_usage_error(p->command, "%s", err.message);
    }
    *value = text;
    return CLI_DONE;
}

static int append(const parser *p, const char *name, const char *text, cli_list *list)
{
    if (list->count == CLI_MOST_LIST)
        return cli_usage_error(p->command, "%s: given more than %d times", name, CLI_MOST_LIST);
    list->items[list->count++] = text;
    return CLI_DONE;
}

static int read_value(const parser *p, const cli_option *o, const char *name, const char *text)
{
    void *value = value_of(p, o);
    switch (o->type) {
    case CLI_FLAG:
        *(bool *)value = true;
        return CLI_DONE;
    case CLI_AUTO_OFF:
        *(bool *)value = strcmp(text, "off") == 0;
        return *(bool *)value || strcmp(text, "auto") == 0
                   ? CLI_DONE
                   : cli_usage_error(p->command, "%s %s: must be auto or off", name, text);
    case CLI_COUNT:
        return read_count(p, o, name, text, value);
    case CLI_COUNTS:
    case CLI_PRECISIONS:
        return read_list(p, o, name, text, value);
    case CLI_PERCENT:
        return read_percent(p, name, text, value);
    case CLI_PARTS:
        return read_parts(p, o, name, text, value);
    case CLI_NUMBER:
        return read_number(p, name, text, value);
    case CLI_SIZE:
    case CLI_LIMIT:
        return read_size(p, o, name, text, value);
    case CLI_DEVICE:
        return read_device(p, o, name, text, value);
    case CLI_REPEATED:
        return append(p, name, text, value);
    case CLI_WHEN:
        if (strcmp(text, "auto") != 0 && strcmp(text, "always") != 0 && strcmp(text, "never") != 0)
            return cli_usage_error(p->command, "%s %s: must be auto, always or never", name, text);
        break;
    case CLI_TEXT:
    case CLI_SHAPE:
    case CLI_PRECISION:
        break;
    }
    return read_word(p, o, name, text, value);
}

/* ---- words ------------------------------------------------------------------------------------------------ */

static int option_not_built(const parser *p, const char *name, const char *next_step)
{
    char message[128];
    snprintf(message, sizeof message, "memfit %s %s is not built yet", p->command->name, name);
    return cli_unsupported(p->command, message, next_step);
}

/* The option in argv[*i], and its value, which may be in the next word. */
static int take_option(parser *p, int argc, char **argv, int *i)
{
    const char *word = argv[*i];
    bool is_short = word[1] != '-'; /* "-b 64", "-b64" or "-b=64" */
    size_t n = is_short ? 2 : strcspn(word, "=");
    const cli_option *o = cli_option_find(p->command, word, n);
    char name[NAME], near[NAME];
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    if (!o) {
        n = is_short ? strlen(word) : n;
        bool found = cli_option_nearest(p->command, word, n, near, sizeof near);
        return cli_usage_error(p->command, "unknown option %.*s%s%s%s", (int)n, word, found ? "; did you mean --" : "",
                               found ? near : "", found ? "?" : "");
    }
    if (o->not_built)
        return option_not_built(p, name, o->not_built);
    const char *value = word[n] == '=' ? word + n + 1 : is_short && word[n] ? word + n : NULL;
    if (o->type == CLI_FLAG && value)
        return cli_usage_error(p->command, "%s takes no value", name);
    if (o->type != CLI_FLAG && !value && *i + 1 < argc)
        value = argv[++*i];
    if (o->type != CLI_FLAG && !value)
        return cli_usage_error(p->command, "%s needs a value: %s", name, o->argument);
    p->given[o - cli_options] = value ? value : "";
    return read_value(p, o, name, value);
}

static int take_words(parser *p, int argc, char **argv)
{
    cli_common *c = p->common;
    bool only_operands = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (only_operands || word[0] != '-' || !word[1]) {
            if (c->operand_count >= p->command->most)
                return cli_usage_error(p->command, "one argument too many: \"%s\"", word);
            c->operands[c->operand_count++] = word;
            continue;
        }
        only_operands = strcmp(word, "--") == 0;
        int status = only_operands ? CLI_DONE : take_option(p, argc, argv, &i);
        if (status != CLI_DONE)
            return status;
    }
    return CLI_DONE;
}

/* ---- what holds between options --------------------------------------------------------------------------- */

static bool is_given(const parser *p, const char *name)
{
    const cli_option *o = cli_option_find(p->command, name, strlen(name));
    return o && p->given[o - cli_options];
}

static int check_together(const parser *p)
{
    char name[NAME];
    for (const cli_option *o = cli_options; o->names; o++) {
        if (!p->given[o - cli_options])
            continue;
        cli_option_name(o, name, sizeof name);
        if (o->needs && !is_given(p, o->needs))
            return cli_usage_error(p->command, "%s means nothing without %s\n%s: %s", name, o->needs, name, o->help);
        if (o->excludes && is_given(p, o->excludes))
            return cli_usage_error(p->command, "%s and %s exclude each other\ngive one of them", name, o->excludes);
    }
    return CLI_DONE;
}

static bool is_synthetic(const char *source)
{
    return strncmp(source, "synthetic", 9) == 0 && (!source[9] || source[9] == ':');
}

/* A word where a file could stand: synthetic data, a cache that is none. */
static bool is_word(const cli_option *o, const char *path)
{
    if (o->file == CLI_SOURCE)
        return is_synthetic(path);
    return o->kind == MF_FILE_CACHE && o->file == CLI_OUTPUT &&
           (strcmp(path, "memory") == 0 || strcmp(path, "off") == 0);
}

/* Every file the options name, before one of them is opened. */
static int guard_files(const parser *p)
{
    mf_named_file files[MOST_FILES];
    char names[MOST_FILES][NAME];
    size_t count = 0;
    const cli_common *c = p->common;
    for (int i = 0; i < c->operand_count; i++)
        if (strcmp(c->operands[i], "-") != 0)
            files[count++] = (mf_named_file){.name = p->command->argument, .path = c->operands[i]};
    for (const cli_option *o = cli_options; o->names; o++) {
        const char *path = p->given[o - cli_options];
        if (!path || o->file == CLI_NO_FILE || is_word(o, path) || count == MOST_FILES)
            continue;
        cli_option_name(o, names[count], NAME);
        if (o->file == CLI_OUTPUT && strcmp(path, "-") == 0)
            return cli_usage_error(p->command,
                                   "%s -: it writes a file, and standard output belongs to the %s\n"
                                   "give the file's name (./- for one that is called so)",
                                   names[count], p->command->bit == CLI_RUN ? "program" : "answer");
        files[count] = (mf_named_file){names[count], path, o->file == CLI_OUTPUT, o->kind, o->replaces};
        count++;
    }
    memfit_error err;
    return mf_guard_files(files, count, c->force, &err) == MEMFIT_OK
               ? CLI_DONE
               : cli_usage_error(p->command, "%s\n%s", err.message, err.hint);
}

int cli_parse(const cli_command *command, int argc, char **argv, const cli_binding *bindings, cli_common *common,
              const char *text)
{
    *common = (cli_common){0};
    parser p = {.command = command, .bindings = bindings, .common = common};
    check_bindings(&p);
    int status = take_words(&p, argc, argv);
    if (status != CLI_DONE)
        return status;
    if (common->help) {
        mf_print(stdout, "example: memfit %s\nusage:   memfit %s\n\n%s\n\n", command->example, command->usage,
                 command->summary);
        cli_option_help(command, stdout);
        if (text) { /* our own, of many lines */
            fputc('\n', stdout);
            fputs(text, stdout);
        }
        return CLI_DONE;
    }
    if (common->operand_count < command->least)
        return cli_usage_error(command, "%s memfit %s", command->question, command->usage);
    status = check_together(&p);
    return status == CLI_DONE ? guard_files(&p) : status;
}
