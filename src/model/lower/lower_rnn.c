/*
 * lower_rnn.c: recurrent layers: one MATMUL for the input projection of all steps, then LSTM, GRU or SIMPLE_RNN.
 *
 * Keras gives a layer that runs backwards its outputs in the order they were made; the kinds keep every step at its own
 * time, so a lone go_backwards layer is turned round afterwards and Bidirectional, which turns it back, needs nothing.
 */
#include "model/lower/lower_wrap.h"

#include "base/error.h"

#include <string.h>

typedef enum { LSTM, GRU, SIMPLE } cell;

typedef struct recurrent {
    cell cell;
    int64_t units;
    uint32_t h0, c0, mask;
    bool backwards;
    bool zero; /* steps under the mask give 0, not the step before */
} recurrent;

static const mf_weight_spec recurrent_spec = {
    .name = "recurrent_kernel", .initializer = "recurrent_initializer", .regularizer = "recurrent_regularizer"};

static int64_t gates_of(cell kind)
{
    return kind == LSTM ? 4 : kind == GRU ? 3 : 1;
}

static bool functions(mf_layer_call *c, cell kind, mf_unary *activation, mf_unary *gate)
{
    const char *name = mf_config_name(mf_json_get(c->config, "activation"));
    const char *recurrent_name = mf_config_name(mf_json_get(c->config, "recurrent_activation"));
    if (mf_activation_unary(c->lo, name ? name : "linear", activation) &&
        (kind == SIMPLE || mf_activation_unary(c->lo, recurrent_name ? recurrent_name : "sigmoid", gate)))
        return true;
    mf_lower_unsupported(c, "its activation is not a plain function");
    return false;
}

/* Row i of a (2, n) bias as a vector. */
static uint32_t bias_row(mf_layer_call *c, uint32_t bias, int64_t row, int64_t n)
{
    uint32_t part = mf_g_slice(c->b, bias, (int64_t[]){row, 0}, (int64_t[]){1, n}, NULL);
    return mf_g_view(c->b, part, mf_shape1(n));
}

static void set_recurrent_dropout(mf_layer_call *c, uint32_t op_before)
{
    double rate = mf_json_get_number(c->config, "recurrent_dropout", 0);
    uint32_t key = mf_random_key(c);
    mf_graph *g = c->b->graph;
    if (!mf_build_ok(c->b) || !c->training || rate <= 0 || g->op_count <= op_before)
        return;
    g->ops[g->op_count - 1].attr.rnn.recurrent_dropout = rate;
    g->ops[g->op_count - 1].attr.rnn.key = key;
}

/* The layer without what its options do to the result. */
static mf_rnn_result run_cell(mf_layer_call *c, const recurrent *r)
{
    static const mf_weight_spec bias_spec = {
        .name = "bias", .initializer = "bias_initializer", .regularizer = "bias_regularizer"};
    /* unit_forget_bias: an LSTM starts by remembering; Keras then ignores any other initializer for those gates. */
    static const mf_weight_spec forget_spec = {
        .name = "bias", .otherwise = "lstm_forget_bias", .regularizer = "bias_regularizer"};
    mf_rnn_result none = {MF_NONE, MF_NONE, MF_NONE};
    mf_build *b = c->b;
    mf_shape x = mf_g_shape(b, c->in[0]);
    int64_t wide = gates_of(r->cell) * r->units;
    mf_unary activation = MF_UNARY_TANH, gate = MF_UNARY_SIGMOID;
    if (!functions(c, r->cell, &activation, &gate))
        return none;
    bool reset_after = mf_json_get_bool(c->config, "reset_after", !c->lo->keras2);
    bool two_rows = r->cell == GRU && reset_after;
    uint32_t kernel = mf_kernel_weight(c, mf_shape2(x.dim[2], wide));
    uint32_t u = mf_weight(c, &recurrent_spec, mf_shape2(r->units, wide));
    uint32_t bias = MF_NONE, inner_bias = MF_NONE;
    if (mf_json_get_bool(c->config, "use_bias", true)) {
        bool forget = r->cell == LSTM && mf_json_get_bool(c->config, "unit_forget_bias", true);
        bias = mf_weight(c, forget ? &forget_spec : &bias_spec, two_rows ? mf_shape2(2, wide) : mf_shape1(wide));
        if (two_rows) {
            inner_bias = bias_row(c, bias, 1, wide);
            bias = bias_row(c, bias, 0, wide);
        }
    }
    uint32_t input_key = mf_random_key(c), input = c->in[0];
    if (c->training) /* one draw for all steps */
        input = mf_g_dropout(b, input, mf_json_get_number(c->config, "dropout", 0), input_key, 2);
    uint32_t z =
        mf_g_matmul(b, mf_g_view(b, input, mf_shape2(x.dim[0] * x.dim[1], x.dim[2])), kernel, bias, false, false, 1);
    z = mf_g_view(b, z, mf_shape3(x.dim[0], x.dim[1], wide));
    uint32_t before = b->graph->op_count;
    mf_rnn_result result;
    if (r->cell == LSTM)
        result = mf_g_lstm(b, z, u, r->h0, r->c0, r->mask, r->backwards, activation, gate);
    else if (r->cell == GRU)
        result = mf_g_gru(b, z, u, inner_bias, r->h0, r->mask, r->backwards, reset_after, activation, gate);
    else
        result = mf_g_simple_rnn(b, z, u, r->h0, r->mask, r->backwards, activation);
    set_recurrent_dropout(c, before);
    if (r->zero && r->mask != MF_NONE) {
        uint32_t keep = mf_g_cast(b, r->mask, mf_g_dtype(b, result.sequence));
        result.sequence = mf_g_binary(b, MF_MUL, result.sequence, mf_g_view(b, keep, mf_shape3(x.dim[0], x.dim[1], 1)));
    }
    return result;
}

/* The mask the steps are done under. Keras 3 does not hand the mask of the sequence on to a layer that is called with
 * initial states (measured with 3.15.1), though the result still carries it. */
static uint32_t mask_of_steps(mf_layer_call *c)
{
    bool unheard = !c->lo->keras2 && c->in_count > 1 && !c->mask_given;
    return unheard ? MF_NONE : mf_mask_truth(c->b, c->mask);
}

static bool read_cell(mf_layer_call *c, cell kind, recurrent *r)
{
    mf_shape x = mf_g_shape(c->b, c->in[0]);
    *r = (recurrent){.cell = kind,
                     .units = mf_json_get_integer(c->config, "units", 0),
                     .h0 = MF_NONE,
                     .c0 = MF_NONE,
                     .mask = mask_of_steps(c),
                     .backwards = mf_json_get_bool(c->config, "go_backwards", false),
                     .zero = mf_json_get_bool(c->config, "zero_output_for_mask", false)};
    if (x.rank != 3)
        return mf_lower_wrong_rank(c, x, 3);
    if (r->units < 1 || r->units > INT32_MAX) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': units is missing, or not from 1 to %d", c->layer->name,
                      INT32_MAX);
        return false;
    }
    if (mf_json_get_bool(c->config, "stateful", false)) {
        mf_lower_unsupported(c, "stateful layers keep their state between batches, which is not supported");
        return false;
    }
    if (c->in_count > 1)
        r->h0 = c->in[1];
    if (c->in_count > 2 && kind == LSTM)
        r->c0 = c->in[2];
    return true;
}

/* The sequence in the order its steps were done. */
static uint32_t turned(mf_layer_call *c, uint32_t sequence)
{
    mf_shape s = mf_g_shape(c->b, sequence);
    if (s.rank != 3)
        return sequence;
    int64_t begin[3] = {0, s.dim[1] - 1, 0}, stride[3] = {1, -1, 1};
    return mf_g_slice(c->b, sequence, begin, s.dim, stride);
}

/* What the layer's own options make of a run: the last step or all of them, states, and the mask with a sequence. */
static void give(mf_layer_call *c, cell kind, bool backwards, const mf_rnn_result *result)
{
    bool sequences = mf_json_get_bool(c->config, "return_sequences", false);
    c->out[0] = !sequences ? result->last : backwards ? turned(c, result->sequence) : result->sequence;
    c->out_count = 1;
    if (mf_json_get_bool(c->config, "return_state", false)) {
        c->out[c->out_count++] = result->last;
        if (kind == LSTM)
            c->out[c->out_count++] = result->last_cell;
    }
    c->out_masks[0] = sequences ? c->mask : MF_NONE;
}

static void recurrent_layer(mf_layer_call *c, cell kind)
{
    recurrent r;
    if (!read_cell(c, kind, &r))
        return;
    mf_rnn_result result = run_cell(c, &r);
    give(c, kind, r.backwards, &result);
}

/* Weights of a recurrent layer are its cell's. */
static void in_cell(mf_layer_call *c, cell kind)
{
    const char *outer = c->prefix;
    char *prefix = mf_arena_printf(&c->lo->scratch, "%scell/", outer);
    if (!prefix) {
        mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory for a recurrent layer");
        return;
    }
    c->prefix = prefix;
    recurrent_layer(c, kind);
    c->prefix = outer;
}

void mf_lower_lstm(mf_layer_call *c)
{
    in_cell(c, LSTM);
}

void mf_lower_gru(mf_layer_call *c)
{
    in_cell(c, GRU);
}

void mf_lower_simple_rnn(mf_layer_call *c)
{
    in_cell(c, SIMPLE);
}

static bool cell_kind(const char *name, cell *kind)
{
    static const char *const names[] = {[LSTM] = "LSTM", [GRU] = "GRU", [SIMPLE] = "SimpleRNN"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        *kind = (cell)i;
        if (strncmp(name, names[i], n) == 0 && (!name[n] || strcmp(name + n, "Cell") == 0))
            return true;
    }
    return false;
}

/* RNN(cell): the options of the layer, the rest from the cell. */
void mf_lower_rnn(mf_layer_call *c)
{
    const mf_json *object = mf_json_get(c->config, "cell");
    const char *name = mf_json_get_string(object, "class_name", "");
    cell kind;
    if (!cell_kind(name, &kind)) {
        mf_lower_unsupported(c, "this cell is not supported");
        return;
    }
    mf_layer layer;
    mf_layer_call inner;
    recurrent r;
    if (!mf_wrapped_layer(c, object, "cell/", &layer, &inner) || !read_cell(&inner, kind, &r))
        return;
    r.backwards = mf_json_get_bool(c->config, "go_backwards", false);
    r.zero = mf_json_get_bool(c->config, "zero_output_for_mask", false);
    mf_rnn_result result = run_cell(&inner, &r);
    c->weights = inner.weights;
    give(c, kind, r.backwards, &result);
}

/* ---- both ways ---- */

/* One of the two directions: what it reads and what it makes. */
typedef struct direction {
    const mf_json *object;
    const char *prefix;
    bool turn;       /* it runs the other way than its configuration says */
    uint32_t states; /* inputs from here on are its initial states; 0: none are given */
    cell kind;
    bool sequences, backwards;
    mf_rnn_result result;
} direction;

static bool one_way(mf_layer_call *c, direction *d)
{
    mf_layer layer;
    mf_layer_call inner;
    recurrent r;
    if (!cell_kind(mf_json_get_string(d->object, "class_name", ""), &d->kind)) {
        mf_lower_unsupported(c, "the wrapped layer is not supported");
        return false;
    }
    if (!mf_wrapped_layer(c, d->object, d->prefix, &layer, &inner) || !read_cell(&inner, d->kind, &r))
        return false;
    if (!mf_json_is_null(mf_json_get(inner.config, "activity_regularizer")))
        c->b->graph->left_out = "activity regularizers inside Bidirectional";
    d->backwards = r.backwards ^= d->turn;
    r.h0 = d->states ? c->in[d->states] : MF_NONE;
    r.c0 = d->states && d->kind == LSTM ? c->in[d->states + 1] : MF_NONE;
    d->sequences = mf_json_get_bool(layer.config, "return_sequences", false);
    r.zero = d->sequences; /* the wrapper sets it so, whatever the layer says */
    d->result = run_cell(&inner, &r);
    c->weights = inner.weights;
    return mf_build_ok(c->b);
}

static uint32_t merged(mf_layer_call *c, const char *mode, uint32_t a, uint32_t z)
{
    mf_shape shape = mf_g_shape(c->b, a);
    if (strcmp(mode, "sum") == 0)
        return mf_g_binary(c->b, MF_ADD, a, z);
    if (strcmp(mode, "mul") == 0)
        return mf_g_binary(c->b, MF_MUL, a, z);
    if (strcmp(mode, "ave") == 0)
        return mf_g_unary(c->b, MF_UNARY_AFFINE, 0.5, 0, mf_g_binary(c->b, MF_ADD, a, z));
    return mf_g_concat(c->b, 2, (uint32_t[]){a, z}, shape.rank ? shape.rank - 1 : 0);
}

/* Initial states come behind the sequence: first those of the layer that runs forwards. */
static bool share_states(mf_layer_call *c, direction *a, direction *z)
{
    uint32_t states = c->in_count - 1, each = states / 2;
    cell kind;
    if (!states)
        return true;
    if (!cell_kind(mf_json_get_string(a->object, "class_name", ""), &kind) || states % 2 ||
        each != (kind == LSTM ? 2 : 1)) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': %u initial states", c->layer->name, states);
        return false;
    }
    a->states = 1;
    z->states = 1 + each;
    return true;
}

void mf_lower_bidirectional(mf_layer_call *c)
{
    const mf_json *other = mf_json_get(c->config, "backward_layer"), *mode = mf_json_get(c->config, "merge_mode");
    direction a = {.object = mf_json_get(c->config, "layer"), .prefix = "forward_layer/cell/"};
    direction z = {.object = other, .prefix = "backward_layer/cell/"};
    if (mf_json_is_null(other)) {
        z.object = a.object;
        z.turn = true;
    }
    if (!share_states(c, &a, &z) || !one_way(c, &a) || !one_way(c, &z))
        return;
    /* Keras turns the second round; of the first it takes the steps in the order they were done. */
    uint32_t first = !a.sequences ? a.result.last : a.backwards ? turned(c, a.result.sequence) : a.result.sequence;
    uint32_t second = !z.sequences ? z.result.last : z.backwards ? z.result.sequence : turned(c, z.result.sequence);
    c->out_count = 0;
    if (mode && mode->type == MF_JSON_NULL) {
        c->out[c->out_count++] = first;
        c->out[c->out_count++] = second;
    } else
        c->out[c->out_count++] = merged(c, mf_json_string(mode, "concat"), first, second);
    const direction *ways[] = {&a, &z};
    for (int i = 0; i < 2 && mf_json_get_bool(mf_json_get(a.object, "config"), "return_state", false); i++) {
        c->out[c->out_count++] = ways[i]->result.last;
        if (ways[i]->kind == LSTM)
            c->out[c->out_count++] = ways[i]->result.last_cell;
    }
    c->out_masks[0] = a.sequences ? c->mask : MF_NONE;
    if (mode && mode->type == MF_JSON_NULL)
        c->out_masks[1] = c->out_masks[0];
}
