/* test.h: what every test file includes: cmocka in its odd order, and a few helpers. */
#ifndef MF_TESTS_TEST_H
#define MF_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
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

/* The folder given by MEMFIT_SHARED_DATA (or data/ beside the checkout's parent in shared/), or NULL: tests that can
 * use the traces and files there skip without them. */
static inline const char *test_shared_data(void)
{
    return getenv("MEMFIT_SHARED_DATA");
}

#endif
