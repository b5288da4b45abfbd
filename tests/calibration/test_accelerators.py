"""What is measured of an accelerator, run on the CPU as the device: the same programs, tables and
stores; and what a driver tells, from answers as they were recorded.
"""

import ctypes
import json
import subprocess
import sys
import time
import zlib
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import read_table, write_table
from hybridperf.model.fit import own_gpu
from hybridperf.ops.table import parse_ops
from hybridperf_calibration.microbench import accelerator, copies, jax_queue
from hybridperf_calibration.microbench.device_memory import memory_rows
from hybridperf_calibration.microbench.families import FAMILIES
from hybridperf_calibration.microbench.op_programs import OpProgram, Reach, floats
from hybridperf_calibration.microbench.timer import Budget, Case, time_case

QUICK = Budget(cap_s=0.01)


def measure(out, part, *more):
    command = [
        sys.executable, "-m", "hybridperf_calibration.measure", "--part", part, "--out",
        str(out / f"{part}.jsonl"), "--budget-s", "8", "--passes", "1", *more,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_launches_cost_is_measured(tmp_path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    of = ("--library", "torch", "--device", "cpu")
    done = measure(tmp_path, "launches", *of)
    assert done.returncode == 0, done.stderr
    host = own_gpu.host_of(read_table(tmp_path / "launches.csv"))
    assert host.launch_call_s.shared.median_s < host.before_launch_s.shared.median_s < 1e-3
    assert "aten::addmm" in host.before_launch_s.by_kind
    assert host.fetch_s is not None
    facts = json.loads((tmp_path / "launches.machine.json").read_text())
    assert facts["torch"] == torch.__version__


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_memory_is_copied_and_counted(library, tmp_path) -> None:
    pytest.importorskip(library)
    seen = {"library": library, "kind": "cpu", "memory_bytes": 1e9}
    rows = pd.DataFrame(memory_rows(seen))
    write_table(rows, tmp_path / "memory.csv")
    assert own_gpu.copy_bytes_per_s(tmp_path) > 1e8
    assert rows.set_index("what")["value"]["total"] == 1e9


def test_copies_take_longer_the_larger_they_are() -> None:
    """Of PyTorch: on a CPU, JAX takes memory over where it is aligned, and copies nothing."""
    pytest.importorskip("torch")
    made = {case.key: case for case in copies.copy_cases("torch", "cpu", "quick")}
    for way in copies.DIRECTIONS:
        small, large = (
            time_case(made[f"{way} pageable {size}"], QUICK, np.random.default_rng(0)).time_s
            for size in (4096, 4096 * 4**6)
        )
        assert 0 < small < large


def test_a_device_that_the_library_does_not_see_is_refused(tmp_path) -> None:
    refused = measure(tmp_path, "copies", "--device", "tpu")
    assert refused.returncode == 2
    assert "expected a device of kind tpu, jax sees cpu" in refused.stderr


def test_a_folder_of_another_device_is_refused(tmp_path) -> None:
    assert measure(tmp_path, "ops", "--device", "cpu", "--only", "fill").returncode == 0
    store = tmp_path / "ops.jsonl"
    header, *rows = store.read_text().splitlines(keepends=True)
    was = json.loads(header)
    del was["sum"]
    was["fingerprint"]["device_kind"] = "NVIDIA H200"
    line = json.dumps(was)
    summed = f'{line[:-1]}, "sum": "{zlib.crc32(line.encode()):08x}"}}'
    store.write_text("".join((summed + "\n", *rows)))
    refused = measure(tmp_path, "ops", "--device", "cpu", "--only", "fill")
    assert refused.returncode == 2
    assert "holds measurements of something else (device_kind: 'NVIDIA H200'" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.fixture
def small(monkeypatch):
    """As large as a CPU runs them."""
    monkeypatch.setattr(jax_queue, "GPU", Reach())
    monkeypatch.setattr(jax_queue, "_COPIES", 2)
    monkeypatch.setattr(jax_queue, "_COLD_BYTES", 1e6)


@pytest.mark.parametrize(
    "family",
    ["gemm", "softmax", "window_reduction", "pooling", "in_place", "embedding_bag", "gather"],
)
def test_a_row_of_jax_is_one_op_that_a_gpu_can_be_fitted_to(family, small) -> None:
    made = jax_queue.device_cases([one for one in FAMILIES if one.name == family], "quick")
    assert made
    for case in made[:4]:
        timing = time_case(case, QUICK, np.random.default_rng(0))
        row = {**timing.described, "time_s": timing.time_s}
        assert timing.time_s > 0
        assert not parse_ops(pd.DataFrame([row]), load_device("h100_sxm")).problem.any()


def test_a_queue_divides_by_its_calls_and_copies(monkeypatch) -> None:
    """A product takes about as long among several of a program, and several programs, as alone: 128
    of them together do not. By the processor's time, since other programs may use this core.
    """
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    program = OpProgram("product", lambda a, b: a @ b, [floats(96, 96), floats(96, 96)])
    queue = jax_queue._Queue(program, np.dtype(np.float32), False)
    case = Case("product", {}, lambda rng: None, timed=queue.timed)
    seconds = []
    for copies_of_it, calls in ((1, 1), (16, 8)):
        monkeypatch.setattr(jax_queue, "_COPIES", copies_of_it)
        monkeypatch.setattr(jax_queue, "_CALLS", calls)
        seconds.append(time_case(case, Budget(cap_s=0.3), np.random.default_rng(0)).least_s)
    assert 0.1 < seconds[1] / seconds[0] < 3


# `torch.cuda.get_device_properties` of the lent H200
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150109880320,
    L2_cache_size=62914560, clock_rate=1980000, memory_clock_rate=3201000, memory_bus_width=6144,
    shared_memory_per_multiprocessor=233472, gcnArchName="NVIDIA H200",
)  # fmt: skip


def test_what_pytorch_tells_of_a_gpu(monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: PROPERTIES)
    monkeypatch.setattr(accelerator, "_of_driver", dict)
    seen = accelerator.facts("torch")
    assert (seen["kind"], seen["architecture"], seen["count"]) == ("cuda", "9.0", 1)
    assert seen["clock_hz"] == 1.98e9
    assert seen["memory_clock_hz"] * seen["bus_bits"] / 4 == pytest.approx(4.9e12, rel=0.01)
    rocm = SimpleNamespace(**vars(PROPERTIES) | {
        "name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-",
    })  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: rocm)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    seen = accelerator.facts("torch")
    assert (seen["kind"], seen["vendor"], seen["architecture"]) == ("rocm", "amd", "gfx942")


class Driver:
    """NVIDIA's, with answers as of an H200; `None` to an attribute: it does not know it."""

    known: ClassVar = {16: 132, 13: 1980000, 36: 3201000, 37: 6144, 38: 62914560, 75: 9, 76: 0}

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, gpu, at):
        return 0

    def cuDeviceGetAttribute(self, value, number, gpu):
        value._obj.value = self.known.get(number, 0)
        return number not in self.known

    def cuDeviceTotalMem_v2(self, size, gpu):
        size._obj.value = 150109880320
        return 0


def test_what_a_driver_tells(monkeypatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    told = accelerator._of_driver()
    assert told["architecture"] == "9.0"
    assert told["memory_bytes"] == 150109880320
    assert told["memory_clock_hz"] == 3.201e9
    assert "shared_memory_bytes_per_multiprocessor" not in told

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert accelerator._of_driver() == {}


def test_asked_in_a_process_of_its_own_a_library_says_what_it_sees() -> None:
    program = "hybridperf_calibration.microbench.accelerator"
    done = subprocess.run(
        [sys.executable, "-m", program, "--library", "jax"], capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    assert told["library"] == "jax"
    assert told["kind"] in accelerator.KINDS
    assert accelerator.KINDS == own_gpu.KINDS
