/* window_body.h: see ref_window.c. */
#include "ops/reference/real.h"

/* All channels of one output cell; at `y` first the best so far. */
static void FN(pool_max_cell)(const mf_ref_window *w, const REAL *image, const int64_t o[3], REAL *y,
                              const mf_ref_arg *index, uint64_t at)
{
    int64_t channels = w->in_channels;
    tap_range r = taps_inside(w, o);
    for (int64_t c = 0; c < channels; c++) {
        double best = r.count > 0 ? -INFINITY : 0;
        int64_t where = 0;
        bool found = false;
        for (int64_t a = r.first[0]; a < r.last[0]; a++)
            for (int64_t b = r.first[1]; b < r.last[1]; b++)
                for (int64_t d = r.first[2]; d < r.last[2]; d++) {
                    double v = (double)image[cell_of(w, o, a, b, d) * channels + c];
                    if (v > best || !found || (v != v && best == best)) { /* the first of equals; NaN wins */
                        best = v;
                        where = (a * w->kernel[1] + b) * w->kernel[2] + d;
                        found = true;
                    }
                }
        y[c] = (REAL)best;
        if (index && index->data)
            mf_ref_store(index->dtype, index->data, at + (uint64_t)c, (double)where);
    }
}

KERNEL(pool_max)
{
    (void)err;
    mf_ref_window w;
    mf_ref_window_of(&call->op->attr.window, call->in[0].shape, call->out[0].shape, &w);
    const mf_ref_arg *index = call->out_count > 1 ? &call->out[1] : NULL;
    int64_t image = cells(w.in) * w.in_channels;
    uint64_t at = 0;
    for (int64_t n = 0; n < w.batch && call->out[0].count > 0; n++) {
        int64_t o[3] = {0};
        do {
            FN(pool_max_cell)
            (&w, (const REAL *)call->in[0].data + n * image, o, (REAL *)call->out[0].data + at, index, at);
            at += (uint64_t)w.in_channels;
        } while (next_position(&w, o));
    }
    return MEMFIT_OK;
}

KERNEL(pool_max_grad)
{
    (void)err;
    mf_ref_window w;
    mf_ref_window_of(&call->op->attr.window, call->out[0].shape, call->in[0].shape, &w);
    const REAL *dy = call->in[0].data;
    REAL *dx = call->out[0].data;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        dx[i] = 0;
    int64_t image = cells(w.in) * w.in_channels;
    uint64_t at = 0;
    for (int64_t n = 0; n < w.batch && call->in[0].count > 0; n++) {
        int64_t o[3] = {0};
        do {
            if (taps_inside(&w, o).count == 0) {
                at += (uint64_t)w.in_channels;
                continue;
            }
            for (int64_t c = 0; c < w.in_channels; c++, at++) {
                int64_t k = mf_ref_load_int(call->in[1].dtype, call->in[1].data, at);
                int64_t cell =
                    cell_of(&w, o, k / (w.kernel[1] * w.kernel[2]), k / w.kernel[2] % w.kernel[1], k % w.kernel[2]);
                dx[n * image + cell * w.in_channels + c] += dy[at];
            }
        } while (next_position(&w, o));
    }
    return MEMFIT_OK;
}

KERNEL(pool_avg)
{
    (void)err;
    mf_ref_window w;
    mf_ref_window_of(&call->op->attr.window, call->in[0].shape, call->out[0].shape, &w);
    int64_t image = cells(w.in) * w.in_channels;
    REAL *y = call->out[0].data;
    for (int64_t n = 0; n < w.batch && call->out[0].count > 0; n++) {
        int64_t o[3] = {0};
        const REAL *x = (const REAL *)call->in[0].data + n * image;
        do {
            tap_range r = taps_inside(&w, o);
            double scale = 1 / divisor(&call->op->attr.window, &w, &r);
            for (int64_t c = 0; c < w.in_channels; c++) {
                double sum = 0;
                for (int64_t a = r.first[0]; a < r.last[0]; a++)
                    for (int64_t b = r.first[1]; b < r.last[1]; b++)
                        for (int64_t d = r.first[2]; d < r.last[2]; d++)
                            sum += (double)x[cell_of(&w, o, a, b, d) * w.in_channels + c];
                *y++ = (REAL)(sum * scale);
            }
        } while (next_position(&w, o));
    }
    return MEMFIT_OK;
}

KERNEL(pool_avg_grad)
{
    (void)err;
    mf_ref_window w;
    mf_ref_window_of(&call->op->attr.window, call->out[0].shape, call->in[0].shape, &w);
    int64_t image = cells(w.in) * w.in_channels;
    const REAL *dy = call->in[0].data;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        ((REAL *)call->out[0].data)[i] = 0;
    for (int64_t n = 0; n < w.batch && call->in[0].count > 0; n++) {
        int64_t o[3] = {0};
        REAL *dx = (REAL *)call->out[0].data + n * image;
        do {
            tap_range r = taps_inside(&w, o);
            double scale = 1 / divisor(&call->op->attr.window, &w, &r);
            for (int64_t a = r.first[0]; a < r.last[0]; a++)
                for (int64_t b = r.first[1]; b < r.last[1]; b++)
                    for (int64_t d = r.first[2]; d < r.last[2]; d++)
                        for (int64_t c = 0; c < w.in_channels; c++)
                            dx[cell_of(&w, o, a, b, d) * w.in_channels + c] += (REAL)((double)dy[c] * scale);
            dy += w.in_channels;
        } while (next_position(&w, o));
    }
    return MEMFIT_OK;
}
