"""One price of collectives: rows of tables, calls of a graph and traced functions say the same
seconds, and gradients are those of differences.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.collectives.model import CollectiveModel, load_collectives
from hybridperf.collectives.price import (
    NOTHING,
    OWN_ROWS,
    SOURCES,
    STAGES,
    CollectiveTable,
    price,
)
from hybridperf.collectives.rows import checked
from hybridperf.collectives.traced import AllToAll, CollectivePricer, of_a_byte
from hybridperf.collectives.traffic import Links
from hybridperf.hardware import load_device, load_system, system_names
from hybridperf.io import InputError
from hybridperf.io.namespace import QUICKLY_COMPILED, fresh_views
from hybridperf.model import PerfModel
from hybridperf.model.calls import CollectiveCall

SIZES = (1.0, 100.3, 7e4, 3.1e6, 2.2e8, 1.7e10, 3e12)
PLACES = ((2, 1), (8, 1), (16, 2), (4, 4))  # (ranks, nodes)
KNOBS = tuple(field.name for field in dataclasses.fields(Links))
STEP = 1e-5
jitted = functools.partial(jax.jit, compiler_options=QUICKLY_COMPILED)


@jitted
def of_bytes(table: CollectiveTable, bytes_: jax.Array, links: Links) -> jax.Array:
    """Compiled once for all systems whose tables are alike."""
    return price(table.sized(bytes_), links, jnp).seconds


@functools.cache
def model_of(system: str) -> CollectiveModel:
    return collectives_by_name(system)


def every_row() -> pd.DataFrame:
    rows = itertools.product(COLLECTIVES, PLACES, SIZES)
    return pd.DataFrame(
        [
            {"collective": name, "bytes": size, "n_gpus": ranks, "n_nodes": nodes}
            for name, (ranks, nodes), size in rows
        ]
    )


@pytest.mark.parametrize("system", system_names())
def test_rows_calls_and_traced_functions_say_the_same(system: str) -> None:
    model, frame = model_of(system), every_row()
    rows = model.predict(frame)["predicted_s"].to_numpy()
    calls = [
        CollectiveCall(one.collective, one.bytes, int(one.n_gpus), int(one.n_nodes))
        for one in frame.itertuples()
    ]
    machine = PerfModel.datasheet(load_device("h100_sxm")).with_collectives(model)
    with jax.enable_x64(True):
        said = hp.price(machine, calls).seconds
        kinds = model.kinds(checked(frame, model.system)[0])
        table = kinds[0].table.rows(kinds[1])
        traced = of_bytes(*fresh_views((table, frame["bytes"].to_numpy(), model.links())))
    np.testing.assert_allclose(said, rows, rtol=1e-9)
    np.testing.assert_allclose(traced, rows, rtol=1e-9)


@pytest.mark.parametrize("system", ["aic_h100_sxm", "vidur_a100_pairwise_nvlink", "dgx2"])
def test_pricers_and_pairs_of_equal_sizes_say_what_rows_say(system: str) -> None:
    model, frame = model_of(system), every_row()
    rows = model.predict(frame)["predicted_s"].to_numpy()
    with jax.enable_x64(True):
        for (name, ranks, nodes), at in frame.groupby(
            ["collective", "n_gpus", "n_nodes"]
        ).indices.items():
            pricer = CollectivePricer.of(model, name, n_gpus=ranks, n_nodes=nodes)
            got = [float(pricer(model.links(), size)) for size in SIZES]
            np.testing.assert_allclose(got, rows[at], rtol=1e-9)
            if name == "alltoall":
                pairs = AllToAll.of(model, ranks, ranks // nodes)
                equal = [np.full((ranks, ranks), size / ranks) for size in SIZES]
                got = [float(pairs.seconds(one, np)) for one in equal]
                np.testing.assert_allclose(got, rows[at], rtol=1e-9)


@pytest.mark.parametrize("system", ["aic_h100_sxm", "8x_a100_pcie", "vidur_a100_pairwise_nvlink"])
def test_other_links_in_a_table_and_traced_are_another_system(system: str) -> None:
    """What is learned stays at the rates where it was measured; every number of links counts."""
    model, frame = model_of(system), every_row()
    moved = {
        name: getattr(model.system, name) * factor
        for name, factor in (
            ("intra_bytes_per_s", 3.0), ("nic_bytes_per_s", 0.8), ("node_bytes_per_s", 0.7),
            ("latency_s", 1.3), ("host_link_bytes_per_s", 1.6),
        )
    }  # fmt: skip
    other = model.on(model.system.model_copy(update=moved))
    kinds, kind = model.kinds(frame)
    table = kinds.table.rows(kind).sized(frame["bytes"].to_numpy())
    got = price(table, other.links()).seconds
    np.testing.assert_allclose(got, other.predict(frame)["predicted_s"], rtol=1e-9)


@pytest.mark.parametrize(
    "system", ["aic_h100_sxm", "xxrjun_example-cluster00", "vidur_a100_pairwise_nvlink", "dgx2"]
)
def test_gradients_in_bytes_and_every_number_of_links_are_those_of_differences(system: str) -> None:
    model, frame = model_of(system), every_row()
    frame = frame[frame["bytes"].between(10, 1e12)]  # a byte: the curve's lowest end
    kinds, kind = model.kinds(frame)
    table, links = kinds.table.rows(kind), model.links()
    bytes_ = frame["bytes"].to_numpy()

    def log_s(moves: dict[str, jax.Array]) -> jax.Array:
        there = {name: getattr(links, name) * jnp.exp(moves[name]) for name in KNOBS}
        return jnp.log(price(table.sized(bytes_ * jnp.exp(moves["bytes"])), Links(**there), jnp)[0])

    with jax.enable_x64(True):
        zero = {name: jnp.zeros(()) for name in (*KNOBS, "bytes")}
        # one way at a time: JAX traces and compiles all at once in three times as long
        along = jitted(lambda moves, ways: jax.jvp(log_s, (moves,), (ways,)))
        back = jitted(jax.grad(lambda moves: log_s(moves).sum()))(zero)
        for name in zero:
            moved = [along(zero | {name: jnp.asarray(way * STEP)}, zero)[0] for way in (1, -1)]
            slopes = along(zero, zero | {name: jnp.ones(())})[1]
            wanted = np.asarray(moved[0] - moved[1]) / (2 * STEP)
            # of 336 rows those at a corner (a library's choice, a busier link) have two slopes
            near = np.isclose(slopes, wanted, rtol=5e-3, atol=1e-6)
            assert near.mean() > 0.985, name
            assert float(back[name]) == pytest.approx(float(slopes.sum()), rel=1e-6, abs=1e-6)
            assert np.abs(wanted).max() > 0.3 or name == "host_link_bytes_per_s", name


def test_time_never_falls_with_bytes_nor_jumps() -> None:
    model = model_of("aic_h100_sxm")
    sizes = 2.0 ** np.linspace(0, 42, 4201)
    for name, (ranks, nodes) in itertools.product(COLLECTIVES, PLACES):
        table = of_a_byte(model, name, n_gpus=ranks, n_nodes=nodes)
        seconds = price(table.rows(np.zeros(len(sizes), int)).sized(sizes), model.links()).seconds
        steps = np.diff(np.log(seconds))
        assert steps.min() > -1e-9
        assert steps.max() < 0.05, "a hundredth of an octave"


def test_stages_say_what_they_go_by() -> None:
    model = load_collectives("aic_h100_sxm")
    row = {"collective": "all_reduce", "bytes": 1e8, "n_gpus": 8, "n_nodes": 1}
    frame = pd.DataFrame([row, row | {"n_gpus": 16, "n_nodes": 2}])
    table, near = model.priced(frame)
    said = price(table, model.links())
    stages = dict(zip(STAGES, said.stages, strict=True))
    closed_s = price(dataclasses.replace(table, learned=None, least=None), model.links()).seconds
    factors = sum(np.asarray(one.log_factor) for one in said.stages)
    np.testing.assert_allclose(said.seconds, closed_s * np.exp(factors), rtol=1e-12)
    np.testing.assert_allclose(said.log_variance, sum(one.log_variance for one in said.stages))
    assert near.tolist() == [True, False]
    assert [SOURCES[at] for at in stages["closed form"].source] == [
        "own rows",
        "belief of networks",
    ]
    assert stages["learned"].source.tolist() == [OWN_ROWS, NOTHING]
    assert said.log_variance[1] > said.log_variance[0]


def test_one_compile_for_all_bytes_and_links() -> None:
    model = model_of("aic_h100_sxm")
    first, second = (
        CollectivePricer.of(model, name, n_gpus=8) for name in ("all_reduce", "broadcast")
    )
    from hybridperf.collectives import traced

    first(model.links(), 1000)
    compiled = traced._of_bytes._cache_size()
    for pricer, bytes_ in itertools.product(
        (first, second), (1e6, np.float32(1e7), jnp.asarray(8))
    ):
        pricer(jax.tree.map(lambda rate: 2 * rate, model.links()), bytes_)
    assert traced._of_bytes._cache_size() == compiled


def test_collectives_that_cannot_be_priced() -> None:
    fabric = model_of("aic_h100_sxm")
    for arguments, says in (
        ({"collective": "all_reduse", "n_gpus": 8}, "did you mean 'all_reduce'"),
        ({"collective": "all_reduce", "n_gpus": 1}, "n_gpus of 2 or more"),
        ({"collective": "all_reduce", "n_gpus": 9, "n_nodes": 2}, "do not divide"),
        ({"collective": "all_reduce", "n_gpus": 8, "library": "nccl"}, "unknown column 'library'"),
    ):
        with pytest.raises(InputError, match=says):
            CollectivePricer.of(fabric, **arguments)
    pairs = tuple(map(tuple, np.ones((5, 5)).tolist()))
    machine = PerfModel.datasheet(load_device("h100_sxm")).with_collectives(fabric)
    call = CollectiveCall.between(pairs, nodes=2)
    with pytest.raises(InputError, match="5 ranks do not divide"):
        hp.price(machine, [call])


def test_systems_are_all_tried() -> None:
    assert {load_system(name).id for name in system_names()} == set(system_names())
    assert len(system_names()) > 40
