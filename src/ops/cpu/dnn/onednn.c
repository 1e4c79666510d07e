/*
 * onednn.c: the adapter to oneDNN: its engine, how stages are put together and run, and matrix products. Convolutions
 * are in onednn_conv.c; what differs between the library's major versions is behind onednn_dialect.h.
 *
 * The inner-product primitive accepts a `sum` post-op and ignores it, so products go through matmul. The library wakes
 * its team for every primitive, however small, which takes 1 us while the other threads still spin and 50 to 150 once
 * they sleep: a product of 32x10 by 10x10 took 0.15 ms. What a thread does in 10 us is compiled and run for one.
 */
#include "ops/cpu/dnn/onednn_build.h"

#include "base/error.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>

static memfit_status failed(dnnl_status_t status, const char *what, memfit_error *err)
{
    if (status == dnnl_unimplemented)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "oneDNN has no implementation for this %s", what);
    if (status == dnnl_out_of_memory)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "oneDNN: no memory for a %s", what);
    return mf_fail(err, MEMFIT_INTERNAL, "oneDNN refused a %s (status %d)", what, (int)status);
}

memfit_status dnn_too_large(const char *what, memfit_error *err)
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
    if (!isa || strcmp(isa, "avx512") == 0)
        return MEMFIT_OK;
    dnnl_cpu_isa_t most = strcmp(isa, "avx2") == 0 ? dnnl_cpu_isa_avx2 : dnnl_cpu_isa_sse41;
    if (dnnl_set_max_cpu_isa(most) == dnnl_success)
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

uint64_t dnn_take(dnn_builder *b, uint64_t bytes)
{
    uint64_t at = b->bytes;
    b->bytes += (bytes + 63) & ~63ull;
    return at;
}

/* Adds the stage that runs `pd`, which stays the caller's. The scratchpad's place is settled by dnn_finish(). */
dnnl_status_t dnn_add_stage(dnn_builder *b, dnnl_primitive_desc_t pd, const dnn_argument *args, int count)
{
    mf_dnn_layout scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    uint64_t scratch = scratchpad ? dnnl_memory_desc_get_size(scratchpad) : 0;
    if (scratch > b->scratch)
        b->scratch = scratch;
    dnnl_status_t s = dnnl_success;
    if (b->made) {
        dnn_stage *st = &b->made->stages[b->made->count++];
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
            st->operand[i] = DNN_IN_WORKSPACE;
            st->offset[i] = UINT64_MAX;
            s = dnnl_memory_create(&st->args[i].memory, scratchpad, b->engine->engine, DNNL_MEMORY_NONE);
            st->count++;
        }
    }
    return s;
}

const char *dnn_name_of(const_dnnl_primitive_desc_t pd)
{
    const char *name = "";
    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) == dnnl_success ? name : "";
}

/* A scratchpad of ours is no promise: the library's matrix product behind the names "gemm:jit" and "x64:gemm:jit"
 * takes memory in every call, to pack its operands, and all products do below AVX-512. The reference implementations
 * ("ref:any") take none but a hundred times as long. So implementations are taken by name, those that were counted and
 * take nothing: generated code (jit:, jit_1x1:, jit_dw:) and the batched products (brg:, brgemm:, brgconv:, brdgmm_dw:).
 * A name that is not known is not taken; own kernels serve instead. */
bool dnn_takes_nothing(const_dnnl_primitive_desc_t pd)
{
    const char *name = dnn_name_of(pd);
    return strncmp(name, "jit", 3) == 0 || strncmp(name, "brg", 3) == 0 || strncmp(name, "brdgmm", 6) == 0;
}

/* Attributes every primitive gets: our scratchpad; the result times `scale`, added to what the destination holds, and
 * clipped at zero. */
dnnl_status_t dnn_make_attr(bool sum, bool relu, float scale, dnnl_primitive_attr_t *attr)
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

dnnl_status_t dnn_add_reorder(dnn_builder *b, mf_dnn_layout from, dnn_argument from_arg, mf_dnn_layout to,
                              dnn_argument to_arg, bool sum)
{
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd;
    dnnl_status_t s = dnn_make_attr(sum, false, 1, &attr);
    if (s != dnnl_success)
        return s;
    s = dnnl_reorder_primitive_desc_create(&pd, from, b->engine->engine, to, b->engine->engine, attr);
    dnnl_primitive_attr_destroy(attr);
    if (s != dnnl_success)
        return s;
    dnn_argument args[2] = {{DNNL_ARG_FROM, from, from_arg.operand, from_arg.offset},
                            {DNNL_ARG_TO, to, to_arg.operand, to_arg.offset}};
    s = dnn_add_stage(b, pd, args, 2);
    dnnl_primitive_desc_destroy(pd);
    return s;
}

memfit_status dnn_begin(dnn_builder *b, mf_dnn_engine *engine, bool create, bool alone, memfit_error *err)
{
    *b = (dnn_builder){.engine = engine};
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

memfit_status dnn_finish(dnn_builder *b, dnnl_status_t status, const char *what, mf_dnn **made,
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
static void turn(const dnn_stage *st, const unsigned char *from, unsigned char *to)
{
#pragma omp parallel for schedule(static)
    for (uint64_t i = 0; i < st->taps; i++)
        memcpy(to + (st->taps - 1 - i) * st->tap_bytes, from + i * st->tap_bytes, st->tap_bytes);
}

static dnnl_status_t run_stage(dnn_stage *st, void *const *operands, unsigned char *workspace, dnnl_stream_t stream)
{
    if (!st->primitive) {
        turn(st, operands[st->operand[0]], workspace + st->offset[1]);
        return dnnl_success;
    }
    for (int a = 0; a < st->count; a++)
        dnnl_memory_set_data_handle(st->args[a].memory, st->operand[a] == DNN_IN_WORKSPACE ? workspace + st->offset[a]
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

/* ---- matrix product --------------------------------------------------------------------------------------- */

memfit_status mf_dnn_matmul_make(mf_dnn_engine *engine, const mf_dnn_matmul *mm, mf_dnn **made,
                                 uint64_t *workspace_bytes, memfit_error *err)
{
    dnn_builder b;
    int64_t batch = mm->batch_a > mm->batch_b ? mm->batch_a : mm->batch_b;
    if (!dnn_is_countable(batch) || !dnn_is_countable(mm->m) || !dnn_is_countable(mm->n) || !dnn_is_countable(mm->k))
        return dnn_too_large("matrix product", err);
    if (DNNL_VERSION_MAJOR >= 3 && (mm->k == 1 || mm->n == 1)) /* 3.7.2 gave NaN where rows of one element lie apart */
        return mf_fail(err, MEMFIT_UNSUPPORTED, "a product of vectors");
    double products = (double)batch * (double)(mm->m * mm->n) * (double)mm->k;
    double elements = (double)(mm->batch_a * mm->m * mm->k + mm->batch_b * mm->k * mm->n + batch * mm->m * mm->n);
    memfit_status status = dnn_begin(&b, engine, made != NULL, dnn_is_small(2 * products, 4 * elements), err);
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
        s = dnn_make_attr(mm->accumulate, mm->relu, (float)mm->scale, &attr);
    if (s == dnnl_success)
        s = mf_dnn_desc_matmul(&pd, engine->engine, MF_DNN_LAYOUT(a), MF_DNN_LAYOUT(w),
                               mm->bias ? MF_DNN_LAYOUT(bias) : NULL, MF_DNN_LAYOUT(c), attr, dnn_takes_nothing);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    if (s == dnnl_success) {
        dnn_argument args[4] = {{DNNL_ARG_SRC, MF_DNN_LAYOUT(a), 0, 0},
                                {DNNL_ARG_WEIGHTS, MF_DNN_LAYOUT(w), 1, 0},
                                {DNNL_ARG_DST, MF_DNN_LAYOUT(c), mm->bias ? 3 : 2, 0},
                                {DNNL_ARG_BIAS, MF_DNN_LAYOUT(bias), 2, 0}};
        s = dnn_add_stage(&b, pd, args, mm->bias ? 4 : 3);
        dnnl_primitive_desc_destroy(pd);
    }
    dnnl_memory_desc_t *all[] = {&a, &w, &bias, &c};
    for (int i = 0; i < 4; i++)
        mf_dnn_layout_drop(all[i]);
    return dnn_finish(&b, s, "matrix product", made, workspace_bytes, err);
}
