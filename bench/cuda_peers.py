#!/usr/bin/env python3
"""One peer of bench_cuda.py: cuda_peers.py NAME SETTING FOLDER [once]

PyTorch's own definition of a network of make_cuda_models.py, trained on one fixed batch that lies on the card: torch.compile (SETTING `compile`; `half`: with an
activation budget of 0.5; `autotune`: max-autotune, without graphs of its own, which would keep their memory while it waits), or a step captured as a CUDA graph (`graph`).
NAME is MODEL[xBATCH]-PRECISION. It gets ready, gives its activations back, makes FOLDER/NAME.SETTING.ready, waits for FOLDER/NAME.SETTING.go and prints one
line of JSON: median and least ms of a step, NVML's figure for the process, what the allocator's tensors took. `once`: to fill caches, its times are of no use.
"""
import json
import os
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def conv(i, o, k=3, s=1, bias=True, groups=1, padding=None):
    return nn.Conv2d(i, o, k, s, k // 2 if padding is None else padding, bias=bias, groups=groups)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class Bottleneck(nn.Module):
    """Keras's: the stride is in the first 1x1 convolution, and convolutions have a bias."""

    def __init__(self, i, m, stride, project):
        super().__init__()
        self.body = nn.Sequential(conv(i, m, 1, stride), nn.BatchNorm2d(m), nn.ReLU(True), conv(m, m), nn.BatchNorm2d(m), nn.ReLU(True),
                                  conv(m, 4 * m, 1), nn.BatchNorm2d(4 * m))
        self.side = nn.Sequential(conv(i, 4 * m, 1, stride), nn.BatchNorm2d(4 * m)) if project else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.side(x), inplace=True)


def resnet50():
    layers, i = [conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
    for m, n, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for b in range(n):
            layers.append(Bottleneck(i, m, stride if b == 0 else 1, b == 0))
            i = 4 * m
    return nn.Sequential(*layers, Mean(), nn.Linear(2048, 1000))


class Inverted(nn.Module):
    def __init__(self, i, o, stride, expand):
        super().__init__()
        h = i * expand
        first = [conv(i, h, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU6(True)] if expand > 1 else []
        self.body = nn.Sequential(*first, conv(h, h, 3, stride, bias=False, groups=h), nn.BatchNorm2d(h), nn.ReLU6(True),
                                  conv(h, o, 1, bias=False), nn.BatchNorm2d(o))
        self.add = stride == 1 and i == o

    def forward(self, x):
        y = self.body(x)
        return x + y if self.add else y


def mobilenetv2():
    layers, i = [conv(3, 32, 3, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU6(True)], 32
    for t, c, n, s in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for b in range(n):
            layers.append(Inverted(i, c, s if b == 0 else 1, t))
            i = c
    return nn.Sequential(*layers, conv(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(True), Mean(), nn.Linear(1280, 1000))


def s9():
    layers, i = [], 3
    for c in (256, 512, 1024):
        for _ in range(2):
            layers += [conv(i, c), nn.ReLU(True)]
            i = c
        if c < 1024:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, Mean(), nn.Linear(1024, 10), nn.Softmax(-1))


def s7():
    return nn.Sequential(conv(3, 32, padding=0), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(511 * 511 * 32, 10), nn.Softmax(-1))


def s1():
    return nn.Sequential(nn.Linear(10, 10), nn.ReLU(True), nn.Linear(10, 2))


class Block(nn.Module):
    def __init__(self, d, h, causal, eps):
        super().__init__()
        self.h, self.causal = h, causal
        self.a, self.b = nn.LayerNorm(d, eps=eps), nn.LayerNorm(d, eps=eps)
        self.qkv, self.o, self.f, self.g = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.a(x)).view(n, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(n, t, d)
        x = x + self.o(y)
        return x + self.g(F.gelu(self.f(self.b(x))))


class Gpt(nn.Module):
    def __init__(self, t=1024, d=768, h=12, n=12, v=50257):
        super().__init__()
        self.e, self.p = nn.Embedding(v, d), nn.Embedding(t, d)
        self.blocks = nn.ModuleList([Block(d, h, True, 1e-5) for _ in range(n)])
        self.n, self.out = nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        y = self.e(x) + self.p(torch.arange(x.shape[1], device=x.device))
        for b in self.blocks:
            y = b(y)
        return self.out(self.n(y))


class Vit(nn.Module):
    def __init__(self, d=768, h=12, n=12):
        super().__init__()
        self.c, self.p = nn.Conv2d(3, d, 16, 16), nn.Embedding(196, d)
        self.blocks = nn.ModuleList([Block(d, h, False, 1e-6) for _ in range(n)])
        self.n, self.out = nn.LayerNorm(d, eps=1e-6), nn.Linear(d, 1000)

    def forward(self, x):
        y = self.c(x).flatten(2).transpose(1, 2) + self.p.weight
        for b in self.blocks:
            y = b(y)
        return self.out(self.n(y).mean(1))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.lstm, self.out = nn.Embedding(20000, 128), nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 2)

    def forward(self, x):
        return self.out(self.lstm(self.e(x))[0][:, -1])


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        def block(i, o):
            return nn.Sequential(conv(i, o, bias=False), nn.BatchNorm2d(o), nn.ReLU(True), conv(o, o, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))
        c = (3, 64, 128, 256, 512, 1024)
        self.down = nn.ModuleList([block(c[k], c[k + 1]) for k in range(5)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * k, k, 2, 2) for k in (512, 256, 128, 64)])
        self.join = nn.ModuleList([block(2 * k, k) for k in (512, 256, 128, 64)])
        self.out = conv(64, 1, 1)

    def forward(self, x):
        skips = []
        for k, d in enumerate(self.down):
            x = d(x)
            if k < 4:
                skips.append(x)
                x = F.max_pool2d(x, 2)
        for u, j in zip(self.up, self.join):
            x = j(torch.cat([skips.pop(), u(x)], 1))
        return self.out(x)


# name: model, input (channels first; a number: tokens below it), target, batch, optimizer, pieces
CASES = {
    "resnet50": (resnet50, (3, 224, 224), 1000, 256, "sgd", 1), "mobilenetv2": (mobilenetv2, (3, 224, 224), 1000, 256, "sgd", 1),
    "s9": (s9, (3, 128, 128), "mse", 32, "adam", 1), "s7": (s7, (3, 1024, 1024), "mse", 256, "adam", 16),
    "s1": (s1, (10,), "mse2", 32, "adam", 1), "gpt2": (Gpt, (1024, 50257), "tokens", 8, "adamw", 1),
    "vit": (Vit, (3, 224, 224), 1000, 64, "adamw", 1), "lstm": (Lstm, (200, 20000), 2, 64, "adam", 1),
    "unet": (Unet, (3, 256, 256), "mask", 16, "adam", 1),
}


def nvml_bytes():
    import ctypes
    n = ctypes.CDLL("libnvidia-ml.so.1")
    n.nvmlInit_v2()
    h = ctypes.c_void_p()
    n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h))

    class Info(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    many, rows = ctypes.c_uint(256), (Info * 256)()
    n.nvmlDeviceGetComputeRunningProcesses_v3(h, ctypes.byref(many), rows)
    mine = [rows[i].used for i in range(many.value) if rows[i].pid == os.getpid()]
    return mine[0] if mine else sum(rows[i].used for i in range(many.value)) if many.value == 1 else 0


def make(name, precision, setting):
    compiled = setting != "graph"
    name, _, other = name.partition("x")
    build, shape, target, batch, optimizer, pieces = CASES[name]
    batch = int(other or batch)
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    m = build().cuda().train()
    if len(shape) == 2 and isinstance(shape[1], int) and name in ("gpt2", "lstm"):
        x = torch.randint(0, shape[1], (batch, shape[0]), device="cuda")
    else:
        x = torch.rand(batch, *shape, device="cuda")
    if len(shape) == 3:
        m, x = m.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if target == "tokens":
        y = torch.randint(0, shape[1], (batch, shape[0]), device="cuda")
    elif target == "mask":
        y = torch.randint(0, 2, (batch, 1, *shape[1:]), device="cuda").float()
    elif target in ("mse", "mse2"):
        n = 2 if target == "mse2" else 10
        y = F.one_hot(torch.randint(0, n, (batch,), device="cuda"), n).float()
    else:
        y = torch.randint(0, target, (batch,), device="cuda")
    # A captured step is a graph of its own; compiled ones are the fastest fused.
    args = {"lr": 1e-4, "fused": True}
    if not compiled and optimizer != "sgd":
        args["capturable"] = True
    o = {"sgd": lambda p: torch.optim.SGD(p, momentum=0.9, **args), "adam": lambda p: torch.optim.Adam(p, **args),
         "adamw": lambda p: torch.optim.AdamW(p, **args)}[optimizer](m.parameters())
    mode = {"mode": "max-autotune-no-cudagraphs"} if setting == "autotune" else {}
    net = torch.compile(m, **mode) if compiled else m

    def loss_of(out, want):
        if target == "tokens":
            return F.cross_entropy(out.flatten(0, 1), want.flatten())
        if target == "mask":
            return F.binary_cross_entropy_with_logits(out, want)
        return F.mse_loss(out, want) if isinstance(target, str) else F.cross_entropy(out, want)

    if compiled and target == "tokens":
        loss_of = torch.compile(loss_of, **mode)

    def step():
        for a, b in zip(x.chunk(pieces), y.chunk(pieces)):
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                loss = loss_of(net(a), b) / pieces
            loss.backward()
        o.step()
        o.zero_grad(set_to_none=compiled)
        return loss

    return step, sum(p.numel() for p in m.parameters())


def with_room(step, patience=40):
    """A step; where others fill the card for a while, it is tried again. Only while it gets ready."""
    for left in range(patience, -1, -1):
        try:
            return step()
        except torch.OutOfMemoryError:
            if not left:
                raise
        torch.cuda.empty_cache()
        time.sleep(2)


def compile_first(step):
    """The first step. Gradients are compiled before it and not in the middle, when many compilers would each keep all activations on the card; the usual way where that fails."""
    from torch._functorch import config
    config.force_non_lazy_backward_lowering = True
    try:
        with_room(step)
    except torch.OutOfMemoryError:
        raise
    except Exception as e:
        print("compiled the usual way:", repr(e)[:300], file=sys.stderr)
        torch._dynamo.reset()
        config.force_non_lazy_backward_lowering = False
        with_room(step)


def run(name, setting, folder, once):
    model, precision = name.split("-")
    compiled, began = setting != "graph", time.time()
    if setting == "half":
        from torch._functorch import config
        config.activation_memory_budget = 0.5
    folder = pathlib.Path(folder)
    step, count = make(model, precision, setting)
    if compiled:
        compile_first(step)
        for _ in range(2):
            with_room(step)
    else:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        step = graph.replay
    torch.cuda.synchronize()
    ready = time.time() - began
    if compiled:
        torch.cuda.empty_cache()
    (folder / f"{name}.{setting}.ready").touch()
    while not (folder / f"{name}.{setting}.go").exists():
        time.sleep(0.05)
    for _ in range(1 if once else 3):
        step()
    torch.cuda.synchronize()
    t = time.perf_counter()
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    times, n = [], 1 if once else 200 if model == "s1" else int(min(20, max(4, 0.5 / (time.perf_counter() - t) * 2)))
    for _ in range(3):
        t = time.perf_counter()
        for _ in range(n):
            step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - t) / n)
    print(json.dumps({"peer": f"torch {torch.__version__} {setting}", "name": name, "step_ms": sorted(times)[1], "least_ms": min(times),
                      "nvml_mib": nvml_bytes() >> 20, "live_mib": torch.cuda.max_memory_allocated() >> 20,
                      "taken_mib": torch.cuda.max_memory_reserved() >> 20, "parameters": count, "ready_s": round(ready, 1)}), flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:4], sys.argv[4:] == ["once"])
    os._exit(0)
