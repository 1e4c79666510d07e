/* log.h: messages for the person at the terminal. They go to standard error; --quiet silences notes and details, not
 * warnings: what makes the result another one than was asked for, or loses it. */
#ifndef MF_BASE_LOG_H
#define MF_BASE_LOG_H

#include "memfit/base.h"

typedef enum { MF_LOG_ERROR, MF_LOG_WARNING, MF_LOG_NOTE, MF_LOG_DETAIL } mf_log_level;

/* A sink is passed to what may speak; NULL is silence. */
typedef struct mf_log {
    void (*write)(void *ctx, mf_log_level level, const char *text);
    void *ctx;
} mf_log;

void mf_log_write(const mf_log *log, mf_log_level level, const char *format, ...) MEMFIT_PRINTF(3, 4);

#endif
