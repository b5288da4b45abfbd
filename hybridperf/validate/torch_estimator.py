"""PyTorch's own estimate of a step, `torch.distributed._tools.runtime_estimator.RuntimeEstimator`:
op by op on tensors without memory, by a roofline of the GPU that is there or by running each op
alone on it. It knows GPUs only; what it says where it cannot run is handed on.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

from hybridperf.io import InputError
from hybridperf.workloads.own import made_by
from hybridperf.workloads.programs.torch.capture import run_step

MODES = ("operator-level-cost-model", "operator-level-benchmark")
_NAME = "PyTorch's RuntimeEstimator"


def estimates(functions: Sequence[str], backend: str) -> tuple[list[dict[str, float]], list[str]]:
    """(seconds of each step by mode; a sentence for each mode that has none, and why).

    Args:
        functions: the steps, "module:function" as `predict --torch` takes them.
        backend: kind of device that the steps run on, "cpu" or "gpu".
    """
    found: list[dict[str, float]] = [{} for _ in functions]
    notes = []
    for mode in MODES:
        try:
            seconds = [estimate(function, mode, backend) for function in functions]
        except InputError as error:
            notes.append(f"no baseline {_NAME} ({mode}), which knows GPUs only: {error}")
            continue
        for step, seconds_of in zip(found, seconds, strict=True):
            step[f"{_NAME}, {mode}"] = seconds_of
    return found, notes


def estimate(function: str, mode: str, backend: str) -> float:
    """Seconds of a step, after one that makes the optimizer's state.

    Raises:
        InputError: PyTorch does not estimate it here; its reason.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    if backend == "cpu" and torch.cuda.is_available():
        raise InputError("it estimates the GPU that is here, and the steps run on the CPU")
    estimator = RuntimeEstimator()
    try:
        with (
            FakeTensorMode(),
            torch.device("cpu" if backend == "cpu" else "cuda"),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            small = torch.ones(2)
            with estimator(mode):
                small + small  # what it refuses inside of a module's call ends the process
            fn, args, *given = made_by(function)
            update = (*given, None)[0]
            if isinstance(update, type):
                update = update(fn.parameters())
            run_step(fn, args, update)
            with estimator(mode):
                run_step(fn, args, update)
    except (AssertionError, RuntimeError) as error:
        said, _, _ = str(error).partition("\n")
        raise InputError(said) from error
    return estimator.total_runtime / 1e3
