/*
 * lower_activity.c: penalties on activations: a layer's activity_regularizer, and the layer ActivityRegularization.
 *
 * Keras adds l1 * sum |y| + l2 * sum y^2, divided by the batch size, to the loss for every result y of the layer. Here
 * that is a loss like any other, of y against zeros: the backward pass, pieces and loss scaling need nothing of their
 * own. The squared and the absolute error are means over a sample, so the factor is multiplied by its size.
 */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <string.h>

void mf_activity_note(mf_layer_call *c)
{
    const mf_json *value = mf_json_get(c->config, "activity_regularizer");
    double l1 = 0, l2 = 0;
    if (c->no_penalty)
        return;
    if (strcmp(c->layer->class_name, "ActivityRegularization") == 0) {
        l1 = mf_json_get_number(c->config, "l1", 0);
        l2 = mf_json_get_number(c->config, "l2", 0);
    } else if (!mf_read_regularizer(c, value, &l1, &l2)) {
        return;
    }
    for (uint32_t i = 0; i < c->out_count && mf_build_ok(c->b) && (l1 != 0 || l2 != 0); i++) {
        mf_activity *a = MF_NEW(&c->lo->scratch, mf_activity);
        if (!a) {
            mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory for a penalty on activations");
            return;
        }
        *a = (mf_activity){.next = c->lo->activities, .tensor = c->out[i], .l1 = l1, .l2 = l2};
        c->lo->activities = a;
    }
}

uint32_t mf_activity_tensors(mf_lowering *lo, uint32_t **tensors)
{
    uint32_t count = 0;
    for (const mf_activity *a = lo->activities; a; a = a->next)
        count++;
    *tensors = MF_NEW_ARRAY(&lo->scratch, uint32_t, count + 1);
    if (!*tensors) {
        mf_build_fail(&lo->b, MEMFIT_NO_HOST_MEMORY, "no host memory for penalties on activations");
        return 0;
    }
    count = 0;
    for (const mf_activity *a = lo->activities; a; a = a->next)
        (*tensors)[count++] = a->tensor;
    return count;
}

static void penalty(mf_lowering *lo, uint32_t flat, mf_loss function, double factor)
{
    mf_build *b = &lo->b;
    mf_shape s = mf_g_shape(b, flat);
    if (factor == 0)
        return;
    mf_attr attr = {.loss = {.function = function, .weight = factor * (double)s.dim[1], .axis = 1}};
    uint32_t loss = mf_g_use(b, b->graph->loss_variable);
    uint32_t in[4] = {flat, mf_g_fill(b, mf_g_dtype(b, flat), s, 0), MF_NONE, loss};
    mf_g_op_in_place(b, MF_OP_LOSS, &attr, 4, in, 1, &loss);
}

void mf_activity_losses(mf_lowering *lo)
{
    mf_build *b = &lo->b;
    for (const mf_activity *a = lo->activities; a && mf_build_ok(b); a = a->next) {
        mf_shape s = mf_g_shape(b, a->tensor);
        int64_t samples = s.rank ? s.dim[0] : 1;
        uint32_t x = mf_g_dtype(b, a->tensor) == MF_F64 ? a->tensor : mf_g_cast(b, a->tensor, MF_F32);
        if (samples < 1)
            continue;
        uint32_t flat = mf_g_view(b, x, mf_shape2(samples, (int64_t)mf_shape_count(&s) / samples));
        penalty(lo, flat, MF_LOSS_MAE, a->l1);
        penalty(lo, flat, MF_LOSS_MSE, a->l2);
    }
}
