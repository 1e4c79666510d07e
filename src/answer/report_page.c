/*
 * report_page.c: a report as one page: verdict, timeline, flame graph and table of a selected range, growth, difference.
 *
 *   page = style + what is readable without scripts (report_tables.c) + data + script (page/report.js)
 *   data = for each trace a JSON object with names and marks, and the numbers packed (report_bands.h), deflated, in base64
 *
 * What the script draws replaces what stands there (class "static"); if it cannot run, that stays. A policy in the page
 * forbids every request. The page stays below 5 MB: numbers that do not shrink enough are cut into half as many columns.
 */
#include "answer/report_page.h"

#include "base/error.h"
#include "base/json.h"
#include "base/os.h"
#include "base/visible.h"
#include "file/deflate.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

extern const char mf_report_style[], mf_report_script[];

enum {
    MOST_MARKS = 5000,
    MOST_DATA = 3300000 /* bytes of all packed numbers; a third more in base64 */,
    LEAST_COLUMNS = 256
};

/* ---- data ------------------------------------------------------------------------------------------------- */

static void put_rows(mf_json_writer *w, const mf_report_bands *b)
{
    mf_json_open(w, "rows", '[');
    for (uint32_t i = 0; i < b->rows; i++) {
        char name[4096];
        mf_format(name, sizeof name, "%s", b->row[i].name);
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "name", name);
        mf_json_put_u64(w, "kind", b->row[i].kind);
        if (b->row[i].rest)
            mf_json_put_bool(w, "rest", true);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
    mf_json_open(w, "kind_names", '[');
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        mf_json_put_string(w, NULL, memfit_kind_name((memfit_kind)k));
    mf_json_close(w, ']');
    mf_json_open(w, "kind_colours", '[');
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        mf_json_put_string(w, NULL, mf_page_colour((memfit_kind)k));
    mf_json_close(w, ']');
}

static void put_pair(mf_json_writer *w, uint64_t a, uint64_t b)
{
    mf_json_open(w, NULL, '[');
    mf_json_put_u64(w, NULL, a);
    mf_json_put_u64(w, NULL, b);
    mf_json_close(w, ']');
}

static void put_meta(FILE *f, const mf_report *r, const mf_report_bands *b)
{
    mf_json_writer w;
    mf_json_begin(&w, f);
    mf_json_open(&w, NULL, '{');
    mf_json_put_u64(&w, "columns", b->columns);
    mf_json_put_u64(&w, "peak", r->peak_bytes);
    mf_json_put_u64(&w, "peak_column", b->peak);
    mf_json_put_u64(&w, "limit", r->limit_bytes);
    mf_json_put_bool(&w, "has_reserved", b->reserved != NULL);
    mf_json_put_bool(&w, "has_pool", r->pool.columns != NULL);
    put_rows(&w, b);
    mf_json_open(&w, "steps", '[');
    for (uint32_t i = 0; i < r->step_count && i < MOST_MARKS; i++)
        put_pair(&w, r->steps[i].time_ns, r->steps[i].event);
    mf_json_close(&w, ']');
    mf_json_open(&w, "fails", '[');
    for (uint64_t i = 0; i < r->fail_count && i < MF_REPORT_FAILS; i++)
        put_pair(&w, r->fails[i].time_ns, r->fails[i].event);
    mf_json_close(&w, ']');
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

/* A script element ends at the first "</script": no < goes into one as it is. In JSON they stand in strings alone. */
static ssize_t write_escaped(void *file, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] == '<')
            fputs("\\u003c", file);
        else
            fputc(text[i], file);
    return (ssize_t)bytes;
}

static memfit_status put_json_element(FILE *f, int number, const mf_report *r, const mf_report_bands *b,
                                      memfit_error *err)
{
    FILE *escaped = fopencookie(f, "w", (cookie_io_functions_t){.write = write_escaped});
    if (!escaped)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a page");
    fprintf(f, "<script type=\"application/json\" id=\"meta%d\">", number);
    put_meta(escaped, r, b);
    fclose(escaped);
    fputs("</script>\n", f);
    return MEMFIT_OK;
}

static void put_base64(FILE *f, const unsigned char *data, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i += 3) {
        uint32_t v = (uint32_t)data[i] << 16 | (i + 1 < bytes ? (uint32_t)data[i + 1] << 8 : 0) |
                     (i + 2 < bytes ? data[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < bytes ? digits[v >> 6 & 63] : '=',
                        i + 2 < bytes ? digits[v & 63] : '='};
        fwrite(four, 1, 4, f);
    }
}

/* Cuts, replays and packs, with fewer columns until it is small enough. On success `b` is to be freed. */
static memfit_status make_data(mf_report *r, mf_report_bands *b, size_t most, unsigned char **small,
                               size_t *small_bytes, memfit_error *err)
{
    for (uint32_t columns = MF_BANDS_COLUMNS;; columns /= 2) {
        unsigned char *packed;
        size_t packed_bytes;
        memfit_status status = mf_report_cut(r, columns, MF_BANDS_ROWS, b, err);
        if (status)
            return status;
        status = mf_report_replay(r, b->events, b->columns, err);
        if (!status)
            status = mf_report_pack(b, r->pool.columns, &packed, &packed_bytes, err);
        if (!status)
            status = mf_deflate(&b->arena, packed, packed_bytes, small, small_bytes, err);
        if (!status && (*small_bytes <= most || columns <= LEAST_COLUMNS))
            return MEMFIT_OK;
        mf_report_bands_free(b);
        if (status)
            return status;
    }
}

static memfit_status put_data(FILE *f, int number, mf_report *r, size_t most, memfit_error *err)
{
    mf_report_bands b;
    unsigned char *small;
    size_t small_bytes;
    memfit_status status = make_data(r, &b, most, &small, &small_bytes, err);
    if (status)
        return status;
    status = put_json_element(f, number, r, &b, err);
    if (!status) {
        fprintf(f, "<script type=\"text/plain\" id=\"data%d\">", number);
        put_base64(f, small, small_bytes);
        fputs("</script>\n", f);
    }
    mf_report_bands_free(&b);
    return status;
}

/* ---- the page --------------------------------------------------------------------------------------------- */

static void put_head(FILE *f, const mf_report *r, const mf_report *other)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>memfit report: ", f);
    mf_page_put_text(f, r->title);
    fputs("</title>\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
          "script-src "
          "'unsafe-inline'\">\n<style>",
          f);
    fputs(mf_report_style, f);
    fputs("</style></head>\n<body><main>\n<h1>", f);
    mf_page_put_text(f, r->title);
    if (other) {
        fputs(" and ", f);
        mf_page_put_text(f, other->title);
    }
    fputs("</h1>\n", f);
}

static void put_facts(FILE *f, const mf_report *r, const char *which)
{
    fprintf(f, "<p class=\"dim\">%s%" PRIu64 " events, %" PRIu64 " buffers, %.3f s", which, r->moved, r->buffers,
            (double)r->duration_ns / 1e9);
    if (r->step_count)
        fprintf(f, ", %u steps%s", r->step_count, r->steps_found ? " (found in the curve)" : "");
    if (r->device_count > 1)
        fprintf(f, "; device %u, the busiest of %u", r->device, r->device_count);
    if (r->info.before_buffers)
        fprintf(f, "; %" PRIu64 " buffers were there when the recording began", r->info.before_buffers);
    if (r->info.cut)
        fputs("; the recording was cut off", f);
    if (r->left_out)
        fprintf(f, "; %u file%s of the folder %s", r->left_out, r->left_out == 1 ? "" : "s",
                r->left_out == 1 ? "is not a trace" : "are not traces");
    fputs("</p>\n", f);
}

static void put_verdict(FILE *f, const mf_report *r, const char *which)
{
    char text[2048];
    fprintf(f, "<section class=\"verdict%s\"><p>%s", r->fail_count ? " no" : r->growing ? " grows" : "", which);
    mf_report_verdict(r, text, sizeof text);
    mf_page_put_text(f, text);
    fputs("</p>\n<p>", f);
    mf_report_advice(r, text, sizeof text);
    mf_page_put_text(f, text);
    fputs("</p></section>\n", f);
}

static void put_choice(FILE *f, const char *name, const char *value, const char *text, bool checked, const char *more)
{
    fprintf(f, "<label%s><input type=\"radio\" name=\"%s\" value=\"%s\"%s> %s</label>", more, name, value,
            checked ? " checked" : "", text);
}

static void put_plot(FILE *f, int k, const char *label)
{
    fprintf(f,
            "<div class=\"plot dynamic%s\" id=\"plot%d\" tabindex=\"0\" role=\"slider\" aria-label=\"%s: arrows move, "
            "with shift "
            "they select, Enter zooms to the selection, Escape goes back\" hidden><div class=\"tip\" id=\"tip%d\" "
            "hidden></div></div>\n<p class=\"hide\" id=\"live%d\" aria-live=\"polite\"></p>\n<ul class=\"legend "
            "dynamic\" id=\"legend%d\" "
            "hidden></ul>\n",
            k ? " second" : "", k, label, k, k, k);
}

static memfit_status put_timeline(FILE *f, const mf_report *r, const mf_report *other, memfit_error *err)
{
    fputs("<section><h2>Live bytes over time</h2>\n<div class=\"bar dynamic\" hidden><fieldset><legend>Bands</legend>",
          f);
    put_choice(f, "bands", "kind", "by kind", true, "");
    put_choice(f, "bands", "owner", "by owner", false, "");
    fputs("</fieldset><fieldset><legend>Axis</legend>", f);
    put_choice(f, "axis", "time", "time", true, "");
    put_choice(f, "axis", "events", "events", false, "");
    put_choice(f, "axis", "steps", "steps", false, " class=\"steps-only\"");
    fputs("</fieldset>", f);
    if (other) {
        fputs("<fieldset><legend>Below:</legend>", f);
        put_choice(f, "run", "0", "first", true, "");
        put_choice(f, "run", "1", "second", false, "");
        fputs("</fieldset>", f);
    }
    fputs("<label><input type=\"checkbox\" id=\"with-pool\"> memfit's pool</label><button id=\"zoom-in\">Zoom to "
          "selection</button><button id=\"zoom-out\">Whole trace</button></div>\n",
          f);
    put_plot(f, 0, other ? "Live bytes of the first trace" : "Live bytes");
    if (other)
        put_plot(f, 1, "Live bytes of the second trace");
    fputs("<div class=\"static\">", f);
    memfit_status status = mf_page_put_curve(f, r, err);
    if (!status && other)
        status = mf_page_put_curve(f, other, err);
    fputs("</div>\n<p class=\"dim dynamic\" hidden>Drag to select a range; the flame graph and the table show what was "
          "held "
          "in it.</p></section>\n",
          f);
    return status;
}

static void put_range(FILE *f)
{
    static const struct {
        const char *key, *text, *cls, *sort;
    } heads[] = {{"name", "Owner", "", ""},
                 {"kind", "Kind", "wide", ""},
                 {"bytes", "At the highest", "n", " aria-sort=\"descending\""},
                 {"share", "Share", "n", NULL},
                 {"mean", "Mean", "n wide", ""},
                 {"change", "Change", "n wide", ""}};
    fputs("<section class=\"dynamic\" hidden><h2 id=\"range\" aria-live=\"polite\"></h2>\n<div "
          "class=\"bar\"><fieldset><legend>Flame "
          "graph of</legend>",
          f);
    put_choice(f, "weight", "peak", "bytes at the highest", true, "");
    put_choice(f, "weight", "area", "bytes × time", false, "");
    fputs("</fieldset></div>\n<div class=\"flame\" id=\"flame\" role=\"group\" aria-label=\"Flame graph: arrows move, "
          "Enter searches "
          "the table\"></div></section>\n",
          f);
    fputs("<section class=\"dynamic\" id=\"owners\" hidden><h2>Who held it</h2>\n<div class=\"bar\"><label "
          "class=\"hide\" "
          "for=\"search\">Search owners</label><input type=\"search\" id=\"search\" placeholder=\"Search owners or "
          "kinds\"></div>\n<div class=\"scroll\"><table><thead><tr>",
          f);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (heads[i].sort)
            fprintf(f, "<th class=\"%s\" data-key=\"%s\"%s><button>%s</button></th>", heads[i].cls, heads[i].key,
                    heads[i].sort, heads[i].text);
        else
            fprintf(f, "<th class=\"%s\">%s</th>", heads[i].cls, heads[i].text);
    fputs("</tr></thead><tbody id=\"rows\"></tbody><tfoot><tr><td class=\"name\" id=\"sum-name\"></td><td "
          "class=\"wide\"></td><td class=\"n\" id=\"sum-bytes\"></td><td class=\"n\" id=\"sum-share\"></td><td "
          "class=\"n wide\" "
          "id=\"sum-mean\"></td><td class=\"n wide\" id=\"sum-change\"></td></tr></tfoot></table></div></section>\n",
          f);
}

static memfit_status put_body(FILE *f, mf_report *r, mf_report *other, const mf_report_difference *d, memfit_error *err)
{
    put_facts(f, r, other ? "First: " : "");
    if (other)
        put_facts(f, other, "Second: ");
    put_verdict(f, r, other ? "First: " : "");
    if (other)
        put_verdict(f, other, "Second: ");
    memfit_status status = put_timeline(f, r, other, err);
    if (status)
        return status;
    put_range(f);
    if (d)
        mf_page_put_difference(f, r, other, d);
    fputs("<div class=\"static\">\n", f);
    mf_page_put_owners(f, r);
    fputs("</div>\n", f);
    mf_page_put_held(f, r);
    mf_page_put_growth(f, r);
    mf_page_put_pool(f, r);
    return MEMFIT_OK;
}

memfit_status mf_report_write_page(const char *path, mf_report *report, mf_report *other,
                                   const mf_report_difference *difference, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status)
        return status;
    FILE *f = out.file;
    put_head(f, report, other);
    status = put_body(f, report, other, difference, err);
    if (!status)
        status = put_data(f, 0, report, other ? MOST_DATA / 2 : MOST_DATA, err);
    if (!status && other)
        status = put_data(f, 1, other, MOST_DATA / 2, err);
    if (!status) {
        fputs("<script>", f);
        fputs(mf_report_script, f);
        fputs("</script>\n</main></body></html>\n", f);
        if (!ferror(f))
            return mf_os_out_commit(&out, err);
        status = mf_fail(err, MEMFIT_IO, "%s: writing failed: %s", path, strerror(errno));
    }
    mf_os_out_abandon(&out);
    return status;
}
