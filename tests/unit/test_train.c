/* test_train.c: the reservation and what is measured on it; learning-rate schedules; lack of memory while starting. */
#include "test.h"

#include "base/json.h"
#include "base/memory.h"
#include "memfit/train.h"
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
    assert_ok(mf_reserve(100000, &r, &err), err);
    mf_reserve_pattern(&r);
    assert_false(mf_reserve_changed(&r, 0, 100000));
    for (uint64_t at = 0; at < 100000; at += 9973) {
        r.base[at] ^= 1;
        assert_true(mf_reserve_changed(&r, at, at + 1));
        assert_false(mf_reserve_changed(&r, at + 1, at + 9973 < 100000 ? at + 9973 : 100000));
        r.base[at] ^= 1;
    }
    memset(r.base + 640, 0, 64); /* zeros are a change too */
    assert_true(mf_reserve_changed(&r, 640, 704));
    mf_unreserve(&r);
}

/* An arena 64 bytes shorter than what is written into it must not go unnoticed. */
static void the_guard_traps(void **state)
{
    (void)state;
    mf_reservation r;
    memfit_error err = {0};
    assert_ok(mf_reserve(64 * 1000 - 64, &r, &err), err);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* not cmocka's */
        volatile unsigned char *p = r.base;
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
    assert_int_equal(mf_reserve(1ull << 50, &r, &err), MEMFIT_OUT_OF_MEMORY);
    assert_int_equal(err.requested_bytes, 1ull << 50);
    assert_true(err.limit_bytes > 0 && err.message[0]);
}

static void schedules_follow_keras(void **state)
{
    (void)state;
    /* Values computed by keras.optimizers.schedules. */
    static const struct {
        const char *json;
        uint64_t at;
        double rate;
    } cases[] = {
        {"0.25", 10, 0.25},
        {"{\"class_name\":\"ExponentialDecay\",\"config\":{\"initial_learning_rate\":0.1,\"decay_steps\":10,\"decay_"
         "rate\":0.5}}",
         20, 0.025},
        {"{\"class_name\":\"ExponentialDecay\",\"config\":{\"initial_learning_rate\":0.1,\"decay_steps\":10,\"decay_"
         "rate\":0.5,\"staircase\":true}}",
         19, 0.05},
        {"{\"class_name\":\"InverseTimeDecay\",\"config\":{\"initial_learning_rate\":0.1,\"decay_steps\":10,\"decay_"
         "rate\":0.5}}",
         20, 0.05},
        {"{\"class_name\":\"PolynomialDecay\",\"config\":{\"initial_learning_rate\":0.1,\"decay_steps\":10,\"end_"
         "learning_rate\":0.0}}",
         5, 0.05},
        {"{\"class_name\":\"CosineDecay\",\"config\":{\"initial_learning_rate\":0.1,\"decay_steps\":10}}", 5, 0.05},
        {"{\"class_name\":\"CosineDecayRestarts\",\"config\":{\"initial_learning_rate\":0.1,\"first_decay_steps\":10}}",
         20, 0.05},
        {"{\"class_name\":\"PiecewiseConstantDecay\",\"config\":{\"boundaries\":[3,6],\"values\":[1.0,0.5,0.1]}}", 4,
         0.5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mf_arena arena;
        mf_json *json;
        mf_schedule s;
        memfit_error err = {0};
        mf_arena_init(&arena, NULL);
        assert_ok(mf_json_parse(&arena, cases[i].json, strlen(cases[i].json), &json, &err), err);
        assert_ok(mf_schedule_read(json, 0.001, &s, &err), err);
        assert_true(fabs(mf_schedule_at(&s, cases[i].at) - cases[i].rate) < 1e-7);
        mf_arena_destroy(&arena);
    }
}

/* Starting fails cleanly wherever host memory runs out: nothing is left behind. */
static void starting_survives_lack_of_memory(void **state)
{
    (void)state;
    char model[512];
    snprintf(model, sizeof model, "%s/tests/fixtures/train/mlp.keras",
             getenv("MEMFIT_SOURCE") ? getenv("MEMFIT_SOURCE") : ".");
    if (access(model, R_OK) != 0)
        skip();
    uint64_t step = 1;
    for (uint64_t n = 1;; n += step) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, true);
        memfit_train_options o;
        memfit_train_result r;
        memfit_error err = {0};
        memfit_train_options_default(&o);
        o.model = model;
        o.data = "synthetic:32";
        o.host = &fault.host;
        memfit_status status = memfit_train(&o, &r, &err);
        assert_int_equal(fault.live_count, 0);
        if (status == MEMFIT_OK)
            break;
        assert_true(err.message[0]);
        step = n > 60 ? 7 : 1; /* every call at first, then samples: there are hundreds */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_are_seen),
        cmocka_unit_test(the_guard_traps),
        cmocka_unit_test(what_is_not_there_is_refused),
        cmocka_unit_test(schedules_follow_keras),
        cmocka_unit_test(starting_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
