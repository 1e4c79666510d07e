/* npy.h: the header of a NumPy array. */
#ifndef MF_DATA_NPY_H
#define MF_DATA_NPY_H

#include "base/tensor.h"

typedef struct mf_npy_head {
    mf_dtype dtype;
    mf_shape shape;
    uint64_t data_at; /* where its elements begin */
    bool fortran, swapped;
} mf_npy_head;

/* `bytes` begin with the whole header. DAMAGED, UNSUPPORTED (elements that are no numbers) begin with `where`. */
memfit_status mf_npy_read_head(const unsigned char *data, uint64_t bytes, const char *where, mf_npy_head *head,
                               memfit_error *err);

#endif
