/*
 * cards.h: real cards, for plans made without the card. docs/cards.md says where each figure comes from.
 */
#ifndef MF_PLAN_CARDS_H
#define MF_PLAN_CARDS_H

#include "memfit/base.h"

typedef struct mf_card {
    const char *name;     /* as typed: "rtx-3080" */
    const char *title;    /* "GeForce RTX 3080" */
    uint32_t memory_mib;  /* total, as nvidia-smi shows it */
    uint32_t fixed_mib;   /* what is gone before the first tensor: driver reserve, context, library handles, kernels */
    double bandwidth_gbs; /* device memory, 10^9 bytes a second */
    double fp32_tflops;   /* peak without tensor cores */
    double fp16_tflops;   /* peak for float16 matrices accumulated in float32, dense */
    double bf16_tflops;   /* 0: no bfloat16 in hardware */
    uint32_t capability;  /* compute capability times ten */
} mf_card;

enum { MF_CARD_FIXED_MARGIN_PERCENT = 25 }; /* how far fixed_mib may be off, either way */

uint32_t mf_card_count(void);
const mf_card *mf_card_at(uint32_t index);
/* By name; case, spaces, underscores and a leading "nvidia", "geforce" or "tesla" do not matter. NULL if unknown. */
const mf_card *mf_card_find(const char *name);
/* Any card of a size ("8GB"): the least memory, the largest fixed cost and the slowest rates of the table's cards of that
 * size; where it has none, so much memory and the rest of the nearest card. `title` is the caller's, for its name. */
void mf_card_of_size(uint64_t bytes, const char *title, mf_card *card);
/* The name nearest to an unknown one, or NULL. */
const char *mf_card_nearest(const char *name);

uint64_t mf_card_memory_bytes(const mf_card *card);
uint64_t mf_card_fixed_bytes(const mf_card *card);

#endif
