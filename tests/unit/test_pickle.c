/* test_pickle.c: plain data of every protocol is read, everything else is refused, memory is bounded. */
#include "test.h"

#include "base/memory.h"
#include "base/os.h"
#include "trace/pickle.h"

static void map_fixture(const char *name, mf_mapping *mapping)
{
    char path[4096];
    memfit_error err;
    snprintf(path, sizeof path, "%s/tests/fixtures/traces/%s", getenv("MEMFIT_SOURCE"), name);
    assert_ok(mf_os_map_file(path, mapping, &err), err);
}

static void check_values(const mf_pickle *root)
{
    assert_int_equal(mf_pickle_get(root, "none")->type, MF_PICKLE_NONE);
    assert_int_equal(mf_pickle_get(root, "true")->type, MF_PICKLE_BOOL);
    assert_int_equal(mf_pickle_integer(mf_pickle_get(root, "true"), -1), 1);
    assert_int_equal(mf_pickle_integer(mf_pickle_get(root, "false"), -1), 0);
    assert_int_equal(mf_pickle_integer(mf_pickle_get(root, "small"), -1), 7);
    assert_int_equal(mf_pickle_integer(mf_pickle_get(root, "byte"), -1), 255);
    assert_int_equal(mf_pickle_integer(mf_pickle_get(root, "word"), -1), 65535);
    assert_int_equal(mf_pickle_integer(mf_pickle_get(root, "int"), -1), -2147483648ll);
    assert_true(mf_pickle_integer(mf_pickle_get(root, "large"), -1) == 1ll << 40);
    assert_true(mf_pickle_unsigned(mf_pickle_get(root, "top"), 1) == UINT64_MAX);
    assert_true(mf_pickle_integer(mf_pickle_get(root, "top"), 5) == 5);
    assert_true(mf_pickle_integer(mf_pickle_get(root, "low"), 0) == INT64_MIN);
    assert_true(mf_pickle_unsigned(mf_pickle_get(root, "low"), 3) == 3);
    assert_true(mf_pickle_get(root, "float")->number == 1.5);
    assert_true(
        mf_pickle_is(mf_pickle_get(root, "text"), "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80 'q' \\ \n"));
    const mf_pickle *tuple = mf_pickle_get(root, "tuple");
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(mf_pickle_length(mf_pickle_at(tuple, i)), i);
    const mf_pickle *shared = mf_pickle_get(root, "shared");
    assert_ptr_equal(mf_pickle_at(shared, 0), mf_pickle_at(shared, 1));
    assert_true(mf_pickle_is(mf_pickle_at(mf_pickle_at(shared, 0), 1), "two"));
    const mf_pickle *list = mf_pickle_get(root, "list");
    assert_int_equal(mf_pickle_integer(mf_pickle_at(mf_pickle_at(mf_pickle_at(list, 1), 1), 0), 0), 3);
    const mf_pickle *many = mf_pickle_get(root, "many");
    assert_int_equal(mf_pickle_length(many), 1100);
    assert_int_equal(mf_pickle_integer(mf_pickle_at(many, 1099), 0), 1099);
    assert_null(mf_pickle_get(root, "nothing"));
    assert_null(mf_pickle_at(many, 1100));
}

static void every_protocol_is_read(void **state)
{
    (void)state;
    for (unsigned protocol = 0; protocol <= 5; protocol++) {
        char name[64];
        snprintf(name, sizeof name, "values-p%u.pickle", protocol);
        mf_mapping mapping;
        map_fixture(name, &mapping);
        mf_arena arena;
        mf_arena_init(&arena, NULL);
        mf_pickle_tree tree;
        memfit_error err;
        assert_ok(mf_pickle_read(&arena, mapping.data, mapping.bytes, &tree, &err), err);
        assert_ok(mf_pickle_check(&tree, &err), err);
        assert_int_equal(tree.protocol, protocol < 2 ? 0 : protocol);
        check_values(tree.root);
        if (protocol >= 3) {
            const mf_pickle *bytes = mf_pickle_get(tree.root, "bytes");
            assert_int_equal(bytes->type, MF_PICKLE_BYTES);
            assert_int_equal(bytes->count, 3);
            assert_memory_equal(bytes->data, "\0\1\xff", 3);
        }
        mf_arena_destroy(&arena);
        mf_os_unmap_file(&mapping);
    }
}

static memfit_status read_bytes(const void *data, size_t bytes, memfit_error *err)
{
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    arena.limit_bytes = 1 << 20;
    mf_pickle_tree tree;
    memfit_status status = mf_pickle_read(&arena, data, bytes, &tree, err);
    if (!status)
        assert_int_equal(mf_pickle_check(&tree, err), MEMFIT_OK);
    mf_arena_destroy(&arena);
    return status;
}

static void what_is_not_data_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned char op;
    } refused[] = {{"GLOBAL", 'c'},        {"REDUCE", 'R'},          {"BUILD", 'b'},     {"INST", 'i'},
                   {"OBJ", 'o'},           {"PERSID", 'P'},          {"BINPERSID", 'Q'}, {"NEWOBJ", 0x81},
                   {"EXT1", 0x82},         {"EXT2", 0x83},           {"EXT4", 0x84},     {"NEWOBJ_EX", 0x92},
                   {"STACK_GLOBAL", 0x93}, {"EMPTY_SET", 0x8f},      {"ADDITEMS", 0x90}, {"FROZENSET", 0x91},
                   {"NEXT_BUFFER", 0x97},  {"READONLY_BUFFER", 0x98}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        unsigned char text[] = {0x80, 4, '}', refused[i].op, 'o', 's', '\n', 's', '\n', '.'};
        memfit_error err;
        char wanted[64];
        assert_int_equal(read_bytes(text, sizeof text, &err), MEMFIT_UNSUPPORTED);
        snprintf(wanted, sizeof wanted, "byte 3: the pickle holds %s,", refused[i].name);
        assert_non_null(strstr(err.message, wanted));
    }
    mf_mapping mapping;
    map_fixture("object.pickle", &mapping);
    memfit_error err;
    assert_int_equal(read_bytes(mapping.data, mapping.bytes, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "GLOBAL"));
    mf_os_unmap_file(&mapping);
    assert_int_equal(read_bytes("\x80\x06N.", 4, &err), MEMFIT_UNSUPPORTED);
    /* Every byte is an instruction we know, one we refuse, or no instruction. */
    for (unsigned op = 0; op < 256; op++) {
        unsigned char one[] = {(unsigned char)op, '.'};
        read_bytes(one, 2, &err);
        if (op != 'N' && op != ']' && op != '}' && op != ')' && op != 0x88 && op != 0x89)
            assert_int_not_equal(read_bytes(one, 2, &err), MEMFIT_OK);
    }
}

static void nonsense_is_damaged(void **state)
{
    (void)state;
#define TEXT(t)                                                                                                        \
    {                                                                                                                  \
        t, sizeof t - 1                                                                                                \
    }
    static const struct {
        const char *text;
        size_t bytes;
    } cases[] = {
        TEXT(""),
        TEXT("."),
        TEXT("(."),
        TEXT("NN."),
        TEXT("N"),
        TEXT("a."),
        TEXT("Na."),
        TEXT("NNa."),
        TEXT("]e."),
        TEXT("(e."),
        TEXT("](Nu."),
        TEXT("}(Nu."),
        TEXT("}Ns."),
        TEXT("}(Nd."),
        TEXT("l."),
        TEXT("0."),
        TEXT("1."),
        TEXT("2."),
        TEXT("(2."),
        TEXT("q\0."),
        TEXT("(q\0."),
        TEXT("h\0."),
        TEXT("g5\n."),
        TEXT("Np\n."),
        TEXT("Ix\n."),
        TEXT("I\n."),
        TEXT("I12"),
        TEXT("F1.5.2\n."),
        TEXT("K"),
        TEXT("M\1"),
        TEXT("J\1\1"),
        TEXT("G1234"),
        TEXT("\x8a\x09\1\1\1\1\1\1\1\1\1."),
        TEXT("\x8a\x05\1"),
        TEXT("X\xff\xff\xff\xff."),
        TEXT("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."),
        TEXT("T\5\0\0\0abc"),
        TEXT("S'abc\n."),
        TEXT("Sabc\n."),
        TEXT("\x85."),
        TEXT("N\x86."),
        TEXT("(N\x86."),
        TEXT("\x95\xff\0\0\0\0\0\0\0N."),
        TEXT("Nr\xff\xff\xff\xff."),
        TEXT("Np99999999999999999999\n."),
        TEXT("L99999999999999999999L\n."),
        TEXT("L-9223372036854775809\n."),
        TEXT("\xff."),
        TEXT("\x8a\x09\0\0\0\0\0\0\0\0\xff."),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memfit_error err;
        memfit_status status = read_bytes(cases[i].text, cases[i].bytes, &err);
        if (status != MEMFIT_DAMAGED)
            fail_msg("case %zu (%s): status %d", i, cases[i].text, status);
        assert_non_null(strstr(err.message, "byte "));
    }
}

static void cut_files_are_damaged_at_every_length(void **state)
{
    (void)state;
    for (unsigned protocol = 0; protocol <= 4; protocol += 2) {
        char name[64];
        snprintf(name, sizeof name, "snapshot-p%u.pickle", protocol);
        mf_mapping mapping;
        map_fixture(name, &mapping);
        for (uint64_t n = 0; n < mapping.bytes; n++) {
            memfit_error err;
            assert_int_equal(read_bytes(mapping.data, n, &err), MEMFIT_DAMAGED);
        }
        mf_os_unmap_file(&mapping);
    }
}

static void memory_is_bounded(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    char *text = malloc(n);
    memset(text, ']', n);
    memfit_error err;
    assert_int_equal(read_bytes(text, n, &err), MEMFIT_NO_HOST_MEMORY);
    assert_non_null(strstr(err.message, "set apart"));
    free(text);
}

static void a_list_may_contain_itself(void **state)
{
    (void)state;
    memfit_error err;
    assert_ok(read_bytes("]q\0h\0a.", 7, &err), err);
}

static void failing_memory_leaks_nothing(void **state)
{
    (void)state;
    mf_mapping mapping;
    map_fixture("values-p4.pickle", &mapping);
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, n % 2);
        mf_arena arena;
        mf_arena_init(&arena, &fault.host);
        mf_pickle_tree tree;
        memfit_error err;
        memfit_status status = mf_pickle_read(&arena, mapping.data, mapping.bytes, &tree, &err);
        done = fault.calls < n;
        assert_int_equal(status, done ? MEMFIT_OK : MEMFIT_NO_HOST_MEMORY);
        mf_arena_destroy(&arena);
        assert_int_equal(fault.live_count, 0);
    }
    mf_os_unmap_file(&mapping);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_protocol_is_read),
        cmocka_unit_test(what_is_not_data_is_refused_by_name),
        cmocka_unit_test(nonsense_is_damaged),
        cmocka_unit_test(cut_files_are_damaged_at_every_length),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(a_list_may_contain_itself),
        cmocka_unit_test(failing_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
