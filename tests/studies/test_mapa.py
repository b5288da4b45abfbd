"""MAPA's regression as published."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from hybridperf.collectives.subset import ring
from hybridperf.runs.placement import PlacedStep, Placer
from hybridperf.studies.mapa import VECTORS, effective_bytes_per_s, ring_links
from hybridperf.validate.harness import facts
from hybridperf.validate.topology import dgx1v, paired


@pytest.mark.parametrize("vector", VECTORS)
def test_the_eight_published_vectors(vector: tuple[int, int, int, float]) -> None:
    *links, gb_s = vector
    assert effective_bytes_per_s(*map(int, links)) == pytest.approx(gb_s * 1e9, rel=1e-3)


def test_the_repository_s_points_and_matrix(data_dir: Path) -> None:
    found = json.loads((data_dir / "topology" / "mapa.json").read_text())
    for one in found["regression"]["values"]:
        ours = effective_bytes_per_s(one["x1"], one["x2"], one["x3"])
        assert ours == pytest.approx(one["gb_s"] * 1e9, rel=1e-6)
    links = facts("topology.toml")["dgx1v"]["links"]
    assert [[word.replace("SYS", "SOC") for word in row] for row in links] == found["dgx1v"][
        "links"
    ]


def test_links_of_rings() -> None:
    topology = dgx1v()
    assert ring_links(topology, (0, 3)) == (1, 0, 0)
    assert ring_links(topology, (0, 5)) == (0, 0, 1)
    assert ring_links(topology, (0, 2, 3)) == (2, 1, 0)
    assert ring_links(topology, range(8)) == (8, 0, 0)


def test_the_chosen_set_is_near_the_best_by_the_regression_of_others() -> None:
    """On nodes with NVLink in pairs, whoever is busy, two GPUs that both judges call best."""
    topology = paired()
    placer, step = Placer.of(topology), PlacedStep(0.0, 256e6)
    for free in itertools.chain(*(itertools.combinations(range(4), n) for n in (2, 3, 4))):
        chosen = placer.choose(free, 2, "aware", step)
        assert chosen is not None
        rates = {one: ring(topology, one).bytes_per_s for one in itertools.combinations(free, 2)}
        by_mapa = {
            one: effective_bytes_per_s(*ring_links(topology, one))
            for one in itertools.combinations(free, 2)
        }
        assert rates[chosen] >= 0.9 * max(rates.values())
        assert by_mapa[chosen] >= 0.9 * max(by_mapa.values())


def test_the_command(run: Any, refused: Any) -> None:
    status, out, _ = run("choose", "mapa", "deepbench_nv_v100", "--gpus", 2, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["largest_error"] < 1e-3
    assert found["rows"]
    assert "one node" in refused("choose", "mapa", "deepbench_nv_v100", "--gpus", 99)
