/*
 * guard.c: see guard.h. What a file is, is told by its bytes and never by its name: the accident guarded against is a
 * wrong name.
 */
#include "base/guard.h"

#include "base/csv.h"
#include "base/error.h"
#include "base/os.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { HEAD = 4096, BLOCK = 1 << 16 };

/* ---- kinds by content ------------------------------------------------------------------------------------- */

typedef struct opened {
    FILE *file;
    char head[HEAD + 1]; /* ended by 0 */
    size_t bytes;        /* in head */
} opened;

static bool begins(const opened *o, const char *text, size_t n)
{
    return o->bytes >= n && memcmp(o->head, text, n) == 0;
}

/* Does the file hold these bytes, from `from` on? Read in blocks that overlap. */
static bool holds(const opened *o, long from, const char *text, size_t n)
{
    char block[BLOCK];
    size_t kept = 0, got;
    if (fseek(o->file, from, SEEK_SET) != 0)
        return false;
    while ((got = fread(block + kept, 1, sizeof block - kept, o->file)) > 0) {
        size_t have = kept + got;
        if (memmem(block, have, text, n))
            return true;
        kept = have < n - 1 ? have : n - 1;
        memmove(block, block + have - kept, kept);
    }
    return false;
}

/* A member of a zip file, by its entry in the directory at the end: signature, 24 bytes, length of the name, 16 bytes,
 * the name. */
static bool has_member(const opened *o, const char *name)
{
    enum { ENTRY = 46, TAIL = 1 << 20 };
    char block[BLOCK];
    size_t length = strlen(name), kept = 0, got;
    if (fseek(o->file, 0, SEEK_END) != 0)
        return false;
    long end = ftell(o->file);
    if (fseek(o->file, end > TAIL ? end - TAIL : 0, SEEK_SET) != 0)
        return false;
    while ((got = fread(block + kept, 1, sizeof block - kept, o->file)) > 0) {
        size_t have = kept + got;
        for (const char *p = block; (p = memmem(p, (size_t)(block + have - p), "PK\1\2", 4)); p++)
            if ((size_t)(block + have - p) >= ENTRY + length && (unsigned char)p[28] == length && p[29] == 0 &&
                memcmp(p + ENTRY, name, length) == 0)
                return true;
        kept = have < ENTRY + length ? have : ENTRY + length;
        memmove(block, block + have - kept, kept);
    }
    return false;
}

static const char zip_magic[] = "PK\3\4", hdf5_magic[] = "\x89HDF\r\n\x1a\n";

static bool is_model(const opened *o)
{
    if (begins(o, zip_magic, 4))
        return has_member(o, "config.json");
    return begins(o, hdf5_magic, 8) && holds(o, 0, "model_config", 12);
}

static bool is_log(const opened *o)
{
    return begins(o, "epoch,", 6);
}

static bool is_trace(const opened *o)
{
    return begins(o, "MEMFITTR", 8); /* trace/trace.h, which this room may not open */
}

static bool is_page(const opened *o)
{
    return o->bytes > 15 && strncasecmp(o->head, "<!doctype html>", 15) == 0 && strstr(o->head, "<title>memfit ");
}

static bool is_array(const opened *o)
{
    return begins(o, "\x93NUMPY", 6);
}

/* "# training: batch 32, ..." or Graphviz. */
static bool is_graph(const opened *o)
{
    const char *line_end = memchr(o->head, '\n', o->bytes), *arena = strstr(o->head, ", arena ");
    return begins(o, "digraph step {", 14) || (begins(o, "# ", 2) && arena && line_end && arena < line_end);
}

static bool is_record(const opened *o)
{
    return begins(o, "{", 1) && strstr(o->head, "\"memfit doctor\"");
}

static bool is_cards(const opened *o)
{
    return begins(o, "{", 1) && strstr(o->head, "\"memfit cards\"");
}

static bool is_run(const opened *o)
{
    return begins(o, "{", 1) && strstr(o->head, "\"memfit run\"");
}

static bool is_plan(const opened *o)
{
    return begins(o, "{", 1) && strstr(o->head, "\"format\": \"memfit plan\"");
}

static bool is_cache(const opened *o)
{
    return begins(o, "MEMFITCH", 8);
}

static bool is_times(const opened *o)
{
    return begins(o, "memfit tune 1\n", 14);
}

static bool is_packing(const opened *o)
{
    mf_csv csv;
    unsigned at;
    mf_csv_open(&csv, o->head, o->bytes);
    return mf_csv_header(&csv, NULL) == MEMFIT_OK && mf_csv_find(&csv, "size", &at) &&
           mf_csv_find(&csv, "offset", &at) && (mf_csv_find(&csv, "lower", &at) || mf_csv_find(&csv, "start", &at));
}

/* As written by us: a snapshot that PyTorch wrote is somebody's recording. */
static bool is_viz(const opened *o)
{
    static const char head[] = "\x80\x02}(X\x0d\0\0\0device_traces";
    return begins(o, head, sizeof head - 1);
}

static bool is_perfetto(const opened *o)
{
    return begins(o, "\x0a", 1) && memmem(o->head, o->bytes < 64 ? o->bytes : 64, "memfit: ", 8);
}

static bool is_folded(const opened *o)
{
    return begins(o, "memfit;", 7);
}

static const struct {
    const char *words;
    bool (*is)(const opened *o);
} kinds[] = {
    [MF_FILE_MODEL] = {"a Keras model", is_model},
    [MF_FILE_LOG] = {"a log of epochs", is_log},
    [MF_FILE_TRACE] = {"a memfit trace", is_trace},
    [MF_FILE_PAGE] = {"a page of memfit", is_page},
    [MF_FILE_ARRAY] = {"an array (.npy)", is_array},
    [MF_FILE_GRAPH] = {"a step written by --dump-graph", is_graph},
    [MF_FILE_RECORD] = {"a record of memfit doctor", is_record},
    [MF_FILE_PLAN] = {"a plan kept by --save", is_plan},
    [MF_FILE_PACKING] = {"a table of buffers with offsets", is_packing},
    [MF_FILE_RUN] = {"a report of memfit run", is_run},
    [MF_FILE_CACHE] = {"a cache of samples", is_cache},
    [MF_FILE_TIMES] = {"times of memfit tune", is_times},
    [MF_FILE_FOLDER] = {"a folder", NULL},
    [MF_FILE_VIZ] = {"a trace written for memory_viz", is_viz},
    [MF_FILE_PERFETTO] = {"a trace written for Perfetto", is_perfetto},
    [MF_FILE_FOLDED] = {"folded stacks of memfit report", is_folded},
    [MF_FILE_CARDS] = {"a card file of memfit doctor", is_cards},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* What it seems to be instead, for the message. */
static const char *other_kind(const opened *o)
{
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].is && kinds[i].is(o))
            return kinds[i].words;
    if (begins(o, zip_magic, 4))
        return "a zip archive, as .npz files are";
    if (begins(o, hdf5_magic, 8))
        return "an HDF5 file";
    for (size_t i = 0; i < o->bytes; i++)
        if (!isprint((unsigned char)o->head[i]) && !isspace((unsigned char)o->head[i]) && !(o->head[i] & 0x80))
            return "something else";
    return "other text";
}

static bool look(opened *o, const char *path)
{
    o->file = fopen(path, "rbe");
    o->bytes = o->file ? fread(o->head, 1, HEAD, o->file) : 0;
    o->head[o->bytes] = 0;
    return o->file != NULL;
}

bool mf_guard_is_kind(const char *path, mf_file_kind kind)
{
    opened o;
    if (!kinds[kind].is || !look(&o, path))
        return false;
    bool is = kinds[kind].is(&o);
    fclose(o.file);
    return is;
}

/* ---- the rules -------------------------------------------------------------------------------------------- */

static bool same_place(const mf_os_place *a, const mf_os_place *b)
{
    if (a->type == MF_PLACE_NONE || b->type == MF_PLACE_NONE)
        return a->type == b->type && a->path[0] && strcmp(a->path, b->path) == 0;
    return a->type != MF_PLACE_OTHER && a->device == b->device && a->inode == b->inode;
}

static memfit_status check_kind(const mf_named_file *f, const mf_os_place *place, bool force, memfit_error *err)
{
    if (!*f->path)
        return mf_fail(err, MEMFIT_INVALID, "%s: the name of a file is empty", f->name);
    if (f->kind == MF_FILE_FOLDER)
        return place->type == MF_PLACE_NONE || place->type == MF_PLACE_FOLDER
                   ? MEMFIT_OK
                   : mf_fail(err, MEMFIT_INVALID, "%s %s: there is a file of that name, and it must be a folder",
                             f->name, f->path);
    if (place->type == MF_PLACE_FOLDER)
        return mf_fail(err, MEMFIT_INVALID, "%s %s is a folder\nname a file in it", f->name, f->path);
    if (place->type != MF_PLACE_FILE || !place->bytes || force)
        return MEMFIT_OK;
    opened o;
    if (!look(&o, f->path))
        return mf_fail(err, MEMFIT_INVALID,
                       "%s %s would replace a file that cannot be read, so what would be lost is unknown\nname "
                       "another file, or replace it with --force",
                       f->name, f->path);
    bool good = kinds[f->kind].is(&o);
    const char *instead = good ? NULL : other_kind(&o);
    fclose(o.file);
    return good ? MEMFIT_OK
                : mf_fail(err, MEMFIT_INVALID,
                          "%s %s would replace a file of another kind: it is %s, not %s\nname another file, or replace "
                          "it with --force",
                          f->name, f->path, instead, kinds[f->kind].words);
}

static memfit_status check_pair(const mf_named_file *out, const mf_os_place *place, const mf_named_file *other,
                                const mf_os_place *there, memfit_error *err)
{
    if (other->output)
        return !same_place(place, there)
                   ? MEMFIT_OK
                   : mf_fail(err, MEMFIT_INVALID, "%s %s and %s %s are one file\ngive each a name of its own",
                             other->name, other->path, out->name, out->path);
    if (there->type == MF_PLACE_NONE)
        return MEMFIT_OK;
    bool inside = place->type == MF_PLACE_FILE && mf_os_place_is_inside(place, there);
    if (!same_place(place, there) && !inside)
        return MEMFIT_OK;
    if (out->replaces && strcmp(out->replaces, other->name) == 0)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_INVALID,
                   "%s %s would replace %s of this run: %s %s\nname another file; --force does not replace an input",
                   out->name, out->path, inside ? "a file in an input" : "an input", other->name, other->path);
}

/* An input that is a pattern: is the output one of the files that it matches? */
typedef struct matching {
    const mf_named_file *out, *input;
    const mf_os_place *place;
} matching;

static memfit_status check_match(void *ctx, const char *path, memfit_error *err)
{
    const matching *m = ctx;
    mf_os_place there;
    if (!mf_os_find_place(path, &there) || !same_place(m->place, &there))
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_INVALID,
                   "%s %s would replace an input of this run: %s %s matches it\nname another file; --force does not "
                   "replace an input",
                   m->out->name, m->out->path, m->input->name, m->input->path);
}

static memfit_status check_pattern(matching m, memfit_error *err)
{
    memfit_error ignored;
    if (m.input->output || m.place->type != MF_PLACE_FILE || !strpbrk(m.input->path, "*?[{"))
        return MEMFIT_OK;
    memfit_error *own = err ? err : &ignored;
    memfit_status status = mf_os_glob(m.input->path, check_match, &m, own);
    return status == MEMFIT_INVALID ? status : MEMFIT_OK; /* what else is wrong with it is said by who opens it */
}

memfit_status mf_guard_files(const mf_named_file *files, size_t count, bool force, memfit_error *err)
{
    for (size_t i = 0; i < count; i++) {
        mf_os_place place, there;
        if (!files[i].output || !files[i].path)
            continue;
        bool found = mf_os_find_place(files[i].path, &place);
        for (size_t k = 0; k < count && found; k++) {
            if (k == i || !files[k].path || (files[k].output && k > i) || !mf_os_find_place(files[k].path, &there))
                continue;
            memfit_status status = check_pair(&files[i], &place, &files[k], &there, err);
            if (status == MEMFIT_OK && there.type == MF_PLACE_NONE)
                status = check_pattern((matching){&files[i], &files[k], &place}, err);
            if (status != MEMFIT_OK)
                return status;
        }
        memfit_status status = check_kind(&files[i], &place, force, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return MEMFIT_OK;
}
