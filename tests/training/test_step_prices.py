"""Prices of a step's calls: attention of a framework's own year, experts as products, clocks under
a power limit. By hand.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.collectives.fit import fit_collectives
from hybridperf.hardware import load_device, load_system
from hybridperf.io import installed_hardware
from hybridperf.model import PerfModel, model_or_datasheet, shipped
from hybridperf.model.step_effects import SUSTAINED, sustained_s
from hybridperf.model.step_table import alone_seconds, step_table
from hybridperf.ops import Gemm, OpCall, PrefillAttention
from hybridperf.ops.attention_kernels import SHARES, published_share
from hybridperf.training.steps.cells import Prices
from hybridperf.training.steps.features import features
from hybridperf.workloads.programs.ratios import FUSED_ATTENTION
from hybridperf.workloads.transformer import Layout, load_shape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parts import layer_passes


def prices(device="h100_sxm", priced_by=None) -> Prices:
    links = fit_collectives(None, load_system("aic_h100_sxm"))[0]
    model = PerfModel.datasheet(load_device(priced_by or device))
    return Prices(model.with_collectives(links).on(load_device(device)))


def attention_factor(ours: Prices, kernel: str) -> float:
    """Seconds of a generation of fused attention over those of the measured kernel."""
    op = PrefillAttention("bf16", 1.0, 4096.0, 32.0, 128.0)
    one, other = (OpCall(op, issued_apart=True, kernel=name) for name in (kernel, ""))
    ours.learn([one, other])
    return ours[one] / ours[other]


def test_older_attention_takes_its_published_share_of_the_peak():
    """A datasheet's forward reaches what power sustains of the peak; flash1 reaches 17.5 % of an
    H100's, forward and backward (3.5 forwards' flops) together.
    """
    flash1, at_most = attention_factor(prices(), "flash1"), SUSTAINED["Hopper sm_90"][1]
    assert flash1 == pytest.approx(at_most * 3.5 / 0.175 / (1 + FUSED_ATTENTION), rel=0.02)
    assert attention_factor(prices(), "flash2") == pytest.approx(flash1 / 2, rel=1e-3)
    # nobody published its share
    assert attention_factor(prices("b200_sxm"), "flash2") == pytest.approx(1.0)


def test_every_share_is_below_the_peak_and_grows_with_the_years():
    for arch in SHARES["flash1"]:
        assert 0 < SHARES["flash1"][arch] < SHARES["flash2"][arch] < 1
    assert published_share("", "Hopper sm_90") is None


def test_only_fused_attention_is_of_a_generation():
    """A row's layers have its attention's seconds times the factor; scores written to memory are no
    fused kernel.
    """
    config = TransformerConfig(load_shape("gpt3-6.7b"), Layout(micro_batch=2), "bf16")
    ours, own = prices(), {}
    for name in ("fused", "unfused"):
        for kernel in ("", "flash1"):
            found = features([config.replace(attention=name, attention_kernel=kernel)], ours)
            own[name, kernel] = float(found.layer.attention_s.sum())
    assert own["fused", "flash1"] == pytest.approx(
        own["fused", ""] * attention_factor(ours, "flash1")
    )
    assert own["unfused", "flash1"] == own["unfused", ""] > 0


def test_a_lower_power_limit_is_a_lower_clock():
    """500 W in place of 700 W, of which 175 are drawn whatever the clock: (525 / 325)^(1/3) of the
    time in products, and in nothing that waits for memory.
    """
    call = OpCall(Gemm("bf16", 8192.0, 8192.0, 8192.0))
    whole, limited = Prices(model_or_datasheet("h100_sxm")), load_device("h100_sxm_96g")
    limited = Prices(whole.model.on(limited))
    for one in (limited, whole):
        one.learn([call])
    assert limited[call] == pytest.approx(whole[call] * (525 / 325) ** (1 / 3))


@pytest.mark.parametrize("name", ["h100_sxm", "h200_sxm"])
def test_power_limits_what_was_measured_to_be_limited(name):
    """Products and attention that went on for seconds, from what their first calls took: 26 us
    products lost nothing, others 10 to 15 %. (Zeros draw less: no step has them.)
    """
    rows = pd.read_csv(installed_hardware().parent / "measured" / name / "clocks.csv")
    rows = rows[rows["work"].str.contains("product|attention") & ~rows["work"].str.contains("zero")]
    wide, narrow = SUSTAINED["Hopper sm_90"]
    for row in rows.to_dict("records"):
        fewer = "fp8" in row["work"] or "attention" in row["work"]
        peak = load_device(name).peak_flops_per_s["fp8" if "fp8" in row["work"] else "bf16"]
        limited = row["flops"] / (peak * (narrow if fewer else wide)) * ("32" not in row["work"])
        long_s = sustained_s(np, np.array([row["first_s"]]), np.array([limited]))
        assert long_s[0] == pytest.approx(row["sustained_s"], rel=0.045), row["work"]


def test_long_products_slow_down_and_short_ones_and_others_do_not():
    sizes = (8192.0, 1024.0)
    calls = [OpCall(Gemm("bf16", n, n, n)) for n in sizes] + [OpCall(Gemm("fp32", *[8192.0] * 3))]
    model = model_or_datasheet("h100_sxm")
    table = step_table(model, calls)
    alone_s = alone_seconds(model, table)
    ratio = sustained_s(np, alone_s, table.power_s) / alone_s
    assert 1.08 < ratio[0] < 1.18
    assert ratio[1:] == pytest.approx(1.0, abs=1e-3)
    none = step_table(model_or_datasheet("a100_sxm"), calls)
    assert not none.power_s.any()


def test_dispatch_once_per_node_carries_each_token_once():
    """How often it travels is the kernel's doing; a plain all-to-all sends one copy an expert."""
    shape = load_shape("qwen3-30b-a3b")
    config = TransformerConfig(shape, Layout(ep=32, dp=32), "bf16", gpus_per_node=8)
    sent = {}
    for how in ("copies", "nodes"):
        passes = layer_passes(config.replace(expert_messages=how))
        calls = [step.collective for step in passes.forward if step.part == "ep"]
        sent[how] = [(call.collective, call.bytes) for call in calls]
    once = shape.seq * shape.hidden * 2.0
    assert sent["copies"] == [("alltoall", shape.topk * once)] * 2
    assert sent["nodes"] == [("dispatch", once), ("combine", once)]
    assert dict(calls[0].words) == {"lib": "hybridep", "topk": "8", "experts": "128"}


def test_cells_on_other_nodes_are_other_cells():
    """The same experts within a node and over four: priced in one batch as each by itself."""
    one = TransformerConfig(
        load_shape("qwen3-30b-a3b"),
        Layout(ep=32, dp=32),
        "bf16",
        gpus_per_node=32,
        expert_messages="nodes",
    )
    both = [one, one.replace(gpus_per_node=8)]
    together = features(both, prices()).layer.exchange_s
    assert together == pytest.approx(
        np.concatenate([features([config], prices()).layer.exchange_s for config in both], -1)
    )


def test_each_expert_is_launched_by_itself():
    """Two products forward and four backward for each expert of the rank, and one kernel between
    them.
    """
    shape = load_shape("qwen3-30b-a3b")
    for ep in (1, 8):
        passes = layer_passes(TransformerConfig(shape, Layout(ep=ep, dp=ep), "bf16"))
        forward, backward = (
            sum(
                step.kernels
                for step in steps
                if step.name.startswith(("experts,", "experts gradient"))
            )
            for steps in (passes.forward, passes.backward)
        )
        assert (forward, backward) == (1 + 2 * 128 // ep, 1 + 4 * 128 // ep)


def test_a_kernel_for_all_experts_is_one_launch():
    """Two products forward and four backward, however many experts a rank has."""
    shape = load_shape("qwen3-30b-a3b")
    for ep in (1, 8):
        passes = layer_passes(
            TransformerConfig(shape, Layout(ep=ep, dp=ep), "bf16", grouped_experts=True)
        )
        launched = [
            sum(
                step.kernels
                for step in steps
                if step.name.startswith("experts") and step.part == "experts"
            )
            for steps in (passes.forward, passes.backward)
        ]
        assert launched == [2, 4]


def test_what_shows_of_gathers_is_a_nodes_own_part():
    """Shards over 8 ranks of one node and over 32 of four: as much shows beside the computation,
    whatever the network takes.
    """
    config = TransformerConfig(
        load_shape("llama3-8b"), Layout(dp=8, zero=3), "bf16", gpus_per_node=8
    )
    layouts = [
        config,
        config.replace(layout=Layout(dp=32, zero=3)),
        config.replace(layout=Layout(dp=4, zero=3), gpus_per_node=1),
    ]
    inside, across, scattered = (features([one], prices()).layer for one in layouts)
    assert inside.gather_inside_s == pytest.approx(inside.gather_s + inside.scatter_s)
    assert across.gather_inside_s == pytest.approx(inside.gather_inside_s)
    assert across.gather_s.sum() > inside.gather_s.sum()
    assert scattered.gather_inside_s.sum() == 0 < scattered.gather_s.sum()


def one_s(device, op, priced_by=None):
    """Seconds of one op on a device by its own shipped calibration or another's, and by those of
    reference devices.
    """
    machine = model_or_datasheet(priced_by or device).on(load_device(device))
    ours = Prices(dataclasses.replace(machine, references=shipped))
    call = OpCall(op)
    ours.learn([call])
    return ours[call]


ATTENTION = PrefillAttention("fp16", 1.0, 4096.0, 32.0, 128.0)
PRODUCT = Gemm("fp16", 8192.0, 4096.0, 4096.0)


@pytest.mark.parametrize(
    "device",
    ["v100_sxm2", "v100_pcie_32g", "p100_pcie_16g", "mi100", "t4", "l40s", "a100_pcie_40g"],
)
@pytest.mark.parametrize("op", [ATTENTION, PRODUCT], ids=["attention", "product"])
def test_what_was_not_measured_is_no_nearer_the_peak_than_on_kin(device, op):
    """Their calibrations have neither attention nor products in 16 bits: at the roofline they would
    reach all of the peak.
    """
    share = float(op.work().flops) / one_s(device, op) / load_device(device).peak("fp16", "matrix")
    assert 0.1 < share < (0.7 if op is ATTENTION else 0.9)


@pytest.mark.parametrize(
    "op",
    [ATTENTION, PRODUCT, Gemm("fp32", 8192.0, 4096.0, 4096.0)],
    ids=["attention", "product", "fp32"],
)
def test_less_power_is_never_faster(op):
    sxm = one_s("a100_sxm4_80g", op)
    assert one_s("a100_pcie_40g", op) > 0.99 * sxm
    assert one_s("a100_pcie_80g", op, "a100_pcie_40g") > 0.99 * sxm


def test_published_attention_needs_its_power_too():
    """FlashAttention 2 on the A100 that it is published of, and on the one of 250 W: 100 W of
    both are drawn whatever the clock: (300 / 150)^(1/3) of the time.
    """
    op = PrefillAttention("bf16", 1.0, 16384.0, 16.0, 128.0)
    call = OpCall(op, issued_apart=True, kernel="flash2")
    seconds = []
    for name in ("a100_sxm4_80g", "a100_pcie_40g"):
        ours = Prices(dataclasses.replace(model_or_datasheet(name), references=shipped))
        ours.learn([call])
        seconds.append(ours[call])
    assert seconds[1] == pytest.approx(seconds[0] * (300 / 150) ** (1 / 3), rel=0.02)


def test_newer_devices_are_faster_in_single_precision():
    """Only H100 and A100 were measured in it: H200 and B200 reach their share of the peak."""
    op = Gemm("fp32", 8192.0, 4096.0, 4096.0)
    h100, h200, b200 = (one_s(name, op) for name in ("h100_sxm", "h200_sxm", "b200_sxm"))
    assert h200 == pytest.approx(h100, rel=1e-6)
    assert b200 < h100


def test_attention_in_both_16_bit_formats_takes_the_same_time():
    """The calibrations are of bf16; tensor cores multiply both at one rate."""
    for device in ("a100_sxm4_80g", "h100_sxm", "b200_sxm"):
        assert one_s(device, ATTENTION) == pytest.approx(
            one_s(device, dataclasses.replace(ATTENTION, dtype="bf16"))
        )


def test_without_any_calibration_a_usual_share_is_taken():
    device = load_device("v100_sxm2")
    ours = Prices(dataclasses.replace(PerfModel.datasheet(device), references=lambda: ()))
    ours.learn([OpCall(PRODUCT), OpCall(ATTENTION)])
    for op, share in ((PRODUCT, 0.75), (ATTENTION, 0.5)):
        assert ours[OpCall(op)] * device.peak("fp16", "matrix") == pytest.approx(
            float(op.work().flops) / share, rel=0.05
        )
