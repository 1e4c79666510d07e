/* test_cuda_menus.c: which of cuDNN's engines a convolution's menu has, in what order, and how quick they are said to be; which own
 * kernels are taken where. */
#include "test.h"

#include "base/os.h"
#include "model/model.h"
#include "model/lower/model_graphs.h"
#include "graph/build.h"
#include "graph/group.h"
#include "ops/cuda/convolutions.h"
#include "ops/cuda/cuda_engine.h"
#include "ops/cuda/cuda_spec.h"

#include <string.h>

static mf_cost menu_of(const mf_cudnn_convolution *conv, const mf_cudnn_way *list, uint32_t count)
{
    mf_cost cost = {0};
    cuda_convolution_menu(conv, list, count, 0, 1e12, 1e9, false, &cost);
    cost.supported = cost.method_count > 0;
    return cost;
}

/* A run without a limit takes no engine that wants many times the operands' bytes, unless there is no other. */
static void workspaces_are_sensible(void **state)
{
    (void)state;
    const uint64_t gb = 1000000000;
    mf_cudnn_convolution conv = {.type = MF_CUDNN_F32, .in_channels = 256, .out_channels = 256};
    const mf_cudnn_way list[] = {{.engine = 1, .workspace_bytes = 36 * gb, .deterministic = true},
                                 {.engine = 2, .workspace_bytes = 2 * gb, .deterministic = true},
                                 {.engine = 3, .workspace_bytes = 30 * gb, .deterministic = true, .tf32 = true},
                                 {.engine = 4, .workspace_bytes = 0, .deterministic = true},
                                 {.engine = 5, .workspace_bytes = 0, .deterministic = false}};
    mf_cost cost = menu_of(&conv, list, 5);
    assert_int_equal(cost.method_count, 3);
    assert_int_equal(cost.methods[mf_cost_choose(&cost, (mf_method_rules){0}, UINT64_MAX)].workspace_bytes, 2 * gb);
    assert_int_equal(cost.methods[mf_cost_choose(&cost, (mf_method_rules){0}, gb)].workspace_bytes, 0);
    assert_int_equal(cost.methods[2].workspace_bytes, 30 * gb); /* the only one in TF32 */
    cost = menu_of(&conv, list, 1);
    assert_int_equal(cost.method_count, 1);
    assert_int_equal(cost.methods[0].workspace_bytes, 36 * gb);
}

/* Whole tiles that leave most multiprocessors idle at the end: the list's way with the same tile, shared, comes first; not where
 * they come out even, where there is less than one on each or more than two, where sums are short, or for what `memfit tune` shall time. */
static void tiles_that_do_not_come_out_even_are_shared(void **state)
{
    (void)state;
    const mf_cudnn_convolution known = {.direction = MF_CUDNN_WEIGHTS,
                                        .type = MF_CUDNN_BF16,
                                        .dims = 2,
                                        .batch = 32,
                                        .in_channels = 512,
                                        .out_channels = 512,
                                        .groups = 1,
                                        .out = {64, 64},
                                        .kernel = {3, 3}};
    const mf_cudnn_way lists[] = {
        {.engine = 65, .settings = 1, .deterministic = true, .tile_bytes = 65536},
        {.engine = 62, .settings = 2, .deterministic = true},
        {.engine = 65, .settings = 3, .deterministic = true, .tile_bytes = 131072, .shares = true},
        {.engine = 65, .settings = 4, .deterministic = true, .tile_bytes = 65536, .shares = true}};
    for (int form = 0; form < 9; form++) {
        mf_cudnn_convolution conv = known;
        mf_cudnn_way list[4];
        memcpy(list, lists, sizeof list);
        conv.direction = form == 1 ? MF_CUDNN_DATA : known.direction;
        conv.wide = form == 2;
        conv.batch = form == 3 ? 2 : known.batch; /* sums of 8,192 */
        conv.out_channels = form == 4   ? 384
                            : form == 5 ? 896
                            : form == 8 ? 1024
                                        : 512; /* 108, 252, 288 and 144 tiles */
        list[0].shares = form == 6;
        list[3].deterministic = form != 7;
        bool moved = cuda_convolution_prefer(&conv, list, 4, 132);
        assert_int_equal(moved, form == 0);
        for (int i = 0; i < 4; i++)
            assert_int_equal(list[i].settings, !moved ? i + 1 : i ? i : 4);
        assert_false(cuda_convolution_prefer(&conv, list, 4, 0));
    }
}

/* The library's first three, so that `memfit tune` has something to choose among, and the one with the least workspace, however
 * far behind: a limit may leave room for no other. With a bias inside in TF32 as well; own kernels' place stays free. */
static void menus_have_the_first_and_the_smallest(void **state)
{
    (void)state;
    mf_cudnn_convolution conv = {.type = MF_CUDNN_BF16, .in_channels = 256, .out_channels = 256};
    mf_cudnn_way list[12];
    for (int i = 0; i < 12; i++)
        list[i] = (mf_cudnn_way){
            .engine = i + 1, .workspace_bytes = (uint64_t)(i == 10 ? 16 : 64 + i % 3) << 20, .deterministic = true};
    for (int bias = 0; bias < 2; bias++) {
        conv.bias = bias;
        mf_cost cost = menu_of(&conv, list, 12);
        assert_int_equal(cost.method_count, bias ? 3 : 4);
        for (uint32_t i = 0; i < cost.method_count; i++) {
            int64_t engine = 0;
            memcpy(&engine, cost.methods[i].id + 8, sizeof engine);
            assert_int_equal(engine, i + 1 < cost.method_count ? (int64_t)i + 1 : 11);
        }
        assert_int_equal(mf_cost_choose(&cost, (mf_method_rules){0}, UINT64_MAX), 0); /* without times: the first */
        assert_int_equal(cost.methods[mf_cost_choose(&cost, (mf_method_rules){0}, 20 << 20)].workspace_bytes, 16 << 20);
    }
    conv.wide = true; /* somebody times them: all that are there, in the same order */
    conv.bias = false;
    mf_cost all = menu_of(&conv, list, 12);
    assert_int_equal(all.method_count, 12);
    assert_int_equal(mf_cost_choose(&all, (mf_method_rules){0}, UINT64_MAX), 0);
    conv.wide = false;
    conv.type = MF_CUDNN_F32;
    for (int i = 0; i < 12; i++)
        list[i].tf32 = i % 2;
    mf_cost cost = {0};
    for (int bias = 1; bias >= 0; bias--) {
        conv.bias = bias;
        cuda_convolution_menu(&conv, list, 12, 0, 1e12, 1e9, false, &cost);
    }
    unsigned count[2][2] = {{0}};
    for (uint32_t i = 0; i < cost.method_count; i++)
        count[cost.methods[i].id[2]][cost.methods[i].id[1]]++;
    assert_true(cost.method_count < MF_PLAIN_METHODS);
    assert_true(count[1][0] >= 1 && count[1][1] >= 2 && count[0][0] >= 2 && count[0][1] >= 1);
}

/* Engines that add in no fixed order come only when they are asked for, behind the menu, which stays as it was. Taken are
 * those that stand before every other in the library's list, or are timed best. */
static void loose_menus_stand_behind(void **state)
{
    (void)state;
    const mf_method_rules fixed = {.allow_changed = true}, loose = {true, true};
    mf_cudnn_convolution conv = {
        .direction = MF_CUDNN_WEIGHTS, .type = MF_CUDNN_F32, .in_channels = 64, .out_channels = 256};
    mf_cudnn_way list[] = {{.engine = 5, .deterministic = true},
                           {.engine = 6, .deterministic = false},
                           {.engine = 7, .deterministic = false, .compiled = true},
                           {.engine = 8, .deterministic = false, .tf32 = true},
                           {.engine = 9, .deterministic = true, .tf32 = true},
                           {.engine = 0, .deterministic = false},
                           {.engine = 11, .deterministic = false, .workspace_bytes = UINT64_C(36) << 30}};
    for (unsigned first = 0; first < 2; first++) {
        list[0].deterministic = !first;
        list[1].deterministic = first;
        for (unsigned wide = 0; wide < 2; wide++) {
            conv.wide = wide;
            mf_cost plain = menu_of(&conv, list, 7), cost = plain;
            assert_int_equal(plain.method_count, 2);
            cuda_convolution_loose_menu(&conv, list, 7, 0, 1e12, 1e9, false, &cost);
            assert_int_equal(cost.method_count, 5);
            assert_memory_equal(cost.methods, plain.methods, 2 * sizeof(mf_method));
            for (uint32_t i = 2; i < 5; i++)
                assert_false(cost.methods[i].deterministic);
            assert_int_equal(mf_cost_choose(&cost, fixed, UINT64_MAX), mf_cost_choose(&plain, fixed, UINT64_MAX));
            assert_int_equal(mf_cost_choose(&cost, (mf_method_rules){true, false}, UINT64_MAX), first ? 2 : 0);
            uint32_t best = mf_cost_choose(&cost, loose, UINT64_MAX); /* TF32 in no order stands before TF32 in order */
            int64_t engine = 0;
            memcpy(&engine, cost.methods[best].id + 8, sizeof engine);
            assert_int_equal(engine, 8);
            assert_true(cost.methods[3].time_us > 50 * cost.methods[2].time_us); /* the last resort */
        }
    }
    conv = (mf_cudnn_convolution){.direction = MF_CUDNN_WEIGHTS,
                                  .type = MF_CUDNN_BF16,
                                  .dims = 2,
                                  .before = {1, 1},
                                  .after = {1, 2},
                                  .in_channels = 64,
                                  .out_channels = 256};
    mf_cost none = {0};
    cuda_convolution_loose_menu(&conv, list, 7, 0, 1e12, 1e9, false, &none); /* wrong there on an H200 */
    assert_int_equal(none.method_count, 0);
}

/* Where the padding before and behind differs, a gradient in float32 takes only engines that were seen to be right there; with TF32,
 * in 16 bits, forward and where it does not differ it takes all. Also when somebody times them. */
static void uneven_padding(void **state)
{
    (void)state;
    static const mf_cudnn_direction directions[] = {MF_CUDNN_FORWARD, MF_CUDNN_DATA, MF_CUDNN_WEIGHTS};
    static const mf_cudnn_type types[] = {MF_CUDNN_F32, MF_CUDNN_BF16};
    static const int64_t engines[] = {74, 1, 18, 50, 67};
    for (int i = 0; i < 24; i++) {
        bool uneven = i % 2, wide = i / 12;
        mf_cudnn_direction direction = directions[i / 2 % 3];
        mf_cudnn_convolution conv = {.direction = direction,
                                     .type = types[i / 6 % 2],
                                     .wide = wide,
                                     .dims = 2,
                                     .in_channels = 3,
                                     .out_channels = 4,
                                     .before = {1, 1},
                                     .after = {1, uneven ? 2 : 1}};
        bool careful = uneven && conv.type == MF_CUDNN_F32 && direction != MF_CUDNN_FORWARD;
        for (int e = 0; e < 5; e++) {
            mf_cudnn_way way = {.engine = engines[e], .workspace_bytes = 2944, .deterministic = true};
            bool right = engines[e] == (direction == MF_CUDNN_DATA ? 74 : 67);
            assert_int_equal(menu_of(&conv, &way, 1).method_count, !careful || right);
            way.tf32 = conv.type == MF_CUDNN_F32;
            assert_int_equal(menu_of(&conv, &way, 1).method_count, 1);
        }
        mf_cudnn_way last = {.engine = 0, .deterministic = true};
        assert_int_equal(menu_of(&conv, &last, 1).method_count, 1);
    }
}

/* cuDNN's last resort needs no workspace at all and was seen to take 9.8 s where others take 0.8 ms: a hundred bytes are no
 * reason to take it, and where there is nothing else it does not look quick. */
static void the_last_resort_is_one(void **state)
{
    (void)state;
    mf_cudnn_convolution conv = {
        .direction = MF_CUDNN_WEIGHTS, .type = MF_CUDNN_BF16, .in_channels = 512, .out_channels = 512};
    mf_cudnn_way list[] = {{.engine = 65, .workspace_bytes = 131, .deterministic = true},
                           {.engine = 1, .workspace_bytes = 9455632, .deterministic = true},
                           {.engine = 0, .workspace_bytes = 0, .deterministic = true}};
    mf_cost cost = menu_of(&conv, list, 3);
    for (uint32_t i = 0; i < cost.method_count; i++)
        assert_true(cost.methods[i].workspace_bytes > 0);
    assert_int_equal(cost.method_count, 2);
    list[0].workspace_bytes = 64 << 20; /* now a limit may leave room for nothing else */
    cost = menu_of(&conv, list, 3);
    assert_int_equal(cost.method_count, 3);
    assert_true(cost.methods[2].workspace_bytes == 0 && cost.methods[2].time_us > 50 * cost.methods[0].time_us);
}

/* With three input channels the engines that add a bias were seen to take 645 us where one without it takes 249 and its pass 134
 * (S9's first convolution). */
static void a_bias_with_few_channels_comes_apart(void **state)
{
    (void)state;
    mf_cudnn_convolution conv = {.type = MF_CUDNN_BF16, .in_channels = 3, .out_channels = 256};
    const mf_cudnn_way way = {.engine = 1, .workspace_bytes = 1 << 20, .deterministic = true};
    const double y = 32.0 * 128 * 128 * 256 * 2, flops = 2.0 * 32 * 128 * 128 * 256 * 27;
    for (int channels = 3; channels < 70; channels += 61) {
        mf_cost cost = {0};
        conv.in_channels = channels;
        conv.bias = true;
        cuda_convolution_menu(&conv, &way, 1, 0, flops, y, false, &cost);
        conv.bias = false;
        cuda_convolution_menu(&conv, &way, 1, 0, flops, 3 * y, false, &cost);
        assert_int_equal(cost.method_count, 2);
        assert_int_equal(cost.methods[mf_cost_choose(&cost, (mf_method_rules){0}, UINT64_MAX)].id[2], channels > 4);
    }
}

static void no_engine_destroy(cuda_engine *engine)
{
    (void)engine;
}

static mf_backend *without_card(void)
{
    static const cuda_engine_table table = {.destroy = no_engine_destroy};
    static cuda_engine engine = {.table = &table, .block = 256};
    mf_backend *cuda = NULL;
    memfit_error err = {0};
    assert_ok(mf_cuda_create_on(NULL, &engine, &cuda, &err), err);
    return cuda;
}

/* The least that planning finds for a step by the CUDA backend's own costs, without a card. */
static uint64_t least_bytes(const mf_backend *cuda, mf_model *model, bool late)
{
    memfit_error err = {0};
    mf_model_graphs graphs = {.model = model, .options = {.input_dtype = MF_DTYPE_COUNT}};
    mf_graph_source source;
    mf_cost_source cost;
    mf_plan_options o;
    mf_plan *plan = NULL;
    mf_model_graph_source(&graphs, &source);
    mf_backend_cost_source((mf_backend *)cuda, &cost);
    cost.groups.late_updates = late;
    mf_plan_options_default(&o);
    o.batch = 2;
    o.pieces = o.chunks = 1;
    o.with_validation = o.with_prediction = false;
    o.limit_bytes = 1;
    o.least_workspace = true;
    assert_int_equal(mf_plan_make(NULL, &source, &o, &cost, &plan, &err), MEMFIT_DOES_NOT_FIT);
    return err.requested_bytes;
}

/* Updates wait for each other at the price of gradients that live longer: not where a limit leaves nothing else. */
static void the_least_plan_lets_no_update_wait(void **state)
{
    (void)state;
    const char *const names[] = {"mobilenet", "unet", "vit"};
    memfit_error err = {0};
    mf_backend *cuda = without_card();
    for (int i = 0; i < 3; i++) {
        char path[512];
        mf_model *model = NULL;
        snprintf(path, sizeof path, "%s/tests/fixtures/cuda/small/%s.keras", getenv("MEMFIT_SOURCE"), names[i]);
        assert_ok(mf_model_load_flags(NULL, path, MF_LOAD_VERIFY_QUICK, &model, &err), err);
        uint64_t waiting = least_bytes(cuda, model, true), at_once = least_bytes(cuda, model, false);
        print_message("%s: %llu, %llu\n", names[i], (unsigned long long)waiting, (unsigned long long)at_once);
        assert_int_equal(waiting, at_once);
        mf_model_destroy(model);
    }
    cuda->table->destroy(cuda);
}

/* ---- own kernels where they were seen to win (bench_groups, bench_methods) ---- */

/* How many groups the backend makes of y = f(...) and its gradients. */
static uint32_t groups_of(mf_build *b, uint32_t y, mf_dtype dtype, uint32_t count, const uint32_t *wanted)
{
    memfit_error err = {0};
    mf_graph *g = NULL;
    mf_backend *cuda = without_card();
    uint32_t roots[8] = {y}, dy = mf_g_input(b, "dy", dtype, mf_g_shape(b, y)), groups = 0;
    mf_g_backward(b, 1, &y, &dy, count, wanted, roots + 1);
    assert_int_equal(mf_build_end_keeping(b, count + 1, roots, &g), MEMFIT_OK);
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, count + 1);
    for (uint32_t i = 0; i <= count; i++)
        g->outputs[g->output_count++] = roots[i];
    assert_ok(mf_graph_group(g, &cuda->groups, &err), err);
    for (uint32_t i = 0; i < g->op_count; i++)
        groups += g->ops[i].kind == MF_OP_GROUP;
    mf_graph_destroy(g);
    cuda->table->destroy(cuda);
    return groups;
}

static uint32_t pooled(mf_dtype dtype, int64_t kernel)
{
    memfit_error err = {0};
    mf_build b;
    mf_window w = {.dims = 2, .kernel = {kernel, kernel}, .stride = {2, 2}, .dilation = {1, 1}, .groups = 1};
    mf_build_begin(&b, NULL, &err);
    uint32_t x = mf_g_input(&b, "x", dtype, mf_shape_make(4, (int64_t[]){8, 57, 57, 64}));
    return groups_of(&b, mf_g_pool_max(&b, mf_g_unary(&b, MF_UNARY_RELU, 0, 0, x), &w), dtype, 1, &x);
}

static uint32_t dense_end(mf_unary f, int64_t rows, int64_t columns)
{
    memfit_error err = {0};
    mf_build b;
    mf_build_begin(&b, NULL, &err);
    uint32_t in[] = {mf_g_input(&b, "x", MF_BF16, mf_shape_make(2, (int64_t[]){rows, columns})),
                     mf_g_input(&b, "bias", MF_BF16, mf_shape_make(1, (int64_t[]){columns}))};
    return groups_of(&b, mf_g_unary(&b, f, 0, 0, mf_g_binary(&b, MF_ADD, in[0], in[1])), MF_BF16, 2, in);
}

static void groups_where_they_win(void **state)
{
    (void)state;
    assert_int_equal(pooled(MF_BF16, 2), 2);
    assert_int_equal(pooled(MF_F32, 3), 2);
    assert_int_equal(pooled(MF_BF16, 3), 1); /* forward: windows over each other are read once there */
    assert_int_equal(dense_end(MF_UNARY_GELU, 8192, 3072), 2);
    assert_int_equal(dense_end(MF_UNARY_GELU, 8191, 3072), 1);  /* forward */
    assert_int_equal(dense_end(MF_UNARY_GELU, 65536, 1280), 1); /* rows too short for their sum */
    assert_int_equal(dense_end(MF_UNARY_GELU, 1706, 3072), 0);  /* too little of it */
    assert_int_equal(dense_end(MF_UNARY_GELU, 1707, 3072), 1);
    assert_int_equal(dense_end(MF_UNARY_RELU, 64, 3072), 2);
}

/* Does the own kernel of (rows x length, or turned) (length x columns) come before cuBLASLt? */
static bool streams(mf_dtype type, int64_t rows, int64_t columns, int64_t length, bool ta, bool tb)
{
    memfit_error err = {0};
    mf_build b;
    mf_graph *g = NULL;
    cuda_spec spec;
    mf_build_begin(&b, NULL, &err);
    uint32_t x = mf_g_input(&b, "x", type, mf_shape_make(2, (int64_t[]){rows, tb ? columns : length}));
    uint32_t w = mf_g_input(&b, "w", type, mf_shape_make(2, (int64_t[]){ta ? rows : length, columns}));
    uint32_t roots[] = {x, w, mf_g_matmul(&b, x, w, MF_NONE, ta, tb, 1)};
    assert_int_equal(mf_build_end_keeping(&b, 3, roots, &g), MEMFIT_OK);
    assert_ok(cuda_spec_make(NULL, g, g->op_count - 1, 256, &spec, &err), err);
    assert_string_equal(spec.family, "thin.cu");
    assert_int_equal(spec.slow, !spec.streams);
    bool is = spec.streams;
    cuda_spec_end(&spec);
    mf_graph_destroy(g);
    return is;
}

static void thin_products_where_they_win(void **state)
{
    (void)state;
    const mf_dtype f32 = MF_F32, bf16 = MF_BF16;
    assert_true(streams(f32, 69, 6, 721920, false, true));    /* spread */
    assert_true(streams(f32, 183, 2, 762880, true, false));   /* outer, few columns */
    assert_false(streams(f32, 83, 4, 143360, true, false));   /* whole vectors */
    assert_true(streams(bf16, 44, 4, 5177344, true, false));  /* no whole vector in 16 bits */
    assert_false(streams(bf16, 188, 3, 159744, true, false)); /* short */
    assert_false(streams(f32, 140, 14, 763904, true, false));
    assert_false(streams(bf16, 38, 10, 5898240, true, false));
    assert_false(streams(f32, 45, 12, 128000, false, false)); /* sum */
    assert_false(streams(f32, 13, 16, 12058624, false, false));
    assert_false(streams(f32, 24, 1, 7143424, false, false));
    assert_true(streams(bf16, 27, 7, 5963776, false, false));
    assert_false(streams(bf16, 39, 6, 5308416, false, false));
    assert_true(streams(f32, 32, 10, 8355872, false, false)); /* S7 */
    assert_true(streams(f32, 32, 10, 8355872, true, false));
    assert_false(streams(bf16, 43, 10, 8355872, false, false)); /* in 16 bits the library is quicker */
    assert_false(streams(bf16, 43, 10, 8355872, true, false));
}

/* Layers of one shape share the library's plan, whichever ends first; what is another convolution or another way does not. */
static void equal_convolutions_share_a_plan(void **state)
{
    (void)state;
    enum { PLANS = 5 };
    memfit_error err = {0};
    mf_cudnn *dnn = NULL;
    char path[600], json[4096];
    if (mf_cudnn_open(mf_finder_default(), NULL, &dnn, &err) != MEMFIT_OK)
        skip();
    snprintf(path, sizeof path, "%s/tests/fixtures/cuda/h200.json", getenv("MEMFIT_SOURCE"));
    assert_true(mf_os_read_text(path, json, sizeof json));
    assert_ok(mf_cudnn_describe(dnn, json, strlen(json), &err), err);
    mf_cudnn_convolution conv = {.type = MF_CUDNN_BF16,
                                 .dims = 2,
                                 .batch = 32,
                                 .in_channels = 64,
                                 .out_channels = 64,
                                 .groups = 1,
                                 .in = {28, 28},
                                 .out = {28, 28},
                                 .kernel = {3, 3},
                                 .stride = {1, 1},
                                 .dilation = {1, 1},
                                 .before = {1, 1},
                                 .after = {1, 1}},
                         other = conv;
    other.batch = 16;
    mf_cudnn_way list[48], others[48];
    uint32_t count = 0, second = 0, third = 0;
    assert_ok(mf_cudnn_ask(dnn, &conv, list, 48, &count, &err), err);
    assert_ok(mf_cudnn_ask(dnn, &other, others, 48, &second, &err), err);
    uint32_t usable[2] = {0, 0};
    for (uint32_t i = 0; i < count && third < 2; i++)
        if (!list[i].compiled)
            usable[third++] = i;
    assert_true(third == 2 && second > 0 && !others[0].compiled);
    mf_cudnn_plan_made *plans[PLANS];
    for (unsigned turn = 0; turn < 2; turn++) { /* the second asks anew: the first had its question */
        assert_int_equal(mf_cudnn_built_plans(dnn), 0);
        for (unsigned i = 0; i < 3; i++)
            assert_ok(mf_cudnn_plan(dnn, &conv, &list[usable[0]], &plans[i], &err), err);
        assert_int_equal(mf_cudnn_built_plans(dnn), 1);
        assert_ok(mf_cudnn_plan(dnn, &conv, &list[usable[1]], &plans[3], &err), err);
        assert_ok(mf_cudnn_plan(dnn, &other, &others[0], &plans[4], &err), err);
        assert_int_equal(mf_cudnn_built_plans(dnn), 3);
        assert_int_equal(mf_cudnn_plan_workspace(plans[0]), mf_cudnn_plan_workspace(plans[2]));
        for (unsigned i = 0; i < PLANS; i++) {
            assert_int_equal(mf_cudnn_built_plans(dnn), turn ? (i < 2 ? 3 - i : 1) : i < 3 ? 3 : PLANS - i);
            mf_cudnn_plan_end(plans[turn ? PLANS - 1 - i : i]);
        }
    }
    mf_cudnn_way none = {.engine = 99999};
    assert_int_equal(mf_cudnn_plan(dnn, &conv, &none, &plans[0], &err), MEMFIT_NOT_FOUND);
    assert_int_equal(mf_cudnn_built_plans(dnn), 0);
    mf_cudnn_close(dnn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspaces_are_sensible),
        cmocka_unit_test(tiles_that_do_not_come_out_even_are_shared),
        cmocka_unit_test(loose_menus_stand_behind),
        cmocka_unit_test(uneven_padding),
        cmocka_unit_test(menus_have_the_first_and_the_smallest),
        cmocka_unit_test(the_last_resort_is_one),
        cmocka_unit_test(a_bias_with_few_channels_comes_apart),
        cmocka_unit_test(the_least_plan_lets_no_update_wait),
        cmocka_unit_test(equal_convolutions_share_a_plan),
        cmocka_unit_test(groups_where_they_win),
        cmocka_unit_test(thin_products_where_they_win),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
