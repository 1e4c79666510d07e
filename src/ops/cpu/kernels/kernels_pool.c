/*
 * kernels_pool.c: pooling over up to three spatial dimensions, channels last: every loop runs over channels.
 *
 * Max pooling remembers, for each output element, which cell of its window won (one byte; windows have at most 255
 * cells here, larger ones go to the reference operations). Gradients are gathered by input rows rather than scattered
 * by output, so that threads never write the same element: each thread owns whole samples, or for a single sample the
 * rows of the first spatial dimension.
 */
#include "ops/cpu/kernels/kernels_isa.h"

typedef struct cell_range {   /* the real cells of one output's window along one dimension */
    int64_t first, count, at; /* first kernel index, how many, input index of the first */
} cell_range;

static inline cell_range window(const mf_k_window *w, int d, int64_t out)
{
    int64_t start = out * w->stride[d] - w->before[d], first = 0;
    if (start < 0)
        first = (-start + w->dilation[d] - 1) / w->dilation[d];
    int64_t last = (w->in[d] - 1 - start) / w->dilation[d];
    if (w->in[d] - 1 - start < 0)
        last = -1;
    if (last > w->kernel[d] - 1)
        last = w->kernel[d] - 1;
    return (cell_range){first, last >= first ? last - first + 1 : 0, start + first * w->dilation[d]};
}

static inline void unravel(const int64_t *size, int64_t i, int64_t at[4])
{
    at[3] = i % size[2];
    i /= size[2];
    at[2] = i % size[1];
    i /= size[1];
    at[1] = i % size[0];
    at[0] = i / size[0];
}

static void max_one(const mf_k_window *w, const float *sample, const int64_t *o, float *y, uint8_t *index)
{
    const int64_t c = w->channels;
    cell_range r[3] = {window(w, 0, o[0]), window(w, 1, o[1]), window(w, 2, o[2])};
    bool first = true;
    for (int64_t i = 0; i < r[0].count; i++)
        for (int64_t j = 0; j < r[1].count; j++)
            for (int64_t k = 0; k < r[2].count; k++) {
                int64_t a = r[0].at + i * w->dilation[0], b = r[1].at + j * w->dilation[1],
                        d = r[2].at + k * w->dilation[2];
                const float *x = sample + ((a * w->in[1] + b) * w->in[2] + d) * c;
                const uint8_t cell =
                    (uint8_t)(((r[0].first + i) * w->kernel[1] + r[1].first + j) * w->kernel[2] + r[2].first + k);
                if (first) {
                    memcpy(y, x, (size_t)c * 4);
                    if (index)
                        memset(index, cell, (size_t)c);
                    first = false;
                } else if (index) {
#pragma omp simd
                    for (int64_t q = 0; q < c; q++) {
                        bool more = x[q] > y[q];
                        y[q] = more ? x[q] : y[q];
                        index[q] = more ? cell : index[q];
                    }
                } else {
#pragma omp simd
                    for (int64_t q = 0; q < c; q++)
                        y[q] = x[q] > y[q] ? x[q] : y[q];
                }
            }
}

void MF_K(pool_max)(const mf_k_window *w, const float *x, float *y, uint8_t *index, int threads)
{
    int64_t outs = w->out[0] * w->out[1] * w->out[2], c = w->channels;
    int64_t in_sample = w->in[0] * w->in[1] * w->in[2] * c, all = w->batch * outs;
#pragma omp parallel num_threads(threads) if (w->batch * in_sample > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(all, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            int64_t at[4];
            unravel(w->out, i, at);
            max_one(w, x + at[0] * in_sample, at + 1, y + i * c, index ? index + i * c : NULL);
        }
    }
}

/* Output indices whose windows hold input index `in` along dimension d: from..to, to be checked for dilation. */
static inline mf_k_range covering(const mf_k_window *w, int d, int64_t in)
{
    int64_t reach = (w->kernel[d] - 1) * w->dilation[d], p = in + w->before[d];
    int64_t from = p - reach <= 0 ? 0 : (p - reach + w->stride[d] - 1) / w->stride[d];
    int64_t to = p / w->stride[d] + 1;
    return (mf_k_range){from, to < w->out[d] ? to : w->out[d]};
}

/* The kernel index at which output `out` sees input `in`; -1 when a gap of the dilation lies there. */
static inline int64_t kernel_index(const mf_k_window *w, int d, int64_t out, int64_t in)
{
    int64_t p = in + w->before[d] - out * w->stride[d];
    return p % w->dilation[d] ? -1 : p / w->dilation[d];
}

typedef void add_cell(const mf_k_window *w, const float *dy, const uint8_t *index, int64_t cell, const int64_t *out,
                      float *dx);

/* For every input position: clear it, then let `add` bring in each output that saw it. */
static inline void gather(const mf_k_window *w, const float *dy, const uint8_t *index, float *dx, int threads,
                          add_cell *add)
{
    int64_t c = w->channels, ins = w->in[0] * w->in[1] * w->in[2], outs = w->out[0] * w->out[1] * w->out[2];
#pragma omp parallel num_threads(threads) if (w->batch * ins * c > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(w->batch * ins, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            int64_t at[4], o[3], k[3];
            unravel(w->in, i, at);
            float *d = dx + i * c;
            memset(d, 0, (size_t)c * 4);
            mf_k_range a = covering(w, 0, at[1]), b = covering(w, 1, at[2]), e = covering(w, 2, at[3]);
            for (o[0] = a.from; o[0] < a.to; o[0]++)
                for (o[1] = b.from; o[1] < b.to; o[1]++)
                    for (o[2] = e.from; o[2] < e.to; o[2]++) {
                        k[0] = kernel_index(w, 0, o[0], at[1]);
                        k[1] = kernel_index(w, 1, o[1], at[2]);
                        k[2] = kernel_index(w, 2, o[2], at[3]);
                        if (k[0] < 0 || k[1] < 0 || k[2] < 0)
                            continue;
                        int64_t j = at[0] * outs + (o[0] * w->out[1] + o[1]) * w->out[2] + o[2];
                        add(w, dy + j * c, index ? index + j * c : NULL,
                            (k[0] * w->kernel[1] + k[1]) * w->kernel[2] + k[2], o, d);
                    }
        }
    }
}

static inline void add_winner(const mf_k_window *w, const float *dy, const uint8_t *index, int64_t cell,
                              const int64_t *out, float *dx)
{
    (void)out;
    const uint8_t mine = (uint8_t)cell;
    const int64_t c = w->channels;
#pragma omp simd
    for (int64_t q = 0; q < c; q++)
        dx[q] += index[q] == mine ? dy[q] : 0.0f;
}

void MF_K(pool_max_grad)(const mf_k_window *w, const float *dy, const uint8_t *index, float *dx, int threads)
{
    gather(w, dy, index, dx, threads, add_winner);
}

static inline int64_t real_cells(const mf_k_window *w, const int64_t *o)
{
    if (w->count_padding)
        return w->kernel[0] * w->kernel[1] * w->kernel[2];
    int64_t n = window(w, 0, o[0]).count * window(w, 1, o[1]).count * window(w, 2, o[2]).count;
    return n ? n : 1;
}

static void average_one(const mf_k_window *w, const float *sample, const int64_t *o, float *y)
{
    const int64_t c = w->channels;
    cell_range r[3] = {window(w, 0, o[0]), window(w, 1, o[1]), window(w, 2, o[2])};
    memset(y, 0, (size_t)c * 4);
    for (int64_t i = 0; i < r[0].count; i++)
        for (int64_t j = 0; j < r[1].count; j++)
            for (int64_t k = 0; k < r[2].count; k++) {
                int64_t a = r[0].at + i * w->dilation[0], b = r[1].at + j * w->dilation[1],
                        d = r[2].at + k * w->dilation[2];
                const float *x = sample + ((a * w->in[1] + b) * w->in[2] + d) * c;
#pragma omp simd
                for (int64_t q = 0; q < c; q++)
                    y[q] += x[q];
            }
    const float scale = 1.0f / (float)real_cells(w, o);
#pragma omp simd
    for (int64_t q = 0; q < c; q++)
        y[q] *= scale;
}

void MF_K(pool_avg)(const mf_k_window *w, const float *x, float *y, int threads)
{
    int64_t outs = w->out[0] * w->out[1] * w->out[2], c = w->channels;
    int64_t in_sample = w->in[0] * w->in[1] * w->in[2] * c, all = w->batch * outs;
#pragma omp parallel num_threads(threads) if (w->batch * in_sample > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(all, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            int64_t at[4];
            unravel(w->out, i, at);
            average_one(w, x + at[0] * in_sample, at + 1, y + i * c);
        }
    }
}

static inline void add_part(const mf_k_window *w, const float *dy, const uint8_t *index, int64_t cell,
                            const int64_t *out, float *dx)
{
    (void)index;
    (void)cell;
    const float scale = 1.0f / (float)real_cells(w, out);
    const int64_t c = w->channels;
#pragma omp simd
    for (int64_t q = 0; q < c; q++)
        dx[q] += scale * dy[q];
}

void MF_K(pool_avg_grad)(const mf_k_window *w, const float *dy, float *dx, int threads)
{
    gather(w, dy, NULL, dx, threads, add_part);
}
