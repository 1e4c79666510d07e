/*
 * device.cuh: what every kernel begins with. Compiled by NVRTC with -default-device, and by a C++ compiler on the host
 * for tests (MF_SHIM, one thread a block). What an activation, a loss, an update, a resize or a random number means is
 * the reference's own text (shared.cuh); here are types, operands and sums over a block.
 *
 * A kernel is compiled for one operation: the text in front of a family (`spec`, made by cuda_spec.c) has its types,
 * shapes and attributes as constants. All kernels take the same argument: addresses of operands, workspace, scalars.
 */
#ifndef MF_DEVICE_CUH
#define MF_DEVICE_CUH

#ifdef MF_SHIM
#include "shim.h"
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define UINT32_MAX 0xffffffffu
#define INT64_MIN (-0x7fffffffffffffffLL - 1)
#define INT64_MAX 0x7fffffffffffffffLL
#define UINT64_C(x) x##ull
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define M_LN2 0.69314718055994530942
#define INFINITY ((float)__builtin_bit_cast(double, 0x7ff0000000000000ull))
#define NAN ((float)__builtin_bit_cast(double, 0x7ff8000000000000ull))
static inline void *memcpy(void *to, const void *from, unsigned long bytes)
{
    for (unsigned long i = 0; i < bytes; i++)
        ((char *)to)[i] = ((const char *)from)[i];
    return to;
}
#define memmove memcpy /* of single elements */
#endif
typedef IDX idx; /* int where every index fits */
#define NUMBER(bits) __builtin_bit_cast(double, bits)

typedef int memfit_status;
typedef int memfit_kind;
typedef struct memfit_error {
    int unused;
} memfit_error;
typedef struct memfit_host memfit_host;
typedef struct mf_arena {
    int unused;
} mf_arena;
#define MEMFIT_OK 0
#define MEMFIT_FAILED 1
#define mf_fail(...) MEMFIT_FAILED
#include "graph/augment.h"
#include "graph/graph.h"

/* As ops.h has it; cuda_backend.c checks that the two agree. */
typedef struct mf_run_scalars {
    uint64_t seed, first_sample;
    double batch_samples, weight_sum, learning_rate;
    uint64_t group_steps;
    uint64_t step, iteration;
    double loss_scale;
    uint64_t good_steps, steps;
    double loss, loss_sum, loss_weight, seen_sum, seen_weight;
    uint64_t diverged_at;
    double diverged_loss;
} mf_run_scalars;

/* A pointer that becomes any pointer, as void * does in C. */
struct any_pointer {
    void *p;
    template <class T> operator T *() const
    {
        return (T *)p;
    }
    explicit operator bool() const
    {
        return p != 0;
    }
};

typedef struct mf_ref_arg {
    any_pointer data;
    mf_dtype dtype;
    const mf_shape *shape;
    uint64_t count;
} mf_ref_arg;

typedef struct mf_ref_call {
    const mf_op *op;
    const mf_graph *graph;
    mf_ref_arg *in, *out;
    uint32_t in_count, out_count;
    const mf_run_scalars *scalars;
    double *scratch;
} mf_ref_call;

typedef struct mf_ref_window {
    int64_t batch, in[3], in_channels, out[3], out_channels;
    int64_t kernel[3], stride[3], dilation[3], before[3], groups;
} mf_ref_window;

static inline constexpr int64_t mf_ref_span(const mf_shape *shape, uint32_t first, uint32_t last)
{
    int64_t n = 1;
    for (uint32_t i = first; i < last && i < shape->rank; i++)
        n *= shape->dim[i];
    return n;
}

static inline constexpr int64_t shape_count(const mf_shape &shape)
{
    return mf_ref_span(&shape, 0, shape.rank);
}

#include "shared.cuh"

/* ---- operands ---- */

/* An index of an output and where it lies in another tensor: strides in elements, 0 where it is broadcast. */
struct walk {
    int rank;
    idx dim[MF_MOST_DIMS], stride[MF_MOST_DIMS];
};

static inline constexpr idx walk_at(const walk &w, idx i)
{
    idx at = 0;
#ifndef MF_SHIM
#pragma unroll
#endif
    for (int d = MF_MOST_DIMS - 1; d >= 0; d--)
        if (d < w.rank) {
            if (d == 0)
                at += i * w.stride[d];
            else {
                at += i % w.dim[d] * w.stride[d];
                i /= w.dim[d];
            }
        }
    return at;
}

/* x's elements for an index of `out`, aligned at the right. */
static inline constexpr walk broadcast_walk(const mf_shape &out, const mf_shape &x)
{
    walk w = {};
    w.rank = (int)out.rank;
    for (uint32_t i = 0; i < out.rank; i++)
        w.dim[i] = (idx)out.dim[i];
    idx step = 1;
    for (uint32_t i = 0; i < x.rank && i < out.rank; i++) {
        w.stride[out.rank - 1 - i] = x.dim[x.rank - 1 - i] == 1 ? 0 : step;
        step *= (idx)x.dim[x.rank - 1 - i];
    }
    return w;
}

/* The axes whose bit in `axes` is `gone`, with their strides in x. */
static inline constexpr walk part_walk(const mf_shape &x, uint32_t axes, bool gone)
{
    walk w = {};
    idx stride[MF_MOST_DIMS] = {}, step = 1;
    for (int i = (int)x.rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= (idx)x.dim[i];
    }
    for (uint32_t i = 0; i < x.rank; i++)
        if (((axes >> i & 1) != 0) == gone) {
            w.dim[w.rank] = (idx)x.dim[i];
            w.stride[w.rank++] = stride[i];
        }
    return w;
}

/* The index of an element among its sample's random draws: axes that share a draw, and the sample's own, count nothing. */
static inline constexpr walk draw_walk_of(const mf_shape &shape, uint32_t shared)
{
    walk w = {};
    w.rank = (int)shape.rank;
    idx step = 1;
    for (int i = (int)shape.rank - 1; i >= 0; i--) {
        bool skip = i == 0 || (shared >> i & 1);
        w.dim[i] = (idx)shape.dim[i];
        w.stride[i] = skip ? 0 : step;
        step *= skip ? 1 : (idx)shape.dim[i];
    }
    return w;
}

/* ---- sums over a block of BLOCK threads (a power of two) ---- */

template <class F> static inline double block_combine(double v, F f)
{
    __shared__ double part[BLOCK];
    __syncthreads();
    part[threadIdx.x] = v;
    __syncthreads();
    for (unsigned n = BLOCK / 2; n > 0; n /= 2) {
        if (threadIdx.x < n)
            part[threadIdx.x] = f(part[threadIdx.x], part[threadIdx.x + n]);
        __syncthreads();
    }
    return part[0];
}

static inline double block_sum(double v)
{
    return block_combine(v, [](double a, double b) { return a + b; });
}

static inline double block_max(double v)
{
    return block_combine(v, [](double a, double b) { return a > b || a != a ? a : b; });
}

#define ENTRY extern "C" __global__ void __launch_bounds__(BLOCK)
#define THREAD ((idx)blockIdx.x * BLOCK + (idx)threadIdx.x)

#endif
