/* augment_body.h: see ref_augment.c. */
#include "ops/reference/real.h"

static double FN(pixel)(const REAL *x, image s, double row, double column, int64_t c, double fill)
{
    if (row < 0 || column < 0 || row >= (double)s.height || column >= (double)s.width)
        return fill;
    return (double)x[((int64_t)row * s.width + (int64_t)column) * s.channels + c];
}

static void FN(transform)(const mf_attr *attr, affine t, const REAL *x, image s, REAL *y)
{
    int mode = (int)attr->augment.a[5];
    double fill = attr->augment.a[6];
    for (int64_t i = 0; i < s.height; i++)
        for (int64_t j = 0; j < s.width; j++) {
            double cx = mapped(t.m[0] * (double)j + t.m[1] * (double)i + t.m[2], (double)s.width, mode);
            double cy = mapped(t.m[3] * (double)j + t.m[4] * (double)i + t.m[5], (double)s.height, mode);
            double x0 = floor(cx), y0 = floor(cy), fx = cx - x0, fy = cy - y0;
            for (int64_t c = 0; c < s.channels; c++) {
                double v;
                if (attr->augment.a[7] != 0)
                    v = FN(pixel)(x, s, rint(cy), rint(cx), c, fill);
                else
                    v = (1 - fy) * ((1 - fx) * FN(pixel)(x, s, y0, x0, c, fill) +
                                    (fx > 0 ? fx * FN(pixel)(x, s, y0, x0 + 1, c, fill) : 0)) +
                        (fy > 0 ? fy * ((1 - fx) * FN(pixel)(x, s, y0 + 1, x0, c, fill) +
                                        (fx > 0 ? fx * FN(pixel)(x, s, y0 + 1, x0 + 1, c, fill) : 0))
                                : 0);
                y[(i * s.width + j) * s.channels + c] = (REAL)v;
            }
        }
}

/* A window of the input, perhaps mirrored: flips and crops. */
static void FN(window)(const REAL *x, image s, int64_t top, int64_t left, bool flip_rows, bool flip_columns, image o,
                       REAL *y)
{
    for (int64_t i = 0; i < o.height; i++)
        for (int64_t j = 0; j < o.width; j++)
            for (int64_t c = 0; c < o.channels; c++) {
                int64_t row = top + (flip_rows ? o.height - 1 - i : i);
                int64_t column = left + (flip_columns ? o.width - 1 - j : j);
                y[(i * o.width + j) * o.channels + c] = x[(row * s.width + column) * s.channels + c];
            }
}

static void FN(recolour)(const mf_attr *attr, mf_draw *draw, const REAL *x, image s, REAL *y)
{
    const double *a = attr->augment.a;
    int64_t pixels = s.height * s.width;
    double u = between(draw, 0, a[0], a[1]), low = a[2], high = a[3];
    bool chosen = mf_draw_uniform(draw, 0) < a[0];
    for (int64_t c = 0; c < s.channels; c++) {
        double mean = 0;
        for (int64_t i = 0; i < pixels; i++)
            mean += (double)x[i * s.channels + c] / (double)pixels;
        for (int64_t i = 0; i < pixels; i++) {
            const REAL *p = x + i * s.channels;
            double v = (double)p[c];
            if (attr->augment.function == MF_AUGMENT_CONTRAST)
                v = fmin(fmax((v - mean) * u + mean, low), high);
            else if (attr->augment.function == MF_AUGMENT_BRIGHTNESS)
                v = fmin(fmax(v + u * (high - low), low), high);
            else if (chosen && attr->augment.function == MF_AUGMENT_INVERT)
                v = high - v + low;
            else if (chosen && s.channels >= 3)
                v = 0.2989 * (double)p[0] + 0.587 * (double)p[1] + 0.114 * (double)p[2];
            y[i * s.channels + c] = (REAL)v;
        }
    }
}

KERNEL(augment)
{
    const mf_attr *attr = &call->op->attr;
    const mf_shape *in = call->in[0].shape, *out = call->out[0].shape;
    if (in->rank != 4 || out->rank != 4 || attr->augment.function >= MF_AUGMENT_COUNT)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "random image layers work on (batch, height, width, channels)");
    image s = {in->dim[1], in->dim[2], in->dim[3]}, o = {out->dim[1], out->dim[2], out->dim[3]};
    if (o.height > s.height || o.width > s.width)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "a random crop larger than the image");
    for (int64_t n = 0; n < in->dim[0]; n++) {
        const REAL *x = (const REAL *)call->in[0].data + n * s.height * s.width * s.channels;
        REAL *y = (REAL *)call->out[0].data + n * o.height * o.width * o.channels;
        mf_draw draw;
        mf_draw_begin(&draw, call->scalars, attr->augment.key, call->scalars->first_sample + (uint64_t)n);
        double u = mf_draw_uniform(&draw, 0), v = mf_draw_uniform(&draw, 1);
        unsigned flips = (unsigned)attr->augment.a[0];
        switch ((mf_augment)attr->augment.function) {
        case MF_AUGMENT_FLIP:
            FN(window)(x, s, 0, 0, (flips & 2) && v < 0.5, (flips & 1) && u < 0.5, o, y);
            break;
        case MF_AUGMENT_CROP:
            FN(window)
            (x, s, (int64_t)(u * (double)(s.height - o.height + 1)), (int64_t)(v * (double)(s.width - o.width + 1)),
             false, false, o, y);
            break;
        case MF_AUGMENT_ROTATION:
        case MF_AUGMENT_ZOOM:
        case MF_AUGMENT_TRANSLATION:
        case MF_AUGMENT_SHEAR:
            FN(transform)(attr, affine_of(attr, &draw, (double)s.height, (double)s.width), x, s, y);
            break;
        default:
            FN(recolour)(attr, &draw, x, s, y);
            break;
        }
    }
    return MEMFIT_OK;
}
