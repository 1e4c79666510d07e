/*
 * memfit/torch.h: PyTorch on memfit's pool. libmemfit exports the functions that PyTorch's pluggable-allocator interface
 * wants; nothing here needs to be called from C.
 *
 *     import ctypes, torch
 *     memfit = torch.cuda.memory.CUDAPluggableAllocator("libmemfit.so", "memfit_torch_alloc", "memfit_torch_free")
 *     lib = ctypes.CDLL("libmemfit.so")
 *     for setter, name in (("set_record_stream_fn", "record_stream"), ("set_begin_allocate_to_pool", "begin_pool"),
 *                          ("set_end_allocate_to_pool_fn", "end_pool"), ("set_release_pool", "release_pool"),
 *                          ("set_reset_fn", "empty_cache")):
 *         function = getattr(lib, "memfit_torch_" + name)
 *         getattr(memfit.allocator(), setter)(ctypes.cast(function, ctypes.c_void_p).value)
 *     torch.cuda.memory.change_current_allocator(memfit)      # before the first tensor
 *
 * Without record_stream, memory used on a second stream (DDP, FSDP, copies on a side stream) can be handed out while that
 * stream still uses it; without the three of the pool, capturing a CUDA graph is refused.
 *
 * Limit, policy and trace come from MEMFIT_* variables (MEMFIT_MEMORY=20GiB, MEMFIT_POLICY=growth ...; see
 * docs/settings.md). One pool a card, made at the first allocation there. When memory is short the explanation is
 * printed to standard error and PyTorch raises its own torch.OutOfMemoryError.
 */
#ifndef MEMFIT_TORCH_H
#define MEMFIT_TORCH_H

#include "memfit/base.h"
#include "memfit/pool.h"

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `stream` is a cudaStream_t. Does not return when memory is short and PyTorch is there to raise its error; otherwise
 * returns NULL then. Since 0.1. */
MEMFIT_API void *memfit_torch_alloc(ssize_t bytes, int device, void *stream);
MEMFIT_API void memfit_torch_free(void *address, ssize_t bytes, int device, void *stream);

/* For set_record_stream_fn: the block an address lies in is also used on a stream. Raises PyTorch's error for a block of
 * the pool that is freed already; memory that is not the pool's is none of its business. Since 0.2. */
MEMFIT_API void memfit_torch_record_stream(void *address, void *stream);

/* std::pair<unsigned long long, unsigned long long>, as PyTorch passes it. */
typedef struct memfit_torch_pool_id {
    uint64_t graph, user;
} memfit_torch_pool_id;
/* For set_begin_allocate_to_pool, set_end_allocate_to_pool_fn and set_release_pool: CUDA graphs. `filter` is a
 * std::function, passed by address. Since 0.2. */
MEMFIT_API void memfit_torch_begin_pool(int device, memfit_torch_pool_id id, void *filter);
MEMFIT_API void memfit_torch_end_pool(int device, memfit_torch_pool_id id);
MEMFIT_API void memfit_torch_release_pool(int device, memfit_torch_pool_id id);
/* For set_reset_fn: torch.cuda.empty_cache on every card. Since 0.2. */
MEMFIT_API void memfit_torch_empty_cache(void);

/* What the pool of a card holds, for tests and notebooks (ctypes): bytes in use, its peak, reserved, its peak, the
 * device's fixed cost; then counts: remaps, remapped pages, created pages, waits for streams, allocations, failures; then
 * the microseconds that went into moving pages.
 * Writes at most `most` and returns how many there are; zeros when there is no pool. Since 0.1. */
MEMFIT_API size_t memfit_torch_stats(int device, uint64_t *values, size_t most);
/* Peaks begin anew, as torch.cuda.reset_peak_memory_stats has it. Since 0.2. */
MEMFIT_API void memfit_torch_reset_peaks(int device);
/* From now on this thread's requests are `name`'s (cut at 63 bytes): a module, forward or backward. NULL: nobody's in
 * particular. Since 0.2. */
MEMFIT_API void memfit_torch_owner(const char *name);
/* Who holds a card's memory, most bytes first, as memfit_pool_owners; returns how many there are. Since 0.2. */
MEMFIT_API size_t memfit_torch_owners(int device, memfit_owner_info *list, size_t stride, size_t most);
/* Gives idle pages back, as torch.cuda.empty_cache does. Since 0.1. */
MEMFIT_API void memfit_torch_trim(int device);

#ifdef __cplusplus
}
#endif
#endif
