"""Slow hosts and pairs of hosts found from measured collectives, without being told which."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.io import InputError
from hybridperf.traces.slow_hosts import find_slow

HOSTS = [f"n{at}" for at in range(8)]


def measured(slower: dict[str, float], noise: float = 0.01) -> pd.DataFrame:
    """Send-receives of all pairs; `slower`: a host, or two of them, and how many times."""
    rng, rows = np.random.default_rng(0), []
    for pair, size in itertools.product(itertools.combinations(HOSTS, 2), (2**20, 2**25)):
        factor = np.prod([slower.get(one, 1.0) for one in (*pair, " ".join(pair))])
        time_s = size / 1e10 * factor * np.exp(noise * rng.normal())
        rows.append(("sendrecv", size, 2, 2, time_s, " ".join(pair)))
    return pd.DataFrame(
        rows, columns=["collective", "bytes", "n_gpus", "n_nodes", "time_s", "hosts"]
    )


def named(frame: pd.DataFrame) -> tuple[set[str], set[str]]:
    found = find_slow(frame)
    return {*found.sets.hosts[found.sets.slow]}, {*found.hosts.host[found.hosts.slow]}


def test_a_slow_pair_is_named_as_a_pair() -> None:
    assert named(measured({"n2 n5": 1.6})) == ({"n2 n5"}, set())


def test_a_slow_host_is_named_as_a_host() -> None:
    sets, hosts = named(measured({"n3": 1.5}))
    assert hosts == {"n3"}
    assert len(sets) == 7
    (said,) = find_slow(measured({"n3": 1.5})).sentences()
    assert "slow: host n3 (1." in said
    assert " and " not in said


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_equal_hosts_are_not_called_slow(noise: float) -> None:
    assert named(measured({}, noise)) == (set(), set())
    assert "none is slow" in find_slow(measured({}, noise)).sentences()[0]


def test_what_noise_hides_is_not_claimed() -> None:
    assert named(measured({"n2 n5": 1.3}, noise=0.2))[0] == set()


def test_too_few_hosts_and_no_names_are_said() -> None:
    frame = measured({})
    with pytest.raises(InputError, match="4 sets of hosts or more"):
        find_slow(frame[frame.hosts.isin(["n0 n1", "n0 n2"])])
    with pytest.raises(InputError, match="4 sets of hosts or more"):
        find_slow(frame.drop(columns="hosts"))
    with pytest.raises(InputError, match="expected columns time_s"):
        find_slow(frame.drop(columns="time_s"))
    with pytest.raises(InputError, match="above 1"):
        find_slow(frame, least=0.9)


def test_degraded_pairs_of_a_real_cluster_are_found(data_dir: Path) -> None:
    """Two collectives were run apart from each other on the same hosts: both name the same eight of
    136 pairs, and at eight GPUs the same host.
    """
    frame = pd.read_csv(data_dir / "collectives/collectives_dev.csv.gz", low_memory=False)
    found = find_slow(frame[frame.system == "xxrjun_example-cluster00"])
    slow = {
        key: {*one.hosts[one.slow]} for key, one in found.sets.groupby(["collective", "n_gpus"])
    }
    assert slow["sendrecv", 2] == slow["alltoall", 2]
    assert len(slow["sendrecv", 2]) == 8
    hosts = found.hosts[found.hosts.slow]
    assert {*zip(hosts.collective, hosts.n_gpus, hosts.host, strict=True)} == {
        ("sendrecv", 8, "cnode2-003"), ("alltoall", 8, "cnode2-003"),
    }  # fmt: skip


LOG = """# Collective test starting: sendrecv_perf
#  Rank  0 Group  0 Pid  41 on {0} device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  42 on {1} device  0 [0x07] NVIDIA A100-SXM4-80GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    16777216       4194304     float     sum      -1   {2:.1f}  {3:.2f}  {3:.2f}      0   {2:.1f}  {3:.2f}  {3:.2f}      0
"""


def test_the_command_reads_hosts_from_logs(tmp_path, run) -> None:
    logs = []
    for a, b in itertools.combinations(HOSTS[:4], 2):
        time_us = 1400.0 * (2 if (a, b) == ("n1", "n3") else 1)
        logs.append(tmp_path / f"{a}{b}.log")
        logs[-1].write_text(LOG.format(a, b, time_us, 16777216 / time_us * 1e-3))
    status, said, _ = run("collectives", *logs, "--find-slow", "--out", tmp_path / "sets.csv")
    assert status == 0
    assert "slow: n1 and n3 (2.00 x)" in said
    assert pd.read_csv(tmp_path / "sets.csv").slow.sum() == 1
    status, _, error = run("collectives", *logs[:2], "--find-slow")
    assert status == 2
    assert error.count("\n") == 1
    assert "more pairs" in error
