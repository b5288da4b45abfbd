"""A saved program on variations of the platform: any of the model's knobs is a parameter, the step's seconds are the result, and, asked for
by `outputs` of `[target]`, what they consist of.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.batches import BatchPredictor, knob_names, step_seconds
from hybridperf.importers.jax_program import load_program
from hybridperf.io import InputError, unknown
from hybridperf.lower import lower
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.outputs import OUTPUTS, outputs_of
from hybridperf.prediction import check_backend
from hybridperf.step_table import step_table
from hybridperf.sweeps.platforms import with_knobs
from hybridperf.sweeps.target import Target, check_positive, place, register
from hybridperf.workload import KINDS, Workload, kind_of

_SMALLEST_BATCH = 64


@register("program")
class ProgramTarget(Target):
    """`predict_batch` by chunks."""

    keys = {"program": str, "model": str, "ignore": list, "outputs": list}  # noqa: RUF012  (a ClassVar of the interface)
    required = ("program", "model")

    def __init__(self, model: PerfModel, workload: Workload, content: str, outputs: Sequence[str] = ()):
        check_backend(model, workload)
        self._model, self._workload, self._content = model, workload, content
        self._outputs = ["time_s", *outputs] if outputs else None
        groups = [KINDS[kind_of(call)] for call in workload.calls]
        columns = outputs_of(lower(workload.graph), groups, self._outputs).columns if self._outputs else ("time_s",)
        self.results = dict.fromkeys(columns, float)

    @functools.cached_property
    def _predictor(self) -> BatchPredictor:
        return BatchPredictor(self._model, self._workload, self._outputs)  # compiles: not before the whole spec is known to be right

    @classmethod
    def read(cls, given: Mapping[str, Any], folder: Path, extremes: Mapping[str, np.ndarray]) -> ProgramTarget:
        del extremes  # the knobs are the model's, whatever their values
        path = Path(place(given["program"], folder))
        workload = load_program(path, ignore=given.get("ignore", []))
        model = model_or_datasheet(place(given["model"], folder))
        outputs = given.get("outputs", [])
        for name in outputs:
            if name not in OUTPUTS:
                raise unknown("output", str(name), OUTPUTS, f"[target] outputs takes {', '.join(OUTPUTS)}")
        return cls(model, workload, hashlib.sha256(path.read_bytes()).hexdigest()[:12], outputs)

    def known(self) -> set[str]:
        return set(knob_names())

    def check(self, extremes: Mapping[str, np.ndarray], given: set[str]) -> None:
        if not given & self.known():
            raise InputError("a sweep of a program needs a knob among its parameters, such as memory_bytes_per_s")
        for name in self.known() & set(extremes):
            check_positive(name, extremes[name])

    def evaluate(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        knobs = {name: np.asarray(columns[name], np.float64) for name in sorted(self.known() & set(columns))}
        rows = len(next(iter(knobs.values())))
        padding = batch_size(rows) - rows
        answers = self._predictor(**{name: np.pad(v, (0, padding), mode="edge") for name, v in knobs.items()})
        columns = answers if isinstance(answers, dict) else {"time_s": answers}
        return {name: values[:rows] for name, values in columns.items()}

    def traced(self, names: Collection[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        program, table = lower(self._workload.graph).program, step_table(self._model, self._workload.calls)
        platform, mine = self._model.platform(), sorted(self.known() & set(names))

        def results(values: Mapping[str, Any]) -> dict[str, Any]:
            return {"time_s": step_seconds(program, table, with_knobs(platform, {name: values[name] for name in mine}))}

        return results

    def fingerprint(self) -> str:
        return f"{self._model.fingerprint()}-{self._content}"


def batch_size(rows: int) -> int:
    """The next of four sizes in each octave: what constraints leave of chunks then meets few compiled functions."""
    step = max(_SMALLEST_BATCH, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step
