/*
 * report_compare.c: two reports, owner by owner, at their peaks.
 *
 * Owners are the same when kind and shown name are. Both lists are sorted by these and walked together, so every owner of
 * either side is counted once, and the changes add up to the difference of the peaks.
 */
#include "answer/report.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static int by_key(const void *a, const void *b)
{
    const mf_report_owner *x = *(const mf_report_owner *const *)a, *y = *(const mf_report_owner *const *)b;
    int names = strcmp(x->name, y->name);
    return names ? names : (int)x->kind - (int)y->kind;
}

/* Owners with bytes at the peak, by name. */
static const mf_report_owner **sorted(mf_arena *arena, const mf_report *r, uint32_t *count)
{
    const mf_report_owner **list = MF_NEW_ARRAY(arena, const mf_report_owner *, r->owner_count + 1);
    *count = 0;
    for (uint32_t i = 0; list && i < r->owner_count; i++)
        if (r->owners[i].peak_bytes)
            list[(*count)++] = &r->owners[i];
    if (list)
        qsort(list, *count, sizeof(const mf_report_owner *), by_key);
    return list;
}

static int64_t change_of(const mf_report_change *c)
{
    return (int64_t)(c->after - c->before);
}

static int by_change(const void *a, const void *b)
{
    const mf_report_change *x = a, *y = b;
    uint64_t dx = (uint64_t)llabs(change_of(x)), dy = (uint64_t)llabs(change_of(y));
    if (dx != dy)
        return dx < dy ? 1 : -1;
    int names = strcmp(x->name, y->name);
    return names ? names : (int)x->kind - (int)y->kind;
}

/* Adds to the last change when it is of the same owner: shown names of two owners may be equal. */
static void add(mf_report_difference *d, const mf_report_owner *o, bool after)
{
    mf_report_change *last = d->count ? &d->changes[d->count - 1] : NULL;
    if (!last || last->kind != o->kind || strcmp(last->name, o->name) != 0) {
        last = &d->changes[d->count++];
        *last = (mf_report_change){.name = o->name, .kind = o->kind};
    }
    *(after ? &last->after : &last->before) += o->peak_bytes;
}

memfit_status mf_report_compare(const mf_report *before, const mf_report *after, mf_report_difference *d,
                                memfit_error *err)
{
    *d = (mf_report_difference){.peak_bytes = (int64_t)(after->peak_bytes - before->peak_bytes)};
    mf_arena_init(&d->arena, before->arena.host);
    mf_arena scratch;
    mf_arena_init(&scratch, before->arena.host);
    uint32_t n, m, i = 0, j = 0, kept = 0;
    const mf_report_owner **a = sorted(&scratch, before, &n), **b = sorted(&scratch, after, &m);
    d->changes = a && b ? MF_NEW_ARRAY(&d->arena, mf_report_change, (uint64_t)n + m + 1) : NULL;
    if (!d->changes) {
        mf_arena_destroy(&scratch);
        mf_report_difference_free(d);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to compare two traces");
    }
    while (i < n || j < m) {
        int order = i == n ? 1 : j == m ? -1 : by_key(&a[i], &b[j]);
        if (order <= 0)
            add(d, a[i++], false);
        else
            add(d, b[j++], true);
    }
    for (uint32_t k = 0; k < d->count; k++)
        if (d->changes[k].before != d->changes[k].after)
            d->changes[kept++] = d->changes[k];
    d->count = kept;
    qsort(d->changes, d->count, sizeof *d->changes, by_change);
    mf_arena_destroy(&scratch);
    return MEMFIT_OK;
}

void mf_report_difference_free(mf_report_difference *difference)
{
    mf_arena_destroy(&difference->arena);
    difference->changes = NULL;
    difference->count = 0;
}
