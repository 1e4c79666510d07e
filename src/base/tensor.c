/* tensor.c: names, sizes and shapes of tensors. */
#include "base/tensor.h"

#include "base/text.h"

#include <string.h>

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[] = {
#define X(name, text, bytes) {text, bytes},
    MF_DTYPE_LIST(X)
#undef X
};

const char *mf_dtype_name(mf_dtype dtype)
{
    return (unsigned)dtype < MF_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

uint64_t mf_dtype_bytes(mf_dtype dtype)
{
    return (unsigned)dtype < MF_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

bool mf_dtype_parse(const char *name, mf_dtype *dtype)
{
    for (unsigned i = 0; i < MF_DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype = (mf_dtype)i;
            return true;
        }
    return false;
}

mf_shape mf_shape_make(uint32_t rank, const int64_t *dims)
{
    mf_shape s = {.rank = rank <= MF_MOST_DIMS ? rank : 0};
    for (uint32_t i = 0; i < s.rank; i++)
        s.dim[i] = dims[i];
    return s;
}

uint64_t mf_shape_count(const mf_shape *shape)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < shape->rank; i++) {
        if (shape->dim[i] < 0 || __builtin_mul_overflow(n, (uint64_t)shape->dim[i], &n))
            return UINT64_MAX;
    }
    return n;
}

bool mf_shape_equal(const mf_shape *a, const mf_shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, a->rank * sizeof *a->dim) == 0;
}

char *mf_shape_format(const mf_shape *shape, char *text, size_t text_bytes)
{
    mf_text t;
    mf_text_init(&t, text, text_bytes);
    mf_text_add(&t, "(");
    for (uint32_t i = 0; i < shape->rank; i++) {
        if (shape->dim[i] < 0)
            mf_text_add(&t, "%sNone", i ? ", " : "");
        else
            mf_text_add(&t, "%s%lld", i ? ", " : "", (long long)shape->dim[i]);
    }
    mf_text_add(&t, shape->rank == 1 ? ",)" : ")");
    return text;
}
