/*
 * many.cu: one launch for many tensors, whatever their sizes: SGD and Adam of float32 variables, moving averages, casts of
 * weights. A block has BLOCK x 8 elements of one tensor and finds out which; a thread has two times four side by side and reads
 * them all before it writes. In float32, as in double a square root and a division take as long as the card's memory does.
 */
#include "program.cuh"

enum { N = 4, ROUNDS = 2 };

/* The tensor that this block works on: the last one whose first block is not behind it. */
static inline int tensor_here(const args &a)
{
    int low = 0, high = a.count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (a.one[middle].first <= (int)blockIdx.x)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

#if defined(KIND_UPDATE)
static constexpr mf_optimizer F = attr.update.optimizer;
static constexpr mf_dtype GRADIENT = in_dtype[1];

/* What a step multiplies by. */
struct work {
    float rate, alpha, kept; /* kept: of a parameter, by weight decay */
};

static inline work make_work(const mf_run_scalars *s)
{
    mf_op op = {};
    mf_ref_call call = {};
    op.attr = attr;
    call.op = &op;
    call.scalars = s;
    updates::rule_f32 r = updates::rule_of_f32(&call);
    return {(float)r.rate, (float)r.alpha, (float)(1 - attr.update.weight_decay * r.rate)};
}

static inline bool is_left_out(const tensor &t)
{
    return in_here[FLAG] && mf_ref_load(in_dtype[FLAG], t.at[4], 0) != 0;
}

static inline float step(const work &r, float w, float g, float &first, float &second)
{
    constexpr float momentum = (float)attr.update.momentum, epsilon = (float)attr.update.epsilon;
    constexpr float c1 = (float)(1 - attr.update.beta_1), c2 = (float)(1 - attr.update.beta_2);
    if (attr.update.has_weight_decay)
        w *= r.kept;
    if (F == MF_OPTIMIZER_SGD && SLOTS == 0)
        return w - r.rate * g;
    if (F == MF_OPTIMIZER_SGD) {
        first = momentum * first - r.rate * g;
        return attr.update.nesterov ? w + momentum * first - r.rate * g : w + first;
    }
    first += (g - first) * c1;
    second += g * c2 * g - second * c2; /* g squared might be too large by itself */
    return w - first * r.alpha / (sqrtf(second) + epsilon);
}

struct held {
    vector<MF_F32, N> w, slot[2];
    vector<GRADIENT, N> g;
};

static inline void fetch(held &h, const tensor &t, idx i)
{
    fetch_vector(h.w, t.at[0], i);
    fetch_vector(h.g, t.at[1], i);
    if (SLOTS > 0)
        fetch_vector(h.slot[0], t.at[2], i);
    if (SLOTS > 1)
        fetch_vector(h.slot[1], t.at[3], i);
}

static inline void finish(held &h, const work &r, const tensor &t, idx i)
{
    EACH_OF(N) h.w.v[k] = step(r, h.w.v[k], (float)widen<GRADIENT>(h.g.v[k]), h.slot[0].v[k], h.slot[1].v[k]);
    *(vector<MF_F32, N> *)((float *)t.at[0] + i) = h.w;
    if (SLOTS > 0)
        *(vector<MF_F32, N> *)((float *)t.at[2] + i) = h.slot[0];
    if (SLOTS > 1)
        *(vector<MF_F32, N> *)((float *)t.at[3] + i) = h.slot[1];
}

static inline void single(const work &r, const tensor &t, idx i)
{
    float first = SLOTS > 0 ? ((float *)t.at[2])[i] : 0, second = SLOTS > 1 ? ((float *)t.at[3])[i] : 0;
    float *w = (float *)t.at[0] + i;
    *w = step(r, *w, (float)load_one<GRADIENT>(t.at[1], i), first, second);
    if (SLOTS > 0)
        ((float *)t.at[2])[i] = first;
    if (SLOTS > 1)
        ((float *)t.at[3])[i] = second;
}

#else
struct work {
    int unused;
};

static inline work make_work(const mf_run_scalars *s)
{
    return {0};
}

static inline bool is_left_out(const tensor &t)
{
    return false;
}

#if defined(KIND_MOVING_AVERAGE)
static inline float step(float value, float state)
{
    constexpr double m = attr.moving.momentum;
    return (float)(m * (double)state + (1 - m) * (double)value);
}

struct held {
    vector<MF_F32, N> value, state;
};

static inline void fetch(held &h, const tensor &t, idx i)
{
    fetch_vector(h.value, t.at[0], i);
    fetch_vector(h.state, t.at[1], i);
}

static inline void finish(held &h, const work &r, const tensor &t, idx i)
{
    EACH_OF(N) h.state.v[k] = step(h.value.v[k], h.state.v[k]);
    *(vector<MF_F32, N> *)((float *)t.at[1] + i) = h.state;
}

static inline void single(const work &r, const tensor &t, idx i)
{
    ((float *)t.at[1])[i] = step(((const float *)t.at[0])[i], ((float *)t.at[1])[i]);
}

#else /* KIND_CAST */
struct held {
    vector<in_dtype[0], N> x;
};

static inline void fetch(held &h, const tensor &t, idx i)
{
    fetch_vector(h.x, t.at[0], i);
}

static inline void finish(held &h, const work &r, const tensor &t, idx i)
{
    real wide[N];
    widen_vector<in_dtype[0]>(wide, h.x);
    store_vector<out_dtype[0], false>(t.at[1], i, wide);
}

static inline void single(const work &r, const tensor &t, idx i)
{
    store_one<out_dtype[0], false>(t.at[1], i, load_one<in_dtype[0]>(t.at[0], i));
}
#endif
#endif

ENTRY k0(const __grid_constant__ args a)
{
    __shared__ work shared;
    const tensor t = a.one[tensor_here(a)];
    idx first = ((idx)blockIdx.x - (idx)t.first) * (BLOCK * N * ROUNDS) + (idx)threadIdx.x * N;
    held h[ROUNDS];
    if (is_left_out(t)) /* the whole block */
        return;
    EACH_ROW(ROUNDS)
    if (first + (u * BLOCK + 1) * N <= (idx)t.elements)
        fetch(h[u], t, first + u * BLOCK * N);
    if (threadIdx.x == 0)
        shared = make_work(a.s);
    __syncthreads();
    const work r = shared;
    EACH_ROW(ROUNDS)
    {
        idx i = first + u * BLOCK * N;
        if (i + N <= (idx)t.elements)
            finish(h[u], r, t, i);
        else
            for (; i < (idx)t.elements; i++)
                single(r, t, i);
    }
}
