#!/usr/bin/env python3
"""Trains cases in one framework and prints what it took, one JSON line a case.

    measure_framework.py torch|jax|tensorflow OUT CASE...        CASE is MODEL:BATCH:PRECISION, for jax also MODEL:BATCH:PRECISION:MIB

With MIB JAX's pool may have that size and no more, taken at the beginning (JAX's default); with MIBg it may grow to it. Whether
the step runs in it is asked then. KEEP_PROGRAM=DIR keeps what XLA made of the step, with the workspaces it chose.

torch and jax run every case in a process of its own, forked after Keras was read and before it has met the card, AT_ONCE of
them at a time and while ROOM_MIB of the card are free; none begins after MOST seconds. With TOGETHER=1 all run in one process, and NVML's figure is not kept, as it holds
the kernels of earlier cases. tensorflow runs on the CPU and takes the first case only; as for people Keras does not let XLA compile
there, and the allocator is oneDNN's, which counts. Live bytes are those of the framework's own allocator, process bytes NVML's.
"""
import ctypes
import gc
import glob
import json
import lzma
import os
import resource
import sys
import tempfile
import time

runtime, out, cases = sys.argv[1], sys.argv[2], sys.argv[3:]
os.environ["KERAS_BACKEND"] = runtime
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a card must not make a context before the fork


def card_bytes():
    cuda, device, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
    cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    return total.value


def prepare(text):
    """What JAX reads from its environment when it meets the card."""
    global dump
    limit = text.split(":")[3:]
    if limit:
        grows = limit[0].endswith("g")
        os.environ.update(XLA_PYTHON_CLIENT_PREALLOCATE="false" if grows else "true",
                          XLA_PYTHON_CLIENT_MEM_FRACTION="%.9f" % ((int(limit[0].rstrip("g")) << 20) / card_bytes()))
    if os.environ.get("KEEP_PROGRAM"):
        dump = tempfile.mkdtemp()
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + (
            " --xla_dump_to=%s --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*(train_step|step_fn).*" % dump)


dump = ""
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import framework_cases  # noqa: E402
from measure_framework_nvml import nvml, room  # noqa: E402

STEPS = 3
together = bool(os.environ.get("TOGETHER"))


def emit(row):
    with open(out, "a") as f:
        f.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


found = {}  # what the step that was compiled last says of its memory


def analyse(trainer):
    """Lets the step's executable tell its own memory analysis. Called once."""
    real = trainer.jit

    def jit(f, *args, **kwargs):
        inner = real(f, *args, **kwargs)
        if "train_step" not in getattr(f, "__name__", "") and "step_fn" not in getattr(f, "__name__", ""):
            return inner
        state = {}

        def call(*a, **k):
            if "c" not in state:
                state["c"] = inner.lower(*a, **k).compile()
                m = state["c"].memory_analysis()
                for key in ("argument", "output", "temp", "alias", "generated_code"):
                    found["xla_%s_bytes" % key] = int(getattr(m, key + "_size_in_bytes"))
                if hasattr(m, "peak_memory_in_bytes"):
                    found["xla_peak_bytes"] = int(m.peak_memory_in_bytes)
            return state["c"](*a, **k)
        return call
    trainer.jit = jit


def keep_trace(torch, name):
    """What the allocator was asked for: action, address, bytes, and the lines of Python that asked."""
    import gzip
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    with gzip.open(os.path.join(os.environ["TRACE_TO"], name + ".txt.gz"), "wt") as f:
        for e in snapshot["device_traces"][0]:
            frames = " ".join("%s:%d" % (x["name"], x["line"]) for x in e.get("frames", [])[:6])
            f.write("%s %x %d %s\n" % (e["action"], e.get("addr", 0), e["size"], frames))


def run_torch(keras, case, row):
    import torch
    name, batch, precision = case
    gc.collect()
    if together:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = framework_cases.build(keras, name, precision)
    x, y = framework_cases.data(model, name, batch, STEPS)
    row["live_before_bytes"] = torch.cuda.memory_allocated()
    wanted = os.environ.get("TRACE_CASES", "").split(";")
    traced = os.environ.get("TRACE_TO") and (precision + ":" + name in wanted or wanted == ["all"])
    if traced:
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=400000)
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0, shuffle=False)
    if traced:
        keep_trace(torch, ("%s-%d-%s" % (name, batch, precision)).translate(str.maketrans("@,=", "___")))
    torch.cuda.synchronize()
    row["live_bytes"] = torch.cuda.max_memory_allocated()
    stats = torch.cuda.memory_stats()
    row["requested_bytes"] = stats["requested_bytes.all.peak"]
    row["pool_bytes"] = torch.cuda.max_memory_reserved()
    row["steady_bytes"] = torch.cuda.memory_allocated()
    if not together:
        row["process_bytes"], row["card_bytes"] = nvml(torch.cuda.memory_reserved())
    row["reserved_now_bytes"] = torch.cuda.memory_reserved()


def keep_program(text):
    """The step as XLA runs it: its operations in order, library calls with their algorithm and workspace."""
    import shutil
    for path in glob.glob(os.path.join(dump, "*gpu_after_optimizations.txt")):
        name = os.path.join(os.environ["KEEP_PROGRAM"], "-".join(text.split(":")[:3]) + ".txt.xz")
        with open(path, "rb") as f, lzma.open(name, "wb", preset=1) as g:
            g.write(f.read())
    shutil.rmtree(dump)


def run_jax(keras, case, row):
    import jax
    name, batch, precision = case
    gc.collect()
    jax.clear_caches()
    found.clear()
    start = time.time()
    model = framework_cases.build(keras, name, precision)
    model.optimizer.build(model.trainable_variables)
    x, y = framework_cases.data(model, name, batch, STEPS)
    row["build_seconds"] = round(time.time() - start, 1)
    try:
        model.fit(x, y, batch_size=batch, epochs=1, verbose=0, shuffle=False)
    finally:
        row.update(found)
        if dump:
            keep_program(row["case"])
    stats = jax.devices()[0].memory_stats() or {}
    row["steady_bytes"] = stats.get("bytes_in_use", 0)
    if not together:
        row["live_bytes"] = stats.get("peak_bytes_in_use", 0)
        row["pool_bytes"] = stats.get("peak_pool_bytes", stats.get("pool_bytes", 0))
        row["limit_bytes"] = stats.get("bytes_limit", 0)
        row["process_bytes"], row["card_bytes"] = nvml(row["pool_bytes"])


def run_tensorflow(keras, case, row):
    import tensorflow as tf
    name, batch, precision = case
    model = framework_cases.build(keras, name, precision)
    x, y = framework_cases.data(model, name, batch, 2)
    model.optimizer.build(model.trainable_variables)
    row["before_bytes"] = tf.config.experimental.get_memory_info("CPU:0")["current"]
    row["resident_before_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    tf.config.experimental.reset_memory_stats("CPU:0")  # what building took is no part of the step
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0, shuffle=False)
    row["jit_compile"] = bool(model.jit_compile)
    stats = tf.config.experimental.get_memory_info("CPU:0")
    row["live_bytes"], row["steady_bytes"] = stats["peak"], stats["current"]
    row["resident_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    row["data_bytes"] = x.nbytes + y.nbytes


def main():
    if runtime == "torch":
        import torch
        versions = {"torch": torch.__version__}
    elif runtime == "tensorflow":
        import tensorflow
        versions = {"tensorflow": tensorflow.__version__}
    else:
        import jax
        import keras.src.backend.jax.trainer as trainer
        analyse(trainer)
        framework_cases.zero_weights()
        versions = {"jax": jax.__version__}
    import keras
    versions["keras"] = keras.__version__
    begin, children = time.time(), set()
    forks = runtime != "tensorflow" and not together
    for text in cases[:1] if runtime == "tensorflow" else cases:
        while len(children) >= int(os.environ.get("AT_ONCE", "1")) or children and not room():
            children.discard(os.wait()[0])
        if time.time() - begin > float(os.environ.get("MOST", "1e9")):
            break
        if forks:
            children.add(os.fork())
            if 0 not in children:
                continue
        if runtime == "jax" and not together:
            prepare(text)
        one(keras, text, {"case": text, "runtime": runtime, "versions": versions, "code": os.environ.get("CODE_HASH", "")})
        if forks:
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def one(keras, text, row):
    name, batch, precision = text.split(":")[:3]
    start = time.time()
    try:
        {"torch": run_torch, "jax": run_jax, "tensorflow": run_tensorflow}[runtime](keras, (name, int(batch), precision), row)
    except Exception as e:  # the next case may still run
        row["error"] = ("%s: %s" % (type(e).__name__, e))[:300]
    row["seconds"] = round(time.time() - start, 1)
    emit(row)


main()
