"""What the host of a PyTorch step issues, counted in launches of an eager op.

Fitted to 32 eager steps of an H100 and an H200 that wait for their host, and to what Python needs
to issue 20 others (`calibration/measured`; logs, robust): 24 us for an op of either pass, 66 us for
each tensor that is updated (its gradient is accumulated and let go, the optimizer's lists go over
it), 2.2 ms for an optimizer's step. Each program left out, the former are 16 % off (22 % by a rate
for each pass), the latter, measured once each, 33 % (61 %). Modules, views and kinds of kernels
(convolutions 1.5 times) did not lessen it further.
"""

from __future__ import annotations

from hybridperf.model.calls import StepPlace
from hybridperf.workloads.torch.record import OPTIMIZER, CapturedOp

_ANOTHER = 0.2  # a further kernel of the same op: 5 us
_COMPILED = 0.67  # a kernel that Inductor's code launches: 16.3 us in two prompts on an H200
_UPDATED, _OPTIMIZER = 2.7, 90.0  # a tensor that is updated; an optimizer's step


class Launches:
    """Places of launches, asked for in the order in which a step issues its kernels."""

    def __init__(self, compiled: bool, updated: int) -> None:
        """`updated`: tensors that the optimizer updates."""
        self._op = _COMPILED if compiled else 1.0
        self._update = _OPTIMIZER + _UPDATED * updated

    def of(self, op: CapturedOp, another: bool, times: float) -> StepPlace:
        """Of an op's first kernel, or of another one of it, that runs so many times."""
        before = 0.0
        if op.phase == OPTIMIZER:
            before, self._update = self._update, 0.0
        first = _ANOTHER if another else 1.0 if op.phase == OPTIMIZER else self._op
        return StepPlace("launch", before + first + _ANOTHER * (times - 1.0))
