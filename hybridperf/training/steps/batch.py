"""Rows of training steps, understood and priced: what fitting and predicting work on.

Axes: R rows of a table, N of them that can be predicted, X inputs of a correction.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.engine.step_features import StepFeatures
from hybridperf.hardware import DeviceSpec
from hybridperf.hardware.machines import Machine
from hybridperf.io import InputError
from hybridperf.model.adapted_steps import Group
from hybridperf.model.machine import machine_model
from hybridperf.training.steps.cells import Prices
from hybridperf.training.steps.features import features
from hybridperf.training.steps.rows import ResolvedRow, ResolvedRows, resolve, with_recompute
from hybridperf.workloads.transformer.config import Configs, TransformerConfig

_MOST_CALLS = 200_000  # of one machine, about half a gigabyte with all that hangs on them


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of a table. `rows` are those that can be predicted, `at` their places in the table."""

    resolved: ResolvedRows
    at: np.ndarray  # int [N]
    rows: tuple[ResolvedRow, ...]  # [N]
    features: StepFeatures | None  # [N]; None without rows
    problems: Mapping[int, str]  # by place: why a row that was understood cannot be priced

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def configs(self) -> list[TransformerConfig]:
        """Of the rows that can be predicted [N]."""
        return [row.config for row in self.rows if row.config is not None]

    @functools.cached_property
    def cells(self) -> np.ndarray:
        """Inputs of a correction [N, X]: log2 of hidden, tp, tokens of a micro-batch, sequence."""
        one, x = self.columns, self.columns.layouts
        hidden, seq = (one.each(operator.attrgetter(f"shape.{name}")) for name in ("hidden", "seq"))
        return np.log2(np.stack([hidden, x.tp, x.micro_batch * seq / x.cp, seq], 1))

    @functools.cached_property
    def columns(self) -> Configs:
        """The same configs in columns."""
        return Configs.of_rows(self.configs)

    @functools.cached_property
    def devices(self) -> list[DeviceSpec]:
        """Accelerators of the rows that can be predicted [N]."""
        return [row.machine.spec for row in self.rows if row.machine is not None]

    @functools.cached_property
    def groups(self) -> list[Group]:
        """What knobs are shared by [N]: a framework on one architecture of devices."""
        pairs = zip(self.rows, self.devices, strict=True)
        return [Group.of(row.framework, device.arch) for row, device in pairs]


@functools.cache
def shared_price_cache() -> PriceCache:
    """The cache that a process shares."""
    return PriceCache()


class PriceCache:
    """Prices, each computed once."""

    def __init__(self) -> None:
        self._prices: dict[tuple[str, str, str], Prices] = {}

    def prices(self, machine: Machine) -> Prices:
        """Prices of calls on one machine; dropped once they are very many."""
        held = self._prices.get(machine.key)
        if held is None or len(held.calls) > _MOST_CALLS:
            self._prices[machine.key] = Prices(machine_model(machine))
        return self._prices[machine.key]

    def understand(
        self, frame: pd.DataFrame, device: str | None = None, system: str | None = None
    ) -> Batch:
        """The rows of a table; `device`, `system` as in `resolve`."""
        return self.priced(resolve(frame, device, system))

    def priced(self, resolved: ResolvedRows) -> Batch:
        """Understood rows with their features."""
        by_machine: dict[tuple[str, str, str], list[int]] = {}
        for at, row in enumerate(resolved):
            question = row.question
            if question.config is not None and question.machine is not None:
                by_machine.setdefault(question.machine.key, []).append(at)
        parts: list[tuple[StepFeatures, list[int]]] = []
        problems: dict[int, str] = {}
        for places in by_machine.values():
            good, failed = self._features(resolved.rows, places)
            parts += good
            problems |= failed
        priced = np.array(sorted(at for _, places in parts for at in places), int)
        rows, whole = tuple(resolved.rows[place] for place in priced), None
        if parts:
            placed = [(part, np.searchsorted(priced, places)) for part, places in parts]
            whole = StepFeatures.joined(placed, len(priced))
        return Batch(resolved, priced, rows, whole, problems)

    def _features(
        self, rows: Sequence[ResolvedRow], places: list[int]
    ) -> tuple[list[tuple[StepFeatures, list[int]]], dict[int, str]]:
        """Features of rows of one machine; where one cannot be priced, halves are tried apart."""
        machine = rows[places[0]].machine
        configs = [config for at in places if (config := rows[at].config) is not None]
        assert machine is not None
        try:
            return [(features(configs, self.prices(machine)), places)], {}
        except InputError as error:
            if len(places) == 1:
                return [], {places[0]: str(error)}
            half = len(places) // 2
            first, failed = self._features(rows, places[:half])
            second, also = self._features(rows, places[half:])
            return first + second, failed | also


def relabelled(row: ResolvedRow, recompute: Mapping[str, str]) -> ResolvedRow:
    """The row with another recompute mode, if its source is listed."""
    if row.config is None or row.source not in recompute:
        return row
    config = with_recompute(row.config, recompute[row.source])
    return row._replace(question=dataclasses.replace(row.question, config=config))
