"""What kernels and messages of a user's program are in a step: which step effects count for them.

Programs of PyTorch and of JAX go by it alike, as `transformer/in_step.py` has it for our own steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall, StepPlace
from hybridperf.ops import OpCall
from hybridperf.ops.attention import Attention
from hybridperf.workloads.transformer.in_step import misaligned

MESSAGE_LAUNCH = StepPlace("collective_launch")
_NAMED = 12  # unknown ops that an error lists


def role_of(call: OpCall, tokens: str = "") -> str:
    """Which step effects count for a kernel (`model/step_effects.py`); `tokens`: the dimension of a
    product that no row has.
    """
    if isinstance(call.op, Attention):
        return "attention"
    if call.op.unit != "matrix":
        return "memory"
    return "misaligned_gemm" if misaligned(call.op, tokens) else "gemm"


def place_of(call: CollectiveCall) -> StepPlace:
    """Of a message that whoever reads it waits for."""
    if call.collective in ("alltoall", "sendrecv"):
        return StepPlace("exchange" if call.collective == "alltoall" else "p2p")
    return StepPlace("tp") if call.nodes == 1 else StepPlace("tp_across", float(call.nodes))


def refuse_unpriced(program: str, unpriced: Mapping[str, str], otherwise: str = "") -> None:
    """`InputError` that names what has no price.

    Args:
        program: its name.
        unpriced: the line that asked for it, by kind of op.
        otherwise: what else than leaving it out can be done.
    """
    if not unpriced:
        return
    named = [kind + (f" ({where})" if where else "") for kind, where in unpriced.items()]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    raise InputError(
        f"{program}: cannot price {len(named)} kind(s) of op: {', '.join(named[:_NAMED])}{more};"
        f" leave them out with ignore=... (`--ignore` on the command line){otherwise}"
    )
