/*
 * report_bands.c: see report_bands.h.
 *
 * A column ends after a fixed part of the trace's time or of its events, whichever comes first, so that both a picture over
 * time and one over events have enough of them. Two walks: the first cuts and finds each column's highest moment, the
 * second follows every row and reads it there.
 */
#include "answer/report_bands.h"

#include "base/error.h"

#include <string.h>

static const char no_memory[] = "no memory for the picture of a trace";

/* ---- columns ---------------------------------------------------------------------------------------------- */

typedef struct cutter {
    uint64_t events, span_ns; /* of a column at most */
    uint64_t in_column, began_ns;
} cutter;

static bool begins_column(cutter *c, uint64_t time_ns, bool first)
{
    bool yes = first || c->in_column >= c->events || (c->span_ns && time_ns / c->span_ns != c->began_ns / c->span_ns);
    if (yes) {
        c->in_column = 0;
        c->began_ns = time_ns;
    }
    c->in_column++;
    return yes;
}

static cutter cut_into(const mf_report *r, uint32_t columns)
{
    if (r->moved <= columns)
        return (cutter){.events = 1};
    uint64_t half = columns / 2;
    return (cutter){.events = r->moved / half + 1, .span_ns = r->duration_ns / (half - 1) + 1};
}

static bool take_columns(mf_report_bands *b, uint32_t most)
{
    b->events = MF_NEW_ARRAY(&b->arena, uint64_t, (uint64_t)most + 2);
    b->times = MF_NEW_ARRAY(&b->arena, uint64_t, (uint64_t)most + 2);
    b->total = MF_NEW_ARRAY(&b->arena, uint64_t, (uint64_t)most + 2);
    b->when = MF_NEW_ARRAY(&b->arena, uint64_t, (uint64_t)most + 2);
    b->reserved = MF_NEW_ARRAY(&b->arena, uint64_t, (uint64_t)most + 2);
    return b->events && b->times && b->total && b->when && b->reserved;
}

/* `moment` gets the event at which each column is highest. */
static void cut_columns(const mf_report *r, mf_report_bands *b, uint32_t most, uint64_t *moment)
{
    cutter c = cut_into(r, most);
    uint64_t now = 0, held = r->reserved_before;
    uint32_t at = 0;
    for (uint64_t i = 0; i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (e->device == r->device && (e->op == MEMFIT_EVENT_MAP || e->op == MEMFIT_EVENT_UNMAP)) {
            held += e->op == MEMFIT_EVENT_MAP ? e->bytes : 0 - e->bytes;
            if (b->columns && held > b->reserved[at])
                b->reserved[at] = held;
        }
        if (!mf_report_moves(r, e))
            continue;
        now += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        if (begins_column(&c, e->time_ns, b->columns == 0)) {
            at = b->columns++;
            b->events[at] = at ? i : 0;
            b->times[at] = e->time_ns;
            b->reserved[at] = held;
            b->total[at] = now;
            b->when[at] = e->time_ns;
            moment[at] = i;
        }
        if (now > b->total[at]) {
            b->total[at] = now;
            b->when[at] = e->time_ns;
            moment[at] = i;
        }
        if (i == r->peak_event)
            b->peak = at;
    }
    b->events[b->columns] = r->event_count;
    b->times[b->columns] = r->duration_ns;
    if (!r->reserved_peak_bytes)
        b->reserved = NULL;
}

/* ---- rows ------------------------------------------------------------------------------------------------- */

/* How much an owner matters, as a share of the whole: at the peak, over time, or by itself; those that grow always. */
static double weight_of(const mf_report *r, const mf_report_owner *o, double byte_seconds)
{
    double peak = (double)o->peak_bytes / (double)r->peak_bytes,
           own = 0.5 * (double)o->most_bytes / (double)r->peak_bytes;
    double held = byte_seconds > 0 ? o->byte_seconds / byte_seconds : 0;
    double most = peak > held ? peak : held;
    return (most > own ? most : own) + (o->growing ? 1 : 0);
}

/* The smallest weight that still gets a row of its own; by a heap of the largest ones. */
static void sift(double *heap, uint32_t count, uint32_t i)
{
    for (;;) {
        uint32_t least = i;
        for (uint32_t k = 2 * i + 1; k <= 2 * i + 2 && k < count; k++)
            least = heap[k] < heap[least] ? k : least;
        if (least == i)
            return;
        double t = heap[i];
        heap[i] = heap[least];
        heap[least] = t;
        i = least;
    }
}

static memfit_status choose_rows(const mf_report *r, mf_report_bands *b, uint32_t most, uint32_t *row_of,
                                 memfit_error *err)
{
    double all = 0;
    uint32_t rest[MEMFIT_KIND_COUNT], kept = 0;
    double *heap = MF_NEW_ARRAY(&b->arena, double, most + 1);
    b->row = MF_NEW_ARRAY(&b->arena, mf_bands_row, most + MEMFIT_KIND_COUNT);
    if (!heap || !b->row)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
    for (uint32_t k = 0; k < r->owner_count; k++)
        all += r->owners[k].byte_seconds;
    for (uint32_t k = 0; k < r->owner_count; k++) {
        double weight = weight_of(r, &r->owners[k], all);
        if (kept < most) {
            heap[kept++] = weight;
            for (uint32_t i = kept == most ? most : 0; i-- > 0;)
                sift(heap, most, i);
        } else if (weight > heap[0]) {
            heap[0] = weight;
            sift(heap, most, 0);
        }
    }
    double least = r->owner_count > most ? heap[0] : -1;
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        rest[k] = MF_REPORT_NO_OWNER;
    for (uint32_t k = 0; k < r->owner_count; k++) {
        const mf_report_owner *o = &r->owners[k];
        if (b->rows < most && weight_of(r, o, all) >= least) {
            row_of[k] = b->rows++;
            b->row[row_of[k]] = (mf_bands_row){o->name, o->kind, 1, false};
        } else {
            row_of[k] = MF_REPORT_NO_OWNER;
        }
    }
    for (uint32_t k = 0; k < r->owner_count; k++) {
        memfit_kind kind = r->owners[k].kind;
        if (row_of[k] != MF_REPORT_NO_OWNER)
            continue;
        if (rest[kind] == MF_REPORT_NO_OWNER) {
            rest[kind] = b->rows++;
            b->row[rest[kind]] = (mf_bands_row){NULL, kind, 0, true};
        }
        row_of[k] = rest[kind];
        b->row[rest[kind]].owners++;
    }
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        if (rest[k] != MF_REPORT_NO_OWNER) {
            mf_bands_row *row = &b->row[rest[k]];
            row->name = mf_arena_printf(&b->arena, "%u others", row->owners);
            if (!row->name)
                return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
        }
    return MEMFIT_OK;
}

/* ---- values ----------------------------------------------------------------------------------------------- */

typedef struct row_state {
    uint64_t live, since_ns; /* area is counted up to here */
    unsigned __int128 area;  /* bytes times ns, of this column */
} row_state;

static void count_area(row_state *s, uint64_t now_ns)
{
    s->area += (unsigned __int128)s->live * (now_ns - s->since_ns);
    s->since_ns = now_ns;
}

static void end_column(mf_report_bands *b, row_state *rows, uint32_t column)
{
    uint64_t end = b->times[column + 1], span = end - b->times[column];
    for (uint32_t k = 0; k < b->rows; k++) {
        count_area(&rows[k], end);
        uint64_t *at = &b->at[(uint64_t)k * b->columns + column], *mean = &b->mean[(uint64_t)k * b->columns + column];
        *mean = span ? (uint64_t)((rows[k].area + span / 2) / span) : *at;
        rows[k].area = 0;
    }
}

static void fill(const mf_report *r, mf_report_bands *b, const uint32_t *row_of, const uint64_t *moment,
                 row_state *rows)
{
    uint32_t column = 0;
    for (uint64_t i = 0; i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (!mf_report_moves(r, e))
            continue;
        while (column + 1 < b->columns && b->events[column + 1] <= i)
            end_column(b, rows, column++);
        row_state *s = &rows[row_of[r->owner_of[e->id]]];
        count_area(s, e->time_ns);
        s->live += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        if (i == moment[column])
            for (uint32_t k = 0; k < b->rows; k++)
                b->at[(uint64_t)k * b->columns + column] = rows[k].live;
    }
    if (b->columns)
        end_column(b, rows, column);
}

memfit_status mf_report_cut(const mf_report *r, uint32_t columns, uint32_t rows, mf_report_bands *b, memfit_error *err)
{
    *b = (mf_report_bands){0};
    mf_arena_init(&b->arena, r->arena.host);
    uint64_t *moment = MF_NEW_ARRAY(&b->arena, uint64_t, (uint64_t)columns + 2);
    uint32_t *row_of = MF_NEW_ARRAY(&b->arena, uint32_t, r->owner_count + 1);
    memfit_status status =
        moment && row_of && take_columns(b, columns) ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
    if (!status) {
        cut_columns(r, b, columns, moment);
        status = choose_rows(r, b, rows, row_of, err);
    }
    if (!status) {
        b->at = MF_NEW_ARRAY(&b->arena, uint64_t, (uint64_t)b->rows * b->columns + 1);
        b->mean = MF_NEW_ARRAY(&b->arena, uint64_t, (uint64_t)b->rows * b->columns + 1);
        row_state *state = MF_NEW_ARRAY(&b->arena, row_state, b->rows + 1);
        if (b->at && b->mean && state)
            fill(r, b, row_of, moment, state);
        else
            status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
    }
    if (status)
        mf_report_bands_free(b);
    return status;
}

void mf_report_bands_free(mf_report_bands *bands)
{
    mf_arena_destroy(&bands->arena);
    *bands = (mf_report_bands){0};
}

/* ---- packed ----------------------------------------------------------------------------------------------- */

static unsigned char *put_varint(unsigned char *p, uint64_t v)
{
    for (; v >= 128; v >>= 7)
        *p++ = (unsigned char)(v | 128);
    *p++ = (unsigned char)v;
    return p;
}

/* Values, or their differences from `less` (0 beside it), or with `sums` from the value before. */
static unsigned char *put_series(unsigned char *p, const uint64_t *values, const uint64_t *less, uint32_t count,
                                 bool sums)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < count;) {
        int64_t d = (int64_t)(values[i] - (less ? less[i] : sums ? last : 0));
        if (d == 0) {
            uint32_t more = 0;
            while (i + more + 1 < count && values[i + more + 1] == (less ? less[i + more + 1] : sums ? last : 0))
                more++;
            *p++ = 0;
            p = put_varint(p, more);
            i += more + 1;
            continue;
        }
        p = put_varint(p, (uint64_t)d << 1 ^ (uint64_t)(d >> 63));
        last = values[i++];
    }
    return p;
}

memfit_status mf_report_pack(mf_report_bands *b, const uint64_t *pool, unsigned char **data, size_t *bytes,
                             memfit_error *err)
{
    uint64_t series = 4 + (b->reserved != NULL) + (pool != NULL) + 2 * (uint64_t)b->rows;
    unsigned char *start = MF_NEW_ARRAY(&b->arena, unsigned char, series *(b->columns + 1ull) * 10 + 16), *p = start;
    if (!start)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory);
    p = put_series(p, b->events, NULL, b->columns + 1, true);
    p = put_series(p, b->times, NULL, b->columns + 1, true);
    p = put_series(p, b->total, NULL, b->columns, true);
    p = put_series(p, b->when, b->times, b->columns, false);
    if (b->reserved)
        p = put_series(p, b->reserved, NULL, b->columns, true);
    if (pool)
        p = put_series(p, pool, NULL, b->columns, true);
    for (uint32_t k = 0; k < b->rows; k++) {
        const uint64_t *at = &b->at[(uint64_t)k * b->columns];
        p = put_series(p, at, NULL, b->columns, true);
        p = put_series(p, &b->mean[(uint64_t)k * b->columns], at, b->columns, false);
    }
    *data = start;
    *bytes = (size_t)(p - start);
    return MEMFIT_OK;
}
