/*
 * kernels_gemm.c: matrix products after Goto and van de Geijn: a block of b is packed for the second-level cache, a
 * block of a for the first, and a tile of c stays in registers along k.
 *
 *     for columns of c by MF_K_GEMM_N
 *       for k by MF_K_GEMM_K              pack b
 *         for rows of c by MF_K_GEMM_M    pack a
 *           for tiles of the block        tile(): TILE_M x TILE_N sums, then finish()
 *
 * Each part of a product (gemm.h) runs this loop alone with buffers of its own: nobody waits, and what two parts pack
 * twice is little beside the products. With few rows b is read where it lies: packing it would cost as much as using it.
 */
#include "ops/cpu/kernels/gemm_pack.h"

#if defined(__AVX512F__)
enum { LANES = 16, TILE_M = 12 };
#elif defined(__AVX__)
enum { LANES = 8, TILE_M = 6 };
#else
enum { LANES = 4, TILE_M = 4 };
#endif
enum { TILE_N = 2 * LANES, LOW = TILE_M == 12 ? 4 : TILE_M / 2, FEW_ROWS = 4 * TILE_M };

_Static_assert(MF_K_GEMM_M % TILE_M == 0 && MF_K_GEMM_N % TILE_N == 0, "blocks are whole tiles");
_Static_assert(MF_K_GEMM_TILE_M % TILE_M == 0 && MF_K_GEMM_TILE_N % TILE_N == 0, "gemm.c rounds up at least as far");

typedef float vector __attribute__((vector_size(LANES * 4), aligned(4)));

/* out = the products of n steps, of the first ROWS rows and VECTORS vectors of a tile; b lies `b_step` from step to
 * step, out `row` from row to row. */
#define TILE_OF(name, ROWS, VECTORS)                                                                                   \
    static __attribute__((noinline)) void name(int64_t n, const float *a, const float *b, int64_t b_step, float *out,  \
                                               int64_t row)                                                            \
    {                                                                                                                  \
        vector s[ROWS][VECTORS] = {{{0}}};                                                                             \
        for (int64_t k = 0; k < n; k++, a += TILE_M, b += b_step) {                                                    \
            vector v[VECTORS];                                                                                         \
            _Pragma("GCC unroll 2") for (int e = 0; e < VECTORS; e++) v[e] =                                           \
                *(const vector *)(const void *)(b + e * LANES);                                                        \
            _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                    \
            {                                                                                                          \
                vector x = a[i] - (vector){0};                                                                         \
                _Pragma("GCC unroll 2") for (int e = 0; e < VECTORS; e++) s[i][e] += x * v[e];                         \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                        \
                _Pragma("GCC unroll 2") for (int e = 0; e < VECTORS; e++) *                                            \
            (vector *)(void *)(out + i * row + e * LANES) = s[i][e];                                                   \
    }

TILE_OF(tile, TILE_M, 2)
TILE_OF(tile_narrow, TILE_M, 1)
TILE_OF(tile_low, LOW, 2)
TILE_OF(tile_low_narrow, LOW, 1)

/* What one part works on. */
typedef struct part {
    const mf_k_gemm *g;
    const float *a, *b, *bias;
    float *c, *sums; /* of this batch; sums: of this part along k, or NULL */
    float *packed_a, *packed_b;
    int64_t m0, m1, n0, n1, k0, k1;
    bool direct; /* b is read where it lies */
} part;

static float *row_of(const part *p, int64_t i)
{
    const mf_k_gemm *g = p->g;
    if (p->sums)
        return p->sums + i * g->n;
    if (!g->scattered)
        return p->c + i * g->c_row;
    int64_t place[3], at = pack_split(i, g->rows.places, place);
    for (int d = 0; d < 3; d++)
        at = at * g->rows.size[d] + g->rows.first[d] + place[d] * g->rows.step[d];
    return p->c + at * g->c_row;
}

static void finish(const part *p, float *out, int64_t i, int64_t rows, int64_t j, int64_t columns, bool first,
                   bool last)
{
    const mf_k_gemm *g = p->g;
    const float scale = p->sums ? 1.0f : g->scale, *bias = first && g->bias && !p->sums ? p->bias + j : NULL;
    const bool adds = !first || (g->accumulate && !p->sums), relu = last && g->relu && !p->sums;
    for (int64_t r = 0; r < rows; r++, out += TILE_N) {
        float *c = row_of(p, i + r) + j;
        for (int64_t e = 0; scale != 1.0f && e < columns; e++)
            out[e] *= scale;
        for (int64_t e = 0; bias && e < columns; e++)
            out[e] += bias[e];
        for (int64_t e = 0; adds && e < columns; e++)
            out[e] += c[e];
        for (int64_t e = 0; relu && e < columns; e++)
            out[e] = out[e] > 0.0f ? out[e] : 0.0f;
        if (columns == TILE_N)
            memcpy(c, out, TILE_N * sizeof *c);
        else
            memcpy(c, out, (size_t)columns * sizeof *c);
    }
}

/* The first sums are what is written: finish() would only copy. */
static bool goes_as_it_is(const part *p)
{
    const mf_k_gemm *g = p->g;
    return !p->sums && !g->scattered && g->scale == 1.0f && !g->bias && !g->accumulate && !g->relu;
}

/* The rows [i, i + rows) and columns [j, j + columns), packed, along [k, k + n). */
static void block(const part *p, int64_t i, int64_t rows, int64_t j, int64_t columns, int64_t k, int64_t n)
{
    const mf_k_source *b = &p->g->b;
    const bool plain = k == p->k0 && goes_as_it_is(p);
    float out[TILE_M * TILE_N] __attribute__((aligned(64)));
    for (int64_t y = 0; y < columns; y += TILE_N) {
        int64_t wide = columns - y < TILE_N ? columns - y : TILE_N;
        bool direct = p->direct && wide == TILE_N;
        const float *from = direct ? p->b + j + y + k * b->k_step : p->packed_b + y * n;
        for (int64_t x = 0; x < rows; x += TILE_M) {
            const float *a = p->packed_a + x * n;
            int64_t high = rows - x < TILE_M ? rows - x : TILE_M, b_step = direct ? b->k_step : TILE_N, done = 0;
            for (; high < TILE_M && done < high; done += LOW)
                (wide > LANES ? tile_low : tile_low_narrow)(n, a + done, from, b_step, out + done * TILE_N, TILE_N);
            if (plain && high == TILE_M && wide == TILE_N) {
                tile(n, a, from, b_step, row_of(p, i + x) + j + y, p->g->c_row);
                continue;
            }
            if (!done)
                (wide > LANES ? tile : tile_narrow)(n, a, from, b_step, out, TILE_N);
            finish(p, out, i + x, high, j + y, wide, k == p->k0, k + n == p->k1);
        }
    }
}

static void run_part(const part *p)
{
    for (int64_t j = p->n0; j < p->n1; j += MF_K_GEMM_N) {
        int64_t columns = p->n1 - j < MF_K_GEMM_N ? p->n1 - j : MF_K_GEMM_N, k = p->k0, n;
        do {
            n = p->k1 - k < MF_K_GEMM_K ? p->k1 - k : MF_K_GEMM_K;
            int64_t whole = p->direct ? columns / TILE_N * TILE_N : 0;
            pack_block(&p->g->b, p->b, j + whole, columns - whole, k, n, TILE_N, p->packed_b + whole * n);
            for (int64_t i = p->m0; i < p->m1; i += MF_K_GEMM_M) {
                int64_t rows = p->m1 - i < MF_K_GEMM_M ? p->m1 - i : MF_K_GEMM_M;
                pack_block(&p->g->a, p->a, i, rows, k, n, TILE_M, p->packed_a);
                block(p, i, rows, j, columns, k, n);
            }
            k += n;
        } while (k < p->k1);
    }
}

static mf_k_range share_of(int64_t n, int64_t i, int64_t parts, int64_t unit)
{
    int64_t units = (n + unit - 1) / unit, from = units * i / parts * unit, to = units * (i + 1) / parts * unit;
    return (mf_k_range){from < n ? from : n, to < n ? to : n};
}

/* Sums of the parts along k, in their order, into c. */
static void add_parts(const mf_k_gemm *g, const float *bias, float *c, float *sums)
{
    const int64_t size = g->batch * g->m * g->n;
    mf_k_range r = mf_k_share(g->batch * g->m, 1);
    for (int64_t row = r.from; row < r.to; row++) {
        int64_t batch = row / g->m;
        float *sum = sums + row * g->n;
        for (int64_t along = 1; along < g->parts_k; along++)
            for (int64_t j = 0; j < g->n; j++)
                sum[j] += sum[along * size + j];
        part p = {.g = g, .bias = bias ? bias + batch * g->bias_batch : NULL, .c = c + batch * g->c_batch};
        for (int64_t j = 0; j < g->n; j += TILE_N)
            finish(&p, sum + j, row % g->m, 1, j, g->n - j < TILE_N ? g->n - j : TILE_N, true, true);
    }
}

void MF_K(gemm)(const mf_k_gemm *g, const float *a, const float *b, const float *bias, float *c, float *space,
                int threads)
{
    const int64_t parts = mf_k_gemm_parts(g);
    const uint64_t each = mf_k_gemm_part_floats(g);
    float *sums = space + (uint64_t)parts * each;
#pragma omp parallel num_threads(parts < threads ? (int)parts : threads) if (parts > 1)
    {
        for (int64_t i = omp_get_thread_num(); i < parts; i += omp_get_num_threads()) {
            int64_t at = i;
            mf_k_range kr = share_of(g->k, at % g->parts_k, g->parts_k, 1);
            int64_t part_k = at % g->parts_k;
            at /= g->parts_k;
            mf_k_range nr = share_of(g->n, at % g->parts_n, g->parts_n, MF_K_GEMM_TILE_N);
            at /= g->parts_n;
            mf_k_range mr = share_of(g->m, at % g->parts_m, g->parts_m, MF_K_GEMM_TILE_M);
            at /= g->parts_m;
            mf_k_range br = share_of(g->batch, at, g->parts_batch, 1);
            part p = {.g = g, .m0 = mr.from, .m1 = mr.to, .n0 = nr.from, .n1 = nr.to, .k0 = kr.from, .k1 = kr.to};
            p.packed_b = space + (uint64_t)i * each;
            p.packed_a = p.packed_b + mf_k_gemm_packed_b_floats(g);
            p.direct = g->b.kind == MF_K_PLAIN && g->b.i_step == 1 && mr.to - mr.from <= FEW_ROWS;
            for (int64_t batch = br.from; batch < br.to; batch++) {
                p.a = a + batch * g->a.batch_step;
                p.b = b + batch * g->b.batch_step;
                p.c = c + batch * g->c_batch;
                p.bias = bias ? bias + batch * g->bias_batch : NULL;
                p.sums = g->parts_k > 1 ? sums + (part_k * g->batch + batch) * g->m * g->n : NULL;
                run_part(&p);
            }
        }
        if (g->parts_k > 1) {
#pragma omp barrier
            add_parts(g, bias, c, sums);
        }
    }
}
