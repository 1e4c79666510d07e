/* attention.c: how attention is divided into blocks and among threads, and the workspace that takes; the same for every
 * instruction set. */
#include "ops/cpu/kernels/kernels.h"

enum {
    LEAST_ROWS = 24,
    MOST_SCORES = 1 << 17
}; /* scores of a block: 512 KiB, twice in backward, for the second-level cache */

/* The most that a product of the kernel takes in any block: sizes are all that counts, and the last has fewer rows, with a
 * causal mask each other columns. */
static uint64_t product_floats(const mf_k_attention *a)
{
    const mf_attention_shape *s = &a->shape;
    uint64_t most = 0;
    for (int64_t t = 0; t < s->queries; t += a->rows) {
        int64_t rows = s->queries - t < a->rows ? s->queries - t : a->rows;
        int64_t wide = a->causal == 1 && t + rows < s->keys ? t + rows : s->keys;
        const int64_t sizes[6][3] = {{rows, wide, s->depth},  {rows, s->values, wide}, {rows, wide, s->values},
                                     {wide, s->values, rows}, {wide, s->depth, rows},  {rows, s->depth, wide}};
        for (int i = 0; i < (a->backward ? 6 : 2); i++) {
            mf_k_gemm g = {.batch = 1, .m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2]};
            mf_k_gemm_divide(&g, a->inner);
            uint64_t floats = mf_k_gemm_floats(&g);
            most = floats > most ? floats : most;
        }
    }
    return most;
}

uint64_t mf_k_attention_divide(mf_k_attention *a, int threads)
{
    const mf_attention_shape *s = &a->shape;
    a->rows = MF_K_ATTENTION_ROWS;
    while (a->rows > LEAST_ROWS && a->rows * s->keys > MOST_SCORES)
        a->rows /= 2;
    a->rows = a->rows < s->queries ? a->rows : s->queries;
    a->inner = s->batch * s->heads < threads ? threads : 1;
    uint64_t row = (uint64_t)mf_k_attention_row(a), blocks = (uint64_t)a->rows * (a->backward ? 2 : 1);
    a->floats = (blocks * row + (uint64_t)a->inner * (row + row / 4) + product_floats(a) + 15) / 16 * 16;
    return a->floats * (uint64_t)(a->inner > 1 ? 1 : threads);
}
