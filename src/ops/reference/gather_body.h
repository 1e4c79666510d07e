/* gather_body.h: see ref_gather.c. */
#include "ops/reference/real.h"

KERNEL(gather)
{
    const mf_ref_arg *table = &call->in[0], *indices = &call->in[1];
    int64_t rows = table->shape->dim[0], width = mf_ref_span(table->shape, 1, table->shape->rank), row;
    for (uint64_t i = 0; i < indices->count; i++) {
        memfit_status status = row_number(indices, i, rows, &row, err);
        if (status)
            return status;
        memcpy((REAL *)call->out[0].data + i * (uint64_t)width, (const REAL *)table->data + row * width,
               (uint64_t)width * sizeof(REAL));
    }
    return MEMFIT_OK;
}

KERNEL(gather_grad)
{
    const mf_ref_arg *indices = &call->in[0], *table = &call->out[0];
    int64_t rows = table->shape->dim[0], width = mf_ref_span(table->shape, 1, table->shape->rank), row;
    const REAL *dy = call->in[1].data;
    memset(call->scratch, 0, table->count * sizeof(double));
    for (uint64_t i = 0; i < indices->count; i++) {
        memfit_status status = row_number(indices, i, rows, &row, err);
        if (status)
            return status;
        for (int64_t j = 0; j < width; j++)
            call->scratch[row * width + j] += (double)dy[(int64_t)i * width + j];
    }
    for (uint64_t i = 0; i < table->count; i++)
        ((REAL *)table->data)[i] = (REAL)call->scratch[i];
    return MEMFIT_OK;
}
