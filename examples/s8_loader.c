/*
 * s8_loader.c: arrays of 1000x1000 in float64, for a model that takes (1000, 1000, 1).
 *
 * A loader that collects 1000 of them, stacks them and converts the stack has 8 GB three times over. Here the file is
 * mapped and each sample is converted as it is copied: constant memory. The missing last axis of size 1 is added, as
 * Keras does; any other wrong shape is an error that names the layer, the shape it expects and the one that is given.
 * The file is a hole of 64 arrays, so that the example takes no room.
 */
#include "example.h"

#include <fcntl.h>

enum { ARRAYS = 64 };

static int write_arrays(const char *path, int width)
{
    char head[128];
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = snprintf(head + 10, sizeof head - 10, "{'descr': '<f8', 'fortran_order': False, 'shape': (%d, 1000, %d), }",
                     ARRAYS, width);
    head[10 + n] = ' ';
    head[127] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int good = fd >= 0 && write(fd, head, sizeof head) == sizeof head &&
               ftruncate(fd, (off_t)sizeof head + (off_t)ARRAYS * 1000 * width * 8) == 0;
    return fd >= 0 && close(fd) == 0 && good;
}

int main(void)
{
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err;
    const char *folder = getenv("TMPDIR");
    char path[256];
    snprintf(path, sizeof path, "%s/memfit-s8-%d.npy", folder ? folder : "/tmp", (int)getpid());
    memfit_model *m = example_model("s8");
    memfit_model_add_input(m, 3, (const int64_t[]){1000, 1000, 1});
    memfit_model_add_max_pool2d(m, 25);
    memfit_model_add_flatten(m);
    memfit_model_add_dense(m, 1, NULL);
    memfit_model_compile(m, "adam", 0, "mse", NULL);
    o.model = example_save(m);
    o.data = path;
    o.batch = 8;
    o.memory_bytes = 128 << 20; /* the file is 512 MB */

    CLAIM(write_arrays(path, 999));
    CLAIM(memfit_predict(&o, &r, &err) == MEMFIT_DAMAGED);
    printf("a wrong shape: %s\n", err.message);
    CLAIM(strstr(err.message, "(1000, 1000, 1)") && strstr(err.message, "(1000, 999)"));

    CLAIM(write_arrays(path, 1000));
    CLAIM(memfit_predict(&o, &r, &err) == MEMFIT_OK);
    example_show("mapped and converted", &r);
    CLAIM(r.measured_peak_bytes <= r.planned_peak_bytes && r.planned_peak_bytes <= o.memory_bytes);
    unlink(path);
    unlink(o.model);
    return 0;
}
