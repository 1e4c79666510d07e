/*
 * kernels_random.c: dropout with Philox 4x32-10, sixteen counters at a time.
 *
 * The numbers are those of mf_philox and the reference operations, bit for bit: the mask of an element depends on seed,
 * layer, step, sample and its index in the sample only, so forward, backward, recomputed and split runs agree.
 */
#include "ops/cpu/kernels/kernels_isa.h"

enum { LANES = 16 };

static inline uint32_t high_half(uint64_t x)
{
    return (uint32_t)(x >> 32);
}

/* Blocks first .. first + LANES of one sample; out[4 * i + j] is word j of block i. */
static void philox_lanes(const mf_k_random *r, uint64_t sample, uint64_t first, uint32_t *out)
{
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    for (int i = 0; i < LANES; i++) {
        uint64_t block = first + (uint64_t)i;
        c0[i] = (uint32_t)block;
        c1[i] = (uint32_t)sample;
        c2[i] = (uint32_t)r->step;
        c3[i] = r->key ^ high_half(block) << 20 ^ high_half(sample) << 10 ^ high_half(r->step) << 26;
    }
    uint32_t k0 = (uint32_t)r->seed, k1 = high_half(r->seed);
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            uint32_t n0 = high_half(p1) ^ c1[i] ^ k0, n2 = high_half(p0) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
            c0[i] = n0;
            c2[i] = n2;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < LANES; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

void MF_K(kept)(const mf_k_random *r, double rate, uint64_t sample, uint64_t first, float *y, int64_t n)
{
    const float scale = rate < 1 ? (float)(1 / (1 - rate)) : 0;
    const uint32_t least = (uint32_t)ceil(rate * 0x1p24);
    uint32_t words[4 * LANES];
    for (int64_t done = 0, count; done < n; done += count) {
        const uint64_t at = first + (uint64_t)done, skip = at % 4;
        count = n - done < 4 * LANES - (int64_t)skip ? n - done : 4 * LANES - (int64_t)skip;
        philox_lanes(r, r->first_sample + sample, at / 4, words);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[done + i] = words[skip + (uint64_t)i] >> 8 >= least ? scale : 0.0f;
    }
}

/* x and y are [samples][n]; rows of whole samples are shared out in blocks of 64 elements. */
void MF_K(dropout)(const mf_k_random *r, double rate, const float *x, float *y, int64_t samples, int64_t n, int threads)
{
    const float scale = rate < 1 ? (float)(1 / (1 - rate)) : 0;
    /* u >= rate, with u = word >> 8 in units of 2^-24 */
    const uint32_t least = (uint32_t)ceil(rate * 0x1p24);
    int64_t chunks = (n + 4 * LANES - 1) / (4 * LANES);
#pragma omp parallel num_threads(threads) if (samples * n > MF_K_GRAIN / 4)
    {
        mf_k_range share = mf_k_share(samples * chunks, 1);
        uint32_t words[4 * LANES];
        for (int64_t c = share.from; c < share.to; c++) {
            int64_t sample = c / chunks, first = c % chunks * 4 * LANES;
            int64_t count = n - first < 4 * LANES ? n - first : 4 * LANES;
            philox_lanes(r, r->first_sample + (uint64_t)sample, (uint64_t)first / 4, words);
            const float *from = x + sample * n + first;
            float *to = y + sample * n + first;
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                to[i] = words[i] >> 8 >= least ? from[i] * scale : 0.0f;
        }
    }
}
