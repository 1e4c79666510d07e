/*
 * bench_methods.c: own kernels that a menu has beside the library's, on shapes drawn at random among those for which a
 * plan takes the own one. Every method of the menu is run on the card and timed. Prints a line a shape and, for each
 * family, on how many shapes the own kernel was the fastest.
 *
 *     bench_methods list                                     names of the families
 *     bench_methods [SHAPES] [SEED] [FAMILY...]
 *     bench_methods compile ARCH SHAPES SEED [FAMILY...]     needs no card: compiles own kernels into MEMFIT_CACHE
 *
 * Depthwise convolutions (forward, data, weights) in bfloat16, gradients of filters over 3 channels in float32, beside
 * the library's float32 and beside its TF32, convolutions of one cell to at most 4 channels in bfloat16; products over
 * one very long axis, summed over it, spread along it or outer, in float32 (TF32 beside them) and bfloat16.
 */
#include "bench_draw.h"
#include "engines.h"

#include "graph/build.h"
#include "ops/cuda/cuda_spec.h"
#include "test.h"

static const uint64_t ROOM = UINT64_C(6) << 30;
static mf_backend *cuda;
static test_memory memory;
static bool compiles; /* and runs nothing */

typedef struct drawn {
    mf_op_kind kind;
    mf_dtype dtype;
    int64_t n, h, w, in, out, kernel, stride, groups;
} drawn;

static drawn draw_depthwise(mf_dtype dtype)
{
    static const int64_t kernels[] = {3, 3, 5}, sizes[] = {14, 28, 56, 57, 112};
    drawn d = {.dtype = dtype};
    d.kind = (const mf_op_kind[]){MF_OP_CONV, MF_OP_CONV_GRAD_DATA, MF_OP_CONV_GRAD_WEIGHTS}[below(3)];
    d.n = 8 + below(56);
    d.h = d.w = sizes[below(5)];
    d.in = d.out = d.groups = 8 * (1 + below(48));
    d.kernel = kernels[below(3)];
    d.stride = 1 + below(2);
    return d;
}

static drawn draw_filters(mf_dtype dtype)
{
    static const int64_t kernels[] = {3, 3, 5, 7}, sizes[] = {64, 128, 224, 256, 511};
    drawn d = {.kind = MF_OP_CONV_GRAD_WEIGHTS, .dtype = dtype, .in = 3, .groups = 1};
    d.n = 8 + below(56);
    d.h = d.w = sizes[below(5)];
    d.out = 8 * (2 + below(9));
    d.kernel = kernels[below(4)];
    d.stride = 1 + below(2);
    return d;
}

static drawn draw_few_results(mf_dtype dtype)
{
    static const int64_t sizes[] = {32, 56, 64, 112, 128, 200, 256};
    drawn d = {.dtype = dtype, .kernel = 1, .stride = 1, .groups = 1};
    d.kind = (const mf_op_kind[]){MF_OP_CONV, MF_OP_CONV_GRAD_DATA, MF_OP_CONV_GRAD_WEIGHTS}[below(3)];
    d.n = 4 + below(29);
    d.h = d.w = sizes[below(7)];
    d.in = 8 * (2 + below(31));
    d.out = 1 + below(4);
    return d;
}

/* Few rows (n), few columns (out), a long axis (in), all of it at most 2^28 numbers: as in thin.cu, `form` 0 sums over
 * the axis, 1 spreads along it, 2 is an outer product. */
static drawn draw_thin(mf_dtype dtype, int64_t form)
{
    drawn d = {.kind = MF_OP_MATMUL, .dtype = dtype, .kernel = form};
    d.in = (int64_t)(64 + below(64)) << (10 + below(8));
    int64_t most = (INT64_C(1) << 28) / d.in;
    d.n = 1 + below(most < 256 ? (uint32_t)most : 256);
    d.out = 1 + below(16);
    return d;
}

static drawn draw_summed(mf_dtype dtype)
{
    return draw_thin(dtype, 0);
}

static drawn draw_spread(mf_dtype dtype)
{
    return draw_thin(dtype, 1);
}

static drawn draw_outer(mf_dtype dtype)
{
    return draw_thin(dtype, 2);
}

typedef struct family {
    const char *name;
    mf_dtype dtype;
    bool tf32;
    drawn (*draw)(mf_dtype dtype);
} family;

static const family families[] = {
    {"thin summed float32", MF_F32, true, draw_summed},
    {"thin summed bfloat16", MF_BF16, false, draw_summed},
    {"thin outer float32", MF_F32, true, draw_outer},
    {"thin outer bfloat16", MF_BF16, false, draw_outer},
    {"filters over 3 channels float32", MF_F32, false, draw_filters},
    {"filters over 3 channels beside TF32", MF_F32, true, draw_filters},
    {"thin spread float32", MF_F32, true, draw_spread},
    {"thin spread bfloat16", MF_BF16, false, draw_spread},
    {"depthwise bfloat16", MF_BF16, false, draw_depthwise},
    {"one cell to few channels bfloat16", MF_BF16, false, draw_few_results},
};

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

typedef struct prepared {
    mf_kernel *kernel;
    mf_operands operands;
} prepared;

static memfit_status run_prepared(void *what, mf_stream stream, memfit_error *err)
{
    prepared *p = what;
    return cuda->table->run(p->kernel, &p->operands, (const mf_run_scalars *)(const void *)memory.base, stream, err);
}

/* Microseconds of one run; negative: it failed, or has no room. */
static double time_method(const mf_graph *g, uint32_t op, const mf_method *method, double least)
{
    memfit_error err = {0};
    const mf_op *o = &g->ops[op];
    uint64_t at = 4096;
    void *pointers[8] = {0};
    prepared p = {0};
    for (uint32_t i = 0; i < o->in_count + o->out_count; i++) {
        uint32_t t = i < o->in_count ? o->in[i] : o->out[i - o->in_count];
        pointers[i] = t == MF_NONE ? NULL : memory.base + at;
        at += t == MF_NONE
                  ? 0
                  : (mf_shape_count(&g->tensors[t].shape) * mf_dtype_bytes(g->tensors[t].dtype) + 511) / 256 * 256;
    }
    if (at + method->workspace_bytes > ROOM || cuda->table->prepare(cuda, g, op, method, &p.kernel, &err) != MEMFIT_OK)
        return -1;
    p.operands = (mf_operands){.in = pointers, .out = pointers + o->in_count, .workspace = memory.base + at};
    double us = bench_time(memory.device, run_prepared, &p, least, &err);
    cuda->table->release(cuda, p.kernel);
    return us;
}

/* Would a plan on a card take the own kernel? Of a product this says what cuda_query does with cuBLASLt's times; of
 * convolutions the libraries' times are not known here, so that all of them are compiled. */
static bool may_be_taken(const mf_graph *g, uint32_t op, const mf_method *own)
{
    cuda_spec spec;
    memfit_error err = {0};
    double flops, bytes;
    if (g->ops[op].kind != MF_OP_MATMUL)
        return true;
    if (cuda_spec_make(NULL, g, op, CUDA_BLOCK, &spec, &err) != MEMFIT_OK)
        return false;
    bool streams = spec.streams;
    cuda_spec_end(&spec);
    mf_op_cost(g, &g->ops[op], &flops, &bytes);
    return streams && own->time_us < bytes / 1e6;
}

static int compile_own(const mf_graph *g, uint32_t op, const mf_cost *cost)
{
    memfit_error err = {0};
    mf_kernel *kernel = NULL;
    const mf_method *own = &cost->methods[cost->method_count - 1]; /* the last of every menu */
    if (own->id[0] != CUDA_OWN || !may_be_taken(g, op, own))
        return -1;
    if (cuda->table->prepare(cuda, g, op, own, &kernel, &err) != MEMFIT_OK)
        return printf("%s\n", err.message), 0;
    cuda->table->release(cuda, kernel);
    return 1;
}

/* Every method that the rules allow; -1: a plan takes the library's way, or there is no room. */
static int time_menu(const drawn *d, const mf_graph *g, uint32_t op, const mf_cost *cost, mf_method_rules rules)
{
    uint32_t chosen = mf_cost_choose(cost, rules, UINT64_MAX), best = chosen;
    double times[MF_MOST_METHODS];
    if (cost->methods[chosen].id[0] != CUDA_OWN || cost->method_count < 2)
        return -1;
    printf("%-18s %3lldx%3lldx%3lldx%3lld %lldx%lld/%lld -> %3lld", mf_kind_name(d->kind), (long long)d->n,
           (long long)d->h, (long long)d->w, (long long)d->in, (long long)d->kernel, (long long)d->kernel,
           (long long)d->stride, (long long)d->out);
    times[chosen] = time_method(g, op, &cost->methods[chosen], -1);
    printf("  *own %.0f us", times[chosen]);
    for (uint32_t i = 0; i < cost->method_count; i++) {
        if (i == chosen || (!rules.allow_changed && cost->methods[i].numerics == MF_CHANGED))
            continue;
        times[i] = time_method(g, op, &cost->methods[i], times[best]);
        printf("  %.0f", times[i]);
        best = times[i] > 0 && times[i] < times[best] ? i : best;
    }
    int wins = times[chosen] <= 0 ? -1 : times[chosen] <= times[best];
    printf("%s\n", wins == 1 ? "" : wins ? "  no room" : "  SLOWER");
    return wins;
}

/* Is the own kernel the fastest of those that a plan may take? -1: this shape is no case. */
static int compare(const family *f)
{
    memfit_error err = {0};
    drawn d = f->draw(f->dtype);
    mf_graph *g = graph_of(&d, &err);
    mf_cost cost = {0};
    if (!g)
        return -1;
    uint32_t op = 0;
    while (op < g->op_count && g->ops[op].kind != d.kind)
        op++;
    int wins = -1;
    if (cuda->table->query(cuda, g, op, &cost, &err) == MEMFIT_OK && cost.method_count)
        wins = compiles ? compile_own(g, op, &cost)
                        : time_menu(&d, g, op, &cost, (mf_method_rules){.allow_changed = f->tf32});
    mf_graph_destroy(g);
    return wins;
}

static void bench(const family *f, int shapes)
{
    int wins = 0, shown = 0;
    for (int tries = 0; shown < shapes && tries < 400 * shapes; tries++) { /* some are taken in a corner alone */
        int won = compare(f);
        wins += won > 0;
        shown += won >= 0;
        fflush(stdout);
    }
    if (!compiles)
        printf("%s: chosen and faster on %d of %d\n%s: done\n", f->name, wins, shown, f->name);
    fflush(stdout);
}

static memfit_status begin(int arch, memfit_error *err)
{
    memfit_device *device = NULL;
    cuda_engine *engine = NULL;
    if (compiles) {
        memfit_status status = compile_engine_create(&arch, 1, &engine, err);
        return status ? status : mf_cuda_create_on(NULL, engine, &cuda, err);
    }
    memfit_status status = memfit_device_open("cuda", NULL, &device, err);
    status = status ? status : card_memory(&memory, device, ROOM, err);
    status = status ? status : memory.fill(&memory, 0, 0x3c, ROOM, err);
    status = status ? status : memory.fill(&memory, 0, 0, 4096, err);
    return status ? status : mf_cuda_create(NULL, device, &cuda, err);
}

int main(int argc, char **argv)
{
    memfit_error err = {0};
    if (argc > 1 && strcmp(argv[1], "list") == 0) {
        for (size_t i = 0; i < sizeof families / sizeof *families; i++)
            puts(families[i].name);
        return 0;
    }
    compiles = argc > 2 && strcmp(argv[1], "compile") == 0;
    int arch = compiles ? atoi(argv[2]) : 0;
    argc -= compiles ? 2 : 0;
    argv += compiles ? 2 : 0;
    int shapes = argc > 1 ? atoi(argv[1]) : 20;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 7;
    if (begin(arch, &err) != MEMFIT_OK) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    int named = argc > 3 ? argc - 3 : 1; /* in their order */
    for (int k = 0; k < named; k++)
        for (size_t i = 0; i < sizeof families / sizeof *families; i++)
            if (argc <= 3 || strcmp(argv[3 + k], families[i].name) == 0) {
                random_state = seed + 1000 * i;
                bench(&families[i], shapes);
            }
    cuda->table->destroy(cuda);
    return 0;
}
