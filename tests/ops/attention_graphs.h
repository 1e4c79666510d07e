/* attention_graphs.h: attention as layers are lowered: products, selects, a softmax, dropout, and all of it backwards. */
#ifndef MF_TESTS_OPS_ATTENTION_GRAPHS_H
#define MF_TESTS_OPS_ATTENTION_GRAPHS_H

#include "graph/build.h"

typedef struct attention_form {
    mf_dtype dtype;
    int64_t batch, heads, queries, keys, depth, values;
    bool three;       /* of rank 3, one head */
    bool transposed;  /* heads come second by transpositions, as from a projection */
    bool backward[3]; /* gradients of q, k, v */
    uint32_t masks;   /* bits: 1 of keys, 2 of queries, 4 of pairs */
    uint32_t causal;  /* as attr.attention.causal */
    bool zeroed;      /* weights of masked pairs are 0 */
    double rate;
    bool shown; /* the weights are an output, too */
} attention_form;

static inline uint32_t attention_masked(mf_build *b, const attention_form *f, const uint32_t masks[3], uint32_t x,
                                        double otherwise)
{
    for (int i = 0; i < 3; i++)
        if (masks[i] != MF_NONE)
            x = mf_g_keep(b, masks[i], x, otherwise, false);
    return f->causal == 2 ? mf_g_keep(b, MF_NONE, x, otherwise, true) : x;
}

static inline uint32_t attention_moved(mf_build *b, const attention_form *f, uint32_t x)
{
    return f->transposed ? mf_g_transpose(b, x, (uint32_t[]){0, 2, 1, 3}) : x;
}

static inline mf_shape attention_rows(const attention_form *f, int64_t steps, int64_t width)
{
    if (f->three)
        return mf_shape_make(3, (int64_t[]){f->batch, steps, width});
    return f->transposed ? mf_shape_make(4, (int64_t[]){f->batch, steps, f->heads, width})
                         : mf_shape_make(4, (int64_t[]){f->batch, f->heads, steps, width});
}

/* Inputs: q, k, v, dy, then masks. Outputs: y, [weights], gradients. NULL on failure. */
static inline mf_graph *attention_graph(const memfit_host *host, const attention_form *f, memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    mf_build_begin(&b, host, err);
    uint32_t in[3], masks[3] = {MF_NONE, MF_NONE, MF_NONE}, roots[16], count = 0;
    const char *const names[] = {"q", "k", "v", "dy"};
    for (int i = 0; i < 3; i++)
        roots[count++] = in[i] = mf_g_input(&b, names[i], f->dtype,
                                            attention_rows(f, i ? f->keys : f->queries, i == 2 ? f->values : f->depth));
    uint32_t dy = roots[count++] = mf_g_input(&b, names[3], f->dtype, attention_rows(f, f->queries, f->values));
    for (int i = 0; i < 3; i++)
        if (f->masks >> i & 1) {
            int64_t t = i == 0 ? 1 : f->queries, s = i == 1 ? 1 : f->keys;
            masks[i] = roots[count++] = mf_g_input(&b, "mask", MF_U8,
                                                   f->three ? mf_shape_make(3, (int64_t[]){f->batch, t, s})
                                                            : mf_shape_make(4, (int64_t[]){f->batch, 1, t, s}));
        }
    uint32_t first = count, q = attention_moved(&b, f, in[0]), k = attention_moved(&b, f, in[1]),
             v = attention_moved(&b, f, in[2]);
    uint32_t p = mf_g_matmul(&b, q, k, MF_NONE, false, true, 1 / (1.0 + (double)f->depth / 4));
    p = attention_masked(&b, f, masks, p, f->dtype == MF_F16 ? -3e4 : -1e9);
    p = f->causal == 1 ? mf_g_softmax_causal(&b, p) : mf_g_softmax(&b, p, f->three ? 2 : 3, false);
    if (f->zeroed)
        p = attention_masked(&b, f, masks, p, 0);
    p = mf_g_dropout(&b, p, f->rate, 5, 0);
    uint32_t y = attention_moved(&b, f, mf_g_matmul(&b, p, v, MF_NONE, false, false, 1));
    roots[count++] = y;
    if (f->shown)
        roots[count++] = p;
    uint32_t wanted[3], grads[3], n = 0;
    for (int i = 0; i < 3; i++)
        if (f->backward[i])
            wanted[n++] = in[i];
    if (n)
        mf_g_backward(&b, 1, &y, &dy, n, wanted, grads);
    for (uint32_t i = 0; i < n; i++)
        roots[count++] = grads[i];
    if (mf_build_end_keeping(&b, count, roots, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, count - first);
    if (!g->outputs) {
        mf_graph_destroy(g);
        return NULL;
    }
    g->output_count = count - first;
    for (uint32_t i = first; i < count; i++)
        g->outputs[i - first] = roots[i];
    g->batch = f->batch;
    return g;
}

#endif
