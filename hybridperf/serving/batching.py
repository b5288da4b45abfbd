"""Continuous batching: what engines (`engine.py`) do with requests that come.

Several engines may share the requests (replicas with a routing), and prompts may be computed by
engines of their own that send keys over a link (Zhong et al., DistServe, OSDI 2024); a first token
then leaves from the engine that decodes, when it takes the sequence.

Why no simulator of events such as simpy: nothing happens inside a step, so the whole event loop is
"the engine that is free first takes a step"; a process per request would hide the order on which
preemption depends. A batch that does not change is one event: a million requests take a minute.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io import InputError
from hybridperf.serving.engine import Engine, Sequences, Worker
from hybridperf.serving.prefix_cache import Tier
from hybridperf.serving.requests import Requests, Served

ROUTINGS = ("least_loaded", "round_robin", "prefix_aware")
# of SGLang's and vLLM's routers (cache_aware): --cache-threshold, the share of a prompt that has to
# be there; --balance-abs-threshold and --balance-rel-threshold, requests and times by which the
# busiest engine may be above the idlest
_MATCHED, _UNEVEN, _TIMES_UNEVEN = 0.3, 64, 1.5
# what happens, in the order of what happens at once
_ENDS, _COMES, _READ, _BEGINS = range(4)


@dataclasses.dataclass(frozen=True)
class Link:
    """What keys go over from engines that compute prompts, one prompt after the other."""

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0


def serve(
    requests: Requests,
    engines: Sequence[Engine],
    prefill: Sequence[Engine] = (),
    link: Link | None = None,
    routing: str = "least_loaded",
    tiers: Sequence[Tier] | None = None,
) -> Served:
    """Serve requests to the last one.

    Args:
        requests: an open or a closed loop.
        engines: replicas; with `prefill` those that only decode.
        prefill: engines that compute prompts and their first token, each with a link.
        link: of those; None: keys are there at once.
        routing: to the engine with the fewest requests (least_loaded), to each in turn
            (round_robin), or to the one that holds most of the prompt (prefix_aware, as
            `cache_aware` of SGLang's and vLLM's routers).
        tiers: of each engine that computes prompts, below its GPU, the quickest first, for requests
            with `streams`; None: nothing that was computed before is found.

    Raises:
        InputError: a request that no cache holds, unknown routing, no engine.
    """
    if not engines:
        raise InputError("expected one engine or more, got none")
    if routing not in ROUTINGS:
        raise InputError(f"expected a routing of {', '.join(ROUTINGS)}, got {routing!r}")
    if requests.streams is None:
        tiers = None
    if routing == "prefix_aware" and tiers is None:
        raise InputError(
            "expected requests with streams and a cache of prefixes with routing prefix_aware, got"
            " none; choose least_loaded"
        )
    state = Sequences(requests, engines[0].block, 1 + len(tiers or ()))
    routes = [_Route(engines, state, routing, None if prefill else tiers)]
    if prefill:
        spread = "least_loaded" if routing == "prefix_aware" else routing
        routes = [_Route(prefill, state, routing, tiers, True), _Route(engines, state, spread)]
    free_s = [0.0] * len(prefill)  # of each one's link
    followers, awaited = requests.followers()
    behind_s, after = requests.arrival_s.tolist(), requests.after.tolist()
    numbers = itertools.count()
    events: list[tuple[float, int, int, Any, int]] = []

    def comes(request: int, when_s: float, stage: int = 0) -> None:
        if not stage:
            state.arrival_s[request] = when_s
        heapq.heappush(events, (when_s, _COMES, next(numbers), request, stage))

    # those that wait for nobody, each announced by the one before: events are few at any time
    alone = np.flatnonzero(requests.after < 0)
    alone = iter(alone[np.argsort(requests.arrival_s[alone], kind="stable")].tolist())
    for request in itertools.islice(alone, 1):
        comes(request, behind_s[request])
    while events:
        now_s, kind, _, whose, what = heapq.heappop(events)
        if kind == _COMES:
            if after[whose] < 0 and not what:
                for request in itertools.islice(alone, 1):
                    comes(request, behind_s[request])
            worker = routes[what].take(whose)
        elif kind == _READ:
            worker, whose.may_come = whose, True
            worker.join(what)
        elif kind == _BEGINS:
            worker, whose.begins = whose, False
        elif what != whose.version:
            continue  # cut short since
        else:
            worker, stage = whose, len(routes) - 1 - whose.only_prompts
            for request in worker.commit():
                routes[stage].left(worker, request)
                if worker.only_prompts and state.total[request] > state.prompt[request] + 1:
                    when_s = now_s
                    if link is not None:
                        size = link.bytes_per_token * state.held[request]
                        sent_s = max(free_s[worker.place], when_s) + size / link.bytes_per_s
                        free_s[worker.place] = sent_s
                        when_s = sent_s + link.latency_s
                    comes(request, when_s, 1)
                    continue
                state.last_s[request] = ended_s = now_s + state.late_s[request]
                for follower in followers(request):
                    awaited[follower] -= 1
                    if not awaited[follower]:
                        comes(follower, ended_s + behind_s[follower])
        if worker.busy:  # with steps that what came may end
            if worker.cut(now_s):
                told = worker.end_s, _ENDS, next(numbers), worker, worker.version
                heapq.heappush(events, told)
            continue
        worker.clock_s = now_s
        if events and events[0][0] <= now_s and kind != _BEGINS:
            if worker.load and not worker.begins:  # behind what else comes at this moment
                worker.begins = True
                heapq.heappush(events, (now_s, _BEGINS, next(numbers), worker, 0))
        elif worker.load:
            for request, when_s in worker.plan():
                heapq.heappush(events, (when_s, _READ, next(numbers), worker, request))
            if worker.busy:
                told = worker.end_s, _ENDS, next(numbers), worker, worker.version
                heapq.heappush(events, told)
    workers = [worker for route in routes for worker in route.workers]
    return Served(
        requests, np.array(state.arrival_s), np.array(state.scheduled_s), np.array(state.first_s),
        np.array(state.last_s),
        sum(worker.preemptions for worker in workers), sum(worker.taken for worker in workers),
        np.array(state.replica), np.array(state.cached).T,
        ("gpu", *(one.name for one in tiers or ())),
    )  # fmt: skip


class _Route:
    """Engines alike, and which of them a request goes to."""

    def __init__(
        self, engines: Sequence[Engine], state: Sequences, routing: str,
        tiers: Sequence[Tier] | None = None, only_prompts: bool = False,
    ) -> None:  # fmt: skip
        self.state, self.routing, self.turn = state, routing, 0
        self.workers = [
            Worker(one, state, at, tiers, only_prompts) for at, one in enumerate(engines)
        ]
        self.loads = [0] * len(engines)
        self.holders: dict[int, set[int]] = {}  # of runs, engines that were left some

    def take(self, request: int) -> Worker:
        """A request comes to an engine."""
        at = 0
        if self.routing == "round_robin":
            at, self.turn = self.turn % len(self.workers), self.turn + 1
        elif self.routing == "least_loaded":
            at = self.loads.index(min(self.loads))
        else:
            at = self._nearest(request)
        self.loads[at] += 1
        worker = self.workers[at]
        worker.take(request)
        return worker

    def _nearest(self, request: int) -> int:
        """The engine that holds most of a prompt, unless that is little or engines are uneven."""
        least, most = min(self.loads), max(self.loads)
        if most - least <= _UNEVEN or most <= _TIMES_UNEVEN * least:
            chain, blocks = self.state.chain(request)
            best, held = -1, _MATCHED * self.state.prompt[request] / self.state.block
            for run, _, _ in reversed(chain):
                for at in self.holders.get(run, ()):
                    found = self.workers[at].held(chain, blocks)
                    if found > held or (found == held and self.loads[at] < self.loads[best]):
                        best, held = at, found
                if best >= 0:
                    return best
        return self.loads.index(least)

    def left(self, worker: Worker, request: int) -> None:
        """A request has ended on an engine."""
        self.loads[worker.place] -= 1
        if self.routing == "prefix_aware":
            run = self.state.chain(request)[0][-1][0]
            self.holders.setdefault(run, set()).add(worker.place)
