/*
 * cudnn.c: see cudnn.h. A question or a plan holds its descriptors in a bag and destroys them together.
 *
 *     tensors x, w, y ──> convolution [──> sum with a bias] ──> operation graph ──> heuristics ──> configurations ──> plan ──> run
 */
#include "device/cudnn.h"

#include "base/error.h"
#include "device/cudnn_inner.h"
#include "device/cudnn_values.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

enum { MOST_KEPT = 96 };

/* What was answered before: a planner asks the same question many times. */
typedef struct answer {
    mf_cudnn_convolution conv;
    question *q; /* for the plan that may follow: the library's heuristics take 6 ms. NULL: a plan has it */
    uint32_t count;
    mf_cudnn_way list[MOST_KEPT];
    struct answer *next;
} answer;

/* ---- the library ---- */

enum { MOST_FOLDERS = 8 };
typedef struct folders {
    char path[MOST_FOLDERS][1024];
    uint32_t count;
} folders;

static void add_folder(folders *f, const char *file)
{
    const char *end = strrchr(file, '/');
    size_t bytes = end ? (size_t)(end - file) : 0;
    if (!bytes || bytes >= sizeof f->path[0] || strncmp(end, "/libcudnn", 9) != 0 || (end[9] != '.' && end[9] != '_'))
        return;
    for (uint32_t i = 0; i < f->count; i++)
        if (strncmp(f->path[i], file, bytes) == 0 && !f->path[i][bytes])
            return;
    if (f->count < MOST_FOLDERS)
        snprintf(f->path[f->count++], sizeof f->path[0], "%.*s", (int)bytes, file);
}

static int add_loaded(struct dl_phdr_info *info, size_t bytes, void *ctx)
{
    (void)bytes;
    add_folder(ctx, info->dlpi_name ? info->dlpi_name : "");
    return 0;
}

/* What the part that knows it says, where this process has that folder's; else 0. */
static size_t version_in(const char *folder)
{
    char file[1100];
    size_t (*version)(void) = NULL;
    snprintf(file, sizeof file, "%s/libcudnn_graph.so.9", folder);
    void *part = dlopen(file, RTLD_NOW | RTLD_NOLOAD), *symbol = part ? dlsym(part, "cudnnGetVersion") : NULL;
    memcpy(&version, &symbol, sizeof version);
    size_t said = version ? version() : 0;
    if (part)
        dlclose(part);
    return said;
}

/* cuDNN's parts find each other by bare names, among whatever of them the process has. With parts of two versions nobody
 * knows which of them computes. */
static memfit_status check_one_version(mf_cudnn *dnn, memfit_error *err)
{
    size_t runs = dnn->version(); /* of the parts that the shim has found */
    folders f = {.count = 0};
    add_folder(&f, dnn->library.path);
    dl_iterate_phdr(add_loaded, &f);
    for (uint32_t i = 0; i < f.count; i++) {
        size_t other = version_in(f.path[i]);
        if (other == runs || (!other && f.count == 1)) /* all of it in one file: there is nothing to mix */
            continue;
        if (!other && i == 0) /* the shim alone; its parts are in another folder, and say the version */
            continue;
        return mf_fail(err, MEMFIT_CONFLICT,
                       "parts of two copies of cuDNN are in this process: %zu is used, and %s has %zu (0: not known)\n"
                       "leave one of them: LD_LIBRARY_PATH, LD_PRELOAD, MEMFIT_LIB_CUDNN",
                       runs, f.path[i], other);
    }
    return MEMFIT_OK;
}

memfit_status mf_cudnn_open(const mf_finder *finder, const memfit_host *host, mf_cudnn **out, memfit_error *err)
{
    mf_library other;
    mf_cudnn *dnn = mf_host_zalloc(host, sizeof *dnn);
    if (!dnn)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for cuDNN");
    dnn->host = host;
    /* cuDNN opens these two by their bare names: they must be there before it */
    memfit_status status = mf_library_open(finder, MF_LIBRARY_NVRTC, 0, &other, err);
    if (status == MEMFIT_OK)
        status = mf_library_open(finder, MF_LIBRARY_CUBLASLT, 0, &other, err);
    if (status == MEMFIT_OK)
        status = mf_library_open(finder, MF_LIBRARY_CUDNN, 9, &dnn->library, err);
    const mf_symbol symbols[] = {{"cudnnGetVersion", &dnn->version, true},
                                 {"cudnnCreate", &dnn->create, true},
                                 {"cudnnDestroy", &dnn->destroy, true},
                                 {"cudnnSetStream", &dnn->set_stream, true},
                                 {"cudnnGetErrorString", &dnn->error_text, true},
                                 {"cudnnGetLastErrorString", &dnn->last_error, true},
                                 {"cudnnBackendCreateDescriptor", &dnn->make, true},
                                 {"cudnnBackendDestroyDescriptor", &dnn->end, true},
                                 {"cudnnBackendSetAttribute", &dnn->set, true},
                                 {"cudnnBackendGetAttribute", &dnn->get, true},
                                 {"cudnnBackendFinalize", &dnn->finalize, true},
                                 {"cudnnBackendExecute", &dnn->execute, true}};
    if (status == MEMFIT_OK)
        status = mf_library_resolve(&dnn->library, symbols, sizeof symbols / sizeof *symbols, err);
    if (status == MEMFIT_OK)
        status = check_one_version(dnn, err);
    if (status) {
        mf_host_free(host, dnn, sizeof *dnn);
        return status;
    }
    *out = dnn;
    return MEMFIT_OK;
}

static void forget(mf_cudnn *dnn)
{
    while (dnn->answers) {
        answer *a = dnn->answers;
        dnn->answers = a->next;
        if (a->q)
            mf_dnn_end(a->q);
        mf_host_free(dnn->host, a, sizeof *a);
    }
}

void mf_cudnn_close(mf_cudnn *dnn)
{
    if (!dnn)
        return;
    forget(dnn);
    mf_dnn_forget_attentions(dnn);
    if (dnn->described)
        dnn->end(dnn->described);
    if (dnn->handle)
        dnn->destroy(dnn->handle);
    mf_host_free(dnn->host, dnn, sizeof *dnn);
}

size_t mf_cudnn_version(const mf_cudnn *dnn)
{
    return dnn->version();
}

const char *mf_cudnn_path(const mf_cudnn *dnn)
{
    return dnn->library.path;
}

memfit_status mf_dnn_say(mf_cudnn *dnn, int status, const char *what, memfit_error *err)
{
    char message[300] = "";
    dnn->last_error(message, sizeof message);
    return mf_fail(err, MEMFIT_DEVICE, "cuDNN: %s failed: %s; %.250s", what, dnn->error_text(status), message);
}

memfit_status mf_cudnn_describe(mf_cudnn *dnn, const char *json, size_t bytes, memfit_error *err)
{
    dnn_descriptor prop = NULL;
    int status = dnn->make(DNN_BACKEND_DEVICEPROP_DESCRIPTOR, &prop);
    if (!status)
        status = dnn->set(prop, DNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, DNN_TYPE_CHAR, (int64_t)bytes, json);
    if (!status)
        status = dnn->finalize(prop);
    if (status) {
        memfit_status failed = mf_dnn_say(dnn, status, "describing a card", err);
        if (prop)
            dnn->end(prop);
        return failed;
    }
    forget(dnn);
    mf_dnn_forget_attentions(dnn);
    if (dnn->described)
        dnn->end(dnn->described);
    dnn->described = prop;
    return MEMFIT_OK;
}

memfit_status mf_cudnn_take(mf_cudnn *dnn, memfit_error *err)
{
    int status = dnn->create(&dnn->handle);
    return status ? mf_dnn_say(dnn, status, "starting on the card", err) : MEMFIT_OK;
}

/* ---- descriptors ---- */

dnn_descriptor mf_dnn_make(question *q, int type)
{
    dnn_descriptor d = NULL;
    if (q->status || q->bagged == MOST_BAG)
        return NULL;
    q->status = q->dnn->make(type, &d);
    if (!q->status)
        q->bag[q->bagged++] = d;
    return d;
}

void mf_dnn_set(question *q, dnn_descriptor d, int name, int type, int64_t count, const void *values)
{
    if (!q->status && d)
        q->status = q->dnn->set(d, name, type, count, values);
}

void mf_dnn_set_descriptor(question *q, dnn_descriptor d, int name, dnn_descriptor value)
{
    mf_dnn_set(q, d, name, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void mf_dnn_finalize(question *q, dnn_descriptor d)
{
    if (!q->status && d)
        q->status = q->dnn->finalize(d);
}

void mf_dnn_end(question *q)
{
    const memfit_host *host = q->dnn->host;
    while (q->bagged)
        q->dnn->end(q->bag[--q->bagged]);
    mf_host_free(host, q, sizeof *q);
}

/* Channels last: `first`, channels, then space, in cuDNN's order of dimensions. `passing`: one that has no bytes. */
static dnn_descriptor tensor_of(question *q, const mf_cudnn_convolution *c, int64_t id, int64_t first, int64_t channels,
                                const int64_t *space, int type, bool passing)
{
    int64_t dims[5] = {first, channels}, strides[5], align = ALIGNMENT, step = channels;
    strides[1] = 1;
    for (uint32_t i = c->dims; i-- > 0;) {
        dims[2 + i] = space[i];
        strides[2 + i] = step;
        step *= space[i];
    }
    strides[0] = step;
    dnn_descriptor d = mf_dnn_make(q, DNN_BACKEND_TENSOR_DESCRIPTOR);
    mf_dnn_set(q, d, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, 1, &type);
    mf_dnn_set(q, d, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 2 + c->dims, dims);
    mf_dnn_set(q, d, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 2 + c->dims, strides);
    mf_dnn_set(q, d, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, &id);
    mf_dnn_set(q, d, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, &align);
    if (passing)
        mf_dnn_set(q, d, DNN_ATTR_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &passing);
    mf_dnn_finalize(q, d);
    return d;
}

static dnn_descriptor tensor(question *q, const mf_cudnn_convolution *c, int64_t id, int64_t first, int64_t channels,
                             const int64_t *space)
{
    static const int types[] = {DNN_DATA_FLOAT, DNN_DATA_HALF, DNN_DATA_BFLOAT16};
    return tensor_of(q, c, id, first, channels, space, types[c->type], false);
}

/* x + bias -> y */
static dnn_descriptor sum_with_bias(question *q, const mf_cudnn_convolution *c, dnn_descriptor x, dnn_descriptor y)
{
    static const int64_t one[3] = {1, 1, 1};
    int mode = DNN_POINTWISE_ADD, compute = DNN_DATA_FLOAT;
    dnn_descriptor add = mf_dnn_make(q, DNN_BACKEND_POINTWISE_DESCRIPTOR);
    mf_dnn_set(q, add, DNN_ATTR_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, &mode);
    mf_dnn_set(q, add, DNN_ATTR_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, &compute);
    mf_dnn_finalize(q, add);
    dnn_descriptor op = mf_dnn_make(q, DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    mf_dnn_set_descriptor(q, op, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, add);
    mf_dnn_set_descriptor(q, op, DNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    mf_dnn_set_descriptor(q, op, DNN_ATTR_OPERATION_POINTWISE_BDESC, tensor(q, c, 4, 1, c->out_channels, one));
    mf_dnn_set_descriptor(q, op, DNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    mf_dnn_finalize(q, op);
    return op;
}

static dnn_descriptor convolution(question *q, const mf_cudnn_convolution *c)
{
    int64_t dims = c->dims;
    int compute = DNN_DATA_FLOAT, mode = DNN_CROSS_CORRELATION;
    dnn_descriptor d = mf_dnn_make(q, DNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    mf_dnn_set(q, d, DNN_ATTR_CONVOLUTION_SPATIAL_DIMS, DNN_TYPE_INT64, 1, &dims);
    mf_dnn_set(q, d, DNN_ATTR_CONVOLUTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &compute);
    mf_dnn_set(q, d, DNN_ATTR_CONVOLUTION_CONV_MODE, DNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    mf_dnn_set(q, d, DNN_ATTR_CONVOLUTION_PRE_PADDINGS, DNN_TYPE_INT64, dims, c->before);
    mf_dnn_set(q, d, DNN_ATTR_CONVOLUTION_POST_PADDINGS, DNN_TYPE_INT64, dims, c->after);
    mf_dnn_set(q, d, DNN_ATTR_CONVOLUTION_DILATIONS, DNN_TYPE_INT64, dims, c->dilation);
    mf_dnn_set(q, d, DNN_ATTR_CONVOLUTION_FILTER_STRIDES, DNN_TYPE_INT64, dims, c->stride);
    mf_dnn_finalize(q, d);
    return d;
}

static void make_graph(question *q, const mf_cudnn_convolution *c)
{
    static const int kinds[] = {DNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                DNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                DNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR};
    static const int names[3][6] = {
        {DNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, DNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
         DNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, DNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         DNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, DNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
    const int *name = names[c->direction];
    float one = 1, zero = 0;
    dnn_descriptor y = tensor(q, c, 3, c->batch, c->out_channels, c->out), ops[2] = {NULL, NULL};
    dnn_descriptor made = y; /* with a bias: what is handed to the sum */
    if (c->bias)
        made = tensor_of(q, c, 5, c->batch, c->out_channels, c->out, DNN_DATA_FLOAT, true);
    dnn_descriptor op = mf_dnn_make(q, kinds[c->direction]);
    mf_dnn_set_descriptor(q, op, name[0], convolution(q, c));
    mf_dnn_set_descriptor(q, op, name[1], tensor(q, c, 1, c->batch, c->in_channels, c->in));
    mf_dnn_set_descriptor(q, op, name[2], tensor(q, c, 2, c->out_channels, c->in_channels / c->groups, c->kernel));
    mf_dnn_set_descriptor(q, op, name[3], made);
    mf_dnn_set(q, op, name[4], DNN_TYPE_FLOAT, 1, &one);
    mf_dnn_set(q, op, name[5], DNN_TYPE_FLOAT, 1, &zero);
    mf_dnn_finalize(q, op);
    ops[0] = op;
    if (c->bias)
        ops[1] = sum_with_bias(q, c, made, y);
    mf_dnn_graph(q, ops, c->bias ? 2 : 1);
}

void mf_dnn_graph(question *q, const dnn_descriptor *ops, int64_t count)
{
    q->graph = mf_dnn_make(q, DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    mf_dnn_set(q, q->graph, DNN_ATTR_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, count, ops);
    if (q->dnn->handle)
        mf_dnn_set(q, q->graph, DNN_ATTR_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &q->dnn->handle);
    mf_dnn_finalize(q, q->graph);
}

/* The list of one mode behind what is there. A list that cannot be had is an empty one. */
static void ask_mode(question *q, int mode)
{
    int64_t count = 0;
    dnn_descriptor h = mf_dnn_make(q, DNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    mf_dnn_set_descriptor(q, h, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, q->graph);
    mf_dnn_set(q, h, DNN_ATTR_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, &mode);
    if (!q->dnn->handle && q->dnn->described)
        mf_dnn_set_descriptor(q, h, DNN_ATTR_ENGINEHEUR_DEVICEPROP, q->dnn->described);
    if (q->status || q->dnn->finalize(h) != 0 ||
        q->dnn->get(h, DNN_ATTR_ENGINEHEUR_RESULTS, DNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL) != 0)
        return;
    int64_t room = MOST_CONFIGS - q->config_count, made = 0;
    count = count < room ? count : room;
    dnn_descriptor *list = q->configs + q->config_count;
    while (made < count && (list[made] = mf_dnn_make(q, DNN_BACKEND_ENGINECFG_DESCRIPTOR)))
        made++;
    int64_t got = 0;
    if (made > 0 && q->dnn->get(h, DNN_ATTR_ENGINEHEUR_RESULTS, DNN_TYPE_BACKEND_DESCRIPTOR, made, &got, list) == 0)
        q->config_count += (uint32_t)(got < made ? got : made);
}

/* ---- what a configuration is ---- */

static void read_notes(question *q, bool f32, mf_cudnn_way *way)
{
    int notes[MOST_NOTES];
    int64_t n = 0;
    way->deterministic = true;
    if (q->dnn->get(q->engine, DNN_ATTR_ENGINE_NUMERICAL_NOTE, DNN_TYPE_NUMERICAL_NOTE, MOST_NOTES, &n, notes) == 0)
        for (int64_t i = 0; i < n && i < MOST_NOTES; i++) {
            if (notes[i] == DNN_NUMERICAL_NOTE_NONDETERMINISTIC)
                way->deterministic = false;
            if (f32 &&
                (notes[i] == DNN_NUMERICAL_NOTE_TENSOR_CORE || notes[i] == DNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS))
                way->tf32 = true;
        }
    if (q->dnn->get(q->engine, DNN_ATTR_ENGINE_BEHAVIOR_NOTE, DNN_TYPE_BEHAVIOR_NOTE, MOST_NOTES, &n, notes) == 0)
        for (int64_t i = 0; i < n && i < MOST_NOTES; i++)
            if (notes[i] == DNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION)
                way->compiled = true;
}

/* Knob 2 of a kernel that has knob 25 says which tile it has, by the workspaces seen (bench/cuda.md, workspaces). */
static uint32_t tile_of(int64_t knob)
{
    static const uint8_t kib[] = {64, 32, 0, 128, 64, 16, 128, 32, 0, 64};
    return knob >= 0 && knob < (int64_t)sizeof kib ? (uint32_t)kib[knob] << 10 : 0;
}

/* A hash of all; the tile and whether its sums are shared are read beside it. */
static uint64_t knobs_of(question *q, dnn_descriptor config, mf_cudnn_way *way)
{
    enum { TILE = 2, WHOLE = 25 };
    int64_t tile = -1, whole = -1;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    int64_t n = 0, one = 0;
    for (uint32_t i = 0; i < MOST_KNOBS; i++)
        if (!q->knobs[i])
            q->knobs[i] = mf_dnn_make(q, DNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    if (q->status || q->dnn->get(config, DNN_ATTR_ENGINECFG_KNOB_CHOICES, DNN_TYPE_BACKEND_DESCRIPTOR, MOST_KNOBS, &n,
                                 q->knobs) != 0)
        return 0;
    for (int64_t i = 0; i < n && i < MOST_KNOBS; i++) {
        int type = 0;
        int64_t value = 0;
        q->dnn->get(q->knobs[i], DNN_ATTR_KNOB_CHOICE_KNOB_TYPE, DNN_TYPE_KNOB_TYPE, 1, &one, &type);
        q->dnn->get(q->knobs[i], DNN_ATTR_KNOB_CHOICE_KNOB_VALUE, DNN_TYPE_INT64, 1, &one, &value);
        hash = (hash ^ (uint64_t)type) * UINT64_C(0x100000001b3);
        hash = (hash ^ (uint64_t)value) * UINT64_C(0x100000001b3);
        tile = type == TILE ? value : tile;
        whole = type == WHOLE ? value : whole;
    }
    way->tile_bytes = whole >= 0 ? tile_of(tile) : 0;
    way->shares = whole == 0 && way->tile_bytes && way->workspace_bytes >= way->tile_bytes;
    return hash;
}

bool mf_dnn_read_way(question *q, bool f32, dnn_descriptor config, mf_cudnn_way *way)
{
    int64_t n = 0, workspace = 0;
    *way = (mf_cudnn_way){0};
    if (!q->engine)
        q->engine = mf_dnn_make(q, DNN_BACKEND_ENGINE_DESCRIPTOR);
    if (q->status ||
        q->dnn->get(config, DNN_ATTR_ENGINECFG_ENGINE, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &q->engine) != 0 ||
        q->dnn->get(q->engine, DNN_ATTR_ENGINE_GLOBAL_INDEX, DNN_TYPE_INT64, 1, &n, &way->engine) != 0 ||
        q->dnn->get(config, DNN_ATTR_ENGINECFG_WORKSPACE_SIZE, DNN_TYPE_INT64, 1, &n, &workspace) != 0)
        return false;
    way->workspace_bytes = workspace > 0 ? (uint64_t)workspace : 0;
    read_notes(q, f32, way);
    way->settings = knobs_of(q, config, way);
    return q->status == 0;
}

void mf_dnn_lists(question *q)
{
    if (!q->status)
        ask_mode(q, DNN_HEUR_MODE_A);
    if (!q->status) /* float32 without TF32 is often here alone */
        ask_mode(q, DNN_HEUR_MODE_FALLBACK);
}

/* A question with its lists; NULL without memory. */
static question *question_make(mf_cudnn *dnn, const mf_cudnn_convolution *c)
{
    question *q = mf_host_zalloc(dnn->host, sizeof *q);
    if (!q)
        return NULL;
    q->dnn = dnn;
    make_graph(q, c);
    mf_dnn_lists(q);
    return q;
}

bool mf_dnn_same(const mf_cudnn_convolution *a, const mf_cudnn_convolution *b)
{
    bool equal = a->direction == b->direction && a->type == b->type && a->bias == b->bias && a->wide == b->wide &&
                 a->dims == b->dims && a->batch == b->batch && a->in_channels == b->in_channels &&
                 a->out_channels == b->out_channels && a->groups == b->groups;
    for (uint32_t i = 0; i < a->dims && equal; i++)
        equal = a->in[i] == b->in[i] && a->out[i] == b->out[i] && a->kernel[i] == b->kernel[i] &&
                a->stride[i] == b->stride[i] && a->dilation[i] == b->dilation[i] && a->before[i] == b->before[i] &&
                a->after[i] == b->after[i];
    return equal;
}

/* The library's list without what comes twice. What cuDNN refuses it cannot run: an empty list, no failure. */
static void read_list(question *q, answer *a)
{
    for (uint32_t i = 0; i < q->config_count && a->count < MOST_KEPT; i++) {
        mf_cudnn_way *way = &a->list[a->count];
        bool again = false;
        if (!mf_dnn_read_way(q, a->conv.type == MF_CUDNN_F32, q->configs[i], way))
            continue;
        for (uint32_t k = 0; k < a->count; k++)
            again = again || (a->list[k].engine == way->engine && a->list[k].settings == way->settings);
        /* of one engine with many settings the first few are enough: others must find room in the list */
        uint32_t alike = 0;
        for (uint32_t k = 0; k < a->count; k++)
            alike += a->list[k].engine == way->engine;
        a->count += !again && (a->conv.wide || alike < 3);
    }
}

static answer *answer_of(mf_cudnn *dnn, const mf_cudnn_convolution *conv)
{
    for (answer *a = dnn->answers; a; a = a->next)
        if (mf_dnn_same(&a->conv, conv))
            return a;
    answer *a = mf_host_zalloc(dnn->host, sizeof *a);
    question *q = a ? question_make(dnn, conv) : NULL;
    if (!q) {
        mf_host_free(dnn->host, a, sizeof *a);
        return NULL;
    }
    a->conv = *conv;
    read_list(q, a);
    if (q->status == 0)
        a->q = q;
    else
        mf_dnn_end(q);
    a->next = dnn->answers;
    dnn->answers = a;
    return a;
}

memfit_status mf_cudnn_ask(mf_cudnn *dnn, const mf_cudnn_convolution *conv, mf_cudnn_way *list, uint32_t most,
                           uint32_t *count, memfit_error *err)
{
    *count = 0;
    if (!dnn->handle && !dnn->described)
        return mf_fail(err, MEMFIT_INTERNAL, "cuDNN was asked without a card or a description of one");
    const answer *a = answer_of(dnn, conv);
    if (!a)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a question to cuDNN");
    for (*count = 0; *count < a->count && *count < most; (*count)++)
        list[*count] = a->list[*count];
    return MEMFIT_OK;
}

question *mf_dnn_take_question(mf_cudnn *dnn, const mf_cudnn_convolution *conv)
{
    mf_cudnn_convolution wide = *conv, narrow = *conv;
    wide.wide = true;
    narrow.wide = false;
    for (answer *a = dnn->answers; a; a = a->next)
        if (a->q && (mf_dnn_same(&a->conv, &wide) || mf_dnn_same(&a->conv, &narrow))) {
            question *q = a->q;
            a->q = NULL;
            return q;
        }
    return question_make(dnn, conv);
}
