"""Run by tools/try-wheel in an empty virtual environment: imports the package, plans, trains, and says what came of it."""
import os
import subprocess
import sys
import time

here = sys.argv[1]
started = time.perf_counter()
import memfit  # noqa: E402

took = (time.perf_counter() - started) * 1000
maps = open("/proc/self/maps").read()
for name in ("libdnnl", "libgomp", "libOpenCL"):
    assert name not in maps, name + " is mapped"

for name in memfit.__all__:  # every part loads, with the standard library alone
    getattr(memfit, name)

times, busy = [], []  # by the clock, and of the processor: the second does not depend on who else is at work
for _ in range(20):
    code = "import time; t, b = time.perf_counter(), time.process_time(); import memfit; print(time.perf_counter() - t, time.process_time() - b)"
    both = subprocess.check_output([sys.executable, "-c", code]).split()
    times.append(float(both[0]) * 1000)
    busy.append(float(both[1]) * 1000)

started = time.perf_counter()
plan = memfit.plan(os.path.join(here, "resnet50_10.json"), 32, card="t4")
planned = time.perf_counter() - started
assert plan.fits and plan.peak_bytes == plan.fixed_bytes + plan.arena_bytes
assert "batch 32 " in str(plan) and "batch 32 " in plan._repr_html_()
assert memfit.doctor().verdict

engine = "memfit_engine" in memfit.program()
command = [memfit.program(), "train", os.path.join(here, "cnn.keras"), "--data", os.path.join(here, "digits.npz"), "--epochs", "1", "--memory", "64MiB"]
from memfit import _program  # noqa: E402

train = _program.ask(command[1:])
assert train["steps"] == 57 and 0 < train["loss"] < 3, train

import ctypes  # noqa: E402

library = ctypes.CDLL(memfit.library())
library.memfit_version.restype = ctypes.c_char_p
maps = open("/proc/self/maps").read()
for name in ("libdnnl", "libgomp", "libOpenCL"):
    assert name not in maps, name + " is mapped with libmemfit"
try:
    memfit.plan("/nowhere.keras")
except memfit.InputError as e:
    assert "/nowhere.keras" in str(e)
print(
    "import %.1f ms first; of 20: best %.1f ms, median %.1f (of the processor: %.1f); plan of ResNet50 %.2f s; %s: loss %.9g after one epoch, library %s"
    % (took, min(times), sorted(times)[10], sorted(busy)[10], planned, "memfit-engine" if engine else "memfit", train["loss"], library.memfit_version().decode())
)
