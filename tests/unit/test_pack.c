/* test_pack.c: packing: bounds, greedy, validator. */
#include "test.h"

#include "plan/pack.h"

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void fill_random(mf_pack_buffer *b, size_t n, uint64_t *seed, int64_t times, uint64_t sizes)
{
    for (size_t i = 0; i < n; i++) {
        int64_t a = (int64_t)(next_random(seed) % (uint64_t)times), c = (int64_t)(next_random(seed) % (uint64_t)times);
        b[i] = (mf_pack_buffer){
            .lower = a < c ? a : c, .upper = (a < c ? c : a) + 1, .size = 1 + next_random(seed) % sizes};
    }
}

/* The O(n * times) definition of the bound. */
static uint64_t plain_max_load(const mf_pack_buffer *b, size_t n, int64_t times)
{
    uint64_t most = 0;
    for (int64_t t = 0; t <= times; t++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += b[i].lower <= t && t < b[i].upper ? b[i].size : 0;
        most = sum > most ? sum : most;
    }
    return most;
}

/* The O(n^2) definition of a packing. */
static bool plain_is_packing(const mf_pack_buffer *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (b[i].lower < b[j].upper && b[j].lower < b[i].upper && b[i].offset < b[j].offset + b[j].size &&
                b[j].offset < b[i].offset + b[i].size)
                return false;
    return true;
}

static void bound_and_packing_agree_with_their_definitions(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 300; round++) {
        mf_pack_buffer b[60];
        size_t n = 1 + next_random(&seed) % 60;
        fill_random(b, n, &seed, 1 + (int64_t)(next_random(&seed) % 40), 50);
        uint64_t align = round % 3 == 0 ? 1 : round % 3 == 1 ? 8 : 0;
        for (size_t i = 0; i < n; i++)
            b[i].alignment = align ? align : UINT64_C(1) << next_random(&seed) % 5;
        memfit_error err;
        mf_pack_result r;
        uint64_t load, height;
        assert_ok(mf_pack_max_load(NULL, b, n, &load, &err), err);
        assert_int_equal(load, plain_max_load(b, n, 41));
        mf_pack_options o;
        memfit_pack_options_default(&o);
        o.effort = (memfit_pack_effort)(round % 2);
        assert_ok(mf_pack(NULL, b, n, &o, &r, &err), err);
        assert_true(plain_is_packing(b, n));
        assert_ok(mf_pack_check(NULL, b, n, r.height, &height, &err), err);
        assert_int_equal(height, r.height);
        assert_true(r.bound >= load && r.height >= r.bound && r.max_load == load);
        for (int order = 0; order < MF_PACK_ORDER_COUNT; order++) {
            assert_ok(mf_pack_one(NULL, b, n, (mf_pack_order)order, order & 1, &height, &err), err);
            assert_ok(mf_pack_check(NULL, b, n, height, NULL, &err), err);
            assert_true(order != MF_PACK_BY_BIRTH || r.height <= height || !(order & 1));
        }
    }
}

/* The least height by definition: every order, each buffer on top of what it collides with. The order of ascending
 * offsets of a best packing is among them, so the minimum is the optimum. */
static uint64_t brute_force(mf_pack_buffer *b, size_t n, unsigned placed, uint64_t height, uint64_t best)
{
    if (placed + 1 == 1u << n)
        return height < best ? height : best;
    for (size_t i = 0; i < n; i++) {
        if (placed >> i & 1)
            continue;
        uint64_t at = 0, align = b[i].alignment ? b[i].alignment : 1;
        for (size_t j = 0; j < n; j++)
            if ((placed >> j & 1) && b[i].lower < b[j].upper && b[j].lower < b[i].upper)
                at = b[j].offset + b[j].size > at ? b[j].offset + b[j].size : at;
        b[i].offset = (at + align - 1) / align * align;
        uint64_t end = b[i].offset + b[i].size;
        if (end < best)
            best = brute_force(b, n, placed | 1u << i, end > height ? end : height, best);
    }
    return best;
}

static void exact_agrees_with_brute_force(void **state)
{
    (void)state;
    uint64_t seed = 11, gaps = 0;
    for (int round = 0; round < 1200; round++) {
        mf_pack_buffer b[8], copy[8];
        size_t n = 1 + next_random(&seed) % 8;
        fill_random(b, n, &seed, 2 + (int64_t)(next_random(&seed) % 9), 1 + next_random(&seed) % 12);
        if (round % 3 == 1)
            for (size_t i = 0; i < n; i++)
                b[i].alignment = UINT64_C(1) << next_random(&seed) % 3;
        if (round % 3 == 2)
            for (size_t i = 0; i < n; i++)
                b[i].alignment = 4;
        memcpy(copy, b, sizeof b);
        uint64_t best = brute_force(copy, n, 0, 0, UINT64_MAX);
        mf_pack_options o;
        memfit_pack_options_default(&o);
        o.effort = MEMFIT_PACK_EXACT;
        o.threads = 1 + (unsigned)(round & 1);
        o.time_limit_us = 20000000;
        /* Where one alignment rounds all sizes, the proof may stop a padding short of the optimum. */
        bool padded = b[0].alignment > 1;
        for (size_t i = 0; i < n; i++)
            padded = padded && b[i].alignment == b[0].alignment;
        memfit_error err;
        mf_pack_result r;
        assert_ok(mf_pack(NULL, b, n, &o, &r, &err), err);
        assert_true(padded ? r.bound <= best && r.height >= best && r.height < best + 4
                           : r.optimal && r.height == best);
        assert_ok(mf_pack_check(NULL, b, n, r.height, NULL, &err), err);
        gaps += best > r.max_load;
        if (best > 1 && !padded) {
            o.capacity = best - 1;
            assert_ok(mf_pack(NULL, b, n, &o, &r, &err), err);
            assert_true(r.impossible && !r.solved && r.bound == best);
            o.capacity = best;
            assert_ok(mf_pack(NULL, b, n, &o, &r, &err), err);
            assert_true(r.solved && !r.impossible && r.height == best);
        }
    }
    assert_true(gaps > 20); /* the bound alone would not have passed */
}

/* Time reversed, other seeds, other threads: proofs must agree. */
static void proofs_agree(void **state)
{
    (void)state;
    uint64_t seed = 23;
    for (int round = 0; round < 150; round++) {
        mf_pack_buffer b[30];
        size_t n = 10 + next_random(&seed) % 20;
        fill_random(b, n, &seed, 6 + (int64_t)(next_random(&seed) % 12), 3 + next_random(&seed) % 20);
        uint64_t height = 0;
        for (unsigned variant = 0; variant < 3; variant++) {
            mf_pack_options o;
            memfit_pack_options_default(&o);
            o.effort = MEMFIT_PACK_EXACT;
            o.threads = 1 + (variant & 1);
            o.seed = 100 + variant;
            o.time_limit_us = 20000000;
            memfit_error err;
            mf_pack_result r;
            assert_ok(mf_pack(NULL, b, n, &o, &r, &err), err);
            assert_ok(mf_pack_check(NULL, b, n, r.height, NULL, &err), err);
            assert_true(r.optimal);
            assert_true(variant == 0 || r.height == height);
            height = r.height;
            for (size_t i = 0; i < n; i++) {
                int64_t lower = b[i].lower;
                b[i].lower = -b[i].upper;
                b[i].upper = -lower;
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bound_and_packing_agree_with_their_definitions),
        cmocka_unit_test(exact_agrees_with_brute_force),
        cmocka_unit_test(proofs_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
