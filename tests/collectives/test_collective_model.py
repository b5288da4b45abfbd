"""A model of a system's collectives: what it refuses, what it says without rows, with few and with
many, and what always holds.

The systems are made up: links of shipped presets, the closed form with known knobs, a step over
bytes that all systems share, noise of 3 %. Systems with accelerators of one architecture are alike.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy

from hybridperf.collectives import fit, network
from hybridperf.collectives.fit import fit_collectives, references_of
from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.model import CollectiveModel, load_collectives
from hybridperf.collectives.price import LOG2_BYTES, collective_seconds, never_falling
from hybridperf.collectives.rows import checked, collective_rows, implementations
from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf.io.documents import with_checksum
from hybridperf.learning.prior import adapted, family, train_family
from hybridperf.learning.prior.shipped import Prior
from hybridperf.learning.training import TrainingRecipe
from hybridperf_calibration.ship import link_prior
from hybridperf_calibration.ship.link_prior import train_prior

NOISE = 0.03
KINDS = ("all_reduce", "all_gather", "alltoall")
SCALES = ((2, 1), (4, 1), (8, 1), (8, 2), (8, 4))
TAUGHT = ("aic_a100_sxm", "aic_h100_sxm", "deepbench_nv_v100")
NEW = "azure_ndm_a100_v4"  # like the first: A100s joined by NVLink, a card of 25e9 B/s each
SLOWER = {
    "aic_a100_sxm": 0.6,
    NEW: 0.5,
    "aic_h100_sxm": -0.5,
    "deepbench_nv_v100": 0.0,
}  # log of fixed seconds
OCTAVES = (6.0, 30.0)
ROWS = 200  # are many


def step(octaves: np.ndarray) -> np.ndarray:
    """What the closed form misses: above 64 KiB a library of this kind does something slower."""
    return 0.2 * np.tanh((octaves - 16) / 1.5)


def made_up(
    system: str, number: int, seed: int, missed: Callable = step, **columns: object
) -> pd.DataFrame:
    """Measured rows of a system."""
    random = np.random.default_rng(seed)
    g, nodes = np.array(SCALES)[random.integers(0, len(SCALES), number)].T
    size = np.round(2.0 ** random.uniform(*OCTAVES, number))
    frame = pd.DataFrame(
        {
            "collective": np.array(KINDS, object)[random.integers(0, len(KINDS), number)],
            "bytes": size,
        }
    )
    frame = frame.assign(n_gpus=g * nodes, n_nodes=nodes, lib="nccl", system=system, **columns)
    return frame.assign(
        time_s=true_s(frame, system, missed) * np.exp(NOISE * random.normal(size=number))
    )


def true_s(frame: pd.DataFrame, system: str, missed: Callable = step) -> np.ndarray:
    good, _, _ = checked(frame)
    fixed = np.isin(ALPHA_BETA.knobs, ("floor_s", "hop_s", "node_hop_s", "rendezvous_s"))
    of_kind = 0.1 * np.array([KINDS.index(kind) for kind in good["collective"]])
    theta = ALPHA_BETA.start + SLOWER[system] * fixed + of_kind[:, None]
    work = collective_rows(good, load_system(system)).work()
    return np.exp(ALPHA_BETA.log_s(theta, work) + missed(np.log2(good["bytes"].to_numpy())))


def of_one_kind(
    collective: str, sizes: np.ndarray, n_gpus: int = 8, n_nodes: int = 1, lib: str = "nccl"
) -> pd.DataFrame:
    return pd.DataFrame(
        {"collective": collective, "bytes": sizes, "n_gpus": n_gpus, "n_nodes": n_nodes, "lib": lib}
    )


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Networks learn a step in a tenth of the steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            link_prior,
            "train_family",
            functools.partial(train_family, recipe=TrainingRecipe(steps=250, batch=256)),
        )
        patch.setattr(family, "_HYPER_STEPS", 30)
        yield


@pytest.fixture(scope="module")
def prior(quick: None) -> Prior:
    return Prior(
        {
            fit.FAMILY: train_prior(
                {name: made_up(name, 250, seed) for seed, name in enumerate(TAUGHT)}
            )
        },
        {},
    )


@pytest.fixture(scope="module")
def cold(prior: Prior) -> CollectiveModel:
    return fit_collectives(None, NEW, prior)[0]


@pytest.fixture(scope="module")
def few(prior: Prior) -> CollectiveModel:
    return fit_collectives(made_up(NEW, 20, 10), NEW, prior)[0]


@pytest.fixture(scope="module")
def fitted(prior: Prior) -> tuple[CollectiveModel, fit.CollectiveReport]:
    return fit_collectives(made_up(NEW, ROWS, 11), NEW, prior)


@pytest.fixture(scope="module")
def many(fitted: tuple[CollectiveModel, fit.CollectiveReport]) -> CollectiveModel:
    return fitted[0]


@pytest.fixture(scope="module")
def held() -> pd.DataFrame:
    return made_up(NEW, 400, 12)


@pytest.fixture(scope="module")
def wiggly(prior: Prior) -> CollectiveModel:
    """Of a system whose small messages get faster by getting longer, every three doublings."""
    return fit_collectives(
        made_up(NEW, 150, 13, lambda octaves: 0.4 * np.sin(2 * octaves)), NEW, prior
    )[0]


def error(model: CollectiveModel, rows: pd.DataFrame) -> float:
    return float(np.median(np.abs(model.predict(rows)["predicted_s"] / rows["time_s"] - 1)))


# --- tables ---------------------------------------------------------------------------------------

GOOD = {"collective": "all_reduce", "bytes": 1024, "n_gpus": 8, "n_nodes": 2}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {"collective": "all_redcue"},
            (
                r"^unknown collective 'all_redcue' \(did you mean 'all_reduce'\?\): known are"
                r" all_reduce, "
            ),
        ),
        ({"collective": "hypercube"}, "^unknown collective 'hypercube'.*: known are all_reduce, "),
        ({"collective": None}, "^unknown collective"),
        ({"bytes": 0}, "^expected bytes above zero, got 0; mend or drop the row$"),
        ({"bytes": -1}, "^expected bytes above zero, got -1; mend or drop the row$"),
        ({"bytes": np.nan}, "^expected bytes above zero, got nan; mend or drop the row$"),
        ({"bytes": np.inf}, "^expected bytes above zero, got inf; mend or drop the row$"),
        ({"bytes": "much"}, "^expected bytes above zero, got 'much'; mend or drop the row$"),
        (
            {"n_gpus": 1, "n_nodes": 1},
            "^expected n_gpus of 2 or more, a whole number, got 1; mend the row$",
        ),
        ({"n_gpus": 2.5}, "^expected n_gpus of 2 or more, a whole number, got 2.5; mend the row$"),
        (
            {"n_gpus": "all"},
            "^expected n_gpus of 2 or more, a whole number, got 'all'; mend the row$",
        ),
        ({"n_nodes": 3}, "^8 ranks do not divide into 3 nodes; mend n_gpus or n_nodes$"),
        (
            {"n_nodes": 0},
            "^expected n_nodes of 1 or more, a whole number; mend n_nodes or gpus_per_node$",
        ),
        ({"n_nodes": 1.5}, "^expected n_nodes of 1 or more, a whole number"),
        ({"n_nodes": "two"}, "^expected n_nodes of 1 or more, a whole number"),
        ({"gpus_per_node": 8}, "^n_gpus is not n_nodes times gpus_per_node; mend one of them$"),
    ],
)
def test_a_row_that_cannot_be_priced_says_why(
    row: dict[str, object], sentence: str, cold: CollectiveModel
) -> None:
    """And leaves its neighbours alone."""
    frame = pd.DataFrame([GOOD, {**GOOD, **row}, GOOD])
    good, problem, _ = checked(frame)
    assert list(good.index) == [0, 2]
    assert (problem[[0, 2]] == "").all()
    said = cold.predict(frame)
    assert pd.Series([said["note"][1]]).str.contains(sentence)[0], said["note"][1]
    numbers = said[["predicted_s", "low_s", "high_s", "roofline_s", "bus_bytes_per_s"]]
    assert numbers.iloc[1].isna().all()
    assert not said["in_range"][1]
    assert (numbers.iloc[[0, 2]] > 0).all(axis=None)
    with pytest.raises(InputError, match="row 2: " + sentence.removeprefix("^")):
        cold.table(frame)
    with pytest.raises(InputError, match="row 2: " + sentence.removeprefix("^").removesuffix("$")):
        fit_collectives(frame.assign(time_s=1e-5), NEW, "none")


@pytest.mark.parametrize("column", ["collective", "bytes", "n_gpus"])
def test_a_table_without_a_column_is_an_error(column: str, cold: CollectiveModel) -> None:
    with pytest.raises(InputError, match=column):
        cold.predict(pd.DataFrame([GOOD]).drop(columns=column))


def test_rows_keep_their_order_index_and_columns(many: CollectiveModel) -> None:
    frame = pd.DataFrame(
        [
            {**GOOD, "mine": "a"},
            {**GOOD, "bytes": -1, "mine": "b"},
            {**GOOD, "bytes": 2**30, "mine": "c"},
        ],
        [7, 7, 3],
    )
    said = many.predict(frame)
    pd.testing.assert_frame_equal(said[frame.columns], frame)
    new = ["predicted_s", "low_s", "high_s", "roofline_s", "bus_bytes_per_s", "in_range", "note"]
    assert list(said.columns) == [*frame.columns, *new]
    assert said["predicted_s"].iloc[2] > said["predicted_s"].iloc[0]
    assert many.predict(frame.iloc[:0]).empty


def test_nodes_may_follow_from_gpus_per_node_or_be_one(many: CollectiveModel) -> None:
    bare = pd.DataFrame([GOOD]).drop(columns="n_nodes")
    two, one = many.predict(bare.assign(gpus_per_node=4)), many.predict(bare)
    assert two["predicted_s"][0] == many.predict(pd.DataFrame([GOOD]))["predicted_s"][0]
    assert (
        one["predicted_s"][0]
        == many.predict(pd.DataFrame([GOOD]).assign(n_nodes=1))["predicted_s"][0]
    )
    assert "no n_nodes given: one node" in one["note"][0]
    assert "one node" not in two["note"][0]
    more = many.predict(bare.assign(n_gpus=16, n_nodes=np.nan))
    assert (
        more["predicted_s"][0] == many.predict(bare.assign(n_gpus=16, n_nodes=2))["predicted_s"][0]
    )
    assert "no n_nodes given: 2 nodes, the fewest that hold them" in more["note"][0]


def test_bus_bandwidth_is_that_of_the_prediction(many: CollectiveModel) -> None:
    said = many.predict(of_one_kind("all_reduce", np.array([1e9])))
    assert said["bus_bytes_per_s"][0] == pytest.approx(1e9 / said["predicted_s"][0] * 2 * 7 / 8)


def test_notes_say_what_was_assumed(many: CollectiveModel) -> None:
    row = of_one_kind("all_reduce", np.array([2.0**20]))
    notes = {
        "as measured": row,
        "no lib given: taken for nccl": row.drop(columns="lib"),
        "outside the sizes, ranks and nodes that were measured": row.assign(bytes=2.0**36),
        f"{NEW} has 8 accelerators in a node: more ranks there are priced as if it had": row.assign(
            n_gpus=16
        ),
        f"the row is of another system, predicted for {NEW}": row.assign(system="dgx2"),
        "no such collective of its library was measured: taken for nccl": row.assign(lib="gloo"),
        "no such collective, library and link was measured: predicted from what others share": (
            row.assign(collective="broadcast")
        ),
        "nvls of variant is not told apart": row.assign(variant="nccl_nvls"),
        "ll128 of variant is not told apart": row.assign(variant="nccl-LL128"),
        "ring of variant is not told apart": row.assign(variant="nccl_ring"),  # of one node
    }
    assert many.predict(notes.pop("as measured"))["note"][0] == ""
    for note, frame in notes.items():
        assert note in many.predict(frame)["note"][0]


# --- no rows, few rows, many rows -----------------------------------------------------------------


def test_each_step_of_knowledge_helps(
    cold: CollectiveModel, few: CollectiveModel, many: CollectiveModel, held: pd.DataFrame
) -> None:
    roofline = float(np.median(np.abs(many.predict(held)["roofline_s"] / held["time_s"] - 1)))
    assert error(many, held) < error(few, held) < error(cold, held) < 0.5 * roofline
    assert error(many, held) < 0.05, "noise alone has a median of 2 %"


def test_without_rows_the_prior_speaks_and_says_so(
    cold: CollectiveModel, held: pd.DataFrame
) -> None:
    said = cold.predict(held)
    assert not said["in_range"].any(), "nothing was measured"
    assert said["note"].str.contains(f"prior alone: no collective of {NEW} was measured").all()
    assert (said["low_s"] < said["predicted_s"]).all()
    assert (said["predicted_s"] < said["high_s"]).all()


def test_an_empty_table_is_no_rows(prior: Prior, cold: CollectiveModel, held: pd.DataFrame) -> None:
    model, report = fit_collectives(held.iloc[:0], NEW, prior)
    pd.testing.assert_frame_equal(model.predict(held), cold.predict(held))
    assert report.rows == 0
    assert report.by_collective().empty


def test_neither_prior_nor_rows_is_the_datasheet() -> None:
    model, _ = fit_collectives(None, NEW, "none")
    said = model.predict(of_one_kind("all_gather", np.array([1e9])))
    assert said["predicted_s"][0] == pytest.approx(1e-5 + 7 / 8 / 300, rel=1e-4)
    assert said["note"][0].startswith("datasheet alone")
    with pytest.raises(InputError, match="datasheet and has no knobs"):
        model.knobs("all_gather|nccl|nvlink")


def test_without_a_prior_rows_still_make_a_model(held: pd.DataFrame) -> None:
    model, report = fit_collectives(made_up(NEW, 60, 14), NEW, "none")
    assert error(model, held) < 0.15
    assert report.rows == 60


def test_a_prior_of_other_things_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"the prior holds gemm, expected collectives; give --prior"
    ):
        fit_collectives(None, NEW, Prior({"gemm": None}, {}))  # type: ignore[dict-item]


def test_knobs_come_back(many: CollectiveModel) -> None:
    """Two that these rows tell: what is fixed, and the share of the link's rate, which the step
    takes from large messages.
    """
    knobs = many.knobs("all_reduce|nccl|nvlink")
    assert knobs["floor_s"] == pytest.approx(8e-6 * np.exp(SLOWER[NEW]), rel=0.35)
    assert knobs["intra_efficiency"] == pytest.approx(0.7 * np.exp(-0.2), rel=0.15)
    with pytest.raises(
        InputError, match=r"unknown group of collectives 'all_reduce\|nccl\|pcie' \(did you mean"
    ):
        many.knobs("all_reduce|nccl|pcie")


@pytest.mark.parametrize("which", ["few", "many"])
def test_intervals_hold_what_they_promise(
    which: str, held: pd.DataFrame, request: pytest.FixtureRequest
) -> None:
    said = request.getfixturevalue(which).predict(held)
    inside = ((said["low_s"] <= held["time_s"]) & (held["time_s"] <= said["high_s"])).mean()
    assert 0.8 <= inside <= (0.975 if which == "many" else 1.0)


def test_intervals_widen_outside_the_range(many: CollectiveModel, cold: CollectiveModel) -> None:
    def width(model: CollectiveModel, size: float, nodes: int = 1) -> float:
        said = model.predict(of_one_kind("alltoall", np.array([size]), 8 * nodes, nodes))
        return float(np.log(said["high_s"] / said["low_s"])[0])

    assert width(many, 2.0**36) > 1.5 * width(many, 2.0**28)
    assert width(many, 2.0**20, nodes=64) > 1.5 * width(many, 2.0**20, nodes=4)
    assert width(cold, 2.0**20) > 1.5 * width(many, 2.0**20), "and where nothing was measured"


def test_in_range_is_what_was_measured(many: CollectiveModel) -> None:
    frame = pd.concat([
        of_one_kind("all_reduce", np.array([2.0**20, 2.0**33, 2.0**3])),
        of_one_kind("broadcast", np.array([2.0**20])),
        of_one_kind("all_reduce", np.array([2.0**20]), lib="custom"),
        of_one_kind("all_reduce", np.array([2.0**20]), 128, 16),
        of_one_kind("all_reduce", np.array([2.0**20]), 32, 4),
    ])  # fmt: skip
    assert list(many.predict(frame)["in_range"]) == [True, False, False, False, False, False, True]


def test_what_is_held_out_is_about_as_wrong_as_what_comes(
    fitted: tuple[CollectiveModel, fit.CollectiveReport], held: pd.DataFrame, tmp_path: Path
) -> None:
    model, report = fitted
    assert len(report.held_out) == report.rows == ROWS
    promised = np.median(np.abs(report.held_out["predicted_s"] / report.held_out["measured_s"] - 1))
    assert promised == pytest.approx(error(model, held), rel=0.35)
    table = report.by_collective()
    assert set(map(tuple, table[["collective", "link"]].to_numpy())) == {
        (kind, link) for kind in KINDS for link in ("nvlink", "network")
    }
    assert table["rows"].sum() == ROWS
    assert (table["median_ape"] < table["roofline_ape"]).all()
    assert model.provenance["fit"]["rows"] == ROWS
    report.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_rows_of_other_systems_are_left_out_or_refused(prior: Prior) -> None:
    mine, others = made_up(NEW, 12, 15), made_up("aic_h100_sxm", 5, 16)
    _, report = fit_collectives(pd.concat([others, mine], ignore_index=True), NEW, prior)
    assert (report.rows, dict(report.dropped)) == (12, {"other systems": 5})
    with pytest.raises(
        InputError,
        match=f"^no row of {NEW} \\(5 of other systems\\); check --system against the table$",
    ):
        fit_collectives(others, NEW, prior)


@pytest.mark.parametrize("time_s", [0.0, -1e-6, np.nan, np.inf])
def test_times_that_cannot_be_are_refused(prior: Prior, time_s: float) -> None:
    rows = made_up(NEW, 12, 15)
    rows.loc[3, "time_s"] = time_s
    with pytest.raises(InputError, match="time_s"):
        fit_collectives(rows, NEW, prior)


# --- reference systems -----------------------------------------------------------------------


def test_kin_are_of_one_architecture_and_kind_of_link() -> None:
    assert references_of(load_system(NEW), [*TAUGHT, "8x_a100_pcie"]) == ["aic_a100_sxm"]
    assert references_of(load_system("8x_a100_pcie"), [*TAUGHT, NEW]) == []
    assert references_of(load_system("dgx2"), TAUGHT) == [], (
        "of an accelerator that is not known there is no reference"
    )
    assert references_of(load_system("8x_l20_pcie"), ["aic_l40s"]) == [], (
        "how messages go over PCIe is the host's doing"
    )


def test_kin_are_believed_before_anything_was_measured(
    prior: Prior, cold: CollectiveModel, held: pd.DataFrame
) -> None:
    nobody = load_system(NEW).model_copy(update={"device": None})
    stranger, _ = fit_collectives(None, nobody, prior)
    assert error(cold, held) < 0.7 * error(stranger, held)


def test_a_system_of_ones_own_needs_no_preset() -> None:
    """Described in a file, with a device that is known, fitted without a prior: nobody else is
    asked.
    """
    spec = load_system(NEW).model_copy(update={"id": "my_cluster"})
    model, _ = fit_collectives(made_up(NEW, 12, 15).assign(system="my_cluster"), spec, "none")
    assert np.isfinite(
        model.predict(of_one_kind("all_reduce", np.array([1e6])))["predicted_s"]
    ).all()


# --- implementations ------------------------------------------------------------------------------


def test_implementations_are_libraries_or_their_kernels() -> None:
    frame = pd.DataFrame(
        {
            "lib": ["nccl", "NCCL 2.19", "trtllm", "trtllm", None],
            "variant": ["env=1", None, "oneshot", None, None],
        }
    )
    assert list(implementations(frame)) == ["nccl", "nccl", "oneshot", "trtllm", "nccl"]


def test_a_version_that_was_not_measured_is_near_those_that_were(prior: Prior) -> None:
    rows = pd.concat(
        [made_up(NEW, 60, 20, lib_version="2.18.3"), made_up(NEW, 60, 21, lib_version="2.19.4")],
        ignore_index=True,
    )
    model, _ = fit_collectives(rows, NEW, prior)
    row = of_one_kind("all_reduce", np.array([2.0**12, 2.0**28]))
    said = {
        version: model.predict(row.assign(lib_version=version))
        for version in ("2.18.3", "2.19.4", "2.27.0")
    }
    np.testing.assert_allclose(
        said["2.27.0"]["predicted_s"], said["2.19.4"]["predicted_s"], rtol=0.15
    )
    assert not said["2.27.0"]["note"].str.contains("was measured").any()


def test_rows_without_a_version_are_of_the_one_that_was_measured(prior: Prior) -> None:
    """Else the version's part of what was learned is left out: of gloo's alltoalls of 80 us 23 were
    left.
    """
    rows = made_up(NEW, 60, 20, lib_version="9.9.9")
    model, _ = fit_collectives(rows.assign(time_s=3 * rows["time_s"]), NEW, prior)
    said, unsaid = model.predict(rows), model.predict(rows.drop(columns="lib_version"))
    np.testing.assert_allclose(unsaid["predicted_s"], said["predicted_s"], rtol=1e-9)
    assert unsaid["note"].str.contains("no lib_version given: taken for 9.9.9").all()
    assert not said["note"].str.contains("lib_version").any()


def test_implementations_have_knobs_of_their_own(prior: Prior) -> None:
    rows, other = made_up(NEW, 80, 22), made_up(NEW, 80, 23).assign(lib="custom")
    model, _ = fit_collectives(
        pd.concat([rows, other.assign(time_s=2 * other["time_s"])], ignore_index=True), NEW, prior
    )
    row = of_one_kind("all_reduce", np.array([2.0**12, 2.0**28]))
    ratio = (
        model.predict(row.assign(lib="custom"))["predicted_s"] / model.predict(row)["predicted_s"]
    )
    np.testing.assert_allclose(ratio, 2, rtol=0.2)


# --- curves ---------------------------------------------------------------------------------------

FINE = 2.0 ** np.arange(0, 44, 1 / 64)


@pytest.mark.parametrize("collective", KINDS)
def test_more_bytes_never_take_less_and_nothing_jumps(
    wiggly: CollectiveModel, collective: str
) -> None:
    frame = of_one_kind(collective, FINE)
    good, _, _ = checked(frame)
    assert wiggly.adapted is not None
    raw = wiggly.adapted.predict(collective_rows(good, wiggly.system)).log_s
    assert np.diff(raw).min() < -0.001, "what was learned does fall"
    log_s = np.log(wiggly.predict(frame)["predicted_s"].to_numpy())
    assert np.diff(log_s).min() > -1e-9
    assert np.diff(log_s).max() < 0.1
    assert np.abs(log_s - raw).max() < 1.0


def test_beyond_the_last_size_there_is_bandwidth(many: CollectiveModel) -> None:
    last = 2.0 ** LOG2_BYTES[-1]
    said = many.predict(of_one_kind("all_reduce", last * np.array([1, 2, 4])))[
        "predicted_s"
    ].to_numpy()
    np.testing.assert_allclose(said / said[0], [1, 2, 4], rtol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours(many: CollectiveModel, held: pd.DataFrame) -> None:
    numbers = ["predicted_s", "low_s", "high_s", "roofline_s"]
    whole = many.predict(held)[numbers]
    for at in (0, 7, 100):
        np.testing.assert_allclose(
            many.predict(held.iloc[[at]])[numbers], whole.iloc[[at]], rtol=1e-5
        )
    np.testing.assert_allclose(many.predict(held.iloc[::-1])[numbers], whole.iloc[::-1], rtol=1e-5)


# --- as a function of links -----------------------------------------------------------------------


def test_jax_says_what_the_table_says(
    many: CollectiveModel, cold: CollectiveModel, held: pd.DataFrame
) -> None:
    for model in (many, cold):
        got = collective_seconds(model.table(held), model.links())
        np.testing.assert_allclose(got, model.predict(held)["predicted_s"], rtol=1e-4)


def test_faster_links_move_what_was_learned(many: CollectiveModel) -> None:
    """Twice the rates halve large messages and leave small ones."""
    links = many.links()
    rates = ("intra_bytes_per_s", "rank_bytes_per_s", "node_bytes_per_s")
    faster = dataclasses.replace(links, **{name: 2 * getattr(links, name) for name in rates})
    table = many.table(of_one_kind("all_reduce", np.array([64.0, 2.0**34]), 16, 2))
    np.testing.assert_allclose(
        collective_seconds(table, faster) / collective_seconds(table, links), [1, 0.5], rtol=0.01
    )


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["cold", "few", "many"])
def test_what_is_saved_predicts_the_same(
    which: str, held: pd.DataFrame, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(which)
    model.save(tmp_path)
    again = load_collectives(tmp_path)
    pd.testing.assert_frame_equal(again.predict(held), model.predict(held), check_exact=True)
    assert again.system == model.system
    assert again.provenance == json.loads(json.dumps(dict(model.provenance)))


def test_a_datasheet_is_saved_without_arrays(tmp_path: Path, held: pd.DataFrame) -> None:
    model = CollectiveModel.datasheet(load_system(NEW))
    model.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["collectives.json"]
    pd.testing.assert_frame_equal(
        load_collectives(tmp_path).predict(held), model.predict(held), check_exact=True
    )


def test_no_row_is_kept_where_none_may_be(
    prior: Prior, held: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapted, "_LEAST_TUNING_STEPS", 200)
    rows = made_up(NEW, ROWS, 11)
    model, _ = fit_collectives(rows, NEW, prior, keep_rows=False)
    assert model.adapted is not None
    assert model.adapted.process is None
    assert error(model, held) < 0.12
    model.save(tmp_path)
    pd.testing.assert_frame_equal(
        load_collectives(tmp_path).predict(held), model.predict(held), check_exact=True
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda document: document["content"].pop("adapted"), "is damaged"),
        (lambda document: document["content"]["system"].pop("nic"), "is damaged"),
        (lambda document: document["content"]["adapted"].pop("slots"), "is damaged"),
        (lambda document: document["content"].update(weights_sha256="0" * 16), "collectives.npz"),
    ],
)
def test_a_damaged_document_is_one_sentence(
    few: CollectiveModel, tmp_path: Path, change, sentence: str
) -> None:
    few.save(tmp_path)
    path = tmp_path / "collectives.json"
    document = json.loads(path.read_text())
    change({"content": document})
    path.write_text(json.dumps(with_checksum(document)))
    with pytest.raises(InputError, match=sentence) as raised:
        load_collectives(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["collectives.json", "collectives.npz"])
def test_a_truncated_or_missing_file_is_one_sentence(
    few: CollectiveModel, tmp_path: Path, name: str
) -> None:
    few.save(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=name) as raised:
        load_collectives(tmp_path)
    assert "\n" not in str(raised.value)
    path.unlink()
    with pytest.raises(InputError):
        load_collectives(tmp_path)


def test_a_name_that_is_nowhere_is_an_error_that_helps(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"unknown model of collectives .*: give a folder made by `hybridperf fit --system`",
    ):
        load_collectives(tmp_path / "nowhere")


def test_a_model_prints_its_system_and_how_it_was_calibrated(
    cold: CollectiveModel, many: CollectiveModel
) -> None:
    datasheet = CollectiveModel.datasheet(cold.system)
    for model, how in (
        (datasheet, "datasheet latency and rates"),
        (cold, "prior alone, nothing measured"),
        (many, f"fitted to {many.adapted.rows if many.adapted else 0:,} measured rows of nccl"),
    ):
        assert repr(model).startswith(f"<CollectiveModel: {model.system.id}: {how}")
        assert len(repr(model)) < 200


@pytest.mark.parametrize("name", ["dgx_h100", "dgx_a100"])
def test_a_network_that_nobody_measured_carries_what_measured_ones_do(name) -> None:
    """Nine tenths of its line rate, a little less over many nodes; not the prior's start of 0.7."""
    model = load_collectives(name)
    assert all(one.nodes == 1 for one in model.measured)
    rows = pd.DataFrame({"collective": "all_gather", "bytes": 4e9, "n_gpus": [8, 64, 512]})
    found = model.predict(rows.assign(n_nodes=rows["n_gpus"]))
    shares = found["bus_bytes_per_s"] / model.system.nic_bytes_per_s
    assert shares.between(0.75, 0.95).all()
    assert (shares.diff().dropna() < 0).all()


def test_a_measured_network_keeps_what_was_measured() -> None:
    model = load_collectives("xxrjun_example-cluster00")
    assert any(one.nodes > 1 for one in model.measured)
    row = pd.DataFrame({"collective": ["alltoall"], "bytes": 1e9, "n_gpus": 2, "n_nodes": 2})
    bus = model.predict(row)["bus_bytes_per_s"].iloc[0]
    assert bus < 0.7 * model.system.nic_bytes_per_s, "a degraded cluster"


@pytest.mark.parametrize(
    ("nic", "share"), [("CX7 400Gb/s RoCE", 0.9), ("EFA 100Gb/s", 0.8), ("gVNIC 100Gb/s", 0.65)]
)
def test_share_of_a_line_rate_by_kind_of_network(nic, share) -> None:
    system = load_system("dgx_h100").model_copy(update={"nic": nic})
    few, many = network.share(system, np.array([2.0, 1024.0]))
    assert few == pytest.approx(share)
    assert many == pytest.approx(share * 0.98**6)


def test_a_curve_that_falls_is_pooled_as_by_isotonic_regression() -> None:
    rng = np.random.default_rng(0)
    for scale in (0.0, 0.1, 3.0):
        curve = np.linspace(-12, 0, len(LOG2_BYTES)) + rng.normal(0, scale, 164)
        found = never_falling(curve)
        np.testing.assert_allclose(found, scipy.optimize.isotonic_regression(curve).x, rtol=1e-12)
        assert (np.diff(found) >= 0).all()
