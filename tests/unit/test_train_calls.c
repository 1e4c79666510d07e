/*
 * test_train_calls.c: the rules of the calls themselves: one at a time in a process, options that make no sense, when a
 * caller who wants to stop is heard, and what happens when the process is seen above its limit.
 */
#include "test.h"

#include "base/memory.h"
#include "memfit/model.h"
#include "memfit/train.h"

#include <pthread.h>

static const char *model_path(void)
{
    const char *path = test_path("model.keras");
    if (access(path, R_OK) == 0)
        return path;
    memfit_model *m = NULL;
    memfit_error err = {0};
    assert_ok(memfit_model_create_sequential(NULL, "calls", &m, &err), err);
    memfit_model_add_input(m, 1, (const int64_t[]){12});
    memfit_model_add_dense(m, 8, "relu");
    memfit_model_add_dense(m, 4, "softmax");
    memfit_model_compile(m, "adam", 0, "categorical_crossentropy", "accuracy");
    assert_ok(memfit_model_save(m, path, &err), err);
    memfit_model_destroy(m);
    return path;
}

static memfit_train_options options(void)
{
    static char model[128];
    snprintf(model, sizeof model, "%s", model_path());
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    o.model = model;
    o.data = "synthetic:64";
    o.batch = 16;
    o.threads = 1;
    return o;
}

static void options_that_make_no_sense(void **state)
{
    (void)state;
    memfit_train_options o = options();
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.validation_split = 0.5;
    o.validation_batch = -4;
    assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "validation batch"));
    o.validation_batch = 0;
    o.prefetch = -1;
    assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_INVALID);
}

/* ---- one at a time ------------------------------------------------------------------------------------------ */

typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool inside, leave;
    memfit_status status;
} meeting;

static void wait_inside(void *ctx, const memfit_train_event *event)
{
    meeting *m = ctx;
    (void)event;
    pthread_mutex_lock(&m->lock);
    m->inside = true;
    pthread_cond_broadcast(&m->changed);
    while (!m->leave)
        pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

static void *train_slowly(void *ctx)
{
    meeting *m = ctx;
    memfit_train_options o = options();
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    o.progress = wait_inside;
    o.ctx = m;
    m->status = memfit_train(&o, &r, NULL);
    return NULL;
}

static void a_second_run_is_refused(void **state)
{
    (void)state;
    meeting m = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .status = MEMFIT_INTERNAL};
    memfit_train_options o = options();
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, train_slowly, &m), 0);
    pthread_mutex_lock(&m.lock);
    while (!m.inside)
        pthread_cond_wait(&m.changed, &m.lock);
    pthread_mutex_unlock(&m.lock);
    assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_CONFLICT);
    assert_non_null(strstr(err.message, "another"));
    assert_true(err.hint[0] != 0);
    assert_int_equal(memfit_evaluate(&o, &r, &err), MEMFIT_CONFLICT);
    assert_int_equal(memfit_predict(&o, &r, &err), MEMFIT_CONFLICT);
    pthread_mutex_lock(&m.lock);
    m.leave = true;
    pthread_cond_broadcast(&m.changed);
    pthread_mutex_unlock(&m.lock);
    pthread_join(thread, NULL);
    assert_int_equal(m.status, MEMFIT_OK);
    assert_ok(memfit_train(&o, &r, &err), err); /* the place is free again */
    assert_ok(memfit_evaluate(&o, &r, &err), err);
    o.batch = 0; /* and after a refused one */
    assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_INVALID);
    o.batch = 16;
    assert_ok(memfit_train(&o, &r, &err), err);
}

/* ---- stopping ----------------------------------------------------------------------------------------------- */

typedef struct patience {
    int asked, until;
    int told; /* steps */
} patience;

static bool is_over(void *ctx)
{
    patience *p = ctx;
    return ++p->asked > p->until;
}

static void count_step(void *ctx, const memfit_train_event *event)
{
    ((patience *)ctx)->told += !event->epoch_end;
}

/* Asked for within the first step it ends there, and nothing is written; later between steps, with a checkpoint. */
static void stopping_is_heard_in_the_first_step(void **state)
{
    (void)state;
    memfit_train_options o = options();
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    patience all = {.until = 1 << 30};
    char out[128], checkpoint[128];
    snprintf(out, sizeof out, "%s", test_path("stopped.keras"));
    snprintf(checkpoint, sizeof checkpoint, "%s", test_path("stopped-ck.keras"));
    o.stop = is_over;
    o.progress = count_step;
    o.out = out;
    o.checkpoint = checkpoint;
    o.ctx = &all;
    o.steps = 1;
    assert_ok(memfit_train(&o, &r, &err), err);
    unlink(out);
    unlink(checkpoint);
    int first = all.asked; /* operations until the first step is done, and once behind it */
    assert_true(first > 10);
    o.steps = 0;
    bool within = false;
    for (int until = 0; until < first + 3; until += until < first - 4 ? 7 : 1) {
        patience p = {.until = until};
        o.ctx = &p;
        assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_INTERRUPTED);
        assert_int_equal(p.asked, until + 1); /* once said, it is not asked again */
        assert_int_not_equal(access(out, F_OK), 0);
        assert_int_equal(access(checkpoint, F_OK) == 0, p.told > 0);
        within |= p.told == 0 && strstr(err.message, "before the first step was done");
        unlink(checkpoint);
    }
    assert_true(within);
}

/* ---- a limit that is not held ------------------------------------------------------------------------------- */

static void *greedy_block;

/* A caller's memory, or a library's that memfit knows nothing of. */
static void take_more(void *ctx, bool running)
{
    enum { MORE = 64 << 20 };
    (void)ctx;
    if (running && !greedy_block)
        greedy_block = memset(malloc(MORE), 7, MORE);
}

static void check_above(memfit_status (*call)(const memfit_train_options *, memfit_train_result *, memfit_error *),
                        const char *out)
{
    memfit_train_options o = options();
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.memory_bytes = 0;
    o.out = out;
    assert_ok(call(&o, &r, &err), err);
    if (out)
        assert_int_equal(unlink(out), 0);
    o.memory_bytes = r.planned_peak_bytes + (16 << 20);
    o.in_steps = take_more;
    memfit_status status = call(&o, &r, &err);
    free(greedy_block);
    greedy_block = NULL;
    assert_int_equal(status, MEMFIT_INTERNAL);
    assert_non_null(strstr(err.message, "the limit was not held"));
    assert_true(err.requested_bytes > err.limit_bytes && err.limit_bytes == o.memory_bytes);
    if (out) /* what was learned or predicted is there all the same */
        assert_int_equal(access(out, R_OK), 0);
}

static void a_limit_that_is_not_held_is_no_success(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the process is larger than any plan */
#endif
    check_above(memfit_train, test_path("above.keras"));
}

static void nor_when_evaluating_or_predicting(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    check_above(memfit_evaluate, NULL);
    check_above(memfit_predict, test_path("above.npy"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_make_no_sense),          cmocka_unit_test(a_second_run_is_refused),
        cmocka_unit_test(stopping_is_heard_in_the_first_step), cmocka_unit_test(a_limit_that_is_not_held_is_no_success),
        cmocka_unit_test(nor_when_evaluating_or_predicting),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
