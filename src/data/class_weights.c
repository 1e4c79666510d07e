/* class_weights.c: see class_weights.h. */
#include "data/class_weights.h"

#include "base/error.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_LABEL = 1 << 20 };

/* A whole number from 0; -1 when it is none. */
static int64_t label_number(const char *key)
{
    char *end = NULL;
    long long v = key && *key >= '0' && *key <= '9' ? strtoll(key, &end, 10) : -1;
    return v >= 0 && v <= MOST_LABEL && *end == 0 ? v : -1;
}

/* The largest label goes to *most. */
static memfit_status check(const mf_json *root, int64_t *most, memfit_error *err)
{
    *most = -1;
    if (root->type != MF_JSON_OBJECT || !root->first)
        return mf_fail(err, MEMFIT_DAMAGED, "an object of weights by label is needed: {\"0\": 1.0, \"1\": 2.5}");
    for (const mf_json *v = root->first; v; v = v->next) {
        int64_t label = label_number(v->key);
        if (label < 0 || v->type != MF_JSON_NUMBER || !isfinite(mf_json_number(v, 0)))
            return mf_fail(
                err, MEMFIT_DAMAGED, "\"%.40s\" %s\nweights by label look like this: {\"0\": 1.0, \"1\": 2.5}",
                v->key ? v->key : "", label < 0 ? "is no label (a whole number from 0 to 1048576)" : "has no number");
        *most = label > *most ? label : *most;
    }
    return MEMFIT_OK;
}

memfit_status mf_class_weights_read(const memfit_host *host, const char *text, uint64_t bytes, double **weights,
                                    int64_t *count, memfit_error *err)
{
    mf_arena arena;
    mf_json *root;
    int64_t most;
    double *w = NULL;
    mf_arena_init(&arena, host);
    memfit_status status = mf_json_parse(&arena, text, bytes, &root, err);
    if (status == MEMFIT_OK)
        status = check(root, &most, err);
    if (status == MEMFIT_OK && !(w = mf_host_alloc(host, (size_t)(most + 1) * sizeof *w)))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for %lld class weights", (long long)most + 1);
    if (status == MEMFIT_OK) {
        for (int64_t i = 0; i <= most; i++)
            w[i] = 1;
        for (const mf_json *v = root->first; v; v = v->next)
            w[label_number(v->key)] = mf_json_number(v, 1);
        *weights = w;
        *count = most + 1;
    }
    mf_arena_destroy(&arena);
    return status;
}
