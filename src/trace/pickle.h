/*
 * pickle.h: Python's pickle format, plain data only, read into a tree.
 *
 * A pickle is a program for a small stack machine, and loading one with Python runs whatever the file says. This reader
 * knows only the instructions that build None, booleans, integers, floats, strings, bytes, lists, tuples and dicts, in
 * every protocol from 0 to 5; an instruction that would name or call anything (GLOBAL, REDUCE, BUILD, ...) is refused
 * by name. Memory is bounded: the tree takes a small multiple of the input's bytes, and mf_arena.limit_bytes holds.
 *
 * Integers must fit 64 bits. The tree may share nodes (Python's memo) and, in a file made for it, contain itself:
 * walk it by known keys, or bound the depth. Strings point into the input where they can, so the input must live as
 * long as the tree; they are not zero-terminated.
 */
#ifndef MF_TRACE_PICKLE_H
#define MF_TRACE_PICKLE_H

#include "base/memory.h"

typedef enum {
    MF_PICKLE_NONE,
    MF_PICKLE_BOOL,
    MF_PICKLE_INT,   /* integer */
    MF_PICKLE_UINT,  /* 2^63 and above: in `integer`, as uint64_t */
    MF_PICKLE_FLOAT, /* number */
    MF_PICKLE_STRING,
    MF_PICKLE_BYTES,
    MF_PICKLE_LIST,
    MF_PICKLE_TUPLE,
    MF_PICKLE_DICT,
} mf_pickle_type;

typedef struct mf_pickle mf_pickle;
struct mf_pickle {
    mf_pickle_type type;
    uint32_t capacity; /* of items */
    size_t count;      /* bytes of a string, items of a list or tuple, 2 x pairs of a dict */
    union {
        int64_t integer; /* also booleans */
        double number;
        const char *data;
        mf_pickle **items; /* dict: key, value, key, value... */
    };
    mf_pickle *older; /* every node of the tree, newest first */
};

typedef struct mf_pickle_tree {
    mf_pickle *root;
    mf_pickle *newest;
    uint64_t nodes;
    unsigned protocol;
} mf_pickle_tree;

/* Errors: DAMAGED (names the byte and the instruction), UNSUPPORTED (an instruction that is not plain data),
 * NO_HOST_MEMORY. */
memfit_status mf_pickle_read(mf_arena *arena, const void *data, size_t bytes, mf_pickle_tree *tree, memfit_error *err);

/* Look-ups accept NULL and wrong types, and then give NULL, 0 or the fallback. */
const mf_pickle *mf_pickle_get(const mf_pickle *dict, const char *key);
const mf_pickle *mf_pickle_at(const mf_pickle *sequence, size_t index); /* list or tuple */
size_t mf_pickle_length(const mf_pickle *sequence);                     /* items of a list or tuple */
int64_t mf_pickle_integer(const mf_pickle *value, int64_t fallback);
uint64_t mf_pickle_unsigned(const mf_pickle *value, uint64_t fallback); /* negative: the fallback */
bool mf_pickle_is(const mf_pickle *value, const char *text);            /* is this string */

/* A string of protocol 0 (`quoted`: the inside of a Python literal; else raw-unicode-escape) as UTF-8: the number of bytes
 * written to `text`, which has room for 2 n + 4. */
size_t mf_pickle_unescape(const char *line, size_t n, bool quoted, char *text);

/* Every node is of a known type and its children are nodes. DAMAGED otherwise (a bug of the reader). */
memfit_status mf_pickle_check(const mf_pickle_tree *tree, memfit_error *err);

#endif
