"""A lowered program as a list of nodes: calls entered, tuples taken apart, loops entered once.

A node is one instruction that does something; what it takes are results of other nodes, whichever
computation they stand in. A loop's body stands in the list once, with how often it runs; what goes
round in it is a node of its own (`carried`), so is what comes out (`carried_out`). What the loop
only looks at is the outer node itself. Of a conditional the costlier branch is taken, and a note
says so.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from hybridperf.io import InputError
from hybridperf.workloads.programs.jax.hlo import ENDLESS, Computation, Instruction, Module, Shape
from hybridperf.workloads.programs.jax.hlo_collectives import partitions
from hybridperf.workloads.programs.jax.hlo_cost import Costs
from hybridperf.workloads.programs.jax.lowered import Lines

CARRIED, CARRIED_OUT = "carried", "carried_out"
# a value between all devices and each of them, and how it lies on them
_TO_DEVICES, _FROM_DEVICES = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
_SHARD = "shard"
_ANNOTATIONS = frozenset({"Sharding", "xla.sdy.FuncResultSharding", "annotate_device_placement"})
_MANUAL = "manual_computation_body"


@dataclasses.dataclass(eq=False)
class Node:
    """One instruction, wherever it stands, that computes, moves or sends something."""

    instruction: Instruction
    taken: list[Value]
    times: float
    loop: int  # of the innermost loop it stands in; 0: none
    where: str  # "FILE line N" of the program; "" where nobody knows
    per_device: bool  # its shapes are those of one device of a mesh
    within: Computation
    result_of_loop: Value | None = None  # of what is carried: what the body makes of it

    @property
    def opcode(self) -> str:
        return self.instruction.opcode


class Value(NamedTuple):
    """One result of a node of the dataflow graph."""

    node: Node
    place: int = 0  # among several

    @property
    def shape(self) -> Shape:
        return self.node.instruction.shapes[self.place]


Values = Value | list[Value]  # a tuple's, in order


@dataclasses.dataclass
class Dataflow:
    """A compiled program as nodes and the values between them."""

    nodes: list[Node]
    parameters: list[Node]
    outputs: list[Value]
    loop_around: dict[int, int]  # of each loop, the one around it
    notes: list[str]
    unknown: dict[str, str]  # what nobody can follow, with its line
    devices: int  # that the program is divided among


def dataflow(
    module: Module, text: str, ignored: Collection[str] = (), divided: bool = False
) -> Dataflow:
    """The nodes of a program, each behind what it takes; `divided`: of one device already."""
    reader = _Reader(module, text, frozenset(ignored))
    parameters = [one for one in module.entry.instructions if one.opcode == "parameter"]
    parameters.sort(key=lambda one: int(one.literal))
    place = _Place(1.0, 0, "", divided)
    made = [reader.node(one, [], place, module.entry) for one in parameters]
    results = reader.read(module.entry, [Value(one) for one in made], place)
    outputs = results if isinstance(results, list) else [results]
    return Dataflow(
        _needed(reader.nodes, outputs), made, outputs, reader.loop_around, reader.notes,
        reader.unknown, max(partitions(text), math.prod(reader.axes.values())),
    )  # fmt: skip


def _axes(text: str) -> dict[str, int]:
    """Sizes of a program's mesh by axis; of several meshes, of all."""
    found: dict[str, int] = {}
    for mesh in re.findall(r"#sdy\.mesh<\[([^\]]*)\]", text.split("\n", 1)[0]):
        for name, size in re.findall(r"([\w.]+)\W*?=(\d+)", mesh):
            found[name] = max(found.get(name, 1), int(size))
    return found


def _needed(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[Node]:
    """Those that the outputs depend on, or that do something besides."""
    effects = [
        one for one in nodes if "custom_call_has_side_effect=true" in one.instruction.attributes
    ]
    wanted, ahead = set[Node](), [*(one.node for one in outputs), *effects]
    while ahead:
        node = ahead.pop()
        if node not in wanted:
            wanted.add(node)
            ahead += [one.node for one in node.taken]
            if node.result_of_loop is not None:
                ahead.append(node.result_of_loop.node)
    return [one for one in nodes if one in wanted]


class _Place(NamedTuple):
    """Where instructions stand."""

    times: float
    loop: int
    where: str  # of the call that leads there
    per_device: bool


class _Reader:
    """Follows a program from its entry."""

    def __init__(self, module: Module, text: str, ignored: frozenset[str]):
        self.module, self.lines, self.ignored = module, Lines(text), ignored
        self.costs, self.axes = Costs(module), _axes(text)
        self.nodes: list[Node] = []
        self.loop_around: dict[int, int] = {}
        self.notes: list[str] = []
        self.unknown: dict[str, str] = {}

    def node(
        self, instruction: Instruction, taken: list[Value], place: _Place, within: Computation
    ) -> Node:
        """A new node at the end of the list."""
        where = self.lines.of(instruction) or place.where
        made = Node(instruction, taken, place.times, place.loop, where, place.per_device, within)
        self.nodes.append(made)
        return made

    def read(self, computation: Computation, given: Sequence[Values], place: _Place) -> Values:
        """What a computation returns for its parameters."""
        known: dict[str, Values] = {}
        for one in computation.instructions:
            taken = [known[name] for name in one.operands]
            here = place._replace(where=self.lines.of(one) or place.where)
            known[one.name] = self._result(one, taken, given, here, computation)
        return known[computation.root.name]

    def _result(
        self, one: Instruction, taken: list[Values], given: Sequence[Values], place: _Place,
        within: Computation,
    ) -> Values:  # fmt: skip
        opcode = one.opcode
        if opcode == "parameter":
            return given[int(one.literal)]
        if opcode == "tuple":
            return [single(value) for value in taken]
        if opcode == "get-tuple-element":
            source, at = taken[0], int(one.word("index"))
            return source[at] if isinstance(source, list) else Value(source.node, at)
        if opcode == "opt-barrier":
            return taken[0]
        if opcode == "call":
            called = self.module.called(one, "to_apply")
            manual = place.per_device or _MANUAL in called.name
            return self.read(called, taken, place._replace(per_device=manual))
        if opcode == "while":
            return self._while(one, taken[0], place)
        if opcode == "conditional":
            return self._conditional(one, taken[1:], place)
        target = one.word("custom_call_target")
        if opcode == "custom-call" and target in _ANNOTATIONS | {_FROM_DEVICES}:
            return taken[0] if len(taken) == 1 else [single(value) for value in taken]
        if opcode == "custom-call" and target == _TO_DEVICES:
            return self._on_devices(one, [single(value) for value in taken], place, within)
        made = self.node(one, [single(value) for value in taken], place, within)
        if len(one.shapes) == 1:
            return Value(made)
        return [Value(made, at) for at in range(len(one.shapes))]

    def _on_devices(
        self, one: Instruction, taken: list[Value], place: _Place, within: Computation
    ) -> Values:
        """Each device's part of some values; `InputError` where a compiler divides them further."""
        axes = re.findall(r"manual_axes\{([^}]*)\}", one.attributes)
        manual = set(re.findall(r"[\w.]+", axes[0])) if axes else set[str]()
        left = [name for name, size in self.axes.items() if name not in manual and size > 1]
        if left:
            raise InputError(
                f"{place.where}: jax.shard_map leaves the axis {left[0]} of its mesh to the"
                " compiler, and how that divides it is known only when it has compiled; name all"
                " axes"
            )
        parts = [
            Value(
                self.node(
                    dataclasses.replace(one, opcode=_SHARD, shapes=(shape,)), [value],
                    place._replace(per_device=True), within,
                )
            )
            for value, shape in zip(taken, one.shapes, strict=True)
        ]  # fmt: skip
        return parts if len(parts) > 1 else parts[0]

    def _while(self, one: Instruction, taken: Values, place: _Place) -> Values:
        body, condition = (self.module.called(one, name) for name in ("body", "condition"))
        start = taken if isinstance(taken, list) else [taken]
        loop = len(self.loop_around) + 1
        self.loop_around[loop] = place.loop
        kept = _kept(body) if isinstance(taken, list) else set[int]()
        inside = place._replace(loop=loop)
        round_: list[Value] = []
        for at, value in enumerate(start):
            if at in kept:
                round_.append(value)
                continue
            made = dataclasses.replace(one, opcode=CARRIED, shapes=(value.shape,))
            round_.append(Value(self.node(made, [value], inside, body)))
        given: Values = round_ if isinstance(taken, list) else round_[0]
        before = len(self.nodes)
        asked = single(self.read(condition, [given], inside))
        results = self.read(body, [given], inside)
        made_round = results if isinstance(results, list) else [results]
        for value, result in zip(round_, made_round, strict=True):
            if value.node.opcode == CARRIED and value.node.loop == loop:
                value.node.result_of_loop = result
        trips = _trips(asked)
        if trips is None:
            if ENDLESS in self.ignored:
                self.notes.append(f"ignored {ENDLESS} ({place.where})")
                return taken
            self.unknown.setdefault(ENDLESS, place.where)
            trips = 1
        if not trips:
            return taken
        for node in self.nodes[before:]:
            node.times *= trips
        out: list[Value] = []
        for value, result in zip(round_, made_round, strict=True):
            if value.node.opcode != CARRIED or value.node.loop != loop:
                out.append(value)
                continue
            made = dataclasses.replace(one, opcode=CARRIED_OUT, shapes=(value.shape,))
            out.append(Value(self.node(made, [result, value], place, body)))
        return out if isinstance(taken, list) else out[0]

    def _conditional(self, one: Instruction, taken: list[Values], place: _Place) -> Values:
        before, branches = len(self.nodes), list[tuple[float, str, list[Node], Values]]()
        for computation, value in zip(self.module.branches(one), taken, strict=True):
            result = self.read(computation, [value], place)
            nodes = self.nodes[before:]
            del self.nodes[before:]
            branches.append((sum(map(self._cost, nodes)), computation.name, nodes, result))
        _, name, nodes, result = max(branches, key=lambda branch: branch[0])
        self.nodes += nodes
        self.notes.append(
            f"conditional ({place.where}): priced its costlier branch {name}, by counts of flops"
            " and bytes"
        )
        return result

    def _cost(self, node: Node) -> float:
        count = self.costs.instruction(node.instruction, node.within)
        return node.times * (count.flops + count.transcendentals + node.instruction.bytes)


def single(value: Values) -> Value:
    """The value of a result that is no tuple."""
    if isinstance(value, list):
        raise InputError("the XLA module has a tuple in a tuple; write the program without it")
    return value


def _kept(body: Computation) -> set[int]:
    """Places of a loop's state that its body hands on as they are."""
    root = body.root
    if root.opcode != "tuple":
        return set()
    inside = body.by_name
    found = set()
    for at, name in enumerate(root.operands):
        source = inside[name]
        handed = source.opcode == "get-tuple-element" and int(source.word("index")) == at
        if handed and inside[source.operands[0]].opcode == "parameter":
            found.add(at)
    return found


def _trips(asked: Value) -> int | None:
    """How often a loop runs whose condition compares a counter with a number; None: unknown."""
    node = asked.node
    if node.opcode != "compare":
        return None
    counter, limit = node.taken
    direction = node.instruction.word("direction")
    if _counter(counter) is None:
        counter, limit = limit, counter
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    carried, last = _counter(counter), _number(limit)
    if carried is None or last is None:
        return None
    first, step = _number(carried.taken[0]), _step(carried)
    if first is None or not step:
        return None
    distance = {
        "LT": last - first, "LE": last - first + 1, "GT": first - last, "GE": first - last + 1,
        "NE": (last - first) * (1 if step > 0 else -1),
    }.get(direction)  # fmt: skip
    if distance is None or ((step > 0) != (direction in ("LT", "LE", "NE")) and direction != "NE"):
        return None
    return max(math.ceil(distance / abs(step)), 0)


def _plain(value: Value) -> Value:
    """What a value is made of by changes of shape or format alone."""
    while value.node.opcode in ("convert", "copy", "reshape", "broadcast", CARRIED_OUT):
        value = value.node.taken[0]
    return value


def _counter(value: Value) -> Node | None:
    """What is carried round a loop, if it is that."""
    node = _plain(value).node
    return node if node.opcode == CARRIED else None


def _step(carried: Node) -> int | None:
    """What a round adds to a counter."""
    result = carried.result_of_loop
    if result is None:
        return None
    node = _plain(result).node
    if node.opcode not in ("add", "subtract"):
        return None
    left, right = node.taken
    if _counter(left) is not carried:
        left, right = right, left
    if _counter(left) is not carried:
        return None
    step = _number(right)
    return None if step is None else step if node.opcode == "add" else -step


def _number(value: Value) -> int | None:
    """A whole number that the program knows."""
    node = _plain(value).node
    if node.opcode == "constant":
        found = re.fullmatch(r"\{*(-?\d+)\}*", node.instruction.literal.replace(" ", ""))
        return int(found.group(1)) if found else None
    parts = [_number(one) for one in node.taken] if node.opcode in _ARITHMETIC else []
    if len(parts) == 2 and parts[0] is not None and parts[1] is not None:
        return _ARITHMETIC[node.opcode](parts[0], parts[1])
    return None


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "minimum": min, "maximum": max,
}  # fmt: skip
