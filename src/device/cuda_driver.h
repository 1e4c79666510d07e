/*
 * cuda_driver.h: own prototypes of the CUDA driver functions memfit calls. One list gives the names the driver exports,
 * the table of pointers and the fake driver's duties. Values and layouts are checked against NVIDIA's header in a test
 * where that header exists.
 */
#ifndef MF_DEVICE_CUDA_DRIVER_H
#define MF_DEVICE_CUDA_DRIVER_H

#include "device/finder.h"

typedef int cu_result; /* 0 is success */
typedef int cu_device;
typedef struct cu_context_opaque *cu_context;
typedef struct cu_stream_opaque *cu_stream;
typedef struct cu_event_opaque *cu_event;
typedef struct cu_module_opaque *cu_module;
typedef struct cu_function_opaque *cu_function;
typedef struct cu_graph_opaque *cu_graph;
typedef struct cu_graph_exec_opaque *cu_graph_exec;
typedef unsigned long long cu_address;
typedef unsigned long long cu_handle; /* of physical memory */

enum {
    CU_SUCCESS = 0,
    CU_ERROR_INVALID_VALUE = 1,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NOT_INITIALIZED = 3,
    CU_ERROR_DEINITIALIZED = 4,
    CU_ERROR_STUB_LIBRARY = 34,
    CU_ERROR_NO_DEVICE = 100,
    CU_ERROR_INVALID_DEVICE = 101,
    CU_ERROR_INVALID_CONTEXT = 201,
    CU_ERROR_ECC_UNCORRECTABLE = 214,
    CU_ERROR_INVALID_HANDLE = 400,
    CU_ERROR_ILLEGAL_STATE = 401,
    CU_ERROR_NOT_READY = 600,
    CU_ERROR_ILLEGAL_ADDRESS = 700,
    CU_ERROR_LAUNCH_TIMEOUT = 702,
    CU_ERROR_CONTEXT_IS_DESTROYED = 709,
    CU_ERROR_LAUNCH_FAILED = 719,
    CU_ERROR_NOT_SUPPORTED = 801,
    CU_ERROR_SYSTEM_NOT_READY = 802,
    CU_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CU_ERROR_COMPAT_NOT_SUPPORTED = 804,
    CU_ERROR_UNKNOWN = 999,

    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_CAPABILITY_MAJOR = 75,
    CU_ATTRIBUTE_CAPABILITY_MINOR = 76,
    CU_ATTRIBUTE_VMM_SUPPORTED = 102,

    CU_LOCATION_DEVICE = 1,
    CU_ALLOCATION_PINNED = 1,
    CU_ACCESS_READ_WRITE = 3,
    CU_GRANULARITY_MINIMUM = 0,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_RECORD_EXTERNAL = 1,
    CU_CAPTURE_MODE_RELAXED = 2,
    CU_CAPTURE_STATUS_NONE = 0,
};

typedef struct cu_location {
    int type, id;
} cu_location;
typedef struct cu_allocation_prop {
    int type, handle_types;
    cu_location location;
    void *win32;
    struct {
        unsigned char compression, rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} cu_allocation_prop;
typedef struct cu_access_desc {
    cu_location location;
    int flags;
} cu_access_desc;
typedef struct cu_uuid {
    unsigned char bytes[16];
} cu_uuid;

/* member, exported name, required, arguments */
#define MF_CUDA_LIST(X)                                                                                                \
    X(init, "cuInit", true, (unsigned flags))                                                                          \
    X(driver_version, "cuDriverGetVersion", true, (int *version))                                                      \
    X(error_name, "cuGetErrorName", true, (cu_result code, const char **text))                                         \
    X(device_count, "cuDeviceGetCount", true, (int *count))                                                            \
    X(device_get, "cuDeviceGet", true, (cu_device * device, int ordinal))                                              \
    X(device_name, "cuDeviceGetName", true, (char *name, int length, cu_device device))                                \
    X(device_uuid, "cuDeviceGetUuid_v2", false, (cu_uuid * uuid, cu_device device))                                    \
    X(device_uuid_old, "cuDeviceGetUuid", false, (cu_uuid * uuid, cu_device device))                                   \
    X(device_total, "cuDeviceTotalMem_v2", true, (size_t * bytes, cu_device device))                                   \
    X(device_attribute, "cuDeviceGetAttribute", true, (int *value, int attribute, cu_device device))                   \
    X(can_access_peer, "cuDeviceCanAccessPeer", false, (int *can, cu_device device, cu_device peer))                   \
    X(primary_retain, "cuDevicePrimaryCtxRetain", true, (cu_context * context, cu_device device))                      \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", false, (cu_device device))                                      \
    X(primary_release_old, "cuDevicePrimaryCtxRelease", false, (cu_device device))                                     \
    X(ctx_get_current, "cuCtxGetCurrent", true, (cu_context * context))                                                \
    X(ctx_push, "cuCtxPushCurrent_v2", true, (cu_context context))                                                     \
    X(ctx_pop, "cuCtxPopCurrent_v2", true, (cu_context * context))                                                     \
    X(memory_info, "cuMemGetInfo_v2", true, (size_t * free_bytes, size_t * total_bytes))                               \
    X(mem_alloc, "cuMemAlloc_v2", true, (cu_address * address, size_t bytes))                                          \
    X(mem_free, "cuMemFree_v2", true, (cu_address address))                                                            \
    X(granularity, "cuMemGetAllocationGranularity", false,                                                             \
      (size_t * bytes, const cu_allocation_prop *prop, int option))                                                    \
    X(reserve, "cuMemAddressReserve", false,                                                                           \
      (cu_address * address, size_t bytes, size_t alignment, cu_address wish, unsigned long long flags))               \
    X(unreserve, "cuMemAddressFree", false, (cu_address address, size_t bytes))                                        \
    X(create, "cuMemCreate", false,                                                                                    \
      (cu_handle * handle, size_t bytes, const cu_allocation_prop *prop, unsigned long long flags))                    \
    X(release, "cuMemRelease", false, (cu_handle handle))                                                              \
    X(map, "cuMemMap", false,                                                                                          \
      (cu_address address, size_t bytes, size_t offset, cu_handle handle, unsigned long long flags))                   \
    X(unmap, "cuMemUnmap", false, (cu_address address, size_t bytes))                                                  \
    X(access, "cuMemSetAccess", false, (cu_address address, size_t bytes, const cu_access_desc *desc, size_t count))   \
    X(stream_create, "cuStreamCreate", true, (cu_stream * stream, unsigned flags))                                     \
    X(stream_destroy, "cuStreamDestroy_v2", true, (cu_stream stream))                                                  \
    X(stream_wait, "cuStreamWaitEvent", true, (cu_stream stream, cu_event event, unsigned flags))                      \
    X(stream_sync, "cuStreamSynchronize", true, (cu_stream stream))                                                    \
    X(stream_capturing, "cuStreamIsCapturing", false, (cu_stream stream, int *status))                                 \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", false, (int *mode))                                           \
    X(capture_begin, "cuStreamBeginCapture_v2", false, (cu_stream stream, int mode))                                   \
    X(capture_end, "cuStreamEndCapture", false, (cu_stream stream, cu_graph * graph))                                  \
    X(graph_make, "cuGraphInstantiateWithFlags", false,                                                                \
      (cu_graph_exec * exec, cu_graph graph, unsigned long long flags))                                                \
    X(graph_upload, "cuGraphUpload", false, (cu_graph_exec exec, cu_stream stream))                                    \
    X(graph_launch, "cuGraphLaunch", false, (cu_graph_exec exec, cu_stream stream))                                    \
    X(graph_exec_destroy, "cuGraphExecDestroy", false, (cu_graph_exec exec))                                           \
    X(graph_destroy, "cuGraphDestroy", false, (cu_graph graph))                                                        \
    X(ctx_sync, "cuCtxSynchronize", true, (void))                                                                      \
    X(event_create, "cuEventCreate", true, (cu_event * event, unsigned flags))                                         \
    X(event_destroy, "cuEventDestroy_v2", true, (cu_event event))                                                      \
    X(event_record, "cuEventRecord", true, (cu_event event, cu_stream stream))                                         \
    X(event_record_external, "cuEventRecordWithFlags", false, (cu_event event, cu_stream stream, unsigned flags))      \
    X(event_query, "cuEventQuery", true, (cu_event event))                                                             \
    X(event_elapsed, "cuEventElapsedTime", false, (float *milliseconds, cu_event from, cu_event to))                   \
    X(event_sync, "cuEventSynchronize", true, (cu_event event))                                                        \
    X(copy_in, "cuMemcpyHtoDAsync_v2", true, (cu_address to, const void *from, size_t bytes, cu_stream stream))        \
    X(copy_out, "cuMemcpyDtoHAsync_v2", true, (void *to, cu_address from, size_t bytes, cu_stream stream))             \
    X(copy, "cuMemcpyDtoDAsync_v2", true, (cu_address to, cu_address from, size_t bytes, cu_stream stream))            \
    X(fill, "cuMemsetD8Async", true, (cu_address to, unsigned char byte, size_t bytes, cu_stream stream))              \
    X(host_alloc, "cuMemHostAlloc", false, (void **memory, size_t bytes, unsigned flags))                              \
    X(host_free, "cuMemFreeHost", false, (void *memory))                                                               \
    X(module_load, "cuModuleLoadData", false, (cu_module * module, const void *image))                                 \
    X(module_unload, "cuModuleUnload", false, (cu_module module))                                                      \
    X(module_function, "cuModuleGetFunction", false, (cu_function * function, cu_module module, const char *name))     \
    X(launch, "cuLaunchKernel", false,                                                                                 \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,    \
       unsigned block_z, unsigned shared_bytes, cu_stream stream, void **arguments, void **extra))

typedef struct mf_cuda_driver {
    mf_library library;
    int version; /* 13000 is CUDA 13.0 */
#define X(member, name, required, arguments) cu_result(*member) arguments;
    MF_CUDA_LIST(X)
#undef X
} mf_cuda_driver;

/* Opens and initialises the driver. NOT_FOUND without one; DEVICE when it refuses, with its code and what to do. */
memfit_status mf_cuda_open(const mf_finder *finder, mf_cuda_driver *driver, memfit_error *err);
/* Turns a driver's code into a status and fills err: `what` says what was being done. CU_ERROR_OUT_OF_MEMORY becomes
 * OUT_OF_MEMORY. */
memfit_status mf_cuda_fail(const mf_cuda_driver *driver, cu_result code, const char *what, memfit_error *err);

#endif
