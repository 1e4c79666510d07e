/* loss_body.h: see ref_loss.c. */
#include "ops/reference/real.h"

KERNEL(loss)
{
    double value = 0;
    memfit_status status = loss_walk(call, REF_DOUBLE ? MF_F64 : MF_F32, 0, NULL, &value, err);
    if (status)
        return status;
    const uint32_t slot = call->op->attr.loss.slot;
    const REAL *before = call->in[3].data;
    REAL *after = call->out[0].data;
    if (slot)
        after[slot] = (REAL)((double)before[slot] + loss_factor(call, 1) * value);
    *after = (REAL)((double)*before + loss_factor(call, call->op->attr.loss.weight) * value);
    return MEMFIT_OK;
}

KERNEL(loss_grad)
{
    double value = 0, scale = call->scalars->loss_scale;
    return loss_walk(call, REF_DOUBLE ? MF_F64 : MF_F32,
                     loss_factor(call, call->op->attr.loss.weight) * (scale == 0 ? 1 : scale), call->out[0].data,
                     &value, err);
}

KERNEL(metric)
{
    (void)err;
    const REAL *before = call->in[3].data;
    REAL *after = call->out[0].data;
    double added[4] = {0};
    for (uint64_t i = 0; i < call->out[0].count; i++)
        after[i] = before[i];
    metric_walk(call, REF_DOUBLE ? MF_F64 : MF_F32, added);
    for (uint64_t i = 0; i < 4 && i < call->out[0].count && call->op->attr.metric.function != MF_METRIC_AUC; i++)
        after[i] = (REAL)((double)after[i] + added[i]);
    return MEMFIT_OK;
}

KERNEL(regularize)
{
    (void)err;
    const REAL *w = call->in[0].data, *grad = call->in[1].data, *loss = call->in[2].data;
    double l1 = call->op->attr.regularize.l1, l2 = call->op->attr.regularize.l2, sum = 0;
    double scale = call->scalars->loss_scale == 0 ? 1 : call->scalars->loss_scale;
    REAL *out = call->out[0].data;
    for (uint64_t i = 0; i < call->in[0].count; i++) {
        double v = (double)w[i];
        sum += l1 * fabs(v) + l2 * v * v;
        if (out && grad)
            out[i] = (REAL)((double)grad[i] + scale * (l1 * ((v > 0) - (v < 0)) + 2 * l2 * v));
    }
    *(REAL *)call->out[1].data = (REAL)((double)*loss + sum);
    return MEMFIT_OK;
}
