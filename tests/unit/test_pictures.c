/* test_pictures.c: a folder of images as data, against what Keras made of the same files (tools/make_picture_fixtures.py);
 * damaged and hostile pictures; what opening and decoding take. */
#include "data_files.h"

#include "base/memory.h"
#include "data/listing.h"
#include "data/resize.h"
#include "data/source.h"
#include "data/worker.h"

#include <math.h>
#include <sys/stat.h>

enum { HIGH = 24, WIDE = 20, ELEMENTS = HIGH * WIDE * 3, ROOM = 1 << 20 };

static const char *fixture(const char *name)
{
    static char path[2048];
    const char *root = getenv("MEMFIT_SOURCE");
    if (!root || !mf_picture_has(MF_PICTURE_JPEG) || !mf_picture_has(MF_PICTURE_PNG)) {
        print_message("skipped: %s\n", root ? "built without libjpeg or libpng" : "MEMFIT_SOURCE is not set");
        skip();
    }
    snprintf(path, sizeof path, "%s/tests/fixtures/%s", root, name);
    return path;
}

static mf_source *open_as(const char *path, mf_source_wish wish)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    wish.height = HIGH;
    wish.width = WIDE;
    assert_ok(mf_source_open_as(NULL, path, &wish, NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    return s;
}

static memfit_status make(const mf_source *s, int64_t index, uint64_t room, void *out, memfit_error *err)
{
    mf_worker *w;
    assert_ok(mf_worker_create(NULL, room, 0, &w, err), *err);
    memfit_status status = s->maker->make(s, mf_source_find(s, "x"), index, w, out, err);
    mf_worker_destroy(w);
    return status;
}

/* JPEG decoders may differ by 1; nothing else may. */
static void as_keras_has_them(void **state)
{
    (void)state;
    mf_source *ours = open_as(fixture("pictures"), (mf_source_wish){0}), *theirs = NULL;
    memfit_error err = {0};
    assert_ok(mf_source_open(NULL, fixture("pictures.npz"), NULL, &theirs, &err), err);
    assert_int_equal(ours->samples, theirs->samples);
    const mf_array *x = mf_source_find(theirs, "x"), *y = mf_source_find(theirs, "y");
    static float a[ELEMENTS], b[ELEMENTS];
    for (int64_t i = 0; i < ours->samples; i++) {
        char name[256];
        int32_t label, want;
        int beyond = 0;
        ours->maker->name(ours, i, name, sizeof name);
        assert_ok(make(ours, i, ROOM, a, &err), err);
        mf_source_read(theirs, x, i, b);
        mf_source_read(ours, mf_source_find(ours, "y"), i, &label);
        mf_source_read(theirs, y, i, &want);
        assert_int_equal(label, want);
        bool jpeg = label == 0;
        for (int e = 0; e < ELEMENTS; e++)
            beyond += jpeg ? a[e] > b[e] + 1 || a[e] < b[e] - 1 : a[e] != b[e];
        if (beyond > (jpeg ? ELEMENTS / 1000 : 0))
            fail_msg("%s: %d of %d values are not Keras's", name, beyond, ELEMENTS);
    }
    mf_source_close(theirs);
    mf_source_close(ours);
}

/* Every value, to the bit; and what is not read is named. */
static void webp_as_tensorflow_has_it(void **state)
{
    (void)state;
    memfit_error err = {0};
    static float a[ELEMENTS], b[ELEMENTS];
    mf_source *ours = open_as(fixture("webp"), (mf_source_wish){.unlabelled = true}), *theirs = NULL;
    if (!mf_picture_has(MF_PICTURE_WEBP)) {
        assert_int_equal(make(ours, 0, ours->room_bytes, a, &err), MEMFIT_UNSUPPORTED);
        assert_non_null(strstr(err.message, "built without libwebp"));
        mf_source_close(ours);
        return;
    }
    assert_ok(mf_source_open(NULL, fixture("webp.npz"), NULL, &theirs, &err), err);
    assert_int_equal(ours->samples, theirs->samples + 1);
    for (int64_t i = 0; i < theirs->samples; i++) {
        assert_ok(make(ours, i, ours->room_bytes, a, &err), err);
        mf_source_read(theirs, mf_source_find(theirs, "x"), i, b);
        assert_memory_equal(a, b, sizeof a);
        /* Whatever room there is, no more is taken; less than needed is said. */
        uint64_t room = 4096;
        while (make(ours, i, room, a, &err) == MEMFIT_OUT_OF_MEMORY) {
            if (err.requested_bytes <= room || err.requested_bytes > ours->room_bytes)
                fail_msg("%s: wants %llu of %llu, estimated %llu", err.message, (unsigned long long)err.requested_bytes,
                         (unsigned long long)room, (unsigned long long)ours->room_bytes);
            room = err.requested_bytes;
        }
        assert_memory_equal(a, b, sizeof a);
    }
    assert_int_equal(make(ours, theirs->samples, ours->room_bytes, a, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "zmoving.webp is an animation"));
    mf_source_close(theirs);
    mf_source_close(ours);
}

/* Twice as large as asked for and more: another decoder of the same picture, so not the same values, but near. */
static void scaled_decoding(void **state)
{
    (void)state;
    memfit_error err = {0};
    float full[10 * 12 * 3], scaled[10 * 12 * 3];
    mf_source *s[2];
    for (int i = 0; i < 2; i++) {
        const mf_source_wish wish = {.height = 12, .width = 10, .scaled = i == 1};
        assert_ok(mf_source_open_as(NULL, fixture("pictures"), &wish, NULL, &s[i], &err), err);
        assert_ok(make(s[i], 4, s[i]->room_bytes, i ? scaled : full, &err), err); /* same_size.jpg: 20 x 24 */
    }
    double apart = 0;
    for (size_t i = 0; i < sizeof full / sizeof *full; i++)
        apart += fabs((double)full[i] - (double)scaled[i]) / (double)(sizeof full / sizeof *full);
    assert_true(apart > 0 && apart < 8);
    mf_source_close(s[0]);
    mf_source_close(s[1]);
    s[0] = open_as(fixture("pictures"), (mf_source_wish){0}); /* less than twice as large: every pixel */
    s[1] = open_as(fixture("pictures"), (mf_source_wish){.scaled = true});
    static float a[ELEMENTS], b[ELEMENTS];
    assert_ok(make(s[0], 0, ROOM, a, &err), err);
    assert_ok(make(s[1], 0, ROOM, b, &err), err);
    assert_memory_equal(a, b, sizeof a);
    mf_source_close(s[0]);
    mf_source_close(s[1]);
}

static void names_are(const mf_source *s, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char name[2048];
        s->maker->name(s, (int64_t)i, name, sizeof name);
        assert_string_equal(strrchr(name, '/') + 1, names[i]);
    }
}

static void in_the_order_of_keras(void **state)
{
    (void)state;
    static const char *const listed[] = {"full.jpeg",     "half.JPG",    "plain.jpg",  "progressive.jpg",
                                         "same_size.jpg", "turned.jpg",  "grey.jpg",   "ink.jpg",
                                         "alpha.png",     "colours.bmp", "colours.png"};
    static const char *const mixed[] = {
        "half.JPG",       "turned.jpg",  "plain.jpg",        "transparent.png", "palette.png", "grey.png",
        "grey.bmp",       "full.jpeg",   "sixteen_bits.png", "grey.jpg",        "one_bit.png", "moving.gif",
        "grey_alpha.png", "colours.png", "one.gif",          "colours.bmp",     "alpha.png"};
    mf_source *s = open_as(fixture("pictures"), (mf_source_wish){0});
    assert_int_equal(s->samples, 22);
    assert_int_equal(s->class_count, 2);
    names_are(s, listed, sizeof listed / sizeof *listed);
    mf_source_close(s);
    s = open_as(fixture("pictures"), (mf_source_wish){.split = true, .seed = 7});
    names_are(s, mixed, sizeof mixed / sizeof *mixed);
    int32_t label;
    mf_source_read(s, mf_source_find(s, "y"), 3, &label);
    assert_int_equal(label, 1); /* transparent.png */
    mf_source_close(s);
    s = open_as(fixture("pictures"), (mf_source_wish){.unlabelled = true});
    assert_null(mf_source_find(s, "y"));
    assert_int_equal(s->samples, 23); /* the hidden folder too: it is no class, but below the root */
    mf_source_close(s);
}

static void as_bytes_and_one_hot(void **state)
{
    (void)state;
    mf_source *f = open_as(fixture("pictures"), (mf_source_wish){0});
    mf_source *b = open_as(fixture("pictures"), (mf_source_wish){.bytes = true});
    static float x[ELEMENTS];
    static unsigned char bytes[ELEMENTS];
    memfit_error err = {0};
    assert_ok(make(f, 9, ROOM, x, &err), err);
    assert_ok(make(b, 9, ROOM, bytes, &err), err);
    for (int e = 0; e < ELEMENTS; e++)
        assert_int_equal(bytes[e], (int)(x[e] + 0.5f));
    float hot[2];
    mf_source_one_hot(f, 2);
    assert_int_equal(mf_source_find(f, "y")->shape.rank, 2);
    mf_source_read(f, mf_source_find(f, "y"), 9, hot);
    assert_true(hot[0] == 0 && hot[1] == 1);
    mf_source_close(f);
    mf_source_close(b);
}

/* Every way of resizing has the bits of the rule written down plainly, for sizes that make edges of all kinds. */
static void resized_as_written_down(const mf_resize *r, const unsigned char *in, float *out)
{
    for (uint32_t y = 0; y < r->height; y++)
        for (uint32_t x = 0; x < r->width; x++) {
            const float at_y = ((float)y + 0.5f) * ((float)r->from_height / (float)r->height) - 0.5f;
            const float at_x = ((float)x + 0.5f) * ((float)r->from_width / (float)r->width) - 0.5f;
            const float last_y = (float)r->from_height - 1, last_x = (float)r->from_width - 1;
            const uint32_t top = (uint32_t)fmaxf(floorf(at_y), 0),
                           bottom = (uint32_t)fmaxf(fminf(ceilf(at_y), last_y), 0);
            const uint32_t left = (uint32_t)fmaxf(floorf(at_x), 0),
                           right = (uint32_t)fmaxf(fminf(ceilf(at_x), last_x), 0);
            const volatile float by = at_y - floorf(at_y), bx = at_x - floorf(at_x);
            for (uint32_t c = 0; c < r->channels; c++) {
#define AT(row, column) (float)in[((size_t)(row)*r->from_width + (column)) * r->channels + c]
                volatile float a = (AT(top, right) - AT(top, left)) * bx,
                               b = (AT(bottom, right) - AT(bottom, left)) * bx;
                a = AT(top, left) + a;
                b = AT(bottom, left) + b;
                volatile float d = (b - a) * by;
                out[((size_t)y * r->width + x) * r->channels + c] = a + d;
#undef AT
            }
        }
}

static void every_way_of_resizing(void **state)
{
    (void)state;
    enum { MOST = 70 };
    static unsigned char in[MOST * MOST * 4], room_bytes[1 << 16];
    static float want[MOST * MOST * 4], got[MOST * MOST * 4];
    static unsigned char rounded[MOST * MOST * 4];
    uint32_t random = 12345;
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)((random = random * 1664525 + 1013904223) >> 24);
    for (int round = 0; round < 3000; round++) {
        random = random * 1664525 + 1013904223;
        const uint32_t high = 1 + random % 9, wide = 1 + (random >> 8) % MOST, out_wide = 1 + (random >> 16) % MOST;
        const uint32_t channels = round % 5 == 0 ? 1 : round % 5 == 1 ? 4 : 3;
        const bool plain = round % 2, bytes = round % 3 == 0;
        mf_resize r = {.height = 1 + (random >> 24) % 12, .width = round % 7 ? out_wide : wide, .channels = channels};
        r.dtype = bytes ? MF_U8 : MF_F32;
        r.out = bytes ? (void *)rounded : (void *)got;
        const mf_picture_sink sink = mf_resize_sink(&r);
        mf_room room = {room_bytes, mf_resize_room_bytes(r.width, channels), 0, 0, 0};
        assert_int_equal(sink.begin(sink.ctx, wide, high, &room, NULL), MEMFIT_OK);
        if (plain)
            r.fast = NULL;
        for (uint32_t y = 0; y < high; y++)
            sink.row(sink.ctx, in + (size_t)y * wide * channels);
        assert_true(mf_resize_is_whole(&r));
        resized_as_written_down(&r, in, want);
        const size_t n = (size_t)r.height * r.width * channels;
        for (size_t i = 0; bytes && i < n; i++)
            assert_int_equal(rounded[i], (unsigned char)(want[i] + 0.5f));
        if (!bytes)
            assert_memory_equal(got, want, n * sizeof *want);
    }
}

/* ---- what people and strangers do -------------------------------------------------------------------------- */

static void put_picture(const char *name, const void *data, size_t bytes)
{
    mkdir(test_path("set"), 0777);
    mkdir(test_path("set/a"), 0777);
    write_file(name, data, bytes);
}

static void expect_refused(const char *name, const void *data, size_t bytes, memfit_status status, const char *text)
{
    memfit_error err = {0};
    static float out[ELEMENTS];
    put_picture(name, data, bytes);
    mf_source *s = open_as(test_path("set"), (mf_source_wish){0});
    assert_true(s->room_bytes < 4 << 20); /* whatever its header claims */
    assert_int_equal(make(s, 0, s->room_bytes, out, &err), status);
    if (!strstr(err.message, text) || !strstr(err.message, name + 4))
        fail_msg("%s: \"%s\" does not say \"%s\"", name, err.message, text);
    mf_source_close(s);
    unlink(test_path(name));
}

static size_t read_fixture(const char *name, unsigned char *data, size_t room)
{
    FILE *f = fopen(fixture(name), "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, room, f);
    fclose(f);
    return n;
}

static void damaged_pictures_are_named(void **state)
{
    (void)state;
    unsigned char data[8192];
    size_t n = read_fixture("pictures/jpeg/plain.jpg", data, sizeof data);
    expect_refused("set/a/cut.jpg", data, n / 2, MEMFIT_DAMAGED, "is cut off at byte");
    expect_refused("set/a/head.jpg", data, 30, MEMFIT_DAMAGED, "header");
    expect_refused("set/a/none.jpg", data, 0, MEMFIT_DAMAGED, "is empty");
    expect_refused("set/a/text.jpg", "this is a page, not a picture", 29, MEMFIT_DAMAGED, "not a picture");
    expect_refused("set/a/new.jpg", "RIFF\x10\0\0\0WEBPVP8 ", 16, MEMFIT_DAMAGED, "WebP");
    n = read_fixture("pictures/other/colours.png", data, sizeof data);
    expect_refused("set/a/cut.png", data, n - 20, MEMFIT_DAMAGED, "cut off");
    data[n / 2] ^= 0x55;
    expect_refused("set/a/turned.png", data, n, MEMFIT_DAMAGED, "");
    n = read_fixture("pictures/other/one.gif", data, sizeof data);
    expect_refused("set/a/cut.gif", data, n / 2, MEMFIT_DAMAGED, "end early");
    n = read_fixture("pictures/other/colours.bmp", data, sizeof data);
    expect_refused("set/a/cut.bmp", data, n - 1, MEMFIT_DAMAGED, "cut off");
}

/* Small files that claim to be huge cost no more than their header. */
static void bombs_are_refused(void **state)
{
    (void)state;
    unsigned char data[8192];
    size_t n = read_fixture("pictures/other/colours.png", data, sizeof data);
    memcpy(data + 16, "\0\0\xc3\x50\0\0\xc3\x50", 8); /* 50,000 x 50,000 */
    expect_refused("set/a/bomb.png", data, n, MEMFIT_UNSUPPORTED, "50000 x 50000");
    n = read_fixture("pictures/jpeg/progressive.jpg", data, sizeof data);
    for (size_t i = 2; i + 8 < n; i++)
        if (data[i] == 0xff && data[i + 1] == 0xc2) {
            memcpy(data + i + 5, "\xc3\x50\xc3\x50", 4);
            break;
        }
    expect_refused("set/a/bomb.jpg", data, n, MEMFIT_UNSUPPORTED, "50000 x 50000");
    n = read_fixture("pictures/other/one.gif", data, sizeof data);
    memcpy(data + 6, "\xff\xff\xff\xff", 4);
    expect_refused("set/a/bomb.gif", data, n, MEMFIT_UNSUPPORTED, "65535 x 65535");
}

static void too_large_for_a_worker(void **state)
{
    (void)state;
    memfit_error err = {0};
    static float out[ELEMENTS];
    mf_source *s = open_as(fixture("pictures"), (mf_source_wish){0});
    assert_int_equal(make(s, 3, 16 << 10, out, &err), MEMFIT_OUT_OF_MEMORY); /* progressive.jpg */
    assert_non_null(strstr(err.message, "progressive.jpg"));
    assert_non_null(strstr(err.hint, "--decode-memory"));
    assert_true(err.requested_bytes > 16 << 10);
    assert_int_equal(make(s, 16, 16 << 10, out, &err), MEMFIT_OUT_OF_MEMORY); /* a PNG: zlib's window alone */
    for (int64_t i = 0; i < s->samples; i++)
        assert_ok(make(s, i, s->room_bytes, out, &err), err);
    mf_source_close(s);
}

static void folders_that_are_no_data(void **state)
{
    (void)state;
    mf_source *s;
    memfit_error err = {0};
    mkdir(test_path("flat"), 0777);
    write_file("flat/a.jpg", "x", 1);
    assert_int_equal(mf_source_open(NULL, test_path("flat"), NULL, &s, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "no sub-folders"));
    mkdir(test_path("flat/class"), 0777);
    write_file("flat/class/readme.md", "x", 1);
    assert_int_equal(mf_source_open(NULL, test_path("flat"), NULL, &s, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "readme.md"));
}

static void a_file_that_is_gone(void **state)
{
    (void)state;
    memfit_error err = {0};
    static float out[ELEMENTS];
    put_picture("set/a/soon.jpg", "x", 1);
    mf_source *s = open_as(test_path("set"), (mf_source_wish){0});
    unlink(test_path("set/a/soon.jpg"));
    assert_int_equal(make(s, 0, ROOM, out, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "set/a/soon.jpg cannot be read: No such file"));
    mf_source_close(s);
}

static void opening_survives_lack_of_memory(void **state)
{
    (void)state;
    const char *path = fixture("pictures");
    for (uint64_t n = 1; n < 200; n++) {
        mf_fault_host fault;
        mf_source *s = NULL;
        memfit_error err = {0};
        const mf_source_wish wish = {.split = true};
        mf_fault_host_init(&fault, NULL, n, true);
        memfit_status status = mf_source_open_as(&fault.host, path, &wish, NULL, &s, &err);
        if (status == MEMFIT_OK) {
            mf_source_close(s);
            assert_int_equal(fault.live_bytes, 0);
            assert_true(n > 8);
            return;
        }
        assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
        assert_int_equal(fault.live_bytes, 0);
    }
    fail();
}

/* Names and places of many files. */
static void listings_are_small(void **state)
{
    (void)state;
    enum { FILES = 2000 };
    char name[64];
    mkdir(test_path("many"), 0777);
    mkdir(test_path("many/one"), 0777);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "many/one/picture_%07d.jpg", (i * 7919) % FILES);
        write_file(name, "", 0);
    }
    mf_listing l;
    memfit_error err = {0};
    assert_ok(mf_listing_make(NULL, test_path("many"), true, &l, &err), err);
    assert_int_equal(l.count, FILES);
    assert_true(mf_listing_bytes(&l) < (uint64_t)FILES * 64);
    for (int i = 0; i < FILES; i++) {
        char path[128];
        snprintf(name, sizeof name, "one/picture_%07d.jpg", i);
        assert_true(mf_listing_path(&l, i, path, sizeof path));
        assert_string_equal(path, name);
    }
    mf_listing_drop(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_keras_has_them),
        cmocka_unit_test(webp_as_tensorflow_has_it),
        cmocka_unit_test(scaled_decoding),
        cmocka_unit_test(in_the_order_of_keras),
        cmocka_unit_test(as_bytes_and_one_hot),
        cmocka_unit_test(every_way_of_resizing),
        cmocka_unit_test(damaged_pictures_are_named),
        cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(too_large_for_a_worker),
        cmocka_unit_test(folders_that_are_no_data),
        cmocka_unit_test(a_file_that_is_gone),
        cmocka_unit_test(opening_survives_lack_of_memory),
        cmocka_unit_test(listings_are_small),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
