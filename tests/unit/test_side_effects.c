/*
 * test_side_effects.c: the library in somebody's program: after planning, training, evaluating and a refused call the
 * caller's thread and its OpenMP team have the settings they had, denormal numbers included.
 */
#include "test.h"

#include "memfit/plan.h"
#include "memfit/train.h"

#include <float.h>
#include <immintrin.h>
#include <omp.h>

enum { TEAM = 3, FLUSH = 0x8040 };

typedef struct settings {
    unsigned control[TEAM];
    int threads, dynamic;
} settings;

static settings settings_now(void)
{
    settings s = {.threads = omp_get_max_threads(), .dynamic = omp_get_dynamic()};
#pragma omp parallel num_threads(TEAM)
    s.control[omp_get_thread_num()] = _mm_getcsr() & (FLUSH | _MM_ROUND_MASK | _MM_MASK_MASK);
    return s;
}

/* Half of the smallest normal number is a number, in every thread. */
static bool denormals_count(void)
{
    volatile float least = FLT_MIN;
    int lost = 0;
#pragma omp parallel num_threads(TEAM) reduction(+ : lost)
    {
        volatile float half = least / 2;
        lost += half == 0.0f;
    }
    return !lost;
}

static void check(const settings *before)
{
    settings after = settings_now();
    assert_memory_equal(&after, before, sizeof after);
    assert_true(denormals_count());
}

static const char *fixture(const char *name)
{
    static char path[2][512];
    static unsigned next;
    const char *root = getenv("MEMFIT_SOURCE");
    char *p = path[next++ % 2];
    snprintf(p, sizeof path[0], "%s/tests/fixtures/train/%s", root ? root : ".", name);
    return p;
}

static void planning(void **state)
{
    (void)state;
    memfit_error err = {0};
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    settings before = settings_now();
    for (unsigned threads = 1; threads <= 4; threads++) {
        memfit_plan *plan = NULL;
        o.threads = threads;
        assert_ok(memfit_plan_create(fixture("cnn.keras"), &o, &plan, &err), err);
        check(&before);
        memfit_plan_destroy(plan);
        check(&before);
    }
}

static void training(void **state)
{
    (void)state;
    memfit_error err = {0};
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result result = MEMFIT_TRAIN_RESULT;
    o.model = fixture("cnn.keras");
    o.data = fixture("digits.npz");
    o.batch = 32;
    o.epochs = 1;
    settings before = settings_now();
    for (unsigned threads = 1; threads <= 4; threads++) {
        o.threads = threads;
        assert_ok(memfit_train(&o, &result, &err), err);
        check(&before);
        assert_ok(memfit_evaluate(&o, &result, &err), err);
        check(&before);
    }
    o.data = "/nonexistent.npz";
    assert_int_not_equal(memfit_train(&o, &result, &err), MEMFIT_OK);
    check(&before);
}

/* A caller that flushes denormals itself finds that as it was, too. */
static void a_caller_that_flushes(void **state)
{
#pragma omp parallel num_threads(TEAM)
    _mm_setcsr(_mm_getcsr() | FLUSH);
    settings before = settings_now();
    memfit_error err = {0};
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result result = MEMFIT_TRAIN_RESULT;
    o.model = fixture("cnn.keras");
    o.data = fixture("digits.npz");
    o.epochs = 1;
    assert_ok(memfit_train(&o, &result, &err), err);
    settings after = settings_now();
    assert_memory_equal(&after, &before, sizeof after);
    (void)state;
}

/* GCC makes a team, with memory and a system call at its end, also for what its `if` gives to one thread. */
static void a_region_for_one_is_a_call(void **state)
{
#if defined(__GNUC__) && !defined(__clang__)
    for (int work = 1; work <= 100; work += 99) {
        int level[TEAM] = {-1, -1, -1}, sum = 0;
#pragma omp parallel num_threads(TEAM) if (work > 10) reduction(+ : sum)
        {
            level[omp_get_thread_num()] = omp_get_level();
            sum += omp_get_num_threads();
        }
        assert_int_equal(sum, work > 10 ? TEAM * TEAM : 1);
        for (int i = 0; i < TEAM; i++)
            assert_int_equal(level[i], work > 10 ? 1 : i ? -1 : 0);
    }
    int wrong = 0;
#pragma omp parallel num_threads(TEAM) reduction(+ : wrong)
    {
        int outer = omp_get_thread_num(), inner = -1;
#pragma omp parallel num_threads(TEAM) if (outer > TEAM)
        inner = omp_get_thread_num(); /* 0, not the outer one's */
        wrong += inner != 0 || omp_get_thread_num() != outer;
    }
    assert_int_equal(wrong, 0);
#endif
    (void)state;
}

int main(void)
{
    omp_set_num_threads(TEAM);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planning),
        cmocka_unit_test(training),
        cmocka_unit_test(a_caller_that_flushes),
        cmocka_unit_test(a_region_for_one_is_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
