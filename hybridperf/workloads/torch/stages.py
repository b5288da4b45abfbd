"""Stages of `torch.distributed.pipelining`, of which one rank's run and the others are not there.

Before its first step a schedule asks along the pipeline what stages send one another
(torch/distributed/pipelining/stage.py, `_warmup_forward_vote`, `_send_meta`, `_recv_meta`). Here
the rank answers for itself: gradients are like the results they are of, and what a later stage of
the same rank is sent is like what its first one sends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from hybridperf.io import InputError


@contextlib.contextmanager
def stages_alone() -> Iterator[None]:
    """Schedules that ask nobody what their stages send."""
    from torch.distributed.pipelining import schedules, stage
    from torch.distributed.pipelining._utils import InferenceMode

    sent: list[Any] = []  # descriptions of results

    def asked(_: Any, stages: Sequence[Any], has_backward: bool, p2p_done: bool) -> None:
        open_ = any(InferenceMode.needs_dynamic(one._user_meta, has_backward) for one in stages)
        for one in stages:
            one._inference_mode = InferenceMode.DYNAMIC if open_ else InferenceMode.STATIC

    def received(self: Any, source: int) -> Any:
        if source > self.stage_index:
            gradients = stage._derive_grad_metas(self._stage_meta.outputs)
            return stage._StageBackwardMeta(backward_metas=gradients)
        if not sent:
            raise InputError(
                f"expected what stage {self.stage_index} of a pipeline is sent, which another rank"
                " knows: give it as PipelineStage(..., input_args=..., output_args=...)"
            )
        return sent[0]

    def send(_: Any, description: Any, target: int) -> None:
        if isinstance(description, stage._StageForwardMeta):
            sent.append(description)

    with (
        mock.patch.object(schedules._PipelineSchedule, "_warmup_p2p", asked),
        mock.patch.multiple(stage.PipelineStage, _recv_meta=received, _send_meta=send),
    ):
        yield
