/* roofline.h: a cost source for a device that is not there: time is the larger of work over rate and bytes over
 * bandwidth, plus what starting an operation costs. */
#ifndef MF_PLAN_ROOFLINE_H
#define MF_PLAN_ROOFLINE_H

#include "plan/cards.h"
#include "plan/plan.h"

typedef struct mf_roofline {
    double fp32_per_us, half_per_us; /* floating-point operations a microsecond, sustained */
    double product_per_us;           /* the same of float32 products and convolutions: TF32 where the card has it */
    double bytes_per_us;
    double start_us;
    uint64_t alignment;
    uint64_t (*workspace)(const mf_graph *graph, uint32_t op); /* NULL: none */
} mf_roofline;

void mf_roofline_for_card(mf_roofline *roofline, const mf_card *card);
void mf_roofline_cost_source(mf_roofline *roofline, mf_cost_source *source);

#endif
