/* nvrtc.c: see nvrtc.h. Headers come from the table of texts, never from a folder. */
#include "ops/cuda/nvrtc.h"

#include "base/error.h"
#include "ops/cuda/cuda_texts.h"

#include <stdio.h>

enum { MOST_TEXTS = 256 };

memfit_status mf_nvrtc_open(const mf_finder *finder, mf_nvrtc *n, memfit_error *err)
{
    *n = (mf_nvrtc){0};
    memfit_status status = mf_library_open(finder, MF_LIBRARY_NVRTC, 0, &n->library, err);
    if (status)
        return status;
    const mf_symbol symbols[] = {
        {"nvrtcVersion", &n->version, true},          {"nvrtcCreateProgram", &n->create, true},
        {"nvrtcCompileProgram", &n->compile, true},   {"nvrtcGetCUBINSize", &n->cubin_size, true},
        {"nvrtcGetCUBIN", &n->cubin, true},           {"nvrtcGetProgramLogSize", &n->log_size, true},
        {"nvrtcGetProgramLog", &n->log, true},        {"nvrtcDestroyProgram", &n->destroy, true},
        {"nvrtcGetErrorString", &n->error_text, true}};
    status = mf_library_resolve(&n->library, symbols, sizeof symbols / sizeof *symbols, err);
    if (status == MEMFIT_OK && n->version(&n->major, &n->minor) != 0)
        status = mf_fail(err, MEMFIT_UNSUPPORTED, "%s does not say its version", n->library.path);
    return status;
}

static memfit_status say_log(const mf_nvrtc *n, const memfit_host *host, nvrtc_handle program, int code,
                             memfit_error *err)
{
    size_t bytes = 0;
    char *log = NULL;
    if (n->log_size(program, &bytes) == 0 && bytes > 1 && (log = mf_host_zalloc(host, bytes + 1)))
        n->log(program, log);
    memfit_status status = mf_fail(err, MEMFIT_INTERNAL, "NVRTC %d.%d could not compile a kernel (%s): %.600s",
                                   n->major, n->minor, n->error_text(code), log ? log : "");
    if (log)
        mf_host_free(host, log, bytes + 1);
    return status;
}

memfit_status mf_nvrtc_compile(const mf_nvrtc *n, const memfit_host *host, const char *text, int capability,
                               char **cubin, size_t *bytes, memfit_error *err)
{
    const char *headers[MOST_TEXTS], *names[MOST_TEXTS];
    char architecture[40];
    snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%d", capability);
    const char *options[] = {architecture, "--std=c++20", "-default-device", "-w"};
    if (mf_cuda_text_count > MOST_TEXTS)
        return mf_fail(err, MEMFIT_INTERNAL, "more than %d texts", MOST_TEXTS);
    for (unsigned i = 0; i < mf_cuda_text_count; i++) {
        headers[i] = mf_cuda_texts[i].text;
        names[i] = mf_cuda_texts[i].name;
    }
    nvrtc_handle program = NULL;
    int code = n->create(&program, text, "kernel.cu", (int)mf_cuda_text_count, headers, names);
    if (code != 0)
        return mf_fail(err, MEMFIT_INTERNAL, "NVRTC took no program: %s", n->error_text(code));
    memfit_status status = MEMFIT_OK;
    code = n->compile(program, sizeof options / sizeof *options, options);
    if (code != 0 || (code = n->cubin_size(program, bytes)) != 0)
        status = say_log(n, host, program, code, err);
    if (status == MEMFIT_OK) {
        *cubin = mf_host_alloc(host, *bytes);
        if (!*cubin)
            status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a compiled kernel");
        else if ((code = n->cubin(program, *cubin)) != 0) {
            mf_host_free(host, *cubin, *bytes);
            status = mf_fail(err, MEMFIT_INTERNAL, "NVRTC gave no cubin: %s", n->error_text(code));
        }
    }
    n->destroy(&program);
    return status;
}
