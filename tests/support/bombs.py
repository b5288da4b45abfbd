"""Small files and words that would become gigabytes, or take for ever (`benchmarks/bombs.py`)."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support.fuzz_targets import CONFIG, OPS, STEPS

Bomb = Callable[[Path, int], list[str]]  # (folder, bytes that it becomes) -> arguments of a command

_PIECE = 1 << 20


def _packed(path: Path, pieces: list[bytes], times: int, end: bytes = b"") -> Path:
    """A .gz of a beginning, a piece so many times, and an end."""
    with gzip.open(path, "wb", 1) as handle:
        handle.write(pieces[0])
        many = pieces[1] * max(_PIECE // len(pieces[1]), 1)
        for _ in range(max(times // max(_PIECE // len(pieces[1]), 1), 1)):
            handle.write(many)
        handle.write(end)
    return path


def _ops(path: Path) -> list[str]:
    return ["ops", str(path), "--model", "v100"]


def _plan(path: Path) -> list[str]:
    return ["plan", "--shape", str(path), "--system", "dgx_h100", "--gpus", "8", "--batch", "8"]


def csv_zeros(folder: Path, size: int) -> list[str]:
    return _ops(_packed(folder / "a.csv.gz", [OPS.encode(), b"\0" * 1000], size // 1000))


def csv_cells(folder: Path, size: int) -> list[str]:
    """Empty lines of commas: two bytes a cell."""
    head = b"op,dtype,m,n,k\n"
    return _ops(_packed(folder / "a.csv.gz", [head, b"1,1,1,1,1\n"], size // 50))


def csv_one_cell(folder: Path, size: int) -> list[str]:
    head = b"op,dtype,m,n,k\ngemm,fp16,1,1,1"
    return _ops(_packed(folder / "a.csv.gz", [head, b"1" * 1000], size // 1000))


def csv_columns(folder: Path, size: int) -> list[str]:
    path = folder / "a.csv"
    names = [f"c{at}" for at in range(size // 2500)]
    path.write_text(",".join(names) + "\n" + ",".join("1" * len(names)) + "\n")
    return _ops(path)


def csv_words(folder: Path, size: int) -> list[str]:
    """Words of two bytes, objects in memory."""
    head = b"op,dtype,m,n,k\n"
    return _ops(_packed(folder / "a.csv.gz", [head, b"ab,cd,e,f,g\n"], size // 250))


def _parquet(path: Path, columns: dict[str, pa.Array], **how: object) -> list[str]:
    pq.write_table(pa.table(columns), path, compression="zstd", **how)
    return _ops(path)


def parquet_zeros(folder: Path, size: int) -> list[str]:
    return _parquet(folder / "a.parquet", {"m": pa.array(np.zeros(size // 8))})


def parquet_plain(folder: Path, size: int) -> list[str]:
    column = pa.array(np.zeros(size // 8))
    return _parquet(folder / "a.parquet", {"m": column}, use_dictionary=False)


def parquet_lists(folder: Path, size: int) -> list[str]:
    count = size // 8
    lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.array(np.zeros(count)))
    return _parquet(folder / "a.parquet", {"m": lists})


def parquet_nested(folder: Path, size: int) -> list[str]:
    lists = pa.array(np.zeros(size // 64, np.int8))
    for _ in range(8):
        ends = pa.array(np.arange(len(lists) + 1, dtype=np.int32))
        lists = pa.ListArray.from_arrays(ends, lists)
    return _parquet(folder / "a.parquet", {"m": lists})


def parquet_words(folder: Path, size: int) -> list[str]:
    """One long word, repeated by a dictionary."""
    word, count = "x" * 100_000, size // 100_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), [word])
    return _parquet(folder / "a.parquet", {"op": column}, store_schema=False)


def parquet_columns(folder: Path, size: int) -> list[str]:
    one = pa.array([1.0])
    return _parquet(folder / "a.parquet", {f"c{at}": one for at in range(size // 200_000)})


def trace_objects(folder: Path, size: int) -> list[str]:
    path = _packed(folder / "a.json.gz", [b'{"traceEvents":[{}', b",{}"], size // 100, b"]}")
    return ["trace", "summary", str(path)]


def trace_lists(folder: Path, size: int) -> list[str]:
    path = _packed(folder / "a.json.gz", [b'{"nodes":[[]', b",[]"], size // 60, b"]}")
    return ["predict", "--trace", str(path), "--model", "v100"]


def trace_zeros(folder: Path, size: int) -> list[str]:
    path = _packed(folder / "a.json.gz", [b'{"traceEvents":[', b" " * 1000], size // 1000, b"]}")
    return ["trace", "summary", str(path)]


def trace_layers(folder: Path, size: int) -> list[str]:
    content = b" " * size
    for _ in range(3):
        content = gzip.compress(content, 1)
    (folder / "a.json.gz").write_bytes(content)
    return ["trace", "summary", str(folder / "a.json.gz")]


def trace_zip(folder: Path, size: int) -> list[str]:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for at in range(8):
            archive.writestr(f"{at}.json", b"{" + b" " * (size // 8))
    return ["trace", "summary", str(folder / "a.zip")]


def trace_tar(folder: Path, size: int) -> list[str]:
    with tarfile.open(folder / "a.tar.gz", "w:gz", compresslevel=1) as archive:
        info = tarfile.TarInfo("a.json")
        info.size = size
        archive.addfile(info, io.BytesIO(b" " * size))
    return ["trace", "summary", str(folder / "a.tar.gz")]


def log_zeros(folder: Path, size: int) -> list[str]:
    path = _packed(folder / "a.log.gz", [b"# nThread 1\n", b"1 2 3\n"], size // 6)
    return ["collectives", str(path), "--model", "dgx2"]


def config(folder: Path, size: int, **changed: object) -> list[str]:
    del size
    (folder / "config.json").write_text(json.dumps(CONFIG | changed))
    return _plan(folder / "config.json")


def deep_json(folder: Path, size: int) -> list[str]:
    del size
    (folder / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    return _plan(folder / "config.json")


def listed_json(folder: Path, size: int) -> list[str]:
    (folder / "config.json").write_text('{"a":[[]' + ",[]" * (size // 60) + "]}")
    return _plan(folder / "config.json")


def many_gpus(folder: Path, size: int) -> list[str]:
    del size
    (folder / "a.csv").write_text(STEPS.replace(",8,2,1,4,1,64,", f",{10**9},2,1,4,1,64,"))
    return ["steps", str(folder / "a.csv")]


def wide_sweep(folder: Path, size: int) -> list[str]:
    del size
    words = ["sweep", "ops", "--op", "gemm", "--m", "1..1e15:1", "--n", "1..1e15:1", "--k", "64"]
    return [*words, "--model", "v100", "--out", str(folder / "a.parquet"), "--sample", "8"]


BOMBS: dict[str, Bomb] = {
    one.__name__: one
    for one in (
        csv_zeros, csv_cells, csv_one_cell, csv_columns, csv_words, parquet_zeros, parquet_plain,
        parquet_lists, parquet_nested, parquet_words, parquet_columns, trace_objects, trace_lists,
        trace_zeros, trace_layers, trace_zip, trace_tar, log_zeros, deep_json, listed_json,
        many_gpus, wide_sweep,
    )
} | {
    "layers_2^63": lambda folder, size: config(folder, size, num_hidden_layers=2**63),
    "layers_1e9": lambda folder, size: config(folder, size, num_hidden_layers=10**9),
    "window_layers": lambda folder, size: config(
        folder, size, model_type="qwen2", num_hidden_layers=2**40, max_window_layers=2**40,
        use_sliding_window=True, sliding_window=4096,
    ),
    "vocab_2^63": lambda folder, size: config(folder, size, vocab_size=2**63),
}  # fmt: skip
