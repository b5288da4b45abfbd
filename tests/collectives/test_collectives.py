"""Who sends how much over which link, what that takes in closed form, and the same in JAX."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.collectives import form
from hybridperf.collectives.algorithms import COLLECTIVES, experts
from hybridperf.collectives.experts import Exchange
from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.price import FIXED, CollectiveTable, Stage, collective_seconds
from hybridperf.collectives.rows import checked, collective_rows
from hybridperf.collectives.traffic import (
    Links,
    bus_bytes_per_s,
    bus_factor,
    canonical_collective,
    link_of,
)
from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf.learning.prior.form import slopes

KNOBS = len(ALPHA_BETA.knobs)
DGX_A100 = load_system("aws_p4d_a100")  # 8 GPUs, 300e9 B/s inside, 4 NICs of 12.5e9
HGX_H100 = load_system("aic_h100_sxm")  # 8 GPUs, 450e9 B/s inside, 8 NICs of 50e9


def random_work(number: int, seed: int) -> np.ndarray:
    """Both links, one of them, small and large."""
    random = np.random.default_rng(seed)
    g, nodes = 2.0 ** random.integers(0, 5, number), 2.0 ** random.integers(0, 6, number)
    g = np.where(g * nodes == 1, 2.0, g)
    seconds = 10.0 ** random.uniform(-9, 0, (number, 2)) * np.stack([g > 1, nodes > 1], 1)
    return with_steps(np.column_stack([seconds, g, nodes]))


def with_steps(work: np.ndarray) -> np.ndarray:
    """Seconds of both links, ranks per node and nodes [..., 4] and the steps of an all-reduce."""
    steps = COLLECTIVES["all_reduce"].steps(work[..., 2], work[..., 3])
    return np.concatenate([work, steps], -1)


def seconds_of(theta: np.ndarray, work: np.ndarray) -> np.ndarray:
    work = work if work.shape[-1] == 8 else with_steps(work)
    return form.parts(theta, work).total


def random_theta(number: int, seed: int, spreads: float = 1.0) -> np.ndarray:
    return (
        ALPHA_BETA.start
        + spreads
        * np.random.default_rng(seed).normal(size=(number, KNOBS))
        * ALPHA_BETA.start_spread
    )


def theta_of(**knobs: float) -> np.ndarray:
    theta = (
        dict(zip(ALPHA_BETA.knobs, np.exp(ALPHA_BETA.start), strict=True))
        | {"rank_decay": form.NO_DECAY}
        | knobs
    )
    return np.log(list(theta.values()))


def longer_of(x: float, y: float) -> float:
    """Levels that overlap, as the form has them: where both take as long, an eighth longer."""
    return float((x**6 + y**6) ** (1 / 6))


def table_of(*rows: tuple[str, float, int, int]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=["collective", "bytes", "n_gpus", "n_nodes"])


# --- traffic --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "of_2", "of_3", "of_8", "of_many"),
    [
        ("all_reduce", 1, 4 / 3, 7 / 4, 2),
        ("all_gather", 1 / 2, 2 / 3, 7 / 8, 1),
        ("reduce_scatter", 1 / 2, 2 / 3, 7 / 8, 1),
        ("alltoall", 1 / 2, 2 / 3, 7 / 8, 1),
        ("broadcast", 1, 1, 1, 1),
        ("reduce", 1, 1, 1, 1),
        ("sendrecv", 1, 1, 1, 1),
    ],
)
def test_bus_factors_by_hand(
    collective: str, of_2: float, of_3: float, of_8: float, of_many: float
) -> None:
    assert [bus_factor(collective, n) for n in (2, 3, 8)] == pytest.approx(
        [of_2, of_3, of_8], rel=1e-15
    )
    assert bus_factor(collective, 1e12) == pytest.approx(of_many)
    assert bus_bytes_per_s(collective, 6e9, 3, 2.0) == pytest.approx(3e9 * of_3)


@pytest.mark.parametrize(
    ("collective", "inside", "across"),
    [
        ("all_reduce", 2 * 3 / 4, 2 * 1 / 2),
        ("all_gather", 3 / 4, 7 / 8),
        ("reduce_scatter", 3 / 4, 7 / 8),
        ("alltoall", 3 / 8, 4 * 4 / 8),
        ("broadcast", 1, 1),
        ("reduce", 1, 1),
        ("sendrecv", 1, 1),
    ],
)
def test_shares_of_two_nodes_of_four_by_hand(collective: str, inside: float, across: float) -> None:
    kind = COLLECTIVES[collective]
    assert (kind.inside(4, 2), kind.across(4, 2)) == (inside, across)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("n", [2, 3, 8, 72])
def test_one_node_carries_the_bus_factor_and_one_rank_per_node_nothing_inside(
    collective: str, n: int
) -> None:
    kind = COLLECTIVES[collective]
    assert kind.inside(n, 1) == pytest.approx(kind.bus_factor(n), rel=1e-15)
    assert kind.across(n, 1) == 0
    assert kind.inside(1, n) == 0
    assert kind.across(1, n) == pytest.approx(kind.bus_factor(n), rel=1e-15)


@pytest.mark.parametrize(("g", "nodes"), [(4, 2), (8, 16), (1, 3), (5, 1)])
def test_what_a_rank_sends_in_an_alltoall_goes_inside_or_across(g: int, nodes: int) -> None:
    kind = COLLECTIVES["alltoall"]
    assert kind.inside(g, nodes) + kind.across(g, nodes) / g == pytest.approx(
        kind.bus_factor(g * nodes)
    )


@pytest.mark.parametrize("said", ["All-Reduce", "allreduce", "all reduce", "all_reduce"])
def test_names_are_read_as_people_write_them(said: str) -> None:
    assert canonical_collective(said) == "all_reduce"


def test_an_unknown_collective_is_an_error_that_helps() -> None:
    with pytest.raises(
        InputError,
        match=(
            r"unknown collective 'all_redcue' \(did you mean 'all_reduce'\?\): known are all_reduce"
        ),
    ):
        canonical_collective("all_redcue")


# --- links ----------------------------------------------------------------------------------------


def test_rates_of_links_by_hand() -> None:
    """A rank alone reaches its share of the cards, and at least one whole card, but never more than
    the node.
    """
    links = Links.of(DGX_A100)
    assert (links.intra_bytes_per_s, links.rank_bytes_per_s, links.node_bytes_per_s) == (
        300e9,
        12.5e9,
        50e9,
    )
    assert Links.of(HGX_H100).rank_bytes_per_s == 50e9
    many = DGX_A100.model_copy(update={"nic_bytes_per_s": 1e9, "node_bytes_per_s": 400e9})
    assert Links.of(many).rank_bytes_per_s == 50e9
    one = DGX_A100.model_copy(update={"nic_bytes_per_s": 100e9, "node_bytes_per_s": 50e9})
    assert Links.of(one).rank_bytes_per_s == 50e9


def test_ranks_of_a_node_share_its_network() -> None:
    links = Links.of(DGX_A100)
    across = [links.seconds(0.0, 1e9, talking)[1] for talking in (1, 2, 4, 8)]
    assert across == pytest.approx([1e9 / 12.5e9, 1e9 / 25e9, 1e9 / 50e9, 1e9 / 50e9])


def test_seconds_of_rows_by_hand() -> None:
    """All ranks of a node share its network; in a ring of sends only one of them talks to the next
    node.
    """
    frame, _, _ = checked(
        table_of(
            ("all_reduce", 8e9, 16, 2),
            ("alltoall", 8e9, 16, 2),
            ("sendrecv", 8e9, 16, 2),
            ("all_reduce", 8e9, 2, 2),
        )
    )
    seconds = collective_rows(frame, DGX_A100).seconds
    by_hand = [
        [7 / 4 * 8 / 300, 8 / 50],
        [7 / 16 * 8 / 300, 8 * 0.5 * 8 / 50],
        [8 / 300, 8 / 12.5],
        [0, 8 / 12.5],
    ]
    np.testing.assert_allclose(seconds, by_hand, rtol=1e-14)


def test_more_ranks_than_a_bridge_joins_go_by_the_hosts_bus() -> None:
    bridged = DGX_A100.model_copy(
        update={
            "intra_link": "NVLink3 bridge in pair / PCIe4 across",
            "host_link_bytes_per_s": 3e10,
        }
    )
    frame, _, _ = checked(table_of(("sendrecv", 6e9, 2, 1), ("sendrecv", 6e9, 4, 1)))
    seconds = collective_rows(frame, bridged).seconds[:, 0]
    np.testing.assert_allclose(seconds, [6 / 300, 6 / 30], rtol=1e-14)
    np.testing.assert_allclose(collective_rows(frame, DGX_A100).seconds[:, 0], 6 / 300, rtol=1e-14)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NVLink3+NVSwitch", "nvlink"),
        ("PCIe4 x16 (no NVLink)", "pcie"),
        ("NVLink bridge, pairs", "nvlink_bridge"),
        ("Xe Link", "nvlink"),
        ("Infinity Fabric (7x64 GB/s)", "nvlink"),
        ("RoCE (21x200GbE, each joined to each)", "other"),
    ],
)
def test_kinds_of_link(text: str, kind: str) -> None:
    assert link_of(DGX_A100.model_copy(update={"intra_link": text})) == kind


# --- the closed form ------------------------------------------------------------------------------


def test_the_closed_form_of_two_ranks_by_hand() -> None:
    """Small: 3 + 2 x 1 us; large: 3 + 1 + 1 us; of two alike the softer minimum of sharpness 2 is 1
    / sqrt 2; and a floor of 1 us.
    """
    theta = theta_of(
        floor_s=1e-6,
        hop_s=3e-6,
        ring=1.0,
        rendezvous_s=1e-6,
        intra_efficiency=0.5,
        small_waste=1.0,
        sharpness=1.0,
    )
    assert seconds_of(theta, np.array([0.5e-6, 0, 2, 1])) == pytest.approx(
        1e-6 + 5e-6 / np.sqrt(2), rel=1e-12
    )


def test_the_closed_form_of_two_nodes_by_hand() -> None:
    """2 ranks on each of 4 nodes, the small algorithm alone: 1 hop, 2 node
    hops, twice the bytes.
    """
    theta = theta_of(
        floor_s=1e-6,
        hop_s=2e-6,
        node_hop_s=5e-6,
        rendezvous_s=1e3,
        intra_efficiency=0.5,
        inter_efficiency=0.8,
        small_waste=1.0,
    )
    assert seconds_of(theta, np.array([1e-6, 4e-6, 2, 4])) == pytest.approx(
        1e-6 + 2e-6 + 10e-6 + 2 * longer_of(2e-6, 5e-6), rel=1e-9
    )


def test_the_ring_by_hand() -> None:
    """8 ranks on each of 4 nodes, the large algorithm alone: half of 28 hops and 3 node hops."""
    theta = theta_of(
        floor_s=1e-6, hop_s=2e-6, node_hop_s=4e-6, ring=0.5, rendezvous_s=3e-6,
        intra_efficiency=1.0, inter_efficiency=1.0, small_waste=1e12, rank_decay=form.NO_DECAY + 2,
    )  # fmt: skip
    work = np.array([1e-6, 4e-6, 8, 4])
    assert seconds_of(theta, work) == pytest.approx(
        1e-6 + 0.5 * (56e-6 + 12e-6) + 3e-6 + longer_of(16e-6, 4e-6), rel=1e-9
    )
    assert form.parts(theta, with_steps(work)).carried == pytest.approx(
        longer_of(16e-6, 4e-6), rel=1e-9
    )


def test_limits_in_bytes() -> None:
    """No bytes: latency. Many: the link's rate, where small messages waste enough for the ring to
    be taken alone.
    """
    theta = theta_of(
        floor_s=4e-6,
        hop_s=2e-6,
        ring=1.0,
        rendezvous_s=1e-6,
        intra_efficiency=0.8,
        small_waste=1e6,
        sharpness=1.0,
    )
    none, some = seconds_of(theta, np.array([[0, 0, 4, 1.0], [1e4, 0, 4, 1]]))
    assert none == pytest.approx(4e-6 + (4e-6**-2 + 7e-6**-2) ** -0.5)
    assert some == pytest.approx(1e4 / 0.8)


def test_limits_in_ranks() -> None:
    """Many ranks: the steps of a ring grow with them, so trees are taken, whose steps are their
    log2; bytes through a link stay.
    """
    theta = theta_of(
        node_hop_s=5e-6, floor_s=1e-6, small_waste=1.0, inter_efficiency=1.0, intra_efficiency=1.0
    )
    nodes = 2.0 ** np.array([30, 40])
    time_s = seconds_of(theta, np.column_stack([np.zeros((2, 2)), np.ones(2), nodes]))
    np.testing.assert_allclose(time_s, 1e-6 + 5e-6 * np.array([30, 40]), rtol=1e-6)
    frame, _, _ = checked(table_of(("all_gather", 1e9, 2**20, 1), ("all_reduce", 1e9, 2**20, 1)))
    np.testing.assert_allclose(
        collective_rows(frame, DGX_A100).seconds[:, 0], [1e9 / 300e9, 2e9 / 300e9], rtol=1e-5
    )


def test_bandwidth_decays_where_ranks_share_a_bus() -> None:
    flat, shared = theta_of(), theta_of(rank_decay=form.NO_DECAY + 1)
    work = np.column_stack([np.full(4, 10.0), np.zeros(4), [1, 2, 4, 16], np.ones(4)])
    np.testing.assert_allclose(
        form.parts(shared, with_steps(work)).carried / form.parts(flat, with_steps(work)).carried,
        [1, 1, 2, 8],
    )


KNOB_VALUES = st.lists(st.floats(-3, 3), min_size=KNOBS, max_size=KNOBS).map(
    lambda drawn: ALPHA_BETA.start + np.array(drawn) * ALPHA_BETA.start_spread
)
SCALES = st.tuples(st.integers(1, 72), st.integers(1, 128)).filter(
    lambda scale: scale[0] * scale[1] > 1
)


@settings(max_examples=150, deadline=None)
@given(KNOB_VALUES, SCALES, st.sampled_from(list(COLLECTIVES)), st.floats(0, 40), st.floats(0, 5))
def test_never_falls_with_bytes_nor_below_its_latency_nor_jumps(
    theta, scale, collective, octaves, more
) -> None:
    """Twice the bytes take at least as long and at most twice as long: rising, and continuous
    everywhere.
    """
    g, nodes = scale
    sizes = 2.0 ** np.array([octaves, octaves + more])
    frame, _, _ = checked(table_of(*((collective, size, g * nodes, nodes) for size in sizes)))
    work = collective_rows(frame, DGX_A100).work()
    none = seconds_of(theta, work[0] * np.repeat([0, 1], [2, 6]))
    less, many = seconds_of(theta, work)
    slack = 1 + 1e-12
    assert np.exp(theta[0]) <= none * slack
    assert none <= less * slack
    assert less <= many * slack
    assert many <= less * 2**more * slack


@settings(max_examples=100, deadline=None)
@given(KNOB_VALUES, SCALES, st.floats(-9, 0), st.floats(-9, 0))
def test_never_below_its_latency_for_links_as_fast_as_you_like(
    theta, scale, inside, across
) -> None:
    work = np.array([10**inside, 10**across, *scale])
    assert seconds_of(theta, work * [1e-9, 1e-9, 1, 1]) <= seconds_of(theta, work) * (1 + 1e-12)
    assert np.isfinite(np.log(seconds_of(theta, work)))


@pytest.mark.parametrize("knob", range(KNOBS), ids=ALPHA_BETA.knobs)
def test_derivatives_are_those_of_differences(knob: int) -> None:
    theta, work, step = random_theta(300, 1), random_work(300, 2), 1e-6
    theta[:20, ALPHA_BETA.knobs.index("rank_decay")] = np.log(
        8.0
    )  # beyond the most that the form follows
    moved = np.eye(KNOBS)[knob] * step
    difference = (ALPHA_BETA.log_s(theta + moved, work) - ALPHA_BETA.log_s(theta - moved, work)) / (
        2 * step
    )
    exact = slopes(ALPHA_BETA, theta, work)[:, knob]
    assert np.abs(exact).max() > 0.01
    np.testing.assert_allclose(exact, difference, atol=2e-8)


def test_what_networks_see_of_a_place_is_finite_and_named() -> None:
    theta, work = random_theta(100, 3), random_work(100, 4)
    on = ALPHA_BETA.closed(theta, work)
    np.testing.assert_array_equal(on.total, ALPHA_BETA.log_s(theta, work))
    assert on.position.shape == (100, len(ALPHA_BETA.position))
    assert np.isfinite(on.position).all()


# --- in JAX ---------------------------------------------------------------------------------------


def random_table(number: int, seed: int) -> CollectiveTable:
    random = np.random.default_rng(seed)
    work = random_work(number, seed)
    g, nodes = work[:, 2], work[:, 3]
    inside, across = (2.0 ** random.uniform(4, 34, (2, number))) * np.stack([g > 1, nodes > 1])
    nothing = np.zeros(number)
    learned = Stage(0.1 * random.normal(size=number), nothing, nothing.astype(int))
    return CollectiveTable(
        inside_bytes=inside,
        across_bytes=across,
        talking=g,
        by_host=nothing,
        ranks_per_node=g,
        nodes=nodes,
        steps=COLLECTIVES["all_reduce"].steps(g, nodes),
        theta=random_theta(number, seed) - FIXED * np.log(DGX_A100.latency_s),
        source=nothing.astype(int),
        unavoidable=nothing,
        moved_s=nothing,
        learned=learned,
    )


def by_numpy(table: CollectiveTable, links: Links) -> np.ndarray:
    sent = table.inside_bytes, table.across_bytes, table.talking, table.by_host
    ranks = table.ranks_per_node, table.nodes, table.steps
    work = np.column_stack([*links.seconds(*sent), *ranks])
    theta = table.theta + FIXED * np.log(links.link_latency_s)
    return seconds_of(theta, work) * np.exp(table.learned.log_factor)


def test_jax_says_what_numpy_says() -> None:
    table, links = random_table(200, 5), Links.of(DGX_A100)
    with jax.enable_x64(True):
        np.testing.assert_allclose(
            collective_seconds(table, links), by_numpy(table, links), rtol=1e-12
        )
    np.testing.assert_allclose(collective_seconds(table, links), by_numpy(table, links), rtol=2e-5)


@pytest.mark.parametrize("field", ["theta", "inside_bytes", "across_bytes"])
def test_gradients_in_a_table_are_those_of_differences(field: str) -> None:
    table, links, step = random_table(40, 6), Links.of(DGX_A100), 1e-6
    values = getattr(table, field)
    relative = field.endswith("bytes")

    def moved(by: np.ndarray) -> CollectiveTable:
        return dataclasses.replace(table, **{field: values * (1 + by) if relative else values + by})

    with jax.enable_x64(True):
        slope = jax.grad(lambda by: jnp.log(collective_seconds(moved(by), links)).sum())(
            jnp.zeros(values.shape)
        )
    for column in range(values.shape[1] if values.ndim == 2 else 1):
        by = (
            step * np.broadcast_to(np.eye(KNOBS)[column], values.shape)
            if values.ndim == 2
            else np.full(values.shape, step)
        )
        wanted = (np.log(by_numpy(moved(by), links)) - np.log(by_numpy(moved(-by), links))) / (
            2 * step
        )
        got = slope[:, column] if values.ndim == 2 else slope
        assert np.abs(wanted).max() > 0.01
        np.testing.assert_allclose(got, wanted, atol=1e-7)


@pytest.mark.parametrize(
    "rate", ["intra_bytes_per_s", "rank_bytes_per_s", "node_bytes_per_s", "link_latency_s"]
)
def test_gradients_in_rates_of_links_are_those_of_differences(rate: str) -> None:
    table, links, step = random_table(200, 7), Links.of(DGX_A100), 1e-6

    def moved(by: float) -> Links:
        return dataclasses.replace(links, **{rate: getattr(links, rate) * (1 + by)})

    with jax.enable_x64(True):
        slope = float(jax.grad(lambda by: jnp.log(collective_seconds(table, moved(by))).sum())(0.0))
    wanted = (
        np.log(by_numpy(table, moved(step))) - np.log(by_numpy(table, moved(-step)))
    ).sum() / (2 * step)
    assert abs(slope) > 0.1
    assert (slope > 0) == (rate == "link_latency_s"), "a faster or quicker link saves time"
    assert slope == pytest.approx(wanted, rel=1e-5)


def test_one_trace_for_every_scale_rate_and_library() -> None:
    traces = 0

    @jax.jit
    def seconds(table: CollectiveTable, links: Links) -> jax.Array:
        nonlocal traces
        traces += 1
        return collective_seconds(table, links)

    each = [
        seconds(random_table(16, seed), Links.of(system))
        for seed, system in ((0, DGX_A100), (1, HGX_H100), (2, DGX_A100))
    ]
    assert traces == 1
    assert not np.allclose(each[0], each[1])
    seconds(random_table(17, 3), Links.of(DGX_A100))
    assert traces == 2, "another number of rows is another shape"


def test_systems_in_a_batch() -> None:
    table = random_table(8, 9)
    links = [Links.of(DGX_A100), Links.of(HGX_H100)]
    both = jax.tree.map(lambda *leaves: np.stack(leaves), *links)
    got = jax.vmap(collective_seconds, (None, 0))(table, both)
    np.testing.assert_allclose(got, [collective_seconds(table, each) for each in links], rtol=1e-6)


# --- the datasheet --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "system", [DGX_A100, HGX_H100, load_system("8x_a100_pcie")], ids=lambda system: system.id
)
def test_the_datasheet_is_latency_and_bytes_over_rate(system) -> None:
    """Whatever the scale: no hop, no waste, no decay with ranks."""
    rows = [
        (name, size, g * nodes, nodes)
        for name in COLLECTIVES
        for size in (8.0, 2.0**26, 2.0**34)
        for g, nodes in ((2, 1), (8, 1), (4, 2), (8, 16), (1, 4))
    ]
    said = CollectiveModel.datasheet(system).predict(table_of(*rows))
    links = Links.of(system)
    for row, predicted_s in zip(rows, said["predicted_s"], strict=True):
        name, size, n, nodes = row
        g, kind = n // nodes, COLLECTIVES[name]
        rate = min(
            links.node_bytes_per_s, links.rank_bytes_per_s * (1 if name == "sendrecv" else g)
        )
        shares = kind.inside(g, nodes), kind.across(g, nodes)
        if name in experts.NAMES:  # as often as its kernel sends it
            inside, across, _ = Exchange(table_of(row)).sent()
            shares = inside.item(), across.item()
        by_hand = system.latency_s + size * longer_of(
            shares[0] / links.intra_bytes_per_s, shares[1] / rate
        )
        assert predicted_s == pytest.approx(by_hand, rel=3e-5), row
    np.testing.assert_array_equal(said["predicted_s"], said["roofline_s"])
    assert said["low_s"].isna().all()
    assert set(said["note"]) == {"datasheet alone: this model has no measurements"}


def test_the_datasheet_in_jax_says_what_its_table_says() -> None:
    model = CollectiveModel.datasheet(DGX_A100)
    frame = table_of(("all_reduce", 1e9, 16, 2), ("alltoall", 100.0, 8, 1), ("sendrecv", 1e6, 4, 4))
    np.testing.assert_allclose(
        collective_seconds(model.table(frame), model.links()),
        model.predict(frame)["predicted_s"],
        rtol=1e-5,
    )
