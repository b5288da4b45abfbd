"""Tables of ops and collectives, and small ones that a user brings: every name and word of their
fields is read as the field, whatever the table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.field_words import said_otherwise

from hybridperf.collectives.fit import collectives_by_name, usable_rows
from hybridperf.collectives.rows import checked
from hybridperf.fields import Field, fields_of, questions
from hybridperf.fields.columns import read_columns, read_small_table, strictly
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError, read_table
from hybridperf.model import model_or_datasheet
from hybridperf.model.fit import rows as fit_rows
from hybridperf.ops import columns_of, op_by_name, op_names
from hybridperf.ops.base import op_fields
from hybridperf.ops.table import LABELS, parse_ops
from hybridperf.runs.job_times import read_training_jobs
from hybridperf.serving.open_loop import recorded
from hybridperf.serving.pools import read_requests, read_types

H100 = load_device("h100_sxm")
_OWN = {"steps", "serve", "ops", "collectives", "plans", "runs", "rl"}
SMALL = [one for one in questions() if one not in _OWN]
# of ops whose `quant` and `kernel` are others, or that contradict other examples
_SAID = {"quantise": {"quant": "nvfp4"}, "scale_matrix": {"quant": "nvfp4"}}
_COLLECTIVE = {"collective": "all_reduce", "bytes": 1 << 20, "n_gpus": 8}


def values(field: Field) -> list[str]:
    """What the field can say: its words, or its example."""
    if field.kind == "flag":
        return ["yes", "no"]
    return [word for word in field.words if word] or [field.example]


def op_rows() -> Iterator[tuple[dict[str, Any], Field, str]]:
    """(a row of an op, a field of it, a value that it can have) of all ops of different columns."""
    seen = set()
    for name in op_names():
        cls, fixed = op_by_name(name)
        own = [one for one in (*cls.dimensions(), *columns_of(cls).text) if one not in fixed]
        if not own or cls in seen:
            continue
        seen.add(cls)
        needed = [
            one for one in own if one not in {*columns_of(cls).optional, *columns_of(cls).text}
        ]
        row = {"op": name, "dtype": "bf16"} | {one: op_fields()[one].example for one in needed}
        of_all = (*LABELS, "dtype", "op", "reuse_bytes")
        for field in map(op_fields().__getitem__, (*own, *of_all)):
            said = [row["op"]] if field.name == "op" else values(field)
            yield from ((row, field, _SAID.get(name, {}).get(field.name, one)) for one in said)


def test_every_name_and_word_of_a_field_of_ops_has_its_seconds() -> None:
    model = model_or_datasheet("h100_sxm")
    cases = [
        (
            row | {field.name: value},
            {key: one for key, one in row.items() if key != field.name},
            way,
        )
        for row, field, value in op_rows()
        for way in said_otherwise(field, value)
    ]
    assert len(cases) > 400
    own, otherwise = (
        model.predict_ops(pd.DataFrame(rows, dtype=object))
        for rows in ([one for one, _, _ in cases], [base | way for _, base, way in cases])
    )
    readable = own["predicted_s"].notna()
    assert not own["note"][~readable].tolist()
    assert otherwise["predicted_s"].tolist() == own["predicted_s"].tolist()
    assert otherwise["note"].tolist() == own["note"].tolist()


def test_fields_of_ops_are_those_of_its_ops() -> None:
    """Each size and word that some op reads is a field with a meaning; each field, but for what a
    row says of itself, changes what some op is understood as.
    """
    own = {field.name for _, field, _ in op_rows()}
    assert own <= {*fields_of("ops").by_name}
    moved = set()
    for row, field, value in op_rows():
        parts = [
            parse_ops(pd.DataFrame([one]), H100).parts for one in (row, row | {field.name: value})
        ]
        without, with_it = (
            [(part.name, repr(part.op), repr(part.work), repr(part.labels)) for part in one]
            for one in parts
        )
        if without != with_it or field.name in row:
            moved.add(field.name)
    assert moved == {one.name for one in fields_of("ops") if one.priced}


def collective_cases() -> Iterator[tuple[dict[str, Any], Field, str]]:
    for field in fields_of("collectives"):
        row = {key: one for key, one in _COLLECTIVE.items() if key != field.name}
        if field.priced:
            yield from ((row, field, value) for value in values(field))


def test_every_name_and_word_of_a_field_of_collectives_has_its_seconds() -> None:
    model = collectives_by_name("aic_h100_sxm")
    cases = [
        (row | {field.name: value}, row | way)
        for row, field, value in collective_cases()
        for way in said_otherwise(field, value)
    ]
    assert len(cases) > 60
    for own, way in cases:
        seconds = [model.predict(pd.DataFrame([one]))["predicted_s"][0] for one in (own, way)]
        assert seconds[0] == seconds[1] > 0, way
    words = [*map(str, fields_of("collectives")["dtype"].words)]
    assert {"half", "bfloat16"} <= {*words}


def test_units_of_measured_times_are_the_fields() -> None:
    op = {"op": "gemm", "dtype": "bf16", "m": 64, "n": 64, "k": 64}
    (row,) = fit_rows.usable_rows(pd.DataFrame([op | {"time_us": 20.0}]), H100)[0].to_dict(
        "records"
    )
    assert row["time_s"] == pytest.approx(20e-6)
    row = _COLLECTIVE | {"time_ms": 0.2}
    usable, _ = usable_rows(pd.DataFrame([row]), load_system("aic_h100_sxm"))
    assert usable["time_s"].tolist() == pytest.approx([2e-4])
    with pytest.raises(InputError, match=r"op 1: expected columns time_us and time_ms to say"):
        fit_rows.usable_rows(pd.DataFrame([op | {"time_us": 20.0, "time_ms": 2.0}]), H100)


def test_columns_that_disagree_refuse_their_row_and_no_other() -> None:
    row = {"op": "conv", "dtype": "fp16", "batch": 1, "c_in": 8, "c_out": 8, "h_in": 8, "h_out": 8}
    rows = [row | {"kh": 3, "kernel_size": 3}, row | {"kh": 3, "kernel_size": 5}, row | {"kh": 3}]
    parsed = parse_ops(pd.DataFrame(rows), H100)
    assert [bool(why) for why in parsed.problem] == [False, True, False]
    assert "kh" in parsed.problem[1]
    assert "kernel_size" in parsed.problem[1]
    _, problem, _ = checked(
        pd.DataFrame([_COLLECTIVE | {"nranks": 8}, _COLLECTIVE | {"nranks": 4}])
    )
    assert [bool(why) for why in problem] == [False, True]


def test_a_misspelt_size_that_has_a_default_is_refused() -> None:
    """It was passed over: the default counted."""
    row = {"op": "generation_attention", "dtype": "bf16", "batch": 8, "heads": 32, "head_dim": 128,
           "kv_len": 1024}  # fmt: skip
    for wrong in ("kv_haeds", "windw", "kv_dtyp", "num_kv_head"):
        with pytest.raises(InputError, match=rf"got '{wrong}' \(did you mean"):
            parse_ops(pd.DataFrame([row | {wrong: 8}]), H100)


def test_only_sizes_of_its_ops_are_misspelt_in_a_table() -> None:
    """A look-up's `hot` is nothing that a table of products means by its `host`."""
    row = {"op": "gemm", "dtype": "bf16", "m": 8, "n": 8, "k": 8, "hotel": 1, "windo": 2}
    assert not parse_ops(pd.DataFrame([row]), H100).problem[0]
    attention = {"op": "context_attention", "dtype": "bf16", "batch": 1, "q_len": 8, "heads": 8,
                 "head_dim": 64}  # fmt: skip
    with pytest.raises(InputError, match=r"got 'windo' \(did you mean 'window'\?\)"):
        parse_ops(pd.DataFrame([row, attention]), H100)


def small_row(question: str) -> dict[str, Any]:
    return {one.name: one.example for one in fields_of(question)}


@pytest.mark.parametrize("question", SMALL)
def test_every_name_of_a_field_of_a_small_table_is_read(question: str) -> None:
    own = read_small_table(pd.DataFrame([small_row(question)]), question)
    assert own.notna().all(axis=None)
    for field in fields_of(question):
        rest = {key: one for key, one in small_row(question).items() if key != field.name}
        for way in said_otherwise(field, field.example):
            read = read_small_table(pd.DataFrame([rest | way]), question)
            pd.testing.assert_frame_equal(read[[*own]], own)
        without = pd.DataFrame([rest])
        if field.needed:
            with pytest.raises(InputError, match=f"none called {field.name}"):
                read_small_table(without, question)
        else:
            read_small_table(without, question)


def test_numbers_of_small_tables_have_limits() -> None:
    row = small_row("jobs")
    for name, wrong in (("batch", 1.5), ("batch", 0), ("steps", 0), ("arrival_s", -1)):
        with pytest.raises(InputError, match=f"in {name} of job 1, got '{wrong}'"):
            read_small_table(pd.DataFrame([row | {name: wrong}]), "jobs")


def test_readers_of_small_tables_take_other_names() -> None:
    (job,) = read_training_jobs(pd.DataFrame([
        {"job_id": 7, "model_name": "gpt2-small", "submit_s": 3, "batch_size": 64, "n_steps": 10,
         "num_gpus": 4},
    ]))  # fmt: skip
    assert (job.name, job.arrival_s, job.batch, job.steps, job.gpus) == ("7", 3.0, 64, 10.0, 4)
    requests = recorded(pd.DataFrame({"arrived_s": [1.0, 2.0], "isl": [5, 6], "osl": [2, 3]}))
    assert requests.prompt.tolist() == [5, 6]
    engine = {"model": "llama3-8b", "gpu": "h100_sxm", "backend": "vllm", "isl": 512, "osl": 128}
    (kind,) = read_types(pd.DataFrame([{"type": "a", "usd_hour": 2, "tp": 1, **engine}]))
    assert (kind.name, kind.usd_per_hour) == ("a", 2.0)
    arrival_s, size = read_requests(pd.DataFrame({"arrival_s": [2, 1], "osl": [3, 4]}))
    assert (arrival_s.tolist(), size.tolist()) == ([1, 2], [4, 3])


_TABLES = (
    *(("ops", f"{folder}compute/*.csv.gz") for folder in ("", "added/")),
    *(("collectives", f"{folder}collectives/*.csv.gz") for folder in ("", "added/")),
    ("requests", "serving/arrivals*.csv.gz"), ("requests", "added/serving/requests_rtx*.csv.gz"),
    ("requests", "serving/requests_*.csv*"), ("worker_times", "cluster/pai_worker_times.csv.gz"),
)  # fmt: skip


@pytest.mark.parametrize(("question", "pattern"), _TABLES)
def test_published_tables_are_read_as_they_are(data_dir: Path, question: str, pattern: str) -> None:
    paths = sorted(data_dir.glob(pattern))
    for path in paths:
        frame = read_table(path)
        with strictly():
            read = read_columns(frame, op_fields() if question == "ops" else question)
        assert not read.refused, path
        assert np.shape(read.frame) == np.shape(frame), path
    assert paths
