/* many.c: see many.h. */
#include "ops/cuda/many.h"

#include <string.h>

_Static_assert(sizeof(cuda_many_tensor) == 48 && sizeof(cuda_many_args) <= 4096, "an argument of 4 KiB at most");

static bool is_plain(const mf_graph *graph, uint32_t id, uint64_t elements, bool narrow)
{
    if (id == MF_NONE)
        return false;
    const mf_tensor *t = &graph->tensors[id];
    bool type = t->dtype == MF_F32 || (narrow && (t->dtype == MF_BF16 || t->dtype == MF_F16));
    return type && t->offset % 16 == 0 && mf_shape_count(&t->shape) == elements;
}

/* SGD or Adam, variables in float32. */
static bool takes_update(const mf_graph *graph, const mf_op *op, uint64_t elements)
{
    const mf_update_attr *a = &op->attr.update;
    uint32_t slots = op->out_count - 1;
    bool good =
        a->optimizer == MF_OPTIMIZER_SGD
            ? slots <= 1
            : (a->optimizer == MF_OPTIMIZER_ADAM || a->optimizer == MF_OPTIMIZER_ADAMW) && slots == 2 && !a->amsgrad;
    good = good && op->in_count >= 2 + slots && is_plain(graph, op->in[0], elements, false) &&
           is_plain(graph, op->in[1], elements, true) && op->out[0] == op->in[0];
    for (uint32_t i = 0; i < slots && good; i++)
        good = is_plain(graph, op->in[2 + i], elements, false) && op->out[1 + i] == op->in[2 + i];
    return good;
}

bool cuda_many_takes(const mf_graph *graph, const mf_op *op)
{
    if ((op->kind != MF_OP_UPDATE && op->kind != MF_OP_MOVING_AVERAGE && op->kind != MF_OP_CAST) ||
        op->in[0] == MF_NONE || op->out[0] == MF_NONE || op->accumulate)
        return false;
    uint64_t elements = mf_shape_count(&graph->tensors[op->in[0]].shape);
    if (elements == 0 || elements > 1 << 30)
        return false;
    if (op->kind == MF_OP_UPDATE)
        return takes_update(graph, op, elements);
    if (op->kind == MF_OP_MOVING_AVERAGE)
        return is_plain(graph, op->in[0], elements, false) && is_plain(graph, op->in[1], elements, false) &&
               op->out[0] == op->in[1];
    return graph->storages[graph->tensors[op->in[0]].storage].variable != MF_NONE &&
           is_plain(graph, op->in[0], elements, true) && is_plain(graph, op->out[0], elements, true);
}

uint32_t cuda_many_blocks(uint64_t elements, unsigned block)
{
    uint64_t each = (uint64_t)block * CUDA_MANY_EACH;
    return (uint32_t)((elements + each - 1) / each);
}

void cuda_many_spec(cuda_spec *s)
{
    uint32_t slots = s->op->out_count - 1;
    s->family = "many.cu";
    cuda_say(s, "static constexpr mf_shape domain = {1, {1}};\n#define SLOTS %u\n#define FLAG %u\n", slots, 2 + slots);
    cuda_grid(s, "k0", cuda_many_blocks(mf_shape_count(&s->graph->tensors[s->op->in[0]].shape), s->block), 1);
}

void cuda_many_tensor_of(const mf_op *op, uint64_t elements, const mf_operands *o, cuda_many_tensor *t)
{
    *t = (cuda_many_tensor){.elements = (int32_t)elements};
    uint32_t slots = op->out_count - 1;
    switch (op->kind) {
    case MF_OP_UPDATE:
        for (uint32_t i = 0; i < 2 + slots; i++)
            t->at[i] = o->in[i];
        t->at[4] = op->in_count > 2 + slots ? o->in[2 + slots] : NULL;
        break;
    case MF_OP_MOVING_AVERAGE:
        t->at[0] = o->in[0];
        t->at[1] = o->in[1];
        break;
    default:
        t->at[0] = o->in[0];
        t->at[1] = o->out[0];
    }
}
