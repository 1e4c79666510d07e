/*
 * test_ops_attention.c: attention as one operation against the products and the softmax it is made of: every form that
 * layers are lowered to, shapes drawn at random, forward and backward, in float64, float32 and bfloat16, on the reference
 * and the cpu backend; what keeps the old form; refusals of host memory at every place.
 */
#include "attention_graphs.h"
#include "opcheck.h"

#include "graph/group.h"
#include "ops/reference/reference.h"

static mf_backend *reference, *cpu;

static bool always(void *ctx, const mf_graph *graph, const mf_op *attention)
{
    (void)ctx;
    (void)graph;
    (void)attention;
    return true;
}

static const mf_group_taker attends = {.attends = always};

static uint64_t draws = 1;

static int64_t between(int64_t least, int64_t most)
{
    draws = draws * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return least + (int64_t)((draws >> 33) % (uint64_t)(most - least + 1));
}

/* Numbers that type `as` can hold. */
static void fill(mf_interpreter *it, const mf_graph *g, mf_dtype as)
{
    for (uint32_t i = 0; i < g->op_count; i++) {
        if (g->ops[i].kind != MF_OP_INPUT)
            continue;
        const mf_tensor *t = &g->tensors[g->ops[i].out[0]];
        for (uint64_t k = 0; k < mf_shape_count(&t->shape); k++) {
            uint64_t bits = (k * 2654435761u + strlen(t->name) * 77 + (unsigned char)t->name[0] * 131) % 1009;
            double v = t->dtype == MF_U8 ? (double)(bits % 3 != 0) : 4.0 * (double)bits / 1009 - 2;
            double rounded = 0;
            mf_ref_store(t->dtype == MF_U8 ? MF_U8 : as, &rounded, 0, v);
            v = mf_ref_load(t->dtype == MF_U8 ? MF_U8 : as, &rounded, 0);
            mf_ref_store(t->dtype, mf_interpret_data(it, g->ops[i].out[0]), k, v);
        }
    }
}

static uint32_t count_kind(const mf_graph *g, mf_op_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        n += g->ops[i].kind == kind;
    return n;
}

static double difference(const mf_tensor *t, mf_dtype other, mf_interpreter *a, uint32_t ta, mf_interpreter *b,
                         uint32_t tb)
{
    double apart = 0, norm = 0;
    for (uint64_t i = 0; i < mf_shape_count(&t->shape); i++) {
        double x = mf_ref_load(t->dtype, mf_interpret_data(a, ta), i);
        double y = mf_ref_load(other, mf_interpret_data(b, tb), i);
        assert_true(isfinite(x) && isfinite(y));
        apart += (x - y) * (x - y);
        norm += y * y;
    }
    return norm == 0 ? sqrt(apart) : sqrt(apart / norm);
}

/* Both graphs on the same numbers. */
static void same_numbers(const attention_form *f, const mf_graph *plain, const mf_graph *attended, mf_backend *backend)
{
    memfit_error err = {0};
    mf_interpreter *a, *b;
    mf_run_scalars scalars = mf_interpret_scalars(plain, 0.1);
    scalars.seed = 11;
    scalars.first_sample = 3;
    assert_ok(mf_interpret_create(NULL, attended, backend, &a, &err), err);
    assert_ok(mf_interpret_create(NULL, plain, reference, &b, &err), err);
    fill(a, attended, f->dtype);
    fill(b, plain, f->dtype);
    assert_ok(mf_interpret_run(a, &scalars, true, true, &err), err);
    assert_ok(mf_interpret_run(b, &scalars, true, true, &err), err);
    for (uint32_t i = 0; i < plain->output_count; i++) {
        double apart = difference(&attended->tensors[attended->outputs[i]], plain->tensors[plain->outputs[i]].dtype, a,
                                  attended->outputs[i], b, plain->outputs[i]);
        double bound = f->dtype == MF_F64 ? 1e-12 : f->dtype == MF_F32 ? 2e-5 : 4e-2;
        if (!(apart <= bound))
            print_message("output %u of %s: N %lld H %lld T %lld S %lld D %lld E %lld, masks %u, causal %u, zeroed %d, "
                          "rate %g, transposed %d, three %d: off by %g\n",
                          i, mf_dtype_name(f->dtype), (long long)f->batch, (long long)f->heads, (long long)f->queries,
                          (long long)f->keys, (long long)f->depth, (long long)f->values, f->masks, f->causal, f->zeroed,
                          f->rate, f->transposed, f->three, apart);
        assert_true(apart <= bound);
    }
    mf_interpret_destroy(a);
    mf_interpret_destroy(b);
}

static void check_form(const attention_form *f, bool taken)
{
    memfit_error err = {0};
    attention_form exact = *f; /* products in 16 bits round scores and weights, which this does not */
    exact.dtype = f->dtype == MF_F32 ? MF_F32 : MF_F64;
    mf_graph *plain = attention_graph(NULL, &exact, &err), *g = attention_graph(NULL, f, &err);
    assert_non_null(plain);
    assert_non_null(g);
    bool back = f->backward[0] || f->backward[1] || f->backward[2];
    assert_ok(mf_graph_group(g, &attends, &err), err);
    if (count_kind(g, MF_OP_ATTENTION) != taken)
        print_message(
            "%s, N %lld H %lld T %lld S %lld, masks %u, causal %u, zeroed %d, rate %g, transposed %d, three %d, "
            "backward %d %d %d: %s\n",
            mf_dtype_name(f->dtype), (long long)f->batch, (long long)f->heads, (long long)f->queries,
            (long long)f->keys, f->masks, f->causal, f->zeroed, f->rate, f->transposed, f->three, f->backward[0],
            f->backward[1], f->backward[2], taken ? "not taken" : "taken");
    assert_int_equal(count_kind(g, MF_OP_ATTENTION), taken);
    assert_int_equal(count_kind(g, MF_OP_ATTENTION_GRAD), taken && back);
    if (taken) {
        assert_int_equal(count_kind(g, MF_OP_SOFTMAX) + count_kind(g, MF_OP_SOFTMAX_GRAD) +
                             count_kind(g, MF_OP_SELECT) + count_kind(g, MF_OP_DROPOUT) + count_kind(g, MF_OP_FILL) +
                             count_kind(g, MF_OP_MATMUL) + count_kind(g, MF_OP_TRANSPOSE),
                         0);
    }
    same_numbers(f, plain, g, reference);
    same_numbers(f, plain, g, cpu);
    mf_graph_destroy(plain);
    mf_graph_destroy(g);
}

static void every_form(void **state)
{
    (void)state;
    static const mf_dtype types[] = {MF_F64, MF_F32, MF_BF16, MF_F16};
    for (uint32_t i = 0; i < 600; i++) {
        bool large = i % 60 == 0; /* several blocks of queries, and of what a product takes at once */
        attention_form f = {.dtype = types[between(0, 3)],
                            .batch = between(1, 3),
                            .queries = between(1, 40),
                            .keys = between(1, 40),
                            .depth = between(1, 20),
                            .values = between(1, 20),
                            .three = between(0, 3) == 0,
                            .masks = (uint32_t)between(0, 7),
                            .causal = (uint32_t)between(0, 2)};
        if (f.dtype == MF_BF16 || f.dtype == MF_F16) { /* slopes of a query with one key are 0 but for y's rounding */
            f.queries = between(16, 40);
            f.keys = between(16, 40);
        }
        if (large) {
            f.queries = between(100, 420);
            f.keys = between(100, 700);
        }
        f.heads = f.three ? 1 : between(1, large ? 2 : 4);
        f.transposed = !f.three && between(0, 1);
        if (between(0, 2) > 0)
            for (int k = 0; k < 3; k++)
                f.backward[k] = true;
        else
            f.backward[between(0, 2)] = between(0, 1);
        if (f.masks && f.causal == 1)
            f.causal = 2; /* a causal mask alone is the softmax's own */
        f.zeroed = (f.masks || f.causal == 2) && between(0, 1);
        f.rate = between(0, 1) ? 0.25 : 0;
        check_form(&f, true);
    }
}

/* Keys enough that a block has few queries. */
static void blocks_of_few_queries(void **state)
{
    (void)state;
    attention_form f = {.dtype = MF_F32,
                        .batch = 1,
                        .heads = 1,
                        .queries = 60,
                        .keys = 6001,
                        .depth = 9,
                        .values = 33,
                        .backward = {true, true, true},
                        .masks = 1,
                        .rate = 0.25};
    check_form(&f, true);
}

/* What somebody else reads must be there. */
static void weights_that_are_shown_keep_the_old_form(void **state)
{
    (void)state;
    attention_form f = {.dtype = MF_F32,
                        .batch = 2,
                        .heads = 2,
                        .queries = 5,
                        .keys = 7,
                        .depth = 4,
                        .values = 3,
                        .transposed = true,
                        .backward = {true, true, true},
                        .shown = true};
    check_form(&f, false);
}

/* ---- a host that refuses ---- */

static void *refuse(void *ctx, void *ptr, size_t old_bytes, size_t new_bytes)
{
    unsigned *left = ctx;
    (void)old_bytes;
    if (new_bytes == 0) {
        free(ptr);
        return NULL;
    }
    if (*left == 0)
        return NULL;
    --*left;
    return realloc(ptr, new_bytes);
}

static void a_host_may_refuse_anywhere(void **state)
{
    (void)state;
    attention_form f = {.dtype = MF_F32,
                        .batch = 2,
                        .heads = 2,
                        .queries = 5,
                        .keys = 7,
                        .depth = 4,
                        .values = 3,
                        .transposed = true,
                        .backward = {true, true, true},
                        .masks = 3,
                        .rate = 0.5,
                        .zeroed = true};
    unsigned n = 0;
    for (bool done = false; !done && n < 1000; n++) {
        unsigned left = n;
        memfit_host host = {.resize = refuse, .ctx = &left};
        memfit_error err = {0};
        mf_graph *g = attention_graph(&host, &f, &err);
        if (g) {
            memfit_status status = mf_graph_group(g, &attends, &err);
            assert_true(status == MEMFIT_OK || status == MEMFIT_NO_HOST_MEMORY);
            done = status == MEMFIT_OK;
            mf_graph_destroy(g);
        }
    }
    assert_true(n < 1000);
}

int main(void)
{
    memfit_error err = {0};
    if (mf_reference_create(NULL, &reference, &err) != MEMFIT_OK || mf_cpu_create(NULL, 2, &cpu, &err) != MEMFIT_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form),
        cmocka_unit_test(blocks_of_few_queries),
        cmocka_unit_test(weights_that_are_shown_keep_the_old_form),
        cmocka_unit_test(a_host_may_refuse_anywhere),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cpu->table->destroy(cpu);
    reference->table->destroy(reference);
    return failed;
}
