"""An engine that serves, and what it does: step by step, with the requests that come to it.

It is a state machine (Yu et al., Orca, OSDI 2022; Kwon et al., vLLM, SOSP 2023). Its next step
computes, within a budget of tokens,

1. what the running sequences lack, the oldest first: one token each, or a chunk of a prompt;
2. prompts that wait, in order, while a slot is free and all blocks of the prompt are, unless they
   are held back (`admission.py`);

and where the cache has no block for a running sequence, the youngest is preempted: it waits, ahead
of all others, to be computed again from its first token. Seconds of a step are `StepTimes`. A batch
that does not change for a thousand steps is one plan, which a request that comes ends with the step
it comes in.

With a cache of prefixes (`prefix_cache.py`) a prompt's blocks that it computed before are found
when the prompt begins; those of tiers below the GPU are read first, while others compute.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.engine.step_times import StepTimes
from hybridperf.io import InputError
from hybridperf.io.namespace import Array
from hybridperf.serving.admission import AT_ONCE, Admission
from hybridperf.serving.prefix_cache import Chain, PrefixCache, Tier
from hybridperf.serving.requests import Requests, Streams
from hybridperf.workloads.serving.deployment import tokens_per_pass


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


class Sequences:
    """What is known of each request [N], numbers of Python: of those that decode `known` lacks what
    their engine's sequences have made since it began (`Worker.gone`).
    """

    def __init__(self, requests: Requests, block: int, tiers: int) -> None:
        count, nothing = len(requests), math.nan
        self.prompt: list[int] = requests.prompt.tolist()
        self.total: list[int] = (requests.prompt + requests.output).tolist()
        self.held: list[float] = requests.cached.tolist()  # tokens whose keys are in the cache
        self.known: list[float] = requests.prompt.tolist()  # tokens there are: prompt and answer
        self.arrival_s, self.scheduled_s = [nothing] * count, [nothing] * count
        self.first_s, self.last_s = [nothing] * count, [nothing] * count
        self.late_s = [0.0] * count  # of tokens behind a prompt's late kernels
        self.replica = [0] * count  # that computes the prompt
        # tokens that were found, by tier
        self.cached = [requests.cached.tolist(), *([0] * count for _ in range(tiers - 1))]
        self.shared = [0] * count  # blocks of the cache that were found
        self.block, self._streams = block, requests.streams or Streams([], [], [])
        self.answers = self._streams.answers  # whether they stay in a cache
        self._chains: dict[int, Chain] = {}
        self.computed: dict[int, int] = {}  # blocks of streams that any engine has computed

    def chain(self, request: int) -> tuple[Chain, int]:
        """Runs of a request's tokens, and the blocks of it that may be found: of those that were
        ever computed, and not that of the prompt's last token, which is in any case.
        """
        stream = self._streams.of[request]
        found = self._chains.get(stream)
        if found is None:
            found = self._chains[stream] = self._streams.chain(stream, self.block)
            self.computed[stream] = found[-1][1]
        most, computed = (self.prompt[request] - 1) // self.block, self.computed[stream]
        return found, most if most < computed else computed


class Worker:
    """An engine at work on what it planned: `filling` and `decoding` in the order of admission."""

    def __init__(
        self, engine: Engine, state: Sequences, place: int, tiers: Sequence[Tier] | None = None,
        only_prompts: bool = False,
    ) -> None:  # fmt: skip
        self.engine, self.state, self.place, self.only_prompts = engine, state, place, only_prompts
        self.times, self.gain = engine.times.known, float(engine.tokens_a_step)
        self.waiting: collections.deque[int] = collections.deque()
        self.filling: list[int] = []  # what lacks more than a token
        self.decoding: dict[int, int] = {}  # and what does not: the round that it ends with
        self.reading: list[int] = []  # from a tier below
        self.ends: list[tuple[int, int]] = []  # rounds that sequences end with, some of them gone
        # rounds of decoding so far, and what they made of a sequence; of those that decode tokens
        # without that, of others all; blocks that are counted as the cache's
        self.rounds, self.gone, self.keys, self.others, self.shared = 0, 0.0, 0.0, 0.0, 0
        self.most = 0  # blocks of all when they end
        self.clock_s, self.end_s, self.late_s = 0.0, 0.0, 0.0
        self.busy = self.begins = self.gathers = self.may_come = False
        self.load = 0  # requests that have come and not ended
        self.version, self.preemptions, self.taken, self.steps = 0, 0, 0, 0
        self.chunks: list[float] = []
        self.active, self.context = 0, 0.0  # sequences that decode now, and their mean keys
        self.looked, self.gathered = 0, 0  # steps since a look; that the first that waits has
        self.blocks = engine.kv_tokens // engine.block if engine.kv_tokens < math.inf else math.inf
        self.held_back = not engine.admission.at_once
        self.cache = None if tiers is None else PrefixCache(engine.block, tiers)

    def held(self, chain: Chain, most: int) -> int:
        """Blocks of a prompt that any tier holds."""
        return sum(self.cache.found(chain, most)[0]) if self.cache else 0

    def total(self, request: int) -> int:
        """Tokens with which a request ends here."""
        return self.state.prompt[request] + 1 if self.only_prompts else self.state.total[request]

    def take(self, request: int) -> None:
        """A request comes, now or while a step runs."""
        if self._most_blocks(request) > self.blocks:
            raise InputError(
                f"expected requests that fit in the cache of {self.engine.kv_tokens:g} tokens, got"
                f" one of {self.total(request) + self.engine.drafted:g}; give it more memory or"
                " leave the request out"
            )
        self.load += 1
        self.waiting.append(request)

    def plan(self) -> list[tuple[int, float]]:
        """Choose the next step, or as many as leave the batch as it is (`busy` until `end_s`);
        requests that begin by reading keys, and when those will be there.
        """
        engine, state, each = self.engine, self.state, 1 + self.engine.drafted
        self.version += 1
        preempted = not self._fits() and self._make_room()
        held_back = self._held_back() if self.held_back else 0
        reads: list[tuple[int, float]] = []
        if self.waiting and not preempted and not held_back:
            left = engine.budget - each * len(self.decoding)
            for one in self.filling:
                left -= state.known[one] - state.held[one]
            reads = self._admit(left)
        self.active = len(self.decoding)
        left = engine.budget - each * self.active
        self.context = self.keys / (self.active or 1) + self.gone
        if left < 0:  # the oldest alone
            self.active = math.ceil(engine.budget / each)
            some = itertools.islice(self.decoding, self.active)
            self.context = sum(map(state.known.__getitem__, some)) / self.active + self.gone
        tokens = keys = 0.0
        self.chunks = []
        for request in self.filling:
            chunk = min(state.known[request] - state.held[request], left)
            if chunk <= 0:
                break
            left, tokens = left - chunk, tokens + chunk
            keys += chunk * (state.held[request] + chunk / 2)
            self.chunks.append(chunk)
        self.busy = bool(tokens or self.active)
        if not self.busy:  # all of them read
            return reads
        self.may_come = not self.waiting or held_back > 0  # and change what is done
        self.gathers = held_back > 0 and bool(self.waiting)
        self.steps, self.late_s = 1, 0.0
        if tokens:
            load = self.active, self.context, tokens, keys / tokens
            seconds, self.late_s = self.times.with_prompts(*load)
            if engine.one_by_one:
                seconds += self._beside_one_batch(keys / tokens)
        else:
            most = 1 if preempted else self._unchanged()
            most = min(most, held_back) if self.gathers else most
            self.steps, seconds = self.times.steps(self.active, self.context, self.gain, most)
        self.end_s = self.clock_s + seconds
        return reads

    def cut(self, now_s: float) -> bool:
        """Whether what came ends the planned steps, with that in which it came."""
        if self.steps == 1 or not self.may_come or now_s >= self.end_s:
            return False
        steps, seconds = self.times.steps(
            self.active, self.context, self.gain, self.steps, now_s - self.clock_s
        )
        if steps == self.steps:
            return False
        self.version += 1
        self.steps, self.end_s = steps, self.clock_s + seconds
        return True

    def commit(self) -> list[int]:
        """What was planned is done; what has ended with it."""
        state = self.state
        ended: list[int] = []
        self.clock_s, self.busy = self.end_s, False
        self.taken += self.steps
        self.looked = 0 if self.chunks else self.looked + self.steps
        self.gathered = self.gathered + self.steps if self.gathers else 0
        if self.active:
            more = self.gain * self.steps
            beyond = self.active < len(self.decoding)  # the budget
            for late in list(self.decoding)[self.active :] if beyond else ():
                state.known[late] -= more
                self.keys -= more
                self.decoding[late] += self.steps
                heapq.heappush(self.ends, (self.decoding[late], late))
            self.rounds += self.steps
            self.gone = self.gain * self.rounds
            if self.ends[0][0] <= self.rounds:  # before what ends leaves its blocks
                self._evict()
            while self.ends and self.ends[0][0] <= self.rounds:
                rounds, request = heapq.heappop(self.ends)
                if self.decoding.get(request) == rounds:
                    self._decodes_no_more(request)
                    ended.append(request)
        whole = 0
        for request in self.filling[: len(self.chunks)]:
            chunk = self.chunks[whole]
            state.held[request] += chunk
            if state.held[request] < state.known[request] - 1e-9:
                break
            whole += 1
            self.others -= state.known[request]
            state.known[request] += 1
            if math.isnan(state.first_s[request]) and (
                # what has more tokens is answered by the engine that decodes
                not self.only_prompts or state.total[request] <= state.known[request]
            ):
                state.late_s[request] = self.late_s
                state.first_s[request] = self.clock_s + self.late_s
            if state.known[request] >= self.total(request) - 1e-9:
                ended.append(request)
            else:
                self._decodes(request)
        if whole:
            del self.filling[:whole]
        self.load -= len(ended)
        for request in ended:
            left = int(state.known[request] - 1) if state.answers else state.prompt[request]
            self._release(request, left // self.engine.block)
        return ended

    def join(self, request: int) -> None:
        """A request begins, all of its keys that are cached being there."""
        state = self.state
        if request in self.reading:
            self.reading.remove(request)
        known = state.known[request]
        if known > state.prompt[request] and math.isnan(state.first_s[request]):
            state.first_s[request] = self.clock_s  # another engine made it
        if known > state.prompt[request] and known - state.held[request] <= 1:
            self.others -= known
            self._decodes(request)
        else:
            self.filling.append(request)

    def _decodes(self, request: int) -> None:
        """A sequence lacks no more than its next token."""
        known = self.state.known[request]
        left = self.total(request) - known
        self.decoding[request] = ends = self.rounds + math.ceil(left / self.gain - 1e-9)
        heapq.heappush(self.ends, (ends, request))
        self.state.known[request] = known - self.gone
        self.keys += known - self.gone

    def _decodes_no_more(self, request: int) -> None:
        del self.decoding[request]
        self.keys -= self.state.known[request]
        self.state.known[request] += self.gone

    def _beside_one_batch(self, keys: float) -> float:
        """Seconds that prompts take one after the other beyond those of one batch of them."""
        if len(self.chunks) < 2:
            return 0.0
        times = dataclasses.replace(self.engine.times, host_s=0.0)
        chunks = np.array(self.chunks)
        one_by_one = times.seconds(0.0 * chunks, 1.0, chunks, keys)
        return float(one_by_one.sum() - times.seconds(0.0, 1.0, chunks.sum(), keys))

    def _held_back(self) -> int:
        """Steps until prompts that wait are taken; 0: now, as when nobody decodes."""
        if self.filling or not self.decoding:
            return 0
        how, state = self.engine.admission, self.state
        look = int(-self.looked % how.every)
        if not self.waiting or not how.gather:
            return look
        tokens = sum(state.known[one] - state.held[one] for one in self.waiting)
        enough = tokens + len(self.decoding) >= how.tokens
        return 0 if enough else max(look, int(how.gather) - self.gathered, 0)

    def _own_blocks(self, each: float, more: float = 0.0) -> float:
        """Blocks of sequences beside those that are counted as the cache's, `more` tokens later,
        where the last block of each counts as `each` above its tokens.
        """
        tokens = self.keys + self.others + len(self.decoding) * self.gone
        count = self.load - len(self.waiting)
        tokens += count * (more + self.engine.drafted)
        return tokens / self.engine.block + each * count - self.shared

    def _fits(self, blocks: float = 0.0, more: float = 0.0) -> bool:
        """Whether there is room for so many blocks further, and tokens of each sequence."""
        room = self.blocks - blocks - (self.cache.gpu.pinned_blocks if self.cache else 0)
        if self.most - self.shared <= room or self._own_blocks(1.0, more) <= room:
            return True
        known, block = self.state.known, self.engine.block
        more += self.engine.drafted
        own = sum(math.ceil((known[one] + self.gone + more) / block) for one in self.decoding)
        for one in (*self.filling, *self.reading):
            own += math.ceil((known[one] + more) / block)
        return own - self.shared <= room

    def _most_blocks(self, request: int) -> int:
        """Blocks of a sequence when it ends."""
        return -(-(self.total(request) + self.engine.drafted) // self.engine.block)

    def _evict(self) -> None:
        """Blocks of the cache make room for those of sequences, whose last is half full."""
        if self.cache and self.blocks < math.inf:
            gpu, half = self.cache.gpu, (1 - 1 / self.engine.block) / 2
            if gpu.used > (room := self.blocks - gpu.pinned_blocks - self._own_blocks(half)):
                gpu.shrink(max(room, 0.0))

    def _make_room(self) -> bool:
        """Preempt the youngest until the others' tokens fit; whether any was."""
        before = self.preemptions
        while not self._fits() and (self.filling or self.decoding):
            if self.filling:
                youngest = self.filling.pop()
                self.others -= self.state.known[youngest]
            else:
                youngest = next(reversed(self.decoding))
                self._decodes_no_more(youngest)
            self._release(youngest, 0)
            self.waiting.appendleft(youngest)
            self.state.held[youngest] = 0.0
            self.preemptions += 1
        return self.preemptions > before

    def _admit(self, budget: float) -> list[tuple[int, float]]:
        """Let those that wait begin, in order; those that read first, and when they are ready."""
        state, cache = self.state, self.cache
        reads: list[tuple[int, float]] = []
        room = self.engine.slots - self.load + len(self.waiting)
        while self.waiting and budget > 0 and room > 0:
            request = self.waiting[0]
            known, found, pinned = state.known[request], [0], 0
            if cache:
                chain, most = state.chain(request)
                found, pinned = cache.found(chain, most)
            blocks = math.ceil((known + self.engine.drafted) / self.engine.block)
            if not self._fits(blocks - pinned):
                break
            self.waiting.popleft()
            self.others += known
            self.most += self._most_blocks(request)
            room -= 1
            ready_s = self.clock_s
            if cache:
                cache.gpu.pin(chain)
                self.shared += found[0]
                state.shared[request] = found[0]
                if (held := sum(found)) > found[0]:
                    ready_s = cache.read_s(found, self.clock_s)
                state.held[request] = held * self.engine.block
            if math.isnan(state.scheduled_s[request]):
                state.scheduled_s[request], state.replica[request] = self.clock_s, self.place
                if cache:
                    for tier, count in zip(state.cached, found, strict=True):
                        tier[request] = count * self.engine.block
            if ready_s > self.clock_s:
                self.reading.append(request)
                reads.append((request, ready_s))
            else:
                budget -= known - state.held[request]
                self.join(request)
            self._evict()
        return reads

    def _release(self, request: int, count: int) -> None:
        """A sequence gives up its blocks; the first `count` stay in the cache."""
        self.most -= self._most_blocks(request)
        if self.cache:
            chain, _ = self.state.chain(request)
            stream = chain[-1][0]
            self.state.computed[stream] = max(self.state.computed[stream], count)
            self.cache.leave(chain, count)
            self.shared -= self.state.shared[request]

    def _unchanged(self) -> int:
        """Steps until a sequence ends or the cache is full."""
        while self.decoding.get(self.ends[0][1]) != self.ends[0][0]:
            heapq.heappop(self.ends)
        steps = max(1, self.ends[0][0] - self.rounds)
        if self._fits(0.0, self.gain * (steps - 1)):
            return steps
        low, high = 1, steps  # steps of which the last fits, and of which it does not
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._fits(0.0, self.gain * (middle - 1))
            low, high = (middle, high) if fits else (low, middle)
        return low
