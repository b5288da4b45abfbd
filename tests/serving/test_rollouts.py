"""Rollouts of an engine, until the last has ended."""

import numpy as np
import pytest

from hybridperf.io import InputError
from hybridperf.serving.rollouts import rollouts

ENGINE = {"model": "llama3-8b", "system": "h100_sxm", "backend": "vllm", "kv_dtype": "bf16"}


def test_the_longest_answer_ends_it() -> None:
    alike = rollouts(ENGINE, (1, 1, 1), 128, np.full(32, 500), 0.8)
    tail = rollouts(ENGINE, (1, 1, 1), 128, np.array([500] * 31 + [1000]), 0.8)
    assert tail.half_s == pytest.approx(alike.half_s, rel=0.01)
    alone = rollouts(ENGINE, (1, 1, 1), 128, np.array([500]), 0.8)
    # five hundred steps with one sequence, no more
    assert tail.seconds - alike.seconds == pytest.approx(alone.seconds, rel=0.1)


def test_hosts_and_memory_take_time() -> None:
    lengths = np.full(64, 400)
    usual = rollouts(ENGINE, (1, 1, 1), 128, lengths, 0.8)
    host = rollouts(ENGINE, (1, 1, 1), 128, lengths, 0.8, step_s=1e-3, token_s=1e-5)
    assert host.seconds - usual.seconds == pytest.approx(400 * (1e-3 + 64e-5), rel=0.05)
    few = rollouts(ENGINE, (1, 1, 1), 128, lengths, 0.8, slots=16)
    assert few.seconds > 2.0 * usual.seconds
    little = rollouts(ENGINE, (1, 1, 1), 128, lengths, 0.26)
    assert little.cached_tokens < 64 * 528
    assert little.seconds > usual.seconds


def test_more_ranks_than_a_table_says_are_an_engine() -> None:
    wide = rollouts(ENGINE, (32, 1, 1), 128, np.full(8, 100), 0.8)
    assert 0 < wide.seconds < 10


def test_no_room_is_one_sentence() -> None:
    with pytest.raises(InputError, match="room for the longest answer"):
        rollouts(ENGINE | {"model": "llama3-70b"}, (1, 1, 1), 128, np.full(8, 100), 0.8)
