/*
 * test_recovery.c: a limit that is lowered while training. Each branch: another plan that fits, none, no place for the
 * variables, no host memory at any moment of the change. What continues is the last finished step, with the same
 * batch; what stops leaves a checkpoint.
 */
#include "test.h"

#include "base/memory.h"
#include "memfit/model.h"
#include "memfit/train.h"
#include "ops/cpu/dnn/onednn.h"

#include <math.h>

static const char *model_with(bool batch_norm)
{
    const char *path = test_path(batch_norm ? "bn.keras" : "plain.keras");
    if (access(path, R_OK) == 0)
        return path;
    memfit_model *m = NULL;
    memfit_error err = {0};
    assert_ok(memfit_model_create_sequential(NULL, "recovery", &m, &err), err);
    const int64_t side = mf_dnn_compiles() ? 16 : 8; /* the reference convolutions take fifty times as long */
    memfit_model_add_input(m, 3, (const int64_t[]){side, side, 3});
    for (int i = 0; i < 3; i++) {
        memfit_model_add_conv2d(m, 16, 3, "same", NULL);
        if (batch_norm)
            memfit_model_add_batch_norm(m);
        memfit_model_add_activation(m, "relu");
    }
    memfit_model_add_global_average_pool2d(m);
    memfit_model_add_dense(m, 10, "softmax");
    memfit_model_compile(m, "adam", 0, "categorical_crossentropy", "accuracy");
    assert_ok(memfit_model_save(m, path, &err), err);
    memfit_model_destroy(m);
    return path;
}

/* ---- a run whose limit changes after some calls ------------------------------------------------------------- */

typedef struct changing {
    int calls, at;       /* between steps: how often asked, when to change */
    uint64_t to;         /* the new limit */
    mf_fault_host *host; /* when set: fails from its `after`th call on, counted from the change */
    uint64_t after;
    bool for_ever;
    char notes[2048];
} changing;

static uint64_t limit_now(void *ctx)
{
    changing *c = ctx;
    if (++c->calls < c->at)
        return 0;
    if (c->calls == c->at && c->host) {
        c->host->fail_at = c->host->calls + c->after;
        c->host->for_ever = c->for_ever;
    }
    return c->to;
}

static void remember(void *ctx, const char *text)
{
    changing *c = ctx;
    size_t n = strlen(c->notes);
    snprintf(c->notes + n, sizeof c->notes - n, "%s\n", text);
}

static memfit_train_options options_for(bool batch_norm, changing *c)
{
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    o.model = model_with(batch_norm);
    o.data = "synthetic:256";
    o.batch = 64;
    o.epochs = 2;
    o.threads = 1;
    o.seed = 5;
    if (c) {
        o.limit = limit_now;
        o.note = remember;
        o.ctx = c;
    }
    return o;
}

static memfit_train_result undisturbed(bool batch_norm, const char *out)
{
    memfit_train_options o = options_for(batch_norm, NULL);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.out = out;
    assert_ok(memfit_train(&o, &r, &err), err);
    return r;
}

static bool same_file(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    assert_true(f && g);
    int x, y;
    do {
        x = fgetc(f);
        y = fgetc(g);
    } while (x == y && x != EOF);
    fclose(f);
    fclose(g);
    return x == y;
}

/* ---- another plan ------------------------------------------------------------------------------------------- */

static __attribute__((unused)) void recomputation_answers_under_batch_norm(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed(true, test_path("whole.keras"));
    changing c = {.at = 3, .to = whole.fixed_bytes + whole.arena_bytes * 8 / 10};
    memfit_train_options o = options_for(true, &c);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.out = test_path("changed.keras");
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_int_equal(r.replans, 1);
    assert_int_equal(r.pieces, 1); /* never smaller pieces under trainable BatchNormalization */
    assert_int_equal(r.batch, 64);
    assert_true(r.recomputed_ops > 0);
    assert_true(r.limit_bytes == c.to && r.planned_peak_bytes <= c.to);
    assert_int_equal(r.steps, whole.steps);
    assert_non_null(strstr(c.notes, "the limit is now"));
    assert_true(r.answer_ms > 0 && r.replan_ms >= r.answer_ms);
    printf("    answer after %.1f ms, next step after %.1f ms\n", r.answer_ms, r.replan_ms);
    assert_true(same_file(test_path("whole.keras"), test_path("changed.keras"))); /* bit for bit */
}

static __attribute__((unused)) void pieces_answer_without_batch_norm(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed(false, NULL);
    changing c = {.at = 2, .to = whole.fixed_bytes + whole.arena_bytes / 3 + (256 << 10)};
    memfit_train_options o = options_for(false, &c);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.no_recompute = true;
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_int_equal(r.replans, 1);
    assert_true(r.pieces > 1 && r.batch == 64);
    assert_string_equal(r.numerics, "reordered");
    assert_true(r.planned_peak_bytes <= c.to);
    assert_true(fabs(r.loss - whole.loss) < 1e-4);
}

static __attribute__((unused)) void a_limit_above_the_plan_changes_nothing(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed(false, NULL);
    changing c = {.at = 2, .to = whole.planned_peak_bytes + (4 << 20)};
    memfit_train_options o = options_for(false, &c);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_int_equal(r.replans, 0);
    assert_true(r.limit_bytes == c.to && r.loss == whole.loss);
}

/* ---- none ----------------------------------------------------------------------------------------------------- */

static void no_plan_ends_with_a_checkpoint(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed(true, test_path("whole2.keras"));
    changing c = {.at = 5, .to = whole.fixed_bytes + whole.arena_bytes / 20}; /* in the second epoch */
    memfit_train_options o = options_for(true, &c);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.checkpoint = test_path("stopped.keras");
    o.save_freq = 1000;
    assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_DOES_NOT_FIT);
    assert_non_null(strstr(err.message, "the limit was lowered to"));
    assert_non_null(strstr(err.message, "after step 5"));
    assert_non_null(strstr(err.hint, "stopped.keras"));
    printf("    %s\n    %s\n", err.message, err.hint);

    /* Given memory again, it ends where the undisturbed run did. */
    memfit_train_options again = options_for(true, NULL);
    again.resume = test_path("stopped.keras");
    again.out = test_path("resumed.keras");
    assert_ok(memfit_train(&again, &r, &err), err);
    assert_int_equal(r.steps, whole.steps);
    assert_true(same_file(test_path("whole2.keras"), test_path("resumed.keras")));
}

static void no_plan_and_no_checkpoint_says_so(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed(true, NULL);
    changing c = {.at = 2, .to = whole.fixed_bytes + whole.arena_bytes / 20};
    memfit_train_options o = options_for(true, &c);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_DOES_NOT_FIT);
    assert_non_null(strstr(err.hint, "--checkpoint"));
}

static __attribute__((unused)) void no_room_for_the_variables_ends_with_a_checkpoint(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed(true, test_path("whole3.keras"));
    changing c = {.at = 3, .to = whole.fixed_bytes + whole.arena_bytes * 8 / 10};
    memfit_train_options o = options_for(true, &c);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.checkpoint = test_path("spool.keras");
    o.save_freq = 1000;
    const char *before = getenv("TMPDIR");
    char kept[256] = "";
    snprintf(kept, sizeof kept, "%s", before ? before : "");
    setenv("TMPDIR", "/nonexistent", 1);
    assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_IO);
    if (before)
        setenv("TMPDIR", kept, 1);
    else
        unsetenv("TMPDIR");
    assert_non_null(strstr(err.message, "after step 3"));
    memfit_train_options again = options_for(true, NULL);
    again.resume = test_path("spool.keras");
    again.out = test_path("resumed3.keras");
    assert_ok(memfit_train(&again, &r, &err), err);
    assert_true(same_file(test_path("whole3.keras"), test_path("resumed3.keras")));
}

/* ---- host memory runs out in the middle of the change --------------------------------------------------------- */

static __attribute__((unused)) void the_change_survives_lack_of_memory(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed(true, NULL);
    unsigned stopped = 0, saved = 0;
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint64_t n = 1;; n = n < 8 ? n + 1 : n + n / 2) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, 0, false);
            changing c = {.at = 2,
                          .to = whole.fixed_bytes + whole.arena_bytes * 8 / 10,
                          .host = &fault,
                          .after = n,
                          .for_ever = for_ever};
            memfit_train_options o = options_for(true, &c);
            memfit_train_result r = MEMFIT_TRAIN_RESULT;
            memfit_error err = {0};
            o.host = &fault.host;
            o.epochs = 1;
            o.checkpoint = test_path("lack.keras");
            o.save_freq = 1000;
            unlink(o.checkpoint);
            memfit_status status = memfit_train(&o, &r, &err);
            assert_int_equal(fault.live_count, 0);
            assert_int_equal(fault.live_bytes, 0);
            if (status == MEMFIT_OK)
                break; /* it failed nowhere any more */
            stopped++;
            assert_true(err.message[0]);
            if (access(test_path("lack.keras"), R_OK) == 0) { /* then it is whole */
                memfit_train_options again = options_for(true, NULL);
                again.resume = test_path("lack.keras");
                again.epochs = 1;
                assert_ok(memfit_train(&again, &r, &err), err);
                assert_int_equal(r.steps, 4);
                saved++;
            } else {
                assert_int_equal(for_ever, 1); /* one refusal alone never costs the checkpoint */
            }
        }
    printf("    stopped %u times, %u with a checkpoint\n", stopped, saved);
    assert_true(saved > 0);
}

/* ---- while validating --------------------------------------------------------------------------------------- */

/* Three steps an epoch, then four batches of validation: the fifth question is asked between these. */
static memfit_train_options with_validation(changing *c)
{
    memfit_train_options o = options_for(true, c);
    o.validation_split = 0.25;
    o.validation_batch = 16;
    return o;
}

static memfit_train_result undisturbed_validation(const char *out)
{
    memfit_train_options o = with_validation(NULL);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.out = out;
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_true(r.has_validation);
    return r;
}

static __attribute__((unused)) void validation_goes_on_in_another_plan(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed_validation(test_path("whole3.keras"));
    changing c = {.at = 5, .to = whole.fixed_bytes + whole.arena_bytes * 8 / 10};
    memfit_train_options o = with_validation(&c);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.out = test_path("changed3.keras");
    o.epochs = 1; /* no step follows that could change the plan */
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_int_equal(r.replans, 1);
    o = with_validation(NULL);
    o.out = test_path("whole3.keras");
    o.epochs = 1;
    assert_ok(memfit_train(&o, &whole, &err), err);
    assert_true(r.loss == whole.loss && r.val_loss == whole.val_loss);
    assert_true(r.metrics[0] == whole.metrics[0] && r.val_metrics[0] == whole.val_metrics[0]);
    assert_true(same_file(test_path("whole3.keras"), test_path("changed3.keras")));
}

static void a_validation_cut_short_is_done_anew(void **state)
{
    (void)state;
    memfit_train_result whole = undisturbed_validation(test_path("whole4.keras"));
    changing c = {.at = 5, .to = whole.fixed_bytes + whole.arena_bytes / 20};
    memfit_train_options o = with_validation(&c);
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    o.checkpoint = test_path("cut.keras");
    assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_DOES_NOT_FIT);
    assert_non_null(strstr(err.message, "after step 3"));

    o = with_validation(NULL);
    o.resume = test_path("cut.keras");
    o.epochs = 1; /* nothing but the validation is left: training's own figures come from the checkpoint */
    assert_ok(memfit_train(&o, &r, &err), err);
    o.resume = NULL;
    memfit_train_result first = MEMFIT_TRAIN_RESULT;
    assert_ok(memfit_train(&o, &first, &err), err);
    assert_true(r.loss == first.loss && r.val_loss == first.val_loss);
    assert_true(r.metrics[0] == first.metrics[0] && r.val_metrics[0] == first.val_metrics[0]);

    o = with_validation(NULL);
    o.resume = test_path("cut.keras");
    o.out = test_path("resumed4.keras");
    assert_ok(memfit_train(&o, &r, &err), err);
    assert_true(r.val_loss == whole.val_loss);
    assert_true(same_file(test_path("whole4.keras"), test_path("resumed4.keras")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#if !defined(__SANITIZE_ADDRESS__) &&                                                                                  \
    !defined(__SANITIZE_THREAD__) /* those keep what is freed: no smaller plan fits  \
                                                                     */
        cmocka_unit_test(recomputation_answers_under_batch_norm),
        cmocka_unit_test(pieces_answer_without_batch_norm),
        cmocka_unit_test(a_limit_above_the_plan_changes_nothing),
        cmocka_unit_test(no_room_for_the_variables_ends_with_a_checkpoint),
        cmocka_unit_test(the_change_survives_lack_of_memory),
        cmocka_unit_test(validation_goes_on_in_another_plan),
#endif
        cmocka_unit_test(no_plan_ends_with_a_checkpoint),
        cmocka_unit_test(no_plan_and_no_checkpoint_says_so),
        cmocka_unit_test(a_validation_cut_short_is_done_anew),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
