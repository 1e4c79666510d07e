"""What NVML shows of this process and of the card."""
import ctypes
import os
import random


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


def processes(lib, device):
    count = ctypes.c_uint(256)
    rows = (Process * 256)()
    lib.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows)
    return {rows[i].pid: rows[i].used for i in range(count.value)}


def by_pulse(lib, device, least):
    """In a container NVML's process numbers are not ours: takes an odd number of bytes for a moment and looks whose figure rises by just that."""
    cuda, found, context = ctypes.CDLL("libcuda.so.1"), [], ctypes.c_void_p()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    for _ in range(6):
        size, at = random.randint(60, 400) << 21, ctypes.c_uint64()
        before = processes(lib, device)
        if cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)):
            return 0
        during = processes(lib, device)
        cuda.cuMemFree_v2(at)
        found += [pid for pid in during if pid in before and during[pid] - before[pid] == size and before[pid] >= least]
        if found and found.count(found[-1]) == 2:
            return before[found[-1]]
    return 0


def nvml(least=0):
    """Bytes of this process (0: NVML does not tell), and of the whole card. The process must have a context, and `least` bytes."""
    try:
        lib = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0, 0
    lib.nvmlInit_v2()
    device = ctypes.c_void_p()
    lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    memory = Memory()
    lib.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    rows = processes(lib, device)
    mine = rows[os.getpid()] if os.getpid() in rows else next(iter(rows.values())) if len(rows) == 1 else by_pulse(lib, device, least)
    return (mine if mine < 1 << 62 else 0), memory.used


def room():
    """Whether ROOM_MIB of the card are free, for what runs several programs at once. Makes no context."""
    least, memory, device = int(os.environ.get("ROOM_MIB", "0")), Memory(), ctypes.c_void_p()
    if not least:
        return True
    lib = ctypes.CDLL("libnvidia-ml.so.1")
    lib.nvmlInit_v2()
    lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    return bool(lib.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))) or memory.free >> 20 >= least


class Memory2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


def card():
    """(the first card's name, MiB that the driver keeps of it), or None where there is no NVIDIA card. Makes no context."""
    try:
        lib = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
    if lib.nvmlInit_v2() or lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        return None
    lib.nvmlDeviceGetName(device, name, 96)
    if lib.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)):
        memory.reserved = 0
    return name.value.decode(), memory.reserved >> 20
