"""The step of a training script, run as its author wrote it on tensors without memory.

    hybridperf predict train.py --model h100_sxm -- --batch-size 32

A script makes its model, reads its data and trains; its step is what it does from one update by its
first optimizer to the next one, so that accumulation, several optimizers and what it logs are part
of it. There the script ends. A number that it reads of a tensor is 1, since none is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError, first_line
from hybridperf.workloads.programs.torch.capture import Block, Captured, captured_block
from hybridperf.workloads.programs.torch.modules import ModulePaths

_READ = "numbers that the script reads of tensors are taken as 1; no time is counted for waiting"
_FIRST = "the script ended after one update: what it did before its model first ran is left out"
# what a loader is told of processes that read ahead
_OF_WORKERS = (
    "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "multiprocessing_context",
    "timeout", "worker_init_fn", "pin_memory_device",
)  # fmt: skip
_CAPABILITY = (9, 0)  # of the GPU that a script is told of: all that PyTorch has is allowed


class _StepOver(BaseException):
    """The step has been seen: no error, and none that a script may catch."""


def captured_script(
    path: str | os.PathLike, arguments: Sequence[str] = (), ranks: int = 1, *, device: DeviceSpec
) -> Captured:
    """Run a script until its first optimizer has made two updates; what it calls between them.

    Args:
        path: of the script.
        arguments: its own, as it reads them in `sys.argv`.
        ranks: of the process group that `torchrun` would make; this process is the first.
        device: the GPU that it finds.

    Raises:
        InputError: no such file, or a script that ends without an update.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a script, found no file {path}; say where it is")
    with captured_block(ModulePaths(), ranks, path.name) as block:
        import torch
        from torch.optim import optimizer as optimizers

        steps = _Steps(block)
        with (
            _as_started(path, arguments, ranks),
            _gpu_there(torch, block, device),
            _numbers(torch, steps),
            contextlib.redirect_stdout(sys.stderr),
            _hooked(
                torch.nn.modules.module.register_module_forward_pre_hook(steps.model_runs),
                optimizers.register_optimizer_step_post_hook(steps.updated),
            ),
        ):
            try:
                runpy.run_path(str(path), run_name="__main__")
            except _StepOver:
                pass
            except (Exception, SystemExit) as error:
                ended = isinstance(error, SystemExit) and not error.code
                if steps.found is None and not ended:
                    raise
                if steps.found is not None and not ended:
                    steps.failed(f"{type(error).__name__}: {first_line(error)}")
    if steps.found is None:
        raise InputError(
            f"{path}: expected a script that trains, its optimizer made no update before it ended;"
            " `hp.estimate(model, inputs, device=..., train=False)` is for inference"
        )
    return steps.found


class _Steps:
    """Where the steps of a script begin and end."""

    def __init__(self, block: Block) -> None:
        self._block, self._runs, self._first = block, False, None
        self.numbers_read = False
        self.found: Captured | None = None

    def failed(self, why: str) -> None:
        """After an update the script came to no other."""
        assert self.found is not None
        notes = (*self.found.notes, f"the script ended by {why}")
        self.found = dataclasses.replace(self.found, notes=notes)

    def model_runs(self, *_: object) -> None:
        """What came before a model first ran belongs to no step."""
        if not self._runs:
            self._runs = True
            self._block.restart()

    def updated(self, optimizer: Any, *_: object) -> None:
        """An update is over: a step is, where its first optimizer made it."""
        if self._block.making or optimizer is not (self._first or optimizer):
            return
        again, self._first = self._first is not None, optimizer
        notes = (_READ,) * self.numbers_read + (() if again else (_FIRST,))
        self.found = self._block.captured(*notes)
        if again:
            raise _StepOver
        self._block.restart()


@contextlib.contextmanager
def _as_started(path: Path, arguments: Sequence[str], ranks: int) -> Iterator[None]:
    """Arguments, search path and variables as `python path arguments` has them, or `torchrun`."""
    run = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    run |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [str(path), *arguments]))
        stack.enter_context(mock.patch.object(sys, "path", [str(path.parent), *sys.path]))
        if ranks > 1:
            from torch import distributed

            stack.enter_context(mock.patch.dict(os.environ, run))
            for made in ("init_process_group", "destroy_process_group"):  # it is there already
                stack.enter_context(mock.patch.object(distributed, made, _nothing))
        yield


def _nothing(*_: object, **__: object) -> None:
    """In place of what is done to a GPU, or to processes."""


@contextlib.contextmanager
def _gpu_there(torch: ModuleType, block: Block, device: DeviceSpec) -> Iterator[None]:
    """What a script asks of CUDA before it trains. Loaders read in this process, beside the GPU,
    which has their batches and not what they read.
    """
    major, minor = _CAPABILITY
    memory_bytes = int(device.memory_bytes)
    about = SimpleNamespace(
        name=device.name, major=major, minor=minor, total_memory=memory_bytes,
        multi_processor_count=device.multiprocessors,
    )  # fmt: skip
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0,
        "get_device_name": device.name,
        "is_bf16_supported": True, "get_device_capability": _CAPABILITY,
        "get_device_properties": about, "memory_allocated": 0, "max_memory_allocated": 0,
        "memory_reserved": 0, "max_memory_reserved": 0,
        "mem_get_info": (memory_bytes, memory_bytes),
    }  # fmt: skip
    done = ("set_device", "empty_cache", "reset_peak_memory_stats", "manual_seed",
            "manual_seed_all", "init")  # fmt: skip
    loader, reads = torch.utils.data.DataLoader, torch.utils.data.dataloader._BaseDataLoaderIter
    made, read = loader.__init__, reads.__next__

    @functools.wraps(made)
    def here(self: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(made).bind(self, *args, **kwargs).arguments
        kept = {name: value for name, value in given.items() if name not in _OF_WORKERS}
        block.forget(_read_of(torch, given["dataset"]))
        made(**kept, num_workers=0, pin_memory=False)

    def next_batch(self: Any) -> Any:
        with block.beside():
            batch = read(self)
        block.hold(batch)
        return batch

    with contextlib.ExitStack() as stack:
        for name, value in answers.items():
            answer = functools.partial(_answered, value)
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        for name in done:
            stack.enter_context(mock.patch.object(torch.cuda, name, _nothing))
        stack.enter_context(mock.patch.object(loader, "__init__", here))
        stack.enter_context(mock.patch.object(reads, "__next__", next_batch))
        yield


def _read_of(torch: ModuleType, dataset: Any) -> list[Any]:
    """What a dataset holds, those that it is made of included; a list is one, too."""
    found = torch.utils._pytree.tree_leaves([dataset, *getattr(dataset, "__dict__", {}).values()])
    inner = [one for one in found if isinstance(one, torch.utils.data.Dataset)]
    return found + [each for one in inner if one is not dataset for each in _read_of(torch, one)]


def _answered(value: Any, *_: object, **__: object) -> Any:
    return value


def _numbers(torch: ModuleType, steps: _Steps) -> Any:
    """A mode in which numbers of tensors without memory are read as 1, flags as False."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
    from torch.overrides import TorchFunctionMode

    of = torch.Tensor
    scalars = {of.item, of.__float__, of.__int__, of.__bool__, of.__index__}
    read = scalars | {of.__format__, of.tolist, of.numpy}

    class Numbers(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func not in read or not isinstance(args[0], FakeTensor):
                return func(*args, **(kwargs or {}))
            if func in scalars:  # what PyTorch asks for itself is told (`record.py`)
                with contextlib.suppress(DataDependentOutputException):
                    return func(*args, **(kwargs or {}))
            steps.numbers_read = True
            flags = args[0].dtype is torch.bool
            kind = float if args[0].is_floating_point() else bool if flags else int
            numbers = np.full(tuple(args[0].shape), not flags, kind)
            if func is of.numpy:
                return numbers
            if func is of.__format__ and args[0].ndim == 0:
                return format(numbers.item(), *args[1:])
            return str(numbers) if func is of.__format__ else numbers.tolist()

    return Numbers()


@contextlib.contextmanager
def _hooked(*handles: Any) -> Iterator[None]:
    """Hooks that are gone afterwards."""
    try:
        yield
    finally:
        for one in handles:
            one.remove()
