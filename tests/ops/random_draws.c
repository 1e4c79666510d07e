/* random_draws.c: see random_draws.h; long because every family of kinds has its draw here, side by side. */
#include "random_draws.h"

#include "graph/augment.h"

mf_shape draw_shape_of(const drawing *d, uint32_t x)
{
    return mf_g_shape(&d->b, x);
}

static uint64_t count_of(const drawing *d, uint32_t x)
{
    mf_shape s = draw_shape_of(d, x);
    return mf_shape_count(&s);
}

/* The first axis that a draw may touch: the batch is none of its business where samples must stay apart. */
static uint32_t first_axis(const drawing *d)
{
    return d->s->samplewise ? 1 : 0;
}

static uint32_t pick(const drawing *d, uint32_t word)
{
    uint32_t recent = d->pool_count > 4 ? 4 : d->pool_count; /* mostly what was made last: chains, not bushes */
    return word % 3 ? d->pool[d->pool_count - 1 - word / 3 % recent] : d->pool[word / 3 % d->pool_count];
}

void draw_add(drawing *d, uint32_t x)
{
    if (x != MF_NONE && d->pool_count < MOST_POOL && mf_g_dtype(&d->b, x) == MF_F32 &&
        count_of(d, x) <= MOST_ELEMENTS * (uint64_t)d->batch)
        d->pool[d->pool_count++] = x;
}

uint32_t draw_feed(drawing *d, const char *name, mf_dtype dtype, mf_shape shape, uint32_t role)
{
    mf_graph *g = d->b.graph;
    uint32_t x = mf_g_input(&d->b, name, dtype, shape);
    if (mf_build_ok(&d->b) && mf_grow(g->arena.host, &g->feeds, &g->feed_capacity, g->feed_count, sizeof *g->feeds)) {
        g->feeds[g->feed_count] = (mf_feed){.name = name, .tensor = x, .role = role, .index = g->feed_count};
        g->feed_count++;
    }
    return x;
}

uint32_t draw_variable(drawing *d, mf_var_role role, mf_shape shape, double initial)
{
    mf_variable v = {.name = mf_arena_printf(&d->b.graph->arena, "v%u", d->names++),
                     .path = "",
                     .role = role,
                     .kind = role == MF_VAR_PARAMETER ? MEMFIT_KIND_PARAMETERS : MEMFIT_KIND_OTHER,
                     .trainable = role == MF_VAR_PARAMETER,
                     .dtype = MF_F32,
                     .shape = shape,
                     .initial = initial,
                     .parameter = MF_NONE};
    return mf_g_use(&d->b, mf_g_variable(&d->b, &v));
}

uint32_t draw_weights(drawing *d, mf_shape shape)
{
    uint32_t w = draw_variable(d, MF_VAR_PARAMETER, shape, 0);
    mf_variable *v = mf_build_ok(&d->b) ? &d->b.graph->variables[d->b.graph->variable_count - 1] : NULL;
    if (v && d->s->regularized && d->names % 3 == 0)
        v->l2 = 0.1;
    return w;
}

mf_shape draw_shape1(int64_t a)
{
    return (mf_shape){.rank = 1, .dim = {a}};
}

mf_shape draw_shape2(int64_t a, int64_t b)
{
    return (mf_shape){.rank = 2, .dim = {a, b}};
}

static uint32_t positive(drawing *d, uint32_t x) /* 0.5 to 1.5 */
{
    return mf_g_unary(&d->b, MF_UNARY_AFFINE, 1, 0.5, mf_g_unary(&d->b, MF_UNARY_SIGMOID, 0, 0, x));
}

/* ---- draws: each gives a tensor, or MF_NONE where it cannot be drawn ---- */

static uint32_t draw_unary(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]);
    mf_unary f = (mf_unary)(1 + w[1] % (MF_UNARY_COUNT - 1));
    double alpha = 1, beta = 0;
    if (f == MF_UNARY_LOG || f == MF_UNARY_SQRT || f == MF_UNARY_RSQRT || f == MF_UNARY_RECIPROCAL ||
        f == MF_UNARY_POW || f == MF_UNARY_LOG1P)
        x = positive(d, x);
    if (f == MF_UNARY_EXP || f == MF_UNARY_EXPM1)
        x = mf_g_unary(&d->b, MF_UNARY_TANH, 0, 0, x);
    if (f == MF_UNARY_CLIP) {
        alpha = -0.5;
        beta = 0.7;
    }
    if (f == MF_UNARY_LEAKY_RELU || f == MF_UNARY_SOFT_SHRINK || f == MF_UNARY_HARD_SHRINK || f == MF_UNARY_THRESHOLD)
        alpha = 0.3;
    if (f == MF_UNARY_POW)
        alpha = 1.5;
    if (f == MF_UNARY_AFFINE) { /* by 1 its gradient is the result's own, which others may read */
        alpha = w[2] % 2 ? 1 : 1.5;
        beta = 0.25;
    }
    return mf_g_unary(&d->b, f, alpha, beta, x);
}

static bool broadcasts(const drawing *d, const mf_shape *a, const mf_shape *b)
{
    if (d->s->samplewise && a->rank != b->rank)
        return false;
    uint32_t rank = a->rank < b->rank ? a->rank : b->rank;
    for (uint32_t i = 0; i < rank; i++) {
        int64_t x = a->dim[a->rank - 1 - i], y = b->dim[b->rank - 1 - i];
        if (d->s->samplewise && i + 1 == rank)
            continue; /* the batch */
        if (x != y && x != 1 && y != 1)
            return false;
    }
    return true;
}

static uint32_t draw_binary(drawing *d, const uint32_t *w)
{
    uint32_t a = pick(d, w[0]), b = MF_NONE;
    mf_shape s = draw_shape_of(d, a);
    for (uint32_t i = 0; i < d->pool_count && b == MF_NONE; i++) {
        uint32_t other = d->pool[(w[1] + i) % d->pool_count];
        mf_shape t = draw_shape_of(d, other);
        if (broadcasts(d, &s, &t) && (other != a || w[2] % 4 == 0))
            b = other;
    }
    if (b == MF_NONE)
        return MF_NONE;
    if (w[3] % 2) {
        uint32_t t = a;
        a = b;
        b = t;
    }
    mf_binary f = (mf_binary)(w[2] / 4 % 8);
    if (f == MF_POW)
        a = positive(d, a);
    if (f == MF_DIV)
        b = positive(d, b);
    return mf_g_binary(&d->b, f, a, b);
}

/* One of two by a comparison of one with a number or with the other; a number may stand for either. */
static uint32_t draw_select(drawing *d, const uint32_t *w)
{
    uint32_t a = pick(d, w[0]), b = pick(d, w[1]);
    mf_shape s = draw_shape_of(d, a), t = draw_shape_of(d, b);
    bool both = broadcasts(d, &s, &t);
    uint32_t mask = mf_g_compare(&d->b, (mf_compare)(w[2] % 6), a, both && w[2] / 6 % 2 ? b : MF_NONE, 0.1);
    if (both && w[3] % 3 == 0)
        return mf_g_select(&d->b, mask, a, 0, b, 0, MF_F32);
    if (w[3] % 3 == 1)
        return mf_g_select(&d->b, mask, MF_NONE, 0.5, a, 0, MF_F32);
    return mf_g_keep(&d->b, mask, a, -0.5, s.rank > 2 && w[4] % 2);
}

/* With a parameter of some of its axes, the others 1 or not there. */
static uint32_t draw_with_weights(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]);
    mf_shape s = draw_shape_of(d, x), p = {0};
    uint32_t from = s.rank > 1 ? 1 + w[1] % (s.rank - 1) : s.rank;
    if (s.rank < 2)
        return MF_NONE;
    for (uint32_t i = from; i < s.rank; i++)
        p.dim[p.rank++] = w[2] >> i & 1 ? 1 : s.dim[i];
    uint32_t v = draw_weights(d, p);
    if (w[3] % 5 == 0) {
        mf_shape alpha = {.rank = s.rank - 1};
        for (uint32_t i = 1; i < s.rank; i++)
            alpha.dim[i - 1] = w[2] >> i & 1 ? 1 : s.dim[i];
        return mf_g_prelu(&d->b, x, draw_weights(d, alpha));
    }
    static const mf_binary functions[] = {MF_ADD, MF_SUB, MF_MUL, MF_MAX, MF_MIN, MF_SQUARED_DIFFERENCE};
    mf_binary f = functions[w[3] / 5 % 6];
    return w[4] % 2 ? mf_g_binary(&d->b, f, x, v) : mf_g_binary(&d->b, f, v, x);
}

static uint32_t draw_view(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), at = first_axis(d);
    mf_shape s = draw_shape_of(d, x), t = s;
    if (!d->s->samplewise && d->s->mode == MF_MODE_PREDICT && w[1] % 3 == 0 && s.rank && s.dim[0] > 1) {
        /* some rows, where they lie; they have no gradient */
        int64_t rows = 1 + w[2] % s.dim[0], first = w[3] % (s.dim[0] - rows + 1);
        return mf_g_rows(&d->b, x, first, rows);
    }
    if (s.rank > at + 1 && w[1] % 2) { /* two axes into one */
        uint32_t axis = at + w[2] % (s.rank - at - 1);
        t.dim[axis] *= t.dim[axis + 1];
        for (uint32_t i = axis + 1; i + 1 < s.rank; i++)
            t.dim[i] = t.dim[i + 1];
        t.rank--;
    } else if (s.rank < 5) { /* one more, of 1 */
        uint32_t axis = at + w[2] % (s.rank - at + 1);
        for (uint32_t i = s.rank; i > axis; i--)
            t.dim[i] = t.dim[i - 1];
        t.dim[axis] = 1;
        t.rank++;
    }
    return mf_g_view(&d->b, x, t);
}

static uint32_t draw_transpose(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), at = first_axis(d), perm[MF_MOST_DIMS];
    uint32_t rank = draw_shape_of(d, x).rank;
    if (rank < at + 2)
        return MF_NONE;
    for (uint32_t i = 0; i < rank; i++)
        perm[i] = i;
    for (uint32_t i = rank - 1; i > at; i--) {
        uint32_t j = at + (w[1] >> i) % (i - at + 1), t = perm[i];
        perm[i] = perm[j];
        perm[j] = t;
    }
    return mf_g_transpose(&d->b, x, perm);
}

static uint32_t draw_slice(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), at = first_axis(d);
    mf_shape s = draw_shape_of(d, x);
    if (s.rank <= at)
        return MF_NONE;
    int64_t begin[MF_MOST_DIMS] = {0}, size[MF_MOST_DIMS], stride[MF_MOST_DIMS];
    for (uint32_t i = 0; i < s.rank; i++) {
        size[i] = s.dim[i];
        stride[i] = 1;
    }
    uint32_t axis = at + w[1] % (s.rank - at);
    size[axis] = 1 + w[2] % s.dim[axis];
    begin[axis] = w[3] % (s.dim[axis] - size[axis] + 1);
    if (w[4] % 3 == 0) { /* backwards */
        begin[axis] += size[axis] - 1;
        stride[axis] = -1;
    } else if (w[4] % 3 == 1 && size[axis] > 2) {
        size[axis] = (size[axis] + 1) / 2;
        stride[axis] = 2;
    }
    return mf_g_slice(&d->b, x, begin, size, stride);
}

static uint32_t draw_concat(drawing *d, const uint32_t *w)
{
    uint32_t x[3] = {pick(d, w[0])}, n = 1, at = first_axis(d);
    mf_shape s = draw_shape_of(d, x[0]);
    if (s.rank <= at)
        return MF_NONE;
    uint32_t axis = at + w[1] % (s.rank - at), most = 2 + w[2] % 2;
    for (uint32_t i = 0; i < d->pool_count && n < most; i++) {
        uint32_t other = d->pool[(w[3] + i) % d->pool_count];
        mf_shape t = draw_shape_of(d, other);
        bool fits = t.rank == s.rank;
        for (uint32_t k = at; k < s.rank && fits; k++)
            fits = k == axis || t.dim[k] == s.dim[k];
        if (fits)
            x[n++] = other;
    }
    return n > 1 ? mf_g_concat(&d->b, n, x, axis) : MF_NONE;
}

static uint32_t draw_reduce(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), at = first_axis(d);
    mf_shape s = draw_shape_of(d, x);
    if (s.rank <= at)
        return MF_NONE;
    uint32_t axes = 0;
    for (uint32_t i = at; i < s.rank; i++)
        axes |= (w[1] >> i & 1) << i;
    axes = axes ? axes : 1u << (s.rank - 1);
    mf_reduce f = (mf_reduce)(w[2] % 6);
    if (f == MF_REDUCE_L2) /* no slope at 0 */
        x = positive(d, x);
    bool keep = w[3] % 2 || (s.rank == 2 && at == 0); /* scalars have no rows to go on with */
    return mf_g_reduce(&d->b, f, x, axes, keep);
}

static uint32_t draw_softmax(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), rank = draw_shape_of(d, x).rank;
    if (rank < 2)
        return MF_NONE;
    if (w[1] % 5 == 0 && rank > 2)
        return mf_g_softmax_causal(&d->b, x);
    if (w[1] % 5 == 1)
        return mf_g_sparsemax(&d->b, x, rank - 1);
    return mf_g_softmax(&d->b, x, 1 + w[2] % (rank - 1), w[3] % 2);
}

static uint32_t draw_dense(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]);
    mf_shape s = draw_shape_of(d, x);
    if (s.rank < 2)
        return MF_NONE;
    int64_t from = s.dim[s.rank - 1], to = 1 + w[1] % 9;
    bool transposed = w[2] % 3 == 0;
    uint32_t kernel = draw_weights(d, transposed ? draw_shape2(to, from) : draw_shape2(from, to));
    uint32_t bias = w[3] % 2 ? draw_weights(d, draw_shape1(to)) : MF_NONE;
    return mf_g_matmul(&d->b, x, kernel, bias, false, transposed, w[4] % 4 ? 1 : 0.5);
}

static uint32_t draw_product(drawing *d, const uint32_t *w)
{
    uint32_t a = pick(d, w[0]);
    mf_shape s = draw_shape_of(d, a);
    if (s.rank != 3)
        return MF_NONE;
    for (uint32_t i = 0; i < d->pool_count; i++) {
        uint32_t b = d->pool[(w[1] + i) % d->pool_count];
        mf_shape t = draw_shape_of(d, b);
        if (t.rank != 3 || t.dim[0] != s.dim[0])
            continue;
        for (uint32_t k = 0; k < 4; k++) {
            bool ta = (w[2] + k) & 1, tb = (w[2] + k) & 2;
            if (s.dim[ta ? 1 : 2] == t.dim[tb ? 2 : 1])
                return mf_g_matmul(&d->b, a, b, MF_NONE, ta, tb, 1);
        }
    }
    return MF_NONE;
}

/* One of rank 3 with as many samples, `same` of which agree with `of`; `of` itself where there is no other. */
static uint32_t draw_alike(const drawing *d, uint32_t word, uint32_t of, uint32_t same)
{
    mf_shape s = draw_shape_of(d, of);
    for (uint32_t i = 0; i < d->pool_count; i++) {
        uint32_t x = d->pool[(word + i) % d->pool_count];
        mf_shape t = draw_shape_of(d, x);
        if (t.rank == 3 && t.dim[0] == s.dim[0] && t.dim[same] == s.dim[same])
            return x;
    }
    return of;
}

/* As attention layers are lowered, so that backends which want it see it as one operation. */
static uint32_t draw_attention(drawing *d, const uint32_t *w)
{
    uint32_t q = pick(d, w[0]);
    if (draw_shape_of(d, q).rank != 3)
        return MF_NONE;
    uint32_t k = draw_alike(d, w[1], q, 2), v = draw_alike(d, w[2], k, 1);
    if (w[4] % 4) { /* projections, in short: gradients of their own */
        q = mf_g_unary(&d->b, MF_UNARY_TANH, 0, 0, q);
        k = mf_g_unary(&d->b, MF_UNARY_SIGMOID, 0, 0, k);
        v = mf_g_unary(&d->b, MF_UNARY_AFFINE, 0.5, 0.25, v);
    }
    uint32_t p = mf_g_matmul(&d->b, q, k, MF_NONE, false, true, 0.5);
    p = w[3] % 3 ? mf_g_softmax(&d->b, p, 2, false) : mf_g_softmax_causal(&d->b, p);
    return mf_g_matmul(&d->b, p, v, MF_NONE, false, false, 1);
}

/* A window over a tensor with one or two axes of places and one of channels. */
static uint32_t draw_window(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]);
    mf_shape s = draw_shape_of(d, x);
    if (s.rank != 3 && s.rank != 4)
        return MF_NONE;
    mf_window v = {.dims = s.rank - 2, .groups = 1};
    for (uint32_t i = 0; i < v.dims; i++) {
        v.kernel[i] = 1 + (w[1] >> 4 * i) % 3;
        v.stride[i] = 1 + (w[1] >> (4 * i + 2)) % 2;
        v.dilation[i] = v.stride[i] == 1 && v.kernel[i] > 1 ? 1 + (w[1] >> (4 * i + 3)) % 2 : 1;
    }
    uint32_t what = w[2] % 5;
    if (what > 2) /* pooling has no dilation */
        for (uint32_t i = 0; i < v.dims; i++)
            v.dilation[i] = 1;
    mf_window_pad(&v, w[3] % 3 ? "same" : "valid", s.dim + 1);
    for (uint32_t i = 0; i < v.dims; i++)
        if (mf_window_out(&v, i, s.dim[1 + i]) < 1)
            return MF_NONE;
    int64_t in = s.dim[s.rank - 1], out = 1 + w[4] % 4;
    if (what == 3)
        return mf_g_pool_max(&d->b, x, &v);
    if (what == 4) {
        v.count_padding = w[4] % 2;
        return mf_g_pool_avg(&d->b, x, &v);
    }
    mf_shape kernel = {.rank = s.rank};
    for (uint32_t i = 0; i < v.dims; i++)
        kernel.dim[i] = v.kernel[i];
    if (what == 2) { /* transposed: x is the small side */
        mf_shape big = s;
        for (uint32_t i = 0; i < v.dims; i++) {
            v.before[i] = v.after[i] = 0;
            v.dilation[i] = 1;
            big.dim[1 + i] = (s.dim[1 + i] - 1) * v.stride[i] + v.kernel[i];
        }
        big.dim[s.rank - 1] = out;
        kernel.dim[v.dims] = out;
        kernel.dim[v.dims + 1] = in;
        return mf_g_conv_grad_data(&d->b, x, draw_weights(d, kernel),
                                   w[4] % 3 ? draw_weights(d, draw_shape1(out)) : MF_NONE, &v, big);
    }
    if (what == 1) { /* each channel by itself */
        v.groups = in;
        out = in * (1 + w[4] % 2);
    }
    kernel.dim[v.dims] = in / v.groups;
    kernel.dim[v.dims + 1] = out;
    return mf_g_conv(&d->b, x, draw_weights(d, kernel), w[4] % 3 ? draw_weights(d, draw_shape1(out)) : MF_NONE, &v);
}

static uint32_t draw_norm(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), mean, variance;
    mf_shape s = draw_shape_of(d, x);
    if (s.rank < 2)
        return MF_NONE;
    mf_shape channels = draw_shape1(s.dim[s.rank - 1]);
    uint32_t gamma = w[1] % 3 ? draw_weights(d, channels) : MF_NONE,
             beta = w[1] / 3 % 3 ? draw_weights(d, channels) : MF_NONE;
    if (w[2] % 4 == 0) {
        mean = draw_variable(d, MF_VAR_STATISTIC, channels, 0);
        variance = draw_variable(d, MF_VAR_STATISTIC, channels, 1);
        uint32_t y = mf_g_batch_norm_infer(&d->b, x, gamma, beta, mean, variance, 1e-3);
        return w[3] % 2 ? mf_g_unary(&d->b, w[3] % 4 > 1 ? MF_UNARY_RELU : MF_UNARY_RELU6, 0, 0, y) : y;
    }
    if (w[2] % 4 == 1 && !d->s->samplewise && d->s->mode == MF_MODE_TRAIN) {
        uint32_t y = mf_g_batch_norm(&d->b, x, gamma, beta, 1e-3, &mean, &variance);
        mf_g_moving_average(&d->b, mean, draw_variable(d, MF_VAR_STATISTIC, channels, 0), 0.9);
        mf_g_moving_average(&d->b, variance, draw_variable(d, MF_VAR_STATISTIC, channels, 1), 0.9);
        return w[3] % 2 ? mf_g_unary(&d->b, MF_UNARY_RELU, 0, 0, y) : y;
    }
    uint32_t groups = w[3] % 4 == 0 && s.rank > 2 ? 1 + (uint32_t)(channels.dim[0] % 2 == 0) : 0;
    return mf_g_layer_norm(&d->b, x, gamma, beta, 1e-3, 1, groups, !groups && w[3] % 3 == 0);
}

/* A product, a normalization with an activation behind it and another product: the slope comes from nothing that could be one
 * kernel with it. Or a maximum pooling behind the activation. */
static uint32_t draw_activated(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), mean, variance;
    mf_shape s = draw_shape_of(d, x);
    if (s.rank < 2 || d->s->mode != MF_MODE_TRAIN)
        return MF_NONE;
    mf_unary f = w[1] % 3 ? MF_UNARY_RELU : MF_UNARY_RELU6;
    if (s.rank > 2 &&
        w[1] / 3 % 3 == 0) { /* as dense layers are lowered: the bias's gradient is a sum over a view's rows */
        int64_t from = s.dim[s.rank - 1], to = 1 + w[2] % 6;
        mf_shape rows = draw_shape2((int64_t)mf_shape_count(&s) / from, from);
        x = mf_g_matmul(&d->b, mf_g_view(&d->b, x, rows), draw_weights(d, draw_shape2(from, to)),
                        draw_weights(d, draw_shape1(to)), false, false, 1);
        s.dim[s.rank - 1] = to;
        return mf_g_unary(&d->b, w[3] % 2 ? MF_UNARY_GELU : MF_UNARY_TANH, 0, 0, mf_g_view(&d->b, x, s));
    }
    mf_window pool = {.dims = 2, .kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}, .groups = 1};
    if (w[4] % 4 == 0 && s.dim[0] == d->batch) { /* pooling behind an activation */
        mf_shape image = {.rank = 4, .dim = {d->batch, 4, 4, 1 + w[3] % 2}};
        x = draw_feed(d, "image", MF_F32, image, 0);
        x = mf_g_binary(&d->b, MF_MUL, x, draw_weights(d, draw_shape1(image.dim[3])));
        return mf_g_pool_max(&d->b, mf_g_unary(&d->b, f, 0, 0, x), &pool);
    }
    int64_t inner = 1 + w[2] % 6, outer = 1 + w[3] % 6;
    x = mf_g_matmul(&d->b, x, draw_weights(d, draw_shape2(s.dim[s.rank - 1], inner)), MF_NONE, false, false, 1);
    if (d->s->samplewise)
        return MF_NONE;
    uint32_t gamma = w[4] / 2 % 3 ? draw_weights(d, draw_shape1(inner)) : MF_NONE,
             beta = w[4] / 6 % 3 ? draw_weights(d, draw_shape1(inner)) : MF_NONE;
    uint32_t y = mf_g_batch_norm(&d->b, x, gamma, beta, 1e-3, &mean, &variance);
    mf_g_moving_average(&d->b, mean, draw_variable(d, MF_VAR_STATISTIC, draw_shape1(inner), 0), 0.9);
    y = mf_g_unary(&d->b, f, 0, 0, y);
    return mf_g_matmul(&d->b, y, draw_weights(d, draw_shape2(inner, outer)), MF_NONE, false, false, 1);
}

static uint32_t draw_random(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), key = d->b.next_key++;
    mf_shape s = draw_shape_of(d, x);
    if (s.rank < 2 || s.dim[0] != d->batch)
        return MF_NONE;
    uint32_t shared = w[1] % 3 == 0 && s.rank > 2 ? 2 : 0;
    if (w[2] % 3)
        return mf_g_dropout(&d->b, x, 0.4, key, shared);
    return mf_g_binary(&d->b, w[3] % 2 ? MF_ADD : MF_MUL, x,
                       mf_g_random(&d->b, MF_F32, s, w[3] / 2 % 3, 0.3, 0.8, key, shared));
}

/* The Random* layers have no gradient: on images that come from the data, once or twice. */
static uint32_t draw_augment(drawing *d, const uint32_t *w)
{
    mf_shape s = {.rank = 4, .dim = {d->batch, 2 + w[0] % 4, 2 + w[0] / 4 % 4, w[0] / 16 % 2 ? 1 : 3}};
    uint32_t x = draw_feed(d, "image", MF_F32, s, 0);
    for (uint32_t i = 0; i < 1 + w[1] % 2; i++) {
        mf_attr attr = {.augment = {.function = (w[2] + i) % MF_AUGMENT_COUNT, .key = d->b.next_key++}};
        double *a = attr.augment.a;
        a[0] = attr.augment.function == MF_AUGMENT_FLIP ? 1 + w[3] % 3 : 0.1 * (1 + w[3] % 4);
        a[1] = a[0] + 0.3;
        a[2] = -1;
        a[3] = 1;
        a[4] = w[4] % 2;
        a[5] = w[4] / 2 % 4;
        a[6] = 0.25;
        a[7] = w[4] / 8 % 2;
        if (attr.augment.function == MF_AUGMENT_CROP) {
            s.dim[1] -= w[3] % 2;
            s.dim[2] -= w[3] / 2 % 2;
        }
        mf_typed type = {.dtype = MF_F32, .shape = s};
        x = mf_g_op(&d->b, MF_OP_AUGMENT, &attr, 1, &x, 1, &type, NULL);
    }
    return x;
}

/* An input that a model in 16 bits casts first of all. */
static uint32_t draw_narrow_feed(drawing *d, const uint32_t *w)
{
    if (d->s->wide)
        return MF_NONE;
    uint32_t x = draw_feed(d, "sensor", MF_F32, draw_shape2(d->batch, 1 + w[0] % 8), 0);
    return mf_g_cast(&d->b, mf_g_cast(&d->b, x, w[1] % 4 ? MF_BF16 : MF_F16), MF_F32);
}

static uint32_t draw_recurrent(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), kind = w[1] % 4;
    mf_shape s = draw_shape_of(d, x);
    if (s.rank != 3 || s.dim[0] != d->batch)
        return MF_NONE;
    int64_t units = 1 + w[2] % 4, gates = kind == 0 ? 4 : kind == 3 ? 1 : 3;
    uint32_t z = mf_g_matmul(&d->b, x, draw_weights(d, draw_shape2(s.dim[2], gates * units)), MF_NONE, false, false, 1);
    uint32_t u = draw_weights(d, draw_shape2(units, gates * units));
    uint32_t mask = w[3] % 3 ? MF_NONE : draw_feed(d, "mask", MF_U8, draw_shape2(d->batch, s.dim[1]), 0);
    uint32_t h0 = MF_NONE;
    for (uint32_t i = 0; w[3] / 3 % 2 && i < d->pool_count && h0 == MF_NONE; i++) {
        mf_shape t = draw_shape_of(d, d->pool[i]);
        if (t.rank == 2 && t.dim[0] == d->batch && t.dim[1] == units)
            h0 = d->pool[i];
    }
    bool backwards = w[4] % 2, last = w[4] / 2 % 2;
    mf_rnn_result r;
    if (kind == 0)
        r = mf_g_lstm(&d->b, z, u, h0, MF_NONE, mask, backwards, MF_UNARY_TANH, MF_UNARY_SIGMOID);
    else if (kind == 3)
        r = mf_g_simple_rnn(&d->b, z, u, h0, mask, backwards, MF_UNARY_TANH);
    else
        r = mf_g_gru(&d->b, z, u, kind == 1 ? draw_weights(d, draw_shape1(3 * units)) : MF_NONE, h0, mask, backwards,
                     kind == 1, MF_UNARY_TANH, MF_UNARY_SIGMOID);
    if (w[4] / 4 % 2)
        draw_add(d, r.last);
    return last ? r.last : r.sequence;
}

static uint32_t draw_moved(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]), at = first_axis(d), what = w[1] % 5;
    mf_shape s = draw_shape_of(d, x);
    if (what == 0 && s.rank > at && s.rank > 0) { /* padding, between elements too */
        int64_t before[MF_MOST_DIMS] = {0}, after[MF_MOST_DIMS] = {0}, between[MF_MOST_DIMS] = {0};
        uint32_t axis = at + w[2] % (s.rank - at);
        before[axis] = w[3] % 3;
        after[axis] = w[3] / 3 % 3;
        between[axis] = w[3] / 9 % 2;
        return mf_g_pad(&d->b, x, before, after, between, w[4] % 2 ? 0 : 0.5, 0);
    }
    if (what == 1) { /* an axis of 1 repeated */
        for (uint32_t i = at; i < s.rank; i++)
            if (s.dim[i] == 1) {
                s.dim[i] = 2 + w[2] % 4;
                return mf_g_broadcast(&d->b, x, s, w[3] % 2 ? 1 : 0.5);
            }
        return MF_NONE;
    }
    if (what == 2 && s.rank == 4 && s.dim[0] == d->batch)
        return mf_g_resize(&d->b, x, 1 + w[2] % 6, 1 + w[3] % 6, w[4] % 4, false, w[4] % 4 != 3);
    if (what == 3) /* rows of a table */
        return mf_g_gather(
            &d->b, draw_weights(d, draw_shape2(7, 1 + w[2] % 5)),
            draw_feed(d, "indices", MF_I32, w[3] % 2 ? draw_shape1(d->batch) : draw_shape2(d->batch, 3), 0));
    return mf_g_cast(&d->b, mf_g_cast(&d->b, x, d->s->wide ? MF_F32 : w[2] % 2 ? MF_F16 : MF_BF16), MF_F32);
}

static uint32_t draw_sum(drawing *d, const uint32_t *w)
{
    uint32_t x[5] = {pick(d, w[0])}, n = 1, most = 2 + w[1] % 4;
    mf_shape s = draw_shape_of(d, x[0]);
    for (uint32_t i = 0; i < d->pool_count && n < most; i++) {
        uint32_t other = d->pool[(w[2] + i) % d->pool_count];
        mf_shape t = draw_shape_of(d, other);
        if (mf_shape_equal(&s, &t))
            x[n++] = other;
    }
    for (; n < 3 && w[3] % 2; n++) /* the same one twice */
        x[n] = x[w[4] % n];
    return n > 1 ? mf_g_sum_n(&d->b, n, x) : MF_NONE;
}

/* Something that keeps what it sees: every number of a tensor counts, not only what reaches the loss. */
static uint32_t draw_probe(drawing *d, const uint32_t *w)
{
    uint32_t x = pick(d, w[0]);
    mf_shape s = draw_shape_of(d, x);
    if (d->s->samplewise || d->s->mode == MF_MODE_PREDICT) /* its shape would be the piece's */
        return MF_NONE;
    mf_g_moving_average(&d->b, x, draw_variable(d, MF_VAR_STATISTIC, s, 0), 0.25);
    return MF_NONE;
}

const random_rule random_rules[] = {
    {"unary", draw_unary, 10},
    {"binary", draw_binary, 12},
    {"select", draw_select, 3},
    {"with_weights", draw_with_weights, 6},
    {"view", draw_view, 6},
    {"transpose", draw_transpose, 4},
    {"slice", draw_slice, 4},
    {"concat", draw_concat, 4},
    {"reduce", draw_reduce, 4},
    {"softmax", draw_softmax, 3},
    {"dense", draw_dense, 6},
    {"product", draw_product, 3},
    {"window", draw_window, 6},
    {"norm", draw_norm, 5},
    {"random", draw_random, 3},
    {"recurrent", draw_recurrent, 2},
    {"moved", draw_moved, 6},
    {"sum", draw_sum, 4},
    {"probe", draw_probe, 3},
    {"augment", draw_augment, 1},
    {"attention", draw_attention, 5},
    {"activated", draw_activated, 7},
    {"narrow_feed", draw_narrow_feed, 2},
};
const uint32_t random_rule_count = sizeof random_rules / sizeof *random_rules;
