/* program.c: which operations can be one kernel; its width and launches. The text is in program_text.c. */
#include "ops/cuda/program.h"

#include "ops/cuda/program_text.h"

enum {
    MOST_INPUTS = 16,
    MOST_OUTPUTS = 6,
    SUM_BLOCKS = 528, /* four on each multiprocessor of the largest cards: all at work at once */
    WRITE_BLOCKS = 2112,
    MOST_WRITE_ROWS = 32,
    ROWS_EACH = 8,
    MOST_ROWS_EACH = 512,
    MOST_GRID_Y = 65535
};

static bool is_float(mf_dtype dtype)
{
    return dtype == MF_F32 || dtype == MF_F64 || dtype == MF_BF16 || dtype == MF_F16;
}

cuda_reach cuda_program_reach(const cuda_program *p, uint32_t tensor)
{
    const mf_shape *x = &p->graph->tensors[tensor].shape, *d = &p->domain;
    uint64_t count = mf_shape_count(x);
    if (mf_shape_equal(x, d))
        return REACH_WHOLE;
    if (count == 1)
        return REACH_ONE;
    if (x->rank > d->rank)
        return REACH_NONE;
    bool channel = x->rank > 0 && count == (uint64_t)x->dim[x->rank - 1] && count == p->channels;
    for (uint32_t i = 0; i < x->rank; i++)
        if (x->dim[x->rank - 1 - i] != 1 && x->dim[x->rank - 1 - i] != d->dim[d->rank - 1 - i])
            return REACH_NONE;
    return channel ? REACH_CHANNEL : REACH_WALK;
}

bool cuda_program_sums(mf_op_kind kind)
{
    return kind == MF_OP_BATCH_NORM || kind == MF_OP_BATCH_NORM_GRAD || kind == MF_OP_BATCH_NORM_INFER_GRAD ||
           kind == MF_OP_REDUCE;
}

/* The tensor whose shape is the domain's. */
static uint32_t whole_of(const mf_op *op)
{
    switch (op->kind) {
    case MF_OP_BATCH_NORM:
    case MF_OP_REDUCE:
    case MF_OP_MASK:
        return op->in[0];
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_BATCH_NORM_INFER_GRAD:
        return op->in[1];
    default:
        return op->out[0];
    }
}

static bool reads(const cuda_program *p, const mf_op *op, uint32_t i, bool whole)
{
    if (i >= op->in_count || op->in[i] == MF_NONE || !is_float(p->graph->tensors[op->in[i]].dtype))
        return false;
    cuda_reach reach = cuda_program_reach(p, op->in[i]);
    return whole ? reach == REACH_WHOLE : reach != REACH_NONE;
}

/* A vector with an entry for each channel, or none. */
static bool vector_or_none(const cuda_program *p, const mf_op *op, uint32_t i)
{
    return i >= op->in_count || op->in[i] == MF_NONE ||
           (is_float(p->graph->tensors[op->in[i]].dtype) &&
            mf_shape_count(&p->graph->tensors[op->in[i]].shape) == p->channels);
}

static bool norm_fits(const cuda_program *p, const mf_op *op)
{
    bool back = op->kind == MF_OP_BATCH_NORM_GRAD || op->kind == MF_OP_BATCH_NORM_INFER_GRAD;
    bool good = reads(p, op, 0, true) && (!back || reads(p, op, 1, true));
    for (uint32_t i = back ? 2 : 1; i < op->in_count; i++)
        good &= vector_or_none(p, op, i);
    return good;
}

/* Over every axis but the last. */
static bool reduce_fits(const cuda_program *p, const mf_op *op)
{
    const mf_shape *x = &p->domain;
    if (!reads(p, op, 0, true) ||
        (op->attr.reduce.function != MF_REDUCE_SUM && op->attr.reduce.function != MF_REDUCE_MEAN))
        return false;
    for (uint32_t i = 0; i < x->rank; i++)
        if (x->dim[i] != 1 && (op->attr.reduce.axes >> i & 1) != (i + 1 < x->rank))
            return false;
    return is_float(p->graph->tensors[op->out[0]].dtype) &&
           mf_shape_count(&p->graph->tensors[op->out[0]].shape) == p->channels;
}

static bool select_fits(const cuda_program *p, const mf_op *op)
{
    return cuda_program_reach(p, op->in[0]) != REACH_NONE && (op->in[1] == MF_NONE || reads(p, op, 1, false)) &&
           (op->in[2] == MF_NONE || reads(p, op, 2, false));
}

static bool mask_grad_fits(const cuda_program *p, const mf_op *op)
{
    return reads(p, op, 0, true) && op->in[1] != MF_NONE;
}

static bool operands_fit(const cuda_program *p, const mf_op *op)
{
    bool good = true;
    switch (op->kind) {
    case MF_OP_CAST:
    case MF_OP_UNARY:
    case MF_OP_DROPOUT:
    case MF_OP_MASK:
        return reads(p, op, 0, true);
    case MF_OP_UNARY_GRAD:
        return reads(p, op, 0, true) && reads(p, op, 1, true);
    case MF_OP_MASK_GRAD:
        return mask_grad_fits(p, op);
    case MF_OP_BROADCAST:
        return reads(p, op, 0, false);
    case MF_OP_BINARY:
        return reads(p, op, 0, false) && reads(p, op, 1, false);
    case MF_OP_SELECT:
        return select_fits(p, op);
    case MF_OP_SUM_N:
        for (uint32_t i = 0; i < op->in_count; i++)
            good &= reads(p, op, i, true);
        return good;
    case MF_OP_BATCH_NORM_INFER:
    case MF_OP_BATCH_NORM:
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_BATCH_NORM_INFER_GRAD:
        return norm_fits(p, op);
    case MF_OP_REDUCE:
        return reduce_fits(p, op);
    default:
        return false;
    }
}

static bool is_known(mf_op_kind kind)
{
    switch (kind) {
    case MF_OP_CAST:
    case MF_OP_UNARY:
    case MF_OP_DROPOUT:
    case MF_OP_MASK:
    case MF_OP_UNARY_GRAD:
    case MF_OP_MASK_GRAD:
    case MF_OP_BROADCAST:
    case MF_OP_BINARY:
    case MF_OP_SELECT:
    case MF_OP_SUM_N:
    case MF_OP_BATCH_NORM_INFER:
    case MF_OP_BATCH_NORM:
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_BATCH_NORM_INFER_GRAD:
    case MF_OP_REDUCE:
        return true;
    default:
        return false;
    }
}

/* What a member reads from another must be its whole result: vectors and bits are not there before the kernel ends. */
static bool passes_whole(const cuda_program *p, uint32_t member)
{
    const mf_op *op = p->ops[member];
    for (uint32_t k = 0; k < op->in_count; k++)
        for (uint32_t m = 0; m < member; m++)
            for (uint32_t o = 0; o < p->ops[m]->out_count; o++) {
                bool made = op->in[k] != MF_NONE && p->ops[m]->out[o] == op->in[k];
                if (made && (o > 0 || p->ops[m]->kind == MF_OP_REDUCE || p->ops[m]->kind == MF_OP_MASK ||
                             (op->kind == MF_OP_SELECT && k == 0) || (op->kind == MF_OP_MASK_GRAD && k == 1)))
                    return false;
            }
    return true;
}

/* The sum of a result that the gradient of a normalization is needed for. */
static bool is_late(const cuda_program *p, uint32_t member)
{
    const mf_op *op = p->ops[member];
    return op->kind == MF_OP_REDUCE && p->sum != MF_NONE && p->late == MF_NONE &&
           p->ops[p->sum]->kind == MF_OP_BATCH_NORM_GRAD &&
           (cuda_program_needed(p, op->in[0], member) >> p->sum & 1) != 0;
}

static bool member_fits(cuda_program *p, uint32_t member)
{
    const mf_op *op = p->ops[member];
    if (!mf_shape_equal(&p->graph->tensors[whole_of(op)].shape, &p->domain) || !operands_fit(p, op) ||
        !passes_whole(p, member))
        return false;
    if (op->kind != MF_OP_MASK && op->out[0] != MF_NONE && !is_float(p->graph->tensors[op->out[0]].dtype))
        return false;
    bool vectors = op->kind == MF_OP_BATCH_NORM_INFER || cuda_program_sums(op->kind);
    for (uint32_t i = 0; i < op->in_count && !vectors; i++)
        p->by_channel |=
            op->in[i] != MF_NONE && op->kind != MF_OP_MASK_GRAD && cuda_program_reach(p, op->in[i]) == REACH_CHANNEL;
    p->by_channel |= vectors;
    if (!cuda_program_sums(op->kind))
        return true;
    if (is_late(p, member)) {
        p->late = member;
        return true;
    }
    bool only = p->sum == MF_NONE && (p->rows > 1 || op->kind == MF_OP_REDUCE);
    p->sum = member;
    return only;
}

/* Elements a thread has: 16 bytes of the narrowest whole operand, as far as rows and places in memory are divisible. */
static unsigned width_of(const cuda_program *p)
{
    uint64_t narrow = 8;
    for (uint32_t pass = 0, width = 0;; pass++) {
        for (uint32_t m = 0; m < p->count; m++)
            for (uint32_t i = 0; i < p->ops[m]->in_count + p->ops[m]->out_count; i++) {
                const mf_op *op = p->ops[m];
                uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
                if (t == MF_NONE || cuda_program_reach(p, t) != REACH_WHOLE)
                    continue;
                uint64_t size = mf_dtype_bytes(p->graph->tensors[t].dtype);
                if (pass == 0 && size > 1 && size < narrow)
                    narrow = size;
                while (pass && width > 1 && p->graph->tensors[t].offset % (width * size))
                    width /= 2;
            }
        if (pass)
            return width;
        uint64_t unit = p->by_channel ? p->channels : p->elements;
        for (width = (uint32_t)(16 / narrow); width > 1 && unit % width; width /= 2)
            ;
    }
}

static bool has_mask(const cuda_program *p)
{
    for (uint32_t m = 0; m < p->count; m++)
        if (p->ops[m]->kind == MF_OP_MASK)
            return true;
    return false;
}

bool cuda_program_of(const mf_graph *graph, const mf_op *const *ops, uint32_t count, cuda_program *p)
{
    *p = (cuda_program){.graph = graph, .count = count, .sum = MF_NONE, .late = MF_NONE};
    if (count == 0 || count > MF_GROUP_MOST)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        p->ops[i] = ops[i];
        if (!is_known(ops[i]->kind) || whole_of(ops[i]) == MF_NONE)
            return false;
    }
    p->domain = graph->tensors[whole_of(ops[0])].shape;
    p->elements = mf_shape_count(&p->domain);
    if (p->domain.rank == 0 || p->elements == 0)
        return false;
    p->channels = (uint64_t)p->domain.dim[p->domain.rank - 1];
    p->rows = p->elements / p->channels;
    for (uint32_t i = 0; i < count; i++)
        if (!member_fits(p, i))
            return false;
    p->width = width_of(p);
    return !has_mask(p) || p->width == 8;
}

/* ---- groups ---- */

static uint32_t outside_reads(const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        n += graph->ops[ops[i]].in_count;
    return n;
}

/* Functions that take the card longer than their operands' way. */
static bool is_long(const mf_op *op)
{
    if (op->kind != MF_OP_UNARY && op->kind != MF_OP_UNARY_GRAD)
        return false;
    switch (op->attr.unary.function) {
    case MF_UNARY_LINEAR:
    case MF_UNARY_RELU:
    case MF_UNARY_RELU6:
    case MF_UNARY_LEAKY_RELU:
    case MF_UNARY_HARD_SIGMOID:
    case MF_UNARY_HARD_SILU:
    case MF_UNARY_SQUARE:
    case MF_UNARY_ABS:
    case MF_UNARY_NEG:
    case MF_UNARY_CLIP:
    case MF_UNARY_AFFINE:
        return false;
    default:
        return true;
    }
}

/* Where a long function (GELU, SiLU) is in it. A sum over rows with one before it pays where rows are long and there is much
 * to read: of 40 shapes with at least 24 million elements the group was the faster on 11 of the 12 from 2304 channels on,
 * and on 10 of 28 below. A bias and the function alone pay from some five million elements on: of 20 drawn shapes the group
 * was faster on all 14 above, on none of the 6 below (docs/bench/cuda.md). GPT-2 and ViT have more of both. */
static bool pays(const cuda_program *p)
{
    enum { LEAST_SUMMED = 24 << 20, LONG_ROWS = 2304, LEAST = 5 << 20 };
    bool sums = p->sum != MF_NONE && p->ops[p->sum]->kind == MF_OP_REDUCE, takes_long = false;
    for (uint32_t i = 0; i < p->count; i++)
        takes_long |= is_long(p->ops[i]);
    if (p->count == 1 || !takes_long)
        return true;
    return sums ? p->elements >= LEAST_SUMMED && p->channels >= LONG_ROWS : p->count > 2 || p->elements >= LEAST;
}

bool cuda_program_takes(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)ctx;
    const mf_op *members[MF_GROUP_MOST];
    cuda_program p;
    if (count > MF_GROUP_MOST || outside_reads(graph, ops, count) > MOST_INPUTS + count)
        return false;
    for (uint32_t i = 0; i < count; i++)
        members[i] = &graph->ops[ops[i]];
    uint32_t outs = 0;
    for (uint32_t i = 0; i < count; i++)
        outs += members[i]->out_count;
    return outs <= MOST_OUTPUTS + count && cuda_program_of(graph, members, count, &p) && pays(&p);
}

/* ---- launches ---- */

static unsigned half_of(unsigned most)
{
    unsigned n = 1;
    while (2 * n <= most)
        n *= 2;
    return n;
}

static uint64_t clamp(uint64_t n, uint64_t least, uint64_t most)
{
    n = n > most ? most : n;
    return n < least ? least : n;
}

void cuda_say_columns(cuda_spec *s, uint64_t rows, uint64_t channels, unsigned width, unsigned numbers, bool writes,
                      bool late)
{
    /* threads along the channels: side by side in memory; all others go through rows */
    uint64_t vectors = channels / width;
    unsigned along = (unsigned)clamp(vectors, 1, s->block < 32 ? s->block : 32), deep = half_of(s->block / along);
    uint64_t x = (vectors + along - 1) / along;
    uint64_t most = clamp(rows / ((uint64_t)deep * ROWS_EACH), 1, MOST_GRID_Y);
    uint64_t splits = clamp((SUM_BLOCKS + x - 1) / x, 1, most);
    uint64_t least = clamp(rows / ((uint64_t)deep * MOST_ROWS_EACH), 1, MOST_GRID_Y);
    splits = splits < least ? least : splits;
    cuda_say(s, "#define V %u\n#define PN %llull\n#define PC %llull\n#define PR %llull\n#define BY_CHANNEL 1\n", width,
             (unsigned long long)(rows * channels), (unsigned long long)channels, (unsigned long long)rows);
    cuda_say(s, "#define TX %u\n#define TY %u\n", along, deep);
    unsigned join = s->block < 256 ? 1 : 8;
    if (numbers) {
        cuda_keep(s, 3 * channels);
        uint64_t at = cuda_workspace(s, splits * channels * numbers * sizeof(double));
        cuda_say(s, "#define NACC %u\n#define SPLITS %llull\n#define PARTS_AT %llull\n#define JOIN_X %u\n", numbers,
                 (unsigned long long)splits, (unsigned long long)at, join);
        cuda_grid(s, "sums0", x, splits);
        cuda_grid(s, "join0", (channels + join - 1) / join, 1);
    }
    if (writes) { /* many rows a thread, what it needs of its channels is read once; but blocks enough for every card */
        uint64_t each = MOST_WRITE_ROWS, here = 0;
        for (; each > ROWS_EACH && x * (rows / (deep * each)) < WRITE_BLOCKS; each /= 2)
            ;
        here = deep * each;
        while ((rows + here - 1) / here > MOST_GRID_Y)
            here *= 2;
        uint64_t parts = (rows + here - 1) / here;
        cuda_say(s, "#define WRITE_SPLITS %llull\n#define WRITE_ROWS %llull\n", (unsigned long long)parts,
                 (unsigned long long)here);
        cuda_grid(s, "k0", x, parts);
        if (late) {
            cuda_say(s, "#define LATE_AT %llull\n",
                     (unsigned long long)cuda_workspace(s, parts * channels * sizeof(double)));
            cuda_grid(s, "late0", (channels + join - 1) / join, 1);
        }
    }
}

static void say_grid(cuda_spec *s, const cuda_program *p)
{
    bool writes = cuda_program_writes(s, p);
    unsigned numbers = p->sum == MF_NONE ? 0 : p->ops[p->sum]->kind == MF_OP_REDUCE ? 1 : 2;
    cuda_say(s, "static constexpr mf_shape domain = {%u, {", p->domain.rank);
    for (uint32_t i = 0; i < p->domain.rank; i++)
        cuda_say(s, "%lld, ", (long long)p->domain.dim[i]);
    cuda_say(s, "}};\n");
    if (p->by_channel) {
        cuda_say_columns(s, p->rows, p->channels, p->width, numbers, writes, p->late != MF_NONE);
        return;
    }
    cuda_say(s, "#define V %u\n#define PN %llull\n#define BY_CHANNEL 0\n", p->width, (unsigned long long)p->elements);
    if (writes)
        cuda_each(s, "k0", p->elements / p->width);
}

/* A single operation as an inner graph of one member: operand i is tensor i. */
typedef struct alone {
    mf_graph graph;
    mf_op op;
    mf_tensor tensors[MOST_INPUTS + MOST_OUTPUTS];
    mf_storage storages[MOST_INPUTS + MOST_OUTPUTS];
    uint32_t ids[MOST_INPUTS + MOST_OUTPUTS];
} alone;

static bool make_alone(const mf_graph *graph, const mf_op *op, alone *a)
{
    uint32_t n = op->in_count + op->out_count;
    if (n > MOST_INPUTS + MOST_OUTPUTS)
        return false;
    a->op = *op;
    a->op.in = a->ids;
    a->op.out = a->ids + op->in_count;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        a->ids[i] = t == MF_NONE ? MF_NONE : i;
        a->tensors[i] = t == MF_NONE ? (mf_tensor){.shape = {.rank = 1, .dim = {1}}} : graph->tensors[t];
        a->storages[i] = t == MF_NONE ? (mf_storage){.variable = MF_NONE} : graph->storages[graph->tensors[t].storage];
        a->tensors[i].storage = i;
    }
    a->graph = (mf_graph){.ops = &a->op,
                          .op_count = 1,
                          .tensors = a->tensors,
                          .tensor_count = n,
                          .storages = a->storages,
                          .storage_count = n};
    return true;
}

bool cuda_program_spec(cuda_spec *s)
{
    const mf_op *op = s->op, *members[MF_GROUP_MOST];
    cuda_program p;
    alone a = {0};
    const mf_graph *inner = &a.graph;
    if (op->kind == MF_OP_GROUP)
        inner = &op->attr.group->inner;
    else if (!is_known(op->kind) || !make_alone(s->graph, op, &a))
        return false;
    for (uint32_t i = 0; i < inner->op_count && i < MF_GROUP_MOST; i++)
        members[i] = &inner->ops[i];
    if (!cuda_program_of(inner, members, inner->op_count, &p))
        return false;
    s->family = "program.cu";
    say_grid(s, &p);
    cuda_program_say(s, &p);
    return true;
}

void cuda_program_column_sums(cuda_spec *s, uint32_t in, uint32_t out)
{
    alone a = {0};
    cuda_program p;
    if (!make_alone(s->graph, s->op, &a))
        return;
    const mf_shape *x = &a.tensors[in].shape;
    uint32_t ids[2] = {in, s->op->in_count + out};
    mf_op sum = {.kind = MF_OP_REDUCE,
                 .accumulate = cuda_is_added(s->graph, s->op, out),
                 .in = ids,
                 .out = ids + 1,
                 .in_count = 1,
                 .out_count = 1,
                 .attr = {.reduce = {.function = MF_REDUCE_SUM, .axes = (1u << (x->rank - 1)) - 1}}};
    const mf_op *member = &sum;
    if (!cuda_program_of(&a.graph, &member, 1, &p))
        return;
    say_grid(s, &p);
    cuda_program_say(s, &p);
}
