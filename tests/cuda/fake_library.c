/* fake_library.c: a library that has convolutions, in plain loops over host memory, filters in cuDNN's order: what stands
 * around a library's convolution (filters in and out, bias and its gradient) is compiled, and run, without cuDNN. And
 * products of matrices whose rows were filled up (product_pad.h). */
#include "engines.h"

#include "base/error.h"
#include "ops/cuda/convolutions.h"
#include "ops/cuda/cuda_spec.h"
#include "ops/cuda/product_pad.h"
#include "ops/reference/reference.h"

#include <stdlib.h>

typedef struct fake_call {
    cuda_call base;
    mf_cudnn_convolution conv;
    mf_dtype dtype;
    uint64_t filter_at;
    bool runs;
} fake_call;

/* One product of the sum that a convolution is: adds it to whichever of the three is the result. */
static void tap(const fake_call *f, double *sums, const void *x, const void *w, const void *y, int64_t ix, int64_t iw,
                int64_t iy)
{
    if (f->conv.direction == MF_CUDNN_FORWARD)
        sums[iy] += mf_ref_load(f->dtype, x, (uint64_t)ix) * mf_ref_load(f->dtype, w, (uint64_t)iw);
    else if (f->conv.direction == MF_CUDNN_DATA)
        sums[ix] += mf_ref_load(f->dtype, y, (uint64_t)iy) * mf_ref_load(f->dtype, w, (uint64_t)iw);
    else
        sums[iw] += mf_ref_load(f->dtype, x, (uint64_t)ix) * mf_ref_load(f->dtype, y, (uint64_t)iy);
}

/* Output position p of space, kernel position k: where it reads, or false outside. */
static bool source(const mf_cudnn_convolution *c, int64_t p, int64_t k, int64_t *at)
{
    int64_t place = 0, out_step = 1, kernel_step = 1, in_step = 1;
    for (uint32_t i = c->dims; i-- > 0;) {
        int64_t o = p / out_step % c->out[i], t = k / kernel_step % c->kernel[i];
        int64_t x = o * c->stride[i] + t * c->dilation[i] - c->before[i];
        if (x < 0 || x >= c->in[i])
            return false;
        place += x * in_step;
        out_step *= c->out[i];
        kernel_step *= c->kernel[i];
        in_step *= c->in[i];
    }
    *at = place;
    return true;
}

static int64_t cells(const mf_cudnn_convolution *c, const int64_t *space)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < c->dims; i++)
        n *= space[i];
    return n;
}

static void walk(const fake_call *f, double *sums, const void *x, const void *w, const void *y)
{
    const mf_cudnn_convolution *c = &f->conv;
    int64_t in = cells(c, c->in), out = cells(c, c->out), kernel = cells(c, c->kernel), at;
    int64_t group_in = c->in_channels / c->groups, group_out = c->out_channels / c->groups;
    for (int64_t n = 0; n < c->batch; n++)
        for (int64_t p = 0; p < out; p++)
            for (int64_t k = 0; k < kernel; k++)
                for (int64_t o = 0; source(c, p, k, &at) && o < c->out_channels; o++)
                    for (int64_t i = 0; i < group_in; i++)
                        tap(f, sums, x, w, y, (n * in + at) * c->in_channels + o / group_out * group_in + i,
                            (o * kernel + k) * group_in + i, (n * out + p) * c->out_channels + o);
}

static memfit_status fake_run(cuda_call *call, void *const *in, void *const *out, void *workspace, mf_stream stream,
                              memfit_error *err)
{
    fake_call *f = (fake_call *)call;
    const mf_cudnn_convolution *c = &f->conv;
    (void)stream;
    if (!f->runs)
        return MEMFIT_OK;
    void *w = (char *)workspace + f->filter_at;
    void *x = c->direction == MF_CUDNN_DATA ? out[0] : in[0];
    void *y = c->direction == MF_CUDNN_FORWARD ? out[0] : c->direction == MF_CUDNN_DATA ? in[0] : in[1];
    int64_t count = c->direction == MF_CUDNN_FORWARD ? c->batch * cells(c, c->out) * c->out_channels
                    : c->direction == MF_CUDNN_DATA
                        ? c->batch * cells(c, c->in) * c->in_channels
                        : c->out_channels * cells(c, c->kernel) * (c->in_channels / c->groups);
    double *sums = calloc((size_t)count + 1, sizeof *sums);
    if (!sums)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory");
    walk(f, sums, x, w, y);
    void *result = c->direction == MF_CUDNN_FORWARD ? y : c->direction == MF_CUDNN_DATA ? x : w;
    for (int64_t i = 0; i < count; i++)
        mf_ref_store(f->dtype, result, (uint64_t)i, sums[i]);
    free(sums);
    return MEMFIT_OK;
}

static void fake_release(cuda_call *call)
{
    free(call);
}

static bool takes(const mf_graph *graph, uint32_t op, mf_cudnn_convolution *conv)
{
    mf_op_kind kind = graph->ops[op].kind;
    return (kind == MF_OP_CONV || kind == MF_OP_CONV_GRAD_DATA || kind == MF_OP_CONV_GRAD_WEIGHTS) &&
           cuda_convolution_of(graph, &graph->ops[op], conv);
}

/* ---- products with longer rows ---- */

typedef struct fake_product {
    cuda_call base;
    const mf_graph *graph;
    const mf_op *op;
    cuda_padding pad;
    bool runs;
} fake_product;

static bool takes_product(const mf_graph *graph, uint32_t op, cuda_padding *pad)
{
    return graph->ops[op].kind == MF_OP_MATMUL && cuda_padding_of(graph, &graph->ops[op], pad);
}

static memfit_status run_product(cuda_call *call, void *const *in, void *const *out, void *workspace, mf_stream stream,
                                 memfit_error *err)
{
    fake_product *f = (fake_product *)call;
    const mf_op *op = f->op;
    const cuda_padding *p = &f->pad;
    void *x[3] = {in[0], in[1], out[0]};
    mf_dtype types[3];
    (void)stream, (void)err;
    if (!f->runs)
        return MEMFIT_OK;
    for (int i = 0; i < 3; i++) {
        types[i] = f->graph->tensors[i < 2 ? op->in[i] : op->out[0]].dtype;
        x[i] = p->to[i] != p->from[i] ? (char *)workspace + p->at[i] : x[i];
    }
    bool ta = op->attr.matmul.trans_a, tb = op->attr.matmul.trans_b, inside = p->to[2] == p->from[2];
    int64_t k = ta ? p->rows[0] : p->from[0];
    for (int64_t i = 0; i < p->rows[2]; i++)
        for (int64_t j = 0; j < p->from[2]; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += mf_ref_load(types[0], x[0], (uint64_t)(ta ? l * p->to[0] + i : i * p->to[0] + l)) *
                       mf_ref_load(types[1], x[1], (uint64_t)(tb ? j * p->to[1] + l : l * p->to[1] + j));
            sum *= op->attr.matmul.scale;
            uint64_t at = (uint64_t)(i * p->to[2] + j);
            if (inside && op->in_count > 2 && op->in[2] != MF_NONE)
                sum += mf_ref_load(f->graph->tensors[op->in[2]].dtype, in[2], (uint64_t)j);
            if (inside && op->accumulate)
                sum += mf_ref_load(types[2], x[2], at);
            mf_ref_store(types[2], x[2], at, sum);
        }
    return MEMFIT_OK;
}

bool fake_library_runs;

memfit_status fake_library_methods(cuda_engine *engine, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                   memfit_error *err)
{
    mf_cudnn_convolution conv;
    cuda_spec around;
    cuda_padding pad;
    if (takes_product(graph, op, &pad)) {
        *cost = mf_cost_one(pad.bytes, 1);
        cost->methods[0].id[0] = CUDA_PRODUCT;
        cost->methods[0].id[3] = 1;
        return MEMFIT_OK;
    }
    if (!takes(graph, op, &conv))
        return MEMFIT_OK;
    memfit_status status = cuda_spec_make_around(NULL, graph, op, engine->block, false, &around, err);
    if (status)
        return status;
    *cost = mf_cost_one(around.workspace_bytes, 1);
    cost->methods[0].id[0] = CUDA_CONVOLUTION;
    cuda_spec_end(&around);
    return MEMFIT_OK;
}

memfit_status fake_library_call(cuda_engine *engine, const mf_graph *graph, uint32_t op, const mf_method *method,
                                cuda_call **call, memfit_error *err)
{
    cuda_spec around;
    if (method->id[0] == CUDA_PRODUCT) {
        fake_product *p = calloc(1, sizeof *p);
        if (!p || !takes_product(graph, op, &p->pad)) {
            free(p);
            return mf_fail(err, MEMFIT_INTERNAL, "no product");
        }
        p->base = (cuda_call){.run = run_product, .release = fake_release};
        p->graph = graph;
        p->op = &graph->ops[op];
        p->runs = fake_library_runs;
        *call = &p->base;
        return MEMFIT_OK;
    }
    fake_call *f = calloc(1, sizeof *f);
    if (!f || !takes(graph, op, &f->conv)) {
        free(f);
        return mf_fail(err, MEMFIT_INTERNAL, "no convolution");
    }
    memfit_status status = cuda_spec_make_around(NULL, graph, op, engine->block, false, &around, err);
    if (status) {
        free(f);
        return status;
    }
    f->base = (cuda_call){.run = fake_run, .release = fake_release};
    f->dtype = graph->tensors[graph->ops[op].in[0]].dtype;
    f->filter_at = around.filter_at;
    f->runs = fake_library_runs;
    cuda_spec_end(&around);
    *call = &f->base;
    return MEMFIT_OK;
}
