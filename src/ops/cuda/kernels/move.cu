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
static inline void look_through(const args &a, idx row)
{
    __shared__ bool mine[BLOCK];
    constexpr idx count = (idx)in_count(0), width = (idx)WIDTH;
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
#if LISTS
/* Large tables: which indices are a row's is found for all rows at once: counted, places given, put there in any order, and
 * sorted by the row that reads them, so that sums have the same order as above. Rows with many look through all. */
enum : idx { TABLE = TABLE_ROWS, INDICES = (idx)in_count(0), MOST_SORTED = 1024 };
static inline int *counts_of(const args &a)
{
    return (int *)((char *)a.workspace + LISTS_AT);
}

ENTRY zero(args a)
{
    if (THREAD < TABLE)
        counts_of(a)[THREAD] = 0;
}

ENTRY count(args a)
{
    int64_t row = THREAD < INDICES ? get_int<0>(a, THREAD) : -1;
    if (row >= 0 && row < TABLE)
        atomicAdd(counts_of(a) + row, 1);
}

/* One block: where each row's list begins; counts start anew. */
ENTRY starts(args a)
{
    __shared__ int part[BLOCK];
    constexpr idx each = (TABLE + BLOCK - 1) / BLOCK;
    int *counts = counts_of(a), *start = counts + TABLE, sum = 0, before = 0;
    idx first = (idx)threadIdx.x * each;
    for (idx i = first; i < first + each && i < TABLE; i++)
        sum += counts[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned i = 0; i < threadIdx.x; i++)
        before += part[i];
    for (idx i = first; i < first + each && i < TABLE; i++) {
        start[i] = before;
        before += counts[i];
        counts[i] = 0;
    }
}

ENTRY place(args a)
{
    int *counts = counts_of(a), *start = counts + TABLE, *list = start + TABLE;
    int64_t row = THREAD < INDICES ? get_int<0>(a, THREAD) : -1;
    if (row >= 0 && row < TABLE)
        list[start[row] + atomicAdd(counts + row, 1)] = (int)THREAD;
}

ENTRY k0(args a)
{
    __shared__ int sorted[MOST_SORTED];
    constexpr idx width = (idx)WIDTH;
    idx row = (idx)blockIdx.x;
    const int *counts = counts_of(a), *list = counts + 2 * TABLE + counts[TABLE + row];
    int n = counts[row];
    if (n > MOST_SORTED) {
        look_through(a, row);
        return;
    }
    for (int i = (int)threadIdx.x; i < n; i += BLOCK) {
        int rank = 0;
        for (int k = 0; k < n; k++)
            rank += list[k] < list[i];
        sorted[rank] = list[i];
    }
    __syncthreads();
    for (idx j = (idx)threadIdx.x; j < width; j += BLOCK) {
        double sum = 0;
        for (int k = 0; k < n; k++)
            sum += get<1>(a, (idx)sorted[k] * width + j);
        put<0>(a, row * width + j, sum);
    }
}
#else
ENTRY k0(args a)
{
    look_through(a, (idx)blockIdx.x);
}
#endif
#else
ENTRY k0(args a)
{
    idx i = THREAD;
    if (i < (idx)out_count(0))
        each(a, i);
}
#endif
