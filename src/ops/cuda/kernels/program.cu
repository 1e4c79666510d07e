/* program.cu: a program's kernels; see program.h for what each does, program_text.c for what they call. */
#if BY_CHANNEL

/* A thread's place: V channels from c on, and every TY-th row. */
struct place {
    idx tx, ty, c;
    bool here;
};

static inline place place_of()
{
    place at;
    at.tx = (idx)threadIdx.x % TX;
    at.ty = (idx)threadIdx.x / TX;
    at.c = ((idx)blockIdx.x * TX + at.tx) * V;
    at.here = at.ty < TY && at.c < (idx)PC;
    return at;
}

#ifdef HAS_SUMS
/* Sums of squares are taken around a number near the mean: that of some rows. */
static inline void shift_of(const args &a, idx c, const channel_values &p, real (&shift)[V])
{
    constexpr idx some = PR < 4 ? (idx)PR : 4;
    EACH shift[k] = 0;
    for (idx r = 0; r < some; r++) {
        real x[2][V];
        take_row q;
        idx i = r * ((idx)PR / some) * (idx)PC + c;
        program_fetch(a, i, q);
        program_take(a, i, p, q, x);
        EACH shift[k] += x[0][k] / (real)some;
    }
}

static inline void add_row(const real (&x)[2][V], const real (&shift)[V], real (&sum)[NACC][V])
{
    EACH
    {
#if SUM_KIND == 0
        real d = x[0][k] - shift[k];
        sum[0][k] += d;
        sum[1][k] += d * d;
#elif SUM_KIND == 1
        sum[0][k] += x[0][k];
        sum[1][k] += x[0][k] * x[1][k];
#else
        sum[0][k] += x[0][k];
#endif
    }
}

ENTRY sums0(args a)
{
    __shared__ real part[NACC * V][BLOCK];
    place at = place_of();
    real sum[NACC][V] = {}, shift[V] = {};
    if (at.here) {
        channel_values p;
        program_channel<false>(a, at.c, p);
#if SUM_KIND == 0
        shift_of(a, at.c, p, shift);
#endif
        constexpr idx step = TY * (idx)SPLITS;
        for (idx r = (idx)blockIdx.y * TY + at.ty; r < (idx)PR; r += take_AT_ONCE * step) {
            take_row q[take_AT_ONCE];
            EACH_ROW(take_AT_ONCE)
            if (u == 0 || r < (idx)PR - u * step)
                program_fetch(a, (r + u * step) * (idx)PC + at.c, q[u]);
            EACH_ROW(take_AT_ONCE)
            if (u == 0 || r < (idx)PR - u * step) {
                real x[2][V];
                program_take(a, (r + u * step) * (idx)PC + at.c, p, q[u], x);
                add_row(x, shift, sum);
            }
        }
    }
    for (int n = 0; n < NACC; n++)
        EACH part[n * V + k][threadIdx.x] = sum[n][k];
    __syncthreads();
    for (int rows = TY / 2; rows > 0; rows /= 2) {
        if (at.ty < rows)
            for (int q = 0; q < NACC * V; q++)
                part[q][threadIdx.x] += part[q][threadIdx.x + rows * TX];
        __syncthreads();
    }
    if (!at.here || at.ty > 0)
        return;
    double *to = (double *)((char *)a.workspace + PARTS_AT) + ((idx)blockIdx.y * (idx)PC + at.c) * NACC;
    for (int n = 0; n < NACC; n++)
        EACH to[k * NACC + n] = (double)part[n * V + k][threadIdx.x];
#if SUM_KIND == 0
    if (blockIdx.y == 0)
        EACH kept_sums(a)[3 * (at.c + k)] = (double)shift[k];
#endif
}

/* JOIN_X channels a block, the others of its threads share their parts. True: this thread has channel j's sums. */
template <int N>
static inline bool join_parts(const double *from, idx splits, double (&part)[N][BLOCK], idx &j, double (&sum)[N])
{
    constexpr int lanes = BLOCK / JOIN_X;
    idx lane = (idx)threadIdx.x / JOIN_X;
    j = (idx)blockIdx.x * JOIN_X + (idx)threadIdx.x % JOIN_X;
    for (int n = 0; n < N; n++)
        sum[n] = 0;
    for (idx s = lane; s < splits && j < (idx)PC; s += lanes)
        for (int n = 0; n < N; n++)
            sum[n] += from[(s * (idx)PC + j) * N + n];
    for (int n = 0; n < N; n++)
        part[n][threadIdx.x] = sum[n];
    __syncthreads();
    for (int rows = lanes / 2; rows > 0; rows /= 2) {
        if (lane < rows)
            for (int n = 0; n < N; n++)
                part[n][threadIdx.x] += part[n][threadIdx.x + rows * JOIN_X];
        __syncthreads();
    }
    for (int n = 0; n < N; n++)
        sum[n] = part[n][threadIdx.x];
    return lane == 0 && j < (idx)PC;
}

ENTRY join0(args a)
{
    __shared__ double part[NACC][BLOCK];
    idx j;
    double sum[NACC];
    if (join_parts((const double *)((const char *)a.workspace + PARTS_AT), (idx)SPLITS, part, j, sum))
        program_finish(a, j, sum);
}
#endif

#ifdef HAS_LATE
#define WRITE_ROW(i, q) program_write(a, i, p, q, late)
#else
#define WRITE_ROW(i, q) program_write(a, i, p, q)
#endif

#ifdef HAS_WRITES
ENTRY k0(args a)
{
    place at = place_of();
#ifdef HAS_LATE
    __shared__ real part[V][BLOCK];
    real late[V] = {};
#endif
    if (at.here) {
        channel_values p;
        program_channel<true>(a, at.c, p);
        /* The last rows first: whoever came before, the sums or another operation, has left them in the cache. */
        const idx first = ((idx)WRITE_SPLITS - 1 - (idx)blockIdx.y) * (idx)WRITE_ROWS;
        const idx end = first < (idx)PR - (idx)WRITE_ROWS ? first + (idx)WRITE_ROWS : (idx)PR;
        for (idx r = first + at.ty; r < end; r += write_AT_ONCE * TY) {
            write_row q[write_AT_ONCE];
            EACH_ROW(write_AT_ONCE)
            if (u == 0 || r < end - u * TY)
                program_fetch(a, (r + u * TY) * (idx)PC + at.c, q[u]);
            EACH_ROW(write_AT_ONCE)
            if (u == 0 || r < end - u * TY)
                WRITE_ROW((r + u * TY) * (idx)PC + at.c, q[u]);
        }
    }
#ifdef HAS_LATE
    EACH part[k][threadIdx.x] = late[k];
    __syncthreads();
    for (int rows = TY / 2; rows > 0; rows /= 2) {
        if (at.ty < rows)
            EACH part[k][threadIdx.x] += part[k][threadIdx.x + rows * TX];
        __syncthreads();
    }
    if (at.here && at.ty == 0)
        EACH ((double *)((char *)a.workspace + LATE_AT))[(idx)blockIdx.y * (idx)PC + at.c + k] =
            (double)part[k][threadIdx.x];
#endif
}
#endif

#ifdef HAS_LATE
ENTRY late0(args a)
{
    __shared__ double part[1][BLOCK];
    idx j;
    double sum[1];
    if (join_parts((const double *)((const char *)a.workspace + LATE_AT), (idx)WRITE_SPLITS, part, j, sum))
        program_late(a, j, sum);
}
#endif

#elif defined(HAS_WRITES)
ENTRY k0(args a)
{
    idx i = THREAD * V;
    if (i >= (idx)PN)
        return;
    channel_values p;
    program_channel<true>(a, 0, p);
    write_row q;
    program_fetch(a, i, q);
    program_write(a, i, p, q);
}
#endif
