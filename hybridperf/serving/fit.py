"""Effects of serving frameworks fitted to measured rows, and what rows of one model, version or
system keep of their own.

    log measured = log latency(effects of the framework) + offsets + noise

Effects start from what is believed of them. What is left is a Gaussian process: a constant and
slopes in the logs of clients and prompts for each model of a framework, each version and each
system of it, and a smooth part inside one layout: random effects. 30 rows of a new model bring its
TPOT from 8.9 to 4.7 % (claim `serving --tasks models,few`).

Axes: N rows, K effects.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from hybridperf.io import InputError, OldFile, check_seconds, read_json, undamaged, write_json
from hybridperf.model.serving_effects import (
    BELIEFS,
    NAMES,
    ServingEffects,
    believed,
    effects_of,
    logs_of,
)
from hybridperf.serving.loads import Latency, Loads
from hybridperf.serving.published import published
from hybridperf.serving.rows import ServedRow
from hybridperf.serving.served import Served, believed_effects

FILE, _KIND, _VERSION = "serving.json", "serving-effects", 5
_ONE_LAW = 5  # since when effects are of `engine_load.py`
TARGETS = ("tpot_s", "ttft_s")
# effects that frameworks share: apart, two models of one framework would fit what is theirs
_SHARED = ("kernels", "gap_s", "step_s", "sequence_s")
_STEP = 1e-2  # in an effect's log, by which lines are taken
_ROUNDS, _DONE = 6, 0.02  # of lines, until effects move by no more, in widths
_ROW_WIDTH = {"tpot_s": 0.2, "ttft_s": 0.35}  # of rows' logs around the law
_MOST_ROWS = 1.0  # that a model of a framework counts for: rows of one table are neighbours
# standard deviations from the law within which a row tells of offsets: one further off is of
# another kind (drafts, a cap on clients, a cold start that no column tells)
_OF_A_KIND = 3.0
_APART = " apart"  # of workers that prefill
_ELSE = " else"  # of other lengths than the published benchmark's: other clients sent them
# Standard deviations of offsets in logs, by what rows share, of TPOT and TTFT; of slopes against
# constants; of noise. Where offsets are a quarter wider and noise a third narrower, errors stay
# (TPOT of models left out 10.4 in place of 10.3 %) and intervals hold 96 and 87 % of the TPOT of
# models left out and of those with 30 rows, in place of 94 and 89 %
_LEVELS: Mapping[tuple[str, ...], tuple[float, float]] = {
    ("framework", "model"): (0.05, 0.16),
    ("framework", "model", "scheme"): (0.10, 0.12),  # a format has kernels of its own, a draft too
    ("framework", "system"): (0.065, 0.08),
    ("framework", "model", "version"): (0.10, 0.20),
    ("framework", "model", "system", "scheme"): (0.08, 0.12),
}
_LAYOUT = (0.10, 0.20)  # inside one layout of one engine, smooth in sizes
_SLOPES, _NOISE = 0.7, (0.11, 0.16)
_NOISE_APART = (0.11, 0.35)  # where prompts are computed apart: some rows begin cold, 5 to 40 s
_SMOOTH = 1.0  # length of the smooth part, in the units of `_sizes`


@dataclasses.dataclass(frozen=True)
class Offsets:
    """What rows were, and their weights for others like them."""

    words: tuple[tuple[str, ...], ...]  # [N] of `_WORDS`
    sizes: np.ndarray  # [N, 4]
    weights: Mapping[str, np.ndarray]  # [N] by target
    factors: Mapping[str, np.ndarray]  # [N, N] inverse of the covariance, for what is left unsure


@dataclasses.dataclass(frozen=True)
class ServingFit:
    """Effects by framework and offsets of rows; without rows, beliefs."""

    effects: Mapping[str, np.ndarray]  # logs [K] by framework; "": of those without rows
    offsets: Offsets | None = None
    rows: int = 0

    def of(self, rows: Sequence[ServedRow]) -> ServingEffects:
        """Of each row's framework [N]."""
        logs = logs_of(believed_effects(rows))
        for at, row in enumerate(rows if self.effects else ()):
            any_of_its_kind = _APART if row.prefill else ""
            kind = kind_of(row)
            if known := next((one for one in (kind, _like(kind)) if one in self.effects), None):
                # further from its own belief, of its host and its number of requests, by as much
                told = logs_of(believed(row.framework, row.prefill is not None))
                logs[:, at] += self.effects[known] - told
            elif any_of_its_kind in self.effects:
                for name in _SHARED:
                    place = NAMES.index(name)
                    logs[place, at] = self.effects[any_of_its_kind][place]
        requests = np.array([row.requests for row in rows])
        logs[NAMES.index("burst"), requests > 0] = -np.log(requests[requests > 0])
        return effects_of(logs)

    def left(self, rows: Sequence[ServedRow], target: str) -> tuple[np.ndarray, np.ndarray]:
        """(offset, standard deviation of what stays unknown) of rows' logs [N]."""
        here = TARGETS.index(target)
        words, sizes = _told(rows)
        noise = _noise(words, here)
        deviation = np.sqrt(believed_deviation(sizes, target) ** 2 - _NOISE[here] ** 2 + noise**2)
        if self.offsets is None:
            return np.zeros(len(rows)), deviation
        known = self.offsets
        across = _covariance(words, sizes, known.words, known.sizes, here)
        explained = ((across @ known.factors[target]) * across).sum(1)
        return across @ known.weights[target], np.sqrt(np.maximum(deviation**2 - explained, 0.0))

    def note_of(self, row: ServedRow) -> str:
        """Whose rows a row is predicted by."""
        kind = kind_of(row)
        if kind not in self.effects and _like(kind) not in self.effects:
            of = f"{row.framework or 'this framework'}{_APART if row.prefill else ''}"
            return f"no measured rows of {of}: usual effects assumed"
        models = {words[1] for words in self.offsets.words} if self.offsets else set()
        return "" if row.model in models else f"no measured row of {row.model}"

    def save(self, path: str | Path) -> None:
        """Write everything into one JSON file."""
        known = self.offsets
        document: dict[str, Any] = {
            "effects": {
                name: dict(zip(NAMES, np.exp(logs).tolist(), strict=True))
                for name, logs in self.effects.items()
            },
            "rows": self.rows,
            "words": [list(one) for one in known.words] if known else [],
            "sizes": known.sizes.tolist() if known else [],
            "weights": {name: known.weights[name].tolist() for name in TARGETS} if known else {},
        }
        write_json(path, _KIND, _VERSION, document)

    @staticmethod
    def load(path: str | Path) -> ServingFit:
        """What `save` wrote, a file or the model folder that holds it."""
        if Path(path).is_dir():
            path = Path(path) / FILE
        saved = read_json(path, _KIND, _VERSION)
        if saved["schema_version"] < _ONE_LAW:
            said = f"{path} was fitted in the law of an earlier hybridperf; fit the rows again"
            warnings.warn(said, OldFile, stacklevel=2)
        with undamaged(path, "fit the rows again"):
            effects = {
                str(name): np.log([float(one[effect]) for effect in NAMES])
                for name, one in saved["effects"].items()
            }
            words = tuple(tuple(map(str, one)) for one in saved["words"])
            sizes = np.array(saved["sizes"], float).reshape(len(words), 4)
            weights = {name: np.array(saved["weights"][name], float) for name in TARGETS}
            numbers = [*effects.values(), sizes.ravel(), *weights.values()]
            if not np.isfinite(np.concatenate(numbers)).all():
                raise ValueError("a number is not finite")
            return ServingFit(effects, _offsets(words, sizes, weights=weights), int(saved["rows"]))


def fitted(rows: Served, measured: Mapping[str, np.ndarray]) -> ServingFit:
    """Effects and offsets by measured seconds [N] of each target."""
    use = np.array([row.fitted_on for row in rows.rows], bool)
    mine = [row for row, good in zip(rows.rows, use, strict=True) if good]
    if not mine:
        raise InputError(
            "expected measured rows with ttft_s and tpot_s to fit on, got none that can be"
            " predicted; their notes under `hybridperf serve ROWS` say why"
        )
    loads = rows.loads.part(use)
    usual = loads.latency(effects_of(logs_of(believed_effects(mine))))
    for name in TARGETS:
        check_seconds(measured[name][use], getattr(usual, name), getattr(usual, name), name)
    logs = {name: np.log(measured[name][use]) for name in TARGETS}
    kinds = np.array([kind_of(row) for row in mine])
    effects: dict[str, np.ndarray] = {}
    left = {name: np.zeros(len(mine)) for name in TARGETS}
    for apart in (False, True):
        here = np.array([(row.prefill is not None) == apart for row in mine])
        if here.any():
            some = [row for row, good in zip(mine, here, strict=True) if good]
            logs_here = {name: values[here] for name, values in logs.items()}
            own, latency = _effects(some, loads.part(here), logs_here, kinds[here])
            effects |= own
            for name in TARGETS:
                left[name][here] = logs_here[name] - np.log(getattr(latency, name))
    words, sizes = _told(mine)
    like = np.ones(len(mine), bool)
    for name, values in left.items():
        like &= np.abs(values) < _OF_A_KIND * believed_deviation(sizes, name)
    words = tuple(itertools.compress(words, like))
    left = {name: values[like] for name, values in left.items()}
    return ServingFit(effects, _offsets(words, sizes[like], left=left), len(mine))


def believed_deviation(sizes: np.ndarray, target: str) -> np.ndarray:
    """Standard deviation of rows' logs around the law where no row like them is measured [N].

    `sizes`: of `sizes_of`.
    """
    here = TARGETS.index(target)
    own = sum(width[here] ** 2 for width in _LEVELS.values()) + _LAYOUT[here] ** 2
    sloped = sum(width[here] ** 2 for level, width in _LEVELS.items() if "model" in level)
    slopes = sloped * _SLOPES**2 * (sizes[:, :2] ** 2).sum(1)
    return np.sqrt(own + slopes + _NOISE[here] ** 2)


def sizes_of(sizes: np.ndarray) -> np.ndarray:
    """Clients of an engine, prompt, output, GPUs [N, 4] in octaves, about -1 to 1."""
    centre = np.array([32.0, 2048.0, 1024.0, 4.0])
    return np.asarray(np.log2(sizes.reshape(-1, 4) / centre) / [3, 2, 2, 2])


def kind_of(row: ServedRow) -> str:
    """Whose effects a row has: its framework's, by how prompts are computed and who sent them."""
    campaign = "" if published(row.prompt, row.output) else _ELSE
    return f"{row.framework}{_APART if row.prefill else ''}{campaign}"


def _like(kind: str) -> str:
    """The same framework's kind of the other lengths."""
    return kind.removesuffix(_ELSE) if kind.endswith(_ELSE) else kind + _ELSE


def _effects(
    rows: Sequence[ServedRow], loads: Loads, logs: Mapping[str, np.ndarray], kinds: np.ndarray
) -> tuple[dict[str, np.ndarray], Latency]:
    """(logs of effects by kind of row, what the rows take with them [N])."""
    known = sorted({*kinds.tolist()})
    of_row = np.searchsorted(known, kinds)
    start = logs_of(believed_effects(rows))  # [K, N]
    told = np.array([row.requests > 0 for row in rows])
    own_names = [name for name in NAMES if name not in _SHARED]
    widths = np.array([BELIEFS[name].width for name in NAMES])

    # which number of theta moves each effect of each row, -1: none  [K, N]
    place = np.zeros(start.shape, int)
    for at, name in enumerate(_SHARED):
        place[NAMES.index(name)] = at
    for at, name in enumerate(own_names):
        place[NAMES.index(name)] = len(_SHARED) + at * len(known) + of_row
    place[NAMES.index("burst"), told] = -1

    def moved(theta: np.ndarray) -> np.ndarray:
        """Logs of effects [K, N] by how far each is from its belief, in widths."""
        return np.asarray(start + np.append(theta, 0.0)[place] * widths[:, None])

    def errors(logs_now: np.ndarray) -> np.ndarray:
        latency = loads.latency(effects_of(logs_now))
        return np.array(
            [(np.log(getattr(latency, name)) - logs[name]) / _ROW_WIDTH[name] for name in TARGETS]
        )

    weight = _weights(rows)

    theta = np.zeros(len(_SHARED) + len(own_names) * len(known))
    for _ in range(_ROUNDS):
        # the law by lines at where we are: of one effect of all rows at a time, as a row's seconds
        # know no other row's effects
        logs_now = moved(theta)
        here = errors(logs_now)
        lines = np.zeros((len(TARGETS), len(rows), len(theta) + 1))
        for at, width in enumerate(widths):
            step = np.zeros((len(NAMES), 1))
            step[at] = _STEP
            line = (errors(logs_now + step) - here) * width / _STEP
            lines[:, np.arange(len(rows)), place[at]] += line
        lines = lines[..., :-1]
        begun = here - lines @ theta

        def residuals(found: np.ndarray, begun=begun, lines=lines) -> np.ndarray:  # type: ignore[no-untyped-def]
            return np.concatenate([*(weight * _robust(begun + lines @ found)), found])

        moved_to = scipy.optimize.least_squares(residuals, theta, max_nfev=60).x
        done = np.abs(moved_to - theta).max() < _DONE
        theta = moved_to
        if done:
            break
    final = moved(theta)
    effects = {}
    for at, kind in enumerate(known):
        far = theta[[_SHARED.index(name) if name in _SHARED
                     else len(_SHARED) + own_names.index(name) * len(known) + at
                     for name in NAMES]]  # fmt: skip
        row = rows[int(np.argmax(of_row == at))]
        effects[kind] = logs_of(believed(row.framework, row.prefill is not None)) + far * widths
    shared = logs_of(ServingEffects())
    for at, name in enumerate(_SHARED):
        shared[NAMES.index(name)] += theta[at] * BELIEFS[name].width
    effects[_APART if rows[0].prefill else ""] = shared
    return effects, loads.latency(effects_of(final))


def _robust(z: np.ndarray) -> np.ndarray:
    """Residuals whose squares grow like an absolute value far out: rows of another kind."""
    return np.asarray(np.sign(z) * np.sqrt(2.0 * (np.sqrt(1.0 + z**2) - 1.0)))


def _weights(rows: Sequence[ServedRow]) -> np.ndarray:
    """Of each row: a model of a framework counts for `_MOST_ROWS` at most."""
    groups = [(row.framework, row.model) for row in rows]
    count = Counter(groups)
    return np.sqrt([min(_MOST_ROWS / count[group], 1.0) for group in groups])


_WORDS = ("framework", "model", "version", "system", "scheme", "layout")


def _told(rows: Sequence[ServedRow]) -> tuple[tuple[tuple[str, ...], ...], np.ndarray]:
    """What rows share or not, and their sizes [N, 4]."""
    words, sizes = [], []
    known: dict[tuple, tuple[str, ...]] = {}  # of rows told apart by what they hold
    for row in rows:
        engine = row.engine
        assert engine is not None
        kind = kind_of(row)
        key = kind, row.model, row.version, row.system, id(engine)
        if key not in known:
            scheme = f"{engine.quant} {engine.of_experts()} {engine.drafted}"
            layout = f"{engine.tp} {engine.attention_dp} {engine.expert_ep} {engine.pp}"
            known[key] = (*key[:4], scheme, layout)
        words.append(known[key])
        sizes.append((row.clients / row.workers, row.prompt, row.output, row.gpus))
    return tuple(words), sizes_of(np.array(sizes, float))


def _covariance(
    words: Sequence[Sequence[str]], sizes: np.ndarray, others: Sequence[Sequence[str]],
    other_sizes: np.ndarray, here: int,
) -> np.ndarray:  # fmt: skip
    """Of offsets of rows [N] with those of others [M]."""
    mine, theirs = _numbered(words, others)
    slopes = 1.0 + _SLOPES**2 * sizes[:, :2] @ other_sizes[:, :2].T
    out = np.zeros((len(mine), len(theirs)))
    same = {name: mine[:, at][:, None] == theirs[:, at] for at, name in enumerate(_WORDS)}
    # a first token that two engines make waits for routers and links of its own system: of systems
    # left out, what rows of others share makes its error 31 % in place of 27 %
    # how many drafts are taken is assumed: it is no property of a system, or of a version
    drafted, theirs_drafted = (
        np.array([one[_WORDS.index("scheme")].split()[-1] for one in some])
        for some in (words, others)
    )
    own = np.array([TARGETS[here] == "ttft_s" and _APART in one[0] for one in words], bool)
    for level, width in _LEVELS.items():
        shared = np.logical_and.reduce([same[name] for name in level])
        if "system" not in level:
            shared &= ~own[:, None]
        if "scheme" not in level:
            shared &= drafted[:, None] == theirs_drafted
        out += width[here] ** 2 * shared * (slopes if "model" in level else 1.0)
    apart = ((sizes[:, None] - other_sizes[None]) ** 2).sum(-1)
    alike = np.logical_and.reduce(list(same.values()))
    return np.asarray(out + _LAYOUT[here] ** 2 * alike * np.exp(-apart / (2.0 * _SMOOTH**2)))


def _numbered(
    words: Sequence[Sequence[str]], others: Sequence[Sequence[str]]
) -> tuple[np.ndarray, np.ndarray]:
    """Words of rows [N, W] and of others [M, W] as numbers, the same word the same."""
    number: dict[str, int] = {}
    each = [[[number.setdefault(word, len(number)) for word in row] for row in some]
            for some in (words, others)]  # fmt: skip
    return tuple(np.array(some, int).reshape(-1, len(_WORDS)) for some in each)  # type: ignore[return-value]


def _noise(words: Sequence[Sequence[str]], here: int) -> np.ndarray:
    """Standard deviation of rows' own noise in logs [N]."""
    return np.array([(_NOISE_APART if _APART in one[0] else _NOISE)[here] for one in words])


def _offsets(
    words: tuple[tuple[str, ...], ...], sizes: np.ndarray,
    left: Mapping[str, np.ndarray] | None = None, weights: Mapping[str, np.ndarray] | None = None,
) -> Offsets:  # fmt: skip
    factors, found = {}, {}
    for here, target in enumerate(TARGETS):
        among = _covariance(words, sizes, words, sizes, here) + np.diag(_noise(words, here) ** 2)
        factors[target] = np.linalg.inv(among)
        found[target] = weights[target] if left is None else factors[target] @ left[target]  # type: ignore[index]
    return Offsets(words, sizes, found, factors)
