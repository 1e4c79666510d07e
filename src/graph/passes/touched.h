/* touched.h: how many operands lie in each storage; for passes that may take a tensor away only where two operations know it. */
#ifndef MF_GRAPH_TOUCHED_H
#define MF_GRAPH_TOUCHED_H

#include "graph/graph.h"

/* One number for each storage, in the graph's arena; NULL: no host memory. */
static inline uint32_t *mf_graph_touched(mf_graph *g)
{
    uint32_t *touched = MF_NEW_ARRAY(&g->arena, uint32_t, g->storage_count + 1);
    for (uint32_t i = 0; touched && i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count + g->ops[i].out_count; k++) {
            uint32_t t = k < g->ops[i].in_count ? g->ops[i].in[k] : g->ops[i].out[k - g->ops[i].in_count];
            if (t != MF_NONE)
                touched[g->tensors[t].storage]++;
        }
    return touched;
}

#endif
