/*
 * lower_attention.c: attention layers by products, transposes and softmax. The scores (N, H, T, S) are a tensor like
 * any other: the planner sees them.
 */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Which input has this keyword, or this place among those without; MF_NONE when none does. */
static uint32_t place_of(const mf_layer_call *c, const char *name, uint32_t position)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < c->in_count; i++) {
        if (c->names && c->names[i] && strcmp(c->names[i], name) == 0)
            return i;
        if (!c->names || !c->names[i]) {
            if (seen == position)
                return i;
            seen++;
        }
    }
    return MF_NONE;
}

static uint32_t named_input(const mf_layer_call *c, const char *name, uint32_t position)
{
    uint32_t i = place_of(c, name, position);
    return i == MF_NONE ? MF_NONE : c->in[i];
}

/* The mask of an input: given by its own keyword, else the one that came along. */
static uint32_t mask_for(const mf_layer_call *c, const char *keyword, const char *name, uint32_t position)
{
    uint32_t given = named_input(c, keyword, MF_NONE), i = place_of(c, name, position);
    return given != MF_NONE ? given : i == MF_NONE ? MF_NONE : c->in_masks[i];
}

static bool flag_in_call(const mf_layer_call *c, const char *name)
{
    if (!c->call)
        return false;
    for (uint32_t i = 0; i < c->call->arg_count; i++)
        if (c->call->args[i].layer == MF_NONE && c->call->args[i].name && strcmp(c->call->args[i].name, name) == 0)
            return mf_json_bool(c->call->args[i].constant, false);
    return mf_json_get_bool(c->call->kwargs, name, false);
}

/* In place of scores that do not count. */
static double large_negative(const mf_layer_call *c, uint32_t scores)
{
    return mf_g_dtype(c->b, scores) == MF_F16 ? -3e4 : -1e9;
}

/* Scores where the mask does not say yes become a large negative number. Masks one after the other are joined by AND: a
 * query that may look at nothing has equal scores everywhere, as in Keras. */
static uint32_t masked(mf_layer_call *c, uint32_t scores, uint32_t mask, mf_shape shape, bool causal, double large)
{
    uint32_t view = mask == MF_NONE ? MF_NONE : mf_g_view(c->b, mf_mask_truth(c->b, mask), shape);
    return mf_g_keep(c->b, view, scores, large, causal);
}

/* ---- multi-head ---- */

typedef struct heads {
    int64_t count, key, value;
    int64_t shared; /* heads of keys and values; each serves count / shared queries */
} heads;

static bool is_grouped(const mf_layer_call *c)
{
    return strcmp(c->layer->class_name, "GroupQueryAttention") == 0;
}

/* One projection: (N, T, E) by (E, H, D) gives (N, H, T, D). */
static uint32_t project(mf_layer_call *c, const char *where, uint32_t x, int64_t count, int64_t size)
{
    static const mf_weight_spec kernel_spec = {
        .name = "kernel", .initializer = "kernel_initializer", .regularizer = "kernel_regularizer"};
    static const mf_weight_spec bias_spec = {
        .name = "bias", .initializer = "bias_initializer", .regularizer = "bias_regularizer"};
    mf_shape s = mf_g_shape(c->b, x);
    mf_weight_spec kernel_named = kernel_spec, bias_named = bias_spec;
    kernel_named.name = where[0] == 'q' ? "query/kernel" : where[0] == 'k' ? "key/kernel" : "value/kernel";
    bias_named.name = where[0] == 'q' ? "query/bias" : where[0] == 'k' ? "key/bias" : "value/bias";
    c->prefix = where;
    c->paths = 0;
    uint32_t kernel = mf_weight(c, &kernel_named, mf_shape3(s.dim[2], count, size)), bias = MF_NONE;
    if (mf_json_get_bool(c->config, "use_bias", true))
        bias = mf_g_view(c->b, mf_weight(c, &bias_named, mf_shape2(count, size)), mf_shape1(count * size));
    uint32_t y = mf_g_matmul(c->b, mf_g_view(c->b, x, mf_shape2(s.dim[0] * s.dim[1], s.dim[2])),
                             mf_g_view(c->b, kernel, mf_shape2(s.dim[2], count * size)), bias, false, false, 1);
    y = mf_g_view(c->b, y, mf_shape4(s.dim[0], s.dim[1], count, size));
    return mf_g_transpose(c->b, y, (uint32_t[]){0, 2, 1, 3});
}

typedef struct attention_masks {
    uint32_t query, value, key, given; /* (N, T), (N, S), (N, S), and one by hand; or MF_NONE */
    bool causal;
} attention_masks;

/* A mask of fewer axes than the scores (N, H, T, S) is the same for all heads. */
static bool given_shape(mf_layer_call *c, uint32_t given, mf_shape *shape)
{
    mf_shape m = mf_g_shape(c->b, given);
    *shape = m.rank == 4   ? m
             : m.rank == 3 ? mf_shape4(m.dim[0], 1, m.dim[1], m.dim[2])
                           : mf_shape4(1, 1, m.dim[0], m.dim[1]);
    if (m.rank >= 2 && m.rank <= 4)
        return true;
    mf_lower_unsupported(c, "an attention mask of this rank");
    return false;
}

/* Masks that came along with the inputs, and the one given by hand, on scores or on what the softmax made of them. */
static uint32_t under_masks(mf_layer_call *c, uint32_t x, const attention_masks *m, double otherwise)
{
    mf_shape s = mf_g_shape(c->b, x), shape;
    const uint32_t by_input[] = {m->value, m->key, m->query};
    if (m->given != MF_NONE) {
        if (!given_shape(c, m->given, &shape))
            return MF_NONE;
        x = masked(c, x, m->given, shape, false, otherwise);
    }
    for (int i = 0; i < 3; i++) {
        if (by_input[i] == MF_NONE)
            continue;
        shape = i < 2 ? mf_shape4(s.dim[0], 1, 1, s.dim[3]) : mf_shape4(s.dim[0], 1, s.dim[2], 1);
        x = masked(c, x, by_input[i], shape, false, otherwise);
    }
    return m->causal ? masked(c, x, MF_NONE, s, true, otherwise) : x;
}

/* A causal mask alone is the softmax's own. With dropout, or when the scores are asked for, Keras takes another way, in
 * which a query that may look at nothing gets nothing, not the mean. */
static uint32_t attention_of(mf_layer_call *c, uint32_t scores, attention_masks *m, bool zeroed)
{
    bool any = m->given != MF_NONE || m->value != MF_NONE || m->key != MF_NONE || m->query != MF_NONE;
    double rate = mf_json_get_number(c->config, "dropout", 0);
    uint32_t key = mf_random_key(c), rank = mf_g_shape(c->b, scores).rank;
    uint32_t p;
    if (any) {
        p = mf_g_softmax(c->b, under_masks(c, scores, m, large_negative(c, scores)), rank - 1, false);
        p = zeroed ? under_masks(c, p, m, 0) : p;
    } else
        p = m->causal ? mf_g_softmax_causal(c->b, scores) : mf_g_softmax(c->b, scores, rank - 1, false);
    return c->training ? mf_g_dropout(c->b, p, rate, key, 0) : p;
}

static uint32_t output_projection(mf_layer_call *c, uint32_t context, int64_t width)
{
    static const mf_weight_spec kernel_spec = {
        .name = "attention_output/kernel", .initializer = "kernel_initializer", .regularizer = "kernel_regularizer"};
    static const mf_weight_spec bias_spec = {
        .name = "attention_output/bias", .initializer = "bias_initializer", .regularizer = "bias_regularizer"};
    mf_shape s = mf_g_shape(c->b, context); /* (N, H, T, D) */
    context = mf_g_transpose(c->b, context, (uint32_t[]){0, 2, 1, 3});
    context = mf_g_view(c->b, context, mf_shape2(s.dim[0] * s.dim[2], s.dim[1] * s.dim[3]));
    c->prefix = "output_dense/";
    c->paths = 0;
    uint32_t kernel = mf_weight(c, &kernel_spec, mf_shape3(s.dim[1], s.dim[3], width));
    uint32_t bias =
        mf_json_get_bool(c->config, "use_bias", true) ? mf_weight(c, &bias_spec, mf_shape1(width)) : MF_NONE;
    kernel = mf_g_view(c->b, kernel, mf_shape2(s.dim[1] * s.dim[3], width));
    uint32_t y = mf_g_matmul(c->b, context, kernel, bias, false, false, 1);
    return mf_g_view(c->b, y, mf_shape3(s.dim[0], s.dim[2], width));
}

static bool read_grouped_heads(mf_layer_call *c, heads *h)
{
    h->count = mf_json_get_integer(c->config, "num_query_heads", 0);
    h->shared = mf_json_get_integer(c->config, "num_key_value_heads", 0);
    h->key = h->value = mf_json_get_integer(c->config, "head_dim", 0);
    if (h->shared > 0 && h->count > 0 && h->count % h->shared == 0 && h->key > 0 && h->count < INT32_MAX &&
        h->key < INT32_MAX)
        return true;
    mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': num_query_heads, num_key_value_heads or head_dim does not fit",
                  c->layer->name);
    return false;
}

static bool read_heads(mf_layer_call *c, heads *h, int64_t *width)
{
    if (is_grouped(c))
        return read_grouped_heads(c, h);
    h->count = h->shared = mf_json_get_integer(c->config, "num_heads", 0);
    h->key = mf_json_get_integer(c->config, "key_dim", 0);
    h->value =
        mf_json_is_null(mf_json_get(c->config, "value_dim")) ? h->key : mf_json_get_integer(c->config, "value_dim", 0);
    const mf_json *shape = mf_json_get(c->config, "output_shape");
    if (shape && shape->type == MF_JSON_ARRAY && shape->count == 1)
        shape = mf_json_at(shape, 0);
    if (!mf_json_is_null(shape))
        *width = mf_json_integer(shape, 0);
    if (h->count > 0 && h->key > 0 && h->value > 0 && *width > 0 && h->count < INT32_MAX && h->key < INT32_MAX &&
        h->value < INT32_MAX)
        return true;
    mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': num_heads, key_dim or value_dim is missing", c->layer->name);
    return false;
}

/* (N, shared, S, D): every head as often as queries look at it. */
static uint32_t repeat_heads(mf_layer_call *c, uint32_t x, const heads *h)
{
    mf_shape s = mf_g_shape(c->b, x), wide = {.rank = 5, .dim = {s.dim[0], s.dim[1], 1, s.dim[2], s.dim[3]}};
    if (h->shared == h->count || !mf_build_ok(c->b))
        return x;
    x = mf_g_view(c->b, x, wide);
    wide.dim[2] = h->count / h->shared;
    return mf_g_view(c->b, mf_g_broadcast(c->b, x, wide, 1), mf_shape4(s.dim[0], h->count, s.dim[2], s.dim[3]));
}

void mf_lower_multi_head_attention(mf_layer_call *c)
{
    uint32_t query = named_input(c, "query", 0), value = named_input(c, "value", 1), key = named_input(c, "key", 2);
    if (key == MF_NONE)
        key = value;
    mf_shape q = mf_g_shape(c->b, query), v = mf_g_shape(c->b, value), k = mf_g_shape(c->b, key);
    if (query == MF_NONE || value == MF_NONE || q.rank != 3 || v.rank != 3 || k.rank != 3) {
        mf_lower_unsupported(c, "needs query and value of (batch, steps, features)");
        return;
    }
    heads h;
    int64_t width = q.dim[2];
    if (!read_heads(c, &h, &width))
        return;
    attention_masks m = {.query = mask_for(c, "query_mask", "query", 0),
                         .value = mask_for(c, "value_mask", "value", 1),
                         .key = mask_for(c, "key_mask", "key", 2),
                         .given = named_input(c, "attention_mask", MF_NONE),
                         .causal = flag_in_call(c, "use_causal_mask")};
    if (is_grouped(c) && (m.query != MF_NONE || m.value != MF_NONE || m.key != MF_NONE)) {
        mf_lower_unsupported(c, "masks that come with its inputs");
        return;
    }
    const char *outer = c->prefix;
    uint32_t qh = project(c, "query_dense/", query, h.count, h.key);
    uint32_t kh = repeat_heads(c, project(c, "key_dense/", key, h.shared, h.key), &h);
    uint32_t vh = repeat_heads(c, project(c, "value_dense/", value, h.shared, h.value), &h);
    uint32_t scores = mf_g_matmul(c->b, qh, kh, MF_NONE, false, true, 1 / sqrt((double)h.key));
    bool shown = flag_in_call(c, "return_attention_scores");
    if (!mf_build_ok(c->b))
        return;
    uint32_t p = attention_of(c, scores, &m, shown || mf_json_get_number(c->config, "dropout", 0) > 0);
    uint32_t context = mf_g_matmul(c->b, p, vh, MF_NONE, false, false, 1);
    c->out[0] = output_projection(c, context, width);
    c->out_count = 1;
    c->prefix = outer;
    if (shown)
        c->out[c->out_count++] = p;
    c->out_masks[0] = m.query;
}

/* ---- dot-product and additive attention: inputs [query, value, (key)] ---- */

static uint32_t scalar_weight(mf_layer_call *c, const char *name)
{
    mf_weight_spec spec = {.name = name, .initial = 1};
    return mf_weight(c, &spec, (mf_shape){0});
}

/* sum over features of scale * tanh(query + key), for every pair of steps. */
static uint32_t pair_scores(mf_layer_call *c, uint32_t query, uint32_t key, uint32_t inner, uint32_t outer)
{
    mf_shape q = mf_g_shape(c->b, query), k = mf_g_shape(c->b, key);
    uint32_t a = mf_g_view(c->b, query, mf_shape4(q.dim[0], q.dim[1], 1, q.dim[2]));
    uint32_t z = mf_g_view(c->b, key, mf_shape4(k.dim[0], 1, k.dim[1], k.dim[2]));
    uint32_t sum = mf_g_binary(c->b, MF_ADD, a, z);
    if (inner != MF_NONE)
        sum = mf_g_binary(c->b, MF_MUL, sum, inner);
    sum = mf_g_unary(c->b, MF_UNARY_TANH, 0, 0, sum);
    if (outer != MF_NONE)
        sum = mf_g_binary(c->b, MF_MUL, sum, outer);
    return mf_g_reduce(c->b, MF_REDUCE_SUM, sum, 8, false);
}

static uint32_t probabilities(mf_layer_call *c, uint32_t scores, bool causal, double rate)
{
    uint32_t key = mf_random_key(c), rank = mf_g_shape(c->b, scores).rank;
    uint32_t p = causal ? mf_g_softmax_causal(c->b, scores) : mf_g_softmax(c->b, scores, rank ? rank - 1 : 0, false);
    return c->training ? mf_g_dropout(c->b, p, rate, key, 0) : p;
}

static void attend(mf_layer_call *c, uint32_t scores, uint32_t value)
{
    mf_shape s = mf_g_shape(c->b, scores);
    uint32_t query_mask = c->mask_given ? c->mask : c->in_masks[0];
    uint32_t value_mask = c->mask_given ? c->second_mask : c->in_masks[1];
    bool causal = flag_in_call(c, "use_causal_mask") || mf_json_get_bool(c->config, "causal", false);
    if (value_mask != MF_NONE) {
        scores = masked(c, scores, value_mask, mf_shape3(s.dim[0], 1, s.dim[2]), causal, large_negative(c, scores));
        causal = false;
    }
    uint32_t p = probabilities(c, scores, causal, mf_json_get_number(c->config, "dropout", 0));
    uint32_t y = mf_g_matmul(c->b, p, value, MF_NONE, false, false, 1);
    if (query_mask != MF_NONE) /* steps that do not count give nothing */
        y = mf_g_keep(c->b, mf_mask_expanded(c, mf_mask_truth(c->b, query_mask), 3), y, 0, false);
    c->out[0] = y;
    c->out_count = 1;
    c->out_masks[0] = query_mask;
    if (flag_in_call(c, "return_attention_scores"))
        c->out[c->out_count++] = p;
}

static bool three(mf_layer_call *c, uint32_t *query, uint32_t *value, uint32_t *key)
{
    if (c->in_count < 2) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s' needs query and value", c->layer->name);
        return false;
    }
    *query = c->in[0];
    *value = c->in[1];
    *key = c->in_count > 2 ? c->in[2] : c->in[1];
    if (mf_g_shape(c->b, *query).rank == 3 && mf_g_shape(c->b, *value).rank == 3 && mf_g_shape(c->b, *key).rank == 3)
        return true;
    mf_lower_unsupported(c, "needs inputs of (batch, steps, features)");
    return false;
}

void mf_lower_attention(mf_layer_call *c)
{
    uint32_t query, value, key;
    if (!three(c, &query, &value, &key))
        return;
    bool use_scale = mf_json_get_bool(c->config, "use_scale", false);
    bool pairs = strcmp(mf_json_get_string(c->config, "score_mode", "dot"), "concat") == 0;
    uint32_t scale = use_scale ? scalar_weight(c, "scale") : MF_NONE, scores;
    if (pairs) {
        uint32_t outer = scalar_weight(c, "concat_score_weight");
        scores = pair_scores(c, query, key, scale, MF_NONE);
        scores = mf_g_binary(c->b, MF_MUL, scores, outer);
    } else {
        scores = mf_g_matmul(c->b, query, key, MF_NONE, false, true, 1);
        if (scale != MF_NONE)
            scores = mf_g_binary(c->b, MF_MUL, scores, scale);
    }
    attend(c, scores, value);
}

void mf_lower_additive_attention(mf_layer_call *c)
{
    static const mf_weight_spec spec = {.name = "scale", .otherwise = "glorot_uniform"};
    uint32_t query, value, key, scale = MF_NONE;
    if (!three(c, &query, &value, &key))
        return;
    if (mf_json_get_bool(c->config, "use_scale", true))
        scale = mf_weight(c, &spec, mf_shape1(mf_g_shape(c->b, query).dim[2]));
    attend(c, pair_scores(c, query, key, MF_NONE, scale), value);
}
