/* kinds_linear.c: convolutions and pooling, products, recurrent layers: which kernels, on which grid, with how much
 * workspace. */
#include "ops/cuda/kind_shapes.h"
#include "ops/cuda/product_pad.h"
#include "ops/cuda/program.h"
#include "ops/reference/reference.h"

#include "base/error.h"

/* ---- windows and products ---- */

/* Channels a thread adds to: 16 bytes of the result, where rows and places in memory are divisible. */
static unsigned bias_width(const cuda_spec *s)
{
    const mf_tensor *y = &s->graph->tensors[s->op->out[0]], *bias = &s->graph->tensors[s->op->in[2]];
    unsigned size = (unsigned)mf_dtype_bytes(y->dtype), width = 16 / size;
    int64_t channels = y->shape.dim[y->shape.rank - 1];
    while (width > 1 &&
           (channels % width || y->offset % (width * size) || bias->offset % (width * mf_dtype_bytes(bias->dtype))))
        width /= 2;
    return width;
}

/* Filters in and out of the library's order, the bias and its gradient. */
static void around_library(cuda_spec *s, const mf_ref_window *w)
{
    enum { TILE = 64 };
    bool weights = s->op->kind == MF_OP_CONV_GRAD_WEIGHTS;
    uint64_t filters = weights ? out_count(s, 0) : in_count(s, 1), columns = (uint64_t)w->out_channels;
    uint64_t tiles = (filters / columns + TILE - 1) / TILE * ((columns + TILE - 1) / TILE);
    s->family = "filters.cu";
    s->filter_at = cuda_workspace(s, filters * mf_dtype_bytes(s->graph->tensors[s->op->in[0]].dtype));
    cuda_say(s, "#define FILTER_AT %llull\n#define TILE %d\n", (unsigned long long)s->filter_at, TILE);
    if (!weights) {
        cuda_grid(s, "to_library", tiles, 1);
        s->call_at = s->launch_count;
        if (has_in(s, 2) && !s->bias_inside) {
            unsigned width = bias_width(s);
            cuda_say(s, "#define V %u\nstatic constexpr mf_shape domain = {};\n", width);
            cuda_say(s, "#include \"operands.cuh\"\n#include \"program.cuh\"\n");
            cuda_each(s, "add_bias", out_count(s, 0) / width);
        }
        return;
    }
    s->call_at = 0;
    cuda_grid(s, "from_library", tiles, 1);
    if (has_out(s, 1))
        cuda_program_column_sums(s, 1, 1);
}

static bool is_float(const cuda_spec *s, uint32_t tensor)
{
    mf_dtype dtype = s->graph->tensors[tensor].dtype;
    return dtype == MF_F32 || dtype == MF_F64 || dtype == MF_BF16 || dtype == MF_F16;
}

/* Channels side by side that one thread has; 1 where memory does not allow more. */
unsigned cuda_channel_width(const cuda_spec *s, uint64_t channels, unsigned most)
{
    unsigned width = most;
    while (width > 1 && channels % width)
        width /= 2;
    for (uint32_t i = 0; i < s->op->in_count + s->op->out_count; i++) {
        uint32_t t = i < s->op->in_count ? s->op->in[i] : s->op->out[i - s->op->in_count];
        while (t != MF_NONE && width > 1 &&
               s->graph->tensors[t].offset % (width * mf_dtype_bytes(s->graph->tensors[t].dtype)))
            width /= 2;
    }
    return width;
}

/* Does the window leave channels apart? Then a thread has several (window_vector.cu). */
bool cuda_window_is_apart(const mf_graph *graph, const mf_op *op)
{
    cuda_spec s = {.graph = graph, .op = op};
    uint64_t x = op->kind == MF_OP_CONV_GRAD_DATA ? op->out[0] : op->in[0];
    const mf_shape *shape = &graph->tensors[x].shape;
    switch (op->kind) {
    case MF_OP_POOL_MAX:
        return is_float(&s, op->in[0]) && (!has_out(&s, 1) || graph->tensors[op->out[1]].dtype == MF_U8);
    case MF_OP_POOL_MAX_GRAD:
        return is_float(&s, op->in[0]) && graph->tensors[op->in[1]].dtype == MF_U8;
    case MF_OP_CONV:
    case MF_OP_CONV_GRAD_DATA:
    case MF_OP_CONV_GRAD_WEIGHTS: {
        uint32_t y = op->kind == MF_OP_CONV ? op->out[0] : op->kind == MF_OP_CONV_GRAD_DATA ? op->in[0] : op->in[1];
        int64_t channels = shape->dim[shape->rank - 1], taps = 1;
        for (uint32_t i = 0; i < op->attr.window.dims; i++)
            taps *= op->attr.window.kernel[i];
        return op->attr.window.groups == channels && channels > 1 && taps <= 49 &&
               graph->tensors[y].shape.dim[shape->rank - 1] == channels && is_float(&s, op->in[0]);
    }
    default:
        return false;
    }
}

static void taps_apart(cuda_spec *s, const mf_ref_window *w, unsigned width)
{
    uint64_t cells = (uint64_t)(w->batch * w->out[0] * w->out[1] * w->out[2]), channels = (uint64_t)w->in_channels;
    uint64_t taps = (uint64_t)(w->kernel[0] * w->kernel[1] * w->kernel[2]), vectors = channels / width;
    unsigned along = vectors < 32 ? (unsigned)vectors : 32, deep, join = s->block < 256 ? 1 : 8;
    for (unsigned n = along; n >= 12; n--)
        if (vectors % n == 0) { /* no block has threads without channels */
            along = n;
            break;
        }
    along = along > s->block ? s->block : along;
    deep = s->block / along;
    uint64_t x = (vectors + along - 1) / along, splits = 1056 / x + 1, most = cells / (deep * 4) + 1;
    splits = splits > most ? most : splits;
    splits = splits > 65535 ? 65535 : splits;
    cuda_say(s, "#define WX %u\n#define WY %u\n#define WSPLITS %llull\n#define WJOIN %u\n#define TAPS_AT %llull\n",
             along, deep, (unsigned long long)splits, join,
             (unsigned long long)cuda_workspace(s, splits * taps * channels * sizeof(double)));
    cuda_grid(s, "taps0", x, splits);
    cuda_grid(s, "tapjoin", (taps * channels + join - 1) / join, 1);
}

/* Own kernels for what leaves channels apart. */
static void windows_apart(cuda_spec *s, const mf_ref_window *w)
{
    enum { ROW = 4, MOST_SUMS = 80 };
    mf_op_kind kind = s->op->kind;
    const mf_tensor *data = &s->graph->tensors[s->op->in[0]];
    unsigned width = cuda_channel_width(s, (uint64_t)w->in_channels, (unsigned)(16 / mf_dtype_bytes(data->dtype)));
    int64_t taps = w->kernel[0] * w->kernel[1] * w->kernel[2];
    while (kind == MF_OP_CONV_GRAD_WEIGHTS && width > 1 && taps * width > MOST_SUMS)
        width /= 2;
    bool back = kind == MF_OP_CONV_GRAD_DATA, convolves = back || kind == MF_OP_CONV;
    int64_t row = back ? w->in[2] : w->out[2];
    unsigned px = row >= ROW ? ROW : 1;
    s->family = "window_vector.cu";
    cuda_say(s, "#define WV %u\n#define PX %u\n", width, px);
    if (kind == MF_OP_CONV_GRAD_WEIGHTS) {
        taps_apart(s, w, width);
        if (has_out(s, 1)) {
            cuda_program_column_sums(s, 1, 1);
            return;
        }
    } else if (convolves)
        cuda_each(s, "k0",
                  (uint64_t)(w->batch * (back ? w->in[0] * w->in[1] : w->out[0] * w->out[1]) * ((row + px - 1) / px) *
                             (w->in_channels / width)));
    else
        cuda_each(s, "k0", out_count(s, 0) / width);
    cuda_say(s, "#define V 1\nstatic constexpr mf_shape domain = {};\n#include \"operands.cuh\"\n");
}

/* How few_channels.cu divides the sums among a block's threads. */
typedef struct few_tile {
    unsigned m, n, cells;
    uint64_t blocks;
} few_tile;

static bool few_tile_of(const mf_graph *graph, const mf_op *op, unsigned block, few_tile *tile)
{
    enum { MOST_CHANNELS = 4, MOST_SHARED = 40 << 10, BLOCKS = 528 };
    mf_ref_window w;
    if (op->kind != MF_OP_CONV_GRAD_WEIGHTS || graph->tensors[op->in[0]].dtype != MF_F32 || op->attr.window.groups != 1)
        return false;
    mf_ref_window_of(&op->attr.window, &graph->tensors[op->in[0]].shape, &graph->tensors[op->in[1]].shape, &w);
    if (w.kernel[0] != 1 || w.in[0] != 1 || w.out[0] != 1 || w.in_channels > MOST_CHANNELS)
        return false;
    int64_t m = w.kernel[1] * w.kernel[2] * w.in_channels, n = w.out_channels;
    *tile = (few_tile){.m = 4, .n = 4, .cells = 64};
    if (block < 256)
        *tile = (few_tile){.m = (unsigned)m, .n = (unsigned)n, .cells = 16};
    else if ((m + 3) / 4 * ((n + 3) / 4) > block)
        *tile = (few_tile){.m = 8, .n = 8, .cells = 32};
    int64_t groups = (m + tile->m - 1) / tile->m, wide = (n + tile->n - 1) / tile->n;
    int64_t span = ((tile->cells - 1) * w.stride[2] + (w.kernel[2] - 1) * w.dilation[2] + 1) * w.in_channels;
    int64_t shared = (tile->cells * wide * tile->n + w.kernel[1] * span + m * wide * tile->n) * 4;
    uint64_t stretches = (uint64_t)(w.batch * w.out[1] * ((w.out[2] + tile->cells - 1) / tile->cells));
    tile->blocks = stretches < BLOCKS ? stretches : BLOCKS;
    return m > 0 && n > 0 && stretches > 0 && groups * wide <= block && (block < 256 || shared <= MOST_SHARED);
}

static void few_channels(cuda_spec *s, const mf_ref_window *w, const few_tile *tile)
{
    uint64_t sums = (uint64_t)(w->kernel[1] * w->kernel[2] * w->in_channels * w->out_channels);
    unsigned join = s->block < 256 ? 1 : 8;
    s->family = "few_channels.cu";
    cuda_say(s, "#define TM %u\n#define TN %u\n#define CELLS %u\n#define FEW_BLOCKS %llull\n", tile->m, tile->n,
             tile->cells, (unsigned long long)tile->blocks);
    cuda_say(s, "#define FEW_AT %llull\n#define FEW_JOIN %u\n",
             (unsigned long long)cuda_workspace(s, tile->blocks * sums * sizeof(double)), join);
    cuda_grid(s, "few0", tile->blocks, 1);
    cuda_grid(s, "fewjoin", (sums + join - 1) / join, 1);
    if (has_out(s, 1))
        cuda_program_column_sums(s, 1, 1);
    else
        cuda_say(s, "#define V 1\nstatic constexpr mf_shape domain = {};\n#include \"operands.cuh\"\n");
}

/* One cell seen, many channels made few (few_results.cu)? Channels that a thread has; 0: no. */
static unsigned few_results_width(const cuda_spec *s, const mf_ref_window *w)
{
    enum { LEAST_CHANNELS = 16, MOST_VECTORS = 64, MOST_RESULTS = 4 };
    const mf_op *op = s->op;
    bool seen = w->groups == 1 && w->out_channels > 0 && w->out_channels <= MOST_RESULTS && w->batch > 0;
    for (int i = 0; i < 3; i++)
        seen = seen && w->kernel[i] == 1 && w->stride[i] == 1 && w->before[i] == 0 && w->in[i] == w->out[i];
    bool floats = op->kind != MF_OP_CONV_GRAD_DATA || !has_in(s, 2);
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        floats = floats &&
                 (t == MF_NONE ? i > 1 && i != op->in_count : is_float(s, t) && s->graph->tensors[t].dtype != MF_F64);
    }
    if (!seen || !floats || w->in_channels < LEAST_CHANNELS)
        return 0;
    const mf_tensor *data = &s->graph->tensors[op->kind == MF_OP_CONV_GRAD_DATA ? op->out[0] : op->in[0]];
    unsigned width = (unsigned)(16 / mf_dtype_bytes(data->dtype));
    bool fits = w->in_channels % width == 0 && w->in_channels / width <= MOST_VECTORS && data->offset % 16 == 0;
    return fits ? width : 0;
}

static void few_results(cuda_spec *s, const mf_ref_window *w, unsigned width)
{
    enum { EACH_CELL = 4, BLOCKS = 528 };
    uint64_t cells = (uint64_t)(w->batch * w->out[0] * w->out[1] * w->out[2]),
             vectors = (uint64_t)w->in_channels / width;
    uint64_t slots = vectors <= s->block ? s->block / vectors : s->block;
    bool weights = s->op->kind == MF_OP_CONV_GRAD_WEIGHTS, bias = weights ? has_out(s, 1) : has_in(s, 2);
    s->family = "few_results.cu";
    s->streams = true;
    cuda_say(s, "#define WV %u\n#define HAS_BIAS %d\n", width, bias);
    cuda_say(s, "#define V 1\nstatic constexpr mf_shape domain = {};\n#include \"operands.cuh\"\n");
    if (!weights) {
        cuda_grid(s, "k0", (cells + slots * EACH_CELL - 1) / (slots * EACH_CELL), 1);
        return;
    }
    uint64_t blocks = (cells + slots - 1) / slots, sums = (uint64_t)((w->in_channels + 1) * w->out_channels);
    unsigned join = s->block < 256 ? 1 : 8;
    blocks = blocks < BLOCKS ? blocks : BLOCKS;
    cuda_say(s, "#define FEW_BLOCKS %llull\n#define FEW_JOIN %u\n#define FEW_AT %llull\n", (unsigned long long)blocks,
             join, (unsigned long long)cuda_workspace(s, blocks * sums * sizeof(double)));
    cuda_grid(s, "few0", blocks, 1);
    cuda_grid(s, "fewjoin", (sums + join - 1) / join, 1);
}

void cuda_say_window(cuda_spec *s, const mf_ref_window *w)
{
    cuda_say(s, "#define WINDOW {%lld, {%lld, %lld, %lld}, %lld, {%lld, %lld, %lld}, %lld, ", (long long)w->batch,
             (long long)w->in[0], (long long)w->in[1], (long long)w->in[2], (long long)w->in_channels,
             (long long)w->out[0], (long long)w->out[1], (long long)w->out[2], (long long)w->out_channels);
    const int64_t *parts[] = {w->kernel, w->stride, w->dilation, w->before};
    for (int i = 0; i < 4; i++)
        cuda_say(s, "{%lld, %lld, %lld}, ", (long long)parts[i][0], (long long)parts[i][1], (long long)parts[i][2]);
    cuda_say(s, "%lld}\n", (long long)w->groups);
}

memfit_status cuda_windows(cuda_spec *s)
{
    s->family = "window.cu";
    const mf_op *op = s->op;
    mf_ref_window w;
    bool back = op->kind == MF_OP_CONV_GRAD_DATA || op->kind == MF_OP_POOL_MAX_GRAD || op->kind == MF_OP_POOL_AVG_GRAD;
    bool weights = op->kind == MF_OP_CONV_GRAD_WEIGHTS;
    mf_ref_window_of(&op->attr.window, back ? out_shape(s, 0) : in_shape(s, 0),
                     back      ? in_shape(s, 0)
                     : weights ? in_shape(s, 1)
                               : out_shape(s, 0),
                     &w);
    cuda_say_window(s, &w);
    if (s->library) {
        around_library(s, &w);
        return MEMFIT_OK;
    }
    if (cuda_window_is_apart(s->graph, op)) {
        windows_apart(s, &w);
        return MEMFIT_OK;
    }
    bool convolves = weights || op->kind == MF_OP_CONV || op->kind == MF_OP_CONV_GRAD_DATA;
    unsigned width = convolves ? few_results_width(s, &w) : 0;
    if (width) {
        few_results(s, &w, width);
        return MEMFIT_OK;
    }
    few_tile tile;
    if (few_tile_of(s->graph, op, s->block, &tile)) {
        few_channels(s, &w, &tile);
        return MEMFIT_OK;
    }
    s->slow = true;
    if (!weights) {
        cuda_each(s, "k0", out_count(s, 0));
        return MEMFIT_OK;
    }
    uint64_t cells = (uint64_t)(w.batch * w.out[0] * w.out[1] * w.out[2]);
    cuda_reduce(s, 0, out_count(s, 0), cells, 1, false);
    if (has_out(s, 1)) {
        cuda_say(s, "#define BIAS_GRADIENT 1\n");
        cuda_reduce(s, 1, (uint64_t)w.out_channels, cells, 1, false);
    }
    return MEMFIT_OK;
}

/* Rows filled up before the library's product, its result copied out of longer rows. */
static memfit_status around_product(cuda_spec *s)
{
    static const char *const names[] = {"pad_a", "pad_b", "unpad"};
    cuda_padding pad;
    s->family = "product_pad.cu";
    cuda_padding_of(s->graph, s->op, &pad);
    cuda_say(s, "#define V 8\nstatic constexpr mf_shape domain = {};\n");
    for (int i = 0; i < 3; i++) {
        char c = "ABC"[i];
        cuda_say(s, "#define %c_AT %llull\n#define %c_ROWS %lldll\n#define %c_FROM %lldll\n#define %c_TO %lldll\n", c,
                 (unsigned long long)pad.at[i], c, (long long)pad.rows[i], c, (long long)pad.from[i], c,
                 (long long)pad.to[i]);
        if (i == 2)
            s->call_at = s->launch_count;
        if (pad.to[i] != pad.from[i])
            cuda_each(s, names[i], (uint64_t)(pad.rows[i] * pad.to[i]) / 8);
    }
    cuda_workspace(s, pad.bytes);
    return MEMFIT_OK;
}

/* A product over one very long axis with few rows and few columns (thin.cu): which of the three the axis belongs to. */
typedef enum thin_form { THIN_SUM, THIN_SPREAD, THIN_OUTER } thin_form;
typedef struct thin_product {
    thin_form form;
    int64_t rows, columns, length;
    unsigned y; /* which input is the small factor, where one is */
} thin_product;

static bool thin_of(const cuda_spec *s, int64_t m, int64_t n, int64_t k, int64_t batch, thin_product *t)
{
    enum { MOST_ROWS = 256, MOST_COLUMNS = 16, LEAST_LENGTH = 1 << 16 };
    bool ta = s->op->attr.matmul.trans_a, tb = s->op->attr.matmul.trans_b;
    if (batch != 1 || in_shape(s, 1)->rank != 2 || (ta && tb))
        return false;
    if (!ta && !tb)
        *t = (thin_product){THIN_SUM, m, n, k, 0};
    else if (tb)
        *t = (thin_product){THIN_SPREAD, m, k, n, 0};
    else
        *t = (thin_product){THIN_OUTER, k, n, m, 1};
    bool fits = t->rows > 0 && t->rows <= MOST_ROWS && t->columns > 0 && t->columns <= MOST_COLUMNS &&
                t->length >= LEAST_LENGTH && is_float(s, s->op->out[0]) && is_float(s, s->op->in[1]) &&
                (!has_in(s, 2) || (!ta && !tb && is_float(s, s->op->in[2])));
    for (uint32_t i = 0; i < s->op->in_count && fits; i++)
        fits = s->op->in[i] == MF_NONE || s->graph->tensors[s->op->in[i]].dtype != MF_F64;
    return fits && is_float(s, s->op->in[0]) && s->graph->tensors[s->op->out[0]].dtype != MF_F64;
}

/* Where it was faster than everything cuBLASLt has, of 38 to 40 shapes drawn for each form and type on an H200
 * (docs/bench/cuda.md): spread along the axis; outer products with few columns, unless they are short and many rows or the
 * library reads whole vectors; sums of some columns over several millions. Elsewhere it stands behind the library. */
static bool thin_wins(const thin_product *t, bool half)
{
    enum { SHORT = 1 << 18, LONG = 1 << 22, FEW = 7, SOME = 10 };
    if (t->form == THIN_SPREAD)
        return true;
    if (t->form == THIN_OUTER) {
        bool whole = !half && t->columns % 4 == 0 && t->length < LONG;
        bool few = t->columns <= FEW && (t->rows <= 128 || t->length >= SHORT) && !whole;
        return few || (t->columns <= SOME && t->length >= LONG && (half ? t->rows <= 32 : t->rows >= 24));
    }
    if (t->length < LONG || t->columns < 2)
        return false;
    return half ? t->columns <= FEW && t->rows >= 16 && t->rows <= 32 : t->columns <= SOME + 1 && t->rows >= 2;
}

static void say_thin(cuda_spec *s, const thin_product *t)
{
    enum { PART = 256, EACH = 4, MOST_BLOCKS = 1056 };
    static const char *const names[] = {"THIN_SUM", "THIN_SPREAD", "THIN_OUTER"};
    uint64_t parts = (uint64_t)(t->length + PART - 1) / PART, blocks = parts < MOST_BLOCKS ? parts : MOST_BLOCKS;
    s->family = "thin.cu";
    s->streams = thin_wins(t, mf_dtype_bytes(s->graph->tensors[s->op->in[0]].dtype) == 2);
    s->tf32_is_quicker = t->form == THIN_SUM && t->rows > 32;
    s->slow = !s->streams;
    cuda_say(s, "#define %s 1\n#define THIN_R %lld\n#define THIN_S %lld\n#define THIN_L %lldll\n#define Y_IN %u\n",
             names[t->form], (long long)t->rows, (long long)t->columns, (long long)t->length, t->y);
    cuda_say(s, "#define V 1\nstatic constexpr mf_shape domain = {};\n#include \"operands.cuh\"\n");
    if (t->form != THIN_SUM) {
        cuda_each(s, "thin", (uint64_t)(t->length + EACH - 1) / EACH);
        return;
    }
    uint64_t results = (uint64_t)(t->rows * t->columns);
    cuda_say(s, "#define THIN_BLOCKS %llull\n#define THIN_AT %llull\n", (unsigned long long)blocks,
             (unsigned long long)cuda_workspace(s, blocks * results * sizeof(double)));
    cuda_grid(s, "thin", blocks, 1);
    cuda_grid(s, "thinjoin", results, 1);
}

memfit_status cuda_product(cuda_spec *s, memfit_error *err)
{
    thin_product thin;
    if (s->library)
        return around_product(s);
    s->family = "product.cu";
    s->slow = true;
    const mf_shape *a = in_shape(s, 0), *b = in_shape(s, 1);
    bool ta = s->op->attr.matmul.trans_a, tb = s->op->attr.matmul.trans_b;
    int64_t a_rows = a->rank > 1 ? a->dim[a->rank - 2] : 1, a_cols = a->dim[a->rank - 1];
    int64_t b_rows = b->rank > 1 ? b->dim[b->rank - 2] : 1, b_cols = b->dim[b->rank - 1];
    int64_t m = ta ? a_cols : a_rows, k = ta ? a_rows : a_cols, n = tb ? b_rows : b_cols;
    int64_t one = m * n > 0 ? m * n : 1, batch = (int64_t)out_count(s, 0) / one;
    if (b->rank <= 2 && !ta) {
        m *= batch;
        batch = 1;
    }
    if (thin_of(s, m, n, k, batch, &thin)) {
        say_thin(s, &thin);
        return MEMFIT_OK;
    }
    if (batch > 65535)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "a product of more than 65535 batches needs cuBLASLt");
    cuda_say(s, "#define M_ %lldll\n#define N_ %lldll\n#define K_ %lldll\n#define A_SHARED %d\n#define B_SHARED %d\n",
             (long long)m, (long long)n, (long long)k, (int64_t)in_count(s, 0) <= m * k,
             (int64_t)in_count(s, 1) <= k * n);
    int64_t tile = s->block == 1 ? 1 : 16;
    cuda_grid(s, "k0", (uint64_t)((m + tile - 1) / tile * ((n + tile - 1) / tile)), (uint64_t)batch);
    return MEMFIT_OK;
}

/* ---- recurrent ---- */

typedef struct rnn_row {
    uint8_t u, mask, h0, c0, dh_last, dc_last; /* inputs; 9 where there is none that could be here */
    uint8_t h_last, c_last, dh0, dc0;          /* outputs */
    uint8_t arrays;                            /* of n doubles a sample */
} rnn_row;

/* Of the recurrent matrix, as a product over all samples and steps. */
static void matrix_gradient(cuda_spec *s, uint64_t batch, uint64_t time, uint64_t n, uint64_t width)
{
    uint64_t tile = s->block < 256 ? 4 : 64, tiles = (n + tile - 1) / tile * ((width + tile - 1) / tile);
    uint64_t splits = 1056 / tiles + 1, most = batch * time / 64 + 1;
    bool wide = s->graph->tensors[s->op->out[1]].dtype == MF_F64;
    splits = splits > most ? most : splits;
    cuda_say(s, "#define DU_SPLITS %llu\n#define DU_AT %llull\n", (unsigned long long)splits,
             (unsigned long long)cuda_workspace(s, splits * n * width * (wide ? sizeof(double) : sizeof(float))));
    cuda_grid(s, "du", tiles, splits);
    cuda_each(s, "dujoin", n * width);
}

enum { MOST_TILED_UNITS = 256 }; /* whose slopes fit into shared memory, and states into registers */

static bool is_half_at(const cuda_spec *s, uint32_t tensor, mf_dtype dtype)
{
    return tensor == MF_NONE ||
           (s->graph->tensors[tensor].dtype == dtype && s->graph->tensors[tensor].offset % 16 == 0);
}

/* An LSTM in 16 bits with the usual activations goes on the matrix units (rnn_tiles.cuh). */
static bool takes_tiles(const cuda_spec *s, int64_t units, uint32_t u)
{
    const mf_op *op = s->op;
    bool back = op->kind == MF_OP_LSTM_GRAD;
    mf_dtype dtype = s->graph->tensors[op->in[u]].dtype;
    if ((op->kind != MF_OP_LSTM && !back) || s->block != 256 || units % 32 || units > MOST_TILED_UNITS ||
        op->attr.rnn.recurrent_dropout > 0 || op->attr.rnn.activation != MF_UNARY_TANH ||
        op->attr.rnn.recurrent_activation != MF_UNARY_SIGMOID || (dtype != MF_BF16 && dtype != MF_F16))
        return false;
    bool all = is_half_at(s, op->in[0], dtype) && is_half_at(s, op->in[u], dtype) && is_half_at(s, op->out[0], dtype);
    for (uint32_t i = 1; i < 3; i++) /* gates and states of the cells */
        all &= is_half_at(s, back ? op->in[i + 1] : i < op->out_count ? op->out[i] : MF_NONE, dtype);
    return all;
}

memfit_status cuda_recurrent(cuda_spec *s)
{
    s->family = "rnn.cu";
    rnn_row r = {0};
    bool back = false;
    switch (s->op->kind) {
    case MF_OP_LSTM:
        r = (rnn_row){.u = 1, .mask = 4, .h0 = 2, .c0 = 3, .h_last = 3, .c_last = 4, .arrays = 6};
        break;
    case MF_OP_GRU:
        r = (rnn_row){.u = 1, .mask = 4, .h0 = 3, .c0 = 9, .h_last = 2, .arrays = 7};
        break;
    case MF_OP_SIMPLE_RNN:
        r = (rnn_row){.u = 1, .mask = 3, .h0 = 2, .c0 = 9, .h_last = 1, .arrays = 3};
        break;
    case MF_OP_LSTM_GRAD:
        r = (rnn_row){.u = 4, .mask = 7, .h0 = 5, .dh_last = 8, .dc_last = 9, .dh0 = 2, .dc0 = 3, .arrays = 6};
        back = true;
        break;
    case MF_OP_GRU_GRAD:
        r = (rnn_row){.u = 3, .mask = 6, .h0 = 5, .dh_last = 7, .dc_last = 9, .dh0 = 3, .arrays = 6};
        back = true;
        break;
    default:
        r = (rnn_row){.u = 2, .mask = 4, .h0 = 3, .dh_last = 5, .dc_last = 9, .dh0 = 2, .arrays = 3};
        back = true;
        break;
    }
    const mf_shape *z = in_shape(s, back ? 1 : 0), *u = in_shape(s, r.u);
    uint64_t batch = (uint64_t)z->dim[0], time = (uint64_t)z->dim[1], n = (uint64_t)u->dim[0],
             width = (uint64_t)u->dim[1];
    cuda_say(s, "#define UNITS %lldll\n#define GATE_UNITS %lldll\n#define TIME %lldll\n#define SCRATCH_ARRAYS %u\n",
             (long long)n, (long long)width, (long long)time, r.arrays);
    cuda_say(s, "#define U_IN %u\n#define MASK_IN %u\n#define H0_IN %u\n#define C0_IN %u\n#define DH_LAST_IN %u\n", r.u,
             r.mask, r.h0, r.c0, r.dh_last);
    cuda_say(s,
             "#define DC_LAST_IN %u\n#define H_LAST_OUT %u\n#define C_LAST_OUT %u\n#define DH0_OUT %u\n"
             "#define DC0_OUT %u\n",
             r.dc_last, r.h_last, r.c_last, r.dh0, r.dc0);
    bool tiles = takes_tiles(s, (int64_t)n, r.u);
    uint64_t each = tiles ? 0 : r.arrays * n + (s->op->attr.rnn.recurrent_dropout > 0 ? width : 0);
    uint64_t turned = back || tiles ? n * width * mf_dtype_bytes(s->graph->tensors[s->op->in[r.u]].dtype) : 0;
    s->slow = !tiles;
    cuda_say(s, "#define BATCH %lldll\n#define TILES %d\n", (long long)batch, tiles ? back ? 2 : 1 : 0);
    cuda_say(s, "#define SCRATCH_AT %llull\n", (unsigned long long)cuda_workspace(s, batch * each * sizeof(double)));
    cuda_say(s, "#define TURNED_AT %llull\n", (unsigned long long)cuda_workspace(s, turned));
    if (turned)
        cuda_each(s, "turn", tiles ? n * width / 8 : n * width);
    cuda_grid(s, "k0", tiles ? (batch + 15) / 16 : batch, 1);
    if (!back)
        return MEMFIT_OK;
    bool plain = s->op->kind != MF_OP_GRU_GRAD && s->op->attr.rnn.recurrent_dropout == 0;
    if (has_out(s, 1) && plain)
        matrix_gradient(s, batch, time, n, width);
    else
        cuda_say(s, "#define DU_SPLITS 0\n");
    if (has_out(s, 1) && !plain)
        cuda_reduce(s, 0, n * width, batch * time, 1, false);
    else
        cuda_reduce_unused(s, 0);
    if (s->op->kind == MF_OP_GRU_GRAD && has_out(s, 2))
        cuda_reduce(s, 1, width, batch * time, 1, false);
    else
        cuda_reduce_unused(s, 1);
    return MEMFIT_OK;
}
