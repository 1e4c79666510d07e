/* nvml.h: what NVIDIA's management library says about cards and the processes on them. Opened at run time. */
#ifndef MF_DEVICE_NVML_H
#define MF_DEVICE_NVML_H

#include "device/finder.h"

typedef struct mf_nvml mf_nvml;

typedef struct mf_nvml_card {
    unsigned index;
    char name[96], uuid[80], bus_id[32];
    uint64_t total_bytes, used_bytes, free_bytes,
        reserved_bytes;                     /* reserved: by driver and firmware, where NVML tells */
    bool memory_known;                      /* false on unified-memory parts and under WSL */
    int capability_major, capability_minor; /* -1 when unknown */
    int compute_mode;                       /* 0 default, 1 thread (old), 2 prohibited, 3 process; -1 unknown */
    int mig_enabled, display_active, persistence, ecc_enabled; /* 1, 0, -1 unknown */
} mf_nvml_card;

typedef struct mf_nvml_process {
    unsigned pid;
    uint64_t bytes;
    bool bytes_known; /* NVML gives N/A under WSL and some containers */
    bool graphics;    /* a display or graphics client */
    char name[128];   /* from /proc, else NVML's, else empty */
} mf_nvml_process;

/* NOT_FOUND without a driver, DEVICE when NVML refuses (its own code and text are in the message; code 18 is a kernel
 * module of another version). */
memfit_status mf_nvml_open(const memfit_host *host, const mf_finder *finder, mf_nvml **nvml, memfit_error *err);
void mf_nvml_close(mf_nvml *nvml);

void mf_nvml_versions(mf_nvml *nvml, char driver[80], char library[80],
                      int *cuda_version); /* cuda_version: 13000; 0 unknown */
memfit_status mf_nvml_card_count(mf_nvml *nvml, unsigned *count, memfit_error *err);
memfit_status mf_nvml_card_get(mf_nvml *nvml, unsigned index, mf_nvml_card *card, memfit_error *err);
/* The card of this UUID ("GPU-..."); NOT_FOUND when there is none. */
memfit_status mf_nvml_card_by_uuid(mf_nvml *nvml, const char *uuid, unsigned *index, memfit_error *err);
/* Processes with memory on a card; at most `most` are written, *count is how many there are. */
memfit_status mf_nvml_processes(mf_nvml *nvml, unsigned index, mf_nvml_process *list, size_t most, size_t *count,
                                memfit_error *err);

#endif
