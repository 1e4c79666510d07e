/* window.cu: pooling, and convolutions of any geometry: plain loops, one thread a result. Convolutions take this way
 * only where the library has none. */
#include "reduce.cuh"
static constexpr mf_ref_window w = WINDOW;

#if defined(KIND_POOL_MAX) || defined(KIND_POOL_AVG)
ENTRY k0(args a)
{
    constexpr idx channels = (idx)w.in_channels;
    idx i = THREAD;
    if (i >= (idx)out_count(0))
        return;
    idx c = i % channels, cell = i / channels;
    int64_t o[3] = {cell / (idx)(w.out[1] * w.out[2]) % (idx)w.out[0], cell / (idx)w.out[2] % (idx)w.out[1],
                    cell % (idx)w.out[2]};
    int64_t image = (int64_t)(cell / (idx)(w.out[0] * w.out[1] * w.out[2])) * (w.in[0] * w.in[1] * w.in[2]);
    windows::tap_range r = windows::taps_inside(&w, o);
#if defined(KIND_POOL_MAX)
    double best = r.count > 0 ? -INFINITY : 0;
    int64_t where = 0;
    bool found = false;
#else
    double sum = 0;
#endif
    for (int64_t p = r.first[0]; p < r.last[0]; p++)
        for (int64_t q = r.first[1]; q < r.last[1]; q++)
            for (int64_t s = r.first[2]; s < r.last[2]; s++) {
                double v = get<0>(a, (idx)((image + windows::cell_of(&w, o, p, q, s)) * channels + c));
#if defined(KIND_POOL_MAX)
                if (v > best || !found || (v != v && best == best)) {
                    best = v;
                    where = (p * w.kernel[1] + q) * w.kernel[2] + s;
                    found = true;
                }
#else
                sum += v;
#endif
            }
#if defined(KIND_POOL_MAX)
    put<0>(a, i, best);
    if (out_here[1])
        mf_ref_store(out_dtype[1], a.out[1], (uint64_t)i, (double)where);
#else
    put<0>(a, i, sum * (1 / windows::divisor(&attr.window, &w, &r)));
#endif
}

#elif defined(KIND_POOL_MAX_GRAD) || defined(KIND_POOL_AVG_GRAD)
/* Every window that sees this cell is asked, in order. */
static inline bool untap(int d, int64_t i, int64_t k, int64_t *at)
{
    int64_t p = i + w.before[d] - k * w.dilation[d];
    *at = p / w.stride[d];
    return p >= 0 && p % w.stride[d] == 0 && *at < w.out[d];
}
ENTRY k0(args a)
{
    constexpr idx channels = (idx)w.in_channels;
    idx i = THREAD;
    if (i >= (idx)out_count(0))
        return;
    idx c = i % channels, cell = i / channels;
    int64_t at[3] = {cell / (idx)(w.in[1] * w.in[2]) % (idx)w.in[0], cell / (idx)w.in[2] % (idx)w.in[1],
                     cell % (idx)w.in[2]};
    int64_t image = (int64_t)(cell / (idx)(w.in[0] * w.in[1] * w.in[2])) * (w.out[0] * w.out[1] * w.out[2]);
    double sum = 0;
    for (int64_t p = w.kernel[0] - 1; p >= 0; p--)
        for (int64_t q = w.kernel[1] - 1; q >= 0; q--)
            for (int64_t s = w.kernel[2] - 1; s >= 0; s--) {
                int64_t o[3];
                if (!untap(0, at[0], p, &o[0]) || !untap(1, at[1], q, &o[1]) || !untap(2, at[2], s, &o[2]))
                    continue;
                idx from = (idx)((image + (o[0] * w.out[1] + o[1]) * w.out[2] + o[2]) * channels + c);
#if defined(KIND_POOL_MAX_GRAD)
                if (get_int<1>(a, from) == (p * w.kernel[1] + q) * w.kernel[2] + s)
                    sum += get<0>(a, from);
#else
                windows::tap_range r = windows::taps_inside(&w, o);
                sum += get<0>(a, from) * (1 / windows::divisor(&attr.window, &w, &r));
#endif
            }
    put<0>(a, i, sum);
}

#elif defined(KIND_CONV)
ENTRY k0(args a)
{
    constexpr int64_t in_group = w.in_channels / w.groups, out_group = w.out_channels / w.groups;
    idx i = THREAD;
    if (i >= (idx)out_count(0))
        return;
    idx c = i % (idx)w.out_channels, cell = i / (idx)w.out_channels;
    int64_t o0 = cell / (idx)(w.out[1] * w.out[2]) % (idx)w.out[0], o1 = cell / (idx)w.out[2] % (idx)w.out[1],
            o2 = cell % (idx)w.out[2], n = cell / (idx)(w.out[0] * w.out[1] * w.out[2]), g = c / out_group;
    double sum = 0;
    for (int64_t p = 0; p < w.kernel[0]; p++)
        for (int64_t q = 0; q < w.kernel[1]; q++)
            for (int64_t s = 0; s < w.kernel[2]; s++) {
                int64_t d = o0 * w.stride[0] + p * w.dilation[0] - w.before[0];
                int64_t h = o1 * w.stride[1] + q * w.dilation[1] - w.before[1];
                int64_t v = o2 * w.stride[2] + s * w.dilation[2] - w.before[2];
                if (d < 0 || d >= w.in[0] || h < 0 || h >= w.in[1] || v < 0 || v >= w.in[2])
                    continue;
                idx x = (idx)((((n * w.in[0] + d) * w.in[1] + h) * w.in[2] + v) * w.in_channels + g * in_group);
                idx k = (idx)(((p * w.kernel[1] + q) * w.kernel[2] + s) * in_group * w.out_channels + c);
                for (int64_t e = 0; e < in_group; e++)
                    sum += get<0>(a, x + (idx)e) * get<1>(a, k + (idx)(e * w.out_channels));
            }
    put<0>(a, i, sum + get_or<2>(a, c, 0));
}

#elif defined(KIND_CONV_GRAD_DATA)
ENTRY k0(args a)
{
    constexpr int64_t in_group = w.in_channels / w.groups, out_group = w.out_channels / w.groups;
    idx i = THREAD;
    if (i >= (idx)out_count(0))
        return;
    idx c = i % (idx)w.in_channels, cell = i / (idx)w.in_channels;
    int64_t i0 = cell / (idx)(w.in[1] * w.in[2]) % (idx)w.in[0], i1 = cell / (idx)w.in[2] % (idx)w.in[1],
            i2 = cell % (idx)w.in[2], n = cell / (idx)(w.in[0] * w.in[1] * w.in[2]), g = c / in_group;
    double sum = 0;
    for (int64_t p = 0; p < w.kernel[0]; p++)
        for (int64_t q = 0; q < w.kernel[1]; q++)
            for (int64_t s = 0; s < w.kernel[2]; s++) {
                int64_t d = i0 + w.before[0] - p * w.dilation[0], h = i1 + w.before[1] - q * w.dilation[1];
                int64_t v = i2 + w.before[2] - s * w.dilation[2];
                if (d < 0 || d % w.stride[0] || h < 0 || h % w.stride[1] || v < 0 || v % w.stride[2])
                    continue;
                d /= w.stride[0];
                h /= w.stride[1];
                v /= w.stride[2];
                if (d >= w.out[0] || h >= w.out[1] || v >= w.out[2])
                    continue;
                idx y = (idx)((((n * w.out[0] + d) * w.out[1] + h) * w.out[2] + v) * w.out_channels + g * out_group);
                idx k = (idx)((((p * w.kernel[1] + q) * w.kernel[2] + s) * in_group + c % in_group) * w.out_channels +
                              g * out_group);
                for (int64_t e = 0; e < out_group; e++)
                    sum += get<0>(a, y + (idx)e) * get<1>(a, k + (idx)e);
            }
    put<0>(a, i, sum + get_or<2>(a, c, 0));
}

#elif defined(KIND_CONV_GRAD_WEIGHTS)
/* A weight is a sum over images and positions. */
struct weight : plain_sums<weight, 1> {
    REDUCTION(weight, 0)
    static inline void take(const args &a, double *sum, idx j, idx g)
    {
        constexpr int64_t in_group = w.in_channels / w.groups, out_group = w.out_channels / w.groups;
        int64_t c = j % (idx)w.out_channels, e = j / (idx)w.out_channels % (idx)in_group;
        int64_t tap = j / (idx)(w.out_channels * in_group);
        int64_t p = tap / (w.kernel[1] * w.kernel[2]), q = tap / w.kernel[2] % w.kernel[1], s = tap % w.kernel[2];
        int64_t o0 = g / (idx)(w.out[1] * w.out[2]) % (idx)w.out[0], o1 = g / (idx)w.out[2] % (idx)w.out[1],
                o2 = g % (idx)w.out[2], n = g / (idx)(w.out[0] * w.out[1] * w.out[2]);
        int64_t d = o0 * w.stride[0] + p * w.dilation[0] - w.before[0];
        int64_t h = o1 * w.stride[1] + q * w.dilation[1] - w.before[1];
        int64_t v = o2 * w.stride[2] + s * w.dilation[2] - w.before[2];
        if (d < 0 || d >= w.in[0] || h < 0 || h >= w.in[1] || v < 0 || v >= w.in[2])
            return;
        idx x = (idx)((((n * w.in[0] + d) * w.in[1] + h) * w.in[2] + v) * w.in_channels + c / out_group * in_group + e);
        sum[0] += get<0>(a, x) * get<1>(a, (idx)(g * (idx)w.out_channels + c));
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        put<0>(a, j, s[0]);
    }
};
REDUCTION_KERNELS(weight, 0)
#endif

#if defined(BIAS_GRADIENT)
struct bias : plain_sums<bias, 1> {
    REDUCTION(bias, 1)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        s[0] += get<1>(a, g * OUT + j);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        put<1>(a, j, s[0]);
    }
};
REDUCTION_KERNELS(bias, 1)
#endif
