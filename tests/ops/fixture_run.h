/* fixture_run.h: runs a model that Keras saved and compares it with what Keras computed: outputs of inference, then
 * loss, gradients and statistics of one training step. */
#ifndef MF_TESTS_OPS_FIXTURE_RUN_H
#define MF_TESTS_OPS_FIXTURE_RUN_H

#include "fixture.h"

/* A graph of the fixture with its interpreter, variables set. */
typedef struct fixture_run {
    mf_graph *graph;
    mf_interpreter *it;
} fixture_run;

memfit_status fixture_begin(const fixture *f, mf_backend *backend, mf_mode mode, int64_t batch, fixture_run *r,
                            memfit_error *err);
void fixture_end(fixture_run *r);
int64_t fixture_rows(const fixture *f);
mf_run_scalars fixture_scalars(const fixture *f, const fixture_run *r, double rate);
/* The gradient variable's tensor of a parameter. */
uint32_t fixture_gradient(const mf_graph *graph, uint32_t parameter);

/* Told each distance from Keras's figures: norm of the difference over the norm. */
typedef void fixture_judge(const fixture *f, const char *what, double distance);

/* A status other than OK: the model is refused. A gradient of less than `small` of all gradients' norm is measured
 * against that part of it: below are the roundings of the large ones. */
memfit_status fixture_check(const fixture *f, mf_backend *backend, fixture_judge *judge, double small,
                            memfit_error *err);

#endif
