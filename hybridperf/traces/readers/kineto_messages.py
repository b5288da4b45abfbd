"""What PyTorch writes about a collective into the arguments of its kernel, or of the op
`record_param_comms` around its launch.

    Collective name, Process Group Name, Process Group Ranks, Group size, In msg nelems, Out msg
    nelems, dtype

Long lists of ranks are cut off ("[0, 1, ...]"): then first rank, stride and size say them (`Global
rank start`, `Global rank stride`), or the file's own list of groups does (`distributedInfo`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping

from hybridperf.traces.events import Message
from hybridperf.traces.readers.kineto_json import Args, as_number, as_text, as_whole

_ELEMENT_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "short": 2, "int": 4, "long": 8, "half": 2, "bfloat": 2,
    "float": 4, "double": 8, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4,
    "uint32": 4, "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "fp16": 2, "bf16": 2,
    "float32": 4, "fp32": 4, "float64": 8, "fp64": 8, "complexhalf": 4, "complexfloat": 8,
    "complexdouble": 16, "complex32": 4, "complex64": 8, "complex128": 16, "float8": 1,
}  # fmt: skip
_MOST_RANKS = 1 << 17  # of a group that damaged numbers may claim


def message(args: Iterable[Args | None], by_name: Mapping[str, tuple[int, ...]]) -> Message | None:
    """What the first of several `args` with any record says of a collective; None without."""
    for one in args:
        if one is None:
            continue
        stated = (one.collective, one.group, one.group_ranks, one.group_size)
        if all(value is None for value in stated):
            continue
        group = "" if one.group is None else as_text(one.group)
        size = as_whole(one.group_size)
        size = size if size is not None and 0 < size <= _MOST_RANKS else None
        ranks = _ranks(one, size) or by_name.get(group, ())
        kind = "" if one.collective is None else as_text(one.collective)
        out_bytes = as_number(one.bytes_out)
        if out_bytes is None or not math.isfinite(out_bytes):
            out_bytes = _bytes(one.elements_out, one.elements_type)
        return Message(kind, group, ranks, len(ranks) or size, out_bytes)
    return None


def input_bytes(args: Args | None) -> float:
    """Of a copy or fill; of a collective the input, where its sizes were recorded; else NaN."""
    if args is None:
        return math.nan
    size = as_number(args.bytes)
    if size is None:
        return _bytes(args.elements, args.elements_type)
    return size if math.isfinite(size) else math.nan


def groups_by_name(info: object) -> dict[str, tuple[int, ...]]:
    """Ranks of each process group that the file lists."""
    listed = info.get("pg_config") if isinstance(info, dict) else None
    found = {}
    for one in listed if isinstance(listed, list) else ():
        name = one.get("pg_name") if isinstance(one, dict) else None
        if name is not None and (ranks := _listed(one.get("ranks"))):
            found[as_text(name)] = ranks
    return found


def _ranks(args: Args, size: int | None) -> tuple[int, ...]:
    ranks = _listed(args.group_ranks)
    if ranks and size in (None, len(ranks)):
        return ranks
    first, stride = as_whole(args.first_rank), as_whole(args.rank_stride)
    if size is None or size < 2 or first is None or stride is None or first < 0 or stride < 1:
        return ()
    return _strided(first, size, stride)


def _listed(value: object) -> tuple[int, ...]:
    """A list of ranks, as it is or as text; () where it is cut off or none."""
    if isinstance(value, str):
        return _parsed(value)
    if not isinstance(value, (list, tuple)):
        return ()
    ranks = tuple(rank for one in value if (rank := as_whole(one)) is not None)
    return ranks if len(set(ranks)) == len(value) else ()


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[int, ...]:
    ranks = () if "..." in text else tuple(map(int, re.findall(r"\d{1,9}", text)))
    return ranks if len(set(ranks)) == len(ranks) else ()


@functools.lru_cache(maxsize=4096)
def _strided(first: int, size: int, stride: int) -> tuple[int, ...]:
    return tuple(range(first, first + size * stride, stride))


def _bytes(elements: object, element_type: object) -> float:
    count, spoken = as_number(elements), as_text(element_type).lower().strip()
    each = _ELEMENT_BYTES.get(re.sub(r"^(?:c10::|at::|torch\.)|_e\dm\d\w*$|_", "", spoken))
    if count is None or not math.isfinite(count) or each is None:
        return math.nan
    return count * each
