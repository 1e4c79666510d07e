/*
 * test_cuda_kernels.c: what the CUDA backend rests on and needs no card for: the cache of compiled kernels, the texts of
 * operations, cuDNN's answers for a described card (where cuDNN is found), its enumerations (where its header is).
 */
#include "test.h"

#include "base/error.h"
#include "base/os.h"
#include "device/cudnn.h"
#include "device/cudnn_values.h"
#include "graph/build.h"
#include "ops/cuda/convolutions.h"
#include "ops/cuda/cubin_cache.h"
#include "ops/cuda/cuda_engine.h"
#include "ops/cuda/cuda_spec.h"
#include "ops/cuda/text_keys.h"

#include <dlfcn.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the cache ---- */

static char folder[] = "/tmp/memfit-cubin-XXXXXX";

static void open_cache(mf_cubin_cache *cache)
{
    setenv("MEMFIT_CACHE", folder, 1);
    mf_cubin_cache_open(cache);
}

static mf_cubin_key key_of(const char *text)
{
    mf_cubin_key key = mf_cubin_key_begin();
    mf_cubin_key_add(&key, text, strlen(text));
    return key;
}

static bool reads(const mf_cubin_cache *cache, mf_cubin_key key, const char *wanted)
{
    char *cubin = NULL;
    size_t bytes = 0;
    if (!mf_cubin_cache_read(cache, NULL, key, &cubin, &bytes))
        return false;
    bool right = bytes == strlen(wanted) && memcmp(cubin, wanted, bytes) == 0;
    mf_host_free(NULL, cubin, bytes);
    assert_true(right); /* what is read is never something else */
    return true;
}

static void kernels_are_kept(void **state)
{
    (void)state;
    mf_cubin_cache cache;
    open_cache(&cache);
    assert_string_equal(cache.folder, folder);
    assert_false(reads(&cache, key_of("a"), "first"));
    mf_cubin_cache_write(&cache, key_of("a"), "first", 5);
    mf_cubin_cache_write(&cache, key_of("b"), "second", 6);
    assert_true(reads(&cache, key_of("a"), "first"));
    assert_true(reads(&cache, key_of("b"), "second"));
    mf_cubin_cache_write(&cache, key_of("a"), "anew", 4);
    assert_true(reads(&cache, key_of("a"), "anew"));
}

/* Cut at every length, and with every byte changed: not there, never something else. */
static void damage_is_absence(void **state)
{
    (void)state;
    mf_cubin_cache cache;
    open_cache(&cache);
    mf_cubin_key key = key_of("c");
    mf_cubin_cache_write(&cache, key, "content", 7);
    char path[1200], data[200];
    snprintf(path, sizeof path, "%s/%016llx%016llx", folder, (unsigned long long)key.a, (unsigned long long)key.b);
    int file = open(path, O_RDWR);
    assert_true(file >= 0);
    ssize_t bytes = read(file, data, sizeof data);
    assert_true(bytes > 7 && bytes < (ssize_t)sizeof data);
    for (ssize_t i = 0; i < bytes; i++) {
        char changed = (char)(data[i] ^ 0x20);
        assert_int_equal(pwrite(file, &changed, 1, i), 1);
        assert_false(reads(&cache, key, "content"));
        assert_int_equal(pwrite(file, &data[i], 1, i), 1);
    }
    assert_true(reads(&cache, key, "content"));
    for (ssize_t i = bytes; i-- > 0;) {
        assert_int_equal(ftruncate(file, i), 0);
        assert_false(reads(&cache, key, "content"));
    }
    close(file);
    /* another's content under this name */
    char other[1200];
    mf_cubin_cache_write(&cache, key_of("d"), "content", 7);
    mf_cubin_key d = key_of("d");
    snprintf(other, sizeof other, "%s/%016llx%016llx", folder, (unsigned long long)d.a, (unsigned long long)d.b);
    assert_int_equal(rename(other, path), 0);
    assert_false(reads(&cache, key, "content"));
}

static void the_folder_is_the_users_alone(void **state)
{
    (void)state;
    mf_cubin_cache cache;
    struct stat st;
    char deep[100];
    snprintf(deep, sizeof deep, "%s/deep/er", folder);
    setenv("MEMFIT_CACHE", deep, 1);
    mf_cubin_cache_open(&cache);
    assert_int_equal(stat(deep, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(chmod(deep, 0777), 0);
    mf_cubin_cache_open(&cache);
    assert_string_equal(cache.folder, ""); /* others could put kernels there */
    assert_non_null(strstr(cache.why, "not this user's alone"));
    setenv("MEMFIT_CACHE", "off", 1);
    mf_cubin_cache_open(&cache);
    assert_string_equal(cache.folder, "");
    assert_string_equal(cache.why, ""); /* as asked for */
    mf_cubin_cache_write(&cache, key_of("a"), "x", 1);
    assert_false(reads(&cache, key_of("a"), "x"));
}

/* What cannot be used is said, and never another folder in its place. */
static void an_unusable_folder_is_named(void **state)
{
    (void)state;
    mf_cubin_cache cache;
    char file[100];
    snprintf(file, sizeof file, "%s/file", folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    const char *const ways[][2] = {{"kernels", "kernels is not an absolute path"},
                                   {"/proc/none/of/it", "/proc/none/of/it cannot be made"},
                                   {file, "is not a folder"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        setenv("MEMFIT_CACHE", ways[i][0], 1);
        mf_cubin_cache_open(&cache);
        assert_string_equal(cache.folder, "");
        assert_non_null(strstr(cache.why, ways[i][1]));
    }
    unsetenv("MEMFIT_CACHE");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "", 1);
    mf_cubin_cache_open(&cache);
    assert_string_equal(cache.folder, "");
    assert_string_equal(cache.why, "HOME does not name a folder");
}

static unsigned files_in(const char *path)
{
    unsigned count = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d))
        count++;
    closedir(d);
    return count;
}

/* A disk that is full: nothing is kept, nothing lies about, and what was there before is. */
static void a_full_disk_keeps_nothing(void **state)
{
    (void)state;
    mf_cubin_cache cache;
    static char large[100000];
    struct rlimit was, little = {.rlim_cur = 4096};
    open_cache(&cache);
    mf_cubin_cache_write(&cache, key_of("e"), "before", 6);
    unsigned files = files_in(folder);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    little.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    mf_cubin_cache_write(&cache, key_of("e"), large, sizeof large);
    mf_cubin_cache_write(&cache, key_of("f"), large, sizeof large);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_true(reads(&cache, key_of("e"), "before"));
    assert_false(reads(&cache, key_of("f"), ""));
    assert_int_equal(files_in(folder), files);
}

/* ---- keys ---- */

static bool same_key(const cuda_text *before, const cuda_text *after, unsigned count, const char *text)
{
    static mf_text_keys a, b;
    mf_text_keys_make(&a, before, count);
    mf_text_keys_make(&b, after, count);
    mf_cubin_key x = mf_text_keys_add(&a, mf_cubin_key_begin(), text);
    mf_cubin_key y = mf_text_keys_add(&b, mf_cubin_key_begin(), text);
    return x.a == y.a && x.b == y.b;
}

/* A text's key is that of what it is compiled from: a change there, however deep, is another key; a change elsewhere is not. */
static void keys_follow_what_is_included(void **state)
{
    (void)state;
    enum { COUNT = 5 };
    const cuda_text texts[COUNT] = {{"a.cuh", "int a;\n#include \"b.cuh\"\n"},
                                    {"b.cuh", "#  include <deep/c.h>\nint b;\n"},
                                    {"deep/c.h", "int c;\n#include \"a.cuh\"\n"}, /* round about */
                                    {"d.cu", "#include \"b.cuh\"\nint d;\n"},
                                    {"e.cu", "int e; // include nothing\n"}};
    static const struct {
        const char *text;
        bool needs[COUNT];
    } cases[] = {{"int x;", {0}},
                 {"#include \"a.cuh\"\n", {true, true, true}},
                 {"#define X 1\n#include \"deep/c.h\"\nint y;", {true, true, true}},
                 {"#include \"d.cu\"\n", {true, true, true, true}},
                 {"#include \"e.cu\"\n#include \"shim.h\"\n", {false, false, false, false, true}},
                 {"#include \"e.c\"\n#include \"e.cuh\"\n#include", {0}},
                 {"#include \"e.cu\"\n#include \"d.cu\"\n", {true, true, true, true, true}}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(same_key(texts, texts, COUNT, cases[i].text));
        for (unsigned t = 0; t < COUNT; t++) {
            cuda_text other[COUNT];
            char changed[100];
            memcpy(other, texts, sizeof texts);
            snprintf(changed, sizeof changed, "%s ", texts[t].text);
            other[t].text = changed;
            assert_int_equal(same_key(texts, other, COUNT, cases[i].text), !cases[i].needs[t]);
        }
    }
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) /* and never that of another text */
        for (unsigned k = 0; k < i; k++) {
            static mf_text_keys keys;
            mf_text_keys_make(&keys, texts, COUNT);
            mf_cubin_key x = mf_text_keys_add(&keys, mf_cubin_key_begin(), cases[i].text);
            mf_cubin_key y = mf_text_keys_add(&keys, mf_cubin_key_begin(), cases[k].text);
            assert_true(x.a != y.a && x.b != y.b);
        }
}

/* The kernels' own texts: what every kernel begins with is part of every key; a table longer than the set still counts. */
static void keys_of_the_kernels(void **state)
{
    (void)state;
    assert_true(mf_cuda_text_count > 20 && mf_cuda_text_count <= MF_MOST_TEXTS);
    static cuda_text other[MF_MOST_TEXTS + 2];
    const char *text = "#define IDX int\n#include \"device.cuh\"\n#include \"operands.cuh\"\n#include \"rows.cu\"\n";
    unsigned needed = 0;
    for (unsigned i = 0; i < mf_cuda_text_count; i++) {
        memcpy(other, mf_cuda_texts, mf_cuda_text_count * sizeof *other);
        other[i].text = "changed";
        bool needs = !same_key(mf_cuda_texts, other, mf_cuda_text_count, text);
        needed += needs;
        const char *name = mf_cuda_texts[i].name;
        if (strcmp(name, "device.cuh") == 0 || strcmp(name, "rows.cu") == 0 || strcmp(name, "program.cu") == 0 ||
            strcmp(name, "graph/graph.h") == 0)
            assert_true(needs);
        if (strcmp(name, "attention.cu") == 0 || strcmp(name, "rnn_tiles.cuh") == 0)
            assert_false(needs);
    }
    printf("%u of %u texts are part of a row's kernel\n", needed, mf_cuda_text_count);
    for (unsigned i = 0; i < MF_MOST_TEXTS + 2; i++)
        other[i] = (cuda_text){i % 2 ? "odd" : "even", "x"};
    static cuda_text longer[MF_MOST_TEXTS + 2];
    memcpy(longer, other, sizeof other);
    longer[MF_MOST_TEXTS + 1].text = "y";
    assert_false(same_key(other, longer, MF_MOST_TEXTS + 2, "#include \"odd\"\n"));
}

/* ---- texts ---- */

static mf_graph *a_graph(void)
{
    memfit_error err = {0};
    mf_build b;
    mf_graph *graph = NULL;
    mf_build_begin(&b, NULL, &err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, mf_shape_make(4, (int64_t[]){2, 8, 8, 16}));
    uint32_t w = mf_g_input(&b, "w", MF_F32, mf_shape_make(4, (int64_t[]){3, 3, 16, 32}));
    mf_window window = {.dims = 2,
                        .kernel = {3, 3},
                        .stride = {1, 1},
                        .dilation = {1, 1},
                        .before = {1, 1},
                        .after = {1, 1},
                        .groups = 1};
    uint32_t y = mf_g_reduce(&b, MF_REDUCE_SUM, mf_g_conv(&b, x, w, MF_NONE, &window), 7, false);
    assert_ok(mf_build_end_keeping(&b, 1, &y, &graph), err);
    return graph;
}

/* The same operation has the same text; every allocation may fail. */
static void texts_are_made_or_not_at_all(void **state)
{
    (void)state;
    mf_graph *g = a_graph();
    for (uint32_t op = 0; op < g->op_count; op++) {
        memfit_error err = {0};
        cuda_spec a, b;
        assert_ok(cuda_spec_make(NULL, g, op, 256, &a, &err), err);
        assert_ok(cuda_spec_make(NULL, g, op, 256, &b, &err), err);
        assert_true((a.text == NULL) == (b.text == NULL));
        if (a.text)
            assert_string_equal(a.text, b.text);
        cuda_spec_end(&a);
        cuda_spec_end(&b);
        for (uint64_t n = 1;; n++) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, n, true);
            memfit_status status = cuda_spec_make(&fault.host, g, op, 256, &a, &err);
            if (status == MEMFIT_OK)
                cuda_spec_end(&a);
            else
                assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
            assert_int_equal(fault.live_bytes, 0);
            if (status == MEMFIT_OK)
                break;
        }
    }
    mf_graph_destroy(g);
}

/* ---- a library that lists what it cannot make ---- */

static void stub_destroy(cuda_engine *engine)
{
    (void)engine;
}

static memfit_status stub_module(cuda_engine *engine, const char *text, cuda_module **module, memfit_error *err)
{
    (void)text;
    (void)err;
    *module = (cuda_module *)engine;
    return MEMFIT_OK;
}

static memfit_status stub_function(cuda_engine *engine, cuda_module *module, const char *name, cuda_function **function,
                                   memfit_error *err)
{
    (void)module;
    (void)name;
    (void)err;
    *function = (cuda_function *)engine;
    return MEMFIT_OK;
}

static unsigned refusals;

static memfit_status stub_call(cuda_engine *engine, const mf_graph *graph, uint32_t op, const mf_method *method,
                               cuda_call **call, memfit_error *err)
{
    (void)engine;
    (void)graph;
    (void)op;
    (void)call;
    assert_int_equal(method->id[0], CUDA_ATTENTION);
    mf_fail(err, MEMFIT_DEVICE, "cuDNN refused plan %u", ++refusals);
    return MEMFIT_OK; /* own kernels serve */
}

/* What a library listed and then cannot make runs on own kernels; the run's notes say so, once, with the first reason. */
static void a_refused_plan_is_said(void **state)
{
    (void)state;
    static const cuda_engine_table table = {
        .destroy = stub_destroy, .module = stub_module, .function = stub_function, .call = stub_call};
    cuda_engine engine = {.table = &table, .block = 256};
    mf_backend *backend = NULL;
    memfit_error err = {0};
    mf_graph *g = a_graph();
    assert_ok(mf_cuda_create_on(NULL, &engine, &backend, &err), err);
    mf_method own = {.id = {CUDA_OWN}}, listed = {.id = {CUDA_ATTENTION}};
    const mf_method *methods[] = {&own, &listed, &listed};
    for (unsigned i = 0; i < 3; i++) {
        mf_kernel *kernel = NULL;
        assert_ok(backend->table->prepare(backend, g, g->op_count - 1, methods[i], &kernel, i < 2 ? &err : NULL), err);
        assert_string_equal(backend->note, i == 0 ? "" : "attention runs on own kernels, slower: cuDNN refused plan 1");
        backend->table->release(backend, kernel);
    }
    assert_int_equal(refusals, 2);
    backend->table->destroy(backend);
    mf_graph_destroy(g);
}

/* ---- cuDNN ---- */

static void answers_for_a_described_card(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_cudnn *dnn = NULL;
    if (mf_cudnn_open(mf_finder_default(), NULL, &dnn, &err) != MEMFIT_OK) {
        printf("cuDNN is not here: %.100s\n", err.message);
        skip();
    }
    char path[600], json[4096];
    snprintf(path, sizeof path, "%s/tests/fixtures/cuda/h200.json", getenv("MEMFIT_SOURCE"));
    assert_true(mf_os_read_text(path, json, sizeof json));
    assert_int_equal(mf_cudnn_describe(dnn, "{no json", 8, &err), MEMFIT_DEVICE);
    assert_ok(mf_cudnn_describe(dnn, json, strlen(json), &err), err);
    mf_graph *g = a_graph();
    for (uint32_t op = 0; op < g->op_count; op++) {
        mf_cudnn_convolution conv;
        if (g->ops[op].kind != MF_OP_CONV)
            continue;
        assert_true(cuda_convolution_of(g, &g->ops[op], &conv));
        for (int direction = 0; direction < 3; direction++)
            for (int type = 0; type < 3; type++) {
                mf_cudnn_way list[48], again[48];
                uint32_t count = 0, count_again = 0, plain = 0;
                conv.direction = (mf_cudnn_direction)direction;
                conv.type = (mf_cudnn_type)type;
                assert_ok(mf_cudnn_ask(dnn, &conv, list, 48, &count, &err), err);
                assert_ok(mf_cudnn_ask(dnn, &conv, again, 48, &count_again, &err), err);
                assert_int_equal(count, count_again);
                for (uint32_t i = 0; i < count; i++) {
                    assert_true(list[i].engine == again[i].engine && list[i].settings == again[i].settings &&
                                list[i].workspace_bytes == again[i].workspace_bytes);
                    plain += list[i].deterministic && !list[i].tf32 && !list[i].compiled;
                }
                assert_true(plain > 0); /* there is a way that is allowed by default */
            }
    }
    /* a bias in the library's own sum: in 16 bits there is a precompiled way for what networks have */
    for (int kernel = 1; kernel <= 3; kernel += 2) {
        mf_cudnn_convolution conv = {.type = MF_CUDNN_BF16,
                                     .bias = true,
                                     .dims = 2,
                                     .batch = 256,
                                     .in_channels = 64,
                                     .out_channels = 256,
                                     .groups = 1,
                                     .in = {56, 56},
                                     .out = {56, 56},
                                     .kernel = {kernel, kernel},
                                     .stride = {1, 1},
                                     .dilation = {1, 1},
                                     .before = {kernel / 2, kernel / 2},
                                     .after = {kernel / 2, kernel / 2}};
        mf_cudnn_way list[48];
        uint32_t count = 0, plain = 0;
        assert_ok(mf_cudnn_ask(dnn, &conv, list, 48, &count, &err), err);
        for (uint32_t i = 0; i < count; i++)
            plain += list[i].deterministic && !list[i].compiled;
        printf("%dx%d with a bias: %u ways, %u precompiled\n", kernel, kernel, count, plain);
        assert_true(plain > 0);
    }
    mf_graph_destroy(g);
    mf_cudnn_close(dnn);
}

/* Engines for attention are compiled at run time: cuDNN lists them only where a driver can be opened; the toolkit's stub
 * of one is enough. */
static bool open_driver_or_stub(const mf_cudnn *dnn)
{
    char path[600];
    const char *end = strrchr(mf_cudnn_path(dnn), '/');
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL))
        return true;
    snprintf(path, sizeof path, "%.*s/stubs/libcuda.so", end ? (int)(end - mf_cudnn_path(dnn)) : 0, mf_cudnn_path(dnn));
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL;
}

static void attention_has_ways_that_repeat(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_cudnn *dnn = NULL;
    char path[600], json[4096];
    if (mf_cudnn_open(mf_finder_default(), NULL, &dnn, &err) != MEMFIT_OK)
        skip();
    if (!open_driver_or_stub(dnn)) {
        mf_cudnn_close(dnn);
        skip();
    }
    snprintf(path, sizeof path, "%s/tests/fixtures/cuda/h200.json", getenv("MEMFIT_SOURCE"));
    assert_true(mf_os_read_text(path, json, sizeof json));
    assert_ok(mf_cudnn_describe(dnn, json, strlen(json), &err), err);
    for (int form = 0; form < 8; form++) {
        mf_cudnn_attention a = {.backward = form & 1,
                                .causal = form & 2,
                                .type = form & 4 ? MF_CUDNN_F16 : MF_CUDNN_BF16,
                                .steps_first = !(form & 4),
                                .batch = 8,
                                .heads = 12,
                                .queries = form & 4 ? 196 : 1024,
                                .keys = form & 4 ? 196 : 1024,
                                .depth = 64,
                                .scale = 0.125};
        mf_cudnn_way list[16];
        uint32_t count = 0;
        assert_ok(mf_cudnn_ask_attention(dnn, &a, list, 16, &count, &err), err);
        printf("attention %d: %u ways, the first with %llu bytes\n", form, count,
               (unsigned long long)list[0].workspace_bytes);
        assert_true(count > 0);
        /* a gradient that repeats keeps the slopes of all scores, in 16 bits */
        uint64_t scores = (uint64_t)(a.batch * a.heads * a.queries * a.keys) * 2;
        for (uint32_t i = 0; i < count; i++)
            assert_true(list[i].compiled && (!a.backward || list[i].workspace_bytes >= scores));
    }
    mf_cudnn_close(dnn);
}

/* The values that stand in cudnn_values.h, as text, against NVIDIA's header where it is. */
static void values_are_cudnns(void **state)
{
    (void)state;
    static const char *const places[] = {"/usr/local/cuda/include", "/usr/include", "/usr/include/x86_64-linux-gnu"};
    const char *compiler = getenv("CC") ? getenv("CC") : "cc";
    char source[600], command[900], header[200];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(header, sizeof header, "%s/cudnn_graph.h", places[i]);
        if (access(header, R_OK) != 0)
            continue;
        snprintf(source, sizeof source, "%s/values.c", folder);
        FILE *f = fopen(source, "w");
        assert_non_null(f);
        fprintf(f, "#include <cudnn.h>\n");
#define X(name, value) fprintf(f, "_Static_assert(CUDNN_" #name " == " #value ", \"" #name "\");\n");
        MF_CUDNN_VALUES(X)
#undef X
        fclose(f);
        snprintf(command, sizeof command, "%s -std=c11 -w -I%s -fsyntax-only %s", compiler, places[i], source);
        assert_int_equal(system(command), 0);
        return;
    }
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_kept),
        cmocka_unit_test(damage_is_absence),
        cmocka_unit_test(the_folder_is_the_users_alone),
        cmocka_unit_test(an_unusable_folder_is_named),
        cmocka_unit_test(a_full_disk_keeps_nothing),
        cmocka_unit_test(keys_follow_what_is_included),
        cmocka_unit_test(keys_of_the_kernels),
        cmocka_unit_test(texts_are_made_or_not_at_all),
        cmocka_unit_test(a_refused_plan_is_said),
        cmocka_unit_test(answers_for_a_described_card),
        cmocka_unit_test(values_are_cudnns),
        cmocka_unit_test(attention_has_ways_that_repeat), /* last: it may open a driver's stub */
    };
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 ? failed : 1;
}
