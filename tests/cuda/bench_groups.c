/*
 * bench_groups.c: groups of the CUDA backend against their members run one behind the other, on shapes drawn at random
 * among those of which a plan makes a group. Prints a line a group and, for each family and direction, on how many
 * shapes the group is the faster.
 *
 *     bench_groups list                                     names of the families
 *     bench_groups [SHAPES] [SEED] [FAMILY...]
 *     bench_groups compile ARCH SHAPES SEED [FAMILY...]     needs no card: compiles their kernels into MEMFIT_CACHE
 *
 * Both sides are what a step has: recorded once, launched as a whole, members by the methods that the planner takes
 * from their menus. What passes between members has storage on their side; all tensors lie where they would not be in
 * the cache.
 */
#include "bench_draw.h"
#include "engines.h"

#include "graph/build.h"
#include "test.h"

#include <math.h>

enum { MOST_MEMBERS = 32 };

static const uint64_t ROOM = UINT64_C(6) << 30;
static mf_backend *cuda;
static test_memory memory;
static bool compiles; /* and runs nothing */

/* ---- what is drawn ---- */

typedef struct family {
    const char *name;
    mf_dtype dtype;
    bool tf32;
    bool whole; /* one operation in place of several, made by a pass: all of the graph is timed, with it and without */
    uint32_t (*build)(mf_build *b, mf_dtype dtype, uint32_t *wanted, uint32_t *count);
} family;

static uint32_t shaped(mf_build *b, const char *name, mf_dtype dtype, uint32_t rank, const int64_t *dims)
{
    return mf_g_input(b, name, dtype, mf_shape_make(rank, dims));
}

/* The first layers of a network. The image is nobody's result, so only filters and bias want a gradient. */
static uint32_t conv_pool(mf_build *b, mf_dtype dtype, uint32_t *wanted, uint32_t *count)
{
    static const int64_t most_kernel[] = {5, 4, 3, 3};
    int64_t n = 4 + below(61), h = 32 + below(481), w = 32 + below(481), in = 1 + below(4), out = 8 << below(5);
    int64_t kernel = 2 + below((uint32_t)most_kernel[in - 1] - 1), stride = 1 + below(2);
    mf_window c = {.dims = 2, .kernel = {kernel, kernel}, .stride = {stride, stride}, .dilation = {1, 1}, .groups = 1};
    mf_window p = {.dims = 2, .kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}, .groups = 1};
    if (!mf_window_pad(&c, below(2) ? "same" : "valid", (int64_t[]){h, w}))
        return MF_NONE;
    uint32_t x = shaped(b, "x", dtype, 4, (int64_t[]){n, h, w, in});
    wanted[0] = shaped(b, "f", dtype, 4, (int64_t[]){kernel, kernel, in, out});
    wanted[1] = shaped(b, "bias", dtype, 1, &out);
    *count = 2;
    printf("%3lldx%3lldx%3lldx%lld %lldx%lld/%lld -> %3lld", (long long)n, (long long)h, (long long)w, (long long)in,
           (long long)kernel, (long long)kernel, (long long)stride, (long long)out);
    return mf_g_pool_max(b, mf_g_unary(b, MF_UNARY_RELU, 0, 0, mf_g_conv(b, x, wanted[0], wanted[1], &c)), &p);
}

static uint32_t images(mf_build *b, const char *name, mf_dtype dtype, int64_t dims[4])
{
    if (dims[0] == 0) {
        static const int64_t sizes[] = {7, 14, 28, 56, 57, 112};
        dims[0] = 8 + below(121);
        dims[1] = dims[2] = sizes[below(6)];
        dims[3] = 8 * (1 + below(64));
        printf("%3lldx%3lldx%3lldx%3lld", (long long)dims[0], (long long)dims[1], (long long)dims[2],
               (long long)dims[3]);
    }
    return shaped(b, name, dtype, 4, dims);
}

/* The end of a residual block: normalization, sum, activation. */
static uint32_t residual(mf_build *b, mf_dtype dtype, uint32_t *wanted, uint32_t *count)
{
    int64_t dims[4] = {0};
    uint32_t out[3];
    wanted[0] = images(b, "x", dtype, dims);
    wanted[1] = images(b, "shortcut", dtype, dims);
    wanted[2] = shaped(b, "gamma", MF_F32, 1, &dims[3]);
    wanted[3] = shaped(b, "beta", MF_F32, 1, &dims[3]);
    *count = 4;
    mf_attr attr = {.norm = {.epsilon = 1e-3}};
    mf_g_op(b, MF_OP_BATCH_NORM, &attr, 3, (uint32_t[]){wanted[0], wanted[2], wanted[3]}, 3, NULL, out);
    return mf_g_unary(b, MF_UNARY_RELU, 0, 0, mf_g_binary(b, MF_ADD, out[0], wanted[1]));
}

/* Pointwise work behind each other. */
static uint32_t chain(mf_build *b, mf_dtype dtype, uint32_t *wanted, uint32_t *count)
{
    int64_t dims[4] = {0};
    wanted[0] = images(b, "x", dtype, dims);
    uint32_t bias = shaped(b, "bias", dtype, 1, &dims[3]);
    *count = 1;
    uint32_t y = mf_g_unary(b, below(2) ? MF_UNARY_GELU : MF_UNARY_SILU, 0, 0, mf_g_binary(b, MF_ADD, wanted[0], bias));
    return mf_g_unary(b, MF_UNARY_AFFINE, 0.5, 0.25, mf_g_binary(b, MF_MUL, y, wanted[0]));
}

/* A dense layer's activation; backwards the bias's gradient is a sum of its slopes, one kernel with them where there is
 * much to read: half of the shapes are that large. */
static uint32_t dense_end(mf_build *b, mf_dtype dtype, uint32_t *wanted, uint32_t *count)
{
    int64_t dims[] = {4 + below(61), 64 << (below(5) + 3 * below(2)), 64 * (1 + below(48))};
    printf("%3lldx%4lldx%4lld", (long long)dims[0], (long long)dims[1], (long long)dims[2]);
    wanted[0] = shaped(b, "x", dtype, 3, dims);
    wanted[1] = shaped(b, "bias", dtype, 1, &dims[2]);
    *count = 2;
    return mf_g_unary(b, below(2) ? MF_UNARY_GELU : MF_UNARY_SILU, 0, 0, mf_g_binary(b, MF_ADD, wanted[0], wanted[1]));
}

/* A layer normalization beside a path around it, and the bias before it. */
static uint32_t around_norm(mf_build *b, mf_dtype dtype, uint32_t *wanted, uint32_t *count)
{
    int64_t dims[] = {2 + below(63), 49 << below(5), 32 * (2 + below(47))};
    uint32_t out[3];
    printf("%3lldx%4lldx%4lld", (long long)dims[0], (long long)dims[1], (long long)dims[2]);
    wanted[0] = shaped(b, "x", dtype, 3, dims);
    wanted[1] = shaped(b, "bias", dtype, 1, &dims[2]);
    wanted[2] = shaped(b, "gamma", MF_F32, 1, &dims[2]);
    wanted[3] = shaped(b, "beta", MF_F32, 1, &dims[2]);
    *count = 4;
    uint32_t y = mf_g_binary(b, MF_ADD, wanted[0], wanted[1]);
    mf_attr attr = {.norm = {.epsilon = 1e-3, .axes = 1}};
    mf_g_op(b, MF_OP_LAYER_NORM, &attr, 3, (uint32_t[]){y, wanted[2], wanted[3]}, 3, NULL, out);
    return mf_g_binary(b, MF_ADD, y, out[0]);
}

/* Maximum pooling with the activation that stood before it. */
static uint32_t pooled(mf_build *b, mf_dtype dtype, uint32_t *wanted, uint32_t *count)
{
    int64_t dims[4] = {0}, kernel = 2 + below(2), stride = 2 + below(2);
    mf_window p = {.dims = 2, .kernel = {kernel, kernel}, .stride = {stride, stride}, .dilation = {1, 1}, .groups = 1};
    wanted[0] = images(b, "x", dtype, dims);
    *count = 1;
    printf(" %lldx%lld/%lld", (long long)kernel, (long long)kernel, (long long)stride);
    return mf_g_pool_max(b, mf_g_unary(b, MF_UNARY_RELU, 0, 0, wanted[0]), &p);
}

static uint32_t attention(mf_build *b, mf_dtype dtype, uint32_t *wanted, uint32_t *count)
{
    int64_t dims[] = {1 + below(16), 1 + below(16), 32 * (1 + below(40)), 8 * (1 + below(8))};
    bool causal = below(2);
    printf("%2lldx%2lldx%4lldx%2lld%s", (long long)dims[0], (long long)dims[1], (long long)dims[2], (long long)dims[3],
           causal ? " causal" : "       ");
    for (int i = 0; i < 3; i++)
        wanted[i] = shaped(b, (const char *[]){"q", "k", "v"}[i], dtype, 4, dims);
    *count = 3;
    uint32_t p = mf_g_matmul(b, wanted[0], wanted[1], MF_NONE, false, true, 1 / sqrt((double)dims[3]));
    p = causal ? mf_g_softmax_causal(b, p) : mf_g_softmax(b, p, 3, false);
    return mf_g_matmul(b, p, wanted[2], MF_NONE, false, false, 1);
}

static const family families[] = {
    {"conv+pool float32", MF_F32, false, false, conv_pool},
    {"conv+pool bfloat16", MF_BF16, false, false, conv_pool},
    {"conv+pool beside TF32", MF_F32, true, false, conv_pool},
    {"residual bfloat16", MF_BF16, false, false, residual},
    {"residual float32", MF_F32, false, false, residual},
    {"pointwise bfloat16", MF_BF16, false, false, chain},
    {"pointwise float32", MF_F32, false, false, chain},
    {"dense end bfloat16", MF_BF16, false, false, dense_end},
    {"layer norm bfloat16", MF_BF16, false, false, around_norm},
    {"layer norm float32", MF_F32, false, false, around_norm},
    {"pool+activation bfloat16", MF_BF16, false, false, pooled},
    {"pool+activation float32", MF_F32, false, false, pooled},
    {"attention bfloat16", MF_BF16, false, true, attention},
};

static mf_graph *draw_graph(const family *f, bool grouped, memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    uint32_t roots[10], wanted[4], count = 0;
    mf_build_begin(&b, NULL, err);
    uint32_t y = f->build(&b, f->dtype, wanted, &count);
    if (y == MF_NONE)
        return NULL;
    uint32_t dy = mf_g_input(&b, "dy", f->dtype, mf_g_shape(&b, y));
    mf_g_backward(&b, 1, &y, &dy, count, wanted, roots + 1);
    roots[0] = y;
    if (mf_build_end_keeping(&b, count + 1, roots, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, count + 1);
    for (uint32_t i = 0; g->outputs && i <= count; i++)
        g->outputs[g->output_count++] = roots[i];
    return !grouped || mf_graph_group(g, &cuda->groups, err) == MEMFIT_OK ? g : NULL;
}

/* ---- time ---- */

typedef struct line {
    uint32_t count;
    mf_kernel *kernels[MOST_MEMBERS];
    void *at[MOST_MEMBERS][32];
    mf_operands operands[MOST_MEMBERS];
    uint64_t place[256]; /* by tensor */
    uint64_t end;        /* of what tensors and workspaces take */
} line;

static void place_tensors(const mf_graph *g, line *l)
{
    l->end = 4096; /* scalars come first */
    for (uint32_t t = 0; t < g->tensor_count && t < 256; t++) {
        l->place[t] = l->end;
        l->end += (mf_shape_count(&g->tensors[t].shape) * mf_dtype_bytes(g->tensors[t].dtype) + 511) / 256 * 256;
    }
}

static bool add_kernel(line *l, const mf_graph *g, uint32_t op, mf_method_rules rules)
{
    memfit_error err = {0};
    const mf_op *o = &g->ops[op];
    mf_cost cost = {0};
    uint32_t n = l->count, operands = o->in_count + o->out_count;
    if (n == MOST_MEMBERS || operands > 32 || l->end > ROOM || cuda->table->query(cuda, g, op, &cost, &err) ||
        !cost.supported)
        return false;
    if (compiles) { /* what the card will take is not known: all of them */
        for (uint32_t i = 0; i < cost.method_count; i++)
            if (cuda->table->prepare(cuda, g, op, &cost.methods[i], &l->kernels[n], &err) == MEMFIT_OK)
                cuda->table->release(cuda, l->kernels[n]);
        return true;
    }
    const mf_method *method = &cost.methods[mf_cost_choose(&cost, rules, ROOM - l->end)];
    if (l->end + method->workspace_bytes > ROOM ||
        cuda->table->prepare(cuda, g, op, method, &l->kernels[n], &err) != MEMFIT_OK)
        return false;
    for (uint32_t i = 0; i < operands; i++) {
        uint32_t t = i < o->in_count ? o->in[i] : o->out[i - o->in_count];
        l->at[n][i] = t == MF_NONE ? NULL : memory.base + l->place[t];
    }
    l->operands[n] = (mf_operands){.in = l->at[n], .out = l->at[n] + o->in_count, .workspace = memory.base + l->end};
    l->count++;
    return true;
}

static memfit_status run_line(void *what, mf_stream stream, memfit_error *err)
{
    line *l = what;
    memfit_status status = MEMFIT_OK;
    const mf_run_scalars *scalars = (const mf_run_scalars *)(const void *)memory.base;
    for (uint32_t i = 0; i < l->count && status == MEMFIT_OK; i++)
        status = cuda->table->run(l->kernels[i], &l->operands[i], scalars, stream, err);
    return status;
}

/* Microseconds of one run; negative: it failed. */
static double time_line(line *l)
{
    memfit_error err = {0};
    double us = bench_time(memory.device, run_line, l, 0, &err);
    if (us < 0)
        printf("  (%s)", err.message);
    for (uint32_t i = 0; i < l->count; i++)
        cuda->table->release(cuda, l->kernels[i]);
    return us;
}

/* All operations of a graph; microseconds, negative: they did not run. */
static double time_ops(const mf_graph *g, uint32_t first, uint32_t count, mf_method_rules rules)
{
    line l = {0};
    bool runs = true;
    place_tensors(g, &l);
    for (uint32_t i = first; i < first + count && runs; i++)
        runs = g->ops[i].kind == MF_OP_INPUT || add_kernel(&l, g, i, rules);
    double us = l.count ? time_line(&l) : compiles ? 0 : -1;
    return runs ? us : -1;
}

/* One way against the other; 1: faster, 0: slower, -1: one of them did not run. */
static int say(uint32_t count, double one, double apart)
{
    if (one < 0 || apart < 0)
        return printf("  no room"), -1;
    printf("  %u members %.1f us, group %.1f us, %.2f x%s", count, apart, one, apart / one,
           one <= apart ? "" : " SLOWER");
    return one <= apart;
}

static int compare(const mf_graph *g, uint32_t op, mf_method_rules rules)
{
    const mf_graph *inner = &g->ops[op].attr.group->inner;
    double one = time_ops(g, op, 1, rules);
    return say(inner->op_count, one, one < 0 ? -1 : time_ops(inner, 0, inner->op_count, rules));
}

/* A whole graph with what a pass made of it against the same without. -2: the pass made nothing. */
static int compare_whole(const family *f, uint64_t state, const mf_graph *g, mf_method_rules rules)
{
    memfit_error err = {0};
    random_state = state;
    printf(" =");
    mf_graph *plain = draw_graph(f, false, &err);
    bool made = plain && plain->op_count != g->op_count;
    int wins =
        made ? say(plain->op_count, time_ops(g, 0, g->op_count, rules), time_ops(plain, 0, plain->op_count, rules))
             : -2;
    if (plain)
        mf_graph_destroy(plain);
    return wins;
}

static bool is_backward(const mf_group *group)
{
    for (uint32_t i = 0; i < group->inner.op_count; i++)
        if (strstr(mf_kind_name(group->inner.ops[i].kind), "grad"))
            return true;
    return false;
}

static void bench(const family *f, int shapes)
{
    int won[2] = {0}, shown[2] = {0};
    for (int tries = 0; (shown[0] < shapes || shown[1] < shapes) && tries < 40 * shapes; tries++) {
        memfit_error err = {0};
        printf("%-22s ", f->name);
        uint64_t state = random_state;
        mf_graph *g = draw_graph(f, true, &err);
        bool any = false;
        if (g && f->whole) {
            int wins = compare_whole(f, state, g, (mf_method_rules){.allow_changed = f->tf32});
            won[1] += wins > 0;
            shown[1] += wins >= 0;
            shown[0] = shapes; /* both ways at once */
            any = wins > -2;
        }
        for (uint32_t i = 0; g && !f->whole && i < g->op_count; i++) {
            if (g->ops[i].kind != MF_OP_GROUP || shown[is_backward(g->ops[i].attr.group)] == shapes)
                continue;
            int side = is_backward(g->ops[i].attr.group);
            int wins = compare(g, i, (mf_method_rules){.allow_changed = f->tf32});
            won[side] += wins > 0;
            shown[side] += wins >= 0;
            any = true;
        }
        printf("%s\n", any ? "" : g ? "  no group" : err.message);
        fflush(stdout);
        if (g)
            mf_graph_destroy(g);
    }
    for (int side = 0; side < 2; side++)
        if (shown[side] && !compiles && !(f->whole && side == 0))
            printf("%s %s: chosen and faster on %d of %d\n", f->name,
                   f->whole ? "both ways"
                   : side   ? "gradient"
                            : "forward",
                   won[side], shown[side]);
    printf("%s: done\n", f->name);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    memfit_error err = {0};
    memfit_device *device = NULL;
    cuda_engine *engine = NULL;
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
    if (compiles) {
        if (compile_engine_create(&arch, 1, &engine, &err) != MEMFIT_OK ||
            mf_cuda_create_on(NULL, engine, &cuda, &err) != MEMFIT_OK) {
            printf("skipped: %s\n", err.message);
            return 77;
        }
    } else if (memfit_device_open("cuda", NULL, &device, &err) != MEMFIT_OK ||
               card_memory(&memory, device, ROOM, &err) != MEMFIT_OK ||
               memory.fill(&memory, 0, 0x3c, ROOM, &err) != MEMFIT_OK ||
               memory.fill(&memory, 0, 0, 4096, &err) != MEMFIT_OK ||
               mf_cuda_create(NULL, device, &cuda, &err) != MEMFIT_OK) {
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
