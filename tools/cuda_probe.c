/*
 * cuda_probe.c: what one NVIDIA card and its libraries really do, measured before the code that relies on it.
 *
 *     cuda_probe OUTDIR PART [--prop FILE] [--card FILE]
 *
 * Each part appends JSON lines to OUTDIR/probe.jsonl and Markdown to OUTDIR/probe.md and ends with one line PASS, SKIP
 * or FAIL; tools/cuda-probe runs the parts as processes of their own, so that a lost context costs one part only.
 * The driver, NVML, NVRTC, cuBLASLt and cuDNN are opened at run time: the program starts on any machine, and the parts
 * `kernels` and `workspaces-offline` need no card.
 *
 * Memory on the card: `in` holds random inputs and no timed kernel writes to it, so values never grow from one product
 * to the next; `out` takes results, `work` the workspace. Timed launches walk through several sets of buffers where
 * one set would stay in the L2 cache.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

/* ---- allocations of the whole process, the driver's included: the executable's symbols come first in the search ---- */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);
static atomic_long malloc_count, free_count, mmap_count, ioctl_count;

void *malloc(size_t n)
{
    atomic_fetch_add(&malloc_count, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&malloc_count, 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&malloc_count, 1);
    if (p != NULL)
        atomic_fetch_add(&free_count, 1);
    return __libc_realloc(p, n);
}

void *memalign(size_t align, size_t n);
void *memalign(size_t align, size_t n)
{
    atomic_fetch_add(&malloc_count, 1);
    return __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    *p = memalign(align, n);
    return *p == NULL ? ENOMEM : 0;
}

void free(void *p)
{
    if (p != NULL)
        atomic_fetch_add(&free_count, 1);
    __libc_free(p);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    atomic_fetch_add(&mmap_count, 1);
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
}

int ioctl(int fd, unsigned long request, ...);
int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *arg = va_arg(list, void *);
    va_end(list);
    atomic_fetch_add(&ioctl_count, 1);
    return (int)syscall(SYS_ioctl, fd, request, arg);
}

/* ---- errors and output ---- */

static __thread char why[600]; /* the last error of this thread, in words */
static FILE *jsonl, *md;
static char out_dir[1024], prop_file[1024], card_file[1024], self_path[1024];

__attribute__((format(printf, 1, 2))) static int bad(const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vsnprintf(why, sizeof why, fmt, list);
    va_end(list);
    for (char *p = why; *p != 0; p++)
        if (*p == '"' || *p == '\\' || *p == '\n' || *p == '|')
            *p = '\'';
    return -1;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One JSON object a line. */
__attribute__((format(printf, 1, 2))) static void row(const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vfprintf(jsonl, fmt, list);
    va_end(list);
    fputc('\n', jsonl);
    fflush(jsonl);
}

__attribute__((format(printf, 1, 2))) static void text(const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vfprintf(md, fmt, list);
    va_end(list);
    fflush(md);
}

#define TRY(e)                                                                                                         \
    do {                                                                                                               \
        if ((e) != 0)                                                                                                  \
            return -1;                                                                                                 \
    } while (0)

/* ---- libraries ---- */

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

#define STRING1(x) #x
#define STRING(x)  STRING1(x)
#define DECLARE(f) static __typeof__(&f) q_##f;
#define RESOLVE(f)                                                                                                     \
    if ((*(void **)(&q_##f) = dlsym(lib, STRING(f))) == NULL)                                                          \
        return bad("%s: no symbol %s", lib_name, STRING(f));
CUDA_FUNCTIONS(DECLARE)
NVRTC_FUNCTIONS(DECLARE)
BLAS_FUNCTIONS(DECLARE)
DNN_FUNCTIONS(DECLARE)
NVML_FUNCTIONS(DECLARE)

/*
 * Tries the folders of CUDA_PROBE_LIBS, then the usual ones, then the loader's own search. The driver's own libraries
 * (`driver`) come by the loader first: cuDNN finds them so, and there must be one of each.
 */
static void *open_library(const char *const *names, bool driver)
{
    void *first = driver ? dlopen(names[0], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (first != NULL) {
        fprintf(stderr, "library: %s (found by the loader)\n", names[0]);
        return first;
    }
    static const char *const places[] = {"/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
                                         "/opt/*/lib/python3*/site-packages/nvidia/*/lib",
                                         "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
                                         "/usr/lib/python3*/*-packages/nvidia/*/lib",
                                         "/opt/*/.venv/lib/python3*/site-packages/torch/lib",
                                         "/usr/local/lib/python3*/*-packages/torch/lib",
                                         "/usr/local/cuda/lib64",
                                         "/usr/local/cuda*/lib64",
                                         "/usr/lib/x86_64-linux-gnu",
                                         "/usr/local/nvidia/lib64"};
    const char *given = getenv("CUDA_PROBE_LIBS");
    for (int n = 0; names[n] != NULL; n++) {
        char path[1200];
        for (const char *p = given; p != NULL && *p != 0;) {
            int length = (int)strcspn(p, ":");
            snprintf(path, sizeof path, "%.*s/%s", length, p, names[n]);
            void *lib = length > 0 && access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
            if (lib != NULL) {
                fprintf(stderr, "library: %s\n", path);
                return lib;
            }
            p += length + (p[length] == ':');
        }
        for (int i = 0; i < COUNT(places); i++) {
            glob_t found;
            snprintf(path, sizeof path, "%s/%s", places[i], names[n]);
            if (glob(path, 0, NULL, &found) != 0)
                continue;
            void *lib = NULL;
            for (size_t k = 0; k < found.gl_pathc && lib == NULL; k++)
                if ((lib = dlopen(found.gl_pathv[k], RTLD_NOW | RTLD_GLOBAL)) != NULL)
                    fprintf(stderr, "library: %s\n", found.gl_pathv[k]);
            globfree(&found);
            if (lib != NULL)
                return lib;
        }
        void *lib = dlopen(names[n], RTLD_NOW | RTLD_GLOBAL);
        if (lib != NULL) {
            fprintf(stderr, "library: %s (found by the loader)\n", names[n]);
            return lib;
        }
    }
    const char *error = dlerror();
    bad("no %s: %s", names[0], error != NULL ? error : "not found");
    return NULL;
}

#define LIBRARY(name, functions, driver, ...)                                                                          \
    static int name(void)                                                                                              \
    {                                                                                                                  \
        static const char *const names[] = {__VA_ARGS__, NULL};                                                        \
        static void *lib;                                                                                              \
        const char *lib_name = names[0];                                                                               \
        if (lib != NULL)                                                                                               \
            return 0;                                                                                                  \
        if ((lib = open_library(names, driver)) == NULL)                                                               \
            return -1;                                                                                                 \
        functions(RESOLVE) return 0;                                                                                   \
    }
LIBRARY(open_cuda, CUDA_FUNCTIONS, true, "libcuda.so.1")
LIBRARY(open_nvml, NVML_FUNCTIONS, true, "libnvidia-ml.so.1")
LIBRARY(open_nvrtc, NVRTC_FUNCTIONS, false, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
LIBRARY(open_blas, BLAS_FUNCTIONS, false, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
LIBRARY(open_dnn_alone, DNN_FUNCTIONS, false, "libcudnn.so.9", "libcudnn.so")

static int open_dnn(void) /* cuDNN opens NVRTC and cuBLASLt by their bare names: they must be there before it */
{
    TRY(open_nvrtc());
    TRY(open_blas());
    return open_dnn_alone();
}

static int cuda_bad(const char *what, CUresult result)
{
    const char *name = NULL;
    q_cuGetErrorName(result, &name);
    if (result == CUDA_ERROR_STUB_LIBRARY)
        return bad("%.80s: libcuda.so.1 is the toolkit's stub, no driver", what);
    return bad("%.80s: %s (%d)", what, name != NULL ? name : "?", (int)result);
}

static int dnn_bad(const char *what, cudnnStatus_t status)
{
    char message[400] = "";
    q_cudnnGetLastErrorString(message, sizeof message);
    return bad("%.60s: %s; %s", what, q_cudnnGetErrorString(status), message);
}

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

/* ---- own kernels ---- */

enum { K_FILL, K_BIAS_RELU, K_DRELU, K_STATS, K_STATS_SUM, K_SPIN, K_TINY, KERNELS };
static const char *const kernel_names[KERNELS] = {"fill", "bias_relu", "drelu", "stats", "stats_sum", "spin", "tiny"};
static const char kernel_source[] =
    "typedef unsigned int u32; typedef unsigned long long u64;\n"
    "static __device__ float lo(u32 v) { return __uint_as_float(v << 16); }\n"
    "static __device__ float hi(u32 v) { return __uint_as_float(v & 0xffff0000u); }\n"
    "static __device__ u32 round16(float f) { u32 u = __float_as_uint(f); return (u + 0x7fffu + ((u >> 16) & 1)) >> "
    "16; }\n"
    "static __device__ u32 pack(float a, float b) { return round16(a) | (round16(b) << 16); }\n"
    "static __device__ float draw(u64 i) {\n"
    "    i = (i + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull; i ^= i >> 31; i *= 0x94d049bb133111ebull; i ^= i >> "
    "29;\n"
    "    return (float)(u32)(i >> 40) * (2.0f / 16777216.0f) - 1.0f; }\n"
    /* uniform in [-1, 1): pairs of bfloat16, or float32 */
    "extern \"C\" __global__ void fill(u32 *p, u64 n, u64 seed, int bf16) {\n"
    "    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)\n"
    "        p[i] = bf16 ? pack(draw(seed + 2 * i), draw(seed + 2 * i + 1)) : __float_as_uint(draw(seed + i)); }\n"
    "static __device__ u32 br(u32 v, u32 b) { return pack(fmaxf(lo(v) + lo(b), 0.f), fmaxf(hi(v) + hi(b), 0.f)); }\n"
    /* eight channels of a row a thread; groups = channels / 8 */
    "extern \"C\" __global__ void bias_relu(uint4 *y, const uint4 *bias, u32 n, u32 groups) {\n"
    "    u32 i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;\n"
    "    uint4 v = y[i], b = bias[i % groups];\n"
    "    y[i] = make_uint4(br(v.x, b.x), br(v.y, b.y), br(v.z, b.z), br(v.w, b.w)); }\n"
    "static __device__ u32 dr(u32 v, u32 a) { return (lo(a) > 0.f ? v & 0xffffu : 0u) | (hi(a) > 0.f ? v & 0xffff0000u "
    ": 0u); }\n"
    "extern \"C\" __global__ void drelu(uint4 *dx, const uint4 *act, u32 n) {\n"
    "    u32 i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;\n"
    "    uint4 v = dx[i], a = act[i];\n"
    "    dx[i] = make_uint4(dr(v.x, a.x), dr(v.y, a.y), dr(v.z, a.z), dr(v.w, a.w)); }\n"
    /* sums and sums of squares a channel: a partial row a block, added up in a fixed order by the next kernel */
    "extern \"C\" __global__ void stats(const uint4 *y, float *part, u32 rows, u32 groups) {\n"
    "    extern __shared__ float sh[]; float s[8], q[8];\n"
    "    for (int j = 0; j < 8; j++) s[j] = q[j] = 0.f;\n"
    "    u32 g = threadIdx.x % groups, lane = threadIdx.x / groups, lanes = blockDim.x / groups;\n"
    "    for (u32 r = blockIdx.x * lanes + lane; r < rows; r += gridDim.x * lanes) {\n"
    "        uint4 v = y[(u64)r * groups + g]; u32 w[4] = {v.x, v.y, v.z, v.w};\n"
    "        for (int j = 0; j < 4; j++) { float a = lo(w[j]), b = hi(w[j]);\n"
    "            s[2 * j] += a; q[2 * j] += a * a; s[2 * j + 1] += b; q[2 * j + 1] += b * b; } }\n"
    "    for (int j = 0; j < 8; j++) { sh[threadIdx.x * 16 + j] = s[j]; sh[threadIdx.x * 16 + 8 + j] = q[j]; }\n"
    "    __syncthreads();\n"
    "    for (u32 i = threadIdx.x; i < groups * 16; i += blockDim.x) { float t = 0.f;\n"
    "        for (u32 l = 0; l < lanes; l++) t += sh[l * groups * 16 + i];\n"
    "        part[(u64)blockIdx.x * groups * 16 + i] = t; } }\n"
    "extern \"C\" __global__ void stats_sum(const float *part, float *out, u32 blocks, u32 n) {\n"
    "    u32 i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; float t = 0.f;\n"
    "    for (u32 b = 0; b < blocks; b++) t += part[(u64)b * n + i];\n"
    "    out[i] = t; }\n"
    "extern \"C\" __global__ void spin(u64 ns) { u64 t, s; asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(s));\n"
    "    do asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(t)); while (t - s < ns); }\n"
    "extern \"C\" __global__ void tiny(float *p) { p[threadIdx.x] = p[threadIdx.x] * 0.5f + 1.f; }\n";

static int compile_kernels(int capability, char **cubin, size_t *size)
{
    TRY(open_nvrtc());
    nvrtcProgram program;
    nvrtcResult r = q_nvrtcCreateProgram(&program, kernel_source, "probe.cu", 0, NULL, NULL);
    if (r != NVRTC_SUCCESS)
        return bad("nvrtcCreateProgram: %s", q_nvrtcGetErrorString(r));
    char arch[40];
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d", capability);
    const char *options[] = {arch, "--minimal"};
    r = q_nvrtcCompileProgram(program, COUNT(options), options);
    if (r != NVRTC_SUCCESS) {
        size_t n = 0;
        char log[4000] = "";
        if (q_nvrtcGetProgramLogSize(program, &n) == NVRTC_SUCCESS && n < sizeof log)
            q_nvrtcGetProgramLog(program, log);
        return bad("NVRTC for sm_%d: %s; %.400s", capability, q_nvrtcGetErrorString(r), log);
    }
    if (q_nvrtcGetCUBINSize(program, size) != NVRTC_SUCCESS || (*cubin = malloc(*size)) == NULL ||
        q_nvrtcGetCUBIN(program, *cubin) != NVRTC_SUCCESS)
        return bad("nvrtcGetCUBIN failed");
    q_nvrtcDestroyProgram(&program);
    return 0;
}

/* ---- the card ---- */

static struct {
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

static int card_context(void)
{
    TRY(open_cuda());
    CU(q_cuInit(0));
    int count = 0;
    CU(q_cuDeviceGetCount(&count));
    if (count == 0)
        return bad("no CUDA device");
    CU(q_cuDeviceGet(&card.device, 0));
    CU(q_cuDevicePrimaryCtxRetain(&card.context, card.device));
    CU(q_cuCtxSetCurrent(card.context));
    CU(q_cuStreamCreate(&card.stream, CU_STREAM_NON_BLOCKING));
    CU(q_cuStreamCreate(&card.stream2, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < COUNT(card.event); i++)
        CU(q_cuEventCreate(&card.event[i], CU_EVENT_DEFAULT));
    int major = 0, minor = 0;
    CU(q_cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, card.device));
    CU(q_cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, card.device));
    CU(q_cuDeviceGetAttribute(&card.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, card.device));
    card.capability = 10 * major + minor;
    return 0;
}

static int card_memory(size_t in, size_t out, size_t work)
{
    CU(q_cuMemAlloc(&card.in, in));
    CU(q_cuMemAlloc(&card.out, out));
    if (work > 0)
        CU(q_cuMemAlloc(&card.work, work));
    card.in_bytes = in;
    card.out_bytes = out;
    card.work_bytes = work;
    return 0;
}

static int card_kernels(const char *cubin)
{
    CU(q_cuModuleLoadData(&card.module, cubin));
    for (int i = 0; i < KERNELS; i++)
        CU(q_cuModuleGetFunction(&card.kernel[i], card.module, kernel_names[i]));
    return 0;
}

static int launch(int kernel, size_t blocks, int threads, int shared, void **args)
{
    CU(q_cuLaunchKernel(card.kernel[kernel], (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, (unsigned)shared,
                        card.stream, args, NULL));
    return 0;
}

static int fill_random(CUdeviceptr p, size_t bytes, int bf16, uint64_t seed)
{
    uint64_t n = bytes / 4;
    void *args[] = {&p, &n, &seed, &bf16};
    TRY(launch(K_FILL, 4096, 256, 0, args));
    CU(q_cuStreamSynchronize(card.stream));
    return 0;
}

/* Everything but NVML: context, own kernels, cuDNN's handle and memory with random inputs. */
static int card_open(size_t in, size_t out, size_t work)
{
    TRY(card_context());
    TRY(open_dnn());
    char *cubin = NULL;
    size_t size = 0;
    TRY(compile_kernels(card.capability, &cubin, &size));
    TRY(card_kernels(cubin));
    free(cubin);
    DNN(q_cudnnCreate(&card.handle));
    DNN(q_cudnnSetStream(card.handle, (cudaStream_t)card.stream));
    TRY(card_memory(in, out, work));
    double start = now_s();
    do /* an idle card needs a while to raise its clocks */
        TRY(fill_random(card.in, in, 1, 1));
    while (now_s() - start < 0.3);
    return 0;
}

static int nvml_open(void)
{
    TRY(open_nvml());
    int r = q_nvmlInit_v2();
    if (r != 0)
        return bad("nvmlInit_v2: code %d", r);
    return 0;
}

/* Bytes of this process by NVML; where the list of processes hides it, of the whole card (then *whole is set). */
static int nvml_used(uint64_t *bytes, int *whole)
{
    if (card.nvml == NULL) {
        char bus[32];
        CU(q_cuDeviceGetPCIBusId(bus, sizeof bus, card.device));
        int r = q_nvmlDeviceGetHandleByPciBusId_v2(bus, &card.nvml);
        if (r != 0)
            return bad("nvmlDeviceGetHandleByPciBusId_v2(%s): code %d", bus, r);
    }
    nvml_process list[64];
    unsigned count = COUNT(list);
    int r = q_nvmlDeviceGetComputeRunningProcesses_v3(card.nvml, &count, list);
    *whole = 0;
    for (unsigned i = 0; r == 0 && i < count; i++)
        if (list[i].pid == (unsigned)getpid() && list[i].bytes != ~0ull) {
            *bytes = list[i].bytes;
            return 0;
        }
    nvml_memory memory;
    r = q_nvmlDeviceGetMemoryInfo(card.nvml, &memory);
    if (r != 0)
        return bad("nvmlDeviceGetMemoryInfo: code %d", r);
    *bytes = memory.used;
    *whole = 1;
    return 0;
}

static int order_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, order_doubles);
    return n % 2 != 0 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

typedef int (*launcher)(void *context, int i);

static int spin(int us)
{
    uint64_t ns = 1000 * (uint64_t)us;
    void *args[] = {&ns};
    return launch(K_SPIN, 1, 1, 0, args);
}

/*
 * Median microseconds of one call, by events between the calls. A short spinning kernel goes first, so that the host
 * is ahead of the card and its own time for a call does not count. What takes longer than `hopeless_us` (0: no limit)
 * the first time is not timed again.
 */
static int time_us(launcher f, void *context, double hopeless_us, double *us)
{
    float ms = 0;
    TRY(f(context, 0));
    TRY(spin(100));
    CU(q_cuEventRecord(card.event[0], card.stream));
    TRY(f(context, 1));
    CU(q_cuEventRecord(card.event[1], card.stream));
    CU(q_cuStreamSynchronize(card.stream));
    CU(q_cuEventElapsedTime(&ms, card.event[0], card.event[1]));
    *us = 1000.0 * (double)ms;
    if (hopeless_us > 0 && *us > hopeless_us)
        return 0;
    int reps = ms > 30 ? 3 : ms > 4 ? 5 : 15;
    if (ms < 4)
        TRY(spin(500));
    CU(q_cuEventRecord(card.event[0], card.stream));
    for (int i = 0; i < reps; i++) {
        TRY(f(context, i));
        CU(q_cuEventRecord(card.event[i + 1], card.stream));
    }
    CU(q_cuStreamSynchronize(card.stream));
    double v[16];
    for (int i = 0; i < reps; i++) {
        CU(q_cuEventElapsedTime(&ms, card.event[i], card.event[i + 1]));
        v[i] = 1000.0 * (double)ms;
    }
    *us = median(v, reps);
    return 0;
}

/* ---- cuDNN: a convolution as a graph, the heuristics' list for it, plans ---- */

typedef cudnnBackendDescriptor_t desc;

struct conv {
    int n, h, w, c, k, r, stride, pad; /* NHWC input, k filters of r x r */
};
enum { FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT };
enum { BF16, F32 };
enum { PLAIN, BIAS_RELU, BIAS_F32_RELU, DRELU, STATS };
enum { T_X, T_W, T_Y, T_BIAS, T_OUT, T_SUM, T_SQUARES, T_ACT, TENSORS };
static const char *const direction_names[] = {"forward", "data", "weights"};
static const char *const type_names[] = {"bf16", "f32"};

struct tensor {
    bool used, virtual, output;
    cudnnDataType_t type;
    int64_t dims[4], strides[4]; /* cuDNN's order: N C H W, or K C R S */
    size_t bytes;
    desc d;
};

struct config {
    desc config, plan;
    int64_t id, workspace, plan_workspace;
    bool nondeterministic, tf32, compiled; /* compiled: at run time */
    int rank_a, rank_b;                    /* place in the list of mode A and of mode B, -1: not there */
    char knobs[200];
    bool built, repeats; /* repeats: a second run gave the same bits */
    double build_s, us, error;
    char note[200];
};

enum { MAX_CONFIGS = 160, MAX_PLANS = 16 };
struct job {
    struct conv conv;
    int direction, type, hwio, fuse, times; /* times: how often the network has it */
    const char *net;
    int plans_a, plans_b; /* how many plans of each list to build */
    int extra;            /* 1: also the first that are deterministic and precompiled, or float32 throughout; 2: and
                             everything else that is precompiled */
    struct tensor t[TENSORS];
    cudnnHandle_t handle; /* whose plans these are, and who runs them; NULL for a described device */
    desc graph, knob[CUDNN_KNOB_TYPE_COUNTS]; /* knob: reused for every configuration that is read */
    struct config *config;
    int configs;
    desc *bag; /* every descriptor, to be destroyed together */
    int bagged, bag_room;
    bool ok;
    double prepare_s;
    char error[300];
};

struct asker { /* who is asked: the card through a handle, or a described device */
    cudnnHandle_t handle;
    desc prop;
};

static int make(struct job *j, cudnnBackendDescriptorType_t type, desc *d)
{
    if (j->bagged == j->bag_room) {
        j->bag_room = j->bag_room == 0 ? 64 : 2 * j->bag_room;
        desc *bigger = realloc(j->bag, sizeof *bigger * (size_t)j->bag_room);
        if (bigger == NULL)
            return bad("out of memory");
        j->bag = bigger;
    }
    DNN(q_cudnnBackendCreateDescriptor(type, d));
    j->bag[j->bagged++] = *d;
    return 0;
}

static void job_free(struct job *j)
{
    while (j->bagged > 0)
        q_cudnnBackendDestroyDescriptor(j->bag[--j->bagged]);
    free(j->bag);
    free(j->config);
    j->bag = NULL;
    j->config = NULL;
    j->configs = j->bag_room = 0;
}

static int set_many(desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                    const void *v)
{
    cudnnStatus_t status = q_cudnnBackendSetAttribute(d, name, type, n, v);
    if (status != CUDNN_STATUS_SUCCESS) {
        char what[40];
        snprintf(what, sizeof what, "set attribute %d", (int)name);
        return dnn_bad(what, status);
    }
    return 0;
}

static int set_desc(desc d, cudnnBackendAttributeName_t name, desc value)
{
    return set_many(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static int output_side(const struct conv *c, int size)
{
    return (size + 2 * c->pad - c->r) / c->stride + 1;
}

static double conv_flops(const struct conv *c)
{
    return 2.0 * c->n * output_side(c, c->h) * output_side(c, c->w) * (double)c->c * c->k * c->r * c->r;
}

static void tensor_shape(struct tensor *t, cudnnDataType_t type, int n, int c, int h, int w)
{
    *t = (struct tensor){.used = true, .type = type, .dims = {n, c, h, w}};
    t->strides[0] = (int64_t)c * h * w;
    t->strides[1] = 1;
    t->strides[2] = (int64_t)c * w;
    t->strides[3] = c;
    t->bytes = (size_t)n * (size_t)c * (size_t)h * (size_t)w * (type == CUDNN_DATA_FLOAT ? 4 : 2);
}

static void job_tensors(struct job *j)
{
    const struct conv *c = &j->conv;
    int p = output_side(c, c->h), q = output_side(c, c->w);
    cudnnDataType_t type = j->type == BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    struct tensor *t = j->t;
    tensor_shape(&t[T_X], type, c->n, c->c, c->h, c->w);
    tensor_shape(&t[T_W], type, c->k, c->c, c->r, c->r);
    tensor_shape(&t[T_Y], type, c->n, c->k, p, q);
    if (j->hwio) {
        int64_t strides[4] = {1, c->k, (int64_t)c->r * c->c * c->k, (int64_t)c->c * c->k};
        memcpy(t[T_W].strides, strides, sizeof strides);
    }
    t[j->direction == FORWARD ? T_Y : j->direction == DATA_GRADIENT ? T_X : T_W].output = true;
    if (j->fuse == BIAS_RELU || j->fuse == BIAS_F32_RELU) {
        tensor_shape(&t[T_BIAS], j->fuse == BIAS_RELU ? type : CUDNN_DATA_FLOAT, 1, c->k, 1, 1);
        tensor_shape(&t[T_OUT], type, c->n, c->k, p, q);
        t[T_OUT].output = t[T_Y].virtual = true;
    } else if (j->fuse == DRELU) {
        tensor_shape(&t[T_ACT], type, c->n, c->c, c->h, c->w);
        tensor_shape(&t[T_OUT], type, c->n, c->c, c->h, c->w);
        t[T_OUT].output = t[T_X].virtual = true;
    } else if (j->fuse == STATS) {
        tensor_shape(&t[T_SUM], CUDNN_DATA_FLOAT, 1, c->k, 1, 1);
        tensor_shape(&t[T_SQUARES], CUDNN_DATA_FLOAT, 1, c->k, 1, 1);
        t[T_SUM].output = t[T_SQUARES].output = true;
    }
}

static int tensor_make(struct job *j, struct tensor *t, int64_t uid)
{
    int64_t align = 16;
    TRY(make(j, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &t->d));
    /* what lies between two operations of a graph is kept in float32 */
    cudnnDataType_t type = t->virtual ? CUDNN_DATA_FLOAT : t->type;
    TRY(set_many(t->d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TRY(set_many(t->d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->dims));
    TRY(set_many(t->d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->strides));
    TRY(set_many(t->d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid));
    TRY(set_many(t->d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align));
    if (t->virtual)
        TRY(set_many(t->d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &t->virtual));
    DNN(q_cudnnBackendFinalize(t->d));
    return 0;
}

static int pointwise(struct job *j, cudnnPointwiseMode_t mode, desc x, desc b, desc y, desc *op)
{
    desc pw;
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    TRY(make(j, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &pw));
    TRY(set_many(pw, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
    TRY(set_many(pw, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math));
    DNN(q_cudnnBackendFinalize(pw));
    TRY(make(j, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, op));
    TRY(set_desc(*op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pw));
    if (mode == CUDNN_POINTWISE_RELU_BWD) { /* x: what the ReLU gave; b: the gradient behind it; y: in front of it */
        TRY(set_desc(*op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x));
        TRY(set_desc(*op, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, b));
        TRY(set_desc(*op, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, y));
    } else {
        TRY(set_desc(*op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x));
        if (b != NULL)
            TRY(set_desc(*op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b));
        TRY(set_desc(*op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
    }
    DNN(q_cudnnBackendFinalize(*op));
    return 0;
}

static int convolution(struct job *j, desc *op)
{
    static const cudnnBackendDescriptorType_t kinds[] = {
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR};
    static const cudnnBackendAttributeName_t names[3][6] = {
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
    const cudnnBackendAttributeName_t *name = names[j->direction];
    int64_t spatial = 2, ones[2] = {1, 1}, pads[2] = {j->conv.pad, j->conv.pad};
    int64_t strides[2] = {j->conv.stride, j->conv.stride};
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    float alpha = 1, beta = 0;
    desc c;
    TRY(make(j, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &c));
    TRY(set_many(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial));
    TRY(set_many(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TRY(set_many(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
    TRY(set_many(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads));
    TRY(set_many(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads));
    TRY(set_many(c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones));
    TRY(set_many(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides));
    DNN(q_cudnnBackendFinalize(c));
    TRY(make(j, kinds[j->direction], op));
    TRY(set_desc(*op, name[0], c));
    TRY(set_desc(*op, name[1], j->t[T_X].d));
    TRY(set_desc(*op, name[2], j->t[T_W].d));
    TRY(set_desc(*op, name[3], j->t[T_Y].d));
    TRY(set_many(*op, name[4], CUDNN_TYPE_FLOAT, 1, &alpha));
    TRY(set_many(*op, name[5], CUDNN_TYPE_FLOAT, 1, &beta));
    DNN(q_cudnnBackendFinalize(*op));
    return 0;
}

static int job_graph(struct job *j, const struct asker *a)
{
    j->handle = a->handle;
    job_tensors(j);
    for (int i = 0; i < TENSORS; i++)
        if (j->t[i].used)
            TRY(tensor_make(j, &j->t[i], i + 1));
    desc ops[3];
    int n = 1;
    TRY(convolution(j, &ops[0]));
    if (j->fuse == BIAS_RELU || j->fuse == BIAS_F32_RELU) {
        struct tensor middle = j->t[T_OUT];
        middle.virtual = true;
        TRY(tensor_make(j, &middle, TENSORS + 1));
        TRY(pointwise(j, CUDNN_POINTWISE_ADD, j->t[T_Y].d, j->t[T_BIAS].d, middle.d, &ops[n++]));
        TRY(pointwise(j, CUDNN_POINTWISE_RELU_FWD, middle.d, NULL, j->t[T_OUT].d, &ops[n++]));
    } else if (j->fuse == DRELU) {
        TRY(pointwise(j, CUDNN_POINTWISE_RELU_BWD, j->t[T_ACT].d, j->t[T_X].d, j->t[T_OUT].d, &ops[n++]));
    } else if (j->fuse == STATS) {
        cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
        cudnnDataType_t math = CUDNN_DATA_FLOAT;
        TRY(make(j, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, &ops[n]));
        TRY(set_many(ops[n], CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode));
        TRY(set_many(ops[n], CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math));
        TRY(set_desc(ops[n], CUDNN_ATTR_OPERATION_GENSTATS_XDESC, j->t[T_Y].d));
        TRY(set_desc(ops[n], CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, j->t[T_SUM].d));
        TRY(set_desc(ops[n], CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, j->t[T_SQUARES].d));
        DNN(q_cudnnBackendFinalize(ops[n++]));
    }
    TRY(make(j, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &j->graph));
    TRY(set_many(j->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, ops));
    if (a->handle != NULL)
        TRY(set_many(j->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &a->handle));
    DNN(q_cudnnBackendFinalize(j->graph));
    return 0;
}

static int config_read(struct job *j, struct config *c)
{
    desc engine;
    int64_t n = 0;
    TRY(make(j, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    DNN(q_cudnnBackendGetAttribute(c->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                   &engine));
    DNN(q_cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &c->id));
    cudnnBackendNumericalNote_t notes[32];
    DNN(q_cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, COUNT(notes),
                                   &n, notes));
    for (int64_t i = 0; i < MIN2(n, COUNT(notes)); i++) {
        c->nondeterministic |= notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        c->tf32 |= j->type == F32 && (notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || /* on float32: TF32 */
                                      notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
    }
    cudnnBackendBehaviorNote_t behaves[32];
    DNN(q_cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, COUNT(behaves),
                                   &n, behaves));
    for (int64_t i = 0; i < MIN2(n, COUNT(behaves)); i++)
        c->compiled |= behaves[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    c->workspace = -1;
    DNN(q_cudnnBackendGetAttribute(c->config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                   &c->workspace));
    desc *knobs = j->knob;
    for (int i = 0; i < COUNT(j->knob); i++)
        if (knobs[i] == NULL)
            TRY(make(j, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &knobs[i]));
    DNN(q_cudnnBackendGetAttribute(c->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                   COUNT(j->knob), &n, knobs));
    size_t used = 0;
    for (int64_t i = 0; i < MIN2(n, COUNT(j->knob)); i++) {
        cudnnBackendKnobType_t type;
        int64_t value = 0, one = 0;
        DNN(q_cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one,
                                       &type));
        DNN(q_cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &one, &value));
        if (used < sizeof c->knobs)
            used += (size_t)snprintf(c->knobs + used, sizeof c->knobs - used, "%sk%d=%lld", i > 0 ? "," : "", (int)type,
                                     (long long)value);
    }
    return 0;
}

/* Adds the list of one mode to the job's configurations; the same engine with the same knobs is kept once. */
static int job_ask(struct job *j, const struct asker *a, cudnnBackendHeurMode_t mode)
{
    desc heuristics, list[MAX_CONFIGS / 2];
    int64_t n = 0;
    TRY(make(j, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    TRY(set_desc(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, j->graph));
    TRY(set_many(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    if (a->prop != NULL)
        TRY(set_desc(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, a->prop));
    DNN(q_cudnnBackendFinalize(heuristics));
    DNN(q_cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n,
                                   NULL));
    n = MIN2(n, COUNT(list));
    for (int64_t i = 0; i < n; i++)
        TRY(make(j, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &list[i]));
    if (n > 0)
        DNN(q_cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, &n,
                                       list));
    if (j->config == NULL && (j->config = calloc(MAX_CONFIGS, sizeof *j->config)) == NULL)
        return bad("out of memory");
    int rank = 0;
    for (int i = 0; mode == CUDNN_HEUR_MODE_FALLBACK && i < j->configs; i++)
        rank += j->config[i].rank_b >= 0; /* the fallback list stands behind that of mode B */
    for (int64_t i = 0; i < n && j->configs < MAX_CONFIGS; i++) {
        struct config *c = &j->config[j->configs];
        *c = (struct config){.config = list[i], .rank_a = -1, .rank_b = -1, .us = -1, .error = -1};
        if (config_read(j, c) != 0)
            continue;
        int same = 0;
        while (j->config[same].id != c->id || strcmp(j->config[same].knobs, c->knobs) != 0)
            same++;
        j->configs += same == j->configs;
        int *place = mode == CUDNN_HEUR_MODE_A ? &j->config[same].rank_a : &j->config[same].rank_b;
        if (mode != CUDNN_HEUR_MODE_FALLBACK || *place < 0)
            *place = rank++;
    }
    return 0;
}

static int config_build(struct job *j, struct config *c, const struct asker *a)
{
    double start = now_s();
    int64_t n = 0;
    TRY(make(j, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &c->plan));
    TRY(set_desc(c->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, c->config));
    if (a->handle != NULL)
        TRY(set_many(c->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &a->handle));
    else
        TRY(set_desc(c->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, a->prop));
    DNN(q_cudnnBackendFinalize(c->plan));
    DNN(q_cudnnBackendGetAttribute(c->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                   &c->plan_workspace));
    c->built = true;
    c->build_s = now_s() - start;
    return 0;
}

/* The first `most` of the list that build and that `fits` accepts; those already built count. */
static void build_first(struct job *j, const struct asker *a, int most, int by_b, bool (*fits)(const struct config *c))
{
    for (int rank = 0, have = 0; rank < MAX_CONFIGS && have < most; rank++)
        for (int i = 0; i < j->configs; i++) {
            struct config *c = &j->config[i];
            if ((by_b ? c->rank_b : c->rank_a) != rank || (fits != NULL && !fits(c)))
                continue;
            if (!c->built && c->note[0] == 0 && config_build(j, c, a) != 0)
                snprintf(c->note, sizeof c->note, "%.190s", why);
            have += c->built;
        }
}

static bool fits_safe(const struct config *c)
{
    return !c->nondeterministic && !c->compiled;
}

static bool fits_strict(const struct config *c)
{
    return !c->nondeterministic && !c->tf32;
}

static bool fits_precompiled(const struct config *c)
{
    return !c->compiled;
}

static int job_prepare(struct job *j, const struct asker *a)
{
    double start = now_s();
    TRY(job_graph(j, a));
    if (job_ask(j, a, CUDNN_HEUR_MODE_A) != 0 && j->plans_b == 0)
        return -1;
    if (j->plans_b > 0 && job_ask(j, a, CUDNN_HEUR_MODE_B) != 0 && j->configs == 0)
        return -1;
    if (j->extra > 1 && j->type == F32) /* an engine without TF32 may be there alone */
        job_ask(j, a, CUDNN_HEUR_MODE_FALLBACK);
    if (j->configs == 0)
        return bad("the heuristics know no engine");
    build_first(j, a, j->plans_a, 0, NULL);
    build_first(j, a, j->plans_b, 1, NULL);
    if (j->extra) {
        build_first(j, a, 2, 0, fits_safe);
        build_first(j, a, j->type == F32 ? 2 : 0, 0, fits_strict);
    }
    if (j->extra > 1) {
        build_first(j, a, MAX_CONFIGS, 0, fits_precompiled);
        build_first(j, a, MAX_CONFIGS, 1, fits_precompiled);
    }
    j->prepare_s = now_s() - start;
    return 0;
}

/* Preparing is the host's work alone: all cores first, then the card alone for the timing. */
static struct {
    struct job *jobs;
    int count;
    atomic_int next;
    double deadline;
    const struct asker *described; /* NULL: each thread has a handle of its own */
} pool;

static void *pool_thread(void *unused)
{
    (void)unused;
    struct asker a = {0};
    char failure[300] = "";
    if (pool.described != NULL)
        a = *pool.described;
    else if (q_cuCtxSetCurrent(card.context) != CUDA_SUCCESS || q_cudnnCreate(&a.handle) != CUDNN_STATUS_SUCCESS ||
             q_cudnnSetStream(a.handle, (cudaStream_t)card.stream) != CUDNN_STATUS_SUCCESS)
        snprintf(failure, sizeof failure, "a thread got no cuDNN handle");
    for (int i; (i = atomic_fetch_add(&pool.next, 1)) < pool.count;) {
        struct job *j = &pool.jobs[i];
        if (failure[0] != 0)
            snprintf(j->error, sizeof j->error, "%s", failure);
        else if (now_s() > pool.deadline)
            snprintf(j->error, sizeof j->error, "not prepared in time");
        else if (job_prepare(j, &a) != 0)
            snprintf(j->error, sizeof j->error, "%.290s", why);
        else
            j->ok = true;
    }
    return NULL; /* the handle stays: the plans name it */
}

static int prepare_all(struct job *jobs, int count, const struct asker *described, double seconds)
{
    pthread_t threads[16];
    const char *wanted = getenv("CUDA_PROBE_THREADS");
    int n = wanted != NULL ? atoi(wanted) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    n = MAX2(1, MIN2(n, COUNT(threads)));
    pool.jobs = jobs;
    pool.count = count;
    pool.described = described;
    pool.deadline = now_s() + seconds;
    atomic_store(&pool.next, 0);
    double start = now_s();
    for (int i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, pool_thread, NULL) != 0)
            return bad("pthread_create failed");
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    int ok = 0;
    for (int i = 0; i < count; i++)
        ok += jobs[i].ok;
    fprintf(stderr, "prepared %d of %d graphs with %d threads in %.1f s\n", ok, count, n, now_s() - start);
    return 0;
}

/* A device described by JSON. `note` members are ours: cuDNN reads the members it knows. */
static const char provisional_prop[] = /* written by hand; the card's own, saved by the part `prop`, replaces it */
    "{\"note\":\"provisional: written by hand, not read from a card\",\"deviceName\":\"NVIDIA "
    "H200\",\"cudaDeviceId\":0,"
    "\"deviceVer\":900,\"driverVer\":13000,\"multiProcessorCount\":132,\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"l2CacheSize\":62914560,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
    "\"pciDeviceId\":0,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":150121545728}";

static int described_device(desc *prop, const char **source, int *multiprocessors)
{
    char json[8192] = "", path[1200];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/deviceprop.json", out_dir);
    *source = prop_file[0] != 0 ? "the file given" : "deviceprop.json of this card";
    FILE *f = fopen(prop_file[0] != 0 ? prop_file : path, "r");
    if (f != NULL) {
        n = fread(json, 1, sizeof json - 1, f);
        fclose(f);
    } else if (prop_file[0] != 0) {
        return bad("%.200s: %s", prop_file, strerror(errno));
    } else {
        *source = "the provisional description, written by hand";
        n = sizeof provisional_prop - 1;
        memcpy(json, provisional_prop, n);
    }
    const char *count = strstr(json, "\"multiProcessorCount\":");
    if (multiprocessors != NULL)
        *multiprocessors = count != NULL ? atoi(strchr(count, ':') + 1) : 0;
    DNN(q_cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, prop));
    TRY(set_many(*prop, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)n, json));
    DNN(q_cudnnBackendFinalize(*prop));
    return 0;
}

/* ---- running a plan ---- */

struct runner {
    cudnnHandle_t handle;
    desc plan, pack[8];
    CUdeviceptr at[8][TENSORS];
    int sets;
};

/* Places a job's tensors, inputs in `in` and results in `out`, in as many sets as it takes to leave the L2 cache. */
static int runner_open(struct job *j, struct runner *r, int most_sets)
{
    size_t in = 0, out = 0;
    for (int i = 0; i < TENSORS; i++)
        if (j->t[i].used && !j->t[i].virtual)
            *(j->t[i].output ? &out : &in) += (j->t[i].bytes + 255) / 256 * 256;
    r->handle = j->handle;
    r->sets = 1;
    while (r->sets < most_sets && (size_t)r->sets * in < 160 * MIB && (size_t)(r->sets + 1) * in <= card.in_bytes &&
           (size_t)(r->sets + 1) * out <= card.out_bytes)
        r->sets++;
    if (in > card.in_bytes || out > card.out_bytes)
        return bad("tensors of %zu and %zu MiB do not fit the probe's buffers", in / MIB, out / MIB);
    CUdeviceptr next_in = card.in, next_out = card.out;
    for (int s = 0; s < r->sets; s++) {
        int64_t uids[TENSORS];
        void *pointers[TENSORS];
        int n = 0;
        for (int i = 0; i < TENSORS; i++) {
            if (!j->t[i].used || j->t[i].virtual)
                continue;
            CUdeviceptr *next = j->t[i].output ? &next_out : &next_in;
            r->at[s][i] = *next;
            pointers[n] = (void *)*next;
            uids[n++] = i + 1;
            *next += (j->t[i].bytes + 255) / 256 * 256;
        }
        void *work = (void *)card.work;
        TRY(make(j, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &r->pack[s]));
        TRY(set_many(r->pack[s], CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers));
        TRY(set_many(r->pack[s], CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids));
        TRY(set_many(r->pack[s], CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work));
        DNN(q_cudnnBackendFinalize(r->pack[s]));
    }
    return 0;
}

static int runner_go(void *context, int i)
{
    struct runner *r = context;
    DNN(q_cudnnBackendExecute(r->handle, r->plan, r->pack[i % r->sets]));
    return 0;
}

static bool runnable(struct config *c)
{
    if (c->built && (size_t)c->plan_workspace > card.work_bytes)
        snprintf(c->note, sizeof c->note, "workspace above the probe's limit");
    return c->built && (size_t)c->plan_workspace <= card.work_bytes;
}

static struct config *fastest(struct job *j, bool (*fits)(const struct config *c), int most_a)
{
    struct config *best = NULL;
    for (int i = 0; i < j->configs; i++) {
        struct config *c = &j->config[i];
        if (c->us > 0 && (fits == NULL || fits(c)) && (most_a == 0 || (c->rank_a >= 0 && c->rank_a < most_a)) &&
            (best == NULL || c->us < best->us))
            best = c;
    }
    return best;
}

/* Times the plans of a job that stand among the first `most` of a list and have no time yet. What is far slower than
 * the best of its kind gets one run. */
static int job_time(struct job *j, struct runner *r, int most, double deadline)
{
    TRY(runner_open(j, r, COUNT(r->pack)));
    for (int i = 0; i < j->configs && now_s() < deadline; i++) {
        struct config *c = &j->config[i];
        if (c->us >= 0 || c->note[0] != 0 || !runnable(c))
            continue;
        if (!(c->rank_a >= 0 && c->rank_a < most) && !(c->rank_b >= 0 && c->rank_b < most))
            continue;
        const struct config *best = fastest(j, c->tf32 ? NULL : fits_strict, 0);
        r->plan = c->plan;
        if (time_us(runner_go, r, best != NULL ? 2.5 * best->us : 0, &c->us) != 0) {
            c->us = -1;
            snprintf(c->note, sizeof c->note, "%.190s", why);
            CU(q_cuStreamSynchronize(card.stream));
        }
    }
    return 0;
}

static const char *job_name(const struct job *j, char *name, size_t size)
{
    const struct conv *c = &j->conv;
    snprintf(name, size, "%dx%dx%dx%d %d %dx%d/%d", c->n, c->h, c->w, c->c, c->k, c->r, c->r, c->stride);
    return name;
}

/* ---- part prop ---- */

static int part_prop(void)
{
    TRY(card_context());
    TRY(open_dnn());
    TRY(nvml_open());
    DNN(q_cudnnCreate(&card.handle));
    desc prop;
    int64_t n = 0;
    DNN(q_cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &prop));
    TRY(set_many(prop, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &card.handle));
    DNN(q_cudnnBackendFinalize(prop));
    DNN(q_cudnnBackendGetAttribute(prop, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &n, NULL));
    char *json = calloc(1, (size_t)n + 1), path[1200];
    if (json == NULL)
        return bad("out of memory");
    DNN(q_cudnnBackendGetAttribute(prop, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, &n, json));
    snprintf(path, sizeof path, "%s/deviceprop.json", out_dir);
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return bad("%.200s: %s", path, strerror(errno));
    size_t length = strlen(json); /* the count may include the ending zero */
    while (length > 0 && json[length - 1] <= ' ')
        json[--length] = 0;
    bool whole = fwrite(json, 1, length, f) == length;
    if (fclose(f) != 0 || !whole)
        return bad("%.200s: %s", path, strerror(errno));
    char name[100] = "", driver[80] = "";
    size_t total = 0;
    int cuda = 0, nvrtc_major = 0, nvrtc_minor = 0, r = q_nvmlSystemGetDriverVersion(driver, sizeof driver);
    if (r != 0)
        return bad("nvmlSystemGetDriverVersion: code %d", r);
    CU(q_cuDeviceGetName(name, sizeof name, card.device));
    CU(q_cuDriverGetVersion(&cuda));
    CU(q_cuDeviceTotalMem(&total, card.device));
    q_nvrtcVersion(&nvrtc_major, &nvrtc_minor);
    static const struct {
        const char *name;
        CUdevice_attribute which;
    } list[] = {{"multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
                {"L2 bytes", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
                {"SM clock, kHz", CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
                {"memory clock, kHz", CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
                {"memory bus, bits", CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
                {"shared memory a block at most, bytes", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
                {"threads a multiprocessor", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
                {"copy engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
                {"ECC", CU_DEVICE_ATTRIBUTE_ECC_ENABLED}};
    text("| what | value |\n|---|---|\n| card | %s, compute capability %d.%d |\n| driver | %s, CUDA %d.%d |\n", name,
         card.capability / 10, card.capability % 10, driver, cuda / 1000, cuda % 1000 / 10);
    text("| cuDNN, cuBLASLt, NVRTC | %zu, %zu, %d.%d |\n| memory, bytes | %zu |\n", q_cudnnGetVersion(),
         q_cublasLtGetVersion(), nvrtc_major, nvrtc_minor, total);
    row("{\"part\":\"prop\",\"card\":\"%s\",\"capability\":%d,\"driver\":\"%s\",\"cuda\":%d,\"cudnn\":%zu,"
        "\"cublaslt\":%zu,\"nvrtc\":\"%d.%d\",\"memory_bytes\":%zu,\"deviceprop\":%s}",
        name, card.capability, driver, cuda, q_cudnnGetVersion(), q_cublasLtGetVersion(), nvrtc_major, nvrtc_minor,
        total, json);
    for (int i = 0; i < COUNT(list); i++) {
        int value = 0;
        CU(q_cuDeviceGetAttribute(&value, list[i].which, card.device));
        text("| %s | %d |\n", list[i].name, value);
        row("{\"part\":\"prop\",\"what\":\"%s\",\"value\":%d}", list[i].name, value);
    }
    text("\ncuDNN's description of the card (deviceprop.json): `%s`\n", json);
    free(json);
    return 0;
}

/* ---- part kernels: no card needed ---- */

static int part_kernels(void)
{
    static const int generations[] = {75, 80, 86, 89, 90, 120};
    text("| generation | cubin, bytes | NVRTC, ms |\n|---|---|---|\n");
    for (int i = 0; i < COUNT(generations); i++) {
        char *cubin = NULL;
        size_t size = 0;
        double start = now_s();
        TRY(compile_kernels(generations[i], &cubin, &size));
        free(cubin);
        double ms = 1e3 * (now_s() - start);
        text("| sm_%d | %zu | %.0f |\n", generations[i], size, ms);
        row("{\"part\":\"kernels\",\"sm\":%d,\"cubin_bytes\":%zu,\"ms\":%.1f}", generations[i], size, ms);
    }
    return 0;
}

/* ---- part hwio ---- */

static uint64_t random_state;

static uint64_t random_next(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float from_bf16(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static double element(const void *p, size_t i, int type)
{
    return type == BF16 ? (double)from_bf16(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static void draw_elements(void *p, size_t n, int type)
{
    for (size_t i = 0; i < n; i++) {
        float f = (float)((double)(random_next() >> 11) * 0x1p-52 - 1.0);
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if (type == BF16) /* cut, not rounded: any bfloat16 is as good an input */
            ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
        else
            ((float *)p)[i] = f;
    }
}

/* The three convolutions in float64: result += product over every (image, output place, filter, tap, channel). */
static void reference(const struct job *j, void *const host[3], double *result)
{
    const struct conv *c = &j->conv;
    const int64_t *xs = j->t[T_X].strides, *ws = j->t[T_W].strides, *ys = j->t[T_Y].strides;
    int p = output_side(c, c->h), q = output_side(c, c->w);
    for (int n = 0; n < c->n; n++)
        for (int a = 0; a < p * q; a++)
            for (int tap = 0; tap < c->r * c->r; tap++) {
                int h = a / q * c->stride - c->pad + tap / c->r, w = a % q * c->stride - c->pad + tap % c->r;
                if (h < 0 || h >= c->h || w < 0 || w >= c->w)
                    continue;
                for (int k = 0; k < c->k; k++)
                    for (int i = 0; i < c->c; i++) {
                        size_t x = (size_t)(n * xs[0] + i * xs[1] + h * xs[2] + w * xs[3]);
                        size_t f = (size_t)(k * ws[0] + i * ws[1] + tap / c->r * ws[2] + tap % c->r * ws[3]);
                        size_t y = (size_t)(n * ys[0] + k * ys[1] + a / q * ys[2] + a % q * ys[3]);
                        if (j->direction == FORWARD)
                            result[y] += element(host[T_X], x, j->type) * element(host[T_W], f, j->type);
                        else if (j->direction == DATA_GRADIENT)
                            result[x] += element(host[T_Y], y, j->type) * element(host[T_W], f, j->type);
                        else
                            result[f] += element(host[T_X], x, j->type) * element(host[T_Y], y, j->type);
                    }
            }
}

/* Runs every plan of a job on fresh inputs; the norm-wise error, or infinity where an element was not written or
 * something was written behind the result. */
static int job_check(struct job *j)
{
    enum { GUARD = 4096 };
    struct runner r;
    void *host[3] = {0};
    int out = j->direction == FORWARD ? T_Y : j->direction == DATA_GRADIENT ? T_X : T_W, result = 0;
    size_t size = j->type == BF16 ? 2 : 4, n = j->t[out].bytes / size;
    double *expected = calloc(n, sizeof *expected);
    unsigned char *got = malloc(j->t[out].bytes + GUARD), *again = malloc(j->t[out].bytes);
    for (int i = T_X; i <= T_Y; i++)
        if ((host[i] = malloc(j->t[i].bytes)) != NULL)
            draw_elements(host[i], j->t[i].bytes / size, j->type);
    if (expected == NULL || got == NULL || again == NULL || host[0] == NULL || host[1] == NULL || host[2] == NULL)
        result = bad("out of memory");
    else if ((result = runner_open(j, &r, 1)) == 0)
        reference(j, host, expected);
    for (int i = T_X; i <= T_Y && result == 0; i++)
        if (i != out && q_cuMemcpyHtoD(r.at[0][i], host[i], j->t[i].bytes) != CUDA_SUCCESS)
            result = bad("cuMemcpyHtoD failed");
    if (result == 0 && q_cuCtxSynchronize() != CUDA_SUCCESS) /* a copy from pageable memory may end after its call */
        result = bad("cuCtxSynchronize failed");
    for (int i = 0; i < j->configs && result == 0; i++) {
        struct config *c = &j->config[i];
        if (!runnable(c))
            continue;
        r.plan = c->plan;
        if (q_cuMemsetD8Async(r.at[0][out], 0xff, j->t[out].bytes + GUARD, card.stream) != CUDA_SUCCESS)
            result = bad("cuMemsetD8Async failed");
        else if (runner_go(&r, 0) != 0)
            snprintf(c->note, sizeof c->note, "%.190s", why);
        else if (q_cuStreamSynchronize(card.stream) != CUDA_SUCCESS)
            result = bad("engine %lld: the context is lost", (long long)c->id);
        else if (q_cuMemcpyDtoH(got, r.at[0][out], j->t[out].bytes + GUARD) != CUDA_SUCCESS)
            result = bad("cuMemcpyDtoH failed");
        else {
            double above = 0, below = 0;
            for (size_t e = 0; e < n; e++) {
                double d = element(got, e, j->type) - expected[e];
                above += d * d;
                below += expected[e] * expected[e];
            }
            c->error = sqrt(above / below); /* NaN where the poison is still there */
            for (size_t g = 0; g < GUARD; g++)
                if (got[j->t[out].bytes + g] != 0xff)
                    c->error = INFINITY;
            if (runner_go(&r, 0) != 0 || q_cuStreamSynchronize(card.stream) != CUDA_SUCCESS ||
                q_cuMemcpyDtoH(again, r.at[0][out], j->t[out].bytes) != CUDA_SUCCESS)
                result = bad("engine %lld: the second run failed", (long long)c->id);
            c->repeats = memcmp(got, again, j->t[out].bytes) == 0;
            if (!(c->error < 1e30))
                c->error = 1e30;
        }
    }
    for (int i = T_X; i <= T_Y; i++)
        free(host[i]);
    free(expected);
    free(got);
    free(again);
    return result;
}

static int part_hwio(void)
{
    static const struct conv small[] = {{3, 9, 11, 32, 64, 3, 1, 1},
                                        {2, 14, 14, 64, 128, 1, 2, 0},
                                        {4, 8, 8, 128, 72, 3, 2, 1},
                                        {2, 17, 15, 3, 32, 7, 2, 3}};
    static const struct conv large[] = {{256, 56, 56, 64, 64, 3, 1, 1},
                                        {256, 14, 14, 256, 1024, 1, 1, 0},
                                        {256, 28, 28, 128, 128, 3, 1, 1},
                                        {32, 64, 64, 512, 512, 3, 1, 1}};
    static const double limit[2] = {1e-2, 1e-5}; /* bf16; float32; TF32 below */
    TRY(card_open(1024 * MIB, 1024 * MIB, 1024 * MIB));
    struct job *jobs = calloc(COUNT(small) * 12 + COUNT(large) * 6, sizeof *jobs);
    if (jobs == NULL)
        return bad("out of memory");
    int n = 0, checked;
    for (int s = 0; s < COUNT(small); s++)
        for (int i = 0; i < 12; i++)
            jobs[n++] = (struct job){
                .conv = small[s], .direction = i % 3, .type = i / 3 % 2, .hwio = i / 6, .plans_a = 6, .extra = 1};
    checked = n;
    for (int s = 0; s < COUNT(large); s++)
        for (int i = 0; i < 6; i++)
            jobs[n++] = (struct job){.conv = large[s], .direction = i % 3, .type = BF16, .hwio = i / 3, .plans_a = 5};
    TRY(prepare_all(jobs, n, NULL, 45));
    random_state = (uint64_t)time(NULL);
    text("Numbers against float64 on the host, random inputs (seed %llu), poisoned results, guard behind them.\n\n"
         "| input, filters | type | direction | filters stored | engines run | wrong | other bits again | largest "
         "error | engine of it |\n"
         "|---|---|---|---|---|---|---|---|---|\n",
         (unsigned long long)random_state);
    int wrong_all = 0, empty = 0;
    for (int i = 0; i < checked; i++) {
        struct job *j = &jobs[i];
        char name[100];
        int ran = 0, wrong = 0, unsteady = 0;
        const struct config *worst = NULL;
        if (j->ok)
            TRY(job_check(j));
        for (int k = 0; k < j->configs; k++) {
            const struct config *c = &j->config[k];
            if (c->error < 0)
                continue;
            ran++;
            wrong += !(c->error <= (c->tf32 ? 1e-3 : limit[j->type]));
            unsteady += !c->repeats && !c->nondeterministic;
            if (worst == NULL || c->error > worst->error)
                worst = c;
            row("{\"part\":\"hwio\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"filters\":\"%s\","
                "\"engine\":%lld,"
                "\"knobs\":\"%s\",\"compiled\":%d,\"tf32\":%d,\"error\":%.3g,\"repeats\":%d}",
                job_name(j, name, sizeof name), type_names[j->type], direction_names[j->direction],
                j->hwio ? "HWIO" : "KRSC", (long long)c->id, c->knobs, c->compiled, c->tf32, c->error, c->repeats);
        }
        wrong_all += wrong;
        empty += ran == 0;
        text("| %s | %s | %s | %s | %d | %d | %d | %.1e | %lld%s%s |\n", job_name(j, name, sizeof name),
             type_names[j->type], direction_names[j->direction], j->hwio ? "HWIO" : "KRSC", ran, wrong, unsteady,
             worst != NULL ? worst->error : NAN, worst != NULL ? (long long)worst->id : -1,
             worst != NULL && worst->tf32 ? " TF32" : "", j->error);
    }
    text("\nSpeed, bf16, microseconds: the fastest of the first five of mode A.\n\n| input, filters | direction | KRSC "
         "| "
         "HWIO | HWIO / KRSC |\n|---|---|---|---|---|\n");
    for (int i = checked; i < n; i++)
        if (jobs[i].ok) {
            struct runner r;
            TRY(job_time(&jobs[i], &r, MAX_CONFIGS, now_s() + 20));
        }
    for (int s = 0; s < COUNT(large) * 3; s++) {
        struct job *krsc = &jobs[checked + s / 3 * 6 + s % 3], *hwio = krsc + 3;
        struct config *a = fastest(krsc, NULL, 0), *b = fastest(hwio, NULL, 0);
        char name[100];
        double ua = a != NULL ? a->us : NAN, ub = b != NULL ? b->us : NAN;
        text("| %s | %s | %.1f | %.1f | %.3f |\n", job_name(krsc, name, sizeof name), direction_names[krsc->direction],
             ua, ub, ub / ua);
        row("{\"part\":\"hwio\",\"shape\":\"%s\",\"direction\":\"%s\",\"krsc_us\":%.1f,\"hwio_us\":%.1f}", name,
            direction_names[krsc->direction], a != NULL ? ua : -1, b != NULL ? ub : -1);
    }
    for (int i = 0; i < n; i++)
        job_free(&jobs[i]);
    free(jobs);
    text("\n");
    if (wrong_all > 0 || empty > 0)
        return bad("%d engines gave wrong numbers, %d graphs had no engine that ran", wrong_all, empty);
    return 0;
}

/* ---- part engines ---- */

enum { FIRST_ROUND = 5 }; /* of each list are timed for every graph, before the rest is */
struct layer {
    struct conv conv;
    int times;
};
static const struct layer resnet50[] = {
    /* keras.applications: the stride is in the first 1 x 1 of a stage and in its shortcut */
    {{256, 224, 224, 3, 64, 7, 2, 3}, 1},   {{256, 56, 56, 64, 64, 1, 1, 0}, 1},
    {{256, 56, 56, 64, 256, 1, 1, 0}, 4},   {{256, 56, 56, 64, 64, 3, 1, 1}, 3},
    {{256, 56, 56, 256, 64, 1, 1, 0}, 2},   {{256, 56, 56, 256, 512, 1, 2, 0}, 1},
    {{256, 56, 56, 256, 128, 1, 2, 0}, 1},  {{256, 28, 28, 128, 128, 3, 1, 1}, 4},
    {{256, 28, 28, 128, 512, 1, 1, 0}, 4},  {{256, 28, 28, 512, 128, 1, 1, 0}, 3},
    {{256, 28, 28, 512, 1024, 1, 2, 0}, 1}, {{256, 28, 28, 512, 256, 1, 2, 0}, 1},
    {{256, 14, 14, 256, 256, 3, 1, 1}, 6},  {{256, 14, 14, 256, 1024, 1, 1, 0}, 6},
    {{256, 14, 14, 1024, 256, 1, 1, 0}, 5}, {{256, 14, 14, 1024, 2048, 1, 2, 0}, 1},
    {{256, 14, 14, 1024, 512, 1, 2, 0}, 1}, {{256, 7, 7, 512, 512, 3, 1, 1}, 3},
    {{256, 7, 7, 512, 2048, 1, 1, 0}, 3},   {{256, 7, 7, 2048, 512, 1, 1, 0}, 2}};
static const struct layer s9[] = {{{32, 128, 128, 3, 256, 3, 1, 1}, 1},  {{32, 128, 128, 256, 256, 3, 1, 1}, 1},
                                  {{32, 64, 64, 256, 512, 3, 1, 1}, 1},  {{32, 64, 64, 512, 512, 3, 1, 1}, 1},
                                  {{32, 32, 32, 512, 1024, 3, 1, 1}, 1}, {{32, 32, 32, 1024, 1024, 3, 1, 1}, 1}};

static int order_jobs(const void *a, const void *b) /* bf16 first, then by work, so that a deadline costs little */
{
    const struct job *x = a, *y = b;
    double fx = conv_flops(&x->conv) * x->times, fy = conv_flops(&y->conv) * y->times;
    return x->type != y->type ? x->type - y->type : (fx < fy) - (fx > fy);
}

static int list_networks(struct job *jobs)
{
    int n = 0;
    for (int i = 0; i < COUNT(resnet50); i++)
        for (int d = 0; d < 3; d++)
            if (i > 0 || d != DATA_GRADIENT) /* nobody needs the gradient of the images */
                jobs[n++] = (struct job){.net = "ResNet50",
                                         .conv = resnet50[i].conv,
                                         .times = resnet50[i].times,
                                         .direction = d,
                                         .type = BF16};
    for (int t = BF16; t <= F32; t++)
        for (int i = 0; i < COUNT(s9); i++)
            for (int d = 0; d < 3; d++)
                if (i > 0 || d != DATA_GRADIENT)
                    jobs[n++] = (struct job){.net = "S9", .conv = s9[i].conv, .times = 1, .direction = d, .type = t};
    for (int i = 0; i < n; i++) {
        jobs[i].plans_a = jobs[i].plans_b = FIRST_ROUND;
        jobs[i].extra = 2;
    }
    qsort(jobs, (size_t)n, sizeof *jobs, order_jobs);
    return n;
}

static bool fits_deterministic(const struct config *c)
{
    return !c->nondeterministic;
}

static bool fits_no_tf32(const struct config *c)
{
    return !c->tf32;
}

static struct config *first_of(struct job *j, int by_b)
{
    struct config *best = NULL;
    for (int i = 0; i < j->configs; i++) {
        struct config *c = &j->config[i];
        int rank = by_b ? c->rank_b : c->rank_a, so_far = best == NULL ? MAX_CONFIGS
                                                          : by_b       ? best->rank_b
                                                                       : best->rank_a;
        if (c->us > 0 && rank >= 0 && rank < so_far)
            best = c;
    }
    return best;
}

enum { FIRST_A, FIRST_B, BEST_FIVE, BEST_ALL, BEST_DETERMINISTIC, BEST_SAFE, BEST_STRICT, BEST_STRICT_DET, CHOICES };
static const char *const choice_names[CHOICES] = {"first of mode A",    "first of mode B",
                                                  "best of A's five",   "best timed",
                                                  "best deterministic", "best deterministic, precompiled",
                                                  "best without TF32",  "best without TF32, deterministic"};

static struct config *choose(struct job *j, int choice)
{
    static bool (*const fits[CHOICES])(const struct config *c) = {
        NULL, NULL, NULL, NULL, fits_deterministic, fits_safe, fits_no_tf32, fits_strict};
    return choice <= FIRST_B ? first_of(j, choice) : fastest(j, fits[choice], choice == BEST_FIVE ? 5 : 0);
}

static void engines_sums(struct job *jobs, int n)
{
    static const struct {
        const char *net;
        int type;
    } lines[] = {{"ResNet50", BF16}, {"S9", BF16}, {"S9", F32}};
    text("\nSum over a network, one step, milliseconds (missing: graphs without such an engine, not in the sum).\n\n"
         "| network | choice | forward | data | weights | all | missing | largest workspace, MiB |\n"
         "|---|---|---|---|---|---|---|---|\n");
    for (int l = 0; l < COUNT(lines); l++)
        for (int k = 0; k < (lines[l].type == F32 ? CHOICES : BEST_STRICT); k++) {
            double ms[3] = {0};
            int64_t largest = 0;
            int missing = 0;
            for (int i = 0; i < n; i++) {
                struct job *j = &jobs[i];
                if (strcmp(j->net, lines[l].net) != 0 || j->type != lines[l].type)
                    continue;
                struct config *c = choose(j, k);
                if (c == NULL) {
                    missing++;
                    continue;
                }
                ms[j->direction] += 1e-3 * c->us * j->times;
                largest = MAX2(largest, c->plan_workspace);
            }
            double all = ms[0] + ms[1] + ms[2];
            text("| %s %s | %s | %.3f | %.3f | %.3f | %.3f | %d | %.1f |\n", lines[l].net, type_names[lines[l].type],
                 choice_names[k], ms[0], ms[1], ms[2], all, missing, (double)largest / (double)MIB);
            row("{\"part\":\"engines\",\"sum\":\"%s\",\"type\":\"%s\",\"choice\":\"%s\",\"forward_ms\":%.4f,\"data_"
                "ms\":%.4f,"
                "\"weights_ms\":%.4f,\"all_ms\":%.4f,\"missing\":%d,\"workspace_bytes\":%lld}",
                lines[l].net, type_names[lines[l].type], choice_names[k], ms[0], ms[1], ms[2], all, missing,
                (long long)largest);
        }
}

static const char *first_five(const struct job *j, char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = 0;
    for (int rank = 0; rank < FIRST_ROUND; rank++)
        for (int i = 0; i < j->configs && used < size; i++) {
            const struct config *c = &j->config[i];
            if (c->rank_a != rank)
                continue;
            used +=
                (size_t)snprintf(buffer + used, size - used, "%s%lld%s%s%s: ", rank > 0 ? "; " : "", (long long)c->id,
                                 c->compiled ? "c" : "", c->nondeterministic ? "n" : "", c->tf32 ? "t" : "");
            if (used < size && c->us > 0)
                used += (size_t)snprintf(buffer + used, size - used, "%.1f", c->us);
            if (used < size && c->us > 0 && c->plan_workspace >= (int64_t)MIB / 10)
                used += (size_t)snprintf(buffer + used, size - used, ", %.1f", (double)c->plan_workspace / (double)MIB);
        }
    return buffer;
}

static int part_engines(void)
{
    struct job *jobs = calloc(128, sizeof *jobs);
    char trouble[600] = "";
    if (jobs == NULL)
        return bad("out of memory");
    double start = now_s();
    int n = list_networks(jobs), type = BF16, timed = 0, result = 0;
    struct runner r;
    TRY(card_open(2048 * MIB, 2048 * MIB, 6144 * MIB));
    TRY(prepare_all(jobs, n, NULL, 60));
    for (int i = 0; i < 2 * n && result == 0; i++) {
        struct job *j = &jobs[i % n];
        if (j->type != type) {
            type = j->type;
            result = fill_random(card.in, card.in_bytes, type == BF16, 2);
        }
        if (result == 0 && j->ok)
            result = job_time(j, &r, i < n ? FIRST_ROUND : MAX_CONFIGS, start + (i < n ? 110 : 140));
    }
    if (result != 0) /* the tables of what there is come first */
        snprintf(trouble, sizeof trouble, "%s", why);
    text("First five of mode A: engine, microseconds, workspace in MiB where there is one; c compiled at run time, n "
         "not "
         "deterministic, t TF32.\n\n| network | input, filters | type | direction | times | listed A, B, timed | first "
         "five "
         "of A | best, us | TFLOP/s | its engine, MiB | best deterministic, us | MiB |\n"
         "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < n; i++) {
        struct job *j = &jobs[i];
        char name[100], five[400];
        job_name(j, name, sizeof name);
        int listed_a = 0, listed_b = 0, runs = 0;
        for (int k = 0; k < j->configs; k++) {
            struct config *c = &j->config[k];
            listed_a += c->rank_a >= 0;
            listed_b += c->rank_b >= 0;
            runs += c->us > 0;
            if (c->us > 0 || c->note[0] != 0)
                row("{\"part\":\"engines\",\"net\":\"%s\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\","
                    "\"times\":%d,"
                    "\"engine\":%lld,\"knobs\":\"%s\",\"rank_a\":%d,\"rank_b\":%d,\"us\":%.2f,\"workspace_bytes\":%lld,"
                    "\"config_workspace_bytes\":%lld,\"deterministic\":%d,\"compiled\":%d,\"tf32\":%d,\"build_s\":%.3f,"
                    "\"note\":\"%s\"}",
                    j->net, name, type_names[j->type], direction_names[j->direction], j->times, (long long)c->id,
                    c->knobs, c->rank_a, c->rank_b, c->us, (long long)c->plan_workspace, (long long)c->workspace,
                    !c->nondeterministic, c->compiled, c->tf32, c->build_s, c->note);
        }
        struct config *best = fastest(j, NULL, 0), *safe = fastest(j, fits_deterministic, 0);
        if (best == NULL) {
            if (j->ok)
                snprintf(j->error, sizeof j->error, "no plan was timed");
            text("| %s | %s | %s | %s | %d | %d, %d, 0 | | | | %s | | |\n", j->net, name, type_names[j->type],
                 direction_names[j->direction], j->times, listed_a, listed_b, j->error);
            row("{\"part\":\"engines\",\"net\":\"%s\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"error\":"
                "\"%s\"}",
                j->net, name, type_names[j->type], direction_names[j->direction], j->error);
            continue;
        }
        timed++;
        text("| %s | %s | %s | %s | %d | %d, %d, %d | %s | %.1f | %.0f | %lld, %.1f%s%s%s | %.1f | %.1f |\n", j->net,
             name, type_names[j->type], direction_names[j->direction], j->times, listed_a, listed_b, runs,
             first_five(j, five, sizeof five), best->us, 1e-6 * conv_flops(&j->conv) / best->us, (long long)best->id,
             (double)best->plan_workspace / (double)MIB, best->compiled ? ", compiled" : "", best->tf32 ? ", TF32" : "",
             best->nondeterministic ? ", not deterministic" : "", safe != NULL ? safe->us : NAN,
             safe != NULL ? (double)safe->plan_workspace / (double)MIB : NAN);
    }
    engines_sums(jobs, n);
    row("{\"part\":\"engines\",\"graphs\":%d,\"timed\":%d,\"seconds\":%.1f}", n, timed, now_s() - start);
    text("\n%d of %d graphs timed, %.0f s.\n", timed, n, now_s() - start);
    if (result != 0)
        return bad("%s", trouble);
    return timed == n ? 0 : bad("%d of %d graphs timed", timed, n);
}

/* ---- part fused ---- */

struct separate { /* a plan and the own kernels behind it */
    struct runner run;
    int fuse;
    unsigned vectors, rows, groups; /* of the plan's result: 16-byte pieces, rows of channels, channels / 8 */
    CUdeviceptr other, part, sums;  /* bias or activation; partial sums; sums */
    int kernels_only;
};

static int separate_go(void *context, int i)
{
    struct separate *s = context;
    CUdeviceptr result = s->run.at[i % s->run.sets][s->fuse == DRELU ? T_X : T_Y];
    if (!s->kernels_only)
        TRY(runner_go(&s->run, i));
    if (s->fuse == BIAS_RELU) {
        void *args[] = {&result, &s->other, &s->vectors, &s->groups};
        return launch(K_BIAS_RELU, (s->vectors + 255) / 256, 256, 0, args);
    }
    if (s->fuse == DRELU) {
        void *args[] = {&result, &s->other, &s->vectors};
        return launch(K_DRELU, (s->vectors + 255) / 256, 256, 0, args);
    }
    unsigned blocks = 4 * (unsigned)card.sm_count, n = 16 * s->groups;
    void *args[] = {&result, &s->part, &s->rows, &s->groups}, *args2[] = {&s->part, &s->sums, &blocks, &n};
    TRY(launch(K_STATS, blocks, 256, 256 * 64, args));
    return launch(K_STATS_SUM, (n + 63) / 64, 64, 0, args2);
}

/* Norm-wise difference of the fused plan's result from the separate one's, over at most 4 MiB of it. */
static int fused_difference(struct job *fused, struct runner *f, struct separate *s, double *difference)
{
    enum { MOST = 4 << 20 };
    int which = s->fuse == STATS ? T_SUM : T_OUT;
    size_t bytes = MIN2(fused->t[which].bytes, (size_t)MOST), n = bytes / (s->fuse == STATS ? 4 : 2);
    CUdeviceptr from = s->fuse == STATS ? s->sums : s->run.at[0][s->fuse == DRELU ? T_X : T_Y];
    char *a = malloc(MOST), *b = malloc(MOST);
    if (a == NULL || b == NULL)
        return bad("out of memory");
    s->kernels_only = 0;
    TRY(separate_go(s, 0));
    CU(q_cuStreamSynchronize(card.stream));
    CU(q_cuMemcpyDtoH(a, from, s->fuse == STATS ? bytes * 2 : bytes));
    CU(q_cuMemsetD8Async(f->at[0][which], 0xff, bytes, card.stream));
    TRY(runner_go(f, 0));
    CU(q_cuStreamSynchronize(card.stream));
    CU(q_cuMemcpyDtoH(b, f->at[0][which], bytes));
    double above = 0, below = 0;
    for (size_t i = 0; i < n; i++) {
        double x = element(a, s->fuse == STATS ? i / 8 * 16 + i % 8 : i, s->fuse == STATS ? F32 : BF16);
        double d = element(b, i, s->fuse == STATS ? F32 : BF16) - x;
        above += d * d;
        below += x * x;
    }
    *difference = sqrt(above / below);
    free(a);
    free(b);
    return 0;
}

static int fused_row(struct job *plain, struct job *fused, const char *what, int own_kernel, CUdeviceptr part,
                     CUdeviceptr sums)
{
    struct separate s = {.fuse = own_kernel, .part = part, .sums = sums};
    struct runner f;
    char name[100];
    double conv_us = NAN, kernel_us = NAN, separate_us = NAN, difference = NAN;
    job_name(plain, name, sizeof name);
    if (!plain->ok)
        return bad("%s: %.300s", name, plain->error);
    if (fastest(plain, NULL, 0) == NULL)
        TRY(job_time(plain, &s.run, MAX_CONFIGS, now_s() + 20));
    else
        TRY(runner_open(plain, &s.run, COUNT(s.run.pack)));
    struct config *alone = fastest(plain, NULL, 0), *best = NULL;
    if (alone == NULL)
        return bad("%s: no plan ran", name);
    conv_us = alone->us;
    const struct tensor *t = &plain->t[own_kernel == DRELU ? T_X : T_Y];
    s.run.plan = alone->plan;
    s.vectors = (unsigned)(t->bytes / 16);
    s.groups = (unsigned)t->dims[1] / 8;
    s.rows = s.vectors / s.groups;
    s.other = card.in; /* timing only; where a fused plan runs, its own bias or activation */
    TRY(time_us(separate_go, &s, 0, &separate_us));
    s.kernels_only = 1;
    TRY(time_us(separate_go, &s, 0, &kernel_us));
    if (fused->ok) {
        TRY(job_time(fused, &f, MAX_CONFIGS, now_s() + 20));
        if ((best = fastest(fused, NULL, 0)) != NULL) {
            f.plan = best->plan;
            s.other = f.at[0][own_kernel == DRELU ? T_ACT : T_BIAS];
            if (fused->fuse != BIAS_F32_RELU) /* the own kernel takes a bfloat16 bias */
                TRY(fused_difference(fused, &f, &s, &difference));
        }
    }
    int built = 0;
    for (int i = 0; i < fused->configs; i++)
        built += fused->config[i].us > 0;
    for (int i = 0; i < fused->configs && built == 0 && fused->error[0] == 0; i++)
        snprintf(fused->error, sizeof fused->error, "%.200s", fused->config[i].note);
    struct config *safe = fastest(fused, fits_precompiled, 0);
    text("| %s | %s | %.1f | %.1f | %.1f | %.1f | %.2f | %d, %d | %.1f | %.1e | %s%s%.80s |\n", name, what, conv_us,
         kernel_us, separate_us, best != NULL ? best->us : NAN, best != NULL ? best->us / separate_us : NAN,
         fused->configs, built, safe != NULL ? safe->us : NAN, difference,
         best != NULL && best->compiled ? "compiled " : "",
         best != NULL && best->nondeterministic ? "not deterministic " : "", fused->error);
    row("{\"part\":\"fused\",\"shape\":\"%s\",\"what\":\"%s\",\"conv_us\":%.2f,\"kernel_us\":%.2f,\"separate_us\":%.2f,"
        "\"fused_us\":%.2f,\"listed\":%d,\"ran\":%d,\"engine\":%lld,\"workspace_bytes\":%lld,\"compiled\":%d,"
        "\"deterministic\":%d,\"build_s\":%.2f,\"precompiled_us\":%.2f,\"difference\":%.3g,\"error\":\"%s\"}",
        name, what, conv_us, kernel_us, separate_us, best != NULL ? best->us : -1, fused->configs, built,
        best != NULL ? (long long)best->id : -1, best != NULL ? (long long)best->plan_workspace : -1,
        best != NULL && best->compiled, best != NULL && !best->nondeterministic, best != NULL ? best->build_s : -1,
        safe != NULL ? safe->us : -1, isnan(difference) ? -1 : difference, fused->error);
    if (difference > 2e-2)
        return bad("%s, %s: the fused result differs by %.2e", name, what, difference);
    return 0;
}

/* One shape, in a process of its own: says when its plans are built, and times them when it is told to. */
static int fused_shape(const struct conv *shape, int ready, int go)
{
    static const int kinds[][2] = {{FORWARD, PLAIN}, {DATA_GRADIENT, PLAIN}, {FORWARD, BIAS_RELU},
                                   {FORWARD, STATS}, {DATA_GRADIENT, DRELU}, {FORWARD, BIAS_F32_RELU}};
    static struct job j[COUNT(kinds)];
    TRY(card_open(1536 * MIB, 1536 * MIB, 2048 * MIB));
    CUdeviceptr part, sums;
    CU(q_cuMemAlloc(&part, 64 * MIB));
    CU(q_cuMemAlloc(&sums, MIB));
    struct asker a = {.handle = card.handle};
    double deadline = now_s() + 45;
    for (int i = 0; i < COUNT(kinds); i++) {
        j[i] = (struct job){.conv = *shape, .direction = kinds[i][0], .fuse = kinds[i][1], .type = BF16};
        j[i].plans_a = j[i].plans_b = kinds[i][1] <= BIAS_RELU ? 5 : 3; /* the others are compiled: a second each */
        j[i].extra = 1;
        j[i].ok = now_s() < deadline && job_prepare(&j[i], &a) == 0;
        if (!j[i].ok)
            snprintf(j[i].error, sizeof j[i].error, "%.290s", now_s() < deadline ? why : "not prepared in time");
    }
    char byte = 0;
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 1)
        return bad("the parent process is gone");
    const struct {
        struct job *plain, *fused;
        const char *what;
        int kernel;
    } rows[] = {{&j[0], &j[2], "bias (bf16) + ReLU", BIAS_RELU},
                {&j[0], &j[5], "bias (f32) + ReLU", BIAS_RELU},
                {&j[1], &j[4], "data gradient + dReLU", DRELU},
                {&j[0], &j[3], "statistics", STATS}};
    int failed = 0;
    char first[600] = "";
    for (int k = 0; k < COUNT(rows); k++)
        if (fused_row(rows[k].plain, rows[k].fused, rows[k].what, rows[k].kernel, part, sums) != 0 && failed++ == 0)
            snprintf(first, sizeof first, "%s", why);
    return failed == 0 ? 0 : bad("%.500s", first);
}

/* Engines compiled at run time are compiled one after the other within a process: a process a shape, which build side
 * by side and then time one after the other. */
static int part_fused(void)
{
    static const struct conv shapes[] = {{256, 56, 56, 64, 64, 3, 1, 1},   {256, 56, 56, 64, 256, 1, 1, 0},
                                         {256, 28, 28, 128, 128, 3, 1, 1}, {256, 14, 14, 256, 1024, 1, 1, 0},
                                         {256, 7, 7, 512, 512, 3, 1, 1},   {32, 64, 64, 512, 512, 3, 1, 1}};
    enum { SHAPES = COUNT(shapes) };
    int ready[SHAPES][2], go[SHAPES][2], failed = 0;
    pid_t pid[SHAPES];
    char first[600] = "", byte = 0;
    char(*said)[600] = mmap(NULL, sizeof *said * SHAPES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (said == MAP_FAILED)
        return bad("mmap: %s", strerror(errno));
    text("bf16, microseconds; separate: the fastest plain plan and the own kernel behind it, timed together; listed, "
         "ran: "
         "configurations of modes A and B, and those timed.\n\n| input, filters | fusion | convolution | own kernel | "
         "separate | fused | fused / separate | listed, ran | fused, precompiled | difference | notes |\n"
         "|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < SHAPES; i++) {
        if (pipe(ready[i]) != 0 || pipe(go[i]) != 0 || (pid[i] = fork()) < 0)
            return bad("pipe or fork: %s", strerror(errno));
        if (pid[i] == 0) {
            for (int k = 0; k <= i; k++) { /* an end kept open here would hide another child's death from the parent */
                close(ready[k][0]);
                close(go[k][1]);
            }
            int result = fused_shape(&shapes[i], ready[i][1], go[i][0]);
            if (result != 0)
                snprintf(said[i], sizeof said[i], "%s", why);
            fflush(NULL);
            _exit(result == 0 ? 0 : 1);
        }
        close(ready[i][1]);
        close(go[i][0]);
    }
    double deadline = now_s() + 55; /* a late one is timed all the same, while others may still be compiling */
    for (int i = 0; i < SHAPES; i++) {
        struct pollfd end = {.fd = ready[i][0], .events = POLLIN}; /* a child that failed closes its end */
        poll(&end, 1, MAX2(0, (int)(1e3 * (deadline - now_s()))));
    }
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < SHAPES; i++) {
        int status = 0;
        if (write(go[i][1], &byte, 1) < 0 && errno != EPIPE)
            return bad("write: %s", strerror(errno));
        if (waitpid(pid[i], &status, 0) < 0)
            return bad("waitpid: %s", strerror(errno));
        if (status != 0 && failed++ == 0)
            snprintf(first, sizeof first, "%s", said[i][0] != 0 ? said[i] : "a process died");
    }
    return failed == 0 ? 0 : bad("%d of %d shapes failed; the first: %.500s", failed, SHAPES, first);
}

/* ---- products and graphs, for the parts nvml, bandwidth and graphs ---- */

struct gemm { /* square, bfloat16 with float32 sums: C = A * B in column order */
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    CUdeviceptr a, b, c;
};

static int gemm_open(struct gemm *g, cublasLtHandle_t handle, int n)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    size_t most = MIN2(32 * MIB, card.work_bytes);
    int found = 0;
    g->handle = handle;
    BLAS(q_cublasLtMatmulDescCreate(&g->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS(q_cublasLtMatrixLayoutCreate(&g->layout, CUDA_R_16BF, (uint64_t)n, (uint64_t)n, n));
    BLAS(q_cublasLtMatmulPreferenceCreate(&preference));
    BLAS(q_cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                                sizeof most));
    BLAS(q_cublasLtMatmulAlgoGetHeuristic(handle, g->operation, g->layout, g->layout, g->layout, g->layout, preference,
                                          1, &result, &found));
    if (found == 0)
        return bad("cuBLASLt knows no algorithm");
    g->algorithm = result.algo;
    g->workspace_bytes = result.workspaceSize;
    g->a = card.in;
    g->b = card.in + (size_t)n * (size_t)n * 2;
    g->c = card.out;
    return 0;
}

static int gemm_go(void *context, int i)
{
    struct gemm *g = context;
    float one = 1, zero = 0;
    (void)i;
    BLAS(q_cublasLtMatmul(g->handle, g->operation, &one, (void *)g->a, g->layout, (void *)g->b, g->layout, &zero,
                          (void *)g->c, g->layout, (void *)g->c, g->layout, &g->algorithm, (void *)card.work,
                          g->workspace_bytes, (cudaStream_t)card.stream));
    return 0;
}

static int tiny_go(void *context, int i)
{
    CUdeviceptr p = card.out + card.out_bytes - 4096;
    void *args[] = {&p};
    (void)context;
    (void)i;
    return launch(K_TINY, 1, 128, 0, args);
}

/* Captures `steps` calls of f on the stream. */
static int capture(launcher f, void *context, int steps, CUgraph *graph, size_t *nodes)
{
    CU(q_cuStreamBeginCapture(card.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    int result = 0;
    for (int i = 0; i < steps && result == 0; i++)
        result = f(context, i);
    CUresult ended = q_cuStreamEndCapture(card.stream, graph);
    if (result != 0)
        return result;
    if (ended != CUDA_SUCCESS)
        return cuda_bad("cuStreamEndCapture", ended);
    CU(q_cuGraphGetNodes(*graph, NULL, nodes));
    return 0;
}

/* ---- part nvml ---- */

static double stage_start;

static int stage(const char *name) /* a line for the parent: bytes, whole card or process, milliseconds, name */
{
    uint64_t bytes = 0;
    int whole = 0;
    double ms = 1e3 * (now_s() - stage_start);
    CU(q_cuCtxSynchronize());
    TRY(nvml_used(&bytes, &whole));
    printf("stage %llu %d %.1f %s\n", (unsigned long long)bytes, whole, ms, name);
    fflush(stdout);
    stage_start = now_s();
    return 0;
}

static int nvml_plans(const struct asker *a)
{
    static const struct conv shapes[] = {
        {8, 28, 28, 64, 64, 3, 1, 1}, {8, 28, 28, 64, 128, 1, 1, 0}, {8, 14, 14, 128, 128, 3, 2, 1}};
    enum { WANTED = 10 };
    static struct job jobs[18];
    struct config *chosen[WANTED];
    struct job *of[WANTED];
    int n = 0;
    struct runner r;
    for (int i = 0; i < COUNT(jobs) && n < WANTED; i++) {
        struct job *j = &jobs[i];
        *j = (struct job){.conv = shapes[i / 6], .direction = i % 3, .type = i / 3 % 2};
        TRY(job_graph(j, a));
        TRY(job_ask(j, a, CUDNN_HEUR_MODE_A));
        for (int k = 0, mine = 0; k < j->configs && n < WANTED && mine < 2; k++) {
            struct config *c = &j->config[k];
            bool seen = c->compiled;
            for (int s = 0; s < n; s++) /* an engine's number means something within one direction */
                seen |= chosen[s]->id == c->id && of[s]->direction == j->direction && of[s]->type == j->type;
            if (seen || config_build(j, c, a) != 0 || (size_t)c->plan_workspace > card.work_bytes)
                continue;
            of[n] = j;
            chosen[n++] = c;
            mine++;
        }
    }
    TRY(stage("10 cuDNN plans built"));
    for (int i = 0; i < n; i++) {
        TRY(runner_open(of[i], &r, 1));
        r.plan = chosen[i]->plan;
        TRY(runner_go(&r, 0));
    }
    CU(q_cuCtxSynchronize());
    TRY(stage(n == WANTED ? "10 cuDNN plans run once" : "fewer than 10 cuDNN plans run once"));
    static struct job fused;
    fused = (struct job){.conv = shapes[0], .direction = FORWARD, .type = BF16, .fuse = BIAS_F32_RELU, .plans_a = 1};
    if (job_prepare(&fused, a) == 0)
        for (int k = 0; k < fused.configs; k++)
            if (fused.config[k].built && fused.config[k].compiled) {
                TRY(runner_open(&fused, &r, 1));
                r.plan = fused.config[k].plan;
                TRY(runner_go(&r, 0));
                CU(q_cuCtxSynchronize());
                TRY(stage("a plan compiled at run time, run once"));
                break;
            }
    return 0;
}

static int nvml_child(void)
{
    struct gemm g;
    cublasLtHandle_t blas;
    char *cubin = NULL;
    size_t size = 0, nodes = 0;
    CUgraph graph;
    CUgraphExec exec;
    TRY(open_cuda());
    TRY(open_dnn());
    TRY(nvml_open());
    stage_start = now_s();
    TRY(card_context());
    TRY(stage("context, 2 streams, 64 events"));
    TRY(card_memory(64 * MIB, 64 * MIB, 64 * MIB));
    TRY(stage("192 MiB of buffers"));
    TRY(compile_kernels(card.capability, &cubin, &size));
    stage_start = now_s();
    TRY(card_kernels(cubin));
    TRY(stage("own cubin loaded"));
    TRY(fill_random(card.in, card.in_bytes, 1, 1));
    TRY(tiny_go(NULL, 0));
    TRY(stage("own kernels run"));
    BLAS(q_cublasLtCreate(&blas));
    TRY(stage("cuBLASLt handle"));
    TRY(gemm_open(&g, blas, 1024));
    TRY(gemm_go(&g, 0));
    CU(q_cuCtxSynchronize());
    TRY(stage("cuBLASLt product run once"));
    DNN(q_cudnnCreate(&card.handle));
    DNN(q_cudnnSetStream(card.handle, (cudaStream_t)card.stream));
    TRY(stage("cuDNN handle"));
    struct asker a = {.handle = card.handle};
    TRY(nvml_plans(&a));
    TRY(capture(tiny_go, NULL, 1000, &graph, &nodes));
    TRY(stage("graph of 1,000 kernels captured"));
    CU(q_cuGraphInstantiateWithFlags(&exec, graph, 0));
    TRY(stage("graph instantiated"));
    CU(q_cuGraphUpload(exec, card.stream));
    CU(q_cuCtxSynchronize());
    TRY(stage("graph uploaded"));
    for (int i = 0; i < 3; i++) {
        CU(q_cuGraphLaunch(exec, card.stream));
        CU(q_cuCtxSynchronize());
        if (i != 1)
            TRY(stage(i == 0 ? "graph launched" : "graph launched twice more"));
    }
    return 0;
}

static int part_nvml(void)
{
    enum { STARTS = 10, STAGES = 32 };
    static struct {
        char name[80];
        double low, high, delta_low, delta_high, ms_low, ms_high;
        int seen;
    } stages[STAGES];
    int whole_any = 0, good = 0, count = 0;
    char command[1200], line[300], trouble[300] = "";
    snprintf(command, sizeof command, "'%s' --nvml-child", self_path);
    for (int s = 0; s < STARTS; s++) {
        FILE *child = popen(command, "r");
        if (child == NULL)
            return bad("popen: %s", strerror(errno));
        double before = 0;
        while (fgets(line, sizeof line, child) != NULL) {
            unsigned long long bytes;
            int whole, at = 0, i = 0;
            double ms;
            line[strcspn(line, "\n")] = 0;
            if (sscanf(line, "stage %llu %d %lf %n", &bytes, &whole, &ms, &at) != 3 || at == 0) {
                snprintf(trouble, sizeof trouble, "%.290s", line);
                continue;
            }
            while (i < count && strcmp(stages[i].name, line + at) != 0)
                i++;
            if (i == STAGES)
                continue;
            double mib = (double)bytes / (double)MIB, delta = mib - before;
            if (i == count) {
                snprintf(stages[count++].name, sizeof stages[0].name, "%.79s", line + at);
                stages[i].low = stages[i].delta_low = stages[i].ms_low = INFINITY;
                stages[i].high = stages[i].delta_high = stages[i].ms_high = -INFINITY;
            }
            before = mib;
            whole_any |= whole;
            stages[i].low = MIN2(stages[i].low, mib);
            stages[i].high = MAX2(stages[i].high, mib);
            stages[i].delta_low = MIN2(stages[i].delta_low, delta);
            stages[i].delta_high = MAX2(stages[i].delta_high, delta);
            stages[i].ms_low = MIN2(stages[i].ms_low, ms);
            stages[i].ms_high = MAX2(stages[i].ms_high, ms);
            stages[i].seen++;
            row("{\"part\":\"nvml\",\"start\":%d,\"stage\":\"%s\",\"bytes\":%llu,\"whole_card\":%d,\"ms\":%.1f}", s,
                line + at, bytes, whole, ms);
        }
        int status = pclose(child);
        good += status == 0;
        if (s == 0 && status != 0)
            return bad("the first start failed: %.280s", trouble);
    }
    text("%s, MiB, %d starts.\n\n| after | least | most | added, least | added, most | ms | starts "
         "|\n|---|---|---|---|---|---|"
         "---|\n",
         whole_any ? "NVML for the whole card (the process is not listed)" : "NVML for the process", STARTS);
    for (int i = 0; i < count; i++) {
        text("| %s | %.2f | %.2f | %.2f | %.2f | %.0f to %.0f | %d |\n", stages[i].name, stages[i].low, stages[i].high,
             stages[i].delta_low, stages[i].delta_high, stages[i].ms_low, stages[i].ms_high, stages[i].seen);
        row("{\"part\":\"nvml\",\"stage\":\"%s\",\"least_mib\":%.3f,\"most_mib\":%.3f,\"added_least_mib\":%.3f,"
            "\"added_most_mib\":%.3f,\"starts\":%d}",
            stages[i].name, stages[i].low, stages[i].high, stages[i].delta_low, stages[i].delta_high, stages[i].seen);
    }
    return good == STARTS ? 0 : bad("%d of %d starts succeeded; %.280s", good, STARTS, trouble);
}

/* ---- part bandwidth ---- */

struct copy {
    int kind;
    size_t bytes;
    void *host, *host2;
};
enum { H2D, D2H, BOTH, D2D, PAGEABLE_H2D, PAGEABLE_D2H, COPIES };
static const char *const copy_names[COPIES] = {"pinned, to the card",        "pinned, to the host",
                                               "pinned, both at once (sum)", "on the card (read + written)",
                                               "pageable, to the card",      "pageable, to the host"};

static int copy_go(void *context, int i)
{
    struct copy *c = context;
    (void)i;
    switch (c->kind) {
    case H2D:
        CU(q_cuMemcpyHtoDAsync(card.in, c->host, c->bytes, card.stream));
        break;
    case D2H:
        CU(q_cuMemcpyDtoHAsync(c->host, card.out, c->bytes, card.stream));
        break;
    case BOTH: /* the second stream starts with the first and is waited for by it */
        CU(q_cuEventRecord(card.event[60], card.stream));
        CU(q_cuStreamWaitEvent(card.stream2, card.event[60], 0));
        CU(q_cuMemcpyHtoDAsync(card.in, c->host, c->bytes, card.stream));
        CU(q_cuMemcpyDtoHAsync(c->host2, card.out, c->bytes, card.stream2));
        CU(q_cuEventRecord(card.event[61], card.stream2));
        CU(q_cuStreamWaitEvent(card.stream, card.event[61], 0));
        break;
    case D2D:
        CU(q_cuMemcpyDtoDAsync(card.out, card.in, c->bytes, card.stream));
        break;
    case PAGEABLE_H2D:
        CU(q_cuMemcpyHtoD(card.in, c->host, c->bytes));
        break;
    default:
        CU(q_cuMemcpyDtoH(c->host, card.out, c->bytes));
    }
    return 0;
}

static int part_bandwidth(void)
{
    static const size_t sizes[] = {1 * MIB, 16 * MIB, 256 * MIB, 1024 * MIB};
    struct gemm g;
    cublasLtHandle_t blas;
    void *pinned, *pinned2, *plain = malloc(256 * MIB);
    if (plain == NULL)
        return bad("out of memory");
    memset(plain, 1, 256 * MIB);
    TRY(card_open(1024 * MIB, 1024 * MIB, 64 * MIB));
    CU(q_cuMemHostAlloc(&pinned, 256 * MIB, 0));
    CU(q_cuMemHostAlloc(&pinned2, 256 * MIB, 0));
    memset(pinned, 2, 256 * MIB);
    memset(pinned2, 3, 256 * MIB);
    text("GB/s (10^9), median. A copy on the card of up to 16 MiB stays in the L2 cache.\n\n| copy | 1 MiB | 16 MiB | "
         "256 MiB "
         "| 1 GiB |\n|---|---|---|---|---|\n");
    for (int k = 0; k < COPIES; k++) {
        text("| %s |", copy_names[k]);
        for (int s = 0; s < COUNT(sizes); s++) {
            struct copy c = {k, sizes[s], k >= PAGEABLE_H2D ? plain : pinned, pinned2};
            double us = 0, v[7];
            if (k != D2D && sizes[s] > 256 * MIB) {
                text(" |");
                continue;
            }
            if (k >= PAGEABLE_H2D) { /* the call itself copies: the host's clock */
                for (int i = -1; i < COUNT(v); i++) {
                    double start = now_s();
                    TRY(copy_go(&c, 0));
                    CU(q_cuCtxSynchronize());
                    if (i >= 0)
                        v[i] = 1e6 * (now_s() - start);
                }
                us = median(v, COUNT(v));
            } else {
                TRY(time_us(copy_go, &c, 0, &us));
            }
            double rate = 1e-3 * (double)sizes[s] * (k == BOTH || k == D2D ? 2 : 1) / us;
            text(" %.1f |", rate);
            row("{\"part\":\"bandwidth\",\"copy\":\"%s\",\"bytes\":%zu,\"us\":%.2f,\"gb_per_s\":%.2f}", copy_names[k],
                sizes[s], us, rate);
        }
        text("\n");
    }
    double us = 0;
    TRY(fill_random(card.in, card.in_bytes, 1, 3)); /* the copies put constants there */
    BLAS(q_cublasLtCreate(&blas));
    TRY(gemm_open(&g, blas, 8192));
    TRY(time_us(gemm_go, &g, 0, &us));
    text("\nProduct of two 8192 x 8192 bf16 matrices by cuBLASLt, random data: %.0f us, %.0f TFLOP/s.\n", us,
         2e-6 * 8192.0 * 8192.0 * 8192.0 / us);
    row("{\"part\":\"bandwidth\",\"gemm_bf16_8192_us\":%.1f}", us);
    return 0;
}

/* ---- part graphs ---- */

struct mixed { /* a convolution, an own kernel, a product and another own kernel a step */
    struct runner run;
    struct gemm gemm;
};

static int mixed_go(void *context, int i)
{
    struct mixed *m = context;
    TRY(runner_go(&m->run, i));
    TRY(tiny_go(NULL, i));
    TRY(gemm_go(&m->gemm, i));
    return tiny_go(NULL, i);
}

/* Launches a graph 1,000 times and prints what the host and the card gained meanwhile. */
static int graph_row(const char *name, launcher f, void *context, int steps)
{
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes = 0;
    enum { LAUNCHES = 1000 };
    static const int ends[] = {10, 100, LAUNCHES};
    for (int i = 0; i < 2; i++) /* modules are loaded at the first run, not inside a capture */
        TRY(f(context, i));
    CU(q_cuStreamSynchronize(card.stream));
    double start = now_s(), host = 0;
    TRY(capture(f, context, steps, &graph, &nodes));
    CU(q_cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(q_cuGraphUpload(exec, card.stream));
    CU(q_cuGraphLaunch(exec, card.stream));
    CU(q_cuStreamSynchronize(card.stream));
    double made = now_s() - start;
    uint64_t before = 0, after = 0;
    int whole = 0;
    long mallocs[3], frees[3], maps[3], ioctls[3];
    float ms = 0;
    TRY(nvml_used(&before, &whole));
    CU(q_cuEventRecord(card.event[0], card.stream));
    for (int e = 0, i = 0; e < COUNT(ends); e++) {
        mallocs[e] = -atomic_load(&malloc_count);
        frees[e] = -atomic_load(&free_count);
        maps[e] = -atomic_load(&mmap_count);
        ioctls[e] = -atomic_load(&ioctl_count);
        double t = now_s();
        for (; i < ends[e]; i++)
            CU(q_cuGraphLaunch(exec, card.stream));
        host = (now_s() - t) / (double)(ends[e] - (e > 0 ? ends[e - 1] : 0));
        mallocs[e] += atomic_load(&malloc_count);
        frees[e] += atomic_load(&free_count);
        maps[e] += atomic_load(&mmap_count);
        ioctls[e] += atomic_load(&ioctl_count);
    }
    CU(q_cuEventRecord(card.event[1], card.stream));
    CU(q_cuStreamSynchronize(card.stream));
    TRY(nvml_used(&after, &whole));
    CU(q_cuEventElapsedTime(&ms, card.event[0], card.event[1]));
    start = now_s(); /* one at a time: what a lone step takes from the call to the end */
    for (int i = 0; i < 50; i++) {
        CU(q_cuGraphLaunch(exec, card.stream));
        CU(q_cuStreamSynchronize(card.stream));
    }
    double lone = 1e6 * (now_s() - start) / 50, each = 1e3 * (double)ms / LAUNCHES;
    CU(q_cuGraphExecDestroy(exec));
    CU(q_cuGraphDestroy(graph));
    text("| %s | %zu | %.1f | %.2f | %.3f | %.1f | %.1f | %ld, %ld, %ld | %ld | %ld, %ld, %ld | %ld, %ld, %ld | "
         "%+.2f%s |\n",
         name, nodes, 1e3 * made, each, each / (double)nodes, 1e6 * host, lone, mallocs[0], mallocs[1], mallocs[2],
         mallocs[0] + mallocs[1] + mallocs[2] - frees[0] - frees[1] - frees[2], maps[0], maps[1], maps[2], ioctls[0],
         ioctls[1], ioctls[2], ((double)after - (double)before) / (double)MIB, whole ? " (whole card)" : "");
    row("{\"part\":\"graphs\",\"graph\":\"%s\",\"nodes\":%zu,\"made_ms\":%.2f,\"launch_us\":%.3f,\"node_us\":%.4f,"
        "\"host_us\":%.3f,\"lone_us\":%.2f,\"mallocs\":[%ld,%ld,%ld],\"frees\":[%ld,%ld,%ld],\"mmaps\":[%ld,%ld,%ld],"
        "\"ioctls\":[%ld,%ld,%ld],\"bytes_before\":%llu,\"bytes_after\":%llu,\"whole_card\":%d}",
        name, nodes, 1e3 * made, each, each / (double)nodes, 1e6 * host, lone, mallocs[0], mallocs[1], mallocs[2],
        frees[0], frees[1], frees[2], maps[0], maps[1], maps[2], ioctls[0], ioctls[1], ioctls[2],
        (unsigned long long)before, (unsigned long long)after, whole);
    return 0;
}

static int part_graphs(void)
{
    static struct job job, compiled;
    struct mixed m;
    cublasLtHandle_t blas;
    TRY(card_open(128 * MIB, 128 * MIB, 128 * MIB));
    TRY(nvml_open());
    struct asker a = {.handle = card.handle};
    job = (struct job){.conv = {8, 28, 28, 64, 64, 3, 1, 1}, .type = BF16, .plans_a = 1};
    TRY(job_graph(&job, &a));
    TRY(job_ask(&job, &a, CUDNN_HEUR_MODE_A));
    build_first(&job, &a, 1, 0, fits_precompiled);
    TRY(runner_open(&job, &m.run, 1));
    m.run.plan = NULL;
    for (int i = 0; i < job.configs; i++)
        if (runnable(&job.config[i]))
            m.run.plan = job.config[i].plan;
    if (m.run.plan == NULL)
        return bad("no precompiled plan was built");
    BLAS(q_cublasLtCreate(&blas));
    TRY(gemm_open(&m.gemm, blas, 512));
    text("1,000 launches; mallocs, mmaps and ioctls of the whole process during launches 1 to 10, to 100, to 1,000.\n\n"
         "| graph | nodes | made, ms | launch, us | node, us | host, us a launch | alone, us | mallocs | not freed | "
         "mmaps | "
         "ioctls | NVML, MiB |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    TRY(graph_row("1 tiny kernel", tiny_go, NULL, 1));
    TRY(graph_row("6 tiny kernels", tiny_go, NULL, 6));
    TRY(graph_row("1,000 tiny kernels", tiny_go, NULL, 1000));
    TRY(graph_row("25 x convolution, kernel, product, kernel", mixed_go, &m, 25));
    compiled = (struct job){.conv = job.conv, .type = BF16, .fuse = BIAS_F32_RELU, .plans_a = 1};
    if (job_prepare(&compiled, &a) == 0)
        for (int i = 0; i < compiled.configs; i++)
            if (compiled.config[i].compiled && runnable(&compiled.config[i])) {
                TRY(runner_open(&compiled, &m.run, 1));
                m.run.plan = compiled.config[i].plan;
                TRY(graph_row("the same with a convolution compiled at run time", mixed_go, &m, 25));
                break;
            }
    return 0;
}

/* ---- parts workspaces and workspaces-offline ---- */

enum { DRAWN = 40 };

static void draw_convolutions(struct job jobs[DRAWN])
{
    static const int channels[] = {3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 512, 1024};
    static const int batches[] = {1, 4, 8, 16, 32, 64}, sides[] = {7, 14, 15, 28, 33, 56, 64, 112, 128};
    static const int filters[] = {1, 3, 3, 3, 5, 7};
    random_state = 20260101;
    for (int i = 0; i < DRAWN; i++) {
        struct conv c = {.n = batches[random_next() % COUNT(batches)], .h = sides[random_next() % COUNT(sides)]};
        c.w = c.h;
        c.c = channels[random_next() % COUNT(channels)];
        c.k = channels[1 + random_next() % (COUNT(channels) - 1)];
        c.r = filters[random_next() % COUNT(filters)];
        c.stride = 1 + (int)(random_next() % 3 == 0);
        c.pad = c.r / 2;
        jobs[i] = (struct job){.conv = c, .direction = i % 3, .type = i / 3 % 2};
    }
}

static int ask_drawn(struct job *jobs, const struct asker *a)
{
    for (int i = 0; i < DRAWN; i++) {
        struct job *j = &jobs[i];
        if (job_graph(j, a) != 0 || job_ask(j, a, CUDNN_HEUR_MODE_A) != 0)
            snprintf(j->error, sizeof j->error, "%.290s", why);
        else
            j->ok = true;
    }
    return 0;
}

/* With a card hidden or absent. Lines for a parent process go to stdout, if asked for. */
static int offline(int lines)
{
    static struct job jobs[DRAWN];
    const char *source = "";
    struct asker a = {0};
    int listed = 0, compiled = 0, failed = 0, differ = 0, built = 0;
    TRY(open_dnn());
    TRY(described_device(&a.prop, &source, NULL));
    if (lines)
        printf("source %s; cuDNN %zu\n", source, q_cudnnGetVersion());
    draw_convolutions(jobs);
    double start = now_s();
    TRY(ask_drawn(jobs, &a));
    double seconds = now_s() - start;
    if (!lines)
        text("Described by: %s. cuDNN %zu.\n\n| input, filters | type | direction | listed | first engine | its "
             "workspace, bytes | "
             "its plan's | largest |\n|---|---|---|---|---|---|---|---|\n",
             source, q_cudnnGetVersion());
    for (int i = 0; i < DRAWN; i++) {
        struct job *j = &jobs[i];
        char name[100];
        int64_t largest = 0;
        failed += !j->ok;
        for (int k = 0; k < j->configs; k++) {
            const struct config *c = &j->config[k];
            if (lines)
                printf("config %d %lld %lld %d %s\n", i, (long long)c->id, (long long)c->workspace, c->compiled,
                       c->knobs[0] != 0 ? c->knobs : "-");
            largest = MAX2(largest, c->workspace);
            compiled += c->compiled;
            listed++;
        }
        if (lines)
            continue;
        build_first(j, &a, 1, 0, fits_precompiled);
        const struct config *first = j->configs > 0 ? &j->config[0] : NULL;
        long long plan = -1;
        for (int k = 0; k < j->configs; k++)
            if (j->config[k].built) {
                built++;
                differ += j->config[k].plan_workspace != j->config[k].workspace;
                plan = k == 0 ? (long long)j->config[k].plan_workspace : -1;
            }
        text("| %s | %s | %s | %d | %lld | %lld | %lld | %lld |%.100s\n", job_name(j, name, sizeof name),
             type_names[j->type], direction_names[j->direction], j->configs, first != NULL ? (long long)first->id : -1,
             first != NULL ? (long long)first->workspace : -1, plan, (long long)largest, j->error);
        row("{\"part\":\"workspaces-offline\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"listed\":%d,"
            "\"engine\":%lld,\"workspace_bytes\":%lld,\"largest_bytes\":%lld,\"error\":\"%s\"}",
            name, type_names[j->type], direction_names[j->direction], j->configs,
            first != NULL ? (long long)first->id : -1, first != NULL ? (long long)first->workspace : -1,
            (long long)largest, j->error);
    }
    if (!lines) {
        text("\n%d configurations, %d of them compiled at run time; %d plans built without a card, %d with another "
             "workspace than "
             "their configuration; %.2f s for %d lists.\n",
             listed, compiled, built, differ, seconds, DRAWN);
        row("{\"part\":\"workspaces-offline\",\"listed\":%d,\"compiled\":%d,\"plans\":%d,\"differ\":%d,\"seconds\":%."
            "2f}",
            listed, compiled, built, differ, seconds);
    }
    for (int i = 0; i < DRAWN; i++)
        job_free(&jobs[i]);
    return failed == 0 ? 0 : bad("%d of %d graphs were refused", failed, DRAWN);
}

/* ---- part workspaces-offline against a card's own answers ---- */

/*
 * A file of answers from a card (tests/fixtures/cuda/h200-convolutions.txt) against the described device's. Two things
 * are known to differ (docs/bench/cuda.md). Engines that ask cuBLASLt refuse without a card. Kernels that share out the
 * reduction among multiprocessors (stream-K) ask the driver how many clusters of blocks run at once, and take 18
 * multiprocessors where there is no driver: for them the rule below bounds the card's figure from above.
 */
static int64_t knob_value(const char *knobs, cudnnBackendKnobType_t type)
{
    char name[20];
    snprintf(name, sizeof name, "k%d=", (int)type);
    for (const char *p = knobs; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, strlen(name)) == 0)
            return atoll(p + strlen(name));
    }
    return -1;
}

static bool shares_reduction(const char *knobs)
{
    return knob_value(knobs, CUDNN_KNOB_TYPE_TILE_CGA_M) >= 0 && knob_value(knobs, CUDNN_KNOB_TYPE_WORKSPACE) >= 0;
}

/* The most that the card may answer, given what the described device answers. A workspace knob other than 0 forbids
 * partial tiles: the card then needs what is described, or a counter less. */
static int64_t bound(const struct config *c, int multiprocessors)
{
    enum { TILE = 256 * 128 * 4, COUNTERS = 2 * 4 }; /* bytes: the largest tile of partial sums, and two counters */
    if (!shares_reduction(c->knobs) || knob_value(c->knobs, CUDNN_KNOB_TYPE_WORKSPACE) != 0)
        return c->workspace;
    return c->workspace + (int64_t)multiprocessors * (TILE + COUNTERS);
}

enum { GROUPS = 200 };
struct group { /* configurations of one engine */
    int type, direction;
    long long engine;
    int configs, refused, equal, above, smaller; /* above: the bound; smaller: the card's figure */
    int64_t least, most;                         /* card's figure less the described one's */
};

static struct group *group_of(struct group *groups, int *count, const struct job *j, long long engine)
{
    for (int i = 0; i < *count; i++)
        if (groups[i].type == j->type && groups[i].direction == j->direction && groups[i].engine == engine)
            return &groups[i];
    if (*count == GROUPS)
        return NULL;
    groups[*count] = (struct group){.type = j->type, .direction = j->direction, .engine = engine};
    return &groups[(*count)++];
}

static int read_job(const char *line, struct job *j)
{
    char type[10], direction[10];
    struct conv c;
    *j = (struct job){0};
    if (sscanf(line, "conv %dx%dx%dx%d %d %dx%*d/%d %9s %9s", &c.n, &c.h, &c.w, &c.c, &c.k, &c.r, &c.stride, type,
               direction) != 9)
        return bad("no convolution: %.100s", line);
    c.pad = c.r / 2;
    j->conv = c;
    j->type = strcmp(type, type_names[BF16]) == 0 ? BF16 : F32;
    while (j->direction < WEIGHT_GRADIENT && strcmp(direction, direction_names[j->direction]) != 0)
        j->direction++;
    return 0;
}

static int compare_config(const char *line, const struct job *j, int *last, struct group *groups, int *count,
                          int multiprocessors, bool *in_order)
{
    long long engine, workspace;
    char knobs[200];
    if (sscanf(line, "%lld %199s %lld", &engine, knobs, &workspace) != 3)
        return bad("no configuration: %.100s", line);
    struct group *g = group_of(groups, count, j, engine);
    if (g == NULL)
        return bad("more than %d engines", GROUPS);
    int i = 0;
    while (i < j->configs &&
           (j->config[i].id != engine || strcmp(j->config[i].knobs[0] != 0 ? j->config[i].knobs : "-", knobs) != 0))
        i++;
    g->configs++;
    if (i == j->configs) {
        g->refused++;
        return 0;
    }
    const struct config *c = &j->config[i];
    *in_order &= i > *last;
    *last = i;
    g->equal += c->workspace == workspace;
    g->smaller += c->workspace < workspace;
    g->above += workspace > bound(c, multiprocessors);
    g->least = MIN2(g->least, workspace - c->workspace);
    g->most = MAX2(g->most, workspace - c->workspace);
    return 0;
}

static int compare_report(const struct group *groups, int count, int lists, int ordered)
{
    int configs = 0, refused = 0, equal = 0, above = 0;
    text("\nAgainst the card's answers in %s.\n\n| type | direction | engine | configurations | not listed without a "
         "card "
         "| equal | card less described, bytes | above the bound |\n|---|---|---|---|---|---|---|---|\n",
         card_file);
    for (int i = 0; i < count; i++) {
        const struct group *g = &groups[i];
        configs += g->configs;
        refused += g->refused;
        equal += g->equal;
        above += g->above;
        row("{\"part\":\"workspaces-offline\",\"against\":\"card\",\"type\":\"%s\",\"direction\":\"%s\",\"engine\":%"
            "lld,"
            "\"configs\":%d,\"not_listed\":%d,\"equal\":%d,\"smaller\":%d,\"above\":%d,\"least\":%lld,\"most\":%lld}",
            type_names[g->type], direction_names[g->direction], g->engine, g->configs, g->refused, g->equal, g->smaller,
            g->above, (long long)g->least, (long long)g->most);
        if (g->equal < g->configs)
            text("| %s | %s | %lld | %d | %d | %d | %lld to %lld | %d |\n", type_names[g->type],
                 direction_names[g->direction], g->engine, g->configs, g->refused, g->equal, (long long)g->least,
                 (long long)g->most, g->above);
    }
    text(
        "\n%d configurations: %d equal, %d differ and are within the bound, %d above it, %d not listed without a card. "
        "Engines whose figures are all equal are not shown. %d of %d lists keep the card's order.\n",
        configs, equal, configs - equal - above - refused, above, refused, ordered, lists);
    row("{\"part\":\"workspaces-offline\",\"against\":\"card\",\"configs\":%d,\"equal\":%d,\"above\":%d,\"not_listed\":"
        "%d,\"lists\":%d,\"in_order\":%d}",
        configs, equal, above, refused, lists, ordered);
    if (configs == 0)
        return bad("%.200s has no configuration", card_file);
    return above == 0 && ordered == lists ? 0
                                          : bad("%d above the bound, %d of %d lists in order", above, ordered, lists);
}

static int compare_with_card(const struct asker *a, int multiprocessors)
{
    static struct group groups[GROUPS];
    static struct job j;
    char line[400];
    int count = 0, lists = 0, ordered = 0, last = -1, result = 0;
    bool in_order = true;
    FILE *f = fopen(card_file, "r");
    if (f == NULL)
        return bad("%.200s: %s", card_file, strerror(errno));
    while (result == 0 && fgets(line, sizeof line, f) != NULL) {
        if (line[0] == '#')
            continue;
        if (strncmp(line, "conv ", 5) != 0) {
            result = lists == 0 ? bad("%.200s: a configuration without a convolution", card_file)
                                : compare_config(line, &j, &last, groups, &count, multiprocessors, &in_order);
            continue;
        }
        ordered += lists > 0 && in_order;
        job_free(&j);
        if (read_job(line, &j) != 0 || job_graph(&j, a) != 0 || job_ask(&j, a, CUDNN_HEUR_MODE_A) != 0)
            result = -1;
        lists++;
        last = -1;
        in_order = true;
    }
    fclose(f);
    job_free(&j);
    ordered += lists > 0 && in_order;
    return result != 0 ? result : compare_report(groups, count, lists, ordered);
}

static int part_workspaces_offline(void)
{
    TRY(offline(0));
    if (card_file[0] == 0)
        return 0;
    const char *source = "";
    struct asker a = {0};
    int multiprocessors = 0;
    TRY(described_device(&a.prop, &source, &multiprocessors));
    return compare_with_card(&a, multiprocessors);
}

static int part_workspaces(void)
{
    static struct job jobs[DRAWN];
    static int at[DRAWN];
    char command[4000], line[600];
    int same = 0, differ = 0, lists = 0, extra = 0, plans = 0, plans_differ = 0;
    TRY(card_open(MIB, MIB, 0));
    struct asker a = {.handle = card.handle};
    draw_convolutions(jobs);
    TRY(ask_drawn(jobs, &a));
    /* the other side: a process that sees no card, told about it by the JSON alone */
    snprintf(command, sizeof command, "CUDA_VISIBLE_DEVICES=-1 '%s' --offline-lines '%s' '%s'", self_path, out_dir,
             prop_file);
    FILE *child = popen(command, "r");
    if (child == NULL)
        return bad("popen: %s", strerror(errno));
    bool list_differs[DRAWN] = {0};
    while (fgets(line, sizeof line, child) != NULL) {
        int i, compiled;
        long long id, workspace;
        char knobs[300], name[100];
        if (strncmp(line, "source ", 7) == 0)
            text(
                "Described to the process without a card by: %s\n"
                "| input, filters | type | direction | rank | on the card: engine, bytes, knobs | without: the same |\n"
                "|---|---|---|---|---|---|\n",
                line + 7);
        if (sscanf(line, "config %d %lld %lld %d %299s", &i, &id, &workspace, &compiled, knobs) != 5 || i < 0 ||
            i >= DRAWN)
            continue;
        struct job *j = &jobs[i];
        const struct config *c = at[i] < j->configs ? &j->config[at[i]] : NULL;
        int rank = at[i]++;
        if (c == NULL) {
            extra++;
            list_differs[i] = true;
            continue;
        }
        bool equal = c->id == id && c->workspace == workspace && strcmp(c->knobs[0] != 0 ? c->knobs : "-", knobs) == 0;
        same += equal;
        differ += !equal;
        if (!equal && !list_differs[i]) {
            text("| %s | %s | %s | %d | %lld, %lld, %s | %lld, %lld, %s |\n", job_name(j, name, sizeof name),
                 type_names[j->type], direction_names[j->direction], rank, (long long)c->id, (long long)c->workspace,
                 c->knobs, id, workspace, knobs);
            row("{\"part\":\"workspaces\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"rank\":%d,\"card\":[%"
                "lld,%lld],"
                "\"described\":[%lld,%lld],\"card_knobs\":\"%s\",\"described_knobs\":\"%s\"}",
                name, type_names[j->type], direction_names[j->direction], rank, (long long)c->id,
                (long long)c->workspace, id, workspace, c->knobs, knobs);
        }
        list_differs[i] |= !equal;
    }
    int status = pclose(child), refused = 0;
    for (int i = 0; i < DRAWN; i++) {
        struct job *j = &jobs[i];
        refused += !j->ok;
        list_differs[i] |= at[i] < j->configs;
        extra += MAX2(0, j->configs - at[i]);
        lists += !list_differs[i];
        build_first(j, &a, 2, 0, fits_precompiled);
        for (int k = 0; k < j->configs; k++)
            if (j->config[k].built) {
                plans++;
                plans_differ += j->config[k].plan_workspace != j->config[k].workspace;
            }
        char name[100];
        row("{\"part\":\"workspaces\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"listed\":%d,\"same_"
            "list\":%d,"
            "\"error\":\"%s\"}",
            job_name(j, name, sizeof name), type_names[j->type], direction_names[j->direction], j->configs,
            !list_differs[i], j->error);
    }
    text("\n%d of %d lists equal (engine, knobs and workspace, in order); %d configurations equal, %d differ, %d on "
         "one side only; "
         "%d plans built on the card, %d with another workspace than their configuration. The table shows the first "
         "difference "
         "of a list.\n",
         lists, DRAWN, same, differ, extra, plans, plans_differ);
    row("{\"part\":\"workspaces\",\"lists_equal\":%d,\"lists\":%d,\"configs_equal\":%d,\"configs_differ\":%d,\"one_"
        "side\":%d,"
        "\"plans\":%d,\"plans_differ\":%d}",
        lists, DRAWN, same, differ, extra, plans, plans_differ);
    for (int i = 0; i < DRAWN; i++)
        job_free(&jobs[i]);
    if (status != 0)
        return bad("the process without a card failed (its lines are above, on stderr)");
    return lists == DRAWN && refused == 0 ? 0 : bad("%d of %d lists equal, %d graphs refused", lists, DRAWN, refused);
}

/* ---- main ---- */

static const struct {
    const char *name, *title;
    int (*run)(void);
} parts[] = {{"prop", "The card and its libraries", part_prop},
             {"kernels", "Own kernels by NVRTC (no card needed)", part_kernels},
             {"hwio", "Filters in HWIO strides", part_hwio},
             {"engines", "Engines for ResNet50 and S9", part_engines},
             {"fused", "Fused against separate", part_fused},
             {"nvml", "Fixed cost by NVML", part_nvml},
             {"bandwidth", "Copies and the matrix units", part_bandwidth},
             {"graphs", "Graph launches", part_graphs},
             {"workspaces", "Workspaces on the card and without it", part_workspaces},
             {"workspaces-offline", "Workspaces of a described device (no card needed)", part_workspaces_offline}};

static int usage(void)
{
    fprintf(stderr, "usage: cuda_probe OUTDIR PART [--prop FILE] [--card FILE]\nparts:");
    for (int i = 0; i < COUNT(parts); i++)
        fprintf(stderr, " %s", parts[i].name);
    fprintf(stderr, "\n");
    return 2;
}

static FILE *append(const char *name)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", out_dir, name);
    FILE *f = fopen(path, "a");
    if (f == NULL)
        fprintf(stderr, "cuda_probe: %s: %s\n", path, strerror(errno));
    return f;
}

int main(int argc, char **argv)
{
    ssize_t n = readlink("/proc/self/exe", self_path, sizeof self_path - 1);
    if (n <= 0)
        return usage();
    if (argc == 2 && strcmp(argv[1], "--nvml-child") == 0) {
        if (nvml_child() == 0)
            return 0;
        printf("%s\n", why);
        return 1;
    }
    if (argc == 4 && strcmp(argv[1], "--offline-lines") == 0) {
        snprintf(out_dir, sizeof out_dir, "%s", argv[2]);
        snprintf(prop_file, sizeof prop_file, "%s", argv[3]);
        if (offline(1) == 0)
            return 0;
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (argc < 3 || argc % 2 == 0)
        return usage();
    snprintf(out_dir, sizeof out_dir, "%s", argv[1]);
    for (int i = 3; i < argc; i += 2) {
        char *file = strcmp(argv[i], "--prop") == 0 ? prop_file : strcmp(argv[i], "--card") == 0 ? card_file : NULL;
        if (file == NULL)
            return usage();
        snprintf(file, sizeof prop_file, "%s", argv[i + 1]);
    }
    for (int i = 0; i < COUNT(parts); i++) {
        if (strcmp(argv[2], parts[i].name) != 0)
            continue;
        if ((jsonl = append("probe.jsonl")) == NULL || (md = append("probe.md")) == NULL)
            return 2;
        double start = now_s();
        text("\n## %s (`%s`)\n\n", parts[i].title, parts[i].name);
        int result = parts[i].run();
        double seconds = now_s() - start;
        text("\n%s: %s, %.1f s%s%s\n", parts[i].name, result == 0 ? "PASS" : "FAIL", seconds, result == 0 ? "" : ": ",
             result == 0 ? "" : why);
        row("{\"part\":\"%s\",\"result\":\"%s\",\"seconds\":%.1f,\"why\":\"%s\"}", parts[i].name,
            result == 0 ? "PASS" : "FAIL", seconds, result == 0 ? "" : why);
        printf("%s: %s, %.1f s%s%s\n", parts[i].name, result == 0 ? "PASS" : "FAIL", seconds, result == 0 ? "" : ": ",
               result == 0 ? "" : why);
        fflush(NULL);
        _exit(result == 0 ? 0 : 1); /* libraries' exit handlers add nothing here and may hang after a lost context */
    }
    return usage();
}
