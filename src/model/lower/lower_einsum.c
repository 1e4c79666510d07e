/*
 * lower_einsum.c: einsum of two operands, and EinsumDense. Labels fall into four groups: batch (both operands and the
 * result), left, right (one operand and the result) and summed (both operands only); both operands are brought to three
 * axes of groups by transposes and views, multiplied, and the result is taken apart again. A transpose is left out
 * where the product can read its operand transposed.
 */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <string.h>

enum { LABELS = 128 };

typedef struct sides {
    char x[MF_MOST_DIMS + 1], y[MF_MOST_DIMS + 1], out[MF_MOST_DIMS + 1];
    int64_t size[LABELS];
} sides;

/* "...ab" with a given rank: the ellipsis becomes the labels '0', '1' ... */
static bool read_labels(const char *text, size_t length, uint32_t dots, char *labels)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == ' ')
            continue;
        if (text[i] == '.') {
            if (i + 2 >= length || text[i + 1] != '.' || text[i + 2] != '.')
                return false;
            for (uint32_t k = 0; k < dots; k++) {
                if (n == MF_MOST_DIMS)
                    return false;
                labels[n++] = (char)('0' + k);
            }
            i += 2;
            continue;
        }
        if (n == MF_MOST_DIMS || (unsigned char)text[i] >= LABELS)
            return false;
        labels[n++] = text[i];
    }
    labels[n] = 0;
    return true;
}

static size_t letters(const char *text, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += text[i] != '.' && text[i] != ' ';
    return n;
}

/* y_rank MF_NONE: the second operand is a weight whose size is not known yet. */
static bool parse(const char *equation, uint32_t x_rank, sides *s)
{
    const char *comma = strchr(equation, ','), *arrow = strstr(equation, "->");
    if (!comma || !arrow || comma > arrow)
        return false;
    size_t nx = (size_t)(comma - equation), ny = (size_t)(arrow - comma - 1), no = strlen(arrow + 2);
    size_t plain = letters(equation, nx);
    if (plain > x_rank)
        return false;
    uint32_t dots = memchr(equation, '.', nx) ? (uint32_t)(x_rank - plain) : 0;
    return read_labels(equation, nx, dots, s->x) && read_labels(comma + 1, ny, dots, s->y) &&
           read_labels(arrow + 2, no, dots, s->out) && strlen(s->x) == x_rank;
}

static bool take_sizes(sides *s, const char *labels, const mf_shape *shape)
{
    if (strlen(labels) != shape->rank)
        return false;
    for (uint32_t i = 0; i < shape->rank; i++) {
        int64_t *size = &s->size[(unsigned char)labels[i]];
        if (*size && *size != shape->dim[i])
            return false;
        *size = shape->dim[i];
    }
    return true;
}

static int64_t product(const sides *s, const char *labels)
{
    int64_t n = 1;
    for (; *labels; labels++)
        n *= s->size[(unsigned char)*labels];
    return n;
}

/* Labels of `from` that are (or are not) in a, and are (or are not) in z, in from's order. */
static void pick(const char *from, const char *a, bool in_a, const char *z, bool in_z, char *out)
{
    size_t n = 0;
    for (; *from; from++)
        if (!!strchr(a, *from) == in_a && !!strchr(z, *from) == in_z)
            out[n++] = *from;
    out[n] = 0;
}

static uint32_t arrange(mf_layer_call *c, uint32_t x, const char *labels, const char *order)
{
    uint32_t perm[MF_MOST_DIMS] = {0};
    for (uint32_t i = 0; order[i]; i++)
        perm[i] = (uint32_t)(strchr(labels, order[i]) - labels);
    return mf_g_transpose(c->b, x, perm);
}

static void join(char *out, const char *a, const char *z, const char *y)
{
    size_t n = 0;
    for (const char *parts[3] = {a, z, y}, **p = parts; p < parts + 3; p++)
        for (const char *q = *p; *q && n < MF_MOST_DIMS; q++)
            out[n++] = *q;
    out[n] = 0;
}

/* Operand as (batch, rows, columns), transposed where that saves a copy. */
static uint32_t operand(mf_layer_call *c, const sides *s, uint32_t x, const char *labels, const char *batch,
                        const char *rows, const char *columns, bool *transposed)
{
    char order[MF_MOST_DIMS + 1], turned[MF_MOST_DIMS + 1];
    join(order, batch, rows, columns);
    join(turned, batch, columns, rows);
    *transposed = strcmp(labels, turned) == 0 && strcmp(labels, order) != 0;
    if (!*transposed)
        x = arrange(c, x, labels, order);
    int64_t a = product(s, *transposed ? columns : rows), z = product(s, *transposed ? rows : columns);
    return mf_g_view(c->b, x, *batch ? mf_shape3(product(s, batch), a, z) : mf_shape2(a, z));
}

/* Axes that only one operand has and the result has not are summed first. */
static uint32_t drop_lonely(mf_layer_call *c, uint32_t x, char *labels, const char *other, const char *out)
{
    uint32_t axes = 0;
    size_t n = 0;
    for (uint32_t i = 0; labels[i]; i++)
        if (!strchr(other, labels[i]) && !strchr(out, labels[i]))
            axes |= 1u << i;
    if (!axes)
        return x;
    for (uint32_t i = 0; labels[i]; i++)
        if (!(axes >> i & 1))
            labels[n++] = labels[i];
    labels[n] = 0;
    return mf_g_reduce(c->b, MF_REDUCE_SUM, x, axes, false);
}

static uint32_t bad(mf_layer_call *c, const char *equation)
{
    return mf_build_fail(c->b, MEMFIT_UNSUPPORTED, "layer '%s': equation '%s' does not fit its operands",
                         c->layer->name, equation);
}

static bool repeats(const char *labels)
{
    for (; *labels; labels++)
        if (strchr(labels + 1, *labels))
            return true;
    return false;
}

uint32_t mf_einsum(mf_layer_call *c, const char *equation, uint32_t x, uint32_t y)
{
    sides s = {0};
    mf_shape xs = mf_g_shape(c->b, x), ys = mf_g_shape(c->b, y), shape = {0};
    char batch[MF_MOST_DIMS + 1], left[MF_MOST_DIMS + 1], right[MF_MOST_DIMS + 1], summed[MF_MOST_DIMS + 1],
        made[MF_MOST_DIMS + 1];
    if (!mf_build_ok(c->b))
        return MF_NONE;
    if (!parse(equation, xs.rank, &s) || repeats(s.x) || repeats(s.y) || repeats(s.out) || !take_sizes(&s, s.x, &xs) ||
        !take_sizes(&s, s.y, &ys))
        return bad(c, equation);
    x = drop_lonely(c, x, s.x, s.y, s.out);
    y = drop_lonely(c, y, s.y, s.x, s.out);
    pick(s.x, s.y, true, s.out, true, batch);
    pick(s.x, s.y, false, s.out, true, left);
    pick(s.x, s.y, true, s.out, false, summed);
    pick(s.y, s.x, false, s.out, true, right);
    if (strlen(batch) + strlen(left) + strlen(right) != strlen(s.out))
        return bad(c, equation);
    bool tx, ty;
    uint32_t a = operand(c, &s, x, s.x, batch, left, summed, &tx);
    uint32_t z = operand(c, &s, y, s.y, batch, summed, right, &ty);
    uint32_t product_tensor = mf_g_matmul(c->b, a, z, MF_NONE, tx, ty, 1);
    join(made, batch, left, right);
    for (uint32_t i = 0; made[i]; i++)
        shape.dim[shape.rank++] = s.size[(unsigned char)made[i]];
    return arrange(c, mf_g_view(c->b, product_tensor, shape), made, s.out);
}

/* ---- EinsumDense ---- */

static int64_t output_size(const mf_json *output_shape, const char *out, char label)
{
    size_t rank = strlen(out), at = (size_t)(strchr(out, label) - out);
    if (!output_shape)
        return 0;
    if (output_shape->type == MF_JSON_NUMBER)
        return at + 1 == rank ? mf_json_integer(output_shape, 0) : 0;
    size_t missing = rank - output_shape->count;
    return at < missing ? 0 : mf_json_integer(mf_json_at(output_shape, at - missing), 0);
}

void mf_lower_einsum_dense(mf_layer_call *c)
{
    const char *equation = mf_json_get_string(c->config, "equation", "");
    const mf_json *output_shape = mf_json_get(c->config, "output_shape");
    const char *bias_axes = mf_json_get_string(c->config, "bias_axes", "");
    static const mf_weight_spec bias_spec = {
        .name = "bias", .initializer = "bias_initializer", .regularizer = "bias_regularizer"};
    sides s = {0};
    mf_shape x = mf_g_shape(c->b, c->in[0]), kernel = {0}, bias = {0};
    if (!parse(equation, x.rank, &s) || !take_sizes(&s, s.x, &x) ||
        (output_shape && output_shape->type == MF_JSON_ARRAY && output_shape->count > strlen(s.out))) {
        bad(c, equation);
        return;
    }
    for (const char *p = s.out; *p; p++)
        if (!s.size[(unsigned char)*p])
            s.size[(unsigned char)*p] = output_size(output_shape, s.out, *p);
    for (const char *p = s.y; *p; p++) {
        if (s.size[(unsigned char)*p] < 1) {
            bad(c, equation);
            return;
        }
        kernel.dim[kernel.rank++] = s.size[(unsigned char)*p];
    }
    uint32_t weight = mf_kernel_weight(c, kernel);
    uint32_t y = mf_einsum(c, equation, c->in[0], weight);
    if (*bias_axes) {
        for (const char *p = s.out; *p; p++)
            if (strchr(bias_axes, *p) || bias.rank)
                bias.dim[bias.rank++] = strchr(bias_axes, *p) ? s.size[(unsigned char)*p] : 1;
        y = mf_g_binary(c->b, MF_ADD, y, mf_weight(c, &bias_spec, bias));
    }
    c->out[0] = mf_activation(c, mf_json_get(c->config, "activation"), y);
    c->out_count = 1;
}
