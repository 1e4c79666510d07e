/*
 * fuzz_lower.c: any text read as a model's config and lowered in every mode: no crash, no leak, sound graphs.
 *
 * sources: src/model/lower/*.c src/model/keras/*.c
 * sources: src/file/*.c
 * sources: src/graph/*.c src/graph/kinds/*.c src/graph/passes/*.c src/base/*.c
 */
#include "model/lower/lower.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mf_model *model;
    memfit_error err;
    if (mf_model_load_bytes(NULL, data, bytes, 0, &model, &err) != MEMFIT_OK)
        return 0;
    for (unsigned k = 0; k < 3; k++) {
        mf_lower_options options = {
            .mode = (mf_mode)k, .batch = 2, .accumulate = k == 0, .input_dtype = MF_DTYPE_COUNT};
        mf_graph *graph;
        if (mf_lower(NULL, model, &options, &graph, &err) != MEMFIT_OK)
            continue;
        if (mf_graph_check(graph, &err) != MEMFIT_OK)
            abort();
        mf_graph_destroy(graph);
    }
    mf_model_destroy(model);
    return 0;
}
