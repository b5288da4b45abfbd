"""The measured training steps are what they claim to be: they train, and their shortcuts change
nothing.
"""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf_calibration.training_steps import dlrm, gpt, run
from hybridperf_calibration.training_steps.own import measure_own

SMALL_DLRM = dlrm.DlrmConfig(
    batch=16,
    dense_features=5,
    tables=3,
    rows_per_table=12,  # fewer rows than lookups, so rows repeat within a batch and within a bag
    embedding_dim=4,
    pooling=3,
    bottom_mlp=(8, 4),
    top_mlp=(8, 1),
)
SMALL_GPT = gpt.GptConfig(batch=2, seq=12, width=16, layers=2, heads=2, vocab=31)


def losses(step, calls: int) -> list[float]:
    """Losses of consecutive steps, donating as a measurement does."""
    compiled = jax.jit(step.fn, donate_argnums=step.donate_argnums)
    args = step.args
    values = []
    for call in range(1, calls + 1):
        outputs = compiled(*args)
        args = step.next_args(call, outputs)
        values.append(float(outputs[-1]))
    return values


def test_dlrm_loss_falls() -> None:
    values = losses(dlrm.build(SMALL_DLRM, seed=1), 20)
    assert values[-1] < 0.9 * values[0]
    assert sum(np.diff(values) < 0) >= 18


@pytest.mark.parametrize("pooling", [1, 3])
def test_sparse_sgd_is_dense_sgd(pooling: int) -> None:
    """Scattering the bags' gradients gives the tables that differentiating with respect to whole
    tables gives.
    """
    config = dlrm.DlrmConfig(**{**vars(SMALL_DLRM), "pooling": pooling})
    step = dlrm.build(config, seed=2)
    dense, tables, features, rows, labels = step.args

    def loss_of(dense, tables):
        bags = [sum(table[rows[t, :, p]] for p in range(pooling)) for t, table in enumerate(tables)]
        return dlrm.loss_of_bags(dense, bags, features, labels)

    loss, gradients = jax.value_and_grad(loss_of, argnums=(0, 1))(dense, tables)
    expected = jax.tree.map(
        lambda value, slope: value - dlrm.LEARNING_RATE * slope, (dense, tables), gradients
    )
    new_dense, new_tables, new_loss = jax.jit(step.fn)(*step.args)
    np.testing.assert_allclose(new_loss, loss, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7),
        (new_dense, new_tables),
        expected,
    )
    # not all zero
    assert any(np.abs(new - old).max() > 1e-5 for new, old in zip(new_tables, tables, strict=True))


def test_interaction_by_hand() -> None:
    x, bag_1, bag_2 = (jnp.asarray([vector], jnp.float32) for vector in ([1, 2], [3, 4], [5, 6]))
    # x, then bag_1.x = 11, bag_2.x = 17, bag_2.bag_1 = 39
    np.testing.assert_array_equal(dlrm.interact(x, [bag_1, bag_2]), [[1, 2, 11, 17, 39]])


def test_dlrm_tables_are_updated_in_place() -> None:
    """The program needs no second table: a hundred times the rows, the same temporary memory."""
    memory = []
    for rows_per_table in (1_000, 100_000):
        step = dlrm.build(dlrm.DlrmConfig(**{**vars(SMALL_DLRM), "rows_per_table": rows_per_table}))
        compiled = jax.jit(step.fn, donate_argnums=step.donate_argnums).lower(*step.args).compile()
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    assert memory[0] == memory[1]


def test_dlrm_bfloat16_keeps_its_type() -> None:
    step = dlrm.build(dlrm.DlrmConfig(**{**vars(SMALL_DLRM), "dtype": "bfloat16"}))
    dense, tables, _ = jax.eval_shape(step.fn, *step.args)
    assert {leaf.dtype.name for leaf in jax.tree.leaves((dense, tables))} == {"bfloat16"}


def test_gpt_loss_falls() -> None:
    values = losses(gpt.build(SMALL_GPT, seed=1), 30)
    assert values[0] == pytest.approx(
        np.log(SMALL_GPT.vocab), rel=0.02
    )  # untrained: all tokens equally likely
    assert values[-1] < values[0] - 0.1


def test_gpt_is_causal() -> None:
    model = gpt.Gpt(SMALL_GPT)
    rng = np.random.default_rng(0)
    # Larger weights than a fresh model has, so that attention to the future would show.
    params = jax.tree.map(lambda value: 10 * value, gpt.initial_parameters(model, rng))
    tokens = rng.integers(0, SMALL_GPT.vocab, (2, SMALL_GPT.seq))
    changed_from = 7
    changed = tokens.copy()
    changed[:, changed_from:] = (changed[:, changed_from:] + 1) % SMALL_GPT.vocab
    apply = jax.jit(lambda tokens: model.apply({"params": params}, tokens))
    before, after = apply(tokens), apply(changed)
    np.testing.assert_allclose(before[:, :changed_from], after[:, :changed_from], atol=1e-5)
    assert np.abs(before[:, changed_from:] - after[:, changed_from:]).max(axis=-1).min() > 1e-3
    # ... and the past is seen: the last position depends on the first token.
    changed = tokens.copy()
    changed[:, 0] = (changed[:, 0] + 1) % SMALL_GPT.vocab
    assert np.abs(before[:, -1] - apply(changed)[:, -1]).max() > 1e-4


def test_gpt_parameter_count_by_hand() -> None:
    c = SMALL_GPT
    block = (
        4 * c.width * (c.width + 1)
        + 2 * c.mlp_ratio * c.width**2
        + (c.mlp_ratio + 1) * c.width
        + 4 * c.width
    )
    expected = (c.vocab + c.seq) * c.width + c.layers * block + 2 * c.width
    params = gpt.initial_parameters(gpt.Gpt(c), np.random.default_rng(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected


def test_batches_rotate() -> None:
    step = dlrm.build(SMALL_DLRM, batches=3)
    outputs = jax.jit(step.fn)(*step.args)
    rows = [step.next_args(calls, outputs)[3] for calls in range(4)]
    np.testing.assert_array_equal(rows[0], rows[3])
    assert not np.array_equal(rows[0], rows[1])
    assert step.next_args(1, outputs)[1] is outputs[1]  # the new tables


def test_measure_step() -> None:
    steps = [dlrm.build(SMALL_DLRM)]
    measured = run.measure_steps(steps, rounds=1, repeats=15, min_seconds=0.0)[0]
    assert measured.repeats == 15
    assert 0 < measured.least_s <= measured.time_s <= measured.median_s < measured.first_call_s
    assert np.isfinite(measured.last_loss)


def test_a_step_of_ones_own_is_timed_and_its_arguments_stay() -> None:
    calls = []

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        calls.append(weights)
        return weights - 1e-3 * (x.T @ (x @ weights))

    weights, x = jnp.eye(64), jnp.ones((96, 64))
    found = measure_own(step, weights, x, donate_argnums=(0,), rounds=2)
    assert len(calls) == 1  # traced once, whatever the number of calls
    assert found.repeats >= 10
    assert 0 < found.least_s <= found.time_s < 0.1
    np.testing.assert_array_equal(weights, np.eye(64))


def test_program_measures_and_pins(tmp_path) -> None:
    spec, out = tmp_path / "spec.json", tmp_path / "steps.json"
    steps = [
        {"workload": "dlrm", "config": vars(SMALL_DLRM)},
        {"workload": "gpt", "config": vars(SMALL_GPT)},
    ]
    spec.write_text(json.dumps(steps))
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    program = [
        sys.executable,
        "-m",
        "hybridperf_calibration.training_steps.run",
        str(spec),
        "--out",
        str(out),
    ]
    done = subprocess.run(
        [*program, "--cores", str(core), "--rounds", "2", "--repeats", "3", "--seconds", "0"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "running steps: 6 of 6" in done.stderr
    result = json.loads(out.read_text())
    assert [step["workload"] for step in result["steps"]] == ["dlrm", "gpt"]
    assert all(step["repeats"] == 6 and step["time_s"] > 0 for step in result["steps"])
    assert result["steps"][0]["config"]["bottom_mlp"] == [8, 4]
    assert result["machine"]["jax"] == jax.__version__
    assert result["machine"]["cores"] == 1 or not hasattr(os, "sched_setaffinity")
    assert set(tmp_path.iterdir()) == {spec, out}  # no temporary file is left


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{", "not JSON"),
        ("[]", "must be a list of steps"),
        (
            '[{"workload": "bert"}]',
            "workload: Input should be 'dlrm', 'gpt', 'own' or 'own_torch', got 'bert'",
        ),
        ('[{"workload": "gpt", "cfg": {}}]', "unknown field 'cfg'; expected some of workload,"),
        ('[{"config": {}}]', "field 'workload' is missing"),
        (
            '[{"workload": "gpt"}, {"workload": "dlrm", "config": {"rows": 3}}]',
            "unknown field 'rows'",
        ),
        (
            '[{"workload": "dlrm", "config": {"batch": 0}}]',
            "batch: Input should be greater than 0, got 0",
        ),
        (
            '[{"workload": "dlrm", "config": {"batch": "a"}}]',
            "batch: Input should be a valid integer, got 'a'",
        ),
        (
            '[{"workload": "dlrm", "config": {"top_mlp": [8, -1]}}]',
            "top_mlp.1: Input should be greater than 0, got -1",
        ),
        (
            '[{"workload": "dlrm", "config": {"top_mlp": []}}]',
            "top_mlp: Tuple should have at least 1 item",
        ),
        (
            '[{"workload": "dlrm", "config": {"top_mlp": 8}}]',
            "top_mlp: Input should be a valid array, got 8",
        ),
        (
            '[{"workload": "dlrm", "config": {"batch": [8]}}]',
            "batch: Input should be a valid integer",
        ),
        (
            '[{"workload": "dlrm", "config": {"embedding_dim": 7}}]',
            "bottom_mlp must end in embedding_dim (7)",
        ),
        ('[{"workload": "dlrm", "config": {"top_mlp": [8]}}]', "top_mlp must end in 1"),
        (
            '[{"workload": "dlrm", "config": {"dtype": "int4"}}]',
            "dtype: Input should be 'float32', 'bfloat16' or 'float16', got 'int4'",
        ),
        ('[{"workload": "gpt", "config": {"heads": 3}}]', "width must be a multiple of heads"),
        ('[{"workload": "gpt", "config": [1]}]', "config: Input should be an object, got [1]"),
        ('[{"workload": "gpt", "seed": -1}]', "seed: Input should be greater than or equal to 0"),
    ],
)
def test_bad_specs_are_one_sentence(tmp_path, capsys, spec: str, says: str) -> None:
    (tmp_path / "spec.json").write_text(spec)
    status = run.main([str(tmp_path / "spec.json"), "--out", str(tmp_path / "out.json")])
    message = capsys.readouterr().err
    assert status == 2
    assert says in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_missing_files_are_one_sentence(tmp_path, capsys) -> None:
    assert run.main([str(tmp_path / "none.json"), "--out", str(tmp_path / "out.json")]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert (
        run.main([str(tmp_path / "none.json"), "--out", str(tmp_path / "no folder" / "out.json")])
        == 2
    )
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "spec.json").write_text('[{"workload": "gpt"}]')
    assert (
        run.main([str(tmp_path / "spec.json"), "--out", str(tmp_path / "o.json"), "--cores", "x"])
        == 2
    )
    assert "expected cores like" in capsys.readouterr().err
