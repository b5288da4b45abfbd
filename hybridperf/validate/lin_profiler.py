"""What a profiler's records cost the ops that were timed under it, from how many records lie in each part of an op.

Lin et al. (section 5 of `reference/lin.md`) take 2 us off for each event nested in an interval, and nothing below zero. Their overheads of
2021 were printed before that; the records in them are counted here on an execution graph of the same model:

    op | before: children up to the one that launches first | between: up to the one that launches last | after: the rest

A graph says which ops ran inside which, not which of them launched. Leaves launch, apart from those that only allocate or look at a tensor
differently; so does an op that is not such a one and in which nothing else launches. The record of a launch is in the launch's own seconds
(Lin's T4 is 10 - 2 - 4 us), so no interval holds it. Between launches that the graph does not know of (split products, copies of a bias)
there are no ops, hence no records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hybridperf.importers.execution_traces import execution_trace
from hybridperf.io import InputError
from hybridperf.traces.overheads import PROFILER_S
from hybridperf.traces.recorded_graph import RecordedGraph, RecordedNode

_MARKS = ("[pytorch|", "module::", "DLRM ", "autograd::engine::evaluate_function")  # around ops
_SILENT = re.compile(
    r"(aten::)?(empty.*|new_empty|resize_|as_strided|_?reshape.*|view|expand|t|transpose|detach_?|slice|select|narrow|unbind|"
    r"broadcast_tensors|to|contiguous|zeros|zeros_like|ones)|.*Backward|torch::autograd::AccumulateGrad|Optimizer\.zero_grad.*"
)
_PER_GAP = {"Optimizer.step#SGD.step": 1.0, "Optimizer.zero_grad#SGD.zero_grad": 2.0}  # add_; zero_ and fill_, of each parameter
_ALIASES = {  # names of 2021 by those of the graph
    "fbgemm::split_embedding_codegen_lookup_sgd_function": "LookupFunction",
    "torch::autograd::CppNode<SplitLookupFunction_sgd_Op>": "LookupFunctionBackward",
}


@dataclass(frozen=True)
class Records:
    """Nested records of an op, means over its calls."""

    before: float
    between: float  # of all its gaps together
    after: float
    inside: float  # all of them, of an op that launches nothing


def read_records(data: Path) -> dict[str, Records]:
    """By op, its name without PyTorch's number of the overload; `InputError` where the graph cannot be read."""
    path = Path(data) / "lin" / "execution_graphs" / "dlrm_default_1024.json"
    try:
        graph = execution_trace(json.loads(path.read_text()), str(path))
    except (OSError, ValueError) as error:
        raise InputError(f"expected {path} with a DLRM's execution graph, cannot read it ({error})") from error
    return records(graph)


def records(graph: RecordedGraph) -> dict[str, Records]:
    """Of each outermost op of a graph, marks looked through."""
    found: dict[str, list[Records]] = {}
    for node in graph.nodes:
        if not node.name.startswith(_MARKS) and all(above.name.startswith(_MARKS) for above in graph.around(node)):
            name = re.sub(r"\d+$", "", node.name)
            found.setdefault(_ALIASES.get(name, name), []).append(_of(graph, node))
    return {name: _mean(several) for name, several in found.items()}


def without_records_us(found: Mapping[str, Records], op: str, part: str, mean_us: float, gaps: float) -> float:
    """The mean of Lin's `t2`, `t3` or `t5`, less what its records cost; as it is for an op that the graph lacks.

    `gaps` between an op's launches; `t5` of none is the whole op.
    """
    one = found.get(op, Records(0.0, 0.0, 0.0, 0.0))
    between = _PER_GAP.get(op, one.between / gaps if gaps else one.inside)
    nested = {"t2": one.before, "t3": one.after, "t5": between}[part]
    return max(mean_us - nested * PROFILER_S * 1e6, 0.0)


def _of(graph: RecordedGraph, top: RecordedNode) -> Records:
    begun: list[bool] = []  # one for each record, in the order in which their launches come: whether it launches
    _walk(graph, top, begun, outermost=True)
    inside = len(begun)
    launches = [at for at, one in enumerate(begun) if one]
    if not launches:
        return Records(inside, 0.0, 0.0, inside)
    first, last = launches[0], launches[-1]
    return Records(first + 1.0, float(last - first), inside - last - 1.0, inside)


def _walk(graph: RecordedGraph, node: RecordedNode, begun: list[bool], outermost: bool = False) -> bool:
    """Add the records of a node, whose own launch comes after its children; whether it launches anything."""
    at = len(begun)
    below = [_walk(graph, child, begun) for child in graph.inside.get(node.id, ())]
    itself = not any(below) and not _SILENT.fullmatch(re.sub(r"\d+$", "", node.name))
    if not outermost:
        begun.insert(len(begun) if itself else at, itself)
    return itself or any(below)


def _mean(several: list[Records]) -> Records:
    n = len(several)
    return Records(*(sum(getattr(one, part) for one in several) / n for part in ("before", "between", "after", "inside")))
