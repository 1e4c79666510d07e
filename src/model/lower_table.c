/* lower_table.c: the one table of layer classes. Adding a class is one row and one function; docs/layers.md lists it.
 */
#include "model/lower_inner.h"

#include <string.h>

#define PASS MF_CLASS_PASSES_MASK
#define ANY  MF_CLASS_KEEPS_TYPES

static const mf_class_row classes[] = {
    {"InputLayer", mf_lower_input, ANY, "a feed of the step"},
    {"Dense", mf_lower_dense, PASS, "matmul on a view of rank 2"},
    {"Embedding", mf_lower_embedding, ANY, "gather; mask_zero makes a mask"},
    {"Masking", mf_lower_masking, 0, "makes a mask"},
    {"Identity", mf_lower_identity, PASS | ANY, "nothing"},
    {"Activation", mf_lower_activation_layer, PASS, "unary, softmax"},
    {"ReLU", mf_lower_relu, PASS, "unary"},
    {"LeakyReLU", mf_lower_leaky_relu, PASS, "unary"},
    {"ELU", mf_lower_elu, PASS, "unary"},
    {"PReLU", mf_lower_prelu, PASS, "prelu"},
    {"ThresholdedReLU", mf_lower_thresholded_relu, PASS, "unary"},
    {"Softmax", mf_lower_softmax, PASS, "softmax over one axis"},
    {"Conv1D", mf_lower_conv, 0, "conv"},
    {"Conv2D", mf_lower_conv, 0, "conv"},
    {"Conv3D", mf_lower_conv, 0, "conv"},
    {"DepthwiseConv1D", mf_lower_depthwise_conv, 0, "grouped conv on a view of the kernel"},
    {"DepthwiseConv2D", mf_lower_depthwise_conv, 0, "grouped conv on a view of the kernel"},
    {"SeparableConv1D", mf_lower_separable_conv, 0, "two convs"},
    {"SeparableConv2D", mf_lower_separable_conv, 0, "two convs"},
    {"Conv1DTranspose", mf_lower_conv_transpose, 0, "conv_grad_data with bias"},
    {"Conv2DTranspose", mf_lower_conv_transpose, 0, "conv_grad_data with bias"},
    {"Conv3DTranspose", mf_lower_conv_transpose, 0, "conv_grad_data with bias"},
    {"MaxPooling1D", mf_lower_max_pool, 0, "pool_max"},
    {"MaxPooling2D", mf_lower_max_pool, 0, "pool_max"},
    {"MaxPooling3D", mf_lower_max_pool, 0, "pool_max"},
    {"AveragePooling1D", mf_lower_average_pool, 0, "pool_avg"},
    {"AveragePooling2D", mf_lower_average_pool, 0, "pool_avg"},
    {"AveragePooling3D", mf_lower_average_pool, 0, "pool_avg"},
    {"GlobalAveragePooling1D", mf_lower_global_average, 0, "reduce mean"},
    {"GlobalAveragePooling2D", mf_lower_global_average, 0, "reduce mean"},
    {"GlobalAveragePooling3D", mf_lower_global_average, 0, "reduce mean"},
    {"GlobalMaxPooling1D", mf_lower_global_max, 0, "reduce max"},
    {"GlobalMaxPooling2D", mf_lower_global_max, 0, "reduce max"},
    {"GlobalMaxPooling3D", mf_lower_global_max, 0, "reduce max"},
    {"BatchNormalization", mf_lower_batch_norm, PASS, "batch_norm in float32; frozen: batch_norm_infer"},
    {"LayerNormalization", mf_lower_layer_norm, PASS, "layer_norm in float32"},
    {"RMSNormalization", mf_lower_layer_norm, PASS, "layer_norm without mean"},
    {"GroupNormalization", mf_lower_group_norm, PASS, "layer_norm with groups"},
    {"UnitNormalization", mf_lower_unit_norm, PASS, "square, reduce, rsqrt, multiply"},
    {"Dropout", mf_lower_dropout, PASS, "dropout when training"},
    {"SpatialDropout1D", mf_lower_spatial_dropout, PASS, "dropout of whole channels"},
    {"SpatialDropout2D", mf_lower_spatial_dropout, PASS, "dropout of whole channels"},
    {"SpatialDropout3D", mf_lower_spatial_dropout, PASS, "dropout of whole channels"},
    {"GaussianNoise", mf_lower_gaussian_noise, PASS, "random, add"},
    {"GaussianDropout", mf_lower_gaussian_dropout, PASS, "random, multiply"},
    {"AlphaDropout", mf_lower_alpha_dropout, PASS, "random, multiply, add"},
    {"Flatten", mf_lower_flatten, ANY, "view"},
    {"Reshape", mf_lower_reshape, ANY, "view"},
    {"Permute", mf_lower_permute, ANY, "transpose"},
    {"RepeatVector", mf_lower_repeat_vector, ANY, "broadcast"},
    {"ZeroPadding1D", mf_lower_zero_padding, ANY, "pad"},
    {"ZeroPadding2D", mf_lower_zero_padding, ANY, "pad"},
    {"ZeroPadding3D", mf_lower_zero_padding, ANY, "pad"},
    {"Cropping1D", mf_lower_cropping, ANY, "slice"},
    {"Cropping2D", mf_lower_cropping, ANY, "slice"},
    {"Cropping3D", mf_lower_cropping, ANY, "slice"},
    {"UpSampling1D", mf_lower_up_sampling, 0, "broadcast between views"},
    {"UpSampling2D", mf_lower_up_sampling, 0, "resize"},
    {"UpSampling3D", mf_lower_up_sampling, 0, "broadcast between views"},
    {"Add", mf_lower_add, PASS, "binary, or sum_n"},
    {"Subtract", mf_lower_subtract, PASS, "binary"},
    {"Multiply", mf_lower_multiply, PASS, "binary"},
    {"Average", mf_lower_average, PASS, "sum, scaled"},
    {"Maximum", mf_lower_maximum, PASS, "binary"},
    {"Minimum", mf_lower_minimum, PASS, "binary"},
    {"Concatenate", mf_lower_concatenate, PASS | ANY, "concat"},
    {"Dot", mf_lower_dot, 0, "batched matmul"},
};

const mf_class_row *mf_class_table(uint32_t *count)
{
    *count = sizeof classes / sizeof *classes;
    return classes;
}

const mf_class_row *mf_class_find(const char *name)
{
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i].name, name) == 0)
            return &classes[i];
    return NULL;
}
