/* plan_graphs.h: small random training graphs with real gradients, and odd costs, for the tests of the planner. */
#ifndef MF_TESTS_PLAN_GRAPHS_H
#define MF_TESTS_PLAN_GRAPHS_H

#include "graph_parts.h"

#include "plan/plan.h"

typedef struct recipe {
    uint32_t seed;
    uint32_t depth;  /* forward operations, about */
    bool batch_norm; /* claim trainable BatchNormalization */
    bool branches;
} recipe;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Dense and pointwise layers in a chain with skips, mean of the result as loss, plain updates. */
static memfit_status make_graph(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                                mf_graph **graph, memfit_error *err)
{
    const recipe *r = ctx;
    uint32_t random = r->seed * 2654435761u + 1;
    mf_build b;
    mf_build_begin(&b, host, err);
    uint32_t weights[32], weight_count = 0, older = MF_NONE;
    b.layer = mf_build_layer(&b, "in", "InputLayer");
    uint32_t x = mf_g_input(&b, "x", MF_F32, (mf_shape){.rank = 2, .dim = {batch, 16}});
    b.phase = MF_FORWARD;
    for (uint32_t i = 0; i < r->depth && mf_build_ok(&b); i++) {
        char name[24];
        snprintf(name, sizeof name, "layer_%u", i);
        b.layer = mf_build_layer(&b, name, "Dense");
        uint32_t what = next_random(&random) % 4;
        int64_t width = mf_g_shape(&b, x).dim[1];
        if (what == 0 && weight_count < 30) {
            int64_t to = 8 << next_random(&random) % 4;
            weights[weight_count] = parameter(&b, dims(2, width, to, 0, 0));
            x = mf_g_matmul(&b, x, weights[weight_count++], MF_NONE, false, false, 1);
            older = MF_NONE;
        } else if (what == 1) {
            x = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, x);
        } else if (what == 2) {
            if (r->branches)
                older = x;
            x = mf_g_unary(&b, MF_UNARY_GELU, 0, 0, x);
        } else if (older != MF_NONE) {
            x = mf_g_binary(&b, MF_ADD, x, older);
            older = MF_NONE;
        } else {
            x = mf_g_unary(&b, MF_UNARY_TANH, 0, 0, x);
        }
    }
    if (!weight_count) {
        weights[weight_count++] = parameter(&b, dims(2, mf_g_shape(&b, x).dim[1], 8, 0, 0));
        x = mf_g_matmul(&b, x, weights[0], MF_NONE, false, false, 1);
    }
    if (mode == MF_MODE_TRAIN) {
        b.phase = MF_BACKWARD;
        b.kind = MEMFIT_KIND_GRADIENTS;
        uint32_t dy = mf_g_fill(&b, MF_F32, mf_g_shape(&b, x), 1), gradients[32];
        mf_g_backward(&b, 1, &x, &dy, weight_count, weights, gradients);
        b.phase = MF_UPDATE_PHASE;
        for (uint32_t i = 0; i < weight_count && mf_build_ok(&b); i++) {
            uint32_t in[2] = {weights[i], gradients[i]};
            mf_attr attr = {.update = {.optimizer = MF_OPTIMIZER_SGD}};
            mf_g_op_in_place(&b, MF_OP_UPDATE, &attr, 2, in, 1, in);
        }
    }
    memfit_status status;
    if (mode == MF_MODE_TRAIN)
        status = mf_build_end(&b, graph);
    else
        status = mf_build_end_keeping(&b, 1, &x, graph);
    if (status == MEMFIT_OK) {
        (*graph)->mode = mode;
        (*graph)->batch = batch;
        (*graph)->accumulate = accumulate;
        (*graph)->uses_batch_norm = r->batch_norm;
    }
    return status;
}

/* Times that differ, and a workspace for every matrix product. */
static memfit_status odd_cost(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    (void)ctx;
    (void)err;
    const mf_op *o = &graph->ops[op];
    *cost = mf_cost_one(0, 1 + (op * 7) % 5);
    if (o->kind == MF_OP_MATMUL) {
        cost->methods[0].workspace_bytes = 100 * (uint64_t)graph->batch;
        cost->methods[0].time_us += 20;
    }
    return MEMFIT_OK;
}

static const mf_cost_source odd = {.query = odd_cost, .alignment = 64};

#endif
