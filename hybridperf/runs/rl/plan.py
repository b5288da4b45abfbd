"""How a model should be trained by reinforcement learning on some GPUs: trainer and engines in
turns on all of them or side by side, how many of each, layouts of both.

Trainers and engines are searched apart, since a step depends on each by its seconds alone: for each
number of GPUs the layouts of the trainer are asked as one table of training steps, and those of the
engines by the simulation. Ways that differ are ranked by samples a second.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.economy import Economy, economy
from hybridperf.engine.step_features import StepParts
from hybridperf.fields import fields_of
from hybridperf.fields.columns import values_in
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.io.progress import Progress, shown
from hybridperf.report import text
from hybridperf.runs.rl.settings import config_of
from hybridperf.runs.rl.step import PARTS, RlConfig, RlStep, generated, step_of, trained

_SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)  # of GPUs, that train beside engines
_STAGES = (1, 2, 4, 8, 16)
_NODE = 8  # GPUs


@dataclasses.dataclass(frozen=True)
class RlPlan:
    """Ways to train by reinforcement learning, the best first.

    Attributes:
        table: a row each: where trainer and engines are, layouts, seconds and their interval,
            parts, `samples_per_s`, `usd_per_sample` with low and high, `chance` to be the best.
        steps: the same as steps, in the same order.
        tried: ways that were looked at.
        seconds: that it took.
        notes: what was assumed.
    """

    table: pd.DataFrame
    steps: tuple[RlStep, ...]
    tried: int
    seconds: float
    notes: tuple[str, ...]


def rl_plan(
    model: str, system: str, gpus: int, fields: Mapping[str, Any],
    prices: str | Path | None = None,
) -> RlPlan:  # fmt: skip
    """Where trainer and engines of a model should be, and how each is laid out.

    Args:
        model: name of a published model, or a file of its sizes.
        system: name of a system (`hybridperf systems`), or a .toml file.
        gpus: how many.
        fields: of a step (`hybridperf rl --help`): rollouts, mean_length, max_length, ...;
            `staleness` is the most that is allowed, `train_tp` and others pin a layout.
        prices: a file with rates that replace the shipped assumptions.

    Raises:
        InputError: for fields that cannot be, and where no trainer or no engine fits.
    """
    began_s, device = time.perf_counter(), load_system(system).device
    if device is None:
        raise InputError(f"expected a system whose accelerator is known, got {system}")
    known = fields_of("rl")
    said = values_in({**fields, "model": model, "system": system, "n_gpus": gpus}, known)
    said["gpu"] = device
    most = int(said.pop("staleness", 0))
    rates = economy(load_device(device), None if prices is None else Path(prices))
    base = config_of(said)
    places = [gpus, *(_trainers(gpus) if most else [])]
    steps, tried, refused = list[RlStep](), 0, list[str]()
    with shown("ways to place trainer and engines") as show:
        for done, count in enumerate(places):
            placed = dataclasses.replace(
                base, train_gpus=count, staleness=int(count < gpus and most > 0)
            )
            engine, looked = _best_engine(placed, said, refused)
            layouts = [*_layouts(placed, said)]
            some = trained(layouts)
            tried += len(layouts) * looked
            refused += [one.refused for one in some if one.refused]
            fitting = [(one.train_s + one.logprob_s, at) for at, one in enumerate(some)
                       if not one.refused and one.fits]  # fmt: skip
            if not fitting:
                refused.append(f"no layout of a trainer fits on {count} GPUs; give more GPUs")
            for _, at in (
                sorted(fitting)[:2] if engine else ()
            ):  # the runner-up shows how near it is
                assert engine is not None
                layout = {**layouts[at].layout, "recompute": some[at].recompute}
                whole = dataclasses.replace(engine, layout=layout)
                steps.append(step_of(whole, some[at]))
                trainer_s = steps[-1].seconds - steps[-1].parts["generate"]
                # older rollouts help where the trainer waits for the last of its answers
                if most > 1 and whole.staleness and trainer_s <= steps[-1].parts["refit"]:
                    older = dataclasses.replace(whole, staleness=most)
                    steps.append(step_of(older, some[at]))
            show(Progress(done + 1, len(places)))
    if not steps:
        raise InputError(
            f"expected a way to train {base.shape.name} on {gpus} GPUs, found none: {refused[-1]}"
        )
    steps.sort(key=lambda one: one.seconds)
    notes = dict.fromkeys(note for one in steps[:1] for note in (*one.notes, *rates.notes))
    return RlPlan(
        _table(steps, rates), tuple(steps), tried, time.perf_counter() - began_s, tuple(notes)
    )


def _trainers(gpus: int) -> list[int]:
    """Numbers of GPUs that may train beside engines: whole nodes where there are several."""
    unit = _NODE if gpus >= 2 * _NODE else 1
    found = {round(share * gpus / unit) * unit for share in _SHARES}
    return sorted(one for one in found if 0 < one < gpus)


def _layouts(config: RlConfig, said: Mapping[str, Any]) -> Iterator[RlConfig]:
    """Layouts of a trainer, of powers of two, with what is pinned."""
    shape, gpus = config.shape, config.train_gpus
    spread = [one for one in (1, 4, 8, 16, 32, 64) if shape.experts and shape.experts % one == 0]
    for tp, pp, ep in itertools.product(_powers(_NODE), _STAGES, spread or [1]):
        own = {"tp": tp, "pp": pp, "ep": ep}
        pinned = {name: said[f"train_{name}"] for name in own if f"train_{name}" in said}
        if any(own[name] != value for name, value in pinned.items()):
            continue
        if gpus % (tp * pp) or shape.heads % tp or pp > shape.depth or (gpus // pp) % ep:
            continue
        yield dataclasses.replace(config, layout={**config.layout, **own})


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _best_engine(
    config: RlConfig, said: Mapping[str, Any], refused: list[str]
) -> tuple[RlConfig | None, int]:
    """(The engines that are done first, how many were looked at): from large ones to smaller ones,
    until these take longer; larger ones where none has room. Why others cannot be goes to
    `refused`.
    """
    pinned = [int(said["gen_tp"])] if "gen_tp" in said else None
    best: RlConfig | None = None
    best_s, looked = np.inf, 0
    for tp in pinned or [*_powers(_NODE)[::-1], 2 * _NODE, 4 * _NODE, 8 * _NODE]:
        if config.gen_gpus % (tp * config.ranks[1]) or config.shape.heads % tp:
            continue
        if tp > _NODE and best is not None:
            break
        engine = dataclasses.replace(config, ranks=(tp, *config.ranks[1:]))
        try:
            seconds = generated(engine)[0]
        except InputError as error:
            refused.append(str(error))
            continue
        looked += 1
        if seconds >= best_s:
            break
        best, best_s = engine, seconds
    return best, looked


def _table(steps: list[RlStep], rates: Economy) -> pd.DataFrame:
    """A row for each way; the chance to be the best by draws that all ways share."""
    rows = []
    for step in steps:
        config, layout = step.config, step.config.layout
        usd = functools.partial(_usd_per_sample, config, rates)
        rows.append({
            "place": "apart" if config.apart else "shared", "staleness": config.staleness,
            "train_gpus": config.train_gpus, "gen_gpus": config.gen_gpus,
            "train_tp": layout["tp"], "train_pp": layout["pp"], "train_ep": layout["ep"],
            "recompute": layout["recompute"], "gen_tp": config.ranks[0],
            "predicted_s": step.seconds, "low_s": step.low_s, "high_s": step.high_s,
            **{f"{name}_s": step.parts[name] for name in PARTS}, "idle_s": step.idle_s,
            "samples_per_s": config.rollouts / step.seconds,
            "tokens_per_s_gpu": step.tokens_per_s_gpu, "usd_per_sample": usd(step.seconds),
            "usd_per_sample_low": usd(step.low_s), "usd_per_sample_high": usd(step.high_s),
        })  # fmt: skip
    draws = np.array([step.draws for step in steps])
    best = np.bincount(draws.argmin(0), minlength=len(steps)) / draws.shape[1]
    return pd.DataFrame(rows).assign(chance=best)


def _usd_per_sample(config: RlConfig, rates: Economy, seconds: float) -> float:
    return float(rates.usd(config.n_gpus, StepParts.busy(seconds))) / config.rollouts


def plan_report(found: RlPlan, top: int) -> str:
    """The best ways as people read them, and who waits for whom in the first."""
    columns = ("where", "train + generate", "trainer", "engines", "step", "90 %", "samples/s",
               "USD/1,000", "idle", "best")  # fmt: skip
    rows = []
    for row in found.table.head(top).itertuples():
        where = "same GPUs" if row.place == "shared" else f"apart, {row.staleness} off"
        each = f"{row.train_gpus} + {row.gen_gpus}" if row.place == "apart" else row.train_gpus
        ep = f" ep {row.train_ep}" if row.train_ep > 1 else ""
        rows.append([
            where, str(each), f"tp {row.train_tp} pp {row.train_pp}{ep}", f"tp {row.gen_tp}",
            text.seconds(row.predicted_s),
            f"{text.seconds(row.low_s)} to {text.seconds(row.high_s)}",
            f"{row.samples_per_s:.3g}", f"{1e3 * row.usd_per_sample:.3g}",
            text.percent(row.idle_s / row.predicted_s), text.percent(row.chance),
        ])  # fmt: skip
    best = found.steps[0]
    parts = ", ".join(f"{name} {text.seconds(best.parts[name])}" for name in PARTS)
    return "\n".join([
        text.table(list(columns), rows), "", f"the best: {parts}; {_who_waits(best)}",
        f"{found.tried:,} pairs of layouts in {text.seconds(found.seconds)}", "", "assumed:",
        *(f"  {note}" for note in found.notes),
    ])  # fmt: skip


def _who_waits(step: RlStep) -> str:
    """Who waits for whom, and what a tenth less of a part would save."""
    if not (step.config.apart and step.config.staleness):
        longest = max(PARTS, key=lambda name: step.parts[name])
        share = text.percent(step.parts[longest] / step.seconds)
        return f"parts take turns, and {longest} is {share} of the step"
    trainer_s = sum(step.parts[name] for name in ("logprob", "train", "prepare"))
    apart_s = trainer_s - step.parts["generate"]
    who = "engines wait for the trainer" if apart_s > 0 else "the trainer waits for engines"
    return f"{who} {text.seconds(abs(apart_s))} of {text.seconds(step.seconds)}"
