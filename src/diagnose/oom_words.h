/* oom_words.h: sizes and words in a line that a program printed. */
#ifndef MF_DIAGNOSE_OOM_WORDS_H
#define MF_DIAGNOSE_OOM_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A line without colours (escape sequences) and NULs; `line` has n + 1 bytes. */
void mf_oom_clean(const char *text, size_t n, char *line);
/* A size as programs print it: "1.50 GiB", "2.00GiB", "0 bytes", "368.64 MiB", "5368709120", "8,589,934,592 bytes",
 * "20341212Ki". */
bool mf_oom_size(const char *p, uint64_t *bytes);
/* The size right after `phrase`; false when the phrase or the size is not there. */
bool mf_oom_size_after(const char *line, const char *phrase, uint64_t *bytes);
/* The size right before `phrase`: "4.00 GiB allowed". */
bool mf_oom_size_before(const char *line, const char *phrase, uint64_t *bytes);
/* The word alone, in any case, no part of a path or of a longer name. */
bool mf_oom_has_word(const char *line, const char *word);

#endif
