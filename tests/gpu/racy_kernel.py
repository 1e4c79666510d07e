"""A kernel that has a race in shared memory, under a name that own kernels have: gpu-check's control that compute-sanitizer, as it is called, looks at
them. racy_kernel.py LIBNVRTC"""
import ctypes
import sys

TEXT = b"""extern "C" __global__ void k0(int *out)
{
    __shared__ int all[128];
    all[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = all[127 - threadIdx.x];
}
"""


def good(code, what):
    if code:
        sys.exit(f"racy_kernel: {what}: {code}")


cuda, nvrtc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1])
device, context, program, module, function, memory, size = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
good(cuda.cuInit(0), "cuInit")
good(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
good(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
major, minor = ctypes.c_int(), ctypes.c_int()
cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
good(nvrtc.nvrtcCreateProgram(ctypes.byref(program), TEXT, b"k0.cu", 0, None, None), "nvrtcCreateProgram")
options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{major.value}{minor.value}".encode())
good(nvrtc.nvrtcCompileProgram(program, 1, options), "nvrtcCompileProgram")
good(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
cubin = ctypes.create_string_buffer(size.value)
good(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
good(cuda.cuModuleLoadData(ctypes.byref(module), cubin), "cuModuleLoadData")
good(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k0"), "cuModuleGetFunction")
good(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(512)), "cuMemAlloc")
arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(memory), ctypes.c_void_p))
good(cuda.cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, None, arguments, None), "cuLaunchKernel")
good(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
