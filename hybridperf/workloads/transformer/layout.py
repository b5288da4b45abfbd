"""How a training step is spread over ranks: degrees of parallelism, micro-batches, what is sharded,
kept or computed again.

    ranks = tp x cp x dp x pp                       expert parallelism regroups them, it adds none
    global batch = micro_batch x accumulation x dp  `accumulation` is the number m of micro-batches
                                                    a pipeline sees per step

`order` says which dimension varies fastest over neighbouring ranks, hence which groups lie inside a
node (`groups.py`). What is legal: `rules.py`. `Layout` is one layout; `Layouts` is many, in columns
of one length, for formulas that price a search space at once (NumPy, or JAX: it is a pytree).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from hybridperf.io import InputError
from hybridperf.workloads.transformer import rules
from hybridperf.workloads.transformer.codes import RECOMPUTE, SCHEDULES
from hybridperf.workloads.transformer.groups import Span, span
from hybridperf.workloads.transformer.shape import TransformerShape

Order = tuple[str, ...]
ORDER: Order = ("tp", "cp", "ep", "dp", "pp")


class Layouts(NamedTuple):
    """Columns of layouts, [N] each or of shapes that broadcast; words are codes (`codes.py`)."""

    tp: Any
    sequence_parallel: Any  # 0 or 1
    pp: Any
    vp: Any
    dp: Any
    cp: Any
    ep: Any
    expert_tp: Any
    zero: Any
    shard_ranks: Any
    micro_batch: Any
    accumulation: Any
    recompute: Any  # index into RECOMPUTE
    schedule: Any  # index into SCHEDULES

    @property
    def ranks(self) -> Any:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def data_ranks(self) -> Any:
        """Ranks that hold the same weights: replicas, and the parts of a sequence."""
        return self.dp * self.cp

    @property
    def expert_data_ranks(self) -> Any:
        """Ranks that hold the same experts."""
        return self.tp * self.cp * self.dp / (self.ep * self.expert_tp)

    @property
    def global_batch(self) -> Any:
        return self.micro_batch * self.accumulation * self.dp

    @staticmethod
    def of(layouts: Sequence[Layout]) -> Layouts:
        """Columns [N] of N layouts."""
        return Layouts(
            *(
                np.array(column, np.int64)
                for column in zip(*(layout.columns for layout in layouts), strict=True)
            )
        )


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way to spread a step over ranks."""

    tp: int = 1  # ranks that share each layer's matrices
    sequence_parallel: bool = False  # they also share what lies between the matrices
    pp: int = 1  # stages of the pipeline
    vp: int = 1  # chunks of layers per stage, interleaved
    dp: int = 1  # replicas
    cp: int = 1  # ranks that share each sequence
    ep: int = 1  # ranks that share the experts
    expert_tp: int | None = None  # ranks that share each expert's matrices; None: tp
    # sharded over data ranks: 1 optimizer, 2 gradients too, 3 weights too (FSDP)
    zero: Literal[0, 1, 2, 3] = 0
    shard_ranks: int | None = None  # over that many of them (HSDP); None: all
    micro_batch: int = 1  # samples that go through a layer together
    accumulation: int = 1  # micro-batches per replica and step
    recompute: Literal["none", "selective", "full"] = "none"
    schedule: Literal["1f1b", "gpipe", "interleaved", "chimera", "zero_bubble"] = "1f1b"
    order: Order = ORDER  # fastest-varying first

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
    def columns(self) -> Layouts:
        """The same in numbers: words as codes, None as the number it stands for."""
        return Layouts(
            self.tp, int(self.sequence_parallel), self.pp, self.vp, self.dp, self.cp, self.ep,
            self.expert_tp or self.tp, self.zero, self.shard_ranks or self.data_ranks,
            self.micro_batch, self.accumulation, _code("recompute", self.recompute, RECOMPUTE),
            _code("schedule", self.schedule, SCHEDULES),
        )  # fmt: skip

    def check(
        self,
        shape: TransformerShape,
        gpus: int | None = None,
        gpus_per_node: int | None = None,
        global_batch: int | None = None,
        strict: bool = True,
    ) -> list[str]:
        """Sentences on what is unusual; `InputError`, one sentence that names the rule, for what is
        impossible.

        `strict=False` makes notes of the rules that some frameworks break (heads not divisible by
        tp).
        """
        if not isinstance(self.order, Sequence) or sorted(map(str, self.order)) != sorted(ORDER):
            got = (
                ", ".join(map(str, self.order))
                if isinstance(self.order, tuple | list)
                else repr(self.order)
            )
            raise InputError(f"order must name each of {', '.join(ORDER)} once, got {got}")
        return rules.check(shape, self, gpus, gpus_per_node, global_batch, strict)

    def group(self, dim: str, gpus_per_node: int) -> Span:
        """What a collective of a dimension spans: tp, cp, pp, dp, ep; also `data` (dp and cp),
        `expert_data`, `shard`, `replica`.
        """
        return span(self, dim, gpus_per_node, self.order)

    def replace(self, **changes: Any) -> Layout:
        return dataclasses.replace(self, **changes)


def _code(what: str, word: str, words: Sequence[str]) -> int:
    if word not in words:
        raise InputError(f"{what} must be one of {', '.join(words)}, got {word!r}")
    return words.index(word)
