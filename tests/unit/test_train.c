/* test_train.c: the reservation and what is measured on it; learning-rate schedules; lack of memory while starting. */
#include "test.h"

#include "base/json.h"
#include "base/memory.h"
#include "base/os.h"
#include "device/device.h"
#include "memfit/model.h"
#include "memfit/train.h"
#include "model/keras/keras_save.h"
#include "train/reserve.h"
#include "train/schedule.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

static void changes_are_seen(void **state)
{
    (void)state;
    mf_reservation r;
    memfit_error err = {0};
    assert_ok(mf_reserve(mf_device_near(), 100000, &r, &err), err);
    assert_ok(mf_reserve_pattern(&r, &err), err);
    unsigned char *base = (unsigned char *)(uintptr_t)r.base;
    assert_false(mf_reserve_changed(&r, 0, 100000));
    for (uint64_t at = 0; at < 100000; at += 9973) {
        base[at] ^= 1;
        assert_true(mf_reserve_changed(&r, at, at + 1));
        assert_false(mf_reserve_changed(&r, at + 1, at + 9973 < 100000 ? at + 9973 : 100000));
        base[at] ^= 1;
    }
    memset(base + 640, 0, 64); /* zeros are a change too */
    assert_true(mf_reserve_changed(&r, 640, 704));
    mf_unreserve(&r);
}

/* An arena 64 bytes shorter than what is written into it must not go unnoticed. */
static void the_guard_traps(void **state)
{
    (void)state;
    mf_reservation r;
    memfit_error err = {0};
    assert_ok(mf_reserve(mf_device_near(), 64 * 1000 - 64, &r, &err), err);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* not cmocka's */
        volatile unsigned char *p = (unsigned char *)(uintptr_t)r.base;
        p[64 * 1000 - 65] = 1; /* the last byte is there */
        p[64 * 1000 - 64] = 1; /* the first behind it is not */
        _exit(0);
    }
    int how = 0;
    waitpid(child, &how, 0);
    assert_true(WIFSIGNALED(how) || WEXITSTATUS(how) != 0); /* a signal, or a sanitizer's report of it */
    mf_unreserve(&r);
}

static void what_is_not_there_is_refused(void **state)
{
    (void)state;
    mf_reservation r;
    memfit_error err = {0};
    assert_int_equal(mf_reserve(mf_device_near(), 1ull << 50, &r, &err), MEMFIT_OUT_OF_MEMORY);
    assert_int_equal(err.requested_bytes, 1ull << 50);
    assert_true(err.limit_bytes > 0 && err.message[0]);
}

static void schedules_follow_keras(void **state)
{
    (void)state;
    static const uint64_t at[] = {0, 3, 5, 6, 10, 11, 17, 25};
    /* Values computed by keras.optimizers.schedules, in float32. */
    static const struct {
        const char *class_name, *config;
        double rate[8];
    } cases[] = {
        {"ExponentialDecay",
         "\"initial_learning_rate\": 0.1, \"decay_steps\": 10, \"decay_rate\": 0.5, \"staircase\": false",
         {0.1, 0.081225239, 0.070710681, 0.06597539, 0.050000001, 0.04665165, 0.030778611, 0.01767767}},
        {"ExponentialDecay",
         "\"initial_learning_rate\": 0.1, \"decay_steps\": 10, \"decay_rate\": 0.5, \"staircase\": true",
         {0.1, 0.1, 0.1, 0.1, 0.050000001, 0.050000001, 0.050000001, 0.025}},
        {"InverseTimeDecay",
         "\"initial_learning_rate\": 0.1, \"decay_steps\": 10, \"decay_rate\": 0.5, \"staircase\": false",
         {0.1, 0.086956523, 0.079999998, 0.07692308, 0.06666667, 0.064516135, 0.054054055, 0.044444446}},
        {"InverseTimeDecay",
         "\"initial_learning_rate\": 0.1, \"decay_steps\": 10, \"decay_rate\": 0.5, \"staircase\": true",
         {0.1, 0.1, 0.1, 0.1, 0.06666667, 0.06666667, 0.06666667, 0.050000001}},
        {"PolynomialDecay",
         "\"initial_learning_rate\": 0.1, \"decay_steps\": 10, \"end_learning_rate\": 0.01, \"power\": 2.0, \"cycle\": "
         "false",
         {0.1, 0.054099999, 0.032499999, 0.0244, 0.0099999998, 0.0099999998, 0.0099999998, 0.0099999998}},
        {"PolynomialDecay",
         "\"initial_learning_rate\": 0.1, \"decay_steps\": 10, \"end_learning_rate\": 0.01, \"power\": 1.0, \"cycle\": "
         "true",
         {0.1, 0.072999999, 0.055, 0.045999996, 0.0099999998, 0.050499998, 0.023499999, 0.025000002}},
        {"CosineDecay",
         "\"initial_learning_rate\": 0.1, \"decay_steps\": 10, \"alpha\": 0.1",
         {0.1, 0.081450336, 0.054999996, 0.041094225, 0.010000001, 0.010000001, 0.010000001, 0.010000001}},
        {"CosineDecay",
         "\"initial_learning_rate\": 0.02, \"decay_steps\": 10, \"alpha\": 0.0, \"warmup_target\": 0.1, "
         "\"warmup_steps\": 5",
         {0.02, 0.068000004, 0.1, 0.097552828, 0.049999997, 0.034549143, 0, 0}},
        {"CosineDecayRestarts",
         "\"initial_learning_rate\": 0.1, \"first_decay_steps\": 10, \"t_mul\": 2.0, \"m_mul\": 0.5, \"alpha\": 0.05",
         {0.1, 0.080419801, 0.052499998, 0.037821684, 0.052499998, 0.052207597, 0.039532274, 0.011956215}},
        {"CosineDecayRestarts",
         "\"initial_learning_rate\": 0.1, \"first_decay_steps\": 10, \"t_mul\": 1.0, \"m_mul\": 0.9, \"alpha\": 0.0",
         {0.1, 0.079389267, 0.049999997, 0.034549143, 0.089999996, 0.087797545, 0.018549656, 0.040499996}},
        {"PiecewiseConstantDecay",
         "\"boundaries\": [5, 10], \"values\": [0.3, 0.2, 0.1]",
         {0.30000001, 0.30000001, 0.30000001, 0.2, 0.2, 0.1, 0.1, 0.1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mf_arena arena;
        mf_json *json;
        mf_schedule s;
        memfit_error err = {0};
        mf_arena_init(&arena, NULL);
        char *text =
            mf_arena_printf(&arena, "{\"class_name\": \"%s\", \"config\": {%s}}", cases[i].class_name, cases[i].config);
        assert_ok(mf_json_parse(&arena, text, strlen(text), &json, &err), err);
        assert_ok(mf_schedule_read(json, 0.001, &s, &err), err);
        for (size_t k = 0; k < sizeof at / sizeof *at; k++)
            if (!(fabs(mf_schedule_at(&s, at[k]) - cases[i].rate[k]) <= 2e-7))
                fail_msg("%s at %u: %g instead of %g", text, (unsigned)at[k], mf_schedule_at(&s, at[k]),
                         cases[i].rate[k]);
        mf_arena_destroy(&arena);
    }
    /* No steps to decay over would be a rate that is no number. */
    static const char none[] = "{\"class_name\": \"CosineDecay\", \"config\": {\"decay_steps\": 0}}";
    mf_schedule s;
    mf_json *json;
    memfit_error err;
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    assert_ok(mf_json_parse(&arena, none, sizeof none - 1, &json, &err), err);
    assert_int_equal(mf_schedule_read(json, 0.001, &s, &err), MEMFIT_DAMAGED);
    mf_arena_destroy(&arena);
    assert_ok(mf_schedule_read(NULL, 0.25, &s, NULL), (memfit_error){0});
    assert_true(mf_schedule_at(&s, 7) == 0.25);
}

/* False when the fixtures are not there. */
static bool fixture_path(const char *name, char *path, size_t bytes)
{
    const char *source = getenv("MEMFIT_SOURCE");
    snprintf(path, bytes, "%s/tests/fixtures/%s", source ? source : ".", name);
    return access(path, R_OK) == 0;
}

/* ---- resuming --------------------------------------------------------------------------------------------- */

typedef struct seen {
    int64_t epoch, step;
    int64_t epoch_end; /* no padding: compared as bytes */
    double loss, val_loss, rate, metrics[4];
} seen;

typedef struct diary {
    seen events[128];
    size_t count;
} diary;

static void note(void *ctx, const memfit_train_event *event)
{
    diary *d = ctx;
    if (d->count == sizeof d->events / sizeof *d->events)
        return;
    seen *e = &d->events[d->count++];
    *e =
        (seen){event->epoch,         event->step, event->epoch_end, event->loss, event->validated ? event->val_loss : 0,
               event->learning_rate, {0}};
    for (uint32_t i = 0; i < event->metric_count && i < 4; i++)
        e->metrics[i] = event->metrics[i];
}

/* Stopped in the middle of an epoch, a run goes on as if nothing had been: running means and metrics, the order of the
 * samples, the rate that a plateau lowered, and how long it still waits before it stops. The rate is so small that
 * nothing is learned: the validation loss is the same in each epoch, so that both waits count. */
static void check_resuming(const char *model, bool each_epoch)
{
    enum { PER_EPOCH = 8, STOP = 4 * PER_EPOCH + 4 };
    static diary whole, part, rest;
    whole.count = part.count = rest.count = 0;
    char checkpoint[64] = "/tmp/memfit-train-XXXXXX";
    assert_non_null(mkdtemp(checkpoint));
    strcat(checkpoint, "/c.keras");
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.model = model;
    o.data = "synthetic:96";
    o.validation_split = 1.0 / 3;
    o.batch = 8;
    o.epochs = 12;
    o.seed = 5;
    o.learning_rate = 1e-30;
    o.early_stopping = 6;
    o.reduce_on_plateau = 3; /* at the stop below: no epoch waited of these, three of those */
    o.progress = note;
    o.ctx = &whole;
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_true(r.stopped_early);
    assert_int_equal(r.epochs, 7);
    assert_int_equal(whole.count, 7 * (PER_EPOCH + 1));

    memfit_train_options first = o;
    first.checkpoint = checkpoint;
    first.save_freq = each_epoch ? 0 : STOP;
    first.steps = STOP;
    first.ctx = &part;
    assert_ok(memfit_train(&first, &r, &err), err);
    memfit_train_options second = o;
    second.resume = checkpoint;
    second.ctx = &rest;
    assert_ok(memfit_train(&second, &r, &err), err);
    size_t before = 4 * (PER_EPOCH + 1) + 4;
    assert_int_equal(rest.count, whole.count - before);
    for (size_t i = 0; i < rest.count; i++)
        if (memcmp(&rest.events[i], &whole.events[before + i], sizeof *rest.events) != 0)
            fail_msg("epoch %lld step %lld: loss %.9g, %.9g undisturbed; rate %g, %g; metric %.9g, %.9g",
                     (long long)rest.events[i].epoch, (long long)rest.events[i].step, rest.events[i].loss,
                     whole.events[before + i].loss, rest.events[i].rate, whole.events[before + i].rate,
                     rest.events[i].metrics[0], whole.events[before + i].metrics[0]);
    assert_true(whole.events[0].rate > 9 * whole.events[whole.count - 1].rate); /* the plateau did cut it */
    unlink(checkpoint);
    *strrchr(checkpoint, '/') = 0;
    rmdir(checkpoint);
}

static void a_resumed_run_is_the_undisturbed_one(void **state)
{
    (void)state;
    char path[512];
    if (!fixture_path("train/mlp.keras", path, sizeof path))
        skip();
    check_resuming(path, false);
    check_resuming(path, true);

    memfit_model *m; /* an AUC's state is a table, not a sum and a count */
    memfit_error err = {0};
    assert_ok(memfit_model_create_sequential(NULL, "auc", &m, &err), err);
    memfit_model_add_input(m, 1, (const int64_t[]){6});
    memfit_model_add_dense(m, 5, "relu");
    memfit_model_add_dense(m, 1, "sigmoid");
    memfit_model_compile(m, "sgd", 0, "binary_crossentropy", "auc");
    snprintf(path, sizeof path, "/tmp/memfit-auc-%d.keras", (int)getpid());
    assert_ok(memfit_model_save(m, path, &err), err);
    memfit_model_destroy(m);
    check_resuming(path, false);
    unlink(path);
}

/* Whatever was best, and wherever the run before left it: at the end there is a model. */
static void keeping_the_best_leaves_a_model(void **state)
{
    (void)state;
    char model[512], folder[64] = "/tmp/memfit-best-XXXXXX", out[96], checkpoint[96];
    if (!fixture_path("train/mlp.keras", model, sizeof model))
        skip();
    assert_non_null(mkdtemp(folder));
    snprintf(out, sizeof out, "%s/out.keras", folder);
    snprintf(checkpoint, sizeof checkpoint, "%s/c.keras", folder);
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.model = model;
    o.data = "synthetic:32";
    o.validation_split = 0.5;
    o.learning_rate = 1e-30; /* nothing gets better after the first epoch */
    o.keep_best = true;
    o.out = out;
    o.checkpoint = checkpoint;
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_int_equal(unlink(out), 0);
    o.resume = checkpoint;
    o.epochs = 3;
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_int_equal(r.epochs, 3);
    assert_int_equal(unlink(out), 0);
    unlink(checkpoint);
    assert_int_equal(rmdir(folder), 0);
}

/* One training step of a float16 model whose loss scale and count of good steps were set so before. */
static void step_at_scale(float scale, int64_t good, float *scale_after, int64_t *good_after, int64_t *iteration)
{
    char path[512], before[64], out[64];
    assert_true(fixture_path("keras/mixed.keras", path, sizeof path));
    snprintf(before, sizeof before, "/tmp/memfit-scale-%d.keras", (int)getpid());
    snprintf(out, sizeof out, "/tmp/memfit-scaled-%d.keras", (int)getpid());
    mf_model *model;
    memfit_error err = {0};
    assert_ok(mf_model_load(NULL, path, &model, &err), err);
    mf_save_options save = {.loss_scale = &scale, .scale_steps = &good};
    mf_save_array arrays[64];
    assert_true(model->optimizer_count <= 64);
    for (uint32_t i = 0; i < model->optimizer_count; i++)
        arrays[i] = (mf_save_array){
            .dtype = model->optimizer[i].dtype, .shape = model->optimizer[i].shape, .data = model->optimizer[i].data};
    save.optimizer = arrays;
    save.optimizer_count = model->optimizer_count;
    assert_ok(mf_model_save(NULL, model, &save, before, &err), err);
    mf_model_destroy(model);
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    o.model = before;
    o.out = out;
    o.data = "synthetic:4";
    o.batch = 4;
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_int_equal(r.steps, 1);
    assert_ok(mf_model_load(NULL, out, &model, &err), err);
    assert_true(model->outer_optimizer_count >= 4 && model->optimizer_count >= 1);
    memcpy(good_after, model->outer_optimizer[2].data, 8);
    memcpy(scale_after, model->outer_optimizer[3].data, 4);
    /* Keras keeps the wrapped optimizer's arrays twice: both are the new ones. */
    assert_int_equal(model->outer_optimizer_count, 4 + model->optimizer_count);
    for (uint32_t i = 0; i < model->optimizer_count; i++)
        assert_memory_equal(model->outer_optimizer[4 + i].data, model->optimizer[i].data, model->optimizer[i].bytes);
    *iteration = 0;
    memcpy(iteration, model->optimizer[0].data, model->optimizer[0].bytes);
    mf_model_destroy(model);
    unlink(before);
    unlink(out);
}

/* Halved when a gradient overflows, which is no step; doubled after 2000 good ones. */
static void the_loss_scale_moves_as_in_keras(void **state)
{
    (void)state;
    char path[512];
    if (!fixture_path("keras/mixed.keras", path, sizeof path))
        skip();
    float scale;
    int64_t good, counted, skipped;
    step_at_scale(2, 10, &scale, &good, &counted);
    assert_true(scale == 2 && good == 11);
    step_at_scale(2, 1998, &scale, &good, &counted);
    assert_true(scale == 2 && good == 1999);
    step_at_scale(2, 1999, &scale, &good, &counted);
    assert_true(scale == 4 && good == 0);
    step_at_scale(0x1p100f, 10, &scale, &good, &skipped);
    assert_true(scale == 0x1p99f && good == 0);
    assert_int_equal(skipped, counted - 1);
}

/* Starting fails cleanly wherever host memory runs out: nothing is left behind. */
static void start_without_memory(const char *offload)
{
    char model[512];
    if (!fixture_path("train/mlp.keras", model, sizeof model))
        skip();
    uint64_t step = 1;
    for (uint64_t n = 1;; n += step) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, true);
        memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
        memfit_train_result r = MEMFIT_TRAIN_RESULT;
        memfit_error err = {0};
        o.model = model;
        o.data = "synthetic:32";
        o.host = &fault.host;
        o.offload = offload;
        memfit_status status = memfit_train(&o, &r, &err);
        assert_int_equal(fault.live_count, 0);
        if (status == MEMFIT_OK)
            break;
        assert_true(err.message[0]);
        step = n > 60 ? 7 : 1; /* every call at first, then samples: there are hundreds */
    }
}

static void starting_survives_lack_of_memory(void **state)
{
    (void)state;
    start_without_memory(NULL);
}

static void starting_with_state_in_host_memory_does_too(void **state)
{
    (void)state;
    setenv("MEMFIT_FAR", "1", 1);
    start_without_memory("optimizer");
    unsetenv("MEMFIT_FAR");
}

/* Whatever the limit leaves for the search of a plan, nothing of it is left behind: a plan that was found and given up for
 * another stayed, and took the room of those that came after it. */
static void starting_with_little_room_leaves_nothing(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* those keep what is freed: no limit of this size holds */
#endif
    enum { STEP_BYTES = 96 << 10, TIMES = 64 };
    char model[512];
    if (!fixture_path("train/unet.json", model, sizeof model))
        skip();
    uint32_t trained = 0, refused = 0;
    for (uint64_t n = 0; n < TIMES; n++) {
        mf_fault_host count;
        mf_fault_host_init(&count, NULL, 0, false);
        memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
        memfit_train_result r = MEMFIT_TRAIN_RESULT;
        memfit_error err = {0};
        mf_os_memory now;
        mf_host_trim();
        assert_ok(mf_os_process_memory(&now, &err), err);
        o.model = model;
        o.data = "synthetic:64";
        o.batch = 64;
        o.threads = 1;
        o.steps = 1;
        o.memory_bytes = now.rss_anon + now.rss_shmem + (n + 4) * STEP_BYTES;
        o.host = &count.host;
        memfit_status status = memfit_train(&o, &r, &err);
        assert_true(status == MEMFIT_OK || status == MEMFIT_DOES_NOT_FIT);
        assert_int_equal(count.live_bytes, 0);
        *(status == MEMFIT_OK ? &trained : &refused) += 1;
    }
    assert_true(trained && refused);
}

/* How often the host waits for the device in a run of so many epochs. */
static uint64_t waits_of(int64_t epochs, const char *offload, double validation)
{
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    char model[512];
    assert_true(fixture_path("train/cnn.keras", model, sizeof model));
    o.model = model;
    o.data = "synthetic:160";
    o.batch = 16;
    o.epochs = epochs;
    o.offload = offload;
    o.validation_split = validation;
    uint64_t before = mf_device_far_waits();
    assert_ok(memfit_train(&o, &r, &err), err);
    return mf_device_far_waits() - before;
}

/* Steps are queued, not waited for: an epoch's end is the one wait of training, and one of validation. */
static void an_epoch_waits_once(void **state)
{
    (void)state;
    setenv("MEMFIT_FAR", "1", 1);
    assert_int_equal(waits_of(3, NULL, 0) - waits_of(2, NULL, 0), 1);
    assert_int_equal(waits_of(3, "optimizer", 0) - waits_of(2, "optimizer", 0), 1);
    assert_int_equal(waits_of(3, NULL, 0.2) - waits_of(2, NULL, 0.2), 2);
    unsetenv("MEMFIT_FAR");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_are_seen),
        cmocka_unit_test(the_guard_traps),
        cmocka_unit_test(what_is_not_there_is_refused),
        cmocka_unit_test(schedules_follow_keras),
        cmocka_unit_test(a_resumed_run_is_the_undisturbed_one),
        cmocka_unit_test(keeping_the_best_leaves_a_model),
        cmocka_unit_test(the_loss_scale_moves_as_in_keras),
        cmocka_unit_test(starting_survives_lack_of_memory),
        cmocka_unit_test(starting_with_state_in_host_memory_does_too),
        cmocka_unit_test(starting_with_little_room_leaves_nothing),
        cmocka_unit_test(an_epoch_waits_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
