#!/usr/bin/env python3
"""PyTorch programs as they are: `memfit.torch_trace` and `memfit plan TRACE --runtime torch` beside what they really took.

    torch_truth.py run MEASURED [--seed S] [--most SECONDS] [--together] [--at-once N]
                                                               measures the cases that MEASURED lacks (needs PyTorch and an NVIDIA card)
    torch_truth.py record DIR [--seed S] [--at-once N]         records a fake step of each and plans it (needs PyTorch and the memfit package, no card)
    torch_truth.py judge MEASURED [--seed S] [--steps DIR]     the same for the measured ones, or plans what `record` left in DIR, and prints the table

With --seed the drawn cases (eight models, or --count N), else the fixed ones; a seed that begins with "strata-" draws the rest and has a VGG, an LSTM, a U-Net and attention in
it always. Every case runs in a process of its own, forked after PyTorch was read and before it has met
the card, N at a time and while ROOM_MIB of it are free; with --together all run in one, which is faster, and NVML's figure is not kept, as it holds the kernels of earlier cases. TRACE_TO names a
folder that gets what the allocator was asked for, in all cases or in those of TRACE_CASES. MEMFIT names the program.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a card must not make a context before the fork
here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import torch_cases  # noqa: E402

MIB = 1 << 20
RESERVE_MIB = 623  # of an H200's memory that the driver keeps: in memfit's fixed cost, in no process's figure


def read(path):
    try:
        return [json.loads(line) for line in open(path)]
    except FileNotFoundError:
        return []


COUNT = 8  # models of a drawing


def cases(seed):
    """The most valuable first: each model once before any a second time."""
    plain = seed.removeprefix("strata-")
    table = torch_cases.draw(plain, COUNT, plain != seed) if seed else torch_cases.CASES
    for which, precision in ((0, "tf32"), (1, "bf16"), (0, "bf16"), (1, "tf32")):
        for name, (builder, arguments, batches) in table.items():
            yield "%s:%d:%s" % (name, batches[which], precision), (name, arguments, builder, batches[which], precision)


def keep_trace(torch, name):
    """What the allocator was asked for: action, address, bytes."""
    import gzip
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    with gzip.open(os.path.join(os.environ["TRACE_TO"], name + ".txt.gz"), "wt") as f:
        for e in snapshot["device_traces"][0]:
            f.write("%s %x %d\n" % (e["action"], e.get("addr", 0), e["size"]))


def in_one(torch, case, row, out):
    import gc
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.time()
    try:
        measure(torch, case, row)
    except Exception as e:  # the next case may still run
        row["error"] = ("%s: %s" % (type(e).__name__, e))[:300]
    row["seconds"] = round(time.time() - start, 1)
    row.pop("process_bytes", None)
    with open(out, "a") as f:
        f.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def measure(torch, case, row):
    from measure_framework_nvml import nvml
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    wanted = os.environ.get("TRACE_CASES", "all").split(",")
    traced = os.environ.get("TRACE_TO") and (row["case"] in wanted or wanted == ["all"])
    if traced:
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=400000)
    step = torch_cases.make(torch, *case, "cuda")()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    if traced:
        keep_trace(torch, row["case"].replace(":", "-"))
    row["live_bytes"], row["pool_bytes"] = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    row["process_bytes"], row["card_bytes"] = nvml(torch.cuda.memory_reserved())


def in_a_fork(work, row, out):
    """Returns the child's number; the child writes its row and ends."""
    child = os.fork()
    if child:
        return child
    start = time.time()
    try:
        work(row)
    except Exception as e:  # the next case may still run
        row["error"] = ("%s: %s" % (type(e).__name__, e))[:300]
    row["seconds"] = round(time.time() - start, 1)
    with open(out, "a") as f:
        f.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    os._exit(0)


def run(out, seed, most, together, at_once):
    import torch
    from measure_framework_nvml import room
    begin, have, children = time.time(), {r["case"] for r in read(out) if together or "error" in r or r.get("process_bytes")}, set()
    for text, case in cases(seed):
        if text in have:
            continue
        if time.time() - begin > most:
            break
        row = {"case": text, "runtime": "torch", "versions": {"torch": torch.__version__}, "arguments": case[1]}
        if together:
            in_one(torch, case, row, out)
        else:
            while len(children) >= at_once or children and not room():
                children.discard(os.wait()[0])
            children.add(in_a_fork(lambda r, case=case: measure(torch, case, r), row, out))
    for child in children:
        os.waitpid(child, 0)


def step_name(text):
    return text.replace(":", "-") + ".csv"


def record(folder, seed, at_once):
    import memfit as package
    import torch
    os.makedirs(folder, exist_ok=True)
    children = set()

    def answer(row, case):
        path = os.path.join(folder, step_name(row["case"]))
        package.torch_trace(torch_cases.make(torch, *case, "cuda"), path)
        row["record_seconds"] = round(time.process_time(), 2)
        row["in_framework"] = plan_step(os.environ.get("MEMFIT", "build/memfit"), path)
    for text, case in cases(seed):
        while len(children) >= at_once:
            children.discard(os.wait()[0])
        children.add(in_a_fork(lambda r, case=case: answer(r, case), {"case": text}, os.path.join(folder, "answers.jsonl")))
    for child in children:
        os.waitpid(child, 0)


def plan_step(memfit, path):
    got = subprocess.run([memfit, "plan", path, "--for", "h200", "--runtime", "torch", "--json"], capture_output=True, text=True, check=False)
    if got.returncode not in (0, 3):
        raise RuntimeError(got.stderr)
    return json.loads(got.stdout)["in_framework"]


def plan(memfit, torch, package, case):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step.csv")
        start = time.time()
        package.torch_trace(torch_cases.make(torch, *case, "cuda"), path)
        return plan_step(memfit, path), time.time() - start


def judge(measured, seed, steps):
    package = torch = None
    if not steps:
        import memfit as package
        import torch
    memfit = os.environ.get("MEMFIT", "build/memfit")
    known = dict(cases(seed))
    errors, pools, inside, widths, slowest, above = [], [], [], [], 0, []
    print("%-34s %9s %9s %7s   %9s  %s" % ("case", "live MiB", "predicted", "", "process", "band"))
    for r in read(measured):
        if r["case"] not in known:
            continue
        if "error" in r:
            print("%-34s %s" % (r["case"], r["error"][:90]))
            continue
        if steps:
            start = time.time()
            x, seconds = plan_step(memfit, os.path.join(steps, step_name(r["case"]))), time.time() - start
        else:
            x, seconds = plan(memfit, torch, package, known[r["case"]])
        slowest = max(slowest, seconds)
        error = x["live_bytes"] / r["live_bytes"] - 1
        process = r.get("process_bytes", 0) / MIB
        low, high = x["low_bytes"] / MIB - RESERVE_MIB, x["high_bytes"] / MIB - RESERVE_MIB
        errors.append(abs(error))
        pools.append(abs(x["pool_bytes"] / r["pool_bytes"] - 1))
        if process:
            inside.append(low <= process <= high)
            widths.append((high - low) / process)
            above.append(process / high - 1)
        print("%-34s %9.0f %9.0f %+6.1f%%   %9.0f  %.0f to %.0f" % (r["case"], r["live_bytes"] / MIB, x["live_bytes"] / MIB, 100 * error, process, low, high))
    if errors:
        errors.sort()
        print("\n%d cases  live: median %.1f %%  95th %.1f %%  worst %.1f %%; pool: median %.1f %%; slowest answer %.1f s" % (
            len(errors), 100 * statistics.median(errors), 100 * errors[int(0.95 * (len(errors) - 1))], 100 * errors[-1], 100 * statistics.median(pools),
            slowest))
    if inside:
        print("process inside the band %d of %d, band %.0f %% wide in the median, above its end by %.1f %% at most" % (
            sum(inside), len(inside), 100 * statistics.median(widths), max(0, 100 * max(above))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "record", "judge"))
    parser.add_argument("measured")
    parser.add_argument("--seed", default="")
    parser.add_argument("--most", type=float, default=1e9)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--steps", default="")
    parser.add_argument("--count", type=int, default=COUNT)
    a = parser.parse_args()
    globals().update(COUNT=a.count)
    if a.what == "run":
        run(a.measured, a.seed, a.most, a.together, a.at_once)
    elif a.what == "record":
        record(a.measured, a.seed, a.at_once)
    else:
        judge(a.measured, a.seed, a.steps)


if __name__ == "__main__":
    main()
