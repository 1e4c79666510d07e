/*
 * fake_cudnn.c: what stands for cuDNN in tests of which copy runs. As NVIDIA's, it is a shim that finds its parts by bare
 * names, and a part (FAKE_PART) that knows the version: the number in the file `version` beside it. It starts on any card
 * and knows no convolution, so own kernels do all the work.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef FAKE_PART
static const char here; /* in this copy, whichever has the function that others see */

size_t cudnnGetVersion(void)
{
    Dl_info info;
    char path[1200];
    unsigned long version = 0;
    if (!dladdr(&here, &info) || !strrchr(info.dli_fname, '/'))
        return 0;
    snprintf(path, sizeof path, "%.*s/version", (int)(strrchr(info.dli_fname, '/') - info.dli_fname), info.dli_fname);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    if (fscanf(f, "%lu", &version) != 1)
        version = 0;
    fclose(f);
    return version;
}
#else
enum { NOT_SUPPORTED = 3000 };

size_t cudnnGetVersion(void)
{
    size_t (*version)(void) = NULL;
    void *part = dlopen("libcudnn_graph.so.9", RTLD_NOW), *symbol = part ? dlsym(part, "cudnnGetVersion") : NULL;
    memcpy(&version, &symbol, sizeof version);
    return version ? version() : 0;
}

int cudnnCreate(void **handle)
{
    static int made;
    *handle = &made;
    return 0;
}

int cudnnDestroy(void *handle)
{
    (void)handle;
    return 0;
}

int cudnnSetStream(void *handle, void *stream)
{
    (void)handle, (void)stream;
    return 0;
}

const char *cudnnGetErrorString(int status)
{
    return status ? "not supported" : "success";
}

void cudnnGetLastErrorString(char *text, size_t bytes)
{
    snprintf(text, bytes, "a fake");
}

int cudnnBackendCreateDescriptor(int type, void **descriptor)
{
    (void)type, (void)descriptor;
    return NOT_SUPPORTED;
}

int cudnnBackendDestroyDescriptor(void *descriptor)
{
    (void)descriptor;
    return 0;
}

int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values)
{
    (void)descriptor, (void)name, (void)type, (void)count, (void)values;
    return NOT_SUPPORTED;
}

int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t most, int64_t *count, void *values)
{
    (void)descriptor, (void)name, (void)type, (void)most, (void)count, (void)values;
    return NOT_SUPPORTED;
}

int cudnnBackendFinalize(void *descriptor)
{
    (void)descriptor;
    return NOT_SUPPORTED;
}

int cudnnBackendExecute(void *handle, void *plan, void *pack)
{
    (void)handle, (void)plan, (void)pack;
    return NOT_SUPPORTED;
}
#endif
