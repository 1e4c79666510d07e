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
    layer->trainable = (c->lo->keras2 ? c->trainable : !c->lo->root->frozen) && /* Keras 3: by its own flag alone */
                       mf_json_get_bool(config, "trainable", true);
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

/* Does the model hold a layer whose result for a batch of all steps is another than for each step's? */
static bool needs_steps(const mf_model *model)
{
    for (uint32_t i = 0; model && i < model->layer_count; i++) {
        const mf_layer *l = &model->layers[i];
        if ((strcmp(l->class_name, "BatchNormalization") == 0 && l->trainable) ||
            strcmp(l->class_name, "ActivityRegularization") == 0 ||
            !mf_json_is_null(mf_json_get(l->config, "activity_regularizer")) || needs_steps(l->inner))
            return true;
    }
    return false;
}

static void run_wrapped(mf_layer_call *c, mf_layer_call *call, uint32_t *in, uint32_t *mask)
{
    call->in = in;
    call->in_masks = mask;
    call->mask = *mask;
    call->in_count = 1;
    call->out_count = 0;
    call->weights = c->weights;
    call->paths = 0;
    mf_masks_none(call->out_masks);
    if (c->layer->inner && c->inner)
        mf_lower_nested(call, c->layer->inner, c->inner);
    else
        mf_lower_layer(call);
}

/* (N, T, ...) as (N*T, ...), or one of its steps as (N, ...). */
static uint32_t without_time(mf_layer_call *c, uint32_t x, int64_t step)
{
    mf_shape s = mf_g_shape(c->b, x), flat = {.rank = s.rank - 1, .dim = {s.dim[0] * (step < 0 ? s.dim[1] : 1)}};
    for (uint32_t i = 1; i < flat.rank; i++)
        flat.dim[i] = s.dim[i + 1];
    if (step >= 0) {
        int64_t begin[MF_MOST_DIMS] = {0, step};
        s.dim[1] = 1;
        x = mf_g_slice(c->b, x, begin, s.dim, NULL);
    }
    return mf_g_view(c->b, x, flat);
}

static uint32_t with_time(mf_layer_call *c, uint32_t y, int64_t n, int64_t steps)
{
    mf_shape s = mf_g_shape(c->b, y), back = {.rank = s.rank + 1, .dim = {n, steps}};
    if (back.rank > MF_MOST_DIMS || s.rank < 1 || s.dim[0] != n * steps)
        return mf_lower_unsupported(c, "the wrapped layer changes the batch or has too many dimensions");
    for (uint32_t i = 1; i < s.rank; i++)
        back.dim[i + 1] = s.dim[i];
    return mf_g_view(c->b, y, back);
}

/* One step after the other, as Keras 3 does it. */
static uint32_t step_by_step(mf_layer_call *c, mf_layer_call *call)
{
    enum { MOST = 1024 };
    mf_shape x = mf_g_shape(c->b, c->in[0]);
    uint32_t *parts = MF_NEW_ARRAY(&c->lo->scratch, uint32_t, MOST), weights = 0;
    if (!parts)
        return mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory to build the step graph");
    if (x.dim[1] > MOST)
        return mf_lower_unsupported(c, "batch normalization of each of more than 1024 steps");
    for (int64_t t = 0; t < x.dim[1] && mf_build_ok(c->b); t++) {
        uint32_t in = without_time(c, c->in[0], t), mask = MF_NONE;
        if (c->mask != MF_NONE)
            mask = without_time(c, mf_mask_truth(c->b, c->mask), t);
        run_wrapped(c, call, &in, &mask);
        weights = call->weights;
        if (!mf_build_ok(c->b) || !call->out_count)
            return MF_NONE;
        parts[t] = with_time(c, call->out[0], x.dim[0], 1);
    }
    c->weights = weights;
    return mf_build_ok(c->b) ? mf_g_concat(c->b, (uint32_t)x.dim[1], parts, 1) : MF_NONE;
}

/* Time joins the batch: (N, T, ...) is seen as (N*T, ...), unless steps must be kept apart. Keras 3 calls a wrapped
 * layer past its own penalties; of a model inside it the layers are called as ever. */
void mf_lower_time_distributed(mf_layer_call *c)
{
    mf_shape x = mf_g_shape(c->b, c->in[0]);
    mf_layer layer;
    mf_layer_call call;
    if (x.rank < 3) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s' needs (batch, steps, ...)", c->layer->name);
        return;
    }
    if (!mf_wrapped_layer(c, mf_json_get(c->config, "layer"), "layer/", &layer, &call))
        return;
    call.mask_given = false;
    call.no_penalty = !c->lo->keras2;
    bool norm = strcmp(layer.class_name, "BatchNormalization") == 0 && layer.trainable;
    uint32_t y;
    if (!c->lo->keras2 && (norm || (c->layer->inner && c->inner && needs_steps(c->layer->inner)))) {
        y = step_by_step(c, &call);
    } else {
        uint32_t in = without_time(c, c->in[0], -1), mask = MF_NONE;
        run_wrapped(c, &call, &in, &mask);
        c->weights = call.weights;
        y = mf_build_ok(c->b) && call.out_count ? with_time(c, call.out[0], x.dim[0], x.dim[1]) : MF_NONE;
    }
    c->out[0] = y;
    c->out_count = 1;
}
