#!/usr/bin/env python3
"""PyTorch's allocators side by side on three workloads: default, expandable segments, memfit's pool.

    bench/torch_workloads.py [--library build/libmemfit.so] [--rounds N] [--epochs N] [--json FILE] [--workload W,...] [--allocator A,...]

Each (workload, allocator) pair runs in a process of its own (forked when PyTorch is loaded, before it touches the card), every pair
once a round; the parent samples NVML's figure for it every
10 ms. "live" is the peak of allocated bytes as the allocator counts them; "process" the peak NVML showed; "fixed" what the process holds
beside the allocator. An epoch is 16 steps; where shapes change they are drawn once and come in another order in every epoch. The first
epoch is not timed: cuDNN chooses and loads its kernels for every new shape then. Times are the mean of a step over the later epochs, of
the best round. Ends with the sequence workload under a limit of 1.05 x its live peak. Needs an NVIDIA GPU and PyTorch.
"""
import argparse
import ctypes
import json
import os
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


def child(args):
    import torch
    memfit = None
    if args.allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    if args.allocator.startswith("memfit"):
        memfit = ctypes.CDLL(args.library)
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(args.library, "memfit_torch_alloc", "memfit_torch_free"))
    elif args.limit:
        torch.cuda.set_per_process_memory_fraction(args.limit / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(0)
    generator = __import__("random").Random(1)
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
        live, reserved, fixed, counts = v[1], v[3], v[4], dict(remaps=v[5], remapped_pages=v[6], created_pages=v[7], stream_waits=v[8], allocations=v[9])
    else:
        live, reserved, fixed, counts = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), 0, {}
    late = times[EPOCH:] or times
    print("RESULT " + json.dumps(dict(live=live, reserved=reserved, fixed=fixed, mean_ms=sum(late) / len(late) * 1e3,
                                      median_ms=sorted(late)[len(late) // 2] * 1e3, first_ms=sum(times[:EPOCH]) / EPOCH * 1e3, losses=losses, **counts)), flush=True)


# ---- the parent ---------------------------------------------------------------------------------------------------------
class Nvml:
    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlInit_v2()
        self.device = ctypes.c_void_p()
        self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))

    def of(self, pid):
        count, rows = ctypes.c_uint(64), (self.Process * 64)()
        self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), rows)
        return next((rows[i].bytes for i in range(count.value) if rows[i].pid == pid), 0)


def run(args, nvml, workload, allocator, limit=0, epochs=0):
    readable, writable = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(writable, 1)
            os.dup2(writable, 2)
            os.close(readable)
            sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
            if allocator.startswith("memfit") and limit:
                os.environ["MEMFIT_MEMORY"] = str(limit)
            child(argparse.Namespace(workload=workload, allocator=allocator, library=os.path.abspath(args.library), epochs=epochs or args.epochs, limit=limit))
            code = 0
        except BaseException as e:
            print(f"{type(e).__module__}.{type(e).__name__}: {e}".splitlines()[0])
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writable)
    peak, stop = [0], threading.Event()

    def sample():
        while not stop.is_set():
            peak[0] = max(peak[0], nvml.of(pid))
            time.sleep(0.01)

    thread = threading.Thread(target=sample)
    thread.start()
    with os.fdopen(readable, errors="replace") as pipe:
        out = pipe.read()
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    stop.set()
    thread.join()
    row = next((json.loads(line[7:]) for line in out.splitlines() if line.startswith("RESULT ")), None) or dict(failed=out.strip().splitlines()[-1][:160] if out.strip() else "?")
    row.update(workload=workload, allocator=allocator, process=peak[0], exit=exit_code, limit=limit)
    return row


def show(r, default):
    if "live" not in r:
        print(f"{r['workload']:18} {r['allocator']:12} failed: {r['failed']}", flush=True)
        return
    far = max(abs(x - y) for x, y in zip(r["losses"], default["losses"])) if default else 0
    print(f"{r['workload']:18} {r['allocator']:12} {r['live'] / 1e9:8.3f} {r['reserved'] / r['live']:13.4f} {r['process'] / 1e9:10.3f} {r['mean_ms']:8.2f} {r['median_ms']:8.2f} "
          f"{r['first_ms']:8.1f} {r['losses'][-1]:10.4f} {'same' if not far else '%.0e' % far:>6}"
          + (f"  [{r['remaps']} remaps of {r['remapped_pages']} pages, {r['stream_waits']} waits, {r['allocations']} allocations]" if "remaps" in r else ""), flush=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--library", default="build/libmemfit.so")
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--epochs", type=int, default=4)
    a.add_argument("--json")
    a.add_argument("--child", action="store_true")
    a.add_argument("--workload", default=",".join(WORKLOADS))
    a.add_argument("--allocator", default=",".join(ALLOCATORS))
    a.add_argument("--limit", type=int, default=0)
    args = a.parse_args()
    if args.child:
        return child(args)
    import torch  # noqa: F401, once for all children
    nvml, rows, best = Nvml(), [], {}
    print(f"{'workload':18} {'allocator':12} {'live GB':>8} {'reserved/live':>13} {'process GB':>10} {'ms/step':>8} {'median':>8} {'1st epoch':>8} {'last loss':>10} {'losses':>6}", flush=True)
    for w in args.workload.split(","):
        for _ in range(args.rounds):
            for al in args.allocator.split(","):
                r = run(args, nvml, w, al)
                rows.append(r)
                show(r, best.get((w, "default")))
                old = best.get((w, al))
                if "live" in r and (not old or r["mean_ms"] < old["mean_ms"]):
                    best[w, al] = r
    print("\nbest round; beside the better of PyTorch's two")
    for w in args.workload.split(","):
        peers = [best[w, al]["mean_ms"] for al in ("default", "expandable") if (w, al) in best]
        for al in args.allocator.split(","):
            if (w, al) in best:
                r = best[w, al]
                print(f"{w:18} {al:12} memory {r['reserved'] / r['live']:.4f} x live   process {(r['process'] - r['live']) / 1e6:7.1f} MB above live   {r['mean_ms']:8.2f} ms"
                      + (f"   time {r['mean_ms'] / min(peers):.4f}" if peers else ""), flush=True)
    if ("varying-sequences", "memfit") in best and ("varying-sequences", "default") in best:
        m = best["varying-sequences", "memfit"]
        live, fixed = m["live"], m["process"] - m["reserved"]
        print(f"\nvarying-sequences under a limit of 1.05 x live = {live * 1.05 / 1e9:.3f} GB" + f" (memfit: plus the fixed cost, {fixed / 1e6:.0f} MB)")
        for al, limit in (("default", int(live * 1.05)), ("expandable", int(live * 1.05)), ("memfit", int(live * 1.05) + fixed)):
            r = run(args, nvml, "varying-sequences", al, limit, epochs=1)
            rows.append(r)
            print(f"  {al:12} " + (f"completes, process {r['process'] / 1e9:.3f} GB, {r['mean_ms']:.1f} ms/step" if "live" in r else f"fails: {r['failed']}"), flush=True)
    if args.json:
        json.dump(rows, open(args.json, "w"), indent=1)


if __name__ == "__main__":
    main()
