/* softmax.cu: softmax, log-softmax and sparsemax along one axis: one block a row, or one thread where rows are short. */
static constexpr idx N = (idx)AXIS_SIZE, INNER = (idx)AXIS_INNER;

struct alone { /* the row is this thread's own */
    static constexpr idx step = 1;
    static inline idx first() { return 0; }
    static inline double sum(double v) { return v; }
    static inline double max(double v) { return v; }
    static inline double more(double v) { return v; }
};
struct together { /* the row is the block's */
    static constexpr idx step = BLOCK;
    static inline idx first() { return (idx)threadIdx.x; }
    static inline double sum(double v) { return block_sum(v); }
    static inline double max(double v) { return block_max(v); }
};

#if defined(KIND_SOFTMAX)
template <class W> static inline void row_of(const args &a, idx row)
{
    idx start = row / INNER * N * INNER + row % INNER, visible = N;
    if (attr.softmax.causal) {
        constexpr uint32_t rank = out_shape[0].rank;
        constexpr idx queries = rank > 1 ? (idx)out_shape[0].dim[rank - 2] : 1;
        idx n = row / INNER % queries + 1;
        visible = n < N ? n : N;
    }
    if (attr.softmax.sparse) {
        double tau = -INFINITY;
        for (idx round = 0; round <= N; round++) {
            double sum = 0, count = 0;
            for (idx i = W::first(); i < N; i += W::step) {
                double x = get<0>(a, start + i * INNER);
                if (x > tau) {
                    sum += x;
                    count++;
                }
            }
            sum = W::sum(sum);
            count = W::sum(count);
            double next = (sum - 1) / count;
            if (next <= tau)
                break;
            tau = next;
        }
        for (idx i = W::first(); i < N; i += W::step) {
            double x = get<0>(a, start + i * INNER);
            put<0>(a, start + i * INNER, x < tau ? 0 : x - tau);
        }
        return;
    }
    double most = -INFINITY, sum = 0;
    for (idx i = W::first(); i < visible; i += W::step)
        most = fmax(most, get<0>(a, start + i * INNER));
    most = W::max(most);
    for (idx i = W::first(); i < visible; i += W::step)
        sum += exp(get<0>(a, start + i * INNER) - most);
    sum = W::sum(sum);
    double log_sum = log(sum);
    for (idx i = W::first(); i < N; i += W::step) {
        double v = i < visible ? get<0>(a, start + i * INNER) - most : 0;
        put<0>(a, start + i * INNER,
               i >= visible       ? (attr.softmax.log ? -INFINITY : 0)
               : attr.softmax.log ? v - log_sum
                                  : exp(v) / sum);
    }
}
#else
template <class W> static inline void row_of(const args &a, idx row)
{
    idx start = row / INNER * N * INNER + row % INNER;
    double sum = 0, support = 0;
    for (idx i = W::first(); i < N; i += W::step) {
        double d = get<0>(a, start + i * INNER), v = get<1>(a, start + i * INNER);
        sum += attr.softmax.log ? d : attr.softmax.sparse ? (v > 0 ? d : 0) : d * v;
        support += v > 0;
    }
    sum = W::sum(sum);
    support = W::sum(support);
    for (idx i = W::first(); i < N; i += W::step) {
        double d = get<0>(a, start + i * INNER), v = get<1>(a, start + i * INNER);
        put<0>(a, start + i * INNER,
               attr.softmax.log      ? d - exp(v) * sum
               : attr.softmax.sparse ? (v > 0 ? d - sum / support : 0)
                                     : v * (d - sum));
    }
}
#endif

ENTRY k0(args a)
{
#if ROW_A_BLOCK
    row_of<together>(a, (idx)blockIdx.x);
#else
    idx row = THREAD;
    if (row < (idx)ROWS)
        row_of<alone>(a, row);
#endif
}
