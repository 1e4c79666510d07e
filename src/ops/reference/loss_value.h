/* loss_value.h: one row of a loss. Also used by the other CPU backend, so that a loss means the same in both. */
#ifndef MF_OPS_LOSS_VALUE_H
#define MF_OPS_LOSS_VALUE_H

#include "ops/reference/reference.h"

typedef struct mf_loss_row {
    mf_loss function;
    double alpha, gamma, delta, smoothing;
    bool balanced;       /* focal */
    bool binary_targets; /* hinge */
    double one_less;     /* 1 - 1e-7 in the type computed in */
    int64_t n;
    mf_dtype dtype; /* of predictions and slopes: F32 or F64 */
    const void *prediction;
    mf_dtype target_dtype;
    const void *target;
    int64_t first; /* index of the row's first target */
    int64_t label; /* sparse losses */
    double factor; /* slopes are written times this */
    void *slope;   /* or NULL */
} mf_loss_row;

static inline double mf_loss_prediction(const mf_loss_row *r, int64_t j)
{
    return r->dtype == MF_F64 ? ((const double *)r->prediction)[j] : (double)((const float *)r->prediction)[j];
}

static inline void mf_loss_slope(const mf_loss_row *r, int64_t j, double slope)
{
    if (!r->slope)
        return;
    if (r->dtype == MF_F64)
        ((double *)r->slope)[j] = slope * r->factor;
    else
        ((float *)r->slope)[j] = (float)(slope * r->factor);
}

double mf_loss_row_value(const mf_loss_row *row);

#endif
