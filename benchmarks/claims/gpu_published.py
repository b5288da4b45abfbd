"""Steps of published architectures by Hugging Face's own code, at the sizes that GPUs run: weights
drawn from their configs, nothing downloaded.

As `gpu_steps.py`; `calibration/` ran them on a GPU, the claim `programs`
captures them without one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

Made = tuple[Any, ...]
Sizes = dict[str, Any]  # of a config
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class _Loss(nn.Module):
    """What a training step asks a model of Hugging Face for."""

    def __init__(self, net: nn.Module, mixed: bool) -> None:
        super().__init__()
        self.net, self.mixed = net, mixed

    def forward(self, given: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", BF16, enabled=self.mixed):
            loss: torch.Tensor = self.net(given, labels=labels).loss
        return loss


class _Answer(nn.Module):
    """The same in inference, without a cache."""

    def __init__(self, net: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.options = net.eval(), options

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.net(given, **self.options).logits
        return logits


def _net(kind: str, name: str, dtype: torch.dtype, sizes: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(name, **sizes)
    return getattr(transformers, f"AutoModelFor{kind}").from_config(config, dtype=dtype)


def _words(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(5000, (batch, tokens))


def _language(
    name: str, batch: int, tokens: int, dtype: torch.dtype = BF16, kind: str = "CausalLM",
    mixed: bool = False, **sizes: Any,
) -> Made:  # fmt: skip
    """Trains on its own words, by AdamW."""
    net = _net(kind, name, dtype, sizes).train()
    words = _words(batch, tokens)
    return _Loss(net, mixed), (words, words), _adamw(net)


def _prompt(name: str, batch: int, tokens: int, dtype: torch.dtype = BF16, **sizes: Any) -> Made:
    net = _net("CausalLM", name, dtype, sizes)
    return _Answer(net, {"use_cache": False, "logits_to_keep": 1}), (_words(batch, tokens),)


def _encoded(name: str, batch: int, tokens: int, dtype: torch.dtype, **sizes: Any) -> Made:
    net = _net("SequenceClassification", name, dtype, sizes).train()
    return _Loss(net, False), (_words(batch, tokens), torch.randint(2, (batch,))), _adamw(net)


def _images(name: str, batch: int, mixed: bool = False, **sizes: Any) -> Made:
    net = _net("ImageClassification", name, FP32, sizes).train()
    images = torch.rand(batch, 3, 224, 224)
    return _Loss(net, mixed), (images, torch.randint(2, (batch,))), _adamw(net)


def _seen(name: str, batch: int, dtype: torch.dtype, **sizes: Any) -> Made:
    net = _net("ImageClassification", name, dtype, sizes)
    return _Answer(net, {}), (torch.rand(batch, 3, 224, 224).to(dtype),)


def _adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-5)


_SMALL_LLAMA: Sizes = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4,
}  # fmt: skip
_QWEN: Sizes = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
_FEW_EXPERTS: Sizes = {
    "hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 4,
    "num_local_experts": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
}  # fmt: skip
_OPT: Sizes = {
    "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32,
    "word_embed_proj_dim": 2048,
}  # fmt: skip
_BLOOM: Sizes = {"hidden_size": 1024, "n_layer": 24, "n_head": 16}
_MAMBA: Sizes = {"num_hidden_layers": 4, "hidden_size": 1024, "num_heads": 32, "head_dim": 64}
_of = functools.partial

TORCH: dict[str, Callable[[], Made]] = {
    "hf_gpt2": _of(_language, "gpt2", 8, 1024),
    "hf_bert": _of(_encoded, "bert", 32, 128, FP32),
    "hf_llama": _of(_language, "llama", 2, 2048, **_SMALL_LLAMA),
    "hf_vit": _of(_images, "vit", 64, True),
    "hf_opt_prompt": _of(_prompt, "opt", 1, 2048, FP16, **_OPT),
    "hf_bart": _of(_language, "bart", 8, 512, BF16, "Seq2SeqLM", num_hidden_layers=12),
    "hf_convnext": _of(_images, "convnext", 32, True),
    "hf_qwen3": _of(_language, "qwen3", 4, 1024, **_QWEN),
    "hf_mixtral_prompt": _of(_prompt, "mixtral", 1, 2048, **_FEW_EXPERTS),
    "hf_resnet": _of(_seen, "resnet", 64, FP16),
    "hf_llama_prompt": _of(_prompt, "llama", 4, 512, **_SMALL_LLAMA),
    "hf_electra": _of(_encoded, "electra", 64, 128, FP32),
    "hf_swin": _of(_images, "swin", 32, True),
    "hf_bloom_prompt": _of(_prompt, "bloom", 8, 256, FP16, **_BLOOM),
    "hf_llama_words": _of(_prompt, "llama", 64, 1, **_SMALL_LLAMA),
    "hf_mamba2": _of(_prompt, "mamba2", 1, 1024, **_MAMBA),
    "hf_gemma2_prompt": _of(_prompt, "gemma2", 1, 1024, num_hidden_layers=8),
    "hf_bert_large": _of(
        _encoded, "bert", 16, 512, BF16, hidden_size=1024, intermediate_size=4096,
        num_hidden_layers=24, num_attention_heads=16,
    ),
    "hf_gpt2_single": _of(_language, "gpt2", 4, 512, FP32),
    "hf_convnext_seen": _of(_seen, "convnext", 128, FP16),
    # what the first twenty taught was in the model before these ran
    "hf_roberta": _of(_encoded, "roberta", 32, 256, BF16),
    "hf_distilbert": _of(_encoded, "distilbert", 64, 128, FP32),
    "hf_t5": _of(_language, "t5", 16, 256, BF16, "Seq2SeqLM", decoder_start_token_id=0),
    "hf_phi_prompt": _of(_prompt, "phi", 1, 1024, FP16),
    "hf_gpt_neo": _of(_language, "gpt_neo", 4, 1024, BF16, num_layers=12,
                      attention_types=[[["global", "local"], 6]]),
    "hf_focalnet": _of(_images, "focalnet", 32),
    "hf_mobilenet": _of(_seen, "mobilenet_v2", 128, FP16),
    "hf_regnet": _of(_images, "regnet", 64, True),
    "hf_segformer": _of(_seen, "segformer", 32, FP16),
    "hf_stablelm_prompt": _of(_prompt, "stablelm", 2, 512, num_hidden_layers=16),
    "hf_olmoe_prompt": _of(_prompt, "olmoe", 1, 1024, num_hidden_layers=8),
    "hf_albert": _of(_encoded, "albert", 8, 256, BF16),
    "hf_gemma3_words": _of(_prompt, "gemma3_text", 16, 1, num_hidden_layers=12),
    "hf_dinov2": _of(_seen, "dinov2", 64, FP16),
    "hf_smollm3": _of(_language, "smollm3", 2, 2048, num_hidden_layers=8),
    "hf_xglm_prompt": _of(_prompt, "xglm", 4, 256, FP16),
}  # fmt: skip
COMPILED = ("hf_llama_prompt", "hf_gpt2", "hf_bert_large", "hf_vit")
