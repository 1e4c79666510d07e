"""Records what a loop of torch_models.py or its neighbours (torch_unseen.py to torch_next.py), or one that a seed draws (torch_drawn.py: drawn:7), asks an allocator for, on a machine without a card: its tensors are meta tensors,
which have sizes and no bytes. Writes a CSV trace (docs/trace.md) for `memfit replay` and `bench_pool steps`.

    python bench/torch_record.py seasons --steps 24 --repeat 50 --out seasons.csv

With --repeat the shortest run of steps at the end that was the same the time before, request by request, is written so many times more (a loop that draws its
sizes has none).

A loop with side streams is written as requests for `bench_pool race` instead: lines of "time_us op id bytes stream", where a is asked, f freed, u used on a
further stream, k bytes nanoseconds of work, w a wait of the stream for stream id, h the program's own bytes nanoseconds (a batch comes from its workers).

What is not in it is what kernels take for themselves, but for convolutions: each takes as much as it reads and writes, to turn it over (TF32 kernels want channels
last); --workspace changes that. torch.compile is left out, and its model run as it is. Autocast is
to bfloat16, by the functions' names; attention keeps no table of scores. Times are by a model of the card: of every operation the most of 4 us, its bytes at 3 TB/s and its arithmetic at --tflops; what crosses to the card or back 50 GB/s.
"""
import argparse
import contextlib
import importlib
import pathlib
import sys
import weakref

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("workload")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--repeat", type=int, default=0)
    p.add_argument("--tflops", type=float, default=60.0)
    p.add_argument("--workspace", type=float, default=1.0)
    p.add_argument("--out", required=True)
    a = p.parse_args()

    import torch
    import torch_fresh
    import torch_after
    import torch_since
    import torch_drawn
    import torch_last
    import torch_later
    import torch_models
    import torch_next
    import torch_unseen
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    for module in (torch_after, torch_drawn, torch_since, torch_fresh, torch_last, torch_later, torch_models, torch_next, torch_unseen):
        module.DEVICE = "meta"
    torch.compile = lambda model, **_: model
    torch.nn.Module.cuda = lambda self, *_: self.to("meta")
    torch.Tensor.cuda = lambda self, *_, **__: self.to("meta")
    half = {"linear", "conv2d", "conv1d", "matmul", "__matmul__", "bmm", "einsum", "scaled_dot_product_attention"}
    whole = {"layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy", "mse_loss", "kl_div", "exp", "pow", "norm", "nll_loss", "sum", "cumsum"}

    class Autocast(TorchFunctionMode):
        """As autocast to bfloat16: products in it, what needs all digits in float32; the weights' copies are kept until it ends."""

        def __init__(self, *_, **__):
            super().__init__()
            self.kept = {}

        def __exit__(self, *why):
            self.kept.clear()
            return super().__exit__(*why)

        def cast(self, t, to):
            if not isinstance(t, torch.Tensor) or t.dtype not in (torch.float32, torch.bfloat16) or t.dtype == to:
                return t
            if t.is_leaf and t.requires_grad and to == torch.bfloat16:
                if id(t) not in self.kept:
                    with torch.enable_grad():
                        self.kept[id(t)] = t.to(to)
                return self.kept[id(t)]
            return t.to(to)

        def __torch_function__(self, func, types, args=(), kwargs=None):
            name = getattr(func, "__name__", "")
            to = torch.bfloat16 if name in half else torch.float32 if name in whole else None
            if to:
                args = [self.cast(x, to) for x in args]
                kwargs = {k: self.cast(x, to) for k, x in (kwargs or {}).items()}
            if name == "scaled_dot_product_attention":
                return attention(*args[:3])
            return func(*args, **(kwargs or {}))

    class Flash(torch.autograd.Function):
        """Attention that keeps no table of scores, as on a card."""

        @staticmethod
        def forward(ctx, q, k, v):
            out = torch.empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=q.dtype, device=q.device).transpose(1, 2)
            sums = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
            ctx.save_for_backward(q, k, v, out, sums)
            return out

        @staticmethod
        def backward(ctx, g):
            q, k, v, out, sums = ctx.saved_tensors
            kept = torch.empty_like(sums), torch.empty(q.shape, dtype=torch.float32, device=q.device)  # noqa: F841, what the kernel takes for itself
            return tuple(torch.empty(t.shape[0], t.shape[2], t.shape[1], t.shape[3], dtype=t.dtype, device=t.device).transpose(1, 2) for t in (q, k, v))

    attention = Flash.apply
    torch.nn.functional.scaled_dot_product_attention = lambda q, k, v, *_, **__: attention(q, k, v)
    torch.autocast = Autocast
    item = torch.Tensor.item
    torch.Tensor.item = lambda self: 0.0 if self.device.type == "meta" else item(self)  # the loops only print it
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):  # optimizers as on a card
        importlib.import_module(name)._get_foreach_kernels_supported_devices = lambda: ["meta"]
        importlib.import_module(name)._get_fused_kernels_supported_devices = lambda: ["meta"]
    meta = torch.library.Library("aten", "IMPL", "Meta")  # kept as long as we record
    meta.impl("_fused_sgd_", lambda *_, **__: None)  # has no kernel for meta tensors, and takes no memory
    loops = {**torch_models.WORKLOADS, **torch_unseen.UNSEEN, **torch_fresh.FRESH, **torch_later.LATER, **torch_last.LAST, **torch_after.AFTER, **torch_since.SINCE, **torch_next.NEXT}
    if a.workload.startswith("drawn:"):
        loops[a.workload] = (torch_drawn.drawn_steps(a.workload[6:]),)

    lines, alive, clock, count = [], {}, [0.0], [0]
    requests, made = [], [0]  # with streams; how many there are beside the default one

    class Stream:
        def __init__(self, number=None):
            made[0] += number is None
            self.number = made[0] if number is None else number

        def wait_stream(self, other):
            requests.append((clock[0], "w", other.number, 0, self.number))

    here = [Stream(0)]

    @contextlib.contextmanager
    def on(stream):
        here.append(stream)
        try:
            yield
        finally:
            here.pop()

    torch.cuda.Stream, torch.cuda.stream, torch.cuda.current_stream = Stream, on, lambda *_: here[-1]
    torch.Tensor.record_stream = lambda self, stream: requests.append((clock[0], "u", alive[self.untyped_storage()._cdata][1], 0, stream.number))

    class Loader(torch.utils.data.DataLoader):
        def __init__(self, *args, num_workers=0, pin_memory=False, persistent_workers=False, prefetch_factor=None, **kwargs):
            super().__init__(*args, **kwargs)

        def __iter__(self):
            for batch in super().__iter__():
                requests.append((clock[0], "h", 0, 500_000, 0))
                yield batch

    torch.utils.data.DataLoader = Loader

    def end(key, number, size, stream):
        alive.pop(key, None)
        lines.append((clock[0], "free", number, size))
        requests.append((clock[0], "f", number, size, stream))

    def note(tensor):
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "meta":
            return
        storage = tensor.untyped_storage()
        size, key = storage.nbytes(), storage._cdata
        if key in alive or not size:
            return
        number = count[0]
        count[0] += 1
        lines.append((clock[0], "alloc", number, size))
        requests.append((clock[0], "a", number, size, here[-1].number))
        alive[key] = weakref.ref(storage, lambda _, k=key, n=number, s=size, on=here[-1].number: end(k, n, s, on)), number

    def workspace(tensors):
        size = int(a.workspace * sum(t.numel() * t.element_size() for t in tensors))
        if size:
            lines.extend(((clock[0], "alloc", count[0], size), (clock[0], "free", count[0], size)))
            requests.extend((clock[0], op, count[0], size, here[-1].number) for op in "af")
            count[0] += 1

    def turn_over(func, args, out):
        """A convolution, or the two of its gradients, after their results were taken."""
        if func._overloadpacket is torch.ops.aten.convolution:
            workspace((args[0], args[1], out))
        elif func._overloadpacket is torch.ops.aten.convolution_backward:
            grad, x, weight = args[:3]
            if out[0] is not None:
                workspace((grad, weight, out[0]))
            if out[1] is not None:
                workspace((grad, x, out[1]))

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            away = func._overloadpacket is torch.ops.aten._to_copy and str(kwargs.get("device")) == "cpu" and args[0].device.type == "meta"
            out = torch.empty(args[0].shape, dtype=args[0].dtype) if away else func(*args, **kwargs)
            leaves = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            if not any(t.device.type == "meta" for t in leaves):
                return out
            for t in tree_leaves(out):
                note(t)
            turn_over(func, args, out)
            if not func.is_view:
                cost = flop_registry.get(func._overloadpacket)
                flops = cost(*args, **kwargs, out_val=out) if cost else 0
                crosses = sum(t.numel() * t.element_size() for t in leaves if t.device.type == "cpu")
                us = max(4.0, sum(t.numel() * t.element_size() for t in leaves) / 3e6, flops / a.tflops / 1e6, crosses / 5e4)
                clock[0] += us
                requests.append((clock[0], "k", 0, int(1000 * us), here[-1].number))
            return out

    class OnMeta(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "meta"
            return func(*args, **kwargs)

    began = []  # of every step: the time, and the events before it
    with OnMeta(), Record():
        for _, loss in zip(range(a.steps), loops[a.workload][0](torch)):
            began.append((clock[0], len(lines)))
            del loss
    steps, ms = a.steps, (began[-1][0] - began[0][0]) / max(1, len(began) - 1) / 1000
    if made[0] and a.repeat:
        sys.exit(f"{a.workload} has side streams: --repeat is for loops without")
    if a.repeat:
        period = find_period(lines, began)
        if not period:
            sys.exit(f"{a.workload}: no run of steps comes again in {a.steps}")
        del lines[began[-1][1]:]
        repeat(lines, began, period, a.repeat)
        steps += period * a.repeat
    if made[0]:
        pathlib.Path(a.out).write_text("".join(f"{int(t)} {op} {number} {size} {stream}\n" for t, op, number, size, stream in requests))
        print(f"{a.workload}: {len(requests)} lines, {steps} steps, {ms:.2f} ms a step by the model, {made[0]} side streams")
        return
    pathlib.Path(a.out).write_text("time_us,op,id,bytes,stream\n" + "".join(f"{int(t)},{op},{number},{size},0\n" for t, op, number, size in lines))
    print(f"{a.workload}: {len(lines)} events, {steps} steps, {ms:.2f} ms a step by the model")


def shape(lines, first, past):
    """What a run of events does, whatever its blocks are numbered: how far before a free its block was asked for."""
    asked = {number: i for i, (_, op, number, _) in enumerate(lines[:past]) if op == "alloc"}
    return [(op, size, i - asked[number] if op == "free" else 0) for i, (_, op, number, size) in enumerate(lines[first:past], first)]


def find_period(lines, began):
    """How many steps the shortest run has that came twice at the end. What it frees of before it was asked for in the run before."""
    for period in range(1, len(began) // 2):
        a, b, c = (began[-1 - k * period][1] for k in (2, 1, 0))
        if b - a == c - b and shape(lines, a, b) == shape(lines, b, c) and all(back <= c - b for op, _, back in shape(lines, b, c)):
            return period
    return 0


def repeat(lines, began, period, times):
    (from_us, first), (to_us, past) = began[-1 - period], began[-1]
    back = [b for _, _, b in shape(lines, first, past)]
    count = 1 + max(number for _, _, number, _ in lines)
    for k in range(1, times + 1):
        for i in range(first, past):
            t, op, number, size = lines[i]
            if op == "alloc":
                number, count = count, count + 1
            else:  # the block that was asked for as long before
                number = lines[len(lines) - back[i - first]][2]
            lines.append((t + k * (to_us - from_us), op, number, size))


main()
