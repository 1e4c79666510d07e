#!/usr/bin/env python3
"""Training on one NVIDIA card, memfit beside PyTorch at its best, in one call.

    bench_cuda.py MEMFIT MODELS OUT [--peers] [--seconds N] [--profile] [CASE...]

MODELS is the folder that make_cuda_models.py writes. A case is MODEL-PRECISION (`resnet50-bf16`). Peers (cuda_peers.py) get ready while
memfit compiles its kernels once for every case, and wait; then memfit runs case by case with nothing else at work on the card,
then each peer. OUT gets cuda.jsonl (an object a line), profile.txt (where the time of a step goes) and the programs' messages. Prints a table.

memfit's step is the median of what `memfit train` measures. Images lie on the card on both sides (one batch, handed over once). NVML is sampled every 10 ms by a
thread of this script.
"""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

# case: batch, steps, further options
CASES = {
    "resnet50-bf16": (256, 40, []), "s9-bf16": (32, 60, []), "gpt2-bf16": (8, 30, []), "s1-f32": (32, 2000, []),
    "mobilenetv2-bf16": (256, 40, []), "unet-bf16": (16, 40, []), "vit-bf16": (64, 30, []), "lstm-bf16": (64, 30, []),
    "s9-tf32": (32, 30, ["--tf32", "on"]), "s7-tf32": (256, 16, ["--memory", "8GiB", "--tf32", "on"]),
    "s7-bf16": (256, 16, ["--memory", "6GiB"]),
}
# Batches of an epoch. One stays on the card, as peers' do; words are few bytes, and S1's epoch has some 30 steps.
BATCHES = {"s1": 31, "gpt2": 8, "lstm": 8}
PRECISION = {"bf16": "mixed_bfloat16", "tf32": "float32", "f32": "float32"}


class Nvml:
    """The largest figure NVML shows for a process, sampled every 10 ms."""

    class Info(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlInit_v2()
        self.card = ctypes.c_void_p()
        self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.card))

    def rows(self):
        many, rows = ctypes.c_uint(256), (self.Info * 256)()
        if self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.card, ctypes.byref(many), rows):
            return {}
        return {rows[i].pid: rows[i].used for i in range(many.value)}

    def watch(self, process, before):
        """Containers may hide the number: then the process is the one that was not there before."""
        peak = samples = 0
        while process.poll() is None:
            now = self.rows()
            used = now.get(process.pid) or max([v for k, v in now.items() if k not in before] or [0])
            peak, samples = max(peak, used), samples + 1
            time.sleep(0.01)
        return peak, samples


def start_memfit(memfit, models, case, steps, out, extra, env):
    batch, _, options = CASES[case]
    name, precision = case.split("-")
    command = [memfit, "train", f"{models}/{name}.keras", "--data", f"synthetic:{batch * BATCHES.get(name, 1)}", "--no-shuffle", "--batch-size", str(batch),
               "--epochs", "100000", "--steps", str(steps), "--precision", PRECISION[precision], "--device", "cuda", "--json", *options, *extra]
    return command, subprocess.Popen(command, stdout=open(f"{out}/{case}.json", "w"), stderr=open(f"{out}/{case}.err", "w"), env={**os.environ, **env})


def run_memfit(nvml, memfit, models, case, out, profile, limit):
    before = nvml.rows()
    command, p = start_memfit(memfit, models, case, CASES[case][1], out, [], {"MEMFIT_PROFILE": "1"} if profile else {})
    seen = {}
    watcher = threading.Thread(target=lambda: seen.update(zip(("peak", "samples"), nvml.watch(p, before))))
    watcher.start()
    began = time.time()
    try:
        p.wait(limit)
    except subprocess.TimeoutExpired:
        p.kill()
    watcher.join()
    row = {"case": case, "command": " ".join(command), "rc": p.returncode, "seconds": round(time.time() - began, 1),
           "nvml_mib": seen.get("peak", 0) >> 20, "samples": seen.get("samples", 0)}
    try:
        row["memfit"] = json.load(open(f"{out}/{case}.json"))
    except ValueError:
        row["error"] = open(f"{out}/{case}.err", errors="replace").read()[-400:]
    text = open(f"{out}/{case}.err", errors="replace").read()
    if "\nprofile:" in text:
        with open(f"{out}/profile.txt", "a") as f:
            f.write(f"\n==== {case}: {row['command']}\n" + text[text.index("\nprofile:"):])
    return row


def mib(n):
    return f"{n / 2**20:,.0f}" if n else "-"


def main():
    args = sys.argv[1:]
    peers, profile = "--peers" in args, "--profile" in args
    limit = float(args[args.index("--seconds") + 1]) if "--seconds" in args else 400
    plain = [a for i, a in enumerate(args) if not a.startswith("--") and (i == 0 or args[i - 1] != "--seconds")]
    memfit, models, out = plain[:3]
    cases = plain[3:] or list(CASES)
    end = time.time() + limit
    os.makedirs(out, exist_ok=True)
    nvml, here = Nvml(), pathlib.Path(__file__).parent
    rivals = {}
    for case in cases if peers else []:
        setting = "graph" if case.startswith("s1") else "compile"
        rivals[case] = subprocess.Popen([sys.executable, str(here / "cuda_peers.py"), case, setting, out], stdout=open(f"{out}/{case}.peer", "w"),
                                        stderr=open(f"{out}/{case}.peer.err", "w"), env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"})
    warm = {c: start_memfit(memfit, models, c, 1, out, [], {"OMP_NUM_THREADS": "2"})[1] for c in cases}
    began, share = time.time(), 0.4 * limit
    while time.time() - began < share and any(p.poll() is None for p in warm.values()):
        time.sleep(0.1)
    print(f"compiled by memfit after {time.time() - began:.0f} s, not ready: {[c for c, p in warm.items() if p.poll() is None]}", flush=True)
    for p in warm.values():
        if p.poll() is None:
            p.kill()
    while time.time() - began < share and not all(pathlib.Path(out, c + ".ready").exists() or p.poll() is not None for c, p in rivals.items()):
        time.sleep(0.1)
    ready = [c for c in rivals if pathlib.Path(out, c + ".ready").exists()]
    print(f"peers ready after {time.time() - began:.0f} s: {ready}", flush=True)
    for c, p in rivals.items(): # one that still compiles would disturb
        if c not in ready and p.poll() is None:
            p.kill()
    print(f"{'case':18} {'who':26} {'step ms':>9} {'NVML MiB':>9} {'planned':>9} {'arena':>8} {'fixed':>6} pieces again allocs  first s", flush=True)
    with open(f"{out}/cuda.jsonl", "a") as log:
        for case in cases:
            left = end - time.time() - 2 * len(ready)
            if left < 5:
                print(case, "not run: no time left")
                continue
            row = run_memfit(nvml, memfit, models, case, out, profile, min(60, left))
            log.write(json.dumps(row) + "\n")
            log.flush()
            m = row.get("memfit")
            if not m or row["rc"]:
                print(f"{case:18} memfit rc {row['rc']} after {row['seconds']} s: {row.get('error', '')[-300:]!r}", flush=True)
                continue
            print(f"{case:18} {'memfit':26} {m['step_ms']:9.3f} {row['nvml_mib']:9,} {mib(m['planned_peak_bytes']):>9} {mib(m['arena_bytes']):>8} {mib(m['fixed_bytes']):>6} {m.get('pieces')!s:>6} "
                  f"{m.get('recomputed_ops')!s:>5} {m['allocations_in_steps']!s:>6}  {m.get('first_step_seconds') or 0:.1f}", flush=True)
        for case in ready:
            pathlib.Path(out, case + ".go").touch()
            try:
                rivals[case].wait(max(3, min(15, end - time.time())))
            except subprocess.TimeoutExpired:
                rivals[case].kill()
            text = open(f"{out}/{case}.peer").read()
            if not text.strip():
                print(f"{case:18} peer: {open(f'{out}/{case}.peer.err', errors='replace').read()[-300:]!r}")
                continue
            row = json.loads(text)
            log.write(text)
            log.flush()
            print(f"{case:18} {row['peer'][:26]:26} {row['step_ms']:9.3f} {row['nvml_mib']:9,}   tensors {row['live_mib']:,}, taken {row['taken_mib']:,}, ready after {row['ready_s']} s", flush=True)
    for c, p in rivals.items():
        if c not in ready:
            p.kill()
            print(f"{c:18} peer not ready: {open(f'{out}/{c}.peer.err', errors='replace').read()[-200:]!r}")
        if p.poll() is None:
            p.kill()


main()
