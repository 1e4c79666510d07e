/* lower_ops_shape.c: operation nodes that move data: reshape, transpose, x[...], concatenate, stack, split, repeat. */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

static void bad(mf_layer_call *c, const char *what)
{
    mf_build_fail(c->b, MEMFIT_DAMAGED, "operation '%s': %s", c->layer->name, what);
}

/* -1 stands for what is left over; null for the batch. */
static void op_reshape(mf_layer_call *c)
{
    const mf_json *target = mf_json_get(c->config, "newshape");
    mf_shape x = mf_g_shape(c->b, c->in[0]), y = {0};
    if (!target || target->type != MF_JSON_ARRAY || target->count > MF_MOST_DIMS) {
        bad(c, "newshape is no shape");
        return;
    }
    int64_t known = 1, all = (int64_t)mf_shape_count(&x);
    uint32_t open = MF_NONE;
    for (const mf_json *v = target->first; v; v = v->next) {
        int64_t d = mf_json_integer(v, -1);
        if (d < 0)
            open = y.rank;
        else
            known *= d;
        y.dim[y.rank++] = d;
    }
    if (open != MF_NONE && known > 0 && all % known == 0)
        y.dim[open] = all / known;
    one(c, mf_g_view(c->b, c->in[0], y));
}

/* A number or a list of them as axes; 0 when one is out of range or given twice. */
static uint32_t axis_list(const mf_json *value, uint32_t rank, uint32_t axes[MF_MOST_DIMS])
{
    bool list = value && value->type == MF_JSON_ARRAY;
    uint32_t count = list ? (uint32_t)value->count : 1, seen = 0;
    if (!value || !count || count > rank)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        axes[i] = mf_axis(mf_json_integer(list ? mf_json_at(value, i) : value, INT64_MAX), rank);
        if (axes[i] == MF_NONE || (seen >> axes[i] & 1))
            return 0;
        seen |= 1u << axes[i];
    }
    return count;
}

static void op_transpose(mf_layer_call *c)
{
    const mf_json *axes = mf_json_get(c->config, "axes");
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, perm[MF_MOST_DIMS] = {0};
    if (!mf_json_is_null(axes) && axis_list(axes, rank, perm) != rank) {
        bad(c, "axes are no order of the axes");
        return;
    }
    for (uint32_t i = 0; mf_json_is_null(axes) && i < rank; i++)
        perm[i] = rank - 1 - i;
    one(c, mf_g_transpose(c->b, c->in[0], perm));
}

static void op_swapaxes(mf_layer_call *c)
{
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, perm[MF_MOST_DIMS];
    uint32_t a = mf_axis(mf_json_get_integer(c->config, "axis1", 0), rank);
    uint32_t z = mf_axis(mf_json_get_integer(c->config, "axis2", 0), rank);
    if (a == MF_NONE || z == MF_NONE) {
        bad(c, "an axis is out of range");
        return;
    }
    for (uint32_t i = 0; i < rank; i++)
        perm[i] = i == a ? z : i == z ? a : i;
    one(c, mf_g_transpose(c->b, c->in[0], perm));
}

static void op_moveaxis(mf_layer_call *c)
{
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, perm[MF_MOST_DIMS], from[MF_MOST_DIMS], to[MF_MOST_DIMS];
    uint32_t count = axis_list(mf_json_get(c->config, "source"), rank, from), moved = 0, next = 0;
    if (!count || axis_list(mf_json_get(c->config, "destination"), rank, to) != count) {
        bad(c, "an axis is out of range");
        return;
    }
    for (uint32_t i = 0; i < rank; i++)
        perm[i] = MF_NONE;
    for (uint32_t i = 0; i < count; i++) {
        perm[to[i]] = from[i];
        moved |= 1u << from[i];
    }
    for (uint32_t i = 0; i < rank; i++) { /* the others keep their order */
        if (perm[i] != MF_NONE)
            continue;
        while (moved >> next & 1)
            next++;
        perm[i] = next++;
    }
    one(c, mf_g_transpose(c->b, c->in[0], perm));
}

static uint32_t expanded(mf_layer_call *c, uint32_t x, uint32_t axis)
{
    mf_shape s = mf_g_shape(c->b, x), y = {.rank = s.rank + 1};
    if (y.rank > MF_MOST_DIMS)
        return mf_build_fail(c->b, MEMFIT_UNSUPPORTED, "operation '%s': too many dimensions", c->layer->name);
    for (uint32_t i = 0; i < y.rank; i++)
        y.dim[i] = i < axis ? s.dim[i] : i == axis ? 1 : s.dim[i - 1];
    return mf_g_view(c->b, x, y);
}

static void op_expand_dims(mf_layer_call *c)
{
    const mf_json *value = mf_json_get(c->config, "axis");
    uint32_t more = value && value->type == MF_JSON_ARRAY ? (uint32_t)value->count : 1, axes[MF_MOST_DIMS], bits = 0;
    mf_shape s = mf_g_shape(c->b, c->in[0]), y = {.rank = s.rank + more};
    if (y.rank > MF_MOST_DIMS || axis_list(value, y.rank, axes) != more) {
        bad(c, "axis is out of range");
        return;
    }
    for (uint32_t i = 0; i < more; i++)
        bits |= 1u << axes[i];
    for (uint32_t i = 0, k = 0; i < y.rank; i++)
        y.dim[i] = bits >> i & 1 ? 1 : s.dim[k++];
    one(c, mf_g_view(c->b, c->in[0], y));
}

static void op_squeeze(mf_layer_call *c)
{
    const mf_json *value = mf_json_get(c->config, "axis");
    mf_shape s = mf_g_shape(c->b, c->in[0]), y = {0};
    uint32_t drop = 0, axes[MF_MOST_DIMS], count = mf_json_is_null(value) ? 0 : axis_list(value, s.rank, axes);
    if (!mf_json_is_null(value) && !count) {
        bad(c, "axis is out of range");
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        drop |= 1u << axes[i];
    for (uint32_t i = 0; i < s.rank; i++)
        drop |= mf_json_is_null(value) && i && s.dim[i] == 1 ? 1u << i : 0;
    for (uint32_t i = 0; i < s.rank; i++)
        if (!(drop >> i & 1))
            y.dim[y.rank++] = s.dim[i];
    one(c, mf_g_view(c->b, c->in[0], y));
}

static void op_stack(mf_layer_call *c)
{
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank,
             axis = mf_axis(mf_json_get_integer(c->config, "axis", 0), rank + 1);
    uint32_t *parts = MF_NEW_ARRAY(&c->lo->scratch, uint32_t, c->in_count + 1);
    if (!parts || axis == MF_NONE) {
        bad(c, "axis is out of range");
        return;
    }
    for (uint32_t i = 0; i < c->in_count; i++)
        parts[i] = expanded(c, c->in[i], axis);
    one(c, mf_g_concat(c->b, c->in_count, parts, axis));
}

static void op_split(mf_layer_call *c)
{
    mf_shape s = mf_g_shape(c->b, c->in[0]), part = s;
    uint32_t axis = mf_axis(mf_json_get_integer(c->config, "axis", 0), s.rank);
    const mf_json *how = mf_json_get(c->config, "indices_or_sections");
    int64_t begin[MF_MOST_DIMS] = {0}, sections = mf_json_integer(how, 0);
    uint64_t count = sections ? (uint64_t)sections : how ? how->count + 1 : 0;
    if (axis == MF_NONE || count < 1 || count > 8 || (sections && s.dim[axis] % sections)) {
        mf_lower_unsupported(c, "more than eight parts, or parts of different size");
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        int64_t end = sections         ? (int64_t)(i + 1) * (s.dim[axis] / sections)
                      : i + 1 == count ? s.dim[axis]
                                       : mf_json_integer(mf_json_at(how, i), -1);
        if (end < begin[axis] || end > s.dim[axis]) {
            bad(c, "indices_or_sections do not rise within the axis");
            return;
        }
        part.dim[axis] = end - begin[axis];
        c->out[i] = mf_g_slice(c->b, c->in[0], begin, part.dim, NULL);
        begin[axis] = end;
    }
    c->out_count = (uint32_t)count;
}

/* ---- x[...] ---- */

static const char *special(const mf_json *item)
{
    return item->type == MF_JSON_OBJECT ? mf_json_get_string(item, "class_name", "") : "";
}

/* One axis of a subscript: a slice or a number. */
static bool subscript(const mf_json *item, int64_t size, int64_t *begin, int64_t *count, int64_t *step)
{
    if (item->type == MF_JSON_NUMBER) {
        int64_t at = mf_json_integer(item, INT64_MAX);
        *begin = at < 0 ? at + size : at;
        *count = 1;
        *step = 1;
        return *begin >= 0 && *begin < size;
    }
    const mf_json *config = mf_json_get(item, "config");
    *step = mf_json_get_integer(config, "step", 1);
    const mf_json *start = mf_json_get(config, "start"), *stop = mf_json_get(config, "stop");
    if (!*step || strcmp(special(item), "__slice__") != 0)
        return false;
    /* A step past the end takes one element, however long it is; short enough, nothing below can overflow. */
    *step = *step > size ? size + 1 : *step < -size ? -size - 1 : *step;
    int64_t low = *step > 0 ? 0 : -1, high = *step > 0 ? size : size - 1;
    int64_t a = mf_json_is_null(start) ? (*step > 0 ? low : high) : mf_json_integer(start, 0);
    int64_t z = mf_json_is_null(stop) ? (*step > 0 ? high : low) : mf_json_integer(stop, 0);
    if (!mf_json_is_null(start))
        a = a < 0 ? a + size : a;
    if (!mf_json_is_null(stop))
        z = z < 0 ? z + size : z;
    a = a < low ? low : a > high ? high : a;
    z = z < low ? low : z > high ? high : z;
    *begin = a;
    *count = *step > 0 ? (z - a + *step - 1) / *step : (a - z - *step - 1) / -*step;
    return *count > 0;
}

static void op_get_item(mf_layer_call *c)
{
    const mf_json *key = c->call && c->call->arg_count > 1 ? c->call->args[1].constant : NULL;
    mf_shape x = mf_g_shape(c->b, c->in[0]), sizes = x, y = {0};
    int64_t begin[MF_MOST_DIMS] = {0}, step[MF_MOST_DIMS];
    if (!key) {
        mf_lower_unsupported(c, "a subscript that is a tensor");
        return;
    }
    mf_json single = *key;
    single.next = NULL;
    const mf_json *first = key->type == MF_JSON_ARRAY ? key->first : &single;
    uint32_t taken = 0, axis = 0;
    for (const mf_json *v = first; v; v = v->next)
        taken += v->type != MF_JSON_NULL && strcmp(special(v), "__ellipsis__") != 0;
    for (uint32_t i = 0; i < x.rank; i++)
        step[i] = 1;
    bool fits = taken <= x.rank;
    for (const mf_json *v = first; v && fits; v = v->next) {
        fits = y.rank < MF_MOST_DIMS;
        if (!fits)
            break;
        if (v->type == MF_JSON_NULL)
            y.dim[y.rank++] = 1;
        else if (strcmp(special(v), "__ellipsis__") == 0)
            for (uint32_t skip = x.rank - taken; skip && y.rank < MF_MOST_DIMS; skip--)
                y.dim[y.rank++] = x.dim[axis++];
        else if ((fits = axis < x.rank && subscript(v, x.dim[axis], &begin[axis], &sizes.dim[axis], &step[axis]))) {
            if (v->type != MF_JSON_NUMBER)
                y.dim[y.rank++] = sizes.dim[axis];
            axis++;
        }
    }
    while (fits && axis < x.rank && (fits = y.rank < MF_MOST_DIMS))
        y.dim[y.rank++] = x.dim[axis++];
    if (!fits) {
        mf_lower_unsupported(c, "this subscript is not understood");
        return;
    }
    one(c, mf_g_view(c->b, mf_g_slice(c->b, c->in[0], begin, sizes.dim, step), y));
}

/* ---- repeating, padding, turning ---- */

/* One axis repeated: as a whole (tile) or every element by itself. */
static uint32_t repeated(mf_layer_call *c, uint32_t x, uint32_t axis, int64_t times, bool whole)
{
    mf_shape s = mf_g_shape(c->b, x), tall;
    if (times == 1)
        return x;
    if (times < 1 || times > INT32_MAX || __builtin_mul_overflow(s.dim[axis], times, &s.dim[axis])) {
        bad(c, "repeats make no sense");
        return MF_NONE;
    }
    uint32_t at = axis + !whole;
    x = expanded(c, x, at);
    tall = mf_g_shape(c->b, x);
    if (!mf_build_ok(c->b))
        return MF_NONE;
    tall.dim[at] = times;
    return mf_g_view(c->b, mf_g_broadcast(c->b, x, tall, 1), s);
}

/* Repeats and axes are aligned at the right; the shorter list is filled with ones. */
static void op_tile(mf_layer_call *c)
{
    const mf_json *repeats = mf_json_get(c->config, "repeats");
    uint32_t x = c->in[0], given = repeats && repeats->type == MF_JSON_ARRAY ? (uint32_t)repeats->count : 1;
    if (!repeats || given > MF_MOST_DIMS) {
        bad(c, "repeats make no sense");
        return;
    }
    while (mf_build_ok(c->b) && mf_g_shape(c->b, x).rank < given)
        x = expanded(c, x, 0);
    for (uint32_t i = 0; i < given && mf_build_ok(c->b); i++)
        x = repeated(c, x, mf_g_shape(c->b, x).rank - given + i,
                     mf_json_integer(repeats->type == MF_JSON_ARRAY ? mf_json_at(repeats, i) : repeats, 0), true);
    one(c, x);
}

/* A number of times for each element of the axis. */
static uint32_t repeated_each(mf_layer_call *c, uint32_t x, uint32_t axis, const mf_json *times)
{
    enum { MOST = 4096 };
    mf_shape s = mf_g_shape(c->b, x), part = s;
    int64_t begin[MF_MOST_DIMS] = {0};
    uint32_t count = 0, *parts = MF_NEW_ARRAY(&c->lo->scratch, uint32_t, times->count + 1);
    if (!parts || times->count != (size_t)s.dim[axis] || times->count > MOST)
        return mf_lower_unsupported(c, "repeats must be one number, or one for each element of the axis");
    part.dim[axis] = 1;
    for (uint32_t i = 0; i < times->count && mf_build_ok(c->b); i++) {
        int64_t n = mf_json_integer(mf_json_at(times, i), -1);
        begin[axis] = i;
        if (n != 0)
            parts[count++] = repeated(c, mf_g_slice(c->b, x, begin, part.dim, NULL), axis, n, false);
    }
    return count ? mf_g_concat(c->b, count, parts, axis) : mf_lower_unsupported(c, "nothing is left");
}

/* Without an axis the result is flat. */
static void op_repeat(mf_layer_call *c)
{
    const mf_json *repeats = mf_json_get(c->config, "repeats"), *along = mf_json_get(c->config, "axis");
    uint32_t x = c->in[0];
    if (mf_json_is_null(along)) {
        mf_shape s = mf_g_shape(c->b, x);
        x = mf_g_view(c->b, x, mf_shape1((int64_t)mf_shape_count(&s)));
    }
    uint32_t axis = mf_axis(mf_json_is_null(along) ? 0 : mf_json_integer(along, INT64_MAX), mf_g_shape(c->b, x).rank);
    if (axis == MF_NONE || !repeats) {
        bad(c, "axis is out of range");
        return;
    }
    if (repeats->type == MF_JSON_ARRAY && repeats->count != 1)
        one(c, repeated_each(c, x, axis, repeats));
    else
        one(c, repeated(c, x, axis, mf_json_integer(repeats->count == 1 ? mf_json_at(repeats, 0) : repeats, 0), false));
}

static void op_broadcast_to(mf_layer_call *c)
{
    const mf_json *target = mf_json_get(c->config, "shape");
    mf_shape s = mf_g_shape(c->b, c->in[0]), y = {0};
    uint32_t x = c->in[0];
    for (const mf_json *v = target ? target->first : NULL; v && y.rank < MF_MOST_DIMS; v = v->next)
        y.dim[y.rank++] = mf_json_integer(v, c->b->graph->batch);
    while (mf_build_ok(c->b) && mf_g_shape(c->b, x).rank < y.rank)
        x = expanded(c, x, 0);
    s = mf_g_shape(c->b, x);
    if (s.rank && y.rank == s.rank && y.dim[0] < 0)
        y.dim[0] = s.dim[0];
    one(c, mf_g_broadcast(c->b, x, y, 1));
}

static void op_flip(mf_layer_call *c)
{
    mf_shape s = mf_g_shape(c->b, c->in[0]);
    const mf_json *axis = mf_json_get(c->config, "axis");
    int64_t begin[MF_MOST_DIMS] = {0}, step[MF_MOST_DIMS];
    uint32_t axes[MF_MOST_DIMS], count = mf_json_is_null(axis) ? 0 : axis_list(axis, s.rank, axes);
    if (!mf_json_is_null(axis) && !count) {
        bad(c, "axis is out of range");
        return;
    }
    for (uint32_t i = 0; i < s.rank; i++) {
        bool turn = mf_json_is_null(axis);
        for (uint32_t k = 0; k < count; k++)
            turn |= axes[k] == i;
        step[i] = turn ? -1 : 1;
        begin[i] = turn ? s.dim[i] - 1 : 0;
    }
    one(c, mf_g_slice(c->b, c->in[0], begin, s.dim, step));
}

static void op_pad(mf_layer_call *c)
{
    static const char *const modes[] = {"constant", "reflect", "symmetric", "edge"};
    const mf_json *width = mf_json_get(c->config, "pad_width");
    const char *mode = mf_json_get_string(c->config, "mode", "constant");
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, number = MF_NONE;
    int64_t before[MF_MOST_DIMS] = {0}, after[MF_MOST_DIMS] = {0};
    for (uint32_t i = 0; i < 4; i++)
        number = strcmp(mode, modes[i]) == 0 ? i : number;
    for (uint32_t i = 0; width && i < rank; i++) {
        const mf_json *pair = width->type == MF_JSON_ARRAY ? mf_json_at(width, width->count == 1 ? 0 : i) : width;
        bool two = pair && pair->type == MF_JSON_ARRAY;
        before[i] = mf_json_integer(two ? mf_json_at(pair, 0) : pair, 0);
        after[i] = mf_json_integer(two ? mf_json_at(pair, pair->count - 1) : pair, 0);
    }
    double value = c->call ? mf_json_get_number(c->call->kwargs, "constant_values", 0) : 0;
    if (number == MF_NONE)
        mf_lower_unsupported(c, "this mode of padding is not known");
    else
        one(c, mf_g_pad(c->b, c->in[0], before, after, NULL, value, number));
}

static void op_ravel(mf_layer_call *c)
{
    mf_shape s = mf_g_shape(c->b, c->in[0]);
    one(c, mf_g_view(c->b, c->in[0], mf_shape1((int64_t)mf_shape_count(&s))));
}

static void op_zeros_like(mf_layer_call *c)
{
    double value = strcmp(c->layer->class_name, "OnesLike") == 0;
    if (strcmp(c->layer->class_name, "FullLike") == 0) {
        const mf_json *given = c->call && c->call->arg_count > 1 ? c->call->args[1].constant : NULL;
        if (!given || given->type != MF_JSON_NUMBER) {
            mf_lower_unsupported(c, "filling with other than a number");
            return;
        }
        value = given->number;
    }
    const char *name = mf_json_get_string(c->config, "dtype", "");
    mf_dtype dtype = c->compute;
    mf_dtype_parse(name, &dtype);
    one(c, mf_g_fill(c->b, dtype == MF_BOOL ? MF_U8 : dtype, mf_g_shape(c->b, c->in[0]), value));
}

static const mf_class_row rows[] = {
    {"Reshape", op_reshape, MF_CLASS_KEEPS_TYPES, "view"},
    {"Transpose", op_transpose, MF_CLASS_KEEPS_TYPES, "transpose"},
    {"Swapaxes", op_swapaxes, MF_CLASS_KEEPS_TYPES, "transpose"},
    {"Moveaxis", op_moveaxis, MF_CLASS_KEEPS_TYPES, "transpose"},
    {"ExpandDims", op_expand_dims, MF_CLASS_KEEPS_TYPES, "view"},
    {"Squeeze", op_squeeze, MF_CLASS_KEEPS_TYPES, "view"},
    {"Concatenate", mf_lower_concatenate, MF_CLASS_KEEPS_TYPES, "concat"},
    {"Stack", op_stack, MF_CLASS_KEEPS_TYPES, "views and concat"},
    {"Split", op_split, MF_CLASS_KEEPS_TYPES, "slices"},
    {"GetItem", op_get_item, MF_CLASS_KEEPS_TYPES, "slice and view"},
    {"Tile", op_tile, MF_CLASS_KEEPS_TYPES, "broadcast between views"},
    {"Repeat", op_repeat, MF_CLASS_KEEPS_TYPES, "broadcast between views"},
    {"BroadcastTo", op_broadcast_to, MF_CLASS_KEEPS_TYPES, "broadcast"},
    {"Flip", op_flip, MF_CLASS_KEEPS_TYPES, "slice with steps of -1"},
    {"Pad", op_pad, MF_CLASS_KEEPS_TYPES, "pad"},
    {"ZerosLike", op_zeros_like, 0, "fill"},
    {"OnesLike", op_zeros_like, 0, "fill"},
    {"FullLike", op_zeros_like, 0, "fill"},
    {"Ravel", op_ravel, MF_CLASS_KEEPS_TYPES, "view"},
    {"Flatten", mf_lower_flatten, MF_CLASS_KEEPS_TYPES, "view"},
};

const mf_class_row *mf_shape_operation_find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

const mf_class_row *mf_shape_operation_table(uint32_t *count)
{
    *count = sizeof rows / sizeof *rows;
    return rows;
}
