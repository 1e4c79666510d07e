/* test_together.c: steps run as one: of drawn phases every two steps that touch the same bytes, one of them writing, keep their
 * order, and what runs as one has one key and shares no bytes that are written. */
#include "test.h"

#include "train/together.h"

enum { STEPS = 60, OPERANDS = 4, BYTES = 1 << 14 };

typedef struct scene {
    mf_graph graph;
    mf_phase phase;
    mf_op ops[STEPS];
    mf_tensor tensors[STEPS * OPERANDS];
    uint32_t ids[STEPS][OPERANDS];
    mf_step steps[STEPS];
    uint64_t offsets[STEPS][OPERANDS];
    const void *keys[STEPS];
} scene;

static uint64_t drawn;

static uint32_t draw(uint32_t below)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(drawn >> 33) % below;
}

/* `far`: how many places there are for operands; few of them meet often. */
static void make_scene(scene *s, uint32_t far)
{
    static const mf_op_kind kinds[] = {MF_OP_CONV, MF_OP_CAST, MF_OP_UPDATE, MF_OP_MOVING_AVERAGE};
    static const char keys[4];
    *s = (scene){.graph = {.ops = s->ops, .op_count = STEPS, .tensors = s->tensors, .tensor_count = STEPS * OPERANDS}};
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t kind = draw(4), ins = 1 + draw(3);
        for (uint32_t k = 0; k < OPERANDS; k++) {
            bool absent = draw(8) == 0;
            s->tensors[i * OPERANDS + k] =
                (mf_tensor){.dtype = MF_F32, .shape = {.rank = 1, .dim = {1 + draw(64)}}, .storage = i};
            s->ids[i][k] = absent ? MF_NONE : i * OPERANDS + k;
            s->offsets[i][k] = absent ? MF_NO_OFFSET : 64 * draw(far);
        }
        s->ops[i] = (mf_op){
            .kind = kinds[kind], .in = s->ids[i], .out = s->ids[i] + ins, .in_count = ins, .out_count = OPERANDS - ins};
        s->steps[i] = (mf_step){.op = i, .offsets = s->offsets[i], .workspace_offset = 64 * draw(far)};
        s->steps[i].workspace_bytes = draw(4) ? 0 : 1 + draw(200);
        s->keys[i] = kind == 0 || draw(6) == 0 ? NULL : &keys[kind];
    }
    s->phase = (mf_phase){.graph = &s->graph, .steps = s->steps, .step_count = STEPS};
}

/* Byte by byte: 1 read, 2 written. */
static void mark(const scene *s, uint32_t step, unsigned char *bytes)
{
    const mf_op *op = &s->ops[step];
    for (uint32_t k = 0; k < OPERANDS; k++)
        if (s->offsets[step][k] != MF_NO_OFFSET)
            for (uint64_t b = 0; b < 4 * (uint64_t)s->tensors[step * OPERANDS + k].shape.dim[0]; b++)
                bytes[s->offsets[step][k] + b] |= k < op->in_count ? 1 : 2;
    for (uint64_t b = 0; b < s->steps[step].workspace_bytes; b++)
        bytes[s->steps[step].workspace_offset + b] |= 2;
}

static unsigned char marks[STEPS][BYTES];

static bool meet(uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < BYTES; i++)
        if (marks[a][i] && marks[b][i] && (marks[a][i] | marks[b][i]) & 2)
            return true;
    return false;
}

static uint32_t check_scene(const scene *s, const mf_together *t)
{
    uint32_t place[STEPS], part[STEPS], seen = 0, joined = 0;
    for (uint32_t p = 0, first = 0; p < t->part_count; first = t->ends[p++]) {
        assert_true(t->ends[p] > first);
        for (uint32_t i = first; i < t->ends[p]; i++, seen++) {
            place[t->steps[i]] = i;
            part[t->steps[i]] = p;
            assert_true(t->ends[p] - first == 1 || s->keys[t->steps[i]]);
            assert_ptr_equal(s->keys[t->steps[i]], s->keys[t->steps[first]]);
        }
        joined += t->ends[p] - first - 1;
    }
    assert_int_equal(seen, STEPS);
    memset(marks, 0, sizeof marks);
    for (uint32_t i = 0; i < STEPS; i++)
        mark(s, i, marks[i]);
    for (uint32_t a = 0; a < STEPS; a++)
        for (uint32_t b = a + 1; b < STEPS; b++)
            if (meet(a, b)) {
                assert_true(place[a] < place[b]);
                assert_true(part[a] != part[b]);
            }
    return joined;
}

static void order_is_kept(void **state)
{
    (void)state;
    static scene s;
    uint32_t joined = 0;
    for (drawn = 1; drawn < 100;) {
        uint64_t next = drawn + 1;
        mf_arena arena;
        mf_together t = {0};
        memfit_error err = {0};
        make_scene(&s, next % 3 == 0 ? 4 : next % 3 == 1 ? 60 : 240);
        mf_arena_init(&arena, NULL);
        assert_ok(mf_together_make(&arena, &s.phase, s.keys, &t, &err), err);
        joined += check_scene(&s, &t);
        mf_arena_destroy(&arena);
        drawn = next;
    }
    assert_true(joined > 500);
}

static void a_host_may_refuse_anywhere(void **state)
{
    (void)state;
    static scene s;
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        mf_fault_host fault;
        mf_arena arena;
        mf_together t = {0};
        memfit_error err = {0};
        drawn = 5;
        make_scene(&s, 60);
        mf_fault_host_init(&fault, NULL, n, true);
        mf_arena_init(&arena, &fault.host);
        memfit_status status = mf_together_make(&arena, &s.phase, s.keys, &t, &err);
        done = status == MEMFIT_OK;
        assert_true(done || (status == MEMFIT_NO_HOST_MEMORY && t.part_count == 0));
        mf_arena_destroy(&arena);
        assert_int_equal(fault.live_count, 0);
        assert_true(n < 20);
    }
}

/* As in together.h: casts first, averages last, whatever stands between. */
static void layers_apart_run_together(void **state)
{
    (void)state;
    static scene s;
    static const char casts, averages;
    enum { LAYERS = STEPS / 3 };
    s = (scene){.graph = {.ops = s.ops, .op_count = STEPS, .tensors = s.tensors, .tensor_count = STEPS * OPERANDS}};
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t layer = i / 3,
                 kind = i % 3; /* cast: weight to narrow; conv: narrow, to result; average: result, to state */
        uint64_t base = 256 * (uint64_t)layer, at[3][2] = {{0, 64}, {64, 128}, {128, 192}};
        s.ops[i] = (mf_op){.kind = kind == 0   ? MF_OP_CAST
                                   : kind == 1 ? MF_OP_CONV
                                               : MF_OP_MOVING_AVERAGE,
                           .in = s.ids[i],
                           .out = s.ids[i] + 1,
                           .in_count = 1,
                           .out_count = 1};
        for (uint32_t k = 0; k < 2; k++) {
            s.ids[i][k] = i * OPERANDS + k;
            s.tensors[i * OPERANDS + k] = (mf_tensor){.dtype = MF_F32, .shape = {.rank = 1, .dim = {16}}};
            s.offsets[i][k] = base + at[kind][k];
        }
        s.steps[i] = (mf_step){.op = i, .offsets = s.offsets[i]};
        s.keys[i] = kind == 0 ? &casts : kind == 1 ? NULL : &averages;
    }
    s.phase = (mf_phase){.graph = &s.graph, .steps = s.steps, .step_count = STEPS};
    mf_arena arena;
    mf_together t = {0};
    memfit_error err = {0};
    mf_arena_init(&arena, NULL);
    assert_ok(mf_together_make(&arena, &s.phase, s.keys, &t, &err), err);
    assert_int_equal(t.part_count, LAYERS + 2);
    assert_int_equal(t.ends[0], LAYERS);
    assert_int_equal(s.ops[t.steps[0]].kind, MF_OP_CAST);
    assert_int_equal(s.ops[t.steps[STEPS - 1]].kind, MF_OP_MOVING_AVERAGE);
    mf_arena_destroy(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_kept),
        cmocka_unit_test(layers_apart_run_together),
        cmocka_unit_test(a_host_may_refuse_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
