/*
 * shape_rules.c: what shape rules are written with. One rule serves building and checking: outputs that are not known
 * yet are filled, those that are known must agree.
 */
#include "graph/kinds/shape_rules.h"

#include "graph/group.h"

#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

const mf_tensor *mf_rule_in(const mf_typing *t, uint32_t i)
{
    if (i >= t->op->in_count || t->op->in[i] == MF_NONE)
        return NULL;
    return &t->graph->tensors[t->op->in[i]];
}

memfit_status mf_rule_bad(const mf_typing *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mf_vfail(t->err, MEMFIT_INVALID, format, args);
    va_end(args);
    const char *layer = t->op->layer < t->graph->layer_count ? t->graph->layers[t->op->layer].name : "?";
    return mf_error_prefix(t->err, MEMFIT_INVALID, "layer '%s': %s", layer, mf_kind_name(t->op->kind));
}

memfit_status mf_rule_give(mf_typing *t, uint32_t i, mf_dtype dtype, const mf_shape *shape)
{
    if (i >= t->op->out_count || t->out[i].absent)
        return MEMFIT_OK;
    mf_typed *out = &t->out[i];
    if (out->shape.rank == MF_NONE) {
        if (mf_shape_count(shape) == UINT64_MAX)
            return mf_rule_bad(t, "the result has too many elements");
        *out = (mf_typed){.dtype = dtype, .shape = *shape};
        return MEMFIT_OK;
    }
    if (out->dtype != dtype || !mf_shape_equal(&out->shape, shape)) {
        char a[128], b[128];
        return mf_rule_bad(t, "output %u is %s %s, expected %s %s", i, mf_dtype_name(out->dtype),
                           mf_shape_format(&out->shape, a, sizeof a), mf_dtype_name(dtype),
                           mf_shape_format(shape, b, sizeof b));
    }
    return MEMFIT_OK;
}

memfit_status mf_rule_need(const mf_typing *t, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!mf_rule_in(t, i))
            return mf_rule_bad(t, "operand %u is missing", i);
    return MEMFIT_OK;
}

bool mf_rule_given(const mf_typing *t)
{
    return t->out[0].shape.rank != MF_NONE;
}

mf_dtype mf_rule_statistic(mf_dtype dtype)
{
    return dtype == MF_F64 ? MF_F64 : MF_F32;
}

/* A group's operands are its inner graph's first tensors. */
memfit_status mf_shape_group(mf_typing *t)
{
    const mf_group *group = t->op->attr.group;
    uint32_t operands = t->op->in_count + t->op->out_count;
    if (!group || group->inner.op_count == 0 || group->inner.tensor_count < operands)
        return mf_rule_bad(t, "it has no members");
    for (uint32_t i = 0; i < operands; i++) {
        const mf_tensor *x = &t->graph->tensors[t->op->in[i]], *y = &group->inner.tensors[i];
        if (x->dtype != y->dtype || !mf_shape_equal(&x->shape, &y->shape))
            return mf_rule_bad(t, "operand %u is not that of its members", i);
    }
    return MEMFIT_OK;
}
