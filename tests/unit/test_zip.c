/* test_zip.c: archives: reading what other programs write, writing, bombs and damage. */
#include "test.h"

#include "base/memory.h"
#include "file/zip.h"

#include <zlib.h>

enum { ROOM = 1 << 20 };

typedef struct built {
    unsigned char *data;
    uint64_t bytes;
} built;

/* An archive of stored members made with our own writer. */
static built write_archive(mf_zip_entry *entries, const char *const *contents, size_t count, uint64_t alignment)
{
    built b = {calloc(1, ROOM), 0};
    uint64_t directory_at;
    for (size_t i = 0; i < count; i++) {
        entries[i].bytes = entries[i].packed_bytes = strlen(contents[i]);
        entries[i].crc = mf_crc32(0, contents[i], strlen(contents[i]));
    }
    b.bytes = mf_zip_layout(entries, count, alignment, &directory_at);
    assert_true(b.bytes < ROOM);
    for (size_t i = 0; i < count; i++) {
        mf_zip_local_header(&entries[i], b.data + entries[i].header_at);
        memcpy(b.data + entries[i].data_at, contents[i], entries[i].bytes);
    }
    mf_zip_directory(entries, count, directory_at, b.data + directory_at);
    return b;
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    static const char *const contents[] = {"{}", "", "a longer text, to be found again"};
    for (uint64_t alignment = 0; alignment <= 4096; alignment = alignment ? alignment * 8 : 8) {
        mf_zip_entry entries[3] = {{.name = "config.json"}, {.name = "empty"}, {.name = "folder/text"}};
        built b = write_archive(entries, contents, 3, alignment);
        mf_arena arena;
        mf_zip zip;
        memfit_error err;
        mf_arena_init(&arena, NULL);
        assert_true(mf_zip_sniff(b.data, b.bytes));
        assert_ok(mf_zip_open(&zip, &arena, b.data, b.bytes, &err), err);
        assert_int_equal(zip.count, 3);
        assert_null(mf_zip_find(&zip, "missing"));
        for (size_t i = 0; i < 3; i++) {
            const unsigned char *data;
            const mf_zip_member *m = mf_zip_find(&zip, entries[i].name);
            assert_ok(mf_zip_read(&zip, m, &arena, true, &data, &err), err);
            assert_int_equal(m->bytes, strlen(contents[i]));
            assert_memory_equal(data, contents[i], m->bytes);
            assert_true(!alignment || m->data_at % alignment == 0);
            uint32_t crc;
            memcpy(&crc, b.data + m->central_crc_at, 4);
            assert_int_equal(m->crc, crc);
        }
        b.data[entries[2].data_at] ^= 1;
        const unsigned char *data;
        assert_int_equal(mf_zip_read(&zip, &zip.members[2], &arena, true, &data, &err), MEMFIT_DAMAGED);
        assert_non_null(strstr(err.message, "check sum"));
        mf_arena_destroy(&arena);
        free(b.data);
    }
}

/* A deflated member, as zip programs write; `claimed` is what the headers say its size is. */
static built deflated(const void *content, size_t bytes, uint64_t claimed, unsigned method)
{
    unsigned char *packed = malloc(compressBound(bytes) + 64);
    z_stream s = {0};
    assert_int_equal(deflateInit2(&s, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    s.next_in = (Bytef *)(uintptr_t)content;
    s.avail_in = (uInt)bytes;
    s.next_out = packed;
    s.avail_out = (uInt)compressBound(bytes) + 64;
    assert_int_equal(deflate(&s, Z_FINISH), Z_STREAM_END);
    mf_zip_entry e = {.name = "member",
                      .bytes = claimed,
                      .packed_bytes = s.total_out,
                      .method = method,
                      .crc = mf_crc32(0, content, bytes)};
    uint64_t directory_at;
    built b = {calloc(1, ROOM), mf_zip_layout(&e, 1, 0, &directory_at)};
    mf_zip_local_header(&e, b.data);
    memcpy(b.data + e.data_at, packed, s.total_out);
    mf_zip_directory(&e, 1, directory_at, b.data + directory_at);
    deflateEnd(&s);
    free(packed);
    return b;
}

static memfit_status read_only_member(built b, const unsigned char **data, mf_arena *arena, memfit_error *err)
{
    mf_zip zip;
    memfit_status st = mf_zip_open(&zip, arena, b.data, b.bytes, err);
    return st ? st : mf_zip_read(&zip, &zip.members[0], arena, false, data, err);
}

static void names_are_unique(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    static char names[COUNT][8];
    for (int twice = 0; twice < 2; twice++) {
        mf_zip_entry entries[COUNT] = {0};
        for (int i = 0; i < COUNT; i++) {
            snprintf(names[i], sizeof names[i], "m%d", twice && i == COUNT - 1 ? 17 : i);
            entries[i].name = names[i];
        }
        uint64_t directory_at, bytes = mf_zip_layout(entries, COUNT, 0, &directory_at);
        unsigned char *data = calloc(1, bytes);
        for (int i = 0; i < COUNT; i++)
            mf_zip_local_header(&entries[i], data + entries[i].header_at);
        mf_zip_directory(entries, COUNT, directory_at, data + directory_at);
        mf_arena arena;
        mf_zip zip;
        memfit_error err = {0};
        mf_arena_init(&arena, NULL);
        memfit_status st = mf_zip_open(&zip, &arena, data, bytes, &err);
        assert_int_equal(st, twice ? MEMFIT_DAMAGED : MEMFIT_OK);
        if (twice)
            assert_non_null(strstr(err.message, "two members named m17"));
        mf_arena_destroy(&arena);
        free(data);
    }
}

static void packed_members_are_unpacked(void **state)
{
    (void)state;
    char text[50000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 23);
    const unsigned char *data;
    memfit_error err;
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    built b = deflated(text, sizeof text, sizeof text, 8);
    assert_ok(read_only_member(b, &data, &arena, &err), err);
    assert_memory_equal(data, text, sizeof text);
    free(b.data);

    /* Lies about the size: too small, too large, absurd; another method. */
    static const uint64_t claims[] = {10, sizeof text + 1, 1ull << 29, 1ull << 45};
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        b = deflated(text, sizeof text, claims[i], 8);
        assert_int_equal(read_only_member(b, &data, &arena, &err), MEMFIT_DAMAGED);
        free(b.data);
    }
    assert_true(arena.bytes < 4u << 20); /* the lies took no memory */
    b = deflated(text, sizeof text, sizeof text, 12);
    assert_int_equal(read_only_member(b, &data, &arena, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "method 12"));
    free(b.data);
    mf_arena_destroy(&arena);
}

static void large_archives_get_zip64(void **state)
{
    (void)state;
    /* Headers only: nothing of 5 GiB is written. */
    mf_zip_entry e[2] = {{.name = "big", .bytes = 5ull << 30, .packed_bytes = 5ull << 30, .crc = 7},
                         {.name = "behind", .bytes = 3, .packed_bytes = 3, .crc = 8}};
    uint64_t directory_at, whole = mf_zip_layout(e, 2, 64, &directory_at);
    assert_true(directory_at > 5ull << 30);
    unsigned char *out = calloc(1, whole - directory_at), local[256] = {0};
    mf_zip_directory(e, 2, directory_at, out);
    mf_zip_local_header(&e[0], local);
    assert_true(e[0].data_at < sizeof local);
    assert_memory_equal(out, "PK\1\2", 4);
    assert_memory_equal(out + whole - directory_at - 22, "PK\5\6", 4);
    assert_memory_equal(out + whole - directory_at - 42, "PK\6\7", 4);
    free(out);
}

static void damaged_archives_are_refused(void **state)
{
    (void)state;
    static const char *const contents[] = {"one", "two"};
    mf_zip_entry entries[2] = {{.name = "a"}, {.name = "b"}};
    built b = write_archive(entries, contents, 2, 0);
    mf_arena arena;
    mf_zip zip;
    memfit_error err;
    for (uint64_t cut = 0; cut < b.bytes; cut++) {
        mf_arena_init(&arena, NULL);
        assert_int_equal(mf_zip_open(&zip, &arena, b.data, cut, &err), MEMFIT_DAMAGED);
        mf_arena_destroy(&arena);
    }
    for (uint64_t at = 0; at < b.bytes; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            b.data[at] ^= (unsigned char)(1u << bit);
            mf_arena_init(&arena, NULL);
            if (mf_zip_open(&zip, &arena, b.data, b.bytes, &err) == MEMFIT_OK)
                for (size_t i = 0; i < zip.count; i++) {
                    const unsigned char *data;
                    mf_zip_read(&zip, &zip.members[i], &arena, true, &data, &err);
                }
            mf_arena_destroy(&arena);
            b.data[at] ^= (unsigned char)(1u << bit);
        }
    free(b.data);
}

static void put(unsigned char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

/* Members that claim bytes behind the archive's last one, by one byte or by as many as a header can say. */
static void members_beyond_the_end_are_refused(void **state)
{
    (void)state;
    static const char *const contents[] = {"one", "two"};
    for (unsigned method = 0; method <= 8; method += 8)
        for (int k = 0; k < 4; k++) {
            mf_zip_entry entries[2] = {{.name = "a"}, {.name = "b"}};
            built b = write_archive(entries, contents, 2, 0);
            unsigned char *central = b.data + b.bytes - 22 - 46 - 1, *local = b.data + entries[1].header_at;
            assert_memory_equal(central, "PK\1\2", 4);
            uint64_t room = b.bytes - entries[1].data_at;
            static const uint64_t more[] = {0, 1, 0xfffffffe};
            central[10] = (unsigned char)method;
            if (k < 3) { /* its sizes */
                put(central + 20, k == 2 ? more[2] : room + more[k], 4);
                put(central + 24, k == 2 ? more[2] : room + more[k], 4);
            } else { /* the place where it begins */
                put(local + 28, 0xffff, 2);
            }
            mf_arena arena;
            mf_zip zip;
            memfit_error err;
            mf_arena_init(&arena, NULL);
            memfit_status status = mf_zip_open(&zip, &arena, b.data, b.bytes, &err);
            assert_int_equal(status, k == 0 ? MEMFIT_OK : MEMFIT_DAMAGED); /* 0: up to the last byte */
            if (status)
                assert_non_null(strstr(err.message, "beyond the file's end"));
            mf_arena_destroy(&arena);
            free(b.data);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),      cmocka_unit_test(names_are_unique),
        cmocka_unit_test(packed_members_are_unpacked),  cmocka_unit_test(large_archives_get_zip64),
        cmocka_unit_test(damaged_archives_are_refused), cmocka_unit_test(members_beyond_the_end_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
