/*
 * kernels_cast.c: arrays from one type to another. float16 and bfloat16 round to nearest, ties to even, as the reference
 * operations' conversions do; these are written so that the compiler vectorises them.
 */
#include "ops/cpu/kernels/kernels_isa.h"

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
    uint32_t normal = sign | ((e + 112) << 23) | (m << 13);
    uint32_t special = sign | 0x7f800000u | (m << 13);
    float tiny = (float)m * 5.9604644775390625e-8f; /* 2^-24 */
    uint32_t tiny_bits = (uint32_t)mf_k_float_bits(tiny) | sign;
    return mf_k_bits_float((int32_t)(e == 0 ? tiny_bits : e == 31 ? special : normal));
}

static inline uint16_t float_to_half(float f)
{
    uint32_t bits = (uint32_t)mf_k_float_bits(f), sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
    uint32_t normal = (rounded - (112u << 23)) >> 13;
    float scaled = mf_k_bits_float((int32_t)bits) * 16777216.0f; /* 2^24 */
    uint32_t subnormal = (uint32_t)((scaled + 8388608.0f) - 8388608.0f);
    uint32_t result = bits > 0x7f800000 ? 0x7e00 : bits >= 0x47800000 ? 0x7c00 : bits < 0x38800000 ? subnormal : normal;
    return (uint16_t)(sign | (result > 0x7c00 && bits <= 0x7f800000 ? 0x7c00 : result));
}

static inline float bfloat_to_float(uint16_t h)
{
    return mf_k_bits_float((int32_t)((uint32_t)h << 16));
}

static inline uint16_t float_to_bfloat(float f)
{
    uint32_t bits = (uint32_t)mf_k_float_bits(f);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

#define TO_FLOAT(type, expression)                                                                                     \
    do {                                                                                                               \
        const type *s = (const type *)x + r.from;                                                                      \
        float *d = (float *)y + r.from;                                                                                \
        _Pragma("omp simd") for (int64_t i = 0; i < r.to - r.from; i++)                                                \
        {                                                                                                              \
            const type v = s[i];                                                                                       \
            d[i] = (float)(expression);                                                                                \
        }                                                                                                              \
    } while (0)
#define FROM_FLOAT(type, expression)                                                                                   \
    do {                                                                                                               \
        const float *s = (const float *)x + r.from;                                                                    \
        type *d = (type *)y + r.from;                                                                                  \
        _Pragma("omp simd") for (int64_t i = 0; i < r.to - r.from; i++)                                                \
        {                                                                                                              \
            const float v = s[i];                                                                                      \
            d[i] = (type)(expression);                                                                                 \
        }                                                                                                              \
    } while (0)

static bool cast_to_float(mf_dtype from, const void *x, void *y, mf_k_range r)
{
    switch (from) {
    case MF_F32:
        memcpy((float *)y + r.from, (const float *)x + r.from, (size_t)(r.to - r.from) * 4);
        break;
    case MF_F64:
        TO_FLOAT(double, v);
        break;
    case MF_F16:
        TO_FLOAT(uint16_t, half_to_float(v));
        break;
    case MF_BF16:
        TO_FLOAT(uint16_t, bfloat_to_float(v));
        break;
    case MF_I8:
        TO_FLOAT(int8_t, v);
        break;
    case MF_U8:
        TO_FLOAT(uint8_t, v);
        break;
    case MF_BOOL:
        TO_FLOAT(uint8_t, v != 0);
        break;
    case MF_I16:
        TO_FLOAT(int16_t, v);
        break;
    case MF_U16:
        TO_FLOAT(uint16_t, v);
        break;
    case MF_I32:
        TO_FLOAT(int32_t, v);
        break;
    case MF_U32:
        TO_FLOAT(uint32_t, v);
        break;
    case MF_I64:
        TO_FLOAT(int64_t, v);
        break;
    default:
        return false;
    }
    return true;
}

/* As the reference operations do: the low half of the 64-bit integer, whatever the value. */
static inline int32_t low_half(float v)
{
    int64_t whole = v > -9.2e18f && v < 9.2e18f ? (int64_t)v : v > 0 ? -1 : 0;
    return (int32_t)(uint32_t)(uint64_t)whole;
}

static bool cast_from_float(mf_dtype to, const void *x, void *y, mf_k_range r)
{
    switch (to) {
    case MF_F16:
        FROM_FLOAT(uint16_t, float_to_half(v));
        break;
    case MF_BF16:
        FROM_FLOAT(uint16_t, float_to_bfloat(v));
        break;
    case MF_F64:
        FROM_FLOAT(double, v);
        break;
    case MF_I32:
        FROM_FLOAT(int32_t, low_half(v));
        break;
    case MF_U8:
        FROM_FLOAT(uint8_t, v);
        break;
    default:
        return false;
    }
    return true;
}

static bool cast_range(mf_dtype from, const void *x, mf_dtype to, void *y, mf_k_range r)
{
    return to == MF_F32 ? cast_to_float(from, x, y, r) : from == MF_F32 && cast_from_float(to, x, y, r);
}

bool MF_K(cast)(mf_dtype from, const void *x, mf_dtype to, void *y, int64_t n, int threads)
{
    if (threads == 1 || n <= MF_K_GRAIN) /* also by threads of a team, whose regions would take memory */
        return cast_range(from, x, to, y, (mf_k_range){0, n});
    int bad = 0;
#pragma omp parallel num_threads(threads) reduction(| : bad)
    bad |= !cast_range(from, x, to, y, mf_k_share(n, 64));
    return !bad;
}
