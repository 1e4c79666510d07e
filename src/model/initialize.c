/*
 * initialize.c: Keras's initializers.
 *
 * Variance scaling (glorot, he, lecun) is one formula: scale / fan, with the fan of the kernel's shape: the last two
 * axes are input and output channels, the others the receptive field; newer files name the axes themselves. Truncated
 * normals reject what is over two deviations and are scaled up by 1/0.8796 so that the deviation comes out as asked.
 * Orthogonal: Gram-Schmidt (twice, in double) on a normal matrix, which gives the Q of a QR whose R has a positive
 * diagonal: what Keras makes of LAPACK's by flipping signs.
 */
#include "model/initialize.h"

#include "base/error.h"
#include "base/half.h"
#include "base/philox.h"
#include "model/model.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* ---- elements --------------------------------------------------------------------------------------------- */

double mf_element_get(const void *array, mf_dtype dtype, uint64_t index)
{
    const unsigned char *p = (const unsigned char *)array + index * mf_dtype_bytes(dtype);
    union {
        float f;
        double d;
        int64_t i64;
        uint64_t u64;
        int32_t i32;
        uint32_t u32;
        int16_t i16;
        uint16_t u16;
        int8_t i8;
        uint8_t u8;
    } v = {0};
    memcpy(&v, p, mf_dtype_bytes(dtype));
    switch (dtype) {
    case MF_F32:
        return (double)v.f;
    case MF_F64:
        return v.d;
    case MF_F16:
        return (double)mf_half_to_float(v.u16);
    case MF_BF16:
        return (double)mf_bfloat_to_float(v.u16);
    case MF_I8:
        return v.i8;
    case MF_I16:
        return v.i16;
    case MF_U16:
        return v.u16;
    case MF_I32:
        return v.i32;
    case MF_U32:
        return v.u32;
    case MF_I64:
        return (double)v.i64;
    case MF_U64:
        return (double)v.u64;
    default:
        return v.u8;
    }
}

void mf_element_set(void *array, mf_dtype dtype, uint64_t index, double value)
{
    unsigned char *p = (unsigned char *)array + index * mf_dtype_bytes(dtype);
    float f = (float)value;
    uint16_t half;
    int64_t whole;
    switch (dtype) {
    case MF_F32:
        memcpy(p, &f, 4);
        return;
    case MF_F64:
        memcpy(p, &value, 8);
        return;
    case MF_F16:
    case MF_BF16:
        half = dtype == MF_F16 ? mf_float_to_half(f) : mf_float_to_bfloat(f);
        memcpy(p, &half, 2);
        return;
    default: /* little-endian: the low bytes are the narrower integer */
        whole = isfinite(value) && fabs(value) < 9e18 ? (int64_t)llrint(value) : 0;
        memcpy(p, &whole, mf_dtype_bytes(dtype));
    }
}

/* ---- random numbers --------------------------------------------------------------------------------------- */

typedef struct stream {
    uint64_t seed;
    uint32_t key;
    uint64_t block;
    uint32_t words[4];
    unsigned left;
    double spare;
    bool has_spare;
} stream;

/* In (0, 1), from 32 bits. */
static double uniform(stream *s)
{
    if (!s->left) {
        mf_philox(s->seed, s->key, 0, 0, s->block++, s->words);
        s->left = 4;
    }
    return ((double)s->words[--s->left] + 0.5) * 0x1p-32;
}

/* Box and Muller's pair. */
static double normal(stream *s)
{
    if (s->has_spare) {
        s->has_spare = false;
        return s->spare;
    }
    double radius = sqrt(-2 * log(uniform(s))), angle = 6.283185307179586476925 * uniform(s);
    s->spare = radius * sin(angle);
    s->has_spare = true;
    return radius * cos(angle);
}

static double truncated(stream *s)
{
    double z;
    do
        z = normal(s);
    while (fabs(z) > 2);
    return z;
}

/* ---- initializers ----------------------------------------------------------------------------------------- */

typedef enum { CONSTANT, UNIFORM, NORMAL, TRUNCATED, SCALED, ORTHOGONAL, IDENTITY, FORGET } family;
typedef enum { FAN_IN, FAN_OUT, FAN_AVERAGE } fan;

typedef struct recipe {
    family family;
    double a, b; /* constant; low, high; mean, deviation; scale; gain */
    fan fan;
    family distribution; /* of SCALED */
} recipe;

static const struct {
    const char *name, *alias;
    recipe recipe;
} table[] = {
    {"zeros", "zeros", {CONSTANT, 0}},
    {"ones", "ones", {CONSTANT, 1}},
    {"constant", "constant", {CONSTANT, 0}},
    {"random_uniform", "randomuniform", {UNIFORM, -0.05, 0.05}},
    {"uniform", "uniform", {UNIFORM, -0.05, 0.05}},
    {"random_normal", "randomnormal", {NORMAL, 0, 0.05}},
    {"normal", "normal", {NORMAL, 0, 0.05}},
    {"truncated_normal", "truncatednormal", {TRUNCATED, 0, 0.05}},
    {"variance_scaling", "variancescaling", {SCALED, 1, 0, FAN_IN, TRUNCATED}},
    {"glorot_uniform", "glorotuniform", {SCALED, 1, 0, FAN_AVERAGE, UNIFORM}},
    {"glorot_normal", "glorotnormal", {SCALED, 1, 0, FAN_AVERAGE, TRUNCATED}},
    {"he_uniform", "heuniform", {SCALED, 2, 0, FAN_IN, UNIFORM}},
    {"he_normal", "henormal", {SCALED, 2, 0, FAN_IN, TRUNCATED}},
    {"lecun_uniform", "lecununiform", {SCALED, 1, 0, FAN_IN, UNIFORM}},
    {"lecun_normal", "lecunnormal", {SCALED, 1, 0, FAN_IN, TRUNCATED}},
    {"orthogonal", "orthogonalinitializer", {ORTHOGONAL, 1}},
    {"identity", "identityinitializer", {IDENTITY, 1}},
    {"lstm_forget_bias", "lstm_forget_bias", {FORGET}}, /* ours: the second of four gates ones, the others zeros */
};

static const char *initializer_name(const mf_json *v)
{
    if (v->type == MF_JSON_STRING)
        return v->string;
    const char *class_name = mf_json_get_string(v, "class_name", "");
    return strcmp(class_name, "function") == 0 ? mf_json_get_string(v, "config", class_name) : class_name;
}

/* Takes the configuration's values over the table's. */
static void read_settings(const mf_json *config, recipe *r)
{
    const char *mode = mf_json_get_string(config, "mode", ""), *kind = mf_json_get_string(config, "distribution", "");
    switch (r->family) {
    case CONSTANT:
        r->a = mf_json_get_number(config, "value", r->a);
        return;
    case UNIFORM:
        r->a = mf_json_get_number(config, "minval", r->a);
        r->b = mf_json_get_number(config, "maxval", r->b);
        return;
    case NORMAL:
    case TRUNCATED:
        r->a = mf_json_get_number(config, "mean", r->a);
        r->b = mf_json_get_number(config, "stddev", r->b);
        return;
    case FORGET:
        return;
    case ORTHOGONAL:
    case IDENTITY:
        r->a = mf_json_get_number(config, "gain", r->a);
        return;
    case SCALED:
        r->a = mf_json_get_number(config, "scale", r->a);
        r->fan = strcmp(mode, "fan_in") == 0    ? FAN_IN
                 : strcmp(mode, "fan_out") == 0 ? FAN_OUT
                 : strcmp(mode, "fan_avg") == 0 ? FAN_AVERAGE
                                                : r->fan;
        r->distribution = strcmp(kind, "uniform") == 0                                           ? UNIFORM
                          : strcmp(kind, "untruncated_normal") == 0                              ? NORMAL
                          : strcmp(kind, "truncated_normal") == 0 || strcmp(kind, "normal") == 0 ? TRUNCATED
                                                                                                 : r->distribution;
    }
}

static double axes_product(const mf_json *axes, const mf_shape *shape)
{
    double n = 1;
    for (const mf_json *a = axes->first; a; a = a->next) {
        int64_t axis = mf_json_integer(a, 0);
        if (axis >= 0 && axis < shape->rank)
            n *= (double)shape->dim[axis];
    }
    return n;
}

static double fan_of(const recipe *r, const mf_json *config, const mf_shape *shape)
{
    const mf_json *in_axes = mf_json_get(config, "input_axes"), *out_axes = mf_json_get(config, "output_axes");
    double in = 1, out = 1, field = 1;
    if (!mf_json_is_null(in_axes) && !mf_json_is_null(out_axes)) {
        in = axes_product(in_axes, shape);
        out = axes_product(out_axes, shape);
    } else if (shape->rank == 1) {
        in = out = (double)shape->dim[0];
    } else if (shape->rank >= 2) {
        for (uint32_t i = 0; i + 2 < shape->rank; i++)
            field *= (double)shape->dim[i];
        in = field * (double)shape->dim[shape->rank - 2];
        out = field * (double)shape->dim[shape->rank - 1];
    }
    double n = r->fan == FAN_IN ? in : r->fan == FAN_OUT ? out : (in + out) / 2;
    return n > 1 ? n : 1;
}

/* What most weights begin with: the same numbers as one by one, by all threads. A block is four of them, the last first. */
static void fill_uniform(const recipe *r, const stream *s, uint64_t count, float *out)
{
    const int64_t blocks = (int64_t)((count + 3) / 4);
#pragma omp parallel for schedule(static) if (blocks > 1 << 16)
    for (int64_t b = 0; b < blocks; b++) {
        uint32_t words[4];
        mf_philox(s->seed, s->key, 0, 0, (uint64_t)b, words);
        for (uint64_t i = 0; i < 4 && 4 * (uint64_t)b + i < count; i++)
            out[4 * b + (int64_t)i] = (float)(r->a + (r->b - r->a) * (((double)words[3 - i] + 0.5) * 0x1p-32));
    }
}

static void fill(const recipe *r, stream *s, uint64_t count, mf_dtype dtype, void *out)
{
    if (r->family == CONSTANT && r->a == 0 && !signbit(r->a)) { /* the optimizer's slots: most of what is filled */
        memset(out, 0, count * mf_dtype_bytes(dtype));
        return;
    }
    if (r->family == UNIFORM && dtype == MF_F32) {
        fill_uniform(r, s, count, out);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        double v = r->a;
        if (r->family == FORGET)
            v = i >= count / 4 && i < count / 2;
        else if (r->family == UNIFORM)
            v = r->a + (r->b - r->a) * uniform(s);
        else if (r->family == NORMAL)
            v = r->a + r->b * normal(s);
        else if (r->family == TRUNCATED)
            v = r->a + r->b * truncated(s);
        mf_element_set(out, dtype, i, v);
    }
}

/* ---- orthogonal ------------------------------------------------------------------------------------------- */

/* Makes column `j` of a (rows x columns, by column) orthogonal to those before it and of length 1. Twice is enough
 * (Kahan and Parlett). */
static void orthogonalize(double *a, uint64_t rows, uint64_t j)
{
    double *column = a + j * rows;
    for (unsigned pass = 0; pass < 2; pass++)
        for (uint64_t k = 0; k < j; k++) {
            const double *other = a + k * rows;
            double dot = 0;
            for (uint64_t i = 0; i < rows; i++)
                dot += column[i] * other[i];
            for (uint64_t i = 0; i < rows; i++)
                column[i] -= dot * other[i];
        }
    double square = 0;
    for (uint64_t i = 0; i < rows; i++)
        square += column[i] * column[i];
    double scale = square > 0 ? 1 / sqrt(square) : 0;
    for (uint64_t i = 0; i < rows; i++)
        column[i] *= scale;
}

static memfit_status fill_orthogonal(const memfit_host *host, double gain, stream *s, const mf_shape *shape,
                                     mf_dtype dtype, void *out, memfit_error *err)
{
    uint64_t columns = shape->rank ? (uint64_t)shape->dim[shape->rank - 1] : 1;
    uint64_t count = mf_shape_count(shape), rows = columns ? count / columns : 0;
    uint64_t tall = rows > columns ? rows : columns, wide = rows > columns ? columns : rows;
    double *a = mf_host_alloc(host, count * sizeof *a);
    if (!a)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to initialize an orthogonal matrix of %llu elements",
                       (unsigned long long)count);
    for (uint64_t i = 0; i < tall; i++) /* by rows, as Keras draws; kept by columns */
        for (uint64_t j = 0; j < wide; j++)
            a[j * tall + i] = normal(s);
    for (uint64_t j = 0; j < wide; j++)
        orthogonalize(a, tall, j);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < columns; j++)
            mf_element_set(out, dtype, i * columns + j, gain * (rows < columns ? a[i * tall + j] : a[j * tall + i]));
    mf_host_free(host, a, count * sizeof *a);
    return MEMFIT_OK;
}

static memfit_status fill_identity(double gain, const mf_shape *shape, mf_dtype dtype, void *out, memfit_error *err)
{
    if (shape->rank != 2)
        return mf_fail(err, MEMFIT_INVALID, "the identity initializer is for matrices");
    for (int64_t i = 0; i < shape->dim[0]; i++)
        for (int64_t j = 0; j < shape->dim[1]; j++)
            mf_element_set(out, dtype, (uint64_t)(i * shape->dim[1] + j), i == j ? gain : 0);
    return MEMFIT_OK;
}

/* ---- public ----------------------------------------------------------------------------------------------- */

memfit_status mf_initializer(const memfit_host *host, const mf_json *initializer, double constant,
                             const mf_shape *shape, mf_dtype dtype, uint64_t seed, uint32_t key, void *out,
                             memfit_error *err)
{
    recipe r = {CONSTANT, constant};
    const mf_json *config = NULL;
    stream s = {.seed = seed, .key = key};
    if (initializer && !mf_json_is_null(initializer)) {
        const char *name = initializer_name(initializer);
        size_t i = 0, n = sizeof table / sizeof *table;
        while (i < n && strcasecmp(name, table[i].name) != 0 && strcasecmp(name, table[i].alias) != 0)
            i++;
        if (i == n)
            return mf_fail(err, MEMFIT_UNSUPPORTED, "initializer %.80s is not known", name);
        r = table[i].recipe;
        config = mf_json_get(initializer, "config");
        read_settings(config, &r);
    }
    if (r.family == ORTHOGONAL)
        return fill_orthogonal(host, r.a, &s, shape, dtype, out, err);
    if (r.family == IDENTITY)
        return fill_identity(r.a, shape, dtype, out, err);
    if (r.family == SCALED) {
        double variance = r.a / fan_of(&r, config, shape), limit = sqrt(3 * variance);
        r.family = r.distribution;
        r.a = r.family == UNIFORM ? -limit : 0;
        r.b = r.family == UNIFORM ? limit : sqrt(variance) / (r.family == TRUNCATED ? 0.87962566103423978 : 1);
    }
    fill(&r, &s, mf_shape_count(shape), dtype, out);
    return MEMFIT_OK;
}

/* What Keras takes where the configuration names no initializer; NULL: the variable's constant. */
static const char *default_initializer(const mf_variable *v)
{
    static const struct {
        const char *tail, *name;
    } defaults[] = {{"recurrent_kernel", "orthogonal"}, {"kernel", "glorot_uniform"}, {"embeddings", "uniform"}};
    size_t n = strlen(v->name);
    for (size_t i = 0; v->role == MF_VAR_PARAMETER && i < sizeof defaults / sizeof *defaults; i++) {
        size_t m = strlen(defaults[i].tail);
        if (n >= m && strcmp(v->name + n - m, defaults[i].tail) == 0)
            return defaults[i].name;
    }
    return NULL;
}

memfit_status mf_variable_initialize(const memfit_host *host, const mf_graph *graph, uint32_t index, uint64_t seed,
                                     void *out, memfit_error *err)
{
    const mf_variable *v = &graph->variables[index];
    const mf_stored *stored = v->stored;
    uint64_t count = mf_shape_count(&v->shape);
    if (stored) {
        if (stored->dtype == v->dtype && stored->bytes == count * mf_dtype_bytes(v->dtype))
            memcpy(out, stored->data, stored->bytes);
        else if (mf_shape_count(&stored->shape) == count)
            for (uint64_t i = 0; i < count; i++)
                mf_element_set(out, v->dtype, i, mf_element_get(stored->data, stored->dtype, i));
        else
            return mf_fail(err, MEMFIT_DAMAGED, "%.200s: the stored array has another size", v->name);
        return MEMFIT_OK;
    }
    mf_json fallback = {.type = MF_JSON_STRING, .string = default_initializer(v)};
    const mf_json *initializer = !mf_json_is_null(v->initializer) ? v->initializer : fallback.string ? &fallback : NULL;
    memfit_status st = mf_initializer(host, initializer, v->initial, &v->shape, v->dtype, seed, index, out, err);
    return st ? mf_error_prefix(err, st, "%.200s", v->name) : MEMFIT_OK;
}
