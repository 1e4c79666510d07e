/* part_graphs.c: launches of captured graphs, and what the process allocates meanwhile. */
#include "convolution.h"

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

int part_graphs(void)
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
