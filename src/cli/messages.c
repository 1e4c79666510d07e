/* messages.c: exit statuses, and how a command says what went wrong. */
#include "cli/cli.h"
#include "base/visible.h"

#include "base/os.h"
#include "cli/option_table.h"

#include <stdarg.h>
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
    mf_vformat(text, sizeof text, format, args);
    va_end(args);
    snprintf(hint, sizeof hint, "memfit %s --help lists the options", command->name);
    char *more = strchr(text, '\n');
    if (more)
        *more++ = 0;
    bool more_to_say = more && *more;
    mf_print(stderr, "memfit %s: %s\n  %s\n", command->name, text, more_to_say ? more : hint);
    if (command->json)
        print_error_object(MEMFIT_INVALID, text, more_to_say ? more : hint);
    return CLI_USAGE;
}

int cli_report(const cli_common *common, const memfit_error *err)
{
    if (common->json)
        print_error_object(err->code, err->message, err->hint);
    mf_print(stderr, "memfit: %s\n", err->message);
    if (err->hint[0])
        mf_print(stderr, "  %s\n", err->hint);
    if (common->verbose)
        mf_print(stderr, "  (%s, %s:%d)\n", memfit_status_name(err->code), err->source_file ? err->source_file : "?",
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
    mf_vprint(f, format, args);
    va_end(args);
    fputc('\n', f);
}

void cli_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mf_vprint(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

int cli_unsupported(const cli_command *command, const char *message, const char *next_step)
{
    mf_print(stderr, "memfit: %s\n  %s\n", message, next_step);
    if (command->json)
        print_error_object(MEMFIT_UNSUPPORTED, message, next_step);
    return CLI_UNSUPPORTED;
}
