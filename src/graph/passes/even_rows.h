/* even_rows.h: logits whose rows are whole units of memory; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_EVEN_ROWS_H
#define MF_GRAPH_EVEN_ROWS_H

#include "graph/graph.h"

/* Adds operations and tensors, where the logits' product takes at least `least_work` multiplications. False: no host memory;
 * the graph must be destroyed. */
bool mf_graph_even_rows(mf_graph *graph, uint64_t least_work);

#endif
