/* labels.c: see labels.h. */
#include "data/labels.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static memfit_status no_memory(const mf_labels *l, memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the names of labels in %s", l->source->path);
}

void mf_labels_begin(mf_labels *l, mf_source *source)
{
    *l = (mf_labels){.source = source};
}

void mf_labels_drop(mf_labels *l)
{
    const memfit_host *host = l->source->arena.host;
    mf_host_free(host, l->names, l->room * sizeof *l->names);
    mf_host_free(host, l->slots, l->slot_count * sizeof *l->slots);
    *l = (mf_labels){.source = l->source};
}

/* FNV-1a. */
static uint32_t hash_of(const char *text, uint64_t bytes)
{
    uint32_t h = 2166136261u;
    for (uint64_t i = 0; i < bytes; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h;
}

static uint32_t *slot_of(const mf_labels *l, const char *text, uint64_t bytes)
{
    uint32_t mask = l->slot_count - 1, at = hash_of(text, bytes) & mask;
    for (;; at = (at + 1) & mask) {
        uint32_t *s = &l->slots[at];
        if (!*s || (strlen(l->names[*s - 1]) == bytes && memcmp(l->names[*s - 1], text, bytes) == 0))
            return s;
    }
}

static bool widen(mf_labels *l)
{
    const memfit_host *host = l->source->arena.host;
    uint32_t *old = l->slots, had = l->slot_count;
    uint32_t *slots = mf_host_zalloc(host, (had ? 2 * had : 256) * sizeof *slots);
    if (!slots)
        return false;
    l->slots = slots;
    l->slot_count = had ? 2 * had : 256;
    for (uint32_t i = 0; i < l->count; i++)
        *slot_of(l, l->names[i], strlen(l->names[i])) = i + 1;
    mf_host_free(host, old, had * sizeof *old);
    return true;
}

memfit_status mf_labels_number(mf_labels *l, const char *text, uint64_t bytes, int32_t *number, memfit_error *err)
{
    if (2 * l->count >= l->slot_count && !widen(l))
        return no_memory(l, err);
    uint32_t *slot = slot_of(l, text, bytes);
    if (*slot) {
        *number = (int32_t)*slot - 1;
        return MEMFIT_OK;
    }
    if (l->count == MF_LABELS_MOST || bytes > MF_LABELS_MOST_BYTES)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       l->count == MF_LABELS_MOST ? "more than %d different texts: too many to be labels"
                                                  : "a text of more than %d bytes: too long to be a label",
                       l->count == MF_LABELS_MOST ? MF_LABELS_MOST : MF_LABELS_MOST_BYTES);
    const char *kept = mf_arena_strndup(&l->source->arena, text, bytes);
    if (!kept || !mf_grow(l->source->arena.host, &l->names, &l->room, l->count, sizeof *l->names))
        return no_memory(l, err);
    l->names[l->count++] = kept;
    *slot = l->count;
    *number = (int32_t)l->count - 1;
    return MEMFIT_OK;
}

/* ---- settling --------------------------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b, void *names)
{
    const char *const *n = names;
    return strcmp(n[*(const uint32_t *)a], n[*(const uint32_t *)b]);
}

/* The place of a text in "a,b,c"; -1: it is not there. *count: how many there are. */
static int32_t place_in(const char *given, const char *name, uint32_t *count)
{
    int32_t found = -1;
    *count = 0;
    for (const char *p = given;; ++*count) {
        size_t n = strcspn(p, ",");
        if (name && found < 0 && strlen(name) == n && memcmp(p, name, n) == 0)
            found = (int32_t)*count;
        if (!p[n])
            break;
        p += n + 1;
    }
    ++*count;
    return found;
}

/* final[old] = new, and the names in their final order. */
static memfit_status settle(const mf_labels *l, const char *array, const char *given, uint32_t *order, int32_t *final,
                            const char **names, memfit_error *err)
{
    uint32_t places = 0;
    for (uint32_t i = 0; i < l->count; i++)
        order[i] = i;
    qsort_r(order, l->count, sizeof *order, by_bytes, l->names);
    for (uint32_t i = 0; i < l->count; i++) {
        const char *name = l->names[order[i]];
        int32_t place = given ? place_in(given, name, &places) : (int32_t)i;
        if (place < 0)
            return mf_fail(err, MEMFIT_DAMAGED, "%s: %s has the label \"%s\", which is not among --classes %s",
                           l->source->path, array, name, given);
        final[order[i]] = place;
        names[place] = name;
    }
    for (uint32_t k = 0; given && k < places; k++)
        if (!names[k]) { /* given, but not in this data */
            const char *p = given;
            for (uint32_t i = 0; i < k; i++)
                p += strcspn(p, ",") + 1;
            names[k] = mf_arena_strndup(&l->source->arena, p, strcspn(p, ","));
            if (!names[k])
                return no_memory(l, err);
        }
    return MEMFIT_OK;
}

memfit_status mf_labels_end(mf_labels *l, const char *array, int32_t *codes, int64_t count, const char *given,
                            memfit_error *err)
{
    mf_source *source = l->source;
    const memfit_host *host = source->arena.host;
    uint32_t total = l->count, n = l->count;
    if (given)
        place_in(given, NULL, &total);
    uint32_t *order = mf_host_alloc(host, (n + 1) * sizeof *order);
    int32_t *final = mf_host_alloc(host, (n + 1) * sizeof *final);
    const char **names = mf_arena_alloc(&source->arena, ((size_t)total + 1) * sizeof *names);
    memfit_status status = order && final && names ? MEMFIT_OK : no_memory(l, err);
    if (status == MEMFIT_OK) {
        memset((void *)names, 0, ((size_t)total + 1) * sizeof *names);
        status = settle(l, array, given, order, final, names, err);
    }
    for (int64_t i = 0; i < count && status == MEMFIT_OK; i++)
        codes[i] = final[codes[i]];
    const mf_shape shape = {.rank = 1, .dim = {count}};
    if (status == MEMFIT_OK)
        status = mf_source_add(source, array, MF_I32, &shape, (const unsigned char *)codes,
                               (uint64_t)count * sizeof *codes, err);
    if (status == MEMFIT_OK) {
        source->arrays[source->count - 1].names = names;
        source->arrays[source->count - 1].name_count = total;
    }
    mf_host_free(host, order, (n + 1) * sizeof *order);
    mf_host_free(host, final, (n + 1) * sizeof *final);
    mf_labels_drop(l);
    return status;
}
