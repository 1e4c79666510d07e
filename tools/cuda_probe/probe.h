/*
 * probe.h: output, libraries, the card and the clock, for all parts. Every function that can fail returns 0, or -1 with
 * the reason in `why`.
 */
#ifndef CUDA_PROBE_H
#define CUDA_PROBE_H

#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
/* Handles in graphs and plans are deprecated in favour of device properties; both ways are compared here. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <cuda.h>
#include <cublasLt.h>
#include <cudnn.h>
#include <nvrtc.h>

#define MIB        ((size_t)1 << 20)
#define COUNT(a)   ((int)(sizeof(a) / sizeof((a)[0])))
#define MIN2(a, b) ((a) < (b) ? (a) : (b))
#define MAX2(a, b) ((a) > (b) ? (a) : (b))

#define TRY(e)                                                                                                         \
    do {                                                                                                               \
        if ((e) != 0)                                                                                                  \
            return -1;                                                                                                 \
    } while (0)

/* ---- count.c ---- */

extern atomic_long malloc_count, free_count, mmap_count, ioctl_count;

/* ---- output.c ---- */

extern __thread char why[600]; /* the last error of this thread, in words */
extern FILE *jsonl, *md;
extern char out_dir[1024], prop_file[1024], card_file[1024], self_path[1024];

__attribute__((format(printf, 1, 2))) int bad(const char *fmt, ...);
double now_s(void);
__attribute__((format(printf, 1, 2))) void row(const char *fmt, ...);
__attribute__((format(printf, 1, 2))) void text(const char *fmt, ...);

/* ---- libraries.c ---- */

/* clang-format off */
#define CUDA_FUNCTIONS(F) \
    F(cuInit) F(cuDriverGetVersion) F(cuGetErrorName) F(cuDeviceGetCount) F(cuDeviceGet) F(cuDeviceGetName) \
    F(cuDeviceGetAttribute) F(cuDeviceTotalMem) F(cuDeviceGetPCIBusId) F(cuDevicePrimaryCtxRetain) \
    F(cuCtxSetCurrent) F(cuCtxSynchronize) F(cuMemAlloc) F(cuMemHostAlloc) F(cuMemcpyHtoD) F(cuMemcpyDtoH) \
    F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync) F(cuMemcpyDtoDAsync) F(cuMemsetD8Async) F(cuStreamCreate) \
    F(cuStreamSynchronize) F(cuStreamWaitEvent) F(cuStreamBeginCapture) F(cuStreamEndCapture) F(cuEventCreate) \
    F(cuEventRecord) F(cuEventElapsedTime) F(cuModuleLoadData) F(cuModuleGetFunction) F(cuLaunchKernel) \
    F(cuGraphInstantiateWithFlags) F(cuGraphUpload) F(cuGraphLaunch) F(cuGraphGetNodes) F(cuGraphExecDestroy) \
    F(cuGraphDestroy)
#define NVRTC_FUNCTIONS(F) \
    F(nvrtcVersion) F(nvrtcCreateProgram) F(nvrtcCompileProgram) F(nvrtcGetCUBINSize) F(nvrtcGetCUBIN) \
    F(nvrtcGetProgramLogSize) F(nvrtcGetProgramLog) F(nvrtcDestroyProgram) F(nvrtcGetErrorString)
#define BLAS_FUNCTIONS(F) \
    F(cublasLtGetVersion) F(cublasLtCreate) F(cublasLtMatmul) F(cublasLtMatmulDescCreate) \
    F(cublasLtMatrixLayoutCreate) F(cublasLtMatmulPreferenceCreate) F(cublasLtMatmulPreferenceSetAttribute) \
    F(cublasLtMatmulAlgoGetHeuristic)
#define DNN_FUNCTIONS(F) \
    F(cudnnGetVersion) F(cudnnCreate) F(cudnnSetStream) F(cudnnGetErrorString) F(cudnnGetLastErrorString) \
    F(cudnnBackendCreateDescriptor) F(cudnnBackendDestroyDescriptor) F(cudnnBackendSetAttribute) \
    F(cudnnBackendGetAttribute) F(cudnnBackendFinalize) F(cudnnBackendExecute)
#define NVML_FUNCTIONS(F) \
    F(nvmlInit_v2) F(nvmlSystemGetDriverVersion) F(nvmlDeviceGetHandleByPciBusId_v2) F(nvmlDeviceGetMemoryInfo) \
    F(nvmlDeviceGetComputeRunningProcesses_v3)
/* clang-format on */
/* NVML's header is not on every machine: the few prototypes, as its version 12 has them. */
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} nvml_process;
typedef struct {
    unsigned long long total, free, used;
} nvml_memory;
extern int nvmlInit_v2(void);
extern int nvmlSystemGetDriverVersion(char *version, unsigned length);
extern int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device);
extern int nvmlDeviceGetMemoryInfo(void *device, nvml_memory *memory);
extern int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, nvml_process *list);

#define DECLARE(f) extern __typeof__(&f) q_##f;
CUDA_FUNCTIONS(DECLARE)
NVRTC_FUNCTIONS(DECLARE)
BLAS_FUNCTIONS(DECLARE)
DNN_FUNCTIONS(DECLARE)
NVML_FUNCTIONS(DECLARE)

int open_cuda(void);
int open_nvml(void);
int open_nvrtc(void);
int open_blas(void);
int open_dnn_alone(void);
int open_dnn(void);
int cuda_bad(const char *what, CUresult result);
int dnn_bad(const char *what, cudnnStatus_t status);

#define CU(e)                                                                                                          \
    do {                                                                                                               \
        CUresult result_ = (e);                                                                                        \
        if (result_ != CUDA_SUCCESS)                                                                                   \
            return cuda_bad(#e, result_);                                                                              \
    } while (0)
#define DNN(e)                                                                                                         \
    do {                                                                                                               \
        cudnnStatus_t status_ = (e);                                                                                   \
        if (status_ != CUDNN_STATUS_SUCCESS)                                                                           \
            return dnn_bad(#e, status_);                                                                               \
    } while (0)
#define BLAS(e)                                                                                                        \
    do {                                                                                                               \
        cublasStatus_t status_ = (e);                                                                                  \
        if (status_ != CUBLAS_STATUS_SUCCESS)                                                                          \
            return bad("%.80s: cuBLAS status %d", #e, (int)status_);                                                   \
    } while (0)

/* ---- card.c ---- */

enum { K_FILL, K_BIAS_RELU, K_DRELU, K_STATS, K_STATS_SUM, K_SPIN, K_TINY, KERNELS };

extern struct card {
    CUdevice device;
    CUcontext context;
    CUstream stream, stream2;
    CUevent event[64];
    CUmodule module;
    CUfunction kernel[KERNELS];
    cudnnHandle_t handle;
    CUdeviceptr in, out, work;
    size_t in_bytes, out_bytes, work_bytes;
    int capability, sm_count;
    void *nvml;
} card;

typedef int (*launcher)(void *context, int i);

int compile_kernels(int capability, char **cubin, size_t *size);
int card_context(void);
int card_memory(size_t in, size_t out, size_t work);
int card_kernels(const char *cubin);
int launch(int kernel, size_t blocks, int threads, int shared, void **args);
int fill_random(CUdeviceptr p, size_t bytes, int bf16, uint64_t seed);
int card_open(size_t in, size_t out, size_t work);
int nvml_open(void);
int nvml_used(uint64_t *bytes, int *whole);
double median(double *v, int n);
int time_us(launcher f, void *context, double hopeless_us, double *us);

#endif
