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

static void print_error_object(memfit_status code, const char *message, const char *hint)
{
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    mf_json_open(&w, "error", '{');
    mf_json_put_string(&w, "code", memfit_status_name(code));
    mf_json_put_string(&w, "message", message);
    mf_json_put_string(&w, "hint", hint);
    mf_json_close(&w, '}');
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

int cli_usage_error(const cli_command *command, const char *format, ...)
{
    char text[1024], hint[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t end = strlen(text);
    while (end && (text[end - 1] == ' ' || text[end - 1] == '\n')) /* a hint that was empty */
        text[--end] = 0;
    snprintf(hint, sizeof hint, "memfit %s --help says how", command->name);
    fprintf(stderr, "memfit %s: %s\n  %s\n", command->name, text, hint);
    if (command->json) {
        char *line = strchr(text, '\n');
        if (line)
            *line++ = 0;
        print_error_object(MEMFIT_INVALID, text, line ? line + strspn(line, " ") : hint);
    }
    return CLI_USAGE;
}

bool cli_names_card(const char *device)
{
    size_t n = strncmp(device, "cuda", 4) == 0 ? 4 : strncmp(device, "gpu", 3) == 0 ? 3 : 0;
    const char *number = device + n + 1;
    return n && (!device[n] || (device[n] == ':' && *number && !number[strspn(number, "0123456789")]));
}

int cli_read_chunks(const cli_command *command, const char *text, unsigned *chunks)
{
    *chunks = 0;
    if (!text || strcmp(text, "auto") == 0)
        return CLI_DONE;
    char *end;
    long long n = strcmp(text, "off") == 0 ? 1 : strtoll(text, &end, 10);
    if (strcmp(text, "off") != 0 && (end == text || *end || n < 1 || n > 4096))
        return cli_usage_error(command, "--chunked-loss %s: auto, off or a number of chunks up to 4096 is wanted",
                               text);
    *chunks = (unsigned)n;
    return CLI_DONE;
}

int cli_check_threads(const cli_command *command, int64_t threads)
{
    return threads <= CLI_MOST_THREADS
               ? CLI_DONE
               : cli_usage_error(command, "--threads %lld: at most %d", (long long)threads, CLI_MOST_THREADS);
}

int cli_take_list(const cli_command *command, int *argc, char **argv, const char *name, const char *argument,
                  char *list[CLI_MOST_LIST], size_t *count)
{
    int kept = 1;
    const size_t n = strlen(name);
    for (int i = 1; i < *argc; i++) {
        if (strncmp(argv[i], name, n) != 0 || (argv[i][n] && argv[i][n] != '=')) {
            argv[kept++] = argv[i];
            continue;
        }
        char *value = argv[i][n] ? argv[i] + n + 1 : i + 1 < *argc ? argv[++i] : NULL;
        if (!value)
            return cli_usage_error(command, "%s wants a value: %s", name, argument);
        if (*count == CLI_MOST_LIST)
            return cli_usage_error(command, "more than %d times %s", CLI_MOST_LIST, name);
        list[(*count)++] = value;
    }
    *argc = kept;
    return CLI_DONE;
}

void cli_name_missing_unit(const cli_common *common, const char *size)
{
    if (size && *size && size[strspn(size, "0123456789")] == 0 && strtoull(size, NULL, 10) < 1 << 20)
        cli_note(common, "memfit: --memory %s is %s bytes; was a unit meant, as in %sMiB?", size, size, size);
}

int cli_unsupported(const cli_command *command, const char *message, const char *next_step)
{
    fprintf(stderr, "memfit: %s\n  %s\n", message, next_step);
    if (command->json)
        print_error_object(MEMFIT_UNSUPPORTED, message, next_step);
    return CLI_UNSUPPORTED;
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
           "one JSON object on standard output, nothing else", "-v", "more detail", "--quiet",
           "the answer only: no progress, notes or pictures", "--help", "this text");
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

/* The name a person may have meant: one letter or two off, or one that the typed word is a part of ("--accumulation").
 * Names are compared without their dashes, which all have in common. */
static int unknown_option(const cli_command *command, const cli_option *options, const char *word, size_t n)
{
    enum { MOST = 96 };
    char names[MOST][40], typed[64];
    const char *words[MOST + 1];
    size_t count = 0;
    static const char *const always[] = {"json", "quiet", "help", "verbose"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        words[count++] = always[i];
    for (const cli_option *o = options; o && o->names; o++)
        for (const char *p = o->names; *p && count < MOST; p += strcspn(p, "|"), p += *p == '|') {
            size_t dashes = strspn(p, "-");
            if (dashes < 2)
                continue;
            snprintf(names[count], sizeof names[count], "%.*s", (int)(strcspn(p, "|") - dashes), p + dashes);
            words[count] = names[count];
            count++;
        }
    words[count] = NULL;
    snprintf(typed, sizeof typed, "%.*s", (int)n, word);
    const char *bare = typed + strspn(typed, "-"), *near = strlen(bare) > 1 ? mf_nearest(bare, words) : NULL;
    for (size_t i = 0; !near && strlen(bare) > 2 && i < count; i++)
        near = strstr(words[i], bare) ? words[i] : NULL;
    if (near)
        return cli_usage_error(command, "unknown option %s; did you mean --%s?", typed, near);
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
        bool is_short = word[1] != '-'; /* "-b 64", "-b64" or "-b=64" */
        size_t n = is_short ? 2 : strcspn(word, "=");
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
            return unknown_option(command, options, word, is_short ? strlen(word) : n);
        const char *value = word[n] == '=' ? word + n + 1 : is_short && word[n] ? word + n : NULL;
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
    if (common->json)
        print_error_object(err->code, err->message, err->hint);
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
    char message[64];
    snprintf(message, sizeof message, "\"%s\" is not built yet", command->name);
    return cli_unsupported(command, message, next_step);
}
