/*
 * interpret.h: runs a graph in its natural order, every storage in bytes of its own: no plan, no reuse. The oracle for
 * planned execution, and what tests use to see what a graph computes. Works with any backend table.
 *
 *     mf_interpreter *it;
 *     mf_interpret_create(host, graph, backend, &it, err);
 *     mf_interpret_start(it, err);                          variables from the file or their initial values
 *     fill mf_interpret_data(it, feed.tensor) ...
 *     mf_interpret_run(it, &scalars, true, true, err);
 *     read mf_interpret_data(it, ...)
 *     mf_interpret_destroy(it);
 */
#ifndef MF_OPS_INTERPRET_H
#define MF_OPS_INTERPRET_H

#include "ops/ops.h"

typedef struct mf_interpreter mf_interpreter;

/* Storages that live only inside the step start as NaN: what reads them before they are written shows. The graph and
 * the backend must outlive the interpreter. */
memfit_status mf_interpret_create(const memfit_host *host, const mf_graph *graph, mf_backend *backend,
                                  mf_interpreter **interpreter, memfit_error *err);
void mf_interpret_destroy(mf_interpreter *interpreter);
/* Sets every variable used in the graph to its stored value, or to `initial` where none is stored. DAMAGED when a
 * stored value has another size. */
memfit_status mf_interpret_start(mf_interpreter *interpreter, memfit_error *err);
/* The address of a tensor, aligned to 64 bytes where its storage begins. */
void *mf_interpret_data(mf_interpreter *interpreter, uint32_t tensor);
/* One pass over the operations; those of the first or the last piece only if this is it. */
memfit_status mf_interpret_run(mf_interpreter *interpreter, const mf_run_scalars *scalars, bool first_piece,
                               bool last_piece, memfit_error *err);
/* Only the operations of one phase (mf_op_phase): the updates alone, say, on gradients put there by hand. */
memfit_status mf_interpret_run_phase(mf_interpreter *interpreter, const mf_run_scalars *scalars, mf_op_phase phase,
                                     memfit_error *err);
/* Scalars of the first step of an unsplit batch, learning rate as given. */
mf_run_scalars mf_interpret_scalars(const mf_graph *graph, double learning_rate);

/* Turns every float tensor of the graph into float64, storages and offsets included: the same step, in double. The
 * graph's variables keep their stored values, which are converted when they are read. */
void mf_graph_widen(mf_graph *graph);

#endif
