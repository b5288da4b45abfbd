"""Tokens to their experts and back: bytes by hand, wide groups, kernels on other networks."""

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.collectives.experts import Exchange, distinct, kernels
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.hardware import load_system

KERNELS = ("deepep", "deepep_low_latency", "trtllm", "hybridep")


def asked(kernel: str, nodes: int, tokens: float = 128, **more: float) -> dict[str, object]:
    row = {"collective": "dispatch", "lib": kernel, "n_nodes": nodes, "n_gpus": 8 * nodes}
    return row | {"topk": 8, "experts": 256, "bytes": tokens * 7168 * (1 + 4 / 128)} | more


def test_a_token_goes_once_to_each_place_of_its_experts() -> None:
    """Of 8 experts drawn over 4 nodes, 4 (1 - (3/4)^8) = 3.6 nodes have one; of very many places,
    each has its own.
    """
    assert distinct(8, 4) == pytest.approx(3.6, abs=0.01)
    assert distinct(1, 7) == pytest.approx(1.0)
    assert distinct(8, 10_000) == pytest.approx(8.0, rel=1e-3)


def test_a_token_goes_to_the_groups_of_its_experts_alone() -> None:
    """DeepSeek-V3's 4 of 8: of 8 nodes 4 at most, of 16 half of them, of 2 both."""
    assert distinct(8, 8, (8, 4)) == distinct(8, 4)
    assert distinct(8, 16, (8, 4)) == distinct(8, 8)
    assert distinct(8, 2, (8, 4)) == distinct(8, 2)


def test_shares_by_hand() -> None:
    """One expert of a token on 4 nodes of 8: three of four tokens leave their node, either way."""
    for kernel, inside in (("deepep", 7 / 8), ("deepep_low_latency", 7 / 32)):
        shares = Exchange(pd.DataFrame([asked(kernel, 4, topk=1)])).sent()
        assert shares[0] == pytest.approx(inside)
        assert shares[1] == pytest.approx(8 * 3 / 4)


def test_dispatch_to_each_node_carries_less_than_to_each_expert() -> None:
    frame = pd.DataFrame([asked(kernel, 8) for kernel in KERNELS[:2]])
    once, each = Exchange(frame).sent()[1]
    assert once / each == pytest.approx(distinct(8, 8) / 8)
    limited = Exchange(pd.DataFrame([asked("deepep", 8, expert_groups=8, topk_groups=4)]))
    assert limited.sent()[1] == pytest.approx(distinct(8, 4) * 7)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("system", ["aic_h100_sxm", "aws_p5_h100", "8x_mi300x", "aic_gb200"])
def test_more_tokens_and_wider_groups_never_take_less(kernel: str, system: str) -> None:
    per_node = collectives_by_name(system).system.accelerators_per_node
    tokens = 2.0 ** np.arange(0, 18, 0.25)
    rows = [
        asked(kernel, nodes, one) | {"n_gpus": per_node * nodes, "collective": way}
        for way in ("dispatch", "combine")
        for nodes in (1, 2, 4, 16)
        for one in tokens
    ]
    said_s = hp.predict_collectives(rows, system)["predicted_s"].to_numpy()
    said_s = said_s.reshape(2, 4, -1)
    assert np.isfinite(said_s).all()
    assert (np.diff(said_s, axis=1) > 0).all()
    assert (np.diff(said_s, axis=2) >= 0).all()


def test_wide_groups_take_what_the_network_carries() -> None:
    """128 tokens to 72 ranks: within 1.5 times the links' own time, where NCCL's all-to-all of as
    many bytes waits for 71 partners.
    """
    row = asked("deepep_low_latency", 9)
    plain = {"collective": "alltoall", "n_gpus": 72, "n_nodes": 9, "bytes": 8 * row["bytes"]}
    said_s = hp.predict_collectives([row, plain], "aic_h100_sxm")["predicted_s"]
    shares = Exchange(pd.DataFrame([row])).sent()
    wire_s = row["bytes"] * shares[1][0] / load_system("aic_h100_sxm").node_bytes_per_s
    assert wire_s < said_s[0] < 1.5 * wire_s
    assert said_s[0] < said_s[1]


def test_multiprocessors_hold_a_kernel_up_until_links_do() -> None:
    frame = [asked("deepep", 1, 65536, sms=sms) for sms in (4, 8, 24, 100, 132)]
    said_s = hp.predict_collectives(frame, "aic_h100_sxm")["predicted_s"].to_numpy()
    assert said_s[0] / said_s[1] == pytest.approx(2, rel=0.05)
    assert said_s[3] == pytest.approx(said_s[4], rel=1e-6)


def test_what_is_not_told_is_said() -> None:
    found = hp.predict_collectives([asked("nccl", 2), asked("", 2)], "aic_h100_sxm")
    assert "no such kernel of experts is known: taken for deepep" in found["note"][0]
    assert "no lib given: taken for deepep" in found["note"][1]
    assert found["predicted_s"][0] == found["predicted_s"][1]
    assert not found["in_range"].any()


def test_a_datasheet_alone_prices_bytes() -> None:
    model = hp.CollectiveModel.datasheet(load_system("aic_h100_sxm"))
    row = asked("deepep_low_latency", 8, 1e6)
    found = model.predict(pd.DataFrame([row]))
    wire_s = row["bytes"] * 8 * 7 / 8 / 50e9
    assert found["predicted_s"][0] == pytest.approx(wire_s, rel=0.01)


def test_every_kernel_has_knobs_of_both_ways() -> None:
    for kernel in kernels().values():
        assert 0 < kernel.dispatch.log_width < 1
        assert 0 < kernel.combine.log_width < 1
