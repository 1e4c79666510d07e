/* attend.h: products and a softmax that become one ATTENTION; part of grouping (graph/group.h). */
#ifndef MF_GRAPH_ATTEND_H
#define MF_GRAPH_ATTEND_H

#include "graph/group.h"

/* As mf_graph_narrow: operations that are not needed any more are marked in `gone`. */
bool mf_graph_attend(mf_graph *graph, const mf_group_taker *taker, uint8_t *gone);

#endif
