/*
 * cuda_backend.c: the table of the CUDA backend. A kernel is a list of launches made once from the operation
 * (cuda_spec.h); to run it is to write the operands' addresses into one argument and launch the list.
 */
#include "ops/cuda/conv_pool.h"
#include "ops/cuda/cuda_engine.h"
#include "ops/cuda/cuda_spec.h"
#include "ops/cuda/kind_shapes.h"
#include "ops/cuda/many.h"
#include "ops/cuda/norm_back.h"
#include "ops/cuda/pool_act.h"
#include "ops/cuda/product_pad.h"
#include "ops/cuda/program.h"

#include "base/error.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* kernels/device.cuh has the same struct, and end_step.cu that of a step's end. */
#define AT(member, place) (offsetof(mf_run_scalars, member) == (place))
_Static_assert(AT(seed, 0) && AT(first_sample, 8) && AT(batch_samples, 16) && AT(weight_sum, 24) &&
                   AT(learning_rate, 32) && AT(group_steps, 40) && AT(step, 48) && AT(iteration, 56) &&
                   AT(loss_scale, 64) && AT(good_steps, 72) && AT(steps, 80) && AT(loss, 88) && AT(loss_sum, 96) &&
                   AT(loss_weight, 104) && AT(seen_sum, 112) && AT(seen_weight, 120) && AT(diverged_at, 128) &&
                   AT(diverged_loss, 136) && sizeof(mf_run_scalars) == 144,
               "mf_run_scalars of kernels/device.cuh is another");
_Static_assert(offsetof(mf_step_end, loss) == 8 && offsetof(mf_step_end, overflow) == 16 &&
                   offsetof(mf_step_end, learns) == 24,
               "mf_step_end of kernels/end_step.cu is another");

typedef struct cuda_backend {
    mf_backend base;
    cuda_engine *engine;
    cuda_function *end_step; /* made when the first kernel is prepared */
} cuda_backend;

typedef struct cuda_kernel {
    cuda_backend *backend; /* first, as ops.h asks */
    cuda_call *call;       /* a library's way, or NULL */
    uint32_t call_at;      /* launches before it; where it stands alone there are none */
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    cuda_function *functions[CUDA_MOST_LAUNCHES];
    uint32_t launch_count, in_count, out_count, in_places, out_places;
    uint64_t copy_bytes, copy_from; /* VIEW */
    bool has_effects;               /* moves an average in place: must not run again in a step */
    const mf_op *many;              /* one launch may run others like it (many.h); NULL: it may not */
    const cuda_module *module;      /* then those have the same */
    uint64_t elements;
    uint64_t bytes;   /* of this allocation */
    void *argument[]; /* inputs, outputs, workspace, scalars */
} cuda_kernel;

/* The libraries' ways first, own kernels behind them: those always run. */
static memfit_status cuda_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                memfit_error *err)
{
    cuda_backend *b = (cuda_backend *)backend;
    cuda_spec spec;
    *cost = (mf_cost){0};
    b->engine->wide_menus = backend->wide_menus;
    b->engine->loose_menus = backend->loose_menus;
    memfit_status status = cuda_spec_size(graph, op, b->engine->block, &spec, err);
    bool own = status == MEMFIT_OK;
    if (status && status != MEMFIT_UNSUPPORTED)
        return status;
    status = b->engine->table->methods ? b->engine->table->methods(b->engine, graph, op, cost, err) : MEMFIT_OK;
    if (status == MEMFIT_OK && own && cost->method_count < MF_MOST_METHODS) {
        double flops, bytes;
        mf_op_cost(graph, &graph->ops[op], &flops, &bytes);
        double rate = spec.slow ? 1e6 : 2e7; /* operations a microsecond */
        mf_cost one = mf_cost_one(spec.workspace_bytes, 2.0 * spec.launch_count + bytes / 2e6 + flops / rate);
        one.methods[0].numerics = cost->method_count ? MF_REORDERED : MF_BITWISE;
        for (uint32_t i = 0; i < cost->method_count && spec.streams; i++) /* at 0.9 to 1.1 TB/s on an H200 */
            if (cost->methods[i].time_us < bytes / 1e6 &&
                !(spec.tf32_is_quicker && cost->methods[i].numerics == MF_CHANGED))
                cost->methods[i].time_us = bytes / 1e6;
        cost->methods[cost->method_count++] = one.methods[0];
    }
    cost->supported = cost->method_count > 0;
    return status;
}

static memfit_status bind(cuda_backend *b, const cuda_spec *spec, cuda_kernel *k, memfit_error *err)
{
    cuda_module *module = NULL;
    if (spec->launch_count == 0)
        return MEMFIT_OK;
    memfit_status status = b->engine->table->module(b->engine, spec->text, &module, err);
    for (uint32_t i = 0; i < spec->launch_count && status == MEMFIT_OK; i++)
        status = b->engine->table->function(b->engine, module, spec->launches[i].name, &k->functions[i], err);
    if (status)
        mf_error_prefix(err, status, "%s", mf_kind_name(spec->op->kind));
    memcpy(k->launches, spec->launches, sizeof k->launches);
    k->launch_count = spec->launch_count;
    if (spec->many) {
        k->many = spec->op;
        k->module = module;
        k->elements = mf_shape_count(&spec->graph->tensors[spec->op->in[0]].shape);
    }
    return status;
}

static memfit_status make_end_step(cuda_backend *b, memfit_error *err)
{
    cuda_module *module = NULL;
    if (b->end_step)
        return MEMFIT_OK;
    memfit_status status = b->engine->table->module(
        b->engine, "#define IDX int\n#define BLOCK 1\n#include \"device.cuh\"\n#include \"end_step.cu\"\n", &module,
        err);
    return status ? status : b->engine->table->function(b->engine, module, "end_step", &b->end_step, err);
}

static cuda_kernel *make_kernel(cuda_backend *b, const mf_graph *graph, const mf_op *o)
{
    uint32_t places = cuda_spec_inputs(o) + cuda_spec_outputs(o) + 2;
    uint64_t bytes = sizeof(cuda_kernel) + places * sizeof(void *);
    cuda_kernel *k = mf_host_zalloc(b->base.host, bytes);
    if (!k)
        return NULL;
    k->backend = b;
    k->bytes = bytes;
    k->in_count = o->in_count;
    k->out_count = o->out_count;
    k->has_effects = o->kind == MF_OP_MOVING_AVERAGE;
    k->in_places = cuda_spec_inputs(o);
    k->out_places = cuda_spec_outputs(o);
    if (o->kind == MF_OP_VIEW) {
        const mf_tensor *y = &graph->tensors[o->out[0]];
        k->copy_bytes = mf_shape_count(&y->shape) * mf_dtype_bytes(y->dtype);
        if (o->attr.view.rows && y->shape.dim[0] > 0)
            k->copy_from = (uint64_t)o->attr.view.first * (k->copy_bytes / (uint64_t)y->shape.dim[0]);
    }
    return k;
}

/* A plan that cuDNN lists but cannot make is served by own kernels: right, but slower than was planned. Said once. */
static void note_refusal(cuda_backend *b, const memfit_error *why)
{
    if (!b->base.note[0])
        snprintf(b->base.note, sizeof b->base.note, "attention runs on own kernels, slower: %.200s",
                 why && why->message[0] ? why->message : "cuDNN could not make its plan");
}

/* Nothing stands around the library's call. */
static bool is_alone(const mf_method *method)
{
    return method->id[0] == CUDA_ATTENTION || (method->id[0] == CUDA_PRODUCT && !method->id[3]);
}

/* The own kernels of an operation: all of it, or what stands around a library's call. */
static memfit_status make_spec(cuda_backend *b, const mf_graph *graph, uint32_t op, const mf_method *method,
                               bool around, cuda_spec *spec, memfit_error *err)
{
    return around ? cuda_spec_make_around(b->base.host, graph, op, b->engine->block,
                                          method->id[0] == CUDA_CONVOLUTION && method->id[2], spec, err)
                  : cuda_spec_make(b->base.host, graph, op, b->engine->block, spec, err);
}

/* Without a method the menu would have to be asked for first: such a text waits for its turn. */
static void cuda_announce(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method)
{
    cuda_backend *b = (cuda_backend *)backend;
    cuda_spec spec;
    bool around = method && method->id[0] != CUDA_OWN && b->engine->table->call;
    if (!b->engine->table->announce || (!method && b->engine->table->methods) || (around && is_alone(method)) ||
        make_spec(b, graph, op, method, around, &spec, NULL) != MEMFIT_OK)
        return;
    if (spec.launch_count)
        b->engine->table->announce(b->engine, spec.text);
    cuda_spec_end(&spec);
}

/* The library's way where the method names one, else own kernels. */
static memfit_status bind_method(cuda_backend *b, const mf_graph *graph, uint32_t op, const mf_method *method,
                                 cuda_kernel *k, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    mf_cost cost;
    if (!method && b->engine->table->methods) {
        status = cuda_query(&b->base, graph, op, &cost, err);
        method = status == MEMFIT_OK && cost.method_count ? &cost.methods[0] : NULL;
    }
    if (status == MEMFIT_OK && method && method->id[0] != CUDA_OWN && b->engine->table->call)
        status = b->engine->table->call(b->engine, graph, op, method, &k->call, err);
    if (status == MEMFIT_OK && method && method->id[0] == CUDA_ATTENTION && !k->call)
        note_refusal(b, err);
    if (status || (k->call && is_alone(method)))
        return status;
    cuda_spec spec;
    status = make_spec(b, graph, op, method, k->call != NULL, &spec, err);
    if (status == MEMFIT_OK) {
        k->call_at = spec.call_at;
        status = bind(b, &spec, k, err);
        cuda_spec_end(&spec);
    }
    if (status && k->call)
        k->call->release(k->call);
    return status;
}

static memfit_status cuda_prepare(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method,
                                  mf_kernel **kernel, memfit_error *err)
{
    cuda_backend *b = (cuda_backend *)backend;
    memfit_status status = make_end_step(b, err);
    if (status)
        return status;
    cuda_kernel *k = make_kernel(b, graph, &graph->ops[op]);
    if (!k)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for an operation of the CUDA backend");
    status = bind_method(b, graph, op, method, k, err);
    if (status) {
        mf_host_free(backend->host, k, k->bytes);
        return status;
    }
    *kernel = (mf_kernel *)k;
    return MEMFIT_OK;
}

static const void *cuda_batch(mf_kernel *kernel)
{
    cuda_kernel *k = (cuda_kernel *)kernel;
    return k->many ? k->module : NULL;
}

static memfit_status cuda_run_batch(mf_kernel *const *kernels, const mf_operands *const *operands, uint32_t count,
                                    const mf_run_scalars *scalars, mf_stream stream, memfit_error *err)
{
    const cuda_kernel *first = (const cuda_kernel *)kernels[0];
    cuda_engine *engine = first->backend->engine;
    memfit_status status = MEMFIT_OK;
    cuda_many_args args = {.s = scalars};
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < count && status == MEMFIT_OK; i++) {
        const cuda_kernel *k = (const cuda_kernel *)kernels[i];
        if (!operands[i]->recomputed || !k->has_effects) {
            cuda_many_tensor_of(k->many, k->elements, operands[i], &args.one[args.count]);
            args.one[args.count++].first = (int32_t)blocks;
            blocks += cuda_many_blocks(k->elements, engine->block);
        }
        if (args.count && (args.count == CUDA_MANY || i + 1 == count)) {
            status = engine->table->launch(engine, first->functions[0], blocks, 1, engine->block, &args, sizeof args,
                                           stream, err);
            blocks = 0;
            args.count = 0;
        }
    }
    return status;
}

static memfit_status cuda_run(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                              mf_stream stream, memfit_error *err)
{
    cuda_kernel *k = (cuda_kernel *)kernel;
    cuda_engine *engine = k->backend->engine;
    if (k->copy_bytes) {
        const char *from = (const char *)operands->in[0] + k->copy_from;
        return from == operands->out[0]
                   ? MEMFIT_OK
                   : engine->table->copy(engine, operands->out[0], from, k->copy_bytes, stream, err);
    }
    if ((k->launch_count == 0 && !k->call) || (operands->recomputed && k->has_effects))
        return MEMFIT_OK;
    if (k->many)
        return cuda_run_batch(&kernel, &operands, 1, scalars, stream, err);
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < k->in_count; i++)
        k->argument[i] = operands->in[i];
    for (uint32_t i = 0; i < k->out_count; i++)
        k->argument[k->in_places + i] = operands->out[i];
    uint32_t last = k->in_places + k->out_places;
    k->argument[last] = operands->workspace;
    memcpy(&k->argument[last + 1], &scalars, sizeof scalars);
    for (uint32_t i = 0; i <= k->launch_count && status == MEMFIT_OK; i++) {
        if (k->call && i == k->call_at)
            status = k->call->run(k->call, operands->in, operands->out, operands->workspace, stream, err);
        if (i < k->launch_count && status == MEMFIT_OK)
            status = engine->table->launch(engine, k->functions[i], k->launches[i].grid_x, k->launches[i].grid_y,
                                           engine->block, k->argument, (last + 2) * sizeof(void *), stream, err);
    }
    return status;
}

static memfit_status cuda_end_step(mf_backend *backend, const mf_step_end *end, mf_stream stream, memfit_error *err)
{
    cuda_backend *b = (cuda_backend *)backend;
    mf_step_end copy = *end;
    memfit_status status = make_end_step(b, err);
    return status ? status : b->engine->table->launch(b->engine, b->end_step, 1, 1, 1, &copy, sizeof copy, stream, err);
}

static void cuda_release(mf_backend *backend, mf_kernel *kernel)
{
    cuda_kernel *k = (cuda_kernel *)kernel;
    if (!k)
        return;
    if (k->call)
        k->call->release(k->call);
    mf_host_free(backend->host, k, k->bytes);
}

static void cuda_destroy(mf_backend *backend)
{
    cuda_backend *b = (cuda_backend *)backend;
    if (!b)
        return;
    b->engine->table->destroy(b->engine);
    mf_host_free(backend->host, b, sizeof *b);
}

static const mf_backend_table cuda_table = {
    .name = "cuda",
    .destroy = cuda_destroy,
    .query = cuda_query,
    .prepare = cuda_prepare,
    .announce = cuda_announce,
    .run = cuda_run,
    .batch = cuda_batch,
    .run_batch = cuda_run_batch,
    .release = cuda_release,
    .end_step = cuda_end_step,
};

static bool takes(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    return cuda_program_takes(ctx, graph, ops, count) || cuda_conv_pool_takes(graph, ops, count) ||
           cuda_pool_act_takes(graph, ops, count) || cuda_norm_back_takes(graph, ops, count);
}

static bool is_whole(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)ctx;
    return cuda_conv_pool_is_whole(graph, ops, count) || (count == 2 && cuda_pool_act_takes(graph, ops, count));
}

const mf_group_taker mf_cuda_groups = {.takes = takes,
                                       .whole = is_whole,
                                       .narrow_losses = true,
                                       .attends = cuda_attends,
                                       .narrow_feeds = true,
                                       .late_updates = true,
                                       .slopes = true,
                                       .bias_sums = true,
                                       .whole_sums = true,
                                       .pools_first = true,
                                       .even_rows = CUDA_LEAST_PADDED};

uint64_t mf_cuda_own_workspace(const mf_graph *graph, uint32_t op)
{
    cuda_spec spec;
    return cuda_spec_size(graph, op, CUDA_BLOCK, &spec, NULL) == MEMFIT_OK ? spec.workspace_bytes : 0;
}

memfit_status mf_cuda_create_on(const memfit_host *host, cuda_engine *engine, mf_backend **backend, memfit_error *err)
{
    cuda_backend *b = mf_host_zalloc(host, sizeof *b);
    if (!b)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the CUDA backend");
    b->base =
        (mf_backend){.table = &cuda_table, .host = host, .threads = 1, .alignment = 256, .groups = mf_cuda_groups};
    memcpy(b->base.made_by, engine->made_by, sizeof b->base.made_by);
    memcpy(b->base.note, engine->note, sizeof b->base.note);
    b->engine = engine;
    *backend = &b->base;
    return MEMFIT_OK;
}
