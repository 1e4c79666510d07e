#!/usr/bin/env python3
"""Training speed and memory beside TensorFlow and PyTorch, in one run: bench_train.py BUILD/memfit [--models a,b] [--quick]

Needs Python with Keras, TensorFlow and PyTorch (never a dependency of memfit itself). For each model the peers are started
once and wait; then rounds go in turns: memfit (a process of its own), each peer, and memfit again under a limit half-way
between its lower bound and its unconstrained peak, and with a batch taken in 8 pieces. Of each the best round counts. Step
times are medians within a round; processor times (user + system, all threads) are beside them, since they say more on a
machine that is not idle. Memory is VmHWM for all three, unconstrained. A peer with more than one setting is tried in each,
and its best counts. Meant to take about ten minutes on two idle cores; --quick takes one round.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
#          name           batch steps  TensorFlow's settings  goals: time, memory
MODELS = {"s1":          (32,   400,   ("graph", "xla"),      0.2, 0.65),
          "s9-small":    (32,   4,     ("graph",),            1.0, 0.65),
          "digits":      (256,  3,     ("graph",),            1.0, 0.65),
          "resnet50":    (8,    4,     ("graph",),            1.0, 0.65),
          "mobilenetv2": (16,   4,     ("graph",),            1.0, 0.65),
          "vgg16":       (4,    3,     ("graph",),            1.0, 0.85),
          "lstm":        (32,   12,    ("graph", "xla"),      1.0, 0.65),
          "transformer": (16,   8,     ("graph", "xla"),      1.0, 0.65)}
NORMALIZED = ("resnet50", "mobilenetv2")  # pieces of a batch change their mathematics: allowed for this measurement only
LOOK_EVERY = 0.01  # seconds
THREADS = "2"


def median(values):
    return sorted(values)[len(values) // 2]


def start_peer(kind, name, path, batch, setting):
    environment = dict(os.environ, OMP_NUM_THREADS=THREADS, PEER_THREADS=THREADS)
    return subprocess.Popen([sys.executable, "-W", "ignore", os.path.join(HERE, "train_peers.py"), kind, name, path, str(batch), setting],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def ask(peer, steps):
    try:
        peer.stdin.write(f"{steps}\n")
        peer.stdin.flush()
        r = json.loads(peer.stdout.readline())
        return {"ms": median(r["wall"]), "cpu": r["cpu"], "hwm": r["hwm"]}
    except (ValueError, BrokenPipeError):
        return None


def watch_memory(pid, seen):
    """VmHWM of a process, read until it ends; it only grows, so the last reading is the peak but for the last moment."""
    try:
        while True:
            with open(f"/proc/{pid}/status") as f:
                for line in f:
                    if line.startswith("VmHWM"):
                        seen[0] = max(seen[0], int(line.split()[1]) * 1024)
            time.sleep(LOOK_EVERY)
    except (OSError, ValueError):
        pass


def train(memfit, path, batch, steps, *more):
    """One memfit process: its JSON, with processor seconds and VmHWM from outside; or why it failed."""
    before, seen = resource.getrusage(resource.RUSAGE_CHILDREN), [0]
    p = subprocess.Popen([memfit, "train", path, "--data", f"synthetic:{batch}", "--batch-size", str(batch), "--epochs", str(steps), "--threads", THREADS,
                          "--json", "--quiet", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watcher = threading.Thread(target=watch_memory, args=(p.pid, seen))
    watcher.start()
    out, message = p.communicate()
    watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if p.returncode:
        return {"failed": f"exit {p.returncode}: {message.strip().splitlines()[0] if message.strip() else ''}"}
    r = json.loads(out)
    return {"ms": r["step_ms"], "hwm": seen[0], "json": r,
            "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def keep(best, key, r):
    """The best of each figure over the rounds; memory: the largest seen."""
    if not r or "failed" in r:
        best.setdefault(key, r or {"failed": "no answer"})
        return
    b = best.get(key)
    if not b or "failed" in b:
        best[key] = dict(r)
        return
    for field in ("ms", "cpu", "first"):
        if field in r and r[field] is not None:
            b[field] = min(r[field], b.get(field, r[field]))
    b["hwm"] = max(b["hwm"], r["hwm"])


def measure(memfit, name, path, options):
    batch, steps, settings, _, _ = MODELS[name]
    plan = json.loads(subprocess.run([memfit, "plan", path, "--batch-size", str(batch), "--threads", THREADS, "--json"], capture_output=True, text=True,
                                     check=True).stdout)
    half = ["--memory", str((plan["lower_bound_bytes"] + plan["peak_bytes"]) // 2)]
    pieces = ["--gradient-accumulation", "8"] + (["--allow-changed-numerics"] if name in NORMALIZED else [])
    peers = {}
    for kind, setting in [("tensorflow", s) for s in settings] + [("torch", "eager")]:
        if kind in options.peers:
            peer = start_peer(kind, name, path, batch, setting)
            try:
                ready = json.loads(peer.stdout.readline())
                peers[f"{kind} {setting}"] = peer
                if kind == "tensorflow" or name != "lstm":  # PyTorch's LSTM has a second bias
                    assert ready["parameters"] == plan["model"]["parameters"], (kind, ready["parameters"], plan["model"]["parameters"])
            except ValueError:
                print(f"{name}: {kind} did not start", file=sys.stderr)
    best, short = {}, min(steps, 3)
    for i in range(min(options.rounds, 2) if name == "vgg16" else options.rounds):
        one = train(memfit, path, batch, 1)
        if "failed" not in one:
            one["first"] = one["json"]["first_step_seconds"]
        keep(best, "start", one)
        r = train(memfit, path, batch, steps + 1)
        if "failed" not in r and "failed" not in one:
            r["cpu"] = 1e3 * (r["cpu_seconds"] - one["cpu_seconds"]) / steps
        keep(best, "memfit", r)
        for key, peer in peers.items():
            keep(best, key, ask(peer, steps))
        if options.only_steps or i > 1:
            continue
        keep(best, "half", train(memfit, path, batch, short + 1, *half))
        keep(best, "pieces", train(memfit, path, 8 * batch, 1 if name != "s1" else steps, *pieces))
    for peer in peers.values():
        peer.stdin.close()
        peer.wait()
    best["limit"] = int(half[1])
    return best


def ratio(a, b):
    return f"{a / b:.2f}" if a and b else "-"


def row(name, best):
    batch, _, _, time_goal, memory_goal = MODELS[name]
    def of(kind, field):
        found = [v[field] for k, v in best.items() if k.startswith(kind) and "failed" not in v and v.get(field)]
        return min(found) if found else None
    tf, pt, own = ({f: of(k, f) for f in ("ms", "cpu", "hwm")} for k in ("tensorflow", "torch", "memfit"))
    faster = min((x["ms"] for x in (tf, pt) if x["ms"]), default=None)
    smaller = min((x["hwm"] for x in (tf, pt) if x["hwm"]), default=None)
    cheaper = min((x["cpu"] for x in (tf, pt) if x["cpu"]), default=None)
    half, pieces = best.get("half", {}), best.get("pieces", {})
    half_text = "fails" if "failed" in half else ratio(half.get("ms"), own["ms"])
    pieces_text = "fails" if "failed" in pieces else ratio(pieces.get("ms", 0) / 8, own["ms"])
    if own["ms"] is None:
        return f"| {name} | {batch} | not run: {best['memfit'].get('failed')} |"
    def n(x, scale=1.0, digits=0):
        return f"{x / scale:.{digits}f}" if x else "-"
    d = 2 if own["ms"] < 10 else 0
    return (f"| {name} | {batch} | {n(own['ms'], 1, d)} | {n(tf['ms'], 1, d)} | {n(pt['ms'], 1, d)} | **{ratio(own['ms'], faster)}** | {time_goal} |"
            f" {ratio(own['cpu'], cheaper)} | {n(own['hwm'], 2**20)} | {n(tf['hwm'], 2**20)} | {n(pt['hwm'], 2**20)} | **{ratio(own['hwm'], smaller)}** |"
            f" {memory_goal} | {best['limit'] / 2**20:.0f} | {half_text} | {pieces_text} | {start_text(best)} |")


def start_text(best):
    """From the program's start until the first step begins, and until it has ended."""
    first = best["start"].get("first")
    return f"{first - best['start']['ms'] * 1e-3:.2f}, {first:.2f}" if first else "-"


HEAD = """| model | batch | memfit ms | TensorFlow ms | PyTorch ms | step / faster | goal | processor / cheaper | memfit MiB | TensorFlow MiB | PyTorch MiB | memory / smaller | goal | half-way limit MiB | its time (goal 1.35) | 8 pieces, per sample (goal 1.10) | start to first step, to its end, s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("memfit")
    p.add_argument("names", nargs="*", help="models, as --models")
    p.add_argument("--models", default="", help="comma-separated; all when left out")
    p.add_argument("--peers", default="tensorflow,torch")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--quick", action="store_true", help="one round")
    p.add_argument("--folder", help="where the models are kept; made there when missing")
    p.add_argument("--threads", default="2", help="of each; 1 compares processor time best on a busy machine")
    p.add_argument("--only-steps", action="store_true", help="without the half-way limit and the pieces")
    options = p.parse_args()
    global THREADS
    THREADS = options.threads
    options.peers = options.peers.split(",")
    options.rounds = 1 if options.quick else options.rounds
    names = [n for n in options.models.split(",") if n] or options.names or list(MODELS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        missing = [n for n in names if not os.path.exists(os.path.join(folder, n + ".keras"))]
        if missing:
            subprocess.run([sys.executable, os.path.join(HERE, "make_train_models.py"), folder, *missing], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        print(HEAD, flush=True)
        for name in names:
            best = measure(options.memfit, name, os.path.join(folder, name + ".keras"), options)
            print(row(name, best), flush=True)
            for key in ("half", "pieces"):
                if "failed" in best.get(key, {}):
                    print(f"{name}, {key}: {best[key]['failed']}", file=sys.stderr)


main()
