/*
 * execute.c: see execute.h.
 *
 *   phase -> steps[] -> { kernel (one for each operation, shared by its repetitions), addresses of operands }
 *
 * Everything is laid out at creation in one arena of host memory; a run walks an array, or, where the device records,
 * launches what was recorded when the array was walked before the first step (execute_record.c).
 */
#include "train/execute_inner.h"

#include "base/error.h"
#include "ops/method_times.h"

#include <stdio.h>
#include <string.h>

static uint32_t feed_of(const mf_graph *graph, uint32_t tensor)
{
    for (uint32_t i = 0; i < graph->feed_count; i++)
        if (graph->feeds[i].tensor == tensor)
            return i;
    return MF_NONE;
}

static uint64_t tensor_bytes(const mf_graph *graph, uint32_t tensor)
{
    const mf_tensor *t = &graph->tensors[tensor];
    return mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
}

static memfit_status no_memory(memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to make the plan ready");
}

static void note_reference(mf_executor *x, const mf_graph *graph, const mf_op *op)
{
    size_t used = strlen(x->reference_names);
    if (!x->is_reference[op->kind])
        snprintf(x->reference_names + used, sizeof x->reference_names - used, "%s%s (%s)", used ? ", " : "",
                 mf_kind_name(op->kind), graph->layers[op->layer].name);
    x->is_reference[op->kind] = true;
    x->reference_ops++;
}

static memfit_status ready_kernel(mf_executor *x, const mf_graph *graph, const mf_step *step, mf_kernel **kernel,
                                  memfit_error *err)
{
    uint32_t op = step->op;
    if (*kernel)
        return MEMFIT_OK;
    mf_cost cost;
    memfit_status status = x->backend->table->query(x->backend, graph, op, &cost, err);
    if (status == MEMFIT_OK && cost.reference)
        note_reference(x, graph, &graph->ops[op]);
    if (status == MEMFIT_OK)
        status = x->backend->table->prepare(x->backend, graph, op, step->method, kernel, err);
    if (status != MEMFIT_OK)
        mf_error_prefix(err, status, "layer %s (%s)", graph->layers[graph->ops[op].layer].name,
                        mf_kind_name(graph->ops[op].kind));
    return status;
}

static memfit_status ready_one(mf_executor *x, const mf_phase *phase, ready_phase *ready, uint32_t i, memfit_error *err)
{
    const mf_graph *graph = phase->graph;
    const mf_step *step = &phase->steps[i];
    const mf_op *op = &graph->ops[step->op];
    ready_step *r = &ready->steps[i];
    uint32_t n = op->in_count + op->out_count;
    void **at = MF_NEW_ARRAY(&x->arena, void *, n + 1);
    if (!at)
        return no_memory(err);
    for (uint32_t j = 0; j < n; j++)
        at[j] = step->offsets[j] == MF_NO_OFFSET ? NULL : x->base + step->offsets[j];
    *r = (ready_step){.operands = {at, at + op->in_count, x->base + step->workspace_offset, step->recomputed},
                      .op = op,
                      .feed = op->kind == MF_OP_INPUT ? feed_of(graph, op->out[0]) : MF_NONE};
    if (r->feed != MF_NONE)
        r->feed_bytes = tensor_bytes(graph, op->out[0]);
    if (op->kind == MF_OP_INPUT || (op->kind == MF_OP_VIEW && at[0] == at[1]))
        return MEMFIT_OK;
    memfit_status status = ready_kernel(x, graph, step, &ready->kernels[step->op], err);
    r->kernel = ready->kernels[step->op];
    return status;
}

/*
 * Operations that follow another at each of its steps and change its result in place may become part of its kernel
 * (mf_backend_table.absorb); their steps then run nothing. follower[op]: the one that follows it everywhere, MF_NONE
 * before any step was seen, MF_SEVERAL when the steps differ.
 */
#define MF_SEVERAL (MF_NONE - 1)

static uint32_t follower_at(const mf_phase *phase, const ready_phase *ready, uint32_t i)
{
    const ready_step *a = &ready->steps[i], *b = i + 1 < phase->step_count ? a + 1 : NULL;
    bool in_place = b && a->kernel && b->kernel && a->op->out_count == 1 && b->op->in_count == 1 &&
                    b->op->out_count == 1 && b->op->in[0] == a->op->out[0] && a->op->when == b->op->when &&
                    a->operands.out[0] == b->operands.in[0] && b->operands.in[0] == b->operands.out[0];
    return in_place ? phase->steps[i + 1].op : MF_SEVERAL;
}

static memfit_status absorb_followers(mf_executor *x, const mf_phase *phase, ready_phase *ready, memfit_error *err)
{
    if (!x->backend->table->absorb)
        return MEMFIT_OK;
    uint32_t *follower = MF_NEW_ARRAY(&x->arena, uint32_t, phase->graph->op_count + 1);
    if (!follower)
        return no_memory(err);
    for (uint32_t i = 0; i < phase->graph->op_count; i++)
        follower[i] = MF_NONE;
    for (uint32_t i = 0; i < phase->step_count; i++) {
        uint32_t op = phase->steps[i].op, next = follower_at(phase, ready, i);
        follower[op] = follower[op] == MF_NONE || follower[op] == next ? next : MF_SEVERAL;
    }
    const mf_executor_options *o = &x->options;
    for (uint32_t i = 0; i < phase->graph->op_count; i++)
        if (follower[i] < MF_SEVERAL &&
            ((o->room && !o->room(o->full_ctx, phase->graph, &phase->graph->ops[i])) ||
             !x->backend->table->absorb(x->backend, ready->kernels[i], phase->graph, follower[i])))
            follower[i] = MF_SEVERAL;
    for (uint32_t i = 0; i + 1 < phase->step_count; i++)
        if (follower[phase->steps[i].op] < MF_SEVERAL)
            ready->steps[i + 1].kernel = NULL;
    return MEMFIT_OK;
}

/* For the poison: which placed ranges end with which step. What lives to the last one may be a result. */
static memfit_status list_released(mf_executor *x, const mf_phase *phase, ready_phase *ready, memfit_error *err)
{
    ready->released_at = MF_NEW_ARRAY(&x->arena, uint32_t, phase->step_count + 2);
    ready->released = MF_NEW_ARRAY(&x->arena, uint32_t, phase->placed_count + 1);
    if (!ready->released_at || !ready->released)
        return no_memory(err);
    for (uint32_t i = 0; i < phase->placed_count; i++)
        if (!phase->placed[i].handed_on && phase->placed[i].last + 1 < phase->step_count)
            ready->released_at[phase->placed[i].last + 2]++;
    for (uint32_t i = 1; i <= phase->step_count + 1; i++)
        ready->released_at[i] += ready->released_at[i - 1];
    for (uint32_t i = 0; i < phase->placed_count; i++)
        if (!phase->placed[i].handed_on && phase->placed[i].last + 1 < phase->step_count)
            ready->released[ready->released_at[phase->placed[i].last + 1]++] = i;
    return MEMFIT_OK;
}

/* Which steps the backend may run by one launch. Not where every step is looked at, nor where the optimizer's slots come and go
 * step by step. */
static memfit_status join_steps(mf_executor *x, const mf_phase *phase, ready_phase *ready, memfit_error *err)
{
    const mf_backend_table *table = x->backend->table;
    if (!table->batch || x->options.step || x->options.poison || x->offload.bytes)
        return MEMFIT_OK;
    const void **keys = MF_NEW_ARRAY(&x->arena, const void *, phase->step_count + 1);
    ready->batch_kernels = MF_NEW_ARRAY(&x->arena, mf_kernel *, phase->step_count + 1);
    ready->batch_operands = MF_NEW_ARRAY(&x->arena, const mf_operands *, phase->step_count + 1);
    if (!keys || !ready->batch_kernels || !ready->batch_operands)
        return no_memory(err);
    for (uint32_t i = 0; i < phase->step_count; i++)
        keys[i] = ready->steps[i].kernel ? table->batch(ready->steps[i].kernel) : NULL;
    return mf_together_make(&x->arena, phase, keys, &ready->together, err);
}

/* What ends a step of this phase: where its loss is, and the flag that says that its update was left out. */
static void ready_end(mf_executor *x, const mf_graph *graph, ready_phase *ready)
{
    ready->end = (mf_step_end){.scalars = x->scalars, .learns = graph->mode == MF_MODE_TRAIN};
    if (graph->loss_variable != MF_NONE && graph->mode != MF_MODE_PREDICT)
        ready->end.loss = mf_executor_variable(x, graph->loss_variable);
    for (uint32_t i = 0; ready->end.learns && graph->needs_loss_scale && i < graph->variable_count; i++)
        if (graph->variables[i].role == MF_VAR_CONTROL)
            ready->end.overflow = mf_executor_variable(x, i);
}

/* The most that one piece of any phase hands over. */
static uint64_t staged_bytes(const mf_plan *plan)
{
    uint64_t most = 0;
    for (uint32_t p = 0; p < plan->phase_count; p++) {
        const mf_graph *g = plan->phases[p].graph;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < g->feed_count; i++)
            sum += tensor_bytes(g, g->feeds[i].tensor) + MF_STAGE_ALIGN;
        most = sum > most ? sum : most;
    }
    return most + sizeof(mf_run_scalars) + MF_STAGE_ALIGN;
}

static memfit_status take_place(mf_executor *x, const memfit_host *host, memfit_error *err)
{
    const mf_executor_options *o = &x->options;
    x->device = o->device ? o->device : mf_device_near();
    x->scalars = o->scalars ? (mf_run_scalars *)(uintptr_t)o->scalars : &x->own;
    if (x->device->reachable)
        return MEMFIT_OK;
    memfit_status status = mf_stage_create(&x->stage, host, x->device, o->stream, staged_bytes(x->plan), err);
    return status == MEMFIT_OK
               ? mf_offload_create(&x->offload, &x->arena, host, x->device, o->stream, x->plan, x->base, err)
               : status;
}

static void announce(mf_executor *x)
{
    for (uint32_t p = 0; p < x->plan->phase_count && x->backend->table->announce; p++)
        for (uint32_t i = 0; i < x->plan->phases[p].step_count; i++) {
            const mf_step *step = &x->plan->phases[p].steps[i];
            x->backend->table->announce(x->backend, x->plan->phases[p].graph, step->op, step->method);
        }
}

memfit_status mf_executor_create(const memfit_host *host, mf_backend *backend, const mf_plan *plan, void *base,
                                 const mf_executor_options *options, mf_executor **executor, memfit_error *err)
{
    for (uint32_t i = 0; i < plan->phase_count; i++)
        if (plan->phases[i].graph->mode == MF_MODE_TRAIN && plan->phases[i].graph->left_out)
            return mf_fail(err, MEMFIT_UNSUPPORTED, "the model uses %s, which memfit can plan but not train with",
                           plan->phases[i].graph->left_out);
    mf_executor *x = mf_host_zalloc(host, sizeof *x);
    if (!x)
        return no_memory(err);
    mf_arena_init(&x->arena, host);
    x->backend = backend;
    x->plan = plan;
    x->base = base;
    if (options)
        x->options = *options;
    x->phases = MF_NEW_ARRAY(&x->arena, ready_phase, plan->phase_count);
    memfit_status status = x->phases ? take_place(x, host, err) : no_memory(err);
    if (status == MEMFIT_OK)
        status = mf_profile_create(host, x->device, x->options.stream, plan, &x->profile, err);
    announce(x);
    for (uint32_t p = 0; p < plan->phase_count && status == MEMFIT_OK; p++) {
        const mf_phase *phase = &plan->phases[p];
        ready_phase *ready = &x->phases[p];
        ready->kernels = MF_NEW_ARRAY(&x->arena, mf_kernel *, phase->graph->op_count);
        ready->steps = MF_NEW_ARRAY(&x->arena, ready_step, phase->step_count);
        if (!ready->kernels || !ready->steps)
            status = no_memory(err);
        for (uint32_t i = 0; i < phase->step_count && status == MEMFIT_OK; i++) {
            if (x->options.full && x->options.full(x->options.full_ctx)) /* microseconds; a kernel takes hundreds */
                status = mf_fail(err, MEMFIT_DOES_NOT_FIT, "its kernels take more than the limit leaves");
            else
                status = ready_one(x, phase, ready, i, err);
        }
        ready_end(x, phase->graph, ready);
        if (status == MEMFIT_OK)
            status = absorb_followers(x, phase, ready, err);
        if (status == MEMFIT_OK)
            status = join_steps(x, phase, ready, err);
        if (status == MEMFIT_OK && x->options.poison)
            status = list_released(x, phase, ready, err);
    }
    if (status != MEMFIT_OK) {
        mf_executor_destroy(x);
        return status;
    }
    *executor = x;
    return MEMFIT_OK;
}

void mf_executor_destroy(mf_executor *x)
{
    if (!x)
        return;
    for (uint32_t p = 0; x->phases && p < x->plan->phase_count; p++)
        for (uint32_t i = 0; x->phases[p].kernels && i < x->plan->phases[p].graph->op_count; i++)
            if (x->phases[p].kernels[i])
                x->backend->table->release(x->backend, x->phases[p].kernels[i]);
    mf_executor_forget_records(x);
    const memfit_host *host = x->arena.host;
    mf_profile_destroy(x->profile, stderr);
    mf_stage_destroy(&x->stage);
    mf_shelf_give(&x->shelf);
    mf_offload_destroy(&x->offload);
    mf_arena_destroy(&x->arena);
    mf_host_free(host, x, sizeof *x);
}

static mf_address address_of(const void *pointer)
{
    return (mf_address)(uintptr_t)pointer;
}

static memfit_status poison(mf_executor *x, uint32_t phase, uint32_t step, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    const ready_phase *ready = &x->phases[phase];
    uint32_t from = step ? ready->released_at[step] : 0;
    for (uint32_t i = from; i < ready->released_at[step + 1] && status == MEMFIT_OK; i++) {
        const mf_placed *range = &x->plan->phases[phase].placed[ready->released[i]];
        status = x->device->table->fill(x->device, address_of(x->base + range->offset), 0xff, range->bytes,
                                        x->options.stream, err);
    }
    return status;
}

/* Is this operation's turn in this piece of this step? Steps of a group (Keras's gradient_accumulation_steps) add to
 * the gradients, regularizers' parts included, and to the averages; the last one updates. */
bool mf_executor_is_due(const mf_op *op, mf_piece piece)
{
    if (op->when == MF_ALWAYS)
        return true;
    if (op->when == MF_FIRST_PIECE)
        return piece.first && !(piece.continues && op->phase == MF_BACKWARD);
    return piece.last &&
           !(piece.holds && op->phase == MF_UPDATE_PHASE && op->kind != MF_OP_REGULARIZE && op->kind != MF_OP_EMA);
}

static bool is_due_in(const mf_op *op, const void *piece)
{
    return mf_executor_is_due(op, *(const mf_piece *)piece);
}

bool mf_executor_offloads(const mf_executor *x, mf_address address)
{
    return mf_offload_holds(&x->offload, address);
}

memfit_status mf_executor_asked_to_stop(const mf_executor *x, memfit_error *err)
{
    bool stop = x->options.stop && x->options.stop(x->options.stop_ctx);
    return stop ? mf_fail(err, MEMFIT_INTERRUPTED, "stopped in the middle of a step") : MEMFIT_OK;
}

/* ---- what goes in and out ----------------------------------------------------------------------------------- */

memfit_status mf_executor_write_scalars(mf_executor *x, const mf_run_scalars *scalars, memfit_error *err)
{
    mf_device *d = x->device;
    memfit_status status =
        d->table->copy_in(d, address_of(x->scalars), scalars, sizeof *scalars, x->options.stream, err);
    return status == MEMFIT_OK ? d->table->stream_sync(d, x->options.stream, err) : status;
}

memfit_status mf_executor_queue_scalars(mf_executor *x, const void *scalars, memfit_error *err)
{
    mf_device *d = x->device;
    return d->table->copy_in(d, address_of(x->scalars), scalars, sizeof(mf_run_scalars), x->options.stream, err);
}

memfit_status mf_executor_copy_scalars(mf_executor *x, mf_run_scalars *to, memfit_error *err)
{
    mf_device *d = x->device;
    return d->table->copy_out(d, to, address_of(x->scalars), sizeof *to, x->options.stream, err);
}

memfit_status mf_executor_read_scalars(mf_executor *x, mf_run_scalars *scalars, memfit_error *err)
{
    mf_device *d = x->device;
    memfit_status status = mf_executor_copy_scalars(x, scalars, err);
    return status == MEMFIT_OK ? d->table->stream_sync(d, x->options.stream, err) : status;
}

memfit_status mf_executor_send_scalars(mf_executor *x, const mf_run_scalars *scalars, memfit_error *err)
{
    void *room = mf_stage_room(&x->stage, sizeof *scalars);
    if (!room)
        return mf_fail(err, MEMFIT_INTERNAL, "no room to hand scalars over");
    memcpy(room, scalars, MF_SCALARS_HOST_BYTES);
    return mf_stage_send(&x->stage, address_of(x->scalars), room, MF_SCALARS_HOST_BYTES, err);
}

/* Before a piece: the host's part of the scalars. */
static memfit_status begin_piece(mf_executor *x, const mf_run_scalars *scalars, memfit_error *err)
{
    if (x->device->reachable) {
        memcpy(x->scalars, scalars, MF_SCALARS_HOST_BYTES);
        return MEMFIT_OK;
    }
    memfit_status status = mf_stage_begin(&x->stage, err);
    return status == MEMFIT_OK ? mf_executor_send_scalars(x, scalars, err) : status;
}

static memfit_status fill_input(mf_executor *x, const ready_step *r, mf_fill_feed fill, void *ctx, memfit_error *err)
{
    if (x->device->reachable)
        return fill(ctx, r->feed, r->operands.out[0], err);
    void *room = mf_stage_room(&x->stage, r->feed_bytes);
    if (!room)
        return mf_fail(err, MEMFIT_INTERNAL, "no room to hand input %u over", r->feed);
    memfit_status status = fill ? fill(ctx, r->feed, room, err) : MEMFIT_OK; /* else it is only recorded */
    return status == MEMFIT_OK ? mf_stage_send(&x->stage, address_of(r->operands.out[0]), room, r->feed_bytes, err)
                               : status;
}

static memfit_status end_piece(mf_executor *x, memfit_error *err)
{
    return x->device->reachable ? MEMFIT_OK : mf_stage_end(&x->stage, err);
}

/* ---- running ------------------------------------------------------------------------------------------------ */

static memfit_status run_step(mf_executor *x, uint32_t phase, uint32_t i, mf_piece piece, mf_fill_feed fill, void *ctx,
                              memfit_error *err)
{
    const ready_step *r = &x->phases[phase].steps[i];
    memfit_status status = MEMFIT_OK;
    if (x->options.step)
        x->options.step(x->options.step_ctx, phase, i, true);
    bool due = mf_executor_is_due(r->op, piece);
    if (due && r->feed != MF_NONE && (fill || x->recording))
        status = fill_input(x, r, fill, ctx, err);
    else if (due && r->kernel)
        status = x->backend->table->run(r->kernel, &r->operands, x->scalars, x->options.stream, err);
    if (status != MEMFIT_OK)
        return status;
    if (x->options.step)
        x->options.step(x->options.step_ctx, phase, i, false);
    return x->options.poison ? poison(x, phase, i, err) : MEMFIT_OK;
}

/* Several steps as one: those that are due. */
static memfit_status run_part(mf_executor *x, uint32_t phase, const uint32_t *steps, uint32_t count, mf_piece piece,
                              memfit_error *err)
{
    ready_phase *ready = &x->phases[phase];
    uint32_t due = 0;
    for (uint32_t i = 0; i < count; i++) {
        const ready_step *r = &ready->steps[steps[i]];
        if (!mf_executor_is_due(r->op, piece))
            continue;
        ready->batch_kernels[due] = r->kernel;
        ready->batch_operands[due++] = &r->operands;
    }
    return due ? x->backend->table->run_batch(ready->batch_kernels, ready->batch_operands, due, x->scalars,
                                              x->options.stream, err)
               : MEMFIT_OK;
}

static memfit_status run_together(mf_executor *x, uint32_t phase, mf_piece piece, mf_fill_feed fill, void *ctx,
                                  memfit_error *err)
{
    const mf_together *t = &x->phases[phase].together;
    memfit_status status = MEMFIT_OK;
    for (uint32_t p = 0, first = 0; p < t->part_count && status == MEMFIT_OK; first = t->ends[p++]) {
        uint32_t count = t->ends[p] - first;
        status = mf_executor_asked_to_stop(x, err);
        if (status == MEMFIT_OK)
            status = count == 1 ? run_step(x, phase, t->steps[first], piece, fill, ctx, err)
                                : run_part(x, phase, t->steps + first, count, piece, err);
    }
    return status;
}

static memfit_status run_in_order(mf_executor *x, uint32_t phase, mf_piece piece, mf_fill_feed fill, void *ctx,
                                  mf_profile *profile, memfit_error *err)
{
    mf_offload_run slots;
    memfit_status status = mf_offload_begin(&slots, &x->offload, phase, is_due_in, &piece, err);
    uint32_t count = x->plan->phases[phase].step_count;
    for (uint32_t i = 0; i < count && status == MEMFIT_OK; i++) {
        status = mf_executor_asked_to_stop(x, err);
        if (status == MEMFIT_OK && profile)
            status = mf_profile_mark(profile, i, err);
        if (status == MEMFIT_OK)
            status = mf_offload_before(&slots, i, err);
        if (status == MEMFIT_OK)
            status = run_step(x, phase, i, piece, fill, ctx, err);
        if (status == MEMFIT_OK)
            status = mf_offload_after(&slots, i, err);
    }
    if (status == MEMFIT_OK)
        status = mf_offload_end(&slots, err);
    return status == MEMFIT_OK && profile ? mf_profile_mark(profile, count, err) : status;
}

memfit_status mf_executor_run_steps(mf_executor *x, uint32_t phase, mf_piece piece, mf_fill_feed fill, void *ctx,
                                    memfit_error *err)
{
    const mf_step_end *end = &x->phases[phase].end;
    mf_profile *profile = fill && mf_profile_wants(x->profile, phase) ? x->profile : NULL;
    memfit_status status = !profile && x->phases[phase].together.part_count
                               ? run_together(x, phase, piece, fill, ctx, err)
                               : run_in_order(x, phase, piece, fill, ctx, profile, err);
    if (status == MEMFIT_OK && piece.last && end->loss)
        status = x->backend->table->end_step(x->backend, end, x->options.stream, err);
    return status;
}

memfit_status mf_executor_run(mf_executor *x, uint32_t phase, const mf_run_scalars *scalars, mf_piece piece,
                              mf_fill_feed fill, void *ctx, memfit_error *err)
{
    bool profiled = mf_profile_wants(x->profile, phase);
    if (fill && !profiled && mf_executor_is_recorded(x, phase, piece))
        return mf_executor_launch(x, phase, scalars, piece, fill, ctx, err);
    memfit_status status = begin_piece(x, scalars, err);
    if (status == MEMFIT_OK)
        status = mf_executor_run_steps(x, phase, piece, fill, ctx, err);
    if (status == MEMFIT_OK)
        status = end_piece(x, err);
    return status == MEMFIT_OK && profiled ? mf_profile_take(x->profile, phase, err) : status;
}

memfit_status mf_executor_warm_up(mf_executor *x, uint32_t phase, mf_fill_feed fill, void *ctx, memfit_error *err)
{
    enum { MOST_SEEN = 1024 }; /* models of more different operations run the rest of them all */
    uint64_t seen[2 * MOST_SEEN] = {0};
    uint32_t seen_count = 0;
    const mf_phase *planned = &x->plan->phases[phase];
    memfit_status began = begin_piece(x, &(mf_run_scalars){.batch_samples = 1, .weight_sum = 1}, err);
    if (began != MEMFIT_OK)
        return began;
    for (uint32_t i = 0; i < planned->step_count; i++) {
        ready_step *r = &x->phases[phase].steps[i];
        memfit_status status = mf_executor_asked_to_stop(x, err);
        if (status == MEMFIT_OK && r->feed != MF_NONE && fill)
            status = fill_input(x, r, fill, ctx, err);
        if (status != MEMFIT_OK)
            return status;
        if (!r->kernel)
            continue;
        uint64_t like = mf_op_likeness(planned->graph, r->op);
        size_t at = (like >> 1) % (2 * MOST_SEEN);
        while (seen[at] && seen[at] != like)
            at = (at + 1) % (2 * MOST_SEEN);
        if (seen[at] == like)
            continue;
        if (seen_count < MOST_SEEN) {
            seen[at] = like;
            seen_count++;
        }
        status = x->backend->table->run(r->kernel, &r->operands, x->scalars, x->options.stream, err);
        if (status != MEMFIT_OK)
            return status;
    }
    const mf_step_end *end = &x->phases[phase].end;
    memfit_status status = end->loss ? x->backend->table->end_step(x->backend, end, x->options.stream, err) : MEMFIT_OK;
    return status == MEMFIT_OK ? end_piece(x, err) : status;
}

void *mf_executor_variable(const mf_executor *x, uint32_t variable)
{
    /* The state of an optimizer is in the file, and takes no room where nothing is trained. */
    bool kept = variable < x->plan->variable_count && x->plan->variable_bytes[variable];
    if (kept && x->plan->variable_windows[variable])
        return mf_offload_variable(&x->offload, variable);
    uint64_t at = kept ? x->plan->variable_offsets[variable] : MF_NO_OFFSET;
    return at == MF_NO_OFFSET ? NULL : x->base + at;
}

void *mf_executor_tensor(const mf_executor *x, uint32_t phase, uint32_t tensor)
{
    const mf_phase *p = &x->plan->phases[phase];
    for (uint32_t i = p->step_count; i-- > 0;) {
        const mf_op *op = &p->graph->ops[p->steps[i].op];
        for (uint32_t o = 0; o < op->out_count; o++)
            if (op->out[o] == tensor)
                return x->base + p->steps[i].offsets[op->in_count + o];
    }
    /* A view that takes no step: its source's bytes, or some of its rows. */
    const mf_tensor *t = &p->graph->tensors[tensor];
    if (t->producer == MF_NONE || p->graph->ops[t->producer].kind != MF_OP_VIEW)
        return NULL;
    uint32_t source = p->graph->ops[t->producer].in[0];
    unsigned char *at = mf_executor_tensor(x, phase, source);
    return at ? at + (t->offset - p->graph->tensors[source].offset) : NULL;
}

uint32_t mf_executor_reference_ops(const mf_executor *x)
{
    return x->reference_ops;
}

const char *mf_executor_reference_name(const mf_executor *x)
{
    return x->reference_names;
}
