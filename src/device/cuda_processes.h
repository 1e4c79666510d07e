/*
 * cuda_processes.h: who has memory on a card, and which of them we are.
 *
 * NVML numbers processes as the host does. In a container that is another number than our own; then we are the one that
 * came when we made our context, or the only one there is.
 */
#ifndef MF_DEVICE_CUDA_PROCESSES_H
#define MF_DEVICE_CUDA_PROCESSES_H

#include "device/nvml.h"

enum { MF_CARD_PROCESSES = 64 };

typedef struct mf_card_processes {
    mf_nvml *nvml; /* NULL: it cannot be had, or does not know the card */
    bool unlisted; /* NVML is there, but the card is not among its own: a part of one (MIG) */
    unsigned index;
    unsigned self;                      /* our number; 0: not known */
    unsigned before[MF_CARD_PROCESSES]; /* who was there before us */
    size_t before_count;
} mf_card_processes;

/* Before the context is made. */
void mf_card_processes_begin(mf_card_processes *p, const memfit_host *host, const char *uuid);
void mf_card_processes_end(mf_card_processes *p);
uint64_t mf_card_processes_own(mf_card_processes *p); /* what we hold; 0: not known */
/* The others, largest first, as text; returns how many. */
size_t mf_card_processes_others(mf_card_processes *p, char (*text)[128], uint64_t *bytes, size_t most);

#endif
