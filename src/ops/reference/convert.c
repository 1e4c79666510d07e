/* convert.c: elements of every stored type as numbers, and arrays from one type to another. float16 and bfloat16 round
 * to nearest, ties to even, as IEEE 754 and as TensorFlow casts; integers saturate nowhere (a value that does not fit
 * is the caller's mistake) but NaN becomes 0, so that no conversion is undefined. */
#include "ops/reference/reference.h"

#include <math.h>
#include <string.h>

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu, bits;
    if (exponent == 31)
        bits = sign | 0x7f800000u | (fraction << 13);
    else if (exponent != 0)
        bits = sign | ((exponent + 112u) << 23) | (fraction << 13);
    else { /* zero or subnormal: fraction * 2^-24, exact in float */
        float value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t float_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: subnormal; lrintf rounds to even */
        float scaled;
        memcpy(&scaled, &magnitude, sizeof scaled);
        return (uint16_t)(sign | (uint16_t)lrintf(scaled * 0x1p24f));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static float bfloat_to_float(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t float_to_bfloat(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

double mf_ref_load(mf_dtype dtype, const void *data, uint64_t i)
{
    switch (dtype) {
    case MF_F32:
        return ((const float *)data)[i];
    case MF_F64:
        return ((const double *)data)[i];
    case MF_F16:
        return half_to_float(((const uint16_t *)data)[i]);
    case MF_BF16:
        return bfloat_to_float(((const uint16_t *)data)[i]);
    default:
        return (double)mf_ref_load_int(dtype, data, i);
    }
}

static int64_t to_int(double value)
{
    if (!(value > -9.2e18 && value < 9.2e18))
        return value != value ? 0 : value < 0 ? INT64_MIN : INT64_MAX;
    return (int64_t)value;
}

int64_t mf_ref_load_int(mf_dtype dtype, const void *data, uint64_t i)
{
    switch (dtype) {
    case MF_I8:
        return ((const int8_t *)data)[i];
    case MF_U8:
    case MF_BOOL:
        return ((const uint8_t *)data)[i];
    case MF_I16:
        return ((const int16_t *)data)[i];
    case MF_U16:
        return ((const uint16_t *)data)[i];
    case MF_I32:
        return ((const int32_t *)data)[i];
    case MF_U32:
        return ((const uint32_t *)data)[i];
    case MF_I64:
        return ((const int64_t *)data)[i];
    case MF_U64:
        return (int64_t)((const uint64_t *)data)[i];
    default:
        return to_int(mf_ref_load(dtype, data, i));
    }
}

void mf_ref_store(mf_dtype dtype, void *data, uint64_t i, double value)
{
    switch (dtype) {
    case MF_F32:
        ((float *)data)[i] = (float)value;
        break;
    case MF_F64:
        ((double *)data)[i] = value;
        break;
    case MF_F16:
        ((uint16_t *)data)[i] = float_to_half((float)value);
        break;
    case MF_BF16:
        ((uint16_t *)data)[i] = float_to_bfloat((float)value);
        break;
    case MF_BOOL:
        ((uint8_t *)data)[i] = value != 0;
        break;
    case MF_I8:
    case MF_U8:
        ((uint8_t *)data)[i] = (uint8_t)to_int(value);
        break;
    case MF_I16:
    case MF_U16:
        ((uint16_t *)data)[i] = (uint16_t)to_int(value);
        break;
    case MF_I32:
    case MF_U32:
        ((uint32_t *)data)[i] = (uint32_t)to_int(value);
        break;
    case MF_I64:
    case MF_U64:
        ((uint64_t *)data)[i] = (uint64_t)to_int(value);
        break;
    case MF_DTYPE_COUNT:
        break;
    }
}

static bool is_wide_int(mf_dtype dtype)
{
    return dtype == MF_I64 || dtype == MF_U64;
}

void mf_ref_convert(mf_dtype to, void *out, mf_dtype from, const void *in, uint64_t count)
{
    if (to == from) {
        if (out != in)
            memmove(out, in, count * mf_dtype_bytes(to));
        return;
    }
    if (to == MF_F32 && from == MF_F64) {
        for (uint64_t i = 0; i < count; i++)
            ((float *)out)[i] = (float)((const double *)in)[i];
    } else if (to == MF_F64 && from == MF_F32) {
        for (uint64_t i = 0; i < count; i++)
            ((double *)out)[i] = ((const float *)in)[i];
    } else if (is_wide_int(to) && is_wide_int(from)) {
        memmove(out, in, count * 8);
    } else {
        for (uint64_t i = 0; i < count; i++)
            mf_ref_store(to, out, i, mf_ref_load(from, in, i));
    }
}
