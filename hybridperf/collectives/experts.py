"""Tokens to their experts and back, by the kernel that sends them: `dispatch` and `combine`.

Each of n = g N ranks has tokens of S bytes (`bytes`; in the format that travels) and each token k
experts (`topk`). A kernel sends a token

    once to each node of its experts, on to each rank of them   (`copies = "ranks"`: DeepEP)
    once for each of its experts                                (`copies = "experts"`: DeepEP's
                                                                low-latency kernels)

to places that a balanced routing finds: p (1 - (1 - 1/p)^k) of p distinct ones in the mean
(`distinct`). With d_n ranks and d_N nodes of a token

                copies = "ranks"             copies = "experts"
    V_in        S d_n (g - 1) / g            S k (g - 1) / (g N)     through a rank's link
    V_out       S d_N g (N - 1) / N          S k g (N - 1) / N       through a node's network
    moved       S d_n                        -

and `moved` passes through the multiprocessors that a kernel takes (`sms`), each at the kernel's
rate. Seconds are those of the closed form (`form`) at the kernel's knobs, with log2 g steps inside
a node and log2 N between them, and a little for each of all experts, whose counters it polls.

Knobs lie in `experts.toml`, fitted to aiconfigurator's tables of DeepEP and TensorRT-LLM
(`calibration/ship/experts.py`); one kernel has one set of them on all systems.

Axes: N rows, K knobs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

import numpy as np

from hybridperf.collectives import form
from hybridperf.collectives.algorithms.experts import NAMES
from hybridperf.collectives.rows import text
from hybridperf.hardware.specs import Spec
from hybridperf.io import real_numbers, shipped_toml
from hybridperf.io.later import pd
from hybridperf.io.namespace import Array, array_module

USUAL_KERNEL, USUAL_TOPK, USUAL_EXPERTS = "deepep", 8.0, 256.0
_LATENCY_S = 1e-5  # of the systems that kernels were measured on


class Way(Spec):
    """Knobs of one direction of a kernel."""

    floor_s: float
    per_expert_s: float  # for each of all experts
    hop_s: float  # for each doubling of the ranks of a node
    node_hop_s: float  # for each doubling of nodes
    rendezvous_s: float
    intra_efficiency: float
    inter_efficiency: float
    small_waste: float
    sharpness: float
    sm_bytes_per_s: float = 0.0  # of each multiprocessor; 0: they hold nothing up
    log_width: float  # half of a 90 % interval, of systems left out


class Kernel(Spec):
    """How a library sends tokens to experts."""

    copies: Literal["ranks", "experts"]
    also: tuple[str, ...] = ()  # other names of it, as tables say `lib`
    sms: float = 0.0  # multiprocessors it takes if told nothing else; 0: they hold nothing up
    dispatch: Way
    combine: Way


@functools.cache
def kernels() -> Mapping[str, Kernel]:
    """All that are known, by each of their names."""
    found = dict[str, Kernel]()
    for name, fields in shipped_toml(__package__, "experts.toml").items():
        if isinstance(fields, dict):
            kernel = Kernel(**fields)
            found |= dict.fromkeys((name, *kernel.also), kernel)
    return found


def distinct(topk: Array, places: Array, groups: tuple[Array, Array] = (0, 0)) -> Array:
    """Places (nodes, ranks) that a token's experts lie on, in the mean: p (1 - (1 - 1/p)^k).

    Where a token's experts lie in some of `groups` (all, those of a token) of experts, p are the
    places of those alone (DeepSeek-V3, arXiv 2412.19437: no more than 4 nodes a token).
    """
    xp = array_module(topk, places)
    whole, chosen = groups
    some = xp.maximum(places * chosen / xp.maximum(whole, 1), xp.minimum(places, chosen))
    reached = xp.where(whole > 0, some, places) if np.ndim(whole) else (some if whole else places)
    return reached * (1.0 - (1.0 - 1.0 / reached) ** topk)


def among(frame: pd.DataFrame) -> np.ndarray:
    """Which rows [N] of a table of known collectives carry tokens to experts or back."""
    return frame["collective"].isin(NAMES).to_numpy()


def unknown_kernels(frame: pd.DataFrame) -> np.ndarray:
    """Which rows [N] carry tokens to experts or back by a kernel that nobody measured."""
    found = among(frame)
    if not found.any():
        return found
    words = text(frame, "lib", USUAL_KERNEL)
    return found & np.array([word not in kernels() for word in words], bool)


def as_plain(frame: pd.DataFrame) -> pd.DataFrame:
    """A table whose rows to experts and back are a library's usual all-to-alls."""
    at = among(frame)
    if not at.any():
        return frame
    frame = frame.assign(collective=frame["collective"].where(~at, "alltoall"))
    for name in ("lib", "lib_version", "variant"):
        if name in frame:
            frame[name] = frame[name].astype(object).where(~at, np.nan)
    return frame


class Exchange:
    """Rows of a table that carry tokens to experts and back, by their kernels.

    Args:
        frame: rows [N] of known collectives: collective, n_gpus, n_nodes; lib, topk, experts,
            expert_groups, topk_groups, sms where known.
        known: the kernels, by name; None: those of `experts.toml`.
    """

    def __init__(self, frame: pd.DataFrame, known: Mapping[str, Kernel] | None = None):
        def numbers(name: str, absent: float) -> np.ndarray:
            there = real_numbers(frame[name]) if name in frame else np.full(len(frame), np.nan)
            return np.where(np.isnan(there), absent, there)

        known = kernels() if known is None else known
        words, ways = text(frame, "lib", USUAL_KERNEL), frame["collective"].to_numpy(object)
        words = np.array([word if word in known else USUAL_KERNEL for word in words], object)
        self.ways, self._kind = list[Way](), np.zeros(len(frame), int)
        self._each, usual_sms = np.zeros(len(frame), bool), np.zeros(len(frame))
        for word, way in dict.fromkeys(zip(words, ways, strict=True)):
            at = (words == word) & (ways == way)
            self._kind[at] = len(self.ways)
            self.ways.append(getattr(known[word], way))
            self._each[at], usual_sms[at] = known[word].copies == "experts", known[word].sms
        self.nodes = frame["n_nodes"].to_numpy(np.float64)
        self.ranks_per_node = frame["n_gpus"].to_numpy(np.float64) / self.nodes
        self.topk = numbers("topk", USUAL_TOPK)
        self.experts = numbers("experts", USUAL_EXPERTS)
        self.groups = numbers("expert_groups", 0.0), numbers("topk_groups", 0.0)
        self.sms = numbers("sms", 0.0)
        self.sms = np.where((self.sms > 0) & (usual_sms > 0), self.sms, usual_sms)

    def sent(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Shares of S [N]: through a rank's link, a node's network, moved by multiprocessors."""
        g, nodes = self.ranks_per_node, self.nodes
        of_ranks = distinct(self.topk, g * nodes, self.groups)
        of_nodes = np.where(self._each, self.topk, distinct(self.topk, nodes, self.groups))
        near = np.where(self._each, self.topk / nodes, of_ranks)
        return near * (g - 1) / g, of_nodes * g * (nodes - 1) / nodes, of_ranks

    def steps(self) -> np.ndarray:
        """[N, 4] as `Collective.steps`, the same for few bytes and for many."""
        return np.tile(np.stack([np.log2(self.ranks_per_node), np.log2(self.nodes)], -1), 2)

    def moved_s(self) -> np.ndarray:
        """[N] seconds of a byte of S by multiprocessors; 0 where they hold nothing up."""
        rate = self.sms * self._of_ways("sm_bytes_per_s")
        return np.where(rate > 0, self.sent()[2] / np.maximum(rate, 1.0), 0.0)

    def theta(self) -> np.ndarray:
        """[N, K] logs of the form's knobs, seconds over the latency they were measured at."""
        floor_s = self._of_ways("floor_s") + self._of_ways("per_expert_s") * self.experts
        given = {"ring": 1.0, "rank_decay": form.NO_DECAY, "floor_s": floor_s,
                 "sharpness": self._of_ways("sharpness") - 1.0}  # fmt: skip
        columns = [
            np.broadcast_to(given[name] if name in given else self._of_ways(name), floor_s.shape)
            for name in form.ALPHA_BETA.knobs
        ]
        fixed = np.array([name in form.FIXED for name in form.ALPHA_BETA.knobs], float)
        return np.asarray(np.log(np.stack(columns, -1)) - fixed * np.log(_LATENCY_S))

    def log_width(self) -> np.ndarray:
        """[N] half-widths of 90 % intervals."""
        return self._of_ways("log_width")

    def _of_ways(self, name: str) -> np.ndarray:
        return np.array([getattr(way, name) for way in self.ways], float)[self._kind]
