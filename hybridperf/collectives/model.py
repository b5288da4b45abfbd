"""A calibrated system: the time of any collective on it, with interval.

What a table or a call says of a collective becomes its kind (knobs and curves) and its bytes; what
these cost says `price`. `predict` answers a table of rows; `table` gives arrays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hybridperf.collectives import form, network, widths
from hybridperf.collectives.algorithms.told import not_told_apart
from hybridperf.collectives.measured import MeasuredSizes, limits_of, nearness
from hybridperf.collectives.price import (
    BELIEF,
    DATASHEET,
    DATASHEET_THETA,
    FIXED,
    LOG2_BYTES,
    NOTHING,
    OTHER_LIBRARY,
    OWN_ROWS,
    PRIOR,
    REFERENCES,
    CollectiveTable,
    Curves,
    never_falling,
    price,
)
from hybridperf.collectives.rows import (
    DEFAULT_IMPLEMENTATION,
    CollectiveRows,
    checked,
    collective_rows,
    has_knobs,
    join_remarks,
)
from hybridperf.collectives.traffic import (
    Links,
    bus_bytes_per_s,
    by_host,
    link_of,
    nodes_of,
    pair_traffic,
    shares,
)
from hybridperf.collectives.versions import Versions, taken_for_known, taken_for_usual
from hybridperf.hardware import SystemSpec, load_system, names_people_use
from hybridperf.io import (
    InputError,
    hash_of,
    installed_hardware,
    read_arrays,
    read_json,
    replacing_in,
    settled,
    unknown,
    write_arrays,
    write_json,
)
from hybridperf.io.later import pd
from hybridperf.io.process import check_not_forked
from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.learning.prior import Adapted
from hybridperf.learning.prior.implementation import CollectiveImplementation, unversioned

SCHEMA_VERSION = 2  # 2: checksums
_UNCHECKED = 1  # the last version without them
DOCUMENT, _WEIGHTS = "collectives.json", "collectives.npz"
# whose part inside a node is the same collective of the node's own ranks, with as many bytes
# (`collectives/traffic.py`)
_COMPOSED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_OF_A_NODE = ("hop_s", "ring", "intra_efficiency", "rank_decay")  # knobs of a node's own links
_PLACE = ("collective", "n_gpus", "n_nodes")
IMPLEMENTATION = ("lib", "lib_version", "variant", "dtype", "in_place")
_NUMBERS = ("predicted_s", "low_s", "high_s", "roofline_s", "bus_bytes_per_s")


class Kinds(NamedTuple):
    """Kinds of collectives on a system: rows of one kind differ in bytes alone."""

    table: CollectiveTable  # [C] of one byte
    least_bytes: np.ndarray  # [C] of what was measured of it
    most_bytes: np.ndarray  # [C]
    strange: np.ndarray  # bool [C] of another library, taken for the usual one
    met: np.ndarray  # bool [C] its collective, library and link were measured
    remarks: list[tuple[str, np.ndarray]]  # texts, and the kinds [C] that each is about

    def near(self, kind: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
        """Whether rows [N] of some kinds lie inside the sizes that were measured of them."""
        low, high = self.least_bytes[kind], self.most_bytes[kind]
        return np.asarray((bytes_ >= low) & (bytes_ <= high))


@dataclasses.dataclass(frozen=True)
class CollectiveModel:
    """Predicts the seconds of collectives on one system."""

    system: SystemSpec
    adapted: Adapted | None  # the prior fitted to measured rows; None: the datasheet alone
    provenance: Mapping[str, Any]  # where the rows come from, dates, versions
    measured: tuple[MeasuredSizes, ...] = ()  # sizes and placements that were measured
    # library version by implementation, for rows that name none
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # versions by library (or one of its kernels): others are taken for the nearest of them
    known_versions: Versions = dataclasses.field(default_factory=dict)
    learned_on: SystemSpec | None = None  # whose rates corrections belong to; None: `system`

    def __repr__(self) -> str:
        how = "datasheet latency and rates, nothing measured"
        if self.adapted is not None:
            how = "prior alone, nothing measured"
            if self.adapted.rows:
                measured = {CollectiveImplementation.parse(one.group) for one in self.measured}
                libraries = sorted({one.library for one in measured})
                how = f"fitted to {self.adapted.rows:,} measured rows of {', '.join(libraries)}"
        return f"<CollectiveModel: {self.system.id}: {how}>"

    @staticmethod
    def datasheet(system: SystemSpec) -> CollectiveModel:
        """A model without measurements: datasheet latency plus bytes at datasheet rates."""
        return CollectiveModel(system, None, {"made_by": "datasheet"})

    def shortcomings(self) -> list[str]:
        """Sentences to read before any number; empty for a system that was measured."""
        priced = f"collectives of {self.system.id} are priced by"
        if self.adapted is None:
            return [f"{priced} its datasheet: nothing was measured, and real ones are slower"]
        if not self.adapted.rows:
            return [f"{priced} what other systems showed: none of it is known"]
        return []

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table with predictions in seconds, their interval, and notes.

        Adds `predicted_s, low_s, high_s, roofline_s, bus_bytes_per_s, in_range, note`. `roofline_s`
        is bytes at the datasheet's rates plus its latency; it is no lower bound: small collectives
        can be quicker than that latency. A row that cannot be priced keeps its place with empty
        numbers and the reason in `note`.
        """
        check_not_forked()
        good, note, assumed = checked(frame, self.system)
        out = {name: np.full(len(frame), np.nan) for name in _NUMBERS}
        in_range = np.zeros(len(frame), bool)
        if len(good):
            at, bytes_ = good.index.to_numpy(), good["bytes"].to_numpy(np.float64)
            kinds, kind = self.kinds(good)
            table, near = kinds.table.rows(kind).sized(bytes_), kinds.near(kind, bytes_)
            priced = price(table, self.links())
            half = NINE_OF_TEN * np.sqrt(priced.log_variance)
            out["predicted_s"][at] = priced.seconds
            out["low_s"][at] = priced.seconds * np.exp(-half)
            out["high_s"][at] = priced.seconds * np.exp(half)
            out["roofline_s"][at] = price(self.bare(table), self.links()).seconds
            in_range[at] = near & ~kinds.strange[kind]
            too_many = table.ranks_per_node > self.system.accelerators_per_node
            far = ~near & ~kinds.strange[kind] & kinds.met[kind]
            noted = [(text, assumed[at] == text) for text in dict.fromkeys(assumed[at]) if text]
            noted += [(text, where[kind]) for text, where in kinds.remarks]
            outside = "outside the sizes, ranks and nodes that were measured"
            note[at] = join_remarks([*noted, (outside, far), (self.crowded_remark, too_many)])
            for name in good["collective"].unique():
                here = at[(good["collective"] == name).to_numpy()]
                sent, ranks = (good.loc[here, one].to_numpy() for one in ("bytes", "n_gpus"))
                bus = bus_bytes_per_s(name, sent, ranks, out["predicted_s"][here])
                out["bus_bytes_per_s"][here] = bus
        return frame.assign(**out, in_range=in_range, note=note)

    def kinds(self, good: pd.DataFrame) -> tuple[Kinds, np.ndarray]:
        """(kinds of collectives in a table that is `checked`, the kind of each row [N])."""
        named = [name for name in (*_PLACE, *IMPLEMENTATION) if name in good]
        kind = good.groupby(named, dropna=False, sort=False).ngroup().to_numpy()
        given = good.iloc[np.unique(kind, return_index=True)[1]].assign(bytes=1.0)
        known, strange = self._as_usual(self._with_library(given))
        rows = collective_rows(known, self.system, self.versions)
        table = self._table(known, rows, strange)
        inside = (rows.nodes > 1) & (rows.ranks_per_node > 1)
        inside &= known["collective"].isin(self._inside_alone).to_numpy()
        if inside.any():
            ranks = np.where(inside, rows.ranks_per_node, known["n_gpus"])
            part = known.assign(n_gpus=ranks, n_nodes=np.where(inside, 1.0, rows.nodes))
            of_node = collective_rows(part, self.system, self.versions)
            table = dataclasses.replace(table, least=self._table(part, of_node, strange))
        low, high = limits_of(self.measured, rows)
        if self.adapted is None:
            every = np.ones(len(rows), bool)
            remarks = [("datasheet alone: this model has no measurements", every)]
            return Kinds(table, low, high, strange, ~every, remarks), kind
        met = has_knobs(rows, self.adapted.knobs.implementations)
        remarks = self._remarks(given, rows, met)
        taken = f"no such collective of its library was measured: taken for {self.library}"
        remarks.append((taken, strange))
        return Kinds(table, low, high, strange, met & bool(self.adapted.rows), remarks), kind

    def correction_weight(self, rows: CollectiveRows) -> np.ndarray:
        """How much of the learned correction each row takes [N].

        1 where its collective, library, link and placement were measured, 0 far from it. Without
        any measurement the prior counts for all but what goes over a network: there the closed form
        alone was nearer for each of four networks left out.
        """
        if self.adapted is None:
            return np.ones(len(rows))
        if not self.adapted.rows:
            return np.where(rows.nodes > 1, 0.0, 1.0)
        return nearness(self.measured, rows)

    def _as_usual(self, good: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        """(rows, which of them are of a library that is taken for the usual one [N])."""
        if self.adapted is None:
            return good, np.zeros(len(good), bool)
        slots = (
            *self.adapted.knobs.implementations,
            *self.adapted.prior.population.implementations,
        )
        return taken_for_usual(good, slots, self.library)

    @functools.cached_property
    def _inside_alone(self) -> list[str]:
        """Collectives that were measured inside a node alone, and are composed of such a part."""
        measured: dict[str, set[bool]] = {}
        for one in self.measured:
            kind = CollectiveImplementation.parse(one.group).collective
            measured.setdefault(kind, set()).add(one.nodes > 1)
        return [name for name in _COMPOSED if measured.get(name) == {False}]

    def _table(
        self, known: pd.DataFrame, rows: CollectiveRows, strange: np.ndarray
    ) -> CollectiveTable:
        """Kinds [C] as arrays, of one byte; those of `strange` ones are of another library."""
        g, nodes = rows.ranks_per_node, rows.nodes
        inside, across, talking = shares(known["collective"].to_numpy(object), g, nodes)
        theta, curves = np.tile(DATASHEET_THETA, (len(rows), 1)), None
        source = np.full(len(rows), DATASHEET, np.int32)
        if self.adapted is not None:
            theta, curves = self._theta(rows), self._curves(known, rows, strange)
            over = (nodes > 1) & (not self.network_measured)
            source = np.where(over, BELIEF, np.where(curves.source, curves.source, PRIOR))
        return CollectiveTable(
            inside, across, talking, by_host(self.system, g), g, nodes, rows.steps, theta,
            source.astype(np.int32), curves,
        )  # fmt: skip

    def _curves(self, known: pd.DataFrame, rows: CollectiveRows, strange: np.ndarray) -> Curves:
        """What was learned of kinds [C], at the rates and knobs that it was learned at.

        Where nothing counts of it the closed form stands alone, and the interval is as wide as
        without any measurement; those of `strange` kinds are as wide as another system's.
        """
        adapted, sizes = self.adapted, len(LOG2_BYTES)
        assert adapted is not None
        prior = adapted.prior
        if self.learned_on is not None:
            rows = collective_rows(known, self.learned_on, self.versions)
        every = np.arange(len(rows))
        grid = rows.rows(np.repeat(every, sizes)).resized(np.tile(2.0**LOG2_BYTES, len(rows)))
        said = adapted.predict(grid)
        log_s, closed, half = (
            one.reshape(-1, sizes)
            for one in (said.log_s, said.closed_log_s, said.high_log_s - said.log_s)
        )
        share = self.correction_weight(rows)[:, None]
        if not adapted.rows or (share < 1).any():
            without = widths.unmeasured(prior, rows)[:, None]
            # without rows: wider by the same where sizes lie beyond what the prior has seen
            none = without * half / prior.log_width
            half = share * half + (1 - share) * np.maximum(half, without) if adapted.rows else none
        wide = np.where(strange, widths.of_links(prior, rows), 0.0)[:, None]
        rising = np.stack([never_falling(one) for one in closed + share * (log_s - closed)])
        measured = {one.group for one in self.measured}
        own = np.array([unversioned(slot) in measured for slot in rows.implementation])
        others = REFERENCES if prior.population.references else PRIOR
        source = np.where(own, OWN_ROWS, np.where(share[:, 0] > 0, others, NOTHING))
        source = np.where(strange, OTHER_LIBRARY, source).astype(np.int32)
        return Curves(
            np.ones(len(rows)), every.astype(np.int32), self._usual_theta(rows), source, rising,
            np.maximum(half, wide), Links.of(self.learned_on or self.system),
        )  # fmt: skip

    def _remarks(
        self, given: pd.DataFrame, rows: CollectiveRows, met: np.ndarray
    ) -> list[tuple[str, np.ndarray]]:
        """Texts, and the kinds [C] that each is about."""
        assert self.adapted is not None
        absent = pd.Series(np.nan, given.index)
        no_lib = given.get("lib", absent).isna().to_numpy()
        no_version = given.get("lib_version", absent).isna().to_numpy()
        usual = [self.versions.get(unversioned(slot), "") for slot in rows.implementation]
        version = np.array(usual, object)
        nothing = np.full(len(rows), not self.adapted.rows)
        unmet = (
            "no such collective, library and link was measured: predicted from what others share"
        )
        return [
            (f"prior alone: no collective of {self.system.id} was measured", nothing),
            (f"no lib given: taken for {self.library}", no_lib),
            *(
                (f"no lib_version given: taken for {one}", no_version & (version == one))
                for one in dict.fromkeys(version[no_version])
                if one
            ),
            *(
                (f"lib_version {one} was not measured: taken for {other}", where)
                for (one, other), where in self._taken_for(given, rows).items()
            ),
            *(
                (f"{word} of variant is not told apart: taken for what the library chooses", told)
                for word, told in self._passed_over(given, rows).items()
            ),
            (unmet, ~met),
        ]

    def _taken_for(
        self, given: pd.DataFrame, rows: CollectiveRows
    ) -> dict[tuple[str, str], np.ndarray]:
        """(version of a row, the one it was taken for) -> such rows [N]."""
        if "lib_version" not in given or not self.known_versions:
            return {}
        said = given["lib_version"].fillna("").astype(str).to_numpy()
        used = np.array([slot.partition("#")[2] for slot in rows.implementation], object)
        other = (said != "") & (used != said)
        pairs = sorted(set(zip(said[other], used[other], strict=True)))
        return {(one, two): (said == one) & (used == two) for one, two in pairs}

    def _passed_over(self, given: pd.DataFrame, rows: CollectiveRows) -> dict[str, np.ndarray]:
        """Algorithm or protocol that a variant names in vain -> such rows [N]."""
        if "variant" not in given:
            return {}
        words = not_told_apart(given["variant"].fillna("").to_numpy(), rows.nodes)
        return {word: words == word for word in sorted(set(words) - {""})}

    @property
    def crowded_remark(self) -> str:
        """What to note where more ranks share a node than it has accelerators."""
        most = self.system.accelerators_per_node
        return (
            f"{self.system.id} has {most} accelerators in a node: more ranks there are priced as if"
            " it had, say on how many nodes they lie"
        )

    @property
    def library(self) -> str:
        """The library of rows that name none: the only measured one, else the usual one."""
        measured = {CollectiveImplementation.parse(one.group).library for one in self.measured}
        return measured.pop() if len(measured) == 1 else DEFAULT_IMPLEMENTATION

    def _with_library(self, frame: pd.DataFrame) -> pd.DataFrame:
        """With the library of rows that name none, and of its versions those that are known."""
        if self.library != DEFAULT_IMPLEMENTATION:
            lib = frame["lib"].fillna(self.library) if "lib" in frame else self.library
            frame = frame.assign(lib=lib)
        return taken_for_known(frame, self.known_versions)

    def table(self, frame: pd.DataFrame) -> CollectiveTable:
        """Rows of a table for `price`; `InputError` for one that cannot be priced."""
        return self.priced(frame)[0]

    def priced(
        self, frame: pd.DataFrame, pairs: Mapping[int, np.ndarray] = MappingProxyType({})
    ) -> tuple[CollectiveTable, np.ndarray]:
        """(rows [N] of a table for `price`, whether each lies inside what was measured [N]).

        `pairs`: of all-to-alls with unequal sizes, by row, what each rank sends to each [n, n].
        """
        good, problem, _ = checked(frame)
        if len(good) < len(frame):
            at = int(np.flatnonzero(problem != "")[0])
            raise InputError(f"row {at + 1}: {problem[at]}")
        bytes_ = good["bytes"].to_numpy(np.float64)
        kinds, kind = self.kinds(good)
        table = kinds.table.rows(kind).sized(bytes_).held()
        if pairs:
            rows = list(pairs)
            ranks = {at: len(pairs[at]) // int(table.nodes[at]) for at in rows}
            for at in rows:
                nodes_of(len(pairs[at]), ranks[at])
            inside, across, talking = np.array(
                [pair_traffic(pairs[at], ranks[at]) for at in rows]
            ).T
            part = kinds.table.rows(kind[rows]).carrying(inside, across, talking, self.links())
            table = table.with_rows(rows, part.held())
        return table, kinds.near(kind, bytes_) & ~kinds.strange[kind]

    def bare(self, table: CollectiveTable) -> CollectiveTable:
        """The same collectives by the datasheet's latency and rates alone."""
        theta = np.broadcast_to(DATASHEET_THETA, np.shape(table.theta))
        source = np.full(np.shape(table.source), DATASHEET, np.int32)
        return dataclasses.replace(table, theta=theta, source=source, learned=None, least=None)

    def on(self, system: SystemSpec) -> CollectiveModel:
        """The same links with other rates and another latency.

        Corrections stay those of the rates that were measured, so that a faster or quicker link
        makes no collective slower.
        """
        return dataclasses.replace(self, system=system, learned_on=self.learned_on or self.system)

    def groups(self) -> list[str]:
        """Each `CollectiveImplementation` that has knobs, as text."""
        slots = () if self.adapted is None else self.adapted.knobs.implementations
        return list(dict.fromkeys(map(unversioned, slots)))

    def knobs(self, group: str) -> dict[str, float]:
        """The closed form's knobs of one of `groups`, averaged over versions (see `form.plain`)."""
        if self.adapted is None:
            raise InputError(f"this model of {self.system.id} is its datasheet and has no knobs")
        mine = [
            i
            for i, slot in enumerate(self.adapted.knobs.implementations)
            if unversioned(slot) == group
        ]
        if not mine:
            raise unknown("group of collectives", group, self.groups(), "`groups` lists them")
        return form.plain(self.adapted.knobs.theta[mine].mean(0))

    @functools.cached_property
    def network_measured(self) -> bool:
        """Whether any collective between nodes was measured."""
        return any(one.nodes > 1 for one in self.measured)

    def links(self) -> Links:
        """The rates of this system's links."""
        return Links.of(self.system)

    def fingerprint(self) -> str:
        """Short hash of system, knobs and weights."""
        adapted = self.adapted
        learned = None if adapted is None else [adapted.document(), hash_of(adapted.arrays())]
        text = json.dumps([self.system.model_dump(), learned], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _theta(self, rows: CollectiveRows) -> np.ndarray:
        """[N, K] on this system, seconds over its latency."""
        found = self._usual_theta(rows)
        across = np.flatnonzero(rows.nodes > 1)
        if len(across) and not self.network_measured:
            found[across] = self._over_nodes(rows.rows(across), found[across] + self._latency)
            found[across] -= self._latency
        return found

    def _over_nodes(self, rows: CollectiveRows, theta: np.ndarray) -> np.ndarray:
        """Knobs [N, K] over a network that nobody measured: a node's own links carry, and their
        steps last, as they do inside it, but a step no less than what a ring or a tree over nodes
        costs.
        """
        names, link = form.ALPHA_BETA.knobs, link_of(self.system)
        slots = [str(name).replace("|network", f"|{link}") for name in rows.implementation]
        inside = dataclasses.replace(rows, implementation=np.array(slots, object))
        of_node = [names.index(name) for name in _OF_A_NODE]
        hop, ring, across = map(names.index, ("hop_s", "ring", "inter_efficiency"))
        theta[:, of_node] = (self._usual_theta(inside) + self._latency)[:, of_node]
        theta[:, hop] = np.maximum(theta[:, hop], np.log(network.RING_STEP_S) - theta[:, ring])
        theta[:, across] = np.log(network.share(self.system, rows.nodes))
        reduces = np.array([str(name).startswith("all_reduce|") for name in rows.implementation])
        of_sums = network.all_reduce_share(self.system, rows.nodes[reduces])
        theta[reduces, across] = np.log(of_sums)
        node_hop = names.index("node_hop_s")
        theta[reduces, node_hop] = np.maximum(theta[reduces, node_hop], np.log(network.TREE_STEP_S))
        return theta

    def _usual_theta(self, rows: CollectiveRows) -> np.ndarray:
        """[N, K] as they were learned, seconds over the latency there."""
        assert self.adapted is not None
        slots, known = rows.implementation, self.adapted.prior.population
        return self.adapted.knobs.including(known, slots).of(slots) - self._latency

    @functools.cached_property
    def _latency(self) -> np.ndarray:
        """[K] log of the latency at which knobs were learned, for those that are seconds."""
        return FIXED * np.log((self.learned_on or self.system).latency_s)

    def save(self, folder: str | os.PathLike) -> None:
        """Write `collectives.json` and, where anything was learned, `collectives.npz`."""
        arrays = {} if self.adapted is None else self.adapted.arrays()
        document = {
            "system": self.system.model_dump(),
            "adapted": None if self.adapted is None else self.adapted.document(),
            "measured": [dataclasses.asdict(one) for one in self.measured],
            "versions": dict(self.versions),
            "known_versions": {name: list(of) for name, of in self.known_versions.items()},
            "learned_on": None if self.learned_on is None else self.learned_on.model_dump(),
            "weights_sha256": hash_of(arrays),
            "provenance": dict(self.provenance),
        }
        with replacing_in(folder) as new:
            if arrays:
                write_arrays(new / _WEIGHTS, arrays)
            write_json(new / DOCUMENT, "collectives", SCHEMA_VERSION, document)


def find_collectives(name: str | os.PathLike) -> Path | None:
    """The folder of a model of collectives, by path or by the name of a shipped system; or None."""
    places, installed = [Path(name)], installed_hardware()
    if installed:
        with contextlib.suppress(InputError):
            places.append(installed / load_system(name).id)
    return next((place for place in places if os.path.exists(place / DOCUMENT)), None)


def collectives_of(system: str) -> CollectiveModel:
    """A calibrated model of a system's collectives, else that of its datasheet."""
    if find_collectives(system) is not None:
        return load_collectives(system)
    return CollectiveModel.datasheet(load_system(system))


def load_collectives(name: str | os.PathLike) -> CollectiveModel:
    """A calibrated model of collectives, from a folder or by the name of a shipped system.

    Raises:
        InputError: when there is no such folder or system, or its files are damaged.
    """
    folder = find_collectives(name)
    if folder is None:
        installed = installed_hardware()
        paths = installed.glob(f"*/{DOCUMENT}") if installed else ()
        known = [*sorted(path.parent.name for path in paths), *names_people_use("systems")]
        remedy = "give a folder made by `hybridperf fit --system`, or a shipped name"
        raise unknown("model of collectives", str(name), known, remedy)
    with settled(folder):
        return _loaded(folder)


def _loaded(folder: Path) -> CollectiveModel:
    document = read_json(folder / DOCUMENT, "collectives", SCHEMA_VERSION, _UNCHECKED)
    try:
        adapted = None
        if document["adapted"] is not None:
            checked, expected = document["schema_version"] > _UNCHECKED, document["weights_sha256"]
            arrays = read_arrays(folder / _WEIGHTS, str(expected), checked=checked)
            adapted = Adapted.read(arrays, document["adapted"])
        measured = tuple(MeasuredSizes(**one) for one in document["measured"])
        there = document.get("learned_on")
        return CollectiveModel(
            SystemSpec(**document["system"]), adapted, dict(document["provenance"]), measured,
            dict(document.get("versions", {})), dict(document.get("known_versions", {})),
            None if there is None else SystemSpec(**there),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise InputError(f"{folder / DOCUMENT} is damaged ({why}); restore it") from error
