/*
 * reduce.cuh: sums over axes, always in the same order, without atomics. A hook H says what is summed:
 *
 *     OUT, GONE      how many results there are, how many elements each has
 *     NACC           numbers that are carried along
 *     zero, take, merge, finish
 *
 * A block has TX results side by side and BLOCK / TX threads for each; SPLITS blocks share a result's elements, leave
 * what they have in the workspace, and a second kernel joins it. The host chooses TX and SPLITS (cuda_spec.c).
 */
template <class H> struct sums {
    double v[H::NACC];
};

template <class H> static inline void reduce_write(const args &a, idx j, const sums<H> &s, idx split)
{
    double *to = (double *)((char *)a.workspace + H::AT) + (split * H::OUT + j) * H::NACC;
    for (int k = 0; k < H::NACC; k++)
        to[k] = s.v[k];
}

template <class H> static inline void reduce_main(const args &a)
{
    constexpr int TX = H::TX, TY = BLOCK / TX;
    __shared__ double part[BLOCK][H::NACC];
    idx tx = (idx)threadIdx.x % TX, ty = (idx)threadIdx.x / TX, j = (idx)blockIdx.x * TX + tx;
    sums<H> s;
    H::zero(s.v);
    if (j < H::OUT)
        H::range(a, s.v, j, (idx)blockIdx.y * TY + ty, TY * H::SPLITS);
    for (int k = 0; k < H::NACC; k++)
        part[threadIdx.x][k] = s.v[k];
    __syncthreads();
    for (int n = TY / 2; n > 0; n /= 2) {
        if (ty < n)
            H::merge(part[threadIdx.x], part[threadIdx.x + n * TX]);
        __syncthreads();
    }
    if (ty == 0 && j < H::OUT) {
        if (H::SPLITS == 1)
            H::finish(a, j, part[threadIdx.x]);
        else {
            for (int k = 0; k < H::NACC; k++)
                s.v[k] = part[threadIdx.x][k];
            reduce_write<H>(a, j, s, (idx)blockIdx.y);
        }
    }
}

template <class H> static inline void reduce_join(const args &a)
{
    idx j = THREAD;
    if (j >= H::OUT)
        return;
    sums<H> s;
    H::zero(s.v);
    for (idx k = 0; k < H::SPLITS; k++)
        H::merge(s.v, (double *)((char *)a.workspace + H::AT) + (k * H::OUT + j) * H::NACC);
    H::finish(a, j, s.v);
}

/* What most hooks share: plain sums, element by element. */
template <class H, int N> struct plain_sums {
    static constexpr int NACC = N;
    static inline void zero(double *s)
    {
        for (int k = 0; k < N; k++)
            s[k] = 0;
    }
    static inline void merge(double *s, const double *other)
    {
        for (int k = 0; k < N; k++)
            s[k] += other[k];
    }
    static inline void range(const args &a, double *s, idx j, idx first, idx step)
    {
        for (idx g = first; g < H::GONE; g += step)
            H::take(a, s, j, g);
    }
};

#define REDUCTION(H, n)                                                                                                \
    static constexpr idx OUT = (idx)R##n##_OUT, GONE = (idx)R##n##_GONE;                                               \
    static constexpr int TX = R##n##_TX;                                                                               \
    static constexpr idx SPLITS = R##n##_SPLITS;                                                                       \
    static constexpr long long AT = R##n##_AT;
#define REDUCTION_KERNELS(H, n)                                                                                        \
    ENTRY reduce##n(args a)                                                                                           \
    {                                                                                                                  \
        reduce_main<H>(a);                                                                                             \
    }                                                                                                                  \
    ENTRY join##n(args a)                                                                                             \
    {                                                                                                                  \
        reduce_join<H>(a);                                                                                             \
    }
/* Numbers that one kernel leaves for the next, at KEPT in the workspace. */
#define kept_sums(a) ((double *)((char *)(a).workspace + KEPT_AT))
