/* log.c: formats a message on the stack and hands it to the sink. */
#include "base/log.h"
#include "base/visible.h"

#include <stdarg.h>
#include <stdio.h>

void mf_log_write(const mf_log *log, mf_log_level level, const char *format, ...)
{
    if (!log)
        return;
    char text[1024];
    va_list args;
    va_start(args, format);
    mf_vformat(text, sizeof text, format, args);
    va_end(args);
    log->write(log->ctx, level, text);
}
