/* program_text.h: the text of a program: its members' formulas between loads and stores. */
#ifndef MF_OPS_CUDA_PROGRAM_TEXT_H
#define MF_OPS_CUDA_PROGRAM_TEXT_H

#include "ops/cuda/program.h"

/* How an operand lies to the domain: element by element, one a channel, a single one, repeated along other axes. */
typedef enum { REACH_NONE, REACH_WHOLE, REACH_CHANNEL, REACH_ONE, REACH_WALK } cuda_reach;

cuda_reach cuda_program_reach(const cuda_program *p, uint32_t tensor);
bool cuda_program_sums(mf_op_kind kind);
/* Bit m: member m, one of the first `before`, is needed for `tensor`. */
uint32_t cuda_program_needed(const cuda_program *p, uint32_t tensor, uint32_t before);
/* Is there a result with an element for each of the domain's? */
bool cuda_program_writes(const cuda_spec *s, const cuda_program *p);
/* The functions that program.cu calls. */
void cuda_program_say(cuda_spec *s, const cuda_program *p);

#endif
