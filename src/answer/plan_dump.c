/*
 * plan_dump.c: what runs, in order, and where. One line a step:
 *
 *     12  conv            conv2d_1          forward   x float32(32, 112, 112, 64)@4096 ... -> y ...@103219200
 *
 * Names of tensors are those of the graph; "again" marks recomputations, "first" and "last" operations that run in that
 * piece only, "chunk" those of the loop over chunks of the last layer and its loss.
 */
#include "answer/plan_dump.h"

static void put_operand(FILE *f, const mf_graph *g, uint32_t tensor, uint64_t offset)
{
    if (tensor == MF_NONE) {
        fputs(" -", f);
        return;
    }
    const mf_tensor *t = &g->tensors[tensor];
    char shape[96];
    fprintf(f, " %s:%s%s@%llu", t->name ? t->name : "t", mf_dtype_name(t->dtype),
            mf_shape_format(&t->shape, shape, sizeof shape), (unsigned long long)offset);
}

static void put_text(FILE *f, const mf_plan *plan, const mf_phase *phase)
{
    static const char *const words[] = {"forward", "loss", "backward", "update"};
    const mf_graph *g = phase->graph;
    fprintf(f, "# %s: batch %lld, %lld runs, arena %llu bytes (variables end at %llu)\n", mf_phase_name(phase->role),
            (long long)phase->batch, (long long)phase->repeat, (unsigned long long)phase->bytes,
            (unsigned long long)plan->variables_end);
    for (uint32_t i = 0; i < phase->step_count; i++) {
        const mf_step *step = &phase->steps[i];
        const mf_op *op = &g->ops[step->op];
        fprintf(f, "%5u  %-22s %-28s %-8s%s%s%s%s ", i, mf_kind_name(op->kind), g->layers[op->layer].name,
                words[op->phase & 3], step->recomputed ? " again" : "", op->when == MF_FIRST_PIECE ? " first" : "",
                op->when == MF_LAST_PIECE ? " last" : "", op->chunked ? " chunk" : "");
        for (uint32_t k = 0; k < op->in_count; k++)
            put_operand(f, g, op->in[k], step->offsets[k]);
        fputs(" ->", f);
        for (uint32_t k = 0; k < op->out_count; k++)
            put_operand(f, g, op->out[k], step->offsets[op->in_count + k]);
        if (step->workspace_bytes)
            fprintf(f, " workspace %llu@%llu", (unsigned long long)step->workspace_bytes,
                    (unsigned long long)step->workspace_offset);
        fputc('\n', f);
    }
}

/* A name inside double quotes. */
static void put_quoted(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', f);
        fputc(*text, f);
    }
}

static void put_dot(FILE *f, const mf_graph *g)
{
    static const char *const colours[] = {"lightblue", "gold", "lightsalmon", "palegreen"};
    fputs("digraph step {\n  rankdir=TB;\n  node [shape=box, style=filled];\n", f);
    for (uint32_t o = 0; o < g->op_count; o++) {
        const mf_op *op = &g->ops[o];
        fprintf(f, "  o%u [label=\"%s\\n", o, mf_kind_name(op->kind));
        put_quoted(f, g->layers[op->layer].name);
        fprintf(f, "\", fillcolor=%s];\n", colours[op->phase & 3]);
        for (uint32_t k = 0; k < op->in_count; k++) {
            if (op->in[k] == MF_NONE || g->tensors[op->in[k]].producer == MF_NONE)
                continue;
            char shape[96];
            const mf_tensor *t = &g->tensors[op->in[k]];
            fprintf(f, "  o%u -> o%u [label=\"%s\"];\n", t->producer, o,
                    mf_shape_format(&t->shape, shape, sizeof shape));
        }
    }
    fputs("}\n", f);
}

void mf_plan_dump(FILE *file, const mf_plan *plan, bool dot)
{
    for (uint32_t p = 0; p < plan->phase_count; p++)
        if (dot && plan->phases[p].role == MF_PHASE_TRAIN)
            put_dot(file, plan->phases[p].graph);
        else if (!dot)
            put_text(file, plan, &plan->phases[p]);
}
