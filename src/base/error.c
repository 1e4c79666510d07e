/* error.c: status names, and errors filled in place. One list in memfit/base.h feeds every table here. */
#include "base/error.h"
#include "base/visible.h"

#include <stdio.h>
#include <string.h>

const char *memfit_version(void)
{
    return MEMFIT_VERSION_STRING;
}

uint32_t memfit_version_number(void)
{
    return MEMFIT_VERSION_NUMBER;
}

const char *memfit_status_name(memfit_status status)
{
    switch (status) {
#define X(code, name, text)                                                                                            \
    case MEMFIT_##name:                                                                                                \
        return #name;
        MEMFIT_STATUS_LIST(X)
#undef X
    }
    return "?";
}

const char *memfit_status_text(memfit_status status)
{
    switch (status) {
#define X(code, name, text)                                                                                            \
    case MEMFIT_##name:                                                                                                \
        return text;
        MEMFIT_STATUS_LIST(X)
#undef X
    }
    return "?";
}

const char *memfit_kind_name(memfit_kind kind)
{
    static const char *const names[] = {
#define X(name, text) text,
        MEMFIT_KIND_LIST(X)
#undef X
    };
    return (unsigned)kind < MEMFIT_KIND_COUNT ? names[kind] : "?";
}

const char *memfit_cause_name(memfit_cause cause)
{
    static const char *const names[] = {
#define X(name, text) text,
        MEMFIT_CAUSE_LIST(X)
#undef X
    };
    return (unsigned)cause < MEMFIT_CAUSE_COUNT ? names[cause] : "?";
}

memfit_status mf_error_vset(memfit_error *err, memfit_status status, const char *file, int line, const char *format,
                            va_list args)
{
    if (!err)
        return status;
    char text[MEMFIT_ERROR_TEXT * 2];
    mf_vformat(text, sizeof text, format, args);
    memset(err, 0, sizeof *err);
    err->code = status;
    err->source_file = file;
    err->source_line = line;
    char *newline = strchr(text, '\n');
    if (newline) {
        *newline = 0;
        snprintf(err->hint, sizeof err->hint, "%.*s", (int)sizeof err->hint - 1, newline + 1);
    }
    snprintf(err->message, sizeof err->message, "%.*s", (int)sizeof err->message - 1, text);
    return status;
}

memfit_status mf_error_set(memfit_error *err, memfit_status status, const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mf_error_vset(err, status, file, line, format, args);
    va_end(args);
    return status;
}

memfit_status mf_error_prefix(memfit_error *err, memfit_status status, const char *format, ...)
{
    if (!err)
        return status;
    char text[MEMFIT_ERROR_TEXT], whole[MEMFIT_ERROR_TEXT * 2];
    va_list args;
    va_start(args, format);
    mf_vformat(text, sizeof text, format, args);
    va_end(args);
    snprintf(whole, sizeof whole, "%s: %s", text, err->message);
    snprintf(err->message, sizeof err->message, "%.*s", (int)sizeof err->message - 1, whole);
    return status;
}

_Noreturn void mf_assert_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "memfit: broken invariant: %s (%s:%d)\n", what, file, line);
    __builtin_trap();
}
