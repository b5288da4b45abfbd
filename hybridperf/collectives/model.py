"""A calibrated system: the time of any collective on it, with interval.

    t = t0(knobs, links) x exp(correction),   correction frozen at the calibrated links

`predict` answers a table of rows; `table` gives the same as arrays (`collectives/table.py`).
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
from typing import Any

import numpy as np

from hybridperf.collectives import curves, form, network, widths
from hybridperf.collectives.algorithms.told import not_told_apart
from hybridperf.collectives.measured import MeasuredSizes, in_range_of, nearness
from hybridperf.collectives.rows import (
    DEFAULT_IMPLEMENTATION,
    CollectiveRows,
    checked,
    collective_rows,
    has_knobs,
    join_remarks,
)
from hybridperf.collectives.table import CollectiveTable, PricedCollectives
from hybridperf.collectives.traffic import Links, bus_bytes_per_s, link_of, shares
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
from hybridperf.learning.prior import Adapted, Predicted
from hybridperf.learning.prior.implementation import CollectiveImplementation, unversioned

SCHEMA_VERSION = 2  # 2: checksums
_UNCHECKED = 1  # the last version without them
DOCUMENT, _WEIGHTS = "collectives.json", "collectives.npz"
# whose part inside a node is the same collective of the node's own ranks, with as many bytes
# (`collectives/traffic.py`)
_COMPOSED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_OF_A_NODE = ("hop_s", "ring", "intra_efficiency", "rank_decay")  # knobs of a node's own links
_NUMBERS = ("predicted_s", "low_s", "high_s", "roofline_s", "bus_bytes_per_s")


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
    # where nothing between nodes was measured: `network.share` counts, not the prior's knob
    believes_network: bool = True

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
        good, problem, assumed = checked(self._with_library(frame), self.system)
        good, strange = self._as_usual(good)
        out = {name: np.full(len(frame), np.nan) for name in _NUMBERS}
        in_range, note = np.zeros(len(frame), bool), problem
        if len(good):
            rows, at = collective_rows(good, self.system, self.versions), good.index.to_numpy()
            out["roofline_s"][at] = form.seconds(_datasheet_theta(self.system), rows.work())
            if self.adapted is None:
                out["predicted_s"][at] = out["roofline_s"][at]
                every = np.ones(len(good), bool)
                remarks = [("datasheet alone: this model has no measurements", every)]
            else:
                predicted = self._predicted(good, rows, strange)
                out["predicted_s"][at] = np.exp(predicted.log_s)
                out["low_s"][at] = np.exp(predicted.low_log_s)
                out["high_s"][at] = np.exp(predicted.high_log_s)
                in_range[at] = in_range_of(self.measured, rows) & ~strange
                given = frame.reset_index(drop=True).loc[good.index]
                remarks = self._remarks(given, rows, in_range[at] | strange)
                taken = f"no such collective of its library was measured: taken for {self.library}"
                remarks.append((taken, strange))
            too_many = rows.ranks_per_node > self.system.accelerators_per_node
            words = [text for text in dict.fromkeys(assumed[at]) if text]
            noted = [(text, assumed[at] == text) for text in words]
            note[at] = join_remarks([*noted, *remarks, (self.crowded_remark, too_many)])
            for name in good["collective"].unique():
                here = at[(good["collective"] == name).to_numpy()]
                bytes_, ranks = (good.loc[here, one].to_numpy() for one in ("bytes", "n_gpus"))
                bus = bus_bytes_per_s(name, bytes_, ranks, out["predicted_s"][here])
                out["bus_bytes_per_s"][here] = bus
        return frame.assign(**out, in_range=in_range, note=note)

    def correction_weight(self, rows: CollectiveRows) -> np.ndarray:
        """How much of the learned correction each row takes [N].

        1 where its collective, library, link and placement were measured, 0 far from it. Without
        any measurement the prior counts for all but what goes over a network: there the closed form
        alone was nearer for each of four networks left out.
        """
        if self.adapted is None:
            return np.ones(len(rows))
        if not self.adapted.rows:
            return np.where((rows.nodes > 1) & self.believes_network, 0.0, 1.0)
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

    def _predicted(
        self, good: pd.DataFrame, rows: CollectiveRows, strange: np.ndarray
    ) -> Predicted:
        """Predictions; over nodes no less than a node's own part, where that alone was measured.

        Those of `strange` rows [N], which are of another library, are as wide as another system's.
        """
        assert self.adapted is not None
        found = self._as_learned(good, rows)
        if strange.any():
            wide = np.where(strange, widths.of_links(self.adapted.prior, rows), 0.0)
            half = np.maximum(found.high_log_s - found.log_s, wide)
            found = dataclasses.replace(
                found, low_log_s=found.log_s - half, high_log_s=found.log_s + half
            )
        measured: dict[str, set[bool]] = {}
        for one in self.measured:
            kind = CollectiveImplementation.parse(one.group).collective
            measured.setdefault(kind, set()).add(one.nodes > 1)
        inside_alone = [name for name in _COMPOSED if measured.get(name) == {False}]
        within = good["collective"].isin(inside_alone).to_numpy()
        at = np.flatnonzero(within & (rows.nodes > 1) & (rows.ranks_per_node > 1))
        if not len(at):
            return found
        part = good.iloc[at].assign(n_gpus=rows.ranks_per_node[at], n_nodes=1)
        inside = self._as_learned(part, collective_rows(part, self.system, self.versions))
        logs = ("log_s", "low_log_s", "high_log_s")
        least = {name: np.array(getattr(found, name)) for name in logs}
        for name, values in least.items():
            values[at] = np.maximum(values[at], getattr(inside, name))
        return dataclasses.replace(found, **least)

    def _as_learned(self, good: pd.DataFrame, rows: CollectiveRows) -> Predicted:
        """Predictions, scaled by the closed form where they were learned at other rates, or nothing
        between nodes was measured.
        """
        assert self.adapted is not None
        if self.learned_on is None and self.network_measured:
            return curves.predict(self.adapted, rows, self.correction_weight(rows))
        there = rows
        if self.learned_on is not None:
            there = collective_rows(good, self.learned_on, self.versions)
        predicted = curves.predict(self.adapted, there, self.correction_weight(there))
        here_s = form.seconds(self._theta(rows), rows.work())
        moved = np.log(here_s / form.seconds(self._usual_theta(there), there.work()))
        return Predicted(
            predicted.log_s + moved, predicted.low_log_s + moved, predicted.high_log_s + moved,
            predicted.closed_log_s + moved, predicted.outside,
        )  # fmt: skip

    def _remarks(
        self, given: pd.DataFrame, rows: CollectiveRows, in_range: np.ndarray
    ) -> list[tuple[str, np.ndarray]]:
        """Texts, and the rows [N] that each is about."""
        assert self.adapted is not None
        met = has_knobs(rows, self.adapted.knobs.implementations)
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
            ("outside the sizes, ranks and nodes that were measured", ~in_range & met & ~nothing),
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
        """Rows of a table for `collective_seconds`; `InputError` for one that cannot be priced."""
        return self.priced(frame).table

    def priced(self, frame: pd.DataFrame) -> PricedCollectives:
        """`table`, and how far to trust it."""
        good, problem, _ = checked(self._with_library(frame))
        if len(good) < len(frame):
            at = int(np.flatnonzero(problem != "")[0])
            raise InputError(f"row {at + 1}: {problem[at]}")
        good, strange = self._as_usual(good)
        rows = collective_rows(good, self.system, self.versions)
        g, nodes = rows.ranks_per_node, rows.nodes
        inside, across, talking = shares(good["collective"].to_numpy(object), g, nodes, self.system)
        theta, correction = self._theta(rows), np.zeros(len(frame))
        log_width, in_range = np.full(len(frame), np.nan), np.zeros(len(frame), bool)
        if self.adapted is not None:
            predicted = self._predicted(good, rows, strange)
            correction = predicted.log_s - np.log(form.seconds(theta, rows.work()))
            log_width = predicted.high_log_s - predicted.low_log_s
            in_range = in_range_of(self.measured, rows) & ~strange
        inside_bytes, across_bytes = rows.bytes * inside, rows.bytes * across
        table = CollectiveTable(
            inside_bytes, across_bytes, talking, g, nodes, rows.steps, theta, correction
        )
        return PricedCollectives(table, log_width, in_range)

    def bare(self, table: CollectiveTable) -> CollectiveTable:
        """The same collectives by the datasheet's latency and rates alone."""
        theta = np.tile(_datasheet_theta(self.system), (len(table.nodes), 1))
        return dataclasses.replace(table, theta=theta, correction=np.zeros(len(theta)))

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
        return not self.believes_network or any(one.nodes > 1 for one in self.measured)

    @property
    def as_learned(self) -> CollectiveModel:
        """The model at the rates that it was learned at, before closed forms move it."""
        there = self.learned_on or self.system
        return dataclasses.replace(self, system=there, learned_on=None, believes_network=False)

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
        """[N, K] on this system."""
        if self.adapted is None:
            return np.tile(_datasheet_theta(self.system), (len(rows), 1))
        found = np.array(self._usual_theta(rows))
        across = np.flatnonzero(rows.nodes > 1)
        if len(across) and not self.network_measured:
            found[across] = self._over_nodes(rows.rows(across), found[across])
        if self.learned_on is not None:
            fixed = np.array([name in form.FIXED for name in form.ALPHA_BETA.knobs])
            found += np.log(self.system.latency_s / self.learned_on.latency_s) * fixed
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
        theta[:, of_node] = self._usual_theta(inside)[:, of_node]
        theta[:, hop] = np.maximum(theta[:, hop], np.log(network.RING_STEP_S) - theta[:, ring])
        theta[:, across] = np.log(network.share(self.system, rows.nodes))
        reduces = np.array([str(name).startswith("all_reduce|") for name in rows.implementation])
        of_sums = network.all_reduce_share(self.system, rows.nodes[reduces])
        theta[reduces, across] = np.log(of_sums)
        node_hop = names.index("node_hop_s")
        theta[reduces, node_hop] = np.maximum(theta[reduces, node_hop], np.log(network.TREE_STEP_S))
        return theta

    def _usual_theta(self, rows: CollectiveRows) -> np.ndarray:
        """[N, K] as they were learned."""
        assert self.adapted is not None
        slots, known = rows.implementation, self.adapted.prior.population
        return self.adapted.knobs.including(known, slots).of(slots)

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


def _datasheet_theta(system: SystemSpec) -> np.ndarray:
    """Knobs of the datasheet's rates and latency: other seconds vanish, one algorithm is left."""
    nothing, one, never = 1e-12, 1.0, 1e9
    knobs = {
        "floor_s": system.latency_s, "hop_s": nothing, "node_hop_s": nothing, "ring": one,
        "rendezvous_s": nothing, "intra_efficiency": one, "inter_efficiency": one,
        "small_waste": never, "rank_decay": form.NO_DECAY, "sharpness": one,
    }  # fmt: skip
    return np.log([knobs[name] for name in form.ALPHA_BETA.knobs])
