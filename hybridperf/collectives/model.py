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

from hybridperf import io
from hybridperf.collectives import experts, form, network, price, traffic, widths
from hybridperf.collectives.algorithms.told import not_told_apart
from hybridperf.collectives.price import LOG2_BYTES, CollectiveTable, Curves
from hybridperf.collectives.rows import (
    DEFAULT_IMPLEMENTATION,
    FIELDS,
    CollectiveRows,
    MeasuredSizes,
    checked,
    collective_rows,
    joined,
    sent_as_told,
    text,
)
from hybridperf.collectives.traffic import Links
from hybridperf.collectives.versions import Versions, taken_for_known, taken_for_usual
from hybridperf.fields.columns import as_given, with_answers
from hybridperf.hardware import SystemSpec, load_system, names_people_use
from hybridperf.io import InputError, undamaged, unknown
from hybridperf.io.later import pd
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.io.process import check_not_forked
from hybridperf.learning.prior import Adapted
from hybridperf.learning.prior.implementation import CollectiveImplementation, unversioned

SCHEMA_VERSION = 2  # 2: checksums
_UNCHECKED = 1  # the last version without them
DOCUMENT, _WEIGHTS = "collectives.json", "collectives.npz"
# whose part inside a node is the same collective of the node's own ranks, with as many bytes
# (`collectives/traffic.py`)
_COMPOSED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_OF_A_NODE = ("hop_s", "ring", "intra_efficiency", "rank_decay")  # knobs of a node's own links
_NEAR = 0.5  # share of what was learned that counts: below, a placement is no measured one
_PLACE, IMPLEMENTATION = (FIELDS.of(part) for part in ("place", "implementation"))
_NUMBERS = ("predicted_s", "low_s", "high_s", "roofline_s", "bus_bytes_per_s")
COLUMNS = (*_NUMBERS, "in_range", "note")  # that `predict` adds
_IN_VAIN = " of variant is not told apart: taken for what the library chooses"
_UNMET = "no such collective, library and link was measured: predicted from what others share"
_DATASHEET_ALONE = "datasheet alone: this model has no measurements"
_OF_EXPERTS = "kernels of experts: knobs of the systems they were measured on, fitted to none here"
_NO_KERNEL = f"no such kernel of experts is known: taken for {experts.USUAL_KERNEL}"
_OUTSIDE = "outside the sizes, ranks and nodes that were measured"


class Kinds(NamedTuple):
    """Kinds of collectives on a system: rows of one kind differ in bytes alone."""

    table: CollectiveTable  # [C] of one byte
    met: np.ndarray  # bool [C] its own collective, library and link were measured
    bus_factor: np.ndarray  # [C]
    remarks: np.ndarray  # object [C]
    near: np.ndarray  # bool [N] rows that lie inside the sizes that were measured of their kind


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
        return CollectiveModel(system.racked(), None, {"made_by": "datasheet"})

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
        frame = as_given(frame, COLUMNS)
        good, note, assumed = checked(frame, self.system)
        out = {name: np.full(len(frame), np.nan) for name in _NUMBERS}
        in_range = np.zeros(len(frame), bool)
        if len(good):
            at, bytes_ = good.index.to_numpy(), good["bytes"].to_numpy(np.float64)
            kinds, kind = self.kinds(good)
            table, outside = kinds.table.rows(kind).sized(bytes_), kinds.met[kind] & ~kinds.near
            said, bare = (price.price(one, self.links()) for one in (table, self.bare(table)))
            half = NINE_OF_TEN * np.sqrt(said.log_variance)
            out["predicted_s"][at], out["roofline_s"][at] = said.seconds, bare.seconds
            least_s = price.least_s(table, self.links())
            out["low_s"][at] = np.maximum(said.seconds * np.exp(-half), least_s)
            out["high_s"][at] = said.seconds * np.exp(half)
            out["bus_bytes_per_s"][at] = bytes_ / said.seconds * kinds.bus_factor[kind]
            in_range[at] = kinds.near
            too_many = table.ranks_per_node > self.system.accelerators_per_node
            note[at] = joined(
                assumed[at], kinds.remarks[kind], np.where(outside, _OUTSIDE, ""),
                np.where(too_many, self.crowded_remark, ""),
            )  # fmt: skip
        return with_answers(frame, out | {"in_range": in_range, "note": note})

    def kinds(self, good: pd.DataFrame) -> tuple[Kinds, np.ndarray]:
        """(kinds of collectives in a table that is `checked`, the kind of each row [N])."""
        named = [name for name in (*_PLACE, *IMPLEMENTATION) if name in good]
        kind = good.groupby(named, dropna=False, sort=False).ngroup().to_numpy()
        given = good.iloc[np.unique(kind, return_index=True)[1]].assign(bytes=1.0)
        known, strange = experts.as_plain(given), np.zeros(len(given), bool)
        times = np.ones(len(given))
        if self.library != DEFAULT_IMPLEMENTATION:
            known = known.assign(lib=text(known, "lib", self.library))
        known = taken_for_known(known, self.known_versions)
        if self.adapted is not None:
            own, others = self.adapted.knobs, self.adapted.prior.population
            slots = (*own.implementations, *others.implementations)
            known, strange, times = taken_for_usual(known, slots, self.library)
        rows = collective_rows(known, self.system, self.versions)
        to_experts = experts.among(given)
        table = self._of_experts(given, to_experts, self._table(known, rows, strange, times))
        inside = (rows.nodes > 1) & (rows.ranks_per_node > 1)
        inside &= known["collective"].isin(self._inside_alone).to_numpy()
        if inside.any():
            ranks = np.where(inside, rows.ranks_per_node, known["n_gpus"])
            part = known.assign(n_gpus=ranks, n_nodes=np.where(inside, 1.0, rows.nodes))
            of_node = collective_rows(part, self.system, self.versions)
            least = self._of_experts(given, to_experts, self._table(part, of_node, strange, times))
            table = dataclasses.replace(table, least=least)
        near = rows.within(self.measured, kind, good["bytes"].to_numpy())
        near &= ~(strange | to_experts)[kind]
        factor = np.array(list(map(traffic.bus_factor, known["collective"], known["n_gpus"])))
        met, remarks = np.zeros(len(given), bool), np.full(len(given), _DATASHEET_ALONE, object)
        if self.adapted is not None:
            met = rows.among(self.adapted.knobs.implementations)
            taken = text(known, "lib", self.library)
            remarks = self._remarks(given, rows, met, np.where(strange, taken, ""), times)
            met = met & ~(strange | to_experts) & bool(self.adapted.rows)
        return Kinds(table, met, factor, remarks, near), kind

    @functools.cached_property
    def _inside_alone(self) -> list[str]:
        """Collectives that were measured inside a node alone, and are composed of such a part."""
        met = {
            (CollectiveImplementation.parse(one.group).collective, one.nodes > 1)
            for one in self.measured
        }
        return [name for name in _COMPOSED if (name, False) in met and (name, True) not in met]

    def _table(
        self, known: pd.DataFrame, rows: CollectiveRows, strange: np.ndarray, times: np.ndarray
    ) -> CollectiveTable:
        """Kinds [C] as arrays, of one byte; those of `strange` ones are of another library, and
        take so many `times` as long as its.
        """
        g, nodes = rows.ranks_per_node, rows.nodes
        names = known["collective"].to_numpy(object)
        inside, across, talking, _ = sent_as_told(known, g, nodes)
        theta, curves = np.tile(price.DATASHEET_THETA, (len(known), 1)), None
        source = np.full(len(known), price.DATASHEET)
        if self.adapted is not None:
            theta = price.times_as_long(self._theta(rows), times)
            curves = self._curves(known, rows, strange)
            over = (nodes > 1) & (not self.network_measured)
            source = np.where(curves.source, curves.source, price.PRIOR)
            source = np.where(over, price.BELIEF, source)
        return CollectiveTable(
            inside, across, talking, traffic.by_host(self.system, g), g, nodes, rows.steps, theta,
            source.astype(np.int32), traffic.unavoidable(names, g * nodes), np.zeros(len(rows)),
            curves,
        )  # fmt: skip

    def _of_experts(
        self, given: pd.DataFrame, at: np.ndarray, table: CollectiveTable
    ) -> CollectiveTable:
        """Kinds [C] of one byte, of which those at some places [C] carry tokens to experts."""
        if not at.any():
            return table
        asked = experts.Exchange(given[at])
        inside, across, _ = asked.sent()
        new = {"inside_bytes": inside, "across_bytes": across, "steps": asked.steps()}
        if table.learned is not None:
            theta, many = asked.theta(), len(LOG2_BYTES)
            new |= {"theta": theta, "moved_s": asked.moved_s()}
            new["source"] = np.full(len(theta), price.PRIOR, np.int32)

        def put(old: np.ndarray, values: np.ndarray) -> np.ndarray:
            out = np.array(old)
            out[at] = values
            return out

        leaves: dict[str, Any] = {name: put(getattr(table, name), of) for name, of in new.items()}
        table = dataclasses.replace(table, **leaves)
        if not isinstance(table.learned, Curves):
            return table
        # nothing is learned beyond the closed form
        curves, sizes = table.learned, np.tile(2.0**LOG2_BYTES, at.sum())
        grid = dataclasses.replace(table, learned=None).rows(np.repeat(np.flatnonzero(at), many))
        log_s = np.log(price.closed_form_s(grid.sized(sizes), curves.links)).reshape(-1, many)
        curves = dataclasses.replace(
            curves, theta=put(curves.theta, theta), log_s=put(curves.log_s, log_s),
            source=put(curves.source, new["source"]),
            log_width=put(curves.log_width, asked.log_width()[:, None]),
        )  # fmt: skip
        return dataclasses.replace(table, learned=curves)

    def _curves(self, known: pd.DataFrame, rows: CollectiveRows, strange: np.ndarray) -> Curves:
        """What was learned of kinds [C], at the rates and knobs that it was learned at.

        Where nothing counts of it the closed form stands alone, and the interval is as wide as
        without any measurement; those of `strange` kinds are as wide as another system's.
        """
        adapted, sizes = self.adapted, len(LOG2_BYTES)
        assert adapted is not None
        prior, every = adapted.prior, np.arange(len(known))
        system = self.learned_on or self.system
        if self.learned_on is not None:
            rows = collective_rows(known, self.learned_on, self.versions)
        grid = rows.rows(np.repeat(every, sizes)).resized(np.tile(2.0**LOG2_BYTES, len(every)))
        said = adapted.predict(grid)
        latency = price.FIXED * np.log(system.latency_s)
        parts = form.parts(np.repeat(self._theta(rows) + latency, sizes, 0), grid.work())
        fixed = parts.floor + np.minimum(parts.fixed_small, parts.fixed_large)
        of_bytes = np.reshape(parts.carried / (parts.carried + fixed), (-1, sizes))
        own_fabric = traffic.is_own_fabric(self.system)
        log_s, closed, half = (
            one.reshape(-1, sizes)
            for one in (said.log_s, said.closed_log_s, said.high_log_s - said.log_s)
        )
        # Without any measurement the prior counts for all but what goes over a network: there the
        # closed form alone was nearer for each of four networks left out.
        alone = np.where(rows.nodes > 1, 0.0, 1.0)
        share = (rows.nearness(self.measured) if adapted.rows else alone)[:, None]
        over = ((rows.nodes > 1) & (not self.network_measured))[:, None]
        told = network.log_widths(self.system, rows.nodes)
        of_network = np.where(over, widths.mixed(*told, of_bytes), np.inf)
        if not adapted.rows or (share < 1).any():
            without = widths.unmeasured(prior, rows, of_bytes, own_fabric)
            # without rows: wider by the same where sizes lie beyond what the prior has seen; of
            # networks the rule's own widths are of as many nodes as they say
            none = np.minimum(without * half / prior.log_width, of_network)
            without = np.minimum(without, of_network)
            half = share * half + (1 - share) * np.maximum(half, without) if adapted.rows else none
        others = np.minimum(widths.of_links(prior, rows, of_bytes, own_fabric), of_network)
        wide = np.where(strange[:, None], others, 0.0)
        rising = [price.never_falling(one) for one in closed + share * (log_s - closed)]
        own = rows.among(one.group for one in self.measured)
        elsewhere = price.REFERENCES if prior.population.references else price.PRIOR
        source = np.where(share[:, 0] > 0, elsewhere, price.NOTHING)
        own &= share[:, 0] > _NEAR
        source = np.where(strange, price.OTHER_LIBRARY, np.where(own, price.OWN_ROWS, source))
        return Curves(
            np.ones(len(every)), every.astype(np.int32), self._usual_theta(rows),
            source.astype(np.int32), np.stack(rising), np.maximum(half, wide),
            Links.of(system),
        )  # fmt: skip

    def _remarks(
        self, given: pd.DataFrame, rows: CollectiveRows, met: np.ndarray, taken: np.ndarray,
        times: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """What to note of kinds, object [C]; `taken`: for which library, where not for its own."""
        assert self.adapted is not None
        version = text(given, "lib_version")
        usual = np.array([self.versions.get(group, "") for group in rows.group], object)
        to_experts = experts.among(given)
        unsaid = (version == "") & (usual != "") & ~to_experts
        other = (version != "") & (version != rows.version) & bool(self.known_versions)
        in_vain = not_told_apart(text(given, "variant"), rows.nodes)
        nothing = np.full(len(given), not self.adapted.rows)
        usual_library = np.where(to_experts, experts.USUAL_KERNEL, self.library).astype(object)
        remarks = [
            (nothing, f"prior alone: no collective of {self.system.id} was measured"),
            (text(given, "lib") == "", "no lib given: taken for " + usual_library),
            (unsaid, "no lib_version given: taken for " + usual),
            (other, "lib_version " + version + " was not measured: taken for " + rows.version),
            (in_vain != "", in_vain + _IN_VAIN),
            (~(met | to_experts), _UNMET),
            (to_experts, _OF_EXPERTS),
            (experts.unknown_kernels(given), _NO_KERNEL),
            (taken != "", "no such collective of its library was measured: taken for " + taken),
            (times != 1.0, np.array([f"{more:g} times as long as its" for more in times], object)),
        ]
        return joined(*(np.where(at, said, "") for at, said in remarks))

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
        """The library of rows that name none: the only measured one, else the usual one; what only
        sends from one rank to another (`ib_write_bw`, `nvbandwidth`) may be no library.
        """
        groups = [CollectiveImplementation.parse(one.group) for one in self.measured]
        measured = {one.library for one in groups if one.collective != "sendrecv"}
        return measured.pop() if len(measured) == 1 else DEFAULT_IMPLEMENTATION

    @property
    def libraries(self) -> tuple[str, ...]:
        """Libraries, with their kernels, that were measured here or elsewhere; none of a
        datasheet, to which all are alike.
        """
        met = () if self.adapted is None else self.adapted.prior.population.implementations
        return tuple(sorted({CollectiveImplementation.parse(one).library for one in met}))

    def table(self, frame: pd.DataFrame) -> CollectiveTable:
        """Rows of a table for `price`; `InputError` for one that cannot be priced."""
        return self.priced(frame)[0]

    def priced(
        self, frame: pd.DataFrame, pairs: Mapping[int, np.ndarray] = MappingProxyType({})
    ) -> tuple[CollectiveTable, np.ndarray]:
        """(rows [N] of a table for `price`, whether each lies inside what was measured [N]).

        `pairs`: of all-to-alls with unequal sizes, by row, what each rank sends to each [n, n].
        """
        good, problem, _ = checked(frame, self.system)
        if len(bad := np.flatnonzero(problem != "")):
            raise InputError(f"row {bad[0] + 1}: {problem[bad[0]]}")
        bytes_ = good["bytes"].to_numpy(np.float64)
        kinds, kind = self.kinds(good)
        table = kinds.table.rows(kind).sized(bytes_).held()
        if pairs:
            rows = list(pairs)
            ranks = {at: len(pairs[at]) // int(table.nodes[at]) for at in rows}
            sent = [traffic.pair_traffic(pairs[at], ranks[at]) for at in rows]
            inside, across, talking = np.transpose(sent)
            part = kinds.table.rows(kind[rows]).carrying(inside, across, talking, self.links())
            table = table.with_rows(rows, part.held())
        return table, kinds.near

    def bare(self, table: CollectiveTable) -> CollectiveTable:
        """The same collectives by the datasheet's latency and rates alone."""
        theta = np.broadcast_to(price.DATASHEET_THETA, np.shape(table.theta))
        source = np.full(np.shape(table.source), price.DATASHEET, np.int32)
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
        slots = self.adapted.knobs.implementations
        mine = np.array([unversioned(slot) == group for slot in slots])
        if not mine.any():
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
        learned = None if adapted is None else [adapted.document(), io.hash_of(adapted.arrays())]
        text = json.dumps([self.system.model_dump(), learned], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _theta(self, rows: CollectiveRows) -> np.ndarray:
        """[N, K] on this system, seconds over its latency."""
        found, across = self._usual_theta(rows), rows.nodes > 1
        if across.any() and not self.network_measured:
            found[across] = self._over_nodes(rows.rows(across), found[across])
        return found

    def _over_nodes(self, rows: CollectiveRows, theta: np.ndarray) -> np.ndarray:
        """Knobs [N, K] over a network that nobody measured: a node's own links carry, and their
        steps last, as they do inside it, but a step no less than what a ring or a tree over nodes
        costs.
        """
        link = traffic.link_of(self.system)
        slots = [str(name).replace("|network", f"|{link}") for name in rows.implementation]
        inside = dataclasses.replace(rows, implementation=np.array(slots, object))
        found, names = theta + self._latency, form.ALPHA_BETA.knobs
        of_node = np.isin(names, _OF_A_NODE)
        found[:, of_node] = (self._usual_theta(inside) + self._latency)[:, of_node]
        hop, node_hop, ring, rate = (
            found[:, names.index(name)]
            for name in ("hop_s", "node_hop_s", "ring", "inter_efficiency")
        )  # views
        hop[:] = np.maximum(hop, np.log(network.RING_STEP_S) - ring)
        sums = np.array([str(name).startswith("all_reduce|") for name in rows.implementation])
        shares = (network.all_reduce_share, network.share)
        of_sums, others = (share(self.system, rows.nodes) for share in shares)
        rate[:] = np.log(np.where(sums, of_sums, others))
        step_s = network.step_s(self.system)
        node_hop[sums] = np.maximum(node_hop[sums], np.log(2 * step_s))
        if step_s > network.RDMA_STEP_S:  # those of a ring
            node_hop[~sums] = np.maximum(node_hop[~sums], np.log(step_s))
        return found - self._latency

    def _usual_theta(self, rows: CollectiveRows) -> np.ndarray:
        """[N, K] as they were learned, seconds over the latency there."""
        assert self.adapted is not None
        slots, known = rows.implementation, self.adapted.prior.population
        return self.adapted.knobs.including(known, slots).of(slots) - self._latency

    @functools.cached_property
    def _latency(self) -> np.ndarray:
        """[K] log of the latency at which knobs were learned, for those that are seconds."""
        return price.FIXED * np.log((self.learned_on or self.system).latency_s)

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
            "weights_sha256": io.hash_of(arrays),
            "provenance": dict(self.provenance),
        }
        with io.replacing_in(folder) as new:
            if arrays:
                io.write_arrays(new / _WEIGHTS, arrays)
            io.write_json(new / DOCUMENT, "collectives", SCHEMA_VERSION, document)


def find_collectives(name: str | os.PathLike) -> Path | None:
    """The folder of a model of collectives, by path or by the name of a shipped system; or None."""
    places, installed = [Path(name)], io.installed_hardware()
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
        installed = io.installed_hardware()
        paths = installed.glob(f"*/{DOCUMENT}") if installed else ()
        known = sorted(path.parent.name for path in paths)
        remedy = "give a folder made by `hybridperf fit --system`, or a shipped name"
        if str(name) in names_people_use("systems"):
            raise InputError(
                f"no collectives of {name} were measured: `predict_collectives` and"
                f" `--model {name}` take its datasheet; for a model {remedy}"
            )
        known = [*known, *names_people_use("systems")]
        raise unknown("model of collectives", str(name), known, remedy)
    with io.settled(folder):
        document = io.read_json(folder / DOCUMENT, "collectives", SCHEMA_VERSION, _UNCHECKED)
        with undamaged(folder / DOCUMENT, "restore it"):
            adapted = None
            if document["adapted"] is not None:
                checked, expected = (
                    document["schema_version"] > _UNCHECKED,
                    document["weights_sha256"],
                )
                arrays = io.read_arrays(folder / _WEIGHTS, str(expected), checked=checked)
                adapted = Adapted.read(arrays, document["adapted"])
            measured = tuple(MeasuredSizes(**one) for one in document["measured"])
            there = document.get("learned_on")
            return CollectiveModel(
                SystemSpec(**document["system"]).racked(), adapted,
                dict(document["provenance"]), measured, dict(document.get("versions", {})),
                dict(document.get("known_versions", {})),
                None if there is None else SystemSpec(**there),
            )  # fmt: skip
