/* run.c: plans, products and captured graphs on the card. */
#include "convolution.h"

/* Places a job's tensors, inputs in `in` and results in `out`, in as many sets as it takes to leave the L2 cache. */
int runner_open(struct job *j, struct runner *r, int most_sets)
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

int runner_go(void *context, int i)
{
    struct runner *r = context;
    DNN(q_cudnnBackendExecute(r->handle, r->plan, r->pack[i % r->sets]));
    return 0;
}

bool runnable(struct config *c)
{
    if (c->built && (size_t)c->plan_workspace > card.work_bytes)
        snprintf(c->note, sizeof c->note, "workspace above the probe's limit");
    return c->built && (size_t)c->plan_workspace <= card.work_bytes;
}

struct config *fastest(struct job *j, bool (*fits)(const struct config *c), int most_a)
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
int job_time(struct job *j, struct runner *r, int most, double deadline)
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

const char *job_name(const struct job *j, char *name, size_t size)
{
    const struct conv *c = &j->conv;
    snprintf(name, size, "%dx%dx%dx%d %d %dx%d/%d", c->n, c->h, c->w, c->c, c->k, c->r, c->r, c->stride);
    return name;
}

int gemm_open(struct gemm *g, cublasLtHandle_t handle, int n)
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

int gemm_go(void *context, int i)
{
    struct gemm *g = context;
    float one = 1, zero = 0;
    (void)i;
    BLAS(q_cublasLtMatmul(g->handle, g->operation, &one, (void *)g->a, g->layout, (void *)g->b, g->layout, &zero,
                          (void *)g->c, g->layout, (void *)g->c, g->layout, &g->algorithm, (void *)card.work,
                          g->workspace_bytes, (cudaStream_t)card.stream));
    return 0;
}

int tiny_go(void *context, int i)
{
    CUdeviceptr p = card.out + card.out_bytes - 4096;
    void *args[] = {&p};
    (void)context;
    (void)i;
    return launch(K_TINY, 1, 128, 0, args);
}

/* Captures `steps` calls of f on the stream. */
int capture(launcher f, void *context, int steps, CUgraph *graph, size_t *nodes)
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
