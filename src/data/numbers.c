/* numbers.c: numbers of any type, one at a time or many. See numbers.h. */
#include "data/numbers.h"

#include "ops/cpu/kernels/kernels.h"

#include <string.h>

double mf_number_load(mf_dtype dtype, const void *data, uint64_t i)
{
    float f = 0;
    switch (dtype) {
    case MF_F64: {
        double d;
        memcpy(&d, (const char *)data + i * 8, 8);
        return d;
    }
    case MF_I64: {
        int64_t v;
        memcpy(&v, (const char *)data + i * 8, 8);
        return (double)v;
    }
    case MF_U64: {
        uint64_t v;
        memcpy(&v, (const char *)data + i * 8, 8);
        return (double)v;
    }
    case MF_U32: {
        uint32_t v;
        memcpy(&v, (const char *)data + i * 4, 4);
        return (double)v;
    }
    case MF_I32: {
        int32_t v;
        memcpy(&v, (const char *)data + i * 4, 4);
        return (double)v; /* exact, as a float would not be */
    }
    default: { /* files align nothing */
        uint64_t one = 0;
        memcpy(&one, (const char *)data + i * mf_dtype_bytes(dtype), mf_dtype_bytes(dtype));
        mf_kernels()->cast(dtype, &one, MF_F32, &f, 1, 1);
        return (double)f;
    }
    }
}

void mf_number_store(mf_dtype dtype, void *data, uint64_t i, double v)
{
    float f = (float)v;
    switch (dtype) {
    case MF_F32:
        ((float *)data)[i] = f;
        break;
    case MF_F64:
        ((double *)data)[i] = v;
        break;
    case MF_I8:
    case MF_U8:
    case MF_BOOL:
        ((uint8_t *)data)[i] = (uint8_t)(int64_t)v;
        break;
    case MF_I16:
    case MF_U16:
        ((uint16_t *)data)[i] = (uint16_t)(int64_t)v;
        break;
    case MF_I32:
    case MF_U32:
        ((uint32_t *)data)[i] = (uint32_t)(int64_t)v;
        break;
    case MF_I64:
    case MF_U64:
        ((int64_t *)data)[i] = (int64_t)v;
        break;
    default:
        mf_kernels()->cast(MF_F32, &f, dtype, (char *)data + i * mf_dtype_bytes(dtype), 1, 1);
        break;
    }
}

void mf_number_convert(mf_dtype from, const void *x, mf_dtype to, void *y, uint64_t n)
{
    if (from == to)
        memcpy(y, x, n * mf_dtype_bytes(to));
    else if ((to == MF_F32 || (to == MF_BF16 && from == MF_F32)) && from != MF_U64 &&
             ((uintptr_t)x & (mf_dtype_bytes(from) - 1)) == 0)
        mf_kernels()->cast(from, x, to, y, (int64_t)n, 1);
    else
        for (uint64_t i = 0; i < n; i++)
            mf_number_store(to, y, i, mf_number_load(from, x, i));
}
