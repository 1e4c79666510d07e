/*
 * visible.h: printing what strangers wrote. Names of models, layers, classes, arrays and members, and lines of logs, come
 * from files anybody may have made. Printed as they are they could move the cursor, hide or forge lines, set a
 * terminal's title, or turn the direction of what follows.
 *
 * So everything that is printed or put into a message goes through one formatter: printf's, but that what %s prints is
 * made visible. Newlines and tabs, other control characters (C0, DEL, C1), bidirectional controls, line separators and
 * bytes that are no UTF-8 appear as \n, \t, \x1b, \u202e, \xff; all else stays as it is. Lines are made by the format
 * alone: a name cannot make one. Text that was made visible once does not change when it is printed again.
 */
#ifndef MF_BASE_VISIBLE_H
#define MF_BASE_VISIBLE_H

#include "memfit/base.h"

#include <stdarg.h>
#include <stdio.h>

/* As fprintf and vfprintf; returns the number of bytes. */
int mf_print(FILE *file, const char *format, ...) MEMFIT_PRINTF(2, 3);
int mf_vprint(FILE *file, const char *format, va_list args) MEMFIT_PRINTF(2, 0);
/* As snprintf and vsnprintf. */
int mf_format(char *out, size_t bytes, const char *format, ...) MEMFIT_PRINTF(3, 4);
int mf_vformat(char *out, size_t bytes, const char *format, va_list args) MEMFIT_PRINTF(3, 0);

/* The code point at text, its length in bytes, and whether it is printed as it is; a byte that begins no UTF-8 is not. */
size_t mf_visible_step(const char *text, size_t bytes, uint32_t *code, bool *plain);

#endif
