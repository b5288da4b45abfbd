"""Collectives of a table as the prior sees them: traffic over links, and the implementation.

A slot is collective, implementation and link, and the library's version where it is known
(`all_reduce|nccl|nvlink#2.27.3`): its knobs are its own. Runs of one library that differ only in
their environment (`variant`) share a slot; a row's other words are flags, ignored where the prior
never met them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from hybridperf.collectives.algorithms import experts, ring
from hybridperf.collectives.algorithms.told import ALGORITHMS, before_trees, told
from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.traffic import Links, by_host, canonical_collective, link_of, sent
from hybridperf.fields import fields_of
from hybridperf.fields.columns import read_columns
from hybridperf.fields.registry import NO, YES
from hybridperf.hardware import SystemSpec
from hybridperf.io import InputError, real_numbers, require_columns
from hybridperf.io.later import pd
from hybridperf.learning.inputs import RANGE_SLACK_OCTAVES, Inputs
from hybridperf.learning.prior.form import ClosedForm
from hybridperf.learning.prior.implementation import CollectiveImplementation, unversioned

FIELDS = fields_of("collectives")
DEFAULT_IMPLEMENTATION = "nccl"
LARGEST_BYTES, MOST_RANKS = 1e20, 10**9  # of a collective; more is a slip, not a message
_SIZES = ("log2_bytes", "log2_ranks_per_node", "log2_nodes")
_OF_BYTES = ("log2_bytes", "log2_bytes_per_rank")  # inputs that grow by one where bytes double
_FLAG = {YES: "1", NO: "0"}
# of ranks per node or nodes: doubling either leaves a fiftieth of what was learned
_FADING_OCTAVES = 0.5
_SLACK = 2**RANGE_SLACK_OCTAVES  # so much beyond what was measured still counts as inside
_OF_EXPERTS = ("topk", "experts", "expert_groups", "topk_groups", "sms")
# libraries whose `variant` tells where they ran, not which kernel
_VARIANT_IS_ENVIRONMENT = ("nccl", "rccl", "gloo")


@dataclasses.dataclass(frozen=True)
class MeasuredSizes:
    """Sizes of one collective, library and link that were measured on one placement of ranks."""

    group: str  # a `CollectiveImplementation` as text
    ranks_per_node: int
    nodes: int
    least_bytes: float
    most_bytes: float


@dataclasses.dataclass(frozen=True)
class CollectiveRows:
    """Some collectives on one system. N rows."""

    seconds: np.ndarray  # [N, 2] of traffic inside nodes and across them at the datasheet's rates
    bytes: np.ndarray  # [N]
    ranks_per_node: np.ndarray  # [N]
    nodes: np.ndarray  # [N]
    steps: np.ndarray  # [N, 4] see `Collective.steps`
    implementation: np.ndarray  # object [N]
    inputs: Inputs  # [N, f]
    sizes: ClassVar[tuple[str, ...]] = _SIZES
    form: ClassVar[ClosedForm] = ALPHA_BETA

    def __len__(self) -> int:
        return len(self.implementation)

    def work(self) -> np.ndarray:
        return np.column_stack([self.seconds, self.ranks_per_node, self.nodes, self.steps])

    def matrix(self) -> None:
        return None

    @functools.cached_property
    def group(self) -> np.ndarray:
        """object [N] `implementation` without the version."""
        return np.array(list(map(unversioned, self.implementation)), object)

    @functools.cached_property
    def version(self) -> np.ndarray:
        """object [N] that of `implementation`."""
        return np.array([slot.partition("#")[2] for slot in self.implementation], object)

    def among(self, slots: Iterable[str]) -> np.ndarray:
        """Whether each row's group is among `slots`, in any version [N]."""
        met = set(map(unversioned, slots))
        return np.array([group in met for group in self.group], bool)

    def usual_versions(self) -> dict[str, str]:
        """The library's version that most rows of a group name, by group, where they name one."""
        counts = Counter(zip(self.group, self.version, strict=True))
        usual = dict(sorted(counts, key=lambda kind: counts[kind]))
        return {group: version for group, version in usual.items() if version}

    @functools.cached_property
    def place(self) -> list[tuple[str, int, int]]:
        """[N] group, ranks per node and nodes."""
        ranks, nodes = (column.astype(int).tolist() for column in (self.ranks_per_node, self.nodes))
        return list(zip(self.group.tolist(), ranks, nodes, strict=True))

    def measured(self) -> tuple[MeasuredSizes, ...]:
        """Which sizes there are among the rows."""
        sizes: dict[tuple[str, int, int], list[float]] = {}
        for place, size in zip(self.place, self.bytes.tolist(), strict=True):
            sizes.setdefault(place, []).append(size)
        return tuple(MeasuredSizes(*at, min(of), max(of)) for at, of in sorted(sizes.items()))

    def nearness(self, measured: Sequence[MeasuredSizes]) -> np.ndarray:
        """1 where a row's group was measured on its placement, 0 far from it [N]."""
        octaves = []
        for group, g, nodes in self.place:
            apart = (
                np.hypot(np.log2(g / one.ranks_per_node), np.log2(nodes / one.nodes))
                for one in measured
                if one.group == group
            )
            octaves.append(min(apart, default=np.inf))
        return np.exp(-((np.array(octaves) / _FADING_OCTAVES) ** 2))

    def within(
        self, measured: Sequence[MeasuredSizes], kind: np.ndarray, bytes_: np.ndarray
    ) -> np.ndarray:
        """Whether so many bytes [M] of some of these kinds count as measured."""
        sizes = {
            (one.group, one.ranks_per_node, one.nodes): (one.least_bytes, one.most_bytes)
            for one in measured
        }
        low, high = np.array([sizes.get(place, (np.inf, 0.0)) for place in self.place]).T[:, kind]
        return np.asarray((bytes_ >= low / _SLACK) & (bytes_ <= high * _SLACK))

    def rows(self, keep: np.ndarray) -> CollectiveRows:
        names = ("seconds", "bytes", "ranks_per_node", "nodes", "steps", "implementation")
        own = {name: getattr(self, name)[keep] for name in names}
        return dataclasses.replace(self, **own, inputs=self.inputs.rows(keep))

    def resized(self, bytes_: np.ndarray) -> CollectiveRows:
        """The same collectives with other bytes [N]."""
        growth = (bytes_ / self.bytes)[:, None]
        values = self.inputs.values + np.log2(growth) * np.isin(self.inputs.names, _OF_BYTES)
        inputs = Inputs(self.inputs.names, values)
        return dataclasses.replace(self, seconds=self.seconds * growth, bytes=bytes_, inputs=inputs)


def collective_rows(
    frame: pd.DataFrame, system: SystemSpec, versions: Mapping[str, str] | None = None
) -> CollectiveRows:
    """The rows of a table that passed `table.checked`, on a system.

    `versions`: by group, the library's version of rows that name none.
    """
    n = len(frame)
    names = frame["collective"].to_numpy(object)
    columns = ("bytes", "n_gpus", "n_nodes")
    bytes_, ranks, nodes = (frame[column].to_numpy(np.float64) for column in columns)
    g = ranks / nodes
    inside, across, talking, steps = sent_as_told(frame, g, nodes)
    links, way = Links.of(system), by_host(system, g)
    seconds = np.stack(links.seconds(bytes_ * inside, bytes_ * across, talking, way), -1)
    link = np.where(nodes > 1, "network", link_of(system)).astype(object)
    implementation, version = implementations(frame), text(frame, "lib_version")
    groups = map(str, map(CollectiveImplementation, names, implementation, link))
    group = np.array(list(groups), object)
    if versions:
        usual = np.array([versions.get(one, "") for one in group], object)
        version = np.where(version == "", usual, version)
    network_share = system.node_bytes_per_s / system.accelerators_per_node
    values = {
        "log2_bytes": np.log2(bytes_),
        "log2_ranks_per_node": np.log2(g),
        "log2_nodes": np.log2(nodes),
        "log2_bytes_per_rank": np.log2(bytes_ / ranks),
        "three_or_more": ranks > 2,
        "in_network_reduction": np.full(n, system.in_network_reduction) & (ranks > 2),
        "log2_link_rate": np.log2(links.inside_rate(way)),
        "log2_network_rate": np.full(n, np.log2(network_share)),
    }
    in_place = [_FLAG.get(word, word) for word in meant(frame, "in_place", NO)]
    flags = {
        "collective": names, "implementation": implementation, "link": link, "version": version,
        "dtype": meant(frame, "dtype"), "in_place": np.array(in_place, object),
    }  # fmt: skip
    for label, of_row in flags.items():
        values |= {f"{label}={word}": of_row == word for word in dict.fromkeys(of_row) if word}
    stacked = np.stack([np.asarray(value, np.float64) for value in values.values()], 1)
    slot = np.where(version == "", group, group + "#" + version)
    return CollectiveRows(seconds, bytes_, g, nodes, steps, slot, Inputs(tuple(values), stacked))


def sent_as_told(
    frame: pd.DataFrame, g: np.ndarray, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`traffic.sent` of rows; over nodes NCCL takes the algorithm that it is told to, or has."""
    names = frame["collective"].to_numpy(object)
    inside, across, talking, steps = sent(names, g, nodes)
    lib, version = text(frame, "lib", DEFAULT_IMPLEMENTATION), text(frame, "lib_version")
    old = before_trees(np.where(version == "", lib, version))
    algorithm = np.where(old, "ring", told(text(frame, "variant")))
    free = (nodes <= 1) | ~np.array([word.lower().startswith("nccl") for word in lib], bool)
    for name, steps_of in ALGORITHMS.items():
        at = ~free & (algorithm == name)
        steps[at] = np.stack(2 * steps_of(g[at], nodes[at]), 1)
    rings = ~free & (algorithm == "ring") & (names == "all_reduce")
    across[rings] = 2 * ring.across(g, nodes)[rings]
    return inside, across, talking, steps


def implementations(frame: pd.DataFrame) -> np.ndarray:
    """[N] the library of each row, or where it offers several kernels, which of them."""

    @functools.cache
    def named(lib: str, variant: str) -> str:
        environment = lib.lower().startswith(_VARIANT_IS_ENVIRONMENT)
        return lib.lower().split()[0] if environment else (variant or lib).lower()

    lib = text(frame, "lib", DEFAULT_IMPLEMENTATION)
    return np.array(list(map(named, lib, text(frame, "variant"))), object)


def text(frame: pd.DataFrame, column: str, absent: str = "") -> np.ndarray:
    """object [N] words of a column, `absent` where there are none."""
    if column not in frame:
        return np.full(len(frame), absent, object)
    words = frame[column].astype(object).where(frame[column].notna(), absent).astype(str)
    return words.where(words != "", absent).to_numpy(object)


def meant(frame: pd.DataFrame, column: str, absent: str = "") -> np.ndarray:
    """object [N] a column's words as its field's own, in lower case where the field has none."""
    field, (codes, words) = FIELDS[column], pd.factorize(text(frame, column, absent))
    return np.array([field.meant(word) or word.lower() for word in words], object)[codes]


def checked(
    frame: pd.DataFrame, system: SystemSpec | None = None
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """(usable rows with canonical names, why others cannot be priced [N], what was assumed [N]).

    The usable rows keep their position in `frame` as their index. A row without `n_nodes` is read
    by its `gpus_per_node`; without either, it is taken to run on as few nodes as hold its ranks.
    Where switches join trays, nodes are their domains: trays that a row counts become these.
    """
    read = read_columns(frame, "collectives")
    frame = read.frame.reset_index(drop=True)
    require_columns(frame, ["collective", "bytes", "n_gpus"], "a table of collectives")
    n = len(frame)
    problem, assumed = np.full(n, "", object), np.full(n, "", object)

    def refuse(where: np.ndarray, why: str, *values: Any) -> None:
        """Note why, with the rows' `values` filled in, for rows that have no problem yet."""
        for at in np.flatnonzero(where & (problem == "")):
            problem[at] = why.format(*(value[at] for value in values))

    spelling, spelt = pd.factorize(frame["collective"], use_na_sentinel=False)
    known = np.array([*map(_named, spelt), ("", "")], object)  # the last for tables without rows
    names, problem[:] = known[spelling].T
    for at, why in read.refused.items():
        problem[at] = why
    bytes_, ranks = real_numbers(frame["bytes"]), real_numbers(frame["n_gpus"])
    why = "expected bytes above zero, got {!r}; mend or drop the row"
    refuse(~(np.isfinite(bytes_) & (bytes_ > 0)), why, frame["bytes"].tolist())
    why = f"expected bytes from 1 to {LARGEST_BYTES:g}, got {{:g}}; mend or drop the row"
    refuse((bytes_ < 1) | (bytes_ > LARGEST_BYTES), why, bytes_)
    why = "expected n_gpus of 2 or more, a whole number, got {!r}; mend the row"
    refuse(~(_whole(ranks) & (ranks >= 2)), why, frame["n_gpus"].tolist())
    why = f"expected n_gpus up to {MOST_RANKS:g}, got {{:g}}; mend the row"
    refuse(ranks > MOST_RANKS, why, ranks)
    nodes = np.full(n, np.nan)
    if "n_nodes" in frame:
        nodes = _numbers_or_blank(frame["n_nodes"])
    if "gpus_per_node" in frame:
        by_nodes = ranks / _numbers_or_blank(frame["gpus_per_node"])
        nodes = np.where(np.isnan(nodes), by_nodes, nodes)
    most = system.accelerators_per_node if system else MOST_RANKS
    there = _whole(ranks) & (ranks >= 2) & (ranks <= MOST_RANKS)
    untold = there & np.isnan(nodes)
    nodes[untold] = _fewest(ranks[untold], most)
    assumed[untold & (nodes == 1)] = "no n_nodes given: one node"
    for place in np.flatnonzero(untold & (nodes > 1)):
        count = f"{nodes[place]:g} nodes, the fewest that hold them"
        assumed[place] = f"no n_nodes given: {count}"
    why = "expected n_nodes of 1 or more, a whole number; mend n_nodes or gpus_per_node"
    refuse(~(_whole(nodes) & (nodes >= 1)), why)
    with np.errstate(invalid="ignore"):
        uneven = ranks % np.where(nodes >= 1, nodes, 1) != 0
    refuse(uneven, "{:g} ranks do not divide into {:g} nodes; mend n_gpus or n_nodes", ranks, nodes)
    if "gpus_per_node" in frame:
        g = real_numbers(frame["gpus_per_node"])
        why = "n_gpus is not n_nodes times gpus_per_node; mend one of them"
        refuse(np.isfinite(g) & (g * nodes != ranks), why)
    if "in_place" in frame:
        given = text(frame, "in_place")
        said = np.array([FIELDS["in_place"].meant(word) is not None for word in given], bool)
        refuse(~said, "expected yes or no in in_place, got {!r}; mend the row", given)
    if system and system.tray_accelerators:
        trays = there & (ranks <= nodes * system.tray_accelerators)
        nodes[trays] = _fewest(ranks[trays], most)
    if system is not None and "system" in frame:
        others = frame["system"].notna() & (frame["system"].astype(str) != system.id)
        assumed[others.to_numpy()] = f"the row is of another system, predicted for {system.id}"
    of_experts = [name for name in _OF_EXPERTS if name in frame]
    unread = frame[of_experts].notna().to_numpy(bool) & ~np.isin(names, experts.NAMES)[:, None]
    for at, name in np.argwhere(unread):
        told = f"{of_experts[name]} is read of {' and '.join(experts.NAMES)} alone"
        assumed[at] = "; ".join(filter(None, (assumed[at], told)))
    good = frame.assign(collective=names, bytes=bytes_, n_gpus=ranks, n_nodes=nodes)
    return good[problem == ""], problem, assumed


def _fewest(ranks: np.ndarray, most: int) -> np.ndarray:
    """[N] the smallest numbers of nodes into which ranks divide, each of `most` or fewer."""
    found = {
        one: next(n for n in range(math.ceil(one / most), int(one) + 1) if one % n == 0)
        for one in set(ranks.tolist())
    }
    return np.array([found[one] for one in ranks.tolist()], np.float64)


def _numbers_or_blank(column: pd.Series) -> np.ndarray:
    """Numbers [N], NaN where a cell is empty and -1 where it holds no number."""
    found = real_numbers(column)
    return np.where(np.isnan(found) & column.notna().to_numpy(), -1.0, found)


def joined(*columns: np.ndarray) -> np.ndarray:
    """Texts [N] of some columns, of which some are empty, joined by semicolons."""
    words: dict[tuple[str, ...], str] = {}
    for row in {*zip(*columns, strict=True)}:
        words[row] = "; ".join(filter(None, row))
    return np.array([words[row] for row in zip(*columns, strict=True)], object)


def _named(spelling: str) -> tuple[str, str]:
    """(our name of a collective, why there is none)."""
    try:
        return canonical_collective(spelling), ""
    except InputError as error:
        return "", str(error)


def _whole(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values == np.floor(values))
