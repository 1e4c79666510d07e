/* class_weights.h: how much the samples of each class count: a JSON object of weights by label. */
#ifndef MF_DATA_CLASS_WEIGHTS_H
#define MF_DATA_CLASS_WEIGHTS_H

#include "base/memory.h"

/* {"0": 1.0, "1": 2.5}: *weights[label], 1 where none is given, *count of them (the largest label + 1), from `host`. */
memfit_status mf_class_weights_read(const memfit_host *host, const char *text, uint64_t bytes, double **weights,
                                    int64_t *count, memfit_error *err);

#endif
