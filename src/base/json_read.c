/* json_read.c: the JSON reader. Recursive descent with a depth limit; every byte is looked at once. */
#include "base/json.h"
#include "base/error.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    mf_arena *arena;
    const char *start, *p, *end;
    memfit_error *err;
    unsigned depth;
} parser;

static memfit_status fail_at(parser *s, const char *what)
{
    size_t line = 1, column = 1;
    for (const char *c = s->start; c < s->p && c < s->end; c++) {
        column++;
        if (*c == '\n') {
            line++;
            column = 1;
        }
    }
    return mf_fail(s->err, MEMFIT_DAMAGED, "JSON, line %zu column %zu: %s", line, column, what);
}

static memfit_status no_memory(parser *s)
{
    return mf_fail(s->err, MEMFIT_NO_HOST_MEMORY, "no host memory for a JSON document of %zu bytes",
                   (size_t)(s->end - s->start));
}

static void skip_space(parser *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

static bool take(parser *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
        return false;
    s->p += n;
    return true;
}

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int d = mf_hex_digit(p[i]);
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Length of the UTF-8 sequence at p, or 0 when it is none. */
static size_t utf8_length(const char *p, const char *end)
{
    unsigned char c = (unsigned char)*p;
    size_t n = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
    if (!n || (size_t)(end - p) < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)p[i] & 0xC0) != 0x80)
            return 0;
    /* Too long a form, half a surrogate pair, beyond the last code point. */
    unsigned char d = n > 1 ? (unsigned char)p[1] : 0;
    if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) || (c == 0xF4 && d > 0x8F))
        return 0;
    return n;
}

/* The text after an opening quote. The result never has more bytes than the source. */
static memfit_status parse_string(parser *s, const char **out)
{
    const char *scan = s->p;
    while (scan < s->end && *scan != '"')
        scan += *scan == '\\' ? 2 : 1;
    if (scan >= s->end)
        return fail_at(s, "a string is not closed");
    char *text = mf_arena_alloc(s->arena, (size_t)(scan - s->p) + 1);
    if (!text)
        return no_memory(s);
    char *w = text;
    while (*s->p != '"') {
        unsigned char c = (unsigned char)*s->p;
        if (c < 0x20)
            return fail_at(s, "a control character inside a string");
        if (c != '\\') {
            size_t n = utf8_length(s->p, s->end);
            if (!n)
                return fail_at(s, "the text is not UTF-8");
            memcpy(w, s->p, n);
            w += n;
            s->p += n;
            continue;
        }
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        char e = s->p[1];
        const char *hit = e ? strchr(from, e) : NULL;
        if (hit) {
            *w++ = to[hit - from];
            s->p += 2;
            continue;
        }
        if (e != 'u' || s->end - s->p < 6 || hex4(s->p + 2) < 0)
            return fail_at(s, "a bad escape in a string");
        uint32_t u = (uint32_t)hex4(s->p + 2);
        s->p += 6;
        if (u >= 0xD800 && u < 0xDC00 && s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u') {
            int low = hex4(s->p + 2);
            if (low >= 0xDC00 && low < 0xE000) {
                u = 0x10000 + ((u - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
                s->p += 6;
            }
        }
        if (u == 0 || (u >= 0xD800 && u < 0xE000))
            return fail_at(s, "a string holds a character that cannot be used (NUL or half a pair)");
        w += mf_utf8_put(w, u);
    }
    s->p++;
    *w = 0;
    *out = text;
    return MEMFIT_OK;
}

static memfit_status parse_number(parser *s, mf_json *v)
{
    const char *p = s->p;
    bool integer = true;
    if (p < s->end && *p == '-')
        p++;
    const char *digits = p;
    while (p < s->end && *p >= '0' && *p <= '9')
        p++;
    if (p == digits)
        return fail_at(s, "a value was expected here");
    if (p < s->end && *p == '.') {
        integer = false;
        const char *fraction = ++p;
        while (p < s->end && *p >= '0' && *p <= '9')
            p++;
        if (p == fraction)
            return fail_at(s, "a number ends in a point");
    }
    if (p < s->end && (*p == 'e' || *p == 'E')) {
        integer = false;
        p++;
        if (p < s->end && (*p == '+' || *p == '-'))
            p++;
        const char *exponent = p;
        while (p < s->end && *p >= '0' && *p <= '9')
            p++;
        if (p == exponent)
            return fail_at(s, "a number has no exponent");
    }
    size_t n = (size_t)(p - s->p);
    char copy[128];
    if (n >= sizeof copy)
        return fail_at(s, "a number of more than 127 characters");
    memcpy(copy, s->p, n);
    copy[n] = 0;
    v->type = MF_JSON_NUMBER;
    v->number = mf_text_to_double(copy, NULL);
    if (integer) {
        errno = 0;
        v->integer = strtoll(copy, NULL, 10);
        v->is_integer = errno == 0;
    }
    s->p = p;
    return MEMFIT_OK;
}

static memfit_status parse_value(parser *s, mf_json *v);

static memfit_status parse_children(parser *s, mf_json *v, bool object)
{
    char close = object ? '}' : ']';
    v->type = object ? MF_JSON_OBJECT : MF_JSON_ARRAY;
    s->p++;
    if (++s->depth > MF_JSON_MOST_DEPTH)
        return fail_at(s, "nested too deeply");
    mf_json **link = &v->first;
    skip_space(s);
    if (s->p < s->end && *s->p == close) {
        s->p++;
        s->depth--;
        return MEMFIT_OK;
    }
    for (;;) {
        mf_json *child = MF_NEW(s->arena, mf_json);
        if (!child)
            return no_memory(s);
        skip_space(s);
        if (object) {
            if (s->p >= s->end || *s->p != '"')
                return fail_at(s, "a member's name was expected here");
            s->p++;
            memfit_status st = parse_string(s, &child->key);
            if (st)
                return st;
            skip_space(s);
            if (s->p >= s->end || *s->p != ':')
                return fail_at(s, "a colon was expected here");
            s->p++;
        }
        memfit_status st = parse_value(s, child);
        if (st)
            return st;
        *link = child;
        link = &child->next;
        v->count++;
        skip_space(s);
        if (s->p < s->end && *s->p == ',') {
            s->p++;
            continue;
        }
        if (s->p < s->end && *s->p == close) {
            s->p++;
            s->depth--;
            return MEMFIT_OK;
        }
        return fail_at(s, s->p >= s->end ? "the document ends too early"
                                         : "a comma or a closing bracket was expected here");
    }
}

static memfit_status parse_value(parser *s, mf_json *v)
{
    skip_space(s);
    if (s->p >= s->end)
        return fail_at(s, "the document ends too early");
    switch (*s->p) {
    case '{':
        return parse_children(s, v, true);
    case '[':
        return parse_children(s, v, false);
    case '"':
        s->p++;
        v->type = MF_JSON_STRING;
        return parse_string(s, &v->string);
    default:
        break;
    }
    if (take(s, "true") || take(s, "false")) {
        v->type = MF_JSON_BOOL;
        v->boolean = s->p[-1] == 'e' && s->p[-2] == 'u';
        return MEMFIT_OK;
    }
    if (take(s, "null"))
        return MEMFIT_OK;
    if (take(s, "NaN") || take(s, "Infinity") || take(s, "-Infinity")) {
        v->type = MF_JSON_NUMBER;
        v->number = s->p[-1] == 'N' ? NAN : s->p - s->start >= 9 && s->p[-9] == '-' ? -INFINITY : INFINITY;
        return MEMFIT_OK;
    }
    return parse_number(s, v);
}

memfit_status mf_json_parse(mf_arena *arena, const char *text, size_t bytes, mf_json **root, memfit_error *err)
{
    parser s = {.arena = arena, .start = text, .p = text, .end = text + bytes, .err = err};
    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        s.p += 3;
    mf_json *v = MF_NEW(arena, mf_json);
    if (!v)
        return no_memory(&s);
    memfit_status st = parse_value(&s, v);
    if (st)
        return st;
    skip_space(&s);
    if (s.p != s.end)
        return fail_at(&s, "something follows the end of the document");
    *root = v;
    return MEMFIT_OK;
}

const mf_json *mf_json_get(const mf_json *object, const char *key)
{
    if (!object || object->type != MF_JSON_OBJECT)
        return NULL;
    for (const mf_json *m = object->first; m; m = m->next)
        if (m->key[0] == key[0] && strcmp(m->key, key) == 0)
            return m;
    return NULL;
}

const mf_json *mf_json_at(const mf_json *array, size_t index)
{
    if (!array || (array->type != MF_JSON_ARRAY && array->type != MF_JSON_OBJECT))
        return NULL;
    const mf_json *m = array->first;
    while (m && index--)
        m = m->next;
    return m;
}

const char *mf_json_string(const mf_json *value, const char *fallback)
{
    return value && value->type == MF_JSON_STRING ? value->string : fallback;
}

double mf_json_number(const mf_json *value, double fallback)
{
    return value && value->type == MF_JSON_NUMBER ? value->number : fallback;
}

int64_t mf_json_integer(const mf_json *value, int64_t fallback)
{
    if (!value || value->type != MF_JSON_NUMBER)
        return fallback;
    if (value->is_integer)
        return value->integer;
    bool whole = value->number == floor(value->number) && value->number >= -0x1p63 && value->number < 0x1p63;
    return whole ? (int64_t)value->number : fallback;
}

bool mf_json_bool(const mf_json *value, bool fallback)
{
    return value && value->type == MF_JSON_BOOL ? value->boolean : fallback;
}

bool mf_json_is_null(const mf_json *value)
{
    return !value || value->type == MF_JSON_NULL;
}

const char *mf_json_get_string(const mf_json *object, const char *key, const char *fallback)
{
    return mf_json_string(mf_json_get(object, key), fallback);
}

double mf_json_get_number(const mf_json *object, const char *key, double fallback)
{
    return mf_json_number(mf_json_get(object, key), fallback);
}

int64_t mf_json_get_integer(const mf_json *object, const char *key, int64_t fallback)
{
    return mf_json_integer(mf_json_get(object, key), fallback);
}

bool mf_json_get_bool(const mf_json *object, const char *key, bool fallback)
{
    return mf_json_bool(mf_json_get(object, key), fallback);
}
