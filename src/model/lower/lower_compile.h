/* lower_compile.h: between losses, metrics and the optimizer. */
#ifndef MF_MODEL_LOWER_COMPILE_H
#define MF_MODEL_LOWER_COMPILE_H

#include "graph/passes/chunk.h"
#include "model/lower/lower_inner.h"

/* Lower case without underscores: "MeanSquaredError" and "mean_squared_error" become one. */
void mf_plain_name(const char *name, char *text, size_t bytes);
const char *mf_loss_name(mf_loss loss);
const char *mf_output_name(const mf_lowering *lo, uint32_t output);
const mf_json *mf_setting_of_output(const mf_lowering *lo, const mf_json *value, uint32_t output, bool list_is_one);
uint32_t mf_feed_make(mf_build *b, const char *name, mf_dtype dtype, mf_shape shape, uint32_t role, uint32_t index);

/* lower_metric.c */
void mf_lower_metric_variables(mf_lowering *lo, uint32_t output, mf_loss loss);
/* mask: one number a row, for predictions that have one; else MF_NONE. */
void mf_lower_metric_ops(mf_lowering *lo, uint32_t output, uint32_t pred, uint32_t target, uint32_t weights,
                         uint32_t mask);

/* Where several outputs have a loss, Keras shows the mean of each as NAME_loss: element `slot` of the loss variable.
 * The state first; the operations when everything that adds to the loss is there. */
void mf_lower_loss_mean(mf_lowering *lo, uint32_t output, uint32_t slot);
void mf_lower_loss_means(mf_lowering *lo);

/* The same operands, for a loop over chunks of rows to append. */
void mf_lower_head_metrics(mf_lowering *lo, uint32_t output, uint32_t target, uint32_t weights, uint32_t mask,
                           mf_head *head);

/* lower_optimizer.c: reads settings, numbers the variables; false when the optimizer is not known (failed, if needed).
 */
bool mf_lower_optimizer(mf_lowering *lo, mf_optimizer_settings *settings);

#endif
