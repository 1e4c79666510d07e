/*
 * roofline.c: estimated times from a table of rates.
 *
 * Sustained rates are taken as fixed parts of the peaks: 60 % of the arithmetic peak for convolutions and matrix
 * products, 75 % of the memory bandwidth. These shares cancel out of every ratio the planner prints (slowdown) except
 * the balance between the two, which is why they are two numbers and not one per operation.
 *
 * float32 products and convolutions of cards from Ampere on run in TF32, the default of cuDNN in TensorFlow and PyTorch:
 * half the rate of 16 bits on the tensor cores.
 */
#include "plan/roofline.h"

void mf_roofline_for_card(mf_roofline *r, const mf_card *card)
{
    double tf32_tflops = card->capability >= 80 ? card->fp16_tflops / 2 : 0;
    double product_tflops = tf32_tflops > card->fp32_tflops ? tf32_tflops : card->fp32_tflops;
    *r = (mf_roofline){.fp32_per_us = card->fp32_tflops * 1e6 * 0.6,
                       .product_per_us = product_tflops * 1e6 * 0.6,
                       .half_per_us = card->fp16_tflops * 1e6 * 0.6,
                       .bytes_per_us = card->bandwidth_gbs * 1e3 * 0.75,
                       .start_us = 4,
                       .alignment = 256};
}

static bool multiplies(const mf_op *op)
{
    if (op->kind == MF_OP_GROUP)
        for (uint32_t i = 0; i < op->attr.group->inner.op_count; i++)
            if (multiplies(&op->attr.group->inner.ops[i]))
                return true;
    return op->kind == MF_OP_CONV || op->kind == MF_OP_CONV_GRAD_DATA || op->kind == MF_OP_CONV_GRAD_WEIGHTS ||
           op->kind == MF_OP_MATMUL;
}

static memfit_status query(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    (void)err;
    const mf_roofline *r = ctx;
    const mf_op *o = &graph->ops[op];
    double flops = 0, bytes = 0;
    mf_op_cost(graph, o, &flops, &bytes);
    bool half = false;
    for (uint32_t i = 0; i < o->in_count; i++)
        half |= o->in[i] != MF_NONE &&
                (graph->tensors[o->in[i]].dtype == MF_F16 || graph->tensors[o->in[i]].dtype == MF_BF16);
    double wide = multiplies(o) ? r->product_per_us : r->fp32_per_us;
    double work = flops / (half ? r->half_per_us : wide), move = bytes / r->bytes_per_us;
    mf_cost_set_one(cost, r->workspace ? r->workspace(graph, op) : 0, r->start_us + (work > move ? work : move));
    return MEMFIT_OK;
}

void mf_roofline_cost_source(mf_roofline *roofline, mf_cost_source *source)
{
    *source = (mf_cost_source){.ctx = roofline, .query = query, .alignment = roofline->alignment};
}
