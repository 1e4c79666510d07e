/* model_graphs.h: a model as a source of graphs. */
#ifndef MF_MODEL_MODEL_GRAPHS_H
#define MF_MODEL_MODEL_GRAPHS_H

#include "graph/graph_source.h"
#include "model/lower/lower.h"

typedef struct mf_model_graphs {
    const mf_model *model;
    mf_lower_options options; /* mode, batch, accumulate and chunks are set for each graph */
} mf_model_graphs;

void mf_model_graph_source(mf_model_graphs *graphs, mf_graph_source *source);

#endif
