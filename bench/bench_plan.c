/*
 * bench_plan.c: how fast plans are made and how much they save.
 *
 *   1. every model of a folder: time from file to answer, packing against its bound
 *   2. largest batch at 16 GB, Adam, float32, one piece, with at most 10 % and 34 % of the time spent on recomputation,
 *      against keeping everything with fused gradients (the input of a convolution stays until both are done)
 *   3. recompute time against its bound at 40 to 80 % of what keeping everything needs
 *   4. a greedy order of the training step's independent operations against the graph's own
 *
 * "Keeping everything" is the plain graph: every gradient reads what the forward operation of its own layer left,
 * nothing merged (mf_lower_options.plain). Times are over the unconstrained step of the graph that is planned, which is
 * the faster one: neither yardstick flatters.
 *
 * Usage: bench_plan [FOLDER of .json models [models | multipliers | gaps | orders]]; without one: MEMFIT_PLAN_MODELS,
 * else it says so and ends.
 */
#include "base/os.h"
#include "plan/cards.h"
#include "plan/recompute/bounds.h"
#include "plan/fit/fit_orders.h"
#include "plan/flow/flow_order.h"
#include "model/lower/model_graphs.h"
#include "plan/recompute/recompute.h"
#include "plan/roofline.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Largest sum of live bytes when both gradients of a convolution or product are one operation: what the weight gradient
 * reads must be there while the data gradient is written, and the weight gradient too. */
static uint64_t fused_peak(const mf_flow *flow, const mf_sequence *q)
{
    uint64_t *load = calloc(q->run_count + 2, sizeof *load);
    uint32_t *death = calloc(q->life_count + 1, sizeof *death);
    for (uint32_t i = 0; i < q->life_count; i++)
        death[i] = q->lives[i].death;
    for (uint32_t r = 0; r < q->run_count; r++) {
        const mf_op *op = &flow->graph->ops[q->runs[r].op];
        if (op->kind != MF_OP_CONV_GRAD_WEIGHTS && !(op->kind == MF_OP_MATMUL && op->phase == MF_BACKWARD))
            continue;
        for (uint32_t s = r + 1; s < q->run_count && s < r + 8; s++) { /* its data gradient follows shortly */
            const mf_op *data = &flow->graph->ops[q->runs[s].op];
            if (data->layer != op->layer || (data->kind != MF_OP_CONV_GRAD_DATA && data->kind != MF_OP_MATMUL))
                continue;
            uint32_t touches = flow->read_at[q->runs[r].op + 1] - flow->read_at[q->runs[r].op];
            for (uint32_t t = 0; t < touches; t++) {
                uint32_t life = q->touches[q->runs[r].touch + t];
                if (death[life] < s)
                    death[life] = s;
            }
        }
    }
    for (uint32_t i = 0; i < q->life_count; i++) {
        uint64_t bytes = flow->cells[q->lives[i].cell].bytes;
        bool handed = q->lives[i].handed_on && death[i] == q->lives[i].death;
        load[q->lives[i].birth] += bytes;
        load[(handed ? q->lives[i].death : death[i] + 1)] -= bytes;
    }
    uint64_t live = 0, peak = 0;
    for (uint32_t r = 0; r < q->run_count; r++) {
        live += load[r];
        if (live > peak)
            peak = live;
    }
    free(load);
    free(death);
    return peak;
}

typedef struct bench {
    mf_model *model;
    mf_model_graphs graphs;
    mf_graph_source source;
    mf_roofline roofline;
    mf_cost_source cost;
    mf_plan_options options;
    mf_fitter fitter;
    mf_model_graphs plain_graphs; /* the yardstick */
    mf_graph_source plain_source;
    mf_fitter plain;
} bench;

static bool open_model(bench *b, const char *path, const char *card, int64_t batch)
{
    memfit_error err = {0};
    *b = (bench){0};
    if (mf_model_load(NULL, path, &b->model, &err) != MEMFIT_OK) {
        fprintf(stderr, "%s: %s\n", path, err.message);
        return false;
    }
    b->graphs.model = b->model;
    b->graphs.options.optimizer = "adam";
    b->graphs.options.input_dtype = MF_DTYPE_COUNT;
    if (strstr(path, "MobileNetV3")) /* leaves its input size open */
        b->graphs.options.input_shape = (mf_shape){.rank = 3, .dim = {224, 224, 3}};
    mf_model_graph_source(&b->graphs, &b->source);
    mf_roofline_for_card(&b->roofline, mf_card_find(card));
    mf_roofline_cost_source(&b->roofline, &b->cost);
    mf_plan_options_default(&b->options);
    b->options.batch = batch;
    b->options.pieces = 1;
    b->options.with_validation = b->options.with_prediction = false;
    mf_fitter_init(&b->fitter, NULL, &b->source, &b->options, &b->cost);
    b->plain_graphs = b->graphs;
    b->plain_graphs.options.plain = true;
    mf_model_graph_source(&b->plain_graphs, &b->plain_source);
    mf_fitter_init(&b->plain, NULL, &b->plain_source, &b->options, &b->cost);
    mf_fit_entry *entry;
    if (mf_fitter_entry(&b->fitter, MF_MODE_TRAIN, batch, false, &entry, &err) != MEMFIT_OK) {
        fprintf(stderr, "%s: %s\n", path, err.message);
        return false;
    }
    return true;
}

static void close_model(bench *b)
{
    mf_fitter_free(&b->fitter);
    mf_fitter_free(&b->plain);
    mf_model_destroy(b->model);
}

/* The yardstick runs in the order of the graph. */
static const mf_fit_order *own_order(const mf_fit_entry *e)
{
    return e->own ? e->own : e->order;
}

enum { FUSED = -1, SPLIT = 0 };

/* Does batch n fit into `limit` with at most `percent` more time (SPLIT: none; FUSED: the baseline)? */
static bool fits(bench *b, int64_t n, uint64_t limit, int percent)
{
    memfit_error err = {0};
    mf_fit_entry *e;
    if (mf_fitter_entry(percent == FUSED ? &b->plain : &b->fitter, MF_MODE_TRAIN, n, false, &e, &err) != MEMFIT_OK)
        return false;
    if (percent == FUSED)
        return e->variables_end + fused_peak(own_order(e)->flow, &own_order(e)->keep) <= limit;
    mf_way way = {.batch = n, .pieces = 1, .recompute = percent != SPLIT, .train_only = true, .limit_bytes = limit};
    mf_plan *plan;
    if (mf_fitter_try(&b->fitter, &way, &plan, &err) != MEMFIT_OK)
        return false;
    bool ok = plan->fits && plan->time_us <= (e->order->keep.time_us + e->order->keep.once_us) * (1 + percent / 100.0);
    mf_plan_destroy(plan);
    return ok;
}

static int64_t largest(bench *b, uint64_t limit, int percent)
{
    int64_t good = 0, bad = 1;
    while (bad < 1 << 20 && fits(b, bad, limit, percent)) {
        good = bad;
        bad *= 2;
    }
    while (bad - good > 1) {
        int64_t middle = (good + bad) / 2;
        *(fits(b, middle, limit, percent) ? &good : &bad) = middle;
    }
    return good;
}

static void bench_multipliers(const char *folder)
{
    static const struct {
        const char *file;
        double goal_10, goal_34;
    } models[] = {{"VGG16", 1.4, 1.8}, {"ResNet50", 1.8, 3}, {"MobileNet", 2, 3}, {"unet_416x608", 1.5, 2}};
    printf("\nlargest batch at 16 GB, Adam, float32, one piece (V100 roofline)\n"
           "model            fused   split    <=10%%   times (goal)    <=34%%   times (goal)\n");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[1024];
        bench b;
        snprintf(path, sizeof path, "%s/%s.json", folder, models[i].file);
        if (access(path, R_OK) != 0 || !open_model(&b, path, "v100", 32))
            continue;
        uint64_t limit = 16000000000ull;
        int64_t base = largest(&b, limit, FUSED), split = largest(&b, limit, SPLIT);
        fits(&b, 2 * split, limit, 10); /* the search is done for a batch near the answers */
        int64_t ten = largest(&b, limit, 10), third = largest(&b, limit, 34);
        printf("%-14s %7lld %7lld %8lld %6.2f (%.1f) %10lld %6.2f (%.1f)\n", models[i].file, (long long)base,
               (long long)split, (long long)ten, (double)ten / (double)base, models[i].goal_10, (long long)third,
               (double)third / (double)base, models[i].goal_34);
        close_model(&b);
    }
}

static void bench_gaps(const char *folder)
{
    static const char *const models[] = {"VGG16", "ResNet50", "MobileNet", "unet_416x608"};
    printf("\nrecomputation in percent of a step, its bound, and their ratio, by share of what keeping needs (V100)\n"
           "model                   40%%                 50%%                 60%%                 70%%                "
           " 80%%\n");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[1024];
        bench b;
        memfit_error err;
        snprintf(path, sizeof path, "%s/%s.json", folder, models[i]);
        if (access(path, R_OK) != 0 || !open_model(&b, path, "v100", 32))
            continue;
        mf_fit_entry *e, *plain;
        mf_fitter_entry(&b.fitter, MF_MODE_TRAIN, 32, false, &e, &err);
        mf_fitter_entry(&b.plain, MF_MODE_TRAIN, 32, false, &plain, &err);
        printf("%-14s", models[i]);
        double keep = e->order->keep.time_us + e->order->keep.once_us;
        for (int percent = 40; percent <= 80; percent += 10) {
            uint64_t room = own_order(plain)->keep.peak * (uint64_t)percent / 100;
            mf_way way = {.batch = 32,
                          .pieces = 1,
                          .recompute = true,
                          .train_only = true,
                          .limit_bytes = e->variables_end + room};
            mf_plan *plan;
            double extra = 0;
            mf_fit_orders_bound(&b.fitter, e, room, 1000000, &extra, &err);
            if (mf_fitter_try(&b.fitter, &way, &plan, &err) != MEMFIT_OK)
                continue;
            double again = plan->time_us - keep;
            if (plan->fits)
                printf("  %5.2f %5.2f (%.2f)", 100 * again / keep, 100 * extra / keep, extra > 0 ? again / extra : 1);
            else
                printf("  %18s", "no plan");
            mf_plan_destroy(plan);
        }
        /* how low it goes, and what no order and no recomputation goes below */
        mf_bounds bounds;
        mf_bounds_make(e->order->flow, &bounds);
        mf_way least = {.batch = 32, .pieces = 1, .recompute = true, .train_only = true, .limit_bytes = 1};
        mf_plan *lowest;
        const mf_op *op = &e->graph->ops[bounds.working_set_op];
        double whole = (double)own_order(plain)->keep.peak / 100;
        if (mf_fitter_try(&b.fitter, &least, &lowest, &err) == MEMFIT_OK) {
            printf("   own %.0f %%, lowest %.1f %%, bound %.1f %% (%s of %s)", (double)e->order->keep.peak / whole,
                   (double)(lowest->phases[0].bytes - lowest->variables_end) / whole,
                   (double)bounds.working_set_bytes / whole, mf_kind_name(op->kind), e->graph->layers[op->layer].name);
            mf_plan_destroy(lowest);
        }
        putchar('\n');
        close_model(&b);
    }
}

/* ---- another order of independent operations (flow_order.c) ------------------------------------------------ */

typedef struct ordered {
    uint64_t keep, lowest;
    double time, at_60; /* of a step: everything kept; at 60 % of what the graph's own order keeps (0: no plan) */
} ordered;

static bool measure_order(mf_flow *flow, uint64_t room, ordered *o)
{
    memfit_error err;
    mf_sequence sequence;
    mf_tradeoff *t = NULL;
    bool fits = false;
    if (mf_sequence_init(&sequence, NULL, flow, &err) != MEMFIT_OK)
        return false;
    bool ok = mf_sequence_build(&sequence, flow, NULL, &err) == MEMFIT_OK;
    *o = (ordered){.keep = sequence.peak, .time = sequence.time_us};
    ok = ok && mf_tradeoff_create(NULL, flow, MF_SEARCH_WORK, &t, &err) == MEMFIT_OK &&
         mf_tradeoff_lowest(t, &o->lowest, &err) == MEMFIT_OK &&
         mf_tradeoff_fit(t, (room ? room : o->keep) * 6 / 10, &fits, &err) == MEMFIT_OK;
    o->at_60 = fits ? t->sequence.time_us : 0;
    mf_tradeoff_destroy(t);
    mf_sequence_free(&sequence);
    return ok;
}

static void bench_order(const char *file, const char *path, int64_t batch)
{
    bench b;
    mf_graph *graph = NULL;
    mf_flow *flow = NULL, *other = NULL;
    memfit_error err;
    ordered natural, greedy;
    if (open_model(&b, path, "v100", batch) &&
        b.source.make(b.source.ctx, NULL, MF_MODE_TRAIN, batch, false, &graph, &err) == MEMFIT_OK &&
        mf_flow_create(NULL, graph, &b.cost, &flow, &err) == MEMFIT_OK && measure_order(flow, 0, &natural)) {
        uint32_t *order = calloc(flow->order_count + 1, sizeof *order);
        uint64_t begin = mf_os_now_us();
        bool ok = mf_flow_order_greedy(NULL, flow, order, &err) == MEMFIT_OK;
        double took = (double)(mf_os_now_us() - begin) / 1e3;
        if (ok && mf_flow_reorder(NULL, flow, order, &other, &err) == MEMFIT_OK &&
            measure_order(other, natural.keep, &greedy))
            printf("%-20.*s %5lld %9.1f %7.3f %9.1f %7.3f %7.1f %7.1f %8.1f\n", (int)(strlen(file) - 5), file,
                   (long long)batch, (double)natural.keep / 1e6, (double)greedy.keep / (double)natural.keep,
                   (double)natural.lowest / 1e6, (double)greedy.lowest / (double)natural.lowest,
                   100 * natural.at_60 / natural.time, 100 * greedy.at_60 / natural.time, took);
        free(order);
    }
    mf_flow_destroy(other);
    mf_flow_destroy(flow);
    mf_graph_destroy(graph);
    close_model(&b);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of a folder's models, in order; at most 256. */
static size_t list_models(const char *folder, char **names)
{
    DIR *dir = opendir(folder);
    size_t count = 0;
    struct dirent *entry;
    while (dir && count < 256 && (entry = readdir(dir)))
        if (strstr(entry->d_name, ".json") && !strstr(entry->d_name, "expected"))
            names[count++] = strdup(entry->d_name);
    if (dir)
        closedir(dir);
    qsort(names, count, sizeof *names, by_name);
    return count;
}

static void bench_orders(const char *folder)
{
    char *names[256];
    size_t count = list_models(folder, names);
    printf(
        "\ngreedy order of a training step, over the graph's own: bytes when everything is kept, bytes of the lowest "
        "plan,\ntime of a step at 60 %% of what the own order keeps (in percent of keeping, own and greedy; 0: no "
        "plan), ms taken\n"
        "%-20s %5s %9s %7s %9s %7s %7s %7s %8s\n",
        "model", "batch", "keep MB", "greedy", "least MB", "greedy", "own", "greedy", "ms");
    for (size_t i = 0; i < count; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        bench_order(names[i], path, 32);
        bench_order(names[i], path, 1);
        fflush(stdout);
        free(names[i]);
    }
}

static void bench_models(const char *folder)
{
    char *names[256];
    size_t count = list_models(folder, names);
    printf("training step at batch 32, everything kept (RTX 3080 roofline)\n"
           "%-24s %7s %9s %9s %11s\n",
           "model", "steps", "graph ms", "plan ms", "arena/bound");
    for (size_t i = 0; i < count; i++) {
        char path[1024];
        bench b;
        memfit_error err = {0};
        mf_plan *plan = NULL;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        mf_way way = {.batch = 32, .pieces = 1};
        uint64_t begin = mf_os_now_us();
        if (open_model(&b, path, "rtx-3080", 32)) {
            uint64_t lowered = mf_os_now_us();
            if (mf_fitter_try(&b.fitter, &way, &plan, &err) == MEMFIT_OK) {
                uint64_t packed = mf_os_now_us();
                const mf_phase *p = &plan->phases[0];
                printf("%-24.*s %7u %9.1f %9.1f %11.4f\n", (int)(strlen(names[i]) - 5), names[i], p->step_count,
                       (double)(lowered - begin) / 1e3, (double)(packed - lowered) / 1e3,
                       (double)p->bytes / (double)(plan->variables_end + p->load_bytes));
                mf_plan_destroy(plan);
            }
        }
        close_model(&b);
        free(names[i]);
    }
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : getenv("MEMFIT_PLAN_MODELS");
    if (!folder) {
        printf("bench_plan: no folder of models (unpack the second lines of tests/fixtures/applications/*.gz: "
               "docs/bench/plan.md)\n");
        return 0;
    }
    bool all = argc < 3;
    if (all || !strcmp(argv[2], "models"))
        bench_models(folder);
    if (all || !strcmp(argv[2], "multipliers"))
        bench_multipliers(folder);
    if (all || !strcmp(argv[2], "gaps"))
        bench_gaps(folder);
    if (all || !strcmp(argv[2], "orders"))
        bench_orders(folder);
    return 0;
}
