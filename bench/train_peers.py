#!/usr/bin/env python3
"""One peer of bench_train.py: train_peers.py tensorflow|torch NAME MODEL.keras BATCH SETTING

Builds the model, takes three steps, then serves lines on standard input: "N" takes N training steps on a fixed batch and
answers one line of JSON with their wall and processor time in ms and VmHWM in bytes. TensorFlow trains the .keras file;
PyTorch trains its own definition of the same network (channels last, fused Adam), checked by its count of parameters.

Settings: TensorFlow "graph" or "xla" (jit_compile); PyTorch "eager" or "compile".
"""
import json
import os
import resource
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
THREADS = int(os.environ.get("PEER_THREADS", "2"))


def tensorflow_step(name, path, batch, setting):
    import numpy as np
    import tensorflow as tf
    import keras

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    m = keras.models.load_model(path)
    m.compile(m.optimizer, m.loss, jit_compile=setting == "xla")
    r = np.random.default_rng(1)
    x = tf.constant(r.random((batch,) + m.input_shape[1:], "float32"))
    classes = m.output_shape[-1]
    y = tf.constant(r.integers(0, classes, batch).astype("int32")) if "sparse" in str(m.loss) else tf.one_hot(
        r.integers(0, classes, batch), classes)

    # Keras's own compiled step, without the conversion of the returned metrics that train_on_batch does.
    m.make_train_function()

    def data():
        while True:
            yield x, y

    it = data()
    return lambda: float(m.train_function(it)["loss"]), m.count_params()


# ---- PyTorch ------------------------------------------------------------------------------------------------


def torch_models():
    import torch
    from torch import nn
    import torch.nn.functional as F

    def conv(i, o, k=3, s=1, bias=True, groups=1, padding=None):
        return nn.Conv2d(i, o, k, s, k // 2 if padding is None else padding, bias=bias, groups=groups)

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    def s1():
        return nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))

    def s9_small():
        return nn.Sequential(conv(3, 64), nn.ReLU(inplace=True), nn.MaxPool2d(2), conv(64, 128), nn.ReLU(inplace=True),
                             Mean(), nn.Linear(128, 10), nn.Softmax(-1))

    def digits():
        return nn.Sequential(conv(1, 64), nn.ReLU(inplace=True), conv(64, 64), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                             conv(64, 128), nn.ReLU(inplace=True), conv(128, 128), nn.ReLU(inplace=True), Mean(),
                             nn.Linear(128, 10))

    class Bottleneck(nn.Module):
        def __init__(self, i, m, stride, project):
            super().__init__()
            def bn(c):
                return nn.BatchNorm2d(c, eps=1.001e-5, momentum=0.01)
            self.body = nn.Sequential(conv(i, m, 1, stride), bn(m), nn.ReLU(inplace=True), conv(m, m), bn(m),
                                      nn.ReLU(inplace=True), conv(m, 4 * m, 1), bn(4 * m))
            self.side = nn.Sequential(conv(i, 4 * m, 1, stride), bn(4 * m)) if project else nn.Identity()

        def forward(self, x):
            return F.relu(self.body(x) + self.side(x), inplace=True)

    def resnet50():
        layers = [conv(3, 64, 7, 2), nn.BatchNorm2d(64, eps=1.001e-5, momentum=0.01), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        i = 64
        for m, n, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for b in range(n):
                layers.append(Bottleneck(i, m, stride if b == 0 else 1, b == 0))
                i = 4 * m
        return nn.Sequential(*layers, Mean(), nn.Linear(2048, 10))

    class Inverted(nn.Module):
        def __init__(self, i, o, stride, expand):
            super().__init__()
            h = i * expand
            def bn(c):
                return nn.BatchNorm2d(c, eps=1e-3, momentum=0.001)
            first = [conv(i, h, 1, bias=False), bn(h), nn.ReLU6(inplace=True)] if expand > 1 else []
            self.body = nn.Sequential(*first, conv(h, h, 3, stride, bias=False, groups=h), bn(h), nn.ReLU6(inplace=True),
                                      conv(h, o, 1, bias=False), bn(o))
            self.add = stride == 1 and i == o

        def forward(self, x):
            y = self.body(x)
            return x + y if self.add else y

    def mobilenetv2():
        layers = [conv(3, 32, 3, 2, bias=False), nn.BatchNorm2d(32, eps=1e-3, momentum=0.001), nn.ReLU6(inplace=True)]
        i = 32
        for t, c, n, s in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
            for b in range(n):
                layers.append(Inverted(i, c, s if b == 0 else 1, t))
                i = c
        layers += [conv(320, 1280, 1, bias=False), nn.BatchNorm2d(1280, eps=1e-3, momentum=0.001), nn.ReLU6(inplace=True)]
        return nn.Sequential(*layers, Mean(), nn.Linear(1280, 10))

    def vgg16():
        layers, i = [], 3
        for c, n in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(n):
                layers += [conv(i, c), nn.ReLU(inplace=True)]
                i = c
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 4096),
                             nn.ReLU(inplace=True), nn.Linear(4096, 10))

    class Lstm(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 10)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.o = nn.Linear(128, 384), nn.Linear(128, 128)
            self.a, self.b, self.f, self.g = nn.LayerNorm(128, eps=1e-3), nn.LayerNorm(128, eps=1e-3), nn.Linear(128, 512), nn.Linear(512, 128)

        def forward(self, x):
            n, t, c = x.shape
            q, k, v = self.qkv(x).view(n, t, 3, 4, 32).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
            x = self.a(x + self.o(y))
            return self.b(x + self.g(F.relu(self.f(x))))

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.out = nn.Sequential(*[Block() for _ in range(4)]), nn.Linear(128, 10)

        def forward(self, x):
            return self.out(self.blocks(x).mean(1))

    return {"s1": (s1, (10,), "mse"), "s9-small": (s9_small, (3, 128, 128), "mse"), "digits": (digits, (1, 32, 32), "xent"),
            "resnet50": (resnet50, (3, 224, 224), "xent"), "mobilenetv2": (mobilenetv2, (3, 224, 224), "xent"),
            "vgg16": (vgg16, (3, 224, 224), "xent"), "lstm": (Lstm, (100, 64), "mse"),
            "transformer": (Encoder, (128, 128), "xent")}


def torch_step(name, path, batch, setting):
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(THREADS)
    torch.set_flush_denormal(True)
    torch.manual_seed(1)
    make, shape, loss_name = torch_models()[name]
    m = make().train()
    x = torch.rand(batch, *shape)
    if len(shape) == 3:
        m, x = m.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 2 if name == "s1" else 10, (batch,))
    if loss_name == "mse":
        y = F.one_hot(y, 2 if name == "s1" else 10).float()
    optimizer = torch.optim.Adam(m.parameters(), lr=1e-3, eps=1e-7, fused=True)
    count = sum(p.numel() for p in m.parameters()) + sum(b.numel() for n, b in m.named_buffers() if "running" in n)
    net = torch.compile(m) if setting == "compile" else m
    loss_of = F.mse_loss if loss_name == "mse" else F.cross_entropy

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, count


def main():
    kind, name, path, batch, setting = sys.argv[1:6]
    os.environ["OMP_NUM_THREADS"] = str(THREADS)
    began = time.perf_counter()
    step, parameters = (tensorflow_step if kind == "tensorflow" else torch_step)(name, path, int(batch), setting)
    step()
    first = time.perf_counter() - began
    step(), step()
    print(json.dumps({"parameters": parameters, "first_step_seconds": first}), flush=True)
    for line in sys.stdin:
        wall, before = [], resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(int(line)):
            t = time.perf_counter()
            step()
            wall.append(1e3 * (time.perf_counter() - t))
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / len(wall)
        hwm = [int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")][0] * 1024
        print(json.dumps({"wall": wall, "cpu": cpu, "hwm": hwm}), flush=True)


main()
