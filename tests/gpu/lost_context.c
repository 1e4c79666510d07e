/*
 * lost_context.c: loses the CUDA context of the process it is preloaded into: a thread waits until the file LOST_WHEN exists,
 * and another LOST_AFTER milliseconds, then runs a kernel that traps in the card's primary context, which training uses. Every
 * later call of the driver in that process fails, as after a fault in a kernel of its own.
 *
 *     LD_PRELOAD=liblost_context.so LOST_WHEN=a.keras memfit train ... --device cuda --checkpoint a.keras
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char trap[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry lose() { trap; ret; }\n";

typedef int (*get_device)(int *, int);
typedef int (*retain)(void **, int);
typedef int (*set_current)(void *);
typedef int (*load)(void **, const void *);
typedef int (*get_function)(void **, void *, const char *);
typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                      void **);
typedef int (*synchronize)(void);

static void *symbol(void *driver, const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "lost_context: the driver has no %s\n", name);
        _exit(99);
    }
    return found;
}

static void lose(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL, *module = NULL, *function = NULL;
    int device = 0;
    if (!driver) {
        fprintf(stderr, "lost_context: %s\n", dlerror());
        _exit(99);
    }
    int codes[6] = {((get_device)symbol(driver, "cuDeviceGet"))(&device, 0),
                    ((retain)symbol(driver, "cuDevicePrimaryCtxRetain"))(&context, device),
                    ((set_current)symbol(driver, "cuCtxSetCurrent"))(context),
                    ((load)symbol(driver, "cuModuleLoadData"))(&module, trap)};
    codes[4] = ((get_function)symbol(driver, "cuModuleGetFunction"))(&function, module, "lose");
    codes[5] = ((launch)symbol(driver, "cuLaunchKernel"))(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    int seen = ((synchronize)symbol(driver, "cuCtxSynchronize"))();
    fprintf(stderr, "lost_context: made %d %d %d %d %d %d, the context says %d\n", codes[0], codes[1], codes[2],
            codes[3], codes[4], codes[5], seen);
}

static void *wait_then_lose(void *unused)
{
    const char *when = getenv("LOST_WHEN"), *after = getenv("LOST_AFTER");
    while (when && access(when, F_OK) != 0)
        usleep(5000);
    usleep(1000 * (after ? (useconds_t)strtoul(after, NULL, 10) : 200));
    lose();
    return unused;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;
    if (getenv("LOST_WHEN") && pthread_create(&thread, NULL, wait_then_lose, NULL) == 0)
        pthread_detach(thread);
}
