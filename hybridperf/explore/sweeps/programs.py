"""A saved program on variations of the platform, whose knobs are the parameters of the sweep.

The step's seconds are the result and, asked for by `outputs` of `[target]`, what they consist of.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hybridperf.engine.batches import BatchPredictor, knob_names
from hybridperf.engine.lower import lower
from hybridperf.engine.outputs import OUTPUTS, outputs_of
from hybridperf.engine.prediction import Prediction, check_backend, predict
from hybridperf.engine.step_function import by_names, step_function
from hybridperf.engine.workload import Workload
from hybridperf.explore.sweeps import trust
from hybridperf.explore.sweeps.document import check_keys
from hybridperf.explore.sweeps.target import Columns, WrittenTarget, check_positive, place, register
from hybridperf.explore.sweeps.written import Part
from hybridperf.io import InputError
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.model.calls import kind_of, row_kinds
from hybridperf.workloads.programs.jax.program import load_program

_SMALLEST_BATCH = 64


class ProgramGiven(Part):
    """A program that `hybridperf predict` wrote: parameters are knobs of the machine."""

    kind: Literal["program"]
    program: str
    model: Annotated[str, Field(description="folder or name of a model, or of a datasheet")]
    ignore: Annotated[list[str], Field(description="instructions or ops left out")] = []  # noqa: RUF012
    outputs: Annotated[list[str], Field(description="columns besides time_s")] = []  # noqa: RUF012


@register("program")
class ProgramTarget(WrittenTarget):
    """`predict_batch` by chunks."""

    Given = ProgramGiven

    def __init__(
        self, model: PerfModel, workload: Workload, content: str, outputs: Sequence[str] = ()
    ):
        check_backend(model, workload)
        self._model, self._workload, self._content = model, workload, content
        self.models = (model,)
        self._outputs = ["time_s", *outputs] if outputs else None
        columns: Sequence[str] = ("time_s",)
        if self._outputs:
            groups = [row_kinds()[kind_of(call)] for call in workload.calls]
            columns = outputs_of(lower(workload.graph), groups, self._outputs).columns
        self.results = {**dict.fromkeys(columns, float), "in_range": bool, "note": str}

    @functools.cached_property
    def _predictor(self) -> BatchPredictor:
        # compiles: not before the whole spec is known to be right
        return BatchPredictor(self._model, self._workload, self._outputs)

    @classmethod
    def read(cls, given: Any, folder: Path, extremes: Columns) -> ProgramTarget:
        del extremes  # the knobs are the model's, whatever their values
        path = Path(place(given.program, folder))
        workload = load_program(path, ignore=given.ignore)
        model = model_or_datasheet(place(given.model, folder))
        outputs = given.outputs
        takes = f"[target] outputs takes {', '.join(OUTPUTS)}"
        check_keys(map(str, outputs), OUTPUTS, "output", takes)
        return cls(model, workload, hashlib.sha256(path.read_bytes()).hexdigest()[:12], outputs)

    def known(self) -> set[str]:
        return set(knob_names())

    def check(self, extremes: Columns, given: set[str]) -> None:
        if not given & self.known():
            needs = "needs a knob among its parameters, such as memory_bytes_per_s"
            raise InputError(f"a sweep of a program {needs}")
        for name in self.known() & set(extremes):
            check_positive(name, extremes[name])

    def evaluate(self, columns: Columns) -> dict[str, np.ndarray]:
        knobs = self.taken(columns)
        rows = len(next(iter(knobs.values())))
        padding = (0, batch_size(rows) - rows)
        answers = self._predictor(**{n: np.pad(v, padding, mode="edge") for n, v in knobs.items()})
        columns = answers if isinstance(answers, dict) else {"time_s": answers}
        in_range, note, _ = self._coverage(knobs, rows)
        results = {name: values[:rows] for name, values in columns.items()}
        return {**results, "in_range": in_range, "note": note}

    def trust(self, columns: Columns) -> dict[str, np.ndarray]:
        rows = len(next(iter(columns.values())))
        in_range, note, same = self._coverage(columns, rows)
        calibrated, out = self._as_calibrated, {"in_range": in_range, "note": note}
        for name, value in (("low_s", calibrated.low_s), ("high_s", calibrated.high_s)):
            out[name] = np.where(same, np.nan if value is None else value, np.nan)
        return out

    @functools.cached_property
    def _as_calibrated(self) -> Prediction:
        return predict(self._model, self._workload)

    def _coverage(self, columns: Columns, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whether each point lies within what was measured, notes, and whether its machine does."""
        same, changed = trust.of_platform(self._model, None, columns, rows)
        always = np.full(rows, "; ".join(self._as_calibrated.notes), object)
        return same & self._as_calibrated.in_range, trust.joined([changed, always], rows), same

    def traced(self, names: Collection[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        step = step_function(self._model, self._workload)
        mine = sorted(self.known() & set(names))

        def results(values: Mapping[str, Any]) -> dict[str, Any]:
            knobs = by_names(step.knobs, {name: values[name] for name in mine})
            return {"time_s": step(knobs)}

        return results

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}-{self._content}"


def batch_size(rows: int) -> int:
    """The next of four sizes an octave: chunks of any length then meet few compiled functions."""
    step = max(_SMALLEST_BATCH, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step
