/*
 * forward.c: evaluate and predict, in planned constant memory: one phase without gradients, run batch by batch over the
 * data; predictions go to the file piece by piece.
 */
#include "train/run.h"

#include "base/error.h"
#include "base/os.h"
#include "model/initialize.h"
#include "train/results.h"
#include "train/train_state.h"

#include <errno.h>
#include <string.h>

static memfit_status walk_data(mf_run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    t->state.seen_sum = t->state.seen_weight = 0;
    memfit_status begun = mf_results_put(t, err);
    if (begun == MEMFIT_OK)
        begun = mf_step_clock_epoch(&r->steps, err);
    if (begun != MEMFIT_OK)
        return begun;
    for (int64_t at = 0; at < t->train_samples;) {
        int64_t left = t->train_samples - at, batch = t->batch, count = left < batch ? left : batch;
        mf_run_clock clock = mf_run_clock_start(r);
        memfit_status status = mf_trainer_batch(t, false, at, count, err);
        if (status == MEMFIT_INTERRUPTED)
            return mf_fail(err, status, "stopped after %lld of %lld samples%s", (long long)at,
                           (long long)t->train_samples, t->options->out ? ", nothing is written" : "");
        if (status != MEMFIT_OK)
            return status;
        mf_run_clock_stop(r, clock, count);
        status = mf_run_clock_read(r, false, err);
        if (status != MEMFIT_OK)
            return status;
        at += count;
        uint64_t now = mf_os_now_us();
        if (t->footprint->host || now - r->last_sample_us >= t->footprint->every_us) {
            mf_trainer_sample(t);
            r->last_sample_us = now;
        }
    }
    memfit_status status = mf_results_get(t, err);
    if (status == MEMFIT_OK)
        status = mf_run_clock_read(r, true, err);
    int64_t batch = t->batch;
    t->state.steps = (uint64_t)((t->train_samples + batch - 1) / batch);
    t->state.loss_sum = t->state.seen_sum;
    t->state.loss_weight = (double)t->train_samples;
    mf_run_gather(r, r->values, true);
    return status;
}

/* *whole: all samples went through, whatever the status says. */
static memfit_status forward_only(const memfit_train_options *options, mf_mode mode, memfit_train_result *result,
                                  memfit_status (*begin)(void *ctx, mf_trainer *t, memfit_error *err),
                                  memfit_status (*after_piece)(void *ctx, uint32_t phase, memfit_error *err), void *ctx,
                                  bool *whole, memfit_error *err)
{
    mf_run *r;
    memfit_status status = mf_run_create(options, &r, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_run_start(r, options, mode, err);
    if (status == MEMFIT_OK && begin)
        status = begin(ctx, &r->trainer, err);
    if (status == MEMFIT_OK) {
        mf_run_in_steps(r, true);
        uint64_t before = options->allocation_count ? options->allocation_count(options->ctx) : 0;
        mf_trainer_clear_metrics(&r->trainer);
        r->trainer.after_piece = after_piece;
        r->trainer.after_ctx = ctx;
        status = walk_data(r, err);
        uint64_t after = options->allocation_count ? options->allocation_count(options->ctx) : 0;
        mf_run_in_steps(r, false);
        *whole = status == MEMFIT_OK;
        if (status == MEMFIT_OK)
            status = mf_run_kept_limit(r, err);
        if (status == MEMFIT_OK) {
            mf_run_result(r, result);
            if (options->allocation_count)
                result->allocations_in_steps = (int64_t)(after - before);
        }
    }
    mf_run_destroy(r, options->host);
    return status;
}

static memfit_status evaluate(const memfit_train_options *options, memfit_train_result *result, memfit_error *err)
{
    bool whole;
    return forward_only(options, MF_MODE_EVALUATE, result, NULL, NULL, NULL, &whole, err);
}

memfit_status memfit_evaluate(const memfit_train_options *given, memfit_train_result *result, memfit_error *err)
{
    return mf_run_call(given, result, evaluate, err);
}

/* One file for each output. */
typedef struct prediction {
    mf_trainer *trainer;
    mf_outfile *out;
    uint32_t count, open;
} prediction;

/* NumPy's name of a type. It has none for bfloat16: those are written as float32, which holds all their values. */
static const char *npy_type(mf_dtype dtype)
{
    switch (dtype) {
    case MF_F16:
        return "<f2";
    case MF_F64:
        return "<f8";
    case MF_I32:
        return "<i4";
    case MF_I64:
        return "<i8";
    case MF_U8:
        return "|u1";
    case MF_BOOL:
        return "|b1";
    case MF_F32:
    case MF_BF16:
        return "<f4";
    default:
        return NULL;
    }
}

/* The first output goes to the file asked for; output NAME of several to FILE.NAME.npy, where that was FILE.npy. */
static memfit_status path_of(const mf_trainer *t, uint32_t output, char *path, size_t room, memfit_error *err)
{
    const char *out = t->options->out, *dot = strrchr(out, '.');
    const mf_model *m = t->model;
    const char *name = output < m->output_count ? m->layers[m->outputs[output].layer].name : "output";
    size_t stem = dot && !strchr(dot, '/') ? (size_t)(dot - out) : strlen(out);
    bool again = false; /* one layer may give several outputs */
    for (uint32_t i = 0; i < output && output < m->output_count; i++)
        again |= m->outputs[i].layer == m->outputs[output].layer;
    char number[16] = "";
    if (again)
        snprintf(number, sizeof number, "_%u", output);
    int n = output == 0 ? snprintf(path, room, "%s", out)
                        : snprintf(path, room, "%.*s.%s%s%s", (int)stem, out, name, number, out + stem);
    if (n < 0 || (size_t)n >= room)
        return mf_fail(err, MEMFIT_INVALID, "%.80s...: the path is too long", out);
    for (char *p = path + stem + 1; output && p < path + n - strlen(out + stem); p++)
        *p = *p == '/' ? '_' : *p;
    return MEMFIT_OK;
}

/* A .npy header for all samples, padded so that the data begins at a multiple of 64. */
static memfit_status begin_output(prediction *p, uint32_t output, memfit_error *err)
{
    const mf_trainer *t = p->trainer;
    const mf_graph *g = mf_trainer_graph(t);
    const mf_tensor *y = &g->tensors[g->outputs[output]];
    const char *type = npy_type(y->dtype);
    mf_outfile *f = &p->out[output];
    if (!type)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "outputs of type %s are not written", mf_dtype_name(y->dtype));
    char path[MF_MOST_PATH];
    memfit_status status = path_of(t, output, path, sizeof path, err);
    if (status == MEMFIT_OK && output)
        status = mf_run_guard_array(t->options, path, err);
    if (status == MEMFIT_OK)
        status = mf_os_out_open(f, path, err);
    if (status != MEMFIT_OK)
        return status;
    p->open++;
    if (output)
        mf_log_write(&t->log, MF_LOG_NOTE, "output %u of %u goes to %s", output + 1, g->output_count, path);
    char head[256];
    int n = snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': (%lld,", type,
                     (long long)t->train_samples);
    for (uint32_t d = 1; d < y->shape.rank; d++)
        n += snprintf(head + n, sizeof head - (size_t)n, "%s %lld", d > 1 ? "," : "", (long long)y->shape.dim[d]);
    n += snprintf(head + n, sizeof head - (size_t)n, "), }");
    int length = (10 + n + 1 + 63) / 64 * 64 - 10;
    unsigned char magic[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, (unsigned char)(length >> 8)};
    fwrite(magic, 1, 10, f->file);
    fprintf(f->file, "%s%*s\n", head, length - n - 1, "");
    return MEMFIT_OK;
}

static memfit_status begin_files(void *ctx, mf_trainer *t, memfit_error *err)
{
    prediction *p = ctx;
    p->trainer = t;
    if (!t->options->out)
        return MEMFIT_OK;
    uint32_t count = mf_trainer_graph(t)->output_count;
    p->out = mf_host_alloc(t->options->host, count * sizeof *p->out);
    if (!p->out)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to write predictions");
    p->count = count;
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < count && status == MEMFIT_OK; i++) {
        status = begin_output(p, i, err);
        if (status == MEMFIT_OK && i + 1 < count &&
            !p->out[0].temporary[0]) { /* a pipe, a device: no folder for more */
            mf_log_write(&t->log, MF_LOG_WARNING,
                         "the model has %u outputs: the first is written to %s, the others are not", count,
                         t->options->out);
            break;
        }
    }
    return status;
}

/* `count` elements as they are in the file: bfloat16 as float32. */
static bool write_elements(FILE *file, const void *data, mf_dtype dtype, uint64_t count)
{
    float wide[2048];
    if (dtype != MF_BF16)
        return fwrite(data, mf_dtype_bytes(dtype), count, file) == count;
    for (uint64_t i = 0; i < count; i++)
        wide[i] = (float)mf_element_get(data, dtype, i);
    return fwrite(wide, sizeof *wide, count, file) == count;
}

static memfit_status write_piece(void *ctx, uint32_t phase, memfit_error *err)
{
    prediction *p = ctx;
    const mf_graph *g = p->trainer->plan->phases[phase].graph;
    for (uint32_t i = 0; i < p->open; i++) {
        const mf_tensor *y = &g->tensors[g->outputs[i]];
        uint64_t some[2048], size = mf_dtype_bytes(y->dtype), count = mf_shape_count(&y->shape);
        for (uint64_t at = 0, n; at < count; at += n) {
            n = count - at < 2048 ? count - at : 2048;
            if (!mf_state_read_tensor(p->trainer, phase, g->outputs[i], at * size, some, n * size))
                return mf_fail(err, MEMFIT_INTERNAL, "the model's output is not there");
            if (!write_elements(p->out[i].file, some, y->dtype, n))
                return mf_fail(err, MEMFIT_IO, "cannot write %s: %s\nwhat was there before is unchanged",
                               p->out[i].path, strerror(errno));
        }
    }
    return MEMFIT_OK;
}

static memfit_status predict(const memfit_train_options *options, memfit_train_result *result, memfit_error *err)
{
    prediction p = {0};
    bool whole = false;
    memfit_status status = forward_only(options, MF_MODE_PREDICT, result, begin_files, write_piece, &p, &whole, err);
    for (uint32_t i = 0; i < p.open; i++) {
        memfit_status written = MEMFIT_OK;
        if (whole)
            written = mf_os_out_commit(&p.out[i], err);
        else
            mf_os_out_abandon(&p.out[i]);
        whole = whole && written == MEMFIT_OK;
        status = written != MEMFIT_OK ? written : status;
    }
    if (p.out)
        mf_host_free(options->host, p.out, p.count * sizeof *p.out);
    return status;
}

memfit_status memfit_predict(const memfit_train_options *given, memfit_train_result *result, memfit_error *err)
{
    return mf_run_call(given, result, predict, err);
}
