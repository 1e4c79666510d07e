/*
 * bench_pack.c: how low, how fast. bench_pack [SECONDS [capacity | least | steps]]: the limit for what cannot be proven
 * (10); one part of the tables only.
 *
 * Tables: MiniMalloc's hard instances at their capacity, as they are, reversed in time, jittered, then without a
 * capacity; recorded training steps; made-up training steps of 1,000 to 60,000 buffers. Every packing is validated. The
 * folder of instances is MEMFIT_SHARED_DATA; without it only the made-up steps are run.
 */
#include "memfit/pack.h"

#include "pack/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { AS_IT_IS, REVERSED, JITTERED } variant;

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = (*state ^ (*state >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Some lifetimes a little shorter, some sizes a unit less: what was feasible stays so, but every tie is broken anew. */
static void change(memfit_pack_buffer *b, size_t n, variant v, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        if (v == REVERSED) {
            int64_t lower = b[i].lower;
            b[i].lower = -b[i].upper;
            b[i].upper = -lower;
        } else if (v == JITTERED) {
            if (b[i].upper - b[i].lower > 4096 && next_random(&seed) % 4 == 0)
                b[i].upper -= 1024;
            if (b[i].size > 2048 && next_random(&seed) % 4 == 0)
                b[i].size -= 1024;
        }
    }
}

static double pack_one(const char *name, memfit_pack_buffer *b, size_t n, memfit_pack_effort effort, uint64_t capacity,
                       double seconds)
{
    memfit_pack_options o = MEMFIT_PACK_OPTIONS;
    o.effort = effort;
    o.capacity = capacity;
    o.time_limit_us = (uint64_t)(seconds * 1e6);
    memfit_pack_result r = MEMFIT_PACK_RESULT;
    memfit_error err = {0};
    uint64_t by_size = 0, by_birth = 0;
    if (mf_pack_one(NULL, b, n, MF_PACK_BY_SIZE, true, &by_size, &err) ||
        mf_pack_one(NULL, b, n, MF_PACK_BY_BIRTH, true, &by_birth, &err) || memfit_pack(b, n, &o, &r, &err) ||
        memfit_pack_validate(b, n, r.height, NULL, &err)) {
        printf("%-22s %s\n", name, err.message);
        return 0;
    }
    double load = (double)r.max_load;
    printf("%-22s %6zu %12llu %9.5f %9.5f %9.5f  %-10s %-8s %8.3f\n", name, n, (unsigned long long)r.height,
           (double)by_size / load, (double)by_birth / load, (double)r.height / load,
           r.optimal      ? "optimal"
           : r.solved     ? "solved"
           : r.impossible ? "impossible"
                          : "-",
           r.method, r.seconds);
    fflush(stdout);
    return r.seconds;
}

static void title(const char *text)
{
    printf("\n%s\n%-22s %6s %12s %9s %9s %9s  %-10s %-8s %8s\n", text, "", "count", "height", "by size", "by birth",
           "/ load", "", "by", "seconds");
}

static void pack_files(const char *text, const char *const *names, variant v, uint64_t seed, memfit_pack_effort effort,
                       uint64_t capacity, double seconds)
{
    const char *data = getenv("MEMFIT_SHARED_DATA");
    if (!data)
        return;
    title(text);
    double total = 0;
    for (size_t i = 0; names[i]; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", data, names[i]);
        memfit_pack_file *file;
        memfit_error err;
        if (memfit_pack_file_open(&file, path, 0, NULL, &err)) {
            printf("%s\n", err.message);
            continue;
        }
        size_t n;
        memfit_pack_buffer *b = memfit_pack_file_buffers(file, &n);
        change(b, n, v, seed);
        total += pack_one(strrchr(names[i], '/') + 1, b, n, effort, capacity, seconds);
        memfit_pack_file_close(file);
    }
    printf("%-22s %76.3f\n", "total", total);
}

/* A step of `layers` layers: saved activations that nest, gradients that hand over, workspaces, weight gradients, with
 * sizes as in a network that narrows and deepens; some skips. About five buffers a layer. */
static size_t make_step(memfit_pack_buffer *b, size_t layers, uint64_t seed)
{
    size_t n = 0;
    int64_t end = (int64_t)layers * 4;
    for (size_t l = 0; l < layers; l++) {
        int64_t f = (int64_t)l * 2, back = end + ((int64_t)layers - (int64_t)l) * 4;
        uint64_t level = 8 * l / layers;
        uint64_t size = ((UINT64_C(64) << 20) >> level) / (1 + next_random(&seed) % 4) / 512 * 512;
        uint64_t weights = ((UINT64_C(16) << 10) << level) * (1 + next_random(&seed) % 9);
        uint64_t kind = next_random(&seed) % 4;
        if (kind)
            b[n++] = (memfit_pack_buffer){.lower = f, .upper = back + 2, .size = size}; /* saved */
        else
            b[n++] = (memfit_pack_buffer){.lower = f, .upper = f + 3, .size = size}; /* passes by */
        if (next_random(&seed) % 8 == 0)
            b[n++] = (memfit_pack_buffer){.lower = f + 1, .upper = f + 12, .size = size / 2}; /* a skip */
        b[n++] = (memfit_pack_buffer){.lower = f, .upper = f + 1, .size = size / 8 + 512};    /* workspace */
        b[n++] = (memfit_pack_buffer){.lower = back, .upper = back + 5, .size = size};        /* its gradient */
        b[n++] = (memfit_pack_buffer){.lower = back + 1, .upper = back + 3, .size = weights}; /* of the weights */
        b[n++] = (memfit_pack_buffer){.lower = back + 1, .upper = back + 2, .size = size / 4 + 1024};
    }
    return n;
}

int main(int argc, char **argv)
{
    static const char *const hard[] = {"minimalloc/challenging/A.1048576.csv", "minimalloc/challenging/B.1048576.csv",
                                       "minimalloc/challenging/C.1048576.csv", "minimalloc/challenging/D.1048576.csv",
                                       "minimalloc/challenging/E.1048576.csv", "minimalloc/challenging/F.1048576.csv",
                                       "minimalloc/challenging/G.1048576.csv", "minimalloc/challenging/H.1048576.csv",
                                       "minimalloc/challenging/I.1048576.csv", "minimalloc/challenging/J.1048576.csv",
                                       "minimalloc/challenging/K.1048576.csv", NULL};
    static const char *const steps[] = {"lifetimes/somas-resnet50.csv", "lifetimes/iopddl-g1.csv",
                                        "lifetimes/somas-pangu-2.6b.csv", NULL};
    double limit = argc > 1 ? atof(argv[1]) : 10;
    const char *part = argc > 2 ? argv[2] : "";
    if (!*part || strcmp(part, "capacity") == 0) {
        pack_files("MiniMalloc A-K, capacity 1,048,576", hard, AS_IT_IS, 0, MEMFIT_PACK_EXACT, 1048576, limit);
        pack_files("the same, time reversed", hard, REVERSED, 0, MEMFIT_PACK_EXACT, 1048576, limit);
        for (uint64_t seed = 1; seed <= 3; seed++)
            pack_files("the same, jittered", hard, JITTERED, seed, MEMFIT_PACK_EXACT, 1048576, limit);
    }
    if (!*part || strcmp(part, "least") == 0)
        pack_files("MiniMalloc A-K, least height", hard, AS_IT_IS, 0, MEMFIT_PACK_EXACT, 0, limit);
    if (*part && strcmp(part, "steps") != 0)
        return 0;
    pack_files("recorded steps, portfolio", steps, AS_IT_IS, 0, MEMFIT_PACK_PORTFOLIO, 0, 0);
    pack_files("recorded steps, reversed, portfolio", steps, REVERSED, 0, MEMFIT_PACK_PORTFOLIO, 0, 0);
    title("made-up steps, portfolio");
    static const size_t layers[] = {20, 100, 200, 600, 2000, 12000};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        memfit_pack_buffer *b = calloc(layers[i] * 6, sizeof *b);
        if (!b)
            return 1;
        size_t n = make_step(b, layers[i], 100 + i);
        pack_one("step", b, n, MEMFIT_PACK_PORTFOLIO, 0, 0);
        free(b);
    }
    return 0;
}
