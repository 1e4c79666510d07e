/* lower_wrap.c: layers inside layers: TimeDistributed, and what recurrent wrappers share. */
#include "model/lower/lower_wrap.h"

#include "base/error.h"

#include <string.h>

bool mf_wrapped_layer(mf_layer_call *c, const mf_json *object, const char *prefix, mf_layer *layer, mf_layer_call *call)
{
    const mf_json *config = mf_json_get(object, "config"), *dtype = mf_json_get(config, "dtype");
    const char *class_name = mf_json_get_string(object, "class_name", NULL), *policy = c->layer->dtype_policy;
    if (!class_name) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s' wraps nothing", c->layer->name);
        return false;
    }
    if (dtype && dtype->type == MF_JSON_STRING)
        policy = dtype->string;
    else if (dtype)
        policy = mf_json_get_string(mf_json_get(dtype, "config"), "name", policy);
    *layer = *c->layer;
    layer->class_name = class_name;
    layer->config = config;
    layer->inner = NULL;
    layer->is_operation = false;
    layer->trainable = c->trainable && mf_json_get_bool(config, "trainable", true);
    layer->dtype_policy = policy;
    if (strcmp(class_name, "Lambda") == 0)
        layer->unsupported = "a Lambda layer holds Python code, which is not run";
    *call = *c;
    call->layer = layer;
    call->config = config;
    call->trainable = layer->trainable;
    call->compute = mf_policy_compute(c->lo, policy, &call->variable);
    call->prefix = prefix;
    call->inner = NULL;
    call->paths = 0;
    call->out_count = 0;
    return layer->unsupported || mf_lower_keys(call);
}

/* Time joins the batch: (N, T, ...) is seen as (N*T, ...). */
void mf_lower_time_distributed(mf_layer_call *c)
{
    mf_shape x = mf_g_shape(c->b, c->in[0]), flat = {.rank = x.rank ? x.rank - 1 : 0};
    mf_layer layer;
    mf_layer_call call;
    if (x.rank < 3) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s' needs (batch, steps, ...)", c->layer->name);
        return;
    }
    flat.dim[0] = x.dim[0] * x.dim[1];
    for (uint32_t i = 1; i < flat.rank; i++)
        flat.dim[i] = x.dim[i + 1];
    uint32_t in = mf_g_view(c->b, c->in[0], flat);
    if (!mf_wrapped_layer(c, mf_json_get(c->config, "layer"), "layer/", &layer, &call))
        return;
    call.in = &in;
    call.in_count = 1;
    call.mask = MF_NONE;
    if (c->layer->inner && c->inner)
        mf_lower_nested(&call, c->layer->inner, c->inner);
    else
        mf_lower_layer(&call);
    c->weights = call.weights;
    if (!mf_build_ok(c->b) || !call.out_count)
        return;
    mf_shape y = mf_g_shape(c->b, call.out[0]), back = {.rank = y.rank + 1, .dim = {x.dim[0], x.dim[1]}};
    if (back.rank > MF_MOST_DIMS || y.dim[0] != flat.dim[0]) {
        mf_lower_unsupported(c, "the wrapped layer changes the batch or has too many dimensions");
        return;
    }
    for (uint32_t i = 1; i < y.rank; i++)
        back.dim[i + 1] = y.dim[i];
    c->out[0] = mf_g_view(c->b, call.out[0], back);
    c->out_count = 1;
}
