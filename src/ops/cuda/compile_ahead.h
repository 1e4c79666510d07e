/*
 * compile_ahead.h: texts of kernels that will be asked for, compiled by several threads at once. A cold start has hundreds
 * of them, and NVRTC takes 0.1 s for each; it holds no lock of its own.
 *
 *     announce (text) ...  -->  first one asked for: all that wait are compiled, at most MF_AHEAD_THREADS at a time
 *                          -->  each is handed out once; the one who takes it writes it to the cache
 *
 * Nothing here fails: what could not be compiled, or had no memory, is not there, and the one who asks for it compiles it
 * and hears why that does not work. What a key gives does not depend on threads or order.
 */
#ifndef MF_OPS_CUDA_COMPILE_AHEAD_H
#define MF_OPS_CUDA_COMPILE_AHEAD_H

#include "ops/cuda/cubin_cache.h"
#include "ops/cuda/nvrtc.h"

/* Each takes 60 to 100 MB of host memory while it compiles. */
enum { MF_AHEAD_THREADS = 16 };

typedef struct mf_ahead_text {
    mf_cubin_key key;
    char *text; /* NULL: it was compiled, or could not be */
    char *cubin;
    size_t text_bytes, bytes;
} mf_ahead_text;

typedef struct mf_ahead {
    mf_ahead_text *texts;
    size_t count, capacity, waiting;
} mf_ahead;

/* A text that is there already, or has been handed out, is not noted again. */
void mf_ahead_add(mf_ahead *ahead, const memfit_host *host, mf_cubin_key key, const char *text);
/* Compiles what waits; `threads` 0: as many as this machine has processors. */
void mf_ahead_compile(mf_ahead *ahead, const memfit_host *host, const mf_nvrtc *nvrtc, int capability,
                      unsigned threads);
/* False: not there. The cubin is the host's memory. */
bool mf_ahead_take(mf_ahead *ahead, mf_cubin_key key, char **cubin, size_t *bytes);
void mf_ahead_end(mf_ahead *ahead, const memfit_host *host);

#endif
