/*
 * test_ops_overwrite.c: every operation that overwrite.h lets write over an operand gives the same bytes when it does,
 * on both backends; and whatever the table of kinds lets the planner do, overwrite.h allows.
 */
#include "opcheck.h"

#include "plan/fit/overwrite.h"

static mf_backend *backend;
static unsigned runs[MF_OP_COUNT][8]; /* by kind and operand */

enum { MOST_OPERANDS = 24, MOST_BYTES = 1 << 16 };

/* Copies of an operation's operands, each storage in bytes of its own as in the interpreter. */
typedef struct scene {
    unsigned char *bytes[MOST_OPERANDS], *workspace;
    mf_operands operands;
    void *at[MOST_OPERANDS];
    uint32_t count;
} scene;

static uint32_t operand(const mf_op *op, uint32_t i)
{
    return i < op->in_count ? op->in[i] : op->out[i - op->in_count];
}

static uint64_t bytes_of(const mf_graph *g, uint32_t tensor)
{
    return mf_shape_count(&g->tensors[tensor].shape) * mf_dtype_bytes(g->tensors[tensor].dtype);
}

/* `over`: the input whose bytes the first output takes; MF_NONE: none. */
static void set_scene(scene *s, opcheck *c, const mf_op *op, uint32_t over)
{
    const mf_graph *g = c->graph;
    s->count = op->in_count + op->out_count;
    assert_true(s->count <= MOST_OPERANDS);
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t t = operand(op, i), same = MF_NONE;
        s->bytes[i] = NULL;
        s->at[i] = NULL;
        if (t == MF_NONE)
            continue;
        uint32_t storage = g->tensors[t].storage;
        for (uint32_t j = 0; j < i && same == MF_NONE; j++)
            if (operand(op, j) != MF_NONE && g->tensors[operand(op, j)].storage == storage)
                same = j;
        if (i == op->in_count && over != MF_NONE)
            same = over;
        if (same != MF_NONE) {
            s->at[i] = (char *)s->at[same] - g->tensors[operand(op, same)].offset + g->tensors[t].offset;
            continue;
        }
        assert_true(g->storages[storage].bytes <= MOST_BYTES);
        assert_int_equal(posix_memalign((void **)&s->bytes[i], 64, MOST_BYTES), 0);
        memcpy(s->bytes[i], (char *)mf_interpret_data(c->run, t) - g->tensors[t].offset, g->storages[storage].bytes);
        s->at[i] = s->bytes[i] + g->tensors[t].offset;
    }
    s->operands = (mf_operands){s->at, s->at + op->in_count, s->workspace};
}

static void end_scene(scene *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        free(s->bytes[i]);
}

static void run_over(opcheck *c, const char *name, uint32_t o, uint32_t in, unsigned char *workspace)
{
    memfit_error err = {0};
    const mf_op *op = &c->graph->ops[o];
    mf_run_scalars scalars = mf_interpret_scalars(c->graph, 0.1);
    scalars.weight_sum = 2.5;
    scene apart = {.workspace = workspace}, over = {.workspace = workspace};
    mf_kernel *kernel;
    assert_ok(backend->table->prepare(backend, c->graph, o, NULL, &kernel, &err), err);
    set_scene(&apart, c, op, MF_NONE);
    set_scene(&over, c, op, in);
    assert_ok(backend->table->run(kernel, &apart.operands, &scalars, 0, &err), err);
    assert_ok(backend->table->run(kernel, &over.operands, &scalars, 0, &err), err);
    for (uint32_t i = 0; i < op->out_count; i++)
        if (op->out[i] != MF_NONE &&
            memcmp(apart.operands.out[i], over.operands.out[i], bytes_of(c->graph, op->out[i])) != 0)
            fail_msg("%s on %s: output %u of %s is not the same when it writes over input %u", name,
                     backend->table->name, i, mf_kind_name(op->kind), in);
    runs[op->kind][in < 8 ? in : 7]++;
    backend->table->release(backend, kernel);
    end_scene(&apart);
    end_scene(&over);
}

static void run_case(const opcheck_case *k, int variant, mf_dtype dtype, unsigned char *workspace)
{
    opcheck c;
    opcheck_begin(&c, k, variant, dtype, backend);
    opcheck_fill(&c, 7);
    opcheck_run(&c);
    for (uint32_t o = 0; o < c.graph->op_count; o++) {
        const mf_op *op = &c.graph->ops[o];
        const mf_kind_row *row = mf_kind(op->kind);
        for (uint32_t i = 0; i < op->in_count; i++) {
            if (op->in[i] == MF_NONE || op->out_count == 0 || op->out[0] == MF_NONE ||
                c.graph->tensors[op->in[i]].storage == c.graph->tensors[op->out[0]].storage)
                continue;
            if (mf_may_overwrite(c.graph, op, 0, i))
                run_over(&c, k->name, o, i, workspace);
            else if (!row->must_alias && i == row->inplace_in &&
                     mf_shape_equal(&c.graph->tensors[op->in[i]].shape, &c.graph->tensors[op->out[0]].shape) &&
                     c.graph->tensors[op->in[i]].dtype == c.graph->tensors[op->out[0]].dtype && op->in_count < 2)
                fail_msg("%s: the planner may write over input %u of %s, the check refuses it", k->name, i,
                         mf_kind_name(op->kind));
        }
    }
    opcheck_end(&c);
}

static void writing_over_an_operand_changes_nothing(void **state)
{
    memset(runs, 0, sizeof runs);
    unsigned char *workspace = NULL;
    assert_int_equal(posix_memalign((void **)&workspace, 64, 1 << 24), 0);
    for (size_t i = 0; i < opcheck_case_count; i++)
        for (int v = 0; v < opcheck_cases[i].variants; v++)
            run_case(&opcheck_cases[i], v, *(const mf_dtype *)*state, workspace);
    free(workspace);
    static const struct {
        mf_op_kind kind;
        uint32_t in;
    } needed[] = {
        {MF_OP_UNARY, 0},
        {MF_OP_UNARY_GRAD, 0},
        {MF_OP_UNARY_GRAD, 1},
        {MF_OP_MASK_GRAD, 0},
        {MF_OP_BINARY, 0},
        {MF_OP_BINARY, 1},
        {MF_OP_BINARY_GRAD, 0},
        {MF_OP_SUM_N, 0},
        {MF_OP_DROPOUT, 0},
        {MF_OP_SOFTMAX, 0},
        {MF_OP_SOFTMAX_GRAD, 0},
        {MF_OP_PRELU, 0},
        {MF_OP_PRELU_GRAD, 0},
        {MF_OP_BATCH_NORM, 0},
        {MF_OP_BATCH_NORM_GRAD, 0},
        {MF_OP_BATCH_NORM_INFER, 0},
        {MF_OP_BATCH_NORM_INFER_GRAD, 0},
        {MF_OP_LAYER_NORM, 0},
        {MF_OP_LAYER_NORM_GRAD, 0},
        {MF_OP_LOSS_GRAD, 0},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!runs[needed[i].kind][needed[i].in])
            fail_msg("%s over its input %u was never run", mf_kind_name(needed[i].kind), needed[i].in);
}

int main(void)
{
    memfit_error err = {0};
    static const mf_dtype f32 = MF_F32, f64 = MF_F64;
    int failed = 0;
    if (mf_reference_create(NULL, &backend, &err) != MEMFIT_OK)
        return 1;
    const struct CMUnitTest reference[] = {
        cmocka_unit_test_prestate(writing_over_an_operand_changes_nothing, (void *)&f32),
        cmocka_unit_test_prestate(writing_over_an_operand_changes_nothing, (void *)&f64),
    };
    failed += cmocka_run_group_tests_name("reference", reference, NULL, NULL);
    backend->table->destroy(backend);
    if (mf_cpu_create(NULL, 2, &backend, &err) != MEMFIT_OK)
        return failed;
    const struct CMUnitTest cpu[] = {
        cmocka_unit_test_prestate(writing_over_an_operand_changes_nothing, (void *)&f32),
    };
    failed += cmocka_run_group_tests_name("cpu", cpu, NULL, NULL);
    backend->table->destroy(backend);
    return failed;
}
