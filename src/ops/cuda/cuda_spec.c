/* cuda_spec.c: the text in front of a family of kernels: operands and attributes of one operation as constants. */
#include "ops/cuda/cuda_spec.h"

#include "base/error.h"
#include "ops/cuda/many.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LEAST_INPUTS = 10, LEAST_OUTPUTS = 5, WANTED_BLOCKS = 256, MOST_INT_ELEMENTS = 1 << 30 };

/* Kernels name operands by number whether or not this operation has them. */
uint32_t cuda_spec_inputs(const mf_op *op)
{
    return op->in_count > LEAST_INPUTS ? op->in_count : LEAST_INPUTS;
}

uint32_t cuda_spec_outputs(const mf_op *op)
{
    return op->out_count > LEAST_OUTPUTS ? op->out_count : LEAST_OUTPUTS;
}

static bool room_for(cuda_spec *s, size_t more)
{
    if (s->length + more + 1 <= s->capacity)
        return true;
    size_t wanted = 2 * (s->length + more + 1);
    char *bigger = mf_host_resize(s->host, s->text, s->capacity, wanted);
    if (!bigger) {
        s->no_memory = true;
        return false;
    }
    s->text = bigger;
    s->capacity = wanted;
    return true;
}

void cuda_say(cuda_spec *s, const char *format, ...)
{
    va_list args;
    if (s->silent)
        return;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || s->no_memory || !room_for(s, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(s->text + s->length, (size_t)n + 1, format, args);
    va_end(args);
    s->length += (size_t)n;
}

/* ---- launches ---- */

void cuda_grid(cuda_spec *s, const char *name, uint64_t x, uint64_t y)
{
    if (x == 0 || y == 0 || s->launch_count == CUDA_MOST_LAUNCHES)
        return;
    cuda_launch *launch = &s->launches[s->launch_count++];
    *launch = (cuda_launch){.grid_x = (uint32_t)x, .grid_y = (uint32_t)y};
    snprintf(launch->name, sizeof launch->name, "%s", name);
}

void cuda_each(cuda_spec *s, const char *name, uint64_t n)
{
    cuda_grid(s, name, (n + s->block - 1) / s->block, 1);
}

uint64_t cuda_workspace(cuda_spec *s, uint64_t bytes)
{
    uint64_t at = (s->workspace_bytes + 255) & ~UINT64_C(255);
    s->workspace_bytes = at + bytes;
    return at;
}

void cuda_keep(cuda_spec *s, uint64_t doubles)
{
    cuda_say(s, "#define KEPT_AT %llull\n", (unsigned long long)cuda_workspace(s, doubles * sizeof(double)));
}

static unsigned at_most(uint64_t n, unsigned most)
{
    return n < most ? (unsigned)n : most;
}

void cuda_reduce(cuda_spec *s, unsigned i, uint64_t out, uint64_t gone, unsigned numbers, bool rows)
{
    /* threads along the results: all where each has little to do, one where a result's elements lie side by side */
    unsigned along = gone <= 32 ? s->block : rows ? 1 : at_most(s->block, 32), deep = s->block / along;
    uint64_t blocks = (out + along - 1) / along, most = (gone + deep * 16 - 1) / (deep * 16);
    uint64_t splits = blocks == 0 ? 1 : (WANTED_BLOCKS + blocks - 1) / blocks;
    splits = splits > most ? most : splits;
    splits = splits < 1 ? 1 : splits;
    uint64_t at = splits > 1 ? cuda_workspace(s, splits * out * numbers * sizeof(double)) : 0;
    cuda_say(s, "#define R%u_OUT %lldll\n#define R%u_GONE %lldll\n", i, (long long)out, i, (long long)gone);
    cuda_say(s, "#define R%u_TX %u\n#define R%u_SPLITS %u\n#define R%u_AT %llull\n", i, along, i, (unsigned)splits, i,
             (unsigned long long)at);
    char name[16];
    snprintf(name, sizeof name, "reduce%u", i);
    cuda_grid(s, name, blocks, splits);
    snprintf(name, sizeof name, "join%u", i);
    if (splits > 1)
        cuda_each(s, name, out);
}

void cuda_reduce_unused(cuda_spec *s, unsigned i)
{
    cuda_say(s, "#define R%u_OUT 1\n#define R%u_GONE 1\n#define R%u_TX 1\n#define R%u_SPLITS 1\n#define R%u_AT 0\n", i,
             i, i, i, i);
}

/* ---- operands ---- */

bool cuda_is_added(const mf_graph *graph, const mf_op *op, uint32_t output)
{
    if (!op->accumulate || op->out[output] == MF_NONE)
        return false;
    if (op->out_count == 1)
        return true;
    const mf_tensor *t = &graph->tensors[op->out[output]];
    return t->variable != MF_NONE || graph->storages[t->storage].variable != MF_NONE;
}

static void say_operands(cuda_spec *s, const char *word, const uint32_t *ids, uint32_t count, uint32_t least)
{
    const mf_graph *g = s->graph;
    cuda_say(s, "static constexpr mf_shape %s_shape[] = {", word);
    for (uint32_t i = 0; i < least; i++) {
        if (i >= count || ids[i] == MF_NONE || s->many) {
            cuda_say(s, "{1, {1}}, ");
            continue;
        }
        const mf_shape *shape = &g->tensors[ids[i]].shape;
        cuda_say(s, "{%u, {", shape->rank);
        for (uint32_t d = 0; d < shape->rank; d++)
            cuda_say(s, "%lld, ", (long long)shape->dim[d]);
        cuda_say(s, "}}, ");
    }
    cuda_say(s, "};\nstatic constexpr mf_dtype %s_dtype[] = {", word);
    for (uint32_t i = 0; i < least; i++)
        cuda_say(s, "(mf_dtype)%d, ", i < count && ids[i] != MF_NONE ? (int)g->tensors[ids[i]].dtype : 0);
    cuda_say(s, "};\nstatic constexpr bool %s_here[] = {", word);
    for (uint32_t i = 0; i < least; i++)
        cuda_say(s, "%d, ", i < count && ids[i] != MF_NONE);
    cuda_say(s, "};\n");
}

/* As the reference: in double when an operand is. */
static bool is_double(const cuda_spec *s)
{
    const mf_op *op = s->op;
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        if (t != MF_NONE && s->graph->tensors[t].dtype == MF_F64)
            return true;
    }
    return false;
}

static bool fits_int(const cuda_spec *s)
{
    const mf_op *op = s->op;
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        if (t != MF_NONE && mf_shape_count(&s->graph->tensors[t].shape) > MOST_INT_ELEMENTS)
            return false;
    }
    return true;
}

static void say_head(cuda_spec *s)
{
    const mf_op *op = s->op;
    char kind[40];
    snprintf(kind, sizeof kind, "%s", mf_kind_name(op->kind));
    for (char *p = kind; *p; p++)
        *p = (char)toupper((unsigned char)*p);
    cuda_say(s, "#define IDX %s\n#define BLOCK %u\n#include \"device.cuh\"\n#define KIND_%s 1\n",
             fits_int(s) ? "int" : "long long", s->block, kind);
    cuda_say(s, "#define REAL_IS_DOUBLE %d\ntypedef %s real;\nenum { NI = %u, NO = %u };\n", is_double(s),
             is_double(s) ? "double" : "float", op->in_count, op->out_count);
    if (s->many)
        cuda_say(s,
                 "struct tensor {\n    void *at[5];\n    int elements, first;\n};\nstruct args {\n    const "
                 "mf_run_scalars *s;\n"
                 "    int count, unused;\n    tensor one[%d];\n};\n",
                 CUDA_MANY);
    else
        cuda_say(s, "struct args {\n    void *in[%u], *out[%u], *workspace;\n    const mf_run_scalars *s;\n};\n",
                 cuda_spec_inputs(op), cuda_spec_outputs(op));
    say_operands(s, "in", op->in, op->in_count, cuda_spec_inputs(op));
    say_operands(s, "out", op->out, op->out_count, cuda_spec_outputs(op));
    cuda_say(s, "static constexpr bool out_adds[] = {");
    for (uint32_t i = 0; i < cuda_spec_outputs(op); i++)
        cuda_say(s, "%d, ", i < op->out_count && cuda_is_added(s->graph, op, i));
    cuda_say(s, "};\n");
    cuda_say_attributes(s);
}

/* ---- moving several elements as one ---- */

enum { MOST_MOVED = 20 };

typedef struct wide_move {
    mf_graph graph;
    mf_op op;
    mf_tensor tensors[MOST_MOVED];
    uint32_t ids[MOST_MOVED];
} wide_move;

/* Is the last axis moved as it is? */
static bool keeps_last_axis(const mf_graph *graph, const mf_op *op)
{
    const mf_shape *x = &graph->tensors[op->in[0]].shape;
    uint32_t last = x->rank - 1;
    switch (op->kind) {
    case MF_OP_TRANSPOSE:
        return op->attr.transpose.perm[last] == last;
    case MF_OP_SLICE:
        return op->attr.slice.begin[last] == 0 && op->attr.slice.stride[last] <= 1 &&
               op->attr.slice.stride[last] >= 0 && graph->tensors[op->out[0]].shape.dim[last] == x->dim[last];
    case MF_OP_PAD:
        return op->attr.pad.before[last] == 0 && op->attr.pad.after[last] == 0 && op->attr.pad.between[last] == 0 &&
               (op->attr.pad.mode != 0 || op->attr.pad.value == 0);
    default:
        return op->kind == MF_OP_CONCAT; /* parts of rows, whatever the axis */
    }
}

/* The same move of 8 bytes at a time, where rows and places in memory are divisible. */
static bool widen_move(const mf_graph *graph, const mf_op *op, wide_move *w)
{
    uint32_t n = op->in_count + op->out_count;
    if ((op->kind != MF_OP_TRANSPOSE && op->kind != MF_OP_SLICE && op->kind != MF_OP_PAD && op->kind != MF_OP_CONCAT) ||
        n > MOST_MOVED || op->accumulate || graph->tensors[op->in[0]].shape.rank == 0 || !keeps_last_axis(graph, op))
        return false;
    int64_t unit = (int64_t)(8 / mf_dtype_bytes(graph->tensors[op->in[0]].dtype));
    if (unit < 2)
        return false;
    w->op = *op;
    w->op.in = w->ids;
    w->op.out = w->ids + op->in_count;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        if (t == MF_NONE)
            return false;
        w->tensors[i] = graph->tensors[t];
        mf_shape *shape = &w->tensors[i].shape;
        if (shape->rank == 0 || shape->dim[shape->rank - 1] % unit || w->tensors[i].offset % 8)
            return false;
        shape->dim[shape->rank - 1] /= unit;
        w->tensors[i].dtype = MF_U64;
        w->ids[i] = i;
    }
    w->graph = (mf_graph){.ops = &w->op,
                          .op_count = 1,
                          .tensors = w->tensors,
                          .tensor_count = n,
                          .layers = graph->layers,
                          .layer_count = graph->layer_count};
    return true;
}

static memfit_status make_text(cuda_spec *spec, memfit_error *err);

static memfit_status make_spec(cuda_spec *spec, memfit_error *err)
{
    wide_move wide;
    const mf_graph *graph = spec->graph;
    const mf_op *op = spec->op;
    if (widen_move(graph, op, &wide)) {
        spec->graph = &wide.graph;
        spec->op = &wide.op;
    }
    memfit_status status = make_text(spec, err);
    spec->graph = graph;
    spec->op = op;
    return status;
}

static memfit_status make_text(cuda_spec *spec, memfit_error *err)
{
    mf_op_kind kind = spec->op->kind;
    if (kind == MF_OP_INPUT)
        return MEMFIT_OK;
    if (kind == MF_OP_VIEW) {
        spec->copies = true;
        return MEMFIT_OK;
    }
    spec->many = cuda_many_takes(spec->graph, spec->op);
    if (!spec->silent)
        say_head(spec);
    memfit_status status = MEMFIT_OK;
    if (spec->many)
        cuda_many_spec(spec);
    else
        status = cuda_kind_spec(spec, err);
    if (status == MEMFIT_OK && spec->family)
        cuda_say(spec, "%s#include \"%s\"\n", spec->many ? "" : "#include \"operands.cuh\"\n", spec->family);
    if (status == MEMFIT_OK && spec->no_memory)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the text of a kernel");
    if (status)
        cuda_spec_end(spec);
    return status;
}

memfit_status cuda_spec_make(const memfit_host *host, const mf_graph *graph, uint32_t op, unsigned block,
                             cuda_spec *spec, memfit_error *err)
{
    *spec = (cuda_spec){.host = host, .graph = graph, .op = &graph->ops[op], .block = block};
    return make_spec(spec, err);
}

memfit_status cuda_spec_size(const mf_graph *graph, uint32_t op, unsigned block, cuda_spec *spec, memfit_error *err)
{
    *spec = (cuda_spec){.graph = graph, .op = &graph->ops[op], .block = block, .silent = true};
    return make_spec(spec, err);
}

memfit_status cuda_spec_make_around(const memfit_host *host, const mf_graph *graph, uint32_t op, unsigned block,
                                    bool bias_inside, cuda_spec *spec, memfit_error *err)
{
    *spec = (cuda_spec){.host = host,
                        .graph = graph,
                        .op = &graph->ops[op],
                        .block = block,
                        .library = true,
                        .bias_inside = bias_inside};
    return make_text(spec, err);
}

void cuda_spec_end(cuda_spec *spec)
{
    mf_host_free(spec->host, spec->text, spec->capacity);
    spec->text = NULL;
    spec->length = spec->capacity = 0;
}
