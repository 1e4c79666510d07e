/* product_pad.cu: rows of a product's factors filled up with zeros, and its result out of rows that are longer; with the
 * bias, added where the operation adds. Eight elements a thread. */
#include "program.cuh"

template <mf_dtype D> static inline void pad_rows(const void *from, char *to, idx rows, idx length, idx longer)
{
    idx i = THREAD * 8, r = i / longer, c = i % longer;
    if (r >= rows)
        return;
    vector<D, 8> v;
    EACH_OF(8) v.v[k] = c + k < length ? ((const typename stored<D>::type *)from)[r * length + c + k] : 0;
    *(vector<D, 8> *)((typename stored<D>::type *)to + i) = v;
}

ENTRY pad_a(args a)
{
    pad_rows<in_dtype[0]>(a.in[0], (char *)a.workspace + A_AT, (idx)A_ROWS, (idx)A_FROM, (idx)A_TO);
}

ENTRY pad_b(args a)
{
    pad_rows<in_dtype[1]>(a.in[1], (char *)a.workspace + B_AT, (idx)B_ROWS, (idx)B_FROM, (idx)B_TO);
}

ENTRY unpad(args a)
{
    idx i = THREAD * 8, r = i / (idx)C_TO, c = i % (idx)C_TO;
    if (r >= (idx)C_ROWS)
        return;
    real v[8];
    load_vector<out_dtype[0]>(v, (char *)a.workspace + C_AT, i);
    EACH_OF(8)
    if (c + k < (idx)C_FROM)
        store_one<out_dtype[0], out_adds[0]>(a.out[0], r * (idx)C_FROM + c + k,
                                             v[k] + (real)get_or<2>(a, c + k, 0));
}
