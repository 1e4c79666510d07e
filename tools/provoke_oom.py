#!/usr/bin/env python3
"""Provokes out-of-memory failures of known cause with PyTorch and JAX on a GPU, and runs each mended program.

    tools/provoke_oom.py OUTDIR [NAME-PREFIX...]
    tools/provoke_oom.py --cpu OUTDIR [NAME-PREFIX...]     TensorFlow's failures, which need no GPU

    tools/provoke_oom.py --held-out OUTDIR [PREFIX...]     programs the rules of explain were not made with (oom_held_out.py)
    tools/provoke_oom.py --tensorflow OUTDIR [PREFIX...]   TensorFlow on a GPU: what only its own settings mend

Writes OUTDIR/<name>.log (what the user would see: standard output and error together), OUTDIR/cases.json (cause, settings,
exit status, whether each mended form survived) and, for two cases, a memory snapshot. Every case is a small program run in a
process of its own; `hog` gives the GiB another process holds meanwhile (negative: it leaves so many MiB), or names what that
process does. A mended form is named by the class of suggestion (src/diagnose/oom_suggest.c) that it follows, "" when it follows
several at once; None for its program is the program that failed. Needs an NVIDIA GPU with at least 100 GB.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time

TORCH = """
import torch, sys
G = 1 << 30
def gib(x): return torch.empty(int(x * G), dtype=torch.uint8, device="cuda")
def limit(gb): torch.cuda.set_per_process_memory_fraction(gb * G / torch.cuda.get_device_properties(0).total_memory)
def convnet(): return torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1),
    torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)).cuda()
def step(model, opt, n, side=128):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(n, 3, side, side, device="cuda")), torch.zeros(n, dtype=torch.long, device="cuda"))
    opt.zero_grad(); loss.backward(); opt.step()
    return loss
"""
JAX = """
import jax, jax.numpy as jnp, sys
G = 1 << 30
def gib(x): return jax.block_until_ready(jnp.zeros((int(x * G),), dtype=jnp.uint8))
"""
FRAGMENT = """
limit({limit})
small, large = [], []
for i in range({n}):
    whole = gib({segment}); del whole
    small.append(gib({segment} * 0.06)); large.append(gib({segment} * 0.93))
large.clear()
print("allocated", torch.cuda.memory_allocated() >> 20, "MiB, reserved", torch.cuda.memory_reserved() >> 20, "MiB")
x = gib({ask})
"""
EXPAND = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def case(name, cause, lib, code, env=None, hog=0, mended=(), snapshot=False, alone=None):
    head = {"torch": TORCH, "jax": JAX, "file": ""}[lib]
    return dict(name=name, cause=cause, code=head + textwrap.dedent(code), env=env or {}, hog=hog, file=lib == "file", alone=alone,
                mended=[dict(change=c, code=None if m is None else head + textwrap.dedent(m), env=e, hog=h) for c, m, e, h in mended],
                snapshot=snapshot)


def all_cases():
    c = []
    # -- too large: the request or the step cannot fit the card, whoever asks
    for g in (160, 400):
        c.append(case(f"torch-too-large-tensor-{g}", "too-large", "torch", f"x = gib({g})"))
    for n in (8192, 16384):
        c.append(case(f"torch-too-large-conv-{n}", "too-large", "torch",
                      f"m = convnet(); o = torch.optim.Adam(m.parameters())\nstep(m, o, {n})",
                      mended=[("batch", "m = convnet(); o = torch.optim.Adam(m.parameters())\nstep(m, o, 512)", {}, 0)]))
    c.append(case("torch-too-large-attention", "too-large", "torch", """
        a = torch.nn.MultiheadAttention(512, 8, batch_first=True).cuda()
        x = torch.randn(8, 65536, 512, device="cuda")
        a(x, x, x, need_weights=True)"""))
    c.append(case("torch-too-large-optimizer", "too-large", "torch", """
        m = torch.nn.Linear(90000, 120000, bias=False, device="cuda"); o = torch.optim.Adam(m.parameters())
        for s in range(3):
            m(torch.randn(4, 90000, device="cuda")).sum().backward(); o.step(); print("step", s)"""))
    c.append(case("torch-too-large-expandable", "too-large", "torch", "x = gib(100)\ny = gib(60)", env=EXPAND))
    # -- limit: it would fit the card, the limit forbids it
    for gb, n in ((2, 512), (6, 1024), (12, 2048)):
        body = f"m = convnet(); o = torch.optim.Adam(m.parameters())\nstep(m, o, {n})"
        c.append(case(f"torch-limit-fraction-{gb}", "limit", "torch", f"limit({gb})\n" + body,
                      mended=[("limit-torch", body, {}, 0), ("batch", f"limit({gb})\n" + body.replace(str(n), "32"), {}, 0)]))
    c.append(case("torch-limit-conf", "limit", "torch", "a = gib(3)\nb = gib(3)", env={"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.03"},
                  mended=[("limit-torch", "a = gib(3)\nb = gib(3)", {}, 0)]))
    c.append(case("torch-limit-expandable", "limit", "torch", "limit(4)\na = gib(3)\nb = gib(2)", env=EXPAND, snapshot=True,
                  mended=[("limit-torch", "limit(8)\na = gib(3)\nb = gib(2)", EXPAND, 0)]))
    # -- fragmentation: enough is free inside the allocator, in pieces
    for i, (lim, n, segment, ask) in enumerate(((7, 6, 1, 1.5), (12, 5, 2, 3), (5, 16, 0.25, 2))):
        code = FRAGMENT.format(limit=lim, n=n, segment=segment, ask=ask)
        c.append(case(f"torch-fragmentation-{i}", "fragmentation", "torch", code, snapshot=i == 0,
                      mended=[("expandable", code, EXPAND, 0)]))
    # -- another process holds the card
    for hog, ask in ((100, 50), (125, 20), (134, 8)):
        c.append(case(f"torch-other-process-{hog}", "other-process", "torch", f"x = gib({ask})", hog=hog, mended=[("stop-process", f"x = gib({ask})", {}, 0)]))
    c.append(case("torch-other-process-conv", "other-process", "torch", "m = convnet(); o = torch.optim.Adam(m.parameters())\nstep(m, o, 2048)", hog=120,
                  mended=[("batch", "m = convnet(); o = torch.optim.Adam(m.parameters())\nstep(m, o, 64)", {}, 120)]))
    # -- another framework in the same process
    both = "import jax, jax.numpy as jnp\nprint('jax', jax.block_until_ready(jnp.ones(4)).sum())\nx = gib({ask})\nprint('done')"
    c.append(case("torch-other-framework-jax", "other-framework", "torch", both.format(ask=60),
                  mended=[("growth-jax", None, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 0), ("hide-jax", None, {"JAX_PLATFORMS": "cpu"}, 0)]))
    c.append(case("torch-other-framework-jax-fraction", "other-framework", "torch", both.format(ask=20), env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"},
                  mended=[("fraction-jax", both.format(ask=20), {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}, 0)]))
    c.append(case("jax-other-framework-torch", "other-framework", "jax", """
        import torch
        t = torch.empty(120 * G, dtype=torch.uint8, device="cuda"); print("torch holds 120 GiB")
        x = gib(40)"""))
    # -- growing from step to step
    grow = """
        limit({gb})
        m = convnet(); o = torch.optim.SGD(m.parameters(), 0.1); history = []
        for s in range(200):
            loss = torch.nn.functional.cross_entropy(m(torch.randn(16, 3, 128, 128, device="cuda")), torch.zeros(16, dtype=torch.long, device="cuda"))
            o.zero_grad(); loss.backward(retain_graph={retain}); o.step(); history.append({what})
            print(f"step {{s}} loss {{loss.item():.3f}} memory {{torch.cuda.memory_allocated() >> 20}} MiB")"""
    c.append(case("torch-growing-graph", "growing", "torch", grow.format(gb=6, retain=True, what="loss"),
                  mended=[("number", grow.format(gb=6, retain=False, what="loss.item()"), {}, 0)]))
    c.append(case("torch-growing-outputs", "growing", "torch", """
        limit(5)
        m = convnet(); outputs = []
        for s in range(200):
            outputs.append(m[0](torch.randn(16, 3, 128, 128, device="cuda")))
            print(f"iteration {s}: allocated {torch.cuda.memory_allocated() / G:.2f} GiB")""",
                  mended=[("host", """
        limit(5)
        m = convnet(); outputs = []
        for s in range(60):
            outputs.append(m[0](torch.randn(16, 3, 128, 128, device="cuda")).detach().cpu())
            print(f"iteration {s}: allocated {torch.cuda.memory_allocated() / G:.2f} GiB")""", {}, 0)]))
    c.append(case("torch-growing-models", "growing", "torch", """
        limit(4)
        models = []
        for fold in range(50):
            m = torch.nn.Linear(8192, 8192, device="cuda"); o = torch.optim.Adam(m.parameters())
            m(torch.randn(8, 8192, device="cuda")).sum().backward(); o.step(); models.append((m, o))
            print(f"fold {fold}: memory allocated {torch.cuda.memory_allocated() >> 20} MiB")"""))
    # -- evaluation: training fits, the validation or prediction batch does not
    ev = """
        limit(6)
        m = convnet(); o = torch.optim.Adam(m.parameters())
        for e in range(2):
            for s in range(3): step(m, o, 64)
            print(f"Epoch {{e + 1}}/2 train done, validating", flush=True)
            {guard}
                out = m(torch.randn({n}, 3, 128, 128, device="cuda")); print("val", out.sum().item())"""
    c.append(case("torch-evaluation-batch", "evaluation", "torch", ev.format(guard="if True:", n=1024),
                  mended=[("", ev.format(guard="with torch.no_grad():", n=256), {}, 0)]))
    c.append(case("torch-evaluation-validate", "evaluation", "torch", """
        limit(5)
        m = convnet(); o = torch.optim.Adam(m.parameters())
        def train_one_epoch():
            for s in range(4): step(m, o, 48)
        def validate():
            m.eval()
            return m(torch.randn(900, 3, 128, 128, device="cuda")).argmax(1)
        train_one_epoch(); print("epoch 1 train loss ok")
        validate()""", mended=[("", """
        limit(5)
        m = convnet(); o = torch.optim.Adam(m.parameters())
        for s in range(4): step(m, o, 48)
        with torch.no_grad(): m(torch.randn(128, 3, 128, 128, device="cuda")).argmax(1)""", {}, 0)]))
    # -- library: a context, handle or workspace had no room; the error does not say memory
    fill = """
        rt = torch.cuda.cudart(); torch.cuda.init(); torch.empty(1, device="cuda")
        a = torch.randn(64, 64, device="cuda"); img = torch.randn(8, 64, 64, 64, device="cuda"); w = torch.randn(64, 64, 3, 3, device="cuda")
        held = []
        while torch.cuda.mem_get_info()[0] > {left} << 20:
            free = torch.cuda.mem_get_info()[0] - ({left} << 20); size = max(2 << 20, free // 2 // (2 << 20) * (2 << 20))
            try: held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError: break
        print("free now", torch.cuda.mem_get_info()[0] >> 20, "MiB")
        {then}"""
    room = "torch.cuda.set_per_process_memory_fraction(0.9)\n" + textwrap.dedent(fill.format(left=4, then="print((a @ a).sum())"))
    c.append(case("torch-library-cublas", "library", "torch", fill.format(left=4, then="print((a @ a).sum())"),
                  mended=[("headroom-torch", room, {}, 0), ("", fill.format(left=1024, then="print((a @ a).sum())"), {}, 0)]))
    c.append(case("torch-library-cudnn", "library", "torch", fill.format(left=2, then="print(torch.nn.functional.conv2d(img, w).sum())"),
                  mended=[("", fill.format(left=2048, then="print(torch.nn.functional.conv2d(img, w).sum())"), {}, 0)]))
    c.append(case("torch-library-context", "library", "torch", "x = torch.ones(4, device='cuda'); print(x)", hog=-200, mended=[("stop-process", "x = torch.ones(4, device='cuda'); print(x)", {}, 0)]))
    # -- JAX
    c.append(case("jax-too-large-array", "too-large", "jax", "x = gib(300)"))
    c.append(case("jax-too-large-matmul", "too-large", "jax", "a = jnp.ones((160000, 160000), dtype=jnp.float32)\nprint((a @ a)[0, 0])"))
    c.append(case("jax-too-large-no-preallocate", "too-large", "jax", "x = gib(100)\ny = gib(70)", env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}))
    c.append(case("jax-limit-fraction-05", "limit", "jax", "x = gib(4)\ny = gib(5)", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"},
                  mended=[("limit-jax", "x = gib(4)\ny = gib(5)", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}, 0)]))
    c.append(case("jax-limit-fraction-10", "limit", "jax", "a = jnp.ones((40000, 40000))\nb = a @ a\nc = b @ a\nprint(c[0, 0])", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.10"}))
    c.append(case("jax-limit-default", "limit", "jax", "x = gib(60)\ny = gib(55)", mended=[("limit-jax", "x = gib(60)\ny = gib(55)", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}, 0)]))
    c.append(case("jax-fragmentation", "fragmentation", "jax", """
        held = []
        for i in range(400):
            try: held.append(gib((0.05, 0.11, 0.07)[i % 3]))
            except Exception: break
        held = held[::2]
        x = gib(2)""", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"}))
    for hog in (60, 130):
        c.append(case(f"jax-other-process-{hog}", "other-process", "jax", "x = gib(75)" if hog == 60 else "x = gib(12)", hog=hog,
                      mended=[("stop-process", "x = gib(75)" if hog == 60 else "x = gib(12)", {}, 0)]))
    c.append(case("jax-other-process-no-preallocate", "other-process", "jax", "x = gib(50)", hog=110, env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}))
    c.append(case("jax-growing", "growing", "jax", """
        history = []
        for s in range(200):
            history.append(gib(0.25))
            print(f"step {s} bytes in use {jax.devices()[0].memory_stats()['bytes_in_use'] >> 20} MiB", flush=True)""", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"}))
    c.append(case("jax-evaluation", "evaluation", "jax", """
        w = jnp.ones((8192, 8192))
        def train_step(x): return (x @ w).sum()
        for s in range(3): print("train step", s, jax.jit(train_step)(jnp.ones((256, 8192))))
        print("Epoch 1 done, running validation", flush=True)
        print(jax.jit(lambda x: jnp.tanh(x @ w))(jnp.ones((400000, 8192))).sum())""", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"}))
    c.append(case("jax-library", "library", "jax", """
        x = jnp.ones((8, 64, 64, 64)); w = jnp.ones((64, 64, 3, 3))
        print(jax.lax.conv(x, w, (1, 1), "SAME").sum())""", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.999"}))
    # -- what explain suggests beyond the mended forms above, each failing first and surviving as changed
    step1024 = """
        limit(6)
        m = convnet(); x = torch.randn(1024, 3, 128, 128, device="cuda"); y = torch.zeros(1024, dtype=torch.long, device="cuda")
        {train}"""
    c.append(case("torch-mended-split", "limit", "torch", step1024.format(train="torch.nn.functional.cross_entropy(m(x), y).backward()"),
                  mended=[("pieces-torch", step1024.format(train="for a, b in zip(x.split(64), y.split(64)): (torch.nn.functional.cross_entropy(m(a), b) / 16).backward()"), {}, 0)]))
    wide = """
        limit(5)
        m = torch.nn.Linear(16384, 20000, device="cuda"); o = torch.optim.{optimizer}
        for s in range(2): m(torch.randn(4, 16384, device="cuda")).sum().backward(); o.step()"""
    c.append(case("torch-mended-optimizer", "limit", "torch", wide.format(optimizer="Adam(m.parameters())"),
                  mended=[("optimizer", wide.format(optimizer="SGD(m.parameters(), 0.1)"), {}, 0)]))
    folds = """
        limit(4)
        kept = []
        for fold in range(12):
            m = torch.nn.Linear(8192, 8192, device="cuda"); o = torch.optim.Adam(m.parameters())
            m(torch.randn(8, 8192, device="cuda")).sum().backward(); o.step(); {end}
            print(f"fold {{fold}}: memory allocated {{torch.cuda.memory_allocated() >> 20}} MiB")"""
    c.append(case("torch-mended-folds", "growing", "torch", folds.format(end="kept.append((m, o))"),
                  mended=[("release-torch", folds.format(end="del m, o; torch.cuda.empty_cache()"), {}, 0)]))
    holes = """
        held = []
        for i in range(95):
            try: held.append(gib((0.05, 0.11, 0.07)[i % 3]))
            except Exception: break
        held = held[::2]
        x = gib(2)"""
    five = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"}
    c.append(case("jax-mended-async", "fragmentation", "jax", holes, env=five,
                  mended=[("async-jax", None, dict(five, XLA_PYTHON_CLIENT_ALLOCATOR="cuda_async"), 0), ("stays-first", """
        sizes = (0.05, 0.11, 0.07)
        kept = [gib(sizes[i % 3]) for i in range(0, 88, 2)]
        temporary = [gib(sizes[i % 3]) for i in range(1, 88, 2)]
        del temporary
        x = gib(2)""", five, 0)]))
    deep = """
        w = [jnp.ones((2048, 2048)) * 1e-3 for _ in range(48)]
        def block(x, *ws):
            for a in ws: x = jnp.tanh(x @ a)
            return x
        {wrap}
        def f(w, x):
            for k in range(0, 48, 8): x = block(x, *w[k:k + 8])
            return x.sum()
        print(jax.jit(jax.grad(f))(w, jnp.ones(({n}, 2048)))[0][0, 0])"""
    c.append(case("jax-mended-checkpoint", "limit", "jax", deep.format(wrap="", n=24000), env=five,
                  mended=[("recompute-jax", deep.format(wrap="block = jax.checkpoint(block)", n=24000), five, 0),
                          ("batch", deep.format(wrap="", n=6000), five, 0), ("limit-jax", None, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}, 0)]))
    kept = """
        import numpy as np
        history = []
        for s in range(40):
            output = gib(0.25); history.append({what}); del output
            print(f"step {{s}} bytes in use {{jax.devices()[0].memory_stats()['bytes_in_use'] >> 20}} MiB", flush=True)"""
    c.append(case("jax-mended-host", "growing", "jax", kept.format(what="output"), env=five,
                  mended=[("host", kept.format(what="np.asarray(output)"), five, 0)]))
    runs = """
        import functools
        kept = []
        for fold in range(12):
            params = {{"w": jnp.ones((16384, 16384)) * 1e-4}}; opt_state = jax.tree.map(jnp.zeros_like, params)
            g = jax.jit(jax.grad(lambda p: (jnp.ones((8, 16384)) @ p["w"]).sum()))(params)
            opt_state = jax.tree.map(lambda m, a: 0.9 * m + a, opt_state, g); jax.block_until_ready(opt_state); {end}
            print(f"fold {{fold}}: bytes in use {{jax.devices()[0].memory_stats()['bytes_in_use'] >> 20}} MiB", flush=True)"""
    c.append(case("jax-mended-folds", "growing", "jax", runs.format(end="kept.append((params, opt_state))"), env=five,
                  mended=[("release-jax", runs.format(end="del params, opt_state; jax.clear_caches()"), five, 0)]))
    wide = """
        w, v = jnp.ones((1024, 65536)) * 1e-3, jnp.ones((65536, 10)) * 1e-3
        predict = jax.jit(lambda x: jnp.tanh(x @ w) @ v)
        for s in range(3): print("train step", s, predict(jnp.ones((256, 1024)))[0, 0])
        print("Epoch 1 done, running validation", flush=True)
        val_x = jnp.ones((64000, 1024))
        output = {output}
        print(output.sum())"""
    c.append(case("jax-mended-evaluation", "evaluation", "jax", wide.format(output="predict(val_x)"), env=five,
                  mended=[("eval-batch", wide.format(output="jnp.concatenate([predict(x) for x in jnp.split(val_x, 16)])"), five, 0)]))
    scores = """
        limit(6)
        attention = torch.nn.MultiheadAttention(256, 4, batch_first=True).cuda()
        x = torch.randn(8, 8192, 256, device="cuda")
        attention(x, x, x, need_weights={weights})[0].sum().backward()"""
    c.append(case("torch-mended-attention", "limit", "torch", scores.format(weights=True),
                  mended=[("attention", scores.format(weights=False), {}, 0)]))
    blocks = """
        import torch.utils.checkpoint
        limit(6)
        layer = lambda: (torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU())
        blocks = [torch.nn.Sequential(*layer(), *layer(), *layer()).cuda() for _ in range(6)]
        x = torch.randn(96, 64, 128, 128, device="cuda", requires_grad=True)
        for block in blocks: x = {call}
        x.sum().backward(); print("step done")"""
    c.append(case("torch-mended-recompute", "limit", "torch", blocks.format(call="block(x)"),
                  mended=[("recompute-torch", blocks.format(call="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"), {}, 0)]))
    pinned = """
        limit(4)
        kept, temporary = [], []
        for i in range(180): kept.append(gib(2 / 1024)); temporary.append(gib(17 / 1024))
        temporary.clear()
        x = gib(1.5)"""
    c.append(case("torch-mended-pinned", "fragmentation", "torch", pinned, env=EXPAND,
                  mended=[("async-torch", None, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, 0), ("stays-first", """
        limit(4)
        kept, temporary = gib(180 * 2 / 1024), []
        for i in range(180): temporary.append(gib(17 / 1024))
        temporary.clear()
        x = gib(1.5)""", EXPAND, 0)]))
    valid = """
        limit(6)
        m = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), *(torch.nn.Conv2d(64, 64, 3, padding=1) if i % 2 else torch.nn.ReLU() for i in range(20)),
                                torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)).cuda()
        o = torch.optim.Adam(m.parameters())
        def train_one_epoch():
            for s in range(4): step(m, o, 16)
        def validate(val_x):
            m.eval()
            {body}
        train_one_epoch(); print("epoch 1 train loss ok")
        print(validate(torch.randn(192, 3, 128, 128, device="cuda")).shape)"""
    c.append(case("torch-mended-validate", "evaluation", "torch", valid.format(body="return m(val_x).argmax(1)"),
                  mended=[("no-grad", valid.format(body="with torch.no_grad(): return m(val_x).argmax(1)"), {}, 0),
                          ("eval-batch", valid.format(body="return torch.cat([m(x).detach() for x in val_x.split(16)]).argmax(1)"), {}, 0)]))
    # -- these need the whole card, one after the other
    cached = """
        import torch
        {first}
        for g in (20, 30, 45): t = torch.empty(g << 30, dtype=torch.uint8, device="cuda"); del t
        {last}
        print("torch has done its part", flush=True)
        x = gib(60)"""
    c.append(case("jax-mended-share", "other-framework", "jax", cached.format(first="", last=""), alone=True,
                  mended=[("share-torch", cached.format(first="torch.cuda.set_per_process_memory_fraction(0.5)", last=""), {}, 0),
                          ("release-torch", cached.format(first="", last="torch.cuda.empty_cache()"), {}, 0)]))
    c.append(case("torch-mended-jax-beside", "other-process", "torch", "x = gib(60)", hog=dict(code=JAX_HOG, env={}), alone=True,
                  mended=[("growth-jax", None, {}, dict(code=JAX_HOG, env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}))]))
    c.append(case("torch-mended-cached", "library", "torch", fill.format(left=4, then="held.clear(); print((a @ a).sum())"), alone=True,
                  mended=[("empty-cache", fill.format(left=4, then="held.clear(); torch.cuda.empty_cache(); print((a @ a).sum())"), {}, 0)]))
    return c


def tensorflow_cases():
    """TensorFlow on a GPU. The networks use no matrix product and no convolution: they run without cuBLAS and cuDNN."""
    c = []
    held = """
        import {head}
        for gpu in tf.config.list_physical_devices("GPU"): tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit={mb})])
    """
    two = textwrap.dedent(held).replace("{head}", "tensorflow as tf") + "a = tf.zeros([3 << 28])\nb = tf.ones([2 << 28])\nprint('step done', float(b[0]))\n"
    c.append(case("tf-limit-devices", "limit", "file", two.replace("{mb}", "4096"), alone=False, mended=[("limit-tensorflow", two.replace("{mb}", "5633"), {}, 0)]))
    fit = textwrap.dedent(held).replace("{head}", "numpy as np, tensorflow as tf, keras") + textwrap.dedent("""
        slopes = [keras.layers.PReLU(shared_axes=[1, 2]) for _ in range(4)]
        model = keras.Sequential([keras.Input((128, 128, 16)), *slopes, keras.layers.GlobalAveragePooling2D()])
        model.compile({optimizer}, "mse", jit_compile=False)
        model.fit(np.ones((1024, 128, 128, 16), "float32"), np.zeros((1024, 16), "float32"), batch_size={batch}, verbose=2)
    """)
    whole = dict(mb="6144", optimizer='"adam"', batch=1024)
    fill = lambda **k: fit.replace("{mb}", k["mb"]).replace("{optimizer}", k["optimizer"]).replace("{batch}", str(k["batch"]))
    c.append(case("tf-limit-fit", "limit", "file", fill(**whole), alone=False, mended=[
        ("pieces-tensorflow", fill(**dict(whole, optimizer="keras.optimizers.Adam(gradient_accumulation_steps=8)", batch=128)), {}, 0),
        ("batch", fill(**dict(whole, batch=128)), {}, 0)]))
    strewn = textwrap.dedent(held).replace("{head}", "tensorflow as tf").replace("{mb}", "6144") + textwrap.dedent("""
        kept, temporary = [], []
        for i in range(44):
            kept.append(tf.ones([1 << 24]))
            temporary.append(tf.ones([1 << 24]))
        del temporary
        print("the cache is ready", flush=True)
        x = tf.ones([9 << 26])
        print("step done", float(x[0]))
    """)
    c.append(case("tf-fragmentation-cache", "fragmentation", "file", strewn, alone=False, mended=[
        ("async-tensorflow", None, {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}, 0)]))
    # A compiled training function keeps its variables though the model is deleted and the session cleared: what mends is a process each.
    fold = """
        x = np.ones((1, 8192, 8192), "float32")
        model = keras.Sequential([keras.Input((8192, 8192)), keras.layers.PReLU()])
        model.compile("adam", "mse", jit_compile=False)
        model.fit(x, x, verbose=0)
        print(f"fold {fold}: memory allocated {tf.config.experimental.get_memory_info('GPU:0')['current'] >> 20} MiB", flush=True)
    """
    head = textwrap.dedent(held).replace("{head}", "numpy as np, tensorflow as tf, keras").replace("{mb}", "6144")
    fold = textwrap.dedent(fold)
    each = "import multiprocessing\ndef train_fold(fold):\n" + textwrap.indent(head + fold, "    ") + textwrap.dedent("""
        if __name__ == "__main__":
            for fold in range(9):
                process = multiprocessing.get_context("spawn").Process(target=train_fold, args=(fold,))
                process.start(); process.join()
                assert process.exitcode == 0
    """)
    c.append(case("tf-growing-folds", "growing", "file", head + "for fold in range(9):\n" + textwrap.indent(fold, "    ") + "    del model\n", alone=False,
                  mended=[("release-tensorflow", each, {}, 0)]))
    both = """
        {first}
        with tf.device("/GPU:0" if tf.config.get_visible_devices("GPU") else "/CPU:0"): print("tensorflow", float(tf.reduce_sum(tf.ones(4))))
        import torch
        x = torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
        print("done")
    """
    c.append(case("torch-other-framework-tensorflow", "other-framework", "file", both.format(first="import tensorflow as tf"), alone=True, mended=[
        ("growth-tensorflow", None, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, 0),
        ("hide-tensorflow", both.format(first="import tensorflow as tf; tf.config.set_visible_devices([], 'GPU')"), {}, 0)]))
    c.append(case("torch-mended-tensorflow-beside", "other-process", "torch", "x = gib(60)", hog=dict(code=TF_HOG, env={}), alone=True,
                  mended=[("growth-tensorflow", None, {}, dict(code=TF_HOG, env={"TF_FORCE_GPU_ALLOW_GROWTH": "true"}))]))
    return c


def run_program(code, env, log=None, limit=60, file=False):
    full = dict(os.environ, PYTHONUNBUFFERED="1", **env)
    folder = tempfile.TemporaryDirectory()
    program = pathlib.Path(folder.name) / "train.py"
    program.write_text(code)
    try:
        p = subprocess.run([sys.executable, str(program)] if file else [sys.executable, "-c", code], env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
        out, status = p.stdout, p.returncode
    except subprocess.TimeoutExpired as e:
        out, status = (e.stdout or b"") + b"\n(timed out)\n", 124
    folder.cleanup()
    out = out.replace(str(program).encode(), b"/home/user/train.py").replace(sys.prefix.encode(), b"/home/user/venv")
    if log:
        log.write_bytes(out)
    return status


HOG = """
import torch, sys, time
want = {gib}
if want > 0: held = [torch.empty(want << 30, dtype=torch.uint8, device="cuda")]
else:
    held = []; torch.empty(1, device="cuda")
    while torch.cuda.mem_get_info()[0] > (-want) << 20:
        size = max(2 << 20, (torch.cuda.mem_get_info()[0] - ((-want) << 20)) // 2)
        try: held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError: break
torch.cuda.synchronize(); print("ready", flush=True); time.sleep(600)
"""


JAX_HOG = """
import jax, jax.numpy as jnp, time
x = jax.block_until_ready(jnp.ones((1024, 1024))); print("ready", flush=True); time.sleep(600)
"""


TF_HOG = """
import tensorflow as tf, time
x = tf.ones((1024, 1024)); print("ready", float(x[0, 0]), flush=True); time.sleep(600)
"""


def with_hog(gib, work):
    if not gib:
        return work()
    codes = [(gib["code"], gib["env"])] if isinstance(gib, dict) else [(HOG.format(gib=g), {}) for g in (gib if isinstance(gib, list) else [gib])]
    hogs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(os.environ, **env)) for code, env in codes]
    try:
        for hog in hogs:
            hog.stdout.readline()
        return work()
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


SNAPSHOT_HEAD = "import torch, atexit\ntorch.cuda.memory._record_memory_history(max_entries=20000)\n"
SNAPSHOT_TAIL = "atexit.register(lambda: torch.cuda.memory._dump_snapshot({path!r}))\n"


def run_case(c, out, only_mended=False):
    code = c["code"]
    if c["snapshot"]:
        code = SNAPSHOT_HEAD + SNAPSHOT_TAIL.format(path=str(out / (c["name"] + ".pickle"))) + code
    row = dict(name=c["name"], cause=c["cause"], env=c["env"], other_process_gib=("tensorflow" if "tensorflow" in c["hog"]["code"] else "jax") if isinstance(c["hog"], dict) else c["hog"], program=c["code"].strip())
    if not only_mended:
        row["exit"] = with_hog(c["hog"], lambda: run_program(code, c["env"], out / (c["name"] + ".log"), file=c["file"]))
    row["mended"] = []
    for m in c["mended"]:
        log = out / (c["name"] + "." + m["change"] + ".mended")
        status = with_hog(m["hog"], lambda: run_program(m["code"] or c["code"], m["env"], log, file=c["file"]))
        if status == 0:
            log.unlink()
        row["mended"].append({"class": m["change"]} | dict(env=m["env"], exit=status, survived=status == 0))
    print(f"{c['name']:38} exit {row.get('exit')}  " + ", ".join(f"{m['class']}: {'survived' if m['survived'] else 'FAILED'}" for m in row["mended"]), flush=True)
    return row


def cpu_cases():
    """TensorFlow on the CPU: shapes so large that they are refused at once, before any memory is touched."""
    attention = """
        import numpy as np, keras
        tokens = keras.Input((None, 4))
        scores = keras.layers.Dot(axes=2)([tokens, tokens])
        model = keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(keras.layers.Dot(axes=(2, 1))([scores, tokens])))
        model.compile("adam", "mse")
        model.fit(np.zeros((64, 16, 4), "float32"), np.zeros((64, 4), "float32"), batch_size=8, verbose=2)
        print("{doing} the whole sequences", flush=True)
        model.{call}
    """
    programs = {
        "tf-cpu-too-large-zeros": ("too-large", """
            import tensorflow as tf
            x = tf.zeros([1 << 20, 1 << 21])
        """),
        "tf-cpu-too-large-conv": ("too-large", """
            import tensorflow as tf
            x = tf.zeros([1, 8, 8, 3])
            kernel = tf.zeros([3, 3, 3, 64])
            around = [[0, 0], [200000, 200000], [200000, 200000], [0, 0]]
            y = tf.nn.conv2d(x, kernel, strides=1, padding=around)
        """),
        "tf-cpu-too-large-function": ("too-large", """
            import tensorflow as tf

            @tf.function
            def attention_scores(q, k):
                return tf.matmul(q, k, transpose_b=True)

            q = tf.zeros([32, 8, 1 << 18, 1])
            print(attention_scores(q, q).shape)
        """),
        "tf-cpu-too-large-fit": ("too-large", """
            import numpy as np, keras
            model = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.UpSampling2D(20000), keras.layers.Conv2D(8, 3),
                                      keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)])
            model.compile("adam", "mse")
            model.fit(np.zeros((64, 64, 64, 3), "float32"), np.zeros((64, 1), "float32"), batch_size=64, verbose=2)
        """),
        "tf-cpu-evaluation-evaluate": ("evaluation", attention.format(
            doing="evaluating on", call='evaluate(np.zeros((4, 800000, 4), "float32"), np.zeros((4, 4), "float32"), verbose=2)')),
        "tf-cpu-evaluation-predict": ("evaluation", attention.format(
            doing="predicting", call='predict(np.zeros((4, 800000, 4), "float32"), verbose=2)')),
    }
    cases = {name: (cause, textwrap.dedent(code), 30, []) for name, (cause, code) in programs.items()}
    # Held to 8 GB of addresses: the step as written is refused, the mended one runs. What needs a card to matter (settings of
    # TensorFlow's GPU allocator) is only shown to be valid: the program runs with it.
    fit = """
        import numpy as np, tensorflow as tf, keras
        {first}
        model = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.Conv2D(64, 3, padding="same"), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)])
        model.compile({optimizer}, "mse")
        model.fit(np.zeros((8192, 64, 64, 3), "float32"), np.zeros((8192, 1), "float32"), batch_size={batch}, steps_per_epoch={steps}, verbose=2)
        {last}
    """
    plain = dict(first="", last="", optimizer='"adam"', batch=8192, steps=1)
    small = dict(plain, batch=64, steps=2)
    devices = "for gpu in tf.config.list_physical_devices('GPU'): tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=4096)])"
    cases["tf-cpu-mended-fit"] = ("limit", textwrap.dedent(fit.format(**plain)), 8, [
        ("batch", fit.format(**dict(plain, batch=128)), {}),
        ("pieces-tensorflow", fit.format(**dict(plain, optimizer="keras.optimizers.Adam(gradient_accumulation_steps=8)", batch=128, steps=8)), {}),
        ("limit-tensorflow", fit.format(**dict(small, first=devices)), {}),
        ("hide-tensorflow", fit.format(**dict(small, first="tf.config.set_visible_devices([], 'GPU')")), {}),
        ("growth-tensorflow", fit.format(**small), {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
        ("async-tensorflow", fit.format(**small), {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}),
        ("release-tensorflow", fit.format(**dict(small, last="del model; keras.backend.clear_session()")), {})])
    less = dict(plain, batch=2048)
    cases["tf-cpu-mended-limit"] = ("limit", textwrap.dedent(fit.format(**less)), 4, [("limit-host", fit.format(**less), {}, 30)])
    # PyTorch on the CPU: recomputation and no_grad do there what they do on a card.
    blocks = """
        import torch, torch.utils.checkpoint
        torch.set_num_threads(1)
        blocks = [torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(4))) for _ in range(4)]
        x = torch.nn.Linear(16, 16)(torch.randn({rows}, 16))
        for block in blocks: x = {call}
        x.sum().backward(); print("step done")
    """
    cases["torch-cpu-mended-recompute"] = ("limit", textwrap.dedent(blocks.format(rows=4000000, call="block(x)")), 7, [
        ("recompute-torch", blocks.format(rows=4000000, call="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"), {}),
        ("batch", blocks.format(rows=1000000, call="block(x)"), {}), ("limit-host", blocks.format(rows=4000000, call="block(x)"), {}, 30)])
    valid = """
        import torch
        torch.set_num_threads(1)
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), *(torch.nn.Tanh() for _ in range(17)))
        def validate(val_x):
            model.eval()
            {body}
        model(torch.randn(1000, 16)).sum().backward(); print("epoch 1 trained")
        print(validate(torch.randn(4000000, 16)).shape)
    """
    cases["torch-cpu-mended-validate"] = ("evaluation", textwrap.dedent(valid.format(body="return model(val_x).argmax(1)")), 7, [
        ("no-grad", valid.format(body="with torch.no_grad(): return model(val_x).argmax(1)"), {}),
        ("eval-batch", valid.format(body="return torch.cat([model(x).detach() for x in val_x.split(64000)]).argmax(1)"), {})])
    scores = """
        import numpy as np, keras
        tokens = keras.Input((None, 4))
        scores = keras.layers.Dot(axes=2)([tokens, tokens])
        model = keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(keras.layers.Dot(axes=(2, 1))([scores, tokens])))
        model.compile("adam", "mse")
        model.fit(np.zeros((64, 16, 4), "float32"), np.zeros((64, 4), "float32"), batch_size=8, verbose=2)
        print("validation on the long sequences", flush=True)
        model.evaluate(np.zeros((32, 8000, 4), "float32"), np.zeros((32, 4), "float32"), batch_size={batch}, verbose=2)
    """
    cases["tf-cpu-mended-evaluate"] = ("evaluation", textwrap.dedent(scores.format(batch=32)), 8, [("eval-batch", scores.format(batch=1), {})])
    return cases


def run_held(code, gigabytes, env, folder):
    """A program held to so many GB of addresses; its text names no folder of the machine that ran it."""
    program = folder / "train.py"
    program.write_text(textwrap.dedent(code))
    done = subprocess.run(["bash", "-c", f'ulimit -v {gigabytes}000000; exec "$@"', "-", sys.executable, str(program)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=300, env=dict(os.environ, **env))
    program.unlink()
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return status, done.stdout.replace(str(program), "/home/user/train.py").replace(sys.prefix, "/home/user/venv")


def run_cpu(out, wanted):
    rows = []
    for name, (cause, code, gigabytes, mended) in cpu_cases().items():
        if wanted and not name.startswith(wanted):
            continue
        status, text = run_held(code, gigabytes, {}, out)
        (out / (name + ".log")).write_text(text)
        row = dict(name=name, cause=cause, env={}, other_process_gib=0, exit=status, mended=[])
        for kind, changed, env, *raised in mended:
            done, text = run_held(changed, *(raised or [gigabytes]), env, out)
            row["mended"].append({"class": kind, "on": "cpu", "env": env, "exit": done, "survived": done == 0})
            if kind.endswith("-tensorflow") and kind != "pieces-tensorflow":
                row["mended"][-1]["not_printed"] = True # a setting for a card: the program runs with it, no more
            if done:
                (out / f"{name}.{kind}.mended").write_text(text)
        rows.append(row)
        print(f"{name:38} exit {status}  " + ", ".join(f"{m['class']}: {'survived' if m['survived'] else 'FAILED'}" for m in row["mended"]), flush=True)
        (out / "cases-cpu.json").write_text(json.dumps(rows, indent=1) + "\n")


def is_small(c):
    """What is held to a few GiB runs side by side; what needs the whole card or a quiet one runs alone."""
    if c["alone"] is not None:
        return not c["alone"]
    own = c["code"].split("return loss", 1)[-1]
    return not c["hog"] and ("limit(" in own or c["env"].get("XLA_PYTHON_CLIENT_MEM_FRACTION") in ("0.05", "0.10"))


def main():
    if sys.argv[1] == "--cpu":
        out = pathlib.Path(sys.argv[2])
        out.mkdir(parents=True, exist_ok=True)
        return run_cpu(out, tuple(sys.argv[3:]))
    cases = all_cases()
    if sys.argv[1] == "--held-out":
        import oom_held_out
        del sys.argv[1]
        cases = oom_held_out.cases(case) + oom_held_out.second(case) + oom_held_out.third(case)
    if sys.argv[1] == "--tensorflow":
        del sys.argv[1]
        cases = tensorflow_cases()
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    wanted = tuple(sys.argv[2:])
    cases = [c for c in cases if not wanted or c["name"].startswith(wanted)]
    began, most = time.time(), float(os.environ.get("PROVOKE_SECONDS", "1e9")) # no case is begun after so many seconds
    rows = []

    def run(c):
        rows.append(run_case(c, out) if time.time() - began < most else dict(name=c["name"], skipped=True))
        (out / "cases.json").write_text(json.dumps(sorted(rows, key=lambda r: r["name"]), indent=1) + "\n")

    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("PROVOKE_JOBS", "4"))) as pool:
        list(pool.map(run, [c for c in cases if is_small(c)]))
    for c in cases:
        if not is_small(c):
            run(c)
    print(len(rows), "cases in", round(time.time() - began), "s; did not fail:", [r["name"] for r in rows if r.get("exit") == 0],
          "skipped:", [r["name"] for r in rows if r.get("skipped")])


if __name__ == "__main__":
    main()
