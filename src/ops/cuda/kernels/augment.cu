/* augment.cu: random changes of images (graph/augment.h): one thread a value; contrast needs each channel's mean first. */
#include "reduce.cuh"
static constexpr idx H = (idx)in_shape[0].dim[1], W = (idx)in_shape[0].dim[2], C = (idx)in_shape[0].dim[3];
static constexpr mf_augment F = (mf_augment)attr.augment.function;

struct channel_mean : plain_sums<channel_mean, 1> {
    REDUCTION(channel_mean, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        s[0] += get<0>(a, (j / C * H * W + g) * C + j % C);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        kept_sums(a)[j] = s[0] / (double)(H * W);
    }
};
REDUCTION_KERNELS(channel_mean, 0)

static inline double pixel(const args &a, idx image, double row, double column, idx c)
{
    if (row < 0 || column < 0 || row >= (double)H || column >= (double)W)
        return attr.augment.a[6];
    return get<0>(a, ((image * H + (idx)row) * W + (idx)column) * C + c);
}

ENTRY k0(args a)
{
    constexpr idx oh = (idx)out_shape[0].dim[1], ow = (idx)out_shape[0].dim[2];
    idx at = THREAD;
    if (at >= (idx)out_count(0))
        return;
    idx c = at % C, j = at / C % ow, i = at / (C * ow) % oh, image = at / (C * ow * oh);
    mf_draw draw;
    mf_draw_begin(&draw, a.s, attr.augment.key, a.s->first_sample + (uint64_t)image);
    double u = mf_draw_uniform(&draw, 0), v = mf_draw_uniform(&draw, 1), value;
    if (F == MF_AUGMENT_FLIP || F == MF_AUGMENT_CROP) {
        constexpr unsigned flips = F == MF_AUGMENT_FLIP ? (unsigned)attr.augment.a[0] : 0;
        idx top = F == MF_AUGMENT_CROP ? (idx)(u * (double)(H - oh + 1)) : 0;
        idx left = F == MF_AUGMENT_CROP ? (idx)(v * (double)(W - ow + 1)) : 0;
        idx row = top + ((flips & 2) && v < 0.5 ? oh - 1 - i : i), column = left + ((flips & 1) && u < 0.5 ? ow - 1 - j : j);
        value = get<0>(a, ((image * H + row) * W + column) * C + c);
    } else if (F == MF_AUGMENT_ROTATION || F == MF_AUGMENT_ZOOM || F == MF_AUGMENT_TRANSLATION ||
               F == MF_AUGMENT_SHEAR) {
        images::affine t = images::affine_of(&attr, &draw, (double)H, (double)W);
        constexpr int mode = (int)attr.augment.a[5];
        double cx = images::mapped(t.m[0] * (double)j + t.m[1] * (double)i + t.m[2], (double)W, mode);
        double cy = images::mapped(t.m[3] * (double)j + t.m[4] * (double)i + t.m[5], (double)H, mode);
        double x0 = floor(cx), y0 = floor(cy), fx = cx - x0, fy = cy - y0;
        if (attr.augment.a[7] != 0)
            value = pixel(a, image, rint(cy), rint(cx), c);
        else
            value = (1 - fy) * ((1 - fx) * pixel(a, image, y0, x0, c) +
                                (fx > 0 ? fx * pixel(a, image, y0, x0 + 1, c) : 0)) +
                    (fy > 0 ? fy * ((1 - fx) * pixel(a, image, y0 + 1, x0, c) +
                                    (fx > 0 ? fx * pixel(a, image, y0 + 1, x0 + 1, c) : 0))
                            : 0);
    } else {
        const double low = attr.augment.a[2], high = attr.augment.a[3];
        double factor = attr.augment.a[0] + (attr.augment.a[1] - attr.augment.a[0]) * u;
        bool chosen = u < attr.augment.a[0];
        idx first = at - c;
        value = get<0>(a, at);
        if (F == MF_AUGMENT_CONTRAST) {
            double m = kept_sums(a)[image * C + c];
            value = fmin(fmax((value - m) * factor + m, low), high);
        } else if (F == MF_AUGMENT_BRIGHTNESS)
            value = fmin(fmax(value + factor * (high - low), low), high);
        else if (chosen && F == MF_AUGMENT_INVERT)
            value = high - value + low;
        else if (chosen && F == MF_AUGMENT_GRAYSCALE && C >= 3)
            value = 0.2989 * get<0>(a, first) + 0.587 * get<0>(a, first + 1) + 0.114 * get<0>(a, first + 2);
    }
    put<0>(a, at, value);
}
