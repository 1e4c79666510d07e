/*
 * kernels_metric.c: what a batch adds to the state of a metric: accuracies, errors, confusion and the counts of AUC,
 * after Keras (ref_loss.c has the plain form). Rows are summed in a fixed number of blocks, added in their order: the
 * number of threads changes no bit.
 */
#include "ops/cpu/kernels/kernels_isa.h"

typedef struct sums {
    double first, second;
} sums;

/* The place of the greatest value, the first of equals; NaN is never greater, and nothing is greater than NaN. */
static int64_t greatest(const float *x, int64_t n)
{
    float m = x[0];
    if (m != m)
        return 0;
#pragma omp simd reduction(max : m)
    for (int64_t j = 0; j < n; j++)
        m = x[j] > m ? x[j] : m;
    int64_t at = 0;
    while (!(x[at] == m))
        at++;
    return at;
}

/* Is the true class among the k greatest? Ties count for it, as in TensorFlow's in_top_k. */
static bool among_greatest(const float *x, int64_t n, int64_t label, uint32_t k)
{
    if (label < 0 || label >= n)
        return false;
    const float own = x[label];
    int64_t above = 0;
#pragma omp simd reduction(+ : above)
    for (int64_t j = 0; j < n; j++)
        above += x[j] > own;
    return above < (int64_t)k;
}

static double error_of(mf_metric f, const float *p, const float *t, int64_t n)
{
    double s = 0;
    if (f == MF_METRIC_METRIC_MAE) {
#pragma omp simd reduction(+ : s)
        for (int64_t j = 0; j < n; j++)
            s += (double)fabsf(p[j] - t[j]);
    } else {
#pragma omp simd reduction(+ : s)
        for (int64_t j = 0; j < n; j++)
            s += ((double)p[j] - (double)t[j]) * ((double)p[j] - (double)t[j]);
    }
    return s;
}

static int64_t right_sides(const float *p, const float *t, int64_t n, double threshold)
{
    int64_t right = 0;
#pragma omp simd reduction(+ : right)
    for (int64_t j = 0; j < n; j++)
        right += ((double)p[j] > threshold) == (t[j] != 0.0f) && (t[j] == 0.0f || t[j] == 1.0f);
    return right;
}

/* True positives, and what the metric sets against them. Three plain counts: GCC 14.2 vectorises their combination wrongly
 * for AVX-512. */
static sums confusion(const mf_k_metric *k, const float *p, const float *t)
{
    int64_t both = 0, says = 0, is = 0;
    for (int64_t j = 0; j < k->columns; j++)
        says += (double)p[j] > k->threshold;
    for (int64_t j = 0; j < k->columns; j++)
        is += t[j] != 0;
    for (int64_t j = 0; j < k->columns; j++)
        both += (double)p[j] > k->threshold && t[j] != 0;
    return (sums){(double)both, (double)((k->function == MF_METRIC_PRECISION ? says : is) - both)};
}

static sums row_of(const mf_k_metric *k, const float *p, const void *target, int64_t row)
{
    const int64_t n = k->columns;
    const float *t = (const float *)target + row * n; /* where there is a target for each prediction */
    p += row * n;
    switch (k->function) {
    case MF_METRIC_CATEGORICAL_ACCURACY:
        return (sums){greatest(p, n) == greatest(t, n), 1};
    case MF_METRIC_SPARSE_CATEGORICAL_ACCURACY:
        return (sums){greatest(p, n) == mf_k_label(k->target_type, target, row), 1};
    case MF_METRIC_TOP_K:
        return (sums){among_greatest(p, n, greatest(t, n), k->k), 1};
    case MF_METRIC_SPARSE_TOP_K:
        return (sums){among_greatest(p, n, mf_k_label(k->target_type, target, row), k->k), 1};
    case MF_METRIC_BINARY_ACCURACY:
        return (sums){(double)right_sides(p, t, n, k->threshold), (double)n};
    case MF_METRIC_PRECISION:
    case MF_METRIC_RECALL:
        return confusion(k, p, t);
    case MF_METRIC_METRIC_RMSE:
        return (sums){error_of(k->function, p, t, n), (double)n};
    default:
        return (sums){error_of(k->function, p, t, n) / (double)n, 1};
    }
}

void MF_K(metric)(const mf_k_metric *k, const float *p, const void *t, const float *weight, double added[2],
                  int threads)
{
    sums part[MF_K_BLOCKS] = {{0}};
#pragma omp parallel for num_threads(threads) schedule(static) if (k->rows * k->columns > MF_K_GRAIN)
    for (int b = 0; b < MF_K_BLOCKS; b++) {
        mf_k_range r = mf_k_block(k->rows, b);
        for (int64_t i = r.from; i < r.to; i++) {
            double w = weight ? (double)weight[i / k->rows_per_weight] : 1.0;
            sums s = row_of(k, p, t, i);
            part[b].first += w * s.first;
            part[b].second += w * s.second;
        }
    }
    for (int b = 0; b < MF_K_BLOCKS; b++) {
        added[0] += part[b].first;
        added[1] += part[b].second;
    }
}

/* ---- AUC ---------------------------------------------------------------------------------------------------- */

/* Thresholds as Keras spaces them: -1e-7, then i / (count - 1), then 1 + 1e-7. */
static float threshold(int64_t i, int64_t count)
{
    return (float)(i == 0 ? -1e-7 : i == count - 1 ? 1 + 1e-7 : (double)i / (double)(count - 1));
}

/* How many thresholds p is above. */
static int64_t thresholds_below(float p, int64_t count)
{
    float guess = p * (float)(count - 1);
    int64_t n = guess >= (float)count ? count : guess >= 0 ? (int64_t)guess : 0;
    while (n < count && p > threshold(n, count))
        n++;
    while (n > 0 && !(p > threshold(n - 1, count)))
        n--;
    return n;
}

/* Predictions are counted by how many thresholds they are above; what lies above each follows from the counts. */
void MF_K(auc)(const mf_k_metric *k, const float *p, const float *t, const float *weight, int64_t count,
               double *workspace, float *state, int threads)
{
    const int64_t size = 2 * (count + 1);
#pragma omp parallel for num_threads(threads) schedule(static) if (k->rows * k->columns > MF_K_GRAIN / 16)
    for (int b = 0; b < MF_K_AUC_BLOCKS; b++) {
        double *counts = workspace + b * size;
        int64_t from = k->rows * b / MF_K_AUC_BLOCKS, to = k->rows * (b + 1) / MF_K_AUC_BLOCKS;
        memset(counts, 0, (size_t)size * sizeof *counts);
        for (int64_t i = from * k->columns; i < to * k->columns; i++) {
            double w = weight ? (double)weight[i / k->columns / k->rows_per_weight] : 1.0;
            counts[(t[i] != 0 ? 0 : count + 1) + thresholds_below(p[i], count)] += w;
        }
    }
    for (int64_t i = 0; i < size; i++)
        for (int b = 1; b < MF_K_AUC_BLOCKS; b++)
            workspace[i] += workspace[b * size + i];
    double above[2] = {0}, all[2] = {0};
    for (int64_t i = 0; i <= count; i++) {
        all[0] += workspace[i];
        all[1] += workspace[count + 1 + i];
    }
    for (int64_t i = count - 1; i >= 0; i--) {
        above[0] += workspace[i + 1];
        above[1] += workspace[count + 1 + i + 1];
        const double cells[4] = {above[0], above[1], all[1] - above[1], all[0] - above[0]};
        for (int c = 0; c < 4; c++)
            state[c * count + i] = (float)((double)state[c * count + i] + cells[c]);
    }
}
