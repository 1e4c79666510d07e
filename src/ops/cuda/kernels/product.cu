/* product.cu: c = scale * (a' b') + bias in tiles of TILE x TILE, for types and shapes the library does not take. One
 * block a tile; the grid's y counts batches. */
static constexpr int TILE = BLOCK == 1 ? 1 : 16;
ENTRY k0(args a)
{
    __shared__ double left[TILE][TILE + 1], right[TILE][TILE + 1];
    constexpr idx across = (idx)((N_ + TILE - 1) / TILE);
    idx batch = (idx)blockIdx.y, row0 = (idx)blockIdx.x / across * TILE, col0 = (idx)blockIdx.x % across * TILE;
    idx tx = (idx)threadIdx.x % TILE, ty = (idx)threadIdx.x / TILE;
    idx from_a = A_SHARED ? 0 : batch * (idx)(M_ * K_), from_b = B_SHARED ? 0 : batch * (idx)(K_ * N_);
    double sum = 0;
    for (idx k0 = 0; k0 < (idx)K_; k0 += TILE) {
        idx r = row0 + ty, k = k0 + tx;
        left[ty][tx] = r < (idx)M_ && k < (idx)K_
                           ? get<0>(a, from_a + (attr.matmul.trans_a ? k * (idx)M_ + r : r * (idx)K_ + k))
                           : 0;
        k = k0 + ty;
        idx c = col0 + tx;
        right[ty][tx] = c < (idx)N_ && k < (idx)K_
                            ? get<1>(a, from_b + (attr.matmul.trans_b ? c * (idx)K_ + k : k * (idx)N_ + c))
                            : 0;
        __syncthreads();
        for (int e = 0; e < TILE; e++)
            sum += left[ty][e] * right[e][tx];
        __syncthreads();
    }
    idx r = row0 + ty, c = col0 + tx;
    if (r < (idx)M_ && c < (idx)N_)
        put<0>(a, batch * (idx)(M_ * N_) + r * (idx)N_ + c, attr.matmul.scale * sum + get_or<2>(a, c, 0));
}
