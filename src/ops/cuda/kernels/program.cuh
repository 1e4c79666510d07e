/* program.cuh: what the text of a program (program_text.c) is written with: V elements side by side in `real`. */
#ifndef MF_PROGRAM_CUH
#define MF_PROGRAM_CUH
#ifdef MF_SHIM
#define EACH_OF(n) for (int k = 0; k < (n); k++)
#else
#define EACH_OF(n) _Pragma("unroll") for (int k = 0; k < (n); k++)
#endif
#define EACH EACH_OF(V)
#ifdef MF_SHIM
#define EACH_ROW(n) for (int u = 0; u < (n); u++)
#else
#define EACH_ROW(n) _Pragma("unroll") for (int u = 0; u < (n); u++)
#endif
#undef kept_sums
#define kept_sums(a) ((double *)((char *)(a).workspace + KEPT_AT))

/* ---- elements ---- */

template <mf_dtype D> struct stored {
    typedef float type;
};
template <> struct stored<MF_F64> {
    typedef double type;
};
template <> struct stored<MF_BF16> {
    typedef uint16_t type;
};
template <> struct stored<MF_F16> {
    typedef uint16_t type;
};
template <> struct stored<MF_U8> {
    typedef uint8_t type;
};
template <> struct stored<MF_BOOL> {
    typedef uint8_t type;
};

template <mf_dtype D> static inline real widen(typename stored<D>::type v)
{
    if constexpr (D == MF_BF16)
        return (real)__builtin_bit_cast(float, (uint32_t)v << 16);
    else if constexpr (D == MF_F16) {
#ifdef MF_SHIM
        return (real)mf_ref_load(MF_F16, &v, 0);
#else
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
        return (real)f;
#endif
    } else
        return (real)v;
}

template <mf_dtype D> static inline typename stored<D>::type narrow(real v)
{
    if constexpr (D == MF_BF16 || D == MF_F16) {
        uint16_t h;
#if defined(MF_SHIM) || REAL_IS_DOUBLE
        mf_ref_store(D, &h, 0, (double)v);
#else
        if constexpr (D == MF_F16)
            asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
        else {
#if __CUDA_ARCH__ >= 800
            asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
#else
            uint32_t bits = __builtin_bit_cast(uint32_t, v);
            h = v != v ? (uint16_t)(bits >> 16 | 0x40) : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
#endif
        }
#endif
        return h;
    } else
        return (typename stored<D>::type)v;
}

template <mf_dtype D, int N>
struct alignas(sizeof(typename stored<D>::type) * N > 16 ? 16 : sizeof(typename stored<D>::type) * N) vector {
    typename stored<D>::type v[N];
};

template <mf_dtype D, int N> static inline void fetch_vector(vector<D, N> &to, const void *from, idx i)
{
    to = *(const vector<D, N> *)((const typename stored<D>::type *)from + i);
}

template <mf_dtype D, int N> static inline void widen_vector(real (&to)[N], const vector<D, N> &from)
{
    EACH_OF(N) to[k] = widen<D>(from.v[k]);
}

template <mf_dtype D, int N> static inline void load_vector(real (&to)[N], const void *from, idx i)
{
    vector<D, N> x;
    fetch_vector(x, from, i);
    widen_vector(to, x);
}

template <mf_dtype D> static inline real load_one(const void *from, idx i)
{
    return widen<D>(((const typename stored<D>::type *)from)[i]);
}

/* Input I, repeated along the axes it lacks. */
template <mf_dtype D, int I, int N> static inline void load_walk(real (&to)[N], const void *from, idx i)
{
    constexpr walk w = broadcast_walk(domain, in_shape[I]);
    EACH_OF(N) to[k] = load_one<D>(from, walk_at(w, i + k));
}

template <mf_dtype D, bool ADDS, int N> static inline void store_vector(void *to, idx i, const real (&from)[N])
{
    vector<D, N> *at = (vector<D, N> *)((typename stored<D>::type *)to + i), x;
    if (ADDS)
        x = *at;
    EACH_OF(N) x.v[k] = narrow<D>(ADDS ? widen<D>(x.v[k]) + from[k] : from[k]);
    *at = x;
}

template <mf_dtype D, bool ADDS> static inline void store_one(void *to, idx i, real v)
{
    typename stored<D>::type *at = (typename stored<D>::type *)to + i;
    *at = narrow<D>(ADDS ? widen<D>(*at) + v : v);
}

template <int RELU6, int N> static inline void store_bits(void *to, idx i, const real (&x)[N])
{
    unsigned bits = 0;
    EACH_OF(N) bits |= (unsigned)(x[k] > 0 && (!RELU6 || x[k] < 6)) << k;
    ((uint8_t *)to)[i / 8] = (uint8_t)bits;
}

/* ---- formulas: the reference's, in float32 where that is near enough ---- */

static inline double unary_of(mf_unary f, double alpha, double beta, double x)
{
    return mf_unary_value(f, alpha, beta, x);
}

static inline float sigmoid_f(float x)
{
    float e = expf(-fabsf(x));
    return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

static inline float gelu_inner(float x)
{
    return 0.7978845608028654f * (x + 0.044715f * x * x * x);
}

static inline float unary_of(mf_unary f, float alpha, float beta, float x)
{
    switch (f) {
    case MF_UNARY_LINEAR:
        return x;
    case MF_UNARY_RELU:
        return x < 0 ? 0 : x;
    case MF_UNARY_RELU6:
        return x < 0 ? 0 : x > 6 ? 6 : x;
    case MF_UNARY_LEAKY_RELU:
        return x > 0 ? x : alpha * x;
    case MF_UNARY_ELU:
        return x > 0 ? x : alpha * expm1f(x);
    case MF_UNARY_SIGMOID:
        return sigmoid_f(x);
    case MF_UNARY_SILU:
        return x * sigmoid_f(x);
    case MF_UNARY_TANH:
        return tanhf(x);
    case MF_UNARY_GELU:
        return 0.5f * x * erfcf(-x * 0.70710678118654752f);
    case MF_UNARY_GELU_TANH:
        return 0.5f * x * (1 + tanhf(gelu_inner(x)));
    case MF_UNARY_HARD_SIGMOID:
        return (x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6;
    case MF_UNARY_HARD_SILU:
        return x * (x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6;
    case MF_UNARY_EXP:
        return expf(x);
    case MF_UNARY_SQRT:
        return sqrtf(x);
    case MF_UNARY_SQUARE:
        return x * x;
    case MF_UNARY_ABS:
        return fabsf(x);
    case MF_UNARY_NEG:
        return -x;
    case MF_UNARY_RECIPROCAL:
        return 1 / x;
    case MF_UNARY_CLIP:
        return x < alpha ? alpha : x > beta ? beta : x;
    case MF_UNARY_AFFINE:
        return alpha * x + beta;
    default:
        return (float)mf_unary_value(f, alpha, beta, x);
    }
}

template <bool OUTPUT> static inline double slope_of(mf_unary f, double alpha, double beta, double x)
{
    return mf_unary_slope(f, alpha, beta, OUTPUT, x);
}

template <bool OUTPUT> static inline float slope_of(mf_unary f, float alpha, float beta, float x)
{
    if (OUTPUT)
        switch (f) {
        case MF_UNARY_RELU:
            return x > 0;
        case MF_UNARY_RELU6:
            return x > 0 && x < 6;
        case MF_UNARY_LEAKY_RELU:
            return x > 0 ? 1 : alpha;
        case MF_UNARY_ELU:
            return x > 0 ? 1 : x + alpha;
        case MF_UNARY_SIGMOID:
            return x * (1 - x);
        case MF_UNARY_TANH:
            return 1 - x * x;
        case MF_UNARY_EXP:
            return x;
        default:
            break;
        }
    else
        switch (f) {
        case MF_UNARY_SILU: {
            float s = sigmoid_f(x);
            return s * (1 + x * (1 - s));
        }
        case MF_UNARY_GELU:
            return 0.5f * erfcf(-x * 0.70710678118654752f) + x * expf(-0.5f * x * x) * 0.3989422804014327f;
        case MF_UNARY_GELU_TANH: {
            float t = tanhf(gelu_inner(x));
            return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
        }
        case MF_UNARY_SQUARE:
            return 2 * x;
        default:
            break;
        }
    return (float)mf_unary_slope(f, alpha, beta, OUTPUT, x);
}

static inline real binary_of(mf_binary f, real a, real b)
{
    switch (f) {
    case MF_ADD:
        return a + b;
    case MF_SUB:
        return a - b;
    case MF_MUL:
        return a * b;
    case MF_DIV:
        return a / b;
    case MF_MAX:
        return a >= b || a != a ? a : b;
    case MF_MIN:
        return a <= b || a != a ? a : b;
    case MF_SQUARED_DIFFERENCE:
        return (a - b) * (a - b);
    default:
        return (real)binary_value(f, (double)a, (double)b);
    }
}

/* Not after the query: the last two axes are query and key. */
static inline bool causal_at(idx i)
{
    constexpr uint32_t rank = domain.rank;
    constexpr idx last = rank > 0 ? (idx)domain.dim[rank - 1] : 1;
    constexpr idx before = rank > 1 ? (idx)domain.dim[rank - 2] : 1;
    return i % last <= i / last % before;
}

template <uint32_t KEY, uint32_t SHARED> static inline real dropped(const args &a, idx i, double rate, real x)
{
    constexpr walk w = draw_walk_of(domain, SHARED);
    constexpr idx each_sample = domain.rank ? (idx)(shape_count(domain) / domain.dim[0]) : 1;
    mf_draw draw;
    mf_draw_begin(&draw, a.s, KEY, (SHARED & 1) ? 0 : a.s->first_sample + (uint64_t)(i / each_sample));
    real scale = rate < 1 ? (real)(1 / (1 - rate)) : 0;
    return mf_draw_uniform(&draw, (uint64_t)walk_at(w, i)) >= rate ? x * scale : 0;
}
#endif
