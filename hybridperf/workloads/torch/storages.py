"""Memory by which storages are alive: what a program holds at once, as it runs on fake tensors.

A storage counts from the op that makes it until Python frees it, as in a real run; views share
theirs. PyTorch's caching allocator hands out blocks of whole 512 bytes
(c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize), which is what `max_memory_allocated` counts.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

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
            elif hasattr(value, "to_local"):  # a DTensor claims the bytes of all ranks together
                self.hold(torch, value._local_tensor)
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

    @contextlib.contextmanager
    def seeing_resizes(self, torch: Any) -> Iterator[None]:
        """Storages that grow and shrink count as they do: FSDP2 frees the weights of a layer by
        giving their storage no bytes, and fills it again for the backward pass.
        """
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            found = resize(storage, size)
            reference = weakref.ref(storage)
            if reference in self._sizes:
                self.alive_bytes += block_bytes(size) - self._sizes[reference]
                self._sizes[reference] = block_bytes(size)
                self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
            return found

        with mock.patch.object(torch.UntypedStorage, "resize_", resized):
            yield

    def _gone(self, reference: Any) -> None:
        self.alive_bytes -= self._sizes.pop(reference, 0.0)
        self._numbers.pop(reference, None)
