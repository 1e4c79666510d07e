/*
 * matrix_units.cuh: a warp's words for the matrix units: 16 bits in, sums in float32. HALF, the type of the factors, is
 * defined before. On older cards and on the host (MF_SHIM, all threads of a block in step) the same by exchange among lanes.
 */
#ifndef MF_MATRIX_UNITS_CUH
#define MF_MATRIX_UNITS_CUH
enum { LANES = 32 };

static inline uint32_t pack(float low, float high)
{
#if !defined(MF_SHIM) && __CUDA_ARCH__ >= 800
    uint32_t r;
    if (HALF == MF_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    uint16_t t[2];
    mf_ref_store(HALF, t, 0, low);
    mf_ref_store(HALF, t, 1, high);
    return t[0] | (uint32_t)t[1] << 16;
#endif
}

static inline float unpack(uint32_t pair, int i)
{
    if (HALF == MF_BF16)
        return __builtin_bit_cast(float, i ? pair & 0xffff0000u : pair << 16);
    uint16_t half = (uint16_t)(pair >> 16 * i);
    return (float)mf_ref_load(HALF, &half, 0);
}

#ifdef MF_SHIM
static uint32_t exchange[BLOCK][8];
static const uint16_t *rows_of[BLOCK];
#endif

/* 2 to the power of x, as the card has it. */
static inline float power_of_2(float x)
{
#ifdef MF_SHIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

static inline float from_lane(float v, int distance)
{
#ifdef MF_SHIM
    __syncthreads();
    memcpy(&exchange[threadIdx.x][0], &v, 4);
    __syncthreads();
    memcpy(&v, &exchange[threadIdx.x ^ (unsigned)distance][0], 4);
    return v;
#else
    return __shfl_xor_sync(0xffffffffu, v, distance);
#endif
}

/* Four tiles of 8 x 8; lane l gives the address of row l % 8 of tile l / 8. `turned`: columns become rows. */
template <bool TURNED> static inline void load_tiles(uint32_t r[4], const uint16_t *row)
{
#ifdef MF_SHIM
    __syncthreads();
    rows_of[threadIdx.x] = row;
    __syncthreads();
    unsigned lane = threadIdx.x % LANES, first = threadIdx.x - lane;
    for (unsigned j = 0; j < 4; j++) {
        uint16_t two[2];
        for (unsigned i = 0; i < 2; i++)
            two[i] = TURNED ? rows_of[first + j * 8 + lane % 4 * 2 + i][lane / 4] : rows_of[first + j * 8 + lane / 4][lane % 4 * 2 + i];
        r[j] = two[0] | (uint32_t)two[1] << 16;
    }
#else
    uint32_t at;
    asm volatile("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(row));
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
#endif
}

/* c += a b for 16 x 16 by 16 x 8. */
static inline void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
#if !defined(MF_SHIM) && __CUDA_ARCH__ >= 800
    if (HALF == MF_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    /* what the instruction does, by exchange among the lanes: older cards, and the host */
    unsigned lane = threadIdx.x % LANES;
#ifdef MF_SHIM
    unsigned first = threadIdx.x - lane;
    __syncthreads();
    for (int i = 0; i < 4; i++)
        exchange[threadIdx.x][i] = a[i];
    exchange[threadIdx.x][4] = b0;
    exchange[threadIdx.x][5] = b1;
    __syncthreads();
#define LANE_HAS(l, i) exchange[first + (l)][i]
#else
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
#define LANE_HAS(l, i) __shfl_sync(0xffffffffu, mine[i], (int)(l))
#endif
    for (unsigned quad = 0; quad < 4; quad++)
        for (unsigned half = 0; half < 2; half++) {
            uint32_t top = LANE_HAS(lane / 4 * 4 + quad, 2 * half), bottom = LANE_HAS(lane / 4 * 4 + quad, 2 * half + 1);
            uint32_t left = LANE_HAS(lane % 4 * 8 + quad, 4 + half), right = LANE_HAS((lane % 4 * 2 + 1) * 4 + quad, 4 + half);
            for (int i = 0; i < 2; i++) {
                c[0] += unpack(top, i) * unpack(left, i);
                c[1] += unpack(top, i) * unpack(right, i);
                c[2] += unpack(bottom, i) * unpack(left, i);
                c[3] += unpack(bottom, i) * unpack(right, i);
            }
        }
#endif
}
#endif
