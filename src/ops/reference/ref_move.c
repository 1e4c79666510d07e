/* ref_move.c: operations that move elements and do not look at them: one function for all types of one size. Outputs
 * have their input's type (CAST excepted); pad values are converted to it. */
#include "ops/reference/reference.h"

#include "base/error.h"

#include <string.h>

static void copy_element(uint64_t size, void *to, uint64_t i, const void *from, uint64_t j)
{
    switch (size) {
    case 4:
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[j];
        break;
    case 8:
        ((uint64_t *)to)[i] = ((const uint64_t *)from)[j];
        break;
    case 2:
        ((uint16_t *)to)[i] = ((const uint16_t *)from)[j];
        break;
    default:
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[j];
        break;
    }
}

static void row_strides(const mf_shape *shape, int64_t stride[MF_MOST_DIMS])
{
    int64_t step = 1;
    for (uint32_t i = shape->rank; i-- > 0;) {
        stride[i] = step;
        step *= shape->dim[i];
    }
}

memfit_status mf_ref_view(mf_ref_call *call, memfit_error *err)
{
    (void)err;
    const mf_ref_arg *x = &call->in[0], *y = &call->out[0];
    if (call->in_count == 0 || !x->data)
        return MEMFIT_OK;
    const char *from = x->data;
    if (call->op->attr.view.rows)
        from +=
            (uint64_t)call->op->attr.view.first * (y->count / (uint64_t)y->shape->dim[0]) * mf_dtype_bytes(y->dtype);
    if (from != y->data) /* a view that was given bytes of its own */
        memmove(y->data, from, y->count * mf_dtype_bytes(y->dtype));
    return MEMFIT_OK;
}

/* Takes and gives any types, so it adds for itself. */
memfit_status mf_ref_cast(mf_ref_call *call, memfit_error *err)
{
    (void)err;
    const mf_ref_arg *x = &call->in[0], *y = &call->out[0];
    for (uint64_t i = 0; call->op->accumulate && i < y->count; i++)
        mf_ref_store(y->dtype, y->data, i, mf_ref_load(y->dtype, y->data, i) + mf_ref_load(x->dtype, x->data, i));
    if (call->op->accumulate)
        return MEMFIT_OK;
    mf_ref_convert(y->dtype, y->data, x->dtype, x->data, y->count);
    return MEMFIT_OK;
}

memfit_status mf_ref_transpose(mf_ref_call *call, memfit_error *err)
{
    (void)err;
    const mf_ref_arg *x = &call->in[0], *y = &call->out[0];
    int64_t from[MF_MOST_DIMS], stride[MF_MOST_DIMS] = {0}, at[MF_MOST_DIMS] = {0};
    row_strides(x->shape, from);
    for (uint32_t i = 0; i < y->shape->rank; i++)
        stride[i] = from[call->op->attr.transpose.perm[i]];
    uint64_t size = mf_dtype_bytes(y->dtype);
    for (uint64_t i = 0; i < y->count; i++, mf_ref_next(y->shape, at))
        copy_element(size, y->data, i, x->data, (uint64_t)mf_ref_dot(at, stride, y->shape->rank));
    return MEMFIT_OK;
}

memfit_status mf_ref_slice(mf_ref_call *call, memfit_error *err)
{
    const mf_ref_arg *x = &call->in[0], *y = &call->out[0];
    const mf_attr *attr = &call->op->attr;
    int64_t stride[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0}, start = 0;
    row_strides(x->shape, stride);
    for (uint32_t i = 0; i < x->shape->rank; i++) {
        int64_t step = attr->slice.stride[i] ? attr->slice.stride[i] : 1, begin = attr->slice.begin[i];
        int64_t last = begin + (y->shape->dim[i] - 1) * step;
        if (y->count > 0 && (begin < 0 || begin >= x->shape->dim[i] || last < 0 || last >= x->shape->dim[i]))
            return mf_fail(err, MEMFIT_INTERNAL, "slice reads outside axis %u", i);
        start += begin * stride[i];
        stride[i] *= step;
    }
    uint64_t size = mf_dtype_bytes(y->dtype);
    for (uint64_t i = 0; i < y->count; i++, mf_ref_next(y->shape, at))
        copy_element(size, y->data, i, x->data, (uint64_t)(start + mf_ref_dot(at, stride, y->shape->rank)));
    return MEMFIT_OK;
}

/* Where output coordinate `i` of a padded axis comes from; -1 for a padding cell. */
static int64_t pad_source(uint32_t mode, int64_t i, int64_t before, int64_t between, int64_t size)
{
    int64_t p = i - before;
    if (mode == 0)
        return p < 0 || p % (between + 1) != 0 || p / (between + 1) >= size ? -1 : p / (between + 1);
    if (mode == 3)
        return p < 0 ? 0 : p >= size ? size - 1 : p;
    int64_t period = mode == 1 ? 2 * (size - 1) : 2 * size;
    if (period == 0)
        return 0;
    p = (p % period + period) % period;
    return p < size ? p : mode == 1 ? period - p : period - 1 - p;
}

memfit_status mf_ref_pad(mf_ref_call *call, memfit_error *err)
{
    (void)err;
    const mf_ref_arg *x = &call->in[0], *y = &call->out[0];
    const mf_attr *attr = &call->op->attr;
    int64_t stride[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0};
    row_strides(x->shape, stride);
    uint64_t size = mf_dtype_bytes(y->dtype);
    for (uint64_t i = 0; i < y->count; i++, mf_ref_next(y->shape, at)) {
        int64_t source = 0;
        for (uint32_t a = 0; a < y->shape->rank && source >= 0; a++) {
            int64_t p = pad_source(attr->pad.mode, at[a], attr->pad.before[a], attr->pad.between[a], x->shape->dim[a]);
            source = p < 0 ? -1 : source + p * stride[a];
        }
        if (source < 0)
            mf_ref_store(y->dtype, y->data, i, attr->pad.value);
        else
            copy_element(size, y->data, i, x->data, (uint64_t)source);
    }
    return MEMFIT_OK;
}

memfit_status mf_ref_concat(mf_ref_call *call, memfit_error *err)
{
    (void)err;
    const mf_ref_arg *y = &call->out[0];
    uint32_t axis = call->op->attr.concat.axis;
    uint64_t size = mf_dtype_bytes(y->dtype), outer = (uint64_t)mf_ref_span(y->shape, 0, axis);
    uint64_t whole = (uint64_t)mf_ref_span(y->shape, axis, y->shape->rank) * size, start = 0;
    for (uint32_t k = 0; k < call->in_count; k++) {
        const mf_ref_arg *x = &call->in[k];
        uint64_t part = (uint64_t)mf_ref_span(x->shape, axis, x->shape->rank) * size;
        for (uint64_t o = 0; o < outer; o++) {
            char *to = (char *)y->data + o * whole + start;
            const char *from = (const char *)x->data + o * part;
            if (to != from)
                memmove(to, from, part);
        }
        start += part;
    }
    return MEMFIT_OK;
}
