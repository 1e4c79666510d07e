/*
 * memfit/diagnosis.h: a failure that has already happened. Given what a program printed before it died (or a PyTorch
 * memory snapshot), says what was asked, what held the rest, why it failed, and the line to change.
 *
 * Reads TensorFlow's ResourceExhaustedError and allocator dump, PyTorch's out-of-memory message, XLA's and JAX's
 * RESOURCE_EXHAUSTED text, and cuDNN and cuBLAS errors that are memory in disguise. Memory is bounded whatever the
 * input.
 */
#ifndef MEMFIT_DIAGNOSIS_H
#define MEMFIT_DIAGNOSIS_H

#include "memfit/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MEMFIT_DIAGNOSIS_LIST(X)                                                                                       \
    X(TOO_LARGE, "too-large", "more than the card or the machine holds")                                               \
    X(LIMIT, "limit", "a limit set in the program or its environment, not the card")                                   \
    X(FRAGMENTATION, "fragmentation", "enough is free, but scattered")                                                 \
    X(OTHER_PROCESS, "other-process", "another process holds the card")                                                \
    X(OTHER_FRAMEWORK, "other-framework", "another framework in the same process holds the card")                      \
    X(GROWING, "growing", "memory grows from step to step: something is kept")                                         \
    X(EVALUATION, "evaluation", "training fits, the validation or prediction batch does not")                          \
    X(LIBRARY, "library", "a context, handle or workspace of a CUDA library had no room")                              \
    X(UNKNOWN, "unknown", "the text does not say")

typedef enum memfit_diagnosis_cause {
#define X(name, text, words) MEMFIT_DIAGNOSIS_##name,
    MEMFIT_DIAGNOSIS_LIST(X)
#undef X
        MEMFIT_DIAGNOSIS_COUNT
} memfit_diagnosis_cause;

/* "too-large", ... Since 0.1. */
MEMFIT_API const char *memfit_diagnosis_cause_name(memfit_diagnosis_cause cause);
/* "enough is free, but scattered", ... Since 0.1. */
MEMFIT_API const char *memfit_diagnosis_cause_words(memfit_diagnosis_cause cause);

enum { MEMFIT_DIAGNOSIS_OWNERS = 12, MEMFIT_DIAGNOSIS_SUGGESTIONS = 4 };

typedef struct memfit_diagnosis {
    size_t size;        /* sizeof(memfit_diagnosis): MEMFIT_DIAGNOSIS */
    char framework[16]; /* "pytorch", "tensorflow", "jax", "memfit", "unknown" */
    char source[16];    /* "log", "snapshot", "trace" */
    memfit_diagnosis_cause cause;
    double certainty;       /* 0 to 1 */
    char evidence[320];     /* what in the text says so */
    char settle[256];       /* the one further piece of evidence that would settle it; empty when certain */
    char operation[128];    /* what asked: an operation or kernel; may be empty */
    char line[256];         /* the last line of the user's own code, "train.py:17", or its stack; may be empty */
    uint64_t request_bytes; /* 0: the text does not say; likewise below */
    uint64_t limit_bytes;
    uint64_t in_use_bytes;
    uint64_t reserved_bytes; /* held by the framework's allocator, in use or not */
    uint64_t card_bytes, card_free_bytes;
    uint64_t process_bytes; /* this process, context and libraries included */
    uint64_t replay_bytes;  /* what the same requests, the failed one included, need in memfit's pool; not for logs */
    bool host;              /* it was the machine's memory, not a card's; limit_bytes is then the machine's */
    uint64_t leading;       /* first dimension of the tensor that was refused, often the batch; 0: not told */
    size_t owner_count;
    struct {
        char name[96];
        uint64_t bytes;
    } owners[MEMFIT_DIAGNOSIS_OWNERS]; /* what held the rest, largest first */
    size_t suggestion_count;
    struct {
        char change[320]; /* a line to paste, or a command */
        char why[200];
        char kind[24]; /* the class of change, "expandable", "batch", ...: docs/explain.md lists them */
    } suggestions[MEMFIT_DIAGNOSIS_SUGGESTIONS]; /* best first */
} memfit_diagnosis;
#define MEMFIT_DIAGNOSIS MEMFIT_INIT(memfit_diagnosis)

/* Reads text (a log). DAMAGED when it is empty or no text at all; otherwise OK, with cause UNKNOWN when it holds no
 * failure we understand. Since 0.1. */
MEMFIT_API memfit_status memfit_explain_log(const char *text, size_t bytes, memfit_diagnosis *diagnosis,
                                            memfit_error *err);

/* Reads whatever failed: a log, a PyTorch memory snapshot or a memfit trace, told apart by content. A recording is
 * replayed in memfit's pool, on no device, which tells fragmentation from shortage. DAMAGED also for a pickle that is
 * more than plain data. Since 0.1. */
MEMFIT_API memfit_status memfit_explain(const void *data, size_t bytes, memfit_diagnosis *diagnosis, memfit_error *err);

#ifdef __cplusplus
}
#endif
#endif
