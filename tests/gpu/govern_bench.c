/*
 * What the limit costs a call, on a card: the driver's own functions timed one by one.
 *
 *     govern_bench pairs N              a pair of cuMemAlloc and cuMemFree, a call that only passes
 *     govern_bench compare LIBRARY      the same without and with the library and a limit, by turns
 *     govern_bench first LIBRARY        the first request of a process beside 1 to 255 others of its job, who hold a slot and nothing of the card
 *
 * cc -O2 -Isrc -Iinclude tests/gpu/govern_bench.c src/govern/share.c src/govern/facts.c -ldl -lpthread -o govern_bench
 */
#include "govern/facts.h"
#include "govern/share.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 100000, PASSES = 1000 };
static void *driver;
static double times[MOST];

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void tell(const char *what, int n)
{
    qsort(times, (size_t)n, sizeof *times, by_size);
    printf("%s: %.1f ns at best, %.1f in the median, %.1f at 99 %%\n", what, times[0], times[n / 2],
           times[n * 99 / 100]);
}

#define LOOK(name, type) ((type)dlsym(driver, name))

static bool begin(void)
{
    int device;
    void *context;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || LOOK("cuInit", int (*)(unsigned))(0))
        return false;
    if (!dlsym(driver, "cuDevicePrimaryCtxRetain")) /* the small driver of the tests has one context for all */
        return true;
    return LOOK("cuDeviceGet", int (*)(int *, int))(&device, 0) == 0 &&
           LOOK("cuDevicePrimaryCtxRetain", int (*)(void **, int))(&context, device) == 0 &&
           LOOK("cuCtxSetCurrent", int (*)(void *))(context) == 0;
}

static int time_pairs(int n)
{
    int (*alloc)(uint64_t *, size_t) = LOOK("cuMemAlloc_v2", int (*)(uint64_t *, size_t));
    int (*drop)(uint64_t) = LOOK("cuMemFree_v2", int (*)(uint64_t));
    int (*here)(int *) = LOOK("cuCtxGetDevice", int (*)(int *));
    int (*info)(size_t *, size_t *) = LOOK("cuMemGetInfo_v2", int (*)(size_t *, size_t *));
    uint64_t p;
    size_t a, b;
    int device;
    n = n < MOST ? n : MOST;
    for (size_t bytes = 64 << 10; bytes <= 4 << 20; bytes <<= 6) {
        for (int i = 0; i < n; i++) {
            double t = now_ns();
            if (alloc(&p, bytes) || drop(p))
                return 1;
            times[i] = now_ns() - t;
        }
        tell(bytes >> 20 ? "a pair of 4 MiB" : "a pair of 64 KiB", n);
    }
    for (int i = 0; i < n; i++) {
        double t = now_ns();
        for (int k = 0; k < PASSES; k++)
            drop(0);
        times[i] = (now_ns() - t) / PASSES;
    }
    tell("cuMemFree of nothing, which passes", n);
    for (int i = 0; i < n; i++) {
        double t = now_ns();
        for (int k = 0; k < PASSES; k++)
            here(&device);
        times[i] = (now_ns() - t) / PASSES;
    }
    tell("cuCtxGetDevice, which is the driver's own", n);
    for (int i = 0; i < 200; i++) {
        double t = now_ns();
        info(&a, &b);
        times[i] = now_ns() - t;
    }
    tell("cuMemGetInfo", 200);
    return 0;
}

/* In a fresh process, its context made: the first request, and the one after it. */
static int time_one(void)
{
    int (*alloc)(uint64_t *, size_t) = LOOK("cuMemAlloc_v2", int (*)(uint64_t *, size_t));
    uint64_t p;
    double t = now_ns();
    int code = alloc(&p, 4 << 20);
    double u = now_ns();
    code |= alloc(&p, 4 << 20);
    printf(" %.0f/%.0f", (u - t) / 1e3, (now_ns() - u) / 1e3);
    return code;
}

static void run_one(const char *self, const char *mode, const char *library, const char *share, const char *facts)
{
    fflush(stdout);
    if (fork() == 0) {
        if (library) {
            setenv("LD_PRELOAD", library, 1);
            setenv("MEMFIT_GOVERN", share, 1);
            setenv("MEMFIT_GOVERN_FACTS", facts, 1);
        }
        execl(self, self, mode, "2000", (char *)NULL);
        _exit(1);
    }
    wait(NULL);
}

/* By turns, so that both see the card in the same state. */
static void compare(const char *self, const char *library, const char *share, const char *facts)
{
    for (int i = 0; i < 4; i++) {
        printf("---- without\n");
        run_one(self, "pairs", NULL, NULL, NULL);
        printf("---- with a limit\n");
        run_one(self, "pairs", library, share, facts);
    }
}

static void first(const char *self, const char *library, const char *share_path, const char *facts_path);

static int with_a_share(const char *self, const char *mode, const char *library)
{
    char folder[] = "/tmp/memfit-bench-XXXXXX", share_path[64], facts_path[64];
    mf_share share;
    if (!mkdtemp(folder))
        return 1;
    snprintf(share_path, sizeof share_path, "%s/share", folder);
    snprintf(facts_path, sizeof facts_path, "%s/facts", folder);
    mf_facts *facts = mf_facts_create(facts_path);
    if (mf_share_create(share_path, &share) || !facts)
        return 1;
    for (int c = 0; c < MF_SHARE_CARDS; c++)
        share.file->limit_bytes[c] = UINT64_C(64) << 30;
    if (strcmp(mode, "first") == 0)
        first(self, library, share_path, facts_path);
    else
        compare(self, library, share_path, facts_path);
    fflush(stdout);
    unlink(share_path);
    unlink(facts_path);
    return rmdir(folder);
}

static void first(const char *self, const char *library, const char *share_path, const char *facts_path)
{
    printf("first request / the next, us, without a limit:");
    for (int i = 0; i < 3; i++)
        run_one(self, "one", NULL, NULL, NULL);
    for (int n = 1, there = 0; n <= 256; n *= n < 64 ? 4 : 2) {
        for (; there < n - 1; there++)
            if (fork() == 0) {
                mf_share mine;
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (mf_share_open(share_path, &mine) || mf_share_ask(&mine, 0, 1 << 20, 1000000))
                    _exit(1);
                mf_share_take(&mine, 0, 1 << 20, 1 << 20);
                pause();
            }
        usleep(300000);
        printf("\nprocess %d of its job:", n);
        for (int i = 0; i < 3; i++)
            run_one(self, "one", library, share_path, facts_path);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    if (argc == 3 && (strcmp(argv[1], "first") == 0 || strcmp(argv[1], "compare") == 0))
        return with_a_share("/proc/self/exe", argv[1], argv[2]);
    if (argc != 3 || !begin())
        return 2;
    return strcmp(argv[1], "one") == 0 ? time_one() : time_pairs(atoi(argv[2]));
}
