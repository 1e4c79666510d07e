#!/usr/bin/env python3
"""Training speed and memory beside TensorFlow and PyTorch, in one run: bench_train.py BUILD/memfit [MODEL...]

Needs Python with Keras, TensorFlow and PyTorch (never a dependency of memfit itself). For each model the peers are started
once and wait; then rounds go in turns: memfit (a process of its own), each peer, and memfit again under a limit half-way
between its lower bound and its unconstrained peak, and with eight times the batch in 8 pieces. Of each the best round
counts; step times are medians within a round. Processor times (user + system, all threads) are beside them, since they say
more on a machine that is not idle. Memory is VmHWM for all three, unconstrained. A peer with more than one setting is tried
in each, and its best counts.

Everything takes about eleven minutes on two idle cores. Where the machine is idle for shorter times only, take one thing
at a time and collect in a file, which is read first and written at the end; the table shows all that it holds:

    bench_train.py BUILD/memfit vgg16 --measure steps --rounds 1 --save figures.json
    bench_train.py BUILD/memfit vgg16 --measure half,pieces --peers none --save figures.json
    bench_train.py BUILD/memfit --measure none --save figures.json               # the table alone
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
#          name           batch steps rounds TensorFlow's settings  goals: time, memory
MODELS = {"s1":          (32,   2000, 3,    ("graph", "xla"),      0.2, 0.65),
          "s9-small":    (32,   4,    3,    ("graph",),            1.0, 0.65),
          "digits":      (256,  3,    3,    ("graph",),            1.0, 0.65),
          "resnet50":    (8,    4,    2,    ("graph",),            1.0, 0.65),
          "mobilenetv2": (16,   4,    3,    ("graph",),            1.0, 0.65),
          "vgg16":       (4,    3,    2,    ("graph",),            1.0, 0.85),
          "lstm":        (32,   12,   3,    ("graph", "xla"),      1.0, 0.65),
          "transformer": (16,   8,    3,    ("graph", "xla"),      1.0, 0.65)}
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


def watch(pid, seen):
    """VmHWM and processor seconds of a process, read until it ends: both only grow, so the last reading is nearly the end's."""
    try:
        while True:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            seen["cpu"].append((time.perf_counter(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")))
            with open(f"/proc/{pid}/status") as f:
                seen["hwm"] = max([seen["hwm"]] + [int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM")])
            time.sleep(LOOK_EVERY)
    except (OSError, ValueError, IndexError):
        pass


def train(memfit, path, batch, steps, *more):
    """One memfit process: its figures, with processor time and VmHWM from outside; or why it failed."""
    began, seen = time.perf_counter(), {"cpu": [], "hwm": 0}
    p = subprocess.Popen([memfit, "train", path, "--data", f"synthetic:{batch}", "--batch-size", str(batch), "--epochs", str(steps), "--threads", THREADS,
                          "--json", "--quiet", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watcher = threading.Thread(target=watch, args=(p.pid, seen))
    watcher.start()
    out, message = p.communicate()
    watcher.join()
    if p.returncode:
        return {"failed": f"exit {p.returncode}: {message.strip().splitlines()[0] if message.strip() else ''}"}
    r = json.loads(out)
    # Processor time of the steps after the first one: what populating and giving back the arena took is no part of it.
    from_here, to_here = began + r["first_step_seconds"], began + r["first_step_seconds"] + (steps - 1) * r["step_ms"] * 1e-3
    part = [c for t, c in seen["cpu"] if from_here <= t <= to_here]
    cpu = 1e3 * (part[-1] - part[0]) / (steps - 1) if steps > 1 and len(part) > 20 else None
    return {"ms": r["step_ms"], "cpu": cpu, "hwm": seen["hwm"], "first": r["first_step_seconds"],
            "how": f"{r['pieces']} pieces, {r['recomputed_ops']} recomputed"}


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
            b[field] = min(r[field], b.get(field) or r[field])
    b["hwm"] = max(b["hwm"], r["hwm"])


def start_peers(name, path, options, parameters):
    batch, _, _, settings, _, _ = MODELS[name]
    peers = {}
    for kind, setting in [("tensorflow", s) for s in settings] + [("torch", "eager")]:
        if kind not in options.peers:
            continue
        peer = start_peer(kind, name, path, batch, setting)
        try:
            ready = json.loads(peer.stdout.readline())
            peers[f"{kind} {setting}"] = peer
            if kind == "tensorflow" or name != "lstm":  # PyTorch's LSTM has a second bias
                assert ready["parameters"] == parameters, (kind, ready["parameters"], parameters)
        except ValueError:
            print(f"{name}: {kind} did not start", file=sys.stderr)
    return peers


def measure(memfit, name, path, options, best):
    batch, steps, rounds, _, _, _ = MODELS[name]
    plan = json.loads(subprocess.run([memfit, "plan", path, "--batch-size", str(batch), "--threads", THREADS, "--json"], capture_output=True, text=True,
                                     check=True).stdout)
    half = ["--memory", str((plan["lower_bound_bytes"] + plan["peak_bytes"]) // 2)]
    pieces = ["--gradient-accumulation", "8"] + (["--allow-changed-numerics"] if name in NORMALIZED else [])
    best["limit"] = int(half[1])
    peers = start_peers(name, path, options, plan["model"]["parameters"]) if "steps" in options.measure else {}
    for i in range(options.rounds or rounds):
        keep(best, "memfit", train(memfit, path, batch, steps + 1))
        for key, peer in peers.items():
            keep(best, key, ask(peer, steps))
        if i > 1:
            continue
        if "half" in options.measure:
            keep(best, "half", train(memfit, path, batch, min(steps, 400 if name == "s1" else 3) + 1, *half))
        if "pieces" in options.measure:
            keep(best, "pieces", train(memfit, path, 8 * batch, 1 if name != "s1" else 400, *pieces))
    for peer in peers.values():
        peer.stdin.close()
        peer.wait()


def ratio(a, b):
    return f"{a / b:.2f}" if a and b else "-"


def row(name, best):
    batch, _, _, _, time_goal, memory_goal = MODELS[name]
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
        return f"| {name} | {batch} | not run: {best.get('memfit', {}).get('failed')} |"
    def n(x, scale=1.0, digits=0):
        return f"{x / scale:.{digits}f}" if x else "-"
    d = 3 if own["ms"] < 1 else 0
    return (f"| {name} | {batch} | {n(own['ms'], 1, d)} | {n(tf['ms'], 1, d)} | {n(pt['ms'], 1, d)} | **{ratio(own['ms'], faster)}** | {time_goal} |"
            f" {ratio(own['cpu'], cheaper)} | {n(own['hwm'], 2**20)} | {n(tf['hwm'], 2**20)} | {n(pt['hwm'], 2**20)} | **{ratio(own['hwm'], smaller)}** |"
            f" {memory_goal} | {best['limit'] / 2**20:.0f} | {half_text} | {pieces_text} | {start_text(best)} |")


def start_text(best):
    """From the program's start until the first step begins, and until it has ended."""
    own = best["memfit"]
    return f"{own['first'] - own['ms'] * 1e-3:.2f}, {own['first']:.2f}" if own.get("first") else "-"


HEAD = """| model | batch | memfit ms | TensorFlow ms | PyTorch ms | step / faster | goal | processor / cheaper | memfit MiB | TensorFlow MiB | PyTorch MiB | memory / smaller | goal | half-way limit MiB | its time (goal 1.35) | 8 pieces, per sample (goal 1.10) | start to first step, to its end, s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def make_models(folder, names):
    missing = [n for n in names if not os.path.exists(os.path.join(folder, n + ".keras"))]
    if missing:
        subprocess.run([sys.executable, os.path.join(HERE, "make_train_models.py"), folder, *missing], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("memfit")
    p.add_argument("names", nargs="*", help="models, as --models")
    p.add_argument("--models", default="", help="comma-separated; all when left out")
    p.add_argument("--measure", default="steps,half,pieces", help="which of these; the step unconstrained is always taken, none: nothing")
    p.add_argument("--peers", default="tensorflow,torch", help="none: without")
    p.add_argument("--rounds", type=int, default=0, help="instead of each model's own number")
    p.add_argument("--quick", action="store_true", help="one round")
    p.add_argument("--folder", help="where the models are kept; made there when missing")
    p.add_argument("--threads", default="2", help="of each; 1 compares processor time best on a busy machine")
    p.add_argument("--save", help="a file of figures to read first, better and write")
    options = p.parse_intermixed_args()
    global THREADS
    THREADS = options.threads
    options.peers, options.measure = options.peers.split(","), options.measure.split(",")
    options.rounds = 1 if options.quick else options.rounds
    names = [n for n in options.models.split(",") if n] or options.names or list(MODELS)
    figures = {}
    if options.save and os.path.exists(options.save):
        with open(options.save) as f:
            figures = json.load(f)
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        if options.measure != ["none"]:
            make_models(folder, names)
        for name in names:
            best = figures.setdefault(name, {})
            if options.measure != ["none"]:
                measure(options.memfit, name, os.path.join(folder, name + ".keras"), options, best)
            if "limit" in best:
                print(row(name, best), flush=True)
            for key in ("half", "pieces"):
                if "failed" in best.get(key, {}):
                    print(f"{name}, {key}: {best[key]['failed']}", file=sys.stderr)
            if options.save:
                with open(options.save + ".new", "w") as f:
                    json.dump(figures, f, indent=1)
                os.replace(options.save + ".new", options.save)


main()
