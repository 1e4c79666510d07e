#!/usr/bin/env python3
"""Training on one NVIDIA card, memfit beside PyTorch and JAX at their best, in one call.

    bench_cuda.py MEMFIT MODELS OUT --compile [--seconds N] [--at-once N] [CASE or PEER...]     fills the caches, may share the machine; shows no time
    bench_cuda.py MEMFIT MODELS OUT [--seconds N] [--profile] [CASE...]   times; nothing else may be at work

MODELS is the folder that make_cuda_models.py writes. CASES has the rows of the table in docs/bench/cuda.md, most valuable first, each with the peers it
stands beside (cuda_peers.py). Timing: all peers get ready at once, as many as the card holds, and wait without their activations; then row by row memfit and, straight
behind it, the row's peers. OUT/cuda.jsonl gets an object a line, keyed by case, the program's hash and the call; a row that is whole there (memfit and all its
peers, of one call, this program) is not run again. `--profile` adds for some of them where the time of a step goes (profile.txt; its steps are queued one by one).

memfit's step is the median of what `memfit train` measures. Images lie on the card on both sides (one batch, handed over once). NVML is sampled every 10 ms by a
thread of this script.
"""
import ctypes
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import cuda_caches

HERE = pathlib.Path(__file__).parent

# case: model, batch, steps, precision, peers (NAME:SETTING of cuda_peers.py), further options. Limits are decimal where the table's are; those of U-Net,
# MobileNetV2 and ViT are a little below 0.7 times what their peers take. `-tuned`: by the times of `memfit tune`, as peers have cudnn.benchmark.
CASES = {
    "resnet50-bf16": ("resnet50", 256, 24, "bf16", ["resnet50-bf16:compile", "resnet50-bf16:jax", "resnet50-bf16:autotune"], []),
    "gpt2-bf16": ("gpt2", 8, 20, "bf16", ["gpt2-bf16:compile", "gpt2-bf16:jax", "gpt2-bf16:autotune"], []),
    "resnet50-bf16-7.5GB": ("resnet50", 256, 20, "bf16", ["resnet50-bf16:half", "resnet50-bf16:jax"], ["--memory", "7500MB"]),
    "s7-tf32": ("s7", 256, 10, "tf32", ["s7-tf32:compile"], ["--memory", "8GiB"]),
    "resnet50-bf16-6GB": ("resnet50", 256, 20, "bf16", ["resnet50-bf16:half", "resnet50-bf16:jax"], ["--memory", "6000MB"]),
    "resnet50-b1024-bf16": ("resnet50", 1024, 8, "bf16", ["resnet50x1024-bf16:compile"], []),
    "resnet50-b1024-bf16-20GB": ("resnet50", 1024, 8, "bf16", ["resnet50x1024-bf16:compile"], ["--memory", "20000MB"]),
    "s9-bf16": ("s9", 32, 40, "bf16", ["s9-bf16:compile", "s9-bf16:jax", "s9-bf16:autotune"], []),
    "s9-bf16-1.5GB": ("s9", 32, 40, "bf16", ["s9-bf16:compile"], ["--memory", "1500MB"]),
    "s9-tf32": ("s9", 32, 30, "tf32", ["s9-tf32:compile"], []),
    "s9-bf16-tuned": ("s9", 32, 40, "bf16", ["s9-bf16:compile"], []),
    "s9-tf32-tuned": ("s9", 32, 30, "tf32", ["s9-tf32:compile"], []),
    "gpt2-b64-bf16": ("gpt2", 64, 8, "bf16", ["gpt2x64-bf16:compile"], []),
    "gpt2-bf16-4.5GB": ("gpt2", 8, 20, "bf16", ["gpt2-bf16:compile"], ["--memory", "4500MB"]),
    "gpt2-bf16-6.5GB": ("gpt2", 8, 20, "bf16", ["gpt2-bf16:compile"], ["--memory", "6500MB"]),
    "unet-bf16": ("unet", 16, 24, "bf16", ["unet-bf16:compile"], []),
    "unet-bf16-tuned": ("unet", 16, 24, "bf16", ["unet-bf16:compile"], []),
    "unet-bf16-0.7x": ("unet", 16, 24, "bf16", ["unet-bf16:compile"], ["--memory", "3030MB"]),
    "unet-bf16-0.7x-tuned": ("unet", 16, 24, "bf16", ["unet-bf16:compile"], ["--memory", "3030MB"]),
    "mobilenetv2-bf16": ("mobilenetv2", 256, 24, "bf16", ["mobilenetv2-bf16:compile"], []),
    "mobilenetv2-bf16-0.7x": ("mobilenetv2", 256, 20, "bf16", ["mobilenetv2-bf16:compile"], ["--memory", "6380MB"]),
    "vit-bf16": ("vit", 64, 20, "bf16", ["vit-bf16:compile"], []),
    "vit-bf16-0.7x": ("vit", 64, 20, "bf16", ["vit-bf16:compile"], ["--memory", "4680MB"]),
    "lstm-bf16": ("lstm", 64, 24, "bf16", ["lstm-bf16:compile"], []),
    "s7-bf16": ("s7", 256, 10, "bf16", ["s7-bf16:compile"], ["--memory", "6GiB"]),
    "s1-f32": ("s1", 32, 2000, "f32", ["s1-f32:graph"], []),
    "resnet50-bf16-tuned": ("resnet50", 256, 24, "bf16", ["resnet50-bf16:compile"], []),
    # with methods that add in no fixed order allowed
    "s9-tf32-nd": ("s9", 32, 30, "tf32", ["s9-tf32:compile"], ["--allow-nondeterministic"]),
    "s9-tf32-nd-tuned": ("s9", 32, 30, "tf32", ["s9-tf32:compile"], ["--allow-nondeterministic"]),
    "s9-bf16-nd": ("s9", 32, 40, "bf16", ["s9-bf16:compile"], ["--allow-nondeterministic"]),
    "resnet50-bf16-nd": ("resnet50", 256, 24, "bf16", ["resnet50-bf16:compile"], ["--allow-nondeterministic"]),
    "unet-bf16-0.7x-nd": ("unet", 16, 24, "bf16", ["unet-bf16:compile"], ["--memory", "3030MB", "--allow-nondeterministic"]),
    "resnet50-bf16-cold": ("resnet50", 256, 2, "bf16", [], []),
}
PROFILES = ["gpt2-b64-bf16"]
# Batches of an epoch. One stays on the card, as peers' do; words are few bytes, and S1's epoch has some 30 steps.
BATCHES = {"s1": 31, "gpt2": 8, "lstm": 8}
PRECISION = {"bf16": ["mixed_bfloat16"], "tf32": ["float32", "--tf32", "on"], "f32": ["float32"]}
# GiB a peer takes while it gets ready, where that is much (the two largest take 50, but only in their first steps); what several may take at once, and what one keeps while it waits.
PEER_GIB, CARD_GIB, WAITING_GIB = {"resnet50x1024-bf16": 35, "gpt2x64-bf16": 35, "resnet50-bf16": 14, "s7-tf32": 12, "s7-bf16": 8, "gpt2-bf16": 11, "s9-bf16": 4, "lstm-bf16": 2, "s1-f32": 1}, 150, 2


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


class Peer:
    def __init__(self, name, out, compile_only):
        self.name, self.base, self.out = name, name.replace(":", "."), out
        for end in ("ready", "go", "peer"):
            pathlib.Path(self.out, f"{self.base}.{end}").unlink(missing_ok=True)
        if compile_only:
            pathlib.Path(self.out, self.base + ".go").touch()
        who, setting = name.split(":")
        cache = cuda_caches.folder_of(name)
        env = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton"), "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
               "TRITON_STORE_BINARY_ONLY": "1", "TORCHINDUCTOR_COMPILE_THREADS": "3" if compile_only else "1", "OMP_NUM_THREADS": "2", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
               "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        script = "cuda_peers_jax.py" if setting == "jax" else "cuda_peers.py"
        slow = ["nice", "-n", "15"] if compile_only and setting == "autotune" else []
        self.process = subprocess.Popen([*slow, sys.executable, str(HERE / script), who, setting, out, *(["once"] if compile_only else [])], stdout=open(f"{out}/{self.base}.peer", "w"),
                                        stderr=open(f"{out}/{self.base}.peer.err", "w"), env={**os.environ, **env})
        self.gib = PEER_GIB.get(who, 9)
        self.row = None

    def ready(self):
        return pathlib.Path(self.out, self.base + ".ready").exists()

    def over(self):
        return self.process.poll() is not None

    def complaint(self):
        return open(f"{self.out}/{self.base}.peer.err", errors="replace").read()[-300:]

    def end(self):
        self.process.kill()
        self.process.wait()

    def finish(self, limit):
        """Lets it go and takes its row; the second time the row is there."""
        if self.row is None:
            pathlib.Path(self.out, self.base + ".go").touch()
            late = time.time() + limit
            while not self.over() and time.time() < late:
                time.sleep(0.02)
            self.end()
            text = open(f"{self.out}/{self.base}.peer").read()
            self.row = json.loads(text) if text.strip() else {"name": self.name, "error": self.complaint()}
        return self.row


def start_memfit(memfit, models, case, steps, out, env):
    name, batch, _, precision, _, options = CASES[case]
    command = [memfit, "train", f"{models}/{name}.keras", "--data", f"synthetic:{batch * BATCHES.get(name, 1)}", "--no-shuffle", "--batch-size", str(batch),
               "--epochs", "100000", "--steps", str(steps), "--precision", *PRECISION[precision], "--device", "cuda", "--json", *options]
    return command, subprocess.Popen(command, stdout=open(f"{out}/{case}.json", "w"), stderr=open(f"{out}/{case}.err", "w"), env={**os.environ, **env})


def tuned(memfit, models, case, out, limit):
    """The environment of a case: with the times of its methods, or with none at all."""
    name, batch, _, precision, _, options = CASES[case]
    if not case.endswith("-tuned"):
        return {"MEMFIT_TIMES": "off"}
    loose = [o for o in options if o == "--allow-nondeterministic"]
    times = f"{out}/{name}-b{batch}-{precision}{'-nd' if loose else ''}.times" # of a model, for all its rows
    command = [memfit, "tune", f"{models}/{name}.keras", "--batch-size", str(batch), "--precision", PRECISION[precision][0], "--device", "cuda", "--out", times, "--json", *loose]
    if times not in TUNED:
        TUNED.add(times)
        try:
            subprocess.run(command, stdout=open(f"{out}/{case}.tune", "w"), stderr=open(f"{out}/{case}.err", "w"), timeout=limit)
        except subprocess.TimeoutExpired:
            print(f"{case}: tuning was not done in {limit:.0f} s", flush=True)
    return {"MEMFIT_TIMES": times}


TUNED = set() # in this call


def run_memfit(nvml, memfit, models, case, out, profile, limit, env=None, steps=0):
    before = nvml.rows()
    began = time.time()
    command, p = start_memfit(memfit, models, case, steps or CASES[case][2], out, {**(env or {}), **({"MEMFIT_PROFILE": "1"} if profile else {})})
    seen = {}
    watcher = threading.Thread(target=lambda: seen.update(zip(("peak", "samples"), nvml.watch(p, before))))
    watcher.start()
    try:
        p.wait(limit)
    except subprocess.TimeoutExpired:
        p.kill()
    watcher.join()
    row = {"command": " ".join(command), "rc": p.returncode, "seconds": round(time.time() - began, 1), "nvml_mib": seen.get("peak", 0) >> 20,
           "samples": seen.get("samples", 0)}
    text = open(f"{out}/{case}.err", errors="replace").read()
    try:
        row.update(json.load(open(f"{out}/{case}.json")))
    except ValueError:
        row["error"] = text[-400:]
    if "\nprofile:" in text:
        with open(f"{out}/profile.txt", "a") as f:
            f.write(f"\n==== {case}: {row['command']}\n" + text[text.index("\nprofile:"):])
    return row


def mib(n):
    return f"{n / 2**20:,.0f}" if n else "-"


def say(case, row):
    m = row["memfit"]
    if m["rc"] or "step_ms" not in m:
        print(f"{case:25} memfit rc {m['rc']} after {m['seconds']} s: {str(m.get('error', ''))[-300:]!r}", flush=True)
    else:
        print(f"{case:25} {'memfit':26} {m['step_ms']:9.3f} {m['nvml_mib']:9,} {mib(m['planned_peak_bytes']):>9} {mib(m['arena_bytes']):>8} {mib(m['fixed_bytes']):>6} {m.get('pieces')!s:>6} "
              f"{m.get('recomputed_ops')!s:>5} {m['allocations_in_steps']!s:>6}  {m.get('first_step_seconds') or 0:.2f} {m.get('nondeterministic_ops', '-')!s:>5}", flush=True)
    for p in row["peers"]:
        if "error" in p:
            print(f"{'':25} {p['name']}: {p['error']!r}", flush=True)
        else:
            ratio = f"{m['step_ms'] / p['step_ms']:.3f}" if m.get("step_ms") else "-"
            print(f"{'':25} {p['peer'][:26]:26} {p['step_ms']:9.3f} {p['nvml_mib']:9,}   memfit / peer {ratio}, memory {m['nvml_mib'] / max(1, p['nvml_mib']):.2f}", flush=True)


def get_ready(names, out, compile_only, at_once, end, extra_end):
    """Starts peers as the card has room for them, until they are ready or it is late. Returns those that are; late ones are ended.
    Those that only compile have no tensors on the card meanwhile, and where there is no room for their one step they try again."""
    waiting, peers = list(names), []
    while time.time() < end:
        busy = [p for p in peers if not p.over() and (compile_only or not p.ready())]
        idle = sum(1 for p in peers if not compile_only and p.ready() and not p.over())
        if waiting and len(busy) < at_once():
            room = CARD_GIB - sum(p.gib for p in busy) - WAITING_GIB * idle
            fits = next((n for n in waiting if compile_only or PEER_GIB.get(n.split(":")[0], 9) <= room), None)
            if fits:
                waiting.remove(fits)
                peers.append(Peer(fits, out, compile_only))
                continue
        if not busy and not waiting or time.time() > extra_end and all(is_extra(n) for n in [p.name for p in busy] + waiting):
            break
        time.sleep(0.1)
    good = [p for p in peers if p.ready()]
    for p in peers:
        if p not in good or (compile_only and not p.over()):
            print(f"{p.name:30} {'not ready' if not p.ready() else 'late'}: {p.complaint()!r}", flush=True)
            p.end()
    for n in waiting:
        print(f"{n:30} not started: no room or no time", flush=True)
    return {p.name: p for p in good}


def is_extra(peer):
    """One without which a row is whole."""
    return peer.endswith((":jax", ":autotune"))


def peers_of(cases):
    """Each once; extra ones come last."""
    every = dict.fromkeys(p for c in cases for p in CASES[c][4])
    return [p for p in every if not is_extra(p)] + [p for p in every if p.endswith(":jax")] + [p for p in every if p.endswith(":autotune")]


def compile_all(memfit, models, out, wanted, end, at_once):
    """Caches of kernels on both sides. Memfit's cases run one after the other beside the peers: those named, or else the cases'."""
    cases = [c for c in wanted if c in CASES]
    def queue(mine):
        for case in mine:
            if time.time() < end - 5:
                if case.endswith("-tuned"):
                    tuned(memfit, models, case, out, 60)
                    continue
                _, p = start_memfit(memfit, models, case, 2, out, {"OMP_NUM_THREADS": "2"})
                try:
                    p.wait(max(1, end - time.time()))
                except subprocess.TimeoutExpired:
                    p.kill()
    def is_own(case):
        """Has kernels that no other row has: what a limit makes run again is there already, pieces are not."""
        return not case.endswith(("-cold", "-tuned")) and (not CASES[case][5] or case.startswith(("s7", "s9")))
    warm = [c for c in cases if is_own(c)] + [c for c in cases if c.endswith("-tuned")]
    warming = threading.Thread(target=queue, args=(warm,))
    warming.start()
    names = [p for p in wanted if p not in CASES] or dict.fromkeys(p for c in cases for p in CASES[c][4])
    ready = get_ready(sorted(names, key=lambda n: (n.endswith(":autotune"), is_extra(n))), out, True, lambda: at_once - warming.is_alive(), end, end)
    warming.join()
    pathlib.Path(out, "compiled.txt").write_text("\n".join(ready))
    for p in ready.values():
        row = p.finish(1)
        print(f"{p.name:30} {row['nvml_mib']:8,} MiB, ready after {row['ready_s']} s" if "error" not in row else f"{p.name:30} {row['error']!r}")
    for c in [c for c in warm if not c.endswith("-tuned")]:
        try:
            m = json.load(open(f"{out}/{c}.json"))
            print(f"{c:30} planned {mib(m['planned_peak_bytes'])} MiB, first step after {m['first_step_seconds']:.1f} s, loss {m['loss']:.5f}")
        except (OSError, ValueError, KeyError):
            said = pathlib.Path(out, f"{c}.err")
            print(f"{c:30} {said.read_text(errors='replace')[-300:] if said.exists() else 'no time was left for it'!r}")


def missing(out, cases, program):
    done = {}
    path = pathlib.Path(out, "cuda.jsonl")
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        have = {n for n, p in zip(CASES.get(row["case"], [[]] * 5)[4], row["peers"]) if "step_ms" in p}
        whole = row["memfit"].get("step_ms") and not row["memfit"]["rc"] and all(is_extra(n) or n in have for n in CASES[row["case"]][4])
        if row["program"] == program and whole:
            done[row["case"]] = row
    return [c for c in cases if c not in done]


def main():
    args = sys.argv[1:]
    limit = float(args[args.index("--seconds") + 1]) if "--seconds" in args else 400
    at_once = int(args[args.index("--at-once") + 1]) if "--at-once" in args else 12
    plain = [a for i, a in enumerate(args) if not a.startswith("--") and (i == 0 or args[i - 1] not in ("--seconds", "--at-once"))]
    memfit, models, out = plain[:3]
    began, end = time.time(), time.time() + limit
    os.makedirs(out, exist_ok=True)
    if "--compile" in args:
        compile_all(memfit, models, out, plain[3:] or list(CASES), end, at_once)
        return
    program = hashlib.sha256(b"".join(open(f, "rb").read() for f in (memfit, HERE / "cuda_peers.py", HERE / "cuda_peers_jax.py"))).hexdigest()[:16]
    cases = missing(out, plain[3:] or list(CASES), program)
    nvml = Nvml()
    known = [p for p in peers_of(cases) if not is_extra(p) or any(cuda_caches.folder_of(p).rglob("*-cache" if p.endswith(":jax") else "fxgraph"))]
    peers = get_ready(known, out, False, lambda: 14, began + 0.4 * limit, began + 0.3 * limit)
    time.sleep(2)  # what was ended is gone
    print(f"program {program}, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC; {len(peers)} peers ready after {time.time() - began:.0f} s", flush=True)
    print(f"{'case':25} {'who':26} {'step ms':>9} {'NVML MiB':>9} {'planned':>9} {'arena':>8} {'fixed':>6} pieces again allocs  first s  any order", flush=True)
    with open(f"{out}/cuda.jsonl", "a") as log:
        for case in cases:
            left = end - time.time()
            if left < 6:
                print(case, "not run: no time left")
                continue
            env = tuned(memfit, models, case, out, min(25, left))
            with tempfile.TemporaryDirectory() as cold:
                env = {**env, **({"MEMFIT_CACHE": cold} if case.endswith("-cold") else {})}
                row = run_memfit(nvml, memfit, models, case, out, False, min(60 if case.endswith("-cold") else 25, max(2, end - time.time())), env)
            rivals = [peers[n].finish(max(2, min(15, end - time.time()))) if n in peers else {"name": n, "error": "not ready"} for n in CASES[case][4]]
            row = {"case": case, "program": program, "call": int(began), "memfit": row, "peers": rivals}
            log.write(json.dumps(row) + "\n")
            log.flush()
            say(case, row)
            if "--profile" in args and case in PROFILES:
                run_memfit(nvml, memfit, models, case, out, True, min(15, max(2, end - time.time())), env, 7)
        for p in peers.values():
            p.end()
    print(f"seconds {time.time() - began:.0f}")


if __name__ == "__main__":
    main()
