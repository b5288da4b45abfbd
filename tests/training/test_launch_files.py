"""Launch files: every setting of a layout stands in the script, each framework is told what
its own parser takes for that layout, and what it cannot run is one sentence.
"""

import functools
import itertools
import json
import random
import re
import shlex
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybridperf.cli.app import main
from hybridperf.io import InputError
from hybridperf.training.launch_files.facts import LaunchedStep
from hybridperf.training.launch_files.target import refusal, target_called, targets
from hybridperf.training.launch_files.write import launch_files, write_launch
from hybridperf.training.plans.run import plan
from hybridperf.training.plans.space import space
from hybridperf.workloads.transformer import Layout, huggingface, load_shape
from hybridperf.workloads.transformer.zoo import published_as, shape_names

SYSTEM = "aic_h100_sxm"
# each with GPUs and a batch that layouts of every kind are legal for
_MODELS = {
    "llama3-8b": (16, 64), "llama2-7b": (6, 24), "gpt3-175b": (32, 64), "gpt2": (8, 32),
    "mixtral-8x7b": (64, 128), "qwen3-30b-a3b": (32, 64), "deepseek-v3": (128, 256),
}  # fmt: skip


@functools.cache
def legal(model: str) -> list[Layout]:
    """Some of a model's legal layouts: many times what is drawn of them."""
    (gpus, batch), rng = _MODELS[model], random.Random(model)
    every = space(load_shape(model), gpus, min(8, gpus), batch)
    return [every.layout(rng.randrange(len(every))) for _ in range(600)]


@functools.cache
def runnable(framework: str, model: str) -> list[Layout]:
    """Those that a framework can run."""
    target = target_called(framework)
    return [one for one in legal(model) if not target.lacks(launched(model, one, framework).facts)]


def launched(model: str, layout: Layout, framework: str, precision: str = "bf16") -> LaunchedStep:
    target, shape = target_called(framework), load_shape(model)
    per_node = min(8, layout.ranks)
    habits = target.framework
    return LaunchedStep(shape, layout, precision, habits, model, per_node, "h100_sxm", SYSTEM)


def written(step: LaunchedStep, framework: str, folder) -> dict[str, str]:
    texts, _ = launch_files(step, target_called(framework), ["of a test"])
    for name, text in texts.items():
        (folder / name).write_text(text)
    return texts


def flags(folder) -> str:
    """What a script starts, in one line."""
    return " ".join(command(folder))


def command(folder) -> list[str]:
    """Words of the command that a script starts."""
    lines = (folder / "launch.sh").read_text().replace("\\\n", " ").splitlines()
    return next(shlex.split(line) for line in lines if line.startswith(("srun", "torchrun")))


@pytest.fixture(scope="module")
def found():
    return plan("llama3-8b", SYSTEM, 16, batch=64, framework="torchtitan")


# what stands in them ---------------------------------------------------------------------------


@pytest.mark.parametrize("framework", targets())
@settings(max_examples=60, deadline=None)
@given(words=st.data())
def test_a_script_starts_all_ranks_with_every_setting(framework, tmp_path_factory, words) -> None:
    """Random legal layouts: as the shell splits the command, its words are the table's settings."""
    target = target_called(framework)
    model = words.draw(st.sampled_from([one for one in _MODELS if runnable(framework, one)]))
    layout = words.draw(st.sampled_from(runnable(framework, model)))
    precision = words.draw(st.sampled_from(sorted(target.choose["precision"])))
    step = launched(model, layout, framework, precision)
    assume(not target.lacks(step.facts))  # in this precision
    folder = tmp_path_factory.mktemp("launch")
    texts = written(step, framework, folder)
    script = texts["launch.sh"]
    nodes, per_node = (
        int(re.search(rf"^#SBATCH --{name}=(\d+)$", script, re.M)[1])
        for name in ("nodes", "gpus-per-node")
    )
    assert nodes * per_node == layout.ranks
    asked, given = target.settings_of(step.facts), command(folder)
    config = json.loads(texts[target.config]) if target.config else {}
    for name, value in asked.items():
        if target.config and not name.startswith("--"):
            inner = functools.reduce(lambda at, key: at[key], name.split("."), config)
            assert inner == value
        elif name.startswith("--") and isinstance(value, bool):
            assert given.count(name) == value
        elif name.startswith("--"):
            assert given[given.index(name) + 1] == str(value)
        elif ":" not in name:
            word = str(value).lower() if isinstance(value, bool) else str(value)
            assert f"{name}={word}" in given


def test_a_row_of_a_plan_says_which_it_is(found, tmp_path) -> None:
    at = next(at for at in range(1, 200) if runs(found, at, "torchtitan"))
    files, remarks = write_launch(found, "torchtitan", at, tmp_path / "launch")
    assert [file.name for file in files] == ["launch.sh"]
    assert not remarks
    lines = files[0].read_text().splitlines()
    assert {"# gpu: h100_sxm", f"# system: {SYSTEM}"} <= {*lines}
    assert lines[-2].startswith(f"# row {at} of ")
    assert lines[-1].startswith("# written by hybridperf ")


def runs(found, row: int, framework: str) -> bool:
    layout = found.layout(found.choice(row - 1))
    return not target_called(framework).lacks(launched("llama3-8b", layout, framework).facts)


# of published decoders; no architecture here means these: PaLM's, Baichuan's and Kimi K3 with their
# publishers' code, heads of keys of StarCoder's first, and two with attention beside the MLP or
# norms whose sizes are recalled
_UNDESCRIBED = (
    "palm-540b",
    "baichuan2-13b",
    "c4ai-command-r",
    "phi-2",
    "starcoder",
    "persimmon-8b",
    "kimi-k3",
)
_DECODERS = [
    name
    for name in shape_names()
    if load_shape(name).family in ("gpt", "llama", "moe") and name not in _UNDESCRIBED
]


@pytest.mark.parametrize("name", _DECODERS)
def test_a_config_of_hugging_face_means_the_model_it_was_made_of(name, tmp_path) -> None:
    shape = load_shape(name)
    (tmp_path / "config.json").write_text(json.dumps(huggingface.config_of(shape)))
    assert load_shape(tmp_path / "config.json").same_model(shape)


def test_a_model_that_no_config_describes_is_named() -> None:
    with pytest.raises(InputError, match="got palm-540b, of whose"):
        huggingface.config_of(load_shape("palm-540b"))


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "vit", "patch_size": 0}, "patch_size"),
        ({"model_type": "vit", "image_size": [224, 224]}, "image_size"),
        (
            {"model_type": "minimax", "attn_type_list": [0, 1], "num_attention_heads": 0},
            "num_attention_heads",
        ),
    ],
)
def test_sizes_that_divide_are_whole_numbers_above_0(config, key) -> None:
    sizes = {"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12}
    more = {"intermediate_size": 3072, "vocab_size": 100}
    more |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    with pytest.raises(InputError, match=f"expected {key} of a .*, a whole number above 0, got"):
        huggingface.fields_of({**sizes, **more, **config})


def test_models_of_one_size_keep_their_names() -> None:
    for name in shape_names():
        assert published_as(load_shape(name)) == name
    assert not published_as(load_shape("llama3-8b").replace(layers=31, name="mine"))


# what each framework means -----------------------------------------------------------------------


def test_torchtitan_takes_all_micro_batches_of_a_pipeline_as_its_local_batch(tmp_path) -> None:
    layout = Layout(
        pp=2, vp=4, dp=8, zero=2, micro_batch=2, accumulation=4, schedule="interleaved",
        recompute="full",
    )  # fmt: skip
    written(launched("llama3-8b", layout, "torchtitan"), "torchtitan", tmp_path)
    words = command(tmp_path)
    said = dict(itertools.pairwise(words))
    assert said["--training.local_batch_size"] == "8"
    assert said["--parallelism.pipeline_parallel_microbatch_size"] == "2"
    assert said["--training.global_batch_size"] == "64"
    assert said["--parallelism.pipeline_parallel_layers_per_stage"] == "4"  # 32 / (2 x 4)
    assert said["--config"] == "llama3_8b"
    assert words[-1] == "activation_checkpoint:full"  # tyro's choices come last
    flat = layout.replace(pp=1, vp=1, dp=16, zero=3, schedule="1f1b", accumulation=2)
    written(launched("llama3-8b", flat, "torchtitan"), "torchtitan", tmp_path)
    assert "--training.local_batch_size 2 " in flags(tmp_path)


@pytest.mark.parametrize(
    ("schedule", "called"), [("zb_v", "ZBVZeroBubble"), ("dualpipe_v", "DualPipeV")]
)
def test_torchtitan_folds_pipelines_whose_stages_are_not_compiled(tmp_path, schedule, called):
    layout = Layout(pp=4, vp=2, dp=4, zero=2, accumulation=8, schedule=schedule)
    target = target_called("torchtitan")
    eager = LaunchedStep(
        load_shape("llama3-8b"), layout, "bf16", "torchtitan_eager", "llama3-8b", 8, "h100_sxm",
        SYSTEM,
    )  # fmt: skip
    assert not target.lacks(eager.facts)
    written(eager, "torchtitan", tmp_path)
    assert f"--parallelism.pipeline_parallel_schedule {called}" in flags(tmp_path)
    compiled = launched("llama3-8b", layout, "torchtitan").facts
    assert "not compiled" in target.lacks(compiled)


def test_torchtitan_shards_over_context_parallel_ranks_too(tmp_path) -> None:
    layout = Layout(dp=8, cp=2, zero=3, shard_ranks=4)
    written(launched("llama3-8b", layout, "torchtitan"), "torchtitan", tmp_path)
    text = flags(tmp_path)
    assert "--parallelism.data_parallel_shard_degree 2" in text  # 4 / cp 2
    assert "--parallelism.data_parallel_replicate_degree 4" in text


def test_megatron_counts_layers_of_a_chunk_and_instances_of_shards(tmp_path) -> None:
    layout = Layout(
        tp=2, pp=4, vp=3, dp=4, zero=1, shard_ranks=2, sequence_parallel=True, accumulation=8,
        schedule="interleaved", order=("tp", "pp", "dp", "cp", "ep"),
    )  # fmt: skip
    written(launched("gpt3-175b", layout, "megatron"), "megatron", tmp_path)
    text = flags(tmp_path)
    assert "--num-layers-per-virtual-pipeline-stage 8" in text  # 96 / (4 x 3)
    assert "--num-distributed-optimizer-instances 2" in text
    assert "--use-tp-pp-dp-mapping" in text
    assert "--num-layers 96 --hidden-size 12288" in text
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in (tmp_path / "launch.sh").read_text()


def test_deepspeed_accumulates_once_a_micro_batch(tmp_path) -> None:
    layout = Layout(pp=4, dp=2, zero=1, micro_batch=2, accumulation=8, recompute="full")
    texts = written(launched("llama3-8b", layout, "deepspeed"), "deepspeed", tmp_path)
    content = json.loads(texts["ds_config.json"])
    assert content["gradient_accumulation_steps"] == 8
    assert content["train_batch_size"] == 32
    assert content["zero_optimization"]["stage"] == 1
    assert content["pipeline"] == {"stages": 4, "activation_checkpoint_interval": 1}
    assert json.loads(texts["config.json"])["hidden_size"] == 4096


def test_maxtext_splits_degrees_between_a_node_and_the_network(tmp_path) -> None:
    layout = Layout(tp=2, dp=16, zero=3, micro_batch=1, accumulation=4)
    written(launched("llama3-8b", layout, "maxtext"), "maxtext", tmp_path)
    text = flags(tmp_path)
    assert "ici_tensor_parallelism=2 dcn_tensor_parallelism=1" in text
    assert "ici_fsdp_parallelism=4 dcn_fsdp_parallelism=4" in text
    assert "per_device_batch_size=0.5 gradient_accumulation_steps=4" in text


# what they cannot run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "layout", "says", "could"),
    [
        (
            "deepspeed",
            Layout(pp=2, vp=2, schedule="interleaved", accumulation=2),
            "no schedule interleaved",
            "megatron, nemo, torchtitan can",
        ),
        (
            "deepspeed",
            Layout(pp=2, dp=4, zero=3),
            "its pipeline takes ZeRO-1 at most, got ZeRO-3",
            "megatron, nemo, torchtitan can",
        ),
        (
            "megatron",
            Layout(pp=2, accumulation=4, schedule="gpipe"),
            "no schedule gpipe",
            "maxtext, torchtitan can",
        ),
        (
            "torchtitan",
            Layout(pp=2, accumulation=4, schedule="zero_bubble"),
            "takes two stages a rank or more",
            "none of",
        ),
        (
            "torchtitan",
            Layout(dp=8, zero=1),
            "no ZeRO stage 1",
            "deepspeed, maxtext, megatron, nemo can",
        ),
        (
            "maxtext",
            Layout(dp=8, zero=3, recompute="selective"),
            "no recomputation selective",
            "megatron, nemo, torchtitan can",
        ),
        (
            "megatron",
            Layout(pp=2, accumulation=4, schedule="chimera"),
            "no schedule chimera",
            "none of deepspeed, maxtext, megatron, nemo, torchtitan can",
        ),
        (
            "nemo",
            Layout(tp=2, dp=2, order=("dp", "tp", "cp", "ep", "pp")),
            "no order of ranks dp tp",
            "none of",
        ),
    ],
)
def test_what_a_framework_lacks_is_one_sentence_with_those_that_can(framework, layout, says, could):
    found = refusal(target_called(framework), launched("llama3-8b", layout, framework).facts)
    assert says in found
    assert could in found
    assert "\n" not in found


def test_a_refused_row_names_the_best_that_runs(found, tmp_path) -> None:
    at = next(at for at in range(1, 200) if not runs(found, at, "deepspeed"))
    with pytest.raises(InputError, match=r"row \d+ is the best that deepspeed can run"):
        write_launch(found, "deepspeed", at, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("row", [0, -1, 10**9, 1.5, True])
def test_rows_that_a_plan_has_not(found, row, tmp_path) -> None:
    with pytest.raises(InputError, match=r"expected a row of a plan, got .*best first, are 1 to"):
        write_launch(found, "torchtitan", row, tmp_path)


def test_unknown_frameworks_are_told_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        target_called("megatronlm")


# the commands ------------------------------------------------------------------------------------


def said(capsys, *words: str, status: int = 0) -> str:
    with pytest.raises(SystemExit) as done:
        main(list(words))
    out, err = capsys.readouterr()
    assert done.value.code == status, err
    return err if status == 2 else out


def test_on_the_command_line(capsys, tmp_path) -> None:
    asked = ("plan", "--shape", "llama2-7b", "--system", SYSTEM, "--gpus", "8", "--batch", "16")
    asked = (*asked, "--only", "zero=1", "--only", "cp=1", "--only", "pp=1", "--top", "1", "-q")
    folder = tmp_path / "launch"
    wanted = ("--write-launch", "megatron", "--row", "2", "--folder", str(folder))
    assert "row 2 for megatron: sbatch" in said(capsys, *asked, *wanted)
    assert "pretrain_gpt.py" in (folder / "launch.sh").read_text()
    assert "unknown framework" in said(capsys, *asked, "--write-launch", "mega", status=2)
    assert "expected a row of a plan" in said(
        capsys, *asked, *wanted[:2], "--row", "0", "--folder", str(folder), status=2
    )


# the frameworks' own parsers, where one is installed ---------------------------------------------


def test_torchtitans_parser_takes_it(tmp_path) -> None:
    pytest.importorskip("torchtitan.models.llama3.config_registry", reason="no torchtitan here")
    from torchtitan.config import ConfigManager

    layout = Layout(tp=2, pp=2, dp=4, zero=2, micro_batch=2, accumulation=4, sequence_parallel=True)
    written(launched("llama3-8b", layout, "torchtitan"), "torchtitan", tmp_path)
    words = command(tmp_path)
    config = ConfigManager().parse_args(words[words.index("torchtitan.train") + 1 :])
    assert config.parallelism.tensor_parallel_degree == 2
    assert config.training.local_batch_size == 8


def test_megatrons_parser_takes_it(tmp_path, monkeypatch) -> None:
    parser = pytest.importorskip("megatron.training.arguments", reason="no megatron-core here")
    layout = Layout(tp=2, pp=2, vp=2, dp=4, zero=1, accumulation=4, schedule="interleaved")
    written(launched("gpt3-175b", layout, "megatron"), "megatron", tmp_path)
    words = command(tmp_path)
    monkeypatch.setattr(sys, "argv", words[words.index("pretrain_gpt.py") :])
    monkeypatch.setenv("WORLD_SIZE", "16")
    args = parser.parse_args()
    parser.validate_args(args)
    assert args.virtual_pipeline_model_parallel_size == 2
    assert args.data_parallel_size == 4


def test_deepspeeds_parser_takes_it(tmp_path) -> None:
    config = pytest.importorskip("deepspeed.runtime.config", reason="no deepspeed here")
    layout = Layout(dp=1, micro_batch=2, accumulation=8)
    texts = written(launched("llama3-8b", layout, "deepspeed"), "deepspeed", tmp_path)
    found = config.DeepSpeedConfig(json.loads(texts["ds_config.json"]))
    assert (found.train_batch_size, found.gradient_accumulation_steps) == (16, 8)
