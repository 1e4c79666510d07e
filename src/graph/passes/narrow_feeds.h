/* narrow_feeds.h: inputs that arrive in 16 bits; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_NARROW_FEEDS_H
#define MF_GRAPH_NARROW_FEEDS_H

#include "graph/graph.h"

/* Rewrites operands; casts that are not needed any more are marked in `gone` (one byte for each operation). False: no host
 * memory, and nothing has changed. */
bool mf_graph_narrow_feeds(mf_graph *graph, uint8_t *gone);

#endif
