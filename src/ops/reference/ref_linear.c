/*
 * ref_linear.c: matrix product and convolution with its two gradients.
 *
 * Loops are ordered so that the innermost runs along the output channels, contiguous in both the weights and the
 * output, over a tile of 64 sums kept in double: plain, exact to the last bit of the stored type, and not absurdly
 * slow. Depthwise convolution, whose groups have one channel, has loops of its own along the channels.
 */
#include "ops/reference/reference.h"

#include <string.h>

enum { TILE = 64, ROWS = 4 };

#define REF_DOUBLE 0
#include "ops/reference/linear_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/linear_body.h"
