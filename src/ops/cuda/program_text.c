/*
 * program_text.c: see program_text.h. In the text, tensor t of the program is v<t>[k] where it has an element for each of the
 * domain's, p.c<t>[k] where one a channel, p.o<t> where one in all; p.m3, p.f3 ... are what member 3 needs of each channel.
 * What a thread reads of a row is a struct q: it reads several rows before it computes the first, for the card's memory
 * is only as quick as there are reads under way, and a store keeps the compiler from reading ahead. It is long because the
 * text of every member and of every pass over them is made here.
 */
#include "ops/cuda/program_text.h"

#include <string.h>

enum { MOST_TENSORS = 256 };

typedef struct writing {
    cuda_spec *s;
    const cuda_program *p;
    uint32_t ins, outs;
    uint8_t loaded[MOST_TENSORS];
    enum { DECLARE, FETCH, USE } stage; /* of an operand: in a row's struct, read into it, taken from it as numbers */
    uint32_t fetched;                   /* whole operands of a row */
} writing;

/* Results that the first pass writes, as it computes them anyway: the second reads them there. */
static uint32_t written_first(const writing *w);

static bool is_made(const cuda_program *p, uint32_t tensor)
{
    for (uint32_t m = 0; m < p->count; m++)
        for (uint32_t o = 0; o < p->ops[m]->out_count; o++)
            if (p->ops[m]->out[o] == tensor)
                return true;
    return false;
}

static bool is_norm(mf_op_kind kind)
{
    return kind == MF_OP_BATCH_NORM || kind == MF_OP_BATCH_NORM_INFER || kind == MF_OP_BATCH_NORM_GRAD ||
           kind == MF_OP_BATCH_NORM_INFER_GRAD;
}

/* Operands of a normalization that are vectors, whatever their shape looks like. */
static bool is_vector(const mf_op *op, uint32_t operand)
{
    bool back = op->kind == MF_OP_BATCH_NORM_GRAD || op->kind == MF_OP_BATCH_NORM_INFER_GRAD;
    return is_norm(op->kind) && operand >= (back ? 2u : 1u);
}

uint32_t cuda_program_needed(const cuda_program *p, uint32_t tensor, uint32_t before)
{
    for (uint32_t m = before; m-- > 0;)
        for (uint32_t o = 0; o < p->ops[m]->out_count; o++)
            if (p->ops[m]->out[o] == tensor && tensor != MF_NONE) {
                uint32_t members = 1u << m;
                for (uint32_t i = 0; i < p->ops[m]->in_count; i++)
                    members |= cuda_program_needed(p, p->ops[m]->in[i], m);
                return members;
            }
    return 0;
}

static bool is_whole_result(const writing *w, const mf_op *op)
{
    return op->out[0] != MF_NONE && op->out[0] >= w->ins && op->out[0] < w->ins + w->outs && op->kind != MF_OP_REDUCE;
}

static uint32_t needed_second(const cuda_program *p, uint32_t tensor, uint32_t before, uint32_t there);

/* Members of the pass that writes, those among them whose results the first pass has written. */
static uint32_t needed_to_write(const writing *w)
{
    uint32_t members = 0, there = written_first(w);
    for (uint32_t m = 0; m < w->p->count; m++)
        if (is_whole_result(w, w->p->ops[m]) && !(there >> m & 1))
            members |= needed_second(w->p, w->p->ops[m]->out[0], m + 1, there);
    if (w->p->late != MF_NONE)
        members |= needed_second(w->p, w->p->ops[w->p->late]->in[0], w->p->late, there);
    return members;
}

bool cuda_program_writes(const cuda_spec *s, const cuda_program *p)
{
    writing w = {.s = (cuda_spec *)(uintptr_t)s, .p = p, .ins = s->op->in_count, .outs = s->op->out_count};
    return needed_to_write(&w) != 0; /* nothing is said */
}

/* ---- one element a channel ---- */

static void say_real(cuda_spec *s, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    cuda_say(s, "(real)NUMBER(0x%llxull)", (unsigned long long)bits);
}

static int dtype_of(const writing *w, uint32_t t)
{
    return (int)w->p->graph->tensors[t].dtype;
}

/* Names of the arrays a member keeps for each channel. */
static const char *arrays_of(mf_op_kind kind)
{
    switch (kind) {
    case MF_OP_BATCH_NORM:
    case MF_OP_BATCH_NORM_INFER:
        return "mfb";
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_BATCH_NORM_INFER_GRAD:
        return "mfabg";
    default:
        return "";
    }
}

static void say_struct(writing *w)
{
    const cuda_program *p = w->p;
    uint8_t seen[MOST_TENSORS] = {0};
    cuda_say(w->s, "struct channel_values {\n    real unused;\n");
    for (uint32_t m = 0; m < p->count; m++) {
        const mf_op *op = p->ops[m];
        for (const char *name = arrays_of(op->kind); *name; name++)
            cuda_say(w->s, "    real %c%u[V];\n", *name, m);
        for (uint32_t i = 0; i < op->in_count && !is_norm(op->kind); i++) {
            uint32_t t = op->in[i];
            if (t == MF_NONE || is_made(p, t) || seen[t]++ || (op->kind == MF_OP_MASK_GRAD && i == 1))
                continue;
            if (cuda_program_reach(p, t) == REACH_CHANNEL)
                cuda_say(w->s, "    real c%u[V];\n", t);
            if (cuda_program_reach(p, t) == REACH_ONE)
                cuda_say(w->s, "    real o%u;\n", t);
        }
    }
    cuda_say(w->s, "};\n");
}

static void say_vector(writing *w, const mf_op *op, uint32_t operand, double otherwise, const char *at)
{
    uint32_t t = operand < op->in_count ? op->in[operand] : MF_NONE;
    if (t == MF_NONE)
        say_real(w->s, otherwise);
    else
        cuda_say(w->s, "load_one<(mf_dtype)%d>(a.in[%u], %s)", dtype_of(w, t), t, at);
}

/* 1 / the standard deviation of a gradient's channel. */
static void say_rstd(writing *w, const mf_op *op, const char *at)
{
    cuda_say(w->s, "1 / sqrt((double)");
    say_vector(w, op, 3, 0, at);
    cuda_say(w->s, " + ");
    say_real(w->s, op->attr.norm.epsilon);
    cuda_say(w->s, ")");
}

/* What a normalized channel is multiplied by; `variance` NULL: that of the operands. */
static void say_factor(writing *w, const mf_op *op, const char *at, const char *variance)
{
    cuda_say(w->s, "(real)((double)");
    say_vector(w, op, 1, 1, at);
    cuda_say(w->s, " / sqrt((double)");
    if (variance)
        cuda_say(w->s, "%s", variance);
    else
        say_vector(w, op, 4, 0, at);
    cuda_say(w->s, " + ");
    say_real(w->s, op->attr.norm.epsilon);
    cuda_say(w->s, "))");
}

static void say_norm_channel(writing *w, uint32_t m)
{
    const mf_op *op = w->p->ops[m];
    cuda_spec *s = w->s;
    bool infer = op->kind == MF_OP_BATCH_NORM_INFER;
    if (infer || op->kind == MF_OP_BATCH_NORM) {
        cuda_say(s, infer ? "    EACH {\n" : "    if (WRITE) EACH {\n");
        cuda_say(s, "        p.m%u[k] = ", m);
        if (infer)
            say_vector(w, op, 3, 0, "c + k");
        else
            cuda_say(s, "(real)kept_sums(a)[3 * (c + k) + 1]");
        cuda_say(s, ";\n        p.f%u[k] = ", m);
        if (infer)
            say_factor(w, op, "c + k", NULL);
        else
            cuda_say(s, "(real)kept_sums(a)[3 * (c + k) + 2]");
        cuda_say(s, ";\n        p.b%u[k] = ", m);
        say_vector(w, op, 2, 0, "c + k");
        cuda_say(s, ";\n    }\n");
        return;
    }
    cuda_say(s, "    EACH {\n        p.m%u[k] = ", m);
    say_vector(w, op, 2, 0, "c + k");
    cuda_say(s, ";\n        if (WRITE) {\n");
    for (int i = 0; i < 3; i++)
        cuda_say(s, "            p.%c%u[k] = (real)kept_sums(a)[3 * (c + k) + %d];\n", "abg"[i], m, i);
    cuda_say(s, "        } else\n            p.f%u[k] = (real)(", m);
    say_rstd(w, op, "c + k");
    cuda_say(s, ");\n    }\n");
}

static void say_channel(writing *w)
{
    const cuda_program *p = w->p;
    uint8_t seen[MOST_TENSORS] = {0};
    say_struct(w);
    cuda_say(w->s,
             "template <bool WRITE> static inline void program_channel(const args &a, idx c, channel_values &p)\n{\n");
    for (uint32_t m = 0; m < p->count; m++) {
        const mf_op *op = p->ops[m];
        if (is_norm(op->kind)) {
            say_norm_channel(w, m);
            continue;
        }
        for (uint32_t i = 0; i < op->in_count; i++) {
            uint32_t t = op->in[i];
            if (t == MF_NONE || is_made(p, t) || seen[t]++ || (op->kind == MF_OP_MASK_GRAD && i == 1))
                continue;
            if (cuda_program_reach(p, t) == REACH_CHANNEL)
                cuda_say(w->s, "    EACH p.c%u[k] = load_one<(mf_dtype)%d>(a.in[%u], c + k);\n", t, dtype_of(w, t), t);
            if (cuda_program_reach(p, t) == REACH_ONE)
                cuda_say(w->s, "    p.o%u = load_one<(mf_dtype)%d>(a.in[%u], 0);\n", t, dtype_of(w, t), t);
        }
    }
    cuda_say(w->s, "}\n");
}

/* ---- element by element ---- */

static void say_value(writing *w, uint32_t t)
{
    cuda_reach reach = is_made(w->p, t) ? REACH_WHOLE : cuda_program_reach(w->p, t);
    if (reach == REACH_CHANNEL)
        cuda_say(w->s, "p.c%u[k]", t);
    else if (reach == REACH_ONE)
        cuda_say(w->s, "p.o%u", t);
    else
        cuda_say(w->s, "v%u[k]", t);
}

/* Tensor t, whole, which is operand `place` of the kernel. */
static void say_whole(writing *w, uint32_t t, const char *side, uint32_t place)
{
    int dtype = dtype_of(w, t);
    w->loaded[t] = 1;
    w->fetched += w->stage == DECLARE;
    if (w->stage == DECLARE)
        cuda_say(w->s, "    vector<(mf_dtype)%d, V> r%u;\n", dtype, t);
    else if (w->stage == FETCH)
        cuda_say(w->s, "    fetch_vector(q.r%u, a.%s[%u], i);\n", t, side, place);
    else
        cuda_say(w->s, "    real v%u[V];\n    widen_vector(v%u, q.r%u);\n", t, t, t);
}

static void say_walk(writing *w, uint32_t t)
{
    w->loaded[t] = 1;
    if (w->stage == DECLARE)
        cuda_say(w->s, "    real w%u[V];\n", t);
    else if (w->stage == FETCH)
        cuda_say(w->s, "    load_walk<(mf_dtype)%d, %u>(q.w%u, a.in[%u], i);\n", dtype_of(w, t), t, t, t);
    else
        cuda_say(w->s, "    const real(&v%u)[V] = q.w%u;\n", t, t);
}

/* Bits of a mask: those of eight elements are a byte. */
static void say_bits(writing *w, uint32_t t)
{
    if (w->p->width != 8)
        return;
    w->loaded[t] = 1;
    if (w->stage == DECLARE)
        cuda_say(w->s, "    uint8_t b%u;\n", t);
    else if (w->stage == FETCH)
        cuda_say(w->s, "    q.b%u = ((const uint8_t *)a.in[%u])[i / 8];\n", t, t);
}

static void say_load(writing *w, const mf_op *op, uint32_t operand)
{
    uint32_t t = op->in[operand];
    if (t == MF_NONE || is_vector(op, operand) || is_made(w->p, t) || w->loaded[t])
        return;
    if (op->kind == MF_OP_MASK_GRAD && operand == 1) {
        say_bits(w, t);
        return;
    }
    cuda_reach reach = cuda_program_reach(w->p, t);
    if (reach == REACH_WHOLE)
        say_whole(w, t, "in", t);
    else if (reach == REACH_WALK)
        say_walk(w, t);
}

static void say_unary(writing *w, const char *function, mf_unary f, double alpha, double beta)
{
    cuda_say(w->s, "%s((mf_unary)%d, ", function, (int)f);
    say_real(w->s, alpha);
    cuda_say(w->s, ", ");
    say_real(w->s, beta);
    cuda_say(w->s, ", ");
}

static void say_select(writing *w, const mf_op *op)
{
    cuda_say(w->s, "(");
    say_value(w, op->in[0]);
    cuda_say(w->s, " != 0%s) ? ", op->attr.select.causal ? " && causal_at(i + k)" : "");
    if (op->in[1] != MF_NONE)
        say_value(w, op->in[1]);
    else
        say_real(w->s, op->attr.select.yes);
    cuda_say(w->s, " : ");
    if (op->in[2] != MF_NONE)
        say_value(w, op->in[2]);
    else
        say_real(w->s, op->attr.select.no);
}

static void say_norm(writing *w, const mf_op *op, uint32_t m)
{
    if (op->kind == MF_OP_BATCH_NORM || op->kind == MF_OP_BATCH_NORM_INFER) {
        say_unary(w, "unary_of", op->attr.norm.activation, 0, 0);
        cuda_say(w->s, "(");
        say_value(w, op->in[0]);
        cuda_say(w->s, " - p.m%u[k]) * p.f%u[k] + p.b%u[k])", m, m, m);
        return;
    }
    cuda_say(w->s, "p.a%u[k] * (", m);
    say_value(w, op->in[0]);
    if (op->kind == MF_OP_BATCH_NORM_GRAD) {
        cuda_say(w->s, " - p.b%u[k] - (", m);
        say_value(w, op->in[1]);
        cuda_say(w->s, " - p.m%u[k]) * p.g%u[k]", m, m);
    }
    cuda_say(w->s, ")");
}

static void say_formula(writing *w, const mf_op *op, uint32_t m)
{
    const mf_attr *at = &op->attr;
    switch (op->kind) {
    case MF_OP_UNARY:
        say_unary(w, "unary_of", at->unary.function, at->unary.alpha, at->unary.beta);
        say_value(w, op->in[0]);
        cuda_say(w->s, ")");
        return;
    case MF_OP_UNARY_GRAD:
        say_value(w, op->in[0]);
        cuda_say(w->s, " * ");
        say_unary(w, at->unary.from_output ? "slope_of<true>" : "slope_of<false>", at->unary.function, at->unary.alpha,
                  at->unary.beta);
        say_value(w, op->in[1]);
        cuda_say(w->s, ")");
        return;
    case MF_OP_MASK_GRAD:
        say_value(w, op->in[0]);
        if (w->p->width == 8)
            cuda_say(w->s, " * (real)(q.b%u >> k & 1)", op->in[1]);
        else
            cuda_say(w->s, " * (real)(((const uint8_t *)a.in[%u])[(i + k) / 8] >> (i + k) %% 8 & 1)", op->in[1]);
        return;
    case MF_OP_BROADCAST:
        say_value(w, op->in[0]);
        cuda_say(w->s, " * ");
        say_real(w->s, at->broadcast.scale);
        return;
    case MF_OP_BINARY:
        cuda_say(w->s, "binary_of((mf_binary)%d, ", (int)at->binary.function);
        say_value(w, op->in[0]);
        cuda_say(w->s, ", ");
        say_value(w, op->in[1]);
        cuda_say(w->s, ")");
        return;
    case MF_OP_SELECT:
        say_select(w, op);
        return;
    case MF_OP_SUM_N:
        for (uint32_t i = 0; i < op->in_count; i++) {
            cuda_say(w->s, i ? " + " : "");
            say_value(w, op->in[i]);
        }
        return;
    case MF_OP_DROPOUT:
        cuda_say(w->s, "dropped<%uu, %uu>(a, i + k, NUMBER(0x", at->random.key, at->random.shared_axes);
        uint64_t bits;
        memcpy(&bits, &at->random.rate, sizeof bits);
        cuda_say(w->s, "%llxull), ", (unsigned long long)bits);
        say_value(w, op->in[0]);
        cuda_say(w->s, ")");
        return;
    case MF_OP_CAST:
        say_value(w, op->in[0]);
        return;
    default:
        say_norm(w, op, m);
        return;
    }
}

/* What these members read, `read`'s results among it, and the first `more` operands of the member that sums. */
static void say_operands(writing *w, uint32_t members, uint32_t read, uint32_t more)
{
    const cuda_program *p = w->p;
    memset(w->loaded, 0, sizeof w->loaded);
    for (uint32_t m = 0; m < p->count; m++)
        for (uint32_t i = 0; ((members & ~read) >> m & 1) && i < p->ops[m]->in_count; i++)
            say_load(w, p->ops[m], i);
    for (uint32_t m = 0; m < p->count; m++)
        if (read >> m & 1)
            say_whole(w, p->ops[m]->out[0], "out", p->ops[m]->out[0] - w->ins);
    for (uint32_t i = 0; i < more; i++)
        say_load(w, p->ops[p->sum], i);
}

/* The struct of a row and the function that reads it; how many rows a thread reads at once. */
static void say_fetch(writing *w, const char *row, uint32_t members, uint32_t read, uint32_t more)
{
    w->stage = DECLARE;
    w->fetched = 0;
    cuda_say(w->s, "struct %s_row {\n    uint8_t unused;\n", row);
    say_operands(w, members, read, more);
    cuda_say(w->s, "};\nstatic inline void program_fetch(const args &a, idx i, %s_row &q)\n{\n", row);
    w->stage = FETCH;
    say_operands(w, members, read, more);
    cuda_say(w->s, "}\n#define %s_AT_ONCE %d\n", row, w->fetched > 1 ? 2 : 4);
    w->stage = USE;
}

/* Members' formulas; `stores`: those whose results are stored; `read`: those whose results are read instead. */
static void say_members(writing *w, uint32_t members, uint32_t stores, uint32_t read, uint32_t more)
{
    const cuda_program *p = w->p;
    say_operands(w, members, read, more);
    members &= ~read;
    for (uint32_t m = 0; m < p->count; m++) {
        const mf_op *op = p->ops[m];
        if (!(members >> m & 1))
            continue;
        if (op->kind == MF_OP_MASK) {
            cuda_say(w->s, "    store_bits<%d>(a.out[%u], i, v%u);\n", op->attr.unary.function == MF_UNARY_RELU6,
                     op->out[0] - w->ins, op->in[0]);
            continue;
        }
        cuda_say(w->s, "    real v%u[V];\n    EACH v%u[k] = ", op->out[0], op->out[0]);
        say_formula(w, op, m);
        cuda_say(w->s, ";\n");
    }
    for (uint32_t m = 0; m < p->count; m++)
        if ((stores >> m & 1) && is_whole_result(w, p->ops[m]) && p->ops[m]->kind != MF_OP_MASK)
            cuda_say(w->s, "    store_vector<(mf_dtype)%d, %d>(a.out[%u], i, v%u);\n", dtype_of(w, p->ops[m]->out[0]),
                     cuda_is_added(p->graph, p->ops[m], 0), p->ops[m]->out[0] - w->ins, p->ops[m]->out[0]);
}

/* ---- sums ---- */

/* A result that may take an operand's bytes must not be written while the second pass still reads that operand. */
static uint32_t overwriting(const writing *w, uint32_t there)
{
    const mf_op *group = w->s->op;
    const cuda_program *p = w->p;
    if (group->kind != MF_OP_GROUP || group->attr.group->inplace_out == MF_NONE)
        return 0;
    uint32_t second = 0, in = group->attr.group->inplace_in, out = w->ins + group->attr.group->inplace_out;
    for (uint32_t m = 0; m < p->count; m++)
        if (is_whole_result(w, p->ops[m]) && !(there >> m & 1))
            second |= needed_second(p, p->ops[m]->out[0], m + 1, there);
    if (p->late != MF_NONE)
        second |= needed_second(p, p->ops[p->late]->in[0], p->late, there);
    bool reads = false;
    for (uint32_t m = 0; m < p->count; m++)
        for (uint32_t i = 0; (second & ~there) >> m & 1 && i < p->ops[m]->in_count; i++)
            reads |= p->ops[m]->in[i] == in;
    for (uint32_t m = 0; m < p->count; m++)
        if (reads && (there >> m & 1) && p->ops[m]->out[0] == out)
            return 1u << m;
    return 0;
}

/* Not where rows are looked at beforehand (batch normalization): what lies over its operand would be computed twice. Not
 * where a result is added to, nor behind the sums. */
static uint32_t written_first(const writing *w)
{
    const cuda_program *p = w->p;
    const mf_op *op = p->sum == MF_NONE ? NULL : p->ops[p->sum];
    if (!op || op->kind == MF_OP_BATCH_NORM)
        return 0;
    uint32_t first = cuda_program_needed(p, op->in[0], p->sum), members = 0;
    if (op->kind != MF_OP_REDUCE)
        first |= cuda_program_needed(p, op->in[1], p->sum);
    for (uint32_t m = 0; m < p->count; m++)
        if ((first >> m & 1) && is_whole_result(w, p->ops[m]) && p->ops[m]->kind != MF_OP_MASK &&
            !cuda_is_added(p->graph, p->ops[m], 0))
            members |= 1u << m;
    return members & ~overwriting(w, members);
}

/* What the second pass computes: members whose results are there already are not computed again. */
static uint32_t needed_second(const cuda_program *p, uint32_t tensor, uint32_t before, uint32_t there)
{
    for (uint32_t m = before; m-- > 0;)
        for (uint32_t o = 0; o < p->ops[m]->out_count; o++)
            if (p->ops[m]->out[o] == tensor && tensor != MF_NONE) {
                uint32_t members = 1u << m;
                for (uint32_t i = 0; i < p->ops[m]->in_count && !(there >> m & 1); i++)
                    members |= needed_second(p, p->ops[m]->in[i], m, there);
                return members;
            }
    return 0;
}

/* What is summed: x[0], and x[1] that it is multiplied by. */
static void say_take(writing *w)
{
    const cuda_program *p = w->p;
    const mf_op *op = p->ops[p->sum];
    bool back = op->kind == MF_OP_BATCH_NORM_GRAD || op->kind == MF_OP_BATCH_NORM_INFER_GRAD;
    uint32_t members =
        cuda_program_needed(p, op->in[0], p->sum) | (back ? cuda_program_needed(p, op->in[1], p->sum) : 0);
    cuda_say(w->s, "#define SUM_KIND %d\n", op->kind == MF_OP_BATCH_NORM ? 0 : back ? 1 : 2);
    say_fetch(w, "take", members, 0, back ? 2 : 1);
    cuda_say(w->s, "static inline void program_take(const args &a, idx i, const channel_values &p, const take_row &q, "
                   "real (&x)[2][V])\n{\n");
    say_members(w, members, written_first(w), 0, back ? 2 : 1);
    cuda_say(w->s, "    EACH x[0][k] = ");
    say_value(w, op->in[0]);
    cuda_say(w->s, ";\n");
    if (back) {
        cuda_say(w->s, "    EACH x[1][k] = (");
        say_value(w, op->in[1]);
        cuda_say(w->s, " - p.m%u[k]) * p.f%u[k];\n", p->sum, p->sum);
    }
    cuda_say(w->s, "}\n");
}

static void say_result(writing *w, const mf_op *op, uint32_t output, const char *value)
{
    uint32_t t = output < op->out_count ? op->out[output] : MF_NONE;
    if (t == MF_NONE || t < w->ins || t >= w->ins + w->outs)
        return;
    cuda_say(w->s, "    store_one<(mf_dtype)%d, %d>(a.out[%u], j, (real)(%s));\n", dtype_of(w, t),
             cuda_is_added(w->p->graph, op, output), t - w->ins, value);
}

static void say_finish(writing *w)
{
    const mf_op *op = w->p->ops[w->p->sum];
    cuda_say(w->s, "static inline void program_finish(const args &a, idx j, const double *s)\n{\n");
    if (op->kind == MF_OP_BATCH_NORM) {
        cuda_say(w->s,
                 "    double *kept = kept_sums(a) + 3 * j, m = s[0] / (double)PR, v = s[1] / (double)PR - m * m;\n"
                 "    m += kept[0];\n    v = v < 0 ? 0 : v;\n    kept[1] = m;\n    kept[2] = (double)");
        say_factor(w, op, "j", "(real)v");
        cuda_say(w->s, ";\n");
        say_result(w, op, 1, "m");
        say_result(w, op, 2, "v");
    } else if (op->kind == MF_OP_REDUCE)
        say_result(w, op, 0, op->attr.reduce.function == MF_REDUCE_MEAN ? "s[0] / (double)PR" : "s[0]");
    else {
        cuda_say(w->s, "    double *kept = kept_sums(a) + 3 * j, rstd = ");
        say_rstd(w, op, "j");
        cuda_say(w->s, ";\n    kept[0] = rstd * (double)");
        say_vector(w, op, 4, 1, "j");
        cuda_say(w->s, ";\n    kept[1] = s[0] / (double)PR;\n    kept[2] = s[1] / (double)PR * rstd;\n");
        say_result(w, op, 1, "s[1]");
        say_result(w, op, 2, "s[0]");
    }
    cuda_say(w->s, "}\n");
}

static void say_late(writing *w)
{
    const mf_op *op = w->p->ops[w->p->late];
    cuda_say(w->s, "#define HAS_LATE 1\nstatic inline void program_late(const args &a, idx j, const double *s)\n{\n");
    say_result(w, op, 0, op->attr.reduce.function == MF_REDUCE_MEAN ? "s[0] / (double)PR" : "s[0]");
    cuda_say(w->s, "}\n");
}

void cuda_program_say(cuda_spec *s, const cuda_program *p)
{
    if (s->silent)
        return;
    writing w = {.s = s, .p = p, .ins = s->op->in_count, .outs = s->op->out_count};
    cuda_say(s, "#include \"operands.cuh\"\n#include \"program.cuh\"\n");
    say_channel(&w);
    if (p->sum != MF_NONE) {
        cuda_say(s, "#define HAS_SUMS 1\n");
        say_take(&w);
        say_finish(&w);
    }
    uint32_t members = needed_to_write(&w);
    if (!members)
        return;
    uint32_t there = written_first(&w);
    say_fetch(&w, "write", members, members & there, 0);
    bool late = p->late != MF_NONE;
    cuda_say(s,
             "#define HAS_WRITES 1\nstatic inline void program_write(const args &a, idx i, const channel_values &p, "
             "const write_row &q%s)\n{\n",
             late ? ", real (&late)[V]" : "");
    say_members(&w, members, ~there, members & there, 0);
    if (late) {
        cuda_say(s, "    EACH late[k] += ");
        say_value(&w, p->ops[p->late]->in[0]);
        cuda_say(s, ";\n");
    }
    cuda_say(s, "}\n");
    if (late)
        say_late(&w);
}
