/* narrow.h: losses that read 16 bits; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_NARROW_H
#define MF_GRAPH_NARROW_H

#include "graph/graph.h"

/* Rewrites operands; operations that are not needed any more are marked in `gone` (one byte for each, 0 at first). False:
 * no host memory, and nothing has changed. */
bool mf_graph_narrow(mf_graph *graph, uint8_t *gone);

#endif
