/* test_hdf5.c: HDF5 files of h5py read, files of our own written and read, extended, damaged. */
#include "test.h"

#include "base/os.h"
#include "file/hdf5.h"
#include "file/hdf5_write.h"

static const char *fixture(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/tests/fixtures/hdf5/%s", getenv("MEMFIT_SOURCE") ? getenv("MEMFIT_SOURCE") : ".",
             name);
    return path;
}

typedef struct opened {
    mf_mapping map;
    mf_arena arena;
    mf_hdf5 file;
    memfit_error err;
} opened;

static void open_fixture(opened *o, const char *name)
{
    assert_ok(mf_os_map_file(fixture(name), &o->map, &o->err), o->err);
    mf_arena_init(&o->arena, NULL);
    assert_ok(mf_hdf5_open(&o->file, o->map.data, o->map.bytes, name, &o->err), o->err);
}

static void close_fixture(opened *o)
{
    mf_arena_destroy(&o->arena);
    mf_os_unmap_file(&o->map);
}

static void open_dataset(opened *o, const char *path, mf_hdf5_dataset *d)
{
    uint64_t address;
    assert_ok(mf_hdf5_find(&o->file, &o->arena, o->file.root, path, &address, &o->err), o->err);
    assert_ok(mf_hdf5_dataset_open(&o->file, address, d, &o->err), o->err);
}

/* The fixtures' arrays hold a[i] = i mod 251 of shape (50, 6, 5), turned into each type in one way. */
static void check_element(const char *kind, const unsigned char *p, uint64_t i)
{
    int64_t a = (int64_t)(i % 251);
    if (strcmp(kind, "uint8") == 0)
        assert_int_equal(*p, a);
    if (strcmp(kind, "bool") == 0)
        assert_int_equal(*p, a % 3 == 0);
    if (strcmp(kind, "int16") == 0)
        assert_int_equal(p[0] | p[1] << 8, a);
    if (strcmp(kind, "int64") == 0) {
        int64_t v;
        memcpy(&v, p, 8);
        assert_int_equal(v, a - 100);
    }
    if (strcmp(kind, "float32") == 0) {
        float v;
        memcpy(&v, p, 4);
        assert_true(v == (float)a / 7);
    }
    if (strcmp(kind, "float64") == 0) {
        double v;
        memcpy(&v, p, 8);
        assert_true(v == (double)a / 7.0);
    }
}

static const struct {
    const char *name;
    unsigned bytes;
    mf_hdf5_kind kind;
} kinds[] = {{"uint8", 1, MF_HDF5_UINT}, {"float32", 4, MF_HDF5_FLOAT}, {"float64", 8, MF_HDF5_FLOAT},
             {"int64", 8, MF_HDF5_INT},  {"float16", 2, MF_HDF5_FLOAT}, {"int16", 2, MF_HDF5_INT},
             {"bool", 1, MF_HDF5_BOOL}};

static void rows_are_read_from_every_storage(void **state)
{
    (void)state;
    static const char *const files[] = {"plain.h5", "gzip.h5", "shuffle.h5", "lzf.h5", "chunked.h5"};
    static const struct {
        uint64_t first, count;
    } runs[] = {{0, 50}, {0, 1}, {49, 1}, {3, 11}, {7, 7}, {16, 32}, {50, 0}};
    unsigned char out[50 * 30 * 8];
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        opened o;
        open_fixture(&o, files[f]);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            mf_hdf5_dataset d;
            mf_hdf5_reader *reader;
            open_dataset(&o, kinds[k].name, &d);
            assert_int_equal(d.kind, kinds[k].kind);
            assert_int_equal(d.element_bytes, kinds[k].bytes);
            assert_int_equal(d.rank, 3);
            assert_int_equal(d.storage == MF_HDF5_IN_PLACE, f == 0);
            assert_ok(mf_hdf5_reader_open(&d, NULL, &reader, &o.err), o.err);
            for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
                assert_ok(mf_hdf5_reader_rows(reader, runs[r].first, runs[r].count, out, &o.err), o.err);
                for (uint64_t i = 0; i < runs[r].count * 30; i++)
                    check_element(kinds[k].name, out + i * d.element_bytes, runs[r].first * 30 + i);
            }
            assert_int_equal(mf_hdf5_reader_rows(reader, 50, 1, out, &o.err), MEMFIT_INVALID);
            mf_hdf5_reader_close(reader);
        }
        close_fixture(&o);
    }
}

static void scalars_attributes_and_groups_are_read(void **state)
{
    (void)state;
    opened o;
    mf_hdf5_dataset d;
    uint64_t address;
    const char *const *list, *text;
    size_t count;
    open_fixture(&o, "plain.h5");
    open_dataset(&o, "/scalar", &d);
    assert_int_equal(d.rank, 0);
    assert_int_equal(d.elements, 1);
    open_dataset(&o, "empty", &d);
    assert_int_equal(d.elements, 0);
    assert_ok(mf_hdf5_attribute_texts(&o.file, &o.arena, o.file.root, "names", &list, &count, &o.err), o.err);
    assert_int_equal(count, 3);
    assert_string_equal(list[2], "three");
    assert_ok(mf_hdf5_attribute_texts(&o.file, &o.arena, o.file.root, "fixed", &list, &count, &o.err), o.err);
    assert_string_equal(list[0], "ab");
    assert_string_equal(list[1], "cde");
    assert_ok(mf_hdf5_find(&o.file, &o.arena, o.file.root, "deep/er", &address, &o.err), o.err);
    assert_ok(mf_hdf5_attribute_text(&o.file, &o.arena, address, "text", &text, &o.err), o.err);
    assert_string_equal(text, "found");
    assert_int_equal(mf_hdf5_attribute_text(&o.file, &o.arena, address, "none", &text, &o.err), MEMFIT_NOT_FOUND);
    assert_int_equal(mf_hdf5_find(&o.file, &o.arena, o.file.root, "deep/sea", &address, &o.err), MEMFIT_NOT_FOUND);
    assert_non_null(strstr(o.err.message, "sea"));
    close_fixture(&o);
}

static void large_groups_are_read(void **state)
{
    (void)state;
    opened o;
    mf_hdf5_group group;
    uint64_t address;
    open_fixture(&o, "many.h5");
    assert_ok(mf_hdf5_find(&o.file, &o.arena, o.file.root, "group", &address, &o.err), o.err);
    assert_ok(mf_hdf5_group_open(&o.file, &o.arena, address, &group, &o.err), o.err);
    assert_int_equal(group.count, 400);
    for (int i = 0; i < 400; i++) {
        char name[16];
        mf_hdf5_dataset d;
        snprintf(name, sizeof name, "%d", i);
        assert_ok(mf_hdf5_dataset_open(&o.file, mf_hdf5_group_find(&group, name), &d, &o.err), o.err);
        assert_int_equal(d.data[0] | d.data[1] << 8, i);
    }
    assert_int_equal(mf_hdf5_group_find(&group, "400"), 0);
    close_fixture(&o);
}

static void chunks_never_written_hold_the_fill_value(void **state)
{
    (void)state;
    opened o;
    mf_hdf5_dataset d;
    mf_hdf5_reader *reader;
    float out[100][4];
    open_fixture(&o, "partial.h5");
    open_dataset(&o, "x", &d);
    assert_ok(mf_hdf5_reader_open(&d, NULL, &reader, &o.err), o.err);
    assert_ok(mf_hdf5_reader_rows(reader, 0, 100, out, &o.err), o.err);
    assert_true(out[0][0] == 3.0f && out[49][3] == 3.0f && out[60][0] == 3.0f && out[99][3] == 3.0f);
    assert_true(out[50][0] != 3.0f && out[59][3] != 3.0f);
    mf_hdf5_reader_close(reader);
    close_fixture(&o);
}

static void what_is_not_read_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *file, *says;
    } cases[] = {{"links.h5", "soft link"},
                 {"external.h5", "another file"},
                 {"big_endian.h5", "big-endian"},
                 {"compound.h5", "compound"},
                 {"latest_chunked.h5", "newest"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        opened o;
        mf_hdf5_dataset d;
        uint64_t address;
        open_fixture(&o, cases[i].file);
        memfit_status st = mf_hdf5_find(&o.file, &o.arena, o.file.root, "x", &address, &o.err);
        if (!st)
            st = mf_hdf5_dataset_open(&o.file, address, &d, &o.err);
        assert_int_equal(st, MEMFIT_UNSUPPORTED);
        if (!strstr(o.err.message, cases[i].says))
            fail_msg("%s", o.err.message);
        close_fixture(&o);
    }
    opened o; /* the new form is read as far as it is simple */
    mf_hdf5_dataset d;
    open_fixture(&o, "latest.h5");
    open_dataset(&o, "x", &d);
    check_element("float32", d.data + 4 * 200, 200);
    open_dataset(&o, "deep/y", &d);
    check_element("uint8", d.data + 100, 100);
    close_fixture(&o);
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

static unsigned char *join(const mf_image *image)
{
    unsigned char *whole = malloc(image->bytes), *p = whole;
    for (size_t i = 0; i < image->count; i++) {
        memcpy(p, image->segments[i].data, image->segments[i].bytes);
        p += image->segments[i].bytes;
    }
    return whole;
}

enum { MANY = 3000 };

static void check_many(mf_hdf5 *file, mf_arena *arena, int add)
{
    mf_hdf5_group group;
    uint64_t address;
    memfit_error err;
    assert_ok(mf_hdf5_find(file, arena, file->root, "a/b", &address, &err), err);
    assert_ok(mf_hdf5_group_open(file, arena, address, &group, &err), err);
    assert_int_equal(group.count, MANY);
    assert_true(group.sorted);
    for (int i = 0; i < MANY; i++) {
        char name[16];
        mf_hdf5_dataset d;
        int value;
        snprintf(name, sizeof name, "%d", i);
        assert_ok(mf_hdf5_dataset_open(file, mf_hdf5_group_find(&group, name), &d, &err), err);
        assert_int_equal(d.kind, MF_HDF5_INT);
        assert_int_equal(d.elements, 1 + i % 3);
        memcpy(&value, d.data, 4);
        assert_int_equal(value, i + add);
    }
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    mf_arena arena;
    mf_h5_writer w;
    memfit_error err;
    static int values[MANY][3];
    static const char *const names[] = {"first", "second"};
    mf_arena_init(&arena, NULL);
    mf_h5_begin(&w, &arena);
    for (int i = 0; i < MANY; i++) {
        char path[32];
        mf_shape shape = {1, {1 + i % 3}};
        snprintf(path, sizeof path, "a/b/%d", i);
        values[i][0] = i;
        mf_h5_array(&w, w.root, path, MF_I32, &shape, values[i]);
    }
    mf_shape scalar = {0};
    mf_h5_array(&w, w.root, "alone", MF_F16, &scalar, "\0\x3c");
    mf_h5_group(&w, w.root, "nothing/in/it");
    mf_h5_text(&w, w.root, "model_config", "{\"a\": 1}");
    mf_h5_texts(&w, mf_h5_group(&w, w.root, "a"), "names", names, 2);
    mf_image image = {.arena = &arena};
    assert_ok(mf_h5_layout(&w, &image, &err), err);
    unsigned char *whole = join(&image);

    mf_hdf5 file;
    const char *text, *const *list;
    size_t count;
    uint64_t address;
    assert_ok(mf_hdf5_open(&file, whole, image.bytes, "written", &err), err);
    check_many(&file, &arena, 0);
    assert_ok(mf_hdf5_attribute_text(&file, &arena, file.root, "model_config", &text, &err), err);
    assert_string_equal(text, "{\"a\": 1}");
    assert_ok(mf_hdf5_find(&file, &arena, file.root, "a", &address, &err), err);
    assert_ok(mf_hdf5_attribute_texts(&file, &arena, address, "names", &list, &count, &err), err);
    assert_int_equal(count, 2);
    assert_string_equal(list[1], "second");
    assert_ok(mf_hdf5_find(&file, &arena, file.root, "nothing/in/it", &address, &err), err);

    /* Extended: one array replaced in place, a group and an attribute added, all else kept. */
    mf_hdf5_dataset d;
    int other = 7 + 1000;
    assert_ok(mf_hdf5_find(&file, &arena, file.root, "a/b/7", &address, &err), err);
    assert_ok(mf_hdf5_dataset_open(&file, address, &d, &err), err);
    mf_patch patch = {(uint64_t)(d.data - file.data), &other, 4};
    mf_h5_writer more;
    mf_h5_begin(&more, &arena);
    mf_h5_array(&more, more.root, "optimizer/vars/0", MF_I64, &scalar, "\1\2\3\4\5\6\7\10");
    mf_h5_text(&more, more.root, "model_config", "another");
    mf_h5_text(&more, more.root, "training_config", "settings");
    mf_image extended = {.arena = &arena};
    assert_ok(mf_h5_layout_extended(&more, &file, &patch, 1, &extended, &err), err);
    unsigned char *longer = join(&extended);
    mf_hdf5 again;
    assert_ok(mf_hdf5_open(&again, longer, extended.bytes, "extended", &err), err);
    assert_ok(mf_hdf5_attribute_text(&again, &arena, again.root, "model_config", &text, &err), err);
    assert_string_equal(text, "another");
    assert_ok(mf_hdf5_attribute_text(&again, &arena, again.root, "training_config", &text, &err), err);
    assert_string_equal(text, "settings");
    assert_ok(mf_hdf5_find(&again, &arena, again.root, "optimizer/vars/0", &address, &err), err);
    assert_ok(mf_hdf5_dataset_open(&again, address, &d, &err), err);
    assert_memory_equal(d.data, "\1\2\3\4\5\6\7\10", 8);
    assert_ok(mf_hdf5_find(&again, &arena, again.root, "a/b/7", &address, &err), err);
    assert_ok(mf_hdf5_dataset_open(&again, address, &d, &err), err);
    assert_memory_equal(d.data, &other, 4);
    assert_ok(mf_hdf5_find(&again, &arena, again.root, "alone", &address, &err), err);

    free(longer);
    free(whole);
    mf_arena_destroy(&arena);
}

/* ---- damage ----------------------------------------------------------------------------------------------- */

static void visit(mf_hdf5 *file, mf_arena *arena, uint64_t address, unsigned depth)
{
    mf_hdf5_group group;
    if (depth > 4 || mf_hdf5_group_open(file, arena, address, &group, NULL))
        return;
    for (size_t i = 0; i < group.count; i++) {
        mf_hdf5_dataset d;
        mf_hdf5_reader *reader;
        const char *const *list;
        size_t count;
        mf_hdf5_attribute_texts(file, arena, group.links[i].address, "text", &list, &count, NULL);
        if (mf_hdf5_dataset_open(file, group.links[i].address, &d, NULL)) {
            visit(file, arena, group.links[i].address, depth + 1);
            continue;
        }
        if (d.bytes > 1u << 20 || mf_hdf5_reader_open(&d, arena->host, &reader, NULL))
            continue;
        void *out = malloc(d.bytes + 1);
        mf_hdf5_reader_rows(reader, 0, d.rank ? d.shape[0] : 1, out, NULL);
        free(out);
        mf_hdf5_reader_close(reader);
    }
}

static void damage_is_survived(void **state)
{
    (void)state;
    static const char *const files[] = {"plain.h5", "gzip.h5", "shuffle.h5", "lzf.h5", "latest.h5", "partial.h5"};
    uint64_t random = 88172645463325252ull;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        mf_mapping map;
        memfit_error err;
        assert_ok(mf_os_map_file(fixture(files[f]), &map, &err), err);
        unsigned char *copy = malloc(map.bytes);
        for (unsigned round = 0; round < 400; round++) {
            memcpy(copy, map.data, map.bytes);
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            uint64_t bytes = round % 4 ? map.bytes : random % map.bytes;
            for (unsigned k = 0; k <= round % 4; k++) {
                random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                copy[random % (map.bytes < 4096 ? map.bytes : 4096)] = (unsigned char)(random >> 40);
            }
            mf_fault_host host;
            mf_fault_host_init(&host, NULL, 0, false);
            mf_arena arena;
            mf_arena_init(&arena, &host.host);
            mf_hdf5 file;
            if (mf_hdf5_open(&file, copy, bytes, "damaged", &err) == MEMFIT_OK)
                visit(&file, &arena, file.root, 0);
            mf_arena_destroy(&arena);
            assert_int_equal(host.live_count, 0);
        }
        free(copy);
        mf_os_unmap_file(&map);
    }
}

static unsigned char *put(unsigned char *p, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *p++ = (unsigned char)(value >> 8 * i);
    return p;
}

/* An index whose every entry is the same node below it, five deep: small in the file, endless to walk. */
static void circles_are_noticed(void **state)
{
    (void)state;
    enum { DEEP = 5, WIDE = 32, NODE = 24 + 8 * (2 * WIDE + 1) };
    opened o;
    open_fixture(&o, "plain.h5");
    unsigned char *copy = calloc(1, o.map.bytes + DEEP * NODE);
    memcpy(copy, o.map.data, o.map.bytes);
    uint64_t top = 0;
    for (uint64_t i = 0; i + 6 < o.map.bytes && !top; i++)
        if (memcmp(copy + i, "TREE\0\0", 6) == 0) /* the root's, by being the first */
            top = i;
    assert_true(top > 0);
    uint64_t symbols = 0;
    for (unsigned i = 0; i < 8; i++)
        symbols |= (uint64_t)copy[top + 32 + i] << 8 * i;
    for (unsigned level = 0; level < DEEP; level++) {
        uint64_t here = level + 1 == DEEP ? top : o.map.bytes + level * NODE;
        uint64_t below = level ? o.map.bytes + (level - 1) * NODE : symbols;
        unsigned char *p = copy + here;
        memcpy(p, "TREE", 4);
        p = put(p + 4, (uint64_t)level << 8, 2);
        p = put(p, WIDE, 2);
        p = put(p, UINT64_MAX, 8);
        p = put(p, UINT64_MAX, 8);
        for (unsigned i = 0; i < WIDE; i++) {
            p = put(p, 0, 8);
            p = put(p, below, 8);
        }
    }
    mf_hdf5 file;
    mf_hdf5_group group;
    memfit_error err;
    assert_ok(mf_hdf5_open(&file, copy, o.map.bytes + DEEP * NODE, "circles", &err), err);
    assert_int_equal(mf_hdf5_group_open(&file, &o.arena, file.root, &group, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "circles"));
    free(copy);
    close_fixture(&o);
}

static void lack_of_memory_is_survived(void **state)
{
    (void)state;
    opened o;
    mf_hdf5_dataset d;
    open_fixture(&o, "gzip.h5");
    open_dataset(&o, "float32", &d);
    for (uint64_t n = 1;; n++) {
        mf_fault_host host;
        mf_hdf5_reader *reader = NULL;
        mf_fault_host_init(&host, NULL, n, false);
        memfit_status st = mf_hdf5_reader_open(&d, &host.host, &reader, &o.err);
        uint64_t held = reader ? mf_hdf5_reader_bytes(reader) : 0;
        assert_int_equal(host.live_bytes, held);
        if (!st) { /* reading takes nothing more */
            unsigned char out[50 * 30 * 4];
            uint64_t calls = host.calls;
            assert_ok(mf_hdf5_reader_rows(reader, 0, 50, out, &o.err), o.err);
            assert_int_equal(host.calls, calls);
        }
        mf_hdf5_reader_close(reader);
        assert_int_equal(host.live_bytes, 0);
        if (!st)
            break;
        assert_int_equal(st, MEMFIT_NO_HOST_MEMORY);
    }
    close_fixture(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_read_from_every_storage),
        cmocka_unit_test(scalars_attributes_and_groups_are_read),
        cmocka_unit_test(large_groups_are_read),
        cmocka_unit_test(chunks_never_written_hold_the_fill_value),
        cmocka_unit_test(what_is_not_read_is_named),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(damage_is_survived),
        cmocka_unit_test(circles_are_noticed),
        cmocka_unit_test(lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
