"""A GPU of one's own by what its driver tells: peaks agree with those published of known devices,
unknown ones are described with what was assumed, links go by `nvidia-smi topo -m`.
"""

import numpy as np
import pytest

from hybridperf.hardware import device_names, load_device, load_system, this_gpu, this_node
from hybridperf.hardware.specs import architectures
from hybridperf.io import InputError

# as `cuDeviceGetAttribute` tells them of an RTX 5000 Ada, whose datasheet says 65.3 TFLOP/s in
# single precision, 576 GB/s and 32 GB
RTX_OF_ADA = {  # with the figures of an RTX 5000 Ada
    "name": "NVIDIA RTX 5880 Ada Generation", "vendor": "nvidia", "architecture": "8.9",
    "multiprocessors": 100, "clock_hz": 2_550_000_000, "memory_clock_hz": 9_001_000_000,
    "bus_bits": 256, "memory_bytes": 34_190_917_632, "l2_bytes": 67_108_864,
    "shared_memory_bytes_per_multiprocessor": 102_400, "library": "torch", "count": 1,
}  # fmt: skip
H200 = {"name": "NVIDIA H200", "vendor": "nvidia", "architecture": "9.0", "multiprocessors": 132}
# two pairs of an A100 PCIe server, as its driver prints them
TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\t0-23\t0
GPU1\tNV12\t X \tSYS\tSYS\t0-23\t0
GPU2\tSYS\tSYS\t X \tNV12\t24-47\t1
GPU3\tSYS\tSYS\tNV12\t X \t24-47\t1
"""
# of cards for export, parts of which are switched off, and of one whose watts hold the clock of its
# tensor cores 16 % below the one that drivers tell; None: all but plain cores
_LIMITED = {
    "h800_sxm": ("fp64",), "h20_sxm": None, "l20": None,
    **dict.fromkeys(("h100_nvl", "h200_nvl"), ("tf32", "fp16", "bf16", "fp8", "int8")),
}  # fmt: skip


def by_architecture():
    known = {entry["arch"]: (vendor, name) for vendor, these in architectures().items()
             if isinstance(these, dict) for name, entry in these.items()}  # fmt: skip
    for name in device_names():
        spec = load_device(name)
        if spec.arch in known and spec.clock_hz and spec.multiprocessors:
            yield name, *known[spec.arch]


@pytest.mark.parametrize(("name", "vendor", "architecture"), list(by_architecture()))
def test_peaks_agree_with_published_ones(name: str, vendor: str, architecture: str) -> None:
    spec = load_device(name)
    geforce = "GeForce " if spec.fp32_sums_rate < 1 else ""
    made = this_gpu(RTX_OF_ADA | {
        "name": f"{geforce}unheard of", "vendor": vendor, "architecture": architecture,
        "multiprocessors": spec.multiprocessors, "clock_hz": spec.clock_hz,
    })  # fmt: skip
    assert made.fp32_sums_rate == spec.fp32_sums_rate
    odd = _LIMITED.get(name, ())
    shared = set(made.peak_flops_per_s) & set(spec.peak_flops_per_s)
    for dtype in shared - set(odd or ()) if odd is not None else ():
        published = spec.peak_flops_per_s[dtype]
        # boost clocks of tensor cores are lower than the clock that drivers tell by up to 8 %
        assert made.peak_flops_per_s[dtype] == pytest.approx(published, rel=0.12), dtype


def test_an_unknown_gpu_is_what_its_driver_tells() -> None:
    spec = this_gpu(RTX_OF_ADA)
    assert spec.id == "nvidia_rtx_5880_ada_generation"
    assert spec.peak("fp32", "vector") == pytest.approx(65.3e12, rel=0.01)
    assert spec.memory_bytes_per_s == pytest.approx(576e9, rel=0.01)
    assert spec.arch == load_device("l40s").arch  # so that its measurements speak for it
    assert "peaks: multiprocessors x clock" in spec.note


def test_a_known_name_is_its_datasheet() -> None:
    assert this_gpu(H200) == load_device("h200_sxm")
    assert this_gpu({"name": "TPU v5 lite"}) == load_device("tpu_v5e")


def test_what_a_driver_does_not_tell_is_said() -> None:
    newer = this_gpu(RTX_OF_ADA | {"architecture": "12.1", "memory_clock_hz": None,
                                     "copy_bytes_per_s": 450e9})  # fmt: skip
    assert newer.arch == "Blackwell sm_120"
    assert "compute capability 12.1 is not known: rates of 12.0" in newer.note
    assert newer.memory_bytes_per_s == 450e9
    assert "what a copy reached" in newer.note


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"name": "TPU v9"}, "expected a device whose name, or architecture, .* got 'TPU v9'"),
        (RTX_OF_ADA | {"clock_hz": None}, "clock and multiprocessors are known"),
        (RTX_OF_ADA | {"vendor": "amd", "architecture": "gfx1999"}, "give that as --device"),
        (RTX_OF_ADA | {"bus_bits": None}, "expected the memory's clock and bus width"),
    ],
)
def test_a_device_that_nobody_can_describe_is_refused(facts: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        this_gpu(facts)


def test_links_go_by_what_the_driver_prints() -> None:
    a100 = load_device("a100_pcie_80g")
    node = this_node(a100, 4, TOPOLOGY, 20e9)
    assert node.intra_bytes_per_s == pytest.approx(0.9 * 20e9)  # the slowest pair, by the host
    assert node.host_link_bytes_per_s == 20e9
    assert node.device == "a100_pcie_80g"
    pair = "\n".join(line.rsplit("\tSYS\tSYS", 1)[0] for line in TOPOLOGY.splitlines()[1:3])
    joined = this_node(a100, 2, f"\tGPU0\tGPU1\n{pair}\n", 20e9)
    assert (joined.intra_link, joined.intra_bytes_per_s) == ("NVLink", 12 * 25e9)


def test_without_a_driver_s_word_links_are_assumed_and_said_so() -> None:
    usual = load_system("dgx_h200")
    node = this_node(load_device("h200_sxm"), 8)
    assert node.intra_bytes_per_s == usual.intra_bytes_per_s
    assert f"links between GPUs assumed: those of {usual.id}" in node.confidence
    unknown = this_node(this_gpu(RTX_OF_ADA), 2, "garbage", 12e9)
    assert unknown.intra_bytes_per_s == 12e9
    assert "links between GPUs assumed: the host's" in unknown.confidence
    assert unknown.device is None
    assert np.isfinite(unknown.link_bytes_per_s(2))
