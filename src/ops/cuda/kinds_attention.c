/* kinds_attention.c: attention and its gradient: on the matrix units where they take it (kernels/attention.cu). */
#include "ops/cuda/kind_shapes.h"

#include "graph/attention.h"

enum { ROWS = 128, MOST_WIDTH = 64 }; /* queries or keys of a block; numbers a head that registers hold */

/* 16 bits, heads in vectors of 16 bytes, all in their place for them. */
static bool fits_tiles(const mf_graph *graph, const mf_op *op, const mf_attention_shape *a)
{
    uint32_t at = op->kind == MF_OP_ATTENTION ? 0 : 1;
    mf_dtype dtype = graph->tensors[op->in[at]].dtype;
    if ((dtype != MF_BF16 && dtype != MF_F16) || a->depth % 8 || a->values % 8 || a->depth > MOST_WIDTH ||
        a->values > MOST_WIDTH || a->depth == 0 || a->values == 0)
        return false;
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        uint32_t t = i < op->in_count ? op->in[i] : op->out[i - op->in_count];
        if (t != MF_NONE && graph->tensors[t].offset % 16)
            return false;
    }
    return true;
}

/* Of wider heads and in float32 the libraries' products are faster than own kernels without matrix units. */
bool cuda_attends(void *ctx, const mf_graph *graph, const mf_op *attention)
{
    (void)ctx;
    mf_attention_shape a;
    return mf_attention_shape_of(graph, attention, &a) && fits_tiles(graph, attention, &a);
}

static void say_masks(cuda_spec *s, const mf_attention_shape *a, uint32_t first)
{
    cuda_say(s, "#define MASKS %u\n", first);
    for (uint32_t i = 0; i < MF_ATTENTION_MASKS; i++) {
        int64_t stride[4];
        if (!has_in(s, first + i))
            continue;
        mf_attention_mask_strides(a, in_shape(s, first + i), stride);
        cuda_say(s, "#define M%u 1\nstatic constexpr idx mask%u[4] = {%lld, %lld, %lld, %lld};\n", i, i,
                 (long long)stride[0], (long long)stride[1], (long long)stride[2], (long long)stride[3]);
    }
}

memfit_status cuda_attention(cuda_spec *s)
{
    mf_attention_shape a;
    bool forward = s->op->kind == MF_OP_ATTENTION;
    mf_attention_shape_of(s->graph, s->op, &a);
    bool tiled = s->block == 256 && fits_tiles(s->graph, s->op, &a);
    s->family = "attention.cu";
    s->slow = !tiled;
    cuda_say(s, "#define TILED %d\nenum : idx { AN = %lld, AH = %lld, AT = %lld, AS = %lld };\n", tiled,
             (long long)a.batch, (long long)a.heads, (long long)a.queries, (long long)a.keys);
    cuda_say(s, "enum { AD = %lld, AE = %lld };\n", (long long)a.depth, (long long)a.values);
    say_masks(s, &a, forward ? 3 : 6);
    uint64_t heads = (uint64_t)(a.batch * a.heads), queries = (uint64_t)a.queries, keys = (uint64_t)a.keys;
    uint64_t of_queries = heads * (tiled ? (queries + ROWS - 1) / ROWS : queries);
    uint64_t of_keys = heads * (tiled ? (keys + ROWS - 1) / ROWS : keys);
    if (forward) {
        cuda_grid(s, "k0", of_queries, 1);
        return MEMFIT_OK;
    }
    cuda_say(s, "typedef %s SUM;\n#define SUMS_AT %llull\n", tiled ? "float" : "double",
             (unsigned long long)cuda_workspace(s, heads * queries * (tiled ? sizeof(float) : sizeof(double))));
    cuda_each(s, "rows", heads * queries);
    if (has_out(s, 0))
        cuda_grid(s, "kq", of_queries, 1);
    if (has_out(s, 1) || has_out(s, 2))
        cuda_grid(s, "kkv", of_keys, 1);
    return MEMFIT_OK;
}
