/* ref_window.c: pooling. Padding never wins a maximum and, unless count_padding, does not count in an average. Windows
 * that see no real cell (possible with more padding than window) give 0. */
#include "ops/reference/reference.h"

#include <math.h>

/* The real cells of the window at output position o: ranges of taps along each dimension. */
typedef struct tap_range {
    int64_t first[3], last[3]; /* taps [first, last) lie inside */
    int64_t count;
} tap_range;

static tap_range taps_inside(const mf_ref_window *w, const int64_t o[3])
{
    tap_range r = {.count = 1};
    for (int d = 0; d < 3; d++) {
        int64_t start = o[d] * w->stride[d] - w->before[d], step = w->dilation[d];
        int64_t first = start < 0 ? (-start + step - 1) / step : 0;
        int64_t room = w->in[d] - start; /* taps k with k*step < room */
        int64_t last = room <= 0 ? 0 : (room + step - 1) / step;
        r.first[d] = first;
        r.last[d] = last < w->kernel[d] ? last : w->kernel[d];
        r.count *= r.last[d] > first ? r.last[d] - first : 0;
    }
    return r;
}

/* Input cell (without channels) of tap (a, b, c) at output position o. */
static int64_t cell_of(const mf_ref_window *w, const int64_t o[3], int64_t a, int64_t b, int64_t c)
{
    int64_t d = o[0] * w->stride[0] + a * w->dilation[0] - w->before[0];
    int64_t h = o[1] * w->stride[1] + b * w->dilation[1] - w->before[1];
    int64_t v = o[2] * w->stride[2] + c * w->dilation[2] - w->before[2];
    return (d * w->in[1] + h) * w->in[2] + v;
}

static int64_t cells(const int64_t size[3])
{
    return size[0] * size[1] * size[2];
}

static bool next_position(const mf_ref_window *w, int64_t o[3])
{
    for (int d = 2; d >= 0; d--) {
        if (++o[d] < w->out[d])
            return true;
        o[d] = 0;
    }
    return false;
}

static double divisor(const mf_window *window, const mf_ref_window *w, const tap_range *r)
{
    return (double)(window->count_padding ? cells(w->kernel) : r->count > 0 ? r->count : 1);
}

#define REF_DOUBLE 0
#include "ops/reference/window_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/window_body.h"
