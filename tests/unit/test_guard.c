/* test_guard.c: the guard of users' files, by itself and behind the library's calls; and the words options take. */
#include "test.h"

#include "base/guard.h"
#include "base/words.h"
#include "memfit/plan.h"
#include "memfit/train.h"

#include <sys/stat.h>

static const char *put(const char *name, const void *bytes, size_t count)
{
    const char *path = test_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
    return path;
}

static const char *put_text(const char *name, const char *text)
{
    return put(name, text, strlen(text));
}

/* A zip directory's entry, the local header before it left out but for its signature. */
static const char *put_zip(const char *name, const char *member, size_t padding)
{
    static char bytes[200000];
    memset(bytes, 'x', sizeof bytes);
    memcpy(bytes, "PK\3\4", 4);
    char *entry = bytes + 4 + padding;
    memset(entry, 0, 46);
    memcpy(entry, "PK\1\2", 4);
    entry[28] = (char)strlen(member);
    memcpy(entry + 46, member, strlen(member));
    return put(name, bytes, (size_t)(entry + 46 - bytes) + strlen(member) + 22);
}

static void kinds_are_told_by_content(void **state)
{
    (void)state;
    const struct {
        mf_file_kind kind;
        const char *good, *bad;
    } cases[] = {
        {MF_FILE_LOG, "epoch,loss\n0,1\n", "date,loss\n"},
        {MF_FILE_TRACE, "MEMFITTRxxxx", "time_us,op\n"},
        {MF_FILE_PAGE, "<!DOCTYPE html>\n<html><head><title>memfit plan: a</title>",
         "<!DOCTYPE html><title>home</title>"},
        {MF_FILE_ARRAY, "\x93NUMPY\x01", "NUMPY"},
        {MF_FILE_GRAPH, "# training: batch 8, 1 runs, arena 64 bytes\n", "# a page\n, arena of birds\n"},
        {MF_FILE_GRAPH, "digraph step {\n", "digraph other {\n"},
        {MF_FILE_RECORD, "{\n \"format\": \"memfit doctor\",", "{\"format\": \"other\"}"},
        {MF_FILE_PLAN, "{\"format\": \"memfit plan\", \"version\": 1,", "{\"format\": \"other\"}"},
        {MF_FILE_PACKING, "id,lower,upper,size,offset\n", "id,lower,upper,size\n"},
        {MF_FILE_PACKING, "start,end,size,offset\n", "size,offset\n"},
        {MF_FILE_MODEL, "\x89HDF\r\n\x1a\n.... model_config ....", "\x89HDF\r\n\x1a\n.... x y ...."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(mf_guard_is_kind(put_text("good", cases[i].good), cases[i].kind));
        assert_false(mf_guard_is_kind(put_text("bad", cases[i].bad), cases[i].kind));
        for (int k = 0; k < MF_FILE_FOLDER; k++) /* no kind is taken for another */
            assert_int_equal(mf_guard_is_kind(put_text("good", cases[i].good), (mf_file_kind)k),
                             k == (int)cases[i].kind);
    }
    for (size_t padding = 0; padding < 140000; padding += 65536 - 31) { /* an entry that a block's end cuts is found */
        assert_true(mf_guard_is_kind(put_zip("a.keras", "config.json", padding), MF_FILE_MODEL));
        assert_false(mf_guard_is_kind(put_zip("a.npz", "x.npy", padding), MF_FILE_MODEL));
        assert_false(mf_guard_is_kind(put_zip("a.zip", "my_config.json", padding), MF_FILE_MODEL));
    }
    assert_false(mf_guard_is_kind(test_path("missing"), MF_FILE_LOG));
}

static memfit_status guard(const char *in, const char *out, mf_file_kind kind, bool force, memfit_error *err)
{
    const mf_named_file files[] = {{.name = "--data", .path = in}, {"--out", out, true, kind, NULL}};
    return mf_guard_files(files, 2, force, err);
}

static void names_do_not_hide_a_file(void **state)
{
    (void)state;
    memfit_error err = {0};
    const char *data = put_text("data", "epoch,x\n");
    const char *soft = test_path("soft"), *hard = test_path("hard");
    unlink(soft);
    unlink(hard);
    assert_int_equal(symlink(data, soft), 0);
    assert_int_equal(link(data, hard), 0);
    const char *const names[] = {data, soft, hard};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            assert_int_equal(guard(names[i], names[k], MF_FILE_LOG, true, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "would replace an input"));
    assert_ok(guard(data, test_path("new"), MF_FILE_LOG, false, &err), err);
    assert_ok(guard("/dev/null", "/dev/null", MF_FILE_LOG, false, &err), err);
    assert_ok(guard(NULL, data, MF_FILE_LOG, false, &err), err); /* its own kind */
    assert_int_equal(guard(NULL, data, MF_FILE_ARRAY, false, &err), MEMFIT_INVALID);
    assert_ok(guard(NULL, data, MF_FILE_ARRAY, true, &err), err);
    assert_ok(guard(NULL, put_text("empty", ""), MF_FILE_ARRAY, false, &err), err);
}

static void a_folder_guards_what_is_in_it(void **state)
{
    (void)state;
    memfit_error err = {0};
    char folder[128], file[160];
    snprintf(folder, sizeof folder, "%s", test_path("images"));
    snprintf(file, sizeof file, "%s/a.npy", folder);
    assert_int_equal(mkdir(folder, 0755), 0);
    put_text("images/a.npy", "\x93NUMPY\x01");
    put_text("images2", "\x93NUMPY\x01"); /* only its name begins like the folder's */
    assert_int_equal(guard(folder, file, MF_FILE_ARRAY, true, &err), MEMFIT_INVALID);
    assert_ok(guard(folder, test_path("images2"), MF_FILE_ARRAY, false, &err), err);
    assert_ok(guard(folder, test_path("images/new.npy"), MF_FILE_ARRAY, false, &err), err);
    assert_int_equal(guard(folder, folder, MF_FILE_FOLDER, true, &err), MEMFIT_INVALID);
    assert_int_equal(guard(NULL, folder, MF_FILE_ARRAY, true, &err), MEMFIT_INVALID);
    assert_ok(guard(NULL, folder, MF_FILE_FOLDER, false, &err), err);
}

/* C programs are guarded too: what is refused leaves the file as it was. */
static void the_library_replaces_no_input(void **state)
{
    (void)state;
    memfit_error err = {0};
    char model[128], command[512], fixture[400];
    snprintf(model, sizeof model, "%s", test_path("mine.keras"));
    const char *source = getenv("MEMFIT_SOURCE");
    snprintf(fixture, sizeof fixture, "%s/tests/fixtures/train/mlp.keras", source ? source : ".");
    snprintf(command, sizeof command, "cp '%s' '%s'", fixture, model);
    assert_int_equal(system(command), 0);
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    o.model = model;
    o.data = "synthetic:8";
    const char **outputs[] = {&o.out, &o.checkpoint, &o.log_csv, &o.trace};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        *outputs[i] = model;
        assert_int_equal(memfit_train(&o, &r, &err), MEMFIT_INVALID);
        *outputs[i] = NULL;
    }
    o.out = model;
    assert_int_equal(memfit_predict(&o, &r, &err), MEMFIT_INVALID);
    memfit_plan *plan;
    memfit_plan_options p = MEMFIT_PLAN_OPTIONS;
    assert_ok(memfit_plan_create(model, &p, &plan, &err), err);
    assert_int_equal(memfit_plan_write_html((const memfit_plan *const *)&plan, 1, model, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_plan_dump_graph(plan, model, &err), MEMFIT_INVALID);
    memfit_plan_destroy(plan);
    snprintf(command, sizeof command, "cmp -s '%s' '%s'", fixture, model);
    assert_int_equal(system(command), 0);
}

static void words(void **state)
{
    (void)state;
    memfit_error err = {0};
    const char *policy = NULL;
    assert_ok(mf_words_precision("fp32", &policy, &err), err);
    assert_string_equal(policy, "float32");
    assert_ok(mf_words_precision("bf16", &policy, &err), err);
    assert_string_equal(policy, "mixed_bfloat16");
    assert_int_equal(mf_words_precision("fp8", &policy, &err), MEMFIT_INVALID);
    const char *const good[] = {"8,8,1", "8x8x1", "(8, 8, 1)", "[8 8 1]", "8 , 8 , 1"};
    const char *const bad[] = {"", "8,8,", "8x", "x8", "0", "-1", "8,,8", "(8,8", "8)", "8,8 a", "1,1,1,1,1,1,1,1"};
    mf_shape shape;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(mf_words_shape(good[i], strlen(good[i]), &shape));
        assert_true(shape.rank == 3 && shape.dim[0] == 8 && shape.dim[1] == 8 && shape.dim[2] == 1);
    }
    assert_true(mf_words_shape("(8,)", 4, &shape) && shape.rank == 1);
    assert_true(mf_words_shape("56,64:2MiB", 5, &shape) && shape.rank == 2 && shape.dim[1] == 64);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(mf_words_shape(bad[i], strlen(bad[i]), &shape));
    size_t length;
    int64_t n;
    assert_ok(mf_words_dim("tokens=128", &length, &n, &err), err);
    assert_true(length == 6 && n == 128);
    const char *const no_dim[] = {"=3", "x", "x=", "x=0", "x=3y", "x=-1"};
    for (size_t i = 0; i < sizeof no_dim / sizeof *no_dim; i++)
        assert_int_equal(mf_words_dim(no_dim[i], &length, &n, &err), MEMFIT_INVALID);
    assert_true(mf_words_card("cuda") && mf_words_card("gpu:1") && !mf_words_card("cuda:") && !mf_words_card("cudax"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_are_told_by_content),
        cmocka_unit_test(names_do_not_hide_a_file),
        cmocka_unit_test(a_folder_guards_what_is_in_it),
        cmocka_unit_test(the_library_replaces_no_input),
        cmocka_unit_test(words),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
