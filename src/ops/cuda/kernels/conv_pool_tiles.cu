/*
 * conv_pool_tiles.cu: convolution with pooling and the gradient of its filters on the matrix units, where everything has 16
 * bits. A block takes TALL x SEG pooled cells with the input they see in shared memory; a warp GROUP channels, NT to a thread
 * and column so that a thread's channels lie side by side.
 *
 *     forward     8 cells at a time: rows 0 to 7 of a product are their left positions, 8 to 15 their right ones, one product
 *                 for each of the two rows of positions, taps along: a thread has all four positions of a cell
 *     gradient    4 cells at a time: taps (and a row of ones, for the bias) by channels, the 16 positions along. A slope stands
 *                 at the position that won, zeros at the others
 *
 * All warps go through the same number of steps: what is too many is computed and not kept.
 */
#include "conv_pool.cuh"
#include "matrix_units.cuh"
enum { WARPS = BLOCK / LANES, NT = NTILES, GROUP = 8 * NT, GROUPS = COUT / GROUP, ABREAST = WARPS / GROUPS };
enum { ROWS = (2 * TALL - 1) * S + KH, NEEDED = (SEG - 1) * 2 * S * CIN + (S + KW) * CIN, SPAN = (NEEDED + VW - 1) / VW * VW };
static constexpr idx DEEP = ((idx)POOLED_H + TALL - 1) / TALL, TILES = (idx)w.batch * DEEP * PARTS;

struct alignas(2 * VW) several {
    uint16_t v[VW];
};

static inline tile tile_at(idx i)
{
    return {i / (PARTS * DEEP), i / PARTS % DEEP * TALL, i % PARTS * SEG};
}

/* The rows of input that a tile sees; zeros outside. Rows and their beginnings divide into vectors. */
static inline void take_rows(const args &a, const tile &t, uint16_t (*x)[SPAN])
{
    constexpr idx width = (idx)w.in[2] * CIN, across = SPAN / VW;
    idx top = t.row * 2 * S - (idx)w.before[1], left = (t.first * 2 * S - (idx)w.before[2]) * CIN;
    for (int i = (int)threadIdx.x; i < ROWS * (int)across; i += BLOCK) {
        idx row = top + i / across, at = left + i % across * VW;
        several v = {};
        if (row >= 0 && row < (idx)w.in[1] && at >= 0 && at < width)
            v = *(const several *)((const uint16_t *)a.in[X_IN] + (t.n * (idx)w.in[1] + row) * width + at);
        *(several *)&x[i / across][i % across * VW] = v;
    }
}

/* Where a tap lies behind the corner of what its position sees; -1: there is no such tap. */
static inline int tap_at(int tap)
{
    return tap < M ? tap / (int)(KW * CIN) * SPAN + tap % (int)(KW * CIN) : -1;
}

static inline uint32_t both(uint16_t low, uint16_t high)
{
    return low | (uint32_t)high << 16;
}

#ifdef FORWARD
enum { ALONG = (M + 15) / 16, STEPS = (TALL * SEG / 8 + ABREAST - 1) / ABREAST };

static inline uint32_t two(const uint16_t *from, int first, int second)
{
    return both(first < 0 ? 0 : from[first], second < 0 ? 0 : from[second]);
}

static inline uint32_t two_filters(const args &a, int tap, idx channel)
{
    const uint16_t *f = (const uint16_t *)a.in[F_IN];
    return both(tap < M ? f[tap * COUT + channel] : 0, tap + 1 < M ? f[(tap + 1) * COUT + channel] : 0);
}

ENTRY convpool(args a)
{
    __shared__ several rows[ROWS][SPAN / VW];
    uint16_t(*x)[SPAN] = (uint16_t(*)[SPAN])rows;
    const int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES, g = lane / 4, t = lane % 4;
    const int abreast = warp / GROUPS;
    const idx own = (idx)(warp % GROUPS) * GROUP, mine = own + t * 2 * NT;
    uint32_t b[ALONG][NT][2];
    int at[ALONG][4];
    float bias[2 * NT];
    UNROLLED for (int k = 0; k < ALONG; k++)
    {
        UNROLLED for (int j = 0; j < NT; j++) UNROLLED for (int half = 0; half < 2; half++) b[k][j][half] =
            two_filters(a, k * 16 + half * 8 + 2 * t, own + g / 2 * 2 * NT + j * 2 + g % 2);
        UNROLLED for (int i = 0; i < 4; i++) at[k][i] = tap_at(k * 16 + i / 2 * 8 + 2 * t + i % 2);
    }
    EACH_OF(2 * NT) bias[k] = HAS_BIAS ? (float)load_one<in_dtype[B_IN]>(a.in[B_IN], mine + k) : 0;
    for (idx number = (idx)blockIdx.x; number < TILES; number += (idx)POOL_BLOCKS) {
        const tile top = tile_at(number);
        __syncthreads();
        take_rows(a, top, x);
        __syncthreads();
        for (int i = 0; i < STEPS; i++) {
            const int s = abreast + i * ABREAST, step = s < TALL * SEG / 8 ? s : 0;
            const int down = step / (SEG / 8), cell = step % (SEG / 8) * 8 + g;
            float sum[2][NT][4];
            UNROLLED for (int y = 0; y < 2; y++)
            {
                const uint16_t *left = &x[(down * 2 + y) * (int)S][cell * 2 * (int)(S * CIN)], *right = left + S * CIN;
                UNROLLED for (int j = 0; j < NT; j++) EACH_OF(4) sum[y][j][k] = bias[j * 2 + k % 2];
                UNROLLED for (int k = 0; k < ALONG; k++)
                {
                    const uint32_t f[4] = {two(left, at[k][0], at[k][1]), two(right, at[k][0], at[k][1]),
                                           two(left, at[k][2], at[k][3]), two(right, at[k][2], at[k][3])};
                    UNROLLED for (int j = 0; j < NT; j++) multiply(sum[y][j], f, b[k][j][0], b[k][j][1]);
                }
            }
            vector<out_dtype[Z_OUT], 2 * NT> z;
            vector<MF_U8, 2 * NT> won;
            EACH_OF(2 * NT)
            {
                int winner;
                float best = largest(sum[0][k / 2][k % 2], sum[0][k / 2][2 + k % 2], sum[1][k / 2][k % 2], sum[1][k / 2][2 + k % 2], winner);
                z.v[k] = narrow<out_dtype[Z_OUT]>((real)activated(best));
                won.v[k] = (uint8_t)winner;
            }
            const tile here = {top.n, top.row + down, top.first};
            if (s >= TALL * SEG / 8 || here.row >= (idx)POOLED_H || top.first + cell >= (idx)POOLED_W)
                continue;
            idx to = pooled_at(here, top.first + cell, mine);
            *(vector<out_dtype[Z_OUT], 2 * NT> *)((stored<out_dtype[Z_OUT]>::type *)a.out[Z_OUT] + to) = z;
            if (HAS_WINNERS)
                *(vector<MF_U8, 2 * NT> *)((uint8_t *)a.out[W_OUT] + to) = won;
        }
    }
}
#else
enum { UP = (M + 16) / 16, STEPS = (TALL * SEG / 4 + ABREAST - 1) / ABREAST };
static constexpr uint16_t ONE = HALF == MF_BF16 ? 0x3f80 : 0x3c00;

/* Of one tap: what a position sees by it, and the position to the right of that. */
static inline uint32_t seen(const uint16_t *corner, int at, bool ones)
{
    return at >= 0 ? both(corner[at], corner[at + (int)(S * CIN)]) : ones ? both(ONE, ONE) : 0;
}

ENTRY poolgrad(args a)
{
    __shared__ several rows[ROWS][SPAN / VW];
    uint16_t(*x)[SPAN] = (uint16_t(*)[SPAN])rows;
    __shared__ float joined[(M + 1) * COUT];
    const int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES, g = lane / 4, t = lane % 4;
    const int abreast = warp / GROUPS;
    const idx own = (idx)(warp % GROUPS) * GROUP;
    int at[UP][2];
    bool ones[UP][2];
    float sum[UP][NT][4] = {};
    UNROLLED for (int i = 0; i < UP * 2; i++)
    {
        at[i / 2][i % 2] = tap_at(i * 8 + g);
        ones[i / 2][i % 2] = i * 8 + g == M;
    }
    for (idx number = (idx)blockIdx.x; number < TILES; number += (idx)POOL_BLOCKS) {
        const tile top = tile_at(number);
        __syncthreads();
        take_rows(a, top, x);
        __syncthreads();
#ifndef MF_SHIM
#pragma unroll 2
#endif
        for (int i = 0; i < STEPS; i++) {
            const int s = abreast + i * ABREAST, step = s < TALL * SEG / 4 ? s : 0;
            const int down = step / (SEG / 4), cell = step % (SEG / 4) * 4 + t;
            const tile here = {top.n, top.row + down, top.first};
            vector<HALF, NT> slope = {};
            vector<in_dtype[Z_IN], NT> z = {};
            vector<MF_U8, NT> won = {};
            if (s < TALL * SEG / 4 && here.row < (idx)POOLED_H && top.first + cell < (idx)POOLED_W) {
                idx from = pooled_at(here, top.first + cell, own + g * NT);
                fetch_vector(slope, a.in[D_IN], from);
                fetch_vector(won, a.in[W_IN], from);
                if (ACTIVATION)
                    fetch_vector(z, a.in[Z_IN], from);
            }
            const uint16_t *corner = &x[down * 2 * (int)S][cell * 2 * (int)(S * CIN)], *below = corner + S * SPAN;
            uint32_t f[UP][4];
            UNROLLED for (int k = 0; k < UP; k++) UNROLLED for (int half = 0; half < 2; half++)
            {
                f[k][half] = seen(corner, at[k][half], ones[k][half]);
                f[k][2 + half] = seen(below, at[k][half], ones[k][half]);
            }
            UNROLLED for (int j = 0; j < NT; j++)
            {
                real v = widen<in_dtype[Z_IN]>(z.v[j]);
                uint16_t d = ACTIVATION && !(v > 0 && (ACTIVATION != 6 || v < 6)) ? 0 : slope.v[j];
                uint32_t upper = both(won.v[j] == 0 ? d : 0, won.v[j] == 1 ? d : 0);
                uint32_t lower = both(won.v[j] == 2 ? d : 0, won.v[j] == 3 ? d : 0);
                UNROLLED for (int k = 0; k < UP; k++) multiply(sum[k][j], f[k], upper, lower);
            }
        }
    }
    for (int turn = 0; turn < ABREAST; turn++) {
        __syncthreads();
        UNROLLED for (int n = 0; n < UP * NT * 4; n++)
        {
            const int k = n / (NT * 4), j = n / 4 % NT, c = n % 4, tap = k * 16 + c / 2 * 8 + g;
            const idx to = tap * COUT + own + (2 * t + c % 2) * NT + j;
            if (abreast == turn && tap <= M)
                joined[to] = sum[k][j][c] + (turn ? joined[to] : 0);
        }
    }
    __syncthreads();
    double *left = (double *)((char *)a.workspace + POOL_AT) + (idx)blockIdx.x * (M + 1) * COUT;
    for (int i = (int)threadIdx.x; i < (M + 1) * (int)COUT; i += BLOCK)
        left[i] = (double)joined[i];
}
#endif
