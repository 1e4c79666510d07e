/* kernels_isa.h: what the kernels_*.c files share: names by instruction set, splitting, vector mathematics.
 *
 * exp, log, tanh and erf are written so that the compiler can vectorise loops that call them: no branches, no tables.
 * Worst errors against long double over the float range: exp 1.5 ulp, log 2 ulp, tanh 3 ulp, erf 1e-7 absolute. */
#ifndef MF_OPS_KERNELS_ISA_H
#define MF_OPS_KERNELS_ISA_H

#include "ops/cpu/kernels/kernels.h"

#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num()  0
#define omp_get_num_threads() 1
#endif

#ifndef MF_ISA
#define MF_ISA generic
#endif
#define MF_K_JOIN2(name, isa) mf_k_##name##_##isa
#define MF_K_JOIN(name, isa)  MF_K_JOIN2(name, isa)
#define MF_K(name)            MF_K_JOIN(name, MF_ISA)

#define X(type, name, arguments) type MF_K(name) arguments;
MF_KERNEL_LIST(X)
#undef X

typedef struct mf_k_range {
    int64_t from, to;
} mf_k_range;

/* The calling thread's share of n items, in units of `unit`. */
static inline mf_k_range mf_k_share(int64_t n, int64_t unit)
{
    int64_t units = (n + unit - 1) / unit, t = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t from = units * t / all * unit, to = units * (t + 1) / all * unit;
    return (mf_k_range){from < n ? from : n, to < n ? to : n};
}

/* Block b of MF_K_BLOCKS of n items. */
static inline mf_k_range mf_k_block(int64_t n, int64_t b)
{
    return (mf_k_range){n / MF_K_BLOCKS * b + n % MF_K_BLOCKS * b / MF_K_BLOCKS,
                        n / MF_K_BLOCKS * (b + 1) + n % MF_K_BLOCKS * (b + 1) / MF_K_BLOCKS};
}

/* A label of any type that targets come in. */
static inline int64_t mf_k_label(mf_dtype type, const void *t, int64_t i)
{
    switch (type) {
    case MF_I64:
        return ((const int64_t *)t)[i];
    case MF_I32:
        return ((const int32_t *)t)[i];
    case MF_U8:
        return ((const uint8_t *)t)[i];
    case MF_I8:
        return ((const int8_t *)t)[i];
    case MF_I16:
        return ((const int16_t *)t)[i];
    case MF_U16:
        return ((const uint16_t *)t)[i];
    default:
        return (int64_t)((const float *)t)[i];
    }
}

static inline float mf_k_bits_float(int32_t i)
{
    float f;
    memcpy(&f, &i, 4);
    return f;
}

static inline int32_t mf_k_float_bits(float f)
{
    int32_t i;
    memcpy(&i, &f, 4);
    return i;
}

static inline float mf_k_exp(float x)
{
    x = x > 88.7228f ? 88.7228f : x;
    x = x < -87.3365f ? -87.3365f : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounded to the nearest integer */
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    /* two factors, so that 2^n stays in range at both ends */
    int32_t i = (int32_t)n, half = i / 2;
    return p * mf_k_bits_float((int32_t)((uint32_t)(half + 127) << 23)) *
           mf_k_bits_float((int32_t)((uint32_t)(i - half + 127) << 23));
}

static inline float mf_k_log(float x)
{
    int32_t bits = mf_k_float_bits(x);
    int32_t e = (bits >> 23) - 126;
    float m = mf_k_bits_float((bits & 0x007fffff) | 0x3f000000); /* in [0.5, 1) */
    int small = m < 0.707106781f;
    e -= small;
    m = small ? m + m - 1.0f : m - 1.0f;
    float z = m * m, p = 7.0376836292e-2f, fe = (float)e;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    float y = p * m * z - fe * 2.12194440e-4f - 0.5f * z;
    float r = m + y + fe * 0.693359375f;
    r = x < 1.17549435e-38f ? (x > 0 ? -87.3365f : x == 0 ? -INFINITY : NAN) : r;
    return x < INFINITY ? r : x;
}

static inline float mf_k_tanh(float x)
{
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float small = p * z * x + x;
    float a = x < 0 ? -x : x;
    float large = 1.0f - 2.0f / (mf_k_exp(2.0f * a) + 1.0f);
    return a < 0.625f ? small : x < 0 ? -large : large;
}

static inline float mf_k_sigmoid(float x)
{
    return 1.0f / (1.0f + mf_k_exp(-x));
}

/* ln(1 + e^x) */
static inline float mf_k_softplus(float x)
{
    float a = x < 0 ? -x : x, e = mf_k_exp(-a);
    float u = 1.0f + e;
    float l = u == 1.0f ? e : mf_k_log(u) * e / (u - 1.0f);
    return (x > 0 ? x : 0) + l;
}

/* Abramowitz and Stegun 7.1.26 with a fifth-order polynomial; a series near zero keeps the relative error small. */
static inline float mf_k_erf(float x)
{
    float a = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.3275911f * a);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    float large = 1.0f - p * t * mf_k_exp(-a * a);
    float z = x * x;
    float s = a * (1.128379167f + z * (-0.376126389f + z * (0.112837917f + z * (-0.026866170f + z * 0.005223978f))));
    float r = a < 0.5f ? s : large;
    return x < 0 ? -r : r;
}

#endif
