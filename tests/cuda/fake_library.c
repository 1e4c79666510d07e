/* fake_library.c: a library that has convolutions, in plain loops over host memory, filters in cuDNN's order: what stands
 * around a library's convolution (filters in and out, bias and its gradient) is compiled, and run, without cuDNN. */
#include "engines.h"

#include "base/error.h"
#include "ops/cuda/convolutions.h"
#include "ops/cuda/cuda_spec.h"
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

bool fake_library_runs;

memfit_status fake_library_methods(cuda_engine *engine, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                   memfit_error *err)
{
    mf_cudnn_convolution conv;
    cuda_spec around;
    if (!takes(graph, op, &conv))
        return MEMFIT_OK;
    memfit_status status = cuda_spec_make_around(NULL, graph, op, engine->block, &around, err);
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
    (void)method;
    cuda_spec around;
    fake_call *f = calloc(1, sizeof *f);
    if (!f || !takes(graph, op, &f->conv)) {
        free(f);
        return mf_fail(err, MEMFIT_INTERNAL, "no convolution");
    }
    memfit_status status = cuda_spec_make_around(NULL, graph, op, engine->block, &around, err);
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
