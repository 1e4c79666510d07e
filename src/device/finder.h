/*
 * finder.h: CUDA's libraries, found at run time. Nothing of CUDA is needed to build memfit, and every failure to find
 * something names library, path, version and symbol.
 *
 * Where a library is looked for, in this order (the driver's own two, libcuda and libnvidia-ml, only at 1, 2, 3, 5, 6):
 *   1  MEMFIT_LIB_<NAME>          a file: MEMFIT_LIB_CUDA, _NVML, _NVRTC, _CUBLASLT, _CUDNN, _CUDART
 *   2  MEMFIT_CUDA_LIBDIR         folders, separated by colons
 *   3  what the process has loaded already
 *   4  pip wheels of VIRTUAL_ENV, of CONDA_PREFIX, of the python3 on PATH; CONDA_PREFIX/lib
 *   5  the system's loader, by soname
 *   6  the usual folders (/usr/local/cuda/lib64, /usr/local/nvidia/lib, /usr/lib/wsl/lib ...)
 *
 * A finder looks below `root` (tests and `doctor` on a saved tree) and asks `env` for variables.
 */
#ifndef MF_DEVICE_FINDER_H
#define MF_DEVICE_FINDER_H

#include "base/memory.h"

/* name, name in MEMFIT_LIB_<NAME>, file name's stem, part of the driver, wheel folders (CUDA 13; CUDA 12) */
#define MF_LIBRARY_LIST(X)                                                                                             \
    X(CUDA, "CUDA", "libcuda.so", true, "", "")                                                                        \
    X(NVML, "NVML", "libnvidia-ml.so", true, "", "")                                                                   \
    X(CUDART, "CUDART", "libcudart.so", false, "cu13/lib", "cuda_runtime/lib")                                         \
    X(NVRTC, "NVRTC", "libnvrtc.so", false, "cu13/lib", "cuda_nvrtc/lib")                                              \
    X(CUBLASLT, "CUBLASLT", "libcublasLt.so", false, "cu13/lib", "cublas/lib")                                         \
    X(CUDNN, "CUDNN", "libcudnn.so", false, "cudnn/lib", "cudnn/lib")

typedef enum mf_library_id {
#define X(id, name, stem, driver, wheel13, wheel12) MF_LIBRARY_##id,
    MF_LIBRARY_LIST(X)
#undef X
        MF_LIBRARY_COUNT
} mf_library_id;

typedef struct mf_finder {
    const char *root; /* "" for the real file system */
    const char *(*env)(void *ctx, const char *name);
    void *ctx;
} mf_finder;

/* The real machine. */
const mf_finder *mf_finder_default(void);

typedef struct mf_candidate {
    char path[1024]; /* file that exists; for the loader's choice the bare soname */
    char how[64];    /* "wheel of VIRTUAL_ENV", "system loader", ... */
    unsigned major;  /* from the file's name, 0 when it does not say */
} mf_candidate;

/* Every copy that exists, in the order they would be tried; at most `most` are written, the whole count is returned. */
size_t mf_finder_candidates(const mf_finder *finder, mf_library_id id, mf_candidate *list, size_t most);

typedef struct mf_library {
    void *handle;
    char path[1024]; /* of the file really loaded */
    char how[64];
    unsigned major;
} mf_library;

/* Opens the first candidate that loads; `major` 0 takes any. NOT_FOUND lists what was tried and why it failed. A
 * library is never closed again. cuDNN: every sibling of the chosen folder is loaded too, so that no copy from
 * elsewhere mixes in. */
memfit_status mf_library_open(const mf_finder *finder, mf_library_id id, unsigned major, mf_library *library,
                              memfit_error *err);

/* One row a symbol: its name, where its address goes, whether the library must have it. */
typedef struct mf_symbol {
    const char *name;
    void *slot; /* address of a function pointer */
    bool required;
} mf_symbol;
/* Resolves all; one error names library, path and the missing symbol. */
memfit_status mf_library_resolve(const mf_library *library, const mf_symbol *symbols, size_t count, memfit_error *err);

#endif
