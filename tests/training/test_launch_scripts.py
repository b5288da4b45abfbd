"""Launch files of a user's own: what of a script is followed, unread and said so, or refused."""

import pandas as pd
import pytest

from hybridperf.io import InputError
from hybridperf.training.launch_files.read import read_launch
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer import Layout

_MEGATRON = """#!/bin/bash
GPUS_PER_NODE=8
NNODES=4
TP=4
MODEL_ARGS=(
    --num-layers 96 --hidden-size 12288   # GPT-3
    --num-attention-heads 96 --seq-length 2048 --vocab-size 51200
)
PARALLEL="--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP:-2} --sequence-parallel"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} $PARALLEL --micro-batch-size 2 --global-batch-size 64 \\
    --bf16 --recompute-activations --use-distributed-optimizer
"""  # noqa: E501


def test_variables_and_arrays_of_a_script_are_followed(tmp_path) -> None:
    (tmp_path / "run.sh").write_text(_MEGATRON)
    found = read_launch(tmp_path / "run.sh")
    assert found.row["model"] == "gpt3-175b"
    assert found.step.layout == Layout(
        tp=4, pp=2, dp=4, sequence_parallel=True, zero=1, micro_batch=2, accumulation=8
    )
    assert found.unread == ("--recompute-activations",)  # said, not passed over


@pytest.mark.parametrize(
    ("words", "unread"),
    [
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
            [
                "--recompute-granularity full",
                "--recompute-method block",
                "--recompute-num-layers 4",
            ],
        ),
        ("--fp8-format hybrid --fp8-recipe tensorwise --normalization LayerNorm", []),
    ],
)
def test_words_that_make_no_choice_are_said(tmp_path, words, unread) -> None:
    (tmp_path / "run.sh").write_text(_MEGATRON.replace("--bf16", f"--bf16 {words}"))
    assert [*read_launch(tmp_path / "run.sh").unread] == ["--recompute-activations", *unread]


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("--fp8-format hybrid", "fp8"),  # Megatron's recipe of itself: delayed
        ("--fp8-format hybrid --fp8-recipe delayed", "fp8"),
        ("--fp8-format e4m3 --fp8-recipe delayed", "fp8"),
        ("--fp8-format e4m3 --fp8-recipe tensorwise", "fp8"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
    ],
)
def test_recipes_of_narrow_numbers(tmp_path, words, precision) -> None:
    (tmp_path / "run.sh").write_text(_MEGATRON.replace("--bf16", f"--bf16 {words}"))
    found = read_launch(tmp_path / "run.sh")
    assert found.row["precision"] == precision
    assert found.unread == ("--recompute-activations",)


def test_a_model_of_nobody_is_its_sizes(tmp_path) -> None:
    text = _MEGATRON.replace("--num-layers 96", "--num-layers 90")
    (tmp_path / "run.sh").write_text(text)
    row = read_launch(tmp_path / "run.sh").row
    assert "model" not in row
    assert (row["family"], row["layers"], row["hidden"]) == ("gpt", 90, 12288)
    assert resolve(pd.DataFrame([row | {"gpu": "h100_sxm"}])).rows[0].config is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("TP=4\n", ""), r"the variable \$\{TP\}, which the script does not set"),
        (("TP=4", "TP=3"), "expected tp x pp x cp to divide the 32 GPUs"),
        (("--global-batch-size 64", "--global-batch-size 65"), "expected batches that divide"),
        (("--bf16", "--fp64"), "--bf16"),
        (("--bf16", "--bf16 --fp8-format e4m3 --fp8-recipe blockwise"), "got .*blockwise; mend"),
        (("TP=4", "TP=0"), "or more in --tensor-model-parallel-size, got 0"),
        (("--micro-batch-size 2", "--micro-batch-size 0"), "or more in --micro-batch-size, got 0"),
        (("--micro-batch-size 2", "--micro-batch-size 1.5"), "or more in --micro-batch-size"),
        (
            ("--bf16", "--bf16 --num-layers-per-virtual-pipeline-stage 0"),
            "or more in --num-layers-per-virtual-pipeline-stage, got 0",
        ),
        (("--num-layers 96", "--num-layers -1"), "or more in --num-layers, got -1"),
        (("pretrain_gpt.py", "pretrain_mine.py"), "expected a script that starts one of"),
        (("--nnodes $NNODES", ""), "expected a whole number in --nnodes"),
        (("TP=4", "TP=" + 5000 * "4"), "tensor-model-parallel-size|expected settings of a step"),
        (
            (
                "--bf16",
                "--bf16 --use-distributed-optimizer --num-distributed-optimizer-instances 3",
            ),
            "optimizer instances that divides the",
        ),
    ],
)
def test_scripts_that_make_no_step(tmp_path, change, says) -> None:
    (tmp_path / "run.sh").write_text(_MEGATRON.replace(*change))
    if says == "--bf16":  # nothing said: fp32, as Megatron has it
        assert read_launch(tmp_path / "run.sh").row["precision"] == "fp32"
        return
    with pytest.raises(InputError, match=says) as error:
        read_launch(tmp_path / "run.sh")
    assert "\n" not in str(error.value)


def test_torchtitans_own_defaults_of_a_model(tmp_path) -> None:
    started = "torchrun --nnodes=1 --nproc_per_node=8 -m torchtitan.train"
    (tmp_path / "run.sh").write_text(f"{started} --module llama3 --config llama3_70b\n")
    found = read_launch(tmp_path / "run.sh").step
    assert (found.layout.tp, found.layout.dp, found.layout.micro_batch) == (8, 1, 8)
    assert (found.layout.recompute, found.framework) == ("full", "torchtitan_eager")
