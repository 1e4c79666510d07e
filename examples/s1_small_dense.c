/*
 * s1_small_dense.c: Dense(10, relu)-Dense(2) on 1000x10 inputs, Adam, mse, one epoch.
 *
 * Elsewhere this grabs the whole card. Here it takes kilobytes plus the process's fixed cost, and says so. The failing
 * form asks for a limit below the fixed cost: refused before anything runs, with the reason.
 */
#include "example.h"

int main(void)
{
    memfit_model *m = example_model("s1");
    memfit_model_add_input(m, 1, (const int64_t[]){10});
    memfit_model_add_dense(m, 10, "relu");
    memfit_model_add_dense(m, 2, NULL);
    memfit_model_compile(m, "adam", 0, "mse", NULL);

    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err;
    o.model = example_save(m);
    o.data = "synthetic:1000";

    o.memory_bytes = 256 << 10;
    CLAIM(memfit_train(&o, &r, &err) == MEMFIT_DOES_NOT_FIT);
    printf("with 256 KiB: %s\n", err.message);

    o.memory_bytes = 0;
    CLAIM(memfit_train(&o, &r, &err) == MEMFIT_OK);
    example_show("as it is", &r);
    CLAIM(r.arena_bytes < 64 << 10);
    CLAIM(r.arena_used_bytes == r.arena_bytes);
    unlink(o.model);
    return 0;
}
