/*
 * rnn_tiles.cuh: LSTM and its gradient in 16 bits on the matrix units. A block has SAMPLES samples and goes through all
 * steps by itself: nothing is exchanged between blocks. A warp has EACH tiles of 8 units with all four gates of theirs, so
 * that a thread has everything of its cells: state, slopes and sums stay in its registers from step to step.
 *
 *     forward    gates (16 x 4n) = z + h (16 x n, shared memory) by the matrix (n x 4n)
 *     backward   dh (16 x n) = slopes (16 x 4n, shared memory) by the matrix turned around (4n x n)
 *
 * The matrix does not fit into a multiprocessor; it is read anew in each step from the cache, in the order in which lanes
 * want it, 16 bytes at a time: `turn` arranges it before. That is what a step takes (512 KiB for 256 units).
 */
static constexpr mf_dtype HALF = in_dtype[U_IN];
#include "matrix_units.cuh"

enum { SAMPLES = 16, N = (int)UNITS, WARPS = BLOCK / LANES, TILE_COUNT = N / 8, EACH = (TILE_COUNT + WARPS - 1) / WARPS };
enum { BACK = TILES == 2, DEPTH = BACK ? 4 * N : N, PAIRS = DEPTH / 32, PITCH = DEPTH + 8, SIDES = BACK ? 1 : 4 };
struct alignas(16) words {
    uint32_t w[4];
};

/* Word w of a lane: two numbers at depth (pair * 2 + w / 2) * 16 + w % 2 * 8 + lane % 4 * 2, of the tile's column lane / 4. */
ENTRY turn(args a)
{
    idx i = THREAD;
    if (i >= n * width / 8)
        return;
    int lane = (int)(i % LANES), side = (int)(i / LANES % SIDES), pair = (int)(i / LANES / SIDES % PAIRS);
    int unit = (int)(i / LANES / SIDES / PAIRS) * 8 + lane / 4;
    const uint16_t *u = (const uint16_t *)a.in[U_IN];
    words r;
    for (int w = 0; w < 4; w++) {
        int k = (pair * 2 + w / 2) * 16 + w % 2 * 8 + lane % 4 * 2;
        idx first = BACK ? unit * width + k : k * width + side * n + unit, second = BACK ? first + 1 : first + width;
        r.w[w] = u[first] | (uint32_t)u[second] << 16;
    }
    ((words *)((char *)a.workspace + TURNED_AT))[i] = r;
}

static inline float quotient_of_1(float x)
{
#ifdef MF_SHIM
    return 1 / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

static inline float sigmoid_of(float x)
{
    return quotient_of_1(1 + power_of_2(-1.44269504088896340736f * x));
}

static inline float tanh_of(float x)
{
    return 1 - 2 * quotient_of_1(1 + power_of_2(2 * 1.44269504088896340736f * x));
}

/* This thread's cells: tile t, element i: sample row(i), unit and the one behind it (i % 2). */
struct place {
    int lane, warp;
    bool there[2], works[EACH];
    idx sample[2];
    int tile[EACH];
    inline place()
    {
        lane = (int)threadIdx.x % LANES;
        warp = (int)threadIdx.x / LANES;
        for (int half = 0; half < 2; half++) {
            sample[half] = (idx)blockIdx.x * SAMPLES + lane / 4 + half * 8;
            there[half] = sample[half] < BATCH;
        }
        for (int t = 0; t < EACH; t++) { /* a warp without a tile works for nothing: all meet at the same places */
            int mine = warp * EACH + t;
            works[t] = mine < TILE_COUNT;
            tile[t] = works[t] ? mine : TILE_COUNT - 1;
        }
    }
    inline int unit(int t) const
    {
        return tile[t] * 8 + lane % 4 * 2;
    }
    inline bool has(int t, int half) const
    {
        return there[half] && works[t];
    }
};

static inline uint32_t pair_at(const void *from, idx i, bool there)
{
    return there ? *(const uint32_t *)(const void *)((const uint16_t *)from + i) : 0;
}

static inline void pair_to(void *to, idx i, float low, float high)
{
    *(uint32_t *)(void *)((uint16_t *)to + i) = pack(low, high);
}

/* sum[t][side] = rows of shared memory by this warp's tiles of the matrix */
static inline void by_matrix(const args &a, const place &p, float (*sum)[SIDES][4], const uint16_t *rows)
{
    const words *matrix = (const words *)((const char *)a.workspace + TURNED_AT);
    const uint16_t *at = rows + p.lane % 16 * PITCH + p.lane / 16 * 8;
#pragma unroll
    for (int t = 0; t < EACH; t++)
#pragma unroll
        for (int side = 0; side < SIDES; side++)
            sum[t][side][0] = sum[t][side][1] = sum[t][side][2] = sum[t][side][3] = 0;
#pragma unroll 2
    for (int pair = 0; pair < PAIRS; pair++) {
        uint32_t f[2][4];
        words b[EACH][SIDES];
#pragma unroll
        for (int t = 0; t < EACH; t++)
#pragma unroll
            for (int side = 0; side < SIDES; side++)
                b[t][side] = matrix[((p.tile[t] * PAIRS + pair) * SIDES + side) * LANES + p.lane];
        load_tiles<false>(f[0], at + pair * 32);
        load_tiles<false>(f[1], at + pair * 32 + 16);
#pragma unroll
        for (int t = 0; t < EACH; t++)
#pragma unroll
            for (int side = 0; side < SIDES; side++) {
                multiply(sum[t][side], f[0], b[t][side].w[0], b[t][side].w[1]);
                multiply(sum[t][side], f[1], b[t][side].w[2], b[t][side].w[3]);
            }
    }
}

#if TILES == 1
ENTRY k0(args a)
{
    alignas(16) __shared__ uint16_t state[2][SAMPLES * PITCH];
    const place p;
    float h[EACH][4], c[EACH][4];
    for (int t = 0; t < EACH; t++)
        for (int i = 0; i < 4; i++) {
            idx at = p.sample[i / 2] * n + p.unit(t) + i % 2;
            h[t][i] = in_here[H0_IN] && p.there[i / 2] ? (float)get<H0_IN>(a, at) : 0;
            c[t][i] = in_here[C0_IN] && p.there[i / 2] ? (float)get<C0_IN>(a, at) : 0;
            if (i % 2 && p.works[t])
                pair_to(state[0], (p.lane / 4 + i / 2 * 8) * PITCH + p.unit(t), h[t][i - 1], h[t][i]);
        }
    __syncthreads();
    for (idx s = 0; s < T; s++) {
        idx cell[2] = {p.sample[0] * T + time_of(s), p.sample[1] * T + time_of(s)};
        bool masked[2];
        uint32_t z[EACH][4][2];
        float sum[EACH][SIDES][4];
        for (int half = 0; half < 2; half++)
            masked[half] = p.there[half] && is_masked(a, cell[half]);
#pragma unroll
        for (int t = 0; t < EACH; t++)
#pragma unroll
            for (int g = 0; g < 8; g++)
                z[t][g / 2][g % 2] = pair_at(a.in[0], cell[g % 2] * width + g / 2 * n + p.unit(t), p.there[g % 2]);
        by_matrix(a, p, sum, state[s % 2]);
#pragma unroll
        for (int t = 0; t < EACH; t++) {
            float gate[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool off = masked[i / 2];
                for (int g = 0; g < 4; g++) {
                    float x = sum[t][g][i] + unpack(z[t][g][i / 2], i % 2);
                    gate[g][i] = off ? 0 : g == 2 ? tanh_of(x) : sigmoid_of(x);
                }
                c[t][i] = off ? c[t][i] : gate[1][i] * c[t][i] + gate[0][i] * gate[2][i];
                h[t][i] = off ? h[t][i] : gate[3][i] * tanh_of(c[t][i]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int i = half * 2;
                if (p.works[t])
                    pair_to(state[(s + 1) % 2], (p.lane / 4 + half * 8) * PITCH + p.unit(t), h[t][i], h[t][i + 1]);
                if (!p.has(t, half))
                    continue;
                if (out_here[0])
                    pair_to(a.out[0], cell[half] * n + p.unit(t), h[t][i], h[t][i + 1]);
                for (int g = 0; out_here[1] && g < 4; g++)
                    pair_to(a.out[1], cell[half] * width + g * n + p.unit(t), gate[g][i], gate[g][i + 1]);
                if (out_here[2])
                    pair_to(a.out[2], cell[half] * n + p.unit(t), c[t][i], c[t][i + 1]);
            }
        }
        __syncthreads();
    }
    for (int t = 0; t < EACH; t++)
        for (int i = 0; i < 4; i++) {
            idx at = p.sample[i / 2] * n + p.unit(t) + i % 2;
            if (out_here[H_LAST_OUT] && p.has(t, i / 2))
                set<H_LAST_OUT>(a, at, h[t][i]);
            if (out_here[C_LAST_OUT] && p.has(t, i / 2))
                set<C_LAST_OUT>(a, at, c[t][i]);
        }
}

#else
/* What forward left of a step; fetched while the step behind it is at work. */
struct saved {
    uint32_t dy[EACH][2], gate[EACH][4][2], c[EACH][2];
};

static inline void fetch(const args &a, const place &p, idx s, saved *v)
{
#pragma unroll
    for (int t = 0; t < EACH; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bool there = p.there[half] && s >= 0;
            idx cell = p.sample[half] * T + time_of(s);
            v->dy[t][half] = pair_at(a.in[0], cell * n + p.unit(t), there && in_here[0]);
            v->c[t][half] = pair_at(a.in[3], cell * n + p.unit(t), there);
            for (int g = 0; g < 4; g++)
                v->gate[t][g][half] = pair_at(a.in[2], cell * width + g * n + p.unit(t), there);
            if (s < 0 && in_here[6] && p.there[half])
                v->c[t][half] = pack((float)get<6>(a, p.sample[half] * n + p.unit(t)), (float)get<6>(a, p.sample[half] * n + p.unit(t) + 1));
        }
}

ENTRY k0(args a)
{
    alignas(16) __shared__ uint16_t slopes[SAMPLES * PITCH];
    const place p;
    float dh[EACH][4], dc[EACH][4];
    saved now, next;
    for (int t = 0; t < EACH; t++)
        for (int i = 0; i < 4; i++) {
            idx at = p.sample[i / 2] * n + p.unit(t) + i % 2;
            dh[t][i] = in_here[DH_LAST_IN] && p.there[i / 2] ? (float)get<DH_LAST_IN>(a, at) : 0;
            dc[t][i] = in_here[DC_LAST_IN] && p.there[i / 2] ? (float)get<DC_LAST_IN>(a, at) : 0;
        }
    fetch(a, p, T - 1, &now);
    for (idx s = T - 1; s >= 0; s--) {
        idx cell[2] = {p.sample[0] * T + time_of(s), p.sample[1] * T + time_of(s)};
        bool masked[2];
        float sum[EACH][SIDES][4];
        for (int half = 0; half < 2; half++)
            masked[half] = p.there[half] && is_masked(a, cell[half]);
        fetch(a, p, s - 1, &next);
#pragma unroll
        for (int t = 0; t < EACH; t++) {
            float d[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int half = i / 2, odd = i % 2;
                float in = unpack(now.gate[t][0][half], odd), keep = unpack(now.gate[t][1][half], odd);
                float g = unpack(now.gate[t][2][half], odd), out = unpack(now.gate[t][3][half], odd);
                float y = tanh_of(unpack(now.c[t][half], odd)), before = unpack(next.c[t][half], odd);
                dh[t][i] += unpack(now.dy[t][half], odd);
                float dcell = dc[t][i] + dh[t][i] * out * (1 - y * y);
                bool off = masked[half];
                d[0][i] = off ? 0 : dcell * g * in * (1 - in);
                d[1][i] = off ? 0 : dcell * before * keep * (1 - keep);
                d[2][i] = off ? 0 : dcell * in * (1 - g * g);
                d[3][i] = off ? 0 : dh[t][i] * y * out * (1 - out);
                dc[t][i] = off ? dc[t][i] : dcell * keep;
            }
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int g = 0; g < 4; g++) {
                    if (p.works[t])
                        pair_to(slopes, (p.lane / 4 + half * 8) * PITCH + g * N + p.unit(t), d[g][half * 2], d[g][half * 2 + 1]);
                    if (p.has(t, half))
                        pair_to(a.out[0], cell[half] * width + g * n + p.unit(t), d[g][half * 2], d[g][half * 2 + 1]);
                }
        }
        __syncthreads();
        by_matrix(a, p, sum, slopes);
        for (int t = 0; t < EACH; t++)
            for (int i = 0; i < 4; i++)
                dh[t][i] = masked[i / 2] ? dh[t][i] : sum[t][0][i];
        now = next;
        __syncthreads();
    }
    for (int t = 0; t < EACH; t++)
        for (int i = 0; i < 4; i++) {
            idx at = p.sample[i / 2] * n + p.unit(t) + i % 2;
            if (out_here[DH0_OUT] && p.has(t, i / 2))
                set<DH0_OUT>(a, at, dh[t][i]);
            if (out_here[DC0_OUT] && p.has(t, i / 2))
                set<DC0_OUT>(a, at, dc[t][i]);
        }
}
#endif
