"""What is seen while a program runs: every op below autograd, as a call with shapes, and the line
that asked for it; and memory by which storages are alive.

A storage counts from the op that makes it until Python frees it, as in a real run; views share
theirs. PyTorch's caching allocator hands out blocks of whole 512 bytes
(c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize), which is what `max_memory_allocated` counts.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from hybridperf.io import InputError
from hybridperf.workloads.own import user_line
from hybridperf.workloads.programs.torch.calls import NAMES, Argument, Tensor, TorchCall, flat
from hybridperf.workloads.programs.torch.modules import ModulePaths
from hybridperf.workloads.programs.torch.results import Results

if TYPE_CHECKING:
    from torch import Tensor as TorchTensor
    from torch import UntypedStorage
    from torch._ops import OpOverload
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    StorageReference = weakref.ref[UntypedStorage]

_BLOCK_BYTES = 512


def block_bytes(size: float) -> float:
    """Bytes of the block that holds so many."""
    return math.ceil(size / _BLOCK_BYTES) * float(_BLOCK_BYTES)


class StorageTally:
    """Bytes alive now, and the most so far.

    `changes`, where `maker` says who makes a storage now: (bytes more or less, maker), in order.
    """

    def __init__(self) -> None:
        self.maker: Callable[[], str] | None = None
        self.changes: list[tuple[float, str]] = []
        self._makers: dict[StorageReference, str] = {}  # by weak reference
        self._begin = 0  # of what counts, among the changes
        self.alive_bytes = 0.0
        self.peak_bytes = 0.0
        self._sizes: dict[StorageReference, float] = {}  # by weak reference
        self._numbers: dict[StorageReference, int] = {}
        self._count = 0

    def hold(self, torch: ModuleType, tree: object) -> None:
        """Count the storages of all tensors in a tree, or of a module's parameters and buffers."""
        for value in torch.utils._pytree.tree_leaves(tree):
            if isinstance(value, torch.nn.Module):
                self.hold(torch, [*value.parameters(), *value.buffers()])
            elif hasattr(value, "to_local"):  # a DTensor claims the bytes of all ranks together
                self.hold(torch, value._local_tensor)
            elif isinstance(value, torch.Tensor):
                self.number(value)

    def forget(self, torch: ModuleType, tree: object) -> None:
        """Count the storages of all tensors in a tree no longer: they lie elsewhere."""
        for value in torch.utils._pytree.tree_leaves(tree):
            if isinstance(value, torch.Tensor) and self.number(value):
                reference = weakref.ref(value.untyped_storage())
                self._change(reference, -self._sizes[reference])
                self._sizes[reference] = 0.0

    def restart(self) -> None:
        """Counts the peak from the bytes that are alive now."""
        self.peak_bytes = self.alive_bytes
        self._begin = len(self.changes)

    def at_peak(self) -> dict[str, float]:
        """Bytes by maker when most were alive."""
        alive, most, last, found = 0.0, -1.0, -1, dict[str, float]()
        for at, (size, _) in enumerate(self.changes):
            alive += size
            if at + 1 >= self._begin and alive > most:
                most, last = alive, at
        for size, maker in self.changes[: last + 1]:
            found[maker] = found.get(maker, 0.0) + size
        return found

    def as_from_the_start(self, first: int) -> None:
        """Changes from the `first` on count as made before the step."""
        made = self.changes[first:]
        del self.changes[first:]
        self.changes[self._begin : self._begin] = made
        self._begin += len(made)

    def _change(self, reference: StorageReference, size: float) -> None:
        self.alive_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
        if self.maker is not None:
            self.changes.append((size, self._makers.setdefault(reference, self.maker())))

    def number(self, tensor: TorchTensor) -> int:
        """That of a tensor's storage, from 1, now counted; 0 of what has none of its own."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # made of other tensors, which are seen
            return 0
        reference = weakref.ref(storage, self._gone)
        if reference in self._sizes:
            return self._numbers[reference]
        self._count += 1
        self._numbers[reference] = self._count
        size = block_bytes(storage.nbytes())
        self._sizes[reference] = size
        self._change(reference, size)
        return self._count

    @contextlib.contextmanager
    def seeing_resizes(self, torch: ModuleType) -> Iterator[None]:
        """Storages that grow and shrink count as they do: FSDP2 frees the weights of a layer by
        giving their storage no bytes, and fills it again for the backward pass.
        """
        resize = torch.UntypedStorage.resize_

        def resized(storage: UntypedStorage, size: int) -> UntypedStorage:
            found = resize(storage, size)
            reference = weakref.ref(storage)
            if reference in self._sizes:
                self._change(reference, block_bytes(size) - self._sizes[reference])
                self._sizes[reference] = block_bytes(size)
            return found

        with mock.patch.object(torch.UntypedStorage, "resize_", resized):
            yield

    def _gone(self, reference: StorageReference) -> None:
        self._change(reference, -self._sizes.pop(reference, 0.0))
        self._numbers.pop(reference, None)
        self._makers.pop(reference, None)


FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
# an op on a tensor that says how it is sharded, as a CPU's host meets it, in place or not: its
# local ops follow
DISPATCHED, WRAPPED = "dtensor::dispatched", "dtensor::wrapped"
_READ = "aten::_local_scalar_dense"  # of a number that is known, by the host
# files of PyTorch that read numbers for themselves, and what they are told: no gradient
# overflowed, no argument is out of range (`gaussian_nll_loss`), a mask is causal
_TOLD = {
    "torch/amp/grad_scaler.py": 0.0, "torch/nn/functional.py": 0.0,
    "torch/nn/modules/transformer.py": 1.0,
}  # fmt: skip
_CAUSAL = "masks that nn.Transformer asks whether they are causal count as causal; say is_causal"
_DISPATCHING = 12  # frames at most between a line and its op
_NO_OPS = ("prim", "profiler", "debugprims")  # questions and marks


class SameStep(BaseException):
    """A step begins as the one before did: no error, and none that a program may catch."""


class CapturedOp(NamedTuple):
    """An op as the program called it: tensors, arguments, module, ranks."""

    call: TorchCall  # by its whole name, "aten::mm"
    phase: str  # FORWARD, BACKWARD or OPTIMIZER
    where: str  # "FILE line N" of the program; empty where the engine of gradients called it
    ranks: tuple[int, ...] = ()  # of a message's group
    module: str = ""  # path of the one that asked for it, where modules are followed


def recorder(torch: ModuleType, backend: str = "gpu", again: bool = False) -> Any:
    """A mode that keeps every op below autograd; its `ops` and `tally`.

    `backend`: what it runs on: optimizers choose their ops by it. `again`: also what calls each op
    again, on real tensors.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
    from torch.optim import optimizer as optimizers
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = (FakeTensor, torch.Tensor, torch.nn.Parameter)
    asked_device, results = torch.ops.prim.device.default, Results(torch)

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: list[CapturedOp] = []
            self.tally = StorageTally()
            self.again: list[Callable[[], Any]] = []
            self.updating = self.updated = self.depth = 0
            self.making = False  # states of an optimizer, which a program makes only once
            self.once = False  # whether this step does what only a first one does
            self.beside = False  # whether the host does something else, which is not seen
            # parameters whose gradients a next step may begin with
            self.held: list[TorchTensor] = []
            self.awaited: list[TorchTensor] = []  # those of the step before
            self.hooks: list[RemovableHandle] = []
            self.notes: list[str] = []
            self.modules: ModulePaths | None = None

        def __enter__(self) -> Any:
            if not self.depth:
                self.hooks = [
                    optimizers.register_optimizer_step_pre_hook(self._begin_update),
                    optimizers.register_optimizer_step_post_hook(self._end_update),
                ]
            self.depth += 1
            return super().__enter__()

        def __exit__(self, *raised: Any) -> Any:
            self.depth -= 1
            for hook in () if self.depth else self.hooks:
                hook.remove()
            return super().__exit__(*raised)

        def restart(self) -> None:
            """Sees a step again; `SameStep` where the gradients that the last one left, which alone
            set it apart, are gone before its first op.
            """
            self.awaited = [] if self.once else self.held
            self.once, self.held = False, []
            self.ops = []
            self.updated = 0
            self.tally.restart()

        def left(self) -> bool:
            """Whether a next step may not be as this one was."""
            self.held = [one for one in self.held if one.grad is not None]
            return self.once or bool(self.held)

        def _begin_update(
            self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]
        ) -> None:
            if self.making:
                return
            if isinstance(optimizer, torch.optim.LBFGS):
                raise InputError(
                    f"{user_line()}: LBFGS evaluates the loss as often as its numbers ask for;"
                    " expected an optimizer of one update a step"
                )
            if backend == "gpu":
                _as_on_gpus(optimizer)
            given = [one for group in optimizer.param_groups for one in group["params"]]
            given = [one for one in given if one.grad is not None]
            self.held += given
            if again or any(hasattr(one, "to_local") for one in given):
                self.once = True
            elif not all(optimizer.state.get(one) for one in given):
                self._make_states(optimizer, args[1:] or kwargs)
            self.updating += 1
            self.updated += len(given)

        def _make_states(self, optimizer: Optimizer, closure: object) -> None:
            """By an update that does not count: from a second step on they are there, and alive
            from its beginning.
            """
            if closure:  # which would run the step again
                self.once = True
                return
            seen, peak_bytes = len(self.ops), self.tally.peak_bytes
            alive_bytes, changes = self.tally.alive_bytes, len(self.tally.changes)
            self.making = True
            self.updating += 1
            try:
                optimizer.step()
            finally:
                self.making = False
                self.updating -= 1
            del self.ops[seen:]
            self.tally.peak_bytes = peak_bytes + self.tally.alive_bytes - alive_bytes
            self.tally.as_from_the_start(changes)

        def _end_update(self, *_: object) -> None:
            self.updating -= not self.making

        def __torch_dispatch__(
            self,
            func: OpOverload,
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            if func is asked_device and type(args[0]) is FakeTensor:
                return args[0].device
            if any(one not in plain for one in types):
                if backend == "cpu" and any(one.__name__ == "DTensor" for one in types):
                    kind = DISPATCHED if func._schema.is_mutable else WRAPPED
                    self.ops.append(CapturedOp(TorchCall(kind, ()), FORWARD, user_line()))
                return NotImplemented  # a tensor that is made of others: theirs are seen
            if _is_composite(torch, func):
                # by the parts that run in an eager step, not by Python's rule for compilers
                with self:
                    return func._op_dk(_by_parts(torch), *args, **(kwargs or {}))
            try:
                result = results.of(func, args, kwargs or {})
            except DataDependentOutputException:
                if func is not torch.ops.aten._local_scalar_dense.default:
                    raise
                told = next((one for one in _TOLD if _asked_by(one)), "")
                if told:
                    result = _TOLD[told]
                    if result and _CAUSAL not in self.notes:
                        self.notes.append(_CAUSAL)
                elif self.updating:
                    result = 1.0  # by which an optimizer scales: Adafactor the size of a step
                else:
                    raise
            name = func._schema.name
            if self.beside or name.partition("::")[0] in _NO_OPS or name == _READ:
                return result
            if self.awaited:
                if all(one.grad is None for one in self.awaited):
                    raise SameStep
                self.awaited = []
            if again:
                self.again.append(lambda: func(*args, **(kwargs or {})))
            self.tally.hold(torch, result)
            call = torch_call(torch, self.tally, func, args, kwargs or {}, result)
            backward = torch._C._current_autograd_node() is not None
            phase = OPTIMIZER if self.updating else BACKWARD if backward else FORWARD
            where, ranks = "" if backward else user_line(), _ranks(call.kind, args, kwargs or {})
            self.ops.append(CapturedOp(call, phase, where, ranks, self._module()))
            return result

        def _module(self) -> str:
            """The path of the module that asks for what is done now."""
            if self.modules is None:
                return ""
            if self.updating:
                return OPTIMIZER
            return self.modules.of(torch._C._current_autograd_node())

        def follow(self, modules: ModulePaths) -> None:
            """Sees which modules ask for ops and make what is alive."""
            self.modules, self.tally.maker = modules, self._module

    return Recorder()


@functools.cache
def _is_composite(torch: ModuleType, func: OpOverload) -> bool:
    """Whether PyTorch knows an op by its parts alone: autograd takes it apart before it is seen,
    but for `inference_mode`, which skips autograd and hands it over whole.
    """
    if func.namespace in _NO_OPS:
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _by_parts(torch)))


def _by_parts(torch: ModuleType) -> Any:
    return torch._C.DispatchKey.CompositeImplicitAutograd


def _as_on_gpus(optimizer: Optimizer) -> None:
    """Updates lists of parameters at a time where PyTorch does so by default; counts of steps stay
    on the host, where a captured CUDA graph needs them on the device.
    """
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
        if "capturable" in group:
            group["capturable"] = False


def _ranks(kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Of a message's group: one of the op's arguments, the group or its name."""
    if "c10d" not in kind:
        return ()
    import torch.distributed as dist

    for value in (*args, *kwargs.values()):
        with contextlib.suppress(RuntimeError, TypeError, LookupError):
            if type(value).__name__ == "ScriptObject":
                value = dist.ProcessGroup.unbox(value)
            elif isinstance(value, str):
                value = dist.distributed_c10d._resolve_process_group(value)  # type: ignore[arg-type]
        if isinstance(value, dist.ProcessGroup):
            return tuple(dist.get_process_group_ranks(value))
    return ()


def torch_call(
    torch: ModuleType, tally: StorageTally, func: OpOverload, args: Sequence[Any],
    kwargs: Mapping[str, Any], result: Any,
) -> TorchCall:  # fmt: skip
    """A call with its arguments in the order of the op's schema, defaults for what is left out."""
    given = [
        args[at] if at < len(args) else kwargs.get(one.name, one.default_value)
        for at, one in enumerate(func._schema.arguments)
    ]
    results = result if isinstance(result, tuple) else (result,)
    if isinstance(result, list):
        results = (tuple(result),)
    return TorchCall(
        func._schema.name, tuple(_argument(torch, tally, one) for one in given),
        tuple(_argument(torch, tally, one) for one in results), tuple(map(_plain, given)),
    )  # fmt: skip


def _argument(torch: ModuleType, tally: StorageTally, value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise InputError(
                f"{user_line() or 'the backward pass'}: a tensor is sparse ({value.layout}), and"
                " how many of its numbers are kept is not known; expected dense ones (of an"
                " embedding: sparse=False)"
            )
        shape, number = tuple(value.shape), value.dtype
        if value.is_complex():  # two real numbers, side by side
            shape, number = (*shape[:-1], 2 * (shape or (1,))[-1]), number.to_real()
        dtype = NAMES["dtypes"].get(str(number).removeprefix("torch."))
        if dtype is None:
            return None
        turned = value.dim() > 1 and value.stride(-1) > 1 and value.stride(-2) == 1
        number_of = tally.number(value)
        return Tensor(
            shape, dtype, storage=number_of, transposed=turned, strides=value.stride(),
            in_pairs=value.is_complex(),
        )  # fmt: skip
    if isinstance(value, list | tuple):
        return tuple(flat([_argument(torch, tally, one) for one in value])) or None
    return None


def _plain(value: Any) -> Any:
    """A number, flag, word or list of numbers; None for all else."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(
        isinstance(one, bool | int | float) for one in value
    ):
        return list(value)
    return None


def _asked_by(file: str) -> bool:
    """Whether a file of PyTorch's is the innermost that asks, leaving out how it dispatches."""
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(_DISPATCHING):
        if frame is None or frame.f_code.co_filename.endswith(file):
            break
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.endswith(file)
