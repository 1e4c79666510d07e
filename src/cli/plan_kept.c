/*
 * plan_kept.c: see plan_kept.h. A kept plan is {"format": "memfit plan", "version": 1, "plan": the object of --json}.
 * Differences are taken between two such objects, so that what is compared is what anybody can read.
 */
#include "cli/plan_kept.h"

#include "base/error.h"
#include "base/json.h"
#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 1 };

memfit_status cli_plan_save(const memfit_plan *plan, const char *path, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status != MEMFIT_OK)
        return status;
    mf_print(out.file, "{\"format\": \"memfit plan\", \"version\": %d, \"plan\": ", VERSION);
    memfit_plan_print_json(plan, out.file);
    fputs("}\n", out.file);
    return mf_os_out_commit(&out, err);
}

/* ---- both as trees ---- */

typedef struct pair {
    mf_arena arena;
    mf_mapping mapping;
    char *text;
    size_t text_bytes;
    const mf_json *before, *now;
} pair;

static void pair_close(pair *p)
{
    free(p->text);
    mf_os_unmap_file(&p->mapping);
    mf_arena_destroy(&p->arena);
}

static memfit_status read_now(pair *p, const memfit_plan *plan, memfit_error *err)
{
    FILE *memory = open_memstream(&p->text, &p->text_bytes);
    if (!memory)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to compare plans");
    memfit_plan_print_json(plan, memory);
    if (fclose(memory) != 0)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to compare plans");
    mf_json *root;
    memfit_status status = mf_json_parse(&p->arena, p->text, p->text_bytes, &root, err);
    p->now = status == MEMFIT_OK ? root : NULL;
    return status;
}

static memfit_status pair_open(pair *p, const memfit_plan *plan, const char *path, memfit_error *err)
{
    mf_json *root = NULL;
    *p = (pair){0};
    mf_arena_init(&p->arena, NULL);
    memfit_status status = mf_os_map_file(path, &p->mapping, err);
    if (status == MEMFIT_OK) {
        status = mf_json_parse(&p->arena, (const char *)p->mapping.data, p->mapping.bytes, &root, err);
        if (status != MEMFIT_OK)
            status = mf_error_prefix(err, MEMFIT_DAMAGED, "%s: this is not a plan that --save wrote", path);
    }
    if (status == MEMFIT_OK && strcmp(mf_json_get_string(root, "format", ""), "memfit plan") != 0)
        status = mf_fail(err, MEMFIT_DAMAGED, "%s: this is not a plan that --save wrote", path);
    if (status == MEMFIT_OK && mf_json_get_integer(root, "version", 0) != VERSION)
        status =
            mf_fail(err, MEMFIT_UNSUPPORTED, "%s: a plan of version %lld; this memfit reads version %d\nsave it again",
                    path, (long long)mf_json_get_integer(root, "version", 0), VERSION);
    p->before = mf_json_get(root, "plan");
    if (status == MEMFIT_OK)
        status = read_now(p, plan, err);
    if (status != MEMFIT_OK)
        pair_close(p);
    return status;
}

/* ---- differences ---- */

static const mf_json *find_layer(const mf_json *plan, const char *name)
{
    const mf_json *layers = mf_json_get(plan, "layers");
    for (const mf_json *l = layers ? layers->first : NULL; l; l = l->next)
        if (strcmp(mf_json_get_string(l, "name", ""), name) == 0)
            return l;
    return NULL;
}

static int64_t layer_bytes(const mf_json *layer, const char *key)
{
    return mf_json_get_integer(layer, key, 0);
}

typedef struct differences {
    bool json, any;
    mf_json_writer w;
} differences;

static const char *signed_size(int64_t bytes, char *text, size_t n)
{
    char size[24];
    snprintf(text, n, "%c%s", bytes < 0 ? '-' : '+',
             memfit_size_format((uint64_t)(bytes < 0 ? -bytes : bytes), size, sizeof size));
    return text;
}

static void put_layer(differences *d, const char *name, const mf_json *before, const mf_json *now)
{
    int64_t weights = layer_bytes(now, "parameter_bytes") - layer_bytes(before, "parameter_bytes");
    int64_t saved = layer_bytes(now, "saved_bytes") - layer_bytes(before, "saved_bytes");
    char x[32], y[32];
    if (!weights && !saved && before && now)
        return;
    d->any = true;
    if (d->json) {
        mf_json_open(&d->w, NULL, '{');
        mf_json_put_string(&d->w, "name", name);
        mf_json_put_string(&d->w, "change", !before ? "new" : !now ? "gone" : "differs");
        mf_json_put_i64(&d->w, "parameter_bytes", weights);
        mf_json_put_i64(&d->w, "saved_bytes", saved);
        mf_json_close(&d->w, '}');
    } else {
        mf_print(stdout, "  %-8s %-34s parameters %12s   saved %12s\n",
                 !before ? "new"
                 : !now  ? "gone"
                         : "",
                 name, signed_size(weights, x, sizeof x), signed_size(saved, y, sizeof y));
    }
}

static void put_whole(differences *d, const char *title, const char *key, int64_t before, int64_t now)
{
    char x[24], y[24], z[32];
    if (d->json) {
        mf_json_put_i64(&d->w, key, now - before);
    } else if (now != before) {
        d->any = true;
        mf_print(stdout, "%s: %s, was %s (%s)\n", title, memfit_size_format((uint64_t)now, x, sizeof x),
                 memfit_size_format((uint64_t)before, y, sizeof y), signed_size(now - before, z, sizeof z));
    }
}

memfit_status cli_plan_diff(const memfit_plan *plan, const char *path, bool json, memfit_error *err)
{
    pair p;
    memfit_status status = pair_open(&p, plan, path, err);
    if (status != MEMFIT_OK)
        return status;
    differences d = {.json = json};
    if (json) {
        mf_json_begin(&d.w, stdout);
        mf_json_open(&d.w, NULL, '{');
    }
    put_whole(&d, "peak in memfit", "peak_difference_bytes", mf_json_get_integer(p.before, "peak_bytes", 0),
              mf_json_get_integer(p.now, "peak_bytes", 0));
    const mf_json *was = mf_json_get(p.before, "in_framework"), *is = mf_json_get(p.now, "in_framework");
    if (was && is && strcmp(mf_json_get_string(was, "runtime", ""), mf_json_get_string(is, "runtime", "")) == 0) {
        char title[48];
        snprintf(title, sizeof title, "peak in %s", mf_json_get_string(is, "runtime", ""));
        put_whole(&d, title, "in_framework_difference_bytes", mf_json_get_integer(was, "peak_bytes", 0),
                  mf_json_get_integer(is, "peak_bytes", 0));
    }
    if (json)
        mf_json_open(&d.w, "layers", '[');
    const mf_json *layers = mf_json_get(p.now, "layers"), *old = mf_json_get(p.before, "layers");
    for (const mf_json *l = layers ? layers->first : NULL; l; l = l->next)
        put_layer(&d, mf_json_get_string(l, "name", ""), find_layer(p.before, mf_json_get_string(l, "name", "")), l);
    for (const mf_json *l = old ? old->first : NULL; l; l = l->next)
        if (!find_layer(p.now, mf_json_get_string(l, "name", "")))
            put_layer(&d, mf_json_get_string(l, "name", ""), l, NULL);
    if (json) {
        mf_json_close(&d.w, ']');
        mf_json_close(&d.w, '}');
        mf_json_end(&d.w);
    }
    pair_close(&p);
    return MEMFIT_OK;
}

/* ---- the baseline ---- */

memfit_status cli_plan_within(const memfit_plan *plan, const char *path, double tolerance, bool *within,
                              memfit_error *err)
{
    pair p;
    char x[24], y[24];
    memfit_plan_summary summary = MEMFIT_PLAN_SUMMARY;
    memfit_status status = pair_open(&p, plan, path, err);
    if (status != MEMFIT_OK)
        return status;
    memfit_plan_get_summary(plan, &summary, NULL);
    const mf_json *was = mf_json_get(p.before, "in_framework"), *is = mf_json_get(p.now, "in_framework");
    bool other = summary.runtime_given && strcmp(summary.runtime, "memfit") != 0;
    bool same = strcmp(mf_json_get_string(was, "runtime", ""), mf_json_get_string(is, "runtime", "")) == 0;
    if (other && (!same || mf_json_is_null(mf_json_get(was, "high_bytes")))) {
        status = mf_fail(err, MEMFIT_INVALID, "%s has no figure for %s\nsave it again with --runtime %s", path,
                         summary.runtime, summary.runtime);
    } else {
        int64_t before =
            other ? mf_json_get_integer(was, "high_bytes", 0) : mf_json_get_integer(p.before, "peak_bytes", 0);
        int64_t now = other ? mf_json_get_integer(is, "high_bytes", 0) : mf_json_get_integer(p.now, "peak_bytes", 0);
        *within = (double)now <= (double)before * (1 + tolerance);
        if (!*within)
            mf_print(stderr, "memfit: the peak in %s is %s, more than the baseline's %s and %g %%\n",
                     other ? summary.runtime : "memfit", memfit_size_format((uint64_t)now, x, sizeof x),
                     memfit_size_format((uint64_t)before, y, sizeof y), tolerance * 100);
    }
    pair_close(&p);
    return status;
}
