/*
 * lower_random.c: dropout and noise. Outside training these layers do nothing, but they take their random key all the
 * same: keys are numbered alike in every mode.
 */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

static double rate_of(mf_layer_call *c, const char *key)
{
    double rate = mf_json_get_number(c->config, key, 0);
    if (!(rate >= 0 && rate <= 1))
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': %s %g is not between 0 and 1", c->layer->name, key, rate);
    return rate;
}

/* Axes along which noise_shape is 1 share one draw. */
static uint32_t shared_axes(mf_layer_call *c)
{
    const mf_json *noise = mf_json_get(c->config, "noise_shape");
    mf_shape x = mf_g_shape(c->b, c->in[0]);
    uint32_t shared = 0;
    for (uint32_t i = 0; noise && i < noise->count && i < x.rank; i++)
        if (mf_json_integer(mf_json_at(noise, i), -1) == 1 && x.dim[i] != 1)
            shared |= 1u << i;
    return shared;
}

void mf_lower_dropout(mf_layer_call *c)
{
    uint32_t key = mf_random_key(c);
    double rate = rate_of(c, "rate");
    one(c, c->training ? mf_g_dropout(c->b, c->in[0], rate, key, shared_axes(c)) : c->in[0]);
}

/* Whole channels: all positions share a draw. */
void mf_lower_spatial_dropout(mf_layer_call *c)
{
    uint32_t key = mf_random_key(c), rank = mf_g_shape(c->b, c->in[0]).rank, shared = 0;
    double rate = rate_of(c, "rate");
    bool first = strcmp(mf_json_get_string(c->config, "data_format", "channels_last"), "channels_first") == 0;
    for (uint32_t i = first ? 2 : 1; i + (first ? 0 : 1) < rank; i++)
        shared |= 1u << i;
    one(c, c->training ? mf_g_dropout(c->b, c->in[0], rate, key, shared) : c->in[0]);
}

void mf_lower_gaussian_noise(mf_layer_call *c)
{
    uint32_t key = mf_random_key(c), x = c->in[0];
    double deviation = mf_json_get_number(c->config, "stddev", 0);
    if (!c->training || deviation <= 0) {
        one(c, x);
        return;
    }
    uint32_t noise = mf_g_random(c->b, c->compute, mf_g_shape(c->b, x), 1, 0, deviation, key, 0);
    one(c, mf_g_binary(c->b, MF_ADD, x, noise));
}

void mf_lower_gaussian_dropout(mf_layer_call *c)
{
    uint32_t key = mf_random_key(c), x = c->in[0];
    double rate = rate_of(c, "rate");
    if (!c->training || rate <= 0) {
        one(c, x);
        return;
    }
    double deviation = sqrt(rate / (1 - rate));
    uint32_t noise = mf_g_random(c->b, c->compute, mf_g_shape(c->b, x), 1, 1, deviation, key, 0);
    one(c, mf_g_binary(c->b, MF_MUL, x, noise));
}

/* Dropped values become alpha', then an affine map restores mean and variance: y = a * (x*m + alpha'*(1-m)) + b. */
void mf_lower_alpha_dropout(mf_layer_call *c)
{
    const double alpha = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717;
    uint32_t key = mf_random_key(c), x = c->in[0];
    double rate = rate_of(c, "rate");
    if (!c->training || rate <= 0) {
        one(c, x);
        return;
    }
    double a = 1 / sqrt((1 - rate) * (1 + rate * alpha * alpha)), shift = -a * alpha * rate;
    uint32_t kept = mf_g_random(c->b, c->compute, mf_g_shape(c->b, x), 2, rate, 0, key, shared_axes(c));
    uint32_t y = mf_g_binary(c->b, MF_MUL, x, kept);
    uint32_t filled = mf_g_unary(c->b, MF_UNARY_AFFINE, -alpha, alpha, kept); /* alpha * (1 - kept) */
    one(c, mf_g_unary(c->b, MF_UNARY_AFFINE, a, shift, mf_g_binary(c->b, MF_ADD, y, filled)));
}
