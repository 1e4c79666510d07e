/* shape_rules.h: what shape rules are written with. */
#ifndef MF_GRAPH_SHAPE_RULES_H
#define MF_GRAPH_SHAPE_RULES_H

#include "graph/kinds/kinds.h"

const mf_tensor *mf_rule_in(const mf_typing *t, uint32_t i); /* NULL when absent */
memfit_status mf_rule_bad(const mf_typing *t, const char *format, ...) MEMFIT_PRINTF(2, 3);
/* Sets output i, or compares when it is known; nothing when the output is absent. */
memfit_status mf_rule_give(mf_typing *t, uint32_t i, mf_dtype dtype, const mf_shape *shape);
memfit_status mf_rule_need(const mf_typing *t, uint32_t count); /* the first `count` operands must be there */
bool mf_rule_given(const mf_typing *t);                         /* the first output's shape comes from outside */
mf_dtype mf_rule_statistic(mf_dtype dtype); /* statistics are float32, or double where the data is */

#endif
