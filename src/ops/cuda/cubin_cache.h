/*
 * cubin_cache.h: compiled kernels kept on disk between runs, in a folder that is the user's alone (0700):
 * $MEMFIT_CACHE, or $XDG_CACHE_HOME/memfit/cubin, or ~/.cache/memfit/cubin. Deleting it costs time, nothing else. A file
 * is named by what it was made from (text, what it includes, architecture, compiler); one that is damaged, or not what
 * its name says, is as if it were not there. Files are written whole or not at all.
 */
#ifndef MF_OPS_CUDA_CUBIN_CACHE_H
#define MF_OPS_CUDA_CUBIN_CACHE_H

#include "base/memory.h"

typedef struct mf_cubin_key {
    uint64_t a, b; /* two hashes over everything */
} mf_cubin_key;

typedef struct mf_cubin_cache {
    char folder[900]; /* empty: there is none, nothing is kept */
    char why[1000];   /* empty but where a folder was meant and cannot be used: what is wrong with it */
} mf_cubin_cache;

mf_cubin_key mf_cubin_key_begin(void);
void mf_cubin_key_add(mf_cubin_key *key, const void *data, size_t bytes);

/* `off` and an unusable folder (another's, open to others, one that cannot be made or written) leave it empty. */
void mf_cubin_cache_open(mf_cubin_cache *cache);
/* False: not there. The cubin is the host's memory. */
bool mf_cubin_cache_read(const mf_cubin_cache *cache, const memfit_host *host, mf_cubin_key key, char **cubin,
                         size_t *bytes);
/* Most likely: it may still be damaged. */
bool mf_cubin_cache_has(const mf_cubin_cache *cache, mf_cubin_key key);
void mf_cubin_cache_write(const mf_cubin_cache *cache, mf_cubin_key key, const char *cubin, size_t bytes);

#endif
