/*
 * window_vector.cu: windows that leave channels apart: maximum pooling and its gradient, convolutions of each channel by
 * itself and their gradients. A thread has WV channels side by side; a convolution's also PX results along a row, so that
 * weights are read once for them.
 */
#include "program.cuh"
#ifndef ACTIVATION /* of maximum pooling with RELU or RELU6 behind it, as a group (pool_act.c): 1 or 6, and where operands are */
#define ACTIVATION 0
#define X_IN 0
#define D_IN 0
#define W_IN 1
#define Z_IN 0
#define Z_OUT 0
#define W_OUT 1
#define HAS_WINNERS out_here[1]
#endif
static constexpr mf_ref_window w = WINDOW;
static constexpr idx C = (idx)w.in_channels;

struct cell {
    idx n, d, h, w;
};

/* From a position among outputs (or inputs) of that many cells a row. */
static inline cell cell_at(idx position, idx depth, idx height, idx width)
{
    cell c;
    c.w = position % width;
    c.h = position / width % height;
    c.d = position / (width * height) % depth;
    c.n = position / (width * height * depth);
    return c;
}

static inline idx in_place(idx n, idx d, idx h, idx x)
{
    return ((n * (idx)w.in[0] + d) * (idx)w.in[1] + h) * (idx)w.in[2] + x;
}

static inline idx out_place(idx n, idx d, idx h, idx x)
{
    return ((n * (idx)w.out[0] + d) * (idx)w.out[1] + h) * (idx)w.out[2] + x;
}

/* The input cell that tap k of output o sees along axis a; negative or too large: padding. */
static inline idx seen(int a, idx o, idx k)
{
    return o * (idx)w.stride[a] - (idx)w.before[a] + k * (idx)w.dilation[a];
}

/* The output that sees input i by tap k; -1: none. */
static inline idx sees(int a, idx i, idx k)
{
    idx p = i + (idx)w.before[a] - k * (idx)w.dilation[a];
    return p < 0 || p % (idx)w.stride[a] != 0 || p / (idx)w.stride[a] >= (idx)w.out[a] ? -1 : p / (idx)w.stride[a];
}

#define IS_IN(a, i) ((i) >= 0 && (i) < (idx)w.in[a])
#define TAPS(p, q, s)                                                                                                  \
    for (idx p = 0; p < (idx)w.kernel[0]; p++)                                                                         \
        for (idx q = 0; q < (idx)w.kernel[1]; q++)                                                                     \
            for (idx s = 0; s < (idx)w.kernel[2]; s++)
#define TAP_NUMBER(p, q, s) (((p) * (idx)w.kernel[1] + (q)) * (idx)w.kernel[2] + (s))

#if defined(KIND_POOL_MAX)
ENTRY k0(args a)
{
    idx i = THREAD * WV, c = i % C;
    if (i >= (idx)out_count(Z_OUT))
        return;
    cell o = cell_at(i / C, (idx)w.out[0], (idx)w.out[1], (idx)w.out[2]);
    real best[WV];
    uint8_t where[WV];
    bool found = false;
    EACH_OF(WV) { best[k] = 0; where[k] = 0; }
    TAPS(p, q, s)
    {
        idx d = seen(0, o.d, p), h = seen(1, o.h, q), x = seen(2, o.w, s);
        if (!IS_IN(0, d) || !IS_IN(1, h) || !IS_IN(2, x))
            continue;
        real v[WV];
        load_vector<in_dtype[X_IN]>(v, a.in[X_IN], in_place(o.n, d, h, x) * C + c);
        EACH_OF(WV)
        if (!found || v[k] > best[k] || (v[k] != v[k] && best[k] == best[k])) {
            best[k] = v[k];
            where[k] = (uint8_t)TAP_NUMBER(p, q, s);
        }
        found = true;
    }
    if (ACTIVATION)
        EACH_OF(WV) best[k] = best[k] < 0 ? 0 : ACTIVATION == 6 && best[k] > 6 ? 6 : best[k];
    store_vector<out_dtype[Z_OUT], false>(a.out[Z_OUT], i, best);
    if (HAS_WINNERS) {
        vector<MF_U8, WV> index;
        EACH_OF(WV) index.v[k] = where[k];
        *(vector<MF_U8, WV> *)((uint8_t *)a.out[W_OUT] + i) = index;
    }
}

#elif defined(KIND_POOL_MAX_GRAD)
ENTRY k0(args a)
{
    idx i = THREAD * WV, c = i % C;
    if (i >= (idx)out_count(0))
        return;
    cell x = cell_at(i / C, (idx)w.in[0], (idx)w.in[1], (idx)w.in[2]);
    real sum[WV] = {};
    TAPS(p, q, s)
    {
        idx d = sees(0, x.d, p), h = sees(1, x.h, q), o = sees(2, x.w, s);
        if (d < 0 || h < 0 || o < 0)
            continue;
        idx from = out_place(x.n, d, h, o) * C + c;
        real dy[WV];
        load_vector<in_dtype[D_IN]>(dy, a.in[D_IN], from);
        if (ACTIVATION) {
            real z[WV];
            load_vector<in_dtype[Z_IN]>(z, a.in[Z_IN], from);
            EACH_OF(WV) dy[k] = z[k] > 0 && (ACTIVATION != 6 || z[k] < 6) ? dy[k] : 0;
        }
        vector<MF_U8, WV> index = *(const vector<MF_U8, WV> *)((const uint8_t *)a.in[W_IN] + from);
        EACH_OF(WV) sum[k] += (idx)index.v[k] == TAP_NUMBER(p, q, s) ? dy[k] : 0;
    }
    store_vector<out_dtype[0], false>(a.out[0], i, sum);
}

#elif defined(KIND_CONV)
ENTRY k0(args a)
{
    constexpr idx blocks = ((idx)w.out[2] + PX - 1) / PX;
    idx t = THREAD, c = t % (C / WV) * WV;
    if (t >= (idx)(w.batch * w.out[0] * w.out[1]) * blocks * (C / WV))
        return;
    cell o = cell_at(t / (C / WV), (idx)w.out[0], (idx)w.out[1], blocks);
    real sum[PX][WV];
    for (int x = 0; x < PX; x++)
        EACH_OF(WV) sum[x][k] = in_here[2] ? load_one<in_dtype[2]>(a.in[2], c + k) : 0;
    TAPS(p, q, s)
    {
        idx d = seen(0, o.d, p), h = seen(1, o.h, q);
        if (!IS_IN(0, d) || !IS_IN(1, h))
            continue;
        real f[WV], v[WV];
        load_vector<in_dtype[1]>(f, a.in[1], TAP_NUMBER(p, q, s) * C + c);
        for (int x = 0; x < PX; x++) {
            idx at = seen(2, o.w * PX + x, s);
            if (!IS_IN(2, at))
                continue;
            load_vector<in_dtype[0]>(v, a.in[0], in_place(o.n, d, h, at) * C + c);
            EACH_OF(WV) sum[x][k] += v[k] * f[k];
        }
    }
    for (int x = 0; x < PX; x++)
        if (o.w * PX + x < (idx)w.out[2])
            store_vector<out_dtype[0], false>(a.out[0], out_place(o.n, o.d, o.h, o.w * PX + x) * C + c, sum[x]);
}

#elif defined(KIND_CONV_GRAD_DATA)
ENTRY k0(args a)
{
    constexpr idx blocks = ((idx)w.in[2] + PX - 1) / PX;
    idx t = THREAD, c = t % (C / WV) * WV;
    if (t >= (idx)(w.batch * w.in[0] * w.in[1]) * blocks * (C / WV))
        return;
    cell o = cell_at(t / (C / WV), (idx)w.in[0], (idx)w.in[1], blocks);
    real sum[PX][WV];
    for (int x = 0; x < PX; x++)
        EACH_OF(WV) sum[x][k] = in_here[2] ? load_one<in_dtype[2]>(a.in[2], c + k) : 0;
    TAPS(p, q, s)
    {
        idx d = sees(0, o.d, p), h = sees(1, o.h, q);
        if (d < 0 || h < 0)
            continue;
        real f[WV], v[WV];
        load_vector<in_dtype[1]>(f, a.in[1], TAP_NUMBER(p, q, s) * C + c);
        for (int x = 0; x < PX; x++) {
            idx at = sees(2, o.w * PX + x, s);
            if (at < 0)
                continue;
            load_vector<in_dtype[0]>(v, a.in[0], out_place(o.n, d, h, at) * C + c);
            EACH_OF(WV) sum[x][k] += v[k] * f[k];
        }
    }
    for (int x = 0; x < PX; x++)
        if (o.w * PX + x < (idx)w.in[2])
            store_vector<out_dtype[0], false>(a.out[0], in_place(o.n, o.d, o.h, o.w * PX + x) * C + c, sum[x]);
}

#elif defined(KIND_CONV_GRAD_WEIGHTS)
/* As the sums of program.cu: WX threads along the channels, WY along output cells, WSPLITS blocks share these; a tap has
 * a sum a channel. */
static constexpr idx CELLS = (idx)(w.batch * w.out[0] * w.out[1] * w.out[2]);
static constexpr int TAP_COUNT = (int)(w.kernel[0] * w.kernel[1] * w.kernel[2]);

ENTRY taps0(args a)
{
    __shared__ real part[WV][BLOCK];
    idx tx = (idx)threadIdx.x % WX, ty = (idx)threadIdx.x / WX, c = ((idx)blockIdx.x * WX + tx) * WV;
    bool here = ty < WY && c < C;
    real sum[TAP_COUNT][WV] = {};
    for (idx r = (idx)blockIdx.y * WY + ty; here && r < CELLS; r += WY * (idx)WSPLITS) {
        cell o = cell_at(r, (idx)w.out[0], (idx)w.out[1], (idx)w.out[2]);
        real dy[WV];
        load_vector<in_dtype[1]>(dy, a.in[1], r * C + c);
#ifndef MF_SHIM
#pragma unroll
#endif
        for (int tap = 0; tap < TAP_COUNT; tap++) {
            idx d = seen(0, o.d, tap / (idx)(w.kernel[1] * w.kernel[2]));
            idx h = seen(1, o.h, tap / (idx)w.kernel[2] % (idx)w.kernel[1]), x = seen(2, o.w, tap % (idx)w.kernel[2]);
            if (!IS_IN(0, d) || !IS_IN(1, h) || !IS_IN(2, x))
                continue;
            real v[WV];
            load_vector<in_dtype[0]>(v, a.in[0], in_place(o.n, d, h, x) * C + c);
            EACH_OF(WV) sum[tap][k] += dy[k] * v[k];
        }
    }
#ifndef MF_SHIM
#pragma unroll
#endif
    for (int tap = 0; tap < TAP_COUNT; tap++) {
        EACH_OF(WV) part[k][threadIdx.x] = sum[tap][k];
        __syncthreads();
        for (int rows = (WY + 1) / 2, all = WY; all > 1; all = rows, rows = (rows + 1) / 2) {
            if (ty < rows && ty + rows < all)
                EACH_OF(WV) part[k][threadIdx.x] += part[k][threadIdx.x + rows * WX];
            __syncthreads();
        }
        if (here && ty == 0) {
            double *to = (double *)((char *)a.workspace + TAPS_AT) + ((idx)blockIdx.y * TAP_COUNT + tap) * C + c;
            EACH_OF(WV) to[k] = (double)part[k][threadIdx.x];
        }
        __syncthreads();
    }
}

/* A block has WJOIN results; its other threads share the parts. */
ENTRY tapjoin(args a)
{
    constexpr int lanes = BLOCK / WJOIN;
    __shared__ double part[BLOCK];
    idx j = (idx)blockIdx.x * WJOIN + (idx)threadIdx.x % WJOIN, lane = (idx)threadIdx.x / WJOIN;
    double sum = 0;
    for (idx s = lane; s < (idx)WSPLITS && j < TAP_COUNT * C; s += lanes)
        sum += ((const double *)((char *)a.workspace + TAPS_AT))[s * TAP_COUNT * C + j];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int rows = lanes / 2; rows > 0; rows /= 2) {
        if (lane < rows)
            part[threadIdx.x] += part[threadIdx.x + rows * WJOIN];
        __syncthreads();
    }
    if (lane == 0 && j < TAP_COUNT * C)
        store_one<out_dtype[0], out_adds[0]>(a.out[0], j, (real)part[threadIdx.x]);
}
#ifdef HAS_SUMS
#include "program.cu"
#endif
#endif
