/*
 * lower.c: from a model to a step graph: the walk over layers and calls. What a class does is in lower_<family>.c,
 * losses and the optimizer in lower_loss.c.
 *
 * Layers are numbered first, nested models included, in the order they are listed; then every call is lowered once its
 * arguments are there (an explicit stack, since files may be deep). A layer's weights become variables at its first
 * call; later calls of a shared layer use the same ones. So variables, layers and random keys have the same numbers
 * whatever the batch and the mode.
 *
 * The file is long because numbering, walk, nested models and the model's ends share the state of one walk.
 */
#include "model/lower/lower_inner.h"
#include "model/lower/lower_keys.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

typedef struct values {
    uint32_t count;
    uint32_t *tensor, *mask;
} values;

struct mf_scope {
    const mf_model *model;
    mf_scope *before; /* numbered before this one; the last one is lo->last_scope */
    uint32_t *number; /* by layer: index into graph->layers */
    mf_scope **inner; /* by layer: scope of a nested model, or NULL */
};

/* One run of a model: the values of its calls. */
typedef struct walk {
    mf_lowering *lo;
    mf_scope *scope;
    const mf_layer_call *outer; /* NULL for the outermost model */
    uint32_t *first;            /* by layer: number of its first call */
    values *value;              /* by call */
    uint8_t *state;             /* by call: 0 not seen, 1 on the stack, 2 done */
    uint32_t call_count;
    uint32_t *takers; /* layers that take masks off their inputs (mask_at), and how many */
    uint32_t taker_count;
    uint32_t *rank; /* by call: place in Keras's order; NULL where no layer takes masks */
} walk;

static void no_memory(mf_lowering *lo)
{
    mf_build_fail(&lo->b, MEMFIT_NO_HOST_MEMORY, "no host memory to build the step graph");
}

/* ---- numbering ---- */

static mf_scope *number_layers(mf_lowering *lo, const mf_model *model, const char *prefix)
{
    mf_scope *scope = MF_NEW(&lo->scratch, mf_scope);
    if (!scope || !(scope->number = MF_NEW_ARRAY(&lo->scratch, uint32_t, model->layer_count + 1)) ||
        !(scope->inner = MF_NEW_ARRAY(&lo->scratch, mf_scope *, model->layer_count + 1))) {
        no_memory(lo);
        return NULL;
    }
    scope->model = model;
    scope->before = lo->last_scope;
    lo->last_scope = scope;
    for (uint32_t i = 0; i < model->layer_count && mf_build_ok(&lo->b); i++) {
        const mf_layer *layer = &model->layers[i];
        mf_scope *first = layer->twin_model ? lo->last_scope : NULL; /* of a layer used on another level too */
        while (first && first->model != layer->twin_model)
            first = first->before;
        if (first) { /* numbered before: it comes first in the configuration */
            scope->number[i] = first->number[layer->twin];
            scope->inner[i] = first->inner[layer->twin];
            continue;
        }
        const char *name = layer->name;
        if (prefix)
            name = mf_arena_printf(&lo->b.graph->arena, "%s/%s", prefix, layer->name);
        if (!name) {
            no_memory(lo);
            return NULL;
        }
        scope->number[i] = mf_build_layer(&lo->b, name, layer->class_name);
        if (layer->inner)
            scope->inner[i] = number_layers(lo, layer->inner, name);
    }
    return scope;
}

/* ---- types ---- */

mf_dtype mf_policy_compute(mf_lowering *lo, const char *policy, mf_dtype *variable)
{
    mf_dtype dtype = MF_F32;
    *variable = MF_F32;
    if (lo->options->precision && (strcmp(policy, "float32") == 0 || strncmp(policy, "mixed_", 6) == 0))
        policy = lo->options->precision;
    if (strcmp(policy, "mixed_float16") == 0) {
        lo->float16 = true;
        return MF_F16;
    }
    if (strcmp(policy, "mixed_bfloat16") == 0)
        return MF_BF16;
    if (mf_dtype_parse(policy, &dtype))
        *variable = dtype;
    return dtype;
}

static bool is_float(mf_dtype dtype)
{
    return dtype == MF_F32 || dtype == MF_F16 || dtype == MF_BF16 || dtype == MF_F64;
}

/* ---- one layer ---- */

uint32_t mf_lower_unsupported(mf_layer_call *c, const char *what)
{
    const char *name = c->b->graph->layers[c->graph_layer].name;
    return mf_build_fail(c->b, MEMFIT_UNSUPPORTED,
                         "layer '%s' (%s): %s\nmemfit plan --assume %s=SHAPE[:BYTES] plans with it; SHAPE is what it "
                         "makes, without the batch",
                         name, c->layer->class_name, what, name);
}

bool mf_lower_keys(mf_layer_call *c)
{
    if (c->lo->options->keys_checked || c->lo->options->plain) /* a yardstick beside a step whose keys were looked at */
        return true;
    const mf_json *key = mf_dropped_key(MF_KEYS_LAYER, c->layer->class_name, c->config);
    char text[160], what[200];
    const mf_json *wrong = key ? NULL : mf_wrong_value(c->layer->class_name, c->config, what, sizeof what);
    if (wrong)
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': %s %s", c->layer->name, mf_key_text(wrong, text, sizeof text),
                      what);
    if (!key)
        return !wrong;
    snprintf(what, sizeof what, "%s is not supported", mf_key_text(key, text, sizeof text));
    mf_lower_unsupported(c, what);
    return false;
}

static const mf_assumption *assumption_for(const mf_layer_call *c)
{
    const mf_lower_options *o = c->lo->options;
    for (uint32_t i = 0; i < o->assumption_count; i++)
        if (strcmp(o->assumptions[i].layer, c->b->graph->layers[c->graph_layer].name) == 0 ||
            strcmp(o->assumptions[i].layer, c->layer->name) == 0)
            return &o->assumptions[i];
    return NULL;
}

static void assume(mf_layer_call *c, const mf_assumption *assumption)
{
    mf_shape shape = {.rank = assumption->shape.rank + 1, .dim = {c->b->graph->batch}};
    if (shape.rank > MF_MOST_DIMS) {
        mf_build_fail(c->b, MEMFIT_INVALID, "--assume %s: more than %d dimensions", assumption->layer,
                      MF_MOST_DIMS - 1);
        return;
    }
    for (uint32_t i = 0; i < assumption->shape.rank; i++)
        shape.dim[i + 1] = assumption->shape.dim[i];
    /* its stored weights are there all the same, and are trained like others */
    uint32_t count = c->in_count, *in = MF_NEW_ARRAY(&c->lo->scratch, uint32_t, count + c->layer->stored_count + 1);
    if (!in) {
        no_memory(c->lo);
        return;
    }
    memcpy(in, c->in, count * sizeof *in);
    for (uint32_t i = 0; i < c->layer->stored_count; i++)
        in[count++] = mf_stored_weight(c, &c->layer->stored[i]);
    c->out[0] = mf_g_assumed(c->b, count, in, c->compute, shape, assumption->bytes);
    c->out_count = 1;
}

/* Operations promote to the widest of their floating-point inputs instead of casting to the policy's type. */
static void promote(mf_layer_call *c)
{
    bool any = false;
    for (uint32_t i = 0; i < c->in_count; i++) {
        mf_dtype dtype = mf_g_dtype(c->b, c->in[i]);
        if (!is_float(dtype))
            continue;
        if (!any)
            c->compute = dtype;
        else if (dtype != c->compute)
            c->compute = dtype == MF_F64 || c->compute == MF_F64 ? MF_F64 : MF_F32;
        any = true;
    }
}

static void cast_inputs(mf_layer_call *c, uint32_t *in, unsigned flags)
{
    if (c->layer->is_operation)
        promote(c);
    for (uint32_t i = 0; i < c->in_count; i++) {
        mf_dtype dtype = mf_g_dtype(c->b, in[i]);
        bool cast =
            is_float(dtype) ? is_float(c->compute) && !(flags & MF_CLASS_NO_AUTOCAST) : !(flags & MF_CLASS_KEEPS_TYPES);
        if (!cast || dtype == c->compute)
            continue;
        in[i] = mf_g_cast(c->b, in[i], c->compute);
    }
}

void mf_lower_layer(mf_layer_call *c)
{
    const mf_class_row *row =
        c->layer->is_operation ? mf_operation_find(c->layer->class_name) : mf_class_find(c->layer->class_name);
    const mf_assumption *assumption = assumption_for(c);
    uint32_t *in = MF_NEW_ARRAY(&c->lo->scratch, uint32_t, c->in_count + 1);
    if (!in) {
        no_memory(c->lo);
        return;
    }
    memcpy(in, c->in, c->in_count * sizeof *in);
    c->in = in;
    if (assumption) {
        assume(c, assumption);
        return;
    }
    if (c->layer->unsupported) {
        mf_lower_unsupported(c, c->layer->unsupported);
        return;
    }
    if (strstr(c->layer->dtype_policy, "_from_")) {
        mf_lower_unsupported(c, "quantized weights are not supported");
        return;
    }
    if (!row || !row->rule) {
        mf_lower_unsupported(c, row ? row->how : "memfit does not know this class");
        return;
    }
    if (!c->in_count && row->rule != mf_lower_input) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s' is called on nothing", c->layer->name);
        return;
    }
    if (!c->layer->is_operation && !mf_lower_keys(c))
        return;
    cast_inputs(c, in, row->flags);
    c->out_masks[0] = row->flags & MF_CLASS_PASSES_MASK ? c->mask : MF_NONE;
    row->rule(c);
    mf_activity_note(c);
}

/* ---- calls ---- */

/* Keras 2 obeys a call like base(x, training=False). Keras 3 records it too, but its functional models pass their own
 * setting to every layer (measured with 3.15.1: dropout acts in such a base model when training), so it is ignored. */
static bool training_in_call(const mf_lowering *lo, const mf_call *call, bool fallback)
{
    const mf_json *flag = call && lo->keras2 ? mf_json_get(call->kwargs, "training") : NULL;
    for (uint32_t i = 0; call && lo->keras2 && i < call->arg_count; i++)
        if (call->args[i].layer == MF_NONE && call->args[i].name && strcmp(call->args[i].name, "training") == 0)
            flag = call->args[i].constant;
    return flag && flag->type == MF_JSON_BOOL ? flag->boolean && fallback : fallback;
}

bool mf_lower_wrong_rank(mf_layer_call *c, mf_shape input, uint32_t needed)
{
    char text[96];
    mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': %s needs an input of %u dimensions, batch included, and gets %s",
                  c->layer->name, c->layer->class_name, needed, mf_shape_format(&input, text, sizeof text));
    return false;
}

static bool takes_masks(const mf_layer *layer)
{
    const mf_class_row *row = layer->is_operation ? NULL : mf_class_find(layer->class_name);
    return row && row->flags & MF_CLASS_TAKES_MASKS;
}

/* Keras 3's MultiHeadAttention takes the masks off the tensors it is given, and what runs later does not see them any
 * more (measured with 3.15.1): the sum of a block's input and its attention has no mask, and of two attentions side by
 * side one has. A tensor that is cast is another one, and the mask stays. */
static uint32_t mask_at(const walk *w, uint32_t layer, uint32_t call, uint32_t tensor, uint32_t rank)
{
    const values *v = &w->value[w->first[layer] + call];
    const mf_model *model = w->scope->model;
    for (uint32_t i = 0; v->mask[tensor] != MF_NONE && i < w->taker_count; i++) {
        const mf_layer *l = &model->layers[w->takers[i]];
        for (uint32_t k = 0; k < l->call_count; k++)
            for (uint32_t n = 0; w->rank[w->first[w->takers[i]] + k] < rank && n < l->calls[k].arg_count; n++) {
                const mf_call_arg *arg = &l->calls[k].args[n];
                mf_dtype ignored;
                if (arg->layer == layer && arg->call == call && arg->tensor == tensor &&
                    mf_g_dtype(&w->lo->b, v->tensor[tensor]) == mf_policy_compute(w->lo, l->dtype_policy, &ignored))
                    return MF_NONE;
            }
    }
    return v->mask[tensor];
}

/* The tensors a call takes, in order, with their keywords. */
static bool gather_inputs(walk *w, const mf_call *call, uint32_t rank, mf_layer_call *c)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < call->arg_count; i++)
        count += call->args[i].layer != MF_NONE;
    uint32_t *in = MF_NEW_ARRAY(&w->lo->scratch, uint32_t, count + 1);
    uint32_t *masks = MF_NEW_ARRAY(&w->lo->scratch, uint32_t, count + 1), given = 0;
    const char **names = MF_NEW_ARRAY(&w->lo->scratch, const char *, count + 1);
    if (!in || !masks || !names) {
        no_memory(w->lo);
        return false;
    }
    for (uint32_t i = 0; i < call->arg_count; i++) {
        const mf_call_arg *arg = &call->args[i];
        bool is_mask = arg->name && strcmp(arg->name, "mask") == 0; /* no operand; attention has two */
        given += is_mask;
        if (arg->layer == MF_NONE)
            continue;
        const values *v = &w->value[w->first[arg->layer] + arg->call];
        if (arg->tensor >= v->count) {
            mf_build_fail(&w->lo->b, MEMFIT_DAMAGED, "layer '%s' reads output %u of '%s', which has %u", c->layer->name,
                          arg->tensor, w->scope->model->layers[arg->layer].name, v->count);
            return false;
        }
        if (is_mask) {
            *(given == 1 ? &c->mask : &c->second_mask) = v->tensor[arg->tensor];
            c->mask_given = true;
            continue;
        }
        names[c->in_count] = arg->name;
        masks[c->in_count] = mask_at(w, arg->layer, arg->call, arg->tensor, rank);
        in[c->in_count++] = v->tensor[arg->tensor];
    }
    c->in = in;
    c->in_masks = masks;
    c->names = names;
    if (!c->mask_given && c->in_count)
        c->mask = masks[0];
    return true;
}

static void keep_values(walk *w, uint32_t call, const mf_layer_call *c)
{
    values *v = &w->value[call];
    v->tensor = MF_NEW_ARRAY(&w->lo->scratch, uint32_t, c->out_count + 1);
    v->mask = MF_NEW_ARRAY(&w->lo->scratch, uint32_t, c->out_count + 1);
    if (!v->tensor || !v->mask) {
        no_memory(w->lo);
        return;
    }
    v->count = c->out_count;
    memcpy(v->tensor, c->out, c->out_count * sizeof *v->tensor);
    memcpy(v->mask, c->out_masks, c->out_count * sizeof *v->mask);
}

static void lower_call(walk *w, uint32_t layer_index, uint32_t call_index)
{
    mf_lowering *lo = w->lo;
    const mf_layer *layer = &w->scope->model->layers[layer_index];
    const mf_call *call = &layer->calls[call_index];
    uint32_t value = w->first[layer_index] + call_index;
    if (w->value[value].tensor) /* an input bound from outside */
        return;
    mf_layer_call c = {
        .lo = lo,
        .b = &lo->b,
        .layer = layer,
        .config = layer->config,
        .call = call,
        .graph_layer = w->scope->number[layer_index],
        .trainable = layer->trainable,
        .training = training_in_call(lo, call, w->outer ? w->outer->training : lo->options->mode == MF_MODE_TRAIN),
        .mask = MF_NONE,
        .second_mask = MF_NONE,
        .prefix = ""};
    mf_masks_none(c.out_masks);
    c.compute = mf_policy_compute(lo, layer->dtype_policy, &c.variable);
    c.inner = w->scope->inner[layer_index];
    lo->b.layer = c.graph_layer;
    if (++lo->calls > MF_MOST_OPS) {
        mf_build_fail(&lo->b, MEMFIT_UNSUPPORTED,
                      "layers are called more than %d times\nModels that are called several "
                      "times inside models that are called several times multiply",
                      MF_MOST_OPS);
        return;
    }
    if (!gather_inputs(w, call, w->rank ? w->rank[value] : MF_NONE, &c))
        return;
    if (layer->inner && !layer->unsupported && w->scope->inner[layer_index] && !mf_class_find(layer->class_name))
        mf_lower_nested(&c, layer->inner, w->scope->inner[layer_index]);
    else
        mf_lower_layer(&c);
    if (!mf_build_ok(&lo->b))
        return;
    mf_graph_layer *entry = &lo->b.graph->layers[c.graph_layer];
    if (!entry->output_shape.rank && c.out_count)
        entry->output_shape = mf_g_shape(&lo->b, c.out[0]);
    keep_values(w, value, &c);
}

/* ---- the walk ---- */

static bool walk_make(walk *w)
{
    const mf_model *model = w->scope->model;
    w->first = MF_NEW_ARRAY(&w->lo->scratch, uint32_t, model->layer_count + 1);
    if (!w->first) {
        no_memory(w->lo);
        return false;
    }
    for (uint32_t i = 0; i < model->layer_count; i++) {
        w->first[i] = w->call_count;
        w->call_count += model->layers[i].call_count;
    }
    w->value = MF_NEW_ARRAY(&w->lo->scratch, values, w->call_count + 1);
    w->state = MF_NEW_ARRAY(&w->lo->scratch, uint8_t, w->call_count + 1);
    w->takers = MF_NEW_ARRAY(&w->lo->scratch, uint32_t, model->layer_count + 1);
    for (uint32_t i = 0; i < model->layer_count && w->takers && !w->lo->keras2; i++)
        if (takes_masks(&model->layers[i]))
            w->takers[w->taker_count++] = i;
    if (w->taker_count)
        w->rank = MF_NEW_ARRAY(&w->lo->scratch, uint32_t, w->call_count + 1);
    if (!w->value || !w->state || !w->takers ||
        (w->taker_count && (!w->rank || !mf_keras_ranks(&w->lo->scratch, model, w->first, w->call_count, w->rank)))) {
        no_memory(w->lo);
        return false;
    }
    return true;
}

typedef struct frame {
    uint32_t layer, call, next; /* next argument to look at */
} frame;

static bool reference_exists(const mf_model *model, uint32_t layer, uint32_t call)
{
    return layer < model->layer_count && call < model->layers[layer].call_count;
}

/* Lowers one call after everything it depends on. */
static void visit(walk *w, frame *stack, uint32_t layer, uint32_t call)
{
    const mf_model *model = w->scope->model;
    uint32_t depth = 0;
    if (w->state[w->first[layer] + call])
        return;
    stack[depth++] = (frame){layer, call, 0};
    w->state[w->first[layer] + call] = 1;
    while (depth && mf_build_ok(&w->lo->b)) {
        frame *f = &stack[depth - 1];
        const mf_call *now = &model->layers[f->layer].calls[f->call];
        if (f->next == now->arg_count) {
            lower_call(w, f->layer, f->call);
            w->state[w->first[f->layer] + f->call] = 2;
            depth--;
            continue;
        }
        const mf_call_arg *arg = &now->args[f->next++];
        if (arg->layer == MF_NONE)
            continue;
        if (!reference_exists(model, arg->layer, arg->call)) {
            mf_build_fail(&w->lo->b, MEMFIT_DAMAGED, "layer '%s' is called on something that does not exist",
                          model->layers[f->layer].name);
            return;
        }
        uint8_t *state = &w->state[w->first[arg->layer] + arg->call];
        if (*state == 1) {
            mf_build_fail(&w->lo->b, MEMFIT_DAMAGED, "layer '%s' depends on itself", model->layers[arg->layer].name);
            return;
        }
        if (*state == 0) {
            *state = 1;
            stack[depth++] = (frame){arg->layer, arg->call, 0};
        }
    }
}

static void walk_all(walk *w)
{
    const mf_model *model = w->scope->model;
    frame *stack = MF_NEW_ARRAY(&w->lo->scratch, frame, w->call_count + 1);
    if (!stack) {
        no_memory(w->lo);
        return;
    }
    for (uint32_t i = 0; i < model->layer_count && mf_build_ok(&w->lo->b); i++)
        for (uint32_t k = 0; k < model->layers[i].call_count && mf_build_ok(&w->lo->b); k++)
            visit(w, stack, i, k);
}

static uint32_t value_of(walk *w, const mf_tensor_ref *ref, uint32_t *mask)
{
    *mask = MF_NONE;
    if (!mf_build_ok(&w->lo->b))
        return MF_NONE;
    if (!reference_exists(w->scope->model, ref->layer, ref->call) ||
        ref->tensor >= w->value[w->first[ref->layer] + ref->call].count)
        return mf_build_fail(&w->lo->b, MEMFIT_DAMAGED, "model '%s': an output does not exist", w->scope->model->name);
    const values *v = &w->value[w->first[ref->layer] + ref->call];
    *mask = mask_at(w, ref->layer, ref->call, ref->tensor, MF_NONE);
    return v->tensor[ref->tensor];
}

void mf_lower_nested(mf_layer_call *c, const mf_model *model, mf_scope *scope)
{
    walk w = {.lo = c->lo, .scope = scope, .outer = c};
    if (!walk_make(&w))
        return;
    if (c->in_count < model->input_count || model->output_count > 8) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "model '%s' takes %u inputs and gets %u", c->layer->name,
                      model->input_count, c->in_count);
        return;
    }
    for (uint32_t i = 0; i < model->input_count; i++) {
        const mf_tensor_ref *ref = &model->inputs[i];
        if (!reference_exists(model, ref->layer, ref->call)) {
            mf_build_fail(c->b, MEMFIT_DAMAGED, "model '%s': an input does not exist", c->layer->name);
            return;
        }
        mf_layer_call bound = {.lo = c->lo, .out = {c->in[i]}, .out_count = 1, .out_masks = {c->in_masks[i]}};
        keep_values(&w, w.first[ref->layer] + ref->call, &bound);
        w.state[w.first[ref->layer] + ref->call] = 2;
        c->b->graph->layers[scope->number[ref->layer]].output_shape = mf_g_shape(c->b, c->in[i]);
    }
    walk_all(&w);
    for (uint32_t i = 0; i < model->output_count; i++)
        c->out[i] = value_of(&w, &model->outputs[i], &c->out_masks[i]);
    c->out_count = model->output_count;
}

static void lower_root(mf_lowering *lo, mf_scope *scope)
{
    walk w = {.lo = lo, .scope = scope};
    mf_graph *g = lo->b.graph;
    if (!walk_make(&w))
        return;
    walk_all(&w);
    lo->b.layer = 0;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, lo->root->output_count + 1);
    lo->output_masks = MF_NEW_ARRAY(&lo->scratch, uint32_t, lo->root->output_count + 1);
    if (!g->outputs || !lo->output_masks) {
        no_memory(lo);
        return;
    }
    for (uint32_t i = 0; i < lo->root->output_count; i++)
        g->outputs[i] = value_of(&w, &lo->root->outputs[i], &lo->output_masks[i]);
    g->output_count = lo->root->output_count;
}

/* ---- entry ---- */

static void fuse(mf_lowering *lo)
{
    uint32_t *kept, count = mf_activity_tensors(lo, &kept);
    if (lo->options->front && lo->options->mode == MF_MODE_TRAIN)
        mf_g_front(&lo->b, count, kept);
    mf_g_fuse(&lo->b, count, kept);
}

memfit_status mf_lower(const memfit_host *host, const mf_model *model, const mf_lower_options *options,
                       mf_graph **graph, memfit_error *err)
{
    enum { MOST_OUTPUTS = 4096 };
    memfit_status status = mf_check_lower_options(options, err);
    if (status)
        return status;
    if (model->output_count > MOST_OUTPUTS)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "the model has %u outputs, more than %d", model->output_count,
                       MOST_OUTPUTS);
    mf_lowering lo = {.options = options, .root = model};
    mf_arena_init(&lo.scratch, host);
    lo.keras2 = model->keras_version && (model->keras_version[0] == '1' || model->keras_version[0] == '2') &&
                model->keras_version[1] == '.';
    if (mf_build_begin(&lo.b, host, err) == MEMFIT_OK) {
        mf_graph *g = lo.b.graph;
        /* shapes that do not go together are the file's, unless somebody else says some of them */
        if (!options->input_shape.rank && !options->known_count && !options->dim_count && !options->assumption_count)
            lo.b.misfit = MEMFIT_DAMAGED;
        g->mode = options->mode;
        g->batch = options->batch;
        g->accumulate = options->accumulate && options->mode == MF_MODE_TRAIN;
        mf_scope *scope = number_layers(&lo, model, NULL);
        lo.first_variable = MF_NEW_ARRAY(&lo.scratch, uint32_t, g->layer_count + 1);
        if (!lo.first_variable)
            no_memory(&lo);
        else
            memset(lo.first_variable, 0xff, (g->layer_count + 1) * sizeof(uint32_t));
        mf_check_assumptions_used(&lo);
        if (mf_build_ok(&lo.b))
            lower_root(&lo, scope);
        if (mf_build_ok(&lo.b))
            mf_check_dims_used(&lo);
        lo.b.plain = options->plain;
        if (!options->plain)
            fuse(&lo);
        if (mf_build_ok(&lo.b))
            mf_lower_compile(&lo);
        if (!options->plain)
            mf_g_mask(&lo.b, 4096); /* below, alignment would eat what it saves */
    }
    status = mf_build_end(&lo.b, graph);
    mf_arena_destroy(&lo.scratch);
    return status;
}
