"""memfit.torch_trace: a PyTorch step on fake tensors, written as memfit's trace. Nothing is computed, no card is needed.

Fake tensors have shapes and no bytes. A dispatch mode sees every operation and follows the storages it makes: each is an `alloc` when it
first appears and a `free` when the last tensor on it goes. `memfit plan` reads the trace, and so do `replay`, `explain` and `report`.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ._as_card import as_card
from ._measure import mib
from .errors import InputError, RunError, UnsupportedError, UsageError


PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "_scaled_mm"))
WORKSPACE = 8519680  # bytes: of cards before Hopper
PARTIAL_SUMS = 8 << 20  # of a kernel's gradient in float32: 4 to 8 MiB were seen
HALF_SUMS, MANY_POSITIONS = 4 << 20, 256  # in 16 bits: up to 16 MiB, mostly 2 to 5, and nothing where the image has few positions
FEW_KERNELS, SMALL_SIDE = 24, 34  # 24 kernels of three pixels over 32 were seen to, over 48 and 64 not
FEW_POSITIONS = 64  # of an image whose kernels of one pixel are products even where they are odd: 49 were seen, and 81 that are not


def _sum_bytes(rows: int, columns: int) -> int:
    """What a sum over rows takes for the parts that its blocks make (PyTorch's aten/src/ATen/native/cuda/Reduce.cuh, with an H200's 132 processors): the
    gradient of a bias."""
    vector = 4 if columns % 4 == 0 else 2 if columns % 2 == 0 else 1
    across = columns // vector
    if not rows or not across:
        return 0
    width = min(1 << (across.bit_length() - 1), 32)
    height = min(512 // vector // width, 1 << (rows.bit_length() - 1))
    each, grid = -(-rows // height), -(-across // width)
    if each < 256:
        return 0
    parts = max(min(-(-132 * (2048 // (width * height)) // grid), -(-each // 16)), -(-each // 256))
    return 4 * columns * parts * width * vector if parts > 1 else 0


class TorchTrace(NamedTuple):
    """Where the trace is, how many events it has, and the most bytes that were alive at once."""

    path: str
    events: int
    peak_live_bytes: int
    by_kind: Dict[str, int]

    def __str__(self) -> str:
        kinds = ", ".join("%s %s" % (k, mib(v)) for k, v in sorted(self.by_kind.items(), key=lambda i: -i[1]))
        return "%s: %d events, %s alive at the peak (%s)" % (self.path, self.events, mib(self.peak_live_bytes), kinds)


def torch_trace(
    make: Callable[[], Optional[Callable[[], object]]],
    path: Union[str, "os.PathLike[str]"],
    *,
    steps: int = 2,
) -> TorchTrace:
    """Records `steps` training steps. `make()` builds model, optimizer and inputs and returns a function that makes one step.

    Everything must be made inside `make`: tensors from outside are real. The second step has gradients and optimizer state from the first, so
    two steps are the least that show the peak of a training.
    """
    if not callable(make):
        raise UsageError("make must be a function: it builds model, optimizer and inputs, and returns a function that makes one step")
    if not isinstance(steps, int) or steps < 1:
        raise UsageError("steps %s: a whole number, at least 1" % (steps,))
    name = os.fspath(path)
    if os.path.exists(name):
        raise UsageError("%s is there already: it is left as it is" % name)
    if not os.path.isdir(os.path.dirname(name) or "."):
        raise InputError("%s: there is no folder %s" % (name, os.path.dirname(name)))
    try:
        import torch
    except ImportError as e:
        raise RunError("PyTorch is not installed: %s" % e) from e
    try:
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        follower = _follower(torch)
    except (ImportError, AttributeError) as e:  # its insides, which no version promises
        raise UnsupportedError(
            "PyTorch %s is not known to memfit: %s" % (getattr(torch, "__version__", "of an unknown version"), e),
            "steps were recorded with PyTorch 2.11 and 2.15",
        ) from e
    try:
        with as_card(torch, FakeTensor), FakeTensorMode(), follower:
            step = make()
            follower.otherwise = "activations"
            if step is not None and not callable(step):
                raise UsageError("make() returned %s: it must return a function that makes one step" % type(step).__name__)
            if step is not None:
                for _ in range(steps):
                    step()
            del step
    except UsageError:
        raise
    except Exception as e:
        raise UnsupportedError(
            "the step cannot run on fake tensors: %s: %s" % (type(e).__name__, str(e).strip().split("\n")[0]),
            "values cannot be looked at (.item(), if x > 0), and every tensor must be made inside make()",
        ) from e
    finally:
        follower.forget()
    follower.write(name)
    return TorchTrace(name, len(follower.events), follower.peak, follower.at_peak())


def _follower(torch: Any) -> Any:
    """The dispatch mode, made here because its base class is PyTorch's."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    hooks = torch.nn.modules.module

    class Follower(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.events: List[Tuple[str, int, int]] = []
            self.kinds: Dict[int, str] = {}
            self.owners: Dict[int, str] = {}
            self.sizes: Dict[int, int] = {}
            self.known: Dict[int, Any] = {}  # a storage's address -> (weak reference, number)
            self.live = self.peak = self.peak_event = 0
            self.running: List[str] = []
            self.names: Dict[int, str] = {}
            self.alive: Dict[int, Any] = {}  # an address may be another module's once this one is gone
            self.recording = True
            self.handles_used: Set[bool] = set()
            self.otherwise = "inputs"  # what is made outside of modules: while building, in a step, in an optimizer
            self.handles = [
                hooks.register_module_forward_pre_hook(self.enter),
                hooks.register_module_forward_hook(self.leave, always_call=True),
                hooks.register_module_parameter_registration_hook(self.parameter),
                register_optimizer_step_pre_hook(self.updates),
                register_optimizer_step_post_hook(self.updated),
            ]
            self.kept_apply = torch.nn.Module._apply
            torch.nn.Module._apply = self.moved

        def forget(self) -> None:
            self.recording = False
            torch.nn.Module._apply = self.kept_apply
            for handle in self.handles:
                handle.remove()

        # -- whose

        def enter(self, module: Any, inputs: Any) -> None:
            if id(module) not in self.names:
                for where, inner in module.named_modules():
                    self.names[id(inner)] = where or type(inner).__name__
                    self.alive[id(inner)] = weakref.ref(inner, functools.partial(self.unnamed, id(inner)))
                    for name, value in inner._parameters.items():  # those of copied layers were never registered
                        self.parameter(inner, name, value)
            self.running.append(self.names[id(module)])

        def unnamed(self, key: int, _: Any) -> None:
            self.names.pop(key, None)
            self.alive.pop(key, None)

        def leave(self, module: Any, inputs: Any, output: Any) -> None:
            if self.running:
                self.running.pop()

        @property
        def moved(self) -> Callable[..., Any]:
            """Module.to and its like: PyTorch swaps parameters in place, which fake ones refuse. Here new ones take their place."""

            def apply(module: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
                for child in module.children() if recurse else ():
                    apply(child, fn)
                for name, value in list(module._parameters.items()):
                    if value is not None:
                        with torch.no_grad():
                            other = fn(value)
                        if other is not value:
                            module._parameters[name] = torch.nn.Parameter(other, value.requires_grad)
                            self.parameter(module, name, module._parameters[name])
                for name, value in list(module._buffers.items()):
                    if value is not None:
                        module._buffers[name] = fn(value)
                return module

            return apply

        def updates(self, *_: Any) -> None:
            self.otherwise = "optimizer"

        def updated(self, *_: Any) -> None:
            self.otherwise = "activations"

        def parameter(self, module: Any, name: str, value: Any) -> None:
            if value is not None:
                number = self.number_of(value)
                if number is not None:
                    self.kinds[number] = "parameters"
                    self.owners[number] = "%s.%s" % (type(module).__name__, name)

        # -- what

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if name == "convolution_backward":
                self.convolution_backward(out, args)
            elif name == "embedding_dense_backward" and not args[0].is_contiguous():  # as a recurrent layer leaves it
                copy = self.workspace(args[0].numel() * args[0].element_size(), "contiguous")
                self.appeared(out)
                self.disappears(copy)
            values = tree_flatten(out)[0]
            for value in reversed(values) if name == "native_dropout" else values:  # a card makes the mask first
                self.appeared(value)
            if name in PRODUCTS:
                self.product()
            if name == "sum" and isinstance(out, torch.Tensor) and args[0].dim() > 1 and args[0].is_contiguous():
                columns = args[0].shape[-1]
                if out.numel() == columns and out.shape[-1] == columns:
                    self.passing(_sum_bytes(args[0].numel() // columns, columns), "sum")
            if name == "_softmax_backward_data":  # on a card, the gradient times the result is a tensor of its own
                self.passing(args[0].numel() * args[0].element_size(), "softmax")
            elif name == "_safe_softmax":  # attention without a kernel: which scores are masked; those rows become 0 in place
                self.passing(out.numel(), "softmax")
            if name == "convolution":
                self.passing(self.copies(args[0], args[1], out, args[8], ())[0], "cudnn")
            return out

        def convolution_backward(self, out: Sequence[Any], args: Sequence[Any]) -> None:
            """Each gradient, then what cuDNN takes to make it; a part of a larger gradient (of a concatenation) is made whole for that long."""
            gradient, copy = args[0], None
            if not gradient.is_contiguous() and not (gradient.dim() == 4 and gradient.is_contiguous(memory_format=torch.channels_last)):
                copy = self.workspace(gradient.numel() * gradient.element_size(), "contiguous")
            for value, size in zip(out, self.copies(args[1], args[2], gradient, args[9], args[10][:2])):
                self.appeared(value)
                self.passing(size, "cudnn")
            if copy is not None:
                self.disappears(copy)

        def copies(self, x: Any, kernel: Any, y: Any, groups: int, gradients: Sequence[bool]) -> List[int]:
            """cuDNN's kernels read and write channels last: tensors that lie channels first are copied in its workspace, channels filled up to 16 bytes
            where there are three (read from the allocator's own stream for 30 programs on an H200, cuDNN 9). Bytes for the result, or for each of the
            two gradients."""
            wanted = [bool(g) for g in gradients] or [True]
            if groups > 1 or x.dim() != 4 or x.is_contiguous(memory_format=torch.channels_last):
                return [0] * len(wanted)
            item, window = int(x.element_size()), int(kernel.shape[2] * kernel.shape[3])
            moved = sum(t.numel() * item for t in (x, y))
            sums = PARTIAL_SUMS if item == 4 else HALF_SUMS if y.shape[2] * y.shape[3] >= MANY_POSITIONS else 0
            positions = int(y.shape[2] * y.shape[3])
            if window == 1 and x.shape[2:] == y.shape[2:]:  # a product; only the kernel's gradient needs anything, but where positions are odd and many
                copied = moved if positions % 2 and positions > FEW_POSITIONS else 0
                sizes = [copied, copied or self.product_gradient(x, kernel, y, moved)] if gradients else [copied]
            elif window == 1:
                direct = item == 4 and kernel.shape[1] <= 128  # the input's gradient is then made where it lies
                sizes = [0 if direct else moved, moved + sums] if gradients else [moved]
            else:
                size = moved + kernel.numel() * item
                filled = -x.shape[1] * item % 16 // item * (x.numel() // x.shape[1]) * item if x.shape[1] < 4 else 0
                picture = kernel.shape[1] < 4 and kernel.shape[2] <= 4  # the few channels of pictures, in small windows
                if gradients:
                    sizes = [size, 0 if picture and item == 4 else max(size + filled + sums, self.transforms(x, kernel, y))]
                else:
                    sizes = [0 if picture else size + (filled if item == 2 else 0)]
            return [bytes * want for bytes, want in zip(sizes, wanted)]

        def transforms(self, x: Any, kernel: Any, y: Any) -> int:
            """The gradient of few kernels over small images in float32 is made by Fourier transforms: two of each image, and the result's gradient whole."""
            side = max(x.shape[2], x.shape[3]) + max(kernel.shape[2], kernel.shape[3]) - 1
            if x.element_size() != 4 or kernel.shape[0] > FEW_KERNELS or kernel.shape[1] < 4 * kernel.shape[0] or side > SMALL_SIDE or x.shape[2:] != y.shape[2:]:
                return 0
            points = 1 << int(side - 1).bit_length()
            each = 8 * points * (points // 2 + 1)
            return int(x.shape[0] * (2 * each * (kernel.shape[0] + kernel.shape[1]) + kernel.shape[0] * y.shape[2] * y.shape[3] * 4))

        def product_gradient(self, x: Any, kernel: Any, y: Any, moved: int) -> int:
            """The gradient of a kernel of one pixel: a product for each image, added up in float32, or copies and one product where that is less."""
            each = x.shape[0] * kernel.numel() * 4
            if x.element_size() == 4 and kernel.shape[1] <= 32 and x.shape[0] < 64 and y.shape[2] * y.shape[3] > 1024:
                return moved
            if x.element_size() == 4:
                return each if 2 * each <= 5 * moved else moved
            widens, odd = kernel.shape[0] > kernel.shape[1], y.shape[2] * y.shape[3] % 2 == 1  # an odd number of positions suits no other way
            return each if (widens and (odd or each <= 2 * moved)) or 10 * each < 9 * moved else moved

        def passing(self, size: int, owner: str) -> None:
            if size:
                self.disappears(self.workspace(size, owner))

        def workspace(self, size: int, owner: str) -> int:
            number = len(self.sizes)
            self.sizes[number], self.kinds[number], self.owners[number] = size, "workspace", owner
            self.appears(number, size)
            return number

        def appears(self, number: int, size: int) -> None:
            self.events.append(("alloc", number, size))
            self.live += size
            if self.live > self.peak:
                self.peak, self.peak_event = self.live, len(self.events)

        def disappears(self, number: int) -> None:
            self.events.append(("free", number, self.sizes[number]))
            self.live -= self.sizes[number]

        def product(self) -> None:
            """cuBLAS takes a workspace when a thread first uses it, and keeps it: one for the program, one for autograd's thread. Its size is the
            card's: `memfit plan` puts it in the place of this one."""
            backward = torch._C._current_graph_task_id() >= 0
            if self.recording and backward not in self.handles_used:
                self.handles_used.add(backward)
                self.workspace(WORKSPACE, "cublas")

        def appeared(self, value: Any) -> None:
            if isinstance(value, torch.Tensor):
                self.number_of(value)

        def number_of(self, tensor: Any) -> Optional[int]:
            storage = tensor.untyped_storage()
            key = int(storage._cdata)
            found = self.known.get(key)
            if found is not None and found[0]() is not None:
                return int(found[1])
            size = int(storage.nbytes())
            if not size or (size <= 8 and self.otherwise == "optimizer"):  # an optimizer counts its steps on the host
                return None
            number = len(self.sizes)
            self.sizes[number] = size
            self.kinds[number] = self.kind_now(tensor)
            self.owners[number] = self.running[-1] if self.running else ""
            self.known[key] = (weakref.ref(storage, functools.partial(self.gone, key, number)), number)
            self.appears(number, size)
            return number

        def kind_now(self, tensor: Any) -> str:
            if self.running:
                return "activations"
            return "gradients" if torch._C._current_graph_task_id() >= 0 else self.otherwise

        def gone(self, key: int, number: int, _: Any) -> None:
            found = self.known.get(key)
            if found is not None and found[1] == number:
                del self.known[key]
            if self.recording:
                self.disappears(number)

        # -- the file

        def at_peak(self) -> Dict[str, int]:
            held: Dict[int, int] = {}
            for what, number, size in self.events[: self.peak_event]:
                if what == "alloc":
                    held[number] = size
                else:
                    held.pop(number, None)
            sums: Dict[str, int] = {}
            for number, size in held.items():
                sums[self.kinds[number]] = sums.get(self.kinds[number], 0) + size
            return sums

        def write(self, path: str) -> None:
            with open(path, "x", encoding="utf-8") as f:
                f.write("time_us,op,id,bytes,kind,owner\n")
                for time, (what, number, size) in enumerate(self.events):
                    owner = self.owners[number].replace(",", ";").replace('"', "'").replace("\n", " ")
                    f.write("%d,%s,%d,%d,%s,%s\n" % (time, what, number, size, self.kinds[number], owner))

    return Follower()
