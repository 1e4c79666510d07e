/* lower_options.c: what the caller asks of a lowering is looked at before, and whether all of it was used after. */
#include "base/error.h"
#include "model/lower/lower_inner.h"

#include <stdio.h>
#include <string.h>

memfit_status mf_check_lower_options(const mf_lower_options *options, memfit_error *err)
{
    if (options->batch < 1 || options->batch > INT32_MAX)
        return mf_fail(err, MEMFIT_INVALID, "batch size %lld: must be at least 1", (long long)options->batch);
    if (options->precision && strcmp(options->precision, "float32") != 0 &&
        strcmp(options->precision, "mixed_float16") != 0 && strcmp(options->precision, "mixed_bfloat16") != 0)
        return mf_fail(err, MEMFIT_INVALID, "precision '%s': float32, mixed_float16 or mixed_bfloat16",
                       options->precision);
    return MEMFIT_OK;
}

/* The size of a --dim stands in its input's shape: filled in, or what the file says anyway. */
static bool has_size(const mf_shape *shape, int64_t size)
{
    for (uint32_t i = 1; i < shape->rank; i++)
        if (shape->dim[i] == size)
            return true;
    return false;
}

/* A --dim that names no input, or one that has nothing open, would be a size silently not used. */
void mf_check_dims_used(mf_lowering *lo)
{
    const mf_graph *g = lo->b.graph;
    const mf_lower_options *o = lo->options;
    char names[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < g->feed_count; i++)
        if (g->feeds[i].role == 0 && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", g->feeds[i].name);
    for (uint32_t k = 0; k < o->dim_count && mf_build_ok(&lo->b); k++) {
        const mf_shape *shape = NULL;
        char text[128];
        for (uint32_t i = 0; i < g->feed_count; i++)
            if (g->feeds[i].role == 0 && strcmp(g->feeds[i].name, o->dim_names[k]) == 0)
                shape = &g->tensors[g->feeds[i].tensor].shape;
        if (!shape)
            mf_build_fail(&lo->b, MEMFIT_INVALID, "--dim %s=%lld: the model has no input of this name\nIts inputs: %s",
                          o->dim_names[k], (long long)o->dim_values[k], names);
        else if (!has_size(shape, o->dim_values[k]))
            mf_build_fail(&lo->b, MEMFIT_INVALID,
                          "--dim %s=%lld: this input leaves no dimension open; with the batch it is %s\n"
                          "--input-shape gives the first input another shape, where its layers allow it",
                          o->dim_names[k], (long long)o->dim_values[k], mf_shape_format(shape, text, sizeof text));
    }
}

/* An --assume that names no layer would be an assumption silently not made. */
void mf_check_assumptions_used(mf_lowering *lo)
{
    const mf_graph *g = lo->b.graph;
    for (uint32_t k = 0; k < lo->options->assumption_count && mf_build_ok(&lo->b); k++) {
        const char *name = lo->options->assumptions[k].layer;
        bool found = false;
        for (uint32_t i = 1; i < g->layer_count && !found; i++) {
            const char *last = strrchr(g->layers[i].name, '/');
            found = strcmp(g->layers[i].name, name) == 0 || (last && strcmp(last + 1, name) == 0);
        }
        if (!found)
            mf_build_fail(&lo->b, MEMFIT_INVALID, "--assume %s: the model has no layer of this name", name);
    }
}
