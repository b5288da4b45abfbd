"""Presets agree with the published tables, names lead somewhere, a file
describes another device.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import (
    LEVELS,
    canonical_dtype,
    device_called,
    device_names,
    device_of,
    load_device,
    load_system,
    system_names,
    this_cpu,
)
from hybridperf.hardware.names import _aliases
from hybridperf.io import InputError

PEAKS = {  # column of devices.csv -> (dtype, unit)
    "peak_fp32_flops": ("fp32", "vector"),
    "peak_fp16_tc_flops": ("fp16", "matrix"),
    "peak_bf16_tc_flops": ("bf16", "matrix"),
    "peak_fp8_tc_flops": ("fp8", "matrix"),
    "peak_int8_tc_ops": ("int8", "matrix"),
    "peak_fp4_tc_flops": ("fp4", "matrix"),
    "peak_fp64_flops": ("fp64", "vector"),
    "peak_fp16_vector_flops": ("fp16", "vector"),
}
FACTS = {
    "mem_bw_Bps": "memory_bytes_per_s",
    "mem_bytes": "memory_bytes",
    "l2_bytes": "l2_bytes",
    "sm_count": "multiprocessors",
    "clock_boost_hz": "clock_hz",
    "l1_smem_per_sm_bytes": "l1_bytes_per_multiprocessor",
    "smem_max_per_sm_bytes": "shared_memory_bytes_per_multiprocessor",
    "tdp_w": "tdp_w",
    "year": "year",
}
SYSTEM_FACTS = {
    "gpus_per_node": "accelerators_per_node",
    "intra_bw_Bps": "intra_bytes_per_s",
    "nvls": "in_network_reduction",
    "pcie_bw_Bps": "host_link_bytes_per_s",
    "nic_count": "nics_per_node",
    "nic_bw_each_Bps": "nic_bytes_per_s",
    "nic_bw_node_Bps": "node_bytes_per_s",
    "latency_prior_s": "latency_s",
}


def test_every_published_device_has_a_preset(data_dir: Path) -> None:
    no_product = {"vega_fe", "rpi3", "iphone6", "iphone7"}  # nobody trains or serves on them
    for row in pd.read_csv(data_dir / "devices.csv").to_dict("records"):
        if row["device"] in no_product:
            continue
        spec = load_device(row["device"])
        for column, field in FACTS.items():
            ours = getattr(spec, field)
            assert (ours is None) == pd.isna(row[column]), (spec.id, field)
            # a card's label is in powers of ten, what its driver shows in powers of two
            rel = 0.08 if field == "memory_bytes" else 1e-5
            assert ours is None or ours == pytest.approx(row[column], rel=rel), (spec.id, field)
        for column, (dtype, unit) in PEAKS.items():
            if not pd.isna(row[column]):
                assert spec.peak(dtype, unit) == pytest.approx(row[column], rel=1e-5), (
                    spec.id,
                    dtype,
                )  # type: ignore[arg-type]
        for column, dtype in (("peak_tf32_tc_flops", "tf32"),):
            assert (dtype in spec.peak_flops_per_s) == (not pd.isna(row[column])), (spec.id, dtype)


def test_every_published_system_has_a_preset(data_dir: Path) -> None:
    recalled = {"deepbench_nv_p100"}  # as a DGX-1: its measured rows are of PCIe 3.0
    for row in pd.read_csv(data_dir / "collectives" / "systems.csv").to_dict("records"):
        spec = load_system(row["system"])
        if row["system"] in recalled:
            spec = load_system("dgx1_p100")
        for column, field in SYSTEM_FACTS.items():
            assert getattr(spec, field) == pytest.approx(row[column], rel=1e-5), (spec.id, field)
        assert spec.device is None or load_device(spec.device).kind in ("gpu", "cpu")


def test_aliases_lead_to_names_that_exist() -> None:
    aliases = _aliases()
    assert set(aliases["devices"].values()) <= set(device_names())
    assert set(aliases["systems"].values()) <= set(system_names())
    # an alias that is a name would be dead
    assert not set(aliases["devices"]) & set(device_names())
    assert not set(aliases["systems"]) & set(system_names())


@pytest.mark.parametrize("name", system_names())
def test_a_nodes_bandwidth_is_its_network_cards(name: str) -> None:
    spec = load_system(name)
    assert spec.node_bytes_per_s == pytest.approx(spec.nics_per_node * spec.nic_bytes_per_s), (
        "or say why in `nic`"
    )
    assert spec.source
    assert spec.confidence
    assert spec.device is None or load_device(spec.device).kind in ("gpu", "cpu")
    assert 1e9 < spec.nic_bytes_per_s <= spec.node_bytes_per_s < 2e12
    assert 1e9 < spec.host_link_bytes_per_s <= 450e9
    if spec.in_network_reduction:  # NVLink SHARP came with the third generation of NVSwitch
        assert spec.intra_bytes_per_s >= 450e9


@pytest.mark.parametrize(
    ("name", "device", "gpus", "node_gb_per_s"),
    [
        ("dgx_v100", "v100_sxm2", 8, 50),
        ("DGX-2", None, 16, 100),
        ("dgx_a100", "a100_sxm4_80g", 8, 200),
        ("DGX H100", "h100_sxm", 8, 400),
        ("dgx_h200", "h200_sxm", 8, 400),
        ("dgx_b200", "b200_sxm", 8, 400),
        ("gb200_nvl72", "gb200", 4, 200),
        ("p3dn.24xlarge", "v100_sxm2_32g", 8, 12.5),
        ("p4d.24xlarge", "a100_sxm4_40g", 8, 50),
        ("p5.48xlarge", "h100_sxm", 8, 400),
        ("p5e.48xlarge", "h200_sxm", 8, 400),
        ("p5en.48xlarge", "h200_sxm", 8, 400),
        ("p6-b200.48xlarge", "b200_sxm", 8, 400),
        ("ND96asr_v4", "a100_sxm4_40g", 8, 200),
        ("ND96isr_H100_v5", "h100_sxm", 8, 400),
        ("azure_nc_a100_v4", "a100_pcie_80g", 4, 12.5),
        ("a2-megagpu-16g", "a100_sxm4_40g", 16, 12.5),
        ("a3-highgpu-8g", "h100_sxm", 8, 100),
        ("a3-megagpu-8g", "h100_sxm", 8, 200),
        ("a3-ultragpu-8g", "h200_sxm", 8, 400),
        ("a4-highgpu-8g", "b200_sxm", 8, 400),
        ("a4x-highgpu-4g", "gb200", 4, 200),
        ("BM.GPU4.8", "a100_sxm4_40g", 8, 200),
        ("BM.GPU.A100-v2.8", "a100_sxm4_80g", 8, 200),
        ("BM.GPU.H100.8", "h100_sxm", 8, 400),
        ("8x_a100_pcie", "a100_pcie_80g", 8, 12.5),
        ("8x_l40s_pcie", "l40s", 8, 400),
        ("DGX H800", "h800_sxm", 8, 400),
        ("HGX A800", "a800_sxm4_80g", 8, 200),
        ("HGX H20", "h20_sxm", 8, 400),
        ("8x_mi300x", "mi300x", 8, 400),
        ("gb300_nvl72", "gb300", 4, 400),
        ("HLS-3", "gaudi3", 8, 600),
        ("trn2.48xlarge", "trainium2", 16, 400),
        ("Piz Daint", "p100_pcie_16g", 1, 10),
    ],
)
def test_machines_by_the_names_they_are_sold_under(
    name: str, device: str | None, gpus: int, node_gb_per_s: float
) -> None:
    spec = load_system(name)
    assert (spec.device, spec.accelerators_per_node) == (device, gpus)
    assert spec.node_bytes_per_s == pytest.approx(node_gb_per_s * 1e9)


@pytest.mark.parametrize("name", ["A100", "a100 80g", "A100-80G", "a100_sxm4_80g"])
def test_spelling_of_names_does_not_matter(name: str) -> None:
    assert load_device(name).id == "a100_sxm4_80g"


def test_every_preset_loads() -> None:
    for name in device_names():
        spec = load_device(name)
        assert spec.id == name
        assert spec.peak("fp32", "vector") > 1e11 or spec.kind == "cpu"
        device = spec.device()
        assert device.level_bytes[LEVELS.index("memory")] == np.inf
    for name in system_names():
        assert load_system(name).id == name


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown device 'a1000'.*did you mean 'a100'"):
        load_device("a1000")
    with pytest.raises(InputError, match=r"unknown system 'dgx_h1000'.*did you mean 'dgx_h100'"):
        load_system("dgx_h1000")
    with pytest.raises(InputError, match=r"unknown dtype 'fp23'.*did you mean"):
        canonical_dtype("fp23")


def test_unknown_peak_is_an_error_not_a_default() -> None:
    with pytest.raises(InputError, match="p4 has no known bf16 peak"):
        load_device("p4").peak("bf16", "matrix")


def test_dtypes_have_other_names() -> None:
    names = ("half", "bfloat16", "float32", "float64")
    assert [canonical_dtype(name) for name in names] == ["fp16", "bf16", "fp32", "fp64"]


GOOD = """[mine]
name = "Mine"
vendor = "me"
arch = "x"
kind = "gpu"
peak_flops_per_s = { fp32 = 1e13, bf16 = 1e14 }
memory_bytes_per_s = 1e12
memory_bytes = 16e9
source = "a dream"
"""


def test_a_file_describes_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    spec = load_device(path)
    assert (spec.id, spec.peak("bf16", "matrix"), spec.memory_bytes_per_s) == ("mine", 1e14, 1e12)
    assert spec.level_bytes().tolist() == [0.0, 0.0, 0.0, np.inf]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("1e12", "-1e12"), "memory_bytes_per_s"),
        (GOOD.replace('source = "a dream"\n', ""), "source"),
        (GOOD.replace("vendor", "vendr"), "vend"),
        (GOOD.replace("1e12", '"fast"'), "memory_bytes_per_s"),
        (GOOD.replace("[mine]", "[mine"), "not TOML"),
        (GOOD + GOOD.replace("mine", "other"), "found 2"),
        ("", "found 0"),
    ],
)
def test_a_broken_file_gives_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as error:
        load_device(path)
    assert "\n" not in str(error.value)
    assert "mine.toml" in str(error.value)


def test_a_files_id_is_its_sections_name(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        GOOD.replace('name = "Mine"', 'name = "Mine"\nid = "yours"')
    )
    assert load_device(tmp_path / "mine.toml").id == "mine"


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found none"):
        load_device(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match="cannot read"):
        load_device(tmp_path / "folder.toml")


def test_this_cpu_is_sane() -> None:
    spec = load_device("here")
    assert spec.kind == "cpu"
    assert spec.multiprocessors == len(os.sched_getaffinity(0))
    assert 1e9 < spec.peak("fp32", "matrix") / spec.multiprocessors < 1e12
    assert spec.peak("fp64", "vector") == spec.peak("fp32", "vector") / 2
    assert 1e8 < spec.memory_bytes < 1e14
    caches = [size for size in spec.level_bytes() if size > 0]
    assert caches == sorted(caches)
    assert "assumed" in spec.note
    assert this_cpu(cores=3).peak("fp32", "vector") == pytest.approx(
        3 * this_cpu(cores=1).peak("fp32", "vector")
    )


@pytest.mark.parametrize(
    ("driver", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA B200", "b200_sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80g"),
        ("A100-SXM4-40GB", "a100_sxm4_40g"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie_80g"),
        ("NVIDIA A100-PCIE-40GB", "a100_pcie_40g"),
        ("Tesla V100-SXM2-32GB", "v100_sxm2_32g"),
        ("Tesla V100-SXM2-16GB", "v100_sxm2"),
        ("Tesla V100-PCIE-32GB", "v100_pcie_32g"),
        ("Tesla P100-SXM2-16GB", "p100_sxm2"),
        ("Tesla T4", "t4"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA TITAN Xp", "titanxp"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000_server"),
        ("AMD Instinct MI210", "mi210"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA GeForce RTX 5090", "rtx_5090"),
        ("NVIDIA RTX A6000", "rtx_a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx_6000_ada"),
        ("NVIDIA TITAN RTX", "titan_rtx"),
        ("Quadro GV100", "quadro_gv100"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("NVIDIA H800", "h800_sxm"),
        ("NVIDIA H20", "h20_sxm"),
        ("NVIDIA A800-SXM4-80GB", "a800_sxm4_80g"),
        ("NVIDIA A800 80GB PCIe", "a800_pcie_80g"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA L20", "l20"),
        ("TPU v5 lite", "tpu_v5e"),
        ("TPU v6 lite", "tpu_v6e"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA RTX A4000", "rtx_a4000"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx_4090_laptop"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "rtx_4070_laptop"),
        ("NVIDIA GeForce RTX 5060", "rtx_5060"),
        ("NVIDIA GeForce RTX 5060 Ti", "rtx_5060_ti"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx_pro_6000_workstation"),
        ("NVIDIA Thor", "jetson_thor"),
        ("AMD Radeon 8060S Graphics", "radeon_8060s"),
        ("AMD Radeon RX 7900 XTX", "rx_7900_xtx"),
        ("Apple M4 Max", "apple_m4_max"),
        ("Apple M4 Pro", "apple_m4_pro"),
        ("Apple M2 Max", "apple_m2_max"),
        ("NVIDIA GeForce RTX 4090 D", "rtx_4090_d"),
        ("NVIDIA GeForce RTX 4050 Laptop GPU", "rtx_4050_laptop"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx_pro_6000_max_q"),
        # names that only look like those of devices that we know
        ("Tesla P40", ""),
        ("NVIDIA T4000", ""),
        ("AMD Instinct MI250X", ""),
        ("NVIDIA H100 CNX", ""),
        ("NVIDIA GeForce RTX 5090 D v2", ""),
        ("NVIDIA GeForce RTX 2080 Ti Laptop GPU", ""),
        ("NVIDIA RTX A5000 Max-Q", ""),
        ("Apple M6 Max", ""),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""),
        ("", ""),
    ],
)
def test_a_device_is_known_by_what_its_driver_calls_it(driver, device):
    assert device_called(driver) == device


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("H100_SXM", "h100_sxm"), ("a100-sxm4-80g", "a100_sxm4_80g"), ("A100", "a100_sxm4_80g"),
        ("RTX3060", "rtx_3060"), ("M3 Ultra", "apple_m3_ultra"), ("VR200", "rubin"),
    ],
)  # fmt: skip
def test_a_device_in_other_letters_is_the_same(said, name):
    assert load_device(said).id == name


def test_a_system_in_other_letters_is_the_same():
    assert load_system("AIC-H100-SXM").id == load_system("DGXH100").id == "aic_h100_sxm"
    assert load_system("XXRJUN_example_cluster00").id == "xxrjun_example-cluster00"


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("show", "h10"), "h100"),
        (("show", "a100_smx4"), "a100_sxm"),
        (("show", "DGXH10"), "dgx_h100"),
        (("predict", "--jax", "x:y", "--model", "A100SMX"), "a100_sxm"),
        (("steps", "ROWS", "--device", "h100_sx", "--out", "o.csv"), "h100_sxm"),
        (("steps", "ROWS", "--system", "dgxh10", "--out", "o.csv"), "dgx_h100"),
        (
            (
                "plan",
                "--shape",
                "gpt3-174b",
                "--system",
                "dgx_h100",
                "--gpus",
                "8",
                "--out",
                "p.csv",
            ),
            "gpt3-175b",
        ),
        (
            (
                "plan",
                "--shape",
                "gpt3-175b",
                "--system",
                "dgxh10",
                "--gpus",
                "8",
                "--out",
                "p.csv",
            ),
            "dgx_h100",
        ),
        (
            (
                "shard",
                "TABLES",
                "--gpus",
                "2",
                "--batch",
                "64",
                "--model",
                "a100_sxm",
                "--system",
                "dgx_a10",
            ),
            "dgx_a100",
        ),
        (("shard", "TABLES", "--gpus", "2", "--batch", "64", "--model", "a100smx"), "a100_sxm"),
    ],
)
def test_unknown_names_get_the_nearest_that_people_use(refused, tmp_path, words, nearest):
    (tmp_path / "rows.csv").write_text(
        "model,gpu,tp,pp,dp,micro_batch,grad_accum\ngpt3-13b,a100,8,1,1,1,8\n"
    )
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling\na,1000,64,20\nb,500,64,10\n")
    files = {"ROWS": tmp_path / "rows.csv", "TABLES": tmp_path / "tables.csv"}
    assert f"(did you mean {nearest!r}?)" in refused(*(files.get(word, word) for word in words))


def test_a_system_says_what_joins_accelerators_and_which_they_are():
    dgx = load_system("dgx_h100")
    assert dgx.share_bytes_per_s == dgx.node_bytes_per_s / 8
    assert [dgx.link_bytes_per_s(count) for count in (8, 9)] == [
        dgx.intra_bytes_per_s,
        dgx.share_bytes_per_s,
    ]
    assert device_of(dgx) == device_of(dgx, "") == dgx.device
    assert device_of(dgx, "a100_sxm4_80g") == "a100_sxm4_80g"
    with pytest.raises(
        InputError, match=f"known device, got {dgx.id} of {dgx.accelerator}; name it by --device"
    ):
        device_of(dgx.model_copy(update={"device": None}))


def test_an_architecture_says_what_code_asks_of_a_device() -> None:
    """A name says nothing: Intel's B60 begins as NVIDIA's B200 does."""
    devices = [load_device(name) for name in device_names()]
    with_memory = {one.id for one in devices if one.tensor_memory}
    assert with_memory == {"b200_sxm", "b300_sxm", "b300a", "gb200", "gb300"}
    capability = {one.id: one.compute_capability for one in devices}
    assert capability["h100_sxm"] == (9, 0)
    assert capability["rtx_5090"] == (12, 0)
    assert capability["mi300x"] is capability["b60"] is None
