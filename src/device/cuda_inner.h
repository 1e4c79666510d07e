/*
 * cuda_inner.h: what the files of a CUDA device share: its state, and the context made current for the length of a call.
 * Each file fills its own part of the device's table.
 */
#ifndef MF_DEVICE_CUDA_INNER_H
#define MF_DEVICE_CUDA_INNER_H

#include "device/cuda_card.h"
#include "device/cuda_driver.h"
#include "device/cuda_processes.h"
#include "device/device.h"

enum { MOST_PEERS = 64 };

typedef struct cuda {
    mf_device base;
    mf_device_table table; /* what this card and driver can do */
    mf_cuda_driver driver;
    mf_card_processes processes;
    cu_device device;
    cu_context context;
    cu_allocation_prop prop;
    cu_access_desc access[MOST_PEERS]; /* who may use mapped memory: the card itself, then others */
    size_t access_count;
    _Atomic uint64_t created;       /* bytes alive by create */
    _Atomic uint64_t measure_at_us; /* when the fixed cost is next measured; UINT64_MAX: it is just now */
    _Atomic(mf_stream) recorded;    /* the stream that is being recorded; NO_STREAM: none */
} cuda;

#define NO_STREAM ((mf_stream)-1)

/* Memory by VMM; or, `plain`, without it. */
void mf_cuda_memory_table(mf_device_table *table, bool plain);
/* Streams, events, timers, copies and recordings. */
void mf_cuda_stream_table(mf_device_table *table);

static inline mf_cuda_call mf_cuda_begin(cuda *c, cu_result *code)
{
    mf_cuda_call state = {.mode = -1};
    cu_context now = NULL;
    if (c->driver.ctx_get_current(&now) != CU_SUCCESS || now != c->context) {
        *code = c->driver.ctx_push(c->context);
        state.pushed = *code == CU_SUCCESS;
    }
    int mode = CU_CAPTURE_MODE_RELAXED;
    if (*code == CU_SUCCESS && c->driver.capture_mode && c->driver.capture_mode(&mode) == CU_SUCCESS)
        state.mode = mode;
    return state;
}

static inline void mf_cuda_end(cuda *c, mf_cuda_call state)
{
    cu_context old;
    if (state.mode >= 0)
        c->driver.capture_mode(&state.mode);
    if (state.pushed)
        c->driver.ctx_pop(&old);
}

/* Runs `call`, a driver call in the right context, and returns its status. */
#define IN_CONTEXT(c, what, call)                                                                                      \
    do {                                                                                                               \
        cu_result code_ = CU_SUCCESS;                                                                                  \
        mf_cuda_call state_ = mf_cuda_begin((c), &code_);                                                              \
        if (code_ == CU_SUCCESS)                                                                                       \
            code_ = (call);                                                                                            \
        mf_cuda_end((c), state_);                                                                                      \
        return code_ == CU_SUCCESS ? MEMFIT_OK : mf_cuda_fail(&(c)->driver, code_, (what), err);                       \
    } while (0)

#endif
