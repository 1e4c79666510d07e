/*
 * test_cuda_record.c: work of a stream recorded and launched, over the fake driver (tests/fakes/fake_cuda.c), whose path
 * is in FAKE_CUDA_LIBRARY.
 */
#include "test.h"

#include "device/device.h"
#include "fakes/fake_cuda_load.h"
#include "train/step_clock.h"

#define MIB (UINT64_C(1) << 20)

static void (*fail_call)(const char *, uint64_t, int, bool);
static void (*get_state)(fake_cuda_state *);
static void (*reset_counts)(void);
static void (*hold)(uint64_t, bool);

static int load_fake(void **state)
{
    (void)state;
    void *library = open_fake_driver();
    *(void **)&fail_call = need(library, "fake_cuda_fail");
    *(void **)&get_state = need(library, "fake_cuda_get");
    *(void **)&reset_counts = need(library, "fake_cuda_reset_counts");
    *(void **)&hold = need(library, "fake_cuda_hold");
    return 0;
}

static void nothing_left(void)
{
    driver_holds_nothing(get_state);
}

typedef struct recorder {
    mf_device *device;
    mf_stream stream;
    mf_event event;
    mf_address place; /* 2 MiB */
    mf_physical physical;
    bool mapped;
    uint32_t *pinned;
    mf_recording record;
} recorder;

static memfit_status recorder_begin(recorder *r, memfit_error *err)
{
    memfit_status status = memfit_device_open("cuda", NULL, &r->device, err);
    const mf_device_table *t = status ? NULL : r->device->table;
    if (!status)
        status = t->stream_create(r->device, &r->stream, err);
    if (!status)
        status = t->event_create(r->device, &r->event, err);
    if (!status)
        status = t->reserve(r->device, 2 * MIB, 0, &r->place, err);
    if (!status)
        status = t->create(r->device, 2 * MIB, &r->physical, err);
    if (!status)
        status = t->map(r->device, r->place, 2 * MIB, r->physical, err);
    r->mapped = !status;
    if (!status)
        status = t->access(r->device, r->place, 2 * MIB, err);
    if (!status)
        status = t->host_take(r->device, 4096, (void **)&r->pinned, err);
    return status;
}

/* Doubled on the card: a copy in, one on the card beside it, one out. */
static memfit_status recorder_work(recorder *r, memfit_error *err)
{
    const mf_device_table *t = r->device->table;
    memfit_status status = t->copy_in(r->device, r->place, r->pinned, 4, r->stream, err);
    if (!status)
        status = t->copy(r->device, r->place + 4, r->place, 4, r->stream, err);
    if (!status)
        status = t->event_record(r->device, r->event, r->stream, err);
    return status ? status : t->copy_out(r->device, r->pinned + 1, r->place, 8, r->stream, err);
}

static memfit_status recorder_run(recorder *r, memfit_error *err)
{
    const mf_device_table *t = r->device->table;
    memfit_error ended;
    r->pinned[0] = 1;
    r->pinned[1] = 0;
    memfit_status status = t->record_begin(r->device, r->stream, err), end;
    if (status)
        return status;
    assert_int_equal(t->record_begin(r->device, r->stream, &ended), MEMFIT_CONFLICT);
    status = recorder_work(r, err);
    end = t->record_end(r->device, r->stream, &r->record, status ? &ended : err);
    status = status ? status : end;
    if (!status)
        assert_int_equal(r->pinned[1], 0); /* nothing ran */
    for (uint32_t i = 5; i < 8 && !status; i++) {
        r->pinned[0] = i;
        status = t->record_launch(r->device, r->record, r->stream, err);
        if (!status)
            status = t->event_sync(r->device, r->event, err);
        if (!status)
            status = t->stream_sync(r->device, r->stream, err);
        if (!status)
            assert_true(r->pinned[1] == i && r->pinned[2] == i);
    }
    return status;
}

static void recorder_end(recorder *r)
{
    if (!r->device)
        return;
    const mf_device_table *t = r->device->table;
    t->record_destroy(r->device, r->record);
    t->host_give(r->device, r->pinned, 4096);
    if (r->mapped)
        t->unmap(r->device, r->place, 2 * MIB, NULL);
    if (r->physical)
        t->release(r->device, r->physical, 2 * MIB, NULL);
    if (r->place)
        t->unreserve(r->device, r->place, 2 * MIB, NULL);
    if (r->event)
        t->event_destroy(r->device, r->event, NULL);
    if (r->stream)
        t->stream_destroy(r->device, r->stream, NULL);
    memfit_device_close(r->device, NULL);
}

static void what_is_recorded_runs_when_launched(void **state)
{
    (void)state;
    memfit_error err;
    recorder r = {0};
    assert_ok(recorder_begin(&r, &err), err);
    assert_ok(recorder_run(&r, &err), err);
    recorder_end(&r);
    nothing_left();
}

/* Whatever is refused, the stream can be recorded again afterwards. Giving back may not be refused. */
static void recording_fails_at_every_call(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuCtxPushCurrent_v2",  "cuStreamBeginCapture_v2",     "cuMemcpyHtoDAsync_v2",
                                        "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2",        "cuEventRecordWithFlags",
                                        "cuStreamEndCapture",   "cuGraphInstantiateWithFlags", "cuGraphUpload",
                                        "cuGraphLaunch",        "cuEventSynchronize",          "cuStreamSynchronize"};
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        unsigned refused = 0;
        for (bool whole = false; !whole; refused += !whole) {
            memfit_error err;
            recorder r = {0};
            assert_ok(recorder_begin(&r, &err), err);
            fail_call(calls[i], refused + 1, 999, false);
            whole = recorder_run(&r, &err) == MEMFIT_OK;
            fail_call(NULL, 0, 0, false);
            assert_true(whole || err.message[0]);
            r.device->table->record_destroy(r.device, r.record);
            r.record = 0;
            assert_ok(recorder_run(&r, &err), err);
            recorder_end(&r);
            reset_counts(); /* a capture that is ended twice, to be sure, is no breach here */
            nothing_left();
        }
        assert_true(refused > 0);
    }
}

/* ---- a stream beside it -------------------------------------------------------------------------------------- */

/* Through a stream of its own and back, in one record: as the optimizer's state goes. */
static memfit_status follow_run(recorder *r, mf_stream other, mf_event events[2], memfit_error *err)
{
    const mf_device_table *t = r->device->table;
    memfit_error ended;
    memfit_status status = t->record_begin(r->device, r->stream, err), end;
    if (status)
        return status;
    status = t->stream_follow(r->device, other, r->stream, events[0], err);
    if (!status)
        status = t->copy_in(r->device, r->place, r->pinned, 4, other, err);
    if (!status)
        status = t->stream_follow(r->device, r->stream, other, events[1], err);
    if (!status)
        status = t->copy_out(r->device, r->pinned + 1, r->place, 4, r->stream, err);
    end = t->record_end(r->device, r->stream, &r->record, status ? &ended : err);
    status = status ? status : end;
    for (uint32_t i = 3; i < 6 && !status; i++) {
        r->pinned[0] = i;
        status = t->record_launch(r->device, r->record, r->stream, err);
        if (!status)
            status = t->stream_sync(r->device, r->stream, err);
        if (!status)
            assert_int_equal(r->pinned[1], i);
    }
    return status;
}

static void a_stream_follows_in_a_record(void **state)
{
    (void)state;
    static const char *const calls[] = {"none", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyHtoDAsync_v2"};
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        for (unsigned nth = 1; nth <= 2; nth++) {
            memfit_error err;
            recorder r = {0};
            mf_stream other = 0;
            mf_event events[2] = {0};
            assert_ok(recorder_begin(&r, &err), err);
            const mf_device_table *t = r.device->table;
            assert_ok(t->stream_create(r.device, &other, &err), err);
            assert_ok(t->event_create(r.device, &events[0], &err), err);
            assert_ok(t->event_create(r.device, &events[1], &err), err);
            fail_call(calls[i], nth, 999, false);
            bool whole = follow_run(&r, other, events, &err) == MEMFIT_OK;
            fail_call(NULL, 0, 0, false);
            assert_int_equal(whole, i == 0 || (i == 3 && nth == 2));
            t->record_destroy(r.device, r.record);
            r.record = 0;
            assert_ok(follow_run(&r, other, events, &err), err); /* a failed record leaves both streams free */
            t->event_destroy(r.device, events[0], NULL);
            t->event_destroy(r.device, events[1], NULL);
            t->stream_destroy(r.device, other, NULL);
            recorder_end(&r);
            reset_counts(); /* a capture that ends unjoined after a failure is no breach here */
            nothing_left();
        }
}

/* ---- times of steps ----------------------------------------------------------------------------------------- */

static void count_step(void *ctx, double us)
{
    assert_true(us > 0);
    (*(unsigned *)ctx)++;
}

/* Nothing is waited for while the card is behind; every step is told once, the beginning of an epoch never. */
static void steps_are_timed_when_they_are_done(void **state)
{
    (void)state;
    memfit_error err;
    recorder r = {0};
    mf_step_clock clock;
    unsigned told = 0;
    assert_ok(recorder_begin(&r, &err), err);
    assert_ok(mf_step_clock_create(&clock, r.device, r.stream, &err), err);
    assert_non_null(clock.device);
    for (unsigned epoch = 0; epoch < 3; epoch++) {
        told = 0;
        assert_ok(mf_step_clock_epoch(&clock, &err), err);
        hold(r.stream, true);
        for (unsigned step = 0; step < 5; step++)
            assert_ok(mf_step_clock_step(&clock, count_step, &told, &err), err);
        assert_int_equal(told, 0);
        hold(r.stream, false);
        assert_ok(mf_step_clock_step(&clock, count_step, &told, &err), err);
        assert_int_equal(told, 6);
        hold(r.stream, true);
        for (unsigned step = 0; step < 3 * MF_STEP_CLOCK_MARKS;
             step++) /* more than there are marks: the oldest is waited for */
            assert_ok(mf_step_clock_step(&clock, count_step, &told, &err), err);
        assert_ok(mf_step_clock_rest(&clock, count_step, &told, &err), err);
        assert_int_equal(told, 6 + 3 * MF_STEP_CLOCK_MARKS);
    }
    mf_step_clock_destroy(&clock);
    recorder_end(&r);
    nothing_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_recorded_runs_when_launched),
        cmocka_unit_test(recording_fails_at_every_call),
        cmocka_unit_test(a_stream_follows_in_a_record),
        cmocka_unit_test(steps_are_timed_when_they_are_done),
    };
    return cmocka_run_group_tests(tests, load_fake, NULL);
}
