/* plan_model.h: a model as a source of graphs. */
#ifndef MF_PLAN_PLAN_MODEL_H
#define MF_PLAN_PLAN_MODEL_H

#include "plan/plan.h"

typedef struct mf_model_graphs {
    const mf_model *model;
    mf_lower_options options; /* mode, batch, accumulate and chunks are set for each graph */
} mf_model_graphs;

void mf_model_graph_source(mf_model_graphs *graphs, mf_graph_source *source);

#endif
