#!/usr/bin/env python3
"""One JAX peer of bench_cuda.py: cuda_peers_jax.py NAME jax FOLDER [once]

ResNet50, S9 and GPT-2 as cuda_peers.py has them, in plain JAX: one jitted step whose state is donated, parameters and their update in float32, everything else
in bfloat16, attention by cuDNN. The protocol is that of cuda_peers.py. The one who starts it turns off preallocation: else NVML shows three quarters of the card.
"""
import json
import os
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
from jax import lax

BF16 = jnp.bfloat16


class Maker:
    """Draws parameters; names are their order."""

    def __init__(self):
        self.key, self.params = jax.random.key(1), []

    def draw(self, *shape, scale=0.02):
        self.key, k = jax.random.split(self.key)
        self.params.append(scale * jax.random.normal(k, shape, jnp.float32))

    def fill(self, *shape, value=0.0):
        self.params.append(jnp.full(shape, value, jnp.float32))

    def conv(self, k, i, o):
        self.draw(k, k, i, o, scale=(2 / (k * k * i)) ** 0.5)
        self.fill(o)

    def norm(self, c):
        self.fill(c, value=1.0)
        self.fill(c)


class Taker:
    """Hands them out in the same order."""

    def __init__(self, params):
        self.rest = iter(params)

    def conv(self, x, stride=1, padding="SAME"):
        w, b = next(self.rest), next(self.rest)
        y = lax.conv_general_dilated(x, w.astype(BF16), (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y + b.astype(BF16)

    def batch_norm(self, x):
        scale, shift = next(self.rest), next(self.rest)
        f = x.astype(jnp.float32)
        mean = f.mean((0, 1, 2))
        inverse = lax.rsqrt((f * f).mean((0, 1, 2)) - mean * mean + 1e-5) * scale
        return (f * inverse + (shift - mean * inverse)).astype(BF16)

    def layer_norm(self, x):
        scale, shift = next(self.rest), next(self.rest)
        f = x.astype(jnp.float32)
        mean = f.mean(-1, keepdims=True)
        return ((f - mean) * lax.rsqrt(((f - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift).astype(BF16)

    def dense(self, x, bias=True):
        y = x @ next(self.rest).astype(BF16)
        return y + next(self.rest).astype(BF16) if bias else y


STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def resnet50_params(m):
    m.conv(7, 3, 64)
    m.norm(64)
    i = 64
    for c, n, _ in STAGES:
        for b in range(n):
            for k, a, o in ((1, i, c), (3, c, c), (1, c, 4 * c)) + (((1, i, 4 * c),) if b == 0 else ()):
                m.conv(k, a, o)
                m.norm(o)
            i = 4 * c
    m.draw(2048, 1000)
    m.fill(1000)


def resnet50(t, x):
    x = jax.nn.relu(t.batch_norm(t.conv(x.astype(BF16), 2, ((3, 3), (3, 3)))))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for _, n, stride in STAGES:
        for b in range(n):
            s = stride if b == 0 else 1
            y = jax.nn.relu(t.batch_norm(t.conv(x, s)))
            y = jax.nn.relu(t.batch_norm(t.conv(y)))
            y = t.batch_norm(t.conv(y))
            x = jax.nn.relu(y + (t.batch_norm(t.conv(x, s)) if b == 0 else x))
    return t.dense(x.mean((1, 2)))


def s9_params(m):
    i = 3
    for c in (256, 512, 1024):
        for _ in range(2):
            m.conv(3, i, c)
            i = c
    m.draw(1024, 10)
    m.fill(10)


def s9(t, x):
    x = x.astype(BF16)
    for c in (256, 512, 1024):
        for _ in range(2):
            x = jax.nn.relu(t.conv(x))
        if c < 1024:
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.softmax(t.dense(x.mean((1, 2))).astype(jnp.float32))


def gpt2_params(m, t=1024, d=768, n=12, v=50257):
    m.draw(v, d)
    m.draw(t, d)
    for _ in range(n):
        m.norm(d)
        for i, o in ((d, 3 * d), (d, d)):
            m.draw(i, o)
            m.fill(o)
        m.norm(d)
        for i, o in ((d, 4 * d), (4 * d, d)):
            m.draw(i, o)
            m.fill(o)
    m.norm(d)
    m.draw(d, v)


def gpt2(t, x, heads=12, n=12):
    words, places = next(t.rest), next(t.rest)
    y = (words[x] + places).astype(BF16)
    b, s, d = y.shape
    how = "cudnn" if jax.default_backend() == "gpu" else "xla"
    for _ in range(n):
        q, k, v = jnp.moveaxis(t.dense(t.layer_norm(y)).reshape(b, s, 3, heads, d // heads), 2, 0)
        y = y + t.dense(jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=how).reshape(b, s, d))
        y = y + t.dense(jax.nn.gelu(t.dense(t.layer_norm(y)), approximate=False))
    return t.dense(t.layer_norm(y), bias=False)


def cross_entropy(out, y):
    out = out.astype(jnp.float32)
    return (jax.nn.logsumexp(out, -1) - jnp.take_along_axis(out, y[..., None], -1)[..., 0]).mean()


def mean_square(out, y):
    return ((out - y) ** 2).mean()


# name: parameters, network, loss, input, batch, optimizer
CASES = {"resnet50": (resnet50_params, resnet50, cross_entropy, (224, 224, 3), 256, "sgd"), "s9": (s9_params, s9, mean_square, (128, 128, 3), 32, "adam"),
         "gpt2": (gpt2_params, gpt2, cross_entropy, (1024,), 8, "adamw")}


def make(name, batch=None):
    parameters, network, loss, shape, usual, optimizer = CASES[name]
    batch = batch or usual
    m = Maker()
    parameters(m)
    if name == "gpt2":
        x, y = (jax.random.randint(jax.random.key(k), (batch, *shape), 0, 50257) for k in (2, 3))
    else:
        x = jax.random.uniform(jax.random.key(2), (batch, *shape))
        y = jax.random.randint(jax.random.key(3), (batch,), 0, 1000 if name == "resnet50" else 10)
        y = y if name == "resnet50" else jax.nn.one_hot(y, 10)
    zeros = [jnp.zeros_like(p) for p in m.params]
    state = (m.params, zeros, [jnp.zeros_like(p) for p in m.params] if optimizer != "sgd" else [], jnp.zeros((), jnp.float32))

    def step(state, x, y):
        params, first, second, n = state
        grads = jax.grad(lambda p: loss(network(Taker(p), x), y))(params)
        if optimizer == "sgd":
            first = [0.9 * a + g for a, g in zip(first, grads)]
            return [p - 1e-4 * a for p, a in zip(params, first)], first, second, n
        n = n + 1
        first = [0.9 * a + 0.1 * g for a, g in zip(first, grads)]
        second = [0.999 * a + 0.001 * g * g for a, g in zip(second, grads)]
        rate, decay = 1e-4 * jnp.sqrt(1 - 0.999**n) / (1 - 0.9**n), 1e-5 if optimizer == "adamw" else 0
        return [p * (1 - decay) - rate * a / (jnp.sqrt(b) + 1e-8) for p, a, b in zip(params, first, second)], first, second, n

    return jax.jit(step, donate_argnums=0), state, x, y, sum(p.size for p in m.params)


def nvml_mib():
    from ctypes import CDLL, Structure, byref, c_uint, c_ulonglong, c_void_p
    n, h = CDLL("libnvidia-ml.so.1"), c_void_p()
    n.nvmlInit_v2()
    n.nvmlDeviceGetHandleByIndex_v2(0, byref(h))

    class Info(Structure):
        _fields_ = [("pid", c_uint), ("used", c_ulonglong), ("gi", c_uint), ("ci", c_uint)]

    many, rows = c_uint(256), (Info * 256)()
    n.nvmlDeviceGetComputeRunningProcesses_v3(h, byref(many), rows)
    return ([r.used >> 20 for r in rows[: many.value] if r.pid == os.getpid()] or [0])[0]


def main():
    name, setting, folder = sys.argv[1:4]
    folder, began, once = pathlib.Path(folder), time.time(), sys.argv[4:] == ["once"]
    step, state, x, y, count = make(name.split("-")[0])
    for _ in range(3):
        state = step(state, x, y)
    jax.block_until_ready(state)
    ready = time.time() - began
    (folder / f"{name}.{setting}.ready").touch()
    while not (folder / f"{name}.{setting}.go").exists():
        time.sleep(0.05)
    for _ in range(1 if once else 4):
        state = step(state, x, y)
    jax.block_until_ready(state)
    times, n = [], 1 if once else 20
    for _ in range(3):
        t = time.perf_counter()
        for _ in range(n):
            state = step(state, x, y)
        jax.block_until_ready(state)
        times.append(1e3 * (time.perf_counter() - t) / n)
    stats = jax.local_devices()[0].memory_stats() or {}
    print(json.dumps({"peer": f"jax {jax.__version__}", "name": name, "step_ms": sorted(times)[1], "least_ms": min(times), "nvml_mib": nvml_mib(),
                      "live_mib": stats.get("peak_bytes_in_use", 0) >> 20, "taken_mib": stats.get("peak_pool_bytes", 0) >> 20, "parameters": count,
                      "ready_s": round(ready, 1)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
