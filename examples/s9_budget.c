/*
 * s9_budget.c: the small form of a deep convolutional network, Conv 64-pool-128-GAP-Dense, trained inside a budget set
 * below what it needs. Failing: the budget with everything forbidden. Fixed: the planner's choice.
 */
#include "example.h"

int main(void)
{
    memfit_model *m = example_model("s9");
    memfit_model_add_input(m, 3, (const int64_t[]){64, 64, 3});
    memfit_model_add_conv2d(m, 64, 3, "same", "relu");
    memfit_model_add_max_pool2d(m, 2);
    memfit_model_add_conv2d(m, 128, 3, "same", "relu");
    memfit_model_add_global_average_pool2d(m);
    memfit_model_add_dense(m, 10, "softmax");
    memfit_model_compile(m, "adam", 0, "mse", NULL);

    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result free_run = MEMFIT_TRAIN_RESULT, r = MEMFIT_TRAIN_RESULT;
    memfit_error err;
    o.model = example_save(m);
    o.data = "synthetic:32";
    CLAIM(memfit_train(&o, &free_run, &err) == MEMFIT_OK);
    example_show("without a limit", &free_run);

    o.memory_bytes = free_run.fixed_bytes + free_run.arena_bytes / 2 + (2 << 20);
    o.pieces = 1;
    o.no_recompute = true;
    CLAIM(memfit_train(&o, &r, &err) == MEMFIT_DOES_NOT_FIT);
    printf("half of it, nothing allowed: %s\n", err.message);

    o.pieces = 0;
    o.no_recompute = false;
    CLAIM(memfit_train(&o, &r, &err) == MEMFIT_OK);
    example_show("half of it", &r);
    CLAIM(r.planned_peak_bytes <= o.memory_bytes && r.measured_peak_bytes <= o.memory_bytes);
    unlink(o.model);
    return 0;
}
