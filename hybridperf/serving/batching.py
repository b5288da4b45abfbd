"""Continuous batching, step by step: what engines do with requests that come.

An engine is a state machine (Yu et al., Orca, OSDI 2022; Kwon et al., vLLM, SOSP 2023). Its next
step computes, within a budget of tokens,

1. what the running sequences lack, the oldest first: one token each, or a chunk of a prompt;
2. prompts that wait, in order, while a slot is free and all blocks of the prompt are, unless they
   are held back (`admission.py`);

and where the cache has no block for a running sequence, the youngest is preempted: it waits, ahead
of all others, to be computed again from its first token. Seconds of a step are `StepTimes`.

Several engines may share the requests (replicas with a routing), and prompts may be computed by
engines of their own that send keys over a link (Zhong et al., DistServe, OSDI 2024); a first token
then leaves from the engine that decodes, when it takes the sequence.

Why no simulator of events such as simpy: nothing happens inside a step, so the whole event loop is
"the engine that is free first takes a step"; a process per request would hide the order on which
preemption depends, and a batch that does not change for a thousand steps is here one array.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.engine.step_times import StepTimes
from hybridperf.io import InputError
from hybridperf.io.namespace import Array
from hybridperf.serving.admission import AT_ONCE, Admission
from hybridperf.serving.requests import Requests, Served
from hybridperf.workloads.serving.deployment import tokens_per_pass

_LONGEST = 4096  # steps taken at once: arrays of them stay in the cache
ROUTINGS = ("least_loaded", "round_robin")


def _static(default: Any) -> Any:
    """A field that decides what is computed, not a number in it."""
    return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Engine:
    """Settings of one engine, and what its steps take; arrays of settings in `engine_load` alone.

    With drafts (speculation, multi-token prediction) `times` are of steps that check them.
    """

    times: StepTimes
    slots: Array = 256  # sequences at once (vLLM: max_num_seqs)
    budget: Array = 8192  # tokens of a step (max_num_batched_tokens)
    kv_tokens: Array = math.inf  # that the cache holds
    block: int = _static(16)  # tokens of a block of the cache
    drafted: int = _static(0)  # tokens beside each one
    acceptance: Array = 0.0  # chance that a drafted token stands, given those before it do
    admission: Admission = AT_ONCE  # when prompts that came are taken
    # each prompt of a step is a call of its own, not part of one batch
    one_by_one: bool = _static(False)

    @property
    def tokens_a_step(self) -> Array:
        """That a sequence gains in the mean."""
        return tokens_per_pass(self.drafted, self.acceptance)


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
) -> Served:
    """Serve requests to the last one.

    Args:
        requests: an open or a closed loop.
        engines: replicas; with `prefill` those that only decode.
        prefill: engines that compute prompts and their first token, each with a link.
        link: of those; None: keys are there at once.
        routing: to the engine with the fewest requests, or to each in turn.

    Raises:
        InputError: a request that no cache holds, unknown routing, no engine.
    """
    if not engines:
        raise InputError("expected one engine or more, got none")
    if routing not in ROUTINGS:
        raise InputError(f"expected a routing of {', '.join(ROUTINGS)}, got {routing!r}")
    state = _Sequences(requests)
    decoding = [_Worker(engine, state) for engine in engines]
    prompts = [_Worker(engine, state, only_prompts=True) for engine in prefill]
    free_s = {worker: 0.0 for worker in prompts}  # of each one's link
    stages = [prompts, decoding] if prompts else [decoding]
    turns, workers = [0] * len(stages), [*prompts, *decoding]
    followers: dict[int, list[int]] = collections.defaultdict(list)
    for follower in np.flatnonzero(requests.after >= 0).tolist():
        followers[int(requests.after[follower])].append(follower)
    first = np.flatnonzero(requests.after < 0)
    ahead = [(float(requests.arrival_s[one]), int(one), 0) for one in first]
    state.arrival_s[first] = requests.arrival_s[first]
    heapq.heapify(ahead)
    while True:
        busy = [worker for worker in workers if worker.load]
        worker = min(busy, key=lambda one: one.clock_s, default=None)
        if ahead and (worker is None or ahead[0][0] <= worker.clock_s):
            when_s, request, stage = heapq.heappop(ahead)
            some = stages[stage]
            at = turns[stage] % len(some)
            if routing == "least_loaded":
                at = min(range(len(some)), key=lambda one: some[one].load)
            turns[stage] += 1
            some[at].take(request, when_s)
            continue
        if worker is None:
            break
        horizon_s = ahead[0][0] if ahead else math.inf
        if followers or prompts:  # what others do may send something here
            others = (one.clock_s for one in busy if one is not worker)
            horizon_s = min(horizon_s, min(others, default=math.inf))
        for request in worker.work(horizon_s).tolist():
            if worker.only_prompts and requests.output[request] > 1:
                when_s = worker.clock_s
                if link is not None:
                    size = link.bytes_per_token * float(state.held[request])
                    free_s[worker] = max(free_s[worker], when_s) + size / link.bytes_per_s
                    when_s = free_s[worker] + link.latency_s
                heapq.heappush(ahead, (when_s, request, 1))
                continue
            state.last_s[request] = ended_s = worker.clock_s + state.late_s[request]
            for follower in followers.get(request, ()):
                when_s = ended_s + float(requests.arrival_s[follower])
                state.arrival_s[follower] = when_s
                heapq.heappush(ahead, (when_s, follower, 0))
    return Served(
        requests, state.arrival_s, state.scheduled_s, state.first_s, state.last_s,
        sum(worker.preemptions for worker in workers), sum(worker.steps for worker in workers),
    )  # fmt: skip


class _Sequences:
    """What is known of each request [N]; `held` and `known` are fractional with drafts."""

    def __init__(self, requests: Requests) -> None:
        count = len(requests)
        self.prompt = requests.prompt.astype(float)
        self.total = self.prompt + requests.output
        self.held = requests.cached.astype(float)  # tokens whose keys are in the cache
        self.known = self.prompt.copy()  # tokens there are: the prompt and what was answered
        self.arrival_s, self.scheduled_s = np.full(count, np.nan), np.full(count, np.nan)
        self.first_s, self.last_s = np.full(count, np.nan), np.full(count, np.nan)
        self.late_s = np.zeros(count)  # of tokens behind a prompt's late kernels


class _Worker:
    """An engine at work: `running` are requests in the order they were admitted."""

    def __init__(self, engine: Engine, state: _Sequences, only_prompts: bool = False) -> None:
        self.engine, self.state, self.only_prompts = engine, state, only_prompts
        self.waiting: collections.deque[int] = collections.deque()
        self.running = np.zeros(0, int)
        self.clock_s, self.preemptions, self.steps = 0.0, 0, 0
        self.looked, self.gathered = 0, 0  # steps since a look; that the first that waits has
        self.blocks = engine.kv_tokens // engine.block if engine.kv_tokens < math.inf else math.inf
        self.total = state.prompt + 1 if only_prompts else state.total
        self.gain, self.held_back = engine.tokens_a_step, not engine.admission.at_once

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    def take(self, request: int, when_s: float) -> None:
        """A request comes, now or while a step runs."""
        longest = float(self.total[request]) + self.engine.drafted
        if math.ceil(longest / self.engine.block) > self.blocks:
            raise InputError(
                f"expected requests that fit in the cache of {self.engine.kv_tokens:g} tokens, got"
                f" one of {longest:g}; give it more memory or leave the request out"
            )
        if not self.load:
            self.clock_s = max(self.clock_s, when_s)
        self.waiting.append(request)

    def work(self, horizon_s: float) -> np.ndarray:
        """Take a step, or as many as leave the batch as it is, until `horizon_s`; what ended."""
        state, gain = self.state, self.gain
        preempted = self._make_room()
        want, decodes = self._wants(self.running)
        take = np.clip(self.engine.budget - (np.cumsum(want) - want), 0, want)
        held_back = self._held_back(decodes)
        if not preempted and not held_back:
            self._admit(self.engine.budget - float(take.sum()))
            if len(self.running) > len(take):
                want, decodes = self._wants(self.running)
                take = np.clip(self.engine.budget - (np.cumsum(want) - want), 0, want)
        run = self.running
        decodes &= take > 0
        chunk = np.where(decodes, 0.0, take)
        tokens, sequences = float(chunk.sum()), int(decodes.sum())
        keys = float(state.known[run][decodes].mean()) if sequences else 0.0
        chunk_keys = float(chunk @ (state.held[run] + chunk / 2)) / tokens if tokens else 0.0
        steps = 1
        if not tokens and not preempted:
            steps = self._unchanged(run)
            steps = min(steps, held_back) if held_back and self.waiting else steps
        times = self.engine.times.known
        may_come = not self.waiting or held_back > 0  # and change what is done
        if steps > 1 and may_come and horizon_s < math.inf:
            first_s = float(times.seconds(sequences, keys))
            steps = int(min(steps, max((horizon_s - self.clock_s) / first_s + 2, 1)))
        context = keys + gain * np.arange(steps) if steps > 1 else keys
        each_s = times.seconds(sequences, context, tokens, chunk_keys)
        late_s = 0.0
        if tokens and self.engine.times.launched_s:
            late_s = float(times.seconds(sequences, keys, tokens, chunk_keys, True) - each_s)
        if self.engine.one_by_one:
            each_s = each_s + self._beside_one_batch(chunk[chunk > 0], chunk_keys)
        ends_s = self.clock_s + np.cumsum(each_s)
        if steps > 1 and may_come:  # the step in which the horizon lies is the last
            steps = min(steps, int(np.searchsorted(ends_s, horizon_s)) + 1)
        self.clock_s = float(ends_s[steps - 1])
        self.steps += steps
        self.looked = 0 if tokens else self.looked + steps
        self.gathered = self.gathered + steps if held_back and self.waiting else 0
        self._advance(run, decodes, chunk, gain * steps, late_s)
        ended = state.known[run] >= self.total[run] - 1e-9
        self.running = run[~ended]
        return run[ended]

    def _beside_one_batch(self, chunks: np.ndarray, keys: float) -> float:
        """Seconds that prompts take one after the other beyond those of one batch of them."""
        if len(chunks) < 2:
            return 0.0
        times = dataclasses.replace(self.engine.times, host_s=0.0)
        one_by_one = times.seconds(0.0 * chunks, 1.0, chunks, keys)
        return float(one_by_one.sum() - times.seconds(0.0, 1.0, chunks.sum(), keys))

    def _held_back(self, decodes: np.ndarray) -> int:
        """Steps until prompts that wait are taken; 0: now, as when nobody decodes."""
        how = self.engine.admission
        if not (self.held_back and len(decodes) and decodes.all()):
            return 0
        look = int(-self.looked % how.every)
        if not self.waiting or not how.gather:
            return look
        state, some = self.state, list(self.waiting)
        tokens = float((state.known[some] - state.held[some]).sum()) + len(decodes)
        return 0 if tokens >= how.tokens else max(look, int(how.gather) - self.gathered, 0)

    def _wants(self, run: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that sequences would compute, and which of them decode."""
        lacks = self.state.known[run] - self.state.held[run]
        decodes = (lacks <= 1) & (self.state.known[run] > self.state.prompt[run])
        return np.where(decodes, 1 + self.engine.drafted, lacks), decodes

    def _blocks(self, run: np.ndarray, more: float = 0.0) -> float:
        """Blocks of the cache that sequences hold once `more` tokens are known of each."""
        known = self.state.known[run] + (more + self.engine.drafted)
        return float(np.ceil(known / self.engine.block).sum())

    def _make_room(self) -> bool:
        """Preempt the youngest until the others' tokens fit; whether any was."""
        if self.blocks == math.inf or self._blocks(self.running) <= self.blocks:
            return False
        while self._blocks(self.running) > self.blocks:
            youngest = int(self.running[-1])
            self.running = self.running[:-1]
            self.waiting.appendleft(youngest)
            self.state.held[youngest] = 0.0
            self.preemptions += 1
        return True

    def _admit(self, budget: float) -> None:
        """Let those that wait begin, in order."""
        state, held = self.state, math.nan
        while self.waiting and budget > 0 and len(self.running) < self.engine.slots:
            request = np.array(self.waiting[0])
            if self.blocks < math.inf:
                held = self._blocks(self.running) if math.isnan(held) else held
                held += self._blocks(request)
                if held > self.blocks:
                    return
            self.waiting.popleft()
            self.running = np.append(self.running, request)
            budget -= float(state.known[request] - state.held[request])
            if math.isnan(state.scheduled_s[request]):
                state.scheduled_s[request] = self.clock_s
            if math.isnan(state.first_s[request]) and state.known[request] > state.prompt[request]:
                state.first_s[request] = self.clock_s  # another engine made it

    def _unchanged(self, run: np.ndarray) -> int:
        """Steps until a sequence ends or the cache is full."""
        state, gain = self.state, self.gain
        left = float((self.total[run] - state.known[run]).min())
        steps = max(1, min(math.ceil(left / gain - 1e-9), _LONGEST))
        if self.blocks == math.inf or self._blocks(run, gain * (steps - 1)) <= self.blocks:
            return steps
        low, high = 1, steps  # steps of which the last fits, and of which it does not
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._blocks(run, gain * (middle - 1)) <= self.blocks
            low, high = (middle, high) if fits else (low, middle)
        return low

    def _advance(
        self, run: np.ndarray, decodes: np.ndarray, chunk: np.ndarray, gain: float, late_s: float
    ) -> None:
        state = self.state
        prompts = run[chunk > 0]
        state.held[prompts] += chunk[chunk > 0]
        whole = prompts[state.held[prompts] >= state.known[prompts] - 1e-9]
        state.known[whole] += 1
        state.known[run[decodes]] += gain
        state.held[run[decodes]] = state.known[run[decodes]] - 1
        new = whole[np.isnan(state.first_s[whole])]
        if self.only_prompts:  # what has more tokens is answered by the engine that decodes
            new = new[state.total[new] <= state.known[new]]
        state.late_s[new] = late_s
        state.first_s[new] = self.clock_s + late_s
