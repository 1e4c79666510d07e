/*
 * bench_engines.c: every way that cuDNN's own lists have for a convolution, timed on the card, in the library's order.
 *
 *     bench_engines [--ask JSON] < CONVOLUTIONS
 *
 * A line of CONVOLUTIONS: forward|data|weights bf16|f16|f32 BATCH HEIGHT WIDTH IN OUT KERNEL STRIDE PAD BIAS TIMES NAME: of the
 * convolution whose input, output or filters the direction makes; TIMES is how often the network has it. A line a way: its
 * place in the list, engine, settings, workspace, microseconds. --ask: a described card, nothing is run.
 */
#include "bench_draw.h"
#include "engines.h"

#include "base/os.h"
#include "device/cuda_card.h"
#include "device/cudnn.h"
#include "device/device.h"
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

int main(int argc, char **argv)
{
    memfit_error err = {0};
    char line[300], json[4096];
    mf_cuda_call call = {0};
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
    double first = 0, quickest = 0;
    while (fgets(line, sizeof line, stdin)) {
        job j;
        if (read_job(line, &j))
            bench(&j, &first, &quickest);
    }
    printf("all: first of each list %.2f, quickest %.2f ms\n", first * 1e-3, quickest * 1e-3);
    mf_cudnn_close(dnn);
    if (device)
        mf_cuda_leave(&card, call);
    return 0;
}
