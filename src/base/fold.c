/* fold.c: see fold.h. */
#include "base/fold.h"

/* Cells of the first `bytes`: one a code point. */
static size_t cells(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static size_t leading_blanks(const char *line, size_t bytes)
{
    size_t n = 0;
    while (n < bytes && line[n] == ' ')
        n++;
    return n;
}

/* Where continued lines begin. */
static size_t hanging(const char *line, size_t bytes, unsigned columns)
{
    size_t lead = leading_blanks(line, bytes), at = lead + 2, cell = lead, digits = lead;
    while (digits < bytes && line[digits] >= '0' && line[digits] <= '9')
        digits++;
    if (digits > lead && digits + 1 < bytes && line[digits] == '.' && line[digits + 1] == ' ') /* "1. what to do" */
        at = digits + 2;
    for (size_t i = lead; i + 2 < bytes && cell < columns * 5 / 8; i++) {
        if (((unsigned char)line[i] & 0xc0) == 0x80)
            continue;
        if (line[i] == ' ' && line[i + 1] == ' ' && line[i + 2] != ' ')
            at = cell + 2;
        cell++;
    }
    return at < columns * 5 / 8 ? at : lead + 2 < columns / 2 ? lead + 2 : 0;
}

/* Bytes of the line's next part: up to a blank, in `room` cells where a blank is there, else its first word. */
static size_t part(const char *text, size_t bytes, size_t room)
{
    size_t cell = 0, best = 0, from = leading_blanks(text, bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ' && i > from) {
            if (cell > room)
                return best ? best : i;
            best = i;
        }
        cell += ((unsigned char)text[i] & 0xc0) != 0x80;
    }
    return cell <= room || !best ? bytes : best;
}

static bool put_blanks(size_t n, mf_fold_put put, void *ctx)
{
    static const char blanks[] = "                                ";
    for (size_t k; n; n -= k) {
        k = n < sizeof blanks - 1 ? n : sizeof blanks - 1;
        if (!put(ctx, blanks, k))
            return false;
    }
    return true;
}

bool mf_fold_line(const char *line, size_t bytes, unsigned columns, mf_fold_put put, void *ctx)
{
    if (!columns || cells(line, bytes) <= columns)
        return put(ctx, line, bytes) && put(ctx, "\n", 1);
    size_t under = hanging(line, bytes, columns), least = leading_blanks(line, bytes) + 2, used = 0;
    for (size_t at = 0; at < bytes; at += used) {
        size_t first = cells(line + at, part(line + at, bytes - at, 0)); /* its first word moves left where it must */
        if (at && under + first > columns)
            under = least + first <= columns ? least : 0;
        used = part(line + at, bytes - at, at ? columns - under : columns);
        size_t shown = used;
        while (shown && line[at + shown - 1] == ' ')
            shown--;
        if (!put_blanks(at ? under : 0, put, ctx) || !put(ctx, line + at, shown) || !put(ctx, "\n", 1))
            return false;
        used += leading_blanks(line + at + used, bytes - at - used);
    }
    return true;
}
