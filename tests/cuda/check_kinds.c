/*
 * check_kinds.c: every operation of many graphs on the CUDA backend against the reference, one at a time: the reference
 * walks the graph; each operation also runs on the other side on the same bytes, its outputs poisoned before, and what
 * it wrote is compared norm-wise. The graphs are the small ones of tests/ops (every kind in the forms that matter),
 * random ones, and larger ones (large_cases.c), in float32, float64, bfloat16 and float16; each once more with the groups
 * that the backend takes, whose members the reference runs in turn.
 *
 *     check_kinds --on card|host|threads|compile [--random N] [--first SEED] [--small] [--kind NAME] [--arch 75,80] [--part K/N] [--case NAME]
 *     check_kinds --on compile --arch 90 --model FILE,BATCH,PRECISION
 *
 * host runs the kernels on the CPU through a C++ compiler, one thread a block; threads, with 256 real ones (slow: for a
 * case at a time); compile only compiles them, for every generation; with --model the texts of a training of that model, to be
 * kept (MEMFIT_CACHE) and carried to a card's machine. Prints a
 * table by kind; the exit status is 77 when what --on needs is not there. It is long because both sides of one walk are read
 * together.
 */
#include "engines.h"
#include "group_cases.h"
#include "large_cases.h"
#include "opcheck.h"
#include "random_graph.h"

#include "base/words.h"
#include "device/device.h"
#include "graph/group.h"
#include "model/lower/model_graphs.h"
#include "ops/cuda/cuda_card_engine.h"
#include "ops/reference/reference.h"

#include <getopt.h>

enum { TYPES = 4, TF32 = TYPES, COLUMNS, ROOM = 512 << 20 };
static const mf_dtype types[TYPES] = {MF_F32, MF_F64, MF_BF16, MF_F16};
static const double bounds[COLUMNS] = {1e-5, 1e-5, 1e-2, 1e-2, 1e-3};
static const double units[COLUMNS] = {0x1p-23, 0x1p-23, 0x1p-8, 0x1p-11,
                                      0x1p-10}; /* how much rounding changes a number; TF32 cuts off */

static struct {
    mf_backend *reference, *cuda;
    test_memory memory;
    bool compares;
    const char *only, *case_name;
    unsigned cases[MF_OP_COUNT][COLUMNS], failed[MF_OP_COUNT], unsupported[MF_OP_COUNT];
    double worst[MF_OP_COUNT][COLUMNS];
    unsigned told, cancelled;
    unsigned part, parts, next; /* this process takes every parts-th graph */
    bool grouped;               /* only what grouping makes is looked at */
} check;

/* A graph's storages on the host, with a workspace behind them. */
typedef struct graph_memory {
    const mf_graph *graph;
    uint64_t *offsets, bytes;
    char *base;
} graph_memory;

static bool memory_make(graph_memory *m, const mf_graph *g)
{
    *m = (graph_memory){.graph = g, .offsets = calloc(g->storage_count + 1, sizeof *m->offsets)};
    for (uint32_t i = 0; m->offsets && i < g->storage_count; i++) {
        m->offsets[i] = m->bytes;
        m->bytes += (g->storages[i].bytes + 255) / 256 * 256 + 256;
    }
    m->base = m->offsets ? malloc(m->bytes + 1) : NULL;
    if (m->base)
        memset(m->base, 0xff, m->bytes);
    return m->base != NULL;
}

static void memory_end(graph_memory *m)
{
    free(m->offsets);
    free(m->base);
}

static uint64_t place_of(const graph_memory *m, uint32_t tensor)
{
    const mf_tensor *t = &m->graph->tensors[tensor];
    return m->offsets[t->storage] + t->offset;
}

static uint64_t bytes_of(const mf_graph *g, uint32_t tensor)
{
    return mf_shape_count(&g->tensors[tensor].shape) * mf_dtype_bytes(g->tensors[tensor].dtype);
}

/* Index of the least precise float type among the operands: it sets the bound. */
static int type_of(const mf_graph *g, const mf_op *op)
{
    int type = 1;
    bool any = false;
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        if (t == MF_NONE)
            continue;
        for (int k = 0; k < TYPES; k++)
            if (g->tensors[t].dtype == types[k]) {
                if (k != 1 && (type == 1 || k > type))
                    type = k;
                any = true;
            }
    }
    return any ? type : 0;
}

static double distance(const mf_tensor *t, const void *mine, const void *right)
{
    uint64_t count = mf_shape_count(&t->shape);
    double apart = 0, norm = 0;
    for (uint64_t i = 0; i < count; i++) {
        double a = mf_ref_load(t->dtype, mine, i), b = mf_ref_load(t->dtype, right, i);
        if (a == b || (a != a && b != b))
            continue;
        if (!isfinite(a) || !isfinite(b))
            return INFINITY;
        apart += (a - b) * (a - b);
    }
    for (uint64_t i = 0; i < count; i++) {
        double b = mf_ref_load(t->dtype, right, i);
        norm += isfinite(b) ? b * b : 0;
    }
    return norm == 0 ? sqrt(apart) : sqrt(apart / norm);
}

static bool is_read(const mf_graph *g, const mf_op *op, uint32_t output)
{
    for (uint32_t i = 0; i < op->in_count; i++)
        if (op->in[i] != MF_NONE && g->tensors[op->in[i]].storage == g->tensors[op->out[output]].storage)
            return true;
    return op->accumulate || (op->kind == MF_OP_GROUP && g->tensors[op->out[output]].variable != MF_NONE);
}

static void tell(const mf_graph *g, uint32_t index, const char *name, const char *what, double error)
{
    const mf_op *op = &g->ops[index];
    check.failed[op->kind]++;
    if (check.told++ > 60)
        return;
    printf("FAILED %s: %s: %s %g;", name, mf_kind_name(op->kind), what, error);
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        char text[128];
        printf("%s %s", i == op->in_count ? " ->" : "",
               t == MF_NONE ? "-" : mf_shape_format(&g->tensors[t].shape, text, sizeof text));
        if (t != MF_NONE)
            printf(":%s", mf_dtype_name(g->tensors[t].dtype));
    }
    printf("\n");
    fflush(stdout);
}

/* Run as the last of a hundred like it (of two, where tensors are large), each on bytes of its own. */
static memfit_status run_among_others(const graph_memory *m, uint32_t operands, uint64_t from, mf_kernel *kernel,
                                      const mf_operands *own, const mf_run_scalars *scalars, memfit_error *err)
{
    enum { MOST = 100, MOST_OPERANDS = 8 };
    static void *pointers[MOST][MOST_OPERANDS];
    mf_operands all[MOST];
    const mf_operands *list[MOST];
    mf_kernel *kernels[MOST];
    uint64_t each = (m->bytes + 255) / 256 * 256;
    uint32_t count = 0, in_count = (uint32_t)(own->out - own->in);
    memfit_status status = MEMFIT_OK;
    for (; count < (m->bytes > 1 << 16 ? 1 : MOST - 1) && from + each < ROOM && status == MEMFIT_OK; count++) {
        status = check.memory.fill(&check.memory, from, 0, each, err);
        for (uint32_t i = 0; i < operands; i++)
            pointers[count][i] = own->in[i] ? (char *)own->in[i] + from : NULL;
        all[count] = (mf_operands){.in = pointers[count], .out = pointers[count] + in_count};
        list[count] = &all[count];
        kernels[count] = kernel;
        from += each;
    }
    list[count] = own;
    kernels[count++] = kernel;
    return status ? status : check.cuda->table->run_batch(kernels, list, count, scalars, 0, err);
}

/* The other side's run on what the host's memory holds now. */
static memfit_status run_there(const graph_memory *m, uint32_t index, uint64_t workspace, mf_kernel *kernel,
                               const mf_run_scalars *scalars, memfit_error *err)
{
    const mf_graph *g = m->graph;
    const mf_op *op = &g->ops[index];
    void *pointers[600];
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < op->in_count + op->out_count && status == MEMFIT_OK; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        pointers[i] = t == MF_NONE ? NULL : check.memory.base + place_of(m, t);
        if (t == MF_NONE)
            continue;
        if (i < op->in_count || is_read(g, op, i - op->in_count))
            status = check.memory.up(&check.memory, place_of(m, t), m->base + place_of(m, t), bytes_of(g, t), err);
        else
            status = check.memory.fill(&check.memory, place_of(m, t), 0xff, bytes_of(g, t), err);
    }
    uint64_t at = (m->bytes + 255) / 256 * 256 + 256;
    if (status == MEMFIT_OK)
        status = check.memory.up(&check.memory, at - 256, scalars, sizeof *scalars, err);
    if (status == MEMFIT_OK && workspace)
        status = check.memory.fill(&check.memory, at, 0xff, workspace, err);
    /* as the executor: where there is no workspace its address is none */
    mf_operands operands = {
        .in = pointers, .out = pointers + op->in_count, .workspace = check.memory.base + at - (workspace == 0)};
    const mf_run_scalars *there = (const mf_run_scalars *)(const void *)(check.memory.base + at - 256);
    if (status == MEMFIT_OK && check.cuda->table->batch(kernel))
        return run_among_others(m, op->in_count + op->out_count, at + (workspace + 255) / 256 * 256, kernel, &operands,
                                there, err);
    return status ? status : check.cuda->table->run(kernel, &operands, there, 0, err);
}

static memfit_status run_here(const graph_memory *m, uint32_t index, const mf_run_scalars *scalars, memfit_error *err)
{
    const mf_op *op = &m->graph->ops[index];
    void *pointers[600];
    mf_cost cost = {0};
    mf_kernel *kernel = NULL;
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        pointers[i] = t == MF_NONE ? NULL : m->base + place_of(m, t);
    }
    memfit_status status = check.reference->table->query(check.reference, m->graph, index, &cost, err);
    if (status == MEMFIT_OK)
        status = check.reference->table->prepare(check.reference, m->graph, index, &cost.methods[0], &kernel, err);
    if (status)
        return status;
    void *workspace = NULL;
    if (posix_memalign(&workspace, 256, cost.methods[0].workspace_bytes + 256))
        return MEMFIT_NO_HOST_MEMORY;
    mf_operands operands = {.in = pointers, .out = pointers + op->in_count, .workspace = workspace};
    status = check.reference->table->run(kernel, &operands, scalars, 0, err);
    check.reference->table->release(check.reference, kernel);
    free(workspace);
    return status;
}

/* Which of several sums inside a group is the largest may differ where two are equal but for rounding: of ten thousand one. */
static bool chooses_alike(const mf_op *op, const mf_tensor *t, const void *mine, const void *right)
{
    uint64_t n = mf_shape_count(&t->shape), other = 0;
    if (op->kind != MF_OP_GROUP || t->dtype != MF_U8)
        return false;
    for (uint64_t i = 0; i < n; i++)
        other += ((const uint8_t *)mine)[i] != ((const uint8_t *)right)[i];
    return other <= n / 10000;
}

/* Which of the menu: its identity begins with what it is, a library's engine stands from byte 8 on. */
static void tell_method(const mf_method *method)
{
    uint64_t words[3];
    memcpy(words, method->id, sizeof words);
    printf("    method %llx %llu %llx, workspace %llu\n", (unsigned long long)words[0], (unsigned long long)words[1],
           (unsigned long long)words[2], (unsigned long long)method->workspace_bytes);
}

/* How far the reference's own result goes when every number that it reads is moved as far as rounding does, up or down: where
 * terms cancel (the gradient of a bias in front of a normalization is zero but for rounding), no kernel can be nearer to it. */
static double moved_by_rounding(const graph_memory *m, uint32_t index, uint32_t output, const char *right, double unit,
                                const mf_run_scalars *scalars)
{
    const mf_graph *g = m->graph;
    const mf_op *op = &g->ops[index];
    graph_memory other = *m;
    double most = 0;
    uint32_t seed = 1;
    other.base = malloc(m->bytes + 1);
    for (int round = 0; round < 8; round++) {
        memfit_error err = {0};
        memcpy(other.base, m->base, m->bytes);
        for (uint32_t i = 0; i < op->in_count; i++) {
            const mf_tensor *t = op->in[i] == MF_NONE ? NULL : &g->tensors[op->in[i]];
            if (!t || (t->dtype != MF_F32 && t->dtype != MF_F64 && t->dtype != MF_BF16 && t->dtype != MF_F16))
                continue;
            char *data = other.base + place_of(m, op->in[i]);
            for (uint64_t k = 0; k < mf_shape_count(&t->shape); k++) {
                seed = seed * 1664525 + 1013904223;
                double sign = seed >> 31 ? 1 : -1;
                mf_ref_store(t->dtype, data, k, mf_ref_load(t->dtype, data, k) * (1 + sign * unit));
            }
        }
        if (run_here(&other, index, scalars, &err) == MEMFIT_OK)
            most = fmax(most, distance(&g->tensors[op->out[output]], other.base + place_of(m, op->out[output]),
                                       right + place_of(m, op->out[output])));
    }
    free(other.base);
    return most;
}

/* What an output is the sum of, over all rows; MF_NONE: it is no such sum, or its terms are not seen. */
static uint32_t terms_of(const mf_op *op, uint32_t output)
{
    if (op->kind == MF_OP_CONV_GRAD_WEIGHTS)
        return output == 1 ? op->in[1] : MF_NONE;
    for (uint32_t i = 0; op->kind == MF_OP_GROUP && i < op->attr.group->inner.op_count; i++) {
        const mf_op *sum = &op->attr.group->inner.ops[i];
        if (sum->kind == MF_OP_REDUCE && sum->out[0] == op->in_count + output && sum->in[0] >= op->in_count &&
            sum->in[0] < op->in_count + op->out_count)
            return op->out[sum->in[0] - op->in_count];
    }
    return MF_NONE;
}

/* The error beside the sum of the terms' magnitudes. The slopes that leave the gradient of a normalization add up to nothing,
 * and what is left is their rounding. */
static double beside_terms(const graph_memory *m, uint32_t index, uint32_t output, const void *mine, const char *right)
{
    const mf_graph *g = m->graph;
    const mf_op *op = &g->ops[index];
    const mf_tensor *y = &g->tensors[op->out[output]];
    uint32_t terms = terms_of(op, output);
    if (terms == MF_NONE)
        return INFINITY;
    const mf_tensor *x = &g->tensors[terms];
    uint64_t columns = mf_shape_count(&y->shape);
    double apart = 0, all = 0;
    for (uint64_t c = 0; c < columns; c++) {
        double magnitude = 0;
        for (uint64_t k = c; k < mf_shape_count(&x->shape); k += columns)
            magnitude += fabs(mf_ref_load(x->dtype, right + place_of(m, terms), k));
        double d = mf_ref_load(y->dtype, mine, c) - mf_ref_load(y->dtype, right + place_of(m, op->out[output]), c);
        apart += d * d;
        all += magnitude * magnitude;
    }
    return all > 0 ? sqrt(apart / all) : INFINITY;
}

static bool compare(const graph_memory *m, uint32_t index, const char *name, const char *right, const mf_method *method,
                    const mf_run_scalars *scalars)
{
    const mf_graph *g = m->graph;
    const mf_op *op = &g->ops[index];
    bool tf32 = method->numerics == MF_CHANGED, good = true;
    int type = tf32 ? TF32 : type_of(g, op);
    check.cases[op->kind][type]++;
    for (uint32_t i = 0; i < op->out_count && check.compares && good; i++) {
        if (op->out[i] == MF_NONE)
            continue;
        memfit_error err = {0};
        void *mine = malloc(bytes_of(g, op->out[i]) + 1);
        if (check.memory.down(&check.memory, mine, place_of(m, op->out[i]), bytes_of(g, op->out[i]), &err)) {
            tell(g, index, name, err.message, 0);
            good = false;
        } else {
            const char *wanted = right + place_of(m, op->out[i]);
            double error = chooses_alike(op, &g->tensors[op->out[i]], mine, wanted)
                               ? 0
                               : distance(&g->tensors[op->out[i]], mine, wanted);
            double moved = error <= bounds[type] ? 0 : moved_by_rounding(m, index, i, right, units[type], scalars);
            double beside = error <= fmax(bounds[type], moved) ? 0 : beside_terms(m, index, i, mine, right);
            if (!(error <= bounds[type]) && (error <= moved || beside <= units[type])) {
                check.cancelled++;
                printf("cancels: %s: %s: off by %g%s, rounding its inputs moves it by %g; beside its terms %g\n", name,
                       mf_kind_name(op->kind), error, tf32 ? " in TF32" : "", moved, beside);
                free(mine);
                continue;
            }
            check.worst[op->kind][type] = fmax(check.worst[op->kind][type], error);
            if (!(error <= bounds[type])) {
                const mf_tensor *t = &g->tensors[op->out[i]];
                tell(g, index, name, tf32 ? "in TF32 off by" : "off by", error);
                printf("    output %u: %g for %g%s\n", i, mf_ref_load(t->dtype, mine, 0),
                       mf_ref_load(t->dtype, right + place_of(m, op->out[i]), 0), op->accumulate ? ", adds" : "");
                tell_method(method);
            }
        }
        free(mine);
    }
    return good;
}

static bool is_made_by_grouping(mf_op_kind kind)
{
    return kind == MF_OP_GROUP || kind == MF_OP_ATTENTION || kind == MF_OP_ATTENTION_GRAD;
}

/* Or a loss over rows that grouping has filled up, and what fills and cuts them. */
static bool is_new(const mf_op *op)
{
    return is_made_by_grouping(op->kind) || op->kind == MF_OP_LOSS || op->kind == MF_OP_LOSS_GRAD ||
           op->kind == MF_OP_PAD || op->kind == MF_OP_SLICE;
}

static bool attends_always(void *ctx, const mf_graph *graph, const mf_op *attention)
{
    (void)ctx;
    (void)graph;
    (void)attention;
    return true;
}

static bool only_is_made_by_grouping(void)
{
    for (int k = 0; k < MF_OP_COUNT && check.only; k++)
        if (strcmp(check.only, mf_kind_name((mf_op_kind)k)) == 0)
            return is_made_by_grouping((mf_op_kind)k);
    return false;
}

/* Every method of the menu, each on the same bytes; then the reference, whose results go on. */
static void check_op(graph_memory *m, uint32_t index, const char *name, const mf_run_scalars *scalars)
{
    const mf_op *op = &m->graph->ops[index];
    memfit_error err = {0};
    mf_cost cost = {0};
    bool mine = (!check.only || strcmp(check.only, mf_kind_name(op->kind)) == 0) && (!check.grouped || is_new(op));
    char *before = m->base, *after = malloc(m->bytes + 1);
    memcpy(after, before, m->bytes);
    m->base = after;
    memfit_status right = run_here(m, index, scalars, &err);
    if (right)
        tell(m->graph, index, name, err.message, 0);
    m->base = before;
    memfit_status status = mine ? check.cuda->table->query(check.cuda, m->graph, index, &cost, &err) : MEMFIT_OK;
    if (status)
        tell(m->graph, index, name, err.message, 0);
    if (mine && !status && !cost.supported)
        check.unsupported[op->kind]++;
    for (uint32_t i = 0; i < cost.method_count && !right; i++) {
        const mf_method *method = &cost.methods[i];
        mf_kernel *kernel = NULL;
        status = check.cuda->table->prepare(check.cuda, m->graph, index, method, &kernel, &err);
        bool fits = m->bytes + method->workspace_bytes + 1024 < ROOM;
        if (status == MEMFIT_OK && fits)
            status = run_there(m, index, method->workspace_bytes, kernel, scalars, &err);
        if (status)
            tell(m->graph, index, name, err.message, i);
        else if (fits)
            compare(m, index, name, after, method, scalars);
        if (kernel)
            check.cuda->table->release(check.cuda, kernel);
    }
    free(before);
    m->base = after;
}

static void check_graph(graph_memory *m, const char *name, const mf_run_scalars *scalars)
{
    if (only_is_made_by_grouping())
        return;
    for (uint32_t i = 0; i < m->graph->op_count; i++)
        if (m->graph->ops[i].kind != MF_OP_INPUT)
            check_op(m, i, name, scalars);
}

/* ---- with groups ---- */

static void *copy_of(const void *from, size_t bytes)
{
    void *to = mf_host_alloc(NULL, bytes + 1);
    if (to && bytes)
        memcpy(to, from, bytes);
    return to;
}

/* A graph of its own, each tensor's name its number before; what nobody reads counts as asked for. */
static mf_graph *copied(const mf_graph *g)
{
    mf_graph *c = copy_of(g, sizeof *g);
    uint8_t *read = calloc(g->tensor_count + 1, 1);
    mf_arena_init(&c->arena, NULL);
    c->ops = copy_of(g->ops, g->op_count * sizeof *g->ops);
    c->tensors = copy_of(g->tensors, g->tensor_count * sizeof *g->tensors);
    c->storages = copy_of(g->storages, g->storage_count * sizeof *g->storages);
    c->variables = copy_of(g->variables, g->variable_count * sizeof *g->variables);
    c->layers = copy_of(g->layers, g->layer_count * sizeof *g->layers);
    c->feeds = copy_of(g->feeds, g->feed_count * sizeof *g->feeds);
    c->outputs = MF_NEW_ARRAY(&c->arena, uint32_t, g->tensor_count + 1);
    c->output_count = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        mf_op *op = &c->ops[i];
        uint32_t *ids = MF_NEW_ARRAY(&c->arena, uint32_t, op->in_count + op->out_count + 1);
        memcpy(ids, op->in, op->in_count * sizeof *ids);
        memcpy(ids + op->in_count, op->out, op->out_count * sizeof *ids);
        op->in = ids;
        op->out = ids + op->in_count;
        for (uint32_t k = 0; k < op->in_count; k++)
            if (op->in[k] != MF_NONE)
                read[op->in[k]] = 1;
    }
    for (uint32_t i = 0; i < g->tensor_count; i++) {
        c->tensors[i].name = (const char *)(uintptr_t)(i + 1);
        if (!read[i] && g->tensors[i].variable == MF_NONE)
            c->outputs[c->output_count++] = i;
    }
    free(read);
    c->op_capacity = c->op_count;
    c->tensor_capacity = c->tensor_count;
    c->storage_capacity = c->storage_count;
    return c;
}

static void copied_end(mf_graph *c)
{
    mf_arena_destroy(&c->arena);
    mf_host_free(NULL, c->ops, 0);
    mf_host_free(NULL, c->tensors, 0);
    mf_host_free(NULL, c->storages, 0);
    mf_host_free(NULL, c->variables, 0);
    mf_host_free(NULL, c->layers, 0);
    mf_host_free(NULL, c->feeds, 0);
    mf_host_free(NULL, c, 0);
}

/* Between members numbers are not rounded to 16 bits, so the reference must not do it either. */
static void widen_inside(const mf_op *op)
{
    mf_group *group = (mf_group *)(uintptr_t)op->attr.group;
    for (uint32_t i = op->in_count + op->out_count; i < group->inner.tensor_count; i++) {
        mf_tensor *t = &group->inner.tensors[i];
        if (t->dtype == MF_BF16 || t->dtype == MF_F16) {
            t->dtype = MF_F32;
            group->inner.storages[i].bytes = mf_shape_count(&t->shape) * sizeof(float);
        }
    }
}

/* The same graph with groups, from the same bytes; only what grouping makes is compared. Attention is always made, also where
 * the backend would leave it. */
static void check_groups(const graph_memory *m, const char *name, const mf_run_scalars *scalars)
{
    memfit_error err = {0};
    if (check.only && !only_is_made_by_grouping())
        return;
    mf_graph *g = copied(m->graph);
    graph_memory with;
    mf_group_taker taker = check.cuda->groups;
    taker.attends = attends_always;
    taker.even_rows = 1; /* however small */
    if (mf_graph_group(g, &taker, &err) != MEMFIT_OK) {
        printf("FAILED %s: grouping: %s\n", name, err.message);
        check.failed[MF_OP_GROUP]++;
    } else if (memory_make(&with, g)) {
        for (uint32_t t = 0; t < g->tensor_count; t++) {
            uint32_t before = (uint32_t)(uintptr_t)g->tensors[t].name - 1;
            uint64_t bytes = bytes_of(g, t), there = bytes_of(m->graph, before);
            memcpy(with.base + place_of(&with, t), m->base + place_of(m, before), bytes < there ? bytes : there);
        }
        check.grouped = true;
        for (uint32_t i = 0; i < g->op_count; i++)
            if (g->ops[i].kind == MF_OP_GROUP)
                widen_inside(&g->ops[i]);
        for (uint32_t i = 0; i < g->op_count; i++)
            if (g->ops[i].kind != MF_OP_INPUT)
                check_op(&with, i, name, scalars);
        check.grouped = false;
        memory_end(&with);
    }
    copied_end(g);
}

static bool is_mine(void)
{
    return check.next++ % check.parts == check.part;
}

static void check_subject(uint64_t seed)
{
    if (!is_mine())
        return;
    subject s;
    memfit_error err = {0};
    mf_graph *g = NULL;
    graph_memory m;
    char name[40];
    subject_draw(&s, seed, seed % 8 == 0);
    if (subject_graph(&s, NULL, s.mode, s.batch, seed % 3 == 0, 1, &g, &err) != MEMFIT_OK)
        return;
    if (s.wide)
        mf_graph_widen(g);
    if (!memory_make(&m, g))
        return;
    for (uint32_t v = 0; v < g->variable_count; v++)
        for (uint64_t i = 0; g->variables[v].tensor != MF_NONE && i < mf_shape_count(&g->variables[v].shape); i++)
            mf_ref_store(g->variables[v].dtype, m.base + place_of(&m, g->variables[v].tensor), i,
                         subject_variable_value(&s, g, v, i));
    for (uint32_t f = 0; f < g->feed_count; f++) {
        const mf_tensor *t = &g->tensors[g->feeds[f].tensor];
        uint64_t each = mf_shape_count(&t->shape) / (uint64_t)g->batch;
        for (uint64_t i = 0; i < mf_shape_count(&t->shape); i++)
            mf_ref_store(t->dtype, m.base + place_of(&m, g->feeds[f].tensor), i,
                         subject_feed_value(&s, g, f, i / each, i % each));
    }
    mf_run_scalars scalars = mf_interpret_scalars(g, 0.01);
    scalars.seed = seed;
    scalars.step = scalars.iteration = 3;
    scalars.loss_scale = s.optimizer.loss_scale ? 8 : 1;
    snprintf(name, sizeof name, "seed %llu", (unsigned long long)seed);
    check_groups(&m, name, &scalars);
    check_graph(&m, name, &scalars);
    memory_end(&m);
    mf_graph_destroy(g);
}

static void check_case(const opcheck_case *k, int variant, mf_dtype dtype)
{
    opcheck c;
    graph_memory m;
    char name[80];
    if ((check.case_name && strcmp(check.case_name, k->name) != 0) || !is_mine())
        return;
    opcheck_begin(&c, k, variant, dtype, check.reference);
    opcheck_fill(&c, 11 + (uint64_t)variant);
    if (c.loss != MF_NONE)
        opcheck_set(&c, c.loss, 0, 0);
    if (memory_make(&m, c.graph)) {
        for (uint32_t t = 0; t < c.graph->tensor_count; t++)
            memcpy(m.base + place_of(&m, t), mf_interpret_data(c.run, t), bytes_of(c.graph, t));
        mf_run_scalars scalars = mf_interpret_scalars(c.graph, 0.1);
        scalars.weight_sum = 2.5;
        scalars.step = scalars.iteration = 3;
        snprintf(name, sizeof name, "%s %d %s", k->name, variant, mf_dtype_name(dtype));
        check_groups(&m, name, &scalars);
        check_graph(&m, name, &scalars);
        memory_end(&m);
    }
    opcheck_end(&c);
}

static int print_table(void)
{
    unsigned failed = 0, cases = 0, missing = 0;
    printf("%-22s %6s %9s %6s %9s %6s %9s %6s %9s %6s %9s\n", "kind", "f32", "worst", "f64", "worst", "bf16", "worst",
           "f16", "worst", "tf32", "worst");
    for (int k = 0; k < MF_OP_COUNT; k++) {
        unsigned all = 0;
        for (int t = 0; t < COLUMNS; t++)
            all += check.cases[k][t];
        if (!all && !check.failed[k] && (k == MF_OP_ASSUMED || k == MF_OP_INPUT || check.only))
            continue;
        printf("%-22s", mf_kind_name((mf_op_kind)k));
        for (int t = 0; t < COLUMNS; t++)
            if (check.cases[k][t])
                printf(" %6u %9.1e", check.cases[k][t], check.worst[k][t]);
            else
                printf("      -         -");
        printf("  %s", check.failed[k] ? "FAILED" : all ? "pass" : "no case");
        if (check.failed[k])
            printf(" %u", check.failed[k]);
        if (check.unsupported[k])
            printf(", %u not supported", check.unsupported[k]);
        printf("\n");
        failed += check.failed[k];
        cases += all;
        missing += !all;
    }
    printf("%u cases, %u failed, %u beyond their bound where terms cancel, %u kinds without a case\n", cases, failed,
           check.cancelled, missing);
    return failed ? 1 : 0;
}

static memfit_status open_side(const char *on, const char *arch, memfit_error *err)
{
    cuda_engine *engine = NULL;
    memfit_status status;
    check.compares = strcmp(on, "compile") != 0;
    if (strcmp(on, "card") == 0) {
        memfit_device *device = NULL;
        status = memfit_device_open("cuda", NULL, &device, err);
        if (status == MEMFIT_OK)
            status = card_memory(&check.memory, device, ROOM, err);
        if (status == MEMFIT_OK)
            status = mf_cuda_create(NULL, device, &check.cuda, err);
        if (status == MEMFIT_OK)
            check.cuda->loose_menus = true; /* those that add in no fixed order must be right, too */
        return status;
    }
    host_memory(&check.memory, malloc(ROOM));
    if (strcmp(on, "host") == 0 || strcmp(on, "threads") == 0)
        status =
            host_engine_create(getenv("CXX") ? getenv("CXX") : "g++", strcmp(on, "host") == 0 ? 1 : 256, &engine, err);
    else {
        int list[16];
        unsigned count = 0;
        for (const char *p = arch; *p && count < 16;) {
            list[count++] = (int)strtol(p, (char **)&p, 10);
            p += *p == ',';
        }
        status = compile_engine_create(list, count, &engine, err);
    }
    return status ? status : mf_cuda_create_on(NULL, engine, &check.cuda, err);
}

/* Every method of every operation is made ready: the library's texts, and the own ones behind them. */
static memfit_status ready_all(mf_graph *g, memfit_error *err)
{
    memfit_status status = mf_graph_group(g, &check.cuda->groups, err);
    for (uint32_t i = 0; i < g->op_count && status == MEMFIT_OK; i++) {
        mf_cost cost;
        if (g->ops[i].kind == MF_OP_INPUT || !is_mine())
            continue;
        status = check.cuda->table->query(check.cuda, g, i, &cost, err);
        for (uint32_t k = 0; k < cost.method_count && status == MEMFIT_OK; k++) {
            mf_kernel *kernel = NULL;
            status = check.cuda->table->prepare(check.cuda, g, i, &cost.methods[k], &kernel, err);
            check.cuda->table->release(check.cuda, kernel);
        }
    }
    return status;
}

/* FILE,BATCH,PRECISION: a step, a batch of a validation. */
static int ready_model(const char *text)
{
    char path[512], precision[32];
    long long batch;
    memfit_error err = {0};
    mf_model *model = NULL;
    mf_model_graphs graphs = {.options = {.input_dtype = MF_DTYPE_COUNT}};
    mf_graph_source source;
    if (sscanf(text, "%511[^,],%lld,%31s", path, &batch, precision) != 3 || batch < 1)
        return 2;
    memfit_status status = mf_words_precision(precision, &graphs.options.precision, &err);
    if (status == MEMFIT_OK)
        status = mf_model_load_flags(NULL, path, MF_LOAD_VERIFY_QUICK, &model, &err);
    graphs.model = model;
    mf_model_graph_source(&graphs, &source);
    for (int mode = MF_MODE_TRAIN; mode <= MF_MODE_EVALUATE && status == MEMFIT_OK; mode++) {
        mf_graph *g = NULL;
        status = source.make(source.ctx, NULL, (mf_mode)mode, batch, false, &g, &err);
        if (status == MEMFIT_OK)
            status = ready_all(g, &err);
        mf_graph_destroy(g);
    }
    mf_model_destroy(model);
    if (status)
        printf("%s: %s\n", path, err.message);
    return status != MEMFIT_OK;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"on", 1, 0, 'o'},   {"random", 1, 0, 'r'}, {"first", 1, 0, 'f'}, {"small", 0, 0, 's'}, {"kind", 1, 0, 'k'},
        {"arch", 1, 0, 'a'}, {"part", 1, 0, 'p'},   {"case", 1, 0, 'c'},  {"model", 1, 0, 'm'}, {0}};
    const char *model = NULL, *on = "host", *arch = "75,80,86,89,90,120";
    uint64_t count = 60, first = 1;
    bool small = false;
    check.parts = 1;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case 'o':
            on = optarg;
            break;
        case 'r':
            count = strtoull(optarg, NULL, 10);
            break;
        case 'f':
            first = strtoull(optarg, NULL, 10);
            break;
        case 's':
            small = true;
            break;
        case 'k':
            check.only = optarg;
            break;
        case 'a':
            arch = optarg;
            break;
        case 'c':
            check.case_name = optarg;
            break;
        case 'm':
            model = optarg;
            break;
        case 'p':
            if (sscanf(optarg, "%u/%u", &check.part, &check.parts) != 2 || check.part >= check.parts)
                return 2;
            break;
        default:
            return 2;
        }
    memfit_error err = {0};
    mf_backend *plain = NULL;
    if (mf_reference_create(NULL, &plain, &err) != MEMFIT_OK ||
        mf_members_create(NULL, plain, NULL, &check.reference, &err) != MEMFIT_OK ||
        open_side(on, arch, &err) != MEMFIT_OK) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    if (model) {
        int failed = ready_model(model);
        check.cuda->table->destroy(check.cuda);
        check.reference->table->destroy(check.reference);
        return failed;
    }
    for (size_t i = 0; i < opcheck_case_count; i++)
        for (int v = 0; v < opcheck_cases[i].variants; v += small ? 3 : 1)
            for (int t = 0; t < (small ? 1 : TYPES); t++)
                if (t == 0 || opcheck_cases[i].variants < 64 || v % 8 == t)
                    check_case(&opcheck_cases[i], v, types[t]);
    for (size_t i = 0; i < group_case_count; i++)
        for (int v = 0; v < group_cases[i].variants; v += small ? 5 : 1)
            for (int t = 0; t < TYPES; t++)
                check_case(&group_cases[i], v, types[t]);
    for (size_t i = 0; i < large_case_count && !small; i++)
        for (int v = 0; v < large_cases[i].variants; v++)
            for (int t = 0; t < TYPES; t++)
                check_case(&large_cases[i], v, types[t]);
    for (uint64_t i = 0; i < count; i++)
        check_subject(first + i);
    int failed = print_table();
    check.cuda->table->destroy(check.cuda);
    check.reference->table->destroy(check.reference);
    return failed;
}
