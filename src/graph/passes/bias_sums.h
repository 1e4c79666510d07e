/* bias_sums.h: gradients of convolutions' biases as sums of their own; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_BIAS_SUMS_H
#define MF_GRAPH_BIAS_SUMS_H

#include "graph/group.h"

/* Adds operations. False: no host memory; the graph must be destroyed. */
bool mf_graph_bias_sums(mf_graph *graph, const mf_group_taker *taker);

#endif
