/* fuzz_lower.c: any text read as a model's config and lowered in every mode: no crash, no leak, sound graphs; small ones are
 * run by the interpreter on the reference operations, whose every access is watched. */
#include "model/lower/lower.h"
#include "ops/interpret.h"

#include <stdlib.h>

static bool is_small(const mf_graph *g)
{
    uint64_t elements = 0;
    double work = 0;
    for (uint32_t i = 0; i < g->tensor_count; i++) {
        uint64_t n = mf_shape_count(&g->tensors[i].shape);
        elements += n < 1 << 20 ? n : 1 << 20;
    }
    for (uint32_t i = 0; i < g->op_count; i++) {
        double flops = 0, bytes = 0;
        mf_op_cost(g, &g->ops[i], &flops, &bytes);
        work += flops + bytes;
    }
    return elements < 1 << 17 && work < 1e7;
}

static void run(const mf_graph *g)
{
    mf_backend *backend;
    mf_interpreter *it;
    memfit_error err;
    if (mf_reference_create(NULL, &backend, &err) != MEMFIT_OK)
        return;
    if (mf_interpret_create(NULL, g, backend, &it, &err) == MEMFIT_OK) {
        mf_run_scalars s = mf_interpret_scalars(g, 0.01);
        if (mf_interpret_start(it, &err) == MEMFIT_OK)
            mf_interpret_run(it, &s, true, true, &err);
        mf_interpret_destroy(it);
    }
    backend->table->destroy(backend);
}

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
        if (is_small(graph))
            run(graph);
        mf_graph_destroy(graph);
    }
    mf_model_destroy(model);
    return 0;
}
