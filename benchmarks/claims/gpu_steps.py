"""Steps of PyTorch at the sizes that GPUs run: what `calibration/` ran on a GPU, and what
`benchmarks.claims programs` captures without one.

Each is a function that returns what `predict --torch` takes, (module or fn, args) or (module or fn,
args, optimizer).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hybridperf.validate import torch_steps as small

Made = tuple[Any, ...]
Optimizer = Callable[[nn.Module], torch.optim.Optimizer]
BF16 = torch.bfloat16


TORCH: dict[str, Callable[[], Made]] = {
    # GPT-2 (124M)
    "gpt2": lambda: _mixed(small.Gpt(768, 12, 12, 50_304, 1024), _words(50_304, 12, 1024)),
    # a Llama of 16 layers of 2,048, grouped queries
    "llama": lambda: _trained(_Llama().to(BF16), _words(32_000, 2, 4096), _fused),
    # BERT-large's layers
    "bert": lambda: _mixed(_Encoder(1024, 24, 16, 384), _words(30_528, 16, 384)),
    # ViT-B/16
    "vit": lambda: _inferred(small.Vit(768, 12, 12, 16, 224).half(), _images(64, 224).half()),
    "resnet50": lambda: _mixed(
        small.Classified(_channels_last(_Resnet((3, 4, 6, 3)))),
        (_channels_last(_images(64, 224)), small.labels(64, 1000)), _sgd, torch.float16,
    ),
    # bags of 20 lookups
    "dlrm": lambda: _trained(
        small.Dlrm(26, 200_000, 64),
        (torch.rand(8192, 13), torch.randint(200_000, (26, 8192, 20)), torch.rand(8192)), _sgd,
    ),
    # a step that the host holds up: many small kernels
    "short": lambda: _trained(*small.gpt()[:2]),
    "gpt2_medium_half": lambda: _trained(
        small.Gpt(1024, 24, 16, 50_304, 1024).to(BF16), _words(50_304, 4, 1024), _fused
    ),
    "resnet50_single": lambda: _trained(
        small.Classified(_Resnet((3, 4, 6, 3))), (_images(32, 224), small.labels(32, 1000)), _sgd
    ),
    # a block on latent images
    "unet": lambda: _mixed(
        small.Unet(128, 512), (torch.rand(16, 128, 64, 64), torch.rand(16, 128, 64, 64))
    ),
    "llama_prompt": lambda: _inferred(_Llama().to(BF16), torch.randint(32_000, (1, 2048))),
    # two recurrent layers
    "lstm": lambda: _trained(small.Lstm(20_000, 1024), _sentences(20_000, 64, 128), _adam),
    # messages along two million edges
    "gnn": lambda: _trained(
        small.Gnn(128, 256),
        (torch.rand(170_000, 128), torch.randint(170_000, (2, 2_000_000)),
         small.labels(170_000, 6)), _adam,
    ),
    # BERT-base's layers
    "bert_single": lambda: _trained(_Encoder(768, 12, 12, 128), _words(30_528, 8, 128)),
    # ViT-L/16
    "vit_training": lambda: _mixed(
        small.Classified(small.Vit(1024, 24, 16, 16, 224)),
        (_images(32, 224), small.labels(32, 100)),
    ),
    "resnet50_inference": lambda: _inferred(
        _channels_last(_Resnet((3, 4, 6, 3)).half()), _channels_last(_images(128, 224).half())
    ),
    # eight experts that all see all tokens
    "experts": lambda: _trained(
        small.Experts(8, 1024, 4096).to(BF16), (torch.rand(4096, 1024, dtype=BF16),)
    ),
    # DiT-B/2's layers on latent images
    "diffusion_transformer": lambda: _trained(
        _Diffusion(768, 12, 12).to(BF16),
        (torch.rand(32, 256, 768, dtype=BF16), torch.rand(32, 768, dtype=BF16)),
    ),
    # a word for each of 16 sequences, without what was kept
    "llama_word": lambda: _inferred(_Llama().to(BF16), torch.randint(32_000, (16, 1))),
    # bags of 40 lookups
    "dlrm_inference": lambda: _inferred(
        small.Dlrm(12, 1_000_000, 128), torch.rand(2048, 13),
        torch.randint(1_000_000, (12, 2048, 40)), torch.rand(2048),
    ),
    # strided and transposed convolutions
    "autoencoder": lambda: _trained(small.autoencoder()[0], (_images(64, 256),) * 2, _adam),
    "perceptron": lambda: _mixed(
        small.Classified(nn.Sequential(
            *[one for _ in range(5) for one in (nn.Linear(4096, 4096), nn.ReLU())]
        )), (torch.rand(8192, 4096), small.labels(8192, 4096)),
    ),
}  # fmt: skip
# in the order of what a GPU is asked first
COMPILED = ("llama_prompt", "bert_single", "gpt2", "dlrm", "unet", "experts", "resnet50")


def _words(vocabulary: int, batch: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of sequences, and each word as its own target."""
    given = torch.randint(vocabulary, (batch, tokens))
    return given, given.reshape(-1)


def _channels_last(made: Any) -> Any:
    """A module or images, stored as tensor cores read them."""
    return made.to(memory_format=torch.channels_last)


def _images(count: int, side: int) -> torch.Tensor:
    return torch.rand(count, 3, side, side)


def _sentences(vocabulary: int, batch: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences, and a class for each."""
    given = torch.randint(vocabulary, (batch, tokens))
    return given, given[:, 0] % 11


def _adamw(module: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-5, **options)


_fused: Optimizer = functools.partial(_adamw, fused=True)


def _adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=1e-5)


def _sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)


def _trained(
    step: nn.Module, args: tuple[Any, ...], optimizer: Optimizer = _adamw
) -> Made:  # fmt: skip
    return step, args, optimizer(step)


def _mixed(
    step: nn.Module, args: tuple[Any, ...], optimizer: Optimizer = _adamw,
    dtype: torch.dtype = BF16,
) -> Made:  # fmt: skip
    return _trained(Mixed(step, dtype), args, optimizer)


def _inferred(module: nn.Module, *args: torch.Tensor) -> Made:
    return small.inference(module), args


class Mixed(nn.Module):
    """A module under `torch.autocast`."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", self.dtype):
            return self.module(*args)


class _Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32_000, 2048)
        self.layers = nn.ModuleList([_LlamaLayer(2048, 32, 8, 5632) for _ in range(16)])
        self.norm, self.head = nn.RMSNorm(2048), nn.Linear(2048, 32_000, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        y = self.words(x)
        for layer in self.layers:
            y = layer(y)
        logits = self.head(self.norm(y))
        if target is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), target)


class _LlamaLayer(nn.Module):
    turn: torch.Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, wide: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.each = heads, kv_heads, width // heads
        into = self.each * (heads + 2 * kv_heads)
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        linear = functools.partial(nn.Linear, bias=False)
        self.into, self.out = linear(width, into), linear(width, width)
        self.gate, self.up, self.down = (
            linear(width, wide),
            linear(width, wide),
            linear(wide, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = [self.heads * self.each, *[self.kv_heads * self.each] * 2]
        q, k, v = self.into(self.norms[0](x)).split(parts, -1)
        q, k, v = (y.view(batch, tokens, -1, self.each).transpose(1, 2) for y in (q, k, v))
        places = torch.arange(tokens, device=x.device)[:, None]
        waves = torch.linspace(0, 1, self.each // 2, device=x.device)
        angle = places / 10_000**waves
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        y = functional.scaled_dot_product_attention(
            _turned(q, cos, sin), _turned(k, cos, sin), v, is_causal=tokens > 1, enable_gqa=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class _Encoder(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30_528, width), nn.Embedding(tokens, width)
        self.first, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        sizes = (width, heads, 4 * width, 0.1, "gelu")
        layers = [nn.TransformerEncoderLayer(*sizes, batch_first=True) for _ in range(depth)]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(width, 30_528)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        y = self.drop(self.first(y))
        for layer in self.layers:
            y = layer(y)
        return functional.cross_entropy(self.head(y).flatten(0, 1), target)


class _Resnet(nn.Module):
    def __init__(self, depths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        into = 64
        for at, depth in enumerate(depths):
            width = 64 * 2**at
            for block in range(depth):
                layers.append(_Bottleneck(into, width, 2 if at and not block else 1))
                into = 4 * width
        self.layers = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Bottleneck(nn.Module):
    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.convs = nn.ModuleList([
            nn.Conv2d(into, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.Conv2d(width, out, 1, bias=False),
        ])  # fmt: skip
        self.norms = nn.ModuleList([nn.BatchNorm2d(one) for one in (width, width, out)])
        turned = [nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.short = nn.Sequential(*turned) if into != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norms[0](self.convs[0](x)), inplace=True)
        y = functional.relu(self.norms[1](self.convs[1](y)), inplace=True)
        return functional.relu(self.norms[2](self.convs[2](y)) + self.short(x), inplace=True)


class _Diffusion(nn.Module):
    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_DiffusionLayer(width, heads) for _ in range(depth)])

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = x
        for layer in self.layers:
            y = layer(y, time)
        return (y - x).float().square().mean()


class _DiffusionLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.mixing = small.Mixing(width, heads)
        norms = [nn.LayerNorm(width, elementwise_affine=False) for _ in range(2)]
        self.norms, wide = nn.ModuleList(norms), 4 * width
        self.told = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU("tanh"), nn.Linear(wide, width))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        told = self.told(time)[:, None].chunk(6, -1)
        x = x + told[2] * self.mixing(self.norms[0](x) * (1 + told[1]) + told[0])
        return x + told[5] * self.mlp(self.norms[1](x) * (1 + told[4]) + told[3])
