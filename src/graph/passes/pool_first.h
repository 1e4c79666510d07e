/* pool_first.h: activations behind maximum pooling; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_POOL_FIRST_H
#define MF_GRAPH_POOL_FIRST_H

#include "graph/graph.h"

/* Exchanges operations and operands. False: no host memory, and nothing has changed. */
bool mf_graph_pool_first(mf_graph *graph);

#endif
