/*
 * ref_augment.c: random changes of images, sample by sample (graph/augment.h lists them).
 *
 * Rotation, zoom, translation and shear are one affine map from output to input coordinates; what falls outside is
 * mapped back by the fill mode, as TensorFlow's projective transform does.
 */
#include "ops/reference/draw.h"
#include "ops/reference/reference.h"

#include "base/error.h"
#include "graph/augment.h"

#include <math.h>
#include <string.h>

/* x' = m[0] x + m[1] y + m[2], y' = m[3] x + m[4] y + m[5] */
typedef struct affine {
    double m[6];
} affine;

static affine affine_make(double a, double b, double c, double d, double e, double f)
{
    affine t = {{a, b, c, d, e, f}};
    return t;
}

static double between(mf_draw *draw, uint64_t index, double low, double high)
{
    return low + (high - low) * mf_draw_uniform(draw, index);
}

static affine affine_of(const mf_attr *attr, mf_draw *draw, double height, double width)
{
    const double *a = attr->augment.a;
    double u = between(draw, 0, a[0], a[1]), v = between(draw, 1, a[2], a[3]);
    double cx = (width - 1) / 2, cy = (height - 1) / 2;
    switch ((mf_augment)attr->augment.function) {
    case MF_AUGMENT_ROTATION:
        u *= 2 * M_PI;
        return affine_make(cos(u), -sin(u), cx - cos(u) * cx + sin(u) * cy, sin(u), cos(u),
                           cy - sin(u) * cx - cos(u) * cy);
    case MF_AUGMENT_ZOOM:
        u += 1;
        v = a[4] == 0 ? u : v + 1;
        return affine_make(v, 0, cx * (1 - v), 0, u, cy * (1 - u));
    case MF_AUGMENT_TRANSLATION:
        return affine_make(1, 0, -v * width, 0, 1, -u * height);
    default: /* shear */
        return affine_make(1, u, -u * cy, v, 1, -v * cx);
    }
}

/* A coordinate outside [0, n) as the fill mode sees it. */
static double mapped(double x, double n, int mode)
{
    if (x >= 0 && x <= n - 1) /* most are inside; dividing takes longer than all the rest */
        return x;
    if (mode == 0) { /* d c b a | a b c d | d c b a */
        double period = 2 * n;
        x = fmod(x, period);
        x = x < 0 ? x + period : x;
        x = x > n - 0.5 ? period - 1 - x : x;
    } else if (mode == 1) {
        x = fmod(x, n);
        x = x < 0 ? x + n : x;
    }
    return mode == 2 ? x : fmin(fmax(x, 0), n - 1);
}

typedef struct image {
    int64_t height, width, channels;
} image;

#define REF_DOUBLE 0
#include "ops/reference/augment_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/augment_body.h"
