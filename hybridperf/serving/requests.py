"""Requests that are served: when they come, how long they are, and what became of them.

Open loops send whether or not the engine keeps up (Poisson, recorded arrivals); in closed loops a
client sends when its last request has ended, so that a slow engine is asked less. Both are one
table: a request comes at its time, or when another has ended.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.serving.prefix_cache import Chain


@dataclasses.dataclass(frozen=True)
class Streams:
    """K streams of tokens, which a request's prompt begins and its answer goes on with (but where
    answers are none of their `answers`); a stream may begin with another's tokens.
    """

    of: list[int]  # [N] of each request
    parent: list[int]  # [K] -1: none; a stream of a smaller number
    branch: list[int]  # [K] tokens that are the parent's
    answers: bool = True

    def chain(self, stream: int, block: int) -> Chain:
        """Runs of its blocks from the root on (`prefix_cache.py`); a block that is the parent's in
        part is its own.
        """
        runs, end = list[tuple[int, int, int]](), sys.maxsize
        while stream >= 0:
            parent = self.parent[stream]
            begins = self.branch[stream] // block if parent >= 0 else 0
            if begins < end:
                runs.append((stream, begins, end))
            stream, end = parent, min(begins, end)
        return tuple(reversed(runs))


@dataclasses.dataclass(frozen=True)
class Requests:
    """N requests, in the order of their numbers."""

    arrival_s: np.ndarray  # [N] where `after` names none; else seconds behind that one's end
    prompt: np.ndarray  # [N] tokens
    output: np.ndarray  # [N] tokens, 1 or more
    after: np.ndarray  # [N] the request whose end it waits for, -1: none
    cached: np.ndarray  # [N] first tokens of the prompt whose keys the engine holds already
    streams: Streams | None = None  # whose first tokens prompts are, for a cache of prefixes
    # [M, 2] a request with `after`, and another whose end it waits for, too
    joins: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2), int))

    def __len__(self) -> int:
        return len(self.prompt)

    def followers(self) -> tuple[Callable[[int], list[int]], list[int]]:
        """Requests that wait for a request's end, and for how many each waits [N]."""
        waits = np.flatnonzero(self.after >= 0)
        pairs = np.concatenate([np.stack([waits, self.after[waits]], 1), self.joins])
        pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
        begins = np.searchsorted(pairs[:, 1], np.arange(len(self) + 1)).tolist()
        some, counts = pairs[:, 0].tolist(), np.bincount(pairs[:, 0], minlength=len(self)).tolist()
        return lambda request: some[begins[request] : begins[request + 1]], counts


def arriving(
    arrival_s: np.ndarray, prompt: np.ndarray, output: np.ndarray, prefix_share: float = 0.0
) -> Requests:
    """An open loop: requests that come at given seconds.

    Args:
        arrival_s: [N], in any order.
        prompt: tokens, [N] or a number.
        output: tokens, [N] or a number.
        prefix_share: of each prompt that the prefix cache holds.

    Raises:
        InputError: lengths below one token, times that are none, a share outside 0 to 1.
    """
    arrival_s = np.asarray(arrival_s, float)
    prompt, output = (np.broadcast_to(one, arrival_s.shape).astype(int) for one in (prompt, output))
    if not np.isfinite(arrival_s).all():
        raise InputError("expected arrivals in seconds, got some that are none; mend or drop them")
    if len(prompt) and min(prompt.min(), output.min()) < 1:
        raise InputError(
            f"expected prompts and outputs of 1 token or more, got {prompt.min()} and"
            f" {output.min()}; drop those requests"
        )
    if not 0 <= prefix_share < 1:
        raise InputError(f"expected a prefix_share from 0 to below 1, got {prefix_share:g}")
    cached = np.floor(prompt * prefix_share).astype(int)  # so one token at least is computed
    return Requests(arrival_s, prompt, output, np.full(len(prompt), -1), cached)


def looping(
    clients: int,
    prompt: np.ndarray,
    output: np.ndarray,
    start_s: np.ndarray | float = 0.0,
    think_s: float = 0.0,
    prefix_share: float = 0.0,
) -> Requests:
    """A closed loop: each client sends its next request when its last one has ended.

    Args:
        clients: that send at the same time.
        prompt: tokens [N], dealt to the clients in turn.
        output: tokens [N].
        start_s: of the clients' first requests, [clients] or one: a burst.
        think_s: from an answer to the next request.
        prefix_share: of each prompt that the prefix cache holds.
    """
    count = len(prompt)
    if not 1 <= clients <= count:
        raise InputError(f"expected from 1 to {count} clients, a request each, got {clients}")
    arrival_s = np.full(count, float(think_s))
    arrival_s[:clients] = start_s
    found = arriving(arrival_s, prompt, output, prefix_share)
    after = np.arange(count) - clients
    return dataclasses.replace(found, after=np.maximum(after, -1))


@dataclasses.dataclass(frozen=True)
class Served:
    """When requests came, began, answered and ended; seconds [N]."""

    requests: Requests
    arrival_s: np.ndarray
    scheduled_s: np.ndarray
    first_token_s: np.ndarray
    last_token_s: np.ndarray
    preemptions: int
    steps: int  # of all engines
    replica: np.ndarray  # [N] engine that computed the prompt
    cached: np.ndarray  # [N, tiers] tokens of the prompt that were found, of the GPU's cache first
    tiers: tuple[str, ...] = ("gpu",)  # their names

    @property
    def ttft_s(self) -> np.ndarray:
        """From a request to its first token."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> np.ndarray:
        """Per token after the first; NaN for outputs of one."""
        more = self.requests.output - 1
        return np.where(
            more > 0, (self.last_token_s - self.first_token_s) / np.maximum(more, 1), np.nan
        )

    @property
    def end_to_end_s(self) -> np.ndarray:
        """From a request to its last token."""
        return self.last_token_s - self.arrival_s

    def queue(self) -> tuple[np.ndarray, np.ndarray]:
        """Requests that wait and have not begun, and the seconds for which it was so many [2 N]."""
        times = np.concatenate([self.arrival_s, self.scheduled_s])
        moves = np.repeat([1, -1], len(self.requests))
        order = np.lexsort((-moves, times))
        length = np.cumsum(moves[order])[:-1]
        return length, np.diff(times[order])

    def hits(self) -> dict[str, float]:
        """Share of all prompts' tokens that each tier held."""
        shares = self.cached.sum(0) / self.requests.prompt.sum()
        return dict(zip(self.tiers, shares.tolist(), strict=True))

    def tokens_per_s(self) -> float:
        """Output tokens a second from the first request to the last answer."""
        return float(self.requests.output.sum() / (self.last_token_s.max() - self.arrival_s.min()))

    def percentiles(self, percents: tuple[float, ...] = (50, 90, 99)) -> pd.DataFrame:
        """Percentiles, a row each: of requests, of the queue over time; and the mean."""
        columns = {}
        for name in ("ttft_s", "tpot_s", "end_to_end_s"):
            values = getattr(self, name)
            values = values[~np.isnan(values)]
            columns[name] = [
                *(np.percentile(values, percents) if len(values) else [np.nan] * len(percents)),
                values.mean() if len(values) else np.nan,
            ]
        length, lasted = self.queue()
        order = np.argsort(length)
        share = np.cumsum(lasted[order]) / max(lasted.sum(), 1e-300)
        at = np.searchsorted(share, np.array(percents) / 100 - 1e-12).clip(0, len(order) - 1)
        mean = float(length @ lasted / max(lasted.sum(), 1e-300))
        columns["queued_requests"] = [*length[order][at], mean]
        return pd.DataFrame(columns, index=[*(f"P{one:g}" for one in percents), "mean"])
