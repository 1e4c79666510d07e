/* model_graphs.c: see model_graphs.h. */
#include "model/lower/model_graphs.h"

static memfit_status make_chunked(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                                  uint32_t chunks, mf_graph **graph, memfit_error *err)
{
    mf_model_graphs *graphs = ctx;
    mf_lower_options options = graphs->options;
    options.mode = mode;
    options.batch = batch;
    options.accumulate = accumulate;
    options.chunks = chunks;
    memfit_status status = mf_lower(host, graphs->model, &options, graph, err);
    graphs->options.keys_checked |= status == MEMFIT_OK;
    return status;
}

static memfit_status make(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                          mf_graph **graph, memfit_error *err)
{
    return make_chunked(ctx, host, mode, batch, accumulate, 1, graph, err);
}

void mf_model_graph_source(mf_model_graphs *graphs, mf_graph_source *source)
{
    *source = (mf_graph_source){.ctx = graphs, .make = make, .make_chunked = make_chunked};
}
