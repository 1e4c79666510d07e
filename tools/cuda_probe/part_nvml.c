/* part_nvml.c: what each step of a start costs by NVML. */
#include "convolution.h"

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

int nvml_child(void)
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

int part_nvml(void)
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
