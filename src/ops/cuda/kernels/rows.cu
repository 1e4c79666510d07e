/*
 * rows.cu: what is computed over the last axis: softmax, layer normalization and their gradients, cross-entropy over many
 * classes. TEAM threads share a row (a warp, or the block where rows are long), each has RV elements side by side, ITEMS
 * times; where these fit into registers (HELD) a row is read once.
 */
#include "program.cuh"
static constexpr idx N = (idx)ROW_SIZE;
static constexpr int LANES = TEAM, TEAMS = BLOCK / TEAM;

static inline idx lane()
{
    return (idx)threadIdx.x % TEAM;
}

static inline idx row_number()
{
    return (idx)blockIdx.x * TEAMS + (idx)threadIdx.x / TEAM;
}

/* f over the team, in a fixed order; every thread gets the result. */
template <class F> static inline real over_team(real v, F f)
{
#ifdef MF_SHIM
    return shim_over_team(v, f, TEAM);
#else
#pragma unroll
    for (int step = (TEAM < 32 ? TEAM : 32) / 2; step > 0; step /= 2)
        v = f(v, __shfl_xor_sync(0xffffffffu, v, step));
    if constexpr (TEAM > 32) {
        __shared__ real part[32];
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            part[threadIdx.x / 32] = v;
        __syncthreads();
        v = part[0];
        for (int k = 1; k < TEAM / 32; k++)
            v = f(v, part[k]);
    }
    return v;
#endif
}

static inline real team_sum(real v)
{
    return over_team(v, [](real a, real b) { return a + b; });
}

/* NaN wins. */
static inline real team_max(real v)
{
    return over_team(v, [](real a, real b) { return a > b || a != a ? a : b; });
}

static inline real exp_of(real x)
{
#if REAL_IS_DOUBLE
    return exp(x);
#else
    return expf(x);
#endif
}

/* Unrolled where the row is held: registers have no index. */
#define ITEM_LOOP(j) for (idx it = 0, j = lane() * RV; it < ITEMS; it++, j += LANES * RV)
#if defined(MF_SHIM) || !HELD
#define EACH_ITEM(j) ITEM_LOOP(j)
#else
#define EACH_ITEM(j) _Pragma("unroll") ITEM_LOOP(j)
#endif

/* A row of an input: held in registers, or read whenever it is asked for. */
template <int I> struct row {
    real v[HELD ? ITEMS : 1][RV];
    const args &a;
    idx start;
    inline row(const args &arguments, idx first) : a(arguments), start(first)
    {
        if constexpr (HELD != 0) {
            EACH_ITEM(j)
            if (j < N)
                load_vector<in_dtype[I]>(v[it], a.in[I], start + j);
        }
    }
    inline const real (&at(idx it, idx j))[RV]
    {
        if constexpr (HELD == 0)
            load_vector<in_dtype[I]>(v[0], a.in[I], start + j);
        return v[HELD ? it : 0];
    }
};

#if defined(KIND_SOFTMAX)
ENTRY k0(args a)
{
    idx r = row_number();
    if (r >= (idx)ROWS)
        return;
    idx visible = N;
    if (attr.softmax.causal) {
        constexpr uint32_t rank = out_shape[0].rank;
        constexpr idx queries = rank > 1 ? (idx)out_shape[0].dim[rank - 2] : 1;
        idx n = r % queries + 1;
        visible = n < N ? n : N;
    }
    row<0> x(a, r * N);
    real most = -INFINITY, sum = 0;
    EACH_ITEM(j)
    if (j < visible) {
        const real(&v)[RV] = x.at(it, j);
        EACH_OF(RV) most = j + k < visible && (v[k] > most || v[k] != v[k]) ? v[k] : most;
    }
    most = team_max(most);
    EACH_ITEM(j)
    if (j < visible) {
        const real(&v)[RV] = x.at(it, j);
        EACH_OF(RV) sum += j + k < visible ? exp_of(v[k] - most) : 0;
    }
    sum = team_sum(sum);
    real log_sum = (real)log((double)sum), scale = 1 / sum;
    EACH_ITEM(j)
    if (j < N) {
        const real(&v)[RV] = x.at(it, j);
        real y[RV];
        EACH_OF(RV)
        y[k] = j + k >= visible   ? (attr.softmax.log ? (real)-INFINITY : 0)
               : attr.softmax.log ? v[k] - most - log_sum
                                  : exp_of(v[k] - most) * scale;
        store_vector<out_dtype[0], false>(a.out[0], r * N + j, y);
    }
}

#elif defined(KIND_SOFTMAX_GRAD)
ENTRY k0(args a)
{
    idx r = row_number();
    if (r >= (idx)ROWS)
        return;
    row<0> dy(a, r * N);
    row<1> y(a, r * N);
    real sum = 0;
    EACH_ITEM(j)
    if (j < N) {
        const real(&d)[RV] = dy.at(it, j);
        const real(&v)[RV] = y.at(it, j);
        EACH_OF(RV) sum += attr.softmax.log ? d[k] : d[k] * v[k];
    }
    sum = team_sum(sum);
    EACH_ITEM(j)
    if (j < N) {
        const real(&d)[RV] = dy.at(it, j);
        const real(&v)[RV] = y.at(it, j);
        real dx[RV];
        EACH_OF(RV) dx[k] = attr.softmax.log ? d[k] - exp_of(v[k]) * sum : v[k] * (d[k] - sum);
        store_vector<out_dtype[0], false>(a.out[0], r * N + j, dx);
    }
}

#elif defined(KIND_LAYER_NORM)
/* Entry j + k of gamma or beta. */
template <int I> static inline void entries(const args &a, idx j, real otherwise, real (&to)[RV])
{
    if constexpr (in_here[I])
        load_vector<in_dtype[I]>(to, a.in[I], j);
    else
        EACH_OF(RV) to[k] = otherwise;
}

ENTRY k0(args a)
{
    idx r = row_number();
    if (r >= (idx)ROWS)
        return;
    row<0> x(a, r * N);
    real mean = 0, square = 0;
    if (!attr.norm.rms) {
        EACH_ITEM(j)
        if (j < N) {
            const real(&v)[RV] = x.at(it, j);
            EACH_OF(RV) mean += v[k];
        }
        mean = team_sum(mean) / (real)N;
    }
    EACH_ITEM(j)
    if (j < N) {
        const real(&v)[RV] = x.at(it, j);
        EACH_OF(RV) square += (v[k] - mean) * (v[k] - mean);
    }
    real rstd = (real)(1 / sqrt((double)team_sum(square) / (double)N + attr.norm.epsilon));
    EACH_ITEM(j)
    if (j < N) {
        const real(&v)[RV] = x.at(it, j);
        real gamma[RV], beta[RV], y[RV];
        entries<1>(a, j, 1, gamma);
        entries<2>(a, j, 0, beta);
        EACH_OF(RV) y[k] = (v[k] - mean) * rstd * gamma[k] + beta[k];
        store_vector<out_dtype[0], false>(a.out[0], r * N + j, y);
    }
    if (lane() == 0) {
        if (out_here[1])
            set<1>(a, r, (double)mean);
        if (out_here[2])
            set<2>(a, r, (double)rstd);
    }
}

#elif defined(KIND_LAYER_NORM_GRAD)
ENTRY k1(args a) /* dx, behind the sums: it may lie over dy */
{
    idx r = row_number();
    if (r >= (idx)ROWS)
        return;
    row<0> dy(a, r * N);
    row<1> x(a, r * N);
    real mean = (real)get_or<2>(a, r, 0), rstd = (real)get<3>(a, r), sum = 0, product = 0;
    EACH_ITEM(j)
    if (j < N) {
        const real(&d)[RV] = dy.at(it, j);
        const real(&v)[RV] = x.at(it, j);
        EACH_OF(RV)
        {
            real g = in_here[4] ? d[k] * load_one<in_dtype[4]>(a.in[4], j + k) : d[k];
            sum += g;
            product += g * ((v[k] - mean) * rstd);
        }
    }
    sum = attr.norm.rms ? 0 : team_sum(sum) / (real)N;
    product = team_sum(product) / (real)N;
    EACH_ITEM(j)
    if (j < N) {
        const real(&d)[RV] = dy.at(it, j);
        const real(&v)[RV] = x.at(it, j);
        real dx[RV];
        EACH_OF(RV)
        {
            real g = in_here[4] ? d[k] * load_one<in_dtype[4]>(a.in[4], j + k) : d[k];
            dx[k] = rstd * (g - sum - (v[k] - mean) * rstd * product);
        }
        store_vector<out_dtype[0], false>(a.out[0], r * N + j, dx);
    }
}

#ifdef HAS_SUMS
/* dgamma and dbeta: sums over rows (program.cu). */
struct channel_values {
    real unused;
};
template <bool WRITE> static inline void program_channel(const args &a, idx c, channel_values &p)
{
}
struct take_row {
    vector<in_dtype[0], V> dy;
    vector<in_dtype[1], V> x;
    real mean, rstd;
};
static inline void program_fetch(const args &a, idx i, take_row &q)
{
    idx r = i / (idx)PC;
    fetch_vector(q.dy, a.in[0], i);
    fetch_vector(q.x, a.in[1], i);
    q.mean = (real)get_or<2>(a, r, 0);
    q.rstd = (real)get<3>(a, r);
}
#define take_AT_ONCE 2
static inline void program_take(const args &a, idx i, const channel_values &p, const take_row &q, real (&x)[2][V])
{
    widen_vector(x[0], q.dy);
    widen_vector(x[1], q.x);
    EACH x[1][k] = (x[1][k] - q.mean) * q.rstd;
}
static inline void program_finish(const args &a, idx j, const double *s)
{
    if (out_here[1])
        put<1>(a, j, s[1]);
    if (out_here[2])
        put<2>(a, j, s[0]);
}
#include "program.cu"
#endif
#endif
