"""Memory by which storages are alive: what a program holds at once, as it runs on fake tensors.

A storage counts from the op that makes it until Python frees it, as in a real run; views share
theirs. PyTorch's caching allocator hands out blocks of whole 512 bytes
(c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize), which is what `max_memory_allocated` counts.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

_BLOCK_BYTES = 512


def block_bytes(size: float) -> float:
    """Bytes of the block that holds so many."""
    return math.ceil(size / _BLOCK_BYTES) * float(_BLOCK_BYTES)


class StorageTally:
    """Bytes alive now, and the most so far."""

    def __init__(self) -> None:
        self.alive_bytes = 0.0
        self.peak_bytes = 0.0
        self._sizes: dict[Any, float] = {}  # by weak reference
        self._numbers: dict[Any, int] = {}
        self._count = 0

    def hold(self, torch: Any, tree: Any) -> None:
        """Count the storages of all tensors in a tree, or of a module's parameters and buffers."""
        for value in torch.utils._pytree.tree_leaves(tree):
            if isinstance(value, torch.nn.Module):
                self.hold(torch, [*value.parameters(), *value.buffers()])
            elif isinstance(value, torch.Tensor):
                self.number(value)

    def restart(self) -> None:
        """The most from now on."""
        self.peak_bytes = self.alive_bytes

    def number(self, tensor: Any) -> int:
        """That of a tensor's storage, from 1, now counted; 0 of what has none of its own."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # made of other tensors, which are seen
            return 0
        reference = weakref.ref(storage, self._gone)
        if reference in self._sizes:
            return self._numbers[reference]
        self._count += 1
        self._numbers[reference] = self._count
        size = block_bytes(storage.nbytes())
        self._sizes[reference] = size
        self.alive_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
        return self._count

    def _gone(self, reference: Any) -> None:
        self.alive_bytes -= self._sizes.pop(reference, 0.0)
        self._numbers.pop(reference, None)
