/* oom_filter.h: which readers of a log are worth calling for a line. */
#ifndef MF_DIAGNOSE_OOM_FILTER_H
#define MF_DIAGNOSE_OOM_FILTER_H

#include "memfit/base.h"

enum {
    MF_LINE_FAILURE = 1,  /* an allocator or a library that was refused */
    MF_LINE_SETTINGS = 2, /* a variable, or a line that a suggestion would give */
    MF_LINE_FRAME = 4,    /* a traceback's */
    MF_LINE_SERIES = 8,   /* memory, printed again and again */
    MF_LINE_WORDS = 16,   /* of validation and prediction */
    MF_LINE_NAMES = 32,   /* of frameworks */
    MF_LINE_GOES_ON = 64, /* training goes on */
    MF_LINE_HOST = 128,   /* the machine's memory */
    MF_LINE_ALL = 255,
    MF_LINE_FILTER_BITS = 14
};

typedef struct mf_line_filter {
    uint8_t groups[1 << MF_LINE_FILTER_BITS];
    uint8_t again[1 << MF_LINE_FILTER_BITS]; /* by another hash */
} mf_line_filter;

void mf_line_filter_make(mf_line_filter *filter);
/* The groups of readers that may find something in these bytes. The last letters of a line need one byte behind them.
 */
unsigned mf_line_filter_groups(const mf_line_filter *filter, const char *text, size_t bytes);

#endif
