/* libraries.c: the driver, NVML, NVRTC, cuBLASLt and cuDNN, opened at run time. */
#include "probe.h"
#include <dlfcn.h>
#include <glob.h>

#define STRING1(x) #x
#define STRING(x)  STRING1(x)
#define DEFINE(f)  __typeof__(&f) q_##f;
#define RESOLVE(f)                                                                                                     \
    if ((*(void **)(&q_##f) = dlsym(lib, STRING(f))) == NULL)                                                          \
        return bad("%s: no symbol %s", lib_name, STRING(f));
CUDA_FUNCTIONS(DEFINE)
NVRTC_FUNCTIONS(DEFINE)
BLAS_FUNCTIONS(DEFINE)
DNN_FUNCTIONS(DEFINE)
NVML_FUNCTIONS(DEFINE)

/*
 * Tries the folders of CUDA_PROBE_LIBS, then the usual ones, then the loader's own search. The driver's own libraries
 * (`driver`) come by the loader first: cuDNN finds them so, and there must be one of each.
 */
static void *open_library(const char *const *names, bool driver)
{
    void *first = driver ? dlopen(names[0], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (first != NULL) {
        fprintf(stderr, "library: %s (found by the loader)\n", names[0]);
        return first;
    }
    static const char *const places[] = {"/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
                                         "/opt/*/lib/python3*/site-packages/nvidia/*/lib",
                                         "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
                                         "/usr/lib/python3*/*-packages/nvidia/*/lib",
                                         "/opt/*/.venv/lib/python3*/site-packages/torch/lib",
                                         "/usr/local/lib/python3*/*-packages/torch/lib",
                                         "/usr/local/cuda/lib64",
                                         "/usr/local/cuda*/lib64",
                                         "/usr/lib/x86_64-linux-gnu",
                                         "/usr/local/nvidia/lib64"};
    const char *given = getenv("CUDA_PROBE_LIBS");
    for (int n = 0; names[n] != NULL; n++) {
        char path[1200];
        for (const char *p = given; p != NULL && *p != 0;) {
            int length = (int)strcspn(p, ":");
            snprintf(path, sizeof path, "%.*s/%s", length, p, names[n]);
            void *lib = length > 0 && access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
            if (lib != NULL) {
                fprintf(stderr, "library: %s\n", path);
                return lib;
            }
            p += length + (p[length] == ':');
        }
        for (int i = 0; i < COUNT(places); i++) {
            glob_t found;
            snprintf(path, sizeof path, "%s/%s", places[i], names[n]);
            if (glob(path, 0, NULL, &found) != 0)
                continue;
            void *lib = NULL;
            for (size_t k = 0; k < found.gl_pathc && lib == NULL; k++)
                if ((lib = dlopen(found.gl_pathv[k], RTLD_NOW | RTLD_GLOBAL)) != NULL)
                    fprintf(stderr, "library: %s\n", found.gl_pathv[k]);
            globfree(&found);
            if (lib != NULL)
                return lib;
        }
        void *lib = dlopen(names[n], RTLD_NOW | RTLD_GLOBAL);
        if (lib != NULL) {
            fprintf(stderr, "library: %s (found by the loader)\n", names[n]);
            return lib;
        }
    }
    const char *error = dlerror();
    bad("no %s: %s", names[0], error != NULL ? error : "not found");
    return NULL;
}

#define LIBRARY(name, functions, driver, ...)                                                                          \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        static const char *const names[] = {__VA_ARGS__, NULL};                                                        \
        static void *lib;                                                                                              \
        const char *lib_name = names[0];                                                                               \
        if (lib != NULL)                                                                                               \
            return 0;                                                                                                  \
        if ((lib = open_library(names, driver)) == NULL)                                                               \
            return -1;                                                                                                 \
        functions(RESOLVE) return 0;                                                                                   \
    }
LIBRARY(open_cuda, CUDA_FUNCTIONS, true, "libcuda.so.1")
LIBRARY(open_nvml, NVML_FUNCTIONS, true, "libnvidia-ml.so.1")
LIBRARY(open_nvrtc, NVRTC_FUNCTIONS, false, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
LIBRARY(open_blas, BLAS_FUNCTIONS, false, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
LIBRARY(open_dnn_alone, DNN_FUNCTIONS, false, "libcudnn.so.9", "libcudnn.so")

int open_dnn(void) /* cuDNN opens NVRTC and cuBLASLt by their bare names: they must be there before it */
{
    TRY(open_nvrtc());
    TRY(open_blas());
    return open_dnn_alone();
}

int cuda_bad(const char *what, CUresult result)
{
    const char *name = NULL;
    q_cuGetErrorName(result, &name);
    if (result == CUDA_ERROR_STUB_LIBRARY)
        return bad("%.80s: libcuda.so.1 is the toolkit's stub, no driver", what);
    return bad("%.80s: %s (%d)", what, name != NULL ? name : "?", (int)result);
}

int dnn_bad(const char *what, cudnnStatus_t status)
{
    char message[400] = "";
    q_cudnnGetLastErrorString(message, sizeof message);
    return bad("%.60s: %s; %s", what, q_cudnnGetErrorString(status), message);
}
