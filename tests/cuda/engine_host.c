/* engine_host.c: see engines.h. Texts go to a folder of their own, a shared library comes out of each. */
#include "engines.h"

#include "base/error.h"
#include "ops/cuda/cubin_cache.h"
#include "ops/cuda/cuda_texts.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct cuda_module {
    mf_cubin_key key;
    void *library;
    void (*at)(unsigned x, unsigned y);
    void (*begin)(unsigned threads), (*thread)(unsigned x), (*leave)(void); /* where a block has several */
    cuda_module *next;
};

struct cuda_function {
    void *code;
    cuda_module *module;
    cuda_function *next;
};

typedef struct host_engine {
    cuda_engine base;
    char folder[64], compiler[200];
    cuda_module *modules;
    cuda_function *functions;
    unsigned count;
} host_engine;

static void engine_destroy(cuda_engine *engine)
{
    host_engine *e = (host_engine *)engine;
    char command[200];
    while (e->functions) {
        cuda_function *f = e->functions;
        e->functions = f->next;
        free(f);
    }
    while (e->modules) {
        cuda_module *m = e->modules;
        e->modules = m->next;
        dlclose(m->library);
        free(m);
    }
    snprintf(command, sizeof command, "rm -rf %s", e->folder);
    if (system(command) != 0)
        fprintf(stderr, "%s stays\n", e->folder);
    free(e);
}

static memfit_status write_text(const char *path, const char *text, memfit_error *err)
{
    FILE *f = fopen(path, "w");
    bool good = f && fputs(text, f) >= 0;
    good = f && fclose(f) == 0 && good;
    return good ? MEMFIT_OK : mf_fail(err, MEMFIT_IO, "%s cannot be written", path);
}

static memfit_status engine_module(cuda_engine *engine, const char *text, cuda_module **module, memfit_error *err)
{
    host_engine *e = (host_engine *)engine;
    mf_cubin_key key = mf_cubin_key_begin();
    mf_cubin_key_add(&key, text, strlen(text));
    for (cuda_module *m = e->modules; m; m = m->next)
        if (m->key.a == key.a && m->key.b == key.b) {
            *module = m;
            return MEMFIT_OK;
        }
    char path[200], command[900];
    snprintf(path, sizeof path, "%s/k%u.cc", e->folder, e->count);
    memfit_status status = write_text(path, text, err);
    if (status)
        return status;
    snprintf(command, sizeof command,
             "%s -std=c++20 -O1 -w -shared -fPIC -ffp-contract=off -DMF_SHIM %s -iquote %s -I %s -o %s/k%u.so %s "
             "2>%s/log || "
             "{ head -30 %s/log >&2; false; }",
             e->compiler, e->base.block > 1 ? "-DMF_SHIM_THREADS" : "", e->folder, e->folder, e->folder, e->count, path,
             e->folder, e->folder);
    if (system(command) != 0) {
        if (getenv("MEMFIT_SHOW_TEXT"))
            fprintf(stderr, "%s\n", text);
        return mf_fail(err, MEMFIT_INTERNAL, "a kernel does not compile for the host");
    }
    snprintf(path, sizeof path, "%s/k%u.so", e->folder, e->count++);
    cuda_module *m = calloc(1, sizeof *m);
    if (!m || !(m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
        return mf_fail(err, MEMFIT_INTERNAL, "%s", dlerror());
    *(void **)&m->at = dlsym(m->library, "shim_at");
    *(void **)&m->begin = dlsym(m->library, "shim_begin");
    *(void **)&m->thread = dlsym(m->library, "shim_thread");
    *(void **)&m->leave = dlsym(m->library, "shim_leave");
    m->key = key;
    m->next = e->modules;
    *module = e->modules = m;
    return MEMFIT_OK;
}

static memfit_status engine_function(cuda_engine *engine, cuda_module *module, const char *name,
                                     cuda_function **function, memfit_error *err)
{
    host_engine *e = (host_engine *)engine;
    cuda_function *f = calloc(1, sizeof *f);
    if (!f || !(f->code = dlsym(module->library, name)))
        return mf_fail(err, MEMFIT_INTERNAL, "no kernel %s", name);
    f->module = module;
    f->next = e->functions;
    *function = e->functions = f;
    return MEMFIT_OK;
}

/* a struct by value of more than 16 bytes lies on the stack: one type of each size that occurs serves all */
typedef struct small {
    void *p[17];
} small; /* most operations; a step's end has 4 words */
typedef struct large {
    void *p[64];
} large;
typedef struct list { /* of many tensors */
    void *p[506];
} list;

static void call_kernel(const cuda_function *function, const list *argument, size_t bytes)
{
    if (bytes <= sizeof(small)) {
        small s;
        memcpy(&s, argument, sizeof s);
        ((void (*)(small))function->code)(s);
    } else if (bytes <= sizeof(large)) {
        large l;
        memcpy(&l, argument, sizeof l);
        ((void (*)(large))function->code)(l);
    } else
        ((void (*)(list))function->code)(*argument);
}

typedef struct launch_thread {
    pthread_t id;
    const cuda_function *function;
    const list *argument;
    size_t bytes;
    unsigned number, x, y;
} launch_thread;

static void *run_thread(void *arg)
{
    const launch_thread *t = arg;
    t->function->module->at(t->x, t->y);
    t->function->module->thread(t->number);
    call_kernel(t->function, t->argument, t->bytes);
    t->function->module->leave();
    return NULL;
}

/* A block of real threads. */
static bool run_block(const cuda_function *function, const list *argument, size_t bytes, unsigned block, unsigned x,
                      unsigned y)
{
    enum { MOST = 256 };
    launch_thread threads[MOST];
    pthread_attr_t small_stacks;
    function->module->begin(block);
    pthread_attr_init(&small_stacks);
    pthread_attr_setstacksize(&small_stacks, 1 << 20);
    unsigned made = 0;
    for (; made < block && made < MOST; made++) {
        threads[made] =
            (launch_thread){.function = function, .argument = argument, .bytes = bytes, .number = made, .x = x, .y = y};
        if (pthread_create(&threads[made].id, &small_stacks, run_thread, &threads[made]))
            abort(); /* the others would wait for it */
    }
    for (unsigned i = 0; i < made; i++)
        pthread_join(threads[i].id, NULL);
    pthread_attr_destroy(&small_stacks);
    return made == block;
}

static memfit_status engine_launch(cuda_engine *engine, cuda_function *function, uint32_t x, uint32_t y, unsigned block,
                                   void *argument, size_t bytes, mf_stream stream, memfit_error *err)
{
    (void)stream;
    (void)engine;
    if (bytes > sizeof(list))
        return mf_fail(err, MEMFIT_UNSUPPORTED, "more operands than the test's engine takes");
    list copy = {{0}};
    memcpy(&copy, argument, bytes);
    for (uint32_t j = 0; j < y; j++)
        for (uint32_t i = 0; i < x; i++) {
            if (engine->block > 1) {
                if (!run_block(function, &copy, bytes, block, i, j))
                    return mf_fail(err, MEMFIT_UNSUPPORTED, "a block of %u threads", block);
                continue;
            }
            function->module->at(i, j);
            call_kernel(function, &copy, bytes);
        }
    return MEMFIT_OK;
}

static memfit_status engine_copy(cuda_engine *engine, void *to, const void *from, uint64_t bytes, mf_stream stream,
                                 memfit_error *err)
{
    (void)stream;
    (void)engine;
    (void)err;
    memmove(to, from, bytes);
    return MEMFIT_OK;
}

static const cuda_engine_table table = {.destroy = engine_destroy,
                                        .module = engine_module,
                                        .function = engine_function,
                                        .launch = engine_launch,
                                        .copy = engine_copy,
                                        .methods = fake_library_methods,
                                        .call = fake_library_call};

static memfit_status write_texts(host_engine *e, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    char path[300];
    for (unsigned i = 0; i < mf_cuda_text_count && status == MEMFIT_OK; i++) {
        const char *name = mf_cuda_texts[i].name;
        if (strcmp(name, "math.h") == 0 || strcmp(name, "string.h") == 0)
            continue; /* the host has its own */
        snprintf(path, sizeof path, "%s/%s", e->folder, name);
        for (char *p = path + strlen(e->folder) + 1; (p = strchr(p, '/')); p++) {
            *p = 0;
            mkdir(path, 0700);
            *p = '/';
        }
        status = write_text(path, mf_cuda_texts[i].text, err);
    }
    const char *source = getenv("MEMFIT_SOURCE");
    char command[600];
    snprintf(command, sizeof command, "cp %s/tests/cuda/shim.h %s/", source ? source : ".", e->folder);
    if (status == MEMFIT_OK && system(command) != 0)
        status = mf_fail(err, MEMFIT_IO, "shim.h was not found: set MEMFIT_SOURCE");
    return status;
}

memfit_status host_engine_create(const char *compiler, unsigned block, cuda_engine **engine, memfit_error *err)
{
    host_engine *e = calloc(1, sizeof *e);
    if (!e)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory");
    fake_library_runs = true;
    e->base = (cuda_engine){.table = &table, .block = block};
    snprintf(e->compiler, sizeof e->compiler, "%s", compiler);
    snprintf(e->folder, sizeof e->folder, "/tmp/memfit-shim-XXXXXX");
    if (!mkdtemp(e->folder)) {
        free(e);
        return mf_fail(err, MEMFIT_IO, "no folder in /tmp");
    }
    memfit_status status = write_texts(e, err);
    if (status) {
        engine_destroy(&e->base);
        return status;
    }
    *engine = &e->base;
    return MEMFIT_OK;
}
