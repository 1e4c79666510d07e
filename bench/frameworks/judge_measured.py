#!/usr/bin/env python3
"""What the program says today beside everything that was measured of Keras on PyTorch (measured*.jsonl): no card is needed.

    judge_measured.py models DIR      writes a file for every model that was measured (needs Keras)
    judge_measured.py tables DIR      plans them anew and prints the tables; MEMFIT names the program

Live bytes and processes are those of three steps of fit(); largest batches and lines were tried under a limit. A line is asked for again
as it was: with its batch, or as the suggestion of the same words. A batch that is predicted anew was not tried itself: it is held against
the largest that ran.
"""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
RESERVE_MIB, MIB = 623, 1 << 20
STEPS = ("measured", "measured_drawn", "measured_third", "measured_keras_torch_third", "measured_keras_torch_fourth", "measured_keras_torch_fifth",
         "measured_keras_torch_sixth", "measured_keras_torch_seventh")
LARGEST = ("measured_largest", "measured_largest_limited", "measured_largest_second", "measured_largest_third", "measured_largest_fourth", "measured_largest_fifth",
           "measured_largest_held")
LINES = ("measured_lines", "measured_lines_limited", "measured_lines_second", "measured_lines_third", "measured_lines_fourth", "measured_lines_fifth",
         "measured_lines_sixth")


def read(name):
    return [json.loads(line) for line in open(here / (name + ".jsonl"))]


def steps(name):
    return [r for r in read(name) if r["runtime"] == "torch" and "error" not in r]


def models(folder):
    os.environ["KERAS_BACKEND"] = "torch"
    import framework_cases
    import keras
    framework_cases.empty_weights()
    os.makedirs(folder, exist_ok=True)
    wanted = {(r["case"].split(":")[0], r["case"].split(":")[2]) for name in STEPS for r in steps(name)}
    wanted |= {(r["model"], r["precision"]) for name in LARGEST + LINES for r in read(name)}
    for name, precision in sorted(wanted):
        path = os.path.join(folder, "%s-%s.json" % (name, precision))
        if not os.path.exists(path):
            with open(path, "w") as f:
                f.write(framework_cases.build(keras, name, precision).to_json())


def plan(folder, name, precision, batch, free_mib=0):
    got = subprocess.run([os.environ.get("MEMFIT", "build/memfit"), "plan", os.path.join(folder, "%s-%s.json" % (name, precision)), "--batch-size", str(batch), "--for", "h200",
                          *(["--memory", "%dMiB" % (free_mib + RESERVE_MIB)] if free_mib else []), "--runtime", "torch", "--json"], capture_output=True, text=True, check=False)
    if got.returncode not in (0, 3):
        sys.exit("%s is not planned: %s" % (name, got.stderr[:200]))
    return json.loads(got.stdout)["in_framework"]


def judge_steps(folder, name):
    errors, inside, widths, above = [], 0, [], [0]
    for r in sorted(steps(name), key=lambda r: r["case"]):
        x = plan(folder, r["case"].split(":")[0], r["case"].split(":")[2], r["case"].split(":")[1])
        low, high, process = x["low_bytes"] / MIB - RESERVE_MIB, x["high_bytes"] / MIB - RESERVE_MIB, r.get("process_bytes", 0) / MIB
        error = 100 * (x["live_bytes"] / r["live_bytes"] - 1)
        errors.append(abs(error))
        if process:
            inside += low <= process <= high
            widths.append(100 * (high - low) / process)
            above.append(100 * (process / high - 1))
        mark = "" if not process or low <= process <= high else "  above" if process > high else "  below"
        print("%-46s %7.0f %7.0f %+6.1f%%  %7.0f  %6.0f to %6.0f%s" % (r["case"], r["live_bytes"] / MIB, x["live_bytes"] / MIB, error, process, low, high, mark))
    errors.sort()
    print("%s: %d cases  live: median %.1f %%  95th %.1f %%  worst %.1f %%; inside %d of %d, %.1f %% wide in the median, above by %.1f %% at most\n" % (
        name, len(errors), statistics.median(errors), errors[int(0.95 * (len(errors) - 1))], errors[-1], inside, len(widths), statistics.median(widths or [0]), max(above)))


def judge_largest(folder, name):
    errors = []
    for r in sorted(read(name), key=lambda r: (r["model"], r["free_mib"])):
        if r.get("largest"):
            now = plan(folder, r["model"], r["precision"], 64, r["free_mib"])["max_batch"]
            errors.append(100 * (now / r["largest"] - 1))
            print("%-34s %-16s %6d MiB  then %6d  now %6d  largest %6d (%d fails)  %+.1f %%" % (
                r["model"], r["precision"], r["free_mib"], r["predicted"], now, r["largest"], r["fails"], errors[-1]))
    print("%s: %d cases, %d within -8 %% to +0: %+.1f to %+.1f %%\n" % (name, len(errors), sum(-8 <= e <= 0 for e in errors), min(errors), max(errors)))


def asked_again(folder, r):
    """(low, peak, high, fits) of the line, or None where it is no longer said."""
    alone = re.fullmatch(r"batch_size=(\d+)", r["line"])
    x = plan(folder, r["model"], r["precision"], alone.group(1) if alone else r["batch"], r["free_mib"])
    found = [x] if alone else [s for s in x["suggestions"] if s["line"] == r["line"]]
    return [(x["low_bytes"] / MIB - RESERVE_MIB, x["peak_bytes"] / MIB - RESERVE_MIB, x["high_bytes"] / MIB - RESERVE_MIB, x["fits"]) for x in found]


def judge_lines(folder, name):
    said = ran = inside = told = 0
    for r in read(name):
        again = asked_again(folder, r)
        void = not r.get("ran") and r.get("refused") == 0
        outcome = "void" if void else "ran" if r.get("ran") else "FAILED"
        process = r.get("process_mib", 0) if r.get("process_mib", 0) > r.get("pool_mib", 0) else 0  # else NVML's row was another's
        if not again or again[0][3] != "yes":
            print("%-34s %6d  %-72s %s, %s" % (r["model"], r["batch"], r["line"][:72], "no longer said" if not again else "no longer said to fit", outcome))
            continue
        low, peak, high, _ = again[0]
        said += not void
        ran += outcome == "ran"
        told += bool(process)
        inside += bool(process) and low <= process <= high
        print("%-34s %6d  %-72s %6.0f (%.0f to %.0f)  %6d %s%s" % (r["model"], r["batch"], r["line"][:72], peak, low, high, process, outcome,
                                                                   "" if not process or low <= process <= high else " above" if process > high else " below"))
    print("%s: %d lines are said to fit: %d ran; process inside the band %d of %d\n" % (name, said, ran, inside, told))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("models", "tables"):
        sys.exit(__doc__)
    if sys.argv[1] == "models":
        models(sys.argv[2])
    else:
        for each in STEPS:
            judge_steps(sys.argv[2], each)
        for each in LARGEST:
            judge_largest(sys.argv[2], each)
        for each in LINES:
            judge_lines(sys.argv[2], each)
