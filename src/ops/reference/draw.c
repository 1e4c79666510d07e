/* draw.c: see draw.h. Normal numbers by Box and Muller, two from two words of a block; truncated ones by the inverse of
 * the normal distribution (bisection on erfc, exact to the last bits and free of tables: it serves initial weights). */
#include "ops/reference/draw.h"

#include <math.h>

void mf_draw_begin(mf_draw *draw, const mf_run_scalars *scalars, uint32_t layer, uint64_t sample)
{
    mf_draw begun = {.seed = scalars->seed, .step = scalars->step, .sample = sample, .layer = layer};
    *draw = begun;
}

uint32_t mf_draw_word(mf_draw *draw, uint64_t index)
{
    if (!draw->filled || draw->block != index / 4) {
        draw->block = index / 4;
        draw->filled = true;
        mf_philox(draw->seed, draw->layer, draw->step, draw->sample, draw->block, draw->words);
    }
    return draw->words[index % 4];
}

double mf_draw_uniform(mf_draw *draw, uint64_t index)
{
    return (mf_draw_word(draw, index) >> 8) * 0x1p-24;
}

double mf_draw_normal(mf_draw *draw, uint64_t index)
{
    double u = ((double)mf_draw_word(draw, index & ~UINT64_C(1)) + 1) * 0x1p-32; /* (0, 1] */
    double angle = (double)mf_draw_word(draw, index | 1) * (0x1p-32 * 2 * M_PI);
    double radius = sqrt(-2 * log(u));
    return radius * (index & 1 ? sin(angle) : cos(angle));
}

double mf_draw_truncated_normal(mf_draw *draw, uint64_t index)
{
    double u = ((double)mf_draw_word(draw, index) + 0.5) * 0x1p-32;
    double least = 0.5 * erfc(2 * M_SQRT1_2), wanted = least + u * (1 - 2 * least), low = -2, high = 2;
    for (int i = 0; i < 60; i++) {
        double middle = 0.5 * (low + high);
        if (0.5 * erfc(-middle * M_SQRT1_2) < wanted)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}
