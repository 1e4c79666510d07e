/* late.h: updates that wait for each other; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_LATE_H
#define MF_GRAPH_LATE_H

#include "graph/graph.h"

/* Changes the order of operations. False: no host memory, and nothing has changed. */
bool mf_graph_late_updates(mf_graph *graph);

#endif
