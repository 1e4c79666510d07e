#!/usr/bin/env python3
"""Training on a card, checked: gpu_train.py MEMFIT RESULTS [--seconds N] [--together N] [--models FOLDER...] [--table] PART[:JOBS]...
                             gpu_train.py MEMFIT RESULTS --show [PART...]

Parts:
    kinds    every kind of operation against the reference (check_kinds)
    curves   the trainings that Keras's own curves are kept of, and others: losses, metrics and validation as on the cpu device
    seeds    the programs S1 to S12 on the card; S2, S6 and S11 also as the C examples, where they lie beside memfit
    slices   M4 and S3 as the C example: 80 % of the card and a slice beside it (nobody else may use the card)
    ready    what limits runs, two steps each: its kernels are kept then, its limits known. May run beside others, limits should not
    limits   200 steps of each model at a limit; NVML's figure for the process, every 10 ms at least, is never above --memory
    fixed    ten starts: the fixed cost is the same within 4 MiB; a limit below it is refused, and the refusal names it
    steady   no host memory in steps by memfit; the driver's own requests, counted apart, are no more in five times the steps
    kills    50 times ended by SIGKILL and resumed, in five trainings; the file at the end is that of an undisturbed one, byte for byte
    lost     the context is lost in the middle of training: an explanation, a whole checkpoint, no hang
    versions a checkpoint that goes on elsewhere says so
    odd      cards that are not there, caches that cannot be used, signals while a run begins
    rounding ResNet50's first update by several engines, on the card and on the cpu
    full     a card that is full, and one that another process fills while training goes on (nobody else may use the card)
    sanitizer  one step of the small form of every family under memcheck and racecheck
    waits    how often the host waits for the card in an epoch (counted by a preloaded library)
    methods  own kernels beside the library's, timed where a plan takes them (bench_methods)
    groups   operations as one kernel beside one behind the other, timed where a plan makes one of them (bench_groups)
    ways     cuDNN's ways that are put before its first, timed beside that one (bench_engines)
    split    S7 at full size, in one piece and split (needs most of the card)
RESULTS is a file of JSON lines, one a case, keyed by the case, the card, driver and libraries, and a hash of the code that it is about
(kinds, methods, groups and ways: the backend's sources; all others: the program): what is there is not run again. --together N runs the parts side by side
(PART,PART one after the other), N processes at once in all and JOBS of a part, with one sampler of NVML for all of them. Prints one line a case and one a part, with --table one a
part of all that RESULTS has; --models, or GPU_CHECK_MODELS with colons between, names folders of models in place of those of tests/fixtures; --show runs nothing and has a line for each part that is named. The exit status is 1 when a case failed, 3 when cases are left for which the time did not suffice.
"""
import glob
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from gpu_faults import full, kills, lost, odd, versions
from gpu_limits import fixed, layers, limits, ready, steady
from gpu_numbers import curves, kinds, rounding, split
from gpu_results import NOT_BUILT, Card, Nvml, Results, Turns, found_library, in_parallel, libraries, program, too_late, train
from gpu_seeds import seeds, slices

ROOT = pathlib.Path(__file__).resolve().parent.parent


# Kernels of libraries are not looked at for races: they are not own, take most of the time, and some have what racecheck takes for hazards.
LIBRARIES = ",".join("kns=" + n for n in ("cudnn", "xmma", "nvjet", "cutlass", "cublas", "gemm", "gemv"))


def sanitizer(memfit, results, nvml, models, deadline):
    """One step of the small form of every family under compute-sanitizer, every kernel launched by itself; and a kernel that has a race, which must be found."""
    tool = shutil.which("compute-sanitizer") or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))), None)
    folder = pathlib.Path(os.environ.get("GPU_CHECK_FIXTURES", ROOT / "tests/fixtures")) / "cuda/small"
    if not tool:
        return "compute-sanitizer was not found: it comes with the CUDA toolkit"

    def under(which, *command, whole=False):
        chosen = ["--kernel-name-exclude", LIBRARIES] if which == "racecheck" and not whole else []
        return subprocess.run(["timeout", "-k", "2", str(max(10, int(deadline + 22 - time.time()))), tool, "--tool", which, *chosen, "--error-exitcode", "9", *command], capture_output=True, text=True,
                              env={**os.environ, "MEMFIT_RECORD": "0", "OMP_NUM_THREADS": "2"})

    def control():
        p = under("racecheck", sys.executable, str(ROOT / "tests/gpu/racy_kernel.py"), found_library(memfit, "NVRTC"))
        said = [line for line in p.stdout.splitlines() if "SUMMARY" in line]
        results.put("sanitizer control: a race is found", p.returncode == 9 and said and " 0 hazards" not in said[-1], rc=p.returncode, said=said[-1] if said else (p.stdout + p.stderr).strip()[-300:])

    def step(path, precision):
        return [memfit, "train", str(path), "--data", "synthetic:8", "-b", "8", "--steps", "1", "--precision", precision, "--device", "cuda", "--json", "--quiet"]

    def one(case, path, which, precision):
        began = time.time()
        p = under(which, *step(path, precision))
        whole = "Internal Sanitizer Error" in p.stdout # seen where some kernels are left out (2025.3 on an H200): then all of them
        if whole:
            p = under(which, *step(path, precision), whole=True)
        said = [line for line in p.stdout.splitlines() if "SUMMARY" in line]
        if p.returncode in (124, 137):
            return results.not_ended(case)
        kernels = sorted(set(re.findall(r" at (?:void )?([^\s(<+]+)[^\n]*?\+0x", p.stdout)))
        own = [k for k in kernels if len(k) < 24 and not k.startswith(("sm", "cudnn", "cublas", "cutlass"))] # a library's have long names
        clean = said and (" 0 errors" in said[-1] or " 0 hazards" in said[-1])
        return results.put(case, (p.returncode == 0 and clean) or (said and p.returncode == 9 and kernels and not own), rc=p.returncode, seconds=round(time.time() - began), libraries_too=whole or which == "memcheck", own=own,
                           library=[k[:90] for k in kernels if k not in own], said=said[-1] if said else (p.stdout + p.stderr).strip()[-300:],
                           text="" if p.returncode == 0 else "\n".join(line[:300] for line in p.stdout.splitlines() if line.startswith("====="))[:2000])

    families = sorted(folder.glob("*.keras"), key=lambda path: path.stem not in ("unet", "vit", "s7", "s9", "sound", "scan"))
    jobs = [(f"sanitizer {path.stem} {which} {precision}", path, which, precision) for which in ("racecheck", "memcheck") for precision in ("mixed_bfloat16", "float32") for path in families]
    only = ["sanitizer " + n for n in os.environ.get("GPU_CHECK_SANITIZER", "").split(",") if n] # "s9 racecheck float32", in this order
    jobs = sorted((j for j in jobs if j[0] in only), key=lambda j: only.index(j[0])) if only else jobs
    in_parallel([control] * (not results.has("sanitizer control: a race is found")) + [lambda j=j: one(*j) for j in jobs if not results.has(j[0])], 6, deadline)


def timed(memfit, results, deadline, part, name, first=()):
    """A program that times own kernels against what they replace, on shapes drawn by a seed where a plan takes them: family by family, each kept as soon as it is done. Good: faster on 15 of 20."""
    bench, shapes = program(memfit, name), "20"
    if not bench:
        return NOT_BUILT
    families = subprocess.run([bench, "list"], capture_output=True, text=True).stdout.splitlines()
    only = [f for f in os.environ.get("GPU_CHECK_FAMILIES", "").split(",") if f] # some of them, the others are left
    families = [f for f in families if not only or f in only]
    missing = sorted((f for f in families if not results.has(f"{part} {f}")), key=lambda f: not f.startswith(first or ("\0",)))
    if not missing or too_late(deadline):
        return None
    began, lines, verdicts = time.time(), [], []
    with subprocess.Popen([bench, shapes, os.environ.get("GPU_CHECK_SEED", "20261118"), *missing], stdout=subprocess.PIPE, text=True) as p:
        timer = threading.Timer(max(1, deadline - time.time()), p.kill)
        timer.start()
        for line in p.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip()[:160])
            if ": chosen and faster on " in line:
                verdicts.append(line.strip())
            elif line.endswith(": done\n"):
                family = line[:-len(": done\n")]
                counts = [v.split(" faster on ")[1].split(" of ") for v in verdicts]
                good = verdicts and all(int(of) == int(shapes) and int(won) >= 15 for won, of in counts)
                results.put(f"{part} {family}", good, seconds=round(time.time() - began, 1), said="; ".join(v[len(family):].strip(" :") for v in verdicts), lines=lines)
                began, lines, verdicts = time.time(), [], []
                missing.remove(family)
        timer.cancel()
    if missing:
        Turns.add_left(len(missing))
    return None


def methods(memfit, results, nvml, models, deadline):
    """Own kernels that a menu offers beside the library's."""
    return timed(memfit, results, deadline, "methods", "bench_methods")


def ways(memfit, results, nvml, models, deadline):
    """Where another of cuDNN's ways is put before its first, against that one."""
    return timed(memfit, results, deadline, "ways", "bench_engines")


def groups(memfit, results, nvml, models, deadline):
    """Operations run as one kernel, against one behind the other."""
    return timed(memfit, results, deadline, "groups", "bench_groups", first=("dense end", "pool+activation", "attention"))


def waits(memfit, results, nvml, models, deadline):
    """How often the host waits for the card in an epoch, by a preloaded library that counts the driver's calls (tests/gpu/count_waits.c): two runs that differ in one epoch."""
    counter, path = program(memfit, "libcount_waits.so"), str(next(m for m in models if m.stem == "cnn"))
    if not counter:
        return NOT_BUILT

    def one(case, more):
        counts = []
        with tempfile.TemporaryDirectory() as d:
            for epochs in (2, 3):
                rc, j, said, _ = train(memfit, path, "--data", "synthetic:1280", "-b", "32", "--epochs", str(epochs), *more, env={"LD_PRELOAD": counter, "WAITS_INTO": f"{d}/{epochs}"})
                if not j or not os.path.exists(f"{d}/{epochs}"):
                    return results.put(case, False, rc=rc, error=said)
                counts.append(json.loads(pathlib.Path(d, str(epochs)).read_text()))
        added = {k: counts[1][k] - counts[0][k] for k in counts[1] if counts[1][k] != counts[0][k]}
        syncs = sum(v for k, v in added.items() if "Async" not in k and "Query" not in k and k != "cuEventSynchronize") # queries and copies from pinned memory do not wait
        # An epoch waits once for its results, a validation once more. A host that is two pieces ahead of the card waits for the pinned memory of the piece before
        # (train/stage.h), and one that is 15 steps ahead for the time of a step (train/step_clock.h), with at least one piece queued: no more often than that.
        held, pieces = added.get("cuEventSynchronize", 0), 40 * (4 if "--gradient-accumulation" in more else 1)
        return results.put(case, 0 < syncs <= 1 + ("--validation-split" in more) and held <= pieces + 40, waits_an_epoch=syncs, held_back=held, pieces_an_epoch=pieces, calls_an_epoch=added)

    cases = (("waits", []), ("waits validation", ["--validation-split", "0.2"]), ("waits offload", ["--offload", "optimizer"]), ("waits in pieces", ["--gradient-accumulation", "4"]))
    in_parallel([lambda c=c: one(*c) for c in cases if not results.has(c[0])], 2, deadline)


PARTS = {f.__name__: f for f in (kinds, curves, rounding, split, seeds, slices, ready, limits, fixed, kills, lost, versions, odd, full, sanitizer, methods, groups, ways, waits, steady)}


def run_part(part, jobs, memfit, results, nvml, models, deadline):
    began, why = time.time(), None
    threading.current_thread().name = part
    Turns.since()
    if jobs:
        Turns.of_part[part] = jobs
    results.put_part(part, "some", "") # should nobody come to say how many
    try:
        why = PARTS[part](memfit, results, nvml, models, deadline)
    except (ImportError, OSError, subprocess.SubprocessError, ValueError, KeyError, StopIteration) as e:
        Turns.add_left()
        print(f"{part}: ended early: {e!r}", flush=True)
    mine, left = [r for c, r in results.seen.items() if c.split()[0].rstrip(":") == part], Turns.left.get(part, 0)
    why = "not run: " + why if isinstance(why, str) else ""
    results.put_part(part, left, why)
    good = why or f"{sum(r['good'] for r in mine)} of {len(mine)} good"
    print(f"== {part}: {good}{f', {left} left for the next time' if left else ''}, {time.time() - began:.0f} s", flush=True)


def keep(results, case, state, said):
    """What gpu-check's own parts showed, one case each."""
    if state == "skipped":
        results.put_part(case, 0, "not run: " + said)
    else:
        results.put(case, state == "ok", said=said)


def main():
    args = sys.argv[1:]
    seconds, folders, plain, table, together, asked = 480.0, [], [], False, 0, ()
    while args:
        a = args.pop(0)
        if a == "--table":
            table = True
        elif a in ("--has", "--keep", "--show", "--versions"): # of gpu-check
            many = {"--has": 1, "--keep": 3, "--show": 100, "--versions": 0}[a]
            asked, args = (a, *args[:many]), args[many:]
        elif a == "--seconds":
            seconds = float(args.pop(0))
        elif a == "--together":
            together = int(args.pop(0))
        elif a == "--models":
            folders.append(pathlib.Path(args.pop(0)))
        else:
            plain.append(a)
    if len(plain) < (2 if table or asked else 3) or any(p.split(":")[0] not in PARTS for lane in plain[2:] for p in lane.split(",")):
        sys.exit(__doc__)
    memfit, path = os.path.abspath(plain[0]), plain[1]
    known = os.environ.get("GPU_CHECK_VERSIONS") # asked once for many
    if asked == ("--versions",):
        return print(Card().versions() + libraries(memfit))
    if asked:
        results = Results(path, memfit, known or Card().versions() + libraries(memfit))
        sys.exit({"--show": lambda *p: results.print_table(p), "--has": lambda c: not results.has(c), "--keep": lambda *c: keep(results, *c)}[asked[0]](*asked[1:]))
    lanes = [[(p.split(":")[0], int(p.split(":")[1]) if ":" in p else 0) for p in lane.split(",")] for lane in plain[2:]]
    folders = folders or [pathlib.Path(f) for f in os.environ.get("GPU_CHECK_MODELS", "").split(":") if f]
    models = sorted((m for f in folders or [ROOT / "tests/fixtures/cuda" / d for d in ("drawn", "chosen", "../train", "models")] for m in f.glob("*.keras")), key=layers)
    nvml = Nvml()
    results = Results(path, memfit, known or nvml.versions() + libraries(memfit))
    rest = (memfit, results, nvml, models, time.time() + seconds)
    if together:
        nvml.every(0.02) # plateaus are seen all the same, and the driver has time for those it is asked for
        Turns.all_of_them = threading.Semaphore(together)
        threads = [threading.Thread(target=lambda parts=parts: [run_part(*p, *rest) for p in parts]) for parts in lanes]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    else:
        for p in [p for parts in lanes for p in parts]:
            run_part(*p, *rest)
    nvml.end()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"all parts: {used.ru_utime:.0f} s of a core in programs, {used.ru_stime:.0f} s in the system", flush=True)
    if table:
        results.print_table()
    sys.exit(1 if results.failed else 3 if sum(Turns.left.values()) else 0)


main()
