/* pool_act.c: see pool_act.h. */
#include "ops/cuda/pool_act.h"

#include "graph/group.h"
#include "ops/cuda/conv_pool.h"
#include "ops/cuda/kind_shapes.h"
#include "ops/reference/reference.h"

static bool is_narrow_float(const mf_graph *g, uint32_t tensor)
{
    mf_dtype dtype = tensor == MF_NONE ? MF_F64 : g->tensors[tensor].dtype;
    return dtype == MF_F32 || dtype == MF_BF16 || dtype == MF_F16;
}

static bool is_flat(const mf_op *op)
{
    return op->attr.unary.function == MF_UNARY_RELU || op->attr.unary.function == MF_UNARY_RELU6;
}

/* Two operations in this order: one's result is the other's first operand, and everything has a type that the kernel takes. */
static bool fits(const mf_graph *g, const mf_op *first, const mf_op *second)
{
    bool back = first->kind == MF_OP_UNARY_GRAD;
    const mf_op *act = back ? first : second, *pool = back ? second : first;
    if (act->kind != (back ? MF_OP_UNARY_GRAD : MF_OP_UNARY) ||
        pool->kind != (back ? MF_OP_POOL_MAX_GRAD : MF_OP_POOL_MAX) || !is_flat(act) ||
        (back && !act->attr.unary.from_output) || second->in[0] != first->out[0] || first->accumulate ||
        second->accumulate || !cuda_window_is_apart(g, pool))
        return false;
    bool good = is_narrow_float(g, pool->in[0]) && is_narrow_float(g, pool->out[0]) && is_narrow_float(g, act->out[0]);
    for (uint32_t i = 0; i < act->in_count; i++)
        good = good && is_narrow_float(g, act->in[i]);
    return good;
}

bool cuda_pool_act_takes(const mf_graph *g, const uint32_t *ops, uint32_t count)
{
    const mf_op *first = &g->ops[ops[0]];
    if (count > 2 || (first->kind != MF_OP_POOL_MAX && first->kind != MF_OP_UNARY_GRAD) || first->chunked)
        return false;
    uint32_t next = cuda_only_reader(g, ops[0], first->out[0]);
    if (next == MF_NONE || (count == 2 && ops[1] != next) || g->ops[next].chunked ||
        g->ops[next].phase != first->phase || g->ops[next].when != first->when)
        return false;
    return fits(g, first, &g->ops[next]);
}

static void say_operand(cuda_spec *s, const char *name, uint32_t inner)
{
    bool out = inner >= s->op->in_count;
    cuda_say(s, "#define %s %u\n", name, out ? inner - s->op->in_count : inner);
}

bool cuda_pool_act_spec(cuda_spec *s)
{
    mf_ref_window w;
    if (s->op->kind != MF_OP_GROUP || s->op->attr.group->inner.op_count != 2)
        return false;
    const mf_graph *g = &s->op->attr.group->inner;
    const mf_op *first = &g->ops[0], *second = &g->ops[1];
    if ((first->kind != MF_OP_POOL_MAX && first->kind != MF_OP_UNARY_GRAD) || !fits(g, first, second))
        return false;
    bool back = first->kind == MF_OP_UNARY_GRAD;
    const mf_op *act = back ? first : second, *pool = back ? second : first;
    const mf_tensor *large = &g->tensors[back ? pool->out[0] : pool->in[0]];
    const mf_tensor *small = &g->tensors[back ? pool->in[0] : pool->out[0]];
    bool winners = back || (pool->out_count > 1 && pool->out[1] != MF_NONE);
    mf_ref_window_of(&pool->attr.window, &large->shape, &small->shape, &w);
    unsigned width = cuda_channel_width(s, (uint64_t)w.in_channels, (unsigned)(16 / mf_dtype_bytes(large->dtype)));
    s->family = "window_vector.cu";
    cuda_say_window(s, &w);
    cuda_say(s, "#define %s 1\n#define ACTIVATION %d\n#define HAS_WINNERS %d\n#define WV %u\n#define PX 1\n",
             back ? "KIND_POOL_MAX_GRAD" : "KIND_POOL_MAX", act->attr.unary.function == MF_UNARY_RELU6 ? 6 : 1, winners,
             width);
    say_operand(s, "X_IN", back ? 0 : pool->in[0]);
    say_operand(s, "D_IN", back ? act->in[0] : 0);
    say_operand(s, "Z_IN", back ? act->in[1] : 0);
    say_operand(s, "W_IN", back ? pool->in[1] : 0);
    say_operand(s, "Z_OUT", back ? s->op->in_count : act->out[0]);
    say_operand(s, "W_OUT", back || !winners ? s->op->in_count : pool->out[1]);
    cuda_each(s, "k0", mf_shape_count(back ? &large->shape : &small->shape) / width);
    cuda_say(s, "#define V 1\nstatic constexpr mf_shape domain = {};\n#include \"operands.cuh\"\n");
    return true;
}
