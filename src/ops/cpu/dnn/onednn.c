/*
 * onednn.c: the adapter to oneDNN; what differs between its major versions is behind onednn_dialect.h.
 *
 * A compiled operation is a list of at most four stages, each one primitive. A stage's arguments are operands of the
 * operation or places in its workspace:
 *
 *     forward       w --reorder--> [w'] ; x, [w'], bias --conv--> y
 *     data gradient w --reorder--> [w'] ; dy, [w'] --conv--> dx
 *                   or, where that is faster, w --turn--> [t] --reorder--> [t'] ; dy, [t'] --forward conv--> dx
 *     weight grad.  x, dy --conv--> [dw'], [db'] ; [dw'] --reorder (+ sum)--> dw ; [db'] --reorder + sum--> db
 *
 * Where the library's layout happens to be the plain one, the reorder is left out and the operand used directly.
 *
 * Facts behind the choices (measured): `auto` may choose Winograd, which needs megabytes of scratch and loses
 * accuracy, so convolution_direct is asked for; convolution's weight gradient refuses a `sum` post-op, so accumulation
 * happens in the reorder back to the plain layout; the inner-product primitive accepts `sum` and ignores it, so
 * products go through matmul. With a stride of 1 the data gradient is a forward convolution with the weights' taps in
 * reverse order and channels exchanged, for which 2.x has the newer kernels (brgconv): 4 to 16 % faster from 16 columns
 * on, twice as fast at 28x28 with 512 channels, slower below (1.1 at 14x14, 1.3 at 7x7), and no gain for 1x1. The
 * library wakes its team for every primitive, however small, which takes 1 us while the other threads still spin and 50
 * to 150 once they sleep: a product of 32x10 by 10x10 took 0.15 ms. What a thread does in 10 us is compiled and run for
 * one.
 */
#include "ops/cpu/dnn/onednn.h"

#include "base/error.h"
#include "ops/cpu/dnn/onednn_dialect.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>

enum { MOST_STAGES = 4, MOST_ARGS = 6, IN_WORKSPACE = -1 };

typedef struct stage {
    dnnl_primitive_t primitive; /* NULL: turn the taps of args[0] into args[1] */
    dnnl_exec_arg_t args[MOST_ARGS];
    int operand[MOST_ARGS]; /* index of the operation's operand, or IN_WORKSPACE */
    uint64_t offset[MOST_ARGS];
    int count;
    uint64_t taps, tap_bytes; /* of a turn */
} stage;

struct mf_dnn_engine {
    const memfit_host *host;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
};

struct mf_dnn {
    mf_dnn_engine *engine;
    stage stages[MOST_STAGES];
    int count;
    bool alone; /* runs on the calling thread */
};

/* What a make function fills; `made` is NULL when only asked for the size. */
typedef struct builder {
    mf_dnn_engine *engine;
    mf_dnn *made;
    uint64_t bytes;   /* workspace that lives through the operation */
    uint64_t scratch; /* the largest scratchpad of a stage, behind it */
    int team;         /* the caller's number of threads, to go back to */
} builder;

static memfit_status failed(dnnl_status_t status, const char *what, memfit_error *err)
{
    if (status == dnnl_unimplemented)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "oneDNN has no implementation for this %s", what);
    if (status == dnnl_out_of_memory)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "oneDNN: no memory for a %s", what);
    return mf_fail(err, MEMFIT_INTERNAL, "oneDNN refused a %s (status %d)", what, (int)status);
}

static memfit_status too_large(const char *what, memfit_error *err)
{
    return mf_fail(err, MEMFIT_UNSUPPORTED, "oneDNN cannot count this %s", what);
}

void mf_dnn_cache(bool on)
{
    dnnl_set_primitive_cache_capacity(on ? 4096 : 0);
}

bool mf_dnn_compiles(void)
{
    return true;
}

/* The library takes its instruction set once, before its first primitive. */
static memfit_status cap_isa(const char *isa, memfit_error *err)
{
    dnnl_cpu_isa_t most = !isa || strcmp(isa, "avx512") == 0 ? dnnl_cpu_isa_all
                          : strcmp(isa, "avx2") == 0         ? dnnl_cpu_isa_avx2
                                                             : dnnl_cpu_isa_sse41;
    if (most == dnnl_cpu_isa_all || dnnl_set_max_cpu_isa(most) == dnnl_success)
        return MEMFIT_OK;
    if ((dnnl_get_effective_cpu_isa() & ~most) == 0) /* capped before, as low or lower */
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_INVALID, "MEMFIT_ISA=%s: oneDNN already runs with other instructions in this process",
                   isa);
}

memfit_status mf_dnn_engine_create(const memfit_host *host, unsigned threads, const char *isa, mf_dnn_engine **engine,
                                   memfit_error *err)
{
    memfit_status status = cap_isa(isa, err);
    if (status != MEMFIT_OK)
        return status;
    mf_dnn_engine *e = mf_host_zalloc(host, sizeof *e);
    if (!e)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the oneDNN engine");
    e->host = host;
    e->threads = (int)threads;
    dnnl_status_t s = dnnl_engine_create(&e->engine, dnnl_cpu, 0);
    if (s == dnnl_success)
        s = dnnl_stream_create(&e->stream, e->engine, dnnl_stream_default_flags);
    if (s != dnnl_success) {
        mf_dnn_engine_destroy(e);
        return failed(s, "engine", err);
    }
    *engine = e;
    return MEMFIT_OK;
}

void mf_dnn_engine_destroy(mf_dnn_engine *engine)
{
    if (!engine)
        return;
    if (engine->stream)
        dnnl_stream_destroy(engine->stream);
    if (engine->engine)
        dnnl_engine_destroy(engine->engine);
    mf_host_free(engine->host, engine, sizeof *engine);
}

void mf_dnn_destroy(mf_dnn *made)
{
    if (!made)
        return;
    for (int i = 0; i < made->count; i++) {
        for (int a = 0; a < made->stages[i].count; a++)
            if (made->stages[i].args[a].memory)
                dnnl_memory_destroy(made->stages[i].args[a].memory);
        if (made->stages[i].primitive)
            dnnl_primitive_destroy(made->stages[i].primitive);
    }
    mf_host_free(made->engine->host, made, sizeof *made);
}

/* ---- stages ----------------------------------------------------------------------------------------------- */

typedef struct argument {
    int name;
    mf_dnn_layout layout;
    int operand;
    uint64_t offset;
} argument;

static uint64_t take(builder *b, uint64_t bytes)
{
    uint64_t at = b->bytes;
    b->bytes += (bytes + 63) & ~63ull;
    return at;
}

/* Adds the stage that runs `pd`, which stays the caller's. The scratchpad's place is settled by finish(). */
static dnnl_status_t add_stage(builder *b, dnnl_primitive_desc_t pd, const argument *args, int count)
{
    mf_dnn_layout scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    uint64_t scratch = scratchpad ? dnnl_memory_desc_get_size(scratchpad) : 0;
    if (scratch > b->scratch)
        b->scratch = scratch;
    dnnl_status_t s = dnnl_success;
    if (b->made) {
        stage *st = &b->made->stages[b->made->count++];
        s = dnnl_primitive_create(&st->primitive, pd);
        for (int i = 0; i < count && s == dnnl_success; i++) {
            st->args[i].arg = args[i].name;
            st->operand[i] = args[i].operand;
            st->offset[i] = args[i].offset;
            s = dnnl_memory_create(&st->args[i].memory, args[i].layout, b->engine->engine, DNNL_MEMORY_NONE);
            st->count++;
        }
        if (scratch && s == dnnl_success) {
            int i = st->count;
            st->args[i].arg = DNNL_ARG_SCRATCHPAD;
            st->operand[i] = IN_WORKSPACE;
            st->offset[i] = UINT64_MAX;
            s = dnnl_memory_create(&st->args[i].memory, scratchpad, b->engine->engine, DNNL_MEMORY_NONE);
            st->count++;
        }
    }
    return s;
}

static const char *name_of(const_dnnl_primitive_desc_t pd)
{
    const char *name = "";
    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) == dnnl_success ? name : "";
}

/* A scratchpad of ours is no promise: the library's matrix product behind the names "gemm:jit" and "x64:gemm:jit"
 * takes memory in every call, to pack its operands, and all products do below AVX-512. The reference implementations
 * ("ref:any") take none but a hundred times as long. So implementations are taken by name, those that were counted and
 * take nothing: generated code (jit:, jit_1x1:, jit_dw:) and the batched products (brg:, brgemm:, brgconv:, brdgmm_dw:).
 * A name that is not known is not taken; own kernels serve instead. */
static bool takes_nothing(const_dnnl_primitive_desc_t pd)
{
    const char *name = name_of(pd);
    return strncmp(name, "jit", 3) == 0 || strncmp(name, "brg", 3) == 0 || strncmp(name, "brdgmm", 6) == 0;
}

/* Attributes every primitive gets: our scratchpad; the result times `scale`, added to what the destination holds, and
 * clipped at zero. */
static dnnl_status_t make_attr(bool sum, bool relu, float scale, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t s = dnnl_primitive_attr_create(attr);
    if (s != dnnl_success)
        return s;
    s = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (s == dnnl_success)
        s = dnnl_post_ops_create(&ops);
    if (s == dnnl_success && scale != 1.0f)
        s = mf_dnn_scale(*attr, ops, scale);
    if (s == dnnl_success && sum)
        s = mf_dnn_sum(ops);
    if (s == dnnl_success && relu)
        s = mf_dnn_relu(ops);
    if (s == dnnl_success)
        s = dnnl_primitive_attr_set_post_ops(*attr, ops);
    if (ops)
        dnnl_post_ops_destroy(ops);
    if (s != dnnl_success) {
        dnnl_primitive_attr_destroy(*attr);
        *attr = NULL;
    }
    return s;
}

static dnnl_status_t add_reorder(builder *b, mf_dnn_layout from, argument from_arg, mf_dnn_layout to, argument to_arg,
                                 bool sum)
{
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd;
    dnnl_status_t s = make_attr(sum, false, 1, &attr);
    if (s != dnnl_success)
        return s;
    s = dnnl_reorder_primitive_desc_create(&pd, from, b->engine->engine, to, b->engine->engine, attr);
    dnnl_primitive_attr_destroy(attr);
    if (s != dnnl_success)
        return s;
    argument args[2] = {{DNNL_ARG_FROM, from, from_arg.operand, from_arg.offset},
                        {DNNL_ARG_TO, to, to_arg.operand, to_arg.offset}};
    s = add_stage(b, pd, args, 2);
    dnnl_primitive_desc_destroy(pd);
    return s;
}

/* Is it over before another thread could help? At 1e5 operations and 1e4 bytes a microsecond. */
static bool is_small(double flops, double bytes)
{
    return flops / 1e5 + bytes / 1e4 < 10;
}

static memfit_status begin(builder *b, mf_dnn_engine *engine, bool create, bool alone, memfit_error *err)
{
    *b = (builder){.engine = engine};
    if (create) {
        b->made = mf_host_zalloc(engine->host, sizeof *b->made);
        if (!b->made)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a compiled operation");
        b->made->engine = engine;
        b->made->alone = alone;
    }
    b->team = omp_get_max_threads();
    omp_set_num_threads(alone ? 1 : engine->threads);
    return MEMFIT_OK;
}

static memfit_status finish(builder *b, dnnl_status_t status, const char *what, mf_dnn **made,
                            uint64_t *workspace_bytes, memfit_error *err)
{
    omp_set_num_threads(b->team);
    if (status != dnnl_success) {
        mf_dnn_destroy(b->made);
        return failed(status, what, err);
    }
    if (b->made)
        for (int i = 0; i < b->made->count; i++)
            for (int a = 0; a < b->made->stages[i].count; a++)
                if (b->made->stages[i].offset[a] == UINT64_MAX)
                    b->made->stages[i].offset[a] = b->bytes;
    *workspace_bytes = b->bytes + ((b->scratch + 63) & ~63ull);
    if (made)
        *made = b->made;
    return MEMFIT_OK;
}

/* Taps in reverse order: what turning a kernel by 180 degrees does, in any number of dimensions. */
static void turn(const stage *st, const unsigned char *from, unsigned char *to)
{
#pragma omp parallel for schedule(static)
    for (uint64_t i = 0; i < st->taps; i++)
        memcpy(to + (st->taps - 1 - i) * st->tap_bytes, from + i * st->tap_bytes, st->tap_bytes);
}

static dnnl_status_t run_stage(stage *st, void *const *operands, unsigned char *workspace, dnnl_stream_t stream)
{
    if (!st->primitive) {
        turn(st, operands[st->operand[0]], workspace + st->offset[1]);
        return dnnl_success;
    }
    for (int a = 0; a < st->count; a++)
        dnnl_memory_set_data_handle(st->args[a].memory, st->operand[a] == IN_WORKSPACE ? workspace + st->offset[a]
                                                                                       : operands[st->operand[a]]);
    return dnnl_primitive_execute(st->primitive, stream, st->count, st->args);
}

memfit_status mf_dnn_run(mf_dnn *made, void *const *operands, void *workspace, memfit_error *err)
{
    int team = omp_get_max_threads();
    dnnl_status_t s = dnnl_success;
    omp_set_num_threads(made->alone ? 1 : made->engine->threads);
    for (int i = 0; i < made->count && s == dnnl_success; i++)
        s = run_stage(&made->stages[i], operands, workspace, made->engine->stream);
    if (s == dnnl_success)
        s = dnnl_stream_wait(made->engine->stream);
    omp_set_num_threads(team);
    return s == dnnl_success ? MEMFIT_OK : failed(s, "run", err);
}

/* ---- convolution ------------------------------------------------------------------------------------------ */

typedef struct conv_layouts {
    dnnl_memory_desc_t src, dst, bias;
    dnnl_memory_desc_t plain;   /* weights as Keras keeps them */
    dnnl_memory_desc_t weights; /* the same, layout left to the library */
    mf_dnn_conv_desc desc;
} conv_layouts;

static void drop_layouts(conv_layouts *l)
{
    dnnl_memory_desc_t *all[] = {&l->src, &l->dst, &l->bias, &l->plain, &l->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mf_dnn_layout_drop(all[i]);
}

static dnnl_status_t describe(const mf_dnn_conv *c, conv_layouts *l)
{
    int d = c->dims, rank = d + 2;
    const dnnl_data_type_t type = dnnl_f32;
    dnnl_dims_t dims, strides;
    dnnl_status_t s = dnnl_success;
    for (int side = 0; side < 2 && s == dnnl_success; side++) {
        const int64_t *space = side ? c->out : c->in;
        int64_t channels = side ? c->out_channels : c->in_channels;
        dims[0] = c->batch;
        dims[1] = channels;
        strides[1] = 1;
        int64_t step = channels;
        for (int i = d - 1; i >= 0; i--) {
            dims[2 + i] = space[i];
            strides[2 + i] = step;
            step *= space[i];
        }
        strides[0] = step;
        s = mf_dnn_layout_strided(side ? &l->dst : &l->src, rank, dims, type, strides);
    }
    /* Weights (k..., I/g, O): logical order [g,] O/g, I/g, k... */
    int g = c->groups > 1, wrank = rank + g;
    int64_t ig = c->in_channels / c->groups, og = c->out_channels / c->groups;
    if (g) {
        dims[0] = c->groups;
        strides[0] = og;
    }
    dims[g] = og;
    strides[g] = 1;
    dims[g + 1] = ig;
    strides[g + 1] = c->out_channels;
    int64_t step = ig * c->out_channels;
    for (int i = d - 1; i >= 0; i--) {
        dims[g + 2 + i] = c->kernel[i];
        strides[g + 2 + i] = step;
        step *= c->kernel[i];
    }
    if (s == dnnl_success)
        s = mf_dnn_layout_strided(&l->plain, wrank, dims, type, strides);
    if (s == dnnl_success)
        s = mf_dnn_layout_any(&l->weights, wrank, dims, type);
    dnnl_dims_t bias = {c->out_channels}, one = {1};
    if (s == dnnl_success)
        s = mf_dnn_layout_strided(&l->bias, 1, bias, type, one);
    mf_dnn_conv_desc *desc = &l->desc;
    desc->src = MF_DNN_LAYOUT(l->src);
    desc->dst = MF_DNN_LAYOUT(l->dst);
    desc->weights = MF_DNN_LAYOUT(l->weights);
    desc->bias = c->bias ? MF_DNN_LAYOUT(l->bias) : NULL;
    for (int i = 0; i < d; i++) {
        desc->strides[i] = c->stride[i];
        desc->dilates[i] = c->dilation[i] - 1;
        desc->left[i] = c->before[i];
        /* The library wants padding that accounts for every output exactly. */
        desc->right[i] =
            (c->out[i] - 1) * c->stride[i] + (c->kernel[i] - 1) * c->dilation[i] + 1 - c->in[i] - c->before[i];
    }
    return s;
}

/* The weights as the primitive wants them: the operand itself, or a reordered copy in the workspace. */
static dnnl_status_t weights_in(builder *b, const conv_layouts *l, mf_dnn_layout wanted, int operand, argument *weights)
{
    *weights = (argument){DNNL_ARG_WEIGHTS, wanted, operand, 0};
    if (dnnl_memory_desc_equal(wanted, MF_DNN_LAYOUT(l->plain)))
        return dnnl_success;
    weights->operand = IN_WORKSPACE;
    weights->offset = take(b, dnnl_memory_desc_get_size(wanted));
    return add_reorder(b, MF_DNN_LAYOUT(l->plain), (argument){.operand = operand}, wanted, *weights, false);
}

static dnnl_status_t make_forward(builder *b, const mf_dnn_conv *c, const conv_layouts *l, dnnl_primitive_desc_t pd)
{
    argument weights;
    dnnl_status_t s = weights_in(b, l, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), 1, &weights);
    if (s != dnnl_success)
        return s;
    argument args[4] = {{DNNL_ARG_SRC, l->desc.src, 0, 0}, weights, {DNNL_ARG_DST, l->desc.dst, c->bias ? 3 : 2, 0}};
    if (c->bias)
        args[3] = (argument){DNNL_ARG_BIAS, l->desc.bias, 2, 0};
    return add_stage(b, pd, args, c->bias ? 4 : 3);
}

static dnnl_status_t make_grad_data(builder *b, const conv_layouts *l, dnnl_primitive_desc_t pd)
{
    argument weights;
    dnnl_status_t s = weights_in(b, l, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), 1, &weights);
    if (s != dnnl_success)
        return s;
    argument args[3] = {{DNNL_ARG_DIFF_DST, l->desc.dst, 0, 0}, weights, {DNNL_ARG_DIFF_SRC, l->desc.src, 2, 0}};
    return add_stage(b, pd, args, 3);
}

static dnnl_status_t make_grad_weights(builder *b, const mf_dnn_conv *c, const conv_layouts *l,
                                       dnnl_primitive_desc_t pd)
{
    mf_dnn_layout got = dnnl_primitive_desc_query_md(pd, dnnl_query_diff_weights_md, 0), bias = l->desc.bias;
    mf_dnn_layout plain = MF_DNN_LAYOUT(l->plain);
    argument dw = {DNNL_ARG_DIFF_WEIGHTS, got, 2, 0}, db = {DNNL_ARG_DIFF_BIAS, bias, 3, 0};
    bool direct = !c->accumulate && dnnl_memory_desc_equal(got, plain);
    if (!direct) {
        dw.operand = IN_WORKSPACE;
        dw.offset = take(b, dnnl_memory_desc_get_size(got));
    }
    if (c->bias && c->accumulate) {
        db.operand = IN_WORKSPACE;
        db.offset = take(b, dnnl_memory_desc_get_size(bias));
    }
    argument args[4] = {{DNNL_ARG_SRC, l->desc.src, 0, 0}, {DNNL_ARG_DIFF_DST, l->desc.dst, 1, 0}, dw, db};
    dnnl_status_t s = add_stage(b, pd, args, c->bias ? 4 : 3);
    if (s == dnnl_success && !direct)
        s = add_reorder(b, got, dw, plain, (argument){.operand = 2}, c->accumulate);
    if (s == dnnl_success && c->bias && c->accumulate)
        s = add_reorder(b, bias, db, bias, (argument){.operand = 3}, true);
    return s;
}

/* The forward convolution that computes this data gradient, if the library is likely to be faster at it. */
static bool turned_conv(const mf_dnn_conv *c, mf_dnn_conv *turned)
{
    enum { FEWEST_COLUMNS = 16 };
    *turned = *c;
    turned->direction = MF_DNN_FORWARD;
    turned->in_channels = c->out_channels;
    turned->out_channels = c->in_channels;
    int64_t taps = 1;
    for (int i = 0; i < c->dims; i++) {
        if (c->stride[i] != 1 || c->dilation[i] != 1 || c->before[i] > c->kernel[i] - 1)
            return false;
        turned->in[i] = c->out[i];
        turned->out[i] = c->in[i];
        turned->before[i] = c->kernel[i] - 1 - c->before[i];
        taps *= c->kernel[i];
    }
    return DNNL_VERSION_MAJOR < 3 && c->dims == 2 && c->groups == 1 && taps > 1 && c->in[1] >= FEWEST_COLUMNS &&
           c->out[1] >= FEWEST_COLUMNS && c->in_channels >= 16 && c->out_channels >= 16;
}

static bool is_new_kernel(dnnl_primitive_desc_t pd)
{
    return strncmp(name_of(pd), "brgconv", 7) == 0;
}

static dnnl_status_t add_turned(builder *b, const mf_dnn_conv *c, const conv_layouts *l, dnnl_primitive_desc_t pd)
{
    uint64_t tap_bytes = (uint64_t)(c->in_channels * c->out_channels) * sizeof(float), taps = 1;
    for (int i = 0; i < c->dims; i++)
        taps *= (uint64_t)c->kernel[i];
    uint64_t copy = take(b, taps * tap_bytes);
    if (b->made) {
        stage *st = &b->made->stages[b->made->count++];
        st->operand[0] = 1;
        st->offset[1] = copy;
        st->taps = taps;
        st->tap_bytes = tap_bytes;
    }
    mf_dnn_layout wanted = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    argument from = {DNNL_ARG_WEIGHTS, MF_DNN_LAYOUT(l->plain), IN_WORKSPACE, copy};
    argument weights = {DNNL_ARG_WEIGHTS, wanted, IN_WORKSPACE, take(b, dnnl_memory_desc_get_size(wanted))};
    dnnl_status_t s = add_reorder(b, MF_DNN_LAYOUT(l->plain), from, wanted, weights, false);
    argument args[3] = {{DNNL_ARG_SRC, l->desc.src, 0, 0}, weights, {DNNL_ARG_DST, l->desc.dst, 2, 0}};
    return s == dnnl_success ? add_stage(b, pd, args, 3) : s;
}

/* Sets `served` when the data gradient was made this way. */
static dnnl_status_t make_turned(builder *b, const mf_dnn_conv *c, dnnl_primitive_attr_t attr, bool *served)
{
    mf_dnn_conv turned;
    *served = false;
    if (!turned_conv(c, &turned))
        return dnnl_success;
    conv_layouts l = {0};
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = describe(&turned, &l);
    if (s == dnnl_success) { /* the operand's own order: the channels are exchanged by its strides alone */
        int64_t i = c->in_channels, o = c->out_channels;
        dnnl_dims_t dims = {i, o, c->kernel[0], c->kernel[1]}, strides = {o, 1, c->kernel[1] * i * o, i * o};
        mf_dnn_layout_drop(&l.plain);
        s = mf_dnn_layout_strided(&l.plain, 4, dims, dnnl_f32, strides);
    }
    if (s == dnnl_success)
        s = mf_dnn_desc_forward(&pd, b->engine->engine, &l.desc, attr, takes_nothing);
    *served = s == dnnl_success && is_new_kernel(pd);
    if (*served)
        s = add_turned(b, &turned, &l, pd);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    drop_layouts(&l);
    return s == dnnl_unimplemented && !*served ? dnnl_success : s;
}

static dnnl_status_t make_conv(builder *b, const mf_dnn_conv *c, const conv_layouts *l, dnnl_primitive_attr_t attr)
{
    dnnl_engine_t engine = b->engine->engine;
    dnnl_primitive_desc_t forward, pd;
    bool served = false;
    dnnl_status_t s = c->direction == MF_DNN_GRAD_DATA ? make_turned(b, c, attr, &served) : dnnl_success;
    if (s != dnnl_success || served)
        return s;
    s = mf_dnn_desc_forward(&forward, engine, &l->desc, attr, c->direction == MF_DNN_FORWARD ? takes_nothing : NULL);
    if (s != dnnl_success)
        return s;
    if (c->direction == MF_DNN_FORWARD) {
        s = make_forward(b, c, l, forward);
    } else if (c->direction == MF_DNN_GRAD_DATA) {
        s = mf_dnn_desc_grad_data(&pd, engine, &l->desc, attr, forward, takes_nothing);
    } else {
        s = mf_dnn_desc_grad_weights(&pd, engine, &l->desc, attr, forward, takes_nothing);
    }
    if (s == dnnl_success && c->direction != MF_DNN_FORWARD) {
        s = c->direction == MF_DNN_GRAD_DATA ? make_grad_data(b, l, pd) : make_grad_weights(b, c, l, pd);
        dnnl_primitive_desc_destroy(pd);
    }
    dnnl_primitive_desc_destroy(forward);
    return s;
}

/* The library counts in 32 bits in places, and divides by what wraps to zero. */
static bool is_countable(int64_t n)
{
    return n > 0 && n <= INT32_MAX;
}

static bool is_countable_conv(const mf_dnn_conv *c)
{
    int64_t in = c->in_channels, out = c->out_channels, taps = c->in_channels;
    bool fits = is_countable(c->batch) && is_countable(in) && is_countable(out);
    for (int i = 0; i < c->dims && fits; i++) {
        int64_t reach;
        fits = is_countable(c->stride[i]) && is_countable(c->dilation[i]) && is_countable(c->in[i]) &&
               is_countable(c->out[i]) && is_countable(c->kernel[i]) && is_countable(in *= c->in[i]) &&
               is_countable(out *= c->out[i]) && is_countable(taps *= c->kernel[i]) &&
               !__builtin_mul_overflow(c->kernel[i], c->dilation[i], &reach) && is_countable(reach) &&
               c->before[i] >= INT32_MIN && c->before[i] <= INT32_MAX;
    }
    return fits;
}

static bool is_small_conv(const mf_dnn_conv *c)
{
    double in = (double)(c->batch * c->in_channels), out = (double)(c->batch * c->out_channels);
    double taps = (double)(c->in_channels / c->groups);
    for (int i = 0; i < c->dims; i++) {
        in *= (double)c->in[i];
        out *= (double)c->out[i];
        taps *= (double)c->kernel[i];
    }
    return is_small(2 * out * taps, 4 * (in + out + taps * (double)c->out_channels));
}

memfit_status mf_dnn_conv_make(mf_dnn_engine *engine, const mf_dnn_conv *conv, mf_dnn **made, uint64_t *workspace_bytes,
                               memfit_error *err)
{
    builder b;
    if (!is_countable_conv(conv))
        return too_large("convolution", err);
    memfit_status status = begin(&b, engine, made != NULL, is_small_conv(conv), err);
    if (status != MEMFIT_OK)
        return status;
    conv_layouts l = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t s = describe(conv, &l);
    if (s == dnnl_success)
        s = make_attr(false, conv->relu, 1, &attr);
    if (s == dnnl_success)
        s = make_conv(&b, conv, &l, attr);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    drop_layouts(&l);
    return finish(&b, s, "convolution", made, workspace_bytes, err);
}

/* ---- matrix product --------------------------------------------------------------------------------------- */

memfit_status mf_dnn_matmul_make(mf_dnn_engine *engine, const mf_dnn_matmul *mm, mf_dnn **made,
                                 uint64_t *workspace_bytes, memfit_error *err)
{
    builder b;
    int64_t batch = mm->batch_a > mm->batch_b ? mm->batch_a : mm->batch_b;
    if (!is_countable(batch) || !is_countable(mm->m) || !is_countable(mm->n) || !is_countable(mm->k))
        return too_large("matrix product", err);
    double products = (double)batch * (double)(mm->m * mm->n) * (double)mm->k;
    double elements = (double)(mm->batch_a * mm->m * mm->k + mm->batch_b * mm->k * mm->n + batch * mm->m * mm->n);
    memfit_status status = begin(&b, engine, made != NULL, is_small(2 * products, 4 * elements), err);
    if (status != MEMFIT_OK)
        return status;
    int rank = batch > 1 ? 3 : 2, o = rank - 2;
    const dnnl_data_type_t type = dnnl_f32;
    dnnl_memory_desc_t a = {0}, w = {0}, bias = {0}, c = {0};
    dnnl_dims_t da = {mm->batch_a}, sa = {mm->m * mm->k}, db = {mm->batch_b}, sb = {mm->k * mm->n};
    dnnl_dims_t dc = {batch}, sc = {mm->m * mm->n}, dbias = {1}, sbias = {mm->n};
    da[o] = mm->m, da[o + 1] = mm->k;
    int64_t row_a = mm->row_a ? mm->row_a : mm->trans_a ? mm->m : mm->k;
    int64_t row_b = mm->row_b ? mm->row_b : mm->trans_b ? mm->k : mm->n;
    sa[o] = mm->trans_a ? 1 : row_a, sa[o + 1] = mm->trans_a ? row_a : 1;
    db[o] = mm->k, db[o + 1] = mm->n;
    sb[o] = mm->trans_b ? 1 : row_b, sb[o + 1] = mm->trans_b ? row_b : 1;
    dc[o] = mm->m, dc[o + 1] = mm->n;
    sc[o] = mm->row_c ? mm->row_c : mm->n, sc[o + 1] = 1;
    dbias[o] = 1, dbias[o + 1] = mm->n;
    sbias[o] = mm->n, sbias[o + 1] = 1;
    dnnl_status_t s = mf_dnn_layout_strided(&a, rank, da, type, sa);
    if (s == dnnl_success)
        s = mf_dnn_layout_strided(&w, rank, db, type, sb);
    if (s == dnnl_success)
        s = mf_dnn_layout_strided(&bias, rank, dbias, type, sbias);
    if (s == dnnl_success)
        s = mf_dnn_layout_strided(&c, rank, dc, type, sc);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd;
    if (s == dnnl_success)
        s = make_attr(mm->accumulate, mm->relu, (float)mm->scale, &attr);
    if (s == dnnl_success)
        s = mf_dnn_desc_matmul(&pd, engine->engine, MF_DNN_LAYOUT(a), MF_DNN_LAYOUT(w),
                               mm->bias ? MF_DNN_LAYOUT(bias) : NULL, MF_DNN_LAYOUT(c), attr, takes_nothing);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    if (s == dnnl_success) {
        argument args[4] = {{DNNL_ARG_SRC, MF_DNN_LAYOUT(a), 0, 0},
                            {DNNL_ARG_WEIGHTS, MF_DNN_LAYOUT(w), 1, 0},
                            {DNNL_ARG_DST, MF_DNN_LAYOUT(c), mm->bias ? 3 : 2, 0},
                            {DNNL_ARG_BIAS, MF_DNN_LAYOUT(bias), 2, 0}};
        s = add_stage(&b, pd, args, mm->bias ? 4 : 3);
        dnnl_primitive_desc_destroy(pd);
    }
    dnnl_memory_desc_t *all[] = {&a, &w, &bias, &c};
    for (int i = 0; i < 4; i++)
        mf_dnn_layout_drop(all[i]);
    return finish(&b, s, "matrix product", made, workspace_bytes, err);
}
