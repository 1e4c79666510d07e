/* shapes.c: walking shapes: broadcasting strides, counters, windows of one to three dimensions as three. */
#include "ops/reference/reference.h"

#include <string.h>

void mf_ref_strides(const mf_shape *out, const mf_shape *x, int64_t stride[MF_MOST_DIMS])
{
    memset(stride, 0, MF_MOST_DIMS * sizeof *stride);
    int64_t step = 1;
    for (uint32_t i = 0; i < x->rank && i < out->rank; i++) {
        uint32_t from = x->rank - 1 - i, to = out->rank - 1 - i;
        stride[to] = x->dim[from] == 1 ? 0 : step;
        step *= x->dim[from];
    }
}

bool mf_ref_next(const mf_shape *shape, int64_t at[MF_MOST_DIMS])
{
    for (uint32_t i = shape->rank; i-- > 0;) {
        if (++at[i] < shape->dim[i])
            return true;
        at[i] = 0;
    }
    return false;
}

int64_t mf_ref_dot(const int64_t *at, const int64_t *stride, uint32_t rank)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < rank; i++)
        sum += at[i] * stride[i];
    return sum;
}

int64_t mf_ref_span(const mf_shape *shape, uint32_t first, uint32_t last)
{
    int64_t n = 1;
    for (uint32_t i = first; i < last && i < shape->rank; i++)
        n *= shape->dim[i];
    return n;
}

void mf_ref_window_of(const mf_window *window, const mf_shape *x, const mf_shape *y, mf_ref_window *w)
{
    *w = (mf_ref_window){.batch = x->dim[0],
                         .in_channels = x->dim[x->rank - 1],
                         .out_channels = y->dim[y->rank - 1],
                         .groups = window->groups > 0 ? window->groups : 1};
    for (uint32_t i = 0; i < 3; i++) {
        w->in[i] = w->out[i] = w->kernel[i] = w->stride[i] = w->dilation[i] = 1;
        w->before[i] = 0;
    }
    uint32_t lead = 3 - window->dims;
    for (uint32_t i = 0; i < window->dims; i++) {
        w->in[lead + i] = x->dim[1 + i];
        w->out[lead + i] = y->dim[1 + i];
        w->kernel[lead + i] = window->kernel[i];
        w->stride[lead + i] = window->stride[i] > 0 ? window->stride[i] : 1;
        w->dilation[lead + i] = window->dilation[i] > 0 ? window->dilation[i] : 1;
        w->before[lead + i] = window->before[i];
    }
}
