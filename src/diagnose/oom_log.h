/* oom_log.h: the facts a log states, before anything is concluded from them. */
#ifndef MF_DIAGNOSE_OOM_LOG_H
#define MF_DIAGNOSE_OOM_LOG_H

#include "memfit/diagnosis.h"

/* How the machine's memory ended (oom_host.c), by how much the text says of it. */
typedef enum {
    MF_HOST_NONE,
    MF_HOST_REFUSED, /* an allocation was refused */
    MF_HOST_KILLED,  /* signal 9, and nobody says why */
    MF_HOST_MACHINE, /* the kernel: the machine was full */
    MF_HOST_GROUP,   /* the limit of a container, a job or a unit */
    MF_HOST_SHARED   /* /dev/shm was full */
} mf_host_end;

typedef struct mf_oom_facts {
    const char *framework;
    bool failed;         /* some out-of-memory text was found */
    bool torch_message;  /* PyTorch's long message */
    bool bfc_failure;    /* "ran out of memory trying to allocate" of the BFC allocator */
    bool driver_refused; /* the driver itself refused memory to the framework's pool */
    bool died_reporting; /* PyTorch's allocator failed while it wrote why it had failed */
    bool library_error;  /* a cuBLAS, cuDNN or context failure that does not say memory */
    char library_text[96];
    uint64_t request, limit, in_use, reserved, reserved_free, card, card_free, process, private_pools;
    uint64_t others; /* bytes of other processes named */
    struct {
        unsigned pid;
        uint64_t bytes;
    } processes[16]; /* the largest first */
    size_t process_count;
    uint64_t base_limit; /* XLA's pool */
    uint64_t governed;   /* the part of the card that memfit run or memfit.limit held the process to, and refused at */
    uint64_t refused_largest; /* largest piece the driver refused */
    uint64_t refused_last, refused_first;
    /* the allocator's occupancy bar: cells in use, cells, runs of free cells */
    unsigned bar_used, bar_cells, bar_holes, bar_longest_hole;
    /* memory printed step after step */
    unsigned series_count, series_rises;
    uint64_t series_first, series_last;
    char series_word[16]; /* "step", "fold", ... */
    bool evaluation_word; /* the last words printed, or the traceback, speak of validation or prediction */
    char evaluation_text[96];
    bool names_torch, names_jax, names_tensorflow; /* another framework is mentioned outside of paths */
    bool expandable_on, growth_on, preallocate_off, fraction_set, async_on; /* settings visible in the text */
    bool no_grad_on;                                                        /* the failing call ran without gradients */
    bool host;                                                              /* it was the host's memory, not a card's */
    bool optimizer, attention; /* the call that asked came through an optimizer's step, an attention's scores */
    bool folds;                /* what was counted while memory rose: folds or trials, not steps */
    uint64_t seen[2];          /* classes of suggestion whose own words stand in the text: bit i, row i */
    mf_host_end host_end;
    char host_text[96];
    bool array, wide_numbers;           /* numpy asked, for elements of 8 bytes or more */
    bool worker;                        /* of a data loader */
    bool names_shared, in_kernel_table; /* shared memory is named; the kernel's list of tasks is being read */
    unsigned victim_pid, task_pid;      /* whom the kernel killed, and who held most */
    uint64_t victim_bytes, task_bytes;
    char task_name[32];
    bool program;         /* another program than the three says what it asked for */
    bool serves;          /* vLLM */
    char bare_text[96];   /* "out of memory", and no more than that */
    bool in_limits;       /* a container's limits are being read */
    uint64_t group_limit; /* that of its memory */
    bool no_pages;        /* Windows: memory and paging file together are used up */
    bool mps;             /* Apple's: the limit is a share of the machine's memory */
    bool watermark_set;   /* and its share was set */
    uint64_t created;     /* TensorFlow's pool as it was made: "Created device ... with 5964 MB memory" */
    uint64_t created_of;  /* the card's memory, by its name there; 0 when unknown */
    double fraction;
    memfit_cause own;     /* memfit's own pool says why; NONE */
    bool plan_failed;     /* memfit's own plan did not fit: request is what it needs */
    uint64_t leading;     /* first dimension of the shape that was refused */
    char settings[8][96]; /* "NAME=VALUE" as visible in the text */
    size_t setting_count;
    char operation[128], line[256];
    uint64_t bfc_chunks_free, bfc_largest_free; /* from a full dump */
    struct {
        uint64_t size, count;
    } bfc_sizes[8]; /* "N Chunks of size S": largest totals */
    size_t bfc_size_count;
} mf_oom_facts;

/* memfit_explain with host memory from elsewhere; NULL: the C library. */
/* A log alone; `diagnosis` is of this version. */
memfit_status mf_explain_log(const char *text, size_t bytes, memfit_diagnosis *diagnosis, memfit_error *err);
memfit_status mf_explain(const memfit_host *host, const void *data, size_t bytes, memfit_diagnosis *diagnosis,
                         memfit_error *err);

void mf_oom_read(const char *text, size_t bytes, mf_oom_facts *facts);
/* The same, without skipping lines that cannot say anything: slow, for tests. */
void mf_oom_read_all(const char *text, size_t bytes, mf_oom_facts *facts);
/* Concludes: fills cause, certainty, evidence, owners and suggestions. */
void mf_oom_conclude(const mf_oom_facts *facts, memfit_diagnosis *diagnosis);

/* The parts of a conclusion, for those who have other facts. */
void mf_oom_decide(memfit_diagnosis *d, memfit_diagnosis_cause cause, double certainty, const char *settle,
                   const char *format, ...) MEMFIT_PRINTF(5, 6);
/* Adds an owner; they stay in order. */
void mf_oom_own(memfit_diagnosis *d, uint64_t bytes, const char *format, ...) MEMFIT_PRINTF(3, 4);
/* What to change, by d->cause and what the facts say is in force. */
void mf_oom_suggest(const mf_oom_facts *facts, memfit_diagnosis *d);

/* One thing that can be suggested. Rows of one id are one class: the same change, worded for a cause or framework. */
typedef struct mf_oom_class {
    const char *id;                                               /* as in tests/fixtures/oom-logs/cases.json */
    unsigned causes, frameworks;                                  /* bits: 1 << cause, MF_OOM_* */
    unsigned flags;                                               /* MF_OOM_LOOKS, MF_OOM_AGAIN */
    bool (*fits)(const mf_oom_facts *, const memfit_diagnosis *); /* false: in force, or out of place; NULL: always */
    const char *seen;   /* these words in the text say that it is in force; NULL: only the fits function tells */
    const char *change; /* a line to paste; {pid}, {mb}, {bytes}, {size} and {conf} are filled in */
    const char *why;
} mf_oom_class;
enum { MF_OOM_TORCH = 1, MF_OOM_TENSORFLOW = 2, MF_OOM_JAX = 4, MF_OOM_MEMFIT = 8, MF_OOM_UNKNOWN = 16 };
enum {
    MF_OOM_LOOKS = 1, /* shows something, mends nothing */
    MF_OOM_AGAIN = 2  /* may be done once more though it was done: half the batch */
};
const mf_oom_class *mf_oom_classes(size_t *count);

#endif
