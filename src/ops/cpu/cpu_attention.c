/* cpu_attention.c: rules for attention and its gradient, and when a graph's products and softmax become them. */
#include "ops/cpu/cpu_ops.h"

/* Where the scores of a query are so many times what its vector takes they are most of the layer's memory. Keys that a causal
 * mask hides are never multiplied here, which is quicker than the products (0.84 of a step at 1,024 steps, heads of 64); without
 * one, backward makes all scores again (1.16; at 4,096 steps 1.32, in a twelfth of the memory). */
enum { TIMES_CAUSAL = 8, TIMES = 32, LEAST_KEYS = 48 };

bool cpu_attends(void *ctx, const mf_graph *graph, const mf_op *attention)
{
    (void)ctx;
    mf_attention_shape s;
    const int64_t times = attention->attr.attention.causal == 1 ? TIMES_CAUSAL : TIMES;
    return mf_attention_shape_of(graph, attention, &s) && graph->tensors[attention->in[0]].dtype != MF_F64 &&
           s.keys >= LEAST_KEYS && s.keys >= times * (s.depth > s.values ? s.depth : s.values);
}

/* Masks begin at operand `masks`; all others are float32. */
static bool all_float(const cpu_kernel *k, uint32_t masks)
{
    bool fit = true;
    for (uint32_t i = 0; i < k->op->in_count; i++)
        fit &= !cpu_in(k, i) || cpu_in(k, i)->dtype == (i < masks ? MF_F32 : MF_U8);
    for (uint32_t i = 0; i < k->op->out_count; i++)
        fit &= !cpu_out(k, i) || cpu_out(k, i)->dtype == MF_F32;
    return fit;
}

static memfit_status bind(cpu_kernel *k, uint32_t masks, uint64_t *workspace, memfit_error *err)
{
    const mf_attr *attr = &k->op->attr;
    mf_k_attention *a = &k->u.attention;
    *a = (mf_k_attention){.steps_first = attr->attention.steps_first,
                          .zeroed = attr->attention.zeroed,
                          .backward = k->op->kind == MF_OP_ATTENTION_GRAD,
                          .causal = attr->attention.causal,
                          .scale = attr->attention.scale,
                          .masked = attr->attention.masked,
                          .rate = attr->attention.rate,
                          .random = {.key = attr->attention.key}};
    if (k->op->accumulate || !all_float(k, masks) || !mf_attention_shape_of(k->graph, k->op, &a->shape) ||
        a->shape.batch * a->shape.heads * a->shape.queries * a->shape.keys * a->shape.depth * a->shape.values == 0)
        return cpu_no(err);
    for (uint32_t i = 0; i < MF_ATTENTION_MASKS; i++)
        if (cpu_in(k, masks + i))
            mf_attention_mask_strides(&a->shape, &cpu_in(k, masks + i)->shape, a->mask_stride[i]);
    *workspace = mf_k_attention_divide(a, cpu_threads(k)) * sizeof(float);
    return MEMFIT_OK;
}

static memfit_status bind_forward(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    return bind(k, 3, workspace, err);
}

static memfit_status bind_back(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    return bind(k, 6, workspace, err);
}

static mf_k_attention *now(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, uint32_t masks)
{
    mf_k_attention *a = &k->u.attention;
    for (uint32_t i = 0; i < MF_ATTENTION_MASKS; i++)
        a->mask[i] = cpu_in(k, masks + i) ? o->in[masks + i] : NULL;
    a->random.seed = s->seed;
    a->random.step = s->step;
    a->random.first_sample = s->first_sample;
    return a;
}

static memfit_status run_forward(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)err;
    k->backend->k->attention(now(k, o, s, 3), o->in[0], o->in[1], o->in[2], o->out[0], cpu_out(k, 1) ? o->out[1] : NULL,
                             o->workspace, cpu_threads(k));
    return MEMFIT_OK;
}

static memfit_status run_back(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)err;
    mf_k_attention_back b = {o->in[0], o->in[1], o->in[2], o->in[3], o->in[4], o->in[5]};
    b.dq = cpu_out(k, 0) ? o->out[0] : NULL;
    b.dk = cpu_out(k, 1) ? o->out[1] : NULL;
    b.dv = cpu_out(k, 2) ? o->out[2] : NULL;
    k->backend->k->attention_grad(now(k, o, s, 6), &b, o->workspace, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_attention = {bind_forward, run_forward};
const cpu_rule cpu_attention_grad = {bind_back, run_back};
