#!/usr/bin/env python3
"""Training on a card, checked: gpu_train.py MEMFIT RESULTS [--seconds N] [--models FOLDER...] PART...

Parts:
    curves   the trainings that Keras's own curves are kept of, and others: losses, metrics and validation as on the cpu device
    seeds    the scenes S1, S4, S7, S9, S10 and S12 on the card
    limits   200 steps of each model at two limits; NVML's figure for the process, every 10 ms, is never above --memory
    kills    50 trainings ended by SIGKILL and resumed; the resumed run's file is that of the undisturbed one, byte for byte
    full     a card that is full, and one that another process fills while training goes on
RESULTS is a file of JSON lines, one a case, keyed by the case, the card, driver and libraries, and a hash of the program: what is there
is not run again. Prints one line a case and one a part; the exit status is 1 when a case failed.
"""
import ctypes
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Nvml:
    class Info(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlInit_v2()
        self.card = ctypes.c_void_p()
        self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.card))
        self.peaks, self.samples, self.over = {}, 0, False
        threading.Thread(target=self.watch, daemon=True).start()

    def rows(self):
        many, rows = ctypes.c_uint(512), (self.Info * 512)()
        if self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.card, ctypes.byref(many), rows):
            return {}
        return {rows[i].pid: rows[i].used for i in range(many.value)}

    def watch(self):
        while not self.over:
            for pid, used in self.rows().items():
                self.peaks[pid] = max(used, self.peaks.get(pid, 0))
            self.samples += 1
            time.sleep(0.01)

    def versions(self):
        text = ctypes.create_string_buffer(96)
        self.lib.nvmlSystemGetDriverVersion(text, 96)
        driver = text.value.decode()
        self.lib.nvmlDeviceGetName(self.card, text, 96)
        return f"{text.value.decode()}, driver {driver}"


class Results:
    def __init__(self, path, memfit, versions):
        digest = hashlib.sha256(pathlib.Path(memfit).read_bytes()).hexdigest()[:16]
        self.key, self.path, self.seen, self.failed = {"versions": versions, "code": digest}, path, {}, 0
        if os.path.exists(path):
            for line in open(path):
                row = json.loads(line)
                if row["versions"] == versions and row["code"] == digest:
                    self.seen[row["case"]] = row
        self.lock = threading.Lock()

    def put(self, case, good, **more):
        row = {"case": case, **self.key, "good": bool(good), **more}
        with self.lock:
            self.seen[case] = row
            self.failed += not good
            with open(self.path, "a") as f:
                f.write(json.dumps(row) + "\n")
            print(f"{case:52} {'ok' if good else 'FAILED'} {' '.join(f'{k}={v}' for k, v in more.items())}"[:400], flush=True)

    def has(self, case):
        return case in self.seen


def in_parallel(jobs, at_once, deadline):
    """Runs jobs, callables, so many at once; those that would begin after the deadline do not."""
    left, lock = list(jobs), threading.Lock()

    def work():
        while True:
            with lock:
                if not left or time.time() > deadline:
                    return
                job = left.pop(0)
            job()

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def train(memfit, *args, timeout=100, env=None):
    """Returns status, JSON, last words, pid."""
    p = subprocess.Popen([memfit, "train", *args, "--device", "cuda", "--json", "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "2", **(env or {})})
    try:
        out, err = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        p.kill()
        out, err = p.communicate()
        return -1, None, "took too long", p.pid
    try:
        return p.returncode, json.loads(out) if p.returncode == 0 else None, (err or out).strip()[-500:], p.pid
    except ValueError:
        return p.returncode, None, err.strip()[-300:], p.pid


def lower_bound(memfit, path, batch, precision):
    """Of the arena: what no plan can do without."""
    p = subprocess.run([memfit, "plan", path, "--batch-size", str(batch), "--precision", precision, "--json", "--quiet"], capture_output=True, text=True)
    try:
        plan = json.loads(p.stdout)
        return plan["lower_bound_bytes"] - plan["fixed_bytes"], ""
    except (ValueError, KeyError):
        return None, p.stderr.strip()[-200:]


BATCHES = {"s1": 32, "s7": 8, "s9": 8, "gpt2": 1, "vit": 8, "lstm": 16, "unet": 2, "mlp": 64, "cnn": 64}


def limits(memfit, results, nvml, models, deadline):
    def one(path, factor, precision, fixed):
        case = f"limits {path.stem} {precision} {factor}"
        batch = BATCHES.get(path.stem, 8)
        bound, why = lower_bound(memfit, str(path), batch, precision)
        if bound is None:
            return results.put(case, False, error=why)
        limit = fixed + int(factor * bound)
        args = [str(path), "--data", f"synthetic:{8 * batch}", "--batch-size", str(batch), "--epochs", "1000", "--steps", "200", "--precision", precision]
        for _ in range(2):
            rc, j, said, pid = train(memfit, *args, "--memory", str(limit))
            need = said.split("needs ")[1].split(",")[0] if rc == 3 and "needs " in said else None
            if not need: # refused: what is said to be needed must suffice
                break
            limit = int(float(need.split()[0]) * (1 << 30 if "GiB" in need else MIB)) + 64 * 1024
        seen = nvml.peaks.get(pid, 0)
        if not j:
            return results.put(case, False, rc=rc, limit_mib=limit // MIB, error=said)
        planned = j["planned_peak_bytes"]
        results.put(case, rc == 0 and 0 < seen <= limit and seen <= planned, limit_mib=limit // MIB, nvml_mib=round(seen / MIB, 1), planned_mib=round(planned / MIB, 2),
                    over_percent=round(100 * (planned - seen) / max(seen, 1), 2), pieces=j["pieces"], recomputed=j["recomputed_ops"], allocations=j["allocations_in_steps"],
                    step_ms=round(j["step_ms"], 3), refused_first=bool(need), bound_factor=round((limit - fixed) / max(bound, 1), 2))

    rc, j, said, _ = train(memfit, str(next(m for m in models if m.stem in ("s1", "mlp"))), "--data", "synthetic:64", "--steps", "2")
    if not j:
        return results.put("limits: the fixed cost", False, error=said)
    fixed = j["fixed_bytes"] + 24 * MIB # beside the context: libraries' code that larger models load
    jobs = []
    for m in models:
        for factor, precision in ((1.3, "float32"), (2.0, "mixed_bfloat16")):
            if not results.has(f"limits {m.stem} {precision} {factor}"):
                jobs.append(lambda m=m, f=factor, p=precision: one(m, f, p, fixed))
    in_parallel(jobs, 8, deadline)


def kills(memfit, results, nvml, models, deadline):
    path = next(m for m in models if m.stem == "cnn")
    base = [str(path), "--data", "synthetic:256", "--batch-size", "64", "--validation-split", "0.2", "--epochs", "100000"]

    def one(i):
        with tempfile.TemporaryDirectory() as d:
            kept = f"{d}/kept.keras"
            p = subprocess.Popen([memfit, "train", *base, "--save-freq", "7", "--checkpoint", kept, "--device", "cuda", "--quiet"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "2"})
            end = time.time() + 40
            while not os.path.exists(kept) and p.poll() is None and time.time() < end:
                time.sleep(0.01)
            time.sleep(random.Random(i).random() * 1.5)
            p.kill()
            p.wait()
            rc, j, said, _ = train(memfit, *base[:-2], "--epochs", "1", "--resume", kept, "--checkpoint", f"{d}/other.keras") # says how far it was
            if not j:
                return results.put(f"kill {i}", False, error=said)
            done = j["steps"]
            rc, j, said, _ = train(memfit, *base, "--steps", str(done + 20), "--resume", kept, "--out", f"{d}/resumed.keras")
            rc2, j2, said2, _ = train(memfit, *base, "--steps", str(done + 20), "--out", f"{d}/whole.keras")
            same = rc == rc2 == 0 and pathlib.Path(d, "resumed.keras").read_bytes() == pathlib.Path(d, "whole.keras").read_bytes()
            results.put(f"kill {i}", same, steps=done, error="" if same else said + said2)

    in_parallel([lambda i=i: one(i) for i in range(50) if not results.has(f"kill {i}")], 10, deadline)


def full(memfit, results, nvml, models, deadline):
    """Needs PyTorch for the other process."""
    path = str(next(m for m in models if m.stem == "cnn"))
    hog = ("import torch,time\nheld=[]\nfor size in (2**32,2**28,2**24,2**21):\n    try:\n        while True: held.append(torch.empty(size,dtype=torch.uint8,device='cuda'))\n"
           "    except torch.OutOfMemoryError: pass\nprint('full',flush=True)\ntime.sleep(60)\n")
    with tempfile.TemporaryDirectory() as d:
        if not results.has("full: filled while training"):
            p = subprocess.Popen([memfit, "train", path, "--data", "synthetic:256", "--epochs", "100000", "--checkpoint", f"{d}/a.keras", "--device", "cuda", "--json", "--quiet"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            h = subprocess.Popen([sys.executable, "-c", hog], stdout=subprocess.PIPE, text=True)
            filled = h.stdout.readline().strip() == "full"
            time.sleep(2)
            alive = p.poll() is None
            p.send_signal(2)
            out, err = p.communicate(timeout=30)
            results.put("full: filled while training", filled and alive and os.path.exists(f"{d}/a.keras"), rc=p.returncode, said=err.strip()[-160:])
            if not results.has("full: at start"):
                rc, j, said, _ = train(memfit, path, "--data", "synthetic:64", "--steps", "3", timeout=30)
                results.put("full: at start", rc in (1, 3) and len(said) > 40, rc=rc, said=said[-300:])
            h.kill()
            h.wait()


def numbers(j, path=""):
    """Losses, metrics and validation, flat."""
    out = {}
    for k, v in (j or {}).items():
        if path or k in ("loss", "metrics", "validation"):
            if isinstance(v, dict):
                out.update(numbers(v, path + k + "."))
            elif isinstance(v, (int, float)) and not isinstance(v, bool):
                out[path + k] = v
    return out


def on_cpu(memfit, *args):
    p = subprocess.run([memfit, "train", *args, "--device", "cpu", "--json", "--quiet"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    try:
        return json.loads(p.stdout) if p.returncode == 0 else None, p.stderr.strip()[-300:]
    except ValueError:
        return None, p.stderr.strip()[-300:]


def worst_difference(a, b):
    a, b = numbers(a), numbers(b)
    return max([abs(a[k] - b[k]) / (abs(a[k]) + 1e-3) for k in a if k in b] or [float("inf")])


def curves(memfit, results, nvml, models, deadline):
    fixtures = pathlib.Path(os.environ.get("GPU_CHECK_FIXTURES", ROOT / "tests/fixtures"))
    jobs = []
    for case in json.load(open(fixtures / "fit/cases.json")):
        options = [str(fixtures / "fit" / o[5:]) if o.startswith("HELD:") else o for o in case["options"]]
        if "CLASSES" not in options and "--keep-best" not in options:
            jobs.append((case["name"], [str(fixtures / "fit" / case["model"]), "--data", str(fixtures / "fit" / case["data"]), "--epochs", str(case["epochs"]), *options]))
    for path in sorted((fixtures / "train").glob("*.keras")):
        jobs.append((path.stem, [str(path), "--data", "synthetic:192", "--steps", "8", "--seed", "3"]))
        jobs.append((path.stem + " in pieces", [str(path), "--data", "synthetic:192", "--steps", "8", "--gradient-accumulation", "4"]))

    def one(name, args):
        a, why = on_cpu(memfit, *args)
        if not a: # what the cpu does not train is no case
            return results.put(f"curves {name}", True, skipped=why[-120:])
        rc, b, said, _ = train(memfit, *args)
        worst = worst_difference(a, b) if b else None
        results.put(f"curves {name}", b and worst <= 2e-3, worst=worst and float(f"{worst:.1e}"), allocations=b and b["allocations_in_steps"], error="" if b else said)

    in_parallel([lambda n=n, a=a: one(n, a) for n, a in jobs if not results.has(f"curves {n}")], 8, deadline)


def seeds(memfit, results, nvml, models, deadline):
    by_name = {m.stem: str(m) for m in models}

    def run(case, model, *args, check):
        if results.has("seeds " + case) or model not in by_name or time.time() > deadline:
            return None
        rc, j, said, pid = train(memfit, by_name[model], "--data", "synthetic:" + args[0], *args[1:], timeout=120)
        seen = nvml.peaks.get(pid, 0)
        if not j:
            return results.put("seeds " + case, False, rc=rc, error=said)
        good, more = check(j, seen)
        return results.put("seeds " + case, good and 0 < seen <= j["planned_peak_bytes"], nvml_mib=seen // MIB, planned_mib=j["planned_peak_bytes"] // MIB, step_ms=round(j["step_ms"], 3),
                           pieces=j["pieces"], recomputed=j["recomputed_ops"], loss=round(j["loss"], 6), allocations=j["allocations_in_steps"], **more)

    kept = {}

    def keep(name):
        return lambda j, seen: (kept.update({name: j}) or True, {})

    def as_before(name, within):
        def check(j, seen):
            d = abs(j["loss"] - kept[name]["loss"]) / (abs(kept[name]["loss"]) + 1e-3) if name in kept else None
            return d is None or d <= within, {"loss_differs": d and float(f"{d:.1e}")}
        return check

    run("S1: kilobytes beside the fixed cost", "s1", "1000", check=lambda j, s: (j["arena_bytes"] < MIB, {"arena_bytes": j["arena_bytes"]}))
    run("S4: a batch as asked", "s9", "64", "-b", "16", "--steps", "6", "--gradient-accumulation", "off", check=keep("s4"))
    run("S4: the same in four pieces", "s9", "64", "-b", "16", "--steps", "6", "--gradient-accumulation", "4", check=as_before("s4", 1e-3))
    run("S7: batch 256 of 1024 x 1024 in 8 GiB", "s7", "256", "-b", "256", "--steps", "3", "--memory", "8GiB", check=lambda j, s: (s <= 8 << 30, {}))
    run("S9: as asked", "s9", "64", "-b", "32", "--steps", "6", check=keep("s9"))
    if "s9" in kept:
        j = kept["s9"]
        limit = j["fixed_bytes"] + int(0.6 * j["arena_bytes"])
        run("S9: in 0.6 of it", "s9", "64", "-b", "32", "--steps", "6", "--memory", str(limit), check=lambda j, s: (s <= limit and as_before("s9", 1e-3)(j, s)[0], {"limit_mib": limit // MIB}))
    run("S10: bfloat16", "s9", "64", "-b", "32", "--steps", "6", "--precision", "mixed_bfloat16",
        check=lambda j, s: (True, {"saved_mib": (kept["s9"]["planned_peak_bytes"] - j["planned_peak_bytes"]) // MIB if "s9" in kept else None}))
    run("S12: validation and a last batch", "s9", "100", "-b", "16", "--epochs", "2", "--validation-split", "0.23", check=lambda j, s: (j["validation"] is not None, {}))


def main():
    args = sys.argv[1:]
    seconds, folders, plain = 480.0, [], []
    while args:
        a = args.pop(0)
        if a == "--seconds":
            seconds = float(args.pop(0))
        elif a == "--models":
            folders.append(pathlib.Path(args.pop(0)))
        else:
            plain.append(a)
    memfit, path, parts = os.path.abspath(plain[0]), plain[1], plain[2:]
    models = sorted(m for f in folders or [ROOT / "tests/fixtures/train", ROOT / "tests/fixtures/cuda/models"] for m in f.glob("*.keras"))
    nvml = Nvml()
    results = Results(path, memfit, nvml.versions())
    deadline = time.time() + seconds
    for part in parts:
        before, began = results.failed, time.time()
        {"curves": curves, "seeds": seeds, "limits": limits, "kills": kills, "full": full}[part](memfit, results, nvml, models, deadline)
        mine = [r for c, r in results.seen.items() if c.startswith({"kills": "kill"}.get(part, part))]
        print(f"== {part}: {sum(r['good'] for r in mine)} of {len(mine)} good, {results.failed - before} failed now, {time.time() - began:.0f} s", flush=True)
    nvml.over = True
    print(f"NVML was sampled {nvml.samples} times")
    sys.exit(results.failed > 0)


main()
