/*
 * kernels_conv.c: the weight gradient of a convolution with few input channels, as a network's first layer has it. The
 * library vectorises over input channels and output channels; with one to four of the former most of its work is on
 * padding.
 *
 *     dw[t][o] += x[pixel, tap t] * dy[pixel][o]        t: a tap's row, column and channel, as dw is stored
 *
 * A row of the output is taken at once: the rows of x it reads are laid side by side with their padding, so that a tap
 * is an offset in that buffer, and a block of taps times outputs stays in registers along the row. The bias is one more
 * tap, on a row of ones. Each thread sums its samples apart; the sums are added in the order of the threads.
 */
#include "ops/cpu/kernels/kernels_isa.h"

#if defined(__AVX512F__)

typedef float vector __attribute__((vector_size(64), aligned(4)));

enum { LANES = 16 };

/* Along a row of `count` outputs: sum[tap][o] of TAPS taps and VECTORS * LANES outputs. */
#define ROW_OF(name, TAPS, VECTORS)                                                                                    \
    static void name(const float *row, const int64_t *offset, int64_t step, const float *dy, int64_t dy_step,          \
                     int64_t count, float *sum, int64_t sum_step)                                                      \
    {                                                                                                                  \
        vector s[TAPS][VECTORS] = {{{0}}};                                                                             \
        for (int64_t w = 0; w < count; w++, row += step, dy += dy_step) {                                              \
            vector d[VECTORS];                                                                                         \
            for (int v = 0; v < VECTORS; v++)                                                                          \
                d[v] = *(const vector *)(const void *)(dy + v * LANES);                                                \
            for (int t = 0; t < TAPS; t++)                                                                             \
                for (int v = 0; v < VECTORS; v++)                                                                      \
                    s[t][v] += row[offset[t]] * d[v];                                                                  \
        }                                                                                                              \
        for (int t = 0; t < TAPS; t++)                                                                                 \
            for (int v = 0; v < VECTORS; v++)                                                                          \
                *(vector *)(void *)(sum + t * sum_step + v * LANES) += s[t][v];                                        \
    }

ROW_OF(row_of_64, 6, 4)
ROW_OF(row_of_32, 12, 2)

/* Rows of x under one row of the output, side by side with their padding. */
static void gather_rows(const mf_k_conv *k, const float *x, int64_t h, int64_t length, float *rows)
{
    for (int64_t r = 0; r < k->kernel[0]; r++, rows += length) {
        int64_t from = h * k->stride[0] - k->before[0] + r, first = -k->before[1], begin = first < 0 ? 0 : first;
        int64_t end = first + length / k->channels;
        end = end < k->in[1] ? end : k->in[1];
        memset(rows, 0, (size_t)length * sizeof *rows);
        if (from >= 0 && from < k->in[0] && end > begin)
            memcpy(rows + (begin - first) * k->channels, x + (from * k->in[1] + begin) * k->channels,
                   (size_t)((end - begin) * k->channels) * sizeof *rows);
    }
}

static void sample(const mf_k_conv *k, const float *x, const float *dy, const int64_t *offset, int64_t taps,
                   int64_t length, float *rows, float *sum)
{
    int64_t step = k->stride[1] * k->channels, wide = k->out_channels;
    for (int64_t h = 0; h < k->out[0]; h++, dy += k->out[1] * wide) {
        gather_rows(k, x, h, length, rows);
        if (wide % 64 == 0) {
            for (int64_t o = 0; o < wide; o += 64)
                for (int64_t t = 0; t < taps; t += 6)
                    row_of_64(rows, offset + t, step, dy + o, wide, k->out[1], sum + t * wide + o, wide);
        } else {
            for (int64_t o = 0; o < wide; o += 32)
                for (int64_t t = 0; t < taps; t += 12)
                    row_of_32(rows, offset + t, step, dy + o, wide, k->out[1], sum + t * wide + o, wide);
        }
    }
}

#endif

void MF_K(few_grad)(const mf_k_conv *k, const float *x, const float *dy, float *dw, float *db, bool add, float *space,
                    int threads)
{
#if defined(__AVX512F__)
    int64_t length = mf_k_few_row(k), count = k->kernel[0] * k->kernel[1] * k->channels, offset[MF_K_FEW_TAPS];
    int64_t block = k->out_channels % 64 == 0 ? 6 : 12, taps = (count + 1 + block - 1) / block * block, parts = threads;
    uint64_t each = mf_k_few_floats(k);
    for (int64_t t = 0; t < taps; t++) /* those behind the last are never read */
        offset[t] = t < count ? t / (k->kernel[1] * k->channels) * length + t % (k->kernel[1] * k->channels)
                              : k->kernel[0] * length;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < parts; p++) {
        float *sum = space + (uint64_t)p * each, *rows = sum + MF_K_FEW_TAPS * k->out_channels;
        memset(sum, 0, (size_t)(taps * k->out_channels) * sizeof *sum);
        for (int64_t i = 0; i < length; i++)
            rows[k->kernel[0] * length + i] = 1.0f;
        for (int64_t n = k->batch * p / parts; n < k->batch * (p + 1) / parts; n++)
            sample(k, x + n * k->in[0] * k->in[1] * k->channels, dy + n * k->out[0] * k->out[1] * k->out_channels,
                   offset, taps, length, rows, sum);
    }
    for (int64_t i = 0; i < (count + (db != NULL)) * k->out_channels; i++) {
        float total = 0, *to = i < count * k->out_channels ? dw + i : db + (i - count * k->out_channels);
        for (int64_t p = 0; p < parts; p++)
            total += space[(uint64_t)p * each + (uint64_t)i];
        *to = add ? *to + total : total;
    }
#else
    (void)k, (void)x, (void)dy, (void)dw, (void)db, (void)add, (void)space, (void)threads;
#endif
}
