"""A calibrated fabric: what any collective takes on a system, with interval, and the same as a
differentiable function of its links.

    t = t0(knobs, links) x exp(correction),   correction frozen at the calibrated links

`predict` answers a table of rows. `table` and `collective_seconds` are the same in JAX, for a batch
of systems and for gradients: rates of links, ranks and nodes are arguments, so one compiled
function serves every scale.
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

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from hybridperf.collectives import curves, form
from hybridperf.collectives.links import Links
from hybridperf.collectives.rows import (
    DEFAULT_IMPLEMENTATION,
    CollectiveRows,
    collective_rows,
    known,
)
from hybridperf.collectives.table import checked, joined
from hybridperf.collectives.traffic import bus_bytes_per_s, shares
from hybridperf.hardware import SystemSpec, load_system, names_people_use
from hybridperf.io import (
    InputError,
    hash_of,
    installed_hardware,
    read_arrays,
    read_json,
    unknown,
    write_arrays,
    write_json,
)
from hybridperf.io.namespace import fresh_views
from hybridperf.learning.prior import Adapted, Predicted
from hybridperf.learning.prior.family import SLACK_OCTAVES
from hybridperf.learning.prior.implementation import CollectiveImplementation, unversioned

SCHEMA_VERSION = 1
DOCUMENT, _WEIGHTS = "collectives.json", "collectives.npz"
_REACH_OCTAVES = (
    0.5  # of ranks per node or nodes: doubling either leaves a fiftieth of the correction
)
_SLACK = 2**SLACK_OCTAVES  # so much beyond what was measured still counts as inside
_NUMBERS = ("predicted_s", "low_s", "high_s", "roofline_s", "bus_bytes_per_s")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "inside_bytes",
        "across_bytes",
        "talking",
        "ranks_per_node",
        "nodes",
        "theta",
        "correction",
    ],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class CollectiveTable:
    """Collectives as arrays. N of them, K knobs."""

    inside_bytes: Any  # [N] through one rank's link
    across_bytes: Any  # [N] through one node's network
    talking: Any  # [N] ranks of a node that share its network
    ranks_per_node: Any  # [N]
    nodes: Any  # [N]
    theta: Any  # [N, K] logs of the form's knobs
    correction: Any  # [N] log


def collective_seconds(table: CollectiveTable, links: Links) -> Any:
    """Seconds [N] over links whose rates may be traced; differentiable in the rates, all knobs,
    bytes and ranks.
    """
    table, links = fresh_views((table, links))
    seconds = links.seconds(table.inside_bytes, table.across_bytes, table.talking, jnp)
    work = jnp.concatenate([seconds, jnp.stack([table.ranks_per_node, table.nodes], -1)], -1)
    return form.seconds(table.theta, work, jnp) * jnp.exp(table.correction)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes of one collective, library and link that were measured on one placement of ranks."""

    group: str  # joined by `|`
    ranks_per_node: int
    nodes: int
    least_bytes: float
    most_bytes: float

    @staticmethod
    def of(rows: CollectiveRows) -> tuple[Measured, ...]:
        """All there are among some rows."""
        frame = pd.DataFrame({
            "group": list(map(unversioned, rows.implementation)),
            "g": rows.ranks_per_node.astype(int), "nodes": rows.nodes.astype(int),
            "bytes": rows.bytes,
        })  # fmt: skip
        return tuple(
            Measured(str(group), int(g), int(nodes), float(sizes.min()), float(sizes.max()))
            for (group, g, nodes), sizes in frame.groupby(["group", "g", "nodes"])["bytes"]
        )


@dataclasses.dataclass(frozen=True)
class CollectiveModel:
    """What predicts collectives on one system. `adapted` None: the datasheet alone."""

    system: SystemSpec
    adapted: Adapted | None
    provenance: Mapping[str, Any]
    measured: tuple[Measured, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # of the library by group: a row that says none is of this one
    learned_on: SystemSpec | None = None  # at whose rates corrections are taken; None: its own

    @staticmethod
    def datasheet(system: SystemSpec) -> CollectiveModel:
        """Bytes at the datasheet's rates after its latency."""
        return CollectiveModel(system, None, {"made_by": "datasheet"})

    def shortcomings(self) -> list[str]:
        """What is to be known before any number is read, in sentences; empty for a system that was
        measured.
        """
        if self.adapted is None:
            return [
                f"collectives of {self.system.id} are priced by its datasheet: nothing was"
                " measured, and real ones are slower"
            ]
        return (
            []
            if self.adapted.rows
            else [
                f"collectives of {self.system.id} are priced by what other systems showed: none of"
                " it is known"
            ]
        )

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table with `predicted_s, low_s, high_s, roofline_s, bus_bytes_per_s,
        in_range, note`.

        `roofline_s`: bytes at the datasheet's rates, and its latency; no bound: small collectives
        can be quicker than that latency. A row that cannot be priced keeps its place with empty
        numbers and the reason in `note`.
        """
        good, problem, assumed = checked(self._with_library(frame), self.system)
        out = {name: np.full(len(frame), np.nan) for name in _NUMBERS}
        in_range, note = np.zeros(len(frame), bool), problem
        if len(good):
            rows, at = collective_rows(good, self.system, self.versions), good.index.to_numpy()
            out["roofline_s"][at] = form.seconds(_datasheet_theta(self.system), rows.work())
            if self.adapted is None:
                out["predicted_s"][at] = out["roofline_s"][at]
                remarks = [
                    ("datasheet alone: this model has no measurements", np.ones(len(good), bool)),
                    self._crowded(rows),
                ]
            else:
                said = self._said(good, rows)
                for name, log_s in (
                    ("predicted_s", said.log_s),
                    ("low_s", said.low_log_s),
                    ("high_s", said.high_log_s),
                ):
                    out[name][at] = np.exp(log_s)
                in_range[at] = self._in_range(rows)
                remarks = self._remarks(
                    frame.reset_index(drop=True).loc[good.index], rows, in_range[at]
                )
            note[at] = joined(
                [
                    *((text, assumed[at] == text) for text in dict.fromkeys(assumed[at]) if text),
                    *remarks,
                ]
            )
            for name in good["collective"].unique():
                here = at[(good["collective"] == name).to_numpy()]
                ranks = good.loc[here, "n_gpus"].to_numpy()
                out["bus_bytes_per_s"][here] = bus_bytes_per_s(
                    name, good.loc[here, "bytes"].to_numpy(), ranks, out["predicted_s"][here]
                )
        return frame.assign(**out, in_range=in_range, note=note)

    def reach(self, rows: CollectiveRows) -> np.ndarray:
        """How far measurements speak for each row's collective, library, link and placement [N]: 1
        where it was measured, 0 far from it.

        Without any measurement the prior speaks for all.
        """
        if self.adapted is None or not self.adapted.rows:
            return np.ones(len(rows))
        first, of = rows.alike
        octaves = [
            min(
                (
                    np.hypot(
                        np.log2(rows.ranks_per_node[at] / one.ranks_per_node),
                        np.log2(rows.nodes[at] / one.nodes),
                    )
                    for one in self.measured
                    if one.group == unversioned(rows.implementation[at])
                ),
                default=np.inf,
            )
            for at in first
        ]
        return np.exp(-((np.array(octaves) / _REACH_OCTAVES) ** 2))[of]

    def _said(self, good: pd.DataFrame, rows: CollectiveRows) -> Predicted:
        """What measurements say of some rows of a checked table; elsewhere than where they were
        learned the closed form moves them.
        """
        assert self.adapted is not None
        if self.learned_on is None:
            return curves.predict(self.adapted, rows, self.reach(rows))
        there = collective_rows(good, self.learned_on, self.versions)
        said = curves.predict(self.adapted, there, self.reach(there))
        moved = np.log(
            form.seconds(self._theta(rows), rows.work())
            / form.seconds(self._usual_theta(there), there.work())
        )
        return Predicted(
            said.log_s + moved,
            said.low_log_s + moved,
            said.high_log_s + moved,
            said.closed_log_s + moved,
            said.outside,
        )

    def _in_range(self, rows: CollectiveRows) -> np.ndarray:
        """Whether each row's collective, library and link was measured on as many ranks and nodes,
        at about its size [N].
        """
        sizes = {
            (one.group, one.ranks_per_node, one.nodes): (one.least_bytes, one.most_bytes)
            for one in self.measured
        }
        first, of = rows.alike
        low, high = np.array(
            [
                sizes.get(
                    (
                        unversioned(rows.implementation[at]),
                        int(rows.ranks_per_node[at]),
                        int(rows.nodes[at]),
                    ),
                    (np.inf, 0.0),
                )
                for at in first
            ]
        )[of].T
        return np.asarray((rows.bytes >= low / _SLACK) & (rows.bytes <= high * _SLACK))

    def _remarks(
        self, good: pd.DataFrame, rows: CollectiveRows, in_range: np.ndarray
    ) -> list[tuple[str, np.ndarray]]:
        """What is to be said, and of which rows [N]."""
        assert self.adapted is not None
        met = known(rows, self.adapted.knobs.implementations)
        lib = good["lib"] if "lib" in good else pd.Series(np.nan, good.index)
        unsaid = (
            good["lib_version"].isna().to_numpy()
            if "lib_version" in good
            else np.ones(len(good), bool)
        )
        version = np.array(
            [self.versions.get(unversioned(slot), "") for slot in rows.implementation], object
        )
        nothing = np.full(len(rows), not self.adapted.rows)
        return [
            (f"prior alone: no collective of {self.system.id} was measured", nothing),
            (f"no lib given: taken for {self.library}", lib.isna().to_numpy()),
            *(
                (f"no lib_version given: taken for {one}", unsaid & (version == one))
                for one in dict.fromkeys(version[unsaid])
                if one
            ),
            (
                (
                    "no such collective, library and link was measured: made of what others share"
                    " with it"
                ),
                ~met,
            ),
            ("outside the sizes, ranks and nodes that were measured", ~in_range & met & ~nothing),
            self._crowded(rows),
        ]

    def _crowded(self, rows: CollectiveRows) -> tuple[str, np.ndarray]:
        """What is to be said of more ranks in a node than it has room for,
        and of which rows [N].
        """
        return self.crowded, rows.ranks_per_node > self.system.accelerators_per_node

    @property
    def crowded(self) -> str:
        """The same, where there are such."""
        most = self.system.accelerators_per_node
        return (
            f"{self.system.id} has {most} accelerators in a node: more ranks there are priced as if"
            " it had, say on how many nodes they lie"
        )

    @property
    def library(self) -> str:
        """What a row that names none is of: the only library that was
        measured, else the usual one.
        """
        measured = {CollectiveImplementation.parse(one.group).library for one in self.measured}
        return measured.pop() if len(measured) == 1 else DEFAULT_IMPLEMENTATION

    def _with_library(self, frame: pd.DataFrame) -> pd.DataFrame:
        if self.library == DEFAULT_IMPLEMENTATION:
            return frame
        return frame.assign(
            lib=frame["lib"].fillna(self.library) if "lib" in frame else self.library
        )

    def table(self, frame: pd.DataFrame) -> CollectiveTable:
        """The rows of a table for `collective_seconds`; `InputError` for one
        that cannot be priced.
        """
        good, problem, _ = checked(self._with_library(frame))
        if len(good) < len(frame):
            at = int(np.flatnonzero(problem != "")[0])
            raise InputError(f"row {at + 1}: {problem[at]}")
        rows = collective_rows(good, self.system, self.versions)
        g, nodes = rows.ranks_per_node, rows.nodes
        inside, across, talking = shares(good["collective"].to_numpy(object), g, nodes)
        theta, correction = self._theta(rows), np.zeros(len(rows))
        if self.adapted is not None:
            correction = self._said(good, rows).log_s - np.log(form.seconds(theta, rows.work()))
        return CollectiveTable(
            rows.bytes * inside, rows.bytes * across, talking, g, nodes, theta, correction
        )

    def on(self, system: SystemSpec) -> CollectiveModel:
        """The same links with other rates and another latency: corrections stay those of the rates
        that were known, so that a faster link, or a quicker one, makes no collective slower.
        """
        return dataclasses.replace(self, system=system, learned_on=self.learned_on or self.system)

    def groups(self) -> list[str]:
        """Collective, implementation and link of all knobs there are, joined by `|`."""
        return (
            []
            if self.adapted is None
            else list(
                dict.fromkeys(unversioned(slot) for slot in self.adapted.knobs.implementations)
            )
        )

    def knobs(self, group: str) -> dict[str, float]:
        """The closed form's knobs of one of `groups`, over its versions; rank_decay is d of the
        form, sharpness its p.
        """
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

    def links(self) -> Links:
        """The rates of this system's links."""
        return Links.of(self.system)

    def fingerprint(self) -> str:
        """Short hash of system, knobs and weights."""
        learned = (
            None
            if self.adapted is None
            else [self.adapted.document(), hash_of(self.adapted.arrays())]
        )
        return hashlib.sha256(
            json.dumps([self.system.model_dump(), learned], sort_keys=True).encode()
        ).hexdigest()[:12]

    def _theta(self, rows: CollectiveRows) -> np.ndarray:
        if self.adapted is None:
            return np.tile(_datasheet_theta(self.system), (len(rows), 1))
        usual = self._usual_theta(rows)
        if self.learned_on is None:
            return usual
        fixed = np.array([name in form.FIXED for name in form.ALPHA_BETA.knobs])
        return np.asarray(usual + np.log(self.system.latency_s / self.learned_on.latency_s) * fixed)

    def _usual_theta(self, rows: CollectiveRows) -> np.ndarray:
        """[N, K] as they were learned."""
        assert self.adapted is not None
        return self.adapted.knobs.including(self.adapted.prior.population, rows.implementation).of(
            rows.implementation
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Write `collectives.json` and, where anything was learned, `collectives.npz` into a
        folder, atomically each.
        """
        arrays = {} if self.adapted is None else self.adapted.arrays()
        if arrays:
            write_arrays(Path(folder) / _WEIGHTS, arrays)
        document = {
            "system": self.system.model_dump(),
            "adapted": None if self.adapted is None else self.adapted.document(),
            "measured": [dataclasses.asdict(one) for one in self.measured],
            "versions": dict(self.versions),
            "learned_on": None if self.learned_on is None else self.learned_on.model_dump(),
            "weights_sha256": hash_of(arrays),
            "provenance": dict(self.provenance),
        }
        write_json(Path(folder) / DOCUMENT, "collectives", SCHEMA_VERSION, document)


def find_collectives(name: str | os.PathLike) -> Path | None:
    """The folder of a model of collectives: `name` itself, or the shipped calibration of a system
    of that name, or None.
    """
    places, installed = [Path(name)], installed_hardware()
    if installed:
        with contextlib.suppress(InputError):
            places.append(installed / load_system(name).id)
    return next((place for place in places if (place / DOCUMENT).exists()), None)


def load_collectives(name: str | os.PathLike) -> CollectiveModel:
    """A model of collectives by folder, or by the name (any of its names) of a system whose
    calibration is shipped.
    """
    folder = find_collectives(name)
    if folder is None:
        installed = installed_hardware()
        shipped = (
            sorted(path.parent.name for path in installed.glob(f"*/{DOCUMENT}"))
            if installed
            else []
        )
        known = [*shipped, *names_people_use("systems")]
        raise unknown(
            "model of collectives",
            str(name),
            known,
            "give a folder made by `hybridperf fit --system`, or a shipped name",
        )
    document = read_json(folder / DOCUMENT, "collectives", SCHEMA_VERSION)
    try:
        adapted = None
        if document["adapted"] is not None:
            adapted = Adapted.read(
                read_arrays(folder / _WEIGHTS, str(document["weights_sha256"])), document["adapted"]
            )
        measured = tuple(Measured(**one) for one in document["measured"])
        there = document.get("learned_on")
        return CollectiveModel(
            SystemSpec(**document["system"]), adapted, dict(document["provenance"]), measured,
            dict(document.get("versions", {})), None if there is None else SystemSpec(**there),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{folder / DOCUMENT} is damaged ({type(error).__name__}:"
            f" {str(error).splitlines()[0]}); restore it"
        ) from error


def _datasheet_theta(system: SystemSpec) -> np.ndarray:
    """Knobs that leave bytes at the datasheet's rates, and its latency: the form's other seconds
    vanish and one algorithm is left.
    """
    nothing, one, never = 1e-12, 1.0, 1e9
    knobs = {
        "floor_s": system.latency_s, "hop_s": nothing, "node_hop_s": nothing, "ring": one,
        "rendezvous_s": nothing, "intra_efficiency": one, "inter_efficiency": one,
        "small_waste": never, "rank_decay": form.NO_DECAY, "sharpness": one,
    }  # fmt: skip
    return np.log([knobs[name] for name in form.ALPHA_BETA.knobs])
