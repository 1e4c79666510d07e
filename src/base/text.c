/* text.c: sizes, counts, and words that are nearly right. */
#include "base/text.h"
#include "base/error.h"
#include "base/visible.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* NULL while numbers have a point anyway, which is nearly always; else the C locale (the library's own object: making
 * it allocates nothing). */
static locale_t c_locale(void)
{
    return *nl_langinfo(RADIXCHAR) == '.' ? NULL : newlocale(LC_ALL_MASK, "C", NULL);
}

double mf_text_to_double(const char *text, char **end)
{
    locale_t c = c_locale();
    return c ? strtod_l(text, end, c) : strtod(text, end);
}

int mf_text_put_double(char *out, size_t bytes, int digits, double value)
{
    locale_t c = c_locale(), before = c ? uselocale(c) : NULL;
    int n = snprintf(out, bytes, "%.*g", digits, value);
    if (c)
        uselocale(before);
    return n;
}

static const struct {
    const char *name;
    double bytes;
} units[] = {
    {"B", 1},
    {"KiB", 1024.0},
    {"MiB", 1048576.0},
    {"GiB", 1073741824.0},
    {"TiB", 1099511627776.0},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"K", 1024.0},
    {"M", 1048576.0},
    {"G", 1073741824.0},
    {"T", 1099511627776.0},
};

memfit_status memfit_size_parse(const char *text, uint64_t whole_bytes, uint64_t *bytes, memfit_error *err)
{
    if (!text || !*text)
        return mf_fail(err, MEMFIT_INVALID, "a size is missing\nwrite it as 512MiB, 8GiB, 1.5GB or 80%%");
    const char *start = text + strspn(text, " ");
    char *end, unit[16];
    const char *digit = start + (*start == '.');
    if (*digit < '0' || *digit > '9')
        return mf_fail(err, MEMFIT_INVALID, "\"%s\" is not a size\nwrite it as 512MiB, 8GiB, 1.5GB or 80%%", text);
    double number = mf_text_to_double(start, &end);
    snprintf(unit, sizeof unit, "%s", end + strspn(end, " "));
    unit[strcspn(unit, " ")] = 0;
    double factor = 0;
    const char *rest = end + strspn(end, " ");
    rest += strcspn(rest, " ");
    if (strspn(start, "0123456789.") != (size_t)(end - start) || !isfinite(number) || rest[strspn(rest, " ")])
        return mf_fail(err, MEMFIT_INVALID, "\"%s\" is not a size\nwrite it as 512MiB, 8GiB, 1.5GB or 80%%", text);
    if (strcmp(unit, "%") == 0) {
        if (number > 100)
            return mf_fail(err, MEMFIT_INVALID, "\"%s\" is more than the whole\na percentage goes up to 100%%", text);
        if (!whole_bytes)
            return mf_fail(err, MEMFIT_INVALID,
                           "\"%s\": a percentage makes no sense here, there is no whole to take it of", text);
        factor = (double)whole_bytes / 100;
    } else if (!*unit) {
        if (number != floor(number))
            return number > 100 ? mf_fail(err, MEMFIT_INVALID,
                                          "\"%s\" is a fraction of a byte\na bare number is bytes: were %.0f bytes "
                                          "meant, or %.0fMiB?",
                                          text, number, number)
                                : mf_fail(err, MEMFIT_INVALID,
                                          "\"%s\" is a fraction of a byte\nadd a unit: %sGiB, or a percentage: %g%%",
                                          text, text, number <= 1 ? number * 100 : number);
        factor = 1;
    } else {
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strcasecmp(unit, units[i].name) == 0)
                factor = units[i].bytes;
        if (factor == 0)
            return mf_fail(err, MEMFIT_INVALID,
                           "\"%s\": unknown unit \"%s\"\nunits are B, KiB, MiB, GiB, TiB, KB, MB, GB, TB, %%", text,
                           unit);
    }
    double value = number * factor;
    if (value >= 9.2e18)
        return mf_fail(err, MEMFIT_INVALID, "\"%s\" is larger than any memory\nwrite it as 512MiB, 8GiB, 1.5GB or 80%%",
                       text);
    *bytes = !*unit ? (uint64_t)strtoull(start, NULL, 10) : (uint64_t)value;
    return MEMFIT_OK;
}

static char *format_size(uint64_t bytes, bool up, char *text, size_t text_bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;
    while (value >= (up ? 1023.99 : 1023.995) && unit < 6) {
        value /= 1024;
        unit++;
    }
    if (unit == 0)
        snprintf(text, text_bytes, "%u B", (unsigned)bytes);
    else
        snprintf(text, text_bytes, "%.2f %s", up ? ceil(value * 100) / 100 : value, names[unit]);
    return text;
}

char *memfit_size_format(uint64_t bytes, char *text, size_t text_bytes)
{
    return format_size(bytes, false, text, text_bytes);
}

char *mf_format_need(uint64_t bytes, char *text, size_t text_bytes)
{
    return format_size(bytes, true, text, text_bytes);
}

void mf_text_init(mf_text *text, char *data, size_t capacity)
{
    *text = (mf_text){data, capacity, 0};
    if (capacity)
        data[0] = 0;
}

void mf_text_add(mf_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    bool room = text->length < text->capacity;
    int n = mf_vformat(room ? text->data + text->length : NULL, room ? text->capacity - text->length : 0, format, args);
    va_end(args);
    if (n > 0)
        text->length += (size_t)n;
}

char *mf_format_count(uint64_t n, char *text, size_t text_bytes)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    size_t out = 0;
    for (int i = 0; i < length && out + 2 < text_bytes; i++) {
        if (i && (length - i) % 3 == 0)
            text[out++] = ',';
        if (out + 1 < text_bytes)
            text[out++] = digits[i];
    }
    if (text_bytes)
        text[out] = 0;
    return text;
}

unsigned mf_edit_distance(const char *a, const char *b)
{
    enum { MOST = 64 };
    size_t la = strlen(a), lb = strlen(b);
    if (la >= MOST || lb >= MOST)
        return MOST;
    unsigned rows[3][MOST + 1] = {{0}}, *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= lb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= la; i++) {
        unsigned *free_row = before;
        before = above;
        above = row;
        row = free_row;
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            unsigned best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return row[lb];
}

const char *mf_nearest(const char *word, const char *const *words)
{
    const char *best = NULL;
    unsigned distance = (unsigned)(strlen(word) / 3 + 2);
    for (; *words; words++) {
        unsigned d = mf_edit_distance(word, *words);
        if (d < distance) {
            distance = d;
            best = *words;
        }
    }
    return best;
}

size_t mf_text_width(const char *utf8)
{
    size_t n = 0;
    for (; *utf8; utf8++)
        n += ((unsigned char)*utf8 & 0xC0) != 0x80;
    return n;
}

unsigned mf_utf8_length(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned n = s[0] < 0x80                   ? 1
                 : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
                 : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
                 : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                               : 0;
    for (unsigned i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

size_t mf_utf8_put(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

int mf_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

void mf_utf8_copy(char *to, size_t room, const char *from)
{
    size_t at = 0;
    while (from[at]) {
        unsigned n = mf_utf8_length(from + at);
        n = n ? n : 1; /* what is no UTF-8 is copied as it is */
        if (at + n >= room)
            break;
        at += n;
    }
    memcpy(to, from, at);
    to[at] = 0;
}
