/*
 * norm_back.cu: the gradient of a layer normalization, with what dx is added to (norm_back.h). TEAM threads share a row; a thread has
 * the same columns of every row it sees, so that gamma and the sums over rows (of dgamma, dbeta and of the result) stay in
 * its registers. AT_ONCE rows are read before the first is computed: the card's memory is as quick as reads are under way.
 * What blocks have summed is joined in a fixed order. A row is read before it is written, and by no other team: the results may
 * lie over the operands.
 */
#include "program.cuh"
static constexpr idx N = (idx)ROW_SIZE;
static constexpr int TEAMS = BLOCK / TEAM;

#ifdef MF_SHIM
#define EACH_ITEM(j) for (idx it = 0, j = lane * RV; it < ITEMS; it++, j += TEAM * RV)
#else
#define EACH_ITEM(j) _Pragma("unroll") for (idx it = 0, j = lane * RV; it < ITEMS; it++, j += TEAM * RV)
#endif

/* Two sums for each row at hand, over the team, in a fixed order; every thread gets them. */
static inline void team_sums(real (&s)[AT_ONCE][2], int turn)
{
#ifdef MF_SHIM
    for (int u = 0; u < AT_ONCE; u++)
        for (int n = 0; n < 2; n++)
            s[u][n] = shim_over_team(s[u][n], [](real a, real b) { return a + b; }, TEAM);
#else
    EACH_ROW(AT_ONCE)
    EACH_OF(2)
    {
#pragma unroll
        for (int step = (TEAM < 32 ? TEAM : 32) / 2; step > 0; step /= 2)
            s[u][k] += __shfl_xor_sync(0xffffffffu, s[u][k], step);
    }
    if constexpr (TEAM > 32) {
        constexpr int WARPS = TEAM / 32;
        __shared__ real part[2][BLOCK / 32][AT_ONCE][2]; /* by turns: one barrier is enough */
        if (threadIdx.x % 32 == 0)
            EACH_ROW(AT_ONCE)
        EACH_OF(2) part[turn][threadIdx.x / 32][u][k] = s[u][k];
        __syncthreads();
        int team = (int)threadIdx.x / TEAM < TEAMS ? (int)threadIdx.x / TEAM : 0;
        EACH_ROW(AT_ONCE)
        EACH_OF(2)
        {
            real v = part[turn][team * WARPS][u][k];
            for (int w = 1; w < WARPS; w++)
                v += part[turn][team * WARPS + w][u][k];
            s[u][k] = v;
        }
    }
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2) back(args a)
{
    const idx lane = (idx)threadIdx.x % TEAM, team = (idx)threadIdx.x / TEAM;
    real gamma[ITEMS][RV], sums[NACC][ITEMS][RV] = {};
    EACH_ITEM(j)
    {
        EACH_OF(RV) gamma[it][k] = 1;
        if (HAS_GAMMA && j < N)
            load_vector<in_dtype[GAMMA]>(gamma[it], a.in[GAMMA], j);
    }
    int turn = 0;
    for (idx first = (idx)blockIdx.x * (TEAMS * AT_ONCE); first < (idx)ROWS;
         first += (idx)BACK_BLOCKS * (TEAMS * AT_ONCE), turn ^= 1) {
        vector<in_dtype[DY], RV> dy[AT_ONCE][ITEMS];
        vector<in_dtype[X], RV> x[AT_ONCE][ITEMS];
        vector<in_dtype[ADDEND0], RV> more[HAS_ADDEND0 ? AT_ONCE : 1][ITEMS];
        vector<in_dtype[ADDEND1], RV> most[HAS_ADDEND1 ? AT_ONCE : 1][ITEMS];
        real mean[AT_ONCE], rstd[AT_ONCE], s[AT_ONCE][2] = {};
        bool here[AT_ONCE];
        EACH_ROW(AT_ONCE)
        {
            idx r = first + u * TEAMS + team;
            here[u] = team < TEAMS && r < (idx)ROWS;
            mean[u] = rstd[u] = 0;
            if (here[u]) {
                if (HAS_MEAN)
                    mean[u] = load_one<in_dtype[MEAN]>(a.in[MEAN], r);
                rstd[u] = load_one<in_dtype[RSTD]>(a.in[RSTD], r);
                EACH_ITEM(j)
                if (j < N) {
                    fetch_vector(dy[u][it], a.in[DY], r * N + j);
                    fetch_vector(x[u][it], a.in[X], r * N + j);
                    if (HAS_ADDEND0)
                        fetch_vector(more[HAS_ADDEND0 ? u : 0][it], a.in[ADDEND0], r * N + j);
                    if (HAS_ADDEND1)
                        fetch_vector(most[HAS_ADDEND1 ? u : 0][it], a.in[ADDEND1], r * N + j);
                }
            }
        }
        EACH_ROW(AT_ONCE)
        if (here[u]) {
            EACH_ITEM(j)
            if (j < N) {
                real d[RV], v[RV];
                widen_vector(d, dy[u][it]);
                widen_vector(v, x[u][it]);
                EACH_OF(RV)
                {
                    real g = d[k] * gamma[it][k];
                    s[u][0] += g;
                    s[u][1] += g * ((v[k] - mean[u]) * rstd[u]);
                }
            }
        }
        team_sums(s, turn);
        EACH_ROW(AT_ONCE)
        if (here[u]) {
            idx r = first + u * TEAMS + team;
            real middle = RMS ? 0 : s[u][0] / (real)N, product = s[u][1] / (real)N;
            EACH_ITEM(j)
            if (j < N) {
                real d[RV], v[RV], dx[RV];
                widen_vector(d, dy[u][it]);
                widen_vector(v, x[u][it]);
                EACH_OF(RV)
                {
                    real normal = (v[k] - mean[u]) * rstd[u];
                    dx[k] = rstd[u] * (d[k] * gamma[it][k] - middle - normal * product);
                    if (HAS_DGAMMA)
                        sums[0][it][k] += d[k] * normal;
                    if (HAS_DBETA)
                        sums[DBETA_AT][it][k] += d[k];
                }
                if (HAS_DX)
                    store_vector<out_dtype[DX], false>(a.out[DX], r * N + j, dx);
                if (HAS_ADDEND0) {
                    widen_vector(v, more[HAS_ADDEND0 ? u : 0][it]);
                    EACH_OF(RV) dx[k] += v[k];
                }
                if (HAS_ADDEND1) {
                    widen_vector(v, most[HAS_ADDEND1 ? u : 0][it]);
                    EACH_OF(RV) dx[k] += v[k];
                }
                if (HAS_SUM)
                    store_vector<out_dtype[SUM], false>(a.out[SUM], r * N + j, dx);
                if (HAS_TOTAL)
                    EACH_OF(RV) sums[TOTAL_AT][it][k] += dx[k];
            }
        }
    }
    __shared__ real part[NACC * RV][BLOCK];
    double *to = (double *)((char *)a.workspace + BACK_AT) + (idx)blockIdx.x * N * NACC;
    EACH_ITEM(j)
    {
        __syncthreads();
        for (int n = 0; n < NACC; n++)
            EACH_OF(RV) part[n * RV + k][threadIdx.x] = sums[n][it][k];
        __syncthreads();
        if (team == 0 && j < N)
            for (int n = 0; n < NACC; n++)
                EACH_OF(RV)
        {
            real v = 0;
            for (int t = 0; t < TEAMS; t++)
                v += part[n * RV + k][t * TEAM + lane];
            to[(j + k) * NACC + n] = (double)v;
        }
    }
}

/* BACK_JOIN columns a block, the others of its threads share what blocks left. */
ENTRY backjoin(args a)
{
    constexpr int lanes = BLOCK / BACK_JOIN;
    __shared__ double part[NACC][BLOCK];
    idx j = (idx)blockIdx.x * BACK_JOIN + (idx)threadIdx.x % BACK_JOIN, lane = (idx)threadIdx.x / BACK_JOIN;
    double sum[NACC] = {};
    for (idx b = lane; b < (idx)BACK_BLOCKS && j < N; b += lanes)
        for (int n = 0; n < NACC; n++)
            sum[n] += ((const double *)((char *)a.workspace + BACK_AT))[(b * N + j) * NACC + n];
    for (int n = 0; n < NACC; n++)
        part[n][threadIdx.x] = sum[n];
    __syncthreads();
    for (int rows = lanes / 2; rows > 0; rows /= 2) {
        if (lane < rows)
            for (int n = 0; n < NACC; n++)
                part[n][threadIdx.x] += part[n][threadIdx.x + rows * BACK_JOIN];
        __syncthreads();
    }
    if (lane > 0 || j >= N)
        return;
    if (HAS_DGAMMA)
        store_one<out_dtype[DGAMMA], DGAMMA_ADDS>(a.out[DGAMMA], j, (real)part[0][threadIdx.x]);
    if (HAS_DBETA)
        store_one<out_dtype[DBETA], DBETA_ADDS>(a.out[DBETA], j, (real)part[DBETA_AT][threadIdx.x]);
    if (HAS_TOTAL)
        store_one<out_dtype[TOTAL], TOTAL_ADDS>(a.out[TOTAL], j, (real)part[TOTAL_AT][threadIdx.x]);
}
