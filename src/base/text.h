/* text.h: numbers and tables as people read them. */
#ifndef MF_BASE_TEXT_H
#define MF_BASE_TEXT_H

#include "memfit/base.h"

#include <stdio.h>

/* A growing text in caller's memory: writes what fits, counts what was wanted. Never allocates. */
typedef struct mf_text {
    char *data;
    size_t capacity; /* bytes, the closing zero included */
    size_t length;   /* what was wanted; the text is cut when length >= capacity */
} mf_text;

void mf_text_init(mf_text *text, char *data, size_t capacity);
/* Strings are made visible (visible.h): what was added is text to be shown, whose lines the formats made. */
void mf_text_add(mf_text *text, const char *format, ...) MEMFIT_PRINTF(2, 3);

/* strtod and "%.{digits}g" with a point, whatever LC_NUMERIC the program around us has chosen: what stands in a file
 * must not depend on who reads or writes it. */
double mf_text_to_double(const char *text, char **end);
int mf_text_put_double(char *out, size_t bytes, int digits, double value);

/* memfit_size_format rounded up: a limit of the size as it is written suffices for that many bytes. */
char *mf_format_need(uint64_t bytes, char *text, size_t text_bytes);

/* "12,345,678" */
char *mf_format_count(uint64_t n, char *text, size_t text_bytes);

/* How near two words are: the number of edits, two neighbours exchanged being one, for "did you mean". */
unsigned mf_edit_distance(const char *a, const char *b);
/* The nearest of `words` (NULL-terminated), or NULL when none is near enough to suggest. */
const char *mf_nearest(const char *word, const char *const *words);

/* Bytes of the UTF-8 character that begins here; 0: none does. */
unsigned mf_utf8_length(const char *text);
size_t mf_utf8_put(char *out, uint32_t code_point); /* at most 4 bytes; how many */
int mf_hex_digit(char c);                           /* its value; -1: it is none */
/* Copies what fits into `room` bytes, the closing zero included, and cuts between characters. */
void mf_utf8_copy(char *to, size_t room, const char *from);

/* Display width of UTF-8 text in cells (one a code point). */
size_t mf_text_width(const char *utf8);

#endif
