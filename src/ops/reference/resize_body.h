/* resize_body.h: see ref_resize.c. */
#include "ops/reference/real.h"

KERNEL(resize)
{
    (void)err;
    const mf_shape *in = call->in[0].shape, *out = call->out[0].shape;
    int64_t channels = in->dim[3], image = in->dim[1] * in->dim[2] * channels;
    REAL *y = call->out[0].data;
    for (int64_t n = 0; n < out->dim[0]; n++)
        for (int64_t i = 0; i < out->dim[1]; i++)
            for (int64_t j = 0; j < out->dim[2]; j++, y += channels) {
                taps v = taps_of(&call->op->attr, i, in->dim[1], out->dim[1]);
                taps h = taps_of(&call->op->attr, j, in->dim[2], out->dim[2]);
                for (int64_t c = 0; c < channels; c++) {
                    const REAL *x = (const REAL *)call->in[0].data + n * image + c;
                    double sum = 0;
                    for (int64_t a = 0; a < v.count; a++)
                        for (int64_t b = 0; b < h.count; b++)
                            sum += weight_of(&v, a) * weight_of(&h, b) *
                                   (double)x[(cell_at(&v, a) * in->dim[2] + cell_at(&h, b)) * channels];
                    y[c] = (REAL)sum;
                }
            }
    return MEMFIT_OK;
}

KERNEL(resize_grad)
{
    (void)err;
    const mf_shape *in = call->out[0].shape, *out = call->in[0].shape; /* of the forward operation */
    int64_t channels = in->dim[3], image = in->dim[1] * in->dim[2] * channels;
    const REAL *dy = call->in[0].data;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        call->scratch[i] = 0;
    for (int64_t n = 0; n < out->dim[0]; n++)
        for (int64_t i = 0; i < out->dim[1]; i++)
            for (int64_t j = 0; j < out->dim[2]; j++, dy += channels) {
                taps v = taps_of(&call->op->attr, i, in->dim[1], out->dim[1]);
                taps h = taps_of(&call->op->attr, j, in->dim[2], out->dim[2]);
                for (int64_t a = 0; a < v.count; a++)
                    for (int64_t b = 0; b < h.count; b++) {
                        double *dx =
                            call->scratch + n * image + (cell_at(&v, a) * in->dim[2] + cell_at(&h, b)) * channels;
                        for (int64_t c = 0; c < channels; c++)
                            dx[c] += weight_of(&v, a) * weight_of(&h, b) * (double)dy[c];
                    }
            }
    for (uint64_t i = 0; i < call->out[0].count; i++)
        ((REAL *)call->out[0].data)[i] = (REAL)call->scratch[i];
    return MEMFIT_OK;
}
