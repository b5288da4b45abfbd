"""Recorded requests whose prompts say which blocks of tokens they share: a JSON object a line, as
Mooncake publishes its traces (Qin et al., FAST 2025) and load generators replay them.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2354]}

`timestamp` is in milliseconds. A number of `hash_ids` stands for a block of 512 tokens and all
before it, the last one for what is left: prompts share as many first tokens as they share numbers.
What an answer's tokens are is not recorded, so that a cache keeps prompts alone.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from hybridperf.io import InputError, read_json_lines
from hybridperf.serving.requests import Requests, Streams, arriving

BLOCK = 512  # tokens of a number
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    timestamp: Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: list[int] = []


def read_hashed(path: str | os.PathLike) -> Requests:
    """Requests of such a file, with `streams` where any has `hash_ids`.

    Raises:
        InputError: no file, no request, a field that is unknown, missing or out of its range, more
            or fewer numbers than blocks, one that stands at two places.
    """

    mend = "give timestamp in ms, input_length, output_length, hash_ids; turns go to --sessions"
    lines = read_json_lines(path, "file of requests", _Line, mend)
    requests = arriving(
        np.array([one.timestamp for one in lines]) * 1e-3,
        np.array([one.input_length for one in lines]),
        np.array([one.output_length for one in lines]),
    )
    if not any(one.hash_ids for one in lines):
        return requests
    for number, one in enumerate(lines, 1):
        if one.hash_ids and len(one.hash_ids) not in (
            one.input_length // BLOCK, -(-one.input_length // BLOCK)
        ):  # fmt: skip
            raise InputError(
                f"{path}: expected a number of hash_ids for each {BLOCK} tokens of"
                f" {one.input_length} in request {number}, got {len(one.hash_ids)}; mend it"
            )
    return dataclasses.replace(requests, streams=streams_of([one.hash_ids for one in lines]))


def streams_of(prompts: Sequence[Sequence[int]]) -> Streams:
    """Streams of prompts by their numbers, each behind the first tokens that it shares.

    Raises:
        InputError: a number that stands behind others than before.
    """
    known: dict[int, tuple[int, int]] = {}  # by number its stream, and how many are before it
    streams, lengths = Streams([], [], [], answers=False), list[int]()
    for request, own in enumerate(prompts, 1):
        stream, shared = -1, 0
        for number in own:
            if number not in known:
                break
            stream, at = known[number]
            if at != shared:
                raise InputError(
                    f"expected numbers of hash_ids that stand for all tokens before them, got"
                    f" {number} of request {request} at another place than before; mend it"
                )
            shared += 1
        if stream < 0 or shared < min(lengths[stream], len(own)):  # goes another way
            streams.parent.append(stream)
            streams.branch.append(shared * BLOCK)
            stream = len(lengths)
            lengths.append(shared)
        streams.of.append(stream)
        for at in range(shared, len(own)):
            if own[at] in known:
                raise InputError(
                    f"expected numbers of hash_ids that stand for all tokens before them, got"
                    f" {own[at]} of request {request} behind others than before; mend it"
                )
            known[own[at]] = stream, at
        lengths[stream] = max(lengths[stream], len(own))
    return streams
