"""The page as one file that needs no server: three of its views, with the answers to every question
that they can ask.

Answers are those of the commands (`cli/ask.py`): the file shows the numbers that these print.
"""

from __future__ import annotations

import base64
import gzip
import html
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridperf.io import InputError, replacing, shipped_toml, write_table
from hybridperf.io.later import pd
from hybridperf.io.progress import Progress, shown
from hybridperf.page.processes import Ask, one_by_one
from hybridperf.page.questions import Question, question, views
from hybridperf.report import answer_page

_SCHEMA = "hybridperf/exported-page 1"
_MOST_BYTES = 10e6  # of a file's answers: more is a wait for whoever opens it
_DIGITS = 6
_TABLE = "steps"  # a command that answers many questions at once, a row each
# each after those that it imports; questions are answered by the file itself
_MODULES = {name: name for name in (
    "units", "parts", "draw", "grid", "answer", "turns", "ask", "view", "form", "knobs", "drivers",
    "grid_view", "layouts", "machine", "run", "serving", "step", "tables", "trace", "page",
)} | {"ask": "exported"}  # fmt: skip
_BODY = re.compile(r"<body>\n(.*)</body>", re.DOTALL)


def write_exported(
    path: str | os.PathLike, program: Sequence[str], models: Sequence[str] = (),
    systems: Sequence[str] = (), gpus: Sequence[int] = (),
) -> int:  # fmt: skip
    """Write the file, whole or not at all.

    Args:
        path: the file.
        program: a command line that answers commands (`hybridperf/cli/ask.py`).
        models: that views offer; none: those of `exported.toml`, as of the two that follow.
        systems: that views offer.
        gpus: numbers of them that a step and a layout may have, and a deployment.

    Returns:
        How many questions it answers.

    Raises:
        InputError: a name that no question takes, or more than a file can hold.
    """
    said = shipped_toml(__package__, "exported.toml")
    given = {"models": models, "systems": systems, "gpus": gpus}
    lists = {name: list(own or said[name]) for name, own in given.items()}
    known, answers = dict[str, Any](), dict[str, Any]()
    with one_by_one(program) as ask:
        for name, view in said["views"].items():
            offered = _offered(view["fields"], lists, gpus)
            known[name] = _view(name, view["question"], offered)
            answers[f"{name} {view['question']}"] = _answered(name, view, offered, ask)
    told = json.dumps({"views": known, "answers": answers}, allow_nan=False).encode()
    # without a time within: the same answers are the same bytes
    packed = base64.b64encode(gzip.compress(told, mtime=0)).decode()
    if len(packed) > _MOST_BYTES:
        raise InputError(
            f"expected answers of {_MOST_BYTES / 1e6:.0f} MB at most, got {len(packed) / 1e6:.0f}"
            " MB; give fewer of --model, --system, --gpus"
        )
    front = answer_page.FRONT.joinpath("index.html").read_text("utf-8")
    foot = html.escape(answer_page.clean(answer_page.made_by()))
    body = _BODY.findall(front)[0].replace("</main>", f'<p class="quiet">{foot}</p>\n</main>')
    body += f'<script type="text/plain" id="told">{packed}</script>\n'
    page = answer_page.document("hybridperf", body, answer_page.script(_MODULES), _SCHEMA)
    with replacing(path, "wb") as handle:
        handle.write(page.encode())
    return sum(len(one["found"]) for one in answers.values())


def _offered(
    fields: Mapping[str, Any], lists: Mapping[str, list], gpus: Sequence[int]
) -> dict[str, list]:
    """Values by field, those that were given in place of the usual ones."""
    found = {
        name: lists[values[1:]] if isinstance(values, str) else values
        for name, values in fields.items()
    }
    return found | ({"gpus": list(gpus)} if gpus and "gpus" in found else {})


def _view(name: str, asked: str, offered: Mapping[str, list]) -> dict[str, Any]:
    """A view of the page whose fields are choices."""
    view = views()[name]
    fields = []
    for field in view["fields"]:
        if field["name"] in offered:
            choices = [str(one) for one in offered[field["name"]]]
            usual = str(field.get("default", ""))
            kept = {one: field[one] for one in ("name", "label", "unit") if one in field}
            usual = usual if usual in choices else choices[0]
            fields.append({**kept, "kind": "choice", "choices": choices, "default": usual})
    return {"title": view["title"], "lead": view["lead"], "fields": fields,
            "questions": {asked: {}}}  # fmt: skip


def _answered(
    view: str, said: Mapping[str, Any], offered: Mapping[str, list], ask: Ask
) -> dict[str, Any]:
    """The answers to a view's question, by the values of its fields."""
    asked = said["question"]
    taken = views()[view]["questions"][asked]["fields"]
    names = [one for one in (*offered, *said["made"]) if one in taken]
    questions = dict[str, Question]()
    for values in itertools.product(*offered.values()):
        told = dict(zip(offered, map(str, values), strict=True))
        told |= {name: text.format(**told) for name, text in said["made"].items()}
        key = "\n".join(told[name] for name in names)
        questions[key] = question(view, asked, {name: told[name] for name in names}, _no_file)
    if views()[view]["questions"][asked]["command"] == [_TABLE]:
        each: Iterable[Any] = _rows(list(questions.values()), ask)
    else:
        each = (_told(ask, *one.arguments) for one in questions.values())
    found = dict[str, Any]()
    with shown(f"answers of {views()[view]['title']}") as show:
        for (key, one), answer in zip(questions.items(), each, strict=True):
            found[key] = [one.command, one.python, _short(_kept(answer, said["keep"]))]
            show(Progress(len(found), len(questions)))
    return {"fields": names, "found": found}


def _told(ask: Ask, *words: str) -> Any:
    """A command's answer, or the sentence of one that cannot."""
    try:
        return ask(*words)
    except InputError as error:
        return str(error)


def _rows(questions: Sequence[Question], ask: Ask) -> Iterator[dict[str, Any]]:
    """Answers of a table's rows, as of a command for each."""
    cells = [dict(word.split("=", 1) for word in one.arguments[1:]) for one in questions]
    with tempfile.TemporaryDirectory(prefix="hybridperf-") as folder:
        write_table(pd.DataFrame(cells), table := Path(folder) / "rows.csv")
        answer = ask(_TABLE, str(table))
    for row in answer["rows"]:
        row = {**row, "note": re.sub(r"^row \d+: ", "", str(row["note"] or ""))}
        yield {**answer, "rows": [row]}


def _kept(answer: Any, keep: Mapping[str, int]) -> Any:
    """An answer with so many rows of its lists, and their fronts."""
    if isinstance(answer, str):
        return answer
    return {**answer, **{
        name: [row for at, row in enumerate(answer[name]) if at < most or row.get("front")]
        for name, most in keep.items()
    }}  # fmt: skip


def _short(told: Any) -> Any:
    """The same with numbers of `_DIGITS` digits, twice as many as are shown."""
    if isinstance(told, float):
        return float(f"{told:.{_DIGITS}g}")
    if isinstance(told, Mapping):
        return {name: _short(one) for name, one in told.items()}
    return [*map(_short, told)] if isinstance(told, list) else told


def _no_file(key: str) -> tuple[Path, str]:
    raise InputError(f"expected the name of a model, device or system, got a file {key}")
