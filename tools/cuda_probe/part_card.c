/* part_card.c: parts prop, kernels (no card needed) and bandwidth. */
#include "convolution.h"

int part_prop(void)
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

int part_kernels(void)
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

int part_bandwidth(void)
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
