"""What papers say of workers that differ, reproduced or bracketed; what was assumed is named."""

import dataclasses

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.engine.evaluate import timeline
from hybridperf.engine.lower import lower
from hybridperf.io import InputError
from hybridperf.runs.break_even import break_even
from hybridperf.runs.updates import accumulation, best_shares, iterations, updates_per_s
from hybridperf.workloads.stages import Stage, stages

NODE = """
schema = "hybridperf/systems"
schema_version = 1

[t4_ethernet]
description = "8 T4 a machine, 10 Gb/s Ethernet"
accelerator = "T4"
device = "t4"
accelerators_per_node = 8
intra_link = "PCIe3 x16"
intra_bytes_per_s = 12e9
in_network_reduction = false
host_link = "PCIe3 x16"
host_link_bytes_per_s = 12e9
nic = "10 GbE"
nics_per_node = 1
nic_bytes_per_s = 1.25e9
node_bytes_per_s = 1.25e9
latency_s = 50e-6
source = "made up"
confidence = "assumed"
"""


@pytest.fixture(scope="module")
def slow_cluster(tmp_path_factory):
    path = tmp_path_factory.mktemp("system") / "t4_ethernet.toml"
    path.write_text(NODE)
    return hp.load_model("t4").with_collectives(collectives_by_name(str(path)))


def bert(accumulation: int) -> hp.Workload:
    layout = hp.Layout(dp=256, micro_batch=48, accumulation=accumulation)
    shape = dataclasses.replace(hp.load_shape("bert-base"), seq=128, layers=4)
    return hp.transformer(hp.TransformerConfig(shape, layout, dtype="fp16", gpus_per_node=8))


def test_bert_over_slow_ethernet_needs_accumulation(slow_cluster) -> None:
    """Lin et al., 2020: 32 machines of 8 T4 over 10 Gb/s (hardware recalled, not read; their days
    hang on batches that were not read): without accumulation messages are most of a step, and k
    micro-batches bring them under a tenth.
    """
    once, twice = (hp.predict(slow_cluster, bert(k)).time_s for k in (1, 2))
    micro_s = twice - once
    assert 1 - micro_s / once > 0.5
    k = accumulation(micro_s, once - micro_s, share=0.1)
    took = hp.predict(slow_cluster, bert(k)).time_s
    assert 1 - k * micro_s / took == pytest.approx(0.1, abs=0.02)
    # the wire at which one micro-batch a step saves half of what any wire can save: inside a
    # machine PCIe stays as it is
    least = hp.predict_batch(slow_cluster, bert(1), node_bytes_per_s=[1e13])[0]
    target_s = (once + least) / 2
    needed = break_even(slow_cluster, bert(1), target_s)
    assert 1.25e9 < needed < np.inf
    there = hp.predict_batch(slow_cluster, bert(1), node_bytes_per_s=[needed])[0]
    assert there == pytest.approx(target_s, rel=1e-3)
    assert break_even(slow_cluster, bert(1), 1e9) == 0
    assert break_even(slow_cluster, bert(1), 1e-9) == float("inf")
    with pytest.raises(InputError, match="expected a link"):
        break_even(slow_cluster, bert(1), 1.0, "wire")


def test_bert_over_slow_ethernet_takes_twelve_days_between_batches(slow_cluster) -> None:
    """Lin et al., 2020: 12 days. BERT's tokens are Devlin et al.'s (a million steps of 256
    sequences of 512). With their batch, a sequence a GPU, every step waits for the wire and
    BERT-large takes longer; with eight a GPU less. Which batch the paper has was not read.
    """
    tokens, days = 1e6 * 256 * 512, []
    for each in (1, 8):
        layout = hp.Layout(dp=256, micro_batch=each)
        config = hp.TransformerConfig(
            hp.load_shape("bert-large"), layout, dtype="fp16", gpus_per_node=8
        )
        step_s = hp.predict(slow_cluster, hp.transformer(config)).time_s
        days.append(tokens / (256 * each * 512) * step_s / 86400)
    print(f"{days[0]:.1f} and {days[1]:.1f} days")
    assert days[1] < 12 < days[0] < 24


def rate(stage_s: float, send_s: float, count: int, micro_batches: int = 100) -> float:
    """Micro-batches a second of a pipeline whose stages compute, then send."""
    some = [Stage(f"stage {at}", fixed_s=stage_s + send_s) for at in range(count)]
    work = stages(some, micro_batches, micro_batches)
    end_s = timeline(lower(work.graph), [call.value for call in work.calls]).end_s.max()
    return micro_batches / end_s


def test_fusionai_is_four_h100_only_where_links_are_hidden() -> None:
    """Tang et al., 2023: 50 RTX 3080 have about the throughput of 4 H100. By peaks (59.5 and 756
    TFLOP/s, dense 16 bits) they have 0.98 of it; 1 / max(C_i / s_i + M_i / B_i) tells from which
    bandwidth on: GPT-3's hidden size, sequences of 2,048, forward and backward of one layer a card.
    """
    flops = 50 * 6 * 12 * 12288**2 * 2048  # 50 layers, a sequence, forward and backward
    cards_s, h100_s = flops / 50 / 59.5e12, flops / 4 / 756e12
    free = rate(cards_s, 0.0, 50) / rate(h100_s, 0.0, 4)
    filling = (100 + 3) / (100 + 49)  # of 50 stages in place of 4, with 100 micro-batches
    assert free == pytest.approx(50 * 59.5 / (4 * 756) * filling, rel=0.01)
    message = 2 * 2048 * 12288 * 2  # activations there, gradients back, 16 bits
    # half of that is left where sending takes as long as computing: 2.2 Gb/s
    half = message / cards_s
    assert half == pytest.approx(0.27e9, rel=0.02)
    for bytes_per_s, share in ((1e12, 1.0), (half, 0.5), (half / 9, 0.1)):
        found = rate(cards_s, message / bytes_per_s, 50) / rate(cards_s, 0.0, 50)
        assert found == pytest.approx(share, rel=0.01)


def test_tiers_update_more_often_than_the_slowest_client() -> None:
    """Chai et al., 2021 (FedAT): accuracy + 21.09 %, bytes / 8.5; neither is a time. What the tiers
    bring in time is sum 1 / T_m over 1 / max T: between 1 and the number of tiers over it.
    """
    rng = np.random.default_rng(0)
    client_s = np.repeat([1.0, 2.0, 4.0, 8.0, 16.0], 20) * rng.uniform(0.8, 1.2, 100)
    tiers = np.repeat(np.arange(5), 20).tolist()
    rounds = 1 / iterations(client_s[:, None]).max()
    assert 5 < updates_per_s(client_s, tiers) / rounds < 50
    assert updates_per_s(client_s) > updates_per_s(client_s, tiers)


def test_shares_by_speed_take_what_a_static_split_wastes() -> None:
    """Ma et al., 2021 (Adaptive SGD): a static split takes max t_i / mean t_i as long as one by
    speed (harmonic mean); equal GPUs gain nothing.
    """
    for speeds in ([1.0, 1.0], [1.0, 0.68], [1.0, 0.9, 0.8, 0.7]):
        each = 1e-3 / np.array(speeds)
        share, end_s = best_shares(each, 4096, whole=False)
        static_s = 4096 / len(each) * each.max()
        assert static_s / end_s == pytest.approx(np.mean(1 / each) * each.max())
        assert share / share.sum() == pytest.approx(np.array(speeds) / np.sum(speeds))


def test_a_round_of_devices_is_their_slowest() -> None:
    """Hosseinalipour et al., 2022 (PSL): T_i = c_i D_i / f_i + M / R_i, a round is the largest; its
    bounds of convergence are no question of time.
    """
    cycles, samples, clock, bits, wire = 1e5, [500, 800], [1e9, 2e9], 8e6, [1e7, 2e6]
    each = [cycles * n / f + bits / r for n, f, r in zip(samples, clock, wire, strict=True)]
    assert iterations(np.array(each)[:, None]).max() == pytest.approx(0.04 + 4.0)
