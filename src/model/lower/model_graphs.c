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
    mf_known_shape known[MF_MOST_KNOWN];
    if (graphs->length && options.known_count <= MF_MOST_KNOWN) {
        for (uint32_t i = 0; i < options.known_count; i++) {
            known[i] = options.known[i];
            if (graphs->varied >> i & 1)
                known[i].sample.dim[0] = graphs->lengths[graphs->length];
        }
        options.known = known;
    }
    memfit_status status = mf_lower(host, graphs->model, &options, graph, err);
    graphs->options.keys_checked |= status == MEMFIT_OK;
    return status;
}

static memfit_status make(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                          mf_graph **graph, memfit_error *err)
{
    return make_chunked(ctx, host, mode, batch, accumulate, 1, graph, err);
}

static void set_length(void *ctx, uint32_t number)
{
    mf_model_graphs *graphs = ctx;
    graphs->length = number < graphs->length_count ? number : 0;
}

void mf_model_graph_source(mf_model_graphs *graphs, mf_graph_source *source)
{
    *source = (mf_graph_source){.ctx = graphs, .make = make, .make_chunked = make_chunked, .set_length = set_length};
}
