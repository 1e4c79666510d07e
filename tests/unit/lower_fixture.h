/* lower_fixture.h: models as real Keras describes them: pairs of lines, what is expected and the model itself. */
#ifndef MF_TESTS_LOWER_FIXTURE_H
#define MF_TESTS_LOWER_FIXTURE_H

#include "lower_models.h"

#include <zlib.h>

/* The whole file, to be freed; MEMFIT_SOURCE names the checkout. NULL when it is not set. */
static inline char *fixture_text(const char *name)
{
    const char *source = getenv("MEMFIT_SOURCE");
    char path[2048];
    if (!source)
        return NULL;
    snprintf(path, sizeof path, "%s/tests/fixtures/%s", source, name);
    gzFile file = gzopen(path, "rb");
    assert_non_null(file);
    size_t bytes = 0, room = 1 << 22;
    char *text = malloc(room);
    assert_non_null(text);
    for (int n; (n = gzread(file, text + bytes, (unsigned)(room - bytes - 1))) > 0;)
        bytes += (size_t)n;
    gzclose(file);
    text[bytes] = 0;
    return text;
}

/* Cuts the next line off *text. */
static inline char *next_line(char **text)
{
    char *line = *text, *end = line ? strchr(line, '\n') : NULL;
    if (!end || end == line)
        return NULL;
    *end = 0;
    *text = end + 1;
    return line;
}

static inline void check_shape(const char *what, const mf_json *expected, const mf_shape *shape)
{
    if (!expected || expected->type != MF_JSON_ARRAY)
        return;
    char text[128];
    if (expected->count != shape->rank)
        fail_msg("%s: rank %u, expected %zu", what, shape->rank, expected->count);
    for (uint32_t d = 1; d < expected->count; d++) {
        const mf_json *e = mf_json_at(expected, d);
        if (e->type == MF_JSON_NUMBER && e->integer != shape->dim[d])
            fail_msg("%s: %s, expected %lld on axis %u", what, mf_shape_format(shape, text, sizeof text),
                     (long long)e->integer, d);
    }
}

/* Parameters and output shapes, layer by layer and in total. */
static inline void check_against_keras(const mf_graph *g, const mf_json *expected)
{
    uint64_t parameters = 0, trainable = 0;
    uint32_t i = 1;
    for (const mf_json *l = mf_json_get(expected, "layers")->first; l; l = l->next, i++) {
        const char *name = mf_json_string(mf_json_at(l, 0), "");
        while (i < g->layer_count && strcmp(g->layers[i].name, name) != 0)
            i++; /* the InputLayer of a nested Sequential model, which Keras does not list */
        if (i >= g->layer_count)
            fail_msg("no layer '%s'", name);
        check_shape(name, mf_json_at(l, 2), &g->layers[i].output_shape);
        bool whole = strcmp(g->layers[i].class_name, "TimeDistributed") == 0; /* may have a model inside */
        if (!whole && g->layers[i].parameter_count != (uint64_t)mf_json_integer(mf_json_at(l, 3), -1))
            fail_msg("layer '%s': %llu parameters", name, (unsigned long long)g->layers[i].parameter_count);
    }
    for (i = 0; i < g->layer_count; i++) {
        parameters += g->layers[i].parameter_count;
        trainable += g->layers[i].trainable_count;
    }
    assert_int_equal(parameters, mf_json_get_integer(expected, "parameters", 0));
    assert_int_equal(trainable, mf_json_get_integer(expected, "trainable", 0));
}

#endif
