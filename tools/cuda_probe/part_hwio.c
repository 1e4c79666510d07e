/* part_hwio.c: filters in HWIO strides against KRSC: numbers and speed. */
#include "convolution.h"

uint64_t random_state;

uint64_t random_next(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float from_bf16(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

double element(const void *p, size_t i, int type)
{
    return type == BF16 ? (double)from_bf16(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static void draw_elements(void *p, size_t n, int type)
{
    for (size_t i = 0; i < n; i++) {
        float f = (float)((double)(random_next() >> 11) * 0x1p-52 - 1.0);
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if (type == BF16) /* cut, not rounded: any bfloat16 is as good an input */
            ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
        else
            ((float *)p)[i] = f;
    }
}

/* The three convolutions in float64: result += product over every (image, output place, filter, tap, channel). */
static void reference(const struct job *j, void *const host[3], double *result)
{
    const struct conv *c = &j->conv;
    const int64_t *xs = j->t[T_X].strides, *ws = j->t[T_W].strides, *ys = j->t[T_Y].strides;
    int p = output_side(c, c->h), q = output_side(c, c->w);
    for (int n = 0; n < c->n; n++)
        for (int a = 0; a < p * q; a++)
            for (int tap = 0; tap < c->r * c->r; tap++) {
                int h = a / q * c->stride - c->pad + tap / c->r, w = a % q * c->stride - c->pad + tap % c->r;
                if (h < 0 || h >= c->h || w < 0 || w >= c->w)
                    continue;
                for (int k = 0; k < c->k; k++)
                    for (int i = 0; i < c->c; i++) {
                        size_t x = (size_t)(n * xs[0] + i * xs[1] + h * xs[2] + w * xs[3]);
                        size_t f = (size_t)(k * ws[0] + i * ws[1] + tap / c->r * ws[2] + tap % c->r * ws[3]);
                        size_t y = (size_t)(n * ys[0] + k * ys[1] + a / q * ys[2] + a % q * ys[3]);
                        if (j->direction == FORWARD)
                            result[y] += element(host[T_X], x, j->type) * element(host[T_W], f, j->type);
                        else if (j->direction == DATA_GRADIENT)
                            result[x] += element(host[T_Y], y, j->type) * element(host[T_W], f, j->type);
                        else
                            result[f] += element(host[T_X], x, j->type) * element(host[T_Y], y, j->type);
                    }
            }
}

/* Runs every plan of a job on fresh inputs; the norm-wise error, or infinity where an element was not written or
 * something was written behind the result. */
static int job_check(struct job *j)
{
    enum { GUARD = 4096 };
    struct runner r;
    void *host[3] = {0};
    int out = j->direction == FORWARD ? T_Y : j->direction == DATA_GRADIENT ? T_X : T_W, result = 0;
    size_t size = j->type == BF16 ? 2 : 4, n = j->t[out].bytes / size;
    double *expected = calloc(n, sizeof *expected);
    unsigned char *got = malloc(j->t[out].bytes + GUARD), *again = malloc(j->t[out].bytes);
    for (int i = T_X; i <= T_Y; i++)
        if ((host[i] = malloc(j->t[i].bytes)) != NULL)
            draw_elements(host[i], j->t[i].bytes / size, j->type);
    if (expected == NULL || got == NULL || again == NULL || host[0] == NULL || host[1] == NULL || host[2] == NULL)
        result = bad("out of memory");
    else if ((result = runner_open(j, &r, 1)) == 0)
        reference(j, host, expected);
    for (int i = T_X; i <= T_Y && result == 0; i++)
        if (i != out && q_cuMemcpyHtoD(r.at[0][i], host[i], j->t[i].bytes) != CUDA_SUCCESS)
            result = bad("cuMemcpyHtoD failed");
    if (result == 0 && q_cuCtxSynchronize() != CUDA_SUCCESS) /* a copy from pageable memory may end after its call */
        result = bad("cuCtxSynchronize failed");
    for (int i = 0; i < j->configs && result == 0; i++) {
        struct config *c = &j->config[i];
        if (!runnable(c))
            continue;
        r.plan = c->plan;
        if (q_cuMemsetD8Async(r.at[0][out], 0xff, j->t[out].bytes + GUARD, card.stream) != CUDA_SUCCESS)
            result = bad("cuMemsetD8Async failed");
        else if (runner_go(&r, 0) != 0)
            snprintf(c->note, sizeof c->note, "%.190s", why);
        else if (q_cuStreamSynchronize(card.stream) != CUDA_SUCCESS)
            result = bad("engine %lld: the context is lost", (long long)c->id);
        else if (q_cuMemcpyDtoH(got, r.at[0][out], j->t[out].bytes + GUARD) != CUDA_SUCCESS)
            result = bad("cuMemcpyDtoH failed");
        else {
            double above = 0, below = 0;
            for (size_t e = 0; e < n; e++) {
                double d = element(got, e, j->type) - expected[e];
                above += d * d;
                below += expected[e] * expected[e];
            }
            c->error = sqrt(above / below); /* NaN where the poison is still there */
            for (size_t g = 0; g < GUARD; g++)
                if (got[j->t[out].bytes + g] != 0xff)
                    c->error = INFINITY;
            if (runner_go(&r, 0) != 0 || q_cuStreamSynchronize(card.stream) != CUDA_SUCCESS ||
                q_cuMemcpyDtoH(again, r.at[0][out], j->t[out].bytes) != CUDA_SUCCESS)
                result = bad("engine %lld: the second run failed", (long long)c->id);
            c->repeats = memcmp(got, again, j->t[out].bytes) == 0;
            if (!(c->error < 1e30))
                c->error = 1e30;
        }
    }
    for (int i = T_X; i <= T_Y; i++)
        free(host[i]);
    free(expected);
    free(got);
    free(again);
    return result;
}

int part_hwio(void)
{
    static const struct conv small[] = {{3, 9, 11, 32, 64, 3, 1, 1},
                                        {2, 14, 14, 64, 128, 1, 2, 0},
                                        {4, 8, 8, 128, 72, 3, 2, 1},
                                        {2, 17, 15, 3, 32, 7, 2, 3}};
    static const struct conv large[] = {{256, 56, 56, 64, 64, 3, 1, 1},
                                        {256, 14, 14, 256, 1024, 1, 1, 0},
                                        {256, 28, 28, 128, 128, 3, 1, 1},
                                        {32, 64, 64, 512, 512, 3, 1, 1}};
    static const double limit[2] = {1e-2, 1e-5}; /* bf16; float32; TF32 below */
    TRY(card_open(1024 * MIB, 1024 * MIB, 1024 * MIB));
    struct job *jobs = calloc(COUNT(small) * 12 + COUNT(large) * 6, sizeof *jobs);
    if (jobs == NULL)
        return bad("out of memory");
    int n = 0, checked;
    for (int s = 0; s < COUNT(small); s++)
        for (int i = 0; i < 12; i++)
            jobs[n++] = (struct job){
                .conv = small[s], .direction = i % 3, .type = i / 3 % 2, .hwio = i / 6, .plans_a = 6, .extra = 1};
    checked = n;
    for (int s = 0; s < COUNT(large); s++)
        for (int i = 0; i < 6; i++)
            jobs[n++] = (struct job){.conv = large[s], .direction = i % 3, .type = BF16, .hwio = i / 3, .plans_a = 5};
    TRY(prepare_all(jobs, n, NULL, 45));
    random_state = (uint64_t)time(NULL);
    text("Numbers against float64 on the host, random inputs (seed %llu), poisoned results, guard behind them.\n\n"
         "| input, filters | type | direction | filters stored | engines run | wrong | other bits again | largest "
         "error | engine of it |\n"
         "|---|---|---|---|---|---|---|---|---|\n",
         (unsigned long long)random_state);
    int wrong_all = 0, empty = 0;
    for (int i = 0; i < checked; i++) {
        struct job *j = &jobs[i];
        char name[100];
        int ran = 0, wrong = 0, unsteady = 0;
        const struct config *worst = NULL;
        if (j->ok)
            TRY(job_check(j));
        for (int k = 0; k < j->configs; k++) {
            const struct config *c = &j->config[k];
            if (c->error < 0)
                continue;
            ran++;
            wrong += !(c->error <= (c->tf32 ? 1e-3 : limit[j->type]));
            unsteady += !c->repeats && !c->nondeterministic;
            if (worst == NULL || c->error > worst->error)
                worst = c;
            row("{\"part\":\"hwio\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"filters\":\"%s\","
                "\"engine\":%lld,"
                "\"knobs\":\"%s\",\"compiled\":%d,\"tf32\":%d,\"error\":%.3g,\"repeats\":%d}",
                job_name(j, name, sizeof name), type_names[j->type], direction_names[j->direction],
                j->hwio ? "HWIO" : "KRSC", (long long)c->id, c->knobs, c->compiled, c->tf32, c->error, c->repeats);
        }
        wrong_all += wrong;
        empty += ran == 0;
        text("| %s | %s | %s | %s | %d | %d | %d | %.1e | %lld%s%s |\n", job_name(j, name, sizeof name),
             type_names[j->type], direction_names[j->direction], j->hwio ? "HWIO" : "KRSC", ran, wrong, unsteady,
             worst != NULL ? worst->error : NAN, worst != NULL ? (long long)worst->id : -1,
             worst != NULL && worst->tf32 ? " TF32" : "", j->error);
    }
    text("\nSpeed, bf16, microseconds: the fastest of the first five of mode A.\n\n| input, filters | direction | KRSC "
         "| "
         "HWIO | HWIO / KRSC |\n|---|---|---|---|---|\n");
    for (int i = checked; i < n; i++)
        if (jobs[i].ok) {
            struct runner r;
            TRY(job_time(&jobs[i], &r, MAX_CONFIGS, now_s() + 20));
        }
    for (int s = 0; s < COUNT(large) * 3; s++) {
        struct job *krsc = &jobs[checked + s / 3 * 6 + s % 3], *hwio = krsc + 3;
        struct config *a = fastest(krsc, NULL, 0), *b = fastest(hwio, NULL, 0);
        char name[100];
        double ua = a != NULL ? a->us : NAN, ub = b != NULL ? b->us : NAN;
        text("| %s | %s | %.1f | %.1f | %.3f |\n", job_name(krsc, name, sizeof name), direction_names[krsc->direction],
             ua, ub, ub / ua);
        row("{\"part\":\"hwio\",\"shape\":\"%s\",\"direction\":\"%s\",\"krsc_us\":%.1f,\"hwio_us\":%.1f}", name,
            direction_names[krsc->direction], a != NULL ? ua : -1, b != NULL ? ub : -1);
    }
    for (int i = 0; i < n; i++)
        job_free(&jobs[i]);
    free(jobs);
    text("\n");
    if (wrong_all > 0 || empty > 0)
        return bad("%d engines gave wrong numbers, %d graphs had no engine that ran", wrong_all, empty);
    return 0;
}
