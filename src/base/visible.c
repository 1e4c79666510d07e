/* visible.c: printf with visible strings. Never allocates. */
#include "base/visible.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

/* Where the text goes: to a file, or to memory, where what does not fit is only counted. */
typedef struct sink {
    FILE *file;
    char *out;
    size_t room; /* of out, the closing zero included */
    size_t length;
} sink;

static void put(sink *s, const char *text, size_t bytes)
{
    if (s->file)
        fwrite(text, 1, bytes, s->file);
    else if (s->length < s->room) {
        size_t fits = s->room - s->length - 1 < bytes ? s->room - s->length - 1 : bytes;
        memcpy(s->out + s->length, text, fits);
    }
    s->length += bytes;
}

static void pad(sink *s, size_t from, size_t to)
{
    for (; from < to; from++)
        put(s, " ", 1);
}

/* ---- what may be printed ---------------------------------------------------------------------------------- */

static bool is_plain(uint32_t c)
{
    if (c < 0x20 || (c >= 0x7f && c <= 0x9f))
        return false;
    return c != 0x61c && c != 0x200e && c != 0x200f && !(c >= 0x2028 && c <= 0x202e) && !(c >= 0x2066 && c <= 0x2069);
}

size_t mf_visible_step(const char *text, size_t bytes, uint32_t *code, bool *plain)
{
    const unsigned char *p = (const unsigned char *)text;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned n = p[0] < 0x80                   ? 1
                 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                 : (p[0] & 0xf0) == 0xe0       ? 3
                 : (p[0] & 0xf8) == 0xf0       ? 4
                                               : 0;
    uint32_t c = n == 1 ? p[0] : n ? p[0] & (0x7fu >> n) : 0;
    bool good = n && n <= bytes;
    for (unsigned i = 1; good && i < n; i++) {
        good = (p[i] & 0xc0) == 0x80;
        c = c << 6 | (p[i] & 0x3f);
    }
    good = good && c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
    *code = good ? c : p[0];
    *plain = good && is_plain(c);
    return good ? n : 1;
}

/* One code point as it is printed; its length. */
static size_t show(const char *text, size_t bytes, uint32_t code, bool plain, char out[16])
{
    if (plain) {
        memcpy(out, text, bytes);
        return bytes;
    }
    if (code == '\n' || code == '\t' || code == '\r')
        return (size_t)snprintf(out, 16, "\\%c", code == '\n' ? 'n' : code == '\t' ? 't' : 'r');
    return (size_t)snprintf(out, 16, code > 0xff || bytes > 1 ? "\\u%04x" : "\\x%02x", (unsigned)code);
}

/* The first `most` bytes of the text at most, less a code point that these cut. */
static size_t shown_bytes(const char *text, size_t most)
{
    size_t n = strnlen(text, most);
    if (n < most || !n)
        return n;
    size_t back = 1;
    while (back < 4 && back < n && ((unsigned char)text[n - back] & 0xc0) == 0x80)
        back++;
    unsigned char first = (unsigned char)text[n - back];
    size_t wanted = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    return wanted > back ? n - back : n;
}

/* Prints it, or with `s` NULL only measures it. */
static size_t put_visible(sink *s, const char *text, size_t bytes)
{
    size_t length = 0;
    for (size_t i = 0, n; i < bytes; i += n) {
        uint32_t code;
        bool plain;
        char shown[16];
        n = mf_visible_step(text + i, bytes - i, &code, &plain);
        size_t m = show(text + i, n, code, plain, shown);
        if (s)
            put(s, shown, m);
        length += m;
    }
    return length;
}

/* ---- the format ------------------------------------------------------------------------------------------- */

typedef struct arguments { /* a va_list that can be handed on by its address */
    va_list list;
} arguments;

typedef struct conversion {
    char flags[8];
    int width, precision; /* precision -1: none */
    char size[3];         /* "", "h", "l", "ll", "z", "j", "t" */
    char kind;
} conversion;

static int number(const char **p, arguments *a)
{
    if (**p == '*') {
        ++*p;
        return va_arg(a->list, int);
    }
    int n = 0;
    for (; **p >= '0' && **p <= '9' && n < 100000; ++*p)
        n = n * 10 + (**p - '0');
    return n;
}

/* Reads what is behind a '%'; the text behind it. */
static const char *read_conversion(const char *p, arguments *a, conversion *c)
{
    *c = (conversion){.precision = -1};
    size_t n = strspn(p, "-+ #0");
    memcpy(c->flags, p, n < sizeof c->flags - 1 ? n : sizeof c->flags - 1);
    p += n;
    c->width = number(&p, a);
    if (c->width < 0) { /* of an argument: to the left */
        c->width = -c->width;
        c->flags[strlen(c->flags) < sizeof c->flags - 1 ? strlen(c->flags) : 0] = '-';
    }
    if (*p == '.') {
        p++;
        c->precision = number(&p, a);
    }
    n = strspn(p, "hlzjt");
    memcpy(c->size, p, n < sizeof c->size - 1 ? n : sizeof c->size - 1);
    p += n;
    c->kind = *p;
    return *p ? p + 1 : p;
}

static void put_string(sink *s, const conversion *c, const char *text)
{
    text = text ? text : "(null)";
    size_t bytes = shown_bytes(text, c->precision < 0 ? SIZE_MAX / 2 : (size_t)c->precision);
    size_t length = c->width ? put_visible(NULL, text, bytes) : 0, width = (size_t)c->width;
    bool left = strchr(c->flags, '-') != NULL;
    if (!left)
        pad(s, length, width);
    put_visible(s, text, bytes);
    if (left)
        pad(s, length, width);
}

static void put_number(sink *s, const conversion *c, arguments *a)
{
    char spec[48], text[512];
    if (c->precision >= 0)
        snprintf(spec, sizeof spec, "%%%s%.*d.%d", c->flags, c->width ? 1 : 0, c->width, c->precision);
    else
        snprintf(spec, sizeof spec, "%%%s%.*d", c->flags, c->width ? 1 : 0, c->width);
    size_t n = strlen(spec);
    int length = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (strchr("feEgGaF", c->kind)) {
        snprintf(spec + n, sizeof spec - n, "%c", c->kind);
        length = snprintf(text, sizeof text, spec, va_arg(a->list, double));
    } else if (c->kind == 'c') {
        char one[2] = {(char)va_arg(a->list, int), 0};
        put_string(s, c, one);
        return;
    } else if (c->kind == 'p') {
        length = snprintf(text, sizeof text, "%p", va_arg(a->list, void *));
    } else if (c->kind == 'd' || c->kind == 'i') {
        long long v = c->size[0] == 'l' && c->size[1] ? va_arg(a->list, long long)
                      : c->size[0] == 'l'             ? va_arg(a->list, long)
                      : c->size[0] == 'z'             ? (long long)va_arg(a->list, ssize_t)
                      : c->size[0] == 'j'             ? (long long)va_arg(a->list, intmax_t)
                      : c->size[0] == 't'             ? (long long)va_arg(a->list, ptrdiff_t)
                                                      : va_arg(a->list, int);
        snprintf(spec + n, sizeof spec - n, "lld");
        length = snprintf(text, sizeof text, spec, v);
    } else {
        unsigned long long v = c->size[0] == 'l' && c->size[1] ? va_arg(a->list, unsigned long long)
                               : c->size[0] == 'l'             ? va_arg(a->list, unsigned long)
                               : c->size[0] == 'z'             ? va_arg(a->list, size_t)
                               : c->size[0] == 'j'             ? va_arg(a->list, uintmax_t)
                                                               : va_arg(a->list, unsigned);
        snprintf(spec + n, sizeof spec - n, "ll%c", c->kind);
        length = snprintf(text, sizeof text, spec, v);
    }
#pragma GCC diagnostic pop
    if (length > 0)
        put(s, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

static int put_all(sink *s, const char *format, va_list args)
{
    arguments a;
    va_copy(a.list, args);
    while (*format) {
        size_t n = strcspn(format, "%");
        put(s, format, n);
        format += n;
        if (!*format)
            break;
        conversion c;
        format = read_conversion(format + 1, &a, &c);
        if (c.kind == '%')
            put(s, "%", 1);
        else if (c.kind == 's')
            put_string(s, &c, va_arg(a.list, const char *));
        else if (c.kind)
            put_number(s, &c, &a);
    }
    va_end(a.list);
    return s->length < INT32_MAX ? (int)s->length : INT32_MAX;
}

int mf_vprint(FILE *file, const char *format, va_list args)
{
    sink s = {.file = file};
    return put_all(&s, format, args);
}

int mf_print(FILE *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = mf_vprint(file, format, args);
    va_end(args);
    return n;
}

int mf_vformat(char *out, size_t bytes, const char *format, va_list args)
{
    sink s = {.out = out, .room = bytes};
    int n = put_all(&s, format, args);
    if (bytes)
        out[s.length < bytes ? s.length : bytes - 1] = 0;
    return n;
}

int mf_format(char *out, size_t bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = mf_vformat(out, bytes, format, args);
    va_end(args);
    return n;
}
