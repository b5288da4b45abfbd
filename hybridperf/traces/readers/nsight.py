"""Nsight Systems' export to SQLite as the events of a Kineto trace, which `kineto.py` reads on:
kernels, copies, calls and NVTX ranges. Its tables: `nsight.toml`.

Times are nanoseconds there. Tables alone are read, never views, and nothing of the file is run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from hybridperf.io import InputError, shipped_toml
from hybridperf.traces.readers.kineto_json import Args, Document, Event, WrongKind

MAGIC = b"SQLite format 3\0"
_IDS = 1 << 24  # of processes and of threads within a process
_US_PER_NS = 1e-3
_MOST_TEXT = 4096  # characters of a name


def document(content: bytes, source: str) -> Document:
    """The events of a file.

    Raises: InputError: damaged; `WrongKind` for another program's SQLite file.
    """
    with sqlite3.connect(":memory:") as database:
        try:
            database.deserialize(content)
            database.execute("PRAGMA trusted_schema = OFF")
            found = [*_events(database, source)]
        except (sqlite3.Error, OverflowError, UnicodeDecodeError, ValueError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            why = " ".join(str(error).split())
            raise InputError(
                f"expected an export of Nsight Systems, {source} is damaged ({why}); export it"
                " again: nsys export --type sqlite"
            ) from error
    return Document(traceEvents=found)


def _events(database: sqlite3.Connection, source: str) -> Iterator[Event]:
    there = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = {str(name) for (name,) in database.execute(there)}
    known = [one for one in shipped_toml(__package__, "nsight.toml")["tables"]
             if one["table"] in tables]  # fmt: skip
    if not known:
        raise WrongKind(
            f"expected an export of Nsight Systems with kernels or calls in {source}, found another"
            " SQLite file; trace with `nsys profile --trace=cuda,nvtx` and export again"
        )
    words: dict[Any, str] = {}
    if "StringIds" in tables:
        words = {number: str(value)[:_MOST_TEXT] for number, value in
                 database.execute("SELECT id, value FROM StringIds")}  # fmt: skip
    for one in known:
        yield from _of_table(database, one, words)


def _of_table(
    database: sqlite3.Connection, table: Mapping[str, Any], words: Mapping[Any, str]
) -> Iterator[Event]:
    named = database.execute(f"PRAGMA table_info({table['table']})")
    columns = {str(row[1]) for row in named}
    texts = [one for one in table.get("text", ()) if one in columns]
    taken = ["start", "end", "correlationId", "deviceId", "streamId", "bytes", "globalTid"]
    where = table.get("where")
    asked = [one if one in columns else "NULL" for one in [*taken, *texts]]
    chosen = ""
    if where and where["column"] in columns:
        chosen = f" WHERE {where['column']} IN ({', '.join(map(str, where['values']))})"
    query = f"SELECT {', '.join(map(_quoted, asked))} FROM {table['table']}{chosen}"
    for start, end, call, device, stream, size, thread, *said in database.execute(query):
        if not isinstance(start, int) or not isinstance(end, int):
            continue  # a range that was never closed
        name = next((one for one in said if one is not None), table.get("name", ""))
        process, its_thread = (thread or 0) // _IDS % _IDS, (thread or 0) % _IDS
        yield Event(
            ph="X", cat=table["category"], name=words.get(name, str(name))[:_MOST_TEXT],
            ts=start * _US_PER_NS, dur=(end - start) * _US_PER_NS,
            pid=process if table.get("host") else device,
            tid=its_thread if table.get("host") else stream,
            args=Args(correlation=call, device=device, stream=stream, bytes=size),
        )  # fmt: skip


def _quoted(name: str) -> str:
    """`end` is a word of SQL."""
    return name if name == "NULL" else f'"{name}"'
