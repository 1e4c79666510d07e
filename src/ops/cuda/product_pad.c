/* product_pad.c: see product_pad.h. */
#include "ops/cuda/product_pad.h"

enum { UNIT = 8 };

static int64_t length_of(const mf_shape *shape)
{
    return shape->rank ? shape->dim[shape->rank - 1] : 1;
}

bool cuda_padding_of(const mf_graph *graph, const mf_op *op, cuda_padding *pad)
{
    const uint32_t ids[3] = {op->in[0], op->in[1], op->out[0]};
    *pad = (cuda_padding){0};
    bool any = false;
    double work = 1;
    for (int i = 0; i < 3; i++) {
        const mf_tensor *t = &graph->tensors[ids[i]];
        int64_t count = (int64_t)mf_shape_count(&t->shape), length = length_of(&t->shape);
        if ((t->dtype != MF_BF16 && t->dtype != MF_F16 && !(i == 2 && t->dtype == MF_F32)) || count == 0 ||
            (i == 1 && t->shape.rank != 2) || (t->shape.rank > 2 && op->attr.matmul.trans_a))
            return false;
        bool needs = length % UNIT != 0 && length >= UNIT;
        any |= needs;
        pad->from[i] = length;
        pad->rows[i] = count / length;
        pad->to[i] = needs ? (length + UNIT - 1) / UNIT * UNIT : length;
        pad->at[i] = pad->bytes;
        pad->bytes +=
            needs ? ((uint64_t)(pad->rows[i] * pad->to[i]) * mf_dtype_bytes(t->dtype) + 255) & ~UINT64_C(255) : 0;
        work *= (double)count;
    }
    /* the product of all three is (m n k)^2 */
    return any && work >= (double)CUDA_LEAST_PADDED * (double)CUDA_LEAST_PADDED;
}
