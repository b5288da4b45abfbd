"""Sessions: what comes when, what is found in caches of prefixes, what agents wait for."""

import collections
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hybridperf.io import InputError
from hybridperf.serving.batching import serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.prefix_cache import Tier
from hybridperf.serving.requests import Served
from hybridperf.serving.sessions import (
    Agent,
    ServedSessions,
    Session,
    Sessions,
    Turn,
    drawn_sessions,
    read_sessions,
    requests_of,
)
from tests.runs.made_up import constant, engine

TALK = {
    "count": "150", "turns": "2..14", "new_tokens": "300~0.7", "output_tokens": "120~0.5",
    "pause_s": "4~1", "shared_tokens": "1000", "rate": "3",
}  # fmt: skip


def talk(**words: str) -> Sessions:
    return requests_of(*drawn_sessions(TALK | words))


def test_two_turns_by_hand() -> None:
    """Steps of a second: the second turn comes three seconds behind the first one's answer, and
    finds what that had computed, but for its last token's keys.
    """
    session = Session([Turn(32, 2), Turn(40, 3, pause_s=3.0)], arrival_s=1.0)
    sessions = requests_of([session])
    served = serve(sessions.requests, [Engine(constant(1.0))], tiers=[])
    np.testing.assert_allclose(served.arrival_s, [1, 6], rtol=1e-5)
    np.testing.assert_allclose(served.last_token_s, [3, 9], rtol=1e-5)
    assert sessions.requests.prompt.tolist() == [32, 74]
    assert served.cached.tolist() == [[0], [32]]  # of 33 tokens two blocks
    told = ServedSessions(sessions, served, gpus=2.0)
    assert told.tasks_s() == pytest.approx([8.0], rel=1e-5)
    assert told.tasks_per_gpu_hour() == pytest.approx(3600 / 8 / 2, rel=1e-5)
    assert told.by_turn()["hit_share"].tolist() == pytest.approx([0.0, 32 / 74])


def test_a_turn_waits_for_all_agents() -> None:
    """Those that inherit find their session's context, others what they share."""
    agents = [
        Agent([Turn(16, 9), Turn(8, 1)], inherits=True),
        Agent([Turn(16, 4)], shared="search", shared_tokens=64),
    ]
    made = [Session([Turn(64, 17, agents=agents), Turn(10, 1)]) for _ in range(2)]
    made[1].arrival_s = 100.0
    sessions = requests_of(made)
    served = serve(sessions.requests, [Engine(constant(1.0))], tiers=[])
    first = served.last_token_s[:5]
    np.testing.assert_allclose(first, [17, 26, 27, 21, 28], rtol=1e-5)
    assert sessions.turn.tolist() == [0, -1, -1, -1, 1] * 2
    assert served.requests.prompt[:5].tolist() == [64, 97, 114, 80, 91]
    # the second session's agent finds the 64 tokens that the first one's has computed
    assert served.cached[:, 0].tolist() == [0, 80, 96, 0, 80, 0, 80, 96, 64, 80]
    np.testing.assert_allclose(served.last_token_s[5:], first + 100, rtol=1e-4)


def test_keys_below_the_gpu_are_read_before_the_prompt_is_computed() -> None:
    """Of seven blocks one session's first answer leaves four, of which another's five push out two;
    the second turn takes all seven. The host has both sessions'.
    """
    made = [Session([Turn(64, 1), Turn(32, 1, pause_s=20.0)], arrival_s=at) for at in (0.0, 10.0)]
    requests = requests_of(made).requests
    small = Engine(constant(1.0), kv_tokens=112)
    alone = serve(requests, [small], tiers=[])
    assert alone.cached[:, 0].tolist() == [0, 32, 0, 0]
    served = serve(requests, [small], tiers=[Tier("host", 1000, tokens_per_s=32.0)])
    assert served.cached.tolist() == [[0, 0], [32, 32], [0, 0], [0, 64]]
    assert served.ttft_s == pytest.approx([1, 2, 1, 3], rel=1e-4)


def replayed(sessions: Sessions, served: Served, blocks: int, below: list[int]) -> np.ndarray:
    """Tokens that plain least recently used caches of blocks would have held, by tier, where
    requests begin and end as they did; each holds its blocks from begin to end.
    """
    block, requests = 16, sessions.requests
    assert requests.streams is not None
    share = int(TALK["shared_tokens"]) // block
    moments = sorted(
        (when, kind, request)
        for kind, times in enumerate((served.last_token_s, served.scheduled_s))
        for request, when in enumerate(times.tolist())
    )
    ids = [
        [("shared", at) if at < share else (stream, at) for at in range((prompt + output) // block)]
        for stream, prompt, output in zip(
            requests.streams.of, requests.prompt.tolist(), requests.output.tolist(), strict=True
        )
    ]
    engines = range(int(served.replica.max()) + 1)
    lru = [[collections.OrderedDict() for _ in (0, *below)] for _ in engines]
    uses = [collections.Counter() for _ in engines]
    own, mine = [0 for _ in engines], {}
    found = np.zeros((len(requests), 1 + len(below)))
    for _, kind, request in moments:
        at = served.replica[request]
        gpu, tokens = lru[at][0], int(requests.prompt[request] + requests.output[request])
        if kind:
            for number in range((int(requests.prompt[request]) - 1) // block):
                name = ids[request][number]
                tier = next((tier for tier, one in enumerate(lru[at]) if name in one), None)
                tier = 0 if name in uses[at] else tier
                if tier is None:
                    break
                found[request, tier] += block
            hits = int(found[request, 0]) // block
            for name in ids[request][:hits]:
                uses[at][name] += 1
                gpu.pop(name, None)
            mine[request] = hits, -(-tokens // block) - hits
            own[at] += mine[request][1]
        else:
            hits, held = mine[request]
            own[at] -= held
            kept = ids[request][: (tokens - 1) // block]
            for number, name in reversed([*enumerate(kept)]):
                if number < hits:
                    uses[at][name] -= 1
                    if not uses[at][name]:
                        del uses[at][name]
                if name not in uses[at]:
                    gpu[name] = True
                    gpu.move_to_end(name)
                for cache, most in zip(lru[at][1:], below, strict=True):
                    cache[name] = True
                    cache.move_to_end(name)
                    if len(cache) > most:
                        cache.popitem(last=False)
        while gpu and len(gpu) + len(uses[at]) + own[at] > blocks:
            gpu.popitem(last=False)
    return found


@pytest.mark.parametrize("routing", ["least_loaded", "round_robin", "prefix_aware"])
@pytest.mark.parametrize(("kv_tokens", "pause"), [(20_000, "4~1"), (60_000, "30~1")])
def test_hits_are_those_of_an_exact_replay(routing: str, kv_tokens: int, pause: str) -> None:
    """By tier within a point of all prompts' tokens."""
    sessions = talk(pause_s=pause)
    tiers = [Tier("host", 40_000, 1e6), Tier("ssd", 100_000, 1e5)]
    engines = [engine(kv_tokens=kv_tokens)] * 3
    served = serve(sessions.requests, engines, routing=routing, tiers=tiers)
    exact = replayed(sessions, served, kv_tokens // 16, [40_000 // 16, 100_000 // 16])
    shares = [one.sum(0) / sessions.requests.prompt.sum() for one in (served.cached, exact)]
    assert 0.05 < shares[1].sum() < 0.95
    np.testing.assert_allclose(*shares, atol=0.01)


def test_sessions_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    some, _ = drawn_sessions(TALK | {"fan_out": "0.3", "count": "20"})
    path.write_bytes(b"\n".join(map(msgspec.json.encode, some)) + b"\n\n")
    assert read_sessions(path) == some


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"turns": [{"new_tokens": 8, "output_tokens": 5, "tool": 1}]}', "unknown field `tool`"),
        ('{"turns": [{"new_tokens": 8, "output_tokens": 5, "pause_s": -1}]}', "pause_s"),
        ('{"turns": [{"new_tokens": 8, "output_tokens": 0}]}', "output_tokens"),
        ('{"turns": []}', "length >= 1"),
        ("turns", "malformed"),
        ("", "empty"),
    ],
)
def test_lines_that_are_no_session_are_told(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text(line)
    with pytest.raises(InputError, match=said) as told:
        read_sessions(path)
    assert "expected a file of sessions" in str(told.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"turns": "0"}, "expected turns of 1 or more"),
        ({"pause_s": "-1"}, "expected pause_s of 0 or more"),
        ({"new_tokens": "9..2"}, "expected new_tokens of 1 or more"),
        ({"new_tokens": "9~x"}, "expected new_tokens of 1 or more"),
        ({"count": "1.5"}, "expected a whole number as count"),
        ({"rate": "1..3"}, "expected a number as rate"),
        ({"clients": "3"}, "expected rate or clients"),
        ({"tools": "3"}, "got 'tools'"),
        ({"turns": "1e6"}, "up to 2e\\+07 requests"),
    ],
)
def test_distributions_that_are_none_are_told(words: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        drawn_sessions(TALK | words)


def test_clients_begin_sessions_one_after_the_other() -> None:
    """Means and order: two of six sessions at a time, of the same numbers each time."""
    words = {name: text for name, text in TALK.items() if name != "rate"}
    words |= {"clients": "2", "count": "6", "fan_out": "0.5", "agent_turns": "2"}
    sessions = requests_of(*drawn_sessions(words))
    assert drawn_sessions(words) == drawn_sessions(words)
    with pytest.raises(InputError, match="up to 6 clients"):
        drawn_sessions(words | {"clients": "7"})
    served = serve(sessions.requests, [engine()] * 2, tiers=[])
    begins, ends = (np.full(6, np.inf) for _ in range(2))
    np.minimum.at(begins, sessions.session, served.arrival_s)
    np.minimum.at(ends, sessions.session, -served.last_token_s)
    first = np.flatnonzero(np.diff(sessions.session, prepend=-1))
    pauses = sessions.requests.arrival_s[first]
    np.testing.assert_allclose(begins[2:], -ends[:-2] + pauses[2:])
    told = ServedSessions(sessions, served, 2.0)
    assert told.tasks_s() == pytest.approx(-ends - np.where(np.arange(6) < 2, 0.0, begins))
    assert told.by_turn()["requests"].sum() == len(sessions.turn)


def test_drawn_numbers_have_the_means_they_are_asked_for() -> None:
    words = TALK | {"count": "4000", "turns": "2..6", "fan_out": "0.25", "agent_turns": "3"}
    sessions = talk(**words)
    counts = np.bincount(sessions.session[sessions.turn >= 0])
    assert counts.mean() == pytest.approx(4.0, rel=0.03)
    assert (sessions.turn < 0).sum() == pytest.approx(counts.sum() * 0.75, rel=0.05)
    assert sessions.new.mean() == pytest.approx(300, rel=0.03)
    assert sessions.requests.output.mean() == pytest.approx(120, rel=0.03)
    assert np.diff(sessions.arrival_s).mean() == pytest.approx(1 / 3, rel=0.05)


def test_what_a_cache_saves_grows_with_it() -> None:
    """More of the host's memory never finds less; routing to where the prefix is finds most."""
    sessions = talk(pause_s="20~1")
    engines = [engine(kv_tokens=20_000)] * 3
    found = [
        serve(sessions.requests, engines, routing="prefix_aware", tiers=[Tier("host", size, 1e9)])
        for size in (16, 50_000, 200_000)
    ]
    shares = [one.cached.sum() for one in found]
    assert shares[0] < shares[1] < shares[2]
    assert found[2].ttft_s.mean() < found[0].ttft_s.mean()
    alike = serve(sessions.requests, engines, tiers=[Tier("host", 200_000, 1e9)])
    assert alike.cached.sum() < shares[2]


def test_routing_by_prefixes_needs_some() -> None:
    with pytest.raises(InputError, match="cache of prefixes"):
        serve(talk().requests, [engine()], routing="prefix_aware")


def test_engines_apart_keep_prompts_where_they_are_computed() -> None:
    """Answers stay with the engine that decodes: what is found is what earlier prompts had."""
    session = Session([Turn(64, 33), Turn(15, 1)])
    requests = requests_of([session]).requests
    served = serve(requests, [Engine(constant(1.0))], [Engine(constant(1.0))], tiers=[])
    assert served.cached.tolist() == [[0], [64]]


def test_the_command_serves_sessions(run, refused, tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    turns = '{"new_tokens": 4000, "output_tokens": 20}, {"new_tokens": 300, "output_tokens": 20}'
    path.write_text("".join(f'{{"arrival_s": {at}, "turns": [{turns}]}}\n' for at in range(9)))
    asked = ("serve", "--shape", "llama3-8b", "--system", "h100", "--gpus", "1", "--precision",
             "fp8", "--sessions", path)  # fmt: skip
    status, text, _ = run(*asked, "--host-cache", "1e12", "--json")
    assert status == 0
    told = json.loads(text)
    assert [row["hit_share"] for row in told["turns"]] == [0.0, pytest.approx(4016 / 4320)]
    assert told["sessions"][0]["gpu_hit_share"] == pytest.approx(4016 / 8320)
    assert told["turns"][1]["ttft_p50_s"] < told["turns"][0]["ttft_p50_s"]
    assert "expected --routing of" in refused(*asked, "--routing", "random")
    assert "--nvme-bandwidth together" in refused(*asked, "--nvme", "1e12")
    assert "expected --requests or --sessions" in refused(*asked, "--requests", path)
    assert "--requests with hash_ids" in refused(*asked[:-2], "--host-cache", "1e12")
    words = "turns=20,new_tokens=100,output_tokens=9,rate=1,count=3"
    gpt2 = ("serve", "--shape", "gpt2", "--system", "h100", "--gpus", "1", "--sessions", words)
    assert "within the 1024 positions of gpt2" in refused(*gpt2)
