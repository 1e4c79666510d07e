/*
 * pickle_tree.c: the text of old protocols' strings, what a reader asks of a pickle's tree, and the check of the tree.
 */
#include "base/error.h"
#include "base/text.h"
#include "trace/pickle.h"

#include <inttypes.h>
#include <string.h>

/* \uXXXX or \UXXXXXXXX (and \xXX in quoted strings) at p; 0 when it is not one. */
static size_t read_escape(const char *p, size_t left, bool quoted, uint32_t *c)
{
    unsigned digits = left < 2 ? 0 : p[1] == 'u' ? 4 : p[1] == 'U' ? 8 : quoted && p[1] == 'x' ? 2 : 0;
    if (!digits || left < 2 + digits)
        return 0;
    *c = 0;
    for (unsigned i = 0; i < digits; i++) {
        int d = mf_hex_digit(p[2 + i]);
        if (d < 0)
            return 0;
        *c = *c << 4 | (uint32_t)d;
    }
    return *c > 0x10ffff ? 0 : 2 + digits;
}

size_t mf_pickle_unescape(const char *line, size_t n, bool quoted, char *text)
{
    static const char from[] = "\\'\"nrtabfv", to[] = "\\'\"\n\r\t\a\b\f\v";
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t used = line[i] == '\\' ? read_escape(line + i, n - i, quoted, &c) : 0;
        const char *simple =
            !used && quoted && line[i] == '\\' && i + 1 < n && line[i + 1] ? strchr(from, line[i + 1]) : NULL;
        if (simple) {
            text[length++] = to[simple - from];
            used = 2;
        } else {
            if (!used) {
                c = (unsigned char)line[i];
                used = 1;
            }
            length += mf_utf8_put(text + length, c);
        }
        i += used;
    }
    return length;
}

bool mf_pickle_is(const mf_pickle *value, const char *text)
{
    return value && value->type == MF_PICKLE_STRING && value->count == strlen(text) &&
           memcmp(value->data, text, value->count) == 0;
}

const mf_pickle *mf_pickle_get(const mf_pickle *dict, const char *key)
{
    if (!dict || dict->type != MF_PICKLE_DICT)
        return NULL;
    for (size_t i = dict->count; i >= 2; i -= 2) /* the last of equal keys is the one Python keeps */
        if (mf_pickle_is(dict->items[i - 2], key))
            return dict->items[i - 1];
    return NULL;
}

static bool is_sequence(const mf_pickle *value)
{
    return value && (value->type == MF_PICKLE_LIST || value->type == MF_PICKLE_TUPLE);
}

const mf_pickle *mf_pickle_at(const mf_pickle *sequence, size_t index)
{
    return is_sequence(sequence) && index < sequence->count ? sequence->items[index] : NULL;
}

size_t mf_pickle_length(const mf_pickle *sequence)
{
    return is_sequence(sequence) ? sequence->count : 0;
}

int64_t mf_pickle_integer(const mf_pickle *value, int64_t fallback)
{
    return value && (value->type == MF_PICKLE_INT || value->type == MF_PICKLE_BOOL) ? value->integer : fallback;
}

uint64_t mf_pickle_unsigned(const mf_pickle *value, uint64_t fallback)
{
    if (value && value->type == MF_PICKLE_UINT)
        return (uint64_t)value->integer;
    int64_t n = mf_pickle_integer(value, -1);
    return n < 0 ? fallback : (uint64_t)n;
}

memfit_status mf_pickle_check(const mf_pickle_tree *tree, memfit_error *err)
{
    uint64_t nodes = 0;
    for (const mf_pickle *node = tree->newest; node; node = node->older, nodes++) {
        if ((unsigned)node->type > MF_PICKLE_DICT)
            return mf_fail(err, MEMFIT_DAMAGED, "a node of unknown type %u", (unsigned)node->type);
        if (node->type < MF_PICKLE_LIST)
            continue;
        if (node->count > node->capacity || (node->type == MF_PICKLE_DICT && node->count % 2))
            return mf_fail(err, MEMFIT_DAMAGED, "a container of %zu items and room for %u", node->count,
                           node->capacity);
        for (size_t i = 0; i < node->count; i++)
            if (!node->items[i] || (unsigned)node->items[i]->type > MF_PICKLE_DICT)
                return mf_fail(err, MEMFIT_DAMAGED, "item %zu of a container is no node", i);
    }
    if (nodes != tree->nodes || !tree->root)
        return mf_fail(err, MEMFIT_DAMAGED, "%" PRIu64 " nodes, %" PRIu64 " counted", nodes, tree->nodes);
    return MEMFIT_OK;
}
