"""What `hp.shard` takes for granted and says of it: nodes, trust, columns, files, numbers that are
none.
"""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest
from support.made_sharding import made_tables

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.explore.sharding import result as reports
from hybridperf.explore.sharding import run as sharding_run
from hybridperf.explore.sharding.cost import KernelPricer
from hybridperf.explore.sharding.tables import read_embedding_tables
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.ops.embedding import Table

SYSTEM = "aws_p4de_a100"
A100 = ("--model", "a100_sxm4_80g", "--system", SYSTEM)
HEADER = "name,rows,dim,pooling\n"


@pytest.fixture(scope="module")
def model() -> PerfModel:
    sheet = PerfModel.datasheet(load_device("a100_sxm4_80g"))
    return dataclasses.replace(sheet, collectives=CollectiveModel.datasheet(load_system(SYSTEM)))


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text(f"{HEADER}a,1000,16,5\nb,2000,16,3\n")
    return path


# nodes


def test_ranks_stand_on_as_many_nodes_as_the_system_needs(model: PerfModel) -> None:
    tables = made_tables(20)
    taken = hp.shard(tables, 16, model=model, batch=4096, method="size")
    assert taken.nodes == 2
    assert (
        taken.step_s == hp.shard(tables, 16, model=model, batch=4096, method="size", nodes=2).step_s
    )
    assert f"16 ranks are assumed on 2 nodes of {SYSTEM}, 8 on each" in taken.notes
    assert hp.shard(tables, 12, model=model, batch=4800, method="size").nodes == 2
    alone = hp.shard(tables, 8, model=model, batch=4096, method="size")
    assert alone.nodes == 1
    assert not any("nodes" in note for note in alone.notes)
    with pytest.raises(
        InputError,
        match=r"nodes of up to 8, which aws_p4de_a100 has, got 11; take 8 or 16, or name --nodes$",
    ):
        hp.shard(tables, 11, model=model, batch=1100)


def test_more_ranks_than_a_node_has_are_reported(model: PerfModel) -> None:
    squeezed = hp.shard(made_tables(20), 16, model=model, batch=4096, method="size", nodes=1)
    assert squeezed.nodes == 1
    assert (
        sum(
            note.startswith(f"{SYSTEM} has 8 accelerators in a node: more ranks there")
            for note in squeezed.notes
        )
        == 1
    )


def test_a_cpu_runs_any_number_of_processes(model: PerfModel) -> None:
    here = dataclasses.replace(model, device=load_device("here"))
    assert hp.shard(made_tables(20), 16, model=here, batch=4096, method="size").nodes == 1


# trust


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (4, 1), (4, 2)])
def test_a_placement_is_a_step_that_predict_prices_the_same(
    model: PerfModel, ranks: int, nodes: int
) -> None:
    tables = [*made_tables(7), Table("half", 1e5, 32.0, 4.0, dtype="fp16")]
    found = hp.shard(tables, ranks, model=model, batch=4096, nodes=nodes)
    step = KernelPricer(found.cost, tables, model, 4096, "sgd").workload(found.placement)
    assert hp.predict(model, step).time_s == pytest.approx(found.step_s, rel=1e-5)
    assert step.peak_memory.bytes == found.per_rank["memory_bytes"].max()


def test_what_was_not_measured_is_reported_in_text_file_and_picture(two, run, tmp_path) -> None:
    status, message, _ = run(
        "shard", two, "--gpus", 2, "--batch", 64, *A100, "--folder", tmp_path / "out"
    )
    assert status == 0
    lacking = "no embedding_bag measurements: bandwidths of memory and L2 that other GPUs show"
    assert message.count(lacking) == 1
    assert f"note: {lacking}" in message
    written = json.loads((tmp_path / "out" / "shard.json").read_text())
    assert sum(lacking in note for note in written["notes"]) == 1
    # by far the most of it travels, and that was measured
    assert f"{written['step_s'] * 1e6:.3g} µs of a step (90 %:" in message
    assert written["low_s"] < written["step_s"] < written["high_s"]


def test_a_placement_whose_lookups_were_not_measured_has_the_interval_of_other_gpus() -> None:
    found = hp.shard(
        made_tables(6), 2, model="a100_sxm4_80g", system=SYSTEM, batch=65536, method="size"
    )
    assert found.low_s < found.step_s < found.high_s
    assert found.high_s > 1.3 * found.low_s  # nearly all of it is lookups
    assert not any(note.startswith("no interval: the error of") for note in found.notes)


def test_a_difference_of_nanoseconds_makes_no_rank_the_slowest(two, run) -> None:
    _, message, _ = run("shard", two, "--gpus", 2, "--batch", 64, *A100)
    assert "alone makes rank" not in message
    assert re.search(r"the slowest lookup forward 0\.0\d+ µs \(rank", message)


def test_ranks_without_a_table_are_counted(model: PerfModel) -> None:
    tables = [Table("big", 1e6, 256.0, 100.0), *(Table(f"t{at}", 1e3, 4.0, 1.0) for at in range(8))]
    chunky = hp.shard(tables, 8, model=model, batch=4096, method="random", seed=1)
    empty = int((chunky.per_rank["tables"] == 0).sum())
    assert empty > 0
    assert f"{empty} of 8 ranks hold no table." in chunky.explanation


def test_the_picture_shows_what_is_used_and_says_what_is_not_known(
    model: PerfModel, monkeypatch
) -> None:
    drawn = []
    monkeypatch.setattr(reports, "save_figure", lambda figure, path: drawn.append(figure))
    tables = made_tables(9)
    found = hp.shard(tables, 4, model=model, batch=4096, method="size")
    tight = hp.shard(
        tables,
        4,
        model=model,
        batch=4096,
        method="size",
        memory_bytes=1.2 * found.per_rank["memory_bytes"].max(),
    )
    for result in (found, tight):
        reports.shard_plot(result, "nowhere.png")
    for figure, result, dashed in zip(drawn, (found, tight), (False, True), strict=True):
        figure.draw_without_rendering()
        above, right, below, _ = figure.axes
        for axes in (above, right):
            assert (
                not axes.get_legend().get_window_extent().overlaps(axes.patch.get_window_extent())
            )
        assert below.get_ylim()[1] < 2 * result.per_rank["memory_bytes"].max() / 1e9
        assert below.get_title().startswith("limit ")
        assert len(below.lines) == dashed
        assert figure.get_supxlabel() == "\n".join(result.notes)


# tables


def test_columns_of_ones_own_are_named(model: PerfModel, two) -> None:
    frame = pd.read_csv(two).assign(owner="ads", given_reviewed=True)
    frame.to_csv(two, index=False)
    assert (
        hp.shard(two, 2, model=model, batch=64).notes[0]
        == f"columns of {two} that are not read: owner, given_reviewed"
    )
    frame.rename(columns={"given_reviewed": "reviewed"}).to_csv(two, index=False)
    with pytest.raises(InputError, match="got 'reviewed', not read here"):
        hp.shard(two, 2, model=model, batch=64)


def test_names_are_what_is_written(two) -> None:
    two.write_text(f"{HEADER}NA,10,16,3\nnan,10,16,3\nNone,10,16,2\n007,10,16,2\n")
    tables, unread = read_embedding_tables(two)
    assert [table.name for table in tables] == ["NA", "nan", "None", "007"]
    assert unread == []


# what cannot be


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"model": None}, "model must be a name or a folder, got None"),
        ({"model": 3}, "model must be a name or a folder, got 3"),
        ({"system": 3}, "system must be a name or a folder, got 3"),
        ({"optimizer": ["sgd"]}, r"unknown optimizer \['sgd'\]"),
        ({"batch": 1e38}, r"expected a batch of one sample or more, up to 1e\+15, got 1e\+38"),
        ({"batch": float("nan")}, "expected a batch of one sample or more"),
        ({"dtype": "int8"}, r"dtype must be a floating-point format \(fp64, .*, got 'int8'"),
        ({"dtype": "bool"}, "dtype must be a floating-point format"),
        ({"splits": {"t0": "row:²"}}, "table t0: expected a split such as row:4, got 'row:²'"),
    ],
)
def test_what_is_no_request_is_reported(model: PerfModel, how: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hp.shard(made_tables(4), 2, **{"model": model, "batch": 512, **how})


def test_the_largest_batch_is_priced_without_a_warning(model: PerfModel) -> None:
    found = hp.shard(made_tables(4), 2, model=model, batch=1e15)
    assert np.isfinite(found.step_s)


def test_no_advice_in_circles_where_no_placement_fits(model: PerfModel) -> None:
    tables = [Table(f"t{at}", 1000.0 + 300 * at, 64, 3) for at in range(9)]
    room = sum(table.bytes for table in tables) / 4 * 1.001
    for method in ("best", "exact"):
        with pytest.raises(
            InputError,
            match=(
                r"^there is, as branch and bound proves, no placement of 9 .*; split that one, or"
                r" give"
            ),
        ):
            hp.shard(tables, 4, model=model, batch=64, method=method, memory_bytes=room)
    with pytest.raises(
        InputError,
        match=r"^naive found no placement .*; ask for the method best, split that one, or give",
    ):
        hp.shard(tables, 4, model=model, batch=64, method="naive", memory_bytes=room)


def test_a_device_without_a_calibration_is_no_unknown_name(model: PerfModel) -> None:
    with pytest.raises(
        InputError,
        match=(
            r"^no calibration of titanxp is shipped; `hybridperf fit ROWS --device titanxp"
            r" --folder FOLDER`"
        ),
    ):
        hp.load_model("titan_xp")


# files


def test_a_table_in_the_folder_that_is_written_into_is_kept(two, refused) -> None:
    mine = two.rename(two.parent / "placement.csv")
    before = mine.read_bytes()
    message = refused("shard", mine, "--gpus", 2, "--batch", 64, *A100, "--folder", two.parent)
    assert "expected another place in --folder/placement.csv than what is read" in message
    assert mine.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_found_before_the_work(
    two, refused, monkeypatch
) -> None:
    monkeypatch.setattr(
        sharding_run, "shard", lambda *_, **__: pytest.fail("the work was done first")
    )
    assert "cannot write into" in refused(
        "shard", two, "--gpus", 2, "--batch", 64, *A100, "--folder", two
    )


def test_other_commands_keep_what_they_read(tmp_path, refused) -> None:
    for name in ("held_out.csv", "collectives_held_out.csv", "host.json", "model.json"):
        (tmp_path / name).write_text("{}")
    held_out, of_links = tmp_path / "held_out.csv", tmp_path / "collectives_held_out.csv"
    for asked in (
        ("fit", held_out, "--device", "a100_sxm4_80g", "--folder", tmp_path),
        ("fit", of_links, "--system", SYSTEM, "--folder", tmp_path),
        ("trace", "summary", tmp_path / "host.json", "--host", tmp_path),
        ("validate", "here", "--model", tmp_path, "--folder", tmp_path),
        ("calibrations", "--data", tmp_path, "--folder", tmp_path),
    ):
        assert "which would be lost" in refused(*asked), asked
    assert (tmp_path / "model.json").read_text() == "{}"
