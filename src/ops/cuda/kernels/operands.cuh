/* operands.cuh: reading and writing an operation's operands; comes behind the spec. The reference reads operands in the
 * type it computes in (`real`) unless a row says raw; so do get and put here. */
#ifndef MF_OPERANDS_CUH
#define MF_OPERANDS_CUH
template <int I> static inline double get(const args &a, idx i)
{
    return (double)(real)mf_ref_load(in_dtype[I], a.in[I], (uint64_t)i);
}

template <int I> static inline double get_or(const args &a, idx i, double otherwise)
{
    return in_here[I] ? get<I>(a, i) : otherwise;
}

template <int I> static inline double get_raw(const args &a, idx i)
{
    return mf_ref_load(in_dtype[I], a.in[I], (uint64_t)i);
}

template <int I> static inline int64_t get_int(const args &a, idx i)
{
    return mf_ref_load_int(in_dtype[I], a.in[I], (uint64_t)i);
}

/* Writes, or adds where the operation accumulates into a variable. */
template <int I> static inline void put(const args &a, idx i, double v)
{
    double r = (double)(real)v;
    if (out_adds[I])
        r += mf_ref_load(out_dtype[I], a.out[I], (uint64_t)i);
    mf_ref_store(out_dtype[I], a.out[I], (uint64_t)i, r);
}

/* What an output holds now: state that is changed in place. */
template <int I> static inline double kept(const args &a, idx i)
{
    return (double)(real)mf_ref_load(out_dtype[I], a.out[I], (uint64_t)i);
}

template <int I> static inline void set(const args &a, idx i, double v)
{
    mf_ref_store(out_dtype[I], a.out[I], (uint64_t)i, (double)(real)v);
}

static constexpr int64_t in_count(int i)
{
    return shape_count(in_shape[i]);
}

static constexpr int64_t out_count(int i)
{
    return shape_count(out_shape[i]);
}

/* One element, whatever it is. */
static inline void move_element(mf_dtype dtype, void *to, idx i, const void *from, idx j)
{
    switch (dtype) {
    case MF_F64:
    case MF_I64:
    case MF_U64:
        ((uint64_t *)to)[i] = ((const uint64_t *)from)[j];
        break;
    case MF_F16:
    case MF_BF16:
    case MF_I16:
    case MF_U16:
        ((uint16_t *)to)[i] = ((const uint16_t *)from)[j];
        break;
    case MF_I8:
    case MF_U8:
    case MF_BOOL:
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[j];
        break;
    default:
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[j];
        break;
    }
}
#endif
