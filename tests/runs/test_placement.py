"""Which GPUs each policy gives, streams of jobs, broadcasts, and the command."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims.topology import dgx1v, job_stream
from hybridperf.collectives.subset import share, share_model
from hybridperf.engine.prediction import predict
from hybridperf.hardware.topology import load_topology
from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall
from hybridperf.model.price import price
from hybridperf.runs.broadcast import broadcast
from hybridperf.runs.placement import (
    PlacedJob,
    PlacedStep,
    Placer,
    candidates,
    place_stream,
    placements,
    read_placed_jobs,
)

TALKS = PlacedStep(0.01, 500e6)


@pytest.fixture(scope="module")
def placer() -> Placer:
    return Placer.of(dgx1v())


def test_the_best_pair_is_chosen_whoever_is_busy(placer: Placer) -> None:
    assert placer.choose([0, 1, 5, 6], 2, "naive", TALKS) == (0, 1)  # one NVLink
    assert placer.choose([0, 1, 5, 6], 2, "aware", TALKS) in ((1, 5), (5, 6))  # two
    assert placer.choose([0], 2, "aware", TALKS) is None


def test_of_equal_sets_the_one_that_leaves_more(placer: Placer) -> None:
    """Every pair with two links is as quick; 1 and 5 leave six GPUs less joined than others do."""
    some = placer.choose(range(8), 2, "aware", TALKS)
    assert some is not None
    pairs = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    left = {one: placer.left_over(range(8), one) for one in pairs}
    assert left[some] == max(left.values())


def test_who_does_not_suffer_leaves_links_to_others(placer: Placer) -> None:
    quiet, free = PlacedStep(1.0, 1e3), [0, 1, 3, 6]  # 6 has no links to the others
    assert placer.choose(free, 2, "aware", TALKS) == (0, 3)
    assert placer.choose(free, 2, "preserving", TALKS) == (0, 3)
    assert placer.choose(free, 2, "preserving", quiet) == (1, 6)


def test_a_step_is_what_the_engine_says(placer: Placer) -> None:
    links = share(placer.topology, (0, 3))
    model = placer.device.with_collectives(share_model(placer.topology, links))
    call = CollectiveCall("all_reduce", TALKS.all_reduce_bytes, 2, 1)
    seconds = price(model, [call]).seconds[0]
    assert placer.step(TALKS, links).time_s == pytest.approx(TALKS.compute_s + seconds, rel=1e-5)


def test_over_nodes_one_leaf_is_preferred() -> None:
    node = load_topology("dgx_h100")
    cluster = dataclasses.replace(node, nodes=4, nodes_per_leaf=2, oversubscription=16.0)
    free = [*range(8, 32)]
    found = Placer.of(cluster).choose(free, 16, "aware", TALKS)
    assert found == tuple(range(16, 32))
    assert len(candidates(cluster, free, 20)) == 1


def test_a_stream_alone_takes_its_steps(placer: Placer) -> None:
    job = PlacedJob("a", 5.0, 2, 100, TALKS)
    for policy in ("naive", "aware", "preserving"):
        found = place_stream(placer, [job], policy)
        expected = placer.step(TALKS, share(placer.topology, found.gpus[0])).time_s
        assert found.result.end_s[0] == pytest.approx(5 + 100 * expected)


def test_jobs_through_one_host_slow_each_other(placer: Placer) -> None:
    """Naive gives 0 1 and then 2, 3, 4: the second set goes through the host; so does a third."""
    jobs = [PlacedJob(str(at), 0.0, gpus, 100, TALKS) for at, gpus in enumerate((4, 3, 1))]
    found = place_stream(placer, jobs, "naive")
    assert [len(some) for some in found.gpus] == [4, 3, 1]
    assert found.result.start_s.tolist() == [0, 0, 0]


def test_streams_are_quicker_on_chosen_sets(placer: Placer) -> None:
    jobs = job_stream(0, 40)
    naive, aware = (place_stream(placer, jobs, policy) for policy in ("naive", "aware"))
    assert (aware.slow_down >= 1 - 1e-9).all()
    assert aware.slow_down.mean() < naive.slow_down.mean()
    for stream in (naive, aware):  # nobody shares a GPU
        at = np.argsort(stream.result.start_s)
        for i in at:
            for j in at:
                together = (
                    stream.result.start_s[j] < stream.result.end_s[i]
                    and stream.result.start_s[i] < stream.result.end_s[j]
                )
                assert i == j or not together or not {*stream.gpus[i]} & {*stream.gpus[j]}


def test_placements_have_an_interval_that_holds_them(placer: Placer) -> None:
    found = placements(placer, 3, TALKS, [0]).set_index("policy")
    assert (found["low_bytes_per_s"] < found["bandwidth_bytes_per_s"]).all()
    assert (found["low_slow_down"] <= found["slow_down"]).all()
    assert found.loc["worst", "slow_down"] > found.loc["aware", "slow_down"] >= 1 - 1e-9


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 8), (4, 32), (8, 8)])
def test_broadcasts_count_their_messages(nodes: int, ranks: int) -> None:
    node = load_topology("dgx_h100")
    cluster = dataclasses.replace(node, nodes=nodes)
    links = share(cluster, range(0, nodes * 8, nodes * 8 // ranks))
    model = Placer.of(cluster).device.with_collectives(share_model(cluster, links))
    across, inside = price(
        model, [CollectiveCall("sendrecv", 1e9, 2, 2), CollectiveCall("sendrecv", 1e9, 2, 1)]
    ).seconds
    g = ranks // nodes
    expected = {
        "flat": (ranks - g) * across + (g - 1) * inside,
        "per_node": (nodes - 1) * across + (g - 1) * inside,
        "tree": np.ceil(np.log2(nodes)) * across + np.ceil(np.log2(g)) * inside,
    }
    for way, seconds in expected.items():
        assert predict(model, broadcast(1e9, ranks, nodes, way)).time_s == pytest.approx(seconds)
    assert expected["tree"] <= expected["per_node"] <= expected["flat"]


def test_broadcasts_refuse() -> None:
    with pytest.raises(InputError, match="flat, per_node, tree, library"):
        broadcast(1e9, 8, 1, "carrier pigeon")
    with pytest.raises(InputError, match="2 ranks or more"):
        broadcast(-1.0, 8, 1, "flat")


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("gpus", 9, "from 1 to 8 in gpus of job 1, got '9'"),
        ("gpus", 1.5, "whole number"),
        ("steps", 0, "above 0"),
        ("arrival_s", -1, "0 or more"),
        ("compute_s", "x", "above 0"),
    ],
)
def test_tables_of_jobs_refuse(placer: Placer, column: str, value: Any, says: str) -> None:
    row = dict(name="a", arrival_s=0, gpus=2, steps=10, compute_s=0.1, all_reduce_bytes=1e6)
    with pytest.raises(InputError, match=says):
        read_placed_jobs(pd.DataFrame([row | {column: value}]), placer.topology)


def test_the_command(run: Any, refused: Any, tmp_path: Path) -> None:
    status, out, _ = run("place", "dgx_h100", "--gpus", 4, "--busy", "0,5", "--json",
                         "--broadcast-bytes", "1e9", "--out", tmp_path / "o.csv")  # fmt: skip
    found = json.loads(out)
    assert status == 0
    assert found["placements"][1]["gpus"] == "1 2 3 4"
    assert [one["way"] for one in found["broadcasts"]] == ["flat", "per_node", "tree", "library"]
    assert len(pd.read_csv(tmp_path / "o.csv")) == 4
    jobs = pd.DataFrame({
        "name": ["a", "b"], "arrival_s": [0, 1], "gpus": [3, 8], "steps": [10, 20],
        "compute_s": 0.1, "all_reduce_bytes": 1e8,
    })  # fmt: skip
    jobs.to_csv(tmp_path / "jobs.csv")
    status, out, _ = run("place", "dgx_h100", "--jobs", tmp_path / "jobs.csv")
    assert status == 0
    assert "75th percentile" in out
    (tmp_path / "huge.toml").write_text('system = "dgx_h100"\nnodes = 1000000000\n')
    assert "no such file" in refused("place", tmp_path / "none.csv", "--gpus", 2)
    assert "expected no --system with dgx_h100, which says its nodes, got dgx_a100" in refused(
        "place", "dgx_h100", "--system", "dgx_a100", "--gpus", 2
    )
    assert "expected --bytes above 0" in refused("place", "dgx_h100", "--gpus", 2, "--bytes", 0)
    assert "nodes: Input should be less than or equal to 100000, got 1000000000" in refused(
        "place", tmp_path / "huge.toml", "--gpus", 2
    )
    assert "one of --gpus and --jobs" in refused("place", "dgx_h100")
    assert "free" in refused("place", "dgx_h100", "--gpus", 9)
    assert "--busy" in refused("place", "dgx_h100", "--gpus", 2, "--busy", "8")
    assert "0 to 1e15" in refused("place", "dgx_h100", "--gpus", 2, "--bytes", "-1")
    assert "expected --shape or --compute-s for one GPU" in refused(
        "place", "dgx_h100", "--gpus", 1
    )
    one = ("place", "dgx_h100", "--gpus", 1, "--compute-s", 1, "--broadcast-bytes", "1e6")
    assert "--gpus of 2 or more" in refused(*one)
