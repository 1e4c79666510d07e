#!/usr/bin/env python3
"""Trains models inside falling limits and looks at what happened:

    python tools/sweep_budgets.py build/memfit FOLDER [--limits 20] [--passes 3] [--batch N] [--state FILE] [MODEL ...]

FOLDER holds NAME.keras or NAME.json (tools/sweep_budgets.py --make FOLDER writes the usual ones, with Keras). For each
model `memfit train` runs a few steps on synthetic data at limits spread evenly from the least that fits to what it
takes without a limit. Per run: the measured peak (RssAnon + RssShmem sampled by the process itself and, from outside,
by this script) is at most the limit, allocations_in_steps is 0, arena used = arena planned. Per model: more memory is
never slower, and where `memfit plan` at the middle limit suggests several ways that fit, their predicted order is the
measured one (ratios to the first are printed).

Time is processor time (step_cpu_ms, the median of a process's steps), one thread bound to one processor: being preempted or
stopped does not count, only what neighbours do to caches and memory, and that comes and goes by the second. So in each pass a
process for every plan and every suggestion, some plans twice, take turns of 0.1 s in random order: whatever slows the
machine slows all of them alike. (Tried and dropped: turns of five whole steps. A process then has few of them, and what
happened to happen meanwhile is its figure: the spread of one plan doubled.) A plan's figure is its mean, relative to all others of
its pass, over the passes. The noise is measured, from how far the same plan's values lie apart, in two ways: how far two runs of
one plan differ, 19 times in 20 (nobody could tell a step back within that from chance), and how far the slowest of so many identical
plans would come out behind the fastest in these means (a step back within that is not even known to be one). --state FILE
keeps everything, so that passes can be added later.

Exit status: the number of models that fail.
"""
import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time

# name: (batch, steps of one run)
MODELS = {"s1": (32, 20000), "s9_small": (16, 8), "digits": (64, 4), "resnet50": (8, 4), "mobilenetv2": (8, 16), "lstm": (16, 80),
          "transformer": (8, 60), "unet": (8, 12), "gru_text": (16, 60), "dense_blocks": (8, 16), "conv1d": (16, 40)}
NOISE = 1.10
ASKED = ("--gradient-accumulation", "--recompute", "--batch-size", "--precision", "--optimizer")  # suggestions that are options
PREFERENCE = 1.10  # by so much a bitwise plan may be slower than a reordered one and is still chosen (src/plan/fit/choose.c)


def make(folder):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    L = keras.layers

    def conv(x, n):
        return L.Conv2D(n, 3, padding="same", activation="relu")(L.Conv2D(n, 3, padding="same", activation="relu")(x))

    def s1():
        return keras.Sequential([keras.Input((10,)), L.Dense(10, activation="relu"), L.Dense(2)])

    def s9_small():
        return keras.Sequential([keras.Input((64, 64, 3)), L.Conv2D(64, 3, padding="same", activation="relu"), L.MaxPooling2D(),
                                 L.Conv2D(128, 3, padding="same", activation="relu"), L.GlobalAveragePooling2D(),
                                 L.Dense(10, activation="softmax")])

    def digits():
        i = keras.Input((32, 32, 1))
        x = L.GlobalAveragePooling2D()(conv(L.MaxPooling2D()(conv(L.Rescaling(1 / 255.0)(i), 64)), 128))
        return keras.Model(i, L.Dense(10, activation="softmax")(x))

    def resnet50():
        return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)

    def mobilenetv2():
        return keras.applications.MobileNetV2(weights=None, input_shape=(96, 96, 3), classes=10)

    def lstm():
        return keras.Sequential([keras.Input((50, 32)), L.LSTM(64, return_sequences=True), L.LSTM(64), L.Dense(10)])

    def transformer():
        x = i = keras.Input((64, 64))
        for _ in range(4):
            x = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(4, 16)(x, x)]))
            x = L.LayerNormalization()(L.Add()([x, L.Dense(64)(L.Dense(256, activation="gelu")(x))]))
        return keras.Model(i, L.Dense(10)(L.GlobalAveragePooling1D()(x)))

    def unet():
        x = i = keras.Input((64, 64, 3))
        skips = []
        for n in (16, 32, 64):
            x = conv(x, n)
            skips.append(x)
            x = L.MaxPooling2D()(x)
        x = conv(x, 128)
        for n in (64, 32, 16):
            x = conv(L.Concatenate()([skips.pop(), L.Conv2DTranspose(n, 2, strides=2)(x)]), n)
        return keras.Model(i, L.Conv2D(1, 1, activation="sigmoid")(x))

    def gru_text():
        return keras.Sequential([keras.Input((60,), dtype="int32"), L.Embedding(500, 48), L.GRU(64, return_sequences=True),
                                 L.GRU(48), L.Dense(32, activation="relu"), L.Dense(10)])

    def dense_blocks():
        x = i = keras.Input((48, 48, 3))
        x = L.Conv2D(24, 3, padding="same")(x)
        for block in range(3):
            for _ in range(5):
                y = L.Conv2D(48, 1)(L.Activation("relu")(L.BatchNormalization()(x)))
                y = L.Conv2D(12, 3, padding="same")(L.Activation("relu")(L.BatchNormalization()(y)))
                x = L.Concatenate()([x, y])
            if block < 2:
                x = L.AveragePooling2D(2)(L.Conv2D(x.shape[-1] // 2, 1)(L.Activation("relu")(L.BatchNormalization()(x))))
        return keras.Model(i, L.Dense(10)(L.GlobalAveragePooling2D()(x)))

    def conv1d():
        x = i = keras.Input((512, 8))
        for n in (32, 64, 64, 128):
            x = L.LayerNormalization()(L.Conv1D(n, 5, padding="same", activation="relu")(x))
            x = L.MaxPooling1D()(L.Conv1D(n, 5, padding="same", activation="relu")(x))
        return keras.Model(i, L.Dense(10)(L.GlobalAveragePooling1D()(x)))

    os.makedirs(folder, exist_ok=True)
    for f in (s1, s9_small, digits, resnet50, mobilenetv2, lstm, transformer, unet, gru_text, dense_blocks, conv1d):
        m = f()
        m.compile("adam", "mse")
        m.save(os.path.join(folder, f.__name__ + ".keras"))


def outside(pid):
    """RssAnon + RssShmem of a process, or 0."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return sum(int(l.split()[1]) << 10 for l in f if l.startswith(("RssAnon", "RssShmem")))
    except OSError:
        return 0


def command(a, path, batch, steps, *more):
    more = list(more)
    if "--batch-size" in more:
        batch = int(more.pop(more.index("--batch-size") + 1))
        more.remove("--batch-size")
    once = min(steps, 100)  # more samples would take memory: their order is kept
    return [a.program, "train", path, "--data", f"synthetic:{batch * once}", "--epochs", str(-(-steps // once)), "--batch-size", str(batch),
            "--json", "--quiet", *more, *a.more]


def start(a, words):
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, {a.cpu}) if a.cpu >= 0 else None)


def finish(p, words):
    """Its result; None when it does not fit."""
    out, err = p.communicate()
    if p.returncode == 3:
        return None
    if p.returncode:
        sys.exit(f"{' '.join(words)}: exit status {p.returncode}: {err}")
    return json.loads(out)


def train(a, path, batch, steps, *more):
    """The result of one run with the largest size seen from outside; None when it does not fit."""
    words, seen = command(a, path, batch, steps, *more), 0
    p = start(a, words)
    while p.poll() is None:
        seen = max(seen, outside(p.pid))
        time.sleep(a.look)
    r = finish(p, words)
    return r and dict(r, seen_outside=seen)


def least(a, path, batch, most):
    """The smallest limit that fits, to 2 %, by trying."""
    low, high = 1 << 20, most
    while high - low > max(high // 50, 65536):
        middle = (low + high) // 2
        if train(a, path, batch, 1, "--memory", str(middle)):
            high = middle
        else:
            low = middle
    return high


def ways_of(a, path, batch, limit, fixed):
    """The first three suggestions for a limit that fit and can be asked for by options: [slowdown, options, limit]. `memfit plan`
    counts more beside the arena than training then takes (`fixed`): training gets so much less, and has the room that was planned."""
    r = subprocess.run([a.program, "plan", path, "--batch-size", str(batch), "--memory", str(limit), "--gradient-accumulation",
                        "off", "--recompute", "off", "--json", *a.more], capture_output=True, text=True)
    if r.returncode not in (0, 3):
        return []
    answer, ways = json.loads(r.stdout), []
    for s in answer["suggestions"]:
        named = re.search(r"\((--[^)]*)\)", s["change"])
        options = named.group(1).replace(",", " ").split() if named else []
        if not s["fits"] or not options or options[0] not in ASKED:
            continue
        if "--recompute" not in options:
            options += ["--recompute", "auto" if "with recomputation" in s["change"] else "off"]
        if "--gradient-accumulation" not in options:
            options += ["--gradient-accumulation", "off"]
        room = limit - max(0, answer["fixed_bytes"] - fixed)
        fits = train(a, path, batch, 1, "--memory", str(room), "--allow-changed-numerics", *options)
        ways.append([s["slowdown"], options, room if fits else limit])
    return ways[:3]


def find_limits(a, path, batch):
    """What does not depend on the load of the machine: the limits, and the suggestions at the middle one."""
    free = train(a, path, batch, 1)
    most = free["planned_peak_bytes"] + (128 << 10)  # the fixed cost varies by some pages from run to run
    low = least(a, path, batch, most) + (128 << 10)
    most = max(most, low + (64 << 10))
    limits = [low + (most - low) * i // max(a.limits - 1, 1) for i in range(a.limits)]
    ways = [] if a.no_order else ways_of(a, path, batch, limits[len(limits) // 2], free["fixed_bytes"])
    return {"low": low, "most": most, "limits": limits, "rows": {}, "wrong": [], "ways": ways, "passes": []}


def one_limit(a, path, batch, steps, limit, state):
    """Bytes: a run at a limit, looked at from outside."""
    r = train(a, path, batch, steps, "--memory", str(limit))
    wrong = state["wrong"]
    if not r:
        wrong.append(f"{limit} does not fit, {state['low']} did")
        return
    peak = max(r["measured_peak_bytes"], r["seen_outside"])
    if peak > limit:
        wrong.append(f"{peak} bytes inside {limit}")
    if r["planned_peak_bytes"] > limit:
        wrong.append(f"planned {r['planned_peak_bytes']} inside {limit}")
    if r["allocations_in_steps"]:
        wrong.append(f"{r['allocations_in_steps']} allocations")
    if r["arena_used_bytes"] != r["arena_bytes"]:
        wrong.append("arena used is not arena planned")
    state["rows"][str(limit)] = dict({k: r[k] for k in ("planned_step_ms", "pieces", "recomputed_ops", "numerics")},
                                     ms=r["step_cpu_ms"] or r["step_ms"], margin=(limit - peak) / limit)


def plan_of(r):
    return f"{r['pieces']}, {r['recomputed_ops']}, {r['planned_step_ms']:.6f}"


def together(a, path, batch, state):
    """Times: one pass. A process for every plan and every suggestion, some twice, all on one processor; one runs at a time, for a
    short while, then another, in any order. Whatever slows the machine for a second slows all of them alike."""
    rows, middle, jobs = state["rows"], state["limits"][len(state["limits"]) // 2], {}
    for limit, r in rows.items():
        jobs[plan_of(r)] = ["--memory", limit], r["ms"]
    if len(state["ways"]) > 1:
        for w in state["ways"]:
            jobs["way " + " ".join(w[1])] = ["--memory", str(w[2]), "--allow-changed-numerics", *w[1]], rows[str(middle)]["ms"]
    names = list(jobs) + a.rng.sample(list(jobs), min(3, len(jobs)))
    words = [command(a, path, batch, max(3, int(1 + a.each * 1000 / jobs[n][1])), *jobs[n][0]) for n in names]
    running, result = {}, {}
    try:
        for i, w in enumerate(words):
            running[i] = start(a, w)
            running[i].send_signal(signal.SIGSTOP)
        while running:
            for i in a.rng.sample(list(running), len(running)):
                if slice_of(running[i], a.slice):
                    r = finish(running.pop(i), words[i])
                    if r:
                        # The fixed cost varies by some pages: near the border of two plans it may have been the other one.
                        name = names[i] if names[i].startswith("way ") else plan_of(r)
                        a_batch = batch / r["batch"]  # a suggested smaller batch: as much time as the samples of the whole one take
                        result.setdefault(name, []).append((r["step_cpu_ms"] or r["step_ms"]) * a_batch)
                        state.setdefault("ran", {}).setdefault(names[i], []).append(name)
                    else:
                        state["wrong"].append(f"does not fit: {' '.join(words[i])}")
    finally:
        for p in running.values():
            p.kill()
    state["passes"].append(result)


def slice_of(p, seconds):
    """Lets a process run until it has had so much processor time; true when it has ended."""
    def had():
        try:
            with open(f"/proc/{p.pid}/schedstat") as f:
                return int(f.read().split()[0])
        except (OSError, IndexError):
            return 0
    until = had() + seconds * 1e9
    p.send_signal(signal.SIGCONT)
    while p.poll() is None and had() < until:
        time.sleep(0.002)
    if p.poll() is None:
        p.send_signal(signal.SIGSTOP)
    return p.poll() is not None


def figures(state):
    """The time of each plan and suggestion relative to all others, from all passes: {name: ratio}; how far the slowest of so
    many identical plans would come out behind the fastest, 19 times in 20; the standard deviation of one plan's values."""
    values = {}
    for one in state["passes"]:
        level = statistics.fmean(math.log(statistics.fmean(v)) for v in one.values())
        for name, times in one.items():
            values.setdefault(name, []).extend(math.log(t) - level for t in times)
    if not values:
        return {}, NOISE, 0
    mean = {name: statistics.fmean(v) for name, v in values.items()}
    squares = sum((x - mean[n]) ** 2 for n, v in values.items() for x in v)
    spread = math.sqrt(squares / max(1, sum(len(v) - 1 for v in values.values())))
    rng, ranges = random.Random(1), []
    for _ in range(2000):
        drawn = [rng.gauss(0, spread / math.sqrt(len(v))) for v in values.values()]
        ranges.append(max(drawn) - min(drawn))
    return {n: math.exp(m) for n, m in mean.items()}, math.exp(sorted(ranges)[1900]), spread


def time_at(state, time_of, row):
    """Of a limit: the mean of the plans that ran there. 0: none did."""
    ran = [time_of[n] for n in state.get("ran", {}).get(plan_of(row), [plan_of(row)]) if n in time_of]
    return statistics.fmean(ran) if ran else 0


def two_runs(spread):
    return math.exp(1.96 * math.sqrt(2) * spread)


def judge(state):
    """What is wrong with a model's figures; how much slower a larger limit was than a smaller one."""
    wrong, rows, after = list(state["wrong"]), state["rows"], 0
    order = sorted(rows, key=int)
    for limit in reversed(order):  # from the largest limit down: never faster than with more memory
        # A bitwise plan is preferred to a reordered one that is a little faster: 10 % are allowed for that.
        if rows[limit]["planned_step_ms"] < after * 0.9:
            wrong.append(f"predicted faster at {limit} than with more memory")
        after = max(after, rows[limit]["planned_step_ms"])
    time_of, noise, spread = figures(state)
    noise = max(noise, two_runs(spread))
    worst, preferring = 1.0, 1.0
    for i, x in enumerate(order):
        for y in order[:i]:
            more, less = rows[x], rows[y]
            slower, faster = time_at(state, time_of, more), time_at(state, time_of, less)
            if not slower or not faster:
                continue
            back = slower / faster
            if more["numerics"] == "bitwise" and less["numerics"] != "bitwise":
                preferring = max(preferring, back)
            else:
                worst = max(worst, back)
    if worst > noise or preferring > noise * PREFERENCE:
        wrong.append(f"more memory was {max(worst, preferring):.3f} times slower")
    ways = [(w[0], time_of["way " + " ".join(w[1])]) for w in state["ways"] if "way " + " ".join(w[1]) in time_of]
    if not all(x[1] <= y[1] * noise for x in ways for y in ways if x[0] <= y[0]):
        wrong.append("suggestions come in another order")
    return wrong, worst, preferring


def row(a, name, batch, state):
    wrong, worst, preferring = judge(state)
    rows, ways = state["rows"], state["ways"]
    time_of, noise, spread = figures(state)
    order = sorted(rows, key=int)
    first, last = rows[order[0]], rows[order[-1]]
    whole = time_at(state, time_of, last) or 1
    of_way = [time_of.get("way " + " ".join(w[1]), 0) for w in ways]
    said = "-"
    if len(ways) > 1 and all(of_way):
        said = f"{', '.join(f'{w[0]:.2f}' for w in ways)} / {', '.join(f'{t / whole:.2f}' for t in of_way)}"
    print(f"| {name}, {batch} | {state['low'] / 2**20:.2f} | {state['most'] / 2**20:.2f} | {len(rows)}, {len({plan_of(r) for r in rows.values()})} "
          f"| {min(r['margin'] for r in rows.values()):.1%} | {first['pieces']}, {first['recomputed_ops']} "
          f"| {first['planned_step_ms'] / last['planned_step_ms']:.2f} / {time_at(state, time_of, first) / whole:.2f} "
          f"| {len(state['passes'])} of {spread:.1%} | {two_runs(spread):.3f}, {noise:.3f} | {worst:.3f}, {preferring:.3f} "
          f"| {said} | {'; '.join(sorted(set(wrong))[:4]) or 'holds'} |", flush=True)
    if a.list:
        for limit in order:
            r = rows[limit]
            print(f"  {int(limit) / 2**20:9.2f} MiB  pieces {r['pieces']:3d} recomputed {r['recomputed_ops']:3d} {r['numerics']:9s} "
                  f"planned {r['planned_step_ms'] / last['planned_step_ms']:.3f} measured {time_at(state, time_of, r) / whole:.3f}")
        for w, t in zip(ways, of_way):
            print(f"  {' '.join(w[1])}: planned {w[0]:.3f} measured {t / whole:.3f}")
    return bool(wrong)


def sweep(a, name, states, until):
    path = next((os.path.join(a.folder, name + e) for e in (".keras", ".json") if os.path.exists(os.path.join(a.folder, name + e))), None)
    if not path:
        sys.exit(f"{a.folder} has no {name}")
    batch, steps = MODELS.get(name, (150, 2))
    batch, steps = a.batch or batch, a.steps or steps
    if name not in states:
        states[name] = find_limits(a, path, batch)
        save(a, states)
    state = states[name]
    for limit in state["limits"]:
        if str(limit) not in state["rows"]:
            one_limit(a, path, batch, steps, limit, state)
    save(a, states)
    if a.forget_times:
        state["passes"] = []
    done, longest = 0, 0
    while done < a.passes:
        began = time.time()
        if until and began + longest * 1.1 > until:
            break
        together(a, path, batch, state)
        longest = max(longest, time.time() - began)
        done += 1
        save(a, states)
    bad = row(a, name, batch, state)
    print(f"{name}: {done} passes of {longest:.0f} s", file=sys.stderr)
    return bad


def save(a, states):
    if a.state:
        with open(a.state, "w") as f:
            json.dump(states, f, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="build/memfit, or --make")
    parser.add_argument("folder")
    parser.add_argument("model", nargs="*", default=list(MODELS))
    parser.add_argument("--limits", type=int, default=20)
    parser.add_argument("--passes", type=int, default=3, help="of the times")
    parser.add_argument("--each", type=float, default=2, help="seconds of steps of each process of a pass")
    parser.add_argument("--slice", type=float, default=0.1, help="seconds a process runs before the next")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--more", default="--threads 1", help="more options for memfit train, as one word (--threads 1)")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="the processor to run on; -1: any")
    parser.add_argument("--seed", type=int, default=1, help="of the order within rounds")
    parser.add_argument("--list", action="store_true", help="every limit's plan, predicted and measured")
    parser.add_argument("--state", help="keeps the times of all runs from call to call")
    parser.add_argument("--seconds", type=float, help="start no pass that would not end within this time")
    parser.add_argument("--forget-times", action="store_true", help="of the state, and measure again")
    parser.add_argument("--look", type=float, default=0.002, help="seconds between two looks at the process from outside; they disturb times")
    parser.add_argument("--no-order", action="store_true", help="leave the order of suggestions out")
    if sys.argv[1:2] == ["--make"]:
        return make(sys.argv[2])
    a = parser.parse_intermixed_args()
    a.more, a.rng = a.more.split(), random.Random(a.seed)
    print("| model, batch | least MiB | without a limit MiB | limits, plans | nearest to its limit | pieces, recomputed at the least | time at the least: predicted / measured "
          "| passes | noise: two runs, these means | worst step back | suggestions: predicted / measured | |\n|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    states = {}
    if a.state and os.path.exists(a.state):
        with open(a.state) as f:
            states = json.load(f)
    until = time.time() + a.seconds if a.seconds else None
    return sum(sweep(a, name, states, until) for name in a.model)


sys.exit(main())
