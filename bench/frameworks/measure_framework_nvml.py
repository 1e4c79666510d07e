"""What NVML shows of this process and of the card."""
import ctypes
import os


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


def nvml(shared=False):
    """Bytes of this process (0: NVML does not tell), and of the whole card. `shared`: another process holds a part of the card, and the smaller
    one is this (in a container NVML's process numbers are not ours)."""
    try:
        lib = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0, 0
    lib.nvmlInit_v2()
    device = ctypes.c_void_p()
    lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    memory = Memory()
    lib.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    count = ctypes.c_uint(64)
    rows = (Process * 64)()
    lib.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows)
    mine = [rows[i].used for i in range(count.value) if rows[i].pid == os.getpid()]
    if not mine and count.value == 1:
        mine = [rows[0].used]
    if not mine and shared and count.value == 2:
        mine = [min(rows[0].used, rows[1].used)]
    return (mine[0] if mine and mine[0] < 1 << 62 else 0), memory.used
