/*
 * fit_largest.c: the largest batch that fits in one piece: a guess from lines through two batches, then steps around it.
 */
#include "plan/fit/fit.h"

#include "plan/fit/fit_orders.h"

memfit_status mf_fitter_fits(mf_fitter *fitter, int64_t batch, bool recompute, uint32_t chunks, uint64_t limit,
                             bool *fits, memfit_error *err)
{
    const mf_fit_facts *facts;
    memfit_status status = mf_fitter_facts(fitter, MF_MODE_TRAIN, batch, false, chunks, &facts, err);
    if (status != MEMFIT_OK)
        return status;
    uint64_t taken = fitter->options.fixed_bytes + facts->variables_end, load = facts->kept_bytes;
    if (recompute && taken + load > limit) {
        mf_fit_entry *entry;
        status = mf_fitter_entry_chunked(fitter, MF_MODE_TRAIN, batch, false, chunks, &entry, err);
        if (status == MEMFIT_OK)
            status = mf_fit_orders_lowest(fitter, entry, false, &load, err);
        if (status != MEMFIT_OK)
            return status;
    }
    *fits = taken + load <= limit;
    if (!*fits)
        return MEMFIT_OK;
    mf_way way = {.batch = batch,
                  .pieces = 1,
                  .chunks = chunks,
                  .recompute = recompute,
                  .train_only = true,
                  .limit_bytes = limit};
    mf_plan *plan;
    status = mf_fitter_try(fitter, &way, &plan, err);
    if (status != MEMFIT_OK)
        return status;
    *fits = plan->fits;
    mf_plan_destroy(plan);
    return MEMFIT_OK;
}

/* Bytes of the lowest sequence of a batch. */
static memfit_status lowest(mf_fitter *fitter, int64_t batch, bool recompute, uint32_t chunks, uint64_t *variables_end,
                            double *bytes, memfit_error *err)
{
    const mf_fit_facts *facts;
    mf_fit_entry *entry;
    memfit_status status = mf_fitter_facts(fitter, MF_MODE_TRAIN, batch, false, chunks, &facts, err);
    if (status != MEMFIT_OK)
        return status;
    uint64_t load = facts->kept_bytes;
    if (recompute) /* a guess: one order will do */
        status = mf_fitter_entry_chunked(fitter, MF_MODE_TRAIN, batch, false, chunks, &entry, err);
    if (recompute && status == MEMFIT_OK)
        status = mf_fit_orders_lowest(fitter, entry, true, &load, err);
    *variables_end = facts->variables_end;
    *bytes = (double)load;
    return status;
}

/* Memory is close to linear in the batch: the line through two of them says where to look. */
static memfit_status guess_batch(mf_fitter *fitter, bool recompute, uint32_t chunks, uint64_t limit, int64_t n,
                                 int64_t m, int64_t *guess, memfit_error *err)
{
    double low, high;
    uint64_t taken;
    memfit_status status = lowest(fitter, n, recompute, chunks, &taken, &high, err);
    if (status == MEMFIT_OK)
        status = lowest(fitter, m, recompute, chunks, &taken, &low, err);
    if (status != MEMFIT_OK)
        return status;
    taken += fitter->options.fixed_bytes;
    double slope = (high - low) / (double)(n - m);
    double room = limit > taken ? (double)(limit - taken) : 0;
    double batch = slope > 0 ? (double)m + (room - low) / slope : 1 << 24;
    *guess = batch < 1 ? 1 : batch > 1 << 24 ? 1 << 24 : (int64_t)batch;
    return MEMFIT_OK;
}

/* First through `near` and its half; then, where the answer is far from that, once or twice more through it and the batch
 * before: rounding of small tensors bends the first line, and a guess that is off by thousands costs dozens of graphs. A
 * batch of one is no point of the line: where operations run as one, others do so there. In chunks it is a line only while
 * their number is the same, so there the other one always is half as large. */
static memfit_status first_guess(mf_fitter *fitter, bool recompute, uint32_t chunks, uint64_t limit, int64_t near,
                                 int64_t *guess, memfit_error *err)
{
    enum { ROUNDS = 3, FAR = 8 };
    int64_t n = near > 1 ? near : 2;
    memfit_status status = guess_batch(fitter, recompute, chunks, limit, n, n / 2, guess, err);
    for (int round = 1; round < ROUNDS && status == MEMFIT_OK; round++) {
        int64_t apart = *guess > n ? *guess - n : n - *guess;
        if (apart <= FAR || *guess <= FAR || *guess >= 1 << 24)
            break;
        int64_t before = chunks > 1 ? *guess / 2 : n;
        n = *guess;
        status = guess_batch(fitter, recompute, chunks, limit, n, before, guess, err);
    }
    return status;
}

memfit_status mf_fitter_largest(mf_fitter *fitter, bool recompute, int64_t near, uint64_t limit, int64_t *batch,
                                memfit_error *err)
{
    return mf_fitter_largest_chunked(fitter, recompute, 1, near, limit, batch, err);
}

memfit_status mf_fitter_largest_chunked(mf_fitter *fitter, bool recompute, uint32_t chunks, int64_t near,
                                        uint64_t limit, int64_t *batch, memfit_error *err)
{
    int64_t good = 0, bad = INT64_MAX, step = 1, guess = 1;
    memfit_status status = first_guess(fitter, recompute, chunks, limit, near, &guess, err);
    while (status == MEMFIT_OK && bad - good > 1) {
        bool fits;
        status = mf_fitter_fits(fitter, guess, recompute, chunks, limit, &fits, err);
        if (status != MEMFIT_OK)
            break;
        *(fits ? &good : &bad) = guess;
        if (good >= 1 << 24)
            break;
        if (bad == INT64_MAX)
            guess = good + step;
        else if (good == 0)
            guess = bad - step > 1 ? bad - step : 1;
        else
            guess = good + (bad - good) / 2;
        step *= 2;
    }
    *batch = good;
    return status;
}
