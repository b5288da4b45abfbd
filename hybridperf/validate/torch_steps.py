"""Twelve steps of PyTorch that no calibration has seen: each a function that returns what `predict
--torch` takes, (module or fn, args) or (module or fn, args, optimizer).

Perceptron, two CNNs, U-Net block, autoencoder, ViT, GPT, LSTM, DLRM, graph network, mixture of
experts and attention alone; in training, two in inference; a few milliseconds to a quarter of a
second each on one slow core.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[Any, ...]


def mlp() -> Made:
    """Three layers and a cross entropy."""
    layers = nn.Sequential(
        nn.Linear(310, 720), nn.ReLU(), nn.Linear(720, 450), nn.ReLU(), nn.Linear(450, 12)
    )
    return Classified(layers), (torch.rand(180, 310), labels(180, 12)), torch.optim.SGD


def cnn() -> Made:
    """A training step of convolutions and max pooling under Adam."""
    layers = nn.Sequential(
        nn.Conv2d(3, 22, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(22, 46, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(46, 90, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(90, 14),
    )  # fmt: skip
    return Classified(layers), (torch.rand(14, 3, 44, 44), labels(14, 14)), torch.optim.Adam


def resnet() -> Made:
    """Residual blocks, one of which halves the image."""
    layers = nn.Sequential(
        Residual(60, 60, 1), Residual(60, 116, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(116, 9),
    )  # fmt: skip
    module = Classified(layers)
    momentum = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    return module, (torch.rand(7, 60, 26, 26), labels(7, 9)), momentum


def vit() -> Made:
    """Patches of an image through Transformer layers, in inference."""
    module = Vit(width=156, depth=4, heads=6, patch=12, side=108)
    return inference(module), (torch.rand(4, 3, 108, 108),)


def gpt() -> Made:
    """A training step of a small language model under AdamW."""
    module = Gpt(width=168, depth=3, heads=4, vocabulary=3300, tokens=116)
    tokens = torch.randint(3300, (3, 116))
    return module, (tokens, tokens.reshape(-1)), torch.optim.AdamW


def lstm() -> Made:
    """Two recurrent layers over a sequence of words."""
    tokens = torch.randint(2900, (18, 34))
    return Lstm(2900, 148), (tokens, tokens[:, 0] % 11), torch.optim.Adam


def dlrm() -> Made:
    """Bags of seven tables, pairs of their sums, and two perceptrons."""
    indices = torch.randint(36_000, (7, 380, 6))
    clicks = torch.rand(380)
    return Dlrm(7, 36_000, 28), (torch.rand(380, 13), indices, clicks), torch.optim.SGD


def gnn() -> Made:
    """Messages along edges, added up at their ends."""
    module = Gnn(52, 74)
    edges = torch.randint(2600, (2, 17_500))
    return module, (torch.rand(2600, 52), edges, labels(2600, 6)), torch.optim.Adam


def unet() -> Made:
    """Down, up again by interpolation, and beside what was there before."""
    image = torch.rand(3, 18, 52, 52)
    return Unet(18, 40), (image, torch.rand(3, 18, 52, 52)), torch.optim.AdamW


def experts() -> Made:
    """Each token by the two experts of seven that it likes most, all of which see it."""
    return Experts(7, 132, 270), (torch.rand(340, 132),), torch.optim.SGD


def autoencoder() -> Made:
    """Strided convolutions and transposed ones."""
    layers = nn.Sequential(
        nn.Conv2d(3, 20, 4, 2, 1), nn.GELU(), nn.Conv2d(20, 44, 4, 2, 1), nn.GELU(),
        nn.ConvTranspose2d(44, 20, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(20, 3, 4, 2, 1),
        nn.Sigmoid(),
    )  # fmt: skip
    image = torch.rand(9, 3, 60, 60)
    return Against(layers), (image, image), torch.optim.Adam


def attention() -> Made:
    """Attention of long sequences between two projections, in inference."""
    return inference(Mixing(312, 6)), (torch.rand(2, 290, 312),)


def labels(count: int, classes: int) -> torch.Tensor:
    return torch.arange(count) % classes


def inference(module: nn.Module) -> Any:
    module.eval()

    @torch.no_grad()
    def inferred(*args: torch.Tensor) -> torch.Tensor:
        return module(*args)

    return inferred


class Classified(nn.Module):
    """Layers and a cross entropy."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.layers(x), target)


class Against(Classified):
    """Layers and their distance from a target."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.layers(x), target)


class Residual(nn.Module):
    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(into, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(into, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.short(x))


class Mixing(nn.Module):
    """Attention with its projections."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.into(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    """A Transformer layer: attention and MLP, each behind a norm."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.mixing = Mixing(width, heads, causal)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixing(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Vit(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, patch: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros((side // patch) ** 2, width))
        self.layers = nn.Sequential(*[Layer(width, heads, False) for _ in range(depth)])
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.last(self.layers(x).mean(1))


class Gpt(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*[Layer(width, heads, True) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.layers(y)))
        return functional.cross_entropy(logits.flatten(0, 1), target)


class Lstm(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, 11)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y, _ = self.layers(self.words(x))
        return functional.cross_entropy(self.head(y[:, -1]), target)


class Dlrm(nn.Module):
    pairs: torch.Tensor

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        made = [nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)]
        self.tables = nn.ModuleList(made)
        self.bottom = nn.Sequential(nn.Linear(13, 116), nn.ReLU(), nn.Linear(116, width), nn.ReLU())
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs)
        self.top = nn.Sequential(
            nn.Linear(width + pairs.shape[1], 190), nn.ReLU(), nn.Linear(190, 1)
        )

    def forward(self, x: torch.Tensor, at: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        first = self.bottom(x)
        bags = [table(one) for table, one in zip(self.tables, at, strict=True)]
        every = torch.stack([first, *bags], 1)
        met = torch.bmm(every, every.mT)[:, self.pairs[0], self.pairs[1]]
        score = self.top(torch.cat([first, met], 1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(score, clicked)


class Gnn(nn.Module):
    def __init__(self, into: int, width: int) -> None:
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(into, width), nn.Linear(width, width)])
        self.sent = nn.ModuleList([nn.Linear(into, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 6)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for own, sent in zip(self.own, self.sent, strict=True):
            messages = sent(x)[edges[0]]
            x = torch.relu(own(x).index_add(0, edges[1], messages))
        return functional.cross_entropy(self.head(x), target)


class Unet(nn.Module):
    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.before, self.inside = _smooth(width, wide), _smooth(wide, 2 * wide)
        self.after, self.out = _smooth(3 * wide, wide), nn.Conv2d(wide, width, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kept = self.before(x)
        y = self.inside(functional.avg_pool2d(kept, 2))
        y = functional.interpolate(y, scale_factor=2, mode="bilinear")
        return functional.mse_loss(self.out(self.after(torch.cat([y, kept], 1))), target)


def _smooth(into: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU())


class Experts(nn.Module):
    def __init__(self, experts: int, width: int, wide: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.into = nn.Parameter(torch.rand(experts, width, wide) / width)
        self.out = nn.Parameter(torch.rand(experts, wide, width) / wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        likes = self.router(x)
        best, which = likes.topk(2, -1)
        shares = torch.zeros_like(likes).scatter(1, which, functional.softmax(best, -1))
        inside = functional.gelu(torch.einsum("td,edw->etw", x, self.into))
        each = torch.einsum("etw,ewd->etd", inside, self.out)
        return (shares.t()[..., None] * each).sum(0).square().mean()
