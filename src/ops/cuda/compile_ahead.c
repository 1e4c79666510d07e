/* compile_ahead.c: see compile_ahead.h. */
#include "ops/cuda/compile_ahead.h"

#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_num_procs() 1
#endif

static mf_ahead_text *find(const mf_ahead *a, mf_cubin_key key)
{
    for (size_t i = 0; i < a->count; i++)
        if (a->texts[i].key.a == key.a && a->texts[i].key.b == key.b)
            return &a->texts[i];
    return NULL;
}

void mf_ahead_add(mf_ahead *a, const memfit_host *host, mf_cubin_key key, const char *text)
{
    size_t bytes = strlen(text) + 1;
    if (find(a, key) || !mf_grow(host, &a->texts, &a->capacity, a->count, sizeof *a->texts))
        return;
    char *copy = mf_host_alloc(host, bytes);
    if (!copy)
        return;
    memcpy(copy, text, bytes);
    a->texts[a->count++] = (mf_ahead_text){.key = key, .text = copy, .text_bytes = bytes};
    a->waiting++;
}

static void compile_one(mf_ahead_text *t, const memfit_host *host, const mf_nvrtc *nvrtc, int capability)
{
    if (!t->text)
        return;
    if (mf_nvrtc_compile(nvrtc, host, t->text, capability, &t->cubin, &t->bytes, NULL) != MEMFIT_OK)
        t->cubin = NULL;
    mf_host_free(host, t->text, t->text_bytes);
    t->text = NULL;
}

void mf_ahead_compile(mf_ahead *a, const memfit_host *host, const mf_nvrtc *nvrtc, int capability, unsigned threads)
{
    int most = threads ? (int)threads : omp_get_num_procs();
    int team = most < MF_AHEAD_THREADS ? most : MF_AHEAD_THREADS;
    if (a->waiting == 0)
        return;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (size_t i = 0; i < a->count; i++)
        compile_one(&a->texts[i], host, nvrtc, capability);
    a->waiting = 0;
}

bool mf_ahead_take(mf_ahead *a, mf_cubin_key key, char **cubin, size_t *bytes)
{
    mf_ahead_text *t = find(a, key);
    if (!t || !t->cubin)
        return false;
    *cubin = t->cubin;
    *bytes = t->bytes;
    t->cubin = NULL;
    return true;
}

void mf_ahead_end(mf_ahead *a, const memfit_host *host)
{
    for (size_t i = 0; i < a->count; i++) {
        if (a->texts[i].text)
            mf_host_free(host, a->texts[i].text, a->texts[i].text_bytes);
        if (a->texts[i].cubin)
            mf_host_free(host, a->texts[i].cubin, a->texts[i].bytes);
    }
    if (a->texts)
        mf_host_free(host, a->texts, a->capacity * sizeof *a->texts);
    *a = (mf_ahead){0};
}
