"""A decoder-only transformer that keeps keys and values (GPT-2 layout, pre-LN), compiled by JAX.

It is `training_steps.gpt.Gpt` with that one's parameters, a token or a chunk of a prompt at a time.
Each sequence has a cache of its own, two arrays [heads, context, head_dim] a layer, written in
place; attention looks at all of it and masks what is not there yet, so that shapes are fixed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.io import write_json
from hybridperf.workloads.programs.jax.program import PROGRAM_SCHEMA_VERSION, program
from hybridperf_calibration.serving import DecoderConfig, padded
from hybridperf_calibration.training_steps.gpt import Gpt, GptConfig, initial_parameters

Cache = tuple[tuple[jax.Array, jax.Array], ...]  # keys and values of each layer
_SCALE = 8.0  # of the initial weights: a small decoder's answers would else hang on the last token
_EPSILON = 1e-6  # flax's of a layer norm
_DONATED = 1


def drawn_model(config: DecoderConfig) -> tuple[Gpt, Any]:
    """(the whole model, its parameters)."""
    gpt = GptConfig(
        batch=1, seq=config.context, width=config.width, layers=config.layers,
        heads=config.heads, vocab=config.vocab,
    )  # fmt: skip
    model = Gpt(gpt)
    drawn = initial_parameters(model, np.random.default_rng(config.seed))
    return model, jax.tree.map(lambda leaf: leaf * _SCALE if leaf.ndim > 1 else leaf, drawn)


class JaxDecoder:
    """All its programs are compiled when it is made."""

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config
        self.model, self.params = drawn_model(config)
        self._scratch = [self.cache() for _ in range(config.batches[-1])]  # of padding
        self._decode = {size: self._compiled(_decode, size) for size in config.batches}
        self._prefill = {size: self._compiled(_prefill, size) for size in config.chunks}

    def write_programs(self, folder: Path) -> None:
        found = {f"decode_{size}": one for size, one in self._decode.items()}
        found |= {f"prefill_{size}": one for size, one in self._prefill.items()}
        for name, compiled in found.items():
            content = dict(program(compiled, name.replace("_", " ")))
            write_json(folder / f"{name}.json", "program", PROGRAM_SCHEMA_VERSION, content)

    def cache(self) -> Cache:
        shape = (self.config.heads, self.config.context, self.config.width // self.config.heads)
        return tuple((jnp.zeros(shape), jnp.zeros(shape)) for _ in range(self.config.layers))

    def prefill(self, cache: Cache, tokens: Sequence[int], start: int) -> tuple[int, Cache]:
        size = padded(self.config.chunks, len(tokens))
        filled = np.zeros(size, np.int32)
        filled[: len(tokens)] = tokens
        after, cache = self._prefill[size](self.params, cache, filled, np.int32(start))
        return int(np.asarray(after)[len(tokens) - 1]), cache

    def decode(
        self, caches: Sequence[Cache], tokens: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[int], list[Cache]]:
        count, size = len(tokens), padded(self.config.batches, len(tokens))
        lanes = np.zeros((2, size), np.int32)
        lanes[:, :count] = tokens, positions
        given = (*caches, *self._scratch[: size - count])
        after, kept = self._decode[size](self.params, given, *lanes)
        self._scratch[: size - count] = kept[count:]
        return np.asarray(after)[:count].tolist(), list(kept[:count])

    def _compiled(self, step: Callable[..., Any], size: int) -> Any:
        decodes = step is _decode
        held = tuple(self.cache() for _ in range(size)) if decodes else self.cache()
        where = np.zeros(size, np.int32) if decodes else np.int32(0)
        run = jax.jit(functools.partial(step, self.config), donate_argnums=_DONATED)
        return run.lower(self.params, held, np.zeros(size, np.int32), where).compile()


def _decode(
    config: DecoderConfig, params: Any, caches: tuple[Cache, ...], tokens: jax.Array,
    positions: jax.Array,
) -> tuple[jax.Array, tuple[Cache, ...]]:  # fmt: skip
    """Tokens after those of B sequences [B], each at its position [B]."""
    kept: list[list[tuple[jax.Array, jax.Array]]] = [[] for _ in caches]

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        mixed = []
        for at, cache in enumerate(caches):
            one = slice(at, at + 1)
            kept[at].append(_written(cache[layer], k[one], v[one], positions[at]))
            mixed.append(_attention(q[one], *kept[at][layer], positions[one]))
        return jnp.concatenate(mixed)

    x = _embedded(params, tokens, params["positions"][positions])
    after = _layers(config, params, x, attend)
    return after, tuple(map(tuple, kept))


def _prefill(
    config: DecoderConfig, params: Any, cache: Cache, tokens: jax.Array, start: jax.Array
) -> tuple[jax.Array, Cache]:
    """The token after each of a chunk [n] of one prompt, whose first one is at `start`."""
    kept: list[tuple[jax.Array, jax.Array]] = []
    count = len(tokens)

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        kept.append(_written(cache[layer], k, v, start))
        return _attention(q, *kept[layer], start + jnp.arange(count))

    where = jax.lax.dynamic_slice_in_dim(params["positions"], start, count)
    after = _layers(config, params, _embedded(params, tokens, where), attend)
    return after, tuple(kept)


def _embedded(params: Any, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    return params["tokens"]["embedding"][tokens] + positions


def _layers(
    config: DecoderConfig, params: Any, x: jax.Array, attend: Callable[..., jax.Array]
) -> jax.Array:
    """The most likely next token of each row [n]; `attend(layer, q, k, v)` mixes [n, heads, d]."""
    head_dim = config.width // config.heads
    for layer in range(config.layers):
        attention, mlp = params[f"CausalAttention_{layer}"], params[f"Mlp_{layer}"]
        qkv = _dense(attention["qkv"], _norm(params[f"LayerNorm_{2 * layer}"], x))
        q, k, v = jnp.unstack(qkv.reshape(-1, 3, config.heads, head_dim), axis=1)
        x = x + _dense(attention["out"], attend(layer, q, k, v).reshape(x.shape))
        hidden = jax.nn.gelu(_dense(mlp["up"], _norm(params[f"LayerNorm_{2 * layer + 1}"], x)))
        x = x + _dense(mlp["down"], hidden)
    x = _norm(params[f"LayerNorm_{2 * config.layers}"], x)
    return jnp.argmax(x @ params["tokens"]["embedding"].T, axis=-1)


def _written(
    cache: tuple[jax.Array, jax.Array], k: jax.Array, v: jax.Array, start: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Keys and values with those of new tokens [n, heads, d] from `start` on."""
    keys, values = (
        jax.lax.dynamic_update_slice(kept, new.transpose(1, 0, 2), (0, start, 0))
        for kept, new in zip(cache, (k, v), strict=True)
    )
    return keys, values


def _attention(q: jax.Array, keys: jax.Array, values: jax.Array, positions: jax.Array) -> jax.Array:
    """Of queries [n, heads, d] at positions [n] to keys and values [heads, context, d]."""
    scores = jnp.einsum("nhd,htd->hnt", q, keys) * q.shape[-1] ** -0.5
    seen = jnp.arange(keys.shape[1]) <= positions[:, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min), axis=-1)
    return jnp.einsum("hnt,htd->nhd", weights, values)


def _norm(params: Any, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    spread = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(spread + _EPSILON) * params["scale"] + params["bias"]


def _dense(params: Any, x: jax.Array) -> jax.Array:
    return x @ params["kernel"] + params["bias"]
