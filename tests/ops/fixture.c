/* fixture.c: see fixture.h. */
#include "fixture.h"

bool fixture_set_open(fixture_set *set, const char *archive)
{
    char path[4096];
    memfit_error err = {0};
    const char *source = getenv("MEMFIT_SOURCE");
    snprintf(path, sizeof path, "%s/tests/fixtures/ops/%s.zip", source ? source : ".", archive);
    memset(set, 0, sizeof *set);
    if (mf_os_map_file(path, &set->mapping, &err) != MEMFIT_OK)
        return false;
    mf_arena_init(&set->arena, NULL);
    assert_ok(mf_zip_open(&set->zip, &set->arena, set->mapping.data, set->mapping.bytes, &err), err);
    set->names = MF_NEW_ARRAY(&set->arena, const char *, set->zip.count);
    for (size_t i = 0; i < set->zip.count; i++) {
        const char *member = set->zip.members[i].name, *slash = strchr(member, '/');
        if (slash && strcmp(slash, "/model.keras") == 0)
            set->names[set->count++] = mf_arena_strndup(&set->arena, member, (size_t)(slash - member));
    }
    return true;
}

void fixture_set_close(fixture_set *set)
{
    mf_os_unmap_file(&set->mapping);
    mf_arena_destroy(&set->arena);
}

static uint32_t u32_at(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void fixture_read(fixture *f, const unsigned char *data, uint64_t bytes)
{
    f->arrays = MF_NEW_ARRAY(&f->arena, fixture_array, 256);
    for (uint64_t at = 0; at < bytes;) {
        assert_true(f->array_count < 256);
        fixture_array *a = &f->arrays[f->array_count++];
        uint32_t length = u32_at(data + at);
        a->name = mf_arena_strndup(&f->arena, (const char *)data + at + 4, length);
        at += 4 + length;
        a->dtype = u32_at(data + at) ? MF_I32 : MF_F32;
        a->shape.rank = u32_at(data + at + 4);
        for (uint32_t i = 0; i < a->shape.rank; i++)
            a->shape.dim[i] = u32_at(data + at + 8 + 4 * i);
        at += 8 + 4 * a->shape.rank;
        a->count = mf_shape_count(&a->shape);
        void *copy = mf_arena_alloc(&f->arena, a->count * 4); /* aligned */
        memcpy(copy, data + at, a->count * 4);
        a->data = copy;
        at += a->count * 4;
        assert_true(at <= bytes);
    }
}

static const unsigned char *member(fixture *f, const fixture_set *set, const char *name, uint64_t *bytes)
{
    memfit_error err = {0};
    const unsigned char *data;
    const mf_zip_member *m = mf_zip_find(&set->zip, mf_arena_printf(&f->arena, "%s/%s", f->name, name));
    assert_non_null(m);
    assert_ok(mf_zip_read(&set->zip, m, &f->arena, true, &data, &err), err);
    *bytes = m->bytes;
    return data;
}

memfit_status fixture_load(fixture *f, const unsigned char *model, uint64_t bytes, memfit_error *err)
{
    char path[] = "/tmp/memfit-fixture-XXXXXX.keras";
    int fd = mkstemps(path, 6);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, model, bytes), (ssize_t)bytes);
    close(fd);
    memfit_status status = mf_model_load(NULL, path, &f->model, err);
    unlink(path);
    return status;
}

memfit_status fixture_open(fixture *f, const fixture_set *set, const char *name, memfit_error *err)
{
    *f = (fixture){.name = name};
    mf_arena_init(&f->arena, NULL);
    uint64_t bytes;
    const unsigned char *data = member(f, set, "data.bin", &bytes);
    fixture_read(f, data, bytes);
    data = member(f, set, "model.keras", &bytes);
    return fixture_load(f, data, bytes, err);
}

void fixture_close(fixture *f)
{
    mf_model_destroy(f->model);
    mf_arena_destroy(&f->arena);
}

const fixture_array *fixture_find(const fixture *f, const char *format, ...)
{
    char name[64];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (size_t i = 0; i < f->array_count; i++)
        if (strcmp(f->arrays[i].name, name) == 0)
            return &f->arrays[i];
    return NULL;
}

double fixture_value(const fixture_array *a, uint64_t i)
{
    return mf_ref_load(a->dtype, a->data, i);
}

double fixture_norm(const fixture_array *a)
{
    double sum = 0;
    for (uint64_t i = 0; i < a->count; i++)
        sum += fixture_value(a, i) * fixture_value(a, i);
    return sqrt(sum);
}

double fixture_distance(mf_interpreter *it, const mf_graph *graph, uint32_t tensor, const fixture_array *b,
                        double floor)
{
    const mf_tensor *t = &graph->tensors[tensor];
    bool loss = strcmp(b->name, "loss") == 0; /* those of single outputs may follow it */
    if (mf_shape_count(&t->shape) < b->count || (mf_shape_count(&t->shape) > b->count && !loss)) {
        fprintf(stderr, "%s: %llu values where Keras has %llu\n", b->name,
                (unsigned long long)mf_shape_count(&t->shape), (unsigned long long)b->count);
        return INFINITY;
    }
    double error = 0;
    for (uint64_t i = 0; i < b->count; i++) {
        double d = mf_ref_load(t->dtype, mf_interpret_data(it, tensor), i) - fixture_value(b, i);
        error += d * d;
    }
    return sqrt(error) / fmax(fmax(fixture_norm(b), floor), 1e-30);
}

uint32_t fixture_variable(const mf_graph *graph, const fixture_array *key, uint64_t count)
{
    for (uint32_t i = 0; i < graph->variable_count; i++) {
        const mf_variable *v = &graph->variables[i];
        const mf_stored *stored = v->stored;
        if ((v->role == MF_VAR_PARAMETER || v->role == MF_VAR_STATISTIC) && stored &&
            mf_shape_count(&stored->shape) == count && memcmp(stored->data, key->data, key->count * 4) == 0)
            return i;
    }
    return MF_NONE;
}

static const fixture_array *fed(const fixture *f, const mf_feed *feed)
{
    return feed->role == 2   ? fixture_find(f, "w")
           : feed->role == 1 ? fixture_find(f, "y%u", feed->index)
                             : fixture_find(f, "x%u", feed->index);
}

bool fixture_fits(const fixture *f, const mf_graph *graph, uint32_t index)
{
    const fixture_array *a = fed(f, &graph->feeds[index]);
    uint64_t count = mf_shape_count(&graph->tensors[graph->feeds[index].tensor].shape);
    return a && a->shape.rank && count == a->count / (uint64_t)a->shape.dim[0] * (uint64_t)graph->batch;
}

void fixture_fill(const fixture *f, const mf_graph *graph, uint32_t index, int64_t first, void *to)
{
    const mf_feed *feed = &graph->feeds[index];
    const mf_tensor *t = &graph->tensors[feed->tensor];
    const fixture_array *a = fed(f, feed);
    assert_non_null(a);
    uint64_t count = mf_shape_count(&t->shape), row = a->count / (uint64_t)a->shape.dim[0];
    assert_int_equal(count, row * (uint64_t)graph->batch);
    for (uint64_t k = 0; k < count; k++)
        mf_ref_store(t->dtype, to, k, fixture_value(a, (uint64_t)first * row + k));
}

void fixture_feed(const fixture *f, mf_interpreter *it, const mf_graph *graph, int64_t first)
{
    for (uint32_t i = 0; i < graph->feed_count; i++)
        fixture_fill(f, graph, i, first, mf_interpret_data(it, graph->feeds[i].tensor));
}
