/* slopes.h: slopes of activations without their results; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_SLOPES_H
#define MF_GRAPH_SLOPES_H

#include "graph/group.h"

/* Adds operations and tensors. False: no host memory; the graph must be destroyed. */
bool mf_graph_slopes(mf_graph *graph, const mf_group_taker *taker);

#endif
