/*
 * convolutions.c: see convolutions.h.
 *
 *     method's identity   CUDA_CONVOLUTION, TF32 or not, the bias added by cuDNN or not; from byte 8 cuDNN's engine and the hash of its settings
 *     workspace           [ what the launches around it need, filters in cuDNN's order among it | cuDNN's own ]
 */
#include "ops/cuda/convolutions.h"

#include "base/error.h"
#include "ops/cuda/kind_shapes.h"
#include "ops/reference/reference.h"

#include <string.h>

enum { MOST_WAYS = 96 };

typedef struct convolution_call {
    cuda_call base;
    const memfit_host *host;
    mf_cuda_card card;
    mf_cudnn_plan_made *plan;
    mf_op_kind kind;
    bool bias_inside;
    uint64_t filter_at, own_at;
} convolution_call;

static bool type_of(mf_dtype dtype, mf_cudnn_type *type)
{
    *type = dtype == MF_F16 ? MF_CUDNN_F16 : dtype == MF_BF16 ? MF_CUDNN_BF16 : MF_CUDNN_F32;
    return dtype == MF_F16 || dtype == MF_BF16 || dtype == MF_F32;
}

/* cuDNN's two dimensions from the reference's three, whose first is of size 1; or all three. */
static void copy_space(const mf_window *window, const mf_ref_window *w, mf_cudnn_convolution *c)
{
    c->dims = window->dims == 3 ? 3 : 2;
    uint32_t skip = 3 - c->dims, lead = 3 - window->dims;
    for (uint32_t i = 0; i < c->dims; i++) {
        c->in[i] = w->in[skip + i];
        c->out[i] = w->out[skip + i];
        c->kernel[i] = w->kernel[skip + i];
        c->stride[i] = w->stride[skip + i];
        c->dilation[i] = w->dilation[skip + i];
        c->before[i] = w->before[skip + i];
        c->after[i] = skip + i >= lead ? window->after[skip + i - lead] : 0;
    }
}

bool cuda_convolution_of(const mf_graph *graph, const mf_op *op, mf_cudnn_convolution *c)
{
    mf_ref_window w;
    const mf_tensor *first = &graph->tensors[op->in[0]], *second = &graph->tensors[op->in[1]];
    const mf_tensor *out = &graph->tensors[op->out[0]];
    bool data = op->kind == MF_OP_CONV_GRAD_DATA, weights = op->kind == MF_OP_CONV_GRAD_WEIGHTS;
    const mf_tensor *x = data ? out : first, *y = data ? first : weights ? second : out;
    mf_ref_window_of(&op->attr.window, &x->shape, &y->shape, &w);
    *c = (mf_cudnn_convolution){.direction = data      ? MF_CUDNN_DATA
                                             : weights ? MF_CUDNN_WEIGHTS
                                                       : MF_CUDNN_FORWARD,
                                .batch = w.batch,
                                .in_channels = w.in_channels,
                                .out_channels = w.out_channels,
                                .groups = w.groups};
    copy_space(&op->attr.window, &w, c);
    /* three dimensions, 16 bits, few channels: an engine was seen to compute wrong weights' gradients (9.19 on an H200) */
    if (c->dims == 3 && (w.in_channels % 8 != 0 || w.out_channels % 8 != 0))
        return false;
    return type_of(x->dtype, &c->type) && x->dtype == y->dtype && x->offset % 16 == 0 && y->offset % 16 == 0 &&
           w.batch > 0 && w.in_channels > 0 && w.out_channels > 0;
}

static uint64_t align256(uint64_t bytes)
{
    return (bytes + 255) & ~UINT64_C(255);
}

/* ---- the menu ---- */

static void add_way(mf_cost *cost, const mf_cudnn_way *way, bool bias, uint64_t own_at, double time)
{
    mf_method *m = &cost->methods[cost->method_count];
    *m = (mf_method){.id = {CUDA_CONVOLUTION, way->tf32, bias},
                     .workspace_bytes = own_at + way->workspace_bytes,
                     .time_us = time,
                     .deterministic = way->deterministic,
                     .numerics = way->tf32            ? MF_CHANGED
                                 : cost->method_count ? MF_REORDERED
                                                      : MF_BITWISE};
    memcpy(m->id + 8, &way->engine, sizeof way->engine);
    memcpy(m->id + 16, &way->settings, sizeof way->settings);
    cost->method_count++;
}

static bool is_even(const mf_cudnn_convolution *conv)
{
    bool even = true;
    for (uint32_t i = 0; i < conv->dims; i++)
        even = even && conv->before[i] == conv->after[i];
    return even;
}

/* Where the padding before and behind differs, engines of 9.19 that only compute in float32 gave wrong gradients on an H200:
 * 1 and 18 of filters, 50 of data, off by 0.8 to 1.4 of the norm (bench/cuda.md). Those that were right in the same menus are
 * taken, others are not known. Forward, TF32 and 16 bits were right throughout, in a fixed order. */
static bool is_trusted(const mf_cudnn_convolution *conv, const mf_cudnn_way *way)
{
    if (is_even(conv) || conv->type != MF_CUDNN_F32 || way->tf32 || conv->direction == MF_CUDNN_FORWARD)
        return true;
    return way->engine == 0 || way->engine == (conv->direction == MF_CUDNN_DATA ? 74 : 67);
}

static bool is_way(const mf_cudnn_convolution *conv, const mf_cudnn_way *way, bool tf32)
{
    return !way->compiled && way->deterministic && way->tf32 == tf32 && is_trusted(conv, way);
}

/* Engine 20 of 9.19, which adds in no fixed order, gave wrong gradients of filters in 16 bits there, too. */
static bool is_loose(const mf_cudnn_convolution *conv, const mf_cudnn_way *way, bool tf32)
{
    return !way->compiled && !way->deterministic && way->tf32 == tf32 &&
           (is_even(conv) || conv->direction == MF_CUDNN_FORWARD);
}

/* engine 0 is the last resort: seen to take 18 to 12,000 times as long as the others */
enum { LAST_RESORT = 0, LAST_TIMES = 100 };

/* The first FIRST of the list, for `memfit tune` to choose among, and each that needs less than all before it; of those
 * at least the one that needs the least, unless one is there that needs next to nothing. What needs more than `most` is
 * left out where something else is there: for S9 in float32 the library's first choice takes 36 GB beside operands of one. */
static void add_ways(const mf_cudnn_convolution *conv, const mf_cudnn_way *list, uint32_t count, bool tf32,
                     uint32_t room, uint64_t most, uint64_t own_at, double time, mf_cost *cost)
{
    enum { FIRST = 3, NEXT_TO_NOTHING = 1 << 20, WIDE = 3 };
    uint64_t least = UINT64_MAX;
    uint32_t smallest = UINT32_MAX, taken = 0;
    bool sensible = false;
    uint32_t places = conv->wide ? MF_MOST_METHODS : MF_PLAIN_METHODS;
    room *= conv->wide ? WIDE : 1;
    if (room > places - 1 - cost->method_count)
        room = places - 1 - cost->method_count;
    uint32_t first = conv->wide ? room : FIRST;
    for (uint32_t i = 0; i < count; i++) {
        if (!is_way(conv, &list[i], tf32))
            continue;
        sensible = sensible || list[i].workspace_bytes <= most;
        if (smallest == UINT32_MAX || (list[smallest].workspace_bytes > NEXT_TO_NOTHING &&
                                       list[i].workspace_bytes < list[smallest].workspace_bytes))
            smallest = i;
    }
    for (uint32_t i = 0; i < count && taken < room; i++) {
        bool last = list[i].engine == LAST_RESORT && least != UINT64_MAX;
        if (!is_way(conv, &list[i], tf32) || (sensible && list[i].workspace_bytes > most) ||
            ((last || taken >= first) && least <= NEXT_TO_NOTHING) ||
            (taken >= first && list[i].workspace_bytes >= least) || (room > 1 && taken + 1 == room && i < smallest))
            continue;
        least = list[i].workspace_bytes < least ? list[i].workspace_bytes : least;
        add_way(cost, &list[i], conv->bias, own_at, time * (1 + 0.02 * taken) * (last ? LAST_TIMES : 1));
        taken++;
    }
}

/* Operations a microsecond of the library's engines. With few input channels they pad them, and come to little. */
static double rate_of(const mf_cudnn_convolution *conv, bool tf32)
{
    bool few = conv->in_channels <= 4 && conv->type == MF_CUDNN_F32;
    if (tf32)
        return few ? 1e7 : 2e8;
    return conv->type != MF_CUDNN_F32 ? 4e8 : few ? 4e6 : 3e7;
}

/* Microseconds of the library's first way. */
static double time_of(const mf_cudnn_convolution *conv, double flops, double bytes, bool apart, bool tf32)
{
    double time = 4 + bytes / 3e6 + flops / rate_of(conv, tf32);
    if (tf32)
        return time;
    if (apart) /* own kernels are several times as fast: bench/cuda.md */
        return 10 * time;
    bool few = conv->direction == MF_CUDNN_FORWARD && conv->type != MF_CUDNN_F32 && conv->in_channels <= 4;
    return !few ? time : conv->bias ? 6 * time : 1.3 * time;
}

/* The quickest engines for S9 in float32 want five times their operands (bench/cuda.md, engines). */
static uint64_t most_workspace(double bytes)
{
    enum { SPARE_BYTES = 64 << 20, TIMES_OPERANDS = 6 };
    return SPARE_BYTES + TIMES_OPERANDS * (uint64_t)bytes;
}

void cuda_convolution_menu(const mf_cudnn_convolution *conv, const mf_cudnn_way *list, uint32_t count, uint64_t own_at,
                           double flops, double bytes, bool apart, mf_cost *cost)
{
    uint64_t most = most_workspace(bytes);
    double time = time_of(conv, flops, bytes, apart, false), quick = time_of(conv, flops, bytes, apart, true);
    /* float32 with a bias has four lists, each a part of the places: inside or apart, with TF32 or not */
    bool wide = conv->type == MF_CUDNN_F32, bias_before = cost->method_count > 0;
    add_ways(conv, list, count, false,
             conv->bias            ? (wide ? 1 : 3)
             : wide && bias_before ? 3
                                   : 4,
             most, own_at, time, cost);
    add_ways(conv, list, count, true, 2, most, own_at, quick, cost);
}

void cuda_convolution_loose_menu(const mf_cudnn_convolution *conv, const mf_cudnn_way *list, uint32_t count,
                                 uint64_t own_at, double flops, double bytes, bool apart, mf_cost *cost)
{
    enum { LOOSE = 2, LOOSE_WIDE = 6 };
    uint64_t most = most_workspace(bytes);
    for (unsigned tf32 = 0; tf32 < 2; tf32++) {
        double time = time_of(conv, flops, bytes, apart, tf32);
        uint32_t taken = 0, before = 0;
        for (uint32_t i = 0; i < count; i++) {
            before += is_way(conv, &list[i], tf32);
            if (!is_loose(conv, &list[i], tf32) || list[i].workspace_bytes > most ||
                taken == (conv->wide ? LOOSE_WIDE : LOOSE) || cost->method_count + 1 >= MF_MOST_METHODS)
                continue;
            bool last = list[i].engine == LAST_RESORT;
            add_way(cost, &list[i], conv->bias, own_at, time * (0.99 + 0.02 * before) * (last ? LAST_TIMES : 1));
            taken++;
        }
    }
}

/* The bias in the library's own sum; only where all have one type. */
static bool bias_may_be_inside(const mf_graph *graph, const mf_op *op)
{
    return op->kind == MF_OP_CONV && op->in_count > 2 && op->in[2] != MF_NONE &&
           graph->tensors[op->in[2]].dtype == graph->tensors[op->in[0]].dtype &&
           graph->tensors[op->in[2]].offset % 16 == 0;
}

/* Do so many tiles, made one on each multiprocessor at a time, take a second round in which less than half of them have
 * work? With one round cuDNN's own choice is as it should be, and with three what sharing costs is more than it saves (on
 * 12 of 15 drawn shapes, docs/bench/cuda.md). */
static bool are_uneven(int64_t tiles, int multiprocessors)
{
    return tiles > multiprocessors && 2 * tiles < 3 * (int64_t)multiprocessors;
}

/* How many tiles of 128 x 128 there are is known where channels are whole tiles; between, the kernel decides what one
 * reaches over: by the filters' numbers and by what their channels are filled up to. */
static bool ends_uneven(const mf_cudnn_convolution *conv, const mf_cudnn_way *way, int multiprocessors)
{
    enum { SIDE = 128, TILE = SIDE * SIDE };
    int64_t positions = 1;
    for (uint32_t i = 0; i < conv->dims; i++)
        positions *= conv->kernel[i];
    int64_t numbers = conv->in_channels * conv->out_channels * positions;
    int64_t in = (conv->in_channels + SIDE - 1) / SIDE, out = (conv->out_channels + SIDE - 1) / SIDE;
    return way->tile_bytes == TILE * sizeof(float) && are_uneven((numbers + TILE - 1) / TILE, multiprocessors) &&
           are_uneven(in * out * positions, multiprocessors);
}

/* cuDNN's first for the gradient of 512 x 512 filters of 3 x 3 over 32 x 64 x 64 makes 144 whole tiles on the 132
 * multiprocessors of an H200 and takes 1,245 us; its second shares their sums and takes 792 (bench/cuda.md). Sharing costs
 * about a sixth, and more where sums are short. */
bool cuda_convolution_prefer(const mf_cudnn_convolution *conv, mf_cudnn_way *list, uint32_t count, int multiprocessors)
{
    enum { LEAST_DEPTH = 1 << 14 };
    int64_t depth = conv->batch;
    bool moved = false;
    for (uint32_t i = 0; i < conv->dims; i++)
        depth *= conv->out[i];
    if (conv->direction != MF_CUDNN_WEIGHTS || conv->groups != 1 || conv->wide || multiprocessors <= 0 ||
        depth < LEAST_DEPTH)
        return false;
    for (int tf32 = 0; tf32 < 2; tf32++) {
        uint32_t first = 0, other;
        while (first < count && !is_way(conv, &list[first], tf32))
            first++;
        if (first == count || list[first].shares || !ends_uneven(conv, &list[first], multiprocessors))
            continue;
        const mf_cudnn_way whole = list[first];
        for (other = first + 1; other < count; other++)
            if (is_way(conv, &list[other], tf32) && list[other].engine == whole.engine && list[other].shares &&
                list[other].tile_bytes == whole.tile_bytes)
                break;
        if (other == count)
            continue;
        const mf_cudnn_way shared = list[other];
        memmove(&list[first + 1], &list[first], (other - first) * sizeof *list);
        list[first] = shared;
        moved = true;
    }
    return moved;
}

static memfit_status ask(mf_cudnn *dnn, const mf_cuda_card *card, const mf_cudnn_convolution *conv, mf_cudnn_way *list,
                         uint32_t *count, memfit_error *err)
{
    mf_cuda_call state;
    memfit_status status = mf_cuda_enter(card, &state, err);
    if (status)
        return status;
    status = mf_cudnn_ask(dnn, conv, list, MOST_WAYS, count, err);
    mf_cuda_leave(card, state);
    if (status == MEMFIT_OK)
        cuda_convolution_prefer(conv, list, *count, card->multiprocessors);
    return status;
}

typedef void (*add_menu)(const mf_cudnn_convolution *conv, const mf_cudnn_way *list, uint32_t count, uint64_t own_at,
                         double flops, double bytes, bool apart, mf_cost *cost);

/* With the bias inside where that may be, and without. What was asked before costs nothing. */
static memfit_status add_lists(mf_cudnn *dnn, const mf_cuda_card *card, const mf_graph *graph, const mf_op *o,
                               mf_cudnn_convolution *conv, uint64_t own_at, add_menu add, mf_cost *cost,
                               memfit_error *err)
{
    mf_cudnn_way list[MOST_WAYS];
    uint32_t count = 0;
    double flops, bytes;
    bool apart = cuda_window_is_apart(graph, o);
    mf_op_cost(graph, o, &flops, &bytes);
    if (bias_may_be_inside(graph, o)) {
        conv->bias = true;
        memfit_status status = ask(dnn, card, conv, list, &count, err);
        if (status)
            return status;
        add(conv, list, count, own_at, flops, bytes, apart, cost);
        conv->bias = false;
        const mf_tensor *y = &graph->tensors[o->out[0]]; /* read and written once more without it */
        bytes += 2 * (double)mf_shape_count(&y->shape) * (double)mf_dtype_bytes(y->dtype);
    }
    memfit_status status = ask(dnn, card, conv, list, &count, err);
    if (status == MEMFIT_OK)
        add(conv, list, count, own_at, flops, bytes, apart, cost);
    return status;
}

memfit_status cuda_convolution_methods(mf_cudnn *dnn, const mf_cuda_card *card, const cuda_engine *engine,
                                       const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    mf_cudnn_convolution conv;
    cuda_spec around;
    const mf_op *o = &graph->ops[op];
    if (!cuda_convolution_of(graph, o, &conv))
        return MEMFIT_OK;
    conv.wide = engine->wide_menus;
    memfit_status status = cuda_spec_make_around(engine->host, graph, op, engine->block, false, &around, err);
    if (status)
        return status;
    uint64_t own_at = align256(around.workspace_bytes);
    cuda_spec_end(&around);
    status = add_lists(dnn, card, graph, o, &conv, own_at, cuda_convolution_menu, cost, err);
    if (status == MEMFIT_OK && engine->loose_menus) /* behind the others, whose places stay theirs */
        status = add_lists(dnn, card, graph, o, &conv, own_at, cuda_convolution_loose_menu, cost, err);
    return status;
}

/* ---- running ---- */

static memfit_status run_convolution(cuda_call *call, void *const *in, void *const *out, void *workspace,
                                     mf_stream stream, memfit_error *err)
{
    convolution_call *c = (convolution_call *)call;
    mf_cuda_call state;
    char *filters = (char *)workspace + c->filter_at, *own = (char *)workspace + c->own_at;
    memfit_status status = mf_cuda_enter(&c->card, &state, err);
    if (status)
        return status;
    void *x = c->kind == MF_OP_CONV_GRAD_DATA ? out[0] : in[0];
    void *y = c->kind == MF_OP_CONV ? out[0] : c->kind == MF_OP_CONV_GRAD_DATA ? in[0] : in[1];
    status = mf_cudnn_run(c->plan, x, filters, y, c->bias_inside ? in[2] : NULL, own, (void *)(uintptr_t)stream, err);
    mf_cuda_leave(&c->card, state);
    return status;
}

static void release_convolution(cuda_call *call)
{
    convolution_call *c = (convolution_call *)call;
    if (c->plan)
        mf_cudnn_plan_end(c->plan);
    mf_host_free(c->host, c, sizeof *c);
}

memfit_status cuda_convolution_call(mf_cudnn *dnn, const mf_cuda_card *card, const memfit_host *host,
                                    const mf_graph *graph, uint32_t op, unsigned block, const mf_method *method,
                                    cuda_call **call, memfit_error *err)
{
    mf_cudnn_convolution conv;
    mf_cudnn_way way = {0};
    cuda_spec around;
    memcpy(&way.engine, method->id + 8, sizeof way.engine);
    memcpy(&way.settings, method->id + 16, sizeof way.settings);
    if (!cuda_convolution_of(graph, &graph->ops[op], &conv))
        return mf_fail(err, MEMFIT_INTERNAL, "a convolution's method is of another operation");
    conv.bias = method->id[2] != 0;
    memfit_status status = cuda_spec_make_around(host, graph, op, block, conv.bias, &around, err);
    if (status)
        return status;
    convolution_call *c = mf_host_zalloc(host, sizeof *c);
    if (c)
        *c = (convolution_call){.base = {.run = run_convolution, .release = release_convolution},
                                .host = host,
                                .card = *card,
                                .kind = graph->ops[op].kind,
                                .bias_inside = conv.bias,
                                .filter_at = around.filter_at,
                                .own_at = align256(around.workspace_bytes)};
    cuda_spec_end(&around);
    if (!c)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a convolution");
    mf_cuda_call state;
    status = mf_cuda_enter(card, &state, err);
    if (status == MEMFIT_OK) {
        status = mf_cudnn_plan(dnn, &conv, &way, &c->plan, err);
        mf_cuda_leave(card, state);
    }
    if (status == MEMFIT_OK && c->own_at + mf_cudnn_plan_workspace(c->plan) > method->workspace_bytes)
        status = mf_fail(err, MEMFIT_DEVICE, "cuDNN needs more workspace than when the plan was made");
    if (status) {
        release_convolution(&c->base);
        return status;
    }
    *call = &c->base;
    return MEMFIT_OK;
}
