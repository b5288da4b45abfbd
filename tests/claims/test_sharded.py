"""Sharded recommendation models: the step is the one-process step, runs resume, mistakes are
sentences, and what is predicted meets.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import sharded
from benchmarks.claims.rank_programs import RankTables, from_rank_programs
from benchmarks.claims.sharded_scores import errors, judge, phases
from benchmarks.claims.sharded_tasks import (
    DLRMS,
    TO_SHARD,
    distinct_placements,
    random_models,
    random_placement,
)
from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.evaluate import timeline
from hybridperf.engine.lower import lower
from hybridperf.engine.prediction import predict
from hybridperf.hardware import load_device, load_system, this_cpu
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import OpCall
from hybridperf.ops.embedding import Table, Zipf
from hybridperf.workloads.programs.jax.hlo import parse
from hybridperf.workloads.programs.jax.hlo_collectives import collective_calls
from hybridperf.workloads.programs.jax.program import from_program, load_content
from hybridperf_calibration.training_steps import sharded_dlrm, sharded_step
from hybridperf_calibration.training_steps.sharded_tasks import read_tasks

PROGRAM = "hybridperf_calibration.training_steps.sharded_dlrm"
TASK = {
    "name": "a", "batch": 16, "dense_features": 3, "bottom_mlp": [8, 4], "top_mlp": [8, 1],
    "tables": [
        {"name": "t0", "rows": 50, "dim": 4, "pooling": 3, "skew": 0.9, "shift": 2.0},
        {"name": "t1", "rows": 70, "dim": 4, "pooling": 2},
        {"name": "t2", "rows": 30, "dim": 4, "pooling": 5, "skew": 1.2},
    ],
    "placements": [[0, 1, 0], [1, 1, 1]],
}  # fmt: skip
WIDE = {
    **TASK,
    "name": "b",
    "interaction": "cat",
    "placements": [[1, 0]],
    "tables": [
        {"name": "t0", "rows": 40, "dim": 8, "pooling": 2, "skew": 0.5},
        {"name": "t1", "rows": 9, "dim": 5, "pooling": 1},
    ],
}
NO_PASSES_MORE = ["--passes", "1", "--rounds", "1", "--seconds", "0.01"]


def start(folder: Path, tasks: Path, *more: str) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        PROGRAM,
        "--tasks",
        str(tasks),
        "--out",
        str(folder),
        *NO_PASSES_MORE,
        *more,
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """A folder in which three placements of two models were measured."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "tasks.json").write_text(json.dumps([TASK, WIDE]))
    process = start(folder / "out", folder / "tasks.json")
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    return folder / "out"


def written(tmp_path: Path, *tasks: dict) -> Path:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(tasks))
    return path


def reference_losses(task, steps: int) -> list[float]:
    """The same training on one process, tables whole and differentiated as they stand."""
    count = len(task.tables)

    def loss_of(dense, tables, rows, features, labels):
        bags = [table[at].sum(axis=1) for table, at in zip(tables, rows, strict=True)]
        split = 2 * len(task.bottom_mlp)
        x = mlp(dense[:split], features, True)
        if task.interaction == "dot":
            vectors = [x, *bags]
            pairs = [
                (vectors[i] * vectors[j]).sum(1) for i in range(1, count + 1) for j in range(i)
            ]
            wide = jnp.concatenate([x, jnp.stack(pairs, 1)], 1)
        else:
            wide = jnp.concatenate([x, *bags], 1)
        p = jax.nn.sigmoid(mlp(dense[split:], wide, False)[:, 0])
        return -(labels * jnp.log(p) + (1 - labels) * jnp.log(1 - p)).mean()

    def mlp(layers, x, last):
        for at, (weight, bias) in enumerate(
            itertools.batched(layers, 2)
            if sys.version_info >= (3, 12)
            else zip(layers[::2], layers[1::2], strict=True)
        ):
            x = x @ weight + bias
            x = jnp.maximum(x, 0) if last or 2 * at + 2 < len(layers) else x
        return x

    dense = sharded_step.dense_parameters(task)
    tables = [sharded_step.table_values(task, number) for number in range(count)]
    drawn = [sharded_step.looked_up(task, number, sharded_dlrm.BATCHES) for number in range(count)]
    slopes, losses = jax.jit(jax.value_and_grad(loss_of, (0, 1))), []
    for step in range(steps):
        features, labels = sharded_step.dense_batch(task, step)
        loss, (dense_slope, table_slope) = slopes(
            dense, tables, [of_table[step] for of_table in drawn], features, labels
        )
        losses.append(float(loss))
        dense = [
            value - sharded_step.LEARNING_RATE * slope
            for value, slope in zip(dense, dense_slope, strict=True)
        ]
        tables = [
            value - sharded_step.LEARNING_RATE * slope
            for value, slope in zip(tables, table_slope, strict=True)
        ]
    return losses


def rows_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()[1:]]


def test_a_sharded_step_trains_like_a_step_on_one_process(measured):
    rows = {row["key"]: row for row in rows_of(measured)}
    assert set(rows) == {"a 0,1,0", "a 1,1,1", "b 1,0"}
    for task in read_tasks(measured.parent / "tasks.json", 2):
        np.testing.assert_allclose(
            rows[task.key]["losses"], reference_losses(task, 3), rtol=2e-5, err_msg=task.key
        )
        assert rows[task.key]["losses"][0] != rows[task.key]["losses"][1]


def test_the_table_has_each_ranks_seconds_and_its_phases(measured):
    table = pd.read_csv(measured / "steps.csv")
    assert len(table) == 3
    assert (table["step_s"] > 0).all()
    assert table["noise"].isna().all()
    np.testing.assert_allclose(
        table[["rank0_s", "rank1_s"]].max(axis=1), table["step_s"], rtol=1e-6
    )
    alone = table[table["placement"] == "1,1,1"].iloc[0]
    assert alone["lookup_s_rank0"] == 0 < alone["lookup_s_rank1"]  # rank 0 has no table
    assert (table[[f"{phase}_s_rank1" for phase in sharded_step.PHASES]] > 0).all(axis=None)


def test_a_run_that_has_everything_measures_nothing_again(measured):
    before = (measured / "steps.jsonl").read_bytes()
    process = start(measured, measured.parent / "tasks.json")
    assert process.wait(timeout=300) == 0
    assert (measured / "steps.jsonl").read_bytes() == before


def test_a_dead_process_ends_the_run_with_one_sentence(tmp_path):
    process = start(
        tmp_path / "out", written(tmp_path, *({**TASK, "name": f"m{i}"} for i in range(50)))
    )
    log, deadline = tmp_path / "out" / "logs" / "process-1.log", time.monotonic() + 300
    of_rank = {}
    while not (log.exists() and "1" in of_rank) and time.monotonic() < deadline:
        time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(OSError):  # that has ended
                words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
                if "--rank" in words:
                    of_rank[words[words.index("--rank") + 1]] = int(child)
    time.sleep(1.0)
    os.kill(of_rank["1"], signal.SIGKILL)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 2
    assert said.splitlines()[-1].startswith("hybridperf: process 1 of 2 was killed by signal 9"), (
        said
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch": 15}, "batch 15 does not divide over 2 processes"),
        ({"placements": [[0, 1]]}, "a placement names 2 ranks for 3 tables"),
        ({"placements": [[0, 1, 2]]}, "names rank 2 and there are 2 processes"),
        ({"placements": [[0, 1, 0], [0, 1, 0]]}, "twice"),
        ({"placements": []}, "placements must be a list that is not empty"),
        ({"bottom_mlp": [8, 5]}, "table t0 has dim 4 and bottom_mlp ends in 5"),
        ({"top_mlp": [8]}, "top_mlp must end in 1"),
        (
            {"tables": [{"name": "x", "rows": 5, "dim": 4, "pooling": 0}]},
            "tables.0.pooling: Input should be greater than 0, got 0",
        ),
        (
            {"tables": [{"name": "x", "rows": 5, "dim": 4, "pooling": 1, "skew": -1}]},
            "tables.0.skew: Input should be greater than or equal to 0, got -1",
        ),
        (
            {"tables": [{"name": "x", "rows": 1, "dim": 4, "pooling": 1, "rowz": 5}]},
            "unknown field 'tables.0.rowz'",
        ),
        ({"interaction": "sum"}, "interaction: Input should be 'dot' or 'cat', got 'sum'"),
        ({"speed": 1}, "unknown field 'speed'"),
    ],
)
def test_a_wrong_task_is_one_sentence(tmp_path, capfd, change, sentence):
    path = written(tmp_path, {**TASK, **change})
    assert sharded_dlrm.main(["--tasks", str(path), "--out", str(tmp_path / "out")]) == 2
    said = capfd.readouterr().err
    assert sentence in said, said
    assert said.count("\n") == 1, said
    assert not (tmp_path / "out").exists()


def test_other_mistakes_are_sentences_too(tmp_path, capfd):
    for arguments, sentence in (
        (["--tasks", str(tmp_path / "no.json")], "cannot read"),
        (
            ["--tasks", str(written(tmp_path, TASK)), "--processes", "1"],
            "expected --processes of at least 2",
        ),
        (
            ["--tasks", str(written(tmp_path, TASK)), "--rounds", "0"],
            "expected --rounds of at least 1",
        ),
        (
            [
                "--tasks",
                str(
                    written(
                        tmp_path,
                        {**TASK, "tables": [{**TASK["tables"][0], "rows": 10**12}]}
                        | {"placements": [[0]]},
                    )
                ),
            ],
            "GiB",
        ),
    ):
        assert sharded_dlrm.main([*arguments, "--out", str(tmp_path / "out")]) == 2
        said = capfd.readouterr().err
        assert sentence in said, said
    assert said.count("\n") == 1, said


def test_rows_are_looked_up_as_often_as_the_law_says(tmp_path):
    (task,) = read_tasks(written(tmp_path, {**TASK, "batch": 4096, "placements": [[0, 0, 0]]}), 2)
    drawn = np.concatenate([batch.ravel() for batch in sharded_step.looked_up(task, 0, 8)])
    share = np.sort(np.bincount(drawn, minlength=50))[::-1] / drawn.size
    law = (np.arange(1, 51) + 2.0) ** -0.9
    np.testing.assert_allclose(share, law / law.sum(), atol=4 * np.sqrt(0.05 / drawn.size))
    assert np.unique(drawn).size == 50  # scattered over the table, none twice


def test_programs_of_all_ranks_meet_in_their_collectives(measured):
    contents = [
        load_content(measured / "programs" / f"a_0,1,0-rank{rank}.json") for rank in range(2)
    ]
    step = from_rank_programs(contents)
    calls = [call for call in step.calls if isinstance(call, CollectiveCall)]
    assert [call.collective for call in calls] == [
        "alltoall",
        "all_reduce",
    ]  # both all-to-alls are one row
    assert calls[0].bytes == 16 * 8 * 4
    assert calls[0].ranks == 2
    parameters = (3 * 8 + 8) + (8 * 4 + 4) + (10 * 8 + 8) + (8 + 1)
    assert calls[1].bytes == 4 * parameters
    # seconds by hand: each op 1, each collective 10; what follows the last collective comes first
    nodes = [
        [
            isinstance(step.calls[row - 1], CollectiveCall)
            for row in step.graph.row[step.graph.rank == rank]
        ]
        for rank in range(2)
    ]
    lengths = [
        [len(list(group)) for is_one, group in itertools.groupby(of_rank) if not is_one]
        for of_rank in nodes
    ]
    by_hand = sum(max(of_both) for of_both in zip(*lengths, strict=True)) + 30
    assert seconds_by_hand(step) == pytest.approx(by_hand)
    assert seconds_by_hand(from_rank_programs(contents, loop=False)) >= by_hand


def seconds_by_hand(step) -> float:
    """Of a step whose ops take 1 and whose collectives take 10."""
    seconds = np.array([10.0 if isinstance(call, CollectiveCall) else 1.0 for call in step.calls])
    return float(timeline(lower(step.graph), seconds).end_s.max())


def test_ranks_that_would_wait_for_ever_are_refused(measured):
    ours = load_content(measured / "programs" / "a_0,1,0-rank0.json")
    other = load_content(measured / "programs" / "b_1,0-rank1.json")
    with pytest.raises(InputError, match="such ranks would wait for ever"):
        from_rank_programs([ours, other])
    with pytest.raises(InputError, match="between 2 ranks and there are 3"):
        from_rank_programs([ours, ours, ours])
    assert set(from_rank_programs([ours]).graph.rank) == {0, 1}  # one program that all run


def test_lookups_are_priced_with_their_access(measured):
    contents = [
        load_content(measured / "programs" / f"a_0,1,0-rank{rank}.json") for rank in range(2)
    ]
    tables = [
        Table("t0", 50, 4, 3, access=Zipf(0.9, 2.0)),
        Table("t1", 70, 4, 2),
        Table("t2", 30, 4, 5, access=Zipf(1.2)),
    ]
    step = from_rank_programs(
        contents, tables=[RankTables([tables[0], tables[2]], 16), RankTables([tables[1]], 16)]
    )
    bags = [
        call.op
        for call in step.calls
        if isinstance(call, OpCall) and type(call.op).__name__ == "EmbeddingBag"
    ]
    assert sorted(bag.pooling for bag in bags) == [
        2,
        3,
        5,
    ]  # XLA looks one table up after the other
    assert {
        op.duplicates
        for call in step.calls
        if isinstance(call, OpCall) and hasattr(op := call.op, "duplicates")
    } == {"each"}
    with pytest.raises(InputError, match="no Gather of 48 rows of table odd"):
        from_rank_programs(
            contents, tables=[RankTables([Table("odd", 51, 4, 3)], 16), RankTables([], 16)]
        )


GROUPS = """HloModule m, is_scheduled=true, num_partitions=4

ENTRY %e (p: f32[8,4], q: f32[6]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %q = f32[6]{0} parameter(1)
  %r = (f32[8,4]{1,0}, f32[6]{0}) all-reduce(%p, %q), replica_groups=GROUPS, to_apply=%add
  %g = f32[32,4]{1,0} all-gather(%p), replica_groups=GROUPS, dimensions={0}
  %s = f32[2,4]{1,0} reduce-scatter(%p), replica_groups=GROUPS, dimensions={0}, to_apply=%add
  %c = f32[8,4]{1,0} collective-permute(%p), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT %o = f32[8,4]{1,0} all-to-all(%p), replica_groups=GROUPS, dimensions={0}
}
"""


@pytest.mark.parametrize(
    ("groups", "size"),
    [("{{0,1,2,3}}", 4), ("[1,4]<=[4]", 4), ("{{0,1},{2,3}}", 2), ("[2,2]<=[4]", 2)],
)
def test_collectives_of_a_program_are_read_from_its_text(groups, size):
    text = GROUPS.replace("GROUPS", groups)
    module = parse(text)
    by_name = module.entry.by_name
    operands = [by_name[name].shape for name in by_name["r"].operands]
    assert {call.ranks for call in collective_calls(by_name["r"], operands, 4, "cpu")} == {size}
    assert [call.bytes for call in collective_calls(by_name["r"], operands, 4, "cpu")] == [
        128,
        24,
    ]  # gloo is called for each array
    assert [call.bytes for call in collective_calls(by_name["r"], operands, 4, "gpu")] == [
        152
    ]  # one group of NCCL calls
    sizes = {"temporary_bytes": 0.0, "result_bytes": 0.0}
    step = from_program({"name": "program", "backend": "gpu", "hlo": text, **sizes})
    found = [(c.collective, c.bytes, c.ranks) for c in step.calls if isinstance(c, CollectiveCall)]
    assert found == [
        ("all_reduce", 152, size), ("all_gather", 128 * size, size), ("reduce_scatter", 128, size),
        ("sendrecv", 128, 4), ("alltoall", 128, size),
    ]  # fmt: skip


def test_phases_are_told_by_the_scopes_of_instructions():
    text = "\n".join(
        [
            '  %a = f32[1]{0} fusion(%x), metadata={op_name="jit(f)/shard_map/lookup/reduce_sum"}',
            (
                "  ROOT %b.1 = f32[1]{0} dot(%x),"
                ' metadata={op_name="jit(f)/shard_map/transpose(jvp(mlp))/dot_general"}'
            ),
            '  %c = f32[1]{0} dot(%x), metadata={op_name="jit(f)/shard_map/jvp(mlp)/dot_general"}',
            "  %d = f32[1]{0} copy(%x)",
        ]
    )
    assert sharded_step.phase_of(text) == {"a": "lookup", "b.1": "backward", "c": "mlp"}


def test_random_models_stay_within_their_limits_and_are_the_same_again():
    for limits, heavy in ((DLRMS, None), (TO_SHARD, True)):
        models = random_models(20, limits, seed=5, heavy=heavy)
        assert models == random_models(20, limits, seed=5, heavy=heavy)
        for model in models:
            tables = model["tables"]
            assert limits.tables[0] <= len(tables) <= limits.tables[1]
            assert sum(4 * t["rows"] * t["dim"] for t in tables) <= limits.table_bytes
            assert model["batch"] * sum(t["pooling"] for t in tables) <= limits.lookups
            assert model["batch"] % 2 == 0
            assert not heavy or min(t["pooling"] for t in tables) >= limits.least_pooling
        assert len({len(model["tables"]) for model in models}) > 5
        assert {model["batch"] for model in models} <= {256, 512, 1024, 2048, 128, 64}


def test_random_models_are_tasks_that_can_be_run(tmp_path):
    models = [
        {**model, "placements": [random_placement(model, 2, 1)]}
        for model in random_models(6, DLRMS, seed=5)
    ]
    assert len(read_tasks(written(tmp_path, *models), 2)) == 6


def test_placements_that_differ_by_names_of_ranks_are_one():
    found = distinct_placements(
        [("naive", [0, 1, 0]), ("random 1", [1, 0, 1]), ("size", [0, 0, 1])]
    )
    assert found == {(0, 1, 0): ["naive", "random 1"], (0, 0, 1): ["size"]}


def test_a_contest_is_judged_by_what_was_measured():
    names = [("naive", "random 1"), ("size",), ("random 2",)]
    measured_s = {"clear": [1.0, 1.09, 1.5], "close": [1.0, 1.1, 1.2], "wrong": [2.0, 1.0, 1.3]}
    ours = {"clear": [3.0, 2.0, 4.0], "close": [9.0, 2.0, 4.0], "wrong": [1.0, 2.0, 4.0]}
    placements = [
        pd.DataFrame({"task": name, "names": names, "measured_s": each, "ours": ours[name]})
        for name, each in measured_s.items()
    ]
    found = judge(pd.concat(placements, ignore_index=True), ["ours"])
    assert (found["models"], found["counted"]) == (3, 2)  # those of `close` take nearly the same
    assert found["ways"]["ours"] == {
        "models": 2,
        "success": 0.5,
        "mean_loss": pytest.approx(0.545),
        "worst_loss": pytest.approx(1.0),
    }
    assert found["rules"]["size"]["success"] == 1.0
    assert found["rules"]["random"]["success"] == pytest.approx(
        0.25
    )  # of `clear`: 1 of 2, of `wrong`: none
    assert found["any"]["worst_loss"] == pytest.approx(1.0)


def test_errors_are_of_each_step():
    found = errors([1.1, 0.8], [1.0, 1.0])
    assert found["mean"] == pytest.approx(0.15)
    assert found["signed"] == pytest.approx(-0.05)
    assert found["worst"] == pytest.approx(-0.2)
    assert found["geomean"] == pytest.approx(np.sqrt(0.1 * 0.2))


def test_a_program_name_is_a_file_name(measured):
    assert all(re.fullmatch(r"[\w.,-]+", row["program"]) for row in rows_of(measured))


def test_phases_add_up_and_a_collective_counts_without_its_waiting(measured):
    contents = [
        load_content(measured / "programs" / f"a_0,1,0-rank{rank}.json") for rank in range(2)
    ]
    row = pd.read_csv(measured / "steps.csv").set_index("placement").loc["0,1,0"].to_dict()
    model = PerfModel.datasheet(load_device("t4")).with_collectives(
        CollectiveModel.datasheet(load_system("aic_a100_sxm"))
    )
    predicted = predict(
        model, dataclasses.replace(from_rank_programs(contents), backend=None)
    )  # a device that is known everywhere
    found = phases(predicted, contents, row).set_index("phase")
    assert set(sharded_step.PHASES) <= set(found.index)
    nodes = predicted.op_s[predicted.workload.graph.row - 1]
    assert found["predicted_s"].sum() * 2 == pytest.approx(nodes.sum())
    assert found.loc["all_reduce", "measured_s"] == pytest.approx(
        min(row["all_reduce_s_rank0"], row["all_reduce_s_rank1"])
    )
    assert found.loc["mlp", "measured_s"] == pytest.approx(
        (row["mlp_s_rank0"] + row["mlp_s_rank1"]) / 2
    )


def test_a_model_that_cannot_say_anything_of_sharded_steps_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is of .*, a gpu, and JAX runs on a cpu here"):
        sharded.run(PerfModel.datasheet(load_device("t4")), tmp_path / "out")
    with pytest.raises(InputError, match="knows no collectives and sharded steps have three"):
        sharded.run(PerfModel.datasheet(this_cpu(1)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
