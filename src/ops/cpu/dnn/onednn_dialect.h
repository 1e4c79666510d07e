/*
 * onednn_dialect.h: where the library's two C interfaces differ, between onednn.c and the file of one major version
 * (onednn_v2.c, onednn_v3.c; the build takes one). 2.x fills plain structures and turns them into primitive
 * descriptors; 3.x has opaque layouts with an owner, and makes primitive descriptors in one call.
 *
 * A layout variable has the library's own type dnnl_memory_desc_t, a structure in 2.x and a handle in 3.x: zeroed
 * first, then made, and dropped by its owner. mf_dnn_layout is what functions take.
 */
#ifndef MF_OPS_ONEDNN_DIALECT_H
#define MF_OPS_ONEDNN_DIALECT_H

#include <oneapi/dnnl/dnnl.h>

#include <stdbool.h>

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t mf_dnn_layout;
#define MF_DNN_LAYOUT(variable) ((mf_dnn_layout)(variable))
#else
typedef const dnnl_memory_desc_t *mf_dnn_layout;
#define MF_DNN_LAYOUT(variable) (&(variable))
#endif

dnnl_status_t mf_dnn_layout_strided(dnnl_memory_desc_t *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                                    const dnnl_dims_t strides);
/* The library chooses. */
dnnl_status_t mf_dnn_layout_any(dnnl_memory_desc_t *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type);
void mf_dnn_layout_drop(dnnl_memory_desc_t *layout);

/* The result times `scale`, in the attributes or among the post-ops; post-ops that clip at zero, and that add to what
 * the destination holds. */
dnnl_status_t mf_dnn_scale(dnnl_primitive_attr_t attr, dnnl_post_ops_t ops, float scale);
dnnl_status_t mf_dnn_relu(dnnl_post_ops_t ops);
dnnl_status_t mf_dnn_sum(dnnl_post_ops_t ops);

/* One convolution in its three directions; `bias` may be NULL. */
typedef struct mf_dnn_conv_desc {
    mf_dnn_layout src, weights, bias, dst;
    dnnl_dims_t strides, dilates, left, right;
} mf_dnn_conv_desc;

/* Does this implementation serve? The functions below take the first that does; with NULL the library's first. */
typedef bool (*mf_dnn_suits)(const_dnnl_primitive_desc_t pd);

dnnl_status_t mf_dnn_desc_forward(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                  dnnl_primitive_attr_t attr, mf_dnn_suits suits);
dnnl_status_t mf_dnn_desc_grad_data(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                    dnnl_primitive_attr_t attr, dnnl_primitive_desc_t forward, mf_dnn_suits suits);
dnnl_status_t mf_dnn_desc_grad_weights(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const mf_dnn_conv_desc *c,
                                       dnnl_primitive_attr_t attr, dnnl_primitive_desc_t forward, mf_dnn_suits suits);
/* What the library takes while it makes a convolution of a kind, from above. It counts in columns of its rows. */
typedef enum {
    MF_DNN_ROW_ONE_TAP,
    MF_DNN_ROW_APART, /* taps apart, no padding */
    MF_DNN_ROW_FAR,   /* padding that taps far from their place see */
    MF_DNN_ROW_LONG,  /* one dimension, more columns than a picture has; all that counts where its column is not 0 */
    MF_DNN_ROW_FORWARD,
    MF_DNN_ROW_TURNED, /* a data gradient as a forward convolution */
    MF_DNN_ROW_GRAD_DATA,
    MF_DNN_ROW_GRAD_WEIGHTS,
    MF_DNN_ROW_KINDS
} mf_dnn_row_kind;
typedef struct mf_dnn_row {
    uint64_t base, column, most; /* bytes; 0: there is no most */
} mf_dnn_row;
mf_dnn_row mf_dnn_row_of(mf_dnn_row_kind kind);

dnnl_status_t mf_dnn_desc_matmul(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, mf_dnn_layout a, mf_dnn_layout b,
                                 mf_dnn_layout bias, mf_dnn_layout c, dnnl_primitive_attr_t attr, mf_dnn_suits suits);

#endif
