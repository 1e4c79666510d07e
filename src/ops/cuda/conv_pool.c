/* conv_pool.c: see conv_pool.h. */
#include "ops/cuda/conv_pool.h"

#include "graph/group.h"
#include "ops/reference/reference.h"

enum {
    MOST_TAPS = 36, /* of one filter: they lie in registers */
    LEAST_CHANNELS = 8,
    MOST_CHANNELS = 256,
    MOST_SEGMENT = 64,
    MOST_BLOCKS = 1056,
    LEAST_BLOCKS = 132,
    MOST_WORKSPACE = 16 << 20,
};

/* The members by role; NULL where there is none. */
typedef struct roles {
    const mf_graph *graph;
    const mf_op *conv, *pool, *act; /* or their gradients */
    bool back;
} roles;

static bool find_roles(const mf_graph *graph, const mf_op *const *ops, uint32_t count, roles *r)
{
    *r = (roles){.graph = graph};
    for (uint32_t i = 0; i < count; i++) {
        const mf_op **place = NULL;
        switch (ops[i]->kind) {
        case MF_OP_CONV:
        case MF_OP_CONV_GRAD_WEIGHTS:
            place = &r->conv;
            break;
        case MF_OP_POOL_MAX:
        case MF_OP_POOL_MAX_GRAD:
            place = &r->pool;
            break;
        case MF_OP_UNARY:
        case MF_OP_UNARY_GRAD:
            place = &r->act;
            break;
        default:
            return false;
        }
        if (*place)
            return false;
        *place = ops[i];
    }
    if (!r->conv || !r->pool)
        return false;
    r->back = r->conv->kind == MF_OP_CONV_GRAD_WEIGHTS;
    return (r->pool->kind == MF_OP_POOL_MAX_GRAD) == r->back &&
           (!r->act || (r->act->kind == MF_OP_UNARY_GRAD) == r->back);
}

static const mf_tensor *tensor(const roles *r, uint32_t id)
{
    return &r->graph->tensors[id];
}

static bool is_float(mf_dtype dtype)
{
    return dtype == MF_F32 || dtype == MF_BF16 || dtype == MF_F16;
}

static bool act_fits(const roles *r)
{
    if (!r->act)
        return true;
    const mf_op *op = r->act;
    bool flat = op->attr.unary.function == MF_UNARY_RELU || op->attr.unary.function == MF_UNARY_RELU6;
    bool joins = r->back ? op->attr.unary.from_output && op->out[0] == r->pool->in[0] : op->in[0] == r->pool->out[0];
    for (uint32_t i = 0; i < op->in_count; i++)
        joins = joins && op->in[i] != MF_NONE && is_float(tensor(r, op->in[i])->dtype);
    joins = joins && is_float(tensor(r, op->out[0])->dtype);
    return flat && joins && !op->accumulate;
}

static bool pool_fits(const roles *r, const mf_shape *large, const mf_shape *small)
{
    mf_ref_window w;
    const mf_window *p = &r->pool->attr.window;
    if (p->dims != 2 || large->rank != 4)
        return false;
    mf_ref_window_of(p, large, small, &w);
    bool fits = !r->pool->accumulate;
    for (int i = 1; i < 3; i++)
        fits = fits && w.kernel[i] == 2 && w.stride[i] == 2 && w.dilation[i] == 1 && w.before[i] == 0 &&
               2 * w.out[i] <= w.in[i];
    return fits;
}

static bool conv_fits(const roles *r, const mf_shape *x, const mf_shape *y, mf_ref_window *w)
{
    const mf_window *c = &r->conv->attr.window;
    if (c->dims != 2 || c->groups != 1 || x->rank != 4)
        return false;
    mf_ref_window_of(c, x, y, w);
    int64_t out = w->out_channels;
    return w->stride[1] == w->stride[2] && w->stride[1] <= 2 && w->dilation[1] == 1 && w->dilation[2] == 1 &&
           w->out[1] >= 2 && w->out[2] >= 2 && w->in_channels <= 4 &&
           w->kernel[1] * w->kernel[2] * w->in_channels <= MOST_TAPS && w->before[1] >= 0 && w->before[2] >= 0 &&
           out >= LEAST_CHANNELS && out <= MOST_CHANNELS && (out & (out - 1)) == 0 && w->batch > 0;
}

static bool dtypes_fit(const roles *r)
{
    const mf_op *c = r->conv, *p = r->pool;
    mf_dtype dtype = tensor(r, c->in[0])->dtype;
    bool fits = is_float(dtype) && is_float(tensor(r, c->in[1])->dtype) && is_float(tensor(r, p->in[0])->dtype) &&
                is_float(tensor(r, p->out[0])->dtype);
    for (uint32_t i = 0; i < c->out_count; i++)
        fits = fits && (c->out[i] == MF_NONE || is_float(tensor(r, c->out[i])->dtype));
    if (!r->back)
        fits = fits && (c->in_count < 3 || c->in[2] == MF_NONE || is_float(tensor(r, c->in[2])->dtype));
    uint32_t winners = r->back ? p->in[1] : p->out_count > 1 ? p->out[1] : MF_NONE;
    return fits && (winners == MF_NONE || tensor(r, winners)->dtype == MF_U8);
}

static bool fits(const roles *r, mf_ref_window *w)
{
    const mf_op *c = r->conv, *p = r->pool;
    uint32_t large = r->back ? p->out[0] : p->in[0], small = r->back ? p->in[0] : p->out[0];
    if (large != (r->back ? c->in[1] : c->out[0]) || (r->back && c->out[0] == MF_NONE) || (!r->back && c->accumulate))
        return false;
    return conv_fits(r, &tensor(r, c->in[0])->shape, &tensor(r, large)->shape, w) &&
           pool_fits(r, &tensor(r, large)->shape, &tensor(r, small)->shape) && dtypes_fit(r) && act_fits(r);
}

/* ---- which operations ---- */

uint32_t cuda_only_reader(const mf_graph *g, uint32_t op, uint32_t made)
{
    uint32_t found = MF_NONE;
    for (uint32_t i = 0; i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count + g->ops[i].out_count && i != op; k++) {
            uint32_t t = k < g->ops[i].in_count ? g->ops[i].in[k] : g->ops[i].out[k - g->ops[i].in_count];
            if (t == MF_NONE || g->tensors[t].storage != g->tensors[made].storage)
                continue;
            if (t != made || (found != MF_NONE && found != i))
                return MF_NONE;
            found = i;
        }
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE && g->tensors[g->outputs[i]].storage == g->tensors[made].storage)
            return MF_NONE;
    return found == MF_NONE || found < op ? MF_NONE : found;
}

static bool is_plain(const mf_graph *g, const mf_op *first, uint32_t op)
{
    return !g->ops[op].chunked && g->ops[op].phase == first->phase && g->ops[op].when == first->when;
}

/* What comes next in a chain, where a chain goes on behind this kind. */
static mf_op_kind next_kind(mf_op_kind kind)
{
    return kind == MF_OP_CONV            ? MF_OP_POOL_MAX
           : kind == MF_OP_UNARY_GRAD    ? MF_OP_POOL_MAX_GRAD
           : kind == MF_OP_POOL_MAX_GRAD ? MF_OP_CONV_GRAD_WEIGHTS
                                         : MF_OP_COUNT;
}

/* Is the first that reads it, as a rule a near one, of that kind? To ask for the only one is to see the whole graph. */
static bool is_read_by(const mf_graph *g, uint32_t op, uint32_t made, mf_op_kind kind)
{
    for (uint32_t i = op + 1; i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count; k++)
            if (g->ops[i].in[k] == made)
                return g->ops[i].kind == kind;
    return false;
}

/* The chain with what must follow it: gradient or forward, without an activation behind the pooling. */
static uint32_t complete(const mf_graph *g, const uint32_t *ops, uint32_t count, const mf_op **members)
{
    uint32_t last = ops[count - 1], n = 0;
    for (; n < count; n++)
        members[n] = &g->ops[ops[n]];
    while (n < 3) {
        const mf_op *op = &g->ops[last];
        mf_op_kind next = next_kind(op->kind);
        if (next == MF_OP_COUNT || op->out[0] == MF_NONE || !is_read_by(g, last, op->out[0], next))
            break;
        last = cuda_only_reader(g, last, op->out[0]);
        if (last == MF_NONE || !is_plain(g, members[0], last))
            break;
        members[n++] = &g->ops[last];
    }
    return n;
}

bool cuda_conv_pool_takes(const mf_graph *g, const uint32_t *ops, uint32_t count)
{
    const mf_op *members[3];
    mf_ref_window w;
    roles r;
    if (count > 3)
        return false;
    uint32_t n = complete(g, ops, count, members);
    if (!find_roles(g, members, n, &r) || !fits(&r, &w))
        return false;
    /* what stands between the members is theirs alone */
    for (uint32_t i = 0; i < count; i++) {
        const mf_op *op = &g->ops[ops[i]];
        bool inner = op == (r.back ? r.pool : r.conv) || (r.act && op == (r.back ? r.act : r.pool));
        if (inner && cuda_only_reader(g, ops[i], op->out[0]) == MF_NONE)
            return false;
    }
    return true;
}

bool cuda_conv_pool_is_whole(const mf_graph *g, const uint32_t *ops, uint32_t count)
{
    const mf_op *members[MF_GROUP_MOST];
    bool pools = false;
    mf_ref_window w;
    roles r;
    for (uint32_t i = 0; i < count; i++) {
        members[i] = &g->ops[ops[i]];
        pools |= members[i]->kind == MF_OP_POOL_MAX || members[i]->kind == MF_OP_POOL_MAX_GRAD ||
                 members[i]->kind == MF_OP_CONV;
    }
    return !pools || (find_roles(g, members, count, &r) && fits(&r, &w));
}

/* ---- the text ---- */

/* Where in the group's argument an inner tensor is. */
static void say_operand(cuda_spec *s, const char *name, uint32_t inner)
{
    bool out = inner >= s->op->in_count;
    cuda_say(s, "#define %s %u\n", name, out ? inner - s->op->in_count : inner);
}

static void say_forward(cuda_spec *s, const roles *r)
{
    const mf_op *c = r->conv, *p = r->pool;
    bool bias = c->in_count > 2 && c->in[2] != MF_NONE, winners = p->out_count > 1 && p->out[1] != MF_NONE;
    cuda_say(s, "#define FORWARD 1\n#define HAS_BIAS %d\n#define HAS_WINNERS %d\n#define Y_DTYPE ((mf_dtype)%d)\n",
             bias, winners, (int)tensor(r, c->out[0])->dtype);
    say_operand(s, "X_IN", c->in[0]);
    say_operand(s, "F_IN", c->in[1]);
    say_operand(s, "B_IN", bias ? c->in[2] : 0);
    say_operand(s, "Z_OUT", r->act ? r->act->out[0] : p->out[0]);
    say_operand(s, "W_OUT", winners ? p->out[1] : s->op->in_count);
}

static void say_gradient(cuda_spec *s, const roles *r)
{
    const mf_op *c = r->conv, *p = r->pool;
    bool bias = c->out_count > 1 && c->out[1] != MF_NONE;
    say_operand(s, "X_IN", c->in[0]);
    say_operand(s, "D_IN", r->act ? r->act->in[0] : p->in[0]);
    say_operand(s, "Z_IN", r->act ? r->act->in[1] : 0);
    say_operand(s, "W_IN", p->in[1]);
    say_operand(s, "F_OUT", c->out[0]);
    say_operand(s, "B_OUT", bias ? c->out[1] : s->op->in_count);
    cuda_say(s, "#define HAS_BIAS %d\n#define F_ADDS %d\n#define B_ADDS %d\n", bias, cuda_is_added(r->graph, c, 0),
             bias && cuda_is_added(r->graph, c, 1));
}

static void say_window(cuda_spec *s, const mf_ref_window *w)
{
    cuda_say(s, "#define WINDOW {%lld, {1, %lld, %lld}, %lld, {1, %lld, %lld}, %lld, ", (long long)w->batch,
             (long long)w->in[1], (long long)w->in[2], (long long)w->in_channels, (long long)w->out[1],
             (long long)w->out[2], (long long)w->out_channels);
    const int64_t *parts[] = {w->kernel, w->stride, w->dilation, w->before};
    for (int i = 0; i < 4; i++)
        cuda_say(s, "{%lld, %lld, %lld}, ", (long long)parts[i][0], (long long)parts[i][1], (long long)parts[i][2]);
    cuda_say(s, "1}\n#define POOLED_H %lldll\n#define POOLED_W %lldll\n", (long long)w->out[1] / 2,
             (long long)w->out[2] / 2);
}

/* What a block takes at once. */
typedef struct tiling {
    bool matrix;           /* on the matrix units (conv_pool_tiles.cu) */
    int64_t segment, tall; /* pooled cells of a row, pooled rows */
    int64_t vector;        /* numbers read side by side */
    int64_t columns;       /* of eight channels, that a warp has */
} tiling;

/* A row in equal parts, each a multiple of `step`. */
static int64_t segment_of(const mf_ref_window *w, int64_t step)
{
    int64_t width = w->out[2] / 2, parts = (width + MOST_SEGMENT - 1) / MOST_SEGMENT;
    return ((width + parts - 1) / parts + step - 1) / step * step;
}

/* All that the matrix units multiply, and what goes with it, has 16 bits and lies at multiples of 16 bytes. */
static bool is_narrow(const roles *r)
{
    const mf_op *c = r->conv, *p = r->pool;
    mf_dtype dtype = tensor(r, c->in[0])->dtype;
    uint32_t others[] = {r->back ? p->in[0] : c->in[1], r->back && r->act ? r->act->in[0] : c->in[0]};
    bool narrow = dtype == MF_BF16 || dtype == MF_F16;
    for (int i = 0; i < 2; i++)
        narrow = narrow && tensor(r, others[i])->dtype == dtype;
    const mf_op *all[] = {c, p, r->act};
    for (int k = 0; k < 3 && narrow; k++)
        for (uint32_t i = 0; all[k] && i < all[k]->in_count + all[k]->out_count; i++) {
            uint32_t id = i < all[k]->in_count ? all[k]->in[i] : all[k]->out[i - all[k]->in_count];
            narrow = narrow && (id == MF_NONE || tensor(r, id)->offset % 16 == 0);
        }
    return narrow;
}

static tiling tiling_of(const roles *r, const mf_ref_window *w, unsigned block)
{
    enum { BLOCK = 256, TALL = 4, CELLS = 8, MOST_VECTOR = 8, MOST_SHARED = 40 << 10, MOST_COLUMNS = 4 };
    tiling t = {.segment = segment_of(w, CELLS), .tall = TALL, .vector = MOST_VECTOR, .columns = w->out_channels / 8};
    int64_t width = w->in[2] * w->in_channels, before = w->before[2] * w->in_channels;
    while (width % t.vector || before % t.vector)
        t.vector /= 2;
    t.columns = t.columns < MOST_COLUMNS ? t.columns : MOST_COLUMNS;
    int64_t span = ((t.segment * 2 - 1) * w->stride[2] + w->kernel[2]) * w->in_channels + MOST_VECTOR, bytes = 0;
    for (; t.tall > 0; t.tall /= 2) {
        bytes = ((2 * t.tall - 1) * w->stride[1] + w->kernel[1]) * span * 2;
        bytes += r->back ? (w->kernel[1] * w->kernel[2] * w->in_channels + 1) * w->out_channels * 4 : 0;
        if (bytes <= MOST_SHARED)
            break;
    }
    t.matrix = block == BLOCK && t.tall > 0 && is_narrow(r);
    return t.matrix ? t : (tiling){.segment = segment_of(w, 2), .tall = 1};
}

static uint64_t blocks_of(const mf_ref_window *w, const tiling *t, uint64_t sums)
{
    int64_t parts = (w->out[2] / 2 + t->segment - 1) / t->segment, deep = (w->out[1] / 2 + t->tall - 1) / t->tall;
    uint64_t tiles = (uint64_t)(w->batch * deep * parts);
    uint64_t most = MOST_WORKSPACE / (sums * sizeof(double));
    most = most < LEAST_BLOCKS ? LEAST_BLOCKS : most > MOST_BLOCKS ? MOST_BLOCKS : most;
    return tiles < most ? tiles : most;
}

bool cuda_conv_pool_spec(cuda_spec *s)
{
    const mf_op *members[3];
    mf_ref_window w;
    roles r;
    if (s->op->kind != MF_OP_GROUP || s->op->attr.group->inner.op_count > 3)
        return false;
    const mf_graph *inner = &s->op->attr.group->inner;
    for (uint32_t i = 0; i < inner->op_count; i++)
        members[i] = &inner->ops[i];
    if (!find_roles(inner, members, inner->op_count, &r) || !fits(&r, &w))
        return false;
    tiling t = tiling_of(&r, &w, s->block);
    s->family = t.matrix ? "conv_pool_tiles.cu" : "conv_pool.cu";
    uint64_t sums = (uint64_t)((w.kernel[1] * w.kernel[2] * w.in_channels + 1) * w.out_channels);
    uint64_t blocks = blocks_of(&w, &t, r.back ? sums : 1);
    unsigned join = s->block < 256 ? 1 : 8;
    int act = !r.act ? 0 : r.act->attr.unary.function == MF_UNARY_RELU6 ? 6 : 1;
    say_window(s, &w);
    cuda_say(s, "#define V 1\nstatic constexpr mf_shape domain = {};\n#include \"operands.cuh\"\n");
    cuda_say(s, "#define ACTIVATION %d\n#define SEGMENT %lld\n#define POOL_BLOCKS %llull\n#define POOL_JOIN %u\n", act,
             (long long)t.segment, (unsigned long long)blocks, join);
    if (t.matrix)
        cuda_say(s, "#define HALF ((mf_dtype)%d)\n#define TALL %lld\n#define VW %lld\n#define NTILES %lld\n",
                 (int)tensor(&r, r.conv->in[0])->dtype, (long long)t.tall, (long long)t.vector, (long long)t.columns);
    if (!r.back) {
        say_forward(s, &r);
        cuda_grid(s, "convpool", blocks, 1);
        return true;
    }
    say_gradient(s, &r);
    cuda_say(s, "#define POOL_AT %llull\n", (unsigned long long)cuda_workspace(s, blocks * sums * sizeof(double)));
    cuda_grid(s, "poolgrad", blocks, 1);
    cuda_grid(s, "pooljoin", (sums + join - 1) / join, 1);
    return true;
}
