/* convolution.c: a convolution as a graph of cuDNN, the heuristics' list for it, plans. */
#include "convolution.h"
#include <pthread.h>

const char *const direction_names[] = {"forward", "data", "weights"};
const char *const type_names[] = {"bf16", "f32"};

int make(struct job *j, cudnnBackendDescriptorType_t type, desc *d)
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

void job_free(struct job *j)
{
    while (j->bagged > 0)
        q_cudnnBackendDestroyDescriptor(j->bag[--j->bagged]);
    free(j->bag);
    free(j->config);
    j->bag = NULL;
    j->config = NULL;
    j->configs = j->bag_room = 0;
}

int set_many(desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n, const void *v)
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

int output_side(const struct conv *c, int size)
{
    return (size + 2 * c->pad - c->r) / c->stride + 1;
}

double conv_flops(const struct conv *c)
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

int job_graph(struct job *j, const struct asker *a)
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
int job_ask(struct job *j, const struct asker *a, cudnnBackendHeurMode_t mode)
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

int config_build(struct job *j, struct config *c, const struct asker *a)
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
void build_first(struct job *j, const struct asker *a, int most, int by_b, bool (*fits)(const struct config *c))
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

bool fits_safe(const struct config *c)
{
    return !c->nondeterministic && !c->compiled;
}

bool fits_strict(const struct config *c)
{
    return !c->nondeterministic && !c->tf32;
}

bool fits_precompiled(const struct config *c)
{
    return !c->compiled;
}

int job_prepare(struct job *j, const struct asker *a)
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

int prepare_all(struct job *jobs, int count, const struct asker *described, double seconds)
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

int described_device(desc *prop, const char **source, int *multiprocessors)
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
