"""The decoder of `decoder.py` run op by op by PyTorch, with the same parameters: the same tokens.

A cache is two tensors [heads, context, head_dim] a layer, written in place. What runs is what
`torch.export` writes of it, before any op is taken apart: programs [decode N, prefill N] as files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from hybridperf_calibration.serving import DecoderConfig, padded
from hybridperf_calibration.serving.decoder import drawn_model

Cache = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each layer
_EPSILON = 1e-6  # flax's of a layer norm


class TorchDecoder:
    """One thread; sizes are padded as those of compiled programs are."""

    def __init__(self, config: DecoderConfig) -> None:
        torch.set_num_threads(1)
        self.config = config
        self._decode, self._prefill = _Decode(config), _Prefill(config)
        self._scratch = [self.cache() for _ in range(config.batches[-1])]  # of padding

    def cache(self) -> Cache:
        shape = (self.config.heads, self.config.context, self.config.width // self.config.heads)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(self.config.layers)]

    def prefill(self, cache: Cache, tokens: Sequence[int], start: int) -> tuple[int, Cache]:
        filled = torch.zeros(padded(self.config.chunks, len(tokens)), dtype=torch.long)
        filled[: len(tokens)] = torch.tensor(tokens)
        with torch.inference_mode():
            after = self._prefill(cache, filled, start + torch.arange(len(filled)))
        return int(after[len(tokens) - 1]), cache

    def decode(
        self, caches: Sequence[Cache], tokens: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[int], list[Cache]]:
        count, size = len(tokens), padded(self.config.batches, len(tokens))
        lanes = torch.zeros(2, size, dtype=torch.long)
        lanes[:, :count] = torch.tensor([tokens, positions])
        given = [*caches, *self._scratch[: size - count]]
        with torch.inference_mode():
            after = self._decode(given, *lanes)
        return after[:count].tolist(), list(caches)

    def write_programs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        programs: dict[str, tuple[torch.nn.Module, tuple[Any, ...]]] = {}
        for size in self.config.batches:
            lanes = torch.zeros(2, size, dtype=torch.long)
            held = [self.cache() for _ in range(size)]
            programs[f"decode_{size}"] = self._decode, (held, *lanes)
        for size in self.config.chunks:
            tokens, where = torch.zeros(size, dtype=torch.long), torch.arange(size)
            programs[f"prefill_{size}"] = self._prefill, (self.cache(), tokens, where)
        for name, (step, given) in programs.items():
            torch.export.save(torch.export.export(step, given), folder / f"{name}.pt2")


class _Layers(torch.nn.Module):
    """All that both kinds of step have alike."""

    tokens_embedding: torch.Tensor
    positions: torch.Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        for path, values in jax.tree_util.tree_leaves_with_path(drawn_model(config)[1]):
            name = "_".join(one.key for one in path)
            self.register_buffer(name, torch.from_numpy(np.array(values)))

    def after(self, x: torch.Tensor, attend: Any) -> torch.Tensor:
        """The most likely next token of each row [n]; `attend(layer, q, k, v)` mixes heads."""
        config = self.config
        for layer in range(config.layers):
            qkv = self._dense(f"CausalAttention_{layer}_qkv", self._norm(2 * layer, x))
            q, k, v = qkv.reshape(-1, 3, config.heads, config.width // config.heads).unbind(1)
            mixed = attend(layer, q, k, v).reshape(x.shape)
            x = x + self._dense(f"CausalAttention_{layer}_out", mixed)
            hidden = self._dense(f"Mlp_{layer}_up", self._norm(2 * layer + 1, x))
            hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
            x = x + self._dense(f"Mlp_{layer}_down", hidden)
        return (self._norm(2 * config.layers, x) @ self.tokens_embedding.T).argmax(-1)

    def embedded(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rows [n, width]."""
        embedding = torch.nn.functional.embedding
        return embedding(tokens, self.tokens_embedding) + embedding(positions, self.positions)

    def _dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(getattr(self, f"{name}_bias"), x, getattr(self, f"{name}_kernel"))

    def _norm(self, number: int, x: torch.Tensor) -> torch.Tensor:
        scale, bias = (getattr(self, f"LayerNorm_{number}_{one}") for one in ("scale", "bias"))
        return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias, _EPSILON)


class _Decode(_Layers):
    """Tokens after those of B sequences [B], each at its position [B]."""

    def forward(
        self, caches: list[Cache], tokens: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            mixed = []
            for at, cache in enumerate(caches):
                one = slice(at, at + 1)
                _write(cache[layer], k[one], v[one], positions[one])
                mixed.append(_attention(q[one], *cache[layer], positions[one]))
            return torch.cat(mixed)

        return self.after(self.embedded(tokens, positions), attend)


class _Prefill(_Layers):
    """The token after each of a chunk [n] of one prompt, at positions [n]."""

    def forward(self, cache: Cache, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            _write(cache[layer], k, v, positions)
            return _attention(q, *cache[layer], positions)

        return self.after(self.embedded(tokens, positions), attend)


def _write(
    cache: tuple[torch.Tensor, torch.Tensor], k: torch.Tensor, v: torch.Tensor,
    positions: torch.Tensor,
) -> None:  # fmt: skip
    """Keys and values of new tokens [n, heads, d] at their positions, in place."""
    for kept, new in zip(cache, (k, v), strict=True):
        kept.index_copy_(1, positions, new.transpose(0, 1))


def _attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Of queries [n, heads, d] at positions [n] to keys and values [heads, context, d]."""
    scores = torch.bmm(q.transpose(0, 1), keys.transpose(1, 2)) * q.shape[-1] ** -0.5
    seen = torch.arange(keys.shape[1]) <= positions[:, None]
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    return torch.bmm(weights, values).transpose(0, 1)
