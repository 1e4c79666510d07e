/* loss_row.cuh: in place of ops/reference/loss_value.h: predictions and slopes may be of any type. */
#ifndef MF_OPS_LOSS_VALUE_H
#define MF_OPS_LOSS_VALUE_H
typedef struct mf_loss_row {
    mf_loss function;
    double alpha, gamma, delta, smoothing;
    bool balanced, binary_targets;
    double one_less;
    int64_t n;
    mf_dtype dtype;
    const void *prediction;
    mf_dtype target_dtype;
    const void *target;
    int64_t first, label;
    double factor;
    void *slope;
    mf_dtype slope_dtype; /* the device's own */
    int64_t start;        /* index of the row's first prediction */
} mf_loss_row;

static inline double mf_loss_prediction(const mf_loss_row *r, int64_t j)
{
    return mf_ref_load(r->dtype, r->prediction, (uint64_t)(r->start + j));
}

static inline void mf_loss_slope(const mf_loss_row *r, int64_t j, double slope)
{
    if (r->slope)
        mf_ref_store(r->slope_dtype, r->slope, (uint64_t)(r->start + j), slope * r->factor);
}

#endif
