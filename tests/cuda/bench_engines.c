/*
 * bench_engines.c: every way that cuDNN's own lists have for a convolution, timed on the card, in the library's order.
 *
 *     bench_engines [--ask JSON] < CONVOLUTIONS
 *     bench_engines list                                  names of the families below
 *     bench_engines [--ask JSON] SHAPES SEED [FAMILY...]
 *
 * A line of CONVOLUTIONS: forward|data|weights bf16|f16|f32 BATCH HEIGHT WIDTH IN OUT KERNEL STRIDE PAD BIAS TIMES NAME: of the
 * convolution whose input, output or filters the direction makes; TIMES is how often the network has it. A line a way: its
 * place in the list, engine, settings, workspace, microseconds. --ask: a described card, nothing is run.
 *
 * With SHAPES: gradients of filters drawn at random among those for which memfit puts another way before cuDNN's first
 * (cuda_convolution_prefer): both are timed. Prints a line a shape and, for each family, on how many of them it is the faster.
 */
#include "bench_draw.h"
#include "engines.h"

#include "base/os.h"
#include "device/cuda_card.h"
#include "device/cudnn.h"
#include "device/device.h"
#include "ops/cuda/convolutions.h"
#include "test.h"

enum { MOST = 96, RUNS = 3, ROUNDS = 2 };

static const uint64_t ROOM = UINT64_C(4) << 30;
static mf_cudnn *dnn;
static mf_device *device; /* NULL: only asked */
static mf_cuda_card card;
static test_memory memory;

typedef struct job {
    mf_cudnn_convolution conv;
    int times;
    char name[40];
} job;

static bool read_job(const char *text, job *j)
{
    char direction[12], type[8];
    long long n, h, w, in, out, kernel, stride, pad;
    int bias;
    *j = (job){.times = 1};
    if (sscanf(text, "%11s %7s %lld %lld %lld %lld %lld %lld %lld %lld %d %d %39s", direction, type, &n, &h, &w, &in,
               &out, &kernel, &stride, &pad, &bias, &j->times, j->name) != 13)
        return false;
    mf_cudnn_convolution *c = &j->conv;
    *c = (mf_cudnn_convolution){
        .batch = n, .in_channels = in, .out_channels = out, .groups = 1, .dims = 2, .bias = bias, .wide = true};
    c->direction = *direction == 'f' ? MF_CUDNN_FORWARD : *direction == 'd' ? MF_CUDNN_DATA : MF_CUDNN_WEIGHTS;
    c->type = *type == 'b' ? MF_CUDNN_BF16 : strcmp(type, "f16") == 0 ? MF_CUDNN_F16 : MF_CUDNN_F32;
    for (int i = 0; i < 2; i++) {
        c->in[i] = i ? w : h;
        c->kernel[i] = kernel;
        c->stride[i] = stride;
        c->dilation[i] = 1;
        c->before[i] = c->after[i] = pad;
        c->out[i] = (c->in[i] + 2 * pad - kernel) / stride + 1;
    }
    return true;
}

/* Microseconds; negative: it was refused. */
static double time_way(const mf_cudnn_convolution *c, const mf_cudnn_way *way, double least)
{
    memfit_error err = {0};
    mf_cudnn_plan_made *plan = NULL;
    uint64_t wide = c->type == MF_CUDNN_F32 ? 4 : 2, gap = 1 << 20;
    uint64_t x = (uint64_t)(c->batch * c->in[0] * c->in[1] * c->in_channels) * wide + gap;
    uint64_t y = (uint64_t)(c->batch * c->out[0] * c->out[1] * c->out_channels) * wide + gap;
    uint64_t f = (uint64_t)(c->kernel[0] * c->kernel[1] * c->in_channels * c->out_channels) * wide + gap;
    uint64_t at[] = {0, x & ~UINT64_C(255), (x + y) & ~UINT64_C(255), (x + y + f) & ~UINT64_C(255)}, bias = at[3];
    uint64_t work = bias + gap;
    if (work + way->workspace_bytes > ROOM || mf_cudnn_plan(dnn, c, way, &plan, &err) != MEMFIT_OK)
        return -1;
    double best = -1;
    char *base = memory.base;
    for (int round = 0; round <= ROUNDS; round++) {
        int runs = round ? RUNS : 1;
        memfit_status status = device->table->stream_sync(device, 0, &err);
        double start = seconds();
        for (int i = 0; i < runs && !status; i++)
            status = mf_cudnn_run(plan, base + at[0], base + at[2], base + at[1], c->bias ? base + bias : NULL,
                                  base + work, NULL, &err);
        status = status ? status : device->table->stream_sync(device, 0, &err);
        double us = (seconds() - start) * 1e6 / runs;
        if (status)
            break;
        best = round && (best < 0 || us < best) ? us : best;
        if (round && least > 0 && us > 1.5 * least + 30) { /* its place is known */
            best = us;
            break;
        }
    }
    mf_cudnn_plan_end(plan);
    return best;
}

static void bench(const job *j, double *first, double *quickest)
{
    memfit_error err = {0};
    mf_cudnn_way list[MOST];
    uint32_t count = 0;
    double least = -1, ranked = -1;
    if (mf_cudnn_ask(dnn, &j->conv, list, MOST, &count, &err) != MEMFIT_OK)
        printf("%s: %s\n", j->name, err.message);
    for (uint32_t i = 0; i < count; i++) {
        bool usable = list[i].deterministic && !list[i].compiled && (j->conv.type != MF_CUDNN_F32 || list[i].tf32);
        double us = device && usable ? time_way(&j->conv, &list[i], least) : -1;
        printf("%-24s %2u engine %3lld settings %016llx %10.1f MiB %s%s %9.1f us\n", j->name, i,
               (long long)list[i].engine, (unsigned long long)list[i].settings,
               (double)list[i].workspace_bytes / (1 << 20), list[i].deterministic ? "" : "nondeterministic ",
               list[i].compiled ? "compiled" : "", us);
        ranked = ranked < 0 ? us : ranked;
        least = us > 0 && (least < 0 || us < least) ? us : least;
    }
    double flops = 2.0 * (double)(j->conv.batch * j->conv.out[0] * j->conv.out[1] * j->conv.in_channels *
                                  j->conv.out_channels * j->conv.kernel[0] * j->conv.kernel[1]);
    printf("%-24s x %d: first %.1f, quickest %.1f us, %.0f TFLOP/s\n", j->name, j->times, ranked, least,
           least > 0 ? flops / least * 1e-6 : 0);
    fflush(stdout);
    *first += ranked > 0 ? ranked * j->times : 0;
    *quickest += least > 0 ? least * j->times : 0;
}

/* ---- what memfit prefers ---- */

static const struct {
    const char *name;
    mf_cudnn_type type;
} families[] = {{"shared tiles bfloat16", MF_CUDNN_BF16}, {"shared tiles TF32", MF_CUDNN_F32}};
enum { FAMILIES = sizeof families / sizeof *families, TRIES = 400, H200 = 132 };

static mf_cudnn_convolution draw_filters(mf_cudnn_type type)
{
    static const int64_t kernels[] = {1, 3, 3, 5}, sizes[] = {14, 16, 28, 32, 56, 64};
    int64_t side = sizes[below(6)], kernel = kernels[below(4)];
    mf_cudnn_convolution c = {.direction = MF_CUDNN_WEIGHTS, .type = type, .groups = 1, .dims = 2};
    c.batch = 8 + below(121);
    c.in_channels = 64 * (1 + below(20));
    c.out_channels = 64 * (1 + below(20));
    for (int i = 0; i < 2; i++) {
        c.in[i] = c.out[i] = side;
        c.kernel[i] = kernel;
        c.stride[i] = c.dilation[i] = 1;
        c.before[i] = c.after[i] = kernel / 2;
    }
    return c;
}

static uint32_t first_of(const mf_cudnn_way *list, uint32_t count, bool tf32)
{
    uint32_t i = 0;
    while (i < count && !(list[i].deterministic && !list[i].compiled && list[i].tf32 == tf32))
        i++;
    return i;
}

/* 1: faster, 0: slower, -1: no case. */
static int compare_first(const mf_cudnn_convolution *c)
{
    memfit_error err = {0};
    mf_cudnn_way list[MOST], theirs;
    uint32_t count = 0, first;
    bool tf32 = c->type == MF_CUDNN_F32;
    if (mf_cudnn_ask(dnn, c, list, MOST, &count, &err) != MEMFIT_OK)
        return -1;
    if ((first = first_of(list, count, tf32)) == count)
        return -1;
    theirs = list[first];
    if (!cuda_convolution_prefer(c, list, count, device ? card.multiprocessors : H200))
        return -1;
    const mf_cudnn_way *ours = &list[first_of(list, count, tf32)];
    if (ours->settings == theirs.settings)
        return -1;
    double a = device ? time_way(c, ours, 0) : 1, b = device ? time_way(c, &theirs, 0) : 1;
    if (a < 0 || b < 0)
        return -1;
    printf("%3lldx%2lldx%2lldx%4lld %lldx%lld -> %4lld  engine %lld, tile %u KiB: shared %.1f us, whole %.1f us, %.2f "
           "x%s\n",
           (long long)c->batch, (long long)c->in[0], (long long)c->in[1], (long long)c->in_channels,
           (long long)c->kernel[0], (long long)c->kernel[1], (long long)c->out_channels, (long long)ours->engine,
           ours->tile_bytes >> 10, a, b, b / a, a <= b ? "" : " SLOWER");
    fflush(stdout);
    return a <= b;
}

static void compare_family(int family, int shapes)
{
    int won = 0, shown = 0;
    for (int tries = 0; shown < shapes && tries < TRIES * shapes; tries++) {
        mf_cudnn_convolution c = draw_filters(families[family].type);
        int wins = compare_first(&c);
        won += wins > 0;
        shown += wins >= 0;
    }
    printf("%s: chosen and faster on %d of %d\n%s: done\n", families[family].name, won, shown, families[family].name);
    fflush(stdout);
}

static void compare_drawn(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 7;
    for (int k = 2; k < (argc > 2 ? argc : 3); k++)
        for (int i = 0; i < FAMILIES; i++)
            if (argc <= 2 || strcmp(argv[k], families[i].name) == 0) {
                random_state = seed + 1000 * (uint64_t)i;
                compare_family(i, atoi(argv[0]));
            }
}

static void time_lists(void)
{
    char line[300];
    double first = 0, quickest = 0;
    while (fgets(line, sizeof line, stdin)) {
        job j;
        if (read_job(line, &j))
            bench(&j, &first, &quickest);
    }
    printf("all: first of each list %.2f, quickest %.2f ms\n", first * 1e-3, quickest * 1e-3);
}

int main(int argc, char **argv)
{
    memfit_error err = {0};
    char json[4096];
    mf_cuda_call call = {0};
    if (argc > 1 && strcmp(argv[1], "list") == 0) {
        for (int i = 0; i < FAMILIES; i++)
            puts(families[i].name);
        return 0;
    }
    bool asks = argc > 2 && strcmp(argv[1], "--ask") == 0 && mf_os_read_text(argv[2], json, sizeof json);
    memfit_status status = mf_cudnn_open(mf_finder_default(), NULL, &dnn, &err);
    if (asks)
        status = status ? status : mf_cudnn_describe(dnn, json, strlen(json), &err);
    else {
        status = status ? status : memfit_device_open("cuda", NULL, &device, &err);
        status = status ? status : card_memory(&memory, device, ROOM, &err);
        status = status ? status : mf_cuda_card_of(device, &card, &err);
        status = status ? status : mf_cuda_enter(&card, &call, &err);
        status = status ? status : memory.fill(&memory, 0, 0x3c, ROOM, &err);
        status = status ? status : mf_cudnn_take(dnn, &err);
    }
    if (status) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    int begin = asks ? 3 : 1;
    if (argc > begin)
        compare_drawn(argc - begin, argv + begin);
    else
        time_lists();
    mf_cudnn_close(dnn);
    if (device)
        mf_cuda_leave(&card, call);
    return 0;
}
