"""Runs a PyTorch program on fake tensors of the CPU as a card would run it, by replacing what differs between the two:

    where            on a card                                          on a CPU
    devices          "cuda" in the program                              there is none: everything is made on the CPU
    autocast         norms, softmax, losses and sums in float32         not all of them
    attention        one kernel: keeps a number a row, not the scores   the same only without dropout
    dropout          a mask of one byte an element                      of the element's own type
    recurrent        cuDNN: one buffer kept for the backward pass       an operation a time step
    optimizers       all parameters at once ("foreach")                 one after the other

Nothing is computed: only what is allocated, kept and freed matters here.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Sequence, Tuple

# Operations that CUDA's autocast runs in float32 and the CPU's does not (PyTorch's aten/src/ATen/autocast_mode.h).
WIDE = (
    "layer_norm", "group_norm", "softmax.int", "log_softmax.int", "nll_loss", "nll_loss_nd", "mse_loss", "l1_loss", "smooth_l1_loss", "exp", "log",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "rsqrt", "reciprocal", "softplus", "cumsum", "sum", "sum.dim_IntList", "prod", "norm.Scalar",
    "binary_cross_entropy_with_logits", "kl_div", "cosine_similarity", "cosine_embedding_loss", "logsumexp",
)  # fmt: skip


def _to_cpu(value: Any, torch: Any) -> Any:
    if isinstance(value, str):
        return "cpu" if value == "cuda" or value.startswith("cuda:") else value
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


def _devices(torch: Any) -> Any:
    from torch.overrides import TorchFunctionMode

    class Devices(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.cuda:
                return args[0]
            return func(*(_to_cpu(a, torch) for a in args), **{k: _to_cpu(v, torch) for k, v in (kwargs or {}).items()})

    return Devices()


def _wide(torch: Any, packet: Any) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def widen(value: Any) -> Any:
        narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
        return value.float() if narrow else value

    sets_type = any(a.name == "dtype" for a in packet._schema.arguments)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            if sets_type:  # these take the type of their result: one that is given stands (a loss gives it)
                given = kwargs.get("dtype") or next((a for a in args if isinstance(a, torch.dtype)), None)
                if given is not None:
                    return packet(*args, **kwargs)
            return packet(*(widen(a) for a in args), **{k: widen(v) for k, v in kwargs.items()})

    return call


def _loss(torch: Any) -> Callable[..., Any]:
    """Cross entropy on a card: the logarithms in the type of the scores, then a wide copy of them. The CPU's autocast
    widens the scores."""
    aten = torch.ops.aten
    whole = _wide(torch, aten.cross_entropy_loss.default)

    def loss(scores: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100, label_smoothing: float = 0.0) -> Any:
        if target.is_floating_point() or label_smoothing:
            return whole(scores, target, weight, reduction, ignore_index, label_smoothing)
        logarithms = aten.log_softmax.int(scores, 0 if scores.dim() == 1 else 1, scores.dtype)
        return aten.nll_loss_nd(logarithms, target, weight, reduction, ignore_index)

    return loss


def _like(torch: Any, given: Any, shape: Sequence[int]) -> Any:
    """A tensor of this shape whose dimensions lie in the order of another's, with no gaps."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: int(given.stride(d))):
        strides[d], step = step, step * shape[d]
    return torch.empty_strided(shape, strides, dtype=given.dtype, device=given.device)


def _attention(torch: Any) -> Callable[..., Any]:
    class Attention(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
            batch, heads, rows = q.shape[:-2].numel() // q.shape[-3], q.shape[-3], q.shape[-2]
            sums = torch.empty(batch, heads, -(-rows // 32) * 32, dtype=torch.float32)
            if q.dim() == 4 and q.dtype != torch.float32:  # cuDNN's kernel, the first choice in 16 bits, writes in the queries' own order
                out = _like(torch, q, (*q.shape[:-1], v.shape[-1]))
                ctx.save_for_backward(q, k, v, out, sums)
                return out
            out = q.new_empty(batch, rows, heads, v.shape[-1])  # heads inside, as the kernels write it
            ctx.save_for_backward(q, k, v, out, sums)
            return out.transpose(1, 2).view(*q.shape[:-1], v.shape[-1]) if q.dim() == 4 else out.view(*q.shape[:-1], v.shape[-1])

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            q, k, v, _, sums = ctx.saved_tensors
            wide = [] if q.dtype == torch.float32 else [torch.empty(q.shape, dtype=torch.float32)]  # flash attention adds up in float32
            wide.append(torch.empty_like(sums))
            out = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None
            if q.dtype == torch.float32:  # a tile of 64 by 64 numbers and a lock for each block of rows (mem_eff_attention/kernel_backward.h)
                wide.append(torch.empty(sums.shape[0] * sums.shape[1] * -(-q.shape[-2] // 64) * -(-q.shape[-1] // 64) * 16400, dtype=torch.uint8))
            del wide
            return out

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **more: Any) -> Any:
        if any(x.stride(-1) != 1 for x in (query, key, value)):  # no kernel takes these: product, softmax, product
            return torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, **more)[0]
        return Attention.apply(query, key, value, attn_mask)

    return attend


# Of cuDNN 9's buffers for a recurrent network, in numbers of a sequence (src/plan/frameworks/eager_recurrent.c, bench/frameworks/recurrent_sizes.c).
# [LSTM][persistent][both ways]: forwards gates of up to 256 steps, all steps, a layer; backwards all steps of one layer, of several, a layer, the wider of input and units
BUFFERS = {
    True: (((4, 1, 10, 3, 2, 11, 1), (0, 14, 24, 6, 8, 26, 4)), ((0, 21, 8, 15, 16, 12, 1), (0, 30, 18, 18, 20, 26, 4))),
    False: (((3, 1, 5, 3, 2, 5, 1), (0, 12, 14, 6, 8, 14, 4)), ((0, 18, 6, 17, 18, 6, 1), (0, 24, 14, 20, 22, 14, 4))),
}


def persistent(lstm: bool, ways: int, batch: int, ins: int, width: int, layers: int, size: int, backward: bool) -> bool:
    """Whether PyTorch takes cuDNN's persistent algorithm (ATen/native/cudnn/RNN.cpp)."""
    if width <= (128 if backward else 192):
        return True
    return size == 2 and lstm and layers == 1 and ways == 1 and width <= 1024 and width % 128 == 0 and ins % 128 == 0 and batch % 8 == 0 and batch <= 128


def workspace(lstm: bool, ways: int, steps: int, batch: int, ins: int, width: int, layers: int, size: int, lasting: bool) -> int:
    """cuDNN's, in bytes; `lasting`: with the persistent algorithm."""
    gates, all_steps, few, back_one, back_more, back_few, wide = BUFFERS[lstm][lasting][ways - 1]
    forward = gates * min(steps, 256) * width + all_steps * steps * width + steps * ins + few * layers * width
    backward = (back_one if layers == 1 else back_more) * steps * width + 2 * steps * ins + wide * steps * max(ins, width) + back_few * layers * width
    if layers > 1 and ways == 1 and not lasting:  # steps of several layers at once
        backward += min(steps, 8 + (8 if steps >= 128 else 4) * layers) * width
    matrices = ways * (4 if lstm else 3) * width * (ins + width + (layers - 1) * (ways + 1) * width)
    return int(ways * layers * (8 << 20) + matrices * size + batch * (max(forward, backward) * size + 8) + 256)


def _recurrent(torch: Any, cell: bool) -> Callable[..., Any]:
    """cuDNN's: output and last states; for the backward pass a buffer with the gates and states of every step."""

    class Recurrent(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, hidden: Any, before: Any, layers: int, ways: int, batch_first: bool, *weights: Any) -> Any:
            width = hidden.shape[-1]
            steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
            ctx.weights = weights
            narrow = torch.is_autocast_enabled("cpu")
            kind = torch.float16 if narrow else x.dtype  # whatever type autocast was told (ATen/cudnn/AutocastRNN.cpp)
            held = torch.empty(sum(w.numel() for w in weights), dtype=kind) if narrow else None
            ctx.wide = x.dtype
            x = x if x.dtype == kind else torch.empty_like(x, dtype=kind)
            step_by_step = torch.empty_like(x) if batch_first else None
            out = torch.empty(*((steps, batch) if batch_first else x.shape[:2]), width * ways, dtype=kind)
            out = out.transpose(0, 1) if batch_first else out  # made step by step: what reads it next copies it
            state = hidden.new_empty(hidden.shape, dtype=kind)
            cells = hidden.new_empty(hidden.shape, dtype=kind) if cell else None
            ins, size = x.shape[-1], kind.itemsize
            plain = kind in (torch.float64, torch.bfloat16)  # cuDNN has no persistent algorithm for these
            lasting = [not plain and persistent(cell, ways, batch, ins, width, layers, size, back) for back in (False, True)]
            asked, ctx.passing = (workspace(cell, ways, steps, batch, ins, width, layers, size, each) for each in lasting)
            passing = torch.empty(asked, dtype=torch.uint8)
            reserve = torch.empty(ways * steps * batch * width * (layers * (6 if cell else 7) - 1), dtype=kind)
            del passing, step_by_step
            first = [h if h.dtype == kind else torch.empty_like(h, dtype=kind) for h in (hidden, before)[: 1 + cell]]
            ctx.save_for_backward(x, out, reserve, *first, *([held] if held is not None else []))
            ctx.batch_first, ctx.states = batch_first, hidden.shape
            return (out, state, cells) if cell else (out, state)

        @staticmethod
        def backward(ctx: Any, dy: Any, *_: Any) -> Any:
            x = ctx.saved_tensors[0]
            states = [torch.empty(ctx.states, dtype=x.dtype) for _ in range(2 if cell else 1)]  # gradients of the last states: zeros
            step_by_step = torch.empty_like(x) if ctx.batch_first else None
            turned = torch.empty_like(dy) if ctx.batch_first and not dy.transpose(0, 1).is_contiguous() else None
            dx = torch.empty(x.shape[1], x.shape[0], x.shape[2], dtype=x.dtype).transpose(0, 1) if ctx.batch_first else torch.empty_like(x)
            states += [torch.empty_like(state) for state in states]  # and of the first ones
            torch.empty(ctx.passing, dtype=torch.uint8)  # for the input's gradient
            del turned, step_by_step
            step_by_step = torch.empty_like(x) if ctx.batch_first else None
            flat = torch.empty(sum(w.numel() for w in ctx.weights), dtype=x.dtype)
            torch.empty(ctx.passing, dtype=torch.uint8)  # for the weights'
            del step_by_step
            if ctx.wide == x.dtype:  # views of one buffer
                parts = flat.split([w.numel() for w in ctx.weights])
                return (dx, None, None, None, None, None, *(part.view(w.shape) for part, w in zip(parts, ctx.weights)))
            return (dx.to(ctx.wide), None, None, None, None, None, *(torch.empty_like(w) for w in ctx.weights))

    def run(x: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool) -> Any:
        first, before = hx if cell else (hx, None)
        return Recurrent.apply(x, first, before, num_layers, 2 if bidirectional else 1, batch_first, *params)

    return run


def _dropout(torch: Any) -> Callable[..., Any]:
    def dropout(input: Any, p: float, train: bool) -> Any:
        return torch.ops.aten.native_dropout(input, p, True)[0] if train and 0 < p < 1 else input * 1 if train and p else input

    return dropout


@contextlib.contextmanager
def _operations(torch: Any) -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    aten = torch.ops.aten
    try:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is what this is for
            for name in WIDE:
                base, _, overload = name.partition(".")
                packet = getattr(aten, base, None)
                if packet is not None and (overload or "default") in packet.overloads():
                    library.impl(name, _wide(torch, getattr(packet, overload or "default")), "AutocastCPU")
            library.impl("cross_entropy_loss", _loss(torch), "AutocastCPU")
            library.impl("scaled_dot_product_attention", _attention(torch), "AutogradCPU")
            library.impl("dropout", _dropout(torch), "AutogradCPU")
            library.impl("lstm.input", _recurrent(torch, True), "AutogradCPU")
            library.impl("gru.input", _recurrent(torch, False), "AutogradCPU")
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def _put(places: List[Tuple[Any, str, Any]]) -> Iterator[None]:
    """Replaces attributes inside the context."""
    kept = [(where, name, getattr(where, name)) for where, name, _ in places]
    try:
        for where, name, value in places:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in kept:
            setattr(where, name, value)


@contextlib.contextmanager
def as_card(torch: Any, fake: type) -> Iterator[None]:
    """`fake` is the class of fake tensors."""
    from torch.optim import optimizer

    begin = torch.autocast.__init__

    def autocast(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        begin(self, device_type, dtype, *args, **kwargs)

    def copied(self: Any, memo: Any) -> Any:
        """copy.deepcopy of a layer, which PyTorch does for fake tensors by making another mode for them."""
        with torch.no_grad():
            other = self.clone()
        other = torch.nn.Parameter(other, self.requires_grad) if isinstance(self, torch.nn.Parameter) else other
        memo[id(self)] = other
        return other

    def flatten(self: Any) -> None:
        """A recurrent layer's weights on a card: views of one buffer, made beside those that they were read into."""
        names = self._flat_weights_names
        weights: List[Any] = [getattr(self, name) for name in names if getattr(self, name, None) is not None]
        if len(weights) < len(names) or len({w.untyped_storage()._cdata for w in weights}) == 1 or len({w.dtype for w in weights}) > 1:
            return
        with torch.no_grad():
            parts = torch.zeros(sum(w.numel() for w in weights), dtype=weights[0].dtype).split([w.numel() for w in weights])
            for name, w, part in zip(names, weights, parts):
                setattr(self, name, torch.nn.Parameter(part.view(w.shape), w.requires_grad))

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def truncated(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """From PyTorch 2.15 on it draws until every number is in range, and looks at them for that."""
        return tensor

    places: List[Tuple[Any, str, Any]] = [(torch.autocast, "__init__", autocast), (fake, "__deepcopy__", copied), (torch.nn.RNNBase, "flatten_parameters", flatten)]
    places += [(torch.cuda, name, nothing) for name in ("synchronize", "empty_cache", "reset_peak_memory_stats")]
    if hasattr(torch.nn.init, "_no_grad_trunc_normal_"):
        places.append((torch.nn.init, "_no_grad_trunc_normal_", truncated))
    if hasattr(optimizer, "_get_foreach_kernels_supported_devices"):
        places.append((optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"]))
    if hasattr(optimizer, "_foreach_supported_types"):
        places.append((optimizer, "_foreach_supported_types", [*optimizer._foreach_supported_types, fake]))
    with _put(places), _operations(torch), _devices(torch):
        yield
