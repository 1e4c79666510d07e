#!/usr/bin/env python3
"""Trains models inside falling limits and looks at what happened:

    python tools/sweep_budgets.py build/memfit FOLDER [--limits 20] [--rounds 3] [--batch N] [--state FILE] [MODEL ...]

FOLDER holds NAME.keras or NAME.json (tools/sweep_budgets.py --make FOLDER writes the usual ones, with Keras). For each
model `memfit train` runs a few steps on synthetic data at limits spread evenly from the least that fits to what it
takes without a limit. Per run: the measured peak (RssAnon + RssShmem sampled by the process itself and, from outside,
by this script) is at most the limit, allocations_in_steps is 0, arena used = arena planned. Per model: more memory is
never slower (median step of the fastest of the rounds; 10 % are noise), and where `memfit plan` at the middle limit
suggests several ways that fit, their predicted order is the measured one (ratios to the first are printed).

Bytes do not depend on the load, times do: with --state FILE the limits can be found beside other programs, and the
times taken later and in parts, in short spells of quiet (--rounds 9 --seconds 100 --forget-times --look 0.1 MODEL). One thread
(--more "--threads 1") varies far less than two on a machine of two processors.

Exit status: the number of models that fail.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

# name: (batch, steps of one run)
MODELS = {"s1": (32, 20000), "s9_small": (16, 5), "digits": (64, 4), "resnet50": (8, 3), "mobilenetv2": (8, 6), "lstm": (16, 80),
          "transformer": (8, 40), "unet": (8, 6)}
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

    os.makedirs(folder, exist_ok=True)
    for f in (s1, s9_small, digits, resnet50, mobilenetv2, lstm, transformer, unet):
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
                          str(batch), "--json", "--quiet", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
                        "off", "--recompute", "off", "--json"], capture_output=True, text=True)
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
    return {"low": low, "most": most, "limits": limits, "rows": {}, "wrong": [], "ways": [w + [None] for w in ways]}


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
    old = state["rows"].get(str(limit))
    if not old or r["step_ms"] < old["step_ms"]:
        state["rows"][str(limit)] = dict({k: r[k] for k in ("step_ms", "planned_step_ms", "pieces", "recomputed_ops", "numerics")},
                                         margin=(limit - peak) / limit)


def one_way(a, path, batch, steps, way, state):
    limit = state["limits"][len(state["limits"]) // 2]
    r = train(a, path, batch, steps, "--memory", str(limit), "--allow-changed-numerics", *way[1], *a.more)
    if not r:
        state["wrong"].append(f"suggested, but does not fit: {' '.join(way[1])}")
    elif way[2] is None or r["step_ms"] < way[2]:
        way[2] = r["step_ms"]


def plan_of(r):
    return r["pieces"], r["recomputed_ops"], round(r["planned_step_ms"], 6)


def judge(state):
    """What is wrong with a model's figures as far as they go; how much slower a larger limit was than a smaller one."""
    wrong, rows, after = list(state["wrong"]), state["rows"], 0
    order = sorted(rows, key=int)
    for limit in reversed(order):  # from the largest limit down: never faster than with more memory
        # A bitwise plan is preferred to a reordered one that is a little faster: 10 % are allowed for that.
        if rows[limit]["planned_step_ms"] < after * 0.9:
            wrong.append(f"predicted faster at {limit} than with more memory")
        after = max(after, rows[limit]["planned_step_ms"])
    best = {}  # limits that end in the same plan share its time
    for r in rows.values():
        best[plan_of(r)] = min(r["step_ms"], best.get(plan_of(r), float("inf")))
    worst = 1.0
    for i, x in enumerate(order):
        for y in order[:i]:
            more, less = rows[x], rows[y]
            preferred = more["numerics"] == "bitwise" and less["numerics"] != "bitwise"
            back = best[plan_of(more)] / best[plan_of(less)] / (PREFERENCE if preferred else 1)
            worst = max(worst, back)
    if worst > NOISE:
        wrong.append(f"more memory was {worst:.2f} times slower")
    ways = [w for w in state["ways"] if w[2]]
    if not all(x[2] <= y[2] * NOISE for x in ways for y in ways if x[0] <= y[0]):
        wrong.append("suggestions come in another order")
    return wrong, max(worst, 1.0)


def row(name, batch, state):
    wrong, worst = judge(state)
    rows, ways = state["rows"], state["ways"]
    order = sorted(rows, key=int)
    first, last = rows[order[0]], rows[order[-1]]
    plans = len({plan_of(r) for r in rows.values()})
    said = "-"
    if len(ways) > 1 and all(w[2] for w in ways):
        said = f"{', '.join(f'{w[0]:.2f}' for w in ways)} / {', '.join(f'{w[2] / ways[0][2]:.2f}' for w in ways)}"
    print(f"| {name}, {batch} | {state['low'] / 2**20:.2f} | {state['most'] / 2**20:.2f} | {len(rows)}, {plans} | {min(r['margin'] for r in rows.values()):.1%} "
          f"| {first['step_ms']:.2f} | {last['step_ms']:.2f} | {first['step_ms'] / last['step_ms']:.2f} | {worst:.2f} "
          f"| {first['pieces']}, {first['recomputed_ops']} | {said} | {'; '.join(sorted(set(wrong))[:4]) or 'holds'} |", flush=True)
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
    if a.forget_times:
        for r in state["rows"].values():
            r["step_ms"] = float("inf")
        for w in state["ways"]:
            w[2] = None
    done, longest = 0, 0
    while done < a.rounds:  # a round is all limits and all suggestions: what slows the machine for a while slows several
        began = time.time()
        if until and began + longest * 1.1 > until:
            break
        for limit in state["limits"]:
            one_limit(a, path, batch, steps, limit, state)
        for way in state["ways"] if len(state["ways"]) > 1 else []:
            one_way(a, path, batch, steps, way, state)
        longest = max(longest, time.time() - began)
        done += 1
        save(a, states)
    bad = row(name, batch, state) if state["rows"] else False
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
    parser.add_argument("--more", default="", type=str.split, help="more options for memfit train, as one word")
    parser.add_argument("--state", help="keeps figures from call to call: the best time of all of them counts")
    parser.add_argument("--seconds", type=float, help="start no round that would not end within this time")
    parser.add_argument("--forget-times", action="store_true", help="of the state: they were taken on a busy machine")
    parser.add_argument("--look", type=float, default=0.002, help="seconds between two looks at the process from outside; they disturb times")
    parser.add_argument("--no-order", action="store_true", help="leave the order of suggestions out")
    if sys.argv[1:2] == ["--make"]:
        return make(sys.argv[2])
    a = parser.parse_intermixed_args()
    a.more = a.more or []
    print("| model, batch | least MiB | all MiB | limits, plans | closest to limit | ms at least | ms with all | slower | worst step back | pieces, recomputed at least "
          "| suggestions: predicted / measured | |\n|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    states = {}
    if a.state and os.path.exists(a.state):
        with open(a.state) as f:
            states = json.load(f)
    until = time.time() + a.seconds if a.seconds else None
    return sum(sweep(a, name, states, until) for name in a.model)


sys.exit(main())
