/* fold.h: long lines broken between words. */
#ifndef MF_BASE_FOLD_H
#define MF_BASE_FOLD_H

#include <stdbool.h>
#include <stddef.h>

/* Takes a piece of a line; false: it cannot be written. */
typedef bool (*mf_fold_put)(void *ctx, const char *text, size_t bytes);

/* Writes one line (`bytes` of UTF-8, no newline in it) as lines of at most `columns` cells, a newline behind each. What
 * follows a break stands under the text it continues: behind the last gap of two blanks or more in the line's first
 * five eighths, as in "  --epochs N    passes over the data", behind a number as in "1. this", else two blanks
 * further in than the line. No word is broken: one that is longer than the line stays whole. 0 columns: the line as
 * it is. */
bool mf_fold_line(const char *line, size_t bytes, unsigned columns, mf_fold_put put, void *ctx);

#endif
