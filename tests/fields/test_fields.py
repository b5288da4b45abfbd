"""The registry of fields: every name and word of each means the same seconds, a column that is
misspelt is read or refused by the field's name, others pass.
"""

import contextlib
import importlib.util
import random
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.field_words import said_otherwise

from hybridperf.fields import Field, fields_of, questions
from hybridperf.fields.columns import read_columns, row_of, said_by, strictly
from hybridperf.fields.registry import columns_help, folded, one_slip
from hybridperf.io import InputError, read_table
from hybridperf.ops.frameworks import serving_frameworks
from hybridperf.serving.rows import understood
from hybridperf.serving.table import predict_serving
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer.framework import framework_habits

QUESTIONS = ("steps", "serve")
_TRIES = 500

# Rows that fields are said in: the first in which a field's example can be said counts
_GPT = {
    "family": "gpt", "hidden": 2048, "heads": 16, "layers": 16, "seq": 2048, "vocab": 50304,
    "gpu": "h100_sxm", "tp": 2, "pp": 2, "n_gpus": 64, "micro_batch": 1, "grad_accum": 8,
    "framework": "megatron_core", "recompute": "none",
}  # fmt: skip
_STEPS = (
    _GPT,
    {key: value for key, value in _GPT.items() if key not in ("micro_batch", "grad_accum")}
    | {"global_batch": 256},
    _GPT | {"family": "moe", "experts": 8, "topk": 2, "pp": 1, "ep": 2, "seq_parallel": "yes"},
    _GPT | {"pp": 1},
    _GPT | {"pp": 1, "sharding": "zero3"},
    _GPT | {"pp": 1, "family": "t5", "decoder_layers": 8},
    {key: value for key, value in _GPT.items() if key != "seq"}
    | {"tp": 1, "pp": 1, "family": "vit", "image": 224, "patch": 16},
    _GPT | {"vp": 2, "schedule": "interleaved"},
    _GPT | {"precision": "fp8", "gpu": "b200_sxm"},
)
_SERVE = (
    {"model_path": "llama3-8b", "system": "h100_sxm", "backend": "vllm", "isl": 1024, "osl": 256,
     "concurrency": 16},
    {"model_path": "deepseek-r1", "system": "h200_sxm", "backend": "trtllm", "isl": 1024,
     "osl": 256, "concurrency": 16, "attention_dp_size": 8, "moe_ep_size": 8, "precision": "fp8",
     "drafted": 1, "batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.5},
    {"model_path": "llama3-8b", "system": "h100_sxm", "backend": "vllm", "isl": 1024, "osl": 256,
     "batch_size": 16},
    {"model_path": "deepseek-r1", "system": "h200_sxm", "backend": "trtllm", "isl": 1024,
     "osl": 256, "concurrency": 16, "precision": "fp8", "mode": "disagg", "prefill_tp_size": 8,
     "decode_tp_size": 8, "prefill_num_workers": 1, "decode_num_workers": 1},
    {"model_path": "deepseek-r1", "system": "h200_sxm", "backend": "trtllm", "isl": 1024,
     "osl": 256, "concurrency": 16, "precision": "fp8", "tp_size": 8, "attention_dp_size": 8,
     "moe_ep_size": 8},
    {"model_path": "deepseek-r1", "system": "h200_sxm", "backend": "trtllm", "isl": 1024,
     "osl": 256, "concurrency": 16, "precision": "fp8", "mode": "disagg",
     "prefill_num_workers": 1, "decode_num_workers": 1} |
    {f"{kind}_{name}": 8 for kind in ("prefill", "decode")
     for name in ("tp_size", "attention_dp_size", "moe_ep_size")},
    {"model_path": "llama3-8b", "system": "b200_sxm", "backend": "trtllm", "isl": 1024, "osl": 256,
     "concurrency": 16, "gemm_quant_mode": "fp8"},
    {"model_path": "llama3-8b", "system": "h100_sxm", "backend": "vllm", "isl": 4000, "osl": 100,
     "concurrency": 16},
)  # fmt: skip
_ROWS = {"steps": _STEPS, "serve": _SERVE}


def values(field: Field) -> list[str]:
    """What the field can say: its words, or its example."""
    if field.kind == "flag":
        return ["yes", "no"]
    return [word for word in field.words if word] or [field.example]


def asked(question: str, rows: list[dict]) -> list[object]:
    """What rows are understood as, all that their price depends on; None: refused."""
    frame = pd.DataFrame(rows, dtype=object)
    if question == "steps":
        found = (row.question for row in resolve(frame).rows)
        return [one.config and one.machine and (one.config, one.machine.key) for one in found]
    return [None if row.refused else row for row in understood(frame)]


def seconds(question: str, rows: list[dict]) -> list[float]:
    """Of rows in one table, whose columns are empty where a row has none; not a number: refused."""
    frame = pd.DataFrame(rows, dtype=object)
    if question == "steps":
        return predict_steps(frame, cache=_CACHE).frame["predicted_s"].tolist()
    return predict_serving(frame).frame["predicted_tpot_s"].tolist()


_CACHE = PriceCache()
_BEYOND = {
    "max_model_len": ["100"],  # a limit, which moves nothing where it is kept
    "framework": ["torchtitan"],  # the example is the one that is assumed, which moves nothing
}


# --- names and words ------------------------------------------------------------------------------


@pytest.mark.parametrize("question", questions())
def test_a_name_is_of_one_field_and_a_word_of_one_value(question: str) -> None:
    names = [folded(name) for field in fields_of(question) for name in field.names]
    both = ["times"] * (question == "ops")  # time_s and times, which only exact names tell apart
    assert len(names) == len({*names}) + len(both)
    assert [one for one in {*names} if names.count(one) > 1] == both
    assert not {*fields_of(question).unread} & {*names}
    assert not fields_of(question).foreign & {*names}
    for field in fields_of(question):
        spelt = [folded(word) for one, others in field.words.items() for word in (one, *others)]
        assert len(spelt) == len({*spelt}), field.name
        assert field.meaning
        assert field.example or field.words or field.kind == "flag", field.name
        legal = {*field.words, "yes", "no"} if field.words or field.kind == "flag" else None
        for meant in field.spelt.values():
            assert legal is None or {*meant.values()} <= {*legal, ""}


def each_value(question: str) -> Iterator[tuple[Field, str]]:
    return ((field, value) for field in fields_of(question) for value in values(field))


def without(row: dict, field: Field) -> dict:
    return {key: said for key, said in row.items() if key != field.name}


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_name_and_word_of_every_field_has_the_fields_seconds(question: str) -> None:
    """In one table of rows that say a field in its own name and by each other name and word."""
    cases = [(field, value) for field in fields_of(question) for value in values(field)]
    bases: dict[tuple[Field, str], tuple[dict, float]] = {}
    for row in _ROWS[question]:
        left = [case for case in cases if case not in bases]
        tried = [without(row, field) | {field.name: value} for field, value in left]
        for case, own_s in zip(left, seconds(question, tried), strict=True):
            if own_s > 0:
                bases[case] = without(row, case[0]), own_s
    assert {(one.name, value) for one, value in {*cases} - {*bases}} == (
        {("offload", "yes")} if question == "steps" else set()
    )
    otherwise = [
        (base | {field.name: value}, base | way, way)
        for (field, value), (base, _) in bases.items()
        for way in said_otherwise(field, value)
    ]
    assert len(otherwise) > {"steps": 450, "serve": 200}[question]
    own, rows, ways = zip(*otherwise, strict=True)
    found = seconds(question, [*own, *rows])
    pairs = zip(ways, found[len(own) :], found[: len(own)], strict=True)
    wrong = [(way, one, other) for way, one, other in pairs if one != other]
    assert not wrong


@pytest.mark.parametrize("question", QUESTIONS)
def test_fields_that_enter_a_price_move_what_is_understood(question: str) -> None:
    """And those of the row alone do not."""
    # a name that no publisher has; a day of measurement is of a run, which has a burst
    still = {"source"}
    cases = [
        (field, without(row, field), {field.name: value})
        for field in fields_of(question)
        for row in _ROWS[question]
        for value in values(field) + _BEYOND.get(field.name, [])
    ]
    unsaid = asked(question, [base for _, base, _ in cases])
    said = asked(question, [base | way for _, base, way in cases])
    pairs = zip(cases, unsaid, said, strict=True)
    moved = {field.name for (field, *_), before, after in pairs if before != after}
    assert moved == {one.name for one in fields_of(question) if one.priced} - still


def test_zero_is_one_field() -> None:
    """The example of the issue: 0.360 s by `zero`, passed over, where fsdp took 0.435 s."""
    base = _GPT | {"pp": 1}
    ways = [{"zero": 3}, {"zero_stage": 3.0}, {"sharding": "FSDP"}, {"fsdp": True},
            {"sharding_strategy": "FULL_SHARD"}, {"fsdp_sharding_strategy": 1}]  # fmt: skip
    *found, other = (seconds("steps", [base | way])[0] for way in (*ways, {"zero": 1}))
    assert len({*found}) == 1
    assert found[0] != other


def test_words_of_a_command_are_columns() -> None:
    frame = row_of(("tensor_parallel=2", "n_gpus=4"), "steps")
    assert read_columns(frame, "steps").frame.to_dict("records") == [{"tp": 2, "n_gpus": 4}]
    with pytest.raises(InputError, match=r"unknown column 'grad_acum' \(did you mean 'grad_accum"):
        row_of(("grad_acum=2",), "steps")


def test_units_of_an_alias_are_the_fields() -> None:
    frame = pd.DataFrame({"step_time_ms": [1500.0, None]})
    read = read_columns(frame, "steps").frame["step_time_s"]
    assert float(read[0]) == pytest.approx(1.5)
    assert pd.isna(read[1])


# --- columns that say the same field --------------------------------------------------------------


def test_columns_that_disagree_refuse_their_row_and_no_other() -> None:
    rows = [
        _GPT | {"zero_stage": 1, "sharding": "zero1"},
        _GPT | {"zero_stage": 0, "sharding": "zero1"},
        _GPT | {"zero_stage": None, "sharding": "zero1"},
    ]
    same, other, lone = resolve(pd.DataFrame(rows)).rows
    assert same.config == lone.config
    assert same.config is not None
    assert other.refused == (
        "row 2: expected columns zero_stage and sharding to say the same sharding, got 0.0 and"
        " zero1; keep one of them"
    )


def test_a_label_counts_only_where_nothing_else_says_the_field() -> None:
    both = pd.DataFrame([{"model": "gpt3-13b", "model_name": "ours"}])
    assert read_columns(both, "steps").frame["model"][0] == "gpt3-13b"
    assert read_columns(both[["model_name"]], "steps").frame["model"][0] == "ours"


def test_a_column_that_matters_and_is_not_read_says_what_is() -> None:
    with pytest.raises(InputError, match="column 'local-batch-size' is not read: give micro_batch"):
        said_by(["model", "local-batch-size"], "steps")


# --- columns that are misspelt --------------------------------------------------------------------


def slip(name: str, rng: random.Random) -> str:
    """A name with a letter changed, missing or added, or two neighbours swapped."""
    at, letter = rng.randrange(len(name)), rng.choice(string.ascii_lowercase)
    swapped = name[:at] + name[at : at + 2][::-1] + name[at + 2 :]
    changed = name[:at] + letter + name[at + 1 :]
    return rng.choice([changed, changed, name[:at] + name[at + 1 :], name[:at] + letter + name[at:],
                       swapped])  # fmt: skip


@pytest.mark.parametrize("question", questions())
def test_misspelt_columns_are_read_or_refused_by_name(question: str) -> None:
    """Any name of a field that enters a price, texts apart, in a row that says little else."""
    fields, rng, found = fields_of(question), random.Random(45), {"read": 0, "refused": 0}
    names = [
        (field, name)
        for field in fields
        if field.priced and not field.prose
        for name in field.names
    ]
    names = [(field, name) for field, name in names if len(folded(name)) > 1]
    while sum(found.values()) < _TRIES:
        field, name = rng.choice(names)
        wrong = slip(name, rng)
        if len(folded(wrong)) < 2 or folded(wrong) in fields.foreign:
            continue  # nobody's misspelling
        if folded(wrong) in fields.unread or fields.called(wrong):
            found["read"] += not fields.unread.get(folded(wrong))
            continue
        near = {one.name for one in fields for n in one.names if one_slip(folded(wrong), folded(n))}
        with pytest.raises(InputError) as refused:
            said_by([wrong], question)
        offered = {one for one in near if repr(one) in str(refused.value)}
        assert field.name in offered or (offered and len(near) > 1), (name, wrong, refused.value)
        found["refused"] += 1
    assert found["refused"] > 0.8 * _TRIES


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("grad_acum", "grad_accum"), ("recompue", "recompute"), ("n_tp", "tp"),
        ("heads_count", "heads"), ("microbtach_sise", "micro_batch"), ("tq", "tp"),
        ("zero_stge", "sharding"), ("num_sharding", "sharding"),
    ],
)  # fmt: skip
def test_what_resembles_a_field_is_refused_by_its_name(wrong: str, right: str) -> None:
    with pytest.raises(InputError, match=rf"got '{wrong}' \(did you mean .*'{right}'"):
        said_by([wrong], "steps")


def test_a_label_counts_where_its_fields_column_is_empty() -> None:
    row = {"model": "llama3-8b", "gpu": "h100", "backend": "vllm", "isl": 100, "osl": 100,
           "concurrency": 4}  # fmt: skip
    bare, empty = seconds("serve", [row]), seconds("serve", [row | {"system": None}])
    assert bare == empty
    assert np.isfinite(bare).all()
    with_both = seconds("serve", [row | {"system": "h200"}])
    assert with_both != bare


_FOREIGN = (
    "id", "name", "comment", "url", "date", "time_s", "seed", "run", "step", "loss", "user",
    "cluster", "cost", "node", "rank", "index", "tag", "url", "path", "seconds", "mem_gb",
    "license", "group", "x", "y", "price_usd", "region", "owner", "epoch", "git_sha", "wandb_id",
    "temperature", "power_w", "energy_j", "note_of_mine", "measured_s", "predicted_s", "cpu",
)  # fmt: skip


@pytest.mark.parametrize("question", questions())
def test_foreign_columns_pass(question: str) -> None:
    said_by(_FOREIGN, question)


@pytest.mark.parametrize(
    ("question", "name"),
    [
        *(("steps", f"{name}.csv{end}") for name, end in (
            ("bills_dev", ""), ("published_runs_dev", ""), ("train_steps_dev", ".gz"),
            ("vtrain_steps_dev", ".gz"))),
        *(("steps", f"../added/training_steps/{name}.csv.gz") for name in (
            "published_tables", "train_steps", "vtrain_steps")),
        ("steps", "../added/training_steps/rl_steps.csv"),
        ("serve", "inference_serving_dev.csv.gz"),
        ("serve", "../added/training_steps/inference_serving.csv.gz"),
        ("serve", "../added/serving/operating_points.csv.gz"),
    ],
)  # fmt: skip
def test_published_tables_are_read_as_they_are(data_dir: Path, question: str, name: str) -> None:
    frame = read_table(data_dir / "training_steps" / name)
    # those of reinforcement learning are asked in words of their own
    with contextlib.nullcontext() if "rl_steps" in name else strictly():
        assert not read_columns(frame, question).refused


# --- adding a field: docs/extending.md ------------------------------------------------------------

_ROOT = Path(__file__).parent.parent.parent
# where fields of each kind are read: the recipe's second file
_READERS = {"steps": {"record.py", "row_layout.py", "rows.py"}, "serve": {"rows.py"}}


@pytest.mark.parametrize(
    ("question", "name", "files"),
    [
        ("steps", "shard_ranks", 2), ("steps", "decoder_layers", 2), ("steps", "overlap_sends", 1),
        ("steps", "grouped_experts", 1), ("serve", "scheduler_recv_interval", 2),
        ("serve", "max_model_len", 2), ("serve", "cached_share", 2),
    ],
)  # fmt: skip
def test_a_column_is_read_from_as_many_files_as_its_recipe_says(
    question: str, name: str, files: int
) -> None:
    """Those that have it as text: the registry and its reader. What makes a step of it names it as
    a field of its own; launch files, shipped settings and the page are not read for columns.
    """
    folders = ("fields", "training/steps", "serving")
    having = {
        path.name
        for folder in folders
        for path in (_ROOT / "hybridperf" / folder).rglob("*.*")
        if path.suffix in (".py", ".toml") and not path.name.startswith(("serving_benchmarks",))
        if f'"{name}"' in path.read_text() or f"[{name}]" in path.read_text()
    }
    assert f"{question}.toml" in having
    assert having - {f"{question}.toml"} <= _READERS[question]
    assert len(having) == files


@pytest.mark.parametrize("question", questions())
def test_help_and_docs_list_every_field(question: str) -> None:
    spec = importlib.util.spec_from_file_location("hooks", _ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    shown = hooks.on_page_markdown((_ROOT / "docs/reference/columns.md").read_text())
    lines = columns_help(question).splitlines()
    for field in fields_of(question):
        assert f"| {field.name} | " in shown
        assert all(f"{name}" in shown for name in field.names)
        assert any(line.split()[0] == field.name for line in lines)
    assert max(map(len, lines)) <= 96


def test_help_lists_every_framework() -> None:
    assert set(framework_habits()) == set(fields_of("steps")["framework"].words)
    assert all(f"{name}" in columns_help("steps") for name in framework_habits())
    assert set(serving_frameworks()) == set(fields_of("serve")["backend"].words)
