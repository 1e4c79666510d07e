/*
 * attention.cu: attention and its gradient without a matrix of scores. Two ways, by the spec:
 *
 *   TILED   16 bits, up to 64 numbers a head, on the matrix units. A block has ROWS queries (forward, dq) or keys (dk, dv),
 *           16 to a warp, whose sums stay in registers; tiles of the other side go through shared memory, the next on
 *           its way while one is used. Nothing is added from two blocks: results are the same every time.
 *   else    a block for a row, in double, any type and size: for small work, and what the other is held against.
 *
 * Scores are kept in powers of two: exp2 is the card's own. The file is long because the two ways and both directions
 * share masks, draws and places of rows, and NVRTC compiles a family as one text.
 */
static inline idx row_at(idx steps, idx width, idx n, idx h, idx step)
{
    return (attr.attention.steps_first ? (n * steps + step) * AH + h : (n * AH + h) * steps + step) * width;
}

/* Is the score of this pair replaced? */
static inline bool masked_at(const args &a, idx n, idx h, idx t, idx s)
{
    bool masked = attr.attention.causal == 2 && s > t;
#ifdef M0
    masked |= !((const uint8_t *)a.in[MASKS])[n * mask0[0] + h * mask0[1] + t * mask0[2] + s * mask0[3]];
#endif
#ifdef M1
    masked |= !((const uint8_t *)a.in[MASKS + 1])[n * mask1[0] + h * mask1[1] + t * mask1[2] + s * mask1[3]];
#endif
#ifdef M2
    masked |= !((const uint8_t *)a.in[MASKS + 2])[n * mask2[0] + h * mask2[1] + t * mask2[2] + s * mask2[3]];
#endif
    (void)a, (void)n, (void)h;
    return masked;
}

static inline idx visible_to(idx t)
{
    return attr.attention.causal == 1 && t + 1 < AS ? t + 1 : AS;
}

/* What dropout multiplies this pair's weight by. */
static inline double kept_at(mf_draw &draw, idx h, idx t, idx s)
{
    if (attr.attention.rate == 0)
        return 1;
    uint64_t index = ((uint64_t)h * AT + (uint64_t)t) * AS + (uint64_t)s;
    bool keeps = mf_draw_uniform(&draw, index) >= attr.attention.rate;
    return keeps && attr.attention.rate < 1 ? 1 / (1 - attr.attention.rate) : 0;
}

static inline mf_draw draw_of(const args &a, idx n)
{
    mf_draw draw;
    if (attr.attention.rate != 0)
        mf_draw_begin(&draw, a.s, attr.attention.key, a.s->first_sample + (uint64_t)n);
    return draw;
}

#if TILED
/* ---- a warp's words ---- */

enum { ROWS = BLOCK / 32 * 16, DP = (AD + 15) / 16 * 16, EP = (AE + 15) / 16 * 16 };
enum { PD = DP + 8, PE = EP + 8 }; /* rows in shared memory: eight of them lie in different banks */
static constexpr float LOG2E = 1.44269504088896340736f, LN2 = 0.69314718055994530942f;
static constexpr mf_dtype HALF = in_dtype[0];

#include "matrix_units.cuh"

/* Sixteen bytes on their way to shared memory; zeros unless `there`. */
static inline void send(uint16_t *to, const uint16_t *from, bool there)
{
#if !defined(MF_SHIM) && __CUDA_ARCH__ >= 800
    uint32_t at;
    int bytes = there ? 16 : 0;
    asm volatile("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
#else
    for (int i = 0; i < 8; i++)
        to[i] = there ? from[i] : (uint16_t)0;
#endif
}

static inline void sent()
{
#if !defined(MF_SHIM) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* All but the last `LEFT` that were sent have arrived. */
template <int LEFT> static inline void arrived()
{
#if !defined(MF_SHIM) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

template <int TILE, int WIDTH, int PADDED, int PITCH>
static inline void send_tile(uint16_t *to, const void *from, idx steps, idx n, idx h, idx first)
{
    for (int i = (int)threadIdx.x; i < TILE * (PADDED / 8); i += BLOCK) {
        int r = i / (PADDED / 8), c = i % (PADDED / 8) * 8;
        bool there = first + r < steps && c < WIDTH;
        send(to + r * PITCH + c, (const uint16_t *)from + (there ? row_at(steps, WIDTH, n, h, first + r) + c : 0), there);
    }
}

/* The warp's 16 rows as left factor. */
template <int WIDTH, int PADDED>
static inline void load_rows(uint32_t (*f)[4], const void *from, idx steps, idx n, idx h, idx first)
{
    int lane = (int)threadIdx.x % LANES;
    for (int k = 0; k < PADDED / 16; k++)
        for (int i = 0; i < 4; i++) {
            idx r = first + lane / 4 + (i & 1) * 8;
            int c = k * 16 + lane % 4 * 2 + (i / 2) * 8;
            f[k][i] = r < steps && c < WIDTH
                          ? *(const uint32_t *)(const void *)((const uint16_t *)from + row_at(steps, WIDTH, n, h, r) + c)
                          : 0;
        }
}

/* c (16 x TILE) = rows of the left factor by rows of a tile. */
template <int TILE, int PADDED, int PITCH> static inline void by_rows(float (*c)[4], const uint32_t (*f)[4], const uint16_t *tile)
{
    int lane = (int)threadIdx.x % LANES;
    const uint16_t *at = tile + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
        c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
#pragma unroll
    for (int k = 0; k < PADDED / 16; k++)
#pragma unroll
        for (int j = 0; j < TILE / 16; j++) {
            uint32_t b[4];
            load_tiles<false>(b, at + j * 16 * PITCH + k * 16);
            multiply(c[2 * j], f[k], b[0], b[1]);
            multiply(c[2 * j + 1], f[k], b[2], b[3]);
        }
}

/* sum (16 x PADDED) += p (16 x TILE) by a tile. */
template <int TILE, int PADDED, int PITCH> static inline void by_columns(float (*sum)[4], const float (*p)[4], const uint16_t *tile)
{
    int lane = (int)threadIdx.x % LANES;
    const uint16_t *at = tile + (lane / 8 % 2 * 8 + lane % 8) * PITCH + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        uint32_t f[4] = {pack(p[2 * k][0], p[2 * k][1]), pack(p[2 * k][2], p[2 * k][3]),
                         pack(p[2 * k + 1][0], p[2 * k + 1][1]), pack(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
        for (int j = 0; j < PADDED / 16; j++) {
            uint32_t b[4];
            load_tiles<true>(b, at + k * 16 * PITCH + j * 16);
            multiply(sum[2 * j], f, b[0], b[1]);
            multiply(sum[2 * j + 1], f, b[2], b[3]);
        }
    }
}

template <int WIDTH, int PADDED>
static inline void store_rows(void *to, const float (*sum)[4], float top, float bottom, idx steps, idx n, idx h, idx first)
{
    int lane = (int)threadIdx.x % LANES;
    for (int j = 0; j < PADDED / 8; j++)
        for (int half = 0; half < 2; half++) {
            idx r = first + lane / 4 + half * 8;
            int c = j * 8 + lane % 4 * 2;
            float by = half ? bottom : top;
            if (r < steps && c < WIDTH)
                *(uint32_t *)(void *)((uint16_t *)to + row_at(steps, WIDTH, n, h, r) + c) =
                    pack(sum[j][2 * half] * by, sum[j][2 * half + 1] * by);
        }
}

static constexpr bool HAS_MASKS = attr.attention.causal == 2 || in_here[MASKS] || in_here[MASKS + 1] || in_here[MASKS + 2];
static constexpr bool LOOKS = HAS_MASKS || attr.attention.rate != 0; /* each pair is looked at */
#endif

#if defined(KIND_ATTENTION)
#if TILED
/* Two blocks at a time on a multiprocessor. */
extern "C" __global__ void __launch_bounds__(BLOCK, 2) k0(args a)
{
    enum { TILE = 64 };
    alignas(16) __shared__ uint16_t keys[2][TILE * PD];
    alignas(16) __shared__ uint16_t values[2][TILE * PE];
    constexpr idx tiles = (AT + ROWS - 1) / ROWS;
    idx head = (idx)blockIdx.x / tiles, n = head / AH, h = head % AH;
    idx block = (tiles - 1 - (idx)blockIdx.x % tiles) * ROWS, first = block + (idx)threadIdx.x / LANES * 16;
    int lane = (int)threadIdx.x % LANES;
    uint32_t q[DP / 16][4];
    float sum[EP / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, all[2] = {0, 0}, any[2] = {0, 0};
    mf_draw draw = draw_of(a, n);
    load_rows<AD, DP>(q, a.in[0], AT, n, h, first);
    idx last = attr.attention.causal == 1 && block + ROWS < AS ? block + ROWS : AS, count = (last + TILE - 1) / TILE;
    send_tile<TILE, AD, DP, PD>(keys[0], a.in[1], AS, n, h, 0);
    send_tile<TILE, AE, EP, PE>(values[0], a.in[2], AS, n, h, 0);
    sent();
    for (idx j = 0; j < count; j++) {
        if (j + 1 < count) {
            send_tile<TILE, AD, DP, PD>(keys[(j + 1) % 2], a.in[1], AS, n, h, (j + 1) * TILE);
            send_tile<TILE, AE, EP, PE>(values[(j + 1) % 2], a.in[2], AS, n, h, (j + 1) * TILE);
        }
        sent();
        arrived<1>();
        __syncthreads();
        float p[TILE / 8][4];
        by_rows<TILE, DP, PD>(p, q, keys[j % 2]);
        bool whole = !HAS_MASKS && (j + 1) * TILE <= AS && (attr.attention.causal != 1 || (j + 1) * TILE - 1 <= first);
        constexpr float scale = (float)attr.attention.scale * LOG2E;
        float top[2] = {most[0], most[1]};
#pragma unroll
        for (int k = 0; k < TILE / 8; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v = p[k][i] * scale;
                if (!whole) {
                    idx t = first + lane / 4 + i / 2 * 8, s = j * TILE + k * 8 + lane % 4 * 2 + i % 2;
                    bool out = s >= AS || (attr.attention.causal == 1 && s > t);
                    bool masked = HAS_MASKS && !out && t < AT && masked_at(a, n, h, t, s);
                    v = out ? -INFINITY : masked ? (float)attr.attention.masked * LOG2E : v;
                    any[i / 2] = !out && !masked ? 1 : any[i / 2];
                }
                p[k][i] = v;
                top[i / 2] = fmaxf(top[i / 2], v);
            }
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], from_lane(top[r], 1));
            top[r] = fmaxf(top[r], from_lane(top[r], 2));
            any[r] = whole ? 1 : any[r];
            float less = power_of_2(most[r] - top[r]);
            all[r] *= less;
            most[r] = top[r];
#pragma unroll
            for (int k = 0; k < EP / 8; k++) {
                sum[k][2 * r] *= less;
                sum[k][2 * r + 1] *= less;
            }
        }
#pragma unroll
        for (int k = 0; k < TILE / 8; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float w = power_of_2(p[k][i] - most[i / 2]);
                all[i / 2] += w;
                if (LOOKS) {
                    idx t = first + lane / 4 + i / 2 * 8, s = j * TILE + k * 8 + lane % 4 * 2 + i % 2;
                    if (t < AT && s < AS) {
                        w *= (float)kept_at(draw, h, t, s);
                        if (attr.attention.zeroed && masked_at(a, n, h, t, s))
                            w = 0;
                    }
                }
                p[k][i] = w;
            }
        by_columns<TILE, EP, PE>(sum, p, values[j % 2]);
        __syncthreads();
    }
    for (int r = 0; r < 2; r++) {
        all[r] += from_lane(all[r], 1);
        all[r] += from_lane(all[r], 2);
        any[r] = fmaxf(any[r], from_lane(any[r], 1));
        any[r] = fmaxf(any[r], from_lane(any[r], 2));
    }
    store_rows<AE, EP>(a.out[0], sum, 1 / all[0], 1 / all[1], AT, n, h, first);
    for (int r = 0; r < 2 && out_here[1] && lane % 4 == 0; r++)
        if (first + lane / 4 + r * 8 < AT)
            ((float *)a.out[1])[(n * AH + h) * AT + first + lane / 4 + r * 8] =
                any[r] > 0 ? most[r] * LN2 + logf(all[r]) : INFINITY;
}
#else
ENTRY k0(args a)
{
    constexpr int PER = (AE + BLOCK - 1) / BLOCK;
    __shared__ double weight[BLOCK];
    idx row = (idx)blockIdx.x, t = row % AT, h = row / AT % AH, n = row / AT / AH, seen = visible_to(t);
    mf_draw draw = draw_of(a, n);
    double most = -INFINITY, all = 0, any = 0, sum[PER] = {};
    for (idx first = 0; first < seen; first += BLOCK) {
        idx s = first + (idx)threadIdx.x;
        bool there = s < seen, masked = there && masked_at(a, n, h, t, s);
        double score = there ? 0 : -INFINITY;
        for (idx d = 0; there && !masked && d < AD; d++)
            score += get<0>(a, row_at(AT, AD, n, h, t) + d) * get<1>(a, row_at(AS, AD, n, h, s) + d);
        score = masked ? attr.attention.masked : there ? score * attr.attention.scale : score;
        double top = fmax(most, block_max(score)), less = most == top ? 1 : exp(most - top);
        double w = there ? exp(score - top) : 0;
        all = all * less + block_sum(w);
        any = fmax(any, block_max(there && !masked ? 1 : 0));
        most = top;
        if (there)
            w *= attr.attention.zeroed && masked ? 0 : kept_at(draw, h, t, s);
        __syncthreads();
        weight[threadIdx.x] = w;
        __syncthreads();
        for (int i = 0; i < PER; i++) {
            idx e = (idx)threadIdx.x + i * BLOCK;
            sum[i] *= less;
            for (idx k = 0; e < AE && k < BLOCK && first + k < seen; k++)
                sum[i] += weight[k] * get<2>(a, row_at(AS, AE, n, h, first + k) + e);
        }
    }
    for (int i = 0; i < PER; i++)
        if ((idx)threadIdx.x + i * BLOCK < AE)
            put<0>(a, row_at(AT, AE, n, h, t) + (idx)threadIdx.x + i * BLOCK, sum[i] / all);
    if (out_here[1] && threadIdx.x == 0)
        put<1>(a, row, any > 0 ? most + log(all) : INFINITY);
}
#endif
#else /* the gradient */

/* dy . y of every row, for the two that follow. */
ENTRY rows(args a)
{
    idx row = THREAD, t = row % AT, h = row / AT % AH, n = row / AT / AH;
    if (row >= (idx)AN * AH * AT)
        return;
    idx at = row_at(AT, AE, n, h, t);
    SUM sum = 0;
#if TILED
    struct alignas(16) eight {
        uint32_t pair[4];
    };
    for (idx e = 0; e < AE; e += 8) {
        eight x = *(const eight *)(const void *)((const uint16_t *)a.in[0] + at + e);
        eight y = *(const eight *)(const void *)((const uint16_t *)a.in[4] + at + e);
        for (int k = 0; k < 4; k++)
            sum += unpack(x.pair[k], 0) * unpack(y.pair[k], 0) + unpack(x.pair[k], 1) * unpack(y.pair[k], 1);
    }
#else
    for (idx e = 0; e < AE; e++)
        sum += (SUM)get<0>(a, at + e) * (SUM)get<4>(a, at + e);
#endif
    ((SUM *)((char *)a.workspace + SUMS_AT))[row] = sum;
}

#if TILED
static inline float weight_of(const args &a, float score, float lse, bool masked, idx t)
{
    (void)a;
    if (HAS_MASKS && lse == INFINITY)
        return 1.0f / (float)visible_to(t);
    return power_of_2((masked ? (float)attr.attention.masked * LOG2E : score) - lse);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2) kq(args a)
{
    enum { TILE = 32 }; /* two blocks' registers */
    alignas(16) __shared__ uint16_t keys[2][TILE * PD];
    alignas(16) __shared__ uint16_t values[2][TILE * PE];
    constexpr idx tiles = (AT + ROWS - 1) / ROWS;
    constexpr float scale = (float)attr.attention.scale * LOG2E;
    idx head = (idx)blockIdx.x / tiles, n = head / AH, h = head % AH;
    idx block = (tiles - 1 - (idx)blockIdx.x % tiles) * ROWS, first = block + (idx)threadIdx.x / LANES * 16;
    int lane = (int)threadIdx.x % LANES;
    uint32_t q[DP / 16][4], dy[EP / 16][4];
    float sum[DP / 8][4] = {}, lse[2], rows[2];
    mf_draw draw = draw_of(a, n);
    load_rows<AD, DP>(q, a.in[1], AT, n, h, first);
    load_rows<AE, EP>(dy, a.in[0], AT, n, h, first);
    for (int r = 0; r < 2; r++) {
        idx t = first + lane / 4 + r * 8, at = (n * AH + h) * AT + t;
        lse[r] = t < AT ? ((const float *)a.in[5])[at] * LOG2E : 0;
        rows[r] = t < AT ? ((const float *)((const char *)a.workspace + SUMS_AT))[at] : 0;
    }
    idx last = attr.attention.causal == 1 && block + ROWS < AS ? block + ROWS : AS, count = (last + TILE - 1) / TILE;
    send_tile<TILE, AD, DP, PD>(keys[0], a.in[2], AS, n, h, 0);
    send_tile<TILE, AE, EP, PE>(values[0], a.in[3], AS, n, h, 0);
    sent();
    for (idx j = 0; j < count; j++) {
        if (j + 1 < count) {
            send_tile<TILE, AD, DP, PD>(keys[(j + 1) % 2], a.in[2], AS, n, h, (j + 1) * TILE);
            send_tile<TILE, AE, EP, PE>(values[(j + 1) % 2], a.in[3], AS, n, h, (j + 1) * TILE);
        }
        sent();
        arrived<1>();
        __syncthreads();
        float p[TILE / 8][4], dp[TILE / 8][4];
        by_rows<TILE, DP, PD>(p, q, keys[j % 2]);
        by_rows<TILE, EP, PE>(dp, dy, values[j % 2]);
        bool whole = !LOOKS && (j + 1) * TILE <= AS && first + 16 <= AT &&
                     (attr.attention.causal != 1 || (j + 1) * TILE - 1 <= first);
#pragma unroll
        for (int k = 0; k < TILE / 8; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (whole) {
                    p[k][i] = power_of_2(p[k][i] * scale - lse[i / 2]) * (dp[k][i] - rows[i / 2]);
                    continue;
                }
                idx t = first + lane / 4 + i / 2 * 8, s = j * TILE + k * 8 + lane % 4 * 2 + i % 2;
                bool out = s >= AS || t >= AT || (attr.attention.causal == 1 && s > t);
                bool masked = HAS_MASKS && !out && masked_at(a, n, h, t, s);
                float kept = LOOKS && !out ? (float)kept_at(draw, h, t, s) : 1;
                float w = out || masked ? 0 : power_of_2(p[k][i] * scale - lse[i / 2]);
                p[k][i] = w * (dp[k][i] * kept - rows[i / 2]);
            }
        by_columns<TILE, DP, PD>(sum, p, keys[j % 2]);
        __syncthreads();
    }
    store_rows<AD, DP>(a.out[0], sum, (float)attr.attention.scale, (float)attr.attention.scale, AT, n, h, first);
}

ENTRY kkv(args a)
{
    enum { TILE = 64 };
    alignas(16) __shared__ uint16_t queries[2][TILE * PD];
    alignas(16) __shared__ uint16_t slopes[2][TILE * PE];
    __shared__ float lse[2][TILE], rows[2][TILE];
    constexpr idx tiles = (AS + ROWS - 1) / ROWS;
    constexpr float scale = (float)attr.attention.scale * LOG2E;
    idx head = (idx)blockIdx.x / tiles, n = head / AH, h = head % AH;
    idx block = (idx)blockIdx.x % tiles * ROWS, first = block + (idx)threadIdx.x / LANES * 16;
    int lane = (int)threadIdx.x % LANES;
    uint32_t key[DP / 16][4], value[EP / 16][4];
    float dk[DP / 8][4] = {}, dv[EP / 8][4] = {};
    mf_draw draw = draw_of(a, n);
    load_rows<AD, DP>(key, a.in[2], AS, n, h, first);
    load_rows<AE, EP>(value, a.in[3], AS, n, h, first);
    /* queries before the first key of the block see none of it */
    idx begin = attr.attention.causal == 1 ? block / TILE : 0, count = (AT + TILE - 1) / TILE;
    auto next = [&](idx j) {
        send_tile<TILE, AD, DP, PD>(queries[j % 2], a.in[1], AT, n, h, j * TILE);
        send_tile<TILE, AE, EP, PE>(slopes[j % 2], a.in[0], AT, n, h, j * TILE);
        for (int i = (int)threadIdx.x; i < TILE; i += BLOCK) {
            idx t = j * TILE + i, at = (n * AH + h) * AT + t;
            lse[j % 2][i] = t < AT ? ((const float *)a.in[5])[at] * LOG2E : 0;
            rows[j % 2][i] = t < AT ? ((const float *)((const char *)a.workspace + SUMS_AT))[at] : 0;
        }
    };
    if (begin < count)
        next(begin);
    sent();
    for (idx j = begin; j < count; j++) {
        if (j + 1 < count)
            next(j + 1);
        sent();
        arrived<1>();
        __syncthreads();
        float p[TILE / 8][4], dp[TILE / 8][4];
        by_rows<TILE, DP, PD>(p, key, queries[j % 2]);
        by_rows<TILE, EP, PE>(dp, value, slopes[j % 2]);
        bool whole = !LOOKS && (j + 1) * TILE <= AT && first + 16 <= AS &&
                     (attr.attention.causal != 1 || first + 15 <= j * TILE);
#pragma unroll
        for (int k = 0; k < TILE / 8; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = k * 8 + lane % 4 * 2 + i % 2;
                if (whole) {
                    p[k][i] = power_of_2(p[k][i] * scale - lse[j % 2][at]);
                    dp[k][i] = p[k][i] * (dp[k][i] - rows[j % 2][at]);
                    continue;
                }
                idx s = first + lane / 4 + i / 2 * 8, t = j * TILE + at;
                bool out = s >= AS || t >= AT || (attr.attention.causal == 1 && s > t);
                bool masked = HAS_MASKS && !out && masked_at(a, n, h, t, s);
                float kept = LOOKS && !out ? (float)kept_at(draw, h, t, s) : 1;
                float w = out ? 0 : weight_of(a, p[k][i] * scale, lse[j % 2][at], masked, t);
                p[k][i] = attr.attention.zeroed && masked ? 0 : w * kept;
                dp[k][i] = masked ? 0 : w * (dp[k][i] * kept - rows[j % 2][at]);
            }
        if (out_here[2])
            by_columns<TILE, EP, PE>(dv, p, slopes[j % 2]);
        if (out_here[1])
            by_columns<TILE, DP, PD>(dk, dp, queries[j % 2]);
        __syncthreads();
    }
    if (out_here[1])
        store_rows<AD, DP>(a.out[1], dk, (float)attr.attention.scale, (float)attr.attention.scale, AS, n, h, first);
    if (out_here[2])
        store_rows<AE, EP>(a.out[2], dv, 1, 1, AS, n, h, first);
}
#else
/* A pair's weight, and the slope of its score. */
struct pair {
    double weight, slope;
};

static inline pair pair_at(const args &a, mf_draw &draw, idx n, idx h, idx t, idx s)
{
    idx row = (n * AH + h) * AT + t;
    bool masked = masked_at(a, n, h, t, s);
    double lse = get<5>(a, row), score = 0, dw = 0;
    double kept = attr.attention.zeroed && masked ? 0 : kept_at(draw, h, t, s);
    for (idx d = 0; !masked && d < AD; d++)
        score += get<1>(a, row_at(AT, AD, n, h, t) + d) * get<2>(a, row_at(AS, AD, n, h, s) + d);
    for (idx e = 0; e < AE; e++)
        dw += get<0>(a, row_at(AT, AE, n, h, t) + e) * get<3>(a, row_at(AS, AE, n, h, s) + e);
    score = masked ? attr.attention.masked : score * attr.attention.scale;
    double w = lse == INFINITY ? 1 / (double)visible_to(t) : exp(score - lse);
    double all = ((const SUM *)((const char *)a.workspace + SUMS_AT))[row];
    return {w * kept, masked ? 0 : attr.attention.scale * w * (dw * kept - all)};
}

ENTRY kq(args a)
{
    constexpr int PER = (AD + BLOCK - 1) / BLOCK;
    __shared__ double slope[BLOCK];
    idx row = (idx)blockIdx.x, t = row % AT, h = row / AT % AH, n = row / AT / AH, seen = visible_to(t);
    mf_draw draw = draw_of(a, n);
    double sum[PER] = {};
    for (idx first = 0; first < seen; first += BLOCK) {
        idx s = first + (idx)threadIdx.x;
        double mine = s < seen ? pair_at(a, draw, n, h, t, s).slope : 0;
        __syncthreads();
        slope[threadIdx.x] = mine;
        __syncthreads();
        for (int i = 0; i < PER; i++)
            for (idx k = 0; (idx)threadIdx.x + i * BLOCK < AD && k < BLOCK && first + k < seen; k++)
                sum[i] += slope[k] * get<2>(a, row_at(AS, AD, n, h, first + k) + (idx)threadIdx.x + i * BLOCK);
    }
    for (int i = 0; i < PER; i++)
        if ((idx)threadIdx.x + i * BLOCK < AD)
            put<0>(a, row_at(AT, AD, n, h, t) + (idx)threadIdx.x + i * BLOCK, sum[i]);
}

ENTRY kkv(args a)
{
    constexpr int PER = ((AD > AE ? AD : AE) + BLOCK - 1) / BLOCK;
    __shared__ double slope[BLOCK], weight[BLOCK];
    idx row = (idx)blockIdx.x, s = row % AS, h = row / AS % AH, n = row / AS / AH;
    mf_draw draw = draw_of(a, n);
    double dk[PER] = {}, dv[PER] = {};
    for (idx first = 0; first < AT; first += BLOCK) {
        idx t = first + (idx)threadIdx.x;
        pair mine = {0, 0};
        if (t < AT && s < visible_to(t))
            mine = pair_at(a, draw, n, h, t, s);
        __syncthreads();
        slope[threadIdx.x] = mine.slope;
        weight[threadIdx.x] = mine.weight;
        __syncthreads();
        for (int i = 0; i < PER; i++) {
            idx at = (idx)threadIdx.x + i * BLOCK;
            for (idx k = 0; k < BLOCK && first + k < AT; k++) {
                if (at < AD)
                    dk[i] += slope[k] * get<1>(a, row_at(AT, AD, n, h, first + k) + at);
                if (at < AE)
                    dv[i] += weight[k] * get<0>(a, row_at(AT, AE, n, h, first + k) + at);
            }
        }
    }
    for (int i = 0; i < PER; i++) {
        idx at = (idx)threadIdx.x + i * BLOCK;
        if (out_here[1] && at < AD)
            put<1>(a, row_at(AS, AD, n, h, s) + at, dk[i]);
        if (out_here[2] && at < AE)
            put<2>(a, row_at(AS, AE, n, h, s) + at, dv[i]);
    }
}
#endif
#endif
