/*
 * philox.c: Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
 * easy as 1, 2, 3" (SC 2011). Ten rounds of two 32-bit multiplications over a 128-bit counter, with a 64-bit key.
 *
 * What is mixed in is 64 (seed) + 32 (layer) + 64 (step) + 64 (sample) + 64 (block) bits, more than counter and key
 * hold. The seed is the key; layer, step and sample are folded so that nothing that occurs in practice collides: the
 * counter's words are block, sample, step, and layer mixed with the high halves.
 */
#include "base/philox.h"

static uint32_t high_half(uint64_t x)
{
    return (uint32_t)(x >> 32);
}

void mf_philox(uint64_t seed, uint32_t layer, uint64_t step, uint64_t sample, uint64_t block, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)sample, c2 = (uint32_t)step;
    uint32_t c3 = layer ^ high_half(block) << 20 ^ high_half(sample) << 10 ^ high_half(step) << 26;
    uint32_t k0 = (uint32_t)seed, k1 = high_half(seed);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = high_half(p1) ^ c1 ^ k0, n2 = high_half(p0) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}
