/* attention_body.h: see ref_attention.c. */
#include "ops/reference/real.h"

static double FN(attention_score)(const attention_call *a, const mf_attr *attr, const REAL *q, const REAL *k,
                                  bool masked)
{
    double dot = 0;
    if (masked)
        return attr->attention.masked;
    for (int64_t d = 0; d < a->s.depth; d++)
        dot += (double)q[d] * (double)k[d];
    return attr->attention.scale * dot;
}

KERNEL(attention)
{
    (void)err;
    const mf_attr *attr = &call->op->attr;
    bool first = attr->attention.steps_first;
    attention_call a;
    attention_begin(&a, call, 3);
    double *score = call->scratch, *sum = score + a.s.keys;
    for (int64_t n = 0; n < a.s.batch; n++) {
        mf_draw_begin(&a.draw, call->scalars, attr->attention.key, call->scalars->first_sample + (uint64_t)n);
        for (int64_t row = 0; row < a.s.heads * a.s.queries; row++) {
            int64_t h = row / a.s.queries, t = row % a.s.queries, seen = attention_visible(&a, attr, t);
            const REAL *q =
                (const REAL *)call->in[0].data + mf_attention_row(&a.s, first, a.s.queries, a.s.depth, n, h, t);
            double most = -INFINITY, all = 0;
            bool any = false;
            for (int64_t s = 0; s < seen; s++) {
                bool masked = attention_masked(&a, attr, n, h, t, s);
                any |= !masked;
                const REAL *k =
                    (const REAL *)call->in[1].data + mf_attention_row(&a.s, first, a.s.keys, a.s.depth, n, h, s);
                score[s] = FN(attention_score)(&a, attr, q, k, masked);
                most = fmax(most, score[s]);
            }
            for (int64_t s = 0; s < seen; s++)
                all += exp(score[s] - most);
            for (int64_t e = 0; e < a.s.values; e++)
                sum[e] = 0;
            for (int64_t s = 0; s < seen; s++) {
                double w = exp(score[s] - most) / all * attention_kept(&a, attr, h, t, s);
                if (attr->attention.zeroed && attention_masked(&a, attr, n, h, t, s))
                    continue;
                const REAL *v =
                    (const REAL *)call->in[2].data + mf_attention_row(&a.s, first, a.s.keys, a.s.values, n, h, s);
                for (int64_t e = 0; e < a.s.values; e++)
                    sum[e] += w * (double)v[e];
            }
            REAL *y = (REAL *)call->out[0].data + mf_attention_row(&a.s, first, a.s.queries, a.s.values, n, h, t);
            for (int64_t e = 0; e < a.s.values; e++)
                y[e] = (REAL)sum[e];
            if (call->out[1].data)
                ((REAL *)call->out[1].data)[n * a.s.heads * a.s.queries + row] =
                    any ? (REAL)(most + log(all)) : (REAL)INFINITY;
        }
    }
    return MEMFIT_OK;
}

/* One query's part: its own gradient into `dq`, what keys and values get is added to `dk` and `dv` (all in double). */
static void FN(attention_back_row)(attention_call *a, const mf_ref_call *call, int64_t n, int64_t h, int64_t t,
                                   double *dq, double *dk, double *dv)
{
    const mf_attr *attr = &call->op->attr;
    bool first = attr->attention.steps_first;
    int64_t y_at = mf_attention_row(&a->s, first, a->s.queries, a->s.values, n, h, t);
    const REAL *dy = (const REAL *)call->in[0].data + y_at, *y = (const REAL *)call->in[4].data + y_at;
    const REAL *q = (const REAL *)call->in[1].data + mf_attention_row(&a->s, first, a->s.queries, a->s.depth, n, h, t);
    double lse = (double)((const REAL *)call->in[5].data)[(n * a->s.heads + h) * a->s.queries + t], all = 0;
    for (int64_t e = 0; e < a->s.values; e++)
        all += (double)dy[e] * (double)y[e];
    for (int64_t d = 0; d < a->s.depth; d++)
        dq[d] = 0;
    int64_t seen = attention_visible(a, attr, t);
    for (int64_t s = 0; s < seen; s++) {
        bool masked = attention_masked(a, attr, n, h, t, s);
        double kept = attr->attention.zeroed && masked ? 0 : attention_kept(a, attr, h, t, s), dw = 0;
        const REAL *k = (const REAL *)call->in[2].data + mf_attention_row(&a->s, first, a->s.keys, a->s.depth, n, h, s);
        const REAL *v =
            (const REAL *)call->in[3].data + mf_attention_row(&a->s, first, a->s.keys, a->s.values, n, h, s);
        double p = isinf(lse) ? 1 / (double)seen : exp(FN(attention_score)(a, attr, q, k, masked) - lse);
        for (int64_t e = 0; e < a->s.values; e++) {
            dw += (double)dy[e] * (double)v[e];
            dv[s * a->s.values + e] += p * kept * (double)dy[e];
        }
        double ds = masked ? 0 : attr->attention.scale * p * (dw * kept - all);
        for (int64_t d = 0; d < a->s.depth; d++) {
            dq[d] += ds * (double)k[d];
            dk[s * a->s.depth + d] += ds * (double)q[d];
        }
    }
}

KERNEL(attention_grad)
{
    (void)err;
    const mf_attr *attr = &call->op->attr;
    bool first = attr->attention.steps_first;
    attention_call a;
    attention_begin(&a, call, 6);
    const mf_attention_shape *s = &a.s;
    double *dq = call->scratch, *dk = dq + s->depth, *dv = dk + s->keys * s->depth;
    for (int64_t n = 0; n < s->batch; n++) {
        mf_draw_begin(&a.draw, call->scalars, attr->attention.key, call->scalars->first_sample + (uint64_t)n);
        for (int64_t h = 0; h < s->heads; h++) {
            for (int64_t i = 0; i < s->keys * (s->depth + s->values); i++)
                dk[i] = 0;
            for (int64_t t = 0; t < s->queries; t++) {
                FN(attention_back_row)(&a, call, n, h, t, dq, dk, dv);
                REAL *to = call->out[0].data;
                for (int64_t d = 0; to && d < s->depth; d++)
                    to[mf_attention_row(s, first, s->queries, s->depth, n, h, t) + d] = (REAL)dq[d];
            }
            for (int64_t k = 0; k < s->keys; k++) {
                for (int64_t d = 0; call->out[1].data && d < s->depth; d++)
                    ((REAL *)call->out[1].data)[mf_attention_row(s, first, s->keys, s->depth, n, h, k) + d] =
                        (REAL)dk[k * s->depth + d];
                for (int64_t e = 0; call->out[2].data && e < s->values; e++)
                    ((REAL *)call->out[2].data)[mf_attention_row(s, first, s->keys, s->values, n, h, k) + e] =
                        (REAL)dv[k * s->values + e];
            }
        }
    }
    return MEMFIT_OK;
}
