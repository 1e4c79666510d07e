/*
 * test_dnn_takes.c: what the library takes while it makes a convolution is not more than memfit expects of it. Where it is,
 * a run goes above its limit before anybody can look. Each is made in a process of its own, whose memory is read around it.
 */
#include "test.h"

#include "base/memory.h"
#include "base/os.h"
#include "ops/cpu/dnn/onednn.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VALID, SAME, CAUSAL };

typedef struct shape {
    int dims;
    int64_t batch, in_channels, out_channels, rows, columns, kernel, stride, dilation;
    int padding;
} shape;

static const shape shapes[] = {
    {1, 8, 16, 32, 1, 2048, 3, 1, 1, SAME},   {1, 32, 12, 128, 1, 485, 9, 1, 1, CAUSAL}, /* 2.1 MiB */
    {1, 8, 6, 128, 1, 485, 9, 1, 1, CAUSAL},  {1, 8, 16, 32, 1, 512, 3, 1, 1, VALID},
    {1, 1, 128, 2, 1, 545, 7, 3, 1, CAUSAL},  {1, 8, 16, 32, 1, 128, 9, 1, 1, CAUSAL},
    {2, 8, 16, 32, 4, 1024, 3, 1, 1, VALID},  {2, 32, 128, 16, 4, 124, 9, 1, 1, VALID},
    {2, 1, 48, 4, 9, 269, 3, 1, 1, CAUSAL},   {2, 8, 64, 48, 4, 445, 7, 1, 1, SAME},
    {2, 2, 256, 48, 4, 435, 7, 1, 4, SAME},   {2, 2, 12, 24, 4, 751, 2, 1, 3, SAME},
    {2, 8, 96, 24, 4, 78, 9, 1, 3, CAUSAL},   {2, 8, 24, 128, 25, 274, 9, 1, 3, VALID},
    {2, 2, 48, 256, 9, 89, 9, 1, 1, VALID},   {2, 8, 64, 64, 16, 16, 3, 1, 1, SAME},
    {2, 8, 3, 32, 32, 32, 3, 2, 1, SAME},     {2, 4, 64, 64, 8, 8, 1, 1, 1, VALID},
    {3, 8, 128, 16, 4, 350, 2, 3, 1, CAUSAL}, {3, 2, 20, 8, 4, 221, 9, 1, 3, SAME},
    {3, 1, 1, 128, 4, 85, 9, 1, 4, SAME},     {3, 2, 16, 32, 8, 16, 3, 1, 1, SAME},
};

static mf_dnn_conv conv_of(const shape *s, mf_dnn_direction direction)
{
    mf_dnn_conv c = {.direction = direction,
                     .dims = s->dims,
                     .batch = s->batch,
                     .in_channels = s->in_channels,
                     .out_channels = s->out_channels,
                     .groups = 1,
                     .bias = direction != MF_DNN_GRAD_DATA};
    for (int i = 0; i < s->dims; i++) {
        const int64_t reach = (s->kernel - 1) * s->dilation + 1;
        c.in[i] = i == s->dims - 1 ? s->columns : s->rows;
        if (s->padding == VALID && c.in[i] < reach)
            c.in[i] = reach;
        c.out[i] = s->padding == VALID ? (c.in[i] - reach) / s->stride + 1 : (c.in[i] + s->stride - 1) / s->stride;
        const int64_t pad = (c.out[i] - 1) * s->stride + reach - c.in[i];
        c.kernel[i] = s->kernel;
        c.stride[i] = s->stride;
        c.dilation[i] = s->dilation;
        c.before[i] = pad <= 0 ? 0 : s->padding == CAUSAL ? pad : pad / 2;
        c.after[i] = pad - c.before[i];
    }
    return c;
}

static uint64_t held(void)
{
    mf_os_memory m;
    return mf_os_process_memory(&m, NULL) == MEMFIT_OK ? m.rss_anon + m.rss_shmem : 0;
}

/* In a child: asks and makes it as a kernel does; exits 0 when that took no more than expected. */
static void make_one(const shape *s, mf_dnn_direction direction)
{
    mf_dnn_engine *engine;
    mf_dnn *made = NULL;
    uint64_t workspace;
    const shape first = {2, 1, 16, 16, 8, 8, 1, 1, 1, VALID}; /* what the library takes once is not this one's */
    mf_dnn_conv c = conv_of(&first, MF_DNN_FORWARD);
    if (mf_dnn_engine_create(mf_host_default(), 2, NULL, &engine, NULL) != MEMFIT_OK ||
        mf_dnn_conv_make(engine, &c, &made, &workspace, NULL) != MEMFIT_OK)
        _exit(2);
    mf_dnn_cache(true);
    c = conv_of(s, direction);
    const uint64_t before = held(), expected = mf_dnn_conv_making(&c);
    memfit_status status = mf_dnn_conv_make(engine, &c, NULL, &workspace, NULL);
    if (status == MEMFIT_OK)
        status = mf_dnn_conv_make(engine, &c, &made, &workspace, NULL);
    const uint64_t took = held() - before;
    if (took > expected)
        print_error("%d dimensions, %d columns, %d taps, %d apart, direction %d: took %llu, expected %llu\n", s->dims,
                    (int)s->columns, (int)s->kernel, (int)s->dilation, (int)direction, (unsigned long long)took,
                    (unsigned long long)expected);
    _exit(took > expected);
}

static void making_takes_no_more(void **state)
{
    (void)state;
    int more = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int direction = 0; direction < 3; direction++) {
            int status;
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0)
                make_one(&shapes[i], (mf_dnn_direction)direction);
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
            more += WEXITSTATUS(status);
        }
    assert_int_equal(more, 0);
}

int main(void)
{
    mallopt(M_PERTURB, 0); /* Meson sets it: free() then writes what no program touched */
    if (!mf_dnn_compiles())
        return 77; /* own kernels alone */
    const struct CMUnitTest tests[] = {cmocka_unit_test(making_takes_no_more)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
