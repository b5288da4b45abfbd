"""Collectives of a captured program: which, among whom, by which step effects.

A program of many ranks is captured as one of them runs it, in a process group that sends nothing
(PyTorch's own, "fake"). Messages are the ops of `torch.distributed` (`c10d`, DDP and FSDP2) and of
`DTensor` (`_c10d_functional`); who takes part stands in their group's ranks, and which of these
share a node follows from how many GPUs one holds.
"""

from __future__ import annotations

from hybridperf.model.calls import CollectiveCall, StepPlace
from hybridperf.workloads.torch.calls import flat
from hybridperf.workloads.torch.record import CapturedOp

# ops by whose larger tensor is meant: a gather's result, a scatter's input
_COLLECTIVES = {
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_reduce_": "all_reduce",
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::all_gather_into_tensor_out": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional::all_to_all_single": "alltoall",
    "_c10d_functional::broadcast": "broadcast",
    "c10d::allreduce_": "all_reduce",
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::alltoall_base_": "alltoall",
    "c10d::broadcast_": "broadcast",
    "c10d::send": "sendrecv",
}
# a receiver waits for what its sender is counted for; waits are edges of the graph
_SILENT = ("_c10d_functional::wait_tensor", "c10d::recv_", "c10d::barrier")
# FSDP2 gathers ahead of the layer that needs it: a gather waits for what is copied into its buffer,
# on its own stream, and for no kernel
GATHERED = ("c10d::_allgather_base_",)
COPIED_IN = ("fsdp::all_gather_copy_in",)
_SHARDED = {"c10d::_allgather_base_": "gather", "c10d::_reduce_scatter_base_": "reduction"}
_REDUCED = "c10d::allreduce_"


def is_message(op: CapturedOp) -> bool:
    """Whether an op sends something, or waits for what is sent."""
    return op.call.kind in _COLLECTIVES or op.call.kind in _SILENT


def collective(op: CapturedOp, gpus_per_node: int) -> CollectiveCall | None:
    """The call of an op that sends; None of one that sends nothing."""
    name = _COLLECTIVES.get(op.call.kind)
    if name is None or len(op.ranks) < 2:
        return None
    nodes = len({rank // gpus_per_node for rank in op.ranks})
    tensors = [*flat(op.call.given), *op.call.written]
    # of a group's whole buffer: what all gather, or what is scattered
    moved = max((one.bytes for one in tensors), default=0.0)
    if name == "all_reduce":  # a list of tensors is one message
        moved = sum(one.bytes for one in flat(op.call.given[:1]))
    return CollectiveCall(name, max(moved, 1.0), len(op.ranks), nodes)


def place_of(op: CapturedOp, call: CollectiveCall) -> StepPlace:
    """Sharded weights and gradients go beside the step, all else is waited for in a layer."""
    if op.call.kind in _SHARDED:
        return StepPlace(_SHARDED[op.call.kind])
    if op.call.kind == _REDUCED:
        return StepPlace("reduction")
    if call.collective in ("alltoall", "sendrecv"):
        return StepPlace("exchange" if call.collective == "alltoall" else "p2p")
    return StepPlace("tp") if call.nodes == 1 else StepPlace("tp_across", float(call.nodes))
