"""How GPUs are joined: links of each pair in a node, nodes under leaf switches, a spine.

A node's links come from what `nvidia-smi topo -m` prints, or from a matrix of its words or of rates
(bytes/s per direction). NVk is k NVLinks of the pair's own, unless a GPU would need more of them
than it has ports: then a switch joins all GPUs, and k links are each GPU's to the switch. Other
words are ways through the host, in nvidia-smi's own order: PIX and PXB (PCIe switches alone), PHB
and NODE (host bridges), SYS, once SOC (between sockets). Each has the host link's rate but
for a few per cent that keep this order: a belief, no measurement; how much of it is reached, the
collective model says.

A cluster has `nodes` alike, `nodes_per_leaf` of them under one leaf (or, with a leaf for each
rail, in one rail group). A leaf's uplinks carry what its nodes send over `oversubscription`. With
rails, GPU i of every node hangs on leaf i, so ranks at other places in their nodes meet in the
spine. Ranks are numbered node by node.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from hybridperf.hardware.names import checked_spec, load_device, load_system
from hybridperf.hardware.specs import Count, Spec, SystemSpec, architecture
from hybridperf.io import InputError, parse_json, read_text, read_toml

SELF = "X"
_NVLINK = re.compile(r"NV(\d+)$")
_THROUGH_HOST = {"PIX": 1.0, "PXB": 0.99, "PHB": 0.97, "NODE": 0.95, "SYS": 0.9}
_SPELT = {"SOC": "SYS"}  # of drivers before NVLink 2
_USUAL_NVLINK = {"bytes_per_s": 25e9, "links": 12}  # of devices of which none is known
_LEAST_RATE = 1e6  # bytes/s: what is less is another unit
_MOST_GPUS = 64  # of a node


@dataclasses.dataclass(frozen=True)
class Topology:
    """Nodes alike with g GPUs each, and the network between them."""

    system: SystemSpec  # what a node is; its rates where every GPU takes part
    rates: np.ndarray  # [g, g] bytes/s per direction between two GPUs of a node; 0: the same GPU
    through_host: np.ndarray  # bool [g, g] the pair has no link of its own
    switched: bool  # each GPU has its links to a switch, whoever it talks to
    nodes: int = 1
    nodes_per_leaf: int = 1
    oversubscription: float = 1.0
    rails: bool = False

    @property
    def gpus_per_node(self) -> int:
        return len(self.rates)

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def uplink_bytes_per_s(self) -> float:
        """What a leaf's uplinks carry, each direction."""
        return self.nodes_per_leaf * self.system.node_bytes_per_s / self.oversubscription

    def node_of(self, gpu: int) -> int:
        return gpu // self.gpus_per_node

    def leaf_of(self, node: int) -> int:
        return node // self.nodes_per_leaf


class _Cluster(Spec):
    """A file that describes a cluster."""

    system: str
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    nodes_per_leaf: Count | None = None  # all under one
    oversubscription: Annotated[float, Field(ge=1.0, le=1e3)] = 1.0
    rails: bool = False
    links: str | None = None  # file with those of a node, beside this one


def load_topology(path: str | Path, system: str = "") -> Topology:
    """A topology from a file, or of the nodes of a known system.

    Args:
        path: what `nvidia-smi topo -m` printed (.txt), a matrix (.csv, .json with `links`), a
            cluster (.toml with `system, nodes, nodes_per_leaf, oversubscription, rails, links`), or
            the name of a system.
        system: what the nodes are, where the file does not say.

    Raises:
        InputError: the file cannot be read, or says what no topology can be.
    """
    path = Path(path)
    if not path.exists():
        if path.suffix in (".txt", ".csv", ".json", ".toml"):
            raise InputError(f"expected a file or the name of a system, got {path}: no such file")
        return _whole(load_system(str(path)))
    if path.suffix == ".toml":
        return _cluster(path)
    if not system:
        raise InputError(
            f"expected --system NAME with {path}, got none: links are rated by what the node is;"
            " `hybridperf systems` lists those known"
        )
    return of_words(_words(path), load_system(system))


def of_words(words: Sequence[Sequence[str]], system: SystemSpec) -> Topology:
    """A node by the word, or rate in bytes/s, that joins each pair of its GPUs [g][g]."""
    g = len(words)
    if not 1 <= g <= _MOST_GPUS or any(len(row) != g for row in words):
        sizes = sorted({len(row) for row in words})
        raise InputError(
            f"expected a square matrix of links of 1 to {_MOST_GPUS} GPUs, got {g} rows of"
            f" {', '.join(map(str, sizes)) or 'no'} columns; give a row and a column for each GPU"
        )
    per_link, ports = _generation(system)
    rates, host = np.zeros((g, g)), np.zeros((g, g), bool)
    links = np.zeros((g, g), int)
    for i, row in enumerate(words):
        for j, given in enumerate(row):
            word = _SPELT.get(given.strip().upper(), given.strip().upper())
            if i == j and word in ("", "0"):  # of a matrix of rates
                word = SELF
            if (i == j) != (word == SELF):
                raise InputError(
                    f"expected {SELF} for a GPU and itself and a link elsewhere, got {given!r}"
                    f" between GPU {i} and {j}; mend the matrix"
                )
            if i == j:
                continue
            if found := _NVLINK.match(word):
                links[i, j] = int(found[1])
                rates[i, j] = links[i, j] * per_link
            elif word in _THROUGH_HOST:
                rates[i, j] = _THROUGH_HOST[word] * system.host_link_bytes_per_s
                host[i, j] = True
            else:
                rates[i, j] = _rate(given, i, j)
    if not np.array_equal(rates, rates.T):
        i, j = np.argwhere(rates != rates.T)[0]
        raise InputError(
            f"expected the same link from GPU {i} to {j} and back, got {words[i][j]} and"
            f" {words[j][i]}; mend the matrix"
        )
    if (links.sum(1) > ports).any():
        off = ~np.eye(g, dtype=bool)
        if len(np.unique(links[off])) > 1 or links.max() > ports:
            raise InputError(
                f"expected at most {ports} NVLinks of a GPU of {system.id}, or as many to all"
                f" through a switch, got {int(links.sum(1).max())}; name the right --system"
            )
        return Topology(system, rates, host, switched=True)
    return Topology(system, rates, host, switched=False)


def _generation(system: SystemSpec) -> tuple[float, int]:
    """(bytes/s of an NVLink, links of a GPU)."""
    arch = load_device(system.device).arch if system.device else ""
    known = architecture(arch).get("nvlink", _USUAL_NVLINK)
    return known["bytes_per_s"], known["links"]


def _is_link(cell: str) -> bool:
    word = cell.strip().upper()
    words = (SELF, *_THROUGH_HOST, *_SPELT)
    return word in words or bool(_NVLINK.match(word)) or abs(_number(word)) >= _LEAST_RATE


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _rate(given: str, i: int, j: int) -> float:
    rate = _number(given)
    if not _LEAST_RATE <= rate <= 1e14:
        words = f"NV1, NV2, ..., {', '.join(_THROUGH_HOST)}"
        raise InputError(
            f"expected {words} or a rate in bytes/s such as 25e9 between GPU {i} and {j}, got"
            f" {given!r}; mend the matrix"
        )
    return rate


def _words(path: Path) -> list[list[str]]:
    parse = {".json": _json_words, ".csv": _csv_words}.get(path.suffix, str)
    found = read_text(path, "text of links", parse, "give a row of words for each GPU")
    return smi_words(found, str(path)) if isinstance(found, str) else found


def _csv_words(text: str) -> list[list[str]]:
    rows = [row for row in csv.reader(io.StringIO(text)) if any(map(str.strip, row))]
    named = rows and not any(map(_is_link, rows[0]))
    rows = rows[1:] if named else rows
    wide = rows and len(rows[0]) == len(rows) + 1
    return [row[1:] if wide else row for row in rows]


def _json_words(text: str) -> list[list[str]]:
    try:
        return [[str(word) for word in row] for row in parse_json(text)["links"]]
    except (KeyError, TypeError) as error:
        raise ValueError('not {"links": [["X", "NV1", ...], ...]}') from error


def smi_words(text: str, name: str = "the text") -> list[list[str]]:
    """The words between GPUs in what `nvidia-smi topo -m` prints; NICs and affinities are left."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    head = next((line.split() for line in lines if re.match(r"\s*GPU0\b(?!\s+X)", line)), [])
    count = sum(bool(re.fullmatch(r"GPU\d+", word)) for word in head)
    body = [line.split()[1 : count + 1] for line in lines if re.match(r"GPU\d+\s+\S", line)]
    body = [row for row in body if row and not row[0].startswith("GPU")]
    if not count or len(body) != count:
        raise InputError(
            f"expected what `nvidia-smi topo -m` prints in {name}: a head GPU0 GPU1 ... and a row"
            f" for each, found {count} in the head and {len(body)} rows; print it again"
        )
    return body


def _cluster(path: Path) -> Topology:
    fields = f"give {', '.join(_Cluster.model_fields)}"
    content = read_toml(path, "cluster file", fields)
    cluster: _Cluster = checked_spec(_Cluster, content, path, fields)
    system = load_system(cluster.system)
    node = _whole(system)
    if cluster.links:
        node = of_words(_words(path.parent / cluster.links), system)
    per_leaf = cluster.nodes_per_leaf or cluster.nodes
    if cluster.nodes % per_leaf:
        raise InputError(
            f"expected nodes_per_leaf that divides {cluster.nodes} nodes in {path}, got {per_leaf};"
            " mend it"
        )
    return dataclasses.replace(
        node, nodes=cluster.nodes, nodes_per_leaf=per_leaf,
        oversubscription=cluster.oversubscription, rails=cluster.rails,
    )  # fmt: skip


def _whole(system: SystemSpec) -> Topology:
    """A node whose GPUs all talk at the system's rate, as its datasheet says."""
    g = system.accelerators_per_node
    off = ~np.eye(g, dtype=bool)
    pcie = "pcie" in system.intra_link.lower() and "nvlink" not in system.intra_link.lower()
    return Topology(system, off * system.intra_bytes_per_s, off & pcie, switched=True)
