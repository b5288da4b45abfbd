"""One row of training steps as the graph of its step; what would change on another machine.

`hybridperf steps` answers a row by the closed form. The graph of the same step, with the same
prices, has what happens in it: ops on the streams of each rank, the critical path, the elasticity
of each number of the machine.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from hybridperf.engine.batches import BatchPredictor, knob_names
from hybridperf.engine.economy import economy
from hybridperf.engine.elasticities import elasticities
from hybridperf.engine.prediction import Prediction, predict
from hybridperf.engine.step_features import StepParts
from hybridperf.fields.columns import row_of
from hybridperf.io import InputError, unknown
from hybridperf.training.steps.batch import shared_price_cache
from hybridperf.training.steps.memory_fit import memory_knobs
from hybridperf.workloads.memory import memory_of
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.step import transformer

_KEPT = 4  # steps whose graphs stay in memory
_LEAST = 1e-4  # elasticity of a knob that can be varied


@functools.lru_cache(_KEPT)
def step_graph(*words: str) -> StepGraph:
    """The step that a row in NAME=VALUE describes; the last few are kept.

    Raises:
        InputError: the row cannot be predicted.
    """
    batch = shared_price_cache().understand(row_of(words, "steps"))
    if not len(batch):
        row = batch.resolved.rows[0]
        raise InputError((batch.problems.get(0) or row.refused).removeprefix("row 1: "))
    row, machine = batch.rows[0], batch.rows[0].machine
    assert row.config is not None
    assert machine is not None
    model = shared_price_cache().prices(machine).model
    workload = transformer(row.config)
    assert workload.in_step is not None
    foreign = row.question.foreign and bool(model.steps_note(row.framework))
    in_step = dataclasses.replace(workload.in_step, foreign=foreign)
    workload = dataclasses.replace(workload, in_step=in_step)
    return StepGraph(row.config, predict(model, workload), row.note)


@dataclasses.dataclass(frozen=True, eq=False)
class StepGraph:
    """A row's step: how it is run, its prediction by its graph, and what was assumed."""

    config: TransformerConfig
    prediction: Prediction
    note: str

    @functools.cached_property
    def elasticities(self) -> pd.DataFrame:
        """As `hp.elasticities`, with `varied`: whether `what_if` takes the knob."""
        found = elasticities(self.prediction)
        known = found["knob"].isin(knob_names()) & (found["value"] > 0)
        return found.assign(varied=known & (found["elasticity"].abs() >= _LEAST))

    def memory(self) -> pd.DataFrame:
        """Bytes on a rank of each stage: columns of `hp.MemoryUse`."""
        config = self.config
        used = memory_of(config, config.layout, memory_knobs(config.framework))
        return pd.DataFrame(used._asdict(), index=range(config.layout.pp))

    def money(self) -> dict[str, Any]:
        """What the step costs: `usd`, `usd_per_million_tokens`, `usd_per_hour` of one device, as
        the shipped prices have it, and their `note`; None each where no rent is known.
        """
        layout, device = self.config.layout, self.prediction.model.device
        rates = economy(device)
        if rates.usd_per_hour is None:
            found = dict.fromkeys(("usd", "usd_per_million_tokens", "usd_per_hour"))
            return {**found, "note": rates.unknown}
        usd = float(rates.usd(layout.ranks, StepParts.busy(self.prediction.time_s)))
        millions = layout.global_batch * self.config.shape.seq / 1e6
        return {
            "usd": usd, "usd_per_million_tokens": usd / millions,
            "usd_per_hour": rates.usd_per_hour, "note": rates.notes[0],
        }  # fmt: skip

    def what_if(self, times: Mapping[str, float]) -> float:
        """Seconds of the step where some knobs are so many times what they are.

        Raises:
            InputError: the step does not depend on a knob, or a factor is not above 0.
        """
        known, predictor = self._predictor
        for name, factor in times.items():
            if name not in known:
                raise unknown("knob", name, known, f"this step depends on {', '.join(known)}")
            if not 0 < factor < float("inf"):
                raise InputError(f"expected a factor above 0 for {name}, got {factor:g}; mend it")
        values = {name: value * times.get(name, 1.0) for name, value in known.items()}
        return float(predictor(**values)[0])

    @functools.cached_property
    def _predictor(self) -> tuple[dict[str, float], BatchPredictor]:
        """Knobs with their values, all of which vary, so that one function is compiled."""
        frame = self.elasticities[self.elasticities["varied"]]
        known = dict(zip(frame["knob"], frame["value"].astype(float), strict=True))
        return known, BatchPredictor(self.prediction.model, self.prediction.workload)
