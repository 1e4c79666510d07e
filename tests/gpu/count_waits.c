/*
 * count_waits.c: counts how often the process it is preloaded into makes the host wait for the card: the driver's calls that
 * wait, by name, whoever makes them (the program, cuDNN, cuBLASLt), and copies that the driver makes wait because the host's
 * side is not pinned. Queries that never wait are counted too: a loop of them is a wait by another name.
 *
 *     LD_PRELOAD=libcount_waits.so WAITS_INTO=counts.json memfit train ... --device cuda
 *
 * Programs and libraries get the driver's functions by dlsym or from cuGetProcAddress; both give ours for the names below.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Waits; copies without a stream wait too. */
#define PLAIN(X)                                                                                                       \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamSynchronize_ptsz)                                                                                        \
    X(cuEventSynchronize)                                                                                              \
    X(cuCtxSynchronize)                                                                                                \
    X(cuCtxSynchronize_v2)                                                                                             \
    X(cuMemcpy)                                                                                                        \
    X(cuMemcpyHtoD_v2)                                                                                                 \
    X(cuMemcpyDtoH_v2)                                                                                                 \
    X(cuMemcpyDtoD_v2)                                                                                                 \
    X(cuMemFree_v2)                                                                                                    \
    X(cuStreamQuery)                                                                                                   \
    X(cuEventQuery)

typedef int (*any_call)(void *, void *, void *, void *, void *, void *);
typedef void *(*dlsym_call)(void *, const char *);

enum {
#define X(name) of_##name,
    PLAIN(X)
#undef X
        of_copy_in,
    of_copy_out,
    of_count
};
static const char *const names[of_count] = {
#define X(name) #name,
    PLAIN(X)
#undef X
        "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2"};
static any_call real[of_count], ask_pointer;
static unsigned long counts[of_count], unpinned[2];

static void add(unsigned long *count)
{
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

#define X(name)                                                                                                        \
    static int count_##name(void *a, void *b, void *c, void *d, void *e, void *f)                                      \
    {                                                                                                                  \
        add(&counts[of_##name]);                                                                                       \
        return real[of_##name](a, b, c, d, e, f);                                                                      \
    }
PLAIN(X)
#undef X

/* 2 is CU_POINTER_ATTRIBUTE_MEMORY_TYPE; the driver knows nothing of memory that is not its own. */
static void look_at(const void *host, unsigned long *count)
{
    unsigned type = 0;
    if (ask_pointer && ask_pointer(&type, (void *)(intptr_t)2, (void *)(uintptr_t)host, NULL, NULL, NULL) != 0)
        add(count);
}

static int count_copy_in(void *to, void *from, void *bytes, void *stream, void *e, void *f)
{
    add(&counts[of_copy_in]);
    look_at(from, &unpinned[0]);
    return real[of_copy_in](to, from, bytes, stream, e, f);
}

static int count_copy_out(void *to, void *from, void *bytes, void *stream, void *e, void *f)
{
    add(&counts[of_copy_out]);
    look_at(to, &unpinned[1]);
    return real[of_copy_out](to, from, bytes, stream, e, f);
}

static const any_call ours[of_count] = {
#define X(name) count_##name,
    PLAIN(X)
#undef X
        count_copy_in,
    count_copy_out};

static void *libc_dlsym(void *handle, const char *name)
{
    static dlsym_call found;
    if (!found) {
        void *at = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        at = at ? at : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        at = at ? at : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
        memcpy(&found, &at, sizeof found);
    }
    return found ? found(handle, name) : NULL;
}

/* What to give for a function that was found. */
static void *in_place_of(const char *name, void *found)
{
    for (int i = 0; i < of_count && found; i++)
        if (strcmp(name, names[i]) == 0) {
            memcpy(&real[i], &found, sizeof found);
            memcpy(&found, &ours[i], sizeof found);
            return found;
        }
    return found;
}

static int (*real_get)(const char *, void **, int, uint64_t, void *);
static int (*real_get_old)(const char *, void **, int, uint64_t);

/* Asked for by names without a version: the driver picks one. Its newest is taken for what it is. */
static void exchange(const char *name, void **function)
{
    char versioned[64];
    if (!function || !*function)
        return;
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    void *given = in_place_of(versioned, *function);
    *function = given != *function ? given : in_place_of(name, *function);
}

static int get(const char *name, void **function, int version, uint64_t flags, void *status)
{
    int code = real_get(name, function, version, flags, status);
    if (code == 0)
        exchange(name, function);
    return code;
}

static int get_old(const char *name, void **function, int version, uint64_t flags)
{
    int code = real_get_old(name, function, version, flags);
    if (code == 0)
        exchange(name, function);
    return code;
}

EXPORT void *dlsym(void *handle, const char *name)
{
    void *found = libc_dlsym(handle, name), *given = NULL;
    if (!found || strncmp(name, "cu", 2) != 0)
        return found;
    if (strcmp(name, "cuGetProcAddress_v2") == 0) {
        int (*mine)(const char *, void **, int, uint64_t, void *) = get;
        memcpy(&real_get, &found, sizeof found);
        memcpy(&given, &mine, sizeof given);
        return given;
    }
    if (strcmp(name, "cuGetProcAddress") == 0) {
        int (*mine)(const char *, void **, int, uint64_t) = get_old;
        memcpy(&real_get_old, &found, sizeof found);
        memcpy(&given, &mine, sizeof given);
        return given;
    }
    if (!ask_pointer && strncmp(name, "cuMemcpy", 8) == 0) {
        void *ask = libc_dlsym(handle, "cuPointerGetAttribute");
        memcpy(&ask_pointer, &ask, sizeof ask);
    }
    return in_place_of(name, found);
}

__attribute__((destructor)) static void end(void)
{
    const char *into = getenv("WAITS_INTO");
    FILE *f = into && real[of_cuCtxSynchronize] ? fopen(into, "w") : NULL; /* a process that opened the driver */
    if (!f)
        return;
    fprintf(f, "{\"unpinned copies in\": %lu, \"unpinned copies out\": %lu", unpinned[0], unpinned[1]);
    for (int i = 0; i < of_count; i++)
        fprintf(f, ", \"%s\": %lu", names[i], counts[i]);
    fprintf(f, "}\n");
    fclose(f);
}
