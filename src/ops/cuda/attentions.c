/*
 * attentions.c: see attentions.h.
 *
 *     method's identity   CUDA_ATTENTION; from byte 8 cuDNN's engine and the hash of its settings
 *     workspace           [ backward: a number a row | cuDNN's own ]
 */
#include "ops/cuda/attentions.h"

#include "base/bytes.h"
#include "base/error.h"
#include "graph/attention.h"
#include "ops/cuda/cuda_spec.h"

#include <string.h>

enum { MOST_WAYS = 16, PLACE = 256 };

typedef struct attention_call {
    cuda_call base;
    const memfit_host *host;
    mf_cuda_card card;
    mf_cudnn_attention_plan *plan; /* the library's */
    uint64_t own_at;
    bool back;
} attention_call;

static bool aligned(const mf_graph *graph, const mf_op *op)
{
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        if (t != MF_NONE && graph->tensors[t].offset % 16)
            return false;
    }
    return true;
}

bool cuda_attention_of(const mf_graph *graph, const mf_op *op, mf_cudnn_attention *a)
{
    mf_attention_shape s;
    bool back = op->kind == MF_OP_ATTENTION_GRAD;
    if (!mf_attention_shape_of(graph, op, &s))
        return false;
    mf_dtype type = graph->tensors[op->in[back ? 1 : 0]].dtype;
    *a = (mf_cudnn_attention){.backward = back,
                              .type = type == MF_F16 ? MF_CUDNN_F16 : MF_CUDNN_BF16,
                              .causal = op->attr.attention.causal == 1,
                              .steps_first = op->attr.attention.steps_first,
                              .batch = s.batch,
                              .heads = s.heads,
                              .queries = s.queries,
                              .keys = s.keys,
                              .depth = s.depth,
                              .scale = op->attr.attention.scale};
    bool takes = (type == MF_F16 || type == MF_BF16) && s.depth == s.values && s.depth % 8 == 0 && s.depth > 0 &&
                 s.depth <= 128 && op->attr.attention.causal != 2 && op->attr.attention.rate == 0 &&
                 (!a->causal || s.queries == s.keys) && aligned(graph, op);
    for (uint32_t i = back ? 6 : 3; i < op->in_count; i++)
        takes = takes && op->in[i] == MF_NONE;
    for (uint32_t i = 0; i < (back ? 3 : 2); i++) /* all of them, none added to what is there */
        takes = takes && i < op->out_count && op->out[i] != MF_NONE && !cuda_is_added(graph, op, i);
    return takes && graph->tensors[back ? op->in[5] : op->out[1]].dtype == MF_F32;
}

static uint64_t sums_bytes(const mf_cudnn_attention *a)
{
    return a->backward ? mf_round_up((uint64_t)(a->batch * a->heads * a->queries) * sizeof(float), PLACE) : 0;
}

/* The first of the list, then each that needs less than all before it. */
static void add_ways(const mf_cudnn_way *list, uint32_t count, uint64_t own_at, double time, mf_cost *cost)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < count && cost->method_count < MF_PLAIN_METHODS - 1; i++) {
        if (!list[i].deterministic || list[i].workspace_bytes >= least)
            continue;
        least = list[i].workspace_bytes;
        mf_method *m = &cost->methods[cost->method_count];
        *m = (mf_method){.id = {CUDA_ATTENTION},
                         .workspace_bytes = own_at + least,
                         .time_us = time * (1 + 0.02 * i),
                         .deterministic = true,
                         .numerics = cost->method_count ? MF_REORDERED : MF_BITWISE};
        memcpy(m->id + 8, &list[i].engine, sizeof list[i].engine);
        memcpy(m->id + 16, &list[i].settings, sizeof list[i].settings);
        cost->method_count++;
    }
}

memfit_status cuda_attention_methods(mf_cudnn *dnn, const mf_cuda_card *card, const mf_graph *graph, const mf_op *op,
                                     mf_cost *cost, memfit_error *err)
{
    mf_cudnn_attention a;
    mf_cudnn_way list[MOST_WAYS];
    uint32_t count = 0;
    mf_cuda_call state;
    if (!cuda_attention_of(graph, op, &a))
        return MEMFIT_OK;
    memfit_status status = mf_cuda_enter(card, &state, err);
    if (status)
        return status;
    status = mf_cudnn_ask_attention(dnn, &a, list, MOST_WAYS, &count, err);
    mf_cuda_leave(card, state);
    double flops, bytes;
    mf_op_cost(graph, op, &flops, &bytes);
    if (status == MEMFIT_OK)
        add_ways(list, count, sums_bytes(&a), 4 + bytes / 3e6 + flops / 2e8, cost);
    return status;
}

static memfit_status run_attention(cuda_call *call, void *const *in, void *const *out, void *workspace,
                                   mf_stream stream, memfit_error *err)
{
    attention_call *c = (attention_call *)call;
    mf_cuda_call state;
    mf_cudnn_attention_at at = {.q = in[0], .k = in[1], .v = in[2], .o = out[0], .stats = out[1]};
    if (c->back)
        at = (mf_cudnn_attention_at){.slopes = in[0],
                                     .q = in[1],
                                     .k = in[2],
                                     .v = in[3],
                                     .o = in[4],
                                     .stats = in[5],
                                     .dq = out[0],
                                     .dk = out[1],
                                     .dv = out[2],
                                     .sums = workspace};
    memfit_status status = mf_cuda_enter(&c->card, &state, err);
    if (status)
        return status;
    status = mf_cudnn_run_attention(c->plan, &at, (char *)workspace + c->own_at, (void *)(uintptr_t)stream, err);
    mf_cuda_leave(&c->card, state);
    return status;
}

static void release_attention(cuda_call *call)
{
    attention_call *c = (attention_call *)call;
    mf_host_free(c->host, c, sizeof *c);
}

memfit_status cuda_attention_call(mf_cudnn *dnn, const mf_cuda_card *card, const memfit_host *host,
                                  const mf_graph *graph, const mf_op *op, const mf_method *method, cuda_call **call,
                                  memfit_error *err)
{
    mf_cudnn_attention a;
    mf_cudnn_way way = {0};
    memcpy(&way.engine, method->id + 8, sizeof way.engine);
    memcpy(&way.settings, method->id + 16, sizeof way.settings);
    if (!cuda_attention_of(graph, op, &a))
        return mf_fail(err, MEMFIT_INTERNAL, "an attention's method is of another operation");
    attention_call *c = mf_host_zalloc(host, sizeof *c);
    if (!c)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for attention");
    *c = (attention_call){.base = {.run = run_attention, .release = release_attention},
                          .host = host,
                          .card = *card,
                          .own_at = sums_bytes(&a),
                          .back = a.backward};
    mf_cuda_call state;
    memfit_status status = mf_cuda_enter(card, &state, err);
    if (status == MEMFIT_OK) {
        status = mf_cudnn_plan_attention(dnn, &a, &way, &c->plan, err);
        mf_cuda_leave(card, state);
    }
    if (status == MEMFIT_OK && c->own_at + mf_cudnn_attention_workspace(c->plan) > method->workspace_bytes)
        status = mf_fail(err, MEMFIT_DEVICE, "cuDNN needs more workspace for attention than when the plan was made");
    if (status) {
        release_attention(&c->base);
        /* Compiled at run time, it may fail where listing it did not. Own kernels do with the workspace of a number a row. */
        return status == MEMFIT_NO_HOST_MEMORY ? status : MEMFIT_OK;
    }
    *call = &c->base;
    return MEMFIT_OK;
}
