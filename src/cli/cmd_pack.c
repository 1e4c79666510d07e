/*
 * cmd_pack.c: memfit pack: a table of buffers in, their offsets out.
 *
 * Exit: 0 packed; 3 the capacity is not met, and whether that is proven or only not found in the time is said; 5 the
 * table is missing or damaged. The packing is checked by the validator before anything is said about it.
 */
#include "cli/cli.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"
#include "memfit/pack.h"

#include <string.h>

typedef struct job {
    const cli_common *common;
    memfit_pack_file *file;
    memfit_pack_buffer *buffers;
    size_t count;
    memfit_pack_options options;
    memfit_pack_result result;
    double last_told;
    bool line_open; /* a progress line stands at the terminal */
} job;

/* One line that is written over on a terminal; elsewhere a note every ten seconds. */
static bool tell(void *ctx, const memfit_pack_progress *p)
{
    job *j = ctx;
    if (j->common->quiet)
        return true;
    bool terminal = mf_os_terminal_columns(stderr) > 0;
    if (p->seconds - j->last_told < (terminal ? 0.5 : 10))
        return true;
    j->last_told = p->seconds;
    char height[32];
    fputs(terminal ? "\r" : "", stderr);
    mf_print(stderr, "packing: %.0f s, %s bytes high, at most %.2f %% above the least possible", p->seconds,
             mf_format_count(p->height, height, sizeof height),
             p->bound ? 100.0 * ((double)p->height / (double)p->bound - 1) : 0);
    fputs(terminal ? "   " : "\n", stderr);
    j->line_open = terminal;
    return true;
}

static void write_json(const job *j)
{
    const memfit_pack_result *r = &j->result;
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    mf_json_put_u64(&w, "buffers", j->count);
    if (j->options.capacity)
        mf_json_put_u64(&w, "capacity", j->options.capacity);
    else
        mf_json_put_null(&w, "capacity");
    mf_json_put_u64(&w, "height", r->height);
    mf_json_put_u64(&w, "max_load", r->max_load);
    mf_json_put_u64(&w, "lower_bound", r->bound);
    mf_json_put_double(&w, "gap", r->bound ? (double)r->height / (double)r->bound - 1 : 0);
    mf_json_put_bool(&w, "solved", r->solved);
    mf_json_put_bool(&w, "optimal", r->optimal);
    mf_json_put_bool(&w, "impossible", r->impossible);
    mf_json_put_string(&w, "method", r->method);
    mf_json_put_u64(&w, "nodes", r->nodes);
    mf_json_put_double(&w, "seconds", r->seconds);
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

/* ---- the picture ---- */

enum { PICTURE_COLUMNS = 72, PICTURE_ROWS = 16, LETTERS = 26, LEGEND = 5 };

/* The buffers that cover the most of time and address, largest first: they get letters. */
static unsigned find_largest(const job *j, size_t *largest)
{
    unsigned count = 0;
    for (size_t i = 0; i < j->count; i++) {
        const memfit_pack_buffer *b = &j->buffers[i];
        double area = (double)b->size * (double)(b->upper - b->lower);
        if (area <= 0)
            continue;
        unsigned k = count < LETTERS ? count++ : LETTERS;
        for (; k > 0; k--) {
            const memfit_pack_buffer *o = &j->buffers[largest[k - 1]];
            if ((double)o->size * (double)(o->upper - o->lower) >= area)
                break;
            if (k < LETTERS)
                largest[k] = largest[k - 1];
        }
        if (k < LETTERS)
            largest[k] = i;
    }
    return count;
}

static void fill_column(const job *j, const char *letter_of, char (*cells)[PICTURE_COLUMNS + 1], unsigned column,
                        double time)
{
    double row_bytes = (double)j->result.height / PICTURE_ROWS;
    for (size_t i = 0; i < j->count; i++) {
        const memfit_pack_buffer *b = &j->buffers[i];
        if (!b->size || (double)b->lower > time || (double)b->upper <= time)
            continue;
        for (unsigned row = 0; row < PICTURE_ROWS; row++) {
            double middle = (row + 0.5) * row_bytes;
            if (middle >= (double)b->offset && middle < (double)b->offset + (double)b->size)
                cells[row][column] = letter_of[i] ? letter_of[i] : ':';
        }
    }
}

/* Who lies where over time: address upwards, time to the right. */
static void draw(const job *j, char *letter_of)
{
    char cells[PICTURE_ROWS][PICTURE_COLUMNS + 1];
    size_t largest[LETTERS + 1];
    unsigned lettered = find_largest(j, largest);
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (size_t i = 0; i < j->count; i++) {
        first = j->buffers[i].lower < first ? j->buffers[i].lower : first;
        last = j->buffers[i].upper > last ? j->buffers[i].upper : last;
    }
    for (unsigned i = 0; i < lettered; i++)
        letter_of[largest[i]] = (char)('A' + i);
    for (unsigned row = 0; row < PICTURE_ROWS; row++) {
        memset(cells[row], '.', PICTURE_COLUMNS);
        cells[row][PICTURE_COLUMNS] = 0;
    }
    for (unsigned column = 0; column < PICTURE_COLUMNS; column++)
        fill_column(j, letter_of, cells, column,
                    (double)first + (column + 0.5) * ((double)last - (double)first) / PICTURE_COLUMNS);
    char size[32];
    mf_print(stdout, "\n");
    for (unsigned row = PICTURE_ROWS; row-- > 0;)
        mf_print(stdout, "%12s |%s\n",
                 row == PICTURE_ROWS - 1 ? memfit_size_format(j->result.height, size, sizeof size) : "", cells[row]);
    mf_print(stdout, "%12s +%.*s\n%13s %-36lld%36lld\n", "0", PICTURE_COLUMNS,
             "------------------------------------------------------------------------", "time", (long long)first,
             (long long)last);
    mf_print(stdout, "\n  . free   : smaller buffers\n");
    unsigned shown = j->common->verbose ? lettered : lettered < LEGEND ? lettered : LEGEND;
    for (unsigned i = 0; i < shown; i++) {
        const memfit_pack_buffer *b = &j->buffers[largest[i]];
        mf_print(stdout, "  %c %-20.40s %12s at %llu, live %lld to %lld\n", 'A' + (int)i,
                 memfit_pack_file_id(j->file, largest[i]), memfit_size_format(b->size, size, sizeof size),
                 (unsigned long long)b->offset, (long long)b->lower, (long long)b->upper);
    }
}

static void write_text(const job *j)
{
    const memfit_pack_result *r = &j->result;
    char a[32], b[32];
    mf_format_count(r->height, a, sizeof a);
    if (r->impossible)
        mf_print(stdout, "Does not fit: no packing of these %zu buffers is lower than %s bytes (proven).\n", j->count,
                 mf_format_count(r->bound, b, sizeof b));
    else if (!r->solved)
        mf_print(stdout, "Not solved in %.1f s: no packing within %s bytes was found, and none was ruled out.\n",
                 r->seconds, mf_format_count(j->options.capacity, b, sizeof b));
    else
        mf_print(stdout, "Packed: %zu buffer%s in %s bytes%s.\n", j->count, j->count == 1 ? "" : "s", a,
                 r->optimal ? ", and no packing is lower (proven)" : "");
    if (!r->solved)
        mf_print(stdout, "The best packing found is %s bytes high.\n", a);
    mf_print(stdout, "  largest load %s bytes", mf_format_count(r->max_load, b, sizeof b));
    if (r->bound > r->max_load)
        mf_print(stdout, "; least possible height at least %s", mf_format_count(r->bound, b, sizeof b));
    if (!r->optimal && r->bound)
        mf_print(stdout, "; at most %.2f %% above the least possible",
                 100.0 * ((double)r->height / (double)r->bound - 1));
    mf_print(stdout, "; %.3f s\n", r->seconds);
}

/* Checks, writes, speaks. `letters`: a cleared byte per buffer for the picture, or NULL for none. */
static int finish(job *j, const char *out, char *letters)
{
    memfit_error err = {0};
    uint64_t height;
    memfit_status status = memfit_pack_validate(j->buffers, j->count, 0, &height, &err);
    if (!status && height != j->result.height)
        status = mf_fail(&err, MEMFIT_INTERNAL, "the packing is %llu bytes high, not %llu", (unsigned long long)height,
                         (unsigned long long)j->result.height);
    if (status == MEMFIT_INVALID)
        status = mf_fail(&err, MEMFIT_INTERNAL, "the packing does not pass the validator");
    if (!status && out && j->result.solved)
        status = memfit_pack_file_write(j->file, out, &err);
    if (status)
        return cli_report(j->common, &err);
    if (out && !j->result.solved)
        cli_note(j->common, "%s is not written: the capacity is not met", out);
    if (j->common->json) {
        write_json(j);
    } else {
        write_text(j);
        if (letters && j->count)
            draw(j, letters);
    }
    return j->result.solved ? CLI_DONE : CLI_NO_FIT;
}

static int run(job *j, const char *path, const char *out, bool repack)
{
    memfit_error err = {0};
    memfit_status status = memfit_pack_file_open(&j->file, path, repack ? MEMFIT_PACK_FILE_REPACK : 0, NULL, &err);
    if (status)
        return cli_report(j->common, &err);
    j->buffers = memfit_pack_file_buffers(j->file, &j->count);
    j->options.progress = tell;
    j->options.progress_ctx = j;
    status = memfit_pack(j->buffers, j->count, &j->options, &j->result, &err);
    if (j->line_open)
        mf_print(stderr, "\r%78s\r", "");
    if (status == MEMFIT_INVALID) { /* the file is to blame, not the options: these were checked */
        err.code = MEMFIT_DAMAGED;
        mf_error_prefix(&err, MEMFIT_DAMAGED, "%s", path);
    }
    int exit_status;
    if (status) {
        exit_status = cli_report(j->common, &err);
    } else {
        mf_arena arena;
        mf_arena_init(&arena, NULL);
        exit_status = finish(j, out, j->common->json || j->common->quiet ? NULL : mf_arena_alloc(&arena, j->count));
        mf_arena_destroy(&arena);
    }
    memfit_pack_file_close(j->file);
    return exit_status;
}

int cli_pack(const cli_command *command, int argc, char **argv)
{
    const char *capacity = NULL, *out = NULL;
    double seconds = 60;
    int64_t threads = 0;
    bool repack = false;
    const cli_binding bindings[] = {CLI_BIND("--capacity", &capacity), CLI_BIND("--time", &seconds),
                                    CLI_BIND("--out", &out),           CLI_BIND("--repack", &repack),
                                    CLI_BIND("--threads", &threads),   {0}};
    static const char text[] = "FILE.csv has a row per buffer and the columns lower, upper (live on [lower,\n"
                               "upper)) or start, end (the end included), size, and if you like id, alignment,\n"
                               "offset (fixed).\n"
                               "Exit status 3: the capacity is not met; the text says whether that is proven.\n";
    cli_common common;
    int status = cli_parse(command, argc, argv, bindings, &common, text);
    if (status || common.help)
        return status;
    job j = {.common = &common};
    memfit_error err = {0};
    j.options = (memfit_pack_options)MEMFIT_PACK_OPTIONS;
    j.result = (memfit_pack_result)MEMFIT_PACK_RESULT;
    j.options.effort = MEMFIT_PACK_EXACT;
    if (capacity && memfit_size_parse(capacity, 0, &j.options.capacity, &err) != MEMFIT_OK)
        return cli_usage_error(command, "--capacity: %s", err.message);
    if (capacity && !j.options.capacity)
        return cli_usage_error(command, "--capacity 0: nothing fits into nothing");
    if (!(seconds > 0) || seconds > 1e7)
        return cli_usage_error(command, "--time %g: must be more than 0 seconds", seconds);
    j.options.time_limit_us = (uint64_t)(seconds * 1e6) + 1;
    j.options.threads = (unsigned)threads;
    return run(&j, common.operands[0], out, repack);
}
