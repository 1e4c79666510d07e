/*
 * kernels_depthwise.c: convolutions in which every channel has taps of its own. No product serves them: there is
 * nothing to sum over but the taps. Channels lie side by side, so they are the vectors; sums of a block of channels stay
 * in registers along the taps.
 */
#include "ops/cpu/kernels/gemm.h"
#include "ops/cpu/kernels/kernels_isa.h"

enum { WIDE = 32 };

static int64_t plane(const int64_t *size)
{
    return size[0] * size[1] * size[2];
}

/* The place of the other image that `place` meets with a tap, in one dimension: -1 for none. */
static int64_t meets(const mf_k_depthwise *k, bool back, int d, int64_t place, int64_t tap)
{
    int64_t at = tap * k->dilation[d] - k->before[d], most = back ? k->out[d] : k->in[d];
    if (!back)
        at += place * k->stride[d];
    else if ((at = place - at) < 0 || at % k->stride[d])
        return -1;
    else
        at /= k->stride[d];
    return at >= 0 && at < most ? at : -1;
}

/* One pixel, channels [c, c + n): the sum over the taps of what it meets there. */
static void pixel(const mf_k_depthwise *k, bool back, const int64_t *place, const float *from, const float *w,
                  int64_t c, int64_t n, float *sum)
{
    const int64_t *size = back ? k->out : k->in, *taps = k->kernel;
    for (int64_t a = 0; a < taps[0]; a++) {
        int64_t i = meets(k, back, 0, place[0], a);
        for (int64_t b = 0; i >= 0 && b < taps[1]; b++) {
            int64_t j = meets(k, back, 1, place[1], b);
            for (int64_t e = 0; j >= 0 && e < taps[2]; e++) {
                int64_t l = meets(k, back, 2, place[2], e);
                if (l < 0)
                    continue;
                const float *x = from + ((i * size[1] + j) * size[2] + l) * k->channels + c;
                const float *tap = w + ((a * taps[1] + b) * taps[2] + e) * k->channels + c;
                if (n == WIDE) {
#pragma omp simd
                    for (int v = 0; v < WIDE; v++)
                        sum[v] += x[v] * tap[v];
                } else {
                    for (int64_t v = 0; v < n; v++)
                        sum[v] += x[v] * tap[v];
                }
            }
        }
    }
}

/* y from x, or with `back` dx from dy. */
void MF_K(depthwise)(const mf_k_depthwise *k, bool back, const float *from, const float *w, const float *bias,
                     bool relu, float *to, int threads)
{
    const int64_t *size = back ? k->in : k->out;
    const int64_t pixels = k->batch * plane(size), other = plane(back ? k->out : k->in) * k->channels;
#pragma omp parallel num_threads(threads) if (pixels * k->channels * plane(k->kernel) > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(pixels, 1);
        for (int64_t p = r.from; p < r.to; p++) {
            const int64_t in_plane = p % plane(size);
            const int64_t place[3] = {in_plane / (size[1] * size[2]), in_plane / size[2] % size[1], in_plane % size[2]};
            for (int64_t c = 0; c < k->channels; c += WIDE) {
                int64_t n = k->channels - c < WIDE ? k->channels - c : WIDE;
                float sum[WIDE] = {0};
                pixel(k, back, place, from + p / plane(size) * other, w, c, n, sum);
                for (int64_t v = 0; v < n; v++) {
                    float y = bias ? sum[v] + bias[c + v] : sum[v];
                    to[p * k->channels + c + v] = relu && !(y > 0.0f) ? 0.0f : y;
                }
            }
        }
    }
}

/* One tap along a row of dy, channels [c, c + n). */
static void along_row(const mf_k_depthwise *k, const float *x, const float *dy, int64_t tap, int64_t c, int64_t n,
                      float *dw)
{
    float sum[WIDE] = {0};
    for (int64_t o = 0; o < k->out[2]; o++) {
        int64_t i = meets(k, false, 2, o, tap);
        if (i < 0)
            continue;
        const float *a = x + i * k->channels + c, *b = dy + o * k->channels + c;
        if (n == WIDE) {
#pragma omp simd
            for (int v = 0; v < WIDE; v++)
                sum[v] += a[v] * b[v];
        } else {
            for (int64_t v = 0; v < n; v++)
                sum[v] += a[v] * b[v];
        }
    }
    for (int64_t v = 0; v < n; v++)
        dw[c + v] += sum[v];
}

/* Threads share out the channels: nothing is summed twice, and their number changes no bit. */
void MF_K(depthwise_weights)(const mf_k_depthwise *k, const float *x, const float *dy, bool add, float *dw, int threads)
{
    const int64_t taps = plane(k->kernel), blocks = (k->channels + WIDE - 1) / WIDE, rows = k->out[0] * k->out[1];
#pragma omp parallel num_threads(threads) if (k->batch * rows * k->out[2] * k->channels * taps > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(blocks, 1);
        for (int64_t c = r.from * WIDE; c < r.to * WIDE && c < k->channels; c += WIDE) {
            int64_t n = k->channels - c < WIDE ? k->channels - c : WIDE;
            for (int64_t t = 0; !add && t < taps; t++)
                memset(dw + t * k->channels + c, 0, (size_t)n * sizeof *dw);
            for (int64_t row = 0; row < k->batch * rows; row++) {
                const float *image = x + row / rows * plane(k->in) * k->channels;
                const float *slopes = dy + row * k->out[2] * k->channels;
                for (int64_t t = 0; t < taps; t++) {
                    int64_t a = meets(k, false, 0, row % rows / k->out[1], t / (k->kernel[1] * k->kernel[2]));
                    int64_t b = meets(k, false, 1, row % k->out[1], t / k->kernel[2] % k->kernel[1]);
                    if (a >= 0 && b >= 0)
                        along_row(k, image + (a * k->in[1] + b) * k->in[2] * k->channels, slopes, t % k->kernel[2], c,
                                  n, dw + t * k->channels);
                }
            }
        }
    }
}
