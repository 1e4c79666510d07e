/*
 * cudnn_attention.c: attention and its gradient as cuDNN wants to see them: the graph of products, masks, softmax and sums
 * that its fused engines recognize, node by node as NVIDIA's cudnn-frontend composes it (scaled_dot_product_flash_attention.h).
 *
 *     forward    s = scale q k', masked; stats = max + log(sum(exp(s - max))); o = softmax(s) v
 *     backward   sums = rows of do o; p = exp(scale q k' - stats); dv = p' do; ds = scale p (do v' - sums); dk = ds' q; dq = ds k
 *
 * dq as a plain product makes the gradient the same every time; the other form, sums added up in float32 by whoever comes
 * first, has no note that says so. Plans are compiled at run time, so operations of one shape share theirs: they live as
 * long as the library.
 */
#include "base/error.h"
#include "device/cudnn_inner.h"
#include "device/cudnn_values.h"

#include <math.h>
#include <string.h>

/* Identities of the tensors with bytes: pointers of a run come in this order. */
enum { Q, K, V, O, STATS, SCALE, MASKED, DO, DQ, DK, DV, SUMS, ONE, IDS, FIRST_ID = 1, FIRST_PASSING = 100 };
enum { MOST_OPS = 24, MOST_WAYS = 16, PACKS = 64, ALIGN = 16 };

typedef struct attention_pack {
    dnn_descriptor descriptor;
    void *pointers[IDS + 1]; /* the last: the workspace */
} attention_pack;

struct mf_cudnn_attention_plan {
    mf_cudnn_attention what;
    bool answers; /* has the library's list, and no plan */
    mf_cudnn_way ways[MOST_WAYS];
    uint32_t way_count;
    question *q; /* the plan's */
    mf_cudnn_way way;
    dnn_descriptor plan;
    uint64_t workspace_bytes;
    float scale, masked, one;
    attention_pack packs[PACKS];
    uint32_t next_pack;
    mf_cudnn *dnn;
    mf_cudnn_attention_plan *next;
};

/* A graph while it is made. */
typedef struct drawing {
    question *q;
    const mf_cudnn_attention *a;
    dnn_descriptor ops[MOST_OPS];
    uint32_t count;
    int64_t next_id;
    int half;
} drawing;

typedef struct extent {
    int64_t dim[4], stride[4];
} extent;

/* ---- tensors ---- */

static dnn_descriptor tensor(drawing *d, const extent *e, int type, int id, bool by_value)
{
    bool yes = true;
    int64_t align = ALIGN, name = id < 0 ? d->next_id++ : FIRST_ID + id;
    dnn_descriptor t = mf_dnn_make(d->q, DNN_BACKEND_TENSOR_DESCRIPTOR);
    mf_dnn_set(d->q, t, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, 1, &type);
    mf_dnn_set(d->q, t, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, e->dim);
    mf_dnn_set(d->q, t, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, e->stride);
    mf_dnn_set(d->q, t, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, &name);
    mf_dnn_set(d->q, t, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, &align);
    if (by_value)
        mf_dnn_set(d->q, t, DNN_ATTR_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 1, &yes);
    else if (id < 0)
        mf_dnn_set(d->q, t, DNN_ATTR_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &yes);
    mf_dnn_finalize(d->q, t);
    return t;
}

/* Rows of `steps` steps as they lie in memory. */
static extent rows_of(const mf_cudnn_attention *a, int64_t steps)
{
    int64_t h = a->heads, w = a->depth;
    extent e = {{a->batch, h, steps, w},
                {h * steps * w, a->steps_first ? w : steps * w, a->steps_first ? h * w : w, 1}};
    return e;
}

static extent turned(extent e)
{
    extent t = {{e.dim[0], e.dim[1], e.dim[3], e.dim[2]}, {e.stride[0], e.stride[1], e.stride[3], e.stride[2]}};
    return t;
}

static dnn_descriptor rows(drawing *d, int64_t steps, int id)
{
    extent e = rows_of(d->a, steps);
    return tensor(d, &e, d->half, id, false);
}

static dnn_descriptor turned_rows(drawing *d, int64_t steps, int id)
{
    extent e = turned(rows_of(d->a, steps));
    return tensor(d, &e, d->half, id, false);
}

static extent scores_of(const mf_cudnn_attention *a)
{
    int64_t t = a->queries, s = a->keys;
    extent e = {{a->batch, a->heads, t, s}, {a->heads * t * s, t * s, s, 1}};
    return e;
}

static dnn_descriptor scores(drawing *d, int type)
{
    extent e = scores_of(d->a);
    return tensor(d, &e, type, -1, false);
}

static dnn_descriptor per_row(drawing *d, int id)
{
    int64_t t = d->a->queries;
    extent e = {{d->a->batch, d->a->heads, t, 1}, {d->a->heads * t, t, 1, 1}};
    return tensor(d, &e, DNN_DATA_FLOAT, id, false);
}

static dnn_descriptor number(drawing *d, int id)
{
    static const extent one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return tensor(d, &one, DNN_DATA_FLOAT, id, true);
}

/* ---- operations: each is noted, and answers its result ---- */

static dnn_descriptor noted(drawing *d, dnn_descriptor op, dnn_descriptor result)
{
    mf_dnn_finalize(d->q, op);
    if (d->count < MOST_OPS)
        d->ops[d->count++] = op;
    return result;
}

static dnn_descriptor product(drawing *d, dnn_descriptor x, dnn_descriptor y, dnn_descriptor result)
{
    int compute = DNN_DATA_FLOAT;
    dnn_descriptor m = mf_dnn_make(d->q, DNN_BACKEND_MATMUL_DESCRIPTOR);
    mf_dnn_set(d->q, m, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &compute);
    mf_dnn_finalize(d->q, m);
    dnn_descriptor op = mf_dnn_make(d->q, DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_MATMUL_ADESC, x);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_MATMUL_BDESC, y);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_MATMUL_CDESC, result);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_MATMUL_DESC, m);
    return noted(d, op, result);
}

typedef struct pointwise_form {
    int mode, compute;
    int64_t axis; /* of an index; 0: none */
} pointwise_form;

static dnn_descriptor pointwise(drawing *d, pointwise_form f, dnn_descriptor x, dnn_descriptor y, dnn_descriptor by,
                                dnn_descriptor result)
{
    dnn_descriptor p = mf_dnn_make(d->q, DNN_BACKEND_POINTWISE_DESCRIPTOR);
    mf_dnn_set(d->q, p, DNN_ATTR_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, &f.mode);
    mf_dnn_set(d->q, p, DNN_ATTR_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, &f.compute);
    if (f.axis)
        mf_dnn_set(d->q, p, DNN_ATTR_POINTWISE_AXIS, DNN_TYPE_INT64, 1, &f.axis);
    mf_dnn_finalize(d->q, p);
    dnn_descriptor op = mf_dnn_make(d->q, DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (y)
        mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_POINTWISE_BDESC, y);
    if (by)
        mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_POINTWISE_TDESC, by);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_POINTWISE_YDESC, result);
    return noted(d, op, result);
}

static dnn_descriptor point(drawing *d, int mode, dnn_descriptor x, dnn_descriptor y, dnn_descriptor result)
{
    return pointwise(d, (pointwise_form){mode, DNN_DATA_FLOAT, 0}, x, y, NULL, result);
}

static dnn_descriptor reduced(drawing *d, int how, dnn_descriptor x, dnn_descriptor result)
{
    int compute = DNN_DATA_FLOAT;
    dnn_descriptor r = mf_dnn_make(d->q, DNN_BACKEND_REDUCTION_DESCRIPTOR);
    mf_dnn_set(d->q, r, DNN_ATTR_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    mf_dnn_set(d->q, r, DNN_ATTR_REDUCTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &compute);
    mf_dnn_finalize(d->q, r);
    dnn_descriptor op = mf_dnn_make(d->q, DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_REDUCTION_YDESC, result);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_REDUCTION_DESC, r);
    return noted(d, op, result);
}

static dnn_descriptor reshaped(drawing *d, dnn_descriptor x, dnn_descriptor result)
{
    dnn_descriptor op = mf_dnn_make(d->q, DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    mf_dnn_set_descriptor(d->q, op, DNN_ATTR_OPERATION_RESHAPE_YDESC, result);
    return noted(d, op, result);
}

static dnn_descriptor turned_scores(drawing *d, dnn_descriptor x)
{
    extent e = turned(scores_of(d->a));
    return reshaped(d, x, tensor(d, &e, d->half, -1, false));
}

/* No query looks at a later key. */
static dnn_descriptor masked(drawing *d, dnn_descriptor x)
{
    if (!d->a->causal)
        return x;
    const pointwise_form step = {DNN_POINTWISE_GEN_INDEX, DNN_DATA_INT32, 2},
                         key = {DNN_POINTWISE_GEN_INDEX, DNN_DATA_INT32, 3};
    dnn_descriptor t = pointwise(d, step, x, NULL, NULL, scores(d, DNN_DATA_INT32));
    dnn_descriptor s = pointwise(d, key, x, NULL, NULL, scores(d, DNN_DATA_INT32));
    dnn_descriptor sees = pointwise(d, (pointwise_form){DNN_POINTWISE_CMP_GE, DNN_DATA_BOOLEAN, 0}, t, s, NULL,
                                    scores(d, DNN_DATA_BOOLEAN));
    return pointwise(d, (pointwise_form){DNN_POINTWISE_BINARY_SELECT, DNN_DATA_FLOAT, 0}, x, number(d, MASKED), sees,
                     scores(d, DNN_DATA_FLOAT));
}

/* ---- the two graphs ---- */

static void draw_forward(drawing *d)
{
    const mf_cudnn_attention *a = d->a;
    dnn_descriptor x = product(d, rows(d, a->queries, Q), turned_rows(d, a->keys, K), scores(d, DNN_DATA_FLOAT));
    x = masked(d, point(d, DNN_POINTWISE_MUL, x, number(d, SCALE), scores(d, DNN_DATA_FLOAT)));
    dnn_descriptor most = reduced(d, DNN_REDUCE_TENSOR_MAX, x, per_row(d, -1));
    dnn_descriptor less = point(d, DNN_POINTWISE_SUB, x, most, scores(d, DNN_DATA_FLOAT));
    dnn_descriptor e = point(d, DNN_POINTWISE_EXP, less, NULL, scores(d, DNN_DATA_FLOAT));
    dnn_descriptor sum = reduced(d, DNN_REDUCE_TENSOR_ADD, e, per_row(d, -1));
    dnn_descriptor log = point(d, DNN_POINTWISE_LOG, sum, NULL, per_row(d, -1));
    point(d, DNN_POINTWISE_ADD, most, log, per_row(d, STATS));
    dnn_descriptor weights = point(d, DNN_POINTWISE_DIV, e, sum, scores(d, d->half));
    product(d, weights, rows(d, a->keys, V), rows(d, a->queries, O));
}

static dnn_descriptor draw_sums(drawing *d, dnn_descriptor slopes)
{
    int64_t h = d->a->heads, t = d->a->queries, w = d->a->depth;
    extent both = {{d->a->batch, h, t, w}, {h * t * w, t * w, h * w, 1}};
    dnn_descriptor x = point(d, DNN_POINTWISE_MUL, slopes, rows(d, t, O), tensor(d, &both, DNN_DATA_FLOAT, -1, false));
    x = reduced(d, DNN_REDUCE_TENSOR_ADD, x, per_row(d, -1));
    return point(d, DNN_POINTWISE_MUL, x, number(d, ONE), per_row(d, SUMS));
}

static void draw_backward(drawing *d)
{
    const mf_cudnn_attention *a = d->a;
    dnn_descriptor slopes = rows(d, a->queries, DO), q = rows(d, a->queries, Q), k = turned_rows(d, a->keys, K);
    dnn_descriptor scale = number(d, SCALE), sums = draw_sums(d, slopes);
    dnn_descriptor x = product(d, q, k, scores(d, DNN_DATA_FLOAT));
    x = point(d, DNN_POINTWISE_MUL, x, scale, scores(d, DNN_DATA_FLOAT));
    x = masked(d, point(d, DNN_POINTWISE_SUB, x, per_row(d, STATS), scores(d, DNN_DATA_FLOAT)));
    dnn_descriptor p = point(d, DNN_POINTWISE_EXP, x, NULL, scores(d, DNN_DATA_FLOAT));
    product(d, turned_scores(d, p), slopes, rows(d, a->keys, DV));
    x = product(d, slopes, turned_rows(d, a->keys, V), scores(d, DNN_DATA_FLOAT));
    x = point(d, DNN_POINTWISE_SUB, x, sums, scores(d, DNN_DATA_FLOAT));
    x = point(d, DNN_POINTWISE_MUL, x, p, scores(d, DNN_DATA_FLOAT));
    x = point(d, DNN_POINTWISE_MUL, x, scale, scores(d, DNN_DATA_FLOAT));
    product(d, turned_scores(d, x), q, rows(d, a->keys, DK));
    product(d, x, reshaped(d, k, rows(d, a->keys, -1)), rows(d, a->queries, DQ));
}

/* NULL without memory. */
static question *ask(mf_cudnn *dnn, const mf_cudnn_attention *a)
{
    question *q = mf_host_zalloc(dnn->host, sizeof *q);
    if (!q)
        return NULL;
    q->dnn = dnn;
    drawing d = {
        .q = q, .a = a, .next_id = FIRST_PASSING, .half = a->type == MF_CUDNN_F16 ? DNN_DATA_HALF : DNN_DATA_BFLOAT16};
    if (a->backward)
        draw_backward(&d);
    else
        draw_forward(&d);
    mf_dnn_graph(q, d.ops, d.count);
    mf_dnn_lists(q);
    return q;
}

/* ---- asked and kept ---- */

static bool same(const mf_cudnn_attention *a, const mf_cudnn_attention *b)
{
    return a->backward == b->backward && a->type == b->type && a->causal == b->causal &&
           a->steps_first == b->steps_first && a->batch == b->batch && a->heads == b->heads &&
           a->queries == b->queries && a->keys == b->keys && a->depth == b->depth && a->scale == b->scale;
}

static void read_ways(question *q, mf_cudnn_attention_plan *p)
{
    for (uint32_t i = 0; i < q->config_count && p->way_count < MOST_WAYS; i++) {
        mf_cudnn_way *way = &p->ways[p->way_count];
        bool again = !mf_dnn_read_way(q, false, q->configs[i], way);
        for (uint32_t k = 0; k < p->way_count; k++)
            again = again || (p->ways[k].engine == way->engine && p->ways[k].settings == way->settings);
        p->way_count += !again;
    }
}

static mf_cudnn_attention_plan *add(mf_cudnn *dnn, const mf_cudnn_attention *a)
{
    mf_cudnn_attention_plan *p = mf_host_zalloc(dnn->host, sizeof *p);
    if (!p)
        return NULL;
    p->what = *a;
    p->dnn = dnn;
    p->scale = (float)a->scale;
    p->masked = -INFINITY;
    p->one = 1;
    p->next = dnn->attentions;
    dnn->attentions = p;
    return p;
}

static mf_cudnn_attention_plan *kept(mf_cudnn *dnn, const mf_cudnn_attention *a, memfit_error *err)
{
    for (mf_cudnn_attention_plan *p = dnn->attentions; p; p = p->next)
        if (p->answers && same(&p->what, a))
            return p;
    question *q = ask(dnn, a);
    mf_cudnn_attention_plan *p = q ? add(dnn, a) : NULL;
    if (!p)
        mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a question to cuDNN");
    else {
        read_ways(q, p);
        p->answers = true;
    }
    if (q)
        mf_dnn_end(q);
    return p;
}

void mf_dnn_forget_attentions(mf_cudnn *dnn)
{
    while (dnn->attentions) {
        mf_cudnn_attention_plan *p = dnn->attentions;
        dnn->attentions = p->next;
        for (uint32_t i = 0; i < PACKS; i++)
            if (p->packs[i].descriptor)
                dnn->end(p->packs[i].descriptor);
        if (p->q)
            mf_dnn_end(p->q);
        mf_host_free(dnn->host, p, sizeof *p);
    }
}

memfit_status mf_cudnn_ask_attention(mf_cudnn *dnn, const mf_cudnn_attention *a, mf_cudnn_way *list, uint32_t most,
                                     uint32_t *count, memfit_error *err)
{
    *count = 0;
    if (!dnn->handle && !dnn->described)
        return mf_fail(err, MEMFIT_INTERNAL, "cuDNN was asked without a card or a description of one");
    const mf_cudnn_attention_plan *p = kept(dnn, a, err);
    if (!p)
        return MEMFIT_NO_HOST_MEMORY;
    for (; *count < p->way_count && *count < most; (*count)++)
        list[*count] = p->ways[*count];
    return MEMFIT_OK;
}

memfit_status mf_cudnn_plan_attention(mf_cudnn *dnn, const mf_cudnn_attention *a, const mf_cudnn_way *way,
                                      mf_cudnn_attention_plan **plan, memfit_error *err)
{
    for (mf_cudnn_attention_plan *p = dnn->attentions; p; p = p->next)
        if (p->q && same(&p->what, a) && p->way.engine == way->engine && p->way.settings == way->settings) {
            *plan = p;
            return MEMFIT_OK;
        }
    mf_cudnn_attention_plan *p = add(dnn, a);
    question *q = p ? ask(dnn, a) : NULL;
    if (!q)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a plan of cuDNN");
    for (uint32_t i = 0; i < q->config_count; i++) {
        mf_cudnn_way found;
        if (!mf_dnn_read_way(q, false, q->configs[i], &found) || found.engine != way->engine ||
            found.settings != way->settings)
            continue;
        if (!mf_dnn_build(q, q->configs[i], &p->plan, &p->workspace_bytes))
            break;
        p->q = q;
        p->way = found;
        *plan = p;
        return MEMFIT_OK;
    }
    memfit_status status = q->status ? mf_dnn_say(dnn, q->status, "making a plan of attention", err)
                                     : mf_fail(err, MEMFIT_NOT_FOUND, "cuDNN has no such engine for this attention");
    mf_dnn_end(q);
    return status;
}

uint64_t mf_cudnn_attention_workspace(const mf_cudnn_attention_plan *plan)
{
    return plan->workspace_bytes;
}

/* ---- running ---- */

static int make_pack(mf_cudnn *dnn, attention_pack *pack, void *const pointers[IDS + 1])
{
    int64_t ids[IDS], count = 0;
    void *given[IDS];
    for (int i = 0; i < IDS; i++)
        if (pointers[i]) {
            ids[count] = FIRST_ID + i;
            given[count++] = pointers[i];
        }
    if (pack->descriptor)
        dnn->end(pack->descriptor);
    *pack = (attention_pack){0};
    int status = dnn->make(DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack->descriptor);
    if (!status)
        status = dnn->set(pack->descriptor, DNN_ATTR_VARIANT_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR, count, given);
    if (!status)
        status = dnn->set(pack->descriptor, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, count, ids);
    if (!status)
        status = dnn->set(pack->descriptor, DNN_ATTR_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1, &pointers[IDS]);
    if (!status)
        status = dnn->finalize(pack->descriptor);
    if (!status)
        memcpy(pack->pointers, pointers, sizeof pack->pointers);
    return status;
}

memfit_status mf_cudnn_run_attention(mf_cudnn_attention_plan *p, const mf_cudnn_attention_at *at, void *workspace,
                                     void *stream, memfit_error *err)
{
    mf_cudnn *dnn = p->dnn;
    bool back = p->what.backward;
    void *const pointers[IDS + 1] = {[Q] = at->q,
                                     [K] = at->k,
                                     [V] = at->v,
                                     [O] = at->o,
                                     [STATS] = at->stats,
                                     [SCALE] = &p->scale,
                                     [MASKED] = p->what.causal ? &p->masked : NULL,
                                     [DO] = back ? at->slopes : NULL,
                                     [DQ] = back ? at->dq : NULL,
                                     [DK] = back ? at->dk : NULL,
                                     [DV] = back ? at->dv : NULL,
                                     [SUMS] = back ? at->sums : NULL,
                                     [ONE] = back ? &p->one : NULL,
                                     [IDS] = workspace};
    uint32_t i = 0;
    while (i < PACKS && memcmp(p->packs[i].pointers, pointers, sizeof pointers) != 0)
        i++;
    int status = 0;
    if (i == PACKS) {
        i = p->next_pack++ % PACKS;
        status = make_pack(dnn, &p->packs[i], pointers);
    }
    if (!status)
        status = dnn->set_stream(dnn->handle, stream);
    if (!status)
        status = dnn->execute(dnn->handle, p->plan, p->packs[i].descriptor);
    return status ? mf_dnn_say(dnn, status, "running attention", err) : MEMFIT_OK;
}
