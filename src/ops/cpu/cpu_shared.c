/*
 * cpu_shared.c: reference operations shared out to threads, for what neither rules nor the library serve. The samples of
 * a batch (or single numbers, where an operation looks at one at a time) are divided into a part for each thread, and
 * each part is an operation of its own for the reference backend:
 *
 *     x    [ part | part | part ]   --reference kernel of that thread-->   y    [ part | part | part ]
 *     w    [ whole ]                                                      dw   [ sum ] = sum + sum + sum, in order
 *
 *   workspace   [ the reference kernel's own, sums ] for each part
 *
 * Results that are divided have the reference's bits, whatever the number of threads.
 */
#include "ops/cpu/cpu_ops.h"

#include "base/error.h"

#include <string.h>

/* How an operand goes through the parts: by samples, by samples where it has them and whole otherwise, whole, by single
 * numbers, added up over the parts, the same from every part. */
typedef enum { PART = 'p', LIKE = 'l', WHOLE = 'w', FLAT = 'f', SUM = 's', SAME = 'e' } shared_role;

typedef struct shared_operand {
    shared_role role;
    int64_t inner; /* elements of a unit */
    uint64_t at;   /* SUM, SAME: in the part's workspace */
} shared_operand;

struct cpu_shared {
    uint64_t bytes, each; /* of this; workspace of a part */
    uint64_t own;         /* of that, the reference kernel's */
    int64_t units, per;
    uint32_t parts, count;
    bool adds;         /* the reference adds, or nobody */
    mf_graph graph[2]; /* a part, the last part */
    mf_op op[2];
    mf_tensor *tensors[2];
    mf_storage *storages;
    shared_operand *operands; /* inputs, then outputs */
    uint32_t *ids;
    mf_kernel **kernels; /* one a part */
    void **pointers;     /* of all operands, for each part */
};

/* ---- which operands are divided --------------------------------------------------------------------------- */

typedef struct shared_row {
    mf_op_kind kind;
    const char *in, *out; /* the last letter serves all that follow */
} shared_row;

static const shared_row rows[] = {
    {MF_OP_UNARY, "f", "f"},
    {MF_OP_UNARY_GRAD, "f", "f"},
    {MF_OP_EMA, "f", "f"},
    {MF_OP_UPDATE, "f", "f"},
    {MF_OP_BINARY_GRAD, "pl", "l"},
    {MF_OP_PRELU, "pl", "p"},
    {MF_OP_PRELU_GRAD, "ppl", "pl"},
    {MF_OP_RESIZE, "p", "p"},
    {MF_OP_RESIZE_GRAD, "p", "p"},
    {MF_OP_AUGMENT, "p", "p"},
    {MF_OP_RANDOM, "p", "p"},
    {MF_OP_DROPOUT, "p", "p"},
    {MF_OP_SOFTMAX, "p", "p"},
    {MF_OP_SOFTMAX_GRAD, "p", "p"},
    {MF_OP_REDUCE, "p", "p"},
    {MF_OP_REDUCE_GRAD, "p", "p"},
    {MF_OP_PAD, "p", "p"},
    {MF_OP_LAYER_NORM, "pw", "p"},
    {MF_OP_LAYER_NORM_GRAD, "ppppw", "ps"},
    {MF_OP_LOSS_GRAD, "p", "p"},
    {MF_OP_LSTM, "pwp", "p"},
    {MF_OP_LSTM_GRAD, "ppppwp", "psp"},
    {MF_OP_GRU, "pwwp", "p"},
    {MF_OP_GRU_GRAD, "pppwwp", "pssp"},
    {MF_OP_SIMPLE_RNN, "pwp", "p"},
    {MF_OP_SIMPLE_RNN_GRAD, "ppwp", "psp"},
};

/* Does the operation look at each sample, or number, by itself? */
static bool is_by_sample(const mf_op *op)
{
    const mf_attr *a = &op->attr;
    switch (op->kind) {
    case MF_OP_UPDATE:
        return a->update.optimizer != MF_OPTIMIZER_LAMB && a->update.optimizer != MF_OPTIMIZER_ADAFACTOR;
    case MF_OP_RANDOM:
    case MF_OP_DROPOUT:
        return !(a->random.shared_axes & 1);
    case MF_OP_SOFTMAX:
    case MF_OP_SOFTMAX_GRAD:
        return a->softmax.axis != 0 && !a->softmax.causal;
    case MF_OP_REDUCE:
    case MF_OP_REDUCE_GRAD:
        return !(a->reduce.axes & 1);
    case MF_OP_PAD:
        return !a->pad.before[0] && !a->pad.after[0] && !a->pad.between[0];
    case MF_OP_LOSS_GRAD: /* these look at all targets */
        return a->loss.function != MF_LOSS_HINGE && a->loss.function != MF_LOSS_SQUARED_HINGE;
    default:
        return true;
    }
}

static const mf_tensor *operand(const cpu_kernel *k, uint32_t i)
{
    return i < k->op->in_count ? cpu_in(k, i) : cpu_out(k, i - k->op->in_count);
}

static shared_role letter(const char *list, uint32_t at)
{
    size_t last = strlen(list) - 1;
    return (shared_role)list[at < last ? at : last];
}

/* The role of one operand, given the number of units; false where its shape does not suit. */
static bool settle(const cpu_kernel *k, uint32_t i, int64_t units, const mf_tensor *lead, shared_operand *o)
{
    const mf_tensor *t = operand(k, i);
    const bool in = i < k->op->in_count;
    const int64_t n = cpu_count(t);
    if (o->role == LIKE)
        o->role = t->shape.rank == lead->shape.rank && t->shape.dim[0] == units ? PART : in ? WHOLE : SUM;
    if (o->role == FLAT && n != units) /* a flag, or a slot of one number */
        o->role = in ? WHOLE : SAME;
    o->inner = o->role == FLAT ? 1 : o->role == PART && units ? n / units : 0;
    if (o->role == PART && (t->shape.rank == 0 || t->shape.dim[0] % units || n % units))
        return false;
    return (o->role != SUM && o->role != SAME) || t->dtype == MF_F32;
}

static bool divide(const cpu_kernel *k, cpu_shared *s)
{
    const shared_row *row = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].kind == k->op->kind)
            row = &rows[i];
    const mf_tensor *lead = k->op->in_count ? cpu_in(k, 0) : cpu_out(k, 0);
    lead = lead ? lead : cpu_in(k, 1); /* a recurrent layer's outputs may have no gradient but the last */
    if (!row || !lead || !is_by_sample(k->op) || lead->shape.rank == 0)
        return false;
    s->units = letter(row->in, 0) == FLAT ? cpu_count(lead) : lead->shape.dim[0];
    bool sums = false, added = false;
    for (uint32_t i = 0; i < s->count; i++) {
        bool in = i < k->op->in_count;
        s->operands[i].role = in ? letter(row->in, i) : letter(row->out, i - k->op->in_count);
        if (operand(k, i) && !settle(k, i, s->units, lead, &s->operands[i]))
            return false;
        sums |= operand(k, i) && (s->operands[i].role == SUM || s->operands[i].role == SAME);
        added |= !in && s->operands[i].role != SUM && cpu_adds(k, i - k->op->in_count);
    }
    s->adds = k->op->accumulate && !sums;
    return !(sums && added);
}

/* ---- a part as an operation ------------------------------------------------------------------------------- */

static void fill_graphs(const cpu_kernel *k, cpu_shared *s)
{
    const int64_t last = s->units - s->per * (s->parts - 1);
    for (uint32_t i = 0; i < s->count; i++) {
        const mf_tensor *t = operand(k, i);
        s->ids[i] = t ? i : MF_NONE;
        if (!t)
            continue;
        s->storages[i].variable = s->adds ? k->graph->storages[t->storage].variable : MF_NONE;
        for (int g = 0; g < 2; g++) {
            mf_tensor *part = &s->tensors[g][i];
            const int64_t n = g ? last : s->per;
            *part = *t;
            part->storage = i;
            part->variable = MF_NONE;
            if (s->operands[i].role == FLAT)
                part->shape = (mf_shape){.rank = 1, .dim = {n}};
            else if (s->operands[i].role == PART)
                part->shape.dim[0] = t->shape.dim[0] / s->units * n;
        }
    }
    for (int g = 0; g < 2; g++) {
        s->op[g] = *k->op;
        s->op[g].in = s->ids;
        s->op[g].out = s->ids + k->op->in_count;
        s->op[g].accumulate = s->adds;
        s->graph[g] = *k->graph;
        s->graph[g].tensors = s->tensors[g];
        s->graph[g].storages = s->storages;
        s->graph[g].tensor_count = s->graph[g].storage_count = s->count;
        s->graph[g].ops = &s->op[g];
        s->graph[g].op_count = 1;
    }
}

static uint64_t round64(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

/* NULL in *made: not to be divided. */
static memfit_status make(const cpu_kernel *k, cpu_shared **made, memfit_error *err)
{
    const uint32_t n = k->op->in_count + k->op->out_count, threads = k->backend->base.threads;
    mf_backend *reference = k->backend->reference;
    uint64_t each = 2 * sizeof(mf_tensor) + sizeof(mf_storage) + sizeof(shared_operand) + sizeof(uint32_t) + 8;
    uint64_t bytes = sizeof(cpu_shared) + n * each + threads * (1 + n) * sizeof(void *);
    int64_t most = 0;
    *made = NULL;
    for (uint32_t i = 0; i < n; i++)
        most = operand(k, i) && cpu_count(operand(k, i)) > most ? cpu_count(operand(k, i)) : most;
    if (threads < 2 || most <= k->backend->share_from)
        return MEMFIT_OK;
    cpu_shared *s = mf_host_zalloc(k->backend->base.host, bytes);
    if (!s)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a kernel");
    s->bytes = bytes;
    s->count = n;
    s->kernels = (mf_kernel **)(s + 1);
    s->pointers = (void **)(s->kernels + threads);
    s->tensors[0] = (mf_tensor *)(s->pointers + threads * n);
    s->tensors[1] = s->tensors[0] + n;
    s->storages = (mf_storage *)(s->tensors[1] + n);
    s->operands = (shared_operand *)(s->storages + n);
    s->ids = (uint32_t *)(s->operands + n);
    mf_cost cost = {0};
    memfit_status status = MEMFIT_OK;
    bool divides = divide(k, s) && s->units > 1;
    if (divides) {
        s->per = (s->units + threads - 1) / threads;
        s->parts = (uint32_t)((s->units + s->per - 1) / s->per);
        fill_graphs(k, s);
        status = reference->table->query(reference, &s->graph[0], 0, &cost, err);
        s->own = s->each = round64(cost.methods[0].workspace_bytes);
        for (uint32_t i = 0; i < n; i++)
            if (operand(k, i) && (s->operands[i].role == SUM || s->operands[i].role == SAME)) {
                s->operands[i].at = s->each;
                s->each += round64((uint64_t)cpu_count(operand(k, i)) * sizeof(float));
            }
    }
    if (status == MEMFIT_OK && divides && cost.supported)
        *made = s;
    else
        mf_host_free(k->backend->base.host, s, s->bytes);
    return status;
}

memfit_status cpu_shared_query(const cpu_kernel *k, bool *serves, uint64_t *workspace, memfit_error *err)
{
    cpu_shared *s;
    memfit_status status = make(k, &s, err);
    *serves = status == MEMFIT_OK && s;
    if (*serves) {
        *workspace = s->parts * s->each;
        mf_host_free(k->backend->base.host, s, s->bytes);
    }
    return status;
}

memfit_status cpu_shared_prepare(cpu_kernel *k, bool *serves, memfit_error *err)
{
    mf_backend *reference = k->backend->reference;
    memfit_status status = make(k, &k->shared, err);
    *serves = status == MEMFIT_OK && k->shared;
    for (uint32_t i = 0; *serves && i < k->shared->parts && status == MEMFIT_OK; i++)
        status = reference->table->prepare(reference, &k->shared->graph[i + 1 == k->shared->parts], 0, NULL,
                                           &k->shared->kernels[i], err);
    return status;
}

void cpu_shared_release(cpu_kernel *k)
{
    cpu_shared *s = k->shared;
    if (!s)
        return;
    for (uint32_t i = 0; i < s->parts; i++)
        if (s->kernels[i])
            k->backend->reference->table->release(k->backend->reference, s->kernels[i]);
    mf_host_free(k->backend->base.host, s, s->bytes);
    k->shared = NULL;
}

/* ---- running ---------------------------------------------------------------------------------------------- */

static memfit_status run_part(const cpu_kernel *k, uint32_t part, const mf_operands *o, const mf_run_scalars *scalars,
                              memfit_error *err)
{
    cpu_shared *s = k->shared;
    unsigned char *space = (unsigned char *)o->workspace + part * s->each;
    void **at = s->pointers + part * s->count;
    const int64_t first = s->per * part;
    for (uint32_t i = 0; i < s->count; i++) {
        const shared_operand *p = &s->operands[i];
        const mf_tensor *t = operand(k, i);
        unsigned char *base = i < k->op->in_count ? o->in[i] : o->out[i - k->op->in_count];
        if (!t)
            at[i] = NULL;
        else if (p->role == SUM || p->role == SAME)
            at[i] = space + p->at;
        else
            at[i] = base + (uint64_t)(first * p->inner) * mf_dtype_bytes(t->dtype);
    }
    mf_run_scalars own = *scalars;
    if (s->operands[0].role != FLAT)
        own.first_sample += (uint64_t)first;
    mf_operands operands = {at, at + k->op->in_count, space, o->recomputed};
    return k->backend->reference->table->run(s->kernels[part], &operands, &own, 0, err);
}

static void gather(const cpu_kernel *k, uint32_t i, const mf_operands *o)
{
    const cpu_shared *s = k->shared;
    const uint64_t at = s->operands[i].at;
    const unsigned char *space = o->workspace;
    float *out = o->out[i - k->op->in_count];
    const int64_t n = cpu_count(operand(k, i));
    if (s->operands[i].role == SAME) {
        memcpy(out, space + at, (size_t)n * sizeof *out);
        return;
    }
    const bool add = cpu_adds(k, i - k->op->in_count);
    for (int64_t j = 0; j < n; j++) {
        double total = add ? (double)out[j] : 0;
        for (uint32_t part = 0; part < s->parts; part++)
            total += (double)((const float *)(const void *)(space + part * s->each + at))[j];
        out[j] = (float)total;
    }
}

memfit_status cpu_shared_run(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *scalars, memfit_error *err)
{
    cpu_shared *s = k->shared;
    const int parts = (int)s->parts;
    memfit_status status = MEMFIT_OK;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int i = 0; i < parts; i++) {
        memfit_error own = {0};
        memfit_status mine = run_part(k, (uint32_t)i, o, scalars, &own);
        if (mine == MEMFIT_OK)
            continue;
#pragma omp critical
        {
            status = mine;
            if (err)
                *err = own;
        }
    }
    for (uint32_t i = k->op->in_count; i < s->count && status == MEMFIT_OK; i++)
        if (operand(k, i) && (s->operands[i].role == SUM || s->operands[i].role == SAME))
            gather(k, i, o);
    return status;
}
