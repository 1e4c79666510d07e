#!/usr/bin/env python3
"""Training on one NVIDIA card, memfit beside PyTorch at its best, in one call.

    bench_cuda.py MEMFIT MODELS OUT [--peers[=PEER,...]] [--seconds N] [--warm] [--profile] [--cold] [CASE...]

MODELS is the folder that make_cuda_models.py writes. CASES has the rows of the table in docs/bench/cuda.md, each with the peer it stands beside.
Peers (cuda_peers.py) get ready, with `--warm` while memfit compiles its kernels once for every case, and wait without their activations; then memfit runs
case by case with nothing else at work on the card, then each peer. A profile is a run of its own: its steps are queued one by one. `--cold` adds the time to the first step with an empty cache of kernels. OUT gets cuda.jsonl (an object a line), profile.txt (where the time of a step goes) and the programs' messages. Prints a table.

memfit's step is the median of what `memfit train` measures. Images lie on the card on both sides (one batch, handed over once). NVML is sampled every 10 ms by a
thread of this script.
"""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

# case: model, batch, steps, precision, peer, further options. Limits are decimal where the table's are.
CASES = {
    "gpt2-bf16": ("gpt2", 8, 30, "bf16", "gpt2-bf16", []),
    "resnet50-bf16": ("resnet50", 256, 40, "bf16", "resnet50-bf16", []),
    "vit-bf16": ("vit", 64, 30, "bf16", "vit-bf16", []),
    "lstm-bf16": ("lstm", 64, 30, "bf16", "lstm-bf16", []),
    "s7-tf32": ("s7", 256, 16, "tf32", "s7-tf32", ["--memory", "8GiB"]),
    "s7-bf16": ("s7", 256, 16, "bf16", "s7-bf16", ["--memory", "6GiB"]),
    "s9-bf16": ("s9", 32, 60, "bf16", "s9-bf16", []),
    "s9-tf32": ("s9", 32, 30, "tf32", "s9-tf32", []),
    "unet-bf16": ("unet", 16, 40, "bf16", "unet-bf16", []),
    "mobilenetv2-bf16": ("mobilenetv2", 256, 40, "bf16", "mobilenetv2-bf16", []),
    "s1-f32": ("s1", 32, 2000, "f32", "s1-f32", []),
    "resnet50-bf16-7.5GB": ("resnet50", 256, 20, "bf16", "resnet50-bf16", ["--memory", "7500MB"]),
    "resnet50-bf16-6GB": ("resnet50", 256, 20, "bf16", "resnet50-bf16+half", ["--memory", "6000MB"]),
    "resnet50-b1024-bf16": ("resnet50", 1024, 12, "bf16", "resnet50x1024-bf16", []),
    "resnet50-b1024-bf16-20GB": ("resnet50", 1024, 12, "bf16", "resnet50x1024-bf16", ["--memory", "20000MB"]),
    "gpt2-b64-bf16": ("gpt2", 64, 12, "bf16", "gpt2x64-bf16", []),
    "gpt2-bf16-4.5GB": ("gpt2", 8, 20, "bf16", "gpt2-bf16", ["--memory", "4500MB"]),
    "s9-bf16-1.5GB": ("s9", 32, 40, "bf16", "s9-bf16", ["--memory", "1500MB"]),
    "resnet50-bf16-nondet": ("resnet50", 256, 30, "bf16", "resnet50-bf16", ["--allow-nondeterministic"]),
    "s9-tf32-nondet": ("s9", 32, 20, "tf32", "s9-tf32", ["--allow-nondeterministic"]),
}
# Batches of an epoch. One stays on the card, as peers' do; words are few bytes, and S1's epoch has some 30 steps.
BATCHES = {"s1": 31, "gpt2": 8, "lstm": 8}
PRECISION = {"bf16": ["mixed_bfloat16"], "tf32": ["float32", "--tf32", "on"], "f32": ["float32"]}


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
    name, batch, _, precision, _, options = CASES[case]
    command = [memfit, "train", f"{models}/{name}.keras", "--data", f"synthetic:{batch * BATCHES.get(name, 1)}", "--no-shuffle", "--batch-size", str(batch),
               "--epochs", "100000", "--steps", str(steps), "--precision", *PRECISION[precision], "--device", "cuda", "--json", *options, *extra]
    return command, subprocess.Popen(command, stdout=open(f"{out}/{case}.json", "w"), stderr=open(f"{out}/{case}.err", "w"), env={**os.environ, **env})


def run_memfit(nvml, memfit, models, case, out, profile, limit, env=None, steps=0):
    before = nvml.rows()
    command, p = start_memfit(memfit, models, case, steps or CASES[case][2], out, [], {**(env or {}), **({"MEMFIT_PROFILE": "1"} if profile else {})})
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


def start_peer(here, peer, out):
    setting = "graph" if peer.startswith("s1") else "half" if peer.endswith("+half") else "compile"
    return subprocess.Popen([sys.executable, str(here / "cuda_peers.py"), peer, setting, out], stdout=open(f"{out}/{peer}.peer", "w"),
                            stderr=open(f"{out}/{peer}.peer.err", "w"), env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"})


def say_memfit(case, row):
    m = row.get("memfit")
    if not m or row["rc"]:
        print(f"{case:25} memfit rc {row['rc']} after {row['seconds']} s: {row.get('error', '')[-300:]!r}", flush=True)
        return
    print(f"{case:25} {'memfit':22} {m['step_ms']:9.3f} {row['nvml_mib']:9,} {mib(m['planned_peak_bytes']):>9} {mib(m['arena_bytes']):>8} {mib(m['fixed_bytes']):>6} {m.get('pieces')!s:>6} "
          f"{m.get('recomputed_ops')!s:>5} {m['allocations_in_steps']!s:>6}  {m.get('first_step_seconds') or 0:.1f}", flush=True)


def finish_peer(peer, process, out, log, limit):
    pathlib.Path(out, peer + ".go").touch()
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
    text = open(f"{out}/{peer}.peer").read()
    if not text.strip():
        print(f"{peer:25} peer: {open(f'{out}/{peer}.peer.err', errors='replace').read()[-300:]!r}")
        return
    row = json.loads(text)
    log.write(text)
    log.flush()
    print(f"{peer:25} {row['peer'][:22]:22} {row['step_ms']:9.3f} {row['nvml_mib']:9,}   tensors {row['live_mib']:,}, taken {row['taken_mib']:,}, ready after {row['ready_s']} s", flush=True)


def wait_for(ready, processes, end):
    while time.time() < end and not all(ready(n, p) for n, p in processes.items()):
        time.sleep(0.1)
    return [n for n, p in processes.items() if not ready(n, p)]


def main():
    args = sys.argv[1:]
    limit = float(args[args.index("--seconds") + 1]) if "--seconds" in args else 400
    plain = [a for i, a in enumerate(args) if not a.startswith("--") and (i == 0 or args[i - 1] != "--seconds")]
    memfit, models, out = plain[:3]
    cases = plain[3:] or list(CASES)
    began = time.time()
    end = began + limit
    os.makedirs(out, exist_ok=True)
    nvml, here = Nvml(), pathlib.Path(__file__).parent
    chosen = [a[len("--peers="):].split(",") for a in args if a.startswith("--peers=")]
    wanted = chosen[0] if chosen else dict.fromkeys(CASES[c][4] for c in cases) if "--peers" in args else []
    rivals = {peer: start_peer(here, peer, out) for peer in wanted}
    warm = {c: start_memfit(memfit, models, c, 1, out, [], {"OMP_NUM_THREADS": "2"})[1] for c in cases} if "--warm" in args else {}
    late = wait_for(lambda n, p: p.poll() is not None, warm, began + 0.4 * limit)
    if warm:
        print(f"compiled by memfit after {time.time() - began:.0f} s, not ready: {late}", flush=True)
    for c in late:
        warm[c].kill()
    late = wait_for(lambda n, p: pathlib.Path(out, n + ".ready").exists() or p.poll() is not None, rivals, began + 0.4 * limit)
    ready = [n for n in rivals if pathlib.Path(out, n + ".ready").exists()]
    print(f"peers ready after {time.time() - began:.0f} s: {ready}", flush=True)
    for n in late: # one that still compiles would disturb
        rivals[n].kill()
        print(f"{n:25} peer not ready: {open(f'{out}/{n}.peer.err', errors='replace').read()[-200:]!r}")
    print(f"{'case':25} {'who':22} {'step ms':>9} {'NVML MiB':>9} {'planned':>9} {'arena':>8} {'fixed':>6} pieces again allocs  first s", flush=True)
    with open(f"{out}/cuda.jsonl", "a") as log:
        for case in cases:
            left = end - time.time() - 3 * len(ready)
            if left < 5:
                print(case, "not run: no time left")
                continue
            row = run_memfit(nvml, memfit, models, case, out, False, min(40, left))
            if "--profile" in args:
                run_memfit(nvml, memfit, models, case, out, True, min(40, left), None, 9)
            log.write(json.dumps(row) + "\n")
            log.flush()
            say_memfit(case, row)
        for peer in ready:
            finish_peer(peer, rivals[peer], out, log, max(3, min(20, end - time.time())))
        if "--cold" in args and end - time.time() > 10:
            with tempfile.TemporaryDirectory() as cache:
                row = run_memfit(nvml, memfit, models, "resnet50-bf16", out, False, end - time.time(), {"MEMFIT_CACHE": cache}, 2)
            log.write(json.dumps({**row, "case": "resnet50-bf16-cold"}) + "\n")
            say_memfit("resnet50-bf16-cold", row)


main()
