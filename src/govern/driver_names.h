/*
 * driver_names.h: the driver's entry points that the governor stands in front of: X(name, CUDA version it came with). One
 * list makes the exported wrappers' table, the map from the driver's pointers to ours, and the proof of coverage.
 */
#ifndef MF_GOVERN_DRIVER_NAMES_H
#define MF_GOVERN_DRIVER_NAMES_H

#define MF_DRIVER_NAMES(X)                                                                                             \
    X(cuMemAlloc_v2, 3020)                                                                                             \
    X(cuMemAllocPitch_v2, 3020)                                                                                        \
    X(cuMemAllocManaged, 6000)                                                                                         \
    X(cuMemFree_v2, 3020)                                                                                              \
    X(cuMemAllocAsync, 11020)                                                                                          \
    X(cuMemAllocAsync_ptsz, 11020)                                                                                     \
    X(cuMemAllocFromPoolAsync, 11020)                                                                                  \
    X(cuMemAllocFromPoolAsync_ptsz, 11020)                                                                             \
    X(cuMemPoolTrimTo, 11020)                                                                                          \
    X(cuMemPoolDestroy, 11020)                                                                                         \
    X(cuMemCreate, 10020)                                                                                              \
    X(cuMemRelease, 10020)                                                                                             \
    X(cuMemMap, 10020)                                                                                                 \
    X(cuMemUnmap, 10020)                                                                                               \
    X(cuMemRetainAllocationHandle, 11000)                                                                              \
    X(cuArrayCreate_v2, 3020)                                                                                          \
    X(cuArray3DCreate_v2, 3020)                                                                                        \
    X(cuArrayDestroy, 2000)                                                                                            \
    X(cuMipmappedArrayCreate, 5000)                                                                                    \
    X(cuMipmappedArrayDestroy, 5000)                                                                                   \
    X(cuDevicePrimaryCtxReset, 7000)                                                                                   \
    X(cuDevicePrimaryCtxReset_v2, 11000)                                                                               \
    X(cuMemGetInfo_v2, 3020)                                                                                           \
    X(cuDeviceTotalMem_v2, 3020)                                                                                       \
    X(cuGetProcAddress, 11030)                                                                                         \
    X(cuGetProcAddress_v2, 12000)                                                                                      \
    X(nvmlDeviceGetMemoryInfo, 0)                                                                                      \
    X(nvmlDeviceGetMemoryInfo_v2, 0)

enum mf_driver_name {
#define X(name, version) MF_NAME_##name,
    MF_DRIVER_NAMES(X)
#undef X
        MF_NAME_COUNT
};

#endif
