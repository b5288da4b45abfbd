"""Published architectures, from Hugging Face's own code and default sizes, two layers of each, and
plain models of many kinds: captured whole, every op has a price, and arithmetic is what PyTorch
counts.
"""

import pytest
from support.plain_models import PLAIN
from support.torch_steps import flops_of, torch

import hybridperf as hp
from hybridperf.workloads.programs.torch.capture import capture
from hybridperf.workloads.programs.torch.program import priced_ops

transformers = pytest.importorskip("transformers", reason="transformers is not installed (`dev`)")

CAUSAL = (
    "gpt2", "gptj", "gpt_neox", "opt", "bloom", "llama", "qwen3", "gemma2", "phi3", "falcon",
    "mixtral", "deepseek_v3", "mamba2", "gpt_oss",
)  # fmt: skip
ENCODERS, IMAGES = ("bert", "electra"), ("vit", "swin", "convnext", "resnet")
TRANSLATION = ("bart",)
ALL = (*CAUSAL, *ENCODERS, *IMAGES, *TRANSLATION)
NOT_COUNTED_MODELS = ("recurrent_language_model",)


def program(name):
    """(a function of no arguments that returns a loss); called where tensors have no memory."""
    config = transformers.AutoConfig.for_model(name)
    if name not in ("swin", "convnext", "resnet"):
        config.num_hidden_layers = 2
    kind = (
        transformers.AutoModelForCausalLM if name in CAUSAL
        else transformers.AutoModelForSequenceClassification if name in ENCODERS
        else transformers.AutoModelForImageClassification if name in IMAGES
        else transformers.AutoModelForSeq2SeqLM
    )  # fmt: skip
    net = kind.from_config(config, dtype=torch.bfloat16).train()
    tokens, label = torch.zeros(2, 256, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    if name in IMAGES:
        size = getattr(config, "image_size", 224)
        given = {"pixel_values": torch.zeros(2, 3, size, size, dtype=torch.bfloat16)}
    else:
        given = {"input_ids": tokens}
    given["labels"] = label if name in (*ENCODERS, *IMAGES) else tokens
    return lambda: net(**given).loss


@pytest.mark.parametrize("name", ALL)
def test_a_published_model_is_captured_and_counted(name) -> None:
    with hp.without_memory():
        step = program(name)
        priced_ops(capture(step, (), name=name), frozenset())
        ours, theirs = flops_of(step)
    assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_model_is_captured_and_counted(name) -> None:
    """With its gradients every op has a price; forward as PyTorch counts."""
    with hp.without_memory():
        step, args = PLAIN[name]()
        captured = capture(step, args, name=name)
        priced_ops(captured, frozenset())
        ours, theirs = flops_of(step, *args)
    assert "backward" in {one.phase for one in captured.ops}
    if name in NOT_COUNTED_MODELS:  # PyTorch's counter knows no recurrent layer of a CPU
        assert ours > theirs
    else:
        assert ours == pytest.approx(theirs, rel=0.01)


def test_a_program_and_its_shape_take_as_long() -> None:
    """Llama-2-7B with two layers by Hugging Face's code, op by op, and by its sizes: products,
    attention; loops differ by what the code does besides.
    """
    shape = hp.load_shape("llama2-7b").replace(layers=2)
    layout = hp.Layout(micro_batch=1)
    config = hp.TransformerConfig.run_by(
        "eager_pytorch", shape, layout, attention="fused", attention_kernel="sdpa"
    )
    given = transformers.AutoConfig.for_model(
        "llama", hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=2,
        num_attention_heads=shape.heads, num_key_value_heads=shape.heads, vocab_size=shape.vocab,
    )  # fmt: skip
    with hp.without_memory():
        net = transformers.AutoModelForCausalLM.from_config(given, dtype=torch.bfloat16)
        tokens = torch.zeros(1, shape.seq, dtype=torch.long)
        program = hp.from_torch(lambda ids: net(input_ids=ids, labels=ids).loss, tokens)
    by_shape, by_program = (
        hp.predict("h100_sxm", step).breakdown().set_index("group")["seconds"]
        for step in (hp.transformer(config), program)
    )
    for group in ("gemm", "prefill_attention"):
        assert by_program[group] == pytest.approx(by_shape[group], rel=0.02), group
