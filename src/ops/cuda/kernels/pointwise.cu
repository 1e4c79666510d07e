/* pointwise.cu: an element of the output from elements of the inputs. One thread an element. */

/* The element of input I that belongs to element i of the output. */
template <int I> static inline double of(const args &a, idx i)
{
    constexpr walk w = broadcast_walk(out_shape[0], in_shape[I]);
    constexpr bool whole = in_count(I) == out_count(0);
    return get<I>(a, whole ? i : walk_at(w, i));
}

#if defined(KIND_DROPOUT) || defined(KIND_RANDOM)
/* The number of element i among its sample's draws, and the sample. */
static inline double drawn(const args &a, idx i, bool number)
{
    constexpr walk w = draw_walk_of(out_shape[0], attr.random.shared_axes);
    constexpr bool one_sample = (attr.random.shared_axes & 1) != 0;
    constexpr idx each_sample = out_shape[0].rank ? (idx)(out_count(0) / out_shape[0].dim[0]) : 1;
    mf_draw draw;
    mf_draw_begin(&draw, a.s, attr.random.key, one_sample ? 0 : a.s->first_sample + (uint64_t)(i / each_sample));
    uint64_t index = (uint64_t)walk_at(w, i);
    if (!number || attr.random.distribution == 0)
        return mf_draw_uniform(&draw, index);
    if (attr.random.distribution == 1)
        return mf_draw_normal(&draw, index);
    if (attr.random.distribution == 3)
        return mf_draw_truncated_normal(&draw, index);
    return mf_draw_uniform(&draw, index) >= attr.random.rate;
}
#endif

static inline void each(const args &a, idx i)
{
#if defined(KIND_FILL)
    put<0>(a, i, attr.fill.value);
#elif defined(KIND_BROADCAST)
    put<0>(a, i, of<0>(a, i) * attr.broadcast.scale);
#elif defined(KIND_UNARY)
    put<0>(a, i, mf_unary_value(attr.unary.function, attr.unary.alpha, attr.unary.beta, get<0>(a, i)));
#elif defined(KIND_UNARY_GRAD)
    put<0>(a, i,
           get<0>(a, i) * mf_unary_slope(attr.unary.function, attr.unary.alpha, attr.unary.beta, attr.unary.from_output,
                                         get<1>(a, i)));
#elif defined(KIND_MASK)
    unsigned bits = 0;
    for (int k = 0; k < 8; k++)
        if (8 * i + k < (idx)in_count(0)) {
            double x = get<0>(a, 8 * i + k);
            bits |= (unsigned)(x > 0 && (attr.unary.function != MF_UNARY_RELU6 || x < 6)) << k;
        }
    ((uint8_t *)a.out[0])[i] = (uint8_t)bits;
#elif defined(KIND_MASK_GRAD)
    put<0>(a, i, get<0>(a, i) * (double)(((const uint8_t *)a.in[1])[i / 8] >> i % 8 & 1));
#elif defined(KIND_BINARY)
    put<0>(a, i, binary_value(attr.binary.function, of<0>(a, i), of<1>(a, i)));
#elif defined(KIND_COMPARE)
    double b = in_here[COMPARE_B] ? of<COMPARE_B>(a, i) : (double)(real)attr.compare.value;
    ((uint8_t *)a.out[0])[i] = is_true(attr.compare.function, of<0>(a, i), b);
#elif defined(KIND_SELECT)
    constexpr walk w = broadcast_walk(out_shape[0], in_shape[0]);
    constexpr uint32_t rank = out_shape[0].rank;
    constexpr idx last = rank > 0 ? (idx)out_shape[0].dim[rank - 1] : 1;
    constexpr idx before = rank > 1 ? (idx)out_shape[0].dim[rank - 2] : 1;
    bool yes = ((const uint8_t *)a.in[0])[walk_at(w, i)] != 0 &&
               (!attr.select.causal || i % last <= i / last % before);
    if (yes)
        put<0>(a, i, in_here[1] ? of<1>(a, i) : attr.select.yes);
    else
        put<0>(a, i, in_here[2] ? of<2>(a, i) : attr.select.no);
#elif defined(KIND_SUM_N)
    double sum = 0;
    for (int k = 0; k < NI; k++)
        sum += (double)(real)mf_ref_load(in_dtype[k], a.in[k], (uint64_t)i);
    put<0>(a, i, sum);
#elif defined(KIND_PRELU)
    double x = get<0>(a, i);
    put<0>(a, i, x > 0 ? x : (double)((real)of<1>(a, i) * (real)x));
#elif defined(KIND_RANDOM)
    double v = drawn(a, i, true);
    put<0>(a, i,
           attr.random.distribution == 1 || attr.random.distribution == 3 ? attr.random.mean + attr.random.scale * v
           : attr.random.distribution == 2                                ? v
                                           : attr.random.mean + (attr.random.scale - attr.random.mean) * v);
#elif defined(KIND_DROPOUT)
    constexpr double rate = attr.random.rate, scale = rate < 1 ? 1 / (1 - rate) : 0;
    double x = get<0>(a, i);
    put<0>(a, i, drawn(a, i, false) >= rate ? x * scale : 0);
#elif defined(KIND_MOVING_AVERAGE)
    double m = attr.moving.momentum;
    set<0>(a, i, m * get<1>(a, i) + (1 - m) * get<0>(a, i));
#elif defined(KIND_EMA)
    double m = a.s->iteration == 0 ? 0 : attr.ema.momentum;
    bool skip = in_here[EMA_FLAG] && get<EMA_FLAG>(a, 0) != 0;
    set<0>(a, i, skip ? get<1>(a, i) : m * get<1>(a, i) + (1 - m) * get<0>(a, i));
#elif defined(KIND_CLIP_GLOBAL)
    double norm = sqrt(get<1>(a, 0)), limit = attr.clip.norm;
    set<0>(a, i, get<0>(a, i) * (limit > 0 ? limit / fmax(norm, limit) : 1));
#elif defined(KIND_RESIZE)
    constexpr const mf_shape &x = in_shape[0], &y = out_shape[0];
    idx c = i % (idx)y.dim[3], column = i / (idx)y.dim[3] % (idx)y.dim[2];
    idx row = i / (idx)(y.dim[3] * y.dim[2]) % (idx)y.dim[1], n = i / (idx)(y.dim[3] * y.dim[2] * y.dim[1]);
    resizes::taps v = resizes::taps_of(&attr, row, x.dim[1], y.dim[1]);
    resizes::taps h = resizes::taps_of(&attr, column, x.dim[2], y.dim[2]);
    double sum = 0;
    for (int64_t p = 0; p < v.count; p++)
        for (int64_t q = 0; q < h.count; q++)
            sum += resizes::weight_of(&v, p) * resizes::weight_of(&h, q) *
                   get<0>(a, (idx)(((n * x.dim[1] + resizes::cell_at(&v, p)) * x.dim[2] + resizes::cell_at(&h, q)) *
                                       x.dim[3] +
                                   c));
    put<0>(a, i, sum);
#elif defined(KIND_RESIZE_GRAD)
    /* x is the forward input: every output row and column is asked what it takes from here */
    constexpr const mf_shape &x = out_shape[0], &y = in_shape[0];
    idx c = i % (idx)x.dim[3], column = i / (idx)x.dim[3] % (idx)x.dim[2];
    idx row = i / (idx)(x.dim[3] * x.dim[2]) % (idx)x.dim[1], n = i / (idx)(x.dim[3] * x.dim[2] * x.dim[1]);
    double sum = 0;
    for (int64_t r = 0; r < y.dim[1]; r++) {
        resizes::taps v = resizes::taps_of(&attr, r, x.dim[1], y.dim[1]);
        double wv = 0;
        for (int64_t p = 0; p < v.count; p++)
            wv += resizes::cell_at(&v, p) == row ? resizes::weight_of(&v, p) : 0;
        if (wv == 0)
            continue;
        for (int64_t s = 0; s < y.dim[2]; s++) {
            resizes::taps h = resizes::taps_of(&attr, s, x.dim[2], y.dim[2]);
            double wh = 0;
            for (int64_t q = 0; q < h.count; q++)
                wh += resizes::cell_at(&h, q) == column ? resizes::weight_of(&h, q) : 0;
            if (wh != 0)
                sum += wv * wh * get<0>(a, (idx)(((n * y.dim[1] + r) * y.dim[2] + s) * y.dim[3] + c));
        }
    }
    put<0>(a, i, sum);
#endif
}

ENTRY k0(args a)
{
    idx i = THREAD;
    if (i < (idx)out_count(0))
        each(a, i);
}
