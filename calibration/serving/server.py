"""A server with continuous batching: what waits at its socket is looked at between two steps.

The loop is the state machine of `hybridperf.serving.batching`, with a real decoder in the place of
seconds. A step computes, within a budget of tokens, a token of each sequence that decodes or a
chunk of its prompt, the oldest first, then prompts that wait, while a slot is free; prompts are
computed one after the other, sequences that decode together. Tokens are sent when the step ends.

A request is a line of JSON, {"number": 0, "prompt": [17, 4], "output": 3}; the answer a line for
each token. When each was sent is kept, too: what clients see later is the way and their own wait.
One thread does all: a second one would take the interpreter from the first in the midst of a step.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from hybridperf_calibration.serving import Decoder, padded

_READ_BYTES = 2**16
_LOOK_UP_S = 1.0  # an idle server looks whether there are clients left


@dataclasses.dataclass(eq=False)
class Asked:
    """A request: tokens there are, and how many of them are in its cache."""

    connection: socket.socket
    number: int
    known: list[int]
    prompt: int
    total: int  # tokens when it is done
    cache: Any = None
    held: int = 0

    @property
    def decodes(self) -> bool:
        return len(self.known) > self.prompt

    @property
    def lacks(self) -> int:
        """Tokens that the cache has yet to hold."""
        return len(self.known) - self.held


@dataclasses.dataclass(frozen=True)
class Busy:
    """Of the steps of a loop: how many, seconds they took, and the processor's share of them."""

    steps: int
    step_s: float
    decoder_s: float  # of those, in the decoder
    cpu_share: float
    left_s: dict[int, list[float]]  # when the tokens of each request were sent, perf_counter
    program_s: dict[str, list[float]]  # processor seconds of each call of a program


class Server:
    """Serves a decoder at a free port of the loopback."""

    def __init__(self, decoder: Decoder, slots: int, budget: int) -> None:
        self._decoder, self._slots, self._budget = decoder, slots, budget
        self._caches = [decoder.cache() for _ in range(slots)]
        self._running: list[Asked] = []
        self._waiting: collections.deque[Asked] = collections.deque()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, b"")
        self._decoder_s = 0.0
        self._left_s: dict[int, list[float]] = {}
        self._program_s: dict[str, list[float]] = {}

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._selector.close()
        self._listener.close()

    def serve(self, requests: int, alive: Callable[[], bool] = lambda: True) -> Busy:
        """Serve until so many have been answered; RuntimeError once the clients are gone."""
        ended = steps = 0
        step_s, cpu_s, self._decoder_s, self._left_s = 0.0, 0.0, 0.0, collections.defaultdict(list)
        self._program_s = collections.defaultdict(list)
        while ended < requests:
            self._receive(wait=not (self._running or self._waiting))
            if not (self._running or self._waiting):
                if not alive():
                    raise RuntimeError(f"the clients ended after {ended} of {requests} requests.")
                continue
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            ended += self._step()
            step_s += time.perf_counter() - start_s
            cpu_s += time.process_time() - start_cpu_s
            steps += 1
        return Busy(steps, step_s, self._decoder_s, cpu_s / step_s, self._left_s, self._program_s)

    def _receive(self, wait: bool) -> None:
        """Take all that has come; `wait` for something."""
        limit_s = _LOOK_UP_S if wait else 0.0
        while ready := self._selector.select(limit_s):
            limit_s = 0.0
            for key, _ in ready:
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    connection.setblocking(False)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._selector.register(connection, selectors.EVENT_READ, b"")
                else:
                    self._read(cast(socket.socket, key.fileobj), key.data)

    def _read(self, connection: socket.socket, before: bytes) -> None:
        text = before + connection.recv(_READ_BYTES)
        if not text.endswith(b"\n"):
            self._selector.modify(connection, selectors.EVENT_READ, text)
            return
        self._selector.unregister(connection)
        asked = json.loads(text)
        prompt = asked["prompt"]
        total = len(prompt) + asked["output"]
        self._waiting.append(Asked(connection, asked["number"], prompt, len(prompt), total))

    def _step(self) -> int:
        """One step; how many requests ended in it."""
        left, taken = self._budget, []
        for one in self._running:
            taken.append((one, min(left, one.lacks)))
            left -= taken[-1][1]
        while self._waiting and left and len(self._running) < self._slots:
            one = self._waiting.popleft()
            one.cache = self._caches.pop()
            self._running.append(one)
            taken.append((one, min(left, one.lacks)))
            left -= taken[-1][1]
        new = self._computed([(one, take) for one, take in taken if take])
        for one, token in new:
            one.known.append(token)
            # before it is sent: the client may be quicker than this thread
            self._left_s[one.number].append(time.perf_counter())
            one.connection.sendall(b"%d\n" % token)
        ended = [one for one, _ in new if len(one.known) == one.total]
        for one in ended:
            one.connection.close()
            self._running.remove(one)
            self._caches.append(one.cache)
        return len(ended)

    def _computed(self, taken: list[tuple[Asked, int]]) -> list[tuple[Asked, int]]:
        """New tokens of the sequences whose last known token was computed."""
        start_s, new, config = time.perf_counter(), [], self._decoder.config
        for one, take in taken:
            if not one.decodes:
                chunk = one.known[one.held : one.held + take]
                with self._noted("prefill", config.chunks, take):
                    token, one.cache = self._decoder.prefill(one.cache, chunk, one.held)
                one.held += take
                if not one.lacks:
                    new.append((one, token))
        together = [one for one, _ in taken if one.decodes]
        if together:
            last, held = [one.known[-1] for one in together], [one.held for one in together]
            with self._noted("decode", config.batches, len(together)):
                tokens, caches = self._decoder.decode([one.cache for one in together], last, held)
            for one, token, cache in zip(together, tokens, caches, strict=True):
                one.cache, one.held = cache, one.held + 1
                new.append((one, token))
        self._decoder_s += time.perf_counter() - start_s
        return new

    @contextlib.contextmanager
    def _noted(self, kind: str, sizes: Sequence[int], count: int) -> Iterator[None]:
        """Keep what a program's call takes of the processor: others on its core are left out."""
        start_s = time.process_time()
        yield
        self._program_s[f"{kind} {padded(sizes, count)}"].append(time.process_time() - start_s)
