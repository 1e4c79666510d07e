/*
 * ref_resize.c: images resized along height and width: nearest, bilinear, bicubic, area, lanczos3, as tf.image.resize
 * without antialiasing. Every method is a list of taps (first source cell and weights) for each output row and column;
 * an output cell is the sum over their products, and the gradient the same sum transposed.
 *
 * Bicubic rounds the fraction to 1/1024 as TensorFlow's table of weights does; with half-pixel centres its weights
 * outside the image are dropped and the rest made to sum to 1 (Keys, a = -1/2), otherwise cells are repeated at the
 * border (a = -3/4).
 */
#include "ops/reference/reference.h"

#include <math.h>

enum { NEAREST, BILINEAR, BICUBIC, AREA, LANCZOS3, MOST_TAPS = 8 };

typedef struct taps {
    int64_t first, count, last_cell; /* cells are clamped to [0, last_cell] */
    double weight[MOST_TAPS];
    bool area;
    double low, high; /* area: the range of source covered */
} taps;

static double weight_of(const taps *t, int64_t k)
{
    if (!t->area)
        return t->weight[k];
    double from = fmax((double)(t->first + k), t->low), to = fmin((double)(t->first + k + 1), t->high);
    return (to - from) / (t->high - t->low);
}

static int64_t cell_at(const taps *t, int64_t k)
{
    int64_t cell = t->first + k;
    return cell < 0 ? 0 : cell > t->last_cell ? t->last_cell : cell;
}

static double cubic(double a, double x)
{
    x = fabs(x);
    return x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static double lanczos3(double x)
{
    x = fabs(x);
    return x > 3 ? 0 : x <= 1e-3 ? 1 : 3 * sin(M_PI * x) * sin(M_PI * x / 3) / (M_PI * M_PI * x * x);
}

static void scale_weights(taps *t)
{
    double sum = 0;
    for (int64_t k = 0; k < t->count; k++)
        sum += t->weight[k];
    for (int64_t k = 0; k < t->count && sum != 0; k++)
        t->weight[k] /= sum;
}

static void cubic_taps(bool half_pixel, double at, int64_t in, taps *t)
{
    double a = half_pixel ? -0.5 : -0.75, fraction = rint((at - floor(at)) * 1024) / 1024;
    t->first = (int64_t)floor(at) - 1;
    t->count = 4;
    for (int64_t k = 0; k < 4; k++) {
        bool outside = t->first + k < 0 || t->first + k >= in;
        t->weight[k] = half_pixel && outside ? 0 : cubic(a, (double)(k - 1) - fraction);
    }
    if (half_pixel)
        scale_weights(t);
}

static void lanczos_taps(double centre, int64_t in, taps *t)
{
    int64_t first = (int64_t)ceil(centre - 3.5), last = (int64_t)floor(centre + 2.5);
    t->first = first < 0 ? 0 : first;
    last = last >= in ? in - 1 : last;
    t->count = last - t->first + 1;
    for (int64_t k = 0; k < t->count; k++)
        t->weight[k] = lanczos3((double)(t->first + k) + 0.5 - centre);
    scale_weights(t);
}

static taps taps_of(const mf_attr *attr, int64_t i, int64_t in, int64_t out)
{
    bool corners = attr->resize.align_corners && out > 1, half = attr->resize.half_pixel;
    double scale = corners ? (double)(in - 1) / (double)(out - 1) : (double)in / (double)out;
    /* in float, as TensorFlow places its samples */
    double at = half ? (double)(((float)i + 0.5f) * (float)scale - 0.5f) : (double)((float)i * (float)scale);
    taps t = {.count = 1, .last_cell = in - 1, .weight = {1}};
    switch (attr->resize.method) {
    case NEAREST:
        at = half ? (double)(((float)i + 0.5f) * (float)scale) : at;
        t.first = (int64_t)(corners ? round(at) : floor(at));
        break;
    case BILINEAR:
        t.first = (int64_t)floor(at);
        t.count = 2;
        t.weight[1] = at - floor(at);
        t.weight[0] = 1 - t.weight[1];
        break;
    case BICUBIC:
        cubic_taps(half, at, in, &t);
        break;
    case AREA:
        t.area = true;
        t.low = (double)i * scale;
        t.high = (double)(i + 1) * scale;
        t.first = (int64_t)floor(t.low);
        t.count = (int64_t)ceil(t.high - 1e-9) - t.first;
        break;
    default:
        lanczos_taps(((double)i + 0.5) * scale, in, &t);
        break;
    }
    return t;
}

#define REF_DOUBLE 0
#include "ops/reference/resize_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/resize_body.h"
