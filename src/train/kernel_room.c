/*
 * kernel_room.c: the limit while kernels are made. How much the library takes for one is not known before; so room for it
 * is asked for from above, and what those so far took says what all will take.
 */
#include "train/trainer.h"

#include "ops/cpu/dnn/onednn.h"

/* What making the next kernel may take, with what the library tries and drops on the way. */
static uint64_t next_kernel_bytes(const mf_trainer *t)
{
    const mf_dnn_takes *taken = mf_dnn_taken();
    uint64_t at = t->kernels_made;
    for (uint32_t p = 0; p < t->plan->phase_count; at -= t->plan->phases[p++].step_count) {
        const mf_phase *phase = &t->plan->phases[p];
        if (at >= phase->step_count)
            continue;
        const mf_op *op = &phase->graph->ops[phase->steps[at].op];
        const mf_window *w = &op->attr.window;
        switch (op->kind) {
        case MF_OP_CONV:
        case MF_OP_CONV_GRAD_DATA:
        case MF_OP_CONV_GRAD_WEIGHTS:
            return w->dims != 2 || w->dilation[0] > 1 || w->dilation[1] > 1 ? taken->making_odd_window
                                                                            : taken->making_window;
        case MF_OP_LSTM_GRAD:
        case MF_OP_GRU_GRAD:
        case MF_OP_SIMPLE_RNN_GRAD:
            return taken->product + taken->making_product;
        case MF_OP_MATMUL:
        case MF_OP_LSTM:
        case MF_OP_GRU:
        case MF_OP_SIMPLE_RNN:
            return taken->making_product;
        default:
            return MF_KERNEL_BYTES / 22;
        }
    }
    return 0;
}

/* Kernels alone, before any page of the arena is there, can be more than the limit. Asked before each one is made; those
 * that were tried and not taken, which the library's cache still holds, go first. */
bool mf_trainer_is_full(void *ctx)
{
    mf_trainer *t = ctx;
    if (!t->footprint->host)
        return false;
    const uint64_t spare = next_kernel_bytes(t) + t->footprint->error();
    uint64_t held = t->footprint->sample(t->device), all = 0;
    t->kernels_made++;
    if (held + spare > t->limit_asked) {
        mf_dnn_cache(false);
        t->footprint->trim();
        mf_dnn_cache(true);
        held = t->footprint->sample(t->device);
    }
    if (held + spare <= t->limit_asked) {
        t->kernels_peak = held + spare > t->kernels_peak ? held + spare : t->kernels_peak;
        return false;
    }
    for (uint32_t p = 0; p < t->plan->phase_count; p++)
        all += t->plan->phases[p].step_count;
    double each = held > t->kernels_base ? (double)(held - t->kernels_base) / (double)t->kernels_made : 0;
    t->kernels_need = t->kernels_base + (uint64_t)(each * (double)all);
    t->kernels_need += t->plan->arena_bytes > MF_KERNEL_BYTES ? t->plan->arena_bytes : MF_KERNEL_BYTES;
    return true;
}
