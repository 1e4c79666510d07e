/* bytes.h: little-endian numbers in memory that need not be aligned; sizes rounded up. */
#ifndef MF_BASE_BYTES_H
#define MF_BASE_BYTES_H

#include <stdint.h>

/* The next multiple of `to`, which need not be a power of two. */
static inline uint64_t mf_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static inline uint16_t mf_le16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t mf_le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t mf_le64(const unsigned char *p)
{
    return (uint64_t)mf_le32(p) | (uint64_t)mf_le32(p + 4) << 32;
}

/* A number of n bytes, n <= 8. */
static inline uint64_t mf_le_n(const unsigned char *p, unsigned n)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static inline unsigned char *mf_put_le(unsigned char *p, uint64_t value, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        p[i] = (unsigned char)(value >> (8 * i));
    return p + n;
}

#endif
