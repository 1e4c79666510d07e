/*
 * rnn.cu: LSTM, GRU and simple RNN through time: one block a sample, threads along the units, state in double in shared
 * memory, or where it is too large for that in the workspace. Backwards the recurrent matrix is read by columns: it is turned
 * around before. The gradient of the recurrent matrix is summed afterwards over all samples and steps.
 *
 * TILES: LSTM in 16 bits on the matrix units, sixteen samples a block (rnn_tiles.cuh).
 *
 * A step s works on time t = s, or T - 1 - s when time runs backwards. Masked steps hand the state on.
 */
#include "reduce.cuh"
static constexpr idx n = (idx)UNITS, width = (idx)GATE_UNITS, T = (idx)TIME;
static constexpr double rate = attr.rnn.recurrent_dropout;

static inline idx time_of(idx s)
{
    return attr.rnn.backwards ? T - 1 - s : s;
}

static inline double activate(mf_unary f, double x)
{
    return mf_unary_value(f, mf_unary_default_alpha(f), 0, x);
}

static inline double slope(mf_unary f, double y)
{
    return mf_unary_slope(f, mf_unary_default_alpha(f), 0, true, y);
}

static inline bool is_masked(const args &a, idx cell)
{
    return in_here[MASK_IN] && get_int<MASK_IN>(a, cell) == 0;
}

/* What gate column `i` reads of the state: 1 without recurrent dropout. */
static inline double keep_of(const args &a, idx sample, idx i)
{
    if (!(rate > 0))
        return 1;
    mf_draw draw;
    mf_draw_begin(&draw, a.s, attr.rnn.key, a.s->first_sample + (uint64_t)sample);
    return rate < 1 && mf_draw_uniform(&draw, (uint64_t)i) >= rate ? 1 / (1 - rate) : 0;
}

/* This sample's numbers: `count` arrays of n, then the masks. */
static inline double *scratch_of(const args &a, idx sample)
{
    return (double *)((char *)a.workspace + SCRATCH_AT) + sample * (SCRATCH_ARRAYS * n + (rate > 0 ? width : 0));
}

static constexpr bool NEAR = rate == 0 && SCRATCH_ARRAYS * n * 8 <= 40 << 10;
#ifdef MF_SHIM
#define UNROLLED
#else
#define UNROLLED _Pragma("unroll 8")
#endif

#define UNITS_LOOP(j) for (idx j = (idx)threadIdx.x; j < n; j += BLOCK)

/* sum over k of v[k] * u[k][column], under the gate's mask */
static inline double times(const args &a, const double *v, const double *keep, idx column)
{
    double sum = 0;
    idx gate = column / n * n;
    UNROLLED
    for (idx k = 0; k < n; k++)
        sum += v[k] * (rate > 0 ? keep[gate + k] : 1) * get<U_IN>(a, k * width + column);
    return sum;
}

/* sum over columns of u[k][column] * d[column - first], under each gate's mask */
static inline double times_back(const args &a, idx k, const double *d, const double *keep, idx first, idx count)
{
    double all = 0;
    for (idx gate = first; gate < first + count; gate += n) {
        double sum = 0;
        UNROLLED
        for (idx j = 0; j < n; j++)
            sum += (double)(real)mf_ref_load(in_dtype[U_IN], (const char *)a.workspace + TURNED_AT,
                                             (uint64_t)((gate + j) * n + k)) *
                   d[gate - first + j];
        all += sum * (rate > 0 ? keep[gate + k] : 1);
    }
    return all;
}

#if defined(KIND_LSTM) || defined(KIND_GRU) || defined(KIND_SIMPLE_RNN)
#if TILES
#include "rnn_tiles.cuh"
#else
ENTRY k0(args a)
{
    __shared__ double near[NEAR ? SCRATCH_ARRAYS * n : 1];
    idx b = (idx)blockIdx.x;
    double *h = NEAR ? near : scratch_of(a, b), *c = h + n, *gate = c + n, *keep = h + SCRATCH_ARRAYS * n;
    UNITS_LOOP(j)
    {
        h[j] = in_here[H0_IN] ? get<H0_IN>(a, b * n + j) : 0;
        c[j] = in_here[C0_IN] ? get<C0_IN>(a, b * n + j) : 0;
    }
    for (idx i = (idx)threadIdx.x; rate > 0 && i < width; i += BLOCK)
        keep[i] = keep_of(a, b, i);
    __syncthreads();
    for (idx s = 0; s < T; s++) {
        idx cell = b * T + time_of(s);
        bool masked = is_masked(a, cell);
#if defined(KIND_LSTM)
        for (idx i = (idx)threadIdx.x; i < width; i += BLOCK)
            gate[i] = masked ? 0 : get<0>(a, cell * width + i) + times(a, h, keep, i);
        __syncthreads();
        UNITS_LOOP(j)
        {
            if (!masked) {
                gate[j] = activate(attr.rnn.recurrent_activation, gate[j]);
                gate[n + j] = activate(attr.rnn.recurrent_activation, gate[n + j]);
                gate[2 * n + j] = activate(attr.rnn.activation, gate[2 * n + j]);
                gate[3 * n + j] = activate(attr.rnn.recurrent_activation, gate[3 * n + j]);
                c[j] = gate[n + j] * c[j] + gate[j] * gate[2 * n + j];
                h[j] = gate[3 * n + j] * activate(attr.rnn.activation, c[j]);
            }
            if (out_here[0])
                set<0>(a, cell * n + j, h[j]);
            for (idx g = 0; out_here[1] && g < 4; g++)
                set<1>(a, cell * 4 * n + g * n + j, gate[g * n + j]);
            if (out_here[2])
                set<2>(a, cell * n + j, c[j]);
        }
        __syncthreads();
#elif defined(KIND_GRU)
        double *rest = gate + 3 * n, *before = gate + 4 * n;
        for (idx i = (idx)threadIdx.x; i < 2 * n; i += BLOCK)
            gate[i] = masked ? 0
                             : activate(attr.rnn.recurrent_activation,
                                        get_or<2>(a, i, 0) + times(a, h, keep, i) + get<0>(a, cell * width + i));
        __syncthreads();
        UNITS_LOOP(j) before[j] = attr.rnn.reset_after ? h[j] : gate[n + j] * h[j];
        __syncthreads();
        UNITS_LOOP(j)
        {
            rest[j] = gate[2 * n + j] = 0;
            if (!masked) {
                rest[j] = get_or<2>(a, 2 * n + j, 0) + times(a, before, keep, 2 * n + j);
                gate[2 * n + j] =
                    activate(attr.rnn.activation, get<0>(a, cell * width + 2 * n + j) +
                                                      (attr.rnn.reset_after ? gate[n + j] : 1) * rest[j]);
                h[j] = gate[j] * h[j] + (1 - gate[j]) * gate[2 * n + j];
            }
            if (out_here[0])
                set<0>(a, cell * n + j, h[j]);
            for (idx g = 0; out_here[1] && g < 4; g++)
                set<1>(a, cell * 4 * n + g * n + j, gate[g * n + j]);
        }
        __syncthreads();
#else
        UNITS_LOOP(j) gate[j] = masked ? h[j]
                                       : activate(attr.rnn.activation,
                                                  get<0>(a, cell * n + j) + times(a, h, keep, j));
        __syncthreads();
        UNITS_LOOP(j)
        {
            h[j] = gate[j];
            if (out_here[0])
                set<0>(a, cell * n + j, h[j]);
        }
        __syncthreads();
#endif
    }
    UNITS_LOOP(j)
    {
        if (out_here[H_LAST_OUT])
            set<H_LAST_OUT>(a, b * n + j, h[j]);
        if (C_LAST_OUT > 0 && out_here[C_LAST_OUT])
            set<C_LAST_OUT>(a, b * n + j, c[j]);
    }
}
#endif

#else /* gradients */
/* The state before step s: what step s - 1 left, or the initial one. */
template <int STATES, int INITIAL> static inline double before(const args &a, idx b, idx s, idx j)
{
    if (s > 0)
        return get<STATES>(a, (b * T + time_of(s - 1)) * n + j);
    return in_here[INITIAL] ? get<INITIAL>(a, b * n + j) : 0;
}

#if TILES
#include "rnn_tiles.cuh"
#else
ENTRY turn(args a)
{
    idx i = THREAD;
    if (i < n * width)
        move_element(in_dtype[U_IN], (char *)a.workspace + TURNED_AT, i, a.in[U_IN], i % n * width + i / n);
}

ENTRY k0(args a)
{
    constexpr mf_unary act = attr.rnn.activation, rec = attr.rnn.recurrent_activation;
    __shared__ double near[NEAR ? SCRATCH_ARRAYS * n : 1];
    idx b = (idx)blockIdx.x;
    double *dh = NEAR ? near : scratch_of(a, b), *dc = dh + n, *d = dc + n, *keep = dh + SCRATCH_ARRAYS * n;
    UNITS_LOOP(j)
    {
        dh[j] = in_here[DH_LAST_IN] ? get<DH_LAST_IN>(a, b * n + j) : 0;
        dc[j] = in_here[DC_LAST_IN] ? get<DC_LAST_IN>(a, b * n + j) : 0;
    }
    for (idx i = (idx)threadIdx.x; rate > 0 && i < width; i += BLOCK)
        keep[i] = keep_of(a, b, i);
    __syncthreads();
    for (idx s = T - 1; s >= 0; s--) {
        idx cell = b * T + time_of(s);
        bool masked = is_masked(a, cell);
#if defined(KIND_LSTM_GRAD)
        UNITS_LOOP(j)
        {
            dh[j] += get_or<0>(a, cell * n + j, 0);
            if (!masked) {
                double i = get<2>(a, cell * 4 * n + j), f = get<2>(a, cell * 4 * n + n + j);
                double g = get<2>(a, cell * 4 * n + 2 * n + j), o = get<2>(a, cell * 4 * n + 3 * n + j);
                double ct = get<3>(a, cell * n + j);
                double dcj = dc[j] + dh[j] * o * mf_unary_slope(act, mf_unary_default_alpha(act), 0, false, ct);
                d[j] = dcj * g * slope(rec, i);
                d[n + j] = dcj * before<3, 6>(a, b, s, j) * slope(rec, f);
                d[2 * n + j] = dcj * i * slope(act, g);
                d[3 * n + j] = dh[j] * activate(act, ct) * slope(rec, o);
                dc[j] = dcj * f;
            }
            for (idx g = 0; g < 4; g++)
                set<0>(a, cell * 4 * n + g * n + j, masked ? 0 : d[g * n + j]);
        }
        __syncthreads();
        if (!masked)
            UNITS_LOOP(j) dh[j] = times_back(a, j, d, keep, 0, 4 * n);
        __syncthreads();
#elif defined(KIND_GRU_GRAD)
        double *rest = d + 3 * n;
        UNITS_LOOP(j)
        {
            dh[j] += get_or<0>(a, cell * n + j, 0);
            if (!masked) {
                double z = get<2>(a, cell * 4 * n + j), reset = get<2>(a, cell * 4 * n + n + j);
                double candidate = get<2>(a, cell * 4 * n + 2 * n + j);
                d[j] = dh[j] * (before<1, 5>(a, b, s, j) - candidate) * slope(rec, z);
                d[2 * n + j] = dh[j] * (1 - z) * slope(act, candidate);
                rest[j] = d[2 * n + j] * (attr.rnn.reset_after ? reset : 1);
                dh[j] *= z;
            }
        }
        __syncthreads();
        UNITS_LOOP(j)
        {
            if (!masked) {
                double reset = get<2>(a, cell * 4 * n + n + j), dreset = times_back(a, j, rest, keep, 2 * n, n);
                d[n + j] = (attr.rnn.reset_after ? d[2 * n + j] * get<2>(a, cell * 4 * n + 3 * n + j)
                                                 : dreset * before<1, 5>(a, b, s, j)) *
                           slope(rec, reset);
                dh[j] += attr.rnn.reset_after ? dreset : dreset * reset;
            }
            for (idx g = 0; g < 3; g++)
                set<0>(a, cell * 3 * n + g * n + j, masked ? 0 : d[g * n + j]);
        }
        __syncthreads();
        if (!masked)
            UNITS_LOOP(j) dh[j] += times_back(a, j, d, keep, 0, 2 * n);
        __syncthreads();
#else
        UNITS_LOOP(j)
        {
            dh[j] += get_or<0>(a, cell * n + j, 0);
            d[j] = masked ? 0 : dh[j] * slope(act, get<1>(a, cell * n + j));
            set<0>(a, cell * n + j, d[j]);
        }
        __syncthreads();
        if (!masked)
            UNITS_LOOP(j) dh[j] = times_back(a, j, d, keep, 0, n);
        __syncthreads();
#endif
    }
    UNITS_LOOP(j)
    {
        if (out_here[DH0_OUT])
            set<DH0_OUT>(a, b * n + j, dh[j]);
        if (DC0_OUT > 0 && out_here[DC0_OUT])
            set<DC0_OUT>(a, b * n + j, dc[j]);
    }
}
#endif

/* What the recurrent matrix saw of the state at (sample, step) for this column, and that column's gradient. */
static inline double gradient_at(const args &a, idx b, idx s, idx column)
{
    double d = kept<0>(a, (b * T + time_of(s)) * width + column);
#if defined(KIND_GRU_GRAD)
    if (column >= 2 * n && attr.rnn.reset_after)
        d *= get<2>(a, (b * T + time_of(s)) * 4 * n + column - n);
#endif
    return d;
}

#if DU_SPLITS
/* The same sums as a product, where nothing but the state stands between: a block has a tile of the matrix and one of
 * DU_SPLITS ranges of all steps, a thread 4 x 4 of its elements. */
ENTRY du(args a)
{
    constexpr int SIDE = BLOCK < 256 ? 1 : 16, TILE = 4 * SIDE, ROWS = 16;
    constexpr idx tiles = (width + TILE - 1) / TILE, all = (idx)BATCH * T, each = (all + DU_SPLITS - 1) / DU_SPLITS;
    __shared__ real state[ROWS][TILE + 1], slopes[ROWS][TILE + 1];
    idx k0 = (idx)blockIdx.x / tiles * TILE, c0 = (idx)blockIdx.x % tiles * TILE;
    idx first = (idx)blockIdx.y * each, last = first + each < all ? first + each : all;
    int x = (int)threadIdx.x % SIDE * 4, y = (int)threadIdx.x / SIDE * 4;
    real sum[4][4] = {};
    for (idx from = first; from < last; from += ROWS) {
        for (int i = (int)threadIdx.x; i < ROWS * TILE; i += BLOCK) {
            int r = i / TILE, c = i % TILE;
            idx g = from + r, b = g / T, s = g % T;
            state[r][c] = g < last && k0 + c < n ? (real)before<1, H0_IN>(a, b, s, k0 + c) : (real)0;
            slopes[r][c] = g < last && c0 + c < width ? (real)kept<0>(a, (b * T + time_of(s)) * width + c0 + c) : (real)0;
        }
        __syncthreads();
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++)
                    sum[i][j] += state[r][y + i] * slopes[r][x + j];
        __syncthreads();
    }
    real *part = (real *)((char *)a.workspace + DU_AT) + (idx)blockIdx.y * n * width;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (k0 + y + i < n && c0 + x + j < width)
                part[(k0 + y + i) * width + c0 + x + j] = sum[i][j];
}

ENTRY dujoin(args a)
{
    idx i = THREAD;
    double sum = 0;
    if (i >= n * width)
        return;
    for (idx s = 0; s < DU_SPLITS; s++)
        sum += (double)((const real *)((const char *)a.workspace + DU_AT))[s * n * width + i];
    put<1>(a, i, sum);
}
#endif

struct matrix : plain_sums<matrix, 1> {
    REDUCTION(matrix, 0)
    static inline void take(const args &a, double *sum, idx i, idx g)
    {
        idx k = i / width, column = i % width, b = g / T, s = g % T;
        double v = before<1, H0_IN>(a, b, s, k);
#if defined(KIND_GRU_GRAD)
        if (column >= 2 * n && !attr.rnn.reset_after)
            v *= get<2>(a, (b * T + time_of(s)) * 4 * n + n + k);
#endif
        sum[0] += keep_of(a, b, column / n * n + k) * v * gradient_at(a, b, s, column);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        put<1>(a, j, s[0]);
    }
};
REDUCTION_KERNELS(matrix, 0)

#if defined(KIND_GRU_GRAD)
struct bias : plain_sums<bias, 1> {
    REDUCTION(bias, 1)
    static inline void take(const args &a, double *sum, idx j, idx g)
    {
        sum[0] += gradient_at(a, g / T, g % T, j);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        put<2>(a, j, s[0]);
    }
};
REDUCTION_KERNELS(bias, 1)
#endif
#endif
