/*
 * memfit/run.h: runs another program, unchanged, and watches its memory: what `memfit run` does.
 *
 *     memfit_run_options o = MEMFIT_RUN_OPTIONS;
 *     o.command = (const char *const[]){"python", "train.py", NULL};
 *     memfit_run *run;
 *     memfit_run_result r = MEMFIT_RUN_RESULT;
 *     memfit_status status = memfit_run_command(&o, &run, &err);      returns when the program has ended
 *     memfit_run_get(run, &r, &err);                          r.status is what the caller exits with
 *     const char *text = memfit_run_stderr(run, &bytes);      the end of what it wrote, for memfit_explain_log
 *     memfit_run_destroy(run);
 *
 * The caller gives its whole process to this job. It must have no children and no threads of its own. memfit blocks its
 * signals from then on and hands them to the program, and the caller becomes the parent of the program's orphans.
 */
#ifndef MEMFIT_RUN_H
#define MEMFIT_RUN_H

#include "memfit/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memfit_run memfit_run;

/* Turns ten times as long as changing from one job to the other takes. */
#define MEMFIT_RUN_TURNS_AUTO UINT32_MAX

typedef struct memfit_run_options {
    size_t size;                /* sizeof(memfit_run_options) */
    const memfit_host *host;    /* NULL: the C library */
    const char *const *command; /* ended by NULL; the first is looked for in PATH */
    bool growth;                /* let frameworks take memory as they need it, where nothing else is set */
    bool end_leftovers;         /* also after exit status 0 */
    uint32_t grace_ms;          /* between SIGTERM and SIGKILL for processes that are left */
    uint32_t sample_ms;         /* how often to look at memory */
    uint64_t limit_bytes;       /* of the program and all it starts, on each card; 0: none */
    const char *library; /* with a limit: libmemfit-govern.so; NULL: beside this program, or where it is installed */
    const char *share;   /* name of a limit that several jobs share; NULL: this job's own. limit_bytes 0: join one that
                          * exists */
    const char *trace;   /* each process writes what it takes and gives back on card C to TRACE.PID.C; NULL: none */
    uint32_t turns_s;   /* with a share: jobs that do not fit together take turns of so many seconds; 0: they do not. Or
                         * MEMFIT_RUN_TURNS_AUTO */
    const char *device; /* the one card the program sees, as nvidia-smi counts: "1"; NULL: all that it would see */
    uint64_t host_limit_bytes; /* of the host's memory, for the program and all it starts, by a cgroup; 0: none */
} memfit_run_options;
#define MEMFIT_RUN_OPTIONS MEMFIT_INIT_2(memfit_run_options, grace_ms, 5000, sample_ms, 100)

enum { MEMFIT_RUN_CARDS = 16, MEMFIT_RUN_PROCESSES = 128 };

typedef struct memfit_run_process {
    unsigned pid;
    char name[96];
    uint64_t host_peak_bytes, card_peak_bytes; /* its own largest, at whatever time */
} memfit_run_process;

enum { MEMFIT_RUN_OWNERS = 24 };

typedef struct memfit_run_owner {
    unsigned pid;
    char memory_class[16]; /* context, module, linear, managed, pool, virtual, array, graph; process: of another job */
    char words[48];        /* the same for people */
    char library[48];      /* whose code took it; of another job: the process's name; may be empty */
    uint64_t bytes, count;
} memfit_run_owner;

typedef struct memfit_run_result {
    size_t size;     /* sizeof(memfit_run_result) */
    int status;      /* the program's exit status, 128 + n after signal n, 126 or 127 when it could not be executed */
    int signal;      /* that ended it; 0: none */
    int start_error; /* errno when it could not be executed; 0: it ran */
    double seconds;
    uint64_t samples;
    /* Anonymous and shared resident memory of its processes at one time, summed: a page that two of them share counts
     * twice. Of a program too short to be looked at: the largest resident size the kernel saw (files included). */
    uint64_t host_peak_bytes;
    unsigned host_peak_processes;
    bool host_peak_sampled;
    size_t card_count; /* 0: there is no driver, or the program ended before it was asked */
    struct {
        unsigned index; /* NVML's */
        char name[96], uuid[80];
        uint64_t total_bytes;
        uint64_t peak_bytes;   /* of the program's processes, by NVML */
        uint64_t others_bytes; /* of other processes at that time */
        bool by_arrival;       /* its processes have other numbers here (a container): recognized by when they came */
    } cards[MEMFIT_RUN_CARDS];
    size_t process_count; /* those that were seen, first come first; at most MEMFIT_RUN_PROCESSES are kept */
    memfit_run_process processes[MEMFIT_RUN_PROCESSES];
    size_t leftover_count; /* still in the program's session when it had ended with status 0 */
    memfit_run_process leftovers[MEMFIT_RUN_PROCESSES];
    unsigned ended;              /* processes that were left over and that we ended */
    uint64_t limit_bytes;        /* 0: none */
    uint64_t refused;            /* requests over the limit */
    uint64_t charged_peak_bytes; /* largest sum of what was charged on one card */
    bool out_of_memory;          /* the kernel's out-of-memory killer struck */
    char oom_evidence[256];      /* what says so */
    uint64_t oom_limit_bytes;    /* of the cgroup that was full; 0: the machine, or not known */
    size_t denial_count;         /* of memfit_run_denial_get */
    unsigned suspended;          /* how often it gave way to another job */
    double away_seconds;         /* how long it was off the cards */
    char turns_refused[160];     /* why it could not be suspended; empty: it could, or never had to be */
    /* With a limit: who held what of a card when most was held, as far as looks show. The sum of all is held_bytes. */
    uint64_t held_bytes;
    unsigned held_card;
    size_t held_count;
    memfit_run_owner held[MEMFIT_RUN_OWNERS];
    uint64_t host_limit_bytes; /* 0: none */
    double switching_seconds;  /* of away_seconds: what suspending and coming back took */
    /* With a limit: the one of its processes that had most on a card without being limited (its environment was
     * cleared, it runs as another user...): pid 0: none. Since 0.2. */
    memfit_run_process outside;
} memfit_run_result;
#define MEMFIT_RUN_RESULT MEMFIT_INIT(memfit_run_result)

/* Runs the program to its end. INVALID without a command; IO when it gets no pipes or processes. A command that cannot
 * be executed is a result, not an error. With a limit: NOT_FOUND without the library, UNSUPPORTED for a program that
 * cannot load it (static, setuid), CONFLICT inside a program that is limited already, and where no cgroup can be made
 * for a limit of the host's memory. Since 0.1. */
MEMFIT_API memfit_status memfit_run_command(const memfit_run_options *options, memfit_run **run, memfit_error *err);
MEMFIT_API memfit_status memfit_run_get(const memfit_run *run, memfit_run_result *result, memfit_error *err);
/* The last part of what the program wrote to standard error, at most 8 MiB; ended by 0. Since 0.1. */
MEMFIT_API const char *memfit_run_stderr(const memfit_run *run, size_t *bytes);
MEMFIT_API void memfit_run_destroy(memfit_run *run);

/* ---- requests over the limit ------------------------------------------------------------------------------ */

/* A request that the limit refused, and what became of it: tries of one thread for the same bytes are one denial. */
typedef struct memfit_run_denial {
    size_t size; /* sizeof(memfit_run_denial) */
    unsigned pid, card;
    char memory_class[16], words[48], library[48]; /* of the request */
    unsigned tries;
    bool granted_later; /* the last try got it */
    bool waited;        /* others, one of them perhaps stopped, were asking for the same bytes all the time */
    uint64_t unix_us;   /* the first refusal */
    uint64_t request_bytes, limit_bytes, in_use_bytes;
    uint64_t unused_bytes; /* of the driver's pools in that process: reserved and not handed out */
    uint64_t freed_bytes;  /* by that process between the first refusal and the last try */
    uint64_t took_ns;      /* to note it */
    size_t owner_count;    /* at the first refusal, largest first */
    memfit_run_owner owners[MEMFIT_RUN_OWNERS];
} memfit_run_denial;
#define MEMFIT_RUN_DENIAL MEMFIT_INIT(memfit_run_denial)
/* NOT_FOUND from result.denial_count on; the first 32 are kept. Since 0.2. */
MEMFIT_API memfit_status memfit_run_denial_get(const memfit_run *run, size_t index, memfit_run_denial *denial,
                                               memfit_error *err);

/* Reads what libmemfit-govern.so has noted in a process that it was attached to (memfit.limit of the Python package),
 * from its file of facts: memfit_run_denial_get then returns the denials. NOT_FOUND, or INVALID for another file. Since
 * 0.2. */
MEMFIT_API memfit_status memfit_run_read(const char *path, const memfit_host *host, memfit_run **run,
                                         memfit_error *err);

/* ---- a limit that several jobs share ----------------------------------------------------------------------- */

typedef struct memfit_share_state {
    size_t size;           /* sizeof(memfit_share_state) */
    uint64_t before_bytes; /* its limit before */
    uint64_t in_use_bytes; /* of the card where most is in use */
    unsigned jobs;
} memfit_share_state;
#define MEMFIT_SHARE_STATE MEMFIT_INIT(memfit_share_state)
/* Changes the limit of a share whose jobs run; 0 bytes: only fills `state`. Jobs keep what they hold; above the limit
 * nobody gets more. NOT_FOUND: no job has this share; DAMAGED, IO: its file is no share, or another user's. `state` may
 * be NULL. Since 0.2. */
MEMFIT_API memfit_status memfit_share_set(const char *name, uint64_t limit_bytes, memfit_share_state *state,
                                          memfit_error *err);

#ifdef __cplusplus
}
#endif
#endif
