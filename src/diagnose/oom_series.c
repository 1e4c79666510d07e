/* oom_series.c: memory that a program prints again and again, in any order of words. Of the numbers only the ends and how
 * often they rose are kept. */
#include "diagnose/oom_series.h"

#include "base/text.h"
#include "diagnose/oom_words.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool ends_word(char c)
{
    return !isalnum((unsigned char)c) && c != '/';
}

/* A number with its unit behind it: "1280 MiB". A rate is none. */
static bool number_then_unit(const char *line, uint64_t *bytes)
{
    static const char *const units[] = {"GiB", "MiB", "GB", "MB"};
    for (const char *p = line; *p; p++) {
        if (!isdigit((unsigned char)*p) || (p > line && (isalnum((unsigned char)p[-1]) || p[-1] == '.')))
            continue;
        const char *end = p + strspn(p, "0123456789.");
        end += *end == ' ';
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strncmp(end, units[i], strlen(units[i])) == 0 && ends_word(end[strlen(units[i])]))
                return mf_oom_size(p, bytes);
    }
    return false;
}

/* The unit before its number: "allocated MiB 9847", "RSS (MiB): 954", "mem_mb=1240.5", "\"rss_gb\": 3.1". */
static bool unit_then_number(const char *line, uint64_t *bytes)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"GiB", 30}, {"MiB", 20}, {"GB", 30}, {"MB", 20}};
    for (const char *p = line + 1; p[-1] && *p; p++)
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            size_t n = strlen(units[i].name);
            if (isalnum((unsigned char)p[-1]) || strncasecmp(p, units[i].name, n) != 0 || !ends_word(p[n]))
                continue;
            const char *number = p + n + strspn(p + n, " :=)\"'|]");
            char *end;
            double value = isdigit((unsigned char)*number) ? mf_text_to_double(number, &end) : -1;
            if (value < 0 || value > 1e9)
                continue;
            *bytes = (uint64_t)(value * (double)(UINT64_C(1) << units[i].shift));
            return true;
        }
    return false;
}

/* "RSS 1240 MB", "rss_gb": with one of the letters that oom_filter.c knows behind it. */
static bool speaks_of_rss(const char *line)
{
    for (const char *p = line; (p = strcasestr(p, "rss")); p += 3)
        if (p[3] && strchr(" :=_([\"|", p[3]))
            return true;
    return false;
}

/* A size in a line that speaks of memory, in either order of words: "step 4: 1280 MiB in use", "iter 7 | VRAM GB 3.1". */
static bool some_size(const char *line, uint64_t *bytes)
{
    static const char *const words[] = {"memory", "allocated", "in use", "used", "VRAM",
                                        "mem ",   "mem:",      "mem=",   "mem_", "resident"};
    bool speaks = speaks_of_rss(line);
    for (size_t i = 0; !speaks && i < sizeof words / sizeof *words; i++)
        speaks = strstr(line, words[i]) != NULL;
    return speaks && (number_then_unit(line, bytes) || unit_then_number(line, bytes));
}

/* "step 38 loss 0.003 memory 5192 MiB": a number that is printed again and again. */
void mf_oom_read_series(const char *line, mf_oom_facts *f)
{
    static const char *const counters[] = {"step", "iteration", "iter", "fold", "epoch", "batch", "trial", "episode"};
    static const char *const amounts[] = {"memory allocated ", "allocated ", "bytes in use ", "in use ", "memory ",
                                          "GPU memory: ",      "mem: ",      "mem ",          "mem=",    "memory="};
    uint64_t bytes = 0;
    const char *counter = NULL;
    for (size_t i = 0; !counter && i < sizeof counters / sizeof *counters; i++)
        if (mf_oom_has_word(line, counters[i]))
            counter = counters[i];
    const char *bar = strstr(line, "%|"); /* tqdm's: "12%|##    | 12/100 [00:02<00:18, loss=0.7, mem=1.2G]" */
    if (!counter && bar && strchr(bar, '/'))
        counter = "state";
    bool found = false;
    for (size_t i = 0; counter && !found && i < sizeof amounts / sizeof *amounts; i++)
        found = mf_oom_size_after(line, amounts[i], &bytes);
    found = found || (counter && some_size(line, &bytes));
    if (!found || f->failed || strstr(line, "Tried to allocate"))
        return; /* what is printed after the failure says nothing of what led to it */
    if (!f->series_count)
        f->series_first = bytes;
    else
        f->series_rises += bytes > f->series_last;
    f->series_last = bytes;
    f->series_count++;
    f->folds = strcmp(counter, "fold") == 0 || strcmp(counter, "trial") == 0;
    snprintf(f->series_word, sizeof f->series_word, "%s", counter);
}
