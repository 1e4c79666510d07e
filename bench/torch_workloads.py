#!/usr/bin/env python3
"""PyTorch's allocators side by side on three workloads: default, expandable segments, memfit's pool.

    bench/torch_workloads.py [--library build/libmemfit.so] [--rounds N] [--epochs N] [--seconds N] [--json FILE] [--workload W,...] [--allocator A,...] [--cores N] [--no-limit]

Every allocator has a process of its own (forked when PyTorch is loaded, before it touches the card). The processes of a workload take
turns: each makes its step 0, then each its step 1, in another order every time, and only one runs at a time. A step of a
small image waits for Python, and how fast Python is on a shared host changes within seconds by a tenth: run one after the other, the
same allocator differs from itself by 5 %. A round is fresh processes.

An epoch is 16 steps; where shapes change they are drawn once and come in another order in every epoch, the same for all. The first epoch
is not timed: cuDNN chooses and loads its kernels for every new shape then. "ms/step" is the mean of a step over the later epochs; the
ratio is to the same of the better of PyTorch's two, with the standard error over the epochs. The parent samples NVML's figures every
10 ms: "process" is their peak. "live" is the peak of allocated bytes as the allocator counts them.
Ends with the sequence workload under a limit of 1.05 x its live peak. Needs an NVIDIA GPU and PyTorch.

An allocator is default, expandable or memfit, with settings of its own and a name if it is wanted twice:
memfit@other/libmemfit.so+MEMFIT_SLACK=2%, expandable#again.
"""
import argparse
import ctypes
import json
import os
import random
import re
import statistics
import sys
import threading
import time

WORKLOADS = ["resnet-fixed", "varying-images", "varying-sequences"]
ALLOCATORS = ["default", "expandable", "memfit"]
EPOCH = 16


# ---- the child: one workload under one allocator ------------------------------------------------------------------------
def resnet50(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, cin, mid, stride):
            super().__init__()
            cout = mid * 4
            self.f = nn.Sequential(nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(True),
                                   nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(True),
                                   nn.Conv2d(mid, cout, 1, bias=False), nn.BatchNorm2d(cout))
            self.s = nn.Identity() if stride == 1 and cin == cout else nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
            self.r = nn.ReLU(True)

        def forward(self, x):
            return self.r(self.f(x) + self.s(x))

    layers, cin = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
    for mid, n, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(n):
            layers.append(Block(cin, mid, stride if i == 0 else 1))
            cin = mid * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def child(args, my_turn):
    import torch
    memfit, steps = None, []
    if args.allocator.startswith("expandable"):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    if args.allocator.startswith("memfit"):
        memfit = ctypes.CDLL(args.library)
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(args.library, "memfit_torch_alloc", "memfit_torch_free"))
    elif args.limit:
        torch.cuda.set_per_process_memory_fraction(args.limit / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(0)
    generator = random.Random(1)
    F = torch.nn.functional
    if args.workload == "varying-sequences":
        nn, width, vocab = torch.nn, 1024, 8192

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.e = nn.Embedding(vocab, width)
                self.b = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True), 8,
                                               enable_nested_tensor=False)
                self.o = nn.Linear(width, vocab)

            def forward(self, t):
                return self.o(self.b(self.e(t)))

        model = Model().cuda()
    else:
        model = resnet50(torch).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    lengths = [generator.randrange(1, 65) * 32 for _ in range(EPOCH)]
    tests = [generator.randrange(1, 65) * 32 for _ in range(EPOCH)]
    images = [(generator.randrange(4, 12) * 32, generator.randrange(2, 9) * 8, i % 2 == 1) for i in range(EPOCH)]
    losses, times, order = [], [], list(range(EPOCH))
    for step in range(args.epochs * EPOCH):
        if step and step % EPOCH == 0:
            generator.shuffle(order)
        shape = order[step % EPOCH]
        my_turn()
        torch.cuda.synchronize()
        start = time.perf_counter()
        if args.workload == "varying-sequences":
            length = lengths[shape]
            tokens = torch.randint(0, 8192, (8, length), device="cuda", generator=torch.Generator("cuda").manual_seed(step))
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if shape % 5 == 4:
                with torch.no_grad():
                    model(torch.zeros((16, tests[shape]), dtype=torch.long, device="cuda")).sum()
        else:
            side, batch, half = 224, 64, False
            if args.workload == "varying-images":
                side, batch, half = images[shape]
            x = torch.randn(batch, 3, side, side, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
            y = torch.arange(batch, device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if memfit:
            v = (ctypes.c_uint64 * 16)()
            memfit.memfit_torch_stats(0, v, 16)
            steps.append([shape, v[5], v[6], v[7], v[8], v[11]])
        else:
            steps.append([shape])
    if memfit:
        live, reserved, fixed, counts = v[1], v[3], v[4], dict(remaps=v[5], remapped_pages=v[6], created_pages=v[7], stream_waits=v[8], allocations=v[9])
    else:
        live, reserved, fixed, counts = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), 0, {}
    late = times[EPOCH:] or times
    print("RESULT " + json.dumps(dict(live=live, reserved=reserved, fixed=fixed, mean_ms=sum(late) / len(late) * 1e3,
                                      median_ms=sorted(late)[len(late) // 2] * 1e3, first_ms=sum(times[:EPOCH]) / EPOCH * 1e3, losses=losses, times_ms=[round(t * 1e3, 4) for t in times], steps=steps, **counts)), flush=True)


# ---- the parent ---------------------------------------------------------------------------------------------------------
class Nvml:
    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlInit_v2()
        self.device = ctypes.c_void_p()
        self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))

    def all(self):
        count, rows = ctypes.c_uint(64), (self.Process * 64)()
        self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), rows)
        return {rows[i].pid: rows[i].bytes for i in range(count.value)}


class Runner:
    """A process with one workload under one allocator. It makes a step whenever it is told to."""

    def __init__(self, args, workload, allocator, limit=0, epochs=0):
        self.workload, self.allocator, self.limit, self.out, self.peak = workload, allocator, limit, [], 0
        kind, library, settings, _ = re.fullmatch(r"([a-z]+)(?:@([^+#]+))?((?:\+[^+#]+)*)(#.*)?", allocator).groups()
        told, self.tell = os.pipe()
        readable, writable = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                ctypes.CDLL(None).prctl(1, 9)  # ends with its parent
                os.dup2(writable, 1)
                os.dup2(writable, 2)
                os.close(self.tell)
                os.close(readable)
                sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
                if args.cores:
                    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-args.cores:])
                os.environ.update(x.split("=", 1) for x in settings.split("+")[1:])
                if kind == "memfit" and limit:
                    os.environ["MEMFIT_MEMORY"] = str(limit)

                def my_turn():
                    print("READY", flush=True)
                    os.read(told, 1)

                child(argparse.Namespace(workload=workload, allocator=kind, library=os.path.abspath(library or args.library), epochs=epochs or (max(2, args.epochs // 3) if workload == "varying-sequences" else args.epochs), limit=limit),
                      my_turn)
                code = 0
            except BaseException as e:
                print(f"{type(e).__module__}.{type(e).__name__}: {e}".splitlines()[0])
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(told)
        os.close(writable)
        self.pipe = os.fdopen(readable, errors="replace")

    def ready(self):
        """Waits until it is ready for the next step; False: it has ended."""
        for line in self.pipe:
            if line == "READY\n":
                return True
            self.out.append(line)
        return False

    def step(self):
        os.write(self.tell, b"x")
        return self.ready()

    def end(self, number):
        self.out += list(self.pipe)
        self.pipe.close()
        os.close(self.tell)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        row = next((json.loads(line[7:]) for line in self.out if line.startswith("RESULT ")), None)
        row = row or dict(failed=self.out[-1].strip()[:160] if self.out else "?")
        row.update(workload=self.workload, allocator=self.allocator, process=self.peak, exit=code, limit=self.limit, round=number)
        return row


def take_turns(args, nvml, runners, number=0):
    stop = threading.Event()

    def sample():
        while not stop.is_set():
            now = nvml.all()
            for r in runners:
                r.peak = max(r.peak, now.get(r.pid, 0))
            time.sleep(0.01)

    thread = threading.Thread(target=sample)
    thread.start()
    active, order = [r for r in runners if r.ready()], random.Random(number)
    while active:
        order.shuffle(active)
        active = [r for r in active if r.step()]
    rows = [r.end(number) for r in runners]
    stop.set()
    thread.join()
    return rows


def show(r, default):
    if "live" not in r:
        print(f"{r['workload']:18} {r['allocator']:12} failed: {r['failed']}", flush=True)
        return
    far = max(abs(x - y) for x, y in zip(r["losses"], default["losses"])) if default else 0
    print(f"{r['workload']:18} {r['allocator']:12} {r['live'] / 1e9:8.3f} {r['reserved'] / r['live']:13.4f} {r['process'] / 1e9:10.3f} {r['mean_ms']:8.2f} {r['median_ms']:8.2f} "
          f"{r['first_ms']:8.1f} {r['losses'][-1]:10.4f} {'same' if not far else '%.0e' % far:>6}"
          + (f"  [{r['remaps']} remaps of {r['remapped_pages']} pages, {r['stream_waits']} waits, {r['allocations']} allocations]" if "remaps" in r else ""), flush=True)


def epochs_of(r):
    return [sum(r["times_ms"][i:i + EPOCH]) / EPOCH for i in range(EPOCH if len(r["times_ms"]) > EPOCH else 0, len(r["times_ms"]), EPOCH)]


def typical_ms(r):
    """The mean over the 16 steps of an epoch of each one's median over the timed epochs: a slow second of the host does not count."""
    late = [(s[0], t) for s, t in zip(r["steps"], r["times_ms"])][EPOCH if len(r["times_ms"]) > EPOCH else 0:]
    return statistics.mean(statistics.median(t for s, t in late if s == shape) for shape in {s for s, _ in late})


def summary(rows, workload, names, best):
    """Over all rounds, beside the better of PyTorch's own two."""
    of = {al: [r for r in rows if r["workload"] == workload and r["allocator"] == al and "live" in r] for al in names}
    mean = {al: statistics.mean(r["mean_ms"] for r in of[al]) for al in names if of[al]}
    better = min((al for al in ("default", "expandable") if al in mean), key=lambda al: mean[al], default=None)
    print(f"\n{workload}" + (f": times beside {better}, the better of PyTorch's two" if better else ""))
    for al in mean:
        r = best[workload, al] = max(of[al], key=lambda r: r["process"])  # memory: the worst round
        line = f"  {al:12} memory {r['reserved'] / r['live']:.4f} x live   process {(r['process'] - r['live']) / 1e6:7.1f} MB above live   {mean[al]:8.2f} ms"
        pairs = [(r, p) for r in of[al] for p in of.get(better, []) if p["round"] == r["round"]]
        ratios = [a / b for r, p in pairs for a, b in zip(epochs_of(r), epochs_of(p))]
        if ratios and al != better:
            error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0
            line += f"   time {mean[al] / mean[better]:.4f} +- {error:.4f} over {len(ratios)} epochs; rounds " + " ".join(f"{r['mean_ms'] / p['mean_ms']:.4f}" for r, p in pairs)
            line += "; by medians of each step " + " ".join(f"{typical_ms(r) / typical_ms(p):.4f}" for r, p in pairs)
        print(line, flush=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--library", default="build/libmemfit.so")
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--epochs", type=int, default=12, help="a third of them, but at least 2, of sequences: their steps are long")
    a.add_argument("--json")
    a.add_argument("--workload", default=",".join(WORKLOADS))
    a.add_argument("--allocator", default=",".join(ALLOCATORS))
    a.add_argument("--seconds", type=int, default=0, help="no further round that would end later")
    a.add_argument("--cores", type=int, default=0, help="all processes run on the last so many, by turns: where steps wait for Python, one core is faster than another")
    a.add_argument("--no-limit", action="store_true", help="without the run under a limit at the end")
    args = a.parse_args()
    import torch  # noqa: F401, once for all children
    nvml, rows, begun = Nvml(), [], time.time()
    names, workloads = args.allocator.split(","), args.workload.split(",")
    print(f"{'workload':18} {'allocator':12} {'live GB':>8} {'reserved/live':>13} {'process GB':>10} {'ms/step':>8} {'median':>8} {'1st epoch':>8} {'last loss':>10} {'losses':>6}", flush=True)
    for number in range(args.rounds):
        if args.seconds and number and (time.time() - begun) * (number + 1) / number > args.seconds:
            print(f"(no round {number + 1}: it would end after {args.seconds} s)")
            break
        for w in workloads:
            first = next((r for r in rows if r["workload"] == w and r["allocator"] == "default" and "live" in r), None)
            for r in take_turns(args, nvml, [Runner(args, w, al) for al in names], number):
                rows.append(r)
                first = first or (r if r["allocator"] == "default" and "live" in r else None)
                show(r, first)
        if args.json:
            json.dump(rows, open(args.json, "w"))
    best = {}
    for w in workloads:
        summary(rows, w, names, best)
    if not args.no_limit and ("varying-sequences", "memfit") in best and ("varying-sequences", "default") in best:
        m = best["varying-sequences", "memfit"]
        live, fixed = m["live"], m["process"] - m["reserved"]
        print(f"\nvarying-sequences under a limit of 1.05 x live = {live * 1.05 / 1e9:.3f} GB" + f" (memfit: plus the fixed cost, {fixed / 1e6:.0f} MB)")
        for al, limit in (("default", int(live * 1.05)), ("expandable", int(live * 1.05)), ("memfit", int(live * 1.05) + fixed)):
            r = take_turns(args, nvml, [Runner(args, "varying-sequences", al, limit, epochs=1)])[0]
            rows.append(r)
            print(f"  {al:12} " + (f"completes, process {r['process'] / 1e9:.3f} GB, {r['mean_ms']:.1f} ms/step" if "live" in r else f"fails: {r['failed']}"), flush=True)
    if args.json:
        json.dump(rows, open(args.json, "w"))


if __name__ == "__main__":
    main()
