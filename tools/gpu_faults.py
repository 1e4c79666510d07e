"""Parts of gpu_train.py about what goes wrong: kills, a full card, a lost context, other libraries than a checkpoint was made with."""
import glob
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

from gpu_results import NOT_BUILT, in_parallel, kept_folder, program, too_late, train


def kills(memfit, results, nvml, models, deadline):
    """Trainings ended by SIGKILL at random moments after they wrote a checkpoint, and gone on with, ten times each; the file at the end is that of a
    run that nobody disturbed, byte for byte. A chain of ten that ends equal is ten kills that were: what one of them spoiled would stay."""
    path, steps, every, kills_each = next(m for m in models if m.stem == "cnn"), 800, 7, 10
    base = [memfit, "train", str(path), "--data", "synthetic:256", "--batch-size", "64", "--validation-split", "0.2", "--epochs", "100000", "--steps", str(steps), "--device", "cuda", "--save-freq", str(every)]
    env, wanted = {**os.environ, "OMP_NUM_THREADS": "2"}, [i for i in range(5) if not results.has(f"kills chain {i}")]

    def stamp(path):
        return os.stat(path).st_mtime_ns if os.path.exists(path) else 0

    def started(kept, out, *more):
        """Returns as soon as it has written a checkpoint of its own, or has ended."""
        before, end = stamp(kept), min(time.time() + 90, max(deadline + 30, time.time() + 20))
        p = subprocess.Popen([*base, "--checkpoint", kept, "--out", out, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        while stamp(kept) == before and p.poll() is None and time.time() < end:
            time.sleep(0.002)
        return p

    with kept_folder(results, "kills") as d: # with the run that nobody disturbed, for the next time where this one does not suffice
        def chain(i):
            kept, out, draw, epochs, done = f"{d}/{i}.kept.keras", f"{d}/{i}.keras", random.Random(i), [], 0
            pathlib.Path(kept).unlink(missing_ok=True)
            while True:
                if time.time() > deadline + 30:
                    return results.not_ended(f"kills chain {i}, after {done} kills")
                p = started(kept, out, *(["--resume", kept] if done else []))
                if done < kills_each:
                    time.sleep(draw.random() * takes / (kills_each + 1))
                    p.kill()
                said = p.communicate(timeout=120)[0]
                at = re.search(r"Epoch (\d+)/", said)
                epochs.append(int(at.group(1)) if at else 0)
                if p.returncode != -9:
                    break
                done += 1
            same = p.returncode == 0 and pathlib.Path(out).read_bytes() == whole
            if same and done < kills_each:
                return print(f"kills chain {i}: ended after {done} kills, no case", flush=True)
            return results.put(f"kills chain {i}", same, kills=done, began_in_epoch=epochs, rc=p.returncode, error="" if same else said[-300:])

        took, file = pathlib.Path(d, "whole.seconds"), pathlib.Path(d, "whole.keras")
        if wanted and not took.exists():
            if too_late(deadline):
                return None
            pathlib.Path(d, "w.kept.keras").unlink(missing_ok=True)
            p = started(f"{d}/w.kept.keras", str(file))
            began = time.time()
            try:
                said = p.communicate(timeout=max(20, min(200, deadline + 30 - time.time())))[0]
            except subprocess.TimeoutExpired:
                p.kill()
                p.communicate()
                return results.not_ended("kills: the whole run")
            if p.returncode:
                return results.put("kills: the whole run", False, error=said[-300:])
            took.write_text(str(time.time() - began))
        if not wanted:
            return None
        takes, whole = float(took.read_text()), file.read_bytes()
        in_parallel([lambda i=i: chain(i) for i in wanted], 5, deadline)


HOG = """
import ctypes, time
c = ctypes.CDLL("libcuda.so.1")
x, p, held = ctypes.c_void_p(), ctypes.c_uint64(), 0
c.cuInit(0), c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 0), c.cuCtxSetCurrent(x)
def fill():
    taken = 0
    for size in (1 << 32, 1 << 28, 1 << 24, 1 << 21):
        while c.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(size)) == 0: taken += size
    return taken
held = fill()
print("full", held, flush=True)
while True:
    fill()
    time.sleep(0.05)
"""


def full(memfit, results, nvml, models, deadline):
    """Another process takes every free byte of the card, and goes on taking what becomes free."""
    path = str(next(m for m in models if m.stem == "cnn"))
    if all(results.has("full: " + case) for case in ("at start", "filled while training", "goes on afterwards")) or too_late(deadline):
        return
    with tempfile.TemporaryDirectory() as d:
        p = subprocess.Popen([memfit, "train", path, "--data", "synthetic:256", "--validation-split", "0.2", "--epochs", "1000000", "--checkpoint", f"{d}/a.keras", "--save-freq", "200",
                              "--device", "cuda", "--json", "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.time() + 30
        while not os.path.exists(f"{d}/a.keras") and p.poll() is None and time.time() < end:
            time.sleep(0.02)
        h = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE, text=True)
        filled = h.stdout.readline().startswith("full")
        before = os.stat(f"{d}/a.keras").st_mtime_ns if os.path.exists(f"{d}/a.keras") else 0
        time.sleep(2)
        goes_on = p.poll() is None and os.path.exists(f"{d}/a.keras") and os.stat(f"{d}/a.keras").st_mtime_ns > before
        p.send_signal(2)
        try:
            out, err = p.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            goes_on = False
        results.put("full: filled while training", filled and goes_on, rc=p.returncode, said=err.strip()[-160:])
        rc, j, said, _ = train(memfit, path, "--data", "synthetic:64", "--steps", "3", timeout=30)
        results.put("full: at start", rc in (1, 3) and len(said) > 40, rc=rc, said=said[-400:])
        h.kill()
        h.wait()
        base = [path, "--data", "synthetic:256", "--validation-split", "0.2", "--resume", f"{d}/a.keras"]
        rc, j, said, _ = train(memfit, *base, "--epochs", "1") # says how far it was
        done = j["steps"] if j else 0
        if j:
            rc, j, said, _ = train(memfit, *base, "--epochs", "1000000", "--steps", str(done + 20))
        results.put("full: goes on afterwards", j and j["steps"] >= done + 20, rc=rc, steps=done, said="" if j else said[-200:])


def lost(memfit, results, nvml, models, deadline):
    """The context is lost in the middle of training (tests/gpu/lost_context.c): an explanation, the checkpoint is whole, nothing hangs; resumed from it, the run goes on."""
    path, lose = str(next(m for m in models if m.stem == "cnn")), program(memfit, "liblost_context.so")
    base = [path, "--data", "synthetic:256", "--validation-split", "0.2", "--batch-size", "32"]
    if not lose:
        return NOT_BUILT
    for case, more in (("lost: in steps", []), ("lost: steps queued one by one", ["MEMFIT_RECORD=0"]), ("lost: with offload", ["--offload", "optimizer"]), ("lost: at once", ["LOST_AFTER=0"])):
        if results.has(case) or too_late(deadline):
            continue
        env = dict(m.split("=") for m in more if "=" in m)
        with tempfile.TemporaryDirectory() as d:
            kept = f"{d}/kept.keras"
            p = subprocess.Popen([memfit, "train", *base, *[m for m in more if "=" not in m], "--epochs", "1000000", "--checkpoint", kept, "--save-freq", "50", "--device", "cuda", "--quiet"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "LD_PRELOAD": lose, "LOST_WHEN": kept, **env})
            try:
                _, said = p.communicate(timeout=40)
                hung = False
            except subprocess.TimeoutExpired:
                p.kill()
                _, said = p.communicate()
                hung = True
            rc, j, after, _ = train(memfit, *base, "--epochs", "1", "--resume", kept) # says how far it was, and that it can be read
            told = [line for line in said.splitlines() if not line.startswith("lost_context")]
            results.put(case, not hung and p.returncode == 1 and len(" ".join(told)) > 40 and j, rc=p.returncode, hung=hung, resumed_at=j and j["steps"], injected="".join(x for x in said.splitlines() if x.startswith("lost_context"))[-90:],
                        said=" ".join(told)[-300:], error="" if j else after)


def cudnn_files():
    """Where this machine has a cuDNN, each file once."""
    folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", *glob.glob("/usr/local/cuda*/lib64"), *glob.glob("/usr/local/cuda*/lib"), *glob.glob("/usr/local/lib/python3*/*-packages/nvidia/cudnn/lib"),
               *glob.glob("/opt/*/lib/python3*/site-packages/nvidia/cudnn/lib"), *[f"{d}/nvidia/cudnn/lib" for d in sys.path], *os.environ.get("GPU_CHECK_CUDNNS", "").split(":")]
    return sorted({os.path.realpath(f"{d}/libcudnn.so.9"): f"{d}/libcudnn.so.9" for d in folders if d and os.path.exists(f"{d}/libcudnn.so.9")}.values())


def cudnn_of(said):
    """The version that ran, by what `memfit train --json` says of itself; 0: none."""
    try:
        found = re.search(r", cuDNN (\d+)", json.loads(said)["made_by"])
    except (ValueError, KeyError):
        return None
    return int(found.group(1)) if found else 0


def edit_maker(path, into):
    """A checkpoint that was made by something else: one bit of what it recorded of its maker (src/train/checkpoint.c, word 23)."""
    with zipfile.ZipFile(path) as a, zipfile.ZipFile(into, "w") as b:
        for i in a.infolist():
            data = bytearray(a.read(i))
            if i.filename == "memfit.state":
                data[24 + 8 * 23 + 5] ^= 1
            b.writestr(i, bytes(data))


def versions(memfit, results, nvml, models, deadline):
    """A checkpoint that goes on elsewhere says `reordered`; one that goes on where it was made does not, and gives the same bits. Which cuDNN a run really had is what memfit says of
    it: two copies in one process find each other's parts, so nobody else is asked."""
    path = str(next(m for m in models if m.stem == "cnn"))
    base = [path, "--data", "synthetic:256", "--batch-size", "32", "--epochs", "100"]

    def run(device, *args, env=None):
        return subprocess.run([memfit, "train", *base, *args, "--device", device, "--json"], capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "2", **(env or {})})

    def check(name, first, second, env, says, ran=None, edited=False, words=""):
        """`says`: is `reordered` said; `ran`: the version that the second run must have had."""
        if results.has("versions " + name) or too_late(deadline):
            return
        with tempfile.TemporaryDirectory() as d:
            a = run(first, "--steps", "12", "--checkpoint", f"{d}/a.keras", "--save-freq", "12")
            if edited:
                edit_maker(f"{d}/a.keras", f"{d}/edited.keras")
            b = run(second, "--steps", "20", "--resume", f"{d}/{'edited' if edited else 'a'}.keras", "--out", f"{d}/b.keras", env=env)
            whole = run(second, "--steps", "20", "--out", f"{d}/c.keras") if not says or edited else None
            same = None if whole is None else not b.returncode and not whole.returncode and pathlib.Path(d, "b.keras").read_bytes() == pathlib.Path(d, "c.keras").read_bytes()
            told, had = "different rounding (reordered)" in b.stderr, [cudnn_of(a.stdout), cudnn_of(b.stdout)]
            good = a.returncode == b.returncode == 0 and told == says and same is not False and (ran is None or had[1] == ran) and words in b.stderr
            results.put("versions " + name, good, says_reordered=told, same_bits=same, cudnn=had, rc=[a.returncode, b.returncode], error="" if good else (a.stderr + b.stderr)[-300:])

    here, found = cudnn_of(run("cuda", "--steps", "1").stdout), {}
    for file in cudnn_files() if not too_late(deadline) else []:
        found.setdefault(cudnn_of(run("cuda", "--steps", "1", env={"MEMFIT_LIB_CUDNN": file}).stdout), []).append(file)
    print("cuDNN here:", here, "; copies:", found, flush=True)
    others = {v: files[0] for v, files in found.items() if v and v != here}
    for file in found.get(here, [])[:2]:
        check(f"the card, then with cuDNN {here} at {file}", "cuda", "cuda", {"MEMFIT_LIB_CUDNN": file}, False, ran=here)
    for v, file in others.items():
        check(f"the card, then with cuDNN {v}", "cuda", "cuda", {"MEMFIT_LIB_CUDNN": file}, True, ran=v)
        part = os.path.dirname(file) + "/libcudnn_graph.so.9"
        if os.path.exists(part): # parts of both in one process: neither is used
            check(f"the card, then with parts of cuDNN {v}", "cuda", "cuda", {"LD_PRELOAD": part}, True, ran=0, words="parts of two copies of cuDNN")
    if found and not others:
        print(f"versions another cuDNN: skipped: only one version ({here}); GPU_CHECK_CUDNNS=FOLDER names another", flush=True)
    none = {"MEMFIT_LIB_CUDNN": "/nonexistent/libcudnn.so.9"}
    check("cpu, then the card", "cpu", "cuda", None, True)
    check("the card, then the cpu", "cuda", "cpu", None, True)
    check("the card twice", "cuda", "cuda", None, False)
    check("the cpu twice", "cpu", "cpu", None, False)
    check("the card, then without cuDNN", "cuda", "cuda", none, True, ran=0)
    check("a checkpoint of another maker", "cuda", "cuda", None, True, edited=True)


def odd(memfit, results, nvml, models, deadline):
    """Cards that are not there, a cache that cannot be used or is shared, signals while the run begins: a word or the result, never a hang."""
    path = str(next(m for m in models if m.stem == "cnn"))
    base = [memfit, "train", path, "--data", "synthetic:64", "--steps", "4", "--device"]

    def run(device, *args, env=None, before=None):
        return subprocess.run([*base, device, *args], capture_output=True, text=True, timeout=90, preexec_fn=before, env={**os.environ, "OMP_NUM_THREADS": "2", **(env or {})})

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    def check(case, judge):
        if results.has("odd " + case) or too_late(deadline):
            return
        with tempfile.TemporaryDirectory() as d:
            try:
                good, said = judge(d)
            except subprocess.TimeoutExpired:
                good, said = False, "took too long"
        results.put("odd " + case, good, said=said[-200:])

    def refused(device, words, env=None):
        p = run(device, "--quiet", env=env)
        return p.returncode == 1 and words in p.stderr, p.stderr

    def no_cache(d):
        p = run("cuda", env={"MEMFIT_CACHE": "/proc/none"})
        return p.returncode == 0 and "not kept" in p.stdout + p.stderr, p.stderr

    def full_disk(d):
        p = run("cuda", "--quiet", env={"MEMFIT_CACHE": d}, before=small_files)
        return p.returncode == 0 and not [f for f in os.listdir(d) if "." in f], p.stderr

    def two_at_once(d):
        runs = [subprocess.Popen([*base, "cuda", "--quiet", "--out", f"{d}/{i}.keras"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "MEMFIT_CACHE": f"{d}/cache"}) for i in (1, 2)]
        said = "".join(p.communicate(timeout=90)[1] for p in runs)
        return all(p.returncode == 0 for p in runs) and pathlib.Path(d, "1.keras").read_bytes() == pathlib.Path(d, "2.keras").read_bytes(), said

    def signals(d):
        ends = []
        for i in range(14):
            p = subprocess.Popen([*base[:-3], "--epochs", "100000", "--device", "cuda", "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            time.sleep(random.Random(i).random() * 1.6)
            p.send_signal((signal.SIGINT, signal.SIGTERM)[i % 2])
            began = time.time()
            try:
                p.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                p.kill()
                p.communicate()
            ends.append((p.returncode, round(time.time() - began, 1)))
        return all(rc in (-2, -15) for rc, _ in ends), str(ends)

    check("cuda:99", lambda d: refused("cuda:99", "the driver shows"))
    check("no card visible", lambda d: refused("cuda", "CUDA_VISIBLE_DEVICES", env={"CUDA_VISIBLE_DEVICES": ""}))
    check("no place for kernels", no_cache)
    check("a full disk", full_disk)
    check("two at once", two_at_once)
    check("signals", signals)
