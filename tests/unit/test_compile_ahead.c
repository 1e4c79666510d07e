/* test_compile_ahead.c: texts compiled ahead by several threads: once each, right, bounded, with every allocation failing. */
#include "test.h"

#include "ops/cuda/compile_ahead.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- an NVRTC whose cubin is the text, turned around; texts that say "bad" do not compile ---- */

enum { TEXTS = 60 };

static atomic_int inside, most_inside, compiled[TEXTS];
static int company; /* so many must have been inside at once before one goes on; given up after 20 s */

static int fake_create(nvrtc_handle *program, const char *text, const char *name, int count, const char *const *headers,
                       const char *const *names)
{
    (void)name;
    (void)count;
    (void)headers;
    (void)names;
    *program = (nvrtc_handle)(uintptr_t)text;
    return 0;
}

static int fake_compile(nvrtc_handle program, int count, const char *const *options)
{
    const char *text = (const char *)program;
    int now = atomic_fetch_add(&inside, 1) + 1, seen = atomic_load(&most_inside);
    while (now > seen && !atomic_compare_exchange_weak(&most_inside, &seen, now))
        ;
    for (int i = 0; i < 20000 && atomic_load(&most_inside) < company; i++)
        usleep(1000);
    atomic_fetch_sub(&inside, 1);
    assert_int_equal(count, 4);
    assert_string_equal(options[0], "--gpu-architecture=sm_90");
    int number = 0;
    if (sscanf(text, "text %d", &number) == 1)
        atomic_fetch_add(&compiled[number], 1);
    return strstr(text, "bad") ? 6 : 0;
}

static int fake_size(nvrtc_handle program, size_t *bytes)
{
    *bytes = strlen((const char *)program);
    return 0;
}

static int fake_cubin(nvrtc_handle program, char *cubin)
{
    const char *text = (const char *)program;
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        cubin[i] = text[n - 1 - i];
    return 0;
}

static int no_log_size(nvrtc_handle program, size_t *bytes)
{
    (void)program;
    *bytes = 1;
    return 0;
}

static int no_log(nvrtc_handle program, char *text)
{
    (void)program;
    (void)text;
    return 0;
}

static int fake_destroy(nvrtc_handle *program)
{
    *program = NULL;
    return 0;
}

static const char *fake_text(int code)
{
    (void)code;
    return "compilation";
}

static const mf_nvrtc nvrtc = {.create = fake_create,
                               .compile = fake_compile,
                               .cubin_size = fake_size,
                               .cubin = fake_cubin,
                               .log_size = no_log_size,
                               .log = no_log,
                               .destroy = fake_destroy,
                               .error_text = fake_text};

/* ---- what it does ---- */

static mf_cubin_key key_of(const char *text)
{
    mf_cubin_key key = mf_cubin_key_begin();
    mf_cubin_key_add(&key, text, strlen(text));
    return key;
}

/* Every seventh is bad. */
static void text_of(int i, char text[40])
{
    snprintf(text, 40, "text %d%s", i, i % 7 == 3 ? " bad" : "");
}

static void announce_all(mf_ahead *a, const memfit_host *host)
{
    char text[40];
    for (int i = 0; i < TEXTS; i++) {
        text_of(i, text);
        mf_ahead_add(a, host, key_of(text), text);
        mf_ahead_add(a, host, key_of(text), text);
    }
}

/* True: it was there, and right. */
static bool take(mf_ahead *a, const memfit_host *host, int i)
{
    char text[40], *cubin = NULL;
    size_t bytes = 0;
    text_of(i, text);
    if (!mf_ahead_take(a, key_of(text), &cubin, &bytes))
        return false;
    assert_int_equal(bytes, strlen(text));
    for (size_t k = 0; k < bytes; k++)
        assert_int_equal(cubin[k], text[bytes - 1 - k]);
    mf_host_free(host, cubin, bytes);
    return true;
}

static void reset(void)
{
    atomic_store(&most_inside, 0);
    for (int i = 0; i < TEXTS; i++)
        atomic_store(&compiled[i], 0);
}

static void each_once_and_right(void **state)
{
    (void)state;
    static const unsigned teams[] = {1, 3, 100};
    for (unsigned k = 0; k < 3; k++) {
        mf_fault_host f;
        mf_fault_host_init(&f, NULL, 0, false);
        mf_ahead a = {0};
        reset();
        company = teams[k] < MF_AHEAD_THREADS ? (int)teams[k] : MF_AHEAD_THREADS;
        announce_all(&a, &f.host);
        assert_int_equal(a.waiting, TEXTS);
        for (int i = 0; i < TEXTS; i++)
            assert_false(take(&a, &f.host, i)); /* not before it is compiled */
        mf_ahead_compile(&a, &f.host, &nvrtc, 90, teams[k]);
        mf_ahead_compile(&a, &f.host, &nvrtc, 90, teams[k]);
        assert_int_equal(atomic_load(&most_inside), company); /* side by side, and no more than may be */
        announce_all(&a, &f.host);                            /* nothing is noted anew */
        assert_int_equal(a.waiting, 0);
        for (int i = 0; i < TEXTS - 5; i++) {
            assert_int_equal(atomic_load(&compiled[i]), 1);
            assert_int_equal(take(&a, &f.host, i), i % 7 != 3);
            assert_false(take(&a, &f.host, i)); /* handed out */
        }
        mf_ahead_end(&a, &f.host); /* with some never asked for */
        assert_int_equal(f.live_count, 0);
        assert_int_equal(f.live_bytes, 0);
    }
}

static void what_was_never_compiled_is_freed(void **state)
{
    (void)state;
    mf_fault_host f;
    mf_fault_host_init(&f, NULL, 0, false);
    mf_ahead a = {0};
    announce_all(&a, &f.host);
    mf_ahead_end(&a, &f.host);
    mf_ahead_compile(&a, &f.host, &nvrtc, 90, 4); /* empty: nothing to do */
    assert_int_equal(f.live_count, 0);
}

/* Whatever has no memory is not there; the rest is right, nothing leaks. */
static void every_allocation_fails(void **state)
{
    (void)state;
    bool refused = true;
    company = 0;
    for (uint64_t n = 1; refused; n++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            mf_fault_host f;
            mf_fault_host_init(&f, NULL, n, for_ever);
            mf_ahead a = {0};
            announce_all(&a, &f.host);
            mf_ahead_compile(&a, &f.host, &nvrtc, 90, 8);
            int there = 0, wanted = 0;
            for (int i = 0; i < TEXTS; i++) {
                there += take(&a, &f.host, i);
                wanted += i % 7 != 3;
            }
            refused = f.calls >= n;
            assert_true(refused || there == wanted);
            mf_ahead_end(&a, &f.host);
            assert_int_equal(f.live_count, 0);
            assert_int_equal(f.live_bytes, 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_once_and_right),
        cmocka_unit_test(what_was_never_compiled_is_freed),
        cmocka_unit_test(every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
