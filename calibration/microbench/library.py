"""The library whose ops are measured: how it places data, makes a function ready to call, and knows
that a result is there.

Both give the timer the same things, so that the same rules hold for both. Nothing is imported
before it is asked for: the process pins itself first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Jax:
    """Compiled by XLA; told by the text of its program."""

    name = "jax"
    by_shapes = True  # compiles for arguments that have no more

    def placed(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays, or numbers, where the library works on them."""
        import jax

        return jax.device_put(list(arrays))

    def ready(self, results: Any) -> Any:
        """The results, once they are there."""
        import jax

        return jax.block_until_ready(results)

    def on_cpu(self) -> bool:
        """Whether it runs on a CPU here."""
        import jax

        return jax.default_backend() == "cpu"

    def compiled(
        self, fn: Callable[..., Any], arguments: tuple[Any, ...], carried: tuple[int, ...]
    ) -> tuple[Callable[..., Any], Callable[[], Any]]:
        """(what to call, what tells which ops it runs) of a function of such arguments."""
        import jax

        call = jax.jit(fn, donate_argnums=carried).lower(*arguments).compile()
        return call, lambda: call.as_text() or ""


class Torch:
    """Op by op on the CPU; told by the ops below autograd that a call makes."""

    name = "torch"
    by_shapes = False

    def placed(self, arrays: Sequence[Any]) -> list[Any]:
        import torch

        made = (np.asarray(one) for one in arrays)
        # indices of tables are 64-bit numbers in PyTorch
        return [
            torch.as_tensor(one.astype(np.int64) if one.dtype == np.int32 else one) for one in made
        ]

    def ready(self, results: Any) -> Any:
        return results

    def on_cpu(self) -> bool:
        return True

    def compiled(
        self, fn: Callable[..., Any], arguments: tuple[Any, ...], carried: tuple[int, ...]
    ) -> tuple[Callable[..., Any], Callable[[], Any]]:
        del carried  # ops in place change their arguments
        import torch

        from hybridperf.workloads.programs.torch.record import recorder

        def seen() -> Any:
            with recorder(torch, "cpu") as mode:
                fn(*arguments)
            return [op.call for op in mode.ops]

        return fn, seen


Library = Jax | Torch


def library(name: str) -> Library:
    """A library by its name."""
    return Torch() if name == "torch" else Jax()
