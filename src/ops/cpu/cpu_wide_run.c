/*
 * cpu_wide_run.c: an operation on 16-bit operands at work: part by part, each converted, computed and converted back (the
 * picture is in cpu_wide.c).
 */
#include "ops/cpu/cpu_wide.h"

#include <string.h>

typedef struct wide_run {
    cpu_kernel *k;
    const mf_operands *o;
    unsigned char *space;
} wide_run;

static void *address(const wide_run *r, uint32_t i)
{
    return i < r->k->op->in_count ? r->o->in[i] : r->o->out[i - r->k->op->in_count];
}

static bool reads(const cpu_kernel *k, uint32_t i)
{
    return i < k->op->in_count || cpu_adds(k, i - k->op->in_count);
}

/* Between a 16-bit operand and its copy: everything, or `n` units from `first` on. */
static void convert(const wide_run *r, uint32_t i, bool in, int64_t first, int64_t n)
{
    const cpu_wide *w = r->k->wide;
    const wide_operand *o = &w->operands[i];
    const mf_tensor *t = cpu_wide_real(r->k, i);
    bool divided = o->role == PART || o->role == FLAT;
    int64_t outer = divided ? o->outer : 1, run = divided ? n * o->inner : cpu_count(t);
    int64_t step = divided ? w->units * o->inner : 0, from = divided ? first * o->inner : 0;
    uint16_t *narrow = (uint16_t *)address(r, i) + from;
    float *wide = (float *)(r->space + o->at);
    for (int64_t j = 0; j < outer; j++, narrow += step, wide += run)
        if (in)
            r->k->backend->k->cast(t->dtype, narrow, MF_F32, wide, run, cpu_threads(r->k));
        else
            r->k->backend->k->cast(MF_F32, wide, t->dtype, narrow, run, cpu_threads(r->k));
}

/* A sum starts from nothing, from what it is added to, or from the bias in every row. */
static void begin_sum(const wide_run *r, uint32_t i)
{
    cpu_kernel *k = r->k;
    const cpu_wide *w = k->wide;
    float *sum = w->pointers[i];
    if (cpu_adds(k, i - k->op->in_count)) {
        if (w->operands[i].half)
            convert(r, i, true, 0, 0);
        return;
    }
    const mf_tensor *t = cpu_wide_real(k, i);
    if (!w->rows_of_bias) {
        k->backend->k->fill(sum, 0, cpu_count(t), cpu_threads(k));
        return;
    }
    const float *bias = w->operands[2].half ? (const float *)(r->space + w->operands[2].at) : r->o->in[2];
    for (int64_t row = 0; row < t->shape.dim[0]; row++)
        memcpy(sum + row * t->shape.dim[1], bias, (size_t)t->shape.dim[1] * sizeof(float));
}

static void begin(const wide_run *r)
{
    cpu_wide *w = r->k->wide;
    for (uint32_t i = 0; i < w->count; i++) {
        const wide_operand *o = &w->operands[i];
        if (!cpu_wide_real(r->k, i)) {
            w->pointers[i] = NULL;
            continue;
        }
        w->pointers[i] = o->half ? r->space + o->at : address(r, i);
        if (o->role == SUM)
            begin_sum(r, i);
        else if (o->role == WHOLE && o->half && o->owner == i && reads(r->k, i))
            convert(r, i, true, 0, 0);
    }
}

static void begin_part(const wide_run *r, int64_t first, int64_t n)
{
    cpu_wide *w = r->k->wide;
    for (uint32_t i = 0; i < w->count; i++) {
        const wide_operand *o = &w->operands[i];
        const mf_tensor *t = cpu_wide_real(r->k, i);
        if (!t || o->role == WHOLE || o->role == SUM)
            continue;
        if (!o->half)
            w->pointers[i] =
                (unsigned char *)address(r, i) +
                (o->role == BITS ? (uint64_t)first / 8 : (uint64_t)(first * o->inner) * mf_dtype_bytes(t->dtype));
        else if (o->owner == i && reads(r->k, i))
            convert(r, i, true, first, n);
    }
}

static void end(const wide_run *r, bool part, int64_t first, int64_t n)
{
    const cpu_wide *w = r->k->wide;
    for (uint32_t i = r->k->op->in_count; i < w->count; i++) {
        const wide_operand *o = &w->operands[i];
        bool divided = o->role == PART || o->role == FLAT;
        if (cpu_wide_real(r->k, i) && o->half && divided == part)
            convert(r, i, false, first, n);
    }
}

memfit_status cpu_wide_run(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    if (k->wide_norm) {
        cpu_wide_norm_run(k, o);
        return MEMFIT_OK;
    }
    cpu_wide *w = k->wide;
    wide_run r = {k, o, o->workspace};
    mf_operands inner = {w->pointers, w->pointers + k->op->in_count, r.space + w->copies_bytes, o->recomputed};
    mf_run_scalars scalars = *s;
    begin(&r);
    for (int64_t first = 0; first < w->units; first += w->part) {
        bool rest = w->units - first < w->part;
        int64_t n = rest ? w->rest : w->part;
        begin_part(&r, first, n);
        scalars.first_sample = s->first_sample + (cpu_wide_is_divided(w) ? (uint64_t)first : 0);
        memfit_status status = k->backend->base.table->run(w->kernel[rest], &inner, &scalars, 0, err);
        if (status != MEMFIT_OK)
            return status;
        end(&r, true, first, n);
    }
    end(&r, false, 0, 0);
    return MEMFIT_OK;
}
