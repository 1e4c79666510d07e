/* sums.h: sums over rows of what was made, not of a view of it; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_SUMS_H
#define MF_GRAPH_SUMS_H

#include "graph/graph.h"

/* Changes operands and axes; views that nobody reads any more stay. */
void mf_graph_whole_sums(mf_graph *graph);

#endif
