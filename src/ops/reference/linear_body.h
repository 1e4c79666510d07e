/* linear_body.h: see ref_linear.c. */
#include "ops/reference/real.h"

/* c (m x n) = scale * a * b + bias, with element strides for both factors. */
static void FN(product)(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t a_row, int64_t a_col, const REAL *b,
                        int64_t b_row, int64_t b_col, double scale, const REAL *bias, REAL *c)
{
    for (int64_t i = 0; i < m; i++) {
        const REAL *ai = a + i * a_row;
        if (b_col != 1) { /* b transposed: dot products along its rows */
            for (int64_t j = 0; j < n; j++) {
                const REAL *bj = b + j * b_col;
                double sum = 0;
                for (int64_t p = 0; p < k; p++)
                    sum += (double)ai[p * a_col] * (double)bj[p * b_row];
                c[i * n + j] = (REAL)(scale * sum + (bias ? (double)bias[j] : 0));
            }
            continue;
        }
        for (int64_t j0 = 0; j0 < n; j0 += TILE) {
            int64_t width = n - j0 < TILE ? n - j0 : TILE;
            double sum[TILE] = {0};
            for (int64_t p = 0; p < k; p++) {
                double f = (double)ai[p * a_col];
                const REAL *bp = b + p * b_row + j0;
                for (int64_t j = 0; j < width; j++)
                    sum[j] += f * (double)bp[j];
            }
            for (int64_t j = 0; j < width; j++)
                c[i * n + j0 + j] = (REAL)(scale * sum[j] + (bias ? (double)bias[j0 + j] : 0));
        }
    }
}

KERNEL(matmul)
{
    (void)err;
    const mf_shape *sa = call->in[0].shape, *sb = call->in[1].shape, *sc = call->out[0].shape;
    bool ta = call->op->attr.matmul.trans_a, tb = call->op->attr.matmul.trans_b;
    int64_t a_rows = sa->rank > 1 ? sa->dim[sa->rank - 2] : 1, a_cols = sa->dim[sa->rank - 1];
    int64_t b_rows = sb->rank > 1 ? sb->dim[sb->rank - 2] : 1, b_cols = sb->dim[sb->rank - 1];
    int64_t m = ta ? a_cols : a_rows, k = ta ? a_rows : a_cols, n = tb ? b_rows : b_cols;
    int64_t one = m * n > 0 ? m * n : 1, batch = (int64_t)mf_shape_count(sc) / one;
    if (sb->rank <= 2 && !ta) { /* one matrix serves all batches: one tall product */
        m *= batch;
        batch = 1;
    }
    bool a_shared = (int64_t)call->in[0].count <= m * k, b_shared = (int64_t)call->in[1].count <= k * n;
    double scale = call->op->attr.matmul.scale;
    const REAL *bias = call->in_count > 2 ? call->in[2].data : NULL;
    for (int64_t i = 0; i < batch; i++)
        FN(product)
    (m, n, k, (const REAL *)call->in[0].data + (a_shared ? 0 : i * m * k), ta ? 1 : k, ta ? m : 1,
     (const REAL *)call->in[1].data + (b_shared ? 0 : i * k * n), tb ? 1 : n, tb ? k : 1, scale, bias,
     (REAL *)call->out[0].data + i * m * n);
    return MEMFIT_OK;
}

/* Where output position `o` and tap `k` read along one dimension; false outside the image. */
static inline bool FN(tap)(const mf_ref_window *w, int d, int64_t o, int64_t k, int64_t *at)
{
    *at = o * w->stride[d] + k * w->dilation[d] - w->before[d];
    return *at >= 0 && *at < w->in[d];
}

/* Output channels [o0, o0 + width) of one group at one position: sum += x * w over the group's input channels. */
static void FN(conv_tap)(const mf_ref_window *w, const REAL *x, const REAL *weights, int64_t o0, int64_t width,
                         double *sum)
{
    int64_t in_group = w->in_channels / w->groups, out_group = w->out_channels / w->groups;
    if (in_group == 1) { /* depthwise: each output channel has one input channel */
        for (int64_t j = 0; j < width; j++)
            sum[j] += (double)x[(o0 + j) / out_group] * (double)weights[o0 + j];
        return;
    }
    const REAL *xg = x + o0 / out_group * in_group;
    for (int64_t c = 0; c < in_group; c++) {
        double f = (double)xg[c];
        const REAL *row = weights + c * w->out_channels + o0;
        for (int64_t j = 0; j < width; j++)
            sum[j] += f * (double)row[j];
    }
}

/* The next tile of output channels from o0: within one group, except for depthwise where groups do not matter. */
static int64_t FN(tile)(const mf_ref_window *w, int64_t o0)
{
    int64_t out_group = w->out_channels / w->groups;
    int64_t end = w->in_channels == w->groups ? w->out_channels : (o0 / out_group + 1) * out_group;
    return end - o0 < TILE ? end - o0 : TILE;
}

static void FN(conv_position)(const mf_ref_window *w, const REAL *image, const REAL *weights, const REAL *bias,
                              const int64_t o[3], REAL *y)
{
    int64_t tap_size = w->in_channels / w->groups * w->out_channels;
    for (int64_t o0 = 0, width; o0 < w->out_channels; o0 += width) {
        width = FN(tile)(w, o0);
        double sum[TILE] = {0};
        for (int64_t kd = 0; kd < w->kernel[0]; kd++)
            for (int64_t kh = 0; kh < w->kernel[1]; kh++)
                for (int64_t kw = 0; kw < w->kernel[2]; kw++) {
                    int64_t d, h, v;
                    if (!FN(tap)(w, 0, o[0], kd, &d) || !FN(tap)(w, 1, o[1], kh, &h) || !FN(tap)(w, 2, o[2], kw, &v))
                        continue;
                    FN(conv_tap)
                    (w, image + ((d * w->in[1] + h) * w->in[2] + v) * w->in_channels,
                     weights + ((kd * w->kernel[1] + kh) * w->kernel[2] + kw) * tap_size, o0, width, sum);
                }
        for (int64_t j = 0; j < width; j++)
            y[o0 + j] = (REAL)(sum[j] + (bias ? (double)bias[o0 + j] : 0));
    }
}

KERNEL(conv)
{
    (void)err;
    mf_ref_window w;
    mf_ref_window_of(&call->op->attr.window, call->in[0].shape, call->out[0].shape, &w);
    const REAL *bias = call->in_count > 2 ? call->in[2].data : NULL;
    int64_t image = w.in[0] * w.in[1] * w.in[2] * w.in_channels;
    REAL *y = call->out[0].data;
    for (int64_t n = 0; n < w.batch; n++)
        for (int64_t d = 0; d < w.out[0]; d++)
            for (int64_t h = 0; h < w.out[1]; h++)
                for (int64_t v = 0; v < w.out[2]; v++, y += w.out_channels)
                    FN(conv_position)
    (&w, (const REAL *)call->in[0].data + n * image, call->in[1].data, bias, (int64_t[3]){d, h, v}, y);
    return MEMFIT_OK;
}

/* The output position whose tap `k` reads input position `i`; false when there is none. */
static inline bool FN(untap)(const mf_ref_window *w, int d, int64_t i, int64_t k, int64_t *at)
{
    int64_t p = i + w->before[d] - k * w->dilation[d];
    *at = p / w->stride[d];
    return p >= 0 && p % w->stride[d] == 0 && *at < w->out[d];
}

/* Input channels [c0, c0 + width): sum += dy . w over the output channels of their group. */
static void FN(conv_back_tap)(const mf_ref_window *w, const REAL *dy, const REAL *weights, int64_t c0, int64_t width,
                              double *sum)
{
    int64_t in_group = w->in_channels / w->groups, out_group = w->out_channels / w->groups;
    for (int64_t j = 0; j < width; j++) {
        int64_t c = c0 + j, g = c / in_group;
        const REAL *row = weights + (c % in_group) * w->out_channels + g * out_group, *d = dy + g * out_group;
        double s = 0;
        for (int64_t o = 0; o < out_group; o++)
            s += (double)d[o] * (double)row[o];
        sum[j] += s;
    }
}

static void FN(conv_back_position)(const mf_ref_window *w, const REAL *dimage, const REAL *weights, const REAL *bias,
                                   const int64_t i[3], REAL *dx)
{
    int64_t tap_size = w->in_channels / w->groups * w->out_channels;
    for (int64_t c0 = 0; c0 < w->in_channels; c0 += TILE) {
        int64_t width = w->in_channels - c0 < TILE ? w->in_channels - c0 : TILE;
        double sum[TILE] = {0};
        for (int64_t kd = 0; kd < w->kernel[0]; kd++)
            for (int64_t kh = 0; kh < w->kernel[1]; kh++)
                for (int64_t kw = 0; kw < w->kernel[2]; kw++) {
                    int64_t d, h, v;
                    if (!FN(untap)(w, 0, i[0], kd, &d) || !FN(untap)(w, 1, i[1], kh, &h) ||
                        !FN(untap)(w, 2, i[2], kw, &v))
                        continue;
                    FN(conv_back_tap)
                    (w, dimage + ((d * w->out[1] + h) * w->out[2] + v) * w->out_channels,
                     weights + ((kd * w->kernel[1] + kh) * w->kernel[2] + kw) * tap_size, c0, width, sum);
                }
        for (int64_t j = 0; j < width; j++)
            dx[c0 + j] = (REAL)(sum[j] + (bias ? (double)bias[c0 + j] : 0));
    }
}

KERNEL(conv_grad_data)
{
    (void)err;
    mf_ref_window w;
    mf_ref_window_of(&call->op->attr.window, call->out[0].shape, call->in[0].shape, &w);
    const REAL *bias = call->in_count > 2 ? call->in[2].data : NULL;
    int64_t image = w.out[0] * w.out[1] * w.out[2] * w.out_channels;
    REAL *dx = call->out[0].data;
    for (int64_t n = 0; n < w.batch; n++)
        for (int64_t d = 0; d < w.in[0]; d++)
            for (int64_t h = 0; h < w.in[1]; h++)
                for (int64_t v = 0; v < w.in[2]; v++, dx += w.in_channels)
                    FN(conv_back_position)
    (&w, (const REAL *)call->in[0].data + n * image, call->in[1].data, bias, (int64_t[3]){d, h, v}, dx);
    return MEMFIT_OK;
}

/* dw of one tap, input channels [c0, c0 + rows) of one group, output channels [o0, o0 + width): summed over all
 * images and positions. */
static void FN(weight_tile)(const mf_ref_window *w, const REAL *x, const REAL *dy, const int64_t k[3], int64_t c0,
                            int64_t rows, int64_t o0, int64_t width, double sum[ROWS][TILE])
{
    memset(sum, 0, sizeof(double) * ROWS * TILE);
    int64_t in_group = w->in_channels / w->groups, out_group = w->out_channels / w->groups;
    for (int64_t n = 0; n < w->batch; n++)
        for (int64_t d = 0; d < w->out[0]; d++)
            for (int64_t h = 0; h < w->out[1]; h++)
                for (int64_t v = 0; v < w->out[2]; v++) {
                    int64_t xd, xh, xv;
                    if (!FN(tap)(w, 0, d, k[0], &xd) || !FN(tap)(w, 1, h, k[1], &xh) || !FN(tap)(w, 2, v, k[2], &xv))
                        continue;
                    const REAL *xp = x + (((n * w->in[0] + xd) * w->in[1] + xh) * w->in[2] + xv) * w->in_channels;
                    const REAL *dp =
                        dy + (((n * w->out[0] + d) * w->out[1] + h) * w->out[2] + v) * w->out_channels + o0;
                    if (in_group == 1) {
                        for (int64_t j = 0; j < width; j++)
                            sum[0][j] += (double)xp[(o0 + j) / out_group] * (double)dp[j];
                        continue;
                    }
                    xp += o0 / out_group * in_group + c0;
                    for (int64_t r = 0; r < rows; r++)
                        for (int64_t j = 0; j < width; j++)
                            sum[r][j] += (double)xp[r] * (double)dp[j];
                }
}

static void FN(weight_tap)(const mf_ref_window *w, const REAL *x, const REAL *dy, const int64_t k[3], REAL *dw)
{
    int64_t in_group = w->in_channels / w->groups;
    for (int64_t o0 = 0, width; o0 < w->out_channels; o0 += width) {
        width = FN(tile)(w, o0);
        for (int64_t c0 = 0; c0 < in_group; c0 += ROWS) {
            int64_t rows = in_group - c0 < ROWS ? in_group - c0 : ROWS;
            double sum[ROWS][TILE];
            FN(weight_tile)(w, x, dy, k, c0, rows, o0, width, sum);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t j = 0; j < width; j++)
                    dw[(c0 + r) * w->out_channels + o0 + j] = (REAL)sum[r][j];
        }
    }
}

static void FN(column_sums)(const REAL *x, int64_t rows, int64_t columns, REAL *out)
{
    for (int64_t j0 = 0; j0 < columns; j0 += TILE) {
        int64_t width = columns - j0 < TILE ? columns - j0 : TILE;
        double sum[TILE] = {0};
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < width; j++)
                sum[j] += (double)x[i * columns + j0 + j];
        for (int64_t j = 0; j < width; j++)
            out[j0 + j] = (REAL)sum[j];
    }
}

KERNEL(conv_grad_weights)
{
    (void)err;
    mf_ref_window w;
    mf_ref_window_of(&call->op->attr.window, call->in[0].shape, call->in[1].shape, &w);
    REAL *dw = call->out[0].data;
    int64_t tap_size = w.in_channels / w.groups * w.out_channels;
    for (int64_t kd = 0; kd < w.kernel[0]; kd++)
        for (int64_t kh = 0; kh < w.kernel[1]; kh++)
            for (int64_t kw = 0; kw < w.kernel[2]; kw++, dw += tap_size)
                FN(weight_tap)(&w, call->in[0].data, call->in[1].data, (int64_t[3]){kd, kh, kw}, dw);
    if (call->out_count > 1 && call->out[1].data)
        FN(column_sums)
    (call->in[1].data, (int64_t)call->in[1].count / w.out_channels, w.out_channels, call->out[1].data);
    return MEMFIT_OK;
}
