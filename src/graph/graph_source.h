/* graph_source.h: where graphs come from: a model (model/lower/model_graphs.h), or a test. Graphs of one source number their
 * variables alike. */
#ifndef MF_GRAPH_GRAPH_SOURCE_H
#define MF_GRAPH_GRAPH_SOURCE_H

#include "graph/graph.h"

enum { MF_MOST_LENGTHS = 8 };

typedef struct mf_graph_source {
    void *ctx;
    memfit_status (*make)(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                          mf_graph **graph, memfit_error *err);
    /* The same with the last layer and its loss in up to so many chunks; NULL: no such graphs. */
    memfit_status (*make_chunked)(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                                  uint32_t chunks, mf_graph **graph, memfit_error *err);
    /* Graphs made from now on are for sequences of the length of this number, from 0, the longest; NULL: there is one. */
    void (*set_length)(void *ctx, uint32_t number);
} mf_graph_source;

#endif
