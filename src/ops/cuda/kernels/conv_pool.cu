/*
 * conv_pool.cu: a convolution of few input channels with the maximum pooling (2 x 2) and the activation behind it, and the
 * gradient of its filters from the pooled slopes and the winners: the large tensor between them is in nobody's memory.
 *
 *     a block     takes tiles of SEG pooled cells of a row, with the input they see in shared memory; a thread has a channel,
 *                 and of the cells PAIR side by side at a time: what it reads of the input is the same for a warp
 *     forward     the filters of its channel in registers; 4 sums a cell, the largest of them, its number
 *     gradient    the sums of its channel in registers, over all cells of the block; slopes of cells that did not win are 0.
 *                 Blocks leave what they have in the workspace, and pooljoin joins it in a fixed order
 */
#include "conv_pool.cuh"
static constexpr int PAIR = 2, ROWS = (int)(S + KH);
static constexpr int CHANNELS = BLOCK >= COUT ? (int)COUT : BLOCK, SLOTS = BLOCK / CHANNELS;
static constexpr int SEEN = (int)(((2 * PAIR - 1) * S + KW) * CIN), FOURS = (SEEN + 3) / 4, STEP = (int)(PAIR * 2 * S * CIN);
static constexpr int SPAN = (SEG / PAIR - 1) * STEP + FOURS * 4;
static constexpr idx TILES = (idx)w.batch * (idx)POOLED_H * PARTS;
static_assert(STEP % 4 == 0, "what a thread reads begins at a multiple of 16 bytes");

struct alignas(16) four {
    float v[4];
};

static inline tile tile_at(idx i)
{
    return {i / (PARTS * (idx)POOLED_H), i / PARTS % (idx)POOLED_H, i % PARTS * SEG};
}

/* The rows of input that a tile sees; zeros outside. */
static inline void take_rows(const args &a, const tile &t, float (*x)[SPAN])
{
    constexpr idx width = (idx)w.in[2] * CIN;
    idx top = t.row * 2 * S - (idx)w.before[1], left = (t.first * 2 * S - (idx)w.before[2]) * CIN;
    for (int i = (int)threadIdx.x; i < ROWS * SPAN; i += BLOCK) {
        idx row = top + i / SPAN, at = left + i % SPAN;
        x[i / SPAN][i % SPAN] = row >= 0 && row < (idx)w.in[1] && at >= 0 && at < width
                                    ? (float)load_one<in_dtype[X_IN]>(a.in[X_IN], (t.n * (idx)w.in[1] + row) * width + at)
                                    : 0;
    }
}

static inline void see(float (&v)[FOURS * 4], const four *row)
{
    EACH_OF(FOURS * 4) v[k] = row[k / 4].v[k % 4];
}

/* For each of the rows a pair of cells sees, its values in v; then for each tap of each of the 4 * PAIR sums that reads it: sum
 * `at` of output row `down`, tap number `tap`, the value's place in v. */
#define EACH_PRODUCT(text)                                                                                             \
    UNROLLED for (int r = 0; r < ROWS; r++) {                                                                          \
        float v[FOURS * 4];                                                                                            \
        see(v, &rows[r][p * (STEP / 4)]);                                                                              \
        UNROLLED for (int down = 0; down < 2; down++) {                                                                \
            if (r - down * (int)S < 0 || r - down * (int)S >= (int)KH)                                                 \
                continue;                                                                                              \
            UNROLLED for (int at = 0; at < 2 * PAIR; at++) {                                                           \
                UNROLLED for (int i = 0; i < (int)(KW * CIN); i++) {                                                   \
                    const int tap = (r - down * (int)S) * (int)(KW * CIN) + i, place = at * (int)(S * CIN) + i;        \
                    text;                                                                                              \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

#ifdef FORWARD
ENTRY convpool(args a)
{
    __shared__ four rows[ROWS][SPAN / 4];
    float(*x)[SPAN] = (float(*)[SPAN])rows;
    const int slot = (int)threadIdx.x / CHANNELS;
    for (idx c = (idx)threadIdx.x % CHANNELS; c < COUT; c += CHANNELS) {
        float f[M];
        EACH_OF(M) f[k] = (float)load_one<in_dtype[F_IN]>(a.in[F_IN], k * COUT + c);
        const float bias = HAS_BIAS ? (float)load_one<in_dtype[B_IN]>(a.in[B_IN], c) : 0;
        for (idx i = (idx)blockIdx.x; i < TILES; i += (idx)POOL_BLOCKS) {
            const tile t = tile_at(i);
            __syncthreads();
            take_rows(a, t, x);
            __syncthreads();
            for (int p = slot; p < SEG / PAIR && t.first + p * PAIR < (idx)POOLED_W; p += SLOTS) {
                float sum[2][2 * PAIR];
                for (int d = 0; d < 2; d++)
                    EACH_OF(2 * PAIR) sum[d][k] = bias;
                EACH_PRODUCT(sum[down][at] += v[place] * f[tap])
                UNROLLED for (int n = 0; n < PAIR; n++)
                {
                    idx cell = t.first + p * PAIR + n;
                    int winner;
                    float best = largest(sum[0][2 * n], sum[0][2 * n + 1], sum[1][2 * n], sum[1][2 * n + 1], winner);
                    if (cell >= (idx)POOLED_W)
                        continue;
                    store_one<out_dtype[Z_OUT], false>(a.out[Z_OUT], pooled_at(t, cell, c), (real)activated(best));
                    if (HAS_WINNERS)
                        ((uint8_t *)a.out[W_OUT])[pooled_at(t, cell, c)] = (uint8_t)winner;
                }
            }
        }
    }
}
#else
ENTRY poolgrad(args a)
{
    __shared__ four rows[ROWS][SPAN / 4];
    float(*x)[SPAN] = (float(*)[SPAN])rows;
    __shared__ float joined[M + 1][CHANNELS];
    const int slot = (int)threadIdx.x / CHANNELS, mine = (int)threadIdx.x % CHANNELS;
    for (idx c = mine; c < COUT; c += CHANNELS) {
        float sums[M + 1] = {};
        for (idx i = (idx)blockIdx.x; i < TILES; i += (idx)POOL_BLOCKS) {
            const tile t = tile_at(i);
            __syncthreads();
            take_rows(a, t, x);
            __syncthreads();
            for (int p = slot; p < SEG / PAIR && t.first + p * PAIR < (idx)POOLED_W; p += SLOTS) {
                float slope[2][2 * PAIR];
                UNROLLED for (int n = 0; n < PAIR; n++)
                {
                    idx cell = t.first + p * PAIR + n, from = pooled_at(t, cell < (idx)POOLED_W ? cell : 0, c);
                    float g = (float)load_one<in_dtype[D_IN]>(a.in[D_IN], from);
                    int winner = ((const uint8_t *)a.in[W_IN])[from];
                    if (ACTIVATION) {
                        float z = (float)load_one<in_dtype[Z_IN]>(a.in[Z_IN], from);
                        g = z > 0 && (ACTIVATION != 6 || z < 6) ? g : 0;
                    }
                    g = cell < (idx)POOLED_W ? g : 0;
                    sums[M] += g;
                    UNROLLED for (int q = 0; q < 4; q++)
                        slope[q / 2][2 * n + q % 2] = winner == q ? g : 0;
                }
                EACH_PRODUCT(sums[tap] += v[place] * slope[down][at])
            }
        }
        for (int k = 0; k < SLOTS; k++) {
            __syncthreads();
            for (int m = 0; m <= M && slot == k; m++)
                joined[m][mine] = sums[m] + (k ? joined[m][mine] : 0);
        }
        __syncthreads();
        double *left = (double *)((char *)a.workspace + POOL_AT) + (idx)blockIdx.x * (M + 1) * COUT;
        for (int m = 0; m <= M && slot == 0; m++)
            left[m * COUT + c] = (double)joined[m][mine];
    }
}
#endif
