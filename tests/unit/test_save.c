/* test_save.c: models written back: in place, extended, from nothing; checkpoints; faults. */
#include "test.h"

#include "base/os.h"
#include "model/keras/keras_save.h"

#include <fcntl.h>
#include <sys/stat.h>

static const char *fixture(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/tests/fixtures/keras/%s", getenv("MEMFIT_SOURCE") ? getenv("MEMFIT_SOURCE") : ".",
             name);
    return path;
}

static const char *temporary(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/memfit-save-%ld-%s", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid(),
             name);
    return path;
}

static mf_model *load(const char *path)
{
    mf_model *m = NULL;
    memfit_error err;
    assert_ok(mf_model_load_flags(NULL, path, MF_LOAD_VERIFY, &m, &err), err);
    return m;
}

enum { MOST = 256 };
typedef struct set {
    mf_arena arena;
    mf_save_array weights[MOST], optimizer[MOST];
    uint32_t weight_count, optimizer_count;
} set;

static void *changed(set *s, const mf_stored *stored, unsigned char add)
{
    unsigned char *p = mf_arena_alloc(&s->arena, stored->bytes + 1);
    for (uint64_t i = 0; i < stored->bytes; i++)
        p[i] = (unsigned char)(((const unsigned char *)stored->data)[i] + add);
    return p;
}

static void collect_layers(set *s, const mf_model *m, const char *prefix, unsigned char add)
{
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const mf_layer *l = &m->layers[i];
        const char *name = mf_arena_printf(&s->arena, "%s%s", prefix, l->name);
        for (uint32_t k = 0; k < l->stored_count; k++)
            s->weights[s->weight_count++] = (mf_save_array){name, l->stored[k].path, l->stored[k].dtype,
                                                            l->stored[k].shape, changed(s, &l->stored[k], add)};
        if (l->inner)
            collect_layers(s, l->inner, mf_arena_printf(&s->arena, "%s/", name), add);
    }
}

static void collect(set *s, const mf_model *m, unsigned char add)
{
    mf_arena_init(&s->arena, NULL);
    s->weight_count = s->optimizer_count = 0;
    collect_layers(s, m, "", add);
    for (uint32_t i = 0; i < m->optimizer_count; i++)
        s->optimizer[s->optimizer_count++] = (mf_save_array){
            .dtype = m->optimizer[i].dtype, .shape = m->optimizer[i].shape, .data = changed(s, &m->optimizer[i], add)};
}

static void compare_stored(const mf_stored *a, const mf_stored *b, unsigned char add)
{
    assert_string_equal(a->path, b->path);
    assert_int_equal(a->dtype, b->dtype);
    assert_true(mf_shape_equal(&a->shape, &b->shape));
    for (uint64_t i = 0; i < a->bytes; i++)
        assert_int_equal((unsigned char)(((const unsigned char *)a->data)[i] + add),
                         ((const unsigned char *)b->data)[i]);
}

static void compare(const mf_model *a, const mf_model *b, unsigned char add)
{
    assert_int_equal(a->layer_count, b->layer_count);
    for (uint32_t i = 0; i < a->layer_count; i++) {
        assert_string_equal(a->layers[i].name, b->layers[i].name);
        assert_int_equal(a->layers[i].stored_count, b->layers[i].stored_count);
        for (uint32_t k = 0; k < a->layers[i].stored_count; k++)
            compare_stored(&a->layers[i].stored[k], &b->layers[i].stored[k], add);
        if (a->layers[i].inner)
            compare(a->layers[i].inner, b->layers[i].inner, add);
    }
    assert_int_equal(a->unclaimed_count, b->unclaimed_count);
}

static const char *const files[] = {
    "dense_adam.keras",    "dense_adam.h5",   "conv_rmsprop.keras", "conv_rmsprop.h5", "nested.keras",
    "nested.h5",           "recurrent.keras", "recurrent.h5",       "attention.keras", "functional_shared.keras",
    "kinds.keras",         "bfloat.keras",    "custom_layer.keras", "mixed.keras",     "windows_2_15.keras",
    "skipping_2_13.keras", "deflated.keras"};

static void every_array_goes_back(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        mf_model *before = load(fixture(files[f])), *after;
        static set s;
        memfit_error err;
        collect(&s, before, 3);
        mf_save_options options = {.weights = s.weights,
                                   .weight_count = s.weight_count,
                                   .optimizer = s.optimizer,
                                   .optimizer_count = s.optimizer_count};
        const char *path = temporary("model");
        assert_ok(mf_model_save(NULL, before, &options, path, &err), err);
        after = load(path);
        assert_int_equal(after->container, before->container);
        compare(before, after, 3);
        assert_int_equal(after->optimizer_count, before->optimizer_count);
        for (uint32_t i = 0; i < before->optimizer_count; i++)
            compare_stored(&before->optimizer[i], &after->optimizer[i], 3);
        mf_model_destroy(after);
        mf_model_destroy(before);
        mf_arena_destroy(&s.arena);
        unlink(path);
    }
}

/* The same through a weights file made anew, as for models that came without weights. */
static void fresh_files_hold_the_same(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        if (strstr(files[f], ".h5"))
            continue;
        mf_model *before = load(fixture(files[f])), *after;
        static set s;
        memfit_error err;
        collect(&s, before, 5);
        struct mf_hdf5 *hdf5 = before->hdf5;
        before->hdf5 = NULL;
        mf_save_options options = {.weights = s.weights,
                                   .weight_count = s.weight_count,
                                   .optimizer = s.optimizer,
                                   .optimizer_count = s.optimizer_count,
                                   .extra_name = "state",
                                   .extra = "12345",
                                   .extra_bytes = 5};
        const char *path = temporary("model");
        assert_ok(mf_model_save(NULL, before, &options, path, &err), err);
        before->hdf5 = hdf5;
        after = load(path);
        compare(before, after, 5);
        const void *extra;
        uint64_t bytes;
        assert_ok(mf_model_extra(after, "state", &extra, &bytes, &err), err);
        assert_int_equal(bytes, 5);
        assert_memory_equal(extra, "12345", 5);
        assert_int_equal(mf_model_extra(before, "state", &extra, &bytes, &err), MEMFIT_NOT_FOUND);
        mf_model_destroy(after);
        mf_model_destroy(before);
        mf_arena_destroy(&s.arena);
        unlink(path);
    }
}

/* A checkpoint of a model that came as HDF5: added, replaced, taken away again. */
static void hdf5_files_hold_the_extra_too(void **state)
{
    (void)state;
    memfit_error err;
    const void *extra;
    uint64_t bytes;
    static const char *const texts[] = {"12345", "67890", "longer than before", NULL};
    mf_model *m = load(fixture("dense_adam.h5"));
    assert_int_equal(mf_model_extra(m, "state", &extra, &bytes, &err), MEMFIT_NOT_FOUND);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        static set s;
        collect(&s, m, 7);
        mf_save_options options = {.weights = s.weights,
                                   .weight_count = s.weight_count,
                                   .optimizer = s.optimizer,
                                   .optimizer_count = s.optimizer_count,
                                   .extra_name = "state",
                                   .extra = texts[i],
                                   .extra_bytes = texts[i] ? strlen(texts[i]) : 0};
        const char *path = temporary("model");
        assert_ok(mf_model_save(NULL, m, &options, path, &err), err);
        mf_model *after = load(path);
        compare(m, after, 7);
        memfit_status st = mf_model_extra(after, "state", &extra, &bytes, &err);
        assert_int_equal(st, texts[i] ? MEMFIT_OK : MEMFIT_NOT_FOUND);
        if (texts[i]) {
            assert_int_equal(bytes, strlen(texts[i]));
            assert_memory_equal(extra, texts[i], bytes);
        }
        mf_model_destroy(m);
        mf_arena_destroy(&s.arena);
        m = after;
        unlink(path);
    }
    mf_model_destroy(m);
}

/* An optimizer's state that was not there, with new compile settings; then a checkpoint of that again. */
static void optimizer_state_is_added(void **state)
{
    (void)state;
    static const char *const names[] = {"dense_uncompiled.keras", "sgd_momentum.h5", "sgd_momentum.keras"};
    static const char settings[] =
        "{\"optimizer\": {\"class_name\": \"Adam\", \"config\": {\"learning_rate\": 0.5}}, \"loss\": \"mse\"}";
    for (size_t f = 0; f < 3; f++) {
        mf_model *before = load(fixture(names[f])), *after;
        static set s;
        memfit_error err;
        mf_json *compile;
        int64_t iteration = 41;
        float rate = 0.5f;
        mf_shape scalar = {0};
        collect(&s, before, 0);
        assert_ok(mf_json_parse(&s.arena, settings, sizeof settings - 1, &compile, &err), err);
        uint32_t n = 0;
        s.optimizer[n++] = (mf_save_array){.dtype = MF_I64, .shape = scalar, .data = &iteration};
        s.optimizer[n++] = (mf_save_array){.dtype = MF_F32, .shape = scalar, .data = &rate};
        for (uint32_t i = 0; i < s.weight_count; i++)
            for (unsigned k = 0; k < 2; k++)
                s.optimizer[n++] = s.weights[i];
        mf_save_options options = {.weights = s.weights,
                                   .weight_count = s.weight_count,
                                   .optimizer = s.optimizer,
                                   .optimizer_count = n,
                                   .compile = compile};
        const char *path = temporary("model");
        assert_ok(mf_model_save(NULL, before, &options, path, &err), err);
        after = load(path);
        assert_int_equal(after->optimizer_count, n);
        assert_int_equal(after->optimizer_count, 2 + 2 * s.weight_count); /* iteration, rate; two moments each */
        assert_memory_equal(after->optimizer[0].data, &iteration, 8);
        assert_string_equal(mf_json_get_string(mf_json_get(after->compile, "optimizer"), "class_name", ""), "Adam");
        compare(before, after, 0);
        mf_model_destroy(after);
        mf_model_destroy(before);
        mf_arena_destroy(&s.arena);
        unlink(path);
    }
}

static void checkpoints_allocate_nothing(void **state)
{
    (void)state;
    mf_model *m = load(fixture("conv_rmsprop.keras"));
    static set s;
    memfit_error err;
    char position[16] = "step 1";
    collect(&s, m, 0);
    mf_save_options options = {.weights = s.weights,
                               .weight_count = s.weight_count,
                               .optimizer = s.optimizer,
                               .optimizer_count = s.optimizer_count,
                               .extra_name = "memfit.state",
                               .extra = position,
                               .extra_bytes = sizeof position};
    mf_fault_host host;
    mf_saver *saver;
    mf_fault_host_init(&host, NULL, 0, false);
    assert_ok(mf_saver_create(&host.host, m, &options, &saver, &err), err);
    assert_int_equal(host.live_bytes, mf_saver_bytes(saver));
    uint64_t calls = host.calls;
    const char *path = temporary("checkpoint");
    for (int step = 1; step < 4; step++) {
        snprintf(position, sizeof position, "step %d", step);
        *(float *)(uintptr_t)s.weights[0].data = (float)step;
        assert_ok(mf_saver_write(saver, path, &err), err);
        mf_model *back = load(path);
        const void *extra;
        uint64_t bytes;
        float value;
        assert_ok(mf_model_extra(back, "memfit.state", &extra, &bytes, &err), err);
        assert_memory_equal(extra, position, sizeof position);
        memcpy(&value, back->layers[1].stored[0].data, 4);
        assert_true(value == (float)step);
        mf_model_destroy(back);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, mf_saver_file_bytes(saver));
    }
    assert_int_equal(host.calls, calls);
    mf_saver_destroy(saver);
    assert_int_equal(host.live_bytes, 0);

    /* A checkpoint of a checkpoint replaces the member instead of piling up. */
    mf_model *again = load(path);
    static set t;
    collect(&t, again, 1);
    options.weights = t.weights;
    options.optimizer = t.optimizer;
    assert_ok(mf_model_save(NULL, again, &options, path, &err), err);
    mf_model *last = load(path);
    assert_int_equal(last->mapping.bytes, again->mapping.bytes);
    mf_model_destroy(last);
    mf_model_destroy(again);
    mf_arena_destroy(&t.arena);
    mf_arena_destroy(&s.arena);
    mf_model_destroy(m);
    unlink(path);
}

static void wrong_requests_are_named(void **state)
{
    (void)state;
    mf_model *m = load(fixture("dense_adam.keras"));
    memfit_error err;
    float values[64] = {0};
    mf_save_array a = {"dense", "vars/0", MF_F32, {2, {4, 5}}, values};
    mf_save_options options = {.weights = &a, .weight_count = 1};
    const char *path = temporary("wrong");
    a.shape.dim[1] = 6;
    assert_int_equal(mf_model_save(NULL, m, &options, path, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "(4, 5)"));
    a.shape.dim[1] = 5;
    a.layer = "ghost";
    assert_int_equal(mf_model_save(NULL, m, &options, path, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "ghost"));
    a.layer = "dense";
    assert_int_equal(mf_model_save(NULL, m, &options, "/nonexistent/folder/x.keras", &err), MEMFIT_IO);
    assert_int_not_equal(access(path, F_OK), 0);
    mf_model_destroy(m);
}

static void every_lack_of_memory_is_survived(void **state)
{
    (void)state;
    static const char *const names[] = {"nested.keras", "dense_adam.h5"};
    const char *path = temporary("fault");
    for (size_t f = 0; f < 2; f++) {
        mf_model *m = load(fixture(names[f]));
        static set s;
        collect(&s, m, 1);
        for (unsigned fresh = 0; fresh < 2; fresh++) {
            struct mf_hdf5 *hdf5 = m->hdf5;
            if (fresh && f == 0)
                m->hdf5 = NULL;
            for (uint64_t n = 1;; n++) {
                mf_fault_host host;
                memfit_error err;
                mf_save_options options = {.weights = s.weights,
                                           .weight_count = s.weight_count,
                                           .optimizer = s.optimizer,
                                           .optimizer_count = s.optimizer_count - fresh,
                                           .compile = fresh ? m->compile : NULL};
                mf_fault_host_init(&host, NULL, n, false);
                memfit_status st = mf_model_save(&host.host, m, &options, path, &err);
                assert_int_equal(host.live_count, 0);
                if (!st)
                    break;
                assert_int_equal(st, MEMFIT_NO_HOST_MEMORY);
                assert_int_not_equal(access(path, F_OK), 0);
            }
            unlink(path);
            m->hdf5 = hdf5;
        }
        mf_arena_destroy(&s.arena);
        mf_model_destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_array_goes_back),
        cmocka_unit_test(fresh_files_hold_the_same),
        cmocka_unit_test(hdf5_files_hold_the_extra_too),
        cmocka_unit_test(optimizer_state_is_added),
        cmocka_unit_test(checkpoints_allocate_nothing),
        cmocka_unit_test(wrong_requests_are_named),
        cmocka_unit_test(every_lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
