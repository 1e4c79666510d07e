/* tensor.h: types and shapes. Tensors are dense, row-major; images are NHWC, as in Keras. */
#ifndef MF_BASE_TENSOR_H
#define MF_BASE_TENSOR_H

#include "memfit/base.h"

#define MF_NONE UINT32_MAX

/* name, text, bytes */
#define MF_DTYPE_LIST(X)                                                                                               \
    X(F32, "float32", 4)                                                                                               \
    X(F64, "float64", 8)                                                                                               \
    X(F16, "float16", 2)                                                                                               \
    X(BF16, "bfloat16", 2)                                                                                             \
    X(I8, "int8", 1)                                                                                                   \
    X(U8, "uint8", 1)                                                                                                  \
    X(I16, "int16", 2)                                                                                                 \
    X(U16, "uint16", 2)                                                                                                \
    X(I32, "int32", 4)                                                                                                 \
    X(U32, "uint32", 4)                                                                                                \
    X(I64, "int64", 8)                                                                                                 \
    X(U64, "uint64", 8)                                                                                                \
    X(BOOL, "bool", 1)

typedef enum mf_dtype {
#define X(name, text, bytes) MF_##name,
    MF_DTYPE_LIST(X)
#undef X
        MF_DTYPE_COUNT
} mf_dtype;

enum { MF_MOST_DIMS = 8 };

typedef struct mf_shape {
    uint32_t rank; /* 0 is a scalar */
    int64_t dim[MF_MOST_DIMS];
} mf_shape;

const char *mf_dtype_name(mf_dtype dtype);
uint64_t mf_dtype_bytes(mf_dtype dtype);
bool mf_dtype_parse(const char *name, mf_dtype *dtype); /* "float32", "mixed_float16" is no dtype */

mf_shape mf_shape_make(uint32_t rank, const int64_t *dims);
/* Elements; 1 for a scalar. UINT64_MAX when it does not fit. */
uint64_t mf_shape_count(const mf_shape *shape);
bool mf_shape_equal(const mf_shape *a, const mf_shape *b);
/* "(32, 224, 224, 3)"; negative dimensions print as None. Returns text. */
char *mf_shape_format(const mf_shape *shape, char *text, size_t text_bytes);

#endif
