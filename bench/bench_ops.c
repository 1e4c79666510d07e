/*
 * bench_ops.c: what each operation of a training step takes, beside what the planner was told it would.
 *
 *     bench_ops MODEL BATCH [threads N] [pieces N] [limit BYTES] [rounds N] [all]
 *
 * The step is planned and executed as `memfit train` does it (same backend, same executor, an arena of its own), on
 * numbers that mean nothing. The time of an operation is the median over the rounds, so that it is one in its place in
 * the step: with what the operations before it left in the caches. By kind, or with `all` one line for every operation
 * (tab-separated, to be fitted): kind, layer, recomputed, flops, bytes, estimated us, measured us,
 * shapes, places (offset+bytes of inputs, after > of outputs).
 */
#include "base/os.h"
#include "graph/kinds/kinds.h"
#include "model/model.h"
#include "ops/ops.h"
#include "ops/team.h"
#include "model/lower/model_graphs.h"
#include "train/execute.h"
#include "train/reserve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 1000, TRAIN = 0 };

typedef struct bench {
    const mf_plan *plan;
    const mf_graph *graph;
    uint64_t began;
    float *took; /* us, by step and run: step * runs + run */
    uint32_t runs, run;
} bench;

static void hook(void *ctx, uint32_t phase, uint32_t step, bool begins)
{
    bench *b = ctx;
    uint64_t now = mf_os_now_ns();
    if (phase == TRAIN && !begins && b->run < b->runs)
        b->took[(size_t)step * b->runs + b->run] = (float)((double)(now - b->began) * 1e-3);
    b->began = mf_os_now_ns();
}

static memfit_status fill(void *ctx, uint32_t feed, void *address, memfit_error *err)
{
    (void)err;
    const mf_graph *graph = ((bench *)ctx)->graph;
    const mf_tensor *t = &graph->tensors[graph->feeds[feed].tensor];
    uint64_t n = mf_shape_count(&t->shape), bytes = mf_dtype_bytes(t->dtype);
    memset(address, 0, n * bytes);
    if (t->dtype == MF_F32)
        for (uint64_t i = 0; i < n; i++)
            ((float *)address)[i] = (float)(i * 2654435761u % 1000) * 1e-3f;
    return MEMFIT_OK;
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static memfit_status run(bench *b, mf_executor *x, unsigned rounds, memfit_error *err)
{
    const mf_plan *plan = b->plan;
    memfit_status status = MEMFIT_OK;
    for (unsigned round = 0; round < rounds + 2 && status == MEMFIT_OK; round++) {
        mf_run_scalars s = {.seed = 1,
                            .step = round,
                            .batch_samples = (double)plan->batch,
                            .learning_rate = 1e-6,
                            .loss_scale = 1,
                            .iteration = round};
        status = mf_executor_write_scalars(x, &s, err);
        if (round == 2)
            b->run = 0; /* the first two only warm up */
        for (uint32_t p = 0; p < plan->phase_count && status == MEMFIT_OK; p++) {
            const mf_phase *phase = &plan->phases[p];
            if (phase->role != MF_PHASE_TRAIN && phase->role != MF_PHASE_TRAIN_REST)
                continue;
            b->graph = phase->graph;
            for (int64_t i = 0; i < phase->repeat && status == MEMFIT_OK; i++) {
                bool rest = p + 1 < plan->phase_count && plan->phases[p + 1].role == MF_PHASE_TRAIN_REST;
                mf_piece piece = {p == TRAIN && i == 0, i + 1 == phase->repeat && !rest, false, false};
                status = mf_executor_run(x, p, &s, piece, fill, b, err);
                if (p == TRAIN)
                    b->run++;
            }
        }
    }
    return status;
}

static double median(bench *b, uint32_t step)
{
    qsort(b->took + (size_t)step * b->runs, b->runs, sizeof(float), by_size);
    return b->took[(size_t)step * b->runs + b->runs / 2];
}

/* An operation that is due in one piece only: its time is the largest, not the median. */
static double time_of(bench *b, uint32_t step, const mf_op *op, int64_t pieces)
{
    double middle = median(b, step);
    const float *sorted = b->took + (size_t)step * b->runs;
    return op->when == MF_ALWAYS || pieces == 1 ? middle
                                                : sorted[b->runs - 1 - (size_t)((int64_t)b->runs / pieces / 2)];
}

static void print_operation(const bench *b, const mf_step *step, const mf_op *op, double told, double took)
{
    double flops, bytes;
    mf_op_cost(b->graph, op, &flops, &bytes);
    printf("%s\t%s\t%d\t%.0f\t%.0f\t%.1f\t%.1f\t", mf_kind_name(op->kind), b->graph->layers[op->layer].name,
           step->recomputed, flops, bytes, told, took);
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t id = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        printf("%s", i == op->in_count ? ">" : i ? "," : "");
        for (uint32_t d = 0; id != MF_NONE && d < b->graph->tensors[id].shape.rank; d++)
            printf("%s%lld", d ? "x" : "", (long long)b->graph->tensors[id].shape.dim[d]);
    }
    printf("\t");
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t id = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        if (id == MF_NONE)
            continue;
        const mf_tensor *t = &b->graph->tensors[id];
        printf("%s%llu+%llu", i >= op->in_count ? ">" : ",", (unsigned long long)step->offsets[i],
               (unsigned long long)(mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype)));
    }
    printf("\n");
}

static memfit_status report(bench *b, mf_backend *backend, bool all, memfit_error *err)
{
    const mf_phase *phase = &b->plan->phases[TRAIN];
    double took_by[MF_OP_COUNT] = {0}, told_by[MF_OP_COUNT] = {0}, took_all = 0, told_all = 0;
    unsigned count_by[MF_OP_COUNT] = {0};
    b->graph = phase->graph;
    for (uint32_t i = 0; i < phase->step_count; i++) {
        const mf_op *op = &phase->graph->ops[phase->steps[i].op];
        mf_cost cost;
        memfit_status status = backend->table->query(backend, phase->graph, phase->steps[i].op, &cost, err);
        if (status != MEMFIT_OK)
            return status;
        double share = op->when == MF_ALWAYS ? (double)phase->repeat : 1;
        double took = time_of(b, i, op, phase->repeat) * share, told = cost.methods[0].time_us * share;
        took_by[op->kind] += took;
        told_by[op->kind] += told;
        count_by[op->kind]++;
        took_all += took;
        told_all += told;
        if (all)
            print_operation(b, &phase->steps[i], op, cost.methods[0].time_us, took / share);
    }
    if (all)
        return MEMFIT_OK;
    printf("| kind | operations | estimated ms | measured ms | estimated / measured |\n|---|---|---|---|---|\n");
    for (unsigned k = 0; k < MF_OP_COUNT; k++)
        if (count_by[k] && took_by[k] > took_all / 500)
            printf("| %s | %u | %.3f | %.3f | %.2f |\n", mf_kind_name((mf_op_kind)k), count_by[k], told_by[k] * 1e-3,
                   took_by[k] * 1e-3, told_by[k] / took_by[k]);
    printf("| all | %u | %.3f | %.3f | %.2f |\n", phase->step_count, told_all * 1e-3, took_all * 1e-3,
           told_all / took_all);
    return MEMFIT_OK;
}

static memfit_status measure(const mf_plan *plan, mf_backend *backend, unsigned rounds, bool all, memfit_error *err)
{
    mf_reservation arena = {0};
    memfit_status status = mf_reserve(mf_device_near(), plan->arena_bytes, &arena, err);
    if (status != MEMFIT_OK)
        return status;
    void *base = (void *)(uintptr_t)arena.base;
    mf_reserve_populate(&arena, NULL);
    memset(base, 0, plan->arena_bytes);
    bench b = {.plan = plan, .runs = rounds * (uint32_t)plan->phases[TRAIN].repeat};
    b.took = calloc((size_t)plan->phases[TRAIN].step_count * b.runs + 1, sizeof *b.took);
    mf_executor_options options = {.step = hook, .step_ctx = &b};
    mf_executor *x = NULL;
    status = mf_executor_create(mf_host_default(), backend, plan, base, &options, &x, err);
    if (status == MEMFIT_OK)
        status = run(&b, x, rounds, err);
    if (status == MEMFIT_OK)
        status = report(&b, backend, all, err);
    mf_executor_destroy(x);
    free(b.took);
    mf_unreserve(&arena);
    return status;
}

int main(int argc, char **argv)
{
    memfit_error err = {0};
    unsigned threads = mf_os_cpu_count(), rounds = 20;
    bool all = false;
    mf_plan_options o;
    mf_plan_options_default(&o);
    o.with_validation = o.with_prediction = false;
    o.pieces = 1;
    o.recompute = MF_RECOMPUTE_AUTO;
    o.batch = argc > 2 ? atoll(argv[2]) : 0;
    for (int i = 3; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (!strcmp(argv[i], "all"))
            all = true;
        else if (!strcmp(argv[i], "threads"))
            threads = (unsigned)atoi(value);
        else if (!strcmp(argv[i], "pieces"))
            o.pieces = atoll(value);
        else if (!strcmp(argv[i], "limit"))
            o.limit_bytes = (uint64_t)atoll(value);
        else if (!strcmp(argv[i], "rounds"))
            rounds = (unsigned)atoi(value);
    }
    if (o.batch < 1 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: bench_ops MODEL BATCH [threads N] [pieces N] [limit BYTES] [rounds N] [all]\n");
        return 2;
    }
    mf_model_graphs graphs = {.options = {.optimizer = "adam", .input_dtype = MF_DTYPE_COUNT}};
    mf_graph_source source;
    mf_cost_source cost;
    mf_backend *backend = NULL;
    mf_plan *plan = NULL;
    mf_model *model = NULL;
    memfit_status status = mf_model_load(NULL, argv[1], &model, &err);
    graphs.model = model;
    mf_model_graph_source(&graphs, &source);
    if (status == MEMFIT_OK)
        status = mf_cpu_create(mf_host_default(), threads, &backend, &err);
    mf_team team = {0};
    mf_team_enter(&team, threads);
    if (status == MEMFIT_OK) {
        mf_backend_cost_source(backend, &cost);
        status = mf_plan_make(mf_host_default(), &source, &o, &cost, &plan, &err);
    }
    if (status == MEMFIT_OK)
        status = measure(plan, backend, rounds, all, &err);
    if (status != MEMFIT_OK)
        fprintf(stderr, "%s: %s\n", argv[1], err.message);
    mf_plan_destroy(plan);
    if (backend)
        backend->table->destroy(backend);
    mf_team_leave(&team);
    mf_model_destroy(model);
    return status != MEMFIT_OK;
}
