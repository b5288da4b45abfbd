"""How long JAX compiled, in this process: a short sweep spends most of its time on that."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

_STAGES = ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration")
_running: list[CompileTime] = []


@dataclasses.dataclass
class CompileTime:
    """Counts while its context is open."""

    seconds: float = 0.0


@contextlib.contextmanager
def compiling_time() -> Iterator[CompileTime]:
    """What is compiled within."""
    _listen()
    counted = CompileTime()
    _running.append(counted)
    try:
        yield counted
    finally:
        _running.remove(counted)


@functools.cache
def _listen() -> None:
    import jax

    def heard(event: str, duration_secs: float, **_: Any) -> None:
        if event.endswith(_STAGES):
            for one in _running:
                one.seconds += duration_secs

    jax.monitoring.register_event_duration_secs_listener(heard)
