"""A PyTorch program on fake tensors of the CPU, run as a card would run it: what differs between the two is put in its place while it lasts.

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
    """Cross entropy on a card: the logarithms in the type of the scores, then a wide copy of them. The CPU's autocast widens the scores."""
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


def _recurrent(torch: Any, gates: int, cell: bool) -> Callable[..., Any]:
    """cuDNN's: output and last states; for the backward pass a buffer with the gates and states of every step."""

    class Recurrent(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, hidden: Any, layers: int, ways: int, batch_first: bool, *weights: Any) -> Any:
            width = hidden.shape[-1]
            steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
            ctx.weights, ctx.ways = weights, ways
            narrow = torch.is_autocast_enabled("cpu")
            kind = torch.get_autocast_dtype("cpu") if narrow else x.dtype
            held = torch.empty(sum(w.numel() for w in weights), dtype=kind) if narrow else None
            turned = batch_first and not narrow  # made step by step: what reads it next copies it
            out = torch.empty(*((steps, batch) if turned else x.shape[:2]), width * ways, dtype=kind)
            out = out.transpose(0, 1) if turned else out
            state = hidden.new_empty(hidden.shape, dtype=kind)
            cells = hidden.new_empty(hidden.shape, dtype=kind) if cell else None
            one = steps * batch * width
            ctx.passing = sum(w.numel() for w in weights) + ways * one * (gates + 2 + layers) + (1 << 19)  # cuDNN's workspace, as seen for LSTMs
            passing = torch.empty(ctx.passing, dtype=kind)
            reserve = torch.empty(ways * one * (layers * (gates + 2) - 1), dtype=kind)
            del passing
            ctx.save_for_backward(x, out, reserve, *([held] if held is not None else []))
            ctx.shapes = (hidden.shape, kind)
            return (out, state, cells) if cell else (out, state)

        @staticmethod
        def backward(ctx: Any, dy: Any, *_: Any) -> Any:
            x = ctx.saved_tensors[0]
            dx = torch.empty_like(x)
            torch.empty(ctx.shapes[0], dtype=ctx.shapes[1])
            for _twice in range(2):  # for the input's gradient, and for the weights'
                torch.empty(ctx.passing, dtype=ctx.shapes[1])
            return (dx, None, None, None, None, *(torch.empty_like(w) for w in ctx.weights))

    def run(x: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool) -> Any:
        first = hx[0] if cell else hx
        return Recurrent.apply(x, first, num_layers, 2 if bidirectional else 1, batch_first, *params)

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
            library.impl("lstm.input", _recurrent(torch, 4, True), "AutogradCPU")
            library.impl("gru.input", _recurrent(torch, 3, False), "AutogradCPU")
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def _put(places: List[Tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes replaced while it lasts."""
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

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def truncated(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """From PyTorch 2.15 on it draws until every number is in range, and looks at them for that."""
        return tensor

    places: List[Tuple[Any, str, Any]] = [(torch.autocast, "__init__", autocast), (fake, "__deepcopy__", copied)]
    places += [(torch.cuda, name, nothing) for name in ("synchronize", "empty_cache", "reset_peak_memory_stats")]
    if hasattr(torch.nn.init, "_no_grad_trunc_normal_"):
        places.append((torch.nn.init, "_no_grad_trunc_normal_", truncated))
    if hasattr(optimizer, "_get_foreach_kernels_supported_devices"):
        places.append((optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"]))
    if hasattr(optimizer, "_foreach_supported_types"):
        places.append((optimizer, "_foreach_supported_types", [*optimizer._foreach_supported_types, fake]))
    with _put(places), _operations(torch), _devices(torch):
        yield
