"""What one rank runs for a part of a model: steps forward and backward, each one row of a duration
table.

A `PassStep` is a call with what transformations must know of it. A layer is written for one device,
and parallelism rewrites its passes (`parallel.py`, `weights.py`, `recompute`); so a step names
the field of its op that tensor parallelism divides, and the one that counts tokens.

`Passes` pairs steps with their own backward: adding them lines up their forwards, and their
backwards from the last to the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import OpCall

_Value = TypeVar("_Value")
Part = Literal[
    "gemm", "experts", "attention", "memory", "optimizer", "tp", "cp", "ep", "dp", "pp", "zero",
    "replica"
]  # fmt: skip
SHARDED = ("zero", "replica")  # messages of sharded weights, which overlap a rank's passes
PRODUCTS = ("gemm", "experts")  # with weights
Recompute = Literal["none", "selective", "full"]
Checkpoints = Literal["blocks", "ops"]


def _changed(value: _Value, **changes: Any) -> _Value:
    """`dataclasses.replace` of what nothing checks, a fifth of its time: plans divide a hundred
    thousand steps.
    """
    other = object.__new__(type(value))
    other.__dict__.update(value.__dict__, **changes)
    return other


@dataclasses.dataclass(frozen=True)
class PassStep:
    """One call, where it belongs and how it is divided."""

    call: OpCall | CollectiveCall
    part: Part
    name: str
    kernels: int = 1  # launches: a call may stand for several, as fused attention's backward
    # fields of the op that tensor parallelism divides; empty: every rank does all of it
    tensor: tuple[str, ...] = ()
    # field of the op that counts tokens: what sequence and context parallelism divide
    tokens: str = ""
    core: bool = False  # of the attention core, which selective recompute runs again
    # needs no gathered gradient, and nobody waits for it in the layer
    weight_gradient: bool = False
    # of a message: what of an op it travels beside, which hides as much of it
    beside: OpCall | None = None

    @property
    def is_op(self) -> bool:
        return isinstance(self.call, OpCall)

    @property
    def op(self) -> Any:
        """The op of a step that is none of communication."""
        assert isinstance(self.call, OpCall), self.name
        return self.call.op

    @property
    def collective(self) -> CollectiveCall:
        """The collective of a step that is one."""
        assert isinstance(self.call, CollectiveCall), self.name
        return self.call

    def on(self, op: Any) -> PassStep:
        """The same step of a pass with another op."""
        assert isinstance(self.call, OpCall), self.name
        return _changed(self, call=_changed(self.call, op=op))

    def with_op(self, **changes: Any) -> PassStep:
        """The same with other sizes."""
        return self.on(_changed(self.op, **changes))

    def divided(self, fields: Iterable[str], by: float) -> PassStep:
        """The same with these sizes divided."""
        if isinstance(self.call, CollectiveCall):
            return _changed(self, call=_changed(self.call, bytes=self.call.bytes / by))
        sizes = {name: getattr(self.op, name) / by for name in fields}
        return self.with_op(**sizes) if sizes else self


Steps = tuple[PassStep, ...]


@dataclasses.dataclass(frozen=True)
class Passes:
    """What one part of a model (a layer, the embedding, the head) runs for one micro-batch."""

    forward: Steps = ()
    backward: Steps = ()  # gradients of inputs and of weights, without what is recomputed
    recomputed: Steps = ()  # forward steps run again before the backward

    @property
    def backward_with_recompute(self) -> Steps:
        """All that a backward task runs."""
        return (*self.recomputed, *self.backward)

    def __add__(self, behind: Passes) -> Passes:
        """This part and the one behind it."""
        return Passes(
            self.forward + behind.forward,
            behind.backward + self.backward,
            behind.recomputed + self.recomputed,
        )


def recompute(passes: Passes, mode: Recompute, checkpoints: Checkpoints = "blocks") -> Passes:
    """What a framework computes again of a forward pass.

    Megatron (`blocks`): all of it, or the attention core (`selective`, Korthikanti et al. 2022).
    PyTorch (`ops`): `torch.utils.checkpoint` stops once all that the backward pass reads is there,
    so a block's last product and what follows it are not repeated; of single ops (`selective`,
    torchtitan's policy) every second product, all loops and gathered tokens are, not attention and
    what was scattered.
    """
    if mode == "none":
        return passes
    steps = passes.forward
    products = [at for at, step in enumerate(steps) if step.part in PRODUCTS and not step.core]
    if checkpoints == "blocks" or not products:
        again = tuple(step for step in steps if mode == "full" or step.core)
    elif mode == "full":
        again = steps[: products[-1]]
    else:
        repeated = set(products[1::2])
        again = tuple(
            step
            for at, step in enumerate(steps)
            if step.part == "memory"
            or at in repeated
            or (step.part == "tp" and step.collective.collective == "all_gather")
        )
    return dataclasses.replace(passes, recomputed=again)


def flops(steps: Iterable[PassStep]) -> float:
    """FLOPs of the products among steps, loops left out, what is computed again included."""
    return sum(
        float(step.op.work().flops) * step.call.times
        for step in steps
        if isinstance(step.call, OpCall) and step.part in (*PRODUCTS, "attention")
    )


def launches(steps: Iterable[PassStep]) -> int:
    """Launches of a pass, collectives left out."""
    return sum(step.kernels for step in steps if step.is_op)
