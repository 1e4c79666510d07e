/*
 * test_ops_groups.c: what grouping makes of graphs that matter: how many operations are left, what stays inside, and that
 * the numbers are those of the graph without groups, bit by bit; refusals of host memory at every place. It is long because each pass has graphs of its own.
 */
#include "opcheck.h"

#include "graph/group.h"
#include "ops/reference/reference.h"

static mf_backend *reference, *members;

static bool takes_all(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)ctx;
    (void)graph;
    (void)ops;
    return count <= MF_GROUP_MOST;
}

static bool takes_none(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)ctx;
    (void)graph;
    (void)ops;
    (void)count;
    return false;
}

/* Normalization, sum, activation. */
static mf_graph *residual(const memfit_host *host, memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    mf_shape shape = opcheck_shape(3, 4, 5, 6, 0, 0);
    mf_build_begin(&b, host, err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, shape), r = mf_g_input(&b, "r", MF_F32, shape), out[3];
    mf_attr attr = {.norm = {.epsilon = 1e-3}};
    mf_g_op(&b, MF_OP_BATCH_NORM, &attr, 3, (uint32_t[]){x, MF_NONE, MF_NONE}, 3, NULL, out);
    uint32_t z = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, mf_g_binary(&b, MF_ADD, out[0], r));
    uint32_t roots[] = {x, r, z, out[1]};
    if (mf_build_end_keeping(&b, 4, roots, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, 2);
    if (!g->outputs) {
        mf_graph_destroy(g);
        return NULL;
    }
    g->outputs[0] = roots[2];
    g->outputs[1] = roots[3];
    g->output_count = 2;
    g->batch = 4;
    return g;
}

/* A product in bfloat16 whose loss is cast up, and the gradients of its factors. `seen`: the product is an output, too. */
static mf_graph *cast_loss(const memfit_host *host, bool seen, memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    mf_build_begin(&b, host, err);
    uint32_t x = mf_g_input(&b, "x", MF_BF16, opcheck_shape(2, 4, 6, 0, 0, 0));
    uint32_t w = mf_g_input(&b, "w", MF_BF16, opcheck_shape(2, 6, 9, 0, 0, 0));
    uint32_t target = mf_g_input(&b, "t", MF_I32, opcheck_shape(1, 4, 0, 0, 0, 0));
    mf_variable v = {
        .name = "loss", .role = MF_VAR_LOSS, .kind = MEMFIT_KIND_OTHER, .dtype = MF_F32, .parameter = MF_NONE};
    uint32_t loss = mf_g_use(&b, mf_g_variable(&b, &v)), slopes[2] = {MF_NONE, MF_NONE};
    uint32_t y = mf_g_matmul(&b, x, w, MF_NONE, false, false, 1), logits = mf_g_cast(&b, y, MF_F32);
    mf_attr attr = {.loss = {.function = MF_LOSS_SCCE_LOGITS, .weight = 1, .axis = 1}};
    mf_g_op_in_place(&b, MF_OP_LOSS, &attr, 4, (uint32_t[]){logits, target, MF_NONE, loss}, 1, &loss);
    mf_g_backward(&b, 0, NULL, NULL, 2, (uint32_t[]){w, x}, slopes);
    uint32_t roots[] = {x, w, target, slopes[0], slopes[1], y};
    if (mf_build_end_keeping(&b, 6, roots, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, 3);
    if (!g->outputs) {
        mf_graph_destroy(g);
        return NULL;
    }
    for (int i = 0; i < 2 + seen; i++)
        g->outputs[g->output_count++] = roots[3 + i];
    g->mode = seen ? MF_MODE_PREDICT : MF_MODE_TRAIN;
    g->batch = 4;
    return g;
}

/* Product, activation, maximum pooling and a sum of squares behind it, with the product's gradient. */
static mf_graph *pooled(mf_unary f, memfit_error *err)
{
    mf_graph *g = NULL;
    mf_build b;
    mf_window pool = {.dims = 2, .kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}, .groups = 1};
    mf_build_begin(&b, NULL, err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, opcheck_shape(4, 3, 6, 8, 5, 0));
    uint32_t w = mf_g_input(&b, "w", MF_F32, opcheck_shape(4, 3, 6, 8, 5, 0)), dw = MF_NONE;
    uint32_t y = mf_g_pool_max(&b, mf_g_unary(&b, f, 0, 0, mf_g_binary(&b, MF_MUL, x, w)), &pool);
    uint32_t dy = mf_g_input(&b, "dy", MF_F32, opcheck_shape(4, 3, 3, 4, 5, 0));
    mf_g_backward(&b, 1, &y, &dy, 1, &w, &dw);
    uint32_t roots[] = {x, w, y, dw};
    if (mf_build_end_keeping(&b, 4, roots, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, 2);
    g->outputs[0] = roots[2];
    g->outputs[1] = roots[3];
    g->output_count = 2;
    g->batch = 3;
    return g;
}

static void fill(mf_interpreter *it, const mf_graph *g)
{
    for (uint32_t i = 0; i < g->op_count; i++)
        for (uint64_t k = 0; g->ops[i].kind == MF_OP_INPUT && k < mf_shape_count(&g->tensors[g->ops[i].out[0]].shape);
             k++) {
            mf_dtype dtype = g->tensors[g->ops[i].out[0]].dtype;
            double v = dtype == MF_I32 ? (double)(k % 9) : sin((double)(k * 7 + i * 3));
            mf_ref_store(dtype, mf_interpret_data(it, g->ops[i].out[0]), k, v);
        }
}

/* Runs both and compares outputs and variables. */
static void same_bytes(const mf_graph *plain, const mf_graph *grouped)
{
    memfit_error err = {0};
    mf_interpreter *a, *b;
    mf_run_scalars scalars = mf_interpret_scalars(plain, 0.1);
    assert_ok(mf_interpret_create(NULL, plain, reference, &a, &err), err);
    assert_ok(mf_interpret_create(NULL, grouped, members, &b, &err), err);
    fill(a, plain);
    fill(b, grouped);
    assert_ok(mf_interpret_run(a, &scalars, true, true, &err), err);
    assert_ok(mf_interpret_run(b, &scalars, true, true, &err), err);
    for (uint32_t i = 0; i < plain->output_count + plain->variable_count; i++) {
        bool output = i < plain->output_count;
        uint32_t v = i - plain->output_count, ta = output ? plain->outputs[i] : plain->variables[v].tensor,
                 tb = output ? grouped->outputs[i] : grouped->variables[v].tensor;
        uint64_t bytes = mf_shape_count(&plain->tensors[ta].shape) * mf_dtype_bytes(plain->tensors[ta].dtype);
        assert_memory_equal(mf_interpret_data(a, ta), mf_interpret_data(b, tb), bytes);
    }
    mf_interpret_destroy(a);
    mf_interpret_destroy(b);
}

static void a_residual_block_is_one_operation(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_graph *plain = residual(NULL, &err), *g = residual(NULL, &err);
    uint32_t storages = g->storage_count;
    assert_ok(mf_graph_group(g, &(mf_group_taker){.takes = takes_all}, &err), err);
    assert_int_equal(g->op_count, 3); /* two inputs and the group */
    const mf_op *group = &g->ops[2];
    assert_int_equal(group->kind, MF_OP_GROUP);
    assert_int_equal(group->in_count, 2);
    assert_int_equal(group->out_count, 2);            /* the result and the mean; the variance is inside */
    assert_int_equal(g->storage_count, storages - 3); /* y, y + r, variance */
    assert_true(group->attr.group->recomputable);
    assert_int_equal(group->attr.group->inplace_out, group->out[0] == g->outputs[0] ? 0 : 1);
    same_bytes(plain, g);
    mf_graph_destroy(plain);
    mf_graph_destroy(g);
}

static bool has_three(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)graph;
    (void)ops;
    *(uint32_t *)ctx = count;
    return count == 3;
}

static bool has_four(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    return !has_three(ctx, graph, ops, count) && count == 4;
}

/* A chain that the backend has no kernel for before something more has joined it, and nothing did. */
static void what_is_not_whole_stays_apart(void **state)
{
    (void)state;
    memfit_error err = {0};
    uint32_t seen = 0;
    mf_graph *plain = residual(NULL, &err), *g = residual(NULL, &err), *apart = residual(NULL, &err);
    assert_ok(mf_graph_group(g, &(mf_group_taker){.ctx = &seen, .takes = takes_all, .whole = has_three}, &err), err);
    assert_int_equal(seen, 3);
    assert_int_equal(g->op_count, 3);
    assert_ok(mf_graph_group(apart, &(mf_group_taker){.ctx = &seen, .takes = takes_all, .whole = has_four}, &err), err);
    for (uint32_t i = 0; i < apart->op_count; i++)
        assert_int_not_equal(apart->ops[i].kind, MF_OP_GROUP);
    assert_int_equal(apart->op_count, plain->op_count);
    same_bytes(plain, apart);
    mf_graph_destroy(plain);
    mf_graph_destroy(g);
    mf_graph_destroy(apart);
}

static void losses_read_sixteen_bits(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_graph *plain = cast_loss(NULL, false, &err), *g = cast_loss(NULL, false, &err),
             *kept = cast_loss(NULL, false, &err);
    assert_ok(mf_graph_group(g, &(mf_group_taker){.takes = takes_none, .narrow_losses = true}, &err), err);
    assert_ok(mf_graph_group(kept, &(mf_group_taker){.takes = takes_none}, &err), err);
    assert_int_equal(kept->op_count, plain->op_count);
    assert_int_equal(g->op_count, plain->op_count - 2); /* both casts */
    for (uint32_t i = 0; i < g->op_count; i++) {
        assert_int_not_equal(g->ops[i].kind, MF_OP_CAST);
        if (g->ops[i].kind == MF_OP_LOSS_GRAD)
            assert_int_equal(g->tensors[g->ops[i].out[0]].dtype, MF_BF16);
    }
    same_bytes(plain, g);
    mf_graph_destroy(plain);
    mf_graph_destroy(kept);
    mf_graph_destroy(g);
}

/* ---- a host that refuses ---- */

typedef struct counting {
    unsigned left;
    size_t bytes;
} counting;

static void *refuse(void *ctx, void *ptr, size_t old_bytes, size_t new_bytes)
{
    counting *c = ctx;
    if (new_bytes == 0) {
        c->bytes -= old_bytes;
        free(ptr);
        return NULL;
    }
    if (c->left == 0)
        return NULL;
    c->left--;
    void *p = realloc(ptr, new_bytes);
    if (p)
        c->bytes += new_bytes - old_bytes;
    return p;
}

/* The Nth request for host memory is refused, for every N, while a graph is made and grouped: nothing is lost. */
static void refuse_each(mf_graph *(*make)(const memfit_host *host, memfit_error *err), const mf_group_taker *taker)
{
    unsigned n = 0;
    for (bool done = false; !done && n < 1000; n++) {
        counting c = {.left = n};
        memfit_host host = {.resize = refuse, .ctx = &c};
        memfit_error err = {0};
        mf_graph *g = make(&host, &err);
        if (g) {
            memfit_status status = mf_graph_group(g, taker, &err);
            assert_true(status == MEMFIT_OK || status == MEMFIT_NO_HOST_MEMORY);
            done = status == MEMFIT_OK;
            mf_graph_destroy(g);
        }
        assert_int_equal(c.bytes, 0);
    }
    assert_true(n < 1000);
}

static void a_host_may_refuse_anywhere(void **state)
{
    (void)state;
    refuse_each(residual, &(mf_group_taker){.takes = takes_all, .narrow_losses = true});
}

static void pooling_comes_before_the_activation(void **state)
{
    (void)state;
    memfit_error err = {0};
    for (int i = 0; i < 3; i++) {
        const mf_unary functions[] = {MF_UNARY_RELU, MF_UNARY_RELU6, MF_UNARY_TANH};
        mf_graph *plain = pooled(functions[i], &err), *g = pooled(functions[i], &err);
        assert_non_null(plain);
        assert_non_null(g);
        assert_ok(mf_graph_group(g, &(mf_group_taker){.takes = takes_none, .pools_first = true}, &err), err);
        assert_ok(mf_graph_check(g, &err), err);
        uint64_t large = mf_shape_count(&(mf_shape){4, {3, 6, 8, 5}}), activated = 0;
        for (uint32_t k = 0; k < g->op_count; k++)
            if (g->ops[k].kind == MF_OP_UNARY)
                activated = mf_shape_count(&g->tensors[g->ops[k].out[0]].shape);
        assert_int_equal(activated, i < 2 ? large / 4 : large); /* tanh is not flat anywhere */
        same_bytes(plain, g);
        mf_graph_destroy(plain);
        mf_graph_destroy(g);
    }
}

/* Two axes of an activation's gradient summed as the rows of a view. */
static mf_graph *summed(memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    mf_build_begin(&b, NULL, err);
    mf_shape shape = opcheck_shape(3, 4, 5, 6, 0, 0);
    uint32_t dy = mf_g_input(&b, "dy", MF_F32, shape), x = mf_g_input(&b, "x", MF_F32, shape);
    uint32_t w = mf_g_input(&b, "w", MF_F32, opcheck_shape(2, 6, 3, 0, 0, 0));
    mf_attr attr = {.unary = {.function = MF_UNARY_GELU}};
    uint32_t d = mf_g_op(&b, MF_OP_UNARY_GRAD, &attr, 2, (uint32_t[]){dy, x}, 1, NULL, NULL);
    uint32_t rows = mf_g_view(&b, d, opcheck_shape(2, 20, 6, 0, 0, 0));
    mf_attr sum = {.reduce = {.function = MF_REDUCE_SUM, .axes = 1}};
    uint32_t db = mf_g_op(&b, MF_OP_REDUCE, &sum, 1, &rows, 1, NULL, NULL);
    uint32_t roots[] = {db, mf_g_matmul(&b, rows, w, MF_NONE, false, false, 1)};
    if (mf_build_end_keeping(&b, 2, roots, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, 2);
    g->outputs[0] = roots[0];
    g->outputs[1] = roots[1];
    g->output_count = 2;
    g->batch = 4;
    return g;
}

static bool takes_sums(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    bool good = true;
    (void)ctx;
    for (uint32_t i = 0; i < count; i++)
        good &= graph->ops[ops[i]].kind == MF_OP_UNARY_GRAD || graph->ops[ops[i]].kind == MF_OP_REDUCE;
    return good;
}

static void sums_read_what_was_made(void **state)
{
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        memfit_error err = {0};
        mf_graph *plain = summed(&err), *g = summed(&err);
        assert_non_null(plain);
        assert_non_null(g);
        assert_ok(mf_graph_group(g, &(mf_group_taker){.takes = takes_sums, .whole_sums = whole}, &err), err);
        uint32_t groups = 0;
        for (uint32_t k = 0; k < g->op_count; k++)
            groups += g->ops[k].kind == MF_OP_GROUP;
        assert_int_equal(groups, whole);
        same_bytes(plain, g);
        mf_graph_destroy(plain);
        mf_graph_destroy(g);
    }
}

/* Two sums that go on in one variable, as gradients of several uses do where a batch runs in pieces, and a reader of what they come to. */
static mf_graph *added_up(memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    mf_build_begin(&b, NULL, err);
    mf_shape shape = opcheck_shape(2, 2, 12, 0, 0, 0);
    mf_variable v = {.name = "sum", .role = MF_VAR_PARAMETER, .dtype = MF_F32, .shape = shape, .parameter = MF_NONE};
    uint32_t x = mf_g_input(&b, "x", MF_F32, shape), y = mf_g_input(&b, "y", MF_F32, shape);
    uint32_t sum = mf_g_use(&b, mf_g_variable(&b, &v));
    mf_attr half = {.unary = {.function = MF_UNARY_TANH}}, add = {.binary = {.function = MF_ADD}};
    uint32_t a = mf_g_op(&b, MF_OP_UNARY, &half, 1, &x, 1, NULL, NULL);
    mf_g_op_in_place(&b, MF_OP_BINARY, &add, 2, (uint32_t[]){sum, a}, 1, &sum);
    mf_g_op_in_place(&b, MF_OP_BINARY, &add, 2, (uint32_t[]){sum, y}, 1, &sum);
    uint32_t z = mf_g_op(&b, MF_OP_UNARY, &half, 1, &sum, 1, NULL, NULL);
    if (mf_build_end_keeping(&b, 1, &z, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, 1);
    g->outputs[0] = z;
    g->output_count = 1;
    return g;
}

/* The kernel of a group keeps what a member makes in a register, where the variable's old value is not. */
static void sums_in_a_variable_stay_apart(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_graph *plain = added_up(&err), *g = added_up(&err);
    assert_non_null(plain);
    assert_non_null(g);
    assert_ok(mf_graph_group(g, &(mf_group_taker){.takes = takes_all}, &err), err);
    for (uint32_t i = 0; i < g->op_count; i++)
        assert_int_not_equal(g->ops[i].kind, MF_OP_GROUP);
    same_bytes(plain, g);
    mf_graph_destroy(plain);
    mf_graph_destroy(g);
}

/* Three layers, each a product by a variable of `side` squared, with the updates of the variables where gradients are final. */
static mf_graph *trained(const memfit_host *host, int64_t side, memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    mf_build_begin(&b, host, err);
    mf_shape square = opcheck_shape(2, side, side, 0, 0, 0);
    uint32_t x = mf_g_input(&b, "x", MF_F32, opcheck_shape(2, 2, side, 0, 0, 0)), at[4] = {x}, w[3];
    for (int i = 0; i < 3; i++) {
        mf_variable v = {.name = "w", .role = MF_VAR_PARAMETER, .dtype = MF_F32, .shape = square, .parameter = MF_NONE};
        w[i] = mf_g_use(&b, mf_g_variable(&b, &v));
        at[i + 1] = mf_g_matmul(&b, at[i], w[i], MF_NONE, false, false, 1);
    }
    uint32_t dy = mf_g_input(&b, "dy", MF_F32, opcheck_shape(2, 2, side, 0, 0, 0));
    mf_attr attr = {.update = {.optimizer = MF_OPTIMIZER_SGD}};
    for (int i = 2; i >= 0; i--) {
        uint32_t dw = mf_g_matmul(&b, at[i], dy, MF_NONE, true, false, 1);
        dy = mf_g_matmul(&b, dy, w[i], MF_NONE, false, true, 1);
        mf_g_op_in_place(&b, MF_OP_UPDATE, &attr, 2, (uint32_t[]){w[i], dw}, 1, &w[i]);
    }
    return mf_build_end_keeping(&b, 1, &dy, &g) == MEMFIT_OK ? g : NULL;
}

static void updates_wait_for_each_other(void **state)
{
    (void)state;
    const int64_t sides[] = {8, 2100}; /* of the second, one gradient has more than is held back */
    for (int i = 0; i < 2; i++) {
        memfit_error err = {0};
        mf_graph *g = trained(NULL, sides[i], &err);
        assert_non_null(g);
        assert_ok(mf_graph_group(g, &(mf_group_taker){.takes = takes_none, .late_updates = true}, &err), err);
        assert_ok(mf_graph_check(g, &err), err);
        uint32_t last = 0;
        for (uint32_t k = g->op_count; k-- > 0 && g->ops[k].kind == MF_OP_UPDATE;)
            last++;
        assert_int_equal(last, i == 0 ? 3 : 1);
        if (i == 0) {
            mf_graph *plain = trained(NULL, sides[i], &err);
            same_bytes(plain, g);
            mf_graph_destroy(plain);
        }
        mf_graph_destroy(g);
    }
}

static bool takes_gradients(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    bool good = true;
    (void)ctx;
    for (uint32_t i = 0; i < count; i++) {
        mf_op_kind kind = graph->ops[ops[i]].kind;
        good &= kind == MF_OP_BATCH_NORM_INFER || kind == MF_OP_UNARY_GRAD || kind == MF_OP_BATCH_NORM_GRAD;
    }
    return good;
}

/* Two layers of a product and a normalization with its activation inside, and their gradients. */
static mf_graph *activated(const memfit_host *host, mf_unary function, memfit_error *err)
{
    mf_build b;
    mf_graph *g = NULL;
    mf_build_begin(&b, host, err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, opcheck_shape(2, 12, 6, 0, 0, 0)), y = x, dx = MF_NONE, out[3];
    for (int i = 0; i < 2; i++) {
        uint32_t w = mf_g_input(&b, "w", MF_F32, opcheck_shape(2, 6, 6, 0, 0, 0));
        uint32_t gamma = mf_g_input(&b, "gamma", MF_F32, opcheck_shape(1, 6, 0, 0, 0, 0));
        mf_attr attr = {.norm = {.epsilon = 1e-3, .activation = function}};
        y = mf_g_matmul(&b, y, w, MF_NONE, false, false, 1);
        mf_g_op(&b, MF_OP_BATCH_NORM, &attr, 3, (uint32_t[]){y, gamma, MF_NONE}, 3, NULL, out);
        y = mf_g_matmul(&b, out[0], w, MF_NONE, false, false, 1);
    }
    uint32_t dy = mf_g_input(&b, "dy", MF_F32, opcheck_shape(2, 12, 6, 0, 0, 0));
    mf_g_backward(&b, 1, &y, &dy, 1, &x, &dx);
    uint32_t roots[] = {x, y, dx};
    if (mf_build_end_keeping(&b, 3, roots, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, 2);
    if (!g->outputs) {
        mf_graph_destroy(g);
        return NULL;
    }
    g->outputs[0] = roots[1];
    g->outputs[1] = roots[2];
    g->output_count = 2;
    g->batch = 12;
    return g;
}

/* The activation's result is read by the product's gradient alone; the slope is made inside the group. */
static void slopes_come_from_what_was_normalized(void **state)
{
    (void)state;
    const mf_unary functions[] = {MF_UNARY_RELU, MF_UNARY_RELU6, MF_UNARY_LINEAR};
    for (int i = 0; i < 3; i++) {
        memfit_error err = {0};
        mf_graph *plain = activated(NULL, functions[i], &err), *g = activated(NULL, functions[i], &err);
        assert_non_null(plain);
        assert_non_null(g);
        assert_ok(mf_graph_group(g, &(mf_group_taker){.takes = takes_gradients, .slopes = true}, &err), err);
        uint32_t groups = 0, slopes = 0;
        for (uint32_t k = 0; k < g->op_count; k++) {
            const mf_op *op = &g->ops[k];
            assert_int_not_equal(op->kind, MF_OP_BATCH_NORM_INFER); /* it would be stored */
            groups += op->kind == MF_OP_GROUP;
            slopes += op->kind == MF_OP_GROUP && op->attr.group->inner.ops[0].kind == MF_OP_BATCH_NORM_INFER;
        }
        assert_int_equal(groups, i < 2 ? 2 : 0);
        assert_int_equal(slopes, groups);
        same_bytes(plain, g);
        mf_graph_destroy(plain);
        mf_graph_destroy(g);
    }
}

static bool takes_slopes_and_sums(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)ctx;
    for (uint32_t i = 0; i < count; i++)
        if (graph->ops[ops[i]].kind != MF_OP_UNARY_GRAD && graph->ops[ops[i]].kind != MF_OP_REDUCE)
            return false;
    return true;
}

/* Two convolutions with biases, an activation behind the first alone: the slopes of the other are the graph's input. */
static mf_graph *with_biases(const memfit_host *host, memfit_error *err)
{
    enum { ROOTS = 6 };
    mf_build b;
    mf_graph *g = NULL;
    mf_build_begin(&b, host, err);
    mf_window w = {.dims = 2, .kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
    uint32_t x = mf_g_input(&b, "x", MF_F32, opcheck_shape(4, 2, 3, 5, 6, 0)), y = x, of[4], roots[ROOTS];
    for (int i = 0; i < 2; i++) {
        of[2 * i] = mf_g_input(&b, "w", MF_F32, opcheck_shape(4, 1, 1, 6, 6, 0));
        of[2 * i + 1] = mf_g_input(&b, "bias", MF_F32, opcheck_shape(1, 6, 0, 0, 0, 0));
        y = mf_g_conv(&b, y, of[2 * i], of[2 * i + 1], &w);
        y = i ? y : mf_g_unary(&b, MF_UNARY_RELU, 0, 0, y);
    }
    uint32_t dy = mf_g_input(&b, "dy", MF_F32, opcheck_shape(4, 2, 3, 5, 6, 0));
    roots[0] = x;
    roots[1] = y;
    mf_g_backward(&b, 1, &y, &dy, 4, of, roots + 2);
    if (mf_build_end_keeping(&b, ROOTS, roots, &g) != MEMFIT_OK)
        return NULL;
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, 4);
    if (!g->outputs) {
        mf_graph_destroy(g);
        return NULL;
    }
    for (int i = 0; i < 4; i++)
        g->outputs[g->output_count++] = roots[2 + i];
    g->batch = 2;
    return g;
}

/* The gradient of a bias is part of the group that makes the slopes; where they come from outside it stays where it was. */
static void bias_gradients_are_summed_with_slopes(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_graph *plain = with_biases(NULL, &err), *g = with_biases(NULL, &err);
    assert_true(plain && g);
    assert_ok(mf_graph_group(g, &(mf_group_taker){.takes = takes_slopes_and_sums, .bias_sums = true}, &err), err);
    uint32_t groups = 0, with = 0, without = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        assert_int_not_equal(op->kind, MF_OP_REDUCE);
        groups += op->kind == MF_OP_GROUP;
        if (op->kind == MF_OP_CONV_GRAD_WEIGHTS)
            *(op->out[1] == MF_NONE ? &without : &with) += 1;
        for (uint32_t k = 0; k < op->out_count; k++)
            if (op->out[k] != MF_NONE)
                assert_int_equal(g->tensors[op->out[k]].producer, i);
    }
    assert_true(groups == 1 && with == 1 && without == 1);
    same_bytes(plain, g);
    mf_graph_destroy(plain);
    mf_graph_destroy(g);
}

static void a_host_may_refuse_bias_sums(void **state)
{
    (void)state;
    refuse_each(with_biases, &(mf_group_taker){.takes = takes_slopes_and_sums, .bias_sums = true});
}

static mf_graph *with_relu(const memfit_host *host, memfit_error *err)
{
    return activated(host, MF_UNARY_RELU, err);
}

static void a_host_may_refuse_slopes(void **state)
{
    (void)state;
    refuse_each(with_relu, &(mf_group_taker){.takes = takes_gradients, .slopes = true, .late_updates = true});
}

/* Nine classes become rows of sixteen; not where somebody else sees them, or where it is not worth it. */
static void rows_of_logits_are_filled_up(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        memfit_error err = {0};
        bool seen = i == 2, narrow = i == 1, filled = i < 2;
        mf_graph *plain = cast_loss(NULL, seen, &err), *g = cast_loss(NULL, seen, &err);
        mf_group_taker taker = {.takes = takes_none, .narrow_losses = narrow, .even_rows = i == 3 ? 4 * 6 * 9 + 1 : 1};
        assert_non_null(plain);
        assert_non_null(g);
        assert_ok(mf_graph_group(g, &taker, &err), err);
        /* two pads, one of them of a bias of zeros, and a slice */
        assert_int_equal(g->op_count, plain->op_count + (filled ? 4 : 0) - (narrow ? 2 : 0));
        for (uint32_t k = 0; k < g->op_count; k++) {
            const mf_op *op = &g->ops[k];
            if (op->kind != MF_OP_LOSS && op->kind != MF_OP_LOSS_GRAD)
                continue;
            assert_int_equal(g->tensors[op->in[0]].shape.dim[1], filled ? 16 : 9);
        }
        same_bytes(plain, g);
        mf_graph_destroy(plain);
        mf_graph_destroy(g);
    }
}

static mf_graph *unseen(const memfit_host *host, memfit_error *err)
{
    return cast_loss(host, false, err);
}

static void a_host_may_refuse_longer_rows(void **state)
{
    (void)state;
    refuse_each(unseen, &(mf_group_taker){.takes = takes_none, .narrow_losses = true, .even_rows = 1});
}

int main(void)
{
    memfit_error err = {0};
    mf_backend *inner = NULL;
    if (mf_reference_create(NULL, &reference, &err) != MEMFIT_OK ||
        mf_reference_create(NULL, &inner, &err) != MEMFIT_OK ||
        mf_members_create(NULL, inner, NULL, &members, &err) != MEMFIT_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_residual_block_is_one_operation),
        cmocka_unit_test(what_is_not_whole_stays_apart),
        cmocka_unit_test(pooling_comes_before_the_activation),
        cmocka_unit_test(losses_read_sixteen_bits),
        cmocka_unit_test(a_host_may_refuse_anywhere),
        cmocka_unit_test(slopes_come_from_what_was_normalized),
        cmocka_unit_test(a_host_may_refuse_slopes),
        cmocka_unit_test(bias_gradients_are_summed_with_slopes),
        cmocka_unit_test(a_host_may_refuse_bias_sums),
        cmocka_unit_test(rows_of_logits_are_filled_up),
        cmocka_unit_test(a_host_may_refuse_longer_rows),
        cmocka_unit_test(updates_wait_for_each_other),
        cmocka_unit_test(sums_read_what_was_made),
        cmocka_unit_test(sums_in_a_variable_stay_apart),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    members->table->destroy(members);
    reference->table->destroy(reference);
    return failed;
}
