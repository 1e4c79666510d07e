#!/usr/bin/env python3
"""Trains models inside falling limits and looks at what happened:

    python tools/sweep_budgets.py build/memfit FOLDER [--limits 20] [--rounds 3] [--batch N] [--state FILE] [MODEL ...]

FOLDER holds NAME.keras or NAME.json (tools/sweep_budgets.py --make FOLDER writes the usual ones, with Keras). For each
model `memfit train` runs a few steps on synthetic data at limits spread evenly from the least that fits to what it
takes without a limit. Per run: the measured peak (RssAnon + RssShmem sampled by the process itself and, from outside,
by this script) is at most the limit, allocations_in_steps is 0, arena used = arena planned. Per model: more memory is
never slower, and where `memfit plan` at the middle limit suggests several ways that fit, their predicted order is the
measured one (ratios to the first are printed).

Time is processor time (step_cpu_ms: the median of a run's steps), one thread bound to one processor: being preempted or
stopped does not count, only what neighbours do to caches and memory. The first round runs every limit, each further round
every plan and every suggestion once, in random order; a plan's figure is the lower quartile over the rounds. The noise is
measured: the figures of the same plan from odd and from even rounds differ by less than it, 19 times in 20. A step back
within it says nothing. --state FILE keeps all times, so that rounds can be run in parts (--rounds 4 --seconds 100).

Exit status: the number of models that fail.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import time

# name: (batch, steps of one run)
MODELS = {"s1": (32, 20000), "s9_small": (16, 8), "digits": (64, 4), "resnet50": (8, 4), "mobilenetv2": (8, 16), "lstm": (16, 80),
          "transformer": (8, 60), "unet": (8, 12), "gru_text": (16, 60), "dense_blocks": (8, 16), "conv1d": (16, 40)}
NOISE = 1.10
PREFERENCE = 1.10  # by so much a bitwise plan may be slower than a reordered one and is still chosen (src/plan/choose.c)


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


def train(a, path, batch, steps, *more):
    """The result of one run with the largest size seen from outside; None when it does not fit."""
    once = min(steps, 100)  # more samples would take memory: their order is kept
    p = subprocess.Popen([a.program, "train", path, "--data", f"synthetic:{batch * once}", "--epochs", str(steps // once), "--batch-size",
                          str(batch), "--json", "--quiet", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         preexec_fn=lambda: os.sched_setaffinity(0, {a.cpu}) if a.cpu >= 0 else None)
    seen = 0
    while p.poll() is None:
        seen = max(seen, outside(p.pid))
        time.sleep(a.look)
    out, err = p.communicate()
    if p.returncode == 3:
        return None
    if p.returncode:
        sys.exit(f"{path} {' '.join(more)}: exit status {p.returncode}: {err}")
    r = json.loads(out)
    r["seen_outside"] = seen
    return r


def least(a, path, batch, most):
    """The smallest limit that fits, to 2 %, by trying."""
    low, high = 1 << 20, most
    while high - low > max(high // 50, 65536):
        middle = (low + high) // 2
        if train(a, path, batch, 1, "--memory", str(middle), *a.more):
            high = middle
        else:
            low = middle
    return high


def ways_of(a, path, batch, limit):
    """The first three suggestions for a limit that fit and can be asked for by options: [slowdown, options]."""
    r = subprocess.run([a.program, "plan", path, "--batch-size", str(batch), "--memory", str(limit), "--gradient-accumulation",
                        "off", "--recompute", "off", "--json", *a.more], capture_output=True, text=True)
    if r.returncode not in (0, 3):
        return []
    ways = []
    for s in json.loads(r.stdout)["suggestions"]:
        named = re.search(r"\((--[^)]*)\)", s["change"])
        options = named.group(1).replace(",", " ").split() if named else []
        if s["fits"] and options and options[0].startswith(("--gradient-accumulation", "--recompute")):
            if "--recompute" not in options:
                options += ["--recompute", "auto" if "with recomputation" in s["change"] else "off"]
            if "--gradient-accumulation" not in options:
                options += ["--gradient-accumulation", "off"]
            ways.append([s["slowdown"], options])
    return ways[:3]


def find_limits(a, path, batch):
    """What does not depend on the load of the machine: the limits, and the suggestions at the middle one."""
    free = train(a, path, batch, 1, *a.more)
    most = free["planned_peak_bytes"] + (128 << 10)  # the fixed cost varies by some pages from run to run
    low = least(a, path, batch, most) + (32 << 10)
    most = max(most, low + (64 << 10))
    limits = [low + (most - low) * i // max(a.limits - 1, 1) for i in range(a.limits)]
    ways = [] if a.no_order else ways_of(a, path, batch, limits[len(limits) // 2])
    return {"low": low, "most": most, "limits": limits, "rows": {}, "wrong": [], "ways": [w + [[]] for w in ways]}


def one_limit(a, path, batch, steps, limit, state):
    r = train(a, path, batch, steps, "--memory", str(limit), *a.more)
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
    old = state["rows"].setdefault(str(limit), {"margin": 1, "times": []})
    old.update({k: r[k] for k in ("planned_step_ms", "pieces", "recomputed_ops", "numerics")})
    old["margin"] = min(old["margin"], (limit - peak) / limit)
    old["times"].append(time_of(r))


def one_way(a, path, batch, steps, way, state):
    limit = state["limits"][len(state["limits"]) // 2]
    r = train(a, path, batch, steps, "--memory", str(limit), "--allow-changed-numerics", *way[1], *a.more)
    if not r:
        state["wrong"].append(f"suggested, but does not fit: {' '.join(way[1])}")
    else:
        way[2].append(time_of(r))


def time_of(r):
    return r["step_cpu_ms"] or r["step_ms"]  # steps of microseconds have no processor time of their own


def plan_of(r):
    return r["pieces"], r["recomputed_ops"], round(r["planned_step_ms"], 6)


def figure(times):
    """Disturbances only ever slow a step down: the lower quartile of the rounds."""
    return sorted(times)[(len(times) - 1) // 4]


def times_of_plans(state):
    """Limits that end in the same plan share its times."""
    plans = {}
    for r in state["rows"].values():
        plans.setdefault(plan_of(r), []).extend(r["times"])
    return plans


def noise_of(state):
    """How far two figures of one and the same plan are apart: odd rounds against even ones, for each plan and suggestion; 19 of
    20 of these ratios are below what is returned."""
    apart = []
    for times in list(times_of_plans(state).values()) + [w[2] for w in state["ways"]]:
        if len(times) >= 4:
            x, y = figure(times[::2]), figure(times[1::2])
            apart.append(max(x, y) / min(x, y))
    return sorted(apart)[(len(apart) - 1) * 19 // 20] if apart else NOISE


def judge(state):
    """What is wrong with a model's figures; how much slower a larger limit was than a smaller one; the noise."""
    wrong, rows, after = list(state["wrong"]), state["rows"], 0
    order = sorted(rows, key=int)
    for limit in reversed(order):  # from the largest limit down: never faster than with more memory
        # A bitwise plan is preferred to a reordered one that is a little faster: 10 % are allowed for that.
        if rows[limit]["planned_step_ms"] < after * 0.9:
            wrong.append(f"predicted faster at {limit} than with more memory")
        after = max(after, rows[limit]["planned_step_ms"])
    best = {plan: figure(times) for plan, times in times_of_plans(state).items()}
    noise, worst = noise_of(state), 1.0
    for i, x in enumerate(order):
        for y in order[:i]:
            more, less = rows[x], rows[y]
            preferred = more["numerics"] == "bitwise" and less["numerics"] != "bitwise"
            worst = max(worst, best[plan_of(more)] / best[plan_of(less)] / (PREFERENCE if preferred else 1))
    if worst > noise:
        wrong.append(f"more memory was {worst:.3f} times slower")
    ways = [(w[0], figure(w[2])) for w in state["ways"] if w[2]]
    if not all(x[1] <= y[1] * noise for x in ways for y in ways if x[0] <= y[0]):
        wrong.append("suggestions come in another order")
    return wrong, worst, noise


def row(a, name, batch, state):
    wrong, worst, noise = judge(state)
    rows, ways, plans = state["rows"], state["ways"], times_of_plans(state)
    order = sorted(rows, key=int)
    first, last = rows[order[0]], rows[order[-1]]
    least_ms, most_ms = figure(plans[plan_of(first)]), figure(plans[plan_of(last)])
    said = "-"
    if len(ways) > 1 and all(w[2] for w in ways):
        said = f"{', '.join(f'{w[0]:.2f}' for w in ways)} / {', '.join(f'{figure(w[2]) / figure(ways[0][2]):.2f}' for w in ways)}"
    print(f"| {name}, {batch} | {state['low'] / 2**20:.2f} | {state['most'] / 2**20:.2f} | {len(rows)}, {len(plans)} | {min(r['margin'] for r in rows.values()):.1%} "
          f"| {first['pieces']}, {first['recomputed_ops']} | {least_ms:.2f} / {most_ms:.2f} | {min(map(len, plans.values()))} | {noise:.3f} | {worst:.3f} "
          f"| {said} | {'; '.join(sorted(set(wrong))[:4]) or 'holds'} |", flush=True)
    if a.list:
        for limit in order:
            r = rows[limit]
            t = plans[plan_of(r)]
            print(f"  {int(limit) / 2**20:9.2f} MiB  pieces {r['pieces']:3d} recomputed {r['recomputed_ops']:3d} {r['numerics']:9s} "
                  f"planned {r['planned_step_ms'] / last['planned_step_ms']:.3f} measured {figure(t) / most_ms:.3f} ({len(t)})")
        for w in ways:
            print(f"  way {' '.join(w[1])}: {w[0]:.3f} measured {figure(w[2]) / most_ms if w[2] else 0:.3f} ({len(w[2])})")
    return bool(wrong)


def round_of(state, rng):
    """What one round runs: every limit as long as it has no figure, then one limit of every plan; every suggestion; in any order."""
    rows = state["rows"]
    limits = [x for x in state["limits"] if str(x) not in rows]
    if not limits:
        plans = {}
        for x in rows:
            plans.setdefault(plan_of(rows[x]), []).append(int(x))
        limits = [rng.choice(x) for x in plans.values()]
    todo = [(one_limit, x) for x in limits] + [(one_way, w) for w in state["ways"] if len(state["ways"]) > 1]
    rng.shuffle(todo)
    return todo


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
    if a.forget_times:
        for r in state["rows"].values():
            r["times"] = []
        for w in state["ways"]:
            w[2] = []
    done, longest = 0, 0
    while done < a.rounds:  # what slows the machine for a while slows several plans
        began = time.time()
        if until and began + longest * 1.1 > until:
            break
        for run, what in round_of(state, a.rng):
            run(a, path, batch, steps, what, state)
        longest = max(longest, time.time() - began)
        done += 1
        save(a, states)
    bad = row(a, name, batch, state) if state["rows"] else False
    print(f"{name}: {done} rounds of {longest:.0f} s", file=sys.stderr)
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--more", default="--threads 1", help="more options for memfit train, as one word (--threads 1)")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="the processor to run on; -1: any")
    parser.add_argument("--seed", type=int, default=1, help="of the order within rounds")
    parser.add_argument("--list", action="store_true", help="every limit's plan, predicted and measured")
    parser.add_argument("--state", help="keeps the times of all runs from call to call")
    parser.add_argument("--seconds", type=float, help="start no round that would not end within this time")
    parser.add_argument("--forget-times", action="store_true", help="of the state, and measure again")
    parser.add_argument("--look", type=float, default=0.002, help="seconds between two looks at the process from outside; they disturb times")
    parser.add_argument("--no-order", action="store_true", help="leave the order of suggestions out")
    if sys.argv[1:2] == ["--make"]:
        return make(sys.argv[2])
    a = parser.parse_intermixed_args()
    a.more, a.rng = a.more.split(), random.Random(a.seed)
    print("| model, batch | least MiB | without a limit MiB | limits, plans | nearest to its limit | pieces, recomputed at the least | ms at the least / without "
          "| rounds | noise | worst step back | suggestions: predicted / measured | |\n|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    states = {}
    if a.state and os.path.exists(a.state):
        with open(a.state) as f:
            states = json.load(f)
    until = time.time() + a.seconds if a.seconds else None
    return sum(sweep(a, name, states, until) for name in a.model)


sys.exit(main())
