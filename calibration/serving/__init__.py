"""A decoder that is served on this machine: a real loop, real requests over loopback.

`run` is the program: it makes a decoder (`decoder`, or `torch_decoder` op by op), serves it with
continuous batching (`server`), and starts clients in a process of their own (`clients`), whose
clock says when each token came. Nothing here imports JAX by itself, so that `run` can pin first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from hybridperf_calibration.training_steps import STRICT, Widths


@dataclass(frozen=True, config=STRICT)
class DecoderConfig:
    """Sizes of a decoder and of its programs; the defaults are small enough for one CPU core."""

    width: PositiveInt = 256
    layers: PositiveInt = 3
    heads: PositiveInt = 4
    vocab: PositiveInt = 2048
    context: PositiveInt = 320  # tokens that a sequence's cache holds, all looked at each time
    # Sequences of a decode step, rising; fewer are padded. Not 1: XLA makes a product of one row
    # a part of the loops beside it.
    batches: Widths = (2, 4, 8)
    chunks: Widths = (16, 32, 64)  # tokens of a prompt that are computed at once, rising; padded
    seed: int = Field(default=0, ge=0)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            got = f"got width {self.width} and {self.heads} heads"
            raise ValueError(f"width must be a multiple of heads, {got}.")
        for name in ("batches", "chunks"):
            if list(getattr(self, name)) != sorted(set(getattr(self, name))):
                raise ValueError(f"{name} must rise, got {getattr(self, name)}.")

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of what runs, by its size."""
        decodes = (f"decode {size}" for size in self.batches)
        return (*decodes, *(f"prefill {size}" for size in self.chunks))

    @property
    def longest(self) -> int:
        """Tokens of prompt and output together, at most: a padded chunk must fit behind them."""
        return self.context - self.chunks[-1]


class Decoder(Protocol):
    """What a server needs of a decoder."""

    config: DecoderConfig

    def write_programs(self, folder: Path) -> None:
        """What runs of each size, as files of JAX (decode_4.json) or of PyTorch (decode_4.pt2)."""

    def cache(self) -> Any:
        """The empty cache of a sequence."""

    def prefill(self, cache: Any, tokens: Sequence[int], start: int) -> tuple[int, Any]:
        """The token after a chunk of a prompt, whose first `start` tokens are in the cache."""

    def decode(
        self, caches: Sequence[Any], tokens: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[int], list[Any]]:
        """The token after each sequence's last one, which is at its position."""


def padded(sizes: Sequence[int], count: int) -> int:
    """The least of rising sizes that holds `count`."""
    return next(size for size in sizes if size >= count)
