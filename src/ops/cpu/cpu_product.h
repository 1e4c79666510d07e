/* cpu_product.h: convolutions and matrix products, the library's or own, behind one face. */
#ifndef MF_OPS_CPU_PRODUCT_H
#define MF_OPS_CPU_PRODUCT_H

#include "ops/cpu/cpu_ops.h"

/* The convolution of a window from x to y; false where it has none or more than three dimensions. */
bool cpu_conv_of(const mf_window *w, const mf_shape *x, const mf_shape *y, mf_dnn_direction direction, mf_dnn_conv *c);
/* Does the library not even get asked? */
bool cpu_conv_is_own(const mf_dnn_conv *c);
/* With `made` NULL only the workspace is computed. */
memfit_status cpu_product_conv(const cpu_backend *b, const mf_dnn_conv *conv, cpu_product **made, uint64_t *workspace,
                               memfit_error *err);
memfit_status cpu_product_matmul(const cpu_backend *b, const mf_dnn_matmul *mm, cpu_product **made, uint64_t *workspace,
                                 memfit_error *err);
void cpu_product_destroy(cpu_product *p);
/* Operands in the order of mf_dnn_conv and mf_dnn_matmul. */
memfit_status cpu_product_run(cpu_product *p, void *const *operands, void *workspace, memfit_error *err);

#endif
