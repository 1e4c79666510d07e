/*
 * resize_avx2.c: eight columns of three channels at a time.
 *
 *   8 bytes from each column's left pixel on    l0 l1 l2 r0 r1 r2 . .     two columns in a register of 16 bytes
 *   shuffled, joined                            l0 l1 l2 l0 l1 l2 ...     24 left and 24 right values of eight columns
 *   widened to 3 x 8 floats each                left + (right - left) * share
 *
 * Compiled without fused multiply-add: a product is rounded before it is added, as everywhere in resizing.
 */
#include "data/resize.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))

/* 8 bytes each of columns x and x + 1. */
AVX2 static inline __m128i two_columns(const unsigned char *row, const uint32_t *low)
{
    int64_t first, second;
    memcpy(&first, row + low[0], sizeof first);
    memcpy(&second, row + low[1], sizeof second);
    return _mm_set_epi64x(second, first);
}

AVX2 static inline __m256 eight(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

AVX2 static inline void put(float *out, const float *share, __m256 a, __m256 b)
{
    _mm256_storeu_ps(out, _mm256_add_ps(a, _mm256_mul_ps(_mm256_sub_ps(b, a), _mm256_loadu_ps(share))));
}

AVX2 static void sideways(const unsigned char *row, const uint32_t *low, const float *share, uint32_t *first,
                          uint32_t end, float *out)
{
    /* Where the six bytes of a register go: bytes 4 to 15 of the first four columns, 0 to 11 of the last four. */
    enum { N = -128 };
    const __m128i l0 = _mm_setr_epi8(N, N, N, N, 0, 1, 2, 8, 9, 10, N, N, N, N, N, N);
    const __m128i l1 = _mm_setr_epi8(N, N, N, N, N, N, N, N, N, N, 0, 1, 2, 8, 9, 10);
    const __m128i l2 = _mm_setr_epi8(0, 1, 2, 8, 9, 10, N, N, N, N, N, N, N, N, N, N);
    const __m128i l3 = _mm_setr_epi8(N, N, N, N, N, N, 0, 1, 2, 8, 9, 10, N, N, N, N);
    const __m128i r0 = _mm_setr_epi8(N, N, N, N, 3, 4, 5, 11, 12, 13, N, N, N, N, N, N);
    const __m128i r1 = _mm_setr_epi8(N, N, N, N, N, N, N, N, N, N, 3, 4, 5, 11, 12, 13);
    const __m128i r2 = _mm_setr_epi8(3, 4, 5, 11, 12, 13, N, N, N, N, N, N, N, N, N, N);
    const __m128i r3 = _mm_setr_epi8(N, N, N, N, N, N, 3, 4, 5, 11, 12, 13, N, N, N, N);
    uint32_t x = *first;
    for (; x + 8 <= end; x += 8) {
        const __m128i c0 = two_columns(row, low + x), c1 = two_columns(row, low + x + 2);
        const __m128i c2 = two_columns(row, low + x + 4), c3 = two_columns(row, low + x + 6);
        const __m128i la = _mm_or_si128(_mm_shuffle_epi8(c0, l0), _mm_shuffle_epi8(c1, l1));
        const __m128i lb = _mm_or_si128(_mm_shuffle_epi8(c2, l2), _mm_shuffle_epi8(c3, l3));
        const __m128i ra = _mm_or_si128(_mm_shuffle_epi8(c0, r0), _mm_shuffle_epi8(c1, r1));
        const __m128i rb = _mm_or_si128(_mm_shuffle_epi8(c2, r2), _mm_shuffle_epi8(c3, r3));
        float *to = out + 3 * (size_t)x;
        const float *by = share + 3 * (size_t)x;
        put(to, by, eight(_mm_srli_si128(la, 4)), eight(_mm_srli_si128(ra, 4)));
        put(to + 8, by + 8, eight(_mm_alignr_epi8(lb, la, 12)), eight(_mm_alignr_epi8(rb, ra, 12)));
        put(to + 16, by + 16, eight(_mm_srli_si128(lb, 4)), eight(_mm_srli_si128(rb, 4)));
    }
    *first = x;
}

AVX2 static void mix(const float *restrict top, const float *restrict bottom, float share, size_t n,
                     float *restrict out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = top[i] + (bottom[i] - top[i]) * share;
}

AVX2 static void round_off(const float *restrict top, const float *restrict bottom, float share, size_t n,
                           unsigned char *restrict out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)(top[i] + (bottom[i] - top[i]) * share + 0.5f);
}

const mf_resize_kernels *mf_resize_avx2(void)
{
    static const mf_resize_kernels kernels = {sideways, mix, round_off};
    return __builtin_cpu_supports("avx2") ? &kernels : NULL;
}

#else

const mf_resize_kernels *mf_resize_avx2(void)
{
    return NULL;
}

#endif
