"""What NVML shows for each process of card 0, every 10 ms until SIGTERM: nvml_sampler.py FILE. Outside of every limit."""
import ctypes, json, signal, sys, time

nvml = ctypes.CDLL("libnvidia-ml.so.1")


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


nvml.nvmlInit_v2()
card = ctypes.c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
rows, seen, gaps, going = (Process * 512)(), {}, [], [True]
signal.signal(signal.SIGTERM, lambda *_: going.clear())
before = written = time.monotonic()
failed = 0


def write():
    gaps.sort()
    n = len(gaps)
    text = {"samples": n, "median_ms": gaps[n // 2] * 1e3, "p99_ms": gaps[n * 99 // 100] * 1e3, "longest_ms": gaps[-1] * 1e3, "failed": failed, "processes": seen}
    open(sys.argv[1] + ".part", "w").write(json.dumps(text))
    import os
    os.replace(sys.argv[1] + ".part", sys.argv[1])


while going:
    count = ctypes.c_uint(512)
    if nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), rows) == 0:
        for row in rows[:count.value]:
            entry = seen.setdefault(row.pid, [0, 0])
            entry[0] = max(entry[0], row.bytes)
            entry[1] += 1
    else:
        failed += 1
    now = time.monotonic()
    gaps.append(now - before)
    before = now
    if now - written > 5:
        write()
        written = now
    time.sleep(max(0.0005, 0.01 - (time.monotonic() - now)))
write()
