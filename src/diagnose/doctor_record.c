/* doctor_record.c: a machine on record (JSON), and two machines side by side: what differs, and which difference
 * matters. */
#include "diagnose/look.h"

#include "base/error.h"
#include "base/json.h"
#include "base/os.h"
#include "diagnose/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { RECORD_VERSION = 1 };

memfit_status memfit_doctor_save(const memfit_doctor *d, const char *path, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status)
        return status;
    mf_json_writer w;
    mf_json_begin(&w, out.file);
    mf_json_open(&w, NULL, '{');
    mf_json_put_string(&w, "format", "memfit doctor");
    mf_json_put_u64(&w, "version", RECORD_VERSION);
    mf_json_put_string(&w, "system", d->system);
    mf_json_put_string(&w, "kernel", d->kernel);
    mf_json_put_string(&w, "driver", d->kernel_module);
    const char *slash = strrchr(d->cudart, '/'); /* a folder may hold the name of a user */
    mf_json_put_string(&w, "cudart", slash ? slash + 1 : d->cudart);
    mf_json_put_string(&w, "cudnn", d->cudnn_version);
    mf_json_put_string(&w, "python", d->python);
    mf_json_put_u64(&w, "memory_bytes", d->memory_bytes);
    mf_json_open(&w, "gpus", '[');
    for (size_t i = 0; i < d->cards.card_count; i++) {
        const memfit_gpu *c = &d->cards.cards[i];
        mf_json_open(&w, NULL, '{');
        mf_json_put_string(&w, "name", c->name);
        mf_json_put_u64(&w, "total_bytes", c->total_bytes);
        mf_json_put_u64(&w, "free_bytes", c->free_bytes);
        mf_json_put_i64(&w, "capability", c->capability);
        mf_json_close(&w, '}');
    }
    mf_json_close(&w, ']');
    mf_json_open(&w, "frameworks", '[');
    for (size_t i = 0; i < d->framework_count; i++) {
        mf_json_open(&w, NULL, '{');
        mf_json_put_string(&w, "name", d->frameworks[i].name);
        mf_json_put_string(&w, "version", d->frameworks[i].version);
        mf_json_put_string(&w, "cuda", d->frameworks[i].cuda);
        mf_json_close(&w, '}');
    }
    mf_json_close(&w, ']');
    mf_json_close(&w, '}');
    mf_json_end(&w);
    return mf_os_out_commit(&out, err);
}

typedef struct {
    memfit_difference *list;
    size_t most, count;
} differences;

static void differ(differences *s, bool matters, const char *what, const char *here, const char *there,
                   const char *format, ...) MEMFIT_PRINTF(6, 7);

/* Those that matter go before those that do not. */
static void differ(differences *s, bool matters, const char *what, const char *here, const char *there,
                   const char *format, ...)
{
    memfit_difference d = {.matters = matters};
    snprintf(d.what, sizeof d.what, "%s", what);
    snprintf(d.here, sizeof d.here, "%s", here);
    snprintf(d.there, sizeof d.there, "%s", there);
    va_list args;
    va_start(args, format);
    vsnprintf(d.why, sizeof d.why, format, args);
    va_end(args);
    size_t at = s->count < s->most ? s->count : s->most;
    if (matters)
        while (at > 0 && !s->list[at - 1].matters)
            at--;
    for (size_t i = s->count < s->most ? s->count : s->most ? s->most - 1 : 0; i > at; i--)
        s->list[i] = s->list[i - 1];
    if (at < s->most)
        s->list[at] = d;
    s->count++;
}

static void compare_text(differences *s, const char *what, const char *here, const char *there, bool matters,
                         const char *why)
{
    if (strcmp(here, there) != 0)
        differ(s, matters, what, here[0] ? here : "none", there[0] ? there : "none", "%s", why);
}

static void compare_cards(differences *s, const memfit_doctor *here, const mf_json *gpus)
{
    size_t there_count = gpus ? gpus->count : 0;
    char a[64], b[64], x[24], y[24];
    if (here->cards.card_count != there_count) {
        snprintf(a, sizeof a, "%zu", here->cards.card_count);
        snprintf(b, sizeof b, "%zu", there_count);
        differ(s, true, "number of cards", a, b, "programs that use every card, or card 0, see another machine");
    }
    if (!here->cards.card_count || !there_count)
        return;
    const memfit_gpu *c = &here->cards.cards[0];
    const mf_json *g = mf_json_at(gpus, 0);
    uint64_t total = (uint64_t)mf_json_get_integer(g, "total_bytes", 0),
             free_there = (uint64_t)mf_json_get_integer(g, "free_bytes", 0);
    int capability = (int)mf_json_get_integer(g, "capability", -1);
    compare_text(s, "card", c->name, mf_json_get_string(g, "name", ""), false,
                 "another card: see memory, reserve and capability");
    if (c->total_bytes != total)
        differ(s, c->total_bytes < total, "card memory", memfit_size_format(c->total_bytes, x, sizeof x),
               memfit_size_format(total, y, sizeof y),
               c->total_bytes < total ? "less memory here: a step that just fitted there does not fit"
                                      : "more memory here");
    if (c->free_bytes + (c->free_bytes >> 4) < free_there)
        differ(s, true, "free memory", memfit_size_format(c->free_bytes, x, sizeof x),
               memfit_size_format(free_there, y, sizeof y),
               "less is free here: other processes, a display, or a larger fixed cost (memfit ps)");
    if (c->capability != capability && c->capability >= 0 && capability >= 0) {
        uint64_t mine = mf_tensorflow_reserve((unsigned)c->capability, c->free_bytes),
                 theirs = mf_tensorflow_reserve((unsigned)capability, free_there);
        snprintf(a, sizeof a, "%d.%d", c->capability / 10, c->capability % 10);
        snprintf(b, sizeof b, "%d.%d", capability / 10, capability % 10);
        differ(s, true, "compute capability", a, b,
               "another generation: other kernels and workspaces; TensorFlow keeps %s beside its pool here, %s there",
               memfit_size_format(mine, x, sizeof x), memfit_size_format(theirs, y, sizeof y));
    }
}

static void compare_frameworks(differences *s, const memfit_doctor *here, const mf_json *there)
{
    for (size_t i = 0; i < here->framework_count; i++) {
        const memfit_framework *f = &here->frameworks[i];
        const mf_json *other = NULL;
        for (const mf_json *g = there ? there->first : NULL; g; g = g->next)
            if (strcmp(mf_json_get_string(g, "name", ""), f->name) == 0)
                other = g;
        const char *version = mf_json_get_string(other, "version", "");
        if (strcmp(version, f->version) != 0)
            differ(s, true, f->name, f->version, version[0] ? version : "none",
                   "versions choose other algorithms and keep other memory");
    }
    for (const mf_json *g = there ? there->first : NULL; g; g = g->next) {
        bool found = false;
        for (size_t i = 0; i < here->framework_count; i++)
            found |= strcmp(here->frameworks[i].name, mf_json_get_string(g, "name", "")) == 0;
        if (!found)
            differ(s, true, mf_json_get_string(g, "name", "?"), "none", mf_json_get_string(g, "version", ""),
                   "not found here: is the right environment active?");
    }
}

memfit_status mf_doctor_compare(const memfit_host *host, const memfit_doctor *here, const char *path,
                                memfit_difference *list, size_t most, size_t *count, memfit_error *err)
{
    mf_mapping map;
    memfit_status status = mf_os_map_file(path, &map, err);
    if (status)
        return status;
    mf_arena arena;
    mf_arena_init(&arena, host);
    arena.limit_bytes = 16 << 20;
    mf_json *root = NULL;
    status = mf_json_parse(&arena, (const char *)map.data, map.bytes, &root, err);
    bool unreadable = status == MEMFIT_DAMAGED;
    if (status && !unreadable)
        mf_error_prefix(err, status, "%s", path);
    else if (unreadable || strcmp(mf_json_get_string(root, "format", ""), "memfit doctor") != 0)
        status = mf_fail(
            err, MEMFIT_DAMAGED,
            "%s is not a record of memfit doctor\nmake one on the other machine: memfit doctor --save FILE", path);
    else if (mf_json_get_integer(root, "version", 0) != RECORD_VERSION)
        status = mf_fail(err, MEMFIT_UNSUPPORTED,
                         "%s is of another version of memfit\nmake it again there with this version", path);
    if (!status) {
        differences s = {list, most, 0};
        compare_cards(&s, here, mf_json_get(root, "gpus"));
        compare_frameworks(&s, here, mf_json_get(root, "frameworks"));
        compare_text(&s, "driver", here->kernel_module, mf_json_get_string(root, "driver", ""), true,
                     "the fixed cost of a context and what CUDA it serves follow the driver");
        compare_text(&s, "cuDNN", here->cudnn_version, mf_json_get_string(root, "cudnn", ""), false,
                     "another version: its workspaces differ");
        compare_text(&s, "python", here->python, mf_json_get_string(root, "python", ""), false, "");
        compare_text(&s, "system", here->system, mf_json_get_string(root, "system", ""), false, "");
        uint64_t memory = (uint64_t)mf_json_get_integer(root, "memory_bytes", 0);
        char x[24], y[24];
        if (here->memory_bytes + (here->memory_bytes >> 4) < memory)
            differ(&s, true, "host memory", memfit_size_format(here->memory_bytes, x, sizeof x),
                   memfit_size_format(memory, y, sizeof y), "less host memory: data held in memory may not fit");
        *count = s.count;
    }
    mf_arena_destroy(&arena);
    mf_os_unmap_file(&map);
    return status;
}

memfit_status memfit_doctor_compare(const memfit_doctor *here, const char *path, memfit_difference *list, size_t most,
                                    size_t *count, memfit_error *err)
{
    return mf_doctor_compare(NULL, here, path, list, most, count, err);
}
