/* move.cu: elements that go elsewhere unseen. One thread an element of the output. */
static inline void each(const args &a, idx i)
{
#if defined(KIND_CAST)
    if (out_adds[0])
        mf_ref_store(out_dtype[0], a.out[0], i,
                     mf_ref_load(out_dtype[0], a.out[0], i) + mf_ref_load(in_dtype[0], a.in[0], i));
    else
        mf_ref_convert(out_dtype[0], (char *)a.out[0] + i * OUT_SIZE, in_dtype[0], (const char *)a.in[0] + i * IN_SIZE,
                       1);
#elif defined(KIND_TRANSPOSE) || defined(KIND_SLICE)
    constexpr walk w = spec_walk;
    move_element(out_dtype[0], a.out[0], i, a.in[0], START + walk_at(w, i));
#elif defined(KIND_PAD)
    idx rest = i, source = 0, stride = 1;
    bool padding = false;
#ifndef MF_SHIM
#pragma unroll
#endif
    for (int d = (int)out_shape[0].rank - 1; d >= 0; d--) {
        idx size = (idx)in_shape[0].dim[d], p = rest % (idx)out_shape[0].dim[d] - (idx)attr.pad.before[d];
        rest /= (idx)out_shape[0].dim[d];
        idx between = (idx)attr.pad.between[d] + 1;
        if (attr.pad.mode == 0) {
            padding = padding || p < 0 || p % between != 0 || p / between >= size;
            p = p / between;
        } else if (attr.pad.mode == 3)
            p = p < 0 ? 0 : p >= size ? size - 1 : p;
        else {
            idx period = attr.pad.mode == 1 ? 2 * (size - 1) : 2 * size;
            p = period == 0 ? 0 : (p % period + period) % period;
            p = p < size ? p : attr.pad.mode == 1 ? period - p : period - 1 - p;
        }
        source += p * stride;
        stride *= size;
    }
    if (padding)
        mf_ref_store(out_dtype[0], a.out[0], (uint64_t)i, attr.pad.value);
    else
        move_element(out_dtype[0], a.out[0], i, a.in[0], source);
#elif defined(KIND_GATHER)
    int64_t row = get_int<1>(a, i / (idx)WIDTH);
    if (row < 0 || row >= in_shape[0].dim[0])
        set<0>(a, i, NAN); /* the executor's check of the loss finds it */
    else
        set<0>(a, i, get<0>(a, (idx)row * (idx)WIDTH + i % (idx)WIDTH));
#endif
}

#if defined(KIND_CONCAT)
/* The grid's y is the input: `size` elements of it stand together, WHOLE in the output, behind `before`. */
template <int I> static inline void part(const args &a, idx size, idx before)
{
    idx i = THREAD;
    if ((int)blockIdx.y == I && i < (idx)in_count(I))
        move_element(out_dtype[0], a.out[0], i / size * (idx)WHOLE + before + i % size, a.in[I], i);
}
ENTRY k0(args a)
{
    CONCAT_PARTS
}
#elif defined(KIND_GATHER_GRAD)
/* One block a row of the table: it looks through all indices, a block of them at a time, so that the order of every sum is
 * the indices' own. Most rows are in few of them: where none of a block is this row's, it goes on at once. */
ENTRY k0(args a)
{
    __shared__ bool mine[BLOCK];
    constexpr idx count = (idx)in_count(0), width = (idx)WIDTH;
    idx row = (idx)blockIdx.x;
    for (idx j0 = 0; j0 < width; j0 += BLOCK) {
        idx j = j0 + (idx)threadIdx.x;
        double sum = 0;
        for (idx i0 = 0; i0 < count; i0 += BLOCK) {
            idx i = i0 + (idx)threadIdx.x;
            bool here = i < count && get_int<0>(a, i) == row;
            mine[threadIdx.x] = here;
            if (!__syncthreads_or(here))
                continue;
            for (idx k = 0; k < BLOCK && j < width; k++)
                if (mine[k])
                    sum += get<1>(a, (i0 + k) * width + j);
            __syncthreads();
        }
        if (j < width)
            put<0>(a, row * width + j, sum);
        __syncthreads();
    }
}
#else
ENTRY k0(args a)
{
    idx i = THREAD;
    if (i < (idx)out_count(0))
        each(a, i);
}
#endif
