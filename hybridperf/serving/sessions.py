"""Sessions: tasks of several turns, each sent with all that was said before, as agents do.

    context of a turn = shared tokens + what all turns before sent and were answered + new tokens

A turn comes `pause_s` (tools, reading, thinking) behind the answer to the one before. Agents that a
turn starts run at the same time, each a session of its own; the next turn waits for all of them,
and their results are among its new tokens. Sessions come from a file, a JSON object a line, or from
a few distributions; both are the requests of `batching.py`, whose tokens say what can be cached.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd

from hybridperf.io import InputError, read_json_lines
from hybridperf.serving.requests import Requests, Served, Streams

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Pause = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a line of a file may say and nothing else."""


class Turn(_Line):
    """A request of a session, its agents after it."""

    new_tokens: _Tokens  # of the prompt, beyond the context
    output_tokens: _Tokens
    pause_s: _Pause = 0.0  # behind the answer before, or the session's arrival
    agents: list[Agent] = []  # that run until the next turn


class Agent(_Line):
    """A session within a session."""

    turns: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    # whose context it begins with: its turn's (inherits), or shared tokens and nothing else
    inherits: bool = False
    shared: str = ""  # name of the first tokens, for which sessions of that name need one cache
    shared_tokens: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0


class Session(Agent):
    """A task."""

    arrival_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)] = 0.0
    session_id: str | int = ""  # not read


@dataclasses.dataclass(frozen=True)
class Sessions:
    """Requests [N] of S sessions."""

    requests: Requests
    session: np.ndarray  # [N] which session a request is of
    turn: np.ndarray  # [N] from 0, in its session; -1: of an agent within
    new: np.ndarray  # [N] tokens of the prompt beyond its context
    arrival_s: np.ndarray  # [S]; NaN where another session has to end first


def read_sessions(path: str | os.PathLike) -> list[Session]:
    """Sessions of a file, a JSON object in each line: the fields of `Session`.

    Raises:
        InputError: no file, no session, a field that is unknown, missing or out of its range.
    """

    mend = "give arrival_s and turns of new_tokens, output_tokens, pause_s, agents"
    return read_json_lines(path, "file of sessions", Session, mend)


WORDS = (
    "turns", "new_tokens", "output_tokens", "pause_s", "rate", "clients", "count", "fan_out",
    "agent_turns", "shared_tokens", "seed",
)  # fmt: skip
_WHOLE = ("count", "clients", "shared_tokens", "seed")
_MOST = 2e7  # requests, whose columns fill a few gigabytes
_USUAL = {"count": 1000.0, "pause_s": 0.0, "fan_out": 0.0, "shared_tokens": 0.0, "seed": 0.0}


def drawn_sessions(words: Mapping[str, str]) -> tuple[list[Session], int]:
    """Sessions of distributions, and how many run at a time (0: as they come).

    Args:
        words: by a name of `WORDS` a number, `LOW..HIGH` (uniform) or `MEAN~SPREAD` (log-normal,
            of which SPREAD is the deviation of logs). Of turns, tokens and agents (`fan_out` of
            each turn) whole numbers are drawn about it. `rate` is of sessions a second that come
            independently of each other, `clients` of sessions at a time.

    Raises:
        InputError: a word that is unknown, missing or out of its range.
    """
    least = {"pause_s": 0.0, "fan_out": 0.0, "shared_tokens": 0.0, "seed": 0.0, "rate": 1e-9}
    for name, text in words.items():
        if name not in WORDS:
            raise InputError(f"expected sessions of {', '.join(WORDS)}, got {name!r}; drop it")
        ends = _ends(text)
        one = ends[0] == ends[1] and "~" not in text
        if (name in _WHOLE and not (one and ends[0].is_integer())) or (name == "rate" and not one):
            kind = "number" if name == "rate" else "whole number"
            raise InputError(f"expected a {kind} as {name}, got {text!r}; mend it")
        if not least.get(name, 1.0) <= ends[0] <= ends[1] <= 1e9:
            raise InputError(
                f"expected {name} of {least.get(name, 1.0):g} or more (a number, LOW..HIGH or"
                f" MEAN~SPREAD), got {text!r}; mend it"
            )
    told = {name: str(number) for name, number in _USUAL.items()} | dict(words)
    if missing := {"turns", "new_tokens", "output_tokens"} - {*told}:
        raise InputError(f"expected sessions with {', '.join(sorted(missing))}, got none; add it")
    if ("rate" in told) == ("clients" in told):
        raise InputError("expected rate or clients of sessions, one of them, got both or none")
    count, clients, shared, seed = (int(float(told.get(name, "0"))) for name in _WHOLE)
    of_agent = told.get("agent_turns", told["turns"])
    turns, agents_each, more = (
        sum(_ends(one)) / 2 for one in (told["turns"], told["fan_out"], of_agent)
    )
    if (requests := count * turns * (1.0 + agents_each * more)) > _MOST:
        raise InputError(
            f"expected sessions of up to {_MOST:g} requests in all, got about {requests:g}; give a"
            " smaller count"
        )
    if clients > count:
        raise InputError(
            f"expected up to {count} clients, a session each, got {clients}; give more count"
        )
    rng = np.random.default_rng(seed)
    arrival_s: np.ndarray = np.zeros(count)
    if "rate" in told:
        arrival_s = np.cumsum(rng.exponential(1.0 / float(told["rate"]), count))

    def turns_of(owners: int, text: str) -> list[list[Turn]]:
        """Turns of so many sessions or agents."""
        counts = _draw(rng, text, owners, 1)
        sizes = (_draw(rng, told[one], counts.sum(), 1) for one in ("new_tokens", "output_tokens"))
        pauses = _draw(rng, told["pause_s"], counts.sum())
        made = map(Turn, *(one.tolist() for one in (*sizes, pauses)))
        return [[*itertools.islice(made, number)] for number in counts.tolist()]

    sessions = turns_of(count, told["turns"])
    fan_out = _draw(rng, told["fan_out"], sum(map(len, sessions)), 0)
    agents = iter(turns_of(int(fan_out.sum()), of_agent))
    for turn, number in zip(itertools.chain(*sessions), fan_out.tolist(), strict=True):
        if number:
            some = itertools.islice(agents, number)
            turn.agents = [Agent(own, False, "agents", shared) for own in some]
    found = [
        Session(own, False, "sessions", shared, when)
        for own, when in zip(sessions, arrival_s.tolist(), strict=True)
    ]
    return found, clients


def _ends(text: str) -> tuple[float, float]:
    """The least and the largest, or the mean twice; NaN for text that is no distribution."""
    mean, spreads, spread = text.partition("~")
    low, _, high = mean.partition("..")
    try:
        if spreads and not 0 <= float(spread) <= 5:
            return np.nan, np.nan
        return float(low), float(high or low)
    except ValueError:
        return np.nan, np.nan


def _draw(rng: np.random.Generator, text: str, count: int, least: int | None = None) -> np.ndarray:
    """Numbers of a distribution; with `least` whole ones, up or down by chance."""
    low, high = _ends(text)
    found = rng.uniform(low, high, count)
    if "~" in text and (spread := float(text.partition("~")[2])):
        found = found * rng.lognormal(-(spread**2) / 2, spread, count)
    if least is None:
        return found
    return np.maximum(np.floor(found + rng.random(count)), least).astype(int)


def requests_of(sessions: Sequence[Session], clients: int = 0) -> Sessions:
    """Sessions as requests, which wait for each other.

    Args:
        sessions: tasks.
        clients: that run one session after the other; 0: each session at its own arrival.
    """
    made = _Requests()
    ends: list[list[int]] = []  # last requests of each session
    arrival_s = np.array([one.arrival_s for one in sessions])
    for number, task in enumerate(sessions):
        before = ends[number - clients] if 0 < clients <= number else []
        when_s = 0.0 if before else task.arrival_s
        ends.append(made.add(task, number, before, when_s))
    if clients:
        arrival_s[clients:] = np.nan
    requests = Requests(
        np.array(made.arrival_s), np.array(made.prompt), np.array(made.output),
        np.array(made.after), np.zeros(len(made.prompt), int),
        Streams(made.of, made.parent, made.branch), np.array(made.joins, int).reshape(-1, 2),
    )  # fmt: skip
    session, turn, new = np.array(made.session), np.array(made.turn), np.array(made.new)
    return Sessions(requests, session, turn, new, arrival_s)


class _Requests:
    """Columns of requests that grow."""

    def __init__(self) -> None:
        self.arrival_s: list[float] = []
        self.prompt, self.output, self.after = list[int](), list[int](), list[int]()
        self.of, self.parent, self.branch = list[int](), list[int](), list[int]()
        self.session, self.turn, self.new = list[int](), list[int](), list[int]()
        self.joins = list[tuple[int, int]]()
        self._shared: dict[str, int] = {}

    def add(
        self, session: Agent, number: int, before: Sequence[int], when_s: float,
        parent: tuple[int, int] | None = None,
    ) -> list[int]:  # fmt: skip
        """Requests of a session or of an agent behind others; its last ones.

        Args:
            session: which.
            number: of the session, also of that which an agent is of.
            before: requests that have to end.
            when_s: behind their end, or of any clock.
            parent: stream that an agent is of, and the tokens of it so far.
        """
        if parent and session.inherits:
            above, context = parent
        else:
            above, context = -1, session.shared_tokens
            if context:
                above = self._shared.setdefault(session.shared, len(self.parent))
                if above == len(self.parent):
                    self._stream(-1, 0)
        stream = self._stream(above, context)
        for turn, one in enumerate(session.turns):
            request = len(self.prompt)
            self.arrival_s.append(when_s + one.pause_s)
            self.prompt.append(context + one.new_tokens)
            self.output.append(one.output_tokens)
            self.after.append(before[0] if before else -1)
            self.joins += [(request, other) for other in before[1:]]
            self.of.append(stream)
            self.new.append(one.new_tokens)
            self.session.append(number)
            self.turn.append(-1 if parent else turn)
            context += one.new_tokens + one.output_tokens
            before, when_s = [request], 0.0
            if one.agents:
                of_agents = [
                    self.add(agent, number, [request], 0.0, (stream, context))
                    for agent in one.agents
                ]
                before = [last for some in of_agents for last in some]
        return list(before)

    def _stream(self, parent: int, branch: int) -> int:
        self.parent.append(parent)
        self.branch.append(branch)
        return len(self.parent) - 1


@dataclasses.dataclass(frozen=True)
class ServedSessions:
    """Sessions with what became of their requests."""

    sessions: Sessions
    served: Served
    gpus: float

    def tasks_s(self) -> np.ndarray:
        """From each session's arrival to the end of all its requests [S]."""
        begins, ends = np.full((2, len(self.sessions.arrival_s)), np.inf)
        np.minimum.at(begins, self.sessions.session, self.served.arrival_s)
        np.minimum.at(ends, self.sessions.session, -self.served.last_token_s)
        known = self.sessions.arrival_s
        return -ends - np.where(np.isnan(known), begins, known)

    def tasks_per_gpu_hour(self) -> float:
        """From the first request to the last answer."""
        span_s = self.served.last_token_s.max() - self.served.arrival_s.min()
        return float(3600.0 * len(self.sessions.arrival_s) / span_s / self.gpus)

    def summary(self) -> pd.DataFrame:
        """One row: how many, tasks per GPU hour, percentiles of a task's seconds, share of all
        prompts' tokens that each tier held, preemptions.
        """
        tasks_s = self.tasks_s()
        told: dict[str, float] = {"sessions": len(tasks_s), "requests": len(self.sessions.turn)}
        told |= {"tasks_per_gpu_hour": self.tasks_per_gpu_hour(), "task_mean_s": tasks_s.mean()}
        told |= {f"task_p{one}_s": np.percentile(tasks_s, one) for one in (50, 90, 99)}
        told |= {f"{name}_hit_share": share for name, share in self.served.hits().items()}
        return pd.DataFrame([told | {"preemptions": self.served.preemptions}])

    def by_turn(self) -> pd.DataFrame:
        """A row for each turn, agents' requests last (turn `agents`): how many, their mean prompt,
        the share of it that was cached, percentiles of TTFT, mean TPOT.
        """
        turn = self.sessions.turn
        frame = pd.DataFrame(
            {
                "turn": np.where(turn < 0, turn.max() + 1, turn), "ttft_s": self.served.ttft_s,
                "prompt": self.served.requests.prompt, "tpot_s": self.served.tpot_s,
                "cached": self.served.cached.sum(1),
            }
        )  # fmt: skip
        groups = frame.groupby("turn", sort=True)
        told: dict[str, Any] = {
            "requests": groups.size(),
            "prompt_tokens": groups["prompt"].mean(),
            "hit_share": groups["cached"].sum() / groups["prompt"].sum(),
        }
        told |= {f"ttft_p{one}_s": groups["ttft_s"].quantile(one / 100) for one in (50, 90, 99)}
        found = pd.DataFrame(told | {"tpot_s": groups["tpot_s"].mean()}).reset_index()
        names = [str(one + 1) if one <= turn.max() else "agents" for one in found["turn"]]
        return found.assign(turn=names)
