/*
 * memfit/torch.h: PyTorch on memfit's pool. libmemfit exports the two functions that PyTorch's pluggable-allocator
 * interface wants; nothing here needs to be called from C.
 *
 *     import torch
 *     memfit = torch.cuda.memory.CUDAPluggableAllocator("libmemfit.so", "memfit_torch_alloc", "memfit_torch_free")
 *     torch.cuda.memory.change_current_allocator(memfit)      # before the first tensor
 *
 * Limit, policy and trace come from MEMFIT_* variables (MEMFIT_MEMORY=20GiB, MEMFIT_POLICY=growth ...; see
 * docs/settings.md). One pool a card, made at the first allocation there. When memory is short the explanation is
 * printed to standard error and PyTorch raises its own torch.OutOfMemoryError.
 */
#ifndef MEMFIT_TORCH_H
#define MEMFIT_TORCH_H

#include "memfit/base.h"

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `stream` is a cudaStream_t. Does not return when memory is short and PyTorch is there to raise its error; otherwise
 * returns NULL then. Since 0.1. */
MEMFIT_API void *memfit_torch_alloc(ssize_t bytes, int device, void *stream);
MEMFIT_API void memfit_torch_free(void *address, ssize_t bytes, int device, void *stream);

/* What the pool of a card holds, for tests and notebooks (ctypes): bytes in use, its peak, reserved, its peak, the
 * device's fixed cost; then counts: remaps, remapped pages, created pages, waits for streams, allocations, failures.
 * Writes at most `most` and returns how many there are; zeros when there is no pool. Since 0.1. */
MEMFIT_API size_t memfit_torch_stats(int device, uint64_t *values, size_t most);
/* Gives idle pages back, as torch.cuda.empty_cache does. Since 0.1. */
MEMFIT_API void memfit_torch_trim(int device);

#ifdef __cplusplus
}
#endif
#endif
