"""Networks of link types on the common trunk: learned where links differ, off where they do not."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import link_networks
from benchmarks.claims.link_networks import LinkedPrior, with_link_networks
from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.rows import CollectiveRows, checked, collective_rows
from hybridperf.hardware import load_system
from hybridperf.learning.prior import train_family
from hybridperf.learning.training import TrainingRecipe
from hybridperf_calibration.ship.link_prior import priced_rows

# two of a kind, so that one tells of the other
SYSTEMS = {"one": "aic_h100_sxm", "two": "aic_h100_sxm", "three": "aic_l40s", "four": "aic_l40s"}
SHORT = TrainingRecipe(steps=150, batch=128)


def measured(of_pcie: float) -> dict[str, tuple[CollectiveRows, np.ndarray]]:
    """The closed form, on PCIe with a wave over size that it does not know."""
    found = {}
    for at, (name, system) in enumerate(SYSTEMS.items()):
        frame = pd.DataFrame({"bytes": 2.0 ** np.tile(np.arange(8, 32, 0.25) + at / 9, 2)}).assign(
            collective="all_reduce", n_gpus=np.repeat([4, 8], 96), n_nodes=1, lib="nccl"
        )
        rows = collective_rows(checked(frame)[0], load_system(system))
        wave = of_pcie * np.sin(np.log2(frame["bytes"]) / 2) * (system == "aic_l40s")
        time_s = np.exp(ALPHA_BETA.log_s(ALPHA_BETA.start, rows.work()) + wave.to_numpy())
        found[name] = priced_rows(frame.assign(time_s=time_s), load_system(system))
    return found


@pytest.mark.parametrize(("wave", "is_on"), [(0.5, True), (0.0, False)])
def test_a_link_earns_a_network_where_others_on_it_err_alike(
    wave: float, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = measured(wave)
    prior = train_family(systems, recipe=dataclasses.replace(SHORT, steps=20))
    # a trunk that saw nothing: what links have in common is left to their own
    monkeypatch.setattr(link_networks, "_TRUNK", dataclasses.replace(SHORT, steps=0))
    monkeypatch.setattr(link_networks, "_LINK", dataclasses.replace(SHORT, steps=400, width=8))
    found, choices = with_link_networks(prior, systems)
    on = {one.link: one.is_on for one in choices}
    assert set(on) == {"nvlink", "pcie"}
    assert on["pcie"] == is_on
    assert ("pcie" in getattr(found, "links", {})) == is_on
    if is_on:
        assert type(found) is LinkedPrior
        rows = systems["three"][0]
        closed = prior.population.typical().closed(rows)
        moved = found.trunk(rows, closed)[1] - prior.trunk(rows, closed)[1]
        assert np.abs(moved).mean() > 0.1
        nvlink = systems["one"][0]
        still = found.trunk(nvlink, prior.population.typical().closed(nvlink))[1]
        if not on["nvlink"]:
            common = prior.trunk(nvlink, prior.population.typical().closed(nvlink))[1]
            np.testing.assert_array_equal(still, common)
