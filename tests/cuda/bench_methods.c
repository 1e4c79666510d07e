/*
 * bench_methods.c: own kernels against the library's, on shapes drawn at random: every method of a menu is run on the
 * card and timed. Prints a line a shape and how often the planner's choice was the fastest.
 *
 *     bench_methods [SHAPES] [SEED] [FIRST FAMILY] [LAST FAMILY]
 *
 * Depthwise convolutions (forward, data, weights) in bfloat16, gradients of filters over 3 channels in float32,
 * convolutions of one cell to at most 4 channels (forward, data, weights) in bfloat16; products over one very long axis
 * in float32 (TF32 beside them) and bfloat16.
 */
#include "bench_draw.h"
#include "engines.h"

#include "device/device.h"
#include "graph/build.h"
#include "test.h"

enum { RUNS = 12 };

static const uint64_t ROOM = UINT64_C(6) << 30;
static mf_backend *cuda;
static test_memory memory;

typedef struct drawn {
    mf_op_kind kind;
    mf_dtype dtype;
    int64_t n, h, w, in, out, kernel, stride, groups;
} drawn;

static drawn draw(bool depthwise)
{
    static const int64_t kernels[] = {3, 3, 5, 7}, sizes[] = {14, 28, 56, 57, 112}, large[] = {64, 128, 224, 256, 511};
    static const mf_op_kind kinds[] = {MF_OP_CONV, MF_OP_CONV_GRAD_DATA, MF_OP_CONV_GRAD_WEIGHTS};
    drawn d = {.kind = depthwise ? kinds[below(3)] : MF_OP_CONV_GRAD_WEIGHTS, .dtype = depthwise ? MF_BF16 : MF_F32};
    d.n = 8 + below(56);
    d.h = d.w = depthwise ? sizes[below(5)] : large[below(5)];
    d.in = depthwise ? 8 * (1 + below(48)) : 3;
    d.groups = depthwise ? d.in : 1;
    d.out = depthwise ? d.in : 8 * (2 + below(9));
    d.kernel = kernels[below(depthwise ? 3 : 4)];
    d.stride = 1 + below(2);
    return d;
}

static drawn draw_few_results(void)
{
    static const int64_t sizes[] = {32, 56, 64, 112, 128, 200, 256};
    drawn d = {.dtype = MF_BF16, .kernel = 1, .stride = 1, .groups = 1};
    d.kind = (const mf_op_kind[]){MF_OP_CONV, MF_OP_CONV_GRAD_DATA, MF_OP_CONV_GRAD_WEIGHTS}[below(3)];
    d.n = 4 + below(29);
    d.h = d.w = sizes[below(7)];
    d.in = 8 * (2 + below(31));
    d.out = 1 + below(4);
    return d;
}

/* Few rows (n), few columns (out), a long axis (in): summed over it, spread along it, or an outer product. */
static drawn draw_thin(mf_dtype dtype)
{
    drawn d = {.kind = MF_OP_MATMUL, .dtype = dtype, .n = 1 + below(256), .out = 1 + below(16)};
    d.in = (int64_t)(64 + below(960)) << 10;
    d.kernel = below(3);
    return d;
}

static mf_graph *thin_graph(const drawn *d, memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    bool ta = d->kernel == 2, tb = d->kernel == 1;
    mf_build_begin(&b, NULL, err);
    uint32_t x = mf_g_input(&b, "x", d->dtype, mf_shape_make(2, (int64_t[]){d->n, tb ? d->out : d->in}));
    int64_t rows = ta ? d->n : d->in;
    uint32_t w = mf_g_input(&b, "w", d->dtype, mf_shape_make(2, (int64_t[]){rows, d->out}));
    uint32_t roots[] = {x, w, mf_g_matmul(&b, x, w, MF_NONE, ta, tb, 1)};
    return mf_build_end_keeping(&b, 3, roots, &g) == MEMFIT_OK ? g : NULL;
}

static mf_graph *graph_of(const drawn *d, memfit_error *err)
{
    if (d->kind == MF_OP_MATMUL)
        return thin_graph(d, err);
    mf_build b;
    mf_graph *g = NULL;
    mf_window w = {.dims = 2,
                   .kernel = {d->kernel, d->kernel},
                   .stride = {d->stride, d->stride},
                   .dilation = {1, 1},
                   .groups = d->groups};
    if (!mf_window_pad(&w, "same", (int64_t[]){d->h, d->w}))
        return NULL;
    mf_build_begin(&b, NULL, err);
    uint32_t x = mf_g_input(&b, "x", d->dtype, mf_shape_make(4, (int64_t[]){d->n, d->h, d->w, d->in}));
    uint32_t f =
        mf_g_input(&b, "f", d->dtype, mf_shape_make(4, (int64_t[]){d->kernel, d->kernel, d->in / d->groups, d->out}));
    uint32_t y = mf_g_conv(&b, x, f, MF_NONE, &w), dy = mf_g_input(&b, "dy", d->dtype, mf_g_shape(&b, y)), d2[2];
    mf_g_backward(&b, 1, &y, &dy, 2, (uint32_t[]){x, f}, d2);
    uint32_t roots[] = {x, f, y, dy, d2[0], d2[1]};
    return mf_build_end_keeping(&b, 6, roots, &g) == MEMFIT_OK ? g : NULL;
}

/* Microseconds of one run, by RUNS in a row, or by one where that is far from `least`; negative: it failed. */
static double time_method(const mf_graph *g, uint32_t op, const mf_method *method, double least)
{
    memfit_error err = {0};
    mf_kernel *kernel = NULL;
    const mf_op *o = &g->ops[op];
    uint64_t at = 4096;
    void *pointers[8] = {0};
    double best = -1;
    char one;
    for (uint32_t i = 0; i < o->in_count + o->out_count; i++) {
        uint32_t t = i < o->in_count ? o->in[i] : o->out[i - o->in_count];
        pointers[i] = t == MF_NONE ? NULL : memory.base + at;
        at += t == MF_NONE
                  ? 0
                  : (mf_shape_count(&g->tensors[t].shape) * mf_dtype_bytes(g->tensors[t].dtype) + 511) / 256 * 256;
    }
    if (at + method->workspace_bytes > ROOM || cuda->table->prepare(cuda, g, op, method, &kernel, &err) != MEMFIT_OK)
        return -1;
    mf_operands operands = {.in = pointers, .out = pointers + o->in_count, .workspace = memory.base + at};
    const mf_run_scalars *scalars = (const mf_run_scalars *)(const void *)memory.base;
    for (int round = 0; round < 5; round++) {
        double start = seconds();
        memfit_status status = MEMFIT_OK;
        int runs = round < 2 ? 1 : RUNS; /* the first one warms up */
        for (int i = 0; i < runs && status == MEMFIT_OK; i++)
            status = cuda->table->run(kernel, &operands, scalars, 0, &err);
        if (status || memory.down(&memory, &one, 0, 1, &err))
            break;
        double us = (seconds() - start) * 1e6 / runs;
        best = round && (best < 0 || us < best) ? us : best;
        if (round == 1 && least > 0 && us > 4 * least + 200)
            break;
    }
    cuda->table->release(cuda, kernel);
    return best;
}

/* Does the planner's choice win? -1: what was drawn does not fit the memory there is for it. */
static int compare(const drawn *d)
{
    memfit_error err = {0};
    mf_graph *g = graph_of(d, &err);
    mf_cost cost = {0};
    if (!g)
        return -1;
    uint32_t op = 0;
    while (op < g->op_count && g->ops[op].kind != d->kind)
        op++;
    int wins = 0;
    if (cuda->table->query(cuda, g, op, &cost, &err) == MEMFIT_OK && cost.method_count) {
        uint32_t chosen = mf_cost_choose(&cost, (mf_method_rules){.allow_changed = true}, UINT64_MAX), best = 0;
        double times[MF_MOST_METHODS];
        printf("%-18s %3lldx%3lldx%3lldx%3lld %lldx%lld/%lld -> %3lld", mf_kind_name(d->kind), (long long)d->n,
               (long long)d->h, (long long)d->w, (long long)d->in, (long long)d->kernel, (long long)d->kernel,
               (long long)d->stride, (long long)d->out);
        for (uint32_t i = 0; i < cost.method_count; i++) {
            times[i] = time_method(g, op, &cost.methods[i], i ? times[best] : -1);
            printf("  %s%s%.0f us", i == chosen ? "*" : "", cost.methods[i].id[0] ? "cudnn " : "own ", times[i]);
            best = times[i] > 0 && (times[best] <= 0 || times[i] < times[best]) ? i : best;
        }
        wins = best == chosen || (times[chosen] > 0 && times[chosen] <= 1.02 * times[best]);
        wins = times[best] <= 0 || times[chosen] <= 0 ? -1 : wins;
        printf("%s\n", wins == 1 ? "" : wins ? "  no room" : "  SLOWER");
    }
    mf_graph_destroy(g);
    return wins;
}

int main(int argc, char **argv)
{
    memfit_error err = {0};
    memfit_device *device = NULL;
    int shapes = argc > 1 ? atoi(argv[1]) : 20;
    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 7;
    if (memfit_device_open("cuda", NULL, &device, &err) != MEMFIT_OK ||
        card_memory(&memory, device, ROOM, &err) != MEMFIT_OK ||
        mf_cuda_create(NULL, device, &cuda, &err) != MEMFIT_OK) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    static const char *const names[] = {"depthwise, bfloat16", "filters over 3 channels, float32",
                                        "one cell to few channels, bfloat16", "thin products, float32",
                                        "thin products, bfloat16"};
    for (int family = argc > 3 ? atoi(argv[3]) : 0; family < 5 && family <= (argc > 4 ? atoi(argv[4]) : 4); family++) {
        int wins = 0;
        for (int i = 0, tries = 0; i < shapes && tries < 4 * shapes; tries++) {
            drawn d = family > 2    ? draw_thin(family == 3 ? MF_F32 : MF_BF16)
                      : family == 2 ? draw_few_results()
                                    : draw(family == 0);
            int won = compare(&d);
            wins += won > 0;
            i += won >= 0;
            fflush(stdout);
        }
        printf("%s: the choice is the fastest on %d of %d shapes\n", names[family], wins, shapes);
    }
    cuda->table->destroy(cuda);
    return 0;
}
