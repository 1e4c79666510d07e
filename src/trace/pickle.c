/*
 * pickle.c: the stack machine of a pickle, cut down to plain data.
 *
 *     bytes  --instruction-->  stack of nodes  --STOP-->  root
 *                 |  ^
 *              PUT|  |GET
 *               memo (index -> node)
 *
 * A MARK on the stack is a NULL pointer. Containers grow by doubling inside the arena and leave their old arrays
 * behind, at most as much again. A memo index is bounded by the bytes of the input, since writers number their PUTs
 * from 0: without the bound five bytes could ask for 32 GiB.
 *
 * Written against the list of instructions in Python's pickletools; each row of the table below is one of them.
 * Sets, frozen sets and out-of-band buffers are data, but no file we read has them, so they are refused too.
 */
#include "trace/pickle.h"

#include "base/error.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct machine {
    mf_arena *arena;
    const unsigned char *data, *at, *end;
    mf_pickle **stack, **memo;
    size_t depth, stack_capacity, memo_count, memo_capacity;
    mf_pickle_tree *tree;
    const char *name; /* of the instruction at work, for errors */
    size_t start;     /* its first byte */
    memfit_error *err;
} machine;

#define BROKEN(m, ...) broken((m), __LINE__, __VA_ARGS__)

static memfit_status broken(machine *m, int line, const char *why)
{
    return mf_error_set(m->err, MEMFIT_DAMAGED, __FILE__, line, "byte %zu (%s): %s", m->start, m->name, why);
}

static memfit_status no_memory(machine *m)
{
    if (m->arena->limit_bytes)
        return mf_fail(m->err, MEMFIT_NO_HOST_MEMORY,
                       "byte %zu: the pickle needs more than the %" PRIu64 " bytes set apart for it", m->start,
                       m->arena->limit_bytes);
    return mf_fail(m->err, MEMFIT_NO_HOST_MEMORY, "byte %zu: no memory for the pickle", m->start);
}

/* ---- stack and memo --------------------------------------------------------------------------------------- */

static bool grow(machine *m, mf_pickle ***array, size_t *capacity, size_t count)
{
    if (count < *capacity)
        return true;
    size_t more = *capacity ? *capacity * 2 : 64;
    while (more <= count)
        more *= 2;
    mf_pickle **fresh = MF_NEW_ARRAY(m->arena, mf_pickle *, more);
    if (!fresh)
        return false;
    if (*capacity)
        memcpy(fresh, *array, *capacity * sizeof **array);
    *array = fresh;
    *capacity = more;
    return true;
}

static memfit_status push(machine *m, mf_pickle *node)
{
    if (!grow(m, &m->stack, &m->stack_capacity, m->depth))
        return no_memory(m);
    m->stack[m->depth++] = node;
    return MEMFIT_OK;
}

static mf_pickle *make(machine *m, mf_pickle_type type)
{
    mf_pickle *node = MF_NEW(m->arena, mf_pickle);
    if (!node)
        return NULL;
    node->type = type;
    node->older = m->tree->newest;
    m->tree->newest = node;
    m->tree->nodes++;
    return node;
}

static memfit_status push_new(machine *m, mf_pickle_type type)
{
    mf_pickle *node = make(m, type);
    return node ? push(m, node) : no_memory(m);
}

static memfit_status push_integer(machine *m, mf_pickle_type type, int64_t value)
{
    mf_pickle *node = make(m, type);
    if (!node)
        return no_memory(m);
    node->integer = value;
    return push(m, node);
}

static memfit_status push_number(machine *m, double value)
{
    mf_pickle *node = make(m, MF_PICKLE_FLOAT);
    if (!node)
        return no_memory(m);
    node->number = value;
    return push(m, node);
}

static memfit_status push_data(machine *m, mf_pickle_type type, const void *data, size_t bytes)
{
    mf_pickle *node = make(m, type);
    if (!node)
        return no_memory(m);
    node->data = data;
    node->count = bytes;
    return push(m, node);
}

/* The index just above the topmost mark; SIZE_MAX when there is none. */
static size_t above_mark(const machine *m)
{
    for (size_t i = m->depth; i-- > 0;)
        if (!m->stack[i])
            return i + 1;
    return SIZE_MAX;
}

static memfit_status append(machine *m, mf_pickle *container, mf_pickle **items, size_t count)
{
    size_t capacity = container->capacity;
    if (container->count + count > capacity) {
        size_t more = capacity ? capacity * 2 : 4;
        if (more < container->count + count)
            more = container->count + count;
        if (more > UINT32_MAX)
            return BROKEN(m, "a container of more than 2^32 items");
        mf_pickle **fresh = MF_NEW_ARRAY(m->arena, mf_pickle *, more);
        if (!fresh)
            return no_memory(m);
        if (container->count)
            memcpy(fresh, container->items, container->count * sizeof *fresh);
        container->items = fresh;
        container->capacity = (uint32_t)more;
    }
    if (count)
        memcpy(container->items + container->count, items, count * sizeof *items);
    container->count += count;
    return MEMFIT_OK;
}

static memfit_status remember(machine *m, uint64_t index)
{
    if (!m->depth || !m->stack[m->depth - 1])
        return BROKEN(m, "nothing to remember");
    if (index > (uint64_t)(m->end - m->data))
        return BROKEN(m, "a memo index larger than the file");
    if (!grow(m, &m->memo, &m->memo_capacity, (size_t)index))
        return no_memory(m);
    m->memo[index] = m->stack[m->depth - 1];
    if (index >= m->memo_count)
        m->memo_count = (size_t)index + 1;
    return MEMFIT_OK;
}

static memfit_status recall(machine *m, uint64_t index)
{
    if (index >= m->memo_count || !m->memo[index])
        return BROKEN(m, "a memo index that was never set");
    return push(m, m->memo[index]);
}

/* ---- arguments -------------------------------------------------------------------------------------------- */

static bool take(machine *m, size_t bytes, const unsigned char **p)
{
    if ((size_t)(m->end - m->at) < bytes)
        return false;
    *p = m->at;
    m->at += bytes;
    return true;
}

/* Little-endian, `bytes` of it. */
static bool take_number(machine *m, unsigned bytes, uint64_t *value)
{
    const unsigned char *p;
    if (!take(m, bytes, &p))
        return false;
    *value = 0;
    for (unsigned i = bytes; i-- > 0;)
        *value = *value << 8 | p[i];
    return true;
}

static bool take_line(machine *m, const char **line, size_t *bytes)
{
    const unsigned char *stop = memchr(m->at, '\n', (size_t)(m->end - m->at));
    if (!stop)
        return false;
    *line = (const char *)m->at;
    *bytes = (size_t)(stop - m->at);
    m->at = stop + 1;
    return true;
}

/* A line as a zero-terminated copy for strtol and friends; numbers longer than this are no numbers. */
static bool take_short_line(machine *m, char text[64])
{
    const char *line;
    size_t n;
    if (!take_line(m, &line, &n) || n >= 64 || memchr(line, 0, n))
        return false;
    memcpy(text, line, n);
    text[n] = 0;
    return true;
}

/* ---- values ----------------------------------------------------------------------------------------------- */

static memfit_status do_data(machine *m, mf_pickle_type type, unsigned length_bytes)
{
    uint64_t n;
    const unsigned char *p;
    if (!take_number(m, length_bytes, &n) || n > (uint64_t)(m->end - m->at) || !take(m, (size_t)n, &p))
        return BROKEN(m, "the file ends inside it");
    return push_data(m, type, p, (size_t)n);
}

/* Two's complement, little-endian, any length: what fits 64 bits. */
static memfit_status do_long(machine *m, unsigned length_bytes)
{
    uint64_t n, value = 0;
    const unsigned char *p;
    if (!take_number(m, length_bytes, &n) || n > (uint64_t)(m->end - m->at) || !take(m, (size_t)n, &p))
        return BROKEN(m, "the file ends inside it");
    bool negative = n && p[n - 1] & 0x80;
    while (n > 8 && p[n - 1] == (negative ? 0xff : 0))
        n--;
    if (n > 8)
        return BROKEN(m, "an integer of more than 64 bits");
    for (unsigned i = 0; i < 8; i++)
        value |= (uint64_t)(i < n ? p[i] : negative ? 0xff : 0) << (8 * i);
    bool high = value >> 63;
    if (negative && !high)
        return BROKEN(m, "an integer of more than 64 bits");
    return push_integer(m, high && !negative ? MF_PICKLE_UINT : MF_PICKLE_INT, (int64_t)value);
}

/* "12\n", "12L\n", and for booleans "00\n" and "01\n". */
static memfit_status do_text_integer(machine *m, bool is_long)
{
    char text[64], *end;
    if (!take_short_line(m, text))
        return BROKEN(m, "not a number");
    if (!is_long && (strcmp(text, "00") == 0 || strcmp(text, "01") == 0))
        return push_integer(m, MF_PICKLE_BOOL, text[1] == '1');
    errno = 0;
    bool negative = text[0] == '-';
    unsigned long long magnitude = strtoull(text + negative, &end, 10);
    if (end == text + negative || text[negative] < '0' || text[negative] > '9' || (*end && strcmp(end, "L") != 0))
        return BROKEN(m, "not a number");
    if (errno || (negative && magnitude > (1ull << 63)))
        return BROKEN(m, "an integer of more than 64 bits");
    uint64_t value = negative ? 0 - (uint64_t)magnitude : magnitude;
    return push_integer(m, !negative && magnitude >> 63 ? MF_PICKLE_UINT : MF_PICKLE_INT, (int64_t)value);
}

static memfit_status do_text_float(machine *m)
{
    char text[64], *end;
    if (!take_short_line(m, text))
        return BROKEN(m, "not a number");
    double value = mf_text_to_double(text, &end);
    if (end == text || *end)
        return BROKEN(m, "not a number");
    return push_number(m, value);
}

static memfit_status do_binary_float(machine *m)
{
    const unsigned char *p;
    if (!take(m, 8, &p))
        return BROKEN(m, "the file ends inside it");
    uint64_t bits = 0;
    for (unsigned i = 0; i < 8; i++)
        bits = bits << 8 | p[i];
    double value;
    memcpy(&value, &bits, sizeof value);
    return push_number(m, value);
}

/* UNICODE: raw-unicode-escape, so a character is itself or \u...; bytes above 127 are Latin-1. STRING: a quoted
 * Python literal. Escapes never make text longer than 4 bytes for 1. */
static memfit_status do_escaped(machine *m, bool quoted)
{
    const char *line;
    size_t n;
    if (!take_line(m, &line, &n))
        return BROKEN(m, "the file ends inside it");
    if (quoted) {
        if (n < 2 || (line[0] != '\'' && line[0] != '"') || line[n - 1] != line[0])
            return BROKEN(m, "a string without its quotes");
        line++;
        n -= 2;
    }
    char *text = mf_arena_alloc(m->arena, 2 * n + 4);
    if (!text)
        return no_memory(m);
    return push_data(m, MF_PICKLE_STRING, text, mf_pickle_unescape(line, n, quoted, text));
}

/* ---- containers ------------------------------------------------------------------------------------------- */

/* Everything above the mark becomes one list, tuple or dict in its place. */
static memfit_status do_gather(machine *m, mf_pickle_type type)
{
    size_t first = above_mark(m);
    if (first == SIZE_MAX)
        return BROKEN(m, "no mark on the stack");
    size_t count = m->depth - first;
    if (type == MF_PICKLE_DICT && count % 2)
        return BROKEN(m, "a key without a value");
    mf_pickle *node = make(m, type);
    if (!node)
        return no_memory(m);
    memfit_status status = append(m, node, m->stack + first, count);
    m->depth = first - 1;
    return status ? status : push(m, node);
}

static memfit_status do_tuple(machine *m, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (m->depth < count || !m->stack[m->depth - 1 - i])
            return BROKEN(m, "too little on the stack");
    mf_pickle *node = make(m, MF_PICKLE_TUPLE);
    if (!node)
        return no_memory(m);
    memfit_status status = append(m, node, m->stack + m->depth - count, count);
    m->depth -= count;
    return status ? status : push(m, node);
}

/* Puts the items from `first` up into the container below them. `marked`: a mark stands between. */
static memfit_status add_items(machine *m, size_t first, bool marked, mf_pickle_type type)
{
    size_t container_at = first - (marked ? 2 : 1);
    if (first < (marked ? 2u : 1u) || !m->stack[container_at] || m->stack[container_at]->type != type)
        return BROKEN(m, type == MF_PICKLE_LIST ? "no list to add to" : "no dict to add to");
    size_t count = m->depth - first;
    if (type == MF_PICKLE_DICT && count % 2)
        return BROKEN(m, "a key without a value");
    memfit_status status = append(m, m->stack[container_at], m->stack + first, count);
    m->depth = container_at + 1;
    return status;
}

static memfit_status do_add(machine *m, bool marked, mf_pickle_type type)
{
    if (marked) {
        size_t first = above_mark(m);
        return first == SIZE_MAX ? BROKEN(m, "no mark on the stack") : add_items(m, first, true, type);
    }
    size_t count = type == MF_PICKLE_LIST ? 1 : 2;
    for (size_t i = 0; i < count; i++)
        if (m->depth < count + 1 || !m->stack[m->depth - 1 - i])
            return BROKEN(m, "too little on the stack");
    return add_items(m, m->depth - count, false, type);
}

static memfit_status do_pop(machine *m)
{
    if (!m->depth)
        return BROKEN(m, "an empty stack");
    m->depth--;
    return MEMFIT_OK;
}

static memfit_status do_pop_mark(machine *m)
{
    size_t first = above_mark(m);
    if (first == SIZE_MAX)
        return BROKEN(m, "no mark on the stack");
    m->depth = first - 1;
    return MEMFIT_OK;
}

static memfit_status do_duplicate(machine *m)
{
    if (!m->depth || !m->stack[m->depth - 1])
        return BROKEN(m, "nothing to duplicate");
    return push(m, m->stack[m->depth - 1]);
}

static memfit_status do_protocol(machine *m)
{
    uint64_t protocol;
    if (!take_number(m, 1, &protocol))
        return BROKEN(m, "the file ends inside it");
    if (protocol > 5)
        return mf_fail(m->err, MEMFIT_UNSUPPORTED, "byte %zu: pickle protocol %u; protocols 0 to 5 are known", m->start,
                       (unsigned)protocol);
    m->tree->protocol = (unsigned)protocol;
    return MEMFIT_OK;
}

/* FRAME announces a length; it is checked against the file and otherwise means nothing to a reader of memory. */
static memfit_status do_frame(machine *m)
{
    uint64_t bytes;
    if (!take_number(m, 8, &bytes) || bytes > (uint64_t)(m->end - m->at))
        return BROKEN(m, "a frame longer than the file");
    return MEMFIT_OK;
}

static memfit_status do_memo(machine *m, bool put, unsigned bytes)
{
    uint64_t index;
    if (bytes) {
        if (!take_number(m, bytes, &index))
            return BROKEN(m, "the file ends inside it");
    } else {
        char text[64], *end;
        if (!take_short_line(m, text) || text[0] < '0' || text[0] > '9')
            return BROKEN(m, "not a number");
        errno = 0;
        index = strtoull(text, &end, 10);
        if (errno || *end)
            return BROKEN(m, "not a number");
    }
    return put ? remember(m, index) : recall(m, index);
}

static memfit_status do_small_integer(machine *m, unsigned bytes)
{
    uint64_t value;
    if (!take_number(m, bytes, &value))
        return BROKEN(m, "the file ends inside it");
    return push_integer(m, MF_PICKLE_INT, bytes == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

/* ---- instructions ----------------------------------------------------------------------------------------- */

/* Instructions that name, call or build objects, and data we have no type for: refused by these names. */
static const char *refused_name(unsigned char op)
{
    switch (op) {
#define R(code, name)                                                                                                  \
    case code:                                                                                                         \
        return name;
        R('c', "GLOBAL")
        R('R', "REDUCE")
        R('b', "BUILD")
        R('i', "INST")
        R('o', "OBJ")
        R('P', "PERSID")
        R('Q', "BINPERSID")
        R(0x81, "NEWOBJ")
        R(0x82, "EXT1")
        R(0x83, "EXT2")
        R(0x84, "EXT4")
        R(0x92, "NEWOBJ_EX")
        R(0x93, "STACK_GLOBAL")
        R(0x8f, "EMPTY_SET")
        R(0x90, "ADDITEMS")
        R(0x91, "FROZENSET")
        R(0x97, "NEXT_BUFFER")
        R(0x98, "READONLY_BUFFER")
#undef R
    default:
        return NULL;
    }
}

/* The table: code, Python's name for it, what it does. STOP is handled by the loop. */
#define INSTRUCTIONS(X)                                                                                                \
    X('(', "MARK", push(m, NULL))                                                                                      \
    X('0', "POP", do_pop(m))                                                                                           \
    X('1', "POP_MARK", do_pop_mark(m))                                                                                 \
    X('2', "DUP", do_duplicate(m))                                                                                     \
    X('N', "NONE", push_new(m, MF_PICKLE_NONE))                                                                        \
    X(0x88, "NEWTRUE", push_integer(m, MF_PICKLE_BOOL, 1))                                                             \
    X(0x89, "NEWFALSE", push_integer(m, MF_PICKLE_BOOL, 0))                                                            \
    X('I', "INT", do_text_integer(m, false))                                                                           \
    X('L', "LONG", do_text_integer(m, true))                                                                           \
    X('J', "BININT", do_small_integer(m, 4))                                                                           \
    X('K', "BININT1", do_small_integer(m, 1))                                                                          \
    X('M', "BININT2", do_small_integer(m, 2))                                                                          \
    X(0x8a, "LONG1", do_long(m, 1))                                                                                    \
    X(0x8b, "LONG4", do_long(m, 4))                                                                                    \
    X('F', "FLOAT", do_text_float(m))                                                                                  \
    X('G', "BINFLOAT", do_binary_float(m))                                                                             \
    X('S', "STRING", do_escaped(m, true))                                                                              \
    X('V', "UNICODE", do_escaped(m, false))                                                                            \
    X('T', "BINSTRING", do_data(m, MF_PICKLE_STRING, 4))                                                               \
    X('U', "SHORT_BINSTRING", do_data(m, MF_PICKLE_STRING, 1))                                                         \
    X('X', "BINUNICODE", do_data(m, MF_PICKLE_STRING, 4))                                                              \
    X(0x8c, "SHORT_BINUNICODE", do_data(m, MF_PICKLE_STRING, 1))                                                       \
    X(0x8d, "BINUNICODE8", do_data(m, MF_PICKLE_STRING, 8))                                                            \
    X('B', "BINBYTES", do_data(m, MF_PICKLE_BYTES, 4))                                                                 \
    X('C', "SHORT_BINBYTES", do_data(m, MF_PICKLE_BYTES, 1))                                                           \
    X(0x8e, "BINBYTES8", do_data(m, MF_PICKLE_BYTES, 8))                                                               \
    X(0x96, "BYTEARRAY8", do_data(m, MF_PICKLE_BYTES, 8))                                                              \
    X(']', "EMPTY_LIST", push_new(m, MF_PICKLE_LIST))                                                                  \
    X('}', "EMPTY_DICT", push_new(m, MF_PICKLE_DICT))                                                                  \
    X(')', "EMPTY_TUPLE", push_new(m, MF_PICKLE_TUPLE))                                                                \
    X('l', "LIST", do_gather(m, MF_PICKLE_LIST))                                                                       \
    X('d', "DICT", do_gather(m, MF_PICKLE_DICT))                                                                       \
    X('t', "TUPLE", do_gather(m, MF_PICKLE_TUPLE))                                                                     \
    X(0x85, "TUPLE1", do_tuple(m, 1))                                                                                  \
    X(0x86, "TUPLE2", do_tuple(m, 2))                                                                                  \
    X(0x87, "TUPLE3", do_tuple(m, 3))                                                                                  \
    X('a', "APPEND", do_add(m, false, MF_PICKLE_LIST))                                                                 \
    X('e', "APPENDS", do_add(m, true, MF_PICKLE_LIST))                                                                 \
    X('s', "SETITEM", do_add(m, false, MF_PICKLE_DICT))                                                                \
    X('u', "SETITEMS", do_add(m, true, MF_PICKLE_DICT))                                                                \
    X('p', "PUT", do_memo(m, true, 0))                                                                                 \
    X('q', "BINPUT", do_memo(m, true, 1))                                                                              \
    X('r', "LONG_BINPUT", do_memo(m, true, 4))                                                                         \
    X(0x94, "MEMOIZE", remember(m, m->memo_count))                                                                     \
    X('g', "GET", do_memo(m, false, 0))                                                                                \
    X('h', "BINGET", do_memo(m, false, 1))                                                                             \
    X('j', "LONG_BINGET", do_memo(m, false, 4))                                                                        \
    X(0x80, "PROTO", do_protocol(m))                                                                                   \
    X(0x95, "FRAME", do_frame(m))

static memfit_status step(machine *m, unsigned char op)
{
    switch (op) {
#define X(code, text, action)                                                                                          \
    case code:                                                                                                         \
        m->name = text;                                                                                                \
        return action;
        INSTRUCTIONS(X)
#undef X
    default:
        break;
    }
    const char *refused = refused_name(op);
    if (refused)
        return mf_fail(m->err, MEMFIT_UNSUPPORTED,
                       "byte %zu: the pickle holds %s, which is not plain data\nsuch files can run code when Python "
                       "loads them; memfit reads dicts, lists, tuples, strings, numbers and nothing else",
                       m->start, refused);
    return mf_fail(m->err, MEMFIT_DAMAGED, "byte %zu: 0x%02x is no pickle instruction", m->start, op);
}

static memfit_status finish(machine *m)
{
    m->name = "STOP";
    if (m->depth != 1 || !m->stack[0])
        return BROKEN(m, "one value must be on the stack");
    m->tree->root = m->stack[0];
    return MEMFIT_OK;
}

memfit_status mf_pickle_read(mf_arena *arena, const void *data, size_t bytes, mf_pickle_tree *tree, memfit_error *err)
{
    mf_pickle_tree fresh = {0};
    machine m = {.arena = arena, .data = data, .at = data, .tree = &fresh, .name = "", .err = err};
    m.end = m.data + bytes;
    while (m.at < m.end) {
        m.start = (size_t)(m.at - m.data);
        unsigned char op = *m.at++;
        memfit_status status = op == '.' ? finish(&m) : step(&m, op);
        if (status)
            return status;
        if (op == '.') {
            *tree = fresh;
            return MEMFIT_OK;
        }
    }
    return mf_fail(err, MEMFIT_DAMAGED, "byte %zu: the pickle ends before its STOP; the file is cut", bytes);
}
