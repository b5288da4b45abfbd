"""Recorded requests that say which blocks they share: a plain replay of a cache finds as much."""

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from hybridperf.io import InputError
from hybridperf.serving.batching import serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.hashed_requests import BLOCK, read_hashed, streams_of
from hybridperf.serving.prefix_cache import Tier
from tests.runs.made_up import constant


def drawn(seed: int, count: int) -> list[list[int]]:
    """Prompts that begin as earlier ones do, numbered as new blocks come."""
    rng = np.random.default_rng(seed)
    prompts: list[list[int]] = []
    fresh = 0
    for _ in range(count):
        begin: list[int] = []
        if prompts and rng.random() < 0.7:
            before = prompts[rng.integers(len(prompts))]
            begin = before[: rng.integers(1, len(before) + 1)]
        more = int(rng.integers(0 if begin else 1, 6))
        prompts.append([*begin, *range(fresh, fresh + more)])
        fresh += more
    return prompts


def written(folder: Path, prompts: list[list[int]], gap_ms: float = 0.0) -> Path:
    path = folder / "trace.jsonl"
    lines = [
        {"timestamp": at * gap_ms, "input_length": len(own) * BLOCK, "output_length": 2,
         "hash_ids": own}
        for at, own in enumerate(prompts)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return path


def replayed(prompts: list[list[int]], room: int) -> int:
    """Blocks that a plain cache of so many finds: least recently used go, the last of a prompt
    before its first; of each prompt the last block is computed.
    """
    held: OrderedDict[int, None] = OrderedDict()
    found = 0
    for own in prompts:
        for number in own[:-1]:
            if number not in held:
                break
            found += 1
        for number in reversed(own):
            held.pop(number, None)
            held[number] = None
        while len(held) > room:
            held.popitem(last=False)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blocks", [10**9, 60])
def test_what_is_found_is_what_a_replay_finds(seed: int, blocks: int, tmp_path: Path) -> None:
    """Requests one at a time; one that runs holds a block of its answer beside those that stay."""
    prompts = drawn(seed, 400)
    requests = read_hashed(written(tmp_path, prompts, gap_ms=60_000.0))
    engine = Engine(constant(0.01), kv_tokens=(blocks + 1) * BLOCK, block=BLOCK)
    served = serve(requests, [engine], tiers=[])
    wanted, every = replayed(prompts, blocks) * BLOCK, int(requests.prompt.sum())
    assert served.cached.sum() / every == pytest.approx(
        wanted / every, abs=0.0 if blocks > 60 else 0.01
    )
    assert wanted > 0.1 * every


def test_a_tier_below_holds_what_the_gpu_no_longer_does(tmp_path: Path) -> None:
    prompts = drawn(7, 300)
    requests = read_hashed(written(tmp_path, prompts, gap_ms=60_000.0))
    engine = Engine(constant(0.01), kv_tokens=40 * BLOCK, block=BLOCK)
    served = serve(requests, [engine], tiers=[Tier("host", 1e9, 1e9)])
    assert served.tiers == ("gpu", "host")
    assert served.cached.sum() == replayed(prompts, 10**9) * BLOCK
    assert min(served.hits().values()) > 0.05


def test_prompts_that_share_numbers_share_streams() -> None:
    """The second goes on with the first, the third leaves both, the fourth is all of one."""
    streams = streams_of([[1, 2], [1, 2, 3], [1, 4], [1, 2], [], [9]])
    assert streams.of == [0, 0, 1, 0, 2, 3]
    assert (streams.parent, streams.branch) == ([-1, 0, -1, -1], [0, BLOCK, 0, 0])
    assert streams.chain(1, 16) == ((0, 0, 32), (1, 32, streams.chain(1, 16)[1][2]))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "empty"),
        ([{"timestamp": 0, "input_length": 9}], "output_length"),
        ([{"timestamp": 0, "input_length": 0, "output_length": 1}], ">= 1"),
        ([{"timestamp": -1, "input_length": 9, "output_length": 1}], ">= 0"),
        ([{"timestamp": 0, "input_length": 9, "output_length": 1, "delay": 3}], "delay"),
        ([{"timestamp": 0, "input_length": 900, "output_length": 1, "hash_ids": [1, 2, 3]}],
         "got 3"),
        ([{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]},
          {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [3, 2]}],
         "2 of request 2 behind others"),
        ([{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]},
          {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [2]}],
         "another place"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence(lines: list, said: str, tmp_path: Path) -> None:
    (path := tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    with pytest.raises(InputError, match=said) as raised:
        read_hashed(path)
    assert "\n" not in str(raised.value)


def test_a_long_chain_of_branches_is_followed() -> None:
    prompts = [[*range(at), 10_000 + at] for at in range(1, 3000)]
    streams = streams_of(prompts)
    assert len(streams.chain(streams.of[-1], 512)) >= 2


def test_the_command_says_what_caches_hold(tmp_path: Path, run, refused) -> None:
    path = written(tmp_path, drawn(3, 30), gap_ms=500.0)
    asked = ["serve", "--shape", "gpt2-xl", "--system", "h100_sxm", "--gpus", 1, "--top", 1]
    status, out, _ = run(*asked, "--requests", path, "--routing", "round_robin", "--json")
    assert status == 0
    assert json.loads(out)["hits"]["gpu"] > 0
    (plain := tmp_path / "plain.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,9,9\n")
    assert "hash_ids" in refused(*asked, "--requests", plain, "--routing", "round_robin")
    assert "--trace" in refused(*asked, "--requests", path, "--trace", "x")
