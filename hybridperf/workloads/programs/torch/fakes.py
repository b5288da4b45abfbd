"""Tensors without memory in place of real ones: what a program is run on to see what it calls; and
what of a program cannot be followed on them, in a sentence.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
import types
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from hybridperf.io import InputError
from hybridperf.workloads.own import line_of, user_line
from hybridperf.workloads.programs.torch.groups import process_group
from hybridperf.workloads.programs.torch.on_gpu import Autocast, flex_attended

# as PyTorch's errors say it
_NEEDS_A_GPU = (
    "CUDA enabled", "CUDA support", "on CPU", "dummy base class", "to be on GPU", "non-CPU accel",
    "to be on CUDA",
)  # fmt: skip
_NUMBERS = (".numpy()", "FakeTensor.__format__")  # asked for, as they are or as text
_NO_GROUP = ("ProcessGroup object", "_use_python_reducer", "process group has not been initialized")
_LENGTHS = ("shape_env must not be None",)  # nested tensors
_UNDIVIDED = ("Mesh should not be bigger", "Sharding propagation failed")
_SENTENCES = {
    _NO_GROUP: "the program sends to other ranks, and there are none; make it and call"
    " hp.from_torch inside one `with hp.without_memory(ranks=N):`",
    _UNDIVIDED: "the mesh does not divide this ({does}); expected a mesh of as many ranks as"
    " hp.without_memory(ranks=N) makes, and sizes that are multiples of its own",
    _LENGTHS: "lengths are numbers of a tensor, and it has none here; pad what is nested to one"
    " length",
    _NUMBERS: "a tensor's numbers are asked for, and it has none here; return the tensor and read"
    " it after the step",
}
_NO_RULE = "no rule registered for HigherOrderOperator"
_LOOPS = ("scan", "while_loop", "associative_scan", "map_impl")  # of such operators
_INSTEAD = {
    "FSDP needs": "shard by torch.distributed.fsdp.fully_shard (FSDP2), which is followed",
    "SyncBatchNorm": "take nn.BatchNorm2d, whose statistics of one rank cost as much but for a"
    " message of two numbers a channel",
}


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Errors of what cannot be known without numbers, or without a GPU, as one sentence each that
    names the program's line.
    """
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedOperatorException,
    )

    quiet = logging.getLogger("torch._subclasses.fake_tensor")  # writes a traceback of its own
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        what = (
            "a number is read from a tensor, and what follows may depend on it ({}); return the"
            " tensor and read it after the step"
            if isinstance(error, DataDependentOutputException)
            else "the size of a result depends on numbers ({}); give it a size of its own, or leave"
            " it out of the step"
        )
        raise InputError(f"{_line(error)}: {what.format(_op_name(error))}") from error
    except UnsupportedOperatorException as error:
        raise InputError(
            f"{_line(error)}: {_op_name(error)} has no rule for tensors without memory; register"
            " one by torch.library.register_fake"
        ) from error
    except InputError:
        raise
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        told = str(error)
        does = told.splitlines()[0].rstrip(".") if told else ""
        for words, sentence in _SENTENCES.items():
            if any(word in told for word in words):
                raise InputError(f"{_line(error)}: {sentence.format(does=does)}") from error
        if _NO_RULE in told:
            name = told.partition(_NO_RULE)[2].split()[0]
            what = (
                "is a loop that is not followed; write it as one of Python"
                if name in _LOOPS
                else "chooses by numbers what comes next, and none are here; call the branch that"
                " counts"
            )
            raise InputError(f"{_line(error)}: {name} {what}") from error
        if not any(word in told for word in _NEEDS_A_GPU):
            raise
        instead = next((one for word, one in _INSTEAD.items() if word in does), None)
        raise InputError(
            f"{_line(error)}: PyTorch does this on a GPU only, and none is here ({does});"
            f" {instead or 'leave it out of the step'}"
        ) from error
    finally:
        quiet.setLevel(level)


def _line(error: BaseException) -> str:
    return line_of(error) or user_line() or "the program"


def _op_name(error: Exception) -> str:
    func = getattr(error, "func", None)
    return str(func if func is not None else (error.args or ("an op",))[0])


# whose numbers are their own and are read: ranks of a mesh, samples of a batch
_READERS = (
    "torch/distributed/device_mesh.py", "torch/distributed/_mesh_layout.py",
    "torch/utils/data/sampler.py", "torch/utils/data/dataloader.py",
)  # fmt: skip
_FEW = 4096  # numbers
# what hands a call on: contexts of PyTorch, and modes of ours
_CONTEXTS = (
    "torch/utils/_device.py", "torch/utils/_stats.py", "torch/_tensor.py",
    "programs/torch/capture.py", "programs/torch/script.py",
)  # fmt: skip
_INSTALL = "PyTorch is not installed here: `pip install torch==2.13.0` is its CPU build"


@contextlib.contextmanager
def without_memory(ranks: int = 1) -> Iterator[None]:
    """Tensors made in here have no memory, and all lie in one place.

    Args:
        ranks: of the process group that this process is the first of; nothing is sent. 1: none.

    Raises:
        InputError: PyTorch is not installed, or there is a process group already.
    """
    try:
        import torch
    except ImportError as error:
        raise InputError(_INSTALL) from error
    if ranks < 1:
        raise InputError(f"expected one rank or more, got {ranks}")
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
    from torch.overrides import TorchFunctionMode

    class OneDevice(TorchFunctionMode):
        """Whatever the program says of CUDA is done here."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                return args[0]
            if func in (torch.Tensor.to, torch._C._nn._parse_to):  # a number is a device's
                args = tuple("cpu" if type(one) is int else one for one in args)
            moved = {name: _here(value) for name, value in (kwargs or {}).items()}
            if type(moved.get("device")) is int:
                moved["device"] = "cpu"
            if asked_by_a_reader(sys._getframe(1)) or _of_known_numbers(torch, func, args, moved):
                with unset_fake_temporarily():
                    return func(*map(_here, args), **moved)
            if func is torch.nn.functional.scaled_dot_product_attention:
                # fused kernels of GPUs drop as they go, those of CPUs do not drop
                args = args[:4] + (0.0,) * (len(args) > 4) + args[5:]
                moved |= {"dropout_p": 0.0} if "dropout_p" in moved else {}
            return autocast.call(func, [*map(_here, args)], moved)

    # of one conversion and one tensor, by identity: both, so that they live on, and what is made
    converted: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        """Replaces parameters, tied ones by one: what has no memory cannot be swapped."""
        for child in self.children() if recurse else ():
            child._apply(fn)
        for held in (self._parameters, self._buffers):
            for key, old in held.items():
                if old is None:
                    continue
                if (id(fn), id(old)) not in converted:
                    with torch.no_grad():
                        new = fn(old)
                    if new is not old and isinstance(old, torch.nn.Parameter):
                        new = torch.nn.Parameter(new, old.requires_grad)
                    converted[id(fn), id(old)] = fn, old, new
                held[key] = converted[id(fn), id(old)][-1]
        return self

    autocast = Autocast()
    entered, left = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    without_gradients: list[Any] = []

    def enter(context: Any) -> None:
        """`inference_mode` as `no_grad`: the same kernels, while it hides from what sees ops that
        autocast is on. PyTorch turns it off to make fakes of tensors with gradients.
        """
        if context.mode:
            without_gradients.append(torch.no_grad())
            without_gradients[-1].__enter__()
        else:
            entered(context)

    def leave(context: Any, *raised: Any) -> None:
        if context.mode:
            without_gradients.pop().__exit__(*raised)
        else:
            left(context, *raised)

    def untouched(tensor: Any = None, *_: object, **__: object) -> Any:
        return tensor

    known = torch._guards.detect_fake_mode()
    with (
        known or FakeTensorMode(allow_non_fake_inputs=True),
        OneDevice(),
        autocast.followed(),
        mock.patch.object(torch.nn.Module, "_apply", apply),
        mock.patch.multiple(torch.inference_mode, __enter__=enter, __exit__=leave),
        mock.patch.object(torch.cuda, "synchronize", untouched),
        torch.compiler.set_stance("force_eager"),
        mock.patch.object(torch.nn.init, "_no_grad_trunc_normal_", untouched),  # reads numbers
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", bool),  # no
        flex_attended(),
        sentences(),
        process_group(ranks) if ranks > 1 else contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def as_made(*values: Any) -> Iterator[None]:
    """Where modules or tensors among values were made in `without_memory`, the same place again: in
    another, views of them have storages of their own.
    """
    if "torch" not in sys.modules:  # so nothing was made, and whether it is installed is asked next
        yield
        return
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    leaves = [
        each for one in torch.utils._pytree.tree_leaves(values) for each in (one, *_behind(one))
    ]
    modules = (one for one in leaves if isinstance(one, torch.nn.Module))
    held = (tensor for one in modules for tensor in (*one.parameters(), *one.buffers()))
    made = (one for one in (*leaves, *held) if isinstance(one, FakeTensor))
    mode = next((one.fake_mode for one in made), None)
    with mode if torch._guards.detect_fake_mode() is None and mode else contextlib.nullcontext():
        yield


def closed_over(function: Any) -> Iterator[Any]:
    """What a function closes over, without names that are not bound yet."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            yield cell.cell_contents


def _behind(value: Any) -> Iterator[Any]:
    """What a function closes over, its globals, the object that a method is of."""
    function = getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType):
        return
    if function is not value:
        yield value.__self__
    yield from closed_over(function)
    names = function.__code__.co_names
    yield from (function.__globals__[one] for one in names if one in function.__globals__)


def _of_known_numbers(torch: ModuleType, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a few numbers that models read as they are built are made, or such are worked on."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    given = [one for one in leaves if isinstance(one, torch.Tensor)]
    real = all(type(one) is torch.Tensor and one.numel() <= _FEW for one in given)
    if given:
        return real
    return func is torch.linspace or (func is torch.tensor and _whole((*args, *kwargs.values())[0]))


def _whole(value: object) -> bool:
    """Whether something is a whole number or lists of them: counts and lengths."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_whole, value))
    return isinstance(value, int)


def asked_by_a_reader(frame: types.FrameType | None) -> bool:
    """Whether one of `_READERS` calls, through whatever hands calls on."""
    while frame is not None and frame.f_code.co_filename.endswith(_CONTEXTS):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.endswith(_READERS)


def _here(value: Any) -> Any:
    import torch

    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _is_count(tensor: Any) -> bool:
    """Whether a tensor is a single whole number or flag, which modules read and count up."""
    return tensor.numel() == 1 and not (tensor.is_floating_point() or tensor.is_complex())


class Fakes:
    """Tensors without memory in place of real ones, the same for the same."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}  # by identity, as `copy.deepcopy` knows what it has copied
        self.kept: list[Any] = []  # so that no identity is given twice

    def of(self, value: Any) -> Any:
        """A tree of arguments, a module, an optimizer, or a function and what it closes over."""
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.nn.Module):
            return self._copied(value, [*value.parameters(), *value.buffers()])
        if isinstance(value, torch.optim.Optimizer):
            groups = [one for group in value.param_groups for one in group["params"]]
            return self._copied(value, groups)
        if isinstance(value, torch.amp.GradScaler):
            return self._copied(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.of(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, list | tuple | dict):
            leaves, tree = torch.utils._pytree.tree_flatten(value)
            return torch.utils._pytree.tree_unflatten([self.of(one) for one in leaves], tree)
        return value

    def _copied(self, value: Any, tensors: list[Any] | None = None) -> Any:
        """A module or optimizer with other tensors; itself where these have no memory already."""
        if tensors is not None and all(
            [self._tensor(one) is one for one in tensors if not _is_count(one)]
        ):
            return value
        import torch

        def replaced(one: Any, memo: Any) -> Any:  # an optimizer's state, a plain attribute
            return self._tensor(one)

        with mock.patch.object(torch.Tensor, "__deepcopy__", replaced):
            made = copy.deepcopy(value, self.known)
            for name, held in vars(value).items():  # what an optimizer does not save
                if name not in vars(made):
                    vars(made)[name] = copy.deepcopy(held, self.known)
        return made

    def _tensor(self, value: Any) -> Any:
        import torch
        from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

        if id(value) in self.known:
            return self.known[id(value)]
        found = value
        if isinstance(value, FakeTensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
            pass
        elif _is_count(value):
            with unset_fake_temporarily():
                found = value.clone()
        else:
            with torch.no_grad():
                found = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="cpu"
                )
            if isinstance(value, torch.nn.Parameter):
                found = torch.nn.Parameter(found, requires_grad=value.requires_grad)
            else:
                found.requires_grad_(value.requires_grad)
        self.known[id(value)] = found
        self.kept.append(value)
        return found

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        """The function with modules, optimizers and tensors that it refers to replaced."""
        import torch

        kinds = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler)

        def replaced(one: Any) -> Any:
            return self.of(one) if isinstance(one, (*kinds, list, tuple, dict)) else one

        used = {name for name in value.__code__.co_names if name in value.__globals__}
        mine = {name: value.__globals__[name] for name in used}
        found = {name: self.of(one) for name, one in mine.items() if isinstance(one, kinds)}

        def own(cell: types.CellType) -> types.CellType:
            try:
                return types.CellType(replaced(cell.cell_contents))
            except ValueError:  # of a name that is not bound yet
                return cell

        cells = tuple(map(own, value.__closure__ or ()))
        if not found and not cells:
            return value
        made = types.FunctionType(
            value.__code__, value.__globals__ | found, value.__name__, value.__defaults__, cells
        )
        made.__kwdefaults__ = value.__kwdefaults__
        return made
