/* lower_mask.c: masks: which goes with which tensor, and how layers of several inputs join them. */
#include "model/lower/lower_inner.h"

#include "base/error.h"

void mf_masks_none(uint32_t masks[8])
{
    for (int i = 0; i < 8; i++)
        masks[i] = MF_NONE;
}

uint32_t mf_mask_truth(mf_build *b, uint32_t x)
{
    if (x == MF_NONE || mf_g_dtype(b, x) == MF_U8)
        return x;
    return mf_g_compare(b, MF_NOT_EQUAL, x, MF_NONE, 0);
}

uint32_t mf_mask_merged(mf_layer_call *c)
{
    uint32_t all = MF_NONE;
    for (uint32_t i = 0; i < c->in_count; i++) {
        uint32_t mask = mf_mask_truth(c->b, c->in_masks[i]);
        if (mask == MF_NONE)
            return MF_NONE;
        all = i && all != mask ? mf_g_binary(c->b, MF_MAX, all, mask) : mask;
    }
    return all;
}

uint32_t mf_mask_expanded(mf_layer_call *c, uint32_t mask, uint32_t rank)
{
    mf_shape s = mf_g_shape(c->b, mask);
    if (rank > MF_MOST_DIMS)
        return mask;
    while (s.rank < rank)
        s.dim[s.rank++] = 1;
    return mf_g_view(c->b, mask, s);
}

/* The mask of input i, one axis shorter than it; all ones where it has none. */
static uint32_t mask_for_concat(mf_layer_call *c, uint32_t i)
{
    mf_shape x = mf_g_shape(c->b, c->in[i]);
    uint32_t mask = mf_mask_truth(c->b, c->in_masks[i]);
    x.rank = x.rank ? x.rank - 1 : 0;
    if (mask == MF_NONE)
        return mf_g_fill(c->b, MF_U8, x, 1);
    mf_shape s = mf_g_shape(c->b, mask);
    return mf_shape_equal(&s, &x) ? mask
                                  : mf_lower_unsupported(c, "the mask of an input has another shape than its steps");
}

uint32_t mf_mask_concatenated(mf_layer_call *c, uint32_t axis)
{
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, masked = 0;
    for (uint32_t i = 0; i < c->in_count; i++)
        masked += c->in_masks[i] != MF_NONE;
    if (!masked || rank < 2)
        return MF_NONE;
    if (axis + 1 == rank) /* features side by side: a step counts where any part does, and one without a mask does */
        return masked == c->in_count ? mf_mask_merged(c) : MF_NONE;
    uint32_t *masks = MF_NEW_ARRAY(&c->lo->scratch, uint32_t, c->in_count + 1);
    if (!masks)
        return mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory to build the step graph");
    for (uint32_t i = 0; i < c->in_count; i++)
        masks[i] = mask_for_concat(c, i);
    return mf_build_ok(c->b) ? mf_g_concat(c->b, c->in_count, masks, axis) : MF_NONE;
}
