/* card.c: own kernels, the card with its memory, and how time is taken on it. */
#include "probe.h"

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

int compile_kernels(int capability, char **cubin, size_t *size)
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

struct card card;

int card_context(void)
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

int card_memory(size_t in, size_t out, size_t work)
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

int card_kernels(const char *cubin)
{
    CU(q_cuModuleLoadData(&card.module, cubin));
    for (int i = 0; i < KERNELS; i++)
        CU(q_cuModuleGetFunction(&card.kernel[i], card.module, kernel_names[i]));
    return 0;
}

int launch(int kernel, size_t blocks, int threads, int shared, void **args)
{
    CU(q_cuLaunchKernel(card.kernel[kernel], (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, (unsigned)shared,
                        card.stream, args, NULL));
    return 0;
}

int fill_random(CUdeviceptr p, size_t bytes, int bf16, uint64_t seed)
{
    uint64_t n = bytes / 4;
    void *args[] = {&p, &n, &seed, &bf16};
    TRY(launch(K_FILL, 4096, 256, 0, args));
    CU(q_cuStreamSynchronize(card.stream));
    return 0;
}

/* Everything but NVML: context, own kernels, cuDNN's handle and memory with random inputs. */
int card_open(size_t in, size_t out, size_t work)
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

int nvml_open(void)
{
    TRY(open_nvml());
    int r = q_nvmlInit_v2();
    if (r != 0)
        return bad("nvmlInit_v2: code %d", r);
    return 0;
}

/* Bytes of this process by NVML; where the list of processes hides it, of the whole card (then *whole is set). */
int nvml_used(uint64_t *bytes, int *whole)
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

double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, order_doubles);
    return n % 2 != 0 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

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
int time_us(launcher f, void *context, double hopeless_us, double *us)
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
