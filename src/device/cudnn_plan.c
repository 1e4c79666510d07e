/*
 * cudnn_plan.c: plans of convolutions (cudnn.h), built once for all operations that are the same.
 *
 *     operation ──> plan made: its packs of addresses ──┐
 *     operation ──> plan made: its packs of addresses ──┴──> built: the library's plan, and how many use it
 */
#include "base/error.h"
#include "device/cudnn_inner.h"
#include "device/cudnn_values.h"

#include <string.h>

enum { MOST_PACKS = 8 };

/* Addresses of one run, as cuDNN wants to see them. */
typedef struct pack {
    dnn_descriptor descriptor;
    void *pointers[5]; /* x, w, y, bias, workspace */
} pack;

/* A plan of the library, one for all operations that are the same convolution by the same way: ResNet50 has 158, of 59 kinds. */
typedef struct built {
    mf_cudnn_convolution conv;
    int64_t engine;
    uint64_t settings;
    question *q;
    dnn_descriptor plan;
    uint64_t workspace_bytes;
    uint32_t users;
    struct built *next;
} built;

struct mf_cudnn_plan_made {
    built *built;
    bool bias;
    pack packs[MOST_PACKS]; /* an operation runs at few places: at its own, and where it is recomputed */
    uint32_t next;          /* the one that makes room */
};

bool mf_dnn_build(question *q, dnn_descriptor config, dnn_descriptor *plan, uint64_t *workspace_bytes)
{
    int64_t n = 0, workspace = 0;
    mf_cudnn *dnn = q->dnn;
    dnn_descriptor made = mf_dnn_make(q, DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    mf_dnn_set_descriptor(q, made, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (dnn->handle)
        mf_dnn_set(q, made, DNN_ATTR_EXECUTION_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, &dnn->handle);
    else
        mf_dnn_set_descriptor(q, made, DNN_ATTR_EXECUTION_PLAN_DEVICEPROP, dnn->described);
    mf_dnn_finalize(q, made);
    if (!q->status)
        q->status = dnn->get(made, DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, DNN_TYPE_INT64, 1, &n, &workspace);
    *plan = made;
    *workspace_bytes = workspace > 0 ? (uint64_t)workspace : 0;
    return q->status == 0;
}

static void drop_built(mf_cudnn *dnn, built *b)
{
    built **at = &dnn->plans;
    while (*at && *at != b)
        at = &(*at)->next;
    if (*at)
        *at = b->next;
    mf_dnn_end(b->q);
    mf_host_free(dnn->host, b, sizeof *b);
}

/* Builds what has the way's engine and settings. */
static memfit_status build_plan(mf_cudnn *dnn, built *b, memfit_error *err)
{
    question *q = b->q;
    for (uint32_t i = 0; i < q->config_count; i++) {
        mf_cudnn_way found;
        if (!mf_dnn_read_way(q, b->conv.type == MF_CUDNN_F32, q->configs[i], &found) || found.engine != b->engine ||
            found.settings != b->settings)
            continue;
        if (!mf_dnn_build(q, q->configs[i], &b->plan, &b->workspace_bytes))
            break;
        return MEMFIT_OK;
    }
    return q->status ? mf_dnn_say(dnn, q->status, "making a plan", err)
                     : mf_fail(err, MEMFIT_NOT_FOUND, "cuDNN has no such engine for this convolution");
}

/* The one that is there, or a new one; *out stays NULL without memory. */
static memfit_status take_built(mf_cudnn *dnn, const mf_cudnn_convolution *conv, const mf_cudnn_way *way, built **out,
                                memfit_error *err)
{
    for (built *b = dnn->plans; b; b = b->next)
        if (b->engine == way->engine && b->settings == way->settings && mf_dnn_same(&b->conv, conv)) {
            *out = b;
            return MEMFIT_OK;
        }
    built *b = mf_host_zalloc(dnn->host, sizeof *b);
    question *q = b ? mf_dnn_take_question(dnn, conv) : NULL;
    if (!q) {
        mf_host_free(dnn->host, b, sizeof *b);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a plan of cuDNN");
    }
    *b = (built){.conv = *conv, .engine = way->engine, .settings = way->settings, .q = q, .next = dnn->plans};
    memfit_status status = build_plan(dnn, b, err);
    if (status) {
        drop_built(dnn, b);
        return status;
    }
    *out = dnn->plans = b;
    return MEMFIT_OK;
}

memfit_status mf_cudnn_plan(mf_cudnn *dnn, const mf_cudnn_convolution *conv, const mf_cudnn_way *way,
                            mf_cudnn_plan_made **plan, memfit_error *err)
{
    mf_cudnn_plan_made *p = mf_host_zalloc(dnn->host, sizeof *p);
    if (!p)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a plan of cuDNN");
    memfit_status status = take_built(dnn, conv, way, &p->built, err);
    if (status) {
        mf_host_free(dnn->host, p, sizeof *p);
        return status;
    }
    p->built->users++;
    p->bias = conv->bias;
    *plan = p;
    return MEMFIT_OK;
}

uint64_t mf_cudnn_plan_workspace(const mf_cudnn_plan_made *plan)
{
    return plan->built->workspace_bytes;
}

static int make_pack(mf_cudnn *dnn, pack *p, void *const pointers[5], int64_t count)
{
    int64_t ids[4] = {1, 2, 3, 4};
    if (p->descriptor)
        dnn->end(p->descriptor);
    *p = (pack){0};
    int status = dnn->make(DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &p->descriptor);
    if (!status)
        status = dnn->set(p->descriptor, DNN_ATTR_VARIANT_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR, count, pointers);
    if (!status)
        status = dnn->set(p->descriptor, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, count, ids);
    if (!status)
        status = dnn->set(p->descriptor, DNN_ATTR_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1, &pointers[4]);
    if (!status)
        status = dnn->finalize(p->descriptor);
    if (!status)
        memcpy(p->pointers, pointers, sizeof p->pointers);
    return status;
}

memfit_status mf_cudnn_run(mf_cudnn_plan_made *plan, void *x, void *w, void *y, void *bias, void *workspace,
                           void *stream, memfit_error *err)
{
    mf_cudnn *dnn = plan->built->q->dnn;
    void *const pointers[5] = {x, w, y, bias, workspace};
    uint32_t i = 0;
    while (i < MOST_PACKS && memcmp(plan->packs[i].pointers, pointers, sizeof pointers) != 0)
        i++;
    int status = 0;
    if (i == MOST_PACKS) {
        i = plan->next++ % MOST_PACKS;
        status = make_pack(dnn, &plan->packs[i], pointers, plan->bias ? 4 : 3);
    }
    if (!status)
        status = dnn->set_stream(dnn->handle, stream);
    if (!status)
        status = dnn->execute(dnn->handle, plan->built->plan, plan->packs[i].descriptor);
    return status ? mf_dnn_say(dnn, status, "running a convolution", err) : MEMFIT_OK;
}

uint32_t mf_cudnn_built_plans(const mf_cudnn *dnn)
{
    uint32_t count = 0;
    for (const built *b = dnn->plans; b; b = b->next)
        count++;
    return count;
}

void mf_cudnn_plan_end(mf_cudnn_plan_made *plan)
{
    mf_cudnn *dnn = plan->built->q->dnn;
    for (uint32_t i = 0; i < MOST_PACKS; i++)
        if (plan->packs[i].descriptor)
            dnn->end(plan->packs[i].descriptor);
    if (--plan->built->users == 0)
        drop_built(dnn, plan->built);
    mf_host_free(dnn->host, plan, sizeof *plan);
}
