/* nvrtc.h: CUDA's run-time compiler, found at run time. Cross-compiles for any architecture; needs no card. */
#ifndef MF_OPS_CUDA_NVRTC_H
#define MF_OPS_CUDA_NVRTC_H

#include "device/finder.h"

typedef struct nvrtc_program *nvrtc_handle;

typedef struct mf_nvrtc {
    mf_library library;
    int major, minor;
    int (*version)(int *major, int *minor);
    int (*create)(nvrtc_handle *program, const char *text, const char *name, int count, const char *const *headers,
                  const char *const *names);
    int (*compile)(nvrtc_handle program, int count, const char *const *options);
    int (*cubin_size)(nvrtc_handle program, size_t *bytes);
    int (*cubin)(nvrtc_handle program, char *cubin);
    int (*log_size)(nvrtc_handle program, size_t *bytes);
    int (*log)(nvrtc_handle program, char *text);
    int (*destroy)(nvrtc_handle *program);
    const char *(*error_text)(int code);
} mf_nvrtc;

memfit_status mf_nvrtc_open(const mf_finder *finder, mf_nvrtc *nvrtc, memfit_error *err);
/* `capability` 90 is sm_90. The cubin is the host's memory, to be freed with its size. */
memfit_status mf_nvrtc_compile(const mf_nvrtc *nvrtc, const memfit_host *host, const char *text, int capability,
                               char **cubin, size_t *bytes, memfit_error *err);

#endif
