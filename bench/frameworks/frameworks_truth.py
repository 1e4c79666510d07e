#!/usr/bin/env python3
"""Predictions of `memfit plan --runtime` beside what the frameworks really took.

    frameworks_truth.py models DIR [--seed S]          writes a model file for each model and precision (needs Keras)
    frameworks_truth.py run MEASURED [--seed S | --cases FILE] [--runtime R] [--at-once N] [--most SECONDS]
                                                       measures the cases that MEASURED lacks, the most valuable first (needs the
                                                       frameworks, and an NVIDIA card for torch and jax)
    frameworks_truth.py limits MEASURED DIR            prints cases for `run --cases`: JAX with a pool that makes the process as large as the
                                                       band's upper end, where it should run, and as its lower end, where it should not
    frameworks_truth.py judge MEASURED DIR             plans every measured case and prints the tables

With --seed the models are drawn, else the fixed ones are taken. MEASURED is JSON lines, a line a case: what was run, versions, a hash of the code that measured it, and bytes. A case is run again when the
code or a version differs. MEMFIT names the program (build/memfit). On another card than an H200: --card NAME (`memfit plan --for list`) and
--reserve MIB, what the driver keeps of it beside all processes.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import framework_cases  # noqa: E402

PRECISIONS = ("float32", "mixed_bfloat16")
MIB = 1 << 20
CARD, RESERVE_MIB = "h200", 623  # what the driver keeps of it: in memfit's fixed cost, in no process's figure


def code_hash():
    text = b"".join((here / name).read_bytes() for name in ("framework_cases.py", "measure_framework.py"))
    return hashlib.sha256(text).hexdigest()[:12]


def read(path):
    try:
        return [json.loads(line) for line in open(path)]
    except FileNotFoundError:
        return []


def table(seed):
    """[(name, two batches)]"""
    return framework_cases.draw(seed) if seed else [(name, batches) for name, (_, _, batches) in framework_cases.MODELS.items()]


def models(folder, seed):
    import keras
    os.makedirs(folder, exist_ok=True)
    names = {(name, precision) for name, _ in table(seed) for precision in PRECISIONS}
    names |= {(case.split(":")[0], "float32") for _, case in all_cases(seed, ["tensorflow"])}
    for name, precision in sorted(names):
        path = os.path.join(folder, "%s-%s.json" % (name, precision))
        if not os.path.exists(path):
            with open(path, "w") as f:
                f.write(framework_cases.build(keras, name, precision).to_json())


def all_cases(seed, runtimes):
    """Most valuable first: each model once in each runtime before any a second time. TensorFlow runs on the CPU, with cases of its own."""
    if "tensorflow" in runtimes:
        yield from (("tensorflow", case) for case in (framework_cases.draw_on_cpu(seed) if seed else framework_cases.ON_CPU))
        runtimes = [r for r in runtimes if r != "tensorflow"]
    for which, precision in ((0, "float32"), (1, "mixed_bfloat16"), (0, "mixed_bfloat16"), (1, "float32")):
        for name, batches in table(seed):
            for runtime in runtimes:
                yield runtime, "%s:%d:%s" % (name, batches[which], precision)


def run(measured, wanted, runtimes, at_once, most):
    """A process for PyTorch, which forks for its cases; else a process a case."""
    mine, children, begin = code_hash(), [], time.time()
    environment = dict(os.environ, CODE_HASH=mine, AT_ONCE=str(at_once), MOST=str(most))
    have = {(r["runtime"], r["case"]) for r in read(measured) if r.get("code", mine) == mine}
    missing = [case for case in wanted if case not in have]
    for runtime in runtimes:
        texts = [case for r, case in missing if r == runtime]
        if runtime == "torch" and texts:
            children.append(subprocess.Popen([sys.executable, str(here / "measure_framework.py"), runtime, measured, *texts], env=environment))
        elif runtime != "torch":
            one_by_one(runtime, measured, texts, environment, at_once, begin + most)
    for child in children:
        child.wait()


def one_by_one(runtime, measured, texts, environment, at_once, end):
    """A process a case, `at_once` of them at a time; none begins after `end`."""
    def measure(text):
        if time.time() < end:
            subprocess.run([sys.executable, str(here / "measure_framework.py"), runtime, measured, text], env=environment, check=False)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(measure, texts))


def plan(memfit, folder, runtime, case):
    name, batch, precision = case.split(":")[:3]
    where = [] if runtime == "tensorflow" else ["--for", CARD]
    got = subprocess.run([memfit, "plan", os.path.join(folder, "%s-%s.json" % (name, precision)), "--batch-size", batch, *where,
                          "--runtime", runtime, "--json"], capture_output=True, text=True, check=False)
    return json.loads(got.stdout)["in_framework"] if got.returncode in (0, 3) else None


def limits(measured, folder):
    memfit = os.environ.get("MEMFIT", "build/memfit")
    for r in read(measured):
        if r["runtime"] == "jax" and r.get("process_bytes") and r["case"].count(":") == 2:
            x = plan(memfit, folder, "jax", r["case"])
            beside = (r["process_bytes"] - r["pool_bytes"]) / MIB + RESERVE_MIB
            for end in ("high_bytes", "low_bytes"):
                print("%s:%d" % (r["case"], max(8, x[end] / MIB - beside)))


def judge_limits(rows):
    """JAX's process is as large as one lets it be (its pool grows by doubling, tuning tries what there is room for): what it takes is the least in which it runs."""
    parts = {}
    for r in rows:
        if r["case"].count(":") == 3:
            case, _, mib = r["case"].rpartition(":")
            parts.setdefault(case, {})[int(mib)] = "runs" if "error" not in r else "no room" if "RESOURCE_EXHAUSTED" in r["error"] else "fails"
    both = {case: sorted(ends.items()) for case, ends in sorted(parts.items()) if len(ends) == 2}
    for case, (low, high) in both.items():
        print("%-52s pool %6d MiB %-8s %6d MiB %s" % (case, *low, *high))
    if both:
        print("runs at the band's upper end %d of %d, does not at its lower end %d of %d" % (
            sum(high[1] == "runs" for _, high in both.values()), len(both), sum(low[1] == "no room" for low, _ in both.values()), len(both)))


def summary(title, errors, inside, widths, above):
    if not errors:
        return
    errors = sorted(errors)
    print("%-34s %3d cases  median %4.1f %%  95th %5.1f %%  worst %5.1f %%" % (
        title, len(errors), 100 * statistics.median(errors), 100 * errors[int(0.95 * (len(errors) - 1))], 100 * errors[-1]), end="")
    if inside:
        print("   process inside the band %d of %d, band %.0f %% wide in the median, above its end by %.1f %% at most" % (
            sum(inside), len(inside), 100 * statistics.median(widths), max(0, 100 * max(above))), end="")
    print()


def judge(measured, folder):
    memfit = os.environ.get("MEMFIT", "build/memfit")
    parts = {}
    print("%-6s %-34s %9s %9s %7s   %9s  %s" % ("", "case", "live MiB", "predicted", "", "process", "band"))
    for r in sorted(read(measured), key=lambda r: (r["runtime"], r["case"])):
        if "error" in r or r["case"].count(":") > 2:
            continue
        x = plan(memfit, folder, r["runtime"], r["case"])
        if not x:
            print(r["runtime"], r["case"], "is not planned")
            continue
        on_cpu = r["runtime"] == "tensorflow"  # the arrays that fit() was given lie in its allocator, too
        live = r["xla_peak_bytes"] if r["runtime"] == "jax" else r["live_bytes"] - (r["data_bytes"] if on_cpu else 0)
        error = x["live_bytes"] / live - 1
        process = r.get("resident_bytes" if on_cpu else "process_bytes", 0) / MIB
        reserve = 0 if on_cpu else RESERVE_MIB
        low, high = x["low_bytes"] / MIB - reserve, x["high_bytes"] / MIB - reserve
        name = r["case"].split(":")[0]
        half = "drawn models" if "@" in name and r["case"] not in framework_cases.ON_CPU else "models kept apart" if name in framework_cases.APART else "models fitted to"
        errors, inside, widths, above = parts.setdefault((r["runtime"], half), ([], [], [], []))
        errors.append(abs(error))
        if r["runtime"] != "jax" and process:  # of JAX: judge_limits
            inside.append(low <= process <= high)
            widths.append((high - low) / process)
            above.append(process / high - 1)
        print("%-6s %-34s %9.0f %9.0f %+6.1f%%   %9.0f  %.0f to %.0f" % (
            r["runtime"], r["case"], live / MIB, x["live_bytes"] / MIB, 100 * error, process, low, high))
    print()
    for (runtime, half), figures in sorted(parts.items()):
        summary("%s, %s" % (runtime, half), *figures)
    judge_limits(read(measured))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("models", "run", "limits", "judge"))
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--seed", default="")
    parser.add_argument("--cases", help="a file with a case a line, instead of those of the seed")
    parser.add_argument("--runtime", choices=("torch", "jax", "tensorflow"), action="append")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--most", type=float, default=1e9)
    parser.add_argument("--card", default=CARD)
    parser.add_argument("--reserve", type=int, default=RESERVE_MIB)
    a = parser.parse_args()
    globals().update(CARD=a.card, RESERVE_MIB=a.reserve)
    if a.what == "models":
        models(a.paths[0], a.seed)
    elif a.what == "run":
        runtimes = a.runtime or ("torch", "jax")
        wanted = [(r, case) for case in open(a.cases).read().split() for r in runtimes] if a.cases else all_cases(a.seed, runtimes)
        run(a.paths[0], list(wanted), runtimes, a.at_once, a.most)
    else:
        {"limits": limits, "judge": judge}[a.what](a.paths[0], a.paths[1])


if __name__ == "__main__":
    main()
