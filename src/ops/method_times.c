/* method_times.c: see method_times.h. Rows are kept in the order of their keys, and found by halving. */
#include "ops/method_times.h"

#include "base/error.h"
#include "base/os.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 1 << 20, MOST_MADE_BY = 200 };

typedef struct row {
    uint64_t operation, method;
    double us;
} row;

struct mf_method_times {
    const memfit_host *host;
    char made_by[MOST_MADE_BY];
    row *rows;
    uint64_t count, room;
};

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 0x100000001B3u;
    return hash;
}

#define FIRST_HASH UINT64_C(0xCBF29CE484222325)

uint64_t mf_op_likeness(const mf_graph *graph, const mf_op *op)
{
    uint64_t hash = mix(FIRST_HASH, &op->kind, sizeof op->kind);
    hash = mix(hash, &op->accumulate, sizeof op->accumulate);
    hash = mix(hash, &op->attr, sizeof op->attr);
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t id = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        const mf_tensor *t = id == MF_NONE ? NULL : &graph->tensors[id];
        int64_t about[2] = {t ? (int64_t)t->dtype : -1, t ? (int64_t)t->shape.rank : 0};
        hash = mix(hash, about, sizeof about);
        if (t)
            hash = mix(hash, t->shape.dim, t->shape.rank * sizeof *t->shape.dim);
    }
    return hash | 1;
}

static uint64_t key_of(const mf_method *method)
{
    return mix(FIRST_HASH, method->id, sizeof method->id);
}

memfit_status mf_method_times_create(const memfit_host *host, const char *made_by, mf_method_times **times,
                                     memfit_error *err)
{
    mf_method_times *t = mf_host_zalloc(host, sizeof *t);
    if (!t)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for times of methods");
    t->host = host;
    snprintf(t->made_by, sizeof t->made_by, "%s", made_by);
    *times = t;
    return MEMFIT_OK;
}

void mf_method_times_destroy(mf_method_times *t)
{
    if (!t)
        return;
    mf_host_free(t->host, t->rows, t->room * sizeof *t->rows);
    mf_host_free(t->host, t, sizeof *t);
}

/* Where a row is, or would be. */
static uint64_t place_of(const mf_method_times *t, uint64_t operation, uint64_t method)
{
    uint64_t low = 0, high = t->count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        const row *r = &t->rows[middle];
        if (r->operation < operation || (r->operation == operation && r->method < method))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_at(const mf_method_times *t, uint64_t at, uint64_t operation, uint64_t method)
{
    return at < t->count && t->rows[at].operation == operation && t->rows[at].method == method;
}

static memfit_status insert(mf_method_times *t, row new_row, memfit_error *err)
{
    uint64_t at = place_of(t, new_row.operation, new_row.method);
    if (is_at(t, at, new_row.operation, new_row.method)) {
        t->rows[at].us = new_row.us;
        return MEMFIT_OK;
    }
    if (t->count == t->room) {
        uint64_t room = t->room ? 2 * t->room : 256;
        row *rows = mf_host_resize(t->host, t->rows, t->room * sizeof *rows, room * sizeof *rows);
        if (!rows)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for times of methods");
        t->rows = rows;
        t->room = room;
    }
    memmove(t->rows + at + 1, t->rows + at, (t->count - at) * sizeof *t->rows);
    t->rows[at] = new_row;
    t->count++;
    return MEMFIT_OK;
}

memfit_status mf_method_times_add(mf_method_times *t, uint64_t likeness, const mf_method *method, double us,
                                  memfit_error *err)
{
    return insert(t, (row){likeness, key_of(method), us}, err);
}

double mf_method_times_find(const mf_method_times *t, uint64_t likeness, const mf_method *method)
{
    uint64_t key = key_of(method), at = place_of(t, likeness, key);
    return is_at(t, at, likeness, key) ? t->rows[at].us : -1;
}

uint64_t mf_method_times_count(const mf_method_times *t)
{
    return t->count;
}

static uint64_t hash_row(uint64_t hash, const row *r)
{
    uint64_t numbers[3] = {r->operation, r->method, (uint64_t)llround(r->us * 1000)};
    return mix(hash, numbers, sizeof numbers);
}

uint64_t mf_method_times_hash(const mf_method_times *t)
{
    uint64_t hash = mix(FIRST_HASH, t->made_by, strlen(t->made_by));
    for (uint64_t i = 0; i < t->count; i++)
        hash = hash_row(hash, &t->rows[i]);
    return hash;
}

/* ---- the file ----------------------------------------------------------------------------------------------- */

memfit_status mf_method_times_write(const mf_method_times *t, const char *path, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status != MEMFIT_OK)
        return status;
    fprintf(out.file, "memfit tune 1\nmade by %s\n", t->made_by);
    for (uint64_t i = 0; i < t->count; i++)
        fprintf(out.file, "%016" PRIx64 " %016" PRIx64 " %.3f\n", t->rows[i].operation, t->rows[i].method,
                t->rows[i].us);
    fprintf(out.file, "end %" PRIu64 " %016" PRIx64 "\n", t->count, mf_method_times_hash(t));
    return mf_os_out_commit(&out, err);
}

typedef struct reader {
    const char *at, *end;
    char line[256];
    unsigned number;
} reader;

/* The next line without its end; false: there is none, or it is too long. */
static bool next_line(reader *r)
{
    const char *stop = r->at < r->end ? memchr(r->at, '\n', (size_t)(r->end - r->at)) : NULL;
    size_t n = stop ? (size_t)(stop - r->at) : 0;
    if (!stop || n >= sizeof r->line)
        return false;
    memcpy(r->line, r->at, n);
    r->line[n] = 0;
    r->at = stop + 1;
    r->number++;
    return strlen(r->line) == n;
}

static memfit_status damaged(const char *path, unsigned line, memfit_error *err)
{
    return mf_fail(err, MEMFIT_DAMAGED,
                   "%s, line %u: these are no times of memfit tune, or not all of them\nmemfit tune makes them anew",
                   path, line);
}

static memfit_status read_rows(mf_method_times *t, reader *r, const char *path, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    while (status == MEMFIT_OK && next_line(r)) {
        row new_row;
        uint64_t count, sum;
        int used = 0;
        if (sscanf(r->line, "end %" SCNu64 " %" SCNx64 "%n", &count, &sum, &used) == 2 && !r->line[used])
            return count == t->count && sum == mf_method_times_hash(t) && r->at == r->end
                       ? MEMFIT_OK
                       : damaged(path, r->number, err);
        if (sscanf(r->line, "%" SCNx64 " %" SCNx64 " %lf%n", &new_row.operation, &new_row.method, &new_row.us, &used) !=
                3 ||
            r->line[used] || !(new_row.us >= 0 && new_row.us < 1e12) || t->count == MOST_ROWS)
            return damaged(path, r->number, err);
        status = insert(t, new_row, err);
    }
    return status == MEMFIT_OK ? damaged(path, r->number + 1, err) : status;
}

static memfit_status read_all(const memfit_host *host, reader *r, const char *path, const char *made_by,
                              mf_method_times **times, memfit_error *err)
{
    if (!next_line(r) || strcmp(r->line, "memfit tune 1") != 0 || !next_line(r) || strncmp(r->line, "made by ", 8) != 0)
        return damaged(path, r->number ? r->number : 1, err);
    if (strcmp(r->line + 8, made_by) != 0)
        return mf_fail(err, MEMFIT_CONFLICT, "%s was made by %.100s, here is %.100s\nmemfit tune makes times for it",
                       path, r->line + 8, made_by);
    mf_method_times *t = NULL;
    memfit_status status = mf_method_times_create(host, made_by, &t, err);
    if (status == MEMFIT_OK)
        status = read_rows(t, r, path, err);
    if (status == MEMFIT_OK)
        *times = t;
    else
        mf_method_times_destroy(t);
    return status;
}

memfit_status mf_method_times_read(const memfit_host *host, const char *path, const char *made_by,
                                   mf_method_times **times, memfit_error *err)
{
    mf_mapping map;
    memfit_status status = mf_os_map_file(path, &map, err);
    if (status != MEMFIT_OK)
        return status;
    reader r = {.at = (const char *)map.data, .end = (const char *)map.data + map.bytes};
    status = read_all(host, &r, path, made_by, times, err);
    mf_os_unmap_file(&map);
    return status;
}

/* ---- menus -------------------------------------------------------------------------------------------------- */

static memfit_status timed_query(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    const mf_timed_source *timed = ctx;
    memfit_status status = timed->inner.query(timed->inner.ctx, graph, op, cost, err);
    if (status != MEMFIT_OK || cost->method_count < 2)
        return status;
    uint64_t like = mf_op_likeness(graph, &graph->ops[op]);
    double us[MF_MOST_METHODS], slowest = 0, scale = 0;
    for (uint32_t i = 0; i < cost->method_count; i++) {
        us[i] = mf_method_times_find(timed->times, like, &cost->methods[i]);
        slowest = us[i] > slowest ? us[i] : slowest;
        if (us[i] >= 0 && scale == 0 && cost->methods[i].time_us > 0)
            scale = us[i] / cost->methods[i].time_us;
    }
    /* What tuning left out, for it is hopeless or was refused, stands behind what was timed. */
    for (uint32_t i = 0; i < cost->method_count && scale > 0; i++) {
        double guess = cost->methods[i].time_us * scale, behind = slowest * 1.01;
        cost->methods[i].time_us = us[i] >= 0 ? us[i] : guess > behind ? guess : behind;
    }
    return MEMFIT_OK;
}

static uint64_t timed_variable_bytes(void *ctx, const mf_graph *graph, uint32_t variable)
{
    const mf_timed_source *timed = ctx;
    return timed->inner.variable_bytes(timed->inner.ctx, graph, variable);
}

void mf_timed_cost_source(mf_timed_source *timed, mf_cost_source *source)
{
    *source = timed->inner;
    source->ctx = timed;
    source->query = timed_query;
    source->variable_bytes = timed->inner.variable_bytes ? timed_variable_bytes : NULL;
}
