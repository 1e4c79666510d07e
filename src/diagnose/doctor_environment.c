/*
 * doctor_environment.c: the variables that steer allocators. Each is read by one framework only, most are ignored in
 * silence when misspelt, and some say the opposite of another.
 */
#include "diagnose/look.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static const char *const known_variables[] = {"TF_FORCE_GPU_ALLOW_GROWTH",
                                              "TF_GPU_ALLOCATOR",
                                              "TF_ENABLE_GPU_GARBAGE_COLLECTION",
                                              "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
                                              "TF_CUDNN_WORKSPACE_LIMIT_IN_MB",
                                              "TF_FORCE_UNIFIED_MEMORY",
                                              "TF_GPU_HOST_MEM_LIMIT_IN_MB",
                                              "TF_CPP_MIN_LOG_LEVEL",
                                              "TF_ENABLE_ONEDNN_OPTS",
                                              "TF_DETERMINISTIC_OPS",
                                              "TF_XLA_FLAGS",
                                              "XLA_PYTHON_CLIENT_PREALLOCATE",
                                              "XLA_PYTHON_CLIENT_MEM_FRACTION",
                                              "XLA_CLIENT_MEM_FRACTION",
                                              "XLA_PYTHON_CLIENT_ALLOCATOR",
                                              "XLA_FLAGS",
                                              "PYTORCH_CUDA_ALLOC_CONF",
                                              "PYTORCH_ALLOC_CONF",
                                              "PYTORCH_NO_CUDA_MEMORY_CACHING",
                                              "PYTORCH_NVML_BASED_CUDA_CHECK",
                                              "CUDA_VISIBLE_DEVICES",
                                              "CUDA_MODULE_LOADING",
                                              "CUDA_LAUNCH_BLOCKING",
                                              "CUDA_DEVICE_ORDER",
                                              "CUDA_HOME",
                                              "CUDA_PATH",
                                              "CUDA_CACHE_PATH",
                                              "CUDA_MPS_PIPE_DIRECTORY",
                                              "CUDA_MPS_LOG_DIRECTORY",
                                              "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                                              "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                                              "CUDA_CACHE_DISABLE",
                                              "CUDA_CACHE_MAXSIZE",
                                              NULL};

static void misspelt(memfit_doctor *d)
{
    static const char *const prefixes[] = {"TF_", "XLA_", "PYTORCH_", "CUDA_"};
    for (char **e = environ; e && *e; e++) {
        size_t n = strcspn(*e, "=");
        char name[64];
        if (n >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)n, *e);
        bool ours = false, known = false;
        for (size_t i = 0; i < 4; i++)
            ours |= strncmp(name, prefixes[i], strlen(prefixes[i])) == 0;
        for (size_t i = 0; known_variables[i]; i++)
            known |= strcmp(name, known_variables[i]) == 0;
        if (!ours || known)
            continue;
        for (size_t i = 0; known_variables[i]; i++)
            if (mf_edit_distance(name, known_variables[i]) <= 3) {
                memfit_check *c =
                    mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN, "%s is set, but no framework reads it", name);
                mf_doctor_mend(c, known_variables[i], "export %s=%.100s", known_variables[i], *e + n + 1);
                break;
            }
    }
}

/* "expandable_segment:True": PyTorch refuses to start with an option it does not know. */
static void check_torch_options(memfit_doctor *d, const char *variable)
{
    static const char *const options[] = {"backend",
                                          "expandable_segments",
                                          "garbage_collection_threshold",
                                          "graph_capture_record_stream_reuse",
                                          "max_non_split_rounding_mb",
                                          "max_split_size_mb",
                                          "per_process_memory_fraction",
                                          "pinned_num_register_threads",
                                          "pinned_reserve_segment_size_mb",
                                          "pinned_use_background_threads",
                                          "pinned_use_cuda_host_register",
                                          "release_lock_on_cudamalloc",
                                          "roundup_power2_divisions"};
    for (const char *p = getenv(variable); p && *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',')) {
        size_t n = strcspn(p, ":,");
        if (p[n] != ':' || strchr("[0123456789>", *p)) /* inside of a list of roundings */
            continue;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        const char *near = NULL;
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            if (mf_edit_distance(name, options[i]) <= 3)
                near = options[i];
        if (near && strcmp(near, name) != 0) {
            memfit_check *c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN,
                                              "%s has %s, which PyTorch does not know", variable, name);
            mf_doctor_mend(c, near, "export %s=%s%.*s", variable, near, (int)strcspn(p + n, ","), p + n);
        }
    }
}

/* Values that are refused, and two names for one thing. */
static void check_values(memfit_doctor *d)
{
    const char *allocator = getenv("TF_GPU_ALLOCATOR"), *fraction = getenv("XLA_PYTHON_CLIENT_MEM_FRACTION"),
               *alias = getenv("XLA_CLIENT_MEM_FRACTION");
    memfit_check *c;
    if (allocator && *allocator && strcmp(allocator, "cuda_malloc_async") != 0 &&
        strcmp(allocator, "cuda_malloc") != 0) {
        c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN, "TF_GPU_ALLOCATOR=%.40s is no allocator of TensorFlow",
                            allocator);
        mf_doctor_mend(c, "cuda_malloc_async, or unset", "export TF_GPU_ALLOCATOR=cuda_malloc_async");
    }
    if (fraction && alias && strcmp(fraction, alias) != 0) {
        c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN,
                            "XLA_CLIENT_MEM_FRACTION and XLA_PYTHON_CLIENT_MEM_FRACTION contradict each other");
        mf_doctor_mend(c, "one of them", "unset XLA_PYTHON_CLIENT_MEM_FRACTION");
    }
}

void mf_doctor_environment(memfit_doctor *d)
{
    const char *growth = getenv("TF_FORCE_GPU_ALLOW_GROWTH"), *visible = getenv("CUDA_VISIBLE_DEVICES"),
               *fraction = getenv("XLA_PYTHON_CLIENT_MEM_FRACTION");
    const char *preallocate = getenv("XLA_PYTHON_CLIENT_PREALLOCATE"), *conf = getenv("PYTORCH_CUDA_ALLOC_CONF"),
               *other = getenv("PYTORCH_ALLOC_CONF");
    memfit_check *c;
    misspelt(d);
    check_torch_options(d, "PYTORCH_CUDA_ALLOC_CONF");
    check_torch_options(d, "PYTORCH_ALLOC_CONF");
    check_values(d);
    if (growth && strcmp(growth, "true") != 0 && strcmp(growth, "false") != 0) {
        c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN,
                            "TF_FORCE_GPU_ALLOW_GROWTH=%.40s is logged and ignored", growth);
        mf_doctor_mend(c, "true or false", "export TF_FORCE_GPU_ALLOW_GROWTH=true");
    }
    if (preallocate && fraction && strcmp(preallocate, "false") == 0)
        mf_doctor_check(d, "environment", MEMFIT_CHECK_NOTE,
                        "XLA preallocation is off and a memory fraction is set: the fraction is then a limit only");
    if (fraction && (atof(fraction) <= 0 || atof(fraction) > 1)) {
        c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN, "XLA_PYTHON_CLIENT_MEM_FRACTION=%.40s is no fraction",
                            fraction);
        mf_doctor_mend(c, "more than 0, at most 1", "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.75");
    }
    if (conf && other && strcmp(conf, other) != 0) {
        c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN,
                            "PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF contradict each other");
        mf_doctor_mend(c, "one of them", "unset PYTORCH_CUDA_ALLOC_CONF");
    }
    if (conf && strstr(conf, "expandable_segments:True") && strstr(conf, "backend:cudaMallocAsync")) {
        c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN,
                            "expandable_segments has no effect with backend:cudaMallocAsync");
        mf_doctor_mend(c, "one of them", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    }
    if (visible && (!*visible || strcmp(visible, "-1") == 0)) {
        c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN, "CUDA_VISIBLE_DEVICES=%s hides every card", visible);
        mf_doctor_mend(c, "the cards to use", "unset CUDA_VISIBLE_DEVICES");
    }
    if (getenv("PYTORCH_NO_CUDA_MEMORY_CACHING")) {
        c = mf_doctor_check(d, "environment", MEMFIT_CHECK_WARN,
                            "PYTORCH_NO_CUDA_MEMORY_CACHING is set: every tensor is a driver call");
        mf_doctor_mend(c, "unset, outside of debugging", "unset PYTORCH_NO_CUDA_MEMORY_CACHING");
    }
}
