/* fixture.h: what tools/make_op_fixtures.py wrote: models saved by Keras with inputs and everything Keras computed. */
#ifndef MF_TESTS_OPS_FIXTURE_H
#define MF_TESTS_OPS_FIXTURE_H

#include "test.h"

#include "base/os.h"
#include "model/lower/lower.h"
#include "file/zip.h"
#include "ops/interpret.h"
#include "ops/reference/reference.h"

#include <math.h>

typedef struct fixture_array {
    const char *name;
    mf_dtype dtype; /* F32 or I32 */
    mf_shape shape;
    uint64_t count;
    const void *data;
} fixture_array;

typedef struct fixture_set { /* one archive */
    mf_arena arena;
    mf_mapping mapping;
    mf_zip zip;
    const char **names;
    size_t count;
} fixture_set;

typedef struct fixture {
    const char *name;
    mf_arena arena;
    mf_model *model;
    fixture_array *arrays;
    size_t array_count;
} fixture;

/* False when the archive is not there. */
bool fixture_set_open(fixture_set *set, const char *archive);
void fixture_set_close(fixture_set *set);

/* A status other than OK: the model cannot be loaded. */
memfit_status fixture_open(fixture *f, const fixture_set *set, const char *name, memfit_error *err);
void fixture_close(fixture *f);
/* Loads the bytes of a .keras file as f->model. */
memfit_status fixture_load(fixture *f, const unsigned char *model, uint64_t bytes, memfit_error *err);
/* Takes the arrays of a data.bin into f->arena. */
void fixture_read(fixture *f, const unsigned char *data, uint64_t bytes);
/* Array by name ("grad%u"), or NULL. */
const fixture_array *fixture_find(const fixture *f, const char *format, ...) MEMFIT_PRINTF(2, 3);
double fixture_value(const fixture_array *a, uint64_t i);

/* ||a - b|| / max(||b||, floor): a tensor of the interpreter against an array; infinite when they differ in size. */
double fixture_distance(mf_interpreter *it, const mf_graph *graph, uint32_t tensor, const fixture_array *b,
                        double floor);
double fixture_norm(const fixture_array *a);
/* The variable of this role whose stored value begins with the key; MF_NONE when there is none. */
uint32_t fixture_variable(const mf_graph *graph, const fixture_array *key, uint64_t count);
/* Fills inputs, targets and sample weights; rows [first, first + graph->batch) of each array. */
void fixture_feed(const fixture *f, mf_interpreter *it, const mf_graph *graph, int64_t first);
/* Is there an array for this feed, with as many values a sample? */
bool fixture_fits(const fixture *f, const mf_graph *graph, uint32_t feed);
/* The same for one of them, wherever it lies. */
void fixture_fill(const fixture *f, const mf_graph *graph, uint32_t feed, int64_t first, void *to);

#endif
