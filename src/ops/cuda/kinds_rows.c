/* kinds_rows.c: operations over the last axis (kernels/rows.cu): who shares a row, and what a thread holds of it. */
#include "ops/cuda/kind_shapes.h"
#include "ops/cuda/program.h"
#include "ops/reference/reference.h"

enum { WARP = 32, MOST_HELD = 64 };

static bool is_float(const cuda_spec *s, uint32_t tensor)
{
    mf_dtype dtype = s->graph->tensors[tensor].dtype;
    return dtype == MF_F32 || dtype == MF_F64 || dtype == MF_BF16 || dtype == MF_F16;
}

/* Elements side by side: 16 bytes of the narrowest operand, as far as rows and places in memory are divisible. */
static unsigned row_width(const cuda_spec *s, uint64_t size)
{
    uint64_t narrow = 8;
    for (uint32_t i = 0; i < s->op->in_count + s->op->out_count; i++) {
        uint32_t t = i < s->op->in_count ? s->op->in[i] : s->op->out[i - s->op->in_count];
        uint64_t bytes = t == MF_NONE ? 8 : mf_dtype_bytes(s->graph->tensors[t].dtype);
        narrow = bytes < narrow && bytes > 1 ? bytes : narrow;
    }
    unsigned width = (unsigned)(16 / narrow);
    while (width > 1 && size % width)
        width /= 2;
    for (uint32_t i = 0; i < s->op->in_count + s->op->out_count; i++) {
        uint32_t t = i < s->op->in_count ? s->op->in[i] : s->op->out[i - s->op->in_count];
        while (t != MF_NONE && width > 1 &&
               s->graph->tensors[t].offset % (width * mf_dtype_bytes(s->graph->tensors[t].dtype)))
            width /= 2;
    }
    return width;
}

static void say_rows(cuda_spec *s, const char *name, uint64_t rows, uint64_t size, unsigned width)
{
    unsigned team = s->block < WARP ? s->block : size / width > WARP * 8 ? s->block : WARP;
    uint64_t items = (size + (uint64_t)team * width - 1) / ((uint64_t)team * width);
    cuda_say(s, "#define ROW_SIZE %llull\n#define ROWS %llull\n#define TEAM %u\n#define RV %u\n#define ITEMS %llu\n",
             (unsigned long long)size, (unsigned long long)rows, team, width, (unsigned long long)items);
    cuda_say(s, "#define HELD %d\n", items * width <= MOST_HELD || s->block < WARP);
    uint64_t teams = s->block / team;
    cuda_grid(s, name, (rows + teams - 1) / teams, 1);
}

static void layer_norm_grad(cuda_spec *s, uint64_t rows, uint64_t size, unsigned width)
{
    if (has_out(s, 1) || has_out(s, 2)) {
        cuda_say(s, "#define HAS_SUMS 1\n#define SUM_KIND 1\n");
        cuda_say_columns(s, rows, size, width, 2, false, false);
    } else
        cuda_say(s, "#define V 1\n");
    cuda_say(s, "static constexpr mf_shape domain = {};\n");
    if (has_out(s, 0))
        say_rows(s, "k1", rows, size, width);
    else
        cuda_say(s,
                 "#define ROW_SIZE 1\n#define ROWS 1\n#define TEAM 1\n#define RV 1\n#define ITEMS 1\n#define HELD 1\n");
}

bool cuda_rows(cuda_spec *s)
{
    const mf_op *op = s->op;
    if (op->kind != MF_OP_SOFTMAX && op->kind != MF_OP_SOFTMAX_GRAD && op->kind != MF_OP_LAYER_NORM &&
        op->kind != MF_OP_LAYER_NORM_GRAD)
        return false;
    uint32_t data = op->kind == MF_OP_LAYER_NORM_GRAD ? op->in[1] : op->in[0];
    const mf_shape *x = &s->graph->tensors[data].shape;
    uint64_t count = mf_shape_count(x), size = x->rank ? (uint64_t)x->dim[x->rank - 1] : 1;
    if (count == 0 || !is_float(s, data))
        return false;
    bool softmax = op->kind == MF_OP_SOFTMAX || op->kind == MF_OP_SOFTMAX_GRAD;
    if (softmax ? op->attr.softmax.sparse || x->rank == 0 || op->attr.softmax.axis != x->rank - 1
                : op->attr.norm.groups > 0)
        return false;
    if (!softmax)
        size = (uint64_t)mf_ref_span(x, x->rank - op->attr.norm.axes, x->rank);
    unsigned width = row_width(s, size);
    s->family = "rows.cu";
    if (op->kind == MF_OP_LAYER_NORM_GRAD)
        layer_norm_grad(s, count / size, size, width);
    else {
        cuda_say(s, "#define V 1\nstatic constexpr mf_shape domain = {};\n");
        say_rows(s, "k0", count / size, size, width);
    }
    return true;
}
