/*
 * opcheck.h: small graphs of one or a few operations, for tests of what operations compute. A case builds its outputs
 * from inputs; the harness appends the backward pass of sum <dy, y> and hands out an interpreter on any backend.
 */
#ifndef MF_TESTS_OPS_OPCHECK_H
#define MF_TESTS_OPS_OPCHECK_H

#include "test.h"

#include "graph/build.h"
#include "ops/interpret.h"

#include <math.h>

enum { OPCHECK_MOST = 16 };

/* What a case adds its inputs and outputs to while building. */
typedef struct opcheck {
    mf_build b;
    mf_dtype dtype; /* of its float tensors */
    uint32_t inputs[OPCHECK_MOST], input_count;
    double low[OPCHECK_MOST], high[OPCHECK_MOST];   /* range of each input's values */
    bool wanted[OPCHECK_MOST], whole[OPCHECK_MOST]; /* gradient asked for; whole numbers */
    uint32_t outputs[OPCHECK_MOST], output_count;
    uint32_t dys[OPCHECK_MOST];
    uint32_t gradients[OPCHECK_MOST];
    bool masks;    /* slopes are kept as bits */
    uint32_t loss; /* the loss variable's tensor, or MF_NONE */
    mf_graph *graph;
    mf_interpreter *run;
} opcheck;

typedef struct opcheck_case {
    const char *name;
    void (*build)(opcheck *c, int variant);
    int variants;
} opcheck_case;

extern const opcheck_case opcheck_cases[];
extern const size_t opcheck_case_count;

static inline mf_shape opcheck_shape(uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d, int64_t e)
{
    return mf_shape_make(rank, (int64_t[]){a, b, c, d, e});
}

/* An input whose gradient is checked, with values in [low, high). */
uint32_t opcheck_input(opcheck *c, mf_shape shape, double low, double high);
/* An input that is only read: `whole` numbers when asked, of the type given. */
uint32_t opcheck_constant(opcheck *c, mf_dtype dtype, mf_shape shape, double low, double high, bool whole);
void opcheck_output(opcheck *c, uint32_t tensor);

/* Builds case `k`, variant `v`; false when it does not exist. Ends with opcheck_end. */
void opcheck_begin(opcheck *c, const opcheck_case *k, int variant, mf_dtype dtype, mf_backend *backend);
void opcheck_end(opcheck *c);
/* Fills every input from a seed; the same seed gives the same numbers whatever the type. */
void opcheck_fill(opcheck *c, uint64_t seed);
void opcheck_run(opcheck *c);
/* sum <dy, y>, plus the loss. */
double opcheck_total(opcheck *c);
double opcheck_get(opcheck *c, uint32_t tensor, uint64_t i);
void opcheck_set(opcheck *c, uint32_t tensor, uint64_t i, double value);
uint64_t opcheck_count(const opcheck *c, uint32_t tensor);
/* |x - y| / |y| of two graphs' tensors; |x - y| where y is zero. */
double opcheck_distance(opcheck *a, uint32_t ta, opcheck *b, uint32_t tb);

#endif
