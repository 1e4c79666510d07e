/*
 * test_cuda_train.c: training on the CUDA backend over the fake driver whose kernels do nothing (FAKE_KERNELS_LIBRARY): numbers
 * mean nothing here, but everything else is as on a card: texts compiled by NVRTC, memory, streams, a step recorded as a graph.
 * Whatever call of the driver is refused, whenever the context is lost or a stop is asked for, training ends with a word,
 * gives everything back, and leaves a checkpoint that can be read. Skips where NVRTC is not found.
 */
#include "test.h"

#include "fakes/fake_cuda_load.h"
#include "memfit/model.h"
#include "memfit/plan.h"
#include "memfit/train.h"

#include <ftw.h>
#include <sys/wait.h>

enum { LOST = 719, REFUSED = 2 }; /* CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_OUT_OF_MEMORY */

static void (*fail_call)(const char *, uint64_t, int, bool);
static void (*get_state)(fake_cuda_state *);
static void (*reset_counts)(void);
static char folder[64], model[512], checkpoint[96];
static bool has_compiler;

static memfit_status train(const char *offload, bool (*stop)(void *), void *ctx, memfit_error *err)
{
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    o.model = model;
    o.data = "synthetic:64";
    o.validation_split = 0.25;
    o.epochs = 2;
    o.batch = 16;
    o.device = "cuda";
    o.memory_bytes = UINT64_C(256) << 20;
    o.offload = offload;
    o.checkpoint = checkpoint;
    o.save_freq = 2;
    o.stop = stop;
    o.ctx = ctx;
    return memfit_train(&o, &r, err);
}

static void open_fake(void)
{
    const char *path = getenv("FAKE_KERNELS_LIBRARY");
    assert_non_null(path);
    setenv("MEMFIT_LIB_CUDA", path, 1);
    setenv("MEMFIT_LIB_NVML", "/nonexistent/libnvidia-ml.so.1", 1);
    setenv("MEMFIT_LIB_CUDNN", "/nonexistent/libcudnn.so.9", 1);
    setenv("MEMFIT_LIB_CUBLASLT", "/nonexistent/libcublasLt.so.13", 1);
    void *library = dlopen(path, RTLD_NOW);
    assert_non_null(library);
    *(void **)&fail_call = need(library, "fake_cuda_fail");
    *(void **)&get_state = need(library, "fake_cuda_get");
    *(void **)&reset_counts = need(library, "fake_cuda_reset_counts");
    assert_non_null(getenv("MEMFIT_SOURCE"));
    snprintf(model, sizeof model, "%s/tests/fixtures/train/mlp.keras", getenv("MEMFIT_SOURCE"));
}

static int load_fake(void **state)
{
    (void)state;
    memfit_error err = {0};
    open_fake();
    snprintf(folder, sizeof folder, "/tmp/memfit-cuda-train-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(checkpoint, sizeof checkpoint, "%s/kept.keras", folder);
    setenv("MEMFIT_CACHE", folder, 1); /* each text is compiled once */
    memfit_status status = train(NULL, NULL, NULL, &err);
    has_compiler = status == MEMFIT_OK;
    if (!has_compiler) {
        fprintf(stderr, "skipped: %s\n", err.message);
        assert_non_null(strstr(err.message, "nvrtc"));
    }
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int what, struct FTW *at)
{
    (void)st, (void)what, (void)at;
    return remove(path);
}

static int remove_folder(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static uint64_t calls_of(const char *offload)
{
    memfit_error err;
    fake_cuda_state s;
    fail_call(NULL, 0, 0, false);
    reset_counts();
    assert_ok(train(offload, NULL, NULL, &err), err);
    driver_holds_nothing(get_state);
    get_state(&s);
    return s.calls;
}

/* What there is, is whole. */
static void checkpoint_is_good(void)
{
    memfit_error err;
    memfit_model *m = NULL;
    if (access(checkpoint, F_OK) != 0)
        return;
    assert_ok(memfit_model_load(NULL, checkpoint, &m, &err), err);
    memfit_model_destroy(m);
}

/* Every call at first, while the device is opened and memory is taken; then samples. */
static uint64_t next_call(uint64_t n, uint64_t all)
{
    return n + (n < 24 ? 1 : 1 + all / 24);
}

static void any_call_may_be_refused(void **state)
{
    (void)state;
    const char *const ways[] = {NULL, "optimizer"};
    if (!has_compiler)
        skip();
    for (int w = 0; w < 2; w++) {
        uint64_t all = calls_of(ways[w]), ended = 0;
        assert_true(all > 200);
        for (uint64_t n = 1; n <= all; n = next_call(n, all)) {
            memfit_error err = {0};
            remove(checkpoint);
            reset_counts();
            fail_call(NULL, n, REFUSED, false);
            memfit_status status = train(ways[w], NULL, NULL, &err);
            fail_call(NULL, 0, 0, false);
            if (status != MEMFIT_OK)
                assert_true(err.message[0]);
            ended += status != MEMFIT_OK;
            fake_cuda_state left;
            get_state(&left);
            if (left.broken || left.events || left.handles || left.pinned)
                fprintf(stderr, "call %llu of %llu refused: %s\n", (unsigned long long)n, (unsigned long long)all,
                        err.message);
            driver_holds_nothing(get_state);
            checkpoint_is_good();
        }
        assert_true(ended > 12); /* some calls can be done without, most cannot */
    }
}

/* A lost context answers every later call with its error, also those that give back: a process of its own for each. */
static int lose_at(const char *call, const char *kept)
{
    memfit_error err = {0};
    open_fake();
    snprintf(checkpoint, sizeof checkpoint, "%s", kept);
    alarm(60);
    fail_call(NULL, strtoull(call, NULL, 10), LOST, true);
    memfit_status status = train(NULL, NULL, NULL, &err);
    return status != MEMFIT_OK && err.message[0] ? 0 : status == MEMFIT_OK ? 2 : 3;
}

static void any_call_may_lose_the_context(void **state)
{
    (void)state;
    if (!has_compiler)
        skip();
    uint64_t all = calls_of(NULL);
    for (uint64_t n = 1; n <= all; n = next_call(n, all)) {
        char call[24];
        snprintf(call, sizeof call, "%llu", (unsigned long long)n);
        remove(checkpoint);
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "test_cuda_train", call, checkpoint, (char *)NULL);
            _exit(4);
        }
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        if (!WIFEXITED(how)) /* no crash, no hang */
            fail_msg("the context is lost at call %s of %llu: ended by signal %d", call, (unsigned long long)all,
                     WTERMSIG(how));
        if (WEXITSTATUS(how) != 0 && n < all - all / 4) /* near the end everything may have been done */
            fail_msg("the context is lost at call %s of %llu: exit status %d", call, (unsigned long long)all,
                     WEXITSTATUS(how));
        checkpoint_is_good();
    }
}

typedef struct stopper {
    unsigned left, asked, told;
} stopper;

static bool stop_later(void *ctx)
{
    stopper *s = ctx;
    s->asked++;
    return s->left && --s->left == 0;
}

/* Also while kernels are made, rehearsed and recorded. */
static void a_stop_is_heard_at_any_time(void **state)
{
    (void)state;
    if (!has_compiler)
        skip();
    stopper never = {0};
    memfit_error err;
    assert_ok(train("optimizer", stop_later, &never, &err), err);
    for (unsigned n = 1; n <= never.asked; n = (unsigned)next_call(n, never.asked)) {
        stopper s = {.left = n};
        remove(checkpoint);
        assert_int_equal(train("optimizer", stop_later, &s, &err), MEMFIT_INTERRUPTED);
        driver_holds_nothing(get_state);
        checkpoint_is_good();
    }
}

static void count_operation(void *ctx, const memfit_train_event *e)
{
    assert_true(e->step < e->steps);
    ((stopper *)ctx)->told++;
}

static void no_note(void *ctx, const char *text)
{
    (void)ctx;
    fail_msg("tuning trains nothing, and says: %s", text);
}

/* Without the libraries there is nothing to choose: each operation is looked at all the same, and a stop leaves no file. */
static void tuning_tells_and_stops(void **state)
{
    (void)state;
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_tune_result r = MEMFIT_TUNE_RESULT;
    memfit_error err;
    char times[96];
    if (!has_compiler)
        skip();
    stopper s = {0};
    snprintf(times, sizeof times, "%s/times", folder);
    o.model = model;
    o.device = "cuda";
    o.batch = 16;
    o.out = times;
    o.progress = count_operation;
    o.note = no_note;
    o.ctx = &s;
    assert_ok(memfit_tune(&o, &r, &err), err);
    assert_int_equal(s.told, r.operations);
    assert_int_equal(access(times, F_OK), 0);
    assert_int_equal(remove(times), 0);
    o.stop = stop_later;
    s = (stopper){0};
    assert_ok(memfit_tune(&o, &r, &err), err);
    assert_int_equal(remove(times), 0);
    s = (stopper){.left = s.asked};
    assert_int_equal(memfit_tune(&o, &r, &err), MEMFIT_INTERRUPTED);
    assert_int_equal(access(times, F_OK), -1);
    driver_holds_nothing(get_state);
}

static memfit_plan_summary plan_by(const char *path, memfit_plan_options *o)
{
    memfit_plan_summary s = MEMFIT_PLAN_SUMMARY;
    memfit_plan *plan = NULL;
    memfit_error err = {0};
    o->batch = o->samples = 64;
    o->runtime = "memfit";
    o->quick = true;
    assert_ok(memfit_plan_create(path, o, &plan, &err), err);
    assert_ok(memfit_plan_get_summary(plan, &s, &err), err);
    memfit_plan_destroy(plan);
    driver_holds_nothing(get_state);
    return s;
}

static memfit_plan_summary plan_within(const char *path, const char *memory)
{
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    o.device = "cuda";
    o.memory = memory;
    return plan_by(path, &o);
}

/* A card of the table, or (NULL) the one that is here. */
static memfit_plan_summary plan_for(const char *path, const char *card, const char *precision)
{
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    o.device = card ? NULL : "cuda";
    o.card = card;
    o.precision = precision;
    return plan_by(path, &o);
}

/* What memfit plan says of this machine's card is what memfit train then does: the same bytes in the arena where there is room;
 * under a limit what is admitted runs, in as many pieces, recomputing as much. */
static void training_follows_the_plan(void **state)
{
    (void)state;
    if (!has_compiler)
        skip();
    char path[512], memory[32];
    snprintf(path, sizeof path, "%s/tests/fixtures/cuda/small/s9.keras", getenv("MEMFIT_SOURCE"));
    fail_call(NULL, 0, 0, false);
    memfit_plan_summary free_of_limits = plan_within(path, NULL);
    assert_true(free_of_limits.fits && free_of_limits.pieces == 1 && !free_of_limits.recomputed_ops);
    assert_true(free_of_limits.fixed_bytes > UINT64_C(64) << 20); /* the context, and what kernels take */
    const unsigned percents[] = {0, 80, 60, 40, 1};
    for (unsigned i = 0; i < 5; i++) {
        memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
        memfit_train_result r = MEMFIT_TRAIN_RESULT;
        memfit_error err = {0};
        uint64_t limit = free_of_limits.fixed_bytes + free_of_limits.arena_bytes * percents[i] / 100;
        snprintf(memory, sizeof memory, "%llu", (unsigned long long)limit);
        memfit_plan_summary s = percents[i] ? plan_within(path, memory) : free_of_limits;
        o.model = path;
        o.data = "synthetic:64";
        o.batch = 64;
        o.steps = 1;
        o.device = "cuda";
        o.memory_bytes = percents[i] ? limit : 0;
        memfit_status status = memfit_train(&o, &r, &err);
        if (!s.fits) {
            assert_int_equal(status, MEMFIT_DOES_NOT_FIT);
            continue;
        }
        assert_ok(status, err);
        assert_int_equal(r.pieces, s.pieces);
        assert_int_equal(r.recomputed_ops, s.recomputed_ops);
        assert_true(r.arena_bytes <=
                    s.arena_bytes); /* a validation, which this one has not, may take more than a piece */
        assert_true(s.pieces > 1 || r.arena_bytes == s.arena_bytes);
    }
}

typedef struct heard {
    unsigned nothing, reordered;
} heard;

static void listen(void *ctx, const char *text)
{
    heard *h = ctx;
    h->nothing += strstr(text, "--allow-nondeterministic changes nothing") != NULL;
    h->reordered += strstr(text, "different rounding (reordered)") != NULL;
}

/* Own kernels add in one order, and a run that may do otherwise says that it does not. Its checkpoint knows how it was made:
 * gone on with otherwise, the bits may be others. */
static void a_run_in_any_order_says_so(void **state)
{
    (void)state;
    if (!has_compiler)
        skip();
    fail_call(NULL, 0, 0, false);
    remove(checkpoint);
    for (unsigned i = 0; i < 4; i++) { /* first made with it; then gone on with it, without it, and with it again */
        memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
        memfit_train_result r = MEMFIT_TRAIN_RESULT;
        memfit_error err = {0};
        heard h = {0};
        o.model = model;
        o.data = "synthetic:64";
        o.epochs = i + 1;
        o.device = "cuda";
        o.checkpoint = checkpoint;
        o.resume = i ? checkpoint : NULL;
        o.allow_nondeterministic = i != 2;
        o.note = listen;
        o.ctx = &h;
        assert_ok(memfit_train(&o, &r, &err), err);
        assert_int_equal(r.nondeterministic_ops, 0);
        assert_string_equal(r.numerics, "bitwise");
        assert_int_equal(h.nothing, i != 2);
        assert_int_equal(h.reordered, i >= 2);
    }
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    o.device = "cuda";
    o.allow_nondeterministic = true;
    assert_true(plan_by(model, &o).fits);
}

/* The step as asked: what plan says of an H200 of the table, with no card and no library, is what training plans and takes on
 * one, but for the workspaces of libraries, which are not here. Two are trained: kernels take long to compile. */
static void a_card_of_the_table_is_planned_as_training_does(void **state)
{
    (void)state;
    enum { TRAINED = 2 };
    const char *const models[] = {"s1", "s7", "gpt", "resnet", "s9", "mobilenet", "lstm", "unet", "vit"};
    const char *const precisions[] = {"float32", "mixed_bfloat16"};
    if (!has_compiler)
        skip();
    fail_call(NULL, 0, 0, false);
    for (unsigned i = 0; i < 2 * sizeof models / sizeof *models; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/tests/fixtures/cuda/small/%s.keras", getenv("MEMFIT_SOURCE"), models[i / 2]);
        memfit_plan_summary of_table = plan_for(path, "h200", precisions[i % 2]),
                            of_card = plan_for(path, NULL, precisions[i % 2]);
        memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
        memfit_train_result r = MEMFIT_TRAIN_RESULT;
        memfit_error err = {0};
        o.model = path;
        o.precision = precisions[i % 2];
        o.data = "synthetic:64";
        o.batch = 64;
        o.steps = 1;
        o.device = "cuda";
        assert_true(of_table.as_asked_fits && of_card.as_asked_fits);
        if (of_table.arena_bytes != of_card.arena_bytes)
            fail_msg("%s in %s: %llu bytes by the table, %llu on the card", models[i / 2], precisions[i % 2],
                     (unsigned long long)of_table.arena_bytes, (unsigned long long)of_card.arena_bytes);
        if (i / 2 >= TRAINED || i % 2 == 0)
            continue;
        assert_ok(memfit_train(&o, &r, &err), err);
        assert_int_equal(r.arena_bytes, of_table.arena_bytes);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return lose_at(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_call_may_be_refused),
        cmocka_unit_test(any_call_may_lose_the_context),
        cmocka_unit_test(a_stop_is_heard_at_any_time),
        cmocka_unit_test(tuning_tells_and_stops),
        cmocka_unit_test(training_follows_the_plan),
        cmocka_unit_test(a_run_in_any_order_says_so),
        cmocka_unit_test(a_card_of_the_table_is_planned_as_training_does),
    };
    return cmocka_run_group_tests(tests, load_fake, remove_folder);
}
