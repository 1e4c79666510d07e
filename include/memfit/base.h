/*
 * memfit/base.h: what every other header stands on: status codes, errors, sizes, kinds of memory, host memory.
 *
 * Conventions, true for the whole API:
 *   - Every function that can fail returns a memfit_status (0 is MEMFIT_OK, failures are negative) and takes a
 *     `memfit_error *err` last, which may be NULL. Output parameters are written only on success.
 *   - Nothing aborts or exits, and a call that failed has changed nothing.
 *   - Sizes are uint64_t bytes. Units stand in names: _bytes, _us, _count.
 *   - Objects are opaque. What is made by a _create or _load is ended by a _destroy, what is opened by an _open by a
 *     _close; both accept NULL.
 *   - Options and results are structs with `size` first, set by the caller's compiler:
 *         memfit_pool_options options = MEMFIT_POOL_OPTIONS;
 *         memfit_pool_info info = MEMFIT_POOL_INFO;
 *     They grow only at their end. The library reads and writes no further than the caller's struct reaches, so
 *     programs and libraries of different versions go together; a setting the library does not know is UNSUPPORTED.
 *     A function that fills an array takes its stride: sizeof of one element. Structs without `size` (memfit_error,
 *     memfit_host, memfit_event and the elements of arrays inside results) never change their size; new fields come
 *     out of their `reserved` bytes, which are zero.
 *   - Threads: an object may be used by one thread at a time unless its header says more; different objects by
 *     different threads. memfit changes nothing in the calling process beyond its calls: no signal handler, no
 *     floating-point mode, no locale, no environment variable, no number of OpenMP threads.
 *   - Signals: no function may be called from a signal handler. fork: the child of a process that uses memfit may
 *     call exec or _exit; other calls there are allowed only where a header says so.
 *   - Callbacks run in the thread that made the call, without a lock of memfit held, unless their declaration says
 *     otherwise. Strings handed to a callback live until it returns.
 */
#ifndef MEMFIT_BASE_H
#define MEMFIT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MEMFIT_API              __attribute__((visibility("default")))
#define MEMFIT_PRINTF(fmt, arg) __attribute__((format(printf, fmt, arg)))
#else
#define MEMFIT_API
#define MEMFIT_PRINTF(fmt, arg)
#endif

/* What a struct of options or results begins as: MEMFIT_POOL_OPTIONS and the like. C++ before C++20 has no designated
 * initializers; there a function without a name makes it. Since 0.2. */
#ifdef __cplusplus
#define MEMFIT_INIT_3(type, a, x, b, y, c, z)                                                                          \
    ([] {                                                                                                              \
        type memfit_made = type();                                                                                     \
        memfit_made.size = sizeof(type);                                                                               \
        memfit_made.a = x;                                                                                             \
        memfit_made.b = y;                                                                                             \
        memfit_made.c = z;                                                                                             \
        return memfit_made;                                                                                            \
    }())
#define MEMFIT_INIT_2(type, a, x, b, y) MEMFIT_INIT_3(type, a, x, b, y, size, sizeof(type))
#define MEMFIT_INIT_1(type, a, x)       MEMFIT_INIT_2(type, a, x, size, sizeof(type))
#define MEMFIT_INIT(type)               MEMFIT_INIT_1(type, size, sizeof(type))
#else
#define MEMFIT_INIT(type)                                                                                              \
    {                                                                                                                  \
        .size = sizeof(type)                                                                                           \
    }
#define MEMFIT_INIT_1(type, a, x)                                                                                      \
    {                                                                                                                  \
        .size = sizeof(type), .a = x                                                                                   \
    }
#define MEMFIT_INIT_2(type, a, x, b, y)                                                                                \
    {                                                                                                                  \
        .size = sizeof(type), .a = x, .b = y                                                                           \
    }
#define MEMFIT_INIT_3(type, a, x, b, y, c, z)                                                                          \
    {                                                                                                                  \
        .size = sizeof(type), .a = x, .b = y, .c = z                                                                   \
    }
#endif

/* ---- version ---------------------------------------------------------------------------------------------- */

#define MEMFIT_VERSION_NUMBER 200 /* major * 10000 + minor * 100 + patch */
#define MEMFIT_VERSION_STRING "0.2.0"

/* The version of the library that is really loaded, as text and as a number to compare with MEMFIT_VERSION_NUMBER.
 * Since 0.1. */
MEMFIT_API const char *memfit_version(void);
MEMFIT_API uint32_t memfit_version_number(void);

/* ---- status ----------------------------------------------------------------------------------------------- */

/* One list: code, name, what it means. Codes never change their number. */
#define MEMFIT_STATUS_LIST(X)                                                                                          \
    X(0, OK, "done")                                                                                                   \
    X(-1, INVALID, "an argument or option makes no sense")                                                             \
    X(-2, OUT_OF_MEMORY, "the device memory asked for is not there")                                                   \
    X(-3, NO_HOST_MEMORY, "the host is out of memory")                                                                 \
    X(-4, DOES_NOT_FIT, "no plan fits the limit")                                                                      \
    X(-5, UNSUPPORTED, "not supported, or not built yet")                                                              \
    X(-6, NOT_FOUND, "a file, library or device is missing")                                                           \
    X(-7, DAMAGED, "an input is damaged or not what its name says")                                                    \
    X(-8, IO, "reading or writing failed")                                                                             \
    X(-9, DEVICE, "the device or its driver reported a failure")                                                       \
    X(-10, MISUSE, "a handle or pointer was used wrongly")                                                             \
    X(-11, CONFLICT, "the request contradicts a setting in force")                                                     \
    X(-12, DIVERGED, "a value that must be finite is not")                                                             \
    X(-13, INTERNAL, "memfit broke one of its own rules")                                                              \
    X(-14, INTERRUPTED, "stopped because the caller asked for it")

typedef enum memfit_status {
#define X(code, name, text) MEMFIT_##name = (code),
    MEMFIT_STATUS_LIST(X)
#undef X
} memfit_status;

/* "OUT_OF_MEMORY"; "?" for a number that is no status. Since 0.1. */
MEMFIT_API const char *memfit_status_name(memfit_status status);
/* The sentence of the list above. Since 0.1. */
MEMFIT_API const char *memfit_status_text(memfit_status status);

/* ---- kinds of memory -------------------------------------------------------------------------------------- */

/* Every byte has a kind and an owner's name. */
#define MEMFIT_KIND_LIST(X)                                                                                            \
    X(PARAMETERS, "parameters")                                                                                        \
    X(GRADIENTS, "gradients")                                                                                          \
    X(OPTIMIZER, "optimizer")                                                                                          \
    X(ACTIVATIONS, "activations")                                                                                      \
    X(INPUTS, "inputs")                                                                                                \
    X(WORKSPACE, "workspace")                                                                                          \
    X(PADDING, "padding")                                                                                              \
    X(FIXED, "fixed")                                                                                                  \
    X(OTHER, "other")

typedef enum memfit_kind {
#define X(name, text) MEMFIT_KIND_##name,
    MEMFIT_KIND_LIST(X)
#undef X
        MEMFIT_KIND_COUNT
} memfit_kind;

/* Arrays by kind in results have this many places: more kinds than there are today. */
#define MEMFIT_KIND_PLACES 16

/* "parameters", ... Since 0.1. */
MEMFIT_API const char *memfit_kind_name(memfit_kind kind);

/* ---- why memory was short --------------------------------------------------------------------------------- */

#define MEMFIT_CAUSE_LIST(X)                                                                                           \
    X(NONE, "none")                                                                                                    \
    X(LIMIT, "over-the-limit")                                                                                         \
    X(OTHER_LOGICAL_DEVICE, "another-logical-device")                                                                  \
    X(PENDING_STREAM, "pending-on-another-stream")                                                                     \
    X(PINNED_BY_SMALL, "pinned-by-small-survivors")                                                                    \
    X(TAKEN_BY_OTHERS, "taken-by-others")                                                                              \
    X(GRANULARITY, "alignment-or-granularity")                                                                         \
    X(LARGER_THAN_DEVICE, "larger-than-the-device")

typedef enum memfit_cause {
#define X(name, text) MEMFIT_CAUSE_##name,
    MEMFIT_CAUSE_LIST(X)
#undef X
        MEMFIT_CAUSE_COUNT
} memfit_cause;

/* "over-the-limit", ... Since 0.1. */
MEMFIT_API const char *memfit_cause_name(memfit_cause cause);

/* ---- errors ----------------------------------------------------------------------------------------------- */

#define MEMFIT_ERROR_TEXT    512
#define MEMFIT_ERROR_HOLDERS 3

/* Filled without allocating. `message` says what happened, `hint` what to do about it (may be empty). The numbers
 * are set for MEMFIT_OUT_OF_MEMORY and MEMFIT_DOES_NOT_FIT, otherwise zero. */
typedef struct memfit_error {
    memfit_status code;
    char message[MEMFIT_ERROR_TEXT];
    char hint[MEMFIT_ERROR_TEXT];
    const char *source_file; /* where in memfit it arose, for bug reports */
    int source_line;
    memfit_cause cause;
    uint64_t requested_bytes;
    uint64_t limit_bytes;
    uint64_t in_use_bytes;
    uint64_t reserved_bytes;
    uint64_t largest_free_bytes;
    struct {
        char name[48];
        memfit_kind kind;
        uint64_t bytes;
    } holders[MEMFIT_ERROR_HOLDERS]; /* the largest owners; bytes 0 ends the list */
    uint64_t reserved[8];
} memfit_error;

/* ---- host memory ------------------------------------------------------------------------------------------ */

/* The whole interface to host memory. resize(ctx, NULL, 0, n) allocates, resize(ctx, p, old, 0) frees and returns
 * NULL, otherwise p is grown or shrunk. Memory is aligned to 16 bytes. NULL on failure, and p is still there.
 * Called from any thread. */
typedef struct memfit_host {
    void *(*resize)(void *ctx, void *ptr, size_t old_bytes, size_t new_bytes);
    void *ctx;
} memfit_host;

/* ---- sizes as text ---------------------------------------------------------------------------------------- */

/* Reads "512MiB", "8GiB", "1.5GB", "4096" (bytes) or "80%" of `whole_bytes`. MEMFIT_INVALID names what is wrong: an
 * unknown unit, a percentage where whole_bytes is 0 or over 100, a negative, empty or too large number. Since 0.1. */
MEMFIT_API memfit_status memfit_size_parse(const char *text, uint64_t whole_bytes, uint64_t *bytes, memfit_error *err);

/* ---- text and JSON ---------------------------------------------------------------------------------------- */

/* Takes a piece of a text; false stops the writing, which then fails with MEMFIT_IO. */
typedef bool (*memfit_write_fn)(void *ctx, const char *text, size_t bytes);

/* Writes "1.50 GiB", "512 B", ... into text and returns it. 24 characters are always enough. Since 0.1. */
MEMFIT_API char *memfit_size_format(uint64_t bytes, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
