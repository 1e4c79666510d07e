/*
 * members.c: a backend that runs groups (graph/group.h) member by member on another backend of the host's memory, and
 * everything else as that one does. What stays inside a group lies in the workspace:
 *
 *     workspace  [ tensors inside, each at a multiple of 64 bytes | workspace of the member that needs most ]
 *
 * It is what a group means: backends that make one kernel of it are held against this.
 */
#include "ops/ops.h"

#include "base/error.h"

typedef struct members_backend {
    mf_backend base;
    mf_backend *inner;
} members_backend;

typedef struct member {
    mf_kernel *kernel;
    uint32_t first, in_count, out_count; /* operands: places in `at` */
} member;

typedef struct members_kernel {
    members_backend *backend;
    mf_kernel *plain; /* not a group */
    const mf_op *op;
    mf_arena arena;
    member *members;
    uint32_t count;
    uint64_t *place; /* by inner tensor: where in the workspace it lies */
    uint64_t inside_bytes;
    uint32_t *ids; /* inner tensor of each operand of each member */
    void **at;
} members_kernel;

static uint64_t align64(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

static uint64_t inside_bytes(const mf_op *op, uint64_t *place)
{
    const mf_graph *inner = &op->attr.group->inner;
    uint64_t bytes = 0;
    for (uint32_t i = op->in_count + op->out_count; i < inner->tensor_count; i++) {
        if (place)
            place[i] = bytes;
        bytes += align64(inner->storages[i].bytes);
    }
    return bytes;
}

static memfit_status members_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                   memfit_error *err)
{
    mf_backend *b = ((members_backend *)backend)->inner;
    const mf_op *o = &graph->ops[op];
    if (o->kind != MF_OP_GROUP)
        return b->table->query(b, graph, op, cost, err);
    const mf_graph *inner = &o->attr.group->inner;
    uint64_t most = 0;
    double time = 0;
    bool reference = false;
    for (uint32_t i = 0; i < inner->op_count; i++) {
        mf_cost one;
        memfit_status status = b->table->query(b, inner, i, &one, err);
        if (status)
            return status;
        if (!one.supported) {
            *cost = (mf_cost){0};
            return MEMFIT_OK;
        }
        most = one.methods[0].workspace_bytes > most ? one.methods[0].workspace_bytes : most;
        time += one.methods[0].time_us;
        reference |= one.reference;
    }
    *cost = mf_cost_one(inside_bytes(o, NULL) + most, time);
    cost->reference = reference;
    return MEMFIT_OK;
}

static void members_release(mf_backend *backend, mf_kernel *kernel)
{
    mf_backend *inner = ((members_backend *)backend)->inner;
    members_kernel *k = (members_kernel *)kernel;
    if (!k)
        return;
    for (uint32_t i = 0; i < k->count; i++)
        if (k->members[i].kernel)
            inner->table->release(inner, k->members[i].kernel);
    if (k->plain)
        inner->table->release(inner, k->plain);
    mf_arena_destroy(&k->arena);
    mf_host_free(backend->host, k, sizeof *k);
}

static memfit_status prepare_members(members_kernel *k, memfit_error *err)
{
    mf_backend *b = k->backend->inner;
    const mf_graph *inner = &k->op->attr.group->inner;
    uint32_t operands = 0;
    for (uint32_t i = 0; i < inner->op_count; i++)
        operands += inner->ops[i].in_count + inner->ops[i].out_count;
    k->members = MF_NEW_ARRAY(&k->arena, member, inner->op_count);
    k->place = MF_NEW_ARRAY(&k->arena, uint64_t, inner->tensor_count + 1);
    k->ids = MF_NEW_ARRAY(&k->arena, uint32_t, operands + 1);
    k->at = MF_NEW_ARRAY(&k->arena, void *, operands + 1);
    if (!k->members || !k->place || !k->ids || !k->at)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a group of operations");
    k->inside_bytes = inside_bytes(k->op, k->place);
    memfit_status status = MEMFIT_OK;
    uint32_t first = 0;
    for (uint32_t i = 0; i < inner->op_count && status == MEMFIT_OK; i++) {
        const mf_op *op = &inner->ops[i];
        k->members[i] = (member){.first = first, .in_count = op->in_count, .out_count = op->out_count};
        for (uint32_t j = 0; j < op->in_count + op->out_count; j++)
            k->ids[first++] = j < op->in_count ? op->in[j] : op->out[j - op->in_count];
        status = b->table->prepare(b, inner, i, NULL, &k->members[i].kernel, err);
        k->count = i + 1;
    }
    return status;
}

static memfit_status members_prepare(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method,
                                     mf_kernel **kernel, memfit_error *err)
{
    members_backend *b = (members_backend *)backend;
    members_kernel *k = mf_host_zalloc(backend->host, sizeof *k);
    if (!k)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for an operation");
    k->backend = b;
    k->op = &graph->ops[op];
    mf_arena_init(&k->arena, backend->host);
    memfit_status status = k->op->kind == MF_OP_GROUP
                               ? prepare_members(k, err)
                               : b->inner->table->prepare(b->inner, graph, op, method, &k->plain, err);
    if (status) {
        members_release(backend, (mf_kernel *)k);
        return status;
    }
    *kernel = (mf_kernel *)k;
    return MEMFIT_OK;
}

static memfit_status members_run(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                                 mf_stream stream, memfit_error *err)
{
    members_kernel *k = (members_kernel *)kernel;
    mf_backend *b = k->backend->inner;
    if (k->plain)
        return b->table->run(k->plain, operands, scalars, stream, err);
    uint32_t ins = k->op->in_count, outs = k->op->out_count;
    char *inside = operands->workspace;
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < k->count && status == MEMFIT_OK; i++) {
        const member *m = &k->members[i];
        for (uint32_t j = m->first; j < m->first + m->in_count + m->out_count; j++) {
            uint32_t t = k->ids[j];
            k->at[j] = t == MF_NONE     ? NULL
                       : t < ins        ? operands->in[t]
                       : t < ins + outs ? operands->out[t - ins]
                                        : inside + k->place[t];
        }
        mf_operands own = {k->at + m->first, k->at + m->first + m->in_count, inside + k->inside_bytes,
                           operands->recomputed};
        status = b->table->run(m->kernel, &own, scalars, stream, err);
    }
    return status;
}

static memfit_status members_end_step(mf_backend *backend, const mf_step_end *end, mf_stream stream, memfit_error *err)
{
    mf_backend *inner = ((members_backend *)backend)->inner;
    return inner->table->end_step(inner, end, stream, err);
}

static void members_destroy(mf_backend *backend)
{
    if (!backend)
        return;
    mf_backend *inner = ((members_backend *)backend)->inner;
    inner->table->destroy(inner);
    mf_host_free(backend->host, backend, sizeof(members_backend));
}

static const mf_backend_table members_table = {.name = "members",
                                               .destroy = members_destroy,
                                               .query = members_query,
                                               .prepare = members_prepare,
                                               .run = members_run,
                                               .release = members_release,
                                               .end_step = members_end_step};

memfit_status mf_members_create(const memfit_host *host, mf_backend *inner, const mf_group_taker *groups,
                                mf_backend **backend, memfit_error *err)
{
    members_backend *b = mf_host_zalloc(host, sizeof *b);
    if (!b)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a backend");
    b->base =
        (mf_backend){.table = &members_table, .host = host, .threads = inner->threads, .alignment = inner->alignment};
    if (groups)
        b->base.groups = *groups;
    b->inner = inner;
    *backend = &b->base;
    return MEMFIT_OK;
}
