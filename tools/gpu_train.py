#!/usr/bin/env python3
"""Training on a card, checked: gpu_train.py MEMFIT RESULTS [--seconds N] [--models FOLDER...] [--table] PART...

Parts:
    kinds    every kind of operation against the reference (check_kinds)
    curves   the trainings that Keras's own curves are kept of, and others: losses, metrics and validation as on the cpu device
    seeds    the programs S1 to S12 on the card; S2, S6 and S11 also as the C examples, where they lie beside memfit
    limits   200 steps of each model at two limits; NVML's figure for the process, every 10 ms, is never above --memory
    fixed    ten starts: the fixed cost is the same within 4 MiB; a limit below it is refused, and the refusal names it
    kills    50 trainings ended by SIGKILL and resumed; the resumed run's file is that of the undisturbed one, byte for byte
    lost     the context is lost in the middle of training: an explanation, a whole checkpoint, no hang
    versions a checkpoint that goes on elsewhere says so
    odd      cards that are not there, caches that cannot be used, signals while a run begins
    rounding ResNet50's first update by several engines, on the card and on the cpu
    full     a card that is full, and one that another process fills while training goes on (nobody else may use the card)
    sanitizer  one step of the small form of every family under memcheck and racecheck
    waits    how often the host waits for the card in an epoch (nsys)
    methods  own kernels beside the library's, timed (bench_methods)
    split    S7 at full size, in one piece and split (needs most of the card)
RESULTS is a file of JSON lines, one a case, keyed by the case, the card, driver and libraries, and a hash of the program: what is there
is not run again. Prints one line a case and one a part, with --table one a part of all that RESULTS has; the exit status is 1 when a case failed.
"""
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

from gpu_faults import full, kills, lost, odd, versions
from gpu_numbers import curves, kinds, rounding, split
from gpu_results import MIB, Nvml, Results, in_parallel, libraries, program, train

ROOT = pathlib.Path(__file__).resolve().parent.parent


def layers(path):
    """Small models first: more of them end in the time there is. GPU_CHECK_FIRST=NAME,NAME comes before."""
    first = os.environ.get("GPU_CHECK_FIRST", "").split(",")
    with zipfile.ZipFile(path) as z:
        return first.index(path.stem) if path.stem in first else len(first) + z.read("config.json").count(b'"class_name"'), path.stem


def lower_bound(memfit, path, batch, precision):
    """Of the arena: what no plan can do without."""
    p = subprocess.run([memfit, "plan", path, "--batch-size", str(batch), "--precision", precision, "--json", "--quiet"], capture_output=True, text=True)
    try:
        plan = json.loads(p.stdout)
        return plan["lower_bound_bytes"] - plan["fixed_bytes"], ""
    except (ValueError, KeyError):
        return None, p.stderr.strip()[-200:]


BATCHES = {"s1": 32, "s7": 8, "s9": 8, "gpt2": 1, "vit": 8, "lstm": 16, "unet": 2, "mlp": 64, "cnn": 64, "ConvNeXtSmall": 4, "InceptionResNetV2": 4, "NASNetMobile": 4, "ResNet101": 4, "ResNet101V2": 4,
           "VGG16": 4, "VGG19": 4, "DenseNet169": 4, "ConvNeXtTiny": 4, "Xception": 4}
WAYS = ((1.3, "float32"), (2.0, "mixed_bfloat16"))


def limit_cases(models):
    """Model after model, both configurations of each; of those that GPU_CHECK_FIRST names one in front, the other at the end."""
    first = os.environ.get("GPU_CHECK_FIRST", "").split(",")
    named, others = [m for m in models if m.stem in first], [m for m in models if m.stem not in first]
    return [(m, *WAYS[0]) for m in named] + [(m, *w) for m in others for w in WAYS] + [(m, *WAYS[1]) for m in named]


def limits(memfit, results, nvml, models, deadline):
    def one(path, factor, precision, fixed):
        case = f"limits {path.stem} {precision} {factor}"
        batch = BATCHES.get(path.stem, 8)
        bound, why = lower_bound(memfit, str(path), batch, precision)
        if bound is None:
            return results.put(case, False, error=why)
        limit = fixed + int(factor * bound)
        args = [str(path), "--data", f"synthetic:{8 * batch}", "--batch-size", str(batch), "--epochs", "1000", "--steps", "200", "--precision", precision]
        needs = []
        while True:
            rc, j, said, pid = train(memfit, *args, "--memory", str(limit), timeout=max(60, deadline + 30 - time.time()))
            need = said.split("needs ")[1].split(",")[0] if rc == 3 and "needs " in said else None
            if not need or len(needs) == 2: # refused: what is said to be needed must suffice; what kernels take is known only then
                break
            needs.append(need)
            limit = int(float(need.split()[0]) * (1 << 30 if "GiB" in need else MIB)) + 64 * 1024
        if rc < 0:
            return print(f"{case}: not ended in time", flush=True)
        seen = nvml.peaks.get(pid, 0)
        if not j:
            return results.put(case, False, rc=rc, limit_mib=limit // MIB, needs=needs, error=said)
        planned, over = j["planned_peak_bytes"], 100 * (j["planned_peak_bytes"] - seen) / max(seen, 1)
        count, gap, span = nvml.sampled(pid)
        results.put(case, rc == 0 and 0 < seen <= limit and seen <= planned and over <= 5 and j["steps"] == 200, limit_mib=limit // MIB, nvml_mib=round(seen / MIB, 1), planned_mib=round(planned / MIB, 2),
                    over_percent=round(over, 2), samples=count, mean_gap_ms=round(1000 * span / max(count, 1), 1), longest_gap_ms=round(1000 * gap), fixed_mib=round(j["fixed_bytes"] / MIB, 1),
                    pieces=j["pieces"], recomputed=j["recomputed_ops"], allocations=j["allocations_in_steps"], step_ms=round(j["step_ms"], 3), needs=needs,
                    bound_factor=round((limit - fixed) / max(bound, 1), 2))

    cases = [c for c in limit_cases(models) if not results.has(f"limits {c[0].stem} {c[2]} {c[1]}")]
    if not cases:
        return
    rc, j, said, _ = train(memfit, str(next(m for m in models if m.stem in ("s1", "mlp"))), "--data", "synthetic:64", "--steps", "2")
    if not j:
        return results.put("limits: the fixed cost", False, error=said)
    fixed = j["fixed_bytes"] + 24 * MIB # beside the context: libraries' code that larger models load
    in_parallel([lambda c=c: one(*c, fixed) for c in cases], 6, deadline)
    over = [r["over_percent"] for c, r in results.seen.items() if c.startswith("limits ") and "over_percent" in r]
    if over:
        print(f"limits: {len(over)} configurations, planned above NVML: mean {sum(over) / len(over):.2f} %, least {min(over):.2f} %, most {max(over):.2f} %", flush=True)


def fixed(memfit, results, nvml, models, deadline):
    path = str(next(m for m in models if m.stem in ("s1", "mlp")))
    if results.has("fixed: ten starts"):
        return
    seen = []
    for _ in range(10):
        rc, j, said, pid = train(memfit, path, "--data", "synthetic:64", "--steps", "2")
        if not j:
            return results.put("fixed: ten starts", False, error=said)
        seen.append((j["fixed_bytes"] / MIB, nvml.peaks.get(pid, 0) / MIB))
    spread = max(max(s[i] for s in seen) - min(s[i] for s in seen) for i in (0, 1))
    results.put("fixed: ten starts", spread <= 4, spread_mib=round(spread, 2), fixed_mib=round(seen[0][0], 2), nvml_mib=sorted({s[1] for s in seen}))
    rc, j, said, _ = train(memfit, path, "--data", "synthetic:64", "--steps", "2", "--memory", str(int(seen[0][0] - 40) * MIB))
    results.put("fixed: a limit below it", rc == 3 and " MiB" in said, rc=rc, said=said)


def seeds(memfit, results, nvml, models, deadline):
    by_name = {m.stem: str(m) for m in models}

    kept = {} # results that others are compared with, of this run or of an earlier one

    def run(case, model, *args, check, kept_as=None):
        row = results.seen.get("seeds " + case)
        if results.has("seeds " + case) or model not in by_name or time.time() > deadline:
            if kept_as and row and row["good"]:
                kept[kept_as] = row
            return
        rc, j, said, pid = train(memfit, by_name[model], "--data", "synthetic:" + args[0], *args[1:], timeout=120)
        seen = nvml.peaks.get(pid, 0)
        if not j:
            return results.put("seeds " + case, False, rc=rc, error=said)
        good, more = check(j, seen)
        figures = {k: j[k] for k in ("loss", "planned_peak_bytes", "fixed_bytes", "arena_bytes", "pieces", "numerics")}
        results.put("seeds " + case, good and 0 < seen <= j["planned_peak_bytes"], nvml_mib=seen // MIB, step_ms=round(j["step_ms"], 3), recomputed=j["recomputed_ops"],
                    allocations=j["allocations_in_steps"], **more, **figures)
        if kept_as:
            kept[kept_as] = j

    def any_result(j, seen):
        return True, {}

    def as_before(name, within):
        def check(j, seen):
            if name not in kept:
                return False, {"loss_differs": "nothing to compare with"}
            d = abs(j["loss"] - kept[name]["loss"]) / (abs(kept[name]["loss"]) + 1e-3)
            return d <= within, {"loss_differs": float(f"{d:.1e}")}
        return check

    def say(case, good, **more):
        results.put("seeds " + case, good, **more)

    def example(case, name, *args):
        """A C example on the card: what it claims must hold."""
        if results.has("seeds " + case) or time.time() > deadline:
            return
        if program(memfit, name):
            p = subprocess.run([program(memfit, name), *args], capture_output=True, text=True, timeout=120)
            say(case, p.returncode == 0, rc=p.returncode, said=(p.stdout + p.stderr).strip()[-200:])

    def refused(case, model, *args, words):
        """Must be refused, and the refusal must have these words."""
        if results.has("seeds " + case) or model not in by_name or time.time() > deadline:
            return
        rc, j, said, _ = train(memfit, by_name[model], *args)
        say(case, rc in (2, 3, 5) and all(w in said for w in words), rc=rc, said=said[-250:])

    def images(folder, name, count, *shape):
        """count random samples, stored uncompressed, without NumPy: x of uint8, y one-hot float32."""
        def npy(kind, dims, data):
            head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {dims}, }}".encode()
            head += b" " * (64 - (len(head) + 11) % 64) + b"\n"
            return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data
        with zipfile.ZipFile(f"{folder}/{name}", "w") as z:
            size = 1
            for d in shape:
                size *= d
            z.writestr("x.npy", npy("|u1", (count, *shape), (random.Random(1).randbytes(size) * count)))
            z.writestr("y.npy", npy("<f4", (count, 10), struct.pack("<10f", 1, *[0] * 9) * count))
        return f"{folder}/{name}"

    def small():
        run("S1: kilobytes beside the fixed cost", "s1", "1000", check=lambda j, s: (j["arena_bytes"] < MIB, {}))
        run("S3: 80 % of the card", "s1", "1000", "--memory", "80%", check=lambda j, s: (j["arena_bytes"] < MIB and j["limit_bytes"] > 0.79 * nvml.total(), {"limit_mib": j["limit_bytes"] // MIB}))
        run("S3: 1 GiB", "s1", "1000", "--memory", "1GiB", check=lambda j, s: (s <= 1 << 30, {}))
        refused("S3: megabytes taken for bytes", "s1", "--data", "synthetic:1000", "--memory", "819", words=["bytes", "819MiB"])

    def examples():
        example("S11, M16: ten experiments in one process", "s11_training", "10", "cuda")
        example("S11: the leak is named", "s11_experiments", "cuda")
        example("S6: released at the last use", "s6_release", "cuda")
        example("S2: growth on every card", "s2_growth")
        example("S3, M4: slices of the card", "s3_limits", "cuda")

    def streamed():
        with tempfile.TemporaryDirectory() as d:
            case = "S5: images of 1024 x 1024 streamed as uint8"
            if not results.has("seeds " + case) and "s7" in by_name and time.time() < deadline:
                x = images(d, "x.npz", 96, 1024, 1024, 3)
                rc, j, said, pid = train(memfit, by_name["s7"], "--data", x, "-b", "32", "--epochs", "2", timeout=100)
                say(case, j and nvml.peaks.get(pid, 0) <= j["planned_peak_bytes"], error="" if j else said, nvml_mib=nvml.peaks.get(pid, 0) // MIB,
                    **({k: j[k] for k in ("planned_peak_bytes", "input_wait_ms", "step_ms", "allocations_in_steps")} if j else {}))
            if "s9" in by_name and not results.has("seeds S8: another shape is named") and time.time() < deadline:
                x = images(d, "y.npz", 32, 100, 128, 3)
                refused("S8: another shape is named", "s9", "--data", x, "-b", "16", words=["128"])

    def pieces():
        run("S4: S9 as asked", "s9", "64", "-b", "16", "--steps", "6", "--gradient-accumulation", "off", check=any_result, kept_as="s4 s9")
        run("S4: S9 in four pieces", "s9", "64", "-b", "16", "--steps", "6", "--gradient-accumulation", "4", check=as_before("s4 s9", 1e-3))
        run("S12: validation and a last batch", "s9", "100", "-b", "16", "--epochs", "2", "--validation-split", "0.23", check=lambda j, s: (j["validation"] is not None, {}))
        run("S12: validation at batch 64", "s9", "200", "-b", "8", "--steps", "4", "--validation-split", "0.5", "--validation-batch-size", "64", check=lambda j, s: (True, {}))

    def budget():
        run("S9: as asked", "s9", "64", "-b", "32", "--steps", "6", check=any_result, kept_as="s9")
        if "s9" in kept:
            j = kept["s9"]
            limit = j["fixed_bytes"] + int(0.6 * j["arena_bytes"])
            run("S9: in 0.6 of it", "s9", "64", "-b", "32", "--steps", "6", "--memory", str(limit), check=lambda j, s: (s <= limit and as_before("s9", 1e-3)(j, s)[0], {"limit_mib": limit // MIB}))
        run("S10: bfloat16", "s9", "64", "-b", "32", "--steps", "6", "--precision", "mixed_bfloat16",
            check=lambda j, s: (True, {"saved_mib": (kept["s9"]["planned_peak_bytes"] - j["planned_peak_bytes"]) // MIB if "s9" in kept else None}))
        run("S7: batch 256 of 1024 x 1024 in 8 GiB", "s7", "256", "-b", "256", "--steps", "3", "--memory", "8GiB", check=lambda j, s: (s <= 8 << 30, {}))

    def exact():
        run("S4: ResNet50 as asked", "resnet50", "64", "-b", "32", "--steps", "4", check=any_result, kept_as="s4")
        if "s4" in kept and "resnet50" in by_name:
            j = kept["s4"]
            limit = j["fixed_bytes"] + int(0.6 * j["arena_bytes"])
            run("S4: the exact way, in 0.6 of the memory", "resnet50", "64", "-b", "32", "--steps", "4", "--memory", str(limit), "--gradient-accumulation", "off",
                check=lambda j, s: (s <= limit and j["numerics"] != "changed" and as_before("s4", 1e-3)(j, s)[0], {"limit_mib": limit // MIB}))
        run("S4: four pieces, changed mathematics", "resnet50", "64", "-b", "32", "--steps", "4", "--gradient-accumulation", "4", "--allow-changed-numerics",
            check=lambda j, s: (j["numerics"] == "changed" and j["pieces"] == 4, {}))

    in_parallel([pieces, budget, exact, small, examples, streamed], 3, deadline)


def sanitizer(memfit, results, nvml, models, deadline):
    """One step of the small form of every family under compute-sanitizer, every kernel launched by itself."""
    tool = shutil.which("compute-sanitizer")
    folder = pathlib.Path(os.environ.get("GPU_CHECK_FIXTURES", ROOT / "tests/fixtures")) / "cuda/small"

    def one(case, path, which, precision):
        p = subprocess.run(["timeout", "-k", "2", "200", tool, "--tool", which, "--error-exitcode", "9", memfit, "train", str(path), "--data", "synthetic:8", "-b", "8", "--steps", "1", "--precision", precision,
                            "--device", "cuda", "--json", "--quiet"], capture_output=True, text=True, env={**os.environ, "MEMFIT_RECORD": "0", "OMP_NUM_THREADS": "2"})
        said = [line for line in p.stdout.splitlines() if "SUMMARY" in line]
        if p.returncode in (124, 137):
            return print(f"{case}: not ended in time", flush=True)
        kernels = sorted(set(re.findall(r" at (?:void )?([^\s(<+]+)[^\n]*?\+0x", p.stdout)))
        own = [k for k in kernels if len(k) < 24 and not k.startswith(("sm", "cudnn", "cublas", "cutlass"))] # a library's have long names
        clean = said and (" 0 errors" in said[-1] or " 0 hazards" in said[-1])
        return results.put(case, (p.returncode == 0 and clean) or (said and p.returncode == 9 and kernels and not own), rc=p.returncode, own=own, library=[k[:90] for k in kernels if k not in own],
                           said=said[-1] if said else (p.stdout + p.stderr).strip()[-300:])

    jobs = [(f"sanitizer {path.stem} {which} {precision}", path, which, precision) for which in ("racecheck", "memcheck") for path in sorted(folder.glob("*.keras"))
            for precision in ("float32", "mixed_bfloat16")]
    in_parallel([lambda j=j: one(*j) for j in jobs if tool and not results.has(j[0])], 6, deadline)


def methods(memfit, results, nvml, models, deadline):
    """Own kernels that a menu offers beside the library's: the planner's choice is the fastest on 15 of 20 shapes."""
    bench = program(memfit, "bench_methods")
    if not bench or results.has("methods"):
        return
    with tempfile.TemporaryFile("w+") as out:
        try:
            rc = subprocess.run([bench, "20", os.environ.get("GPU_CHECK_SEED", "7")], stdout=out, timeout=max(20, deadline - time.time())).returncode
        except subprocess.TimeoutExpired:
            rc = -1
        out.seek(0)
        lines = out.read().splitlines()
    print("\n".join(lines), flush=True)
    said = [line for line in lines if "the choice is the fastest on" in line]
    if rc == 0:
        results.put("methods", said and all(int(s.split(" fastest on ")[1].split(" of")[0]) >= 15 for s in said), said="; ".join(said))


def waits(memfit, results, nvml, models, deadline):
    """How often the host waits for the card in an epoch, by the driver's calls that nsys counts: two runs that differ in one epoch."""
    nsys = shutil.which("nsys")
    path = str(next(m for m in models if m.stem == "cnn"))
    for case, more in (("waits", []), ("waits validation", ["--validation-split", "0.2"]), ("waits offload", ["--offload", "optimizer"])):
        if not nsys or results.has(case) or time.time() > deadline:
            continue
        counts = []
        with tempfile.TemporaryDirectory() as d:
            for epochs in (2, 3):
                subprocess.run([nsys, "profile", "-t", "cuda", "-s", "none", "--cpuctxsw=none", "-o", f"{d}/{epochs}", memfit, "train", path, "--data", "synthetic:1280", "-b", "32", "--epochs", str(epochs), *more,
                                "--device", "cuda", "--quiet"], capture_output=True, timeout=90)
                p = subprocess.run([nsys, "stats", "-q", "--report", "cuda_api_sum", "--format", "csv", f"{d}/{epochs}.nsys-rep"], capture_output=True, text=True, timeout=60)
                rows = [line.split(",") for line in p.stdout.splitlines() if line.count(",") >= 8 and "cu" in line]
                counts.append({r[-1].strip('"'): int(r[2]) for r in rows if r[2].isdigit()})
        a, b = counts
        added = {k: b[k] - a.get(k, 0) for k in b if b[k] != a.get(k, 0)}
        syncs = sum(v for k, v in added.items() if "Synchronize" in k)
        results.put(case, bool(b) and syncs <= 1, waits_an_epoch=syncs, calls_an_epoch=added)


PARTS = {f.__name__: f for f in (kinds, curves, rounding, split, seeds, limits, fixed, kills, lost, versions, odd, full, sanitizer, methods, waits)}


def main():
    args = sys.argv[1:]
    seconds, folders, plain, table = 480.0, [], [], False
    while args:
        a = args.pop(0)
        if a == "--table":
            table = True
        elif a == "--seconds":
            seconds = float(args.pop(0))
        elif a == "--models":
            folders.append(pathlib.Path(args.pop(0)))
        else:
            plain.append(a)
    if len(plain) < (2 if table else 3) or any(p not in PARTS for p in plain[2:]):
        sys.exit(__doc__)
    memfit, path, parts = os.path.abspath(plain[0]), plain[1], plain[2:]
    models = sorted((m for f in folders or [ROOT / "tests/fixtures/cuda/chosen", ROOT / "tests/fixtures/train", ROOT / "tests/fixtures/cuda/models"] for m in f.glob("*.keras")), key=layers)
    nvml = Nvml()
    results = Results(path, memfit, nvml.versions() + libraries(memfit))
    deadline = time.time() + seconds
    for part in parts:
        before, began = results.failed, time.time()
        PARTS[part](memfit, results, nvml, models, deadline)
        mine = [r for c, r in results.seen.items() if c.startswith({"kills": "kill"}.get(part, part))]
        print(f"== {part}: {sum(r['good'] for r in mine)} of {len(mine)} good, {results.failed - before} failed now, {time.time() - began:.0f} s", flush=True)
    nvml.over = True
    if table:
        results.print_table()
    sys.exit(results.failed > 0)


main()
