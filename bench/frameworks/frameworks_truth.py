#!/usr/bin/env python3
"""Predictions of `memfit plan --runtime` beside what the frameworks really took.

    frameworks_truth.py all DIR                 all of it with what this machine has: models, measurements, tables; begun again, it
                                                goes on where it was
    frameworks_truth.py models DIR              writes a model file for each model and precision (needs Keras)
    frameworks_truth.py run MEASURED            measures the cases that MEASURED lacks, the most valuable first (needs the
                                                frameworks, and an NVIDIA card for torch and jax)
    frameworks_truth.py limits DIR              prints cases for `run --cases`: JAX with a pool that makes the process as large as
                                                the band's upper end, where it should run, and as its lower end, where it should not
    frameworks_truth.py judge MEASURED DIR      plans every measured case and prints the tables

With --seed the models are drawn (--drawn 5 3: five applications, three own), else the fixed ones are taken. --runtime R (several times) takes some of torch, jax, tensorflow;
--at-once N measures N cases at a time, --most SECONDS begins none after that, --cases FILE measures those of a file. MEASURED is
JSON lines, a line a case: what was run, versions, a hash of the code that measured it, and bytes. A case is run again when that
code differs. MEMFIT names the program (build/memfit). --card NAME is as in `memfit plan --for`, --reserve MIB what the driver keeps
of it beside all processes: `all` asks NVML, the others take an H200's.
"""
import argparse
import concurrent.futures
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import framework_cases  # noqa: E402
import measure_framework_nvml  # noqa: E402

PRECISIONS = ("float32", "mixed_bfloat16")
MIB = 1 << 20
BESIDE_MIB = 570, 655  # as `beside` tells of an H200
DRAWN = 5, 3  # applications and own models of a drawing
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
    return framework_cases.draw(seed, *DRAWN) if seed else [(name, batches) for name, (_, _, batches) in framework_cases.MODELS.items()]


def models(folder, seed, runtimes):
    try:
        import keras
    except ModuleNotFoundError as e:
        sys.exit("Keras cannot be read here (%s): pip install keras and what KERAS_BACKEND names (tensorflow where it is not set)" % e)
    os.makedirs(folder, exist_ok=True)
    for name, precision in sorted({(case.split(":")[0], case.split(":")[2]) for _, case in all_cases(seed, runtimes)}):
        path = os.path.join(folder, "%s-%s.json" % (name, precision))
        if not os.path.exists(path):
            text = framework_cases.build(keras, name, precision).to_json()
            with open(path, "w") as f:
                f.write(text)


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
    """A process for each framework that meets a card, which forks for its cases; for TensorFlow a process a case."""
    mine, children, begin = code_hash(), [], time.time()
    environment = dict(os.environ, CODE_HASH=mine, AT_ONCE=str(at_once), MOST=str(most))
    have = {(r["runtime"], r["case"]) for r in read(measured) if r.get("code", mine) == mine}
    missing = [case for case in wanted if case not in have]
    for runtime in runtimes:
        texts = [case for r, case in missing if r == runtime]
        if runtime == "tensorflow":
            one_by_one(runtime, measured, texts, environment, at_once, begin + most)
        elif texts:
            children.append(subprocess.Popen([sys.executable, str(here / "measure_framework.py"), runtime, measured, *texts], env=environment))
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
    if got.returncode not in (0, 3):
        sys.exit("%s is not planned: %s" % (case, got.stderr.strip()))
    return json.loads(got.stdout)["in_framework"]


def beside(rows):
    """What JAX's process has beside its pool, without the driver's reserve, at least and at most, in MiB."""
    seen = [(r["process_bytes"] - r["pool_bytes"]) / MIB for r in rows if r["runtime"] == "jax" and r.get("process_bytes") and r.get("pool_bytes")]
    return (min(seen), max(seen)) if seen else BESIDE_MIB


def limits(folder, seed, rows):
    memfit, (least, most) = os.environ.get("MEMFIT", "build/memfit"), beside(rows)
    for runtime, case in all_cases(seed, ["jax"]):
        x = plan(memfit, folder, runtime, case)
        for end, other in (("high_bytes", most), ("low_bytes", least)):
            yield "%s:%d" % (case, max(8, x[end] / MIB - RESERVE_MIB - other))


def outcome(r):
    """JAX tells of a step that found no room only to who asks for its results, which `fit` may not: the weights that it was given are gone then."""
    if "error" in r:
        return "no room" if "RESOURCE_EXHAUSTED" in r["error"] else "fails"
    return "no room" if r.get("steady_bytes", 0) < r.get("xla_alias_bytes", 0) else "runs"


def judge_limits(rows):
    """JAX's process is as large as one lets it be (its pool grows by doubling, tuning tries what there is room for): what it
    takes is the least in which it runs."""
    parts, grown = {}, []
    for r in rows:
        if r["runtime"] == "jax" and r["case"].count(":") == 3:
            case, _, mib = r["case"].rpartition(":")
            if mib.endswith("g"):
                grown.append(outcome(r))
                print("%-52s pool that may grow to %6s MiB %s" % (case, mib[:-1], grown[-1]))
            else:
                parts.setdefault(case, {})[int(mib)] = outcome(r), r.get("process_bytes", 0) / MIB
    both = {case: sorted(ends.items()) for case, ends in sorted(parts.items()) if len(ends) == 2}
    for case, ((low, (at_low, _)), (high, (at_high, process))) in both.items():
        print("%-52s pool %6d MiB %-8s %6d MiB %-8s process %6.0f" % (case, low, at_low, high, at_high, process))
    if both:
        runs, fails = (sum(ends[k][1][0] == word for ends in both.values()) for k, word in ((1, "runs"), (0, "no room")))
        inside = sum(ends[1][1][0] == "runs" and ends[0][1][0] == "no room" for ends in both.values())
        print("runs at the band's upper end %d of %d, does not at its lower end %d of %d: inside the band %d of %d" % (
            runs, len(both), fails, len(both), inside, len(both)))
    if grown:
        print("runs in a pool that grows to the band's upper end %d of %d" % (grown.count("runs"), len(grown)))


def summary(title, errors, inside, widths, above):
    if not errors:
        return
    errors = sorted(errors)
    print("%-34s %3d cases  median %4.1f %%  95th %5.1f %%  worst %5.1f %%" % (
        title, len(errors), 100 * statistics.median(errors), 100 * errors[int(0.95 * (len(errors) - 1))], 100 * errors[-1]))
    if inside:
        print("%-34s process inside the band %d of %d, band %.0f %% wide in the median, above its end by %.1f %% at most" % (
            "", sum(inside), len(inside), 100 * statistics.median(widths), max(0, 100 * max(above))))


def split(r):
    """(case, MiB of its pool or None)"""
    case, _, mib = r["case"].rpartition(":") if r["case"].count(":") == 3 else (r["case"], "", "")
    return case, int(mib.rstrip("g")) if mib else None


def telling(rows):
    """The rows that tell live bytes: of JAX's with limited pools the largest where there is no other, as the step was compiled then. Not those
    compiled without a card whose peak has a library's workspace, which is found by trying on one."""
    best = {}
    for r in rows:
        case, mib = split(r)
        if (not r.get("xla_peak_bytes") if r["runtime"] == "jax" else "error" in r) or r.get("library_at_peak"):
            continue
        room = 1 << 62 if mib is None else mib
        if room > best.get((r["runtime"], case), (0,))[0]:
            best[r["runtime"], case] = room, r
    return [r for _, r in best.values()]


def judge(measured, folder):
    memfit = os.environ.get("MEMFIT", "build/memfit")
    parts, rows = {}, read(measured)
    print("%-6s %-34s %9s %9s %7s   %9s  %s" % ("", "case", "live MiB", "predicted", "", "process", "band"))
    for r in sorted(telling(rows), key=lambda r: (r["runtime"], r["case"])):
        x = plan(memfit, folder, r["runtime"], r["case"])
        on_cpu = r["runtime"] == "tensorflow"  # the arrays that fit() was given lie in its allocator, too
        live = r["live_bytes"] - (r["data_bytes"] if on_cpu else 0) if r["runtime"] != "jax" else r["xla_peak_bytes"]
        error = x["live_bytes"] / live - 1
        process = r.get("resident_bytes" if on_cpu else "process_bytes", 0) / MIB
        reserve = 0 if on_cpu else RESERVE_MIB
        low, high = x["low_bytes"] / MIB - reserve, x["high_bytes"] / MIB - reserve
        name = r["case"].split(":")[0]
        drawn = "@" in name and r["case"] not in framework_cases.ON_CPU
        half = "drawn models" if drawn else "models kept apart" if name in framework_cases.APART else "models fitted to"
        errors, inside, widths, above = parts.setdefault((r["runtime"], half), ([], [], [], []))
        errors.append(abs(error))
        if r["runtime"] != "jax" and process:  # of JAX: judge_limits
            inside.append(low <= process <= high)
            widths.append((high - low) / process)
            above.append(process / high - 1)
        print("%-6s %-34s %9.0f %9.0f %+6.1f%%   %9.0f  %.0f to %.0f" % (
            r["runtime"], ":".join(r["case"].split(":")[:3]), live / MIB, x["live_bytes"] / MIB, 100 * error, process, low, high))
    print()
    for (runtime, half), figures in sorted(parts.items()):
        summary("%s, %s" % (runtime, half), *figures)
    judge_limits(rows)


def can_run(runtimes):
    """What can be measured here, of what was asked for; what cannot is said, with what to do."""
    spec, found, device = importlib.util.find_spec, [], measure_framework_nvml.card()
    for runtime in runtimes or ("torch", "jax", "tensorflow"):
        if not spec(runtime):
            print("%s is left out: it is not installed (pip install %s)" % (runtime, {"jax": '"jax[cuda12]"'}.get(runtime, runtime)))
        elif runtime != "tensorflow" and not device:
            print("%s is left out: no NVIDIA card is here (NVML does not answer)" % runtime)
        else:
            found.append(runtime)
    return found, device


def everything(folder, a):
    memfit = os.environ.get("MEMFIT", "build/memfit")
    if not shutil.which(memfit):
        sys.exit("there is no program %s: build it (meson setup build --buildtype=release && ninja -C build memfit), or name it by MEMFIT=" % memfit)
    if not importlib.util.find_spec("keras"):
        sys.exit("Keras is not installed: pip install keras, and at least one of torch, jax[cuda12], tensorflow")
    runtimes, device = can_run(a.runtime)
    if not runtimes:
        sys.exit("nothing can be measured here")
    if device:
        globals().update(CARD=a.card or device[0], RESERVE_MIB=device[1] if a.reserve is None else a.reserve)
        print("card %s; the driver keeps %d MiB of it" % (CARD, RESERVE_MIB))
    files, measured = os.path.join(folder, "models"), os.path.join(folder, "measured.jsonl")
    os.environ.setdefault("KERAS_BACKEND", runtimes[0])
    print("%s: files of the models in %s, measurements in %s" % (", ".join(runtimes), files, measured), flush=True)
    words = [word for runtime in runtimes for word in ("--runtime", runtime)]
    subprocess.run([sys.executable, __file__, "models", files, "--seed", a.seed, *words], check=True, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
    run(measured, list(all_cases(a.seed, runtimes)), runtimes, a.at_once, a.most)
    if "jax" in runtimes:  # after the plain ones
        run(measured, [("jax", case) for case in limits(files, a.seed, read(measured))], ["jax"], a.at_once, a.most)
    judge(measured, files)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("all", "models", "run", "limits", "judge"))
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--seed", default="")
    parser.add_argument("--cases")
    parser.add_argument("--runtime", choices=("torch", "jax", "tensorflow"), action="append")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--most", type=float, default=1e9)
    parser.add_argument("--drawn", type=int, nargs=2, default=DRAWN)
    parser.add_argument("--card")
    parser.add_argument("--reserve", type=int)
    a = parser.parse_args()
    if len(a.paths) != (2 if a.what == "judge" else 1):
        parser.error("%s takes %s" % (a.what, "MEASURED and DIR" if a.what == "judge" else "one path"))
    globals().update(DRAWN=a.drawn, CARD=a.card or CARD, RESERVE_MIB=RESERVE_MIB if a.reserve is None else a.reserve)
    if a.what == "all":
        everything(a.paths[0], a)
    elif a.what == "models":
        models(a.paths[0], a.seed, a.runtime or ("torch", "tensorflow"))
    elif a.what == "run":
        runtimes, _ = can_run(a.runtime or ("torch", "jax"))
        wanted = [(r, case) for case in open(a.cases).read().split() for r in runtimes] if a.cases else all_cases(a.seed, runtimes)
        run(a.paths[0], list(wanted), runtimes, a.at_once, a.most)
    elif a.what == "limits":
        print("\n".join(limits(a.paths[0], a.seed, [])))
    else:
        judge(a.paths[0], a.paths[1])


if __name__ == "__main__":
    main()
