/* part_fused.c: fused graphs against a convolution and an own kernel behind it. */
#include "convolution.h"
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct separate { /* a plan and the own kernels behind it */
    struct runner run;
    int fuse;
    unsigned vectors, rows, groups; /* of the plan's result: 16-byte pieces, rows of channels, channels / 8 */
    CUdeviceptr other, part, sums;  /* bias or activation; partial sums; sums */
    int kernels_only;
};

static int separate_go(void *context, int i)
{
    struct separate *s = context;
    CUdeviceptr result = s->run.at[i % s->run.sets][s->fuse == DRELU ? T_X : T_Y];
    if (!s->kernels_only)
        TRY(runner_go(&s->run, i));
    if (s->fuse == BIAS_RELU) {
        void *args[] = {&result, &s->other, &s->vectors, &s->groups};
        return launch(K_BIAS_RELU, (s->vectors + 255) / 256, 256, 0, args);
    }
    if (s->fuse == DRELU) {
        void *args[] = {&result, &s->other, &s->vectors};
        return launch(K_DRELU, (s->vectors + 255) / 256, 256, 0, args);
    }
    unsigned blocks = 4 * (unsigned)card.sm_count, n = 16 * s->groups;
    void *args[] = {&result, &s->part, &s->rows, &s->groups}, *args2[] = {&s->part, &s->sums, &blocks, &n};
    TRY(launch(K_STATS, blocks, 256, 256 * 64, args));
    return launch(K_STATS_SUM, (n + 63) / 64, 64, 0, args2);
}

/* Norm-wise difference of the fused plan's result from the separate one's, over at most 4 MiB of it. */
static int fused_difference(struct job *fused, struct runner *f, struct separate *s, double *difference)
{
    enum { MOST = 4 << 20 };
    int which = s->fuse == STATS ? T_SUM : T_OUT;
    size_t bytes = MIN2(fused->t[which].bytes, (size_t)MOST), n = bytes / (s->fuse == STATS ? 4 : 2);
    CUdeviceptr from = s->fuse == STATS ? s->sums : s->run.at[0][s->fuse == DRELU ? T_X : T_Y];
    char *a = malloc(MOST), *b = malloc(MOST);
    if (a == NULL || b == NULL)
        return bad("out of memory");
    s->kernels_only = 0;
    TRY(separate_go(s, 0));
    CU(q_cuStreamSynchronize(card.stream));
    CU(q_cuMemcpyDtoH(a, from, s->fuse == STATS ? bytes * 2 : bytes));
    CU(q_cuMemsetD8Async(f->at[0][which], 0xff, bytes, card.stream));
    TRY(runner_go(f, 0));
    CU(q_cuStreamSynchronize(card.stream));
    CU(q_cuMemcpyDtoH(b, f->at[0][which], bytes));
    double above = 0, below = 0;
    for (size_t i = 0; i < n; i++) {
        double x = element(a, s->fuse == STATS ? i / 8 * 16 + i % 8 : i, s->fuse == STATS ? F32 : BF16);
        double d = element(b, i, s->fuse == STATS ? F32 : BF16) - x;
        above += d * d;
        below += x * x;
    }
    *difference = sqrt(above / below);
    free(a);
    free(b);
    return 0;
}

static int fused_row(struct job *plain, struct job *fused, const char *what, int own_kernel, CUdeviceptr part,
                     CUdeviceptr sums)
{
    struct separate s = {.fuse = own_kernel, .part = part, .sums = sums};
    struct runner f;
    char name[100];
    double conv_us = NAN, kernel_us = NAN, separate_us = NAN, difference = NAN;
    job_name(plain, name, sizeof name);
    if (!plain->ok)
        return bad("%s: %.300s", name, plain->error);
    if (fastest(plain, NULL, 0) == NULL)
        TRY(job_time(plain, &s.run, MAX_CONFIGS, now_s() + 20));
    else
        TRY(runner_open(plain, &s.run, COUNT(s.run.pack)));
    struct config *alone = fastest(plain, NULL, 0), *best = NULL;
    if (alone == NULL)
        return bad("%s: no plan ran", name);
    conv_us = alone->us;
    const struct tensor *t = &plain->t[own_kernel == DRELU ? T_X : T_Y];
    s.run.plan = alone->plan;
    s.vectors = (unsigned)(t->bytes / 16);
    s.groups = (unsigned)t->dims[1] / 8;
    s.rows = s.vectors / s.groups;
    s.other = card.in; /* timing only; where a fused plan runs, its own bias or activation */
    TRY(time_us(separate_go, &s, 0, &separate_us));
    s.kernels_only = 1;
    TRY(time_us(separate_go, &s, 0, &kernel_us));
    if (fused->ok) {
        TRY(job_time(fused, &f, MAX_CONFIGS, now_s() + 20));
        if ((best = fastest(fused, NULL, 0)) != NULL) {
            f.plan = best->plan;
            s.other = f.at[0][own_kernel == DRELU ? T_ACT : T_BIAS];
            if (fused->fuse != BIAS_F32_RELU) /* the own kernel takes a bfloat16 bias */
                TRY(fused_difference(fused, &f, &s, &difference));
        }
    }
    int built = 0;
    for (int i = 0; i < fused->configs; i++)
        built += fused->config[i].us > 0;
    for (int i = 0; i < fused->configs && built == 0 && fused->error[0] == 0; i++)
        snprintf(fused->error, sizeof fused->error, "%.200s", fused->config[i].note);
    struct config *safe = fastest(fused, fits_precompiled, 0);
    text("| %s | %s | %.1f | %.1f | %.1f | %.1f | %.2f | %d, %d | %.1f | %.1e | %s%s%.80s |\n", name, what, conv_us,
         kernel_us, separate_us, best != NULL ? best->us : NAN, best != NULL ? best->us / separate_us : NAN,
         fused->configs, built, safe != NULL ? safe->us : NAN, difference,
         best != NULL && best->compiled ? "compiled " : "",
         best != NULL && best->nondeterministic ? "not deterministic " : "", fused->error);
    row("{\"part\":\"fused\",\"shape\":\"%s\",\"what\":\"%s\",\"conv_us\":%.2f,\"kernel_us\":%.2f,\"separate_us\":%.2f,"
        "\"fused_us\":%.2f,\"listed\":%d,\"ran\":%d,\"engine\":%lld,\"workspace_bytes\":%lld,\"compiled\":%d,"
        "\"deterministic\":%d,\"build_s\":%.2f,\"precompiled_us\":%.2f,\"difference\":%.3g,\"error\":\"%s\"}",
        name, what, conv_us, kernel_us, separate_us, best != NULL ? best->us : -1, fused->configs, built,
        best != NULL ? (long long)best->id : -1, best != NULL ? (long long)best->plan_workspace : -1,
        best != NULL && best->compiled, best != NULL && !best->nondeterministic, best != NULL ? best->build_s : -1,
        safe != NULL ? safe->us : -1, isnan(difference) ? -1 : difference, fused->error);
    if (difference > 2e-2)
        return bad("%s, %s: the fused result differs by %.2e", name, what, difference);
    return 0;
}

/* One shape, in a process of its own: says when its plans are built, and times them when it is told to. */
static int fused_shape(const struct conv *shape, int ready, int go)
{
    static const int kinds[][2] = {{FORWARD, PLAIN}, {DATA_GRADIENT, PLAIN}, {FORWARD, BIAS_RELU},
                                   {FORWARD, STATS}, {DATA_GRADIENT, DRELU}, {FORWARD, BIAS_F32_RELU}};
    static struct job j[COUNT(kinds)];
    TRY(card_open(1536 * MIB, 1536 * MIB, 2048 * MIB));
    CUdeviceptr part, sums;
    CU(q_cuMemAlloc(&part, 64 * MIB));
    CU(q_cuMemAlloc(&sums, MIB));
    struct asker a = {.handle = card.handle};
    double deadline = now_s() + 45;
    for (int i = 0; i < COUNT(kinds); i++) {
        j[i] = (struct job){.conv = *shape, .direction = kinds[i][0], .fuse = kinds[i][1], .type = BF16};
        j[i].plans_a = j[i].plans_b = kinds[i][1] <= BIAS_RELU ? 5 : 3; /* the others are compiled: a second each */
        j[i].extra = 1;
        j[i].ok = now_s() < deadline && job_prepare(&j[i], &a) == 0;
        if (!j[i].ok)
            snprintf(j[i].error, sizeof j[i].error, "%.290s", now_s() < deadline ? why : "not prepared in time");
    }
    char byte = 0;
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 1)
        return bad("the parent process is gone");
    const struct {
        struct job *plain, *fused;
        const char *what;
        int kernel;
    } rows[] = {{&j[0], &j[2], "bias (bf16) + ReLU", BIAS_RELU},
                {&j[0], &j[5], "bias (f32) + ReLU", BIAS_RELU},
                {&j[1], &j[4], "data gradient + dReLU", DRELU},
                {&j[0], &j[3], "statistics", STATS}};
    int failed = 0;
    char first[600] = "";
    for (int k = 0; k < COUNT(rows); k++)
        if (fused_row(rows[k].plain, rows[k].fused, rows[k].what, rows[k].kernel, part, sums) != 0 && failed++ == 0)
            snprintf(first, sizeof first, "%s", why);
    return failed == 0 ? 0 : bad("%.500s", first);
}

/* Engines compiled at run time are compiled one after the other within a process: a process a shape, which build side
 * by side and then time one after the other. */
int part_fused(void)
{
    static const struct conv shapes[] = {{256, 56, 56, 64, 64, 3, 1, 1},   {256, 56, 56, 64, 256, 1, 1, 0},
                                         {256, 28, 28, 128, 128, 3, 1, 1}, {256, 14, 14, 256, 1024, 1, 1, 0},
                                         {256, 7, 7, 512, 512, 3, 1, 1},   {32, 64, 64, 512, 512, 3, 1, 1}};
    enum { SHAPES = COUNT(shapes) };
    int ready[SHAPES][2], go[SHAPES][2], failed = 0;
    pid_t pid[SHAPES];
    char first[600] = "", byte = 0;
    char(*said)[600] = mmap(NULL, sizeof *said * SHAPES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (said == MAP_FAILED)
        return bad("mmap: %s", strerror(errno));
    text("bf16, microseconds; separate: the fastest plain plan and the own kernel behind it, timed together; listed, "
         "ran: "
         "configurations of modes A and B, and those timed.\n\n| input, filters | fusion | convolution | own kernel | "
         "separate | fused | fused / separate | listed, ran | fused, precompiled | difference | notes |\n"
         "|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < SHAPES; i++) {
        if (pipe(ready[i]) != 0 || pipe(go[i]) != 0 || (pid[i] = fork()) < 0)
            return bad("pipe or fork: %s", strerror(errno));
        if (pid[i] == 0) {
            for (int k = 0; k <= i; k++) { /* an end kept open here would hide another child's death from the parent */
                close(ready[k][0]);
                close(go[k][1]);
            }
            int result = fused_shape(&shapes[i], ready[i][1], go[i][0]);
            if (result != 0)
                snprintf(said[i], sizeof said[i], "%s", why);
            fflush(NULL);
            _exit(result == 0 ? 0 : 1);
        }
        close(ready[i][1]);
        close(go[i][0]);
    }
    double deadline = now_s() + 55; /* a late one is timed all the same, while others may still be compiling */
    for (int i = 0; i < SHAPES; i++) {
        struct pollfd end = {.fd = ready[i][0], .events = POLLIN}; /* a child that failed closes its end */
        poll(&end, 1, MAX2(0, (int)(1e3 * (deadline - now_s()))));
    }
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < SHAPES; i++) {
        int status = 0;
        if (write(go[i][1], &byte, 1) < 0 && errno != EPIPE)
            return bad("write: %s", strerror(errno));
        if (waitpid(pid[i], &status, 0) < 0)
            return bad("waitpid: %s", strerror(errno));
        if (status != 0 && failed++ == 0)
            snprintf(first, sizeof first, "%s", said[i][0] != 0 ? said[i] : "a process died");
    }
    return failed == 0 ? 0 : bad("%d of %d shapes failed; the first: %.500s", failed, SHAPES, first);
}
