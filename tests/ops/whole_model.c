/*
 * whole_model.c: trains a saved model for some steps on given data, without plan or loop, and writes what became of its
 * weights: for tools/compare_whole_models.py, which holds it against Keras.
 *
 *     whole_model MODEL.keras DATA.bin OUT.bin BACKEND STEPS RATE
 *
 * BACKEND is reference, double (the reference operations in float64) or onednn.
 * DATA.bin has x0 and y0 with STEPS batches one after another; OUT.bin gets `loss` (one a step) and, for every stored
 * variable, key<i> (its first values before) and var<i> (all values after).
 */
#include "fixture.h"

static void put(FILE *out, const char *name, uint64_t count, const float *values)
{
    uint32_t head[] = {(uint32_t)strlen(name)}, rest[] = {0, 1, (uint32_t)count};
    fwrite(head, sizeof head, 1, out);
    fwrite(name, 1, head[0], out);
    fwrite(rest, sizeof rest, 1, out);
    fwrite(values, sizeof *values, count, out);
}

static void put_variables(FILE *out, mf_interpreter *it, const mf_graph *graph)
{
    for (uint32_t i = 0; i < graph->variable_count; i++) {
        const mf_variable *v = &graph->variables[i];
        const mf_stored *stored = v->stored;
        bool weight = v->role == MF_VAR_PARAMETER || v->role == MF_VAR_STATISTIC;
        if (!weight || !stored || stored->dtype != MF_F32 || v->tensor == MF_NONE)
            continue;
        char name[32];
        float key[4];
        uint64_t count = mf_shape_count(&graph->tensors[v->tensor].shape), keys = count < 4 ? count : 4;
        memcpy(key, stored->data, keys * 4);
        snprintf(name, sizeof name, "key%u", i);
        put(out, name, keys, key);
        snprintf(name, sizeof name, "var%u", i);
        float *values = calloc(count + 1, sizeof *values);
        mf_ref_convert(MF_F32, values, graph->tensors[v->tensor].dtype, mf_interpret_data(it, v->tensor), count);
        put(out, name, count, values);
        free(values);
    }
}

static memfit_status train(char **argv, memfit_error *err)
{
    fixture f = {.name = argv[1]};
    mf_mapping data;
    mf_backend *backend;
    mf_graph *graph;
    mf_interpreter *it;
    int64_t steps = atoll(argv[5]);
    memfit_status status = mf_os_map_file(argv[2], &data, err);
    mf_arena_init(&f.arena, NULL);
    if (status == MEMFIT_OK)
        status = mf_model_load(NULL, argv[1], &f.model, err);
    if (status == MEMFIT_OK)
        status = strcmp(argv[4], "cpu") == 0 ? mf_cpu_create(NULL, 2, &backend, err)
                                             : mf_reference_create(NULL, &backend, err);
    if (status)
        return status;
    fixture_read(&f, data.data, data.bytes);
    int64_t batch = fixture_find(&f, "x0")->shape.dim[0] / steps;
    mf_lower_options options = {.mode = MF_MODE_TRAIN, .batch = batch, .input_dtype = MF_DTYPE_COUNT};
    status = mf_lower(NULL, f.model, &options, &graph, err);
    if (status == MEMFIT_OK && strcmp(argv[4], "double") == 0)
        mf_graph_widen(graph);
    if (status == MEMFIT_OK)
        status = mf_interpret_create(NULL, graph, backend, &it, err);
    if (status == MEMFIT_OK)
        status = mf_interpret_start(it, err);
    if (status)
        return status;
    float *losses = calloc((size_t)steps, sizeof *losses);
    uint32_t loss = graph->variables[graph->loss_variable].tensor;
    for (int64_t s = 0; status == MEMFIT_OK && s < steps; s++) {
        mf_run_scalars scalars = mf_interpret_scalars(graph, atof(argv[6]));
        scalars.step = scalars.iteration = (uint64_t)s;
        fixture_feed(&f, it, graph, s * batch);
        mf_ref_store(graph->tensors[loss].dtype, mf_interpret_data(it, loss), 0, 0);
        status = mf_interpret_run(it, &scalars, true, true, err);
        losses[s] = (float)mf_ref_load(graph->tensors[loss].dtype, mf_interpret_data(it, loss), 0);
    }
    FILE *out = status == MEMFIT_OK ? fopen(argv[3], "wb") : NULL;
    if (out) {
        put(out, "loss", (uint64_t)steps, losses);
        put_variables(out, it, graph);
        fclose(out);
    }
    free(losses);
    mf_interpret_destroy(it);
    mf_graph_destroy(graph);
    backend->table->destroy(backend);
    fixture_close(&f);
    mf_os_unmap_file(&data);
    return status;
}

int main(int argc, char **argv)
{
    memfit_error err = {0};
    if (argc != 7) {
        fprintf(stderr, "usage: whole_model MODEL.keras DATA.bin OUT.bin BACKEND STEPS RATE\n");
        return 2;
    }
    if (train(argv, &err) != MEMFIT_OK) {
        fprintf(stderr, "whole_model: %s\n", err.message);
        return 1;
    }
    return 0;
}
