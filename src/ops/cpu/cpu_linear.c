/* cpu_linear.c: convolution and matrix products, through the oneDNN adapter. */
#include "ops/cpu/cpu_product.h"

#include "base/error.h"

#include <string.h>

/* ---- convolution ------------------------------------------------------------------------------------------ */

/* x is the larger side (the input of the forward direction), y the smaller. */
static bool describe_conv(const cpu_kernel *k, const mf_tensor *x, const mf_tensor *y, mf_dnn_direction direction,
                          mf_dnn_conv *c)
{
    return cpu_all_float(k) && cpu_conv_of(&k->op->attr.window, &x->shape, &y->shape, direction, c);
}

static memfit_status bind_conv(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    mf_dnn_conv c;
    if (!describe_conv(k, cpu_in(k, 0), cpu_out(k, 0), MF_DNN_FORWARD, &c))
        return cpu_no(err);
    c.bias = cpu_in(k, 2) != NULL;
    c.relu = k->relu;
    return cpu_product_conv(k->backend, &c, create ? &k->product : NULL, workspace, err);
}

static memfit_status run_conv(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    bool bias = cpu_in(k, 2) != NULL;
    void *operands[4] = {o->in[0], o->in[1], bias ? o->in[2] : o->out[0], o->out[0]};
    return cpu_product_run(k->product, operands, o->workspace, err);
}

const cpu_rule cpu_conv = {bind_conv, run_conv};

static memfit_status bind_grad_data(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    mf_dnn_conv c;
    if (cpu_adds(k, 0) || !describe_conv(k, cpu_out(k, 0), cpu_in(k, 0), MF_DNN_GRAD_DATA, &c))
        return cpu_no(err);
    return cpu_product_conv(k->backend, &c, create ? &k->product : NULL, workspace, err);
}

/* As a transposed convolution it comes with a bias: added by rows afterwards. */
static memfit_status run_grad_data(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    void *operands[3] = {o->in[0], o->in[1], o->out[0]};
    memfit_status status = cpu_product_run(k->product, operands, o->workspace, err);
    const mf_tensor *bias = cpu_in(k, 2), *y = cpu_out(k, 0);
    if (status == MEMFIT_OK && bias) {
        mf_k_walk walk;
        mf_k_walk_make(&walk, &y->shape, &y->shape, &bias->shape);
        k->backend->k->binary(MF_ADD, &walk, o->out[0], o->in[2], o->out[0], cpu_threads(k));
    }
    return status;
}

const cpu_rule cpu_conv_grad_data = {bind_grad_data, run_grad_data};

/* Own kernels where the processor has wide vectors and they are faster than the library's: with up to four input
 * channels; and three columns wide, on few threads. */
static void choose_own(cpu_kernel *k, const mf_dnn_conv *c)
{
    int64_t taps = c->kernel[0] * c->kernel[1] * c->in_channels;
    k->few = k->three = false;
    if (c->dims != 2 || c->groups != 1 || c->dilation[0] != 1 || c->dilation[1] != 1 ||
        strcmp(k->backend->k->name, "avx512") != 0)
        return;
    k->u.conv = (mf_k_conv){.batch = c->batch, .channels = c->in_channels, .out_channels = c->out_channels};
    for (int i = 0; i < 2; i++) {
        k->u.conv.in[i] = c->in[i];
        k->u.conv.out[i] = c->out[i];
        k->u.conv.kernel[i] = c->kernel[i];
        k->u.conv.stride[i] = c->stride[i];
        k->u.conv.before[i] = c->before[i];
    }
    k->few = c->in_channels <= 4 && c->out_channels % 32 == 0 && taps + 12 <= MF_K_FEW_TAPS;
    k->three = !k->few && cpu_threads(k) <= MF_K_THREE_THREADS && mf_k_three_serves(&k->u.conv);
}

static memfit_status bind_grad_weights(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    mf_dnn_conv c;
    if (!cpu_out(k, 0) || !describe_conv(k, cpu_in(k, 0), cpu_in(k, 1), MF_DNN_GRAD_WEIGHTS, &c))
        return cpu_no(err);
    c.bias = cpu_out(k, 1) != NULL;
    c.accumulate = cpu_adds(k, 0);
    if (c.bias && cpu_adds(k, 1) != c.accumulate)
        return cpu_no(err);
    choose_own(k, &c);
    if (!k->few && !k->three)
        return cpu_product_conv(k->backend, &c, create ? &k->product : NULL, workspace, err);
    *workspace = k->few ? mf_k_few_floats(&k->u.conv) * sizeof(float) * (uint64_t)cpu_threads(k) : 0;
    return MEMFIT_OK;
}

/* One thread where the others would hardly have woken up. */
static int small_team(const cpu_kernel *k)
{
    const mf_k_conv *c = &k->u.conv;
    double products = (double)(c->batch * c->out[0] * c->out[1]) * (double)(c->channels * c->out_channels);
    return products * 2 * (double)(c->kernel[0] * c->kernel[1]) < 1e6 ? 1 : cpu_threads(k);
}

static memfit_status run_grad_weights(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    void *operands[4] = {o->in[0], o->in[1], o->out[0], cpu_out(k, 1) ? o->out[1] : NULL};
    if (!k->few && !k->three)
        return cpu_product_run(k->product, operands, o->workspace, err);
    if (k->few)
        k->backend->k->few_grad(&k->u.conv, operands[0], operands[1], operands[2], operands[3], cpu_adds(k, 0),
                                o->workspace, cpu_threads(k));
    else
        k->backend->k->three_grad(&k->u.conv, operands[0], operands[1], operands[2], operands[3], cpu_adds(k, 0),
                                  small_team(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_conv_grad_weights = {bind_grad_weights, run_grad_weights};

/* ---- matrix product --------------------------------------------------------------------------------------- */

static int64_t leading(const mf_shape *s)
{
    int64_t n = 1;
    for (uint32_t i = 0; i + 2 < s->rank; i++)
        n *= s->dim[i];
    return n;
}

static bool describe_matmul(const cpu_kernel *k, mf_dnn_matmul *mm)
{
    const mf_tensor *a = cpu_in(k, 0), *b = cpu_in(k, 1), *c = cpu_out(k, 0);
    if (!cpu_all_float(k) || a->shape.rank < 2 || b->shape.rank < 2 || c->shape.rank < 2)
        return false;
    const bool ta = k->op->attr.matmul.trans_a, tb = k->op->attr.matmul.trans_b;
    const int64_t *da = a->shape.dim + a->shape.rank - 2, *db = b->shape.dim + b->shape.rank - 2;
    *mm = (mf_dnn_matmul){.batch_a = leading(&a->shape),
                          .batch_b = leading(&b->shape),
                          .m = ta ? da[1] : da[0],
                          .k = ta ? da[0] : da[1],
                          .n = tb ? db[0] : db[1],
                          .trans_a = ta,
                          .trans_b = tb,
                          .bias = cpu_in(k, 2) != NULL,
                          .accumulate = cpu_adds(k, 0),
                          .scale = k->op->attr.matmul.scale};
    if ((tb ? db[1] : db[0]) != mm->k || (mm->bias && mm->scale != 1))
        return false;
    if (mm->batch_b == 1 && mm->batch_a > 1 && !ta) { /* one product with all rows */
        mm->m *= mm->batch_a;
        mm->batch_a = 1;
    }
    if (mm->batch_a != mm->batch_b && mm->batch_a != 1 && mm->batch_b != 1)
        return false;
    int64_t batch = mm->batch_a > mm->batch_b ? mm->batch_a : mm->batch_b;
    return batch * mm->m * mm->n == cpu_count(c);
}

static memfit_status bind_matmul(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    mf_dnn_matmul mm;
    if (!describe_matmul(k, &mm))
        return cpu_no(err);
    mm.relu = k->relu;
    return cpu_product_matmul(k->backend, &mm, create ? &k->product : NULL, workspace, err);
}

const cpu_rule cpu_matmul = {bind_matmul, run_conv};
