/*
 * trace_plan.c: what a recorded step of a PyTorch program takes of a card (memfit.torch_trace writes such recordings). The
 * events become a tape, and the tape goes the way of every prediction: PyTorch's allocator, the fixed cost, the band.
 *
 * A recording cannot know the card: the workspace of cuBLAS stands in it as a block of its own ("cublas"), and its size is
 * filled in here.
 */
#include "answer/trace_plan.h"

#include "base/abi.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

typedef struct owner_sum {
    uint32_t name;
    memfit_kind kind;
    uint64_t bytes;
} owner_sum;

static memfit_status put_events(const memfit_trace *trace, uint64_t blas_bytes, mf_tape *tape,
                                uint64_t *workspace_bytes, bool *products, memfit_error *err)
{
    uint64_t count;
    const memfit_event *events = memfit_trace_events(trace, &count);
    uint64_t ids = 0;
    for (uint64_t i = 0; i < count; i++)
        if (events[i].id >= ids)
            ids = events[i].id + 1;
    if (ids > count + 1)
        return mf_fail(err, MEMFIT_DAMAGED, "buffer %llu of a trace of %llu events", (unsigned long long)ids,
                       (unsigned long long)count);
    uint32_t *block_of = mf_host_alloc(tape->host, (size_t)(ids + 1) * sizeof *block_of);
    if (!block_of)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to follow a trace");
    for (uint64_t i = 0; i <= ids; i++)
        block_of[i] = MF_NONE;
    for (uint64_t i = 0; i < count; i++) {
        const memfit_event *e = &events[i];
        memfit_kind kind = e->kind < MEMFIT_KIND_COUNT ? (memfit_kind)e->kind : MEMFIT_KIND_ACTIVATIONS;
        if (e->op == MEMFIT_EVENT_ALLOC) {
            bool blas = kind == MEMFIT_KIND_WORKSPACE && strcmp(memfit_trace_name(trace, e->name), "cublas") == 0;
            uint64_t bytes = blas ? blas_bytes : e->bytes;
            *products |= blas;
            block_of[e->id] = mf_tape_take(tape, bytes, kind, e->name);
            if (block_of[e->id] != MF_NONE && kind == MEMFIT_KIND_WORKSPACE)
                tape->blocks[block_of[e->id]].guessed = strcmp(memfit_trace_name(trace, e->name), "cudnn") == 0;
            if (kind == MEMFIT_KIND_WORKSPACE && bytes > *workspace_bytes)
                *workspace_bytes = bytes;
        } else if (e->op == MEMFIT_EVENT_FREE) {
            mf_tape_drop(tape, block_of[e->id]);
            block_of[e->id] = MF_NONE;
        }
    }
    mf_host_free(tape->host, block_of, (size_t)(ids + 1) * sizeof *block_of);
    return tape->failed ? mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to follow a trace") : MEMFIT_OK;
}

/* ---- who held what at the peak ---- */

static int by_bytes(const void *a, const void *b)
{
    const owner_sum *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->name != y->name ? (x->name < y->name ? -1 : 1) : (int)x->kind - (int)y->kind;
}

static memfit_status list_owners(const memfit_trace *trace, const mf_tape *tape, memfit_trace_plan *out,
                                 memfit_error *err)
{
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_status status = memfit_trace_describe(trace, &info, err);
    if (status != MEMFIT_OK)
        return status;
    size_t rows = ((size_t)info.names + 1) * MEMFIT_KIND_COUNT;
    owner_sum *sums = mf_host_zalloc(tape->host, rows * sizeof *sums);
    if (!sums)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to sum by owner");
    for (size_t i = 0; tape->event_count && i <= tape->peak_event; i++) {
        const mf_tape_block *b = &tape->blocks[tape->events[i] / 2];
        owner_sum *s = &sums[(size_t)b->layer * MEMFIT_KIND_COUNT + b->kind];
        s->name = b->layer;
        s->kind = b->kind;
        s->bytes = tape->events[i] & 1 ? s->bytes - b->bytes : s->bytes + b->bytes;
    }
    qsort(sums, rows, sizeof *sums, by_bytes);
    for (size_t i = 0; i < rows && i < MEMFIT_TRACE_PLAN_OWNERS && sums[i].bytes; i++) {
        const char *name = memfit_trace_name(trace, sums[i].name);
        snprintf(out->owners[i].name, sizeof out->owners[i].name, "%s", name[0] ? name : "(no module)");
        out->owners[i].kind = sums[i].kind;
        out->owners[i].bytes = sums[i].bytes;
        out->owner_count = i + 1;
    }
    mf_host_free(tape->host, sums, rows * sizeof *sums);
    return MEMFIT_OK;
}

/* ---- together ---- */

static memfit_framework_fits public_fits(mf_framework_fits fits)
{
    return fits == MF_FRAMEWORK_YES  ? MEMFIT_FRAMEWORK_YES
           : fits == MF_FRAMEWORK_NO ? MEMFIT_FRAMEWORK_NO
                                     : MEMFIT_FRAMEWORK_TIGHT;
}

static memfit_status predict(const memfit_host *host, const memfit_trace *trace, const mf_framework_place *given,
                             memfit_trace_plan *out, memfit_error *err)
{
    mf_framework_place place = *given;
    bool products = false;
    mf_tape tape;
    mf_framework_estimate x = {0};
    uint64_t expandable = 0;
    mf_tape_init(&tape, host, 512);
    memfit_status status =
        put_events(trace, mf_framework_blas_bytes(place.capability), &tape, &out->workspace_bytes, &products, err);
    place.no_products = !products;
    if (status == MEMFIT_OK && !tape.peak_bytes)
        status = mf_fail(err, MEMFIT_DAMAGED, "the trace allocates nothing");
    if (status == MEMFIT_OK)
        status = mf_framework_from_tape(&tape, out->workspace_bytes, &place, &x, err);
    if (status == MEMFIT_OK && x.fits != MF_FRAMEWORK_YES)
        status = mf_pool_least(&tape, MF_POOL_EXPANDABLE, &expandable, err);
    if (status == MEMFIT_OK)
        status = list_owners(trace, &tape, out, err);
    mf_tape_destroy(&tape);
    if (status != MEMFIT_OK)
        return status;
    snprintf(out->basis, sizeof out->basis, "%s", x.basis);
    out->fits = public_fits(x.fits);
    out->peak_bytes = x.peak_bytes;
    out->low_bytes = x.low_bytes;
    out->high_bytes = x.high_bytes;
    out->live_bytes = x.live_bytes;
    out->pool_bytes = x.pool_bytes;
    out->fixed_bytes = x.fixed_bytes;
    out->expandable_bytes =
        expandable && expandable + (UINT64_C(1) << 20) < x.pool_bytes ? x.fixed_bytes + expandable : 0;
    memcpy(out->by_kind, x.by_kind, sizeof x.by_kind);
    return MEMFIT_OK;
}

memfit_status memfit_plan_trace(const char *path, const memfit_plan_options *given, memfit_trace_plan *result,
                                memfit_error *err)
{
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    memfit_trace_plan out = MEMFIT_TRACE_PLAN;
    memfit_status status = mf_abi_read(&o, given, "MEMFIT_PLAN_OPTIONS", err);
    if (status == MEMFIT_OK)
        status = mf_abi_check(result, "MEMFIT_TRACE_PLAN", err);
    mf_runtime runtime = MF_RUNTIME_TORCH;
    if (status == MEMFIT_OK && o.runtime && (!mf_runtime_parse(o.runtime, &runtime) || runtime != MF_RUNTIME_TORCH))
        status =
            mf_fail(err, MEMFIT_INVALID, "runtime \"%s\": a recorded step is PyTorch's: --runtime torch", o.runtime);
    mf_framework_place place = {0};
    if (status == MEMFIT_OK)
        status = mf_plan_find_place(&o, &place, out.device, sizeof out.device, err);
    place.recorded = true;
    memfit_trace *trace = NULL;
    if (status == MEMFIT_OK)
        status = memfit_trace_load(path, o.host, &trace, err);
    if (status == MEMFIT_OK) {
        memfit_trace_events(trace, &out.events);
        out.memory_bytes = place.limit_bytes;
        snprintf(out.version, sizeof out.version, "PyTorch 2.11");
        status = predict(o.host, trace, &place, &out, err);
    }
    memfit_trace_destroy(trace);
    if (status == MEMFIT_OK)
        mf_abi_write(result, &out, sizeof out);
    return status;
}
