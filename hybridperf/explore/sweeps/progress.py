"""How far a sweep is, on standard error: points, rate, time left, the best so far.

One line that is written over, or one now and then in a log. And how long JAX compiled, in this
process: a short sweep spends most of its time on that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Iterator
from typing import Any

_EVERY_S = {True: 0.5, False: 10.0}  # by whether a person looks on
_WIDTH = 130  # covers a longer line that was there before


class SweepProgress:
    """Counts points as they are done. `quiet` prints nothing."""

    def __init__(self, points: int, *, already: int = 0, quiet: bool = False, doing: str = ""):
        self._points, self._already, self._done, self._quiet = points, already, 0, quiet
        self._best, self._doing = "", doing
        self._on_terminal = sys.stderr.isatty()
        self._start_s = self._shown_s = time.monotonic()
        if already and not quiet:
            print(f"{already:,} of {points:,} points were done before", file=sys.stderr)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start_s

    def add(self, points: int, best: str = "") -> None:
        """Some more points are done, and `best` of all until now are these."""
        self._done += points
        self._best = best
        now = time.monotonic()
        if not self._quiet and now - self._shown_s >= _EVERY_S[self._on_terminal]:
            self._shown_s = now
            self._show("\r" if self._on_terminal else "\n")

    def _show(self, end: str) -> None:
        line = self.line().ljust(_WIDTH) if self._on_terminal else self.line()
        print(line, end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        if not self._quiet and self._done:
            self._show("\n")

    def line(self) -> str:
        total = self._already + self._done
        rate = self._done / max(self.seconds, 1e-9)
        left = _duration((self._points - total) / rate if rate else 0.0)
        doing = f"points {self._doing}" if self._doing else "points"
        part = f"{total:,} of {self._points:,} {doing} ({total / self._points:.0%})"
        line = f"{part}, {rate:,.0f} points/s, {left} left"
        return f"{line}; {self._best}" if self._best else line


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


_STAGES = ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration")
_running: list[CompileTime] = []


@dataclasses.dataclass
class CompileTime:
    """Counts while its context is open."""

    seconds: float = 0.0


@contextlib.contextmanager
def compiling_time() -> Iterator[CompileTime]:
    """Counts the seconds that JAX compiles within a `with` block."""
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
