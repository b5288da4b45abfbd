"""What NVIDIA's nccl-tests and AMD's rccl-tests print, read into collective measurements.

Read are the tables of `all_reduce_perf`, `all_gather_perf`, `reduce_scatter_perf`, `alltoall_perf`,
`broadcast_perf`, `reduce_perf` and `sendrecv_perf` of every version found: with and without `redop`
and `root`, `error` or `#wrong`, in-place only, with a time stamp or per-iteration columns at the
end; and the file that `-J` writes (one JSON object a run). A log may hold several runs among other
lines. What a line means and how it is checked: `nccl_runs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from hybridperf.io import InputError
from hybridperf.traces.collective_logs import nccl_runs
from hybridperf.traces.collective_logs.job_logs import CallerHints, LogReader, lines_of
from hybridperf.traces.collective_logs.nccl_runs import TESTS, PrintedNumber, known_redop

_HEADERS = {
    "version": re.compile(r"#\s*[nr]ccl-tests version"),
    "test": re.compile(r"# Collective test starting:\s*(\S+)"),
    "options": re.compile(r"# nThread:? \d+ nGpus"),
    "devices": re.compile(r"# Using devices"),
}
_CONCLUDED = re.compile(r"# Collective test concluded:\s*(\S+)")
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]+)\]\s*(.*)"
)
_COLUMNS = re.compile(r"#\s+size\s+count\s+type\b(.*)")
_PLACES = re.compile(r"#\s+(?:out-of-place|in-place)\b")
_END = re.compile(r"# (?:Out of bounds values|Avg bus bandwidth)\s*:")
_PROGRAM = re.compile(
    rf"(?<![\w-])({'|'.join(sorted(TESTS, key=len, reverse=True))})_perf(?:_mpi)?\b"
)
_LIBRARY = re.compile(r"\b([NR])CCL version\s*:?\s*(\d+\.\d+(?:\.\d+)?)")
_LIBRARY_CODE = re.compile(r"\b([nr])ccl-library=(\d+)")
_DEFAULT_COLUMNS = ["time", "algbw", "busbw", "#wrong"] * 2
_RESULT_COLUMNS = (
    r"\s+(?:cpu)?time\s+algbw\s+busbw\s+(?:#wrong|error)(?:\s+i_min\s+i_max\s+i_p99\s+i_cv%)?"
)
_ROW_START = re.compile(r"\d+\s+\d+\s+[a-z]\w*\s+(?:\S+\s+)*\d+\.\d")
_ROW_WITHIN = re.compile(r"\d+\s+\d+\s+(?:half|float|double|bfloat16|u?int(?:8|32|64)|char)\b")
_LOOKS_LIKE = re.compile(
    r"#\s+size\s+count\s+type\b.*algbw|# nThread:? \d+ nGpus|#\s*[nr]ccl-tests version"
)
_CPU_TIMES = "its times are the CPU's (-C 1), not the operation's"


def _looks_like(text: str) -> bool:
    is_json = text.lstrip().startswith("{") and '"nccl_version"' in text and '"args"' in text
    return is_json or bool(_LOOKS_LIKE.search(text))


def _read(text: str, hints: CallerHints) -> tuple[list[dict[str, Any]], list[str]]:
    """Times are averages over iterations and ranks, as the tests print them."""
    lines = lines_of(text)
    text = "\n".join(lines).strip()
    runs = _json_runs(text, hints.path) if text.startswith("{") else list(_text_runs(lines))
    mentioned = set().union(*(run.mentioned for run in runs), *map(_mention, lines))
    for run in runs:
        run.mentioned = run.mentioned or mentioned
    return nccl_runs.usable(runs, hints)


READER = LogReader(
    "nccl-tests", "the columns of nccl-tests ('# size count type ... algbw busbw') are missing",
    _looks_like, _read,
)  # fmt: skip


def _text_runs(lines: list[str]) -> Iterator[nccl_runs.Run]:
    """Runs of a printed log, one after the other."""
    run: nccl_runs.Run | None = None
    mentioned: set[str] = set()  # since the last table began: the commands of the next run
    in_places: tuple[int, ...] = (0, 1)
    for number, line in enumerate(map(str.strip, lines), 1):
        header = next((kind for kind, pattern in _HEADERS.items() if pattern.match(line)), None)
        columns = _COLUMNS.match(line)
        before_table = run is None or (run.columns is None and not run.closed)
        rows_only = before_table and _ROW_START.match(line)
        starts = header or columns or rows_only
        if starts and (run is None or not before_table or header in run.seen):
            if run is not None:
                yield run
            run = nccl_runs.Run(number, mentioned=mentioned)
            mentioned = set()
        if run is None:
            mentioned |= _mention(line)
        elif header:
            run.seen.add(header)
            _read_version(run, line)
            if header == "test" and (match := _HEADERS["test"].match(line)):
                run.test = _test_name(match[1])
            if header == "options" and (together := re.search(r"agg iters: (\d+)", line)):
                _skip_aggregated(run, int(together[1]))
        elif columns:
            run.columns = _columns(columns[1])
            run.in_places = in_places
            if "cputime" in run.columns:
                run.skip = _CPU_TIMES
            in_places = (0, 1)
        elif _PLACES.match(line):
            printed = re.findall(r"out-of-place|in-place", line)
            in_places = tuple(int(place == "in-place") for place in printed)
        elif _END.match(line):
            run.closed = True
        elif line.startswith("#"):
            _read_comment(run, line)
        elif run.closed:
            mentioned |= _mention(line)
        else:
            if rows_only:
                run.columns = _DEFAULT_COLUMNS  # somebody kept the rows only
            _read_version(run, line)
            if run.columns is None:
                run.mentioned |= _mention(line)
            elif not _read_row(run, number, line):
                mentioned |= _mention(line)
    if run is not None:
        yield run


def _columns(names: str) -> list[str]:
    """Names of the result columns; those of most versions where the line of names is damaged."""
    pattern = rf"(?:\s+redop)?(?:\s+root)?((?:{_RESULT_COLUMNS})+(?:\s+timestamp)?)\s*"
    match = re.fullmatch(pattern, names)
    # a time stamp is two words
    return match[1].replace("timestamp", "day hour").split() if match else _DEFAULT_COLUMNS


def _skip_aggregated(run: nccl_runs.Run, together: int) -> None:
    if together > 1:
        run.skip = f"{together} operations were started as one (-m), a time is a share of theirs"


def _read_comment(run: nccl_runs.Run, line: str) -> None:
    """Devices, and the footer's name for a run whose header is cut off."""
    if re.match(r"#\s+Rank\b", line) and not run.closed:
        match = _RANK.match(line)
        if match is None:
            run.ranks_unclear = "a line of its list of devices is damaged"
            return
        rank, device = int(match[1]), nccl_runs.Rank(match[3], int(match[2] or 0), match[5])
        if run.ranks.get(rank, device) != device:
            run.ranks_unclear = f"its list of devices names rank {rank} twice"
        run.ranks[rank] = device
        if re.search(r"\bAMD\b|\bInstinct\b|\bgfx\d", match[6]):
            run.lib = "rccl"
        if line.endswith("..."):
            run.ranks_unclear = "its list of devices is cut off"
    elif (match := _CONCLUDED.match(line)) and run.test is None:
        run.test = _test_name(match[1])


def _read_version(run: nccl_runs.Run, line: str) -> None:
    if line.startswith("rccl-tests:"):
        run.lib = "rccl"
    elif match := _LIBRARY.search(line) or _LIBRARY_CODE.search(line):
        if match[1].lower() == "r":  # some versions of RCCL call themselves NCCL
            run.lib = "rccl"
        run.lib_version = match[2] if "." in match[2] else _version(int(match[2]))


def _read_row(run: nccl_runs.Run, number: int, line: str) -> bool:
    """Add a line of the table; False where the line is none."""
    tokens = line.split()
    if not tokens or not tokens[0].isdigit():
        if _ROW_WITHIN.search(line):
            run.damaged.append(number)
        return False
    columns = run.columns or []
    head, results = tokens[: len(tokens) - len(columns)], tokens[len(tokens) - len(columns) :]
    try:
        timings = tuple(_timings(columns, results, run.in_places))
        run.rows.append(nccl_runs.Row(number, *_head(head), timings=timings))
    except (ValueError, IndexError):
        run.damaged.append(number)
    return True


def _head(tokens: list[str]) -> tuple[int, int, str, str | None, int | None]:
    """(size, count, type, redop, root); the last two may be missing, or printed as none and -1."""
    size, count, dtype, *rest = tokens
    if not re.fullmatch(r"[a-z]\w*", dtype):
        raise ValueError(dtype)
    redop = rest.pop(0) if rest and rest[0].isalpha() else None
    root = int(rest.pop(0)) if rest else -1
    if rest:
        raise ValueError(rest[0])
    return int(size), int(count), dtype, known_redop(redop), root if root >= 0 else None


def _timings(
    columns: list[str], tokens: list[str], in_places: tuple[int, ...]
) -> Iterator[nccl_runs.Timing]:
    starts = [i for i, column in enumerate(columns) if column.endswith("time")]
    for k, (start, end) in enumerate(zip(starts, [*starts[1:], len(columns)], strict=True)):
        group = dict(zip(columns[start:end], tokens[start:end], strict=True))
        wrong = group[columns[start + 3]]
        if re.fullmatch(r"\d+|N/A|\d[\d.e+-]*\*?", wrong) is None:
            raise ValueError(group)
        optional = {}
        if "i_min" in group:
            optional["time_min_s"] = PrintedNumber.parse(group["i_min"]).value * 1e-6
        in_place = in_places[k] if len(in_places) == len(starts) else k
        time_us = PrintedNumber.parse(group[columns[start]])
        algbw, busbw = PrintedNumber.parse(group["algbw"]), PrintedNumber.parse(group["busbw"])
        yield nccl_runs.Timing(in_place, time_us, algbw, busbw, wrong, optional)


def _json_runs(text: str, path: str) -> list[nccl_runs.Run]:
    """Runs of files that `-J` writes, one JSON object each; their results are counted from 1."""
    decoder, runs, at = json.JSONDecoder(), [], 0
    try:
        while at < len(text):
            document, end = decoder.raw_decode(text, at)
            runs.append(_json_run(document))
            at = end + len(text[end:]) - len(text[end:].lstrip())
    # ValueError: JSONDecodeError, too
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as e:
        raise InputError(
            f"expected the JSON that nccl-tests writes with -J in {path}, found a damaged or"
            f" another one ({type(e).__name__}: {e}); check the file, or bring what the test"
            " printed"
        ) from e
    return runs


def _json_run(document: dict[str, Any]) -> nccl_runs.Run:
    config = document["config"]
    test, version = _test_name(document["args"][0]), _version(int(document["nccl_version"]))
    run = nccl_runs.Run(1, what="result", test=test, lib_version=version, columns=[])
    _skip_aggregated(run, int(config.get("aggregated_iterations", 1)))
    # a process reports its first rank only: ranks 0, 8, 16 of processes with eight
    first = sorted(int(device["rank"]) for device in config["devices"])
    of_process = int(config["nthreads"]) * int(config["ngpus"])
    each = 1 if len(first) > 1 and first[1] - first[0] < of_process else of_process
    for device in config["devices"]:
        for k in range(each):
            name = f"{device['device_hex']}+{k}"
            rank = nccl_runs.Rank(device["hostname"], int(device["group"]), name)
            run.ranks[int(device["rank"]) + k] = rank
    for number, result in enumerate(document["results"], 1):
        timings = []
        for key, in_place in (("out_of_place", 0), ("in_place", 1)):
            timed = result.get(key)
            if timed is not None and "cpu_time" in timed:
                run.skip = _CPU_TIMES
            elif timed is not None:
                per_iteration = result.get(f"{key}_per_iter")
                wrong = "N/A" if timed["nwrong"] is None else str(int(timed["nwrong"]))
                optional = {}
                if per_iteration:
                    optional["time_min_s"] = per_iteration["min_us"] * 1e-6
                    optional["time_std_s"] = per_iteration["stdev_us"] * 1e-6
                printed = (timed["time"], timed["alg_bw"], timed["bus_bw"])
                time, algbw, busbw = map(PrintedNumber.of, printed)
                timings.append(nccl_runs.Timing(in_place, time, algbw, busbw, wrong, optional))
        root = int(result["root"])
        run.rows.append(nccl_runs.Row(
            number, int(result["size"]), int(result["count"]), result["type"],
            known_redop(result["redop"]), root if root >= 0 else None, tuple(timings),
        ))  # fmt: skip
    return run


def _test_name(program: str) -> str:
    return re.sub(r"_perf(?:_mpi)?$", "", PurePath(program).name)


def _mention(line: str) -> set[str]:
    match = None if line.startswith("#") else _PROGRAM.search(line)
    return {match[1]} if match else set()


def _version(code: int) -> str:
    """NCCL's version number: 21803 is 2.18.3, up to 2.8 it was 2708."""
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
