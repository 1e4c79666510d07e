/*
 * test_ops_reference.c: what the gradient checks do not see: the generator against its published numbers, random layers
 * by distribution and under splitting, storage types, accumulation over pieces, in-place state, augmentation, errors,
 * lack of memory.
 */
#include "opcheck.h"

#include "graph/augment.h"
#include "ops/reference/draw.h"
#include "ops/reference/reference.h"

static mf_backend *reference;

/* Known answers of Philox 4x32-10 from its authors' library. */
static void philox_gives_its_published_numbers(void **state)
{
    (void)state;
    uint32_t out[4];
    mf_philox(0, 0, 0, 0, 0, out);
    assert_int_equal(out[0], 0x6627e8d5u);
    assert_int_equal(out[1], 0xe169c58du);
    assert_int_equal(out[2], 0xbc57ac4cu);
    assert_int_equal(out[3], 0x9b00dbd8u);
    mf_philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, out);
    assert_int_equal(out[0], 0x408f276du);
    assert_int_equal(out[1], 0x41c83b0eu);
    assert_int_equal(out[2], 0xa20bc7c6u);
    assert_int_equal(out[3], 0x6d5451fdu);
}

/* One operation with hand-made tensors: shapes and types by operand. */
typedef struct hand {
    mf_graph graph;
    mf_op op;
    mf_tensor tensors[12];
    mf_storage storages[12];
    uint32_t ids[12];
    void *data[12];
} hand;

static void hand_make(hand *h, mf_op_kind kind, uint32_t in, uint32_t out, const mf_dtype *types,
                      const mf_shape *shapes)
{
    memset(h, 0, sizeof *h);
    for (uint32_t i = 0; i < in + out; i++) {
        h->ids[i] = i;
        h->tensors[i] = (mf_tensor){.dtype = types[i], .shape = shapes[i], .storage = i, .variable = MF_NONE};
        h->storages[i] = (mf_storage){.bytes = 0, .variable = MF_NONE};
        h->data[i] = calloc(mf_shape_count(&shapes[i]) + 1, 8);
    }
    h->op = (mf_op){.kind = kind, .in = h->ids, .out = h->ids + in, .in_count = in, .out_count = out};
    h->graph = (mf_graph){.ops = &h->op,
                          .op_count = 1,
                          .tensors = h->tensors,
                          .tensor_count = in + out,
                          .storages = h->storages,
                          .storage_count = in + out};
}

static memfit_status hand_run(hand *h, const mf_run_scalars *scalars, memfit_error *err)
{
    mf_cost cost;
    mf_kernel *kernel;
    memfit_status status = reference->table->query(reference, &h->graph, 0, &cost, err);
    if (status == MEMFIT_OK)
        status = reference->table->prepare(reference, &h->graph, 0, NULL, &kernel, err);
    if (status)
        return status;
    uint64_t bytes = cost.methods[0].workspace_bytes;
    void *in[12], *out[12], *workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
    for (uint32_t i = 0; i < h->op.in_count; i++)
        in[i] = h->ids[i] == MF_NONE ? NULL : h->data[i];
    for (uint32_t i = 0; i < h->op.out_count; i++)
        out[i] = h->ids[h->op.in_count + i] == MF_NONE ? NULL : h->data[h->op.in_count + i];
    mf_operands operands = {.in = in, .out = out, .workspace = workspace};
    status = reference->table->run(kernel, &operands, scalars, 0, err);
    reference->table->release(reference, kernel);
    free(workspace);
    return status;
}

static void hand_free(hand *h)
{
    for (uint32_t i = 0; i < h->op.in_count + h->op.out_count; i++)
        free(h->data[i]);
}

static mf_shape shape(uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return mf_shape_make(rank, (int64_t[]){a, b, c, d});
}

static void moments(const float *x, uint64_t n, double *mean, double *deviation)
{
    double sum = 0, square = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += x[i];
    *mean = sum / (double)n;
    for (uint64_t i = 0; i < n; i++)
        square += (x[i] - *mean) * (x[i] - *mean);
    *deviation = sqrt(square / (double)n);
}

static void random_numbers_follow_their_distribution(void **state)
{
    (void)state;
    static const struct {
        uint32_t distribution;
        double a, b, rate, mean, deviation;
    } v[] = {{0, -1, 3, 0, 1, 4 / 3.4641016},
             {1, 2, 0.5, 0, 2, 0.5},
             {2, 0, 0, 0.3, 0.7, 0.4582576},
             {3, 0, 1, 0, 0, 0.8796}};
    for (size_t k = 0; k < sizeof v / sizeof *v; k++) {
        hand h;
        hand_make(&h, MF_OP_RANDOM, 0, 1, (mf_dtype[]){MF_F32}, (mf_shape[]){shape(2, 64, 1000, 0, 0)});
        h.op.attr.random.distribution = v[k].distribution;
        h.op.attr.random.mean = v[k].a;
        h.op.attr.random.scale = v[k].b;
        h.op.attr.random.rate = v[k].rate;
        mf_run_scalars s = {.seed = 42};
        memfit_error err = {0};
        assert_ok(hand_run(&h, &s, &err), err);
        double mean, deviation;
        moments(h.data[0], 64000, &mean, &deviation);
        assert_true(fabs(mean - v[k].mean) < 0.02);
        assert_true(fabs(deviation - v[k].deviation) < 0.01);
        hand_free(&h);
    }
}

/* The whole batch against its two halves: the same mask, as first_sample says where a piece begins. */
static void pieces_draw_the_numbers_of_the_whole(void **state)
{
    (void)state;
    float masks[3][8 * 35];
    for (int k = 0; k < 3; k++) {
        hand h;
        mf_shape s = shape(3, k == 0 ? 8 : 4, 5, 7, 0);
        hand_make(&h, MF_OP_DROPOUT, 1, 1, (mf_dtype[]){MF_F32, MF_F32}, (mf_shape[]){s, s});
        h.op.attr.random.rate = 0.4;
        h.op.attr.random.key = 3;
        for (uint64_t i = 0; i < mf_shape_count(&s); i++)
            ((float *)h.data[0])[i] = 1;
        mf_run_scalars scalars = {.seed = 9, .step = 17, .first_sample = k == 2 ? 4 : 0};
        memfit_error err = {0};
        assert_ok(hand_run(&h, &scalars, &err), err);
        memcpy(masks[k], h.data[1], mf_shape_count(&s) * 4);
        hand_free(&h);
    }
    assert_memory_equal(masks[0], masks[1], 4 * 35 * 4);
    assert_memory_equal(masks[0] + 4 * 35, masks[2], 4 * 35 * 4);
    unsigned kept = 0;
    for (int i = 0; i < 8 * 35; i++) {
        kept += masks[0][i] != 0;
        assert_true(masks[0][i] == 0 || fabsf(masks[0][i] - 1 / 0.6f) < 1e-6f);
    }
    assert_in_range(kept, 140, 196); /* 168 expected of 280 */
}

static void shared_axes_share_their_draw(void **state)
{
    (void)state;
    hand h;
    mf_shape s = shape(4, 2, 3, 4, 5);
    hand_make(&h, MF_OP_DROPOUT, 1, 1, (mf_dtype[]){MF_F32, MF_F32}, (mf_shape[]){s, s});
    h.op.attr.random.rate = 0.5;
    h.op.attr.random.shared_axes = 2 | 4; /* spatial dropout: whole channels */
    for (int i = 0; i < 120; i++)
        ((float *)h.data[0])[i] = 1;
    mf_run_scalars scalars = {.seed = 5};
    memfit_error err = {0};
    assert_ok(hand_run(&h, &scalars, &err), err);
    const float *y = h.data[1];
    for (int n = 0; n < 2; n++)
        for (int p = 1; p < 12; p++)
            assert_memory_equal(y + n * 60, y + n * 60 + p * 5, 5 * 4);
    hand_free(&h);
}

static void storage_types_convert(void **state)
{
    (void)state;
    static const struct {
        double value, half, bfloat;
    } v[] = {{0, 0, 0},
             {1, 1, 1},
             {-2.5, -2.5, -2.5},
             {65504, 65504, 65536},
             {1e6, INFINITY, 999424},
             {6e-8, 0x1p-24, 6.00703060626983642578125e-08},
             {1.0009765625, 1.0009765625, 1},
             {0.1, 0.0999755859375, 0.10009765625},
             {-INFINITY, -INFINITY, -INFINITY}};
    uint16_t store;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        mf_ref_store(MF_F16, &store, 0, v[i].value);
        assert_true(mf_ref_load(MF_F16, &store, 0) == v[i].half);
        mf_ref_store(MF_BF16, &store, 0, v[i].value);
        double b = mf_ref_load(MF_BF16, &store, 0);
        assert_true(b == v[i].bfloat || fabs(b - v[i].bfloat) < 1e-7 * fabs(b));
    }
    for (uint32_t bits = 0; bits < 65536; bits++) { /* every number comes back as itself */
        uint16_t in = (uint16_t)bits, out;
        double value = mf_ref_load(MF_F16, &in, 0);
        mf_ref_store(MF_F16, &out, 0, value);
        assert_true(value != value || out == in);
        value = mf_ref_load(MF_BF16, &in, 0);
        mf_ref_store(MF_BF16, &out, 0, value);
        assert_true(value != value || out == in);
    }
    mf_ref_store(MF_F16, &store, 0, NAN);
    assert_true(isnan(mf_ref_load(MF_F16, &store, 0)));
}

/* A product with 16-bit operands is the float product of the rounded numbers, rounded. */
static void narrow_operands_compute_in_float(void **state)
{
    (void)state;
    hand h;
    mf_shape a = shape(2, 3, 4, 0, 0), b = shape(2, 4, 2, 0, 0), c = shape(2, 3, 2, 0, 0);
    hand_make(&h, MF_OP_MATMUL, 2, 1, (mf_dtype[]){MF_BF16, MF_F16, MF_BF16}, (mf_shape[]){a, b, c});
    h.op.attr.matmul.scale = 1;
    for (uint64_t i = 0; i < 12; i++)
        mf_ref_store(MF_BF16, h.data[0], i, 0.1 * (double)i);
    for (uint64_t i = 0; i < 8; i++)
        mf_ref_store(MF_F16, h.data[1], i, 1 - 0.3 * (double)i);
    mf_run_scalars scalars = {0};
    memfit_error err = {0};
    assert_ok(hand_run(&h, &scalars, &err), err);
    for (uint64_t i = 0; i < 3; i++)
        for (uint64_t j = 0; j < 2; j++) {
            double sum = 0;
            for (uint64_t k = 0; k < 4; k++)
                sum += mf_ref_load(MF_BF16, h.data[0], i * 4 + k) * mf_ref_load(MF_F16, h.data[1], k * 2 + j);
            uint16_t wanted;
            mf_ref_store(MF_BF16, &wanted, 0, (float)sum);
            assert_int_equal(((uint16_t *)h.data[2])[i * 2 + j], wanted);
        }
    hand_free(&h);
}

/* Row 1 and column 1 have no gradient: Adafactor's factored moment there is below the smallest float. */
static void adafactor_without_a_gradient_takes_no_step(void **state)
{
    (void)state;
    hand h;
    mf_shape w = shape(2, 2, 2, 0, 0), line = shape(1, 2, 0, 0, 0);
    mf_dtype types[9] = {MF_F32, MF_F32, MF_F32, MF_F32, MF_F32, MF_F32, MF_F32, MF_F32, MF_F32};
    hand_make(&h, MF_OP_UPDATE, 5, 4, types, (mf_shape[]){w, w, line, line, w, w, line, line, w});
    h.op.attr.update = (mf_update_attr){.optimizer = MF_OPTIMIZER_ADAFACTOR,
                                        .beta_2 = -0.8,
                                        .epsilon = 1e-30,
                                        .epsilon_2 = 1e-3,
                                        .clip_threshold = 1,
                                        .relative_step = 1};
    const float weights[4] = {1, 2, 3, 4}, gradient[4] = {0.5f, 0, 0, 0};
    memcpy(h.data[0], weights, sizeof weights);
    memcpy(h.data[1], gradient, sizeof gradient);
    mf_run_scalars scalars = {.learning_rate = 0.001};
    memfit_error err = {0};
    assert_ok(hand_run(&h, &scalars, &err), err);
    const float *after = h.data[5];
    assert_true(after[0] < 1 && after[0] > 0.9f);
    for (int i = 1; i < 4; i++)
        assert_true(after[i] == weights[i]);
    hand_free(&h);
}

static void gradients_of_pieces_are_added(void **state)
{
    (void)state;
    hand h;
    mf_shape x = shape(2, 4, 3, 0, 0), y = shape(1, 3, 0, 0, 0);
    hand_make(&h, MF_OP_REDUCE, 1, 1, (mf_dtype[]){MF_F32, MF_F32}, (mf_shape[]){x, y});
    h.op.attr.reduce.axes = 1;
    h.op.accumulate = true;
    h.storages[1].variable = 0; /* lies in a variable: added to */
    for (int i = 0; i < 12; i++)
        ((float *)h.data[0])[i] = (float)i;
    mf_run_scalars scalars = {0};
    memfit_error err = {0};
    assert_ok(hand_run(&h, &scalars, &err), err);
    assert_ok(hand_run(&h, &scalars, &err), err);
    assert_true(((float *)h.data[1])[0] == 2 * (0 + 3 + 6 + 9));
    h.storages[1].variable = MF_NONE; /* does not, but is the only output: added to all the same, as chunks are */
    assert_ok(hand_run(&h, &scalars, &err), err);
    assert_true(((float *)h.data[1])[0] == 3 * (0 + 3 + 6 + 9));
    h.op.accumulate = false;
    assert_ok(hand_run(&h, &scalars, &err), err);
    assert_true(((float *)h.data[1])[0] == 0 + 3 + 6 + 9);
    hand_free(&h);
}

static void a_set_flag_skips_the_update(void **state)
{
    (void)state;
    hand h;
    mf_shape s = shape(1, 3, 0, 0, 0), one = shape(0, 0, 0, 0, 0);
    hand_make(&h, MF_OP_UPDATE, 3, 1, (mf_dtype[]){MF_F32, MF_F32, MF_I32, MF_F32}, (mf_shape[]){s, s, one, s});
    h.op.attr.update.optimizer = MF_OPTIMIZER_SGD;
    free(h.data[3]);
    h.data[3] = h.data[0]; /* in place */
    for (int i = 0; i < 3; i++)
        ((float *)h.data[0])[i] = ((float *)h.data[1])[i] = 1;
    mf_run_scalars scalars = {.learning_rate = 0.5};
    memfit_error err = {0};
    assert_ok(hand_run(&h, &scalars, &err), err);
    assert_true(((float *)h.data[0])[1] == 0.5f);
    *(int32_t *)h.data[2] = 1;
    assert_ok(hand_run(&h, &scalars, &err), err);
    assert_true(((float *)h.data[0])[1] == 0.5f);
    h.data[3] = NULL;
    hand_free(&h);
}

static void loss_scale_comes_out_again(void **state)
{
    (void)state;
    hand h;
    mf_shape s = shape(1, 3, 0, 0, 0), one = shape(0, 0, 0, 0, 0);
    hand_make(&h, MF_OP_CHECK_FINITE, 2, 2, (mf_dtype[]){MF_F32, MF_F32, MF_F32, MF_F32}, (mf_shape[]){s, one, one, s});
    for (int i = 0; i < 3; i++)
        ((float *)h.data[0])[i] = 1024;
    mf_run_scalars scalars = {.loss_scale = 512};
    memfit_error err = {0};
    assert_ok(hand_run(&h, &scalars, &err), err);
    assert_true(*(float *)h.data[2] == 0 && ((float *)h.data[3])[2] == 2);
    ((float *)h.data[0])[1] = INFINITY;
    assert_ok(hand_run(&h, &scalars, &err), err);
    assert_true(*(float *)h.data[2] == 1);
    hand_free(&h);
}

static void labels_and_indices_out_of_range_are_named(void **state)
{
    (void)state;
    hand h;
    mf_shape pred = shape(2, 3, 4, 0, 0), target = shape(1, 3, 0, 0, 0);
    hand_make(&h, MF_OP_LOSS_GRAD, 2, 1, (mf_dtype[]){MF_F32, MF_I64, MF_F32}, (mf_shape[]){pred, target, pred});
    h.op.attr.loss.function = MF_LOSS_SCCE_LOGITS;
    ((int64_t *)h.data[1])[2] = 4;
    mf_run_scalars scalars = {.batch_samples = 3, .first_sample = 30};
    memfit_error err = {0};
    assert_int_equal(hand_run(&h, &scalars, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "label 4 of sample 32"));
    hand_free(&h);
    hand_make(&h, MF_OP_GATHER, 2, 1, (mf_dtype[]){MF_F32, MF_F32, MF_F32},
              (mf_shape[]){shape(2, 5, 2, 0, 0), target, shape(2, 3, 2, 0, 0)});
    ((float *)h.data[1])[0] = -1;
    assert_int_equal(hand_run(&h, &scalars, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "index -1"));
    hand_free(&h);
}

/* A model that has diverged must not look like a good one. */
static void losses_of_nan_are_nan(void **state)
{
    (void)state;
    for (int f = 0; f < MF_LOSS_COUNT; f++) {
        bool sparse = f == MF_LOSS_SCCE || f == MF_LOSS_SCCE_LOGITS;
        hand h;
        mf_shape p = shape(2, 3, 4, 0, 0), t = sparse ? shape(1, 3, 0, 0, 0) : p, one = shape(0, 0, 0, 0, 0);
        hand_make(&h, MF_OP_LOSS, 4, 1, (mf_dtype[]){MF_F32, MF_F32, MF_F32, MF_F32, MF_F32},
                  (mf_shape[]){p, t, one, one, one});
        h.ids[2] = MF_NONE;
        h.op.attr = (mf_attr){.loss = {.function = (mf_loss)f, .weight = 1, .delta = 1, .alpha = 0.25, .gamma = 2}};
        for (int i = 0; i < 12; i++)
            ((float *)h.data[0])[i] = i == 5 ? NAN : 0.25f;
        ((float *)h.data[1])[sparse ? 1 : 6] = 1;
        mf_run_scalars scalars = {.batch_samples = 3};
        memfit_error err = {0};
        assert_ok(hand_run(&h, &scalars, &err), err);
        if (!isnan(*(float *)h.data[4]))
            fail_msg("loss %d of NaN is %g", f, (double)*(float *)h.data[4]);
        hand_free(&h);
    }
}

static void assumed_layers_cannot_run(void **state)
{
    (void)state;
    hand h;
    mf_shape s = shape(1, 3, 0, 0, 0);
    hand_make(&h, MF_OP_ASSUMED, 1, 1, (mf_dtype[]){MF_F32, MF_F32}, (mf_shape[]){s, s});
    mf_cost cost;
    memfit_error err = {0};
    mf_kernel *kernel;
    assert_ok(reference->table->query(reference, &h.graph, 0, &cost, &err), err);
    assert_false(cost.supported);
    assert_int_equal(reference->table->prepare(reference, &h.graph, 0, NULL, &kernel, &err), MEMFIT_UNSUPPORTED);
    hand_free(&h);
}

/* Images change as they should: the same pixels for a flip, the mean kept by contrast, the range by brightness. */
static void augmentation_keeps_what_it_should(void **state)
{
    (void)state;
    for (uint32_t f = 0; f < MF_AUGMENT_COUNT; f++) {
        hand h;
        mf_shape s = shape(4, 16, 6, 6, 3), o = f == MF_AUGMENT_CROP ? shape(4, 16, 4, 3, 3) : s;
        hand_make(&h, MF_OP_AUGMENT, 1, 1, (mf_dtype[]){MF_F32, MF_F32}, (mf_shape[]){s, o});
        h.op.attr.augment.function = f;
        double *a = h.op.attr.augment.a;
        a[0] = f == MF_AUGMENT_FLIP ? 3 : f == MF_AUGMENT_CONTRAST ? 0.5 : f >= MF_AUGMENT_GRAYSCALE ? 0.5 : -0.2;
        a[1] = f == MF_AUGMENT_CONTRAST ? 1.5 : 0.2;
        a[2] = f >= MF_AUGMENT_CONTRAST ? 0 : -0.2;
        a[3] = f >= MF_AUGMENT_CONTRAST ? 255 : 0.2;
        a[4] = 1;
        for (uint64_t i = 0; i < 16 * 108; i++)
            ((float *)h.data[0])[i] = (float)(100 + i % 108 / 3);
        mf_run_scalars scalars = {.seed = 1};
        memfit_error err = {0};
        assert_ok(hand_run(&h, &scalars, &err), err);
        unsigned changed = 0;
        const float *y = h.data[1];
        for (uint64_t i = 0; i < mf_shape_count(&o); i++) {
            bool within = f == MF_AUGMENT_BRIGHTNESS || f == MF_AUGMENT_INVERT || f == MF_AUGMENT_CONTRAST
                              ? y[i] >= 0 && y[i] <= 255
                              : y[i] >= 99.9f && y[i] <= 135.1f; /* interpolation stays between its pixels */
            assert_true(within);
            changed += f != MF_AUGMENT_CROP && y[i] != ((float *)h.data[0])[i];
        }
        assert_true(f == MF_AUGMENT_CROP || f == MF_AUGMENT_GRAYSCALE || changed > 100);
        hand_free(&h);
    }
}

static void every_failing_allocation_is_survived(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, true);
        mf_backend *b = NULL;
        mf_kernel *k = NULL;
        memfit_error err = {0};
        hand h;
        mf_shape s = shape(1, 3, 0, 0, 0);
        hand_make(&h, MF_OP_UNARY, 1, 1, (mf_dtype[]){MF_F32, MF_F32}, (mf_shape[]){s, s});
        memfit_status status = mf_reference_create(&fault.host, &b, &err);
        if (status == MEMFIT_OK)
            status = b->table->prepare(b, &h.graph, 0, NULL, &k, &err);
        bool done = status == MEMFIT_OK;
        assert_true(done || status == MEMFIT_NO_HOST_MEMORY);
        if (k)
            b->table->release(b, k);
        if (b)
            b->table->destroy(b);
        assert_int_equal(fault.live_count, 0);
        hand_free(&h);
        if (done)
            return;
    }
}

int main(void)
{
    memfit_error err = {0};
    if (mf_reference_create(NULL, &reference, &err) != MEMFIT_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_its_published_numbers),
        cmocka_unit_test(random_numbers_follow_their_distribution),
        cmocka_unit_test(pieces_draw_the_numbers_of_the_whole),
        cmocka_unit_test(shared_axes_share_their_draw),
        cmocka_unit_test(storage_types_convert),
        cmocka_unit_test(narrow_operands_compute_in_float),
        cmocka_unit_test(gradients_of_pieces_are_added),
        cmocka_unit_test(adafactor_without_a_gradient_takes_no_step),
        cmocka_unit_test(a_set_flag_skips_the_update),
        cmocka_unit_test(loss_scale_comes_out_again),
        cmocka_unit_test(losses_of_nan_are_nan),
        cmocka_unit_test(labels_and_indices_out_of_range_are_named),
        cmocka_unit_test(assumed_layers_cannot_run),
        cmocka_unit_test(augmentation_keeps_what_it_should),
        cmocka_unit_test(every_failing_allocation_is_survived),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    reference->table->destroy(reference);
    return failed;
}
