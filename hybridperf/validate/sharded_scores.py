"""What predicted step times of sharded models are worth: errors, and whether the placement
predicted best is a good one.

Success is as in Lin et al.: the placement chosen is the fastest measured or within 10 % of it. Only
models count whose placements differ: the slowest takes 1.3 times the fastest. A rule (greedy,
random) is scored by the placement that it names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LIN_GEOMEAN = 0.0521  # of 20 tasks x 4 batch sizes, two platforms (TPDS 2025)
LIN_SUCCESS = 0.85  # 17 of 20
WITHIN = 1.10
DIFFER = 1.3  # slowest over fastest placement of a model that counts


def errors(predicted_s: Sequence[float], measured_s: Sequence[float]) -> dict[str, float]:
    """`mean` and `geomean` of |predicted / measured - 1|, `signed` mean, `worst`."""
    error = np.asarray(predicted_s, float) / np.asarray(measured_s, float) - 1
    size = np.abs(error)
    return {
        "mean": float(size.mean()),
        "geomean": float(np.exp(np.log(np.maximum(size, 1e-6)).mean())),
        "signed": float(error.mean()),
        "worst": float(error[size.argmax()]),
    }


@dataclasses.dataclass(frozen=True)
class Contest:
    """One model on P placements."""

    model: str
    placements: tuple[tuple[int, ...], ...]  # [P]
    names: tuple[tuple[str, ...], ...]  # [P] rules that chose each
    measured_s: np.ndarray  # [P]
    predicted_s: Mapping[str, np.ndarray]  # [P] by each way to predict

    @property
    def spread(self) -> float:
        """Slowest over fastest."""
        return float(self.measured_s.max() / self.measured_s.min())

    @property
    def counts(self) -> bool:
        return self.spread >= DIFFER

    def loss_of(self, chosen: int) -> float:
        """How much longer than the fastest a placement takes, a share."""
        return float(self.measured_s[chosen] / self.measured_s.min() - 1)

    def loss_by(self, way: str) -> float:
        """That of the placement predicted fastest."""
        return self.loss_of(int(np.argmin(self.predicted_s[way])))

    def losses_of_rule(self, rule: str) -> list[float]:
        """Of each placement of a rule, numbered where there are several (`random 2`)."""
        return [
            self.loss_of(at)
            for at, names in enumerate(self.names)
            for name in names
            if name.split()[0] == rule
        ]


def judge(contests: Sequence[Contest]) -> dict[str, Any]:
    """Success and loss of every way and rule over the models that count."""
    counted = [contest for contest in contests if contest.counts]
    ways = list(contests[0].predicted_s) if contests else []
    every = (name for contest in contests for names in contest.names for name in names)
    rules = list(dict.fromkeys(name.split()[0] for name in every))
    return {
        "models": len(contests),
        "counted": len(counted),
        "ways": {way: _score([c.loss_by(way) for c in counted]) for way in ways},
        # a rule is worth what it does on average in a model, so that one that names several
        # placements there counts once
        "rules": {
            rule: _score_of_lists([c.losses_of_rule(rule) for c in counted]) for rule in rules
        },
        "any": _score_of_lists(
            [[c.loss_of(at) for at in range(len(c.placements))] for c in counted]
        ),
    }


def _score(losses: Sequence[float]) -> dict[str, float | int | None]:
    return _score_of_lists([[loss] for loss in losses])


def _score_of_lists(losses: Sequence[Sequence[float]]) -> dict[str, float | int | None]:
    """`success` share, `mean_loss`, `worst_loss` over `models`; means over a model's placements."""
    some = [np.asarray(of_model) for of_model in losses if len(of_model)]
    if not some:
        return {"models": 0, "success": None, "mean_loss": None, "worst_loss": None}
    good = [float((of_model <= WITHIN - 1 + 1e-12).mean()) for of_model in some]
    return {
        "models": len(some),
        "success": float(np.mean(good)),
        "mean_loss": float(np.mean([of_model.mean() for of_model in some])),
        "worst_loss": float(max(of_model.max() for of_model in some)),
    }
