/* example.h: what the training examples share: a scratch folder, messages, one way to end. */
#ifndef MEMFIT_EXAMPLE_H
#define MEMFIT_EXAMPLE_H

#include <memfit/model.h>
#include <memfit/train.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char example_path[256];

/* Saves a model that was built to a temporary file and gives its name. */
static inline const char *example_save(memfit_model *model)
{
    memfit_error err;
    const char *folder = getenv("TMPDIR");
    snprintf(example_path, sizeof example_path, "%s/memfit-example-%d.keras", folder ? folder : "/tmp", (int)getpid());
    if (memfit_model_save(model, example_path, &err) != MEMFIT_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    memfit_model_destroy(model);
    return example_path;
}

static inline memfit_model *example_model(const char *name)
{
    memfit_model *m = NULL;
    memfit_error err;
    if (memfit_model_create_sequential(NULL, name, &m, &err) != MEMFIT_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return m;
}

/* Conv2D(32, 3, relu)-MaxPool-Flatten-Dense(10, softmax) on images of side x side, Adam, mse. */
static inline memfit_model *example_large_images(int64_t side)
{
    memfit_model *m = example_model("s7");
    memfit_model_add_input(m, 3, (const int64_t[]){side, side, 3});
    memfit_model_add_conv2d(m, 32, 3, NULL, "relu");
    memfit_model_add_max_pool2d(m, 2);
    memfit_model_add_flatten(m);
    memfit_model_add_dense(m, 10, "softmax");
    memfit_model_compile(m, "adam", 0, "mse", NULL);
    return m;
}

static inline void example_show(const char *what, const memfit_train_result *r)
{
    char planned[24], measured[24], arena[24];
    printf("%s: planned %s (arena %s), measured %s; %lld pieces, %u operations recomputed, %s; loss %.4f\n", what,
           memfit_size_format(r->planned_peak_bytes, planned, sizeof planned),
           memfit_size_format(r->arena_bytes, arena, sizeof arena),
           memfit_size_format(r->measured_peak_bytes, measured, sizeof measured), (long long)r->pieces,
           r->recomputed_ops, r->numerics, r->loss);
}

/* What the example claims must hold: it is run as a test. */
#define CLAIM(x)                                                                                                       \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            fprintf(stderr, "does not hold: %s\n", #x);                                                                \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

#endif
