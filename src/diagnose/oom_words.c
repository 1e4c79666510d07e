/* oom_words.c: see oom_words.h. */
#include "diagnose/oom_words.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

void mf_oom_clean(const char *text, size_t n, char *line)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == 27 && i + 1 < n && text[i + 1] == '[') { /* "ESC [ 1 ; 31 m" */
            size_t end = i + 2;
            while (end < n && (isdigit((unsigned char)text[end]) || text[end] == ';' || text[end] == '?'))
                end++;
            if (end < n && isalpha((unsigned char)text[end])) {
                i = end;
                continue;
            }
        }
        *line++ = text[i] ? text[i] : ' '; /* a NUL must not hide what follows it */
    }
    *line = 0;
}

/* Digits in groups of three: "8,589,934,592". Returns their end, or NULL. */
static const char *grouped_number(const char *p, double *number)
{
    size_t n = strspn(p, "0123456789");
    if (n > 3 || p[n] != ',')
        return NULL;
    *number = mf_text_to_double(p, NULL);
    for (p += n; *p == ',' && strspn(p + 1, "0123456789") == 3; p += 4)
        *number = *number * 1000 + (double)((p[1] - '0') * 100 + (p[2] - '0') * 10 + (p[3] - '0'));
    return p;
}

bool mf_oom_size(const char *p, uint64_t *bytes)
{
    char *end;
    while (*p == ' ')
        p++;
    if (!isdigit((unsigned char)*p))
        return false;
    double number = mf_text_to_double(p, &end), grouped;
    const char *behind = grouped_number(p, &grouped);
    if (behind && behind > end) {
        number = grouped;
        end += behind - end;
    }
    while (*end == ' ')
        end++;
    double factor = 1;
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"GiB", 1073741824.0},       {"MiB", 1048576.0}, {"KiB", 1024.0}, {"TiB", 1099511627776.0},
                 {"PiB", 1125899906842624.0}, {"GB", 1e9},        {"MB", 1e6},     {"KB", 1e3},
                 {"G", 1073741824.0},         {"M", 1048576.0},   {"K", 1024.0}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strncmp(end, units[i].name, strlen(units[i].name)) == 0) {
            factor = units[i].factor;
            break;
        }
    if (number * factor >= 1.8e19)
        return false;
    *bytes = (uint64_t)(number * factor);
    return true;
}

bool mf_oom_size_after(const char *line, const char *phrase, uint64_t *bytes)
{
    const char *p = strstr(line, phrase);
    return p && mf_oom_size(p + strlen(phrase), bytes);
}

bool mf_oom_size_before(const char *line, const char *phrase, uint64_t *bytes)
{
    const char *p = strstr(line, phrase);
    if (!p || p == line)
        return false;
    int words = 0;
    while (p > line && words < 3) {
        p--;
        if ((*p == ' ' || *p == '(') && isdigit((unsigned char)p[1]))
            return mf_oom_size(p + 1, bytes);
        words += *p == ' ';
    }
    return p == line && isdigit((unsigned char)*p) && mf_oom_size(p, bytes);
}

bool mf_oom_has_word(const char *line, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = line; (p = strcasestr(p, word)); p += n) {
        bool start = p == line || (!isalnum((unsigned char)p[-1]) && p[-1] != '/' && p[-1] != '_' && p[-1] != '.');
        if (start && p[n] != '/' && p[n] != '_')
            return true;
    }
    return false;
}
