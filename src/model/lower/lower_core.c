/* lower_core.c: inputs, Dense, Embedding, Masking, Identity. */
#include "base/error.h"
#include "model/lower/lower_compile.h"

#include <stdio.h>
#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

void mf_lower_identity(mf_layer_call *c)
{
    for (uint32_t i = 0; i < c->in_count && i < 8; i++) {
        c->out[i] = c->in[i];
        c->out_masks[i] = c->layer->is_operation ? MF_NONE : c->in_masks[i];
    }
    c->out_count = c->in_count < 8 ? c->in_count : 8;
}

/* ---- inputs ---- */

static const mf_shape *known_shape(const mf_layer_call *c)
{
    const mf_lower_options *o = c->lo->options;
    for (uint32_t k = 0; k < o->known_count; k++)
        if (strcmp(o->known[k].input, c->layer->name) == 0)
            return &o->known[k].sample;
    return NULL;
}

/* Unknown dimensions come from --input-shape (first input), --dim NAME=N, or the data. */
static bool input_shape(mf_layer_call *c, mf_shape *shape)
{
    const mf_lower_options *o = c->lo->options;
    const mf_shape *known = known_shape(c);
    const mf_json *dims = mf_json_get(c->config, "batch_shape");
    if (!dims)
        dims = mf_json_get(c->config, "batch_input_shape");
    bool given = o->input_shape.rank && c->lo->feeds_in == 0;
    size_t rank = dims && dims->type == MF_JSON_ARRAY ? dims->count
                  : given                             ? o->input_shape.rank + 1
                  : known                             ? known->rank + 1
                                                      : 0;
    if (rank < 1 || rank > MF_MOST_DIMS) {
        mf_build_fail(c->b, MEMFIT_INVALID,
                      "input '%s': the file does not say its shape\nGive it without the batch with --input-shape",
                      c->layer->name);
        return false;
    }
    *shape = (mf_shape){.rank = (uint32_t)rank, .dim = {o->batch}};
    if (given && o->input_shape.rank + 1 != shape->rank) {
        mf_build_fail(c->b, MEMFIT_INVALID, "--input-shape has %u dimensions, input '%s' takes %u", o->input_shape.rank,
                      c->layer->name, shape->rank - 1);
        return false;
    }
    for (uint32_t i = 1; i < shape->rank; i++) {
        shape->dim[i] = mf_json_integer(mf_json_at(dims, i), -1);
        for (uint32_t k = 0; k < o->dim_count && shape->dim[i] < 0; k++)
            if (strcmp(o->dim_names[k], c->layer->name) == 0)
                shape->dim[i] = o->dim_values[k];
        if (given)
            shape->dim[i] = o->input_shape.dim[i - 1];
        else if (shape->dim[i] < 0 && known && i <= known->rank)
            shape->dim[i] = known->dim[i - 1];
        if (shape->dim[i] < 1) {
            mf_build_fail(c->b, MEMFIT_INVALID,
                          "input '%s': dimension %u is not known\nGive the shape without the batch with --input-shape, "
                          "or the size with --dim %s=N",
                          c->layer->name, i, c->layer->name);
            return false;
        }
    }
    return true;
}

static void add_feed(mf_build *b, const char *name, uint32_t tensor, uint32_t role, uint32_t index)
{
    mf_graph *g = b->graph;
    if (!mf_build_ok(b))
        return;
    if (!mf_grow(g->arena.host, &g->feeds, &g->feed_capacity, g->feed_count, sizeof *g->feeds)) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the inputs");
        return;
    }
    g->feeds[g->feed_count++] = (mf_feed){.name = name, .tensor = tensor, .role = role, .index = index};
}

uint32_t mf_feed_make(mf_build *b, const char *name, mf_dtype dtype, mf_shape shape, uint32_t role, uint32_t index)
{
    uint32_t x = mf_g_input(b, name, dtype, shape);
    add_feed(b, name, x, role, index);
    return x;
}

/* Which of the model's inputs this layer is. */
static uint32_t input_index(const mf_layer_call *c)
{
    const mf_model *model = c->lo->root;
    for (uint32_t i = 0; i < model->input_count; i++)
        if (&model->layers[model->inputs[i].layer] == c->layer)
            return i;
    return c->lo->feeds_in;
}

void mf_lower_input(mf_layer_call *c)
{
    mf_shape shape;
    mf_dtype dtype = MF_F32, arrives;
    if (!input_shape(c, &shape))
        return;
    const char *name = mf_json_get_string(c->config, "dtype", "float32");
    if (!mf_dtype_parse(name, &dtype) && strncmp(name, "mixed_", 6) != 0) {
        mf_lower_unsupported(c, "inputs of this type are not supported");
        return;
    }
    bool floating = dtype == MF_F32 || dtype == MF_F16 || dtype == MF_BF16 || dtype == MF_F64;
    arrives = c->lo->options->input_dtype;
    const uint32_t index = input_index(c);
    if (arrives == MF_DTYPE_COUNT || !floating || index >= 64 || (c->lo->options->own_inputs >> index & 1))
        arrives = dtype;
    uint32_t x = mf_feed_make(c->b, c->layer->name, arrives, shape, 0, index);
    c->lo->feeds_in++;
    one(c, mf_g_cast(c->b, x, dtype));
}

/* ---- dense ---- */

static uint32_t flat_rows(mf_build *b, uint32_t x, mf_shape *shape)
{
    *shape = mf_g_shape(b, x);
    int64_t rows = 1;
    for (uint32_t i = 0; i + 1 < shape->rank; i++)
        rows *= shape->dim[i];
    return mf_g_view(b, x, mf_shape2(rows, shape->dim[shape->rank - 1]));
}

/* A configuration alone may be lowered at any size: it is a plan for a model. One that the Python package wrote of a live
 * model, which has its weights already ("memfit": {"weights": "live"}), takes the sizes its file would. */
static bool as_built(mf_layer_call *c, int64_t width)
{
    const mf_json *mark = mf_json_get(c->lo->root->root, "memfit");
    const mf_json *shape = mf_json_get(c->layer->build_config, "input_shape");
    const bool given = c->lo->options->input_shape.rank || c->lo->options->dim_count;
    int64_t built = shape && shape->count ? mf_json_integer(mf_json_at(shape, shape->count - 1), 0) : 0;
    if (!given || built < 1 || built == width || strcmp(mf_json_get_string(mark, "weights", ""), "live") != 0)
        return true;
    mf_build_fail(c->b, MEMFIT_INVALID,
                  "layer '%s' was built for %lld values a sample and gets %lld\n"
                  "the shape given with --input-shape or --dim does not suit its weights",
                  c->layer->name, (long long)built, (long long)width);
    return false;
}

void mf_lower_dense(mf_layer_call *c)
{
    int64_t units = mf_json_get_integer(c->config, "units", 0);
    mf_shape shape = mf_g_shape(c->b, c->in[0]);
    if (units < 1) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': units is missing", c->layer->name);
        return;
    }
    if (shape.rank < 2) {
        mf_lower_wrong_rank(c, shape, 2);
        return;
    }
    if (!mf_json_is_null(mf_json_get(c->config, "lora_rank")) ||
        !mf_json_is_null(mf_json_get(c->config, "quantization_mode"))) {
        mf_lower_unsupported(c, "LoRA and quantized kernels are not supported");
        return;
    }
    if (!as_built(c, shape.dim[shape.rank - 1]))
        return;
    uint32_t x = flat_rows(c->b, c->in[0], &shape);
    uint32_t kernel = mf_kernel_weight(c, mf_shape2(shape.dim[shape.rank - 1], units));
    uint32_t bias = mf_bias_weight(c, units);
    shape.dim[shape.rank - 1] = units;
    uint32_t y = mf_g_view(c->b, mf_g_matmul(c->b, x, kernel, bias, false, false, 1), shape);
    one(c, mf_activation(c, mf_json_get(c->config, "activation"), y));
}

/* ---- embedding and masking ---- */

void mf_lower_embedding(mf_layer_call *c)
{
    static const mf_weight_spec spec = {
        .name = "embeddings", .initializer = "embeddings_initializer", .regularizer = "embeddings_regularizer"};
    int64_t rows = mf_json_get_integer(c->config, "input_dim", 0),
            width = mf_json_get_integer(c->config, "output_dim", 0);
    if (rows < 1 || width < 1) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': input_dim %lld, output_dim %lld", c->layer->name,
                      (long long)rows, (long long)width);
        return;
    }
    mf_dtype dtype = mf_g_dtype(c->b, c->in[0]);
    uint32_t indices = c->in[0];
    if (dtype != MF_I32 && dtype != MF_I64)
        indices = mf_g_cast(c->b, indices, MF_I32);
    one(c, mf_g_gather(c->b, mf_weight(c, &spec, mf_shape2(rows, width)), indices));
    if (mf_json_get_bool(c->config, "mask_zero", false))
        c->out_masks[0] = mf_mask_truth(c->b, indices);
}

/* A step counts when any of its features differs from the value; steps that do not are zeroed. */
void mf_lower_masking(mf_layer_call *c)
{
    double value = mf_json_get_number(c->config, "mask_value", 0);
    uint32_t x = c->in[0], rank = mf_g_shape(c->b, x).rank;
    if (rank < 3) {
        mf_lower_unsupported(c, "needs (batch, steps, features)");
        return;
    }
    uint32_t differs = mf_g_cast(c->b, mf_g_compare(c->b, MF_NOT_EQUAL, x, MF_NONE, value), MF_F32);
    uint32_t any = mf_g_cast(c->b, mf_g_reduce(c->b, MF_REDUCE_MAX, differs, 1u << (rank - 1), true), MF_U8);
    mf_shape mask = mf_g_shape(c->b, any);
    mask.rank--;
    one(c, mf_g_keep(c->b, any, x, 0, false));
    c->out_masks[0] = mf_g_view(c->b, any, mask);
}
