/* options.c: reading options from tables, and showing what went wrong. */
#include "cli/cli.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int cli_exit_status(memfit_status status)
{
    switch (status) {
    case MEMFIT_OK:
        return CLI_DONE;
    case MEMFIT_INVALID:
    case MEMFIT_CONFLICT:
        return CLI_USAGE;
    case MEMFIT_DOES_NOT_FIT:
    case MEMFIT_OUT_OF_MEMORY:
        return CLI_NO_FIT;
    case MEMFIT_UNSUPPORTED:
        return CLI_UNSUPPORTED;
    case MEMFIT_NOT_FOUND:
    case MEMFIT_DAMAGED:
        return CLI_BAD_INPUT;
    default:
        return CLI_FAILED;
    }
}

int cli_usage_error(const cli_command *command, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "memfit %s: %s\n  memfit %s --help says how\n", command->name, text, command->name);
    return CLI_USAGE;
}

static void print_help(const cli_command *command, const cli_option *options, const char *text)
{
    printf("usage: memfit %s\n\n%s\n\n", command->usage, command->summary);
    for (const cli_option *o = options; o && o->names; o++) {
        char left[64];
        snprintf(left, sizeof left, "%.*s%s%s", (int)strcspn(o->names, "|"), o->names, o->argument ? " " : "",
                 o->argument ? o->argument : "");
        printf("  %-34s %s\n", left, o->help);
    }
    printf("  %-34s %s\n  %-34s %s\n  %-34s %s\n  %-34s %s\n", "--json",
           "one JSON object on standard output, nothing else", "-v", "more detail", "--quiet", "no progress, no notes",
           "--help", "this text");
    if (text)
        printf("\n%s", text);
}

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

static int set_value(const cli_command *command, const cli_option *o, const char *name, const char *value)
{
    char *end;
    switch (o->type) {
    case CLI_FLAG:
        *(bool *)o->value = true;
        break;
    case CLI_STRING:
        *(const char **)o->value = value;
        break;
    case CLI_SIZE: {
        uint64_t bytes;
        memfit_error err;
        if (memfit_size_parse(value, UINT64_MAX >> 2, &bytes, &err) != MEMFIT_OK)
            return cli_usage_error(command, "%s: %s\n  %s", name, err.message, err.hint);
        *(const char **)o->value = value;
        break;
    }
    case CLI_COUNT:
        errno = 0;
        *(int64_t *)o->value = strtoll(value, &end, 10);
        if (end == value || *end || errno || *(int64_t *)o->value < 0)
            return cli_usage_error(command, "%s %s: a whole number is wanted", name, value);
        break;
    case CLI_NUMBER:
        *(double *)o->value = strtod(value, &end);
        if (end == value || *end || !isfinite(*(double *)o->value))
            return cli_usage_error(command, "%s %s: a number is wanted", name, value);
        break;
    }
    return CLI_DONE;
}

static int unknown_option(const cli_command *command, const cli_option *options, const char *word, size_t n)
{
    enum { MOST = 64 };
    char names[MOST][40], typed[64];
    const char *words[MOST + 1];
    size_t count = 0;
    static const char *const always[] = {"--json", "--quiet", "--help"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        words[count++] = always[i];
    for (const cli_option *o = options; o && o->names && count < MOST; o++) {
        snprintf(names[count], sizeof names[count], "%.*s", (int)strcspn(o->names, "|"), o->names);
        words[count] = names[count];
        count++;
    }
    words[count] = NULL;
    snprintf(typed, sizeof typed, "%.*s", (int)n, word);
    const char *near = mf_nearest(typed, words);
    if (near)
        return cli_usage_error(command, "unknown option %s; did you mean %s?", typed, near);
    return cli_usage_error(command, "unknown option %s", typed);
}

int cli_parse(const cli_command *command, int argc, char **argv, const cli_option *options, cli_common *common,
              const char **operands, int least, int most, int *operand_count, const char *text)
{
    *common = (cli_common){0};
    int count = 0;
    bool only_operands = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (only_operands || word[0] != '-' || !word[1]) {
            if (count >= most)
                return cli_usage_error(command, "one argument too many: \"%s\"", word);
            operands[count++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_operands = true;
            continue;
        }
        size_t n = strncmp(word, "--", 2) == 0 ? strcspn(word, "=") : strlen(word);
        bool *flag = is_named("--json", word, n)         ? &common->json
                     : is_named("--quiet|-q", word, n)   ? &common->quiet
                     : is_named("--verbose|-v", word, n) ? &common->verbose
                     : is_named("--help|-h", word, n)    ? &common->help
                                                         : NULL;
        const cli_option *o = options;
        if (!flag)
            while (o && o->names && !is_named(o->names, word, n))
                o++;
        if (!flag && (!o || !o->names))
            return unknown_option(command, options, word, n);
        const char *value = word[n] == '=' ? word + n + 1 : NULL;
        if (flag || o->type == CLI_FLAG) {
            if (value)
                return cli_usage_error(command, "%.*s takes no value", (int)n, word);
            if (flag)
                *flag = true;
            else
                set_value(command, o, word, NULL);
            continue;
        }
        if (!value && i + 1 < argc)
            value = argv[++i];
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)n, word);
        if (!value)
            return cli_usage_error(command, "%s wants a value: %s", name, o->argument);
        int status = set_value(command, o, name, value);
        if (status)
            return status;
    }
    if (common->help) {
        print_help(command, options, text);
        return CLI_DONE;
    }
    if (count < least)
        return cli_usage_error(command, count ? "an argument is missing" : "what? an argument is missing: memfit %s",
                               command->usage);
    if (operand_count)
        *operand_count = count;
    return CLI_DONE;
}

int cli_report(const cli_common *common, const memfit_error *err)
{
    if (common->json) {
        mf_json_writer w;
        mf_json_begin(&w, stdout);
        mf_json_open(&w, NULL, '{');
        mf_json_open(&w, "error", '{');
        mf_json_put_string(&w, "code", memfit_status_name(err->code));
        mf_json_put_string(&w, "message", err->message);
        mf_json_put_string(&w, "hint", err->hint);
        mf_json_close(&w, '}');
        mf_json_close(&w, '}');
        mf_json_end(&w);
    }
    fprintf(stderr, "memfit: %s\n", err->message);
    if (err->hint[0])
        fprintf(stderr, "  %s\n", err->hint);
    if (common->verbose)
        fprintf(stderr, "  (%s, %s:%d)\n", memfit_status_name(err->code), err->source_file ? err->source_file : "?",
                err->source_line);
    return cli_exit_status(err->code);
}

FILE *cli_message_stream(const cli_common *common)
{
    return common->json || !mf_os_terminal_columns(stdout) ? stderr : stdout;
}

void cli_note(const cli_common *common, const char *format, ...)
{
    if (common->quiet)
        return;
    FILE *f = cli_message_stream(common);
    va_list args;
    va_start(args, format);
    vfprintf(f, format, args);
    va_end(args);
    fputc('\n', f);
}

int cli_not_built(const cli_command *command, int argc, char **argv, const char *next_step)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("usage: memfit %s\n\n%s\n\nNot built yet. %s\n", command->usage, command->summary, next_step);
            return CLI_DONE;
        }
    fprintf(stderr, "memfit: \"%s\" is not built yet\n  %s\n", command->name, next_step);
    return CLI_UNSUPPORTED;
}
