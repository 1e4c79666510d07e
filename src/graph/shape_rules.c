/*
 * shape_rules.c: what each operation kind demands of its operands and gives as results: structure, linear and pointwise
 * kinds. Windows, normalization, recurrence and state are in shape_rules_more.c.
 *
 * One rule serves building and checking: outputs that are not known yet are filled, those that are known must agree.
 */
#include "graph/shape_rules.h"

#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

const mf_tensor *mf_rule_in(const mf_typing *t, uint32_t i)
{
    if (i >= t->op->in_count || t->op->in[i] == MF_NONE)
        return NULL;
    return &t->graph->tensors[t->op->in[i]];
}

memfit_status mf_rule_bad(const mf_typing *t, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *layer = t->op->layer < t->graph->layer_count ? t->graph->layers[t->op->layer].name : "?";
    return mf_fail(t->err, MEMFIT_INVALID, "layer '%s': %s: %s", layer, mf_kind_name(t->op->kind), text);
}

memfit_status mf_rule_give(mf_typing *t, uint32_t i, mf_dtype dtype, const mf_shape *shape)
{
    if (i >= t->op->out_count || t->out[i].absent)
        return MEMFIT_OK;
    mf_typed *out = &t->out[i];
    if (out->shape.rank == MF_NONE) {
        if (mf_shape_count(shape) == UINT64_MAX)
            return mf_rule_bad(t, "the result has too many elements");
        *out = (mf_typed){.dtype = dtype, .shape = *shape};
        return MEMFIT_OK;
    }
    if (out->dtype != dtype || !mf_shape_equal(&out->shape, shape)) {
        char a[128], b[128];
        return mf_rule_bad(t, "output %u is %s %s, expected %s %s", i, mf_dtype_name(out->dtype),
                           mf_shape_format(&out->shape, a, sizeof a), mf_dtype_name(dtype),
                           mf_shape_format(shape, b, sizeof b));
    }
    return MEMFIT_OK;
}

memfit_status mf_rule_need(const mf_typing *t, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!mf_rule_in(t, i))
            return mf_rule_bad(t, "operand %u is missing", i);
    return MEMFIT_OK;
}

static bool given(const mf_typing *t)
{
    return t->out[0].shape.rank != MF_NONE;
}

memfit_status mf_shape_given(mf_typing *t)
{
    if (!given(t))
        return mf_rule_bad(t, "the shape must be given");
    for (uint32_t i = 0; i < t->out[0].shape.rank; i++)
        if (t->out[0].shape.dim[i] < 0)
            return mf_rule_bad(t, "dimension %u is not known", i);
    return MEMFIT_OK;
}

memfit_status mf_shape_view(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || !given(t))
        return mf_rule_bad(t, "needs an operand and a shape");
    const mf_shape *y = &t->out[0].shape;
    bool fits = mf_shape_count(&x->shape) == mf_shape_count(y);
    if (t->op->attr.view.rows) {
        int64_t first = t->op->attr.view.first;
        fits = y->rank == x->shape.rank && y->rank && first >= 0 && y->dim[0] >= 0 && first <= x->shape.dim[0] &&
               y->dim[0] <= x->shape.dim[0] - first;
        for (uint32_t i = 1; fits && i < y->rank; i++)
            fits = y->dim[i] == x->shape.dim[i];
    }
    if (!fits) {
        char a[128], b[128];
        return mf_rule_bad(t, "%s cannot be seen as %s", mf_shape_format(&x->shape, a, sizeof a),
                           mf_shape_format(&t->out[0].shape, b, sizeof b));
    }
    return x->dtype == t->out[0].dtype ? MEMFIT_OK : mf_rule_bad(t, "a view keeps the type");
}

memfit_status mf_shape_cast(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x)
        return mf_rule_need(t, 1);
    return mf_rule_give(t, 0, t->out[0].dtype, &x->shape);
}

memfit_status mf_shape_same(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || mf_rule_need(t, mf_kind(t->op->kind)->min_in))
        return mf_rule_need(t, mf_kind(t->op->kind)->min_in);
    for (uint32_t i = 1; i < t->op->in_count; i++) {
        const mf_tensor *other = mf_rule_in(t, i);
        if (other && !mf_shape_equal(&x->shape, &other->shape))
            return mf_rule_bad(t, "operands differ in shape");
    }
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}

memfit_status mf_shape_transpose(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x)
        return mf_rule_need(t, 1);
    mf_shape y = {.rank = x->shape.rank};
    uint32_t seen = 0;
    for (uint32_t i = 0; i < y.rank; i++) {
        uint32_t from = t->op->attr.transpose.perm[i];
        if (from >= y.rank || (seen >> from & 1))
            return mf_rule_bad(t, "not a permutation");
        seen |= 1u << from;
        y.dim[i] = x->shape.dim[from];
    }
    return mf_rule_give(t, 0, x->dtype, &y);
}

memfit_status mf_shape_slice(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || !given(t) || t->out[0].shape.rank != x->shape.rank)
        return mf_rule_bad(t, "needs an operand and sizes of its rank");
    for (uint32_t i = 0; i < x->shape.rank; i++) {
        int64_t begin = t->op->attr.slice.begin[i], stride = t->op->attr.slice.stride[i];
        int64_t size = t->out[0].shape.dim[i], last;
        if (size < 0 || stride == 0 || __builtin_mul_overflow(size - 1, stride, &last) ||
            __builtin_add_overflow(begin, last, &last))
            return mf_rule_bad(t, "axis %u: size %lld, stride %lld", i, (long long)size, (long long)stride);
        if (size && (begin < 0 || begin >= x->shape.dim[i] || last < 0 || last >= x->shape.dim[i]))
            return mf_rule_bad(t, "axis %u: from %lld to %lld is outside of %lld", i, (long long)begin, (long long)last,
                               (long long)x->shape.dim[i]);
    }
    return mf_rule_give(t, 0, x->dtype, &t->out[0].shape);
}

memfit_status mf_shape_pad(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x)
        return mf_rule_need(t, 1);
    mf_shape y = x->shape;
    for (uint32_t i = 0; i < y.rank; i++) {
        int64_t before = t->op->attr.pad.before[i], after = t->op->attr.pad.after[i];
        int64_t between = t->op->attr.pad.between[i];
        if (before < 0 || after < 0 || between < 0 || before > INT32_MAX || after > INT32_MAX || between > INT32_MAX)
            return mf_rule_bad(t, "axis %u: padding %lld, %lld", i, (long long)before, (long long)after);
        y.dim[i] += before + after + (y.dim[i] > 0 ? between * (y.dim[i] - 1) : 0);
    }
    return mf_rule_give(t, 0, x->dtype, &y);
}

memfit_status mf_shape_concat(mf_typing *t)
{
    uint32_t axis = t->op->attr.concat.axis;
    const mf_tensor *first = mf_rule_in(t, 0);
    if (!first || axis >= first->shape.rank)
        return mf_rule_bad(t, "axis %u of rank %u", axis, first ? first->shape.rank : 0);
    mf_shape y = first->shape;
    for (uint32_t k = 1; k < t->op->in_count; k++) {
        const mf_tensor *x = mf_rule_in(t, k);
        if (!x || x->shape.rank != y.rank || x->dtype != first->dtype)
            return mf_rule_bad(t, "operand %u differs in rank or type", k);
        for (uint32_t i = 0; i < y.rank; i++)
            if (i != axis && x->shape.dim[i] != y.dim[i]) {
                char a[128], b[128];
                return mf_rule_bad(t, "operand %u is %s, the first %s", k, mf_shape_format(&x->shape, a, sizeof a),
                                   mf_shape_format(&first->shape, b, sizeof b));
            }
        y.dim[axis] += x->shape.dim[axis];
    }
    return mf_rule_give(t, 0, first->dtype, &y);
}

memfit_status mf_shape_broadcast(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || !given(t) || x->shape.rank != t->out[0].shape.rank)
        return mf_rule_bad(t, "needs an operand and a shape of its rank");
    for (uint32_t i = 0; i < x->shape.rank; i++)
        if (x->shape.dim[i] != 1 && x->shape.dim[i] != t->out[0].shape.dim[i])
            return mf_rule_bad(t, "axis %u is neither 1 nor equal", i);
    return mf_rule_give(t, 0, x->dtype, &t->out[0].shape);
}

memfit_status mf_shape_gather(mf_typing *t)
{
    const mf_tensor *table = mf_rule_in(t, 0), *indices = mf_rule_in(t, 1);
    if (!table || !indices || !table->shape.rank)
        return mf_rule_bad(t, "needs a table and indices");
    mf_shape y = indices->shape;
    if (y.rank + table->shape.rank - 1 > MF_MOST_DIMS)
        return mf_rule_bad(t, "rank over %d", MF_MOST_DIMS);
    for (uint32_t i = 1; i < table->shape.rank; i++)
        y.dim[y.rank++] = table->shape.dim[i];
    return mf_rule_give(t, 0, table->dtype, &y);
}

memfit_status mf_shape_gather_grad(mf_typing *t)
{
    const mf_tensor *indices = mf_rule_in(t, 0), *dy = mf_rule_in(t, 1);
    if (!indices || !dy || !given(t))
        return mf_rule_bad(t, "needs indices, a gradient and the table's shape");
    const mf_shape *table = &t->out[0].shape;
    if (!table->rank || dy->shape.rank != indices->shape.rank + table->rank - 1)
        return mf_rule_bad(t, "ranks do not go together");
    return mf_rule_give(t, 0, dy->dtype, table);
}

memfit_status mf_shape_resize(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || !given(t) || x->shape.rank != 4 || t->out[0].shape.rank != 4)
        return mf_rule_bad(t, "needs images (N, H, W, C)");
    mf_shape y = t->out[0].shape;
    y.dim[0] = x->shape.dim[0];
    y.dim[3] = x->shape.dim[3];
    return mf_rule_give(t, 0, x->dtype, &y);
}

/* Bias: one dimension, the result's last. */
static bool bias_fits(const mf_typing *t, uint32_t i, int64_t channels)
{
    const mf_tensor *bias = mf_rule_in(t, i);
    return !bias || (bias->shape.rank == 1 && bias->shape.dim[0] == channels);
}

memfit_status mf_shape_matmul(mf_typing *t)
{
    const mf_tensor *a = mf_rule_in(t, 0), *b = mf_rule_in(t, 1);
    if (!a || !b || a->shape.rank < 2 || b->shape.rank < 2)
        return mf_rule_bad(t, "needs two operands of rank 2 or more");
    bool ta = t->op->attr.matmul.trans_a, tb = t->op->attr.matmul.trans_b;
    uint32_t ra = a->shape.rank, rb = b->shape.rank;
    int64_t m = a->shape.dim[ra - (ta ? 1 : 2)], k = a->shape.dim[ra - (ta ? 2 : 1)];
    int64_t k2 = b->shape.dim[rb - (tb ? 1 : 2)], n = b->shape.dim[rb - (tb ? 2 : 1)];
    char ta_text[128], tb_text[128];
    if (k != k2 || a->dtype != b->dtype)
        return mf_rule_bad(t, "%s%s times %s%s", mf_shape_format(&a->shape, ta_text, sizeof ta_text), ta ? "'" : "",
                           mf_shape_format(&b->shape, tb_text, sizeof tb_text), tb ? "'" : "");
    if (rb != ra && (rb != 2 || ta))
        return mf_rule_bad(t, "batches of rank %u and %u", ra, rb);
    for (uint32_t i = 0; rb == ra && i + 2 < ra; i++)
        if (a->shape.dim[i] != b->shape.dim[i])
            return mf_rule_bad(t, "batches differ on axis %u", i);
    if (!bias_fits(t, 2, n))
        return mf_rule_bad(t, "the bias is no vector of %lld", (long long)n);
    mf_shape c = a->shape;
    c.dim[ra - 2] = m;
    c.dim[ra - 1] = n;
    return mf_rule_give(t, 0, a->dtype, &c);
}

/* The shape of y for x and w under a window; false with a message when they do not go together. */
static memfit_status conv_shape(mf_typing *t, const mf_shape *x, const mf_shape *w, mf_shape *y)
{
    const mf_window *window = &t->op->attr.window;
    uint32_t d = window->dims;
    if (d < 1 || d > 3 || x->rank != d + 2 || w->rank != d + 2)
        return mf_rule_bad(t, "%u spatial dimensions, ranks %u and %u", d, x->rank, w->rank);
    if (window->groups < 1 || x->dim[d + 1] != w->dim[d] * window->groups || w->dim[d + 1] % window->groups)
        return mf_rule_bad(t, "%lld channels, a kernel for %lld, %lld groups", (long long)x->dim[d + 1],
                           (long long)w->dim[d], (long long)window->groups);
    *y = *x;
    for (uint32_t i = 0; i < d; i++) {
        if (window->kernel[i] != w->dim[i] || window->stride[i] < 1 || window->dilation[i] < 1 ||
            window->before[i] < 0 || window->after[i] < 0)
            return mf_rule_bad(t, "axis %u: bad window", i);
        y->dim[i + 1] = mf_window_out(window, i, x->dim[i + 1]);
        if (y->dim[i + 1] < 1)
            return mf_rule_bad(t, "the input has %lld positions on axis %u, too few for a kernel of %lld",
                               (long long)x->dim[i + 1], i + 1, (long long)window->kernel[i]);
    }
    y->dim[d + 1] = w->dim[d + 1];
    return MEMFIT_OK;
}

memfit_status mf_shape_conv(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0), *w = mf_rule_in(t, 1);
    if (!x || !w)
        return mf_rule_need(t, 2);
    mf_shape y;
    memfit_status s = conv_shape(t, &x->shape, &w->shape, &y);
    if (s)
        return s;
    if (!bias_fits(t, 2, y.dim[y.rank - 1]) || x->dtype != w->dtype)
        return mf_rule_bad(t, "bias or type does not fit");
    return mf_rule_give(t, 0, x->dtype, &y);
}

memfit_status mf_shape_conv_grad_data(mf_typing *t)
{
    const mf_tensor *dy = mf_rule_in(t, 0), *w = mf_rule_in(t, 1);
    if (!dy || !w || !given(t))
        return mf_rule_bad(t, "needs a gradient, a kernel and the shape of the result");
    mf_shape y;
    memfit_status s = conv_shape(t, &t->out[0].shape, &w->shape, &y);
    if (s)
        return s;
    if (!mf_shape_equal(&y, &dy->shape)) {
        char a[128], b[128];
        return mf_rule_bad(t, "the window makes %s, not %s", mf_shape_format(&y, a, sizeof a),
                           mf_shape_format(&dy->shape, b, sizeof b));
    }
    if (!bias_fits(t, 2, t->out[0].shape.dim[y.rank - 1]))
        return mf_rule_bad(t, "the bias does not fit");
    return mf_rule_give(t, 0, dy->dtype, &t->out[0].shape);
}

memfit_status mf_shape_conv_grad_weights(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0), *dy = mf_rule_in(t, 1);
    if (!x || !dy || !given(t))
        return mf_rule_bad(t, "needs input, gradient and the kernel's shape");
    mf_shape y;
    memfit_status s = conv_shape(t, &x->shape, &t->out[0].shape, &y);
    if (s)
        return s;
    if (!mf_shape_equal(&y, &dy->shape))
        return mf_rule_bad(t, "the gradient's shape is not that of the output");
    s = mf_rule_give(t, 0, x->dtype, &t->out[0].shape);
    return s ? s : mf_rule_give(t, 1, x->dtype, &(mf_shape){.rank = 1, .dim = {y.dim[y.rank - 1]}});
}

bool mf_shape_broadcasts(const mf_shape *a, const mf_shape *b, mf_shape *out)
{
    const mf_shape *longer = a->rank >= b->rank ? a : b, *shorter = a->rank >= b->rank ? b : a;
    uint32_t skip = longer->rank - shorter->rank;
    *out = *longer;
    for (uint32_t i = 0; i < shorter->rank; i++) {
        int64_t p = longer->dim[i + skip], q = shorter->dim[i];
        if (p != q && p != 1 && q != 1)
            return false;
        out->dim[i + skip] = p == 1 ? q : p;
    }
    return true;
}

memfit_status mf_shape_binary(mf_typing *t)
{
    const mf_tensor *a = mf_rule_in(t, 0), *b = mf_rule_in(t, 1);
    if (!a || !b)
        return mf_rule_need(t, 2);
    mf_shape y;
    if (a->dtype != b->dtype || !mf_shape_broadcasts(&a->shape, &b->shape, &y)) {
        char p[128], q[128];
        return mf_rule_bad(t, "%s %s with %s %s", mf_dtype_name(a->dtype), mf_shape_format(&a->shape, p, sizeof p),
                           mf_dtype_name(b->dtype), mf_shape_format(&b->shape, q, sizeof q));
    }
    return mf_rule_give(t, 0, a->dtype, &y);
}

memfit_status mf_shape_binary_grad(mf_typing *t)
{
    const mf_tensor *dy = mf_rule_in(t, 0), *a = mf_rule_in(t, 1), *b = mf_rule_in(t, 2);
    mf_shape y;
    if (!dy || !a || !b || !mf_shape_broadcasts(&a->shape, &b->shape, &y) || !mf_shape_equal(&y, &dy->shape))
        return mf_rule_bad(t, "operands do not go together");
    return mf_rule_give(t, 0, dy->dtype, &dy->shape);
}

memfit_status mf_shape_sum_n(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    for (uint32_t i = 0; i < t->op->in_count; i++) {
        const mf_tensor *other = mf_rule_in(t, i);
        if (!x || !other || !mf_shape_equal(&x->shape, &other->shape) || x->dtype != other->dtype)
            return mf_rule_bad(t, "operand %u differs", i);
    }
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}

memfit_status mf_shape_reduce(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || (t->op->attr.reduce.axes >> x->shape.rank))
        return mf_rule_bad(t, "an axis is out of range");
    mf_shape y = {0};
    for (uint32_t i = 0; i < x->shape.rank; i++)
        if (!(t->op->attr.reduce.axes >> i & 1))
            y.dim[y.rank++] = x->shape.dim[i];
        else if (t->op->attr.reduce.keep)
            y.dim[y.rank++] = 1;
    return mf_rule_give(t, 0, x->dtype, &y);
}

memfit_status mf_shape_reduce_grad(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 1);
    if (mf_rule_need(t, 3))
        return mf_rule_need(t, 3);
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}

memfit_status mf_shape_softmax(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || t->op->attr.softmax.axis >= x->shape.rank)
        return mf_rule_bad(t, "axis out of range");
    if (t->op->attr.softmax.causal && (x->shape.rank < 2 || t->op->attr.softmax.axis != x->shape.rank - 1))
        return mf_rule_bad(t, "causal needs queries and keys as last axes");
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}
