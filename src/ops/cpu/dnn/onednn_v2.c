/* onednn_v2.c: oneDNN 2.x (Debian 12: 2.6.3). Layouts are plain structures; descriptors are filled, then compiled. */
#include "ops/cpu/dnn/onednn.h"
#include "ops/cpu/dnn/onednn_dialect.h"

dnnl_status_t mf_dnn_layout_strided(dnnl_memory_desc_t *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                                    const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(made, rank, dims, type, strides);
}

dnnl_status_t mf_dnn_layout_any(dnnl_memory_desc_t *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type)
{
    return dnnl_memory_desc_init_by_tag(made, rank, dims, type, dnnl_format_tag_any);
}

void mf_dnn_layout_drop(dnnl_memory_desc_t *layout)
{
    (void)layout;
}

dnnl_status_t mf_dnn_scale(dnnl_primitive_attr_t attr, dnnl_post_ops_t ops, float scale)
{
    (void)ops;
    return dnnl_primitive_attr_set_output_scales(attr, 1, 0, &scale);
}

dnnl_status_t mf_dnn_relu(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
}

dnnl_status_t mf_dnn_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static dnnl_status_t first_that(dnnl_primitive_desc_t *pd, const_dnnl_op_desc_t desc, const_dnnl_primitive_attr_t attr,
                                dnnl_engine_t engine, const_dnnl_primitive_desc_t forward, mf_dnn_suits suits)
{
    dnnl_primitive_desc_iterator_t at;
    dnnl_status_t s = dnnl_primitive_desc_iterator_create(&at, desc, attr, engine, forward);
    if (s != dnnl_success)
        return s;
    do {
        *pd = dnnl_primitive_desc_iterator_fetch(at);
        if (!*pd || !suits || suits(*pd))
            break;
        dnnl_primitive_desc_destroy(*pd);
        *pd = NULL;
        s = dnnl_primitive_desc_iterator_next(at);
    } while (s == dnnl_success);
    dnnl_primitive_desc_iterator_destroy(at);
    return *pd ? dnnl_success : s == dnnl_success ? dnnl_out_of_memory : dnnl_unimplemented;
}

dnnl_status_t mf_dnn_desc_forward(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                  dnnl_primitive_attr_t attr, mf_dnn_suits suits)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t s = dnnl_dilated_convolution_forward_desc_init(&desc, dnnl_forward_training, dnnl_convolution_direct,
                                                                 c->src, c->weights, c->bias, c->dst, c->strides,
                                                                 c->dilates, c->left, c->right);
    return s == dnnl_success ? first_that(pd, &desc, attr, engine, NULL, suits) : s;
}

dnnl_status_t mf_dnn_desc_grad_data(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                    dnnl_primitive_attr_t attr, dnnl_primitive_desc_t forward, mf_dnn_suits suits)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t s = dnnl_dilated_convolution_backward_data_desc_init(
        &desc, dnnl_convolution_direct, c->src, c->weights, c->dst, c->strides, c->dilates, c->left, c->right);
    return s == dnnl_success ? first_that(pd, &desc, attr, engine, forward, suits) : s;
}

dnnl_status_t mf_dnn_desc_grad_weights(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                       dnnl_primitive_attr_t attr, dnnl_primitive_desc_t forward, mf_dnn_suits suits)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t s = dnnl_dilated_convolution_backward_weights_desc_init(
        &desc, dnnl_convolution_direct, c->src, c->weights, c->bias, c->dst, c->strides, c->dilates, c->left, c->right);
    return s == dnnl_success ? first_that(pd, &desc, attr, engine, forward, suits) : s;
}

dnnl_status_t mf_dnn_desc_matmul(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, mf_dnn_layout a, mf_dnn_layout b,
                                 mf_dnn_layout bias, mf_dnn_layout c, dnnl_primitive_attr_t attr, mf_dnn_suits suits)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t s = dnnl_matmul_desc_init(&desc, a, b, bias, c);
    return s == dnnl_success ? first_that(pd, &desc, attr, engine, NULL, suits) : s;
}

/* Made for 1,400 random shapes with 2.6.3. An odd window has its taps apart, or one dimension or three. */
const mf_dnn_takes *mf_dnn_taken(void)
{
    static const mf_dnn_takes taken = {.start = MF_DNN_START_KIB << 10,
                                       .product = 26 << 10,
                                       .forward = 66 << 10,
                                       .grad_data = 44 << 10,
                                       .grad_weights = 100 << 10,
                                       .making_product = 117 << 10};
    return &taken;
}

/* Made for 1,600 random shapes with 2.6.3, rows of 4 to 2,048 columns. With AVX-512 descriptions hold those of all inner
 * kernels, one for each number of columns and each way to meet the padding; without it only the code of a weight
 * gradient grows with its row. */
mf_dnn_row mf_dnn_row_of(mf_dnn_row_kind kind)
{
    static const mf_dnn_row rows[MF_DNN_ROW_KINDS] = {
        [MF_DNN_ROW_ONE_TAP] = {125 << 10, 620, 0},   [MF_DNN_ROW_APART] = {96 << 10, 768, 0},
        [MF_DNN_ROW_LONG] = {160 << 10, 380, 0},      [MF_DNN_ROW_FAR] = {160 << 10, 4500, 0},
        [MF_DNN_ROW_FORWARD] = {212 << 10, 2300, 0},  [MF_DNN_ROW_TURNED] = {150 << 10, 5400, 0},
        [MF_DNN_ROW_GRAD_DATA] = {104 << 10, 880, 0}, [MF_DNN_ROW_GRAD_WEIGHTS] = {104 << 10, 1900, 0}};
    const mf_dnn_row plain = {152 << 10, kind == MF_DNN_ROW_GRAD_WEIGHTS ? 2350 : 0, 0};
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core ? rows[kind] : plain;
}
