"""No column of a table is passed over in silence: it is read, refused by a sentence, or, where it
is plainly foreign or kept by name, said with the answer, to whoever asks from Python, on the
command line or as JSON.
"""

import json
import random
import string

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.fields import fields_of, questions
from hybridperf.fields.columns import as_given, columns_not_read, keeping, said_by, strictly
from hybridperf.io import InputError

_NAMES = 500
# of frameworks, launchers, trackers and one's own head
_FOREIGN = (
    "num_kv_heads", "sliding_window", "kv_cache_dtype", "eager", "slow", "fsdp", "grad_acum",
    "sharding_strategy", "num_microbatches", "context_parallel_size", "moe_tp_size",
    "enforce_eager",
    "gpu_memory_utilization", "block_size", "bias", "activation", "nvlink", "pcie_gen", "numa_node",
    "torch_compile", "wandb_run", "learning_rate", "warmup_steps", "weight_decay", "kernel_version",
    "driver", "cuda", "image", "hostname", "slurm_job_id", "who", "when", "why", "predicted_s",
    "low_s", "high_s", "note", "id", "source", "comment", "foo", "farbe", "x1", "temperature_c",
)  # fmt: skip


def misspelt(name: str, rng: random.Random) -> str:
    """A name with up to three letters changed, missing, added or swapped."""
    letters = list(name)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(letters))
        kind = rng.choice(["changed", "missing", "added", "swapped"])
        if kind == "missing" and len(letters) > 2:
            del letters[at]
        elif kind == "added":
            letters.insert(at, rng.choice(string.ascii_lowercase))
        elif kind == "swapped":
            letters[at : at + 2] = letters[at : at + 2][::-1]
        else:
            letters[at] = rng.choice(string.ascii_lowercase)
    return "".join(letters)


@pytest.mark.parametrize("question", questions())
def test_no_name_is_said_nowhere(question: str) -> None:
    """500 misspelt or foreign names of each table; `pytest -s` prints what became of them."""
    rng, became = random.Random(56), {"read": 0, "refused": 0, "said": 0}
    every = [name for one in questions() for field in fields_of(one) for name in field.names]
    own = [name for field in fields_of(question) for name in field.names]
    for at in range(_NAMES):
        name = (
            _FOREIGN[at] if at < len(_FOREIGN) else misspelt(rng.choice((own, every)[at % 2]), rng)
        )
        with columns_not_read() as passed:
            try:
                read = said_by([name], question)
            except InputError as refused:
                became["refused"] += repr(name) in str(refused)
                continue
        assert bool(read) != (name in passed), name
        became["read" if read else "said"] += 1
    print(question, became)
    assert sum(became.values()) == _NAMES


@pytest.mark.parametrize(
    ("question", "name", "meant"),
    [
        ("serve", "num_kv_heads", "kv_heads of steps"), ("serve", "fsdp", "sharding of steps"),
        ("serve", "hidden_size", "hidden of steps"), ("steps", "enforce_eager", "of serve"),
        ("steps", "moe_tp_size", "of serve"), ("plans", "enforce_eager", "of serve"),
        ("steps", "max_running_requests", "of serve"),
        ("runs", "max_running_requests", "of serve"),
    ],
)  # fmt: skip
def test_a_word_of_another_kind_of_work_is_refused(question: str, name: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"'{name}', which says .*{meant}.* call it given_{name}"):
        said_by([name], question)
    assert not said_by([f"given_{name}"], question)


def test_a_size_of_another_op_is_said_and_not_refused() -> None:
    """Tables of several ops have columns that only some of them read."""
    rows = [{"op": "gemm", "dtype": "bf16", "m": 64, "n": 64, "k": 64, "heads": 8, "batch": 1}]
    found = hp.predict_ops(rows, "h100_sxm")
    assert found["predicted_s"].notna().all()
    assert found.attrs["remarks"] == ("not read: heads, batch",)


def test_a_column_that_comes_twice_is_refused() -> None:
    frame = pd.DataFrame([["gemm", "gemm", "bf16", 64]], columns=["op", "op", "dtype", "m"])
    with pytest.raises(InputError, match="each column once, got two of 'op'"):
        hp.predict_ops(frame, "h100_sxm")
    with pytest.raises(InputError, match="column 'op' holds a list"):
        hp.predict_ops([{"op": ["gemm"], "dtype": "bf16", "m": 64}], "h100_sxm")


def test_a_batch_of_a_plain_product_is_refused() -> None:
    """It would multiply the work."""
    product = {"op": "gemm", "dtype": "bf16", "m": 64, "n": 64, "k": 64}
    rows = [product | {"op": op, "batch": batch} for op in ("gemm", "linear", "bmm")
            for batch in (8, 1, None)]  # fmt: skip
    found = hp.predict_ops(rows[:7], "h100_sxm")
    assert found["predicted_s"].isna().tolist() == [True, False, False] * 2 + [False]
    assert "gemm: batch is not read, write bmm" in found["note"][0]


# what frameworks, papers and people call what enters a price, and no field is called
_OF_WORK = (
    "activation_ckpt", "acc_steps", "zero_level", "fused_adam", "grad_dtype", "dropless",
    "per_gpu_batch", "ring_attention", "w4a16", "awq", "spec_decode", "draft_model", "lda", "nvls",
    "dp_attention", "isl_mean", "out_features", "epilogue", "split_k", "overlap_wgrad",
    "ib_gbps", "power_cap", "clock_mhz", "redop", "nchannels", "burstiness", "virtual_stages",
)  # fmt: skip


@pytest.mark.parametrize("question", questions())
def test_what_no_field_is_called_is_refused_or_kept_by_name(question: str) -> None:
    """With the nearest field where one is near; results and identities pass."""
    field = next(iter(fields_of(question))).name
    for name in _OF_WORK:
        with strictly(), pytest.raises(InputError, match=repr(name)) as refused:
            said_by([field, name], question)
        assert f"--keep {name}" in str(refused.value) or "did you mean" in str(refused.value)
        with strictly(), keeping([name]), columns_not_read() as passed:
            said_by([field, name], question)
        assert [*passed] == [name]
    with strictly():
        said_by([field, "id", "Note", "time_s", "source", "wandb_run", "given_awq"], question)


def test_many_columns_that_are_not_read_are_one_sentence() -> None:
    with strictly(), pytest.raises(InputError, match=r"'farbe_0', .* and 42 more, not read here"):
        said_by(["model", *(f"farbe_{at}" for at in range(50))], "steps")


TABLES = {
    "steps": (("steps",), {"model": "gpt2-xl", "gpu": "h100_sxm", "n_gpus": 8, "dp": 8,
                           "global_batch": 8}),
    "serve": (("serve",), {"model": "llama3-8b", "gpu": "h100", "isl": 64, "osl": 8,
                           "concurrency": 2}),
    "ops": (("ops", "--model", "h100_sxm"), {"op": "gemm", "dtype": "bf16", "m": 64, "n": 64,
                                             "k": 64}),
    "collectives": (("collectives", "--model", "dgx_h100"),
                    {"collective": "all_reduce", "bytes": 4096, "n_gpus": 8}),
    "workers": (("workers", "--shape", "gpt2", "--system", "dgx_a100", "--batch", "16"),
                {"device": "a100_sxm4_80g", "slower": 1}),
    "jobs": (("jobs", "--system", "dgx_h100", "--gpus", "8"),
             {"name": "a", "arrival_s": 0, "batch": 64, "steps": 100, "gpus": 4,
              "model": "bert-large"}),
    "placed_jobs": (("place", "dgx_h100", "--jobs"),
                    {"name": "a", "arrival_s": 0, "gpus": 3, "steps": 10, "compute_s": 0.1,
                     "all_reduce_bytes": 1e8}),
}  # fmt: skip


@pytest.mark.parametrize("question", TABLES)
def test_commands_say_what_they_do_not_read(question: str, run, tmp_path) -> None:
    """On standard output and in the JSON, not on standard error alone."""
    (command, *options), row = TABLES[question]
    path = tmp_path / "rows.csv"
    pd.DataFrame([row | {"farbe": 1, "wandb_run": "a"}]).to_csv(path, index=False)
    words = [command, *options, path] if options[-1:] == ["--jobs"] else [command, path, *options]
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert "got 'farbe', not read here; drop it, or call it given_farbe" in err
    assert "(of a command: --keep farbe)" in err
    status, out, err = run(*words, "--keep", "farbe")
    assert status == 0, err
    assert "not read: farbe, wandb_run" in out
    found = json.loads(run(*words, "--keep", "FARBE", "--json")[1])
    assert found["not_read"] == ["farbe", "wandb_run"]


ASKED = {
    "steps": hp.predict_steps, "serve": hp.predict_serving, "runs": hp.predict_runs,
    "ops": lambda rows: hp.predict_ops(rows, "h100_sxm"),
    "collectives": lambda rows: hp.predict_collectives(rows, "dgx_h100"),
    "plans": hp.predict_plans,
}  # fmt: skip
_ROWS = {name: row for name, (_, row) in TABLES.items()} | {
    "plans": {"model": "gpt2-xl", "system": "dgx_h100", "n_gpus": 1, "global_batch": 8},
    "runs": {"model": "gpt2-xl", "system": "dgx_h100", "n_gpus": 1, "global_batch": 8,
             "tokens": 1e9},
}  # fmt: skip


@pytest.mark.parametrize("question", ASKED)
def test_frames_say_what_they_do_not_read_and_keep_what_is_the_users(question: str) -> None:
    """Columns that are called as predictions are stay as given_NAME; a table that was predicted
    before is predicted again.
    """
    with pytest.raises(InputError, match="got 'farbe', not read here"):
        ASKED[question](pd.DataFrame([_ROWS[question] | {"farbe": 1}]))
    own = {"given_farbe": 1, "note": "mine"}
    frame = pd.DataFrame([_ROWS[question] | own])
    found = ASKED[question](frame)
    assert found.attrs["remarks"][-1] == "not read: given_farbe, note"
    assert found["given_note"].tolist() == ["mine"]
    assert found["note"].tolist() != ["mine"]
    again = ASKED[question](found)
    assert again.columns.tolist() == found.columns.tolist()
    assert again["given_note"].tolist() == ["mine"]
    assert not as_given(frame, ("given_farbe", "low_s")).equals(found)


@pytest.mark.parametrize(
    ("question", "more", "said"),
    [
        ("ops", {"device": "a100_sxm4_80g"}, "the row is of another device"),
        ("serve", {"system": "h100_sxm", "gpu": "a100_sxm4_80g"}, "not read: gpu"),
        ("serve", {"prefill_tp_size": 2, "moe_ep_size": 4}, "prefill_tp_size, moe_ep_size"),
        ("serve", {"batch_size": 99}, "not read in such a row: batch_size"),
        ("collectives", {"topk": 4}, "topk is read of dispatch and combine alone"),
        ("runs", {"step_time_s": 1, "steps": 1e4, "pp": 2}, "not read with step_time_s: pp"),
    ],
)  # fmt: skip
def test_what_a_row_says_in_vain_is_said(question: str, more: dict, said: str) -> None:
    row = _ROWS[question] | more
    for name in ("model", "system", "tokens", "global_batch") if "step_time_s" in more else ():
        row.pop(name)
    found = ASKED[question](pd.DataFrame([row]))
    assert said in "; ".join([*found.attrs["remarks"], found["note"].iloc[0]])
