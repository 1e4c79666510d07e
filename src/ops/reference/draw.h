/* draw.h: random numbers of an operation: one number per element of a sample, found by (seed, layer, step, sample,
 * index), in any order. Shared by all CPU kernels that draw. */
#ifndef MF_OPS_DRAW_H
#define MF_OPS_DRAW_H

#include "ops/ops.h"

/* Draws of one sample; keeps the last block of four words. */
typedef struct mf_draw {
    uint64_t seed, step, sample, block;
    uint32_t layer;
    bool filled;
    uint32_t words[4];
} mf_draw;

void mf_draw_begin(mf_draw *draw, const mf_run_scalars *scalars, uint32_t layer, uint64_t sample);
uint32_t mf_draw_word(mf_draw *draw, uint64_t index);
double mf_draw_uniform(mf_draw *draw, uint64_t index);          /* [0, 1), 24 bits */
double mf_draw_normal(mf_draw *draw, uint64_t index);           /* mean 0, deviation 1 */
double mf_draw_truncated_normal(mf_draw *draw, uint64_t index); /* the same, cut at two deviations */

#endif
