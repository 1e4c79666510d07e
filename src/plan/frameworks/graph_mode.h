/*
 * graph_mode.h: what TensorFlow does with a step on a CPU. Keras leaves XLA off there, so the step is a graph whose
 * operations run as soon as their inputs are there:
 *
 *   a tensor       goes when the last operation that reads it has run
 *   pointwise      takes the bytes of an input that nobody else reads
 *   a gradient     is used by the optimizer at once, whose last part runs beside the next layer's
 *   the batch      is there twice: the next one is read ahead
 *
 * Followed on the plain step graph, whose backward operations read what TensorFlow's do; what TensorFlow keeps beyond
 * that was read from its own log of allocations (docs/bench/frameworks.md). Tensors come from oneDNN's allocator, a BFC
 * that grows; that is the model to run the tape through.
 */
#ifndef MF_PLAN_GRAPH_MODE_H
#define MF_PLAN_GRAPH_MODE_H

#include "graph/graph.h"
#include "plan/frameworks/tape.h"

/* Variables and two steps onto an empty tape. */
memfit_status mf_graph_mode_run(const memfit_host *host, const mf_graph *graph, mf_tape *tape, memfit_error *err);

#endif
