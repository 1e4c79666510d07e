/* output.c: errors, and the lines and tables that a part writes. */
#include "probe.h"

__thread char why[600];
FILE *jsonl, *md;
char out_dir[1024], prop_file[1024], card_file[1024], self_path[1024];

int bad(const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vsnprintf(why, sizeof why, fmt, list);
    va_end(list);
    for (char *p = why; *p != 0; p++)
        if (*p == '"' || *p == '\\' || *p == '\n' || *p == '|')
            *p = '\'';
    return -1;
}

double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One JSON object a line. */
void row(const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vfprintf(jsonl, fmt, list);
    va_end(list);
    fputc('\n', jsonl);
    fflush(jsonl);
}

void text(const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vfprintf(md, fmt, list);
    va_end(list);
    fflush(md);
}
