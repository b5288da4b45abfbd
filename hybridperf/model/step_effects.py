"""Step effects: what a training step adds to single ops and messages, each with what is believed
of it before any step is measured, and which of them count for a call by its role in a step.

An effect multiplies what the op model or the links give, or is seconds that they do not have. All
are positive and are fitted and saved as such; beliefs are log-normal: a median, and a width in logs
(0.1: within 10 % in two cases of three). `source` tells where each comes from, or that it is
assumed; one was fitted to measured steps (`gather_shown`), each source by itself.

    seconds in a step = seconds of the call x product of its role's `scales` (those of `CLOCKED`
                        on the slowest of the step's GPUs; of long products first what power
                        sustains, `sustained_s`)
                        + kernels (of a collective: nodes, or one) x sum of its role's `added`

The graph, the closed form, tables and plans all go by `ROLES`.
"""

# ruff: noqa: RUF009  (`effect` makes a dataclass field)
from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridperf.fields.frameworks import training_frameworks
from hybridperf.io.documents import shipped_toml
from hybridperf.io.namespace import Array, array_module

OF_OPS = ("gemm", "experts", "attention")  # effects on what the op model prices
CLOCKED = ("gemm", "attention")  # what a slow clock prolongs
LAUNCH_S, LAUNCH_WIDTH = 45e-6, 0.45  # of a host that nobody measured, and its width in logs


@dataclasses.dataclass(frozen=True)
class Belief:
    """What is believed of an effect before any step is measured."""

    median: float
    width: float  # in logs
    source: str


def effect(median: float, width: float, source: str) -> Any:
    """A field whose default is the median that is believed."""
    return dataclasses.field(default=median, metadata={"belief": Belief(median, width, source)})


def of_framework(name: str) -> Any:
    """The field of an effect that the steps of one framework alone have: its file says what is
    believed of it (`own_effects` in `fields/frameworks/`).
    """
    every = (one.get("own_effects", {}) for one in training_frameworks().values())
    (own,) = (one[name] for one in every if name in one)
    return effect(**own)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepEffects:
    """One number each for a batch of rows; leaves may be traced by JAX or carry a batch."""

    # fmt: off
    gemm: Any = effect(1.0, 0.1,
        "the op model is fitted to measured products, power's limit is measured (`SUSTAINED`) or,"
        " on other architectures, assumed (`KNOWN`)")
    unlike_gpus: Any = effect(0.02, 0.5,
        "deviation of the clocks of GPUs of one kind, the slowest of which all others await: an"
        " average range of 8 %, 22 % at most, over five centres (Sinha et al., arXiv 2208.11035),"
        " taken for four deviations")
    experts: Any = effect(1.0, 0.3,
        "the op model's products of even groups; ragged ones, padded to tiles and narrowed expert"
        " by expert, take longer")
    attention: Any = effect(1.0, 0.3,
        "the op model, slower by what is published of a framework's own generation of kernels;"
        " few backward passes are measured")
    memory: Any = effect(1.25, 0.15,
        "measured loops, norms and softmax of an A100 reach 75 to 86 % of its bandwidth"
        " (NeuSight's tables)")
    launch_s: Any = effect(LAUNCH_S, LAUNCH_WIDTH,
        "host seconds between launches in shared PyTorch traces: A100 45 and 30 (forward,"
        " backward), V100 47 and 93, 42 and 36, 30 and 22, RTX 2080 Ti 82 and 60: geometric mean"
        " 44; the five hosts' own, 37, 65, 39, 26 and 70, scatter by 0.41 in logs, so 0.45 for a"
        " sixth")
    backward_launch: Any = effect(1.0, 0.2,
        "a launch of the backward pass over one of the forward in those traces: 0.5 to 2, mean"
        " 0.9")
    collective_launch_s: Any = effect(60e-6, 0.7,
        "assumed: issuing a collective is a launch and some ops of its framework around it")
    exposed_kernel_s: Any = effect(5e-6, 1.5,
        "the least that a kernel of measured tables takes, and the gap between two in a trace"
        " that never waits for its host: 2 to 6 us")
    tp: Any = effect(1.0, 0.15, "the links' own model, inside a node")
    tp_arrival_s: Any = effect(40e-6, 1.2,
        "tables start with all ranks ready; in a step each is fed by its own host, about one"
        " launch apart")
    tp_across: Any = effect(1.0, 0.3, "the links' own model, between nodes")
    tp_across_node_s: Any = effect(10e-6, 1.0,
        "for each node of a collective: twice NCCL's own network latency")
    ring_wait_s: Any = of_framework("ring_wait_s")
    crossing_tp_s: Any = of_framework("crossing_tp_s")
    layer_gather_s: Any = of_framework("layer_gather_s")
    stall_s: Any = of_framework("stall_s")
    exchange: Any = effect(1.0, 0.3, "context and expert parallel messages: the links' own model")
    gather: Any = effect(1.2, 0.3,
        "gathers of sharded parameters overlap with kernels that use the same memory")
    gather_shown: Any = effect(0.7, 0.5,
        "share of their part inside a node that shows despite the computation: fits of three"
        " sources, each by itself, held toward 0.5, say 0.58 (MosaicML: A100 0.43, H100 0.79),"
        " 0.57 (torchtitan) and 0.91 (Megatron-Bridge); any two of them 0.58 to 0.73")
    p2p: Any = effect(1.0, 0.2, "the links' own model")
    slot_s: Any = effect(100e-6, 1.0,
        "each micro-batch of a pipeline: posting and awaiting its messages")
    input_s: Any = effect(1e-3, 0.7,
        "each micro-batch: some 25 small ops for batch, masks, positions and the loss' mean")
    reduction: Any = effect(1.0, 0.15, "the links' own model")
    overlap_shown: Any = effect(0.19, 0.5,
        "share of the seconds of gradients and updated weights on their way by which kernels beside"
        " them take longer: 18.9 % in the mean and 40 % at most over models on A100s, H100s, MI210s"
        " and MI250s (Lee et al., arXiv 2507.03114)")
    optimizer: Any = effect(1.0, 0.3,
        "the op model: bytes at the share of bandwidth that loops reach")
    fixed_s: Any = effect(5e-3, 1.0,
        "a step's own host work: reading a batch, the loss, gradient norm, logging")
    # fmt: on

    def on_slowest(self, deviations: Array | None) -> StepEffects:
        """Effects on the GPU that is so many deviations slower than the mean (`slowest_of`)."""
        if deviations is None:
            return self
        longer = 1.0 + self.unlike_gpus * deviations
        return dataclasses.replace(self, **{name: longer * getattr(self, name) for name in CLOCKED})


def beliefs_of(effects: type) -> dict[str, Belief]:
    """What is believed of each field that is an `effect`."""
    return {field.name: field.metadata["belief"] for field in dataclasses.fields(effects)}


BELIEFS = beliefs_of(StepEffects)
NAMES = tuple(BELIEFS)


class Known(NamedTuple):
    """Frameworks and architectures of which the medians of some effects are known to differ."""

    effects: Sequence[str]
    factor: float  # on each median
    source: str
    frameworks: Sequence[str] = ()  # (): any
    archs: Sequence[str] = ()  # (): any


SHIPPED = shipped_toml("hybridperf.model", "known_effects.toml")
KNOWN = (
    *(Known(**one) for one in SHIPPED["training"]),
    *(
        Known(**one, frameworks=(name,))
        for name, framework in training_frameworks().items()
        for one in framework.get("effects", ())
    ),
)
# by architecture: share of a format's peak that products of 16 bits, and those of fewer or
# attention, keep up at the power limit
SUSTAINED: Mapping[str, tuple[float, float]] = SHIPPED["sustained"]
# by hand: products at 0.97 of that share lost nothing, by half as sharp a limit they would lose 7 %
_POWER_SHARPNESS = 16.0
_DEVIATIONS = np.linspace(-10.0, 10.0, 20000)


@functools.cache
def slowest_of(ranks: int) -> float:
    """Expected largest of so many independent normal numbers, in deviations."""
    below = _normal_below() ** ranks
    return float(np.trapezoid((_DEVIATIONS > 0) - below, _DEVIATIONS))


@functools.cache
def _normal_below() -> np.ndarray:
    """Chance that a normal number lies below each of `_DEVIATIONS`."""
    return np.array([math.erfc(-at / math.sqrt(2)) / 2 for at in _DEVIATIONS.tolist()])


def known_factor(effect: str, framework: str, arch: str) -> float:
    """What multiplies an effect's median for a framework on an architecture."""
    return math.prod(
        one.factor for one in KNOWN
        if effect in one.effects and framework in (one.frameworks or (framework,))
        and arch in (one.archs or (arch,))
    )  # fmt: skip


def effects_of(theta: Array) -> StepEffects:
    """Step effects from their logs [K]; `theta` may be traced."""
    module = array_module(theta)
    return StepEffects(**{name: module.exp(theta[at]) for at, name in enumerate(NAMES)})


class Role(NamedTuple):
    """What a step makes of the seconds of a call that plays this part in it."""

    scales: tuple[str, ...] = ()  # effects that multiply
    added: tuple[str, ...] = ()  # effects that are seconds, added for each of its `count`
    larger: bool = False  # smoothly the larger of both, not their sum

    def scale(self, k: StepEffects) -> Array:
        """Factor on the seconds of calls."""
        found = 1.0
        for name in self.scales:
            found = found * getattr(k, name)
        return found

    def seconds(self, k: StepEffects, alone_s: Array, count: Array) -> Array:
        """Seconds in a step of what takes `alone_s` by itself."""
        scaled_s = self.scale(k) * alone_s
        if not self.added:
            return scaled_s
        added_s = sum(getattr(k, name) for name in self.added) * count
        return larger_s(scaled_s, added_s) if self.larger else scaled_s + added_s


_ON_THE_GPU = ("exposed_kernel_s",)
ROLES: Mapping[str, Role] = {
    "": Role(),  # no part of a step that effects are known of
    "gemm": Role(("gemm",), _ON_THE_GPU),
    "experts": Role(("gemm", "experts"), _ON_THE_GPU),
    "attention": Role(("attention",), _ON_THE_GPU),
    "memory": Role(("memory",), _ON_THE_GPU),
    "optimizer": Role(("optimizer", "memory")),
    "tp": Role(("tp",), ("tp_arrival_s",)),
    "tp_across": Role(("tp_across",), ("tp_across_node_s",), larger=True),
    "tp_waiting": Role(("tp_across",), ("tp_across_node_s", "ring_wait_s"), larger=True),
    "exchange": Role(("exchange",)),
    "gather": Role(("gather",)),
    "gather_shown": Role(("gather", "gather_shown")),
    "reduction": Role(("reduction",)),
    "overlap_shown": Role(("reduction", "overlap_shown")),
    "p2p": Role(("p2p",)),
    # of hosts and of waiting: so many times the effect
    "launch": Role((), ("launch_s",)),
    "backward_launch": Role(("launch_s", "backward_launch")),
    "collective_launch": Role((), ("collective_launch_s",)),
    "slot": Role((), ("slot_s",)),
    "input": Role((), ("input_s",)),
    "fixed": Role((), ("fixed_s",)),
    "layer_gather": Role((), ("layer_gather_s",)),
    "crossing": Role((), ("crossing_tp_s",)),
    "ring": Role((), ("tp_across_node_s", "ring_wait_s")),
    "stall": Role((), ("stall_s",)),
}
ROLE_NAMES = tuple(ROLES)
# Of the larger of latency and links' time: short messages show both. By hand; with half or twice as
# much, rows of 128 and of 256 GPUs from fewer err within 0.2 points of the same
_SHARPNESS = 3.0


def larger_s(links_s: Array, latency_s: Array) -> Array:
    """Smoothly the larger of what bytes take and a latency."""
    xp = array_module(links_s, latency_s)
    most = xp.maximum(links_s, latency_s) + 1e-12
    # a trifle more, where the slope of a root is finite
    powers = (links_s / most) ** _SHARPNESS + (latency_s / most) ** _SHARPNESS + 1e-30
    return most * powers ** (1 / _SHARPNESS)


def sustained_s(xp: Any, alone_s: Array, power_s: Array) -> Array:
    """Seconds of ops in the long run [U] or [U, B]: those of a cool card or, smoothly, those that
    its power limit allows [U], if longer: flops over the rate that it sustains (the energy roofline
    of Choi et al., IPDPS 2013, at a fixed power); 0: of no op that it limits.
    """
    column = (slice(None),) + (None,) * (alone_s.ndim - 1)
    ratio = xp.clip(xp.asarray(power_s)[column] / xp.maximum(alone_s, 1e-12), 0.0, 100.0)
    return alone_s * (1.0 + ratio**_POWER_SHARPNESS) ** (1.0 / _POWER_SHARPNESS)


def vector(k: StepEffects) -> Array:
    """Effects as one array [K], in the order of `NAMES`."""
    values = [getattr(k, name) for name in NAMES]
    module = array_module(*values)
    return module.stack([module.asarray(one) for one in values])


@functools.cache
def role_matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each role and effect [R, K]: whether it scales, whether it is added; [R] if `larger`."""
    roles = [ROLES[name] for name in ROLE_NAMES]
    scales = np.array([[float(effect in role.scales) for effect in NAMES] for role in roles])
    added = np.array([[float(effect in role.added) for effect in NAMES] for role in roles])
    return scales, added, np.array([role.larger for role in roles])


def by_role(xp: Any, effects: Array, slowest: Array) -> tuple[Array, Array]:
    """Of each role [R] or [R, B] by effects [K] or [K, B]: the factor on seconds, the seconds that
    are added for each count; on a GPU as slow as `StepEffects.on_slowest` takes it.
    """
    scales, added, _ = role_matrices()
    longer = xp.log1p(slowest * effects[NAMES.index("unlike_gpus")])
    clocked = scales[:, [NAMES.index(name) for name in CLOCKED]].sum(1)
    logs = xp.asarray(scales, effects.dtype) @ xp.log(effects)
    scale = xp.exp(logs + xp.multiply.outer(xp.asarray(clocked, effects.dtype), longer))
    return scale, xp.asarray(added, effects.dtype) @ effects
