/*
 * onednn_v3.c: oneDNN 3.x (Debian 13, Ubuntu 24.04, PyPI's onednn-devel packages). Layouts are handles with an owner; a
 * primitive descriptor is made in one call. Fixed output scales are gone: a product's scale is a linear post-op, which
 * comes before the sum as the scale did.
 */
#include "ops/cpu/dnn/onednn.h"
#include "ops/cpu/dnn/onednn_dialect.h"

#include <stddef.h>

dnnl_status_t mf_dnn_layout_strided(dnnl_memory_desc_t *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                                    const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(made, rank, dims, type, strides);
}

dnnl_status_t mf_dnn_layout_any(dnnl_memory_desc_t *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_tag(made, rank, dims, type, dnnl_format_tag_any);
}

void mf_dnn_layout_drop(dnnl_memory_desc_t *layout)
{
    if (*layout)
        dnnl_memory_desc_destroy(*layout);
    *layout = NULL;
}

dnnl_status_t mf_dnn_scale(dnnl_primitive_attr_t attr, dnnl_post_ops_t ops, float scale)
{
    (void)attr;
    return dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_linear, scale, 0.0f);
}

dnnl_status_t mf_dnn_relu(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0.0f, 0.0f);
}

dnnl_status_t mf_dnn_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static dnnl_status_t first_that(dnnl_status_t made, dnnl_primitive_desc_t *pd, mf_dnn_suits suits)
{
    while (made == dnnl_success && suits && !suits(*pd))
        if (dnnl_primitive_desc_next_impl(*pd) != dnnl_success) {
            dnnl_primitive_desc_destroy(*pd);
            *pd = NULL;
            made = dnnl_unimplemented;
        }
    return made;
}

dnnl_status_t mf_dnn_desc_forward(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                  dnnl_primitive_attr_t attr, mf_dnn_suits suits)
{
    return first_that(dnnl_convolution_forward_primitive_desc_create(
                          pd, engine, dnnl_forward_training, dnnl_convolution_direct, c->src, c->weights, c->bias,
                          c->dst, c->strides, c->dilates, c->left, c->right, attr),
                      pd, suits);
}

dnnl_status_t mf_dnn_desc_grad_data(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                    dnnl_primitive_attr_t attr, dnnl_primitive_desc_t forward, mf_dnn_suits suits)
{
    return first_that(dnnl_convolution_backward_data_primitive_desc_create(pd, engine, dnnl_convolution_direct, c->src,
                                                                           c->weights, c->dst, c->strides, c->dilates,
                                                                           c->left, c->right, forward, attr),
                      pd, suits);
}

dnnl_status_t mf_dnn_desc_grad_weights(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                       dnnl_primitive_attr_t attr, dnnl_primitive_desc_t forward, mf_dnn_suits suits)
{
    return first_that(dnnl_convolution_backward_weights_primitive_desc_create(
                          pd, engine, dnnl_convolution_direct, c->src, c->weights, c->bias, c->dst, c->strides,
                          c->dilates, c->left, c->right, forward, attr),
                      pd, suits);
}

dnnl_status_t mf_dnn_desc_matmul(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, mf_dnn_layout a, mf_dnn_layout b,
                                 mf_dnn_layout bias, mf_dnn_layout c, dnnl_primitive_attr_t attr, mf_dnn_suits suits)
{
    return first_that(dnnl_matmul_primitive_desc_create(pd, engine, a, b, bias, c, attr), pd, suits);
}

/* Made for 1,400 random shapes each with 3.2.0 and 3.7.2. A product's description alone grew from 40 KiB (2.6) to 75 and
 * 140 KiB: it holds the descriptions of all its inner kernels, used or not; in a run with many of them 15 % more. */
const mf_dnn_takes *mf_dnn_taken(void)
{
    enum { SMALL = DNNL_VERSION_MINOR <= 2 };
    static const mf_dnn_takes taken = {.start = MF_DNN_START_KIB << 10,
                                       .product = SMALL ? 80 << 10 : 176 << 10,
                                       .forward = 80 << 10,
                                       .grad_data = 90 << 10,
                                       .grad_weights = 100 << 10,
                                       .making_product = SMALL ? 230 << 10 : 368 << 10};
    return &taken;
}

/* Made for 1,600 random shapes with 3.7.2, rows of 4 to 2,048 columns: a long row has no more kinds of columns than one of
 * a hundred, but for the weight gradient's code (1.7 MiB at 1,770 columns with AVX2). */
mf_dnn_row mf_dnn_row_of(mf_dnn_row_kind kind)
{
    static const mf_dnn_row rows[MF_DNN_ROW_KINDS] = {
        [MF_DNN_ROW_ONE_TAP] = {180 << 10, 1024, 320 << 10},   [MF_DNN_ROW_APART] = {330 << 10, 2048, 704 << 10},
        [MF_DNN_ROW_FAR] = {560 << 10, 1024, 768 << 10},       [MF_DNN_ROW_LONG] = {704 << 10, 0, 0},
        [MF_DNN_ROW_FORWARD] = {320 << 10, 2048, 704 << 10},   [MF_DNN_ROW_TURNED] = {320 << 10, 3072, 704 << 10},
        [MF_DNN_ROW_GRAD_DATA] = {410 << 10, 2048, 704 << 10}, [MF_DNN_ROW_GRAD_WEIGHTS] = {152 << 10, 2600, 0}};
    const bool wide = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
    const mf_dnn_row weights = {152 << 10, 2048, 704 << 10};
    return wide && kind == MF_DNN_ROW_GRAD_WEIGHTS ? weights : rows[kind];
}
