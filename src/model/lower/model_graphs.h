/* model_graphs.h: a model as a source of graphs. */
#ifndef MF_MODEL_MODEL_GRAPHS_H
#define MF_MODEL_MODEL_GRAPHS_H

#include "graph/graph_source.h"
#include "model/lower/lower.h"

enum { MF_MOST_KNOWN = 8 };

typedef struct mf_model_graphs {
    const mf_model *model;
    mf_lower_options options; /* mode, batch, accumulate and chunks are set for each graph */
    /* Sequences: the lengths there are graphs for, the longest first (none: one, as known), which one is in use, and which
     * of the known shapes have it as their first axis (a bit each). */
    int64_t lengths[MF_MOST_LENGTHS];
    uint32_t length_count, length;
    uint32_t varied;
} mf_model_graphs;

void mf_model_graph_source(mf_model_graphs *graphs, mf_graph_source *source);

#endif
