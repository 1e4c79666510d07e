/* test_far.c: the far device: its addresses trap on the host's side, and copies, the backend and the scalars' end of a step
 * reach the bytes behind them. */
#include "test.h"

#include "device/device.h"
#include "ops/ops.h"
#include "train/reserve.h"
#include "train/stage.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static mf_reservation make_arena(mf_device **device, uint64_t bytes)
{
    mf_reservation r;
    memfit_error err = {0};
    assert_ok(mf_device_open_far(NULL, device, &err), err);
    assert_ok(mf_reserve(*device, bytes, &r, &err), err);
    assert_ok(mf_reserve_pattern(&r, &err), err);
    return r;
}

static bool traps(mf_address address)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* not cmocka's */
        volatile unsigned char *p = (unsigned char *)(uintptr_t)address;
        _exit(*p & 0);
    }
    int how = 0;
    waitpid(child, &how, 0);
    return WIFSIGNALED(how) || WEXITSTATUS(how) != 0; /* a signal, or a sanitizer's report of it */
}

static void the_host_cannot_follow_its_addresses(void **state)
{
    (void)state;
    mf_device *device;
    mf_reservation r = make_arena(&device, 100000);
    assert_true(r.side && r.base % 256 == 0);
    assert_true(traps(r.base) && traps(r.base + 99999) && traps(r.side));
    assert_true(traps(r.base + 100000 + 4096 + mf_device_far_shift(device))); /* nor anybody what lies behind */
    mf_unreserve(&r);
    memfit_device_close(device, NULL);
}

static void copies_reach_the_bytes(void **state)
{
    (void)state;
    mf_device *device;
    memfit_error err = {0};
    mf_reservation r = make_arena(&device, 700000); /* more than a bounce */
    const mf_device_table *table = device->table;
    assert_false(mf_reserve_changed(&r, 0, 700000));
    unsigned char out[9], in[9] = "12345678";
    assert_ok(table->copy_in(device, r.base + 650000, in, 9, 0, &err), err);
    assert_ok(table->copy(device, r.base + 3, r.base + 650000, 9, 0, &err), err);
    assert_ok(table->fill(device, r.base + 5, 'x', 2, 0, &err), err);
    assert_ok(table->copy_out(device, out, r.base + 3, 9, 0, &err), err);
    assert_memory_equal(out, "12xx5678", 9);
    assert_true(mf_reserve_changed(&r, 640000, 700000));
    assert_false(mf_reserve_changed(&r, 12, 650000));
    assert_true(mf_reserve_changed(&r, 0, 12));
    mf_unreserve(&r);
    memfit_device_close(device, NULL);
}

/* Each piece's bytes arrive where they were sent, whichever set they went through. */
static void pieces_go_through_the_stage(void **state)
{
    (void)state;
    mf_device *device;
    memfit_error err = {0};
    mf_reservation r = make_arena(&device, 4096);
    mf_stage stage;
    assert_ok(mf_stage_create(&stage, NULL, device, 0, 2 * MF_STAGE_ALIGN, &err), err);
    for (unsigned piece = 0; piece < 5; piece++) {
        assert_ok(mf_stage_begin(&stage, &err), err);
        void *first = mf_stage_room(&stage, 100), *second = mf_stage_room(&stage, 200);
        assert_true(first && second && first != second);
        assert_null(mf_stage_room(&stage, 1));
        memset(first, (int)piece, 100);
        memset(second, 100 + (int)piece, 200);
        assert_ok(mf_stage_send(&stage, r.base, first, 100, &err), err);
        assert_ok(mf_stage_send(&stage, r.base + 512, second, 200, &err), err);
        assert_ok(mf_stage_end(&stage, &err), err);
        unsigned char out[2];
        assert_ok(device->table->copy_out(device, out, r.base + 99, 1, 0, &err), err);
        assert_ok(device->table->copy_out(device, out + 1, r.base + 711, 1, 0, &err), err);
        assert_true(out[0] == piece && out[1] == 100 + piece);
    }
    mf_stage_destroy(&stage);
    mf_unreserve(&r);
    memfit_device_close(device, NULL);
}

/* ---- the end of a step ------------------------------------------------------------------------------------- */

static mf_run_scalars ended(mf_run_scalars s, float loss, float overflow, bool scales, bool learns)
{
    memfit_error err = {0};
    mf_step_end end = {&s, &loss, scales ? &overflow : NULL, learns};
    assert_ok(mf_scalars_end_step(NULL, &end, 0, &err), err);
    return s;
}

static void a_step_that_counts(void **state)
{
    (void)state;
    mf_run_scalars s = {.batch_samples = 8, .step = 5, .iteration = 1, .group_steps = 3, .loss_scale = 64};
    s = ended(s, 2.5f, 0, true, true);
    assert_true(s.step == 6 && s.iteration == 2 && s.steps == 1 && s.good_steps == 1);
    assert_true(s.loss_sum == 20 && s.loss_weight == 8 && s.loss_scale == 64 && !s.diverged_at);
    s.good_steps = 1999;
    s = ended(s, 2.5f, 0, true, true);
    assert_true(s.loss_scale == 128 && s.good_steps == 0);
}

static void a_step_that_is_skipped(void **state)
{
    (void)state;
    mf_run_scalars s = {.batch_samples = 8, .step = 5, .iteration = 5, .loss_scale = 64, .good_steps = 7};
    s = ended(s, INFINITY, 1, true, true);
    assert_true(s.step == 5 && s.iteration == 5 && s.steps == 1 && s.good_steps == 0 && s.loss_scale == 32);
    assert_true(s.loss_weight == 0 && !s.diverged_at);
    s.loss_scale = 1;
    assert_true(ended(s, 1, 1, true, true).loss_scale == 1);
}

static void a_loss_that_is_not_finite(void **state)
{
    (void)state;
    mf_run_scalars s = {.batch_samples = 8, .steps = 3};
    s = ended(s, NAN, 0, false, true);
    assert_true(s.diverged_at == 4 && isnan(s.diverged_loss) && s.loss_weight == 0);
    s = ended(s, INFINITY, 0, false, true);
    assert_true(s.diverged_at == 4); /* the first is what counts */
}

static void what_is_only_seen(void **state)
{
    (void)state;
    mf_run_scalars s = {.batch_samples = 4, .step = 9, .iteration = 9, .loss_scale = 8};
    s = ended(s, 3, 1, true, false);
    assert_true(s.seen_sum == 12 && s.seen_weight == 4 && s.step == 9 && s.loss_scale == 8 && s.loss_weight == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_cannot_follow_its_addresses),
        cmocka_unit_test(copies_reach_the_bytes),
        cmocka_unit_test(pieces_go_through_the_stage),
        cmocka_unit_test(a_step_that_counts),
        cmocka_unit_test(a_step_that_is_skipped),
        cmocka_unit_test(a_loss_that_is_not_finite),
        cmocka_unit_test(what_is_only_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
