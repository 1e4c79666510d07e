/* numpy_shuffle.c: the Mersenne twister (Matsumoto and Nishimura, 1998) as NumPy seeds it, and Fisher and Yates's shuffle as
 * NumPy draws for it: numbers of as many bits as are needed, drawn again when too large. */
#include "data/numpy_shuffle.h"

enum { N = 624, M = 397 };

typedef struct twister {
    uint32_t key[N];
    unsigned at;
} twister;

static void seed_with(twister *t, uint32_t seed)
{
    for (uint32_t i = 0; i < N; i++) {
        t->key[i] = seed;
        seed = 1812433253u * (seed ^ seed >> 30) + i + 1;
    }
    t->at = N;
}

static void turn(twister *t)
{
    for (unsigned i = 0; i < N; i++) {
        uint32_t y = (t->key[i] & 0x80000000u) | (t->key[(i + 1) % N] & 0x7fffffffu);
        t->key[i] = t->key[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    t->at = 0;
}

static uint32_t draw(twister *t)
{
    if (t->at == N)
        turn(t);
    uint32_t y = t->key[t->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

static uint32_t draw_up_to(twister *t, uint32_t most)
{
    uint32_t mask = most, value;
    for (unsigned shift = 1; shift < 32; shift *= 2)
        mask |= mask >> shift;
    do
        value = draw(t) & mask;
    while (value > most);
    return value;
}

void mf_numpy_shuffle(uint32_t *list, size_t count, uint32_t seed)
{
    twister t;
    seed_with(&t, seed);
    for (size_t i = count; i-- > 1;) {
        uint32_t j = draw_up_to(&t, (uint32_t)i), swap = list[i];
        list[i] = list[j];
        list[j] = swap;
    }
}
