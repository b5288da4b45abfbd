"""Fits the knobs of kernels that send tokens to experts, and prints `collectives/experts.toml`.

    python -m hybridperf_calibration.ship.experts --data DIR

Of each kernel and direction robust least squares of log seconds, all systems and numbers of nodes
counting alike; the interval is as wide as systems and numbers of nodes left out in turn need.
DeepEP's normal kernels on eight nodes are left out: the only such run carries 22 GB/s a card, where
four nodes of it carry 48 and DeepEP's own table says 51 of eight (its README), which knobs of one
form cannot both have.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hybridperf.collectives import form
from hybridperf.collectives.experts import Exchange, Kernel, Way, kernels
from hybridperf.collectives.traffic import Links
from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf_calibration.published.collectives import EXPERTS, FOLDER, read_experts
from hybridperf_calibration.ship.link_prior import held

Copies = Literal["ranks", "experts"]
KERNELS: dict[str, tuple[Copies, float]] = {
    "deepep": ("ranks", 20.0), "deepep_low_latency": ("experts", 0.0),
    "trtllm": ("ranks", 0.0), "trtllm_one_sided": ("ranks", 0.0),
}  # fmt: skip
_START = {
    "floor_s": 1.2e-5, "per_expert_s": 1e-8, "hop_s": 1e-6, "node_hop_s": 5e-6,
    "rendezvous_s": 5e-6, "intra_efficiency": 0.6, "inter_efficiency": 0.9, "small_waste": 1.0,
    "sharpness": 1.5, "sm_bytes_per_s": 16e9,
}  # fmt: skip
_SPREAD = {"inter_efficiency": 0.2, "intra_efficiency": 0.4, "sharpness": 0.5, "small_waste": 0.5}
_PULL, _ROBUST, _MOST_NODES, _MOST_ROWS = 0.3, 0.15, 4, 300


class Asked:
    """Rows [N] of one direction of a kernel, as its knobs price them."""

    def __init__(self, rows: pd.DataFrame, kernel: Kernel):
        self.exchange = Exchange(rows, dict.fromkeys(rows["lib"].unique(), kernel))
        code, names = pd.factorize(rows["system"])
        links = [Links.of(load_system(name).racked()) for name in names]
        rates = {field.name: np.array([float(getattr(one, field.name)) for one in links])[code]
                 for field in dataclasses.fields(Links)}  # fmt: skip
        inside, across, _ = self.exchange.sent()
        self.size = rows["bytes"].to_numpy(float)
        g = self.exchange.ranks_per_node
        node = np.minimum(rates["node_bytes_per_s"], rates["rank_bytes_per_s"] * g)
        self.inside_s = self.size * inside / rates["intra_bytes_per_s"]
        across_s = self.size * across / node
        self.work = np.column_stack([self.inside_s, across_s, g, self.exchange.nodes,
                                     self.exchange.steps()])  # fmt: skip
        fixed = np.array([name in form.FIXED for name in form.ALPHA_BETA.knobs], float)
        self.latency = fixed * np.log(rates["link_latency_s"])[:, None]

    def seconds(self, way: Way) -> np.ndarray:
        """[N] at some knobs."""
        self.exchange.ways = [way]
        self.work[:, 0] = np.maximum(self.inside_s, self.size * self.exchange.moved_s())
        return np.asarray(form.parts(self.exchange.theta() + self.latency, self.work).total)


def fitted(rows: pd.DataFrame, kernel: Kernel) -> Way:
    """Knobs of one direction of a kernel, from its rows."""
    names = [name for name in _START if name != "sm_bytes_per_s" or kernel.sms]
    if rows["n_nodes"].max() == 1:
        names = [name for name in names if name not in ("node_hop_s", "inter_efficiency")]
    start = np.log([_START[name] for name in names])
    spread = np.array([_SPREAD.get(name, 1.0) for name in names])
    rows = rows.sample(frac=1.0, random_state=0).groupby(["system", "n_nodes"]).head(_MOST_ROWS)
    target, asked = np.log(rows["time_s"].to_numpy(float)), Asked(rows, kernel)
    places = rows.groupby(["system", "n_nodes"])["time_s"]
    weight = np.sqrt(len(rows) / places.transform("size").to_numpy(float) / places.ngroups)

    def way(theta: np.ndarray) -> Way:
        found = {**_START, "log_width": 1.0, "sm_bytes_per_s": 0.0,
                 **dict(zip(names, np.exp(theta).tolist(), strict=True))}  # fmt: skip
        return Way(**{**found, "sharpness": 1.0 + found["sharpness"]})

    def misses(theta: np.ndarray) -> np.ndarray:
        off = weight * (np.log(asked.seconds(way(theta))) - target)
        return np.concatenate([off, _PULL * (theta - start) / spread])

    return way(least_squares(misses, start, loss="soft_l1", f_scale=_ROBUST).x)


def left_out(
    rows: pd.DataFrame, kernel: Kernel, by: Sequence[str] = ()
) -> Iterator[tuple[str, pd.DataFrame]]:
    """(what was left out, its rows with what a fit on the others says) for each value of some
    columns: if not given, systems and numbers of nodes, or of ranks where all lie on one node.
    """
    places = "n_nodes" if rows["n_nodes"].nunique() > 1 else "n_gpus"
    for name in by or ("system", places):
        for value in sorted(rows[name].unique()):
            at = (rows[name] == value).to_numpy()
            if not at.all():
                fit_on = rows[~at]
                if kernel.sms:
                    fit_on = fit_on[fit_on["n_nodes"] <= _MOST_NODES]
                said = Asked(rows[at], kernel).seconds(fitted(fit_on, kernel))
                yield f"{name} {value}", rows[at].assign(predicted_s=said)


def kinds(data: Path) -> Iterator[tuple[str, str, Kernel, pd.DataFrame]]:
    """(kernel, direction, its knobs that are not fitted, rows) of both deliveries."""
    folders = [folder / FOLDER for folder in (data, data / "added")]
    there = [folder for folder in folders if any((folder / name).is_file() for name in EXPERTS)]
    if not there:
        raise InputError(f"expected one of {', '.join(EXPERTS)} in {folders[0]}, found none")
    rows = pd.concat(map(read_experts, there))
    blank = Way(**{**_START, "log_width": 1.0})
    for name, (copies, sms) in KERNELS.items():
        kernel = Kernel(copies=copies, sms=sms, dispatch=blank, combine=blank)
        for way in ("dispatch", "combine"):
            at = (rows["lib"] == name) & (rows["collective"] == way)
            if at.any():
                yield name, way, kernel, rows[at].reset_index(drop=True)


def log_width(name: str, way: str) -> float:
    """Half-width of the interval that is shipped of a kernel's direction."""
    return float(getattr(kernels()[name], way).log_width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True)
    for name, way, kernel, rows in kinds(parser.parse_args().data):
        if kernel.sms:
            rows = rows[rows["n_nodes"] <= _MOST_NODES]
        errors = []
        for what, part in left_out(rows, kernel):
            errors.append(np.abs(np.log(part["predicted_s"] / part["time_s"])).to_numpy())
            print(f"# {what} left out: {np.median(np.expm1(errors[-1])):.1%}")
        found = fitted(rows, kernel).model_copy(update={"log_width": held(errors)})
        if way == "dispatch":
            print(f'[{name}]\ncopies = "{kernel.copies}"\nsms = {kernel.sms}\n')
        lines = [f"{field} = {value:.4g}" for field, value in found.model_dump().items()]
        print("\n".join([f"[{name}.{way}]", *lines, ""]), flush=True)


if __name__ == "__main__":
    main()
