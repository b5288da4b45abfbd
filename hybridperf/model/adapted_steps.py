"""What is known of step effects and of blocks' times, before or after measured steps; and the file
that keeps it in a model folder.

Three corrections of the logs of block times come beside the effects, Gaussian processes over a
step's cell x = (log2 hidden, log2 tp, log2 tokens of a micro-batch, log2 sequence): of a layer, of
its GPU beyond that, of embedding and LM head. How both are fitted: `training/steps/adapt.py`.

Axes: N steps, K effects, C cells of the rows that were learned from, X = 4 inputs, B = 3 blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from hybridperf.hardware import Host
from hybridperf.io import InputError, closest, read_json, undamaged, write_json
from hybridperf.learning.gaussian_process import MATERN, matern32
from hybridperf.model.step_effects import (
    BELIEFS,
    NAMES,
    OF_OPS,
    StepEffects,
    effects_of,
    known_factor,
)

SCHEMA_VERSION = 2  # 2: checksum
STEPS_FILE = "steps.json"  # of a model folder
_KIND = "step-knobs"
_ARRAYS, _NUMBERS = ("cells", "corrections", "covariance"), ("rows", "noise", "evidence")
MODES = ("none", "selective", "full")
# how much further off knobs of another group are than they say: the likeliest over twelve pairs of
# published sources (H100s for A100s, one framework for another); leaving any pair out it is 0.04 to
# 0.07
_ELSEWHERE = 0.06
# NOISE, SPREAD and LENGTH were chosen by hand with dev rows in sight (vTrain on one node, 30 rows
# given: claim `steps --tasks splits`), not fitted. Little hangs on them: over draws
# 10 to 39 of that task, mean error 2.8 % with a standard error of 0.12, half the NOISE, SPREAD of a
# layer 0.07 or 0.15, of the GPU 0.05 or 0.15, of the LM head 0.1 or 0.3, and one LENGTH 0.6 or 1.6
# times as long each move it by 0.2 points or less
NOISE = 0.01  # of a step's log time: rows that were repeated agree that well
# s of a layer, of its GPU beyond that, of embedding and LM head [B]
SPREAD = np.array([0.1, 0.1, 0.2])
# The same of cells that no row tells of, to predict by: a fit is free to correct more than steps of
# a source that nobody measured are off. With 0.07 of a layer and of its GPU nine tenths of the rows
# of 25 published sources, each left out in turn and none counting for more than ten rows, lie
# within 0.85 to 0.92 of their widths
OPEN_SPREAD = np.array([0.06, 0.06, 0.2])
# by beliefs alone. Each of the 26 sources left out, the others say 0.68 to 0.78 of the widths that
# 0.06 gives, and nine tenths of its rows lie within them; mechanisms were chosen with these rows in
# sight, so a third as much narrower
BELIEVED_SPREAD = np.array([0.04, 0.04, 0.2])
# l [B, X], in doublings: collectives make each tensor-parallel degree a case of its own; what only
# the GPU does changes with sizes sooner
LENGTH = np.array([[2.5, 0.7, 1.5, 0.8], [0.7, 0.7, 1.5, 0.8], [2.5, 0.7, 1.5, 2.5]])
MOST_CORRECTION = 0.5
# Published sources keep a bias of their own, and their rows scatter around it: in logs, over 15
# sources predicted without any rows of theirs
BETWEEN_SOURCES, WITHIN_SOURCE = 0.06, 0.05
_HOST_WIDTH = 0.3  # of the launch cost where the host itself was traced: another program on it
JITTER = 1e-6
BLOCKS = len(SPREAD)


@dataclasses.dataclass(frozen=True)
class Adapted:
    """What is known of step effects and blocks, before or after rows were seen."""

    theta: np.ndarray  # [K] logs of step effects
    cells: np.ndarray  # [C, X]
    corrections: np.ndarray  # [B, C] of their blocks
    covariance: np.ndarray  # [K + B C, K + B C] of both
    rows: int = 0
    noise: float = NOISE  # of the rows' log times
    evidence: float = 0.0  # log likelihood of the rows, knobs and corrections integrated out
    # how much longer, in logs, steps of each source of the rows take than effects say
    sources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    offset: float = 0.0  # that of the source that is asked for

    @property
    def effects(self) -> StepEffects:
        return effects_of(self.theta)

    @property
    def open_spread(self) -> np.ndarray:
        """Deviation of each block's log where no row tells of it [B]; a fit is surer of effects
        that it moved than rows of other cells are close.
        """
        return OPEN_SPREAD if self.rows else BELIEVED_SPREAD

    @staticmethod
    def before(host: Host | None = None, group: str = "") -> Adapted:
        """What is believed without rows of a framework on an architecture (`NAME on ARCH`; "":
        of any); launching as `host` showed it, where one is given.
        """
        theta, widths = beliefs(host, group)
        none = np.zeros((0, LENGTH.shape[1]))
        return Adapted(theta, none, np.zeros((BLOCKS, 0)), np.diag(widths**2))

    def of_cells(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of cells [N, X]: corrections [B, N], weights on known ones [B, N, C], variance left."""
        unique, of = np.unique(cells, axis=0, return_inverse=True)
        of = of.reshape(-1)
        weights = np.zeros((BLOCKS, len(unique), len(self.cells)))
        left = np.ones((BLOCKS, len(unique)))
        for block in range(BLOCKS if len(self.cells) else 0):
            alike = correlation(unique, self.cells, block)
            among = correlation(self.cells, self.cells, block) + JITTER * np.eye(len(self.cells))
            factor = scipy.linalg.cho_factor(among, lower=True)
            weights[block] = scipy.linalg.cho_solve(factor, alike.T).T
            left[block] = np.maximum(1.0 - (weights[block] * alike).sum(1), 0.0)
        corrections = np.einsum("bnc,bc->bn", weights, self.corrections)
        corrections = np.clip(corrections, -MOST_CORRECTION, MOST_CORRECTION)
        return corrections[:, of], weights[:, of], left[:, of]

    def slopes_of_known(
        self, by_theta: np.ndarray, by_block: np.ndarray, cells: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(slopes of logs of steps over what `covariance` is of [N, K + B C], variance that it
        leaves open of blocks [B, N]); by slopes over step effects [N, K] and blocks [B, N].
        """
        _, weights, left = self.of_cells(cells)
        return np.concatenate([by_theta, *(by_block[:, :, None] * weights)], 1), left

    def variance(
        self, by_theta: np.ndarray, by_block: np.ndarray, cells: np.ndarray,
        widths: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Variance of logs of steps [N]: of effects, blocks, noise, and of what their machines have
        not measured.

        Args:
            by_theta: how much each effect's log moves that of a step [N, K].
            by_block: likewise each block's correction [B, N].
            cells: of the steps [N, X].
            widths: in logs, of what each effect multiplies and nobody measured [K, N].
        """
        slopes, left = self.slopes_of_known(by_theta, by_block, cells)
        known = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        open_ = self.open_spread**2 @ (by_block**2 * left)
        unmeasured = (self.unmeasured(by_theta, widths) ** 2).sum(0)
        return np.asarray(known + open_ + unmeasured + self.noise**2)

    def unmeasured(self, by_theta: np.ndarray, widths: np.ndarray | None) -> np.ndarray:
        """Deviations of logs of steps by ops and by links that nobody measured [2, N], all of a
        kind off together; arguments as of `variance`.

        Rows that were learned from told of a step effect, and of what it multiplies, as much as its
        width shrank.
        """
        if widths is None or not np.any(widths):
            return np.zeros((2, len(by_theta)))
        left = np.sqrt(np.diag(self.covariance)[: len(NAMES)]) / beliefs()[1]
        moved = by_theta.T * np.minimum(left, 1.0)[:, None] * widths
        of_ops = np.isin(NAMES, OF_OPS)
        return np.stack([moved[of_ops].sum(0), moved[~of_ops].sum(0)])

    def logs(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Corrections of cells [N, X] as the composition takes them, [N] each."""
        return logs_of(self.of_cells(cells)[0])


class Group(str):
    """What step effects are shared by: a framework on one architecture of devices, written so."""

    @staticmethod
    def of(framework: str, arch: str) -> Group:
        return Group(f"{framework} on {arch}")

    @property
    def framework(self) -> str:
        return self.partition(" on ")[0]

    @property
    def arch(self) -> str:
        return self.partition(" on ")[2]


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """Step effects by group, and recompute labels that measured rows contradict, by source."""

    groups: Mapping[str, Adapted]
    recompute: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # by source and mode
    likelihoods: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    host: Host | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # rows of groups that have too few to be fitted
    few: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def of(self, group: str, source: str = "") -> tuple[Adapted, str]:
        """(what to predict a group by, whose rows that is: "" for nobody's).

        Rows of a source that was learned from take its own bias with them; those of another one
        are as unsure as sources differ, and so are those of none where several were learned from.
        """
        asked = Group(group)

        def strangeness(name: str) -> tuple[bool, bool, bool, int]:
            known = Group(name)
            other = known.framework != asked.framework, known.arch != asked.arch
            return known != asked, *other, -self.groups[name].rows

        known = min(self.groups, key=strangeness, default="")
        if not known or all(strangeness(known)[:3]):
            return Adapted.before(self.host, group), ""
        one = self.groups[known]
        if known != group:
            # what rows of another group taught, on top of what is believed of this one
            moved = beliefs(None, group)[0] - beliefs(None, known)[0]
            noise = float(np.hypot(one.noise, _ELSEWHERE))
            one = dataclasses.replace(one, theta=one.theta + moved, noise=noise)
        own = source in one.sources or (not source and len(one.sources) == 1)
        if one.sources and not own:
            noise = float(np.hypot(one.noise, BETWEEN_SOURCES))
            one = dataclasses.replace(one, noise=noise)
        elif known == group:
            one = dataclasses.replace(one, offset=one.sources.get(source, 0.0))
        return one, known

    def note_of(self, group: str) -> str:
        """Whose rows a group is predicted by, as a note has it; "" where that is its own."""
        whose, few = self.of(group)[1], self.few.get(group, 0)
        if whose == group:
            return ""
        if whose:
            since = f", since those of {group} are too few ({few})" if few else ""
            return f"fitted to rows of {whose}{since}"
        why = "no measured steps" + (f" of {group}" if self.groups else "")
        if few:
            why = f"measured steps of {group} too few to fit ({few})"
        left = "alone" if self.host is None else "and the launches of its host"
        return f"{why}: default efficiencies {left}"

    def save(self, path: str | Path) -> None:
        """Write everything into one JSON file."""
        groups = {
            name: {"knobs": dict(zip(NAMES, np.exp(one.theta).tolist(), strict=True))}
            | {field: getattr(one, field).tolist() for field in _ARRAYS}
            | {field: getattr(one, field) for field in _NUMBERS}
            | {"sources": dict(one.sources)}
            for name, one in self.groups.items()
        }
        document = {
            "groups": groups, "recompute": self.recompute, "likelihoods": self.likelihoods,
            "host": self.host and self.host.model_dump(), "provenance": self.provenance,
            "few": self.few,
        }  # fmt: skip
        write_json(path, _KIND, SCHEMA_VERSION, document)

    @staticmethod
    def load(path: str | Path) -> Adaptation:
        """What `save` wrote, a file or the model folder that holds it; `InputError` for others."""
        if Path(path).is_dir():
            path = Path(path) / STEPS_FILE
        saved = read_json(path, _KIND, SCHEMA_VERSION, unchecked=1)
        with undamaged(path, "fit the rows again"):
            groups = {name: _read(one) for name, one in saved["groups"].items()}
            host = None if saved["host"] is None else Host(**saved["host"])
            if bad := [mode for mode in saved["recompute"].values() if mode not in MODES]:
                raise ValueError(f"{bad[0]!r} is no recompute mode")
            likelihoods = {
                source: {mode: float(one) for mode, one in found.items()}
                for source, found in saved["likelihoods"].items()
            }
            # files of earlier versions have no `few`
            few = {name: int(count) for name, count in saved.get("few", {}).items()}
            provenance = dict(saved["provenance"])
            return Adaptation(groups, dict(saved["recompute"]), likelihoods, host, provenance, few)


def beliefs(host: Host | None = None, group: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Believed logs of step effects and their widths [K], of a framework on an architecture."""
    own = Group(group)
    factors = [known_factor(name, own.framework, own.arch) for name in NAMES]
    medians = np.log([BELIEFS[name].median for name in NAMES]) + np.log(factors)
    widths = np.array([BELIEFS[name].width for name in NAMES])
    if host is not None:
        medians[NAMES.index("launch_s")] = np.log(launch_s(host))
        widths[NAMES.index("launch_s")] = _HOST_WIDTH
    return medians, widths


def launch_s(host: Host) -> float:
    """Seconds of a host from launch to launch, at one per op (T1 + T2 + T4 + T3 of Lin et al.)."""
    if host.launch_call_s.shared is None:
        raise InputError(
            f"expected a host that was seen to launch kernels, got {host.source}, which never did;"
            " fit more traces"
        )
    launching = (host.before_launch_s, host.launch_call_s, host.after_launch_s)
    parts = (host.between_ops_s, *(one.shared for one in launching))
    return sum(part.median_s for part in parts if part is not None)


def alike_left(adapted: Adapted, cells: np.ndarray, block: int) -> np.ndarray:
    """Correlation that known cells leave open of a block's corrections of others [N, N]."""
    across = adapted.of_cells(cells)[1][block] @ correlation(adapted.cells, cells, block)
    return np.asarray(correlation(cells, cells, block) - across)


def logs_of(corrections: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Corrections [B, N] as composed: of a layer's GPU, of its host, of embedding and head."""
    layer, gpu, outer = corrections
    return layer + gpu, layer, outer


def correlation(a: np.ndarray, b: np.ndarray, block: int) -> np.ndarray:
    """Correlation of a block's corrections of cells [a, b]."""
    distance = np.sqrt((((a[:, None] - b[None]) / LENGTH[block]) ** 2).sum(-1))
    return np.asarray(matern32(MATERN * distance))


def _read(one: Mapping[str, Any]) -> Adapted:
    effects = one["knobs"]
    if lacking := [name for name in NAMES if name not in effects]:
        raise ValueError(f"knob {lacking[0]} is missing")
    if other := [name for name in effects if name not in NAMES]:
        raise ValueError(f"{other[0]!r} is no knob{closest(other[0], NAMES)}")
    numbers = {name: one[name] for name in _NUMBERS}
    for name, value in (*effects.items(), *numbers.items()):
        if type(value) not in (int, float):
            raise ValueError(f"{name} is no number but {value!r}")
    # files of earlier versions have no `sources`
    sources = {str(name): float(value) for name, value in one.get("sources", {}).items()}
    values = np.array([float(effects[name]) for name in NAMES])
    cells = np.array(one["cells"], float).reshape(-1, LENGTH.shape[1])
    corrections = np.array(one["corrections"], float).reshape(BLOCKS, len(cells))
    covariance = np.array(one["covariance"], float)
    if covariance.shape != (len(NAMES) + corrections.size,) * 2:
        raise ValueError("the covariance does not have the shape of knobs and corrections")
    arrays = (values, cells, corrections, covariance, [*numbers.values()], [*sources.values()])
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("a number is not finite")
    if min(*values, numbers["noise"]) <= 0:
        raise ValueError("a knob or the noise is not positive")
    rows, noise, evidence = (
        int(numbers["rows"]),
        float(numbers["noise"]),
        float(numbers["evidence"]),
    )
    return Adapted(np.log(values), cells, corrections, covariance, rows, noise, evidence, sources)
