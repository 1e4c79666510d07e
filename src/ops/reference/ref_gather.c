/* ref_gather.c: rows of a table by number (embeddings), and the table's gradient. */
#include "ops/reference/reference.h"

#include "base/error.h"

#include <string.h>

static memfit_status row_number(const mf_ref_arg *indices, uint64_t i, int64_t rows, int64_t *row, memfit_error *err)
{
    *row = mf_ref_load_int(indices->dtype, indices->data, i);
    if (*row < 0 || *row >= rows)
        return mf_fail(err, MEMFIT_DAMAGED, "index %lld: the embedding has rows 0 to %lld", (long long)*row,
                       (long long)rows - 1);
    return MEMFIT_OK;
}

/* Sums of rows that occur often are kept in double: the whole table. */
uint64_t mf_ref_table_scratch(const mf_graph *graph, const mf_op *op)
{
    return mf_shape_count(&graph->tensors[op->out[0]].shape) * sizeof(double);
}

#define REF_DOUBLE 0
#include "ops/reference/gather_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/gather_body.h"
