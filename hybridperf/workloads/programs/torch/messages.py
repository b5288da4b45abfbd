"""Collectives of a captured program: which, among whom, by which step effects.

A program of many ranks is captured as one of them runs it, in a process group that sends nothing
(PyTorch's own, "fake"). Messages are the ops of `torch.distributed` (`c10d`, DDP and FSDP2) and of
`DTensor` (`_c10d_functional`); who takes part stands in their group's ranks, and which of these
share a node follows from how many GPUs one holds.
"""

from __future__ import annotations

from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall, StepPlace
from hybridperf.workloads.programs import in_program
from hybridperf.workloads.programs.torch.calls import flat
from hybridperf.workloads.programs.torch.record import CapturedOp

_SPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_NAMES = {  # without what tells that they work in place, on several tensors or into a given one
    "all_reduce": ("all_reduce", "allreduce"),
    "all_gather": (
        "all_gather_into_tensor", "_allgather_base", "allgather", "allgather_into_tensor",
    ),
    "reduce_scatter": ("reduce_scatter_tensor", "_reduce_scatter_base", "reduce_scatter"),
    "alltoall": ("all_to_all_single", "alltoall_base", "alltoall"),
    "broadcast": ("broadcast",),
    "reduce": ("reduce",),
    # one rank is seen: what it is sent takes its links as what it sends does
    "sendrecv": ("send", "recv", "recv_any_source", "isend", "irecv"),
}  # fmt: skip
_COLLECTIVES = {name: collective for collective, names in _NAMES.items() for name in names}
_SILENT = ("wait_tensor", "barrier", "_wrap_tensor_autograd")  # waits are edges of the graph
_PEER_AT = {"send": 2, "recv": 2, "isend": 1, "irecv": 1}  # among the arguments
# FSDP2 gathers ahead of the layer that needs it: a gather waits for what is copied into its buffer,
# on its own stream, and for no kernel
GATHERED = ("c10d::_allgather_base_",)
COPIED_IN = ("fsdp::all_gather_copy_in",)
COPIED = (*COPIED_IN, "fsdp::chunk_cat")  # lists of parameters into one message
_SHARDED = {"c10d::_allgather_base_": "gather", "c10d::_reduce_scatter_base_": "reduction"}
_REDUCED = "c10d::allreduce_"


def is_message(op: CapturedOp) -> bool:
    """Whether an op sends something, or waits for what is sent."""
    space, name = _parts(op)
    return space in _SPACES and (name in _COLLECTIVES or name in _SILENT)


def collective(op: CapturedOp, gpus_per_node: int) -> CollectiveCall | None:
    """The call of an op that sends; None of one that sends nothing.

    Raises:
        InputError: who takes part is not known.
    """
    _, name = _parts(op)
    if name in _SILENT:
        return None
    if not op.ranks:
        raise InputError(
            f"{op.where or 'the program'}: who takes part in {op.call.kind} is not known; expected"
            " a group of those that hp.without_memory(ranks=...) makes (`--gpus`)"
        )
    if len(op.ranks) < 2:
        return None
    ranks = op.ranks
    if _COLLECTIVES[name] == "sendrecv":
        peer = op.call.value(_PEER_AT[name]) if name in _PEER_AT else None
        ranks = (0, ranks[1] if peer is None else ranks[peer])  # of which the first is seen
    nodes = len({rank // gpus_per_node for rank in ranks})
    # the whole of a group's buffer is the larger side: what all gather, or what is scattered
    sides = (sum(one.bytes for one in flat([side])) for side in (*op.call.given, *op.call.results))
    return CollectiveCall(_COLLECTIVES[name], max(*sides, 1.0), len(ranks), nodes)


def _parts(op: CapturedOp) -> tuple[str, str]:
    """(namespace, name) of an op, the name as in `_NAMES`."""
    space, _, name = op.call.kind.partition("::")
    return space, name.removesuffix("_out").removesuffix("_").removesuffix("_coalesced")


def place_of(op: CapturedOp, call: CollectiveCall) -> StepPlace:
    """Sharded weights and gradients go beside the step, all else is waited for in a layer."""
    if op.call.kind in _SHARDED:
        return StepPlace(_SHARDED[op.call.kind])
    if op.call.kind == _REDUCED:
        return StepPlace("reduction")
    return in_program.place_of(call)
