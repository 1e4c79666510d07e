/* convert.c: elements of every stored type as numbers, and arrays from one type to another. float16 and bfloat16 round
 * to nearest, ties to even, as IEEE 754 and as TensorFlow casts; integers saturate nowhere (a value that does not fit
 * is the caller's mistake) but NaN becomes 0, so that no conversion is undefined. */
#include "base/half.h"
#include "ops/reference/reference.h"

#include <math.h>
#include <string.h>

double mf_ref_load(mf_dtype dtype, const void *data, uint64_t i)
{
    switch (dtype) {
    case MF_F32:
        return ((const float *)data)[i];
    case MF_F64:
        return ((const double *)data)[i];
    case MF_F16:
        return mf_half_to_float(((const uint16_t *)data)[i]);
    case MF_BF16:
        return mf_bfloat_to_float(((const uint16_t *)data)[i]);
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
        ((uint16_t *)data)[i] = mf_float_to_half((float)value);
        break;
    case MF_BF16:
        ((uint16_t *)data)[i] = mf_float_to_bfloat((float)value);
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
