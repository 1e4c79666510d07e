/* error.h: filling a memfit_error. No function here allocates. */
#ifndef MF_BASE_ERROR_H
#define MF_BASE_ERROR_H

#include "memfit/base.h"

#include <stdarg.h>

/* Strings in messages are made visible (base/visible.h): the format alone makes lines.
 *
 * Sets code and message and returns the code, so that a failure is one line:
 *     return mf_fail(err, MEMFIT_INVALID, "batch size %d: must be at least 1", n);
 * The text may end in a hint, set apart by "\n": "what happened\nwhat to do". */
#define mf_fail(err, status, ...) mf_error_set((err), (status), __FILE__, __LINE__, __VA_ARGS__)

memfit_status mf_error_set(memfit_error *err, memfit_status status, const char *file, int line, const char *format, ...)
    MEMFIT_PRINTF(5, 6);

/* The same for functions that take a format themselves. */
#define mf_vfail(err, status, format, args) mf_error_vset((err), (status), __FILE__, __LINE__, (format), (args))
memfit_status mf_error_vset(memfit_error *err, memfit_status status, const char *file, int line, const char *format,
                            va_list args) MEMFIT_PRINTF(5, 0);

/* Puts "prefix: " before the message, to name the place from outside in. Returns `status`, also when err is NULL. */
memfit_status mf_error_prefix(memfit_error *err, memfit_status status, const char *format, ...) MEMFIT_PRINTF(3, 4);

/* Assertions in three grades: ASSERT always, DCHECK in debug builds, AUDIT (expensive walks) in test builds. They
 * print and trap: they stand for programming errors inside memfit, never for bad input. */
#define MEMFIT_ASSERT(x) ((x) ? (void)0 : mf_assert_failed(#x, __FILE__, __LINE__))
#ifdef NDEBUG
#define MEMFIT_DCHECK(x) ((void)0)
#else
#define MEMFIT_DCHECK(x) MEMFIT_ASSERT(x)
#endif
#ifdef MEMFIT_TEST_BUILD
#define MEMFIT_AUDIT(x) MEMFIT_ASSERT(x)
#else
#define MEMFIT_AUDIT(x) ((void)0)
#endif
_Noreturn void mf_assert_failed(const char *what, const char *file, int line);

#endif
