"""PyTorch without a card: the trace of a fake step, Watch in a loop that leaks, explain of the allocator's own error."""

import os
import subprocess
import sys
import tempfile
import unittest

import memfit
import torch

nn = torch.nn


def make(n=8, move=False):
    def build():
        m = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))
        if move:
            m = m.to("cpu")
        o = torch.optim.Adam(m.parameters())
        x, y = torch.randn(n, 3, 16, 16), torch.zeros(n, dtype=torch.long)

        def step():
            loss = nn.functional.cross_entropy(m(x), y)
            o.zero_grad()
            loss.backward()
            o.step()

        return step

    return build


def workspaces(build):
    """cuDNN's, in their order, of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step.csv")
        memfit.torch_trace(build, path)
        with open(path) as f:
            found = [int(line.split(",")[3]) for line in f if ",alloc," in line and line.endswith(",workspace,cudnn\n")]
    return found[: len(found) // 2]  # two steps are recorded


class Trace(unittest.TestCase):
    def test_bytes_are_exact(self):
        parameters = 4 * (3 * 8 * 9 + 8 + 8 * 256 * 10 + 10)
        for move in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "step.csv")
                t = memfit.torch_trace(make(move=move), path)
                print(t)
                done = subprocess.run([memfit.program(), "replay", path, "--json"], stdout=subprocess.PIPE, encoding="utf-8", check=True)
                self.assertIn('"peak_live_bytes": %d' % t.peak_live_bytes, done.stdout)
                self.assertIn('"failed": 0', done.stdout)
                self.assertEqual(t.by_kind["parameters"], parameters)
                self.assertEqual(t.by_kind["inputs"], 8 * 3 * 256 * 4 + 8 * 8)
                # Adam's two moments and a step count a parameter: float32 each
                self.assertGreaterEqual(t.by_kind["optimizer"], 2 * parameters)
                self.assertGreaterEqual(t.by_kind["activations"], 8 * 8 * 256 * 4)
                with self.assertRaises(memfit.UsageError):
                    memfit.torch_trace(make(), path)

    def test_twice_the_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            one, two = (memfit.torch_trace(make(n), os.path.join(folder, "%d.csv" % n)) for n in (64, 128))
        self.assertAlmostEqual(two.by_kind["activations"] / one.by_kind["activations"], 2, delta=0.05)

    def test_as_a_card_runs_it(self):
        """Attention keeps no scores, dropout a byte an element, "cuda" needs no card; and memfit plans it."""
        rows, width = 1024, 64

        def attends():
            q = torch.randn(2, 8, rows, width, device="cuda", requires_grad=True)
            return lambda: nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1, is_causal=True).sum().backward()

        def attends_across():  # the last dimension is not the one that lies together: no kernel takes it
            q = torch.randn(2, 8, width, rows, device="cuda", requires_grad=True)
            return lambda: nn.functional.scaled_dot_product_attention(*[q.transpose(2, 3)] * 3).sum().backward()

        def attends_in_order(kind):  # rows first, as nn.MultiheadAttention has them: in 16 bits the result lies so, too, and needs no copy
            def build():
                q = torch.randn(rows, 2, 8, width, device="cuda", dtype=kind, requires_grad=True)
                return lambda: nn.functional.scaled_dot_product_attention(*[q.permute(1, 2, 0, 3)] * 3).permute(2, 0, 1, 3).contiguous().sum().backward()

            return build

        def drops():
            x = torch.randn(1 << 20, device="cuda", requires_grad=True)
            layer = nn.Dropout(0.5).cuda()
            return lambda: layer(x).sum().backward()

        def narrows():
            norm, x = nn.LayerNorm(256).cuda(), torch.randn(4096, 256, device="cuda", dtype=torch.bfloat16)

            def step():
                with torch.autocast("cuda", torch.bfloat16):
                    assert norm(x).dtype == torch.float32  # by CUDA's lists

            return step

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "step.csv")
            one = 2 * 8 * rows * width * 4
            t = memfit.torch_trace(attends, path)
            self.assertLess(t.peak_live_bytes, 8 * one)  # the scores alone would be 16 of them
            across = memfit.torch_trace(attends_across, os.path.join(folder, "across.csv"))
            scores = 2 * 8 * rows * rows * 4  # in backward: weights, their gradient, the product of both, the scores' gradient
            self.assertGreater(across.peak_live_bytes, 4 * scores)
            self.assertLess(across.peak_live_bytes, 5 * scores)
            for kind, results in (torch.bfloat16, 1), (torch.float32, 2):
                ordered = os.path.join(folder, "%d.csv" % results)
                memfit.torch_trace(attends_in_order(kind), ordered, steps=1)
                with open(ordered) as f:
                    self.assertEqual(sum(",alloc," in line and ",%d,activations" % (one // 4 * kind.itemsize) in line for line in f), results)
            plan = memfit.plan(t, runtime="torch", card="t4")
            self.assertEqual(plan.in_framework.fits, "yes")
            self.assertEqual(plan.in_framework.live_bytes, sum(v for k, v in plan.breakdown.to_dict().items() if k not in ("fixed", "padding")))
            t = memfit.torch_trace(drops, os.path.join(folder, "drops.csv"))
            self.assertAlmostEqual(t.peak_live_bytes, (4 + 4 + 1 + 4) << 20, delta=64)  # input, output, mask, and what is kept of the sum's gradient
            memfit.torch_trace(narrows, os.path.join(folder, "narrows.csv"))
        before = torch.autocast.__init__.__name__
        self.assertEqual(before, "__init__")  # PyTorch is as it was

    def test_single_pixels(self):
        """A kernel of one pixel: its gradient is a product for each image, with float32 sums, unless that is far more than the images and there are an
        even number of positions; with a stride everything is copied, and with many channels, too, where positions are odd."""

        def make(stride, side, into):
            def build():
                layer = nn.Conv2d(into // 2, into, 1, stride, bias=False).cuda().bfloat16()
                x = torch.randn(32, into // 2, side, side, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                return lambda: layer(x).pow(2).sum().backward()

            return build

        x, y = 32 * 256 * 81 * 2, 32 * 512 * 25 * 2
        each, images, whole = 32 * 256 * 512 * 4, 32 * (256 + 512) * 64 * 2, 32 * (512 + 1024) * 81 * 2
        for stride, side, into, wanted in (1, 9, 512, [each]), (2, 9, 512, 3 * [x + y]), (1, 8, 512, [images]), (1, 9, 1024, 3 * [whole]):
            with self.subTest(stride=stride, side=side, into=into):
                self.assertEqual(workspaces(make(stride, side, into)), wanted)

    def test_transforms(self):
        """The gradient of few kernels over small images, in float32: two transforms of every image on both sides, of 64 x 33 complex numbers."""

        def make(side, kind, kernels=24):
            def build():
                layer = nn.Conv2d(96, kernels, 3, padding=1, bias=False).cuda().to(kind)
                x = torch.randn(4, 96, side, side, device="cuda", dtype=kind)
                return lambda: layer(x).pow(2).sum().backward()

            return build

        each = 64 * 33 * 8
        self.assertEqual(workspaces(make(32, torch.float32))[-1], 4 * (2 * each * (96 + 24) + 24 * 32 * 32 * 4))
        for side, kind, kernels in (48, torch.float32, 24), (32, torch.bfloat16, 24), (32, torch.float32, 12):
            self.assertLess(workspaces(make(side, kind, kernels))[-1], 4 * 120 * side * side * 4 + (9 << 20))

    def test_in_the_cards_order(self):
        """A result comes before the workspace it is made with, a mask before what it masks; a part of a gradient is made whole for a while."""

        def build():
            one, two = (nn.Conv2d(16, 16, 3, padding=1).cuda() for _ in range(2))
            x = torch.randn(8, 16, 16, 16, device="cuda", requires_grad=True)
            return lambda: torch.cat((one(x), nn.functional.dropout(two(x))), 1).pow(2).sum().backward()

        image, kernel, mask = 8 * 16 * 256 * 4, 16 * 16 * 9 * 4, 8 * 16 * 256
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "step.csv")
            memfit.torch_trace(build, path, steps=1)
            with open(path) as f:
                rows = [line.strip().split(",") for line in f][1:]
        allocs = [(int(r[3]), r[5]) for r in rows if r[1] == "alloc"]
        first = allocs.index((2 * image + kernel, "cudnn"))
        self.assertEqual(allocs[first - 1][0], image)
        self.assertEqual(allocs[[a[0] for a in allocs].index(mask) + 1][0], image)
        whole = allocs.index((image, "contiguous"))
        self.assertEqual([a[0] for a in allocs[whole + 1 : whole + 5]], [image, 2 * image + kernel, kernel, 2 * image + kernel + (8 << 20)])

    def test_recurrent(self):
        """cuDNN's workspace is that of the algorithm that PyTorch takes, by its own figures; weights and their gradients are one buffer each; autocast is float16."""

        def make(width, narrow, layers=1, kind=nn.LSTM):
            def build():
                layer = kind(768, width, layers, batch_first=True).cuda()
                x = torch.randn(128, 64, 768, device="cuda")

                def step():
                    with torch.autocast("cuda", torch.bfloat16, enabled=narrow):
                        y = layer(x)[0]
                    assert y.dtype == (torch.float16 if narrow else torch.float32)
                    y.sum().backward()

                return step

            return build

        def allocated(*how):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "step.csv")
                memfit.torch_trace(make(*how), path, steps=1)
                with open(path) as f:
                    return [int(line.split(",")[3]) for line in f if ",alloc," in line]

        few, many = allocated(192, False), allocated(768, True)
        self.assertIn(182387968, few)  # persistent forwards,
        self.assertEqual(few.count(106792192), 2)  # not backwards
        self.assertEqual(many.count(296224000), 3)
        self.assertEqual(allocated(768, False).count(182584576), 3)
        layers = [size for size in allocated(256, False, 2, nn.GRU) if abs(size - 116655360) < size // 50]
        self.assertEqual(len(layers), 3)  # of several layers within 2 %
        weights = 4 * 192 * (768 + 192 + 2) * 4
        self.assertEqual(few.count(weights), 2)
        self.assertEqual(few.count(128 * 64 * 192 * 4 * 5), 1)  # what stays for the backward pass

    def test_refused(self):
        def looks():
            x = torch.randn(3)
            return lambda: x.sum().item() + 1 > 0 or None

        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(memfit.UnsupportedError, "fake tensors"):
                memfit.torch_trace(lambda: [][1], os.path.join(folder, "a.csv"))
            self.assertEqual(os.listdir(folder), [])
            with self.assertRaisesRegex(memfit.UsageError, "make must be a function"):
                memfit.torch_trace(nn.Linear(2, 2).state_dict(), os.path.join(folder, "b.csv"))
            with self.assertRaisesRegex(memfit.UsageError, "returned int"):
                memfit.torch_trace(lambda: 5, os.path.join(folder, "c.csv"))
            for steps in (0, "2", 1.5):
                with self.assertRaisesRegex(memfit.UsageError, "whole number"):
                    memfit.torch_trace(make(), os.path.join(folder, "d.csv"), steps=steps)
            with self.assertRaisesRegex(memfit.InputError, "no folder"):
                memfit.torch_trace(make(), os.path.join(folder, "missing", "e.csv"))
            self.assertEqual(os.listdir(folder), [])
        nn.Linear(2, 2).to(torch.float64)  # PyTorch is as it was

    def test_truncated_first_values(self):
        """As vision transformers have them: PyTorch 2.15 looks at the numbers it draws."""

        def build():
            m = nn.Linear(64, 32)
            nn.init.trunc_normal_(m.weight, std=0.02)
            nn.init.trunc_normal_(m.bias, mean=3.0, std=0.5)
            x = torch.randn(4, 64)
            return lambda: m(x).sum().backward()

        with tempfile.TemporaryDirectory() as folder:
            t = memfit.torch_trace(build, os.path.join(folder, "step.csv"))
        self.assertEqual(t.by_kind["parameters"], 4 * (64 * 32 + 32))
        w = nn.init.trunc_normal_(torch.empty(1000), std=1.0)  # PyTorch is as it was
        self.assertTrue(0 < w.abs().max() <= 2)


class WatchTorch(unittest.TestCase):
    def test_kept_losses_are_named(self):
        m = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1))
        history, said = [], []
        with memfit.Watch(limit="64GiB", say=said.append, bar=False) as watch:
            for _ in range(60):
                loss = m(torch.randn(512, 512)).pow(2).mean()
                history.append(loss)
                watch._next = watch._latest = 0
                watch.step()
        self.assertTrue(said and "history" in said[0] and "keeps its graph" in said[0], said)
        print(said[0])


class Explain(unittest.TestCase):
    def test_the_hosts_allocator(self):
        with self.assertRaises(RuntimeError):
            with memfit.explain(show=lambda text: None) as e:
                torch.empty(1 << 50, dtype=torch.uint8)
        self.assertIsNotNone(e.answer)
        self.assertEqual((e.answer.framework, e.answer.cause), ("pytorch", "too-large"))


class Use(unittest.TestCase):
    @unittest.skipIf(torch.cuda.is_available(), "there is a card")
    def test_no_card(self):
        with self.assertRaises(memfit.Error):  # no card; where libmemfit.so was not built, that
            memfit.torch.use()
        self.assertIsNone(memfit.torch.in_use())

    def test_owners_by_module(self):
        """Whose memory it is: the module that runs. One that takes the address of another that has gone has its own name."""
        code = """
import types, torch
from memfit import torch as ours
told = []
class Owner:
    def __call__(self, name): told.append(name)
ours._name_owners(torch, types.SimpleNamespace(memfit_torch_owner=Owner()))
wrong, seen = 0, set()
for n in range(300):
    m = torch.nn.Tanh() if n % 2 else torch.nn.ReLU()
    told.clear(); m(torch.ones(1)); seen.add(id(m))
    want = b"Tanh (Tanh)" if n % 2 else b"ReLU (ReLU)"
    wrong += told != [want, None]
    del m
print(wrong, len(seen) < 300)
m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()); told.clear(); m(torch.ones(1, 2)).sum().backward(); print(told)
"""
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, encoding="utf-8", check=True)
        lines = done.stdout.split("\n")
        self.assertEqual(lines[0], "0 True")
        for name in ("b'0 (Linear)'", "b'1 (ReLU)'", "b'backward of 0 (Linear)'", "b'Sequential (Sequential)'"):
            self.assertIn(name, lines[1])


if __name__ == "__main__":
    unittest.main()
