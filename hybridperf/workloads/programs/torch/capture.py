"""A PyTorch program, run on tensors without memory, as the calls it makes.

The program runs as its author wrote it, on fake tensors (`torch._subclasses.FakeTensorMode`): they
have a shape, a format and a place, but no numbers, so that a model of any size is captured on any
machine in seconds. What is seen are the ops below autograd, in the order issued, those of the
backward pass and of the optimizer too, each with the line of the program that asked for it; memory
by which storages are alive (`StorageTally`).

Fake tensors lie on the host whatever the program says of CUDA: PyTorch's CPU build has no other
place. Ops that PyTorch chooses by device are told apart in `ops.toml` (its fused attention of CPUs
stands for that of GPUs), and for a GPU optimizers update lists of parameters at a time, as there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

from hybridperf.io import InputError
from hybridperf.workloads.own import check_call
from hybridperf.workloads.programs.torch.fakes import (
    Fakes,
    as_made,
    asked_by_a_reader,
    closed_over,
    without_memory,
)
from hybridperf.workloads.programs.torch.messages import is_message
from hybridperf.workloads.programs.torch.modules import ModulePaths
from hybridperf.workloads.programs.torch.on_gpu import fused_drops, fused_norms
from hybridperf.workloads.programs.torch.record import CapturedOp, SameStep, recorder
from hybridperf.workloads.programs.torch.recurrent import fused_layers

_UNSCALED = (
    "a GradScaler is disabled, as PyTorch makes it where no GPU is: in `with hp.without_memory():`"
    " it scales"
)
NOT_COMPILED = (
    "what the program gives to torch.compile runs op by op: compiled=True (`--compiled`) is the"
    " step as Inductor fuses it"
)


@dataclasses.dataclass(frozen=True)
class Captured:
    """What one step of a program calls, in order."""

    name: str
    ops: tuple[CapturedOp, ...]
    peak_bytes: float  # the most that was alive at once
    kept_bytes: float  # of that, what is there before a step and after it
    notes: tuple[str, ...] = ()
    updated: int = 0  # tensors that the optimizer updates
    tf32: bool = False  # whether products of fp32 are multiplied in TF32, where a device has it
    modules: ModulePaths | None = None  # where they were followed
    # bytes by module when most were alive
    held: Mapping[str, float] = dataclasses.field(default_factory=dict)


def capture(
    fn: Callable, args: Sequence[Any], *, kwargs: Mapping[str, Any] | None = None,
    optimizer: Any = None, train: bool = True, name: str | None = None, backend: str = "gpu",
    modules: ModulePaths | None = None,
) -> Captured:  # fmt: skip
    """Run a step of a program on tensors without memory; arguments as `from_torch` has them.
    `modules` is told which of them ask for what.

    What `fn` closes over is replaced as `args` are; real tensors are not touched, their numbers not
    read. Gradients are those of the loss that `fn` returns, unless it has taken them itself.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_old_objects_aside())
        stack.enter_context(as_made(fn, args, kwargs))
        stack.enter_context(without_memory())
        import torch

        takes = fn.forward if isinstance(fn, torch.nn.Module) else None
        check_call(fn, args, kwargs or {}, takes)
        fakes = Fakes()
        fn, given = fakes.of(fn), (fakes.of(list(args)), fakes.of(dict(kwargs or {})))
        updates = _optimizer(fakes, fn, optimizer)
        seen = stack.enter_context(recorder(torch, backend))
        notes: list[str] = [NOT_COMPILED] * _is_compiled(torch, fn)
        if modules is not None:
            seen.follow(modules)
            hold = functools.partial(seen.tally.hold, torch)
            if isinstance(fn, torch.nn.Module):
                modules.add(fn, hold)
            stack.enter_context(modules.followed(hold))
        seen.tally.hold(torch, (fn, given))
        stack.enter_context(seen.tally.seeing_resizes(torch))
        stack.enter_context(_scaled(torch, notes))
        if backend == "gpu":
            stack.enter_context(fused_norms())
            stack.enter_context(fused_drops())
            stack.enter_context(fused_layers())
        with torch.no_grad() if not train else contextlib.nullcontext():
            run_step(fn, given[0], updates, train, notes, given[1])
            found = _seen(fn, name, seen, notes)
            # an optimizer's state is made before its first update counts (`record.py`); shards'
            # buffers and a pipeline's stages are made only once, and gradients may be left
            seen.once |= any(is_message(op) for op in seen.ops)
            if seen.left():
                seen.restart()
                with contextlib.suppress(SameStep):
                    run_step(fn, given[0], updates, train, kwargs=given[1])
                    found = _seen(fn, name, seen, notes)
        return found


class Block:
    """A step that is being done: what it has called so far."""

    def __init__(self, name: str, seen: Any, notes: Sequence[str]) -> None:
        self._name, self._seen, self._notes = name, seen, notes

    @property
    def making(self) -> bool:
        """Whether an optimizer makes its states, by an update that does not count."""
        return bool(self._seen.making)

    def restart(self) -> None:
        """The step begins only now."""
        self._seen.once = True  # whatever gradients are there belong to it
        self._seen.restart()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """What the host does in here, such as reading data, is not of the GPU."""
        self._seen.beside = True
        try:
            yield
        finally:
            self._seen.beside = False

    def hold(self, tensors: Any) -> None:
        """The GPU has tensors that were made beside."""
        import torch

        self._seen.tally.hold(torch, tensors)

    def forget(self, tensors: Any) -> None:
        """The GPU does not have these tensors."""
        import torch

        self._seen.tally.forget(torch, tensors)

    def captured(self, *notes: str) -> Captured:
        """What it has called, with what else to note."""
        return _seen(None, self._name, self._seen, [*self._notes, *notes])


@contextlib.contextmanager
def captured_block(modules: ModulePaths, ranks: int = 1, name: str = "block") -> Iterator[Block]:
    """What is done in here as one step of a GPU, the first of some ranks; its calls are asked for
    at its end.

    Real tensors stand for their shapes: what is done with one is done with a twin without memory.
    Real modules and optimizers are as they were when the block is left.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_old_objects_aside())
        stack.enter_context(without_memory(ranks))
        import torch

        fakes = Fakes()
        stack.enter_context(_states_kept())
        seen = stack.enter_context(recorder(torch))
        seen.follow(modules)
        stack.enter_context(seen.tally.seeing_resizes(torch))
        stack.enter_context(fused_norms())
        stack.enter_context(fused_drops())
        stack.enter_context(fused_layers())
        stack.enter_context(_twins(torch, fakes))
        notes = list[str]()
        stack.enter_context(_scaled(torch, notes))

        def hold(tensors: Any) -> None:
            seen.tally.hold(torch, fakes.of(tensors))

        stack.enter_context(modules.followed(hold))
        yield Block(name, seen, notes)


def _twins(torch: ModuleType, fakes: Fakes) -> Any:
    """A mode in which real tensors that a function is given are replaced, attributes of theirs,
    such as gradients, included.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.overrides import TorchFunctionMode

    def twin(value: Any) -> Any:
        return value if isinstance(value, FakeTensor) else fakes.of(value)

    class Twins(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given: Any = (args, kwargs or {})
            if not asked_by_a_reader(sys._getframe(1)):
                given = torch.utils._pytree.tree_map_only(torch.Tensor, twin, given)
            return func(*given[0], **given[1])

    return Twins()


@contextlib.contextmanager
def _states_kept() -> Iterator[None]:
    """Optimizers that are stepped in here have the states after it that they had before."""
    from torch.optim import optimizer as optimizers

    kept = dict[int, tuple[Any, Any]]()

    def keep(optimizer: Any, *_: object) -> None:
        state = {key: dict(one) for key, one in optimizer.state.items()}
        kept.setdefault(id(optimizer), (optimizer, state))

    hook = optimizers.register_optimizer_step_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()
        for optimizer, state in kept.values():
            optimizer.state.clear()
            optimizer.state.update(state)


def _seen(fn: Any, name: str | None, seen: Any, notes: Sequence[str]) -> Captured:
    """What a recorder has of a step that is over."""
    import torch

    return Captured(
        name or _name(fn), tuple(seen.ops), seen.tally.peak_bytes, seen.tally.alive_bytes,
        (*notes, *seen.notes), seen.updated, torch.backends.cuda.matmul.allow_tf32, seen.modules,
        seen.tally.at_peak(),
    )  # fmt: skip


@contextlib.contextmanager
def _old_objects_aside() -> Iterator[None]:
    """What is there already is not gone through for cycles each time that a step has made many."""
    if gc.get_freeze_count():  # of somebody else
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _is_compiled(torch: ModuleType, fn: Any) -> bool:
    """Whether a program, or a module that it closes over, was given to `torch.compile`."""
    held = [fn, *closed_over(fn)]
    modules = [one for of in held if isinstance(of, torch.nn.Module) for one in of.modules()]
    marks = ("_torchdynamo_orig_callable", "_orig_mod")
    return any(hasattr(one, mark) for one in (*held, *modules) for mark in marks) or any(
        one._compiled_call_impl is not None for one in modules
    )


def _name(fn: Any) -> str:
    named = fn if isinstance(fn, types.FunctionType | types.MethodType | type) else type(fn)
    return str(getattr(named, "__name__", "step"))


def run_step(
    fn: Callable, args: Sequence[Any], updates: Any = None, train: bool = True,
    notes: list[str] | None = None, kwargs: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """One step, on tensors of either kind: forward, and where there is a loss backward and update
    by `updates`; `notes` takes what was assumed.
    """
    import torch

    with _roots(torch) as roots:
        result = fn(*args, **(kwargs or {}))
    loss = _loss(torch, result, notes if notes is not None else [], roots) if train else None
    if loss is None:
        return
    loss.backward()
    if updates is not None:
        updates.step()
        updates.zero_grad()


@contextlib.contextmanager
def _scaled(torch: ModuleType, notes: list[str]) -> Iterator[None]:
    """Says where a scaler of losses does nothing: made without a GPU, PyTorch disables it."""
    scale = torch.amp.GradScaler.scale

    def told(self: Any, outputs: Any) -> Any:
        if not self.is_enabled() and _UNSCALED not in notes:
            notes.append(_UNSCALED)
        return scale(self, outputs)

    with mock.patch.object(torch.amp.GradScaler, "scale", told):
        yield


@contextlib.contextmanager
def _roots(torch: ModuleType) -> Iterator[list[Any]]:
    """What a program itself calls `backward` on, as nodes of autograd."""
    backward, found = torch.autograd.backward, list[Any]()

    def seen(tensors: Any, *args: Any, **kwargs: Any) -> None:
        given = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
        found.extend(one.grad_fn for one in given if one.grad_fn is not None)
        backward(tensors, *args, **kwargs)

    with mock.patch.object(torch.autograd, "backward", seen):
        yield found


def _behind(nodes: Iterable[Any]) -> set[Any]:
    """These nodes of autograd and all that they lead to, without those of parameters."""
    found, open_ = set(), [*nodes]
    while open_:
        node = open_.pop()
        if node is not None and node not in found and not hasattr(node, "variable"):
            found.add(node)
            open_ += [one for one, _ in node.next_functions]
    return found


def _loss(torch: ModuleType, result: Any, notes: list[str], roots: Sequence[Any]) -> Any:
    """What gradients are taken of; None where the program has taken them: a loss that it returns to
    be logged leads to what it called `backward` on.
    """
    given = getattr(result, "loss", None)
    if given is None and isinstance(result, Mapping):
        given = result.get("loss")
    tensors = [given] if given is not None else torch.utils._pytree.tree_leaves(result)
    open_ = [one for one in tensors if isinstance(one, torch.Tensor) and one.requires_grad]
    if not open_ or (roots and _behind(roots) & _behind(one.grad_fn for one in open_)):
        return None
    if len(open_) == 1 and open_[0].numel() == 1:
        return open_[0]
    notes.append("gradients of the sum of all that the program returns, which is no loss")
    return sum(one.float().sum() for one in open_)


def _optimizer(fakes: Fakes, fn: Any, optimizer: Any) -> Any:
    """The optimizer of a module's parameters."""
    import torch

    if optimizer is None:
        return None
    wrong = InputError(f"expected a torch.optim.Optimizer or its class, got {optimizer!r}")
    if isinstance(optimizer, torch.optim.Optimizer):
        return fakes.of(optimizer)
    another = isinstance(optimizer, type) and not issubclass(optimizer, torch.optim.Optimizer)
    if another or not callable(optimizer):
        raise wrong
    if isinstance(fn, torch.nn.Module):
        made = optimizer([one for one in fn.parameters() if one.requires_grad])
    else:
        raise InputError(
            f"expected an optimizer of the parameters that {_name(fn)} uses, got {optimizer!r}: a"
            " function has no parameters; make it, torch.optim.AdamW(model.parameters()), or give"
            " the module"
        )
    if not isinstance(made, torch.optim.Optimizer):
        raise wrong
    return made
