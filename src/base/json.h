/*
 * json.h: JSON read into a tree and written as a stream.
 *
 * Reader: RFC 8259 plus what Python writes (NaN, Infinity, -Infinity). The tree lives in the caller's arena; strings
 * are UTF-8, checked, with escapes resolved; a NUL inside a string is refused. Depth and size are bounded. An error
 * names line and column.
 */
#ifndef MF_BASE_JSON_H
#define MF_BASE_JSON_H

#include "base/memory.h"

#include <stdio.h>

typedef enum { MF_JSON_NULL, MF_JSON_BOOL, MF_JSON_NUMBER, MF_JSON_STRING, MF_JSON_ARRAY, MF_JSON_OBJECT } mf_json_type;

typedef struct mf_json mf_json;
struct mf_json {
    mf_json_type type;
    bool is_integer; /* a number written without point or exponent that fits int64 */
    bool boolean;
    double number;
    int64_t integer;    /* when is_integer; mf_json_integer also takes 3.0 and 1e6 */
    const char *string; /* string value */
    const char *key;    /* this member's name, when inside an object */
    mf_json *first;     /* array and object: children, in order */
    mf_json *next;
    size_t count; /* children */
};

enum { MF_JSON_MOST_DEPTH = 200 };

memfit_status mf_json_parse(mf_arena *arena, const char *text, size_t bytes, mf_json **root, memfit_error *err);

/* Look-ups accept NULL and wrong types, and then give NULL or the fallback: chains need no checks. */
const mf_json *mf_json_get(const mf_json *object, const char *key);
const mf_json *mf_json_at(const mf_json *array, size_t index);
const char *mf_json_string(const mf_json *value, const char *fallback);
double mf_json_number(const mf_json *value, double fallback);
int64_t mf_json_integer(const mf_json *value, int64_t fallback);
bool mf_json_bool(const mf_json *value, bool fallback);
bool mf_json_is_null(const mf_json *value); /* missing or null */
/* get + convert in one */
const char *mf_json_get_string(const mf_json *object, const char *key, const char *fallback);
double mf_json_get_number(const mf_json *object, const char *key, double fallback);
int64_t mf_json_get_integer(const mf_json *object, const char *key, int64_t fallback);
bool mf_json_get_bool(const mf_json *object, const char *key, bool fallback);

/* Building a tree (for what we write back): values in the arena; NULL on lack of memory, and NULL passes through. */
mf_json *mf_json_new(mf_arena *arena, mf_json_type type);
mf_json *mf_json_new_string(mf_arena *arena, const char *text);
mf_json *mf_json_new_number(mf_arena *arena, double number);
mf_json *mf_json_new_integer(mf_arena *arena, int64_t integer);
mf_json *mf_json_new_bool(mf_arena *arena, bool value);
/* Adds (object: under `key`, which is copied). False on lack of memory or a NULL child. */
bool mf_json_add(mf_arena *arena, mf_json *parent, const char *key, mf_json *child);
/* The tree as text, ASCII-escaped as Keras writes it. NULL on lack of memory. */
char *mf_json_print(mf_arena *arena, const mf_json *value, size_t *bytes);

/* ---- streaming writer ---- */
typedef struct mf_json_writer {
    FILE *file;
    unsigned depth;
    bool first[32];
    bool after_key;
} mf_json_writer;

void mf_json_begin(mf_json_writer *w, FILE *file);
void mf_json_open(mf_json_writer *w, const char *key,
                  char bracket);                     /* '{' or '['; key NULL inside arrays, at the root */
void mf_json_close(mf_json_writer *w, char bracket); /* '}' or ']' */
void mf_json_put_string(mf_json_writer *w, const char *key, const char *value); /* NULL value: null */
void mf_json_put_u64(mf_json_writer *w, const char *key, uint64_t value);
void mf_json_put_i64(mf_json_writer *w, const char *key, int64_t value);
void mf_json_put_double(mf_json_writer *w, const char *key, double value); /* not finite: null */
void mf_json_put_bool(mf_json_writer *w, const char *key, bool value);
void mf_json_put_null(mf_json_writer *w, const char *key);
void mf_json_end(mf_json_writer *w); /* newline */

#endif
