"""An engine under load: what requests see while clients each send the next when the last has ended.
One law for rows of measurements, deployments and engines apart: a recursion over columns, fast and
differentiable.

A request decodes in n steps behind its first token, each with what the others brought meanwhile:

    s = E_j T(sequences, keys, j prompts)      TPOT = s / tokens a step

Of P = min(clients, slots, what the cache holds) present each of the others sends a prompt every
n + w steps, w those of a prompt and its wait. A request comes when a step ends and is computed in
the next one. What a sequence sees while it decodes is the engine without it, which holds P - 1
(Reiser and Lavenberg, JACM 1980). Prompts that fit in a step come by a binomial law; where they
fill steps (S each) they queue, as sources that each send one in a period (`queues.sources_wait`).
Where they need more steps than there are, P S > n + S, the rest waits throughout. Where clients
wait for a slot, Little's law gives what is left: TTFT = clients / rate - n s.

With an opening burst all clients begin at once. The share `burst` of requests, one of those a
client sends, waits for half of all prompts, and as many at the end see the engine become empty.
The requests that follow the first meet more of each other's prompts than at random (`crowded`).

Engines apart: prompts queue for those that compute them (several: Sakasegawa, Ann. Inst. Stat.
Math. 1977), their keys go over a link, and nothing interferes with decoding.

Frameworks add what `model/serving_effects.py` has: to steps (`StepTimes.as_run`), and here
to first tokens. Without these the law is judged by the simulation (`batching.serve`): within 2 %
but where the test that holds it says. It leaves out preemption, and prompts of unlike lengths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridperf.engine.queues import falling_root, sources_wait, wait_left
from hybridperf.io.namespace import (
    Array,
    array_module,
    ceil,
    floats,
    floor,
    fresh_views,
    repeated,
)
from hybridperf.serving.engine import Engine

_TERMS = 6  # numbers of prompts that are told apart; the rest counts by its mean
# answers from 0.8 to 1.2 of their mean, as benchmarks of servers draw them: standard deviation
SPREAD = 0.2 / 3.0**0.5
_FEWER = 1.0 / 6.0  # of sequences, that the last request of a client does not see
_UNSEEN = 0.5  # of others' prompts, those that end after it does
_UNQUEUED = 0.8  # rounds of all slots, of a run, in which no queue of clients has to be served
_FEW = 1e-3  # steps behind an answer of one token; instead of none
_SETTLED = 4  # rounds from the sequences that decode to the room they leave
_HARMONICS = 4  # of how clients lie in a period; more are below 1e-3
_FEW_PROMPTS = 12  # of an opening burst, whose steps are told one by one
_ROUNDS = 14  # of the number that decode
_NODES, _WEIGHTS = (0.5 * (1.0 + one) for one in np.polynomial.legendre.leggauss(4))


class FirstTokens(NamedTuple):
    """What a framework adds to first tokens."""

    prefill: Array = 1.0  # times what prompts take
    waited_steps: Array = 0.0
    first_token_s: Array = 0.0
    burst: Array = 0.0  # share of requests that all clients send at once when they begin


def stages_in_turn(stages: Array, prompt: Array, piece: Array) -> Array:
    """Shares of a pipeline's step that a prompt takes: it is in one stage after the other, and
    others fill the rest, or the pieces of its own, of so many tokens, that follow.
    """
    pieces = 1.0 + floor((1.0 - 1e-9) * prompt / piece)  # of 512 tokens one, of 513 two
    return 1.0 + (stages - 1.0) / pieces


class Apart(NamedTuple):
    """Engines that compute prompts for others."""

    engine: Engine
    ranks: Array  # of theirs
    decoding: Array  # of engines that decode: they share the clients
    sent_s: Array = 0.0  # of a prompt's keys


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Load:
    """What requests see in the mean; any shape."""

    ttft_s: Array
    tpot_s: Array
    rate: Array  # requests a second of a rank
    sequences: Array  # that decode
    waiting_s: Array  # of ttft_s, for a slot
    prompts: Array  # share of the steps' budget that prompts take


def under_load(
    engine: Engine, clients: Array, prompt: Array, output: Array, cached: Array = 0.0,
    added: FirstTokens | None = None, apart: Apart | None = None,
) -> Load:  # fmt: skip
    """Of one attention rank.

    Args:
        engine: all its settings may be arrays; with `apart` it only decodes.
        clients: of the rank, 1 or more; any shape, as all that follow.
        prompt: tokens in the mean.
        output: tokens in the mean.
        cached: tokens of the prompt in the prefix cache.
        added: to first tokens, and whether all clients begin at once.
        apart: engines that compute the prompts.
    """
    case, added = _Case(engine, prompt, output, cached), added or FirstTokens()
    if apart is None:
        return _aggregated(case, floats(clients), added)
    first = _Case(apart.engine, prompt, output, cached)
    return _split(case, first, floats(clients), added, apart)


class _Cycle(NamedTuple):
    """Of a request beside others, seconds of a rank."""

    step_s: Array
    none_s: Array  # of a step without prompts
    own_s: Array  # of its prompt, with its wait
    held_s: Array  # for which it is held back
    load: Array

    def seconds(self, case: _Case) -> Array:
        return case.steps * self.step_s + self.own_s + self.held_s


class _Asked(NamedTuple):
    """Steps whose seconds are asked for together, and what they tell."""

    decoding: Array  # sequences [..., steps or 1]
    chunks: Array  # tokens of prompts [..., steps]
    told: Callable[[Array], Any]  # by seconds [..., steps]
    awaited: bool = False  # for the tokens of their prompts


def _cycle(
    case: _Case, others: Array, here: Array, burst: Array, *more: _Asked
) -> list[Any]:  # fmt: skip
    """With so many others there, each of which is for a share `here` of its time; and what more was
    asked.
    """
    module, steps, admission = case.module(others, here), case.steps, case.engine.admission
    # what a sequence that decodes sees: the others, as if it were not there; and what a prompt does
    rivals = (module.maximum(others - here, 0.0), others + 0.0 * here)
    both = case.queue(others, module.stack(module.broadcast_arrays(*rivals)), here)
    seen, own = (_Queue(*(part[at] for part in both)) for at in range(2))
    period = admission.period(seen.arrivals, case.new, seen.decoding)
    window, apart = admission.window(own.arrivals, case.new, own.decoding), 1.0
    if array_module(burst) is not np or burst.any():
        crowded = case.crowded(others, own, burst)
        share = module.minimum(window / (steps + own.lasts), 0.99)
        window, own = window * crowded, own._replace(queued=own.queued * crowded)
        # what comes together with a request's prompt does not come while it decodes
        apart = module.clip(1.0 - crowded * share, 0.0, 1.0) / (1.0 - share)
        seen = seen._replace(arrivals=seen.arrivals * apart)
    shares = module.stack([apart * period / (steps + seen.lasts), window / (steps + own.lasts)])
    of_seen, of_own = zip(*case.counted(others / here, here * shares), strict=True)
    alike = others + 1.0 - seen.arrivals * seen.held
    taken = seen.arrivals * (seen.lasts - seen.held)  # others' prompts that are in a step
    (with_s, none_s), (own_s, alone_s), *rest = case.answered(
        case.step(alike, taken, of_seen, seen._replace(arrivals=seen.arrivals * period)),
        case.prompt_of(of_own, own), *more,
    )  # fmt: skip
    step_s = none_s + (with_s - none_s) / period
    return [_Cycle(step_s, none_s, own_s, own.held * alone_s, own.load), *rest]


def _aggregated(case: _Case, clients: Array, added: FirstTokens) -> Load:
    module, steps = case.module(clients, *added), case.steps
    nobody = 0.0 * clients
    full, last = case.alone(nobody)
    decode_s, full_s, last_s = case.each_s(
        (module.minimum(clients, case.most), 0.0), (nobody, case.room(nobody)), (nobody, last)
    )
    alone_s = full * full_s + last_s * (last > 0)
    added_s = added.waited_steps * decode_s + added.first_token_s + (added.prefill - 1.0) * alone_s
    # clients whose first token is on its way are not with the engine
    here = 1.0 / (1.0 + added_s / (steps * decode_s + alone_s))
    others = module.minimum((clients - 1.0) * here, case.most - 1.0)
    present, burst = others + 1.0, floats(added.burst)
    at_once = array_module(burst) is not np or bool(burst.any())
    more = [case.burst(present, alone_s)] * at_once
    found, *bursts = _cycle(case, others, here, burst, *more)
    step_s, first_s = found.step_s, found.own_s
    without = module.maximum(clients * here / present - 1.0, 0.0)  # a slot, of those with one
    # of a run's requests the first and the last find less of a queue
    waiting_s = without * found.seconds(case)
    waiting_s = waiting_s * (1.0 - burst * (_UNQUEUED + 0.5 * without) / (1.0 + without))
    for fewer_s, unseen, burst_s in bursts:
        # of a run with more clients than slots fewer have a slot at once, and at the end
        unseen = unseen / (1.0 + without)
        step_s = step_s - burst * (unseen * (step_s - found.none_s) + found.none_s - fewer_s)
        first_s = first_s + burst * (burst_s - first_s)
    ttft_s = added.prefill * first_s + (1.0 - burst) * found.held_s + waiting_s
    ttft_s = ttft_s + added.waited_steps * step_s + added.first_token_s
    return _load(case, clients, ttft_s, step_s, waiting_s, found.load)


def _split(case: _Case, first: _Case, clients: Array, added: FirstTokens, apart: Apart) -> Load:
    """Engines apart; clients of a rank that decodes."""
    module = case.module(clients, *added, apart.ranks)
    each = floats(apart.decoding) / apart.ranks
    others = module.maximum(clients * each - 1.0, 0.0)  # of a rank that computes prompts
    power = (2.0 * (apart.ranks + 1.0)) ** 0.5 - 2.0
    full, last = first.alone(0.0 * clients)
    full_s, last_s = first.each_s((0.0 * clients, first.room(0.0)), (0.0 * clients, last))
    alone_s = full * full_s + last_s * (last > 0)
    shared_s = first.shared_s()  # that a prompt adds among others

    def seconds(decoding: Array, waiting_s: Array) -> tuple[Array, Array, Array, Array]:
        """Of a step, of a prompt with its queue, of what comes behind it, of the wait for a slot,
        where so many decode.
        """
        step_s = case.seconds(decoding, 0.0)
        decode_s = case.steps * step_s
        added_s = apart.sent_s + added.first_token_s + added.waited_steps * step_s
        rest = (decode_s + added_s + waiting_s) / shared_s
        beyond = module.maximum(others - rest, 0.0)

        def over(wait: Array) -> Array:
            most, period = others - beyond, rest + 1.0 + wait
            several = module.clip(most / period, 1e-9, 1.0) ** power / apart.ranks
            return several * sources_wait(most, period, SPREAD * decode_s / shared_s) - wait

        wait = falling_root(over, 0.0 * rest)
        prompt_s = added.prefill * (alone_s + shared_s * wait * wait_left(beyond, wait))
        prompt_s = prompt_s + shared_s * beyond
        slots_s = (clients / case.most - 1.0) * decode_s - prompt_s - added_s
        return step_s, prompt_s, added_s, module.maximum(slots_s, 0.0)

    def settle(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        _, last, decoding, waiting_s = state
        step_s, prompt_s, added_s, waiting_s = seconds(decoding, waiting_s)
        away_s = prompt_s + added_s + waiting_s
        free = clients / (1.0 + away_s / (case.steps * step_s))
        return last, decoding, module.clip(free, 1.0, case.most), waiting_s

    nobody = 0.0 * sum(seconds(module.minimum(clients, case.most), 0.0 * clients))  # by its shape
    start = nobody + module.minimum(clients, case.most)
    before, last, decoding, waiting_s = repeated(settle, (start, start, start, nobody), _ROUNDS)
    # the rest of what shrinks by a share each round (Aitken)
    shrinks = (decoding - last) / module.where(last == before, 1.0, last - before)
    shrinks = module.clip(shrinks, 0.0, 0.95)
    decoding = module.clip(last + (decoding - last) / (1.0 - shrinks), 1.0, case.most)
    step_s, prompt_s, added_s, waiting_s = seconds(decoding, waiting_s)
    burst_s = added.prefill * (alone_s + others / 2.0 * shared_s)
    prompt_s = prompt_s + floats(added.burst) * module.maximum(burst_s - prompt_s, 0.0)
    ttft_s = prompt_s + added_s + waiting_s
    load = shared_s * each * clients / (ttft_s + case.steps * step_s)
    return _load(case, clients, ttft_s, step_s, waiting_s, load)


def _load(
    case: _Case, clients: Array, ttft_s: Array, step_s: Array, waiting_s: Array, load: Array
) -> Load:
    """By Little's law."""
    rate = clients / (ttft_s + case.steps * step_s)
    return Load(ttft_s, step_s / case.gain, rate, rate * case.steps * step_s, waiting_s, load)


class _Queue(NamedTuple):
    """What prompts meet, in steps."""

    lasts: Array  # from their arrival to their end
    queued: Array  # of these, behind other prompts
    held: Array  # of these, held back
    arrivals: Array  # of others' prompts in a step
    decoding: Array  # of the others
    size: Array  # that one fills

    @property
    def load(self) -> Array:
        return self.arrivals * self.size


class _Case:
    """An engine and the requests it gets."""

    def __init__(self, engine: Engine, prompt: Array, output: Array, cached: Array) -> None:
        self.engine = engine = fresh_views(engine)
        self.prompt, self.output, self.cached = map(floats, (prompt, output, cached))
        self.new = self.prompt - self.cached
        # that a token of an answer sees in the mean, and one of a prompt
        self.keys, self.chunk_keys = self.prompt + 0.5 * self.output, self.cached + 0.5 * self.new
        self.gain = gain = engine.tokens_a_step
        module = self.module()
        # drafts that stand overshoot the last token by half of them
        steps = (self.output - 1.0) / gain + (gain - 1.0) / (2.0 * gain)
        self.steps = module.maximum(steps, _FEW)
        self.holds = engine.kv_tokens / (self.prompt + 0.5 * (self.output + engine.block))
        self.most = module.minimum(engine.slots, module.maximum(self.holds, 1.0))

    def module(self, *more: Array) -> Array:
        return array_module(
            self.prompt, self.output, self.cached, *more, *jax.tree.leaves(self.engine)
        )

    def queue(self, others: Array, rivals: Array, here: Array) -> _Queue:
        """Prompts of `others`, each of which meets those of `rivals` [K, ...]; of all that send
        them so many are there as is said by the share `here`.
        """
        module, admission = self.module(others), self.engine.admission
        least = module.maximum(self.size(others), 1.0)

        def met(wait: Array) -> tuple[_Queue, Array, Array, Array]:
            decoding = rivals * self.steps / (self.steps + least + wait * least)

            def settle(state: tuple[Array, ...]) -> tuple[Array, ...]:
                size = self.size(state[0])
                service = module.maximum(size, 1.0)
                # those beyond what its steps can take wait throughout
                beyond = module.maximum(rivals + 1.0 - (self.steps + service) / size, 0.0)
                beyond = module.minimum(beyond, rivals)
                queued = size * (beyond + wait * wait_left(beyond, wait))
                arrivals = rivals / (self.steps + service + queued)
                return arrivals * self.steps, size, service, beyond, queued

            _, size, service, beyond, queued = repeated(settle, (decoding,) * 5, _SETTLED)
            lasts, held = service + queued, 0.0 * queued
            if not admission.at_once:
                nobody = (1.0 - here * self.steps / (self.steps + lasts)) ** (rivals / here)
                arrivals = rivals / (self.steps + lasts)
                wait_steps = admission.wait(arrivals, self.new, arrivals * self.steps)
                held = (1.0 - nobody) * wait_steps
            lasts = lasts + held
            arrivals = others / (self.steps + lasts)
            decoding = arrivals * self.steps
            found = _Queue(lasts, queued, held, arrivals, decoding, size)
            return found, rivals - beyond, (self.steps + service + held) / size + wait, size

        def over(wait: Array) -> Array:
            """By the services that a prompt waits: those it would wait, less these."""
            _, most, period, size = met(wait)
            # of several that fit in a step, what batches of them leave behind (Lindley's recursion
            # with whole steps idle)
            load = most / period
            short = module.clip(size - 1.0 + load, 0.0, 1.0) / size
            some = module.where(size > 1.0, 1.0, short)
            spread = (SPREAD + 1.0 / here - 1.0) * self.steps / size
            return some * sources_wait(most / here, period / here, spread) - wait

        return met(falling_root(over, 0.0 * rivals))[0]

    def crowded(self, others: Array, own: _Queue, burst: Array) -> Array:
        """How many times as often as at random a prompt meets those of others in the requests of a
        run that follow its opening burst; 1 without one.

        Clients that began together come together again but for what spreads them: the B steps that
        the burst's prompts fill, and their answers, whole numbers of tokens of a variance s^2.
        After j answers two of them meet in a period of T steps, by Fourier's series of how far
        apart they are there (a normal number of variance 2 j s^2, two uniform ones of B),

            1 + 2 sum over k of exp(-(2 pi k s / T)^2 j) sinc(k B / T)^2    times as often

        of which this is the mean over the j of the 1 / burst - 1 requests that follow.
        """
        module = self.module(others, burst)
        period, burst = self.steps + own.lasts, module.clip(burst, 0.0, 0.5)
        follow = 1.0 / module.maximum(burst, 1e-6) - 1.0
        lasts = module.clip(((others + 1.0) * own.size - 1.0) / period, 0.0, 1.0)
        whole = 2.0 * 3.0**0.5 * SPREAD * self.output / self.gain + 1.0  # numbers, all as likely
        more: Array = 0.0
        for k in range(1, _HARMONICS + 1):
            still = module.exp(-((2.0 * np.pi * k / period) ** 2) * (whole**2 - 1.0) / 12.0)
            still = module.minimum(still, 1.0 - 1e-6)
            mean = still * (1.0 - still**follow) / (1.0 - still) / follow
            more = more + 2.0 * mean * module.sinc(k * lasts) ** 2
        return 1.0 + module.where(burst > 0.0, more, 0.0)

    def room(self, decoding: Array) -> Array:
        """Tokens of a step's budget that are left for prompts."""
        taken = decoding * (1.0 + self.engine.drafted)
        return self.module(taken).maximum(self.engine.budget - taken, 1.0)

    def size(self, decoding: Array) -> Array:
        """Steps that a prompt fills."""
        return self.new / self.room(decoding)

    def seconds(self, decoding: Array, chunk: Array) -> Array:
        return self.engine.times.seconds(decoding, self.keys, chunk, self.chunk_keys)

    def each_s(self, *steps: tuple[Array, Array]) -> list[Array]:
        """Seconds of steps with so many sequences and tokens of prompts; 0 where both are none."""
        sequences, chunks = zip(*steps, strict=True)
        found = self.many_s(self.stacked(*sequences), self.stacked(*chunks))
        return [found[..., at] for at in range(len(steps))]

    def many_s(self, decoding: Array, chunks: Array, awaited: Array = False) -> Array:
        """Seconds of steps that differ in their sequences and chunks [..., chunks]."""
        keys, chunk_keys = (floats(one)[..., None] for one in (self.keys, self.chunk_keys))
        return self.engine.times.seconds(decoding, keys, chunks, chunk_keys, awaited)

    def answered(self, *asked: _Asked) -> list[Any]:
        """What each tells, by the seconds of all their steps."""
        module = self.module(*(part for one in asked for part in one[:2]))
        awaited = np.concatenate([np.full(one.chunks.shape[-1], one.awaited) for one in asked])
        shape = np.broadcast_shapes(*(part.shape[:-1] for one in asked for part in one[:2]))
        counts = [one.chunks.shape[-1] for one in asked]

        def together(place: int) -> Array:
            parts = zip((one[place] for one in asked), counts, strict=True)
            return module.concatenate(
                [module.broadcast_to(part, (*shape, count)) for part, count in parts], -1
            )

        found, at, told = self.many_s(together(0), together(1), awaited), 0, []
        for one, count in zip(asked, counts, strict=True):
            told.append(one.told(found[..., at : at + count]))
            at += count
        return told

    def stacked(self, *some: Array) -> Array:
        """Arrays along a last axis of their own."""
        module = self.module(*some)
        return module.stack(module.broadcast_arrays(*map(floats, some)), -1)

    def counted(self, trials: Array, share: Array) -> tuple[Array, Array]:
        """Chances and numbers [..., terms + 1] of successes in `trials`, which may be fractional;
        the last stands for all larger numbers by their mean.
        """
        module = self.module(trials, share)
        share = module.clip(share, 0.0, 0.999)
        odds, told = share / (1.0 - share), [(1.0 - share) ** trials]
        for count in range(1, _TERMS):
            left = module.maximum(trials - (count - 1), 0.0)
            told.append(told[-1] * left / count * odds)
        chance, counts = module.stack(told, -1), np.arange(float(_TERMS))
        mean = trials * share
        rest = module.maximum(1.0 - chance.sum(-1), 1e-9)
        beyond = module.maximum((mean - (chance * counts).sum(-1)) / rest, float(_TERMS))
        numbers = [module.broadcast_to(counts, chance.shape), beyond[..., None]]
        chances = module.concatenate([chance, rest[..., None]], -1)
        return chances, module.concatenate(numbers, -1)

    def alone(self, decoding: Array) -> tuple[Array, Array]:
        """Full chunks of a prompt that nobody shares them with, and the tokens of its last one."""
        room = self.room(decoding)
        whole = floor(self.new / room)
        return whole, self.new - whole * room

    def step(
        self, present: Array, taken: Array, counts: tuple[Array, Array], seen: _Queue
    ) -> _Asked:
        """Mean seconds of a step with `present` sequences less `taken`, whose prompts come by
        `counts` (those that are computed do not decode); and of one without prompts.
        """
        module, room, size = (
            self.module(present),
            self.room(seen.decoding),
            self.size(seen.decoding),
        )
        chance, count = counts
        mean = module.maximum((chance * count).sum(-1), 1e-9)
        chunks = module.minimum(count * self.new[..., None], room[..., None])
        decoding = present[..., None] - count * (taken / mean)[..., None]
        whole, last = self.alone(seen.decoding)
        load = module.clip(seen.load, 1e-9, 1.0)
        busy = module.maximum(present - taken / module.maximum(load, taken / present), 1.0)

        def told(each_s: Array) -> tuple[Array, Array]:
            none_s, full_s, last_s = (each_s[..., at] for at in (-3, -2, -1))
            each_s = each_s[..., :-3]
            left = module.maximum(seen.arrivals * self.new - (chance * chunks).sum(-1), 0.0) / room
            short_s = (chance * each_s).sum(-1) + left * (full_s - none_s)
            # the last chunk of a prompt is a step's own where no other follows
            long_s = whole * (full_s - none_s) + (last > 0) * (last_s - none_s)
            long_s = (1.0 - load) * long_s + load * size * (full_s - none_s)
            return module.where(size > 1.0, none_s + seen.arrivals * long_s, short_s), none_s

        more = self.stacked(present, busy, busy)
        return _Asked(
            module.concatenate([module.maximum(decoding, 1.0), more], -1),
            module.concatenate([chunks, self.stacked(0.0 * room, room, last)], -1), told,
        )  # fmt: skip

    def prompt_of(self, counts: tuple[Array, Array], own: _Queue) -> _Asked:
        """Seconds of the steps that compute a prompt behind others, more coming with it by
        `counts`; and of one without prompts.
        """
        decoding, load = own.decoding, own.load
        module, room = self.module(decoding), self.room(decoding)
        chance, count = counts
        size = self.size(decoding)[..., None]
        whole = module.maximum(ceil((1.0 + count) * size) - 1.0, 0.0)  # full steps of all
        tokens = ((1.0 + count) * size - whole) * room[..., None]
        # of those that come together the n-th is done with the step of its last token
        numbers = np.arange(1.0, _TERMS + 1.0)
        later = (ceil(numbers * size) - 1.0) @ (np.triu(np.ones((_TERMS, _TERMS))) / numbers)
        more = module.maximum((count[..., -1:] + 1.0) * size / 2.0 - 0.5, 0.0)
        later = module.concatenate([later, more], -1)
        last = (1.0 + count - floor(whole / size)) / (1.0 + count) * (whole > 0)
        own_whole, own_last = self.alone(decoding)

        def told(some_s: Array) -> tuple[Array, Array]:
            none_s, full_s, last_s = (some_s[..., at] for at in (-3, -2, -1))
            some_s, wide_s = some_s[..., :-3], full_s[..., None]
            short_s = module.where(whole > 0, (1.0 + later - last) * wide_s + last * some_s, some_s)
            last_s = last_s * (own_last > 0)
            # by one that fills the last
            followed = 1.0 - module.exp(-own.arrivals * (own_whole + 0.5))
            alone_s = own_whole * full_s + last_s + followed * (full_s - last_s)
            busy_s = (size[..., 0] + 0.5) * full_s  # begun and ended inside steps
            long_s = alone_s + module.clip(load, 0.0, 1.0) * (busy_s - alone_s)
            own_s = module.where(size[..., 0] > 1.0, long_s, (chance * short_s).sum(-1))
            return own_s + own.queued * full_s, none_s

        chunks = [module.maximum(tokens, 1.0), self.stacked(0.0 * room, room, own_last)]
        return _Asked(decoding[..., None], module.concatenate(chunks, -1), told, awaited=True)

    def shared_s(self) -> Array:
        """That a prompt adds among others on an engine of its own: its share of full chunks."""
        module = self.module()
        most = module.maximum(self.new, self.engine.budget)
        chunks = ceil(most / self.engine.budget)
        return chunks * self.seconds(0.0 * most, most / chunks) * self.new / most

    def burst(self, present: Array, alone_s: Array) -> _Asked:
        """Mean seconds of a step that the last of a run see, with fewer sequences; others' prompts
        that the first and the last do not see, of those a request sees between; seconds to the
        first tokens of all that are sent at once, one after the other; `alone_s`: of one prompt.

        The first of two clients to end sends a prompt that the other sees. Both see the other's of
        the burst half as often, and not where one step computes both.
        """
        module, nobody = self.module(present), 0.0 * present
        fewer = module.maximum((1.0 - _FEWER) * present, 1.0)
        all_once = module.minimum(present * self.new, self.engine.budget)
        nodes = [at * present for at in (*_NODES, 0.5)]
        size, room = self.size(present / 2.0), self.room(present)
        filled = present * size
        whole = floor(filled)
        part = filled - whole
        unseen = _UNSEEN + _UNSEEN / module.maximum(filled, 1.0)

        def told(each_s: Array) -> tuple[Array, Array, Array]:
            fewer_s, all_s, last_s, part_s, *full_s, half_s = (
                each_s[..., at] for at in range(each_s.shape[-1])
            )
            total_s = 0.0
            for at, weight, node, one_s in zip(_NODES, _WEIGHTS - 0.5, nodes, full_s, strict=False):
                total_s = total_s + weight * (1.0 - at) * self.size(node) * one_s
            # the end of a step is the end of all that end in it: one by one of few, in the mean of
            # many
            early = sum(
                module.clip(present - (at - 1.0), 0.0, 1.0) * (ceil(at * size) - at * size)
                for at in range(1, _FEW_PROMPTS + 1)
            )
            many = present * (0.5 * whole + part - 0.5 * part**2) / filled
            early = module.where(present <= _FEW_PROMPTS, early, many) / present
            # the last step, which is not full, is shorter for those that end in it
            ending = module.clip(1.0 - floor(whole / size) / present, 1.0 / present, 1.0)
            shorter_s = module.where(part > 0, (last_s - part_s) * ending, 0.0)
            many_s = present * total_s + (0.5 * size + early) * half_s - shorter_s
            found_s = module.where(present * self.new <= self.engine.budget, all_s, many_s)
            return fewer_s, unseen, module.where(present <= 1.0, alone_s, found_s)

        sequences = (fewer, nobody, present, present, *nodes)
        chunks = (0.0, all_once, room, module.maximum(part * room, 1.0), *map(self.room, nodes))
        return _Asked(self.stacked(*sequences), self.stacked(*chunks), told)
