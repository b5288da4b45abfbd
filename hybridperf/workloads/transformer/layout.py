"""How a training step is spread over ranks: degrees of parallelism, micro-batches, what is sharded,
kept or computed again.

    ranks = tp x cp x dp x pp                       expert parallelism regroups them, it adds none
    global batch = micro_batch x accumulation x dp  `accumulation` is the number m of micro-batches
                                                    a pipeline sees per step

`order` tells which dimension varies fastest over neighbouring ranks, hence which groups lie inside
a node (`groups.py`). Many layouts at once, and what is legal: `columns.py`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hybridperf.io import InputError
from hybridperf.workloads.schedules.names import KINDS
from hybridperf.workloads.schedules.order import ScheduleKind
from hybridperf.workloads.transformer import groups
from hybridperf.workloads.transformer.columns import RECOMPUTE, RULES, SCHEDULES, Layouts, remarks
from hybridperf.workloads.transformer.fields import LARGEST, check_flag, check_whole
from hybridperf.workloads.transformer.shape import TransformerShape

__all__ = ["ORDER", "Layout", "Layouts", "shares_sequence"]

Order = tuple[str, ...]
ORDER: Order = ("tp", "cp", "ep", "dp", "pp")
_DEGREES = ("tp", "pp", "vp", "dp", "cp", "ep", "micro_batch", "accumulation")
_OF_DEGREES = operator.attrgetter(*_DEGREES)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a training step is spread over ranks: degrees of parallelism, micro-batches, sharding.

    There are tp x cp x dp x pp ranks; expert parallelism regroups them.
    """

    tp: int = 1  # tensor parallelism: ranks that share each layer's matrices
    # tp ranks also share what lies between the matrices; None: as the framework that runs it does,
    # no where none is told
    sequence_parallel: bool | None = None
    pp: int = 1  # pipeline parallelism: stages
    vp: int = 1  # chunks of layers per stage, interleaved; 2 where a schedule folds them like a V
    dp: int = 1  # data parallelism: replicas
    cp: int = 1  # context parallelism: ranks that share each sequence
    ep: int = 1  # expert parallelism: ranks that share the experts
    expert_tp: int | None = None  # ranks that share each expert's matrices; None: tp
    # ZeRO stage, sharded over data ranks: 1 optimizer, 2 gradients too, 3 weights too (FSDP)
    zero: Literal[0, 1, 2, 3] = 0
    shard_ranks: int | None = None  # data ranks that share each shard set (HSDP); None: all
    micro_batch: int = 1  # samples that go through a layer together
    accumulation: int = 1  # micro-batches per replica and step
    # what is computed again in the backward pass: nothing, attention, or all layers
    recompute: Literal["none", "selective", "full"] = "none"
    schedule: str = "1f1b"  # of the pipeline: "1f1b", "gpipe", "chimera", ...
    order: Order = ORDER  # dimensions of neighbouring ranks, fastest-varying first

    @property
    def ranks(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulation * self.dp

    @property
    def data_ranks(self) -> int:
        """Ranks that hold the same weights: replicas, and the parts of a sequence."""
        return self.dp * self.cp

    @property
    def shards_each_pass(self) -> bool:
        """Whether sharded weights and their gradients are exchanged in every pass: ZeRO-3, and
        ZeRO-2 unless a pipeline keeps both until the last micro-batch.
        """
        return self.zero == 3 or (self.zero == 2 and self.pp == 1)

    @property
    def kind(self) -> ScheduleKind:
        """What is known of its schedule."""
        return KINDS[self.schedule]

    def __hash__(self) -> int:
        """Of what layouts differ by most: thousands a second are looked up."""
        degrees = (self.tp, self.pp, self.dp, self.cp, self.ep, self.vp)
        batch = (self.micro_batch, self.accumulation, self.zero, self.recompute, self.schedule)
        return hash((degrees, batch))

    @property
    def columns(self) -> Layouts:
        """The same in numbers: words as codes, None as the number it stands for."""
        return Layouts(
            tp=self.tp, sequence_parallel=int(bool(self.sequence_parallel)), pp=self.pp, vp=self.vp,
            dp=self.dp, cp=self.cp, ep=self.ep, expert_tp=self.expert_tp or self.tp,
            zero=self.zero, shard_ranks=self.shard_ranks or self.data_ranks,
            micro_batch=self.micro_batch, accumulation=self.accumulation,
            recompute=_code("recompute", self.recompute, RECOMPUTE),
            schedule=_code("schedule", self.schedule, SCHEDULES),
        )  # fmt: skip

    def check(
        self, shape: TransformerShape, gpus: int | None = None, gpus_per_node: int | None = None,
        global_batch: int | None = None, strict: bool = True,
    ) -> list[str]:  # fmt: skip
        """Check the layout against a model and a cluster.

        Args:
            shape: the model.
            gpus: number of ranks that the layout must have; None: any.
            gpus_per_node: neighbouring ranks on one node; None: not checked.
            global_batch: samples that a step must have; None: any.
            strict: False: rules that some frameworks break (heads not divisible by tp) become
                remarks.

        Returns:
            Remarks on what is unusual, one sentence each.

        Raises:
            InputError: when the layout breaks a rule, which the message names.
        """
        if not isinstance(self.order, Sequence) or sorted(map(str, self.order)) != sorted(ORDER):
            listed = isinstance(self.order, tuple | list)
            got = ", ".join(map(str, self.order)) if listed else repr(self.order)
            raise InputError(f"order must name each of {', '.join(ORDER)} once, got {got}")
        self.check_numbers()
        self.check_cluster(gpus, gpus_per_node, global_batch)
        columns = self.columns
        broken = [rule for rule in RULES if not bool(rule.holds(shape, columns))]
        return [*remarks(broken, shape, columns, strict), *self.across_nodes(gpus_per_node)]

    def across_nodes(self, gpus_per_node: int | None) -> list[str]:
        """A remark where tensor-parallel groups lie on several nodes."""
        if gpus_per_node is None or gpus_per_node % self.tp == 0:
            return []
        found = self.group("tp", gpus_per_node)
        if found.nodes == 1:
            return []
        return [f"tensor-parallel groups of {found.ranks} ranks lie on {found.nodes} nodes"]

    def check_numbers(self) -> None:
        """`InputError` for fields that are no layout of any model."""
        degrees = _OF_DEGREES(self)
        # thousands of rows a second come this way
        if set(map(type, degrees)) != {int} or min(degrees) < 1 or max(degrees) > LARGEST:
            for name, value in zip(_DEGREES, degrees, strict=True):
                check_whole(name, value)
        for name in ("expert_tp", "shard_ranks"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        if max(self.ranks, self.global_batch) > LARGEST:
            check_whole("tp x cp x dp x pp", self.ranks)
            check_whole("micro_batch x accumulation x dp", self.global_batch)
        if self.sequence_parallel is not None and type(self.sequence_parallel) is not bool:
            check_flag("sequence_parallel", self.sequence_parallel)
        _code("recompute", self.recompute, RECOMPUTE)
        _code("schedule", self.schedule, SCHEDULES)
        if isinstance(self.zero, bool | float) or self.zero not in (0, 1, 2, 3):
            raise InputError(f"zero must be 0, 1, 2 or 3, got {self.zero!r}")
        if self.shard_ranks is not None and not self.zero:
            raise InputError(
                "shard_ranks is over how many ranks zero shards; with zero 0 it must be None, got"
                f" {self.shard_ranks}"
            )
        if self.sequence_parallel and self.tp == 1:
            raise InputError(
                "sequence_parallel shares what lies between the matrices over tp ranks; it needs tp"
                " of 2 or more, got tp 1"
            )

    def group(self, dim: str, gpus_per_node: int) -> groups.Span:
        """The ranks and nodes of a dimension's collectives; dimensions are `groups.DIMENSIONS`."""
        return groups.span(self, dim, gpus_per_node, self.order)

    def replace(self, **changes: Any) -> Layout:
        """The same layout with other fields."""
        return dataclasses.replace(self, **changes)

    def check_cluster(
        self, gpus: int | None, gpus_per_node: int | None, global_batch: int | None = None
    ) -> None:
        """`InputError` for another number of ranks or samples, or nodes that are not whole."""
        if gpus is not None and self.ranks != gpus:
            product = f"tp {self.tp} x cp {self.cp} x dp {self.dp} x pp {self.pp} = {self.ranks}"
            raise InputError(
                f"tp x cp x dp x pp must be the number of GPUs, got {product} for {gpus} GPUs"
            )
        if gpus is not None and gpus_per_node is not None and gpus % min(gpus_per_node, gpus):
            below = gpus // gpus_per_node * gpus_per_node
            raise InputError(
                f"expected whole nodes of {gpus_per_node} GPUs, got {gpus} GPUs; {below} or"
                f" {below + gpus_per_node} would be whole"
            )
        if global_batch is not None and self.global_batch != global_batch:
            product = (
                f"micro_batch {self.micro_batch} x accumulation {self.accumulation} x dp {self.dp}"
            )
            raise InputError(
                f"micro_batch x accumulation x dp must be the global batch, got {product} ="
                f" {self.global_batch} for a global batch of {global_batch}"
            )


def _code(what: str, word: str, words: Sequence[str]) -> int:
    if word not in words:
        raise InputError(f"{what} must be one of {', '.join(words)}, got {word!r}")
    return words.index(word)


def shares_sequence(
    habits: Mapping[str, Any], shape: TransformerShape, tp: int, cp: int, needed: bool = False
) -> bool:
    """Whether tensor-parallel ranks also share what lies between the matrices, where nobody says.

    Args:
        habits: of the framework (`defaults`).
        shape: the model.
        tp: ranks.
        cp: ranks that share each sequence.
        needed: whether the layout cannot run otherwise.
    """
    divides = shape.seq % (tp * cp) == 0 or habits.get("ragged_heads", False)
    wanted = needed or habits["sequence_parallel"]
    return bool(wanted) and tp > 1 and divides and "joint" not in shape.mixers
