/*
 * cuda_card_engine.c: kernels on a real card: texts compiled by NVRTC for its architecture (or taken from the cache of
 * cubins), loaded and launched by the driver.
 */
#include "ops/cuda/cuda_card_engine.h"

#include "base/error.h"
#include "ops/cuda/attentions.h"
#include "ops/cuda/compile_ahead.h"
#include "ops/cuda/convolutions.h"
#include "ops/cuda/cubin_cache.h"
#include "ops/cuda/cublaslt.h"
#include "ops/cuda/cuda_texts.h"
#include "ops/cuda/nvrtc.h"
#include "ops/cuda/text_keys.h"

#include <stdio.h>
#include <string.h>

struct cuda_module {
    mf_cubin_key key;
    cu_module module;
    cuda_module *next;
};

typedef struct card_engine {
    cuda_engine base;
    mf_cuda_card card;
    mf_nvrtc nvrtc;
    mf_cubin_cache cache;
    mf_cubin_key key; /* of everything that all texts share: the architecture and the compiler */
    mf_text_keys keys;
    cuda_module *modules;
    mf_ahead ahead;
    mf_cublaslt *lt; /* NULL: not found */
    mf_cudnn *dnn;   /* likewise */
} card_engine;

static void card_destroy(cuda_engine *engine)
{
    card_engine *e = (card_engine *)engine;
    mf_cuda_call call;
    mf_cublaslt_close(e->lt);
    bool entered = mf_cuda_enter(&e->card, &call, NULL) == MEMFIT_OK;
    mf_cudnn_close(e->dnn);
    while (e->modules) {
        cuda_module *m = e->modules;
        e->modules = m->next;
        if (entered)
            e->card.driver->module_unload(m->module);
        mf_host_free(engine->host, m, sizeof *m);
    }
    if (entered)
        mf_cuda_leave(&e->card, call);
    mf_ahead_end(&e->ahead, engine->host);
    mf_host_free(engine->host, e, sizeof *e);
}

static memfit_status load(card_engine *e, mf_cubin_key key, const char *cubin, cuda_module **module, memfit_error *err)
{
    cuda_module *m = mf_host_zalloc(e->base.host, sizeof *m);
    if (!m)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a kernel's module");
    mf_cuda_call call;
    memfit_status status = mf_cuda_enter(&e->card, &call, err);
    if (status == MEMFIT_OK) {
        cu_result code = e->card.driver->module_load(&m->module, cubin);
        mf_cuda_leave(&e->card, call);
        if (code != CU_SUCCESS)
            status = mf_cuda_fail(e->card.driver, code, "loading a kernel", err);
    }
    if (status) {
        mf_host_free(e->base.host, m, sizeof *m);
        return status;
    }
    m->key = key;
    m->next = e->modules;
    *module = e->modules = m;
    return MEMFIT_OK;
}

static mf_cubin_key key_of(const card_engine *e, const char *text)
{
    return mf_text_keys_add(&e->keys, e->key, text);
}

static cuda_module *loaded(const card_engine *e, mf_cubin_key key)
{
    cuda_module *m = e->modules;
    while (m && (m->key.a != key.a || m->key.b != key.b))
        m = m->next;
    return m;
}

static void card_announce(cuda_engine *engine, const char *text)
{
    card_engine *e = (card_engine *)engine;
    mf_cubin_key key = key_of(e, text);
    if (!loaded(e, key) && !mf_cubin_cache_has(&e->cache, key))
        mf_ahead_add(&e->ahead, engine->host, key, text);
}

static memfit_status card_module(cuda_engine *engine, const char *text, cuda_module **module, memfit_error *err)
{
    card_engine *e = (card_engine *)engine;
    mf_cubin_key key = key_of(e, text);
    if ((*module = loaded(e, key)))
        return MEMFIT_OK;
    char *cubin = NULL;
    size_t bytes = 0;
    memfit_status status = MEMFIT_OK;
    if (mf_cubin_cache_read(&e->cache, engine->host, key, &cubin, &bytes)) {
        status = load(e, key, cubin, module, NULL);
        mf_host_free(engine->host, cubin, bytes);
        if (status == MEMFIT_OK)
            return MEMFIT_OK;
        /* the card does not take what the cache has: compiled anew */
    }
    mf_ahead_compile(&e->ahead, engine->host, &e->nvrtc, e->card.capability, 0);
    if (!mf_ahead_take(&e->ahead, key, &cubin, &bytes))
        status = mf_nvrtc_compile(&e->nvrtc, engine->host, text, e->card.capability, &cubin, &bytes, err);
    if (status)
        return status;
    status = load(e, key, cubin, module, err);
    if (status == MEMFIT_OK)
        mf_cubin_cache_write(&e->cache, key, cubin, bytes);
    mf_host_free(engine->host, cubin, bytes);
    return status;
}

static memfit_status card_function(cuda_engine *engine, cuda_module *module, const char *name, cuda_function **function,
                                   memfit_error *err)
{
    card_engine *e = (card_engine *)engine;
    mf_cuda_call call;
    cu_function f = NULL;
    memfit_status status = mf_cuda_enter(&e->card, &call, err);
    if (status)
        return status;
    cu_result code = e->card.driver->module_function(&f, module->module, name);
    mf_cuda_leave(&e->card, call);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(e->card.driver, code, "finding a kernel", err);
    *function = (cuda_function *)f;
    return MEMFIT_OK;
}

static memfit_status card_launch(cuda_engine *engine, cuda_function *function, uint32_t grid_x, uint32_t grid_y,
                                 unsigned block, void *argument, size_t argument_bytes, mf_stream stream,
                                 memfit_error *err)
{
    card_engine *e = (card_engine *)engine;
    mf_cuda_call call;
    (void)argument_bytes;
    memfit_status status = mf_cuda_enter(&e->card, &call, err);
    if (status)
        return status;
    cu_result code = e->card.driver->launch((cu_function)function, grid_x, grid_y, 1, block, 1, 1, 0,
                                            (cu_stream)(uintptr_t)stream, (void *[]){argument}, NULL);
    mf_cuda_leave(&e->card, call);
    return code == CU_SUCCESS ? MEMFIT_OK : mf_cuda_fail(e->card.driver, code, "launching a kernel", err);
}

static memfit_status card_copy(cuda_engine *engine, void *to, const void *from, uint64_t bytes, mf_stream stream,
                               memfit_error *err)
{
    card_engine *e = (card_engine *)engine;
    return e->card.device->table->copy(e->card.device, (mf_address)(uintptr_t)to, (mf_address)(uintptr_t)from, bytes,
                                       stream, err);
}

static bool is_convolution(mf_op_kind kind)
{
    return kind == MF_OP_CONV || kind == MF_OP_CONV_GRAD_DATA || kind == MF_OP_CONV_GRAD_WEIGHTS;
}

static memfit_status card_methods(cuda_engine *engine, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                  memfit_error *err)
{
    card_engine *e = (card_engine *)engine;
    const mf_op *o = &graph->ops[op];
    if (o->kind == MF_OP_MATMUL && e->lt)
        return mf_cublaslt_methods(e->lt, graph, o, cost, err);
    if (is_convolution(o->kind) && e->dnn)
        return cuda_convolution_methods(e->dnn, &e->card, engine, graph, op, cost, err);
    if ((o->kind == MF_OP_ATTENTION || o->kind == MF_OP_ATTENTION_GRAD) && e->dnn)
        return cuda_attention_methods(e->dnn, &e->card, graph, o, cost, err);
    return MEMFIT_OK;
}

static memfit_status card_call(cuda_engine *engine, const mf_graph *graph, uint32_t op, const mf_method *method,
                               cuda_call **call, memfit_error *err)
{
    card_engine *e = (card_engine *)engine;
    if (method->id[0] == CUDA_PRODUCT && e->lt)
        return mf_cublaslt_call(e->lt, graph, &graph->ops[op], method, call, err);
    if (method->id[0] == CUDA_CONVOLUTION && e->dnn)
        return cuda_convolution_call(e->dnn, &e->card, engine->host, graph, op, engine->block, method, call, err);
    if (method->id[0] == CUDA_ATTENTION && e->dnn)
        return cuda_attention_call(e->dnn, &e->card, engine->host, graph, &graph->ops[op], method, call, err);
    return mf_fail(err, MEMFIT_NOT_FOUND, "the plan names a library that is not there");
}

static const cuda_engine_table card_table = {.destroy = card_destroy,
                                             .module = card_module,
                                             .announce = card_announce,
                                             .function = card_function,
                                             .launch = card_launch,
                                             .copy = card_copy,
                                             .methods = card_methods,
                                             .call = card_call};

/* Everything but the texts that a cubin is made from. */
static mf_cubin_key common_key(const card_engine *e)
{
    mf_cubin_key key = mf_cubin_key_begin();
    int from[3] = {e->card.capability, e->nvrtc.major, e->nvrtc.minor};
    mf_cubin_key_add(&key, from, sizeof from);
    return key;
}

/* Of all texts: which of them a run's kernels include is not asked. */
static unsigned kernels_hash(const card_engine *e)
{
    mf_cubin_key key = e->key;
    for (unsigned i = 0; i < mf_cuda_text_count; i++)
        mf_cubin_key_add(&key, mf_cuda_texts[i].text, strlen(mf_cuda_texts[i].text));
    return (unsigned)(key.a & 0xffffffff);
}

/* Whatever of it differs may round otherwise, and be quick where this one is slow. */
static void describe_maker(card_engine *e)
{
    char *text = e->base.made_by;
    int n = snprintf(text, sizeof e->base.made_by, "%.60s sm_%d, driver %d, NVRTC %d.%d, kernels %08x",
                     e->card.device->name, e->card.capability, e->card.driver->version, e->nvrtc.major, e->nvrtc.minor,
                     kernels_hash(e));
    if (e->lt)
        n += snprintf(text + n, sizeof e->base.made_by - (size_t)n, ", cuBLASLt %zu", mf_cublaslt_version(e->lt));
    if (e->dnn)
        snprintf(text + n, sizeof e->base.made_by - (size_t)n, ", cuDNN %zu", mf_cudnn_version(e->dnn));
}

/* What is not there is done without: own kernels take every operation. */
static void open_libraries(card_engine *e)
{
    mf_cuda_call call;
    memfit_error err = {0};
    if (mf_cublaslt_open(e->base.host, &e->card, &e->lt, NULL) != MEMFIT_OK)
        e->lt = NULL;
    memfit_status status = mf_cudnn_open(mf_finder_default(), e->base.host, &e->dnn, &err);
    if (status != MEMFIT_OK)
        e->dnn = NULL;
    if (status == MEMFIT_CONFLICT)
        snprintf(e->base.note, sizeof e->base.note, "own kernels do cuDNN's work, slower: %.240s", err.message);
    if (!e->dnn || mf_cuda_enter(&e->card, &call, NULL) != MEMFIT_OK)
        return;
    if (mf_cudnn_take(e->dnn, NULL) != MEMFIT_OK) {
        mf_cudnn_close(e->dnn);
        e->dnn = NULL;
    }
    mf_cuda_leave(&e->card, call);
}

memfit_status cuda_card_engine_create(const memfit_host *host, mf_device *device, cuda_engine **engine,
                                      memfit_error *err)
{
    card_engine *e = mf_host_zalloc(host, sizeof *e);
    if (!e)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the CUDA backend");
    e->base = (cuda_engine){.table = &card_table, .host = host, .block = CUDA_BLOCK};
    memfit_status status = mf_cuda_card_of(device, &e->card, err);
    if (status == MEMFIT_OK && (!e->card.driver->module_load || !e->card.driver->module_unload ||
                                !e->card.driver->module_function || !e->card.driver->launch))
        status =
            mf_fail(err, MEMFIT_UNSUPPORTED, "%s cannot load kernels: it is too old, or no driver\nupdate the driver",
                    e->card.driver->library.path);
    if (status == MEMFIT_OK)
        status = mf_nvrtc_open(mf_finder_default(), &e->nvrtc, err);
    if (status) {
        mf_host_free(host, e, sizeof *e);
        return status;
    }
    open_libraries(e);
    mf_cubin_cache_open(&e->cache);
    e->key = common_key(e);
    mf_text_keys_make(&e->keys, mf_cuda_texts, mf_cuda_text_count);
    describe_maker(e);
    *engine = &e->base;
    return MEMFIT_OK;
}

memfit_status mf_cuda_create(const memfit_host *host, mf_device *device, mf_backend **backend, memfit_error *err)
{
    cuda_engine *engine = NULL;
    memfit_status status = cuda_card_engine_create(host, device, &engine, err);
    if (status)
        return status;
    status = mf_cuda_create_on(host, engine, backend, err);
    if (status)
        engine->table->destroy(engine);
    return status;
}
