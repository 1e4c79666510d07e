/*
 * test_ops_cases.c: hundreds of small models with odd options, alone and combined at random, as real Keras computed
 * them (tools/make_case_fixtures.py), on every backend of this build: outputs, loss, gradients and statistics norm-wise
 * within 1e-4. A model is equal to Keras or refused by name; what is refused is listed in fixtures/ops/refused.txt, a
 * name and a part of the message on each line, and a line that is no longer true fails too.
 *
 *     test_ops_cases [BACKEND [PART-OF-NAME]]      one backend, the cases whose name contains the part, with figures
 */
#include "fixture_run.h"

static mf_backend *backend;
static const char *only_part;
static bool verbose;
static unsigned wrong;
static double worst;
static char worst_name[128];

static void expect_near(const fixture *f, const char *what, double distance)
{
    if (verbose)
        printf("    %-12s %.2e\n", what, distance);
    if (distance <= 1e-4 && distance > worst) {
        worst = distance;
        snprintf(worst_name, sizeof worst_name, "%s %s", f->name, what);
    }
    if (!(distance <= 1e-4)) {
        fprintf(stderr, "%s: %s: %s is off by %.3g\n", backend->table->name, f->name, what, distance);
        wrong++;
    }
}

/* ---- the file ---- */

typedef struct stream {
    const unsigned char *data;
    uint64_t bytes, at;
} stream;

typedef struct case_file {
    fixture_set set;
    stream names, config, weights, data;
} case_file;

static stream open_stream(case_file *c, const char *name)
{
    memfit_error err = {0};
    stream s = {0};
    const mf_zip_member *m = mf_zip_find(&c->set.zip, name);
    assert_non_null(m);
    assert_ok(mf_zip_read(&c->set.zip, m, &c->set.arena, true, &s.data, &err), err);
    s.bytes = m->bytes;
    return s;
}

static void open_cases(case_file *c)
{
    *c = (case_file){0};
    assert_true(fixture_set_open(&c->set, "cases"));
    c->names = open_stream(c, "cases.txt");
    c->config = open_stream(c, "config.json");
    c->weights = open_stream(c, "model.weights.h5");
    c->data = open_stream(c, "data.bin");
}

static const unsigned char *take(stream *s, uint64_t bytes)
{
    assert_true(s->bytes - s->at >= bytes);
    s->at += bytes;
    return s->data + s->at - bytes;
}

/* A .keras file of its two parts, as Keras packs them. */
static unsigned char *pack_model(fixture *f, const unsigned char *const part[3], const uint64_t bytes[3], uint64_t *all)
{
    mf_zip_entry entries[3] = {{.name = "metadata.json"}, {.name = "config.json"}, {.name = "model.weights.h5"}};
    uint64_t directory;
    for (int i = 0; i < 3; i++) {
        entries[i].bytes = entries[i].packed_bytes = bytes[i];
        entries[i].crc = mf_crc32(0, part[i], bytes[i]);
    }
    *all = mf_zip_layout(entries, 3, 0, &directory);
    unsigned char *file = mf_arena_alloc(&f->arena, *all);
    for (int i = 0; i < 3; i++) {
        mf_zip_local_header(&entries[i], file + entries[i].header_at);
        memcpy(file + entries[i].data_at, part[i], bytes[i]);
    }
    mf_zip_directory(entries, 3, directory, file + directory);
    return file;
}

static bool next_case(case_file *c, fixture *f, memfit_status *status, memfit_error *err)
{
    static const char metadata[] = "{\"keras_version\": \"3.15.1\"}";
    unsigned long long config, weights, data;
    char name[128];
    int length;
    if (c->names.at == c->names.bytes)
        return false;
    const char *line = (const char *)c->names.data + c->names.at;
    assert_int_equal(sscanf(line, "%127s %llu %llu %llu%n", name, &config, &weights, &data, &length), 4);
    take(&c->names, (uint64_t)length + 1);
    *f = (fixture){0};
    mf_arena_init(&f->arena, NULL);
    f->name = mf_arena_strndup(&f->arena, name, strlen(name));
    const unsigned char *part[3] = {(const unsigned char *)metadata, take(&c->config, config),
                                    take(&c->weights, weights)};
    const unsigned char *arrays = take(&c->data, data);
    if (only_part && !strstr(f->name, only_part))
        return true;
    uint64_t bytes;
    fixture_read(f, arrays, data);
    const unsigned char *model = pack_model(f, part, (uint64_t[]){sizeof metadata - 1, config, weights}, &bytes);
    *status = fixture_load(f, model, bytes, err);
    return true;
}

/* ---- what is refused ---- */

static mf_mapping refusals;

/* The line "NAME text" of a case, from its text on; NULL when it should run. */
static const char *refusal_of(const char *name, size_t *length)
{
    const char *text = (const char *)refusals.data, *end = text + refusals.bytes;
    size_t n = strlen(name);
    for (const char *line = text; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        if ((size_t)(stop - line) > n && memcmp(line, name, n) == 0 && line[n] == ' ') {
            *length = (size_t)(stop - line) - n - 1;
            return line + n + 1;
        }
        line = stop + 1;
    }
    return NULL;
}

/* A refusal must be expected, of the right kind, and say what the list says. */
static void judge_refusal(const fixture *f, memfit_status status, const memfit_error *err)
{
    size_t length = 0;
    const char *text = refusal_of(f->name, &length);
    if (!status && !text)
        return;
    bool as_said =
        status == MEMFIT_UNSUPPORTED && text && memmem(err->message, strlen(err->message), text, length) != NULL;
    if (as_said)
        return;
    fprintf(stderr, "%s: %s: %s%s\n", backend->table->name, f->name,
            status ? "refused: " : "runs, and refused.txt says it is refused", status ? err->message : "");
    wrong++;
}

static void cases_agree_with_keras(void **state)
{
    (void)state;
    case_file cases;
    fixture f;
    unsigned ran = 0, refused = 0;
    memfit_status status = MEMFIT_OK;
    memfit_error err = {0};
    open_cases(&cases);
    for (; next_case(&cases, &f, &status, &err); fixture_close(&f), err = (memfit_error){0}) {
        if (only_part && !strstr(f.name, only_part))
            continue;
        if (verbose)
            printf("  %s\n", f.name);
        if (status == MEMFIT_OK)
            status = fixture_check(&f, backend, expect_near, 0.01, &err);
        judge_refusal(&f, status, &err);
        ran++;
        refused += status != MEMFIT_OK;
    }
    fixture_set_close(&cases.set);
    printf("%s: %u cases, %u refused, %u wrong, worst of the rest %.2e (%s)\n", backend->table->name, ran, refused,
           wrong, worst, worst_name);
    assert_true(only_part || ran - refused >= 300);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv)
{
    const char *names[] = {"reference", "cpu"};
    char path[4096];
    memfit_error err = {0};
    int failed = 0;
    only_part = argc > 2 ? argv[2] : NULL;
    verbose = argc > 2;
    const char *source = getenv("MEMFIT_SOURCE");
    snprintf(path, sizeof path, "%s/tests/fixtures/ops/refused.txt", source ? source : ".");
    if (mf_os_map_file(path, &refusals, &err) != MEMFIT_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (size_t i = 0; i < 2; i++) {
        bool reference = strcmp(names[i], "reference") == 0;
        if ((argc > 1 && strcmp(argv[1], names[i]) != 0) ||
            (reference ? mf_reference_create(NULL, &backend, &err) : mf_cpu_create(NULL, 2, &backend, &err)))
            continue;
        const struct CMUnitTest tests[] = {cmocka_unit_test(cases_agree_with_keras)};
        wrong = 0;
        worst = 0;
        failed += cmocka_run_group_tests_name(names[i], tests, NULL, NULL);
        backend->table->destroy(backend);
    }
    mf_os_unmap_file(&refusals);
    return failed;
}
