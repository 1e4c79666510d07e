/* gemm.c: how a product is divided among threads, and the workspace that takes; the same for every instruction set. */
#include "ops/cpu/kernels/gemm.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t divided(int64_t n, int64_t parts, int64_t unit)
{
    int64_t units = (n + unit - 1) / unit;
    return (units + parts - 1) / parts * unit;
}

/* Cycles, roughly, of the slowest thread: products at 16 a cycle, packing at one element, sums of parts at two. */
static double cost_of(const mf_k_gemm *g, int64_t pb, int64_t pm, int64_t pn, int64_t pk)
{
    double m = (double)divided(g->m, pm, MF_K_GEMM_TILE_M), n = (double)divided(g->n, pn, MF_K_GEMM_TILE_N);
    double k = (double)divided(g->k, pk, 1), batch = (double)divided(g->batch, pb, 1);
    double again = (double)((int64_t)n + MF_K_GEMM_N - 1) / MF_K_GEMM_N;
    double cycles = batch * (m * n * k / 16 + m * k * (again < 1 ? 1 : again) + n * k);
    if (pk > 1)
        cycles += 2000 + (double)(g->batch * g->m) * (double)(g->n * (pk + 1)) / (double)(2 * pb * pm * pn * pk);
    return cycles;
}

/* The best division below `best`, with parts along k or without. */
static double choose(mf_k_gemm *g, int threads, bool along_k, double best)
{
    int64_t batches = least(g->batch, threads), most = g->k / MF_K_GEMM_K;
    for (int64_t pb = 1; pb <= batches; pb = pb < batches ? batches : pb + 1)
        for (int64_t pm = 1; pm * pb <= threads && (pm - 1) * MF_K_GEMM_TILE_M < g->m; pm++)
            for (int64_t pn = 1; pn * pm * pb <= threads && (pn - 1) * MF_K_GEMM_TILE_N < g->n; pn++) {
                int64_t pk = along_k ? least(threads / (pb * pm * pn), most) : 1;
                double cost = along_k && pk < 2 ? best : cost_of(g, pb, pm, pn, pk);
                if (cost >= best)
                    continue;
                best = cost;
                g->parts_batch = pb, g->parts_m = pm, g->parts_n = pn, g->parts_k = pk;
            }
    return best;
}

void mf_k_gemm_divide(mf_k_gemm *g, int threads)
{
    const double small = 4e4, worth = 0.8; /* done before others have woken up; sums along k take workspace */
    g->parts_batch = g->parts_m = g->parts_n = g->parts_k = 1;
    double alone = cost_of(g, 1, 1, 1, 1);
    if (alone >= small)
        choose(g, threads, true, worth * choose(g, threads, false, alone));
}

static int64_t most_k(const mf_k_gemm *g)
{
    return least(MF_K_GEMM_K, divided(g->k, g->parts_k, 1));
}

uint64_t mf_k_gemm_packed_b_floats(const mf_k_gemm *g)
{
    return (uint64_t)(most_k(g) * least(MF_K_GEMM_N, divided(g->n, g->parts_n, MF_K_GEMM_TILE_N)));
}

uint64_t mf_k_gemm_part_floats(const mf_k_gemm *g)
{
    int64_t m = least(MF_K_GEMM_M, divided(g->m, g->parts_m, MF_K_GEMM_TILE_M));
    return (mf_k_gemm_packed_b_floats(g) + (uint64_t)(most_k(g) * m) + 15) / 16 * 16;
}

uint64_t mf_k_gemm_floats(const mf_k_gemm *g)
{
    uint64_t sums = g->parts_k > 1 ? (uint64_t)(g->parts_k * g->batch * g->m) * (uint64_t)g->n : 0;
    return (uint64_t)mf_k_gemm_parts(g) * mf_k_gemm_part_floats(g) + (sums + 15) / 16 * 16;
}
