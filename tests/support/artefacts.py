"""What we write and read again, each with how it is made and what reading it says: for flips of
bits, and for writes that fail (`tests/io/test_flips.py`, `benchmarks/flips.py`).
"""

from __future__ import annotations

import contextlib
import html.parser
import io
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from support import fuzz_targets

import hybridperf as hp
from hybridperf.io import InputError, read_table, write_table

SWEEP = {
    "question": "collectives", "model": "aic_h100_sxm", "top": 3,
    "fields": {"collective": "all_reduce", "n_gpus": 8, "n_nodes": 1,
               "bytes": {"min": 1e3, "max": 1e9, "count": 40}},
}  # fmt: skip


@dataclass(frozen=True)
class Artefact:
    """`make` writes files into a folder; `read` reads them and says what they hold."""

    make: Callable[[Path], None]
    read: Callable[[Path], str]


class _Texts(html.parser.HTMLParser):
    """What an answer's page says of itself, as its script sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.sum, self.texts, self._within = "", {}, ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        kind = {"title": "title", "h1": "h1", "p": "p"}.get(tag, "")
        if tag == "script" and given.get("id") == "told":
            kind, self.sum = "told", given.get("data-sum") or ""
        self._within = kind

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within:
            self.texts[self._within] = self.texts.get(self._within, "") + data


def table_said(path: Path) -> str:
    return read_table(path).to_csv(index=False)


def page_said(path: Path) -> str:
    """The texts of a page whose sum is right, as `page/front/answer.js` reckons it."""
    found = _Texts()
    found.feed(path.read_text("utf-8", errors="replace"))
    said = "\n".join(found.texts.get(name, "") for name in ("title", "h1", "p", "told"))
    if f"{zlib.crc32(said.encode()):08x}" != found.sum:
        raise InputError("the page says that it was damaged")
    return said


def rows() -> pd.DataFrame:
    sizes = np.geomspace(1e3, 1e9, 30)
    return pd.DataFrame({"op": "gemm", "m": sizes.round(), "predicted_s": sizes * 1.1e-9})


def saved_rows(folder: Path) -> None:
    from hybridperf_calibration.microbench.store import RowStore

    with RowStore(folder / "ops.jsonl", {"cpu_model": "made"}) as store:
        for at in range(8):
            store.append({"key": f"gemm {at}", "pass_no": 0, "m": 64 * at, "time_s": 1e-5 + at})


def rows_said(folder: Path) -> str:
    from hybridperf_calibration.microbench.store import RowStore, StoreError

    try:
        with RowStore(folder / "ops.jsonl", {"cpu_model": "made"}) as store:
            if store.dropped:
                raise InputError("measured again")
            return repr(store.rows)
    except StoreError as error:
        raise InputError(str(error)) from error


def planned(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from hybridperf.training.plans.table import write_layouts

        write_layouts(
            hp.plan("gpt2-medium", "dgx_h100", gpus=8, batch=64, only={"pp": 1, "zero": 0}),
            folder / name,
        )

    return make


def swept(folder: Path) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        hp.sweep(**SWEEP, out=folder / "out.parquet", quiet=True)


def paged(folder: Path) -> None:
    from hybridperf.report.answer_page import write_answer_page

    write_answer_page(folder / "answer.html", "Steps: 0.93 s", {"rows": rows()}, "0.93 s\n")


def sharded(folder: Path) -> None:
    (folder / "tables.csv").write_text(fuzz_targets.TABLES)
    from hybridperf.explore.sharding.run import shard

    shard(folder / "tables.csv", 2, model="v100", system="dgx2", batch=4096, method="size").save(
        folder
    )
    (folder / "tables.csv").unlink()


def sharded_said(folder: Path) -> str:
    from hybridperf.io import read_json

    tables = sorted(folder.glob("*.csv"))
    return "".join(map(table_said, tables)) + repr(
        [read_json(one, "shard-result", 1) for one in sorted(folder.glob("*.json"))]
    )


def of_table(name: str) -> Artefact:
    return Artefact(
        lambda folder: write_table(rows(), folder / name), lambda folder: table_said(folder / name)
    )


def artefacts() -> dict[str, Artefact]:
    """All kinds by name."""

    def sweep_said(folder: Path) -> str:
        from hybridperf.explore.sweeps.run import SweepResult

        out = folder / "out.parquet"
        found = SweepResult(out, 0, 0, 0, 0, 0.0, None, None).frame()
        return found.to_csv() + table_said(folder / "out.top.csv")

    return {
        "table.csv": of_table("table.csv"),
        "table.csv.gz": of_table("table.csv.gz"),
        "table.parquet": of_table("table.parquet"),
        "plan.csv": Artefact(planned("plan.csv"), lambda folder: table_said(folder / "plan.csv")),
        "plan.parquet": Artefact(
            planned("plan.parquet"), lambda folder: table_said(folder / "plan.parquet")
        ),
        "sweep": Artefact(swept, sweep_said),
        "shard": Artefact(sharded, sharded_said),
        "page": Artefact(paged, lambda folder: page_said(folder / "answer.html")),
        "rows": Artefact(saved_rows, rows_said),
        "model": Artefact(
            fuzz_targets._save_model, lambda folder: hp.load_model(folder).fingerprint()
        ),
        "collectives": Artefact(
            fuzz_targets._save_collectives, fuzz_targets._collectives_fingerprint
        ),
        "prior": Artefact(fuzz_targets._save_prior, fuzz_targets._prior_fingerprint),
    }


def flipped(path: Path, rng: random.Random) -> int:
    """Flip one bit of a file where it stands; which."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(8 * len(content))
    content[at // 8] ^= 1 << at % 8
    path.write_bytes(content)
    return at


def outcome(artefact: Artefact, folder: Path, known: str) -> str:
    """`refused`, `harmless` or `silent`; or what else was raised."""
    try:
        return "harmless" if artefact.read(folder) == known else "silent"
    except InputError:
        return "refused"
    except Exception as error:
        return f"unexpected {type(error).__name__}: {str(error)[:200]}"
