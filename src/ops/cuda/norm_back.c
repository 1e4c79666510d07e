/* norm_back.c: see norm_back.h. */
#include "ops/cuda/norm_back.h"

#include "graph/group.h"
#include "ops/reference/reference.h"

enum { WARP = 32, AT_ONCE = 4, MOST_ADDENDS = 2, MOST_BLOCKS = 264 /* two on each multiprocessor of the largest cards */ };

/* The members by role; NULL where there is none. */
typedef struct roles {
    const mf_graph *graph;
    const mf_op *norm, *sum, *total;
    uint32_t addends[MOST_ADDENDS], addend_count;
    uint64_t rows, size;
    unsigned width;
} roles;

static const mf_tensor *tensor(const roles *r, uint32_t id)
{
    return &r->graph->tensors[id];
}

static bool is_float(const roles *r, uint32_t id)
{
    mf_dtype dtype = id == MF_NONE ? MF_F64 : tensor(r, id)->dtype;
    return dtype == MF_F32 || dtype == MF_BF16 || dtype == MF_F16;
}

/* Everything that is there is a float of at most 32 bits; elements side by side: 16 bytes of the narrowest, as far as rows and places
 * in memory are divisible. */
static bool find_width(roles *r)
{
    const mf_op *ops[] = {r->norm, r->sum, r->total};
    uint64_t narrow = 4;
    for (int pass = 0; pass < 2; pass++) {
        for (int m = 0; m < 3; m++)
            for (uint32_t i = 0; ops[m] && i < ops[m]->in_count + ops[m]->out_count; i++) {
                uint32_t id = i < ops[m]->in_count ? ops[m]->in[i] : ops[m]->out[i - ops[m]->in_count];
                if (id == MF_NONE)
                    continue;
                if (!is_float(r, id))
                    return false;
                uint64_t bytes = mf_dtype_bytes(tensor(r, id)->dtype);
                narrow = bytes < narrow ? bytes : narrow;
                while (pass && r->width > 1 && tensor(r, id)->offset % (r->width * bytes))
                    r->width /= 2;
            }
        for (r->width = pass ? r->width : (unsigned)(16 / narrow); r->width > 1 && r->size % r->width; r->width /= 2)
            ;
    }
    return true;
}

static bool norm_fits(roles *r)
{
    const mf_op *op = r->norm;
    if (op->kind != MF_OP_LAYER_NORM_GRAD || op->attr.norm.groups || op->out[0] == MF_NONE)
        return false;
    const mf_shape *x = &tensor(r, op->in[1])->shape;
    r->size = (uint64_t)mf_ref_span(x, x->rank - op->attr.norm.axes, x->rank);
    r->rows = r->size ? mf_shape_count(x) / r->size : 0;
    bool sums = (op->out_count > 1 && op->out[1] != MF_NONE) || (op->out_count > 2 && op->out[2] != MF_NONE);
    return r->rows > 0 && mf_shape_equal(x, &tensor(r, op->in[0])->shape) && (sums || r->total);
}

static bool sum_fits(roles *r)
{
    const mf_op *op = r->sum;
    if (!op)
        return true;
    uint32_t found = 0;
    for (uint32_t i = 0; i < op->in_count; i++) {
        if (op->in[i] == MF_NONE || !mf_shape_equal(&tensor(r, op->in[i])->shape, &tensor(r, r->norm->in[1])->shape))
            return false;
        found += op->in[i] == r->norm->out[0];
        if (op->in[i] != r->norm->out[0] && r->addend_count == MOST_ADDENDS)
            return false;
        if (op->in[i] != r->norm->out[0])
            r->addends[r->addend_count++] = op->in[i];
    }
    bool adds = op->kind == MF_OP_SUM_N || (op->kind == MF_OP_BINARY && op->attr.binary.function == MF_ADD);
    return adds && found == 1 && r->addend_count > 0 && !op->accumulate;
}

static bool total_fits(const roles *r)
{
    const mf_op *op = r->total;
    if (!op)
        return true;
    uint32_t rank = tensor(r, r->norm->in[1])->shape.rank;
    return op->kind == MF_OP_REDUCE && op->in[0] == r->sum->out[0] && op->attr.reduce.function == MF_REDUCE_SUM &&
           op->attr.reduce.axes == (1u << (rank - 1)) - 1 && r->norm->attr.norm.axes == 1;
}

static bool find_roles(const mf_graph *graph, const mf_op *const *ops, uint32_t count, roles *r)
{
    *r = (roles){.graph = graph, .norm = ops[0]};
    r->sum = count > 1 ? ops[1] : NULL;
    r->total = count > 2 ? ops[2] : NULL;
    return count <= 3 && norm_fits(r) && sum_fits(r) && total_fits(r) && find_width(r);
}

/* Threads that share a row. */
static unsigned team_of(const roles *r, unsigned block)
{
    uint64_t vectors = r->size / r->width, team = 1;
    if (block < WARP)
        return block;
    while (team < vectors && team < WARP)
        team *= 2;
    return (unsigned)(vectors > WARP ? (vectors + WARP - 1) / WARP * WARP : team);
}

bool cuda_norm_back_takes(const mf_graph *g, const uint32_t *ops, uint32_t count)
{
    enum { BLOCK = 256 };
    const mf_op *members[3];
    roles r;
    if (count > 3 || g->ops[ops[0]].kind != MF_OP_LAYER_NORM_GRAD)
        return false;
    for (uint32_t i = 0; i < count; i++)
        members[i] = &g->ops[ops[i]];
    return find_roles(g, members, count, &r) && team_of(&r, BLOCK) <= BLOCK;
}

/* ---- the text ---- */

/* Where an operand is in the argument, and whether it is there: of a group, inner tensors are its inputs, then its outputs. */
static bool say_operand(cuda_spec *s, const roles *r, const char *name, const mf_op *op, bool out, uint32_t i)
{
    uint32_t id = op && i < (out ? op->out_count : op->in_count) ? (out ? op->out[i] : op->in[i]) : MF_NONE;
    bool group = s->op->kind == MF_OP_GROUP;
    uint32_t at = group && id != MF_NONE ? id - (out ? s->op->in_count : 0) : i;
    bool here = id != MF_NONE && (!group || !out || at < s->op->out_count);
    cuda_say(s, "#define %s %u\n#define HAS_%s %d\n", name, here ? at : 0, name, here);
    if (out)
        cuda_say(s, "#define %s_ADDS %d\n", name, here && cuda_is_added(r->graph, op, i));
    return here;
}

/* Returns how many sums over rows there are. */
static unsigned say_operands(cuda_spec *s, const roles *r)
{
    const mf_op *n = r->norm;
    say_operand(s, r, "DY", n, false, 0);
    say_operand(s, r, "X", n, false, 1);
    say_operand(s, r, "MEAN", n, false, 2);
    say_operand(s, r, "RSTD", n, false, 3);
    say_operand(s, r, "GAMMA", n, false, 4);
    say_operand(s, r, "DX", n, true, 0);
    say_operand(s, r, "SUM", r->sum, true, 0);
    for (uint32_t i = 0; i < MOST_ADDENDS; i++)
        cuda_say(s, "#define HAS_ADDEND%u %d\n#define ADDEND%u %u\n", i, i < r->addend_count, i,
                 i < r->addend_count ? r->addends[i] : 0);
    unsigned dgamma = say_operand(s, r, "DGAMMA", n, true, 1), dbeta = say_operand(s, r, "DBETA", n, true, 2);
    unsigned total = say_operand(s, r, "TOTAL", r->total, true, 0);
    cuda_say(s, "#define DBETA_AT %u\n#define TOTAL_AT %u\n#define NACC %u\n#define RMS %d\n", dgamma, dgamma + dbeta,
             dgamma + dbeta + total, n->attr.norm.rms);
    return dgamma + dbeta + total;
}

bool cuda_norm_back_spec(cuda_spec *s)
{
    const mf_graph *graph = s->graph;
    const mf_op *members[3] = {s->op};
    uint32_t count = 1;
    roles r;
    if (s->op->kind == MF_OP_GROUP) {
        graph = &s->op->attr.group->inner;
        count = graph->op_count;
        for (uint32_t i = 0; i < count && i < 3; i++)
            members[i] = &graph->ops[i];
    }
    if (count > 3 || members[0]->kind != MF_OP_LAYER_NORM_GRAD || !find_roles(graph, members, count, &r) ||
        team_of(&r, s->block) > s->block)
        return false;
    unsigned team = team_of(&r, s->block), join = s->block < 256 ? 1 : 8;
    uint64_t vectors = r.size / r.width, each = (uint64_t)(s->block / team) * AT_ONCE;
    uint64_t blocks = (r.rows + each - 1) / each;
    blocks = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
    s->family = "norm_back.cu";
    unsigned sums = say_operands(s, &r);
    cuda_say(s, "#define ROW_SIZE %llull\n#define ROWS %llull\n#define TEAM %u\n#define RV %u\n#define ITEMS %llu\n",
             (unsigned long long)r.size, (unsigned long long)r.rows, team, r.width,
             (unsigned long long)((vectors + team - 1) / team));
    cuda_say(s, "#define AT_ONCE %d\n#define BACK_BLOCKS %llull\n#define BACK_JOIN %u\n#define BACK_AT %llull\n", AT_ONCE,
             (unsigned long long)blocks, join,
             (unsigned long long)cuda_workspace(s, blocks * r.size * sums * sizeof(double)));
    cuda_say(s, "#define V 1\nstatic constexpr mf_shape domain = {};\n#include \"operands.cuh\"\n");
    cuda_grid(s, "back", blocks, 1);
    cuda_grid(s, "backjoin", (r.size + join - 1) / join, 1);
    return true;
}
