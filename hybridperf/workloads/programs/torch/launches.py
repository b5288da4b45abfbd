"""What launches cost the host of a captured program.

Launches, of 24 us on Hopper's hosts. Fitted to 32 eager steps of an H100 and an H200 that wait for
their host, and to what Python needs to issue 20 others, measured once each (`calibration/measured`;
logs, robust): 18 us for a loop, a copy or a reduction of either pass, 40 us for a product,
convolution, attention, norm or lookup's gradient, 52 us for each tensor that is updated (its
gradient is accumulated and let go, the optimizer's lists go over it), 2.3 ms for an optimizer's
step. Each program left out, the former are 16 % off, the latter 22 % (by a rate of each pass,
without updates: 22 % and 61 %). The steps of our own and those of published architectures give the
same two rates by themselves, 16 and 40, 19 and 41 us. Views and convolutions apart did not lessen
it further.
"""

from __future__ import annotations

import numpy as np

from hybridperf.engine.workload import Workload
from hybridperf.model.calls import StepPlace
from hybridperf.ops import OpCall, Reduction
from hybridperf.workloads.programs.in_program import role_of
from hybridperf.workloads.programs.torch.record import OPTIMIZER, CapturedOp

_LOOP, _LIBRARY = 0.75, 1.65
_LIBRARIES = ("norm", "rnn", "embedding_", "sort", "index_put")  # parts of names, besides products
_ANOTHER = 0.2  # a further kernel of the same op: 5 us, fitted with them
_COMPILED = 0.67  # a kernel that Inductor's code launches: 16.3 us in two prompts on an H200
_UPDATED, _OPTIMIZER = 2.15, 96.0  # a tensor that is updated; an optimizer's step


def launch_of(op: CapturedOp, kernel: OpCall, another: bool, compiled: bool) -> StepPlace:
    """The place of a launch: of an op's first kernel, or of another one of it."""
    named = any(one in op.call.kind for one in _LIBRARIES)
    library = named or role_of(kernel) in ("gemm", "attention")
    eager = _LIBRARY if library and op.phase != OPTIMIZER else _LOOP
    inductor = compiled and op.phase != OPTIMIZER
    own = _COMPILED if inductor else eager
    another &= not (inductor and isinstance(kernel.op, Reduction))  # which has its own launch
    return StepPlace("launch", (_ANOTHER if another else own) + _ANOTHER * (launched(kernel) - 1.0))


def launched(call: OpCall) -> float:
    """Kernels that a call stands for: its repeats, the three of a fused attention's backward pass;
    one where its time is a share of another's.
    """
    return max(call.times, 1.0)


def launch_of_update(updated: int) -> StepPlace:
    """What a step's update of so many tensors takes its host besides. Steps follow one another:
    while a host is busy with an update, the GPU runs what was issued before, so that no kernel of
    the same step waits for it.
    """
    return StepPlace("launch", _OPTIMIZER + _UPDATED * updated)


def launches_of(workload: Workload) -> float:
    """Launches of a captured step, each as much of its host's time as the effect `launch_s` is."""
    places = workload.in_step.places if workload.in_step else ()
    counts = np.array([0.0, *(one.count if one.role == "launch" else 0.0 for one in places)])
    return float(counts[workload.graph.launch_row].sum())
