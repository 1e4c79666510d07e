/*
 * ref_update.c: clipping and the optimizers, after Keras 3's own sources: weight decay first (param -=
 * param*decay*rate), then the rule. Constants that Keras computes in the variable's type (powers of beta, the step) are
 * computed in that type here too: 1 - beta_2^t in float differs from double by 1e-5 at the first steps.
 *
 * Slots, in Keras's order: SGD [momentum]; RMSprop velocity, [momentum], [average gradient]; Adam, AdamW, Nadam, Lamb
 * momentum, velocity, [greatest velocity]; Adamax momentum, norm; Adagrad accumulator; Adadelta gradient and delta
 * accumulators; Adafactor rows, columns (absent for vectors), velocity; Lion momentum; Ftrl accumulator, linear.
 */
#include "ops/reference/reference.h"

#include <math.h>
#include <string.h>

/* Nadam's product of the momentum schedule up to step t: beta^t * prod(1 - 0.96^i / 2). The second factor stands still
 * after a thousand steps. Keras keeps it in a variable. */
static double nadam_product(double beta, double t)
{
    double product = pow(beta, t), decay = 1;
    for (int i = 1; i <= 1000 && i <= t; i++) {
        decay *= 0.96;
        product *= 1 - 0.5 * decay;
    }
    return product;
}

static double square(double x)
{
    return x * x;
}

#define REF_DOUBLE 0
#include "ops/reference/update_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/update_body.h"
