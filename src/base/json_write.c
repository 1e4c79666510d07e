/* json_write.c: JSON out, as a stream to a file and as a tree to text. */
#include "base/json.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- escaping --------------------------------------------------------------------------------------------- */

/* One code point of valid UTF-8; advances. Bytes that are no UTF-8 come out as U+FFFD. */
static uint32_t next_code_point(const char **p)
{
    const unsigned char *s = (const unsigned char *)*p;
    unsigned n = s[0] < 0x80                   ? 1
                 : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
                 : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
                 : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                               : 0;
    uint32_t c = n == 1 ? s[0] : n == 2 ? s[0] & 0x1Fu : n == 3 ? s[0] & 0x0Fu : s[0] & 0x07u;
    for (unsigned i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            n = 0;
            break;
        }
        c = c << 6 | (s[i] & 0x3Fu);
    }
    *p += n ? n : 1;
    return n ? c : 0xFFFD;
}

/* Writes one escaped code point into out[12]; returns the length. */
static int escape(uint32_t c, char out[16])
{
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *hit = c && c < 128 ? strchr(special, (int)c) : NULL;
    if (hit) {
        out[0] = '\\';
        out[1] = letter[hit - special];
        return 2;
    }
    if (c >= 0x20 && c < 0x7F) {
        out[0] = (char)c;
        return 1;
    }
    if (c >= 0x10000)
        return snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
    return snprintf(out, 16, "\\u%04x", c);
}

static int print_double(char *out, size_t bytes, double value)
{
    int n = mf_text_put_double(out, bytes, 15, value);
    return mf_text_to_double(out, NULL) == value ? n : mf_text_put_double(out, bytes, 17, value);
}

/* ---- stream ----------------------------------------------------------------------------------------------- */

static void put_text(FILE *f, const char *text)
{
    char buf[16];
    fputc('"', f);
    while (*text) {
        int n = escape(next_code_point(&text), buf);
        fwrite(buf, 1, (size_t)n, f);
    }
    fputc('"', f);
}

static void before(mf_json_writer *w, const char *key)
{
    if (!w->first[w->depth])
        fputc(',', w->file);
    w->first[w->depth] = false;
    if (w->depth == 1)
        fputs("\n  ", w->file);
    else if (w->depth > 1)
        fputc(' ', w->file);
    if (key) {
        put_text(w->file, key);
        fputs(": ", w->file);
    }
}

void mf_json_begin(mf_json_writer *w, FILE *file)
{
    *w = (mf_json_writer){.file = file};
    w->first[0] = true;
}

void mf_json_open(mf_json_writer *w, const char *key, char bracket)
{
    before(w, key);
    fputc(bracket, w->file);
    if (w->depth + 1 < sizeof w->first / sizeof *w->first)
        w->depth++;
    w->first[w->depth] = true;
}

void mf_json_close(mf_json_writer *w, char bracket)
{
    if (w->depth)
        w->depth--;
    if (w->depth == 0)
        fputc('\n', w->file);
    fputc(bracket, w->file);
}

void mf_json_put_string(mf_json_writer *w, const char *key, const char *value)
{
    before(w, key);
    if (value)
        put_text(w->file, value);
    else
        fputs("null", w->file);
}

void mf_json_put_u64(mf_json_writer *w, const char *key, uint64_t value)
{
    before(w, key);
    fprintf(w->file, "%" PRIu64, value);
}

void mf_json_put_i64(mf_json_writer *w, const char *key, int64_t value)
{
    before(w, key);
    fprintf(w->file, "%" PRId64, value);
}

void mf_json_put_double(mf_json_writer *w, const char *key, double value)
{
    char buf[40];
    before(w, key);
    if (isfinite(value)) {
        print_double(buf, sizeof buf, value);
        fputs(buf, w->file);
    } else {
        fputs("null", w->file);
    }
}

void mf_json_put_bool(mf_json_writer *w, const char *key, bool value)
{
    before(w, key);
    fputs(value ? "true" : "false", w->file);
}

void mf_json_put_null(mf_json_writer *w, const char *key)
{
    before(w, key);
    fputs("null", w->file);
}

void mf_json_end(mf_json_writer *w)
{
    fputc('\n', w->file);
}

/* ---- tree ------------------------------------------------------------------------------------------------- */

mf_json *mf_json_new(mf_arena *arena, mf_json_type type)
{
    mf_json *v = MF_NEW(arena, mf_json);
    if (v)
        v->type = type;
    return v;
}

mf_json *mf_json_new_string(mf_arena *arena, const char *text)
{
    mf_json *v = mf_json_new(arena, MF_JSON_STRING);
    if (v && !(v->string = mf_arena_strdup(arena, text)))
        return NULL;
    return v;
}

mf_json *mf_json_new_number(mf_arena *arena, double number)
{
    mf_json *v = mf_json_new(arena, MF_JSON_NUMBER);
    if (v)
        v->number = number;
    return v;
}

mf_json *mf_json_new_integer(mf_arena *arena, int64_t integer)
{
    mf_json *v = mf_json_new_number(arena, (double)integer);
    if (v) {
        v->is_integer = true;
        v->integer = integer;
    }
    return v;
}

mf_json *mf_json_new_bool(mf_arena *arena, bool value)
{
    mf_json *v = mf_json_new(arena, MF_JSON_BOOL);
    if (v)
        v->boolean = value;
    return v;
}

bool mf_json_add(mf_arena *arena, mf_json *parent, const char *key, mf_json *child)
{
    if (!parent || !child || (key && !(child->key = mf_arena_strdup(arena, key))))
        return false;
    mf_json **link = &parent->first;
    while (*link)
        link = &(*link)->next;
    *link = child;
    parent->count++;
    return true;
}

typedef struct {
    char *data; /* NULL while measuring */
    size_t length;
} sink;

static void emit(sink *s, const char *text, size_t n)
{
    if (s->data)
        memcpy(s->data + s->length, text, n);
    s->length += n;
}

static void emit_string(sink *s, const char *text)
{
    char buf[16];
    emit(s, "\"", 1);
    while (*text) {
        int n = escape(next_code_point(&text), buf);
        emit(s, buf, (size_t)n);
    }
    emit(s, "\"", 1);
}

static void emit_value(sink *s, const mf_json *v)
{
    char buf[48];
    int n;
    switch (v->type) {
    case MF_JSON_NULL:
        emit(s, "null", 4);
        break;
    case MF_JSON_BOOL:
        emit(s, v->boolean ? "true" : "false", v->boolean ? 4 : 5);
        break;
    case MF_JSON_STRING:
        emit_string(s, v->string);
        break;
    case MF_JSON_NUMBER:
        if (v->is_integer)
            n = snprintf(buf, sizeof buf, "%" PRId64, v->integer);
        else if (isnan(v->number))
            n = snprintf(buf, sizeof buf, "NaN");
        else if (isinf(v->number))
            n = snprintf(buf, sizeof buf, v->number < 0 ? "-Infinity" : "Infinity");
        else {
            n = print_double(buf, sizeof buf - 2, v->number);
            if (!strpbrk(buf, ".en")) { /* a float stays a float when Python reads it back */
                memcpy(buf + n, ".0", 3);
                n += 2;
            }
        }
        emit(s, buf, (size_t)n);
        break;
    case MF_JSON_ARRAY:
    case MF_JSON_OBJECT:
        emit(s, v->type == MF_JSON_ARRAY ? "[" : "{", 1);
        for (const mf_json *c = v->first; c; c = c->next) {
            if (c != v->first)
                emit(s, ", ", 2);
            if (v->type == MF_JSON_OBJECT) {
                emit_string(s, c->key);
                emit(s, ": ", 2);
            }
            emit_value(s, c);
        }
        emit(s, v->type == MF_JSON_ARRAY ? "]" : "}", 1);
        break;
    }
}

char *mf_json_print(mf_arena *arena, const mf_json *value, size_t *bytes)
{
    sink s = {0};
    emit_value(&s, value);
    char *text = mf_arena_alloc(arena, s.length + 1);
    if (!text)
        return NULL;
    s = (sink){.data = text};
    emit_value(&s, value);
    text[s.length] = 0;
    if (bytes)
        *bytes = s.length;
    return text;
}
