/* test.h: what every test file includes: cmocka in its odd order, and what most of them want. */
#ifndef MF_TESTS_TEST_H
#define MF_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memfit/base.h"

/* The status must be OK; prints the error's text when it is not. */
#define assert_ok(call, err)                                                                                           \
    do {                                                                                                               \
        memfit_status status_ = (call);                                                                                \
        if (status_ != MEMFIT_OK) {                                                                                    \
            fprintf(stderr, "%s: %s\n", #call, (err).message);                                                         \
            assert_int_equal(status_, MEMFIT_OK);                                                                      \
        }                                                                                                              \
    } while (0)

/* A temporary folder for all tests of a file: cmocka_run_group_tests(tests, test_folder_make, test_folder_drop). */
static inline char *test_folder(void)
{
    static char folder[64];
    return folder;
}

static inline int test_folder_make(void **state)
{
    (void)state;
    strcpy(test_folder(), "/tmp/memfit-test-XXXXXX");
    return mkdtemp(test_folder()) ? 0 : 1;
}

static inline int test_folder_drop(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", test_folder());
    return system(command);
}

/* `name` in that folder; good until the fourth call after this one. */
static inline const char *test_path(const char *name)
{
    static char path[4][128];
    static unsigned next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", test_folder(), name);
    return p;
}

/* The folder given by MEMFIT_SHARED_DATA (or data/ beside the checkout's parent in shared/), or NULL: tests that can
 * use the traces and files there skip without them. */
static inline const char *test_shared_data(void)
{
    return getenv("MEMFIT_SHARED_DATA");
}

/* MEMFIT_ISA names instructions that this processor does not have. Then main returns 77, which Meson counts as skipped. */
static inline bool test_isa_is_missing(void)
{
    const char *isa = getenv("MEMFIT_ISA");
#ifdef __x86_64__
    __builtin_cpu_init();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return isa &&
           ((strcmp(isa, "avx512") == 0 && !avx512) || (strcmp(isa, "avx2") == 0 && !__builtin_cpu_supports("avx2")));
#else
    return isa && strncmp(isa, "avx", 3) == 0;
#endif
}

#endif
