/* augment_body.h: see ref_augment.c. */
#include "ops/reference/real.h"

static double FN(pixel)(const REAL *x, image s, double row, double column, int64_t c, double fill)
{
    if (row < 0 || column < 0 || row >= (double)s.height || column >= (double)s.width)
        return fill;
    return (double)x[((int64_t)row * s.width + (int64_t)column) * s.channels + c];
}

/* Four neighbours, all inside the image: what the general way would compute, without looking at each. */
static void FN(blend_inside)(const REAL *p, int64_t row, int64_t channels, double fx, double fy, REAL *y)
{
    for (int64_t c = 0; c < channels; c++) {
        const double right = fx > 0 ? fx * (double)p[channels + c] : 0;
        const double below_right = fx > 0 ? fx * (double)p[row + channels + c] : 0;
        const double below = fy > 0 ? fy * ((1 - fx) * (double)p[row + c] + below_right) : 0;
        y[c] = (REAL)((1 - fy) * ((1 - fx) * (double)p[c] + right) + below);
    }
}

static void FN(blend)(const mf_attr *attr, const REAL *x, image s, double cx, double cy, REAL *y)
{
    const double fill = attr->augment.a[6], x0 = floor(cx), y0 = floor(cy), fx = cx - x0, fy = cy - y0;
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
        y[c] = (REAL)v;
    }
}

static void FN(transform)(const mf_attr *attr, affine t, const REAL *x, image s, REAL *y)
{
    const int mode = (int)attr->augment.a[5];
    const bool bilinear = attr->augment.a[7] == 0;
    const int64_t row = s.width * s.channels;
    for (int64_t i = 0; i < s.height; i++)
        for (int64_t j = 0; j < s.width; j++, y += s.channels) {
            const double cx = mapped(t.m[0] * (double)j + t.m[1] * (double)i + t.m[2], (double)s.width, mode);
            const double cy = mapped(t.m[3] * (double)j + t.m[4] * (double)i + t.m[5], (double)s.height, mode);
            const bool inside =
                cx >= 0 && cy >= 0 && cx < (double)s.width - 1 && cy < (double)s.height - 1; /* so are its neighbours */
            if (!bilinear || !inside) {
                FN(blend)(attr, x, s, cx, cy, y);
                continue;
            }
            const int64_t left = (int64_t)cx, top = (int64_t)cy; /* floor, as they are not negative */
            FN(blend_inside)
            (x + top * row + left * s.channels, row, s.channels, cx - (double)left, cy - (double)top, y);
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

/* fmin(fmax(v, low), high), in a form that compilers turn into two instructions. */
static inline double FN(within)(double v, double low, double high)
{
    v = v >= low ? v : low;
    return v <= high ? v : high;
}

static void FN(contrast)(double factor, double low, double high, const REAL *x, image s, REAL *y)
{
    const int64_t pixels = s.height * s.width;
    for (int64_t c = 0; c < s.channels; c++) {
        double mean = 0;
        for (int64_t i = 0; i < pixels; i++)
            mean += (double)x[i * s.channels + c] / (double)pixels;
        for (int64_t i = 0; i < pixels; i++)
            y[i * s.channels + c] = (REAL)FN(within)(((double)x[i * s.channels + c] - mean) * factor + mean, low, high);
    }
}

static void FN(recolour)(const mf_attr *attr, mf_draw *draw, const REAL *x, image s, REAL *y)
{
    const double *a = attr->augment.a, low = a[2], high = a[3];
    const int64_t pixels = s.height * s.width, count = pixels * s.channels;
    const double u = between(draw, 0, a[0], a[1]), added = u * (high - low);
    const bool chosen = mf_draw_uniform(draw, 0) < a[0];
    const mf_augment function = (mf_augment)attr->augment.function;
    if (function == MF_AUGMENT_CONTRAST) {
        FN(contrast)(u, low, high, x, s, y);
    } else if (function == MF_AUGMENT_BRIGHTNESS) {
        for (int64_t i = 0; i < count; i++)
            y[i] = (REAL)FN(within)((double)x[i] + added, low, high);
    } else if (chosen && function == MF_AUGMENT_INVERT) {
        for (int64_t i = 0; i < count; i++)
            y[i] = (REAL)(high - (double)x[i] + low);
    } else if (chosen && s.channels >= 3) {
        for (int64_t i = 0; i < pixels; i++) {
            const REAL *p = x + i * s.channels;
            const double grey = 0.2989 * (double)p[0] + 0.587 * (double)p[1] + 0.114 * (double)p[2];
            for (int64_t c = 0; c < s.channels; c++)
                y[i * s.channels + c] = (REAL)grey;
        }
    } else {
        memcpy(y, x, (size_t)count * sizeof *y);
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
