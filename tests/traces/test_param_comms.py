"""Logs of PARAM's comms.py: each format found in its sources, with made-up numbers; what times
something else is named.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.io import InputError
from hybridperf.traces.collective_logs import nccl_tests
from hybridperf.traces.collective_logs.files import read_log
from hybridperf.traces.collective_logs.param_comms import READER


def environment(
    world: int = 16,
    local: int = 8,
    backend: str = "nccl",
    mode: str = "comms",
    dtype: str = "torch.float32",
) -> str:
    return (
        f"\t MPI environment: {{'world_size': {world}, 'local_size': {local}, 'global_rank': 0,"
        f" 'local_rank': 0}} \n\t backend: {backend} nw-stack: pytorch-dist mode: {mode}"
        f" args.dtype: {dtype} args.b: 8 args.e: 64 args.f: 2 args.z: 1 \n"
    )


def hello(hosts: Sequence[str]) -> str:
    return "".join(
        f"[Rank {rank:3}] host {host}, device: cuda:0, local_rank: {rank} world_size: {len(hosts)},"
        " master_ip: 127.0.0.1\n"
        for rank, host in enumerate(hosts)
    )


NAMES = [
    "size (B)",
    "nElementsPerRank",
    "Latency(us):p50",
    "p75",
    "p95",
    "Min",
    "Max",
    "AlgBW(GB/s)",
    "BusBW(GB/s)",
]
HEADER = "\n\tCOMMS-RES" + "".join(f"{name:>18}" for name in NAMES) + "\n"
LATENCIES = (40.5, 41.0, 42.5, 39.5, 43.0)  # p50, p75, p95, min, max


def result(
    label: str,
    size: int,
    elements: int,
    latencies: Sequence[float] = LATENCIES,
    factor: float = 1.875,
    more: str = "",
) -> str:
    algbw = size / latencies[0] * 1e-3
    times = "".join(f"{time:>12.1f}" for time in latencies)
    bandwidths = f"{algbw:>15.3f}{algbw * factor:>12.3f}"
    return f"\tCOMMS-RES{label}{size:>18}{elements:>18}{times}{bandwidths}{more}\n"


def read(tmp_path: Path, text: str, **arguments: object) -> tuple[pd.DataFrame, list[str]]:
    path = tmp_path / "job.log"
    path.write_text(text)
    return read_log(path, reader=READER, **arguments)  # type: ignore[arg-type]


GOOD = environment() + HEADER + result("-all_reduce", 1048576, 262144)


def test_a_result_becomes_a_row(tmp_path: Path) -> None:
    frame, remarks = read(tmp_path, GOOD)
    assert remarks == []
    (row,) = frame.to_dict("records")
    wanted = {
        "collective": "all_reduce", "bytes": 1048576, "n_gpus": 16, "n_nodes": 2,
        "gpus_per_node": 8, "link": "inter", "dtype": "float", "lib": "nccl(torch)",
        "variant": "param",
    }  # fmt: skip
    assert {key: row[key] for key in wanted} == wanted
    times = [row[f"time_{key}s"] for key in ("", "p95_", "min_", "max_")]
    assert times == pytest.approx([40.5e-6, 42.5e-6, 39.5e-6, 43e-6])


OLDEST = (
    "\n\tCOMMS-RES\tsize (B)\t num-elements\t Latency(us):p50\tp75\t\tp95\t"
    " algBW(GB/s)\tbusBW(GB/s)"
)


@pytest.mark.parametrize("last", ["", "\top[0]"])
def test_the_oldest_versions_name_no_collective(tmp_path: Path, last: str) -> None:
    more = "\t               0.123" if last else ""
    results = (
        "\tCOMMS-RES\t     1048576\t      262144\t        40.5\t        41.0\t       "
        f" 42.5\t25.891\t48.545{more}\n"
    )
    text = environment() + OLDEST + last + "\n" + results
    with pytest.raises(InputError, match=r"line 5: nothing tells which collective"):
        read(tmp_path, text)
    assert set(read(tmp_path, text, collective="all_reduce")[0]["collective"]) == {"all_reduce"}
    frame, _ = read(tmp_path, "+ mpirun ./comms.py --b 8 --collective all_to_all\n" + text)
    assert (set(frame["collective"]), "time_min_s" in frame.columns) == ({"alltoall"}, False)


@pytest.mark.parametrize(
    ("label", "more", "collective", "dtype"),
    [
        ("-all_reduce", "", "all_reduce", "half"),
        ("-all_reduce-float32", "", "all_reduce", "float"),
        ("-all_reduce-bfloat16-mytag", "         0.0", "all_reduce", "bfloat16"),
        ("-all_to_all_single-int8", "", "alltoall", "int8"),
        ("-all_to_allv-float16", "", "alltoall", "half"),
        ("-all_gather_base-float32", "", "all_gather", "float"),
        ("-reduce_scatter-float64", "", "reduce_scatter", "double"),
        ("-reduce-float32", "", "reduce", "float"),
        ("-broadcast-float32", "", "broadcast", "float"),
    ],
)
def test_labels_of_all_versions(
    tmp_path: Path, label: str, more: str, collective: str, dtype: str
) -> None:
    header = HEADER.rstrip("\n") + ("  TotalLatency(us):p50" if more else "") + "\n"
    frame, remarks = read(
        tmp_path,
        environment(dtype="torch.float16") + header + result(label, 1048576, 262144, more=more),
    )
    assert (frame[["collective", "dtype", "bytes"]].to_numpy().tolist(), remarks) == (
        [[collective, dtype, 1048576]],
        [],
    )


def test_reduce_scatter_base_counts_the_whole_input(tmp_path: Path) -> None:
    shard, whole = (result("-reduce_scatter_base", size, 65536) for size in (262144, 262144 * 16))
    frame, _ = read(tmp_path, environment() + HEADER + shard + whole)
    assert frame["bytes"].tolist() == [262144 * 16] * 2


PAIR = HEADER.replace("size (B)", "total-size (B)").replace(
    "nElementsPerRank", "nElementsPerRank   nElementsPairPerRank"
)
QUANT = (
    "\n\tCOMMS-RES-QUANT\t       size (B)  nElementsPerRank   P95 Latency(us): Quant          Comms"
    "       De-Quant        Overall\n"
)
SKIPPED = {
    "quantised": (
        QUANT
        + "\tCOMMS-RES-QUANT-all_reduce\t        1048576            262144        1.0       40.0   "
        "   1.0     42.0\n"
    ),
    "two collectives at once": (
        PAIR + result("-all_reduce", 1048576, 262144).replace("  262144", "  262144    262144")
    ),
    "pt2pt": (
        "\n\tCOMMS-RES       size (B)  pingLatency(us):p50   p75   p95\n\tCOMMS-RES-pt2pt   "
        " 1048576     10.0   11.0   12.0\n"
    ),
    "incast is not": HEADER + result("-incast-float32", 1048576, 262144),
    "all_gather_v is not": HEADER + result("-all_gather_v-float32", 1048576, 262144),
    "damaged": HEADER + result("-all_reduce", 1048576, 262144)[:90] + "\n",
    "disagree": HEADER + result("-all_reduce", 1048576, 262144).replace("1048576", " 148576"),
    "mode comms-compute": (
        environment(mode="comms-compute") + HEADER + result("-all_reduce", 1048576, 262144)
    ),
    "3 groups of ranks": (
        "[Rank   0] allSizes: [8] element_size: 4 local_rank: 0, num_pg 3, groupSize 16\n"
        + GOOD[len(environment()) :]
    ),
    "communicates with nobody": environment(1, 1) + HEADER + result("-all_reduce", 1048576, 262144),
}


@pytest.mark.parametrize("why", SKIPPED)
def test_what_times_something_else_is_skipped_and_named(tmp_path: Path, why: str) -> None:
    text = GOOD + SKIPPED[why]
    frame, remarks = read(tmp_path, text)
    number = max(i for i, line in enumerate(text.split("\n"), 1) if line.startswith("\tCOMMS-RES"))
    assert len(frame) == 1
    assert len(remarks) == 1
    assert why in remarks[0]
    assert remarks[0].startswith(f"line {number}: ")


def test_latencies_must_make_sense(tmp_path: Path) -> None:
    bad = [
        (0.0, 41.0, 42.5, 0.0, 43.0),
        (40.5, 39.0, 42.5, 39.5, 43.0),
        (40.5, 41.0, 42.5, 41.5, 43.0),
        (40.5, 41.0, 42.5, 39.5, float("inf")),
    ]
    lines = [
        f"\tCOMMS-RES-all_reduce  1048576  262144  {'  '.join(map(str, latencies))}  25.891 "
        " 48.545\n"
        for latencies in bad
    ]
    _, remarks = read(tmp_path, GOOD + "".join(lines))
    assert remarks == ["lines 6, 7, 8 and 9: size, latencies and bandwidth disagree, skipped"]


def test_a_damaged_line_of_names_does_not_lose_the_results(tmp_path: Path) -> None:
    for names in (HEADER.replace("AlgBW", "Al?BW"), HEADER[:90] + "\n", ""):
        frame, remarks = read(
            tmp_path, environment() + names + result("-all_reduce", 1048576, 262144)
        )
        assert (len(frame), remarks) == (1, [])


def test_machines_from_environment_hosts_or_caller(tmp_path: Path) -> None:
    results = HEADER + result("-all_reduce", 1048576, 262144)
    torchrun = environment(16, -1)
    with pytest.raises(
        InputError, match=r"line 5: expected the ranks and hosts .*give n_gpus and n_nodes"
    ):
        read(tmp_path, torchrun + results)
    frame, _ = read(tmp_path, torchrun + hello(["a", "b"] * 8) + results)
    assert frame[["n_gpus", "n_nodes"]].to_numpy().tolist() == [[16, 2]]
    with pytest.raises(InputError, match="give n_gpus and n_nodes"):
        read(tmp_path, torchrun + hello(["a"] * 15) + results)  # a rank is missing
    gathered = str(hello(["a"] * 4).splitlines()) + "\n"  # as a list, where mpi4py is there
    frame, _ = read(tmp_path, gathered + results)
    assert frame[["n_gpus", "n_nodes"]].to_numpy().tolist() == [[4, 1]]
    frame, _ = read(tmp_path, results, n_gpus=32, n_nodes=4)
    assert set(frame["gpus_per_node"]) == {8}


def test_several_runs_and_prefixes(tmp_path: Path) -> None:
    second = (
        environment(4, 4, backend="gloo")
        + HEADER
        + result("-broadcast-float32", 4096, 1024, (10.5, 10.5, 11.0, 10.0, 11.5))
    )
    text = GOOD + "some other line\n" + second
    for prefix in ("", "0: ", "[default0]:", "[1,0]<stdout>:"):
        frame, remarks = read(tmp_path, "".join(f"{prefix}{line}\r\n" for line in text.split("\n")))
        assert remarks == []
        assert frame[["collective", "n_gpus", "n_nodes", "lib"]].to_numpy().tolist() == [
            ["all_reduce", 16, 2, "nccl(torch)"],
            ["broadcast", 4, 1, "gloo(torch)"],
        ]


@pytest.mark.parametrize(
    "text", ["", "hello\n", HEADER, environment() + HEADER + result("-gather", 1024, 64)]
)
def test_nothing_usable_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        InputError, match=r"^expected measurements printed by PARAM's comms.py in .*found none"
    ) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_which_reader_a_file_is_for() -> None:
    assert READER.looks_like(GOOD)
    assert READER.looks_like("0: \tCOMMS-RES-all_reduce-float32   8  2")
    assert not nccl_tests.READER.looks_like(GOOD)
    assert not READER.looks_like("all about the COMMS department")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["all_reduce", "all_gather", "broadcast", "reduce"]),
            st.integers(10, 30),
            st.floats(5.0, 1e6),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=40, deadline=None)
def test_what_is_printed_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, measured: list
) -> None:
    path = tmp_path_factory.mktemp("log") / "job.log"
    lines = [
        result(
            f"-{name}-float32",
            2**exponent,
            2**exponent // 4,
            [time * share for share in (1.0, 1.01, 1.02, 0.98, 1.03)],
        )
        for name, exponent, time in measured
    ]
    path.write_text(environment() + HEADER + "".join(lines))
    frame, remarks = read_log(path, reader=READER)
    assert remarks == []
    assert frame[["collective", "bytes"]].to_numpy().tolist() == [
        [name, 2**exponent] for name, exponent, _ in measured
    ]
    assert frame["time_s"].tolist() == pytest.approx(
        [float(f"{time:.1f}") * 1e-6 for *_, time in measured]
    )
