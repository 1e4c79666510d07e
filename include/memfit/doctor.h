/*
 * memfit/doctor.h: is this machine set up right, and who uses its cards? Looks only: needs no root, changes nothing,
 * opens no CUDA context. Works without a driver and without a card.
 */
#ifndef MEMFIT_DOCTOR_H
#define MEMFIT_DOCTOR_H

#include "memfit/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { MEMFIT_CHECK_OK, MEMFIT_CHECK_NOTE, MEMFIT_CHECK_WARN, MEMFIT_CHECK_FAIL } memfit_check_state;
/* "ok", "note", "warn", "fail". Since 0.1. */
MEMFIT_API const char *memfit_check_state_name(memfit_check_state state);

typedef struct memfit_check {
    char name[48];
    memfit_check_state state;
    char found[200];
    char wanted[160]; /* empty when nothing is wrong */
    char fix[240];    /* a command or a line; empty when nothing is wrong */
} memfit_check;

typedef struct memfit_gpu {
    unsigned index; /* NVML's */
    char name[96], uuid[80], bus_id[32];
    uint64_t total_bytes, used_bytes, free_bytes; /* NVML's */
    uint64_t
        reserved_bytes; /* kept back by driver and firmware, not in used; 0: the driver does not tell, it is in used */
    /* used_bytes by cause; the three sum to it: */
    uint64_t processes_bytes;   /* what NVML shows for processes */
    uint64_t driver_bytes;      /* the driver's own for their contexts: channels, page tables */
    uint64_t unexplained_bytes; /* more than that: processes NVML does not show or has no figure for, and the driver */
    unsigned contexts;          /* compute processes */
    bool memory_known;
    int capability; /* 90 is 9.0; -1 unknown */
} memfit_gpu;

typedef struct memfit_gpu_process {
    unsigned card; /* index into cards */
    unsigned pid;
    uint64_t bytes;
    bool bytes_known, graphics;
    char name[128];
    char kind[24];        /* "pytorch", "jax", "tensorflow", "display", "cuda", ... as far as it can be told */
    uint64_t age_seconds; /* since it started; 0 unknown */
} memfit_gpu_process;

enum {
    MEMFIT_DOCTOR_CHECKS = 48,
    MEMFIT_DOCTOR_CARDS = 16,
    MEMFIT_DOCTOR_PROCESSES = 128,
    MEMFIT_DOCTOR_FRAMEWORKS = 12
};

typedef struct memfit_gpus {
    size_t card_count;
    memfit_gpu cards[MEMFIT_DOCTOR_CARDS];
    size_t process_count;
    memfit_gpu_process processes[MEMFIT_DOCTOR_PROCESSES];
    char driver[80];
    int cuda_version; /* newest CUDA the driver serves: 13000; 0 unknown */
} memfit_gpus;

/* Cards and who is on them. NOT_FOUND without a driver, DEVICE when it refuses. Since 0.1. */
MEMFIT_API memfit_status memfit_gpus_look(memfit_gpus *cards, memfit_error *err);

typedef struct memfit_framework {
    char name[24], version[40], cuda[16]; /* cuda: what it was built for; empty unknown */
    char where[256];
} memfit_framework;

typedef struct memfit_doctor {
    char verdict[768];
    memfit_check_state state; /* the worst of the checks */
    size_t check_count;
    memfit_check checks[MEMFIT_DOCTOR_CHECKS];
    memfit_gpus cards;
    size_t framework_count;
    memfit_framework frameworks[MEMFIT_DOCTOR_FRAMEWORKS];
    char system[160], kernel[80], kernel_module[40], libcuda[256], cudart[256], cudnn[256], cudnn_version[24],
        python[40];
    uint64_t memory_bytes, memory_limit_bytes; /* of the machine; of the cgroup, 0 none */
} memfit_doctor;

/* Looks at everything; never fails because something is missing (that is a check's answer). `root` is "" for this
 * machine, or a folder that holds another's files: then NVML is asked only when MEMFIT_LIB_NVML names one (tests).
 * Since 0.1. */
MEMFIT_API memfit_status memfit_doctor_look(const char *root, memfit_doctor *doctor, memfit_error *err);

/* What is on record, for comparing with another machine later. Since 0.1. */
MEMFIT_API memfit_status memfit_doctor_save(const memfit_doctor *doctor, const char *path, memfit_error *err);

/* What the cards here say of themselves, for the table of cards: name, memory, clocks, what a context takes. Nothing in
 * the file identifies a card or a machine. Opens each card for a moment. NOT_FOUND without a driver or a card. Since 0.2.
 */
MEMFIT_API memfit_status memfit_doctor_save_cards(const char *path, memfit_error *err);

typedef struct memfit_difference {
    char what[64], here[200], there[200];
    bool matters;
    char why[240];
} memfit_difference;
/* Compares with a saved record: at most `most` differences, those that matter first. Since 0.1. */
MEMFIT_API memfit_status memfit_doctor_compare(const memfit_doctor *here, const char *path, memfit_difference *list,
                                               size_t most, size_t *count, memfit_error *err);

#ifdef __cplusplus
}
#endif
#endif
