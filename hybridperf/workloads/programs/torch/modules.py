"""Which module of a program asks for an op, and which made what is alive.

While modules run, a stack has their paths: "GPT.layers.3.mlp", the class of the outermost one
first. Nodes of autograd are numbered as they are made, so that an op of the backward pass belongs
to the module that was running when its node was made.
"""

from __future__ import annotations

import bisect
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

OUTSIDE = ""  # of any module


class ModulePaths:
    """Paths of the modules that run now, and of the nodes that they have made."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}  # class of the module at each path
        self.parameters: Counter[str] = Counter()  # numbers of a module's own ones
        self._of: dict[int, str] = {}  # by identity of a module
        self._kept: list[Any] = []  # so that no identity is given twice
        self._stack = [OUTSIDE]
        # from which number of a node on which path
        self._numbers, self._paths = list[int](), list[str]()

    def add(self, module: Any, hold: Callable[[Any], Any] = lambda tensors: None) -> None:
        """A module with all in it, unless it is known; `hold` is given each one's own tensors,
        while that one counts as running.
        """
        if id(module) in self._of:
            return
        root = type(module).__name__
        same = sum(one == root or one.startswith(f"{root} ") for one in self.kinds)
        root += f" {same + 1}" if same else ""
        for name, one in module.named_modules():
            path = f"{root}.{name}" if name else root
            self._of[id(one)], self.kinds[path] = path, type(one).__name__
            self._kept.append(one)
            own = [*one._parameters.values(), *one._buffers.values()]
            self._stack.append(path)
            hold([tensor for tensor in own if tensor is not None])
            self._stack.pop()
            self.parameters[path] = sum(
                p.numel() for p in one._parameters.values() if p is not None
            )

    @contextlib.contextmanager
    def followed(self, hold: Callable[[Any], Any] = lambda tensors: None) -> Iterator[None]:
        """Modules that are called in here; `hold` as in `add`."""
        import torch

        def enter(module: Any, _: object) -> None:
            if len(self._stack) == 1:
                self.add(module, hold)
            path = self._of.get(id(module), f"{self.now}.{type(module).__name__}".lstrip("."))
            self.kinds.setdefault(path, type(module).__name__)
            self._stack.append(path)
            self._mark(torch)

        def leave(*_: object) -> None:
            self._stack.pop()
            self._mark(torch)

        hooks = torch.nn.modules.module
        handles = (
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        )
        try:
            yield
        finally:
            for one in handles:
                one.remove()

    def _mark(self, torch: ModuleType) -> None:
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._paths.append(self.now)

    @property
    def now(self) -> str:
        """Of the module that runs."""
        return self._stack[-1]

    def of(self, node: Any = None) -> str:
        """Of the module that runs, or whose node of autograd runs."""
        if node is None or len(self._stack) > 1:  # a forward pass within the backward pass
            return self.now
        at = bisect.bisect_right(self._numbers, node._sequence_nr())
        return self._paths[at - 1] if at else OUTSIDE
