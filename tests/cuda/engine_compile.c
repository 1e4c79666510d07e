/* engine_compile.c: see engines.h. */
#include "engines.h"

#include "base/error.h"
#include "ops/cuda/cubin_cache.h"
#include "ops/cuda/cuda_texts.h"
#include "ops/cuda/nvrtc.h"
#include "ops/cuda/text_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuda_module {
    mf_cubin_key key;
    cuda_module *next;
};

typedef struct compile_engine {
    cuda_engine base;
    mf_nvrtc nvrtc;
    int capabilities[16];
    unsigned count;
    cuda_module *seen;
    unsigned compiled;
    mf_text_keys keys;
    mf_cubin_cache
        cache; /* where MEMFIT_CACHE names one: a machine with a card need not compile what was compiled here */
} compile_engine;

static void engine_destroy(cuda_engine *engine)
{
    compile_engine *e = (compile_engine *)engine;
    printf("%u texts compiled for %u architectures by NVRTC %d.%d\n", e->compiled, e->count, e->nvrtc.major,
           e->nvrtc.minor);
    while (e->seen) {
        cuda_module *m = e->seen;
        e->seen = m->next;
        free(m);
    }
    free(e);
}

static memfit_status engine_module(cuda_engine *engine, const char *text, cuda_module **module, memfit_error *err)
{
    compile_engine *e = (compile_engine *)engine;
    mf_cubin_key key = mf_cubin_key_begin();
    mf_cubin_key_add(&key, text, strlen(text));
    for (cuda_module *m = e->seen; m; m = m->next)
        if (m->key.a == key.a && m->key.b == key.b) {
            *module = m;
            return MEMFIT_OK;
        }
    memfit_status status = MEMFIT_OK;
    for (unsigned i = 0; i < e->count && status == MEMFIT_OK; i++) {
        char *cubin = NULL;
        size_t bytes = 0;
        mf_cubin_key kept = mf_cubin_key_begin();
        mf_cubin_key_add(&kept, (int[]){e->capabilities[i], e->nvrtc.major, e->nvrtc.minor}, 3 * sizeof(int));
        kept = mf_text_keys_add(&e->keys, kept, text);
        if (mf_cubin_cache_has(&e->cache, kept))
            continue;
        status = mf_nvrtc_compile(&e->nvrtc, NULL, text, e->capabilities[i], &cubin, &bytes, err);
        if (status == MEMFIT_OK) {
            mf_cubin_cache_write(&e->cache, kept, cubin, bytes);
            mf_host_free(NULL, cubin, bytes);
        } else if (getenv("MEMFIT_SHOW_TEXT"))
            fprintf(stderr, "%s\n", text);
    }
    if (status)
        return status;
    cuda_module *m = calloc(1, sizeof *m);
    if (!m)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory");
    m->key = key;
    m->next = e->seen;
    *module = e->seen = m;
    e->compiled++;
    return MEMFIT_OK;
}

static memfit_status engine_function(cuda_engine *engine, cuda_module *module, const char *name,
                                     cuda_function **function, memfit_error *err)
{
    (void)engine;
    (void)name;
    (void)err;
    *function = (cuda_function *)module;
    return MEMFIT_OK;
}

static memfit_status engine_launch(cuda_engine *engine, cuda_function *function, uint32_t x, uint32_t y, unsigned block,
                                   void *argument, size_t bytes, mf_stream stream, memfit_error *err)
{
    (void)block;
    (void)stream;
    (void)engine;
    (void)function;
    (void)x;
    (void)y;
    (void)argument;
    (void)bytes;
    (void)err;
    return MEMFIT_OK;
}

static memfit_status engine_copy(cuda_engine *engine, void *to, const void *from, uint64_t bytes, mf_stream stream,
                                 memfit_error *err)
{
    (void)stream;
    (void)engine;
    (void)to;
    (void)from;
    (void)bytes;
    (void)err;
    return MEMFIT_OK;
}

static const cuda_engine_table table = {.destroy = engine_destroy,
                                        .module = engine_module,
                                        .function = engine_function,
                                        .launch = engine_launch,
                                        .copy = engine_copy,
                                        .methods = fake_library_methods,
                                        .call = fake_library_call};

memfit_status compile_engine_create(const int *capabilities, unsigned count, cuda_engine **engine, memfit_error *err)
{
    compile_engine *e = calloc(1, sizeof *e);
    if (!e)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory");
    e->base = (cuda_engine){.table = &table, .block = 256};
    for (; e->count < count && e->count < 16; e->count++)
        e->capabilities[e->count] = capabilities[e->count];
    memfit_status status = mf_nvrtc_open(mf_finder_default(), &e->nvrtc, err);
    if (status) {
        free(e);
        return status;
    }
    mf_text_keys_make(&e->keys, mf_cuda_texts, mf_cuda_text_count);
    if (getenv("MEMFIT_CACHE"))
        mf_cubin_cache_open(&e->cache);
    *engine = &e->base;
    return MEMFIT_OK;
}
